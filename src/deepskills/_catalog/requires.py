"""Skills that need others: reading `metadata.requires`, and finding what is missing, circular, and loaded first.

A skill names the skills that it builds on in its frontmatter, separated by spaces:

    metadata:
      requires: git-basics release-notes

Names are compared as everywhere, in any case. Pure: who may see which skill, and what to do about a missing one, is
for the catalog, the tools and the store to decide.
"""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from deepskills._skillmd.repair import Tree, as_text

MAX_REQUIRED = 50
"""How many skills one skill may require; further names are ignored."""

MAX_REQUIRED_NAME = 128
"""Longest name that is looked at; a longer one is no skill's."""


@dataclass(frozen=True)
class Plan:
    """What loading a skill with all that it requires takes."""

    order: tuple[str, ...]
    """The skills to load, what is required first, the skill itself last."""

    missing: tuple[str, ...] = ()
    """Required names that no visible skill has."""

    circle: tuple[str, ...] = ()
    """Names that require each other in a circle, the first one again at the end; empty without one."""


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


def plan(name: str, requirements: Mapping[str, Sequence[str]]) -> Plan:
    """Return how to load a skill with what it requires, directly and by way of others.

    Args:
        name: The skill.
        requirements: For every visible skill what it requires.
    """
    known = {same_name(each): (each, tuple(wanted)) for each, wanted in requirements.items()}
    order: dict[str, str] = {}
    missing: dict[str, str] = {}
    circle: tuple[str, ...] = ()
    # A stack of our own: a chain of thousands of skills is no reason for a RecursionError.
    path: list[str] = []
    stack: list[tuple[str, bool]] = [(same_name(name), False)]
    spelled = {same_name(name): name}
    while stack:
        key, is_done = stack.pop()
        if is_done:
            path.pop()
            order[key] = known[key][0]
            continue
        if key in order or key in missing:
            continue
        if key in path:
            circle = circle or tuple(known[each][0] for each in [*path[path.index(key) :], key])
            continue
        if key not in known:
            missing[key] = spelled[key]
            continue
        path.append(key)
        stack.append((key, True))
        for wanted in reversed(known[key][1]):
            spelled.setdefault(same_name(wanted), wanted)
            stack.append((same_name(wanted), False))
    return Plan(tuple(order.values()), tuple(missing.values()), circle)


def missing_of(requirements: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Return for each skill the names that it requires itself and that no visible skill has."""
    known = {same_name(name) for name in requirements}
    found = {
        name: tuple(wanted for wanted in required if same_name(wanted) not in known)
        for name, required in requirements.items()
    }
    return {name: missing for name, missing in found.items() if missing}


def circles_of(requirements: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the circles among skills, each once, each as names with the first one again at the end."""
    spelled = {same_name(name): name for name in requirements}
    wanted = {key: [same_name(other) for other in requirements[name]] for key, name in spelled.items()}
    done: set[str] = set()
    found: list[tuple[str, ...]] = []
    for start in wanted:
        path: list[str] = []
        stack: list[tuple[str, bool]] = [(start, False)]
        while stack:
            key, is_done = stack.pop()
            if is_done:
                path.pop()
                done.add(key)
            elif key in path:
                found.append(tuple(spelled[each] for each in [*path[path.index(key) :], key]))
            elif key in wanted and key not in done:
                path.append(key)
                stack.append((key, True))
                stack += [(other, False) for other in reversed(wanted[key])]
    return found
