"""Skills beside other middleware: file tools, sub-agents, summarization, human approval, to-do lists."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends import StateBackend
from deepagents.middleware.filesystem import FilesystemMiddleware
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, SummarizationMiddleware, TodoListMiddleware
from langchain_core._api.beta_decorator import LangChainBetaWarning
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from deepskills import SkillsError, SkillsMiddleware
from deepskills.testing import Reply, Request, ScriptedChatModel, call_tools
from support import (
    Conversation,
    Mode,
    both_modes,
    disk,
    load,
    loaded_in,
    run,
    skill_md,
    state_files,
    tool_messages,
    unload,
    write_files,
)

CONFIG: RunnableConfig = {"configurable": {"thread_id": "beside"}}
FILES = {
    "/skills/alpha/SKILL.md": skill_md("alpha"),
    "/skills/alpha/references/guide.md": "Use the blue form.",
    "/skills/beta/SKILL.md": skill_md("beta"),
}


def on_state(**options: Any) -> SkillsMiddleware:
    return SkillsMiddleware(backend=StateBackend(), sources=["/skills"], **options)


def with_file_tools(model: ScriptedChatModel, **options: Any) -> Any:
    """Return an agent with deepagents' file tools and skills, both on its state."""
    middleware: list[Any] = [FilesystemMiddleware(backend=StateBackend()), on_state(**options)]
    return create_agent(model, middleware=middleware, checkpointer=InMemorySaver())


def on_disk(root: Path, **options: Any) -> SkillsMiddleware:
    write_files(root, FILES)
    return SkillsMiddleware(backend=disk(root), sources=["/skills"], **options)


def start(text: str = "go") -> dict[str, Any]:
    return {"messages": [HumanMessage(text)], "files": state_files(FILES)}


def state_of(agent: Any) -> dict[str, Any]:
    values: dict[str, Any] = agent.get_state(CONFIG).values
    return values


# --- file tools --------------------------------------------------------------------------------------------------


@both_modes
def test_a_resource_is_read_by_the_path_that_a_load_shows(mode: Mode) -> None:
    """The path of a resource in the answer of `load_skill` is one that `read_file` takes."""

    def read_what_is_shown(messages: list[BaseMessage]) -> AIMessage:
        [line] = [line for line in messages[-1].text.splitlines() if line.startswith("- [reference] ")]
        return call_tools(("read_file", {"file_path": line.split("`")[1]}))

    model = ScriptedChatModel(replies=[call_tools(load("alpha")), read_what_is_shown])

    result = run(mode, with_file_tools(model), start(), CONFIG)

    loaded, read = tool_messages(result)
    assert loaded.status == "success"
    assert "Use the blue form." in read.text


@both_modes
def test_a_skill_that_the_agent_wrote_is_found_in_the_next_run(mode: Mode) -> None:
    """A skill written with the file tools can be loaded as soon as the catalog is asked for again."""
    model = ScriptedChatModel(
        replies=[
            call_tools(("write_file", {"file_path": "/skills/gamma/SKILL.md", "content": skill_md("gamma")})),
            "Written.",
            call_tools(load("gamma")),
        ]
    )
    agent = with_file_tools(model, refresh="run")

    run(mode, agent, start(), CONFIG)
    result = run(mode, agent, "again", CONFIG)

    assert tool_messages(result)[-1].status == "success"
    assert state_of(agent)["skills_loaded"] == ["gamma"]


@both_modes
def test_a_to_do_list_beside_skills(mode: Mode, tmp_path: Path) -> None:
    """A load and a to-do list in one turn both reach state."""
    conversation = Conversation(mode, TodoListMiddleware(), on_disk(tmp_path))
    todos = [{"content": "Load alpha", "status": "in_progress"}]

    answers = conversation.call(("write_todos", {"todos": todos}), load("alpha"))

    assert [answer.status for answer in answers] == ["success", "success"]
    assert conversation.state["todos"] == todos
    assert conversation.loaded == ["alpha"]


@both_modes
def test_two_agents_share_one_instance(mode: Mode, tmp_path: Path) -> None:
    """Agents that share a middleware share no loaded skill."""
    middleware = on_disk(tmp_path)
    first, second = Conversation(mode, middleware), Conversation(mode, middleware)

    first.call(load("alpha"))
    second.call(load("beta"))
    first.say("Hello.")

    assert (first.loaded, second.loaded) == (["alpha"], ["beta"])
    assert loaded_in(first.model.requests[-1].system) == ["alpha"]
    assert loaded_in(second.model.requests[-1].system) == ["beta"]


# --- sub-agents --------------------------------------------------------------------------------------------------


def task(agent: str, text: str = "Do it.") -> tuple[str, dict[str, Any]]:
    return "task", {"description": text, "subagent_type": agent}


def helper(model: ScriptedChatModel, **spec: Any) -> Any:
    return {"name": "helper", "description": "Helps.", "system_prompt": "You help.", "model": model, **spec}


@both_modes
def test_a_declared_sub_agent_loads_for_itself(mode: Mode) -> None:
    """Parent and sub-agent start with nothing of each other, and what one loads the other does not have."""
    sub = ScriptedChatModel(replies=[call_tools(load("beta")), "Helped."])
    model = ScriptedChatModel(replies=[call_tools(load("alpha")), call_tools(task("helper"))])
    middleware = on_state(max_loaded_skills=1)
    agent = create_deep_agent(
        model,
        backend=StateBackend(),
        middleware=[middleware],
        subagents=[helper(sub, middleware=[middleware])],
        checkpointer=InMemorySaver(),
    )

    result = run(mode, agent, start(), CONFIG)

    assert [loaded_in(request.system) for request in sub.requests] == [[], ["beta"]]
    assert [loaded_in(request.system) for request in model.requests] == [[], ["alpha"], ["alpha"]]
    assert state_of(agent)["skills_loaded"] == ["alpha"]
    assert list(state_of(agent)["skill_resources"]) == ["alpha"]
    assert tool_messages(result)[-1].text == "Helped."
    assert "skills_loaded" not in result
    assert "skill_resources" not in result


@both_modes
def test_a_sub_agent_with_sources_of_its_own(mode: Mode) -> None:
    """A sub-agent whose middleware has other sources sees those and not its parent's, and gives nothing back."""
    files = {**FILES, "/others/gamma/SKILL.md": skill_md("gamma")}
    sub = ScriptedChatModel(replies=[call_tools(load("gamma"), load("alpha")), "Helped."])
    model = ScriptedChatModel(replies=[call_tools(task("helper")), call_tools(load("gamma"))])
    others = SkillsMiddleware(backend=StateBackend(), sources=["/others"])
    agent = create_deep_agent(
        model,
        backend=StateBackend(),
        middleware=[on_state()],
        subagents=[helper(sub, middleware=[others])],
        checkpointer=InMemorySaver(),
    )

    result = run(mode, agent, {**start(), "files": state_files(files)}, CONFIG)

    assert "**gamma**" in sub.requests[0].system
    assert "**alpha**" not in sub.requests[0].system
    assert loaded_in(sub.requests[1].system) == ["gamma"]
    assert tool_messages(result)[-1].status == "error"
    assert [skill["name"] for skill in state_of(agent)["skills_metadata"]] == ["alpha", "beta"]


@both_modes
def test_the_general_purpose_sub_agent_loads_for_itself(mode: Mode) -> None:
    """The general-purpose sub-agent has the parent's skills and starts with none of them loaded."""
    model = ScriptedChatModel(
        replies=[
            call_tools(load("alpha")),
            call_tools(task("general-purpose")),
            call_tools(load("beta")),
            "Helped.",
        ]
    )
    agent = create_deep_agent(model, backend=StateBackend(), middleware=[on_state()], checkpointer=InMemorySaver())

    run(mode, agent, start(), CONFIG)

    assert [loaded_in(request.system) for request in model.requests] == [[], ["alpha"], [], ["beta"], ["alpha"]]
    assert all("load_skill" in request.tools for request in model.requests)
    assert state_of(agent)["skills_loaded"] == ["alpha"]


@both_modes
def test_sub_agents_side_by_side(mode: Mode) -> None:
    """Two sub-agents that run at the same time and load different skills disturb neither each other nor the parent."""

    def by_task(messages: list[BaseMessage]) -> AIMessage:
        if messages[-1].type == "tool":
            return AIMessage(f"Loaded {messages[-1].text.count('<skill_content')}.")
        return call_tools(load(messages[-1].text))

    sub = ScriptedChatModel(replies=[by_task] * 4)
    model = ScriptedChatModel(replies=[call_tools(task("helper", "alpha"), task("helper", "beta"), load("beta"))])
    agent = create_deep_agent(
        model,
        backend=StateBackend(),
        middleware=[on_state()],
        subagents=[helper(sub, middleware=[on_state()])],
        checkpointer=InMemorySaver(),
    )

    result = run(mode, agent, start(), CONFIG)

    assert [answer.text for answer in tool_messages(result)[:2]] == ["Loaded 1.", "Loaded 1."]
    assert sorted(loaded_in(request.system) for request in sub.requests) == [[], [], ["alpha"], ["beta"]]
    assert state_of(agent)["skills_loaded"] == ["beta"]


@both_modes
@pytest.mark.filterwarnings("default::langchain_core._api.beta_decorator.LangChainBetaWarning")
def test_a_forked_sub_agent_goes_on_with_what_its_parent_loaded(mode: Mode) -> None:
    """A fork inherits the parent's messages and with them its loaded skills; what it does stays its own."""
    model = ScriptedChatModel(
        replies=[
            call_tools(load("alpha"), load("beta")),
            call_tools(unload("beta")),
            call_tools(task("twin")),
            call_tools(load("alpha"), load("beta"), unload("alpha")),
            "Helped.",
        ]
    )
    with pytest.warns(LangChainBetaWarning):
        agent = create_deep_agent(
            model,
            backend=StateBackend(),
            middleware=[on_state()],
            subagents=[{"name": "twin", "description": "A copy.", "system_prompt": "You are a copy.", "mode": "fork"}],
            checkpointer=InMemorySaver(),
        )

    run(mode, agent, start(), CONFIG)

    before, inside, after = model.requests[2:5]
    assert loaded_in(before.system) == ["alpha"]
    assert loaded_in(inside.system) == ["alpha"]
    assert loaded_in(after.system) == ["beta"]
    answers = [message for message in after.messages if message.type == "tool"][-3:]
    assert "already loaded" in answers[0].text
    assert loaded_in(model.requests[5].system) == ["alpha"]
    assert state_of(agent)["skills_loaded"] == ["alpha"]


# --- summarization -----------------------------------------------------------------------------------------------


def summarizing(request: Request) -> bool:
    """Whether a request asks for a summary and not for the agent's next step."""
    return not request.tools


@both_modes
def test_the_section_survives_deepagents_own_summarization(mode: Mode) -> None:
    """After deepagents compacts the conversation, the section is in the request and shows what is loaded."""
    replies: list[Reply] = [call_tools(load("alpha")), "One.", "Two.", "A summary.", "Three.", "Four."]
    model = ScriptedChatModel(replies=replies, profile={"max_input_tokens": 30_000})
    agent = create_deep_agent(model, backend=StateBackend(), middleware=[on_state()], checkpointer=InMemorySaver())

    run(mode, agent, start(), CONFIG)
    for _ in range(3):
        run(mode, agent, "word " * 12_000, CONFIG)

    last = [request for request in model.requests if not summarizing(request)][-1]
    assert any(summarizing(request) for request in model.requests)
    assert loaded_in(last.system) == ["alpha"]
    assert "-> Resources: 1 reference" in last.system
    assert 'Use `load_skill("beta")`' in last.system
    assert state_of(agent)["skills_loaded"] == ["alpha"]


@both_modes
def test_the_section_survives_langchains_summarization(mode: Mode, tmp_path: Path) -> None:
    """After LangChain's middleware removes messages from state, the section still shows what is loaded."""
    summarizer = SummarizationMiddleware(
        model=ScriptedChatModel(replies=[], fallback="A summary."), trigger=("messages", 6), keep=("messages", 2)
    )
    conversation = Conversation(mode, summarizer, on_disk(tmp_path))
    conversation.call(load("alpha"))

    for _ in range(3):
        conversation.say("Yes.")

    last = conversation.model.requests[-1]
    assert "A summary." in last.text
    assert loaded_in(last.system) == ["alpha"]
    assert conversation.loaded == ["alpha"]
    [answer] = conversation.call(unload("alpha"))
    assert answer.status == "success"


# --- a human approves --------------------------------------------------------------------------------------------


def supervised(mode: Mode, root: Path, **options: Any) -> Conversation:
    return Conversation(mode, HumanInTheLoopMiddleware(interrupt_on={"load_skill": True}), on_disk(root, **options))


def decide(conversation: Conversation, *decisions: dict[str, Any]) -> list[tuple[str | None, str]]:
    """Answer the waiting questions, and return name and status of all answers of tools, in order of the calls."""
    conversation.say(given=Command(resume={"decisions": list(decisions)}))
    calls = [
        call["id"]
        for message in conversation.result["messages"]
        if isinstance(message, AIMessage)
        for call in message.tool_calls
    ]
    answers = {answer.tool_call_id: answer for answer in tool_messages(conversation.result)}
    return [(answers[str(id_)].name, answers[str(id_)].status) for id_ in calls]


APPROVE, REJECT = {"type": "approve"}, {"type": "reject", "message": "Not this one."}


@both_modes
def test_an_approved_load_is_done(mode: Mode, tmp_path: Path) -> None:
    """A load waits for the human, and is done when approved."""
    conversation = supervised(mode, tmp_path)

    assert conversation.call(load("alpha")) == []
    assert conversation.result["__interrupt__"]
    assert conversation.loaded == []

    assert decide(conversation, APPROVE) == [("load_skill", "success")]
    assert conversation.loaded == ["alpha"]


@both_modes
def test_a_rejected_load_does_nothing(mode: Mode, tmp_path: Path) -> None:
    """A load that the human rejected loads nothing, and can be asked for again."""
    conversation = supervised(mode, tmp_path)
    conversation.call(load("alpha"))

    assert decide(conversation, REJECT) == [("load_skill", "error")]

    assert conversation.loaded == []
    assert loaded_in(conversation.model.requests[-1].system) == []
    assert "Instructions of alpha." not in conversation.model.requests[-1].text
    conversation.call(load("alpha"))
    decide(conversation, APPROVE)
    assert conversation.loaded == ["alpha"]


@pytest.mark.parametrize(
    ("decisions", "statuses", "loaded"),
    [
        ((REJECT, APPROVE), ["error", "success"], ["beta"]),
        ((APPROVE, REJECT), ["success", "error"], ["alpha"]),
        ((APPROVE, APPROVE), ["success", "error"], ["alpha"]),
        ((REJECT, REJECT), ["error", "error"], []),
    ],
    ids=["first-rejected", "second-rejected", "both-approved", "both-rejected"],
)
def test_a_rejected_load_takes_no_slot(
    mode: Mode, tmp_path: Path, decisions: tuple[dict[str, Any], ...], statuses: list[str], loaded: list[str]
) -> None:
    """With one slot and two loads in a turn, the slot goes to the first that the human did not reject."""
    conversation = supervised(mode, tmp_path, max_loaded_skills=1)
    conversation.call(load("alpha"), load("beta"))

    assert [status for _name, status in decide(conversation, *decisions)] == statuses

    assert conversation.loaded == loaded
    assert loaded_in(conversation.model.requests[-1].system) == loaded


@both_modes
def test_a_rejected_load_does_not_count_for_an_unload_beside_it(mode: Mode, tmp_path: Path) -> None:
    """An unload beside a rejected load of the same skill finds nothing to unload."""
    conversation = supervised(mode, tmp_path)
    conversation.call(load("alpha"), unload("alpha"))

    assert decide(conversation, REJECT) == [("load_skill", "error"), ("unload_skill", "error")]
    assert conversation.loaded == []


def edit(call: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    name, arguments = call
    return {"type": "edit", "edited_action": {"name": name, "args": arguments}}


@dataclass(frozen=True)
class Edited:
    """Calls of one turn, what a human decides on each, and what must come of it."""

    calls: tuple[tuple[str, dict[str, Any]], ...]
    decisions: tuple[dict[str, Any], ...]
    statuses: list[str]
    loaded: list[str]
    before: tuple[str, ...] = ()


EDITED = {
    "alone": Edited((load("alpha"),), (edit(load("beta")),), ["success"], ["beta"]),
    "to-the-same": Edited(
        (load("alpha"), load("beta")), (edit(load("beta")), APPROVE), ["success", "success"], ["beta"]
    ),
    "unknown-to-known": Edited(
        (load("zzz"), load("beta")), (edit(load("alpha")), APPROVE), ["success", "error"], ["alpha"]
    ),
    "unload-of-another": Edited(
        (unload("alpha"), load("beta")), (edit(unload("zzz")), APPROVE), ["error", "error"], ["alpha"], ("alpha",)
    ),
    "to-another-tool": Edited(
        (load("alpha"), load("beta")), (edit(unload("alpha")), APPROVE), ["success", "success"], ["beta"], ("alpha",)
    ),
}


@pytest.mark.parametrize("case", EDITED.values(), ids=EDITED)
def test_an_edited_call_counts_as_the_human_wrote_it(mode: Mode, tmp_path: Path, case: Edited) -> None:
    """A human may change a call; the calls beside it assume the call as changed, and the slot is taken once."""
    interrupt_on: dict[str, Any] = dict.fromkeys(("load_skill", "unload_skill"), True)
    middleware = on_disk(tmp_path, max_loaded_skills=1)
    conversation = Conversation(mode, HumanInTheLoopMiddleware(interrupt_on=interrupt_on), middleware)
    for name in case.before:
        conversation.call(load(name))
        decide(conversation, APPROVE)

    conversation.call(*case.calls)
    answers = decide(conversation, *case.decisions)[len(case.before) :]

    assert [status for _name, status in answers] == case.statuses
    assert conversation.loaded == case.loaded
    assert loaded_in(conversation.model.requests[-1].system) == case.loaded


@both_modes
def test_an_edited_load_keeps_the_note_about_the_edit(mode: Mode, tmp_path: Path) -> None:
    """What LangChain writes into the answer of an edited load reaches the model together with the skill's text."""
    conversation = supervised(mode, tmp_path)
    conversation.call(load("alpha"))

    decide(conversation, edit(load("beta")))

    [answer] = tool_messages(conversation.result)
    assert "Instructions of beta." in answer.text
    assert answer.text in conversation.model.requests[-1].text
    assert conversation.model.requests[-1].text.count("Instructions of beta.") == 1


# --- very large files --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1_000, 79_000, 81_000, 150_000])
def test_a_very_large_skill_loads_whole_or_says_that_it_did_not(mode: Mode, size: int) -> None:
    """Beside the file tools, which move long results into files, the next request holds the whole text."""
    lines = [f"Step {number}: do the thing." for number in range(size // 24)]
    text = skill_md("large", body="\n".join(lines))[:size] + "\nThe last line.\n"
    model = ScriptedChatModel(replies=[call_tools(load("large"))])
    agent = create_deep_agent(model, backend=StateBackend(), middleware=[on_state()], checkpointer=InMemorySaver())
    given = {"messages": [HumanMessage("go")], "files": state_files({"/skills/large/SKILL.md": text})}

    run(mode, agent, given, CONFIG)

    seen = model.requests[-1].text
    whole = text.rstrip("\n") in seen
    if loaded_in(model.requests[-1].system) == ["large"]:
        assert whole or "too large" in seen
    else:
        assert "was not loaded" in seen
    assert whole or size > 80_000


@both_modes
def test_a_skill_over_the_default_budget_is_refused_by_name(mode: Mode) -> None:
    """A file that no budget holds is refused with a word about its size, and nothing of it is cut off in silence."""
    text = skill_md("large", body="word " * 60_000)
    model = ScriptedChatModel(replies=[call_tools(load("large"))])
    agent = create_deep_agent(model, backend=StateBackend(), middleware=[on_state()], checkpointer=InMemorySaver())
    given = {"messages": [HumanMessage("go")], "files": state_files({"/skills/large/SKILL.md": text})}

    result = run(mode, agent, given, CONFIG)

    [answer] = tool_messages(result)
    assert answer.status == "error"
    assert "larger than the whole budget" in answer.text
    assert state_of(agent)["skills_loaded"] == []


@both_modes
def test_two_instances_in_a_deep_agent_are_an_error_and_no_silent_choice(mode: Mode, tmp_path: Path) -> None:
    """Of several only the last is kept, without a word; the first run says so, and one alone works afterwards."""
    write_files(tmp_path, {"a/one/SKILL.md": skill_md("one"), "b/two/SKILL.md": skill_md("two")})
    backend = disk(tmp_path)

    def made(source: str) -> Any:
        return SkillsMiddleware(backend=backend, sources=[source])

    def agent_of(*middleware: Any, **options: Any) -> Any:
        return create_deep_agent(ScriptedChatModel(replies=[]), backend=backend, middleware=[*middleware], **options)

    first, second = made("/a"), made("/b")
    both = agent_of(first, TodoListMiddleware(), second)
    with pytest.raises(SkillsError, match="keeps only the last"):
        run(mode, both, {"messages": [("user", "go")]})
    names = [middleware.name for middleware in (first, second)]
    assert names == ["SkillsMiddleware"] * 2
    worker: Any = {"name": "w", "description": "Works.", "system_prompt": "Work.", "middleware": [first]}
    for alone in (agent_of(second, subagents=[worker]), agent_of(first), agent_of(first, first)):
        assert run(mode, alone, {"messages": [("user", "go")]})["messages"][-1].type == "ai"
