"""A model that skips a step of its skill and says it is done: it is sent back, and a tool waits for that step."""

from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from pick_model import pick_model

from deepskills import InlineBackend, InlineSkill, SkillEntry, SkillsMiddleware
from deepskills.extensions import SkillChecks
from deepskills.testing import call_tools

RELEASE = InlineSkill(
    "release",
    "Releases the service. Use it when asked to release or deploy.",
    "Run the tests, deploy, and announce it.",
    checks=[
        {"called": "run_tests", "before": "deploy"},
        {"handler": "is_announced", "say": "Announce the release in the team's channel."},
    ],
)
SCRIPT = [
    call_tools(("load_skill", {"skill_name": "release"})),
    call_tools(("deploy", {})),
    "The tests pass, and version 2.4 is live and announced.",
    call_tools(("run_tests", {})),
    call_tools(("deploy", {}), ("announce", {"text": "2.4 is live"})),
    "Version 2.4 is live and announced.",
]
channel: list[str] = []


@tool
def run_tests() -> str:
    """Run the tests."""
    return "212 passed"


@tool
def deploy() -> str:
    """Deploy the service."""
    return "deployed"


@tool
def announce(text: str) -> str:
    """Write to the team's channel."""
    channel.append(text)
    return "sent"


def is_announced(skill: SkillEntry, state: dict[str, Any], runtime: Any) -> bool:  # noqa: ARG001 - a handler's signature
    """Whether the team's channel has heard of the release."""
    return bool(channel)


if __name__ == "__main__":
    skills = SkillsMiddleware(
        backend=InlineBackend([RELEASE]),
        sources=["/"],
        extensions=[SkillChecks(handlers={"is_announced": is_announced})],
    )
    agent: Any = create_agent(pick_model(*SCRIPT), tools=[run_tests, deploy, announce], middleware=[skills])
    given = {"messages": [HumanMessage("Release 2.4.")]}
    for mode, value in agent.stream(given, stream_mode=["updates", "custom"]):
        if mode == "custom":
            print("event:", value["type"], value.get("check", ""), value.get("status", ""))
            continue
        for change in value.values():
            for message in (change or {}).get("messages", []):
                if isinstance(message, AIMessage) and message.additional_kwargs.get("lc_source") == "deepskills":
                    continue  # the answer that was sent back, marked as such
                calls = ", ".join(call["name"] for call in getattr(message, "tool_calls", []))
                print(f"{message.type}: {message.text or calls}")
