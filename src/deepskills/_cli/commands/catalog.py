"""`list`, `info` and `search`: the skills in local directories, and how each command shows them.

People in a terminal get a table that fits its width; a pipe gets one line per skill, with nothing cut.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from rich.cells import cell_len
from rich.text import Text
from typing_extensions import TypedDict

from deepskills._catalog.catalog import Catalogs
from deepskills._catalog.discovery import Discovery, discover, source_errors
from deepskills._catalog.entries import Reading, Readings, SkillEntry, Visibility
from deepskills._catalog.lookup import SearchCache, find_or_raise
from deepskills._catalog.sources import Source, lies_under, parent
from deepskills._cli.files import UsageError, named_sources, perform, usual_sources
from deepskills._cli.output import STYLES, Output, counted, prose, visible
from deepskills._files.inventory import Contents, Inventory, read_contents, summarize
from deepskills._io.plan import Plan
from deepskills._loading.budget import count_text_tokens, count_tokens
from deepskills._prompt.messages import skill_block
from deepskills._prompt.section import SKILLS_SYSTEM_PROMPT, Section, SectionInput
from deepskills._skillmd.keys import KEYS, FrontmatterKey, is_acted_on
from deepskills._skillmd.problems import problem
from deepskills._skillmd.read import read_skill
from deepskills._types import SkillProblem

RESOURCE_DEPTH = 1
"""Skills are measured as an agent with default settings loads them."""


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
    """How many further files a load lists."""

    problems: list[SkillProblem]
    """What is wrong with its file, and with files of the same name that it hides."""


class FileRow(TypedDict):
    """One of a skill's files in the JSON of `info`."""

    path: str
    type: str


class SkillDetails(SkillRow):
    """A skill in the JSON of `info`."""

    license: str | None
    compatibility: str | None
    metadata: dict[str, str]
    allowed_tools: list[str]
    files: list[FileRow]
    """The first 200 of its files."""


@dataclass
class Found:
    """A skill that was found: its row, and unless its file cannot be used, what a load would bring."""

    row: SkillRow
    source: Source
    entry: SkillEntry | None = None
    inventory: Inventory = field(default_factory=Inventory)
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

    @cached_property
    def keys(self) -> list[FrontmatterKey]:
        """The keys of its frontmatter that deepskills acts on beside the specification's."""
        given = read_skill(self.text, path=self.row["path"]).frontmatter
        return [KEYS[name] for name in given if is_acted_on(name) and not KEYS[name].is_specified]

    def details(self) -> SkillDetails:
        """Return all that is known of a usable skill."""
        if self.entry is None:
            raise UsageError(f"The skill {self.row['name']} cannot be used.")
        skill = self.entry.skill
        return SkillDetails(
            **self.row,
            license=skill["license"],
            compatibility=skill["compatibility"],
            metadata=skill["metadata"],
            allowed_tools=skill["allowed_tools"],
            files=[FileRow(path=file["path"], type=file["type"]) for file in self.inventory.resources],
        )


@dataclass
class LocalCatalog:
    """The skills of some sources, usable or not, and what is wrong with the sources themselves."""

    discovery: Discovery
    found: list[Found]
    """Sorted by name."""

    sources: list[Source]
    source_problems: list[SkillProblem]
    is_default: bool = False
    """Whether nobody named the sources."""

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
        section = Section(SKILLS_SYSTEM_PROMPT, shows_loaded=True)
        hidden: dict[str, Visibility] = {found.row["name"]: "user-only" for found in self.usable if found.is_user_only}
        errors = source_errors(self.source_problems)
        # As in an agent that has no tools but those for skills.
        tools: frozenset[str] = frozenset()
        return section.render(SectionInput(self.discovery.catalog, self.sources, errors, hidden=hidden, tools=tools))

    def get(self, name: str) -> Found:
        """Return the usable skill of that name, in any case.

        Raises:
            SkillFormatError: If there is such a directory, but its file is broken.
            SkillNotFoundError: If there is none; the message names the closest.
        """
        return self._of(find_or_raise(self.discovery.catalog, self.discovery.problems, name))

    def search(self, query: str, limit: int) -> list[Found]:
        """Return the usable skills that fit `query`, best first."""
        hits = SearchCache().search(self.discovery.catalog, query, limit)
        return [self._of(entry) for entry in hits]

    def _of(self, entry: SkillEntry) -> Found:
        return next(found for found in self.found if found.row["path"] == entry.path)


def read_catalog(given: Sequence[str] | None) -> LocalCatalog:
    """Read the skills of the sources named, else of the usual ones, as an agent with default settings would.

    Of the usual sources nobody said that they hold skills: those without any are left out, and so are warnings about
    a skill that is linked from one of them to another.

    Raises:
        UsageError: If a named source is a file, or none of them exists.
    """
    if given:
        return perform(_read(named_sources(given)))
    local = perform(_read(usual_sources()))
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


class _NotedReadings(Readings):
    """Readings that also say which name each usable file claims."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: dict[str, str] = {}

    def read(self, path: str, content: bytes) -> Reading:
        reading = super().read(path, content)
        if reading.metadata is not None:
            self.claims[path] = reading.metadata["name"]
        return reading


def _read(sources: Sequence[Source]) -> Plan[LocalCatalog]:
    readings = _NotedReadings()
    discovery = yield from discover(sources, max_depth=1, readings=readings, catalogs=Catalogs(readings))
    catalog = discovery.catalog
    contents = yield from read_contents(catalog.entries, RESOURCE_DEPTH)
    places = {source.path: source for source in sources}
    usable = {e.name: _found(e, contents[e.name], places.get(e.source, Source(e.source, ""))) for e in catalog.entries}
    broken: dict[str, Found] = {}
    source_problems: list[SkillProblem] = []
    # Each problem goes to the skill that the file claims to be, even where another file won the name: that row is the
    # one its author looks at. A file without a name gets a row of its own.
    for noted in discovery.problems:
        path = noted["path"]
        if path in places:
            source_problems.append(noted)
            continue
        found = usable.get(readings.claims[path]) if path in readings.claims else None
        if found is None:
            found = broken.setdefault(path, _broken(path, _source_of(path, sources)))
        found.row["problems"].append(noted)
    everything = sorted([*usable.values(), *broken.values()], key=lambda found: (found.row["name"], found.row["path"]))
    return LocalCatalog(discovery, everything, list(catalog.sources), source_problems)


def _found(entry: SkillEntry, contents: Contents, source: Source) -> Found:
    text, failure = contents.text()
    inventory = contents.inventory
    row = SkillRow(
        name=entry.name,
        description=entry.description,
        path=entry.path,
        source=source.path,
        tokens=count_tokens(skill_block(entry, text, inventory)) if failure is None else 0,
        resources=len(inventory.resources) + inventory.more,
        problems=[],
    )
    if failure is not None:
        row["problems"].append(problem(entry.path, "skill-unreadable", reason=failure))
    return Found(row, source, entry, inventory, text, failure)


def _broken(path: str, source: Source) -> Found:
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
        **{f"Key {key.name}": _effect(key) for key in skill.keys},
    }
    for name, value in properties.items():
        if value:
            output.line((f"{prose(name)}:", "bold"), f" {prose(value)}")
    directory = known["path"].rpartition("/")[0]
    for file in known["files"]:
        output.line(f"  {visible(file['path'].removeprefix(f'{directory}/'))}")


def _effect(key: FrontmatterKey) -> str:
    return f"{key.does} (needs the extension {key.needs})" if key.needs else key.does


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
