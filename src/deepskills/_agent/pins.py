"""Pins: skills that the user names, put into the conversation before the next model call."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.types import Overwrite

from deepskills._agent import session
from deepskills._agent.request import TextMemory
from deepskills._backend.plan import Plan
from deepskills._format.problems import problem, quoted
from deepskills._format.text import one_line
from deepskills._loading import decisions as life
from deepskills._prompt.answers import answer
from deepskills._types import SkillMetadata

logger = logging.getLogger("deepskills")

_NO_LIMIT = life.Budgets(skills=1_000_000, tokens=None)
"""Pins are the user's word: budgets count them and do not refuse them."""


def pin(
    state: Mapping[str, Any], preparation: life.Preparation, memory: TextMemory, write: Callable[[Any], None]
) -> Plan[dict[str, Any] | None]:
    """Return the update that loads the skills named in `pinned_skills`, or `None` if none is named."""
    names = state.get("pinned_skills")
    if not names:
        return None
    catalog = (yield from session.shelf_of(state, preparation)).skills
    asked = {name: life.find_skill(catalog, name) for name in map(str, names)}
    known = {skill["name"]: skill for skill in asked.values() if skill is not None}
    prepared = yield from life.prepare(list(known.values()), preparation)
    problems = [problem(name, "pin-unknown", name=quoted(name)) for name, skill in asked.items() if skill is None]
    update: dict[str, Any] = {"pinned_skills": Overwrite([])}
    standing = session.standing(state)
    for name in known:
        outcome = life.decide_load(prepared[name], standing, _NO_LIMIT)
        if isinstance(outcome, life.Loaded):
            standing = outcome.standing
            text = _add(update, outcome, write)
            memory.put(text)
        elif isinstance(outcome, life.Unreadable):
            problems.append(problem(outcome.skill["path"], "skill-unreadable", reason=outcome.reason))
    before = state.get("skills_problems") or []
    problems = [found for found in problems if found not in before]
    if problems:
        for found in problems:
            logger.error("%s: %s: %s", one_line(found["path"]), found["code"], found["message"])
        update["skills_problems"] = [*before, *problems]
    return update


def _add(update: dict[str, Any], outcome: life.Loaded, write: Callable[[Any], None]) -> str:
    """Add one pinned skill to the update, tell of it, and return its text."""
    prepared = outcome.prepared
    name = prepared.skill["name"]
    logger.info("Pinned skill %r: %d tokens", name, prepared.tokens)
    if prepared.inventory.failure:
        logger.warning("Cannot list the files of skill %r: %s", name, prepared.inventory.failure)
    reply = answer(outcome, _NO_LIMIT)
    write(reply.event)
    text = reply.text
    update.setdefault("messages", []).append(_message(prepared.skill, text, session.load_mark(prepared, text)))
    update.setdefault("skills_loaded", []).append(name)
    update.setdefault("skill_resources", {})[name] = prepared.inventory.resources
    update.setdefault("skills_load_records", {})[name] = session.load_record(prepared, text)
    update.setdefault("skills_reattached", {})[name] = None
    return text


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
