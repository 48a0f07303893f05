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
from uuid import UUID, uuid4

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm.attributes import set_committed_value

from deepskills._catalog.search import beginning_of
from deepskills._skillmd.names import stored_key
from deepskills.store.db.models import (
    NEVER_SEEN,
    FileContent,
    FormerText,
    Skill,
    SkillChange,
    SkillFile,
    document_of,
    now,
)
from deepskills.store.db.repositories import (
    KEYS,
    READ,
    STAMP_BITS,
    HistoryRepository,
    SkillFileRepository,
    SkillRepository,
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
    make_taken_error,
    owns,
)


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

    action: str
    """What the log calls the change."""

    text: Text | None = None
    files: Sequence[FileContent | SkillFile] | None = None
    """All its files, which replace the ones it has; those among them that it has already stay."""

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
        skill.shared_with = values.shared_with or {}
        skill.is_hidden = skill.is_approved = False
        skill.updated_at = now()
        skill.words, skill.beginning = text.words, text.beginning
        revision = await self.advance(skill, writer, values.action, has_content=True)
        skill.created_at = skill.updated_at
        # The row number of SQLite's full-text table; revisions are unique, so they serve.
        skill.number = skill.text_since = revision
        new = (file for file in files if isinstance(file, FileContent))
        skill.files = [SkillFile(id=uuid4(), **vars(file), since=revision) for file in new]
        self._date_name(skill, again=True)
        await self._skills.add(skill)
        await self._skills.index(skill)
        await self._skills.set_tags(skill)
        await self._skills.set_shares(skill, again=True)
        await self._skills.set_requires(skill, text.requires)
        return skill

    async def apply(self, skill: Skill, writer: Viewer, values: Values) -> None:
        """Give a skill, read with the list of its files, new values; if it has them all already, nothing changes.

        The skill is then as the database has it, with the list of its files.
        """
        before = document_of(skill)
        document = before if values.text is None else values.text.document
        kept = {file.path: file for file in skill.files}
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
        is_renamed = stored_key(document.name) != skill.name_key
        if is_renamed:
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
        skill.shared_with = dict(shared_with)
        # An operator approved the old content; new text or files need a new approval.
        skill.is_approved = skill.is_approved and not has_new_contents
        skill.size = size
        skill.revision = revision = await self._history.next_revision()
        if has_new_text and values.text is not None:
            await self._replace_text(skill, before, values.text)
        self._log(skill, writer, values.action, has_content=has_new_contents)
        if has_new_readers or is_renamed:
            await self.reveal(skill, again=is_renamed)
        await self._files.retire(stale, revision)
        # A link to a file stays valid when its content is replaced.
        ids = {path: file.id for path, file in kept.items()}
        rows = [{"id": ids.get(file.path) or uuid4(), "since": revision, **vars(file)} for file in fresh]
        await self._files.add([{"skill_id": skill.id, **row} for row in rows])
        written = (SkillFile(**{name: value for name, value in row.items() if name != "data"}) for row in rows)
        files = [*(file for file in kept.values() if file not in stale), *written]
        # Not a change: what is assigned to an attribute would be written again.
        set_committed_value(skill, "file_rows", sorted(files, key=lambda file: file.path))
        await self._trim_history(skill.owner_id)

    async def _replace_text(self, skill: Skill, before: Document, text: Text) -> None:
        """Give a skill a new text, and keep the one before."""
        size = len(before.render())
        self._session.add(
            FormerText(skill_id=skill.id, since=skill.text_since, until=skill.revision, size=size, **vars(before))
        )
        skill.text_since = skill.revision
        for name, value in vars(text.document).items():
            setattr(skill, name, value)
        skill.words, skill.beginning = text.words, text.beginning
        await self._skills.index(skill)
        if text.document.tags != before.tags:
            await self._skills.set_tags(skill)
        # Rows are there only if the text before had some; most skills require nothing, and cost no statement.
        if before.may_require or text.document.may_require:
            await self._skills.set_requires(skill, text.requires)

    async def _trim_history(self, owner_id: str | None) -> None:
        """Remove the oldest former versions of an owner's skills that are too many."""
        most = self._policy.limits.history_bytes
        if most is not None and owner_id is not None:
            await self._session.flush()
            # More than one change can add, so that it gets less, and no more: all other writers wait.
            for _ in range(2 + self._policy.limits.files // KEYS):
                if not (beyond := await self._history.oldest_beyond(owner_id, most)):
                    return
                await self._history.forget(beyond)

    async def advance(self, skill: Skill, writer: Viewer, action: str, *, has_content: bool = False) -> int:
        """Raise a skill's revision and log why."""
        skill.revision = await self._history.next_revision()
        self._log(skill, writer, action, has_content=has_content)
        return skill.revision

    def _log(self, skill: Skill, writer: Viewer, action: str, *, has_content: bool) -> None:
        """Date a skill with its new revision, and log why; its time never runs backwards, whatever the clock does."""
        # A clock may be set back, and two changes may come within its resolution.
        skill.updated_at = max(now(), skill.updated_at + timedelta(microseconds=1))
        skill.stamp = secrets.randbits(STAMP_BITS)
        change = self._entry(skill, writer, action, skill.revision, skill.updated_at)
        change.has_content = has_content
        self._session.add(change)

    async def log_read(self, skill: Skill, reader: Viewer) -> None:
        """Log that an operator read somebody's private skill; the skill itself stays as it is."""
        self._session.add(self._entry(skill, reader, READ, await self._history.next_revision(), now()))

    async def log_purge(self, skills: Sequence[Skill], writer: Viewer) -> None:
        """Log that skills go for good, each under a revision of its own; the rows themselves are about to go."""
        last = await self._history.next_revision(len(skills))
        for revision, skill in enumerate(skills, last - len(skills) + 1):
            at = max(now(), skill.updated_at + timedelta(microseconds=1))
            self._session.add(self._entry(skill, writer, "purged", revision, at))
        await self._session.flush()

    def _entry(self, skill: Skill, writer: Viewer, action: str, revision: int, at: datetime) -> SkillChange:
        """Return what the log says of a change."""
        is_passed = skill.is_public and (skill.is_approved or not self._policy.approval)
        groups = json.dumps(sorted(skill.shared_with)) if skill.shared_with else ""
        audience = "*" if skill.owner_id is None or is_passed else groups
        return SkillChange(
            revision=revision,
            skill_id=skill.id,
            owner_id=skill.owner_id,
            name=skill.name,
            action=action,
            user_id=writer.user,
            at=at,
            audience="" if skill.is_hidden else audience,
        )

    async def check_name_free(self, name: str, owner_id: str | None, *, other_than: UUID | None = None) -> None:
        """Check that an owner has no other skill with that name.

        Raises:
            SkillConflictError: If there is one.
        """
        check_text("name", name)
        if await self._skills.is_taken(stored_key(name), owner_id, other_than=other_than):
            raise make_taken_error(name)

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
        skills, total = await self._skills.count_kept(owner_id, other_than=other_than)
        limits.check_owner(skills=skills + 1, size=total + size, tells=tells)

    async def reveal(self, skill: Skill, *, again: bool = False) -> None:
        """Date a skill's name from this revision where others see it under this name for the first time, or `again`."""
        self._date_name(skill, again=again)
        await self._skills.set_shares(skill, again=again)

    def _date_name(self, skill: Skill, *, again: bool) -> None:
        """Date a skill's name from this revision if others can see it under this name for the first time.

        Among public skills with the same name the oldest wins, so that nobody can take over a name. Age therefore
        counts from when others could first see the skill under its name, not from when its owner created it unseen,
        waiting for approval or hidden by an operator. Once seen, it keeps its age while it is hidden, private or
        waiting for a new approval. Only a new name starts over (`NEVER_SEEN`).
        """
        if again:
            skill.name_since = NEVER_SEEN
        is_passed = skill.owner_id is None or (skill.is_public and (skill.is_approved or not self._policy.approval))
        if skill.name_since == NEVER_SEEN and is_passed and not skill.is_hidden:
            skill.name_since = skill.revision


def _differences(kept: Mapping[str, SkillFile], values: Values) -> tuple[list[SkillFile], list[FileContent]]:
    """Return which of the kept files are removed or replaced, and which are written."""
    if values.files is None:
        return [], []
    given = {file.path: file for file in values.files}
    stale = [file for path, file in kept.items() if not _is_same(file, given.get(path))]
    new = (file for file in values.files if isinstance(file, FileContent))
    return stale, [file for file in new if not _is_same(kept.get(file.path), file)]


def _is_same(file: SkillFile | None, other: FileContent | SkillFile | None) -> bool:
    """Whether two files hold the same bytes."""
    return file is not None and other is not None and (file.size, file.digest) == (other.size, other.digest)
