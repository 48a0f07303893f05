"""The naming rules of the Agent Skills specification. Pure."""

import unicodedata

from deepskills._skillmd.text import one_line
from deepskills._types import MAX_NAME_LENGTH, MAX_SHOWN_NAME_LENGTH

_MARKUP_IN_NAME = str.maketrans({**dict(zip("[]<>{}", "()()()", strict=True)), "*": "_", "`": "'", '"': "'", "\\": "_"})
"""What stands for each character that marks up text: taken away, it would make one name look like another."""


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
    """Whether `name` is the directory's name; file systems may compose accents differently."""
    return name == directory or unicodedata.normalize("NFC", name) == unicodedata.normalize("NFC", directory)


def _keeps_rules(name: str) -> bool:
    if name.isascii():
        return all(part.isalnum() for part in name.split("-")) and name == name.lower()
    parts = name.split("-")
    return name == name.lower() and all(part and all(map(_is_letter_or_digit, part)) for part in parts)


def _is_letter_or_digit(character: str) -> bool:
    return character.isalpha() or character.isdecimal()


def shown_name(name: str) -> str:
    """Return a name as the model sees it: one line without characters that mark up text."""
    return one_line(name).translate(_MARKUP_IN_NAME).strip()[:MAX_SHOWN_NAME_LENGTH] or "unnamed-skill"
