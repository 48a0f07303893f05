"""What we rely on in LangChain, LangGraph and deepagents beside their documented interfaces.

Each test is one reliance, and says what breaks with it. When a release fails one, this file is the list of what to do.
"""

import inspect
from contextvars import ContextVar
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from deepagents import create_deep_agent
from deepagents.backends import CompositeBackend, FilesystemBackend, StateBackend, StoreBackend
from deepagents.backends import utils as backend_utils
from deepagents.backends.protocol import BackendProtocol, ExecuteResponse, execute_accepts_timeout
from deepagents.middleware.async_subagents import AsyncSubAgentMiddleware
from deepagents.middleware.filesystem import FilesystemMiddleware
from deepagents.middleware.skills import SkillsMiddleware as DeepAgentsSkillsMiddleware
from langchain.agents import create_agent
from langchain.agents.middleware import (
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    InterruptOnConfig,
    SummarizationMiddleware,
)
from langchain.agents.middleware.types import AgentMiddleware
from langchain.tools import ToolRuntime
from langchain_core.exceptions import ContextOverflowError
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.graph import START, StateGraph
from langgraph.runtime import get_runtime
from langgraph.types import Command, interrupt

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
    assert str(stub.text).startswith("Tool result too large, the result of this tool call")
    assert "/large_tool_results/" in str(stub.text)
    assert len(str(stub.text)) < 10_000


def test_an_evicted_message_is_a_stub_that_names_a_file(tmp_path: Path) -> None:
    """Otherwise the text of a pin or a slash command that deepagents evicted is taken for somebody's edit."""
    model = ScriptedChatModel(replies=["Done."])
    backend = FilesystemBackend(root_dir=tmp_path, virtual_mode=True)
    agent = create_agent(model, middleware=[FilesystemMiddleware(backend=backend)])
    agent.invoke(_given(HumanMessage("word " * 100_000)))
    [sent] = model.requests[0].messages[-1:]
    assert str(sent.text).startswith("Message content too large and was saved to the filesystem at:")


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


# What a compiled agent tells of itself, by the functions that it is made of.


def variables(step: Any) -> dict[str, Any]:
    """Return the variables that a function closes over."""
    function = getattr(step, "func", None) or step
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells}


def wrappers(step: dict[str, Any]) -> list[Any]:
    """Return the middleware around a model step, the outermost first."""
    waiting, owners = [step["wrap_model_call_handler"]], []
    while waiting:
        function = waiting.pop()
        function = getattr(function, "__wrapped__", function)
        if hasattr(function, "__self__"):
            owners.append(function.__self__)
            continue
        inside = variables(function)
        waiting += [inside[name] for name in ("single_handler", "inner", "outer") if name in inside]
    return owners


class First(AgentMiddleware[Any, Any, Any]):
    """Stands around every model call."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(request)


class Second(First):
    """Another one."""


class Third(First):
    """And another."""


@pytest.mark.parametrize("count", [1, 3])
def test_a_model_step_closes_over_its_model_and_its_wrappers(count: int) -> None:
    """Otherwise `doctor --agent` knows neither the model nor the order of middleware."""
    model, around = ScriptedChatModel(replies=[]), [First(), Second(), Third()][:count]
    step = variables(create_agent(model, middleware=around).nodes["model"].bound)
    assert step["model"] is model
    assert wrappers(step) == around


def test_the_task_tool_closes_over_its_sub_agents() -> None:
    """Otherwise no sub-agent is known to hold limits, and under a restricting skill each `task` is refused."""
    mine = SkillsMiddleware(backend=StateBackend(), sources=["/skills"])
    agent = create_deep_agent(ScriptedChatModel(replies=[]), middleware=[mine])
    tools: Any = agent.nodes["tools"].bound
    graphs = variables(tools.tools_by_name["task"])["subagent_graphs"]
    graph = getattr(graphs["general-purpose"], "bound", graphs["general-purpose"])
    assert graph.nodes["SkillsMiddleware.before_agent"].bound.func.__self__ is mine


def test_tools_that_start_agents_have_their_names() -> None:
    """Otherwise a skill that restricts tools lets an agent start elsewhere that knows nothing of it."""
    elsewhere: Any = {"name": "far", "description": "Helps.", "graph_id": "far", "url": "http://127.0.0.1:1"}
    names = {each.name for each in AsyncSubAgentMiddleware(async_subagents=[elsewhere]).tools}
    assert {name for name in names if name.startswith(("start", "update"))} == {"start_async_task", "update_async_task"}


def test_hooks_are_looked_for_on_the_class() -> None:
    """Otherwise hooks that only some instances need cost every agent a step, or none has them."""

    class Hooked(First):
        def before_model(self, state: Any, runtime: Any) -> None:  # noqa: ARG002
            return None

    swapped: Any = First()
    swapped.__class__ = Hooked
    assert "Hooked.before_model" in create_agent(ScriptedChatModel(replies=[]), middleware=[swapped]).nodes
    given: Any = First()
    given.before_model = swapped.before_model
    assert "First.before_model" not in create_agent(ScriptedChatModel(replies=[]), middleware=[given]).nodes


def test_a_tool_that_is_withheld_stands_among_the_tools() -> None:
    """Otherwise `doctor --agent` says that an agent without a shell has `execute`."""
    model = ScriptedChatModel(replies=["Done."])
    agent = create_deep_agent(model, backend=StateBackend())
    agent.invoke(_given(HumanMessage("go")))
    tools: Any = agent.nodes["tools"].bound
    assert tools.tools_by_name["execute"].func.__module__ == FilesystemMiddleware.__module__
    assert "execute" not in model.requests[0].tools


def test_skills_come_after_summaries_in_a_deep_agent() -> None:
    """Otherwise texts are put back before they are summarized away, and `doctor` looks for another name."""
    mine = SkillsMiddleware(backend=StateBackend(), sources=["/skills"])
    agent = create_deep_agent(ScriptedChatModel(replies=[]), middleware=[mine])
    names = [each.name for each in wrappers(variables(agent.nodes["model"].bound))]
    assert names.index("SummarizationMiddleware") < names.index("SkillsMiddleware")


# Where a run stands.


def test_a_graph_on_a_thread_of_its_own_shows_the_graph_around_it() -> None:
    """Otherwise a model's text that starts with a slash, handed to such an agent, starts a skill."""
    seen: list[list[str]] = []

    def look(_state: dict[str, Any]) -> dict[str, Any]:
        seen.append(list(get_config()["metadata"]))
        return {}

    inner = _graph().add_node("look", look).add_edge(START, "look").compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "own"}}

    def call(_state: dict[str, Any]) -> dict[str, Any]:
        inner.invoke({"a": 1}, config)
        return {}

    inner.invoke({"a": 1}, config)
    _graph().add_node("call", call).add_edge(START, "call").compile().invoke({"a": 1})
    alone, nested = seen
    # What a graph has from its configuration stands before its first step's keys, unless another graph's do.
    assert alone.index("thread_id") < alone.index("langgraph_checkpoint_ns")
    assert nested.index("langgraph_checkpoint_ns") < nested.index("thread_id")


def test_a_sub_agent_is_told_by_its_configuration() -> None:
    """Otherwise a task that begins with a slash starts a skill in a sub-agent."""
    seen: list[Any] = []

    class Watch(AgentMiddleware[Any, Any, Any]):
        def before_agent(self, state: Any, runtime: Any) -> None:  # noqa: ARG002
            config = get_config()
            seen.append((config["configurable"].get("ls_agent_type"), config["metadata"]["langgraph_node"]))

    task = call_tools(("task", {"description": "go", "subagent_type": "helper"}))
    model = ScriptedChatModel(replies=[task, "Done.", "Done."])
    helper: Any = {"name": "helper", "description": "Helps.", "system_prompt": "Help.", "middleware": [Watch()]}
    create_deep_agent(model, subagents=[helper], middleware=[Watch()]).invoke(_given(HumanMessage("go")))
    assert [kind for kind, _ in seen] == [None, "subagent"]
    # Nodes of `create_agent` end so; a graph of one's own calls the hook from a node of another name.
    assert all(node.endswith(".before_agent") for _, node in seen)


def test_a_fork_is_a_mode_of_a_sub_agent() -> None:
    """Otherwise a skill that forks may run in an agent that sees the conversation."""
    from deepagents import SubAgent  # noqa: PLC0415 - beside what it is about

    assert "mode" in SubAgent.__annotations__


def test_a_run_that_goes_on_does_not_begin_again() -> None:
    """Otherwise what `before_agent` decides is decided again in the middle of a run."""
    begun: list[int] = []

    class Watch(AgentMiddleware[Any, Any, Any]):
        def before_agent(self, state: Any, runtime: Any) -> None:  # noqa: ARG002
            begun.append(1)

    @tool
    def ask() -> str:
        """Ask a human."""
        return str(interrupt("?"))

    model = ScriptedChatModel(replies=[call_tools(("ask", {})), "Done."])
    agent = create_agent(model, tools=[ask], middleware=[Watch()], checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    agent.invoke(_given(HumanMessage("go")), config)
    agent.invoke(Command(resume="yes"), config)
    assert begun == [1]


def test_a_step_knows_its_checkpointer_and_its_execution() -> None:
    """Otherwise an approval that waits is asked again, and parallel loads of one skill are taken for one."""
    seen: list[Any] = []

    def look(_state: dict[str, Any]) -> dict[str, Any]:
        seen.append((get_config()["configurable"], get_runtime().execution_info))
        return {}

    saver = InMemorySaver()
    graph = _graph().add_node("look", look).add_edge(START, "look").compile(checkpointer=saver)
    graph.invoke({"a": 1}, {"configurable": {"thread_id": "t"}})
    [(given, info)] = seen
    assert given["__pregel_checkpointer"] is saver
    assert {"thread_id", "checkpoint_ns", "checkpoint_map"} <= set(given)
    assert info.thread_id == "t"
    assert info.checkpoint_id
    assert info.task_id
    assert info.checkpoint_ns.startswith("look:")
    assert hasattr(info, "run_id")


def test_a_tool_runs_in_the_context_around_its_call() -> None:
    """Otherwise a backend of served skills does not know whose run it answers, and a sub-agent inherits nothing."""
    mark: ContextVar[str] = ContextVar("mark", default="")
    seen: list[Any] = []

    class Around(AgentMiddleware[Any, Any, Any]):
        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            mark.set("around")
            return handler(request)

    @tool
    def look(runtime: ToolRuntime) -> str:
        """Look."""
        seen.append((mark.get(), [each.name for each in runtime.tools]))
        return "seen"

    model = ScriptedChatModel(replies=[call_tools(("look", {})), "Done."])
    create_agent(model, tools=[look], middleware=[Around()]).invoke(_given(HumanMessage("go")))
    # A tool also sees all others, `task` among them.
    assert seen == [("around", ["look"])]


def test_metadata_set_around_a_model_call_reaches_tracers() -> None:
    """Otherwise traces do not show which skills were in use."""
    seen: list[Any] = []

    class Around(AgentMiddleware[Any, Any, Any]):
        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            config = var_child_runnable_config.get() or {}
            token = var_child_runnable_config.set({**config, "metadata": {**config.get("metadata", {}), "mark": "set"}})
            try:
                return handler(request)
            finally:
                var_child_runnable_config.reset(token)

    class Model(ScriptedChatModel):
        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
            seen.append(run_manager.metadata.get("mark"))
            return super()._generate(messages, stop, run_manager, **kwargs)

    create_agent(Model(replies=["Done."]), middleware=[Around()]).invoke(_given(HumanMessage("go")))
    assert seen == ["set"]


def test_human_approval_may_depend_on_the_call() -> None:
    """Otherwise `ToolPolicy.needs_approval` fits nowhere."""
    assert "when" in InterruptOnConfig.__annotations__


# Keys and marks that deepagents writes, and we read or write as it does.


def test_deepagents_notes_disclosed_tools_under_its_key() -> None:
    """Otherwise tools of a skill that was unloaded stay callable, or those of a read one are not."""
    middleware = DeepAgentsSkillsMiddleware(backend=StateBackend(), sources=[])
    assert "_skill_tools_disclosed" in get_type_hints(middleware.state_schema)
    assert set(get_type_hints(middleware.state_schema)) <= set(get_type_hints(SkillsMiddleware.state_schema))


def test_deepagents_marks_a_pinned_skill(tmp_path: Path) -> None:
    """Otherwise threads of deepagents' class that move to ours lose what was pinned."""
    skill = tmp_path / "skills" / "notes"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: notes\ndescription: D.\n---\nText.\n")
    backend = FilesystemBackend(root_dir=tmp_path, virtual_mode=True)
    middleware = DeepAgentsSkillsMiddleware(backend=backend, sources=["/skills"])
    model = ScriptedChatModel(replies=["Done."])
    given: Any = {"messages": [HumanMessage("go")], "pinned_skills": ["notes"]}
    result = create_agent(model, middleware=[middleware]).invoke(given)
    [pinned] = [m for m in result["messages"] if m.additional_kwargs.get("lc_source") == "pinned_skill"]
    assert isinstance(pinned, HumanMessage)
    assert pinned.additional_kwargs["skill"]["name"] == "notes"
    assert pinned.additional_kwargs["skill"]["path"] == "/skills/notes/SKILL.md"


def test_deepagents_notes_a_summary_under_its_key() -> None:
    """Otherwise texts that a summary took out of the request are not put back."""
    from deepagents.middleware.summarization import SummarizationState  # noqa: PLC0415 - beside what it is about

    assert "_summarization_event" in get_type_hints(SummarizationState)


# What backends say.


def test_errors_of_backends_begin_with_known_words(tmp_path: Path) -> None:
    """Otherwise a source that is missing counts as an outage, or an outage as a source that was removed."""
    backend = FilesystemBackend(root_dir=tmp_path, virtual_mode=True)
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("/etc/hostname")
    assert "path_not_found" in str(backend.ls("/missing").error)
    errors = [answer.error for answer in backend.download_files(["/missing", "/link"])]
    assert errors == ["file_not_found", "invalid_path"]
    # Where its paths lie on the disk, for scripts and for hints about paths.
    assert (Path(backend.cwd), backend.virtual_mode) == (tmp_path, True)


def test_a_state_backend_says_that_it_needs_a_run() -> None:
    """Otherwise `doctor --agent` reports what only a run can read as a source that failed."""
    for backend in (StateBackend(), StoreBackend(namespace=lambda _runtime: ("files",))):
        with pytest.raises(Exception, match=r"StateBackend|StoreBackend"):
            backend.ls("/")


def test_a_state_backend_without_file_tools_has_no_files() -> None:
    """Otherwise the advice to put `FilesystemMiddleware` into the agent is not given."""
    seen: list[object] = []

    def look(_state: Any) -> dict[str, Any]:
        try:
            StateBackend().ls("/")
        except KeyError as error:
            seen.append(error.args)
        return {}

    class State(AgentMiddleware[Any, Any, Any]):
        def before_agent(self, state: Any, runtime: Any) -> Any:  # noqa: ARG002
            return look(state)

    create_agent(ScriptedChatModel(replies=[]), middleware=[State()]).invoke(_given(HumanMessage("go")))
    assert seen == [("files",)]


@pytest.mark.parametrize(
    "name",
    ["InvalidGlobPatternError", "compile_grep_include_glob", "grep_matches_from_files", "slice_read_response"],
)
def test_helpers_for_backends_are_there(name: str) -> None:
    """Otherwise backends of served, stored and inline skills answer `read_file`, `glob` and `grep` in their own way."""
    assert callable(getattr(backend_utils, name))


# What models say.


def test_a_chat_model_names_its_provider() -> None:
    """Otherwise no prompt cache is known, and every agent pays for a section that changes."""
    told = ScriptedChatModel(replies=[])._get_ls_params()  # noqa: SLF001 - what tracers are given; no other way
    assert "ls_provider" in told
    assert "profile" in BaseChatModel.model_fields


def test_overflow_has_an_error() -> None:
    """Otherwise a request that is too long because of what was put back is not tried again."""
    assert issubclass(ContextOverflowError, Exception)
