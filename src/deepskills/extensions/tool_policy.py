"""Enforces `allowed-tools` and `disallowed-tools` of the skills in use: which tools are offered, which calls run.

Three parts, from the inside out. `CommandPattern` says which shell commands a pattern such as `git add:*` covers: the
start of a command, in whole words, and only if a POSIX shell would run that program and nothing else. No pattern covers
a command with an operator, an expansion that can run code, or anything that a shell, a terminal or a code page could
take for one, quoted or not. `Rule` reads one item of the frontmatter. `ToolPolicy` is the extension: it hides tools
that could never be called, refuses calls, and tells LangChain's human review which calls need no approval.

Approval at resume
------------------

`HumanInTheLoopMiddleware` asks `when` (our `needs_approval`) for each call when it interrupts. The run ends there. When
a human has answered, perhaps days later and in another process, it asks again for the same calls and expects the same
number of answers as there are questions now. Meanwhile a source may be down, a file may have changed, the process may
know no catalog, and the human may have edited a call. Judging again could give another number, and the run would fail;
or the same number for other calls, and an answer would count for a call that it was not meant for.

So each call is judged once, and the verdict travels with the thread:

1. `after_model` judges the calls right after the model has asked for them, with the sources at hand, and keeps the
   granted ones in private state: by the call's id, with a fingerprint of tool and arguments.
2. `needs_approval` only looks that up. It does no I/O, so the answer is the same at the interrupt and at the resume, in
   any process. A call whose tool or arguments differ from what was judged is not granted, and neither is one that
   nobody judged.
3. `before_tool` checks the limits again when the call runs, as a human edited it. A verdict spares the human; it never
   lifts a limit.

A skill spares the human only if it is in use, was loaded since the user's newest message, comes from a trusted source,
and is not unloaded in the same turn: otherwise a turn could use a grant that it is about to give back. Somebody who can
write the thread's state could write a verdict too, but could just as well answer for the human.

When in doubt, a call is refused and a human is asked: the policy exists for skills that strangers wrote.
"""

import hashlib
import json
import logging
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Literal, TypeAlias, get_args
from weakref import WeakSet

from langchain.agents.middleware.types import ModelRequest, ToolCallRequest
from langchain_core.messages import AIMessage, ToolCall
from langchain_core.tools import BaseTool

from deepskills import (
    LoadedSkill,
    ModelCallReport,
    Refuse,
    SkillEntry,
    SkillExtension,
    SkillLoad,
    SkillRun,
    SkillsMiddleware,
)
from deepskills._files.paths import path_of_call, script_to_relative
from deepskills._io.cache import ENTRY_BYTES, BoundedCache, size_of
from deepskills._io.plan import ResolveLinks
from deepskills._prompt import messages
from deepskills._skillmd.names import find_meant_name
from deepskills._skillmd.read import split_tools
from deepskills._skillmd.text import one_line
from deepskills._skillmd.tools import DEFAULT_ALIASES, OWN_TOOLS, SCRIPT_TOOL
from deepskills.extensions._shared import MaybeAwaitable, as_edited, is_trusted, tidy_sources
from deepskills.extensions.forks import is_fork, runs_forks

logger = logging.getLogger("deepskills")


_OPERATORS = frozenset(";&|<>`")
_UNJUDGED = re.compile(
    r"[;&|<>`\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]"  # operators, control characters, what is not text
    r"|\$[({\[]"  # command substitution, parameter expansion with operators, arithmetic
)
_TOKEN = re.compile(
    r"\\."  # an escaped character
    r"|'[^']*+'"
    r'|"(?:[^"\\]|\\.)*+"'
    r"|[^\\'\"()$#]++"
    r"|\$(?![\"'])"  # neither $'...' nor $"..."
    r"|#"
)
_SEPARATED = re.compile(r"[^\w./*?\[\]{}+-]+")
"""What separates parts of a word that a program may run, as in `--flag=rm` and `-c alias.z=!rm`."""

_MAX_EXPANDED = 256
"""Longest word with a wildcard that is compared; a longer one counts as anything."""

_QUOTES_OF_SOME_SHELL = frozenset("‘’‚‛“”„")


@dataclass(frozen=True)
class CommandPattern:
    """A pattern as written between the parentheses of a rule; one of an unknown shape covers nothing."""

    start: str
    is_open: bool
    """Whether more words may follow."""

    is_known: bool = True

    @classmethod
    def parse(cls, text: str) -> "CommandPattern":
        """Read `git add:*` or `git add *` (a prefix), or `git status` (exactly that command)."""
        text = text.strip(" ")
        start = text
        # Only one ending: nobody means a pattern such as `git :* *`.
        for ending in (":*", " *"):
            start = start.removesuffix(ending) if start == text else start
        if text == "*":
            start = ""
        # A star anywhere else has no meaning here, so such a pattern covers nothing.
        return cls(start.rstrip(" "), is_open=start != text, is_known="*" not in start and bool(text))

    def covers(self, command: object) -> bool:
        """Whether a command starts with the pattern's words, and could not run anything else."""
        if not self.is_known or not isinstance(command, str) or not is_plain(command):
            return False
        command = command.strip(" ")
        if not self.start:
            return bool(command)
        return command == self.start or (self.is_open and command.startswith(f"{self.start} "))

    def could_match(self, command: object) -> bool:
        """Whether a command could run what the pattern names: its words occur in order, or it cannot be judged."""
        # The mirror image of `covers`: there, doubt means no; here, it means yes. Quotes, escapes and variables can
        # spell any word, and a shell puts the parts together only when it runs.
        if not self.is_known or not isinstance(command, str) or not is_plain(command) or not self.start:
            return True
        if set("'\"\\$") & set(command):
            return True
        # On some disks `RM` is the same program. One iterator for all: the words must occur in order.
        parts = command.casefold().split(" ")
        words = iter([part for word in parts for part in (word, *_SEPARATED.split(word))])
        wanted_words = self.start.casefold().split(" ")
        return all(any(_could_be(word, wanted) for word in words) for wanted in wanted_words if wanted)


def is_plain(command: str) -> bool:
    """Whether a command is only words: one program and its arguments, quoted or not."""
    if _UNJUDGED.search(command) or not (command.isascii() or _is_harmless(command)):
        return False
    position = 0
    while position < len(command):
        token = _TOKEN.match(command, position)
        if token is None:  # a quote without its partner, a parenthesis outside of quotes, a backslash at the end
            return False
        position = token.end()
    return True


def _is_harmless(command: str) -> bool:
    """Whether no character is invisible, or stands for an operator, a space or a quote in some shell or code page."""
    characters = {character for character in command if not character.isascii()}
    if characters & _QUOTES_OF_SOME_SHELL or any(
        unicodedata.category(c) in {"Cf", "Zs", "Co", "Cn"} for c in characters
    ):
        return False
    # A full-width semicolon becomes a real one in some code pages.
    return not any(set(unicodedata.normalize("NFKC", c)) & (_OPERATORS | set("$'\"\\")) for c in characters)


def _could_be(word: str, wanted: str) -> bool:
    """Whether a shell or a program could turn this word into a wanted one: a path, an expansion, an option."""
    # `env -Srm` runs `rm`: a program decides where its option ends.
    if word.startswith("-") and word.endswith(_base_name(wanted)):
        return True
    expands = set("*?[{") & set(word)
    if expands & set("[{") or (expands and len(word) > _MAX_EXPANDED):
        return True
    is_same = fnmatchcase if expands else str.__eq__
    return is_same(_base_name(wanted), _base_name(word))


def _base_name(word: str) -> str:
    return word.rstrip("/").rpartition("/")[2]


# Rules: items of `allowed-tools` and `disallowed-tools`.

MAX_RULE_CHARACTERS = 80
"""How many characters of a rule or a name are shown."""

_SHELL_ARGUMENTS = frozenset({"command", "timeout"})
_RULE = re.compile(r"([^()\s]+)\((.*)\)", re.DOTALL)


@dataclass(frozen=True)
class Rule:
    """One item of `allowed-tools` or `disallowed-tools`."""

    text: str
    tools: frozenset[str]
    pattern: CommandPattern | None
    """The condition on the command, if there is one."""

    shell: str

    def covers(self, tool: str, arguments: Mapping[str, Any]) -> bool:
        """Whether the rule allows a call; patterns on tools other than shell and scripts cannot be judged."""
        if tool not in self.tools or self.pattern is None:
            return tool in self.tools
        if tool == SCRIPT_TOOL:
            return _covers_script(self.pattern, arguments)
        # An unknown argument, such as a working directory, may change what the command does.
        is_judged = tool == self.shell and arguments.keys() <= _SHELL_ARGUMENTS
        return is_judged and self.pattern.covers(arguments.get("command"))

    def forbids(self, tool: str, arguments: Mapping[str, Any]) -> bool:
        """Whether the rule, as one that forbids, could apply to a call."""
        # A pattern on another tool cannot be judged, so it forbids every call to it. A script runs whatever it likes.
        if self.withholds(tool) or tool != self.shell or tool not in self.tools or self.pattern is None:
            return self.withholds(tool)
        return not arguments.keys() <= _SHELL_ARGUMENTS or self.pattern.could_match(arguments.get("command"))

    def offers(self, tool: str) -> bool:
        """Whether some call to a tool is allowed."""
        is_judged = tool in {self.shell, SCRIPT_TOOL}
        return tool in self.tools and (self.pattern is None or (is_judged and self.pattern.is_known))

    def withholds(self, tool: str) -> bool:
        """Whether, as a rule that forbids, it forbids every call to a tool."""
        if tool == SCRIPT_TOOL and self.shell in self.tools:
            return True
        return tool in self.tools and (self.pattern is None or tool != self.shell)

    def shown(self) -> str:
        """The rule in the agent's words."""
        name = next(iter(self.tools - {self.text}), self.text) if self.pattern is None else self.text
        return one_line(name)[:MAX_RULE_CHARACTERS]


def _covers_script(pattern: CommandPattern, arguments: Mapping[str, Any]) -> bool:
    """Whether a call runs the script that a pattern names, with arguments that start with the pattern's."""
    script, *first = pattern.start.split(" ") if pattern.start else ("",)
    given, named = arguments.get("args") or [], arguments.get("script_name")
    if not pattern.is_known or not isinstance(named, str) or not isinstance(given, list):
        return False
    if not script:
        return pattern.is_open
    # Both spellings, with and without `scripts/`, mean the same file.
    is_named = script_to_relative(named) == script_to_relative(script)
    return is_named and given[: len(first)] == first and (pattern.is_open or len(given) == len(first))


def parse_rules(texts: tuple[str, ...], aliases: Mapping[str, str], shell: str) -> tuple[Rule, ...]:
    """Return the rules that texts such as `Read` or `Bash(git add:*)` express."""
    rules = []
    for text in dict.fromkeys(texts):
        matched = _RULE.fullmatch(text)
        name = matched[1] if matched else text.partition("(")[0]
        pattern = CommandPattern.parse(matched[2]) if matched else None
        if matched is None and name != text:  # parentheses that are not closed
            # A pattern that allows nothing and, as one that forbids, could match anything.
            pattern = CommandPattern.parse("")
        rules.append(Rule(text, frozenset({name, aliases.get(name, name)}), pattern, shell))
    return tuple(rules)


# The policy.

PolicyMode: TypeAlias = Literal["enforce", "approve"]

NEVER_FORBIDDEN = frozenset({"load_skill", "unload_skill"})
"""Tools that no skill can forbid: otherwise a skill could make itself impossible to unload."""

MAX_RULE_BYTES = 8_000_000
"""How much memory the rules read from frontmatter may take."""

_VERDICTS = "granted"
"""The key of the verdicts on the model's newest turn: the fingerprint of each call that needs no human, by its id."""

MAX_ASKED = 10_000
"""How many calls are remembered about which a human was asked."""

MAX_LISTED = 40
"""How many allowed tools an answer names at most."""


@dataclass(frozen=True)
class _Call:
    """A call as it would run."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    owners: frozenset[str] | None = None
    """The skills in use that own the tool; `None` if it belongs to no skill."""

    target: SkillEntry | None = None
    """The skill whose script would run."""

    @classmethod
    def of(cls, call: Mapping[str, Any], owners: frozenset[str] | None, run: SkillRun) -> "_Call":
        """Return a call with the skill that it is about: the one that the tool would find by this name."""
        target = None
        if call["name"] == SCRIPT_TOOL:
            by_name = {entry.name: entry for entry in run.skills}
            target = by_name.get(find_meant_name(by_name, str(call["args"].get("skill_name", ""))) or "")
        return cls(call["name"], call["args"], owners, target)

    def belongs_to(self, entry: SkillEntry) -> bool:
        """Whether a skill may allow the call: it cannot grant another skill's tools and scripts."""
        if self.tool == SCRIPT_TOOL:
            # Exactly: a stranger's name may differ in case alone.
            found = self.target
            return found is not None and (found.name, found.path, found.origin) == (
                entry.name,
                entry.path,
                entry.origin,
            )
        return self.owners is None or entry.name in self.owners


class ToolPolicy(SkillExtension):
    """Enforces `allowed-tools` and `disallowed-tools` of the skills in use.

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
        self.aliases: Mapping[str, str] = dict(aliases)
        self._always = frozenset(always)
        self._trusted = tidy_sources("trusted_sources", trusted_sources or ())
        self._hosts: WeakSet[SkillsMiddleware[Any, Any]] = WeakSet()
        self._shell = self.aliases.get("Bash", "execute")
        self._reading = {self.aliases.get("Read", "read_file"): "file_path", self.aliases.get("LS", "ls"): "path"}
        """The tools with which the files of skills in use may be read, and their argument for the path."""
        self._asked: dict[tuple[str, str], None] = {}
        """Calls about which this process had a human asked: they run only if the human approved."""
        # A rule takes a few times as much memory as the text that it is read from.
        self._parsed: BoundedCache[tuple[str, ...], tuple[Rule, ...]] = BoundedCache(
            MAX_RULE_BYTES, lambda _: ENTRY_BYTES, lambda texts: 8 * size_of(texts)
        )

    def attach(self, host: SkillsMiddleware[Any, Any]) -> None:
        """Remember the middleware; a copy of it for a sub-agent is another one."""
        self._hosts.add(host)

    def change_request(self, request: ModelRequest[Any], run: SkillRun) -> ModelRequest[Any]:
        """Hide the tools that could never be called."""
        # A skill's tool that no skill in use owns any longer has no privilege.
        own = frozenset(name for name in run.own_tools if run.owners(name) != frozenset())
        # What this agent loads cannot widen what the agent above allows it.
        tools = list(request.tools)
        for skills in _by_agent(run.loaded):
            is_offered = self._offer(skills, own)
            tools = [item for item in tools if is_offered(item)]
        if len(tools) == len(request.tools):
            return request
        # Providers refuse a request that forces a tool that is not offered.
        changed = request.override(tools=tools)
        offered = {name for item in tools for name in _identities(item)}
        if _choose(request.tool_choice) in {name for item in request.tools for name in _identities(item)} - offered:
            changed = changed.override(tool_choice=None)
        return changed

    def before_load(self, load: SkillLoad, run: SkillRun) -> Refuse | None:
        """Refuse a skill that became a fork since it was listed, if no sub-agent may be started."""
        if load.trigger != "model" or not is_fork(load.entry) or not self._runs_forks():
            return None
        refusals = (self._judged(_Call("task"), skills, frozenset()) for skills in _by_agent(run.loaded))
        return next(filter(None, refusals), None)

    def before_tool(self, request: ToolCallRequest, run: SkillRun) -> MaybeAwaitable[Refuse | None]:
        """Refuse a call that the skills in use, before this turn or with its loads and unloads, do not allow."""
        refused = self._judge_call(request, run)
        if refused is None:
            return None
        # A skill may read its own files, whatever it declares.
        call = as_edited(request).tool_call
        path = path_of_call(str(call["args"].get(self._reading.get(call["name"], ""), "")))
        directories = [_directory_of(skill.entry) for skill in self._in_use(run)[0] if call["name"] in self._reading]
        inside = [place for place in directories if place and f"{path}/".startswith(f"{place}/")]
        if not inside or self._judge_call(request, run, reads_own=True) is not None:
            return refused
        return _unless_inside(path, inside, refused, run)

    def _in_use(self, run: SkillRun) -> tuple[Sequence[LoadedSkill], ...]:
        """Return the skills in use after the calls ahead of this one, and those before the turn."""
        return (run.loaded, *(host.list_loaded(run.state) for host in self._hosts))

    def _judge_call(self, request: ToolCallRequest, run: SkillRun, *, reads_own: bool = False) -> Refuse | None:
        # A tool of the agent itself is never a skill's own, whatever the state says.
        own = run.own_tools if request.tool is None else run.own_tools & OWN_TOOLS
        if reads_own:
            own |= self._reading.keys()
        is_approved = self._is_approved(request)
        # Judged twice: by the skills in use before the turn, and by those in use after the loads and unloads ahead of
        # this call. A turn that unloads a skill cannot use the freedom yet, and one that loads a skill is bound by it
        # at once.
        for call in self._calls(request, run):
            for skills in (group for found in self._in_use(run) for group in _by_agent(found)):
                unread = [skill.entry for skill in skills if not skill.entry.is_read]
                # What they forbid is unknown, in either mode.
                if unread and not is_approved and call.tool not in own & OWN_TOOLS | self._always | NEVER_FORBIDDEN:
                    return _refusal(messages.POLICY_UNREADABLE, call, unread)
                refusal = self._judged(call, skills, own)
                if refusal is not None:
                    return refusal
        edited = as_edited(request)
        if run.starts_unbound(edited):
            # Even if a skill allows `task`: nobody would hold that agent to what is forbidden here.
            for skill in (skill for found in self._in_use(run) for skill in found):
                if self._forbidden(skill.entry) or self._declaring([skill]):
                    tool, name = one_line(edited.tool_call["name"]), f'"{skill.entry.name}"'
                    return Refuse(messages.LIMITS_DO_NOT_TRAVEL.format(tool=tool, skill=name))
        return None

    def _is_approved(self, request: ToolCallRequest) -> bool:
        """Whether a human approved a call, or was spared by a skill when its rules were known."""
        call = request.tool_call
        return (str(call["id"]), call["name"]) in self._asked or self._has_verdict(request)

    def after_model(self, report: ModelCallReport, run: SkillRun) -> None:
        """Judge the calls that the model has just asked for, and keep the verdicts with the thread.

        Human review calls `needs_approval` when it interrupts and again at the resume, perhaps in another process and
        with a source out of reach, and compares the numbers: the answer must be the same, so it is stored.
        """
        if self._mode != "approve" or report.response is None:
            return
        # Step 1: once, while the sources are at hand.
        calls = [call for item in report.response.result if isinstance(item, AIMessage) for call in item.tool_calls]
        if not calls:
            return
        # For the whole turn: its calls run in parallel, so an unload counts for those before it too.
        granting = self._granting(run, _unload_by(calls))
        granted = {
            str(call["id"]): _fingerprint(call["name"], call["args"])
            for call in calls
            if self._is_granted(made := _Call.of(call, run.owners(call["name"]), run), granting)
            # A verdict counts where nobody can look at the rules any longer, so it holds what they forbid.
            and not any(self._forbids(skill.entry, made) for skill in run.loaded)
        }
        # Replaced as a whole, so that verdicts of an earlier turn with the same ids cannot be used again.
        if run.memory.get(_VERDICTS) != granted:
            run.remember(_VERDICTS, granted)

    def needs_approval(self, request: ToolCallRequest) -> bool:
        """Whether a human has to approve a call; fits `when` of `HumanInTheLoopMiddleware`.

        False only if a skill covers the call that is in use, was loaded since the user's newest message and comes from
        a trusted source. A call that cannot be judged needs approval. This does no I/O: the verdict was found when the
        model asked for the call.
        """
        try:
            # Step 2: a lookup.
            if self._was_granted(request):
                return False
        except Exception:
            logger.exception(
                "The tool policy could not judge a call to %r: a human is asked", request.tool_call["name"]
            )
        self._asked[str(request.tool_call["id"]), request.tool_call["name"]] = None
        while len(self._asked) > MAX_ASKED:
            self._asked.pop(next(iter(self._asked)), None)
        return True

    def _was_granted(self, request: ToolCallRequest) -> bool:
        if self._mode != "approve":
            return False
        call = request.tool_call
        asked = _newest_calls(request.state)
        if all(other["id"] != call["id"] for other in asked):
            # Not a question of human review but of the application, answered from what this process knows.
            runs = [run for host in self._hosts if (run := host.run_without_io(self, request.state)) is not None]
            return any(
                self._is_granted(_Call.of(call, run.owners(call["name"]), run), self._granting(run, set()))
                for run in runs
            )
        return self._has_verdict(request)

    def _has_verdict(self, request: ToolCallRequest) -> bool:
        call = request.tool_call
        # Read from state by hand: `when` is given no run of ours.
        kept = (request.state.get("skills_context") or {}).get(f"extension {self.name or type(self).__name__}") or {}
        granted = kept.get(_VERDICTS) or {}
        # The id is not enough: a human may have edited the call, and other code may reuse ids.
        return bool(granted.get(str(call["id"])) == _fingerprint(call["name"], call["args"]))

    def _granting(self, run: SkillRun, ended: set[str]) -> list[SkillEntry]:
        """Return the skills that may spare a human's approval, without those that are about to be unloaded."""
        return [
            skill.entry
            for skill in run.loaded
            if skill.is_recent
            and skill.grants
            and is_trusted(skill.entry, run, self._trusted)
            and not any(find_meant_name([skill.entry.name], name) for name in ended)
        ]

    def _is_granted(self, call: _Call, granting: Sequence[SkillEntry]) -> bool:
        # A load may start a sub-agent, just like a call to `task`. It does not matter which skill it names: its file
        # could become a fork between the approval and the load.
        calls = [call, _Call("task")] if call.tool == "load_skill" and self._runs_forks() else [call]
        return all(any(self._covers(entry, made) for entry in granting) for made in calls)

    def _judged(self, call: _Call, skills: Sequence[LoadedSkill], own: frozenset[str]) -> Refuse | None:
        # What is forbidden comes first: no other skill can allow it.
        for skill in skills:
            if self._forbids(skill.entry, call):
                return _refusal(messages.POLICY_FORBIDDEN, call, [skill.entry])
        declaring = self._declaring(skills)
        if not declaring or call.tool in own | self._always or any(self._covers(entry, call) for entry in declaring):
            return None
        allowed = dict.fromkeys(rule.shown() for entry in declaring for rule in self._allowed(entry))
        return _refusal(messages.POLICY_NOT_ALLOWED, call, declaring, allowed=_list([*allowed, *sorted(self._always)]))

    def _offer(self, skills: Sequence[LoadedSkill], own: frozenset[str]) -> Callable[[BaseTool | dict[str, Any]], bool]:
        """Return which tools are offered."""
        forbidding = [rule for skill in skills for rule in self._forbidden(skill.entry)]
        # Only tools that could never be called: one that a pattern forbids in part is offered, and judged at the call.
        names = {name for rule in forbidding for name in (*rule.tools, SCRIPT_TOOL)}
        withheld = {name for name in names if any(rule.withholds(name) for rule in forbidding)} - NEVER_FORBIDDEN
        declaring = self._declaring(skills)
        rules = [rule for entry in declaring for rule in self._allowed(entry)]
        allowed = {name for rule in rules for name in rule.tools if rule.offers(name)} | own
        if all(entry.is_read for entry in declaring) and any(_directory_of(skill.entry) for skill in skills):
            allowed |= self._reading.keys()

        def is_offered(item: BaseTool | dict[str, Any]) -> bool:
            names = _identities(item)
            if (names or _parts(item)) & withheld:
                return False
            return not declaring or bool(names & self._always) or _name_of(item) in allowed

        return is_offered

    def _calls(self, request: ToolCallRequest, run: SkillRun) -> list[_Call]:
        """Return the calls to judge: the call as a human edited it, and the sub-agent that a load in it would start."""
        # Step 3 at resume: the edited arguments are judged, because they are what will run.
        given = as_edited(request).tool_call
        # A tool of the agent itself belongs to no skill, whatever the state says.
        call = _Call.of(given, run.owners(given["name"]) if request.tool is None else None, run)
        if call.tool != "load_skill" or not self._runs_forks():
            return [call]
        # Among all skills of the run, including those that only the user may start: one may be permitted this once.
        forks = [entry.name for entry in run.skills if is_fork(entry)]
        starts_agent = find_meant_name(forks, str(call.arguments.get("skill_name", ""))) is not None
        return [call, _Call("task")] if starts_agent else [call]

    def _runs_forks(self) -> bool:
        return any(runs_forks(host) for host in self._hosts)

    def _declaring(self, skills: Sequence[LoadedSkill]) -> list[SkillEntry]:
        if self._mode != "enforce":
            return []
        return [skill.entry for skill in skills if _declares(skill.entry)]

    def _covers(self, entry: SkillEntry, call: _Call) -> bool:
        return call.belongs_to(entry) and any(rule.covers(call.tool, call.arguments) for rule in self._allowed(entry))

    def _forbids(self, entry: SkillEntry, call: _Call) -> bool:
        if call.tool in NEVER_FORBIDDEN:
            return False
        return any(rule.forbids(call.tool, call.arguments) for rule in self._forbidden(entry))

    def _rules(self, texts: tuple[str, ...]) -> tuple[Rule, ...]:
        return self._parsed.get_or_make(texts, lambda: parse_rules(texts, self.aliases, self._shell))

    def _allowed(self, entry: SkillEntry) -> tuple[Rule, ...]:
        return self._rules(tuple(entry.skill["allowed_tools"]))

    def _forbidden(self, entry: SkillEntry) -> tuple[Rule, ...]:
        given = entry.frontmatter.get("disallowed-tools")
        if isinstance(given, str):
            return self._rules(tuple(split_tools(given)))
        items = given if isinstance(given, Sequence) else ()
        return self._rules(tuple(item for item in items if isinstance(item, str)))


def _by_agent(skills: Sequence[LoadedSkill]) -> tuple[list[LoadedSkill], list[LoadedSkill]]:
    """Return the skills in use in this agent, and those in use in the agents above it."""
    own = [skill for skill in skills if not skill.is_inherited]
    return own, [skill for skill in skills if skill.is_inherited]


def _directory_of(entry: SkillEntry) -> str:
    """Return the directory in which a skill may read; empty for one that has none of its own."""
    # A skill of a provider that is not trusted names a directory, but opens none.
    return entry.path.rpartition("/")[0] if entry.path.startswith("/") and entry.origin is None else ""


async def _unless_inside(path: str, directories: Sequence[str], refused: Refuse, run: SkillRun) -> Refuse | None:
    """Return a refusal, unless a path lies in one of these directories once its links are followed."""

    async def resolve() -> dict[str, str]:
        return await ResolveLinks((path, *directories))

    real = {given: found.replace("\\", "/") for given, found in (await run.perform(resolve)).items()}
    target = f"{real.get(path, path)}/"
    is_inside = any(target.startswith(f"{real.get(place, place).rstrip('/')}/") for place in directories)
    return None if is_inside else refused


def _fingerprint(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return a value that changes if a call is changed after it was judged."""
    # Sorted: another order of keys is not another call.
    text = json.dumps([tool, arguments], sort_keys=True, default=str)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _declares(entry: SkillEntry) -> bool:
    """Whether a skill limits tools. One whose file could not be read may, so it allows nothing."""
    if not entry.is_read:
        return True
    given = entry.frontmatter.get("allowed-tools")
    # An empty list, or something odd, still declares that nothing is allowed; only a blank text does not.
    return bool(entry.skill["allowed_tools"]) or not (given is None or (isinstance(given, str) and not given.strip()))


def _newest_calls(state: Mapping[str, Any]) -> Sequence[ToolCall]:
    newest = next((item for item in reversed(state["messages"]) if isinstance(item, AIMessage)), None)
    return newest.tool_calls if newest is not None else []


def _unload_by(calls: Sequence[ToolCall]) -> set[str]:
    """Return the skills that calls of one turn unload, as the model spells them."""
    return {str(call["args"].get("skill_name")) for call in calls if call["name"] == "unload_skill"}


def _name_of(item: BaseTool | dict[str, Any]) -> str | None:
    """Return a tool's name; for a provider's tool without one, its type or its only key."""
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
    """Return the parts of a provider's tool without a name: several in one, by key."""
    return frozenset(item) if isinstance(item, dict) else frozenset()


def _choose(tool_choice: object) -> str | None:
    if isinstance(tool_choice, Mapping):
        function = tool_choice.get("function")
        tool_choice = function.get("name") if isinstance(function, Mapping) else tool_choice.get("name")
    return tool_choice if isinstance(tool_choice, str) else None


def _refusal(text: str, call: _Call, entries: Sequence[SkillEntry], allowed: str = "") -> Refuse:
    detail = " with this command" if "command" in call.arguments else ""
    skills = ", ".join(f'"{entry.name}"' for entry in entries)
    tool = f"`{one_line(call.tool)[:MAX_RULE_CHARACTERS]}`"
    return Refuse(text.format(tool=tool, skills=skills, allowed=allowed, detail=detail))


def _list(names: Sequence[str]) -> str:
    if not names:
        return "no tool but those of skills"
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more
