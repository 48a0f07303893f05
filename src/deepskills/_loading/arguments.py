"""Fills arguments, the skill's directory and the session into a skill's instructions when it is loaded.

Values come from users and models. What a placeholder becomes is never looked at again, so a value cannot bring in
placeholders of its own. Only the instructions are changed: frontmatter is read by programs, and a value in it could
be taken for the author's word. Work is linear in text, arguments and result, and bounded, since both sides may be
hostile.
"""

import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any

from deepskills._skillmd.read import start_of_instructions

MAX_FILLED_CHARACTERS = 10 * 1024 * 1024
"""Longest text that filling in may give; a small file could otherwise repeat a large value without end."""

MAX_CANDIDATES = 20_000
"""Most places in one text that are looked at as placeholders."""

MAX_NAME_CHARACTERS = 64
"""Longest name that an argument can be called by."""

_NAME = re.compile(r"[\w-]+")
_CANDIDATE = re.compile(
    r"\{baseDir\}"
    r"|\$(?:\{(?P<variable>CLAUDE_SKILL_DIR|SKILL_DIR|CLAUDE_SESSION_ID)\}"
    # Possessive quantifiers (`++`) never give back: no text makes these patterns try again and again.
    r"|(?P<digits>[0-9]++)"
    r"|(?P<whole>ARGUMENTS)(?:\[(?P<index>[0-9]++)\])?+"
    r"|(?=\w))"
)
_PATH_BEHIND = re.compile(r"(?:/[^\s/\"'`()<>|;,*?$\\\[\]{}]*+)++")
_CONTINUES_WORD = re.compile(r"[^\W\u2e80-\U0003ffff]")
"""A character that makes a longer word of what stands before it; Chinese, Japanese and Korean have no spaces."""

_PIECE = re.compile(
    r"(?P<plain>[^ \t\r\n'\"\\]++)"
    r"|(?P<space>[ \t\r\n]++)"
    r"|'(?P<single>[^']*+)'"
    r'|"(?P<double>(?:[^"\\]|\\.)*+)"'
    r"|\\(?P<escaped>.)"
    r"|(?P<other>.)",  # a quote without its partner, a backslash at the end
    re.DOTALL,
)
_ESCAPED_IN_DOUBLE = re.compile(r"\\(?:([\"\\$`])|\n)")
_MAX_INDEX_DIGITS = 9


class _NotFilled(Exception):  # noqa: N818 - a turn in the flow, never seen outside
    """Filling in would cost too much."""


def fill_in(text: str, arguments: str, *, names: Sequence[str], skill_dir: str, session_id: str) -> str:
    r"""Return a `SKILL.md` with the placeholders of its instructions filled in.

    Without arguments only names become empty, and the directory and the session are filled in. Arguments for which
    the text has no placeholder are appended. A single backslash before a `$` that would be filled in keeps it literal.

    Args:
        text: The whole file, as loaded.
        arguments: What the skill was started with.
        names: What the author calls the arguments, in their order.
        skill_dir: The skill's directory, as the agent's tools know it.
        session_id: The thread's id.
    """
    start = start_of_instructions(text)
    variables = {"CLAUDE_SKILL_DIR": skill_dir, "SKILL_DIR": skill_dir, "CLAUDE_SESSION_ID": session_id}
    # White space alone is not an argument.
    filling = _Filling(text, arguments if arguments.strip() else "", names, variables)
    try:
        filled, is_used = filling.fill(start)
    # Too much work: the text stays as its author wrote it, with the arguments at its end.
    except _NotFilled:
        filled, is_used = text, False
    if is_used or not filling.arguments:
        return filled
    separator = "\n" if filled.endswith("\n") else "\n\n"
    return f"{filled}{separator}ARGUMENTS: {arguments}"


def argument_names(frontmatter_value: Any) -> list[str]:  # noqa: ANN401 - an author may write anything
    """Return the names of arguments that an author gave, as a list or as text with spaces; each keeps its place."""
    if isinstance(frontmatter_value, str):
        return frontmatter_value.replace(",", " ").split()
    if not isinstance(frontmatter_value, Sequence):
        return []
    return [_name_of(item) for item in frontmatter_value]


def split_arguments(arguments: str) -> list[str]:
    """Split arguments as a shell would, without expanding anything; a quote without its partner is plain text."""
    found: list[str] = []
    word: list[str] | None = None
    for piece in _PIECE.finditer(arguments):
        if piece["space"] is not None:
            if word is not None:
                found.append("".join(word))
            word = None
            continue
        # `None` and the empty word differ: `""` is an argument, a space is none.
        word = [] if word is None else word
        if piece["double"] is not None:
            word.append(_ESCAPED_IN_DOUBLE.sub(lambda escaped: escaped[1] or "", piece["double"]))
        elif piece["escaped"] is not None:
            word.append("" if piece["escaped"] == "\n" else piece["escaped"])
        else:
            word.append(piece["single"] if piece["single"] is not None else piece[0])
    if word is not None:
        found.append("".join(word))
    return found


class _Filling:
    """One text and what its placeholders become."""

    def __init__(self, text: str, arguments: str, names: Sequence[str], variables: Mapping[str, str]) -> None:
        self._text = text
        self.arguments = arguments
        self._values = split_arguments(arguments)
        self._variables = variables
        self._names: dict[str, int] = {}
        for position, name in enumerate(names):
            if _is_usable(name):
                self._names.setdefault(name, position)
        # Longest first, so that `$file_name` is not read as `$file` and a rest.
        self._lengths = sorted({len(name) for name in self._names}, reverse=True)
        self._initials = {name[0] for name in self._names}

    def fill(self, start: int) -> tuple[str, bool]:
        """Return the text, filled in from `start` on, and whether a placeholder took up arguments."""
        parts: list[str] = []
        done = 0
        size = len(self._text)
        is_used = False
        for count, candidate in enumerate(_CANDIDATE.finditer(self._text, start)):
            # Checked while it grows, not after: a small text can ask for a large value ten thousand times.
            if count >= MAX_CANDIDATES or size > MAX_FILLED_CHARACTERS:
                raise _NotFilled
            if candidate.start() < done:
                # Inside a name that was already filled in.
                continue
            value, end, takes_arguments = self._resolve(candidate)
            if value is None:
                continue
            begin = candidate.start()
            if self._is_escaped(begin, start):
                # Drop the backslash and keep the placeholder as it was written.
                parts.append(self._text[done : begin - 1])
                value = self._text[begin:end]
            else:
                parts.append(self._text[done:begin])
                is_used = is_used or takes_arguments
            parts.append(value)
            size += len(value) - (end - begin)
            done = end
        if size > MAX_FILLED_CHARACTERS and parts:
            raise _NotFilled
        return "".join([*parts, self._text[done:]]), is_used

    def _resolve(self, candidate: re.Match[str]) -> tuple[str | None, int, bool]:
        """Return what a placeholder becomes (`None`: it stays), where it ends, and whether it stands for arguments."""
        if candidate["variable"] is not None or candidate[0] == "{baseDir}":
            variable = candidate["variable"] or "SKILL_DIR"
            value = self._variables[variable]
            if variable == "CLAUDE_SESSION_ID":
                return value, candidate.end(), False
            return (*self._write_out(value, candidate.end()), False)
        # Names go first: an author who calls an argument `1st` means that one and not the first.
        begin = candidate.start() + 1
        name = self._name_at(begin)
        if name is not None:
            return self._value(self._names[name]) or "", begin + len(name), True
        return self._positional(candidate) if self.arguments else None, candidate.end(), True

    def _write_out(self, directory: str, end: int) -> tuple[str, int]:
        """Return a directory with the steps up behind it worked out, and where they end: file tools refuse `..`."""
        behind = _PATH_BEHIND.match(self._text, end)
        steps = behind[0].split("/") if behind else []
        if ".." not in steps:
            return directory, end
        last = len(steps) - steps[::-1].index("..")
        path = "/".join(steps[:last])
        target = posixpath.normpath(directory + path)
        return ("" if target == "/" and steps[last:] else target), end + len(path)

    def _positional(self, candidate: re.Match[str]) -> str | None:
        # `$ARGUMENTS[0]` has an end of its own; `$1st` and `$ARGUMENTSX` are other words.
        if candidate["index"] is not None:
            return self._find_value(candidate["index"])
        if _CONTINUES_WORD.match(self._text, candidate.end()):
            return None
        if candidate["whole"] is not None:
            return self.arguments
        return self._find_value(candidate["digits"]) if candidate["digits"] is not None else None

    def _name_at(self, position: int) -> str | None:
        """Return the longest name that stands at a position as a word of its own."""
        if self._text[position : position + 1] not in self._initials:
            return None
        for length in self._lengths:
            name = self._text[position : position + length]
            if name in self._names and not _CONTINUES_WORD.match(self._text, position + length):
                return name
        return None

    def _find_value(self, digits: str) -> str | None:
        # Python refuses to convert thousands of digits, and is slow on fewer.
        return self._value(int(digits)) if len(digits) <= _MAX_INDEX_DIGITS else None

    def _value(self, position: int) -> str | None:
        return self._values[position] if position < len(self._values) else None

    def _is_escaped(self, position: int, start: int) -> bool:
        if self._text[position] != "$" or position <= start or self._text[position - 1] != "\\":
            return False
        # Two backslashes are one that was escaped, and leave the `$` as it is.
        return position - 1 == start or self._text[position - 2] != "\\"


def _is_usable(name: str) -> bool:
    fits = len(name) <= MAX_NAME_CHARACTERS and _NAME.fullmatch(name) is not None
    return fits and name != "ARGUMENTS" and not (name.isascii() and name.isdigit())


def _name_of(item: object) -> str:
    if isinstance(item, Mapping):
        item = item.get("name")
    return item.strip() if isinstance(item, str) else ""
