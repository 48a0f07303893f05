"""The hostile world: skills with versions, and checks of a whole thread."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolMessage


def told(name: str, version: int) -> str:
    """Return the sentence that only this version of a skill holds."""
    return f"Follow {name} in version {version}."


def versions_in(messages: Iterable[BaseMessage]) -> list[tuple[str, int]]:
    """Return each skill text that a request holds, with its version; one that stands there twice comes twice."""
    text = "\n".join(str(message.text) for message in messages)
    return sorted((name, int(version)) for name, version in re.findall(r"Follow (\S+) in version (\d+)\.", text))


def blocks_in(messages: Iterable[BaseMessage]) -> list[str]:
    """Return the names of the skills whose whole block a request holds, sorted, repeats included."""
    text = "\n".join(str(message.text) for message in messages)
    return sorted(re.findall(r'<skill_content name="([^"]*)"', text))


def check_pairs(messages: Sequence[AnyMessage]) -> None:
    """Assert that every tool call has one answer and every answer one call."""
    calls = [call["id"] for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
    answers = [message.tool_call_id for message in messages if isinstance(message, ToolMessage)]
    assert sorted(answers) == sorted(str(call) for call in calls)


def check_whole(state: Mapping[str, Any]) -> None:
    """Assert that no skill is half loaded: names, files and records speak of the same skills."""
    loaded = state.get("skills_loaded", [])
    assert len(set(loaded)) == len(loaded)
    assert set(state.get("skill_resources", {})) == set(loaded)
    assert set(state.get("skills_context", {}).get("records", {})) == set(loaded)


def replayed(messages: Iterable[BaseMessage], loaded: Iterable[str] = ()) -> list[str]:
    """Return what is loaded after these messages, going by what they tell the model, `loaded` being there before."""
    names = list(loaded)
    for message in messages:
        text = str(message.text)
        block = re.search(r'<skill_content name="([^"]*)"', text)
        unloaded = re.match(r"Unloaded the skill '([^']*)'", text)
        gone = re.search(r"No longer available and therefore unloaded: (.*?)\. Do not", text)
        if block and message.type in {"tool", "human"}:
            names = [*names, *({block[1]} - set(names))]
        elif unloaded and message.type == "tool":
            names = [name for name in names if name != unloaded[1]]
        elif gone and message.type == "human":
            names = [name for name in names if f"'{name}'" not in gone[1]]
    return names


def unloaded_in(message: BaseMessage) -> list[str]:
    """Return the skill that a message tells the model was unloaded, if it tells of one."""
    found = re.match(r"Unloaded the skill '([^']*)'", str(message.text))
    return [found[1]] if found and message.type == "tool" else []
