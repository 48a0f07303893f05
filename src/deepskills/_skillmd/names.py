"""Names of skills: the rules of the Agent Skills specification, how a name is shown, and when two are the same. Pure.

A name is written by many hands: by an author in frontmatter, by a file system as a directory, by an operator in a
rule, by a user after a slash, by a model in a tool call. They spell it in another case, compose its accents
differently (`café` is five or six characters), or put quotes around it. Whoever asks whether two names mean the same
skill asks `name_key` or one of the functions on it, nobody else: two answers to that question would let one way in
find a skill that another way hides.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import TypeVar

from deepskills._skillmd.text import clean_name, one_line
from deepskills._types import MAX_NAME_LENGTH

PLAIN_NAME = re.compile(r"[a-z0-9]++(?:-[a-z0-9]++)*+")
"""A name that keeps the rules in ASCII, but for its length."""

_MARKS = "*`'\"[](){}<> "
"""What models and users put around a name."""

ValueT = TypeVar("ValueT")


def is_valid_name(name: str) -> bool:
    """Whether `name` is lower-case letters and digits of any script with single hyphens between them.

    Other readers normalize a name before they judge it, so both spellings have to keep the rules.
    """
    return _keeps_rules(name) and (name.isascii() or _keeps_rules(unicodedata.normalize("NFKC", name)))


def is_too_long(name: str) -> bool:
    """Whether `name` is longer than the specification allows, as written or normalized."""
    # Only short names are normalized: that is quadratic in a run of combining marks.
    if name.isascii() or len(name) > MAX_NAME_LENGTH:
        return len(name) > MAX_NAME_LENGTH
    return len(unicodedata.normalize("NFKC", name)) > MAX_NAME_LENGTH


def same_name(name: str, directory: str) -> bool:
    """Whether `name` is written as the directory's name is, as the specification demands; case counts.

    Not for finding a skill: that is what `name_key` is for. File systems may compose accents differently.
    """
    return name == directory or unicodedata.normalize("NFC", name) == unicodedata.normalize("NFC", directory)


def _keeps_rules(name: str) -> bool:
    if name.isascii():
        return all(map(str.isalnum, name.split("-"))) and name == name.lower()
    parts = name.split("-")
    return name == name.lower() and all(part and all(map(_is_letter_or_digit, part)) for part in parts)


def _is_letter_or_digit(character: str) -> bool:
    return character.isalpha() or character.isdecimal()


def fold(text: str) -> str:
    """Return a text in one case and one Unicode form."""
    if text.isascii():
        return text.casefold()
    # Folding case can take composed characters apart again, so the form is made one before and after.
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


def name_key(name: str) -> str:
    """Return what a name is compared by: two names mean the same skill if their keys are equal."""
    return fold(clean_name(name))


def stored_key(name: str) -> str:
    """Return what databases and disks compare names and paths by.

    It is kept in tables, so it must never change. It is coarser than `name_key`: what a file system may take for the
    same name cannot be two skills of one owner.
    """
    if name.isascii():
        return name.casefold()
    # Normalized twice: folding case can decompose characters.
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def find_meant(by_key: Mapping[str, ValueT], asked: str) -> ValueT | None:
    """Return what is filed under the name that was asked for, as it is or with marks around it."""
    # As it is first: a name may have marks of its own.
    found = by_key.get(name_key(asked))
    return found if found is not None else by_key.get(name_key(one_line(asked).strip(_MARKS)))


def find_meant_name(names: Iterable[str], asked: str) -> str | None:
    """Return the one of some names that was asked for: exactly, in another case or form, or with marks around it."""
    known = list(names)
    # An exact match comes first: two names may differ in case alone. Of those, the first in order is meant.
    return asked if asked in known else find_meant({name_key(name): name for name in reversed(known)}, asked)
