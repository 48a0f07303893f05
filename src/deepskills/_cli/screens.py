"""What each command shows of skills: for people in a terminal of any width, and a line per skill in a pipe."""

from collections.abc import Iterator, Mapping, Sequence

from rich.cells import cell_len
from rich.text import Text

from deepskills._cli.catalog import Found, LocalCatalog
from deepskills._cli.output import STYLES, Output, counted, prose, visible
from deepskills._files.inventory import summarize
from deepskills._loading.tokens import count_text_tokens

NAME_COLUMN = 30
"""How wide the column of names is at most; what stands behind a longer name goes to the next line."""

WIDE = 100
"""From how many columns on there is room for bars and for what kinds of files there are."""

DESCRIPTION_LINES = 2
"""How many lines of a description a list shows; `info` shows it all."""


def show_list(output: Output, local: LocalCatalog) -> None:
    """Show all skills, by source in a terminal, with what each costs to load, and what all cost in every request."""
    if not output.is_terminal:
        for skill in local.found:
            tokens = counted(skill.row["tokens"], "token").replace(",", "")
            cells = (skill.row["name"], _label(skill), tokens, _kinds(skill), _verdict(skill), skill.row["description"])
            output.tabbed(*cells)
    elif local.found:
        output.lines(_by_source(output, local))
    if local.found:
        output.remark(cost_line(local))


def show_hits(output: Output, found: Sequence[Found]) -> None:
    """Show what a search found, best first."""
    if not output.is_terminal:
        for skill in found:
            output.tabbed(skill.row["name"], skill.row["description"])
    elif found:
        output.lines(_blocks(output, found, indent=0))


def show_details(output: Output, skill: Found) -> None:
    """Show all that is known of one skill, one property per line."""
    known = skill.details()
    properties: Mapping[str, str | None] = {
        "Name": prose(known["name"]),
        "Description": prose(known["description"]),
        "Path": visible(known["path"]),
        "Source": visible(known["source"]),
        "License": known["license"],
        "Compatibility": known["compatibility"],
        "Allowed tools": ", ".join(known["allowed_tools"]),
        **{f"Metadata {key}": value for key, value in known["metadata"].items()},
        "Tokens": str(known["tokens"]),
        "Files": _kinds(skill),
    }
    for name, value in properties.items():
        if value:
            output.line((f"{prose(name)}:", "bold"), f" {prose(value)}")
    directory = known["path"].rpartition("/")[0]
    for file in known["files"]:
        output.line(f"  {visible(file['path'].removeprefix(f'{directory}/'))}")


def cost_line(local: LocalCatalog) -> str:
    """Return what the skills cost an agent: in every request, and when one is loaded."""
    costs = [skill.row["tokens"] for skill in local.usable]
    where = counted(len(local.sources), "source")
    if not costs:
        return f"No usable skill in {where}."
    loads = f"{min(costs):,}" if min(costs) == max(costs) else f"{min(costs):,} to {max(costs):,}"
    every = count_text_tokens(local.prompt())
    return f"{counted(len(costs), 'skill')} from {where}: {every:,} tokens in every request, {loads} per load."


def _by_source(output: Output, local: LocalCatalog) -> Iterator[Text]:
    is_first = True
    for source in local.sources:
        own = [skill for skill in local.found if skill.source.path == source.path]
        if not own:
            continue
        if not is_first:
            yield Text()
        is_first = False
        yield Text.assemble(
            (visible(source.label or source.path), "bold magenta"), (f"  {counted(len(own), 'skill')}", "dim")
        )
        yield from _blocks(output, own, indent=2)


def _blocks(output: Output, found: Sequence[Found], indent: int) -> Iterator[Text]:
    """Yield each skill as a line of name and cost, and its description below."""
    most = max(skill.row["tokens"] for skill in found)
    column = min(NAME_COLUMN, max(cell_len(prose(skill.row["name"])) for skill in found))
    for skill in found:
        name = prose(skill.row["name"])
        facts = _facts(output, skill, most)
        start = Text(" " * indent)
        if cell_len(name) <= column:
            yield Text.assemble(start, (name, "bold"), " " * (column - cell_len(name) + 2), facts)
        else:
            yield Text.assemble(start if indent + cell_len(name) <= output.width else "", (name, "bold"))
            yield Text.assemble(start, "  ", facts)
        if skill.row["description"]:
            yield from output.paragraph(skill.row["description"], indent + 2, DESCRIPTION_LINES, "dim")
        if skill.row["problems"]:
            yield Text.assemble(start, "  ", (_verdict(skill), _style(skill)))


def _facts(output: Output, skill: Found, most: int) -> Text:
    """Return what a skill costs and holds, in as much detail as the terminal has room for."""
    tokens = skill.row["tokens"]
    if output.width < WIDE:
        return Text(f"{tokens:>7,} tokens  {counted(skill.row['resources'], 'file')}")
    bar = output.bar(tokens, most)
    return Text.assemble(f"{tokens:>7,} tokens  ", (bar, "cyan"), f"  {_kinds(skill)}")


def _label(skill: Found) -> str:
    return skill.source.label or skill.source.path


def _kinds(skill: Found) -> str:
    if skill.entry is None:
        return "-"
    inventory = skill.inventory
    more = f" and {inventory.more} more" if inventory.more else ""
    return f"{summarize(inventory.resources) or 'no files'}{more}"


def _verdict(skill: Found) -> str:
    codes = ", ".join(dict.fromkeys(found["code"] for found in skill.row["problems"]))
    if not skill.is_usable:
        return f"not usable: {codes}"
    return codes or "ok"


def _style(skill: Found) -> str:
    return STYLES["warning" if skill.is_usable else "error"]
