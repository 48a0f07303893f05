"""`SkillService`: everything that people, agents and operators do with the store goes through here.

A call has up to three steps, always in this order:

1. Who is asking? `Policy.viewer` or `Policy.writer` asks the application's functions.
2. What will be written? Documents are parsed, files hashed and limits checked, in the store's own threads.
3. One transaction (`@reads`, `@writes`, `@counts`) looks the skill up as that viewer sees it, checks their rights and
   the expected revision, and reads or writes.

Steps 1 and 2 may take long and happen outside the transaction; step 3 blocks every other writer and only talks to the
database (see `db/transactions.py`). A write that depends on the skill as it was, such as an update of its frontmatter,
is made only if the skill is still at that revision; otherwise it is prepared again.

Rules are in `rules.py`, writing and its bookkeeping in `changes.py`, statements in `db/`.
"""

import asyncio
import datetime as dt
import hashlib
import itertools
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeAlias, TypeVar
from uuid import UUID, uuid4

from sqlalchemy.ext.asyncio import AsyncSession

from deepskills._errors import SkillFileNotFoundError, SkillFormatError, SkillNotFoundError, SkillPathError
from deepskills._loading.budget import CHARACTERS_PER_TOKEN, MESSAGE_CHARACTERS, MESSAGE_TOKENS
from deepskills._skillmd.names import stored_key
from deepskills._skillmd.problems import quoted
from deepskills._types import SKILL_FILE
from deepskills.store.changes import Changes, Text, Values
from deepskills.store.db.engine import Notices
from deepskills.store.db.listings import MAX_FOUND, Filter, ListingRepository, Position, TagMatch, cursor_at, offset_of
from deepskills.store.db.models import (
    FileContent,
    FormerText,
    KeptFile,
    Skill,
    SkillChange,
    SkillFile,
    document_of,
    now,
    split_tags,
)
from deepskills.store.db.repositories import APPROVED, HistoryRepository, Replaced, SkillFileRepository, SkillRepository
from deepskills.store.db.search import Matches
from deepskills.store.db.transactions import Transactions, counts, reads, reads_once, writes
from deepskills.store.document import Document, difference
from deepskills.store.errors import (
    SkillConflictError,
    SkillPermissionError,
    SkillStaleError,
    SkillStoreUnavailableError,
)
from deepskills.store.formatter import SkillFormatter
from deepskills.store.rules import (
    EVERYTHING,
    RETENTION_DAYS,
    TRUSTED,
    ApprovalRule,
    GroupsOf,
    IsOperator,
    Labels,
    Need,
    Policy,
    Reason,
    StoreLimits,
    UserId,
    Viewer,
    as_id,
    check_groups,
    check_rename,
    check_revision,
    check_right,
    checked_groups,
    days_of,
    has_right,
    known_id,
    no_skill,
    owns,
    sees_groups,
    signed_in,
    storable,
    was_seen,
)
from deepskills.store.schemas import SkillCreate, SkillFileCreate, SkillUpdate
from deepskills.store.workers import GivesWay, Turns, compared, computed

logger = logging.getLogger("deepskills")

MAX_TAGS_ASKED = 200
"""How many tags a listing filters by at most."""

MAX_PAGE = 1_000_000
"""From this size on, a page holds all skills."""

MAX_SEARCH_LENGTH = 4_000
"""Longest query or name that is looked at; the rest is ignored."""

MAX_CHANGES = 1_000
"""How many changes one call returns at most."""

WATCH_SECONDS = 1.0
"""How often a watcher polls if the database sends no notifications."""

MAX_EVENTS = 10_000
"""How many usage events one call accepts."""

MAX_COMPARED_BYTES = 8 * 1024 * 1024
"""How much of two versions is read for a diff; beyond that, files are only reported as different."""

COMPARISON_SECONDS = 60.0
"""How long somebody waits for the comparisons of others."""

SHORT_SECONDS = 0.1
"""How long a comparison may take before the next one waits."""

MAX_REST_SECONDS = 0.5
"""How long it then waits, at most: for as long as the first one took beyond that."""

_comparisons = Turns()

MAX_DELIVERED = 100
"""How many files of a delivered skill are remembered, by their digests."""

MAX_REQUIRED_SKILLS = 200
"""How many required skills are loaded along with others."""

MAX_NAMED = 20
"""How many skills an error names at most."""

PURGE_BATCH = 20
"""How many skills, or former texts and files, one transaction of a purge removes: writers wait for all of them."""

PURGE_LOOK = 1_000
"""How many former texts and files a purge looks up at a time, before it takes the lock for each batch of them."""

PURGE_PAUSE = 2.0
"""For how many times as long as a batch took, waiting included, a purge leaves the store to other writers."""

MAX_PREPARATIONS = 20
"""How often a write is prepared for a skill that others keep changing."""

_MAX_WORD = 32

ResultT = TypeVar("ResultT")

GivenSkill: TypeAlias = SkillCreate | SkillUpdate | bytes | str
"""A skill's new text: values, or a whole `SKILL.md`."""

GivenFiles: TypeAlias = Mapping[str, bytes | str] | Iterable[SkillFileCreate]
"""Files by path relative to the skill, or a list of files with their paths."""


class SkillPage(list[Skill]):
    """Skills of a listing, without `content`, `frontmatter` and `files`.

    Pass `next_cursor` as `cursor` for the next page; it is `None` on the last one.
    """

    def __init__(self, skills: Iterable[Skill] = (), next_cursor: str | None = None) -> None:
        super().__init__(skills)
        self.next_cursor = next_cursor


@dataclass(frozen=True)
class SkillApproval:
    """The state of a skill's approval."""

    last: SkillChange | None
    """The last approval; if the skill has changed since, its `is_approved` is false."""

    may_approve: bool
    """Whether the user may approve it."""


@dataclass(frozen=True)
class SkillFigures:
    """Numbers that a listing shows beside a skill."""

    tokens: int
    """About how many tokens its instructions cost when loaded, by their length."""

    loads: Mapping[dt.date, int] | None
    """How often it was loaded, by day; `None` for those who may read it but not write it."""


@dataclass(frozen=True)
class UsageCount:
    """How often a skill was used on one day, by type of event and trigger."""

    day: dt.date
    type: str
    trigger: str
    count: int


class SkillService:
    """Reads and writes skills for users: each sees their own, their groups', the system's and public ones.

    Every call sees the store at one moment, and commits all or nothing. A skill that a user may not see does not exist
    for them: reading or writing it raises `SkillNotFoundError`. Skills are returned detached from the session and do
    not change afterwards; listings leave out texts and files. Every change raises the skill's `revision`; a writer who
    passes `expected_revision` never overwrites a change that they have not seen.

    Args:
        session: A session only for this service, not in a transaction; every call begins and ends its own.
        limits: How large skills may be, which files they may hold, and how much each owner may keep.
        groups_of: Returns the groups that a user is in; sync or async; without it, nobody is in a group.
        is_operator: Whether a user may list, hide, approve and remove any skill, sync or async.
        approval: Show a public skill to others only once an operator approved its current revision; with `"by-others"`,
            an operator who neither owns it nor made its last change.
        retention: How many days a deleted skill can be restored.
        policy: All of these in one object, instead of the others.
    """

    def __init__(  # noqa: PLR0913 - options, each by name
        self,
        session: AsyncSession,
        *,
        limits: StoreLimits | None = None,
        groups_of: GroupsOf | None = None,
        is_operator: IsOperator | None = None,
        approval: ApprovalRule = False,
        retention: float = RETENTION_DAYS,
        policy: Policy | None = None,
    ) -> None:
        self._policy = policy or Policy(limits or StoreLimits(), groups_of, is_operator, approval, retention)
        self._session = session
        self._transactions = Transactions(session)
        self._skills = SkillRepository(session)
        self._files = SkillFileRepository(session)
        self._listings = ListingRepository(session)
        self._history = HistoryRepository(session)
        self._changes = Changes(session, self._policy)

    # -- Reading -------------------------------------------------------------------------------------------------------

    async def list_skills(  # noqa: PLR0913 - filters, each by name
        self,
        user_id: UserId | None = None,
        include_public: bool = True,  # noqa: FBT001, FBT002 - callers pass it by name or by place
        tags: Collection[str] | None = None,
        *,
        tag_match: TagMatch = "any",
        name: str | None = None,
        q: str | None = None,
        skill_ids: Collection[UUID] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        deleted: bool = False,
        everything: bool = False,
        unapproved: bool = False,
        system: bool = False,
    ) -> SkillPage:
        """Return the skills that a user may see, sorted by name, or best match first for a search.

        Args:
            user_id: Who is asking; `None` for nobody.
            include_public: Whether to include other users' public skills. The user's own, those shared with the user's
                groups, and system skills are always included.
            tags: Only skills that have these tags, ignoring case; `None` or empty for all.
            tag_match: Whether one of the tags is enough or all are needed.
            name: Only skills with this name, ignoring case.
            q: Only skills that match these words, best first.
            skill_ids: Only these.
            limit: How many at most; `None` for all.
            cursor: Where to continue: `next_cursor` of the previous page, with the same filters.
            deleted: Instead, the user's deleted skills that can still be restored.
            everything: All owners' skills. For operators.
            unapproved: Only public skills whose current text and files no operator approved.
            system: The operator's code asks.

        Raises:
            SkillPermissionError: If `everything` is set and the user is not an operator.
            SkillFormatError: If the cursor or the limit is not valid.
        """
        viewer = await self._policy.viewer(user_id, system=system)
        if everything and not viewer.is_operator:
            raise SkillPermissionError("Only operators can list everybody's skills. List your own instead.")
        if limit is not None and limit < 1:
            raise SkillFormatError(f"A page needs a limit of at least 1, not {limit}.")
        tag_keys = tuple(sorted({storable(tag).strip().casefold() for tag in tags or ()}))
        if len(tag_keys) > MAX_TAGS_ASKED:
            raise SkillFormatError(f"A listing can filter by at most {MAX_TAGS_ASKED} tags, got {len(tag_keys)}.")
        # Deleted skills are shown only to those who can restore them.
        if deleted:
            reasons = frozenset({Reason.SYSTEM if viewer.is_system else Reason.OWN})
        else:
            reasons = EVERYTHING if include_public else TRUSTED
        chosen = Filter(
            reasons,
            tag_keys,
            tag_match,
            None if name is None else stored_key(storable(name[:MAX_SEARCH_LENGTH])),
            None if skill_ids is None else tuple(key for given in skill_ids if (key := as_id(given)) is not None),
            is_everything=everything,
            is_unapproved=unapproved,
            deleted_since=now() - self._policy.retained if deleted else None,
        )
        if q is not None:
            return await self._search(viewer, chosen, storable(q[:MAX_SEARCH_LENGTH]), limit, cursor)
        return await self._page(viewer, chosen, limit, None if cursor is None else Position.of(cursor))

    @reads
    async def _page(self, viewer: Viewer, chosen: Filter, limit: int | None, after: Position | None) -> SkillPage:
        size = None if limit is None or limit >= MAX_PAGE else limit
        skills, last = await self._listings.page(viewer, chosen, size, after)
        return SkillPage(skills, None if last is None else last.cursor())

    async def _search(
        self, viewer: Viewer, chosen: Filter, query: str, limit: int | None, cursor: str | None
    ) -> SkillPage:
        offset = 0 if cursor is None else offset_of(cursor)
        size = min(limit or MAX_FOUND, MAX_FOUND)
        matches = await self._matches(viewer, chosen, query, size + 1, offset)
        ids = await computed(len(matches.best) * 4_096, lambda: matches.ids(query, offset))
        return await self._found(viewer, chosen, ids[: size + 1], offset=offset, size=size)

    @reads
    async def _matches(self, viewer: Viewer, chosen: Filter, query: str, limit: int, offset: int) -> Matches:
        return await self._listings.search(viewer, chosen, query, limit, offset)

    @reads
    async def _found(self, viewer: Viewer, chosen: Filter, ids: list[UUID], *, offset: int, size: int) -> SkillPage:
        # Visibility is checked again, because the matches are of a moment before.
        skills = await self._listings.light(ids[:size], viewer, chosen) if ids else []
        more = len(ids) > size and offset + size < MAX_FOUND
        return SkillPage(skills, cursor_at(offset + size) if more else None)

    async def get_skill(
        self,
        skill_id: UUID,
        user_id: UserId | None = None,
        *,
        contents: bool = True,
        max_bytes: int | None = None,
        system: bool = False,
    ) -> Skill:
        """Return a skill with its files, with or without their contents.

        Args:
            skill_id: Which skill.
            user_id: Who is asking.
            contents: Whether to read the contents of its files.
            max_bytes: Leave out the contents if the skill is larger than this; `read_piece` can read them.
            system: The operator's code asks.

        Raises:
            SkillNotFoundError: If this user can see no such skill.
        """
        viewer = await self._policy.viewer(user_id, system=system)
        if not contents:
            return await self._listed(known_id(skill_id), viewer)
        return await self._shown(known_id(skill_id), viewer, contents=contents, max_bytes=max_bytes)

    @reads_once
    async def _listed(self, skill_id: UUID, viewer: Viewer) -> Skill:
        return await self._shown(skill_id, viewer, contents=False)

    async def get_skill_by_name(
        self, name: str, user_id: UserId | None = None, *, contents: bool = True, system: bool = False
    ) -> Skill:
        """Return the skill with that name, ignoring case.

        The user's own comes first, then one shared with the user's groups, then the system's, then public ones. Of
        several, the one that has had the name longest is returned, counting from when others could see it.

        Raises:
            SkillNotFoundError: If this user can see no such skill.
        """
        viewer = await self._policy.viewer(user_id, system=system)
        return await self._named(name, viewer, contents=contents)

    @reads
    async def _named(self, name: str, viewer: Viewer, *, contents: bool) -> Skill:
        found = await self._skills.by_name(stored_key(storable(name[:MAX_SEARCH_LENGTH])), viewer)
        if found is None:
            raise SkillNotFoundError(f"There is no skill named {quoted(name)}. List the skills to see which exist.")
        return await self._shown(found, viewer, contents=contents)

    async def read_file(
        self, skill_id: UUID, path: str, user_id: UserId | None = None, *, system: bool = False
    ) -> bytes:
        """Return the content of one file of a skill.

        Raises:
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillFileNotFoundError: If the skill has no file at that path.
        """
        viewer = await self._policy.viewer(user_id, system=system)
        return await self._content(known_id(skill_id), storable(path), viewer)

    @reads
    async def _content(self, skill_id: UUID, path: str, viewer: Viewer) -> bytes:
        skill = await self._readable(skill_id, viewer, files=False)
        content = await self._files.read(skill.id, path)
        if content is None:
            raise SkillFileNotFoundError(f"The skill has no file {quoted(path)}.")
        return content

    async def required_skills(
        self, skill_ids: Collection[UUID], user_id: UserId | None = None, *, include_public: bool = False
    ) -> list[Skill]:
        """Return the skills that skills require, directly or indirectly, without their texts, as a user sees them.

        A required skill that does not exist for this user is logged.

        Args:
            skill_ids: The skills that require others.
            user_id: Who is asking.
            include_public: Whether anybody's public skill may be what is required. Otherwise it is the user's own, a
                group's, the system's, or a public skill of the owner of the skill that requires it.
        """
        viewer = await self._policy.viewer(user_id)
        return await self._required(list(skill_ids), viewer, EVERYTHING if include_public else TRUSTED)

    @reads
    async def _required(self, skill_ids: list[UUID], viewer: Viewer, reasons: Collection[Reason]) -> list[Skill]:
        found: dict[UUID, None] = {}
        frontier = skill_ids
        # Level by level, each skill once: requirements may form circles.
        while frontier and len(found) < MAX_REQUIRED_SKILLS:
            requiring = await self._listings.light(frontier, viewer, Filter())
            wanted = await self._skills.requires(frontier)
            frontier = []
            for owner, name in dict.fromkeys(
                (skill.owner_id, name) for skill in requiring for name in wanted.get(skill.id, ())
            ):
                # A stranger who publishes a skill under a name that is missing must not reach those who require it.
                skill_id = await self._skills.by_name(stored_key(name), viewer, reasons, trusted_owner=owner)
                if skill_id is None:
                    logger.warning("Skill %s is required, but does not exist for this user", quoted(name))
                elif skill_id not in found and skill_id not in skill_ids:
                    found[skill_id] = None
                    frontier.append(skill_id)
        return await self._listings.light(list(found), viewer, Filter())

    async def export_skill(
        self, skill_id: UUID, user_id: UserId | None = None, *, system: bool = False
    ) -> dict[str, bytes]:
        """Return a skill as files by relative path, its `SKILL.md` first, byte for byte as it came in.

        Raises:
            SkillNotFoundError: If this user can see no such skill.
        """
        return exported(await self.get_skill(skill_id, user_id, system=system))

    async def format_skill_content(
        self,
        skill: Skill | UUID,
        user_id: UserId | None = None,
        include_file_contents: bool = True,  # noqa: FBT001, FBT002 - as the formatter takes it
    ) -> str:
        """Return a skill, given as such or by its id, as Markdown, as `SkillFormatter` writes it.

        If it comes from a listing, without its text, it is read first.

        Raises:
            SkillNotFoundError: If this user can see no such skill.
        """
        known = skill if isinstance(skill, Skill) and skill.has_text else None
        if known is None:
            skill_id = skill.id if isinstance(skill, Skill) else skill
            known = await self.get_skill(skill_id, user_id, contents=include_file_contents)
        return SkillFormatter.format_skill_content(known, include_file_contents)

    @reads
    async def _shown(self, skill_id: UUID, viewer: Viewer, *, contents: bool, max_bytes: int | None = None) -> Skill:
        """Return a skill as a viewer may see it: not every reader may know which groups it is shared with."""
        skill = await self._readable(skill_id, viewer, contents=contents and max_bytes is None)
        # The size is known from the row, so a large skill's contents are not read only to be thrown away.
        if contents and max_bytes is not None and skill.size <= max_bytes:
            await self._history.fill(skill.files)
        if not sees_groups(skill, viewer):
            skill.labels = Labels(skill.tags, {})
        return skill

    @reads
    async def _readable(self, skill_id: UUID, viewer: Viewer, *, contents: bool = False, files: bool = True) -> Skill:
        skill = await self._skills.get(skill_id, viewer, contents=contents, files=files)
        if skill is None:
            raise no_skill(str(skill_id))
        return skill

    # -- Writing -------------------------------------------------------------------------------------------------------

    async def create_skill(self, data: SkillCreate, user_id: UserId | None, *, system: bool = False) -> Skill:
        """Create a skill with its files, all or nothing.

        Args:
            data: The skill.
            user_id: The owner.
            system: Make it a system skill, which everybody may read. For the operator's code, never for a user's
                request.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
            SkillConflictError: If the owner has a skill with that name, ignoring case.
            SkillFormatError: If a value breaks the rules; `SkillPathError` if a file's path does.
            SkillTooLargeError: If the skill or a file is too large, or the owner keeps too much.
        """
        writer = await self._policy.writer(user_id, system=system)
        shared_with = checked_groups(data.shared_with)
        check_groups(shared_with, writer, self._policy.limits)

        def prepare() -> Values:
            text = Text.of(data.document().checked())
            files = file_contents(data.files)
            self._policy.limits.check_files(sizes_of(files))
            return Values(text, files, is_public=data.is_public, shared_with=shared_with)

        try:
            values = await computed(_size_of(data, data.files), prepare)
        except SkillFormatError:
            # If the name is taken in another spelling, that is the better error.
            await self._check_name_free(data.name, writer.user)
            raise
        # Asked before its turn, which is everybody's time. Who comes first in between is told by the unique index.
        await self._check_name_free(data.name if values.text is None else values.text.document.name, writer.user)
        return await self._create(writer, values)

    @writes
    async def _create(self, writer: Viewer, values: Values) -> Skill:
        return await self._changes.create(writer, values)

    @reads_once
    async def _check_name_free(self, name: str, owner_id: str | None) -> None:
        await self._changes.check_name_free(name, owner_id)

    async def update_skill(
        self,
        skill_id: UUID,
        data: SkillUpdate,
        user_id: UserId | None,
        *,
        expected_revision: int | None = None,
        system: bool = False,
    ) -> Skill:
        """Change a skill; a new name, description or tags are also written into its frontmatter.

        An update that changes nothing leaves revision and time as they are. Members of a group with write access can
        change text and files; only the owner decides who sees the skill.

        Returns:
            The skill, without the contents of its files.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillPermissionError: If it is not this user's to change.
            SkillStaleError: If its revision is not the expected one.
            SkillConflictError: If the owner has another skill with the new name.
            SkillFormatError: If a value breaks the rules.
            SkillTooLargeError: If the skill is too large, or the owner keeps too much.
        """
        writer = await self._policy.writer(user_id, system=system)
        shared_with = None if data.shared_with is None else checked_groups(data.shared_with)

        def prepare(skill: Skill) -> Values:
            text = Text.of(data.apply(document_of(skill)).checked())
            return Values(text, is_public=data.is_public, shared_with=shared_with)

        return await self._rewrite(
            known_id(skill_id), writer, "updated", prepare, expected_revision, size=_size_of(data), name=data.name
        )

    async def save_skill(
        self,
        skill_id: UUID,
        data: GivenSkill,
        files: GivenFiles | None,
        user_id: UserId | None,
        *,
        expected_revision: int | None = None,
        system: bool = False,
    ) -> Skill:
        """Replace a skill's text and all of its files in one step: readers see the old skill or the new one.

        Args:
            skill_id: Which skill.
            data: The new text: values, or a whole `SKILL.md`. Without tags or visibility, those stay as they are.
            files: All files of the skill; any other is removed. `None` leaves the files as they are.
            user_id: The writer.
            expected_revision: The revision that the writer knows; `None` to replace any.
            system: The operator's code writes.

        Returns:
            The skill, without the contents of its files.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillPermissionError: If it is not this user's to change.
            SkillStaleError: If its revision is not the expected one.
            SkillConflictError: If the owner has another skill with the new name.
            SkillFormatError: If a value breaks the rules; `SkillPathError` if a file's path does.
            SkillTooLargeError: If the skill or a file is too large, or the owner keeps too much.
        """
        writer = await self._policy.writer(user_id, system=system)
        given = files if files is not None else data.files if isinstance(data, SkillCreate) and data.files else None
        # Read once, because it may be an iterator and a write may be prepared more than once.
        listed = given if given is None or isinstance(given, Mapping) else list(given)
        size = _size_of(data, listed)

        def read() -> tuple[SkillCreate | SkillUpdate, list[FileContent] | None]:
            new_text = _text_of(data) if isinstance(data, bytes | str) else data
            return new_text, None if listed is None else file_contents(listed)

        text, contents = await computed(size, read)
        shared_with = checked_groups(text.shared_with) if _is_given(text, "shared_with") else None  # type: ignore[arg-type]
        is_public = text.is_public if _is_given(text, "is_public") else None

        def prepare(skill: Skill) -> Values:
            if contents is not None:
                self._policy.limits.check_files(sizes_of(contents))
            before = document_of(skill)
            if isinstance(text, SkillUpdate):
                document = text.apply(before)
            else:
                document = text.document()
                if text.frontmatter is None and not _is_given(text, "tags"):
                    document = replace(document, tags=before.tags)
            return Values(Text.of(document.checked()), contents, is_public=is_public, shared_with=shared_with)

        return await self._rewrite(known_id(skill_id), writer, "saved", prepare, expected_revision, size=size)

    async def _rewrite(  # noqa: PLR0913 - one step of three calls
        self,
        skill_id: UUID,
        writer: Viewer,
        action: str,
        prepare: Callable[[Skill], Values],
        expected_revision: int | None,
        *,
        size: int,
        name: str | None = None,
    ) -> Skill:
        """Change a skill to what `prepare` returns, and return it without the contents of its files."""

        async def attempt() -> Skill | None:
            # Rights are checked first: a stranger's update must not cost a parse.
            skill = await self._writable(skill_id, writer, expected_revision, name=name)
            values = await computed(size + len(skill.content), lambda: prepare(skill))
            return await self._change(skill, writer, action, values)

        return await _prepared(attempt)

    @reads_once
    async def _writable(
        self, skill_id: UUID, writer: Viewer, expected_revision: int | None, *, name: str | None = None
    ) -> Skill:
        """Return a skill as its writer may change it, with its text and without its files."""
        skill = await self._locked(skill_id, writer, "write", expected_revision)
        if name is not None:
            check_rename(skill, writer, name)
            # An early answer, of another moment; what counts is asked again when it is written.
            await self._changes.check_name_free(name, skill.owner_id, other_than=skill.id)
        return skill

    @writes
    async def _change(self, known: Skill, writer: Viewer, action: str, values: Values) -> Skill | None:
        """Change a skill that is still as `known`, and return it; `None` if it changed since."""
        skill = await self._locked(known.id, writer, "write", files=True)
        if skill.revision != known.revision:
            return None
        await self._changes.apply(skill, writer, action, values)
        return skill

    async def delete_skill(
        self,
        skill_id: UUID,
        user_id: UserId | None,
        *,
        expected_revision: int | None = None,
        force: bool = False,
        system: bool = False,
    ) -> None:
        """Delete a skill for everybody; `restore_skill` can restore it within the retention period.

        Args:
            skill_id: Which skill.
            user_id: The user who deletes it.
            expected_revision: The revision that they know; `None` to delete any.
            force: Delete it even if other skills require it.
            system: The operator's code deletes.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillPermissionError: If it is not this user's to remove.
            SkillStaleError: If its revision is not the expected one.
            SkillConflictError: If other skills require it; the message names those that this user may see.
        """
        writer = await self._policy.writer(user_id, system=system)
        await self._delete(known_id(skill_id), writer, expected_revision, force=force)

    @writes
    async def _delete(self, skill_id: UUID, writer: Viewer, expected_revision: int | None, *, force: bool) -> None:
        skill = await self._locked(skill_id, writer, "remove", expected_revision)
        if not force:
            await self._check_not_required(skill, writer)
        await self._changes.advance(skill, writer, "deleted")
        # The row stays, because versions, the log and a restore need it.
        skill.deleted_at = skill.updated_at

    async def add_file(
        self,
        skill_id: UUID,
        data: SkillFileCreate,
        user_id: UserId | None,
        *,
        expected_revision: int | None = None,
        system: bool = False,
    ) -> SkillFile:
        """Add a file to a skill.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillPermissionError: If it is not this user's to change.
            SkillStaleError: If its revision is not the expected one.
            SkillConflictError: If the skill has a file at that path.
            SkillPathError: If the path is refused.
            SkillTooLargeError: If the file, or the skill with it, is too large, or the owner keeps too much.
        """
        return await self._put_file(
            skill_id, data, user_id, expected_revision=expected_revision, system=system, replaces=False
        )

    async def save_file(
        self,
        skill_id: UUID,
        data: SkillFileCreate,
        user_id: UserId | None,
        *,
        expected_revision: int | None = None,
        system: bool = False,
    ) -> SkillFile:
        """Add a file to a skill, or replace the one at its path in one step; the same content changes nothing.

        It raises what `add_file` raises, except for an existing file.
        """
        return await self._put_file(
            skill_id, data, user_id, expected_revision=expected_revision, system=system, replaces=True
        )

    async def _put_file(
        self,
        skill_id: UUID,
        data: SkillFileCreate,
        user_id: UserId | None,
        *,
        expected_revision: int | None,
        system: bool,
        replaces: bool,
    ) -> SkillFile:
        writer = await self._policy.writer(user_id, system=system)
        (file,) = await computed(len(data.content), lambda: file_contents([data]))

        async def attempt() -> SkillFile | None:
            skill = await self._with_files(known_id(skill_id), writer, expected_revision)
            kept = {row.path: row for row in skill.files}
            if file.path in kept and not replaces:
                raise SkillConflictError(
                    f"The skill has a file {quoted(file.path)} already. Save it instead, or use another path."
                )
            sizes = {path: row.size for path, row in kept.items() if path != file.path}
            await computed(len(sizes) * 64, lambda: self._policy.limits.check_files({file.path: file.size}, sizes))
            return await self._put(skill, writer, "file-saved" if file.path in kept else "file-added", file)

        return await _prepared(attempt)

    @reads_once
    async def _with_files(self, skill_id: UUID, writer: Viewer, expected_revision: int | None) -> Skill:
        return await self._locked(skill_id, writer, "write", expected_revision, files=True)

    @writes
    async def _put(self, known: Skill, writer: Viewer, action: str, file: FileContent) -> SkillFile | None:
        skill = await self._locked(known.id, writer, "write", files=True)
        if skill.revision != known.revision:
            return None
        await self._changes.apply(skill, writer, action, Values(put=file))
        saved = next(row for row in skill.files if row.path == file.path)
        saved.skill_id, saved.data, saved.skill_revision = skill.id, file.data, skill.revision
        return saved

    async def delete_file(
        self, file_id: UUID, user_id: UserId | None, *, expected_revision: int | None = None, system: bool = False
    ) -> None:
        """Delete a file of a skill.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
            SkillNotFoundError: If there is no such file that this user may see.
            SkillPermissionError: If its skill is not this user's to change.
            SkillStaleError: If the skill's revision is not the expected one.
        """
        writer = await self._policy.writer(user_id, system=system)
        await self._drop(file_id, writer, expected_revision)

    @writes
    async def _drop(self, file_id: UUID, writer: Viewer, expected_revision: int | None) -> None:
        known = as_id(file_id)
        found = await self._skills.of_file(known, writer) if known is not None else None
        if found is None:
            raise SkillNotFoundError(f"There is no file {file_id}. Get its skill to see which files it has.")
        skill, file = found
        # Read again, as the value that changes are made to.
        path = file.path
        self._session.expunge_all()
        skill = await self._locked(skill.id, writer, "write", expected_revision, files=True)
        await self._changes.apply(skill, writer, "file-deleted", Values(drop=path))

    async def _check_not_required(self, skill: Skill, writer: Viewer) -> None:
        needing = await self._skills.required_by(skill, MAX_NAMED)
        if not needing:
            return
        # Skills that the writer may not see are counted, not named.
        seen = await self._listings.existing({other.id for other in needing}, writer)
        names = [quoted(other.name) for other in needing if other.id in seen]
        shown = ", ".join(names) if names else "skills of other users"
        raise SkillConflictError(
            f"The skill {quoted(skill.name)} is required by {shown}. Change those first, or delete it with `force`."
        )

    async def _locked(
        self, skill_id: UUID, writer: Viewer, need: Need, expected_revision: int | None = None, *, files: bool = False
    ) -> Skill:
        """Return a skill that the writer may change, with its text, and with the list of its files or without."""
        skill = await self._readable(skill_id, writer, files=files)
        check_right(skill, writer, need)
        check_revision(skill, expected_revision)
        return skill

    async def _fresh(self, skill: Skill) -> Skill:
        """Return a skill as the database has it after changes."""
        await self._session.flush()
        self._session.expunge_all()
        # As an operator, because this call may have handed the skill over, out of the writer's sight.
        return await self._readable(skill.id, Viewer(is_operator=True))

    # -- Versions, changes, usage --------------------------------------------------------------------------------------

    async def list_versions(
        self,
        skill_id: UUID,
        user_id: UserId | None = None,
        *,
        before: int | None = None,
        limit: int = 100,
        system: bool = False,
    ) -> list[SkillChange]:
        """Return a skill's revisions, newest first, each with who did what and when.

        Args:
            skill_id: Which skill.
            user_id: Who is asking.
            before: Only revisions before this one, to continue from the last of an earlier call.
            limit: How many at most.
            system: The operator's code asks.

        Raises:
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillPermissionError: If the user may read it but not write it.
        """
        viewer = await self._policy.viewer(user_id, system=system)
        return await self._changes_of(known_id(skill_id), viewer, before, _bounded(limit))

    @reads
    async def _changes_of(self, skill_id: UUID, viewer: Viewer, before: int | None, limit: int) -> list[SkillChange]:
        skill = await self._with_history(skill_id, viewer)
        return list(await self._history.changes(skill_id=skill.id, before=before, limit=limit, newest_first=True))

    async def get_version(
        self,
        skill_id: UUID,
        revision: int,
        user_id: UserId | None = None,
        *,
        contents: bool = True,
        system: bool = False,
    ) -> Skill:
        """Return a skill as it was at one of its revisions, with its files, with or without their contents.

        Raises:
            SkillNotFoundError: If there is no such skill that this user may see, or it had no such revision.
            SkillPermissionError: If the user may read it but not write it.
        """
        viewer = await self._policy.viewer(user_id, system=system)
        return await self._version(known_id(skill_id), viewer, revision, contents=contents)

    @reads
    async def _version(self, skill_id: UUID, viewer: Viewer, revision: int, *, contents: bool) -> Skill:
        return await self._version_of(await self._with_history(skill_id, viewer), revision, contents=contents)

    @reads_once
    async def read_piece(self, file: SkillFile, offset: int, length: int) -> bytes:
        """Return part of the content of a file that another call has just listed.

        For answers that are sent in pieces: they keep one piece of a large skill in memory at a time, and all pieces
        belong to the skill as it was listed.

        Raises:
            SkillNotFoundError: If that content has expired since.
        """
        piece = await self._history.piece(file.id, file.since, offset, length)
        if piece is None:
            raise _expired(file)
        return piece

    @reads_once
    async def read_files(self, files: Sequence[SkillFile]) -> list[bytes]:
        """Return the contents of files that another call has just listed, all at once; see `read_piece`.

        Raises:
            SkillNotFoundError: If one of them has expired since.
        """
        # What a revision brought only ever moves from the one table to the other, in the order in which they are read.
        found = await self._history.contents(files)
        for file in files:
            if (file.id, file.since) not in found:
                raise _expired(file)
        return [found[file.id, file.since] for file in files]

    async def diff_versions(
        self,
        skill_id: UUID,
        old: int,
        new: int,
        user_id: UserId | None = None,
        *,
        max_length: int | None = None,
        system: bool = False,
    ) -> str:
        """Return the changes between two revisions of a skill, as a unified diff of all its files.

        Args:
            skill_id: Which skill.
            old: The earlier revision.
            new: The later one.
            user_id: Who is asking.
            max_length: Stop after about this many characters; `None` for no limit.
            system: The operator's code asks.

        Raises:
            SkillNotFoundError: If there is no such skill that this user may see, or it had no such revision.
            SkillPermissionError: If the user may read it but not write it.
        """
        viewer = await self._policy.viewer(user_id, system=system)
        async with _comparing():
            before, after = await self._compared(known_id(skill_id), viewer, old, new)
            return await compared(lambda: difference(before, after, max_length, GivesWay()))

    @reads
    async def _compared(self, skill_id: UUID, viewer: Viewer, old: int, new: int) -> list[dict[str, bytes]]:
        """Return the files that differ between two versions; beyond `MAX_COMPARED_BYTES`, with a placeholder."""
        skill = await self._with_history(skill_id, viewer)
        texts = [(await self._text_of_version(skill, revision))[1] for revision in (old, new)]
        listed = [
            {file.path: file for file in await self._history.listed_at(skill.id, revision)} for revision in (old, new)
        ]
        found: list[dict[str, bytes]] = [{SKILL_FILE: document.render()} for document in texts]
        left = MAX_COMPARED_BYTES
        read: list[tuple[dict[str, bytes], KeptFile]] = []
        for path in sorted({*listed[0], *listed[1]}):
            pair = [files.get(path) for files in listed]
            # Equal by digest, so neither content is read.
            if len({None if file is None else file.digest for file in pair}) == 1:
                continue
            left -= sum(file.size for file in pair if file is not None)
            for file, files in zip(pair, found, strict=True):
                if file is not None and left >= 0:
                    read.append((files, file))
                elif file is not None:
                    # In place of content that is not read: not UTF-8, so that it counts as binary and as different.
                    files[path] = b"\xff" + file.digest.encode()
            left = max(left, -1)
        contents = await self._history.contents(file for _, file in read)
        for files, file in read:
            files[file.path] = contents.get((file.id, file.since), b"")
        return found

    async def restore_version(
        self,
        skill_id: UUID,
        revision: int,
        user_id: UserId | None,
        *,
        expected_revision: int | None = None,
        system: bool = False,
    ) -> Skill:
        """Give a skill the text and files of one of its revisions, as a new revision; who sees it stays the same.

        Returns:
            The skill, without the contents of its files.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
            SkillNotFoundError: If there is no such skill that this user may see, or it had no such revision.
            SkillPermissionError: If it is not this user's to change.
            SkillStaleError: If its revision is not the expected one.
            SkillConflictError: If the owner has another skill of the name that it had.
        """
        writer = await self._policy.writer(user_id, system=system)

        def prepare(version: Skill) -> Values:
            files = [FileContent.of(file.path, file.data) for file in version.files]
            # What was allowed then may not be now.
            self._policy.limits.check_files(sizes_of(files))
            return Values(Text.of(document_of(version)), files)

        async def attempt() -> Skill | None:
            skill, version = await self._writable_version(known_id(skill_id), writer, revision, expected_revision)
            values = await computed(version.size, lambda: prepare(version))
            return await self._change(skill, writer, "reverted", values)

        return await _prepared(attempt)

    @reads
    async def _writable_version(
        self, skill_id: UUID, writer: Viewer, revision: int, expected_revision: int | None
    ) -> tuple[Skill, Skill]:
        skill = await self._locked(skill_id, writer, "write", expected_revision)
        return skill, await self._version_of(skill, revision)

    async def list_changes(
        self,
        user_id: UserId | None = None,
        *,
        skill_id: UUID | None = None,
        since: int = 0,
        limit: int = 100,
        system: bool = False,
    ) -> list[SkillChange]:
        """Return who did what to which skill, oldest first: to the user's own skills, or to all for an operator.

        The log is append-only, and a lower revision never appears after a higher one.

        Args:
            user_id: Who is asking.
            skill_id: Only changes to this skill.
            since: Only changes after this revision.
            limit: How many at most.
            system: The operator's code asks.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
        """
        viewer = await self._policy.writer(user_id, system=system)
        owner = None if viewer.is_operator else viewer.user
        chosen = None if skill_id is None else known_id(skill_id)
        return await self._logged(chosen, owner, since, _bounded(limit))

    @reads_once
    async def _logged(self, skill_id: UUID | None, owner_id: str | None, since: int, limit: int) -> list[SkillChange]:
        return list(await self._history.changes(skill_id=skill_id, owner_id=owner_id, since=since, limit=limit))

    async def watch(
        self,
        user_id: UserId | None = None,
        *,
        since: int | None = None,
        interval: float = WATCH_SECONDS,
        system: bool = False,
    ) -> AsyncIterator[SkillChange]:
        """Yield changes as they happen, to the user's own skills and those they may see; for operators, to all.

        On PostgreSQL they arrive at once, on SQLite after at most `interval`. The service does nothing else while it
        watches, so give it its own session.

        Args:
            user_id: The user; `None` for nobody, who gets changes to public and system skills.
            since: Start after this revision; `None` starts now.
            interval: How often to poll, in seconds, if the database sends no notifications.
            system: The operator's code watches.
        """
        viewer = await self._policy.viewer(user_id, system=system)
        async with Notices(self._session, interval) as notices:
            last = await self._last_revision() if since is None else since
            while True:
                changes = await self._changes_since(last, viewer)
                for change, is_seen in changes:
                    last = change.revision
                    if is_seen:
                        yield change
                if not changes:
                    await notices.wait()
                    # Groups may have changed in the meantime.
                    viewer = await self._policy.viewer(user_id, system=system)

    @reads_once
    async def _last_revision(self) -> int:
        return await self._history.last_revision()

    @reads
    async def _changes_since(self, last: int, viewer: Viewer) -> list[tuple[SkillChange, bool]]:
        """Return the next changes, each with whether the viewer may know of it."""
        changes = await self._history.changes(since=last, limit=MAX_CHANGES)
        if viewer.is_operator:
            return [(change, True) for change in changes]
        own = {change.revision for change in changes if viewer.user is not None and change.owner_id == viewer.user}
        # Of a skill that became visible later, nothing is told that happened before: not even its former names.
        heard = {c.skill_id for c in changes if c.revision not in own and was_seen(c.audience, viewer)}
        seen = await self._listings.visible_ids(heard, viewer) if heard else set()
        return [(c, c.revision in own or (c.skill_id in seen and was_seen(c.audience, viewer))) for c in changes]

    async def record_usage(
        self, events: Iterable[Mapping[str, Any]], user_id: UserId | None = None, *, system: bool = False
    ) -> int:
        """Count skill events, such as `skill.loaded`, by day and trigger.

        An event names its skill by `skill_id`, or by `skill`, the name as `user_id` sees it. Events about skills that
        do not exist, or that `user_id` may not see, are left out; nobody (`None`) sees public and system skills. The
        operator's code (`system=True`) can count for any skill by id.

        Returns:
            How many events were counted.
        """
        viewer = await self._policy.viewer(user_id, system=system)
        given = [event for event in itertools.islice(events, MAX_EVENTS) if isinstance(event, Mapping)]
        return await self._count(given, viewer)

    @counts
    async def _count(self, events: list[Mapping[str, Any]], viewer: Viewer) -> int:
        named = {str(event.get("skill", "")) for event in events if as_id(event.get("skill_id")) is None}
        ids = {name: await self._skills.by_name(stored_key(storable(name[: _MAX_WORD * 8])), viewer) for name in named}
        today = now().date()
        totals: Counter[tuple[UUID, str, str]] = Counter()
        for event in events:
            skill_id = as_id(event.get("skill_id")) or ids.get(str(event.get("skill", "")))
            if skill_id is not None:
                totals[skill_id, _word(event.get("type")), _word(event.get("trigger"))] += 1
        seen_by = None if viewer.is_system else viewer
        known = await self._listings.existing({key[0] for key in totals}, seen_by) if totals else set()
        rows = [
            {"skill_id": key[0], "day": today, "type": key[1], "trigger": key[2], "count": count}
            # In the same order everywhere: two calls that add to the same rows in different orders would deadlock.
            for key, count in sorted(totals.items(), key=str)
            if key[0] in known
        ]
        await self._history.count_usage(rows)
        return sum(int(str(row["count"])) for row in rows)

    async def usage(
        self,
        skill_id: UUID,
        since: datetime | dt.date | None = None,
        user_id: UserId | None = None,
        *,
        system: bool = False,
    ) -> list[UsageCount]:
        """Return how often a skill was used since a day, by day, type of event and trigger.

        Raises:
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillPermissionError: If the user may read it but not write it.
        """
        viewer = await self._policy.viewer(user_id, system=system)
        return await self._used(known_id(skill_id), viewer, since.date() if isinstance(since, datetime) else since)

    @reads
    async def _used(self, skill_id: UUID, viewer: Viewer, since: dt.date | None) -> list[UsageCount]:
        skill = await self._with_history(skill_id, viewer)
        found = await self._history.usage(skill.id, since)
        return [UsageCount(row.day, row.type, row.trigger, row.count) for row in found]

    async def figures(
        self, skill_ids: Collection[UUID], since: dt.date, user_id: UserId | None = None
    ) -> dict[UUID, SkillFigures]:
        """Return what the skills of a listing cost and how often they were loaded since a day, with a few queries.

        Skills that the user may not see are left out.
        """
        viewer = await self._policy.viewer(user_id)
        return await self._figures(list(skill_ids), viewer, since) if skill_ids else {}

    @reads
    async def _figures(self, skill_ids: list[UUID], viewer: Viewer, since: dt.date) -> dict[UUID, SkillFigures]:
        skills = await self._listings.light(skill_ids, viewer, Filter(is_everything=viewer.is_operator))
        told = [skill.id for skill in skills if viewer.is_operator or has_right(skill, viewer, "write")]
        lengths = await self._listings.lengths([skill.id for skill in skills])
        loads: dict[UUID, Counter[dt.date]] = {skill_id: Counter() for skill_id in told}
        for row in await self._history.loads(told, since):
            loads[row.skill_id][row.day] += row.count
        return {
            skill.id: SkillFigures(about_tokens(*lengths[skill.id]), loads.get(skill.id))
            for skill in skills
            if skill.id in lengths
        }

    async def approval_of(self, skill_id: UUID, user_id: UserId | None = None) -> SkillApproval:
        """Return when a skill was last approved, whether or not it changed since, and whether the user may approve it.

        Raises:
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillPermissionError: If the user may read it but not write it.
        """
        viewer = await self._policy.viewer(user_id)
        return await self._approval_of(known_id(skill_id), viewer)

    @reads
    async def _approval_of(self, skill_id: UUID, viewer: Viewer) -> SkillApproval:
        skill = await self._with_history(skill_id, viewer)
        may_approve = viewer.is_operator and not await self._must_leave_approval(skill, viewer)
        return SkillApproval(await self._history.last_approval(skill.id), may_approve)

    async def _with_history(self, skill_id: UUID, viewer: Viewer) -> Skill:
        """Return a skill if the viewer may see its history: not every reader may see what was removed from it."""
        skill = await self._readable(skill_id, viewer, files=False)
        if not viewer.is_operator:
            check_right(skill, viewer, "write")
        return skill

    async def _text_of_version(self, skill: Skill, revision: int) -> tuple[SkillChange, Document]:
        """Return the change that brought a revision of a skill, and the text that the skill then had."""
        # Beyond that, databases raise instead of finding nothing.
        is_kept = skill.kept_since <= revision < 1 << 63
        change = await self._history.change(skill.id, revision) if is_kept else None
        text = document_of(skill)
        if change is not None and revision < skill.text_since:
            former = await self._history.text_at(skill.id, revision)
            change, text = (None, text) if former is None else (change, document_at(former))
        if change is None:
            raise SkillNotFoundError(
                f"The skill {skill.name!r} has no version {revision}, or that version has expired. List its versions."
            )
        return change, text

    async def _version_of(self, skill: Skill, revision: int, *, contents: bool = True) -> Skill:
        """Return a skill as it was at a revision, as a value that no session knows."""
        change, text = await self._text_of_version(skill, revision)
        files = [file.row() for file in await self._history.listed_at(skill.id, revision)]
        if contents:
            await self._history.fill(files)
        return Skill(
            id=skill.id,
            owner_id=skill.owner_id,
            is_public=skill.is_public,
            revision=revision,
            created_at=skill.created_at,
            updated_at=change.at,
            files=files,
            size=sum(file.size for file in files) + len(text.render()),
            **vars(text),
        )

    # -- Deliveries to sandboxes ---------------------------------------------------------------------------------------

    async def note_delivery(
        self, directory: str, skill_id: UUID, files: Iterable[bytes], user_id: UserId | None = None
    ) -> None:
        """Remember that the loader wrote a skill to a directory of a user's sandbox."""
        viewer = await self._policy.viewer(user_id)
        contents = list(itertools.islice(files, MAX_DELIVERED))
        size = sum(len(content) for content in contents)
        digests = await computed(size, lambda: [hashlib.sha256(content).hexdigest() for content in contents])
        await self._note(viewer.user or "", directory, skill_id, digests)

    @counts
    async def _note(self, user_key: str, directory: str, skill_id: UUID, digests: list[str]) -> None:
        await self._history.note_delivery(user_key, directory, skill_id, digests)

    async def deliveries(
        self, directories: Collection[str], user_id: UserId | None = None
    ) -> dict[str, frozenset[str]]:
        """Return the directories of a user's sandbox that the loader wrote, with the digests of their files."""
        viewer = await self._policy.viewer(user_id)
        return await self._delivered(viewer.user or "", directories) if directories else {}

    @reads
    async def _delivered(self, user_key: str, directories: Collection[str]) -> dict[str, frozenset[str]]:
        return await self._history.deliveries(user_key, directories)

    async def forget_delivery(self, directory: str, user_id: UserId | None = None) -> None:
        """Forget that the loader wrote to a directory that is gone."""
        viewer = await self._policy.viewer(user_id)
        await self._forget_delivery(viewer.user or "", directory)

    @counts
    async def _forget_delivery(self, user_key: str, directory: str) -> None:
        await self._history.forget_delivery(user_key, directory)

    # -- Owners and operators ------------------------------------------------------------------------------------------

    async def hand_over(
        self,
        skill_id: UUID,
        new_owner_id: UserId,
        user_id: UserId | None,
        *,
        expected_revision: int | None = None,
        system: bool = False,
    ) -> Skill:
        """Make another user the owner of a skill, as its owner or as an operator.

        Raises:
            SkillAuthenticationError: If nobody is signed in, or there is no new owner.
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillPermissionError: If this user may not hand it over.
            SkillStaleError: If its revision is not the expected one.
            SkillConflictError: If the new owner has a skill with that name.
            SkillQuotaError: If the new owner would be over the quota.
        """
        writer = await self._policy.writer(user_id, system=system)
        return await self._give(known_id(skill_id), signed_in(new_owner_id), writer, expected_revision)

    @writes
    async def _give(self, skill_id: UUID, owner: str, writer: Viewer, expected_revision: int | None) -> Skill:
        skill = await self._locked(skill_id, writer, "remove", expected_revision)
        if skill.owner_id != owner:
            await self._changes.check_name_free(skill.name, owner)
            await self._changes.check_quota(owner, skill.size, tells=writer.is_operator)
            # Two entries, because each owner's log shows what happened to their skills.
            await self._changes.advance(skill, writer, "handed-over")
            skill.owner_id = owner
            await self._changes.advance(skill, writer, "received")
        return await self._fresh(skill)

    async def hide_skill(
        self,
        skill_id: UUID,
        user_id: UserId | None = None,
        *,
        hidden: bool = True,
        expected_revision: int | None = None,
        system: bool = False,
    ) -> Skill:
        """Hide a skill from everybody but its owner, or show it again. For operators.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillPermissionError: If the user is not an operator.
            SkillStaleError: If its revision is not the expected one.
        """
        writer = await self._policy.writer(user_id, system=system)
        return await self._hide(known_id(skill_id), writer, expected_revision, hidden=hidden)

    @writes
    async def _hide(self, skill_id: UUID, writer: Viewer, expected_revision: int | None, *, hidden: bool) -> Skill:
        skill = await self._locked(skill_id, writer, "operate", expected_revision)
        if skill.is_hidden != hidden:
            skill.is_hidden = hidden
            await self._changes.advance(skill, writer, "hidden" if hidden else "shown")
            self._changes.reveal(skill)
        return await self._fresh(skill)

    async def approve_skill(
        self, skill_id: UUID, revision: int, user_id: UserId | None = None, *, system: bool = False
    ) -> Skill:
        """Approve a skill's text and files at `revision`. For operators; a later change needs a new approval.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillPermissionError: If the user is not an operator; or, with `"by-others"`, owns the skill or made its
                last change.
            SkillStaleError: If the skill is no longer at that revision.
        """
        writer = await self._policy.writer(user_id, system=system)
        return await self._approve(known_id(skill_id), writer, revision)

    @writes
    async def _approve(self, skill_id: UUID, writer: Viewer, revision: int) -> Skill:
        skill = await self._locked(skill_id, writer, "operate", revision)
        if await self._must_leave_approval(skill, writer):
            raise SkillPermissionError(
                f"The skill {quoted(skill.name)}, or its last change, is your own. Another operator has to approve it."
            )
        if not skill.is_approved:
            skill.is_approved = True
            await self._changes.advance(skill, writer, APPROVED)
            self._changes.reveal(skill)
        return await self._fresh(skill)

    async def _must_leave_approval(self, skill: Skill, writer: Viewer) -> bool:
        """Whether others have to approve, because the writer owns the skill or was the last to change it."""
        if self._policy.approval != "by-others" or writer.is_system:
            return False
        if owns(skill, writer):
            return True
        change = await self._history.change(skill.id, await self._history.content_since(skill))
        return change is not None and change.user_id == writer.user

    async def restore_skill(
        self, skill_id: UUID, user_id: UserId | None, *, expected_revision: int | None = None, system: bool = False
    ) -> Skill:
        """Restore a deleted skill, within the retention period. Its name counts as newly taken.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
            SkillNotFoundError: If this user has no such deleted skill, or it was deleted too long ago.
            SkillPermissionError: If an operator removed it, and this user is not one.
            SkillConflictError: If the owner has another skill with that name by now.
        """
        writer = await self._policy.writer(user_id, system=system)
        return await self._restore(known_id(skill_id), writer, expected_revision)

    @writes
    async def _restore(self, skill_id: UUID, writer: Viewer, expected_revision: int | None) -> Skill:
        skill = await self._skills.get(skill_id, writer, files=False, deleted=True)
        is_theirs = skill is not None and (owns(skill, writer) or writer.is_operator)
        oldest = now() - self._policy.retained
        if skill is None or not is_theirs or skill.deleted_at is None or skill.deleted_at < oldest:
            raise no_skill(str(skill_id))
        check_right(skill, writer, "remove")
        check_revision(skill, expected_revision)
        deleted = await self._history.change(skill.id, skill.revision)
        # An owner must not be able to restore what an operator took down.
        if not writer.is_operator and deleted is not None and deleted.user_id != skill.owner_id:
            raise SkillPermissionError(f"An operator removed the skill {quoted(skill.name)}. Ask them to restore it.")
        await self._changes.check_name_free(skill.name, skill.owner_id)
        await self._changes.advance(skill, writer, "restored")
        skill.deleted_at = None
        # Others may have taken the name in the meantime; with its old age, the skill would take it from them.
        self._changes.forget_age(skill)
        self._changes.reveal(skill)
        return await self._fresh(skill)

    async def check_operator(self, user_id: UserId | None) -> None:
        """Check that a user is an operator.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
            SkillPermissionError: If the user is not one.
        """
        writer = await self._policy.writer(user_id)
        if not writer.is_operator:
            raise SkillPermissionError("Only operators may do this. Ask one of them.")

    async def warm_up(self) -> None:
        """Rehearse writing a skill, and roll it back, so that the first writers of this process do not wait longer.

        The first time, SQLAlchemy compiles each statement and the database plans it. A writer would hold the store's
        lock meanwhile, for every process. Nothing stays in the database, and nobody hears of it.
        """
        draft = SkillCreate(name=f"rehearsal-{uuid4()}", description="Rolled back.", content="# Rehearsal")
        files = [SkillFileCreate(path="rehearsal.md", content="Rolled back.")]

        async def rehearsal() -> None:
            made = await self.create_skill(draft, None, system=True)
            saved = await self.save_skill(made.id, SkillUpdate(content="# Again"), files, None, system=True)
            await self.diff_versions(made.id, made.revision, saved.revision, system=True)
            await self.save_file(made.id, SkillFileCreate(path="second.md", content="Rolled back."), None, system=True)
            await self.get_skill(made.id)
            await self.delete_skill(made.id, None, system=True)

        # Not a part of the rehearsal, which holds the lock: searching a large store takes a while.
        await self.list_skills(q="rehearsal", limit=1)
        await self._transactions.rehearse(rehearsal)

    async def purge(
        self, *, retention: float | None = None, versions: float | None = None, user_id: UserId | None = None
    ) -> int:
        """Permanently remove what was deleted before the retention period. For the operator's code, and for operators.

        It works in small batches, each in its own transaction, so that other writers get their turn in between.

        Args:
            retention: Days, instead of the service's own.
            versions: Also remove texts and files that were replaced more than this many days ago.
            user_id: The operator who asks, for the log; `None` for the operator's code.

        Returns:
            How many skills were removed.

        Raises:
            SkillPermissionError: If the user is not an operator.
        """
        if user_id is not None:
            await self.check_operator(user_id)
        writer = await self._policy.viewer(user_id, system=user_id is None)
        moment = now() - (self._policy.retained if retention is None else days_of(retention))
        forgotten = None if versions is None else now() - days_of(versions)
        purged = 0
        while found := await _unhurried(self._purge(writer, moment)):
            purged += found
        while forgotten is not None and (rows := await self._forgettable(forgotten)):
            for start in range(0, len(rows), PURGE_BATCH):
                await _unhurried(self._forget(rows[start : start + PURGE_BATCH]))
        return purged

    @writes
    async def _purge(self, writer: Viewer, moment: datetime) -> int:
        skills = await self._skills.deleted_before(moment, PURGE_BATCH)
        if skills:
            await self._changes.log_purge(skills, writer)
            await self._skills.purge(skills)
        return len(skills)

    @reads
    async def _forgettable(self, moment: datetime) -> list[Replaced]:
        return await self._history.forgettable(moment, PURGE_LOOK)

    @writes
    async def _forget(self, rows: Sequence[Replaced]) -> int:
        # Another purge may have been faster; what it deleted is not there to be deleted again.
        await self._history.forget(rows)
        return len(rows)


async def _unhurried(batch: Awaitable[int]) -> int:
    """Return what a batch of a purge removed; if there may be more, let other writers have the store for a while."""
    begun = time.monotonic()
    found = await batch
    # Nobody waits for a purge, and each of its batches makes everybody wait.
    if found == PURGE_BATCH:
        await asyncio.sleep(PURGE_PAUSE * (time.monotonic() - begun))
    return found


@asynccontextmanager
async def _comparing() -> AsyncIterator[None]:
    """Wait for a turn to compare. What is compared is read in it too: those who wait hold no contents in memory.

    Raises:
        SkillStoreUnavailableError: If it does not come in time.
    """
    async with AsyncExitStack() as held:
        try:
            await held.enter_async_context(_comparisons.turn(COMPARISON_SECONDS))
        except TimeoutError:
            raise SkillStoreUnavailableError("too many comparisons are asked for at once; try again later") from None
        begun = time.monotonic()
        try:
            yield
        finally:
            # Whoever asks for large ones again and again gets half of the time, with what it takes to read them.
            _comparisons.rest(min(time.monotonic() - begun - SHORT_SECONDS, MAX_REST_SECONDS))


def _expired(file: SkillFile) -> SkillNotFoundError:
    return SkillNotFoundError(f"The file {quoted(file.path)} has expired. Get the skill again.")


def document_at(former: FormerText) -> Document:
    """Return a `SKILL.md` that a skill had."""
    tags = split_tags(former.tags)
    return Document(former.name, former.description, former.content, tags, former.frontmatter, former.encoding)


def about_tokens(characters: int, size: int) -> int:
    """Return about how many tokens a text costs when loaded, from its characters and its bytes in UTF-8.

    Chinese, Japanese and Korean characters take three bytes and one token each.
    """
    wide = (size - characters) // 2
    narrow = characters - wide + MESSAGE_CHARACTERS
    return wide + -(-narrow // CHARACTERS_PER_TOKEN) + MESSAGE_TOKENS


def _bounded(limit: int) -> int:
    return max(1, min(limit, MAX_CHANGES))


def _word(given: object) -> str:
    return storable(str(given or "unknown"))[:_MAX_WORD]


async def _prepared(attempt: Callable[[], Awaitable[ResultT | None]]) -> ResultT:
    """Return the result of preparing and writing, tried again as long as others change the skill in between.

    Raises:
        SkillStaleError: If that never ends.
    """
    for _ in range(MAX_PREPARATIONS):
        result = await attempt()
        if result is not None:
            return result
    raise SkillStaleError("Others keep changing the skill. Try again in a moment.", 0)


def exported(skill: Skill) -> dict[str, bytes]:
    """Return a skill as files by relative path, its `SKILL.md` first."""
    files = {file.path: file.data for file in sorted(skill.files, key=lambda file: file.path)}
    return {SKILL_FILE: document_of(skill).render(), **files}


def file_contents(files: GivenFiles) -> list[FileContent]:
    """Return files as they will be stored.

    Raises:
        SkillFormatError: If a text cannot be encoded.
    """
    pairs = files.items() if isinstance(files, Mapping) else ((file.path, file.content) for file in files)
    return [FileContent.of(path, _bytes(path, content)) for path, content in pairs]


def sizes_of(files: Sequence[FileContent]) -> dict[str, int]:
    """Return files by path, each with its size.

    Raises:
        SkillPathError: If two have the same path.
    """
    sizes = {file.path: file.size for file in files}
    if len(sizes) < len(files):
        raise SkillPathError("Two files have the same path. Give each its own.")
    return sizes


def _bytes(path: str, content: bytes | str) -> bytes:
    try:
        return content.encode() if isinstance(content, str) else content
    except UnicodeEncodeError:
        raise SkillFormatError(
            f"The content of {quoted(storable(path))} holds broken Unicode characters. Send it as base64."
        ) from None


def _text_of(content: bytes | str) -> SkillCreate:
    """Return what a `SKILL.md` says, and nothing about who sees the skill."""
    read = SkillCreate.from_skill_md(content)
    return SkillCreate.model_construct(
        # A `SKILL.md` says nothing about visibility, so these stay unset and keep their values.
        read.model_fields_set - {"is_public", "shared_with", "files"},
        **{name: getattr(read, name) for name in SkillCreate.model_fields},
    )


def _is_given(data: SkillCreate | SkillUpdate, field: str) -> bool:
    """Whether whoever made `data` said anything about a field."""
    return field in data.model_fields_set and getattr(data, field) is not None


def _size_of(data: GivenSkill, files: GivenFiles | None = None) -> int:
    """Return about how much there is to read, to decide whether to use a thread."""
    contents = files.values() if isinstance(files, Mapping) else (file.content for file in files or ())
    text = data if isinstance(data, bytes | str) else f"{data.content or ''}{data.frontmatter or ''}"
    return len(text) + sum(len(content) for content in contents)
