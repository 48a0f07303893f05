"""Unit tests of a skills middleware: hooks and tools on a state made by hand, then whole agents with a scripted model.

Run it with `pytest examples/unit_tests_of_skills.py`, or as a program.
"""

# ruff: noqa: S101, PLR2004 - tests

from typing import Any

from deepagents import create_deep_agent
from deepagents.backends import BackendProtocol
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, SummarizationMiddleware
from langchain.agents.middleware.types import ModelRequest
from langchain.tools import ToolRuntime
from langchain_core.messages import AIMessage, SystemMessage, ToolMessage
from langgraph.runtime import Runtime
from langgraph.types import Command

from deepskills import InlineBackend, InlineSkill, SkillsMiddleware
from deepskills.testing import ScriptedChatModel, call_tools, skills_state

REPORT = InlineSkill(
    "report",
    "Writes reports. Use it for quarterly figures.",
    "# Report\n\nRun the script, then follow the guide.",
    {
        "scripts/figures.py": "print(1)",
        "scripts/chart.py": "print(2)",
        "references/guide.md": "A guide.",
        "assets/logo.svg": "<svg/>",
        "notes.txt": "Beside the file.",
        "tests/test_it.py": "Other directories are no resources.",
    },
)
PLAIN = InlineSkill("plain", "Has no files.", "# Plain\n\nJust do it.")
HUGE = InlineSkill("huge", "Is too large.", lambda: "x" * (10 * 1024 * 1024 + 1))


def make(backend: BackendProtocol | None = None, **options: Any) -> SkillsMiddleware[Any, Any]:
    """The middleware under test."""
    return SkillsMiddleware(backend=backend or InlineBackend([REPORT, PLAIN, HUGE]), sources=["/"], **options)


def call(middleware: SkillsMiddleware[Any, Any], tool: str, name: str, state: dict[str, Any]) -> Command[Any]:
    """Call a tool as the tool node of an agent does."""
    runtime: Any = ToolRuntime(
        state=state, context=None, config={}, stream_writer=lambda _: None, tool_call_id="1", store=None
    )
    [found] = [item for item in middleware.tools if item.name == tool]
    result = found.invoke(
        {"type": "tool_call", "id": "1", "name": tool, "args": {"skill_name": name, "runtime": runtime}}
    )
    return result if isinstance(result, Command) else Command(update={"messages": [result]})


def answer(command: Command[Any]) -> ToolMessage:
    """What the model reads."""
    message: ToolMessage = command.update["messages"][-1]  # type: ignore[index]
    return message


def changes(command: Command[Any]) -> set[str]:
    """The public keys of the state that a call changes."""
    return set(command.update or ()) & {"skills_loaded", "skill_resources"}


def prompt(middleware: SkillsMiddleware[Any, Any], state: dict[str, Any]) -> str:
    """The system prompt of a request with this state."""
    typed: Any = state
    model, system = ScriptedChatModel(replies=[]), SystemMessage("Help.")
    request: Any = ModelRequest(model=model, messages=[], system_message=system, state=typed, runtime=Runtime())
    changed: Any = middleware.modify_request(request)
    return str(changed.system_message.text)


# Resources.


def test_files_of_a_skill_are_found_by_directory() -> None:
    state = skills_state(make(), ["report"])
    found = {file["path"].removeprefix("/report/"): file["type"] for file in state["skill_resources"]["report"]}
    assert found == {
        "scripts/figures.py": "script",
        "scripts/chart.py": "script",
        "references/guide.md": "reference",
        "assets/logo.svg": "asset",
        "notes.txt": "other",
    }


def test_a_skill_without_files_has_no_resources() -> None:
    assert skills_state(make(), ["plain"])["skill_resources"] == {"plain": []}


def test_a_backend_that_cannot_list_costs_the_list_and_not_the_load() -> None:
    class Unlisted(InlineBackend):
        def ls(self, path: str) -> Any:
            if path != "/":
                raise OSError("on fire")
            return super().ls(path)

    middleware = make(Unlisted([PLAIN]))
    command = call(middleware, "load_skill", "plain", skills_state(middleware))
    assert "Just do it." in answer(command).text
    assert answer(command).status == "success"


# State.


def test_a_thread_begins_with_nothing_loaded() -> None:
    middleware = make()
    state = skills_state(middleware)
    assert (state["skills_loaded"], state["skill_resources"]) == ([], {})
    assert [skill["name"] for skill in state["skills_metadata"]] == ["plain", "report"]
    assert middleware.before_agent(state, Runtime()) is None  # type: ignore[arg-type]


# Loading.


def test_a_load_gives_the_text_and_the_files() -> None:
    middleware = make()
    command = call(middleware, "load_skill", "report", skills_state(middleware))
    assert command.update["skills_loaded"] == ["report"]  # type: ignore[index]
    assert len(command.update["skill_resources"]["report"]) == 5  # type: ignore[index]
    assert "Run the script, then follow the guide." in answer(command).text
    assert "- [script] `/report/scripts/figures.py`" in answer(command).text


def test_what_cannot_be_loaded_changes_nothing() -> None:
    middleware = make(max_loaded_skills=1)
    none, full = skills_state(middleware), skills_state(middleware, ["plain"])
    for name, state, words in (
        ("nobody", none, "There is no skill named 'nobody'"),
        ("plain", full, "already loaded"),
        ("huge", none, "cannot be used (file-too-large)"),
        ("report", full, 'unload_skill("plain")'),
    ):
        command = call(middleware, "load_skill", name, state)
        assert words in answer(command).text
        assert changes(command) == set()


def test_a_file_that_is_gone_is_an_error() -> None:
    texts = ["Just do it.", "Just do it."]
    middleware = make(InlineBackend([InlineSkill("brief", "Does it.", texts.pop)]))
    state = skills_state(middleware)
    texts.clear()
    command = call(middleware, "load_skill", "brief", state)
    assert (answer(command).status, changes(command)) == ("error", set())


# Unloading.


def test_an_unload_removes_name_and_files() -> None:
    middleware = make()
    command = call(middleware, "unload_skill", "report", skills_state(middleware, ["report"]))
    assert command.update["skills_loaded"] == {"unload": ["report"]}  # type: ignore[index]
    assert command.update["skill_resources"] == {"report": None}  # type: ignore[index]


def test_only_what_is_loaded_can_be_unloaded() -> None:
    middleware = make()
    command = call(middleware, "unload_skill", "report", skills_state(middleware, ["plain"]))
    assert "is not loaded. Loaded now: plain" in answer(command).text
    assert (answer(command).status, changes(command)) == ("error", set())


# The prompt.


def test_the_prompt_says_what_is_loaded_and_how_to_load_the_rest() -> None:
    middleware = make()
    text = prompt(middleware, skills_state(middleware, ["report"]))
    assert "- **report** [Loaded]: Writes reports." in text
    assert "  -> Resources: 1 asset, 1 other file, 1 reference, 2 scripts" in text
    assert '  -> Use `load_skill("plain")` to read full instructions' in text
    assert 'load_skill("report")' not in text


def test_the_prompt_counts_no_files_where_there_are_none() -> None:
    middleware = make()
    assert "Resources" not in prompt(middleware, skills_state(middleware, ["plain"]))


# Whole agents. Only the model is scripted.


def load(name: str) -> AIMessage:
    """The model's message that loads a skill."""
    return call_tools(("load_skill", {"skill_name": name}))


def unload(name: str) -> AIMessage:
    """The model's message that unloads a skill."""
    return call_tools(("unload_skill", {"skill_name": name}))


def run(*replies: AIMessage, around: tuple[AgentMiddleware[Any, Any, Any], ...] = ()) -> ScriptedChatModel:
    """Run an agent with skills, and return its model, which remembers what it was sent."""
    model = ScriptedChatModel(replies=list(replies))
    agent: Any = create_agent(model, middleware=[*around, make()])
    agent.invoke({"messages": "go"})
    return model


def test_a_skill_is_loaded_unloaded_and_loaded_again() -> None:
    model = run(load("report"), unload("report"), load("report"))
    marks = ["**report** [Loaded]" in request.system for request in model.requests]
    assert marks == [False, True, False, True]
    texts = ["Run the script, then follow the guide." in request.text for request in model.requests]
    assert texts == [False, True, False, True]
    # Its files are looked up at each load.
    assert "- [script] `/report/scripts/figures.py`" in model.requests[-1].messages[-1].text


def test_a_loaded_text_outlives_a_summary() -> None:
    summaries = SummarizationMiddleware(
        ScriptedChatModel(replies=["A summary."]), trigger=("messages", 4), keep=("messages", 1)
    )
    model = run(load("report"), load("plain"), around=(summaries,))
    last = model.requests[-1].text
    assert "A summary." in last
    assert "Run the script, then follow the guide." in last
    assert "Just do it." in last


def test_reading_the_file_with_file_tools_does_no_harm() -> None:
    model = ScriptedChatModel(replies=[call_tools(("read_file", {"file_path": "/plain/SKILL.md"})), load("plain")])
    backend = InlineBackend([REPORT, PLAIN])
    agent: Any = create_deep_agent(model, backend=backend, middleware=[make(backend)])
    agent.invoke({"messages": "go"})
    read, loaded = (request.messages[-1].text for request in model.requests[1:])
    assert "# Plain" in read
    assert "# Plain" in loaded
    assert "**plain** [Loaded]" not in model.requests[1].system
    assert "**plain** [Loaded]" in model.requests[2].system


def test_a_sub_agent_loads_for_itself() -> None:
    task = call_tools(("task", {"description": "Write it.", "subagent_type": "general-purpose"}))
    model = ScriptedChatModel(replies=[load("plain"), task, load("report"), "Written."])
    backend = InlineBackend([REPORT, PLAIN])
    agent: Any = create_deep_agent(model, backend=backend, middleware=[make(backend)])
    agent.invoke({"messages": "go"})
    loaded = [[name for name in ("plain", "report") if f"**{name}** [Loaded]" in r.system] for r in model.requests]
    # The agent twice, its sub-agent twice, and the agent again.
    assert loaded == [[], ["plain"], [], ["report"], ["plain"]]


def main() -> None:
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print(f"{name}: passed")


if __name__ == "__main__":
    main()
