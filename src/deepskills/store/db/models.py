"""The tables: skills as they are now, their former versions, what happened to them, and how they are used.

Nothing here decides or queries. Three groups of tables:

- now: `Skill` with its `SkillFile`, `SkillTag` and `SkillShare` rows;
- before: `FormerText` and `FormerFile`, each valid from one revision (`since`) up to another (`until`). A change moves
  only the rows that it replaces, so a version costs what changed, not a copy of the skill;
- about: `SkillChange` (the append-only log), `DailyUsage` (counts by day), `Counter` (the last revision).

A new column needs a migration in `store/migrations/versions`; a test compares the two.
"""

import datetime as dt
import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import (
    DDL,
    JSON,
    BigInteger,
    BindParameter,
    Boolean,
    ColumnElement,
    Connection,
    Date,
    DateTime,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    Uuid,
    event,
    func,
    inspect,
    literal_column,
    select,
    text,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship, validates
from sqlalchemy.types import UserDefinedType

from deepskills._catalog.lookup import MAX_REQUIRED_NAME
from deepskills._errors import SkillsError
from deepskills._skillmd.names import stored_key
from deepskills._types import MAX_NAME_LENGTH
from deepskills.store.document import Document
from deepskills.store.rules import MAX_OWNER_LENGTH, MAX_PATH_LENGTH, MAX_TAG_LENGTH, Right

FOLDED = 4
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
    """A time in UTC, even if the database keeps no time zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - SQLAlchemy's signature
        """Return the time as the database keeps it."""
        return value.astimezone(UTC) if value is not None else None

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - SQLAlchemy's signature
        """Return the time with its zone."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


SEARCH_FIELDS = ("name", "tags", "description", "headings", "beginning")
"""The searched fields of a skill, in the order of `Skill.words`."""

FIELD_MARK = "\n"
"""Separates the fields in `Skill.words`."""

_FIELD_MARKS = "ABBCD"
"""How PostgreSQL marks each field."""


class _SearchedWords(UserDefinedType[str]):
    """Words as PostgreSQL searches them, computed once, when they are written."""

    cache_ok = True

    def get_col_spec(self, **_options: Any) -> str:  # noqa: ANN401 - SQLAlchemy's signature
        """Return the name of the type."""
        return "TSVECTOR"

    def bind_expression(self, bindvalue: BindParameter[str]) -> ColumnElement[str]:
        """Return the expression that writes words: each field marked with its weight."""
        # The text is bound once, in a subquery: SQLAlchemy cannot write several rows in one statement if a value is in
        # it more than once.
        given = select(sql_cast(bindvalue, Text).label("whole")).subquery("given")
        whole: Any = None
        for place, mark in enumerate(_FIELD_MARKS, 1):
            words = func.split_part(given.c.whole, literal_column("E'\\n'"), literal_column(str(place)))
            part = func.setweight(func.to_tsvector(literal_column("'simple'"), words), literal_column(f"'{mark}'"))
            whole = part if whole is None else whole.op("||")(part)
        found: ColumnElement[str] = select(whole).scalar_subquery()
        return found


WORDS = Text().with_variant(_SearchedWords(), "postgresql")
"""Searchable words: a text, and on PostgreSQL a `tsvector`."""


class Base(DeclarativeBase):
    """The tables of the store; `Base.metadata` describes them all."""

    metadata = MetaData(naming_convention=_NAMING)


LIVE = "deleted_at IS NULL"
"""The condition for skills that are not deleted."""

_DELETED = "deleted_at IS NOT NULL"


NEVER_SEEN = 1 << 62
"""The age of a name that nobody else could see yet: higher than every revision, so that it never comes first."""


class _OfSkill:
    """Rows that belong to a skill, and go with it."""

    skill_id: Mapped[UUID] = mapped_column(
        Uuid, ForeignKey("deepskills_skills.id", ondelete="CASCADE"), primary_key=True
    )


class _File:
    """What is kept of a file beside its key and content."""

    skill_id: Mapped[UUID] = mapped_column(Uuid, ForeignKey("deepskills_skills.id", ondelete="CASCADE"))
    path: Mapped[str] = mapped_column(String(MAX_PATH_LENGTH))
    size: Mapped[int] = mapped_column(Integer)
    is_text: Mapped[bool] = mapped_column(Boolean)
    digest: Mapped[str] = mapped_column(String(64))
    """SHA-256 of the content, in hexadecimal."""


class SkillTag(_OfSkill, Base):
    """A tag by which a skill is found, in its own row so that every database can index it."""

    __tablename__ = "deepskills_tags"
    __table_args__ = (Index(None, "tag_key", "skill_id"),)

    tag_key: Mapped[str] = mapped_column(String(MAX_TAG_LENGTH * FOLDED), primary_key=True)


class SkillShare(_OfSkill, Base):
    """A group through which a skill is seen, in its own row for the same reason."""

    __tablename__ = "deepskills_shares"
    __table_args__ = (Index(None, "group_id", "skill_id"),)

    group_id: Mapped[str] = mapped_column(String(MAX_OWNER_LENGTH), primary_key=True)
    since: Mapped[int] = mapped_column(BigInteger)
    """The revision from which the group has had the skill under its name."""


@dataclass(frozen=True)
class FileContent:
    """A file to store with a skill."""

    path: str
    data: bytes
    size: int
    is_text: bool
    digest: str

    @classmethod
    def of(cls, path: str, data: bytes) -> "FileContent":
        """Return a file with its size, kind and digest."""
        return cls(path, data, len(data), _is_text(data), hashlib.sha256(data).hexdigest())


class SkillFile(_File, Base):
    """A file of a skill, except its `SKILL.md`. Stored as bytes; `content` is text if the bytes are."""

    __tablename__ = "deepskills_files"
    __table_args__ = (UniqueConstraint("skill_id", "path"),)

    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True, default=uuid4)
    since: Mapped[int] = mapped_column(BigInteger, default=0)
    """The revision of the skill that brought this content."""

    data: Mapped[bytes] = mapped_column(LargeBinary, deferred=True)

    skill_revision = 0
    """The revision of its skill, on a file that a call to the service has just written."""

    @property
    def has_content(self) -> bool:
        """Whether the content was read."""
        return "data" not in inspect(self).unloaded

    @property
    def content(self) -> str | bytes:
        """The content: text if it is UTF-8 without NUL, otherwise bytes.

        Raises:
            SkillsError: If the content was not read.
        """
        if not self.has_content:
            raise SkillsError(f"The content of {self.path!r} was not read. Get the skill by its id or name.")
        return self.data.decode() if self.is_text else self.data

    @content.setter
    def content(self, content: str | bytes) -> None:
        known = FileContent.of(self.path or "", content.encode() if isinstance(content, str) else content)
        self.data, self.size, self.is_text, self.digest = known.data, known.size, known.is_text, known.digest


class Skill(Base):
    """A skill: its values, and the frontmatter as its author wrote it.

    Listings leave out `content`, `frontmatter` and `files`; reading those then raises.
    """

    __tablename__ = "deepskills_skills"
    __table_args__ = (
        Index(
            "uq_deepskills_skills_owner_id_name_key",
            "owner_id",
            "name_key",
            unique=True,
            sqlite_where=text(LIVE),
            postgresql_where=text(LIVE),
        ),
        # A unique index treats rows without an owner as distinct, so system skills need their own.
        Index(
            "uq_deepskills_skills_system_name_key",
            "name_key",
            unique=True,
            sqlite_where=text(f"owner_id IS NULL AND {LIVE}"),
            postgresql_where=text(f"owner_id IS NULL AND {LIVE}"),
        ),
        Index(
            "ix_deepskills_skills_public",
            "name_key",
            "name_since",
            "id",
            sqlite_where=text(f"is_public AND {LIVE}"),
            postgresql_where=text(f"is_public AND {LIVE}"),
        ),
        Index(None, "name_key"),
        Index(None, "number"),
        Index(None, "owner_id", "deleted_at"),
        # Only deleted skills: a planner without statistics would use an index over all rows for every query.
        Index(None, "deleted_at", sqlite_where=text(_DELETED), postgresql_where=text(_DELETED)),
        # As an expression, which Alembic leaves out when it compares tables on a database without such an index.
        # Searches read its list of new entries from end to end, so that list is kept short.
        Index(
            "ix_deepskills_skills_words",
            text("words"),
            postgresql_using="gin",
            postgresql_with={"gin_pending_list_limit": 256},
        ).ddl_if(dialect="postgresql"),
    )

    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True, default=uuid4)
    owner_id: Mapped[str | None] = mapped_column(String(MAX_OWNER_LENGTH))
    """Its owner; `None` for a system skill."""

    name: Mapped[str] = mapped_column(String(MAX_NAME_LENGTH))
    name_key: Mapped[str] = mapped_column(String(MAX_NAME_LENGTH * FOLDED))
    description: Mapped[str] = mapped_column(Text)
    body: Mapped[str] = mapped_column("content", Text, deferred=True)
    head: Mapped[str | None] = mapped_column("frontmatter", Text, deferred=True)
    encoding: Mapped[str] = mapped_column(String(16), default="utf-8")
    """The encoding of the `SKILL.md`."""

    tags: Mapped[list[str]] = mapped_column(JSON, default=list)
    """The tags, in order. `SkillTag` has them again, for queries."""

    shared_with: Mapped[dict[str, Right]] = mapped_column(JSON, default=dict)
    """The groups that the skill is shared with, and what their members may do. `SkillShare` has them again."""

    is_public: Mapped[bool] = mapped_column(Boolean, default=False)
    is_hidden: Mapped[bool] = mapped_column(Boolean, default=False)
    """Whether an operator hides it from everybody but its owner."""

    is_approved: Mapped[bool] = mapped_column(Boolean, default=False)
    """Whether an operator approved its current text and files."""

    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    deleted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revision: Mapped[int] = mapped_column(BigInteger, default=0)
    """Raised by every change to the skill or its files; of two changes in the store, the later has the higher
    revision."""

    stamp: Mapped[int] = mapped_column(BigInteger, default=0)
    """A random number of each change: skills with the same stamps are the same skills, in any copy of a database."""

    number: Mapped[int] = mapped_column(BigInteger, default=0)
    """The revision that the skill was created with."""

    name_since: Mapped[int] = mapped_column(BigInteger, default=0)
    """The revision from which it has had its name, as a public skill if it is one."""

    text_since: Mapped[int] = mapped_column(BigInteger, default=0)
    """The revision that brought the current `SKILL.md`."""

    kept_since: Mapped[int] = mapped_column(BigInteger, default=0)
    """The first revision whose version is complete; a purge removed texts or files of earlier ones."""

    size: Mapped[int] = mapped_column(BigInteger, default=0)
    """The size of the text and of all files, in bytes."""

    words: Mapped[str] = mapped_column(WORDS, deferred=True, default="")
    """The words that the database searches: the stems of each field's words, one line per field."""

    beginning: Mapped[str] = mapped_column(Text, deferred=True, default="")
    """Headings and the beginning of the instructions, which the ranker reads."""

    file_rows: Mapped[list[SkillFile]] = relationship(
        cascade="all, delete-orphan", passive_deletes=True, order_by=SkillFile.path
    )

    def __init__(self, **values: Any) -> None:  # noqa: ANN401 - SQLAlchemy's constructor
        # Set explicitly: once the row is written, whatever was never set counts as not loaded.
        super().__init__(**{"files": [], "tags": [], "shared_with": {}, "frontmatter": None, **values})

    @property
    def content(self) -> str:
        """The instructions: what follows the frontmatter."""
        self._check_loaded("body", "content")
        return self.body

    @content.setter
    def content(self, content: str) -> None:
        self.body = content

    @property
    def frontmatter(self) -> str | None:
        """Everything before `content`, including fences, as written; `None` to have it generated."""
        self._check_loaded("head", "frontmatter")
        return self.head

    @frontmatter.setter
    def frontmatter(self, frontmatter: str | None) -> None:
        self.head = frontmatter

    @property
    def has_text(self) -> bool:
        """Whether the text was read; listings leave it out."""
        return not {"body", "head"} & inspect(self).unloaded

    @property
    def has_files(self) -> bool:
        """Whether the files were read; listings leave them out."""
        return "file_rows" not in inspect(self).unloaded

    @property
    def files(self) -> list[SkillFile]:
        """The files, sorted by path."""
        self._check_loaded("file_rows", "files")
        return self.file_rows

    @files.setter
    def files(self, files: list[SkillFile]) -> None:
        self.file_rows = files

    @validates("name")
    def _set_key(self, _key: str, name: str) -> str:
        self.name_key = stored_key(name)
        return name

    def _check_loaded(self, attribute: str, shown: str) -> None:
        if attribute in inspect(self).unloaded and inspect(self).has_identity:
            raise SkillsError(f"The {shown} of {self.name!r} was not read. Get the skill by its id or name.")


def document_of(skill: Skill) -> Document:
    """Return a stored skill's `SKILL.md`."""
    return Document(skill.name, skill.description, skill.content, skill.tags, skill.frontmatter, skill.encoding)


def _is_text(data: bytes) -> bool:
    if b"\x00" in data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


SEARCH_TABLE = "deepskills_search"
"""SQLite's full-text index over the words of skills; its row ids are `Skill.number`."""

CREATE_SEARCH_TABLE = (
    f"CREATE VIRTUAL TABLE IF NOT EXISTS {SEARCH_TABLE} "
    f"USING fts5({', '.join(SEARCH_FIELDS)}, tokenize = 'unicode61 remove_diacritics 0')"
)
"""Creates SQLite's full-text index."""

INSERT_SEARCH_ROW = (
    f"INSERT INTO {SEARCH_TABLE}(rowid, {', '.join(SEARCH_FIELDS)}) "  # noqa: S608 - constants
    f"VALUES (:number, {', '.join(f':{name}' for name in SEARCH_FIELDS)})"
)
"""Adds a skill to it."""


class SkillRequirement(_OfSkill, Base):
    """A name that a skill requires, so that a deletion can name the skills that need it."""

    __tablename__ = "deepskills_requires"
    __table_args__ = (Index(None, "name_key", "skill_id"),)

    position: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(String(MAX_REQUIRED_NAME))
    name_key: Mapped[str] = mapped_column(String(MAX_REQUIRED_NAME * FOLDED))


class Delivery(Base):
    """A skill that the loader wrote to a sandbox, so that it is known there even without its marker file."""

    __tablename__ = "deepskills_deliveries"

    user_key: Mapped[str] = mapped_column(String(MAX_OWNER_LENGTH), primary_key=True)
    """The owner of the sandbox; empty for nobody."""

    directory_key: Mapped[str] = mapped_column(String(64), primary_key=True)
    """SHA-256 of the directory, which may be longer than databases index."""

    directory: Mapped[str] = mapped_column(Text)
    skill_id: Mapped[UUID] = mapped_column(Uuid)
    digests: Mapped[str] = mapped_column(Text)
    """SHA-256 of some of the files that it wrote, the `SKILL.md` first, one per line."""


class FormerText(_OfSkill, Base):
    """A `SKILL.md` that a skill had, from one revision up to another."""

    __tablename__ = "deepskills_former_texts"
    __table_args__ = (Index(None, "until"),)

    since: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    until: Mapped[int] = mapped_column(BigInteger)
    name: Mapped[str] = mapped_column(String(MAX_NAME_LENGTH))
    description: Mapped[str] = mapped_column(Text)
    content: Mapped[str] = mapped_column(Text)
    frontmatter: Mapped[str | None] = mapped_column(Text)
    encoding: Mapped[str] = mapped_column(String(16))
    tags: Mapped[list[str]] = mapped_column(JSON)
    size: Mapped[int] = mapped_column(Integer)
    """The size of the whole text, in bytes."""


class FormerFile(_File, Base):
    """A file that a skill had, from one revision up to another."""

    __tablename__ = "deepskills_former_files"
    __table_args__ = (Index(None, "skill_id", "until"), Index(None, "until"))

    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True, default=uuid4)
    since: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    until: Mapped[int] = mapped_column(BigInteger)
    data: Mapped[bytes] = mapped_column(LargeBinary)


class SkillChange(Base):
    """One change to a skill: who did what and when. Written once, and kept when the skill is purged."""

    __tablename__ = "deepskills_changes"
    __table_args__ = (Index(None, "skill_id", "revision"), Index(None, "owner_id", "revision"))

    revision: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    skill_id: Mapped[UUID] = mapped_column(Uuid)
    owner_id: Mapped[str | None] = mapped_column(String(MAX_OWNER_LENGTH))
    """The owner of the skill at the time."""

    name: Mapped[str] = mapped_column(String(MAX_NAME_LENGTH))
    action: Mapped[str] = mapped_column(String(32))
    user_id: Mapped[str | None] = mapped_column(String(MAX_OWNER_LENGTH))
    """The user who did it; `None` for the operator's code."""

    at: Mapped[datetime] = mapped_column(UtcDateTime)
    has_content: Mapped[bool] = mapped_column(Boolean, default=False)
    """Whether it changed the text or the files."""

    audience: Mapped[str] = mapped_column(Text)
    """Who else could see the skill then: empty for nobody, `*` for everybody, or else groups, as JSON."""


class DailyUsage(_OfSkill, Base):
    """How often a skill was used on one day, for one kind of event and one trigger."""

    __tablename__ = "deepskills_usage"

    day: Mapped[dt.date] = mapped_column(Date, primary_key=True)
    type: Mapped[str] = mapped_column(String(32), primary_key=True)
    trigger: Mapped[str] = mapped_column(String(32), primary_key=True)
    count: Mapped[int] = mapped_column(BigInteger)


class Counter(Base):
    """One row: the last revision. Writers lock the table, so that they commit in the order of revisions."""

    __tablename__ = "deepskills_counter"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    value: Mapped[int] = mapped_column(BigInteger)
    stamp: Mapped[int] = mapped_column(BigInteger)
    """A random number of the last change: stores with the same stamp have the same skills."""


event.listen(Skill.__table__, "after_create", DDL(CREATE_SEARCH_TABLE).execute_if(dialect="sqlite"))  # type: ignore[no-untyped-call]


@event.listens_for(Counter.__table__, "after_create")
def _insert_first_row(table: Table, connection: Connection, **_: object) -> None:
    connection.execute(table.insert().values(id=1, value=0, stamp=0))
