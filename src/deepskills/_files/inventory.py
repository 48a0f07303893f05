"""Plans: a skill's files, told apart by the directory they lie in."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from deepskills._backend.plan import Entry, Failed, ListDirectory, Listing, Plan, Reply
from deepskills._catalog.sources import PASSED_OVER, parent
from deepskills._types import MAX_RESOURCES, SKILL_FILE, ResourceMetadata, ResourceType

RESOURCE_DIRECTORIES: dict[str, ResourceType] = {"scripts": "script", "references": "reference", "assets": "asset"}
"""The directories of the specification, and what their files are for."""


@dataclass
class Inventory:
    """What lies beside a skill's `SKILL.md`."""

    resources: list[ResourceMetadata] = field(default_factory=list)
    other_directories: list[str] = field(default_factory=list)
    """Directories whose files are not listed, relative to the skill: further ones, and those too deep."""

    failure: str | None = None
    """Why the list is missing or may not be all."""

    more: int = 0
    """How many resources there are beyond those listed."""


class _Walk:
    """The listing of one skill, level by level."""

    def __init__(self, skill_name: str) -> None:
        self._skill_name = skill_name
        self.inventory = Inventory()
        self._found: list[ResourceMetadata] = []
        self._root = ""

    def take_root(self, reply: Reply) -> list[tuple[str, ResourceType]]:
        """Note the skill's own directory; return the standard directories to list next."""
        below: list[tuple[str, ResourceType]] = []
        for entry in self._entries(reply):
            if not entry.is_directory:
                if entry.name != SKILL_FILE:
                    self._add(entry, "other")
            elif entry.name in RESOURCE_DIRECTORIES:
                self._root = parent(entry.path)
                below.append((entry.path, RESOURCE_DIRECTORIES[entry.name]))
            elif entry.name not in PASSED_OVER:
                self.inventory.other_directories.append(entry.name)
        return below

    def take(self, reply: Reply, kind: ResourceType) -> list[tuple[str, ResourceType]]:
        """Note a directory of resources; return the directories below it."""
        below: list[tuple[str, ResourceType]] = []
        for entry in self._entries(reply):
            if not entry.is_directory:
                self._add(entry, kind)
            elif entry.name not in PASSED_OVER:
                below.append((entry.path, kind))
        return below

    def pass_over(self, path: str) -> None:
        """Note a directory that lies too deep to be listed."""
        self.inventory.other_directories.append(path.removeprefix(f"{self._root.rstrip('/')}/"))

    def _entries(self, reply: Reply) -> Iterable[Entry]:
        if isinstance(reply, Listing):
            self.inventory.failure = self.inventory.failure or reply.error
            return reply.entries
        self.inventory.failure = reply.reason if isinstance(reply, Failed) else "no listing"
        return ()

    def _add(self, entry: Entry, kind: ResourceType) -> None:
        self._found.append(ResourceMetadata(path=entry.path, type=kind, skill_name=self._skill_name))

    def finish(self) -> Inventory:
        self._found.sort(key=lambda resource: (_ORDER[resource["type"]], resource["path"]))
        self.inventory.resources = self._found[:MAX_RESOURCES]
        self.inventory.more = len(self._found) - len(self.inventory.resources)
        return self.inventory


_ORDER: dict[ResourceType, int] = {"script": 0, "reference": 1, "asset": 2, "other": 3}


def take_inventories(names: Sequence[str], roots: Sequence[Reply], depth: int) -> Plan[list[Inventory]]:
    """List the resources of several skills at once, given the listings of their own directories."""
    walks = [_Walk(name) for name in names]
    frontier = [
        (walk, path, kind) for walk, root in zip(walks, roots, strict=True) for path, kind in walk.take_root(root)
    ]
    for _ in range(depth):
        if not frontier:
            break
        replies = yield tuple(ListDirectory(path) for _, path, _ in frontier)
        frontier = [
            (walk, path, below_kind)
            for (walk, _, kind), reply in zip(frontier, replies, strict=True)
            for path, below_kind in walk.take(reply, kind)
        ]
    for walk, path, _ in frontier:
        walk.pass_over(path)
    return [walk.finish() for walk in walks]


def summarize(resources: Iterable[ResourceMetadata]) -> str:
    """Return how many resources of each kind there are: `1 reference, 2 scripts`."""
    counts: dict[str, int] = {}
    for resource in resources:
        counts[resource["type"]] = counts.get(resource["type"], 0) + 1
    return ", ".join(_count(kind, counts[kind]) for kind in sorted(counts))


def _count(kind: str, number: int) -> str:
    noun = "other file" if kind == "other" else kind
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
