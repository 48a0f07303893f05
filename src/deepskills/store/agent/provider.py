"""The store as a source of skills: which user a run has, what that user sees, and texts and files when they are wanted.

A run lists names, descriptions and revisions; what the users saw last is remembered, so that one query tells that
nothing changed. Every read asks the database again whether the run's user may see the skill: what an entry of the
catalog holds may have been listed for somebody else.
"""

import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from deepskills import ProvidedFile, ProvidedSkill, SkillProvider
from deepskills._errors import SkillFormatError, SkillNotFoundError
from deepskills._io.cache import BoundedCache, size_of
from deepskills._providers.base import SCHEME, ListingProblems
from deepskills._skillmd.problems import problem
from deepskills._skillmd.read import read_skill
from deepskills._types import SKILL_FILE, SkillProblem
from deepskills.store.agent.reader import AgentReader, Overview
from deepskills.store.db.engine import SessionFactory, bridged_engines, unavailable
from deepskills.store.db.listings import Filter, SkillSummary
from deepskills.store.document import tag_fields
from deepskills.store.errors import SkillStoreUnavailableError
from deepskills.store.rules import Policy, UserId, Viewer, check_name, owner_key
from deepskills.store.workers import run_in_thread

logger = logging.getLogger("deepskills")

AnswerT = TypeVar("AnswerT")

UserOfRun: TypeAlias = UserId | Callable[[Any], UserId | None] | None
"""A user, nobody, or a function of the runtime that returns the run's user."""

MEMORY_BYTES = 64 * 1024 * 1024
"""How many bytes an adapter remembers for all its users together, by default."""

SKILL_BYTES = 1_500
"""About what a remembered skill takes in addition to its texts: objects, keys, and entries in dictionaries."""


@dataclass(frozen=True, kw_only=True)
class StoredSkill(ProvidedSkill):
    """A skill of the store as a run's user sees it; its key is its id."""

    head: SkillSummary
    mark: str
    """What changes whenever the text or a file does."""

    place: str | None = None
    """Its directory on a mounted backend."""

    @property
    def version(self) -> str:
        """What changes whenever the text or a file does."""
        return self.mark

    @property
    def directory(self) -> str | None:
        """Its directory for file tools."""
        return self.place


@dataclass(frozen=True)
class Seen:
    """What a user saw last."""

    viewer: Viewer
    overview: Overview
    skills: Sequence[StoredSkill]
    """In order: the first with a name counts."""

    by_name: Mapping[str, StoredSkill] = field(default_factory=dict)
    """The skills that count."""

    weight: int = 0
    """How many bytes it takes."""


class StoreProvider(SkillProvider):
    """The skills of a store, for the user of each run.

    Args:
        user_id: Whose skills: a user id, `None` for nobody, or a function of the runtime.
        session_factory: Opens a session.
        chosen: Which of the skills that the user may see.
        pins: By name, the revision to which a skill is pinned.
        policy: The store's policy.
        memory_bytes: How much memory to use for what users saw, for all users together.
    """

    label = "Database"

    def __init__(
        self,
        user_id: UserOfRun,
        session_factory: SessionFactory,
        *,
        chosen: Filter,
        pins: Mapping[str, int],
        policy: Policy,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self.session_factory = session_factory
        self.policy = policy
        # What a thread knows of one user's skills says nothing of another's.
        self.is_personal = callable(user_id)
        self._user_id = user_id
        self._chosen = chosen
        self._pins = dict(pins)
        self._mount: str | None = None
        self._memory_bytes = memory_bytes
        self._seen = self._new_memory()

    def mount(self, path: str) -> None:
        """Let skills have directories below a path, where the agent's file tools find them."""
        self._mount = path
        self._seen = self._new_memory()

    def owner(self, runtime: object) -> str | None:
        """Return the user of the run.

        Raises:
            TypeError: If that is not a user id or `None`.
        """
        user = self._user_id(runtime) if callable(self._user_id) else self._user_id
        if not isinstance(user, str | UUID | None):
            raise TypeError(f"user_id returned a {type(user).__name__}, not a user id or None")
        return owner_key(user)

    # Plain functions that return coroutines: the application's function is called as any other, in the caller's thread
    # or in one of its own, and only the database's work is awaited on an event loop.

    def list_skills(self, runtime: Any) -> Awaitable[Iterable[ProvidedSkill]]:  # noqa: ANN401 - LangGraph's runtime
        """Return the skills that the run's user sees now."""
        return self._list(self.owner(runtime))

    def read_skill(self, skill: ProvidedSkill, runtime: Any) -> Awaitable[bytes]:  # noqa: ANN401 - LangGraph's runtime
        """Return the text of a skill, if the run's user may still see it."""
        return self._read(_head_of(skill), SKILL_FILE, self.owner(runtime))

    def list_files(self, skill: ProvidedSkill, runtime: Any) -> Awaitable[Iterable[ProvidedFile]]:  # noqa: ANN401 - as above
        """Return the other files of a skill; none if the run's user may no longer see it."""
        return self._list_files(_head_of(skill), self.owner(runtime))

    def read_file(self, skill: ProvidedSkill, path: str, runtime: Any) -> Awaitable[bytes]:  # noqa: ANN401 - as above
        """Return a file of a skill, if the run's user may still see it."""
        return self._read(_head_of(skill), path, self.owner(runtime))

    async def ask(self, owner: str | None, question: Callable[[AgentReader, Viewer], Awaitable[AnswerT]]) -> AnswerT:
        """Return the store's answer to a question of a user's run."""
        viewer = await self.policy.viewer(owner)
        async with self._reader() as reader:
            return await question(reader, viewer)

    async def visible(self, owner: str | None) -> Seen:
        """Return what a user sees now."""
        viewer = await self.policy.viewer(owner)
        known = self._find_known(owner, viewer)
        async with self._reader() as reader:
            overview = await reader.overview(viewer, self._chosen, self._pins, known.overview if known else None)
        if known is not None and overview is known.overview:
            return known
        # Not on the event loop, because there may be thousands.
        size = len(overview.heads) * SKILL_BYTES
        seen = await run_in_thread(size, lambda: self._see(viewer, overview, known))
        self._seen.put(owner, seen)
        return seen

    def skill_id(self, owner: str | None, name: str) -> UUID | None:
        """Return the id of the skill that a user's runs know by a name."""
        known = self._seen.get(owner)
        found = known.by_name.get(name) if known is not None else None
        return found.head.id if found is not None else None

    async def texts(self, heads: Sequence[SkillSummary], owner: str | None) -> dict[UUID, bytes]:
        """Return the `SKILL.md` files of skills that a user may still see."""
        return await self.ask(owner, lambda reader, viewer: reader.documents(heads, viewer, self._chosen))

    async def paths(self, head: SkillSummary, owner: str | None) -> dict[str, int]:
        """Return the paths of a skill's other files, each with its size."""
        return await self.ask(owner, lambda reader, viewer: reader.paths(head, viewer, self._chosen))

    async def content(self, head: SkillSummary, path: str, owner: str | None) -> bytes | None:
        """Return one file of a skill that a user may still see."""
        return await self.ask(owner, lambda reader, viewer: reader.content(head, path, viewer, self._chosen))

    async def _list(self, owner: str | None) -> list[Any]:
        try:
            seen = await self.visible(owner)
        except SkillStoreUnavailableError as error:
            # A thread's state may be another user's, so only what this process remembers of this one stands in.
            known = self._find_known(owner, await self.policy.viewer(owner)) if self.is_personal else None
            if known is None:
                raise
            failure = problem(f"{SCHEME}{self.label}", "source-failed", reason=str(error))
            return [ListingProblems([failure]), *known.skills]
        return [ListingProblems(self._problems(seen.overview)), *seen.skills]

    async def _list_files(self, head: SkillSummary, owner: str | None) -> list[ProvidedFile]:
        return [ProvidedFile(path, size) for path, size in (await self.paths(head, owner)).items()]

    async def _read(self, head: SkillSummary, path: str, owner: str | None) -> bytes:
        is_text = path == SKILL_FILE
        content = (await self.texts([head], owner)).get(head.id) if is_text else await self.content(head, path, owner)
        if content is None:
            what = "skill" if is_text else "file"
            raise SkillNotFoundError(f"the {what} is no longer in the store, or this user may not see it")
        return content

    @asynccontextmanager
    async def _reader(self) -> AsyncIterator[AgentReader]:
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

    def _new_memory(self) -> BoundedCache[str | None, Seen]:
        return BoundedCache(self._memory_bytes, lambda seen: seen.weight)

    def _find_known(self, owner: str | None, viewer: Viewer) -> Seen | None:
        known = self._seen.get(owner)
        # Who is in another group now sees other skills.
        return known if known is not None and known.viewer == viewer else None

    def _see(self, viewer: Viewer, overview: Overview, known: Seen | None) -> Seen:
        if known is not None and known.overview.heads is overview.heads:
            # Only the store's stamp is another.
            return Seen(viewer, overview, known.skills, known.by_name, known.weight)
        skills: list[StoredSkill] = []
        by_name: dict[str, StoredSkill] = {}
        weight = 0
        for head in overview.heads:
            try:
                skill = _store(head, None if head.name in by_name else self._mount)
            except Exception as error:  # noqa: BLE001 - one skill's failure, whatever it is, costs no other
                logger.error("Skill %s cannot be served: %s: %s", head.id, type(error).__name__, error)  # noqa: TRY400 - the message says it all
                continue
            skills.append(skill)
            by_name.setdefault(skill.name, skill)
            texts = (head.name, head.frontmatter, skill.description, *head.tags)
            weight += SKILL_BYTES + size_of(skill.frontmatter) + sum(map(size_of, texts))
        return Seen(viewer, overview, skills, by_name, SKILL_BYTES + weight)

    def _problems(self, overview: Overview) -> list[SkillProblem]:
        """Return a problem for each named skill that does not exist."""
        missing = set(self._chosen.skill_ids or ()) - {head.id for head in overview.heads}
        ids = [("skill_ids", f"The skill {skill_id}") for skill_id in sorted(missing, key=str)]
        pins = [
            ("versions", f"The skill {name!r} is pinned to revision {revision}, which")
            for name, revision in overview.unpinned
        ]
        return [problem(option, "skill-not-in-store", which=which, option=option) for option, which in (*ids, *pins)]


def _store(head: SkillSummary, mount: str | None) -> StoredSkill:
    """Return a skill as agents get it.

    Raises:
        SkillFormatError: If its row was corrupted outside the service.
    """
    check_name(head.name)
    description, fields = head.description or "", tag_fields(head.tags)
    if head.frontmatter is not None:
        reading = read_skill(head.frontmatter.encode(head.encoding), path=SKILL_FILE)
        description = reading.metadata["description"] if reading.metadata is not None else ""
        fields = {key: value for key, value in reading.frontmatter.items() if key not in ("name", "description")}
    if not description.strip():
        raise SkillFormatError("it has no description")
    return StoredSkill(
        str(head.id),
        head.name,
        description,
        frontmatter=fields,
        head=head,
        # Over all three, because revisions of two databases may be the same.
        mark=hashlib.blake2b(f"{head.id} {head.revision} {head.stamp}".encode(), digest_size=16).hexdigest(),
        place=None if mount is None else f"{mount}/{head.name}",
    )


def _head_of(skill: ProvidedSkill) -> SkillSummary:
    if not isinstance(skill, StoredSkill):
        raise TypeError(f"{type(skill).__name__} is not a skill of the store")
    return skill.head
