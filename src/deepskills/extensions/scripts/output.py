"""Prepares a script's output for the model: text, without secrets, its head and tail within a limit. Pure.

Secret values are masked in every form in which programs usually print them.
"""

import base64
import html
import itertools
import json
import quopri
import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import quote, quote_plus

from deepskills._skillmd.text import clean

MASK = "[secret]"
"""The text in place of a secret value."""

PIECE_LENGTH = 1_000
"""Longer values are searched for in pieces of this length."""

MAX_FORM_LENGTH = 24 * PIECE_LENGTH
"""No form of a piece is longer, not counting spaces: a character is at most four bytes, and a byte at most `&#x73;`."""

_LONG_LINE = 8
"""In a value of several lines, lines of at least this length are also searched for one by one."""

_TELLING_CODE = 5
"""Shortest part of a base64 text that is taken for a secret."""

_TELLING_HEX = 8
"""Shortest hexadecimal text that is taken for a secret."""

_BASE64_BITS = 6
_BYTE_BITS = 8
_SHELL_SPECIAL = re.compile(r"[^\w%+./:=@-]")
"""Characters that shells write with a backslash when they do not use quotes, as `printf %q` does."""

_TELLING_LENGTH = 8
"""Shortest form that is searched for across spaces: adjacent words could make up a shorter one by accident."""

_LINE_BREAKS = re.compile(r"[\r\n]")
_SPACES = re.compile(r"=[ \t]*\r?\n|\s")
"""Characters that wrap and indent a text; quoted-printable ends a continued line with `=`."""

_SEPARATORS = re.compile(r"0x(?=[0-9a-f]{2})|\\x|\\u(?:00)?|u\+(?:00)?|&#x(?:00)?|[\s%=:,;.|\\/'\"_-]")
"""What programs print between, or before, two hexadecimal digits of a byte or character."""

_LONGEST_BYTE = 6
"""How many characters one byte takes at most in hexadecimal, not counting spaces: `&#x73;`."""


class Secrets:
    """The values that must not be seen; `mask` is linear in the text and in the number of values."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        pieces = {piece for value in values for piece in _pieces(value) if piece}
        # Base64 in another case is another text; every other form means the same in any case.
        written = {_folded(form) for piece in pieces for form in _written(piece)}
        encoded = {form for piece in pieces for form in _encoded(piece)}
        digits = {form for piece in pieces for form in _digits(piece)}
        self._looks = (
            _Look(_LINE_BREAKS, written, folds=True),
            _Look(_LINE_BREAKS, encoded),
            _Look(_SPACES, written, _TELLING_LENGTH, folds=True),
            _Look(_SPACES, encoded, _TELLING_LENGTH),
            _Look(_SEPARATORS, digits, _TELLING_HEX, folds=True),
        )
        by_digits = max(map(len, digits), default=0) // 2 * _LONGEST_BYTE
        self._longest = max((*map(len, written), *map(len, encoded), by_digits), default=0)

    @property
    def longest(self) -> int:
        """Length of the longest form, not counting spaces; a cut text may end with all but one character of it."""
        return self._longest

    def mask(self, text: str) -> str:
        """Return `text` with every form of every value replaced, even if it was wrapped and indented."""
        spans = sorted(span for look in self._looks for span in look.spans(text))
        parts: list[str] = []
        shown = 0
        for start, end in spans:
            if start >= shown or not parts:
                parts += [text[shown:start], MASK]
            shown = max(shown, end)
        return "".join([*parts, text[shown:]])


class _Look:
    """Searches for forms in a text, ignoring some of its characters."""

    def __init__(self, without: re.Pattern[str], forms: Iterable[str], least: int = 1, *, folds: bool = False) -> None:
        self._without, self._folds = without, folds
        found = {without.sub("", form) for form in forms}
        self._forms = [form for form in found if len(form) >= least]

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield where each form begins and ends in the original text."""
        if not self._forms:
            return
        text = _folded(text) if self._folds else text
        left = [(match.start(), match.end()) for match in self._without.finditer(text)]
        places = _places(len(text), left)
        compact = "".join(text[place] for place in places)
        for form in self._forms:
            for start, end in _occurrences(form, compact):
                yield places[start], places[end - 1] + 1


def _places(length: int, left_out: Sequence[tuple[int, int]]) -> list[int]:
    """Return the positions in a text that are not ignored."""
    places: list[int] = []
    done = 0
    for start, end in left_out:
        places.extend(range(done, start))
        done = end
    places.extend(range(done, length))
    return places


def _folded(text: str) -> str:
    """Return a text in lower case, with each letter at its position."""
    small = text.lower()
    if len(small) == len(text):
        return small
    return "".join(letter.lower() if len(letter.lower()) == 1 else letter for letter in text)


def _occurrences(form: str, text: str) -> Iterator[tuple[int, int]]:
    start = text.find(form)
    while start >= 0:
        yield start, start + len(form)
        start = text.find(form, start + 1)


def _written(piece: str) -> Iterator[str]:
    """Yield a value as it is and as programs escape it, without base64 and hexadecimal."""
    for text in {piece, piece.upper(), piece.lower(), piece.swapcase()}:
        yield text
        yield clean(text)
        yield from _escaped(text)
        for with_tabs in (False, True):
            yield quopri.encodestring(text.encode(), quotetabs=with_tabs).decode().replace("=\n", "")


def _encoded(piece: str) -> Iterator[str]:
    """Yield a value in base64."""
    data = piece.encode()
    yield base64.b64encode(data).decode()
    yield base64.urlsafe_b64encode(data).decode()
    yield from _base64_inside(data)


def _digits(piece: str) -> Iterator[str]:
    """Yield a value as the hexadecimal digits of its bytes, or of its characters."""
    for text in {piece, piece.upper(), piece.lower()}:
        yield text.encode().hex()
        yield "".join(f"{ord(letter):02x}" if ord(letter) < _TWO_DIGITS else f"{ord(letter):04x}" for letter in text)


_TWO_DIGITS = 256


def _pieces(value: str) -> Iterator[str]:
    """Yield a value, its long lines and, if it is long, parts that cover it."""
    lines = value.splitlines()
    wholes = {value, value.strip(), *(line.strip() for line in lines if len(line.strip()) >= _LONG_LINE)}
    for whole in wholes:
        for start in range(0, len(whole), PIECE_LENGTH):
            yield whole[start : start + PIECE_LENGTH]


def _escaped(piece: str) -> Iterator[str]:
    """Yield a value as URLs, HTML, JSON, Python and shells write it."""
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
    """Yield the part of a value's base64 that is the same inside any longer text, at each of three offsets."""
    for before in range(3):
        encode = base64.b64encode(b"\x00" * before + data).decode()
        first = -(-before * _BYTE_BITS // _BASE64_BITS)
        last = (before + len(data)) * _BYTE_BITS // _BASE64_BITS
        inside = encode[first:last]
        if len(inside) >= _TELLING_CODE:
            yield inside
            yield inside.replace("+", "-").replace("/", "_")


# Output within a limit.


MIN_OUTPUT = 200
"""Smallest limit: the note that something was left out must fit."""

_REPLACEMENT = "\ufffd"
_BINARY_SHARE = 5
"""Output is binary if more than one character in this many is not text."""

_BYTES_PER_CHARACTER = 4
"""The longest character in UTF-8."""

_NOTE = "\n[... about {cut:,} of {total:,} bytes of output are left out here ...]\n"


def shown_output(head: bytes, tail: bytes, total: int, secrets: Secrets, limit: int) -> str:
    """Return what a script wrote, in at most `limit` characters.

    Args:
        head: The first bytes of the output.
        tail: The last bytes that are not in the head; if bytes between both are missing, each must be longer than what
            is shown, by the longest form of a secret, because a cut may go through one.
        total: How many bytes the script wrote.
        secrets: What must not be shown.
        limit: How many characters are shown.
    """
    is_cut = len(head) + len(tail) < total
    if is_binary(head + tail):
        return f"[The output is not text: {total:,} bytes. Have the script write a file instead.]"
    if not is_cut:
        start = end = secrets.mask(_readable(head + tail))
        if len(start) <= limit:
            return start
    else:
        start, end = secrets.mask(_readable(head)), secrets.mask(_readable(tail))
        start = start[: len(start) - _length_with_spaces(start[::-1], secrets.longest)]
        end = end[_length_with_spaces(end, secrets.longest) :]
        start, end = start.rstrip(_REPLACEMENT), end.lstrip(_REPLACEMENT)
    half = (limit - len(_NOTE.format(cut=total, total=total))) // 2
    start, end = start[:half], end[-half:]
    cut = max(0, total - len(start.encode()) - len(end.encode()))
    return f"{start}{_NOTE.format(cut=cut, total=total)}{end}"


def masked_text(text: str, secrets: Secrets, limit: int) -> str:
    """Return a text from a user's code or a backend, cleaned, masked and bounded like output."""
    data = text.encode(errors="replace")
    keep = _BYTES_PER_CHARACTER * (limit + secrets.longest)
    head, tail = (data[:keep], data[-keep:]) if len(data) > 2 * keep else (data, b"")
    return shown_output(head, tail, len(data), secrets, limit)


def _length_with_spaces(text: str, count: int) -> int:
    """Return how far the first `count` characters reach, not counting spaces, which masking looks across."""
    places = (place for place, character in enumerate(text, 1) if not character.isspace())
    return next(itertools.islice(places, count - 1, None), len(text)) if count else 0


def is_binary(data: bytes) -> bool:
    """Whether too much of it is not UTF-8 text."""
    text = data.decode(errors="replace")
    strange = sum(
        1 for character in text if character == _REPLACEMENT or (character < " " and character not in "\t\r\n")
    )
    return strange * _BINARY_SHARE > len(text)


def _readable(data: bytes) -> str:
    # Removing them could join separate parts; as line breaks, masking looks across them.
    text = data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "\n")
    return clean(text)


def told_exit_code(code: int | None) -> str:
    """Return an exit code in words, with the signal that it usually stands for."""
    if code is None:
        return "an unknown exit code"
    number = code - 128 if code > 128 else -code  # noqa: PLR2004 - how shells tell a signal
    try:
        name = signal.Signals(number).name if number > 0 else ""
    except ValueError:
        name = ""
    return f"exit code {code}" + (f" (ended by {name})" if name else "")
