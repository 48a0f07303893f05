"""The tables: skills, their files and their tags. Nothing here decides or queries."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import (
    Boolean,
    DateTime,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
    Uuid,
    inspect,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship, validates

from deepskills._errors import SkillsError
from deepskills._types import MAX_NAME_LENGTH
from deepskills.store._rules import MAX_OWNER_LENGTH, MAX_PATH_LENGTH, MAX_TAG_LENGTH, name_key

_FOLDED = 4
"""How many times longer a text may become when its case is folded."""

_NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


def now() -> datetime:
    """Return the time, in UTC."""
    return datetime.now(UTC)


class UtcDateTime(TypeDecorator[datetime]):
    """A time in UTC, also where the database keeps no time zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - SQLAlchemy's signature
        """Return the time as the database is to keep it."""
        return value.astimezone(UTC) if value is not None else None

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - SQLAlchemy's signature
        """Return the time with its zone."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """The tables of the store; `Base.metadata` describes them all."""

    metadata = MetaData(naming_convention=_NAMING)


class SkillTag(Base):
    """One tag of a skill, in a row of its own so that every database finds it by an index."""

    __tablename__ = "deepskills_tags"

    skill_id: Mapped[UUID] = mapped_column(
        Uuid, ForeignKey("deepskills_skills.id", ondelete="CASCADE"), primary_key=True
    )
    position: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    tag: Mapped[str] = mapped_column(String(MAX_TAG_LENGTH))
    tag_key: Mapped[str] = mapped_column(String(MAX_TAG_LENGTH * _FOLDED), index=True)

    @validates("tag")
    def _set_key(self, _key: str, tag: str) -> str:
        self.tag_key = tag.casefold()
        return tag


class SkillFile(Base):
    """A file of a skill, its `SKILL.md` aside. Kept as bytes; `content` is text where the bytes are."""

    __tablename__ = "deepskills_files"
    __table_args__ = (UniqueConstraint("skill_id", "path"),)

    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True, default=uuid4)
    skill_id: Mapped[UUID] = mapped_column(Uuid, ForeignKey("deepskills_skills.id", ondelete="CASCADE"))
    path: Mapped[str] = mapped_column(String(MAX_PATH_LENGTH))
    size: Mapped[int] = mapped_column(Integer)
    is_text: Mapped[bool] = mapped_column(Boolean)
    data: Mapped[bytes] = mapped_column(LargeBinary, deferred=True)

    @property
    def has_content(self) -> bool:
        """Whether the content was read; a listing of skills leaves it out."""
        return "data" not in inspect(self).unloaded

    @property
    def content(self) -> str | bytes:
        """The file: text if it is UTF-8 without NUL, else bytes.

        Raises:
            SkillsError: If the skill comes from a listing, which leaves contents out.
        """
        if not self.has_content:
            raise SkillsError(f"The content of {self.path!r} was not read. Get the skill by its id or name.")
        return self.data.decode() if self.is_text else self.data

    @content.setter
    def content(self, content: str | bytes) -> None:
        self.data = content.encode() if isinstance(content, str) else content
        self.size = len(self.data)
        self.is_text = _is_text(self.data)


class Skill(Base):
    """A skill: its values, and the frontmatter as its author wrote it."""

    __tablename__ = "deepskills_skills"
    __table_args__ = (
        Index("uq_deepskills_skills_owner_id_name_key", "owner_id", "name_key", unique=True),
        # Databases hold any number of rows without an owner to be distinct.
        Index(
            "uq_deepskills_skills_system_name_key",
            "name_key",
            unique=True,
            sqlite_where=text("owner_id IS NULL"),
            postgresql_where=text("owner_id IS NULL"),
        ),
        Index(None, "name_key"),
        Index(None, "is_public"),
    )

    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True, default=uuid4)
    owner_id: Mapped[str | None] = mapped_column(String(MAX_OWNER_LENGTH))
    """Whose it is; `None` for a system skill."""

    name: Mapped[str] = mapped_column(String(MAX_NAME_LENGTH))
    name_key: Mapped[str] = mapped_column(String(MAX_NAME_LENGTH * _FOLDED))
    description: Mapped[str] = mapped_column(Text)
    content: Mapped[str] = mapped_column(Text)
    """The instructions: what follows the frontmatter."""

    frontmatter: Mapped[str | None] = mapped_column(Text)
    """All before `content`, fences included, as written; `None` to have it generated."""

    encoding: Mapped[str] = mapped_column(String(16), default="utf-8")
    """How the `SKILL.md` was encoded."""

    is_public: Mapped[bool] = mapped_column(Boolean, default=False)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)

    files: Mapped[list[SkillFile]] = relationship(
        cascade="all, delete-orphan", passive_deletes=True, order_by=SkillFile.path
    )
    tag_rows: Mapped[list[SkillTag]] = relationship(
        cascade="all, delete-orphan", passive_deletes=True, order_by=SkillTag.position
    )

    def __init__(self, **values: Any) -> None:  # noqa: ANN401 - SQLAlchemy's constructor
        # A skill without files and tags has none, also before it was written.
        super().__init__(**{"files": [], "tags": [], **values})

    @property
    def tags(self) -> list[str]:
        """The tags, in order."""
        return [row.tag for row in self.tag_rows]

    @tags.setter
    def tags(self, tags: list[str]) -> None:
        self.tag_rows = [SkillTag(position=position, tag=tag) for position, tag in enumerate(tags)]

    @validates("name")
    def _set_key(self, _key: str, name: str) -> str:
        self.name_key = name_key(name)
        return name


def _is_text(data: bytes) -> bool:
    if b"\x00" in data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
