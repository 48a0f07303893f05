"""What was judged is what runs: scripts and hooks run the very bytes that a lock or an approval has seen."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from deepagents.backends import LocalShellBackend
from deepagents.backends.protocol import ExecuteResponse
from langchain_core.tools import tool
from langgraph.errors import GraphInterrupt
from langgraph.types import Command
from test_lock import locked

from deepskills import SkillExtension, SkillRun, SkillsError, SkillsMiddleware
from deepskills.extensions import SkillApproval, SkillHooks, SkillLock, SkillScripts
from support import MODES, Conversation, Mode, both_modes, disk, load, skill_md, write_files

EVIL = "EVIL"
HOOKS = {
    "PreToolUse": [{"matcher": "send", "command": "cat; . ./lib/words.sh; sh ./scripts/check.sh"}],
    "PostToolUse": [{"matcher": "send", "command": "sh $SKILL_DIR/scripts/check.sh; exit 2"}],
}
SKILL = {
    "SKILL.md": f"---\nname: alpha\ndescription: Runs.\nhooks: {json.dumps(HOOKS)}\n---\nText.\n",
    "scripts/run.py": (
        "import os, subprocess, words\n"
        "here = os.path.dirname(os.path.abspath(__file__))\n"
        "print(words.WORD, open(os.path.join(here, '../references/a.txt')).read(), flush=True)\n"
        "subprocess.run([os.path.join(here, 'tool')], check=True)\n"
    ),
    "scripts/words.py": "WORD = 'good'\n",
    "scripts/tool": "#!/bin/sh\necho good tool\n",
    "scripts/check.sh": "echo good check\n",
    "script/odd.sh": "echo good odd\n",
    "lib/words.sh": ":\n",
    "references/a.txt": "good text",
}


class Swapped(LocalShellBackend):
    """Whoever waits for a command to start finds time to change every file of the skill."""

    armed = False
    commands = ""

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        if self.armed:
            spoil(Path(self.cwd) / "skills/alpha")
        self.commands += command
        return super().execute(command, timeout=timeout)


def spoil(skill: Path) -> None:
    """Put other bytes into each file but `SKILL.md`, such that they tell when they are run."""
    for path in skill.rglob("*"):
        if path.is_file() and path.name != "SKILL.md":
            path.write_text(f"WORD = '{EVIL}'\n" if path.name == "words.py" else f"echo {EVIL} >&2\n", encoding="utf-8")


def restore(root: Path) -> None:
    write_files(root / "skills/alpha", SKILL)


def script(name: str = "run.py") -> tuple[str, dict[str, Any]]:
    return ("run_skill_script", {"skill_name": "alpha", "script_name": name})


def left_behind(backend: Swapped) -> list[str]:
    """Return what is still there of the copies that commands used."""
    tokens = set(re.findall("deepskills-([0-9a-f]{32})", backend.commands))
    assert tokens, "copies were used"
    roots = (Path(backend.cwd), Path(backend.cwd) / "tmp", Path("/"), Path("/tmp"))
    return [str(path) for token in tokens for root in roots for path in root.glob(f".deepskills-{token}")]


@pytest.mark.parametrize("virtual", [True, False], ids=["virtual", "real"])
@both_modes
def test_files_that_change_as_a_command_starts_are_not_run(mode: Mode, tmp_path: Path, *, virtual: bool) -> None:
    """A script, what it imports, reads and calls, and hooks' commands are those that the lock lists."""
    restore(tmp_path)
    lock = locked(tmp_path / "skills")
    sent: list[str] = []

    @tool
    def send(text: str) -> str:
        """Send a text."""
        sent.append(text)
        return "sent"

    backend = Swapped(root_dir=tmp_path, virtual_mode=virtual, inherit_env=True)
    source = "/skills" if virtual else str(tmp_path / "skills")
    extensions = [
        SkillScripts(env=lambda *_: {"KEY": "value-of-key"}),
        SkillHooks(commands=True, sources=[source]),
        SkillLock(lock),
    ]
    talk = Conversation(mode, SkillsMiddleware(backend=backend, sources=[source], extensions=extensions), tools=[send])
    talk.call(load("alpha"))
    backend.armed = True
    outputs = []
    for name in ("run.py", "odd.sh"):
        restore(tmp_path)
        [answer] = talk.call(script(name))
        outputs.append(answer.text)
    assert ["good text" in outputs[0], "good tool" in outputs[0], "good odd" in outputs[1]] == [True] * 3, outputs
    restore(tmp_path)
    talk.call(("send", {"text": "x"}))
    # The hook before the call has spoiled the files, so the one after it is refused: it neither runs nor speaks.
    assert sent == ["x"]
    everything = "\n".join(str(message.text) for request in talk.model.requests for message in request.messages)
    assert EVIL not in everything
    [refused, unsent] = talk.call(script(), ("send", {"text": "y"}))
    assert (refused.status, unsent.status) == ("error", "error")
    assert "lock" in unsent.text
    assert sent == ["x"]
    assert left_behind(backend) == []


@pytest.mark.parametrize("guard", ["lock", "approval"])
@both_modes
def test_a_runner_gets_a_private_copy_of_what_was_judged(mode: Mode, tmp_path: Path, guard: str) -> None:
    """Whatever lies at the skill's own path by then; the copy is gone afterwards, also if the runner fails."""
    restore(tmp_path)
    paths: list[Path] = []
    failure: list[BaseException] = []

    def runner(_skill: str, path: str, *_: object) -> ExecuteResponse:
        paths.append(Path(path))
        spoil(tmp_path / "skills/alpha")
        seen = {file.name: file.read_text("utf-8") for file in Path(path).parents[1].rglob("*") if file.is_file()}
        if failure:
            raise failure.pop()
        return ExecuteResponse(json.dumps(seen), 0)

    judge = SkillLock(locked(tmp_path / "skills")) if guard == "lock" else SkillApproval()
    skills = SkillsMiddleware(
        backend=disk(tmp_path), sources=["/skills"], extensions=[SkillScripts(runner=runner), judge]
    )
    talk = Conversation(mode, skills)
    talk.call(load("alpha"))
    if guard == "approval":
        talk.say(given=Command(resume={"type": "approve"}))
    [answer] = talk.call(script())
    assert answer.status == "success", answer.text
    assert EVIL not in answer.text
    assert "good text" in answer.text
    assert [answer.status for answer in talk.call(script())] == ["error"]
    assert len(paths) == 1, "what differs is not run at all"
    restore(tmp_path)
    failure.append(ValueError("broken"))
    [answer] = talk.call(script("odd.sh"))
    assert "broken" in answer.text
    assert paths[-1].parts[-3:] == ("alpha", "script", "odd.sh")
    assert [path for path in paths if path.exists() or path.parents[2].exists()] == []


def test_a_runner_that_interrupts_leaves_no_copy(tmp_path: Path) -> None:
    """LangGraph's own exceptions pass through, and the copy goes all the same."""
    restore(tmp_path)
    paths: list[Path] = []

    def runner(_skill: str, path: str, *_: object) -> ExecuteResponse:
        paths.append(Path(path))
        raise GraphInterrupt(())

    for mode in MODES:
        extensions = [SkillScripts(runner=runner), SkillLock(locked(tmp_path / "skills"))]
        talk = Conversation(mode, SkillsMiddleware(backend=disk(tmp_path), sources=["/skills"], extensions=extensions))
        talk.call(load("alpha"))
        talk.call(script())
    assert len(paths) == 2
    assert [path for path in paths if path.parents[2].exists()] == []


@both_modes
def test_nothing_runs_where_a_hidden_skill_lies(mode: Mode, tmp_path: Path) -> None:
    """Scripts and hooks of a skill that holds a hidden one run in a copy without it; no directory is given out."""
    hooks = {"PreToolUse": {"matcher": "send", "command": "cat inner/SKILL.md link.md; ls; exit 2"}}
    write_files(
        tmp_path / "skills/outer",
        {
            "SKILL.md": f"---\nname: outer\ndescription: Runs.\nhooks: {json.dumps(hooks)}\n---\nText.\n",
            "scripts/run.sh": 'cd "$(dirname "$0")/.." && cat inner/SKILL.md link.md; ls\n',
            "inner/SKILL.md": skill_md("inner", "TOP SECRET"),
        },
    )
    (tmp_path / "skills/outer/link.md").symlink_to("inner/SKILL.md")
    told: list[str] = []

    class Curious(SkillExtension):
        async def at_end(self, run: SkillRun) -> None:
            for entry in run.found:
                try:
                    told.append(await run.directory(entry))
                except SkillsError as error:
                    told.append(str(error))

    @tool
    def send(text: str) -> str:
        """Send a text."""
        return f"sent {text}"

    backend = LocalShellBackend(root_dir=tmp_path, virtual_mode=True, inherit_env=True)
    skills = SkillsMiddleware(
        backend=backend,
        sources=["/skills", "/skills/outer"],
        visibility={"inner": "off"},
        extensions=[SkillScripts(), SkillHooks(commands=True, sources=["/skills", "/skills/outer"]), Curious()],
    )
    talk = Conversation(mode, skills, tools=[send])
    talk.call(load("outer"))
    call = ("run_skill_script", {"skill_name": "outer", "script_name": "run.sh"})
    [answer, refused] = talk.call(call, ("send", {"text": "x"}))
    for text in (answer.text, refused.text):
        assert "scripts" in text, "it did run"
        assert "TOP SECRET" not in text
    assert any("a skill that is not shown lies in it" in line for line in told)
    assert not any(line.endswith("/outer") for line in told)
