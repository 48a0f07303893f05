"""What we rely on in LangChain, LangGraph and deepagents beside their documented interfaces.

Each test is one reliance, and says what breaks with it. When a release fails one, this file is the list of what to do.
"""

import inspect
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends import CompositeBackend, FilesystemBackend, StateBackend
from deepagents.backends.protocol import BackendProtocol, ExecuteResponse, execute_accepts_timeout
from deepagents.middleware.filesystem import FilesystemMiddleware
from deepagents.middleware.skills import SkillsMiddleware as DeepAgentsSkillsMiddleware
from langchain.agents import create_agent
from langchain.agents.middleware import ClearToolUsesEdit, ContextEditingMiddleware, SummarizationMiddleware
from langchain.agents.middleware.types import AgentMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.graph import START, StateGraph
from langgraph.runtime import get_runtime

from deepskills import SkillsMiddleware
from deepskills.testing import ScriptedChatModel, call_tools


def _graph() -> Any:
    return StateGraph(dict)


def _given(*messages: Any) -> Any:
    return {"messages": list(messages)}


HOOKS = {
    *("before_agent", "abefore_agent", "wrap_model_call", "awrap_model_call", "wrap_tool_call", "awrap_tool_call"),
    "modify_request",
}
"""The hooks of deepagents' class; each must be ours as well, or theirs runs on sources that it does not have."""


def test_deepagents_class_has_no_hook_that_we_leave_to_it() -> None:
    """A new hook would run upstream's code on an empty list of sources."""
    names = set(dir(AgentMiddleware)) | HOOKS
    theirs = {name for name, value in vars(DeepAgentsSkillsMiddleware).items() if callable(value) and name in names}
    theirs -= {"__init__", "__init_subclass__", "__class_getitem__"}
    ours = {name for kind in SkillsMiddleware.__mro__ for name in vars(kind) if kind is not DeepAgentsSkillsMiddleware}
    assert theirs >= HOOKS - {"wrap_tool_call", "awrap_tool_call"}
    assert theirs <= ours


def test_the_slot_goes_by_class_and_name() -> None:
    """Otherwise `create_deep_agent` adds a second skills middleware, or leaves sub-agents without skills."""
    assert issubclass(SkillsMiddleware, DeepAgentsSkillsMiddleware)
    assert SkillsMiddleware(backend=StateBackend(), sources=[]).name == "SkillsMiddleware"
    assert DeepAgentsSkillsMiddleware(backend=StateBackend(), sources=[]).name == "SkillsMiddleware"


def test_create_deep_agent_asks_for_names_in_its_own_frame() -> None:
    """Otherwise two skills middlewares, or `skills=` beside ours, pass without a word."""
    parameters = inspect.signature(create_deep_agent).parameters
    assert {"middleware", "skills"} <= set(parameters)
    asked: list[tuple[str, bool]] = []

    class Asked(AgentMiddleware[Any, Any, Any]):
        @property
        def name(self) -> str:
            frame: Any = inspect.currentframe()
            for _ in range(4):
                frame = frame.f_back
                if frame.f_code.co_name == "create_deep_agent":
                    asked.append((frame.f_code.co_name, "middleware" in frame.f_locals and "skills" in frame.f_locals))
                    break
            return "Asked"

    create_deep_agent(ScriptedChatModel(replies=[]), middleware=[Asked()])
    assert asked
    assert all(is_there for _, is_there in asked)


def test_the_read_file_tool_closes_over_its_middleware() -> None:
    """Otherwise the section cannot tell that file tools work on another backend than the skills."""
    backend = StateBackend()
    [read] = [each for each in FilesystemMiddleware(backend=backend).tools if each.name == "read_file"]
    cells = [cell.cell_contents for cell in (getattr(read, "func", _graph).__closure__ or ())]
    assert any(isinstance(owner, FilesystemMiddleware) and owner.backend is backend for owner in cells)


def test_a_composite_backend_tells_its_routes() -> None:
    """Otherwise skills on mounted backends are looked for in the wrong place."""
    inner = StateBackend()
    composite = CompositeBackend(default=StateBackend(), routes={"/a/": inner, "/a/b/": inner})
    assert [prefix for prefix, _ in composite.sorted_routes] == ["/a/b/", "/a/"]
    assert composite.routes["/a/"] is inner


def test_execute_says_whether_it_takes_a_timeout() -> None:
    """Otherwise commands on older sandboxes fail for an argument that they do not know."""

    class Old(FilesystemBackend):
        def execute(self, command: str) -> ExecuteResponse:  # noqa: ARG002
            return ExecuteResponse(output="", exit_code=0, truncated=False)

    assert execute_accepts_timeout(Old) is False


def test_the_protocol_has_the_methods_that_drivers_call() -> None:
    """Otherwise every call of a backend fails."""
    for name in ("ls", "als", "download_files", "adownload_files", "upload_files", "aupload_files", "write", "awrite"):
        assert callable(getattr(BackendProtocol, name))


def test_an_evicted_result_is_a_stub_that_names_a_file(tmp_path: Path) -> None:
    """Otherwise a skill's text that deepagents evicted is taken for somebody's edit, and does not come back."""

    @tool
    def large() -> str:
        """Return much."""
        return "word " * 40_000

    model = ScriptedChatModel(replies=[call_tools(("large", {})), "Done."])
    backend = FilesystemBackend(root_dir=tmp_path, virtual_mode=True)
    agent = create_agent(model, tools=[large], middleware=[FilesystemMiddleware(backend=backend)])
    [stub] = [m for m in agent.invoke(_given(HumanMessage("go")))["messages"] if isinstance(m, ToolMessage)]
    assert "/large_tool_results/" in str(stub.text)
    assert len(str(stub.text)) < 10_000


def test_a_cleared_result_bears_its_mark() -> None:
    """Otherwise a text that context editing cleared is taken for somebody's edit."""

    @tool
    def small() -> str:
        """Return a word."""
        return "word " * 50

    edit = ClearToolUsesEdit(trigger=10, keep=0, clear_at_least=0)
    model = ScriptedChatModel(replies=[call_tools(("small", {})), "Done."])
    agent = create_agent(model, tools=[small], middleware=[ContextEditingMiddleware(edits=[edit])])
    agent.invoke(_given(HumanMessage("go")))
    [cleared] = [m for m in model.requests[-1].messages if isinstance(m, ToolMessage)]
    assert cleared.response_metadata["context_editing"]["cleared"] is True
    assert str(cleared.text) == "[cleared]"


def test_a_summary_bears_its_mark() -> None:
    """Otherwise a summary is taken for the user's newest message, and texts are put back in the wrong place."""
    model = ScriptedChatModel(replies=["A summary.", "Done."])
    middleware = SummarizationMiddleware(model=model, trigger=("messages", 3), keep=("messages", 1))
    messages = [HumanMessage("one"), AIMessage("two"), HumanMessage("three"), AIMessage("four"), HumanMessage("five")]
    result = create_agent(model, middleware=[middleware]).invoke(_given(*messages))
    assert any(m.additional_kwargs.get("lc_source") == "summarization" for m in result["messages"])


def test_interrupts_are_bubbles() -> None:
    """Otherwise a broad `except` of ours swallows a question to a human."""
    assert issubclass(GraphInterrupt, GraphBubbleUp)
    assert issubclass(GraphInterrupt, Exception)


def test_a_nested_graph_is_told_by_its_namespace() -> None:
    """Otherwise a model's text that starts with a slash, handed to an inner agent, starts a skill."""
    seen: list[str] = []

    def look(_state: dict[str, Any]) -> dict[str, Any]:
        seen.append(str(get_config()["metadata"].get("langgraph_checkpoint_ns")))
        return {}

    inner = _graph().add_node("look", look).add_edge(START, "look").compile()
    inner.invoke({"a": 1})
    _graph().add_node("inner", inner).add_edge(START, "inner").compile().invoke({"a": 1})
    alone, nested = seen
    assert "|" not in alone
    assert "|" in nested


def test_an_invocation_is_known_by_its_stream_writer() -> None:
    """Otherwise hooks of one run ask providers again and again, or share what another run has seen."""
    seen: list[object] = []

    def look(_state: dict[str, Any]) -> dict[str, Any]:
        seen.append(get_runtime().stream_writer)
        return {}

    graph = _graph().add_node("a", look).add_node("b", look).add_edge(START, "a").add_edge("a", "b").compile()
    graph.invoke({"x": 1})
    graph.invoke({"x": 1})
    assert seen[0] is seen[1]
    assert seen[1] is not seen[2]


def test_parallel_calls_see_their_siblings() -> None:
    """Otherwise a load and an unload of one turn cannot be told apart, and budgets are overshot."""
    seen: list[int] = []

    class Watch(AgentMiddleware[Any, Any, Any]):
        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            seen.append(len(request.runtime.state["messages"][-1].tool_calls))
            return handler(request)

    @tool
    def small() -> str:
        """Return a word."""
        return "word"

    model = ScriptedChatModel(replies=[call_tools(("small", {}), ("small", {})), "Done."])
    create_agent(model, tools=[small], middleware=[Watch()]).invoke(_given(HumanMessage("go")))
    assert seen == [2, 2]


@pytest.mark.parametrize("name", ["langgraph_checkpoint_ns", "langgraph_node", "langgraph_step"])
def test_a_step_has_its_metadata(name: str) -> None:
    """Otherwise nobody can tell our own hook's node, its step, or an outer graph."""
    seen: list[dict[str, Any]] = []

    def look(_state: dict[str, Any]) -> dict[str, Any]:
        seen.append(dict(get_config()["metadata"]))
        return {}

    _graph().add_node("look", look).add_edge(START, "look").compile().invoke({"a": 1})
    assert name in seen[0]
