"""What skills were and what happened to them: former texts and files, the log of changes, use by day."""

import datetime as dt
from datetime import datetime
from uuid import UUID, uuid4

from sqlalchemy import (
    DDL,
    BigInteger,
    Boolean,
    Connection,
    Date,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    Uuid,
    event,
)
from sqlalchemy.orm import Mapped, mapped_column

from deepskills._types import MAX_NAME_LENGTH
from deepskills.store._base import Base, UtcDateTime
from deepskills.store._models import Skill
from deepskills.store._rules import MAX_OWNER_LENGTH, MAX_PATH_LENGTH

SEARCH_TABLE = "deepskills_search"
"""SQLite's full-text index over the words of skills; its rows go by `Skill.number`."""

CREATE_SEARCH_TABLE = (
    f"CREATE VIRTUAL TABLE IF NOT EXISTS {SEARCH_TABLE} USING fts5(words, tokenize = 'unicode61 remove_diacritics 0')"
)
"""What makes SQLite's full-text index."""


class FormerText(Base):
    """A `SKILL.md` that a skill had, from one revision up to another."""

    __tablename__ = "deepskills_former_texts"

    skill_id: Mapped[UUID] = mapped_column(
        Uuid, ForeignKey("deepskills_skills.id", ondelete="CASCADE"), primary_key=True
    )
    since: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    until: Mapped[int] = mapped_column(BigInteger)
    name: Mapped[str] = mapped_column(String(MAX_NAME_LENGTH))
    description: Mapped[str] = mapped_column(Text)
    content: Mapped[str] = mapped_column(Text)
    frontmatter: Mapped[str | None] = mapped_column(Text)
    encoding: Mapped[str] = mapped_column(String(16))
    tags: Mapped[str] = mapped_column(Text)
    """The tags, joined by commas, which no tag holds."""


class FormerFile(Base):
    """A file that a skill had, from one revision up to another."""

    __tablename__ = "deepskills_former_files"
    __table_args__ = (Index(None, "skill_id", "until"),)

    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True, default=uuid4)
    since: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    until: Mapped[int] = mapped_column(BigInteger)
    skill_id: Mapped[UUID] = mapped_column(Uuid, ForeignKey("deepskills_skills.id", ondelete="CASCADE"))
    path: Mapped[str] = mapped_column(String(MAX_PATH_LENGTH))
    size: Mapped[int] = mapped_column(Integer)
    is_text: Mapped[bool] = mapped_column(Boolean)
    digest: Mapped[str] = mapped_column(String(64))
    data: Mapped[bytes] = mapped_column(LargeBinary)


class SkillChange(Base):
    """One change of a skill: who did what, when. Written once, and kept when the skill is purged."""

    __tablename__ = "deepskills_changes"
    __table_args__ = (Index(None, "skill_id", "revision"), Index(None, "owner_id", "revision"))

    revision: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    skill_id: Mapped[UUID] = mapped_column(Uuid)
    owner_id: Mapped[str | None] = mapped_column(String(MAX_OWNER_LENGTH))
    """Whose the skill was."""

    name: Mapped[str] = mapped_column(String(MAX_NAME_LENGTH))
    action: Mapped[str] = mapped_column(String(32))
    user_id: Mapped[str | None] = mapped_column(String(MAX_OWNER_LENGTH))
    """Who did it; `None` for the operator's code."""

    at: Mapped[datetime] = mapped_column(UtcDateTime)


class SkillUsage(Base):
    """How often a skill was used on one day in one way."""

    __tablename__ = "deepskills_usage"

    skill_id: Mapped[UUID] = mapped_column(
        Uuid, ForeignKey("deepskills_skills.id", ondelete="CASCADE"), primary_key=True
    )
    day: Mapped[dt.date] = mapped_column(Date, primary_key=True)
    type: Mapped[str] = mapped_column(String(32), primary_key=True)
    trigger: Mapped[str] = mapped_column(String(32), primary_key=True)
    count: Mapped[int] = mapped_column(BigInteger)


class Counter(Base):
    """One row: the revision of the last change. Writers lock the table, so that commits follow revisions."""

    __tablename__ = "deepskills_counter"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    value: Mapped[int] = mapped_column(BigInteger)
    stamp: Mapped[int] = mapped_column(BigInteger)
    """A random number of the last change: stores with the same stamp have the same skills."""


event.listen(Skill.__table__, "after_create", DDL(CREATE_SEARCH_TABLE).execute_if(dialect="sqlite"))  # type: ignore[no-untyped-call]


@event.listens_for(Counter.__table__, "after_create")
def _insert_first_row(table: Table, connection: Connection, **_: object) -> None:
    connection.execute(table.insert().values(id=1, value=0, stamp=0))
