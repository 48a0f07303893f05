"""What the command line knows of the skills in local directories."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from typing_extensions import TypedDict

from deepskills._backend.plan import Plan
from deepskills._catalog.discovery import Catalog, Known, Reading, SkillCache, discover, source_errors
from deepskills._catalog.lookup import SearchCache, find_or_raise
from deepskills._catalog.sources import Source, lies_under, parent
from deepskills._cli.files import perform
from deepskills._cli.sources import UsageError, named_sources, usual_sources
from deepskills._format.problems import problem
from deepskills._format.reading import read_skill
from deepskills._loading.decisions import Preparation, Prepared, prepare
from deepskills._loading.tokens import count_tokens
from deepskills._prompt.section import Section, SectionInput
from deepskills._prompt.wording import SKILLS_SYSTEM_PROMPT
from deepskills._types import SkillMetadata, SkillProblem

LOADING = Preparation(depth=1, count_tokens=count_tokens, may_read=lambda _path: True)
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
    ready: Prepared | None = None

    @property
    def is_usable(self) -> bool:
        """Whether an agent could load it."""
        return self.ready is not None and self.ready.failure is None

    @cached_property
    def is_user_only(self) -> bool:
        """Whether its author keeps it from the model: only a user starts it."""
        if self.ready is None or _USER_ONLY not in self.ready.text:
            return False
        frontmatter = read_skill(self.ready.text, path=self.row["path"]).frontmatter
        return str(frontmatter.get(_USER_ONLY, "")).strip().lower() == "true"

    def details(self) -> SkillDetails:
        """Return all that is known of a usable skill."""
        if self.ready is None:
            raise UsageError(f"The skill {self.row['name']} cannot be used.")
        skill = self.ready.skill
        return SkillDetails(
            **self.row,
            license=skill["license"],
            compatibility=skill["compatibility"],
            metadata=skill["metadata"],
            allowed_tools=skill["allowed_tools"],
            files=[FileRow(path=file["path"], type=file["type"]) for file in self.ready.inventory.resources],
        )


@dataclass
class LocalCatalog:
    """The skills of some sources, usable or not, and what is wrong with the sources themselves."""

    catalog: Catalog
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
        shown = [found.ready.skill for found in self.usable if found.ready is not None and not found.is_user_only]
        if self.usable and not shown:
            return ""
        section = Section(SKILLS_SYSTEM_PROMPT, shows_loaded=True)
        return section.render(SectionInput(shown, self.sources, source_errors(self.source_problems), (), {}))

    def get(self, name: str) -> Found:
        """Return the usable skill of that name, in any case.

        Raises:
            SkillFormatError: If there is such a directory, but its file is broken.
            SkillNotFoundError: If there is none; the message names the closest.
        """
        return self._of(find_or_raise(self.catalog.skills, self.catalog.problems, name))

    def search(self, query: str, limit: int) -> list[Found]:
        """Return the usable skills that fit `query`, best first."""
        hits = SearchCache().search(self.catalog.skills, self.catalog.tags, query, limit)
        return [self._of(skill) for skill in hits]

    def _of(self, skill: SkillMetadata) -> Found:
        return next(found for found in self.found if found.row["path"] == skill["path"])


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


def _read(sources: Sequence[Source]) -> Plan[LocalCatalog]:
    cache = SkillCache()
    claims: dict[str, str] = {}

    def read(path: str, content: bytes) -> Reading:
        reading = cache.read(path, content)
        if reading[0] is not None:
            claims[path] = reading[0]["name"]
        return reading

    catalog = yield from discover(sources, max_depth=1, read=read, known=Known())
    prepared = yield from prepare(catalog.skills, LOADING)
    usable = {name: _found(ready, _source_of(ready.skill["path"], catalog)) for name, ready in prepared.items()}
    broken: dict[str, Found] = {}
    source_problems: list[SkillProblem] = []
    source_paths = {source.path for source in sources}
    for noted in catalog.problems:
        path = noted["path"]
        if path in source_paths:
            source_problems.append(noted)
            continue
        found = usable.get(claims[path]) if path in claims else None
        if found is None:
            found = broken.setdefault(path, _broken(path, _source_of(path, catalog)))
        found.row["problems"].append(noted)
    everything = sorted([*usable.values(), *broken.values()], key=lambda found: (found.row["name"], found.row["path"]))
    return LocalCatalog(catalog, everything, catalog.sources, source_problems)


def _found(ready: Prepared, source: Source) -> Found:
    skill = ready.skill
    row = SkillRow(
        name=skill["name"],
        description=skill["description"],
        path=skill["path"],
        source=source.path,
        tokens=ready.tokens,
        resources=len(ready.inventory.resources) + ready.inventory.more,
        problems=[],
    )
    if ready.failure is not None:
        row["problems"].append(problem(skill["path"], "skill-unreadable", reason=ready.failure))
    return Found(row, source, ready)


def _broken(path: str, source: Source) -> Found:
    name = parent(path).rpartition("/")[2]
    return Found(
        SkillRow(name=name, description="", path=path, source=source.path, tokens=0, resources=0, problems=[]), source
    )


def _source_of(path: str, catalog: Catalog) -> Source:
    """Return the source that gave `path`: where sources lie in each other, the innermost."""
    roots: Iterable[tuple[int, int, Source]] = (
        (len(root), rank, source)
        for rank, source in enumerate(catalog.sources)
        for root in (source.path, *catalog.origins.get(source.path, []))
        if lies_under(path, root)
    )
    return max(roots, key=lambda root: root[:2], default=(0, 0, Source(parent(parent(path)), "")))[2]
