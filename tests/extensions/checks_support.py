"""An agent with checked skills, for the tests of `SkillChecks`: its tools, its thread, and what was heard of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.runtime import Runtime
from langgraph.types import Command

from deepskills import (
    SkillExtension,
    SkillsMiddleware,
    SkillsState,
)
from deepskills.extensions import (
    SkillChecks,
    SkillUsage,
    UsageEvent,
)
from deepskills.testing import Reply, ScriptedChatModel, call_tools
from support import Mode, disk, run, skill_md, tool_messages, write_files

TESTED: list[dict[str, Any]] = [{"called": "run_tests", "before": "deploy"}]
TEST: tuple[str, dict[str, Any]] = ("run_tests", {})
DEPLOY: tuple[str, dict[str, Any]] = ("deploy", {})


@tool
def run_tests() -> str:
    """Run the tests."""
    return "ok"


@tool
def deploy() -> str:
    """Deploy."""
    return "deployed"


@tool
def broken() -> str:
    """Fail."""
    raise ToolException("no")


broken.handle_tool_error = True


@tool(response_format="content_and_artifact")
def execute(command: str, timeout: int | None = None) -> tuple[str, dict[str, Any]]:  # noqa: ARG001 - a shell's signature
    """Run a command: `fails` fails, `unknown` has no exit code, all else succeeds."""
    code = {"fails": 1, "unknown": None}.get(command.rpartition(" ")[2], 0)
    return "[Command succeeded with exit code 0]", {} if code is None else {"exit_code": code}


@tool
def write_file(file_path: str, content: str) -> str:
    """Write a file."""
    if content == "refused":
        raise ToolException("refused")
    return f"wrote {file_path}"


write_file.handle_tool_error = True
TOOLS = [run_tests, deploy, broken, execute, write_file]


class Talk:
    """An agent with checked skills, its thread, and what was heard of them."""

    def __init__(
        self,
        root: Path,
        checks: Any = TESTED,
        *,
        mode: Mode = "sync",
        extension: SkillChecks | None = None,
        others: Sequence[SkillExtension] = (),
        middleware: Sequence[AgentMiddleware[Any, Any]] = (),
        make: Any = create_agent,
        skills: Mapping[str, Any] | None = None,
        tools: Sequence[BaseTool] = TOOLS,
        fields: Mapping[str, Any] | None = None,
        backend: Any = None,
        settings: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        own = {"release": checks} if skills is None else skills
        for name, given in own.items():
            more = {} if given is None else {"checks": given}
            write_files(root, {f"skills/{name}/SKILL.md": skill_md(name, **{**more, **(fields or {})})})
        self.mode, self.events = mode, list[UsageEvent]()
        self.usage = SkillUsage(self.events.append)
        self.checks = SkillChecks() if extension is None else extension
        self.skills = SkillsMiddleware(
            backend=backend or disk(root),
            sources=options.pop("sources", ["/skills"]),
            extensions=[self.checks, *others, self.usage],
            **(settings or {}),
        )
        self.model = ScriptedChatModel(replies=[])
        self.saver = options.pop("checkpointer", None) or InMemorySaver()
        if make is create_agent:
            options["tools"] = [*tools]
        else:
            options |= {"tools": [item for item in tools if item.name not in {"execute", "write_file"}]}
            options["backend"] = backend or disk(root)
        self.agent = make(self.model, middleware=[*middleware, self.skills], checkpointer=self.saver, **options)
        self.config: Any = {"configurable": {"thread_id": "one"}}

    def say(self, *replies: Reply, given: Any = "go") -> dict[str, Any]:
        """Run the agent with these replies of the model."""
        self.model.replies = [*([""] * len(self.model.requests)), *replies]
        result = run(self.mode, self.agent, given, self.config)
        self.usage.flush()
        return result

    def heard(self, *kinds: str) -> list[tuple[str, Any]]:
        """Return the events of checks: type, and what they say."""
        self.usage.flush()
        wanted = kinds or ("skill.checked", "skill.unchecked")
        return [
            (event.type, event.details.get("status") or event.details.get("checks") or event.details.get("count"))
            for event in self.events
            if event.type in wanted
        ]

    @property
    def state(self) -> dict[str, Any]:
        """What the thread's checkpoint holds."""
        values: dict[str, Any] = self.agent.get_state(self.config).values
        return values

    @property
    def sent_back(self) -> list[str]:
        """The messages by which the model was sent back."""
        given = self.state["messages"]
        return [
            str(m.text) for m in given if m.type == "human" and m.additional_kwargs.get("lc_source") == "deepskills"
        ]

    @property
    def codes(self) -> list[str]:
        """The codes of the thread's problems."""
        return [found["code"] for found in self.state["skills_problems"]]

    def answers(self, name: str) -> list[str]:
        """Return what a tool has answered on the thread."""
        return [str(answer.text) for answer in tool_messages(self.state) if answer.name == name]


def calls(*made: Any) -> AIMessage:
    """Return a message with calls, with new ids at each use."""
    return call_tools(*made)


def own_graph(
    skills: SkillsMiddleware,
    model: ScriptedChatModel,
    *,
    is_async: bool,
    wraps: bool = True,
    saver: Any = None,
    more: Sequence[BaseTool] = (run_tests, deploy),
) -> Any:
    """Return a graph with the tools in a node, as the documentation has it."""
    tools = [*skills.tools, *more]
    bound = model.bind_tools(tools)

    def call_model(state: SkillsState, runtime: Runtime) -> Any:
        messages, update = skills.model_messages(state, runtime)
        return {**update, "messages": [bound.invoke(messages)]}

    async def acall_model(state: SkillsState, runtime: Runtime) -> Any:
        messages, update = await skills.amodel_messages(state, runtime)
        return {**update, "messages": [await bound.ainvoke(messages)]}

    def check(state: SkillsState, runtime: Runtime) -> Any:
        again, update = skills.send_back(state, runtime)
        assert bool(skills.open_checks(state, runtime)) >= again
        return Command(goto="model" if again else END, update=update)

    async def acheck(state: SkillsState, runtime: Runtime) -> Any:
        again, update = await skills.asend_back(state, runtime)
        assert bool(await skills.aopen_checks(state, runtime)) >= again
        return Command(goto="model" if again else END, update=update)

    hooks: Any = {"wrap_tool_call": skills.wrap_tool_call, "awrap_tool_call": skills.awrap_tool_call} if wraps else {}
    graph: Any = StateGraph(SkillsState)
    graph.add_node("discover", skills.abefore_agent if is_async else skills.before_agent)
    graph.add_node("model", acall_model if is_async else call_model)
    graph.add_node("tools", ToolNode(tools, **hooks))
    graph.add_node("check", acheck if is_async else check)
    graph.add_edge(START, "discover")
    graph.add_edge("discover", "model")
    graph.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else "check")
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=saver or InMemorySaver())
