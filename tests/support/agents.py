"""Skills to put on a backend, and the one way to talk to an agent and to follow its stream, sync or async."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from deepagents.backends import FilesystemBackend
from deepagents.backends.utils import create_file_data
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain.tools import ToolRuntime
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command

from deepskills import SkillsMiddleware, SkillsState, generate_skill_md
from deepskills._io.drivers import Steps
from deepskills._io.plan import Call, Plan, ResultT
from deepskills.testing import Reply, ScriptedChatModel, call_tools
from support.modes import Mode


def by_hand(plan: Plan[ResultT], answer: Callable[[Call[Any]], object]) -> tuple[ResultT, list[tuple[Call[Any], ...]]]:
    """Perform a plan by a function that answers each call, and return its result with the calls of each round."""
    rounds: list[tuple[Call[Any], ...]] = []
    steps = Steps(plan)
    calls = steps.start()
    while calls is not None:
        rounds.append(tuple(calls))
        calls = steps.answer([answer(call) for call in calls])
    return steps.result, rounds


def skill_md(name: str, description: str = "Does a thing.", body: str = "", **fields: object) -> str:
    """Return a valid `SKILL.md`; fields with a hyphen are written with an underscore."""
    extra = {key.replace("_", "-"): value for key, value in fields.items()}
    return generate_skill_md(name, description, body or f"# {name}\n\nInstructions of {name}.\n", extra)


def state_files(files: Mapping[str, str]) -> dict[str, Any]:
    """Return files as the `files` key of an agent on `StateBackend` takes them."""
    return {path: create_file_data(text) for path, text in files.items()}


def write_files(root: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files below `root`, given by path relative to it."""
    for path, content in files.items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)


def disk(root: Path) -> FilesystemBackend:
    """Return a backend whose `/` is `root`."""
    return FilesystemBackend(root_dir=root, virtual_mode=True)


def skills(root: Path, **options: Any) -> SkillsMiddleware[Any, Any]:
    """Return the middleware on the skills in the directory `skills` of `root`."""
    return SkillsMiddleware(backend=disk(root), sources=["/skills"], **options)


@tool
def pin_skills(names: list[str], runtime: ToolRuntime[Any, Any]) -> Command[Any]:
    """Name skills for the next model call."""
    answer = ToolMessage("Named.", tool_call_id=runtime.tool_call_id)
    return Command(update={"pinned_skills": names, "messages": [answer]})


def run(mode: Mode, agent: Runnable[Any, Any], given: Any = "go", config: Any = None, **kwargs: Any) -> dict[str, Any]:
    """Run an agent to its end, by `invoke` or by `ainvoke`; text stands for a user's message."""
    value = {"messages": [HumanMessage(given)]} if isinstance(given, str) else given
    if mode == "sync":
        result = agent.invoke(value, config, **kwargs)
    else:
        result = asyncio.run(agent.ainvoke(value, config, **kwargs))
    assert isinstance(result, dict)
    return result


def stream(
    mode: Mode, agent: Any, given: Any = "go", config: Any = None, kinds: str | list[str] = "custom", **kwargs: Any
) -> list[Any]:
    """Return what a run streams, by `stream` or by `astream`: by default the events of skills."""
    value = {"messages": [HumanMessage(given)]} if isinstance(given, str) else given
    if mode == "sync":
        return list(agent.stream(value, config, stream_mode=kinds, **kwargs))

    async def collected() -> list[Any]:
        return [item async for item in agent.astream(value, config, stream_mode=kinds, **kwargs)]

    return asyncio.run(collected())


def tool_messages(result: Mapping[str, Any]) -> list[ToolMessage]:
    """Return the answers of tools, in order."""
    return [message for message in result["messages"] if isinstance(message, ToolMessage)]


def loaded_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a thread's state says about loaded skills."""
    records = state.get("skills_context", {}).get("records", {})
    return {"names": state["skills_loaded"], "files": state["skill_resources"], "records": records}


def load(name: object) -> tuple[str, dict[str, Any]]:
    """Return a call of `load_skill`, as `call_tools` takes it."""
    return "load_skill", {"skill_name": name}


def unload(name: object) -> tuple[str, dict[str, Any]]:
    """Return a call of `unload_skill`, as `call_tools` takes it."""
    return "unload_skill", {"skill_name": name}


def without_origin(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return events without `source`, `digest` and `trigger`, for tests that are about what happened."""
    return [{k: v for k, v in event.items() if k not in {"source", "digest", "trigger"}} for event in events]


def loaded_in(text: str) -> list[str]:
    """Return the skills that a system prompt marks as loaded, in the order of the catalog."""
    return re.findall(r"^- \*\*(.+?)\*\* \[Loaded\]", text, re.MULTILINE)


class Conversation:
    """An agent whose model follows a script, and the thread on which a test talks to it."""

    def __init__(
        self,
        mode: Mode,
        *middleware: AgentMiddleware[Any, Any],
        tools: Sequence[BaseTool] = (),
        model: ScriptedChatModel | None = None,
    ) -> None:
        self.mode = mode
        self.model = model if model is not None else ScriptedChatModel(replies=[])
        self.config: RunnableConfig = {"configurable": {"thread_id": "conversation"}}
        self.agent: Any = create_agent(
            self.model, tools=list(tools), middleware=middleware, checkpointer=InMemorySaver()
        )
        self.result: dict[str, Any] = {}
        self._answered = 0

    def say(self, *replies: Reply, given: Any = "go", **kwargs: Any) -> list[ToolMessage]:
        """Run the agent with these replies of the model, and return the answers of tools that came in the run."""
        called = len(self.model.requests)
        self.model.replies = [*([self.model.fallback] * called), *replies]
        self.result = run(self.mode, self.agent, given, self.config, **kwargs)
        answers = tool_messages(self.result)
        new, self._answered = answers[self._answered :], len(answers)
        return new

    def stream(self, *replies: Reply, given: Any = "go", kinds: str | list[str] = "custom") -> list[Any]:
        """Run the agent with these replies of the model, and return what the run streams."""
        called = len(self.model.requests)
        self.model.replies = [*([self.model.fallback] * called), *replies]
        found = stream(self.mode, self.agent, given, self.config, kinds)
        self._answered = len(tool_messages(self.state))
        return found

    def call(self, *calls: tuple[str, dict[str, Any]]) -> list[ToolMessage]:
        """Have the model make these calls in one turn, and return their answers."""
        return self.say(call_tools(*calls))

    @property
    def state(self) -> dict[str, Any]:
        """What the thread's checkpoint holds."""
        values: dict[str, Any] = self.agent.get_state(self.config).values
        return values

    @property
    def loaded(self) -> list[str]:
        """The names of the loaded skills, in load order."""
        names: list[str] = self.state["skills_loaded"]
        return names


def hand_written_graph(
    model: ScriptedChatModel,
    middleware: SkillsMiddleware,
    checkpointer: BaseCheckpointSaver[Any] | None = None,
    tools: Sequence[BaseTool] = (),
) -> Any:
    """Return a graph without `create_agent`: discovery as a node, the section in the prompt, the tools in a node."""
    all_tools = [*middleware.tools, *tools]
    bound = model.bind_tools(all_tools)

    def call_model(state: SkillsState) -> dict[str, Any]:
        return {"messages": [bound.invoke([SystemMessage(middleware.skills_section(state)), *state["messages"]])]}

    graph: Any = StateGraph(SkillsState)
    graph.add_node("skills", middleware.before_agent)
    graph.add_node("model", call_model)
    graph.add_node("tools", ToolNode(all_tools))
    graph.add_edge(START, "skills")
    graph.add_edge("skills", "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=checkpointer)
