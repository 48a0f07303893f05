"""Creates, changes and deletes skills and their files."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from deepskills._errors import SkillFormatError, SkillNotFoundError
from deepskills._skillmd.problems import quoted
from deepskills.store.changes import Text, Values
from deepskills.store.db.models import FileContent, Skill, SkillFile, document_of
from deepskills.store.db.transactions import reads, writes
from deepskills.store.document import Document
from deepskills.store.errors import SkillBusyError, SkillConflictError
from deepskills.store.rules import UserId, Viewer, as_id, check_groups, check_id, check_rename, owns, read_groups
from deepskills.store.schemas import SkillCreate, SkillFileCreate, SkillUpdate
from deepskills.store.service.base import GivenFiles, GivenSkill, Operations, file_contents, sizes_of
from deepskills.store.workers import run_in_thread

MAX_NAMED = 20
"""How many skills an error names at most."""

MAX_PREPARATIONS = 20
"""How often a large write is prepared for a skill that others keep changing."""

MAX_WORK_IN_TURN = 256 * 1024
"""Up to this size, a write is prepared again while it has its turn, for which all other writers wait."""


class Writing(Operations):
    """Creates, changes and deletes skills and their files."""

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
        shared_with = read_groups(data.shared_with)
        check_groups(shared_with, writer, self._policy.limits)

        def prepare() -> Values:
            text = Text.of(data.document().check())
            files = file_contents(data.files)
            self._policy.limits.check_files(sizes_of(files))
            return Values("created", text, files, is_public=data.is_public, shared_with=shared_with)

        try:
            values = await run_in_thread(_size_of(data, data.files), prepare)
        except SkillFormatError:
            # If the name is taken in another spelling, that is the better error.
            await self._check_name_free(data.name, writer.user)
            raise
        # Asked before its turn, which is everybody's time. Who comes first in between is told by the unique index.
        await self._check_name_free(data.name if values.text is None else values.text.document.name, writer.user)
        return await self._transactions.perform(lambda: self._changes.create(writer, values), "write")

    @reads
    async def _check_name_free(self, name: str, owner_id: str | None) -> None:
        await self._changes.check_name_free(name, owner_id)

    async def check_room(self, size: int, user_id: UserId | None, skill_id: UUID | None = None) -> None:
        """Check that a skill of that size can be kept, as a new one or in place of another, before it is unpacked.

        Raises:
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillPermissionError: If it is not this user's to change.
            SkillQuotaError: If its owner would be over the quota.
        """
        writer = await self._policy.writer(user_id)
        async with self._transactions.snapshot():
            if skill_id is None:
                await self._changes.check_quota(writer.user, size)
                return
            skill = await self._lock(check_id(skill_id), writer, "write")
            if size > skill.size:
                await self._changes.check_quota(skill.owner_id, size, other_than=skill.id, tells=owns(skill, writer))

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
        shared_with = None if data.shared_with is None else read_groups(data.shared_with)

        def prepare(skill: Skill) -> Values:
            text = Text.of(data.apply(document_of(skill)).check())
            return Values("updated", text, is_public=data.is_public, shared_with=shared_with)

        return await self._rewrite(
            check_id(skill_id), writer, prepare, expected_revision, size=_size_of(data), name=data.name
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

        def read() -> tuple[SkillCreate | SkillUpdate | Document, list[FileContent] | None]:
            new_text = Document.read(data) if isinstance(data, bytes | str) else data
            return new_text, None if listed is None else file_contents(listed)

        text, contents = await run_in_thread(size, read)
        groups = _get_given(text, "shared_with")
        shared_with = None if groups is None else read_groups(groups)

        def prepare(skill: Skill) -> Values:
            if contents is not None:
                self._policy.limits.check_files(sizes_of(contents))
            before = document_of(skill)
            if isinstance(text, Document):
                document = text
            elif isinstance(text, SkillUpdate):
                document = text.apply(before)
            else:
                document = text.document()
                if text.frontmatter is None and _get_given(text, "tags") is None:
                    document = replace(document, tags=before.tags)
            is_public = _get_given(text, "is_public")
            return Values("saved", Text.of(document.check()), contents, is_public=is_public, shared_with=shared_with)

        return await self._rewrite(check_id(skill_id), writer, prepare, expected_revision, size=size)

    async def _rewrite(
        self,
        skill_id: UUID,
        writer: Viewer,
        prepare: Callable[[Skill], Values],
        expected_revision: int | None,
        *,
        size: int,
        name: str | None = None,
    ) -> Skill:
        """Change a skill to what `prepare` makes of it, and return it without the contents of its files.

        Args:
            skill_id: Which skill.
            writer: Who changes it.
            prepare: Returns the new values; called again if the skill changes in the meantime.
            expected_revision: The revision that the writer knows.
            size: About how much `prepare` reads beside the skill's own text; 0 if it reads neither.
            name: The new name, if it gets one.

        Raises:
            SkillBusyError: If a large text has to be prepared again and again, because others change the skill.
        """
        for _ in range(MAX_PREPARATIONS):
            # Rights are checked first: a stranger's update must not cost a parse.
            known = await self._writable(skill_id, writer, expected_revision, name)
            work = size + len(known.content) if size else 0
            values = await run_in_thread(work, lambda: prepare(known))  # noqa: B023 - done at once
            changed = await self._change(known, values, writer, expected_revision, prepare, work)
            if changed is not None:
                return changed
        raise SkillBusyError("Others keep changing the skill. Try again in a moment.")

    @reads
    async def _writable(self, skill_id: UUID, writer: Viewer, expected_revision: int | None, name: str | None) -> Skill:
        """Return a skill as its writer may change it, with its text and the list of its files."""
        skill = await self._lock(skill_id, writer, "write", expected_revision, files=True)
        if name is not None:
            check_rename(skill, writer, name)
            # An early answer, of another moment; what counts is asked again when it is written.
            await self._changes.check_name_free(name, skill.owner_id, other_than=skill.id)
        return skill

    @writes
    async def _change(
        self,
        known: Skill,
        values: Values,
        writer: Viewer,
        expected_revision: int | None,
        prepare: Callable[[Skill], Values],
        work: int,
    ) -> Skill | None:
        """Change a skill to what was prepared for it as it was `known`; `None` if that has to be done once more."""
        skill = await self._lock(known.id, writer, "write", expected_revision, files=True)
        if skill.revision != known.revision:
            if work > MAX_WORK_IN_TURN:
                return None
            # Here, where nothing changes it in between; otherwise some of many writers would never get through. Not in
            # a thread: all of them may be at work for long.
            values = prepare(skill)
        await self._changes.apply(skill, writer, values)
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
        await self._delete(check_id(skill_id), writer, expected_revision, force=force)

    @writes
    async def _delete(self, skill_id: UUID, writer: Viewer, expected_revision: int | None, *, force: bool) -> None:
        skill = await self._lock(skill_id, writer, "remove", expected_revision)
        if not force:
            await self._check_not_required(skill, writer)
        await self._changes.advance(skill, writer, "deleted")
        # The row stays, because versions, the log and a restore need it.
        skill.deleted_at = skill.updated_at

    async def _check_not_required(self, skill: Skill, writer: Viewer) -> None:
        # Of skills that the writer may not see nothing is told, not even that there are some.
        needing = await self._skills.find_requiring(skill, writer, MAX_NAMED)
        if not needing:
            return
        shown = ", ".join(quoted(other.name) for other in needing)
        raise SkillConflictError(
            f"The skill {quoted(skill.name)} is required by {shown}. Change those first, or delete it with `force`."
        )

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
        return await self.save_file(
            skill_id, data, user_id, expected_revision=expected_revision, replaces=False, system=system
        )

    async def save_file(
        self,
        skill_id: UUID,
        data: SkillFileCreate,
        user_id: UserId | None,
        *,
        expected_revision: int | None = None,
        replaces: bool = True,
        system: bool = False,
    ) -> SkillFile:
        """Add a file to a skill, or replace the one at its path in one step; the same content changes nothing.

        It raises what `add_file` raises, an existing file only if it is not to be replaced.
        """
        writer = await self._policy.writer(user_id, system=system)
        (file,) = await run_in_thread(len(data.content), lambda: file_contents([data]))

        def prepare(skill: Skill) -> Values:
            others = [row for row in skill.files if row.path != file.path]
            is_known = len(others) < len(skill.files)
            if is_known and not replaces:
                raise SkillConflictError(
                    f"The skill has a file {quoted(file.path)} already. Save it instead, or use another path."
                )
            self._policy.limits.check_files({file.path: file.size}, {row.path: row.size for row in others})
            return Values("file-saved" if is_known else "file-added", files=[*others, file])

        changed = await self._rewrite(check_id(skill_id), writer, prepare, expected_revision, size=0)
        saved = next(row for row in changed.files if row.path == file.path)
        saved.skill_id, saved.data, saved.skill_revision = changed.id, file.data, changed.revision
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
        skill_id, path = found
        skill = await self._lock(skill_id, writer, "write", expected_revision, files=True)
        others = [row for row in skill.files if row.path != path]
        await self._changes.apply(skill, writer, Values("file-deleted", files=others))


def _get_given(data: SkillCreate | SkillUpdate | Document, field: str) -> Any:  # noqa: ANN401 - as the field
    """Return what was said about a field; `None` if nothing was, as in a `SKILL.md` about those who see it."""
    is_given = not isinstance(data, Document) and field in data.model_fields_set
    return getattr(data, field) if is_given else None


def _size_of(data: GivenSkill, files: GivenFiles | None = None) -> int:
    """Return about how much there is to read, to decide whether to use a thread."""
    contents = files.values() if isinstance(files, Mapping) else (file.content for file in files or ())
    text = data if isinstance(data, bytes | str) else f"{data.content or ''}{data.frontmatter or ''}"
    return len(text) + sum(len(content) for content in contents)
