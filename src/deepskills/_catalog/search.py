"""Search over a catalog: the right skill first, in any script, with word forms and small typing slips.

SQLite's FTS5 (in the standard library) keeps the index, stems English words and ranks by BM25. Four things it does not
do are done here, before text reaches it: accents and vowel points are dropped; scripts without spaces, such as Chinese,
Japanese and Thai, become overlapping pairs of characters; a word that no skill has is replaced by the nearest that one
has; and function words, which would let every description match, are left out of a query that has others.
"""

import functools
import re
import sqlite3
import threading
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

MAX_RESULTS = 10_000
"""How many matches are given at most."""

MAX_WORD_LENGTH = 32
"""Longest word whose slips are corrected."""

MAX_QUERY_WORDS = 32
"""How many words of a query count."""

MIN_PREFIX_LENGTH = 5
"""How many first letters two forms of a word share at least."""

SHARED_BEGINNING = 0.65
"""How much of a word its other forms share with it."""

MIN_LIKENESS = 0.8
"""How alike a word and its correction must be."""

MAX_CORRECTIONS = 3
"""How many corrections of one word are searched for."""

_ASCII_WORD = re.compile(r"[^\W_]+", re.ASCII)
_LAST_MARK = 0x1FFFF
_ACCENTS = re.compile("[\u0300-\u036f\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670]+")
"""Accents of Latin, Greek and Cyrillic letters, vowel points of Hebrew and Arabic: people leave them out."""
_UNSPACED = re.compile(
    "["
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai and Lao, Myanmar, Khmer
    "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\uac00-\ud7af"  # Chinese, Japanese, Korean
    "]+"
)
"""Scripts that put no spaces between words, or join words to each other."""
_FUNCTION_WORDS = """
a about all an and any are as at be by can could do does for from get give has have help how i if in into is it its like
make me my need new of on or our out please should some so that the their them then there these they this to up us use
used user uses using want was we what when where which who will with would you your skill skills
"""
_STOP_WORDS = frozenset(_FUNCTION_WORDS.split())
_CJK_STOP = frozenset(
    "的了在是我和有就不人都一把这那要给为请帮与及或等用时的中对将の をにはがでともやへする したいですます".replace(
        " ", ""
    )
)


@dataclass(frozen=True)
class Document:
    """What is searched of a skill."""

    name: str
    description: str
    tags: str = ""


class SearchIndex:
    """An index over one catalog; safe to share by threads."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._names = [document.name for document in documents]
        self._lock = threading.Lock()
        self._vocabulary: set[str] = set()
        self._nearest: dict[str, list[str]] | None = None
        # One connection behind a lock: queries take a few milliseconds and Python threads would take turns anyway.
        self._database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._database.execute(
            "CREATE VIRTUAL TABLE skills USING fts5(name, tags, description, "
            "tokenize = \"porter unicode61 remove_diacritics 2 categories 'L* N* Co Mn Mc'\", prefix = '1 5')"
        )
        self._database.executemany(
            "INSERT INTO skills(rowid, name, tags, description) VALUES (?, ?, ?, ?)",
            (
                (row, self._indexed(d.name), self._indexed(d.tags), self._indexed(d.description))
                for row, d in enumerate(documents, 1)
            ),
        )

    def __del__(self) -> None:
        self._database.close()

    def search(self, query: str, limit: int = 5) -> list[str]:
        """Return the names of the best matches, best first; none if nothing fits."""
        terms = self._terms(query)
        if not terms or limit < 1:
            return []
        with self._lock:
            rows = self._database.execute(
                "SELECT rowid, bm25(skills, 5.0, 3.0, 1.5) AS score FROM skills WHERE skills MATCH ? "
                "ORDER BY score, rowid LIMIT ?",
                (" OR ".join(terms), min(limit, MAX_RESULTS)),
            ).fetchall()
        return [self._names[row - 1] for row, _score in rows]

    def _indexed(self, text: str) -> str:
        words = split_words(text, indexing=True)
        self._vocabulary.update(word for word in words if not _is_unspaced(word))
        return " ".join(words)

    def _terms(self, query: str) -> list[str]:
        """Return the query as FTS5 terms: each word, and the beginning that its other forms share with it."""
        terms: list[str] = []
        given = list(dict.fromkeys(split_words(query)))
        words = [word for word in given if word not in _STOP_WORDS] or given
        for word in words[:MAX_QUERY_WORDS]:
            if len(word) == 1 and _is_unspaced(word):
                terms.append(f'"{word}" *')
            for known in self._known_forms(word):
                terms.append(f'"{known}"')
                shared = max(MIN_PREFIX_LENGTH, round(len(known) * SHARED_BEGINNING))
                if not _is_unspaced(known) and len(known) > shared:
                    terms.append(f'"{known[:shared]}" *')
        return list(dict.fromkeys(terms))

    def _known_forms(self, word: str) -> list[str]:
        """Return the word, or where no skill has it, those nearest to it."""
        if _is_unspaced(word) or word in self._vocabulary or not 4 <= len(word) <= MAX_WORD_LENGTH:  # noqa: PLR2004
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


def _deletions(word: str) -> Iterable[str]:
    """Return the word and what is left when one letter is dropped."""
    yield word
    if len(word) > 3:  # noqa: PLR2004 - short words have too many neighbours
        for position in range(len(word)):
            yield word[:position] + word[position + 1 :]


def split_words(text: str, *, indexing: bool = False) -> list[str]:
    """Split text into words without accents; runs of a script without spaces become pairs of characters."""
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    words: list[str] = []
    for run in _word().findall(_folded(text)):
        position = 0
        for match in _UNSPACED.finditer(run):
            if match.start() > position:
                words.append(run[position : match.start()])
            words += _pairs(match[0], indexing=indexing)
            position = match.end()
        if position < len(run):
            words.append(run[position:])
    return words


def _folded(text: str) -> str:
    """Return text in one case and without accents; marks that letters of other scripts need stay."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFD", folded)))


@functools.cache
def _word() -> re.Pattern[str]:
    """Return what a word is made of: letters and digits of any script, and the marks on them."""
    marks = "".join(chr(code) for code in range(0x300, _LAST_MARK) if unicodedata.category(chr(code))[0] == "M")
    return re.compile(rf"[^\W_]+(?:[{marks}]+[^\W_]*)*")


def _is_unspaced(word: str) -> bool:
    return _UNSPACED.match(word) is not None


def _pairs(run: str, *, indexing: bool) -> list[str]:
    if len(run) == 1:
        return [] if run in _CJK_STOP else [run]
    pairs = [run[start : start + 2] for start in range(len(run) - 1)]
    words = [pair for pair in pairs if not all(character in _CJK_STOP for character in pair)]
    # Of a skill the last character too, so that a query of one character meets every place it stands in.
    return [*words, run[-1]] if indexing and run[-1] not in _CJK_STOP else words
