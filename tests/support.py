"""What the tests share: skills to put on a backend, and one way to run an agent, sync or async."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

from deepagents.backends.utils import create_file_data
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.runnables import Runnable

from deepskills import generate_skill_md

Mode: TypeAlias = Literal["sync", "async"]
MODES: tuple[Mode, Mode] = ("sync", "async")


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


def run(mode: Mode, agent: Runnable[Any, Any], given: Any = "go", config: Any = None, **kwargs: Any) -> dict[str, Any]:
    """Run an agent to its end, by `invoke` or by `ainvoke`; text stands for a user's message."""
    value = {"messages": [HumanMessage(given)]} if isinstance(given, str) else given
    if mode == "sync":
        result = agent.invoke(value, config, **kwargs)
    else:
        result = asyncio.run(agent.ainvoke(value, config, **kwargs))
    assert isinstance(result, dict)
    return result


def tool_messages(result: Mapping[str, Any]) -> list[ToolMessage]:
    """Return the answers of tools, in order."""
    return [message for message in result["messages"] if isinstance(message, ToolMessage)]
