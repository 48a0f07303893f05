"""Mistakes of configuration: each says what is wrong, with which value, and what to write instead."""

import importlib
import importlib.metadata
import inspect
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends import CompositeBackend, FilesystemBackend, StateBackend
from langchain.agents import create_agent
from langchain.agents.middleware import TodoListMiddleware

import deepskills
from deepskills import OptionalSource, SkillsError, SkillsManager, SkillsMiddleware
from deepskills.extensions import SkillScripts, SkillUsage
from deepskills.testing import ScriptedChatModel
from support import Conversation, Mode, both_modes, disk, load, run, skill_md, write_files


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
    table: dict[str, str] = vars(deepskills)["_ELSEWHERE"]
    elsewhere = {name: place for place, names in table.items() for name in names.split()}
    assert {name for name, place in elsewhere.items() if place == "deepskills.extensions"} == set(extensions)
    for name, place in elsewhere.items():
        if place != "deepskills.mcp":  # which needs a package of its own
            assert name in importlib.import_module(place).__all__, name
    assert not hasattr(deepskills, "SkillNobodyWrote")


def test_a_missing_source_says_how_it_may_be_missing(tmp_path: Path) -> None:
    """It is a warning, and with `strict=True` an error, which says what to do: create it, or make it optional."""
    write_files(tmp_path, {"skills/a/SKILL.md": skill_md("a")})
    backend = disk(tmp_path)
    talk = Conversation("sync", SkillsMiddleware(backend=backend, sources=["/skills", "/mine"]))
    talk.say()
    [problem] = talk.state["skills_problems"]
    assert (problem["path"], problem["code"], problem["severity"]) == ("/mine", "source-missing", "warning")
    assert "OptionalSource" in problem["message"]
    sources: list[Any] = ["/skills", OptionalSource("/mine")]
    Conversation("sync", SkillsMiddleware(backend=backend, sources=sources, strict=True)).say()
    with pytest.raises(SkillsError, match=r"/mine: source-missing: .*OptionalSource.*virtual_mode"):
        Conversation("sync", SkillsMiddleware(backend=backend, sources=["/skills", "/mine"], strict=True)).say()


@both_modes
def test_a_path_of_the_disk_on_a_virtual_backend_says_what_to_write(mode: Mode, tmp_path: Path) -> None:
    """The commonest wrong path is the one on the disk: the problem has the path as the backend knows it."""
    write_files(tmp_path, {"skills/a/SKILL.md": skill_md("a")})
    virtual = FilesystemBackend(tmp_path, virtual_mode=True)
    for source, hint in ((f"{tmp_path}/skills", "write `/skills`"), ("/elsewhere/skills", "write the path below it")):
        for backend in (virtual, CompositeBackend(default=virtual, routes={})):
            talk = Conversation(mode, SkillsMiddleware(backend=backend, sources=[source]))
            talk.say()
            [problem] = talk.state["skills_problems"]
            assert hint in problem["message"]
            assert "virtual_mode" in problem["message"]
    real = FilesystemBackend(tmp_path, virtual_mode=False)
    talk = Conversation(mode, SkillsMiddleware(backend=real, sources=["/elsewhere/skills"]))
    talk.say()
    assert "virtual_mode" not in talk.state["skills_problems"][0]["message"]


@both_modes
def test_a_file_behind_a_link_that_leads_out_says_so(mode: Mode, tmp_path: Path) -> None:
    """A code of deepagents' says nothing to an author; the usual cause does. The other skills are used."""
    root = tmp_path / "root"
    write_files(tmp_path, {"root/skills/a/SKILL.md": skill_md("a"), "out/SKILL.md": skill_md("out")})
    for name, target in (("lost", tmp_path / "nowhere"), ("out", tmp_path / "out/SKILL.md")):
        (root / "skills" / name).mkdir()
        (root / "skills" / name / "SKILL.md").symlink_to(target)
    chat = Conversation(mode, SkillsMiddleware(backend=disk(root), sources=["/skills"]))
    chat.say()
    assert [skill["name"] for skill in chat.state["skills_metadata"]] == ["a"]
    problems = chat.state["skills_problems"]
    assert [(found["path"], found["code"]) for found in problems] == [
        ("/skills/lost/SKILL.md", "skill-unreadable"),
        ("/skills/out/SKILL.md", "skill-unreadable"),
    ]
    assert all("a link that leads nowhere or out of its root" in found["message"] for found in problems)


def test_a_class_of_a_backend_says_to_make_an_instance() -> None:
    """`backend=StateBackend` fails where it is written, and not in mid-run."""
    wrong: Any = StateBackend
    for kind in (SkillsMiddleware, SkillsManager):
        with pytest.raises(TypeError, match=r"got the class StateBackend; write backend=StateBackend\(\.\.\.\)"):
            kind(backend=wrong, sources=["/skills"])


def test_an_unknown_keyword_names_the_closest_parameter() -> None:
    """A slip in a name says which parameter was meant, in subclasses too; a name like none lists them."""

    class Own(SkillsMiddleware):
        def __init__(self, **options: Any) -> None:
            super().__init__(backend=StateBackend(), **options)

    with pytest.raises(TypeError, match=r"Own has no parameter source; did you mean sources\?"):
        Own(source=["/skills"])
    options: dict[str, Any] = {"backend": StateBackend(), "sources": ["/skills"], "max_loaded_skill": 3}
    with pytest.raises(TypeError, match=r"did you mean max_loaded_skills\?"):
        SkillsMiddleware(**options)
    with pytest.raises(TypeError, match="SkillsManager has no parameter zzz; it takes backend, sources, max_depth"):
        SkillsManager.from_directory("x", zzz=1)
    with pytest.raises(TypeError, match="sources"):
        SkillsMiddleware(backend=StateBackend())  # type: ignore[call-arg]
    assert "max_loaded_skills" in inspect.signature(SkillsMiddleware).parameters


@both_modes
def test_pins_that_are_no_list_are_one_problem(mode: Mode, tmp_path: Path) -> None:
    """A pin given as one text pins nothing, and the problem says what to write; the next run begins without it."""
    write_files(tmp_path, {"skills/a/SKILL.md": skill_md("a")})
    talk = Conversation(mode, SkillsMiddleware(backend=disk(tmp_path), sources=["/skills"]))
    for pins, code, words in (
        ("alpha", "pins-not-a-list", "pinned_skills=['alpha']"),
        (5, "pins-not-a-list", "is int, not a list"),
        (["nobody"], "pin-unknown", "`nobody`"),
        (["aa"], "pin-unknown", "`aa` (did you mean `a`?), so nothing was pinned"),
    ):
        talk.say(given={"messages": [("user", "go")], "pinned_skills": pins})
        [problem] = talk.state["skills_problems"]
        assert problem["code"] == code
        assert words in problem["message"]
        assert talk.state["skills_loaded"] == []
    talk.say()
    assert talk.state["skills_problems"] == []
    talk.say(given={"messages": [("user", "go")], "pinned_skills": ["a"]})
    assert (talk.state["skills_loaded"], talk.state["skills_problems"]) == (["a"], [])


@both_modes
def test_no_slot_at_all_is_said_as_such(mode: Mode, tmp_path: Path) -> None:
    """With `max_loaded_skills=0` nobody is advised to unload: no skill can be loaded here."""
    write_files(tmp_path, {"skills/a/SKILL.md": skill_md("a")})
    talk = Conversation(mode, SkillsMiddleware(backend=disk(tmp_path), sources=["/skills"], max_loaded_skills=0))
    answer = talk.call(load("a"))[0].text
    assert "no skill can be loaded here" in answer
    assert "unload" not in answer + talk.model.requests[0].system


@both_modes
def test_tools_for_skills_come_with_the_first_skill(mode: Mode, tmp_path: Path) -> None:
    """Neither `load_skill` nor `unload_skill` is offered while there is no skill and none is loaded."""
    write_files(tmp_path, {"skills/README.md": ""})
    talk = Conversation(mode, SkillsMiddleware(backend=disk(tmp_path), sources=["/skills"], refresh="run"))
    talk.say()
    assert not {"load_skill", "unload_skill"} & set(talk.model.requests[-1].tools)
    write_files(tmp_path, {"skills/a/SKILL.md": skill_md("a")})
    talk.say()
    assert {"load_skill", "unload_skill"} <= set(talk.model.requests[-1].tools)


@both_modes
def test_a_template_that_is_set_later_is_checked_then(mode: Mode, tmp_path: Path) -> None:
    """`system_prompt_template` may be set on the instance; a wrong one is refused there and changes nothing."""
    write_files(tmp_path, {"skills/a/SKILL.md": skill_md("a")})
    middleware: Any = SkillsMiddleware(backend=disk(tmp_path), sources=["/skills"])
    talk = Conversation(mode, middleware)
    middleware.system_prompt_template = "Mine: {skills_locations} {skills_list}"
    with pytest.raises(ValueError, match=r"lacks the slot\(s\) \{skills_list\}"):
        middleware.system_prompt_template = "Mine: {skills_locations}"
    talk.say()
    assert talk.model.requests[-1].system.startswith("Mine: ")
    assert middleware.system_prompt_template == "Mine: {skills_locations} {skills_list}"
    middleware.system_prompt_template = None
    talk.say()
    assert talk.model.requests[-1].system == ""


def test_a_missing_directory_says_so_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A manager of a directory that does not exist lists nothing, and one line of the log says why."""
    monkeypatch.chdir(tmp_path)
    manager = SkillsManager.from_directory("nope")
    assert (manager.list_skills(), manager.list_skills()) == ([], [])
    [line] = [record for record in caplog.records if record.name == "deepskills"]
    assert line.levelname == "WARNING"
    assert f"{tmp_path}/nope: source-missing" in line.getMessage()


def test_the_package_shows_its_names() -> None:
    """`dir` gives the public names and the version, and nothing that the module is made of."""
    assert dir(deepskills) == sorted([*deepskills.__all__, "__version__"])
    assert deepskills.__version__ == importlib.metadata.version("deepskills")


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
        # An empty list has no sources that could vanish.
        run(mode, create_deep_agent(model, backend=backend, middleware=[skills], skills=[]))
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
