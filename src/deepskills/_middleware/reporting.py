"""Events of the custom stream, and who hears them."""

import logging
from collections.abc import Mapping
from typing import Any

from deepskills._catalog.entries import SkillEntry
from deepskills._middleware.extension import SkillExtension
from deepskills._types import LoadRecord, Trigger

logger = logging.getLogger("deepskills")


def skill_event(
    kind: str, name: str, trigger: Trigger, known: LoadRecord | SkillEntry | None = None, **details: object
) -> dict[str, Any]:
    """Return an event about a skill, as its load or the catalog knows it; where neither does, both are `None`."""
    origin: Mapping[str, Any] = known if isinstance(known, dict) else {}
    if isinstance(known, SkillEntry):
        origin = {"source": known.source, "digest": known.digest}
    origin = {"source": origin.get("source") or None, "digest": origin.get("digest") or None, "trigger": trigger}
    return {"type": f"skill.{kind}", "skill": name, **details, **origin}


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
