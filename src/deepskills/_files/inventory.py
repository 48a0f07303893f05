"""Reads what a load needs of skills: the text, and a list of the other files, typed by the directory they are in.

However many skills are loaded together, the backend is asked in the same few rounds: all texts and all directories
first, then the directories below them, level by level.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from deepskills._catalog.catalog import SkillEntry
from deepskills._files.paths import is_closed, is_hidden, named_paths
from deepskills._io.plan import (
    PASSED_OVER,
    Attempt,
    Call,
    Entry,
    Failed,
    File,
    Files,
    ListDirectory,
    Listing,
    ReadFiles,
    ShellPaths,
    Visit,
    Visitor,
    parent,
    read_files,
    together,
    walk,
)
from deepskills._providers.directory import has_invocation_directory, invocation_file
from deepskills._skillmd.problems import problem
from deepskills._skillmd.read import decode_skill
from deepskills._types import MAX_RESOURCES, RESOURCE_DIRECTORIES, SKILL_FILE, ResourceMetadata, ResourceType


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


MAX_NAMED_DIRECTORIES = 32
"""How many further directories of a skill are listed because its instructions name files in them."""

RESOURCE_ORDER: dict[ResourceType, int] = {"script": 0, "reference": 1, "asset": 2, "other": 3}
"""In which order kinds of files are listed."""

_Key = tuple[int, ResourceType]
"""Which skill a directory belongs to, and what its files are for."""


class _Resources(Visitor[_Key]):
    """Collects the files of several skills on one walk."""

    def __init__(self, names: Sequence[str]) -> None:
        self.inventories = [Inventory() for _ in names]
        self._names = names
        self._found: list[list[ResourceMetadata]] = [[] for _ in names]
        self._roots = [""] * len(names)
        self._directories: list[set[str]] = [set() for _ in names]
        """The directories of each skill's own."""

    def take_root(self, skill: int, reply: Listing | Failed) -> Iterator[tuple[_Key, str]]:
        """Collect the files of a skill's own directory; yield the standard directories to list next."""
        for entry in self._entries(skill, reply):
            # As the listing spells it, which may differ from the catalog's path.
            self._roots[skill] = parent(entry.path)
            if not entry.is_directory:
                if entry.name != SKILL_FILE:
                    self._add((skill, "other"), entry)
            elif entry.name in RESOURCE_DIRECTORIES:
                self._directories[skill].add(entry.name)
                yield (skill, RESOURCE_DIRECTORIES[entry.name]), entry.path
            elif entry.name not in PASSED_OVER:
                self._directories[skill].add(entry.name)
                self.inventories[skill].other_directories.append(entry.name)

    def take(self, visit: Visit[_Key], reply: Listing | Failed) -> Iterator[tuple[_Key, str]]:
        """Collect a directory of resources; yield the directories below it."""
        for entry in self._entries(visit.key[0], reply):
            if not entry.is_directory:
                self._add(visit.key, entry)
            elif entry.name not in PASSED_OVER:
                yield visit.key, entry.path

    def _entries(self, skill: int, reply: Listing | Failed) -> Iterable[Entry]:
        inventory = self.inventories[skill]
        if isinstance(reply, Failed):
            inventory.failure = reply.reason
            return ()
        inventory.failure = inventory.failure or reply.error
        return [entry for entry in reply.entries if not is_hidden(entry.name)]

    def _add(self, key: _Key, entry: Entry) -> None:
        skill, kind = key
        self._found[skill].append(ResourceMetadata(path=entry.path, type=kind, skill_name=self._names[skill]))

    def unlisted(self, skill: int, named: Iterable[str]) -> dict[str, list[str]]:
        """Return the paths that instructions name and no listing has shown yet, by the directory they would lie in."""
        root = self._roots[skill].rstrip("/")
        known = {found["path"] for found in self._found[skill]}
        wanted: dict[str, list[str]] = {}
        for relative in named:
            path = f"{root}/{relative}"
            # Only below a directory that is there: instructions name paths of the user's project as well.
            if relative.partition("/")[0] in self._directories[skill] and path not in known:
                directory = parent(path)
                # Bounded: a text may name thousands.
                if directory in wanted or len(wanted) < MAX_NAMED_DIRECTORIES:
                    wanted.setdefault(directory, []).append(path)
        return wanted

    def take_named(self, skill: int, wanted: Iterable[str], reply: Listing | Failed) -> None:
        """Note the files of a directory that instructions name; one that is not there was only an example."""
        if not isinstance(reply, Listing):
            return
        names = set(wanted)
        root = self._roots[skill].rstrip("/")
        for entry in reply.entries:
            if entry.path in names and not entry.is_directory:
                first = entry.path[len(root) + 1 :].partition("/")[0]
                self._add((skill, RESOURCE_DIRECTORIES.get(first, "other")), entry)

    def finish(self, too_deep: Iterable[Visit[_Key]]) -> list[Inventory]:
        """Return the inventories, bounded and in order; directories that lie too deep are named, not listed."""
        for visit in too_deep:
            skill = visit.key[0]
            relative = visit.path.removeprefix(f"{self._roots[skill].rstrip('/')}/")
            self.inventories[skill].other_directories.append(relative)
        for inventory, found in zip(self.inventories, self._found, strict=True):
            # Scripts first, so that the bound cuts what matters least.
            found.sort(key=lambda resource: (RESOURCE_ORDER[resource["type"]], resource["path"]))
            inventory.resources = found[:MAX_RESOURCES]
            inventory.more = len(found) - len(inventory.resources)
        return self.inventories


async def take_inventories(
    names: Sequence[str], roots: Sequence[Listing | Failed], depth: int, texts: Sequence[str] = ()
) -> list[Inventory]:
    """List the resources of several skills at once, given the listings of their own directories.

    What a skill's text names by a relative path is listed too, wherever it lies; that takes at most one more round.
    """
    resources = _Resources(names)
    starts = [start for skill, root in enumerate(roots) for start in resources.take_root(skill, root)]
    walked = await walk(starts, resources, levels=depth)
    wanted = [
        (skill, directory, paths)
        for skill, text in enumerate(texts)
        for directory, paths in resources.unlisted(skill, named_paths(text)).items()
    ]
    if wanted:
        replies = await together(*(Attempt(ListDirectory(directory)) for _, directory, _ in wanted))
        for (skill, _, paths), reply in zip(wanted, replies, strict=True):
            resources.take_named(skill, paths, reply)
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


# Reading for a load.


@dataclass(frozen=True)
class Contents:
    """A skill's file as it is now, the list of its other files, and where a shell finds it."""

    file: File
    text: str
    failure: str | None
    """Why there is no text."""

    inventory: Inventory
    shell_directory: str | None = None
    """The skill's directory as a local shell knows it, if file tools know it by another path."""

    invocation: bytes | None = None
    """The file in which Codex keeps who may start the skill."""


def without_closed(inventory: Inventory, directory: str, closed: Sequence[str]) -> Inventory:
    """Return what lies beside a skill in `directory`, without the contents of closed directories."""
    if not closed:
        return inventory
    root = f"{directory.rstrip('/')}/"
    resources = [item for item in inventory.resources if not is_closed(item["path"].removeprefix(root), closed)]
    others = [name for name in inventory.other_directories if not is_closed(f"{name}/", closed)]
    return replace(inventory, resources=resources, other_directories=others)


async def read_contents(entries: Sequence[SkillEntry], depth: int) -> dict[str, Contents]:
    """Read the text and list the files of several skills, by name."""
    if not entries:
        return {}
    directories = [parent(entry.path) for entry in entries]
    # One call for each skill, not one batch: a file that fails or hangs must not cost the others.
    reads: list[Call[Any]] = [Attempt(ReadFiles((entry.path,))) for entry in entries]
    # Texts and listings in one round: a load must not wait twice for a slow backend.
    replies = await together(*reads, *(Attempt(ListDirectory(path)) for path in directories))
    shell = await Attempt(ShellPaths(tuple(directories)))
    in_shell = {} if isinstance(shell, Failed) else shell.paths
    files = [only_file(entry.path, reply) for entry, reply in zip(entries, replies, strict=False)]
    texts = [_text_of(file) for file in files]
    names, roots = [entry.name for entry in entries], replies[len(entries) :]
    inventories = await take_inventories(names, roots, depth, [text for text, _ in texts])
    marked = [
        invocation_file(entry.path)
        for entry, listing in zip(entries, roots, strict=True)
        if has_invocation_directory(listing)
    ]
    # Only what a listing shows, so that skills without it cost no further round.
    beside = await read_files(marked) if marked else {}
    return {
        entry.name: Contents(
            file,
            text,
            failure,
            inventory,
            in_shell.get(directory),
            own.content if (own := beside.get(invocation_file(entry.path))) is not None else None,
        )
        for entry, directory, file, (text, failure), inventory in zip(
            entries, directories, files, texts, inventories, strict=True
        )
    }


def _text_of(file: File) -> tuple[str, str | None]:
    """Return a file's text, or why there is none."""
    if file.unfit == "too-large":
        return "", problem(file.path, "file-too-large", size=file.size)["message"]
    if file.content is None:
        return "", file.error or "the backend returned no content"
    text, found = decode_skill(file.content, path=file.path)
    return (text, None) if found is None else ("", found["message"])


def only_file(path: str, reply: Files | Failed) -> File:
    """Return the file of a batch of one."""
    return File(path, error=reply.reason) if isinstance(reply, Failed) else reply.files[0]
