"""The globs of a skill's `paths`: which files bring it into the list. Pure, and quick for any pattern."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

MAX_PATTERNS = 100
"""How many globs of a skill count."""

MAX_PARTS = 64
"""How many directories a glob or a path may have."""

MAX_PATH_LENGTH = 4_096
"""Longest glob or path that is compared."""


def patterns_of(value: Any) -> tuple[str, ...]:  # noqa: ANN401 - whatever frontmatter holds
    """Return the globs that frontmatter names: a list, or a text with commas between them."""
    items = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else ()
    found = (item.strip() for item in items[:MAX_PATTERNS] if isinstance(item, str))
    return tuple(item for item in found if item and len(item) <= MAX_PATH_LENGTH)


def matches(patterns: Sequence[str], path: str) -> bool:
    """Whether a path matches one of the globs.

    `**` stands for any directories, `*` for any part of one name. A glob that starts with `/` is for the whole path,
    any other for its end, because a tool may name a project's file from the root of a disk.
    """
    parts = _parts(path)
    return 0 < len(parts) <= MAX_PARTS and len(path) <= MAX_PATH_LENGTH and any(_fits(each, parts) for each in patterns)


def _parts(path: str) -> list[str]:
    return [part for part in path.replace("\\", "/").split("/") if part not in {"", "."}]


def _fits(pattern: str, parts: Sequence[str]) -> bool:
    wanted = [*([] if pattern.startswith("/") else ["**"]), *_parts(pattern)]
    # `src/` means what lies in it.
    wanted += ["**"] if pattern.endswith("/") else []
    if len(wanted) > MAX_PARTS:
        return False
    # Where in the path the glob may have come to: never more places than the path has parts.
    places = {0}
    for part in wanted:
        if part == "**":
            places = set(range(min(places), len(parts) + 1))
        else:
            places = {place + 1 for place in places if place < len(parts) and fnmatchcase(parts[place], part)}
        if not places:
            return False
    return len(parts) in places
