"""Hooks of skills: what runs before and after tool calls, what refuses one, and what never runs."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from deepagents.backends import CompositeBackend, LocalShellBackend
from deepagents.backends.filesystem import FilesystemBackend
from deepagents.backends.protocol import ExecuteResponse, SandboxBackendProtocol
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.tools import tool
from langgraph.types import Command

from deepskills import InlineBackend, InlineSkill, Refuse, SkillsMiddleware
from deepskills.extensions import SkillHooks
from deepskills.extensions.hooks import MAX_PIPED_CHARACTERS, read_hooks
from deepskills.testing import Request, call_tools
from support import MODES, Conversation, Mode, both_modes, load, unload, write_files
from support.waiting import at_once


class Box(FilesystemBackend, SandboxBackendProtocol):
    """A sandbox that answers commands by a script, and remembers them."""

    def __init__(self, root: Path, *answers: ExecuteResponse | Exception) -> None:
        super().__init__(root_dir=root, virtual_mode=True)
        self.answers = list(answers)
        self.commands: list[str] = []

    @property
    def id(self) -> str:
        return "box"

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        assert timeout is not None
        self.commands.append(command)
        answer = self.answers.pop(0) if self.answers else ExecuteResponse(output="", exit_code=0, truncated=False)
        if isinstance(answer, Exception):
            raise answer
        return answer


class World:
    """An agent with hooked skills and a tool, `send`, that remembers its calls."""

    def __init__(self, mode: Mode, backend: Any, extension: SkillHooks, root: Path, **hooks: Any) -> None:
        for name, tree in hooks.items():
            text = f"---\nname: {name}\ndescription: Hooked.\nhooks: {json.dumps(tree)}\n---\nInstructions of {name}.\n"
            write_files(root, {f"/skills/{name}/SKILL.md": text})
        self.sent: list[str] = []

        @tool
        def send(text: str) -> str:
            """Send a text."""
            self.sent.append(text)
            return f"sent {text}"

        self.tool = send
        skills: Any = SkillsMiddleware(backend=backend, sources=["/skills"], extensions=[extension])
        self.talk = Conversation(mode, skills, tools=[send])
        self.talk.call(*(load(name) for name in hooks))

    def send(self, *texts: str) -> list[str]:
        """Have the model send texts in one turn, and return the answers that were errors."""
        answers = self.talk.call(*(("send", {"text": text}) for text in texts))
        return [answer.text for answer in answers if answer.status == "error"]

    @property
    def problems(self) -> list[str]:
        return [problem["code"] for problem in self.talk.state["skills_problems"]]


def one(event: str, matcher: str | None = "send", **hook: Any) -> dict[str, Any]:
    group = {"hooks": [hook]} if matcher is None else {"matcher": matcher, "hooks": [hook]}
    return {event: [group]}


def said_by_hooks(request: Request) -> str:
    """Return what hooks put into a request."""
    last = request.messages[-1]
    return str(last.text) if str(last.text).startswith("<skill_hook") else ""


def shell(root: Path) -> LocalShellBackend:
    return LocalShellBackend(root_dir=root, virtual_mode=True, inherit_env=True)


def commands(**options: Any) -> SkillHooks:
    return SkillHooks(commands=True, sources=["/skills"], **options)


@both_modes
def test_python_handlers_see_calls_and_may_refuse(mode: Mode, tmp_path: Path) -> None:
    """A handler is called with the request before or after the call; before it, it may refuse."""
    seen: list[tuple[str, str]] = []

    def check(request: ToolCallRequest) -> Refuse | None:
        seen.append(("pre", request.tool_call["args"]["text"]))
        return Refuse("not today") if "bad" in request.tool_call["args"]["text"] else None

    def note(request: ToolCallRequest) -> None:
        seen.append(("post", request.tool_call["args"]["text"]))

    tree = {**one("PreToolUse", type="python", handler="check"), **one("PostToolUse", type="python", handler="note")}
    world = World(mode, shell(tmp_path), SkillHooks({"check": check, "note": note}), tmp_path, guard=tree)
    assert world.send("good") == []
    (error,) = world.send("bad")
    assert "not today" in error
    assert '"guard"' in error
    assert world.sent == ["good"]
    assert seen == [("pre", "good"), ("post", "good"), ("pre", "bad")]
    world.talk.call(unload("guard"))
    assert world.send("bad") == []


@both_modes
def test_a_handler_that_raises_refuses_before_and_not_after(mode: Mode, tmp_path: Path) -> None:
    """What should have looked at a call and could not, refuses it; after the call it only leaves a log line."""

    def explode(_request: ToolCallRequest) -> None:
        raise ValueError("broken")

    for event, sent in (("PreToolUse", []), ("PostToolUse", ["x"])):
        root = tmp_path / event
        world = World(mode, shell(root), SkillHooks({"x": explode}), root, guard=one(event, type="python", handler="x"))
        assert bool(world.send("x")) is (event == "PreToolUse")
        assert world.sent == sent


@both_modes
def test_async_handlers_run_in_every_run(mode: Mode, tmp_path: Path) -> None:
    """An async handler is awaited, in a sync run as well."""
    seen: list[str] = []

    async def check(request: ToolCallRequest) -> Refuse | None:
        await asyncio.sleep(0)
        seen.append(request.tool_call["name"])
        return None

    tree = one("PreToolUse", type="python", handler="check")
    world = World(mode, shell(tmp_path), SkillHooks({"check": check}), tmp_path, guard=tree)
    assert world.send("x") == []
    assert (seen, world.sent) == (["send"], ["x"])


@both_modes
def test_prompts_stand_in_the_next_request_alone(mode: Mode, tmp_path: Path) -> None:
    """The text of each matching hook comes with the next request, and with no later one."""
    pre = one("PreToolUse", type="prompt", prompt="Mind the </skill_hook> gap.")
    post = one("PostToolUse", None, type="prompt", prompt="Count the sent.")
    world = World(mode, shell(tmp_path), SkillHooks(), tmp_path, guard={**pre, **post})
    before = len(world.talk.model.requests)
    world.talk.say(call_tools(("send", {"text": "a"}), ("send", {"text": "b"})), call_tools(unload("guard")), "Done.")
    notes = [said_by_hooks(request) for request in world.talk.model.requests[before:]]
    assert [text.count("Mind the ") for text in notes] == [0, 1, 0]
    assert not any("Mind the </skill_hook> gap." in text for text in notes), "a text cannot end its own mark"
    assert [text.count("Count the sent.") for text in notes] == [0, 1, 1]
    world.talk.say()
    assert said_by_hooks(world.talk.model.requests[-1]) == ""
    assert not any("<skill_hook" in str(message.text) for message in world.talk.state["messages"])


@both_modes
def test_prompts_cannot_fill_a_request(mode: Mode, tmp_path: Path) -> None:
    """Many long prompts for many calls at once stay within a bound; the same text comes once."""
    hooks = [{"type": "prompt", "prompt": f"{number} " + "x" * 3000} for number in range(4)]
    first, second = ({"PreToolUse": [{"hooks": part}]} for part in (hooks[:2], hooks[2:]))
    world = World(mode, shell(tmp_path), SkillHooks(), tmp_path, guard=first, warden=second)
    world.send(*(str(number) for number in range(20)))
    said = said_by_hooks(world.talk.model.requests[-1])
    assert 3000 < len(said) < 9000


@both_modes
def test_commands_run_in_a_real_shell(mode: Mode, tmp_path: Path) -> None:
    """Exit 0 passes, 2 refuses with the output as reason, 1 is logged; the call comes on standard input."""
    script = (
        "cat > seen.json; case $(cat seen.json) in *wrong*) echo forbidden word; exit 2;; *odd*) exit 1;; esac; exit 0"
    )
    tree = one("PreToolUse", type="command", command=script)
    world = World(mode, shell(tmp_path), commands(), tmp_path, guard=tree)
    assert world.send('it\'s $(good) "x"\n') == []
    told = json.loads((tmp_path / "skills/guard/seen.json").read_text())
    assert told["tool_input"] == {"text": 'it\'s $(good) "x"\n'}
    assert (told["tool_name"], told["hook_event_name"]) == ("send", "PreToolUse")
    assert world.send("odd") == []
    (error,) = world.send("wrong")
    assert "forbidden word" in error
    assert len(world.sent) == 2


@both_modes
def test_a_script_of_the_skill_runs_by_its_relative_path(mode: Mode, tmp_path: Path) -> None:
    """Commands start in the skill's directory, and know it by name."""
    write_files(tmp_path, {"/skills/guard/scripts/check.sh": '#!/bin/sh\ntest -f "$SKILL_DIR/SKILL.md" || exit 2\n'})
    tree = one("PreToolUse", type="command", command="sh ./scripts/check.sh && sh ${CLAUDE_SKILL_DIR}/scripts/check.sh")
    world = World(mode, shell(tmp_path), commands(), tmp_path, guard=tree)
    assert world.send("x") == []


def test_a_command_that_cannot_start_or_hangs_refuses(tmp_path: Path) -> None:
    """A check that did not happen is not a check that passed."""
    hooks: list[dict[str, Any]] = [{"command": "no-such-program-x"}, {"command": "sleep 600", "timeout": 1}]

    def check(case: tuple[Mode, dict[str, Any]]) -> None:
        mode, hook = case
        root = tmp_path / mode / hook["command"]
        started = time.monotonic()
        world = World(mode, shell(root), commands(), root, guard=one("PreToolUse", "*", type="command", **hook))
        (error,) = world.send("x")
        assert "did not run" in error, case
        assert world.sent == [], case
        assert time.monotonic() - started < 300, case
        assert world.talk.call(unload("guard"))[0].status == "success", case

    at_once(check, [(mode, hook) for mode in MODES for hook in hooks])


@both_modes
def test_after_a_call_a_command_cannot_undo_it(mode: Mode, tmp_path: Path) -> None:
    """It gets the tool's answer; with exit 2 the model reads its output; a failure costs nothing."""
    tree = one("PostToolUse", type="command", command="grep -q 'sent b' && { echo tidy up; exit 2; }; exit 0")
    world = World(mode, shell(tmp_path), commands(), tmp_path, guard=tree)
    assert world.send("a") == []
    assert said_by_hooks(world.talk.model.requests[-1]) == ""
    assert world.send("b") == []
    assert "tidy up" in said_by_hooks(world.talk.model.requests[-1])
    broken = World(mode, Box(tmp_path, OSError("gone")), commands(), tmp_path, guard=tree)
    assert broken.send("x") == []


@both_modes
def test_a_scripted_sandbox_is_asked_with_everything_quoted(mode: Mode, tmp_path: Path) -> None:
    """The sandbox gets one command line; its answer, and its failures, count as a shell's do."""
    table: list[tuple[ExecuteResponse | Exception, bool]] = [
        (ExecuteResponse(output="", exit_code=0, truncated=False), True),
        (ExecuteResponse(output="no", exit_code=1, truncated=False), True),
        (ExecuteResponse(output="never", exit_code=2, truncated=False), False),
        (ExecuteResponse(output="?", exit_code=None, truncated=False), False),
        (ExecuteResponse(output="?", exit_code=127, truncated=False), False),
        (ExecuteResponse(output="killed", exit_code=137, truncated=False), False),
        (ExecuteResponse(output="killed", exit_code=-9, truncated=False), False),
        (ExecuteResponse(output="odd", exit_code=255, truncated=False), True),
        (RuntimeError("down"), False),
    ]
    box = Box(tmp_path)
    world = World(mode, box, commands(), tmp_path, guard=one("PreToolUse", type="command", command="./check"))
    wrong = []
    for answer, runs in table:
        box.answers, box.commands, world.sent = [answer], [], []
        world.send("'; rm -rf / #")
        if (world.sent != []) is not runs or len(box.commands) != 1:
            wrong.append((answer, world.sent, box.commands))
    assert wrong == []


@both_modes
def test_commands_run_only_if_allowed_and_from_a_trusted_source(mode: Mode, tmp_path: Path) -> None:
    """Without `commands=True`, or from another source, nothing is executed, the call runs, and a problem says why."""
    tree = one("PreToolUse", type="command", command="exit 2")
    extensions = [
        SkillHooks(),
        SkillHooks(sources=["/skills"]),
        SkillHooks(commands=True),
        SkillHooks(commands=True, sources=["/skills/guard", "/", "/other", "skills"]),
    ]
    for number, extension in enumerate(extensions):
        root = tmp_path / str(number)
        box = Box(root)
        world = World(mode, box, extension, root, guard=tree)
        assert world.send("x") == []
        assert box.commands == []
        assert world.problems == ["hook-command-refused"]


@both_modes
def test_once_is_once_in_a_thread(mode: Mode, tmp_path: Path) -> None:
    """Also for two calls in one turn."""
    seen: list[str] = []
    tree = one("PreToolUse", type="python", handler="note", once=True)
    extension = SkillHooks({"note": lambda request: seen.append(request.tool_call["args"]["text"])})
    world = World(mode, shell(tmp_path), extension, tmp_path, guard=tree)
    world.send("a", "b")
    world.send("c")
    assert seen == ["a"]
    assert sorted(world.sent) == ["a", "b", "c"]


@both_modes
def test_once_does_not_count_a_call_that_a_human_rejected(mode: Mode, tmp_path: Path) -> None:
    """A hook that runs once runs for the first call that is made, not for one before it that never was."""
    seen: list[str] = []
    tree = one("PreToolUse", type="python", handler="note", once=True)
    extension = SkillHooks({"note": lambda request: seen.append(request.tool_call["args"]["text"])})
    world = World(mode, shell(tmp_path), extension, tmp_path, guard=tree)
    skills: Any = SkillsMiddleware(backend=shell(tmp_path), sources=["/skills"], extensions=[extension])
    asked: Any = {
        "allowed_decisions": ["approve", "reject"],
        "when": lambda call: call.tool_call["args"]["text"] == "a",
    }
    review: Any = HumanInTheLoopMiddleware({"send": asked})
    world.talk.agent = create_agent(
        world.talk.model, tools=[world.tool], middleware=[review, skills], checkpointer=world.talk.agent.checkpointer
    )
    world.send("a", "b")
    world.talk.say(given=Command(resume={"decisions": [{"type": "reject"}]}))
    assert (seen, world.sent) == (["b"], ["b"])


@both_modes
def test_what_is_wrong_with_hooks_is_a_problem(mode: Mode, tmp_path: Path) -> None:
    """A matcher that is not a regular expression and the like cost that hook alone."""
    seen: list[str] = []
    extension = SkillHooks({"note": lambda request: seen.append(request.tool_call["name"])})
    good = {"hooks": [{"type": "python", "handler": "note"}]}
    bad: list[Any] = [
        {"matcher": "(", "hooks": [{"type": "prompt", "prompt": "x"}]},
        {"matcher": "(a+)+", "hooks": [{"type": "prompt", "prompt": "x"}]},
        {"hooks": [{"type": "python", "handler": "nobody"}, {"type": "http", "url": "x"}, {"type": "command"}]},
    ]
    world = World(mode, shell(tmp_path), extension, tmp_path, guard={"PreToolUse": [*bad, good], "Stop": [good]})
    assert world.send("x") == []
    assert seen == ["send"]
    assert sorted(set(world.problems)) == [
        "hook-event-unknown",
        "hook-handler-unknown",
        "hook-invalid",
        "hook-matcher-invalid",
    ]


def test_matchers_are_whole_names_of_this_or_another_client() -> None:
    """A matcher is compared with the whole name; `*` and nothing match all."""
    table: list[tuple[Any, str, bool]] = [
        ("send", "send", True),
        ("send", "sender", False),
        ("send|save", "save", True),
        ("send.*", "sender", True),
        ("", "x", True),
        ("*", "x", True),
        (None, "x", True),
        ("mcp__(github|gitlab)__.*", "mcp__gitlab__open", True),
        ("[a-c]+", "abc", True),
        ("x" * 10, "y" * 1000, True),
    ]
    wrong = []
    for matcher, name, expected in table:
        group = {"hooks": [{"type": "prompt", "prompt": "x"}], "matcher": matcher}
        hooks, _ = read_hooks({"PreToolUse": [group]})
        if len(hooks) != 1 or hooks[0].matches({name}) is not expected:
            wrong.append((matcher, name))
    assert wrong == []


def test_no_matcher_takes_long() -> None:
    """What a stranger writes is refused, or matches any name in little time."""
    units = [
        "(a|a)",
        "a*",
        ".*",
        "(a*)*",
        "(a+)+",
        "(?:a|aa)",
        "(a)\\1",
        "a?",
        "(?=a*)",
        "a{1,9}",
        "[a]*",
        "(.*)",
        "a|",
    ]
    slow = []
    for unit in units:
        for times in (1, 2, 3, 6, 12, 40):
            matcher = unit * times + "b"
            hooks, problems = read_hooks(
                {"PreToolUse": {"matcher": matcher, "hooks": {"type": "prompt", "prompt": "x"}}}
            )
            assert len(hooks) + len(problems) == 1
            started = time.process_time()
            for hook in hooks:
                hook.matches({"a" * 256})
            if time.process_time() - started > 0.5:
                slow.append(matcher)
    assert slow == []


def test_any_tree_is_read() -> None:
    """Whatever an author wrote, reading gives hooks and problems, never an exception."""
    trees: list[Any] = [
        None,
        "x",
        7,
        [],
        {},
        {"PreToolUse": None},
        {"PreToolUse": "x"},
        {"PreToolUse": [None, 7, "x", [], {}]},
        {"PreToolUse": [{"hooks": [None, 7, {}, {"type": ["python"]}, {"type": "command", "command": "a\0b"}]}]},
        {"PreToolUse": [{"matcher": ["x"], "hooks": []}]},
        {"PreToolUse": [{"hooks": [{"type": "prompt", "prompt": "x", "timeout": "1e99", "once": []}]}]},
        {"PreToolUse": [{"hooks": [{"type": "prompt", "prompt": "x"}] * 1000}]},
    ]
    counts = [len(read_hooks(tree)[0]) for tree in trees]
    assert counts == [0] * 10 + [1, 50]


@both_modes
def test_a_shell_that_does_not_know_the_skills_directory_cannot_start_the_command(mode: Mode, tmp_path: Path) -> None:
    """Where the skill lies elsewhere for the shell, the check did not happen, however the call gets there."""
    tree = one("PreToolUse", type="command", command="exit 0")
    store = InlineBackend([InlineSkill("guard", "Hooked.", "Instructions.", hooks=tree)])
    backend = CompositeBackend(default=shell(tmp_path), routes={"/skills/": store})
    world = World(mode, backend, commands(), tmp_path)
    world.talk.call(load("guard"))
    for size in (10, MAX_PIPED_CHARACTERS + 1):
        (error,) = world.send('"' * size)
        assert "did not run" in error
    assert world.sent == []
    assert list(tmp_path.glob("**/.deepskills-*")) == []


@both_modes
def test_a_call_of_any_size_reaches_the_command(mode: Mode, tmp_path: Path) -> None:
    """What no command line holds goes through a file, which is removed; the exit code is the command's."""
    tree = one("PreToolUse", type="command", command="cat > given; echo $(wc -c < given); exit 2")
    world = World(mode, shell(tmp_path), commands(), tmp_path, guard=tree)
    for size in (10, MAX_PIPED_CHARACTERS + 1, 8 * MAX_PIPED_CHARACTERS):
        text = '"' * size
        (error,) = world.send(text)
        given = (tmp_path / "skills/guard/given").read_text()
        assert json.loads(given)["tool_input"] == {"text": text}
        assert str(len(given)) in error
    assert list(tmp_path.glob("**/.deepskills-*")) == []


def test_hooks_may_be_written_flat_and_bare() -> None:
    """Without the inner list, without a type, alone or in a list: what runs is read, all else is a problem."""
    hook = {"type": "command", "command": "./x"}
    table: list[tuple[Any, list[tuple[str, str]], int]] = [
        ([{"matcher": "send", **hook}], [("command", "./x")], 0),
        ([{"matcher": "send", "command": "./x"}], [("command", "./x")], 0),
        ({"command": "./x"}, [("command", "./x")], 0),
        ([{"hooks": [{"command": "./x"}]}], [("command", "./x")], 0),
        ([{"hooks": {"command": "./x", "shell": "bash"}}], [("command", "./x")], 0),
        ([{"prompt": "Mind."}, {"handler": "check"}], [("prompt", "Mind."), ("python", "check")], 0),
        ([{"hooks": []}], [], 0),
        (None, [], 0),
        ([{"command": "./x", "shell": "powershell"}], [], 1),
        ([{"type": "agent", "prompt": "x"}], [], 1),
        ([{"matcher": "send"}], [], 1),
        (["./x"], [], 1),
        ("./x", [], 1),
        ([{"matcher": {"tool": "Bash"}, "command": "./x"}], [], 1),
    ]
    wrong = []
    for event in ("PreToolUse", "PostToolUse", "SessionStart"):
        for tree, expected, count in table:
            hooks, problems = read_hooks({event: tree})
            found = [(hook.type, hook.value) for hook in hooks]
            if found != expected or len(problems) != count or any(hook.event != event for hook in hooks):
                wrong.append((event, tree, found, problems))
    assert wrong == []


@both_modes
def test_flat_hooks_run(mode: Mode, tmp_path: Path) -> None:
    """A guard that its author wrote flat guards."""
    tree = {"PreToolUse": [{"matcher": "send", "command": "grep -q bad && { echo no; exit 2; }; exit 0"}]}
    world = World(mode, shell(tmp_path), commands(), tmp_path, guard=tree)
    assert world.send("good") == []
    assert len(world.send("bad")) == 1
    assert world.sent == ["good"]


@both_modes
def test_a_start_is_the_load_and_each_later_run(mode: Mode, tmp_path: Path) -> None:
    """Commands, prompts and handlers of `SessionStart`: once at the load, however it came, once per run after it."""
    seen: list[tuple[str, Any]] = []
    tree = {
        "SessionStart": [
            {"hooks": [{"type": "command", "command": "cat >> ../../starts; echo said by a command"}]},
            {
                "hooks": [
                    {"type": "prompt", "prompt": "Said by a prompt."},
                    {"type": "prompt", "prompt": "1x", "once": True},
                ]
            },
            {"matcher": "resume", "prompt": "Welcome back."},
            {"handler": "note"},
            {"handler": "explode"},
        ]
    }

    def explode(_request: ToolCallRequest) -> None:
        raise ValueError("broken")

    def note(request: ToolCallRequest) -> None:
        seen.append((request.tool_call["name"], request.tool_call["args"]))

    extension = commands(handlers={"note": note, "explode": explode})
    world = World(mode, shell(tmp_path), extension, tmp_path, guard=tree)

    def sources() -> list[str]:
        decoder, text, found = json.JSONDecoder(), (tmp_path / "starts").read_text(), []
        while text:
            told, end = decoder.raw_decode(text)
            assert (told["hook_event_name"], told["skill_name"]) == ("SessionStart", "guard")
            found.append(told["source"])
            text = text[end:]
        return found

    assert sources() == ["startup"]
    first = said_by_hooks(world.talk.model.requests[-1])
    assert [first.count(text) for text in ("said by a command", "Said by a prompt.", "1x", "Welcome")] == [1, 1, 1, 0]
    before = len(world.talk.model.requests)
    world.talk.say(call_tools(("send", {"text": "a"})), "Done.")
    texts = [said_by_hooks(request) for request in world.talk.model.requests[before:]]
    assert [text.count("Said by a prompt.") for text in texts] == [1, 0], "in the next request alone"
    assert [text.count("Welcome back.") for text in texts] == [1, 0]
    assert texts[0].count("1x") == 0
    assert sources() == ["startup", "resume"]
    assert seen == [("load_skill", {"skill_name": "guard", "source": source}) for source in ("startup", "resume")]
    assert set(world.problems) == {"hook-failed"}
    world.talk.call(unload("guard"))
    assert sources() == ["startup", "resume", "resume"]
    world.talk.say()
    assert len(sources()) == 3, "it is not loaded any more"
    world.talk.say(given={"messages": [("user", "go")], "pinned_skills": ["guard"]})
    assert sources()[3:] == ["startup"], "a pin is a load"


@both_modes
def test_what_hooks_said_does_not_add_up_in_state(mode: Mode, tmp_path: Path) -> None:
    """A long run with many calls of many hooks keeps the texts of its newest turn, and those within a bound."""
    prompts = [{"type": "prompt", "prompt": f"{number} " + "x" * 280} for number in range(10)]
    tree = {
        "PreToolUse": [{"hooks": prompts}],
        "PostToolUse": [{"type": "command", "command": "head -c 5000 /dev/zero | tr '\\0' y; exit 2"}] * 10,
        "SessionStart": [{"hooks": prompts}],
    }
    world = World(mode, shell(tmp_path), commands(), tmp_path, guard=tree, warden=tree, third=tree)
    sizes = []
    for turns in (1, 3):
        world.talk.say(*[call_tools(*[("send", {"text": str(n)}) for n in range(3)]) for _ in range(turns)], "Done.")
        kept = world.talk.state["skills_context"]["extension SkillHooks"]
        sizes.append(len(json.dumps(kept)))
    assert max(sizes) < 40_000, sizes
    assert max(len(said_by_hooks(request)) for request in world.talk.model.requests) < 9_000
