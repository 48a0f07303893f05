"""Graphs that the test puts on a LangGraph server, beside the one of the documentation page."""

import asyncio
import re
import time
from pathlib import Path
from typing import Any

from deepagents import create_deep_agent
from deepagents.backends import FilesystemBackend, LocalShellBackend
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from deepskills import Refuse, SkillExtension, SkillLoad, SkillRun, SkillsMiddleware
from deepskills.extensions import SkillHooks, SkillModels, SkillSuggestions, ToolPolicy
from deepskills.testing import ScriptedChatModel, call_tools

LISTED = re.compile(r"^- \*\*(.+?)\*\*", re.MULTILINE)
PRESENT = re.compile(r'<skill_content name="(.+?)"')


def reply(messages: list[BaseMessage]) -> AIMessage | str:
    """Do what the newest message says, `load NAME` or `unload NAME`; else say what the request shows of skills."""
    verb, _, name = messages[-1].text.partition(" ")
    if messages[-1].type == "human" and verb in {"load", "unload"}:
        return call_tools((f"{verb}_skill", {"skill_name": name}))
    system = "\n".join(message.text for message in messages if message.type == "system")
    text = "\n".join(message.text for message in messages if message.type != "system")
    return f"listed: {' '.join(LISTED.findall(system))}; present: {' '.join(PRESENT.findall(text))}"


model = ScriptedChatModel(replies=reply)
"""One model for all graphs and runs: it answers by what it is sent."""


class AskFirst(SkillExtension):
    """Asks a human before every load."""

    def before_load(self, load: SkillLoad, run: SkillRun) -> Refuse | None:  # noqa: ARG002 - the seam's signature
        answer = interrupt({"skill": load.entry.name})
        return None if answer == "yes" else Refuse("a human said no")


class Meet(SkillExtension):
    """Lets no load pass before thirty wait: they are under way at the same time, or fail together."""

    def __init__(self) -> None:
        self.barrier = asyncio.Barrier(30)

    async def before_load(self, load: SkillLoad, run: SkillRun) -> None:  # noqa: ARG002 - the seam's signature
        async with asyncio.timeout(60):
            await self.barrier.wait()


def skills(**options: Any) -> SkillsMiddleware:
    backend = FilesystemBackend(root_dir=Path(__file__).parent, virtual_mode=True)
    return SkillsMiddleware(backend=backend, sources=["/skills"], **options)


_review: list[AgentMiddleware[Any, Any, Any]] = [HumanInTheLoopMiddleware(interrupt_on={"load_skill": True}), skills()]
reviewed = create_agent(model, middleware=_review)
asking = create_agent(model, middleware=[skills(extensions=[AskFirst()])])
meeting = create_agent(model, middleware=[skills(extensions=[Meet()])])


def _pinging(label: str) -> ScriptedChatModel:
    """Return a model that calls `ping` for a user's message, then says who it is and whether the message has a note."""

    def answer(messages: list[BaseMessage]) -> AIMessage | str:
        if messages[-1].type != "tool":
            return call_tools(("ping", {}))
        commands = [str(message.text) for message in messages if str(message.text).startswith("/deploy")]
        return f"{label}; noted: {[NOTED in text for text in commands]}"

    return ScriptedChatModel(replies=answer)


NOTED = "**incident-review**"


@tool
def ping() -> str:
    """Answer a ping."""
    return "pong"


def _shaped(make: Any) -> Any:
    """Return an agent with all that refers to a user's message: commands, suggestions, models and approvals."""
    policy = ToolPolicy("approve", trusted_sources=["/more"])
    asked: Any = {"allowed_decisions": ["approve", "reject"], "when": policy.needs_approval}
    own = SkillsMiddleware(
        backend=FilesystemBackend(root_dir=Path(__file__).parent, virtual_mode=True),
        sources=["/skills", "/more"],
        slash_commands=True,
        extensions=[SkillSuggestions(), SkillModels({"deep": _pinging("deep")}), policy],
    )
    review: Any = HumanInTheLoopMiddleware(interrupt_on={"ping": asked})
    return make(model=_pinging("main"), tools=[ping], middleware=[review, own])


shaped = _shaped(create_agent)
shaped_deep = _shaped(create_deep_agent)


async def check_ping(_request: Any) -> Refuse:
    """Refuse a call, as a handler of an application that asks somebody else would."""
    await asyncio.sleep(0)
    return Refuse("no pings today")


def _guarded(messages: list[BaseMessage]) -> AIMessage | str:
    """Do what the newest user message begins with, `load NAME` or `ping`; then say what came of it, and of hooks."""
    # What hooks say stands at the end of the request, behind the user's message.
    newest = [message for message in messages if not message.text.startswith("<skill_hook")][-1]
    first, *rest = newest.text.split()
    if newest.type == "human" and first == "load":
        return call_tools(("load_skill", {"skill_name": rest[0]}))
    if newest.type == "human" and first == "ping":
        return call_tools(("ping", {}))
    text = "\n".join(message.text for message in messages if message.type != "ai")
    said, refused = re.findall("begun by [a-z]+", text), text.count("no pings today")
    return f"present: {' '.join(PRESENT.findall(text))}; said: {said}; refused: {refused}"


hooked = create_agent(
    ScriptedChatModel(replies=_guarded),
    tools=[ping],
    middleware=[
        SkillsMiddleware(
            backend=LocalShellBackend(root_dir=Path(__file__).parent, virtual_mode=True, inherit_env=True),
            sources=["/skills", "/guarded"],
            load_requires=True,
            extensions=[SkillHooks({"check_ping": check_ping}, commands=True, sources=["/guarded"])],
        )
    ],
)
"""Runs hooks of a skill: an async handler, and a command when the skill is loaded and when a thread is resumed."""


async def block(state: MessagesState) -> dict[str, Any]:  # noqa: ARG001 - a node takes the state
    time.sleep(0.01)  # noqa: ASYNC251 - what the server is to report
    return {}


_builder = StateGraph(MessagesState)
_builder.add_node("block", block)
_builder.add_edge(START, "block")
blocking = _builder.compile()
"""Shows that the server would have reported a blocking call."""
