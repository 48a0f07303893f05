"""Writes changes to skills: the new values, the former ones, and the log, in the one order that keeps them consistent.

Every change takes the next revision of the store, keeps the text and files that it replaces under the revisions that
had them, and logs who did what. Rules that need the rest of the store (is the name free, does the owner's quota allow
it) are checked here too, inside the writer's turn, because otherwise another writer could break them in between.

All of it runs in a transaction of `SkillService`, which holds the store's one lock. Whatever takes time (reading and
writing Markdown, hashing, splitting words) is done before and comes here as `Text` and `FileContent`.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy.ext.asyncio import AsyncSession

from deepskills._catalog.search import beginning_of
from deepskills._skillmd.names import stored_key
from deepskills.store.db.models import (
    FileContent,
    FormerText,
    KeptFile,
    Skill,
    SkillChange,
    SkillFile,
    document_of,
    join_tags,
    now,
    with_tags_and_groups,
)
from deepskills.store.db.repositories import (
    READ,
    STAMP_BITS,
    HistoryRepository,
    SkillFileRepository,
    SkillRepository,
    set_listed_files,
)
from deepskills.store.db.search import index_words
from deepskills.store.document import Document
from deepskills.store.rules import (
    Policy,
    Right,
    Viewer,
    check_groups,
    check_rename,
    check_right,
    check_still_in_groups,
    check_text,
    owns,
    taken,
)

NEVER_SEEN = 1 << 62
"""The age of a name that nobody else could see yet: higher than every revision, so that it never comes first."""


@dataclass(frozen=True)
class Text:
    """A `SKILL.md` and what the store derives from it, computed before the transaction begins."""

    document: Document
    size: int
    words: str
    requires: tuple[str, ...] = ()
    """The names of the skills that it builds on."""

    beginning: str = ""
    """The part of the instructions that the ranker reads."""

    @classmethod
    def of(cls, document: Document) -> "Text":
        """Compute what the store derives from a document."""
        words = index_words(document.name, document.description, document.tags, document.content)
        beginning = beginning_of(document.content).decode("utf-8", "replace")
        return cls(document, len(document.render()), words, document.requires, beginning)


@dataclass(frozen=True)
class Values:
    """New values of a skill; `None` leaves a part as it is."""

    text: Text | None = None
    files: Sequence[FileContent] | None = None
    """All its files, which replace the ones it has."""

    put: FileContent | None = None
    """One file to add, or to replace the one at its path."""

    drop: str | None = None
    """The path of one file to remove."""

    is_public: bool | None = None
    shared_with: dict[str, Right] | None = None


class Changes:
    """Writes changes inside a transaction of the service."""

    def __init__(self, session: AsyncSession, policy: Policy) -> None:
        self._session = session
        self._policy = policy
        self._skills = SkillRepository(session)
        self._files = SkillFileRepository(session)
        self._history = HistoryRepository(session)

    async def create(self, writer: Viewer, values: Values) -> Skill:
        """Write a new skill."""
        text, files = values.text, values.files or ()
        if text is None:
            raise AssertionError("a new skill has a text")
        size = text.size + sum(file.size for file in files)
        await self.check_quota(writer.user, size)
        skill = Skill(id=uuid4(), owner_id=writer.user, is_public=values.is_public, size=size, **vars(text.document))
        skill.updated_at = now()
        skill.words, skill.beginning = text.words, text.beginning
        revision = await self.advance(skill, writer, "created", shared_with=values.shared_with or {})
        skill.created_at = skill.updated_at
        # The row number of SQLite's full-text table; revisions are unique, so they serve.
        skill.number = skill.text_since = revision
        skill.name_since = NEVER_SEEN
        skill.files = [SkillFile(id=uuid4(), **vars(file), since=revision) for file in files]
        with_tags_and_groups(skill, text.document.tags, values.shared_with or {}, NEVER_SEEN)
        self.reveal(skill)
        await self._skills.add(skill)
        await self._skills.set_requires(skill.id, text.requires, is_new=True)
        return skill

    async def apply(self, skill: Skill, writer: Viewer, action: str, values: Values) -> None:
        """Give a skill, read with the list of its files, new values; if it has them all already, nothing changes.

        The skill is then as the database has it, with the list of its files.
        """
        before = document_of(skill)
        document = before if values.text is None else values.text.document
        kept = {file.path: keep_file(file) for file in skill.files}
        stale, fresh = _differences(kept, values)
        is_public = skill.is_public if values.is_public is None else values.is_public
        shared_with = skill.shared_with if values.shared_with is None else values.shared_with
        has_new_text = document != before
        has_new_contents = has_new_text or bool(stale or fresh)
        has_new_readers = (is_public, shared_with) != (skill.is_public, skill.shared_with)
        # If there is nothing to do, leave no trace: no revision, no time, no entry in the log.
        if not has_new_contents and not has_new_readers:
            return
        if has_new_contents:
            check_still_in_groups(skill, shared_with, writer, self._policy.limits)
        if has_new_readers:
            # Group members may write text, but only the owner decides who reads the skill.
            check_right(skill, writer, "own")
            check_groups(shared_with.keys() - skill.shared_with.keys(), writer, self._policy.limits)
        # Before the lookup: the answer must not reveal which names the owner has.
        check_rename(skill, writer, document.name)
        if stored_key(document.name) != skill.name_key:
            await self.check_name_free(document.name, skill.owner_id, other_than=skill.id)
        files_before = sum(file.size for file in kept.values())
        files_after = files_before - sum(file.size for file in stale) + sum(file.size for file in fresh)
        # From the row, because the text itself was not rendered for this change.
        text_size = max(0, skill.size - files_before) if values.text is None else values.text.size
        size = text_size + files_after
        # Shrinking is always allowed, even for an owner who is over a limit that was lowered since.
        if size > skill.size:
            await self.check_quota(skill.owner_id, size, other_than=skill.id, tells=owns(skill, writer))
        skill.is_public = is_public
        # An operator approved the old content; new text or files need a new approval.
        skill.is_approved = skill.is_approved and not has_new_contents
        revision = await self.advance(skill, writer, action, name=document.name, shared_with=shared_with)
        if has_new_text:
            await self._keep_text(skill, before, revision)
        self._take(skill, document, shared_with=shared_with)
        if values.text is not None:
            skill.words, skill.beginning = values.text.words, values.text.beginning
        skill.size = size
        self.reveal(skill)
        await self._replace_files(skill, stale, fresh, kept, revision)
        # The full-text table is written by hand, so the row must exist first.
        await self._session.flush()
        if has_new_text:
            await self._skills.index(skill)
        # Rows are there only if the text before had some; most skills require nothing, and cost no statement.
        may_require = before.may_require or document.may_require
        if has_new_text and may_require and values.text is not None:
            await self._skills.set_requires(skill.id, values.text.requires)
        await self._trim_history(skill.owner_id)

    async def _trim_history(self, owner_id: str | None) -> None:
        """Remove the oldest former versions of an owner's skills that are too many."""
        most = self._policy.limits.history_bytes
        if most is not None and owner_id is not None:
            beyond = await self._history.oldest_beyond(owner_id, most)
            if beyond:
                await self._history.forget(beyond)

    async def log_read(self, skill: Skill, reader: Viewer) -> None:
        """Log that an operator read somebody's private skill; the skill itself stays as it is."""
        await self._history.log(self._entry(skill, reader, READ, now(), shared_with={}))

    async def advance(
        self,
        skill: Skill,
        writer: Viewer,
        action: str,
        *,
        name: str | None = None,
        shared_with: Mapping[str, Right] | None = None,
    ) -> int:
        """Raise a skill's revision and log why; its time never runs backwards, whatever the clock does."""
        # A clock may be set back, and two changes may come within its resolution.
        at = max(now(), skill.updated_at + timedelta(microseconds=1))
        revision = await self._history.log(self._entry(skill, writer, action, at, name, shared_with))
        skill.revision = revision
        skill.stamp = secrets.randbits(STAMP_BITS)
        skill.updated_at = at
        return revision

    async def log_purge(self, skills: Sequence[Skill], writer: Viewer) -> None:
        """Log that skills go for good, each under a revision of its own; the rows themselves are about to go."""
        last = await self._history.next_revision(len(skills))
        for revision, skill in enumerate(skills, last - len(skills) + 1):
            at = max(now(), skill.updated_at + timedelta(microseconds=1))
            entry = self._entry(skill, writer, "purged", at, shared_with={})
            await self._history.add(SkillChange(revision=revision, **entry))
        await self._session.flush()

    def _entry(
        self,
        skill: Skill,
        writer: Viewer,
        action: str,
        at: datetime,
        name: str | None = None,
        shared_with: Mapping[str, Right] | None = None,
    ) -> dict[str, Any]:
        """Return what the log says of a change."""
        groups = skill.shared_with if shared_with is None else shared_with
        is_passed = skill.is_public and (skill.is_approved or not self._policy.approval)
        audience = "*" if skill.owner_id is None or is_passed else json.dumps(sorted(groups)) if groups else ""
        return {
            "skill_id": skill.id,
            "owner_id": skill.owner_id,
            "name": name or skill.name,
            "action": action,
            "user_id": writer.user,
            "at": at,
            "audience": "" if skill.is_hidden else audience,
        }

    async def check_name_free(self, name: str, owner_id: str | None, *, other_than: UUID | None = None) -> None:
        """Check that an owner has no other skill with that name.

        Raises:
            SkillConflictError: If there is one.
        """
        check_text("name", name)
        if await self._skills.is_taken(stored_key(name), owner_id, other_than=other_than):
            raise taken(name)

    async def check_quota(
        self, owner_id: str | None, size: int, *, other_than: UUID | None = None, tells: bool = True
    ) -> None:
        """Check what an owner would keep with a skill of that size; deleted skills count until they are purged.

        Raises:
            SkillQuotaError: If that is over the quota.
        """
        limits = self._policy.limits
        if owner_id is None or (limits.owner_skills is None and limits.owner_bytes is None):
            return
        skills, total = await self._skills.kept_by(owner_id, other_than=other_than)
        limits.check_owner(skills=skills + 1, size=total + size, tells=tells)

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
            tags=join_tags(before.tags),
            size=len(before.render()),
        )
        await self._history.add(former)
        skill.text_since = revision

    def reveal(self, skill: Skill) -> None:
        """Date a skill's name from this revision if others can see it under this name for the first time.

        Among public skills with the same name the oldest wins, so that nobody can take over a name. Age therefore
        counts from when others could first see the skill under its name, not from when its owner created it unseen,
        waiting for approval or hidden by an operator. Once seen, it keeps its age while it is hidden, private or
        waiting for a new approval. Only a new name starts over (`NEVER_SEEN`).
        """
        is_shown = not skill.is_hidden
        is_passed = skill.is_approved or not self._policy.approval
        if skill.name_since == NEVER_SEEN and is_shown and (skill.owner_id is None or (skill.is_public and is_passed)):
            skill.name_since = skill.revision
        for share in skill.share_rows if is_shown else ():
            if share.since == NEVER_SEEN:
                share.since = skill.revision

    @staticmethod
    def forget_age(skill: Skill) -> None:
        """Let a skill's name count as taken only from when others see it again."""
        skill.name_since = NEVER_SEEN
        for share in skill.share_rows:
            share.since = NEVER_SEEN

    def _take(self, skill: Skill, document: Document, *, shared_with: dict[str, Right]) -> None:
        """Set a skill's values."""
        is_renamed = stored_key(document.name) != skill.name_key
        skill.name = document.name
        skill.description = document.description
        skill.content = document.content
        skill.frontmatter = document.frontmatter
        skill.encoding = document.encoding
        with_tags_and_groups(skill, document.tags, shared_with, NEVER_SEEN)
        if is_renamed:
            self.forget_age(skill)

    async def _replace_files(
        self, skill: Skill, stale: list[KeptFile], fresh: list[FileContent], kept: dict[str, KeptFile], revision: int
    ) -> None:
        """Write new files; one that replaces another keeps its id."""
        await self._files.retire(stale, revision, replaced={file.path for file in fresh})
        rows = [SkillFile(**vars(file), skill_id=skill.id, since=revision) for file in fresh]
        for row in rows:
            # A link to a file stays valid when its content is replaced.
            row.id = kept[row.path].id if row.path in kept else uuid4()
        await self._files.replace([row for row in rows if row.path in kept])
        await self._files.add([row for row in rows if row.path not in kept])
        left = {path: file for path, file in kept.items() if file not in stale}
        set_listed_files(skill, {**left, **{row.path: keep_file(row) for row in rows}}.values())


def keep_file(row: SkillFile) -> KeptFile:
    """Return what is known of a file beside its content."""
    return KeptFile(row.id, row.since, row.path, row.size, row.is_text, row.digest)


def _differences(kept: Mapping[str, KeptFile], values: Values) -> tuple[list[KeptFile], list[FileContent]]:
    """Return which of the kept files are removed or replaced, and which are written."""
    if values.files is not None:
        given = {file.path: file for file in values.files}
        stale = [file for path, file in kept.items() if not _is_same(file, given.get(path))]
    else:
        given = {} if values.put is None else {values.put.path: values.put}
        touched = [path for path in (*given, values.drop or "") if path in kept]
        stale = [kept[path] for path in touched if not _is_same(kept[path], given.get(path))]
    return stale, [file for path, file in given.items() if not _is_same(kept.get(path), file)]


def _is_same(file: KeptFile | None, other: FileContent | None) -> bool:
    """Whether two files hold the same bytes."""
    return file is not None and other is not None and (file.size, file.digest) == (other.size, other.digest)
