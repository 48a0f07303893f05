"""`SkillApproval` in real agents: a human approves content, once, and nothing else of a skill enters or runs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends import LocalShellBackend
from deepagents.backends.protocol import ExecuteResponse
from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

from deepskills import SkillsMiddleware
from deepskills.extensions import Preload, SkillApproval, SkillForks, SkillHooks, SkillModels, SkillScripts, ToolPolicy
from deepskills.testing import ScriptedChatModel, call_tools
from support import MODES, Mode, disk, load, run, skill_md, tool_messages, unload, write_files

EVIL = "EVIL BYTES"
APPROVE = {"type": "approve"}
ASSET = ("load_skill_asset", {"skill_name": "good", "relative_path": "references/guide.md"})
SCRIPT = ("run_skill_script", {"skill_name": "good", "script_name": "run.py"})


def library(root: Path, **fields: Any) -> None:
    write_files(
        root / "skills",
        {
            "good/SKILL.md": skill_md("good", **fields),
            "good/references/guide.md": "the guide",
            "good/scripts/run.py": "print('good script')\n",
            "good/.hidden": "configuration",
            "other/SKILL.md": skill_md("other"),
        },
    )


def spoil(path: Path) -> None:
    path.write_text(path.read_text(encoding="utf-8") + EVIL, encoding="utf-8")


class Talk:
    """An agent with an approval, its thread, and what came of the last run."""

    def __init__(self, mode: Mode, root: Path, *extensions: Any, **options: Any) -> None:
        self.mode = mode
        self.model = ScriptedChatModel(replies=[])
        self.saver = options.pop("saver", None) or InMemorySaver()
        self.store = options.pop("store", None)
        self.config = {"configurable": {"thread_id": options.pop("thread", "1")}}
        make = options.pop("make", create_agent)
        self.runs: list[Any] = []

        def runner(*call: Any) -> ExecuteResponse:
            self.runs.append(call)
            return ExecuteResponse(output="ran", exit_code=0, truncated=False)

        self.approval = options.pop("approval", None) or SkillApproval()
        middleware = SkillsMiddleware(
            backend=options.pop("backend", None) or disk(root),
            sources=["/skills"],
            extensions=[SkillScripts(runner=runner), *extensions, self.approval],
            extra_tools=["load_skill_asset"],
            slash_commands=True,
            **options,
        )
        self.agent: Any = make(self.model, middleware=[middleware], checkpointer=self.saver, store=self.store)
        self.result: dict[str, Any] = {}

    def say(self, *replies: Any, given: Any = "go") -> list[Any]:
        """Run the agent with these replies, and return the interrupts' values."""
        self.model.replies = [*([self.model.fallback] * len(self.model.requests)), *replies]
        return self._run(given)

    def answer(self, *answers: Any) -> list[Any]:
        """Resume with an answer for each interrupt."""
        waiting = self.result["__interrupt__"]
        assert len(waiting) == len(answers)
        return self._run(Command(resume={w.id: answer for w, answer in zip(waiting, answers, strict=True)}))

    def call(self, *calls: Any) -> list[Any]:
        """Have the model make calls in one turn."""
        return self.say(call_tools(*calls))

    def _run(self, given: Any) -> list[Any]:
        self.result = run(self.mode, self.agent, given, self.config)
        return [waiting.value for waiting in self.result.get("__interrupt__", ())]

    @property
    def last(self) -> Any:
        return tool_messages(self.result)[-1]

    @property
    def loaded(self) -> list[str]:
        names: list[str] = self.agent.get_state(self.config).values["skills_loaded"]
        return names

    @property
    def seen(self) -> str:
        return "\n".join(str(m.content) for request in self.model.requests for m in request.messages)


@pytest.mark.parametrize("mode", MODES)
def test_the_first_load_asks_and_the_answer_is_remembered(tmp_path: Path, mode: Mode) -> None:
    """Name, source, files, digest and cost are shown; approved once, other threads with the store do not ask again."""
    library(tmp_path)
    store = InMemoryStore()
    talk = Talk(mode, tmp_path, store=store)
    [asked] = talk.call(load("good"))
    assert {key: asked[key] for key in ("type", "name", "source")} == {
        "type": "skill_approval", "name": "good", "source": "/skills",
    }  # fmt: skip
    assert sorted(asked["files"]) == [".hidden", "SKILL.md", "references/guide.md", "scripts/run.py"]
    assert asked["digest"].startswith("sha256:")
    assert asked["tokens"] > 5
    json.dumps(asked)
    assert "Instructions of good" not in talk.seen
    assert talk.answer(APPROVE) == []
    assert talk.loaded == ["good"]
    assert talk.call(unload("good")) == talk.call(load("good")) == []
    other = Talk(mode, tmp_path, store=store, thread="2")
    assert other.call(load("good")) == []
    assert other.loaded == ["good"]
    assert len(other.call(load("other"))) == 1
    # Without a store the thread remembers, and no other.
    alone = Talk(mode, tmp_path)
    assert len(alone.call(load("good"))) == 1
    alone.answer(APPROVE)
    assert alone.call(unload("good")) == alone.call(load("good")) == []
    again = Talk(mode, tmp_path, saver=alone.saver)
    assert again.call(unload("good")) == again.call(load("good")) == []
    assert len(Talk(mode, tmp_path, saver=alone.saver, thread="2").call(load("good"))) == 1


@pytest.mark.parametrize("mode", MODES)
def test_one_changed_byte_of_any_file_asks_again(tmp_path: Path, mode: Mode) -> None:
    """The instructions, an asset, a hidden file, one that was added or removed: each is new content."""
    library(tmp_path)
    good = tmp_path / "skills/good"
    store = InMemoryStore()
    talk = Talk(mode, tmp_path, store=store)
    talk.call(load("good"))
    talk.answer(APPROVE)
    digests = set()

    def remove() -> None:
        (good / "references/new.md").unlink()
        (good / ".hidden").unlink()

    changes: list[Callable[[], None]] = [
        lambda: spoil(good / "SKILL.md"),
        lambda: spoil(good / "references/guide.md"),
        lambda: spoil(good / ".hidden"),
        lambda: write_files(good, {"references/new.md": "new"}),
        remove,
    ]
    for change in changes:
        change()
        # On a thread that has it loaded, and on a new one.
        for thread in (talk, Talk(mode, tmp_path, store=store, thread="new")):
            [asked] = thread.call(load("good"))
            assert thread.answer({"type": "reject", "message": "no"}) == []
            assert "did not approve this skill: no." in str(thread.last.content)
        digests.add(asked["digest"])
        talk.call(load("good"))
        talk.answer(APPROVE)
    assert len(digests) == 5


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_is_for_what_was_shown(tmp_path: Path, mode: Mode) -> None:
    """Files that change while a human decides are asked about again, also in another process."""
    library(tmp_path)
    skill = tmp_path / "skills/good/SKILL.md"
    talk = Talk(mode, tmp_path)
    [first] = talk.call(load("good"))
    spoil(skill)
    [second] = talk.answer(APPROVE)
    assert first["digest"] != second["digest"]
    assert EVIL not in talk.seen
    # Another process takes over: another middleware, which remembers nothing, on the same checkpoints.
    fresh = Talk(mode, tmp_path, saver=talk.saver)
    fresh.result = talk.result
    spoil(skill)
    [third] = fresh.answer(APPROVE)
    assert third["digest"] not in {first["digest"], second["digest"]}
    assert fresh.answer(APPROVE) == []
    assert fresh.loaded == ["good"]
    # An answer that names a digest counts for that one alone.
    write_files(tmp_path / "skills", {"good/SKILL.md": skill_md("good")})
    other = Talk(mode, tmp_path, saver=talk.saver, thread="2")
    [asked] = other.call(load("good"))
    assert len(other.answer({**APPROVE, "digest": "sha256:0"})) == 1
    assert other.answer({**APPROVE, "digest": asked["digest"]}) == []
    assert other.loaded == ["good"]
    # What is no answer is no approval.
    answers: list[Any] = [True, "yes", [APPROVE], {"type": "Approve"}, {"decisions": [APPROVE, APPROVE]}]
    for nonsense in answers:
        confused = Talk(mode, tmp_path)
        confused.call(load("good"))
        confused.answer(nonsense)
        assert confused.loaded == []
    hitl = Talk(mode, tmp_path, thread="hitl")
    hitl.call(load("good"))
    hitl.answer({"decisions": [APPROVE]})
    assert hitl.loaded == ["good"]


@pytest.mark.parametrize("mode", MODES)
def test_two_loads_in_one_turn_and_several_pins(tmp_path: Path, mode: Mode) -> None:
    """Each is asked about by itself; one answer is never taken for another skill, whatever changes meanwhile."""
    library(tmp_path)
    talk = Talk(mode, tmp_path)
    asked = talk.call(load("good"), load("other"))
    assert sorted(item["name"] for item in asked) == ["good", "other"]
    answers = [APPROVE if item["name"] == "good" else {"type": "reject"} for item in asked]
    assert talk.answer(*answers) == []
    assert talk.loaded == ["good"]
    pins = Talk(mode, tmp_path, thread="pins")
    [first] = pins.say(given={"messages": [("user", "go")], "pinned_skills": ["good", "other"]})
    [second] = pins.answer(APPROVE)
    assert (first["name"], second["name"]) == ("good", "other")
    # `good` changes after it was approved and before `other` is: the answer about `other` must not pass for it.
    spoil(tmp_path / "skills/good/references/guide.md")
    taken_over = Talk(mode, tmp_path, thread="pins", saver=pins.saver)
    taken_over.result = pins.result
    [third] = taken_over.answer(APPROVE)
    assert third["name"] == "good"
    assert third["digest"] != first["digest"]
    # `other` is as it was shown when it was approved.
    assert taken_over.answer({"type": "reject"}) == []
    assert taken_over.loaded == ["other"]


@pytest.mark.parametrize("mode", MODES)
def test_every_way_of_starting_a_skill_asks(tmp_path: Path, mode: Mode) -> None:
    """Pin, slash command, preload and fork; rejected, nothing of it is in a request."""
    library(tmp_path)
    write_files(tmp_path / "skills", {"forked/SKILL.md": skill_md("forked", context="fork")})
    worker = ScriptedChatModel(replies=lambda messages: f"worked on {len(str(messages))} characters")
    ways: list[tuple[list[Any], list[Any], Any]] = [
        ([], [], {"messages": [("user", "go")], "pinned_skills": ["good"]}),
        ([], [], {"messages": [("user", "/good now")]}),
        ([Preload(["good"])], [], "go"),
        ([SkillForks({"general-purpose": create_agent(worker)})], [call_tools(load("forked"))], "go"),
    ]
    for extensions, replies, given in ways:
        for answer in ({"type": "reject"}, APPROVE):
            talk = Talk(mode, tmp_path, *extensions)
            [asked] = talk.say(*replies, given=given)
            before = len(worker.requests)
            assert talk.answer(answer) == []
            is_fork = asked["name"] == "forked"
            if is_fork:
                assert (len(worker.requests) > before) == (answer == APPROVE)
            else:
                assert (talk.loaded == ["good"]) == (answer == APPROVE)
                assert ("Instructions of good" in talk.seen) == (answer == APPROVE)


@pytest.mark.parametrize("mode", MODES)
def test_in_the_acting_window_every_file_is_compared(tmp_path: Path, mode: Mode) -> None:
    """A changed, added or vanished file is refused while the skill is in use, and its next load asks."""
    library(tmp_path)
    good = tmp_path / "skills/good"
    talk = Talk(mode, tmp_path, unload_when="cheap")
    # Nothing of a skill that nobody approved is readable.
    assert talk.call(ASSET, SCRIPT) == []
    assert {message.status for message in tool_messages(talk.result)} == {"error"}
    talk.call(load("good"))
    talk.answer(APPROVE)
    assert talk.call(ASSET, SCRIPT) == []
    assert [message.status for message in tool_messages(talk.result)[-2:]] == ["success", "success"]
    assert len(talk.runs) == 1
    spoil(good / "references/guide.md")
    assert talk.call(ASSET, SCRIPT) == []
    assert [message.status for message in tool_messages(talk.result)[-2:]] == ["error", "error"]
    assert "changed since it was approved" in str(talk.last.content)
    # Unloaded, its text still stands in the request; the window is open.
    talk.call(unload("good"))
    talk.call(ASSET)
    assert talk.last.status == "error"
    [asked] = talk.call(load("good"))
    assert EVIL not in talk.seen
    talk.answer(APPROVE)
    talk.call(ASSET)
    assert talk.last.status == "success"
    assert asked["name"] == "good"
    write_files(good, {"references/added.md": EVIL})
    talk.call(("load_skill_asset", {"skill_name": "good", "relative_path": "references/added.md"}))
    assert talk.last.status == "error"
    talk.call(SCRIPT)
    assert "`references/added.md` (added)" in str(talk.last.content)
    (good / "references/added.md").unlink()
    (good / "references/guide.md").unlink()
    talk.call(ASSET)
    assert talk.last.status == "error"
    # A new process compares with the digest of the thread, though it never saw the files.
    fresh = Talk(mode, tmp_path, saver=talk.saver)
    fresh.call(SCRIPT)
    assert fresh.last.status == "error"
    assert len(talk.runs) == 1
    assert fresh.runs == []


@pytest.mark.parametrize("mode", MODES)
def test_grants_wait_for_an_approval_of_their_own(tmp_path: Path, mode: Mode) -> None:
    """Tools, hooks, scripts and the model of a skill have no effect unless they were granted with the load."""

    @tool
    def special() -> str:
        """Do what only this skill may."""
        return "special"

    hooks = {"PreToolUse": [{"matcher": ".*", "hooks": [{"type": "python", "handler": "note"}]}]}
    library(tmp_path, metadata={"include_tools": "special"}, hooks=hooks, model="strong")
    handled: list[str] = []
    strong = ScriptedChatModel(replies=lambda _messages: "from the strong model")
    for granted in ([], ["tools"], ["hooks"], ["scripts"], ["model"], ["tools", "hooks", "scripts", "model"]):
        handled.clear()
        strong.requests.clear()
        talk = Talk(
            mode,
            tmp_path,
            SkillHooks({"note": lambda request: handled.append(request.tool_call["name"])}),
            SkillModels({"strong": strong}),
            approval=SkillApproval(grants=["tools", "hooks", "scripts", "model"]),
            tools=[special],
        )
        [asked] = talk.call(load("good"))
        assert asked["grants"] == ["tools", "hooks", "scripts", "model"]
        talk.answer({**APPROVE, "grants": [*granted, "everything"]})
        assert talk.loaded == ["good"]
        assert bool(strong.requests) == ("model" in granted)
        talk.model.requests.clear()
        talk.say(call_tools(SCRIPT), given="next")
        assert (talk.runs != []) == ("scripts" in granted)
        assert ("run_skill_script" in handled) == ("hooks" in granted)
        offered = {name for request in (*talk.model.requests, *strong.requests) for name in request.tools}
        assert ("special" in offered) == ("tools" in granted)


def test_grants_are_kept_with_the_approval(tmp_path: Path) -> None:
    """Another thread gets what was granted, no more; `allowed-tools` that were not granted cover nothing."""
    library(tmp_path, allowed_tools="load_skill_asset")
    store = InMemoryStore()
    approval = SkillApproval(grants=["scripts", "tools"])
    policy = ToolPolicy("approve", trusted_sources=["/skills"])
    talk = Talk("sync", tmp_path, policy, approval=approval, store=store)
    talk.call(load("good"))
    talk.answer({**APPROVE, "grants": ["scripts"]})
    other = Talk("sync", tmp_path, ToolPolicy("enforce"), approval=approval, store=store, thread="2")
    assert other.call(load("good"), ASSET) == []
    assert other.call(SCRIPT) == []
    assert other.runs != []


@pytest.mark.parametrize("mode", MODES)
def test_without_a_checkpointer_there_is_an_error_and_no_lost_question(tmp_path: Path, mode: Mode) -> None:
    """The load is refused and says what the application lacks; the run goes on."""
    library(tmp_path)
    talk = Talk(mode, tmp_path)
    talk.agent = create_agent(
        talk.model,
        middleware=[SkillsMiddleware(backend=disk(tmp_path), sources=["/skills"], extensions=[SkillApproval()])],
    )
    assert talk.call(load("good")) == []
    assert "checkpointer" in str(talk.last.content)
    assert talk.last.status == "error"
    assert {p["code"] for p in talk.result.get("skills_problems", [{"code": "private"}])}


@pytest.mark.parametrize("mode", MODES)
def test_sub_agents_ask_for_themselves_and_share_the_store(tmp_path: Path, mode: Mode) -> None:
    """A question inside a sub-agent reaches the user and comes back; with a store nobody asks twice."""
    library(tmp_path)
    store = InMemoryStore()
    task = ("task", {"description": "load it", "subagent_type": "general-purpose"})

    def replies(messages: Any) -> Any:
        last = messages[-1]
        if last.type == "tool":
            return "done"
        return call_tools(load("good")) if "load it" in str(last.content) else call_tools(task)

    talk = Talk(mode, tmp_path, make=create_deep_agent, store=store)
    talk.model.replies = replies
    [asked] = talk._run("start")  # noqa: SLF001 - without a script of replies
    assert asked["name"] == "good"
    assert "Instructions of good" not in talk.seen
    assert talk.answer(APPROVE) == []
    assert "Instructions of good" in talk.seen
    again = Talk(mode, tmp_path, make=create_deep_agent, store=store, thread="2")
    assert again.call(load("good")) == []
    assert again.loaded == ["good"]


@pytest.mark.parametrize("mode", MODES)
def test_the_agents_own_file_tools_and_shell_are_judged(tmp_path: Path, mode: Mode) -> None:
    """`read_file` and `execute` reach nothing of a skill that nobody approved, and nothing that changed since."""
    library(tmp_path)
    backend = LocalShellBackend(root_dir=tmp_path, virtual_mode=True, env={"PATH": os.environ["PATH"]})
    good = tmp_path / "skills/good"
    read = ("read_file", {"file_path": "/skills/good/references/guide.md"})
    execute = ("execute", {"command": f"cat {good}/references/guide.md"})
    middleware = SkillsMiddleware(backend=backend, sources=["/skills"], extensions=[SkillApproval()])
    talk = Talk(mode, tmp_path)
    talk.agent = create_deep_agent(talk.model, middleware=[middleware], backend=backend, checkpointer=talk.saver)
    talk.call(read, execute)
    assert {message.status for message in tool_messages(talk.result)} == {"error"}
    talk.call(load("good"))
    talk.answer(APPROVE)
    talk.call(read, execute)
    assert ["the guide" in str(message.content) for message in tool_messages(talk.result)[-2:]] == [True, True]
    spoil(good / "references/guide.md")
    talk.call(read, execute)
    assert {message.status for message in tool_messages(talk.result)[-2:]} == {"error"}
    assert EVIL not in talk.seen


def test_only_what_it_applies_to_is_asked_about(tmp_path: Path) -> None:
    """By source or by a function; one that fails asks."""
    library(tmp_path)
    rules: list[tuple[Any, int]] = [
        (["/elsewhere"], 0),
        (["/skills/"], 1),
        (lambda entry: entry.name == "x", 0),
        (lambda _entry: 1 / 0, 1),
    ]
    for applies_to, asks in rules:
        talk = Talk("sync", tmp_path, approval=SkillApproval(applies_to=applies_to))
        assert len(talk.call(load("good"))) == asks
    mistakes: list[dict[str, Any]] = [
        {"grants": "tools"},
        {"grants": ["fly"]},
        {"namespace": "x"},
        {"applies_to": "/skills"},
    ]
    for wrong in mistakes:
        with pytest.raises(ValueError, match=r"SkillApproval|applies_to"):
            SkillApproval(**wrong)


class BrokenStore(InMemoryStore):
    def batch(self, ops: Any) -> Any:  # noqa: ARG002
        raise ConnectionError("down")

    async def abatch(self, ops: Any) -> Any:  # noqa: ARG002
        raise ConnectionError("down")


@pytest.mark.parametrize("mode", MODES)
def test_a_store_that_is_down_costs_a_question_and_nothing_else(tmp_path: Path, mode: Mode) -> None:
    """A human is asked, the thread remembers, and a warning says so."""
    library(tmp_path)
    talk = Talk(mode, tmp_path, store=BrokenStore())
    assert len(talk.call(load("good"))) == 1
    talk.answer(APPROVE)
    assert talk.loaded == ["good"]
    assert talk.call(load("good"), ASSET) == []
    assert talk.last.status == "success"


PROCESS = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from langchain.agents import create_agent
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.sqlite import SqliteStore
from langgraph.types import Command
from deepskills import SkillsMiddleware
from deepskills.extensions import SkillApproval
from deepskills.testing import ScriptedChatModel, call_tools
from support import disk
root = Path(sys.argv[1])
with (
    SqliteStore.from_conn_string(str(root / "store.db")) as store,
    SqliteSaver.from_conn_string(str(root / "threads.db")) as saver,
):
    store.setup()
    for does in sys.argv[2:]:
        what, thread = does.split("-")
        load = call_tools(("load_skill", {{"skill_name": "good"}}))
        model = ScriptedChatModel(replies=[load] if what == "load" else [])
        middleware = SkillsMiddleware(backend=disk(root), sources=["/skills"], extensions=[SkillApproval()])
        agent = create_agent(model, middleware=[middleware], checkpointer=saver, store=store)
        given = {{"messages": [("user", "go")]}} if what == "load" else Command(resume={{"type": "approve"}})
        config = {{"configurable": {{"thread_id": thread}}}}
        result = agent.invoke(given, config)
        print("ASKED" if "__interrupt__" in result else agent.get_state(config).values["skills_loaded"])
"""


def test_sqlite_remembers_across_processes(tmp_path: Path) -> None:
    """Asked in one process, answered in a second, relied on by other threads; a changed byte asks again in a third."""
    library(tmp_path)
    program = PROCESS.format(path=[path for path in sys.path if path])

    def process(*steps: str) -> list[str]:
        command = [sys.executable, "-c", program, str(tmp_path), *steps]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    assert process("load-1") == ["ASKED"]
    assert process("answer-1", "load-2") == ["['good']", "['good']"]
    spoil(tmp_path / "skills/good/scripts/run.py")
    assert process("load-3") == ["ASKED"]


def remembered_in(store: Any, root: Path) -> None:
    """Ask, answer, and rely on it on another thread with another middleware; then change a byte."""
    library(root)
    talk = Talk("sync", root, store=store)
    assert len(talk.call(load("good"))) == 1
    assert talk.answer({"type": "approve"}) == []
    other = Talk("sync", root, store=store, thread="2")
    assert other.call(load("good"), ASSET) == []
    assert other.loaded == ["good"]
    spoil(root / "skills/good/scripts/run.py")
    assert len(Talk("sync", root, store=store, thread="3").call(load("good"))) == 1
