"""Loading and unloading as decisions: what a call may do, given what is loaded and what was asked before it.

Pure, save for the plans that say what to read. Outcomes are values; `_prompt` words them and `_tools` applies them.
"""

import difflib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from deepskills._backend.plan import File, Files, ListDirectory, Plan, ReadFiles, Reply
from deepskills._catalog.discovery import SOURCE_ERRORS, Catalog
from deepskills._catalog.sources import parent
from deepskills._files.inventory import Inventory, take_inventories
from deepskills._format.reading import decode_skill
from deepskills._format.text import one_line
from deepskills._prompt.wording import shown_name, skill_block
from deepskills._types import MAX_SHOWN_NAME_LENGTH, SKILL_FILE, LoadRecord, SkillMetadata, SkillProblem

CLOSEST_NAMES = 3
"""How many similar names an unknown name is answered with."""

_MARKS = "*`'\"[](){}<> "

ASSUMED = ""
"""The digest of a load that an earlier call of the turn makes and that could not be read here."""

MAX_COMPARED_NAMES = 1_000
"""How many names an unknown name is compared with letter by letter."""


@dataclass(frozen=True)
class Budgets:
    """How much may be loaded at a time."""

    skills: int
    tokens: int | None


@dataclass(frozen=True)
class SkillCall:
    """A call of `load_skill` or `unload_skill` in the turn of the model."""

    kind: Literal["load", "unload"]
    name: str


@dataclass(frozen=True)
class Standing:
    """What is loaded: names in load order, and each load's record."""

    loaded: tuple[str, ...] = ()
    records: dict[str, LoadRecord] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """What all loaded skills cost together."""
        return sum(record["tokens"] for name, record in self.records.items() if name in self.loaded)

    @property
    def assumed(self) -> bool:
        """Whether it holds a load of this turn that nobody knows the size of."""
        return any(record["digest"] == ASSUMED for record in self.records.values())

    def size(self, name: str) -> int:
        """What one loaded skill costs."""
        record = self.records.get(name)
        return record["tokens"] if record else 0

    def with_load(self, name: str, record: LoadRecord) -> "Standing":
        """Return the standing after a load."""
        loaded = self.loaded if name in self.loaded else (*self.loaded, name)
        return Standing(loaded, {**self.records, name: record})

    def without(self, name: str) -> "Standing":
        """Return the standing after an unload."""
        records = {key: record for key, record in self.records.items() if key != name}
        return Standing(tuple(other for other in self.loaded if other != name), records)


@dataclass(frozen=True)
class Prepared:
    """A skill's text and files, ready to be loaded; `failure` says why there are none."""

    skill: SkillMetadata
    text: str = ""
    block: str = ""
    inventory: Inventory = field(default_factory=Inventory)
    digest: str = ""
    tokens: int = 0
    failure: str | None = None

    def record(self) -> LoadRecord:
        """Return what state keeps of this load."""
        return LoadRecord(path=self.skill["path"], digest=self.digest, tokens=self.tokens)


@dataclass(frozen=True)
class Loaded:
    """The skill's text goes into the conversation."""

    prepared: Prepared
    standing: Standing
    updated: bool
    """Whether it was loaded before, with an older text."""


@dataclass(frozen=True)
class AlreadyLoaded:
    """Nothing to do: the text is there and is the current one."""

    name: str
    unchecked: str | None = None
    """Why the file could not be compared with what is loaded."""

    by_sibling: bool = False
    """Whether an earlier call of the same turn loads it, as far as this one can tell."""

    crowded: bool = False
    """Whether more is loaded than there is room for, so that the text may be left out of requests."""


@dataclass(frozen=True)
class Unloaded:
    """The skill's room is free again."""

    name: str
    standing: Standing


@dataclass(frozen=True)
class ToolsWithdrawn:
    """The skill was only read as a file; it gives back the tools that came with it."""

    name: str


@dataclass(frozen=True)
class Unknown:
    """No such skill."""

    asked: str
    closest: list[str]
    available: list[str]
    incomplete: bool = False
    """Whether a source could not be read, so that there may be more."""


@dataclass(frozen=True)
class NotLoaded:
    """Nothing to unload."""

    asked: str
    standing: Standing


@dataclass(frozen=True)
class OverBudget:
    """No room for one more."""

    skill: SkillMetadata
    needed: int
    standing: Standing
    limit: Literal["skills", "tokens"]


@dataclass(frozen=True)
class Unreadable:
    """The file could not be had."""

    skill: SkillMetadata
    reason: str


@dataclass(frozen=True)
class Broken:
    """There is a directory of that name, and its file cannot be used."""

    asked: str
    problem: SkillProblem


Refusal: TypeAlias = Unknown | NotLoaded | OverBudget | Unreadable | Broken
Outcome: TypeAlias = Loaded | AlreadyLoaded | Unloaded | ToolsWithdrawn | Refusal


def find_skill(catalog: Sequence[SkillMetadata], asked: str) -> SkillMetadata | None:
    """Return the skill that a model means by a name."""
    name = meant_name([skill["name"] for skill in catalog], asked)
    return next((skill for skill in catalog if skill["name"] == name), None)


def meant_name(names: Sequence[str], asked: str) -> str | None:
    """Return the name that was asked for: exactly, in another case or as it is shown, or with marks around it."""
    if asked in names:
        return asked
    shown = {shown_name(name).casefold(): name for name in reversed(names)}
    return shown.get(shown_name(asked).casefold()) or shown.get(one_line(asked).strip(_MARKS).casefold())


def not_found(catalog: Sequence[SkillMetadata], problems: Sequence[SkillProblem], asked: str) -> Broken | Unknown:
    """Return what to answer to a name that no skill has; a broken file in a directory of that name is the reason."""
    for found in problems:
        directory, _, file = found["path"].rpartition("/")
        is_error = found["severity"] == "error" and file == SKILL_FILE
        if is_error and directory.rpartition("/")[2].casefold() == asked.casefold():
            return Broken(asked, found)
    incomplete = any(found["code"] in SOURCE_ERRORS for found in problems)
    return replace(unknown(catalog, asked), incomplete=incomplete)


def unknown(catalog: Sequence[SkillMetadata], asked: str) -> Unknown:
    """Return the names that come near to one that no skill has."""
    names = [skill["name"] for skill in catalog]
    folded = {name.casefold(): name for name in names}
    wanted = asked.casefold()[:MAX_SHOWN_NAME_LENGTH]
    within = [name for name in folded if wanted and wanted in name]
    comparable = [name for name in folded if abs(len(name) - len(wanted)) <= len(wanted)][:MAX_COMPARED_NAMES]
    similar = difflib.get_close_matches(wanted, comparable, n=CLOSEST_NAMES, cutoff=0.5)
    closest = list(dict.fromkeys([*within, *similar]))[:CLOSEST_NAMES]
    return Unknown(asked, [folded[name] for name in closest], names)


def _learn_nothing(_paths: Sequence[str]) -> Plan[None]:
    yield from ()


def _find_nothing() -> Plan[Catalog]:
    yield from ()
    return Catalog([], [], [], {}, [])


def _lies_nowhere() -> str:
    return "its path lies under no current source"


@dataclass(frozen=True)
class Preparation:
    """How skills are read: how deep their files are listed, what a text costs, and which paths are allowed."""

    depth: int
    count_tokens: Callable[[str], int]
    may_read: Callable[[str], bool]
    learn: Callable[[Sequence[str]], Plan[None]] = _learn_nothing
    """Finds out what there is to know before `may_read` judges these paths."""
    discover: Callable[[], Plan[Catalog]] = _find_nothing
    """Gives the skills there are, for a thread that has no catalog to believe."""
    why_not: Callable[[], str] = _lies_nowhere
    """Says why `may_read` refuses."""


def prepare(skills: Sequence[SkillMetadata], how: Preparation) -> Plan[dict[str, Prepared]]:
    """Read the text and list the files of several skills: two rounds, however many they are."""
    if skills:
        yield from how.learn([skill["path"] for skill in skills])
    allowed = [skill for skill in skills if how.may_read(skill["path"])]
    prepared = {skill["name"]: Prepared(skill, failure=how.why_not()) for skill in skills if skill not in allowed}
    if not allowed:
        return prepared
    reads = tuple(ReadFiles((skill["path"],)) for skill in allowed)
    lists = tuple(ListDirectory(parent(skill["path"])) for skill in allowed)
    replies = yield (*reads, *lists)
    inventories = yield from take_inventories([skill["name"] for skill in allowed], replies[len(allowed) :], how.depth)
    for skill, reply, inventory in zip(allowed, replies, inventories, strict=False):
        prepared[skill["name"]] = _prepared(skill, _only_file(skill["path"], reply), inventory, how.count_tokens)
    return prepared


def _only_file(path: str, reply: Reply) -> File:
    if isinstance(reply, Files):
        return reply.files[0]
    return File(path, error=getattr(reply, "reason", "the backend gave no file"))


def _prepared(skill: SkillMetadata, file: File, inventory: Inventory, count_tokens: Callable[[str], int]) -> Prepared:
    if file.content is None:
        return Prepared(skill, failure=file.error or "the backend gave no content")
    text, problem = decode_skill(file.content, path=skill["path"])
    if problem is not None:
        return Prepared(skill, failure=problem["message"])
    block = skill_block(skill, text, inventory)
    return Prepared(skill, text, block, inventory, digest_of(file.content), count_tokens(block))


def digest_of(content: bytes) -> str:
    """Return the digest by which a changed file is told."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def decide_load(prepared: Prepared, standing: Standing, budgets: Budgets) -> Outcome:
    """Decide on one load, given what is loaded when its turn comes."""
    name = prepared.skill["name"]
    is_loaded = name in standing.loaded
    record = standing.records.get(name)
    crowded = budgets.tokens is not None and standing.tokens > budgets.tokens
    if prepared.failure is not None:
        if is_loaded:
            return AlreadyLoaded(name, unchecked=prepared.failure, crowded=crowded)
        return Unreadable(prepared.skill, prepared.failure)
    if is_loaded and record is not None and record["digest"] == prepared.digest:
        return AlreadyLoaded(name, crowded=crowded)
    if not is_loaded and len(standing.loaded) >= budgets.skills:
        return OverBudget(prepared.skill, prepared.tokens, standing, "skills")
    others = standing.tokens - (standing.size(name) if is_loaded else 0)
    if budgets.tokens is not None and others + prepared.tokens > budgets.tokens:
        return OverBudget(prepared.skill, prepared.tokens, standing, "tokens")
    return Loaded(prepared, standing.with_load(name, prepared.record()), updated=is_loaded)


def decide_unload(asked: str, standing: Standing) -> Outcome:
    """Decide on one unload, given what is loaded when its turn comes."""
    name = meant_name(standing.loaded, asked)
    if name is None:
        return NotLoaded(asked, standing)
    return Unloaded(name, standing.without(name))


def after_calls(
    calls: Sequence[SkillCall],
    standing: Standing,
    catalog: Sequence[SkillMetadata],
    prepared: dict[str, Prepared],
    budgets: Budgets,
) -> Standing:
    """Return what is loaded once the earlier calls of the same turn are done; every call of the turn reckons so."""
    for call in calls:
        if call.kind == "unload":
            outcome = decide_unload(call.name, standing)
        else:
            skill = find_skill(catalog, call.name)
            ready = prepared.get(skill["name"]) if skill else None
            if ready is None:
                continue
            outcome = decide_load(ready, standing, budgets)
            if isinstance(outcome, Unreadable):
                # It may be readable to the call itself: taken as granted, with all the room there is.
                room = 0 if budgets.tokens is None else max(0, budgets.tokens - standing.tokens)
                record = LoadRecord(path=ready.skill["path"], digest=ASSUMED, tokens=room)
                if len(standing.loaded) < budgets.skills:
                    standing = standing.with_load(ready.skill["name"], record)
        if isinstance(outcome, Loaded | Unloaded):
            standing = outcome.standing
    return standing
