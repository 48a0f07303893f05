"""Skills that need others: reading `metadata.requires`, and finding what is missing, circular, and loaded first.

A skill names the skills that it builds on in its frontmatter, separated by spaces:

    metadata:
      requires: git-basics release-notes

Names are compared as everywhere, in any case. Pure: who may see which skill, and what to do about a missing one, is
for the catalog, the tools and the store to decide.
"""

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from deepskills._catalog.entries import SkillEntry
from deepskills._skillmd.problems import listed, problem
from deepskills._skillmd.repair import Tree, as_text
from deepskills._types import SkillProblem

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
class Plan:
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
    distinct = {same_name(name): name for name in names if len(name) <= MAX_REQUIRED_NAME}
    return tuple(distinct.values())[:MAX_REQUIRED]


def same_name(name: str) -> str:
    """Return what two spellings of one name have in common."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def required_by(entry: SkillEntry, find: Callable[[str], SkillEntry | None]) -> list[tuple[str, SkillEntry | None]]:
    """Return what a skill requires, each as written and as found; in a namespace, a neighbour comes first."""
    if "requires" not in entry.skill["metadata"]:
        return []
    namespace = entry.name.rpartition(":")[0]
    names = requires_of({"metadata": dict(entry.skill["metadata"])})
    return [(name, (find(f"{namespace}:{name}") if namespace else None) or find(name)) for name in names]


def plan(name: str, resolve: Resolve) -> Plan:
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
            return Plan((), tuple(missing), is_cut=True)
        seen.add(current)
        stack.append((current, True))
        wanted = list(resolve(current))
        missing |= dict.fromkeys(written for written, found in wanted if found is None)
        stack += [(found, False) for _, found in reversed(wanted) if found is not None]
    return Plan(tuple(order), tuple(missing))


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
    wanted = {entry.name: required for entry in entries if (required := required_by(entry, find))}
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
