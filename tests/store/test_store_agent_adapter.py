"""The adapter in real agents: each run has the current skills of its user, and no one else's."""

import asyncio
import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from blockbuster import BlockBuster
from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from sqlalchemy import update
from sqlalchemy.ext.asyncio import async_sessionmaker
from store_support import (
    BINARY,
    Sessions,
    draft,
    draft_with_files,
    names,
    new_engine,
    on_both,
    on_postgres,
    on_sqlite,
    seed,
    with_service,
)

from deepskills import SkillsMiddleware
from deepskills.store import DatabaseSkillAdapter, Skill, SkillUpdate, create_store_engine
from deepskills.testing import ScriptedChatModel, call_tools
from support import Conversation, Mode, load, run, scaled, tool_messages, unload


@pytest.fixture
def kind(mode: Mode) -> str:
    """Run each mode on one database; `test_store_agent_reader.py` has the other pairs."""
    return {"sync": "sqlite", "async": "postgres"}[mode]


def user_of_context(runtime: Any) -> str | None:
    user: str | None = runtime.context["user"]
    return user


def errors(state: dict[str, Any]) -> list[str]:
    return [problem["code"] for problem in state["skills_problems"] if problem["severity"] == "error"]


def test_a_fixed_user(mode: Mode, any_sessions: Sessions) -> None:
    """An agent has the skills of its user with public and system ones, and loads and unloads them."""
    seed(any_sessions, "alice", draft_with_files("mine", {"scripts/run.py": "x", "LICENSE": "MIT"}, tags=["t"]))
    seed(any_sessions, "bob", draft("hidden"), draft("shared", is_public=True))
    seed(any_sessions, None, draft("ours"))
    adapter: Any = DatabaseSkillAdapter(user_id="alice", db_session_factory=any_sessions, include_public=True)
    talk = Conversation(mode, adapter)
    (answer,) = talk.call(load("mine"))
    assert names(talk.state) == ["mine", "ours", "shared"]
    assert talk.state["skills_problems"] == []
    assert "# mine\n" in answer.text
    assert "further files, which no tool here can read" in answer.text
    assert "scripts/run.py" not in answer.text
    assert talk.loaded == ["mine"]
    (refused,) = talk.call(load("hidden"))
    assert refused.status == "error"
    (gone,) = talk.call(unload("mine"))
    assert gone.status == "success"
    assert talk.loaded == []
    assert "**mine**" in talk.model.requests[-1].system
    assert "hidden" not in talk.model.requests[-1].system


def test_each_run_sees_the_current_skills(mode: Mode, any_sessions: Sessions) -> None:
    """What changed in the store between two runs of a thread shows in the second."""
    one, two = seed(any_sessions, "alice", draft("one"), draft("two"))
    talk = Conversation(mode, DatabaseSkillAdapter(user_id="alice", db_session_factory=any_sessions))
    talk.call(load("one"))
    talk.call(load("two"))
    assert talk.loaded == ["one", "two"]
    with_service(any_sessions, lambda service: service.delete_skill(one.id, "alice"))
    with_service(any_sessions, lambda service: service.update_skill(two.id, SkillUpdate(content="# newer\n"), "alice"))
    seed(any_sessions, "alice", draft("three"))
    (answer,) = talk.call(load("two"))
    assert names(talk.state) == ["three", "two"]
    assert talk.loaded == ["two"]
    assert "already loaded" in answer.text, "the run loaded the edited text itself"
    assert "# newer" in talk.model.requests[-1].text
    assert "# one" not in talk.model.requests[-1].text


def test_the_user_of_each_run(mode: Mode, any_sessions: Sessions) -> None:
    """One agent serves many users, each with their own skills."""
    seed(any_sessions, "alice", draft("alices"), draft("same", content="of alice"))
    seed(any_sessions, "bob", draft("bobs"), draft("same", content="of bob"))
    seed(any_sessions, None, draft("ours"))
    adapter: Any = DatabaseSkillAdapter(user_id=user_of_context, db_session_factory=any_sessions)
    model = ScriptedChatModel(replies=[call_tools(load("same")), "ok", call_tools(load("same")), "ok", "ok"])
    agent: Any = create_agent(model, middleware=[adapter])
    for user, expected in (("alice", "of alice"), ("bob", "of bob")):
        result = run(mode, agent, context={"user": user})
        assert expected in tool_messages(result)[0].text
    assert "alices" in model.requests[0].system
    assert "bobs" in model.requests[2].system
    assert "alices" not in model.requests[2].text
    assert "bobs" not in model.requests[0].text
    run(mode, agent, context={"user": None})
    assert "**ours**" in model.requests[-1].system
    assert "same" not in model.requests[-1].system


def test_a_thread_that_another_user_resumes(mode: Mode, any_sessions: Sessions) -> None:
    """Nothing of the first user's skills shows for the second, not even of a skill of the same name."""
    seed(any_sessions, "alice", draft("same", content="SECRET-A"), draft("alices", content="SECRET-B"))
    seed(any_sessions, "bob", draft("same", content="of bob"))
    talk = Conversation(mode, DatabaseSkillAdapter(user_id=user_of_context, db_session_factory=any_sessions))
    talk.say(call_tools(load("same"), load("alices")), context={"user": "alice"})
    assert talk.loaded == ["same", "alices"]
    assert "SECRET-A" in talk.model.requests[-1].text
    talk.say("ok", context={"user": "bob"})
    assert talk.loaded == []
    assert names(talk.state) == ["same"]
    assert "SECRET" not in talk.model.requests[-1].text
    (answer,) = talk.say(call_tools(load("same")), context={"user": "bob"})
    assert "of bob" in answer.text
    assert "SECRET" not in talk.model.requests[-1].text


class Switch:
    """A session factory that can be turned off, as a database can."""

    def __init__(self, sessions: Sessions, broken: Sessions) -> None:
        self._sessions, self._broken = sessions, broken
        self.is_down = False

    def __call__(self) -> Any:
        return self._broken() if self.is_down else self._sessions()


def unreachable(kind: str, tmp_path: Path) -> Sessions:
    url = {
        "sqlite": f"sqlite:///{tmp_path}/missing/directory/store.db",
        "postgres": "postgresql://someone:hunter2@127.0.0.1:1/nothing",
    }[kind]
    return async_sessionmaker(new_engine(url))


def test_the_database_down(mode: Mode, any_sessions: Sessions, kind: str, tmp_path: Path) -> None:
    """A database that does not answer is one clear problem, and the run goes on; later the skills are there."""
    seed(any_sessions, "alice", draft("mine"))
    switch = Switch(any_sessions, unreachable(kind, tmp_path))
    switch.is_down = True
    talk = Conversation(mode, DatabaseSkillAdapter(user_id="alice", db_session_factory=switch))
    talk.say("I go on.")
    assert talk.result["messages"][-1].text == "I go on."
    (problem,) = talk.state["skills_problems"]
    assert (problem["code"], problem["severity"]) == ("source-failed", "error")
    assert "the skill database did not answer" in problem["message"]
    assert not any(word in problem["message"] for word in ("SELECT", "hunter2", "sqlalche.me"))
    switch.is_down = False
    talk.call(load("mine"))
    assert (talk.loaded, talk.state["skills_problems"]) == (["mine"], [])
    switch.is_down = True
    (answer,) = talk.say(call_tools(load("mine")))
    assert "already loaded" in answer.text.lower()
    assert names(talk.state) == ["mine"]
    assert talk.loaded == ["mine"]


def test_the_database_down_for_another_user(mode: Mode, any_sessions: Sessions, kind: str, tmp_path: Path) -> None:
    """What is kept while the database is down is the same user's alone."""
    seed(any_sessions, "alice", draft("alices", content="SECRET"))
    switch = Switch(any_sessions, unreachable(kind, tmp_path))
    talk = Conversation(mode, DatabaseSkillAdapter(user_id=user_of_context, db_session_factory=switch))
    talk.say(call_tools(load("alices")), context={"user": "alice"})
    switch.is_down = True
    talk.say("ok", context={"user": "bob"})
    assert (names(talk.state), talk.loaded, errors(talk.state)) == ([], [], ["source-failed"])
    assert "SECRET" not in talk.model.requests[-1].text
    assert "alices" not in talk.model.requests[-1].system


def test_the_database_down_for_the_same_user(mode: Mode, any_sessions: Sessions, kind: str, tmp_path: Path) -> None:
    """Where a function names the user, this user keeps what the process saw them have, and what they loaded."""
    seed(any_sessions, "alice", draft("alices"))
    switch = Switch(any_sessions, unreachable(kind, tmp_path))
    adapter: Any = DatabaseSkillAdapter(user_id=user_of_context, db_session_factory=switch)
    talk = Conversation(mode, adapter)
    talk.say(call_tools(load("alices")), context={"user": "alice"})
    switch.is_down = True
    talk.say("ok", context={"user": "alice"})
    assert (names(talk.state), talk.loaded, errors(talk.state)) == (["alices"], ["alices"], ["source-failed"])
    assert "# alices" in talk.model.requests[-1].text
    switch.is_down = False
    talk.say("ok", context={"user": "alice"})
    assert (talk.loaded, talk.state["skills_problems"]) == (["alices"], [])


NO_USER: dict[str, Callable[[Any], Any]] = {
    "raises": lambda _: 1 / 0,
    "number": lambda _: 7,
    "empty": lambda _: "",
}


def test_a_user_who_cannot_be_told(mode: Mode, any_sessions: Sessions) -> None:
    """A function that gives no user is a problem, not a crash, and shows nobody's skills."""
    seed(any_sessions, "alice", draft("alices", content="SECRET"))
    seed(any_sessions, None, draft("ours"))
    user: list[Callable[[Any], Any]] = []

    def told(runtime: Any) -> Any:
        return user[-1](runtime)

    talk = Conversation(mode, DatabaseSkillAdapter(user_id=told, db_session_factory=any_sessions))
    for case, no_user in NO_USER.items():
        user.append(lambda _: "alice")
        talk.call(load("alices"))
        assert talk.loaded == ["alices"], case
        user.append(no_user)
        talk.say("I go on.")
        assert (names(talk.state), talk.loaded, errors(talk.state)) == ([], [], ["source-failed"]), case
        assert "SECRET" not in talk.model.requests[-1].text, case
        assert "alices" not in talk.model.requests[-1].system, case


def test_chosen_skills(mode: Mode, any_sessions: Sessions, caplog: pytest.LogCaptureFixture) -> None:
    """With ids only those skills are served, as far as the user may see them; a line says which are not there."""
    one, _two = seed(any_sessions, "alice", draft("one"), draft("two"))
    (hidden,) = seed(any_sessions, "bob", draft("hidden"))
    ids = [one.id, hidden.id]
    talk = Conversation(mode, DatabaseSkillAdapter(user_id="alice", skill_ids=ids, db_session_factory=any_sessions))
    with caplog.at_level(logging.WARNING, "deepskills"):
        talk.say("ok")
    assert names(talk.state) == ["one"]
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"{hidden.id} is not in the store, or this user may not see it" in line
    own = Conversation(mode, DatabaseSkillAdapter(user_id="bob", db_session_factory=any_sessions, include_public=False))
    own.say("ok")
    assert names(own.state) == ["hidden"]
    none: list[UUID] = []
    empty = Conversation(mode, DatabaseSkillAdapter(user_id="bob", skill_ids=none, db_session_factory=any_sessions))
    empty.say("ok")
    assert names(empty.state) == []


SPOILED: dict[str, dict[str, Any]] = {
    "name": {"name": "Bad Name"},
    "description": {"description": ""},
    "encoding": {"frontmatter": "---\nname: bad\ndescription: x\n---\n", "encoding": "no-such-code"},
}


def test_a_bad_row_costs_no_other(mode: Mode, any_sessions: Sessions, caplog: pytest.LogCaptureFixture) -> None:
    """A row corrupted outside the service is left out with a line in the log; all other skills are there."""
    _good, *bad = seed(any_sessions, "alice", draft("good"), *(draft(f"bad-{case}") for case in SPOILED))

    async def spoil() -> None:
        async with any_sessions() as session:
            for skill, values in zip(bad, SPOILED.values(), strict=True):
                table: Any = Skill.__table__
                await session.execute(update(table).where(table.c.id == skill.id).values(**values))
            await session.commit()

    asyncio.run(spoil())
    talk = Conversation(mode, DatabaseSkillAdapter(user_id="alice", db_session_factory=any_sessions))
    talk.call(load("good"))
    assert (names(talk.state), talk.loaded, errors(talk.state)) == (["good"], ["good"], [])
    for case, skill in zip(SPOILED, bad, strict=True):
        told = [record for record in caplog.records if str(skill.id) in record.getMessage()]
        assert {record.levelname for record in told} == {"ERROR"}, case


def test_one_name_from_several_owners(mode: Mode, any_sessions: Sessions, caplog: pytest.LogCaptureFixture) -> None:
    """Of several skills of one name the user's own is served, and a warning names the others, not their directories."""
    (public,) = seed(any_sessions, "bob", draft("same", content="of bob", is_public=True))
    (system,) = seed(any_sessions, None, draft("same", content="of all"))
    seed(any_sessions, "alice", draft("same", content="of alice"))
    adapter: Any = DatabaseSkillAdapter(user_id="alice", db_session_factory=any_sessions, include_public=True)
    talk = Conversation(mode, adapter)
    (answer,) = talk.call(load("same"))
    assert "of alice" in answer.text
    told = [p["path"] for p in talk.state["skills_problems"] if p["code"] == "skill-duplicate"]
    assert len(told) == len(talk.state["skills_problems"]) == 2
    assert "skill-duplicate" in caplog.text
    assert "director" not in caplog.text
    assert all(any(str(skill.id) in path for path in told) for skill in (public, system))


def test_files_of_skills_without_file_tools(mode: Mode, any_sessions: Sessions) -> None:
    """With the tools for agents without files, the model reads a skill's files from the store."""
    files: dict[str, str | bytes] = {"references/guide.md": "the guide", "assets/logo.png": BINARY}
    seed(any_sessions, "alice", draft_with_files("mine", files))
    adapter: Any = DatabaseSkillAdapter(
        user_id="alice", db_session_factory=any_sessions, extra_tools=["load_skill_asset", "list_skill_assets"]
    )
    talk = Conversation(mode, adapter)
    asked = {"skill_name": "mine", "relative_path": "references/guide.md"}
    (guide, listed) = talk.call(("load_skill_asset", asked), ("list_skill_assets", {"skill_name": "mine"}))
    assert "the guide" in guide.text
    assert "assets/logo.png" in listed.text


def test_in_a_deep_agent(mode: Mode, any_sessions: Sessions) -> None:
    """The adapter takes the place of deepagents' own skills, in sub-agents too, and its options are the same."""
    seed(any_sessions, "alice", draft("one"), draft("two"))
    adapter: Any = DatabaseSkillAdapter(user_id="alice", db_session_factory=any_sessions, max_loaded_skills=1)
    assert isinstance(adapter, SkillsMiddleware)
    assert adapter.name == "SkillsMiddleware"
    assert adapter.sources == []
    model = ScriptedChatModel(replies=[call_tools(load("one"), load("two"))])
    agent = create_deep_agent(model=model, middleware=[adapter], checkpointer=InMemorySaver())
    result = run(mode, agent, config={"configurable": {"thread_id": "t"}})
    assert sorted(message.status for message in tool_messages(result)) == ["error", "success"]


def test_many_users_at_once(mode: Mode, any_sessions: Sessions) -> None:
    """Runs of many users at the same time on one agent do not mix."""
    users = [f"user-{number}" for number in range(scaled(6, 12))]
    for user in users:
        seed(any_sessions, user, draft("same", content=f"of {user}."))
    adapter: Any = DatabaseSkillAdapter(user_id=user_of_context, db_session_factory=any_sessions)

    def agent() -> Any:
        return create_agent(ScriptedChatModel(replies=[call_tools(load("same"))]), middleware=[adapter])

    async def run_all() -> list[dict[str, Any]]:
        given: Any = {"messages": [HumanMessage("go")]}
        if mode == "async":
            return list(await asyncio.gather(*(agent().ainvoke(given, context={"user": user}) for user in users)))
        calls = (asyncio.to_thread(agent().invoke, given, context={"user": user}) for user in users)
        return list(await asyncio.gather(*calls))

    for user, result in zip(users, asyncio.run(run_all()), strict=True):
        assert f"of {user}." in tool_messages(result)[0].text


@on_sqlite
def test_options(any_sessions: Sessions) -> None:
    """Options are checked as by `SkillsMiddleware`; where skills come from is the adapter's to say."""
    with pytest.raises(ValueError, match="loaded_status"):
        DatabaseSkillAdapter(user_id="a", db_session_factory=any_sessions, loaded_status="nowhere")
    with pytest.raises(TypeError, match="sources"):
        DatabaseSkillAdapter(user_id="a", db_session_factory=any_sessions, sources=["/x"])
    with pytest.raises(TypeError, match="no_such_option"):
        DatabaseSkillAdapter(user_id="a", db_session_factory=any_sessions, no_such_option=1)


tenant: ContextVar[str] = ContextVar("tenant")


def test_the_session_factory_sees_the_context(mode: Mode, any_sessions: Sessions) -> None:
    """A session factory may rely on context variables of the caller, as where each tenant has a database."""
    seed(any_sessions, "alice", draft("mine"))
    seen: list[str] = []

    def open_session() -> Any:
        seen.append(tenant.get("nobody"))
        return any_sessions()

    talk = Conversation(mode, DatabaseSkillAdapter(user_id="alice", db_session_factory=open_session))
    token = tenant.set("acme")
    try:
        talk.call(load("mine"))
    finally:
        tenant.reset(token)
    assert seen
    assert set(seen) == {"acme"}


SCRIPT = """
import os, sys
from sqlalchemy.ext.asyncio import async_sessionmaker
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from deepskills.store import DatabaseSkillAdapter, create_store_engine
from deepskills.testing import ScriptedChatModel, call_tools

for url in sys.argv[1:]:
    sessions = async_sessionmaker(create_store_engine(url))
    model = ScriptedChatModel(replies=[call_tools(("load_skill", {"skill_name": "mine"}))])
    agent = create_agent(model, middleware=[DatabaseSkillAdapter(user_id="alice", db_session_factory=sessions)])
    for _ in range(3):
        agent.invoke({"messages": [HumanMessage("go")]})
    print("**mine**" in model.requests[-1].system, "# mine" in model.requests[1].text, flush=True)
    child = os.fork()
    agent.invoke({"messages": [HumanMessage("go")]})
    found = "**mine**" in model.requests[-1].system
    if child == 0:
        os._exit(0 if found else 3)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status or not found:
        sys.exit(status or 4)
"""


@on_postgres
def test_a_pooled_engine_and_the_end_of_the_process(url: str, sqlite_template: Path, tmp_path: Path) -> None:
    """With a pool, sync runs share its connections, a forked process has its own, and both end by themselves."""
    shutil.copy(sqlite_template, tmp_path / "store.db")
    urls = [url, f"sqlite:///{tmp_path / 'store.db'}"]
    for each in urls:
        seed(async_sessionmaker(new_engine(each)), "alice", draft("mine"))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *urls], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.stdout.splitlines(), done.returncode) == (["True True"] * len(urls), 0), done.stderr


@on_both
def test_the_event_loop_is_not_blocked(any_sessions: Sessions, url: str) -> None:
    """An async run does no blocking call on the event loop."""
    seed(any_sessions, "alice", draft_with_files("mine", {"references/a.md": "x"}))
    engine = create_store_engine(url)
    adapter: Any = DatabaseSkillAdapter(user_id="alice", db_session_factory=async_sessionmaker(engine))
    agent: Any = create_agent(ScriptedChatModel(replies=[call_tools(load("mine"))]), middleware=[adapter])

    async def scenario() -> dict[str, Any]:
        # What is done once a process, such as imports, is done before.
        await agent.ainvoke({"messages": [HumanMessage("go")]})
        agent_again: Any = create_agent(ScriptedChatModel(replies=[call_tools(load("mine"))]), middleware=[adapter])
        guard = BlockBuster()
        guard.activate()
        try:
            result: dict[str, Any] = await agent_again.ainvoke({"messages": [HumanMessage("go")]})
        finally:
            guard.deactivate()
        await engine.dispose()
        return result

    assert "# mine" in tool_messages(asyncio.run(scenario()))[0].text
