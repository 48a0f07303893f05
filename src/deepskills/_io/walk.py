"""Two plans for many files: a walk of directories, one round per level, and reading in batches.

Every walk in the library is `walk`, and every reading of many files is `read_files`. Both assume that some directory or
file may fail, hang or lead in circles, and see to it that none costs another.
"""

import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeAlias, TypeVar

from deepskills._io.backends import too_large
from deepskills._io.drivers import MAX_CALLS_AT_ONCE
from deepskills._io.plan import (
    Attempt,
    Failed,
    File,
    Files,
    ListDirectory,
    Listing,
    Plan,
    ReadFiles,
    RealPaths,
    ResolveLinks,
)
from deepskills._types import MAX_SKILL_FILE_BYTES

KeyT = TypeVar("KeyT", bound=Hashable)


@dataclass(frozen=True)
class Visit(Generic[KeyT]):
    """A directory on a walk."""

    key: KeyT
    """What it is listed for: a source, a skill, a kind of resource."""

    path: str
    depth: int = 0
    """How many levels it lies below its start."""

    real: str | None = None
    """Where it really lies, if the walk resolves links and the backend is local."""


Below: TypeAlias = Iterable[tuple[KeyT, str]]
"""Directories to list at the next level, each with its key."""


class Visitor(Generic[KeyT]):
    """What a walk does with directories; override `take`, and the others where needed."""

    def admit(self, visit: Visit[KeyT]) -> Visit[KeyT] | None:
        """Return the directory to list, perhaps by another path; `None` to pass it over."""
        return visit

    def take(self, visit: Visit[KeyT], reply: Listing | Failed) -> Below[KeyT]:
        """Record what a directory holds, or why it could not be listed, and return the directories below it to list."""
        raise NotImplementedError

    def settle(self) -> Plan[None]:
        """Do what needs further calls, after each level and before the next is admitted."""
        yield from ()


@dataclass
class Walked(Generic[KeyT]):
    """What a walk left out."""

    too_deep: list[Visit[KeyT]] = field(default_factory=list)
    """Directories below the last level."""

    cut: list[KeyT] = field(default_factory=list)
    """Keys with too many directories, some of which were not listed."""


def walk(
    starts: Below[KeyT],
    visitor: Visitor[KeyT],
    *,
    levels: int | None,
    max_directories: int | None = None,
    resolve_links: bool = False,
) -> Plan[Walked[KeyT]]:
    """List directories level by level; each level is one round, in which the keys take turns.

    Because they take turns, a source whose calls hang does not hold up the calls of another.

    Args:
        starts: Where to start, each path with its key.
        visitor: What to do with each directory.
        levels: How many levels are listed, the starts included; `None` for all.
        max_directories: How many directories are listed for each key.
        resolve_links: Resolve links before each level, and enter each place once per key: links may form circles.
    """
    walked: Walked[KeyT] = Walked()
    entered: set[tuple[KeyT, str]] = set()
    counts: dict[KeyT, int] = {}
    pending = [Visit(key, path) for key, path in starts]
    for depth in itertools.count():
        if resolve_links:
            pending = yield from _with_real_paths(pending)
        admitted = [visit for pending_visit in pending if (visit := visitor.admit(pending_visit)) is not None]
        level = []
        for visit in admitted:
            # By the real place: a link back to a parent would otherwise be entered until the levels end.
            place = (visit.key, visit.real or visit.path)
            if place in entered:
                continue
            # Recorded and not listed: whoever walks reports that there is more.
            if depth == levels:
                walked.too_deep.append(visit)
            # Per key, so that one huge source does not use up what another may have.
            elif max_directories is not None and counts.get(visit.key, 0) >= max_directories:
                if visit.key not in walked.cut:
                    walked.cut.append(visit.key)
                continue
            else:
                counts[visit.key] = counts.get(visit.key, 0) + 1
                level.append(visit)
            entered.add(place)
        if not level:
            return walked
        level = _in_turns(level)
        # A directory that cannot be listed is the visitor's to report; it must not cost the others.
        replies: list[Listing | Failed] = yield tuple(Attempt(ListDirectory(visit.path)) for visit in level)
        pending = [
            Visit(key, path, depth + 1)
            for visit, reply in zip(level, replies, strict=True)
            for key, path in visitor.take(visit, reply)
        ]
        # For instance to resolve links: what was kept of this level decides what of the next is worth entering.
        yield from visitor.settle()
    raise AssertionError  # pragma: no cover - the count has no end


def _with_real_paths(visits: Sequence[Visit[KeyT]]) -> Plan[list[Visit[KeyT]]]:
    if not visits:
        return []
    reply: RealPaths | Failed = yield Attempt(ResolveLinks(tuple(dict.fromkeys(visit.path for visit in visits))))
    # Without real paths a circle of links is ended by the number of levels alone.
    real = {} if isinstance(reply, Failed) else reply.paths
    return [replace(visit, real=real.get(visit.path)) for visit in visits]


def _in_turns(visits: Sequence[Visit[KeyT]]) -> list[Visit[KeyT]]:
    by_key: dict[KeyT, list[Visit[KeyT]]] = {}
    for visit in visits:
        by_key.setdefault(visit.key, []).append(visit)
    if len(by_key) == 1:
        return list(visits)
    columns = itertools.zip_longest(*by_key.values())
    return [visit for column in columns for visit in column if visit is not None]


# Reading many files.


MAX_FAILED_BATCHES = 64
"""How many failing batches `read_files` splits before it gives up on the rest."""

MAX_WAITS = 8
"""How many times `read_files` waits for the whole time limit before it gives up on batches that are late."""

_MIN_PARTS = 4
"""How many parts a late batch is split into at least."""


def read_files(
    paths: Sequence[str], sizes: Mapping[str, int] | None = None, max_bytes: int = MAX_SKILL_FILE_BYTES
) -> Plan[dict[str, File]]:
    """Read `paths` in one batch; a batch that fails is split, so that one bad file does not cost the others.

    A batch that fails is halved. One that is late is split into many parts, which are read at the same time: one file
    that hangs among thousands is alone after a few time limits. When all parts are late, the backend hangs, not a file.

    Args:
        paths: The files.
        sizes: Sizes that a listing gave; what is too large by them is not requested.
        max_bytes: Largest file that is read.
    """
    wanted = tuple(dict.fromkeys(paths))
    # A size from the listing saves the request; without one the backend or the driver refuses it.
    known = {path: size for path in wanted if (size := (sizes or {}).get(path)) is not None and size > max_bytes}
    found = {path: too_large(path, size, max_bytes) for path, size in known.items()}
    batches = [tuple(path for path in wanted if path not in known)] if len(known) < len(wanted) else []
    failures = waits = 0
    while batches:
        replies: list[Files | Failed] = yield tuple(Attempt(ReadFiles(batch, max_bytes)) for batch in batches)
        late = [_is_late(reply) for reply in replies]
        # A round is made in waves, and each wave with a late call has cost one whole time limit.
        waits += sum(any(wave) for wave in _waves(late))
        # Several batches at once and not one arrived: it is not a file that hangs.
        hangs = waits >= MAX_WAITS or (len(batches) > 1 and all(late))
        # As many parts as can run at once, shared by the batches that were late.
        parts = max(_MIN_PARTS, MAX_CALLS_AT_ONCE // max(1, sum(late)))
        smaller: list[tuple[str, ...]] = []
        for batch, reply, is_late in zip(batches, replies, late, strict=True):
            if isinstance(reply, Files):
                found.update((file.path, file) for file in reply.files)
                continue
            failures += not is_late
            # Alone in its batch, a file is the culprit. Otherwise split again, unless that was done too often.
            if len(batch) == 1 or (hangs if is_late else failures > MAX_FAILED_BATCHES):
                found.update((path, File(path, error=reply.reason)) for path in batch)
            else:
                smaller += _split(batch, parts if is_late else 2)
        batches = smaller
    return found


def _is_late(reply: Files | Failed) -> bool:
    return isinstance(reply, Failed) and reply.timed_out


def _waves(late: Sequence[bool]) -> Iterator[Sequence[bool]]:
    return (late[start : start + MAX_CALLS_AT_ONCE] for start in range(0, len(late), MAX_CALLS_AT_ONCE))


def _split(batch: tuple[str, ...], parts: int) -> list[tuple[str, ...]]:
    size = -(-len(batch) // parts)
    return [batch[start : start + size] for start in range(0, len(batch), size)]
