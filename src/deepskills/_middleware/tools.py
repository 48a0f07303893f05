"""The tools `load_skill` and `unload_skill`, and what happens around every tool call of an agent with skills.

1. Which calls a turn has, and which of them come before a call (`turn_of`).
2. The two tools: calls become plans, outcomes become `Command`s and messages.
3. Any tool call (`open_tool_call`): a skill's own tools, and what extensions say of it.
4. The guard for skills that were served from elsewhere (`ServedSkills`).
"""

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, cast

from langchain.agents.middleware.types import ToolCallRequest
from langchain.tools import ToolRuntime
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.errors import GraphBubbleUp
from langgraph.runtime import get_runtime
from langgraph.types import Command, interrupt
from pydantic import BaseModel, BeforeValidator, Field

from deepskills._catalog.catalog import SkillEntry
from deepskills._io.backends import is_backend, serves_skills
from deepskills._io.plan import Plan
from deepskills._loading import decisions as outcomes
from deepskills._loading.decisions import SkillCall, Unloaded, after_calls, decide_in_turn, decide_unload
from deepskills._middleware.config import Settings
from deepskills._middleware.extension import (
    LoadedSkill,
    Refuse,
    SkillExtension,
    SkillLoad,
    SkillRun,
    ToolResult,
    overrides,
)
from deepskills._middleware.extension_calls import (
    ExtensionRun,
    after_tool,
    before_load,
    before_tool,
    with_changes,
)
from deepskills._middleware.loading import Bundle, Wish, admit, bundle_of, prepare_in_turn, settle, tool_message
from deepskills._middleware.reporting import report
from deepskills._middleware.run import Run, Shelf, disclosed_skills
from deepskills._middleware.skill_tools import (
    READ_TOOL,
    Resolution,
    ToolSource,
    disclosed,
    include_names,
    resolved,
    tidy_path,
)
from deepskills._middleware.state import (
    LINGERING,
    MARK,
    Thread,
    merged,
    unload_mark,
    unload_update,
)
from deepskills._middleware.visibility import shelf_of
from deepskills._prompt.messages import (
    ARGUMENTS_DESCRIPTION,
    LOAD_DESCRIPTION,
    NAME_DESCRIPTION,
    UNLOAD_DESCRIPTION,
    Reply,
    call_refused,
    skill_tool_failed,
    tool_failed,
)

logger = logging.getLogger("deepskills")


LOAD_TOOL = "load_skill"
UNLOAD_TOOL = "unload_skill"
_KINDS: dict[str, Any] = {LOAD_TOOL: "load", UNLOAD_TOOL: "unload"}


@dataclass(frozen=True)
class Turn:
    """A call's turn: a key that its calls share, and the loads and unloads before this call."""

    key: Hashable = None
    earlier: Sequence[SkillCall] = ()


def turn_of(state: Mapping[str, Any], call_id: str | None, name: str, args: Mapping[str, Any]) -> Turn:
    """Return the turn of a call, with the loads and unloads that stand before it and are not answered yet.

    An answer that is there already was given in the place of a call, as when a human rejected it. A call that a human
    edited counts as edited; LangChain keeps the edits beside the messages. Calls that share an id cannot be told apart
    by it: then the one with these arguments is meant, and every other one counts as earlier.
    """
    message, answered = _turn_message(state.get("messages") or (), call_id)
    if message is None:
        return Turn()
    edits = _edits(state.get("hitl_edited_tool_calls"))
    # A human's edit replaces the call that will run, while the message keeps the one that the model made.
    made = [edits.get(call["id"] or "", call) if call["id"] else call for call in message.tool_calls]
    ids = [call["id"] for call in message.tool_calls]
    places = [place for place, known in enumerate(ids) if known == call_id]
    # The position is what all calls of a turn agree on; without one of its own, a call assumes that all others come
    # first, so that it claims too little room rather than too much.
    before = range(places[0]) if len(places) == 1 else _all_but(made, places, name, args)
    earlier = [
        SkillCall(_KINDS[call["name"]], asked, _text(call["args"].get("arguments")))
        for place in before
        if (call := made[place])["name"] in _KINDS
        and isinstance(asked := call["args"].get("skill_name"), str)
        # With shared ids an answer may belong to any of the calls, so none counts as answered.
        and (ids[place] not in answered or len(places) > 1)
    ]
    return Turn((message.id, len(ids)) if message.id else None, earlier)


def _edits(value: object) -> dict[str, Any]:
    """Return the calls that a human edited, by id; what is not a call, whoever wrote it, is set aside."""
    items = value if isinstance(value, Mapping) else {}
    return {
        call_id: call
        for call_id, call in items.items()
        if isinstance(call, Mapping) and isinstance(call.get("name"), str) and isinstance(call.get("args"), Mapping)
    }


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _turn_message(messages: Sequence[AnyMessage], call_id: str | None) -> tuple[AIMessage | None, set[str]]:
    """Return the model's message that makes a call, and the calls that were answered since."""
    answered: set[str] = set()
    for message in reversed(messages):
        if isinstance(message, ToolMessage):
            answered.add(message.tool_call_id)
        elif isinstance(message, AIMessage) and any(call["id"] == call_id for call in message.tool_calls):
            return message, answered
    return None, answered


def _all_but(made: Sequence[Any], places: Sequence[int], name: str, args: Mapping[str, Any]) -> list[int]:
    """Return every call of a turn except the one that is meant: the first with this name and these arguments."""
    # LangGraph injects `runtime`; the model's message does not have it.
    given = {key: value for key, value in args.items() if key != "runtime"}
    own = next((p for p in places if made[p]["name"] == name and _same(made[p]["args"], given)), places[-1])
    # Exact twins are left out on both sides. If each counted the other as earlier, neither would load the skill.
    alike = {p for p in places if made[p]["name"] == name and _same(made[p]["args"], given)} | {own}
    return [place for place in range(len(made)) if place not in alike]


def _same(asked: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    return all(asked.get(key, "") == value for key, value in given.items())


# The tools `load_skill` and `unload_skill`: calls to plans, outcomes to `Command`s and messages.


def _as_text(value: object) -> object:
    """Read what a model gives for no arguments as none."""
    # Some models send `null` for a parameter that they leave out.
    return "" if value is None else value


class UnloadArguments(BaseModel):
    """Arguments of `unload_skill`."""

    skill_name: str = Field(description=NAME_DESCRIPTION)


class LoadArguments(UnloadArguments):
    """Arguments of `load_skill`."""

    arguments: Annotated[str, BeforeValidator(_as_text)] = Field(default="", description=ARGUMENTS_DESCRIPTION)


class SkillTools:
    """Makes the tools for one middleware."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def all(self) -> list[BaseTool]:
        """Return the tools."""
        return [
            self._tool(LOAD_TOOL, LOAD_DESCRIPTION, LoadArguments, self._load),
            self._tool(UNLOAD_TOOL, UNLOAD_DESCRIPTION, UnloadArguments, self._unload),
        ]

    def _tool(
        self, name: str, description: str, schema: type[BaseModel], plan: Callable[..., Plan[ToolResult]]
    ) -> BaseTool:
        """Return a tool whose sync and async calls perform the same plan."""
        settings = self._settings

        def call(skill_name: str, runtime: ToolRuntime[Any, Any], arguments: str = "") -> ToolResult:
            run = Run(settings, runtime.state, runtime)
            return run.perform(_guarded(plan(run, skill_name, arguments), name, skill_name, run))

        async def acall(skill_name: str, runtime: ToolRuntime[Any, Any], arguments: str = "") -> ToolResult:
            run = Run(settings, runtime.state, runtime)
            return await run.aperform(_guarded(plan(run, skill_name, arguments), name, skill_name, run))

        # Both tools share these functions; the explicit schema keeps `arguments` out of `unload_skill`'s.
        return StructuredTool.from_function(
            call, acall, name=name, description=description, args_schema=schema, infer_schema=False
        )

    def _load(self, run: Run, skill_name: str, arguments: str) -> Plan[ToolResult]:
        shelf = yield from shelf_of(run)
        entry = shelf.find(skill_name)
        if entry is None:
            return _refused(run, (yield from shelf.not_found(skill_name)))
        turn = _turn(run, LOAD_TOOL, {"skill_name": skill_name, "arguments": arguments})
        permit = _permit(entry, turn, shelf, run)
        if shelf.visibility(entry) == "user-only":
            if permit is None:
                return _refused(run, outcomes.UserOnly(entry))
            # The user's arguments win over the model's: the user started it, the model only carries it out.
            arguments = permit or arguments
        wish = Wish(entry, arguments)
        bundle = bundle_of(wish, shelf, run, _staying(turn, run))
        refused = yield from admit(bundle, run)
        if refused is not None:
            settled = yield from settle(bundle, outcomes.Prepared(entry, arguments), refused, run, LOAD_TOOL)
            return _result(settled.update, run)
        # The predecessors' files are read too: what they cost decides what is left (`after_calls`).
        earlier = _wished(turn, shelf, run)
        wishes = [each for other in (*earlier, bundle) for each in other.all]
        prepared = yield from prepare_in_turn(turn.key, wishes, run, own=wish.key)
        own, before, budgets = prepared[wish.key], run.thread.standing, run.settings.budgets
        # The file may have become the user's alone since it was listed.
        is_kept_from_models = own.entry.is_user_only and entry.name not in shelf.always
        if own.failure is None and is_kept_from_models and permit is None:
            return _refused(run, outcomes.UserOnly(entry))
        so_far = after_calls(turn.earlier, before, shelf.catalog, prepared, budgets, _along(earlier))
        required = [prepared[each.key] for each in bundle.required]
        outcome, loads = decide_in_turn(own, so_far, before, budgets, required)
        if isinstance(outcome, outcomes.AlreadyLoaded):
            outcome = _in_view_of(outcome, own, turn, run)
        settled = yield from settle(bundle, own, outcome, run, LOAD_TOOL, loads=loads)
        return _result(settled.update, run)

    def _unload(self, run: Run, skill_name: str, _arguments: str) -> Plan[ToolResult]:
        thread, standing = run.thread, run.thread.standing
        turn = _turn(run, UNLOAD_TOOL, {"skill_name": skill_name})
        # Without predecessors an unload needs no catalog and no I/O, so it works while the source is down.
        if turn.earlier:
            shelf = yield from shelf_of(run)
            earlier = _wished(turn, shelf, run)
            wishes = [each for bundle in earlier for each in bundle.all]
            prepared = yield from prepare_in_turn(turn.key, wishes, run)
            budgets, along = run.settings.budgets, _along(earlier)
            standing = after_calls(turn.earlier, standing, shelf.catalog, prepared, budgets, along).standing
        outcome: outcomes.Outcome = decide_unload(skill_name, standing)
        entry = None
        update: dict[str, Any] = {}
        # Perhaps it was only read by `read_file`, which discloses tools without loading anything.
        if isinstance(outcome, outcomes.NotLoaded):
            entry = (yield from shelf_of(run)).find(skill_name)
            if entry is not None and entry.name in thread.section("disclosed"):
                outcome = outcomes.ToolsWithdrawn(entry.name)
        message = tool_message(run, UNLOAD_TOOL, report(outcome, "model", run, entry))
        if isinstance(outcome, outcomes.Unloaded | outcomes.ToolsWithdrawn):
            message.additional_kwargs[MARK] = unload_mark(outcome.name)
            # Both kinds of unload take disclosed tools away; a skill can be loaded and read as a file.
            update = {"skills_context": {"disclosed": {outcome.name: None}}}
        if isinstance(outcome, outcomes.Unloaded):
            lingers = LINGERING if run.settings.unload_when == "cheap" else None
            update = merged(update, unload_update([outcome.name], thread.standing, lingers))
        return _result(merged(update, {"messages": [message]}), run)


def _turn(run: Run, tool: str, args: dict[str, Any]) -> Turn:
    """Return the turn of a call, identified by its step in its run: message ids may repeat between users."""
    turn = turn_of(run.state, run.runtime.tool_call_id, tool, args)
    # Without a checkpoint there is nothing that tells two runs with the same message ids apart, so readings are not
    # shared.
    checkpoint = getattr(getattr(run.runtime, "execution_info", None), "checkpoint_id", None)
    return replace(turn, key=(turn.key, checkpoint) if turn.key and checkpoint else None)


def _permit(entry: SkillEntry, turn: Turn, shelf: Shelf, run: Run) -> str | None:
    """Return the arguments of a user's start that permits one call by the model; `None` if there is none.

    It lasts until the user's next message, and only the first call of a turn gets it.
    """
    permitted = run.thread.permitted_arguments(entry.name)
    # The permit is for one start. Calls run in parallel and all see it, so only the first of the turn takes it.
    is_taken = any(call.kind == "load" and shelf.find(call.name) is entry for call in turn.earlier)
    return None if is_taken else permitted


def _wished(turn: Turn, shelf: Shelf, run: Run) -> list[Bundle]:
    """Return the loads earlier in a turn, each with what it brings along; those that are refused are left out."""
    loads = [(shelf.find_visible(call.name), call.arguments) for call in turn.earlier if call.kind == "load"]
    staying = _staying(turn, run)
    wished = [bundle_of(Wish(entry, arguments), shelf, run, staying) for entry, arguments in loads if entry is not None]
    return [bundle for bundle in wished if bundle.refusal is None]


def _along(bundles: Sequence[Bundle]) -> dict[str, list[str]]:
    """Return by skill which others its load brings along."""
    return {bundle.wish.entry.name: [each.entry.name for each in bundle.required] for bundle in bundles}


def _staying(turn: Turn, run: Run) -> Sequence[str]:
    """Return the loaded skills that no earlier call of the turn may have unloaded."""
    return () if any(call.kind == "unload" for call in turn.earlier) else run.thread.standing.loaded


def _in_view_of(outcome: outcomes.AlreadyLoaded, prepared: outcomes.Prepared, turn: Turn, run: Run) -> outcomes.Outcome:
    """Tell apart what stays loaded from before this turn from what only an earlier call of it may have loaded."""
    name = outcome.name
    # An unload earlier in the turn makes the load from before irrelevant, even if a sibling then loads it again.
    unloads = [call.name for call in turn.earlier if call.kind == "unload"]
    stays = name in run.thread.standing.loaded and all(
        isinstance(decide_unload(asked, run.thread.standing), outcomes.NotLoaded)
        or decide_unload(asked, run.thread.standing).name != name  # type: ignore[union-attr]
        for asked in unloads
    )
    if stays:
        return replace(outcome, crowded=outcome.crowded or run.thread.is_left_out(name))
    # Loaded by a sibling, as far as we know, but the file could not be read here: nobody can promise that the text is
    # there.
    if outcome.unchecked:
        return outcomes.Unreadable(prepared.entry, outcome.unchecked)
    return replace(outcome, by_sibling=True)


def _guarded(plan: Plan[ToolResult], tool: str, skill_name: str, run: Run) -> Plan[ToolResult]:
    """Turn an unexpected failure into an error message; a tool never raises."""
    try:
        return (yield from plan)
    except GraphBubbleUp:
        raise
    except Exception as error:
        logger.exception("%s failed for %r", tool, skill_name)
        return tool_message(run, tool, Reply(tool_failed(tool, skill_name, error), is_error=True))


def _refused(run: Run, outcome: outcomes.Refusal) -> ToolResult:
    """Answer a load of a skill that could not be prepared."""
    reply = report(outcome, "model", run, getattr(outcome, "entry", None))
    return _result({"messages": [tool_message(run, LOAD_TOOL, reply)]}, run)


def _result(update: dict[str, Any], run: Run) -> ToolResult:
    """Return a call's result with what extensions asked to change, and the problems that were found on the way."""
    whole = merged(update, run.collected, run.problems_update())
    # Where nothing changes in state, as in most refusals, the answer is a plain message.
    if whole.keys() == {"messages"}:
        [message] = whole["messages"]
        answer: ToolMessage = message
        return answer
    return Command(update=whole)


# --------------------------------------------------------------------------------------------------------------------
# One tool call with skills: a skill's own tools, and what extensions say of any call.
# --------------------------------------------------------------------------------------------------------------------


class CallRun(Run):
    """A tool call's run: loads and unloads that stand before it in its turn count as done."""

    def __init__(self, settings: Settings, request: ToolCallRequest) -> None:
        super().__init__(settings, request.state, request.runtime)
        self._call = request.tool_call

    @property
    def loaded(self) -> list[LoadedSkill]:
        """The skills in use once the earlier calls of the turn are done."""
        found = {skill.entry.name: skill for skill in super().loaded}
        standing = self.thread.standing
        own = self._call
        for call in turn_of(self.state, own["id"], own["name"], own["args"]).earlier:
            if call.kind == "unload":
                outcome = decide_unload(call.name, standing)
                # What this very turn loads is not unloaded again here: its limits are assumed to hold, whatever becomes
                # of the calls.
                if isinstance(outcome, Unloaded):
                    found.pop(outcome.name, None)
            elif (entry := self.known_shelf.find_visible(call.name)) is not None:
                skill = LoadedSkill(entry, call.arguments, "model", 0, is_recent=True)
                found.setdefault(entry.name, self.limited(skill))
        return list(found.values())


@dataclass(frozen=True)
class ToolCall:
    """A call that may run, and who looks at its result."""

    request: ToolCallRequest
    run: Run
    is_judged: bool
    """Whether an extension looks at this call."""

    discloses: SkillEntry | None = None
    """The skill whose tools become callable if this call, a `read_file`, succeeds."""

    def reviewed(self, result: ToolResult) -> Plan[ToolResult]:
        """Return the call's result after the extensions have seen it."""
        # A failed read has shown nothing.
        if self.discloses is not None and isinstance(result, ToolMessage) and result.status != "error":
            known = {"disclosed": {self.discloses.name: self.discloses.digest}}
            result = _with_update(result, {"skills_context": known})
        if not self.is_judged:
            return result
        seen = yield from after_tool(self.request, result, self.run)
        if isinstance(seen, Refuse):
            return _refusal(self.request, seen, self.run)
        return _with_update(seen, merged(self.run.collected, self.run.problems_update()))


def open_tool_call(request: ToolCallRequest, run: CallRun, source: ToolSource) -> Plan[ToolCall | ToolResult]:
    """Return a call that may run, with the tool it means; or the answer to one that may not."""
    settings = run.settings
    # Known without I/O, so that an agent whose extensions judge no calls pays nothing here.
    methods = ("before_tool", "after_tool")
    judging = [extension for extension in settings.extensions if not is_idle(extension, request, settings.own_tools)]
    is_judged = any(overrides(extension, method) for extension in judging for method in methods)
    if is_judged:
        yield from shelf_of(run)
        # Tools that a read disclosed are not of a skill in use: a policy judges them like any other.
        included = {name for entry in run.use.granting for name in include_names(entry)}
        run.tool_origins = disclosed(run.state)
        run.skill_tools = frozenset(tool for tool, name in run.tool_origins.items() if name in included)
        decision = yield from before_tool(request, run)
        if isinstance(decision, Refuse):
            return _refusal(request, decision, run)
    # After the judgement: a refused read discloses nothing.
    read = yield from _disclosing(request, run)
    name = yield from hidden_tool(request, run)
    if name is None:
        return ToolCall(request, run, is_judged, read)
    found = (yield from resolved(source, [name], get_runtime()))[name]
    return failed_call(request, found) or ToolCall(with_tool(request, found), run, is_judged, read)


def _disclosing(request: ToolCallRequest, run: Run) -> Plan[SkillEntry | None]:
    """Return the skill whose tools a `read_file` of its `SKILL.md` discloses, if every extension would let it load.

    Only a call that this hook sees counts: a pair of call and answer in the messages may be anybody's.
    """
    path = request.tool_call["args"].get("file_path")
    if request.tool_call["name"] != READ_TOOL or not isinstance(path, str):
        return None
    # Most agents have no skill with tools: the catalog tells that without asking anybody how visible skills are.
    catalog = yield from run.look.catalog(run.thread.catalog, run.state.get("skills_metadata"))
    read = tidy_path(path)
    entry = next((known for known in catalog.with_tools if tidy_path(known.path) == read), None)
    if entry is None or not entry.is_read or not (yield from shelf_of(run)).is_shown(entry):
        return None
    # Judged as a load would be. A skill that extensions refuse or answer otherwise brings no tools by a read either.
    load = SkillLoad(entry, "", "model", "", 0, (), run.runtime)
    decision = yield from before_load(load, run)
    return entry if decision is None else None


def _with_update(result: ToolResult, update: Mapping[str, Any]) -> ToolResult:
    """Return a tool's result with further changes of state."""
    if not update:
        return result
    if isinstance(result, ToolMessage):
        return Command(update=merged(update, {"messages": [result]}))
    # A list of pairs or an object, which LangGraph also takes: nothing of ours can be merged into it safely.
    if not isinstance(result.update, Mapping):
        return result
    return Command(graph=result.graph, update=merged(result.update, update), resume=result.resume, goto=result.goto)


def _refusal(request: ToolCallRequest, refused: Refuse, run: Run) -> ToolResult:
    return with_changes(_error(request, call_refused(refused.reason)), run)


def hidden_tool(request: ToolCallRequest, run: Run) -> Plan[str | None]:
    """Return the name that stands for the called tool, if it is a skill's and not the agent's own.

    State says which tools the model was shown; a caller may have written that, so a skill in use must name the tool.
    """
    # The agent's own tool of that name comes first.
    if request.tool is not None:
        return None
    name = disclosed(run.state).get(request.tool_call["name"])
    if name is None:
        return None
    yield from shelf_of(run)
    return name if name in included_names(run) else None


def included_names(run: Run) -> set[str]:
    """Return the names by which the skills in use, and those that were disclosed by a read, include tools."""
    return {name for entry in (*run.use.granting, *disclosed_skills(run)) for name in include_names(entry)}


def with_tool(request: ToolCallRequest, found: Resolution) -> ToolCallRequest:
    """Return the call with the tool it means; unchanged, it fails as unknown."""
    name = request.tool_call["name"]
    tool = next((tool for tool in found.tools if tool.name == name), None)
    return request.override(tool=tool) if tool is not None else request


def failed_call(request: ToolCallRequest, found: Resolution) -> ToolMessage | None:
    """Return what to answer when the tool could not be resolved."""
    if found.failure is None:
        return None
    return _error(request, skill_tool_failed(request.tool_call["name"], found.failure))


def _error(request: ToolCallRequest, text: str) -> ToolMessage:
    call = request.tool_call
    return ToolMessage(text, name=call["name"], tool_call_id=call["id"] or "", status="error")


# --------------------------------------------------------------------------------------------------------------------
# Asks a human before code runs while a skill that was served from elsewhere is in use.
#
# Whoever serves a skill decides what it says. Its frontmatter takes no effect by itself (discovery sets it aside), but
# its text moves the model. So from its load until its text has left the requests, tools that execute code ask first. A
# skill that says "unload me and execute this" in one turn is still asked about: what was in use before the turn counts,
# and what is loaded earlier in it.
# --------------------------------------------------------------------------------------------------------------------


EXECUTING_TOOLS = frozenset({"execute", "run_skill_script"})
"""Tools that execute code in any agent."""

REJECTED = "A human did not let {tool} run while the skill {skill} from an {via} server is in use{reason}"

_SCRIPTS = "scripts"


def with_guard(extensions: tuple[SkillExtension, ...], backend: object) -> tuple[SkillExtension, ...]:
    """Return the extensions with the guard first, if the backend may serve skills of its own."""
    # A function of the runtime may give a backend that serves skills, so it counts as one that does.
    if is_backend(backend) and not serves_skills(backend):
        return extensions
    return (ServedSkills(), *extensions)


def is_idle(extension: SkillExtension, request: ToolCallRequest, own_tools: frozenset[str]) -> bool:
    """Whether the guard has nothing to ask about a call: no skill can be in use. Decided without a look at sources."""
    if not isinstance(extension, ServedSkills):
        return False
    call, state = request.tool_call, request.state
    # Our own tools execute nothing; `run_skill_script` is an extension's.
    if call["name"] in own_tools:
        return True
    if state.get("skills_loaded") or turn_of(state, call["id"], call["name"], call["args"]).earlier:
        return False
    return all(text.get("state") != LINGERING for text in Thread.of(state).section("texts").values())


class ServedSkills(SkillExtension):
    """Asks a human before code is executed while a served skill is in use."""

    protective: ClassVar[bool] = True

    def before_tool(self, request: ToolCallRequest, run: SkillRun) -> Refuse | None:
        """Ask a human about a call that executes code, unless scripts were granted to every served skill in use."""
        # By `seen`, not by what is loaded: a skill that is unloaded in this very turn has already moved the model.
        in_use = {entry.name: entry for entry in cast("ExtensionRun", run).seen if entry.origin is not None}
        if not in_use or request.tool_call["name"] not in EXECUTING_TOOLS | run.executing_tools:
            return None
        asking = [entry for entry in in_use.values() if not self._is_granted(entry, run)]
        if not asking:
            return None
        answer = interrupt(_question(request, asking))
        # Anything but a clear "approve" is a refusal, even an answer of a shape that nobody foresaw.
        kind = answer.get("type") if isinstance(answer, Mapping) else None
        if kind == "approve":
            grants = answer.get("grants", ())
            if isinstance(grants, list | tuple | set | frozenset) and _SCRIPTS in grants:
                for entry in asking:
                    # What may change with every read cannot be known again.
                    if entry.origin is not None and not entry.origin["dynamic"]:
                        run.remember(_key(entry), entry.digest)
            return None
        message = answer.get("message") if kind == "reject" and isinstance(answer, Mapping) else None
        reason = f": {message}" if isinstance(message, str) and message else "."
        via = asking[0].origin["via"] if asking[0].origin is not None else ""
        return Refuse(REJECTED.format(tool=request.tool_call["name"], skill=asking[0].name, via=via, reason=reason))

    def _is_granted(self, entry: SkillEntry, run: SkillRun) -> bool:
        return run.memory.get(_key(entry)) == entry.digest or _SCRIPTS in cast("ExtensionRun", run).granted(entry)


def _key(entry: SkillEntry) -> str:
    origin = entry.origin or {"label": "", "uri": ""}
    return f"{_SCRIPTS}:{origin['label']}:{origin['uri']}"


def _question(request: ToolCallRequest, asking: Sequence[SkillEntry]) -> dict[str, Any]:
    skills = [
        {"name": entry.name, "label": origin["label"], "uri": origin["uri"], "digest": entry.digest}
        for entry in asking
        if (origin := entry.origin) is not None
    ]
    return {
        "type": "skill_execution",
        "tool": request.tool_call["name"],
        "arguments": request.tool_call["args"],
        "skill": asking[0].name,
        "skills": skills,
        "grants": [_SCRIPTS],
    }
