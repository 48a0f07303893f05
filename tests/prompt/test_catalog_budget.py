"""`catalog_budget`: the list of skills in so many characters, and never a name less."""

import functools
import itertools
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepskills import ResourceMetadata, SkillMetadata, SkillsMiddleware
from deepskills._catalog.catalog import SkillEntry
from deepskills._prompt.section import CatalogList
from deepskills.testing import call_tools
from support import Conversation, Mode, both_modes, disk, load, loaded_in, scaled, skill_md, unload, write_files

repeatable = settings(deadline=None, derandomize=True, max_examples=200)

WORDS = ("reads", "writes", "checks", "reports", "on", "in", "tables", "of", "every", "customer", "carefully", "twice")
BUDGETS = (
    100_000,
    60_000,
    40_000,
    20_000,
    15_000,
    12_000,
    10_000,
    9_000,
    8_000,
    7_000,
    6_500,
    6_000,
    5_000,
    1_000,
    500,
)
ALL = scaled(150, 600)
"""How many skills an agent lists whole."""

LIST = "{skills_locations}{skills_load_warnings}<list>{skills_list}</list>"
"""A template that sets the list apart."""


def skill(name: str, description: str, **fields: Any) -> SkillMetadata:
    """Return a catalog entry."""
    return SkillMetadata(
        path=f"/skills/{name}/SKILL.md",
        name=name,
        description=description,
        license=fields.get("license"),
        compatibility=None,
        metadata={},
        allowed_tools=fields.get("tools", []),
    )


@functools.cache
def description(number: int) -> str:
    """Return a description of its own, of 8 to 1,000 characters."""
    dice = random.Random(number)
    text = f"No {number}: " + " ".join(dice.choice(WORDS) for _ in range(200))
    return text[: dice.choice([8, 40, 150, 200, 300, 500, 1_000])].strip()


def library(size: int = 300) -> list[SkillMetadata]:
    """Return skills with descriptions of all lengths, some with a licence or tools."""
    return [
        skill(
            f"skill-{number:04d}",
            description(number),
            license="MIT" if number % 5 == 0 else None,
            tools=["search"] if number % 7 == 0 else [],
        )
        for number in range(size)
    ]


def render(
    skills: Sequence[SkillMetadata],
    budget: int | None,
    loaded: Sequence[str] = (),
    *,
    resources: int = 0,
    searchable: bool = False,
) -> str:
    files = {name: [ResourceMetadata(path="/x", type="script", skill_name=name)] * resources for name in loaded}
    listed = CatalogList([SkillEntry(skill, "/skills", "digest") for skill in skills])
    return listed.render(files, budget, searchable=searchable)


def names_alone(skills: Sequence[SkillMetadata], loaded: Sequence[str] = (), *, searchable: bool = False) -> int:
    """Return how many characters the names take, with their marks and the line about what is missing."""
    heads = [f"- **{s['name']}**{' [Loaded]' if s['name'] in loaded else ''}" for s in skills]
    how = "use `search_skills` to find the rest, and " if searchable else ""
    note = f"(0 of {len(skills)} descriptions are shown in full; {how}`load_skill` with a name to read a skill.)"
    return len("\n".join([*heads, note]))


# --- reading a list --------------------------------------------------------------------------------------------------


def entries(text: str) -> dict[str, str]:
    """Return what a list says about each skill, by name and in order."""
    found = re.findall(r"^- \*\*(.+?)\*\*(?: \[Loaded\])?(?:: (.*))?$", text, re.MULTILINE)
    return dict(found)


def is_whole(shown: str, described: str) -> bool:
    return shown == described or shown.startswith(f"{described} (License: ")


def is_cut_at(shown: str, described: str, cap: int) -> bool:
    """Whether a description is shown as a cap of so many characters leaves it."""
    return shown == (described if len(described) <= cap else f"{described[: cap - 3].rstrip()}...")


def assert_fair(text: str, skills: Sequence[SkillMetadata]) -> None:
    """Assert that every description is whole, or that one cap explains them all, or that there are names alone."""
    shown = entries(text)
    described = {s["name"]: s["description"] for s in skills}
    assert list(shown) == list(described)
    if all(is_whole(shown[name], described[name]) for name in shown) or not any(shown.values()):
        return
    caps = range(max(map(len, shown.values())), 1 + max(map(len, described.values())))
    assert any(all(is_cut_at(shown[name], described[name], cap) for name in shown) for cap in caps)


def assert_true_count(text: str, skills: Sequence[SkillMetadata], *, searchable: bool = False) -> None:
    """Check that the last line says how many of how many descriptions are shown in full."""
    shown = entries(text)
    whole = sum(is_whole(shown[s["name"]], s["description"]) for s in skills)
    last = text.splitlines()[-1]
    assert last.startswith(f"({whole} of {len(skills)} descriptions are shown in full")
    assert ("search_skills" in last) is searchable


# --- a library of 300 ------------------------------------------------------------------------------------------------


def test_a_budget_holds() -> None:
    """Every name is there, the text is within the budget if names alone are, and descriptions are cut fairly."""
    skills = library()
    whole = len(render(skills, None))

    for budget, searchable in itertools.product(BUDGETS, (True, False)):
        text = render(skills, budget, searchable=searchable)

        assert list(entries(text)) == [s["name"] for s in skills]
        assert len(text) <= max(budget, names_alone(skills, searchable=searchable))
        assert_fair(text, skills)
        if whole > budget:
            assert_true_count(text, skills, searchable=searchable)


def test_no_room_is_wasted() -> None:
    """Where descriptions are cut, one character more for each would not fit."""
    skills = library()
    wasted = {}
    for budget in (budget for budget in BUDGETS if budget >= 9_000):
        text = render(skills, budget)
        cut = [shown for shown in entries(text).values() if shown.endswith("...")]
        if cut and budget - len(text) > 2 * len(cut) + 2:
            wasted[budget] = len(text)

    assert wasted == {}


def test_a_larger_budget_shows_no_less() -> None:
    """No description is shorter under a larger budget."""
    skills = library(60)
    shown = [entries(render(skills, budget)) for budget in range(500, 30_000, 331)]

    for smaller, larger in itertools.pairwise(shown):
        assert all(len(smaller[name]) <= len(larger[name]) for name in smaller)


def test_without_a_budget_nothing_is_cut() -> None:
    """With no budget a library of 2,000 stands in the list as it is, with hints and without a remark."""
    skills = library(2_000)

    text = render(skills, None)

    assert all(is_whole(shown, s["description"]) for shown, s in zip(entries(text).values(), skills, strict=True))
    assert text.count("  -> Use `load_skill(") == 2_000
    assert "shown in full" not in text


def test_a_budget_that_suffices_changes_nothing() -> None:
    """A list that is exactly as long as the budget is left alone."""
    skills = library()
    whole = render(skills, None)

    assert render(skills, len(whole)) == whole


def test_hints_go_first() -> None:
    """One character too few costs the hints, and not a word of a description, a licence or a recommendation."""
    skills = library()
    whole = render(skills, None)

    text = render(skills, len(whole) - 1)

    *rest, last = text.splitlines()
    assert rest == [line for line in whole.splitlines() if "-> Use `load_skill(" not in line]
    assert last.startswith("(300 of 300 descriptions are shown in full")


def test_names_are_left_when_nothing_else_fits() -> None:
    """Below what descriptions need, names stand alone, all of them, whatever the budget."""
    skills = library()

    text = render(skills, 0)

    assert text.splitlines()[:-1] == [f"- **{s['name']}**" for s in skills]
    assert text == render(skills, names_alone(skills))
    assert_true_count(text, skills)


def test_no_description_is_whole_while_another_starves() -> None:
    """A description of five characters is not shown where there is no room for a word of the others."""
    skills = [skill("short", "Tests"), *(skill(f"long-{number}", "Reads and writes. " * 9) for number in range(9))]

    for budget in range(names_alone(skills), names_alone(skills) + 200):
        shown = list(entries(render(skills, budget)).values())
        assert all(shown) or not any(shown)


def test_loaded_skills_stay_marked() -> None:
    """Marks of loaded skills belong to the names: they stay under any budget, which counts them."""
    skills = library()
    loaded = [s["name"] for s in skills[::9]]

    for budget in BUDGETS:
        text = render(skills, budget, loaded, resources=2)

        assert loaded_in(text) == loaded, budget
        assert len(text) <= max(budget, names_alone(skills, loaded))
        assert_fair(text, skills)


def test_resources_do_not_break_the_budget() -> None:
    """Where names fit, the counts of loaded skills' resources give way before the budget does."""
    skills = library()
    loaded = [s["name"] for s in skills[:10]]

    text = render(skills, names_alone(skills, loaded), loaded, resources=2)

    assert len(text) <= names_alone(skills, loaded)
    assert text.count(" [Loaded]") == 10


# --- any library -----------------------------------------------------------------------------------------------------

SENTENCES = st.text(st.sampled_from("abc .:-周é"), max_size=120).map(lambda text: " ".join(text.split())).filter(bool)
LIBRARIES = st.lists(SENTENCES, min_size=1, max_size=30).map(
    lambda texts: [skill(f"s{number}", text) for number, text in enumerate(texts)]
)


@given(LIBRARIES, st.integers(0, 4_000), st.data(), st.booleans(), st.integers(0, 3))
@repeatable
def test_any_library_in_any_budget(
    skills: list[SkillMetadata],
    budget: int,
    data: st.DataObject,
    searchable: bool,  # noqa: FBT001 - drawn
    resources: int,
) -> None:
    """Names, marks, fairness, the count and the budget hold whatever the library, the budget and what is loaded."""
    loaded = data.draw(st.lists(st.sampled_from([s["name"] for s in skills]), unique=True))

    text = render(skills, budget, loaded, resources=resources, searchable=searchable)

    assert text.count(" [Loaded]") == len(loaded)
    assert_fair(text, skills)
    if text == render(skills, None, loaded, resources=resources):
        assert len(text) <= budget
        return
    assert_true_count(text, skills, searchable=searchable)
    assert len(text) <= max(budget, names_alone(skills, loaded, searchable=searchable))


# --- through agents --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shelves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with skills in `/all` and 300 in `/some`, the first of them with a script."""
    root = tmp_path_factory.mktemp("shelves")
    for shelf, size in (("all", ALL), ("some", 300)):
        write_files(root, {f"{shelf}/{s['name']}/SKILL.md": _file(s) for s in library(size)})
    write_files(root, {"some/skill-0000/scripts/run.py": "print()"})
    return root


def _file(entry: SkillMetadata) -> str:
    fields: dict[str, Any] = {"license": entry["license"]} if entry["license"] else {}
    if entry["allowed_tools"]:
        fields["allowed_tools"] = " ".join(entry["allowed_tools"])
    return skill_md(entry["name"], entry["description"], **fields)


def talk(mode: Mode, shelves: Path, source: str, **options: Any) -> Conversation:
    skills: SkillsMiddleware[Any, Any] = SkillsMiddleware(
        backend=disk(shelves), sources=[source], system_prompt=LIST, **options
    )
    return Conversation(mode, skills)


def listed(conversation: Conversation, request: int = -1) -> str:
    """Return the list that the model was shown."""
    return conversation.model.requests[request].system.split("<list>")[1].split("</list>")[0]


@both_modes
def test_an_agent_lists_a_large_library_whole(mode: Mode, shelves: Path) -> None:
    """Without a budget the model reads the whole of every description, however many skills there are."""
    conversation = talk(mode, shelves, "/all")

    conversation.say("Done.")

    assert listed(conversation) == render(library(ALL), None)


@pytest.mark.parametrize("searchable", [True, False], ids=["searchable", "not-searchable"])
def test_an_agent_keeps_to_its_budget(mode: Mode, searchable: bool, shelves: Path) -> None:  # noqa: FBT001 - a table
    """A model is shown 300 skills within the budget, told of `search_skills` if it has it, and of what is loaded."""
    extra = ["search_skills"] if searchable else []
    conversation = talk(mode, shelves, "/some", catalog_budget=12_000, extra_tools=extra)

    conversation.say(call_tools(load("skill-0000")), call_tools(unload("skill-0000")))

    before, loaded, unloaded = (listed(conversation, number) for number in range(3))
    for text in (before, loaded, unloaded):
        assert len(text) <= 12_000
        assert_fair(text, library())
        assert_true_count(text, library(), searchable=searchable)
    assert "[Loaded]" not in before
    assert re.findall(r"^.*\[Loaded\].*\n.*$", loaded, re.MULTILINE)[0].endswith("  -> Resources: 1 script")
    assert unloaded == before
