"""What the model, the stream and the log hear of each outcome. Pure."""

from dataclasses import dataclass
from typing import Any

from deepskills._loading import decisions as life
from deepskills._prompt.wording import UPDATED_LEAD, field_text, shown_name, sizes

MAX_NAMES = 50
"""How many available skills the answer to an unknown name lists."""


@dataclass(frozen=True)
class Answer:
    """A tool's answer: what the model reads, whether it is an error, and the event for the stream."""

    text: str
    event: dict[str, Any] | None = None
    is_error: bool = False


def answer(outcome: life.Outcome, budgets: life.Budgets) -> Answer:
    """Word one outcome."""
    match outcome:
        case life.Loaded():
            return _loaded(outcome)
        case life.AlreadyLoaded():
            return _already_loaded(outcome)
        case life.Unloaded(name, standing):
            text = f"Unloaded the skill '{shown_name(name)}'. {_room(standing, budgets)}"
            return Answer(text, {"type": "skill.unloaded", "skill": name})
        case life.ToolsWithdrawn(name):
            text = f"The skill '{shown_name(name)}' was only read as a file; its tools are withdrawn."
            return Answer(text, {"type": "skill.unloaded", "skill": name})
        case _:
            return _refused(outcome, budgets)


def _refused(outcome: life.Refusal, budgets: life.Budgets) -> Answer:
    match outcome:
        case life.Unknown(asked):
            name, reason, text = asked, "unknown", _unknown(outcome)
        case life.NotLoaded(asked, standing):
            loaded = sizes({other: standing.size(other) for other in standing.loaded}) or "none"
            name, reason = asked, "not_loaded"
            text = f"The skill '{field_text(asked, 128)}' is not loaded. Loaded now: {loaded}."
        case life.OverBudget(skill):
            name, text = skill["name"], _over_budget(outcome, budgets)
            reason = "max_loaded_skills" if outcome.limit == "skills" else "max_loaded_tokens"
        case life.Unreadable(skill, cause):
            name, reason = skill["name"], "unreadable"
            text = (
                f"The skill '{shown_name(name)}' could not be loaded: {field_text(cause, 500)}. "
                "Work without it, or ask for its file to be repaired."
            )
        case life.Broken(asked, problem):
            name, reason = asked, "unreadable"
            text = (
                f"The skill '{field_text(asked, 128)}' cannot be used ({problem['code']}): "
                f"{field_text(problem['message'], 500)} Work without it, or ask for its file to be repaired."
            )
    event = {"type": "skill.refused", "skill": name, "reason": reason}
    return Answer(f"Error: {text}", event, is_error=True)


def _already_loaded(outcome: life.AlreadyLoaded) -> Answer:
    text = f"The skill '{shown_name(outcome.name)}' is already loaded; its instructions are in this conversation."
    if outcome.by_sibling:
        name = shown_name(outcome.name)
        text = (
            f"The skill '{name}' is already loaded by an earlier call of this turn; see its answer. "
            "If that is an error, call again."
        )
    elif outcome.crowded:
        text = (
            f"The skill '{shown_name(outcome.name)}' is already loaded, but more is loaded than there is room for, and "
            "its text may be left out. Unload what is no longer needed: the text comes back by itself."
        )
    if outcome.unchecked:
        text += f" (Its file could not be checked for changes: {field_text(outcome.unchecked, 300)})"
    return Answer(text)


def _loaded(outcome: life.Loaded) -> Answer:
    prepared = outcome.prepared
    event = {
        "type": "skill.loaded",
        "skill": prepared.skill["name"],
        "tokens": prepared.tokens,
        "resources": len(prepared.inventory.resources),
    }
    lead = UPDATED_LEAD if outcome.updated else ""
    return Answer(lead + prepared.block, event)


def _unknown(outcome: life.Unknown) -> str:
    text = f"There is no skill named '{field_text(outcome.asked, 128)}'."
    if outcome.closest:
        text += f" Did you mean {' or '.join(repr(shown_name(name)) for name in outcome.closest)}?"
    if outcome.incomplete:
        text += " A source of skills could not be read, so skills may be missing; it is tried again at the next run."
    if not outcome.available:
        return f"{text} No skills are available."
    shown = ", ".join(shown_name(name) for name in outcome.available[:MAX_NAMES])
    rest = len(outcome.available) - MAX_NAMES
    return f"{text} Available skills: {shown}{f' and {rest} more' if rest > 0 else ''}."


def _over_budget(outcome: life.OverBudget, budgets: life.Budgets) -> str:
    standing, name = outcome.standing, shown_name(outcome.skill["name"])
    if standing.assumed:
        return f"The skill '{name}' was not loaded: earlier calls of this turn may need the room. Try again after them."
    loaded = sizes({other: standing.size(other) for other in standing.loaded}) or "nothing"
    if outcome.limit == "skills":
        text = f"The skill '{name}' was not loaded: {len(standing.loaded)} of {budgets.skills} skills are loaded."
    else:
        text = (
            f"The skill '{name}' was not loaded: it takes {outcome.needed:,} tokens, and {standing.tokens:,} of "
            f"{budgets.tokens:,} are in use."
        )
        if budgets.tokens is not None and outcome.needed > budgets.tokens:
            return f"{text} It is larger than the whole budget; raise max_loaded_tokens to use it."
    example = f'`unload_skill("{shown_name(standing.loaded[0])}")`' if standing.loaded else "`unload_skill`"
    return f"{text} Loaded now: {loaded}. Call {example} or unload another that is no longer needed, then try again."


def _room(standing: life.Standing, budgets: life.Budgets) -> str:
    text = f"Free now: {max(0, budgets.skills - len(standing.loaded))} of {budgets.skills} skills"
    if budgets.tokens is not None:
        text += f", {max(0, budgets.tokens - standing.tokens):,} of {budgets.tokens:,} tokens"
    return f"{text}."
