"""What the command line knows of the skills in local directories."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from typing_extensions import TypedDict

from deepskills._backend.plan import Plan
from deepskills._catalog.discovery import Catalog, Known, Reading, SkillCache, discover
from deepskills._catalog.lookup import SearchCache, find_or_raise
from deepskills._catalog.sources import Source, lies_under, parent
from deepskills._cli.files import perform
from deepskills._errors import SkillsError
from deepskills._format.problems import problem
from deepskills._loading.decisions import Preparation, Prepared, prepare
from deepskills._loading.tokens import count_tokens
from deepskills._types import SkillMetadata, SkillProblem

DEFAULT_SOURCES = ("~/.agents/skills", ".agents/skills")
"""Where skills are looked for if no source is named; the project's win over the user's."""

LOADING = Preparation(depth=1, count_tokens=count_tokens, may_read=lambda _path: True)
"""Skills are measured as an agent with default settings loads them."""


class UsageError(SkillsError):
    """The command was given something that is wrong or is not there."""


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
    source_problems: list[SkillProblem]
    tags: Mapping[str, str] = field(default_factory=dict)

    def get(self, name: str) -> Found:
        """Return the usable skill of that name, in any case.

        Raises:
            SkillFormatError: If there is such a directory, but its file is broken.
            SkillNotFoundError: If there is none; the message names the closest.
        """
        return self._of(find_or_raise(self.catalog.skills, self.catalog.problems, name))

    def search(self, query: str, limit: int) -> list[Found]:
        """Return the usable skills that fit `query`, best first."""
        hits = SearchCache().search(self.catalog.skills, self.tags, query, limit)
        return [self._of(skill) for skill in hits]

    def _of(self, skill: SkillMetadata) -> Found:
        return next(found for found in self.found if found.row["path"] == skill["path"])


def absolute(path: str) -> str:
    """Return a path of the local machine in full, `~` and `..` worked out.

    Raises:
        UsageError: If it is empty, or names the home of a user who does not exist.
    """
    if not path.strip():
        raise UsageError("A path is empty. Name a directory, or `.` for the current one.")
    try:
        local = Path(path).expanduser()
    except RuntimeError:
        raise UsageError(f"There is no home directory for {path}. Write the path in full.") from None
    return Path(os.path.abspath(local)).as_posix()  # noqa: PTH100 - pathlib keeps `..`


def _is_there(check: Callable[[Path], bool], source: Source) -> bool:
    """Whether a check holds; a path that cannot be looked at counts as there, so that the reading reports it."""
    try:
        return check(Path(source.path))
    except OSError:
        return True


def choose_sources(given: Sequence[str] | None) -> list[Source]:
    """Return the sources to read, each labelled as it was given: those named, else the default ones that exist.

    Raises:
        UsageError: If a named source is a file, or none of them exists.
    """
    if not given:
        sources = [Source(absolute(path), path) for path in DEFAULT_SOURCES]
        return [source for source in sources if _is_there(Path.is_dir, source)]
    sources = [Source(absolute(path), path) for path in given]
    for source in sources:
        if _is_there(Path.exists, source) and not _is_there(Path.is_dir, source):
            raise UsageError(f"The source {source.label} is a file. Name the directory that holds skill directories.")
    if not any(_is_there(Path.exists, source) for source in sources):
        names = ", ".join(source.label for source in sources)
        raise UsageError(f"There is no such source: {names}. Name a directory that holds skill directories.")
    return sources


def read_catalog(sources: Sequence[Source]) -> LocalCatalog:
    """Read the skills of all sources as an agent with default settings would; the later source wins."""
    return perform(_read(sources))


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
    return LocalCatalog(catalog, everything, source_problems, catalog.tags)


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
