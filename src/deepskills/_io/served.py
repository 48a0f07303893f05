"""Calls to backends that serve skills of their own, mounted behind others or not.

`CompositeBackend` passes on only what deepagents' protocol knows, so the part that serves a path is found here, and the
paths in its answers are put back below the mount.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from deepskills._io.backends import is_composite, routed
from deepskills._io.plan import ListSkills, OpenSkill, SkillOpened, SkillsListed
from deepskills._types import LoadRecord, OpenedSkill, SkillListing, SkillProblem

loads_in_use: ContextVar[tuple[LoadRecord, ...] | None] = ContextVar("deepskills_loads_in_use", default=None)
"""The loads of served skills that stand while a tool runs; `None` outside the tool calls of an agent with skills."""


@dataclass(frozen=True)
class CallInProgress:
    """A tool call of an agent with skills, as backends that differ by user need to know it."""

    runtime: Any
    """What functions of users are given."""

    loaded: Sequence[str] = ()
    """The skills that are loaded."""

    hidden: Callable[[], frozenset[str]] = frozenset
    """Works out which skills the model may not see."""

    ahidden: Callable[[], Awaitable[frozenset[str]]] | None = None
    """The same without blocking."""


call_in_progress: ContextVar[CallInProgress | None] = ContextVar("deepskills_call_in_progress", default=None)
"""The tool call that runs; `None` outside of one. LangGraph tells a backend of neither state nor config."""


def list_skills(call: ListSkills, backend: object) -> SkillsListed:
    """Ask which skills sources hold."""
    found: dict[str, SkillListing] = {}
    for part, paths in _parts(call, backend):
        found |= _below_mounts(paths, part.skill_listings(list(paths.values())))
    return SkillsListed(found)


async def alist_skills(call: ListSkills, backend: object) -> SkillsListed:
    """Ask which skills sources hold, without blocking."""
    found: dict[str, SkillListing] = {}
    for part, paths in _parts(call, backend):
        found |= _below_mounts(paths, await part.askill_listings(list(paths.values())))
    return SkillsListed(found)


def _parts(call: ListSkills, backend: object) -> list[tuple[Any, dict[str, str]]]:
    """Return each backend that serves skills of its own, with the sources in it and their paths as it knows them."""
    parts: dict[int, tuple[Any, dict[str, str]]] = {}
    for path in call.paths:
        part, inner = routed(backend, path)
        if hasattr(part, "skill_listings"):
            parts.setdefault(id(part), (part, {}))[1][path] = inner
    return list(parts.values())


def _below_mounts(paths: Mapping[str, str], listings: Sequence[object]) -> dict[str, SkillListing]:
    found = {}
    # A backend that answers too few has said nothing about the rest.
    for (path, inner), listing in zip(paths.items(), listings, strict=False):
        if isinstance(listing, SkillListing):
            found[path] = _below_mount(listing, _mount(path, inner))
    return found


def _below_mount(listing: SkillListing, mount: str) -> SkillListing:
    if not mount:
        return listing
    summaries = [replace(summary, path=mount + summary.path) for summary in listing.summaries]
    # Problems name the path that users know, below the mount.
    problems = [SkillProblem(**{**found, "path": mount + found["path"]}) for found in listing.problems]
    return SkillListing(summaries, problems, listing.failure)


def _mount(path: str, inner: str) -> str:
    """Return where the part that serves a path is mounted; empty if it is not."""
    whole, below = path.rstrip("/"), inner.rstrip("/")
    return whole[: len(whole) - len(below)] if whole.endswith(below) else ""


def open_skill(call: OpenSkill, backend: object) -> SkillOpened:
    """Read a `SKILL.md` for a load."""
    part, path = routed(backend, call.path)
    ask = getattr(part, "open_skill", None)
    return _opened(ask(path) if callable(ask) else None)


async def aopen_skill(call: OpenSkill, backend: object) -> SkillOpened:
    """Read a `SKILL.md` for a load, without blocking."""
    part, path = routed(backend, call.path)
    ask = getattr(part, "aopen_skill", None)
    return _opened(await ask(path) if callable(ask) else None)


def _opened(opened: object) -> SkillOpened:
    return SkillOpened(opened if isinstance(opened, OpenedSkill) else None)


def serves_skills(backend: object) -> bool:
    """Whether a backend, or one that is mounted behind it, serves skills of its own."""
    return next(_serving(backend), None) is not None


def executing_tools(backend: object) -> frozenset[str]:
    """Return the tools that execute code, as the backends that serve skills name them."""
    return frozenset(name for part in _serving(backend) for name in getattr(part, "executes", ()))


def _serving(backend: object) -> Iterator[Any]:
    """Yield the backends that serve skills of their own, behind however many that only route."""
    if is_composite(backend):
        for part in (backend.default, *backend.routes.values()):
            yield from _serving(part)
    elif hasattr(backend, "skill_listings"):
        yield backend
