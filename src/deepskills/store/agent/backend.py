"""The store as a backend for an agent's runs: what a run reads, the directories it sees, and what is remembered.

`SkillsMiddleware` discovers skills on backends. This one has no disk behind it: directories are laid out from names and
descriptions, and texts and files are read from the database on demand. It cannot be written. Three parts:

- `AgentReader` reads from the database, as the run's user sees it;
- `StoreBackend` answers the middleware from one reading;
- `View` decides which user and which skills a run has, and remembers them between runs.
"""

import asyncio
import functools
import hashlib
import logging
import re
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias
from uuid import UUID

from deepagents.backends import BackendProtocol
from deepagents.backends.protocol import FileDownloadResponse, FileInfo, LsResult

from deepskills._errors import SkillNotFoundError
from deepskills._io.bridge import bridge
from deepskills._skillmd.names import stored_key
from deepskills._skillmd.problems import problem
from deepskills._skillmd.write import generate_skill_md
from deepskills._types import MAX_DIRECTORIES, SKILL_FILE, OptionalSource, SkillListing, SkillProblem, SkillSummary
from deepskills.store.db.engine import SessionFactory, bridged_engines, unavailable
from deepskills.store.db.listings import Filter, Head
from deepskills.store.db.models import Skill, document_of
from deepskills.store.db.transactions import reads
from deepskills.store.document import Document, tag_fields
from deepskills.store.rules import TRUSTED, Policy, UserId, Viewer, check_name, owner_key
from deepskills.store.service import SkillService, document_at
from deepskills.store.workers import computed

logger = logging.getLogger("deepskills")


# -- Reading -----------------------------------------------------------------------------------------------------------
#
# Reads for the runs of agents: names and descriptions of all visible skills, and texts and files on load.
#
# A run must be cheap whatever the size of the library. It reads no bodies, and if nothing changed since the user's last
# run, it reads one row: the store keeps a stamp of its last change, and the visible skills have a mark.

MAX_HEADS = MAX_DIRECTORIES
"""How many skills a run sees at most: the user's own first, then their groups', the system's, and public ones."""


@dataclass(frozen=True)
class Overview:
    """The visible skills at one moment, in order: the first with a name counts."""

    stamp: int
    mark: str
    heads: tuple[Head, ...]
    is_cut: bool = False
    """Whether there are more."""

    unpinned: tuple[tuple[str, int], ...] = ()
    """Names with the revisions to which they are pinned, if that version does not exist for this user."""


class AgentReader(SkillService):
    """Reads for the runs of agents, which see what their user sees, chosen by a filter."""

    async def viewer(self, user_id: str | None) -> Viewer:
        """Return the run's user with their groups; an agent never has an operator's rights."""
        return await self._policy.viewer(user_id)

    @reads
    async def overview(
        self, viewer: Viewer, chosen: Filter, pins: Mapping[str, int], known: Overview | None
    ) -> Overview:
        """Return the visible skills; if nothing changed, the known ones, after one query."""
        # A pinned version may be visible when the skill itself is not.
        reader = _reader_of(viewer, is_pinned=bool(pins))
        stamp, mark = await self._listings.state(reader, chosen, known.stamp if known is not None else None)
        # Nothing changed in the store, or nothing that this user sees.
        if known is not None and mark in (None, known.mark):
            return known if stamp == known.stamp else replace(known, stamp=stamp)
        # One more, to learn whether the listing is cut.
        heads = await self._listings.heads(viewer, chosen, MAX_HEADS + 1)
        unpinned: list[tuple[str, int]] = []
        if pins:
            pinned, unpinned = await self._pinned(viewer, chosen, pins)
            names = {stored_key(name) for name in pins}
            ids = {head.id for head in pinned}
            heads = pinned + [h for h in heads if h.id not in ids and stored_key(h.name) not in names]
        is_cut = len(heads) > MAX_HEADS
        return Overview(stamp, mark or "", tuple(heads[:MAX_HEADS]), is_cut, tuple(unpinned))

    @reads
    async def documents(self, heads: Collection[Head], viewer: Viewer, chosen: Filter) -> dict[UUID, bytes]:
        """Return the `SKILL.md` files of skills that can still be seen, by primary key."""
        found: dict[UUID, bytes] = {}
        by_id = {head.id: head for head in heads}
        skills: list[Skill] = []
        # Two queries at most: a pinned version is judged by its own approval.
        for is_pinned in {head.is_pinned for head in heads}:
            ids = [head.id for head in heads if head.is_pinned is is_pinned]
            skills += await self._listings.documents(ids, _reader_of(viewer, is_pinned=is_pinned), chosen)
        for skill in skills:
            try:
                found[skill.id] = (await self._document(skill, by_id[skill.id])).render()
            except Exception as error:  # noqa: BLE001 - one skill's failure, whatever it is, costs no other
                logger.error("Skill %s cannot be served: %s: %s", skill.id, type(error).__name__, error)  # noqa: TRY400 - the message says it all
        return found

    @reads
    async def paths(self, head: Head, viewer: Viewer, chosen: Filter) -> dict[str, int]:
        """Return the paths of a skill's files, each with its size; none if it can no longer be seen."""
        if not await self._is_there(head, viewer, chosen):
            return {}
        if head.is_pinned:
            return {file.path: file.size for file in await self._history.listed_at(head.id, head.revision)}
        return {path: file.size for path, file in sorted((await self._files.listed(head.id)).items())}

    @reads
    async def text_sizes(self, heads: Collection[Head]) -> dict[UUID, int]:
        """Return how many bytes the instructions of skills have, as they are now."""
        return {skill_id: size for skill_id, (_, size) in (await self._listings.lengths([h.id for h in heads])).items()}

    @reads
    async def content(self, head: Head, path: str, viewer: Viewer, chosen: Filter) -> bytes | None:
        """Return one file of a skill, if it can still be seen."""
        if not await self._is_there(head, viewer, chosen):
            return None
        if head.is_pinned:
            files = await self._history.listed_at(head.id, head.revision)
            found = next((file for file in files if file.path == path), None)
            return None if found is None else await self._history.piece(found.id, found.since, 0, found.size)
        return await self._files.read(head.id, path)

    async def _is_there(self, head: Head, viewer: Viewer, chosen: Filter) -> bool:
        """Whether a skill can still be seen and, if it is pinned, that version of it is kept."""
        skills = await self._listings.light([head.id], _reader_of(viewer, is_pinned=head.is_pinned), chosen)
        return bool(skills) and (not head.is_pinned or skills[0].kept_since <= head.revision)

    async def _document(self, skill: Skill, head: Head) -> Document:
        text = await self._text_at(skill, head.revision) if head.is_pinned else document_of(skill)
        if text is None:
            raise SkillNotFoundError(f"revision {head.revision}, to which it is pinned, has expired")
        return text

    async def _text_at(self, skill: Skill, revision: int) -> Document | None:
        """Return the text that a skill had at a revision; `None` if that version has expired."""
        if revision < skill.kept_since:
            return None
        if revision >= skill.text_since:
            return document_of(skill)
        former = await self._history.text_at(skill.id, revision)
        return None if former is None else document_at(former)

    async def _pinned(
        self, viewer: Viewer, chosen: Filter, pins: Mapping[str, int]
    ) -> tuple[list[Head], list[tuple[str, int]]]:
        """Return the pinned versions of skills that can still be seen, and those that cannot."""
        found: list[Head] = []
        absent: list[tuple[str, int]] = []
        for name, revision in pins.items():
            change = await self._history.change_of(revision)
            reader = _reader_of(viewer, is_pinned=True)
            skills = [] if change is None else await self._listings.documents([change.skill_id], reader, chosen)
            is_shown = bool(skills) and await self._is_approved(skills[0], revision, viewer, chosen)
            head = await self._version_head(skills[0], revision) if is_shown else None
            if head is None or stored_key(head.name) != stored_key(name):
                absent.append((name, revision))
            else:
                found.append(head)
        return found, absent

    async def _is_approved(self, skill: Skill, revision: int, viewer: Viewer, chosen: Filter) -> bool:
        """Whether a version needs no approval for the viewer, or has one, whatever happened to the skill since."""
        if not viewer.needs_approval:
            return True
        familiar = replace(chosen, reasons=chosen.reasons & TRUSTED)
        return bool(await self._listings.light([skill.id], viewer, familiar)) or await self._history.was_approved(
            skill, revision
        )

    async def _version_head(self, skill: Skill, revision: int) -> Head | None:
        text = await self._text_at(skill, revision)
        if text is None:
            return None
        return Head(
            id=skill.id,
            name=text.name,
            revision=revision,
            stamp=revision,
            encoding=text.encoding,
            frontmatter=text.frontmatter,
            description=text.description,
            tags=tuple(text.tags),
            is_pinned=True,
        )


def _reader_of(viewer: Viewer, *, is_pinned: bool) -> Viewer:
    """Return the viewer of a skill: a pinned version has its own approval, whatever the skill is now."""
    return replace(viewer, needs_approval=False) if is_pinned else viewer


# -- Backend -----------------------------------------------------------------------------------------------------------

MAX_GENERATED = 16_384
"""How many generated frontmatters are remembered."""


MORE = "~more"
"""The last entry of a listing, in place of the skills that do not fit into it; no skill has such a name."""


@dataclass(frozen=True)
class Layout:
    """Skills laid out as directories, given in order: the first of several with one name gets that name."""

    directories: dict[str, Head] = field(default_factory=dict)
    """The skill in each directory, by the directory's name."""

    fronts: dict[str, bytes] = field(default_factory=dict)
    """The `SKILL.md` of each directory up to the end of the frontmatter, by the directory's name."""

    is_cut: bool = False
    """Whether there are more skills than are laid out."""

    problems: Sequence[SkillProblem] = ()
    """Problems that belong to no skill, such as a named skill that does not exist."""


def layout_of(heads: Iterable[Head], *, is_cut: bool = False, problems: Sequence[SkillProblem] = ()) -> Layout:
    """Lay skills out.

    If a name is taken, the skill goes into a directory that sorts after the first: discovery skips it and says so. A
    row that was corrupted outside the service is left out, and logged.
    """
    layout = Layout(is_cut=is_cut, problems=problems)
    for head in heads:
        try:
            check_name(head.name)
            front = _front(head)
        except Exception as error:  # noqa: BLE001 - one skill's failure, whatever it is, costs no other
            logger.error("Skill %s cannot be served: %s: %s", head.id, type(error).__name__, error)  # noqa: TRY400 - the message says it all
            continue
        # In the store's order the first with a name wins; the others sort after it, where discovery reports them as
        # shadowed.
        directory = head.name if head.name not in layout.directories else f"{head.name}~{head.id}"
        layout.directories[directory] = head
        layout.fronts[directory] = front
    return layout


def _front(head: Head) -> bytes:
    if head.frontmatter is not None:
        return head.frontmatter.encode(head.encoding)
    return _generated(head.name, head.description or "", head.tags)


@functools.lru_cache(MAX_GENERATED)
def _generated(name: str, description: str, tags: tuple[str, ...]) -> bytes:
    """Return frontmatter generated from values; the same for all users and databases."""
    return generate_skill_md(name, description, "", tag_fields(tags)).encode()


@dataclass(frozen=True)
class Store:
    """What the backend asks the store for, for one user."""

    layout: Callable[[], Awaitable[Layout]]
    documents: Callable[[Collection[Head]], Awaitable[dict[UUID, bytes]]]
    text_sizes: Callable[[Collection[Head]], Awaitable[dict[UUID, int]]]
    paths: Callable[[Head], Awaitable[dict[str, int]]]
    content: Callable[[Head, str], Awaitable[bytes | None]]


class StoreBackend(BackendProtocol):
    """Shows the skills of one user below a directory; created again for every piece of work.

    The list of skills is read once, without their bodies; texts and files are read on demand.
    """

    def __init__(self, root: str, store: Store) -> None:
        self.root = root
        """The directory that the skills are in."""

        self._store = store
        self._reading = asyncio.Lock()
        self._layout: Layout | None = None
        self._trees: dict[UUID, _Tree] = {}

    async def als(self, path: str) -> LsResult:
        """List a directory."""
        layout = await self._read_layout()
        path = path.rstrip("/") or "/"
        if path == self.root:
            # With one directory more than discovery takes, it reports that the listing was cut.
            names = [*sorted(layout.fronts), *([MORE] if layout.is_cut else [])]
            return LsResult(entries=[FileInfo(path=f"{self.root}/{name}", is_dir=True) for name in names])
        head, directory, below = self._locate(path, layout)
        if head is None:
            return LsResult(error=f"'{path}' not found", entries=None)
        tree = await self._tree(head)
        entries = tree.inside.get(below)
        if entries is None:
            return LsResult(error=f"'{path}' not found", entries=None)
        base = f"{self.root}/{directory}"
        return LsResult(
            entries=[FileInfo(path=f"{base}/{item}", is_dir=item in tree.inside) for item in sorted(entries)]
        )

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files; all `SKILL.md` files among them with one query."""
        layout = await self._read_layout()
        located = {path: self._locate(path, layout) for path in paths}
        wanted = [head for head, _, below in located.values() if head is not None and below == SKILL_FILE]
        documents = await self._store.documents(wanted) if wanted else {}
        replies = []
        for path in paths:
            head, _, below = located[path]
            content = None
            if head is not None:
                content = documents.get(head.id) if below == SKILL_FILE else await self._store.content(head, below)
            if content is not None:
                replies.append(FileDownloadResponse(path=path, content=content))
            else:
                is_directory = path == self.root or (head is not None and below in (await self._tree(head)).inside)
                replies.append(
                    FileDownloadResponse(path=path, error="is_directory" if is_directory else "file_not_found")
                )
        return replies

    async def asizes(self, paths: Sequence[str]) -> dict[str, int]:
        """Return how many bytes files have; those that are not there are left out."""
        layout = await self._read_layout()
        located = {path: self._locate(path, layout) for path in paths}
        texts = [head for head, _, below in located.values() if head is not None and below == SKILL_FILE]
        lengths = await self._store.text_sizes(texts) if texts else {}
        sizes: dict[str, int] = {}
        for path, (head, directory, below) in located.items():
            if head is None:
                continue
            if below != SKILL_FILE:
                known = (await self._tree(head)).sizes.get(below)
            else:
                known = lengths.get(head.id, 0) + len(layout.fronts[directory])
            if known is not None:
                sizes[path] = known
        return sizes

    async def askill_listings(self, paths: list[str]) -> list[SkillListing | None]:
        """Return the skills, without their bodies, and problems that belong to none of them."""
        layout = await self._read_layout()
        return [self._listing(layout) if path.rstrip("/") == self.root else None for path in paths]

    async def askill_summaries(self, paths: list[str]) -> list[SkillSummary | None]:
        """Return the part of skill files before their bodies, without reading the bodies."""
        layout = await self._read_layout()
        return [self._summary(path, layout) for path in paths]

    def ls(self, path: str) -> LsResult:
        """List a directory, on the bridge's loop."""
        return bridge.run(lambda: self.als(path))

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files, on the bridge's loop."""
        return bridge.run(lambda: self.adownload_files(paths))

    def skill_listings(self, paths: list[str]) -> list[SkillListing | None]:
        """Return the skills, without their bodies, and problems that belong to none, on the bridge's loop."""
        return bridge.run(lambda: self.askill_listings(paths))

    def skill_summaries(self, paths: list[str]) -> list[SkillSummary | None]:
        """Return the part of skill files before their bodies, on the bridge's loop."""
        return bridge.run(lambda: self.askill_summaries(paths))

    def _listing(self, layout: Layout) -> SkillListing:
        found = (self._summary(f"{self.root}/{name}/{SKILL_FILE}", layout) for name in sorted(layout.directories))
        problems = [*layout.problems, *([problem(self.root, "source-cut")] if layout.is_cut else [])]
        return SkillListing([summary for summary in found if summary is not None], problems)

    def _summary(self, path: str, layout: Layout) -> SkillSummary | None:
        head, directory, below = self._locate(path, layout)
        if below != SKILL_FILE or head is None:
            return None
        # A digest over both, because revisions of two databases may be the same.
        digest = hashlib.blake2b(f"{head.id} {head.revision} {head.stamp}".encode(), digest_size=16).hexdigest()
        return SkillSummary(path, digest, layout.fronts[directory])

    def _locate(self, path: str, layout: Layout) -> tuple[Head | None, str, str]:
        """Return the skill that a path belongs to, the name of its directory, and the path inside it."""
        if not path.startswith(f"{self.root}/"):
            return None, "", ""
        directory, _, below = path.removeprefix(f"{self.root}/").partition("/")
        return layout.directories.get(directory), directory, below

    async def _read_layout(self) -> Layout:
        async with self._reading:
            if self._layout is None:
                self._layout = await self._store.layout()
            return self._layout

    async def _tree(self, head: Head) -> "_Tree":
        async with self._reading:
            if head.id not in self._trees:
                self._trees[head.id] = _Tree.of({SKILL_FILE: 0, **await self._store.paths(head)})
            return self._trees[head.id]


@dataclass(frozen=True)
class _Tree:
    """The directories of one skill, by path inside it, and what each directly contains."""

    inside: dict[str, set[str]]
    sizes: Mapping[str, int]
    """The files, each with its size."""

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> "_Tree":
        inside: dict[str, set[str]] = {"": set()}
        for path in sizes:
            item = path
            while item:
                parent = item.rpartition("/")[0]
                known = inside.setdefault(parent, set())
                # Its parents are known too.
                if item in known:
                    break
                known.add(item)
                item = parent
        return cls(inside, sizes)


# -- View --------------------------------------------------------------------------------------------------------------
#
# Decides which skills an agent's runs see and at which paths, and remembers them between runs.

UserOfRun: TypeAlias = UserId | Callable[[Any], UserId | None] | None
"""A user, nobody, or a function of the runtime that returns the run's user."""

SOURCE_ROOT = "/skills"
"""The directory at which skills appear.

Inside it, each user has a directory, so that what a thread knows of one user's skills is never taken for another's.
That directory is never shown: on a mounted backend, the skills of the run's user are right here.
"""

SOURCE_LABEL = "Database"
"""The label of the source."""

MEMORY_BYTES = 64 * 1024 * 1024
"""How many bytes an adapter remembers for all its users together, by default."""

_HEAD_BYTES = 1_500
"""About what a remembered skill takes in addition to its texts: objects, keys, and entries in two dictionaries."""


class Memory:
    """Remembers the skills that users saw last; bounded in bytes, and thread-safe.

    What is remembered is used only if the database says that nothing changed.
    """

    def __init__(self, size: int = MEMORY_BYTES) -> None:
        self._size = size
        self._held = 0
        self._lock = threading.Lock()
        self._known: OrderedDict[Viewer, tuple[Overview, Layout]] = OrderedDict()
        self._weights: dict[Viewer, int] = {}

    def __deepcopy__(self, memo: dict[int, object]) -> "Memory":
        """Return an empty memory: a copy of an adapter starts without one."""
        return Memory(self._size)

    def get(self, viewer: Viewer) -> tuple[Overview, Layout] | None:
        """Return what a viewer saw last."""
        with self._lock:
            found = self._known.get(viewer)
            if found is not None:
                self._known.move_to_end(viewer)
            return found

    def put(self, viewer: Viewer, overview: Overview, layout: Layout) -> Layout:
        """Remember what a viewer sees, and return it."""
        weight = _HEAD_BYTES + sum(_weight(head) for head in overview.heads)
        with self._lock:
            self._known.pop(viewer, None)
            self._held += weight - self._weights.pop(viewer, 0)
            self._known[viewer], self._weights[viewer] = (overview, layout), weight
            while self._held > self._size and self._known:
                oldest, _ = self._known.popitem(last=False)
                self._held -= self._weights.pop(oldest)
        return layout

    def skill_id(self, owner: str | None, name: str) -> UUID | None:
        """Return the id of the skill that a user's runs know by a name."""
        with self._lock:
            for viewer, (_, layout) in reversed(self._known.items()):
                if viewer.user == owner and name in layout.directories:
                    return layout.directories[name].id
        return None


@dataclass(frozen=True)
class View:
    """The skills that the adapter shows, their paths, and what is remembered of them."""

    user_id: UserOfRun
    session_factory: SessionFactory
    chosen: Filter
    pins: dict[str, int]
    policy: Policy = field(default_factory=Policy)
    memory: Memory = field(default_factory=Memory)
    secret: bytes = field(default=b"", repr=False)
    """What the directories of users are named by, besides the user."""

    def backend_for(self, runtime: object) -> StoreBackend:
        """Return a backend that shows the skills of this run's user as they are now."""
        owner = self.owner(runtime)
        viewers: list[Viewer] = []

        async def viewer(reader: AgentReader) -> Viewer:
            if not viewers:
                viewers.append(await reader.viewer(owner))
            return viewers[0]

        async def layout() -> Layout:
            async with self.reader() as reader:
                who = await viewer(reader)
                known = self.memory.get(who)
                overview = await reader.overview(who, self.chosen, self.pins, known[0] if known else None)
            # The same heads as before: nothing to lay out again.
            if known is not None and known[0].heads is overview.heads:
                self.memory.put(who, overview, known[1])
                return known[1]
            problems = self._problems(overview)
            # Not on the event loop, because there may be thousands.
            heads = overview.heads
            size = len(heads) * _HEAD_BYTES
            laid_out = await computed(size, lambda: layout_of(heads, is_cut=overview.is_cut, problems=problems))
            return self.memory.put(who, overview, laid_out)

        async def documents(heads: Collection[Head]) -> dict[UUID, bytes]:
            async with self.reader() as reader:
                return await reader.documents(heads, await viewer(reader), self.chosen)

        async def text_sizes(heads: Collection[Head]) -> dict[UUID, int]:
            async with self.reader() as reader:
                return await reader.text_sizes(heads)

        async def paths(head: Head) -> dict[str, int]:
            async with self.reader() as reader:
                return await reader.paths(head, await viewer(reader), self.chosen)

        async def content(head: Head, path: str) -> bytes | None:
            async with self.reader() as reader:
                return await reader.content(head, path, await viewer(reader), self.chosen)

        return StoreBackend(self._root(owner), Store(layout, documents, text_sizes, paths, content))

    def sources_for(self, runtime: object) -> list[OptionalSource]:
        """Return the directory of this run's user, which no other user shares.

        If the user cannot be determined, it is a directory that never has skills, so that nothing of an earlier user
        stays.
        """
        try:
            root = self._root(self.owner(runtime))
        except Exception:  # noqa: BLE001 - the backend of the same run reports it
            root = f"{SOURCE_ROOT}/unknown-user"
        # Optional, because a user without skills is not a mistake that every run should report.
        return [OptionalSource(root, SOURCE_LABEL)]

    def owner(self, runtime: object) -> str | None:
        """Return the user of the run.

        Raises:
            TypeError: If that is not a user id or `None`.
        """
        user = self.user_id(runtime) if callable(self.user_id) else self.user_id
        if not isinstance(user, str | UUID | None):
            raise TypeError(f"user_id returned a {type(user).__name__}, not a user id or None")
        return owner_key(user)

    def _root(self, owner: str | None) -> str:
        """Return the directory of a user's skills; ids may hold anything, so it is named by their digest.

        The name stands in the checkpoints of threads. Without a secret, whoever reads those can try ids until one fits.
        """
        if owner is None:
            return f"{SOURCE_ROOT}/anonymous"
        key = hashlib.blake2b(self.secret).digest() if self.secret else b""
        return f"{SOURCE_ROOT}/{hashlib.blake2b(owner.encode(), digest_size=8, key=key).hexdigest()}"

    @asynccontextmanager
    async def reader(self) -> AsyncIterator[AgentReader]:
        """Give a reader with its own session."""
        try:
            async with self.session_factory() as session:
                bridged_engines.adopt(session)
                yield AgentReader(session, policy=self.policy)
        except Exception as error:
            failure = unavailable(error)
            if failure is None:
                raise
            raise failure from error

    def _problems(self, overview: Overview) -> list[SkillProblem]:
        """Return a problem for each named skill that does not exist."""
        missing = set(self.chosen.skill_ids or ()) - {head.id for head in overview.heads}
        ids = [("skill_ids", f"The skill {skill_id}") for skill_id in sorted(missing, key=str)]
        pins = [
            ("versions", f"The skill {name!r} is pinned to revision {revision}, which")
            for name, revision in overview.unpinned
        ]
        return [problem(option, "skill-not-in-store", which=which, option=option) for option, which in (*ids, *pins)]


def _weight(head: Head) -> int:
    texts = (head.name, head.frontmatter, head.description, *head.tags)
    # The frontmatter is kept as text and as the bytes that are laid out; a character may take four bytes.
    return _HEAD_BYTES + 5 * sum(len(text) for text in texts if text is not None)


_ROOT = re.compile(rf"{re.escape(SOURCE_ROOT)}/(?:[0-9a-f]{{16}}|anonymous|unknown-user)(?:(/)|(?![\w-]))")


def without_roots(text: str) -> str:
    """Return a text in which the paths of skills begin with the skill's name."""
    return _ROOT.sub(lambda found: "" if found[1] else SOURCE_LABEL, text)


def with_mount(text: str) -> str:
    """Return a text in which the paths of skills are those on a mounted backend."""
    return _ROOT.sub(lambda found: f"{SOURCE_ROOT}/" if found[1] else SOURCE_LABEL, text)
