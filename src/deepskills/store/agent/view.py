"""Decides which skills the runs of an agent see, where those appear to be, and what is remembered of them."""

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

from deepskills._types import OptionalSource
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
"""A user, nobody, or a function of the runtime that says whose run it is."""

SOURCE_ROOT = "/skills"
"""Where the skills of each user appear to lie, each user's in a directory of its own."""

SOURCE_LABEL = "Database"
"""How the source is shown."""

MEMORY_BYTES = 64 * 1024 * 1024
"""How much an adapter remembers for all its users together, by default."""

_HEAD_BYTES = 1_500
"""About what a remembered skill takes beside its texts: objects, keys, and its place in two dictionaries."""


class Memory:
    """Remembers the skills that users saw last; bounded in bytes, safe to share by threads.

    What is remembered is used only where the database says that it is still the same.
    """

    def __init__(self, size: int = MEMORY_BYTES) -> None:
        self._size = size
        self._held = 0
        self._lock = threading.Lock()
        self._known: OrderedDict[Viewer, tuple[Overview, Layout]] = OrderedDict()
        self._weights: dict[Viewer, int] = {}

    def __deepcopy__(self, memo: dict[int, object]) -> "Memory":
        """Return an empty one: what is remembered is not part of what a copy is for."""
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
        """Return the skill that a user's runs know by a name."""
        with self._lock:
            for viewer, (_, layout) in reversed(self._known.items()):
                if viewer.user == owner and name in layout.directories:
                    return layout.directories[name].id
        return None


@dataclass(frozen=True)
class View:
    """Which skills the adapter shows, where they appear to lie, and what is known of them."""

    user_id: UserOfRun
    session_factory: SessionFactory
    chosen: Filter
    pins: dict[str, int]
    policy: Policy = field(default_factory=Policy)
    memory: Memory = field(default_factory=Memory)

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
            # The very same heads: nothing to lay out again.
            if known is not None and known[0].heads is overview.heads:
                self.memory.put(who, overview, known[1])
                return known[1]
            missing = self._missing({head.id for head in overview.heads})
            # Not on the event loop: there may be thousands.
            heads = overview.heads
            size = len(heads) * _HEAD_BYTES
            laid_out = await computed(size, lambda: layout_of(heads, is_cut=overview.is_cut, missing=missing))
            return self.memory.put(who, overview, laid_out)

        async def documents(heads: Collection[Head]) -> dict[UUID, bytes]:
            async with self.reader() as reader:
                return await reader.documents(heads, await viewer(reader), self.chosen)

        async def paths(head: Head) -> list[str]:
            async with self.reader() as reader:
                return await reader.paths(head, await viewer(reader), self.chosen)

        async def content(head: Head, path: str) -> bytes | None:
            async with self.reader() as reader:
                return await reader.content(head, path, await viewer(reader), self.chosen)

        return StoreBackend(_root(owner), Store(layout, documents, paths, content))

    def sources_for(self, runtime: object) -> list[OptionalSource]:
        """Return where the skills of this run's user appear to lie, a place that no other user shares.

        If the user cannot be determined, the place never holds skills, so that nothing of an earlier user stays.
        """
        try:
            root = _root(self.owner(runtime))
        except Exception:  # noqa: BLE001 - the backend of the same run reports it
            root = f"{SOURCE_ROOT}/unknown-user"
        # Optional: a user without skills is not a mistake that every run should report.
        return [OptionalSource(root, SOURCE_LABEL)]

    def owner(self, runtime: object) -> str | None:
        """Return whose run it is.

        Raises:
            TypeError: If that is not a user id or `None`.
        """
        user = self.user_id(runtime) if callable(self.user_id) else self.user_id
        if not isinstance(user, str | UUID | None):
            raise TypeError(f"user_id gave a {type(user).__name__}, not a user id or None")
        return owner_key(user)

    @asynccontextmanager
    async def reader(self) -> AsyncIterator[AgentReader]:
        """Give a reader with a session of its own."""
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

    def _missing(self, found: set[UUID]) -> list[UUID]:
        return sorted(set(self.chosen.skill_ids or ()) - found, key=str)


def _weight(head: Head) -> int:
    texts = (head.name, head.frontmatter, head.description, *head.tags)
    # The frontmatter once as text and once as the bytes that are laid out; a character may take four bytes.
    return _HEAD_BYTES + 5 * sum(len(text) for text in texts if text is not None)


def _root(owner: str | None) -> str:
    """Return the directory of a user's skills; ids may hold anything, so it is named by their digest."""
    if owner is None:
        return f"{SOURCE_ROOT}/anonymous"
    return f"{SOURCE_ROOT}/{hashlib.blake2b(owner.encode(), digest_size=8).hexdigest()}"


_ROOT = re.compile(rf"{re.escape(SOURCE_ROOT)}/(?:[0-9a-f]{{16}}|anonymous|unknown-user)/?")


def without_roots(text: str) -> str:
    """Return a text in which paths of skills begin with the skill's name."""
    return _ROOT.sub("", text)
