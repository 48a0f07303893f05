"""The store's skills in agents with file tools, and what was named: paths that can be read, skills by id, bounds."""

import asyncio
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends import StateBackend
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import ToolRuntime
from store_support import Sessions, draft, draft_with_files, names, seed

from deepskills import generate_skill_md
from deepskills.store import DatabaseSkillAdapter, SkillCreate
from deepskills.store.agent.mount import MAX_SEARCHED_BYTES, RunView
from deepskills.store.agent.provider import MEMORY_BYTES
from deepskills.store.agent.reader import AgentReader
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
    skill = "/skills/mine"
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


def test_the_user_of_a_file_tool(mode: Mode, any_sessions: Sessions) -> None:
    """File tools ask whose run it is with the runtime that the adapter's hooks give; a failure is the tool's answer."""
    seed(any_sessions, "alice", draft_with_files("mine", {"references/guide.md": "A needle.\n"}))
    runtimes: list[Any] = []

    def user_of(runtime: Any) -> str:
        runtimes.append(runtime)
        if any(getattr(message, "name", None) == "load_skill" for message in runtime.state["messages"]) and fails:
            raise LookupError("no such user")
        user: str = runtime.config["configurable"]["user"]
        return user

    calls: list[tuple[str, dict[str, Any]]] = [
        ("ls", {"path": "/skills"}),
        ("read_file", {"file_path": "/skills/mine/references/guide.md"}),
        ("grep", {"pattern": "needle"}),
        ("grep", {"pattern": "needle", "path": "/skills"}),
        ("glob", {"pattern": "**/guide.md"}),
        ("glob", {"pattern": "*.md", "path": "/skills"}),
        ("read_file", {"file_path": "/notes.md"}),
    ]
    turns = [call_tools(load("mine")), *(call_tools(call) for call in calls), AIMessage("done")]
    for fails in (False, True):
        runtimes.clear()
        adapter: Any = DatabaseSkillAdapter(user_id=user_of, db_session_factory=any_sessions)
        agent: Any = create_deep_agent(
            ScriptedChatModel(replies=list(turns)), backend=adapter.mounted(StateBackend()), middleware=[adapter]
        )
        given: Any = {"messages": [("user", "go")]}
        config: Any = {"configurable": {"user": "alice"}}
        state = asyncio.run(agent.ainvoke(given, config)) if mode == "async" else agent.invoke(given, config)
        answers = [message.text for message in tool_messages(state)][1:]
        assert {type(runtime) for runtime in runtimes} == {ToolRuntime}
        if fails:
            assert all("cannot be read now: LookupError: no such user" in answer for answer in answers[:-1])
        else:
            assert "/skills/mine" in answers[0]
            assert "A needle." in answers[1]
            assert all("/skills/mine/references/guide.md" in answer for answer in answers[2:-1])
        assert "/notes.md" in answers[-1]


def test_file_tools_show_what_the_model_may_see(mode: Mode, any_sessions: Sessions) -> None:
    """Skills that author or operator hide are not there for file tools, unless the user started them."""
    user_only = generate_skill_md("quiet", "Q.", "A needle.\n", {"disable-model-invocation": True})
    seed(any_sessions, "alice", draft("mine"), draft("off", content="A needle."), SkillCreate.from_skill_md(user_only))
    seed(any_sessions, None, draft("mine"))
    adapter: Any = DatabaseSkillAdapter(
        user_id="alice", db_session_factory=any_sessions, visibility={"off": "off"}, slash_commands=True
    )
    calls: list[tuple[str, dict[str, Any]]] = [
        ("ls", {"path": "/skills"}),
        ("grep", {"pattern": "needle", "path": "/skills"}),
        ("glob", {"pattern": "**/SKILL.md", "path": "/skills"}),
        ("read_file", {"file_path": "/skills/quiet/SKILL.md"}),
        ("ls", {"path": "/skills/quiet"}),
        ("read_file", {"file_path": "/skills/off/SKILL.md"}),
    ]
    for start in ("go", "/quiet"):
        model = ScriptedChatModel(replies=[*(call_tools(call) for call in calls), AIMessage("done")])
        agent: Any = create_deep_agent(model, backend=adapter.mounted(StateBackend()), middleware=[adapter])
        given: Any = {"messages": [("user", start)]}
        state = asyncio.run(agent.ainvoke(given)) if mode == "async" else agent.invoke(given)
        answers = [message.text for message in tool_messages(state)]
        assert all("/skills/mine" in answers[number] for number in (0, 2))
        assert not any("/skills/off" in answer or "~" in answer for answer in answers[:3])
        assert [("quiet" in answer) for answer in answers[:3]] == [start == "/quiet"] * 3
        assert [("not found" in answer.replace("_", " ")) for answer in answers[3:]] == [
            start == "go",
            start == "go",
            True,
        ]


def test_a_search_reads_so_many_bytes(mode: Mode, any_sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    """`grep` goes by the sizes of files before it reads any; what it left out is told."""
    large = {f"{letter}.md": "needle " * 100 for letter in "abc"}
    seed(any_sessions, "alice", draft_with_files("mine", large), draft("long", content="needle " * 500))
    adapter: Any = DatabaseSkillAdapter(user_id="alice", db_session_factory=any_sessions)
    read: list[str] = []
    original = AgentReader.content

    async def content(self: AgentReader, head: Any, path: str, *rest: Any) -> Any:
        read.append(path)
        return await original(self, head, path, *rest)

    monkeypatch.setattr(AgentReader, "content", content)
    monkeypatch.setattr("deepskills.store.agent.mount.MAX_SEARCHED_BYTES", 1_600)
    calls = [call_tools(("grep", {"pattern": "needle", "path": path})) for path in ("/skills/mine", "/skills")]
    agent: Any = create_deep_agent(
        ScriptedChatModel(replies=[*calls, "done"]), backend=adapter.mounted(StateBackend()), middleware=[adapter]
    )
    given: Any = {"messages": [("user", "go")]}
    state = asyncio.run(agent.ainvoke(given)) if mode == "async" else agent.invoke(given)
    inside, above = [message.text for message in tool_messages(state)]
    assert read == ["a.md", "b.md"]
    assert [f"/skills/mine/{letter}.md" in inside for letter in "abc"] == [True, True, False]
    assert "/skills/long" not in above
    assert MAX_SEARCHED_BYTES == 8 * 1024 * 1024
    shelf: Any = adapter.mounted(StateBackend()).routes["/skills/"]
    monkeypatch.setattr(shelf, "_view", lambda _hidden: RunView(adapter.providers[0], "alice"))
    found = asyncio.run(shelf.agrep("needle", "/mine")) if mode == "async" else shelf.grep("needle", "/mine")
    assert (len(found.matches), found.truncated) == (2, True)


def test_a_mounted_backend_without_the_adapter(mode: Mode, any_sessions: Sessions) -> None:
    """An agent that has the mounted backend alone reads by the same rules, with a runtime of the same kind."""
    seed(any_sessions, "alice", draft("mine"))
    seen: list[Any] = []

    def user_of(runtime: Any) -> str:
        seen.append(runtime)
        user: str = runtime.config["configurable"]["user"]
        return user

    adapter: Any = DatabaseSkillAdapter(user_id=user_of, db_session_factory=any_sessions)
    model = ScriptedChatModel(replies=[call_tools(("read_file", {"file_path": "/skills/mine/SKILL.md"})), "done"])
    agent: Any = create_deep_agent(model, backend=adapter.mounted(StateBackend()))
    given: Any = {"messages": [("user", "go")]}
    config: Any = {"configurable": {"user": "alice"}}
    state = asyncio.run(agent.ainvoke(given, config)) if mode == "async" else agent.invoke(given, config)
    assert "# mine" in tool_messages(state)[0].text
    assert {type(runtime) for runtime in seen} == {ToolRuntime}
    assert "cannot be read now" in str(adapter.mounted(StateBackend()).ls("/skills/").error), "outside a run"


def test_problems_name_the_store(mode: Mode, any_sessions: Sessions, caplog: pytest.LogCaptureFixture) -> None:
    """Requests, log, problems and checkpoints hold nothing of a user; problems name the label, or a mounted path."""
    text = generate_skill_md("mine", "Does mine.", "Read {baseDir}/a.md.\n", {"metadata": {"requires": "nothing"}})
    (mine,) = seed(any_sessions, "alice", SkillCreate.from_skill_md(text, {"scripts/a.py": "x"}))
    (same, _) = seed(any_sessions, None, draft("mine"), draft("ours"))
    for is_mounted in (False, True):
        adapter: Any = DatabaseSkillAdapter(
            user_id=lambda runtime: runtime.context["user"],
            db_session_factory=any_sessions,
            extra_tools=["get_skill_script_path"],
        )
        backend = adapter.mounted(StateBackend()) if is_mounted else StateBackend()
        script = ("get_skill_script_path", {"skill_name": "mine", "script_name": "a.py"})
        model = ScriptedChatModel(replies=[call_tools(load("mine")), call_tools(script), "done", "bobs turn"])
        agent = create_deep_agent(
            model, backend=backend, middleware=[adapter], context_schema=dict, checkpointer=InMemorySaver()
        )
        result = ask(mode, agent, "alice")
        answers = [message.text for message in tool_messages(result)]
        assert ("/skills/mine/scripts/a.py" if is_mounted else "has no path by which it runs") in answers[1]
        state: Any = agent.get_state({"configurable": {"thread_id": "1"}}).values
        told = {found["code"]: found for found in state["skills_problems"]}
        place = "/skills/mine" if is_mounted else f"skill://Database/{mine.id}"
        assert told["requires-missing"]["path"] == f"{place}/SKILL.md"
        assert told["skill-duplicate"]["path"] == f"skill://Database/{same.id}/SKILL.md"
        assert f"{place}/SKILL.md" in told["skill-duplicate"]["message"]
        ask(mode, agent, "bob")
        state = agent.get_state({"configurable": {"thread_id": "1"}}).values
        # Where both lie at one path too: what alice loaded is not bob's.
        assert "skill-gone" in {found["code"] for found in state["skills_problems"]}
        assert state["skills_loaded"] == []
        shown = "\n".join(str(request.text) for request in model.requests)
        assert "/a.md" not in model.requests[-1].text
        assert "skill://" not in shown
        assert "alice" not in shown + caplog.text + str(state)


def test_failures_in_the_log(
    mode: Mode, any_sessions: Sessions, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A skill that cannot be read when it is loaded is named in the log by its address, which the model is not told."""
    (mine,) = seed(any_sessions, "alice", draft("mine"))
    adapter: Any = DatabaseSkillAdapter(user_id="alice", db_session_factory=any_sessions)
    talk = Conversation(mode, adapter)
    talk.say("ok")

    async def nothing(*_arguments: Any) -> dict[Any, bytes]:
        return {}

    monkeypatch.setattr(AgentReader, "documents", nothing)
    (answer,) = talk.call(load("mine"))
    assert f"Cannot read skill 'mine' at skill://Database/{mine.id}/SKILL.md" in caplog.text
    assert "no longer in the store" in answer.text
    assert "skill://" not in answer.text


def test_without_a_mount_no_path_is_shown(mode: Mode, any_sessions: Sessions) -> None:
    """Where no file tool leads to the store, a load names files relative to the skill."""
    files: dict[str, str | bytes] = {"references/guide.md": "The guide.\n", "scripts/run.py": "x", "data/a.txt": "a"}
    text = generate_skill_md("mine", "Does mine.", "Read {baseDir}/references/guide.md first.\n")
    seed(any_sessions, "alice", SkillCreate.from_skill_md(text, files))
    seed(any_sessions, None, draft("mine"))
    for extra in ((), ("load_skill_asset", "list_skill_assets")):
        adapter: Any = DatabaseSkillAdapter(user_id="alice", db_session_factory=any_sessions, extra_tools=extra)
        asset = ("load_skill_asset", {"skill_name": "mine", "relative_path": "references/guide.md"})
        turns = [call_tools(load("mine")), *([call_tools(asset)] if extra else []), AIMessage("done")]
        for make in (create_agent, create_deep_agent):
            model = ScriptedChatModel(replies=list(turns))
            made: Any = make
            agent = made(model, middleware=[adapter], context_schema=dict, checkpointer=InMemorySaver())
            answers = [message.text for message in tool_messages(ask(mode, agent, "alice"))]
            assert ("`references/guide.md`" in answers[0]) == bool(extra)
            assert ("further files, which no tool here can read" in answers[0]) == (not extra)
            assert "Read ./references/guide.md first." in answers[0]
            assert ("load_skill_asset" in answers[0]) == bool(extra)
            assert all("The guide." in answer for answer in answers[1:])
            assert "skill://" not in "\n".join(str(request.text) for request in model.requests)
            assert "/skills" not in answers[0]


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
    assert (problem["code"], problem["path"]) == ("skill-not-in-store", "skill_ids")
    assert f"The skill {private.id} is not in the store, or this user may not see it" in problem["message"]
    assert "`skill_ids`" in problem["message"]
    pinned: Any = DatabaseSkillAdapter(user_id="bob", versions={"open": 999, "x": 1}, db_session_factory=any_sessions)
    talk = Conversation(mode, pinned)
    talk.say("ok")
    talk.say("ok")
    assert names(talk.state) == ["secret"]
    told = talk.state["skills_problems"]
    assert [(found["code"], found["path"]) for found in told] == [("skill-not-in-store", "versions")] * 2
    assert "'open' is pinned to revision 999, which is not in the store" in told[0]["message"]


def test_a_user_without_skills(mode: Mode, any_sessions: Sessions, caplog: pytest.LogCaptureFixture) -> None:
    """An empty store is no problem: nothing is logged about it, and the model is told of no directory to fill."""
    adapter: Any = DatabaseSkillAdapter(user_id="alice", db_session_factory=any_sessions)
    talk = Conversation(mode, adapter)
    talk.say("ok")
    told = talk.model.requests[-1].system
    assert not any(word in told.lower() for word in ("/skills", "director", "create", "folder")), told
    assert talk.state["skills_problems"] == []
    for backend in (StateBackend(), adapter.mounted(StateBackend())):
        # With tools that write files, the section says where skills can be created.
        model = ScriptedChatModel(replies=["done"])
        agent = create_deep_agent(model, backend=backend, middleware=[adapter], context_schema=dict)
        ask(mode, agent, "alice")
        assert "(No skills yet.)" in model.requests[0].system
        assert "/skills" not in model.requests[0].system
    assert [record.getMessage() for record in caplog.records if record.name == "deepskills"] == []


def test_memory_is_bounded_in_bytes(any_sessions: Sessions, mode: Mode) -> None:
    """What an adapter remembers of its users' skills stays below its bound, however long their descriptions are."""
    seed(any_sessions, None, *(draft(f"skill-{n}", description="x" * 1_000) for n in range(20)))
    assert MEMORY_BYTES == 64 * 1024 * 1024
    adapter: Any = DatabaseSkillAdapter(
        user_id=lambda runtime: runtime.context["user"], db_session_factory=any_sessions, memory_bytes=300_000
    )
    for number in range(12):
        talk = Conversation(mode, adapter)
        talk.say("ok", context={"user": f"user-{number}"})
        assert len(names(talk.state)) == 20
    # Texts count.
    assert 1 <= len(adapter.providers[0]._seen) <= 300_000 // (20 * 2 * 1_000)  # noqa: SLF001 - the bound itself
