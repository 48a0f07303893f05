"""The service's writing calls: skills and their files."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias
from uuid import UUID, uuid4

from deepskills._errors import SkillFormatError, SkillNotFoundError, SkillPathError
from deepskills._skillmd.problems import quoted
from deepskills.store._base import now
from deepskills.store._checks import UserId, as_id, document_of, known_id
from deepskills.store._core import Values
from deepskills.store._document import Document
from deepskills.store._errors import SkillConflictError
from deepskills.store._models import FileContent, Skill, SkillFile, SkillShare
from deepskills.store._reading import ReadingService
from deepskills.store._rules import checked_groups, storable
from deepskills.store._schemas import SkillCreate, SkillFileCreate, SkillUpdate
from deepskills.store._words import indexed_words

GivenSkill: TypeAlias = SkillCreate | SkillUpdate | bytes | str
"""A skill's new text: values, or a whole `SKILL.md`."""

GivenFiles: TypeAlias = Mapping[str, bytes | str] | Iterable[SkillFileCreate]
"""Files by path relative to the skill, or each with its path."""


class WritingService(ReadingService):
    """Writes skills for users: their own, and those that groups of theirs may write."""

    async def create_skill(self, data: SkillCreate, user_id: UserId | None, *, system: bool = False) -> Skill:
        """Create a skill with its files, all or nothing.

        Args:
            data: The skill.
            user_id: Whose it will be.
            system: Make it a system skill, which all may read. For the operator's code, never for a user's request.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
            SkillConflictError: If the owner has a skill of that name, in any case.
            SkillFormatError: If a value breaks the rules; `SkillPathError` if a file's path does.
            SkillTooLargeError: If the skill or a file is too large, or the owner keeps too much.
        """
        writer = await self._writer(user_id, system=system)
        shared_with = checked_groups(data.shared_with)
        self._check_groups(shared_with, writer)

        def prepare() -> tuple[Document, list[FileContent]]:
            document = data.document().checked()
            files = file_contents(data.files)
            self._limits.check_files(sizes_of(files))
            return document, files

        try:
            document, files = await asyncio.to_thread(prepare)
        except SkillFormatError:
            # That a name is taken in another spelling is the better answer.
            await self._transactions.read(lambda: self._check_name_free(data.name, writer.user))
            raise

        async def work() -> Skill:
            await self._check_name_free(document.name, writer.user)
            size = len(document.render()) + sum(file.size for file in files)
            await self._check_quota(writer.user, size)
            skill = Skill(id=uuid4(), owner_id=writer.user, is_public=data.is_public, size=size, **vars(document))
            skill.updated_at = now()
            skill.words = indexed_words(document.name, document.description, document.tags)
            revision = await self._advance(skill, writer, "created")
            skill.created_at = skill.updated_at
            skill.number = skill.name_since = skill.text_since = revision
            skill.files = [SkillFile(id=uuid4(), **vars(file), since=revision) for file in files]
            skill.share_rows = [
                SkillShare(group_id=group, can_write=right == "write", since=revision)
                for group, right in shared_with.items()
            ]
            await self._skills.add(skill)
            return skill

        return await self._write(work)

    async def update_skill(
        self,
        skill_id: UUID,
        data: SkillUpdate,
        user_id: UserId | None,
        *,
        expected_revision: int | None = None,
        system: bool = False,
    ) -> Skill:
        """Change a skill; frontmatter as written follows a change of name, description or tags.

        An update that changes nothing leaves revision and time as they are. Members of a group that may write change
        text and files; who sees the skill is for the owner to decide.

        Returns:
            The skill, without the contents of its files.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillPermissionError: If it is not this user's to change.
            SkillStaleError: If its revision is not the expected one.
            SkillConflictError: If the owner has another skill of the new name.
            SkillFormatError: If a value breaks the rules.
            SkillTooLargeError: If the skill is too large, or the owner keeps too much.
        """
        writer = await self._writer(user_id, system=system)
        shared_with = None if data.shared_with is None else checked_groups(data.shared_with)

        async def work() -> Skill:
            skill = await self._locked(known_id(skill_id), writer, "write", expected_revision)
            if data.name is not None:
                await self._check_name_free(data.name, skill.owner_id, other_than=skill.id)
            before = document_of(skill)
            document = await asyncio.to_thread(lambda: data.apply(before).checked())
            values = Values(document, is_public=data.is_public, shared_with=shared_with)
            await self._change(skill, writer, "updated", values)
            return await self._fresh(skill)

        return await self._write(work)

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
            data: The new text: values, or a whole `SKILL.md`. Tags and visibility that it does not give stay.
            files: All files of the skill; those that are not among them go. `None` leaves the files as they are.
            user_id: Who writes.
            expected_revision: The revision that the writer knows; `None` to replace any.
            system: The operator's code writes.

        Returns:
            The skill, without the contents of its files.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillPermissionError: If it is not this user's to change.
            SkillStaleError: If its revision is not the expected one.
            SkillConflictError: If the owner has another skill of the new name.
            SkillFormatError: If a value breaks the rules; `SkillPathError` if a file's path does.
            SkillTooLargeError: If the skill or a file is too large, or the owner keeps too much.
        """
        writer = await self._writer(user_id, system=system)
        given = files if files is not None else data.files if isinstance(data, SkillCreate) and data.files else None

        def prepare() -> tuple[SkillCreate | SkillUpdate, list[FileContent] | None]:
            new_text = _text_of(data) if isinstance(data, bytes | str) else data
            return new_text, None if given is None else file_contents(given)

        text, contents = await asyncio.to_thread(prepare)
        shared_with = checked_groups(text.shared_with) if _is_given(text, "shared_with") else None  # type: ignore[arg-type]
        is_public = text.is_public if _is_given(text, "is_public") else None

        async def work() -> Skill:
            skill = await self._locked(known_id(skill_id), writer, "write", expected_revision)
            before = document_of(skill)

            def new_document() -> Document:
                if contents is not None:
                    self._limits.check_files(sizes_of(contents))
                if isinstance(text, SkillUpdate):
                    return text.apply(before).checked()
                document = text.document()
                keeps_tags = text.frontmatter is None and not _is_given(text, "tags")
                return (replace(document, tags=before.tags) if keeps_tags else document).checked()

            document = await asyncio.to_thread(new_document)
            values = Values(document, contents, is_public=is_public, shared_with=shared_with)
            await self._change(skill, writer, "saved", values)
            return await self._fresh(skill)

        return await self._write(work)

    async def delete_skill(
        self, skill_id: UUID, user_id: UserId | None, *, expected_revision: int | None = None, system: bool = False
    ) -> None:
        """Delete a skill: it is gone for everybody, and `restore_skill` brings it back within the retention.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillPermissionError: If it is not this user's to remove.
            SkillStaleError: If its revision is not the expected one.
        """
        writer = await self._writer(user_id, system=system)

        async def work() -> None:
            skill = await self._locked(known_id(skill_id), writer, "remove", expected_revision)
            await self._advance(skill, writer, "deleted")
            skill.deleted_at = skill.updated_at

        await self._write(work)

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

        It raises what `add_file` raises, except for a file that is there.
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
        writer = await self._writer(user_id, system=system)
        (file,) = await asyncio.to_thread(file_contents, [data])

        async def work() -> SkillFile:
            skill = await self._locked(known_id(skill_id), writer, "write", expected_revision)
            kept = await self._files.listed(skill.id)
            if file.path in kept and not replaces:
                raise SkillConflictError(
                    f"The skill has a file {quoted(file.path)} already. Save it instead, or use another path."
                )
            sizes = {path: row.size for path, row in kept.items() if path != file.path}
            await asyncio.to_thread(self._limits.check_files, {file.path: file.size}, sizes)
            action = "file-saved" if file.path in kept else "file-added"
            await self._change(skill, writer, action, Values(put=file), kept)
            return await self._files.at(skill, file.path)

        return await self._write(work)

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
        writer = await self._writer(user_id, system=system)

        async def work() -> None:
            known = as_id(file_id)
            found = await self._skills.of_file(known, writer) if known is not None else None
            if found is None:
                raise SkillNotFoundError(f"There is no file {file_id}. Get its skill to see which files it has.")
            skill, file = found
            skill = await self._locked(skill.id, writer, "write", expected_revision)
            await self._change(skill, writer, "file-deleted", Values(drop=file.path))

        await self._write(work)


def file_contents(files: GivenFiles) -> list[FileContent]:
    """Return files as they will be kept.

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
        read.model_fields_set - {"is_public", "shared_with", "files"},
        **{name: getattr(read, name) for name in SkillCreate.model_fields},
    )


def _is_given(data: SkillCreate | SkillUpdate, field: str) -> bool:
    """Whether whoever made `data` said anything about a field."""
    return field in data.model_fields_set and getattr(data, field) is not None
