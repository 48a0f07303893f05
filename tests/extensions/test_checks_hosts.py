"""`SkillChecks` in every host: what a model forgets, proves and holds, however the user's message is given."""

from pathlib import Path
from typing import Any

import pytest
from checks_support import DEPLOY, TEST, TESTED, calls, deploy, own_graph, run_tests
from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
from test_every_host import SHAPES

from deepskills import SkillsMiddleware
from deepskills.extensions import SkillChecks
from deepskills.testing import Reply, ScriptedChatModel
from support import Mode, both_modes, disk, load, run, skill_md, stream, tool_messages, unload, write_files

HOSTS = ["agent", "deep agent", "own graph", "own graph without our tool hook"]
CONFIG: Any = {"configurable": {"thread_id": "one"}}


def process(root: Path, mode: Mode, host: str, saver: Any, *replies: Reply, tools: Any = (run_tests, deploy)) -> Any:
    """Return an agent of a host, with nothing in memory."""
    skills: Any = SkillsMiddleware(backend=disk(root), sources=["/skills"], extensions=[SkillChecks()])
    model = ScriptedChatModel(replies=list(replies), fallback="Never said.")
    if host.startswith("own"):
        wraps = host == "own graph"
        return own_graph(skills, model, is_async=mode == "async", wraps=wraps, saver=saver, more=tools)
    make: Any = create_agent if host == "agent" else create_deep_agent
    return make(model, tools=list(tools), middleware=[skills], checkpointer=saver)


def ours(messages: Any) -> int:
    """Return how often the model was sent back."""
    return sum(one.type == "human" and one.additional_kwargs.get("lc_source") == "deepskills" for one in messages)


@both_modes
@pytest.mark.parametrize("host", HOSTS)
def test_a_turn_in_each_process_for_every_shape(mode: Mode, host: str, tmp_path: Path) -> None:
    """Forgets, is sent back, holds a tool beside its proof; goes on in two other processes, the second one streamed."""
    write_files(tmp_path, {"skills/release/SKILL.md": skill_md("release", checks=TESTED)})
    found: dict[str, list[Any]] = {}
    for name, given in SHAPES.items():
        saver = InMemorySaver()
        early: list[Reply] = [calls(load("release")), "Early.", calls(TEST, DEPLOY), calls(DEPLOY), "Done."]
        first = process(tmp_path, mode, host, saver, *early)
        result = run(mode, first, {"messages": given("go")}, CONFIG)
        held = ["was not run" in answer.text for answer in tool_messages(result) if answer.name == "deploy"]
        again: list[Reply] = [calls(unload("release")), calls(load("release")), "Early.", calls(TEST), "Done."]
        second = process(tmp_path, mode, host, saver, *again)
        heard = [event["type"] for event in stream(mode, second, {"messages": given("go on")}, CONFIG)]
        third = process(tmp_path, mode, host, saver, calls(DEPLOY), "Really done.")
        last = run(mode, third, {"messages": given("and now")}, CONFIG)["messages"]
        found[name] = [held, heard[-2:], ours(result["messages"]), ours(last), last[-1].text, last[-2].text]
    held_first = host != HOSTS[-1]
    told = ["skill.sent_back", "skill.checked"]
    expected = [[held_first, False], told, 1, 2, "Really done.", "deployed"]
    assert {name: one for name, one in found.items() if one != expected} == {}


@both_modes
@pytest.mark.parametrize("host", HOSTS)
def test_a_tool_that_waits_for_a_human_in_another_process(mode: Mode, host: str, tmp_path: Path) -> None:
    """Its answer counts as proof once it was resumed, and not before; the bound of the turn goes on."""

    @tool
    def ask() -> str:
        """Ask a human."""
        return f"The human says {interrupt('Well?')}."

    checks = [{"called": "ask", "before": "deploy"}, {"called": "run_tests"}]
    write_files(tmp_path, {"skills/release/SKILL.md": skill_md("release", checks=checks)})
    saver, tools = InMemorySaver(), (ask, deploy, run_tests)
    early: list[Reply] = [calls(load("release")), "Early.", calls(("ask", {}), TEST)]
    first = process(tmp_path, mode, host, saver, *early, tools=tools)
    assert run(mode, first, "go", CONFIG)["__interrupt__"]
    second = process(tmp_path, mode, host, saver, calls(DEPLOY), "Done.", tools=tools)
    result = run(mode, second, Command(resume="yes"), CONFIG)
    assert [answer.text for answer in tool_messages(result)][-1] == "deployed"
    assert (result["messages"][-1].text, ours(result["messages"])) == ("Done.", 1)
