"""What the tables are made of: the base class, their naming, times in UTC, and words to search."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    DateTime,
    Dialect,
    MetaData,
    Text,
    TypeDecorator,
    cast,
    func,
    literal_column,
)
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import UserDefinedType

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


class _SearchedWords(UserDefinedType[str]):
    """Words as PostgreSQL searches them, worked out once, when they are written."""

    cache_ok = True

    def get_col_spec(self, **_options: Any) -> str:  # noqa: ANN401 - SQLAlchemy's signature
        """Return the name of the type."""
        return "TSVECTOR"

    def bind_expression(self, bindvalue: BindParameter[str]) -> ColumnElement[str]:
        """Return what is written for a text of words."""
        return func.to_tsvector(literal_column("'simple'"), cast(bindvalue, Text))


WORDS = Text().with_variant(_SearchedWords(), "postgresql")
"""Words that are looked for: a text, and on PostgreSQL what it searches."""


class Base(DeclarativeBase):
    """The tables of the store; `Base.metadata` describes them all."""

    metadata = MetaData(naming_convention=_NAMING)
