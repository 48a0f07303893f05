"""Rules, transactions and permissions: every call is one transaction, and asks first who may."""

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from deepskills._errors import SkillFileNotFoundError, SkillFormatError, SkillNotFoundError, SkillPathError
from deepskills._format.problems import quoted
from deepskills._types import SKILL_FILE
from deepskills.store._document import Document
from deepskills.store._errors import SkillAuthenticationError, SkillConflictError, SkillPermissionError
from deepskills.store._formatter import SkillFormatter
from deepskills.store._models import Skill, SkillFile, now
from deepskills.store._repositories import SkillFileRepository, SkillRepository
from deepskills.store._rules import StoreLimits, check_text, name_key, owner_key, storable
from deepskills.store._schemas import SkillCreate, SkillFileCreate, SkillUpdate

UserId: TypeAlias = str | UUID
"""Who a user is, as the application knows them."""


@dataclass(frozen=True)
class _Writer:
    """Who writes: the owner whose skills may change, `None` for the system's."""

    owner_id: str | None


class SkillService:
    """Reads and writes skills for users: each sees what is theirs, public or the system's, and writes their own.

    What one may not see does not exist for them: reading or writing it raises `SkillNotFoundError`. Skills come back
    detached from the session, with tags and files; only listings leave the contents of files out.

    Args:
        session: A session for this service alone; every call commits or rolls back.
        limits: How large skills may be, and which files they may hold.
    """

    def __init__(self, session: AsyncSession, *, limits: StoreLimits | None = None) -> None:
        self._session = session
        self._limits = limits or StoreLimits()
        self._skills = SkillRepository(session)
        self._files = SkillFileRepository(session)

    async def list_skills(
        self,
        user_id: UserId | None = None,
        include_public: bool = True,  # noqa: FBT001, FBT002 - callers pass it by name or by place
        tags: Collection[str] | None = None,
        *,
        skill_ids: Collection[UUID] | None = None,
    ) -> list[Skill]:
        """Return the skills that a user may see, by name, without the contents of their files.

        Args:
            user_id: Who asks; `None` for nobody.
            include_public: Whether public and system skills are among them; without, only the user's own.
            tags: Only skills that have one of these tags, in any case; `None` or empty for all.
            skill_ids: Only these.
        """
        viewer = owner_key(user_id)
        keys = {storable(tag).strip().casefold() for tag in tags} if tags else None
        chosen = None if skill_ids is None else [key for given in skill_ids if (key := as_id(given)) is not None]
        async with self._transaction():
            found = await self._skills.list_visible(
                viewer, include_public=include_public, tag_keys=keys, skill_ids=chosen
            )
            return self._detached(sorted(found, key=lambda skill: _rank(skill, viewer)))

    async def get_skill(self, skill_id: UUID, user_id: UserId | None = None) -> Skill:
        """Return a skill.

        Raises:
            SkillNotFoundError: If there is none that this user may see.
        """
        async with self._transaction():
            return self._detached([await self._visible(_id(skill_id), owner_key(user_id), contents=True)])[0]

    async def get_skill_by_name(self, name: str, user_id: UserId | None = None) -> Skill:
        """Return the skill of that name, in any case: the user's own, else the system's, else the oldest public one.

        Raises:
            SkillNotFoundError: If there is none that this user may see.
        """
        viewer = owner_key(user_id)
        async with self._transaction():
            found = await self._skills.find_visible(name_key(storable(name)), viewer)
            if not found:
                raise SkillNotFoundError(f"There is no skill named {quoted(name)}. List the skills to see which exist.")
            return self._detached(sorted(found, key=lambda skill: _rank(skill, viewer)))[0]

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
            SkillTooLargeError: If the skill or a file is too large.
        """
        writer = _writer(user_id, system=system)
        try:
            async with self._transaction():
                await self._check_name_free(data.name, writer)
                document = data.document().checked()
                files = [_file(file) for file in data.files]
                self._limits.check_files(_sizes(files))
                skill = Skill(owner_id=writer.owner_id, is_public=data.is_public, **vars(document))
                skill.created_at = skill.updated_at = now()
                skill.files = files
                await self._skills.add(skill)
                return self._detached([skill])[0]
        except IntegrityError:
            raise _taken(data.name) from None

    async def update_skill(
        self, skill_id: UUID, data: SkillUpdate, user_id: UserId | None, *, system: bool = False
    ) -> Skill:
        """Change a skill; frontmatter as written follows a change of name, description or tags.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillPermissionError: If it is another's.
            SkillConflictError: If the owner has another skill of the new name.
            SkillFormatError: If a value breaks the rules.
            SkillTooLargeError: If the skill is too large.
        """
        writer = _writer(user_id, system=system)
        skill_id = _id(skill_id)
        try:
            async with self._transaction():
                skill = await self._writable(skill_id, writer, contents=True)
                if data.name is not None:
                    await self._check_name_free(data.name, writer, other_than=skill_id)
                before = document_of(skill)
                document = data.apply(before).checked()
                for key, value in vars(document).items():
                    if value != getattr(before, key):
                        setattr(skill, key, value)
                if data.is_public is not None:
                    skill.is_public = data.is_public
                await self._session.flush()
                return self._detached([skill])[0]
        except IntegrityError:
            raise _taken(data.name or "") from None

    async def delete_skill(self, skill_id: UUID, user_id: UserId | None, *, system: bool = False) -> None:
        """Delete a skill with its files.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillPermissionError: If it is another's.
        """
        writer = _writer(user_id, system=system)
        skill_id = _id(skill_id)
        async with self._transaction():
            skill = await self._writable(skill_id, writer)
            self._session.expunge(skill)
            await self._skills.delete(skill_id)

    async def add_file(
        self, skill_id: UUID, data: SkillFileCreate, user_id: UserId | None, *, system: bool = False
    ) -> SkillFile:
        """Add a file to a skill.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillPermissionError: If it is another's.
            SkillConflictError: If the skill has a file at that path.
            SkillPathError: If the path is refused.
            SkillTooLargeError: If the file, or the skill with it, is too large.
        """
        writer = _writer(user_id, system=system)
        skill_id = _id(skill_id)
        async with self._transaction():
            skill = await self._writable(skill_id, writer)
            self._session.expunge(skill)
            file = _file(data)
            sizes = await self._files.sizes(skill_id)
            if file.path in sizes:
                raise SkillConflictError(
                    f"The skill has a file {quoted(file.path)} already. Delete it first, or use another path."
                )
            self._limits.check_files(_sizes([file]), sizes)
            file.skill_id = skill_id
            await self._files.add(file)
            self._session.expunge(file)
            return file

    async def delete_file(self, file_id: UUID, user_id: UserId | None, *, system: bool = False) -> None:
        """Delete a file of a skill.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
            SkillNotFoundError: If there is no such file that this user may see.
            SkillPermissionError: If it is another's.
        """
        writer = _writer(user_id, system=system)
        missing = SkillNotFoundError(f"There is no file {file_id}. Get its skill to see which files it has.")
        async with self._transaction():
            file = await self._files.get(known) if (known := as_id(file_id)) is not None else None
            if file is None:
                raise missing
            try:
                await self._writable(file.skill_id, writer)
            except SkillNotFoundError:
                raise missing from None
            await self._files.delete(file.id)
            self._session.expunge_all()

    async def read_file(self, skill_id: UUID, path: str, user_id: UserId | None = None) -> bytes:
        """Return the content of one file of a skill.

        Raises:
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillFileNotFoundError: If the skill has no file at that path.
        """
        skill_id = _id(skill_id)
        async with self._transaction():
            self._detached([await self._visible(skill_id, owner_key(user_id))])
            content = await self._files.read(skill_id, storable(path))
            if content is None:
                raise SkillFileNotFoundError(f"The skill has no file {quoted(storable(path))}.")
            return content

    async def export_skill(self, skill_id: UUID, user_id: UserId | None = None) -> dict[str, bytes]:
        """Return a skill as files by relative path, its `SKILL.md` first, byte for byte as it came in.

        Raises:
            SkillNotFoundError: If there is none that this user may see.
        """
        skill = await self.get_skill(skill_id, user_id)
        return exported(skill)

    async def format_skill_content(
        self,
        skill_id: UUID,
        user_id: UserId | None = None,
        include_file_contents: bool = True,  # noqa: FBT001, FBT002 - as the formatter takes it
    ) -> str:
        """Return a skill as Markdown, as `SkillFormatter` writes it.

        Raises:
            SkillNotFoundError: If there is none that this user may see.
        """
        skill = await self.get_skill(skill_id, user_id)
        return SkillFormatter().format_skill_content(skill, include_file_contents)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[None]:
        try:
            yield
            await self._session.commit()
        except BaseException:
            await self._session.rollback()
            raise

    def _detached(self, skills: Iterable[Skill]) -> list[Skill]:
        """Return the skills as values that later calls do not change."""
        found = list(skills)
        for skill in found:
            self._session.expunge(skill)
        return found

    async def _visible(self, skill_id: UUID, viewer: str | None, *, contents: bool = False) -> Skill:
        skill = await self._skills.get_visible(skill_id, viewer, contents=contents)
        if skill is None:
            raise _no_skill(str(skill_id))
        return skill

    async def _writable(self, skill_id: UUID, writer: _Writer, *, contents: bool = False) -> Skill:
        """Return a skill that the writer owns, with other writers kept away until the transaction ends."""
        skill = await self._visible(skill_id, writer.owner_id)
        if skill.owner_id != writer.owner_id:
            raise SkillPermissionError(
                f"The skill {quoted(skill.name)} is not yours to change. Create one of your own instead."
            )
        await self._skills.touch(skill_id, now())
        return await self._visible(skill_id, writer.owner_id, contents=contents)

    async def _check_name_free(self, name: str, writer: _Writer, *, other_than: UUID | None = None) -> None:
        check_text("name", name)
        if await self._skills.is_taken(name_key(name), writer.owner_id, other_than=other_than):
            raise _taken(name)


def as_id(given: object) -> UUID | None:
    """Return an id, also where it comes as text; `None` for what is no id."""
    if isinstance(given, UUID):
        return given
    try:
        return UUID(given) if isinstance(given, str) else None
    except ValueError:
        return None


def _id(given: object) -> UUID:
    found = as_id(given)
    if found is None:
        raise _no_skill(quoted(storable(str(given))))
    return found


def _no_skill(shown: str) -> SkillNotFoundError:
    return SkillNotFoundError(f"There is no skill {shown}. List the skills to see which exist.")


def document_of(skill: Skill) -> Document:
    """Return a stored skill's `SKILL.md`."""
    return Document(skill.name, skill.description, skill.content, skill.tags, skill.frontmatter, skill.encoding)


def exported(skill: Skill) -> dict[str, bytes]:
    """Return a skill as files by relative path, its `SKILL.md` first."""
    files = {file.path: _bytes(file.content) for file in sorted(skill.files, key=lambda file: file.path)}
    return {SKILL_FILE: document_of(skill).render(), **files}


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def _writer(user_id: UserId | None, *, system: bool) -> _Writer:
    return _Writer(None if system else signed_in(user_id))


def signed_in(user_id: UserId | None) -> str:
    """Return a user id as the store keeps it.

    Raises:
        SkillAuthenticationError: If it is nobody's.
    """
    owner = owner_key(user_id)
    if owner is None:
        raise SkillAuthenticationError("Only a signed-in user writes skills. Sign in and try again.")
    return owner


def _rank(skill: Skill, viewer: str | None) -> tuple[object, ...]:
    """Order skills by name; of one name the viewer's own comes first, then the system's, then the oldest."""
    whose = 0 if viewer is not None and skill.owner_id == viewer else 1 if skill.owner_id is None else 2
    return skill.name_key, whose, skill.created_at, str(skill.id)


def _taken(name: str) -> SkillConflictError:
    return SkillConflictError(f"The name {quoted(storable(name))} is taken, in this or another case. Choose another.")


def _file(data: SkillFileCreate) -> SkillFile:
    try:
        return SkillFile(path=data.path, content=data.content)
    except UnicodeEncodeError:
        raise SkillFormatError(
            f"The content of {quoted(storable(data.path))} holds broken Unicode characters. Send it as base64."
        ) from None


def _sizes(files: Sequence[SkillFile]) -> dict[str, int]:
    sizes = {file.path: file.size for file in files}
    if len(sizes) < len(files):
        raise SkillPathError("Two files have the same path. Give each its own.")
    return sizes
