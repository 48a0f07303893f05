"""A walk over approvals: users, threads, processes and a store, beside sources that change at any moment.

All of a walk's world lies on a disk: the skills, what a provider and an MCP server say, the checkpoints and the store.
So each step may be taken by an agent that knows what happened before, by a fresh one, or by another process. The judge
of a walk knows nothing of how approvals are made. It knows which bytes each version of each file has, since every
version holds a mark of its own; what each human saw and answered; and what reached a model or ran.
"""

import asyncio
import base64
import hashlib
import json
import multiprocessing
import random
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deepagents.backends import FilesystemBackend
from deepagents.backends.protocol import ExecuteResponse
from deepagents.middleware import FilesystemMiddleware
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.store.sqlite import SqliteStore
from langgraph.store.sqlite.aio import AsyncSqliteStore
from langgraph.types import Command, interrupt

from deepskills import OptionalSource, ProvidedFile, ProvidedSkill, SkillExtension, SkillProvider, SkillsMiddleware
from deepskills.extensions import SkillApproval, SkillScripts
from deepskills.testing import ScriptedChatModel, call_tools
from support.locks import digest_over
from support.modes import Mode

USERS = ("ann", "bob")
FILES = ("SKILL.md", "references/guide.md", "scripts/run.py")
GRANTS = ("tools", "scripts")
MARK = re.compile(r"MARK-[0-9]+-KRAM")
SERVER = str(Path(__file__).parents[1] / "mcp" / "crooked_server.py")

Key = tuple[str, str]
"""A skill: the source that has it, and its name."""

Files = dict[str, bytes]


@dataclass(frozen=True)
class Setup:
    """What stays the same during a walk."""

    root: Path
    mode: Mode
    kinds: tuple[str, ...]
    namespace: str
    """`"shared"` by all users, `"user"` for one each, or `"none"` without a store."""

    grants: bool
    digests: bool
    refresh: str
    unload_when: str
    asker: str
    """Whether another extension asks too: `"first"`, `"last"` or `"none"`."""

    @property
    def keys(self) -> list[Key]:
        own = [("ann", "gamma"), ("bob", "gamma")]
        found = {
            "disk": [("disk", "alpha"), ("disk", "beta"), *own],
            "hub": [("hub", "delta")],
            "docs": [("docs", "report")],
        }
        return [key for kind in self.kinds for key in found[kind]]


@dataclass(frozen=True)
class Change:
    """A skill as it is from some moment of a step on."""

    at: int
    """After how many reads, listings and hooks."""

    key: Key
    files: Files
    sent: Files = field(default_factory=dict)
    """What a server sends in place of the bytes it lists."""


@dataclass(frozen=True)
class Step:
    """What a user does: says something on which the model calls tools, or answers what waits."""

    thread: str
    user: str
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    answers: Mapping[str, Any] | None = None
    changes: tuple[Change, ...] = ()
    asks: bool = False
    """Whether the other extension asks during this step."""


@dataclass
class Outcome:
    """What a step brought about."""

    requests: list[tuple[str, list[str]]] = field(default_factory=list)
    """For each request to the model, its text and its tools."""

    ran: list[dict[str, str]] = field(default_factory=list)
    """For each script that ran, the files beside it by their SHA-256, and its marks under an empty path."""

    answered: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By id of a tool call: its status and its text."""

    waiting: list[tuple[str, str, Any]] = field(default_factory=list)
    """Each question that waits: its id, the id of the tool call that asks, and what is asked."""

    applied: list[Change] = field(default_factory=list)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def place_of(root: Path, key: Key) -> Path:
    source, name = key
    return root / "skills" / name if source == "disk" else root / "private" / source / name


class Sources:
    """What lies on the disk, changed at the moments that a step's changes name."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.changes: list[Change] = []
        self.applied: list[Change] = []
        self.count = 0
        self.lock = threading.Lock()

    def tick(self) -> None:
        """Let a moment pass: a read, a listing or a hook."""
        with self.lock:
            self.count += 1
            due = [change for change in self.changes if change.at <= self.count]
            self.changes = [change for change in self.changes if change.at > self.count]
            for change in due:
                self.put(change)
                self.applied.append(change)

    def put(self, change: Change) -> None:
        root, (source, name) = self.setup.root, change.key
        if source == "hub":
            self.write(root / "hub.json", {name: packed(change.files)})
        elif source == "docs":
            self.write(root / "docs.json", {"ttl": 0, "skills": {f"skill://team/{name}/SKILL.md": served(change)}})
        else:
            place = place_of(root, change.key)
            for path in [*place.rglob("*")] if place.exists() else []:
                if path.is_file() and path.relative_to(place).as_posix() not in change.files:
                    path.unlink()
            for file, content in change.files.items():
                target = place / file
                target.parent.mkdir(parents=True, exist_ok=True)
                # In one step: half a file is a version that was never written.
                fresh = root / "fresh"
                fresh.write_bytes(content)
                fresh.replace(target)

    def write(self, path: Path, value: object) -> None:
        fresh = path.with_suffix(".fresh")
        fresh.write_text(json.dumps(value))
        fresh.replace(path)


def packed(files: Mapping[str, bytes]) -> dict[str, str]:
    return {path: base64.b64encode(content).decode() for path, content in files.items()}


def head_of(name: str) -> dict[str, Any]:
    return {"name": name, "description": f"Does {name}.", "metadata": {"include_tools": f"power_{name}"}}


def served(change: Change) -> dict[str, Any]:
    return {"frontmatter": head_of(change.key[1]), "files": packed(change.files), "sends": packed(change.sent)}


class Hub(SkillProvider):
    """A provider that nobody trusts, over a file that changes."""

    label = "Hub"
    trusted = False

    def __init__(self, sources: Sources) -> None:
        self.sources = sources

    def files(self) -> dict[str, Files]:
        self.sources.tick()
        said = json.loads((self.sources.setup.root / "hub.json").read_text())
        return {key: {path: base64.b64decode(text) for path, text in files.items()} for key, files in said.items()}

    def digest(self, content: bytes) -> str | None:
        return f"sha256:{sha256(content)}" if self.sources.setup.digests else None

    def list_skills(self, runtime: Any) -> Iterable[ProvidedSkill]:  # noqa: ARG002
        for key, files in self.files().items():
            head = head_of(key)
            name, description = head.pop("name"), head.pop("description")
            yield ProvidedSkill(key, name, description, self.digest(files["SKILL.md"]), head)

    def read_skill(self, skill: ProvidedSkill, runtime: Any) -> bytes:  # noqa: ARG002
        return self.files()[skill.key]["SKILL.md"]

    def list_files(self, skill: ProvidedSkill, runtime: Any) -> Iterable[ProvidedFile]:  # noqa: ARG002
        for path, content in self.files()[skill.key].items():
            if path != "SKILL.md":
                yield ProvidedFile(path, len(content), self.digest(content))

    def read_file(self, skill: ProvidedSkill, path: str, runtime: Any) -> bytes:  # noqa: ARG002
        return self.files()[skill.key][path]


class Disturber(SkillExtension):
    """Lets a moment pass at each hook."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources

    def before_read(self, entry: Any, run: Any) -> None:  # noqa: ARG002
        self.sources.tick()

    def before_load(self, load: Any, run: Any) -> None:  # noqa: ARG002
        self.sources.tick()

    def change_text(self, load: Any, run: Any) -> str:  # noqa: ARG002
        self.sources.tick()
        return str(load.text)

    def before_file(self, file: Any, run: Any) -> None:  # noqa: ARG002
        self.sources.tick()

    def before_tool(self, request: Any, run: Any) -> None:  # noqa: ARG002
        self.sources.tick()


class Late(Disturber):
    """The same, after the other extensions."""


class Asker(SkillExtension):
    """Asks a question of its own before a skill is read, in the steps that want it."""

    asks = False

    def before_read(self, entry: Any, run: Any) -> None:  # noqa: ARG002
        if self.asks:
            interrupt({"type": "another", "name": entry.name})


def power(name: str) -> BaseTool:
    return StructuredTool.from_function(lambda: "used", name=f"power_{name}", description="A power.")


class Host:
    """An agent, in the process that it was made in."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.sources = sources = Sources(setup)
        self.model = ScriptedChatModel(replies=[])
        self.asker = Asker()
        self.ran: list[dict[str, str]] = []
        self.closing = ExitStack()

        class Restless(FilesystemBackend):
            def download_files(self, paths: list[str]) -> Any:
                sources.tick()
                return super().download_files(paths)

            def ls(self, path: str) -> Any:
                sources.tick()
                return super().ls(path)

            def read(self, *args: Any, **kwargs: Any) -> Any:
                sources.tick()
                return super().read(*args, **kwargs)

        backend = Restless(root_dir=setup.root, virtual_mode=True)
        others: list[Any] = []
        if "hub" in setup.kinds:
            others.append(Hub(sources))
        if "docs" in setup.kinds:
            from deepskills.mcp import McpSkills  # noqa: PLC0415 - the walk without a server needs no `mcp`

            connection = {
                "transport": "stdio",
                "command": sys.executable,
                "args": [SERVER, str(setup.root / "docs.json")],
            }
            others.append(self.closing.enter_context(McpSkills({"docs": connection}, timeout=120)).provider("docs"))

        def found(runtime: Any) -> list[Any]:
            user = runtime.config["configurable"]["user"]
            return ["/skills", OptionalSource(f"/private/{user}"), *others]

        def own(runtime: Any) -> tuple[str, ...]:
            return ("approvals", runtime.config["configurable"]["user"])

        def runner(_skill: str, path: str, *_rest: Any) -> ExecuteResponse:
            place = Path(path).parents[1]
            files = {
                file.relative_to(place).as_posix(): file.read_bytes() for file in place.rglob("*") if file.is_file()
            }
            marks = " ".join(mark for content in files.values() for mark in MARK.findall(content.decode()))
            self.ran.append({**{path: sha256(content) for path, content in files.items()}, "": marks})
            return ExecuteResponse(output="ran", exit_code=0, truncated=False)

        namespace: Any = own if setup.namespace == "user" else ("approvals",)
        approval = SkillApproval(namespace, grants=GRANTS if setup.grants else ())
        asking: Any = {"first": [self.asker, approval], "last": [approval, self.asker], "none": [approval]}[setup.asker]
        skills: Any = SkillsMiddleware(
            backend=backend,
            sources=found,
            refresh=setup.refresh,  # type: ignore[arg-type]
            unload_when=setup.unload_when,  # type: ignore[arg-type]
            extensions=[Disturber(sources), *asking, SkillScripts(runner=runner), Late(sources)],
            extra_tools=["load_skill_asset"],
            tools=[power(name) for name in {name for _, name in setup.keys}],
        )
        self.agent: Any = create_agent(self.model, middleware=[skills, FilesystemMiddleware(backend=backend)])

    def close(self) -> None:
        self.closing.close()

    def take(self, step: Step) -> Outcome:
        """Take a step, and say what it brought about."""
        self.sources.changes = [*step.changes]
        self.sources.count, self.sources.applied, self.ran = 0, [], []
        self.asker.asks = step.asks
        asked = len(self.model.requests)
        if step.answers is None:
            self.model.replies = [*([self.model.fallback] * asked), call_tools(*step.calls)]
            given: Any = {"messages": [("user", "go")]}
        else:
            given = Command(resume=dict(step.answers))
        config = {"configurable": {"thread_id": step.thread, "user": step.user}}
        state = self.run(given, config) if self.setup.mode == "sync" else asyncio.run(self.arun(given, config))
        self.sources.changes = []
        return self.outcome(state, asked)

    def run(self, given: Any, config: Any) -> Any:
        root = self.setup.root
        with ExitStack() as stack:
            self.agent.checkpointer = stack.enter_context(SqliteSaver.from_conn_string(str(root / "threads.sqlite")))
            self.agent.store = None
            if self.setup.namespace != "none":
                self.agent.store = stack.enter_context(SqliteStore.from_conn_string(str(root / "store.sqlite")))
                self.agent.store.setup()
            self.agent.invoke(given, config)
            return self.agent.get_state(config)

    async def arun(self, given: Any, config: Any) -> Any:
        root = self.setup.root
        async with AsyncSqliteSaver.from_conn_string(str(root / "threads.sqlite")) as saver:
            self.agent.checkpointer, self.agent.store = saver, None
            if self.setup.namespace == "none":
                await self.agent.ainvoke(given, config)
                return await self.agent.aget_state(config)
            async with AsyncSqliteStore.from_conn_string(str(root / "store.sqlite")) as store:
                await store.setup()
                self.agent.store = store
                await self.agent.ainvoke(given, config)
                return await self.agent.aget_state(config)

    def outcome(self, state: Any, asked: int) -> Outcome:
        messages = state.values.get("messages", [])
        calls = next((m.tool_calls for m in reversed(messages) if isinstance(m, AIMessage)), [])
        waiting = []
        for task in state.tasks:
            for question in task.interrupts:
                # Each call of a turn is a task of its own, in the order of the calls.
                place = task.path[1] if len(task.path) > 1 and isinstance(task.path[1], int) else -1
                waiting.append(
                    (question.id, str(calls[place]["id"]) if 0 <= place < len(calls) else "", question.value)
                )
        return Outcome(
            [(request.text, request.tools) for request in self.model.requests[asked:]],
            self.ran,
            {m.tool_call_id: (m.status, str(m.text)) for m in messages if isinstance(m, ToolMessage)},
            waiting,
            self.sources.applied,
        )


def take_elsewhere(setup: Setup, step: Step) -> Outcome:
    """Take a step in a process that knows nothing."""
    host = Host(setup)
    try:
        return host.take(step)
    finally:
        host.close()


@dataclass(frozen=True, eq=False)
class Review:
    """What a human approved: files of a skill, with what was granted; and who saw it on which thread."""

    thread: str
    user: str
    key: Key
    files: Mapping[str, str]
    grants: frozenset[str]
    call: str
    """The id of the tool call that asked; empty for a pin."""


class Walk:
    """A random walk, and the judge of all that it brings about."""

    def __init__(
        self, root: Path, seed: int, mode: Mode, kinds: Sequence[str], elsewhere: ProcessPoolExecutor | None = None
    ) -> None:
        self.rng = rng = random.Random(seed)
        self.setup = Setup(
            root,
            mode,
            tuple(kinds),
            rng.choice(["shared", "shared", "user", "none"]),
            rng.random() < 0.5,
            rng.random() < 0.5,
            rng.choice(["thread", "run"]),
            rng.choice(["now", "cheap"]),
            rng.choice(["none", "none", "first", "last"]),
        )
        root.mkdir(parents=True)
        self.elsewhere = elsewhere
        self.written = 0
        self.version: dict[str, tuple[Key, str, str]] = {}
        """Each mark: the skill, the file and its SHA-256."""
        self.content: dict[str, bytes] = {}
        """What was ever written, by its SHA-256."""
        self.current: dict[Key, Files] = {}
        self.reviews: list[Review] = []
        self.kept: list[Review] = []
        """Those whose load happened, so that nobody has to be asked again."""
        self.acted: dict[str, set[str]] = {}
        """By thread, the users who acted on it."""
        self.waiting: dict[str, list[tuple[str, str, Any]]] = {}
        self.rejected: dict[str, str] = {}
        """By id of a tool call whose question was answered with no: the skill."""
        self.shown: dict[str, set[str]] = {}
        """By id of a tool call, the digests that it asked about."""
        self.counts: Counter[str] = Counter()
        self.history: list[str] = []
        for key in self.setup.keys:
            change = Change(0, key, {file: self.text(key, file) for file in FILES})
            Sources(self.setup).put(change)
            self.current[key] = change.files
        self.hosts = [Host(self.setup), Host(self.setup)]

    def close(self) -> None:
        for host in self.hosts:
            host.close()

    def text(self, key: Key, file: str) -> bytes:
        """Return a version of a file that was never there before."""
        self.written += 1
        mark, name = f"MARK-{self.written}-KRAM", key[1]
        text = f"# {mark}\n"
        if file == "SKILL.md":
            fields = "".join(f"{field}: {json.dumps(value)}\n" for field, value in head_of(name).items())
            text = f"---\n{fields}---\nInstructions {mark}.\n"
        self.version[mark] = (key, file, sha256(text.encode()))
        self.content[sha256(text.encode())] = text.encode()
        return text.encode()

    # What happens.

    def change(self, base: dict[Key, Files], at: int) -> Change:
        rng = self.rng
        key = rng.choice(self.setup.keys)
        files, file = dict(base[key]), rng.choice([*FILES, "references/added.md"])
        sent: Files = {}
        if key[0] == "docs" and rng.random() < 0.25:
            sent = {file: self.text(key, file)}
        elif rng.random() < 0.2 and file != "SKILL.md":
            files.pop(file, None)
        elif rng.random() < 0.25 and (known := [review for review in self.reviews if review.key == key]):
            # Back to what somebody approved once: as a whole, or one file of it.
            review = rng.choice(known)
            restored = {path: self.content[digest] for path, digest in review.files.items()}
            files = restored if rng.random() < 0.7 else {**files, file: restored.get(file, self.text(key, file))}
        else:
            files[file] = self.text(key, file)
        base[key] = files
        return Change(at, key, files, sent)

    def calls(self, user: str) -> Iterable[tuple[str, dict[str, Any]]]:
        rng = self.rng
        keys = [key for key in self.setup.keys if key[0] not in USERS or key[0] == user]
        favourite = rng.choice(keys)
        for _ in range(rng.randint(1, 4)):
            key = favourite if rng.random() < 0.5 else rng.choice(keys)
            name = f"docs:{key[1]}" if key[0] == "docs" else key[1]
            file = rng.choice([*FILES[1:], "references/added.md"])
            seen = rng.choice(["/skills/alpha/", "\\skills\\beta\\"]) + rng.choice(FILES)
            other: list[tuple[str, dict[str, Any]]] = [
                ("unload_skill", {"skill_name": name}),
                ("load_skill_asset", {"skill_name": name, "relative_path": file}),
                ("run_skill_script", {"skill_name": name, "script_name": "run.py", "args": []}),
                ("read_file", {"file_path": seen}),
                ("grep", {"pattern": "MARK", "path": "/skills", "output_mode": "content"}),
            ]
            yield ("load_skill", {"skill_name": name}) if rng.random() < 0.5 else rng.choice(other)

    def step(self) -> None:
        rng = self.rng
        if rng.random() < 0.15:
            base = dict(self.current)
            change = self.change(base, 0)
            Sources(self.setup).put(change)
            self.current = base
            self.history.append(f"change {change.key}")
            return
        thread, user = rng.choice(["1", "2", "3", str(10 + len(self.history) // 12)]), rng.choice(USERS)
        base = dict(self.current)
        places = sorted(rng.choices(range(1, 40), k=rng.choice([0, 0, 1, 1, 2, 4])))
        changes = tuple(self.change(base, at) for at in places)
        asks = self.setup.asker != "none" and rng.random() < 0.4
        waiting = self.waiting.get(thread)
        if waiting:
            answers = self.answer(thread, user, waiting)
            step = Step(thread, user, answers=answers, changes=changes, asks=asks)
        else:
            step = Step(thread, user, tuple(self.calls(user)), None, changes, asks)
        self.acted.setdefault(thread, set()).add(user)
        before = [*self.kept] if not waiting else None
        kind = rng.random()
        self.history.append(
            f"{len(self.history)}: {user} on {thread}: {step.calls or step.answers}, {len(changes)} changes"
        )
        if kind < 0.12 and self.elsewhere is not None:
            self.counts["steps in another process"] += 1
            outcome = self.elsewhere.submit(take_elsewhere, self.setup, step).result()
        elif kind < 0.35:
            self.counts["steps of a fresh agent"] += 1
            place = rng.randrange(len(self.hosts))
            self.hosts[place].close()
            self.hosts[place] = Host(self.setup)
            outcome = self.hosts[place].take(step)
        else:
            outcome = rng.choice(self.hosts).take(step)
        for change in outcome.applied:
            self.current[change.key] = change.files
        self.waiting[thread] = outcome.waiting
        self.counts["steps"] += 1
        self.counts["changes under a step"] += len(outcome.applied)
        # Of a call that asked more than once, the last counts: what had changed meanwhile was not loaded.
        last = {review.call: review for review in self.reviews if review.call in outcome.answered}
        marks = {review: self.marks_of(outcome.answered[call][1]) for call, review in last.items()}
        fresh = [review for review, found in marks.items() if review.files.get("SKILL.md") in found]
        self.kept += [review for review in fresh if review not in self.kept]
        self.judge(step, outcome, before)

    def answer(self, thread: str, user: str, waiting: Sequence[tuple[str, str, Any]]) -> dict[str, Any]:
        """Answer some of what waits; what is approved is what was shown."""
        rng = self.rng
        chosen = [one for one in waiting if rng.random() < 0.8] or [waiting[0]]
        answers: dict[str, Any] = {}
        for question, call, value in chosen:
            approves = rng.random() < 0.65
            answers[question] = {"type": "approve"} if approves else {"type": "reject", "message": f"NO-{call}"}
            self.counts[f"answers: {answers[question]['type']}"] += 1
            if value.get("type") != "skill_approval":
                self.counts["answers to others"] += 1
                continue
            if approves:
                grants = [grant for grant in GRANTS if rng.random() < 0.5] if self.setup.grants else []
                if self.setup.grants:
                    answers[question]["grants"] = grants
                files = {path: file["sha256"] for path, file in value["files"].items()}
                self.reviews.append(Review(thread, user, self.key_of(value), files, frozenset(grants), call))
            elif call:
                self.rejected[call] = value["name"]
        return answers

    def key_of(self, value: Mapping[str, Any]) -> Key:
        path, name = value["path"], value["name"].rpartition(":")[2]
        if path.startswith("/private/"):
            return path.split("/")[2], name
        return ("disk" if path.startswith("/skills/") else "docs" if "docs" in path else "hub"), name

    # The judge.

    def holding(self, thread: str) -> list[Review]:
        """Return the reviews that count on a thread: its own, and by the store those of the users who act on it."""
        found = []
        for review in self.reviews:
            shared = self.setup.namespace == "shared" or (
                self.setup.namespace == "user" and review.user in self.acted[thread]
            )
            if shared or review.thread == thread:
                found.append(review)
        return found

    def judge(self, step: Step, outcome: Outcome, before: Sequence[Review] | None) -> None:
        holding = self.holding(step.thread)
        approved = {(review.key, digest) for review in holding for digest in review.files.values()}
        for text, tools in outcome.requests:
            marks = set(MARK.findall(text))
            self.counts["texts seen"] += len(marks)
            for mark in marks:
                key, file, digest = self.version[mark]
                assert (key, digest) in approved, self.say(f"nobody approved {mark}, {file} of {key}", step)
                # The other user's catalog is not this one's: no text of it is in the request.
                if file == "SKILL.md" and key[0] in USERS:
                    assert key[0] == step.user, self.say(f"{step.user} sees {mark} of {key}", step)
            self.judge_powers(step, tools, marks, holding)
        for files in outcome.ran:
            ran = MARK.findall(files.pop(""))
            self.counts["scripts run"] += 1
            keys = {self.version[mark][0] for mark in ran}
            assert len(keys) == 1, self.say(f"a mixture ran: {keys}", step)
            matching = [review for review in holding if review.key in keys and review.files == files]
            assert matching, self.say(f"nobody approved what ran: {keys} {ran}", step)
            if self.setup.grants:
                assert any("scripts" in review.grants for review in matching), self.say(f"not granted: {keys}", step)
        for call, name in self.rejected.items():
            if call in outcome.answered:
                status, text = outcome.answered[call]
                assert status == "error", self.say(f"a load of {name} was rejected, and answered {text}", step)
                self.counts["rejections kept"] += 1
        for _question, _call, value in outcome.waiting:
            self.counts["questions waiting"] += 1
            if value.get("type") == "skill_approval":
                self.judge_question(step, value, before)

    def judge_powers(self, step: Step, tools: Sequence[str], marks: set[str], holding: Sequence[Review]) -> None:
        for tool in tools:
            if not tool.startswith("power_"):
                continue
            self.counts["powers offered"] += 1
            texts = {
                self.version[mark]
                for mark in marks
                if self.version[mark][1] == "SKILL.md" and self.version[mark][0][1] == tool.removeprefix("power_")
            }
            held = {
                (review.key, "SKILL.md", review.files["SKILL.md"])
                for review in holding
                if "tools" in review.grants or not self.setup.grants
            }
            assert texts & held, self.say(f"{tool} was not granted", step)

    def judge_question(self, step: Step, value: Mapping[str, Any], before: Sequence[Review] | None) -> None:
        key = self.key_of(value)
        files = {path: file["sha256"] for path, file in value["files"].items()}
        known = {digest for owner, _, digest in self.version.values() if owner == key}
        assert value["digest"] == digest_over(files), self.say(f"the digest is not that of the files: {value}", step)
        assert set(files.values()) <= known, self.say(f"files that {key} never had: {value}", step)
        if before is None or self.setup.namespace == "none":
            return
        # Who has just been asked for the first time was not asked before about the same.
        for review in before:
            is_mine = self.setup.namespace == "shared" or review.user == step.user
            assert not (is_mine and review.key == key and review.files == files), self.say(f"asked again: {key}", step)

    def marks_of(self, text: str) -> set[str]:
        """Return the files whose marks a text holds, by their SHA-256."""
        return {self.version[mark][2] for mark in MARK.findall(text)}

    def say(self, text: str, step: Step) -> str:
        return "\n".join([text, str(self.setup), str(step), *self.history[-12:]])


def walk(
    root: Path,
    seed: int,
    mode: Mode,
    kinds: Sequence[str],
    steps: int,
    elsewhere: ProcessPoolExecutor | None = None,
) -> Counter[str]:
    """Take a walk, and return how often each thing happened."""
    taken = Walk(root, seed, mode, kinds, elsewhere)
    try:
        for _ in range(steps):
            taken.step()
    finally:
        taken.close()
    return taken.counts


@contextmanager
def other_processes() -> Iterator[ProcessPoolExecutor]:
    """Give what starts a process of its own for each step that it is handed."""
    context = multiprocessing.get_context("forkserver")
    # What takes long to import is imported once; tests are not on the path of the process that does.
    context.set_forkserver_preload(["deepskills.extensions", "deepskills.testing", "langgraph.store.sqlite.aio"])
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        yield pool
