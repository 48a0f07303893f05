"""What differs between two versions of a skill, as a unified diff. Pure."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence

MAX_COMPARED_LINES = 2_000
"""Up to how many lines that differ are matched with each other; comparing more would take too long."""

MAX_LINES = 200_000
"""Up to how many lines a file is compared by lines at all; each takes memory of its own."""


def difference(before: Mapping[str, bytes], after: Mapping[str, bytes], max_length: int | None = None) -> str:
    """Return the differences of two sets of files as one unified diff, or about so many characters of it."""
    parts: list[str] = []
    length = 0
    for line in _differences(before, after):
        parts.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
        length += len(line)
        if max_length is not None and length > max_length:
            break
    return "".join(parts)


def _differences(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Iterator[str]:
    for path in sorted({*before, *after}):
        old, new = before.get(path), after.get(path)
        if old == new:
            continue
        names = ("/dev/null" if old is None else f"a/{path}", "/dev/null" if new is None else f"b/{path}")
        if any(content.count(b"\n") > MAX_LINES for content in (old or b"", new or b"")):
            yield f"Files {names[0]} and {names[1]} differ, and have too many lines to be shown\n"
            continue
        texts = _lines(old or b""), _lines(new or b"")
        if texts[0] is None or texts[1] is None:
            yield f"Binary files {names[0]} and {names[1]} differ\n"
        else:
            yield from _unified(texts[0], texts[1], *names)


def _lines(content: bytes) -> list[str] | None:
    """Return the lines of a text; `None` if it is not one."""
    try:
        return [line for line in re.split(r"(?<=\n)", content.decode()) if line]
    except UnicodeDecodeError:
        return None


def _unified(old: Sequence[str], new: Sequence[str], old_name: str, new_name: str) -> Iterator[str]:
    """Yield a unified diff; where too much differs to be matched line by line, one hunk replaces it all."""
    start = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    longest = min(len(old), len(new)) - start
    pairs = zip(reversed(old), reversed(new), strict=False)
    end = min(longest, next((i for i, (a, b) in enumerate(pairs) if a != b), longest))
    if len(old) + len(new) - 2 * (start + end) <= MAX_COMPARED_LINES:
        first, last = max(0, start - 3), max(0, end - 3)
        matched = difflib.unified_diff(old[first : len(old) - last], new[first : len(new) - last], old_name, new_name)
        yield from (_shifted(line, first) if line.startswith("@@") else line for line in matched)
        return
    yield from (f"--- {old_name}\n", f"+++ {new_name}\n")
    yield f"@@ -{start + 1},{len(old) - start - end} +{start + 1},{len(new) - start - end} @@\n"
    yield from (f"-{line}" for line in old[start : len(old) - end])
    yield from (f"+{line}" for line in new[start : len(new) - end])


def _shifted(hunk: str, by: int) -> str:
    """Return a hunk's heading for lines that were compared without the first `by`."""

    def moved(part: str) -> str:
        place, comma, count = part[1:].partition(",")
        return f"{part[0]}{int(place) + by}{comma}{count}"

    _, old, new, _ = hunk.split(" ", 3)
    return f"@@ {moved(old)} {moved(new)} @@\n"
