"""Events of the custom stream and who hears them, and the log lines of problems."""

import hashlib
import itertools
import logging
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from deepskills._catalog.discovery import SOURCE_ERRORS
from deepskills._catalog.entries import SkillEntry
from deepskills._io.cache import BoundedCache
from deepskills._middleware.extension import SkillExtension
from deepskills._skillmd.text import one_line
from deepskills._types import LoadRecord, SkillProblem, Trigger

logger = logging.getLogger("deepskills")

MAX_LOGGED_LINES = 20
"""How many problems that are found together are logged one by one; more are one line with counts."""

MAX_REMEMBERED_PROBLEMS = 100_000
"""How many problems a process knows to have logged."""


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


_logged: BoundedCache[bytes, bool] = BoundedCache(MAX_REMEMBERED_PROBLEMS, lambda _: 1)
_places: "WeakKeyDictionary[object, str]" = WeakKeyDictionary()
_places_lock = threading.Lock()
_numbers = itertools.count()


def log_problems(problems: Iterable[SkillProblem], backend: object) -> None:
    """Log problems: one of the same file once per process, many at a time as one line with counts by code.

    A source that fails is logged each time it does: that is about this run, not about a file.
    """
    place = _place(backend)
    fresh = [found for found in problems if found["code"] in SOURCE_ERRORS or _is_first(found, place)]
    if len(fresh) > MAX_LOGGED_LINES:
        counts = Counter(found["code"] for found in fresh)
        told = ", ".join(f"{number} {code}" for code, number in sorted(counts.items()))
        is_error = any(found["severity"] == "error" for found in fresh)
        level = logging.ERROR if is_error else logging.WARNING
        logger.log(level, "%d problems with skills, see `skills_problems`: %s", len(fresh), told)
        return
    for found in fresh:
        level = logging.ERROR if found["severity"] == "error" else logging.WARNING
        logger.log(level, "%s: %s: %s", one_line(found["path"]), found["code"], one_line(found["message"]))


def _is_first(found: SkillProblem, place: str) -> bool:
    """Whether a problem was not logged before; the message changes with what is wrong in the file."""
    text = "\0".join((place, found["path"], found["code"], found["message"]))
    key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    if _logged.get(key) is not None:
        return False
    _logged.put(key, value=True)
    return True


def _place(backend: object) -> str:
    """Return what tells the files of a backend from those of another: where it lies on this machine, or the object."""
    root = getattr(backend, "cwd", None)
    if root is not None:
        return f"local:{root}:{getattr(backend, 'virtual_mode', None)}"
    try:
        with _places_lock:
            return _places.setdefault(backend, f"object:{next(_numbers)}")
    except TypeError:  # neither hashable nor to be referred to weakly
        return f"type:{type(backend).__qualname__}"
