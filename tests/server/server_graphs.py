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

from deepskills import (
    PluginSource,
    ProvidedSkill,
    Refuse,
    SkillExtension,
    SkillLoad,
    SkillProvider,
    SkillRun,
    SkillsMiddleware,
    generate_skill_md,
)
from deepskills.extensions import SkillChecks, SkillHooks, SkillModels, SkillSuggestions, ToolPolicy
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


def follow(messages: list[BaseMessage]) -> AIMessage | str:
    """Do the next of the steps that the user's newest message lists."""
    users = [at for at, one in enumerate(messages) if one.type == "human" and not one.additional_kwargs]
    steps = messages[users[-1]].text.partition("\n")[0].split("; ")
    step = steps[sum(one.type == "ai" for one in messages[users[-1] :])]
    verb, _, rest = step.partition(" ")
    if verb in {"load", "unload"}:
        return call_tools((f"{verb}_skill", {"skill_name": rest}))
    if verb == "read":
        return call_tools(("read_file", {"file_path": rest}))
    if verb == "tell":
        text = "\n".join(str(message.text) for message in messages if message.type != "human")
        return f"listed: {' '.join(LISTED.findall(text))}; present: {' '.join(PRESENT.findall(text))}"
    return call_tools((rest, {})) if verb == "call" else step


@tool
def run_tests() -> str:
    """Run the tests."""
    return "ok"


@tool
def deploy() -> str:
    """Deploy."""
    return "deployed"


def _checked(make: Any) -> Any:
    """Return an agent with a checked skill, and a human who approves each `deploy`."""
    own = SkillsMiddleware(
        backend=FilesystemBackend(root_dir=Path(__file__).parent, virtual_mode=True),
        sources=["/checked"],
        extensions=[SkillChecks({"notes": [{"handler": "is_told"}]}, handlers={"is_told": is_told})],
    )
    review: Any = HumanInTheLoopMiddleware(interrupt_on={"deploy": True})
    return make(model=ScriptedChatModel(replies=follow), tools=[run_tests, deploy], middleware=[review, own])


async def is_told(skill: Any, state: Any, runtime: Any) -> bool | str:  # noqa: ARG001 - a handler's signature
    """Whether the model has said it, as an application would ask another service."""
    await asyncio.sleep(0)
    return any("Noted." in message.text for message in state["messages"] if message.type == "ai") or "Say `Noted.`"


checked = _checked(create_agent)
checked_deep = _checked(create_deep_agent)


class Hub(SkillProvider):
    """Serves one skill from memory, as a registry on the network would."""

    label = "hub"
    text = generate_skill_md("served", "Comes from a hub.", "Serve it.\n").encode()

    async def list_skills(self, runtime: object) -> list[ProvidedSkill]:  # noqa: ARG002 - the protocol's signature
        await asyncio.sleep(0)
        return [ProvidedSkill("served", "served", "Comes from a hub.")]

    async def read_skill(self, skill: ProvidedSkill, runtime: object) -> bytes:  # noqa: ARG002 - the same
        await asyncio.sleep(0)
        return self.text


_files = FilesystemBackend(root_dir=Path(__file__).parent, virtual_mode=True)
from_everywhere = create_deep_agent(
    ScriptedChatModel(replies=follow),
    backend=_files,
    middleware=[SkillsMiddleware(backend=_files, sources=["/touching", Hub(), PluginSource("/plugin")])],
)
"""Has skills of a provider, of a plugin, and one that is listed once a file is touched."""


async def block(state: MessagesState) -> dict[str, Any]:  # noqa: ARG001 - a node takes the state
    time.sleep(0.01)  # noqa: ASYNC251 - what the server is to report
    return {}


_builder = StateGraph(MessagesState)
_builder.add_node("block", block)
_builder.add_edge(START, "block")
blocking = _builder.compile()
"""Shows that the server would have reported a blocking call."""
