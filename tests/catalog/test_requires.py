"""Skills that need others: names from the frontmatter, what is missing, circles, and the order of loading."""

from collections.abc import Callable, Mapping, Sequence

import pytest

from deepskills import read_skill
from deepskills._catalog.lookup import (
    MAX_BROUGHT,
    MAX_CIRCLES,
    MAX_REQUIRED,
    LoadOrder,
    circles_of,
    order_loads,
    requires_of,
)

WRITTEN = {
    "requires: one two": ("one", "two"),
    "requires: one, two one": ("one", "two"),
    "requires: [one, Two, two]": ("one", "two"),
    "requires:": (),
    "requires: {a: b}": ("a:", "b"),
    "other: one": (),
    f"requires: {'x' * 200}": (),
    "requires: " + " ".join(f"s{n}" for n in range(200)): tuple(f"s{n}" for n in range(MAX_REQUIRED)),
}


@pytest.mark.parametrize("line", WRITTEN, ids=lambda line: line[:24])
def test_names_from_the_frontmatter(line: str) -> None:
    """Names are separated by spaces or commas, or are a list; each counts once, in any case."""
    text = f"---\nname: a\ndescription: b\nmetadata:\n  {line}\n---\n"
    found = requires_of(read_skill(text, path="a/SKILL.md").frontmatter)
    assert tuple(name.casefold() for name in found) == WRITTEN[line]


def resolving(needs: Mapping[str, Sequence[str]]) -> Callable[[str], list[tuple[str, str | None]]]:
    return lambda name: [(wanted, wanted if wanted in needs else None) for wanted in needs[name]]


def test_the_order_of_loading() -> None:
    """What is required comes first, in the order written, each once."""
    needs = {"top": ["left", "right"], "left": ["base"], "right": ["base"], "base": []}
    assert order_loads("top", resolving(needs)) == LoadOrder(("base", "left", "right", "top"))
    assert order_loads("base", resolving(needs)) == LoadOrder(("base",))


def test_what_is_missing() -> None:
    """A required name that no visible skill has is named, also further down."""
    needs = {"top": ["left", "gone"], "left": ["lost"]}
    assert order_loads("top", resolving(needs)).missing == ("gone", "lost")


def test_circles() -> None:
    """A circle is reported by the names on it, once, and ends nothing; their number is bounded."""
    needs = {"a": ["b"], "b": ["c"], "c": ["a"], "d": ["d"], "e": ["a"]}
    assert circles_of(needs, resolving(needs)) == [("a", "b", "c", "a"), ("d", "d")]
    assert set(order_loads("e", resolving(needs)).order) == {"a", "b", "c", "e"}
    assert order_loads("d", resolving(needs)) == LoadOrder(("d",))
    crowd = {f"s{n}": [f"s{m}" for m in range(60)] for n in range(60)}
    assert len(circles_of(crowd, resolving(crowd))) == MAX_CIRCLES


def test_a_long_chain() -> None:
    """Thousands of skills in a row are no problem for the stack; a load does not follow them all."""
    needs = {f"s{n}": [f"s{n + 1}"] for n in range(5_000)} | {"s5000": []}
    assert order_loads("s0", resolving(needs)).is_cut
    assert order_loads(f"s{5_000 - MAX_BROUGHT}", resolving(needs)).order[0] == "s5000"
    assert circles_of(needs, resolving(needs)) == []
