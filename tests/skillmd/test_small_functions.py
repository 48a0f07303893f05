"""The small functions of SKILL.md: words of problems, keys of names, flags, globs, safe text, masked secrets."""

import base64
import json
import re
import string
import time
import urllib.parse
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepskills._skillmd.globs import matches, patterns_of
from deepskills._skillmd.masking import MASK, MAX_FORM_LENGTH, Masker
from deepskills._skillmd.names import find_meant_name, name_key
from deepskills._skillmd.problems import MAX_LISTED, MAX_QUOTED_LENGTH, PROBLEMS, listed, problem, quoted
from deepskills._skillmd.text import harmless_body
from deepskills._skillmd.yaml import as_flag
from support.problems import SEVERITIES


def test_every_code_is_documented() -> None:
    """Troubleshooting has a row for each code, with the right severity, and none for a code that does not exist."""
    assert SEVERITIES.keys() == PROBLEMS.keys()
    wrong = {code for code, severity in SEVERITIES.items() if severity not in {"strict", PROBLEMS[code][0]}}
    assert wrong == set()


@pytest.mark.parametrize("code", PROBLEMS)
def test_every_code_is_kebab_case_with_a_whole_message(code: str) -> None:
    """A code is lower-case words with hyphens; its message says what is wrong and what to do, every value in it."""
    severity, message = PROBLEMS[code]
    slots = {slot for _, slot, _, _ in string.Formatter().parse(message) if slot is not None}
    found = problem("/p", code, **dict.fromkeys(slots, "VALUE"))
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", code)
    assert severity in ("error", "warning")
    assert (found["path"], found["code"], found["severity"]) == ("/p", code, severity)
    # What is wrong, then what to do.
    assert found["message"].endswith(".")
    assert ". " in found["message"]
    assert found["message"].count("VALUE") >= len(slots)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("a b", "`a b`", id="plain"),
        pytest.param(" a\n\t b\u2028c ", "`a b c`", id="one-line"),
        pytest.param("`a` {b}", "`'a' {b}`", id="backticks-and-braces"),
        pytest.param("x" * MAX_QUOTED_LENGTH, f"`{'x' * MAX_QUOTED_LENGTH}`", id="longest"),
        pytest.param("x" * (MAX_QUOTED_LENGTH + 1), f"`{'x' * MAX_QUOTED_LENGTH}...`", id="bounded"),
        pytest.param("", "``", id="empty"),
    ],
)
def test_quoted_text_is_one_bounded_line(text: str, shown: str) -> None:
    """A stranger's text cannot end its quotes, its line, or the message."""
    assert quoted(text) == shown


def test_quoted_text_is_data_in_a_message() -> None:
    """Braces in a stranger's text are not filled in."""
    assert "`{keys} {0}`" in problem("/p", "unknown-field", keys=listed(["{keys} {0}"]))["message"]


def test_a_reason_that_is_a_sentence_ends_once() -> None:
    """Messages of other libraries have a full stop of their own."""
    message = problem("/s", "source-failed", reason="OSError: The disk is gone.")["message"]
    assert message.startswith("The source could not be listed: OSError: The disk is gone. It is tried")


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        pytest.param(["a"], "`a`", id="one"),
        pytest.param(["b", "a", "b"], "`b`, `a`", id="each-once-in-order"),
        pytest.param(list("abcde"), "`a`, `b`, `c`, `d`, `e`", id="as-many-as-are-shown"),
        pytest.param(list("abcdefg"), "`a`, `b`, `c`, `d`, `e` and 2 more", id="more"),
    ],
)
def test_lists_name_a_few_and_count_the_rest(names: list[str], shown: str) -> None:
    """A list in a message names the first few, each once, and says how many more there are."""
    assert listed(names) == shown
    assert shown.count("`") <= 2 * MAX_LISTED


NAME = "caf\u00e9"
SPELLINGS = (NAME, "cafe\u0301", "CAFE\u0301", "Caf\u00c9", "  cafe\u0301\n", "**cafe\u0301**", "`caf\u00e9`")


def test_names_have_one_key() -> None:
    """However a name is spelled, it has one key; another name has another."""
    assert {find_meant_name(["other", NAME], spelling) for spelling in SPELLINGS} == {NAME}
    assert {name_key(spelling) for spelling in SPELLINGS[:4]} == {NAME}
    assert name_key("cafe") != name_key(NAME)
    # Folding case takes this one apart again.
    assert name_key("\u01f0") == name_key("j\u030c") == name_key("J\u030c")
    assert find_meant_name(["Beta", "beta"], "beta") == "beta"
    assert find_meant_name(["Beta", "beta"], "BETA") == "Beta"
    assert find_meant_name(["beta"], "gamma") is None


def test_a_flag_is_set_in_every_way_of_yaml() -> None:
    """What means neither yes nor no is the default."""
    given: list[object] = [True, 1, ["yes"], False, None, {}, "x"]
    assert [as_flag(value) for value in given] == [True] * 3 + [False] * 4
    assert [as_flag(value, default=True) for value in (None, "x", "no", 0, False)] == [True, True, False, False, False]


def test_globs_match_as_authors_expect() -> None:
    """`**` is any directories, `*` one name; relative globs fit the end of a path, and no pattern is slow."""
    table = [
        ("*.py", "/a/b/c.py", True),
        ("*.py", "/a/b.py/c", False),
        ("src/*.py", "/home/me/src/a.py", True),
        ("src/*.py", "/src/x/a.py", False),
        ("src/**/*.py", "/src/a.py", True),
        ("/src/*.py", "/home/src/a.py", False),
        ("src/", "/src/a/b", True),
        ("**", "/a", True),
        ("**/" * 60 + "*a*a*a*a*a*b", "/" + "a" * 3000, False),
        ("*a" * 1500 + "b", "/" + "a" * 4000, False),
        ("[", "/a", False),
    ]
    assert [matches([pattern], path) for pattern, path, _ in table] == [expected for *_, expected in table]
    assert patterns_of("a/*.py, b") == ("a/*.py", "b")
    assert (patterns_of({"a": "b"}), patterns_of(""), patterns_of([["x"], ""])) == ((), (), ())


def test_escaping_takes_linear_time_and_changes_nothing_else() -> None:
    """Brackets, blanks and beginnings of notices in any number are read once; a text without ours stays as it is."""
    for text in (
        "[" + " " * 500_000 + "[ S k i l l" * 50_000,
        "[Notice about skill " * 50_000,
        "<skill_load_" * 50_000,
    ):
        assert harmless_body(text) == text
    assert harmless_body(harmless_body("[Skill 'a'] <skill_hook>")) == "&#91;Skill 'a'] &lt;skill_hook>"


# Secret values are masked in the ways in which programs usually write them, and nothing else is.

VALUE = "s3cr3t/Tök'en \"+=& 42"
KEY = "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIBADANBgkqhkiG9w0BAQEF\n" * 12 + "-----END PRIVATE KEY-----\n"

FORMS: dict[str, Callable[[str], str]] = {
    "plain": lambda v: v,
    "quoted for a URL": lambda v: urllib.parse.quote(v, safe=""),
    "quoted for a path": urllib.parse.quote,
    "quoted for a form": urllib.parse.quote_plus,
    "quoted in lower case": lambda v: re.sub("%..", lambda m: m[0].lower(), urllib.parse.quote(v, safe="")),
    "quoted by JavaScript": lambda v: urllib.parse.quote(v, safe="!'()*"),
    "quoted by JavaScript for an address": lambda v: urllib.parse.quote(v, safe="!'()*;,/?:@&=+$#"),
    "quoted whole": lambda v: "".join(f"%{byte:02X}" for byte in v.encode()),
    "quoted in upper case": lambda v: urllib.parse.quote(v.upper(), safe=""),
    "base64": lambda v: base64.b64encode(v.encode()).decode(),
    "base64 for URLs": lambda v: base64.urlsafe_b64encode(v.encode()).decode(),
    "base64 without padding": lambda v: base64.b64encode(v.encode()).decode().rstrip("="),
    "base64 of lower case": lambda v: base64.b64encode(v.lower().encode()).decode(),
    "JSON": lambda v: json.dumps(v)[1:-1],
    "JSON with letters": lambda v: json.dumps(v, ensure_ascii=False)[1:-1],
    "JSON with slashes": lambda v: json.dumps(v)[1:-1].replace("/", "\\/"),
    "JSON of code points": lambda v: "".join(f"\\u{ord(letter):04X}" for letter in v),
    "Python": lambda v: repr(v)[1:-1],
    "hexadecimal": lambda v: v.encode().hex(),
    "hexadecimal in upper case": lambda v: v.encode().hex().upper(),
    "hexadecimal of upper case": lambda v: v.upper().encode().hex(),
    "hexadecimal with spaces": lambda v: v.encode().hex(" "),
    "hexadecimal with colons": lambda v: v.encode().hex(":").upper(),
    "hexadecimal with dashes": lambda v: v.encode().hex("-"),
    "hexadecimal in twos": lambda v: v.encode().hex(" ", 2),
    "hexadecimal of an array": lambda v: ", ".join(f"0x{byte:02x}" for byte in v.encode()),
    "hexadecimal of a text": lambda v: "".join(f"\\x{byte:02x}" for byte in v.encode()),
    "upper case": str.upper,
    "lower case": str.lower,
    "swapped case": str.swapcase,
    "case by turns": lambda v: "".join(c.upper() if n % 2 else c.lower() for n, c in enumerate(v)),
}


def test_every_usual_form_is_masked() -> None:
    """Nothing of a value stays readable, in any form, wherever it stands, and what stands around it does."""
    masker = Masker([VALUE, ""])
    found = {name: masker.mask(f"before {form(VALUE)} after") for name, form in FORMS.items()}
    left = {
        name: text
        for name, text in found.items()
        if not re.fullmatch(rf"before (0x|\\x)?{re.escape(MASK)} after", text)
    }
    assert left == {}


def test_base64_of_a_longer_text_is_masked() -> None:
    """A value inside other text is found in its base64 at every alignment."""
    masker = Masker([VALUE])
    for before in range(9):
        encoded = base64.b64encode(b"u" * before + VALUE.encode() + b":rest").decode()
        left = masker.mask(encoded).replace(MASK, "")
        # At most the letters at both ends stay, which it shares with what stands around it.
        assert len(encoded) - len(left) >= len(VALUE.encode()) * 4 // 3 - 1
    header = base64.b64encode(f"user:{VALUE}".encode()).decode()
    assert header[8:-4] not in masker.mask(f"Authorization: Basic {header}")


def test_lines_of_a_key_are_masked_one_by_one() -> None:
    """A value of several lines stays hidden when a program prints it with something before each line."""
    masked = Masker([KEY]).mask("".join(f"[stderr] {line}\n" for line in KEY.splitlines()))
    assert "MIIE" not in masked
    assert "PRIVATE" not in masked


def test_other_text_stays() -> None:
    """Without a value in it, a text is returned as it was; short values are masked only as they are."""
    text = "Nothing to see: 100%, 1+1, %zz \\u12 aGVsbG8=, {'a': 1}\n\n\r\n"
    assert Masker([VALUE]).mask(text) == text
    assert Masker().mask(text) == text
    assert Masker(["", "  "]).mask("ab") == "ab"
    assert Masker(["42"]).mask("4242 420 4 2") == f"{MASK}{MASK} {MASK}0 4 2"


@settings(deadline=None, derandomize=True, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=4, max_size=60), st.text(max_size=30))
def test_no_value_survives(value: str, around: str) -> None:
    """Whatever a value holds, a text that repeats it does not after masking, unless the mask itself does."""
    masked = Masker([value]).mask(f"{around}{value}{around}")
    assert value not in masked.replace(MASK, "\x00") or not value.strip()


def test_any_text_can_be_masked() -> None:
    """Broken escapes, half characters and bytes that are not text raise nothing."""
    text = "%ff%c3 %C3%A9%ff \\ud83d \\ud83d\\ude00 \\udc00 \\xff \udc80 %"
    assert Masker(["secret", "\udc80\ud800"]).mask(text) == text
    assert Masker(["\N{GRINNING FACE} key"]).mask('"\\ud83d\\ude00 KEY"') == f'"{MASK}"'


def test_masking_is_quick_and_its_forms_are_bounded() -> None:
    """Huge values and values made to match everywhere cost little."""
    values = ["k" * 100_000, "".join(chr(0x4E00 + n % 20_000) for n in range(20_000)), *(f"key-{n}" for n in range(50))]
    started = time.process_time()
    masker = Masker(values)
    masker.mask("k" * 50_000 + "x" * 50_000)
    assert time.process_time() - started < 10
    assert masker.longest <= MAX_FORM_LENGTH
