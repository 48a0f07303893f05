"""Approvals of served skills: asked before anything is read, bound to content, and the only way to a grant."""

from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from mcp_support import REPORT, book, host, skill

from deepskills import SkillsMiddleware
from deepskills.extensions import SkillApproval, SkillHooks, SkillModels
from deepskills.testing import ScriptedChatModel, call_tools
from support import Mode, load, run, tool_messages, unload

GRANTS = ("tools", "hooks", "scripts", "model")


@tool
def execute(command: str) -> str:
    """Run a command."""
    return f"ran {command}"


@tool
def secret_tool() -> str:
    """Return a secret."""
    return "the secret"


class Talk:
    """An agent with approvals, on one thread."""

    def __init__(self, mode: Mode, skills: Any, *extensions: Any, thread: str = "one", store: Any = None) -> None:
        self.mode = mode
        self.config = {"configurable": {"thread_id": thread}}
        self.model = ScriptedChatModel(replies=[])
        middleware = SkillsMiddleware(
            backend=skills,
            sources=["/docs"],
            tools=[secret_tool],
            extensions=extensions,
            extra_tools=["load_skill_asset"],
        )
        self.agent: Any = create_agent(
            self.model, tools=[execute], middleware=[middleware], checkpointer=InMemorySaver(), store=store
        )
        self.result: dict[str, Any] = {}
        self._told = 0

    def call(self, *calls: tuple[str, dict[str, Any]], resume: Any = None) -> list[str]:
        if resume is None:
            called = len(self.model.requests)
            self.model.replies = [*([self.model.fallback] * called), call_tools(*calls)]
        self.result = run(self.mode, self.agent, "go" if resume is None else Command(resume=resume), self.config)
        answers = [str(message.text) for message in tool_messages(self.result)]
        new, self._told = answers[self._told :], len(answers)
        return new

    @property
    def asked(self) -> list[dict[str, Any]]:
        return [item.value for item in self.result.get("__interrupt__", [])]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_approval_is_asked_before_the_file_is_read(mode: Mode, tmp_path: Path) -> None:
    """The question shows label, URI and every file; nothing is read before the answer; the store remembers content."""
    said = book(tmp_path, ttl=0, skills={REPORT: skill(files={"a.md": "A"})})
    store = InMemoryStore()
    with host({"docs": said}) as skills:
        talk = Talk(mode, skills, SkillApproval(), store=store)
        assert talk.call(load("docs:report")) == []
        assert said.requests() == ["skills/list"]
        [question] = talk.asked
        assert question["source"] == f"mcp:docs {REPORT}"
        assert (question["name"], set(question["files"])) == ("docs:report", {"SKILL.md", "a.md"})
        [refused] = talk.call(resume={"type": "reject", "message": "not this one"})
        assert "not this one" in refused
        assert "resources/read" not in said.requests()
        talk.call(load("docs:report"))
        [loaded] = talk.call(resume={"type": "approve"})
        assert "Follow the template." in loaded
        assert said.requests().count("resources/read") == 1
        [asset] = talk.call(("load_skill_asset", {"skill_name": "docs:report", "relative_path": "a.md"}))
        assert asset == "A"
        other = Talk(mode, skills, SkillApproval(), thread="two", store=store)
        assert "Follow the template." in other.call(load("docs:report"))[0]
        assert other.asked == []
        said.write(skills={REPORT: skill(files={"a.md": "B"})})
        third = Talk(mode, skills, SkillApproval(), thread="three", store=store)
        assert third.call(load("docs:report")) == []
        assert third.asked[0]["digest"] != question["digest"]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_only_what_was_granted_takes_effect(mode: Mode, tmp_path: Path) -> None:
    """Each of the four grants brings its own part of the frontmatter to life, and no other."""
    hooks = {"PreToolUse": [{"matcher": "execute", "hooks": [{"type": "python", "handler": "spy"}]}]}
    fields = {"hooks": hooks, "model": "big", "metadata": {"include_tools": "secret_tool"}}
    said = book(tmp_path, skills={REPORT: skill(fields=fields)})
    for grant in ("", *GRANTS):
        seen: list[str] = []
        big = ScriptedChatModel(replies=[])

        def spy(request: Any, seen: list[str] = seen) -> None:
            seen.append(request.tool_call["name"])

        hooked = SkillHooks(handlers={"spy": spy})
        with host({"docs": said}) as skills:
            talk = Talk(mode, skills, SkillApproval(grants=GRANTS), hooked, SkillModels({"big": big}))
            talk.call(load("docs:report"))
            assert talk.asked[0]["grants"] == list(GRANTS)
            talk.call(resume={"type": "approve", "grants": [grant] if grant else []})
            ran = talk.call(("execute", {"command": "x"}))
            if grant == "scripts":
                assert (ran, talk.asked) == (["ran x"], [])
            else:
                assert (ran, len(talk.asked)) == ([], 1), grant
                talk.call(resume={"type": "approve"})
            assert seen == (["execute"] if grant == "hooks" else []), grant
            offered = [name for request in [*talk.model.requests, *big.requests] for name in request.tools]
            assert ("secret_tool" in offered) == (grant == "tools"), grant
            assert bool(big.requests) == (grant == "model"), grant


def test_an_approval_of_a_dynamic_skill_is_never_remembered(tmp_path: Path) -> None:
    """Every load asks, with or without a store, for nobody can tell what the next one would bring."""
    said = book(tmp_path, skills={REPORT: skill(files={"a.md": "A"}, claims={"resources": "dynamic"})})
    with host({"docs": said}, dynamic=True) as skills:
        talk = Talk("sync", skills, SkillApproval(), store=InMemoryStore())
        for _ in range(2):
            assert talk.call(load("docs:report")) == []
            assert len(talk.asked) == 1
            assert "Follow the template." in talk.call(resume={"type": "approve"})[0]
            [asset] = talk.call(("load_skill_asset", {"skill_name": "docs:report", "relative_path": "a.md"}))
            assert asset == "A"
            talk.call(unload("docs:report"))
