"""Decides which skills an agent's runs see and at which paths, and remembers them between runs."""

import hashlib
import logging
import re
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from deepskills._skillmd.problems import problem
from deepskills._types import OptionalSource, SkillProblem
from deepskills.store.agent.backend import Layout, Store, StoreBackend, layout_of
from deepskills.store.agent.loop import private_loop
from deepskills.store.agent.reader import AgentReader, Overview
from deepskills.store.db.engine import unavailable
from deepskills.store.db.repositories import Filter, Head
from deepskills.store.rules import Policy, UserId, Viewer, owner_key
from deepskills.store.workers import computed

logger = logging.getLogger("deepskills")

SessionFactory: TypeAlias = Callable[[], AsyncSession]
"""Opens a session, as SQLAlchemy's `async_sessionmaker` does."""

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
                if private_loop.is_running:
                    private_loop.adopt(session)
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
