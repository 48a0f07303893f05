"""Lists the files of a skill, in the one way there is, and reads what a load needs: the text, and a list of the rest.

`FilesFound` is what every list of a skill's files goes by: that of a load, of the tools (`assets.py`), and of locks and
approvals (`manifest.py`). A load asks in as few rounds as can be: text and directory first, then the directories in it,
level by level; plans for several skills are performed side by side.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from deepskills._catalog.catalog import SkillEntry
from deepskills._files.paths import find_named_paths, is_closed, is_hidden
from deepskills._io.plan import (
    PASSED_OVER,
    Attempt,
    Failed,
    File,
    ListDirectory,
    Listing,
    ReadFiles,
    ResolveLinks,
    ShellPaths,
    Visit,
    Visitor,
    Walked,
    lies_under,
    parent,
    read_files,
    together,
    walk,
)
from deepskills._providers.directory import has_invocation_directory, invocation_file
from deepskills._skillmd.problems import problem
from deepskills._skillmd.read import decode_skill
from deepskills._types import MAX_RESOURCES, RESOURCE_DIRECTORIES, SKILL_FILE, ResourceMetadata, ResourceType

MAX_FILES, MAX_DEPTH = 5_000, 64
"""How many files of a skill are looked at, and how deep its directories; links may form circles."""


@dataclass(frozen=True)
class Place:
    """A skill's directory: as the backend names it, and where it really lies if the backend is local."""

    directory: str
    real: str | None = None

    def path(self, relative: str) -> str:
        """Return the backend path of a file of the skill."""
        return f"{self.directory.rstrip('/')}/{relative}"

    def relative(self, path: str) -> str:
        """Return a backend path as the skill names it."""
        return path[len(self.directory.rstrip("/")) + 1 :]

    def relative_real(self, path: str, real: str | None) -> str:
        """Return where a path really lies, as the skill names it; where that is not known, the path itself."""
        return self.relative(path) if real is None else _posix(real)[len(_posix(self.real or "")) + 1 :]

    def holds(self, real: str | None) -> bool:
        """Whether a resolved path is the skill's directory or lies in it."""
        if self.real is None:
            return True
        return real is not None and (real == self.real or lies_under(_posix(real), _posix(self.real)))


async def find_place(path: str) -> Place:
    """Return the directory of the skill whose `SKILL.md` lies at a path."""
    directory = parent(path)
    # No `Attempt` here and below: where links cannot be resolved, it is unknown whether one leads out of the skill.
    reply = await ResolveLinks((directory,))
    return Place(directory, reply.get(directory))


class FilesFound(Visitor[str]):
    """The files of one skill, collected on a walk through its directories.

    Args:
        place: The skill's directory.
        enters: Which directories are entered, by the path listed and where they really lie, relative to the skill.
    """

    def __init__(self, place: Place, enters: Callable[[str], bool]) -> None:
        self.place = place
        self._enters = enters
        self.paths: list[str] = []
        """Files, as the backend lists them."""
        self.directories: list[str] = []
        """Directories that were listed in others, relative to the skill."""
        self.failed: dict[str, Failed] = {}
        """Directories that could not be listed, relative to the skill."""
        self.partial: dict[str, str] = {}
        """Directories that could be listed only in part, and why."""
        self.outside: list[str] = []
        """What a link leads out of the skill."""
        self.too_deep: list[str] = []
        """Directories that lie too deep to be listed."""
        self.is_cut = False
        """Whether there are so many files that not all directories were entered."""

    async def collect(self, starts: Iterable[str], levels: int = MAX_DEPTH, *, resolve_links: bool = True) -> None:
        """Collect what lies in some directories of the skill and below them."""
        keyed = [("files", path) for path in starts]
        walked: Walked[str] = await walk(keyed, self, levels=levels, resolve_links=resolve_links)
        self.too_deep += [self.place.relative(visit.path) for visit in walked.too_deep]

    def admit(self, visit: Visit[str]) -> Visit[str] | None:
        """Return a directory that is listed, unless it leads out of the skill or there are enough files."""
        if not self.place.holds(visit.real):
            self.outside.append(self.place.relative(visit.path))
            return None
        names = {self.place.relative(visit.path), self.place.relative_real(visit.path, visit.real)} - {""}
        if not all(map(self._enters, names)):
            return None
        self.is_cut |= len(self.paths) > MAX_FILES
        return None if self.is_cut else visit

    def take(self, visit: Visit[str], reply: Listing | Failed) -> Iterable[tuple[str, str]]:
        """Collect what a directory holds; return the directories below it."""
        return [("files", path) for path in self.take_listing(visit.path, reply)]

    def take_listing(self, path: str, reply: Listing | Failed) -> list[str]:
        """Collect what a directory holds; return the directories below it."""
        relative = self.place.relative(path)
        if isinstance(reply, Failed):
            self.failed[relative] = reply
            return []
        if reply.error:
            self.partial[relative] = reply.error
        # A backend may list paths from elsewhere, by mistake or on purpose.
        own = [entry for entry in reply.entries if lies_under(entry.path, self.place.directory)]
        self.paths += [entry.path for entry in own if not entry.is_directory]
        below = [entry.path for entry in own if entry.is_directory]
        self.directories += map(self.place.relative, below)
        return below

    async def resolve(self) -> dict[str, str]:
        """Return the files that do not lead out of the skill, each with where it really lies, relative to it."""
        if self.place.real is None or not self.paths:
            return {relative: relative for relative in map(self.place.relative, self.paths)}
        # All in one call: in async runs each call takes a thread.
        real = await ResolveLinks(tuple(self.paths))
        self.outside += [self.place.relative(path) for path in self.paths if not self.place.holds(real.get(path))]
        return {
            self.place.relative(path): self.place.relative_real(path, real[path])
            for path in self.paths
            if self.place.holds(real.get(path))
        }


def _posix(path: str) -> str:
    return path.replace("\\", "/")


# The list of a load.

MAX_NAMED_DIRECTORIES = 32
"""How many further directories of a skill are listed because its instructions name files in them."""

RESOURCE_ORDER: dict[ResourceType, int] = {"script": 0, "reference": 1, "asset": 2, "other": 3}
"""In which order kinds of files are listed, so that a bound cuts what matters least."""


def type_of(relative: str) -> ResourceType:
    """Return what a file of a skill is for, by the directory that it lies in."""
    return RESOURCE_DIRECTORIES.get(relative.partition("/")[0], "other") if "/" in relative else "other"


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


async def take_inventory(name: str, root: Listing | Failed, depth: int, text: str = "") -> Inventory:
    """List the resources of a skill, given the listing of its own directory.

    What the text names by a relative path is listed too, wherever it lies; that takes at most one more round.
    """
    # As the listing spells it, which may differ from the catalog's path.
    directory = parent(root.entries[0].path) if isinstance(root, Listing) and root.entries else ""
    found = FilesFound(Place(directory), _is_shown)
    below = [path for path in found.take_listing(directory, root) if _is_shown(found.place.relative(path))]
    own = [found.place.relative(path) for path in below]
    await found.collect(
        [path for path in below if found.place.relative(path) in RESOURCE_DIRECTORIES], depth, resolve_links=False
    )
    paths = dict.fromkeys(path for path in found.paths if _is_resource(found.place.relative(path)))
    # Only below a directory that is there: instructions name paths of the user's project as well.
    named = [found.place.path(path) for path in find_named_paths(text) if path.partition("/")[0] in own]
    # Bounded: a text may name thousands.
    directories = list(dict.fromkeys(parent(path) for path in named if path not in paths))[:MAX_NAMED_DIRECTORIES]
    for reply in await together(*(Attempt(ListDirectory(path)) for path in directories)) if directories else ():
        # One that is not there was only an example.
        listed = reply.entries if isinstance(reply, Listing) else ()
        paths |= dict.fromkeys(entry.path for entry in listed if entry.path in named and not entry.is_directory)
    resources = [
        ResourceMetadata(path=path, type=type_of(found.place.relative(path)), skill_name=name) for path in paths
    ]
    resources.sort(key=lambda resource: (RESOURCE_ORDER[resource["type"]], resource["path"]))
    failures = [*(failed.reason for failed in found.failed.values()), *found.partial.values()]
    return Inventory(
        resources[:MAX_RESOURCES],
        [*(name for name in own if name not in RESOURCE_DIRECTORIES), *found.too_deep],
        failures[0] if failures else None,
        max(0, len(resources) - MAX_RESOURCES),
    )


async def list_files(entry: SkillEntry) -> list[ResourceMetadata]:
    """List every file of a skill that is not hidden; a directory with a `SKILL.md` of its own is another skill."""
    found = FilesFound(await find_place(entry.path), _is_shown)
    place = found.place
    await found.collect([place.directory])
    others = {parent(path) for path in found.paths if path.rpartition("/")[2] == SKILL_FILE} - {place.directory}
    files = [
        ResourceMetadata(path=path, type=type_of(place.relative(path)), skill_name=entry.name)
        for path in found.paths
        if _is_resource(place.relative(path)) and not any(lies_under(path, other) for other in others)
    ]
    return sorted(files, key=lambda file: (RESOURCE_ORDER[file["type"]], file["path"]))


def _is_shown(relative: str) -> bool:
    """Whether a load looks into a directory."""
    name = relative.rpartition("/")[2]
    return not is_hidden(name) and name not in PASSED_OVER


def _is_resource(relative: str) -> bool:
    return relative != SKILL_FILE and not is_hidden(relative.rpartition("/")[2])


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
class SkillContents:
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


async def read_contents(entry: SkillEntry, depth: int) -> SkillContents:
    """Read the text of a skill and list its files, in two rounds."""
    directory = parent(entry.path)
    # Text and listing in one round: a load must not wait twice for a slow backend.
    reply, listing = await together(Attempt(ReadFiles((entry.path,))), Attempt(ListDirectory(directory)))
    shell = await Attempt(ShellPaths((directory,)))
    file = only_file(entry.path, reply)
    text, failure = _text_of(file)
    inventory = await take_inventory(entry.name, listing, depth, text)
    beside = invocation_file(entry.path)
    # Only what a listing shows, so that skills without it cost no further round.
    invocation = (await read_files([beside]))[beside].content if has_invocation_directory(listing) else None
    in_shell = None if isinstance(shell, Failed) else shell.get(directory)
    return SkillContents(file, text, failure, inventory, in_shell, invocation)


def _text_of(file: File) -> tuple[str, str | None]:
    """Return a file's text, or why there is none."""
    if file.unfit == "too-large":
        return "", problem(file.path, "file-too-large", size=file.size)["message"]
    if file.content is None:
        return "", file.error or "the backend returned no content"
    text, found = decode_skill(file.content, path=file.path)
    return (text, None) if found is None else ("", found["message"])


def only_file(path: str, reply: tuple[File, ...] | Failed) -> File:
    """Return the file of a batch of one."""
    return File(path, error=reply.reason) if isinstance(reply, Failed) else reply[0]
