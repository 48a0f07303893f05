"""Which tools a model may call while skills are in use, and which calls a human need not approve."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, get_args
from weakref import WeakSet

from langchain.agents.middleware.types import ModelRequest, ToolCallRequest
from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool

from deepskills import LoadedSkill, Refuse, SkillEntry, SkillExtension, SkillLoad, SkillRun, SkillsHost
from deepskills._catalog.catalog import meant_name
from deepskills._format.reading import split_tools
from deepskills._format.text import one_line
from deepskills.extensions._edits import as_edited
from deepskills.extensions._sources import tidy_source, tidy_sources
from deepskills.extensions._tool_rules import MAX_RULE_CHARACTERS, Rule, parse_rules
from deepskills.extensions.forks import is_fork, runs_forks

logger = logging.getLogger("deepskills")

ResultT = TypeVar("ResultT")

PolicyMode: TypeAlias = Literal["enforce", "approve"]

DEFAULT_ALIASES: Mapping[str, str] = {
    "Read": "read_file",
    "Write": "write_file",
    "Edit": "edit_file",
    "Glob": "glob",
    "Grep": "grep",
    "LS": "ls",
    "Bash": "execute",
    "Task": "task",
    "TodoWrite": "write_todos",
}
"""What another client's tools are called in deepagents."""

CORE_TOOLS = frozenset(
    {
        "load_skill",
        "unload_skill",
        "search_skills",
        "load_skill_asset",
        "list_skill_assets",
        "get_skill_script_path",
    }
)
"""The tools that skills themselves are used by."""

NEVER_FORBIDDEN = frozenset({"load_skill", "unload_skill"})
"""Tools that no skill can take away: one that could would stay for good."""

NOT_ALLOWED = (
    "Tool {tool} was not run: it is not among the tools that the skills in use ({skills}) allow{detail}. "
    "Allowed: {allowed}. Use one of these, or unload_skill first if the skill is no longer needed. A load or unload "
    "counts from the next turn on."
)
UNREADABLE = (
    "Tool {tool} was not run: the file of the skill {skills} in use cannot be read at the moment, so nobody can tell "
    "what it allows{detail}. Try again later, or unload_skill first if the skill is no longer needed."
)
FORBIDDEN = (
    "Tool {tool} was not run: the skill {skills} in use forbids it{detail}. Do the task in another way, or "
    "unload_skill first if the skill is no longer needed."
)
MAX_LISTED = 40
"""Most allowed tools that an answer names."""


@dataclass(frozen=True)
class _Call:
    """A call as it would run."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


class ToolPolicy(SkillExtension):
    """Makes `allowed-tools` and `disallowed-tools` of the skills in use count.

    With `"enforce"`, while a skill in use declares `allowed-tools`, only the union of what skills in use declare, the
    skills' own tools and `always` are offered and run. With `"approve"`, `needs_approval` tells
    `HumanInTheLoopMiddleware` which calls need no human. In both, `disallowed-tools` are neither offered nor run.

    Args:
        mode: `"enforce"` or `"approve"`.
        aliases: Names of other clients' tools, and what this agent calls them.
        always: Names of tools that `"enforce"` leaves alone.
        trusted_sources: Paths of the sources whose skills may spare a human's approval; `"approve"` requires it.
    """

    protective: ClassVar[bool] = True
    frontmatter_keys: Sequence[str] = ("allowed-tools", "disallowed-tools", "context")

    def __init__(
        self,
        mode: PolicyMode,
        *,
        aliases: Mapping[str, str] = DEFAULT_ALIASES,
        always: Iterable[str] = (),
        trusted_sources: Iterable[str] | None = None,
    ) -> None:
        if mode not in get_args(PolicyMode):
            raise ValueError(f'ToolPolicy takes the mode "enforce" or "approve", not {mode!r}.')
        if isinstance(always, str):
            raise ValueError(f"`always` takes a list of tool names, not the text {always!r}.")  # noqa: TRY004
        if mode == "approve" and trusted_sources is None:
            raise ValueError('ToolPolicy("approve") needs `trusted_sources`: the sources whose skills may grant tools.')
        self._mode = mode
        self._aliases = dict(aliases)
        self._always = frozenset(always)
        self._trusted = tidy_sources("trusted_sources", trusted_sources or ())
        self._hosts: WeakSet[SkillsHost] = WeakSet()
        shell = self._aliases.get("Bash", "execute")
        self._rules = lru_cache(maxsize=512)(lambda texts: parse_rules(texts, self._aliases, shell))

    def attach(self, host: SkillsHost) -> None:
        """Remember the middleware; a copy of it for a sub-agent is another one."""
        self._hosts.add(host)

    def change_request(self, request: ModelRequest[Any], run: SkillRun) -> ModelRequest[Any]:
        """Take away the tools that no call could be made of."""
        is_offered = self._offer(run.loaded, run.own_tools)
        tools = [item for item in request.tools if is_offered(item)]
        if len(tools) == len(request.tools):
            return request
        changed = request.override(tools=tools)
        offered = {name for item in tools for name in _identities(item)}
        if _chosen(request.tool_choice) in {name for item in request.tools for name in _identities(item)} - offered:
            changed = changed.override(tool_choice=None)
        return changed

    def before_load(self, load: SkillLoad, run: SkillRun) -> Refuse | None:
        """Refuse a skill that has come to run in a sub-agent since it was listed, where none may be started."""
        if load.trigger != "model" or not is_fork(load.entry) or not self._runs_forks():
            return None
        return self._judged(_Call("task"), run.loaded, frozenset())

    def before_tool(self, request: ToolCallRequest, run: SkillRun) -> Refuse | None:
        """Refuse a call that the skills in use, before this turn or with its loads and unloads, do not allow."""
        # A tool that the agent has itself is never one that a skill brought, whatever the state says.
        own = run.own_tools if request.tool is None else run.own_tools & CORE_TOOLS
        before = [host.loaded_in(run.state) for host in self._hosts]
        for call in self._calls(request, run.skills):
            for skills in (run.loaded, *before):
                refusal = self._judged(call, skills, own)
                if refusal is not None:
                    return refusal
        return None

    def needs_approval(self, request: ToolCallRequest) -> bool:
        """Whether a human has to approve a call; fits `when` of `HumanInTheLoopMiddleware`.

        False only for a call that a skill covers which is in use, was loaded since the user's newest message and comes
        from a trusted source. What cannot be judged needs approval.
        """
        try:
            return not self._is_granted(request)
        except Exception:
            logger.exception(
                "The tool policy could not judge a call of %r: a human is asked", request.tool_call["name"]
            )
            return True

    def _is_granted(self, request: ToolCallRequest) -> bool:
        if self._mode != "approve":
            return False
        call = _Call(request.tool_call["name"], request.tool_call["args"])
        calls = [call, _Call("task")] if call.tool == "load_skill" and self._runs_forks() else [call]
        ended = _unloaded_beside(request)
        granting = [
            skill.entry
            for skill in self._in_use(request)
            if skill.is_recent
            and tidy_source(skill.entry.source) in self._trusted
            and not any(meant_name([skill.entry.name], name) for name in ended)
        ]
        return all(any(self._covers(entry, made) for entry in granting) for made in calls)

    def _in_use(self, request: ToolCallRequest) -> Sequence[LoadedSkill]:
        """Return the skills in use; a process that has not read them yet, as it resumes a thread, reads them now."""
        found = [skill for host in self._hosts for skill in host.loaded_in(request.state)]
        if found or not request.state.get("skills_loaded"):
            return found
        read = [lambda host=host: host.run_for(self, request.state, request.runtime).loaded for host in self._hosts]
        return [skill for step in read for skill in _apart(step)]

    def _judged(self, call: _Call, skills: Sequence[LoadedSkill], own: frozenset[str]) -> Refuse | None:
        for skill in skills:
            if self._forbids(skill.entry, call):
                return _refusal(FORBIDDEN, call, [skill.entry])
        declaring = self._declaring(skills)
        if not declaring or call.tool in own | self._always or any(self._covers(entry, call) for entry in declaring):
            return None
        unread = [entry for entry in declaring if not entry.is_read]
        if unread:
            return _refusal(UNREADABLE, call, unread)
        allowed = dict.fromkeys(rule.shown() for entry in declaring for rule in self._allowed(entry))
        return _refusal(NOT_ALLOWED, call, declaring, allowed=_listed([*allowed, *sorted(self._always)]))

    def _offer(self, skills: Sequence[LoadedSkill], own: frozenset[str]) -> Callable[[BaseTool | dict[str, Any]], bool]:
        """Return which tools are offered."""
        forbidding = [rule for skill in skills for rule in self._forbidden(skill.entry)]
        withheld = {name for rule in forbidding for name in rule.tools if rule.withholds(name)} - NEVER_FORBIDDEN
        declaring = self._declaring(skills)
        rules = [rule for entry in declaring for rule in self._allowed(entry)]
        allowed = {name for rule in rules for name in rule.tools if rule.offers(name)} | own

        def is_offered(item: BaseTool | dict[str, Any]) -> bool:
            names = _identities(item)
            if (names or _parts(item)) & withheld:
                return False
            return not declaring or bool(names & self._always) or _name_of(item) in allowed

        return is_offered

    def _calls(self, request: ToolCallRequest, skills: Sequence[SkillEntry]) -> list[_Call]:
        """Return what a call amounts to: as a person edited it, and the sub-agent that a skill in it would start."""
        given = as_edited(request).tool_call
        call = _Call(given["name"], given["args"])
        if call.tool != "load_skill" or not self._runs_forks():
            return [call]
        forks = [entry.name for entry in skills if is_fork(entry)]
        starts_agent = meant_name(forks, str(call.arguments.get("skill_name", ""))) is not None
        return [call, _Call("task")] if starts_agent else [call]

    def _runs_forks(self) -> bool:
        return any(runs_forks(host) for host in self._hosts)

    def _declaring(self, skills: Sequence[LoadedSkill]) -> list[SkillEntry]:
        if self._mode != "enforce":
            return []
        return [skill.entry for skill in skills if _declares(skill.entry)]

    def _covers(self, entry: SkillEntry, call: _Call) -> bool:
        return any(rule.covers(call.tool, call.arguments) for rule in self._allowed(entry))

    def _forbids(self, entry: SkillEntry, call: _Call) -> bool:
        if call.tool in NEVER_FORBIDDEN:
            return False
        return any(rule.forbids(call.tool, call.arguments) for rule in self._forbidden(entry))

    def _allowed(self, entry: SkillEntry) -> tuple[Rule, ...]:
        return self._rules(tuple(entry.skill["allowed_tools"]))

    def _forbidden(self, entry: SkillEntry) -> tuple[Rule, ...]:
        given = entry.frontmatter.get("disallowed-tools")
        if isinstance(given, str):
            return self._rules(tuple(split_tools(given)))
        items = given if isinstance(given, Sequence) else ()
        return self._rules(tuple(item for item in items if isinstance(item, str)))


def _apart(step: Callable[[], ResultT]) -> ResultT:
    """Take a step that reads files; beside a running event loop in a thread, as backends may not work on it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return step()
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(copy_context().run, step).result()


def _declares(entry: SkillEntry) -> bool:
    """Whether a skill limits tools; one that nobody could read may, and allows nothing."""
    if not entry.is_read:
        return True
    given = entry.frontmatter.get("allowed-tools")
    return bool(entry.skill["allowed_tools"]) or not (given is None or (isinstance(given, str) and not given.strip()))


def _unloaded_beside(request: ToolCallRequest) -> set[str]:
    """Return the skills that calls of the same turn unload, as the model spells them."""
    messages = request.state["messages"]
    newest = next((message for message in reversed(messages) if isinstance(message, AIMessage)), None)
    calls = newest.tool_calls if newest is not None else []
    return {str(call["args"].get("skill_name")) for call in calls if call["name"] == "unload_skill"}


def _name_of(item: BaseTool | dict[str, Any]) -> str | None:
    """Return what a tool is called by; one of a provider that has no name, by its type or its only key."""
    if isinstance(item, BaseTool):
        return item.name
    function = item.get("function")
    name = item.get("name") or (function.get("name") if isinstance(function, dict) else None)
    if name is None and item.get("type") != "function":
        name = item.get("type") or (next(iter(item)) if len(item) == 1 else None)
    return name if isinstance(name, str) else None


def _identities(item: BaseTool | dict[str, Any]) -> frozenset[str]:
    kind = item.get("type") if isinstance(item, dict) else None
    names = (_name_of(item), kind if kind != "function" else None)
    return frozenset(name for name in names if isinstance(name, str))


def _parts(item: BaseTool | dict[str, Any]) -> frozenset[str]:
    """Return what a provider's tool without a name is made of: several in one, by key."""
    return frozenset(item) if isinstance(item, dict) else frozenset()


def _chosen(tool_choice: object) -> str | None:
    if isinstance(tool_choice, Mapping):
        function = tool_choice.get("function")
        tool_choice = function.get("name") if isinstance(function, Mapping) else tool_choice.get("name")
    return tool_choice if isinstance(tool_choice, str) else None


def _refusal(text: str, call: _Call, entries: Sequence[SkillEntry], allowed: str = "") -> Refuse:
    detail = " with this command" if "command" in call.arguments else ""
    skills = ", ".join(f'"{entry.name}"' for entry in entries)
    tool = f"`{one_line(call.tool)[:MAX_RULE_CHARACTERS]}`"
    return Refuse(text.format(tool=tool, skills=skills, allowed=allowed, detail=detail))


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "no tool but those of skills"
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more
