"""Search in the database: the words that are indexed, queries made of them, and how matches are ranked.

Used where a library is too large for the ranker that agents use (`deepskills._catalog.search`). PostgreSQL searches the
column `words` by `tsquery`, SQLite a full-text table beside it. Both get the same words: what counts more is repeated
more often, so that the weights are the same on both databases and stand in one place, `WEIGHTS`.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, column, func, table, text

from deepskills._catalog.search import split_words
from deepskills.store.db.models import SEARCH_TABLE, Skill

_SEARCH = table(SEARCH_TABLE, column("rowid"), column("words"))

MAX_QUERY_WORDS = 32
"""How many words of a query count."""

MIN_BEGINNING = 5
"""How many first letters two forms of a word share at least."""

SHARED_BEGINNING = 0.65
"""How much of a word its other forms share with it."""

MAX_WORD_LENGTH = 64
"""Longest word that is indexed; nobody types a longer one."""


WEIGHTS = {"name": 2, "tags": 1, "description": 1}
"""How often a word counts, by where it is. A change needs the words of stored skills to be written again."""


def indexed_words(name: str, description: str, tags: Sequence[str]) -> str:
    """Return the words of a skill, repeated by their weight."""
    words = [
        *split_words(name) * WEIGHTS["name"],
        *split_words(" ".join(tags)) * WEIGHTS["tags"],
        *split_words(description, indexing=True) * WEIGHTS["description"],
    ]
    return " ".join(word[:MAX_WORD_LENGTH] for word in words)


def query_words(query: str) -> list[tuple[str, bool]]:
    """Return what to look for: words, and the beginnings that their other forms share, marked so."""
    found: dict[tuple[str, bool], None] = {}
    for word in list(dict.fromkeys(split_words(query)))[:MAX_QUERY_WORDS]:
        found[word[:MAX_WORD_LENGTH], False] = None
        shared = max(MIN_BEGINNING, round(len(word) * SHARED_BEGINNING))
        if len(word) > shared:
            found[word[:shared], True] = None
    return list(found)


def postgres_query(words: Sequence[tuple[str, bool]]) -> str:
    """Return the text of a `tsquery`; words hold letters and digits alone, and quotes make them plain."""
    return " | ".join(f"'{word}'{':*' if is_beginning else ''}" for word, is_beginning in words)


def sqlite_query(words: Sequence[tuple[str, bool]]) -> str:
    """Return the text of a query for FTS5."""
    return " OR ".join(f'"{word}"{" *" if is_beginning else ""}' for word, is_beginning in words)


def best_matches(skills: Select[Any], query: str, dialect: str) -> Select[Any] | None:
    """Return a query for those of `skills` that match, best first; `None` if the query says nothing."""
    words = query_words(query)
    if not words:
        return None
    if dialect == "postgresql":
        wanted = func.to_tsquery(text("'simple'"), postgres_query(words))
        return skills.where(Skill.words.op("@@")(wanted)).order_by(func.ts_rank(Skill.words, wanted).desc())
    found = skills.join(_SEARCH, _SEARCH.c.rowid == Skill.number)
    found = found.where(text(f"{SEARCH_TABLE} MATCH :wanted").bindparams(wanted=sqlite_query(words)))
    return found.order_by(func.bm25(text(SEARCH_TABLE)))
