"""`SkillLock` in real agents: only what a lock lists, byte for byte, is shown, enters a request, is read or runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends import FilesystemBackend
from langgraph.checkpoint.memory import InMemorySaver

from deepskills import SkillsError, SkillsMiddleware
from deepskills.extensions import Preload, SkillForks, SkillLock, SkillScripts
from deepskills.testing import ScriptedChatModel, call_tools
from support import MODES, Conversation, Mode, disk, hand_written_graph, load, run, skill_md, tool_messages, write_files
from support.locks import lock_row

EVIL = "EVIL BYTES"


def locked(root: Path) -> dict[str, Any]:
    """Return a lock of the skills below `root`, as they are now."""
    directories = sorted(path.parent for path in root.glob("*/SKILL.md"))
    return {"version": 1, "skills": {directory.name: lock_row(directory) for directory in directories}}


def library(root: Path) -> dict[str, Any]:
    """Write three skills and return their lock; one of them comes afterwards."""
    write_files(
        root / "skills",
        {
            "good/SKILL.md": skill_md("good"),
            "good/references/guide.md": "the guide",
            "good/scripts/run.py": "print('good script')\n",
            "forked/SKILL.md": skill_md("forked", context="fork"),
        },
    )
    return locked(root / "skills")


def spoil(path: Path) -> None:
    path.write_text(path.read_text(encoding="utf-8") + EVIL, encoding="utf-8")


def seen(talk: Conversation) -> str:
    """Return all that the model was ever sent."""
    return "\n".join(str(message.content) for request in talk.model.requests for message in request.messages)


def codes(talk: Conversation) -> set[tuple[str, str, str]]:
    return {(p["path"], p["code"], p["severity"]) for p in talk.state["skills_problems"]}


@pytest.mark.parametrize("mode", MODES)
def test_each_mismatch_is_caught_at_its_step(tmp_path: Path, mode: Mode) -> None:
    """At the listing, at the load, at an asset, at a script and at what lies beside a script."""
    lock = library(tmp_path)
    skills = tmp_path / "skills"
    write_files(skills, {"stranger/SKILL.md": skill_md("stranger", EVIL), "spoiled/SKILL.md": skill_md("spoiled")})
    lock["skills"] |= {"spoiled": locked(skills)["skills"]["spoiled"]}
    spoil(skills / "spoiled/SKILL.md")
    runs: list[Any] = []

    def runner(*call: Any) -> Any:
        from deepagents.backends.protocol import ExecuteResponse  # noqa: PLC0415 - the answer of this runner alone

        runs.append(call)
        return ExecuteResponse(output="ran", exit_code=0, truncated=False)

    (tmp_path / "lock.json").write_text(json.dumps(lock), encoding="utf-8")
    middleware = SkillsMiddleware(
        backend=disk(tmp_path),
        sources=["/skills"],
        extensions=[SkillScripts(runner=runner), SkillLock(tmp_path / "lock.json")],
        extra_tools=["load_skill_asset", "get_skill_script_path", "search_skills"],
    )
    talk = Conversation(mode, middleware)
    asset = ("load_skill_asset", {"skill_name": "good", "relative_path": "references/guide.md"})
    script = ("run_skill_script", {"skill_name": "good", "script_name": "run.py"})
    path_of = ("get_skill_script_path", {"skill_name": "good", "script_name": "run.py"})
    answers = talk.call(load("stranger"), load("spoiled"), load("good"))
    assert [answer.status for answer in answers] == ["error", "error", "success"]
    assert 'Files of the skill "spoiled" differ from lock.json, so it is not used: `SKILL.md`.' in answers[1].text
    assert codes(talk) == {
        ("/skills/stranger/SKILL.md", "lock-unlisted", "error"),
        ("/skills/spoiled/SKILL.md", "lock-mismatch", "error"),
    }
    assert [answer.status for answer in talk.call(asset, script, path_of)] == ["success"] * 3
    assert len(runs) == 1
    spoil(skills / "good/references/guide.md")
    [answer, ran, _path] = talk.call(asset, script, path_of)
    assert answer.status == "error"
    assert 'Files of the skill "good" differ from lock.json, so it is not used: `references/guide.md`' in str(
        answer.content
    )
    assert ran.status == "error"
    assert "guide.md" in str(ran.content)
    assert len(runs) == 1
    (skills / "good/references/guide.md").write_text("the guide", encoding="utf-8")
    write_files(skills, {"good/scripts/__pycache__/helper.cpython-311.pyc": b"\x00"})
    assert "(added)" in str(talk.call(script)[0].content)
    (skills / "good/scripts/__pycache__/helper.cpython-311.pyc").unlink()
    spoil(skills / "good/scripts/run.py")
    assert {answer.status for answer in talk.call(script, path_of)} == {"error"}
    write_files(skills, {"good/references/new.md": EVIL})
    [answer] = talk.call(("load_skill_asset", {"skill_name": "good", "relative_path": "references/new.md"}))
    assert answer.status == "error"
    # Changed between the listing and the load, on the same thread.
    talk.call(("unload_skill", {"skill_name": "good"}))
    spoil(skills / "good/SKILL.md")
    [answer] = talk.call(load("good"))
    assert answer.status == "error"
    assert EVIL not in seen(talk)
    assert len(runs) == 1


@pytest.mark.parametrize("mode", MODES)
def test_no_way_of_starting_a_skill_passes_by(tmp_path: Path, mode: Mode) -> None:
    """Pins, slash commands, preloads and forks read the same bytes that the lock lists, or nothing."""
    lock = library(tmp_path)
    skills = tmp_path / "skills"

    class Swapping(FilesystemBackend):
        """Swaps the files after the listing."""

        reads = 0

        def download_files(self, paths: list[str]) -> Any:
            if self.reads:
                spoil(skills / "good/SKILL.md")
                spoil(skills / "forked/SKILL.md")
            self.reads += 1
            return super().download_files(paths)

    for given, names in (
        ({"messages": [("user", "go")], "pinned_skills": ["good"]}, []),
        ({"messages": [("user", "/good now")]}, []),
        ({"messages": [("user", "go")]}, ["good"]),
    ):
        backend = Swapping(root_dir=tmp_path, virtual_mode=True)
        extensions = [Preload(names), SkillForks(), SkillLock(lock)]
        middleware = SkillsMiddleware(backend=backend, sources=["/skills"], slash_commands=True, extensions=extensions)
        talk = Conversation(mode, middleware)
        talk.say(call_tools(load("forked")), given=given)
        assert talk.loaded == []
        assert EVIL not in seen(talk)
        assert {code for _path, code, _severity in codes(talk)} >= {"lock-mismatch"}
        library(tmp_path)


@pytest.mark.parametrize("mode", MODES)
def test_a_text_is_put_back_only_if_it_is_the_locked_one(tmp_path: Path, mode: Mode) -> None:
    """A text that was lost, and whose file changed, does not come back in another form in another process."""
    lock = library(tmp_path)
    saver = InMemorySaver()
    config = {"configurable": {"thread_id": "1"}}

    def agent(*replies: Any) -> tuple[ScriptedChatModel, Any]:
        middleware = SkillsMiddleware(backend=disk(tmp_path), sources=["/skills"], extensions=[SkillLock(lock)])
        model = ScriptedChatModel(replies=list(replies))
        return model, create_deep_agent(model, middleware=[middleware], checkpointer=saver)

    first, one = agent(call_tools(load("good")))
    run(mode, one, "go", config)
    assert "Instructions of good" in str(first.requests[-1].messages)
    state = one.get_state(config).values
    carrier = next(m for m in state["messages"] if "Instructions of good" in str(m.content))
    carrier.content = "[cleared]"
    carrier.response_metadata = {"context_editing": {"cleared": True}}
    one.update_state(config, {"messages": [carrier]})
    second, two = agent()
    run(mode, two, "again", config)
    assert "Instructions of good" in str(second.requests[-1].messages)
    spoil(tmp_path / "skills/good/SKILL.md")
    third, three = agent()
    run(mode, three, {"messages": [("user", "once more")], "skills_metadata": None}, config)
    assert EVIL not in str(third.requests[-1].messages)
    assert "Instructions of good" not in str(third.requests[-1].messages)


@pytest.mark.parametrize("mode", MODES)
def test_the_agents_own_file_tools_are_judged(tmp_path: Path, mode: Mode) -> None:
    """`read_file` and `grep` of deepagents show no byte of a skill that the lock does not list."""
    lock = library(tmp_path)
    write_files(tmp_path / "skills", {"stranger/SKILL.md": skill_md("stranger", EVIL), "stranger/x.md": EVIL})
    write_files(tmp_path, {"notes.md": "my notes"})
    middleware = SkillsMiddleware(backend=disk(tmp_path), sources=["/skills"], extensions=[SkillLock(lock)])
    paths = ["/skills/good/SKILL.md", "/skills/good/references/guide.md", "/notes.md"]
    evil = ["/skills/stranger/SKILL.md", "/skills/stranger/x.md", "/skills/good/../stranger/x.md"]
    calls = [("read_file", {"file_path": path}) for path in [*paths, *evil]]
    calls += [("grep", {"pattern": "EVIL", "path": "/", "output_mode": "content"})]
    model = ScriptedChatModel(replies=[call_tools(*calls)])
    agent = create_deep_agent(model, middleware=[middleware], backend=disk(tmp_path))
    result = run(mode, agent)
    answers = tool_messages(result)
    assert [answer.status for answer in answers] == ["success"] * 3 + ["error"] * 4, [a.content for a in answers]
    assert EVIL not in str(model.requests[-1].messages)
    spoil(tmp_path / "skills/good/references/guide.md")
    model = ScriptedChatModel(replies=[call_tools(("read_file", {"file_path": paths[1]}))])
    agent = create_deep_agent(model, middleware=[middleware], backend=disk(tmp_path))
    assert tool_messages(run(mode, agent))[0].status == "error"


def test_warn_uses_and_warns(tmp_path: Path) -> None:
    """With `mode="warn"` everything works, and each difference is a warning."""
    lock = library(tmp_path)
    spoil(tmp_path / "skills/good/SKILL.md")
    write_files(tmp_path / "skills", {"stranger/SKILL.md": skill_md("stranger"), "stranger/a.md": "an asset"})
    middleware = SkillsMiddleware(
        backend=disk(tmp_path),
        sources=["/skills"],
        extensions=[SkillLock(lock, mode="warn")],
        extra_tools=["load_skill_asset"],
    )
    talk = Conversation("sync", middleware)
    asset = ("load_skill_asset", {"skill_name": "stranger", "relative_path": "a.md"})
    assert {answer.status for answer in talk.call(load("good"), load("stranger"), asset)} == {"success"}
    assert {(code, severity) for _, code, severity in codes(talk)} == {
        ("lock-mismatch", "warning"),
        ("lock-unlisted", "warning"),
    }


def test_a_lock_that_cannot_be_used_is_an_error_at_once(tmp_path: Path) -> None:
    """Not a run without a lock: the constructor says what is wrong."""
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    for given in (tmp_path / "missing.json", tmp_path / "broken.json", {"version": 2, "skills": {}}, {"x": 1}):
        with pytest.raises(SkillsError):
            SkillLock(given)
    with pytest.raises(ValueError, match="refuse"):
        SkillLock({}, mode="maybe")  # type: ignore[arg-type]


def test_a_graph_of_ones_own_is_guarded_too(tmp_path: Path) -> None:
    """Where only the tools are used, what they read is still judged."""
    lock = library(tmp_path)
    middleware = SkillsMiddleware(
        backend=disk(tmp_path), sources=["/skills"], extensions=[SkillLock(lock)], extra_tools=["load_skill_asset"]
    )
    asset = ("load_skill_asset", {"skill_name": "good", "relative_path": "references/guide.md"})

    def spoil_and_ask(_messages: Any) -> Any:
        spoil(tmp_path / "skills/good/references/guide.md")
        return call_tools(asset)

    model = ScriptedChatModel(replies=[call_tools(load("good"), asset), spoil_and_ask])
    result = run("sync", hand_written_graph(model, middleware))
    assert [answer.status for answer in tool_messages(result)] == ["success", "success", "error"]
