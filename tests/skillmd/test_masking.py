"""Secret values are masked in the ways in which programs usually write them, and nothing else is."""

import base64
import json
import re
import time
import urllib.parse
from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepskills._skillmd.masking import MASK, MAX_FORM_LENGTH, Masker

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
