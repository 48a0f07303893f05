"""What `SkillChecks` adds to a run that follows its skill, and to one that forgets a step."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepagents.backends import FilesystemBackend
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.tools import tool
from measure import Row

from deepskills import SkillsMiddleware, generate_skill_md
from deepskills.extensions import SkillChecks
from deepskills.testing import ScriptedChatModel, call_tools

MANY_SKILLS, MANY_CHECKS = 10, 20
"""How many skills with how many checks the largest run has."""


@tool
def run_tests() -> str:
    """Run the tests."""
    return "42 passed"


@dataclass(frozen=True)
class Cost:
    """What a run cost."""

    requests: int
    tokens: int
    """Input tokens of all requests."""


def cost_of(replies: Sequence[Any], *, checked: bool, skills: int = 1, checks: int = 1) -> Cost:
    """Return what a conversation costs whose skills have checks, with the extension or without."""
    fields: dict[str, Any] = {"checks": [{"called": "run_tests"}] + [{"file": f"f{n}.md"} for n in range(checks - 1)]}
    with tempfile.TemporaryDirectory() as name:
        for number in range(skills):
            directory = Path(name) / "skills" / f"release-{number}"
            directory.mkdir(parents=True)
            text = generate_skill_md(f"release-{number}", "Makes a release.", "# Release\n\nRun the tests.\n", fields)
            (directory / "SKILL.md").write_text(text, encoding="utf-8")
        model = ScriptedChatModel(replies=list(replies))
        middleware: SkillsMiddleware[Any, Any] = SkillsMiddleware(
            backend=FilesystemBackend(root_dir=name, virtual_mode=True),
            sources=["/skills"],
            extensions=[SkillChecks()] if checked else [],
        )
        agent = create_agent(model, tools=[run_tests], middleware=[middleware])
        agent.invoke({"messages": [HumanMessage("Release it.")]})
    return Cost(len(model.requests), sum(count_tokens_approximately(request.messages) for request in model.requests))


def checking_rows() -> Iterator[Row]:
    """Measure a run that follows, one that forgets once, and one with many checks."""
    load, test = call_tools(("load_skill", {"skill_name": "release-0"})), call_tools(("run_tests", {}))
    bare, follows = (cost_of([load, test, "Done."], checked=checked) for checked in (False, True))
    added = follows.tokens - bare.tokens
    yield Row(
        "a run that follows its skill, with `SkillChecks`",
        f"without: {bare.requests} requests, {bare.tokens:,} tokens",
        f"{follows.requests} requests, {added:+,} tokens",
        "no request more",
        follows.requests == bare.requests,
        {"tokens": added},
    )
    forgets = cost_of([load, "Done.", test, "Now it is done."], checked=True)
    without = cost_of([load, "Done."], checked=False)
    yield Row(
        "a run that forgets a step and is sent back once",
        f"without: {without.requests} requests, {without.tokens:,} tokens",
        f"{forgets.requests} requests, {forgets.tokens - without.tokens:+,} tokens",
        "one request for the retry, and those that the model then makes",
        forgets.requests == without.requests + 2,
        {"tokens": forgets.tokens - without.tokens},
    )
    loads = call_tools(*(("load_skill", {"skill_name": f"release-{number}"}) for number in range(MANY_SKILLS)))
    replies = [loads, test, *["Done."] * 3]
    many = [cost_of(replies, checked=on, skills=MANY_SKILLS, checks=MANY_CHECKS) for on in (False, True)]
    per_check = (many[1].tokens / many[1].requests - many[0].tokens / many[0].requests) / (MANY_SKILLS * MANY_CHECKS)
    yield Row(
        f"{MANY_SKILLS} skills with {MANY_CHECKS} checks each",
        f"without: {many[0].tokens / many[0].requests:,.0f} tokens a request",
        f"{many[1].tokens / many[1].requests:,.0f} tokens a request, {per_check:.0f} a check",
        "at most 40 tokens a check",
        per_check <= 40,
        {"tokens": per_check},
    )
