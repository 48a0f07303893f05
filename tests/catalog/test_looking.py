"""Runs that go on in another process, or on a thread of another class: what the sources have can still be read."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from deepagents.middleware.skills import SkillsMiddleware as DeepAgentsSkillsMiddleware
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import HumanMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from deepskills import SkillsMiddleware
from deepskills.testing import Reply, ScriptedChatModel, call_tools
from support import FakeBackend, Mode, both_modes, disk, load, run, skill_md, tool_messages, write_files

CONFIG: RunnableConfig = {"configurable": {"thread_id": "1"}}

KINDS = ["absolute", "relative", "relative-virtual", "dotted", "linked", "linked-skill", "by-function"]
every_kind = pytest.mark.parametrize(
    ("kind", "mode"), [(KINDS[0], "sync"), *zip(KINDS, itertools.cycle(["async", "sync"]), strict=False)]
)
"""Every kind of source in one mode, and one of them in both: how a source is named does not depend on the mode."""


@tool
def ask() -> str:
    """Ask a human."""
    return str(interrupt("May I?"))


class Thread:
    """A thread that process after process goes on with, each with a middleware of its own."""

    def __init__(self, mode: Mode, root: Path, kind: str = "absolute") -> None:
        write_files(
            root,
            {
                "skills/alpha/SKILL.md": skill_md("alpha"),
                "skills/alpha/references/guide.md": "The guide.",
                "pool/beta/SKILL.md": skill_md("beta"),
            },
        )
        (root / "skills/beta").symlink_to(root / "pool/beta")
        (root / "link").symlink_to(root / "skills")
        self.mode = mode
        self.root = root
        self.skill = "beta" if kind == "linked-skill" else "alpha"
        self.source: Any = {
            "absolute": "/skills",
            "dotted": "./skills",
            "linked": "/link",
            "linked-skill": "/skills",
            "by-function": "skills",
        }.get(kind, "skills")
        self.is_function = kind == "by-function"
        self.virtual = kind != "relative"
        self.saver = InMemorySaver()
        self.agent: Any = None
        self.model = ScriptedChatModel(replies=[])
        self.backend = FakeBackend(root, virtual_mode=self.virtual)

    def go_on(self, given: Any, *replies: Reply, middleware: AgentMiddleware[Any, Any, Any] | None = None) -> Any:
        """Run the agent in another process."""
        self.model = ScriptedChatModel(replies=list(replies))
        self.backend = FakeBackend(self.root, virtual_mode=self.virtual)
        sources: Any = (lambda _runtime: [self.source]) if self.is_function else [self.source]
        ours = SkillsMiddleware(
            backend=self.backend,
            sources=sources,
            extra_tools=["search_skills", "list_skill_assets", "load_skill_asset"],
        )
        self.agent = create_agent(self.model, tools=[ask], middleware=[middleware or ours], checkpointer=self.saver)
        return run(self.mode, self.agent, given, CONFIG)

    @property
    def loaded(self) -> list[str]:
        names: list[str] = self.agent.get_state(CONFIG).values["skills_loaded"]
        return names


@every_kind
def test_a_load_in_a_run_that_goes_on_in_another_process(mode: Mode, tmp_path: Path, kind: str) -> None:
    """A run that waited for a human loads what its sources have, whichever process it goes on in."""
    thread = Thread(mode, tmp_path, kind)
    thread.go_on("go", call_tools(("ask", {})))

    result = thread.go_on(Command(resume="yes"), call_tools(load(thread.skill), load("nothing")))

    _asked, loaded, unknown = tool_messages(result)
    assert (loaded.status, unknown.status) == ("success", "error")
    assert f"Instructions of {thread.skill}." in loaded.text
    assert thread.loaded == [thread.skill]


@every_kind
def test_a_pin_in_a_run_that_goes_on_in_another_process(mode: Mode, tmp_path: Path, kind: str) -> None:
    """What a user pins while the run waits is loaded when it goes on."""
    thread = Thread(mode, tmp_path, kind)
    thread.go_on("go", call_tools(("ask", {})))
    thread.agent.update_state(CONFIG, {"pinned_skills": [thread.skill]}, as_node="model")

    thread.go_on(Command(resume="yes"), "Done.")

    assert thread.loaded == [thread.skill]
    assert f"Instructions of {thread.skill}." in thread.model.requests[-1].text


@every_kind
def test_a_text_that_was_lost_is_put_back_by_another_process(mode: Mode, tmp_path: Path, kind: str) -> None:
    """A loaded skill whose message is gone is read again, also by a process that has listed nothing yet."""
    thread = Thread(mode, tmp_path, kind)
    thread.go_on("go", call_tools(load(thread.skill)))
    messages = thread.agent.get_state(CONFIG).values["messages"]
    forgotten = [RemoveMessage(id=message.id) for message in messages]
    thread.agent.update_state(CONFIG, {"messages": [*forgotten, HumanMessage("What was.")]})
    thread.go_on("go", call_tools(("ask", {})))

    thread.go_on(Command(resume="yes"), "Done.")

    assert f"Instructions of {thread.skill}." in thread.model.requests[-1].text
    assert thread.loaded == [thread.skill]


@pytest.mark.parametrize(
    ("kind", "mode"), [("absolute", "sync"), ("absolute", "async"), ("relative", "sync"), ("dotted", "async")]
)
def test_the_files_of_a_skill_in_a_run_that_goes_on_in_another_process(mode: Mode, tmp_path: Path, kind: str) -> None:
    """The extra tools read what the sources have, too."""
    thread = Thread(mode, tmp_path, kind)
    thread.go_on("go", call_tools(("ask", {})))
    calls = [
        ("list_skill_assets", {"skill_name": "alpha"}),
        ("load_skill_asset", {"skill_name": "alpha", "relative_path": "references/guide.md"}),
    ]

    result = thread.go_on(Command(resume="yes"), call_tools(*calls))

    assert [answer.text for answer in tool_messages(result)[1:]] == ["- references/guide.md", "The guide."]


@both_modes
def test_a_thread_of_deepagents_own_class_goes_on_with_ours(mode: Mode, tmp_path: Path) -> None:
    """A catalog that another class wrote is not believed; what the sources have is loaded, pinned and found."""
    thread = Thread(mode, tmp_path)
    theirs: Any = DeepAgentsSkillsMiddleware(backend=disk(tmp_path), sources=["/skills"])
    thread.go_on("go", call_tools(("ask", {})), middleware=theirs)
    thread.agent.update_state(CONFIG, {"pinned_skills": ["beta"]}, as_node="model")

    result = thread.go_on(
        Command(resume="yes"), call_tools(load("alpha"), ("search_skills", {"query": "alpha"}), load("nothing"))
    )

    _asked, loaded, found, unknown = tool_messages(result)
    assert [answer.status for answer in (loaded, found, unknown)] == ["success", "success", "error"]
    assert "**alpha**" in found.text
    assert sorted(thread.loaded) == ["alpha", "beta"]


@both_modes
def test_sources_are_listed_once_where_a_path_is_not_accounted_for(mode: Mode, tmp_path: Path) -> None:
    """A process that knows where a listing led does not list again for each load."""
    thread = Thread(mode, tmp_path, "relative")
    thread.go_on("go", call_tools(("ask", {})))

    thread.go_on(Command(resume="yes"), call_tools(load("alpha")), call_tools(load("beta")), call_tools(load("alpha")))

    assert thread.backend.listed.count("skills") == 1
    assert thread.loaded == ["alpha", "beta"]
