"""What a run has on its hands: the part of graph state that is about skills, read with suspicion. Pure."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage

from deepskills._backend.plan import Plan
from deepskills._catalog.discovery import Known
from deepskills._catalog.kept import catalog_digest, unpack
from deepskills._catalog.origins import Led
from deepskills._catalog.sources import Source
from deepskills._loading.decisions import Preparation, Prepared, SkillCall, Standing
from deepskills._prompt.wording import is_block
from deepskills._types import CatalogRecord, LoadRecord, ResourceMetadata, SkillMetadata, SkillProblem

MARK = "deepskills"
"""Key in a message's `additional_kwargs` that says what the message did to the loaded skills."""

LOAD_TOOL = "load_skill"
UNLOAD_TOOL = "unload_skill"
_NEARLY = 0.95
_KINDS: dict[str, Any] = {LOAD_TOOL: "load", UNLOAD_TOOL: "unload"}


def trusted_catalog(state: Mapping[str, Any]) -> list[SkillMetadata] | None:
    """Return the catalog in state if discovery wrote it, else `None`: a caller's own is not believed."""
    skills, record = state.get("skills_metadata"), catalog_record(state)
    if record is not None and _is_catalog(skills) and record["digest"] == catalog_digest(skills):
        return skills
    return None


@dataclass(frozen=True)
class Shelf:
    """The skills that a run may load, what is wrong with others, and further words to find them by."""

    skills: list[SkillMetadata]
    problems: Sequence[SkillProblem]
    tags: Mapping[str, str]


def shelf_of(state: Mapping[str, Any], how: Preparation) -> Plan[Shelf]:
    """Return what state says of skills if it can be believed, else what there is now."""
    trusted = trusted_catalog(state)
    if trusted is not None:
        return Shelf(trusted, state.get("skills_problems") or (), recorded_tags(state))
    found = yield from how.discover()
    return Shelf(found.skills, found.problems, found.tags)


def catalog_record(state: Mapping[str, Any]) -> CatalogRecord | None:
    """Return what discovery noted about the catalog, if it is whole."""
    record: Any = state.get("skills_catalog_record")
    if not isinstance(record, dict) or record.keys() - {"kept"} != CatalogRecord.__annotations__.keys() - {"kept"}:
        return None
    sources, tags = record["sources"], record["tags"]
    is_whole = (
        isinstance(record["digest"], str)
        and isinstance(sources, list)
        and all(isinstance(pair, list) and len(pair) == 2 and _are_text(pair) for pair in sources)  # noqa: PLR2004 - a pair
        and isinstance(tags, dict)
        and _are_text([*tags, *tags.values()])
    )
    return cast("CatalogRecord", record) if is_whole else None


def _is_catalog(value: object) -> TypeGuard[list[SkillMetadata]]:
    """Whether `value` has the shape of a catalog, whoever made it."""
    return isinstance(value, list) and all(isinstance(item, dict) and _is_skill(item) for item in value)


def _is_skill(item: Mapping[object, object]) -> bool:
    if item.keys() != SkillMetadata.__annotations__.keys():
        return False
    optional = (item["license"], item["compatibility"])
    further, tools = item["metadata"], item["allowed_tools"]
    return (
        _are_text([item["path"], item["name"], item["description"], *(text for text in optional if text is not None)])
        and isinstance(further, dict)
        and _are_text([*further, *further.values()])
        and isinstance(tools, list)
        and _are_text(tools)
    )


def _are_text(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def known(state: Mapping[str, Any], origins: Led) -> Known:
    """Return what an earlier discovery on this thread found, also where a caller has overwritten it since."""
    skills = trusted_catalog(state)
    return Known(_kept_catalog(state) if skills is None else skills, origins)


def _kept_catalog(state: Mapping[str, Any]) -> list[SkillMetadata]:
    """Return the catalog that the record keeps; none, if it is not whole."""
    record = catalog_record(state)
    kept = unpack(record.get("kept"), record["digest"]) if record else None
    return kept if _is_catalog(kept) else []


def recorded_sources(state: Mapping[str, Any]) -> list[Source]:
    """Return the sources that the latest discovery searched."""
    record = catalog_record(state)
    return [Source(path, label) for path, label in record["sources"]] if record else []


def recorded_tags(state: Mapping[str, Any]) -> dict[str, str]:
    """Return the further words by which skills are found, by path."""
    record = catalog_record(state)
    return record["tags"] if record else {}


def standing(state: Mapping[str, Any]) -> Standing:
    """Return what is loaded."""
    return Standing(tuple(state.get("skills_loaded") or ()), dict(state.get("skills_load_records") or {}))


def earlier_calls(state: Mapping[str, Any], tool_call_id: str | None) -> list[SkillCall]:
    """Return the loads and unloads that stand before this one in the same turn and are not answered yet.

    An answer that is there already was given in the place of a call, as when a human rejected it. A call that a human
    edited counts as edited; LangChain keeps the edits beside the messages.
    """
    messages: Sequence[AnyMessage] = state.get("messages") or ()
    edits: Mapping[str, Any] = state.get("hitl_edited_tool_calls") or {}
    turn: AIMessage | None = None
    answered: set[str] = set()
    for message in reversed(messages):
        if isinstance(message, ToolMessage):
            answered.add(message.tool_call_id)
        elif isinstance(message, AIMessage) and any(call["id"] == tool_call_id for call in message.tool_calls):
            turn = message
            break
    if turn is None:
        return []
    calls: list[SkillCall] = []
    for call in turn.tool_calls:
        if call["id"] == tool_call_id:
            break
        made = edits.get(call["id"] or "", call)
        asked = made["args"].get("skill_name")
        if made["name"] in _KINDS and isinstance(asked, str) and call["id"] not in answered:
            calls.append(SkillCall(_KINDS[made["name"]], asked))
    return calls


def load_record(prepared: Prepared, text: str) -> LoadRecord:
    """Return what state keeps of a load that says `text`."""
    return LoadRecord(**prepared.record(), text=fingerprint(text))


def load_mark(prepared: Prepared, text: str) -> dict[str, Any]:
    """Return the mark of a message that brings a skill in by saying `text`."""
    return {
        "event": "load",
        "skill": prepared.skill["name"],
        **load_record(prepared, text),
        "length": len(text),
        "lines": text.count("\n"),
        "resources": prepared.inventory.resources,
    }


def fingerprint(text: str) -> str:
    """Return the digest by which a message's text is known to be whole."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def carried_text(message: AnyMessage, mark: Mapping[str, Any]) -> str | None:
    """Return the text that a marked message brought in, if it is still there; others may add notes around it.

    A text in which somebody changed words, as middleware that hides personal data does, is still there as it is now.
    """
    text, length = str(message.text), mark.get("length")
    if not isinstance(length, int):
        return None
    for candidate in (text[:length], text[max(0, len(text) - length) :]):
        if fingerprint(candidate) == mark.get("text"):
            return candidate
    return text if is_block(text) and _was_only_edited(text, mark) else None


def _was_only_edited(text: str, mark: Mapping[str, Any]) -> bool:
    """Whether words were changed and nothing was cut out: as many lines as before, or nearly as long."""
    return text.count("\n") == mark.get("lines") or len(text) >= _NEARLY * mark["length"]


def mark_of(message: object) -> dict[str, Any] | None:
    """Return what a message says it did to the loaded skills."""
    mark = getattr(message, "additional_kwargs", {}).get(MARK)
    return mark if isinstance(mark, dict) and isinstance(mark.get("skill"), str) else None


def rebuilt(messages: Iterable[object]) -> tuple[Standing, dict[str, list[ResourceMetadata]]]:
    """Return what the marked messages say is loaded, for a thread that starts with the messages of another."""
    found = Standing()
    resources: dict[str, list[ResourceMetadata]] = {}
    for message in messages:
        for name in _taken_away(message):
            found = found.without(name)
            resources.pop(name, None)
        mark = mark_of(message)
        if mark is not None and mark.get("event") == "load":
            name = mark["skill"]
            tokens = mark.get("tokens")
            record = LoadRecord(
                path=str(mark.get("path")),
                digest=str(mark.get("digest")),
                tokens=tokens if isinstance(tokens, int) else 0,
                text=str(mark.get("text")),
            )
            found = found.with_load(name, record)
            resources[name] = _resources(mark.get("resources"))
    return found, resources


def _taken_away(message: object) -> list[str]:
    """Return the skills that a message unloaded: the one of a call, or all that discovery found gone."""
    mark: Any = getattr(message, "additional_kwargs", {}).get(MARK)
    if not isinstance(mark, dict) or mark.get("event") == "load":
        return []
    names = [mark.get("skill"), *(mark["skills"] if isinstance(mark.get("skills"), list) else ())]
    return [name for name in names if isinstance(name, str)]


def _resources(items: object) -> list[ResourceMetadata]:
    keys = ResourceMetadata.__annotations__.keys()
    valid = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    return [item for item in valid if item.keys() == keys and all(isinstance(v, str) for v in item.values())]  # type: ignore[misc]
