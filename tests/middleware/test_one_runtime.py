"""Every function of the user's is given one kind of runtime, wherever it is called from."""

from pathlib import Path
from typing import Any

from deepagents import create_deep_agent
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import ToolRuntime
from langgraph.store.memory import InMemoryStore

from deepskills import SkillsMiddleware
from deepskills.testing import ScriptedChatModel, call_tools
from support import Mode, both_modes, disk, load, run, skill_md, write_files

CONFIG: Any = {"configurable": {"thread_id": "t-1"}}


@both_modes
def test_functions_are_given_a_tools_runtime_everywhere(mode: Mode, tmp_path: Path) -> None:
    """Discovery, the model call and tools alike give state, configuration, context, store and writer."""
    write_files(tmp_path, {"skills/alpha/SKILL.md": skill_md("alpha", body="Text of alpha.")})
    seen: dict[str, list[Any]] = {"backend": [], "sources": [], "visibility": []}

    def facts(runtime: Any) -> tuple[Any, ...]:
        assert isinstance(runtime, ToolRuntime)
        runtime.stream_writer({"told": True})
        thread = runtime.config["configurable"]["thread_id"]
        return thread, runtime.context, runtime.store is store, "messages" in runtime.state, runtime.tool_call_id

    def backend(runtime: Any) -> Any:
        seen["backend"].append(facts(runtime))
        return disk(tmp_path)

    def sources(runtime: Any) -> list[str]:
        seen["sources"].append(facts(runtime))
        return ["/skills"]

    def visibility(_skill: Any, runtime: Any) -> Any:
        seen["visibility"].append(facts(runtime))
        return "on"

    store = InMemoryStore()
    model = ScriptedChatModel(replies=[call_tools(load("alpha"))])
    skills = SkillsMiddleware(backend=backend, sources=sources, visibility=visibility)
    agent: Any = create_deep_agent(
        model, middleware=[skills], checkpointer=InMemorySaver(), store=store, context_schema=dict[str, str]
    )
    result = run(mode, agent, "go", CONFIG, context={"user": "ann"})
    assert "Text of alpha." in str(result["messages"])
    for found in seen.values():
        assert {facts[:4] for facts in map(_frozen, found)} == {("t-1", "ann", True, True)}
        assert found[0][4] is None  # discovery is no tool call
    assert any(facts[4] for facts in seen["backend"])


def _frozen(facts: tuple[Any, ...]) -> tuple[Any, ...]:
    return facts[0], facts[1]["user"], *facts[2:]


@both_modes
def test_a_function_that_raises_is_an_error_problem(mode: Mode, tmp_path: Path) -> None:
    """The run goes on without skills, and the problem says why."""
    write_files(tmp_path, {"skills/alpha/SKILL.md": skill_md("alpha")})

    def fails(*_given: Any) -> Any:
        raise LookupError("no such user")

    for options in ({"backend": fails}, {"sources": fails}, {"visibility": fails}):
        given: dict[str, Any] = {"backend": disk(tmp_path), "sources": ["/skills"], **options}
        agent = create_deep_agent(
            ScriptedChatModel(replies=[]), middleware=[SkillsMiddleware(**given)], checkpointer=InMemorySaver()
        )
        run(mode, agent, "go", CONFIG)
        problems = agent.get_state(CONFIG).values["skills_problems"]
        assert [p for p in problems if p["severity"] == "error" and "no such user" in p["message"]], options
