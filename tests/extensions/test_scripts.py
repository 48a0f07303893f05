"""`run_skill_script` in real agents: who may run what, through which backend, and what the model reads."""

import asyncio
import json
import os
import shutil
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deepagents.backends import CompositeBackend, FilesystemBackend, LocalShellBackend
from deepagents.backends.protocol import ExecuteResponse
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from deepskills import InlineBackend, InlineSkill, SkillsMiddleware
from deepskills.extensions import SkillScripts, ToolPolicy
from deepskills.testing import ScriptedChatModel, call_tools
from support import MODES, Conversation, Mode, both_modes, load, run, skill_md, tool_messages, unload, write_files
from support.waiting import at_once, found_processes, is_gone, new_mark, wait_until

EXAMPLES = Path(__file__).parents[2] / "examples" / "skills"

ENVIRONMENT = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}


def script(name: str = "run.py", args: Any = (), skill: str = "tool") -> tuple[str, dict[str, Any]]:
    """Return a call of `run_skill_script`, as `call_tools` takes it."""
    return "run_skill_script", {"skill_name": skill, "script_name": name, "args": list(args)}


def shell(root: Path, **options: Any) -> LocalShellBackend:
    """Return a backend with a shell; what its commands write to the temporary directory lies below the root."""
    (root / "temporary").mkdir(exist_ok=True)
    return LocalShellBackend(root_dir=root, env={**ENVIRONMENT, "TMPDIR": str(root / "temporary")}, **options)


def write_skill(root: Path, **scripts: str | bytes) -> None:
    """Write a skill named `tool` with these scripts, named by their stem and written in Python."""
    files = {f"skills/tool/scripts/{name}.py": content for name, content in scripts.items()}
    write_files(root, {"skills/tool/SKILL.md": skill_md("tool"), **files})


def talk_to(mode: Mode, root: Path, scripts: SkillScripts | None = None, **options: Any) -> Conversation:
    """Return a conversation with an agent that can run scripts, in which `tool` is loaded."""
    backend = options.pop("backend", None) or shell(root)
    middleware = SkillsMiddleware(
        backend=backend, sources=["/skills"], extensions=[scripts or SkillScripts()], **options
    )
    talk = Conversation(mode, middleware)
    talk.call(load("tool"))
    return talk


def left_behind(root: Path) -> list[str]:
    """Return what commands left in the places that they write to."""
    return [path.name for path in [*(root / "temporary").iterdir(), *root.glob(".deepskills*"), *root.glob("tmp")]]


@both_modes
def test_the_scripts_of_the_example_skills_do_their_work(mode: Mode, tmp_path: Path) -> None:
    """A CSV file is profiled and a timeline is sorted, with files of the working directory."""
    shutil.copytree(EXAMPLES, tmp_path / "skills")
    (tmp_path / "sales of may.csv").write_text("region,amount\nnorth,10\nsouth,30\n")
    (tmp_path / "events.txt").write_text(
        "2024-05-01T14:30:00Z | fixed | chat\n2024-05-01 16:02 +02:00 | alert | pager\n"
    )
    middleware = SkillsMiddleware(backend=shell(tmp_path), sources=["/skills"], extensions=[SkillScripts()])
    talk = Conversation(mode, middleware)
    talk.call(load("csv-report"), load("incident-review"))
    profile, timeline = talk.call(
        script("profile_csv.py", ["sales of may.csv"], "csv-report"),
        script("scripts/sort_timeline.py", ["events.txt", "--gap", 15], "Incident-Review"),
    )
    assert profile.text.startswith("The script ended with exit code 0. Its output:\n")
    assert "amount" in profile.text
    assert (profile.status, profile.artifact) == ("success", {"exit_code": 0})
    rows = [line for line in timeline.text.splitlines() if line.startswith("| ")]
    assert rows[2:] == [
        "| 2024-05-01 14:02 | alert | pager |",
        "| | *gap of 28 minutes* | |",
        "| 2024-05-01 14:30 | fixed | chat |",
    ]


@both_modes
def test_only_scripts_of_loaded_skills_run(mode: Mode, tmp_path: Path) -> None:
    """What is not loaded, hidden, unknown, elsewhere or not a script is refused with a reason, and nothing runs."""
    write_skill(tmp_path, run="open('ran', 'w')")
    write_files(
        tmp_path,
        {
            "skills/other/SKILL.md": skill_md("other"),
            "skills/other/scripts/run.py": "open('ran', 'w')",
            "skills/hidden/SKILL.md": skill_md("hidden", disable_model_invocation="true"),
            "outside.py": "open('ran', 'w')",
            "skills/tool/scripts/dir/x.txt": "no script",
            "skills/tool/references/run.py": "open('ran', 'w')",
        },
    )
    (tmp_path / "skills/tool/scripts/link.py").symlink_to(tmp_path / "outside.py")
    talk = talk_to(mode, tmp_path)
    refused = {
        ("other", "run.py"): "not loaded. Call `load_skill` first",
        ("hidden", "run.py"): "No loaded skill is named `hidden`. Loaded now: `tool`.",
        ("nothing", "run.py"): "No loaded skill is named `nothing`. Loaded now: `tool`.",
        ("tool", "missing.py"): "has no file",
        ("tool", "../../../outside.py"): "refused",
        ("tool", "../references/run.py"): "refused",
        ("tool", "/etc/passwd"): "refused",
        ("tool", "link.py"): "leads out",
        ("tool", "dir"): "has no file",
        ("tool", "dir/x.txt"): "Cannot tell which program runs",
        ("tool", ""): "refused",
        ("tool", "run.py\x00"): "refused",
    }
    answers = talk.call(*(script(name, skill=skill) for skill, name in refused))
    differing = [
        (call, answer.text)
        for (call, reason), answer in zip(refused.items(), answers, strict=True)
        if reason not in answer.text or answer.status != "error"
    ]
    assert differing == []
    [nul] = talk.call(script(args=["a\x00b"]))
    assert "NUL" in nul.text
    assert not (tmp_path / "ran").exists()
    talk.call(unload("tool"))
    assert "not loaded" in talk.call(script())[0].text
    assert not (tmp_path / "ran").exists()


@both_modes
def test_arguments_arrive_as_they_are(mode: Mode, tmp_path: Path) -> None:
    """Spaces, quotes, substitutions, newlines, options and 100 KB reach the script as the model gave them."""
    write_skill(tmp_path, run="import sys, json; json.dump(sys.argv[1:], open('given', 'w'))")
    talk = talk_to(mode, tmp_path)
    for given in (["a b", "'\"", "$(touch pwned)", "`id`", "a\nb", "--help", "-", "", "é周"], ["x'" * 50_000, "y"], []):
        [answer] = talk.call(script(args=given))
        assert answer.text == "The script ended with exit code 0. It wrote nothing."
        assert json.loads((tmp_path / "given").read_text()) == given
    assert not (tmp_path / "pwned").exists()
    assert left_behind(tmp_path) == []


def test_arguments_that_models_like_to_send_are_taken(tmp_path: Path) -> None:
    """No list at all is an empty one, and numbers are text; anything else is told to be wrong."""
    write_skill(tmp_path, run="import sys; print(sys.argv[1:])")
    talk = talk_to("sync", tmp_path)
    given = {"skill_name": "tool", "script_name": "run.py"}
    taken = talk.call(*(("run_skill_script", {**given, "args": args}) for args in (None, [1, 2.5], "--all", [None])))
    assert [answer.text.partition("output:\n")[2] for answer in taken[:2]] == ["[]\n", "['1', '2.5']\n"]
    assert [answer.status for answer in taken[2:]] == ["error", "error"]


def test_the_schema_names_its_parameters(tmp_path: Path) -> None:
    """The model sees `skill_name`, `script_name` and an optional list `args`."""
    write_skill(tmp_path)
    middleware = SkillsMiddleware(backend=shell(tmp_path), sources=["/skills"], extensions=[SkillScripts()])
    [tool] = [tool for tool in middleware.tools if tool.name == "run_skill_script"]
    schema: Any = tool.tool_call_schema
    properties = schema.model_json_schema()
    assert list(properties["properties"]) == ["skill_name", "script_name", "args"]
    assert properties["required"] == ["skill_name", "script_name"]


@both_modes
def test_the_tool_is_offered_where_it_can_work(mode: Mode, tmp_path: Path) -> None:
    """Without a shell and without a runner the model does not see the tool, and a call of it is refused."""
    write_skill(tmp_path, run="print(1)")
    files = FilesystemBackend(root_dir=tmp_path, virtual_mode=True)
    without = talk_to(mode, tmp_path, backend=files)
    [answer] = without.call(script())
    assert "run_skill_script" not in without.model.requests[0].tools
    assert "load_skill" in without.model.requests[0].tools
    assert answer.status == "error"
    assert "cannot be run here" in answer.text
    by_runner = talk_to(mode, tmp_path, SkillScripts(lambda *_: ExecuteResponse("ran")), backend=files)
    assert "run_skill_script" in by_runner.model.requests[0].tools
    with_shell = talk_to(mode, tmp_path, backend=CompositeBackend(default=shell(tmp_path), routes={}))
    assert "run_skill_script" in with_shell.model.requests[0].tools


@both_modes
def test_one_problem_says_that_nothing_can_run_scripts(mode: Mode, tmp_path: Path) -> None:
    """It names `runner`, once in a thread; with a shell or a runner there is none."""
    write_skill(tmp_path, run="print(1)")
    files = FilesystemBackend(root_dir=tmp_path, virtual_mode=True)
    without = talk_to(mode, tmp_path, backend=files)
    without.say("Done.")
    [found] = without.state["skills_problems"]
    assert (found["code"], found["severity"]) == ("script-runner-missing", "warning")
    assert "SkillScripts(runner=...)" in found["message"]
    by_runner = talk_to(mode, tmp_path, SkillScripts(lambda *_: ExecuteResponse("ran")), backend=files)
    assert by_runner.state["skills_problems"] == talk_to(mode, tmp_path).state["skills_problems"] == []


@both_modes
def test_a_runner_runs_where_the_backend_cannot(mode: Mode, tmp_path: Path) -> None:
    """A function, sync or async, is given what it needs; with a shell in the backend it is not asked."""
    write_skill(tmp_path, run="print('by the shell')")
    files = FilesystemBackend(root_dir=tmp_path, virtual_mode=True)
    given: list[Any] = []

    def runner(*values: Any) -> ExecuteResponse:
        given.append(values)
        return ExecuteResponse("done with value-of-key", exit_code=3)

    async def arunner(*values: Any) -> ExecuteResponse:
        await asyncio.sleep(0)
        return runner(*values)

    for function in (runner, arunner):
        scripts = SkillScripts(function, env=lambda _runtime, _skill: {"KEY": "value-of-key"}, timeout=7)
        [answer] = talk_to(mode, tmp_path, scripts, backend=files).call(script(args=["a b"]))
        assert answer.text == "The script ended with exit code 3. Its output:\ndone with [secret]"
        path = str(tmp_path / "skills/tool/scripts/run.py")
        assert given.pop() == ("tool", path, ["a b"], {"KEY": "value-of-key"}, 7)
        [answer] = talk_to(mode, tmp_path, SkillScripts(function)).call(script())
        assert "by the shell" in answer.text
        assert given == []


@both_modes
def test_a_runner_that_fails_costs_its_call(mode: Mode, tmp_path: Path) -> None:
    """One that raises, leaves the process or answers nonsense is told; the run goes on."""

    def broken() -> ExecuteResponse:
        raise RuntimeError("no machine left for value-of-key")

    def exits() -> ExecuteResponse:
        sys.exit("value-of-key")

    async def aexits(*_given: Any) -> ExecuteResponse:
        sys.exit("value-of-key")

    functions: dict[str, Any] = {"broken": broken, "exits": exits, "wrong": lambda: "text"}
    told = {
        "broken": "no machine left for [secret]",
        "exits": "it called exit('[secret]')",
        "aexits": "it called exit('[secret]')",
        "wrong": "returned str",
    }
    write_skill(tmp_path, **dict.fromkeys(told, "print(1)"))
    runner: Any = lambda _skill, path, *_given: functions[Path(path).stem]()  # noqa: E731 - returns what each returns
    for function, names in ((runner, tuple(functions)), (aexits, ("aexits",))):
        scripts = SkillScripts(function, env=lambda _runtime, _skill: {"KEY": "value-of-key"})
        talk = talk_to(mode, tmp_path, scripts, backend=FilesystemBackend(root_dir=tmp_path, virtual_mode=True))
        answers = dict(zip(names, talk.call(*(script(f"{name}.py") for name in names)), strict=True))
        assert {name: answer.text for name, answer in answers.items() if told[name] not in answer.text} == {}
        assert {answer.status for answer in answers.values()} == {"error"}
        assert talk.result["messages"][-1].text == "Done."


def test_a_runner_that_does_not_answer_costs_its_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that hangs, sync or async, is told to be late; the run goes on."""
    monkeypatch.setattr("deepskills.extensions.scripts.tool.RUNNER_GRACE_SECONDS", -0.9)
    write_skill(tmp_path, run="print(1)")
    over = threading.Event()

    def late(*_given: Any) -> ExecuteResponse:
        over.wait(60)
        return ExecuteResponse("late")

    async def alate(*_given: Any) -> ExecuteResponse:
        await asyncio.sleep(60)
        return ExecuteResponse("late")

    for mode in MODES:
        for function in (late, alate):
            files = FilesystemBackend(root_dir=tmp_path, virtual_mode=True)
            talk = talk_to(mode, tmp_path, SkillScripts(function, timeout=1), backend=files)
            [answer] = talk.call(script())
            assert (answer.status, "in time" in answer.text) == ("error", True), (mode, function, answer.text)
            assert talk.result["messages"][-1].text == "Done."
    over.set()


@both_modes
def test_each_user_has_a_shell_of_their_own(mode: Mode, tmp_path: Path) -> None:
    """With a factory of backends scripts run in the user's own directory, and not at all for one without a shell."""

    @dataclass
    class Context:
        user: str

    for user in ("ada", "bob", "eve"):
        write_skill(tmp_path / user, run=f"import os; print('{user}', os.path.basename(os.getcwd()))")

    def backend(runtime: Any) -> Any:
        root = tmp_path / runtime.context.user
        return FilesystemBackend(root_dir=root) if runtime.context.user == "eve" else shell(root)

    model = ScriptedChatModel(replies=[call_tools(load("tool")), call_tools(script())] * 3)
    middleware: Any = SkillsMiddleware(backend=backend, sources=["/skills"], extensions=[SkillScripts()])
    agent = create_agent(model, middleware=[middleware], context_schema=Context)
    for user in ("ada", "bob"):
        model.requests.clear()
        answer = tool_messages(run(mode, agent, context=Context(user)))[-1]
        assert answer.text.endswith(f"Its output:\n{user} {user}\n")
    model.requests.clear()
    assert "cannot be run here" in tool_messages(run(mode, agent, context=Context("eve")))[-1].text
    assert "run_skill_script" not in model.requests[0].tools


def test_a_backend_that_is_made_for_a_run_is_made_where_it_can_be(tmp_path: Path) -> None:
    """A factory that needs the event loop is called on it, any other never, with and without a shell."""
    write_skill(tmp_path, run="print('ran')")
    made_on_loop: list[bool] = []

    def needing_the_loop(_runtime: Any) -> LocalShellBackend:
        asyncio.get_running_loop()
        return shell(tmp_path)

    def blocking(_runtime: Any) -> FilesystemBackend:
        try:
            made_on_loop.append(bool(asyncio.get_running_loop()))
        except RuntimeError:
            made_on_loop.append(False)
        return FilesystemBackend(root_dir=tmp_path, virtual_mode=True)

    talk = talk_to("async", tmp_path, backend=needing_the_loop)
    assert "ran" in talk.call(script())[0].text
    assert talk.state["skills_problems"] == []
    without = talk_to("async", tmp_path, backend=blocking)
    assert "cannot be run here" in without.call(script())[0].text
    assert set(made_on_loop) == {False}


@both_modes
def test_inline_skills_bring_scripts_along(mode: Mode, tmp_path: Path) -> None:
    """A script written in Python code runs in the shell of the backend that its own is mounted in."""
    content = "import os, sys, words; print(words.hello(), sys.argv[1], len(os.environ.get('KEY', '')))"
    helper = "import pathlib\ndef hello(): return (pathlib.Path(__file__).parents[1] / 'assets/hello.txt').read_text()"

    def broken() -> str:
        raise ValueError("not today")

    files: dict[str, Any] = {
        "scripts/run.py": lambda: content,
        "scripts/words.py": helper,
        "assets/hello.txt": "hello",
        "assets/large.bin": bytes(5_000_000),
        "assets/broken.txt": broken,
    }
    skill = InlineSkill("tool", "Runs.", "Run it.", files=files)
    backend = CompositeBackend(default=shell(tmp_path), routes={"/skills/": InlineBackend([skill])})
    given: dict[str, str] = {}
    for key, size in (("", 0), ("value-of-key", 12)):
        given.update({"KEY": key} if key else {})
        scripts = SkillScripts(env=lambda _runtime, _skill: given)
        [answer] = talk_to(mode, tmp_path, scripts, backend=backend).call(script(args=["a b"]))
        assert answer.text.endswith(f"Its output:\nhello a b {size}\n")
    assert left_behind(tmp_path) == []


@both_modes
def test_another_file_at_the_path_of_a_script_does_not_run(mode: Mode, tmp_path: Path) -> None:
    """Where a route shows a skill at a path that the shell's machine has too, the skill's own script runs."""
    write_skill(tmp_path / "machine", run="print('of the machine')")
    skill = InlineSkill("tool", "Runs.", "Run it.", files={"scripts/run.py": "print('of the skill')"})
    place = f"{tmp_path}/machine/skills"
    backend = CompositeBackend(default=shell(tmp_path), routes={f"{place}/": InlineBackend([skill])})
    talk = Conversation(mode, SkillsMiddleware(backend=backend, sources=[place], extensions=[SkillScripts()]))
    talk.call(load("tool"))
    assert talk.call(script())[0].text.endswith("Its output:\nof the skill\n")


@both_modes
def test_scripts_run_whatever_the_model_may_read(mode: Mode, tmp_path: Path) -> None:
    """`asset_directories` is about files that the model reads, not about scripts that run."""
    write_skill(tmp_path, run="print('ran')")
    [answer] = talk_to(mode, tmp_path, asset_directories=["references"]).call(script())
    assert answer.text.endswith("Its output:\nran\n")


@both_modes
def test_failures_of_a_script_are_told(mode: Mode, tmp_path: Path) -> None:
    """Exit codes, signals, both streams, bytes that are not text and huge output reach the model in bounds."""
    write_skill(
        tmp_path,
        fails="import sys; print('out'); print('err', file=sys.stderr, flush=True); sys.exit(3)",
        killed="import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        raises="raise ValueError('no such column')",
        bytes="import os; os.write(1, b'caf\\xe9 au lait')",
        binary="import os; os.write(1, bytes(range(256)) * 100)",
        huge="for n in range(200_000): print('line', n)",
    )
    names = ("fails", "killed", "raises", "bytes", "binary", "huge")
    answers = dict(zip(names, talk_to(mode, tmp_path).call(*(script(f"{name}.py") for name in names)), strict=True))
    assert answers["fails"].text == "The script ended with exit code 3. Its output:\nerr\nout\n"
    assert answers["fails"].artifact == {"exit_code": 3}
    assert "exit code 137 (ended by SIGKILL)" in answers["killed"].text
    assert "ValueError: no such column" in answers["raises"].text
    assert answers["bytes"].text.endswith("caf\ufffd au lait")
    assert "not text: 25,600 bytes" in answers["binary"].text
    huge = answers["huge"].text.partition("Its output:\n")[2]
    assert len(huge) <= 20_000
    assert huge.startswith("line 0\n")
    assert huge.endswith("line 199999\n")
    assert "bytes of output are left out here" in huge


def streamed(mode: Mode, agent: Any) -> list[Any]:
    """Run an agent and return what it streams: custom events, and the values at the end of each step."""
    given: Any = {"messages": [HumanMessage("go")]}
    kinds: Any = ["custom", "values"]

    async def astream() -> list[Any]:
        return [item async for item in agent.astream(given, stream_mode=kinds)]

    return list(agent.stream(given, stream_mode=kinds)) if mode == "sync" else asyncio.run(astream())


def script_events(items: list[Any]) -> list[dict[str, Any]]:
    """Return the events of scripts in a stream."""
    return [item for kind, item in items if kind == "custom" and item["type"] == "skill.script"]


def test_a_script_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    """The model reads that it was ended and what it wrote until then, an event tells it; nothing of it runs on."""

    def check(mode: Mode) -> None:
        mark, root = new_mark(), tmp_path / mode
        write_skill(root)
        write_files(root, {"skills/tool/scripts/run.sh": f"echo begun; sleep {mark} & sleep {mark}"})
        model = ScriptedChatModel(replies=[call_tools(load("tool")), call_tools(script("run.sh"))])
        middleware = SkillsMiddleware(backend=shell(root), sources=["/skills"], extensions=[SkillScripts(timeout=2)])
        items = streamed(mode, create_agent(model, middleware=[middleware]))
        answer = tool_messages(items[-1][1])[-1]
        assert answer.status == "error"
        assert answer.text == (
            "The script timed out after 2 s and was ended, with every process that was found to be its own. "
            "Its output:\nbegun\n"
        )
        [event] = script_events(items)
        assert (event["script"], event["exit_code"]) == ("scripts/run.sh", None)
        assert event["seconds"] >= 1.9
        assert is_gone(mark)
        assert left_behind(root) == []

    at_once(check, MODES)


@pytest.mark.parametrize("env", [None, {"KEY": "value-of-key"}])
def test_a_cancelled_run_ends_its_scripts(env: dict[str, str] | None, tmp_path: Path) -> None:
    """When a run is cancelled, the scripts that it started end with it, and leave no file."""
    mark = new_mark()
    write_skill(tmp_path, run=f"import os; os.system('setsid sleep {mark} & sleep {mark}')")
    scripts = SkillScripts(env=lambda _runtime, _skill: env)
    model = ScriptedChatModel(replies=[call_tools(load("tool")), call_tools(*[script()] * 8)])
    middleware = SkillsMiddleware(backend=shell(tmp_path), sources=["/skills"], extensions=[scripts])
    agent = create_agent(model, middleware=[middleware])

    def all_sleep() -> bool:
        return sum(line.startswith("sleep ") for line in found_processes(mark).values()) == 16

    async def cancel() -> None:
        task = asyncio.create_task(agent.ainvoke({"messages": [HumanMessage("go")]}))
        assert await asyncio.to_thread(wait_until, all_sleep)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert is_gone(mark)
    assert wait_until(lambda: left_behind(tmp_path) == [])


def test_a_run_that_is_cancelled_while_a_place_for_secrets_is_made_leaves_none(tmp_path: Path) -> None:
    """A directory that the shell makes when the run is cancelled already is removed after that."""
    preparing, may_go_on, is_made = threading.Event(), threading.Event(), threading.Event()

    class Slow(LocalShellBackend):
        def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
            if preparing.is_set() or "mkdir -m 700" not in command:
                return super().execute(command, timeout=timeout)
            preparing.set()
            may_go_on.wait(60)
            response = super().execute(command, timeout=timeout)
            is_made.set()
            return response

    write_skill(tmp_path, run="print(1)")
    (tmp_path / "temporary").mkdir()
    backend = Slow(root_dir=tmp_path, env={**ENVIRONMENT, "TMPDIR": str(tmp_path / "temporary")})
    model = ScriptedChatModel(replies=[call_tools(load("tool")), call_tools(script())])
    scripts = SkillScripts(env=lambda _runtime, _skill: {"KEY": "value-of-key"})
    middleware = SkillsMiddleware(backend=backend, sources=["/skills"], extensions=[scripts])
    agent = create_agent(model, middleware=[middleware])

    async def cancel() -> None:
        task = asyncio.create_task(agent.ainvoke({"messages": [HumanMessage("go")]}))
        assert await asyncio.to_thread(preparing.wait, 60)
        task.cancel()
        # A clean-up that does not wait is over by then.
        threading.Timer(0.5, may_go_on.set).start()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert is_made.wait(60)
    assert left_behind(tmp_path) == []


def test_a_run_that_is_cancelled_while_files_are_copied_leaves_none(tmp_path: Path) -> None:
    """What was made for a copy goes with the run, also what arrives after the run was cancelled."""
    writing, may_end = threading.Event(), threading.Event()

    class Slow(LocalShellBackend):
        def upload_files(self, files: list[tuple[str, bytes]]) -> Any:
            writing.set()
            may_end.wait(60)
            return super().upload_files(files)

    (tmp_path / "temporary").mkdir()
    slow = Slow(root_dir=tmp_path, env={**ENVIRONMENT, "TMPDIR": str(tmp_path / "temporary")})
    inline = InlineBackend([InlineSkill("tool", "Runs.", "Run it.", files={"scripts/run.py": "print(1)"})])
    backend = CompositeBackend(default=slow, routes={"/skills/": inline})
    model = ScriptedChatModel(replies=[call_tools(load("tool")), call_tools(script())])
    middleware = SkillsMiddleware(backend=backend, sources=["/skills"], extensions=[SkillScripts()])
    agent = create_agent(model, middleware=[middleware])

    async def cancel() -> list[str]:
        task = asyncio.create_task(agent.ainvoke({"messages": [HumanMessage("go")]}))
        await asyncio.to_thread(writing.wait, 60)
        before = left_behind(tmp_path)
        task.cancel()
        threading.Timer(0.5, may_end.set).start()
        with pytest.raises(asyncio.CancelledError):
            await task
        return before

    assert asyncio.run(cancel()) != []
    assert left_behind(tmp_path) == []


@both_modes
def test_twenty_calls_in_one_turn_do_not_meet(mode: Mode, tmp_path: Path) -> None:
    """Each call of a turn has its own process, files and answer."""
    write_skill(tmp_path, run="import os, sys; print(sys.argv[1], len(os.environ['KEY']))")
    scripts = SkillScripts(env=lambda _runtime, _skill: {"KEY": "value-of-key"})
    answers = talk_to(mode, tmp_path, scripts).call(*(script(args=[f"number {n}"]) for n in range(20)))
    assert [answer.text.rpartition("\n")[0].rpartition("\n")[2] for answer in answers] == [
        f"number {n} 12" for n in range(20)
    ]
    assert left_behind(tmp_path) == []


@both_modes
def test_each_script_is_an_event(mode: Mode, tmp_path: Path) -> None:
    """The custom stream tells script, exit code and seconds, and where the skill came from; refusals are not events."""
    write_skill(tmp_path)
    write_files(tmp_path, {"skills/tool/scripts/run.sh": "exit $1"})
    calls = [script("run.sh", ["4"]), script("missing.py"), script("run.sh", ["0"])]
    model = ScriptedChatModel(replies=[call_tools(load("tool")), call_tools(*calls)])
    middleware = SkillsMiddleware(backend=shell(tmp_path), sources=["/skills"], extensions=[SkillScripts()])
    events = script_events(streamed(mode, create_agent(model, middleware=[middleware])))
    assert sorted((event["skill"], event["script"], event["exit_code"]) for event in events) == [
        ("tool", "scripts/run.sh", 0),
        ("tool", "scripts/run.sh", 4),
    ]
    for event in events:
        assert set(event) == {"type", "skill", "script", "exit_code", "seconds", "source", "digest", "trigger"}
        assert event["seconds"] > 0
        assert (event["source"].rstrip("/"), event["trigger"]) == ("/skills", "model")


@both_modes
def test_a_human_may_decide_on_each_script(mode: Mode, tmp_path: Path) -> None:
    """`HumanInTheLoopMiddleware` on the tool: rejected it does not run, edited it runs with other arguments."""
    write_skill(tmp_path, run="import sys; open('ran', 'a').write(sys.argv[1])")
    model = ScriptedChatModel(
        replies=[call_tools(load("tool")), call_tools(script(args=["no"])), call_tools(script(args=["edit"])), "Done."]
    )
    middleware: list[Any] = [
        SkillsMiddleware(backend=shell(tmp_path), sources=["/skills"], extensions=[SkillScripts()]),
        HumanInTheLoopMiddleware(interrupt_on={"run_skill_script": True}),
    ]
    agent = create_agent(model, middleware=middleware, checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "1"}}
    assert "__interrupt__" in run(mode, agent, "go", config)
    rejected = run(mode, agent, Command(resume={"decisions": [{"type": "reject", "message": "Not that."}]}), config)
    assert not (tmp_path / "ran").exists()
    assert "__interrupt__" in rejected
    name, arguments = script(args=["yes"])
    decision = {"type": "edit", "edited_action": {"name": name, "args": arguments}}
    result = run(mode, agent, Command(resume={"decisions": [decision]}), config)
    assert (tmp_path / "ran").read_text() == "yes"
    answers = [message for message in tool_messages(result) if message.name == "run_skill_script"]
    assert [answer.status for answer in answers] == ["error", "success"]


@both_modes
def test_a_policy_decides_on_the_tool(mode: Mode, tmp_path: Path) -> None:
    """`disallowed-tools` of a skill in use takes the tool away; `allowed-tools` that names it lets it run."""
    write_files(
        tmp_path,
        {
            "skills/tool/SKILL.md": skill_md("tool", allowed_tools=["run_skill_script"]),
            "skills/tool/scripts/run.py": "print('ran')",
            "skills/never/SKILL.md": skill_md("never", disallowed_tools=["run_skill_script"]),
        },
    )
    middleware = SkillsMiddleware(
        backend=shell(tmp_path), sources=["/skills"], extensions=[ToolPolicy(mode="enforce"), SkillScripts()]
    )
    talk = Conversation(mode, middleware)
    talk.call(load("tool"))
    assert "ran" in talk.call(script())[0].text
    talk.call(load("never"))
    [refused] = talk.call(script())
    assert refused.status == "error"
    assert "ran" not in refused.text.splitlines()
    assert "run_skill_script" not in talk.model.requests[-1].tools


def test_settings_that_cannot_work_are_refused() -> None:
    """Wrong values are named when the extension is made."""
    wrong: dict[str, dict[str, Any]] = {
        "timeout": {"timeout": 0},
        "timeout must": {"timeout": 1.5},
        "max_output": {"max_output": 10},
        "runner": {"runner": "bash"},
        "env": {"env": {"KEY": "x"}},
    }
    for match, options in wrong.items():
        with pytest.raises(ValueError, match=match):
            SkillScripts(**options)


def test_answers_belong_to_their_calls(tmp_path: Path) -> None:
    """Every call of a turn has one answer, under its own id."""
    write_skill(tmp_path, run="print(1)")
    talk = talk_to("sync", tmp_path)
    reply = call_tools(script(), script("missing.py"), script())
    answers = talk.say(reply)
    assert [answer.tool_call_id for answer in answers] == [call["id"] for call in reply.tool_calls]
    assert all(isinstance(answer, ToolMessage) and answer.name == "run_skill_script" for answer in answers)
