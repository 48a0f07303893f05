"""A plan: walks directories breadth first, one round of listings per level. Every walk in the library is this one."""

import itertools
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeAlias, TypeVar

from deepskills._backend.calls import ListDirectory, Plan, RealPaths, Reply, ResolveLinks

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

    def take(self, visit: Visit[KeyT], reply: Reply) -> Below[KeyT]:
        """Note what a directory holds, or why it could not be listed, and return the directories below it to list."""
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
    """Keys of which some directories were not listed, because there are too many."""


def walk(
    starts: Below[KeyT],
    visitor: Visitor[KeyT],
    *,
    levels: int | None,
    max_directories: int | None = None,
    resolve_links: bool = False,
) -> Plan[Walked[KeyT]]:
    """List directories level by level; each level is one round, in which the keys take turns.

    Taking turns, a source whose calls hang does not keep those of another from being made.

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
            place = (visit.key, visit.real or visit.path)
            if place in entered:
                continue
            if depth == levels:
                walked.too_deep.append(visit)
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
        replies = yield tuple(ListDirectory(visit.path) for visit in level)
        pending = [
            Visit(key, path, depth + 1)
            for visit, reply in zip(level, replies, strict=True)
            for key, path in visitor.take(visit, reply)
        ]
        yield from visitor.settle()
    raise AssertionError  # pragma: no cover - the count has no end


def _with_real_paths(visits: Sequence[Visit[KeyT]]) -> Plan[list[Visit[KeyT]]]:
    if not visits:
        return []
    [reply] = yield (ResolveLinks(tuple(dict.fromkeys(visit.path for visit in visits))),)
    real = reply.paths if isinstance(reply, RealPaths) else {}
    return [replace(visit, real=real.get(visit.path)) for visit in visits]


def _in_turns(visits: Sequence[Visit[KeyT]]) -> list[Visit[KeyT]]:
    by_key: dict[KeyT, list[Visit[KeyT]]] = {}
    for visit in visits:
        by_key.setdefault(visit.key, []).append(visit)
    if len(by_key) == 1:
        return list(visits)
    columns = itertools.zip_longest(*by_key.values())
    return [visit for column in columns for visit in column if visit is not None]
