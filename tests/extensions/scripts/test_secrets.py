"""Secret values are masked in every form in which programs usually print them, and nothing else is."""

import base64
import html
import json
import quopri
import re
import textwrap
import time
import urllib.parse
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepskills.extensions.scripts.output import MASK, MAX_FORM_LENGTH, Secrets

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
    "quoted for a page": html.escape,
    "quoted by printf": lambda v: re.sub(r"([ '\"&])", r"\\\1", v),
    "base64": lambda v: base64.b64encode(v.encode()).decode(),
    "base64 for URLs": lambda v: base64.urlsafe_b64encode(v.encode()).decode(),
    "base64 without padding": lambda v: base64.b64encode(v.encode()).decode().rstrip("="),
    "JSON": json.dumps,
    "JSON with letters": lambda v: json.dumps(v, ensure_ascii=False),
    "Python": repr,
    "hexadecimal": lambda v: v.encode().hex(),
    "hexadecimal in upper case": lambda v: v.encode().hex().upper(),
    "shell trace": lambda v: "'" + v.replace("'", "'\\''") + "'",
    "one character a line": "\n".join,
    "upper case": str.upper,
    "lower case": str.lower,
    "swapped case": str.swapcase,
    "quoted in upper case": lambda v: urllib.parse.quote(v.upper(), safe=""),
    "quoted whole": lambda v: "".join(f"%{byte:02X}" for byte in v.encode()),
    "hexadecimal with spaces": lambda v: v.encode().hex(" "),
    "hexadecimal with colons": lambda v: v.encode().hex(":").upper(),
    "hexadecimal in twos": lambda v: v.encode().hex(" ", 2),
    "hexadecimal of an array": lambda v: ", ".join(f"0x{byte:02x}" for byte in v.encode()),
    "hexadecimal of a text": lambda v: "".join(f"\\x{byte:02x}" for byte in v.encode()),
    "hexadecimal, wrapped and indented": lambda v: textwrap.indent(textwrap.fill(v.encode().hex(" "), 20), "    "),
    "JSON of code points": lambda v: "".join(f"\\u{ord(letter):04X}" for letter in v),
    "page of code points": lambda v: "".join(f"&#x{ord(letter):x};" for letter in v),
    "quoted-printable": lambda v: quopri.encodestring(v.encode(), quotetabs=True).decode(),
    "quoted-printable, wrapped": lambda v: quopri.encodestring((v * 4).encode()).decode(),
    "quoted-printable in lower case": lambda v: quopri.encodestring(v.encode()).decode().lower(),
    "base64, wrapped and indented": lambda v: textwrap.indent(
        textwrap.fill(base64.b64encode(v.encode()).decode(), 7), "      "
    ),
    "wrapped and indented": lambda v: "\n\t  ".join(v[start : start + 6] for start in range(0, len(v), 6)),
    "in a block of YAML": lambda v: f">-\r\n    {v[:9]}\r\n    {v[9:]}",
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_usual_form_is_masked(form: Callable[[str], str]) -> None:
    """No part of a value that is long enough to matter stays readable, in any form, wherever it stands."""
    text = Secrets([VALUE, ""]).mask(f"before {form(VALUE)} after")
    assert MASK in text
    left = text.replace(MASK, "").removeprefix("before ").removesuffix(" after").strip()
    assert len(left) <= len("&#x;"), left


def test_base64_of_a_longer_text_is_masked() -> None:
    """A value inside other text is found in its base64 at every alignment, also where lines are wrapped."""
    secrets = Secrets([VALUE])
    for before in range(80):
        encoded = base64.encodebytes(b"u" * before + VALUE.encode() + b":rest").decode()
        left = secrets.mask(encoded).replace(MASK, "")
        # At most the letters at both ends stay, which it shares with what stands around it.
        assert len(encoded.replace("\n", "")) - len(left.replace("\n", "")) >= len(VALUE.encode()) * 4 // 3 - 1
    header = base64.b64encode(f"user:{VALUE}".encode()).decode()
    assert header[8:-4] not in secrets.mask(f"Authorization: Basic {header}")


def test_lines_of_a_key_are_masked_one_by_one() -> None:
    """A value of several lines stays hidden when a program prints it with something before each line."""
    masked = Secrets([KEY]).mask("".join(f"[stderr] {line}\n" for line in KEY.splitlines()))
    assert "MIIE" not in masked
    assert "PRIVATE" not in masked


def test_other_text_stays() -> None:
    """Without a value in it, a text is returned as it was; short values are masked only as they are."""
    text = "Nothing to see: 100%, aGVsbG8=, {'a': 1}\n\n\r\n"
    assert Secrets([VALUE]).mask(text) == text
    assert Secrets().mask(text) == text
    assert Secrets(["", "  "]).mask("ab") == "ab"
    assert Secrets(["42"]).mask("4242 420 4 2") == f"{MASK}{MASK} {MASK}0 4 2"


@settings(deadline=None, derandomize=True, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=4, max_size=60), st.text(max_size=30))
def test_no_value_survives(value: str, around: str) -> None:
    """Whatever a value holds, a text that repeats it does not after masking, unless the mask itself does."""
    masked = Secrets([value]).mask(f"{around}{value}{around}")
    assert value not in masked.replace(MASK, "\x00") or not value.strip()


def test_masking_is_quick_and_its_forms_are_bounded() -> None:
    """Huge values and values made to match everywhere cost little."""
    values = ["k" * 100_000, "".join(chr(0x4E00 + n % 20_000) for n in range(20_000)), *(f"key-{n}" for n in range(50))]
    started = time.process_time()
    secrets = Secrets(values)
    secrets.mask("k" * 50_000 + "x" * 50_000)
    assert time.process_time() - started < 10
    assert secrets.longest <= MAX_FORM_LENGTH
