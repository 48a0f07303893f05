"""Search over a catalog: the right skill first, in any script, with word forms and small typing slips.

SQLite's FTS5 (in the standard library) keeps the index, stems English words and ranks by BM25. Four things it does not
do are done here, before text reaches it: accents and vowel points are dropped; scripts without spaces, such as Chinese,
Japanese and Thai, become overlapping pairs of characters; a word that no skill has is replaced by the nearest that one
has; and function words, which would let every description match, are left out of a query that has others.

BM25 orders skills but cannot tell whether the best of them fits. `SearchIndex.rank` can: it adds up how specific the
words are that a skill shares with the request.
"""

import math
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TypeVar

from deepskills._catalog.words import STOP_WORDS, is_unspaced, split_words, stem, worth

__all__ = ["Document", "Match", "Ranked", "SearchIndex", "split_words"]

EndsT = TypeVar("EndsT", str, list[str])

MAX_RESULTS = 10_000
"""How many matches are given at most."""

MAX_WORD_LENGTH = 32
"""Longest word whose slips are corrected."""

MAX_QUERY_WORDS = 96
"""How many words of a query count: half from its beginning, half from its end."""

MAX_QUERY_LENGTH = 8_000
"""How many characters of a query are read: half from its beginning, half from its end."""

MIN_PREFIX_LENGTH = 5
"""How many first letters two forms of a word share at least."""

SHARED_BEGINNING = 0.65
"""How much of a word its other forms share with it."""

MIN_LIKENESS = 0.8
"""How alike a word and its correction must be."""

MAX_CORRECTIONS = 3
"""How many corrections of one word are searched for."""

ENOUGH = 1.15
"""How much a skill must share with a request to fit it: a little more than one word that no other skill has."""

ENOUGH_OF_ALL = 0.55
"""How much it must share if that is nearly everything the request says."""

NEARLY_ALL = 0.75
"""How much of a request is nearly everything it says."""

LOOSE_FORM = 0.6
"""What a word counts of which a skill has only another form or a correction."""

FEWEST_SKILLS = 100
"""How large a library is at least taken to be when it is judged how rare a word is."""

LARGE = 500
"""From how many skills on a library is large."""

TOO_COMMON = 0.3
"""How many of a large library's skills have a word that is not searched for if the query has others."""

MAX_KNOWN_FREQUENCIES = 20_000
"""For how many words an index remembers how many skills have it."""

_FIELDS = (("name", 1.4), ("tags", 1.2), ("description", 1.0))
"""What is searched, and what a shared word in it says of a skill."""


@dataclass(frozen=True)
class Document:
    """What is searched of a skill."""

    name: str
    description: str
    tags: str = ""


@dataclass(frozen=True)
class Match:
    """A skill that shares words with a query."""

    name: str
    strength: float
    """How many words are shared, each counted by how rare it is in the library; see `ENOUGH`."""

    coverage: float
    """How much of what the query says is shared, from 0 to 1."""

    @property
    def fits(self) -> bool:
        """Whether enough is shared that the skill is about what was asked for."""
        return self.strength >= ENOUGH or (self.coverage >= NEARLY_ALL and self.strength >= ENOUGH_OF_ALL)


@dataclass(frozen=True)
class Ranked:
    """The skills that share words with a query, best first, and how much the query says at all."""

    matches: list[Match]
    substance: float
    """How many words of the query are more than talk; of scripts without spaces, pairs of characters in part."""


class SearchIndex:
    """An index over one catalog; safe to share by threads."""

    def __init__(self, documents: Sequence[Document]) -> None:
        # One connection behind a lock: queries take a few milliseconds and Python threads would take turns anyway.
        self._database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._sql = self._database.execute
        self._names = [document.name for document in documents]
        self._lock = threading.Lock()
        self._vocabulary: set[str] = set()
        self._nearest: dict[str, list[str]] | None = None
        self._frequencies: dict[str, int] = {}
        self._sql(
            "CREATE VIRTUAL TABLE skills USING fts5(name, tags, description, "
            "tokenize = \"porter unicode61 remove_diacritics 2 categories 'L* N* Co Mn Mc'\")"
        )
        self._sql("BEGIN")
        self._database.executemany(
            "INSERT INTO skills(rowid, name, tags, description) VALUES (?, ?, ?, ?)",
            (
                (row, self._indexed(d.name), self._indexed(d.tags), self._indexed(d.description))
                for row, d in enumerate(documents, 1)
            ),
        )
        self._sql("COMMIT")
        self._vocabulary = {word for word in self._vocabulary if not is_unspaced(word)}

    def __del__(self) -> None:
        self._database.close()

    def __len__(self) -> int:
        return len(self._names)

    def search(self, query: str, limit: int = 5) -> list[str]:
        """Return the names of the best matches, best first; none if nothing fits."""
        return [self._names[row - 1] for row in self._rows(self._forms(query), limit)]

    def rank(self, request: str, limit: int = 5) -> Ranked:
        """Return the best matches, best first, each with what it shares with the request; small talk has none."""
        said = {word: value for word in _words(request) if (value := worth(word)) > 0}
        forms = {word: self._known_forms(word) for word in _ends(list(said), MAX_QUERY_WORDS)}
        rows = self._rows(forms, limit)
        values = {word: said[word] * self._rarity(word, known) for word, known in forms.items()}
        whole = sum(values.values()) or 1.0
        matches = []
        for row, texts in zip(rows, self._texts(rows), strict=True):
            shared = {word: _shared(forms[word], texts) for word in values}
            strength = sum(values[word] * weight for word, weight in shared.items())
            covered = sum(values[word] * min(weight, 1.0) for word, weight in shared.items())
            matches.append(Match(self._names[row - 1], strength, covered / whole))
        return Ranked(matches, sum(said.values()))

    def _rows(self, forms: dict[str, list[str]], limit: int) -> list[int]:
        telling = self._telling(forms).items()
        terms = list(dict.fromkeys(term for word, known in telling for term in _terms(word, known)))
        if not terms or limit < 1:
            return []
        with self._lock:
            found = self._sql(
                "SELECT rowid FROM skills WHERE skills MATCH ? ORDER BY bm25(skills, 5.0, 3.0, 1.5), rowid LIMIT ?",
                (" OR ".join(terms), min(limit, MAX_RESULTS)),
            ).fetchall()
        return [row for (row,) in found]

    def _texts(self, rows: list[int]) -> list[tuple[str, str, str]]:
        """Return the indexed texts of skills: name, tags and description."""
        query = "SELECT name, tags, description FROM skills WHERE rowid = ?"
        with self._lock:
            return [self._sql(query, (row,)).fetchone() for row in rows]

    def _telling(self, forms: dict[str, list[str]]) -> dict[str, list[str]]:
        """Return the words that tell skills of a large library apart: those that many have cost time and say little."""
        if len(self._names) < LARGE:
            return forms
        most = len(self._names) * TOO_COMMON
        return {word: known for word, known in forms.items() if self._frequency(word, known) <= most} or forms

    def _rarity(self, word: str, forms: list[str]) -> float:
        """Return how rare a word is in the library, from nearly 0 for one that every skill has to 1."""
        have = self._frequency(word, forms)
        count = max(len(self._names), FEWEST_SKILLS)
        return min(1.0, math.log(1 + (count - have + 0.5) / (have + 0.5)) / math.log(1 + (count + 0.5) / 1.5))

    def _frequency(self, word: str, forms: list[str]) -> int:
        """Return how many skills have a word."""
        have = self._frequencies.get(word)
        if have is None:
            terms = " OR ".join(_terms(word, forms))
            with self._lock:
                [have] = self._sql("SELECT count(*) FROM skills WHERE skills MATCH ?", (terms,)).fetchone()
            if len(self._frequencies) < MAX_KNOWN_FREQUENCIES:
                self._frequencies[word] = have
        return have

    def _indexed(self, text: str) -> str:
        words = split_words(text, indexing=True)
        self._vocabulary.update(words)
        return " ".join(words)

    def _forms(self, query: str) -> dict[str, list[str]]:
        """Return the words of a query, each with those it is searched by."""
        given = _words(query)
        words = [word for word in given if word not in STOP_WORDS] or given
        return {word: self._known_forms(word) for word in _ends(words, MAX_QUERY_WORDS)}

    def _known_forms(self, word: str) -> list[str]:
        """Return the word, or where no skill has it, those nearest to it."""
        if is_unspaced(word) or word in self._vocabulary or not 4 <= len(word) <= MAX_WORD_LENGTH:  # noqa: PLR2004
            return [word]
        return [word, *self._corrected(word)]

    def _corrected(self, word: str) -> list[str]:
        """Return the known words that one letter dropped, added, swapped or changed makes of `word`."""
        if self._nearest is None:
            nearest: dict[str, list[str]] = {}
            for known in sorted(word for word in self._vocabulary if len(word) <= MAX_WORD_LENGTH):
                for key in _deletions(known):
                    nearest.setdefault(key, []).append(known)
            self._nearest = nearest
        near = {known for key in _deletions(word) for known in self._nearest.get(key, ())}
        rated = ((SequenceMatcher(None, word, known).ratio(), known) for known in near if known[0] == word[0])
        best = sorted((-ratio, known) for ratio, known in rated if ratio >= MIN_LIKENESS)
        return [known for _, known in best[:MAX_CORRECTIONS]]


def _words(query: str) -> list[str]:
    """Return the words of a query, each once; of a long one, those at its beginning and at its end."""
    return list(dict.fromkeys(split_words(_ends(query, MAX_QUERY_LENGTH))))


def _ends(items: EndsT, most: int) -> EndsT:
    """Return all items, or where there are more than `most`, the first and the last of them."""
    return items if len(items) <= most else items[: most // 2] + items[-(most // 2) :]


def _terms(word: str, forms: list[str]) -> Iterable[str]:
    """Return FTS5 terms for a word: each form, and the beginning that its other forms share with it."""
    if len(word) == 1 and is_unspaced(word):
        yield f'"{word}" *'
    for known in forms:
        yield f'"{known}"'
        shared = _shared_length(known)
        if not is_unspaced(known) and len(known) > shared:
            yield f'"{known[:shared]}" *'


def _shared_length(word: str) -> int:
    return max(MIN_PREFIX_LENGTH, round(len(word) * SHARED_BEGINNING))


def _shared(forms: list[str], texts: Sequence[str]) -> float:
    """Return what a query's word says of a skill that has these indexed texts: by field, and by how alike it is."""
    best = 0.0
    for text, (_field, weight) in zip(texts, _FIELDS, strict=True):
        best = max(best, weight * _likeness(forms, text))
    return best


def _likeness(forms: list[str], text: str) -> float:
    words = text.split(" ")
    if forms[0] in words:
        return 1.0
    if is_unspaced(forms[0]):
        return 0.0
    stems = {stem(form) for form in forms[:1]}
    if any(stem(word) in stems for word in words):
        return 1.0
    beginnings = tuple(form[: _shared_length(form)] for form in forms if len(form) > MIN_PREFIX_LENGTH)
    loose = any(word in forms or word.startswith(beginnings) for word in words)
    return LOOSE_FORM if loose else 0.0


def _deletions(word: str) -> Iterable[str]:
    """Return the word and what is left when one letter is dropped."""
    yield word
    if len(word) > 3:  # noqa: PLR2004 - short words have too many neighbours
        for position in range(len(word)):
            yield word[:position] + word[position + 1 :]
