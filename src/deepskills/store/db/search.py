"""Searches skills: which fields, with which weights, by the agents' ranker or in the database.

Up to a few thousand visible skills are ranked as agents rank them (`deepskills._catalog.search`), by an index in memory
that is kept until those skills change. Beyond that, the database searches the same five fields of a skill: name, tags,
description, headings and the beginning of the instructions, each as the stems of its words. It finds nearly all of the
skills that agents would find first, but in a poorer order, so the best of them are ranked again as agents rank them, by
how rare words are in the whole database.

* **SQLite** has a full-text table with a column for each, and `bm25` with the ranker's weights.
* **PostgreSQL** has one `tsvector`, in which the fields are marked with their weight. Its `ts_rank` does not know how
  rare a word is, so each word is ranked separately and counts by how rare it is. That is taken from PostgreSQL's own
  statistics (`ANALYZE`): the thousand most common words of the column, and how common they are.

Common words are left out if the other words of a query already find thousands of skills: they say little, and ranking a
hundred thousand skills by them takes longer than anybody would wait. They count again when the best are ranked.
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, column, func, literal, literal_column, select, table, text

from deepskills._catalog.search import (
    FEWEST_SKILLS,
    Document,
    SearchIndex,
    beginning_of,
    query_words,
    searchable_fields,
)
from deepskills._catalog.words import GRAMMAR_WORDS, STOP_WORDS, is_unspaced, split_words, stem
from deepskills.store.db.models import FIELD_MARK, SEARCH_FIELDS, SEARCH_TABLE, SEARCH_TERMS, Skill, SkillTag

_SEARCH = table(SEARCH_TABLE, column("rowid"))

MAX_QUERY_WORDS = 400
"""How many words of a query are looked up."""

MAX_CHOSEN = 32
"""How many of them skills are searched by: the rarest."""

MAX_UNKNOWN = 8
"""How many words that no skill has are searched for by their beginnings."""

CANDIDATES = 60
"""How many of the best matches are ranked again as agents rank them; to read and count more takes longer."""

MAX_MATCHES = 10_000
"""How many skills the words of a query may match; more common words are left out if rarer ones found some."""

MIN_BEGINNING = 5
"""How many first letters two forms of a word share, at least."""

SHARED_BEGINNING = 0.65
"""The share of a word that its other forms begin with."""

MAX_WORD_LENGTH = 64
"""Longest word that is indexed; nobody types a longer one."""

COLUMN_WEIGHTS = "8, 6, 5, 1.2, 0.5"
"""The weight of a word in each column of SQLite's full-text table, as in the ranker."""

MARK_WEIGHTS = "'{0.2, 0.4, 0.9, 1.0}'::float4[]"
"""The weight of a word on PostgreSQL: in the beginning, in headings, in description and tags, in the name."""


def indexed_words(name: str, description: str, tags: Sequence[str], content: str = "") -> str:
    """Return the stems of a skill's words, one line per field."""
    document = Document(name, description, " ".join(tags), beginning_of(content))
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


@dataclass(frozen=True)
class Frequencies:
    """How many skills there are, and how many have each of some words, as far as the database knows."""

    skills: float = 0
    known: Mapping[str, float] = field(default_factory=dict)
    others: float = 1
    """How many skills have a word that is not among the known ones."""

    def of(self, word: str) -> float:
        """Return how many skills have a word."""
        return self.known.get(word, self.others)

    def rarity(self, word: str) -> float:
        """Return how much a word says: always above zero, so that a match is better than none."""
        have = min(self.of(word), self.skills)
        return max(0.1, math.log(1 + (self.skills - have + 0.5) / (have + 0.5)))


POSTGRES_FREQUENCIES = text("""
WITH known AS (
    SELECT s.most_common_elems::text::text[] AS words, s.most_common_elem_freqs AS shares
    FROM pg_stats s
    JOIN pg_class c ON c.relname = s.tablename
    JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = s.schemaname
    WHERE c.oid = to_regclass('deepskills_skills') AND s.attname = 'words'
)
SELECT NULL AS word, reltuples::float8 AS share FROM pg_class WHERE oid = to_regclass('deepskills_skills')
UNION ALL SELECT '', shares[cardinality(words) + 1] FROM known
UNION ALL SELECT found.word, found.share FROM known, unnest(words, shares) AS found(word, share)
WHERE found.word = ANY(:words)
""")
"""The number of skills, the share of the rarest word that is known, and the shares of words."""

SQLITE_FREQUENCIES = text(
    f"SELECT term, doc FROM {SEARCH_TERMS} WHERE term IN (SELECT value FROM json_each(:words)) "  # noqa: S608 - constants
    f"UNION ALL SELECT NULL, count(*) FROM {SEARCH_TABLE}_docsize"
)
"""How many skills have each of some words, and how many there are."""


def postgres_frequencies(rows: Collection[Any]) -> Frequencies:
    """Return what PostgreSQL's statistics say; without any, all words count alike."""
    shares = {row.word: row.share for row in rows if row.share is not None}
    skills = max(shares.pop(None, 0.0), 1.0)
    others = max(1.0, shares.pop("", 0.0) * skills / 2)
    return Frequencies(skills, {word: share * skills for word, share in shares.items()}, others)


def sqlite_frequencies(rows: Collection[Any]) -> Frequencies:
    """Return what SQLite's index says."""
    known = {row.term: row.doc for row in rows}
    return Frequencies(known.pop(None, 0), known, others=0)


def chosen_words(words: Sequence[str], frequencies: Frequencies) -> list[str]:
    """Return the words to search for, rarest first: the most common are left out if the others find enough."""
    found: list[str] = []
    matches = 0.0
    ordered = sorted(words, key=frequencies.of)
    unknown = [word for word in ordered if frequencies.of(word) == 0][MAX_UNKNOWN:]
    for word in ordered:
        if word in unknown:
            continue
        matches += frequencies.of(word)
        if found and (matches > MAX_MATCHES or len(found) == MAX_CHOSEN):
            break
        found.append(word)
    return found


def beginning_of_word(word: str) -> str | None:
    """Return what other forms of a word share with it; `None` if it is too short for that to say anything."""
    shared = max(MIN_BEGINNING, round(len(word) * SHARED_BEGINNING))
    return word[:shared] if len(word) > shared and not is_unspaced(word) else None


def best_matches(skills: Select[Any], words: Sequence[str], frequencies: Frequencies, dialect: str) -> Select[Any]:
    """Return a query for those of `skills` that have any of some words, best first; the best have the lowest `rank`."""
    chosen = chosen_words(words, frequencies)
    if dialect == "postgresql":
        wanted = _postgres_query(" | ".join(_postgres_terms(word, frequencies) for word in chosen))
        ranks = [
            literal(frequencies.rarity(word))
            * func.ts_rank(literal_column(MARK_WEIGHTS), Skill.words, _postgres_query(f"'{word}'"))
            for word in chosen
        ]
        score: ColumnElement[Any] = ranks[0]
        for rank in ranks[1:]:
            score += rank
        found = skills.where(Skill.words.op("@@")(wanted)).add_columns((-score).label("rank"))
    else:
        wanted_text = " OR ".join(_sqlite_terms(word, frequencies) for word in chosen)
        found = skills.join(_SEARCH, _SEARCH.c.rowid == Skill.number)
        found = found.where(text(f"{SEARCH_TABLE} MATCH :wanted").bindparams(wanted=wanted_text))
        found = found.add_columns(literal_column(f"bm25({SEARCH_TABLE}, {COLUMN_WEIGHTS})").label("rank"))
    return found.order_by(literal_column("rank"), Skill.name_key, Skill.id)


def with_texts(matches: Select[Any], dialect: str) -> Select[Any]:
    """Return a query for what the ranker reads of the skills that another query finds, in the same order."""
    found = matches.subquery()
    # One text per skill: a statement of its own for tags would be one more round for every search.
    joined = func.string_agg if dialect == "postgresql" else func.group_concat
    tags = select(joined(SkillTag.tag, literal(" "))).where(SkillTag.skill_id == Skill.id).scalar_subquery()
    columns = (Skill.id, Skill.name, Skill.description, Skill.beginning, tags)
    return select(*columns).join(found, found.c.id == Skill.id).order_by(found.c.rank, Skill.name_key, Skill.id)


def _postgres_query(query: str) -> ColumnElement[Any]:
    """Return a `tsquery`; words have only letters and digits, and quotes make them literal."""
    return func.to_tsquery(literal_column("'simple'"), query)


def _postgres_terms(word: str, frequencies: Frequencies) -> str:
    """Return the terms for a word: unless it is common, also its beginning, because it may have other forms."""
    beginning = beginning_of_word(word) if word not in frequencies.known else None
    return f"'{word}'" if beginning is None else f"'{word}' | '{beginning}':*"


def _sqlite_terms(word: str, frequencies: Frequencies) -> str:
    """Return the terms for a word: if no skill has it, its beginning, because it may have other forms."""
    beginning = beginning_of_word(word) if word not in frequencies.known else None
    return f'"{word}"' if beginning is None else f'"{beginning}" *'


@dataclass(frozen=True)
class Searchable:
    """The searchable parts of a skill."""

    id: UUID
    name: str
    description: str
    beginning: str = ""
    """Headings and the beginning of the instructions."""

    tags: list[str] = field(default_factory=list)


class _Named(str):
    """A skill's name that knows its skill: the index returns names, and several skills may have the same."""

    __slots__ = ("skill_id",)
    skill_id: UUID

    @classmethod
    def of(cls, skill: Searchable) -> "_Named":
        named = cls(skill.name)
        named.skill_id = skill.id
        return named


def _documents(skills: Sequence[Searchable]) -> list[Document]:
    return [
        Document(_Named.of(skill), skill.description, " ".join(skill.tags), skill.beginning.encode("utf-8", "replace"))
        for skill in skills
    ]


class _SomeOfMany(SearchIndex):
    """An index over some skills of a database, by how rare words are in all of it."""

    def __init__(self, documents: Sequence[Document], frequencies: Frequencies) -> None:
        super().__init__(documents)
        self._frequencies = frequencies

    def rarity_of(self, term: str, have: int) -> float:
        skills = max(self._frequencies.skills, len(self), FEWEST_SKILLS)
        everywhere = min(max(self._frequencies.of(term), have), skills)
        return math.log(1 + (skills - everywhere + 0.5) / (everywhere + 0.5))


class Ranker:
    """An index over some skills, which ranks them as the agents' search does.

    Args:
        skills: The skills.
        frequencies: How common words are among many more skills, if these are the best of those.
    """

    def __init__(self, skills: Sequence[Searchable], frequencies: Frequencies | None = None) -> None:
        documents = _documents(skills)
        self._index = SearchIndex(documents) if frequencies is None else _SomeOfMany(documents, frequencies)

    def __len__(self) -> int:
        return len(self._index)

    def search(self, query: str) -> list[UUID]:
        """Return the ids of the skills that match a query, best first."""
        found = self._index.search(query, len(self._index))
        return [name.skill_id for name in found if isinstance(name, _Named)]


@dataclass(frozen=True)
class Matches:
    """What the database found for a query."""

    best: Sequence[Searchable] = ()
    """The first matches of all, to be ranked again; none if only later ones were asked for."""

    further: Sequence[UUID] = ()
    """Matches behind those, in the order in which they stay."""

    frequencies: Frequencies = field(default_factory=Frequencies)

    def ids(self, query: str, offset: int) -> list[UUID]:
        """Return the ids of the matches from a place on, the first ones ranked as the agents' search ranks them."""
        ranked = Ranker(self.best, self.frequencies).search(query) if self.best else []
        # Those that share with the query only the beginning of a word come last, but they were found.
        ordered = dict.fromkeys([*ranked, *(skill.id for skill in self.best)])
        return [*list(ordered)[offset:], *self.further]


class Rankers:
    """Keeps the indexes that were used last, by the mark of the skills in them; thread-safe."""

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
        """Keep an index, and drop the least recently used."""
        with self._lock:
            self._known[mark] = ranker
            while len(self._known) > self._size:
                self._known.popitem(last=False)


MAX_RANKERS = 8
"""How many indexes a process keeps: each has up to a few thousand skills, which is up to 30 megabytes."""

rankers = Rankers(MAX_RANKERS)
"""The indexes of this process. A mark is made of random stamps, so that two databases do not share one."""
