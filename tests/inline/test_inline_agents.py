"""Skills written in Python in an agent: alone, beside a directory, changing, failing, and a thousand of them."""

import time
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends import CompositeBackend
from langchain.agents import create_agent

from deepskills import InlineBackend, InlineSkill, SkillsManager, SkillsMiddleware
from deepskills.extensions import SkillForks, SkillHooks, SkillModels, ToolPolicy
from deepskills.testing import ScriptedChatModel, call_tools
from support import Conversation, Mode, both_modes, disk, load, run, skill_md, tool_messages, write_files

TONE = "/inline/greeting/references/tone.md"


def greeting(**given: Any) -> InlineSkill:
    return InlineSkill(
        **{
            "name": "greeting",
            "description": "Greets people.",
            "body": "# Greeting\n\nSay hello.\n",
            "files": {"references/tone.md": "Be warm.\n"},
            **given,
        }
    )


@both_modes
def test_inline_skills_are_the_only_source(mode: Mode) -> None:
    """An agent without any disk lists, loads and reads skills written in Python."""
    middleware = SkillsMiddleware(
        backend=InlineBackend([greeting()]), sources=["/"], extra_tools=["list_skill_assets", "load_skill_asset"]
    )
    talk = Conversation(mode, middleware)
    loaded, listed, asset = talk.call(
        load("greeting"),
        ("list_skill_assets", {"skill_name": "greeting"}),
        ("load_skill_asset", {"skill_name": "greeting", "relative_path": "references/tone.md"}),
    )
    assert "**greeting**" in talk.model.requests[0].system
    assert "Say hello." in loaded.text
    assert "`/greeting/references/tone.md`" in loaded.text
    assert "references/tone.md" in listed.text
    assert asset.text == "Be warm.\n"
    assert talk.state["skills_problems"] == []


@both_modes
def test_inline_skills_stand_beside_a_directory(mode: Mode, tmp_path: Path) -> None:
    """Mounted by a composite backend, both kinds are found, loaded, and read by the file tools; writes are refused."""
    write_files(tmp_path, {"skills/on-disk/SKILL.md": skill_md("on-disk")})
    backend = CompositeBackend(default=disk(tmp_path), routes={"/inline/": InlineBackend([greeting()])})
    model = ScriptedChatModel(
        replies=[
            call_tools(load("on-disk"), load("greeting")),
            call_tools(
                ("read_file", {"file_path": TONE}),
                ("write_file", {"file_path": "/inline/greeting/SKILL.md", "content": "mine"}),
                ("edit_file", {"file_path": TONE, "old_string": "a", "new_string": ""}),
                ("grep", {"pattern": "warm", "path": "/inline"}),
                ("glob", {"pattern": "*.md", "path": "/inline"}),
            ),
        ]
    )
    middleware = SkillsMiddleware(backend=backend, sources=["/skills", "/inline"])
    result = run(mode, create_deep_agent(model, backend=backend, middleware=[middleware]))
    on_disk, inline, read, written, edited, found, globbed = tool_messages(result)
    assert "Instructions of on-disk." in on_disk.text
    assert "Say hello." in inline.text
    assert "Be warm." in read.text
    assert "read-only" in written.text
    assert "read-only" in edited.text
    assert TONE in found.text
    assert "/inline/greeting/SKILL.md" in globbed.text


@both_modes
def test_a_body_that_changes_counts_as_changed(mode: Mode) -> None:
    """Loading again brings the new text, once; unchanged text is not loaded twice."""
    texts = ["Version one.\n"]
    skill = greeting(body=lambda: texts[-1])
    talk = Conversation(mode, SkillsMiddleware(backend=InlineBackend([skill]), sources=["/"]))
    assert "Version one." in talk.call(load("greeting"))[0].text
    assert "Version one." not in talk.call(load("greeting"))[0].text
    texts.append("Version two.\n")
    assert "Version two." in talk.call(load("greeting"))[0].text
    assert "Version two." not in talk.call(load("greeting"))[0].text


@both_modes
@pytest.mark.parametrize("error", [ValueError("closed"), FileNotFoundError(2, "No such file or directory", "/x")])
def test_a_function_that_raises_is_a_problem_of_its_skill_alone(mode: Mode, error: Exception) -> None:
    """The other skills work, and the broken one is reported, whatever its function raised."""

    def broken() -> str:
        raise error

    backend = InlineBackend([greeting(name="broken", body=broken), greeting(files={"references/x.md": broken})])
    talk = Conversation(mode, SkillsMiddleware(backend=backend, sources=["/"], extra_tools=["load_skill_asset"]))
    loaded, asset, refused = talk.call(
        load("greeting"),
        ("load_skill_asset", {"skill_name": "greeting", "relative_path": "references/x.md"}),
        load("broken"),
    )
    assert "Say hello." in loaded.text
    assert (asset.status, refused.status) == ("error", "error")
    assert "failed" in asset.text
    problems = talk.state["skills_problems"]
    assert [problem["path"] for problem in problems] == ["/broken/SKILL.md"]
    assert "failed" in problems[0]["message"]


@both_modes
def test_the_whole_frontmatter_works(mode: Mode) -> None:
    """Arguments, visibility, tools, model, hooks and forks of a skill written in Python act as those of a file do."""
    hook = {"matcher": "search_skills", "hooks": [{"type": "prompt", "prompt": "Mind the limits."}]}
    skills = [
        greeting(
            name="rich",
            body="Convert $file.",
            arguments=["file"],
            argument_hint="[file]",
            when_to_use="Whenever a file is mentioned.",
            allowed_tools=["search_skills"],
            disallowed_tools=["list_skill_assets"],
            model="small",
            hooks={"PreToolUse": [hook]},
        ),
        greeting(name="users-own", disable_model_invocation=True),
        greeting(name="models-own", user_invocable=False),
        greeting(name="forked", body="Review it.", context="fork", agent="reviewer"),
    ]
    small = ScriptedChatModel(replies=[call_tools(("search_skills", {"query": "convert"})), "Done."])
    reviewer = create_agent(ScriptedChatModel(replies=["Reviewed."]))
    middleware = SkillsMiddleware(
        backend=InlineBackend(skills),
        sources=["/"],
        slash_commands=True,
        extra_tools=["search_skills", "list_skill_assets"],
        extensions=[
            ToolPolicy(mode="enforce"),
            SkillModels({"small": small}),
            SkillHooks(),
            SkillForks(agents={"reviewer": reviewer}),
        ],
    )
    talk = Conversation(mode, middleware)
    forked, hidden = talk.call(load("forked"), load("users-own"))
    assert forked.text == "Reviewed."
    assert "only the user" in hidden.text.lower()
    first = talk.model.requests[0]
    assert "Whenever a file is mentioned." in first.system
    assert "[file]" in first.system
    assert "users-own" not in first.system
    assert [skill["name"] for skill in middleware.slash_commands_for(talk.state)] == ["forked", "rich", "users-own"]
    talk.say(call_tools(("load_skill", {"skill_name": "rich", "arguments": "a.csv"})))
    assert "Convert a.csv." in small.requests[0].text
    assert "list_skill_assets" not in small.requests[0].tools
    assert "Mind the limits." in small.requests[1].text


def test_a_thousand_are_discovered_as_fast_as_from_disk(tmp_path: Path) -> None:
    """The library's size costs no more in Python than on disk, functions included."""
    text = "word " * 400
    skills = [
        InlineSkill(f"skill-{n:04}", f"Does thing {n}.", (lambda: text) if n % 2 else text, files={"a.md": "x"})
        for n in range(1000)
    ]
    write_files(tmp_path, {f"{s.name}/{path}": s.read(path) for s in skills for path in s.paths})

    def seconds(backend: Any) -> float:
        best = 1e9
        for _ in range(3):
            manager = SkillsManager(backend=backend, sources=["/"])
            started = time.process_time()
            assert len(manager.list_skills()) == 1000
            best = min(best, time.process_time() - started)
        return best

    assert seconds(InlineBackend(skills)) < seconds(disk(tmp_path))
