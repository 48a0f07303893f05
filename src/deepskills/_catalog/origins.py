"""Whose a path is: which source gave it, and whether it may be read. Pure, save for what a process has seen.

Reading is allowed on the word of a listing of this process alone. Who gave an entry before is asked only to keep it
while its source is down, so that may be told by what the path looks like.
"""

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping

from deepskills._catalog.sources import Source, lies_under, parent
from deepskills._types import SKILL_FILE

MAX_REMEMBERED_ORIGINS = 16_384
"""How many directories a middleware remembers that listings led to."""

Led = Mapping[str, Collection[str]]
"""For a source, the directories that its listing led to outside of it."""


class Origins:
    """Where listings led outside their sources (links, relative paths), as this process saw it; bounded, thread-safe.

    Kept here and not in state, because a path is read on the word of it and state may come from a caller.
    """

    def __init__(self, size: int = MAX_REMEMBERED_ORIGINS) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._seen: OrderedDict[tuple[str, str], None] = OrderedDict()

    def __deepcopy__(self, memo: dict[int, object]) -> "Origins":
        """Return an empty one: what is remembered is not part of what a copy is for."""
        return Origins(self._size)

    def note(self, origins: Led) -> None:
        """Remember what a discovery saw."""
        with self._lock:
            for source, directories in origins.items():
                for directory in directories:
                    self._seen[source, directory] = None
                    self._seen.move_to_end((source, directory))
            while len(self._seen) > self._size:
                self._seen.popitem(last=False)

    def seen(self) -> Led:
        """Return, for each source, the directories its listing led to."""
        found: dict[str, set[str]] = {}
        with self._lock:
            for source, directory in self._seen:
                found.setdefault(source, set()).add(directory)
        return found


def readable_from(path: str, sources: Iterable[Source], origins: Led) -> bool:
    """Whether a catalog's path is a `SKILL.md` under one of `sources`, or where that source's listing led."""
    if not path.endswith(f"/{SKILL_FILE}"):
        return False
    return any(_gave(source, path, origins) for source in sources)


def owner_of(path: str, sources: Iterable[Source], origins: Led) -> Source | None:
    """Return the source that a path seems to come from; the innermost, where one lies inside another.

    A backend may spell a relative source out, and another process has not seen how: then the path tells.
    """
    innermost = sorted(sources, key=lambda source: len(source.path), reverse=True)
    gave = next((source for source in innermost if _gave(source, path, origins)), None)
    return gave or next((source for source in innermost if _spells_out(path, source)), None)


def origin_of(path: str, source: Source) -> str:
    """Return the directory that a listing led to: the skill's, or the source's own where it is only spelled out."""
    directory = parent(path)
    named = _named(source)
    return parent(directory) if named and parent(directory).endswith(f"/{named}") else directory


def _gave(source: Source, path: str, origins: Led) -> bool:
    """Whether a `SKILL.md` lies under a source, or in a directory that its listing led to."""
    led = origins.get(source.path, ())
    directory = parent(path)
    return lies_under(path, source.path) or (bool(led) and (directory in led or parent(directory) in led))


def _spells_out(path: str, source: Source) -> bool:
    """Whether a path lies below a directory that a relative source may stand for."""
    named = _named(source)
    return bool(named) and not source.path.startswith("/") and f"/{named}/" in path


def _named(source: Source) -> str:
    return "/".join(part for part in source.path.split("/") if part not in {"", ".", ".."})
