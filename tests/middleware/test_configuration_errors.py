"""Mistakes of configuration: each says what is wrong, with which value, and what to write instead."""

import importlib
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends import StateBackend
from langchain.agents import create_agent
from langchain.agents.middleware import TodoListMiddleware

import deepskills
from deepskills import SkillsError, SkillsMiddleware
from deepskills.extensions import SkillScripts, SkillUsage
from deepskills.testing import ScriptedChatModel
from support import Conversation, Mode, both_modes, disk, run, skill_md, write_files


def test_extensions_that_are_not_in_a_list_say_so() -> None:
    """One extension without a list, a class, and a middleware of LangChain: each message says what to write."""
    wrong: dict[str, Any] = {
        r"write extensions=\[SkillScripts\(\.\.\.\)\]": SkillScripts(),
        r"got the class SkillScripts; write extensions=\[SkillScripts\(\.\.\.\)\]": [SkillScripts],
        r"deepskills\.extensions.*`middleware`": [TodoListMiddleware()],
    }
    for message, extensions in wrong.items():
        with pytest.raises(TypeError, match=message):
            SkillsMiddleware(backend=StateBackend(), sources=["/skills"], extensions=extensions)


def test_switches_take_nothing_but_a_bool() -> None:
    """A text that looks like a setting is not taken for `True`."""
    for name in ("strict", "load_requires"):
        for value in ("x", "", 1, None):
            with pytest.raises(TypeError, match=f"{name} must be True or False, got"):
                SkillsMiddleware(backend=StateBackend(), sources=["/skills"], **{name: value})  # type: ignore[arg-type]


def test_a_name_of_another_module_says_which() -> None:
    """`from deepskills import SkillScripts` names the module; so does each public name of the extensions."""
    with pytest.raises(ImportError, match=r"from deepskills\.extensions import SkillScripts"):
        exec("from deepskills import SkillScripts")
    extensions = importlib.import_module("deepskills.extensions").__all__
    elsewhere: dict[str, str] = vars(deepskills)["_ELSEWHERE"]
    assert {name for name, place in elsewhere.items() if place == "deepskills.extensions"} == set(extensions)
    for name, place in elsewhere.items():
        if place != "deepskills.mcp":  # which needs a package of its own
            assert name in importlib.import_module(place).__all__, name
    assert not hasattr(deepskills, "SkillNobodyWrote")


def test_a_missing_source_says_how_it_may_be_missing(tmp_path: Path) -> None:
    """Also with `strict=True` it is a warning, which says what to do: create it, remove it, or make it optional."""
    write_files(tmp_path, {"skills/a/SKILL.md": skill_md("a")})
    talk = Conversation("sync", SkillsMiddleware(backend=disk(tmp_path), sources=["/skills", "/mine"], strict=True))
    talk.say()
    [problem] = talk.state["skills_problems"]
    assert (problem["path"], problem["code"]) == ("/mine", "source-missing")
    assert "OptionalSource" in problem["message"]


@both_modes
def test_two_in_one_deep_agent_are_an_error_at_the_first_run(mode: Mode, tmp_path: Path) -> None:
    """`create_deep_agent` would keep the last without a word; a sub-agent may have one of its own."""
    write_files(tmp_path, {"skills/a/SKILL.md": skill_md("a")})
    backend = disk(tmp_path)
    one, two = (SkillsMiddleware(backend=backend, sources=["/skills"]) for _ in range(2))
    model = ScriptedChatModel(replies=[])
    wrong = create_deep_agent(model, backend=backend, middleware=[one, two])
    with pytest.raises(SkillsError, match=r"given 2 SkillsMiddleware and keeps only the last\. Pass one"):
        run(mode, wrong)
    helper: Any = {"name": "helper", "description": "Helps.", "system_prompt": "Help.", "middleware": [two]}
    right = create_deep_agent(model, backend=backend, middleware=[one], subagents=[helper])
    run(mode, right)
    assert "- **a**" in model.requests[-1].system


@both_modes
def test_sources_beside_the_middleware_are_an_error_at_the_first_run(mode: Mode, tmp_path: Path) -> None:
    """`create_deep_agent(skills=[...])` beside our middleware would vanish; the error has the line to write instead."""
    write_files(tmp_path, {"skills/a/SKILL.md": skill_md("a"), "team/b/SKILL.md": skill_md("b")})
    backend, model = disk(tmp_path), ScriptedChatModel(replies=[])

    class Own(SkillsMiddleware):
        """A subclass is ours as well."""

    for kind in (SkillsMiddleware, Own):
        skills = kind(backend=backend, sources=["/skills"], extensions=[SkillUsage(lambda _event: None)])
        wrong = create_deep_agent(model, backend=backend, middleware=[skills], skills=["/team"])
        with pytest.raises(SkillsError, match=r"SkillsMiddleware\(backend=\.\.\., sources=\['/team', '/skills'\]\)"):
            run(mode, wrong)
        # The same instance elsewhere is not to blame.
        run(mode, create_deep_agent(model, backend=backend, middleware=[skills]))
        helper: Any = {"name": "helper", "description": "Helps.", "system_prompt": "Help.", "middleware": [skills]}
        run(mode, create_deep_agent(model, backend=backend, subagents=[helper], skills=["/team"]))


@both_modes
def test_an_agent_without_file_tools_says_what_is_missing(mode: Mode) -> None:
    """`StateBackend` in a plain `create_agent` needs the middleware that keeps files."""
    agent = create_agent(
        ScriptedChatModel(replies=[]),
        middleware=[SkillsMiddleware(backend=StateBackend(), sources=["/skills"], strict=True)],
    )
    with pytest.raises(SkillsError, match=r"FilesystemMiddleware\(backend=\.\.\.\)"):
        run(mode, agent)
