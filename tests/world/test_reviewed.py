"""What was reviewed is what runs: files change, appear and vanish at every step, and no other byte is seen or run.

Every text that is ever written to a file is one of a kind, so whatever reaches a request or a script can be traced to
the moment it was written. A walk takes random steps; while a call reads files, they may change under it.
"""

import hashlib
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends import FilesystemBackend
from deepagents.backends.protocol import ExecuteResponse
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

from deepskills import SkillsMiddleware
from deepskills.extensions import SkillApproval, SkillForks, SkillLock, SkillScripts
from deepskills.testing import ScriptedChatModel, call_tools
from support import MODES, Mode, load, run, scaled, skill_md, unload, write_files
from support.locks import lock_row

NAMES = ("alpha", "beta")
FILES = ("SKILL.md", "references/guide.md", "scripts/run.py", "assets/data/deep.txt")
SHORT_WALKS = (2, 5)
"""Seeds whose walks are short and still see texts and run scripts, under a lock and with approvals."""

LONG_WALKS = 60
MARK = re.compile(r"MARK-[0-9]+-KRAM")


class World:
    """A library on disk whose every version is one of a kind, and an agent that is talked to while it changes."""

    def __init__(self, root: Path, mode: Mode, seed: int, *, by_lock: bool) -> None:
        self.root, self.mode, self.by_lock = root, mode, by_lock
        self.rng = random.Random(seed)
        self.written = 0
        self.content: dict[str, str] = {}
        """Each mark, and the SHA-256 of the file that it was written to."""
        self.reviewed: set[str] = set()
        """The SHA-256 of every file that somebody reviewed."""
        self.ran: list[str] = []
        self.threads = 0
        self.steps: list[str] = []
        self.restless = False
        for name in NAMES:
            for file in FILES:
                self.write(name, file)
        self.good = self.copy()
        self.lock = self.locked()
        if by_lock:
            self.reviewed |= {file["sha256"] for row in self.lock.values() for file in row["files"].values()}
        self.saver, self.store = InMemorySaver(), InMemoryStore()
        self.models: list[ScriptedChatModel] = []
        self.new_thread()
        self.restart()

    def write(self, name: str, file: str) -> None:
        """Write a version of a file that was never there before."""
        self.written += 1
        mark = f"MARK-{self.written}-KRAM"
        # Descriptions are shown before anybody is asked; under a lock they are judged as well.
        description = f"Does {name} {mark}." if self.by_lock else f"Does {name}."
        text = skill_md(name, description, f"Instructions {mark}.\n") if file == "SKILL.md" else f"# {mark}\n"
        write_files(self.root / "skills" / name, {file: text})
        self.content[mark] = hashlib.sha256((self.root / "skills" / name / file).read_bytes()).hexdigest()

    def copy(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (self.root / "skills").rglob("*") if path.is_file()}

    def locked(self) -> dict[str, Any]:
        skills = self.root / "skills"
        return {name: lock_row(skills / name, [skills / name / file for file in FILES]) for name in NAMES}

    def new_thread(self) -> None:
        self.threads += 1
        self.config = {"configurable": {"thread_id": str(self.threads)}}
        self.waiting: tuple[Any, ...] = ()

    def restart(self) -> None:
        """Start a new process: an agent that remembers nothing but what was stored."""
        world = self

        class Restless(FilesystemBackend):
            """Files change just before they are read or listed."""

            def download_files(self, paths: list[str]) -> Any:
                world.disturb()
                return super().download_files(paths)

            def ls(self, path: str) -> Any:
                world.disturb()
                return super().ls(path)

        def runner(_skill: str, path: str, *_rest: Any) -> ExecuteResponse:
            # A script may read whatever lies beside it.
            directory = Path(path).parents[1]
            self.ran += [file.read_text(encoding="utf-8") for file in directory.rglob("*") if file.is_file()]
            return ExecuteResponse(output="ran", exit_code=0, truncated=False)

        guard = SkillLock({"version": 1, "skills": self.lock}) if self.by_lock else SkillApproval()
        backend = Restless(root_dir=self.root, virtual_mode=True)
        middleware = SkillsMiddleware(
            backend=backend,
            sources=["/skills"],
            refresh=self.rng.choice(["thread", "run"]),
            unload_when=self.rng.choice(["now", "cheap"]),
            extensions=[SkillForks(), SkillScripts(runner=runner), guard],
            extra_tools=["load_skill_asset", "search_skills"],
            slash_commands=True,
        )
        self.model = ScriptedChatModel(replies=[])
        self.models.append(self.model)
        self.agent: Any = create_deep_agent(
            self.model, middleware=[middleware], backend=backend, checkpointer=self.saver, store=self.store
        )

    def disturb(self) -> None:
        """Perhaps change a file under somebody who is reading."""
        if self.restless and self.rng.random() < 0.05:
            self.change()

    def change(self) -> None:
        name, file = self.rng.choice(NAMES), self.rng.choice([*FILES, "references/added.md", ".hidden"])
        place = self.root / "skills" / name / file
        if self.rng.random() < 0.2 and place.exists():
            place.unlink()
        else:
            self.write(name, file)

    def restore(self) -> None:
        shutil.rmtree(self.root / "skills")
        for path, content in self.good.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def calls(self) -> Iterator[Any]:
        for _ in range(self.rng.randint(1, 3)):
            name, file = self.rng.choice(NAMES), self.rng.choice([*FILES, "references/added.md"])
            yield self.rng.choice(
                [
                    load(name),
                    load(name),
                    unload(name),
                    ("load_skill_asset", {"skill_name": name, "relative_path": file}),
                    ("load_skill_asset", {"skill_name": name, "relative_path": file}),
                    ("run_skill_script", {"skill_name": name, "script_name": "run.py"}),
                    ("read_file", {"file_path": f"/skills/{name}/{file}"}),
                    ("grep", {"pattern": "MARK", "path": "/skills", "output_mode": "content"}),
                ]
            )

    def talk(self, given: Any = None) -> None:
        if self.waiting:
            # Nobody can talk to an agent that waits, so that a step would be lost.
            self.answer()
            return
        self.model.replies = [*(["Done."] * len(self.model.requests)), call_tools(*self.calls())]
        self.go(given or {"messages": [("user", "go")]})

    def go(self, given: Any) -> None:
        self.restless = True
        result = run(self.mode, self.agent, given, self.config)
        self.restless = False
        self.waiting = tuple(result.get("__interrupt__", ()))

    def answer(self) -> None:
        """Answer what waits; what is approved is what was shown."""
        if not self.waiting:
            return
        answers = {}
        for waiting in self.waiting:
            approves = self.rng.random() < 0.7
            if approves:
                self.reviewed |= {file["sha256"] for file in waiting.value["files"].values()}
            answers[waiting.id] = {"type": "approve"} if approves else {"type": "reject"}
        self.go(Command(resume=answers))

    def lose(self) -> None:
        """Have texts that were loaded cleared from the thread, so that they are put back."""
        values = self.agent.get_state(self.config).values
        lost = [m for m in values.get("messages", ()) if m.type == "tool" and m.name == "load_skill"]
        if self.waiting or not lost:
            return
        for message in lost:
            message.content = "[cleared]"
            message.response_metadata = {"context_editing": {"cleared": True}}
        self.agent.update_state(self.config, {"messages": lost})

    def step(self) -> None:
        name = self.rng.choice(NAMES)
        does = self.rng.choice(
            [
                "talk",
                "talk",
                "talk",
                "answer",
                "answer",
                "change",
                "restore",
                "lose",
                "restart",
                "thread",
                "pin",
                "slash",
            ]
        )
        self.steps.append(does)
        match does:
            case "talk":
                self.talk()
            case "answer":
                self.answer()
            case "change":
                self.change()
            case "restore":
                self.restore()
            case "lose":
                self.lose()
            case "restart":
                self.restart()
            case "thread":
                self.new_thread()
            case "pin":
                self.talk({"messages": [("user", "go")], "pinned_skills": [name]})
            case "slash":
                self.talk({"messages": [("user", f"/{name} now")]})

    def check(self) -> int:
        """Check everything that was ever sent or run; return how many texts were seen."""
        sent = [
            str(message.content) for model in self.models for request in model.requests for message in request.messages
        ]
        marks = {mark for text in [*sent, *self.ran] for mark in MARK.findall(text)}
        strange = {mark for mark in marks if self.content[mark] not in self.reviewed}
        assert strange == set(), (strange, self.steps)
        return len(marks)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("by_lock", [True, False], ids=["lock", "approval"])
def test_no_byte_that_nobody_reviewed_is_seen_or_runs(tmp_path: Path, mode: Mode, *, by_lock: bool) -> None:
    """Whatever changes at whatever step; and enough is seen and run that the walk means something."""
    seen = ran = 0
    for seed in scaled(SHORT_WALKS, range(LONG_WALKS)):
        world = World(tmp_path / str(seed), mode, seed, by_lock=by_lock)
        for _ in range(scaled(25, 60)):
            world.step()
        seen += world.check()
        ran += len(world.ran)
    assert seen > scaled(5, 150)
    assert ran > scaled(0, 20)
