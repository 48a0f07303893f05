"""What a hook or a tool call knows: settings, state, and the skills of its run with their visibility."""

import logging
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from deepskills._agent.extension import LoadedSkill, SkillExtension
from deepskills._agent.settings import Settings
from deepskills._agent.thread import Thread
from deepskills._agent.updates import merged, session_id
from deepskills._backend.calls import Plan
from deepskills._backend.work import apart
from deepskills._catalog.catalog import INCLUDE_TOOLS, Catalog
from deepskills._catalog.entries import SkillEntry, Visibility
from deepskills._catalog.lookup import Broken, Unknown, broken, not_found
from deepskills._catalog.sources import Source, parent, tidy
from deepskills._format.frontmatter import as_text
from deepskills._prompt.section import visible
from deepskills._types import LoadRecord, SkillMetadata, SkillProblem

logger = logging.getLogger("deepskills")

POWERS = frozenset({"tools", "hooks", "scripts", "model"})
"""What an extension can withhold from a skill in use."""

_POWER_KEYS = {"tools": ("allowed-tools",), "hooks": ("hooks",), "model": ("model",), "scripts": ()}

_YES = frozenset({"true", "yes", "on", "1"})
_NO = frozenset({"false", "no", "off", "0"})


@dataclass(frozen=True)
class Shelf:
    """The skills of a run, and how visible they are."""

    catalog: Catalog
    hidden: Mapping[str, Visibility] = field(default_factory=dict)
    """Every skill that is not simply visible."""

    noted: Callable[[], Sequence[SkillProblem]] = tuple
    """Gives what is wrong with sources and skills."""

    @property
    def problems(self) -> Sequence[SkillProblem]:
        """What is wrong with sources and skills."""
        return self.noted()

    def visibility(self, entry: SkillEntry) -> Visibility:
        """Return how visible a skill is."""
        return self.hidden.get(entry.name, "on")

    def find(self, asked: str) -> SkillEntry | None:
        """Return the skill that is meant by a name; one that is off does not exist."""
        entry = self.catalog.find(asked)
        return entry if entry is not None and self.visibility(entry) != "off" else None

    def find_visible(self, asked: str) -> SkillEntry | None:
        """Return the skill that is meant by a name, if the model may load it."""
        entry = self.find(asked)
        return entry if entry is not None and self.visibility(entry) != "user-only" else None

    @property
    def existing(self) -> Sequence[SkillEntry]:
        """The skills that exist in this run."""
        if "off" not in self.hidden.values():
            return self.catalog.entries
        return [entry for entry in self.catalog.entries if self.visibility(entry) != "off"]

    @property
    def visible(self) -> Sequence[SkillEntry]:
        """The skills that the model may see and load."""
        return visible(self.catalog, self.hidden)

    def closed_below(self, entry: SkillEntry, loaded: Container[str]) -> list[str]:
        """Return the directories below a skill's own that belong to skills which the model may not read."""
        if not self.hidden:
            return []
        root, known = f"{parent(entry.path).rstrip('/')}/", self.catalog.by_name
        # By the path first: thousands may be hidden, and hardly any lies inside another.
        inside = [other for name in self.hidden if (other := known.get(name)) and other.path.startswith(root)]
        return [
            parent(other.path).removeprefix(root)
            for other in inside
            if other.name not in loaded and parent(other.path).startswith(root) and not self.is_shown(other)
        ]

    def sources_to_show(self, sources: Sequence[Source]) -> Sequence[Source]:
        """Return the sources without those that are themselves the directory of a skill which the model may not see."""
        unseen = {
            tidy(parent(entry.path))
            for name in self.hidden
            if (entry := self.catalog.by_name.get(name)) is not None and not self.is_shown(entry)
        }
        return [source for source in sources if tidy(source.path) not in unseen] if unseen else sources

    def is_shown(self, entry: SkillEntry) -> bool:
        """Whether the model may see and load a skill."""
        return self.visibility(entry) in {"on", "name-only"}

    def broken(self, asked: str) -> Broken | None:
        """Return what is wrong with the file of a skill that is missing from the catalog."""
        return broken(self.problems, asked) if self.find(asked) is None else None

    def not_found(self, asked: str) -> Plan[Broken | Unknown]:
        """Return what to answer to a name that the model cannot use; hidden names are not given."""
        size = len(self.catalog.entries)
        return (yield from apart(lambda: not_found([e.name for e in self.visible], self.problems, asked), size))


class Run:
    """One hook's or tool call's knowledge of its run; made for each call, kept for none."""

    def __init__(self, settings: Settings, state: Mapping[str, Any], runtime: Any) -> None:  # noqa: ANN401
        self.settings = settings
        self.state = state
        self.runtime = runtime
        self.thread = Thread.of(state)
        self.look = settings.look(runtime, session_id(runtime))
        self.problems: list[SkillProblem] = []
        """Problems that were found on the way."""
        self.collected: dict[str, Any] = {}
        """What extensions asked to change in state."""
        self.skill_tools: frozenset[str] = frozenset()
        """Names of the tools that skills in use bring, as far as they are known."""
        self.shelf: Shelf | None = None
        """The skills of this run, once they were looked up."""

    @property
    def known_shelf(self) -> Shelf:
        """The skills of this run, which must have been looked up before."""
        if self.shelf is None:
            raise RuntimeError("the skills of this run were not looked up yet")
        return self.shelf

    def is_off(self, name: str) -> bool:
        """Whether a skill does not exist in this run, as far as visibility was looked up."""
        return self.shelf is not None and self.shelf.hidden.get(name) == "off"

    def collect(self, update: Mapping[str, Any]) -> None:
        """Add to what changes in state."""
        self.collected = merged(self.collected, update)

    def new_problems(self) -> list[SkillProblem]:
        """Return the problems that were found on the way and are not in state yet, each once."""
        if not self.problems:
            return []
        known = {(found["path"], found["code"], found["message"]) for found in self.thread.problems}
        fresh = {(found["path"], found["code"], found["message"]): found for found in self.problems}
        return [found for key, found in fresh.items() if key not in known]

    @property
    def loaded(self) -> list[LoadedSkill]:
        """The skills in use, in load order, as the catalog of this run knows them; none that is off for it."""
        known = loaded_skills(self.thread, self.known_shelf.catalog)
        return [self.limited(skill) for skill in known if not self.is_off(skill.entry.name)]

    def memory_of(self, extension: SkillExtension) -> dict[str, Any]:
        """Return an extension's private state on the thread, with what it asked to change in this call."""
        name, kept = name_of(extension), self.state.get("skills_extensions")
        own = kept.get(name) if isinstance(kept, Mapping) else None
        asked = self.collected.get("skills_extensions", {}).get(name, {})
        values = {**(own if isinstance(own, Mapping) else {}), **asked}
        return {key: value for key, value in values.items() if value is not None}

    def withheld(self, entry: SkillEntry) -> frozenset[str]:
        """Return which powers of a skill in use have no effect in this run."""
        found: set[str] = set()
        for extension in self.settings.extensions:
            if type(extension).withholds is not SkillExtension.withholds:
                try:
                    found |= POWERS.intersection(extension.withholds(entry, self.memory_of(extension)))
                except Exception:
                    logger.exception("The extension %s failed in withholds", name_of(extension))
                    return POWERS
        return frozenset(found)

    def limited(self, skill: LoadedSkill) -> LoadedSkill:
        """Return a skill in use as others may see it: without what an extension withholds."""
        withheld = self.withheld(skill.entry)
        return replace(skill, entry=_without(skill.entry, withheld), withheld=withheld) if withheld else skill


def usable(run: Run) -> list[SkillEntry]:
    """Return the skills whose own tools may come into use: those that the model can see, or that are loaded."""
    shelf, loaded = run.known_shelf, run.thread.standing.loaded
    found = [entry for entry in shelf.catalog.with_tools if shelf.is_shown(entry) or entry.name in loaded]
    return [entry for entry in found if "tools" not in run.withheld(entry)]


def _without(entry: SkillEntry, powers: frozenset[str]) -> SkillEntry:
    """Return an entry whose frontmatter does not ask for powers."""
    keys = {key for power in powers for key in _POWER_KEYS[power]}
    kept = {key: value for key, value in entry.frontmatter.items() if key not in keys}
    skill = entry.skill
    if "tools" in powers:
        harmless = {key: text for key, text in skill["metadata"].items() if key != INCLUDE_TOOLS}
        skill = {**skill, "allowed_tools": [], "metadata": harmless}
    return replace(entry, skill=skill, frontmatter=kept)


def name_of(extension: SkillExtension) -> str:
    """Return the name under which an extension keeps its state."""
    return extension.name or type(extension).__name__


def loaded_skills(thread: Thread, catalog: Catalog) -> list[LoadedSkill]:
    """Return the skills in use, in load order; one that the catalog does not have counts as not read."""
    turn = thread.turn
    found: list[LoadedSkill] = []
    for name in thread.standing.loaded:
        entry, record = catalog.by_name.get(name), thread.standing.records[name]
        if entry is None or entry.path != record["path"]:
            entry = _unread(name, record)
        found.append(
            LoadedSkill(
                entry=entry,
                arguments=record.get("arguments", ""),
                trigger=record.get("trigger", "model"),
                tokens=record["tokens"],
                is_recent=bool(turn) and record.get("turn") == turn,
            )
        )
    return found


def _unread(name: str, record: LoadRecord) -> SkillEntry:
    """Return what is known of a skill in use whose file is gone, broken or out of reach: nothing that could be used."""
    skill = SkillMetadata(
        path=record["path"],
        name=name,
        description="",
        license=None,
        compatibility=None,
        metadata={},
        allowed_tools=[],
    )
    return SkillEntry(skill, "", record["digest"], is_read=False)


def is_user_only(entry: SkillEntry) -> bool:
    """Whether a skill's author lets only the user start it."""
    return as_text(entry.frontmatter.get("disable-model-invocation")).strip().lower() in _YES


def is_user_invocable(entry: SkillEntry) -> bool:
    """Whether a skill's author lets the user start it by a slash command."""
    return as_text(entry.frontmatter.get("user-invocable")).strip().lower() not in _NO
