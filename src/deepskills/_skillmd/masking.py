"""Takes secret values out of text: what scripts, servers and the libraries below us print. Pure.

A value is found in any case of letters, and as base64 (also for URLs, also inside a longer text), URL encoding, JSON
escapes, and hexadecimal digits with or without separators. For each way to write it the text is read once in that way,
with the place of every character, so that the work grows with the text and the number of values alone. Output that was
encoded twice, wrapped over lines or laid out in columns (`xxd`, `od`) is not recognized.
"""

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias
from urllib.parse import unquote_to_bytes

from deepskills._skillmd.text import clean

MASK = "[secret]"
"""The text in place of a secret value."""

PIECE_LENGTH = 1_000
"""Longer values are searched for in pieces of this length."""

MAX_FORM_LENGTH = 24 * PIECE_LENGTH
"""No form of a piece is longer: a character is at most four bytes, and a byte at most `, 0x73`."""

_LONG_LINE = 8
"""In a value of several lines, lines of at least this length are also searched for one by one."""

_SHORTEST_CODE = 5
"""Shortest part of a base64 text that is taken for a secret."""

_SHORTEST_HEX = 8
"""Shortest hexadecimal text that is taken for a secret."""

_URL_RUN = re.compile("(?:%[0-9a-f]{2})+", re.IGNORECASE)
_FORM_RUN = re.compile(r"(?:%[0-9a-f]{2})+|\+", re.IGNORECASE)
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|\\[\"'\\/bfnrt]"
)
_SEPARATOR = re.compile(r"0x(?=[0-9a-f]{2})|\\x|[\s%:,;.|\\/'\"_-]", re.IGNORECASE)
"""What programs print between, or before, two hexadecimal digits."""

Decoded: TypeAlias = Iterable[tuple[str, int]]
"""Characters, each with how many characters of the original text it takes."""


class Masker:
    """Replaces secret values in text; without values it changes nothing."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        pieces = {piece for value in values for piece in _divide(value)}
        written = {fold_case(form) for piece in pieces for form in (piece, clean(piece)) if form.strip()}
        cased = {form for piece in pieces for form in (piece, piece.upper(), piece.lower()) if form.strip()}
        digits = {form.encode("utf-8", "surrogatepass").hex() for form in cased}
        self._written = sorted(written)
        self._codes = sorted({code for form in cased for code in _encode_base64(form)})
        self._digits = sorted(form for form in digits if len(form) >= _SHORTEST_HEX)
        self.longest = max((3 * len(form) for form in digits), default=0)
        """Length of the longest form; a cut text may end with all but one character of it."""

    def mask(self, text: str) -> str:
        """Return `text` with every form of every value replaced."""
        parts: list[str] = []
        shown = 0
        for start, end in sorted(self._find(text)):
            if start >= shown or not parts:
                parts += [text[shown:start], MASK]
            shown = max(shown, end)
        return "".join([*parts, text[shown:]])

    def _find(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield where each form begins and ends."""
        if not self._written:
            return
        yield from _find_all(self._written, fold_case(text))
        yield from _find_all(self._codes, text)
        yield from _find_in(_read_under(text, _SEPARATOR, lambda _: ()), self._digits)
        for pattern, decode in ((_URL_RUN, _decode_url), (_FORM_RUN, _decode_url), (_ESCAPE, _decode_escape)):
            if pattern.search(text):
                yield from _find_in(_read_under(text, pattern, decode), self._written)


def fold_case(text: str) -> str:
    """Return a text in lower case, with each letter at its position."""
    small = text.lower()
    if len(small) == len(text):
        return small
    return "".join(letter.lower() if len(letter.lower()) == 1 else letter for letter in text)


def _divide(value: str) -> Iterator[str]:
    """Yield a value, its long lines and, if it is long, parts that cover it."""
    lines = (line.strip() for line in value.splitlines())
    for whole in {value, value.strip(), *(line for line in lines if len(line) >= _LONG_LINE)}:
        yield from (whole[start : start + PIECE_LENGTH] for start in range(0, len(whole), PIECE_LENGTH))


def _encode_base64(piece: str) -> Iterator[str]:
    """Yield a value in base64, alone and the part that is the same inside any longer text, at each of three offsets."""
    data = piece.encode("utf-8", "surrogatepass")
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        whole = encode(data).decode()
        yield from (whole, whole.rstrip("="))
        for before in range(3):
            inside = encode(bytes(before) + data).decode()[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]
            if len(inside) >= _SHORTEST_CODE:
                yield inside


def _find_all(forms: Iterable[str], text: str) -> Iterator[tuple[int, int]]:
    for form in forms:
        start = text.find(form)
        while start >= 0:
            yield start, start + len(form)
            start = text.find(form, start + 1)


def _find_in(read: tuple[str, list[int], list[int]], forms: Iterable[str]) -> Iterator[tuple[int, int]]:
    decoded, starts, ends = read
    yield from ((starts[start], ends[end - 1]) for start, end in _find_all(forms, fold_case(decoded)))


def _read_under(
    text: str, pattern: re.Pattern[str], decode: Callable[[str], Decoded]
) -> tuple[str, list[int], list[int]]:
    """Return a text with all matches of a pattern decoded, and where each character begins and ends in the original."""
    letters: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    done = 0

    def keep(until: int) -> None:
        letters.append(text[done:until])
        starts.extend(range(done, until))
        ends.extend(range(done + 1, until + 1))

    for match in pattern.finditer(text):
        keep(match.start())
        done = match.start()
        for letter, width in decode(match[0]):
            letters.append(letter)
            starts.append(done)
            done += width
            ends.append(done)
        done = match.end()
    keep(len(text))
    return "".join(letters), starts, ends


def _decode_url(run: str) -> Decoded:
    if run == "+":
        return [(" ", 1)]
    letters = unquote_to_bytes(run).decode("utf-8", "surrogateescape")
    return [(letter, 3 * len(letter.encode("utf-8", "surrogateescape"))) for letter in letters]


def _decode_escape(escape: str) -> Decoded:
    if escape == "\\'":
        return [("'", 2)]
    as_json = f"\\u00{escape[2:]}" if escape[1] == "x" else escape
    return [(json.loads(f'"{as_json}"'), len(escape))]
