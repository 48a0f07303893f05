"""How the command line shows things: tables in a terminal, plain lines in a pipe, JSON when asked.

Data goes to standard output, remarks to standard error. Whatever strangers wrote is made harmless on the way out.
"""

import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from deepskills._catalog.sources import Source
from deepskills._cli.catalog import Found
from deepskills._files.inventory import summarize
from deepskills._types import SkillProblem

BAR_WIDTH = 16
"""How many characters the longest bar takes."""

_JOINERS = frozenset("\u200c\u200d")
"""Invisible, but part of words and emoji."""

_STYLES = {"error": "red", "warning": "yellow"}


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
    safe = "".join(c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] for c in text)
    try:
        safe.encode(encoding)
    except UnicodeEncodeError:
        return json.dumps(value, indent=2)
    return safe


def _open(stream: TextIO | None) -> TextIO:
    """Return the stream; for one that the caller closed, and that is missing, one that nobody reads."""
    return io.StringIO() if stream is None else stream


def _console(stream: TextIO) -> Console:
    """Return a console that draws in a terminal alone, whatever the environment forces upon others."""
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

    def remark(self, text: str, style: str = "") -> None:
        """Tell the user something that is no part of the data."""
        self._err.print(Text(prose(text), style), soft_wrap=True)

    def problems(self, problems: Iterable[SkillProblem]) -> None:
        """Print problems as data, `path: code: message` a line."""
        for found in problems:
            self._out.print(_problem_line(found), soft_wrap=True)

    def problem_remarks(self, problems: Iterable[SkillProblem]) -> None:
        """Print problems beside the data, `path: code: message` a line."""
        for found in problems:
            self._err.print(_problem_line(found), soft_wrap=True)

    def skills(self, found: Sequence[Found], sources: Sequence[Source]) -> None:
        """Show skills with source, cost, files and problems; in a terminal also as bars, and each source's share."""
        if not self._out.is_terminal:
            for skill in found:
                tokens = _counted(skill.row["tokens"], "token")
                self._tabbed(skill.row["name"], _label(skill.source), tokens, _files(skill), _verdict(skill))
        elif found:
            self._out.print(self._cost_table(found), "", self._share_table(found, sources), sep="\n")

    def hits(self, found: Sequence[Found]) -> None:
        """Show what a search found, best first."""
        if not self._out.is_terminal:
            for skill in found:
                self._tabbed(skill.row["name"], skill.row["description"])
        elif found:
            table = _table("Skill", "Description", "Source")
            for skill in found:
                cells = (skill.row["name"], skill.row["description"], _label(skill.source))
                table.add_row(Text(prose(cells[0]), "bold"), *(Text(prose(cell)) for cell in cells[1:]))
            self._out.print(table)

    def details(self, skill: Found) -> None:
        """Show all that is known of one skill, a property a line."""
        known = skill.details()
        self._property("Name", prose(known["name"]))
        self._property("Description", prose(known["description"]))
        self._property("Path", visible(known["path"]))
        self._property("Source", visible(known["source"]))
        properties: Mapping[str, str | None] = {
            "License": known["license"],
            "Compatibility": known["compatibility"],
            "Allowed tools": ", ".join(known["allowed_tools"]),
            **{f"Metadata {key}": value for key, value in known["metadata"].items()},
            "Tokens": str(known["tokens"]),
            "Files": _files(skill),
        }
        for name, value in properties.items():
            if value:
                self._property(prose(name), prose(value))
        directory = known["path"].rpartition("/")[0]
        for file in known["files"]:
            self.line(f"  {visible(file['path'].removeprefix(f'{directory}/'))}")

    def _property(self, name: str, value: str) -> None:
        self.line((f"{name}:", "bold"), f" {value}")

    def _tabbed(self, *cells: str) -> None:
        self._stdout.write("\t".join(prose(cell) for cell in cells) + "\n")

    def _cost_table(self, found: Sequence[Found]) -> Table:
        table = _table("Skill", "Source", "Tokens", "", "Files", "Problems")
        table.columns[2].justify = "right"
        table.columns[3].no_wrap = True
        most = max(skill.row["tokens"] for skill in found)
        for skill in found:
            tokens = skill.row["tokens"]
            table.add_row(
                Text(prose(skill.row["name"]), "bold"),
                Text(prose(_label(skill.source))),
                Text(f"{tokens:,}"),
                Text(self._bar(tokens, most), "cyan"),
                Text(_files(skill)),
                Text(_verdict(skill), _style(skill)),
            )
        return table

    def _share_table(self, found: Sequence[Found], sources: Sequence[Source]) -> Table:
        usable = [skill for skill in found if skill.is_usable]
        everything = sum(skill.row["tokens"] for skill in usable)
        table = _table("Source", "Skills", "Tokens", "Share of the catalog")
        table.columns[1].justify = table.columns[2].justify = "right"
        table.columns[3].no_wrap = True
        for source in sources:
            own = [skill for skill in usable if skill.source.path == source.path]
            tokens = sum(skill.row["tokens"] for skill in own)
            share = tokens / everything if everything else 0.0
            table.add_row(
                Text(prose(_label(source))),
                Text(str(len(own))),
                Text(f"{tokens:,}"),
                Text.assemble(f"{share:>4.0%} ", (self._bar(tokens, everything), "magenta")),
            )
        return table

    def _bar(self, part: int, whole: int) -> str:
        """Return a bar of `part` in `whole`; whatever is there shows."""
        length = max(1, round(part / whole * BAR_WIDTH)) if part > 0 else 0
        return ("#" if self._out.options.ascii_only else "█") * length


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in headings:
        # Folded, never cut: a name or path that is not there in full is of no use.
        table.add_column(heading, overflow="fold")
    return table


def _problem_line(found: SkillProblem) -> Text:
    style = _STYLES[found["severity"]]
    return Text.assemble(visible(found["path"]), ": ", (found["code"], style), f": {prose(found['message'])}")


def _label(source: Source) -> str:
    return source.label or source.path


def _files(skill: Found) -> str:
    if skill.ready is None:
        return "-"
    inventory = skill.ready.inventory
    more = f" and {inventory.more} more" if inventory.more else ""
    return f"{summarize(inventory.resources) or 'no files'}{more}"


def _verdict(skill: Found) -> str:
    codes = ", ".join(dict.fromkeys(found["code"] for found in skill.row["problems"]))
    if not skill.is_usable:
        return f"not usable: {codes}"
    return codes or "ok"


def _style(skill: Found) -> str:
    if not skill.is_usable:
        return _STYLES["error"]
    return _STYLES["warning"] if skill.row["problems"] else "green"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
