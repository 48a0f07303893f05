"""`show`: what a model would read of skills, word for word, and what each part of it costs.

The same functions make these texts in an agent; a test compares them with the requests of a real one.
"""

import json
from collections.abc import Iterator, Sequence

from typing_extensions import TypedDict

from deepskills._catalog.lookup import find_index
from deepskills._catalog.ranking import Ranker
from deepskills._cli.commands.catalog import Found, LocalCatalog
from deepskills._cli.files import perform
from deepskills._cli.output import Output, prose
from deepskills._io.plan import parent
from deepskills._loading.arguments import argument_names, fill_in
from deepskills._loading.budget import count_text_tokens, count_tokens
from deepskills._prompt import messages as words
from deepskills._prompt.section import CatalogList, render_locations, render_warnings, visible
from deepskills._skillmd.checks import read_checks
from deepskills._skillmd.text import counted
from deepskills._types import DEFAULT_SUGGESTIONS

SESSION = "THREAD-ID"
"""Stands where an agent puts the id of the thread."""


class Part(TypedDict):
    """One part of a text in the JSON of `show`."""

    part: str
    tokens: int


class Shown(TypedDict):
    """The JSON of `show`."""

    text: str
    tokens: int
    """About what the whole text costs."""

    parts: list[Part]


def _divide(whole: str, tokens: int, named: Sequence[tuple[str, str]], around: str) -> Shown:
    """Return a text with what its named parts cost, and what the text around them does."""
    parts = [Part(part=name, tokens=count_text_tokens(text)) for name, text in named if text]
    rest = max(0, tokens - sum(part["tokens"] for part in parts))
    return Shown(text=whole, tokens=tokens, parts=[*parts, Part(part=around, tokens=rest)])


def section_of(local: LocalCatalog) -> Shown:
    """Return the section about skills that every request holds, and what the tools cost beside it."""
    text = local.prompt()
    shown = visible(local.discovery.catalog, local.hidden)
    listed = CatalogList(shown).render({}) if shown else ""
    named = [
        (f"list of {counted(len(shown), 'skill')}", listed),
        ("sources", render_locations(local.sources)),
        ("warnings", render_warnings(local.errors)),
    ]
    made = _divide(text, count_text_tokens(text), named, "how to use them")
    tools = [Part(part=f"tool {name}", tokens=tokens) for name, tokens in tool_costs(sees_skills=bool(shown))]
    return Shown(text=text, tokens=made["tokens"] + sum(t["tokens"] for t in tools), parts=[*made["parts"], *tools])


def block_of(found: Found, arguments: str) -> Shown:
    """Return what a load of a skill puts into the conversation, arguments filled in, as with `SkillChecks`."""
    entry = found.entry
    assert entry is not None  # noqa: S101 - callers show usable skills
    directory = parent(entry.path)
    names = argument_names(entry.frontmatter.get("arguments"))
    text = fill_in(found.text, arguments, names=names, skill_dir=directory, session_id=SESSION)
    checks = read_checks(entry.frontmatter.get("checks"), entry.path).items
    checked = words.with_checks(text, checks)
    block = words.skill_block(entry, checked, found.inventory)
    head, fence, body = text.partition("\n---")
    named = [("frontmatter", head + fence), ("instructions", body)] if text.startswith("---") else [("file", text)]
    bare = words.skill_block(entry, checked, type(found.inventory)())
    named.append(("list of its checks", checked.removeprefix(text.rstrip()).strip()))
    named.append(("list of its files", block.removeprefix(bare)))
    return _divide(block, count_tokens(block), named, "around it")


def note_for(local: LocalCatalog, request: str) -> Shown | None:
    """Return the note that `SkillSuggestions` adds to a request; `None` if no skill fits."""
    entries = visible(local.discovery.catalog, local.hidden)
    ranking = perform(Ranker().rank(find_index(entries), request, DEFAULT_SUGGESTIONS))
    by_name = {entry.name: entry for entry in entries}
    lines = {name: words.suggestion_line(by_name[name]) for name in ranking.fitting[:DEFAULT_SUGGESTIONS]}
    if not lines:
        return None
    note = words.suggestion_note(lines.values())
    return _divide(note, count_text_tokens(note), list(lines.items()), "heading")


def show_tokens(output: Output, shown: Shown) -> None:
    """Print what each part costs, and the whole."""
    rows = [*((part["part"], part["tokens"]) for part in shown["parts"]), ("together", shown["tokens"])]
    if not output.is_terminal:
        for name, tokens in rows:
            output.row(name, str(tokens))
        return
    width = max(len(prose(name)) for name, _ in rows)
    for name, tokens in rows:
        output.line(f"{prose(name):<{width}}  {tokens:>8,}", " tokens")


# The definitions of the two tools, as providers are sent them.


def tool_definitions() -> Iterator[dict[str, dict[str, object]]]:
    """Yield `load_skill` and `unload_skill` as they go to a model; a test compares them with the agent's own."""
    name = {"description": words.NAME_DESCRIPTION, "type": "string"}
    arguments = {"default": "", "description": words.ARGUMENTS_DESCRIPTION, "type": "string"}
    given = {"skill_name": name, "arguments": arguments}
    yield _definition("load_skill", words.DESCRIPTIONS["load_skill"], given)
    yield _definition("unload_skill", words.DESCRIPTIONS["unload_skill"], {"skill_name": name})


def _definition(name: str, description: str, properties: dict[str, dict[str, str]]) -> dict[str, dict[str, object]]:
    parameters = {"properties": properties, "required": ["skill_name"], "type": "object"}
    return {"function": {"name": name, "description": description, "parameters": parameters}}


def tool_costs(*, sees_skills: bool) -> list[tuple[str, int]]:
    """Return each tool that a model is offered with what it costs in every request.

    One that sees no skill, and has none loaded, is offered neither.
    """
    costs = [(str(tool["function"]["name"]), count_text_tokens(json.dumps(tool))) for tool in tool_definitions()]
    return costs if sees_skills else []
