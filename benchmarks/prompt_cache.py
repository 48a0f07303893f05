"""How much of a request a provider's prompt cache can use again, measured on a session of 30 turns.

A cache serves the longest prefix that a request shares with the one before. The same session runs with deepskills in
both values of `loaded_status`, with `unload_when="cheap"`, and with deepagents' own skills middleware, where the model
reads `SKILL.md` by `read_file` and nothing is ever unloaded. The cost of a session is in characters of plain input, by
what providers ask for: 1.25 for what is written to the cache, 0.1 for what is read from it. Run it with
`python benchmarks/prompt_cache.py`.
"""

import asyncio
import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Literal, TypeAlias

from deepagents import create_deep_agent
from deepagents.backends import FilesystemBackend
from deepagents.middleware.skills import SkillsMiddleware as DeepAgentsSkillsMiddleware
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from measure import markdown_table

from deepskills import SkillsMiddleware, generate_skill_md
from deepskills._loading.budget import count_text_tokens
from deepskills.testing import Request, ScriptedChatModel, call_tools

TURNS = 30
"""How many questions a session has."""

SKILLS = ("audit", "billing", "contracts", "deploy", "email", "forecast")

Kind: TypeAlias = Literal["load", "reload", "unload"]
Plan: TypeAlias = Mapping[int, tuple[Kind, str]]

PLAN: Plan = {
    2: ("load", "audit"),
    5: ("load", "billing"),
    9: ("load", "contracts"),
    12: ("unload", "audit"),
    15: ("load", "deploy"),
    18: ("unload", "contracts"),
    21: ("reload", "audit"),
    24: ("load", "email"),
    27: ("unload", "billing"),
}
"""What the model does with skills, by turn; in the other turns it answers at once."""

OPTIONS: dict[str, dict[str, Any]] = {
    "system_prompt": {"loaded_status": "system_prompt"},
    "conversation": {"loaded_status": "conversation"},
    "cheap": {"loaded_status": "conversation", "unload_when": "cheap"},
}
OURS = tuple(OPTIONS)
DEFAULTS = "defaults"
"""Ours as it is without options, with a model of a provider that caches prompts."""
CACHE_WRITE, CACHE_READ = 1.25, 0.1
"""What a character costs that is written to the prompt cache, and one that is read from it; plain input costs 1."""
THEIRS = "deepagents"
COLUMNS = {"mean": "any request", "load": "a load", "reload": "a reload", "unload": "an unload"}


@dataclass(frozen=True)
class Step:
    """Two requests that follow one another, and what the model did between them."""

    before: str
    after: str
    kind: Kind | None = None

    @property
    def shared(self) -> int:
        """How many characters the later request shares with the beginning of the earlier one."""
        if self.after.startswith(self.before):
            return len(self.before)
        pairs = enumerate(zip(self.before, self.after, strict=False))
        return next((place for place, (old, new) in pairs if old != new), min(len(self.before), len(self.after)))

    @property
    def kept(self) -> float:
        """The share of the earlier request that the later one begins with."""
        return self.shared / len(self.before)

    @property
    def cost(self) -> float:
        """What the later request costs, with the earlier one in the cache."""
        return CACHE_READ * self.shared + CACHE_WRITE * (len(self.after) - self.shared)


def serialized(request: Request) -> str:
    """Return a request as one text: the system prompt, then each message with its calls."""
    lines = [json.dumps([message.type, message.content, _calls(message)]) for message in request.messages]
    return "\n".join(lines)


def _calls(message: BaseMessage) -> list[Any]:
    return list(message.tool_calls) if isinstance(message, AIMessage) else [getattr(message, "tool_call_id", None)]


def write_skills(root: Path) -> None:
    """Write the skills of the session, each of some 6,000 characters."""
    for name in SKILLS:
        body = "\n".join(f"{number}. When it comes to {name}, do step {number} first." for number in range(120))
        folder = root / "skills" / name
        folder.mkdir(parents=True)
        folder.joinpath("SKILL.md").write_text(generate_skill_md(name, f"Knows all about {name}.", body))


class CachingModel(ScriptedChatModel):
    """A scripted model of a provider that caches prompts by prefix."""

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:  # noqa: ARG002 - LangChain's signature
        return {"ls_provider": "anthropic"}


def reply(kind: Kind, skill: str, *, ours: bool, same: bool = False) -> AIMessage | None:
    """Return the call by which a model does something with a skill; `None` where it has no such call.

    With `same` each conversation has the same number of calls: where theirs has none, it makes a small one.
    """
    if ours:
        return call_tools(("unload_skill" if kind == "unload" else "load_skill", {"skill_name": skill}))
    if same and kind != "load":
        return call_tools(("glob", {"pattern": f"/none/{skill}.*"}))
    if kind != "load":
        return None
    return call_tools(("read_file", {"file_path": f"/skills/{skill}/SKILL.md", "limit": 1_000}))


def session(
    label: str, root: Path, plan: Plan, turns: int, *, asynchronous: bool = False, same: bool = False
) -> tuple[list[Request], list[Step]]:
    """Run the session, and return what the model was sent and what followed what."""
    backend = FilesystemBackend(root_dir=root, virtual_mode=True)
    script: list[Any] = []
    model = CachingModel(replies=script) if same else ScriptedChatModel(replies=script)
    agent: Any = create_deep_agent(
        model=model, middleware=[_middleware(label, backend)], backend=backend, checkpointer=InMemorySaver()
    )
    kinds: dict[int, Kind] = {}
    for turn in range(turns):
        call = reply(*plan[turn], ours=label != THEIRS, same=same) if turn in plan else None
        if call is not None:
            kinds[len(script) + 1] = plan[turn][0]
            script.append(call)
        script.append(f"This is the answer to question {turn}. " * 8)
        model.replies = list(script)
        given = {"messages": [HumanMessage(f"This is question {turn}. " * 4)]}
        config = {"configurable": {"thread_id": "session"}}
        if asynchronous:
            asyncio.run(agent.ainvoke(given, config))
        else:
            agent.invoke(given, config)
    return model.requests, list(_steps(model.requests, kinds))


def _middleware(label: str, backend: FilesystemBackend) -> Any:
    if label == THEIRS:
        return DeepAgentsSkillsMiddleware(backend=backend, sources=["/skills"])
    return SkillsMiddleware(backend=backend, sources=["/skills"], **OPTIONS.get(label, {}))


def _steps(requests: Sequence[Request], kinds: dict[int, Kind]) -> Iterator[Step]:
    texts = [serialized(request) for request in requests]
    for number in range(1, len(texts)):
        yield Step(texts[number - 1], texts[number], kinds.get(number))


def measure(*, asynchronous: bool = False, plan: Plan = PLAN, turns: int = TURNS) -> dict[str, dict[str, float]]:
    """Return for each middleware the mean share of the previous request that stays a prefix.

    `mean` is over all requests, `load`, `reload` and `unload` over those that follow one (`nan` if there is none);
    `system_prompts` counts the different system prompts of the session, `cost` is that of all its requests.
    """
    found: dict[str, dict[str, float]] = {}
    for label in (*OURS, THEIRS):
        with tempfile.TemporaryDirectory() as directory:
            write_skills(Path(directory))
            requests, steps = session(label, Path(directory), plan, turns, asynchronous=asynchronous)
        found[label] = {
            "mean": mean(step.kept for step in steps),
            **{
                kind: _mean([step.kept for step in steps if step.kind == kind]) for kind in ("load", "reload", "unload")
            },
            "system_prompts": float(len({request.system for request in requests})),
            "cost": CACHE_WRITE * len(serialized(requests[0])) + sum(step.cost for step in steps),
        }
    return found


def input_after_cache() -> tuple[float, float]:
    """Return what the input of a session costs after the cache, ours by default and theirs, in tokens of plain input.

    Both conversations have the same calls; what the cache gives counts a tenth. Skills that are unloaded are not loaded
    again, because deepagents' class cannot take a text back, and a second one would count on one side alone.
    """
    plan = {turn: step for turn, step in PLAN.items() if step[0] != "reload"}
    costs = []
    for label in (DEFAULTS, THEIRS):
        with tempfile.TemporaryDirectory() as directory:
            write_skills(Path(directory))
            requests, steps = session(label, Path(directory), plan, TURNS, same=True)
        cost = float(count_text_tokens(serialized(requests[0])))
        for step in steps:
            cached, whole = count_text_tokens(step.after[: step.shared]), count_text_tokens(step.after)
            cost += whole - cached + CACHE_READ * cached
        costs.append(cost)
    ours, theirs = costs
    return ours, theirs


def _mean(shares: Sequence[float]) -> float:
    return mean(shares) if shares else math.nan


def table(found: dict[str, dict[str, float]]) -> str:
    """Return the shares as a Markdown table."""
    rows = [["share of the previous request kept by", *COLUMNS.values(), "system prompts", "cost"]]
    rows.append(["---", *["---:"] * (len(COLUMNS) + 2)])
    for label, numbers in found.items():
        shares = ["-" if math.isnan(numbers[key]) else f"{numbers[key]:.1%}" for key in COLUMNS]
        name = f"deepskills, {label}" if label in OURS else label
        rows.append([name, *shares, f"{numbers['system_prompts']:.0f}", f"{numbers['cost']:,.0f}"])
    return markdown_table(rows)


if __name__ == "__main__":
    print(table(measure()))
