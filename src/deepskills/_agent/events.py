"""Events of the custom stream, and who hears them."""

import logging
from collections.abc import Mapping
from typing import Any

from deepskills._agent.extension import SkillExtension
from deepskills._catalog.entries import SkillEntry
from deepskills._types import LoadRecord, Trigger

logger = logging.getLogger("deepskills")


def skill_event(
    kind: str, name: str, trigger: Trigger, record: LoadRecord | Mapping[str, str] | None = None, **details: object
) -> dict[str, Any]:
    """Return an event about a skill; source and digest are `None` where there is no such skill."""
    known: Mapping[str, Any] = record or {}
    return {
        "type": f"skill.{kind}",
        "skill": name,
        **details,
        "source": known.get("source"),
        "digest": known.get("digest"),
        "trigger": trigger,
    }


def origin(entry: SkillEntry | None, digest: str = "") -> Mapping[str, str] | None:
    """Return what an event tells of a skill that was not loaded; `digest` is that of its file, if it was read."""
    return {"source": entry.source, "digest": digest or entry.digest} if entry is not None else None


def tell(event: Mapping[str, Any], runtime: Any, extensions: tuple[SkillExtension, ...]) -> None:  # noqa: ANN401
    """Write an event to the stream and to every extension; one that fails is logged."""
    writer = getattr(runtime, "stream_writer", None)
    if writer is not None:
        writer(dict(event))
    for extension in extensions:
        try:
            extension.on_event(event, runtime)
        except Exception:
            logger.exception("%s failed to hear an event", type(extension).__name__)
