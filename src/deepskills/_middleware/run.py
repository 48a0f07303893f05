"""One hook's or tool call's view of its run: settings, state, the skills with their visibility, and those in use.

"Is this skill in use?" has one answer, `Run.in_use`, and everybody asks here: the section, the tools, the request, the
policies, hooks, models, forks and scripts. The rules:

- A **limit** of a loaded skill (what it forbids, its hooks, its lock) holds from the load until a lawful unload:
  `unload_skill`, an application's `{"unload": [...]}`, a successful listing that no longer has the skill, or a
  visibility that says "off". A judgement that fails lifts nothing. It only *withholds* the skill's text from the
  request at hand, because it is unknown whether this user may read it. A text that cannot be recovered lifts nothing
  either: the skill is no longer loaded, and its record stays for its limits.
- A **grant** (own tools, calls without approval, a model) needs all of: a load record, whose digest this process has
  read, and a skill that is visible now. A skill that the user started counts as visible. An extension may withhold
  powers from a skill (`SkillExtension.withholds`); then its entry here no longer asks for them, so they cannot be
  given by mistake.
- What a skill says is taken from the very file that was loaded, known by its digest. Where this process has not read
  that file, the skill is in use, its entry is not `is_read`, and what it forbids is unknown: policies refuse.
- Messages prove nothing.
- Limits travel and grants do not: in an agent that a tool call starts (a sub-agent, a fork), the limits of what is in
  use in the calling agent hold as well (`outer_call`).

Hooks of a resumed run come here too, without the start of a run before them, so nothing may rest on that start.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Container, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any, Literal

from deepagents.backends import BackendProtocol
from langchain_core.messages import ToolCall
from langgraph.prebuilt import ToolRuntime

from deepskills._catalog.catalog import INCLUDE_TOOLS, Catalog, Readings, SkillEntry, Visibility
from deepskills._catalog.discovery import Discovery, SourceScan
from deepskills._catalog.lookup import Broken, Unknown, explain_missing, find_broken
from deepskills._io.bridge import awaiting
from deepskills._io.drivers import adrive, await_if_needed, drive, in_thread
from deepskills._io.plan import Plan, ResultT, in_worker, parent, tidy
from deepskills._loading.budget import Budgets, Unloaded, decide_unload
from deepskills._middleware.config import CACHING_PROVIDERS, WINDOW_SHARE, Invocation, Settings
from deepskills._middleware.extension import LoadedSkill, SkillExtension, overrides
from deepskills._middleware.state import LINGERING, Thread, current_config, extension_section, merge_updates
from deepskills._middleware.turn import turn_of
from deepskills._prompt.section import visible
from deepskills._providers.sources import Source
from deepskills._skillmd.problems import problem
from deepskills._types import (
    DEFAULT_LOADED_TOKENS,
    SKILL_FILE,
    LoadRecord,
    SkillMetadata,
    SkillOrigin,
    SkillProblem,
)

logger = logging.getLogger("deepskills")

POWERS = frozenset({"tools", "hooks", "scripts", "model"})
"""What an extension can withhold from a skill in use."""

_POWER_KEYS = {"tools": ("allowed-tools",), "hooks": ("hooks",), "model": ("model",), "scripts": ()}
"""The frontmatter by which a skill asks for each."""


@dataclass(frozen=True)
class OuterCall:
    """What a tool call passes on to agents that it starts, and what comes back from them."""

    place: str = ""
    """The tool call."""

    skills: tuple[LoadedSkill, ...] = ()
    """What is in use in the agent that makes it."""

    brought: dict[str, LoadedSkill] = field(default_factory=dict)
    """What was in use in the agents that it started, by path: their answers may be what these skills said."""

    heirs: list[tuple[Thread, bool]] = field(default_factory=list)
    """What the first sub-agent that starts may take: its parent's thread, and whether it takes that in any case."""


outer_call: ContextVar[OuterCall | None] = ContextVar("deepskills_outer_call", default=None)
"""The tool call that this code runs in."""


def place_of(runtime: ToolRuntime[Any, Any]) -> str:
    """Return what tells a node or tool call of a graph from those of an agent that is started in it."""
    config: Mapping[str, Any] = runtime.config or {}
    return str((config.get("configurable") or {}).get("checkpoint_ns") or "")


@dataclass(frozen=True)
class VisibleCatalog:
    """The skills of a run, and how visible they are."""

    catalog: Catalog
    hidden: Mapping[str, Visibility] = field(default_factory=dict)
    """Every skill that is not simply visible."""

    problems: Sequence[SkillProblem] = ()
    """What is wrong with sources and skills."""

    unjudged: frozenset[str] = frozenset()
    """Skills that are off only because a judgement failed: they are hidden, and stay loaded."""

    always: frozenset[str] = frozenset()
    """Skills that the operator shows in spite of their authors."""

    broken_hidden: Mapping[str, Visibility] = field(default_factory=dict)
    """Skills whose files are broken and that are not simply visible, by their directories' names."""

    shows_absent: Callable[[str], bool] = field(default=lambda _name: False)
    """Tells whether a skill of a name that is not in the catalog would be visible; not if that is unknown."""

    judges: Mapping[str, str] = field(default_factory=dict)
    """Who hid a skill in this run: an extension's name, or nothing for the operator's function. Not for fixed rules."""

    unmatched: Mapping[str, Visibility] = field(default_factory=dict)
    """Skills that only their `paths` hide, as no file that they match was touched, and how visible they are else."""

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

    def find_closed_below(self, entry: SkillEntry, loaded: Container[str]) -> list[str]:
        """Return the directories below a skill's own that belong to skills which the model may not read."""
        # The usual case, on a path that each load takes.
        if not self.hidden:
            return []
        root, known = f"{parent(entry.path).rstrip('/')}/", self.catalog.by_name
        # By the path first: thousands may be hidden, and hardly any lies inside another.
        inside = [other for name in self.hidden if (other := known.get(name)) and other.path.startswith(root)]
        return [
            # The skill's own `SKILL.md` lies below the root as well; only directories further down are meant.
            parent(other.path).removeprefix(root)
            for other in inside
            if other.name not in loaded and parent(other.path).startswith(root) and not self.is_shown(other)
        ]

    def sources_to_show(self, sources: Sequence[Source]) -> Sequence[Source]:
        """Return the sources without those that are themselves the directory of a skill which the model may not see."""
        if not self.hidden:
            return sources
        # The path of such a source would name the hidden skill in the prompt.
        unseen = {
            tidy(parent(entry.path))
            for name in self.hidden
            if (entry := self.catalog.by_name.get(name)) is not None and not self.is_shown(entry)
        }
        return [source for source in sources if tidy(source.path) not in unseen] if unseen else sources

    def is_shown(self, entry: SkillEntry) -> bool:
        """Whether the model may see and load a skill."""
        return self.visibility(entry) in {"on", "name-only"}

    def find_broken(self, asked: str) -> Broken | None:
        """Return what is wrong with the file of a skill that is missing from the catalog."""
        return find_broken(self.problems, asked) if self.find(asked) is None else None

    async def not_found(self, asked: str) -> Broken | Unknown:
        """Return what to answer to a name that the model cannot use; hidden names are not given."""
        size, broken_hidden = len(self.catalog.entries), self.broken_hidden
        shown = [found for found in self.problems if broken_hidden.get(directory_name(found)) != "user-only"]
        return await in_worker(lambda: explain_missing([e.name for e in self.visible], shown, asked), size)


def key_of_problem(found: SkillProblem) -> tuple[str, str, str]:
    """Return what makes two problems one."""
    return found["path"], found["code"], found["message"]


def tool_runtime(state: Mapping[str, Any], runtime: Any) -> ToolRuntime[Any, Any]:  # noqa: ANN401 - a hook's or tool's
    """Return a hook's runtime as the kind that tools are given; a tool's own stays as it is."""
    if isinstance(runtime, ToolRuntime):
        return runtime
    config: Any = getattr(runtime, "config", None)
    own: ToolRuntime[Any, Any] = ToolRuntime(
        state=state,
        context=getattr(runtime, "context", None),
        config=current_config() if config is None else config,
        # The very object: an invocation is known by it.
        stream_writer=getattr(runtime, "stream_writer", None),  # type: ignore[arg-type]
        tool_call_id=getattr(runtime, "tool_call_id", None),
        store=getattr(runtime, "store", None),
        tools=list(getattr(runtime, "tools", None) or ()),
        execution_info=getattr(runtime, "execution_info", None),
        server_info=getattr(runtime, "server_info", None),
    )
    # Custom graphs pass runtimes with more fields; the user's functions find those as well.
    fields = [found.name for found in dataclasses.fields(runtime)] if dataclasses.is_dataclass(runtime) else ()
    for name in (*fields, *getattr(runtime, "__dict__", {})):
        if not hasattr(own, name):
            setattr(own, name, getattr(runtime, name))
    return own


class Run:
    """One hook's or tool call's knowledge of its run; made for each call, kept for none."""

    def __init__(
        self,
        settings: Settings,
        state: Mapping[str, Any],
        runtime: Any,  # noqa: ANN401 - LangGraph's, or a tool's
        call: ToolCall | None = None,
    ) -> None:
        self.settings = settings
        self.state = state
        self.thread = Thread.of(state)
        self._runtime = runtime
        self._call = call
        """The tool call that this run is about."""
        self.is_async = True
        """Whether plans are performed on async methods; known from the first that was."""
        self.problems: list[SkillProblem] = []
        """Problems that were found on the way."""
        self.collected: dict[str, Any] = {}
        """What extensions asked to change in state."""
        self.brought: dict[str, LoadedSkill] = {}
        """What was in use in the agents that this tool call started, by path."""
        self.skill_tools: frozenset[str] = frozenset()
        """Names of the tools that skills in use bring, as far as they are known."""
        self.tool_origins: Mapping[str, str] = {}
        """Tools that are some skill's own, with the name by which it includes them; empty if that is unknown."""
        self.view: VisibleCatalog | None = None
        """The skills of this run, once they were looked up."""
        self.agent_tools: frozenset[str] | None = None
        """Those of the agent's tools that the section speaks of; known from a model request."""
        self.workspace: object | None = None
        """The backend of the agent's file tools; known from a model request."""
        self.model = self.thread.model
        """The model that requests go to: that of the latest one, until this call knows its own."""

    # What follows is cached for this call alone: a `Run` lives as long as one hook, and the state cannot change in it.
    @cached_property
    def runtime(self) -> ToolRuntime[Any, Any]:
        """What every function of the user's is given, wherever it is called from."""
        return tool_runtime(self.state, self._runtime)

    @cached_property
    def invocation(self) -> Invocation | None:
        """What the hooks and tools of one invocation share; `None` outside of one."""
        return self.settings.cache.invocation_of(self._runtime)

    @cached_property
    def scan(self) -> SourceScan:
        """This run's look at its sources."""
        settings = self.settings
        # Not `self`: a look that refers to its run would be a circle, which only the garbage collector frees.
        runtime = partial(tool_runtime, self.state, self._runtime)
        seen = self.invocation.found if self.invocation is not None else None
        sources = partial(settings.sources_in, runtime)
        records, catalog = self.thread.loaded.records, self.thread.catalog
        return SourceScan(settings.scan_settings, sources, seen, runtime, records, catalog)

    def perform(self, plan: Plan[ResultT]) -> ResultT:
        """Perform a plan on the backend of this run."""
        self.is_async = False
        return drive(plan, self._backend, self.settings.backend_timeout, self.settings.fixed_backend)

    async def aperform(self, plan: Plan[ResultT]) -> ResultT:
        """Perform a plan on the backend of this run, without blocking."""
        self.is_async = True
        return await adrive(plan, self._backend, self.settings.backend_timeout, self.settings.fixed_backend)

    def perform_inside(self, plan: Plan[ResultT]) -> ResultT | Coroutine[Any, Any, ResultT]:
        """Perform a plan inside another one, as that is performed: an async run gets an awaitable."""
        return self.aperform(plan) if self.is_async else self.perform(plan)

    async def perform_in_thread(self, make: Callable[[], Plan[ResultT]]) -> ResultT:
        """Perform a plan of a sync run, for a task on the bridge's loop: the sync methods would block that loop."""
        with awaiting():
            done = in_thread(lambda: self.perform(make()))
        return await asyncio.wrap_future(done)

    def _backend(self) -> BackendProtocol:
        return self.settings.backend_for(self.runtime)

    @property
    def budgets(self) -> Budgets:
        """How much may be loaded beside the window of the model that the latest request went to."""
        budgets, window = self.settings.budgets, self.thread.model.window
        if window is None or budgets.tokens != DEFAULT_LOADED_TOKENS:
            return budgets
        return replace(budgets, tokens=min(DEFAULT_LOADED_TOKENS, window // WINDOW_SHARE))

    @property
    def shows_loaded(self) -> bool:
        """Whether the section marks loaded skills."""
        if self.settings.loaded_status == "auto":
            return self.model.provider not in CACHING_PROVIDERS
        return self.settings.loaded_status == "system_prompt"

    @property
    def lets_linger(self) -> bool:
        """Whether texts of unloaded skills stay until the prefix changes anyway."""
        if self.settings.unload_when == "auto":
            return self.model.provider in CACHING_PROVIDERS
        return self.settings.unload_when == "cheap"

    @property
    def known_view(self) -> VisibleCatalog:
        """The skills of this run, which must have been looked up before."""
        if self.view is None:
            raise RuntimeError("the skills of this run were not looked up yet")
        return self.view

    def collect(self, update: Mapping[str, Any]) -> None:
        """Add to what changes in state."""
        self.collected = merge_updates(self.collected, update)

    def list_problems(self) -> list[SkillProblem]:
        """Return the problems that were found on the way, each once."""
        malformed = [problem("state", "state-malformed", key=key) for key in dict.fromkeys(self.thread.malformed)]
        return list({key_of_problem(found): found for found in (*malformed, *self.problems)}.values())

    def list_new_problems(self) -> list[SkillProblem]:
        """Return those of them that are not in state yet."""
        found = self.list_problems()
        # There may be thousands in state.
        known = {key_of_problem(problem) for problem in self.thread.problems} if found else set()
        return [problem for problem in found if key_of_problem(problem) not in known]

    def problems_update(self) -> dict[str, Any]:
        """Return the problems of a tool call as an update that calls of one turn can make side by side."""
        fresh = self.list_new_problems()
        # Keyed by cause: parallel calls write side by side, and LangGraph refuses two values for a key without such a
        # reducer.
        return {"skills_context": {"problems": {f"{p['code']}:{p['path']}": p for p in fresh}}} if fresh else {}

    @cached_property
    def in_use(self) -> "SkillsInUse":
        """Which skills are in use; the skills of this run must have been looked up before."""
        use = _find_in_use(self)
        above = outer_call.get()
        # The tool call's own code runs inside it too, and is no other agent's.
        if above is not None and place_of(self.runtime) != above.place:
            above.brought.update({skill.entry.path: skill for skill in use.skills})
            use = replace(use, skills=[*above.skills, *use.skills])
        if not use.skills:
            return use
        return replace(use, skills=[skill if skill.is_inherited else self.limit(skill) for skill in use.skills])

    @property
    def loaded(self) -> list[LoadedSkill]:
        """The skills in use, in load order; to a tool call, loads and unloads before it in its turn count as done."""
        call, loaded = self._call, self.thread.loaded
        earlier = turn_of(self.state, call["id"], call["name"], call["args"]).earlier if call is not None else ()
        if not earlier:
            return self.in_use.skills
        inherited = [skill for skill in self.in_use.skills if skill.is_inherited]
        found = {skill.entry.name: skill for skill in self.in_use.skills if not skill.is_inherited}
        for other in earlier:
            if other.kind == "unload":
                outcome = decide_unload(other.name, loaded)
                # What this very turn loads is not unloaded again here: its limits are assumed to hold, also if
                # the calls are refused.
                if isinstance(outcome, Unloaded):
                    found.pop(outcome.name, None)
            elif (entry := self.known_view.find_visible(other.name)) is not None:
                before = found.get(entry.name)
                # Other arguments are another load, which is not done yet; without any the skill stays as it is.
                if before is None or (other.arguments.strip() and other.arguments != before.arguments):
                    found[entry.name] = self.limit(LoadedSkill(entry, other.arguments, "model", 0, is_recent=True))
        return [*inherited, *found.values()]

    @property
    def seen(self) -> list[SkillEntry]:
        """The skills whose text the model has seen: in use before this call or by now, or unloaded and still shown."""
        # In a tool call, `loaded` counts the calls before it in its turn as done. A skill that is unloaded in this very
        # turn was still seen, so both count.
        found = [skill.entry for skill in (*self.loaded, *self.in_use.skills)]
        records, known = self.thread.loaded.records, self.known_view.catalog.by_name
        for name in self.in_use.leaving:
            record = records[name]
            found.append(make_unread_entry(name, record["path"], record["digest"], record.get("origin")))
        texts = self.thread.section("texts").values()
        lingering = [text["skill"] for text in texts if text.get("state") == LINGERING]
        return found + [known[name] for name in lingering if name in known]

    def memory_of(self, extension: SkillExtension) -> dict[str, Any]:
        """Return an extension's private state on the thread, with what it asked to change in this call."""
        section = extension_section(name_of(extension))
        asked = self.collected.get("skills_context", {}).get(section, {})
        values = {**self.thread.section(section), **asked}
        return {key: value for key, value in values.items() if value is not None}

    def withheld(self, entry: SkillEntry) -> frozenset[str]:
        """Return which powers of a skill have no effect in this run; an extension that fails to tell withholds all."""
        found: set[str] = set()
        for extension in self.settings.extensions:
            if overrides(extension, "withholds"):
                try:
                    found |= POWERS.intersection(await_if_needed(extension.withholds(entry, self.memory_of(extension))))
                except Exception:
                    logger.exception("The extension %s failed in withholds", name_of(extension))
                    # Fails closed: which powers it wanted to withhold is not known, so it is all of them.
                    return POWERS
        return frozenset(found)

    def limit(self, skill: LoadedSkill) -> LoadedSkill:
        """Return a skill in use as others may see it: without what an extension withholds."""
        withheld = self.withheld(skill.entry)
        # What a server sends grants nothing by itself, so powers are added where a human granted them and not taken
        # away.
        if skill.entry.origin is not None:
            skill = replace(skill, entry=add_powers(skill.entry, self.granted(skill.entry)))
        return remove_powers(skill, withheld)

    def granted(self, entry: SkillEntry) -> frozenset[str]:
        """Return what a human granted to a served skill, as the extensions that ask for approvals know."""
        found: set[str] = set()
        for extension in self.settings.extensions:
            # Looked up by name: only extensions that ask for approvals have it, and the seam does not promise it.
            ask = getattr(extension, "granted", None)
            if callable(ask):
                found.update(ask(entry, SimpleNamespace(memory=self.memory_of(extension))) or ())
        return POWERS & found


@dataclass(frozen=True)
class SkillsInUse:
    """The skills in use in a run."""

    skills: list[LoadedSkill] = field(default_factory=list)
    """The loaded skills, in load order: their limits hold, and their grants as far as each says."""

    leaving: Mapping[str, Literal["gone", "off"]] = field(default_factory=dict)
    """Loaded skills that are to be unloaded now, because they are no longer there for this run."""

    withheld: frozenset[str] = frozenset()
    """Skills in use whose text stays out of this request, because a judgement of their visibility failed."""

    @property
    def granting(self) -> list[SkillEntry]:
        """The skills in use whose grants count."""
        return [skill.entry for skill in self.skills if skill.grants]


def _find_in_use(run: Run) -> SkillsInUse:
    """Tell which skills are in use: the one answer that everybody goes by."""
    thread, loaded = run.thread, run.thread.loaded
    # The usual case, on a path that each request takes.
    if not loaded.names and not loaded.lost and not thread.section("brought"):
        return SkillsInUse()
    view, found, turn = run.known_view, run.scan.found, thread.turn
    skills: list[LoadedSkill] = []
    leaving: dict[str, Literal["gone", "off"]] = {}
    withheld = set(view.unjudged.intersection(loaded.names))
    for name in (*loaded.names, *loaded.lost):
        record, is_lost = loaded.records[name], name not in loaded.names
        current = view.catalog.by_name.get(name)
        # Another skill of the same name: its visibility and file say nothing about the one that was loaded.
        current = current if current is not None and is_of(current, record) else None
        if current is None and found is not None and is_gone(record, found):
            leaving[name] = "gone"
            continue
        # Turned off by a decision. A judgement that failed is not one: it withholds and lifts nothing.
        if view.hidden.get(name) == "off" and name not in view.unjudged:
            leaving[name] = "off"
            continue
        # Neither in the catalog nor known to be gone, because its source failed: a judge cannot be asked about it.
        if current is None and not is_lost and not _is_judged(name, record, run):
            withheld.add(name)
        entry = _find_loaded(name, record, current, run.settings.cache.readings)
        # A lost skill whose file changed is not reloaded, as loaded ones are: the file of today says what it forbids.
        if is_lost and not entry.is_read and current is not None:
            entry = current
        is_visible = current is not None and (view.is_shown(current) or is_started_by_user(record))
        skills.append(
            LoadedSkill(
                entry=entry,
                arguments=record.get("arguments", ""),
                trigger=record.get("trigger", "model"),
                tokens=record["tokens"],
                # Without a user's message there is no turn, and two empty ids must not match.
                is_recent=bool(turn) and record.get("turn") == turn,
                grants=entry.is_read and is_visible and not is_lost and name not in view.unjudged,
                is_lost=is_lost,
                load_id="" if is_lost else record.get("message", ""),
            )
        )
    skills += _find_brought(run)
    return SkillsInUse(skills, leaving, frozenset(withheld))


def _find_brought(run: Run) -> list[LoadedSkill]:
    """Return what was in use in agents whose answers came back in this turn; its limits hold until the next one."""
    thread, readings = run.thread, run.settings.cache.readings
    records = {path: record for path, record in thread.section("brought").items() if record["turn"] == thread.turn}
    return [
        LoadedSkill(
            readings.brought.get((path, record["digest"])) or make_unread_entry(record["name"], path, record["digest"]),
            "",
            "system",
            0,
            is_recent=False,
            grants=False,
            is_lost=True,
            is_inherited=True,
        )
        for path, record in records.items()
    ]


def build_brought_update(brought: Mapping[str, LoadedSkill], run: "Run") -> dict[str, Any]:
    """Return the update that keeps what was in use in the agents that a tool call started."""
    thread, readings = run.thread, run.settings.cache.readings
    old = {path: None for path, record in thread.section("brought").items() if record["turn"] != thread.turn}
    own = {skill.entry.path for skill in run.in_use.skills}
    # What is in use here as well ends with its own unload.
    brought = {path: skill for path, skill in brought.items() if path not in own}
    for path, skill in brought.items():
        # Another middleware may have read it, with a memory of its own.
        readings.brought.put((path, skill.entry.digest), skill.entry)
    new = {
        path: {"name": skill.entry.name, "digest": skill.entry.digest, "turn": thread.turn}
        for path, skill in brought.items()
    }
    return {"skills_context": {"brought": {**old, **new}}} if new else {}


def _is_judged(name: str, record: LoadRecord, run: Run) -> bool:
    """Whether it is known that a loaded skill may be seen though it is not in the catalog."""
    found = run.scan.found
    # A file that is there and cannot be used is judged by its directory's name.
    return run.known_view.shows_absent(name) or (found is not None and record["path"] in found.unusable)


def find_disclosed_skills(run: Run) -> list[SkillEntry]:
    """Return the skills whose file the model has read by `read_file`, unchanged since and visible now."""
    # The catalog's digest then and now: a file that changed after the read discloses nothing until it is read again.
    view, catalog = run.known_view, run.known_view.catalog
    return [
        entry
        for name, digest in run.thread.section("disclosed").items()
        if (entry := catalog.by_name.get(name)) is not None
        and entry.is_read
        and entry.digest == digest
        and view.is_shown(entry)
        and "tools" not in run.withheld(entry)
    ]


# What extensions withhold from skills in use.


def name_of(extension: SkillExtension) -> str:
    """Return the name under which an extension keeps its state."""
    return extension.name or type(extension).__name__


def remove_powers(skill: LoadedSkill, powers: frozenset[str]) -> LoadedSkill:
    """Return a skill in use whose entry does not ask for powers."""
    if not powers:
        return skill
    entry = skill.entry
    keys = {key for power in powers for key in _POWER_KEYS[power]}
    kept = {key: value for key, value in entry.frontmatter.items() if key not in keys}
    metadata = entry.skill
    if "tools" in powers:
        metadata = metadata.copy()
        metadata["allowed_tools"] = []
        metadata["metadata"] = {key: text for key, text in metadata["metadata"].items() if key != INCLUDE_TOOLS}
    return replace(skill, entry=replace(entry, skill=metadata, frontmatter=kept), withheld=powers)


def add_powers(entry: SkillEntry, granted: frozenset[str]) -> SkillEntry:
    """Return a served skill with those of the powers that it asks for which were granted."""
    asked = entry.asked
    if not asked or not granted:
        return entry
    keys = {key for power in granted for key in _POWER_KEYS[power]}
    skill = entry.skill
    if "tools" in granted:
        skill = skill.copy()
        skill["allowed_tools"] = asked.get("allowed-tools") or []
        tools = {key: text for key, text in asked.items() if key == INCLUDE_TOOLS}
        skill["metadata"] = {**skill["metadata"], **tools}
    given = {key: value for key, value in asked.items() if key in keys}
    return replace(entry, skill=skill, frontmatter={**entry.frontmatter, **given})


def is_of(entry: SkillEntry, record: LoadRecord) -> bool:
    """Whether a record is of this very skill: of the same path, and to its provider of the same key."""
    key = entry.provided.key if entry.provided is not None else None
    return entry.path == record["path"] and (key is None or record.get("key") in (None, key))


def is_started_by_user(record: LoadRecord) -> bool:
    """Whether a user asked for a load."""
    return record.get("trigger") in {"user", "pin"}


def is_gone(record: LoadRecord, found: Discovery) -> bool:
    """Whether a successful listing no longer has a loaded skill where it was.

    A file that is there and cannot be used, perhaps half saved, takes nothing away, and neither does a source that
    failed. For a load that knows no source, of an older version, any source may have given it.
    """
    if not found.is_resolved or record["path"] in found.unusable:
        return False
    source = record.get("source")
    sources = [source] if source else [known.path for known in found.catalog.sources]
    return found.unsure.isdisjoint(sources)


def _find_loaded(name: str, record: LoadRecord, current: SkillEntry | None, readings: Readings) -> SkillEntry:
    """Return what a loaded skill's own file said, the one that was loaded, as far as this process has read it."""
    # The file itself counts, not what a provider listed of it; of what is not trusted, both were compared at the load.
    provided = current.provided if current is not None and current.origin is None else None
    # A provider may have versions of its own in the catalog; `listed` is the one of the load.
    is_same = current is not None and current.digest in (record["digest"], record.get("listed"))
    if current is not None and current.is_read and is_same and provided is None:
        return current
    reading = readings.recall(record["path"], record["digest"])
    if reading is not None and reading.metadata is not None:
        source = record.get("source") or (current.source if current is not None else "")
        entry = readings.entry(reading, source, lambda _own: name)
        return replace(entry, provided=provided) if provided is not None else entry
    # What the catalog says of its origin counts before what state does.
    origin = (current.origin if current is not None else None) or record.get("origin")
    return make_unread_entry(name, record["path"], record["digest"], origin)


def directory_name(found: SkillProblem) -> str:
    """Return the name of the directory whose `SKILL.md` a problem is about; empty if it is about something else."""
    directory, _, file = found["path"].rpartition("/")
    return directory.rpartition("/")[2] if file == SKILL_FILE else ""


def make_unread_entry(name: str, path: str, digest: str = "", origin: SkillOrigin | None = None) -> SkillEntry:
    """Return what is known of a skill whose file is gone, broken or out of reach: nothing that could be used."""
    skill = SkillMetadata(
        path=path,
        name=name,
        description="",
        license=None,
        compatibility=None,
        metadata={},
        allowed_tools=[],
    )
    return SkillEntry(skill, "", digest, is_read=False, origin=origin)
