"""What goes into the service and over HTTP. Shapes only: rules that need the store are the service's."""

import base64
import binascii
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal
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
from deepskills.store._document import Document
from deepskills.store._models import Skill, SkillFile
from deepskills.store._rules import MAX_TAGS

FileEncoding = Literal["utf-8", "base64"]
"""How a file's content is written in JSON."""

SkillEncoding = Literal["utf-8", "utf-16-le", "utf-16-be"]
"""How a `SKILL.md` is encoded."""


class SkillFileCreate(BaseModel):
    """A file to add to a skill; over JSON, bytes travel as base64."""

    model_config = ConfigDict(extra="forbid")

    path: str = Field(min_length=1, examples=["references/guide.md"])
    content: str | bytes
    encoding: FileEncoding = "utf-8"

    @model_validator(mode="after")
    def _decode(self) -> "SkillFileCreate":
        if self.encoding == "base64" and isinstance(self.content, str):
            try:
                self.content = base64.b64decode(self.content, validate=True)
            except (binascii.Error, ValueError) as error:
                raise ValueError(f"content is not base64: {error}") from None
        return self

    @model_serializer(mode="wrap")
    def _encode(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        if info.mode != "json" or isinstance(self.content, str):
            return handler(self)  # type: ignore[no-any-return]
        return {"path": self.path, "content": base64.b64encode(self.content).decode(), "encoding": "base64"}


class SkillCreate(BaseModel):
    """A skill to create: values, and the frontmatter as written where its bytes matter."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=128, examples=["release-notes"])
    description: str = Field(min_length=1, max_length=MAX_DESCRIPTION_LENGTH)
    content: str = ""
    tags: list[str] = Field(default_factory=list, max_length=MAX_TAGS)
    is_public: bool = False
    frontmatter: str | None = None
    encoding: SkillEncoding = "utf-8"
    files: list[SkillFileCreate] = Field(default_factory=list)

    @classmethod
    def from_skill_md(
        cls,
        content: bytes | str,
        files: Mapping[str, bytes | str] | None = None,
        *,
        tags: list[str] | None = None,
        is_public: bool = False,
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
            frontmatter=document.frontmatter,
            encoding=document.encoding,  # type: ignore[arg-type]
            files=[SkillFileCreate(path=path, content=data) for path, data in (files or {}).items()],
        )

    def document(self) -> Document:
        """Return the skill's `SKILL.md`."""
        return Document(self.name, self.description, self.content, self.tags, self.frontmatter, self.encoding)


class SkillUpdate(BaseModel):
    """What changes in a skill; what is left out, or `null`, stays."""

    model_config = ConfigDict(extra="forbid")

    name: str | None = Field(default=None, min_length=1, max_length=128)
    description: str | None = Field(default=None, min_length=1, max_length=MAX_DESCRIPTION_LENGTH)
    content: str | None = None
    tags: list[str] | None = Field(default=None, max_length=MAX_TAGS)
    is_public: bool | None = None
    frontmatter: str | None = None
    encoding: SkillEncoding | None = None

    def apply(self, document: Document) -> Document:
        """Return the `SKILL.md` with these changes."""
        given = self.model_dump(include={"name", "description", "content", "tags", "encoding"}, exclude_none=True)
        if self.frontmatter is not None and self.frontmatter != document.frontmatter:
            content = document.content if self.content is None else self.content
            read = Document.read(self.frontmatter + content)
            given = {"name": read.name, "description": read.description, "tags": read.tags, **given}
            given["encoding"] = self.encoding or "utf-8"
            given["frontmatter"] = self.frontmatter
        return document.changed(**given)


class SkillFileSchema(BaseModel):
    """A file as it is shown; a listing leaves `content` out."""

    id: UUID
    path: str
    size: int
    encoding: FileEncoding
    content: str | None = None

    @classmethod
    def of(cls, file: SkillFile) -> "SkillFileSchema":
        """Return a file as it is shown."""
        content = None
        if file.has_content:
            data = file.content
            content = data if isinstance(data, str) else base64.b64encode(data).decode()
        return cls(
            id=file.id, path=file.path, size=file.size, encoding="utf-8" if file.is_text else "base64", content=content
        )


class SkillSchema(BaseModel):
    """A skill as it is shown."""

    id: UUID
    name: str
    description: str
    content: str
    tags: list[str]
    is_public: bool
    owner_id: str | None
    frontmatter: str | None
    encoding: SkillEncoding
    files: list[SkillFileSchema]
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, skill: Skill) -> "SkillSchema":
        """Return a skill as it is shown."""
        return cls(
            id=skill.id,
            name=skill.name,
            description=skill.description,
            content=skill.content,
            tags=skill.tags,
            is_public=skill.is_public,
            owner_id=skill.owner_id,
            frontmatter=skill.frontmatter,
            encoding=skill.encoding,  # type: ignore[arg-type]
            files=[SkillFileSchema.of(file) for file in sorted(skill.files, key=lambda file: file.path)],
            created_at=skill.created_at,
            updated_at=skill.updated_at,
        )
