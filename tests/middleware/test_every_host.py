"""What refers to a user's message works in every host, for every shape in which the message can be given."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain.agents.middleware.types import ExtendedModelResponse, ModelRequest, ModelResponse, ToolCallRequest
from langchain.tools import ToolRuntime
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.runtime import Runtime
from langgraph.types import Command, interrupt

from deepskills import SkillsMiddleware, SkillsState
from deepskills.extensions import SkillModels, SkillSuggestions, ToolPolicy
from deepskills.testing import ScriptedChatModel, call_tools
from support import Mode, both_modes, disk, run, share_of, skill_md, write_files

HOSTS = ("deep agent", "agent", "own graph")

SHAPES: dict[str, Callable[[str], Any]] = {
    "text": lambda text: text,
    "list of text": lambda text: [text],
    "tuple": lambda text: [("user", text)],
    "dict": lambda text: [{"role": "user", "content": text}],
    "typed dict": lambda text: [{"type": "human", "content": text}],
    "message": lambda text: [HumanMessage(text)],
    "message with id": lambda text: [HumanMessage(text, id=f"own {text}")],
    "content blocks": lambda text: [("user", [{"type": "text", "text": text}])],
    "blocks in a dict": lambda text: [{"role": "user", "content": [{"type": "text", "text": text}]}],
    "after earlier messages": lambda text: [("user", "hi"), ("assistant", "Hello."), ("user", text)],
    "after the same message": lambda text: [text, ("assistant", "Once more?"), text],
}
"""A user's message, as people give it to an agent."""

COMMAND = "/deploy the postmortem after the outage"
AGAIN = "/deploy once more, and the postmortem after this outage"
SUGGESTED = "incident-review"


class Host:
    """One agent with all that refers to a user's message, and a record of what it did."""

    def __init__(self, mode: Mode, kind: str, root: Path, suggestions: SkillSuggestions | None = None) -> None:
        self.mode = mode
        write_files(
            root,
            {
                "skills/deploy/SKILL.md": skill_md("deploy", "Ships it.", model="deep", allowed_tools="ping"),
                f"skills/{SUGGESTED}/SKILL.md": skill_md(SUGGESTED, "Writes a postmortem after an outage."),
                "skills/trips/SKILL.md": skill_md("trips", "Plans trips with hotels and trains."),
            },
        )
        self.asked_approval: list[bool] = []
        """Of each call of `ping`: whether a human would have been asked."""
        self.interrupts = False
        self.main, self.deep = (ScriptedChatModel(replies=self._reply) for _ in range(2))
        self.policy = ToolPolicy("approve", trusted_sources=["/skills"])
        extensions = [suggestions or SkillSuggestions(), SkillModels({"deep": self.deep}), self.policy]
        self.skills = SkillsMiddleware[Any, Any](
            backend=disk(root), sources=["/skills"], slash_commands=True, extensions=extensions
        )
        self.agent: Any = self._agent(kind, root)
        self.config: RunnableConfig = {}

    @staticmethod
    def _reply(messages: list[BaseMessage]) -> AIMessage:
        return AIMessage("Done.") if messages[-1].type == "tool" else call_tools(("ping", {}))

    def _agent(self, kind: str, root: Path) -> Any:
        @tool
        def ping(runtime: ToolRuntime[Any, Any]) -> str:
            """Answer a ping."""
            if self.interrupts:
                interrupt("May I?")
            call: Any = {"name": "ping", "args": {}, "id": runtime.tool_call_id, "type": "tool_call"}
            request = ToolCallRequest(tool_call=call, tool=None, state=runtime.state, runtime=runtime)
            self.asked_approval.append(self.policy.needs_approval(request))
            return "pong"

        saver: Any = InMemorySaver()
        if kind == "deep agent":
            made: Any = create_deep_agent(
                model=self.main, tools=[ping], middleware=[self.skills], backend=disk(root), checkpointer=saver
            )
            return made
        if kind == "agent":
            return create_agent(self.main, tools=[ping], middleware=[self.skills], checkpointer=saver)
        return self._own_graph([*self.skills.tools, ping], saver)

    def _own_graph(self, tools: list[Any], saver: Any) -> Any:
        """Return a graph by hand, which lets the middleware change each model request and judge each tool call."""
        skills, is_sync = self.skills, self.mode == "sync"

        def asked(state: SkillsState, runtime: Runtime[Any]) -> ModelRequest[Any]:
            return ModelRequest(
                model=self.main, messages=list(state["messages"]), tools=tools, state=state, runtime=runtime
            )

        def answer(request: ModelRequest[Any]) -> ModelResponse[Any]:
            lead = [request.system_message] if request.system_message else []
            return ModelResponse(result=[request.model.invoke([*lead, *request.messages])])

        def written(response: Any) -> dict[str, Any]:
            assert isinstance(response, ExtendedModelResponse)
            update: Any = response.command.update if response.command else {}
            return {**update, "messages": response.model_response.result}

        def call_model(state: SkillsState, runtime: Runtime[Any]) -> dict[str, Any]:
            return written(skills.wrap_model_call(asked(state, runtime), answer))

        async def acall_model(state: SkillsState, runtime: Runtime[Any]) -> dict[str, Any]:
            async def aanswer(request: ModelRequest[Any]) -> ModelResponse[Any]:
                return answer(request)

            return written(await skills.awrap_model_call(asked(state, runtime), aanswer))

        graph: Any = StateGraph(SkillsState)
        graph.add_node("discover", skills.before_agent if is_sync else skills.abefore_agent)
        graph.add_node("before", skills.before_model if is_sync else skills.abefore_model)
        graph.add_node("model", call_model if is_sync else acall_model)
        graph.add_node(
            "tools", ToolNode(tools, wrap_tool_call=skills.wrap_tool_call, awrap_tool_call=skills.awrap_tool_call)
        )
        graph.add_edge(START, "discover")
        graph.add_edge("discover", "before")
        graph.add_edge("before", "model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "before")
        return graph.compile(checkpointer=saver)

    def thread(self, name: str) -> None:
        """Talk on a new thread from now on."""
        self.config = {"configurable": {"thread_id": name}}

    def say(self, given: Any, config: RunnableConfig | None = None) -> dict[str, Any]:
        """Run the agent, and forget what it did before."""
        for record in (self.main.requests, self.deep.requests, self.asked_approval):
            record.clear()
        return run(self.mode, self.agent, given, config or self.config)

    @property
    def did(self) -> dict[str, Any]:
        """What the latest run did: requests to each model, and what a human would have been asked."""
        return {"main": len(self.main.requests), "deep": len(self.deep.requests), "asked": list(self.asked_approval)}

    def noted(self, text: str) -> list[list[bool]]:
        """Return for each request of the run, and each message that begins with a text, whether its note is there."""
        requests = [*self.main.requests, *self.deep.requests]
        return [
            [
                "[Note from the skills system" in str(message.text) and f"**{SUGGESTED}**" in str(message.text)
                for message in request.messages
                if message.type == "human" and str(message.text).startswith(text)
            ]
            for request in requests
        ]

    def state(self, config: RunnableConfig | None = None) -> Mapping[str, Any]:
        values: Mapping[str, Any] = self.agent.get_state(config or self.config).values
        return values


BY_COMMAND = {"main": 0, "deep": 2, "asked": [False]}
"""What a run does in which the user starts the skill: its model answers, and its tool runs unasked."""

WITHOUT = {"main": 2, "deep": 0, "asked": [True]}
"""What a run does for a message that starts nothing."""


@pytest.mark.parametrize("kind", HOSTS)
def test_a_users_message_counts_in_every_shape(mode: Mode, kind: str, tmp_path: Path) -> None:
    """Slash command, note, model and approval go by the user's newest message, and end with it; its note stays."""
    host = Host(mode, kind, tmp_path)
    offenders: list[Any] = []

    def check(shape: str, what: str, found: object, expected: object) -> None:
        if found != expected:
            offenders.append((shape, what, found, expected))

    for shape, given in SHAPES.items():
        host.thread(shape)
        host.say({"messages": given(COMMAND)})
        check(shape, "first turn", host.did, BY_COMMAND)
        twice = shape == "after the same message"
        check(shape, "note", host.noted(COMMAND), [[False, True] if twice else [True]] * 2)
        check(shape, "loaded", host.state()["skills_loaded"], ["deploy"])
        record = host.state()["skills_context"]["records"]["deploy"]
        arguments = COMMAND.removeprefix("/deploy ")
        check(shape, "record", (record["trigger"], record["arguments"]), ("user", arguments))

        host.say({"messages": SHAPES["text" if twice else shape]("thanks")})
        check(shape, "second turn", host.did, WITHOUT)
        check(shape, "note in the second turn", host.noted(COMMAND), [[False, True] if twice else [True]] * 2)

        host.say({"messages": given(AGAIN)})
        check(shape, "third turn", host.did, BY_COMMAND)
        check(shape, "note in the third turn", [notes[-1:] for notes in host.noted(AGAIN)], [[True]] * 2)
        check(shape, "note of the first turn", [notes[-1:] for notes in host.noted(COMMAND)], [[True]] * 2)
    assert offenders == []


@pytest.mark.parametrize("kind", HOSTS)
def test_a_users_message_counts_after_resume_and_time_travel(mode: Mode, kind: str, tmp_path: Path) -> None:
    """A run that was interrupted, and one that starts again at an old checkpoint, know the message as it was."""
    host = Host(mode, kind, tmp_path)
    offenders: list[Any] = []
    for shape in share_of(mode, ("text", "dict", "tuple", "message", "content blocks")):
        host.thread(shape)
        host.interrupts = False
        host.say({"messages": SHAPES[shape]("hello")})
        host.interrupts = True
        host.say({"messages": SHAPES[shape](COMMAND)})
        if host.did != {"main": 0, "deep": 1, "asked": []}:
            offenders.append((shape, "interrupted", host.did))
        host.say(Command(resume="yes"))
        if host.did != {"main": 0, "deep": 1, "asked": [False]} or host.noted(COMMAND) != [[True]]:
            offenders.append((shape, "resumed", host.did, host.noted(COMMAND)))

        host.interrupts = False
        history = list(host.agent.get_state_history(host.config))
        begun = next(item for item in history if item.metadata["step"] >= 0 and _is_unanswered(item.values))
        first = next(item for item in reversed(history) if _is_unanswered(item.values))
        for what, checkpoint in (("before the answer", begun), ("at the start", first)):
            result = host.say(None, checkpoint.config)
            if host.did != BY_COMMAND or host.noted(COMMAND) != [[True], [True]]:
                offenders.append((shape, what, host.did, host.noted(COMMAND)))
            if sum(str(message.text) == COMMAND for message in result["messages"]) != 1:
                offenders.append((shape, what, "the message itself"))
    assert offenders == []


def _is_unanswered(values: Mapping[str, Any]) -> bool:
    """Whether the model has not spoken yet after the message with the command."""
    messages = values.get("messages") or []
    texts = [str(message.text) for message in messages]
    return COMMAND in texts and not any(message.type == "ai" for message in messages[texts.index(COMMAND) :])


@both_modes
def test_without_a_list_the_suggestion_is_there(mode: Mode, tmp_path: Path) -> None:
    """With `catalog="none"` the note is all that the model sees of skills, so every shape must have it."""
    offenders: list[Any] = []
    for kind in HOSTS:
        host = Host(mode, kind, tmp_path, SkillSuggestions(catalog="none"))
        for shape, given in share_of(mode, SHAPES.items()):
            host.thread(shape)
            question = "Please write the postmortem after the outage."
            host.say({"messages": given(question)})
            notes = host.noted(question)
            if [found[-1:] for found in notes] != [[True], [True]]:
                offenders.append((kind, shape, notes))
            if "Plans trips" in host.main.requests[-1].text:
                offenders.append((kind, shape, "the list is there"))
    assert offenders == []
