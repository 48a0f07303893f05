"""Namespaces, sources that are skills themselves, and catalogs that subclasses write."""

import logging
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig

from deepskills import NamespacedSource, SkillFormatError, SkillsManager, SkillsMiddleware
from support import MODES, Conversation, Mode, disk, load, skill_md, write_files

both_modes = pytest.mark.parametrize("mode", MODES)

PLUGINS: list[Any] = ["/own", NamespacedSource("/one", "one"), NamespacedSource("/two", "two", "Second")]


def plain(name: str, description: str = "Does a thing.") -> str:
    """Return a file whose name need not follow the rules."""
    return f"---\nname: {name}\ndescription: {description}\n---\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return three sources that hold a skill of one name."""
    write_files(tmp_path, {f"{source}/report/SKILL.md": skill_md("report", source) for source in ("own", "one", "two")})
    write_files(tmp_path, {"two/named/SKILL.md": plain("two:named", "Has the prefix already.")})
    return tmp_path


def make(root: Path, **options: Any) -> SkillsMiddleware:
    return SkillsMiddleware(backend=disk(root), sources=PLUGINS, **options)


@both_modes
def test_skills_of_namespaces_collide_with_nobody(mode: Mode, root: Path) -> None:
    """Each is called by its namespace in the catalog, by tools, slash commands, pins and rules, without a warning."""
    talk = Conversation(mode, make(root, slash_commands=True, visibility={"two:*": "name-only"}))
    (answer,) = talk.call(load("ONE:report"))
    assert 'name="one:report"' in answer.text
    talk.say("done", given={"messages": [{"role": "user", "content": "/two:report now", "id": "m"}]})
    assert talk.loaded == ["one:report", "two:report"]
    talk.say("done", given={"messages": "go", "pinned_skills": ["two:named"]})
    assert talk.loaded == ["one:report", "two:report", "two:named"]
    assert talk.state["skills_problems"] == []
    names = [skill["name"] for skill in talk.state["skills_metadata"]]
    assert names == ["report", "one:report", "two:named", "two:report"]
    section = talk.model.requests[0].system
    assert "**one:report**: one" in section
    assert "**two:report**\n" in section


@both_modes
def test_a_manager_knows_namespaces(mode: Mode, root: Path) -> None:
    """Names, content and files are found by the whole name, at the first look and by what is remembered."""
    del mode
    manager = SkillsManager(backend=disk(root), sources=PLUGINS, max_age=60)
    assert manager.list_skills() == ["report", "one:report", "two:named", "two:report"]
    for _ in range(2):
        assert manager.get_skill_content("Two:Report") == skill_md("report", "two")
        assert manager.get_skill_content("report") == skill_md("report", "own")
        assert manager.list_skill_assets("one:report") == []
    assert manager.search_skills("one:report")[0]["name"] == "one:report"
    assert manager.list_problems() == []


def test_bad_namespaces_are_refused(root: Path) -> None:
    """A namespace that could not be part of a name is an error in the constructor."""
    for namespace in ("", "a b", "a:b", "a/b", "x" * 49, None):
        with pytest.raises(ValueError, match="namespace"):
            SkillsMiddleware(backend=disk(root), sources=[NamespacedSource("/one", namespace)])  # type: ignore[arg-type]


def test_a_thread_follows_a_changed_namespace(root: Path) -> None:
    """A thread that began with other names gets those of the namespace at its next run."""
    talk = Conversation("sync", SkillsMiddleware(backend=disk(root), sources=["/one"]))
    talk.say("done")
    state = talk.state
    again = SkillsMiddleware(backend=disk(root), sources=[NamespacedSource("/one", "one")])
    update = again.before_agent(state, None)  # type: ignore[arg-type]
    assert update is not None
    assert [skill["name"] for skill in update["skills_metadata"] or []] == ["one:report"]


@both_modes
def test_a_source_that_is_a_skill_holds_others(mode: Mode, tmp_path: Path) -> None:
    """A stray `SKILL.md` in a source is a skill, and hides none of those below it."""
    files = {f"lib/s{number}/SKILL.md": skill_md(f"s{number}") for number in range(3)}
    write_files(tmp_path, {"lib/SKILL.md": skill_md("lib"), "lib/references/x.md": "text", **files})
    write_files(tmp_path, {"lib/s0/assets/SKILL.md": skill_md("assets")})
    for depth in (1, 2):
        middleware = SkillsMiddleware(backend=disk(tmp_path), sources=["/lib"], max_depth=depth)
        talk = Conversation(mode, middleware)
        talk.call(load("lib"), load("s1"))
        assert talk.loaded == ["lib", "s1"]
        assert [skill["name"] for skill in talk.state["skills_metadata"]] == ["lib", "s0", "s1", "s2"]
        assert talk.state["skills_problems"] == []
    assert SkillsManager.from_directory(tmp_path / "lib").list_skills() == ["lib", "s0", "s1", "s2"]


class Renaming(SkillsMiddleware):
    """Writes a catalog of its own, as subclasses of deepagents' class do."""

    def _renamed(self, update: Any) -> Any:
        if update and update.get("skills_metadata"):
            update["skills_metadata"] = [{**s, "name": f"plug:{s['name']}"} for s in update["skills_metadata"]]
        return update

    def before_agent(self, state: Any, runtime: Any, config: RunnableConfig | None = None) -> Any:
        return self._renamed(super().before_agent(state, runtime, config))

    async def abefore_agent(self, state: Any, runtime: Any, config: RunnableConfig | None = None) -> Any:
        return self._renamed(await super().abefore_agent(state, runtime, config))


@both_modes
def test_a_subclass_is_told_that_its_catalog_is_not_read(
    mode: Mode, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A catalog that a subclass returns is one problem and one log line, which name `NamespacedSource`."""
    caplog.set_level(logging.WARNING, "deepskills")
    talk = Conversation(mode, Renaming(backend=disk(root), sources=["/own"]))
    for _ in range(3):
        talk.say("done")
    found = [problem for problem in talk.state["skills_problems"] if problem["code"] == "catalog-replaced"]
    assert len(found) == 1
    assert "NamespacedSource" in found[0]["message"]
    assert sum("catalog-replaced" in line for line in caplog.messages) == 1


def test_a_subclass_without_a_catalog_of_its_own_hears_nothing(root: Path) -> None:
    """Overriding `before_agent` alone is fine."""

    class Quiet(SkillsMiddleware):
        def before_agent(self, state: Any, runtime: Any, config: RunnableConfig | None = None) -> Any:
            return super().before_agent(state, runtime, config)

    talk = Conversation("sync", Quiet(backend=disk(root), sources=["/own"]))
    talk.say("done")
    assert talk.state["skills_problems"] == []


def test_a_broken_skill_of_a_namespace_says_so(root: Path) -> None:
    """A directory whose file is broken answers with its problem, asked by the directory's name."""
    write_files(root, {"one/bad/SKILL.md": "---\nname: bad\n---\n"})
    with pytest.raises(SkillFormatError):
        SkillsManager(backend=disk(root), sources=PLUGINS).get_skill_content("bad")
