"""Skills that need others: names from the frontmatter, what is missing, circles, and the order of loading."""

import pytest

from deepskills import read_skill
from deepskills._catalog.requires import MAX_REQUIRED, Plan, circles_of, missing_of, plan, requires_of

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


def test_the_order_of_loading() -> None:
    """What is required comes first, in the order written, each once; names are compared in any case."""
    needs = {"top": ["Left", "right"], "left": ["base"], "right": ["base"], "base": []}
    assert plan("TOP", needs) == Plan(("base", "left", "right", "top"))
    assert plan("base", needs) == Plan(("base",))


def test_what_is_missing() -> None:
    """A required name that no visible skill has is named, also further down."""
    needs = {"top": ["left", "gone"], "left": ["lost"]}
    assert plan("top", needs).missing == ("lost", "gone")
    assert missing_of(needs) == {"top": ("gone",), "left": ("lost",)}
    assert plan("none", needs) == Plan((), ("none",))


def test_circles() -> None:
    """A circle is told by the names on it, once, and ends nothing."""
    needs = {"a": ["b"], "b": ["c"], "c": ["a"], "d": ["d"], "e": ["a"]}
    assert circles_of(needs) == [("a", "b", "c", "a"), ("d", "d")]
    assert plan("a", needs).circle == ("a", "b", "c", "a")
    assert set(plan("e", needs).order) == {"a", "b", "c", "e"}
    assert plan("d", needs) == Plan(("d",), (), ("d", "d"))


def test_a_long_chain() -> None:
    """Thousands of skills in a row are no problem for the stack."""
    needs = {f"s{n}": [f"s{n + 1}"] for n in range(5_000)} | {"s5000": []}
    assert plan("s0", needs).order[0] == "s5000"
    assert circles_of(needs) == []
