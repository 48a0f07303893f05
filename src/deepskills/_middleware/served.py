"""Asks a human before code runs while a skill that was served from elsewhere is in use.

Whoever serves a skill decides what it says. Its frontmatter takes no effect by itself (discovery sets it aside), but
its text moves the model. So from its load until its text has left the requests, tools that execute code ask first.
A skill that says "unload me and execute this" in one turn is still asked about: what was in use before the turn counts,
and what is loaded earlier in it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

from langchain.agents.middleware.types import ToolCallRequest
from langgraph.types import interrupt

from deepskills._catalog.entries import SkillEntry
from deepskills._io.backends import is_backend
from deepskills._io.served import serves_skills
from deepskills._middleware.extension import Refuse, SkillExtension, SkillRun
from deepskills._middleware.extension_calls import ExtensionRun
from deepskills._middleware.state import LINGERING, Thread
from deepskills._middleware.tools import turn_of

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
