"""YAML frontmatter to plain text, lists and mappings, for authors who slip and for strangers who attack.

Pure. The events of libyaml are put together here rather than by a YAML loader, because only here can nesting be
cut while it arrives, aliases and tags be left alone, and every scalar stay the text that was written. What libyaml
refuses is read again key by key, so that one broken value costs that value and nothing else.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml

from deepskills._format.text import clean

_EventSource: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Reads YAML events; PyYAML built without libyaml has only the slower one."""

Tree: TypeAlias = "str | list[Tree] | dict[str, Tree] | None"
"""Frontmatter as read: text, nothing, a list or a mapping."""

MAX_DEPTH = 16
"""How deep lists and mappings may nest; libyaml turns quadratic on deep flow nesting."""

MAX_PARSES = 256
"""How many keys of broken frontmatter are tried as YAML on their own before the rest is taken as plain text."""

MAX_SALVAGED = 64 * 1024
"""How many characters of broken frontmatter are tried as YAML; nested keys count at every level."""

MAX_EVENTS = 200_000
"""How many YAML events frontmatter may have; what is within the size limit has fewer."""

MAX_SALVAGED_EVENTS = 16_000
"""How many YAML events are read again key by key; then the rest is taken as plain text."""

MAX_FAILED_PARSES = 24
"""How many of those may fail; a failure can cost more than a success."""

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_KEY = re.compile(r"""(["']?)(\w[\w.\-]*(?: [\w.\-]+){0,2})\1[ \t]*:(?:[ \t]|$)""")
_MAX_KEY_LENGTH = 128
_TOUCHING_COMMENT = re.compile(r"[|>][-+0-9]{0,2}#")
_COMMENT_FOR_VALUE = re.compile(r":[ \t]+#")
_BLOCK_SCALAR = re.compile(r"[|>][-+0-9]{0,2}(?:[ \t]+#.*)?$")


class FrontmatterError(ValueError):
    """The text is no YAML, even key by key."""


class _TooDeepError(FrontmatterError):
    """Lists and mappings nest deeper than `MAX_DEPTH`."""


@dataclass
class Notes:
    """What was unusual about the frontmatter."""

    repaired: list[str] = field(default_factory=list)
    too_deep: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    aliases: bool = False
    tags: bool = False
    flow: bool = False
    odd_comments: bool = False
    cleaned: bool = False

    def slips(self) -> int:
        """Return how many values and lines were not read as YAML."""
        return len(self.repaired) + len(self.too_deep) + len(self.lost)

    def add(self, other: "Notes") -> None:
        """Take over what `other` noted."""
        self.repaired += other.repaired
        self.duplicates += other.duplicates
        self.aliases |= other.aliases
        self.tags |= other.tags
        self.flow |= other.flow
        self.cleaned |= other.cleaned


def read_yaml(text: str) -> tuple[Tree, Notes]:
    """Return what `text` says and what was unusual about it.

    Raises:
        FrontmatterError: If not even one key can be made out.
    """
    notes = Notes()
    cleaned = clean(text)
    notes.cleaned = cleaned != text
    try:
        return _compose(cleaned, notes, iter(range(MAX_EVENTS))), notes
    except FrontmatterError as error:
        notes = Notes(cleaned=notes.cleaned)
        tree = _Salvage(notes).mapping(cleaned.split("\n"))
        if not tree:
            raise FrontmatterError(str(error)) from None
        if not notes.slips():
            notes.repaired += tree
        return tree, notes


def as_text(tree: Tree, *, nested: bool = False) -> str:
    """Return `tree` as a person would write it in a sentence: `key: value, key: value`."""
    if tree is None:
        return ""
    if isinstance(tree, str):
        return tree
    if isinstance(tree, dict):
        text = ", ".join(f"{key}: {as_text(value, nested=True)}" for key, value in tree.items())
        return f"({text})" if nested else text
    return ", ".join(as_text(item, nested=True) for item in tree)


def _compose(text: str, notes: Notes, steps: Iterator[int]) -> Tree:
    """Put the one YAML document of `text` together, one event a step.

    Raises:
        FrontmatterError: If it is not valid YAML, holds several documents, nests too deep, or needs more steps.
    """
    source = _EventSource(text)
    composer = _Composer(notes, text.split("\n") if "#" in text else [])
    try:
        for _ in steps:
            event = source.get_event()
            if event is None:
                return composer.root
            composer.take(event)
    except yaml.YAMLError as error:
        raise FrontmatterError(_reason(error)) from None
    except UnicodeDecodeError:
        # A tag's %-escapes may be no UTF-8, which libyaml lets through.
        raise FrontmatterError("a tag is not text") from None
    raise FrontmatterError("it holds too many values")


class _Frame:
    """A list or mapping that is still open."""

    __slots__ = ("container", "key", "key_line")

    def __init__(self, container: list[Tree] | dict[str, Tree]) -> None:
        self.container = container
        self.key: str | None = None
        self.key_line = 0

    def awaits_key(self) -> bool:
        return self.key is None and isinstance(self.container, dict)


class _Composer:
    """Takes YAML events, one by one, and builds what they say."""

    def __init__(self, notes: Notes, lines: list[str]) -> None:
        self.root: Tree = None
        self._notes = notes
        self._lines = lines
        self._open: list[_Frame] = []
        self._documents = 0

    def take(self, event: yaml.Event) -> None:
        """Build on by one event; scalars come first because they come most."""
        if isinstance(event, yaml.ScalarEvent):
            self._place(self._scalar(event))
        elif isinstance(event, yaml.CollectionStartEvent):
            self._start(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._place(self._open.pop().container)
        elif isinstance(event, yaml.AliasEvent):
            self._notes.aliases = True
            self._place(f"*{event.anchor}")
        elif isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise FrontmatterError("it holds more than one YAML document")

    def _start(self, event: yaml.CollectionStartEvent) -> None:
        if len(self._open) == MAX_DEPTH:
            raise _TooDeepError(f"it nests deeper than {MAX_DEPTH} levels")
        self._note_properties(event)
        self._notes.flow |= bool(event.flow_style)
        self._open.append(_Frame({} if isinstance(event, yaml.MappingStartEvent) else []))

    def _scalar(self, event: yaml.ScalarEvent) -> str | None:
        self._note_properties(event)
        is_plain = event.tag is None and not event.style
        is_key = bool(self._open) and self._open[-1].awaits_key()
        if self._lines:
            self._note_comment(event, is_key=is_key)
        if not is_plain:
            cleaned = clean(event.value)
            self._notes.cleaned |= cleaned != event.value
            return cleaned
        # The text was cleaned as a whole, and only quotes can bring characters in by escapes.
        if is_key:
            self._notes.aliases |= event.value == "<<"
        elif event.value in _NULLS:
            return None
        return event.value

    def _note_comment(self, event: yaml.ScalarEvent, *, is_key: bool) -> None:
        """Note a comment that touches a block's indicator, or stands between a key and its text: others stumble."""
        start, end = event.start_mark, event.end_mark
        if start is None or end is None:
            return
        if event.style in ("|", ">"):
            line = self._lines[start.line] if start.line < len(self._lines) else ""
            self._notes.odd_comments |= bool(_TOUCHING_COMMENT.match(line, start.column))
        if is_key:
            self._open[-1].key_line = end.line
        elif self._open and event.style not in ("'", '"') and isinstance(self._open[-1].container, dict):
            between = self._lines[self._open[-1].key_line : start.line]
            self._notes.odd_comments |= any(map(_COMMENT_FOR_VALUE.search, between))

    def _note_properties(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent) -> None:
        if event.tag is not None:
            self._notes.tags = True
        if event.anchor is not None:
            self._notes.aliases = True

    def _place(self, value: Tree) -> None:
        """Add `value` to what is open: as an item, as a key, or as the value of the key before it."""
        if not self._open:
            self.root = value
            return
        frame = self._open[-1]
        if isinstance(frame.container, list):
            frame.container.append(value)
        elif frame.key is None:
            frame.key = as_text(value)
            if not isinstance(value, str):
                self._notes.repaired.append(frame.key)
        else:
            if frame.key in frame.container:
                self._notes.duplicates.append(frame.key)
            frame.container[frame.key] = value
            frame.key = None


def _reason(error: yaml.YAMLError) -> str:
    """Return libyaml's own words on one line, with the line of the file that it means."""
    problem = getattr(error, "problem", None) or "it cannot be read"
    mark = getattr(error, "problem_mark", None)
    # The mark counts from zero, and the opening fence is a line too.
    return f"{problem}, line {mark.line + 2}" if mark is not None else str(problem)


class _Salvage:
    """Reads broken YAML key by key; a value that YAML refuses becomes the plain text that stands there."""

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
        if self._parses > 0 and self._failures > 0 and len(text) <= self._characters:
            self._parses -= 1
            self._characters -= len(text)
            notes = Notes()
            try:
                tree = _compose(text, notes, self._steps)
            except _TooDeepError:
                self._failures -= 1
                self._notes.too_deep.append(key)
                return {key: _plain_text(block)}
            except FrontmatterError:
                self._failures -= 1
            else:
                if isinstance(tree, dict) and next(iter(tree), None) == key:
                    self._notes.add(notes)
                    return tree
        if depth < MAX_DEPTH and _opens_mapping(block):
            slips = self._notes.slips()
            nested = self.mapping(block[1:], depth + 1)
            if self._notes.slips() == slips:
                self._notes.repaired.append(key)
            return {key: nested}
        self._notes.repaired.append(key)
        return {key: _plain_text(block)}


def _blocks(lines: Iterable[str], notes: Notes) -> Iterator[tuple[str, list[str]]]:
    """Yield each key at the outermost indentation with its lines: its own, and all up to the next key."""
    base: int | None = None
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
        return [_unquoted(line[2:].strip()) for line in below if line]
    if _BLOCK_SCALAR.match(rest):
        return ("\n" if rest.startswith("|") else " ").join(below).strip()
    text = " ".join([rest, *below]).strip()
    return None if text in _NULLS else _unquoted(text)


def _unquoted(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    return text
