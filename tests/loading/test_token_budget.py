"""`max_loaded_tokens`: what loaded skills may cost together, and what a model hears that wants more."""

import re
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.messages.utils import count_tokens_approximately

from deepskills import SkillsMiddleware
from deepskills.testing import call_tools
from support import Conversation, Mode, both_modes, disk, load, skill_md, unload, without_origin, write_files
from support.agents import loaded_state

NAMES = ("alpha", "beta", "gamma")


def write_skill(root: Path, name: str, size: int) -> None:
    """Write a skill whose instructions have so many characters."""
    write_files(root, {f"skills/{name}/SKILL.md": skill_md(name, body=f"{name} says so. " * (size // 15))})


def talk(mode: Mode, root: Path, limit: int | None, **options: Any) -> Conversation:
    """Return a conversation with an agent whose skills may cost so many tokens."""
    return Conversation(
        mode, SkillsMiddleware(backend=disk(root), sources=["/skills"], max_loaded_tokens=limit, **options)
    )


def costs(conversation: Conversation) -> dict[str, int]:
    """Return what state says that each loaded skill costs."""
    return {name: record["tokens"] for name, record in conversation.state["skills_context"]["records"].items()}


def cost_of(root: Path, *names: str) -> int:
    """Return what skills cost together where nothing limits them."""
    conversation = talk("sync", root, None)
    conversation.call(*map(load, names))
    return sum(costs(conversation).values())


@both_modes
def test_a_cost_is_what_the_text_takes_in_a_request(mode: Mode, tmp_path: Path) -> None:
    """A load is counted as LangChain counts its message, give or take the message's own few tokens."""
    write_skill(tmp_path, "alpha", 6_000)
    conversation = talk(mode, tmp_path, 50_000)

    [answer] = conversation.call(load("alpha"))

    counted = count_tokens_approximately([answer])
    assert costs(conversation)["alpha"] == pytest.approx(counted, abs=10)


@both_modes
def test_a_load_within_the_budget_is_granted_to_the_last_token(mode: Mode, tmp_path: Path) -> None:
    """A skill that costs exactly what is allowed is loaded; one token less is too few."""
    write_skill(tmp_path, "alpha", 2_000)
    cost = cost_of(tmp_path, "alpha")

    enough, short = talk(mode, tmp_path, cost), talk(mode, tmp_path, cost - 1)
    [granted], [refused] = enough.call(load("alpha")), short.call(load("alpha"))

    assert (granted.status, enough.loaded) == ("success", ["alpha"])
    assert (refused.status, short.loaded) == ("error", [])


@both_modes
def test_a_refusal_names_sizes_and_what_to_unload(mode: Mode, tmp_path: Path) -> None:
    """A refusal says what the skill takes, what is in use of how much, what each loaded one costs, and how to go on."""
    for name, size in zip(NAMES, (4_000, 2_000, 8_000), strict=True):
        write_skill(tmp_path, name, size)
    needed = cost_of(tmp_path, "gamma")
    conversation = talk(mode, tmp_path, 3_000)
    conversation.call(load("alpha"))
    conversation.call(load("beta"))
    before = loaded_state(conversation.state)

    [answer] = conversation.call(load("gamma"))

    sizes = costs(conversation)
    assert answer.status == "error"
    assert "'gamma' was not loaded" in answer.text
    assert f"{needed:,} tokens" in answer.text
    assert f"{sum(sizes.values()):,} of 3,000" in answer.text
    assert all(f"{name} ({cost:,} tokens)" in answer.text for name, cost in sizes.items())
    assert 'unload_skill("alpha")' in answer.text
    assert loaded_state(conversation.state) == before
    assert "gamma says so" not in conversation.model.requests[-1].text


@both_modes
def test_a_skill_larger_than_the_whole_budget_is_refused_for_good(mode: Mode, tmp_path: Path) -> None:
    """Where no unloading would help, the refusal does not ask for it, but names the option to raise."""
    write_skill(tmp_path, "alpha", 1_000)
    write_skill(tmp_path, "beta", 40_000)
    conversation = talk(mode, tmp_path, 2_000)
    conversation.call(load("alpha"))

    [answer] = conversation.call(load("beta"))

    assert answer.status == "error"
    assert "max_loaded_tokens" in answer.text
    assert "unload_skill" not in answer.text
    assert conversation.loaded == ["alpha"]


@both_modes
def test_a_refusal_is_told_on_the_stream(mode: Mode, tmp_path: Path) -> None:
    """A refusal for tokens is an event with its reason, a granted load one with its cost."""
    write_skill(tmp_path, "alpha", 2_000)
    write_skill(tmp_path, "beta", 40_000)
    conversation = talk(mode, tmp_path, 2_000)

    events = conversation.stream(call_tools(load("alpha")), call_tools(load("beta")))

    assert without_origin(events) == [
        {"type": "skill.loaded", "skill": "alpha", "tokens": costs(conversation)["alpha"], "resources": 0},
        {"type": "skill.refused", "skill": "beta", "reason": "max_loaded_tokens"},
    ]


@both_modes
def test_what_is_unloaded_is_free_again(mode: Mode, tmp_path: Path) -> None:
    """A skill that was refused has room once another is unloaded, whose answer says how much there is."""
    for name in NAMES:
        write_skill(tmp_path, name, 4_000)
    limit = 2 * cost_of(tmp_path, "gamma") + 5
    conversation = talk(mode, tmp_path, limit)
    conversation.call(load("alpha"))
    conversation.call(load("beta"))
    [refused] = conversation.call(load("gamma"))

    [unloaded] = conversation.call(unload("alpha"))
    [granted] = conversation.call(load("gamma"))

    assert [refused.status, granted.status] == ["error", "success"]
    room = re.search(r"([\d,]+) of ([\d,]+) tokens", unloaded.text)
    assert room is not None
    assert [int(number.replace(",", "")) for number in room.groups()] == [limit - costs(conversation)["beta"], limit]
    assert conversation.loaded == ["beta", "gamma"]


@pytest.mark.parametrize("order", [NAMES, NAMES[::-1]], ids="-".join)
@both_modes
def test_parallel_loads_do_not_overshoot(mode: Mode, order: tuple[str, ...], tmp_path: Path) -> None:
    """Of three loads in one turn with room for two, the first two are granted and the third refused."""
    for name in NAMES:
        write_skill(tmp_path, name, 4_000)
    limit = cost_of(tmp_path, *NAMES) - 100
    conversation = talk(mode, tmp_path, limit)

    answers = conversation.call(*map(load, order))

    assert [answer.status for answer in answers] == ["success", "success", "error"]
    assert sum(costs(conversation).values()) <= limit
    assert sorted(conversation.loaded) == sorted(order[:2])


@both_modes
def test_parallel_calls_of_both_kinds_do_not_overshoot(mode: Mode, tmp_path: Path) -> None:
    """An unload makes room for a load behind it in the same turn, and for none before it."""
    for name in NAMES:
        write_skill(tmp_path, name, 4_000)
    limit = cost_of(tmp_path, "alpha") + 100
    conversation = talk(mode, tmp_path, limit)
    conversation.call(load("alpha"))

    answers = conversation.call(load("beta"), unload("alpha"), load("gamma"))

    assert [answer.status for answer in answers] == ["error", "success", "success"]
    assert conversation.loaded == ["gamma"]
    assert sum(costs(conversation).values()) <= limit


@both_modes
def test_a_skill_that_grew_past_the_budget_keeps_its_older_text(mode: Mode, tmp_path: Path) -> None:
    """A newer text for which there is no room is refused, and the older one stays loaded and in the request."""
    write_skill(tmp_path, "alpha", 2_000)
    conversation = talk(mode, tmp_path, 1_000)
    [older] = conversation.call(load("alpha"))
    before = costs(conversation)
    write_skill(tmp_path, "alpha", 20_000)

    [answer] = conversation.call(load("alpha"))

    assert answer.status == "error"
    assert costs(conversation) == before
    shown = [m.text for m in conversation.model.requests[-1].messages if isinstance(m, ToolMessage)]
    assert shown[0] == older.text


@both_modes
def test_a_newer_text_is_counted_in_place_of_the_older(mode: Mode, tmp_path: Path) -> None:
    """A skill that changed and is loaded again counts once, with what it costs now."""
    write_skill(tmp_path, "alpha", 4_000)
    limit = cost_of(tmp_path, "alpha") + 20
    conversation = talk(mode, tmp_path, limit)
    conversation.call(load("alpha"))
    write_skill(tmp_path, "alpha", 3_900)

    [answer] = conversation.call(load("alpha"))

    assert answer.status == "success"
    assert costs(conversation) == {"alpha": cost_of(tmp_path, "alpha")}


@both_modes
def test_no_limit_means_none(mode: Mode, tmp_path: Path) -> None:
    """With `None` skills of any size are loaded, and no answer speaks of a limit."""
    for name in NAMES:
        write_skill(tmp_path, name, 400_000)
    conversation = talk(mode, tmp_path, None)

    answers = conversation.call(*map(load, NAMES))
    [unloaded] = conversation.call(unload("alpha"))

    assert [answer.status for answer in answers] == ["success"] * 3
    assert sum(costs(conversation).values()) > 100_000
    assert "tokens" not in unloaded.text


@both_modes
def test_the_default_is_50000(mode: Mode, tmp_path: Path) -> None:
    """Without the option 50,000 tokens may be loaded."""
    write_skill(tmp_path, "alpha", 190_000)
    write_skill(tmp_path, "beta", 20_000)
    conversation = Conversation(mode, SkillsMiddleware(backend=disk(tmp_path), sources=["/skills"]))

    [granted], [refused] = conversation.call(load("alpha")), conversation.call(load("beta"))

    assert [granted.status, refused.status] == ["success", "error"]
    assert "of 50,000 are in use" in refused.text


@both_modes
def test_a_budget_of_nothing_refuses_everything(mode: Mode, tmp_path: Path) -> None:
    """With 0 nothing is loaded."""
    write_skill(tmp_path, "alpha", 100)
    conversation = talk(mode, tmp_path, 0)

    [answer] = conversation.call(load("alpha"))

    assert answer.status == "error"
    assert conversation.loaded == []


@pytest.mark.parametrize("limit", [-1, 1.5, "many", True], ids=repr)
def test_a_limit_that_is_none_is_refused(limit: Any, tmp_path: Path) -> None:
    """A budget that is not a whole number from 0 on fails where it is set, by name."""
    with pytest.raises(ValueError, match="max_loaded_tokens"):
        SkillsMiddleware(backend=disk(tmp_path), sources=["/skills"], max_loaded_tokens=limit)


@both_modes
def test_a_counter_of_ones_own_decides(mode: Mode, tmp_path: Path) -> None:
    """`token_counter` is asked for the whole text of a load, and what it says is what the budget counts."""
    for name in NAMES[:2]:
        write_skill(tmp_path, name, 100)
    asked: list[str] = []

    def counter(text: str) -> float:
        asked.append(text)
        return 59.5

    conversation = talk(mode, tmp_path, 100, token_counter=counter)
    granted, refused = conversation.call(load("alpha"), load("beta"))

    assert any("alpha says so." in text for text in asked)
    assert costs(conversation) == {"alpha": 60}
    assert (granted.status, refused.status) == ("success", "error")
    assert "60 tokens" in refused.text


@both_modes
def test_a_counter_that_gives_no_number_costs_nothing_but_itself(mode: Mode, tmp_path: Path) -> None:
    """Loads and pins go on, counted by the default, and a problem names the counter, whatever it does."""

    def raises(_text: str) -> int:
        raise RuntimeError("there is no tokenizer")

    write_skill(tmp_path, "alpha", 100)
    write_skill(tmp_path, "beta", 100)
    expected = cost_of(tmp_path, "alpha", "beta")
    odd: list[Any] = [raises, lambda _: "many", lambda _: -1, lambda _: None, lambda _: float("nan"), lambda _: True]
    for counter in odd:
        conversation = talk(mode, tmp_path, 50_000, token_counter=counter)
        conversation.say(call_tools(load("alpha")), given={"messages": [HumanMessage("go")], "pinned_skills": ["beta"]})

        assert sorted(conversation.loaded) == ["alpha", "beta"]
        assert sum(costs(conversation).values()) == expected
        codes = [problem["code"] for problem in conversation.state["skills_problems"]]
        assert codes == ["token-counter-failed"]
