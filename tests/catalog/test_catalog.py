"""A catalog's skills: found by name, brought along as requirements, and read once per content."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from deepskills import read_skill
from deepskills._catalog.catalog import MAX_KEPT_CHARACTERS, Catalog, Readings, digest_of
from deepskills._catalog.lookup import (
    MAX_BROUGHT,
    MAX_CIRCLES,
    MAX_REQUIRED,
    LoadOrder,
    Unknown,
    circles_of,
    explain_missing,
    order_loads,
    requires_of,
)
from support import skill_md
from support.loads import entry_of as skill

FOUND = {
    "alpha": "alpha",
    "ALPHA": "alpha",
    "  alpha\n": "alpha",
    "**alpha**": "alpha",
    "`alpha`": "alpha",
    "beta-two": "beta-two",
    "Beta-Two": "Beta-Two",
    "BETA-TWO": "Beta-Two",
    "周报": "周报",
    "STRASSE": "straße",
    "alph": None,
    "alpha/SKILL.md": None,
    "/skills/alpha/SKILL.md": None,
    "": None,
}


def test_a_name_is_found_exactly_or_in_another_case() -> None:
    """The exact name wins, then the same name in another case or as it is shown; never a path or a part."""
    catalog = Catalog(skill(name) for name in ("alpha", "Beta-Two", "beta-two", "周报", "straße"))

    found = {asked: entry and entry.name for asked in FOUND for entry in [catalog.find(asked)]}

    assert found == FOUND


def test_an_unknown_name_is_answered_with_close_ones() -> None:
    """Names that are close come first; all others are still named as available."""
    names = ["web-research", "release-notes", "incident-review"]
    closest: dict[str, list[str]] = {
        "web-reserch": ["web-research"],
        "WEB-RESEARCH-TOOL": ["web-research"],
        "relese-note": ["release-notes"],
        "zzzzzz": [],
        "": [],
        "x" * 1_000_000: [],
    }
    for asked, expected in closest.items():
        assert explain_missing(names, [], asked) == Unknown(asked, expected, names)


# Skills that need others: names from the frontmatter, what is missing, circles, and the order of loading.

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


# What is remembered of files: one parse per content, and the frontmatter within a bound.

PATH = "/skills/a/SKILL.md"


def test_a_file_is_parsed_once_per_content() -> None:
    """The same bytes at the same path give the same object; other bytes another."""
    readings = Readings()
    content = skill_md("a").encode()
    first = readings.read(PATH, content)
    assert readings.read(PATH, bytes(content)) is first
    assert readings.recall(PATH, digest_of(content)) is first
    assert readings.read(PATH, skill_md("a", "Other.").encode()) is not first
    assert readings.recall(PATH, "unknown") is None


def test_all_frontmatter_is_kept_as_read_and_held_once() -> None:
    """Every key is there, whoever acts on it; a text that the metadata has as well takes no room again."""
    text = "---\nname: a\ndescription: Does.\nlicense: MIT\nmodel: small\nother: [1, 2]\nempty:\n---\n"
    reading = Readings().read(PATH, text.encode())
    assert dict(reading.frontmatter) == read_skill(text, path=PATH).frontmatter
    assert reading.metadata is not None
    assert reading.frontmatter["description"] is reading.metadata["description"]


def test_a_key_that_is_too_large_is_left_out_with_a_problem() -> None:
    """Ten thousand hostile files cannot fill the catalog: the largest keys go first, and each is named."""
    huge = "x" * (MAX_KEPT_CHARACTERS + 1)
    text = f"---\nname: a\ndescription: Does.\nargument-hint: {huge}\nwhen_to_use: Always.\n---\n"
    reading = Readings().read(PATH, text.encode())
    assert dict(reading.frontmatter) == {"name": "a", "description": "Does.", "when_to_use": "Always."}
    assert [(p["code"], "argument-hint" in p["message"]) for p in reading.problems] == [
        ("frontmatter-key-too-large", True)
    ]


def test_thousands_of_keys_are_measured_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with 4,000 keys takes as many steps, not their square, and leaves one problem."""
    measured: list[object] = []
    dumps = json.dumps

    def count(value: object, **options: Any) -> str:
        measured.append(value)
        return dumps(value, **options)

    monkeypatch.setattr(json, "dumps", count)
    keys = "".join(f"k{number}: v\n" for number in range(4_000))
    reading = Readings().read(PATH, f"---\nname: a\ndescription: Does.\n{keys}---\n".encode())
    assert 500 < len(reading.frontmatter) < 1_000
    assert len(measured) <= 4_002
    [found] = reading.problems
    assert found["code"] == "frontmatter-key-too-large"
    assert " more" in found["message"]
