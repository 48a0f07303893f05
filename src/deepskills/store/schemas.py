"""The values that go into the service and over HTTP. Only shapes: rules that need the store are in the service."""

import base64
import binascii
import os
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from deepskills._types import MAX_DESCRIPTION_LENGTH
from deepskills.store.db.models import Skill, SkillFile
from deepskills.store.document import Document, join_document
from deepskills.store.packages import read_directory
from deepskills.store.rules import MAX_GROUPS, MAX_TAGS, Right, StoreLimits

FileEncoding = Literal["utf-8", "base64"]
"""How a file's content is written in JSON."""

SkillEncoding = Literal["utf-8", "utf-16-le", "utf-16-be"]
"""How a `SKILL.md` is encoded."""


MAX_LISTED_FILES = 20_000
"""How many files one call may have; the store's limits are lower."""


class SkillFileContent(BaseModel):
    """The content of a file; in JSON, bytes are base64."""

    model_config = ConfigDict(extra="forbid")

    content: str | bytes
    encoding: FileEncoding = "utf-8"

    @model_validator(mode="after")
    def _decode(self) -> "SkillFileContent":
        self.content = _decode(self.content, self.encoding)
        return self


class SkillFileCreate(SkillFileContent):
    """A file to add to a skill; in JSON, bytes are base64."""

    path: str = Field(min_length=1, examples=["references/guide.md"])

    @model_serializer(mode="wrap")
    def _encode(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        if info.mode != "json" or isinstance(self.content, str):
            return handler(self)  # type: ignore[no-any-return]
        return {"path": self.path, "content": base64.b64encode(self.content).decode(), "encoding": "base64"}


def _decode(content: str | bytes, encoding: FileEncoding) -> str | bytes:
    if encoding == "utf-8" or isinstance(content, bytes):
        return content
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"content is not base64: {error}") from None


Tags = Annotated[list[str], Field(max_length=MAX_TAGS, fail_fast=True)]
"""Tags of a skill. Only the first wrong one is reported: naming all of a million would take too long."""

Files = Annotated[list[SkillFileCreate], Field(max_length=MAX_LISTED_FILES, fail_fast=True)]
"""Files of a skill."""


class SkillCreate(BaseModel):
    """A skill to create: values, and the frontmatter as written if its bytes matter."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=128, examples=["release-notes"])
    description: str = Field(min_length=1, max_length=MAX_DESCRIPTION_LENGTH)
    content: str = ""
    tags: Tags = Field(default_factory=list)
    is_public: bool = False
    frontmatter: str | None = None
    encoding: SkillEncoding = "utf-8"
    files: Files = Field(default_factory=list)
    shared_with: dict[str, Right] = Field(default_factory=dict, max_length=MAX_GROUPS)

    @classmethod
    def from_skill_md(
        cls,
        content: bytes | str,
        files: Mapping[str, bytes | str] | None = None,
        *,
        tags: list[str] | None = None,
        is_public: bool = False,
        shared_with: Mapping[str, Right] | None = None,
    ) -> "SkillCreate":
        """Return the skill that a `SKILL.md` and its files, by path relative to it, describe.

        Raises:
            SkillFormatError: If the `SKILL.md` cannot be read.
            SkillTooLargeError: If it is over 10 MiB.
        """
        document = Document.read(content)
        return cls(
            name=document.name,
            description=document.description,
            content=document.content,
            tags=document.tags if tags is None else tags,
            is_public=is_public,
            shared_with=dict(shared_with or {}),
            frontmatter=document.frontmatter,
            encoding=document.encoding,  # type: ignore[arg-type]
            files=[SkillFileCreate(path=path, content=data) for path, data in (files or {}).items()],
        )

    @classmethod
    def from_directory(
        cls,
        path: str | os.PathLike[str],
        *,
        tags: list[str] | None = None,
        is_public: bool = False,
        shared_with: Mapping[str, Right] | None = None,
        limits: StoreLimits | None = None,
    ) -> "SkillCreate":
        """Return the skill that a directory holds: its `SKILL.md` and all its other files.

        Raises:
            SkillFormatError: If it has no `SKILL.md`, or that cannot be read.
            SkillPathError: If it holds a link or another special file.
            SkillTooLargeError: If it holds too many files, or they are too large.
        """
        content, files = read_directory(path, limits)
        return cls.from_skill_md(content, files, tags=tags, is_public=is_public, shared_with=shared_with)

    def document(self) -> Document:
        """Return the skill's `SKILL.md`; without tags, those of the frontmatter are used."""
        tags = self.tags
        if self.frontmatter is not None and "tags" not in self.model_fields_set:
            tags = Document.read(join_document(self.frontmatter, self.content)).tags
        return Document(self.name, self.description, self.content, tags, self.frontmatter, self.encoding)


class SkillUpdate(BaseModel):
    """Changes to a skill; fields that are left out or `null` stay as they are."""

    model_config = ConfigDict(extra="forbid")

    name: str | None = Field(default=None, min_length=1, max_length=128)
    description: str | None = Field(default=None, min_length=1, max_length=MAX_DESCRIPTION_LENGTH)
    content: str | None = None
    tags: Tags | None = None
    is_public: bool | None = None
    frontmatter: str | None = None
    encoding: SkillEncoding | None = None
    shared_with: dict[str, Right] | None = Field(default=None, max_length=MAX_GROUPS)

    def apply(self, document: Document) -> Document:
        """Return the `SKILL.md` with these changes."""
        given = self.model_dump(include={"name", "description", "content", "tags", "encoding"}, exclude_none=True)
        if self.frontmatter is not None and self.frontmatter != document.frontmatter:
            content = document.content if self.content is None else self.content
            read = Document.read(join_document(self.frontmatter, content))
            given = {"name": read.name, "description": read.description, "tags": read.tags, **given}
            given["encoding"] = self.encoding or "utf-8"
            given["frontmatter"] = self.frontmatter
        return document.change(**given)


class SkillDocument(BaseModel):
    """A whole skill as files: its `SKILL.md`, and all its other files."""

    model_config = ConfigDict(extra="forbid")

    skill_md: str | bytes
    encoding: FileEncoding = "utf-8"
    """How the `SKILL.md` is encoded in JSON: base64 if it is not UTF-8."""

    files: Files | None = None
    """All files; any other is removed. `None` leaves the files as they are."""

    @model_validator(mode="after")
    def _decode(self) -> "SkillDocument":
        self.skill_md = _decode(self.skill_md, self.encoding)
        return self


class SkillFileSchema(BaseModel):
    """A file as it is shown; listings leave out `content`."""

    model_config = ConfigDict(from_attributes=True)

    id: UUID
    path: str
    size: int
    encoding: FileEncoding
    content: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _read(cls, given: Any) -> Any:  # noqa: ANN401 - whatever is to be shown
        return _file_values(given, given.data if given.has_content else None) if isinstance(given, SkillFile) else given

    @classmethod
    def of(cls, file: SkillFile, *, content: bytes | None = None) -> "SkillFileSchema":
        """Return a file as it is shown, with a content or without."""
        return cls.model_validate(_file_values(file, content))


def _file_values(file: SkillFile, content: bytes | None) -> dict[str, Any]:
    shown = None if content is None else content.decode() if file.is_text else base64.b64encode(content).decode()
    encoding = "utf-8" if file.is_text else "base64"
    return {"id": file.id, "path": file.path, "size": file.size, "encoding": encoding, "content": shown}


class SkillSchema(BaseModel):
    """A skill as it is shown; listings leave out `content`, `frontmatter` and `files`."""

    model_config = ConfigDict(from_attributes=True)

    id: UUID
    revision: int
    name: str
    description: str
    content: str | None
    tags: list[str]
    is_public: bool
    is_hidden: bool
    is_approved: bool
    owner_id: str | None
    shared_with: dict[str, Right]
    frontmatter: str | None
    encoding: SkillEncoding
    size: int
    created_at: datetime
    updated_at: datetime
    files: list[SkillFileSchema] | None

    @model_validator(mode="before")
    @classmethod
    def _read(cls, given: Any) -> Any:  # noqa: ANN401 - whatever is to be shown
        return _values(given, files=given.has_files) if isinstance(given, Skill) else given

    @classmethod
    def of(cls, skill: Skill, *, files: bool = True, contents: bool = True) -> "SkillSchema":
        """Return a skill as it is shown, with its files and their contents if those were read and are wanted."""
        return cls.model_validate(_values(skill, files=files and skill.has_files, contents=contents))


def _values(skill: Skill, *, files: bool, contents: bool = True) -> dict[str, Any]:
    whole = skill.has_text
    listed = sorted(skill.files, key=lambda file: file.path) if files else None
    return {
        **{name: getattr(skill, name) for name in SkillSchema.model_fields if name not in _HEAVY},
        # A former version was never written as a row, so it lacks the database's defaults.
        "is_hidden": skill.is_hidden or False,
        "is_approved": skill.is_approved or False,
        "content": skill.content if whole else None,
        "frontmatter": skill.frontmatter if whole else None,
        "files": listed if contents or listed is None else [SkillFileSchema.of(file) for file in listed],
    }


_HEAVY = frozenset({"content", "frontmatter", "files"})
