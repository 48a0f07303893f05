"""Prompt caches: what a load and an unload leave of the prefix that consecutive requests share."""

import itertools
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from deepskills import SkillsMiddleware
from deepskills.testing import Request, call_tools
from support import SOAK, Conversation, Mode, both_modes, disk, load, skill_md, unload, write_files

BENCHMARK = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks/prompt_cache.py"))
NAMES = ("alpha", "beta", "gamma")

Measured: TypeAlias = dict[str, dict[str, float]]
"""What the benchmark measures of its session, by the middleware."""


def talk(mode: Mode, root: Path, **options: Any) -> Conversation:
    """Return a conversation with an agent that has three skills, one of them with resources."""
    write_files(root, {f"skills/{name}/SKILL.md": skill_md(name, body=f"{name} rule. " * 300) for name in NAMES})
    write_files(root, {"skills/alpha/scripts/run.py": "print()"})
    return Conversation(mode, SkillsMiddleware(backend=disk(root), sources=["/skills"], **options))


def kept(before: Request, after: Request) -> float:
    """Return the share of the earlier request that the later one begins with."""
    share: float = BENCHMARK["Step"](BENCHMARK["serialized"](before), BENCHMARK["serialized"](after)).kept
    return share


# --- the session of the benchmark ------------------------------------------------------------------------------------


def a_load_keeps_the_whole_prefix(measured: Measured) -> None:
    """With `conversation` a load, also of a skill that was unloaded before, costs nothing of the prompt cache."""
    assert measured["conversation"]["load"] == measured["conversation"]["reload"] == 1


def the_section_never_changes(measured: Measured) -> None:
    """With `conversation` a session has one system prompt; with `system_prompt` each load and unload makes another."""
    assert measured["conversation"]["system_prompts"] == 1
    assert measured["system_prompt"]["system_prompts"] > 5


def conversation_keeps_more_than_system_prompt(measured: Measured) -> None:
    """`conversation` keeps more of every kind of request, and loses to deepagents' class only what unloading costs."""
    ours, marked = measured["conversation"], measured["system_prompt"]
    theirs = measured["deepagents"]

    assert all(ours[kind] > marked[kind] for kind in ("mean", "load", "unload"))
    assert ours["load"] == theirs["load"] == 1
    assert 0 < ours["unload"] < 1


def the_benchmark_prints_a_row_for_each(measured: Measured) -> None:
    """The table that the script prints has a row for each middleware, and a dash where nothing was measured."""
    text: str = BENCHMARK["table"](measured)

    head, rule, *rows = text.splitlines()
    assert "a load" in head
    assert set(rule) <= set("|-: ")
    names = [row.split("|")[1].strip() for row in rows]
    assert names == ["deepskills, system_prompt", "deepskills, conversation", "deepskills, cheap", "deepagents"]
    assert rows[-1].split("|")[4].strip() == "-"


def a_cheap_unload_keeps_the_whole_prefix(measured: Measured) -> None:
    """With `unload_when="cheap"` a session without a summary only appends, and costs less than unloading at once."""
    cheap, now = measured["cheap"], measured["conversation"]
    assert [cheap[kind] for kind in ("mean", "load", "reload", "unload", "system_prompts")] == [1, 1, 1, 1, 1]
    assert cheap["cost"] < now["cost"]


PROMISES: list[Callable[[Measured], None]] = [
    a_load_keeps_the_whole_prefix,
    the_section_never_changes,
    conversation_keeps_more_than_system_prompt,
    the_benchmark_prints_a_row_for_each,
    a_cheap_unload_keeps_the_whole_prefix,
]


@both_modes
def test_the_session_of_the_benchmark(mode: Mode) -> None:
    """Each promise above holds in the session of 30 turns, and in a run async that is without turns of talk alone."""
    dense = dict(enumerate(BENCHMARK["PLAN"].values(), start=1))
    session = {} if SOAK or mode == "sync" else {"plan": dense, "turns": len(dense) + 2}
    measured: Measured = BENCHMARK["measure"](asynchronous=mode == "async", **session)
    for promise in PROMISES:
        promise(measured)
    assert session or measured["conversation"]["mean"] > 0.9


def test_the_defaults_cost_no_more_than_deepagents_class() -> None:
    """With a provider that caches, the same conversation has about the same input after the cache."""
    ours, theirs = BENCHMARK["input_after_cache"]()
    assert ours <= 1.05 * theirs


# --- small sessions --------------------------------------------------------------------------------------------------


@both_modes
def test_loads_only_append_in_conversation_status(mode: Mode, tmp_path: Path) -> None:
    """With `conversation` each request begins with all of the one before, through loads, refusals and talk."""
    conversation = talk(mode, tmp_path, loaded_status="conversation", max_loaded_skills=2)

    conversation.say(call_tools(load("alpha")), call_tools(load("alpha")), "Done.")
    conversation.say(call_tools(load("beta"), load("gamma")), call_tools(load("unknown")), "Done.")
    conversation.say("Done.")

    requests = conversation.model.requests
    assert [kept(*pair) for pair in itertools.pairwise(requests)] == [1] * (len(requests) - 1)


@both_modes
def test_a_reload_only_appends_in_conversation_status(mode: Mode, tmp_path: Path) -> None:
    """With `conversation` a skill that is loaded after it was unloaded leaves what stands before it as it is."""
    conversation = talk(mode, tmp_path, loaded_status="conversation")
    conversation.say(call_tools(load("alpha")), call_tools(unload("alpha")), "Done.")

    conversation.say(call_tools(load("alpha")), "Done.")

    assert kept(*conversation.model.requests[-2:]) == 1


@both_modes
def test_an_unload_keeps_what_stands_before_the_text(mode: Mode, tmp_path: Path) -> None:
    """With `conversation` an unload changes the request from the unloaded text on, and nothing before it."""
    conversation = talk(mode, tmp_path, loaded_status="conversation")
    conversation.say(call_tools(load("alpha")), call_tools(load("beta")), "Done.")

    conversation.say(call_tools(unload("beta")), "Done.")

    before, after = conversation.model.requests[-2:]
    changed = [n for n, (a, b) in enumerate(zip(before.messages, after.messages, strict=False)) if a != b]
    [place] = changed
    assert "beta rule" in before.messages[place].text
    assert "beta rule" not in after.messages[place].text


@both_modes
def test_the_status_in_the_section_is_what_a_load_costs(mode: Mode, tmp_path: Path) -> None:
    """With `system_prompt` a load marks the skill in front of all; with `conversation` it leaves no trace there."""
    marked, unmarked = talk(mode, tmp_path), talk(mode, tmp_path, loaded_status="conversation")
    for conversation in (marked, unmarked):
        conversation.say(call_tools(load("alpha")), "Done.")

    first, second = marked.model.requests
    assert kept(first, second) < 1
    assert "**alpha** [Loaded]" in second.system
    assert "Resources: 1 script" in second.system
    first, second = unmarked.model.requests
    assert first.system == second.system
    assert "[Loaded]" not in second.system
    assert "Resources:" not in second.system
