"""Skills in directories: the one kind of source that lies on a backend, and so all that is known of listings and links.

Latency decides the shape: a backend may be a network away, so there is one round of listings per level for all sources
together, then one batch of reads, however many skills there are.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from deepskills._io.cache import BoundedCache
from deepskills._io.drivers import side_by_side
from deepskills._io.plan import (
    PASSED_OVER,
    Attempt,
    Failed,
    File,
    FindExisting,
    FindFiles,
    Listing,
    Visit,
    Visitor,
    is_missing_error,
    lies_under,
    parent,
    read_files,
    tidy,
    together,
    walk,
)
from deepskills._providers.plugins import MAX_MANIFEST_BYTES, Plugin, manifests_of, read_plugin
from deepskills._providers.sources import Listed, Source
from deepskills._skillmd.keys import INVOCATION_FILE
from deepskills._skillmd.problems import problem, quoted
from deepskills._skillmd.read import validate_skill
from deepskills._skillmd.text import as_readable, is_text
from deepskills._types import MAX_DIRECTORIES, RESOURCE_DIRECTORIES, SKILL_FILE, SkillProblem

MAX_OUTSIDE_BYTES = 32_000_000
"""How much memory may be used to remember files outside their sources that listings led to: tens of thousands."""

_AGENTS = INVOCATION_FILE.partition("/")[0]


class DirectoryProvider:
    """Lists the skills in directories of the run's backend, and tells which files these are."""

    def __init__(self, max_depth: int) -> None:
        self.max_depth = max_depth
        self._outside: BoundedCache[tuple[str, str], bool] = BoundedCache(MAX_OUTSIDE_BYTES)
        """Files outside their sources that a listing led to, by a link or a relative path: source and file."""

    async def list_skills(self, sources: Sequence[Source], kept: Container[str] = ()) -> list[Listed]:
        """Return what each source shows: one round of listings per level, then one batch of files but those `kept`."""
        searches = [_Search(source) for source in sources]
        await _read_plugins(searches)
        starts = [(search, search.source.path) for search in searches if not search.is_shut]
        await walk(starts, _Visitor(self.max_depth), levels=self.max_depth)
        invocations = [file for search in searches for file in search.unlisted_invocations]
        seen = await Attempt(FindExisting(tuple(invocations)))
        on_disk = {} if isinstance(seen, Failed) else seen
        # All sources together: one batch, whichever of them a file belongs to.
        paths = [path for search in searches for path in search.found if path not in kept]
        paths += [invocation_file(path) for search in searches for path, has in search.has_agents.items() if has]
        paths += [file for file, exists in on_disk.items() if exists]
        elsewhere = frozenset(invocations) - on_disk.keys()
        files, found = await side_by_side(read_files(paths), self._read_found(searches, elsewhere))
        for search in searches:
            search.take_files({**files, **found})
            # Only what a listing of this process showed is remembered, never what state claims.
            for path in _find_outside(search.listed):
                self._outside.put((search.source.path, path), value=True)
        return [search.listed for search in searches]

    async def _read_found(self, searches: Sequence["_Search"], wanted: AbstractSet[str]) -> dict[str, File]:
        """Return what there is of files that may lie beside skills on backends that no look at the disk tells of.

        Most skills have none. So each source is asked once, beside the reading of its skills, and not for each file.
        """
        if not wanted:
            return {}
        asked = [search for search in searches if not wanted.isdisjoint(search.unlisted_invocations)]
        depths = [1 if search.source.plugin is not None else self.max_depth for search in asked]
        patterns = [f"{'*/' * depth}{INVOCATION_FILE}" for depth in depths]
        calls = (FindFiles(search.source.path, pattern) for search, pattern in zip(asked, patterns, strict=True))
        replies = await together(*map(Attempt, calls))
        shown = {entry.path for reply in replies if isinstance(reply, Listing) for entry in reply.entries}
        found = sorted(wanted & shown)
        return await read_files(found) if found else {}

    def holds(self, path: str, source: str) -> bool:
        """Whether a file lies in a source, by its path or because a listing of this process led to it."""
        return lies_under(path, source) or self._outside.get((source, path)) is not None


def select_searched(directories: Iterable[str], *, is_skill: bool, is_source: bool) -> list[str]:
    """Return the names of a directory's subdirectories that are searched for skills.

    A directory with a file named exactly `SKILL.md` is a skill. What lies below it is its own business and holds no
    further skills; only below a source of its own does one stray file not hide the skills that the source holds, apart
    from the skill's own resources, which may have a `SKILL.md` as an example.
    """
    if is_skill and not is_source:
        return []
    passed_over = PASSED_OVER | RESOURCE_DIRECTORIES.keys() if is_skill else PASSED_OVER
    return [name for name in directories if name not in passed_over]


def has_invocation_directory(listing: Listing | Failed) -> bool:
    """Whether a skill's directory, as it was listed, may hold the file that says who may start it."""
    return isinstance(listing, Listing) and any(
        entry.is_directory and entry.name == _AGENTS for entry in listing.entries
    )


def invocation_file(path: str) -> str:
    """Return where Codex keeps who may start the skill of a `SKILL.md`."""
    return f"{parent(path)}/{INVOCATION_FILE}"


class _Search:
    """The search in one source."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.listed = Listed(source)
        self.found: dict[str, bool] = {}
        """Each `SKILL.md` to read, and whether a listing showed it."""
        self.has_agents: dict[str, bool] = {}
        """For each of them whose directory was listed, whether that has a directory `agents`."""
        self._directories = 0

    @property
    def unlisted_invocations(self) -> list[str]:
        """Where a file may lie, beside a skill whose directory no listing showed, that says who may start it."""
        return [invocation_file(path) for path in self.found if path not in self.has_agents]

    @property
    def is_shut(self) -> bool:
        """Whether it is not searched: it is a plugin whose manifest cannot be used."""
        return self.source.plugin is not None and not self.source.namespace

    def take_plugin(self, plugin: Plugin) -> None:
        """Record what the plugin's manifest says."""
        self.source = self.listed.source = replace(self.source, namespace=plugin.namespace)
        self.listed.failure = plugin.failure
        self.listed.problems += plugin.problems

    def take(self, path: str, reply: Listing | Failed, *, deepest: bool) -> list[str]:
        """Record what one directory holds and return the directories to list next."""
        if isinstance(reply, Failed):
            self._note_failure(path, reply.reason)
            return []
        # Some entries and an error: what is there is used, and what is missing is not taken for gone.
        if reply.error:
            self._note_incomplete(path, reply.error)
        # What lies in a plugin's `skills/` itself is no skill, by the format.
        is_plugin = self.source.plugin is not None
        files = [] if is_plugin else [entry for entry in reply.entries if not entry.is_directory]
        own = next((entry for entry in files if entry.name == SKILL_FILE), None)
        if own is not None:
            self.found[own.path] = True
            self.has_agents[own.path] = has_invocation_directory(reply)
        else:
            # Only the exact name makes a skill. `skill.md` is reported, so that its author sees why it is missing.
            self.listed.misnamed += [entry.path for entry in files if entry.name.lower() == SKILL_FILE.lower()]
        below = {entry.name: entry.path for entry in reply.entries if entry.is_directory}
        searched = select_searched(below, is_skill=own is not None, is_source=path == self.source.path)
        kept = self._bound([below[name] for name in searched])
        # A plugin's skills are its direct children, however deep other sources are searched.
        if deepest or is_plugin:
            # Reading a file that may not exist is cheaper than listing each directory first to find out.
            for directory in kept:
                self.found.setdefault(f"{directory}/{SKILL_FILE}", False)
            return []
        return kept

    def take_files(self, read: Mapping[str, File]) -> None:
        """Record what was read: the skills, and the files beside them by which Codex says who may start one."""
        listed, plugin = self.listed, self.source.plugin
        # Sorted, so that of two skills of one name the same one wins on every machine.
        for path in sorted(self.found):
            file = read.get(path) or File(path, error="the backend returned no file")
            if not self.found[path] and file.is_missing:
                # A guess of the deepest level: just a directory without a skill.
                listed.absent.add(path)
            elif not is_text(path):
                listed.problems.append(problem(as_readable(path), "skill-path-not-text"))
            elif plugin is not None and file.content is not None and (faults := _faults(path, file.content, plugin)):
                listed.problems += faults
                listed.unusable.append(path)
            else:
                listed.files[path] = file
            invocation = read.get(invocation_file(path))
            if invocation is not None and invocation.content is not None and path in listed.files:
                listed.beside[path] = invocation.content

    def _note_failure(self, path: str, reason: str) -> None:
        if path != self.source.path:
            self._note_incomplete(path, reason)
        # A missing source is normal, a failing one is an outage; only the latter keeps what it had.
        elif is_missing_error(reason):
            self.listed.is_missing = True
        else:
            self.listed.failure = reason

    def _note_incomplete(self, path: str, reason: str) -> None:
        self.listed.incomplete.append(reason if path == self.source.path else f"{path}: {reason}")

    def _bound(self, directories: list[str]) -> list[str]:
        # Bounded per source: a source may be a whole disk by mistake.
        room = MAX_DIRECTORIES - self._directories
        self.listed.is_cut |= len(directories) > room
        self._directories += min(len(directories), room)
        return directories[:room]


class _Visitor(Visitor[_Search]):
    """Sends each directory of a walk to the search of its source."""

    def __init__(self, max_depth: int) -> None:
        self._deepest = max_depth - 1

    def take(self, visit: Visit[_Search], reply: Listing | Failed) -> list[tuple[_Search, str]]:
        search = visit.key
        return [(search, path) for path in search.take(visit.path, reply, deepest=visit.depth == self._deepest)]


async def _read_plugins(searches: Sequence[_Search]) -> None:
    """Read the manifests of all plugins in one batch; they name the namespaces."""
    plugins = [(search, root) for search in searches if (root := search.source.plugin) is not None]
    if plugins:
        paths = [path for _, root in plugins for path in manifests_of(root)]
        files = await read_files(paths, max_bytes=MAX_MANIFEST_BYTES)
        for search, root in plugins:
            search.take_plugin(read_plugin(root, files))


def _faults(path: str, content: bytes, plugin: str) -> list[SkillProblem]:
    """Return why a plugin's skill is not used; the format is stricter than the reader."""
    if not lies_under(path, plugin):
        return [problem(path, "plugin-leads-out", plugin=quoted(plugin))]
    return validate_skill(content, path=path)


def _find_outside(listed: Listed) -> Iterator[str]:
    """Yield the files that lie outside their source."""
    root = listed.source.path
    inside = f"{tidy(root).rstrip('/')}/"
    for path in listed.files:
        # Nearly all lie inside, which one comparison tells.
        if (not path.startswith(inside) or ".." in path) and not lies_under(path, root):
            yield path
