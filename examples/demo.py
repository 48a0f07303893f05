"""A deep agent that discovers, loads, uses and unloads the example skills.

Runs on a scripted model. With a key in the environment, run it on a real one:

    make demo ARGS="--model anthropic:claude-sonnet-5"
"""

import logging
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deepagents import create_deep_agent
from deepagents.backends import FilesystemBackend
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from pick_model import pick_model

from deepskills import SkillsMiddleware
from deepskills.extensions import SkillChecks
from deepskills.testing import call_tools

EXAMPLES = Path(__file__).parent
REQUEST = "Write the release notes for 2.4.1, then start the review of the outage."
MAX_LOADED = 1
SHOWN = 4
"""How many lines of an answer the transcript shows: enough to recognize it."""
WIDTH = 84


SCRIPT = [
    call_tools(("load_skill", {"skill_name": "release-notes"}), text="First the release notes."),
    call_tools(
        ("read_file", {"file_path": "/skills/release-notes/references/style-guide.md"}),
        text="The skill says to follow its style guide.",
    ),
    call_tools(("load_skill", {"skill_name": "incident-review"}), text="Then the review."),
    call_tools(("unload_skill", {"skill_name": "release-notes"}), text="The notes are done: make room."),
    call_tools(("load_skill", {"skill_name": "incident-review"}), text="Now the review."),
    "The release notes are written, and the review has a timeline.",
    call_tools(
        ("read_file", {"file_path": "/skills/incident-review/references/timeline.md"}),
        text="Right, the skill wants its references read first.",
    ),
    "Release notes written; the review is under way, with its timeline.",
]


def main() -> None:
    logging.getLogger("deepskills").setLevel(logging.ERROR)  # the transcript shows the limit being reached
    model = pick_model(*SCRIPT)

    backend = FilesystemBackend(root_dir=EXAMPLES)
    skills = SkillsMiddleware(
        backend=backend, sources=[("/skills", "Example")], max_loaded_skills=MAX_LOADED, extensions=[SkillChecks()]
    )
    agent = create_deep_agent(model=model, backend=backend, middleware=[skills])

    print(f"user: {REQUEST}\n")
    loaded: list[str] = []
    updates = agent.stream({"messages": [HumanMessage(REQUEST)]}, stream_mode="updates")
    for update in updates:
        for node, change in update.items():
            if node.startswith("SkillsMiddleware") and "skills_metadata" in (change or {}):
                print(f"skills found: {', '.join(skill['name'] for skill in change['skills_metadata'])}\n")
            for message in (change or {}).get("messages", []):
                if isinstance(message, AIMessage) and message.additional_kwargs.get("lc_source") == "deepskills":
                    continue  # the answer that was sent back, marked as such
                print("\n".join(lines_of(message)), end="\n\n")
            if node == "tools" and "skills_loaded" in change:
                loaded = merge_loaded(loaded, change["skills_loaded"])
                print(f"loaded now: {', '.join(loaded) or 'nothing'}\n")


def merge_loaded(loaded: list[str], change: Any) -> list[str]:
    """Return what is loaded after a change of state: a list adds, `{"unload": [...]}` removes."""
    if isinstance(change, dict):
        return [name for name in loaded if name not in change["unload"]]
    return [*loaded, *change]


def lines_of(message: AnyMessage) -> Iterator[str]:
    """Yield the lines of the transcript for one message."""
    if isinstance(message, HumanMessage):
        yield "sent back:"
        yield from (f"    | {cut(line)}".rstrip() for line in message.text.splitlines())
    elif isinstance(message, AIMessage):
        if message.text:
            yield f"agent: {message.text}"
        for call in message.tool_calls:
            arguments = ", ".join(f"{key}={value!r}" for key, value in call["args"].items())
            yield f"  calls {call['name']}({arguments})"
    elif isinstance(message, ToolMessage):
        lines = message.text.splitlines()
        shown = (
            textwrap.wrap(message.text, WIDTH, break_on_hyphens=False)
            if message.status == "error"
            else [cut(line) for line in lines[:SHOWN]]
        )
        yield f"  {message.name} answers ({len(message.text):,} characters):"
        yield from (f"    | {line}".rstrip() for line in shown)
        if len(lines) > SHOWN:
            yield f"    | ... {len(lines) - SHOWN} more lines"


def cut(line: str) -> str:
    """Return a line's first words."""
    return line if len(line) <= WIDTH else line[:WIDTH].rpartition(" ")[0] + " ..."


if __name__ == "__main__":
    main()
