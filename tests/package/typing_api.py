"""Every public name, used as a user would: type checkers must accept this file, and tests run it.

A list of different middleware needs the annotation that is shown here: type checkers cannot guess which type of
`AgentMiddleware` its members have in common.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from deepagents import create_deep_agent
from deepagents.backends import FilesystemBackend
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, TodoListMiddleware
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from typing_extensions import override

from deepskills import (
    MAX_SKILL_FILE_SIZE,
    RESOURCE_TYPE_MAP,
    SKILLS_SYSTEM_PROMPT,
    Answer,
    CustomEvent,
    FileDigest,
    InlineBackend,
    InlineSkill,
    LoadedSkill,
    ModelCallReport,
    NamespacedSource,
    OpenCheck,
    OptionalSource,
    PluginSource,
    ProvidedFile,
    ProvidedSkill,
    Refuse,
    ResourceMetadata,
    SendBack,
    SkillChecked,
    SkillCost,
    SkillEntry,
    SkillEvent,
    SkillExplanation,
    SkillExtension,
    SkillFile,
    SkillFileNotFoundError,
    SkillForked,
    SkillFormatError,
    SkillLeftOut,
    SkillLoad,
    SkillLoaded,
    SkillManifest,
    SkillMetadata,
    SkillMissed,
    SkillNotFoundError,
    SkillPathError,
    SkillProblem,
    SkillProvider,
    SkillReading,
    SkillReattached,
    SkillRefused,
    SkillRun,
    SkillScriptRun,
    SkillSentBack,
    SkillsError,
    SkillShadow,
    SkillsManager,
    SkillsMiddleware,
    SkillSource,
    SkillsState,
    SkillsStateUpdate,
    SkillStage,
    SkillUnchecked,
    SkillUnloaded,
    Visibility,
    generate_skill_md,
    parse_skill_md,
    read_skill,
    validate_skill,
)
from deepskills.testing import Reply, ScriptedChatModel, call_tools


class Ledger(SkillExtension):
    """An extension of a user's own: refuses what costs too much, and counts loads."""

    host: SkillsMiddleware[Any, Any] | None = None
    tokens: int = 0
    seconds: float = 0.0

    def __init__(self) -> None:
        self.reasons: list[str | None] = []

    @override
    def attach(self, host: SkillsMiddleware[Any, Any]) -> None:
        self.host = host

    @override
    def visibility(self, skills: Sequence[SkillEntry], run: SkillRun) -> Mapping[str, Visibility]:
        return {entry.name: "name-only" for entry in skills if entry.source == "/trial"}

    @override
    def before_load(self, load: SkillLoad, run: SkillRun) -> Refuse | Answer | None:
        if load.tokens > 10_000:
            return Refuse("It is too large.")
        in_use: Sequence[LoadedSkill] = run.loaded
        if any(skill.entry.name == "exclusive" for skill in in_use):
            return Answer("Finish the other work first.", is_error=True)
        run.remember("loads", run.memory.get("loads", 0) + 1)
        return None

    @override
    def after_model(self, report: ModelCallReport, run: SkillRun) -> None:
        run.remember("shown", sorted(report.shown))

    @override
    async def before_file(self, file: SkillFile, run: SkillRun) -> Refuse | None:
        reviewed: SkillManifest = await run.manifest(file.entry)
        found: FileDigest | None = reviewed.files.get(file.path)
        return Refuse(f"Nobody reviewed {file.path}.") if found is None or not found.size else None

    @override
    def before_end(self, run: SkillRun) -> SendBack | None:
        return SendBack("Count the fields again.") if run.memory.get("loads") == 0 else None

    @override
    def open_checks(self, run: SkillRun) -> list[OpenCheck]:
        return [OpenCheck(skill.entry.name, "counted", "Count the fields.") for skill in run.loaded]

    @override
    def on_event(self, event: SkillEvent, runtime: object) -> None:
        match event:
            case SkillLoaded() | SkillReattached() | SkillLeftOut():
                self.tokens += event.tokens
            case SkillRefused() | SkillUnloaded():
                self.reasons.append(event.reason)
            case SkillScriptRun() | SkillForked():
                self.seconds += event.seconds
            case SkillCost():
                self.tokens += event.tokens_in
            case SkillChecked():
                self.reasons.append(f"{event.check} {event.status}")
            case SkillUnchecked():
                self.reasons += event.checks
            case SkillSentBack() | SkillMissed() | SkillShadow() | CustomEvent():
                self.reasons.append(str(event.as_dict()["type"]))


class Hub(SkillProvider):
    """Skills from elsewhere."""

    label = "Hub"

    def list_skills(self, runtime: Any) -> list[ProvidedSkill]:  # noqa: ARG002
        """Return what there is."""
        return [ProvidedSkill("a", "a", "Does a.", frontmatter={"license": "MIT"})]

    async def read_skill(self, skill: ProvidedSkill, runtime: Any) -> bytes:  # noqa: ARG002
        """Return a text."""
        return skill.name.encode()

    def list_files(self, skill: ProvidedSkill, runtime: Any) -> list[ProvidedFile]:  # noqa: ARG002
        """Return what else there is."""
        return [ProvidedFile("a.txt", size=1)]


class AuditedSkills(SkillsMiddleware[Any, Any]):
    """A subclass with state of its own."""

    state_schema = SkillsState


def files(folder: Path) -> list[str]:
    """Write, read and check a skill file."""
    text: str = generate_skill_md("pdf-forms", "Fill PDF forms.", "# PDF forms\n", {"license": "MIT"})
    reading: SkillReading = read_skill(text, path="/skills/pdf-forms/SKILL.md")
    metadata: SkillMetadata | None = reading.metadata
    problems: list[SkillProblem] = validate_skill(text, path="/skills/pdf-forms/SKILL.md")
    _frontmatter, body = parse_skill_md(text)
    target = folder / "skills" / "pdf-forms" / "SKILL.md"
    target.parent.mkdir(parents=True)
    target.write_text(text, encoding="utf-8")
    codes = [problem["code"] for problem in [*problems, *reading.problems]]
    return [body, *([metadata["name"]] if metadata else []), *codes]


def errors(manager: SkillsManager) -> list[str]:
    """Catch what a manager raises, from the particular to the general."""
    said: list[str] = []
    for skill, path in (("pdf-forms", "../secret"), ("pdf-forms", "assets/none"), ("none", "assets/none")):
        try:
            manager.get_skill_asset(skill, path)
        except SkillFileNotFoundError as error:
            said.append(f"absent: {error}")
        except SkillPathError as error:
            said.append(f"refused: {error}")
        except (SkillNotFoundError, SkillFormatError) as error:
            said.append(f"no skill: {error}")
        except SkillsError as error:
            said.append(f"failed: {error}")
    return said


def readme() -> None:
    """Do what the README shows, line by line: its first code passes type checkers as it stands."""
    backend = FilesystemBackend(root_dir=".", virtual_mode=True)
    skills = SkillsMiddleware(backend=backend, sources=["/skills"])
    agent = create_deep_agent("anthropic:claude-sonnet-5", backend=backend, middleware=[skills])
    result = agent.invoke({"messages": [{"role": "user", "content": "Write the release notes."}]})
    print(result["messages"][-1].text)  # noqa: T201 - as the README has it


def agents(folder: Path) -> tuple[list[str], list[str]]:
    """Build an agent of each kind, with skills beside other middleware, and run one."""
    backend = FilesystemBackend(root_dir=folder, virtual_mode=True)
    plugin = NamespacedSource("/plugin", "plugin")
    bundle = PluginSource("/bundle", label="Bundle")
    sources: list[SkillSource] = ["/skills", ("/team", "Team"), OptionalSource("/trial"), plugin, bundle, Hub()]
    replies: list[Reply] = [call_tools(("load_skill", {"skill_name": "pdf-forms"})), "Done."]
    model = ScriptedChatModel(replies=replies)
    skills = SkillsMiddleware(
        backend=backend,
        sources=sources,
        system_prompt=SKILLS_SYSTEM_PROMPT,
        extensions=[Ledger()],
        loaded_status="conversation",
    )

    middleware: list[AgentMiddleware[Any, Any, Any]] = [TodoListMiddleware(), skills]
    agent = create_agent(model, middleware=middleware, checkpointer=InMemorySaver())
    thread: RunnableConfig = {"configurable": {"thread_id": "one"}}
    agent.invoke({"messages": [HumanMessage("Fill the form.")]}, thread)
    state: dict[str, Any] = agent.get_state(thread).values
    explained: list[SkillExplanation] = skills.explain(state)
    stages: list[SkillStage] = [explanation.stages["loaded"] for explanation in explained]
    assert stages

    made = InlineBackend([InlineSkill("greeting", "Greet.", lambda: "# Hello\n", {"assets/a.txt": "a"}, license="MIT")])
    create_agent(model, middleware=[SkillsMiddleware(backend=made, sources=["/"])])
    create_deep_agent(model=model, backend=backend, middleware=[AuditedSkills(backend=backend, sources=["/skills"])])
    agent.invoke(question(), thread)
    messages: list[BaseMessage] = state["messages"]
    return [message.text for message in messages if isinstance(message, AIMessage)], loaded(state)


@dataclass
class Context:
    """Who a run is for."""

    user: str


def per_user(folder: Path) -> str:
    """Give each user their own skills, by a context that type checkers know."""
    backend = FilesystemBackend(root_dir=folder, virtual_mode=True)
    skills = SkillsMiddleware[Context](backend=backend, sources=lambda runtime: [f"/{runtime.context.user}/skills"])
    model = ScriptedChatModel(replies=[])
    agent = create_agent(model, middleware=[skills], context_schema=Context)
    agent.invoke({"messages": [{"role": "user", "content": "Hello."}]}, context=Context("ada"))
    return model.requests[0].system


class Question(TypedDict):
    """What an application sends besides messages, as the page on migrating shows it."""

    messages: list[AnyMessage | dict[str, Any]]
    pinned_skills: list[str]


def question() -> Question:
    """Ask with a pinned skill."""
    question: Question = {
        "messages": [{"role": "user", "content": "Hello."}],
        "pinned_skills": ["csv-report"],
    }
    return question


def loaded(state: Mapping[str, Any]) -> list[str]:
    """Read what a thread's state says of skills."""
    found: SkillsStateUpdate = {"skills_metadata": state["skills_metadata"]}
    resources: dict[str, list[ResourceMetadata]] = state.get("skill_resources", {})
    return [*(skill["name"] for skill in found["skills_metadata"] or ()), *resources]


def limits() -> tuple[int, list[str]]:
    """Read the limits and the standard directories that applications hold on to."""
    largest: int = MAX_SKILL_FILE_SIZE
    return largest, [directory for directory, kind in RESOURCE_TYPE_MAP.items() if kind == "script"]
