"""Preparing loads: a skill's file is read, arguments are filled in, extensions change the text, its cost is counted."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

from deepskills._agent.extending import change_text
from deepskills._agent.extension import SkillLoad
from deepskills._agent.run import Run
from deepskills._agent.updates import session_id
from deepskills._agent.visibility import shelf_of
from deepskills._backend.calls import Consult, Consulted, Failed, Plan, WaitFor
from deepskills._backend.missing import is_missing_error
from deepskills._catalog.entries import SkillEntry
from deepskills._catalog.sources import parent
from deepskills._files.contents import Contents, read_contents, without_closed
from deepskills._format.problems import problem
from deepskills._loading.arguments import argument_names, fill_in
from deepskills._loading.outcomes import Prepared
from deepskills._loading.tokens import count_tokens
from deepskills._prompt.block import skill_block
from deepskills._types import Trigger

Wanted = tuple[SkillEntry, str]
"""A skill, and the arguments it is to be started with."""

Key = tuple[str, str]
"""A skill's name and arguments."""


def prepare(
    wanted: Sequence[Wanted], run: Run, trigger: Trigger = "model", triggers: Mapping[str, Trigger] | None = None
) -> Plan[dict[Key, Prepared]]:
    """Read the text and list the files of several skills: two rounds, however many they are.

    `triggers` names, by skill, who wants it, where that is not the same for all.
    """
    distinct = {(entry.name, arguments): (entry, arguments) for entry, arguments in wanted}
    if not distinct:
        return {}
    refusals = yield from run.look.refusals([entry for entry, _ in distinct.values()])
    result = {
        key: Prepared(entry, arguments, failure=refusals[entry.name])
        for key, (entry, arguments) in distinct.items()
        if entry.name in refusals
    }
    allowed = {entry.name: entry for entry, _ in distinct.values() if entry.name not in refusals}
    if not allowed:
        return result
    read = yield from read_contents(list(allowed.values()), run.settings.resource_depth)
    for key, (entry, arguments) in distinct.items():
        if key not in result:
            own = (triggers or {}).get(entry.name, trigger)
            result[key] = yield from _prepared((entry, arguments), read[entry.name], run, own)
    return result


def prepare_in_turn(
    turn: Hashable, wanted: Sequence[Wanted], run: Run, own: Key | None = None
) -> Plan[dict[Key, Prepared]]:
    """Prepare what calls of one turn need, each file read by one of them; of `own` no other call's failure counts."""
    if turn is None:
        return (yield from prepare(wanted, run))
    # Once for each: a second claim of the same reading would make a call wait for itself.
    distinct = {(entry.name, arguments): (entry, arguments) for entry, arguments in wanted}
    claims = {
        key: (one, *run.settings.memory.turn_readings.claim(turn, (one[0].path, one[1])))
        for key, one in distinct.items()
    }
    mine = {key: future for key, (_, future, is_mine) in claims.items() if is_mine}
    try:
        result = yield from prepare([claims[key][0] for key in mine], run)
        for key, future in mine.items():
            future.set_result(result[key])
    finally:
        _abandon(mine.values())
    others = {key: future for key, (_, future, is_mine) in claims.items() if not is_mine}
    if others:
        replies = yield tuple(WaitFor(future) for future in others.values())
        lost = [
            key
            for key, reply in zip(others, replies, strict=True)
            if not isinstance(reply, Consulted) or (key == own and _is_worth_another_try(reply.value))
        ]
        result |= {key: reply.value for key, reply in zip(others, replies, strict=True) if isinstance(reply, Consulted)}
        result |= yield from prepare([claims[key][0] for key in lost], run)
    return result


def _is_worth_another_try(prepared: Prepared) -> bool:
    return prepared.failure is not None and not is_missing_error(prepared.failure)


def _abandon(futures: Any) -> None:  # noqa: ANN401 - futures of readings
    """Let nobody wait for what was not delivered; whoever waits reads for itself."""
    for future in futures:
        if not future.done():
            future.set_exception(LookupError("the call that was to read this ended before"))


def _prepared(wanted: Wanted, contents: Contents, run: Run, trigger: Trigger) -> Plan[Prepared]:
    entry, arguments = wanted
    text, failure = contents.text()
    if failure is not None:
        return Prepared(entry, arguments, failure=failure)
    shelf = yield from shelf_of(run)
    inventory = without_closed(contents.inventory, parent(entry.path), shelf.closed_below(entry, loaded=()))
    shell = contents.shell_directory
    reading = run.settings.memory.readings.read(entry.path, contents.file.content or b"")
    filled = fill_in(
        text,
        arguments,
        names=argument_names(reading.frontmatter.get("arguments")),
        skill_dir=shell or parent(entry.path),
        session_id=session_id(run.runtime),
    )
    present = replace(entry, frontmatter={**entry.frontmatter, **reading.frontmatter}, sha256=reading.sha256)
    load = SkillLoad(present, arguments, trigger, filled, 0, inventory.resources, run.runtime)
    changed = yield from change_text(load, run)
    if isinstance(changed, Failed):
        return Prepared(entry, arguments, failure=changed.reason)
    block = skill_block(entry, changed, inventory, shell)
    tokens = yield from _tokens(block, run)
    return Prepared(present, arguments, block, inventory, reading.digest, tokens, text=changed)


def _tokens(text: str, run: Run) -> Plan[int]:
    """Return what a text costs by the user's counter; where that gives no number, by the default one."""
    counter = run.settings.token_counter
    if counter is count_tokens:
        return count_tokens(text)
    [reply] = yield (Consult(lambda: counter(text)),)
    if isinstance(reply, Consulted):
        value = reply.value
        is_number = not isinstance(value, bool) and isinstance(value, Real)
        if is_number and 0 <= value < math.inf:
            count: int = math.ceil(value)
            return count
        reason = f"it returned {value!r}"
    else:
        reason = reply.reason if isinstance(reply, Failed) else "no answer"
    run.problems.append(problem("token_counter", "token-counter-failed", reason=reason))
    return count_tokens(text)
