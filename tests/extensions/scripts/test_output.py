"""What a model reads of a script's output: text within a limit, both ends kept, nothing of a secret at the cuts."""

from deepskills._skillmd.masking import MASK, Masker
from deepskills.extensions.scripts.output import describe_exit_code, shorten_output
from support import scaled

NONE = Masker()


def test_short_output_is_shown_as_it_is() -> None:
    """Text within the limit stays; line ends are unified and terminal colours are gone."""
    data = "première ligne\r\n\x1b[31mrouge\x1b[0m\n周报".encode()
    assert shorten_output(data, b"", len(data), NONE, 1000) == "première ligne\nrouge\n周报"
    assert shorten_output(b"", b"", 0, NONE, 1000) == ""


def test_long_output_keeps_its_ends_and_says_what_is_missing() -> None:
    """Head and tail are shown within the limit, whether or not all of it arrived."""
    whole = b"".join(b"line %d\n" % n for n in range(1000))
    for head, tail in ((whole, b""), (whole[:600], whole[-600:])):
        text = shorten_output(head, tail, len(whole), NONE, 1000)
        assert len(text) <= 1000
        assert text.startswith("line 0\n")
        assert text.endswith("line 999\n")
        assert f"of {len(whole):,} bytes of output are left out here" in text


def test_a_cut_shows_no_part_of_a_secret() -> None:
    """A value through which a cut goes is not shown in part, wherever the cut falls."""
    value = "ABCDEFGHIJKLMNOP"
    secrets = Masker([value])
    for shift in range(len(value) + 1):
        data = ("." * shift + value) * 400
        keep = 500 + secrets.longest
        text = shorten_output(data[:keep].encode(), data[-keep:].encode(), len(data), secrets, 1000)
        seen = text.replace(MASK, "")
        assert not set(seen.partition("\n[...")[0]) - {".", *MASK}
        assert not set(seen.rpartition("...]\n")[2]) - {".", *MASK}


def test_a_cut_shows_no_part_of_a_secret_in_a_long_form() -> None:
    """A value that was written with much between its letters is not shown in part either."""
    value = "".join(f"{n:04}" for n in range(50))
    secrets = Masker([value])
    data = "".join(f", 0x{letter:02x}" for letter in value.encode()) * 60
    for keep in range(3_000 + secrets.longest, 3_000 + 3 * secrets.longest, scaled(389, 97)):
        text = shorten_output(data[:keep].encode(), data[-keep:].encode(), len(data), secrets, 6_000)
        ends = text.partition("\n[...")[0], text.rpartition("...]\n")[2]
        assert [end.replace(MASK, "").replace(", 0x", "") for end in ends] == ["", ""]


def test_a_secret_that_escapes_hide_is_masked() -> None:
    """Colours inside a value do not carry it past the mask."""
    secrets = Masker(["hunter2-secret"])
    padded = b"hunter2\x1b[0m-secret and some more text around it"
    assert shorten_output(padded, b"", len(padded), secrets, 1000) == "[secret] and some more text around it"


def test_binary_output_is_described() -> None:
    """Output that is not text is not shown, other encodings are shown as far as they go."""
    data = bytes(range(256)) * 10
    assert "not text: 2,560 bytes" in shorten_output(data, b"", len(data), NONE, 1000)
    latin = "Prüfung bestanden, Übergabe läuft".encode("latin-1")
    assert shorten_output(latin, b"", len(latin), NONE, 1000) == "Pr\ufffdfung bestanden, \ufffdbergabe l\ufffduft"


def test_characters_are_not_cut_in_half() -> None:
    """A cut inside a character leaves no replacement character."""
    data = "周报" * 2000
    for offset in range(3):
        text = shorten_output(data.encode()[: 600 + offset], data.encode()[-600 - offset :], len(data) * 3, NONE, 5000)
        assert "\ufffd" not in text


def test_exit_codes_name_their_signal() -> None:
    """Codes above 128 and below zero are told with the signal that they stand for."""
    told = {code: describe_exit_code(code) for code in (0, 1, 137, -15, 255, None)}
    assert told == {
        0: "exit code 0",
        1: "exit code 1",
        137: "exit code 137 (ended by SIGKILL)",
        -15: "exit code -15 (ended by SIGTERM)",
        255: "exit code 255",
        None: "an unknown exit code",
    }
