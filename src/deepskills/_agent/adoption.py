"""What a thread starts with: loads that its messages show, a parent's loads, and loads of an older version.

Marks on messages are claims, for callers can write them. A claim counts only if the message's text is the very block
that the skill's file gives with the arguments claimed; sizes and files come from that reading.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AnyMessage, ToolMessage

from deepskills._agent.handover import taken_over
from deepskills._agent.preparing import prepare
from deepskills._agent.run import Run, Shelf
from deepskills._agent.thread import Thread
from deepskills._agent.updates import MARK, fingerprint
from deepskills._backend.calls import Plan
from deepskills._loading.turn import record_of
from deepskills._prompt.notices import CHANGED_LEAD, UPDATED_LEAD
from deepskills._types import LoadRecord

MAX_CLAIMS = 200
"""How many claims of a conversation are looked into, the newest first."""


@dataclass(frozen=True)
class _Claim:
    message: AnyMessage
    skill: str
    arguments: str
    is_load: bool


def adopted(run: Run, shelf: Shelf) -> Plan[dict[str, Any]]:
    """Return what is loaded on a thread that starts: what its parent hands over, or what its messages prove."""
    parent = taken_over(run.thread)
    if parent is not None:
        return _inherited(parent, shelf)
    empty: dict[str, Any] = {"skills_loaded": [], "skill_resources": {}, "skills_load_records": {}}
    claims = _claims(run.thread.messages)
    if not claims:
        return empty
    entries = {claim.skill: shelf.catalog.by_name.get(claim.skill) for claim in claims}
    wanted = [
        (entry, claim.arguments)
        for claim in claims
        if claim.is_load and (entry := entries[claim.skill]) is not None and shelf.visibility(entry) != "off"
    ]
    prepared = yield from prepare(wanted, run, "system")
    records: dict[str, LoadRecord] = {}
    resources: dict[str, Any] = {}
    texts: dict[str, Any] = {}
    for claim in claims:
        if not claim.is_load:
            records.pop(claim.skill, None)
            continue
        ready = prepared.get((claim.skill, claim.arguments))
        text = str(claim.message.text)
        if ready is None or ready.failure is not None or _bare(text) != ready.block:
            continue
        run.settings.memory.keep_text(text)
        texts[claim.message.id or ""] = {"skill": claim.skill}
        resources[claim.skill] = ready.inventory.resources
        records.pop(claim.skill, None)
        records[claim.skill] = {
            **record_of(ready),
            "text": fingerprint(text),
            "message": claim.message.id or "",
            "trigger": "system",
            "turn": "",
        }
    return {
        "skills_loaded": list(records),
        "skill_resources": {name: resources[name] for name in records},
        "skills_load_records": records,
        "skills_context": {"texts": texts},
    }


def _inherited(parent: Thread, shelf: Shelf) -> dict[str, Any]:
    """Return what a fork takes over from its parent, as far as it may see the skills."""
    records = parent.standing.records
    names = [
        name
        for name in parent.standing.loaded
        if (entry := shelf.catalog.by_name.get(name)) is not None
        and entry.path == records[name]["path"]
        and shelf.visibility(entry) != "off"
    ]
    return {
        "skills_loaded": names,
        "skill_resources": {name: parent.resources.get(name, []) for name in names},
        "skills_load_records": {name: records[name] for name in names},
        "skills_context": {"texts": parent.section("texts"), "notes": parent.section("notes")},
    }


def _bare(text: str) -> str:
    return text.removeprefix(UPDATED_LEAD).removeprefix(CHANGED_LEAD)


def _claims(messages: Sequence[AnyMessage]) -> list[_Claim]:
    """Return what messages say they did to the loaded skills, in order."""
    claims: list[_Claim] = []
    for message in reversed(messages):
        mark: Any = message.additional_kwargs.get(MARK)
        if not isinstance(mark, dict) or not isinstance(mark.get("skill"), str):
            continue
        arguments = mark.get("arguments", "")
        if mark.get("event") in {"load", "unload"} and isinstance(arguments, str):
            claims.append(_Claim(message, mark["skill"], arguments, mark["event"] == "load"))
        if len(claims) == MAX_CLAIMS:
            break
    return claims[::-1]


def _is_made_by_a_load(message: AnyMessage) -> bool:
    return isinstance(message, ToolMessage) or message.additional_kwargs.get("lc_source") == "pinned_skill"


def upgraded(thread: Thread) -> dict[str, Any]:
    """Return the records of loads that an older version made, with the messages that carry their texts.

    A message carries a load if it is of the kind that loads make; the text that the record knows counts before a mark.
    """
    by_text: dict[str, str] = {}
    texts: dict[str, Any] = {}
    for claim in _claims(thread.messages):
        if claim.is_load and claim.message.id and _is_made_by_a_load(claim.message):
            texts[claim.message.id] = {"skill": claim.skill}
            by_text[fingerprint(str(claim.message.text))] = claim.message.id
            by_text[f"{claim.skill}:{claim.message.additional_kwargs[MARK].get('digest')}"] = claim.message.id
    records: dict[str, LoadRecord] = {}
    for name in thread.standing.loaded:
        record = thread.standing.records[name]
        if record.get("message"):
            continue
        message = by_text.get(record.get("text", "")) or by_text.get(f"{name}:{record['digest']}")
        records[name] = {**record, "message": message or "", "arguments": "", "trigger": "model"}
    return {"skills_load_records": records, "skills_context": {"texts": texts}} if records or texts else {}
