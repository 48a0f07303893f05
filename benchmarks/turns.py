"""What a request costs at the first and at the fifteenth turn of a conversation, by the way the skills are shown."""

import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deepagents.backends import FilesystemBackend
from deepagents.middleware.skills import SkillsMiddleware as DeepAgentsSkillsMiddleware
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from measure import Row

from deepskills import SkillsMiddleware
from deepskills._loading.budget import count_tokens
from deepskills.extensions import SkillSuggestions
from deepskills.testing import ScriptedChatModel

TURNS = 15
"""How many messages a conversation has."""

MOST_GROWTH = 1_500
"""How many tokens the notes of fifteen turns may add."""


def turns_row(what: str, skills: Sequence[tuple[str, str]], requests: Sequence[str]) -> Row:
    """Measure a conversation over skills, each a name and a description; the model answers and loads nothing."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for number, (skill, description) in enumerate(skills):
            # Numbered, since public skills share names, and quoted, since their descriptions hold anything.
            unique = f"{re.sub(r'[^a-z0-9]+', '-', skill.lower())}-{number}"
            directory = root / "skills" / unique
            directory.mkdir(parents=True)
            head = f"---\nname: {unique}\ndescription: {json.dumps(description)}\n---\n"
            (directory / "SKILL.md").write_text(head, encoding="utf-8")
        given: dict[str, Any] = {
            "backend": FilesystemBackend(root_dir=root, virtual_mode=True),
            "sources": ["/skills"],
        }
        theirs = _tokens(DeepAgentsSkillsMiddleware(**given), requests)
        listed = _tokens(SkillsMiddleware(**given), requests)
        noted = _tokens(SkillsMiddleware(**given, extensions=[SkillSuggestions(catalog="none")]), requests)
        # Without skills, the messages themselves.
        plain = _tokens(None, requests)
    growth = (noted[-1] - noted[0]) - (plain[-1] - plain[0])
    return Row(
        f"tokens of the first and of the fifteenth turn, {what}",
        f"deepagents {_shown(theirs)}; our full list {_shown(listed)}; messages alone {_shown(plain)}",
        f"with suggestions {_shown(noted)}",
        f"notes add at most {MOST_GROWTH:,}",
        growth <= MOST_GROWTH,
        {"first": noted[0], "last": noted[-1], "growth": growth},
    )


def _tokens(middleware: Any, requests: Sequence[str]) -> list[int]:
    """Return the tokens of the request of each turn."""
    model = ScriptedChatModel(replies=[])
    agent = create_agent(model, middleware=[middleware] if middleware else [], checkpointer=InMemorySaver())
    for request in requests:
        agent.invoke({"messages": [HumanMessage(request)]}, {"configurable": {"thread_id": "one"}})
    return [count_tokens(request.text) for request in model.requests]


def _shown(tokens: Sequence[int]) -> str:
    return f"{tokens[0]:,} / {tokens[-1]:,}"
