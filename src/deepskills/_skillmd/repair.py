"""Reads frontmatter of any quality: the fast way for plain files, YAML, or repair key by key where YAML fails.

The usual slip is a colon or a quote in a description, which makes the whole frontmatter invalid YAML. `repair` cuts
the text at its keys and reads each on its own, so that a broken value costs that value and nothing else: it becomes
the plain text that is there.

Each attempt costs time that an attacker would like to multiply (many keys, deep nesting, values that fail late), so
parses, failures, characters and events are all counted down, and whatever is left over is taken as plain text.
"""

import re
from collections.abc import Iterable, Iterator

from deepskills._skillmd.text import clean
from deepskills._skillmd.yaml import (
    MAX_DEPTH,
    MAX_EVENTS,
    NULLS,
    FrontmatterError,
    Notes,
    TooDeepError,
    Tree,
    as_text,
    compose,
    read_plain,
)

MAX_PARSES = 256
"""How many keys of broken frontmatter are tried as YAML on their own before the rest is taken as plain text."""

MAX_SALVAGED = 64 * 1024
"""How many characters of broken frontmatter are tried as YAML; nested keys count at every level."""

MAX_SALVAGED_EVENTS = 16_000
"""How many YAML events are read again key by key; then the rest is taken as plain text."""

MAX_FAILED_PARSES = 24
"""How many of those may fail; a failure can cost more than a success."""

_KEY = re.compile(r"""(["']?)(\w[\w.\-]*(?: [\w.\-]+){0,2})\1[ \t]*:(?:[ \t]|$)""")
_MAX_KEY_LENGTH = 128
_BLOCK_SCALAR = re.compile(r"[|>][-+0-9]{0,2}(?:[ \t]+#.*)?$")


def repair(text: str, notes: Notes) -> dict[str, Tree]:
    """Return the keys of broken YAML, each with its value or the text in its place; none if no key can be made out."""
    return _Salvage(notes).mapping(text.split("\n"))


class _Salvage:
    """Reads broken YAML key by key; a value that YAML refuses becomes the plain text that is there."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._parses = MAX_PARSES
        self._failures = MAX_FAILED_PARSES
        self._characters = MAX_SALVAGED
        self._steps = iter(range(MAX_SALVAGED_EVENTS))

    def mapping(self, lines: Iterable[str], depth: int = 0) -> dict[str, Tree]:
        """Return the keys at the indentation of the first line that has one, each with its value."""
        found: dict[str, Tree] = {}
        for key, block in _blocks(lines, self._notes):
            values = self._values(key, block, depth)
            self._notes.duplicates += [key for key in values if key in found]
            found |= values
        return found

    def _values(self, key: str, block: list[str], depth: int) -> dict[str, Tree]:
        """Return the value of `key`, and of keys below it that only YAML itself makes out."""
        text = "\n".join(block)
        # Every attempt is paid for in advance, so that no text of any shape costs more than all budgets together.
        if self._parses > 0 and self._failures > 0 and len(text) <= self._characters:
            self._parses -= 1
            self._characters -= len(text)
            notes = Notes()
            try:
                tree = compose(text, notes, self._steps)
            # Taken as text at once: going down level by level would parse the same depths again and again.
            except TooDeepError:
                self._failures -= 1
                self._notes.too_deep.append(key)
                return {key: _plain_text(block)}
            except FrontmatterError:
                self._failures -= 1
            else:
                # YAML may see another key here than the line does, or no key at all; then its reading is not ours.
                if isinstance(tree, dict) and next(iter(tree), None) == key:
                    self._notes.add(notes)
                    return tree
        if depth < MAX_DEPTH and _opens_mapping(block):
            # Something below does not parse. If no part of it reports a slip, the key itself was the slip.
            slips = self._notes.slips()
            nested = self.mapping(block[1:], depth + 1)
            if self._notes.slips() == slips:
                self._notes.repaired.append(key)
            return {key: nested}
        self._notes.repaired.append(key)
        return {key: _plain_text(block)}


def _blocks(lines: Iterable[str], notes: Notes) -> Iterator[tuple[str, list[str]]]:
    """Yield each key at the outermost indentation with its lines: its own, and all up to the next key."""
    base: int | None = None  # The indentation of the first key: lines beyond it belong to a value.
    key: str | None = None
    block: list[str] = []
    is_whole = False
    for line in lines:
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        if base is not None and indent > base and is_whole and "\t" in line[:indent] and _key_of(stripped) is not None:
            # A slip of the tab key: what stands above needs no more lines.
            line, indent = " " * base + stripped, base  # noqa: PLW2901 - read as if it were not indented
            notes.repaired.append(_key_of(stripped) or "")
        is_comment = stripped.startswith("#") and (base is None or indent <= base)
        # Only a line at the base indentation opens a key; whatever is indented further belongs to the value above.
        starts = None if not stripped or is_comment or (base is not None and indent > base) else _key_of(stripped)
        if starts is not None:
            if key is not None:
                yield key, block
            key, block, base = starts, [line], indent if base is None else base
            is_whole = _has_whole_value(stripped)
        elif key is not None and not is_comment:
            block.append(line)
        elif stripped and not is_comment:
            notes.lost.append(stripped)
    if key is not None:
        yield key, block


def _key_of(stripped: str) -> str | None:
    # Cut before matching: a line may be 64 KB long.
    match = _KEY.match(stripped[:_MAX_KEY_LENGTH])
    return match[2] if match else None


def _has_whole_value(line: str) -> bool:
    """Whether the value of a line's key is plain, or opened and closed, on that line."""
    rest = _rest([line])
    closing = {'"': '"', "'": "'", "[": "]", "{": "}"}.get(rest[:1])
    if closing is not None:
        return len(rest) > 1 and rest.endswith(closing)
    return bool(rest) and rest[0] not in "|>#"


def _rest(block: list[str]) -> str:
    """Return what stands behind the colon of the block's key."""
    line = block[0].strip()
    match = _KEY.match(line[:_MAX_KEY_LENGTH])
    return line[match.end() :].strip() if match else line


def _opens_mapping(block: list[str]) -> bool:
    """Whether nothing follows the key and the first line below it is indented and has a key of its own."""
    below = next((line for line in block[1:] if line.strip()), "")
    return not _rest(block) and below[:1].isspace() and _key_of(below.strip()) is not None


def _plain_text(block: list[str]) -> Tree:
    """Return a block's value as its author meant it: the items of a list, the lines of a block scalar, or one text."""
    rest, below = _rest(block), [line.strip() for line in block[1:]]
    if not rest and any(below) and all(line.startswith("- ") for line in below if line):
        return [_unquote(line[2:].strip()) for line in below if line]
    if _BLOCK_SCALAR.match(rest):
        return ("\n" if rest.startswith("|") else " ").join(below).strip()
    text = " ".join([rest, *below]).strip()
    return None if text in NULLS else _unquote(text)


def _unquote(text: str) -> str:
    """Return `text` without the quotes around it, or without an opening quote that is never closed."""
    quote = text[:1]
    if quote not in ('"', "'") or len(text) == 1:
        return text
    if text[-1] == quote:
        return text[1:-1]
    # An apostrophe inside a word, or a quote behind a backslash, closes nothing; of the others, each pair is closed.
    count = len(_OPEN_OR_CLOSE[quote].findall(text))
    return text[1:].lstrip() if count % 2 else text


_OPEN_OR_CLOSE = {quote: re.compile(rf"(?<![\w\\]){quote}|(?<!\\){quote}(?!\w)") for quote in "\"'"}


# The three ways to read frontmatter, cheapest first.

__all__ = ["MAX_DEPTH", "FrontmatterError", "Notes", "Tree", "as_text", "is_whole_yaml", "read_yaml"]

NOTHING_UNUSUAL = Notes()
"""The notes of most files, shared by them."""


def read_yaml(text: str) -> tuple[Tree, Notes]:
    """Return what `text` says and what was unusual about it.

    Raises:
        FrontmatterError: If not even one key can be made out.
    """
    cleaned = clean(text)
    is_cleaned = cleaned != text
    plain = read_plain(cleaned)
    if plain is not None:
        return plain, Notes(cleaned=True) if is_cleaned else NOTHING_UNUSUAL
    return read_full_yaml(cleaned, is_cleaned=is_cleaned)


def read_full_yaml(cleaned: str, *, is_cleaned: bool = False) -> tuple[Tree, Notes]:
    """Return what cleaned text says by libyaml, or by the repair where that fails.

    Raises:
        FrontmatterError: If not even one key can be made out.
    """
    notes = Notes(cleaned=is_cleaned)
    try:
        return compose(cleaned, notes, iter(range(MAX_EVENTS))), notes
    except FrontmatterError as error:
        # What the failed attempt noted is about a text that is now read in another way.
        notes = Notes(cleaned=notes.cleaned)
        tree = repair(cleaned, notes)
        if not tree:
            raise FrontmatterError(str(error)) from None
        # Nothing in particular was wrong with any key, yet the whole did not parse: each was read in a way of its own.
        if not notes.slips():
            notes.repaired += tree
        return tree, notes


def is_whole_yaml(text: str) -> bool:
    """Whether `text` is a YAML mapping that needs no repair."""
    cleaned = clean(text)
    if read_plain(cleaned) is not None:
        return True
    try:
        return isinstance(compose(cleaned, Notes(), iter(range(MAX_EVENTS))), dict)
    except FrontmatterError:
        return False
