"""A graph of one's own, built as the how-to says: what users and extensions ask for at a run's start is loaded."""

from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.runtime import Runtime

from deepskills import SkillsMiddleware, SkillsState
from deepskills.extensions import Preload
from deepskills.testing import ScriptedChatModel, call_tools
from support import Mode, both_modes, disk, load, run, skill_md, write_files

CONFIG: Any = {"configurable": {"thread_id": "1"}}


def published(mode: Mode, model: ScriptedChatModel, skills: SkillsMiddleware, *, prepares: bool) -> Any:
    """Return the graph of the how-to, with or without a node for `before_model`."""
    bound = model.bind_tools(skills.tools)

    def call_model(state: SkillsState, runtime: Runtime) -> dict[str, Any]:
        messages, update = skills.model_messages(state, runtime)
        return {**update, "messages": [bound.invoke(messages)]}

    async def acall_model(state: SkillsState, runtime: Runtime) -> dict[str, Any]:
        messages, update = await skills.amodel_messages(state, runtime)
        return {**update, "messages": [await bound.ainvoke(messages)]}

    graph: Any = StateGraph(SkillsState)
    graph.add_node("discover", skills.before_agent if mode == "sync" else skills.abefore_agent)
    graph.add_node("model", call_model if mode == "sync" else acall_model)
    graph.add_node("tools", ToolNode(skills.tools))
    first = "model"
    if prepares:
        first = "prepare"
        graph.add_node("prepare", skills.before_model if mode == "sync" else skills.abefore_model)
        graph.add_edge("prepare", "model")
    graph.add_edge(START, "discover")
    graph.add_edge("discover", first)
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", first)
    return graph.compile(checkpointer=InMemorySaver())


@both_modes
@pytest.mark.parametrize("prepares", [False, True], ids=["discover", "discover and prepare"])
def test_what_is_asked_for_at_the_start_is_loaded(mode: Mode, tmp_path: Path, *, prepares: bool) -> None:
    """Slash commands, pins and preloads come once each into every request, also in a second run of the thread."""
    names = ("alpha", "beta", "gamma", "delta")
    write_files(tmp_path, {f"skills/{name}/SKILL.md": skill_md(name, body=f"Body of {name}.") for name in names})
    options: Any = {"slash_commands": True, "extensions": [Preload(["beta"])]}
    skills = SkillsMiddleware(backend=disk(tmp_path), sources=["/skills"], **options)
    model = ScriptedChatModel(replies=[call_tools(load("gamma")), "Done.", "Again."])
    agent = published(mode, model, skills, prepares=prepares)
    run(mode, agent, "/alpha now", CONFIG)
    second = {"messages": [("user", "And now?")], "pinned_skills": ["delta"]}
    result = run(mode, agent, second, CONFIG)
    assert sorted(agent.get_state(CONFIG).values["skills_loaded"]) == sorted(names)
    present = [{name: request.text.count(f"Body of {name}.") for name in names} for request in model.requests]
    once = dict.fromkeys(names, 1)
    assert present == [{**once, "gamma": 0, "delta": 0}, {**once, "delta": 0}, once]
    assert result["messages"][-1].text == "Again."
