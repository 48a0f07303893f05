"""Several calls in one turn of the model: each takes those before it into account, and no budget is overshot."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from deepagents.backends import FilesystemBackend
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command, interrupt

from deepskills import SkillsMiddleware
from deepskills._middleware.turn import SkillCall, turn_of
from deepskills.testing import Reply, ScriptedChatModel, call_tools
from support import (
    CASE,
    SOAK,
    Conversation,
    FakeBackend,
    Mode,
    both_modes,
    disk,
    fails,
    hand_written_graph,
    load,
    loaded_in,
    picked,
    run,
    skill_md,
    tool_messages,
    unload,
    write_files,
)

ToolCall: TypeAlias = tuple[str, dict[str, Any]]
Build: TypeAlias = Callable[[Any], Any]

CONFIG: RunnableConfig = {"configurable": {"thread_id": "parallel"}}
TOKENS_FOR_TWO = 400
BODY = "word " * 100


@dataclass(frozen=True)
class Turn:
    """What is loaded, what the model then calls in one turn, and what must come of it."""

    name: str
    calls: tuple[ToolCall, ...]
    answers: str
    """One letter per call: `+` for an answer, `!` for an error."""
    loaded: list[str]
    before: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


TURNS = [
    Turn("two-loads", (load("alpha"), load("beta")), "++", ["alpha", "beta"]),
    Turn("in-order-of-calls", (load("beta"), load("alpha")), "++", ["beta", "alpha"]),
    Turn("load-unload", (load("alpha"), unload("alpha")), "++", []),
    Turn("unload-load", (unload("alpha"), load("alpha")), "++", ["beta", "alpha"], before=("alpha", "beta")),
    Turn("load-unload-load", (load("alpha"), unload("alpha"), load("alpha")), "+++", ["alpha"]),
    Turn("two-unloads", (unload("alpha"), unload("beta")), "++", ["gamma"], before=("alpha", "beta", "gamma")),
    Turn("same-unload-twice", (unload("alpha"), unload("alpha")), "+!", ["beta"], before=("alpha", "beta")),
    Turn("same-load-twice", (load("alpha"), load("alpha")), "++", ["alpha"]),
    Turn("same-load-in-other-case", (load("ALPHA"), load("alpha"), unload("Alpha")), "+++", []),
    Turn("unload-of-nothing", (unload("alpha"), load("alpha")), "!+", ["alpha"]),
    Turn("loaded-already", (load("alpha"), load("beta")), "++", ["alpha", "beta"], before=("alpha",)),
    Turn(
        "more-loads-than-slots",
        (load("alpha"), load("beta"), load("gamma"), load("delta")),
        "++!!",
        ["alpha", "beta"],
        options={"max_loaded_skills": 2},
    ),
    Turn(
        "one-slot-left",
        (load("beta"), load("gamma")),
        "+!",
        ["alpha", "beta"],
        before=("alpha",),
        options={"max_loaded_skills": 2},
    ),
    Turn(
        "unload-makes-room",
        (unload("alpha"), load("beta"), load("gamma")),
        "++!",
        ["beta"],
        before=("alpha",),
        options={"max_loaded_skills": 1},
    ),
    Turn(
        "unload-comes-too-late",
        (load("beta"), unload("alpha")),
        "!+",
        [],
        before=("alpha",),
        options={"max_loaded_skills": 1},
    ),
    Turn(
        "exchange-of-all",
        (unload("alpha"), load("gamma"), unload("beta"), load("alpha")),
        "++++",
        ["gamma", "alpha"],
        before=("alpha", "beta"),
        options={"max_loaded_skills": 2},
    ),
    Turn(
        "same-skill-takes-one-slot",
        (load("alpha"), load("alpha"), load("beta")),
        "+++",
        ["alpha", "beta"],
        options={"max_loaded_skills": 2},
    ),
    Turn(
        "more-loads-than-tokens",
        (load("alpha"), load("beta"), load("gamma")),
        "++!",
        ["alpha", "beta"],
        options={"max_loaded_tokens": TOKENS_FOR_TWO},
    ),
    Turn(
        "unload-frees-tokens",
        (load("gamma"), unload("alpha"), load("gamma")),
        "!++",
        ["beta", "gamma"],
        before=("alpha", "beta"),
        options={"max_loaded_tokens": TOKENS_FOR_TWO},
    ),
    Turn(
        "too-large-takes-no-tokens",
        (load("huge"), load("alpha"), load("beta")),
        "!++",
        ["alpha", "beta"],
        options={"max_loaded_tokens": TOKENS_FOR_TWO},
    ),
    Turn(
        "unknown-among-them",
        (load("zzz"), load("alpha"), unload("zzz"), load("beta"), load("gamma")),
        "!+!+!",
        ["alpha", "beta"],
        options={"max_loaded_skills": 2},
    ),
    Turn(
        "nonsense-among-them",
        (("load_skill", {}), ("load_skill", {"skill_name": ["alpha"]}), load("alpha"), load("beta")),
        "!!+!",
        ["alpha"],
        options={"max_loaded_skills": 1},
    ),
]


@tool
def ask() -> str:
    """Ask a human."""
    return str(interrupt("May I?"))


def middleware_for(turn: Turn, root: Path) -> SkillsMiddleware:
    """Return a middleware with the turn's options, on skills that are much of a size, and one huge one."""
    names = ("alpha", "beta", "gamma", "delta")
    files = {f"skills/{name}/SKILL.md": skill_md(name, body=BODY) for name in names}
    write_files(root, {**files, "skills/huge/SKILL.md": skill_md("huge", body=BODY * 10)})
    return SkillsMiddleware(backend=disk(root), sources=["/skills"], **turn.options)


def script_for(turn: Turn, *, calls: tuple[ToolCall, ...] | None = None) -> ScriptedChatModel:
    """Return a model that loads what is loaded before, then makes the turn's calls."""
    replies: list[Reply] = [call_tools(load(name)) for name in turn.before]
    return ScriptedChatModel(replies=[*replies, call_tools(*(calls or turn.calls))])


@contextmanager
def checkpointer(place: str, root: Path, memory: InMemorySaver) -> Iterator[Any]:
    if place == "sqlite":
        with SqliteSaver.from_conn_string(str(root / "checkpoints.db")) as saver:
            yield saver
    else:
        yield memory if place == "memory" else None


@asynccontextmanager
async def async_checkpointer(place: str, root: Path, memory: InMemorySaver) -> AsyncIterator[Any]:
    if place == "sqlite":
        async with AsyncSqliteSaver.from_conn_string(str(root / "checkpoints.db")) as saver:
            yield saver
    else:
        yield memory if place == "memory" else None


def play(mode: Mode, place: str, root: Path, build: Build, *given: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run the inputs one after another, each on a newly built agent, as if by another process; return all results."""
    memory = InMemorySaver()
    results: list[dict[str, Any]] = []
    state: dict[str, Any] = {}

    async def play_async() -> None:
        for value in given:
            async with async_checkpointer(place, root, memory) as saver:
                agent = build(saver)
                results.append(await agent.ainvoke(value, CONFIG))
                if saver is not None:
                    state.update((await agent.aget_state(CONFIG)).values)

    if mode == "async":
        asyncio.run(play_async())
        return results, state
    for value in given:
        with checkpointer(place, root, memory) as saver:
            agent = build(saver)
            results.append(agent.invoke(value, CONFIG))
            if saver is not None:
                state.update(agent.get_state(CONFIG).values)
    return results, state


def check(turn: Turn, model: ScriptedChatModel, result: dict[str, Any], state: dict[str, Any] | None) -> None:
    """Compare what came of a turn, as the model and as state sees it."""
    answers = [message for message in tool_messages(result)[len(turn.before) :] if message.name != "ask"]
    assert "".join("!" if answer.status == "error" else "+" for answer in answers) == turn.answers
    assert sorted(loaded_in(model.requests[-1].system)) == sorted(turn.loaded)
    assert result["messages"][-1].text == "Done."
    if state is None:
        return
    assert state["skills_loaded"] == turn.loaded
    assert sorted(state["skill_resources"]) == sorted(turn.loaded)
    assert sorted(state["skills_context"].get("records", {})) == sorted(turn.loaded)
    tokens = sum(record["tokens"] for record in state["skills_context"].get("records", {}).values())
    assert tokens <= turn.options.get("max_loaded_tokens", 50_000)


START_INPUT = {"messages": [HumanMessage("go")]}


def offenders(one: Callable[[Turn, Path], None], root: Path, part: int, of: int) -> dict[str, str]:
    """Try turns of the table, each below a directory of its own, and return those that went wrong.

    The cases of a test divide the table among them, `part` of so many; under `make soak` each has all of it.
    """
    wrong: dict[str, str] = {}
    for turn in picked(TURNS) if SOAK or CASE else TURNS[part::of]:
        place = root / turn.name
        place.mkdir()
        try:
            one(turn, place)
        except AssertionError as error:
            wrong[turn.name] = str(error)
    return wrong


@pytest.mark.parametrize(
    ("part", "mode", "place"),
    [(0, "sync", "nowhere"), (1, "async", "memory"), (2, "async", "sqlite")],
)
def test_calls_of_one_turn_act_as_if_one_after_another(part: int, place: str, mode: Mode, tmp_path: Path) -> None:
    """Parallel calls leave what the same calls in their order would leave, wherever checkpoints are kept, if at all."""

    def one(turn: Turn, root: Path) -> None:
        middleware, model = middleware_for(turn, root), script_for(turn)

        def build(saver: Any) -> Any:
            return create_agent(model, middleware=[middleware], checkpointer=saver)

        [result], state = play(mode, place, root, build, START_INPUT)
        check(turn, model, result, None if place == "nowhere" else state)

    assert offenders(one, tmp_path, part, of=3) == {}


@pytest.mark.parametrize(("part", "mode", "place"), [(0, "async", "memory"), (1, "sync", "sqlite")])
def test_calls_of_a_turn_that_was_interrupted_and_resumed(part: int, place: str, mode: Mode, tmp_path: Path) -> None:
    """A turn that a sibling tool interrupts ends the same after the resume, by another process too."""

    def one(turn: Turn, root: Path) -> None:
        position = len(turn.calls) // 2
        calls = (*turn.calls[:position], ("ask", {}), *turn.calls[position:])
        model = script_for(turn, calls=calls)

        def build(saver: Any) -> Any:
            return create_agent(model, tools=[ask], middleware=[middleware_for(turn, root)], checkpointer=saver)

        results, state = play(mode, place, root, build, START_INPUT, Command(resume="yes"))
        assert "__interrupt__" in results[0]
        assert loaded_in(model.requests[-2].system) == sorted(turn.before)
        check(turn, model, results[1], state)

    assert offenders(one, tmp_path, part, of=2) == {}


@pytest.mark.parametrize(("mode", "interrupted"), [("sync", False), ("async", True)], ids=["straight", "resumed"])
def test_calls_of_one_turn_in_a_hand_written_graph(mode: Mode, tmp_path: Path, *, interrupted: bool) -> None:
    """A graph of one's own with LangGraph's `ToolNode`, which repeats a turn on a resume, sees the same outcomes."""

    def one(turn: Turn, root: Path) -> None:
        middleware = middleware_for(turn, root)
        model = script_for(turn, calls=(*turn.calls, ("ask", {})) if interrupted else turn.calls)
        given: tuple[Any, ...] = (START_INPUT, Command(resume="yes")) if interrupted else (START_INPUT,)
        results, state = play(
            mode, "memory", root, lambda saver: hand_written_graph(model, middleware, saver, tools=[ask]), *given
        )
        assert ("__interrupt__" in results[0]) == interrupted
        check(turn, model, results[-1], state)

    assert offenders(one, tmp_path, int(interrupted), of=2) == {}


@both_modes
def test_the_text_comes_once_for_a_skill_that_is_called_twice(mode: Mode, tmp_path: Path) -> None:
    """Of two loads of one skill in a turn the first brings the text, the second says that it is there."""
    turn = TURNS[0]
    conversation = Conversation(mode, middleware_for(turn, tmp_path))

    first, second = conversation.call(load("alpha"), load("alpha"))

    assert BODY.strip() in first.text
    assert "already loaded" in second.text
    assert BODY.strip() not in second.text


@both_modes
def test_a_refusal_for_a_full_turn_says_to_try_again(mode: Mode, tmp_path: Path) -> None:
    """A call refused because of its siblings names them as loaded and says how to go on."""
    turn = Turn("", (), "", [], options={"max_loaded_skills": 1})
    conversation = Conversation(mode, middleware_for(turn, tmp_path))

    _granted, refused = conversation.call(load("alpha"), load("beta"))

    assert "alpha (" in refused.text
    assert "try again" in refused.text


@both_modes
def test_a_changed_file_among_parallel_loads(mode: Mode, tmp_path: Path) -> None:
    """A loaded skill that grew counts with its new size for the calls after it."""
    turn = Turn("", (), "", [], options={"max_loaded_tokens": TOKENS_FOR_TWO})
    conversation = Conversation(mode, middleware_for(turn, tmp_path))
    conversation.call(load("alpha"))
    write_files(tmp_path, {"skills/alpha/SKILL.md": skill_md("alpha", body=BODY * 2)})

    answers = conversation.call(load("alpha"), load("beta"), load("alpha"))

    assert [answer.status for answer in answers] == ["success", "error", "success"]
    assert "already loaded" in answers[2].text
    assert conversation.loaded == ["alpha"]
    assert (
        sum(record["tokens"] for record in conversation.state["skills_context"]["records"].values()) <= TOKENS_FOR_TWO
    )


@both_modes
def test_calls_of_one_turn_share_what_they_read(mode: Mode, tmp_path: Path) -> None:
    """Each file is read once for a turn, with and without a checkpointer; a later turn reads it again."""
    write_files(tmp_path, {f"skills/{name}/SKILL.md": skill_md(name) for name in ("alpha", "beta")})
    for saver in (InMemorySaver(), None):
        backend = FakeBackend(tmp_path)
        calls = call_tools(load("alpha"), load("beta"), load("alpha"))
        model = ScriptedChatModel(replies=[calls, call_tools(load("alpha")), "Done."])
        agent = create_agent(
            model, middleware=[SkillsMiddleware(backend=backend, sources=["/skills"])], checkpointer=saver
        )
        run(mode, agent, config={"configurable": {"thread_id": "1"}})
        # Once by the discovery, and once by each turn that loads it.
        read = [Path(path).parent.name for path in backend.read_paths]
        assert (read.count("alpha"), read.count("beta")) == (3, 2), saver


@both_modes
def test_call_ids_that_come_again_in_a_later_turn(mode: Mode, tmp_path: Path) -> None:
    """A provider that numbers the calls of every turn from the start does not lead to an overshoot."""
    turn = Turn("", (), "", [], options={"max_loaded_skills": 2})
    conversation = Conversation(mode, middleware_for(turn, tmp_path))

    def numbered(*names: str) -> AIMessage:
        calls = [{"name": "load_skill", "args": {"skill_name": n}, "id": f"call_{i}"} for i, n in enumerate(names)]
        return AIMessage("", tool_calls=calls)

    answers = conversation.say(numbered("alpha"), numbered("beta", "gamma"))

    assert [answer.status for answer in answers] == ["success", "success", "error"]
    assert conversation.loaded == ["alpha", "beta"]


@both_modes
def test_a_backend_that_fails_now_and_then_leads_to_no_overshoot(mode: Mode, tmp_path: Path) -> None:
    """A call that cannot look at what an earlier one was granted takes it as granted."""
    seconds: list[str] = []

    def two_loads(_messages: list[Any]) -> AIMessage:
        message = call_tools(load("alpha"), load("beta"))
        seconds.append(str(message.tool_calls[1]["id"]))
        return message

    def backend(runtime: Any) -> FilesystemBackend:
        if getattr(runtime, "tool_call_id", None) in seconds:
            return FakeBackend(tmp_path, rules={"download_files": fails("no answer", "/alpha/", TimeoutError)})
        return disk(tmp_path)

    write_files(tmp_path, {f"skills/{name}/SKILL.md": skill_md(name) for name in ("alpha", "beta")})
    conversation = Conversation(mode, SkillsMiddleware(backend=backend, sources=["/skills"], max_loaded_skills=1))

    first, second = conversation.say(two_loads)

    assert (first.status, second.status) == ("success", "error")
    assert conversation.loaded == ["alpha"]


# --- which calls come before one ---------------------------------------------------------------------------------


def called(*calls: tuple[str, str, dict[str, Any]]) -> AIMessage:
    return AIMessage("", tool_calls=[{"id": id_, "name": name, "args": args} for id_, name, args in calls])


A = ("a", "load_skill", {"skill_name": "alpha"})
B = ("b", "unload_skill", {"skill_name": "beta"})
C = ("c", "load_skill", {"skill_name": "gamma"})
OTHER = ("o", "read_file", {"file_path": "/x"})
LOAD_ALPHA, UNLOAD_BETA = SkillCall("load", "alpha"), SkillCall("unload", "beta")
REJECTED = ToolMessage("No.", tool_call_id="a")


BEFORE_C: dict[str, tuple[list[AnyMessage], list[SkillCall]]] = {
    "those before": ([called(A, B, C)], [LOAD_ALPHA, UNLOAD_BETA]),
    "first of all": ([called(C, A, B)], []),
    "other tools": ([called(A, OTHER, C, B)], [LOAD_ALPHA]),
    "rejected": ([called(A, B, C), REJECTED], [UNLOAD_BETA]),
    "ids that come again": ([called(A), REJECTED, called(A, C)], [LOAD_ALPHA]),
    "another turn": ([called(A, B), called(C)], []),
    "no argument": ([called(("x", "load_skill", {}), ("y", "load_skill", {"skill_name": ["alpha"]}), C)], []),
    "with arguments": (
        [called(("x", "load_skill", {"skill_name": "alpha", "arguments": "one"}), C)],
        [SkillCall("load", "alpha", "one")],
    ),
    "one id for all": ([called(A, ("c", *B[1:]), C)], [LOAD_ALPHA, UNLOAD_BETA]),
    "no turn": ([HumanMessage("go")], []),
    "nothing": ([], []),
}


def test_the_calls_before_one_are_those_of_its_turn() -> None:
    """A call takes into account the loads and unloads that stand before it in its turn and are not answered yet."""
    found = {name: turn_of({"messages": given}, *C).earlier for name, (given, _) in BEFORE_C.items()}

    assert {name: list(calls) for name, calls in found.items()} == {
        name: calls for name, (_, calls) in BEFORE_C.items()
    }


def test_a_call_that_a_human_edited_counts_as_edited() -> None:
    """LangChain keeps edits beside the messages; the turn is taken as it was approved."""
    state = {
        "messages": [called(A, C)],
        "hitl_edited_tool_calls": {"a": {"id": "a", "name": "load_skill", "args": {"skill_name": "beta"}}},
    }

    assert list(turn_of(state, *C).earlier) == [SkillCall("load", "beta")]
    junk: list[Any] = [
        "nonsense",
        {"a": None},
        {"a": "x"},
        {"a": {"name": "load_skill"}},
        {"a": {"args": {}}},
        {"a": [1]},
    ]
    junk += [{"a": {"name": ["load_skill"], "args": {}}}, {"a": {"name": "load_skill", "args": None}}, {5: b"x"}]
    for nonsense in junk:
        assert list(turn_of({**state, "hitl_edited_tool_calls": nonsense}, *C).earlier) == [LOAD_ALPHA], nonsense
