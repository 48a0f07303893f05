"""Finds a skill by name, says what comes close to a name that no skill has, and resolves what a skill requires.

Models and users misspell names. An unknown name is answered with the nearest ones, with the problem of a broken file
in a directory of that name, or with the source that could not be read: each calls for a different next step.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from deepskills._catalog.catalog import Catalog, SkillEntry
from deepskills._catalog.search import SearchDocument, SearchIndex
from deepskills._errors import SkillFormatError, SkillNotFoundError, SkillsError
from deepskills._io.cache import BoundedCache
from deepskills._skillmd.keys import TAG_KEYS
from deepskills._skillmd.names import name_key, stored_key
from deepskills._skillmd.problems import PROBLEMS, SOURCE_ERRORS, listed, problem, quoted
from deepskills._skillmd.repair import Tree, as_text
from deepskills._types import MAX_SHOWN_NAME_LENGTH, SKILL_FILE, SkillProblem

CLOSEST_NAMES = 3
"""How many similar names an unknown name is answered with."""

MAX_COMPARED_NAMES = 300
"""How many names an unknown name is compared with letter by letter: those that share the most pairs of letters."""

MAX_DESCRIPTION = 1_536
"""How much of a description and `when_to_use` together is shown and searched."""

MAX_TAGS = 2_000
"""How many characters of a skill's tags are searched."""


@dataclass(frozen=True)
class Unknown:
    """No such skill."""

    asked: str
    closest: list[str]
    available: list[str]
    incomplete: bool = False
    """Whether a source could not be read, so that there may be more."""


@dataclass(frozen=True)
class Broken:
    """There is a directory of that name, and its file cannot be used."""

    asked: str
    problem: SkillProblem


def find_broken(problems: Iterable[SkillProblem], asked: str) -> Broken | None:
    """Return what is wrong with the file in a directory of that name; `None` if nothing is known to be."""
    wanted = name_key(asked)
    for found in problems:
        directory, _, file = found["path"].rpartition("/")
        is_error = found["severity"] == "error" and file == SKILL_FILE
        if is_error and name_key(directory.rpartition("/")[2]) == wanted:
            return Broken(asked, found)
    return None


def explain_missing(names: Sequence[str], problems: Sequence[SkillProblem], asked: str) -> Broken | Unknown:
    """Return what to answer to a name that no skill has; a broken file in a directory of that name is the reason."""
    incomplete = any(found["code"] in SOURCE_ERRORS for found in problems)
    return find_broken(problems, asked) or Unknown(asked, closest_names(names, asked), list(names), incomplete)


def closest_names(names: Sequence[str], asked: str) -> list[str]:
    """Return the names nearest to one that no skill has; of many, those that share most letters are compared."""
    by_folded = {name_key(name): name for name in names}
    wanted = name_key(asked[:MAX_SHOWN_NAME_LENGTH])
    # A part of a name is a likelier guess than a misspelt whole.
    within = [name for name in by_folded if wanted and wanted in name]
    # Comparing letter by letter is slow, and names of very different length cannot be close.
    comparable = [name for name in by_folded if abs(len(name) - len(wanted)) <= len(wanted)]
    if len(comparable) > MAX_COMPARED_NAMES:
        # Pairs of letters are counted by substring search, in C.
        pairs = {wanted[start : start + 2] for start in range(max(1, len(wanted) - 1))}
        comparable.sort(key=lambda name: -sum(map(name.__contains__, pairs)))
        comparable = comparable[:MAX_COMPARED_NAMES]
    similar = difflib.get_close_matches(wanted, comparable, n=CLOSEST_NAMES, cutoff=0.5)
    closest = list(dict.fromkeys([*within[:CLOSEST_NAMES], *similar]))[:CLOSEST_NAMES]
    return [by_folded[name] for name in closest]


def find_or_raise(
    catalog: Catalog, problems: Iterable[SkillProblem], name: str, again: str = "try again"
) -> SkillEntry:
    """Return the skill of that name, in any case; `again` says when a source that failed is tried again.

    Raises:
        SkillFormatError: If there is such a directory, but its file is broken.
        SkillsError: If there is none, but a source could not be read: it may be there.
        SkillNotFoundError: If there is none; the message names the closest.
    """
    entry = catalog.find(name)
    if entry is not None:
        return entry
    known = list(problems)
    raise not_found_error(explain_missing([entry.name for entry in catalog.entries], known, name), known, again)


def not_found_error(missing: Broken | Unknown, problems: Sequence[SkillProblem], again: str) -> SkillsError:
    """Return the error for a name that no skill has."""
    if isinstance(missing, Broken):
        found = missing.problem
        return SkillFormatError(
            f"The skill {quoted(missing.asked)} cannot be used. {found['path']}: {found['message']}"
        )
    hint = f" Did you mean {listed(missing.closest)}?" if missing.closest else ""
    # Not "there is none": it may be in the source that could not be read, and the caller should try again.
    if missing.incomplete:
        return SkillsError(
            f"The skill {quoted(missing.asked)} was not found, and {_failures(problems)}; {again}.{hint}"
        )
    available = f" Available: {listed(missing.available)}." if missing.available else " There are no skills."
    return SkillNotFoundError(f"There is no skill named {quoted(missing.asked)}.{hint}{available}")


def check_known(found: Sequence[object], problems: Iterable[SkillProblem], again: str = "try again") -> None:
    """Check that nothing was found because there is nothing, and not because a source failed.

    Raises:
        SkillsError: If one did, so that it is unknown which skills exist.
    """
    failures = "" if found else _failures(problems)
    if failures:
        raise SkillsError(f"Cannot tell which skills exist: {failures}; {again}.")


def _failures(problems: Iterable[SkillProblem]) -> str:
    """Return which sources could not be read and why; nothing if all could."""
    failed = [found for found in problems if found["code"] in SOURCE_ERRORS]
    return "; ".join(f"the source {quoted(found['path'])} could not be read: {_reason(found)}" for found in failed[:3])


def _reason(found: SkillProblem) -> str:
    """Return the reason that a problem's message gives, without the words around it."""
    before, after = PROBLEMS[found["code"]][1].split("{reason}")
    return found["message"].removeprefix(before).removesuffix(after)


MAX_INDEX_BYTES = 256_000_000
"""How many bytes all remembered indexes take together; an index takes about 10 KB per skill."""

_IndexCache: TypeAlias = BoundedCache[tuple[tuple[int, ...], frozenset[str]], tuple[SearchIndex, Sequence[SkillEntry]]]


def make_index_cache(max_bytes: int = MAX_INDEX_BYTES) -> _IndexCache:
    """Return a cache of indexes. The latest is kept however large: to make it for each request would take seconds."""
    return BoundedCache(max_bytes, lambda kept: min(kept[0].weight, max_bytes))


INDEXES = make_index_cache()
"""The indexes of this process, by the identities of the skills, which it holds so that none is used again."""


def find_index(entries: Sequence[SkillEntry], name_only: frozenset[str] = frozenset()) -> SearchIndex:
    """Return the index of skills, made when it is first needed; that takes about 3 s of CPU for 10,000 skills.

    It serves every search for the same skills: what a user may not see is left out of results, not of the index. Only
    the names of those in `name_only` are searched: matches would otherwise reveal their descriptions.
    """

    def make() -> tuple[SearchIndex, Sequence[SkillEntry]]:
        documents = [SearchDocument(e.name, "") if e.name in name_only else document_of(e) for e in entries]
        return SearchIndex(documents), entries

    return INDEXES.get_or_make((tuple(map(id, entries)), name_only), make)[0]


def document_of(entry: SkillEntry) -> SearchDocument:
    """Return what is searched of a skill: name, description with `when_to_use`, tags, beginning of instructions."""
    own = " ".join(entry.skill["metadata"].get(key, "") for key in TAG_KEYS)
    further = " ".join(as_text(entry.frontmatter.get(key)) for key in TAG_KEYS)
    # Frontmatter may hold 64 KB of them, in each of thousands of files.
    return SearchDocument(entry.name, full_description(entry), f"{own} {further}".strip()[:MAX_TAGS], entry.beginning)


def full_description(entry: SkillEntry) -> str:
    """Return what a skill is for and when to use it, as the catalog and the search use it."""
    when = as_text(entry.frontmatter.get("when_to_use")).strip()
    return f"{entry.description} {when}"[:MAX_DESCRIPTION].rstrip() if when else entry.description


# --------------------------------------------------------------------------------------------------------------------
# Skills that need others: reading `metadata.requires`, and finding what is missing, circular, and loaded first.
#
# A skill names the skills that it builds on in its frontmatter, separated by spaces:
#
#     metadata:
#       requires: git-basics release-notes
#
# Names are compared as everywhere, in any case. Pure: who may see which skill, and what to do about a missing one, is
# for the catalog, the tools and the store to decide.
# --------------------------------------------------------------------------------------------------------------------


MAX_REQUIRED = 50
"""How many skills one skill may require; further names are ignored."""

MAX_REQUIRED_NAME = 128
"""Longest name that is looked at; a longer one is no skill's."""


MAX_BROUGHT = 50
"""How many skills one load may bring along."""

MAX_CIRCLES = 20
"""How many circles are reported; two skills that require each other are one."""

Resolve: TypeAlias = Callable[[str], Iterable[tuple[str, str | None]]]
"""Gives for a skill's name what it requires: each as its author wrote it, and the name of that skill if it exists."""


@dataclass(frozen=True)
class LoadOrder:
    """What loading a skill with all that it requires takes."""

    order: tuple[str, ...]
    """The skills to load, what is required first, the skill itself last."""

    missing: tuple[str, ...] = ()
    """Required names that no visible skill has."""

    is_cut: bool = False
    """Whether there are more skills than are looked at."""


def requires_of(frontmatter: Mapping[str, Tree]) -> tuple[str, ...]:
    """Return the names that a skill's frontmatter requires, in the order written, each once."""
    properties = frontmatter.get("metadata")
    given = properties.get("requires") if isinstance(properties, Mapping) else None
    items: Iterable[Tree] = given if isinstance(given, list) else [given]
    names = (name for item in items for name in as_text(item).replace(",", " ").split())
    distinct = {stored_key(name): name for name in names if len(name) <= MAX_REQUIRED_NAME}
    return tuple(distinct.values())[:MAX_REQUIRED]


def find_required(entry: SkillEntry, find: Callable[[str], SkillEntry | None]) -> list[tuple[str, SkillEntry | None]]:
    """Return what a skill requires, each as written and as found; in a namespace, a neighbour comes first."""
    if "requires" not in entry.skill["metadata"]:
        return []
    namespace = entry.name.rpartition(":")[0]
    names = requires_of({"metadata": dict(entry.skill["metadata"])})
    return [(name, (find(f"{namespace}:{name}") if namespace else None) or find(name)) for name in names]


def order_loads(name: str, resolve: Resolve) -> LoadOrder:
    """Return how to load a skill with what it requires, directly and by way of others.

    A circle ends nothing: each skill on it is loaded once. At most twice `MAX_BROUGHT` skills are looked at, for some
    may be loaded already.
    """
    order: dict[str, None] = {}
    missing: dict[str, None] = {}
    # A stack of our own: a chain of thousands of skills is no reason for a RecursionError.
    seen: set[str] = set()
    stack: list[tuple[str, bool]] = [(name, False)]
    while stack:
        current, is_done = stack.pop()
        if is_done:
            order[current] = None
            continue
        if current in seen:
            continue
        if len(seen) > 2 * MAX_BROUGHT:
            return LoadOrder((), tuple(missing), is_cut=True)
        seen.add(current)
        stack.append((current, True))
        wanted = list(resolve(current))
        missing |= dict.fromkeys(written for written, found in wanted if found is None)
        stack += [(found, False) for _, found in reversed(wanted) if found is not None]
    return LoadOrder(tuple(order), tuple(missing))


def circles_of(names: Iterable[str], resolve: Resolve) -> list[tuple[str, ...]]:
    """Return circles among skills, as many as are reported, each as names with the first one again at the end."""
    done: set[str] = set()
    found: list[tuple[str, ...]] = []
    for start in names:
        path: dict[str, None] = {}
        stack: list[tuple[str, bool]] = [(start, False)]
        while stack:
            name, is_done = stack.pop()
            if is_done:
                path.pop(name)
                done.add(name)
            elif name in path:
                way = list(path)
                found.append((*way[way.index(name) :], name))
                if len(found) == MAX_CIRCLES:
                    return found
            elif name not in done:
                path[name] = None
                stack.append((name, True))
                stack += [(other, False) for _, other in reversed(list(resolve(name))) if other is not None]
    return found


def requirement_problems(entries: Sequence[SkillEntry], find: Callable[[str], SkillEntry | None]) -> list[SkillProblem]:
    """Return what is wrong with the requirements of skills: names that no skill has, and circles."""
    wanted = {entry.name: required for entry in entries if (required := find_required(entry, find))}
    if not wanted:
        return []
    paths = {entry.name: entry.path for entry in entries}
    problems = [
        problem(paths[name], "requires-missing", names=listed(missing))
        for name, required in wanted.items()
        if (missing := [written for written, found in required if found is None])
    ]
    resolved = {
        name: [(written, found.name if found is not None else None) for written, found in required]
        for name, required in wanted.items()
    }
    return problems + [
        problem(paths.get(circle[0], circle[0]), "requires-circle", names=listed(circle))
        for circle in circles_of(wanted, lambda name: resolved.get(name, ()))
    ]
