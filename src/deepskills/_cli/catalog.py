"""What the command line knows of the skills in local directories."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from typing_extensions import TypedDict

from deepskills._backend.calls import Plan
from deepskills._catalog.catalog import Catalogs
from deepskills._catalog.discovery import Discovery, discover, source_errors
from deepskills._catalog.entries import SkillEntry, Visibility
from deepskills._catalog.lookup import SearchCache, find_or_raise
from deepskills._catalog.readings import Reading, Readings
from deepskills._catalog.sources import Source, lies_under, parent
from deepskills._cli.files import perform
from deepskills._cli.sources import UsageError, named_sources, usual_sources
from deepskills._files.contents import Contents, read_contents
from deepskills._files.inventory import Inventory
from deepskills._format.frontmatter import as_text
from deepskills._format.problems import problem
from deepskills._loading.tokens import count_tokens
from deepskills._prompt.block import skill_block
from deepskills._prompt.section import Section, SectionInput
from deepskills._prompt.template import SKILLS_SYSTEM_PROMPT
from deepskills._types import SkillProblem

RESOURCE_DEPTH = 1
"""Skills are measured as an agent with default settings loads them."""

_USER_ONLY = "disable-model-invocation"
"""The field of the frontmatter that keeps a skill from the model."""


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
        return self.entry is not None and as_text(self.entry.frontmatter.get(_USER_ONLY)).strip().lower() == "true"

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
        return section.render(SectionInput(self.discovery.catalog, self.sources, errors, hidden=hidden))

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
