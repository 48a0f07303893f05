"""`list`, `info` and `search`: the skills in local directories, and how each command shows them.

People in a terminal get a table that fits its width; a pipe gets one line per skill, with nothing cut.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NotRequired

from rich.cells import cell_len
from rich.text import Text
from typing_extensions import TypedDict

from deepskills._catalog.catalog import Catalogs, Reading, Readings, SkillEntry, Visibility
from deepskills._catalog.discovery import Discovery, discover, format_source_errors
from deepskills._catalog.lookup import find_index, find_or_raise
from deepskills._cli.files import UsageError, find_named_sources, find_usual_sources, perform
from deepskills._cli.output import STYLES, Output, prose, visible
from deepskills._cli.plugins import describe_servers, plugin_of, servers_of
from deepskills._files.inventory import Inventory, SkillContents, list_files, read_contents, summarize
from deepskills._io.drivers import side_by_side
from deepskills._io.plan import lies_under, parent
from deepskills._loading.budget import count_text_tokens, count_tokens
from deepskills._prompt.messages import skill_block
from deepskills._prompt.section import SKILLS_SYSTEM_PROMPT, Section, SectionInput
from deepskills._providers.directory import DirectoryProvider
from deepskills._providers.plugins import McpServer
from deepskills._providers.sources import Source
from deepskills._skillmd.checks import read_checks
from deepskills._skillmd.keys import INVOCATION_FILE, KEYS, FrontmatterKey, is_acted_on
from deepskills._skillmd.problems import problem
from deepskills._skillmd.read import read_skill
from deepskills._skillmd.repair import as_text
from deepskills._skillmd.text import counted
from deepskills._types import (
    DEFAULT_DEPTH,
    DEFAULT_LOADED_SKILLS,
    DEFAULT_RESOURCE_DEPTH,
    ResourceMetadata,
    SkillProblem,
)

MAX_SHOWN_VALUE = 400
"""How much of a frontmatter value `info` shows; `--json` has it all."""


class SkillRow(TypedDict):
    """A skill in the JSON of `list`, `search` and `create`."""

    name: str
    """The name; of a file that cannot be used, its directory's."""

    description: str
    """What it does and when to use it; empty if the file cannot be used."""

    path: str
    """The `SKILL.md`, absolute."""

    source: str
    """The source it was found in, absolute."""

    tokens: int
    """About what it costs to load; 0 if the file cannot be used."""

    resources: int
    """How many further files belong to it, in whichever directory."""

    problems: list[SkillProblem]
    """What is wrong with its file, and with files of the same name that it hides."""


class FileRow(TypedDict):
    """One of a skill's files in the JSON of `info`."""

    path: str
    type: str


class KeyRow(TypedDict):
    """A frontmatter key in the JSON of `info`."""

    name: str
    does: str
    needs: str | None
    """The extension without which it does nothing."""


class SkillDetails(SkillRow):
    """A skill in the JSON of `info`."""

    license: str | None
    compatibility: str | None
    metadata: dict[str, str]
    allowed_tools: list[str]
    visibility: Visibility
    """`user-only` if its author lets only the user start it, else `on`."""

    user_invocable: bool
    """Whether a user may start it by a slash command."""

    model: str | None
    context: str | None
    agent: str | None
    hooks: object
    """As in the frontmatter; null without any."""

    keys: list[KeyRow]
    """Each further key that deepskills acts on."""

    listed: list[str]
    """Paths of the files that a load lists."""

    files: list[FileRow]
    """All its files but `SKILL.md` and hidden ones."""

    mcp_servers: NotRequired[list[McpServer]]
    """The MCP servers that its plugin names, if any; they are not started."""


@dataclass
class Found:
    """A skill that was found: its row, and unless its file cannot be used, what a load would bring."""

    row: SkillRow
    source: Source
    entry: SkillEntry | None = None
    inventory: Inventory = field(default_factory=Inventory)
    files: list[ResourceMetadata] = field(default_factory=list)
    """All its files, not only those that a load lists."""

    text: str = ""
    """The whole file."""

    failure: str | None = None
    """Why it could not be read."""

    @property
    def is_usable(self) -> bool:
        """Whether an agent could load it."""
        return self.entry is not None and self.failure is None

    @cached_property
    def is_user_only(self) -> bool:
        """Whether its author keeps it from the model: only a user starts it."""
        return self.entry is not None and self.entry.is_user_only

    @property
    def is_kept_by_file(self) -> bool:
        """Whether the file of another client says so."""
        return self.entry is not None and INVOCATION_FILE in self.entry.frontmatter

    @cached_property
    def frontmatter(self) -> dict[str, Any]:
        """Every key as its author wrote it."""
        return read_skill(self.text, path=self.row["path"]).frontmatter

    @cached_property
    def keys(self) -> list[FrontmatterKey]:
        """The keys of its frontmatter that deepskills acts on beside the specification's."""
        given = self.frontmatter
        further = [KEYS[name] for name in given if is_acted_on(name) and not KEYS[name].is_specified]
        inner = given.get("metadata")
        below = inner if isinstance(inner, dict) else {}
        return [*further, *(key for key in KEYS.values() if key.name.removeprefix("metadata.") in below and key.below)]

    def details(self) -> SkillDetails:
        """Return all that is known of a usable skill."""
        if self.entry is None:
            raise UsageError(f"The skill {self.row['name']} cannot be used.")
        skill, given = self.entry.skill, self.frontmatter
        details = SkillDetails(
            **self.row,  # type: ignore[typeddict-item]  # `mcp_servers` follows, if there are any
            license=skill["license"],
            compatibility=skill["compatibility"],
            metadata=skill["metadata"],
            allowed_tools=skill["allowed_tools"],
            visibility="user-only" if self.is_user_only else "on",
            user_invocable=self.entry.is_user_invocable,
            model=as_text(given.get("model")) or None,
            context=as_text(given.get("context")) or None,
            agent=as_text(given.get("agent")) or None,
            hooks=given.get("hooks"),
            keys=[KeyRow(name=key.name, does=key.does, needs=key.needs or None) for key in self.keys],
            listed=[file["path"] for file in self.inventory.resources],
            files=[FileRow(path=file["path"], type=file["type"]) for file in self.files],
        )
        plugin = plugin_of(self.source)
        if plugin is not None and (servers := servers_of(plugin)[0]):
            details["mcp_servers"] = servers
        return details


@dataclass
class LocalCatalog:
    """The skills of some sources, usable or not, and what is wrong with the sources themselves."""

    discovery: Discovery
    found: list[Found]
    """Sorted by name."""

    sources: list[Source]
    source_problems: list[SkillProblem]
    is_default: bool = False
    """Whether no sources were named."""

    @property
    def usable(self) -> list[Found]:
        """The skills that an agent could load."""
        return [found for found in self.found if found.is_usable]

    @property
    def problems(self) -> list[SkillProblem]:
        """Everything that is wrong, sources first."""
        return [*self.source_problems, *(noted for found in self.found for noted in found.row["problems"])]

    def prompt(self) -> str:
        """Return the section about skills that every request of an agent with these sources holds."""
        section = Section(SKILLS_SYSTEM_PROMPT, max_loaded=DEFAULT_LOADED_SKILLS)
        # No word on tools: as `create_deep_agent` makes an agent, which can read and write files.
        return section.render(SectionInput(self.discovery.catalog, self.sources, self.errors, hidden=self.hidden))

    @property
    def errors(self) -> list[str]:
        """The lines about sources that failed, as the section has them."""
        return format_source_errors(self.source_problems)

    @property
    def hidden(self) -> dict[str, Visibility]:
        """The skills that the model does not see."""
        return {found.row["name"]: "user-only" for found in self.usable if found.is_user_only}

    def get(self, name: str) -> Found:
        """Return the usable skill of that name, in any case.

        Raises:
            SkillFormatError: If there is such a directory, but its file is broken.
            SkillNotFoundError: If there is none; the message names the closest.
        """
        return self._of(find_or_raise(self.discovery.catalog, self.discovery.problems, name))

    def search(self, query: str, limit: int) -> list[Found]:
        """Return the usable skills that fit `query`, best first."""
        catalog = self.discovery.catalog
        hits = find_index(catalog.entries).search(query, limit)
        return [self._of(catalog.by_name[name]) for name in hits]

    def _of(self, entry: SkillEntry) -> Found:
        return next(found for found in self.found if found.row["path"] == entry.path)


def read_catalog(given: Sequence[str] | None) -> LocalCatalog:
    """Read the skills of the sources named, else of the usual ones, as an agent with default settings would.

    The usual sources need not hold skills: those without any are left out, and so are warnings about
    a skill that is linked from one of them to another.

    Raises:
        UsageError: If a named source is a file, or none of them exists.
    """
    if given:
        return perform(_read(find_named_sources(given)))
    local = perform(_read(find_usual_sources()))
    empty = {noted["path"] for noted in local.source_problems if noted["code"] == "source-empty"}
    for found in local.found:
        found.row["problems"] = [noted for noted in found.row["problems"] if not _is_same_file(noted, found)]
    return replace(
        local,
        sources=[source for source in local.sources if source.path not in empty],
        source_problems=[noted for noted in local.source_problems if noted["code"] != "source-empty"],
        is_default=True,
    )


def read_one(place: str, source: str) -> Found:
    """Read the skill in the directory `place`, as if it were found in `source`."""
    [found] = perform(_read([Source(place, source)])).found
    found.row["source"] = parent(place)
    return found


def _is_same_file(noted: SkillProblem, found: Found) -> bool:
    return noted["code"] == "skill-shadowed" and os.path.realpath(noted["path"]) == os.path.realpath(found.row["path"])


IN_SHELL = {
    "It is tried again at the next run; skills found earlier stay.": "Check that it exists and may be read.",
    "It is tried again at the next run.": "Check that it may be read.",
    "remove it from the sources, or pass `OptionalSource(path)` if it may be missing.": "or name another.",
}
"""What a message says to an operator of an agent, and what it says to a user of a shell."""


def in_shell(noted: SkillProblem) -> SkillProblem:
    """Return a problem of a source in words for a shell: there is no next run, and no `sources` to change."""
    message = noted["message"]
    for to_an_operator, in_a_shell in IN_SHELL.items():
        message = message.replace(to_an_operator, in_a_shell)
    return {**noted, "message": message}


class _RecordedReadings(Readings):
    """Readings that also say which name each usable file claims."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: dict[str, str] = {}

    def read(self, path: str, content: bytes, beside: bytes | None = None) -> Reading:
        reading = super().read(path, content, beside)
        if reading.metadata is not None:
            self.claims[path] = reading.metadata["name"]
        return reading


async def _read(sources: Sequence[Source]) -> LocalCatalog:
    readings = _RecordedReadings()
    directories = DirectoryProvider(DEFAULT_DEPTH)
    discovery = await discover(sources, directories=directories, readings=readings, catalogs=Catalogs())
    catalog = discovery.catalog
    read = await side_by_side(*(read_contents(entry, DEFAULT_RESOURCE_DEPTH) for entry in catalog.entries))
    files = await side_by_side(*map(list_files, catalog.entries))
    places = {source.path: source for source in sources}
    usable = {
        entry.name: _find(entry, contents, own, places.get(entry.source, Source(entry.source, "")))
        for entry, contents, own in zip(catalog.entries, read, files, strict=True)
    }
    broken: dict[str, Found] = {}
    source_problems: list[SkillProblem] = []
    # Each problem goes to the skill that the file claims to be, even where another file won the name: that row is the
    # one its author looks at. A file without a name gets a row of its own.
    for noted in (*discovery.problems, *discovery.shadowed):
        path = noted["path"]
        if path in places or noted["code"] in {"plugin-invalid", "plugin-key-unknown"}:
            source_problems.append(in_shell(noted))
            continue
        found = usable.get(readings.claims[path]) if path in readings.claims else None
        if found is None:
            found = broken.setdefault(path, _describe_broken(path, _source_of(path, sources)))
        found.row["problems"].append(noted)
    everything = sorted([*usable.values(), *broken.values()], key=lambda found: (found.row["name"], found.row["path"]))
    return LocalCatalog(discovery, everything, list(catalog.sources), source_problems)


def _find(entry: SkillEntry, contents: SkillContents, files: list[ResourceMetadata], source: Source) -> Found:
    text, failure = contents.text, contents.failure
    inventory = contents.inventory
    row = SkillRow(
        name=entry.name,
        description=entry.description,
        path=entry.path,
        source=source.path,
        tokens=count_tokens(skill_block(entry, text, inventory)) if failure is None else 0,
        resources=len(files),
        problems=[],
    )
    if failure is not None:
        row["problems"].append(problem(entry.path, "skill-unreadable", reason=failure))
    return Found(row, source, entry, inventory, files, text, failure)


def _describe_broken(path: str, source: Source) -> Found:
    name = parent(path).rpartition("/")[2]
    return Found(
        SkillRow(name=name, description="", path=path, source=source.path, tokens=0, resources=0, problems=[]), source
    )


def _source_of(path: str, sources: Sequence[Source]) -> Source:
    """Return the source that an unusable file lies in: where sources lie in each other, the innermost."""
    holding = [source for source in sources if lies_under(path, source.path)]
    return max(holding, key=lambda source: len(source.path), default=Source(parent(parent(path)), ""))


# Showing skills.

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
            label = skill.source.label or skill.source.path
            cells = (skill.row["name"], label, tokens, _kinds(skill), _verdict(skill), skill.row["description"])
            output.row(*cells)
    elif local.found:
        output.lines(_by_source(output, local))
    if local.found:
        output.remark(cost_line(local))


def show_hits(output: Output, found: Sequence[Found]) -> None:
    """Show what a search found, best first."""
    if not output.is_terminal:
        for skill in found:
            output.row(skill.row["name"], skill.row["description"])
    elif found:
        output.lines(_blocks(output, found, indent=0))


_STARTED_BY = {
    ("on", True): "on: the model and the user can start it",
    ("on", False): "on, without a slash command: only the model can start it",
    ("user-only", True): "user-only: the model does not see it, the user starts it",
    ("user-only", False): "user-only, without a slash command: only a pin starts it",
}


def show_details(output: Output, skill: Found) -> None:
    """Show all that is known of one skill, one property per line."""
    known = skill.details()
    given = {key.name: _value(skill.frontmatter, key.name) for key in skill.keys}
    properties: Mapping[str, str | None] = {
        "Name": known["name"],
        "Description": known["description"],
        "Path": known["path"],
        "Source": known["source"],
        "License": known["license"],
        "Compatibility": known["compatibility"],
        "Allowed tools": ", ".join(known["allowed_tools"]),
        "Visibility": _STARTED_BY[known["visibility"], known["user_invocable"]],
        **{f"Metadata {key}": value for key, value in known["metadata"].items()},
        f"File {INVOCATION_FILE}": "lets only the user start the skill (Codex)" if skill.is_kept_by_file else None,
        **{f"Key {key.name}": f"{given[key.name]} ({_effect(key)})" for key in skill.keys},
        "MCP servers of its plugin, not started": describe_servers(known.get("mcp_servers", [])),
        "Tokens": str(known["tokens"]),
        "Files": _kinds(skill),
    }
    for name, value in properties.items():
        if value:
            output.entry((f"{prose(name)}:", "bold"), f" {prose(value)}")
    for check in read_checks(skill.frontmatter.get("checks"), known["path"]).items:
        held = f", before {', '.join(check.before)}" if check.before else ""
        output.line(f"  {visible(check.label)}{visible(held)}", (f"  ({check.shape.passes})", "dim"))
    directory = known["path"].rpartition("/")[0]
    listed = set(known["listed"])
    for file in known["files"]:
        note = "" if file["path"] in listed else "  (not listed by a load)"
        output.line(f"  {visible(file['path'].removeprefix(f'{directory}/'))}", (note, "dim"))


def _value(frontmatter: Mapping[str, Any], name: str) -> str:
    """Return what an author wrote for a key, on one line and bounded."""
    inner = frontmatter.get("metadata")
    below = inner if isinstance(inner, dict) else {}
    text = prose(as_text(frontmatter.get(name, below.get(name.removeprefix("metadata.")))))
    return text if len(text) <= MAX_SHOWN_VALUE else f"{text[:MAX_SHOWN_VALUE]}..."


def _effect(key: FrontmatterKey) -> str:
    return f"{key.does}; needs the extension {key.needs}" if key.needs else key.does


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
            style = STYLES["warning" if skill.is_usable else "error"]
            yield Text.assemble(start, "  ", (_verdict(skill), style))


def _facts(output: Output, skill: Found, most: int) -> Text:
    """Return what a skill costs and holds, in as much detail as the terminal has room for."""
    tokens = skill.row["tokens"]
    if output.width < WIDE:
        return Text(f"{tokens:>7,} tokens  {counted(skill.row['resources'], 'file')}")
    bar = output.bar(tokens, most)
    return Text.assemble(f"{tokens:>7,} tokens  ", (bar, "cyan"), f"  {_kinds(skill)}")


def _kinds(skill: Found) -> str:
    if skill.entry is None:
        return "-"
    return summarize(skill.files) or "no files"


def _verdict(skill: Found) -> str:
    codes = ", ".join(dict.fromkeys(found["code"] for found in skill.row["problems"]))
    if not skill.is_usable:
        return f"not usable: {codes}"
    return codes or "ok"
