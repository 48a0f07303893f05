"""What the model reads when it loads and unloads skills: the tools' descriptions and every answer. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from deepskills._loading import outcomes
from deepskills._loading.budgets import Budgets, Standing
from deepskills._prompt.fields import field_text, shown_name
from deepskills._prompt.notices import UPDATED_LEAD

LOAD_DESCRIPTION = """Load a skill: bring its full instructions and the list of its files into the conversation.

Call this before you start on a task that a listed skill fits, then follow the instructions."""

UNLOAD_DESCRIPTION = (
    """Unload a skill whose work is done, to make room for others. It can be loaded again at any time."""
)

NAME_DESCRIPTION = "The skill's name, as the list of skills has it."

ARGUMENTS_DESCRIPTION = "What the skill is to be started with, if it takes arguments. Leave it out otherwise."

MAX_NAMES = 50
"""How many available skills the answer to an unknown name lists."""

_WORK_WITHOUT = "Work without it, or ask for its file to be repaired."


@dataclass(frozen=True)
class Reply:
    """A tool's answer: what the model reads, whether it is an error, and for a refusal its stable reason."""

    text: str
    is_error: bool = False
    reason: str | None = None


def reply_to(outcome: outcomes.Outcome, budgets: Budgets, *, lingers: bool = False) -> Reply:
    """Word one outcome; `lingers` says that an unloaded text stays in the request for now."""
    match outcome:
        case outcomes.Loaded(prepared, updated=updated):
            return Reply((UPDATED_LEAD if updated else "") + prepared.block)
        case outcomes.AlreadyLoaded():
            return Reply(_already_loaded(outcome))
        case outcomes.Answered(_, text, is_error):
            return Reply(text, is_error, reason="answered" if is_error else None)
        case outcomes.Unloaded(name, standing):
            until = " Its text further up no longer applies." if lingers else ""
            return Reply(f"Unloaded the skill '{shown_name(name)}'.{until} {_room(standing, budgets)}")
        case outcomes.ToolsWithdrawn(name):
            return Reply(f"The skill '{shown_name(name)}' was only read as a file; its tools are withdrawn.")
        case _:
            reason, text = _refused(outcome, budgets)
            return Reply(f"Error: {text}", is_error=True, reason=reason)


def _refused(outcome: outcomes.Refusal, budgets: Budgets) -> tuple[str, str]:  # noqa: PLR0911 - one for each
    """Return the stable reason of a refusal and its words."""
    match outcome:
        case outcomes.Unknown():
            return "unknown", _unknown(outcome)
        case outcomes.NotLoaded(asked, standing):
            loaded = _sizes({other: standing.size(other) for other in standing.loaded}) or "none"
            return "not_loaded", f"The skill '{field_text(asked, 128)}' is not loaded. Loaded now: {loaded}."
        case outcomes.OverBudget():
            reason = "max_loaded_skills" if outcome.limit == "skills" else "max_loaded_tokens"
            return reason, _over_budget(outcome, budgets)
        case outcomes.Unreadable(entry, cause):
            name = shown_name(entry.name)
            return "unreadable", f"The skill '{name}' could not be loaded: {field_text(cause, 500)}. {_WORK_WITHOUT}"
        case outcomes.UserOnly(entry):
            name = shown_name(entry.name)
            text = f"Only the user can start the skill '{name}'. Ask them to, or work without it."
            return "user_only", text
        case outcomes.Refused(entry, cause):
            return "refused", f"The skill '{shown_name(entry.name)}' was not loaded: {field_text(cause, 1_000)}"
        case outcomes.Broken(asked, problem):
            text = (
                f"The skill '{field_text(asked, 128)}' cannot be used ({problem['code']}): "
                f"{field_text(problem['message'], 500)} {_WORK_WITHOUT}"
            )
            return "unreadable", text


def _already_loaded(outcome: outcomes.AlreadyLoaded) -> str:
    name = shown_name(outcome.name)
    text = f"The skill '{name}' is already loaded; its instructions are in this conversation."
    if outcome.by_sibling:
        text = (
            f"The skill '{name}' is already loaded by an earlier call of this turn; see its answer. "
            "If that is an error, call again."
        )
    elif outcome.crowded:
        text = (
            f"The skill '{name}' is already loaded, but more is loaded than there is room for, and its text may be "
            "left out. Unload what is no longer needed: the text is restored automatically."
        )
    if outcome.unchecked:
        text += f" (Its file could not be checked for changes: {field_text(outcome.unchecked, 300)})"
    return text


def _unknown(outcome: outcomes.Unknown) -> str:
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


def _over_budget(outcome: outcomes.OverBudget, budgets: Budgets) -> str:
    standing, name = outcome.standing, shown_name(outcome.entry.name)
    if standing.is_assumed:
        return f"The skill '{name}' was not loaded: earlier calls of this turn may need the room. Try again after them."
    loaded = _sizes({other: standing.size(other) for other in standing.loaded}) or "nothing"
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


def _sizes(tokens: Mapping[str, int]) -> str:
    return ", ".join(f"{shown_name(name)} ({count:,} tokens)" for name, count in tokens.items())


def _room(standing: Standing, budgets: Budgets) -> str:
    text = f"Free now: {max(0, budgets.skills - len(standing.loaded))} of {budgets.skills} skills"
    if budgets.tokens is not None:
        text += f", {max(0, budgets.tokens - standing.tokens):,} of {budgets.tokens:,} tokens"
    return f"{text}."


def tool_failed(tool: str, about: str, error: Exception) -> str:
    """Say that a tool failed in a way that nobody expected."""
    return f"Error: {tool} failed for '{field_text(about, 128)}' ({type(error).__name__}). Work without it."


def skill_tool_failed(tool: str, reason: str) -> str:
    """Say that a skill's own tool could not be resolved."""
    return (
        f"Error: the tool '{field_text(tool, 128)}' could not be resolved: {field_text(reason, 300)}. Work without it."
    )


def call_refused(reason: str) -> str:
    """Say that an extension refused a tool call."""
    return f"Error: {field_text(reason, 2_000)}"
