"""What an update would change inside text files, line by line, at a cost that no file can multiply."""

import difflib
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

from deepskills._install.paths import SourceError
from deepskills._install.trees import read_regular

MAX_COMPARED = 4_000_000
"""How many pairs of lines one command compares; beyond, a file is shown as removed and added as a whole."""

_CONTEXT = 3


class TextDifferences:
    """Compares text files of a directory with those of another."""

    def __init__(self, old: Path, new: Path) -> None:
        self._old = old
        self._new = new
        self._pairs_left = MAX_COMPARED

    def compare(self, path: str) -> list[str] | None:
        """Return the difference of a file in the unified format; `None` if one side is not text."""
        old, new = _read_text(self._old / path, path), _read_text(self._new / path, path)
        if old is None or new is None:
            return None
        return list(self._unify(path, old.split("\n"), new.split("\n"))) if old != new else []

    def _unify(self, path: str, old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
        self._pairs_left -= yield from unify(old, new, path, path, self._pairs_left)


def unify(
    old: Sequence[str], new: Sequence[str], old_name: str, new_name: str, pairs_left: int, end: str = ""
) -> Generator[str, None, int]:
    """Yield the difference of two texts in the unified format, and return how many pairs of lines were compared.

    Where there are more than `pairs_left`, all that differs is one hunk. `end` is the end of the lines of headers.
    """
    start = _count_equal(old, new, min(len(old), len(new)))
    same = _count_equal(old[::-1], new[::-1], min(len(old), len(new)) - start)
    # What differs, with the lines around it. Finding the best match is quadratic and worse.
    first, rest = max(start - _CONTEXT, 0), max(same - _CONTEXT, 0)
    before, after = old[first : len(old) - rest], new[first : len(new) - rest]
    yield f"--- {old_name}{end}"
    yield f"+++ {new_name}{end}"
    pairs = len(before) * len(after)
    if pairs <= pairs_left:
        for line in list(difflib.unified_diff(before, after, lineterm=end, n=_CONTEXT))[2:]:
            yield f"{_shift(line, first)}{end}" if line.startswith("@@") else line
        return pairs
    yield f"@@ -{first + 1},{len(before)} +{first + 1},{len(after)} @@{end}"
    yield from (f"-{line}" for line in before)
    yield from (f"+{line}" for line in after)
    return 0


def _count_equal(old: Sequence[str], new: Sequence[str], limit: int) -> int:
    return next((place for place in range(limit) if old[place] != new[place]), limit)


def _shift(header: str, lines: int) -> str:
    """Return `@@ -1,2 +1,3 @@` with line numbers counted from the start of the file."""
    parts = []
    for word in header.split()[1:3]:
        number, comma, length = word[1:].partition(",")
        parts.append(f"{word[0]}{int(number) + lines}{comma}{length}")
    return f"@@ {' '.join(parts)} @@"


def _read_text(path: Path, name: str) -> str | None:
    """Return a file's text, without one the empty text, and `None` if it is not text."""
    try:
        content = read_regular(path, name)
    except SourceError:
        # A file that is not there; one that is a link or cannot be read is replaced as a whole.
        return ""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", "backslashreplace")
    # Bytes that are not UTF-8 are shown as such, so that two of them are never taken for the same.
    return None if b"\0" in content else content.decode("utf-8", "backslashreplace")
