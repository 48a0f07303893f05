"""What every call of the service begins with: who asks, what they may do, and one transaction."""

import inspect
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeAlias
from uuid import UUID, uuid4

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from deepskills._skillmd.problems import quoted
from deepskills.store._base import now
from deepskills.store._checks import (
    Need,
    UserId,
    check_revision,
    check_right,
    document_of,
    is_same,
    no_skill,
    signed_in,
    taken,
)
from deepskills.store._document import Document
from deepskills.store._errors import SkillConflictError, SkillPermissionError
from deepskills.store._history import FormerText, SkillChange
from deepskills.store._listings import ListingRepository
from deepskills.store._models import FileContent, KeptFile, Skill, SkillFile, with_tags_and_groups
from deepskills.store._records import STAMP_BITS, HistoryRepository
from deepskills.store._repositories import SkillFileRepository, SkillRepository
from deepskills.store._rules import Right, StoreLimits, check_text, group_keys, name_key, owner_key
from deepskills.store._transactions import ResultT, Transactions, Work
from deepskills.store._visibility import Viewer
from deepskills.store._words import indexed_words

GroupsOf: TypeAlias = Callable[[str], Iterable[str] | Awaitable[Iterable[str]]]
"""The application's function from a user to the groups that the user is in, sync or async."""

IsOperator: TypeAlias = Callable[[str], bool | Awaitable[bool]]
"""The application's function that says whether a user is an operator, sync or async."""

RETENTION_DAYS = 30
"""How long a deleted skill can be restored."""


@dataclass(frozen=True)
class Values:
    """What a skill is to have; `None` leaves a part as it is."""

    document: Document | None = None
    files: Sequence[FileContent] | None = None
    """All files that it is to have."""

    put: FileContent | None = None
    """One file to add, or to take the place of the one at its path."""

    drop: str | None = None
    """The path of one file that is to go."""

    is_public: bool | None = None
    shared_with: dict[str, Right] | None = None


class ServiceCore:
    """Holds the session and the rules that all calls share; `SkillService` says what each argument is."""

    def __init__(
        self,
        session: AsyncSession,
        *,
        limits: StoreLimits | None = None,
        groups_of: GroupsOf | None = None,
        is_operator: IsOperator | None = None,
        approval: bool = False,
        retention: float = RETENTION_DAYS,
    ) -> None:
        self._session = session
        self._limits = limits or StoreLimits()
        self._groups_of = groups_of
        self._is_operator = is_operator
        self._approval = approval
        self._retention = timedelta(days=retention)
        self._transactions = Transactions(session)
        self._skills = SkillRepository(session)
        self._files = SkillFileRepository(session)
        self._listings = ListingRepository(session)
        self._history = HistoryRepository(session)

    async def _viewer(self, user_id: UserId | None, *, system: bool = False) -> Viewer:
        """Return who asks, with what the application's functions say about them."""
        user = owner_key(user_id)
        if system:
            return Viewer(is_operator=True, is_system=True, needs_approval=self._approval)
        viewer = Viewer(user, needs_approval=self._approval)
        if user is not None and self._groups_of is not None:
            viewer = replace(viewer, groups=group_keys(await _settled(self._groups_of(user))))
        if user is not None and self._is_operator is not None:
            viewer = replace(viewer, is_operator=await _settled(self._is_operator(user)) is True)
        return viewer

    async def _writer(self, user_id: UserId | None, *, system: bool) -> Viewer:
        if not system:
            signed_in(user_id)
        return await self._viewer(user_id, system=system)

    async def _write(self, work: Work[ResultT]) -> ResultT:
        """Return what `work` writes, in one transaction.

        Raises:
            SkillConflictError: If somebody who wrote beside the service was first.
        """
        try:
            return await self._transactions.write(work)
        except IntegrityError:
            raise SkillConflictError("The name or a path is taken since a moment ago. Choose another.") from None

    async def _readable(self, skill_id: UUID, viewer: Viewer, *, contents: bool = False, files: bool = True) -> Skill:
        skill = await self._skills.get(skill_id, viewer, contents=contents, files=files)
        if skill is None:
            raise no_skill(str(skill_id))
        return skill

    async def _locked(self, skill_id: UUID, writer: Viewer, need: Need, expected_revision: int | None) -> Skill:
        """Return a skill that the writer may change, with its text and without its files."""
        skill = await self._readable(skill_id, writer, files=False)
        check_right(skill, writer, need)
        check_revision(skill, expected_revision)
        return skill

    async def _change(
        self, skill: Skill, writer: Viewer, action: str, values: Values, kept: dict[str, KeptFile] | None = None
    ) -> bool:
        """Give a skill, and the files that are kept with it, new values; what is the same already is not a change.

        Returns:
            Whether anything changed.
        """
        before = document_of(skill)
        document = values.document or before
        if kept is None:
            kept = await self._files.listed(skill.id)
        stale, fresh = _differences(kept, values)
        gone = {file.path for file in stale}
        is_public = skill.is_public if values.is_public is None else values.is_public
        shared_with = skill.shared_with if values.shared_with is None else values.shared_with
        has_new_contents = document != before or bool(stale or fresh)
        has_new_readers = (is_public, shared_with) != (skill.is_public, skill.shared_with)
        if not has_new_contents and not has_new_readers:
            return False
        if has_new_readers:
            check_right(skill, writer, "own")
            self._check_groups(shared_with.keys() - skill.shared_with.keys(), writer)
        if name_key(document.name) != skill.name_key:
            await self._check_name_free(document.name, skill.owner_id, other_than=skill.id)
        kept_size = sum(file.size for path, file in kept.items() if path not in gone)
        size = len(document.render()) + kept_size + sum(file.size for file in fresh)
        if size > skill.size:
            await self._check_quota(skill.owner_id, size, other_than=skill.id)
        revision = await self._advance(skill, writer, action, name=document.name)
        if document != before:
            await self._keep_text(skill, before, revision)
        self._take(skill, document, revision, is_public=is_public, shared_with=shared_with)
        skill.size = size
        skill.is_approved = skill.is_approved and not has_new_contents
        await self._replace_files(skill, stale, fresh, kept, revision)
        await self._session.flush()
        await self._skills.index(skill)
        return True

    async def _advance(self, skill: Skill, writer: Viewer, action: str, *, name: str | None = None) -> int:
        """Raise a skill's revision and log why; its time never runs backwards, whatever the clock does."""
        revision = await self._history.next_revision()
        skill.revision = revision
        skill.stamp = secrets.randbits(STAMP_BITS)
        skill.updated_at = max(now(), skill.updated_at + timedelta(microseconds=1))
        change = SkillChange(
            revision=revision,
            skill_id=skill.id,
            owner_id=skill.owner_id,
            name=name or skill.name,
            action=action,
            user_id=writer.user,
            at=skill.updated_at,
        )
        await self._history.add(change)
        return revision

    async def _keep_text(self, skill: Skill, before: Document, revision: int) -> None:
        former = FormerText(
            skill_id=skill.id,
            since=skill.text_since,
            until=revision,
            name=before.name,
            description=before.description,
            content=before.content,
            frontmatter=before.frontmatter,
            encoding=before.encoding,
            tags=",".join(before.tags),
        )
        await self._history.add(former)
        skill.text_since = revision

    def _take(
        self, skill: Skill, document: Document, revision: int, *, is_public: bool, shared_with: dict[str, Right]
    ) -> None:
        """Set a skill's values. Who has had a name longest is counted from when others could see it."""
        is_renamed = name_key(document.name) != skill.name_key
        if is_renamed or (is_public and not skill.is_public):
            skill.name_since = revision
        skill.name = document.name
        skill.description = document.description
        skill.content = document.content
        skill.frontmatter = document.frontmatter
        skill.encoding = document.encoding
        skill.is_public = is_public
        with_tags_and_groups(skill, document.tags, shared_with, revision)
        for share in skill.share_rows if is_renamed else ():
            share.since = revision
        skill.words = indexed_words(document.name, document.description, document.tags)

    async def _replace_files(
        self, skill: Skill, stale: list[KeptFile], fresh: list[FileContent], kept: dict[str, KeptFile], revision: int
    ) -> None:
        """Write new files; one that takes the place of another keeps its id."""
        ids = {path: file.id for path, file in kept.items()}
        await self._files.retire(stale, revision)
        rows = [SkillFile(**vars(file), skill_id=skill.id, since=revision) for file in fresh]
        for row in rows:
            row.id = ids.get(row.path) or uuid4()
        await self._files.add(rows)

    async def _fresh(self, skill: Skill, *, contents: bool = False) -> Skill:
        """Return a skill as the database has it after changes."""
        await self._session.flush()
        self._session.expunge_all()
        everything = Viewer(is_operator=True)
        return await self._readable(skill.id, everything, contents=contents)

    async def _check_name_free(self, name: str, owner_id: str | None, *, other_than: UUID | None = None) -> None:
        check_text("name", name)
        if await self._skills.is_taken(name_key(name), owner_id, other_than=other_than):
            raise taken(name)

    def _check_groups(self, groups: Collection[str], writer: Viewer) -> None:
        """Check that a writer may share skills with groups."""
        strange = sorted(set(groups) - writer.groups)
        if strange and self._limits.own_groups_only and not writer.is_operator:
            raise SkillPermissionError(f"You are not in the group {quoted(strange[0])}. Share with groups of your own.")

    async def _check_quota(self, owner_id: str | None, size: int, *, other_than: UUID | None = None) -> None:
        """Check what an owner would keep with a skill of that size."""
        limits = self._limits
        if owner_id is None or (limits.owner_skills is None and limits.owner_bytes is None):
            return
        skills, total = await self._skills.kept_by(owner_id, other_than=other_than)
        limits.check_owner(skills=skills + 1, size=total + size)


def _differences(kept: Mapping[str, KeptFile], values: Values) -> tuple[list[KeptFile], list[FileContent]]:
    """Return which of the kept files go or change, and which are written."""
    if values.files is not None:
        given = {file.path: file for file in values.files}
        stale = [file for path, file in kept.items() if not is_same(file, given.get(path))]
    else:
        given = {} if values.put is None else {values.put.path: values.put}
        touched = [path for path in (*given, values.drop or "") if path in kept]
        stale = [kept[path] for path in touched if not is_same(kept[path], given.get(path))]
    return stale, [file for path, file in given.items() if not is_same(kept.get(path), file)]


async def _settled(value: object) -> object:
    return await value if inspect.isawaitable(value) else value
