"""What the operations of the service share: one session, one policy, and how a skill is looked up."""

import datetime as dt
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from deepskills._errors import SkillFormatError, SkillNotFoundError, SkillPathError
from deepskills._skillmd.names import stored_key
from deepskills._skillmd.problems import quoted
from deepskills._types import SKILL_FILE
from deepskills.store.changes import Changes
from deepskills.store.db.listings import ListingRepository, hide_groups
from deepskills.store.db.models import FileContent, Skill, SkillChange, document_of
from deepskills.store.db.repositories import HistoryRepository, SkillFileRepository, SkillRepository
from deepskills.store.db.transactions import Transactions, reads, writes
from deepskills.store.document import Document
from deepskills.store.rules import (
    Need,
    Policy,
    Viewer,
    check_revision,
    check_right,
    knows_change,
    no_skill,
    owns,
    storable,
)
from deepskills.store.schemas import SkillCreate, SkillFileCreate, SkillUpdate

logger = logging.getLogger("deepskills")

MAX_SEARCH_LENGTH = 4_000
"""Longest query or name that is looked at; the rest is ignored."""

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
class ApprovalRecord:
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


class Operations:
    """What the operations share: one session, one policy, and how a skill is looked up."""

    def __init__(
        self,
        session: AsyncSession | None = None,
        policy: Policy | None = None,
        *,
        db: AsyncSession | None = None,
        **options: Any,  # noqa: ANN401 - the fields of Policy
    ) -> None:
        used = session if session is not None else db
        if used is None:
            raise TypeError("The service needs a session.")
        self._policy = Policy.of(policy, options)
        self._session = used
        self._transactions = Transactions(used)
        self._skills = SkillRepository(used)
        self._files = SkillFileRepository(used)
        self._listings = ListingRepository(used)
        self._history = HistoryRepository(used)
        self._changes = Changes(used, self._policy)

    @reads
    async def _show(self, skill_id: UUID, viewer: Viewer, *, contents: bool) -> Skill:
        """Return a skill as a viewer may see it: not every reader may know which groups it is shared with."""
        return hide_groups(await self._readable(skill_id, viewer, contents=contents), viewer)

    @reads
    async def _readable(self, skill_id: UUID, viewer: Viewer, *, contents: bool = False, files: bool = True) -> Skill:
        skill = await self._skills.get(skill_id, viewer, contents=contents, files=files)
        if skill is None:
            raise no_skill(str(skill_id))
        return skill

    async def _lock(
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

    async def _with_history(self, skill_id: UUID, viewer: Viewer) -> Skill:
        """Return a skill if the viewer may see its history: not every reader may see what was removed from it."""
        skill = await self._readable(skill_id, viewer, files=False)
        if not viewer.is_operator:
            check_right(skill, viewer, "write")
        return skill

    async def _text_of_version(self, skill: Skill, revision: int, viewer: Viewer) -> tuple[SkillChange, Document]:
        """Return the change that brought a revision of a skill, and the text that the skill then had."""
        change = await self._history.change(revision)
        text = await self._text_at(skill, revision)
        is_own = change is not None and change.skill_id == skill.id
        if change is None or text is None or not is_own or not knows_change(skill, change.audience, viewer):
            raise SkillNotFoundError(
                f"The skill {skill.name!r} has no version {revision}, or that version has expired. List its versions."
            )
        return change, text

    async def _text_at(self, skill: Skill, revision: int) -> Document | None:
        """Return the text that a skill had at a revision; `None` if that version has expired."""
        if revision < skill.kept_since or revision >= skill.text_since:
            return None if revision < skill.kept_since else document_of(skill)
        former = await self._history.text_at(skill.id, revision)
        if former is None:
            return None
        return Document(**{name: getattr(former, name) for name in Document.__dataclass_fields__})

    async def _version_of(self, skill: Skill, revision: int, viewer: Viewer, *, contents: bool = True) -> Skill:
        """Return a skill as it was at a revision, as a value that no session knows."""
        change, text = await self._text_of_version(skill, revision, viewer)
        files = await self._history.list_at(skill.id, revision)
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

    async def _note_read(self, skill_id: UUID, viewer: Viewer) -> None:
        """Log that an operator read a skill that only operators and the owner's people may see."""
        if not viewer.is_operator or viewer.is_system:
            return
        async with self._transactions.snapshot():
            is_private = not await self._listings.visible_ids([skill_id], viewer)
        if is_private:
            await self._log_read(skill_id, viewer)

    @writes
    async def _log_read(self, skill_id: UUID, viewer: Viewer) -> None:
        skill = await self._skills.get(skill_id, viewer, files=False)
        if skill is not None:
            await self._changes.log_read(skill, viewer)

    async def _must_leave_approval(self, skill: Skill, writer: Viewer) -> bool:
        """Whether others have to approve, because the writer owns the skill or was the last to change it."""
        if self._policy.approval != "by-others" or writer.is_system:
            return False
        if owns(skill, writer):
            return True
        change = await self._history.content_change(skill.id, skill.revision)
        return change is not None and change.user_id == writer.user


def first_of_each_name(skills: Iterable[Skill]) -> list[Skill]:
    """Return those skills of a listing that their names stand for: of those with one name, the first."""
    found: dict[str, Skill] = {}
    for skill in skills:
        found.setdefault(stored_key(skill.name), skill)
    return list(found.values())


def export_files(skill: Skill) -> dict[str, bytes]:
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
