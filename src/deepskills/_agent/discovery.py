"""Discovery on a thread: when to look, what it changes in state, and who is told."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import HumanMessage

from deepskills._agent import session
from deepskills._agent.settings import Settings
from deepskills._agent.state import SkillsStateUpdate
from deepskills._backend.plan import Plan
from deepskills._catalog.discovery import SOURCE_ERRORS, Catalog, Known, discover, source_errors
from deepskills._catalog.origins import Led, owner_of, readable_from
from deepskills._errors import SkillsError
from deepskills._format.problems import problem, quoted
from deepskills._format.text import one_line
from deepskills._loading.decisions import Standing
from deepskills._prompt.wording import shown_name
from deepskills._types import ResourceMetadata, SkillProblem

logger = logging.getLogger("deepskills")

_RETRIED = SOURCE_ERRORS | {"skill-unreadable"}


def is_current(state: Mapping[str, Any], settings: Settings) -> bool:
    """Whether the thread's catalog can be used as it is."""
    if settings.varies_by_run:
        return False
    skills = session.trusted_catalog(state)
    if skills is None:
        return False
    sources, _reason = settings.sources_for(None)
    if session.recorded_sources(state) != sources:
        return False
    origins = settings.origins.seen()
    if not all(readable_from(skill["path"], sources, origins) for skill in skills):
        return False
    return not any(p["code"] in _RETRIED for p in state.get("skills_problems") or ())


def discovery(state: Mapping[str, Any], runtime: object, settings: Settings) -> Plan[SkillsStateUpdate | None]:
    """Find the skills of this run and return what changes in state, or `None` if nothing does.

    Raises:
        SkillsError: If `strict` is set and a source or a skill has an error.
    """
    origins = settings.origins_of_run()
    known = session.known(state, origins.seen())
    sources, reason = yield from settings.sources_in(runtime)
    if reason is None:
        catalog = yield from discover(sources, max_depth=settings.max_depth, read=settings.cache.read, known=known)
    else:
        catalog = _as_before(state, known, reason)
    origins.note(catalog.origins)
    update = _update(state, catalog, origins.seen())
    _log(catalog, update["skills_problems"], before=state.get("skills_problems") or ())
    if settings.strict:
        _raise_errors(catalog.problems)
    return _changes(state, update)


def _as_before(state: Mapping[str, Any], known: Known, reason: str) -> Catalog:
    """Return what is known already, when nobody can say where to look."""
    sources = session.recorded_sources(state)
    problems = [problem("sources", "sources-failed", reason=reason)]
    return Catalog(list(known.skills), problems, sources, known.origins, unsure=sources)


def _update(state: Mapping[str, Any], catalog: Catalog, origins: Led) -> dict[str, Any]:
    standing, resources = _standing(state)
    gone = _gone(standing, catalog, origins)
    problems = [*catalog.problems, *(problem(standing.records[n]["path"], "skill-gone", name=quoted(n)) for n in gone)]
    update: dict[str, Any] = {
        "skills_metadata": catalog.skills,
        "skills_load_errors": source_errors(problems),
        "skills_problems": problems,
        "skills_catalog_record": catalog.record(_tags(state, catalog)),
    }
    if _is_new(state):
        kept = [name for name in standing.loaded if name not in gone]
        update["skills_loaded"] = kept
        update["skill_resources"] = {name: resources.get(name, []) for name in kept}
        update["skills_load_records"] = {name: standing.records[name] for name in kept}
    elif gone:
        update["skills_loaded"] = {"unload": gone}
        update["skill_resources"] = dict.fromkeys(gone)
        update["skills_load_records"] = dict.fromkeys(gone)
        update["messages"] = [_gone_message(gone)]
    return update


def _tags(state: Mapping[str, Any], catalog: Catalog) -> dict[str, str]:
    """Return the search words of every skill in the catalog; entries that were kept have those of before."""
    words = {**session.recorded_tags(state), **catalog.tags}
    return {path: found for skill in catalog.skills if (found := words.get(path := skill["path"]))}


def _standing(state: Mapping[str, Any]) -> tuple[Standing, dict[str, list[ResourceMetadata]]]:
    """Return what is loaded; a thread that starts with another's messages takes over what they say."""
    if not _is_new(state):
        return session.standing(state), {}
    return session.rebuilt(state.get("messages") or ())


def _is_new(state: Mapping[str, Any]) -> bool:
    """Whether nothing was discovered or loaded on this thread yet."""
    return state.get("skills_catalog_record") is None and not state.get("skills_loaded")


def _gone(standing: Standing, catalog: Catalog, origins: Led) -> list[str]:
    """Return the loaded skills that a successful listing no longer has, or has at another path.

    A file that is there and cannot be used, perhaps half saved, takes nothing away.
    """
    paths = {skill["name"]: skill["path"] for skill in catalog.skills}
    gone = []
    for name in standing.loaded:
        record = standing.records.get(name)
        if record is None or paths.get(name) == record["path"]:
            continue
        is_there = record["path"] in catalog.unusable
        if not is_there and owner_of(record["path"], catalog.unsure, origins) is None:
            gone.append(name)
    return gone


def _gone_message(names: Sequence[str]) -> HumanMessage:
    shown = ", ".join(f"'{shown_name(name)}'" for name in names)
    text = (
        f"[Notice about skills, not from the user] No longer available and therefore unloaded: {shown}. "
        "Do not rely on their instructions any more."
    )
    mark = {"event": "gone", "skills": list(names)}
    return HumanMessage(text, additional_kwargs={"lc_source": "deepskills", session.MARK: mark})


def _changes(state: Mapping[str, Any], update: dict[str, Any]) -> SkillsStateUpdate | None:
    """Return `update` unless state holds all of it already."""
    if all(key in state and state[key] == value for key, value in update.items()):
        return None
    return update  # type: ignore[return-value]


def _raise_errors(problems: Sequence[SkillProblem]) -> None:
    errors = [f"{p['path']}: {p['code']}: {p['message']}" for p in problems if p["severity"] == "error"]
    if errors:
        raise SkillsError("\n".join(errors))


def _log(catalog: Catalog, problems: Sequence[SkillProblem], before: Sequence[SkillProblem]) -> None:
    """Log the discovery, and each problem that this thread has not had yet."""
    logger.info("Discovered %d skills from %d sources", len(catalog.skills), len(catalog.sources))
    for found in problems:
        if found not in before:
            level = logging.ERROR if found["severity"] == "error" else logging.WARNING
            logger.log(level, "%s: %s: %s", one_line(found["path"]), found["code"], found["message"])
