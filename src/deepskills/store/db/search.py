"""Search: what is searched, with which weights, by the ranker of the agents or in the database.

Up to a few thousand visible skills are ranked as agents rank them (`deepskills._catalog.search`), by an index in memory
that is kept as long as those skills stay as they are. Beyond that the database searches. PostgreSQL searches the
column `words` by `tsquery`, SQLite a full-text table beside it. Both get the same words: what counts more is repeated
more often, so that the weights are the same on both databases and stand in one place, `WEIGHTS`.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy import Select, column, func, table, text

from deepskills._catalog.search import Document, SearchIndex
from deepskills._catalog.words import split_words
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


@dataclass(frozen=True)
class Searchable:
    """What a search looks at."""

    id: UUID
    name: str
    description: str
    tags: list[str] = field(default_factory=list)


class _Named(str):
    """A skill's name that knows whose it is: the index gives names back, and several skills may have one name."""

    __slots__ = ("skill_id",)
    skill_id: UUID

    @classmethod
    def of(cls, skill: Searchable) -> "_Named":
        named = cls(skill.name)
        named.skill_id = skill.id
        return named


class Ranker:
    """An index over some skills, which ranks them as the agents' search does."""

    def __init__(self, skills: Sequence[Searchable]) -> None:
        documents = [Document(_Named.of(skill), skill.description, " ".join(skill.tags)) for skill in skills]
        self._index = SearchIndex(documents)

    def __len__(self) -> int:
        return len(self._index)

    def search(self, query: str) -> list[UUID]:
        """Return the ids of the skills that fit a query, best first."""
        found = self._index.search(query, len(self._index))
        return [name.skill_id for name in found if isinstance(name, _Named)]


class Rankers:
    """Keeps the indexes that were used last, by what names the skills in them; safe to share by threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Ranker] = OrderedDict()

    def get(self, mark: str) -> Ranker | None:
        """Return the index over the skills of a mark."""
        with self._lock:
            found = self._known.get(mark)
            if found is not None:
                self._known.move_to_end(mark)
            return found

    def put(self, mark: str, ranker: Ranker) -> None:
        """Keep an index; the one that was not used for longest goes."""
        with self._lock:
            self._known[mark] = ranker
            while len(self._known) > self._size:
                self._known.popitem(last=False)


MAX_RANKERS = 16
"""How many indexes a process keeps: each has up to a few thousand skills, which is a few megabytes."""

rankers = Rankers(MAX_RANKERS)
"""The indexes of this process. A mark is made of random stamps, so that two databases do not share one."""
