"""Searches skills: the database finds those that have the words, and the best are ranked as agents rank them.

There is no index in memory: a search costs other users nothing, however many skills there are or change.
The database keeps five fields of a skill, each as the stems of its words: name, tags, description, headings and the
beginning of the instructions.

* **SQLite** has a full-text table with a column for each.
* **PostgreSQL** has one `tsvector`, in which the fields are marked with their weight.

Each word counts by the field that it is in and by how rare it is. How rare it is, is counted among the skills that the
viewer sees and no others: what a search finds, and in which order, must not tell which words are in private skills of
others. So SQLite's own `bm25`, which counts them all, is not used. Common words are left out if rarer ones find enough.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, column, func, literal, literal_column, select, table, union_all

from deepskills._catalog.search import SearchDocument, SearchIndex, beginning_of, query_words, searchable_fields
from deepskills._catalog.words import GRAMMAR_WORDS, STOP_WORDS, is_unspaced, split_words, stem
from deepskills.store.db.models import FIELD_MARK, SEARCH_FIELDS, SEARCH_TABLE, Skill

_SEARCH = table(SEARCH_TABLE, column("rowid"))

MAX_QUERY_WORDS = 32
"""How many words of a query skills are searched by."""

CANDIDATES = 100
"""How many of the best matches are ranked again as agents rank them; to read and count more takes longer."""

MAX_COUNTED = 1_000
"""Up to how many skills with a word are counted: more are common."""

MAX_MATCHES = 3 * MAX_COUNTED
"""How many skills the words of a query may match; more common words are left out if rarer ones found some."""

MIN_BEGINNING = 5
"""How many first letters two forms of a word share, at least."""

SHARED_BEGINNING = 0.65
"""The share of a word that its other forms begin with."""

MAX_WORD_LENGTH = 64
"""Longest word that is indexed; nobody types a longer one."""

WEIGHTS = {"beginning": 0.2, "headings": 0.4, "tags description": 0.9, "name": 1.0}
"""The weight of a word in each field."""


def index_words(name: str, description: str, tags: Sequence[str], content: str = "") -> str:
    """Return the stems of a skill's words, one line per field."""
    document = SearchDocument(name, description, " ".join(tags), beginning_of(content))
    return FIELD_MARK.join(map(_stems, searchable_fields(document)))


def _stems(text_: str) -> str:
    return " ".join(stem(word)[:MAX_WORD_LENGTH] for word in split_words(text_, indexing=True))


def search_row(number: int, words: str) -> dict[str, Any]:
    """Return the row of SQLite's full-text table for the words of a skill."""
    return {"number": number, **dict(zip(SEARCH_FIELDS, words.split(FIELD_MARK), strict=False))}


def telling_words(query: str) -> list[str]:
    """Return the stems to look for, in order."""
    words = dict.fromkeys(query_words(query))
    telling = [word for word in words if word not in STOP_WORDS]
    telling = telling or [word for word in words if word not in GRAMMAR_WORDS]
    return list(dict.fromkeys(stem(word)[:MAX_WORD_LENGTH] for word in telling))[:MAX_QUERY_WORDS]


def counts_of(skills: Select[Any], words: Sequence[str], dialect: str) -> Select[Any]:
    """Return a query for how many of `skills` have each word, counted up to a number."""
    found = (matching(skills, [word], dialect).limit(MAX_COUNTED).subquery() for word in words)
    return select(*(select(func.count()).select_from(some).scalar_subquery() for some in found))


def choose_words(counts: Mapping[str, int]) -> list[str]:
    """Return the words to search for, rarest first: the most common are left out if the others find enough."""
    found: list[str] = []
    matches = 0
    for word in sorted(counts, key=lambda word: counts[word]):
        matches += counts[word]
        if found and matches > MAX_MATCHES:
            break
        found.append(word)
    return found


def matching(skills: Select[Any], words: Sequence[str], dialect: str) -> Select[Any]:
    """Return a query for those of `skills` that have one of some words, in this or a similar form."""
    if dialect == "postgresql":
        return skills.where(Skill.words.op("@@")(_postgres_query(" | ".join(map(_postgres_term, words)))))
    return skills.join(_SEARCH, _SEARCH.c.rowid == Skill.number).where(_has(" OR ".join(map(_sqlite_term, words))))


def best_matches(skills: Select[Any], counts: Mapping[str, int], dialect: str) -> Select[Any]:
    """Return a query for those of `skills` that have any of some words, best first; the best have the lowest `rank`."""
    chosen = choose_words(counts)
    rarity = {word: math.log(1 + (2 * MAX_COUNTED - counts[word]) / (counts[word] + 0.5)) for word in chosen}
    if dialect == "postgresql":
        weights: ColumnElement[Any] = literal_column(f"'{{{', '.join(map(str, WEIGHTS.values()))}}}'::float4[]")
        rank: ColumnElement[Any] = literal(0.0)
        for word, each in rarity.items():
            # The word itself counts, and half as much its other forms.
            rank -= literal(each) * func.ts_rank(weights, Skill.words, _postgres_query(f"'{word}'"))
            rank -= literal(each / 2) * func.ts_rank(weights, Skill.words, _postgres_query(_postgres_term(word)))
        found = matching(skills, chosen, dialect)
    else:
        places = [
            select(_SEARCH.c.rowid, literal(-weight * share * each).label("rank")).where(_has(f"{{{fields}}} : {term}"))
            for word, each in rarity.items()
            for fields, weight in WEIGHTS.items()
            for term, share in ((f'"{word}"', 1.0), (_sqlite_term(word), 0.5))
        ]
        some = union_all(*places).subquery()
        ranked = select(some.c.rowid, func.sum(some.c.rank).label("rank")).group_by(some.c.rowid).subquery()
        found = skills.join(ranked, ranked.c.rowid == Skill.number)
        rank = ranked.c.rank
    return found.add_columns(rank.label("rank")).order_by(literal_column("rank"), Skill.name_key, Skill.id)


def with_texts(matches: Select[Any]) -> Select[UUID, str, str, list[str], str]:
    """Return a query for what the ranker reads of the skills that another query finds, in the same order."""
    found = matches.subquery()
    texts = select(Skill.id, Skill.name, Skill.description, Skill.tags, Skill.beginning)
    order = [found.c.rank] if "rank" in found.c else []
    return texts.join(found, found.c.id == Skill.id).order_by(*order, Skill.name_key, Skill.id)


def _beginning_of_word(word: str) -> str | None:
    """Return what other forms of a word share with it; `None` if it is too short for that to say anything."""
    shared = max(MIN_BEGINNING, round(len(word) * SHARED_BEGINNING))
    return word[:shared] if len(word) > shared and not is_unspaced(word) else None


def _postgres_query(query: str) -> ColumnElement[Any]:
    """Return a `tsquery`; words have only letters and digits, and quotes make them literal."""
    return func.to_tsquery(literal_column("'simple'"), query)


def _postgres_term(word: str) -> str:
    beginning = _beginning_of_word(word)
    return f"'{word}'" if beginning is None else f"'{beginning}':*"


def _sqlite_term(word: str) -> str:
    beginning = _beginning_of_word(word)
    return f'"{word}"' if beginning is None else f'"{beginning}" *'


def _has(query: str) -> ColumnElement[bool]:
    found: ColumnElement[bool] = literal_column(SEARCH_TABLE).op("MATCH")(query)
    return found


@dataclass(frozen=True)
class Matches:
    """What the database found for a query."""

    best: Sequence[tuple[UUID, SearchDocument]] = ()
    """The first matches of all, to be ranked again; none if only later ones were asked for."""

    further: Sequence[UUID] = ()
    """Matches behind those, in the order in which they stay."""

    is_guess: bool = False
    """Whether no skill has the words, and the best are just skills: only those that the ranker takes count."""

    def ids(self, query: str, offset: int) -> list[UUID]:
        """Return the ids of the matches from a place on, the first ones ranked as the agents' search ranks them."""
        index = SearchIndex([document for _, document in self.best])
        ranked = [self.best[place][0] for place, _score in index.score(query, len(self.best))] if self.best else []
        # Those that share with the query only the beginning of a word come last, but they were found.
        others = () if self.is_guess else (skill_id for skill_id, _ in self.best)
        return [*list(dict.fromkeys([*ranked, *others]))[offset:], *self.further]
