"""Turns YAML into plain text, lists and mappings: by its events, or by a fast way for plain files.

The events of libyaml are put together here rather than by a YAML loader, because only here can nesting be cut while
it arrives, aliases and tags be left alone (a few lines of aliases expand to gigabytes), and every scalar stay the
text that was written: `version: 1.10` is not a number to anybody who reads a skill.

Most files are `key: value` lines, one level of nesting and one-line values. `read_plain` reads those by one regular
expression per line, at a fraction of libyaml's cost. Whatever is not plainly of that shape is left to libyaml, and a
test holds both ways equal over generated and hostile files.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml

from deepskills._skillmd.text import clean

_EventSource: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Reads YAML events; PyYAML built without libyaml has only the slower one."""

Tree: TypeAlias = "str | list[Tree] | dict[str, Tree] | None"
"""Frontmatter as read: text, nothing, a list or a mapping."""

MAX_DEPTH = 16
"""How deep lists and mappings may nest; libyaml turns quadratic on deep flow nesting."""

MAX_EVENTS = 200_000
"""How many YAML events frontmatter may have; what is within the size limit has fewer."""

NULLS = frozenset({"", "~", "null", "Null", "NULL"})
"""Plain scalars that mean nothing."""

_TOUCHING_COMMENT = re.compile(r"[|>][-+0-9]{0,2}#")
_COMMENT_FOR_VALUE = re.compile(r":[ \t]+#")


class FrontmatterError(ValueError):
    """The text is not YAML, even key by key."""


class TooDeepError(FrontmatterError):
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


_TRUE = frozenset({"true", "yes", "on", "y", "1"})
_FALSE = frozenset({"false", "no", "off", "n", "0"})


def as_flag(tree: Any, *, default: bool = False) -> bool:  # noqa: ANN401 - state may hold anything
    """Return whether a value of frontmatter means yes or no; whatever means neither is the default.

    Frontmatter is kept as text, so that `no` and `on` stay names and words where they are meant as such. Authors write
    flags in all the ways of YAML 1.1; every flag is read here, so that a skill that one part of the library
    hides is not shown by another.
    """
    text = (str(tree) if isinstance(tree, bool | int) else as_text(tree)).strip().casefold()
    return text in _TRUE or (default and text not in _FALSE)


def read_scalar(text: str) -> str | None:
    """Return what a plain scalar stands for: its text as written, or nothing."""
    return None if text in NULLS else text


def compose(
    text: str, notes: Notes, steps: Iterator[int], read_plain_scalar: Callable[[str], Any] = read_scalar
) -> Any:  # noqa: ANN401 - a `Tree`, unless plain scalars become something else
    """Put the one YAML document of `text` together, one event per step.

    `read_plain_scalar` says what plain scalars stand for; quoted ones and blocks are text, whatever they look like.

    Raises:
        FrontmatterError: If it is not valid YAML, holds several documents, nests too deep, or needs more steps.
    """
    source = _EventSource(text)
    # Comments matter only where there are any, and splitting every file would cost more than looking for one.
    composer = _Composer(notes, text.split("\n") if "#" in text else [], text, read_plain_scalar)
    try:
        for _ in steps:
            event = source.get_event()
            if event is None:
                return composer.root
            composer.take(event)
    except yaml.YAMLError as error:
        raise FrontmatterError(_reason(error)) from None
    except UnicodeDecodeError:
        # A tag's %-escapes may not be UTF-8, which libyaml lets through.
        raise FrontmatterError("a tag is not text") from None
    raise FrontmatterError("it holds too many values")


class _Frame:
    """A list or mapping that is still open."""

    __slots__ = ("container", "is_flow", "is_template", "key", "key_line", "start")

    def __init__(self, container: list[Tree] | dict[str, Tree], event: yaml.CollectionStartEvent) -> None:
        self.container = container
        self.start = event.start_mark
        self.is_flow = bool(event.flow_style)
        self.is_template = False
        """Whether it is what YAML makes of `{{NAME}}`: a mapping in flow style whose key is one, too."""
        self.key: str | None = None
        self.key_line = 0

    def awaits_key(self) -> bool:
        return self.key is None and isinstance(self.container, dict)


class _Composer:
    """Takes YAML events, one by one, and builds what they say."""

    def __init__(self, notes: Notes, lines: list[str], text: str, read_plain_scalar: Callable[[str], Any]) -> None:
        self.root: Tree = None
        self._read_plain_scalar = read_plain_scalar
        self._text = text
        self._notes = notes
        self._lines = lines
        self._open: list[_Frame] = []
        self._documents = 0
        self._split: list[str] | None = None

    def take(self, event: yaml.Event) -> None:
        """Take one event; scalars are asked about first because they are the most frequent."""
        if isinstance(event, yaml.ScalarEvent):
            self._place(self._scalar(event))
        elif isinstance(event, yaml.CollectionStartEvent):
            self._start(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            frame = self._open.pop()
            self._place(self._as_written(frame, event) if frame.is_template else frame.container)
        elif isinstance(event, yaml.AliasEvent):
            self._notes.aliases = True
            # As written, never expanded: a few hundred bytes of aliases can stand for megabytes.
            self._place(f"*{event.anchor}")
        elif isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise FrontmatterError("it holds more than one YAML document")

    def _start(self, event: yaml.CollectionStartEvent) -> None:
        # Cut while events arrive: libyaml is quadratic on flow nesting, and 60 KB of `[` take it over six seconds.
        if len(self._open) == MAX_DEPTH:
            raise TooDeepError(f"it nests deeper than {MAX_DEPTH} levels")
        self._note_properties(event)
        self._notes.flow |= bool(event.flow_style)
        self._open.append(_Frame({} if isinstance(event, yaml.MappingStartEvent) else [], event))

    def _as_written(self, frame: _Frame, event: yaml.CollectionEndEvent) -> Tree:
        """Return the text of a placeholder that nobody filled in, as it stands in the file."""
        start, end = frame.start, event.end_mark
        if start is None or end is None:
            return frame.container
        if self._split is None:
            self._split = self._text.split("\n")
        if start.line == end.line:  # many may stand on one long line, which is not copied for each
            text = self._split[start.line][start.column : end.column]
        else:
            lines = self._split[start.line : end.line + 1]
            parts = (lines[0][start.column :], *lines[1:-1], lines[-1][: end.column])
            text = " ".join(part.strip() for part in parts)
        self._notes.repaired.append(self._open[-1].key or text if self._open else text)
        return text

    def _scalar(self, event: yaml.ScalarEvent) -> Any:  # noqa: ANN401 - whatever a plain scalar stands for
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
            # A merge key is an alias by another name, and stays a plain key here.
            self._notes.aliases |= event.value == "<<"
            return event.value
        return self._read_plain_scalar(event.value)

    def _note_comment(self, event: yaml.ScalarEvent, *, is_key: bool) -> None:
        """Note a comment that touches a block's indicator, or is between a key and its text: others fail on it."""
        start, end = event.start_mark, event.end_mark
        if start is None or end is None:
            return
        if event.style in ("|", ">"):
            line = self._lines[start.line] if start.line < len(self._lines) else ""
            self._notes.odd_comments |= bool(_TOUCHING_COMMENT.match(line, start.column))
        if is_key:
            self._open[-1].key_line = end.line
        elif self._open and event.style not in ("'", '"') and isinstance(self._open[-1].container, dict):
            # Only values on a later line than their key can have a comment between.
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
            # A key may be a list or a mapping in YAML; it becomes its text.
            frame.key = as_text(value)
            if isinstance(value, dict) and frame.is_flow:
                frame.is_template = True
            elif not isinstance(value, str):
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


# The fast way for plain frontmatter.

_NOT_TEXT = r"\n\t\u2028\u2029"
_LINE = re.compile(
    r"(?P<indent> *+)"
    r"(?:(?P<key>[A-Za-z_][A-Za-z0-9_-]{0,63}):|(?P<item>-)|)"
    r"(?: +(?:"
    rf'"(?P<double>[^"\\{_NOT_TEXT}]*+)"'
    rf"|'(?P<single>[^'{_NOT_TEXT}]*+)'"
    # A plain scalar starts with a character that means nothing to YAML, and holds neither `: ` nor ` #`.
    r"|(?P<bare>[A-Za-z0-9_(/$+\u00a1-\u2027\u202f-\ud7ff]"
    rf"[^:#{_NOT_TEXT}]*+(?:(?::(?![ \n]|\Z)|(?<! )#)[^:#{_NOT_TEXT}]*+)*+)"
    r") *+| *+)(?:\n|\Z)"
)


def read_plain(text: str) -> dict[str, Tree] | None:  # noqa: C901, PLR0911, PLR0912 - one small automaton
    """Return the mapping that cleaned text holds if it is plain throughout; `None` if only YAML can tell."""
    found: dict[str, Tree] = {}
    open_key = ""
    below: list[Tree] | dict[str, Tree] | None = None
    indent = position = 0
    end = len(text)
    while position < end:
        # One expression per line, possessive throughout: no line can make it try again.
        line = _LINE.match(text, position)
        if line is None:
            return None
        position = line.end()
        spaces, key, item, double, single, bare = line.groups()
        value: str | None = double if double is not None else single
        if bare is not None:
            bare = bare.rstrip(" ")
            value = None if bare in NULLS else bare
        is_empty = double is None and single is None and bare is None
        depth = len(spaces)
        if key is None and item is None:
            # A blank line. Text without a key continues a value from the line before, which only YAML can join.
            if not is_empty:
                return None
        elif key is not None and depth == 0:
            # Duplicates and whatever else has to be reported are left to the full reading.
            if key in found:
                return None
            found[key] = value
            # A key without a value may open a list or a mapping on the lines below.
            open_key, below = (key if is_empty else ""), None
        elif not open_key or (item is not None and is_empty) or (below is not None and depth != indent):
            return None
        elif below is None:
            indent, below = depth, ({key: value} if key is not None else [value])
            found[open_key] = below
        elif isinstance(below, dict):
            if key is None or key in below:
                return None
            below[key] = value
        else:
            if item is None:
                return None
            below.append(value)
    # Nothing at all may be a comment or an empty document, which YAML tells apart.
    return found or None
