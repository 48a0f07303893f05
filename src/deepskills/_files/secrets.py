"""Masking of secret values in a script's output, in every form in which programs usually print them. Pure."""

import base64
import html
import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

from deepskills._format.text import clean

MASK = "[secret]"
"""What stands in place of a secret value."""

PIECE_LENGTH = 1_000
"""Longer values are looked for in pieces of this length."""

MAX_FORM_LENGTH = 12 * PIECE_LENGTH
"""No form of a piece is longer: a character is at most four bytes, and a byte at most `%XX`."""

_LONG_LINE = 8
"""Lines of a value with several are looked for one by one from this length on."""

_TELLING_CODE = 5
"""Shortest part of a base64 text that is taken for a secret."""

_TELLING_HEX = 8
"""Shortest hexadecimal text that is taken for a secret."""

_BASE64_BITS = 6
_BYTE_BITS = 8
_SHELL_SPECIAL = re.compile(r"[^\w%+./:=@-]")
"""What shells write with a backslash where they quote no other way, as `printf %q` does."""

_LINE_BREAKS = re.compile(r"[\r\n]")


class Secrets:
    """The values that must not be seen; `mask` is linear in the text and in the number of values."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        forms = {_LINE_BREAKS.sub("", form) for value in values for form in _forms(value)}
        self._forms = sorted((form for form in forms if form), key=len, reverse=True)

    @property
    def longest(self) -> int:
        """Length of the longest form; a text that was cut may end with that much of one, less a character."""
        return max(map(len, self._forms), default=0)

    def mask(self, text: str) -> str:
        """Return `text` with every form of every value replaced, also where line breaks were put into it."""
        if not self._forms:
            return text
        compact, places = _compact(text)
        spans = sorted(span for form in self._forms for span in _occurrences(form, compact))
        parts: list[str] = []
        shown = masked = 0
        for start, end in spans:
            if start >= masked or not parts:
                parts += [text[shown : places[start]], MASK]
            masked = max(masked, end)
            shown = places[masked - 1] + 1
        return "".join([*parts, text[shown:]])


def _compact(text: str) -> tuple[str, list[int]]:
    """Return a text without line breaks, and where each of its characters was."""
    places = [place for place, character in enumerate(text) if character not in "\r\n"]
    return _LINE_BREAKS.sub("", text), places


def _occurrences(form: str, text: str) -> Iterator[tuple[int, int]]:
    start = text.find(form)
    while start >= 0:
        yield start, start + len(form)
        start = text.find(form, start + 1)


def _forms(value: str) -> Iterator[str]:
    for piece in _pieces(value):
        yield piece
        yield clean(piece)
        yield from _escaped(piece)
        data = piece.encode()
        yield base64.b64encode(data).decode()
        yield base64.urlsafe_b64encode(data).decode()
        yield from _base64_inside(data)
        digits = data.hex()
        if len(digits) >= _TELLING_HEX:
            yield from (digits, digits.upper())


def _pieces(value: str) -> Iterator[str]:
    """Yield a value, its long lines, and, of long ones, parts that cover it."""
    lines = value.splitlines()
    wholes = {value, value.strip(), *(line.strip() for line in lines if len(line.strip()) >= _LONG_LINE)}
    for whole in wholes:
        for start in range(0, len(whole), PIECE_LENGTH):
            yield whole[start : start + PIECE_LENGTH]


def _escaped(piece: str) -> Iterator[str]:
    """Yield a value as addresses, pages, JSON, Python and shells write it."""
    for quoted in (quote(piece, safe=""), quote(piece), quote_plus(piece), quote_plus(piece, safe="/")):
        yield quoted
        yield re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), quoted)
    # JavaScript's encodeURIComponent and encodeURI.
    yield quote(piece, safe="!'()*")
    yield quote(piece, safe="!'()*;,/?:@&=+$#")
    yield html.escape(piece)
    yield html.escape(piece, quote=False)
    yield json.dumps(piece)[1:-1]
    yield json.dumps(piece, ensure_ascii=False)[1:-1]
    yield repr(piece)[1:-1]
    yield ascii(piece)[1:-1]
    yield piece.replace("'", "'\\''")
    yield piece.replace("'", "'\"'\"'")
    yield _SHELL_SPECIAL.sub(r"\\\g<0>", piece)


def _base64_inside(data: bytes) -> Iterator[str]:
    """Yield what is always the same of a value's base64 inside that of a longer text, at each of three places."""
    for before in range(3):
        encode = base64.b64encode(b"\x00" * before + data).decode()
        first = -(-before * _BYTE_BITS // _BASE64_BITS)
        last = (before + len(data)) * _BYTE_BITS // _BASE64_BITS
        inside = encode[first:last]
        if len(inside) >= _TELLING_CODE:
            yield inside
            yield inside.replace("+", "-").replace("/", "_")
