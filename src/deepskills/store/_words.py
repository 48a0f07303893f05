"""The words that a search in the database looks at, and queries made of them. Pure."""

from collections.abc import Sequence

from deepskills._catalog.words import split_words

MAX_QUERY_WORDS = 32
"""How many words of a query count."""

MIN_BEGINNING = 5
"""How many first letters two forms of a word share at least."""

SHARED_BEGINNING = 0.65
"""How much of a word its other forms share with it."""

MAX_WORD_LENGTH = 64
"""Longest word that is indexed; nobody types a longer one."""


def indexed_words(name: str, description: str, tags: Sequence[str]) -> str:
    """Return the words of a skill, those of its name twice so that they count for more."""
    words = [*split_words(name) * 2, *split_words(" ".join(tags)), *split_words(description, indexing=True)]
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
