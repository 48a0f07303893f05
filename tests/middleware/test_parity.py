"""deepagents' own class and ours, driven through the same scenarios: the same wherever both should agree."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, get_type_hints

import deepagents.middleware.skills as upstream
import pytest
from deepagents.backends import FilesystemBackend, StateBackend
from deepagents.backends.protocol import FileDownloadResponse
from deepagents.middleware import FilesystemMiddleware
from deepagents.middleware.skills import SkillsMiddleware as DeepAgentsSkillsMiddleware
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langchain_core.tools import BaseTool, tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import Field

from deepskills import SkillsMiddleware, SkillsState
from deepskills.testing import Reply, Request, ScriptedChatModel, call_tools
from support import FakeBackend, Mode, both_modes, disk, pin_skills, run, skill_md, state_files, unlisted, write_files

Files: TypeAlias = Mapping[str, str]

CLASSES: tuple[Any, Any] = (DeepAgentsSkillsMiddleware, SkillsMiddleware)
"""deepagents' class, then ours."""

OURS_ALONE = ("load_skill", "unload_skill")
SHARED_STATE = ("skills_metadata", "skills_load_errors", "pinned_skills", "_skill_tools_disclosed")
TEMPLATE = "Where:\n{skills_locations}{skills_load_warnings}\nWhich {{braces}}:\n<list>{skills_list}</list>\nEnd."
_LIST = re.compile(r"<list>.*</list>", re.DOTALL)
_PINNED_TEXT = re.compile(r"<skill(_content|) name=.*</skill\1>.*", re.DOTALL)


@tool
def ping(text: str) -> str:
    """Answer a ping."""
    return f"pong {text}"


@tool
def echo(text: str) -> str:
    """Repeat a text."""
    return f"echo {text}"


@tool("ping")
def other_ping(text: str) -> str:
    """Answer a ping in another way."""
    return f"other {text}"


@dataclass(frozen=True)
class Step:
    """One run: what goes in beside the user's message, what the model says, and what happens to files before."""

    given: Mapping[str, Any]
    replies: Sequence[Reply] = ()
    files: Files | None = None


def step(*replies: Reply, files: Files | None = None, **given: Any) -> Step:
    """Return a run."""
    return Step(given, replies, files)


@dataclass(frozen=True)
class Seen:
    """What the model was sent, and what state held after each run."""

    requests: list[Request]
    states: list[dict[str, Any]]

    def messages(self) -> list[list[tuple[str, Any, Any]]]:
        """Return the conversation of each request: type, content and marks of each message, pins worded alike."""
        return [
            [_comparable(message) for message in request.messages if message.type != "system"]
            for request in self.requests
        ]

    def tools(self) -> list[list[str]]:
        """Return the tools of each request, without those that only ours has."""
        return [[name for name in request.tools if name not in OURS_ALONE] for request in self.requests]

    def state(self, *keys: str) -> list[dict[str, Any]]:
        """Return parts of the state after each run."""
        return [{key: values.get(key) for key in keys} for values in self.states]


def _comparable(message: BaseMessage) -> tuple[str, Any, Any]:
    extra = {key: value for key, value in message.additional_kwargs.items() if key != "deepskills"}
    content = message.text.replace(f", {', '.join(OURS_ALONE)}", "")
    if extra.get("lc_source") == "pinned_skill":
        content = _PINNED_TEXT.sub("[pinned]", content)
    return message.type, content, extra


def drive(
    mode: Mode,
    root: Path,
    middleware: AgentMiddleware[Any, Any],
    steps: Sequence[Step],
    own: Sequence[BaseTool] = (),
    **options: Any,
) -> Seen:
    """Run an agent with file tools and one skills middleware through the steps, on one thread."""
    model = ScriptedChatModel(replies=[])
    files = FilesystemMiddleware[Any, Any](backend=disk(root))
    agent: Any = create_agent(
        model, tools=list(own), middleware=[files, middleware], checkpointer=InMemorySaver(), **options
    )
    config = {"configurable": {"thread_id": "parity"}}
    states: list[dict[str, Any]] = []
    for taken in steps:
        write_files(root, taken.files or {})
        model.replies = [*(["."] * len(model.requests)), *taken.replies]
        run(mode, agent, {"messages": [HumanMessage("go")], **taken.given}, config)
        states.append(agent.get_state(config).values)
    return Seen(model.requests, states)


def both(
    mode: Mode, root: Path, steps: Sequence[Step], own: Sequence[BaseTool] = (), **options: Any
) -> tuple[Seen, Seen]:
    """Drive deepagents' class and ours through the same steps, each on files of its own."""
    seen = []
    for number, kind in enumerate(CLASSES):
        place = root / str(number)
        place.mkdir()
        given = {"sources": ["/skills"], **options}
        seen.append(drive(mode, place, kind(backend=disk(place), **given), steps, own))
    return seen[0], seen[1]


# --- the catalog -------------------------------------------------------------------------------------------------


def with_frontmatter(*lines: str, body: str = "# Body\n") -> str:
    """Return a `SKILL.md` with these lines between its fences."""
    return "\n".join(["---", *lines, "---", body])


WELL_FORMED: dict[str, Files] = {
    "generated": {f"skills/{name}/SKILL.md": skill_md(name) for name in ("beta", "alpha", "gamma")},
    "every-field": {
        "skills/alpha/SKILL.md": with_frontmatter(
            "name: alpha",
            "description: Does things.",
            "license: MIT",
            "compatibility: Python 3.11 or later",
            "metadata:",
            "  author: someone",
            '  version: "1.10"',
            "allowed-tools: read_file write_file",
        )
    },
    "quoted": {
        "skills/alpha/SKILL.md": with_frontmatter(
            "name: 'alpha'", 'description: "Reads: this, \\"that\\" and # more."', "license: 'Apache-2.0'"
        )
    },
    "folded": {
        "skills/alpha/SKILL.md": with_frontmatter(
            "name: alpha", "description: >-", "  Reads this", "  and that.", "license: MIT"
        )
    },
    "plain-over-two-lines": {
        "skills/alpha/SKILL.md": with_frontmatter("name: alpha", "description: Reads this", "  and that.")
    },
    "other-scripts": {
        "skills/周报/SKILL.md": with_frontmatter("name: 周报", "description: 写周报。", "license: 专有"),
        "skills/über-tool/SKILL.md": with_frontmatter("name: über-tool", "description: Für alles – ½ €."),
    },
    "allowed-tools": {
        "skills/a/SKILL.md": with_frontmatter("name: a", "description: d", "allowed-tools: one two three"),
        "skills/b/SKILL.md": with_frontmatter("name: b", "description: d", "allowed-tools: one, two,three"),
        "skills/c/SKILL.md": with_frontmatter("name: c", "description: d", "allowed-tools:", "  - one", "  - two"),
        "skills/d/SKILL.md": with_frontmatter("name: d", "description: d", "allowed-tools: [one, two]"),
        "skills/e/SKILL.md": with_frontmatter("name: e", "description: d", "allowed-tools:"),
    },
    "metadata": {
        "skills/a/SKILL.md": with_frontmatter("name: a", "description: d", "metadata:", "  number: 7", "  text: t"),
        "skills/b/SKILL.md": with_frontmatter("name: b", "description: d", "metadata: none of it"),
        "skills/c/SKILL.md": with_frontmatter("name: c", "description: d", "metadata: {}"),
        "skills/d/SKILL.md": with_frontmatter("name: d", "description: d", "metadata:", "  include_tools: one two"),
    },
    "further-keys": {
        "skills/alpha/SKILL.md": with_frontmatter("name: alpha", "description: d", "version: 2", "tags: [a, b]")
    },
    "carriage-returns": {
        "skills/alpha/SKILL.md": with_frontmatter("name: alpha", "description: Does things.").replace("\n", "\r\n")
    },
    "spaces-after-fences": {"skills/alpha/SKILL.md": "---  \nname: alpha\ndescription: d\n---  \n\n# Body\n"},
    "name-of-another-directory": {
        "skills/here/SKILL.md": with_frontmatter("name: elsewhere", "description: d"),
        "skills/Upper/SKILL.md": with_frontmatter("name: Upper", "description: d"),
    },
    "too-long": {
        "skills/alpha/SKILL.md": with_frontmatter(
            "name: alpha", f"description: {'d' * 1500}", f"compatibility: {'c' * 700}"
        )
    },
    "unusable-beside-usable": {
        "skills/alpha/SKILL.md": with_frontmatter("name: alpha", "description: d"),
        "skills/bare/SKILL.md": "# No frontmatter\n",
        "skills/list/SKILL.md": with_frontmatter("- one", "- two"),
        "skills/silent/SKILL.md": with_frontmatter("name: silent"),
        "skills/empty/notes.txt": "no skill",
        "skills/README.md": "a file, no directory",
        "skills/deep/down/below/SKILL.md": with_frontmatter("name: below", "description: d"),
        "skills/lower/skill.md": with_frontmatter("name: lower", "description: d"),
    },
}


def catalogs(mode: Mode, files: Files, sources: Sequence[Any], root: Path | None) -> list[dict[str, Any]]:
    """Return catalog and errors of both classes, from disk below `root` or from an agent's own files."""
    found = []
    for kind in CLASSES:
        backend = StateBackend() if root is None else disk(root)
        agent: Any = create_agent(
            ScriptedChatModel(replies=[]),
            middleware=[FilesystemMiddleware(backend=backend), kind(backend=backend, sources=sources)],
            checkpointer=InMemorySaver(),
        )
        config = {"configurable": {"thread_id": "catalog"}}
        given: dict[str, Any] = {"messages": [HumanMessage("go")]}
        if root is None:
            given["files"] = state_files({f"/{path}": text for path, text in files.items()})
        run(mode, agent, given, config)
        values = agent.get_state(config).values
        found.append({key: values[key] for key in ("skills_metadata", "skills_load_errors")})
    return found


@pytest.mark.parametrize("files", WELL_FORMED.values(), ids=WELL_FORMED.keys())
def test_skills_on_disk_have_the_same_catalog(mode: Mode, tmp_path: Path, files: Files) -> None:
    """Names, order and every field are the same, and neither class has an error."""
    write_files(tmp_path, files)

    theirs, ours = catalogs(mode, files, ["/skills"], tmp_path)

    assert ours == theirs
    assert theirs["skills_metadata"]
    assert theirs["skills_load_errors"] == []


SOURCES: dict[str, list[Any]] = {
    "one": ["/base"],
    "slash-at-the-end": ["/base/"],
    "later-wins": ["/base", "/user"],
    "other-order": ["/user", "/base"],
    "three": ["/base", "/user/", ("/team", "Team")],
    "three-in-other-order": ["/team", "/base", "/user"],
    "empty-source": ["/base", "/nothing"],
    "no-skill-at-all": ["/nothing"],
    "none": [],
}

LAYERS: Files = {
    "base/alpha/SKILL.md": skill_md("alpha", "From base."),
    "base/beta/SKILL.md": skill_md("beta", "From base."),
    "base/gamma/SKILL.md": skill_md("gamma", "From base."),
    "user/beta/SKILL.md": skill_md("beta", "From user."),
    "user/delta/SKILL.md": skill_md("delta", "From user."),
    "team/gamma/SKILL.md": skill_md("gamma", "From team."),
    "team/beta/SKILL.md": skill_md("beta", "From team."),
    "team/aaa/SKILL.md": skill_md("aaa", "From team."),
    "nothing/notes.txt": "no skill here",
}


@pytest.mark.parametrize(
    ("place", "name"),
    [*[("disk", name) for name in SOURCES], *[("state", name) for name in ("other-order", "three", "no-skill-at-all")]],
)
def test_layered_sources_give_the_same_catalog(mode: Mode, tmp_path: Path, place: str, name: str) -> None:
    """Which skill wins, and where it stands, is the same on either backend."""
    write_files(tmp_path, LAYERS)

    theirs, ours = catalogs(mode, LAYERS, SOURCES[name], tmp_path if place == "disk" else None)

    assert ours == theirs
    assert theirs["skills_load_errors"] == []


@pytest.mark.parametrize("sources", [["/missing", "/base"], ["/base", "/missing"]], ids=["first", "last"])
def test_a_missing_source_costs_no_other(mode: Mode, tmp_path: Path, sources: list[str]) -> None:
    """Both classes go on with the sources that are there."""
    write_files(tmp_path, LAYERS)

    theirs, ours = catalogs(mode, LAYERS, sources, tmp_path)

    assert ours["skills_metadata"] == theirs["skills_metadata"]
    assert [skill["name"] for skill in ours["skills_metadata"]] == ["alpha", "beta", "gamma"]


class Peculiar(FilesystemBackend):
    """A backend that answers in a way of its own, which deepagents' class takes."""

    def __init__(self, root: Path, way: str) -> None:
        super().__init__(root_dir=root, virtual_mode=True)
        self._way = way

    def ls(self, path: str) -> Any:
        found = super().ls(path)
        return tuple(found.entries or ()) if self._way == "tuples" else found

    def download_files(self, paths: list[str]) -> Any:
        answers = [self._answer(found) for found in super().download_files(paths)]
        return tuple(answers) if self._way == "tuples" else answers

    def _answer(self, found: FileDownloadResponse) -> FileDownloadResponse:
        path: str = found.path.lstrip("/") if self._way == "other-paths" else found.path
        content: Any = bytearray(found.content) if self._way == "bytearray" and found.content else found.content
        error: Any = {"other-words": "NoSuchKey: 404 Not Found", "no-words": None}.get(self._way, found.error)
        return FileDownloadResponse(path, content, error if found.error else None)


@pytest.mark.parametrize("way", ["tuples", "other-paths", "bytearray", "other-words", "no-words"])
def test_a_backend_that_serves_one_class_serves_the_other(mode: Mode, tmp_path: Path, way: str) -> None:
    """What deepagents' class makes of a backend's answers, ours makes of them too, and complains of nothing."""
    write_files(tmp_path, {**LAYERS, "base/notes/README.md": "No skill."})
    backend = Peculiar(tmp_path, way)

    theirs, ours = (
        drive(mode, tmp_path, kind(backend=backend, sources=["/base"]), [step()]).states[0] for kind in CLASSES
    )

    assert len(ours["skills_metadata"]) > 0
    assert ours["skills_metadata"] == theirs["skills_metadata"]
    assert ours["skills_problems"] == []


@both_modes
def test_a_source_that_fails_is_an_error_in_both(mode: Mode, tmp_path: Path) -> None:
    """Each class keeps one line about the source that could not be listed, and shows it as a warning."""
    write_files(tmp_path, LAYERS)
    backend = FakeBackend(tmp_path, rules={"ls": unlisted(part="/closed")})
    seen = [
        drive(mode, tmp_path, kind(backend=backend, sources=["/closed", "/base"], system_prompt=TEMPLATE), [step()])
        for kind in CLASSES
    ]

    for found in seen:
        [error] = found.states[0]["skills_load_errors"]
        assert error.startswith("Cannot load skills from '/closed': ")
        assert "permission_denied" in error
        assert "\n\n<skill_load_warnings>\n" in found.requests[0].system
        assert "untrusted" in found.requests[0].system
    assert seen[1].states[0]["skills_metadata"] == seen[0].states[0]["skills_metadata"]


RELOADS: dict[str, list[Step]] = {
    "not-asked-for": [step(), step(files={"skills/new/SKILL.md": skill_md("new")})],
    "asked-for": [step(), step(files={"skills/new/SKILL.md": skill_md("new")}, skills_metadata=None)],
    "asked-for-at-first": [step(skills_metadata=None), step()],
    "asked-for-once": [
        step(files={"skills/new/SKILL.md": skill_md("new")}, skills_metadata=None),
        step(files={"skills/newer/SKILL.md": skill_md("newer")}),
    ],
    "edited": [step(), step(files={"skills/alpha/SKILL.md": skill_md("alpha", "Edited.")}, skills_metadata=None)],
    "none-at-first": [step(files={"skills/x.txt": ""}), step(files={"skills/alpha/SKILL.md": skill_md("alpha")})],
}


@pytest.mark.parametrize("name", RELOADS)
def test_skills_are_looked_for_again_when_asked(mode: Mode, tmp_path: Path, name: str) -> None:
    """`skills_metadata=None` has both classes look again, and nothing else does."""
    steps = RELOADS[name]
    first = {} if name == "none-at-first" else {"skills/alpha/SKILL.md": skill_md("alpha")}
    steps = [Step(steps[0].given, steps[0].replies, {**first, **(steps[0].files or {})}), *steps[1:]]

    theirs, ours = both(mode, tmp_path, steps)

    assert ours.state("skills_metadata", "skills_load_errors") == theirs.state("skills_metadata", "skills_load_errors")


# --- the prompt --------------------------------------------------------------------------------------------------


def system_blocks(seen: Seen) -> list[list[dict[str, Any]]]:
    """Return the system message of each request as blocks, the list of skills left out."""
    blocks = []
    for request in seen.requests:
        [message] = [message for message in request.messages if message.type == "system"]
        assert isinstance(message.content, list)
        blocks.append(
            [
                {**block, "text": _LIST.sub("<list/>", block["text"])} if isinstance(block, dict) else {"text": block}
                for block in message.content
            ]
        )
    return blocks


PROMPTS: dict[str, Any] = {
    "none": None,
    "text": "You help.",
    "message": SystemMessage("You help."),
    "blocks": SystemMessage(
        content=[
            {"type": "text", "text": "You help."},
            {"type": "text", "text": "A lot.", "cache_control": {"type": "x"}},
        ]
    ),
}


@both_modes
def test_the_section_is_appended_in_the_same_way(mode: Mode, tmp_path: Path) -> None:
    """Whatever the system message is, the section is one more text block behind it, with the same separator."""
    write_files(tmp_path, {"lib/alpha/SKILL.md": skill_md("alpha"), "base/beta/SKILL.md": skill_md("beta")})
    for prompt in PROMPTS.values():
        theirs, ours = (
            system_blocks(
                drive(
                    mode,
                    tmp_path,
                    kind(backend=disk(tmp_path), sources=["/base", "/lib"], system_prompt=TEMPLATE),
                    [step()],
                    system_prompt=prompt,
                )
            )
            for kind in CLASSES
        )

        assert ours == theirs
        assert ours[0][-1]["text"].startswith("Where:" if prompt is None else "\n\nWhere:")
        assert ours[0][-1]["text"].endswith("Which {braces}:\n<list/>\nEnd.")


LABELLED: list[list[Any]] = [
    ["/skills"],
    ["/skills/user/", "/skills/project"],
    ["/home/me/.claude/skills", ("/repo/.claude/skills", "Project Claude")],
    ["/lib/built_in_skills", "/my-own_place/skills"],
]


@both_modes
def test_sources_are_shown_with_the_same_labels(mode: Mode, tmp_path: Path) -> None:
    """The lines about where skills live are the same, except that no label says "Skills" twice."""
    for sources in LABELLED:
        for source in sources:
            path = source if isinstance(source, str) else source[0]
            write_files(tmp_path, {f"{path.strip('/')}/alpha/SKILL.md": skill_md("alpha")})
        theirs, ours = (
            [
                line
                for line in drive(mode, tmp_path, kind(backend=disk(tmp_path), sources=sources), [step()])
                .requests[0]
                .system.split("\n")
                if re.match(r"\*\*.*Skills\*\*: `", line)
            ]
            for kind in CLASSES
        )

        expected = [line.replace("**Skills Skills**", "**Skills**") for line in theirs]
        # One source alone has no priority over another.
        assert ours == (expected if len(sources) > 1 else [expected[0].removesuffix(" (higher priority)")])
        assert len(ours) == len(sources)


@both_modes
def test_without_a_template_the_prompt_is_left_alone(mode: Mode, tmp_path: Path) -> None:
    """`system_prompt=None` adds nothing in either class, and the catalog is in state all the same."""
    write_files(tmp_path, {"skills/alpha/SKILL.md": skill_md("alpha")})
    seen = [
        drive(
            mode,
            tmp_path,
            kind(backend=disk(tmp_path), sources=["/skills"], system_prompt=None),
            [step()],
            system_prompt=prompt,
        )
        for prompt in (None, "You help.")
        for kind in CLASSES
    ]

    texts = [found.requests[0].system for found in seen]
    assert texts == ["", "", "You help.", "You help."]
    assert all(found.states[0]["skills_metadata"] == seen[0].states[0]["skills_metadata"] for found in seen)


# --- pins --------------------------------------------------------------------------------------------------------


THREE_SKILLS: Files = {f"skills/{name}/SKILL.md": skill_md(name) for name in ("alpha", "beta", "gamma")}

PINNING: dict[str, list[Step]] = {
    "none": [step(pinned_skills=[])],
    "one": [step(pinned_skills=["alpha"])],
    "order": [step(pinned_skills=["gamma", "alpha", "beta"])],
    "repeated": [step(pinned_skills=["beta", "alpha", "beta"])],
    "unknown": [step(pinned_skills=["nope"])],
    "unknown-among-known": [step(pinned_skills=["beta", "nope", "ALPHA", "alpha"])],
    "in-a-later-run": [step(), step(pinned_skills=["alpha"]), step()],
    "other-skills-in-a-later-run": [step(pinned_skills=["beta"]), step(pinned_skills=["alpha"])],
    "by-a-tool": [step(call_tools(("pin_skills", {"names": ["beta", "alpha"]})), "Done.")],
    "by-two-tools": [
        step(call_tools(("pin_skills", {"names": ["gamma"]}), ("pin_skills", {"names": ["alpha", "gamma"]})), "Done.")
    ],
    "by-user-and-tool": [step(call_tools(("pin_skills", {"names": ["beta"]})), "Done.", pinned_skills=["alpha"])],
}


@pytest.mark.parametrize("name", PINNING)
def test_pins_come_in_the_same_messages(mode: Mode, tmp_path: Path, name: str) -> None:
    """Which messages the model sees, in which order and with which marks, is the same; only the wording is ours."""
    steps = [Step(PINNING[name][0].given, PINNING[name][0].replies, THREE_SKILLS), *PINNING[name][1:]]

    theirs, ours = both(mode, tmp_path, steps, own=[pin_skills])

    assert ours.messages() == theirs.messages()
    assert ours.tools() == theirs.tools()
    assert ours.state(*SHARED_STATE) == theirs.state(*SHARED_STATE)


# --- tools of skills ---------------------------------------------------------------------------------------------


TOOL_SKILLS: Files = {
    "skills/alpha/SKILL.md": skill_md("alpha", metadata={"include_tools": "ping"}),
    "skills/beta/SKILL.md": skill_md("beta", metadata={"include_tools": "kit"}),
    "skills/gamma/SKILL.md": skill_md("gamma"),
    "skills/alpha/notes.md": "notes",
}
PING = call_tools(("ping", {"text": "1"}))
ECHO = call_tools(("echo", {"text": "1"}))


def read(name: str, file: str = "SKILL.md", **args: Any) -> tuple[str, dict[str, Any]]:
    """Return a call of `read_file`."""
    return "read_file", {"file_path": f"/skills/{name}/{file}", **args}


TOOL_USE: dict[str, list[Step]] = {
    "hidden": [step(PING)],
    "read": [step(call_tools(read("alpha")), PING), step(PING)],
    "read-in-part": [step(call_tools(read("alpha", offset=2, limit=1)), PING)],
    "read-twice": [step(call_tools(read("alpha")), call_tools(read("alpha")), PING)],
    "path-without-slash": [step(call_tools(("read_file", {"file_path": "skills/alpha/SKILL.md"})), PING)],
    "path-with-dots": [step(call_tools(("read_file", {"file_path": "/skills/./alpha//SKILL.md"})), PING)],
    "path-that-leads-out": [step(call_tools(("read_file", {"file_path": "/skills/beta/../alpha/SKILL.md"})), PING)],
    "read-of-another-file": [step(call_tools(read("alpha", "notes.md")), PING)],
    "read-of-nothing": [step(call_tools(read("nope")), PING)],
    "read-of-another-skill": [step(call_tools(read("gamma")), PING)],
    "read-and-call-in-one-turn": [step(call_tools(read("alpha"), ("ping", {"text": "1"})), PING)],
    "several-tools": [step(call_tools(read("beta")), ECHO, PING)],
    "two-reads": [step(call_tools(read("beta"), read("alpha")), ECHO, PING)],
    "pin": [step(PING, pinned_skills=["alpha"]), step(PING)],
    "pin-of-several": [step(ECHO, PING, pinned_skills=["beta", "alpha"])],
    "pin-and-read": [step(call_tools(read("alpha")), PING, pinned_skills=["beta"])],
    "pin-of-nothing": [step(PING, pinned_skills=["gamma", "nope"])],
}


def kit(name: str, runtime: object) -> list[BaseTool]:  # noqa: ARG001 - a resolver's signature
    return {"kit": [echo, ping], "ping": [ping]}.get(name, [])


@pytest.mark.parametrize("name", TOOL_USE)
def test_tools_of_skills_are_disclosed_alike(mode: Mode, tmp_path: Path, name: str) -> None:
    """For reads and pins, tools shown, answers of tools and the record in state are the same."""
    steps = [Step(TOOL_USE[name][0].given, TOOL_USE[name][0].replies, TOOL_SKILLS), *TOOL_USE[name][1:]]

    theirs, ours = both(mode, tmp_path, steps, tools=kit)

    assert ours.messages() == theirs.messages()
    assert ours.tools() == theirs.tools()
    assert ours.state(*SHARED_STATE) == theirs.state(*SHARED_STATE)


DEFERRED = ping.model_copy(update={"extras": {"defer_loading": True}})

TOOL_KINDS: dict[str, dict[str, Any]] = {
    "list": {"tools": [ping, echo]},
    "no-tools": {"tools": None},
    "empty-list": {"tools": []},
    "own-tool-of-the-name": {"tools": [other_ping], "own": [ping]},
    "own-deferred-tool": {"tools": [other_ping], "own": [DEFERRED]},
    "two-tools-of-one-name": {"tools": lambda _name, _runtime: [ping, other_ping]},
    "a-tuple": {"tools": lambda _name, _runtime: (ping,)},
    "nothing": {"tools": lambda _name, _runtime: []},
}


@pytest.mark.parametrize(
    ("way", "name"),
    [*[("read", name) for name in TOOL_KINDS], ("pin", "own-deferred-tool"), ("pin", "two-tools-of-one-name")],
)
def test_tools_of_every_kind_are_taken_alike(mode: Mode, tmp_path: Path, way: str, name: str) -> None:
    """Lists, resolvers, tools of the agent itself and deferred ones come to the same."""
    opening = [call_tools(read("alpha"))] if way == "read" else []
    pinned = ["alpha"] if way == "pin" else []
    steps = [step(*opening, PING, files=TOOL_SKILLS, pinned_skills=pinned)]

    theirs, ours = both(mode, tmp_path, steps, **TOOL_KINDS[name])

    assert ours.messages() == theirs.messages()
    assert ours.tools() == theirs.tools()
    assert ours.state("_skill_tools_disclosed") == theirs.state("_skill_tools_disclosed")


# --- the class ---------------------------------------------------------------------------------------------------


KNOWN_HOOKS = frozenset(
    {
        "__init__",
        "abefore_agent",
        "abefore_model",
        "awrap_model_call",
        "awrap_tool_call",
        "before_agent",
        "before_model",
        "modify_request",
        "wrap_model_call",
        "wrap_tool_call",
    }
)
"""What deepagents' class does, as far as we know it."""


def defined_hooks(kind: type) -> frozenset[str]:
    """Return the functions and properties that a class itself defines for others to call."""
    return frozenset(
        name
        for name, value in vars(kind).items()
        if (callable(value) or isinstance(value, property | staticmethod | classmethod))
        and (not name.startswith("_") or name == "__init__")
        and not inspect.isclass(value)
        and name not in {"trace_policy", "state_schema"}
    )


def strangers(kind: type) -> frozenset[str]:
    """Return the hooks of a class that ours does not define for itself."""
    return defined_hooks(kind) - defined_hooks(SkillsMiddleware)


def test_we_know_every_hook_of_deepagents() -> None:
    """A hook that deepagents' class gains or loses fails here, until we have looked at it."""
    assert defined_hooks(DeepAgentsSkillsMiddleware) == KNOWN_HOOKS


def test_every_hook_of_deepagents_is_overridden() -> None:
    """None of its hooks runs by inheritance alone."""
    assert strangers(DeepAgentsSkillsMiddleware) == frozenset()


def test_the_check_for_hooks_sees_new_ones() -> None:
    """A hook, a plain method or a property that the class did not have would be found."""

    class Grown(DeepAgentsSkillsMiddleware[Any, Any]):
        def after_model(self, state: Any, runtime: Any) -> None: ...

        async def arefresh(self) -> None: ...

        @property
        def catalog(self) -> list[str]:
            return []

    assert strangers(Grown) == {"after_model", "arefresh", "catalog"}


def test_we_know_every_public_name_of_the_module() -> None:
    """What deepagents exports beside its class is what we know."""
    assert set(upstream.__all__) == {
        "SkillMetadata",
        "SkillToolResolver",
        "SkillsMiddleware",
        "SkillsState",
        "disclosed_skill_tool_names",
    }


def test_every_option_of_deepagents_is_taken() -> None:
    """Code that makes deepagents' class makes ours: the same names, by keyword, and none more that is required."""
    theirs = inspect.signature(DeepAgentsSkillsMiddleware.__init__).parameters
    ours = inspect.signature(SkillsMiddleware.__init__).parameters

    assert set(theirs) <= set(ours)
    assert all(ours[name].kind == parameter.kind for name, parameter in theirs.items())
    required = {name for name, parameter in ours.items() if parameter.default is inspect.Parameter.empty}
    theirs_required = {name for name, parameter in theirs.items() if parameter.default is inspect.Parameter.empty}
    assert required == theirs_required - {"backend"}, "needed only where a source is a path"


@pytest.mark.parametrize("name", sorted(set(upstream.SkillsState.__annotations__)))
def test_every_state_key_of_deepagents_is_ours(name: str) -> None:
    """Each key is there, and is seen from outside, or hidden, as deepagents has it."""
    theirs = get_type_hints(upstream.SkillsState, include_extras=True)[name]
    ours = get_type_hints(SkillsState, include_extras=True)[name]

    def markers(hint: Any) -> Iterable[Any]:
        return [mark for mark in _metadata(hint) if not callable(mark)]

    assert markers(ours) == markers(theirs)


def _metadata(hint: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] = getattr(hint, "__metadata__", ())
    inner = [part for argument in getattr(hint, "__args__", ()) for part in _metadata(argument)]
    return (*found, *inner)


def test_the_attributes_of_an_instance_are_the_same() -> None:
    """Code that looks at an instance finds the same sources, labels, template and name."""
    sources = ["/skills/user/", ("/repo/skills", "Repo"), "/home/me/.claude/skills"]
    theirs, ours = (kind(backend=StateBackend(), sources=sources, system_prompt=TEMPLATE) for kind in CLASSES)

    for attribute in ("sources", "source_labels", "system_prompt_template", "name"):
        assert getattr(ours, attribute) == getattr(theirs, attribute)


REFUSED: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "template-without-slots": ({"system_prompt": "no slots"}, ValueError),
    "template-without-one-slot": ({"system_prompt": "{skills_list}{skills_load_warnings}"}, ValueError),
    "template-that-is-no-text": ({"system_prompt": 7}, TypeError),
    "single-tool": ({"tools": ping}, TypeError),
    "tool-as-mapping": ({"tools": [{"name": "ping"}]}, TypeError),
    "same-tool-twice": ({"tools": [ping, other_ping]}, ValueError),
    "tools-that-are-a-number": ({"tools": 7}, TypeError),
    "source-of-three": ({"sources": [("/a", "b", "c")]}, TypeError),
    "source-that-is-a-pair-of-numbers": ({"sources": [(1, 2)]}, TypeError),
    "backend-left-out": ({"backend": ...}, TypeError),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_deepagents_refuses_we_refuse(name: str) -> None:
    """The same mistakes raise the same kinds of error when the middleware is made."""
    options, error = REFUSED[name]
    given = {"backend": StateBackend(), "sources": ["/skills"], **options}
    kept = {key: value for key, value in given.items() if value is not ...}

    for kind in CLASSES:
        make: Callable[..., Any] = kind
        with pytest.raises(error):
            make(**kept)


class Bound(ScriptedChatModel):
    """Remembers the tools that it was given, as a provider gets them."""

    schemas: list[Any] = Field(default_factory=list)

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        """Remember the tools."""
        self.schemas.append([convert_to_openai_tool(item) for item in tools])
        return super().bind_tools(tools, **kwargs)


@both_modes
def test_what_is_not_used_changes_no_request(mode: Mode, tmp_path: Path) -> None:
    """Visibility, slash commands and arguments that nothing uses leave every request the same, byte for byte."""
    body = "Costs $5.00 or \\$5 in $HOME, `$1`, ${X}, {braces}, $ARGUMENTS.\n"
    write_files(tmp_path, {"lib/alpha/SKILL.md": skill_md("alpha", body=body), "lib/beta/SKILL.md": skill_md("beta")})
    calls = [("load_skill", {"skill_name": "alpha"}), ("load_skill", {"skill_name": "zeta"})]
    unused: list[dict[str, Any]] = [
        {},
        {"visibility": {"gamma": "off", "delta-*": "user-only"}, "slash_commands": True},
        {"visibility": lambda _skill, _runtime: "on", "slash_commands": True},
    ]
    seen = []
    for options in unused:
        model = Bound(replies=[call_tools(*calls), call_tools(("unload_skill", {"skill_name": "alpha"}))])
        middleware: Any = SkillsMiddleware(backend=disk(tmp_path), sources=["/lib"], **options)
        agent = create_agent(model, tools=[ping], middleware=[middleware], system_prompt="You help.")
        run(mode, agent, "/nothing of $1 here")
        requests = [[(message.type, message.content) for message in request.messages] for request in model.requests]
        seen.append((requests, model.schemas))
    assert len(seen[0][0]) == 3
    assert body in str(seen[0][0][1][-2][1])
    assert seen[1:] == [seen[0], seen[0]]
    loading = next(item["function"] for item in seen[0][1][0] if item["function"]["name"] == "load_skill")
    assert loading["parameters"]["required"] == ["skill_name"]
