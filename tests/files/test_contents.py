"""A skill's text and its other files, read by hand: which calls are made, and what comes of the answers."""

from collections.abc import Callable
from typing import Any, TypeVar

import support
from deepskills import ResourceMetadata, SkillMetadata
from deepskills._catalog.catalog import SkillEntry
from deepskills._files.inventory import read_contents, summarize, take_inventory
from deepskills._io.drivers import side_by_side
from deepskills._io.plan import (
    Call,
    Entry,
    Failed,
    File,
    ListDirectory,
    Listing,
    Plan,
    ReadFiles,
    ShellPaths,
)
from deepskills._types import ResourceType
from support import picked, skill_md

ResultT = TypeVar("ResultT")


def by_hand(plan: Plan[ResultT], answers: Callable[[Call[Any]], Any]) -> tuple[ResultT, list[set[Call[Any]]]]:
    """Perform a plan by a function, and return its result with the calls of each round."""
    result, rounds = support.by_hand(plan, answers)
    return result, [set(calls) for calls in rounds]


def tree(files: dict[str, str | bytes]) -> Callable[[Call[Any]], Any]:
    """Return a function that answers calls from files given by path."""
    contents = {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}

    def answers(call: Call[Any]) -> Any:
        if isinstance(call, ReadFiles):
            return tuple(File(path, contents.get(path), None) for path in call.paths)
        if not isinstance(call, ListDirectory):
            return Failed("not known here")
        inside = {path.removeprefix(f"{call.path}/") for path in contents if path.startswith(f"{call.path}/")}
        parts = sorted({(part.split("/")[0], "/" in part) for part in inside})
        return Listing(tuple(Entry(f"{call.path}/{name}", is_directory) for name, is_directory in parts))

    return answers


def skill(name: str) -> SkillEntry:
    """Return the entry of a skill below `/skills`."""
    path = f"/skills/{name}/SKILL.md"
    metadata = SkillMetadata(
        path=path,
        name=name,
        description="Does a thing.",
        license=None,
        compatibility=None,
        metadata={},
        allowed_tools=[],
    )
    return SkillEntry(metadata, "/skills", "digest")


# --- a skill's text and files ------------------------------------------------------------------------------------


def without_shell(rounds: list[set[Call[Any]]]) -> list[set[Call[Any]]]:
    """Leave out the question for a shell's paths, which is answered in the process."""
    asked = [{call for call in calls if not isinstance(call, ShellPaths)} for calls in rounds]
    return [calls for calls in asked if calls]


def test_skills_are_read_in_two_rounds() -> None:
    """First the files and their directories, then the standard directories that are there, however many skills."""
    names = [f"skill-{number}" for number in range(5)]
    files = {f"/skills/{name}/SKILL.md": skill_md(name) for name in names}
    files |= {f"/skills/{name}/scripts/run.py": "" for name in names}
    files |= {"/skills/skill-0/assets/logo.svg": "", "/skills/skill-0/data/table.csv": ""}

    read, rounds = by_hand(side_by_side(*(read_contents(skill(name), 1) for name in names)), tree(dict(files)))

    first, second = without_shell(rounds)
    assert first == {call for name in names for call in _own_calls(name)}
    assert second == {ListDirectory("/skills/skill-0/assets"), *(ListDirectory(f"/skills/{n}/scripts") for n in names)}
    assert [(contents.text, contents.failure) for contents in read] == [(skill_md(name), None) for name in names]
    assert [len(contents.inventory.resources) for contents in read] == [2, 1, 1, 1, 1]


def _own_calls(name: str) -> tuple[Call[Any], Call[Any]]:
    return ReadFiles((f"/skills/{name}/SKILL.md",)), ListDirectory(f"/skills/{name}")


def test_a_lone_file_is_read_in_one_round() -> None:
    """A skill without standard directories needs no second round."""
    _read, rounds = by_hand(read_contents(skill("alpha"), 1), tree({"/skills/alpha/SKILL.md": skill_md("alpha")}))

    assert without_shell(rounds) == [set(_own_calls("alpha"))]


UNREADABLE: dict[str, tuple[Any, str]] = {
    "failed": (Failed("the disk is on fire"), "the disk is on fire"),
    "error": ((File("/skills/alpha/SKILL.md", None, "permission_denied"),), "permission_denied"),
    "no content": ((File("/skills/alpha/SKILL.md", None, None),), "no content"),
    "too large": ((File("/skills/alpha/SKILL.md", b"x" * (10 * 1024 * 1024 + 1)),), "10485760"),
    "not text": ((File("/skills/alpha/SKILL.md", b"\x00\x01\xff\xfe"),), "not text"),
}


def no_files(call: Call[Any]) -> Any:
    """Answer that a directory is empty, and that the backend has no shell."""
    return {} if isinstance(call, ShellPaths) else Listing(())


def test_a_file_that_cannot_be_read_says_why() -> None:
    """Each way in which a file cannot be read is a failure with its reason."""
    wrong = {}
    for name, (reply, told) in picked(UNREADABLE.items()):
        read, _rounds = by_hand(
            read_contents(skill("alpha"), 1),
            lambda call, reply=reply: reply if isinstance(call, ReadFiles) else no_files(call),  # type: ignore[misc]
        )
        text, failure = read.text, read.failure
        if text or told not in (failure or ""):
            wrong[name] = (text, failure)

    assert wrong == {}


def test_a_listing_that_fails_leaves_the_text() -> None:
    """A failed listing is noted and costs the list alone."""
    content = skill_md("alpha").encode()

    read, _rounds = by_hand(
        read_contents(skill("alpha"), 1),
        lambda call: (File("x", content),) if isinstance(call, ReadFiles) else Failed("no lists today"),
    )

    assert (read.text, read.failure) == (skill_md("alpha"), None)
    assert read.inventory.resources == []
    assert read.inventory.failure == "no lists today"


# --- resources ---------------------------------------------------------------------------------------------------

DEEP: dict[str, str | bytes] = {
    "/s/SKILL.md": "",
    "/s/README": "",
    "/s/scripts/b.py": "",
    "/s/scripts/a.py": "",
    "/s/scripts/lib/c.py": "",
    "/s/scripts/lib/deep/d.py": "",
    "/s/scripts/.venv/e.py": "",
    "/s/references/SKILL.md": "",
    "/s/assets/f.png": "",
    "/s/docs/g.md": "",
    "/s/.git/HEAD": "",
}


SHALLOW = ["/s/scripts/a.py", "/s/scripts/b.py"]
DEPTHS: list[tuple[int, int, list[str], list[str]]] = [
    (1, 1, SHALLOW, ["scripts/lib"]),
    (2, 2, [*SHALLOW, "/s/scripts/lib/c.py"], ["scripts/lib/deep"]),
    (3, 3, [*SHALLOW, "/s/scripts/lib/c.py", "/s/scripts/lib/deep/d.py"], []),
    (9, 3, [*SHALLOW, "/s/scripts/lib/c.py", "/s/scripts/lib/deep/d.py"], []),
]
"""Depth, rounds of listings, the scripts that are found, and the directories that are only named."""


def test_resources_are_listed_as_deep_as_asked() -> None:
    """Each level is one round; types come from the directory, others and those too deep are only named."""
    answers = tree(DEEP)
    root = answers(ListDirectory("/s"))

    for depth, rounds, scripts, too_deep in DEPTHS:
        inventory, performed = by_hand(take_inventory("s", root, depth), answers)

        by_type: dict[str, list[str]] = {}
        for resource in inventory.resources:
            by_type.setdefault(resource["type"], []).append(resource["path"])
        assert len(performed) == rounds, depth
        assert {resource["skill_name"] for resource in inventory.resources} == {"s"}
        assert by_type == {
            "script": scripts,
            "reference": ["/s/references/SKILL.md"],
            "asset": ["/s/assets/f.png"],
            "other": ["/s/README"],
        }, depth
        assert inventory.other_directories == ["docs", *too_deep], depth
        assert (inventory.more, inventory.failure) == (0, None)


def test_resources_beyond_two_hundred_are_counted() -> None:
    """Two hundred resources are listed, the rest are a number."""
    for count, listed, more in [(0, 0, 0), (200, 200, 0), (201, 200, 1), (2_902, 200, 2_702)]:
        root = Listing(tuple(Entry(f"/s/{number:04}.txt", is_directory=False) for number in range(count)))

        inventory, _rounds = by_hand(take_inventory("s", root, 1), tree({}))

        assert (len(inventory.resources), inventory.more) == (listed, more)


def test_several_skills_keep_their_resources_apart() -> None:
    """Resources of skills that are listed together go to the skill they belong to."""
    answers = tree({"/a/scripts/x.py": "", "/b/scripts/y.py": ""})
    plans = [take_inventory(name, answers(ListDirectory(f"/{name}")), 1) for name in ("a", "b")]

    inventories, rounds = by_hand(side_by_side(*plans), answers)

    assert [[item["path"] for item in inventory.resources] for inventory in inventories] == [
        ["/a/scripts/x.py"],
        ["/b/scripts/y.py"],
    ]
    assert len(rounds) == 1


def test_a_listing_in_part_gives_its_part() -> None:
    """A listing with entries and an error gives the entries and keeps the error."""
    root = Listing((Entry("/s/README", is_directory=False),), error="cut short")

    inventory, _rounds = by_hand(take_inventory("s", root, 1), tree({}))

    assert [item["path"] for item in inventory.resources] == ["/s/README"]
    assert inventory.failure == "cut short"


SUMMARIES: list[tuple[list[ResourceType], str]] = [
    ([], ""),
    (["script"], "1 script"),
    (["script", "script", "reference"], "1 reference, 2 scripts"),
    (["other", "asset", "other"], "1 asset, 2 other files"),
    (["other"], "1 other file"),
]


def test_resources_are_summed_up() -> None:
    """The summary counts each kind, in order of the alphabet, in the singular or the plural."""
    for kinds, summary in SUMMARIES:
        resources = [ResourceMetadata(path=f"/{n}", type=kind, skill_name="s") for n, kind in enumerate(kinds)]

        assert summarize(resources) == summary
