"""Discovery through real agents, sync and async: what the model is shown, what state keeps, and what the log says."""

import asyncio
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest
from deepagents import create_deep_agent
from deepagents.backends import BackendProtocol, CompositeBackend, FilesystemBackend, StateBackend, StoreBackend
from deepagents.backends.protocol import FileDownloadResponse, LsResult
from langchain.agents import create_agent
from langchain.agents.middleware.types import AgentMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.errors import GraphInterrupt
from langgraph.runtime import Runtime
from langgraph.store.memory import InMemoryStore

from deepskills import SkillMetadata, SkillsError, SkillsMiddleware
from deepskills.testing import ScriptedChatModel, call_tools
from support import (
    FakeBackend,
    Mode,
    both_modes,
    run,
    scaled,
    skill_md,
    state_files,
    tool_messages,
    unlisted,
    unreadable,
    write_files,
)

ENTRY = re.compile(r"^- \*\*(.+?)\*\*( \[Loaded\])?: (.*)$", re.MULTILINE)


def shown(system: str) -> dict[str, str]:
    """Return the skills that a system prompt lists, each with its description."""
    return {name: description for name, _, description in ENTRY.findall(system)}


class Chat:
    """A conversation with an agent on one checkpointed thread."""

    def __init__(
        self, mode: Mode, middleware: AgentMiddleware[Any, Any, Any], *replies: AIMessage | str, **options: Any
    ) -> None:
        self._mode = mode
        self.config: Any = {"configurable": {"thread_id": options.pop("thread", "one")}}
        self.saver: Any = options.pop("saver", None) or InMemorySaver()
        self.model = ScriptedChatModel(replies=list(replies))
        self.agent = create_agent(self.model, middleware=[middleware], checkpointer=self.saver, **options)

    def say(self, given: Any = "go", **kwargs: Any) -> str:
        """Run the agent once more and return the system prompt of its first model call."""
        first = len(self.model.requests)
        self.result = run(self._mode, self.agent, given, self.config, **kwargs)
        return self.model.requests[first].system

    @property
    def state(self) -> dict[str, Any]:
        values: dict[str, Any] = self.agent.get_state(self.config).values
        return values

    @property
    def problems(self) -> list[tuple[str, str, str]]:
        return [(found["path"], found["code"], found["severity"]) for found in self.state["skills_problems"]]

    def versions(self) -> dict[str, Any]:
        """Return the versions of the keys about skills: a key that was written has another one."""
        versions: dict[str, Any] = self.saver.get_tuple(self.config).checkpoint["channel_versions"]
        return {key: version for key, version in versions.items() if key.startswith("skill")}


class Switchable(FakeBackend):
    """Fails for the paths that are down, in one of several ways."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.down: dict[str, Callable[[], LsResult]] = {}

    def ls(self, path: str) -> LsResult:
        result = super().ls(path)
        return self.down[path]() if path in self.down else result


def raises(error: Exception) -> Callable[[], NoReturn]:
    def fail() -> NoReturn:
        raise error

    return fail


def failing(reason: str = "permission denied") -> Callable[[], LsResult]:
    return lambda: LsResult(error=reason)


# Every backend.

LAYERS = {
    "base/shared/SKILL.md": skill_md("shared", "The base's."),
    "base/only-base/SKILL.md": skill_md("only-base", "Base alone."),
    "user/shared/SKILL.md": skill_md("shared", "The user's."),
    "user/only-user/SKILL.md": skill_md("only-user", "User alone."),
}


@dataclass
class Place:
    """A backend with the layered skills on it, and where its sources start."""

    backend: BackendProtocol
    base: str
    user: str
    files: dict[str, Any] = field(default_factory=dict)


def on_store(files: dict[str, str]) -> StoreBackend:
    backend = StoreBackend(store=InMemoryStore(), namespace=lambda _runtime: ("skills",))
    backend.upload_files([(path, text.encode()) for path, text in files.items()])
    return backend


FILES = {f"/{path}": text for path, text in LAYERS.items()}


def composite(root: Path) -> CompositeBackend:
    routes: dict[str, BackendProtocol] = {"/disk/": FilesystemBackend(root), "/memories/": on_store(FILES)}
    return CompositeBackend(default=StateBackend(), routes=routes)


def real(root: Path) -> FilesystemBackend:
    return FilesystemBackend(root, virtual_mode=False)


PLACES: dict[str, Callable[[Path], Place]] = {
    "state": lambda _root: Place(StateBackend(), "/base/", "/user", state_files(FILES)),
    "virtual": lambda root: Place(FilesystemBackend(root), "/base", "/user/"),
    "real-paths": lambda root: Place(real(root), f"{root}/base", f"{root}/user/"),
    "relative": lambda root: Place(real(root), "base", "./user"),
    "relative-virtual": lambda root: Place(FilesystemBackend(root), "base", "./user/"),
    "relative-to-the-process": lambda _root: Place(FilesystemBackend(virtual_mode=False), "base", "user"),
    "climbing": lambda root: Place(real(root), f"{root}/user/../base", f"{root}/base/../user/"),
    "store": lambda _root: Place(on_store(FILES), "/base", "/user"),
    "composite": lambda root: Place(composite(root), "/disk/base", "/memories/user"),
}


@pytest.mark.parametrize("kind", PLACES)
def test_layered_sources_load_from_every_backend(
    mode: Mode, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Skills of all sources are listed, the later source wins, and what is listed can be loaded."""
    write_files(tmp_path, LAYERS)
    monkeypatch.chdir(tmp_path)
    at = PLACES[kind](tmp_path)
    middleware = SkillsMiddleware(backend=at.backend, sources=[(at.base, "Base"), (at.user, "User")])
    calls = [("load_skill", {"skill_name": name}) for name in ("shared", "only-base")]
    model = ScriptedChatModel(replies=[call_tools(*calls)])
    agent = create_deep_agent(model, middleware=[middleware], backend=at.backend)
    result = run(mode, agent, {"messages": [HumanMessage("go")], "files": at.files})
    assert shown(model.requests[0].system) == {
        "only-base": "Base alone.",
        "only-user": "User alone.",
        "shared": "The user's.",
    }
    assert f"**Base Skills**: `{at.base}`\n**User Skills**: `{at.user}` (higher priority)\n" in model.requests[0].system
    assert [(message.status, "Instructions of" in message.text) for message in tool_messages(result)] == [
        ("success", True),
        ("success", True),
    ]


@both_modes
def test_the_path_that_lost_is_named(mode: Mode, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A skill that a later source overrides is named in the log: layers are no mistake, and no problem."""
    write_files(tmp_path, LAYERS)
    chat = Chat(mode, SkillsMiddleware(backend=FilesystemBackend(tmp_path), sources=["/base", "/user"]))
    with caplog.at_level(logging.INFO, "deepskills"):
        chat.say()
    assert chat.problems == []
    [(_, told)] = [line for line in lines(caplog) if "skill-shadowed" in line[1]]
    assert told.startswith("/base/shared/SKILL.md: ")
    assert {level for level, _ in lines(caplog)} == {"INFO"}


@both_modes
def test_discovery_is_one_round_of_listings_and_one_batch(mode: Mode, tmp_path: Path) -> None:
    """However many skills there are, each source is listed once and all files are read by one call."""
    write_files(tmp_path, {f"s{n % 5}/skill-{n}/SKILL.md": skill_md(f"skill-{n}") for n in range(50)})
    backend = FakeBackend(tmp_path)
    chat = Chat(mode, SkillsMiddleware(backend=backend, sources=[f"/s{number}" for number in range(5)]))
    assert len(shown(chat.say())) == 50
    assert sorted(backend.listed) == ["/s0", "/s1", "/s2", "/s3", "/s4"]
    assert (len(backend.calls), len(backend.read_paths)) == (6, 50)


@pytest.mark.parametrize(
    ("source", "max_depth", "names"),
    [
        pytest.param("/lib", 1, ["top"], id="one-level"),
        pytest.param("/lib", 2, ["mid", "top"], id="two-levels"),
        pytest.param("/lib", 3, ["low", "mid", "top"], id="three-levels"),
        pytest.param("/lib/top", 1, ["inner", "top"], id="leaf"),
        pytest.param("/lib/group/mid/", 3, ["mid"], id="leaf-below"),
    ],
)
def test_skills_are_found_as_deep_as_allowed(
    mode: Mode, source: str, max_depth: int, names: list[str], tmp_path: Path
) -> None:
    """`max_depth` goes deeper and stops below a skill; a skill's directory is that skill; tools' are passed over."""
    places = ("top", "top/inner", "group/mid", "group/more/low", "group/mid/references/inner")
    over = (".git/one", "node_modules/two", "group/.venv/three", "group/__pycache__/four", ".git", "group/node_modules")
    files = {f"lib/{at}/SKILL.md": skill_md(at.rpartition("/")[2]) for at in places}
    write_files(tmp_path, files | {f"lib/{at}/SKILL.md": skill_md("never") for at in over})
    chat = Chat(mode, SkillsMiddleware(backend=FilesystemBackend(tmp_path), sources=[source], max_depth=max_depth))
    assert sorted(shown(chat.say())) == names


@pytest.mark.parametrize("virtual", [True, False], ids=["virtual", "real-paths"])
@pytest.mark.parametrize("target", ["pool/linked", "linked-at-the-top"])
def test_a_skill_directory_may_be_a_link(mode: Mode, *, virtual: bool, target: str, tmp_path: Path) -> None:
    """A linked skill directory is found and can be loaded, which is how people install skills."""
    write_files(tmp_path, {f"{target}/SKILL.md": skill_md("linked"), "skills/own/SKILL.md": skill_md("own")})
    (tmp_path / "skills/linked").symlink_to(tmp_path / target)
    source = "/skills" if virtual else f"{tmp_path}/skills"
    backend = FilesystemBackend(tmp_path, virtual_mode=virtual)
    chat = Chat(
        mode,
        SkillsMiddleware(backend=backend, sources=[source]),
        call_tools(("load_skill", {"skill_name": "linked"})),
    )
    assert sorted(shown(chat.say())) == ["linked", "own"]
    assert "Instructions of linked." in tool_messages(chat.result)[0].text
    assert chat.state["skills_loaded"] == ["linked"]


# Sources that give nothing.

BAD_SOURCES: dict[str, tuple[Callable[[], LsResult] | None, str, str]] = {
    "missing": (None, "source-missing", "warning"),
    "missing-raised": (raises(FileNotFoundError("no such file")), "source-missing", "warning"),
    "empty": (lambda: LsResult(entries=[]), "source-empty", "warning"),
    "failing": (failing(), "source-failed", "error"),
    "raising": (raises(OSError("disk on fire")), "source-failed", "error"),
    "raising-oddly": (raises(ZeroDivisionError()), "source-failed", "error"),
    "unreachable": (raises(ConnectionError("[Errno 8] host not found")), "source-failed", "error"),
    "sandbox-gone": (raises(RuntimeError("sandbox does not exist")), "source-failed", "error"),
    "garbage": (lambda: "garbage", "source-failed", "error"),  # type: ignore[dict-item,return-value]
}


@both_modes
@pytest.mark.parametrize("kind", BAD_SOURCES)
def test_a_source_that_gives_nothing_costs_no_other(mode: Mode, kind: str, tmp_path: Path) -> None:
    """A source that is missing or empty is a warning, one that fails an error; all others load."""
    answer, code, severity = BAD_SOURCES[kind]
    write_files(tmp_path, LAYERS)
    backend = Switchable(tmp_path)
    if answer is not None:
        backend.down["/bad"] = answer
    chat = Chat(mode, SkillsMiddleware(backend=backend, sources=["/base", "/bad", "/user"]))
    system = chat.say()
    assert sorted(shown(system)) == ["only-base", "only-user", "shared"]
    assert ("/bad", code, severity) in chat.problems
    assert ("<skill_load_warnings>" in system) == (severity == "error")
    errors = chat.state["skills_load_errors"]
    assert [error.startswith("Cannot load skills from '/bad': ") for error in errors] == [True] * (severity == "error")


@both_modes
def test_a_partial_listing_is_used(mode: Mode, tmp_path: Path) -> None:
    """Entries that come with an error are used, and the error is told."""
    write_files(tmp_path, LAYERS)
    backend = Switchable(tmp_path)
    backend.down["/base"] = lambda: LsResult(
        entries=[{"path": "/base/only-base/", "is_dir": True}], error="child error: cannot stat"
    )
    chat = Chat(mode, SkillsMiddleware(backend=backend, sources=["/base"]))
    assert list(shown(chat.say())) == ["only-base"]
    assert chat.problems == [("/base", "source-incomplete", "error")]


@pytest.mark.parametrize("virtual", [True, False])
def test_a_directory_whose_name_is_not_utf_8_costs_no_other(mode: Mode, *, virtual: bool, tmp_path: Path) -> None:
    """Its skill is reported, not listed, and the state can be stored; the others load and stay loaded."""
    write_files(tmp_path, {"skills/good/SKILL.md": skill_md("good")})
    odd = os.path.join(os.fsencode(tmp_path), b"skills", b"caf\xe9")  # noqa: PTH118 - a path of bytes
    try:
        os.mkdir(odd)  # noqa: PTH102 - a path of bytes
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    write_files(Path(os.fsdecode(odd)), {"SKILL.md": skill_md("cafe")})
    source = "/skills" if virtual else f"{tmp_path}/skills"
    backend = FilesystemBackend(tmp_path, virtual_mode=virtual)
    chat = Chat(
        mode,
        SkillsMiddleware(backend=backend, sources=[source]),
        call_tools(("load_skill", {"skill_name": "cafe"}), ("load_skill", {"skill_name": "good"})),
    )
    assert list(shown(chat.say())) == ["good"]
    assert [answer.status for answer in tool_messages(chat.result)] == ["error", "success"]
    assert chat.problems == [(f"{source}/caf\\udce9/SKILL.md", "skill-path-not-text", "error")]
    chat.say()
    assert chat.state["skills_loaded"] == ["good"]
    assert repr(chat.state).isascii()


@both_modes
def test_one_broken_skill_costs_no_other(mode: Mode, tmp_path: Path) -> None:
    """Files that cannot be used are errors of their own; the skills beside them load."""
    broken: dict[str, bytes] = {
        "s/a-date/SKILL.md": b"---\nname: a-date\ndescription: d\ndate: 2025-02-30\n---\n",
        "s/binary/SKILL.md": b"\x00\xff\xfe" * 99,
        "s/bomb/SKILL.md": b"---\nname: bomb\ndescription: " + b"[" * 5000 + b"\n---\n",
        "s/none/SKILL.md": b"no frontmatter",
        "s/huge/SKILL.md": b"x" * (10 * 1024 * 1024 + 1),
        "s/folder/SKILL.md/file": b"a directory in the place of the file",
    }
    write_files(tmp_path, {**broken, "s/good/SKILL.md": skill_md("good"), "s/zebra/SKILL.md": skill_md("zebra")})
    write_files(tmp_path, {"s/caf\udce9/SKILL.md": skill_md("cafe")})  # a name on disk that is not UTF-8
    chat = Chat(mode, SkillsMiddleware(backend=FilesystemBackend(tmp_path), sources=["/s"]))
    system = chat.say()
    assert {"a-date", "good", "zebra"} <= set(shown(system))
    system.encode()
    errors = {path.split("/")[2] for path, _code, severity in chat.problems if severity == "error"}
    assert errors == {"binary", "none", "huge", "folder", "caf\\udce9"}


# Backends that hang.


@both_modes
def test_a_source_that_hangs_is_given_up_and_costs_no_other(mode: Mode, tmp_path: Path) -> None:
    """With `backend_timeout` a source that never answers is an error, and the run goes on with the others."""
    write_files(tmp_path, LAYERS)
    over = threading.Event()
    waited: list[bool] = []

    def never() -> LsResult:
        waited.append(over.wait(60))
        return LsResult(entries=[])

    backend = Switchable(tmp_path)
    backend.down["/user"] = never
    chat = Chat(mode, SkillsMiddleware(backend=backend, sources=["/base", "/user"], backend_timeout=2))
    assert sorted(shown(chat.say())) == ["only-base", "shared"]
    assert waited == [], "the run did not wait for the source"
    over.set()
    assert chat.problems == [("/user", "source-failed", "error")]
    assert "no answer within 2 seconds" in chat.state["skills_problems"][0]["message"]


@both_modes
@pytest.mark.parametrize("seconds", [None, 20.0], ids=["no-limit", "limit"])
def test_files_in_graph_state_are_read_from_every_thread(mode: Mode, seconds: float | None) -> None:
    """`StateBackend`, which reads the run it is called in, answers however calls are made."""
    model = ScriptedChatModel(replies=[call_tools(("load_skill", {"skill_name": "shared"}))])
    middleware = SkillsMiddleware(backend=StateBackend(), sources=["/base", "/user"], backend_timeout=seconds)
    agent = create_deep_agent(model, middleware=[middleware])
    result = run(mode, agent, {"messages": [HumanMessage("go")], "files": state_files(FILES)})
    assert sorted(shown(model.requests[0].system)) == ["only-base", "only-user", "shared"]
    assert tool_messages(result)[0].status == "success"


# Strict.


@pytest.mark.parametrize("kind", BAD_SOURCES)
def test_strict_raises_on_an_error_and_only_then(mode: Mode, kind: str, tmp_path: Path) -> None:
    """`strict=True` turns an error about a source, and a missing one, into `SkillsError`; another warning is none."""
    answer, code, severity = BAD_SOURCES[kind]
    write_files(tmp_path, LAYERS)
    backend = Switchable(tmp_path)
    if answer is not None:
        backend.down["/bad"] = answer
    chat = Chat(mode, SkillsMiddleware(backend=backend, sources=["/base", "/bad"], strict=True))
    if severity == "error" or code == "source-missing":
        with pytest.raises(SkillsError, match=f"/bad: {code}: "):
            chat.say()
    else:
        assert sorted(shown(chat.say())) == ["only-base", "shared"]


@both_modes
def test_strict_raises_on_a_broken_skill(mode: Mode, tmp_path: Path) -> None:
    """A skill that cannot be used is an error too, and all errors are named."""
    write_files(tmp_path, {"s/one/SKILL.md": "nothing", "s/two/SKILL.md": "---\nname: two\n---\n"})
    chat = Chat(mode, SkillsMiddleware(backend=FilesystemBackend(tmp_path), sources=["/s"], strict=True))
    with pytest.raises(SkillsError) as caught:
        chat.say()
    assert "/s/one/SKILL.md: no-frontmatter" in str(caught.value)
    assert "/s/two/SKILL.md: description-missing" in str(caught.value)


# Sources and backends by function of the runtime.


@dataclass
class User:
    """Who runs the agent."""

    name: str


def personal_files(root: Path) -> None:
    write_files(
        root,
        {
            "ann/skills/ann-notes/SKILL.md": skill_md("ann-notes", body="Ann's secret."),
            "bob/skills/bob-notes/SKILL.md": skill_md("bob-notes", body="Bob's secret."),
            "ann/skills/common/SKILL.md": skill_md("common", "Ann's."),
            "bob/skills/common/SKILL.md": skill_md("common", "Bob's."),
        },
    )


def by_sources(root: Path) -> SkillsMiddleware[Any, Any]:
    return SkillsMiddleware(
        backend=FilesystemBackend(root), sources=lambda runtime: [(f"/{runtime.context.name}/skills", "Own")]
    )


def by_backend(root: Path) -> SkillsMiddleware[Any, Any]:
    return SkillsMiddleware(
        backend=lambda runtime: FilesystemBackend(root / runtime.context.name), sources=[("/skills", "Own")]
    )


def by_store(root: Path) -> SkillsMiddleware[Any, Any]:
    def backend(runtime: Any) -> BackendProtocol:
        namespace = (runtime.context.name,)
        found = StoreBackend(store=runtime.store, namespace=lambda _runtime: namespace)
        directory = root / runtime.context.name
        files = [(f"/{path.relative_to(directory)}", path.read_bytes()) for path in directory.rglob("SKILL.md")]
        found.upload_files(files)
        return found

    return SkillsMiddleware(backend=backend, sources=[("/skills", "Own")])


@pytest.mark.parametrize("make", [by_sources, by_backend, by_store])
def test_two_users_of_one_agent_see_their_own_skills(
    mode: Mode, make: Callable[[Path], SkillsMiddleware[Any, Any]], tmp_path: Path
) -> None:
    """Sources or backend given as a function of the runtime differ by user, in the catalog and in a load."""
    personal_files(tmp_path)
    load = call_tools(("load_skill", {"skill_name": "ann-notes"}), ("load_skill", {"skill_name": "bob-notes"}))
    options: dict[str, Any] = {"context_schema": User, "store": InMemoryStore()}
    model = ScriptedChatModel(replies=[load, "ok", load, "ok"])
    agent = create_agent(model, middleware=[make(tmp_path)], **options)
    ann = run(mode, agent, "go", context=User("ann"))
    bob = run(mode, agent, "go", context=User("bob"))
    first, _, third, _ = model.requests
    assert shown(first.system) == {"ann-notes": "Does a thing.", "common": "Ann's."}
    assert shown(third.system) == {"bob-notes": "Does a thing.", "common": "Bob's."}
    assert [message.status for message in tool_messages(ann)] == ["success", "error"]
    assert [message.status for message in tool_messages(bob)] == ["error", "success"]
    assert "Bob's secret" not in "".join(message.text for message in ann["messages"])


@pytest.mark.parametrize("make", [by_sources, by_backend])
def test_another_user_who_resumes_a_thread_sees_their_own_skills(
    mode: Mode, make: Callable[[Path], SkillsMiddleware[Any, Any]], tmp_path: Path
) -> None:
    """Where a function decides, every run looks for itself, and what the other had loaded is not taken over."""
    personal_files(tmp_path)
    chat = Chat(mode, make(tmp_path), call_tools(("load_skill", {"skill_name": "ann-notes"})), context_schema=User)
    chat.say(context=User("ann"))
    assert chat.state["skills_loaded"] == ["ann-notes"]
    assert shown(chat.say(context=User("bob"))) == {"bob-notes": "Does a thing.", "common": "Bob's."}
    assert chat.state["skills_loaded"] == []
    assert chat.state["skill_resources"] == {}


@both_modes
def test_of_many_files_only_the_one_that_failed_is_read_again(mode: Mode, tmp_path: Path) -> None:
    """A link that leads out of the backend does not make each run read the library; its file is used once it can be."""
    names = [f"s-{number}" for number in range(5)]
    write_files(tmp_path, {f"skills/{name}/SKILL.md": skill_md(name) for name in names})
    slip = skill_md("slip").replace("name: slip", "name: Slip")
    codex = {"skills/s-0/agents/openai.yaml": "policy:\n  allow_implicit_invocation: false\n"}
    write_files(tmp_path, {"skills/slip/SKILL.md": slip, **codex})
    (tmp_path / "skills/gone").mkdir()
    (tmp_path / "skills/gone/SKILL.md").symlink_to("/nowhere")
    backend = FakeBackend(tmp_path)
    source = "/skills"
    chat = Chat(mode, SkillsMiddleware(backend=backend, sources=[source]))
    before = shown(chat.say())
    assert set(before) == {*names[1:], "Slip"}
    problems = chat.problems
    assert {code for _, code, _ in problems} >= {"skill-unreadable", "name-invalid"}
    for _ in range(2):
        seen = len(backend.read_paths)
        assert shown(chat.say()) == before
        assert chat.problems == problems
        read = {path for path in backend.read_paths[seen:] if path.endswith("SKILL.md")}
        assert read <= {f"{source}/gone/SKILL.md", f"{source}/s-0/SKILL.md"}
    (tmp_path / "skills/gone/SKILL.md").unlink()
    write_files(tmp_path, {"skills/gone/SKILL.md": skill_md("gone")})
    assert set(shown(chat.say())) == {*before, "gone"}
    assert "skill-unreadable" not in str(chat.problems)


class Opaque:
    """No sequence of anything."""


@both_modes
@pytest.mark.parametrize(
    ("sources", "reason"),
    [
        pytest.param(lambda runtime: [runtime.no_such_thing], "no_such_thing", id="raises"),
        pytest.param(lambda _runtime: "/skills", "wrap it in a list", id="one-path"),
        pytest.param(lambda _runtime: None, "got None", id="none"),
        pytest.param(lambda _runtime: [Opaque], "Opaque", id="bad-entry"),
        pytest.param(lambda _runtime: Opaque(), "Opaque", id="no-sequence"),
        pytest.param(lambda: ["/skills"], "argument", id="takes-no-runtime"),
    ],
)
def test_a_function_for_sources_that_fails_is_an_error_and_the_run_goes_on(
    mode: Mode, sources: Any, reason: str, tmp_path: Path
) -> None:
    """The run goes on without skills, and the problem says what happened."""
    chat = Chat(mode, SkillsMiddleware(backend=FilesystemBackend(tmp_path), sources=sources))
    assert "No skills" in chat.say()
    (found,) = chat.state["skills_problems"]
    assert (found["code"], found["severity"]) == ("sources-failed", "error")
    assert reason in found["message"]
    assert len(chat.state["skills_load_errors"]) == 1


def raising_factory(_runtime: Any) -> NoReturn:
    raise LookupError("no such tenant")


def old_style_factory(runtime: Any) -> StateBackend:
    return StateBackend(runtime)  # type: ignore[call-arg]


@both_modes
@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        pytest.param(raising_factory, "no such tenant", id="raises"),
        pytest.param(old_style_factory, "StateBackend takes no argument", id="old-style"),
        pytest.param(lambda _runtime: None, "NoneType", id="none"),
        pytest.param(lambda _runtime: FilesystemBackend, "got the class FilesystemBackend", id="gives-a-class"),
    ],
)
def test_a_function_for_the_backend_that_fails_is_an_error_and_the_run_goes_on(
    mode: Mode, backend: Any, reason: str
) -> None:
    """The run goes on without skills, and the problem says what happened and, where it is plain, what to do."""
    chat = Chat(mode, SkillsMiddleware(backend=backend, sources=["/one", "/two"]))
    assert "No skills" in chat.say()
    assert chat.problems == [("/one", "source-failed", "error"), ("/two", "source-failed", "error")]
    assert reason in chat.state["skills_problems"][0]["message"]


@pytest.mark.parametrize("what", ["sources", "backend"])
def test_a_function_that_is_late_under_ainvoke_is_one_that_fails(what: str, tmp_path: Path) -> None:
    """A function that hangs is given up after `backend_timeout`, and the run goes on."""
    write_files(tmp_path, LAYERS)
    hangs, released = threading.Event(), threading.Event()
    waited: list[bool] = []

    def maybe_late(given: Any) -> Any:
        def function(_runtime: Any) -> Any:
            if hangs.is_set():
                waited.append(released.wait(60))
            return given

        return function

    options: dict[str, Any] = {"backend": FilesystemBackend(tmp_path), "sources": ["/base"]}
    options[what] = maybe_late(options[what])
    first = Chat("async", SkillsMiddleware(**options))
    assert shown(first.say())
    hangs.set()
    # Only the run in which nothing answers has a limit: a slow machine would miss it elsewhere too.
    chat = Chat("async", SkillsMiddleware(**options, backend_timeout=0.3), saver=first.saver)
    assert shown(chat.say()) == {}
    assert waited == [], "the run did not wait for the function"
    released.set()
    code = "sources-failed" if what == "sources" else "source-failed"
    assert [found for _, found, _ in chat.problems] == [code]
    assert "no answer within 0.3 seconds" in chat.state["skills_problems"][0]["message"]


@both_modes
def test_while_a_function_fails_nothing_is_shown_and_what_is_loaded_stays_loaded(mode: Mode, tmp_path: Path) -> None:
    """What a thread knows may be another user's, so nothing stands in for it; a failure lifts no limit either."""
    write_files(tmp_path, LAYERS)
    works = [True]

    def sources(_runtime: Any) -> list[str]:
        if not works[0]:
            raise LookupError("directory service is down")
        return ["/base"]

    middleware = SkillsMiddleware(backend=FilesystemBackend(tmp_path), sources=sources)
    chat = Chat(mode, middleware, call_tools(("load_skill", {"skill_name": "shared"})))
    before = chat.say()
    works[0] = False
    for _ in range(2):
        assert shown(chat.say()) == {}
        assert chat.problems == [("sources", "sources-failed", "error")]
        assert chat.state["skills_loaded"] == ["shared"]
        assert "Instructions of shared." not in chat.model.requests[-1].text
    works[0] = True
    assert list(shown(chat.say())) == list(shown(before))
    assert "Instructions of shared." in chat.model.requests[-1].text
    assert chat.problems == []
    assert chat.state["skills_load_errors"] == []


@both_modes
@pytest.mark.parametrize("process", ["same", "new"])
@pytest.mark.parametrize("fails", ["sources", "backend", "listing"])
def test_a_failure_shows_no_user_what_the_thread_knows_of_another(
    mode: Mode, fails: str, process: str, tmp_path: Path
) -> None:
    """Bob resumes Ann's thread while his sources, his backend or its listing fail: he is shown nothing of hers."""
    files = skill_md("ann-notes", "Only for Ann.", body="The secret of Ann.\n")
    write_files(tmp_path, {"ann/skills/ann-notes/SKILL.md": files})

    def sources(runtime: Any) -> list[str]:
        if fails == "sources" and runtime.context.name == "bob":
            raise LookupError("no such user")
        return ["/skills"]

    def backend(runtime: Any) -> BackendProtocol:
        name = runtime.context.name
        if fails == "backend" and name == "bob":
            raise LookupError("no such user")
        own = Switchable(tmp_path / name)
        own.virtual_mode = True
        own.down = {"/skills": failing()} if name == "bob" else {}
        return own

    def make() -> SkillsMiddleware[Any, Any]:
        return SkillsMiddleware(backend=backend, sources=sources, extra_tools=["search_skills"])

    middleware = make()
    ann = Chat(mode, middleware, call_tools(("load_skill", {"skill_name": "ann-notes"})), context_schema=User)
    ann.say(context=User("ann"))
    assert ann.state["skills_loaded"] == ["ann-notes"]
    asks = call_tools(("load_skill", {"skill_name": "anns-note"}), ("search_skills", {"query": "notes for Ann"}))
    if process == "new":
        middleware = make()
    bob = Chat(mode, middleware, asks, "ok", asks, saver=ann.saver, context_schema=User)
    for _ in range(2):
        bob.say(context=User("bob"))
        for request in bob.model.requests:
            assert "Only for Ann" not in request.text
            assert "secret of Ann" not in request.text
            assert "ann-notes" not in request.system
        answers = [message.text for message in tool_messages(bob.result)[1:]]
        assert "ann-notes" not in "".join(answers)
        assert bob.state["skills_metadata"] == []
        assert bob.state["skills_loaded"] == ["ann-notes"], "a failure unloads nothing"


@both_modes
@pytest.mark.parametrize("what", ["sources", "backend", "listing"])
def test_an_interrupt_in_discovery_passes_through(mode: Mode, what: str, tmp_path: Path) -> None:
    """LangGraph's own exceptions are not taken for failures."""

    def interrupt(*_: Any) -> NoReturn:
        raise GraphInterrupt

    backend: Any = {"backend": interrupt, "listing": FakeBackend(tmp_path, rules={"ls": interrupt})}.get(
        what, FilesystemBackend(tmp_path)
    )
    sources: Any = interrupt if what == "sources" else ["/skills", "/more"]
    middleware = SkillsMiddleware(backend=backend, sources=sources)
    with pytest.raises(GraphInterrupt):
        before_agent(mode, middleware, {"messages": []})


@both_modes
def test_pins_work_with_a_backend_by_function(mode: Mode, tmp_path: Path) -> None:
    """A pinned skill comes into the conversation also where a function gives the backend."""
    write_files(tmp_path, LAYERS)
    chat = Chat(mode, SkillsMiddleware(backend=lambda _runtime: FilesystemBackend(tmp_path), sources=["/base"]))
    chat.say({"messages": [HumanMessage("go")], "pinned_skills": ["shared"]})
    assert "Instructions of shared." in chat.model.requests[0].text


# Once a thread.


def hook_of(mode: Mode, middleware: SkillsMiddleware[Any, Any]) -> Callable[[Any, Any], Any]:
    if mode == "sync":
        return middleware.before_agent
    return lambda state, runtime: asyncio.run(middleware.abefore_agent(state, runtime))


def before_agent(mode: Mode, middleware: SkillsMiddleware[Any, Any], state: dict[str, Any]) -> dict[str, Any] | None:
    update: dict[str, Any] | None = hook_of(mode, middleware)(state, Runtime())
    return update


@both_modes
def test_a_new_thread_starts_with_nothing_loaded(mode: Mode, tmp_path: Path) -> None:
    """The hook writes the catalog, and empty loads and resources, where there was nothing."""
    write_files(tmp_path, LAYERS)
    middleware = SkillsMiddleware(backend=FilesystemBackend(tmp_path), sources=["/base"])
    update = before_agent(mode, middleware, {"messages": [HumanMessage("go")]})
    assert update is not None
    assert [skill["name"] for skill in update["skills_metadata"]] == ["only-base", "shared"]
    assert (update["skills_loaded"], update["skill_resources"]) == ([], {})
    chat = Chat(mode, middleware)
    chat.say()
    assert (chat.state["skills_loaded"], chat.state["skill_resources"]) == ([], {})


@both_modes
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_thread_is_searched_once(mode: Mode, kind: str, tmp_path: Path) -> None:
    """A second run on a checkpointed thread asks the backend nothing and shows the same; another thread looks again."""
    write_files(tmp_path, LAYERS)
    backend = FakeBackend(tmp_path)
    model = ScriptedChatModel(replies=[])

    def agent(saver: Any) -> Any:
        middleware = SkillsMiddleware(backend=backend, sources=["/base", "/user", "/missing"])
        return create_agent(model, middleware=[middleware], checkpointer=saver)

    inputs = [({"messages": [HumanMessage("go")]}, {"configurable": {"thread_id": thread}}) for thread in "aab"]
    database = str(tmp_path / "checkpoints.db")

    def run_each(saver: Any) -> list[int]:
        return [(run(mode, agent(saver), *each), len(backend.calls))[1] for each in inputs]

    async def run_each_in_one_loop() -> list[int]:
        async with AsyncSqliteSaver.from_conn_string(database) as saver:
            return [(await agent(saver).ainvoke(*each), len(backend.calls))[1] for each in inputs]

    if kind == "memory":
        counts = run_each(InMemorySaver())
    elif mode == "sync":
        with SqliteSaver.from_conn_string(database) as saver:
            counts = run_each(saver)
    else:
        counts = asyncio.run(run_each_in_one_loop())
    assert counts == [4, 4, 8]
    first, second, third = model.requests
    assert first.system == second.system == third.system
    assert len(shown(first.system)) == 3


@pytest.mark.parametrize("how", ["input", "state"])
def test_none_for_the_catalog_asks_again(mode: Mode, how: str, tmp_path: Path) -> None:
    """`skills_metadata=None`, in the input or in state, has skills discovered again; loaded ones stay loaded."""
    write_files(tmp_path, LAYERS)
    middleware = SkillsMiddleware(backend=FilesystemBackend(tmp_path), sources=["/base"])
    chat = Chat(mode, middleware, call_tools(("load_skill", {"skill_name": "shared"})))
    chat.say()
    write_files(tmp_path, {"base/added/SKILL.md": skill_md("added")})
    assert "added" not in shown(chat.say())
    if how == "input":
        system = chat.say({"messages": [HumanMessage("go")], "skills_metadata": None})
    else:
        chat.agent.update_state(chat.config, {"skills_metadata": None})
        system = chat.say()
    assert "added" in shown(system)
    assert chat.state["skills_loaded"] == ["shared"]


@both_modes
def test_an_agent_with_other_sources_looks_anew_on_an_old_thread(mode: Mode, tmp_path: Path) -> None:
    """A catalog made for other sources is not believed: the thread shows what the agent of today can load."""
    write_files(tmp_path, LAYERS)
    saver = InMemorySaver()
    Chat(mode, SkillsMiddleware(backend=FilesystemBackend(tmp_path), sources=["/base"]), saver=saver).say()
    load = call_tools(("load_skill", {"skill_name": "only-user"}))
    chat = Chat(mode, SkillsMiddleware(backend=FilesystemBackend(tmp_path), sources=["/user"]), load, saver=saver)
    assert sorted(shown(chat.say())) == ["only-user", "shared"]
    assert tool_messages(chat.result)[-1].status == "success"


# Refresh at every run.


@both_modes
def test_every_run_sees_added_edited_and_deleted_skills(mode: Mode, tmp_path: Path) -> None:
    """With `refresh="run"` a thread follows its sources."""
    write_files(tmp_path, {"s/keep/SKILL.md": skill_md("keep", "Old."), "s/drop/SKILL.md": skill_md("drop")})
    chat = Chat(mode, SkillsMiddleware(backend=FilesystemBackend(tmp_path), sources=["/s"], refresh="run"))
    assert shown(chat.say()) == {"drop": "Does a thing.", "keep": "Old."}
    write_files(tmp_path, {"s/keep/SKILL.md": skill_md("keep", "New."), "s/added/SKILL.md": skill_md("added")})
    shutil.rmtree(tmp_path / "s/drop")
    assert shown(chat.say()) == {"added": "Does a thing.", "keep": "New."}
    shutil.rmtree(tmp_path / "s")
    assert shown(chat.say()) == {}
    assert chat.problems == [("/s", "source-missing", "warning")]


@both_modes
def test_an_unchanged_catalog_is_not_written_again(mode: Mode, tmp_path: Path) -> None:
    """A refresh that finds what was known writes nothing to state; one that finds a change does."""
    write_files(tmp_path, {**LAYERS, "base/bad/SKILL.md": "broken"})
    backend = FakeBackend(tmp_path)
    middleware = SkillsMiddleware(backend=backend, sources=["/base", "/user", "/missing"], refresh="run")
    chat = Chat(mode, middleware, call_tools(("load_skill", {"skill_name": "shared"})))
    chat.say()
    before = chat.versions()
    chat.say()
    assert chat.versions() == before
    asked = len(backend.calls)
    assert before_agent(mode, middleware, chat.state) is None
    assert len(backend.calls) == asked + 4
    write_files(tmp_path, {"user/only-user/SKILL.md": skill_md("only-user", "Edited.")})
    chat.say()
    assert chat.versions()["skills_metadata"] != before["skills_metadata"]


@pytest.mark.parametrize("refresh", ["run", "thread"])
@pytest.mark.parametrize("kind", [name for name, (_, _, severity) in BAD_SOURCES.items() if severity == "error"])
def test_a_source_that_is_down_keeps_its_entries_and_is_tried_again(
    mode: Mode, refresh: Any, kind: str, tmp_path: Path
) -> None:
    """While a source fails its entries stay and what was loaded stays loaded; the next run looks again."""
    answer = BAD_SOURCES[kind][0]
    assert answer is not None
    write_files(tmp_path, LAYERS)
    backend = Switchable(tmp_path)
    backend.down["/user"] = answer
    middleware = SkillsMiddleware(backend=backend, sources=["/base", "/user"], refresh=refresh)
    chat = Chat(mode, middleware, "ok", call_tools(("load_skill", {"skill_name": "only-user"})))
    assert sorted(shown(chat.say())) == ["only-base", "shared"]
    backend.down.clear()
    assert sorted(shown(chat.say())) == ["only-base", "only-user", "shared"]
    assert chat.state["skills_loaded"] == ["only-user"]
    backend.down["/user"] = answer
    system = chat.say()
    assert shown(system)["shared"] == "The user's."
    assert sorted(shown(system)) == ["only-base", "only-user", "shared"]
    assert chat.state["skills_loaded"] == ["only-user"]
    if refresh == "run":
        assert ("/user", "source-failed", "error") in chat.problems
    backend.down.clear()
    chat.say()
    assert "source-failed" not in {code for _, code, _ in chat.problems}
    assert chat.state["skills_load_errors"] == []


FORGED = [{"name": "evil", "path": "/base/evil/SKILL.md"}]


@pytest.mark.parametrize("refresh", ["thread", "run"])
@pytest.mark.parametrize("given", [None, FORGED, "nonsense"], ids=["none", "forged", "nonsense"])
def test_asking_again_while_a_source_is_down_takes_nothing_away(
    mode: Mode, refresh: Any, given: Any, tmp_path: Path
) -> None:
    """A caller who overwrites the catalog gets what a failing source gave before; nothing loaded is lost."""
    write_files(tmp_path, LAYERS)
    backend = Switchable(tmp_path)
    middleware = SkillsMiddleware(backend=backend, sources=["/base", "/user"], refresh=refresh)
    chat = Chat(mode, middleware, call_tools(("load_skill", {"skill_name": "only-user"})))
    before = shown(chat.say())
    backend.down["/user"] = failing()
    assert shown(chat.say({"messages": [HumanMessage("go")], "skills_metadata": given})) == before
    assert chat.state["skills_loaded"] == ["only-user"]
    assert chat.problems[0] == ("/user", "source-failed", "error")
    chat.agent.update_state(chat.config, {"skills_metadata": given})
    assert shown(chat.say()) == before
    backend.down.clear()
    shutil.rmtree(tmp_path / "user/only-user")
    assert sorted(shown(chat.say())) == ["only-base", "shared"]


@both_modes
def test_a_catalog_that_somebody_spoiled_is_found_again(mode: Mode, tmp_path: Path) -> None:
    """A catalog in state that is not one costs what was known while its source is down, and nothing else."""
    write_files(tmp_path, LAYERS)
    spoiled: list[Any] = [None, 5, "x", ["list"], {}, {"sources": [], "entries": "no json"}]
    for value in spoiled:
        backend = Switchable(tmp_path)
        chat = Chat(mode, SkillsMiddleware(backend=backend, sources=["/base"], refresh="run"))
        before = shown(chat.say())
        chat.agent.update_state(chat.config, {"skills_catalog": value})
        backend.down["/base"] = failing()
        assert shown(chat.say()) == {}, value
        backend.down.clear()
        assert shown(chat.say()) == before, value


@pytest.mark.parametrize("kind", ["absolute", "relative"])
def test_a_source_that_is_down_when_another_process_goes_on_keeps_its_entries(
    mode: Mode, kind: str, tmp_path: Path
) -> None:
    """A thread that is resumed by another instance keeps the entries of a source that fails, and what is loaded."""
    write_files(tmp_path, {"pool/one/SKILL.md": skill_md("one"), "skills/two/SKILL.md": skill_md("two")})
    (tmp_path / "skills/one").symlink_to(tmp_path / "pool/one")
    sources = {"absolute": f"{tmp_path}/skills", "relative": "skills"}
    backend = FakeBackend(tmp_path, virtual_mode=False)
    saver = InMemorySaver()
    options: dict[str, Any] = {"backend": backend, "sources": [sources[kind]], "refresh": "run"}
    first = Chat(mode, SkillsMiddleware(**options), call_tools(("load_skill", {"skill_name": "one"})), saver=saver)
    assert sorted(shown(first.say())) == ["one", "two"]
    assert first.state["skills_loaded"] == ["one"]
    backend.rules["ls"] = unlisted("permission denied")
    later = Chat(mode, SkillsMiddleware(**options), saver=saver)
    assert sorted(shown(later.say())) == ["one", "two"]
    assert later.state["skills_loaded"] == ["one"]
    assert later.problems == [(sources[kind], "source-failed", "error")]


@both_modes
def test_a_process_that_never_read_a_source_which_is_down_keeps_what_is_loaded(mode: Mode, tmp_path: Path) -> None:
    """State tells no process what a skill is: it lists none of that source, keeps the load, and finds all later."""
    write_files(tmp_path, LAYERS)
    saver = InMemorySaver()
    first = Chat(
        mode,
        SkillsMiddleware(backend=Switchable(tmp_path), sources=["/base", "/user"]),
        call_tools(("load_skill", {"skill_name": "only-user"})),
        saver=saver,
    )
    before = shown(first.say())
    backend = Switchable(tmp_path)
    backend.down["/user"] = failing()
    later = Chat(mode, SkillsMiddleware(backend=backend, sources=["/base", "/user"]), saver=saver)
    assert sorted(shown(later.say())) == ["only-base", "shared"]
    assert later.state["skills_loaded"] == ["only-user"]
    assert "Instructions of only-user." in later.model.requests[0].text
    backend.down.clear()
    assert shown(later.say()) == before


@pytest.mark.parametrize("source", ["skills", "./skills"])
def test_a_relative_source_on_a_virtual_backend_is_kept_by_another_process_too(
    mode: Mode, source: str, tmp_path: Path
) -> None:
    """Also where the backend's own root is virtual, a relative source that is down takes nothing away."""
    write_files(tmp_path, {"skills/one/SKILL.md": skill_md("one"), "skills/two/SKILL.md": skill_md("two")})
    backend = Switchable(tmp_path)
    backend.virtual_mode = True
    saver = InMemorySaver()
    options: dict[str, Any] = {"backend": backend, "sources": [source], "refresh": "run"}
    first = Chat(mode, SkillsMiddleware(**options), call_tools(("load_skill", {"skill_name": "one"})), saver=saver)
    first.say()
    backend.down[source] = failing()
    later = Chat(mode, SkillsMiddleware(**options), saver=saver)
    assert sorted(shown(later.say())) == ["one", "two"]
    assert later.state["skills_loaded"] == ["one"]


@both_modes
def test_words_of_one_users_skills_reach_no_other_user(mode: Mode, tmp_path: Path) -> None:
    """Two users whose skills lie at the same path are each found by their own words, also while a source is down."""
    for user, word in (("ann", "alpha"), ("bob", "secret")):
        text = f"---\nname: notes\ndescription: Notes.\ntags: {word}\n---\n"
        write_files(tmp_path, {f"{user}/skills/notes/SKILL.md": text})
    backends = {user: Switchable(tmp_path / user) for user in ("ann", "bob")}
    for backend in backends.values():
        backend.virtual_mode = True
    middleware = SkillsMiddleware(backend=lambda runtime: backends[runtime.context.name], sources=["/skills"])
    chats = {user: Chat(mode, middleware, context_schema=User) for user in backends}
    for user, chat in chats.items():
        chat.say(context=User(user))
    before = {user: chat.state["skills_catalog"]["fingerprint"] for user, chat in chats.items()}
    assert before["ann"] != before["bob"]
    backends["ann"].down["/skills"] = failing()
    chats["ann"].say(context=User("ann"))
    assert chats["bob"].state["skills_catalog"]["fingerprint"] == before["bob"]
    backends["ann"].down.clear()
    chats["ann"].say(context=User("ann"))
    assert {user: chat.state["skills_catalog"]["fingerprint"] for user, chat in chats.items()} == before


class Linked(BackendProtocol):
    """A source of links, each to a place of its own."""

    def __init__(self, count: int) -> None:
        self._count = count

    def ls(self, path: str) -> LsResult:  # noqa: ARG002 - the protocol's signature
        return LsResult(entries=[{"path": f"/pool-{n}/skill-{n}/", "is_dir": True} for n in range(self._count)])

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        text = "---\nname: {0}\ndescription: Does a thing.\n---\n"
        return [FileDownloadResponse(path, text.format(path.split("/")[2]).encode()) for path in paths]


@pytest.mark.parametrize("refresh", ["thread", "run"])
def test_a_later_run_is_cheap_however_many_links_there_are(mode: Mode, refresh: Any) -> None:
    """A thread that knows thousands of linked skills looks at each of them once, not at each pair."""

    def later_run(count: int) -> Callable[[], float]:
        middleware = SkillsMiddleware(backend=Linked(count), sources=["/s"], refresh=refresh)
        state = before_agent(mode, middleware, {"messages": []})
        assert state is not None
        assert len(state["skills_metadata"]) == count

        def seconds() -> float:
            started = time.process_time()
            assert before_agent(mode, middleware, {"messages": [], **state}) is None
            return time.process_time() - started

        return seconds

    few, many = later_run(300), later_run(1200)
    assert grows_in_proportion(few, many, 4)


def grows_in_proportion(few: Callable[[], float], more: Callable[[], float], times: int) -> bool:
    """Whether so many times the work takes less than twice as many times the seconds, at their best of some tries.

    Work by pairs would take the square of it. What disturbs a try does not count, for the next may be undisturbed.
    """
    least, most = few(), more()
    for _ in range(20):
        if most < 2 * times * least:
            return True
        least, most = min(least, few()), min(most, more())
    return False


@both_modes
def test_a_skill_that_cannot_be_read_is_tried_again(mode: Mode, tmp_path: Path) -> None:
    """A file that could not be read at first is there at the next run, also with one discovery a thread."""
    write_files(tmp_path, LAYERS)
    backend = FakeBackend(tmp_path, changes={"download_files": unreadable(part="only-base")})

    chat = Chat(mode, SkillsMiddleware(backend=backend, sources=["/base"]))
    assert list(shown(chat.say())) == ["shared"]
    assert chat.problems == [("/base/only-base/SKILL.md", "skill-unreadable", "error")]
    backend.changes.clear()
    assert sorted(shown(chat.say())) == ["only-base", "shared"]
    assert chat.problems == []


# Loaded skills that go away.


def moved(root: Path) -> None:
    (root / "s/gone").rename(root / "s/elsewhere")


def deleted(root: Path) -> None:
    shutil.rmtree(root / "s/gone")


@pytest.mark.parametrize("change", [moved, deleted])
def test_a_loaded_skill_that_is_gone_is_unloaded_and_the_model_told(
    mode: Mode, change: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A loaded skill that a listing no longer has, or has elsewhere, is unloaded; requests tell the model.

    The notice stands before the user's message, which stays the last of its kind for guards, and not in state.
    """
    write_files(
        tmp_path, {"s/gone/SKILL.md": skill_md("gone"), "s/gone/scripts/x.py": "", "s/kept/SKILL.md": skill_md("kept")}
    )
    middleware = SkillsMiddleware(backend=FilesystemBackend(tmp_path), sources=["/s"], refresh="run")
    load = call_tools(("load_skill", {"skill_name": "gone"}), ("load_skill", {"skill_name": "kept"}))
    chat = Chat(mode, middleware, load)
    chat.say()
    assert chat.state["skills_loaded"] == ["gone", "kept"]
    change(tmp_path)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "deepskills"):
        chat.say()
    assert chat.state["skills_loaded"] == ["kept"]
    assert list(chat.state["skill_resources"]) == ["kept"]
    assert "gone" not in chat.state["skills_context"].get("records", {})
    assert ("/s/gone/SKILL.md", "skill-gone", "warning") in chat.problems
    assert len([line for line in caplog.messages if "skill-gone" in line]) == 1
    assert not any("No longer available" in message.text for message in chat.state["messages"])
    chat.say()
    told = []
    for request in chat.model.requests[2:]:
        [place] = [n for n, message in enumerate(request.messages) if "No longer available" in message.text]
        told.append((place, request.messages[place].text, request.messages[place + 1].id))
    assert len(told) == 2
    assert len(set(told)) == 1, "the same bytes in the same place while the message remains"
    assert "'gone'" in told[0][1]
    assert "'kept'" not in told[0][1]
    questions = [message.id for message in chat.state["messages"] if message.type == "human"]
    assert told[0][2] == questions[1]


@both_modes
def test_a_loaded_skill_whose_file_is_broken_for_a_moment_stays_loaded(mode: Mode, tmp_path: Path) -> None:
    """A file that is half saved when a run looks takes nothing away; the model is told of no loss."""
    write_files(tmp_path, {"skills/one/SKILL.md": skill_md("one"), "skills/two/SKILL.md": skill_md("two")})
    backend = FakeBackend(tmp_path)
    backend.virtual_mode = True
    middleware = SkillsMiddleware(backend=backend, sources=["/skills"], refresh="run")
    chat = Chat(mode, middleware, call_tools(("load_skill", {"skill_name": "one"})))
    chat.say()
    write_files(tmp_path, {"skills/one/SKILL.md": "---\nname: one\n---\nhalf saved"})
    chat.say()
    assert chat.state["skills_loaded"] == ["one"]
    assert chat.problems == [("/skills/one/SKILL.md", "description-missing", "error")]
    assert "Instructions of one." in chat.model.requests[-1].text
    assert "No longer available" not in chat.model.requests[-1].text
    write_files(tmp_path, {"skills/one/SKILL.md": skill_md("one")})
    assert sorted(shown(chat.say())) == ["one", "two"]
    assert chat.state["skills_loaded"] == ["one"]


@both_modes
def test_a_loaded_skill_that_is_edited_stays_loaded(mode: Mode, tmp_path: Path) -> None:
    """An edit changes the entry, not what is loaded."""
    write_files(tmp_path, {"s/one/SKILL.md": skill_md("one", "Old.")})
    middleware = SkillsMiddleware(backend=FilesystemBackend(tmp_path), sources=["/s"], refresh="run")
    chat = Chat(mode, middleware, call_tools(("load_skill", {"skill_name": "one"})))
    chat.say()
    write_files(tmp_path, {"s/one/SKILL.md": skill_md("one", "New.")})
    assert "- **one** [Loaded]: New." in chat.say()
    assert chat.state["skills_loaded"] == ["one"]


# A caller's own catalog.


def forged(name: str, path: str) -> SkillMetadata:
    return SkillMetadata(
        path=path,
        name=name,
        description="Forged.",
        license=None,
        compatibility=None,
        metadata={},
        allowed_tools=[],
    )


@pytest.mark.parametrize("when", ["first-run", "later-run"])
@pytest.mark.parametrize("virtual", [True, False], ids=["virtual", "real-paths"])
def test_a_catalog_from_the_caller_is_replaced_by_discovery(
    mode: Mode, when: str, *, virtual: bool, tmp_path: Path
) -> None:
    """What a caller puts into the input is neither shown nor read, alone or beside true entries, by load or by pin."""
    write_files(tmp_path, {**LAYERS, "secret.txt": "TOP SECRET"})
    prefix = "" if virtual else str(tmp_path)
    middleware = SkillsMiddleware(backend=FilesystemBackend(tmp_path, virtual_mode=virtual), sources=[f"{prefix}/base"])
    names = ("passwd", "secret", "shared")
    load = call_tools(*(("load_skill", {"skill_name": name}) for name in names))
    chat = Chat(mode, middleware, *(["ok"] if when == "later-run" else []), load)
    if when == "later-run":
        chat.say()
    catalog = [
        forged("passwd", "/etc/passwd"),
        forged("secret", f"{prefix}/secret.txt"),
        forged("shared", f"{prefix}/base/../secret.txt"),
    ]
    system = chat.say(
        {"messages": [HumanMessage("go")], "skills_metadata": catalog, "pinned_skills": ["passwd", "secret"]}
    )
    assert shown(system) == {"only-base": "Base alone.", "shared": "The base's."}
    answers = tool_messages(chat.result)
    assert [message.status for message in answers] == ["error", "error", "success"]
    assert chat.state["skills_loaded"] == ["shared"]
    everything = "".join(request.text for request in chat.model.requests)
    assert "root:" not in everything
    assert "TOP SECRET" not in everything


@pytest.mark.parametrize("when", ["first-run", "later-run"])
def test_a_catalog_from_the_caller_about_true_files_is_replaced_too(mode: Mode, when: str, tmp_path: Path) -> None:
    """Words that a caller puts into the mouth of a skill that does exist are not shown."""
    write_files(tmp_path, LAYERS)
    chat = Chat(mode, SkillsMiddleware(backend=FilesystemBackend(tmp_path), sources=["/base"]))
    if when == "later-run":
        chat.say()
    catalog = [forged("shared", "/base/shared/SKILL.md"), forged("obey-me", "/base/only-base/SKILL.md")]
    system = chat.say({"messages": [HumanMessage("go")], "skills_metadata": catalog})
    assert shown(system) == {"only-base": "Base alone.", "shared": "The base's."}


@both_modes
def test_private_keys_in_the_input_are_not_believed(mode: Mode, tmp_path: Path) -> None:
    """A caller cannot pass a catalog's proof, loads or problems along with it."""
    write_files(tmp_path, LAYERS)
    middleware = SkillsMiddleware(backend=FilesystemBackend(tmp_path), sources=["/base"])
    donor = Chat(mode, SkillsMiddleware(backend=FilesystemBackend(tmp_path), sources=["/user"]))
    donor.say()
    private = {key: value for key, value in donor.state.items() if key.startswith("skill")}
    chat = Chat(mode, middleware)
    system = chat.say({**private, "messages": [HumanMessage("go")], "skills_loaded": ["only-user"]})
    assert sorted(shown(system)) == ["only-base", "shared"]
    assert chat.state["skills_loaded"] == []


# What is remembered.


@both_modes
def test_a_second_thread_parses_nothing(mode: Mode, tmp_path: Path) -> None:
    """Files that one thread parsed are not parsed again for another, so it is given the very same texts."""
    write_files(tmp_path, LAYERS)
    middleware = SkillsMiddleware(backend=FilesystemBackend(tmp_path), sources=["/base"])

    def descriptions() -> dict[str, str]:
        update = before_agent(mode, middleware, {"messages": []})
        assert update is not None
        return {skill["name"]: skill["description"] for skill in update["skills_metadata"]}

    first, second = descriptions(), descriptions()
    assert first == second
    assert all(first[name] is second[name] for name in first)
    write_files(tmp_path, {"base/only-base/SKILL.md": skill_md("only-base", "Edited.")})
    third = descriptions()
    assert third["only-base"] == "Edited."
    assert third["shared"] is first["shared"]
    assert shown(Chat(mode, middleware).say()) == third


# The log.


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "deepskills"]


@both_modes
def test_a_discovery_is_one_line_and_each_problem_is_one(
    mode: Mode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """INFO says how many skills from how many sources; each problem is a line of its own, told once a thread."""
    write_files(tmp_path, {**LAYERS, "user/bad/SKILL.md": "broken"})
    backend = Switchable(tmp_path)
    backend.down["/down"] = failing("permission denied")
    sources = ["/base", "/user", "/missing", "/down"]
    chat = Chat(mode, SkillsMiddleware(backend=backend, sources=sources, refresh="run"))
    with caplog.at_level(logging.INFO, "deepskills"):
        chat.say()
    levels = [level for level, _ in lines(caplog)]
    assert sorted(levels) == ["ERROR", "ERROR", "INFO", "INFO", "WARNING"]
    info, *_ = [text for level, text in lines(caplog) if level == "INFO"]
    assert re.search(r"\b3 skills\b.*\b4 sources\b", info)
    told = {text.split(": ")[1]: text.split(": ")[0] for _, text in lines(caplog) if text != info}
    assert told == {
        "skill-shadowed": "/base/shared/SKILL.md",
        "no-frontmatter": "/user/bad/SKILL.md",
        "source-missing": "/missing",
        "source-failed": "/down",
    }
    caplog.clear()
    with caplog.at_level(logging.INFO, "deepskills"):
        chat.say()
    assert [level for level, _ in lines(caplog)] == ["INFO"]
    write_files(tmp_path, {"user/worse/SKILL.md": "broken too"})
    caplog.clear()
    with caplog.at_level(logging.INFO, "deepskills"):
        chat.say()
    assert [level for level, _ in lines(caplog)] == ["INFO", "ERROR"]


@both_modes
def test_strangers_text_forges_no_line_in_the_log(mode: Mode, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Names of directories and errors of backends stay on the line of their problem, without escapes."""
    write_files(tmp_path, {"s/a\nERROR deepskills: forged\x1b[2J/SKILL.md": "broken", **LAYERS})
    backend = Switchable(tmp_path)
    backend.down["/down"] = raises(OSError("one\nERROR deepskills: forged\x1b[2J"))
    with caplog.at_level(logging.INFO, "deepskills"):
        Chat(mode, SkillsMiddleware(backend=backend, sources=["/s", "/down"])).say()
    texts = [text for _, text in lines(caplog)]
    assert len(texts) == 3
    assert [text for text in texts if text.splitlines() != [text] or "\x1b" in text] == []


@both_modes
def test_a_thread_that_is_current_logs_nothing(mode: Mode, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a discovery there is nothing to tell."""
    write_files(tmp_path, LAYERS)
    chat = Chat(mode, SkillsMiddleware(backend=FilesystemBackend(tmp_path), sources=["/base", "/missing"]))
    chat.say()
    caplog.clear()
    with caplog.at_level(logging.INFO, "deepskills"):
        chat.say()
    assert lines(caplog) == []


# What the constructor refuses.


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"refresh": "always"}, "refresh"),
        ({"refresh": None}, "refresh"),
        ({"loaded_status": "nowhere"}, "loaded_status"),
        ({"max_depth": 0}, "max_depth"),
        ({"max_depth": -1}, "max_depth"),
        ({"max_depth": 1.5}, "max_depth"),
        ({"max_depth": True}, "max_depth"),
        ({"backend_timeout": 0}, "backend_timeout"),
        ({"backend_timeout": -1.0}, "backend_timeout"),
        ({"backend_timeout": float("nan")}, "backend_timeout"),
        ({"max_loaded_skills": -1}, "max_loaded_skills"),
        ({"max_loaded_tokens": -1}, "max_loaded_tokens"),
    ],
    ids=str,
)
def test_a_value_that_an_option_does_not_know_is_refused(options: dict[str, Any], name: str) -> None:
    """A wrong value is a `ValueError` at once that names the option and the value."""
    with pytest.raises(ValueError, match=name) as caught:
        SkillsMiddleware(backend=StateBackend(), sources=[], **options)
    assert repr(next(iter(options.values()))) in str(caught.value)


@pytest.mark.parametrize("backend", ["/skills", 7, Path("/skills")], ids=repr)
def test_a_backend_that_is_none_is_refused(backend: Any) -> None:
    """What is neither a backend nor a function is a `TypeError` at once."""
    with pytest.raises(TypeError, match="backend must be"):
        SkillsMiddleware(backend=backend, sources=[])


def test_one_instance_serves_many_threads_at_once(tmp_path: Path) -> None:
    """Runs at the same time on one instance, half of them async, each see their own user's skills."""
    personal_files(tmp_path)
    middleware = by_sources(tmp_path)

    async def one(number: int) -> tuple[str, Sequence[str]]:
        name = ("ann", "bob")[number % 2]
        model = ScriptedChatModel(replies=[])
        agent = create_agent(model, middleware=[middleware], context_schema=User)
        given = {"messages": [HumanMessage("go")]}
        if number % 4 < 2:
            await agent.ainvoke(given, context=User(name))  # type: ignore[call-overload]
        else:
            await asyncio.to_thread(lambda: agent.invoke(given, context=User(name)))  # type: ignore[call-overload]
        return name, sorted(shown(model.requests[0].system))

    async def all_of_them() -> list[tuple[str, Sequence[str]]]:
        return await asyncio.gather(*(one(number) for number in range(scaled(16, 50))))

    for name, names in asyncio.run(all_of_them()):
        assert names == [f"{name}-notes", "common"]
