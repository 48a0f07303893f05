"""Which exceptions mean that the database did not serve, and what to tell about it. Pure."""

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from deepskills._skillmd.text import one_line
from deepskills.store._errors import SkillStoreUnavailableError

TABLES_MISSING = "the tables of the skill store are missing or old: run `migrations.upgrade` on the database first"
"""What helps where nobody made the tables."""

_MAX_REASON = 200
_UNDEFINED = frozenset({"42P01", "42703"})
"""PostgreSQL's codes for a table and a column that are not there."""
_UNDEFINED_WORDS = ("no such table", "no such column", "has no column")


def unavailable(error: BaseException) -> SkillStoreUnavailableError | None:
    """Return what to raise for a database that did not serve; `None` for an error of another kind.

    Drivers raise what they like while they connect, so their own exceptions count too. A value that the database does
    not take is not such an error.
    """
    if isinstance(error, SkillStoreUnavailableError):
        return error
    if isinstance(error, IntegrityError | DataError):
        return None
    from_driver = type(error).__module__.partition(".")[0] in {"asyncpg", "aiosqlite", "sqlite3"}
    if not from_driver and not isinstance(error, DBAPIError | PoolTimeoutError | OSError):
        return None
    if are_tables_missing(error):
        return SkillStoreUnavailableError(TABLES_MISSING)
    return SkillStoreUnavailableError(f"the skill database did not answer ({_reason(error)})")


def are_tables_missing(error: BaseException) -> bool:
    """Whether the database says that a table or column of the store is not there."""
    origin = _origin(error)
    text = str(origin).lower()
    is_undefined = getattr(origin, "sqlstate", None) in _UNDEFINED or any(words in text for words in _UNDEFINED_WORDS)
    return is_undefined and "deepskills_" in text


def _origin(error: BaseException) -> BaseException:
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error


def _reason(error: BaseException) -> str:
    """Return why, without the statement and the values that SQLAlchemy adds."""
    origin = _origin(error)
    lines = str(origin).splitlines()
    return one_line(f"{type(origin).__name__}: {lines[0] if lines else ''}")[:_MAX_REASON]
