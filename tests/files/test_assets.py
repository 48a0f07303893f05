"""A skill's files: listed, read and run, and nothing outside its three directories ever touched."""

import asyncio
import contextlib
import os
import shlex
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from deepagents.backends import (
    BackendProtocol,
    CompositeBackend,
    LocalShellBackend,
    StateBackend,
    StoreBackend,
)
from deepagents.backends.protocol import LsResult
from deepagents.middleware.filesystem import FilesystemMiddleware
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import StructuredTool
from langgraph.store.memory import InMemoryStore

from deepskills import (
    SkillFileNotFoundError,
    SkillFormatError,
    SkillMetadata,
    SkillPathError,
    SkillsError,
    SkillsManager,
)
from deepskills._files.assets import MAX_ASSETS, list_assets, read_asset, read_asset_bytes, script_path
from deepskills._files.paths import check_relative
from deepskills._io.drivers import adrive, drive
from deepskills._io.plan import Plan, ResultT
from deepskills._types import RESOURCE_TYPE_MAP
from deepskills.testing import ScriptedChatModel, call_tools
from support import MODES, FakeBackend, Mode, both_modes, disk, fails, run, skill_md, state_files, write_files
from support.tables import HONEST, HOSTILE, OUTSIDE, ask, spelled

SECRET = "nobody-may-read-this"


def honest_text(path: str) -> str:
    """Return what a file of the skill holds; file systems may compose accents."""
    return f"text of {unicodedata.normalize('NFC', path)}"


def readings(path: str) -> Iterable[str]:
    """Return what careless code could make of a path."""
    yield path
    yield unquote(path)
    yield unquote(unquote(path))
    yield unicodedata.normalize("NFKC", path)
    yield unicodedata.normalize("NFKC", path).replace("\\", "/")
    yield path.replace("\x00", "")
    yield path.partition("\x00")[0]
    yield "/".join(part.strip(" .") or part.strip() for part in path.split("/"))


def is_honest_place(skill: Path, path: str, reading: str) -> bool:
    """Whether a reading of a hostile path is a path that a file of the skill may have."""
    if reading == path == os.path.normpath(path):
        return False
    return any(Path(os.path.normpath(skill / reading)).is_relative_to(skill / name) for name in RESOURCE_TYPE_MAP)


def plant(area: Path, skill: Path, path: str) -> None:
    """Put the secret wherever a path could lead, if that is inside `area` and nothing is there yet."""
    for reading in readings(path):
        with contextlib.suppress(OSError, ValueError):
            target = Path(os.path.normpath(skill / reading))
            free = len(path) < 300 and target.resolve().is_relative_to(area) and not os.path.lexists(target)
            if free and not is_honest_place(skill, path, reading):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(SECRET)


@dataclass(frozen=True)
class Trap:
    """A skill on disk with honest files, and the secret wherever a hostile path could lead."""

    area: Path
    skill: Path

    @property
    def secret(self) -> str:
        return str(self.area / "secret.txt")

    def manager(self, kind: str) -> SkillsManager:
        """Return a manager on one kind of backend."""
        place = "/" + self.skill.parent.relative_to(self.area).as_posix()
        if kind == "real":
            return SkillsManager.from_directory(self.skill.parent)
        if kind == "virtual":
            return SkillsManager(backend=disk(self.area), sources=[place])
        backend = CompositeBackend(default=StateBackend(), routes={"/disk/": disk(self.area)})
        return SkillsManager(backend=backend, sources=[f"/disk{place}"])


KINDS = ("real", "virtual", "composite")
each_kind = pytest.mark.parametrize("kind", KINDS)
EVERYWHERE = [(mode, kind) for mode in MODES for kind in KINDS]


@contextlib.contextmanager
def case(*names: object) -> Iterator[None]:
    """Name the case of a loop in whatever fails in it."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"In the case {names}.")
        raise


@pytest.fixture(scope="module")
def trap(tmp_path_factory: pytest.TempPathFactory) -> Trap:
    area = tmp_path_factory.mktemp("area").resolve()
    skill = area / "one/two/three/skills/demo"
    write_files(skill, {"SKILL.md": skill_md("demo")} | {path: honest_text(path) for path in HONEST.values()})
    write_files(skill, {"notes.md": SECRET, "private/secret.txt": SECRET, ".git/config": SECRET})
    write_files(skill.parent, {"other/SKILL.md": skill_md("other"), "other/references/secret.md": SECRET})
    found = Trap(area, skill)
    Path(found.secret).write_text(SECRET)
    for path in HOSTILE.values():
        plant(area, skill, spelled(path, found.secret))
        plant(area, skill, f"scripts/{spelled(path, found.secret)}")
    for path in OUTSIDE.values():
        plant(area, skill, path)
    return found


def refusal(mode: Mode, manager: SkillsManager, method: str, *arguments: str) -> SkillPathError:
    """Return the error by which a path is turned down."""
    with pytest.raises(SkillPathError) as caught:
        ask(mode, manager, method, *arguments)
    assert SECRET not in str(caught.value)
    return caught.value


def answers(mode: Mode, manager: SkillsManager, method: str, paths: Iterable[str]) -> dict[str, str | SkillPathError]:
    """Return what a method answers for each path, or the error by which it turns the path down."""
    found: dict[str, str | SkillPathError] = {}

    async def ask_all() -> None:
        for path in paths:
            try:
                found[path] = await getattr(manager, f"a{method}")("demo", path)
            except SkillPathError as error:
                found[path] = error

    if mode == "async":
        asyncio.run(ask_all())
        return found
    for path in paths:
        try:
            found[path] = getattr(manager, method)("demo", path)
        except SkillPathError as error:
            found[path] = error
    return found


def test_the_trap_is_set(trap: Trap) -> None:
    """The secret really lies where careless code would find it."""
    planted = [path for path in trap.area.rglob("*") if path.is_file() and path.read_bytes() == SECRET.encode()]
    assert len(planted) > 100
    assert any(".." in os.fsdecode(path) for path in planted)


# Path safety.


@both_modes
@each_kind
def test_hostile_paths_are_refused(mode: Mode, kind: str, trap: Trap) -> None:
    """No hostile path reads a file or gives a script, though a secret lies where it leads: the path is refused."""
    paths = [spelled(path, trap.secret) for path in HOSTILE.values()]
    for method in ("get_skill_asset", "get_skill_script_path"):
        found = answers(mode, trap.manager(kind), method, paths)
        assert len(found) == len(set(paths))
        assert [path for path, answer in found.items() if not is_refusal(answer)] == []


def is_refusal(answer: str | SkillPathError) -> bool:
    """Whether an answer turns a path down for what it is, and gives nothing away."""
    is_error = isinstance(answer, SkillPathError) and not isinstance(answer, SkillFileNotFoundError)
    return is_error and "refused" in str(answer) and SECRET not in str(answer)


@both_modes
@each_kind
def test_other_places_are_refused(mode: Mode, kind: str, trap: Trap) -> None:
    """Files of the skill outside the three directories are refused, whatever lies there."""
    manager = trap.manager(kind)
    errors = {name: refusal(mode, manager, "get_skill_asset", "demo", path) for name, path in OUTSIDE.items()}
    assert [name for name, error in errors.items() if isinstance(error, SkillFileNotFoundError)] == []


@both_modes
@each_kind
def test_other_places_have_no_scripts(mode: Mode, kind: str, trap: Trap) -> None:
    """A script's name is taken below `scripts/` alone: what lies elsewhere under that name is not a script."""
    manager = trap.manager(kind)
    for name in ("SKILL.md", "private/secret.txt", "~/secret.txt"):
        error = refusal(mode, manager, "get_skill_script_path", "demo", name)
        assert isinstance(error, SkillFileNotFoundError)


@both_modes
@each_kind
def test_honest_paths_are_read(mode: Mode, kind: str, trap: Trap) -> None:
    """Every file that people have in the three directories can be read, however deep and in any script."""
    manager = trap.manager(kind)
    read = answers(mode, manager, "get_skill_asset", HONEST.values())
    assert [path for path, text in read.items() if text != honest_text(path)] == []
    assert ask(mode, manager, "get_skill_asset", "demo", ".//references/./guide.md") == honest_text(
        "references/guide.md"
    )


@both_modes
@each_kind
def test_listing_has_the_honest_files_alone(mode: Mode, kind: str, trap: Trap) -> None:
    """A listing is sorted, relative to the skill, at any depth, and leaves out what would be refused."""
    listing = ask(mode, trap.manager(kind), "list_skill_assets", "demo")
    assert without_backslashes(listing) == sorted(HONEST.values())


def without_backslashes(listing: list[str]) -> list[str]:
    """Return a listing without the files whose names have backslashes, which backends may mean as slashes."""
    names = [f"{place}{path}" for path in HOSTILE.values() if "\\" in path for place in ("", "scripts/")]
    meant = {name.replace("\\", "/") for name in names} - set(HONEST.values())
    return [path for path in listing if path not in meant]


def in_agent(mode: Mode, files: dict[str, str], work: Callable[[SkillsManager], Any]) -> Any:
    """Do `work` with a manager on `StateBackend`, inside the run of an agent that has `files`."""
    manager = SkillsManager(backend=StateBackend(), sources=["/skills"])
    results: list[Any] = []

    def probe() -> str:
        """Work."""
        results.append(work(manager))
        return "done"

    async def aprobe() -> str:
        results.append(await asyncio.to_thread(work, manager))
        return "done"

    agent = create_agent(
        ScriptedChatModel(replies=[call_tools(("probe", {}))]),
        tools=[StructuredTool.from_function(probe, aprobe, name="probe", description="Work.")],
        middleware=[FilesystemMiddleware(backend=StateBackend())],
    )
    run(mode, agent, {"messages": [HumanMessage("go")], "files": state_files(files)})
    (result,) = results
    return result


def state_trap() -> dict[str, str]:
    """Return the skill as files in state, the secret under the very name of every hostile path and where it leads."""
    skill = Path("/skills/demo")
    hostile = [spelled(path) for path in HOSTILE.values()]
    files = {}
    for path in (*hostile, *(f"scripts/{path}" for path in hostile)):
        files[f"{skill}/{path}"] = SECRET
        for reading in readings(path):
            if not is_honest_place(skill, path, reading):
                files[os.path.normpath(skill / reading)] = SECRET
    files |= {f"{skill}/{path}": SECRET for path in OUTSIDE.values() if path not in RESOURCE_TYPE_MAP}
    files |= {f"{skill}/{path}": honest_text(path) for path in HONEST.values()}
    return files | {f"{skill}/SKILL.md": skill_md("demo")}


@both_modes
def test_paths_in_state_are_judged_alike(mode: Mode) -> None:
    """On `StateBackend`, where a file may have any name, each path is refused or read as on a disk."""

    def work(manager: SkillsManager) -> list[str]:
        for path in (spelled(path) for path in HOSTILE.values()):
            for method in ("get_skill_asset", "get_skill_script_path"):
                error = refusal("sync", manager, method, "demo", path)
                assert not isinstance(error, SkillFileNotFoundError), path
        for path in OUTSIDE.values():
            assert not isinstance(refusal("sync", manager, "get_skill_asset", "demo", path), SkillFileNotFoundError)
        for path in HONEST.values():
            assert manager.get_skill_asset("demo", path) == honest_text(path)
        return manager.list_skill_assets("demo")

    assert without_backslashes(in_agent(mode, state_trap(), work)) == sorted(HONEST.values())


# Links.


LINKS = {
    "file": {"references/bad.md": "{outside}/secret.txt"},
    "file by a relative link": {"references/bad.md": "../../../outside/secret.txt"},
    "another skill's file": {"references/bad.md": "../../other/references/secret.md"},
    "skill of a longer name": {"references/bad.md": "../../demo-more/secret.md"},
    "chain": {
        "references/bad.md": "step.md",
        "references/step.md": "../assets/step.md",
        "assets/step.md": "{outside}/secret.txt",
    },
    "chain through an honest directory": {"references/bad.md": "../assets/dir/secret.txt", "assets/dir": "{outside}"},
    "out and in": {"references/bad.md": "{outside}/back/../secret.txt"},
}
"""Links, by their place in the skill, each of which leads `references/bad.md` out of the skill."""

DIRECTORY_LINKS = {
    "directory": {"references/sub": "{outside}"},
    "directory by a relative link": {"references/sub": "../../../outside"},
    "directory of directories": {"references/sub": "../../.."},
    "chain of directories": {"references/sub": "../assets/step", "assets/step": "{outside}"},
    "link below a link": {"references/sub": "../assets/a", "assets/a/secret.txt": "{outside}/secret.txt"},
}
"""Links that lead `references/sub/secret.txt`, or what lies below, out of the skill."""


@pytest.fixture
def linked(tmp_path: Path) -> Trap:
    """Return a skill to put links into, and secrets to link to."""
    skill = tmp_path / "skills" / "demo"
    files = {"SKILL.md": skill_md("demo"), "references/guide.md": "guide", "assets/real.md": "real"}
    write_files(skill, {**files, "scripts/run.py": "print('ran')\n"})
    write_files(tmp_path, {"outside/secret.txt": SECRET, "outside/outside/secret.txt": SECRET, "secret.txt": SECRET})
    write_files(tmp_path / "skills", {"other/SKILL.md": skill_md("other"), "other/references/secret.md": SECRET})
    write_files(tmp_path / "skills", {"demo-more/secret.md": SECRET})
    return Trap(tmp_path, skill)


OWN_FILES = ["assets/real.md", "references/guide.md", "scripts/run.py"]


def put_links(trap: Trap, links: dict[str, str]) -> None:
    for place, target in links.items():
        (trap.skill / place).parent.mkdir(parents=True, exist_ok=True)
        (trap.skill / place).symlink_to(target.format(outside=trap.area / "outside"))


@pytest.mark.parametrize("links", LINKS.values(), ids=LINKS)
def test_links_to_files_outside_are_refused(linked: Trap, links: dict[str, str]) -> None:
    """A link that leads to a file outside the skill, by however many steps, is refused and not listed."""
    put_links(linked, links)
    for mode, kind in EVERYWHERE:
        with case(mode, kind):
            manager = linked.manager(kind)
            error = refusal(mode, manager, "get_skill_asset", "demo", "references/bad.md")
            assert not isinstance(error, SkillFileNotFoundError)
            assert "link" in str(error)
            assert ask(mode, manager, "list_skill_assets", "demo") == OWN_FILES


@pytest.mark.parametrize("links", DIRECTORY_LINKS.values(), ids=DIRECTORY_LINKS)
def test_links_to_directories_outside_are_refused(linked: Trap, links: dict[str, str]) -> None:
    """Nothing below a link that leads to a directory outside the skill is read or listed."""
    put_links(linked, links)
    for mode, kind in EVERYWHERE:
        with case(mode, kind):
            manager = linked.manager(kind)
            for path in ("references/sub/secret.txt", "references/sub/outside/secret.txt"):
                refusal(mode, manager, "get_skill_asset", "demo", path)
            error = refusal(mode, manager, "get_skill_asset", "demo", "references/sub/secret.txt")
            assert not isinstance(error, SkillFileNotFoundError)
            assert ask(mode, manager, "list_skill_assets", "demo") == OWN_FILES


def test_a_whole_directory_may_not_lead_outside(linked: Trap) -> None:
    """Where `references/` itself is a link out of the skill, nothing in it is read, and the rest still is."""
    (linked.skill / "references" / "guide.md").unlink()
    (linked.skill / "references").rmdir()
    put_links(linked, {"references": "{outside}"})
    for mode, kind in EVERYWHERE:
        with case(mode, kind):
            manager = linked.manager(kind)
            refusal(mode, manager, "get_skill_asset", "demo", "references/secret.txt")
            assert ask(mode, manager, "list_skill_assets", "demo") == ["assets/real.md", "scripts/run.py"]


def test_scripts_may_not_lead_outside(linked: Trap) -> None:
    """A script that is a link to a program outside the skill has no path that is given out."""
    put_links(linked, {"scripts/bad.py": "{outside}/secret.txt", "scripts/sub": "{outside}"})
    for mode, kind in EVERYWHERE:
        with case(mode, kind):
            manager = linked.manager(kind)
            for name in ("bad.py", "scripts/bad.py", "sub/secret.txt"):
                error = refusal(mode, manager, "get_skill_script_path", "demo", name)
                assert not isinstance(error, SkillFileNotFoundError)


INNER_LINKS = {
    "file": {"references/alias.md": "../assets/real.md"},
    "absolute": {"references/alias.md": "{outside}/../skills/demo/assets/real.md"},
    "chain": {"references/alias.md": "step", "references/step": "../assets/real.md"},
    "beside": {"assets/again.md": "real.md", "references/alias.md": "../assets/again.md"},
}


@pytest.mark.parametrize("links", INNER_LINKS.values(), ids=INNER_LINKS)
def test_links_inside_the_skill_are_fine(linked: Trap, links: dict[str, str]) -> None:
    """A link to another file of the same skill is read, and costs the listing no doubles."""
    put_links(linked, links)
    for mode, kind in EVERYWHERE:
        with case(mode, kind):
            manager = linked.manager(kind)
            assert ask(mode, manager, "get_skill_asset", "demo", "references/alias.md") == "real"
            listing = ask(mode, manager, "list_skill_assets", "demo")
            assert set(OWN_FILES) <= set(listing)
            assert len(set(listing)) == len(listing)


def test_directory_links_inside_the_skill_are_fine(linked: Trap) -> None:
    """A link to another directory of the same skill can be read through."""
    put_links(linked, {"references/more": "../assets"})
    for mode, kind in EVERYWHERE:
        with case(mode, kind):
            manager = linked.manager(kind)
            assert ask(mode, manager, "get_skill_asset", "demo", "references/more/real.md") == "real"


def test_linked_scripts_run(linked: Trap) -> None:
    """A script that is a link to another file of the skill, whatever that is called, has a path that runs."""
    write_files(linked.skill, {"assets/tool-1.2.py": "print('linked')"})
    put_links(linked, {"scripts/tool.py": "../assets/tool-1.2.py"})
    for mode, kind in EVERYWHERE:
        with case(mode, kind):
            path = ask(mode, linked.manager(kind), "get_skill_script_path", "demo", "tool.py")
            assert subprocess.check_output([sys.executable, path], text=True) == "linked\n"


@pytest.mark.parametrize(
    "links",
    [{"references/alias.md": "../SKILL.md"}, {"references/alias.md": "../notes.md"}, {"references/alias": ".."}],
    ids=["instructions", "root file", "the skill itself"],
)
def test_listings_hold_only_what_can_be_read(linked: Trap, links: dict[str, str]) -> None:
    """Whatever links a skill has to its own files, each path of its listing is a good one and can be read."""
    write_files(linked.skill, {"notes.md": "notes"})
    put_links(linked, links)
    for mode, kind in EVERYWHERE:
        with case(mode, kind):
            manager = linked.manager(kind)
            listing = ask(mode, manager, "list_skill_assets", "demo")
            assert set(OWN_FILES) <= set(listing)
            for path in listing:
                assert check_relative(path)
                assert ask(mode, manager, "get_skill_asset", "demo", path)


@pytest.mark.parametrize("place", ["scripts", "references/more"])
def test_links_to_other_directories_of_the_skill_are_passed_over(linked: Trap, place: str) -> None:
    """A link to a directory that is none of the three adds nothing to the listing, and costs it nothing."""
    write_files(linked.skill, {"lib/x.py": "1", "lib/sub/y.py": "1"})
    (linked.skill / "scripts/run.py").unlink()
    (linked.skill / "scripts").rmdir()
    put_links(linked, {place: os.path.relpath(linked.skill / "lib", (linked.skill / place).parent)})
    for mode, kind in EVERYWHERE:
        with case(mode, kind):
            manager = linked.manager(kind)
            assert ask(mode, manager, "list_skill_assets", "demo") == ["assets/real.md", "references/guide.md"]
            error = refusal(mode, manager, "get_skill_asset", "demo", "references/guides.md")
            assert "references/guide.md" in str(error)


@pytest.mark.parametrize(
    "links",
    [
        {"references/gone.md": "nothing.md"},
        {"references/gone.md": "step.md", "references/step.md": "nothing.md"},
        {"references/gone.md": "gone.md"},
        {"references/gone.md": "there.md", "references/there.md": "gone.md"},
    ],
    ids=["dangling", "dangling chain", "to itself", "to each other"],
)
def test_links_to_nothing_are_missing_files(linked: Trap, links: dict[str, str]) -> None:
    """A link that leads nowhere is a file that is not there, and is not listed."""
    put_links(linked, links)
    put_links(linked, {place.replace("references", "scripts"): target for place, target in links.items()})
    for mode, kind in EVERYWHERE:
        with case(mode, kind):
            manager = linked.manager(kind)
            assert isinstance(
                refusal(mode, manager, "get_skill_asset", "demo", "references/gone.md"), SkillFileNotFoundError
            )
            assert isinstance(
                refusal(mode, manager, "get_skill_script_path", "demo", "gone.md"), SkillFileNotFoundError
            )
            listing = ask(mode, manager, "list_skill_assets", "demo")
            # A composite backend gives no entries of a directory in which one entry is a circle.
            assert listing == [path for path in OWN_FILES if kind != "composite" or path in listing]


CIRCLES = {
    "to itself": {"references/loop": "."},
    "to its parent": {"references/a/loop": ".."},
    "two to itself": {"references/one": ".", "references/two": "."},
    "between two directories": {"references/other": "../assets", "assets/other": "../references"},
    "to the skill": {"references/loop": ".."},
    "many": {f"assets/{name}": "." for name in "abcdefgh"},
}


@pytest.mark.parametrize("links", CIRCLES.values(), ids=CIRCLES)
def test_circles_of_links_end(linked: Trap, links: dict[str, str]) -> None:
    """Directories that link to each other in a circle are listed soon, and each file once."""
    put_links(linked, links)
    for mode in MODES:
        for virtual in (True, False):
            backend = FakeBackend(linked.area, virtual_mode=virtual)
            calls = backend.calls
            backend.changes["ls"] = lambda _path, given: given if len(calls) < 500 else LsResult()  # noqa: B023 - used in this round
            manager = SkillsManager(backend=backend, sources=["/skills" if virtual else str(linked.area / "skills")])
            with case(mode, virtual):
                assert ask(mode, manager, "list_skill_assets", "demo") == OWN_FILES
                assert len(backend.listed) < 100


@both_modes
def test_safety_holds_in_linked_skills(mode: Mode, linked: Trap) -> None:
    """In a skill whose directory is itself a link, links inside work and links out of it are refused."""
    home = linked.area / "home"
    home.mkdir()
    (home / "demo").symlink_to(linked.skill)
    put_links(linked, {"references/alias.md": "../assets/real.md", "references/bad.md": "{outside}/secret.txt"})
    put_links(linked, {"references/sibling.md": "../../other/references/secret.md"})
    manager = SkillsManager.from_directory(home)
    assert ask(mode, manager, "get_skill_asset", "demo", "references/guide.md") == "guide"
    assert ask(mode, manager, "get_skill_asset", "demo", "references/alias.md") == "real"
    for path in ("references/bad.md", "references/sibling.md"):
        assert not isinstance(refusal(mode, manager, "get_skill_asset", "demo", path), SkillFileNotFoundError)
    assert not {"references/bad.md", "references/sibling.md"} & set(ask(mode, manager, "list_skill_assets", "demo"))


# Listings.


def test_directories_are_no_files(linked: Trap) -> None:
    """A directory, and a path that goes on below a file, are files that are not there."""
    write_files(linked.skill, {"references/sub/x.md": "", "scripts/sub/x.py": ""})
    for mode, kind in EVERYWHERE:
        with case(mode, kind):
            manager = linked.manager(kind)
            for path in ("references/sub", "references/guide.md/below"):
                assert isinstance(refusal(mode, manager, "get_skill_asset", "demo", path), SkillFileNotFoundError)
            for path in ("sub", "scripts/sub", "run.py/below"):
                assert isinstance(refusal(mode, manager, "get_skill_script_path", "demo", path), SkillFileNotFoundError)


@both_modes
def test_long_listings_are_cut(mode: Mode, linked: Trap) -> None:
    """At most 500 files are listed, in order, each once."""
    names = [f"{directory}/f{number:03}.txt" for directory in ("assets", "references") for number in range(300)]
    write_files(linked.skill, dict.fromkeys(names, ""))
    listing = ask(mode, linked.manager("virtual"), "list_skill_assets", "demo")
    assert len(listing) == len(set(listing)) == MAX_ASSETS == 500
    assert listing == sorted(listing)


@both_modes
def test_passed_over_directories_are_not_listed(mode: Mode, linked: Trap) -> None:
    """What tools leave in a directory is not listed; root files and other directories are not assets."""
    write_files(linked.skill, {"scripts/__pycache__/run.pyc": "", "assets/node_modules/x/y.js": ""})
    write_files(linked.skill, {"notes.md": "", "docs/more.md": ""})
    assert ask(mode, linked.manager("virtual"), "list_skill_assets", "demo") == OWN_FILES


INVALID: list[Any] = [{}, {"path": 5}, None]


def lying(path: str, result: LsResult) -> LsResult:
    """List, beside what is there, paths that lie elsewhere or nowhere, and things that are not entries."""
    if path.endswith("/references"):
        lies = ("/etc/passwd", "/skills/other/references/secret.md", "/skills/demo-more/secret.md")
        steps = (f"{path}/../../other/x.md", f"{path}/..", f"{path}/a//b.md", path, "", "/")
        entries: list[Any] = [{"path": entry, "is_dir": False} for entry in (*lies, *steps)]
        entries += [{"path": entry, "is_dir": True} for entry in ("/outside/", f"{path}/../../../outside/")]
        result.entries = [*(result.entries or []), *entries, *INVALID]
    return result


@both_modes
def test_entries_from_elsewhere_are_left_out(mode: Mode, linked: Trap) -> None:
    """A backend that lists paths outside the skill puts none of them into the listing."""
    manager = SkillsManager(backend=FakeBackend(linked.area, changes={"ls": lying}), sources=["/skills"])
    assert ask(mode, manager, "list_skill_assets", "demo") == OWN_FILES


@both_modes
@pytest.mark.parametrize(("method", "arguments"), [("list_skill_assets", ()), ("get_skill_script_path", ("run.py",))])
def test_failed_listings_are_told(mode: Mode, linked: Trap, method: str, arguments: tuple[str, ...]) -> None:
    """A backend that cannot list a skill's directories does not make it a skill without files."""
    manager = SkillsManager(
        backend=FakeBackend(linked.area, rules={"ls": fails("disk on fire", "/demo/")}), sources=["/skills"]
    )
    with pytest.raises(SkillsError, match="disk on fire") as caught:
        ask(mode, manager, method, "demo", *arguments)
    assert not isinstance(caught.value, SkillPathError)


# More than the three directories.


DEMO: SkillMetadata = {
    "path": "/skills/demo/SKILL.md",
    "name": "demo",
    "description": "",
    "license": None,
    "compatibility": None,
    "metadata": {},
    "allowed_tools": [],
}


def perform(mode: Mode, plan: Plan[ResultT], backend: BackendProtocol) -> ResultT:
    if mode == "sync":
        return drive(plan, lambda: backend)
    return asyncio.run(adrive(plan, lambda: backend))


@both_modes
def test_all_files_of_a_skill_are_listed_and_read(mode: Mode, linked: Trap) -> None:
    """With `"all"` whatever is listed can be read: any directory, the root's files; not `SKILL.md`, nothing hidden."""
    more = {"notes.md": "notes", "templates/a/b.txt": "deep", "examples/SKILL.md": "an example"}
    hidden = {".env": SECRET, ".git/config": SECRET, "templates/.cache/x": SECRET, "node_modules/x.js": SECRET}
    write_files(linked.skill, more | hidden)
    put_links(linked, {"templates/out": "{outside}", "templates/me.md": "../SKILL.md", "templates/env": "../.env"})
    for backend in (disk(linked.area), CompositeBackend(default=StateBackend(), routes={"/": disk(linked.area)})):
        listed = perform(mode, list_assets(DEMO, "all"), backend).paths
        assert listed == sorted([*OWN_FILES, *more])
        for path in listed:
            assert perform(mode, read_asset(DEMO, path, "all"), backend)
        for path in (
            "SKILL.md",
            ".env",
            "templates/me.md",
            "templates/env",
            "templates/out/secret.txt",
            "../secret.txt",
        ):
            with pytest.raises(SkillPathError) as caught:
                perform(mode, read_asset(DEMO, path, "all"), backend)
            assert not isinstance(caught.value, SkillFileNotFoundError)
            assert SECRET not in str(caught.value)


@both_modes
def test_named_directories_are_listed_and_read(mode: Mode, linked: Trap) -> None:
    """With names, exactly these directories are open, for files and for scripts."""
    write_files(linked.skill, {"templates/a.txt": "A", "notes.md": ""})
    names, backend = ("templates", "references"), disk(linked.area)
    assert perform(mode, list_assets(DEMO, names), backend).paths == ["references/guide.md", "templates/a.txt"]
    assert perform(mode, read_asset(DEMO, "templates/a.txt", names), backend) == "A"
    with pytest.raises(SkillPathError, match="none of the skill's directories"):
        perform(mode, script_path(DEMO, "run.py", names), backend)
    assert perform(mode, script_path(DEMO, "./run.py", "all"), backend) == str(linked.skill / "scripts/run.py")


@both_modes
def test_of_too_many_files_scripts_come_first(mode: Mode, linked: Trap) -> None:
    """With `"all"`, hundreds of root files hide neither scripts nor references, and a note says that there are more."""
    write_files(linked.skill, {f"f{number:03}.txt": "" for number in range(600)})
    assets = perform(mode, list_assets(DEMO, "all"), disk(linked.area))
    assert len(assets.paths) == MAX_ASSETS
    assert set(OWN_FILES) <= set(assets.paths)
    assert assets.notes == ["Only 500 files are listed; there are more."]


@both_modes
def test_files_that_could_hang_or_drown_a_run_are_not_opened(mode: Mode, linked: Trap) -> None:
    """A FIFO and a huge sparse file are errors that say why, at once; bytes are read as they are."""
    os.mkfifo(linked.skill / "references/fifo.md")
    with (linked.skill / "assets/huge.bin").open("wb") as huge:
        huge.truncate(3 * 1024**3)
    write_files(linked.skill, {"assets/raw.bin": b"\x00\xff"})
    backend = disk(linked.area)
    for path, reason in (("references/fifo.md", "not a regular file"), ("assets/huge.bin", "too large")):
        with pytest.raises(SkillFormatError, match=reason):
            perform(mode, read_asset(DEMO, path), backend)
    assert perform(mode, read_asset_bytes(DEMO, "assets/raw.bin"), backend) == b"\x00\xff"


# Scripts that run.


@pytest.mark.parametrize("name", ["run.py", "scripts/run.py"])
def test_script_paths_run(linked: Trap, name: str) -> None:
    """The path of a script on a local backend, virtual mode included, runs as it is."""
    for mode, kind in EVERYWHERE:
        with case(mode, kind):
            path = ask(mode, linked.manager(kind), "get_skill_script_path", "demo", name)
            assert subprocess.check_output([sys.executable, path], text=True) == "ran\n"


@pytest.mark.parametrize("place", ["tool", "sub dir/my tool.sh", "周报/工具.sh"])
def test_executables_run_by_path_alone(linked: Trap, place: str) -> None:
    """A script with its own first line and permission is run by nothing but its path."""
    write_files(linked.skill, {f"scripts/{place}": "#!/bin/sh\necho ran in $0\n"})
    (linked.skill / "scripts" / place).chmod(0o755)
    for mode, kind in EVERYWHERE:
        with case(mode, kind):
            path = ask(mode, linked.manager(kind), "get_skill_script_path", "demo", place)
            assert subprocess.check_output([path], text=True) == f"ran in {path}\n"


@both_modes
@pytest.mark.parametrize("virtual", [True, False], ids=["virtual", "real"])
def test_script_paths_run_in_a_shell_backend(mode: Mode, linked: Trap, *, virtual: bool) -> None:
    """The path that a shell backend's skill gives can be executed by that backend."""
    write_files(linked.skill, {"scripts/with space.py": "import sys; print('executed', sys.argv[1])"})
    backend = LocalShellBackend(root_dir=linked.area, virtual_mode=virtual)
    manager = SkillsManager(backend=backend, sources=["/skills" if virtual else str(linked.skill.parent)])
    path = ask(mode, manager, "get_skill_script_path", "demo", "with space.py")
    result = backend.execute(f"{sys.executable} {shlex.quote(path)} well")
    assert (result.exit_code, result.output) == (0, "executed well\n")


@both_modes
def test_script_paths_of_other_backends_are_their_own(mode: Mode) -> None:
    """Where files lie on no disk of this machine, a script's path is the backend's."""
    backend = StoreBackend(store=InMemoryStore(), namespace=lambda _runtime: ("skills",))
    files = {"SKILL.md": skill_md("demo"), "scripts/run.py": "", "scripts/sub/more.py": ""}
    backend.upload_files([(f"/skills/demo/{path}", text.encode()) for path, text in files.items()])
    manager = SkillsManager(backend=backend, sources=["/skills"])
    assert ask(mode, manager, "get_skill_script_path", "Demo", "run.py") == "/skills/demo/scripts/run.py"
    assert ask(mode, manager, "get_skill_script_path", "demo", "sub/more.py") == "/skills/demo/scripts/sub/more.py"
    routed = SkillsManager(
        backend=CompositeBackend(default=StateBackend(), routes={"/stored/": backend}), sources=["/stored/skills"]
    )
    assert ask(mode, routed, "get_skill_script_path", "demo", "run.py") == "/stored/skills/demo/scripts/run.py"


@both_modes
def test_script_paths_in_state_are_the_state_s_own(mode: Mode) -> None:
    """In an agent's state, a script's path is the one under which state has it."""
    files = {"/skills/demo/SKILL.md": skill_md("demo"), "/skills/demo/scripts/run.py": "print(1)"}
    path = in_agent(mode, files, lambda manager: manager.get_skill_script_path("demo", "scripts/run.py"))
    assert path == "/skills/demo/scripts/run.py"


@both_modes
def test_the_nearest_route_is_where_a_script_lies(mode: Mode, tmp_path: Path) -> None:
    """Of nested routes the longest decides which disk a script's real path is on."""
    for place in ("outer", "inner", "default"):
        script = {"SKILL.md": skill_md("demo"), "scripts/run.py": f"print('{place}')"}
        write_files(tmp_path / place / "skills/demo", script)
    write_files(tmp_path / "default", {"elsewhere/own/SKILL.md": skill_md("own"), "elsewhere/own/scripts/run.py": ""})
    backend = CompositeBackend(
        default=disk(tmp_path / "default"),
        routes={"/lib/": disk(tmp_path / "outer"), "/lib/near/": disk(tmp_path / "inner")},
    )
    for source, real in (("/lib/near/skills", "inner"), ("/lib/skills", "outer"), ("/skills", "default")):
        manager = SkillsManager(backend=backend, sources=[source])
        path = ask(mode, manager, "get_skill_script_path", "demo", "run.py")
        assert path == str(tmp_path / real / "skills/demo/scripts/run.py")
