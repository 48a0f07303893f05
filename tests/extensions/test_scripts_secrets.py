"""Secrets of scripts: the process has them, and nothing else: no message, state, checkpoint, event, log or error."""

import asyncio
import base64
import logging
import os
import sys
import threading
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deepagents.backends import CompositeBackend, FilesystemBackend, LocalShellBackend
from deepagents.backends.protocol import ExecuteResponse
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from deepskills import SkillsMiddleware
from deepskills.extensions import SkillScripts
from deepskills.testing import ScriptedChatModel, call_tools
from support import MODES, Conversation, Mode, both_modes, load, skill_md, tool_messages, write_files
from support.waiting import at_once

VALUE = "sk-live/T0p+Sëcret 'q'\"&=42"
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

FORMS = (
    VALUE,
    VALUE[3:-3],
    base64.b64encode(VALUE.encode()).decode(),
    base64.b64encode(VALUE.encode()).decode().rstrip("="),
    base64.urlsafe_b64encode(VALUE.encode()).decode(),
    base64.b64encode(b"user:" + VALUE.encode()).decode()[8:-4],
    urllib.parse.quote(VALUE),
    urllib.parse.quote(VALUE, safe=""),
    urllib.parse.quote_plus(VALUE),
    VALUE.encode().hex(),
)
"""What must be found nowhere."""

PRINTS_ALL = """
import base64, json, os, sys, urllib.parse
v = os.environ['KEY']
print('used', len(v))
print(v, repr(v), json.dumps(v), file=sys.stderr)
print(base64.b64encode(v.encode()).decode(), base64.urlsafe_b64encode(v.encode()).decode())
print(base64.encodebytes(b'x' * 61 + v.encode()).decode(), base64.b64encode(b'user:' + v.encode()).decode())
print(urllib.parse.quote(v), urllib.parse.quote(v, safe=''), urllib.parse.quote_plus(v), v.encode().hex())
"""

SCRIPTS = {
    "prints.py": PRINTS_ALL,
    "exits.py": PRINTS_ALL + "sys.exit(5)\n",
    "raises.py": "import os\nraise RuntimeError('cannot use ' + os.environ['KEY'])\n",
    "traces.sh": 'set -x\ncurl_command="$KEY"\necho "$KEY" | base64\nenv\n',
    "hangs.py": PRINTS_ALL + "sys.stdout.flush(); import time; time.sleep(60)\n",
    "much.py": PRINTS_ALL + "for _ in range(3000): print(v, end='')\n",
    "binary.py": "import os\nos.write(1, os.environ['KEY'].encode('utf-16-le') + bytes(200))\n",
    "unknown.xyz": "nothing runs this\n",
    "none.py": "#!/usr/bin/env no-such-program\n",
}


class LeakyShell(LocalShellBackend):
    """A backend whose failures repeat everything that it was given."""

    fails_at = ""

    def upload_files(self, files: list[tuple[str, bytes]]) -> Any:
        if self.fails_at == "upload":
            raise OSError(f"cannot write {files!r} {b''.join(content for _, content in files).decode()}")
        return super().upload_files(files)

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        if self.fails_at == "execute" and "/job" in command:
            job = next(Path(self.cwd).glob(".deepskills-*/job")).read_text()
            raise OSError(f"cannot run {command} with {job}")
        if self.fails_at == "answer" and "/job" in command:
            return ExecuteResponse(next(Path(self.cwd).glob(".deepskills-*/job")).read_text(), exit_code=1)
        return super().execute(command, timeout=timeout)


def converse(mode: Mode, middleware: SkillsMiddleware, *script_names: str) -> tuple[dict[str, str], str]:
    """Run scripts in one turn of an agent; return the answer for each, and all that can be seen of the run."""
    calls = [("run_skill_script", {"skill_name": "tool", "script_name": name}) for name in script_names]
    model = ScriptedChatModel(replies=[call_tools(load("tool")), call_tools(*calls)])
    saver = InMemorySaver()
    agent = create_agent(model, middleware=[middleware], checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "1"}}
    given: Any = {"messages": [HumanMessage("go")]}
    modes: Any = ["values", "updates", "custom", "messages", "tasks", "checkpoints"]

    async def astream() -> list[Any]:
        return [event async for event in agent.astream(given, config, stream_mode=modes)]

    events = list(agent.stream(given, config, stream_mode=modes)) if mode == "sync" else asyncio.run(astream())
    state = agent.get_state(config)
    raw = [value[1] for value in saver.blobs.values()]
    raw += [write[2][1] for writes in saver.writes.values() for write in writes.values()]
    seen = [repr(events), repr(state), repr([request.messages for request in model.requests])]
    seen += [data.decode(errors="replace") for data in raw]
    answers = tool_messages(state.values)[-len(script_names) :]
    return dict(zip(script_names, (answer.text for answer in answers), strict=True)), "\n".join(seen)


def leaks(seen: str) -> list[str]:
    """Return the forms of the secret that a text holds, also as `repr` writes them."""
    return [form for form in FORMS if form in seen or repr(form)[1:-1] in seen]


def environment(root: Path) -> dict[str, str]:
    """Return variables for a shell whose temporary directory is its own."""
    (root / "temporary").mkdir(exist_ok=True)
    return {"PATH": PATH, "TMPDIR": str(root / "temporary")}


def skills(backend: Any, **options: Any) -> SkillsMiddleware:
    scripts = SkillScripts(**{"env": lambda _runtime, _skill: {"KEY": VALUE}, **options})
    return SkillsMiddleware(backend=backend, sources=["/skills"], extensions=[scripts])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with a skill whose scripts try to give their secret away."""
    files = {f"skills/tool/scripts/{name}": content for name, content in SCRIPTS.items()}
    write_files(tmp_path, {"skills/tool/SKILL.md": skill_md("tool"), **files})
    return tmp_path


@both_modes
def test_no_script_gives_its_secret_away(mode: Mode, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a script prints and however it ends, the value is in its process alone."""
    caplog.set_level(logging.DEBUG)
    backend = LocalShellBackend(root_dir=root, env=environment(root))
    others = [name for name in (*SCRIPTS, "missing.py", "../x.py") if name != "hangs.py"]
    answers, seen = converse(mode, skills(backend), *others)
    late, seen_of_late = converse(mode, skills(backend, timeout=1), "hangs.py")
    answers |= late
    assert {name: forms for name, text in answers.items() if (forms := leaks(text))} == {}
    assert leaks(seen) == leaks(seen_of_late) == leaks(caplog.text) == []
    used = {name for name, text in answers.items() if f"used {len(VALUE)}" in text}
    # A busy machine may not have got as far before the limit.
    assert used - {"hangs.py"} == {"prints.py", "exits.py", "much.py"}
    assert "RuntimeError: cannot use [secret]" in answers["raises.py"]
    assert "KEY=[secret]" in answers["traces.sh"]
    assert "timed out after 1 s" in answers["hangs.py"]
    assert list(root.glob(".deepskills*")) == []
    assert list((root / "temporary").iterdir()) == []


@both_modes
def test_no_failure_gives_a_secret_away(mode: Mode, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Backends, runners and functions whose errors repeat what they were given leave no trace of it."""
    caplog.set_level(logging.DEBUG)

    def leaky(fails_at: str) -> SkillsMiddleware:
        backend = LeakyShell(root_dir=root, env=environment(root))
        backend.fails_at = fails_at
        return skills(backend)

    def env_that_fails(_runtime: Any, _skill: Any) -> Any:
        raise KeyError(f"no key like {VALUE}")

    async def aenv_that_fails(_runtime: Any, _skill: Any) -> Any:
        raise KeyError(f"no key like {VALUE}")

    def runner_that_fails(*given: Any) -> Any:
        raise RuntimeError(f"cannot run {given!r} {given[3]['KEY']}")

    files = FilesystemBackend(root_dir=root, virtual_mode=True)
    shell = LocalShellBackend(root_dir=root, env=environment(root))
    cases: dict[str, tuple[Callable[[], SkillsMiddleware], str]] = {
        "upload": (lambda: leaky("upload"), "could not be written"),
        "execute": (lambda: leaky("execute"), "cannot run"),
        "answer": (lambda: leaky("answer"), "before the script had finished"),
        "env": (lambda: skills(shell, env=env_that_fails), "could not be prepared (KeyError)"),
        "async env": (lambda: skills(shell, env=aenv_that_fails), "could not be prepared (KeyError)"),
        "name": (lambda: skills(shell, env=lambda *_: {VALUE: "x"}), "name no shell takes"),
        "kind": (lambda: skills(shell, env=lambda *_: {"KEY": VALUE.encode()}), "value of the variable KEY"),
        "NUL": (lambda: skills(shell, env=lambda *_: {"KEY": VALUE + "\x00"}), "value of the variable KEY"),
        "list": (lambda: skills(shell, env=lambda *_: [VALUE]), "not a mapping"),
        "runner": (lambda: skills(files, runner=runner_that_fails), "failed: RuntimeError: cannot run"),
        "runner's output": (lambda: skills(files, runner=lambda *given: ExecuteResponse(given[3]["KEY"])), "[secret]"),
        "runner's answer": (lambda: skills(files, runner=lambda *given: given), "returned tuple"),
    }
    found = {}
    for name, (make, told) in cases.items():
        answers, seen = converse(mode, make(), "prints.py")
        assert told in answers["prints.py"], (name, answers)
        found[name] = leaks(seen)
    assert {name: forms for name, forms in found.items() if forms} == {}
    assert leaks(caplog.text) == []
    assert list(root.glob(".deepskills*")) == []
    assert list((root / "temporary").iterdir()) == []


@both_modes
def test_the_operator_hears_of_an_environment_that_fails(mode: Mode, root: Path) -> None:
    """A function that raises, or gives what no process takes, is an error among the thread's problems, and no value."""

    def raises(_runtime: Any, _skill: Any) -> Any:
        raise KeyError(f"no key like {VALUE}")

    backend = LocalShellBackend(root_dir=root, env=environment(root))
    functions: list[Any] = [raises, lambda *_: [VALUE], lambda *_: {"KEY": VALUE.encode()}, lambda *_: {VALUE: "x"}]
    for env in functions:
        talk = Conversation(mode, skills(backend, env=env))
        talk.call(load("tool"))
        calls = [("run_skill_script", {"skill_name": "tool", "script_name": "prints.py"})] * 2
        assert [answer.status for answer in talk.call(*calls)] == ["error", "error"]
        told = [problem for problem in talk.state["skills_problems"] if problem["code"] == "script-env-failed"]
        assert [(problem["severity"], problem["path"]) for problem in told] == [("error", "/skills/tool/SKILL.md")]
        assert leaks(str(told)) == []


class WatchedFiles(FilesystemBackend):
    """Remembers what was written."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.written: list[str] = []

    def upload_files(self, files: list[tuple[str, bytes]]) -> Any:
        self.written += [path for path, _content in files]
        return super().upload_files(files)


@both_modes
def test_only_the_shell_is_given_secrets(mode: Mode, root: Path) -> None:
    """A backend to which the temporary directory is routed, such as the thread's own state, gets nothing to keep."""
    top = f"/{root.parts[1]}/"
    files = WatchedFiles(root_dir=top, virtual_mode=True)
    shell = LocalShellBackend(root_dir=root, env=environment(root), virtual_mode=False)
    routes: dict[str, Any] = dict.fromkeys({top, "/tmp/"}, files)
    scripts = SkillScripts(env=lambda _runtime, _skill: {"KEY": VALUE})
    middleware = SkillsMiddleware(
        backend=CompositeBackend(default=shell, routes=routes), sources=[str(root / "skills")], extensions=[scripts]
    )
    answers, seen = converse(mode, middleware, "prints.py")
    assert f"used {len(VALUE)}" in answers["prints.py"]
    assert leaks(seen) == []
    assert files.written == []


def test_secrets_that_do_not_arrive_in_time_cost_the_call(root: Path) -> None:
    """A function that hangs, sync or async, does not hold up the run."""
    over = threading.Event()

    def slow(*_: Any) -> Any:
        over.wait(60)

    async def aslow(*_: Any) -> Any:
        await asyncio.sleep(60)

    backend = LocalShellBackend(root_dir=root, env=environment(root))
    cases: list[tuple[Mode, Any]] = [(mode, env) for mode in MODES for env in (slow, aslow)]
    found = at_once(lambda case: converse(case[0], skills(backend, env=case[1], timeout=1), "prints.py")[0], cases)
    over.set()
    assert ["could not be prepared (TimeoutError)" in answers["prints.py"] for answers in found] == [True] * 4, found


@both_modes
def test_each_skill_and_user_has_secrets_of_its_own(mode: Mode, root: Path) -> None:
    """The function is asked at each call, with the run's runtime and the skill; none and an empty one are fine."""
    asked: list[tuple[str, str]] = []
    given: list[dict[str, str] | None] = [{"KEY": "first-key"}, {}, None]

    def env(runtime: Any, skill: Any) -> dict[str, str] | None:
        asked.append((runtime.config["configurable"]["thread_id"], skill.name))
        return given[len(asked) - 1]

    write_files(root, {"skills/tool/scripts/len.py": "import os; print('length', len(os.environ.get('KEY', '')))"})
    middleware = skills(LocalShellBackend(root_dir=root, env=environment(root)), env=env)
    lengths = [converse(mode, middleware, "len.py")[0]["len.py"].strip().rpartition("\n")[2] for _ in given]
    assert lengths == ["length 9", "length 0", "length 0"]
    assert asked == [("1", "tool")] * 3
