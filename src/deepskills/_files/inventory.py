"""Plans: the resources of skills, typed by the directory they are in."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from deepskills._backend.calls import Entry, Failed, Listing, Plan, Reply
from deepskills._backend.walk import Visit, Visitor, walk
from deepskills._catalog.sources import PASSED_OVER, parent
from deepskills._types import MAX_RESOURCES, MAX_SKILL_FILE_BYTES, SKILL_FILE, ResourceMetadata, ResourceType

RESOURCE_DIRECTORIES: dict[str, ResourceType] = {"scripts": "script", "references": "reference", "assets": "asset"}
"""The directories of the specification, and what their files are for."""

RESOURCE_TYPE_MAP = RESOURCE_DIRECTORIES
"""The same by the name that applications know."""

MAX_SKILL_FILE_SIZE = MAX_SKILL_FILE_BYTES
"""Largest `SKILL.md` in bytes, by the name that applications know."""


@dataclass
class Inventory:
    """What lies beside a skill's `SKILL.md`."""

    resources: list[ResourceMetadata] = field(default_factory=list)
    other_directories: list[str] = field(default_factory=list)
    """Directories whose files are not listed, relative to the skill: further ones, and those too deep."""

    failure: str | None = None
    """Why the list is missing or may be incomplete."""

    more: int = 0
    """How many resources there are beyond those listed."""


_ORDER: dict[ResourceType, int] = {"script": 0, "reference": 1, "asset": 2, "other": 3}

_Key = tuple[int, ResourceType]
"""Which skill a directory belongs to, and what its files are for."""


class _Resources(Visitor[_Key]):
    """Notes the files of several skills on one walk."""

    def __init__(self, names: Sequence[str]) -> None:
        self.inventories = [Inventory() for _ in names]
        self._names = names
        self._found: list[list[ResourceMetadata]] = [[] for _ in names]
        self._roots = [""] * len(names)

    def take_root(self, skill: int, reply: Reply) -> Iterator[tuple[_Key, str]]:
        """Note a skill's own directory; yield the standard directories to list next."""
        for entry in self._entries(skill, reply):
            if not entry.is_directory:
                if entry.name != SKILL_FILE:
                    self._add((skill, "other"), entry)
            elif entry.name in RESOURCE_DIRECTORIES:
                self._roots[skill] = parent(entry.path)
                yield (skill, RESOURCE_DIRECTORIES[entry.name]), entry.path
            elif entry.name not in PASSED_OVER:
                self.inventories[skill].other_directories.append(entry.name)

    def take(self, visit: Visit[_Key], reply: Reply) -> Iterator[tuple[_Key, str]]:
        """Note a directory of resources; yield the directories below it."""
        for entry in self._entries(visit.key[0], reply):
            if not entry.is_directory:
                self._add(visit.key, entry)
            elif entry.name not in PASSED_OVER:
                yield visit.key, entry.path

    def _entries(self, skill: int, reply: Reply) -> Iterable[Entry]:
        inventory = self.inventories[skill]
        if isinstance(reply, Listing):
            inventory.failure = inventory.failure or reply.error
            return reply.entries
        inventory.failure = reply.reason if isinstance(reply, Failed) else "no listing"
        return ()

    def _add(self, key: _Key, entry: Entry) -> None:
        skill, kind = key
        self._found[skill].append(ResourceMetadata(path=entry.path, type=kind, skill_name=self._names[skill]))

    def finish(self, too_deep: Iterable[Visit[_Key]]) -> list[Inventory]:
        """Return the inventories, bounded and in order; directories that lie too deep are named, not listed."""
        for visit in too_deep:
            skill = visit.key[0]
            relative = visit.path.removeprefix(f"{self._roots[skill].rstrip('/')}/")
            self.inventories[skill].other_directories.append(relative)
        for inventory, found in zip(self.inventories, self._found, strict=True):
            found.sort(key=lambda resource: (_ORDER[resource["type"]], resource["path"]))
            inventory.resources = found[:MAX_RESOURCES]
            inventory.more = len(found) - len(inventory.resources)
        return self.inventories


def take_inventories(names: Sequence[str], roots: Sequence[Reply], depth: int) -> Plan[list[Inventory]]:
    """List the resources of several skills at once, given the listings of their own directories."""
    resources = _Resources(names)
    starts = [start for skill, root in enumerate(roots) for start in resources.take_root(skill, root)]
    walked = yield from walk(starts, resources, levels=depth)
    return resources.finish(walked.too_deep)


def summarize(resources: Iterable[ResourceMetadata]) -> str:
    """Return how many resources of each kind there are: `1 reference, 2 scripts`."""
    counts: dict[str, int] = {}
    for resource in resources:
        counts[resource["type"]] = counts.get(resource["type"], 0) + 1
    return ", ".join(_count(kind, counts[kind]) for kind in sorted(counts))


def _count(kind: str, number: int) -> str:
    noun = "other file" if kind == "other" else kind
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
