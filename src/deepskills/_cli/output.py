"""Shows results: tables in a terminal, plain lines in a pipe, JSON when asked.

Data goes to standard output, remarks to standard error, so that a pipe gets data alone. What strangers wrote is
cleaned on the way out: a skill's description must not be able to recolour, retitle or rewrite a terminal.
"""

import io
import json
import re
import sys
from collections.abc import Iterable
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from deepskills._types import SkillProblem

BAR_WIDTH = 16
"""How many characters the longest bar takes."""

_JOINERS = frozenset("\u200c\u200d")
"""Invisible, but part of words and emoji."""

STYLES = {"error": "red", "warning": "yellow"}
"""How each severity looks."""


def visible(text: str) -> str:
    """Return `text` with every character that a terminal would obey, or not show, as its escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _JOINERS else c.encode("unicode_escape").decode() for c in text)


def prose(text: str) -> str:
    """Return a text on one line, harmless to a terminal."""
    return visible(" ".join(text.split()))


def to_json(value: object, encoding: str = "utf-8") -> str:
    """Return readable JSON in which every character that `encoding` lacks or a terminal would obey is escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    # Escapes of JSON mean the same to a parser, and nothing to a terminal.
    safe = "".join(c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] for c in text)
    try:
        safe.encode(encoding)
    except UnicodeEncodeError:
        return json.dumps(value, indent=2)
    return safe


def _open(stream: TextIO | None) -> TextIO:
    """Return the stream, or a dummy where the caller closed it and it is missing."""
    return io.StringIO() if stream is None else stream


def _console(stream: TextIO) -> Console:
    """Return a console that uses styles only in a terminal, whatever the environment says."""
    # Rich obeys FORCE_COLOR and the like, which would put colours into a pipe.
    is_terminal = stream.isatty()
    return Console(
        file=stream,
        force_terminal=is_terminal,
        no_color=None if is_terminal else True,
        markup=False,
        emoji=False,
        highlight=False,
    )


class Output:
    """Shows values on standard output and remarks on standard error."""

    def __init__(self) -> None:
        self._stdout = _open(sys.stdout)
        self._out = _console(self._stdout)
        self._err = _console(_open(sys.stderr))

    def json(self, value: object) -> None:
        """Print a value as JSON."""
        self._stdout.write(to_json(value, self._stdout.encoding or "utf-8") + "\n")

    def line(self, *parts: str | tuple[str, str]) -> None:
        """Print one line; a part may be a pair of text and style."""
        self._out.print(Text.assemble(*parts), soft_wrap=True)

    def entry(self, *parts: str | tuple[str, str], indent: int = 2) -> None:
        """Print a text that may be long; a terminal gets it in lines without broken words, indented from the second."""
        _print_wrapped(self._out, Text.assemble(*parts), indent)

    def text(self, text: str) -> None:
        """Print a text of several lines as it is, harmless to a terminal, which breaks no word of it."""
        for line in text.split("\n"):
            _print_wrapped(self._out, Text(visible(line)), indent=0)

    def remark(self, text: str, style: str = "") -> None:
        """Tell the user something that is not part of the data."""
        _print_wrapped(self._err, Text(prose(text), style), indent=0)

    def problems(self, problems: Iterable[SkillProblem]) -> None:
        """Print problems as data, one `path: code: message` per line."""
        for found in problems:
            _print_wrapped(self._out, _problem_line(found))

    def problem_remarks(self, problems: Iterable[SkillProblem]) -> None:
        """Print problems beside the data, one `path: code: message` per line."""
        for found in problems:
            _print_wrapped(self._err, _problem_line(found))

    def row(self, *cells: str) -> None:
        """Print one line for programs, a tab between cells."""
        self._stdout.write("\t".join(prose(cell) for cell in cells) + "\n")

    def lines(self, lines: Iterable[Text]) -> None:
        """Print lines that fit already."""
        self._out.print(Text("\n").join(lines), soft_wrap=True)

    @property
    def is_terminal(self) -> bool:
        """Whether a person reads standard output."""
        return self._out.is_terminal

    @property
    def is_ascii(self) -> bool:
        """Whether standard output takes nothing but ASCII."""
        return self._out.options.ascii_only

    @property
    def width(self) -> int:
        """How many columns the terminal has."""
        return self._out.width

    def paragraph(self, text: str, indent: int, limit: int, style: str = "") -> list[Text]:
        """Return text in at most `limit` lines of the terminal's width; a cut one ends in dots."""
        room = max(20, self.width - indent)
        wrapped = list(Text(prose(text), style).wrap(self._out, room))
        if len(wrapped) > limit:
            dots = "..." if self.is_ascii else "…"
            del wrapped[limit:]
            wrapped[-1].truncate(room - len(dots))
            wrapped[-1].rstrip()
            wrapped[-1].append(dots)
        for line in wrapped:
            line.rstrip()
            line.pad_left(indent)
        return wrapped

    def bar(self, part: int, whole: int) -> str:
        """Return a bar of `part` in `whole`; a part that is not 0 shows."""
        length = max(1, round(part / whole * BAR_WIDTH)) if part > 0 else 0
        return (("#" if self.is_ascii else "█") * length).ljust(BAR_WIDTH)


def _print_wrapped(console: Console, text: Text, indent: int = 2) -> None:
    """Print a text; in a terminal broken between words alone, so that a path stays in one piece and can be copied."""
    if not console.is_terminal or text.cell_len <= console.width:
        console.print(text, soft_wrap=True)
        return
    lines = text.divide(_breaks(text.plain, console.width, console.width - indent))
    for number, line in enumerate(lines):
        line.rstrip()
        if number:
            line.pad_left(indent)
        console.print(line, soft_wrap=True)


def _breaks(text: str, first: int, further: int) -> list[int]:
    """Return where lines start after the first, so that each fits its room; a word that is too long gets a line."""
    starts: list[int] = []
    start, room = 0, first
    for word in re.finditer(r"\S+", text):
        if word.start() > start and cell_len(text[start : word.end()]) > room:
            starts.append(word.start())
            start, room = word.start(), further
    return starts


def _problem_line(found: SkillProblem) -> Text:
    style = STYLES[found["severity"]]
    return Text.assemble(visible(found["path"]), ": ", (found["code"], style), f": {prose(found['message'])}")
