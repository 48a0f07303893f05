"""The store's skills in agents with file tools, and what was named: paths that can be read, skills by id, bounds."""

import asyncio
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends import StateBackend
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from store_support import Sessions, draft, draft_with_files, names, seed

from deepskills import generate_skill_md
from deepskills.store import DatabaseSkillAdapter, SkillCreate
from deepskills.store.agent.view import MEMORY_BYTES, Memory, View
from deepskills.store.db.repositories import Filter
from deepskills.testing import ScriptedChatModel, call_tools
from support import Conversation, Mode, load, tool_messages


@pytest.fixture
def kind(mode: Mode) -> str:
    """Run each mode on one database."""
    return {"sync": "sqlite", "async": "postgres"}[mode]


def ask(mode: Mode, agent: Any, user: str, thread: str = "1") -> Any:
    given: Any = {"messages": [("user", "go")]}
    options: Any = {"config": {"configurable": {"thread_id": thread}}, "context": {"user": user}}
    return asyncio.run(agent.ainvoke(given, **options)) if mode == "async" else agent.invoke(given, **options)


def test_file_tools_read_what_a_load_shows(mode: Mode, any_sessions: Sessions) -> None:
    """`read_file`, `ls`, `grep` and `glob` find the files of a loaded skill, for the user of the run alone."""
    files: dict[str, str | bytes] = {"references/guide.md": "A needle in the guide.\n", "logo.bin": b"\xff\x00"}
    seed(any_sessions, "alice", draft_with_files("mine", files))
    adapter: Any = DatabaseSkillAdapter(
        user_id=lambda runtime: runtime.context["user"], db_session_factory=any_sessions
    )
    root = adapter._view.sources_for(type("Runtime", (), {"context": {"user": "alice"}})())[0].path  # noqa: SLF001
    skill = f"{root}/mine"
    calls: list[tuple[str, dict[str, Any]]] = [
        ("read_file", {"file_path": f"{skill}/references/guide.md"}),
        ("read_file", {"file_path": f"{skill}/SKILL.md"}),
        ("ls", {"path": skill}),
        ("grep", {"pattern": "needle", "path": skill, "output_mode": "content"}),
        ("glob", {"pattern": "**/*.md", "path": skill}),
        ("write_file", {"file_path": f"{skill}/SKILL.md", "content": "mine now"}),
        ("write_file", {"file_path": "/notes.md", "content": "own"}),
        ("read_file", {"file_path": "/notes.md"}),
    ]
    turns = [call_tools(load("mine")), *(call_tools(call) for call in calls), AIMessage("done")]
    model = ScriptedChatModel(replies=[*turns, *turns])
    agent = create_deep_agent(
        model,
        backend=adapter.mounted(StateBackend()),
        middleware=[adapter],
        context_schema=dict,
        checkpointer=InMemorySaver(),
    )
    seen = [message.text for message in tool_messages(ask(mode, agent, "alice"))]
    assert f"{skill}/references/guide.md" in seen[0]
    assert "A needle in the guide." in seen[1]
    assert "# mine" in seen[2]
    assert f"{skill}/references" in seen[3]
    assert "needle" in seen[4]
    assert f"{skill}/references/guide.md" in seen[5]
    assert f"{skill}/SKILL.md" in seen[5]
    assert "cannot be changed" in seen[6]
    assert "own" in seen[8]
    others = [message.text for message in tool_messages(ask(mode, agent, "bob", "2"))]
    assert not any("needle in the guide" in text or "# mine" in text for text in others)
    assert "not found" in others[1]


def test_without_a_mount_no_path_is_shown(mode: Mode, any_sessions: Sessions, caplog: pytest.LogCaptureFixture) -> None:
    """Where no file tool leads to the store, a load names files relative to the skill, and no digest of the user."""
    files: dict[str, str | bytes] = {"references/guide.md": "The guide.\n", "scripts/run.py": "x", "data/a.txt": "a"}
    text = generate_skill_md("mine", "Does mine.", "Read {baseDir}/references/guide.md first.\n")
    seed(any_sessions, "alice", SkillCreate.from_skill_md(text, files))
    seed(any_sessions, None, draft("mine"))
    for extra in ((), ("load_skill_asset", "list_skill_assets")):
        adapter: Any = DatabaseSkillAdapter(user_id="alice", db_session_factory=any_sessions, extra_tools=extra)
        root = adapter._view.sources_for(None)[0].path  # noqa: SLF001 - what must not be seen
        asset = ("load_skill_asset", {"skill_name": "mine", "relative_path": "references/guide.md"})
        turns = [call_tools(load("mine")), *([call_tools(asset)] if extra else []), AIMessage("done")]
        for make in (create_agent, create_deep_agent):
            model = ScriptedChatModel(replies=list(turns))
            made: Any = make
            agent = made(model, middleware=[adapter], context_schema=dict, checkpointer=InMemorySaver())
            answers = [message.text for message in tool_messages(ask(mode, agent, "alice"))]
            assert "`references/guide.md`" in answers[0]
            assert "Read ./references/guide.md first." in answers[0]
            assert ("load_skill_asset" in answers[0]) == bool(extra)
            assert all("The guide." in answer for answer in answers[1:])
            seen = "\n".join(str(request.text) for request in model.requests) + caplog.text
            assert root not in seen
            assert root.rpartition("/")[2] not in seen


def test_what_was_named_is_used(mode: Mode, any_sessions: Sessions) -> None:
    """`skill_ids` brings public skills of others too, and leaves a problem for each that is not there."""
    (public, private) = seed(any_sessions, "bob", draft("open", is_public=True), draft("secret"))
    seed(any_sessions, "alice", draft("mine"))
    adapter: Any = DatabaseSkillAdapter(
        user_id="alice", skill_ids=[public.id, private.id], db_session_factory=any_sessions
    )
    talk = Conversation(mode, adapter)
    talk.say("ok")
    assert names(talk.state) == ["open"]
    (problem,) = talk.state["skills_problems"]
    assert str(private.id) in problem["path"]
    assert "may not see it" in problem["path"]


def test_a_user_without_skills(mode: Mode, any_sessions: Sessions, caplog: pytest.LogCaptureFixture) -> None:
    """An empty store is no problem, and nothing is logged about it."""
    adapter: Any = DatabaseSkillAdapter(user_id="alice", db_session_factory=any_sessions)
    talk = Conversation(mode, adapter)
    talk.say("ok")
    assert talk.state["skills_problems"] == []
    assert [record.getMessage() for record in caplog.records if record.name == "deepskills"] == []


def test_memory_is_bounded_in_bytes(any_sessions: Sessions, mode: Mode) -> None:
    """What an adapter remembers of its users' skills stays below its bound, however long their descriptions are."""
    seed(any_sessions, None, *(draft(f"skill-{n}", description="x" * 1_000) for n in range(20)))
    memory = Memory(300_000)
    assert MEMORY_BYTES == 64 * 1024 * 1024
    for number in range(12):
        view = View(user_id=f"user-{number}", session_factory=any_sessions, chosen=Filter(), pins={}, memory=memory)
        backend = view.backend_for(None)
        listing = asyncio.run(backend.als(backend.root)) if mode == "async" else backend.ls(backend.root)
        assert len(listing.entries or []) == 20
        assert memory._held <= 300_000  # noqa: SLF001 - the bound itself
    assert 1 <= len(memory._known) < 12  # noqa: SLF001 - the bound itself
