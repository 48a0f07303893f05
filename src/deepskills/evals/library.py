"""The library that a skill is measured in, and how its requests rank there without a model."""

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from deepagents.backends import FilesystemBackend

from deepskills import SkillMetadata, SkillsManager
from deepskills._catalog.words import split_words
from deepskills._skillmd.text import counted
from deepskills.evals.files import EvalError, SkillEvals, read_evals

SHOWN = 5
"""How many skills are suggested for a request, as in `SkillSuggestions` by default."""

MIN_SIMILARITY = 0.5
"""From this share of rare words in common, two descriptions count as overlapping."""

MANY = 20
"""A word that more descriptions have, or more than one in a hundred, says nothing about any two of them."""

MAX_AGE = 3600.0
"""A library is read once per evaluation."""

SHOWN_CHARACTERS = 60
"""How many characters of a request are shown; the JSON and the page of a skill have all."""

StrPath = str | os.PathLike[str]


class EvalLibrary:
    """The skills of some directories, ranked like search; the measured skill wins over others with its name."""

    def __init__(self, sources: Iterable[StrPath], skill: Path | None = None) -> None:
        paths = [Path(source).expanduser().absolute() for source in sources]
        missing = [str(path) for path in paths if not path.is_dir()]
        if missing:
            raise EvalError(f"There is no directory {' and '.join(missing)}. Name directories that hold skills.")
        if skill is not None:
            # Last, so that it wins over a skill with the same name in the library.
            paths = [*(paths or [skill.parent]), skill]
        self._manager = SkillsManager(
            backend=FilesystemBackend(root_dir="/", virtual_mode=True),
            sources=[path.as_posix() for path in dict.fromkeys(paths)],
            max_age=MAX_AGE,
        )
        self.skills: list[SkillMetadata] = self._manager.list_metadata()

    @property
    def descriptions(self) -> list[str]:
        """The description of each skill, as the model reads it."""
        return [skill["description"] for skill in self.skills]

    def without(self, name: str) -> list[SkillMetadata]:
        """Return the library without one skill."""
        return [skill for skill in self.skills if skill["name"] != name]

    def rank(self, query: str, n: int = SHOWN) -> list[str]:
        """Return the names of the skills that match a request, best first."""
        return [found["name"] for found in self._manager.search_skills(query, n)]


@dataclass(frozen=True)
class Taken:
    """A request for which other skills rank before the intended one."""

    query: str
    meant: str
    before: tuple[str, ...]
    """The skills that rank before it, best first."""

    is_found: bool
    """Whether the intended skill is among the suggestions at all."""


@dataclass(frozen=True)
class Overlap:
    """Two skills that compete for the same requests."""

    first: str
    second: str
    taken_from_first: int
    """For how many requests of the first skill the second ranks before it."""

    taken_from_second: int
    similarity: float
    """The share of their rare words that the descriptions have in common, from 0 to 1; by itself it comes last."""

    @property
    def is_mutual(self) -> bool:
        """Whether each takes requests of the other."""
        return min(self.taken_from_first, self.taken_from_second) > 0

    @property
    def taken(self) -> int:
        """How many requests go to the other one."""
        return self.taken_from_first + self.taken_from_second

    def __str__(self) -> str:
        mutual = ", each takes the other's" if self.is_mutual else ""
        taken = f"{counted(self.taken, 'request')} taken{mutual}"
        return f"{self.first} and {self.second}: {taken}, {self.similarity:.0%} of rare words shared"


@dataclass(frozen=True)
class LibraryReport:
    """Which skills of a library take each other's requests."""

    skills: tuple[str, ...]
    queries: int
    """How many requests were ranked: those that should load a skill."""

    taken: tuple[Taken, ...]
    wrong: tuple[tuple[str, str], ...]
    """Requests that must not load a skill and would suggest it first, each with that skill."""

    overlaps: tuple[Overlap, ...]
    """The worst first: pairs that take each other's requests, then by how many, then by similarity."""

    unmeasured: tuple[str, ...]
    """Skills without queries."""

    evals: tuple[SkillEvals, ...] = ()
    """The skills that have queries."""

    @property
    def pass_rate(self) -> float | None:
        """The share of requests for which the intended skill ranks first."""
        return (self.queries - len(self.taken)) / self.queries if self.queries else None

    def __str__(self) -> str:
        size, requests = counted(len(self.skills), "skill"), counted(self.queries, "request")
        return f"{size}, {requests} ranked without a model"

    def lists(self) -> Mapping[str, Sequence[str]]:
        """Return what was found in words, by heading, the worst first."""
        requests = [
            f"{shorten(item.query)}: meant {item.meant}, "
            + (f"first {', '.join(item.before)}" if item.before else "nothing is suggested")
            for item in self.taken
        ]
        return {
            "Pairs that compete for requests": list(map(str, self.overlaps)),
            "Requests that go to another skill": requests,
            "Requests that must not load a skill": [
                f"{shorten(query)}: wrong, suggests {skill}" for query, skill in self.wrong
            ],
            "Skills without requests": self.unmeasured,
        }

    def as_dict(self) -> dict[str, object]:
        """Return the report as plain data."""
        return {
            "skills": list(self.skills),
            "queries": self.queries,
            "pass_rate": self.pass_rate,
            "overlaps": [
                {
                    "skills": [pair.first, pair.second],
                    "taken": [pair.taken_from_first, pair.taken_from_second],
                    "mutual": pair.is_mutual,
                    "similarity": round(pair.similarity, 3),
                }
                for pair in self.overlaps
            ],
            "taken": [
                {"query": item.query, "meant": item.meant, "before": list(item.before), "found": item.is_found}
                for item in self.taken
            ],
            "wrong": [{"query": query, "skill": skill} for query, skill in self.wrong],
            "unmeasured": list(self.unmeasured),
            "problems": [problem for evals in self.evals for problem in evals.problems],
        }


def find_overlaps(*sources: StrPath) -> LibraryReport:
    """Find skills of a library that take each other's requests, without a model.

    For every query in the skills' `evals/triggers.json` that should load its skill, the skills that rank before it take
    the request. Pairs whose descriptions share most of their rare words come last.

    Raises:
        EvalError: If a directory does not exist.
    """
    if not sources:
        raise EvalError("No directory was named. Name directories that hold skills.")
    library = EvalLibrary(sources)
    measured = [read_evals(Path(skill["path"]).parent) for skill in library.skills]
    taken: list[Taken] = []
    wrong: list[tuple[str, str]] = []
    for evals in measured:
        for item in evals.triggers:
            ranked = library.rank(item.query)
            is_found = evals.name in ranked
            before = ranked[: ranked.index(evals.name)] if is_found else ranked
            if not item.should_trigger:
                wrong += [(item.query, evals.name)] if is_found and not before else []
            # If nothing is suggested at all, no other skill takes the request, but it still counts as failed.
            elif before or not is_found:
                taken.append(Taken(item.query, evals.name, tuple(before), is_found))
    with_queries = tuple(evals for evals in measured if evals.triggers or evals.is_broken)
    return LibraryReport(
        skills=tuple(skill["name"] for skill in library.skills),
        queries=sum(item.should_trigger for evals in measured for item in evals.triggers),
        taken=tuple(taken),
        wrong=tuple(wrong),
        overlaps=tuple(_overlaps(library.skills, taken)),
        unmeasured=tuple(evals.name for evals in measured if not evals.triggers),
        evals=with_queries,
    )


def _overlaps(skills: Sequence[SkillMetadata], taken: Sequence[Taken]) -> list[Overlap]:
    counts = Counter((item.meant, other) for item in taken for other in item.before)
    likeness = _Likeness({skill["name"]: skill["description"] for skill in skills})
    pairs = {_sort(a, b) for a, b in counts} | likeness.find_pairs()
    found = [Overlap(a, b, counts[a, b], counts[b, a], likeness.of(a, b)) for a, b in pairs]
    return sorted(found, key=lambda pair: (-pair.is_mutual, -pair.taken, -pair.similarity, pair.first, pair.second))


class _Likeness:
    """How alike descriptions are by their rare words: what many of a library share is its boilerplate."""

    def __init__(self, descriptions: Mapping[str, str]) -> None:
        words = {name: _words(text) for name, text in descriptions.items()}
        self._by_word: dict[str, list[str]] = {}
        for name, known in words.items():
            for word in known:
                self._by_word.setdefault(word, []).append(name)
        many = max(MANY, len(words) // 100)
        self._by_word = {word: names for word, names in self._by_word.items() if len(names) <= many}
        self._words = {name: known & self._by_word.keys() for name, known in words.items()}

    def of(self, first: str, second: str) -> float:
        """Return the share of their rare words that two descriptions have in common, rarer words counting more."""
        shared, all_of_both = self._words[first] & self._words[second], self._words[first] | self._words[second]
        return self._weigh(shared) / self._weigh(all_of_both) if shared else 0.0

    def find_pairs(self) -> set[tuple[str, str]]:
        """Return the pairs that share at least `MIN_SIMILARITY` of their rare words."""
        pairs = {pair for names in self._by_word.values() for pair in combinations(sorted(names), 2)}
        return {pair for pair in pairs if self.of(*pair) >= MIN_SIMILARITY}

    def _weigh(self, words: Iterable[str]) -> float:
        return sum(math.log(1 + len(self._words) / len(self._by_word[word])) for word in words)


def shorten(text: str) -> str:
    """Return the start of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[: SHOWN_CHARACTERS - 3]}..."


def _sort(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a <= b else (b, a)


def _words(text: str) -> frozenset[str]:
    """Return the words of a description that may say something; "use", "the", "for" and the like say nothing."""
    words = split_words(text)
    return frozenset(word.removesuffix("s") for word in words if len(word) > 3 or not word.isascii())  # noqa: PLR2004
