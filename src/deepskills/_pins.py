"""Pins: skills that the user names, put into the conversation before the next model call."""

import logging
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.types import Overwrite

from deepskills import _lifecycle as life
from deepskills import _session as session
from deepskills._answers import answer
from deepskills._plan import Plan
from deepskills._problems import problem, quoted
from deepskills._text import one_line
from deepskills._types import SkillMetadata, SkillProblem

logger = logging.getLogger("deepskills")

_NO_LIMIT = life.Budgets(skills=1_000_000, tokens=None)
"""Pins are the user's word: budgets count them and do not refuse them."""


def pin(state: Mapping[str, Any], preparation: life.Preparation) -> Plan[dict[str, Any] | None]:
    """Return the update that loads the skills named in `pinned_skills`, or `None` if none is named."""
    names = state.get("pinned_skills")
    if not names:
        return None
    catalog = {skill["name"]: skill for skill in (yield from session.catalog_of(state, preparation))}
    asked = list(dict.fromkeys(str(name) for name in names))
    prepared = yield from life.prepare([catalog[name] for name in asked if name in catalog], preparation)
    problems: list[SkillProblem] = []
    update: dict[str, Any] = {"pinned_skills": Overwrite([])}
    standing = session.standing(state)
    for name in asked:
        if name not in catalog:
            problems.append(problem(name, "pin-unknown", name=quoted(name)))
            continue
        outcome = life.decide_load(prepared[name], standing, _NO_LIMIT)
        if isinstance(outcome, life.Loaded):
            standing = outcome.standing
            _add(update, outcome)
        elif isinstance(outcome, life.Unreadable):
            problems.append(problem(outcome.skill["path"], "skill-unreadable", reason=outcome.reason))
    before = state.get("skills_problems") or []
    problems = [found for found in problems if found not in before]
    if problems:
        for found in problems:
            logger.error("%s: %s: %s", one_line(found["path"]), found["code"], found["message"])
        update["skills_problems"] = [*before, *problems]
    return update


def _add(update: dict[str, Any], outcome: life.Loaded) -> None:
    """Add one pinned skill to the update."""
    prepared = outcome.prepared
    name = prepared.skill["name"]
    logger.info("Pinned skill %r: %d tokens", name, prepared.tokens)
    text = answer(outcome, _NO_LIMIT).text
    update.setdefault("messages", []).append(_message(prepared.skill, text, session.load_mark(prepared, text)))
    update.setdefault("skills_loaded", []).append(name)
    update.setdefault("skill_resources", {})[name] = prepared.inventory.resources
    update.setdefault("skills_load_records", {})[name] = session.load_record(prepared, text)
    update.setdefault("skills_reattached", {})[name] = None


def _message(skill: SkillMetadata, text: str, mark: dict[str, Any]) -> HumanMessage:
    """Return the message that pins a skill, marked as deepagents' class marks it and as we mark loads."""
    return HumanMessage(
        text,
        additional_kwargs={
            "lc_source": "pinned_skill",
            "skill": {"name": skill["name"], "path": skill["path"], "description": skill["description"]},
            session.MARK: mark,
        },
    )
