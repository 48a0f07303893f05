"""What can be said of an agent without running it: its skills, its tools, and settings that do not fit together.

`deepskills doctor --agent` shows it. No model is called. A compiled graph tells little of itself, so what cannot
be seen from outside is named in the result rather than passed over.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deepagents.middleware.filesystem import FilesystemMiddleware
from langgraph.pregel import Pregel
from langgraph.runtime import Runtime

from deepskills._catalog.catalog import SkillEntry, include_names
from deepskills._io.backends import can_execute, is_backend
from deepskills._middleware.chat_models import facts_of
from deepskills._middleware.config import CACHING_PROVIDERS, WINDOW_SHARE, Settings
from deepskills._middleware.middleware import SkillsMiddleware
from deepskills._middleware.run import Run
from deepskills._middleware.startup import find_out_of_reach
from deepskills._middleware.state import ModelFacts
from deepskills._middleware.visibility import find_view
from deepskills._middleware.workarounds import model_of_agent, owners_of_steps, owners_of_wrappers, workspace_of
from deepskills._skillmd.problems import SOURCE_ERRORS, listed, problem
from deepskills._skillmd.tools import DEFAULT_ALIASES, tool_of_rule
from deepskills._types import DEFAULT_LOADED_TOKENS, SkillProblem
from deepskills.extensions.checks import SkillChecks
from deepskills.extensions.tool_policy import ToolPolicy

SUMMARIZES_REQUESTS = "SummarizationMiddleware"
"""The name of deepagents' middleware that summarizes requests; skills must come after it."""

NEEDS_RUN = ("get_config", "get_runtime", "runnable context", "StateBackend", "StoreBackend", "graph execution context")
"""What an error says that is raised because there is no run; in a run it would not be."""


@dataclass(frozen=True)
class AgentParts:
    """What of an agent can be seen from outside."""

    middleware: Sequence[SkillsMiddleware[Any, Any]]
    tools: frozenset[str] | None = None
    """The names of its tools; `None` if they cannot be seen."""

    model: object = None
    order: Sequence[str] = ()
    """The middleware around a model call, the outermost first."""


@dataclass
class AgentDiagnosis:
    """What was found out about an agent; the fields are the JSON of `doctor --agent`."""

    agent: str
    middleware: list[str] = field(default_factory=list)
    """Where each `SkillsMiddleware` that was looked at was found."""

    order: Sequence[str] = ()
    """The middleware around a model call, the outermost first, as far as it can be seen."""

    tools: list[str] | None = None
    """The agent's tools; `None` if they cannot be seen."""

    provider: str = ""
    window: int | None = None
    sources: list[str] = field(default_factory=list)
    skills: list[str] = field(default_factory=list)
    """What the model sees."""

    user_only: list[str] = field(default_factory=list)
    problems: list[SkillProblem] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    """What could not be looked at, and why."""


def take_apart(agent: object) -> AgentParts | None:
    """Return the parts of a compiled agent or a middleware; `None` for anything else."""
    if isinstance(agent, SkillsMiddleware):
        return AgentParts([agent])
    # What `with_config` and the like wrap around an agent.
    graph = agent if isinstance(agent, Pregel) else getattr(agent, "bound", None)
    if not isinstance(graph, Pregel):
        return None
    around = owners_of_wrappers(graph)
    found = {id(each): each for each in (*owners_of_steps(graph), *around) if isinstance(each, SkillsMiddleware)}
    node = graph.nodes.get("tools")
    tools = getattr(getattr(node, "bound", None), "tools_by_name", None)
    names = _find_offered(tools) if isinstance(tools, Mapping) else None
    order = [str(getattr(each, "name", type(each).__name__)) for each in around]
    return AgentParts(list(found.values()), names, model_of_agent(graph), order)


def _find_offered(tools: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the tools that go to the model: deepagents withholds its `execute` without a shell."""
    shell = getattr(tools.get("execute"), "func", None)
    workspace = workspace_of(tools.values())
    is_withheld = is_backend(workspace) and not can_execute(workspace)
    if is_withheld and getattr(shell, "__module__", "") == FilesystemMiddleware.__module__:
        return frozenset(tools) - {"execute"}
    return frozenset(tools)


def diagnose(parts: AgentParts, found: AgentDiagnosis) -> None:
    """Look at an agent's sources and settings, without a model and without a run, and add what is found."""
    if not parts.middleware:
        found.problems.append(problem("agent", "agent-without-skills"))
        return
    if parts.tools is None:
        found.unseen.append("The agent's tools, so the tools that skills name were not compared with them.")
    elif "task" in parts.tools:
        found.unseen.append("The sub-agents of the tool `task`; diagnose each on its own.")
    if parts.model is None:
        found.unseen.append("The agent's model, so prompt caches and its window were not considered.")
    if SUMMARIZES_REQUESTS in parts.order and "SkillsMiddleware" in parts.order:
        places = {name: place for place, name in enumerate(parts.order)}
        if places[SUMMARIZES_REQUESTS] > places["SkillsMiddleware"]:
            found.problems.append(problem("middleware", "middleware-order"))
    for middleware in parts.middleware:
        _look_at(middleware, parts, found)
    distinct = {(each["path"], each["code"], each["message"]): each for each in found.problems}
    found.problems = list(distinct.values())


def _look_at(middleware: SkillsMiddleware[Any, Any], parts: AgentParts, found: AgentDiagnosis) -> None:
    settings = middleware._settings  # noqa: SLF001 - of this package
    conflict = middleware._conflict  # noqa: SLF001 - of this package
    if conflict:
        found.problems.append(problem("middleware", "agent-conflict", reason=conflict.rstrip(".")))
    runtime: Any = Runtime()
    run = Run(settings, {}, runtime)
    facts = facts_of(parts.model, run.thread)
    found.provider, found.window = facts.provider, facts.window
    found.problems += _judge_settings(settings, facts)
    found.sources += [source.path for source in settings.fixed_sources or ()]
    if settings.varies_by_user:
        found.unseen.append("What a run with a context of its own finds: `sources` or `backend` is a function.")
    try:
        view = run.perform(find_view(run))
        out_of_reach = find_out_of_reach(run)
    # Backends, providers and rules are the application's own.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        found.unseen.append(f"The skills: {type(error).__name__}: {error}")
        return
    for noted in (*view.problems, *run.list_new_problems()):
        depends = noted["code"] in SOURCE_ERRORS and any(sign in noted["message"] for sign in NEEDS_RUN)
        if depends or (noted["code"] == "sources-failed" and settings.varies_by_user):
            found.unseen.append(f"{noted['path']}, which only a run can read: {noted['message']}")
        else:
            found.problems.append(noted)
    found.problems += out_of_reach
    found.skills += [entry.name for entry in view.visible]
    found.user_only += [name for name, how in view.hidden.items() if how == "user-only"]
    if parts.tools is not None:
        own = middleware._tool_source  # noqa: SLF001 - of this package
        policies = [each for each in settings.extensions if isinstance(each, ToolPolicy)]
        aliases = policies[0].aliases if policies else DEFAULT_ALIASES
        checks = [each for each in settings.extensions if isinstance(each, SkillChecks)]
        for entry in view.existing:
            checked = [tool for each in checks for tool in each.named_tools(entry)]
            found.problems += _judge_tools(entry, parts.tools, own.known_names, aliases, checked)


def _judge_settings(settings: Settings, facts: ModelFacts) -> Iterator[SkillProblem]:
    """Yield what is wrong with settings that fail no check of their own."""
    marks = settings.loaded_status == "system_prompt"
    if marks and facts.provider in CACHING_PROVIDERS:
        yield problem("loaded_status", "cache-broken", provider=facts.provider)
    if marks and settings.unload_when == "cheap":
        yield problem("unload_when", "unload-cheap-in-vain")
    budget, window = settings.budgets.tokens, facts.window
    # The default follows the window by itself.
    if window is not None and budget != DEFAULT_LOADED_TOKENS and (budget is None or budget > window // WINDOW_SHARE):
        fitting = window // WINDOW_SHARE
        yield problem("max_loaded_tokens", "budget-over-window", budget=budget, window=window, fitting=fitting)


def _judge_tools(
    entry: SkillEntry,
    tools: frozenset[str],
    brought: frozenset[str] | None,
    aliases: Mapping[str, str],
    checked: Sequence[str],
) -> Iterator[SkillProblem]:
    """Yield the tools that a skill names and the agent lacks; `brought` is `None` where a function makes them."""
    allowed = list(map(tool_of_rule, entry.skill["allowed_tools"]))
    included = include_names(entry)
    may_bring = frozenset(included) if brought is None else brought
    for key, names in (("allowed-tools", allowed), ("metadata.include_tools", included), ("checks", checked)):
        known = tools | may_bring
        missing = [name for name in names if name and "*" not in name and not {name, aliases.get(name)} & known]
        if missing:
            yield problem(entry.path, "agent-lacks-tools", names=listed(missing), key=key)
