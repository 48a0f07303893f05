"""Shows stored skills as a read-only backend, with directories laid out from one reading of the store.

`SkillsMiddleware` discovers skills on backends. This one has no disk behind it: directories are laid out from names and
descriptions, and texts and files are read from the database on demand.
"""

import asyncio
import functools
import hashlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from deepagents.backends import BackendProtocol
from deepagents.backends.protocol import FileDownloadResponse, FileInfo, LsResult

from deepskills._skillmd.problems import problem
from deepskills._skillmd.write import generate_skill_md
from deepskills._types import SKILL_FILE, SkillListing, SkillProblem, SkillSummary
from deepskills.store.agent.loop import private_loop
from deepskills.store.db.repositories import Head
from deepskills.store.document import tag_fields
from deepskills.store.rules import check_name

logger = logging.getLogger("deepskills")

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
        """List a directory, on the private event loop."""
        return private_loop.run(lambda: self.als(path))

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files, on the private event loop."""
        return private_loop.run(lambda: self.adownload_files(paths))

    def skill_listings(self, paths: list[str]) -> list[SkillListing | None]:
        """Return the skills, without their bodies, and problems that belong to none, on the private event loop."""
        return private_loop.run(lambda: self.askill_listings(paths))

    def skill_summaries(self, paths: list[str]) -> list[SkillSummary | None]:
        """Return the part of skill files before their bodies, on the private event loop."""
        return private_loop.run(lambda: self.askill_summaries(paths))

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
