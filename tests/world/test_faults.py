"""A backend that raises, hangs, answers short, in disorder or with garbage, and loses files, by seeded chance."""

import asyncio
import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
from deepagents.backends import BackendProtocol
from deepagents.backends.protocol import FileDownloadResponse, FileInfo, LsResult
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver

from deepskills import SkillsMiddleware
from deepskills.testing import ScriptedChatModel, call_tools
from support import Conversation, Mode, both_modes, load, run, scaled, skill_md, unload
from support.world import blocks_in, check_pairs, check_whole, replayed

TIMEOUT = 0.03
HANG = 4 * TIMEOUT
SLOTS = 3
RUNS_PER_THREAD = 4
SOURCES = ("/base", "/team")
NAMES = {"/base": ["alpha", "beta", "gamma", "delta"], "/team": ["epsilon", "zeta", "eta"]}
ALL = [name for names in NAMES.values() for name in names]
TREE = {
    f"{source}/{name}/{file}": text
    for source, names in NAMES.items()
    for name in names
    for file, text in (("SKILL.md", skill_md(name).encode()), ("scripts/run.py", b"pass\n"))
}
GARBAGE = b"\x00\xff\xfe\x80garbage\x00" * 20
NOT_THERE = {"garbage", "lose"}
"""Faults after which a skill looks like one that is not there any more."""

CAUSES = ("injected", "no answer", "file_not_found", "not text")
"""What an honest refusal may name as its reason."""


@dataclass
class Fate:
    """Decides by seeded chance what goes wrong, and remembers it."""

    seed: int
    chance: float = 0.12
    happened: list[tuple[str, str]] = field(default_factory=list)
    """Each fault since the last look, with the path it struck."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._lock = threading.Lock()

    def strikes(self, path: str, *faults: str) -> str | None:
        """Return the fault that strikes this call, if any."""
        with self._lock:
            if self._random.random() >= self.chance:
                return None
            fault = self._random.choice(faults)
            self.happened.append((fault, path))
            return fault


class Hostile(BackendProtocol):
    """Files in memory, behind calls that fail in every way a backend can fail."""

    def __init__(self, fate: Fate) -> None:
        self.fate = fate

    def ls(self, path: str) -> LsResult:
        fault = self.fate.strikes(path, "raise", "hang", "short", "order")
        if fault == "hang":
            threading.Event().wait(HANG)
        return self._listing(path, fault)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        fault = self.fate.strikes(" ".join(paths), "raise", "hang")
        if fault == "hang":
            threading.Event().wait(HANG)
        return self._files(paths, fault)

    def _listing(self, path: str, fault: str | None) -> LsResult:
        if fault == "raise":
            raise OSError(f"injected: {path} cannot be listed")
        inside = f"{path.rstrip('/')}/"
        found = {inside + key.removeprefix(inside).partition("/")[0] for key in TREE if key.startswith(inside)}
        if not found:
            return LsResult(error=f"Path '{path}': path_not_found")
        entries = [FileInfo(path=item, is_dir=item not in TREE) for item in sorted(found)]
        if fault == "order":
            entries.reverse()
        if fault == "short":
            return LsResult(entries=entries[::2], error=f"injected: {path} is cut short")
        return LsResult(entries=entries)

    def _files(self, paths: list[str], fault: str | None) -> list[FileDownloadResponse]:
        if fault == "raise":
            raise OSError("injected: the files cannot be read")
        answers = [answer for path in paths if (answer := self._file(path)) is not None]
        return answers[::-1] if self.fate.strikes("batch", "order") else answers

    def _file(self, path: str) -> FileDownloadResponse | None:
        if path not in TREE:
            return FileDownloadResponse(path=path, error="file_not_found")
        match self.fate.strikes(path, "short", "garbage", "lose", "refuse"):
            case "short":
                return None
            case "garbage":
                return FileDownloadResponse(path=path, content=GARBAGE)
            case "lose":
                return FileDownloadResponse(path=path, error="file_not_found")
            case "refuse":
                return FileDownloadResponse(path=path, error="injected: permission_denied")
            case _:
                return FileDownloadResponse(path=path, content=TREE[path])


class HostileNatively(Hostile):
    """The same with async methods of its own."""

    async def als(self, path: str) -> LsResult:
        fault = self.fate.strikes(path, "raise", "hang", "short", "order")
        if fault == "hang":
            await asyncio.sleep(HANG)
        return self._listing(path, fault)

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        fault = self.fate.strikes(" ".join(paths), "raise", "hang")
        if fault == "hang":
            await asyncio.sleep(HANG)
        return self._files(paths, fault)


def some_turns(dice: random.Random) -> list[AIMessage]:
    """Return what the model does in a run: a few turns of one to three calls, unknown names among them."""
    turns = []
    for _ in range(dice.randint(1, 4)):
        names = [*ALL, "nobody"]
        calls = [dice.choice((load, load, unload))(dice.choice(names)) for _ in range(dice.randint(1, 3))]
        turns.append(call_tools(*calls))
    return turns


class HostileThread:
    """One conversation on a hostile backend, and a model of what should be loaded in it."""

    def __init__(self, mode: Mode, seed: int) -> None:
        self.mode = mode
        self.dice = random.Random(seed)
        self.fate = Fate(seed, chance=self.dice.choice((0.03, 0.12, 0.3)))
        self.depth = self.dice.choice((1, 2))
        self.model = ScriptedChatModel(replies=[])
        middleware = SkillsMiddleware(
            backend=self.dice.choice((Hostile, HostileNatively))(self.fate),
            sources=SOURCES,
            max_depth=self.depth,
            max_loaded_skills=SLOTS,
            backend_timeout=TIMEOUT,
            refresh=self.dice.choice(("thread", "run")),
        )
        self.agent: Any = create_agent(self.model, middleware=[middleware], checkpointer=InMemorySaver())
        self.config: RunnableConfig = {"configurable": {"thread_id": str(seed)}}
        self.loaded: list[str] = []
        self.seen = 0
        self.notices = 0
        self.looked_empty: set[str] = set()
        """Directories whose file the backend denied: one level deep, they look like directories without a skill."""

    def go(self) -> None:
        """Make one run and check everything that was promised about it."""
        self.fate.happened.clear()
        self.model.replies = [*(["Done."] * len(self.model.requests)), *some_turns(self.dice)]
        given: dict[str, Any] = {"messages": [HumanMessage("go")]}
        if self.dice.random() < 0.3:
            given["pinned_skills"] = self.dice.sample([*ALL, "nobody"], k=2)
        result = run(self.mode, self.agent, given, self.config)
        assert result["messages"][-1].text == "Done."
        check_pairs(result["messages"])
        state = self.agent.get_state(self.config).values
        new, self.seen = result["messages"][self.seen :], len(result["messages"])
        self.follow([*self.new_notices(), *new], state)
        assert state["skills_loaded"] == self.loaded
        check_whole(state)
        assert blocks_in(self.model.requests[-1].messages) == sorted(self.loaded)
        self.check_nothing_is_lost_in_silence(state)
        self.check_pins(given.get("pinned_skills", []), new, state)

    def new_notices(self) -> list[BaseMessage]:
        """Return what this run's requests told of skills that left; such a notice stands in every later request too."""
        notices = [message for message in self.model.requests[-1].messages if message.text.startswith("[Notice about")]
        new, self.notices = notices[self.notices :], len(notices)
        return new

    def follow(self, messages: list[BaseMessage], state: dict[str, Any]) -> None:
        """Bring the model of what is loaded up to date with what this run told."""
        catalog = {skill["name"] for skill in state["skills_metadata"]}
        struck = " ".join(path for fault, path in self.fate.happened if fault in NOT_THERE)
        for message in messages:
            before, self.loaded = self.loaded, replayed([message], self.loaded)
            text = str(message.text)
            for name in set(before) - set(self.loaded):
                assert message.type == "tool" or f"/{name}/" in struck, f"{name} was unloaded without a reason"
            if message.type == "tool" and len(self.loaded) > len(before):
                assert len(self.loaded) <= SLOTS, f"{self.loaded} are more than the budget allows"
            if "could not be loaded" in text:
                assert any(cause in text for cause in CAUSES), text
            if "There is no skill named" in text:
                assert text.split("'")[1] not in catalog
            if "is already loaded" in text and "by an earlier call" not in text:
                assert text.split("'")[1] in self.loaded

    def check_nothing_is_lost_in_silence(self, state: dict[str, Any]) -> None:
        """Assert that each skill of the tree is in the catalog, or named by an error, or its whole source is."""
        catalog = {skill["name"] for skill in state["skills_metadata"]}
        errors = [problem for problem in state["skills_problems"] if problem["severity"] == "error"]
        if self.depth == 1:
            self.looked_empty |= {path for fault, path in self.fate.happened if fault == "lose"}
        for source, names in NAMES.items():
            whole = any(
                problem["path"] == source
                and (problem["code"] == "source-failed" or f"{source} is" in problem["message"])
                for problem in errors
            )
            for name in set(names) - catalog:
                place = f"{source}/{name}"
                named = any(place in f"{problem['path']} {problem['message']}" for problem in errors)
                assert whole or named or f"{place}/SKILL.md" in self.looked_empty, (name, errors)

    def check_pins(self, pins: list[str], messages: list[BaseMessage], state: dict[str, Any]) -> None:
        """Assert that each pin was loaded, or that a problem names it."""
        for pin in set(pins) - set(self.loaded):
            unloaded = any(f"Unloaded the skill '{pin}'" in message.text for message in messages)
            named = any(problem["path"] == pin or f"/{pin}/" in problem["path"] for problem in state["skills_problems"])
            assert unloaded or named, (pin, state["skills_problems"])


@both_modes
def test_every_run_ends_well_on_a_hostile_backend(mode: Mode) -> None:
    """Whatever the backend does, a run ends with an answer, what is loaded is what was told, no loss is silent."""
    for seed in range(scaled(24, 1000) // RUNS_PER_THREAD):
        thread = HostileThread(mode, seed)
        for _ in range(RUNS_PER_THREAD):
            thread.go()


class FailsOnce(Hostile):
    """Lets one read of one file fail, by its number among the reads of that file."""

    def __init__(self, name: str, failing: int) -> None:
        super().__init__(Fate(0, chance=0))
        self.name = name
        self.left = failing
        self.lock = threading.Lock()

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        with self.lock:
            if len(paths) == 1 and f"/{self.name}/" in paths[0]:
                self.left -= 1
                if self.left == 0:
                    raise OSError("injected: read it again")
        return super().download_files(paths)


@pytest.mark.parametrize("failing", [1, 2, 3])
@both_modes
@pytest.mark.parametrize("limits", [{"max_loaded_skills": 1}, {"max_loaded_tokens": 100}], ids=["slots", "tokens"])
def test_budgets_hold_when_a_sibling_cannot_be_read(mode: Mode, failing: int, limits: dict[str, int]) -> None:
    """Of two skills loaded in one turn with room for one, one is granted at most, whichever read fails."""
    backend = FailsOnce("alpha", failing)
    talk = Conversation(mode, SkillsMiddleware(backend=backend, sources=SOURCES, **limits))  # type: ignore[arg-type]

    talk.call(load("alpha"), load("alpha"), load("beta"))

    assert len(talk.loaded) <= 1


@pytest.mark.parametrize("failing", [1, 2])
@both_modes
def test_a_load_and_an_unload_in_one_turn_leave_nothing_behind(mode: Mode, failing: int) -> None:
    """A skill that one turn loads and then unloads is not loaded after it, whichever read fails."""
    talk = Conversation(mode, SkillsMiddleware(backend=FailsOnce("alpha", failing), sources=SOURCES))

    talk.call(load("alpha"), unload("alpha"))

    assert talk.loaded == []


class Silent(Hostile):
    """Gives no answer to anything until it is let go."""

    def __init__(self) -> None:
        super().__init__(Fate(0, chance=0))
        self.over = threading.Event()

    def ls(self, path: str) -> LsResult:
        self.over.wait(60)
        return super().ls(path)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        self.over.wait(60)
        return super().download_files(paths)


class SilentNatively(Silent):
    """The same with async methods of its own."""

    async def als(self, path: str) -> LsResult:
        await asyncio.sleep(60)
        return super().ls(path)

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        await asyncio.sleep(60)
        return super().download_files(paths)


@pytest.mark.parametrize("kind", [Silent, SilentNatively])
@both_modes
def test_a_silent_backend_holds_up_no_run(mode: Mode, kind: type[Silent]) -> None:
    """A backend that never answers costs a run its timeouts, not more, and every source is named in a problem."""
    backend = kind()
    talk = Conversation(mode, SkillsMiddleware(backend=backend, sources=SOURCES, backend_timeout=TIMEOUT))
    began = time.monotonic()

    try:
        talk.call(load("alpha"))
    finally:
        backend.over.set()

    assert time.monotonic() - began < 30
    assert talk.result["messages"][-1].text == "Done."
    assert [problem["path"] for problem in talk.state["skills_problems"]] == list(SOURCES)


@both_modes
def test_every_directory_that_cannot_be_listed_is_named(mode: Mode) -> None:
    """Where two directories of a source cannot be listed, problems name both."""

    class Closed(Hostile):
        def ls(self, path: str) -> LsResult:
            if path in {"/base/alpha", "/base/gamma"}:
                raise OSError("injected: closed")
            return super().ls(path)

    talk = Conversation(mode, SkillsMiddleware(backend=Closed(Fate(0, chance=0)), sources=SOURCES, max_depth=2))

    talk.say()

    told = " ".join(f"{problem['path']} {problem['message']}" for problem in talk.state["skills_problems"])
    assert "/base/alpha" in told
    assert "/base/gamma" in told


class End(BaseException):
    """What no `except Exception` catches."""


@both_modes
@pytest.mark.parametrize("kind", [Hostile, HostileNatively])
@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError, End])
def test_no_exception_of_a_backend_ends_the_run(mode: Mode, kind: type[Hostile], error: type[BaseException]) -> None:
    """One that calls `exit` or leaks the cancellation of its client has failed, and the other source is there."""

    def end(path: str) -> None:
        if path.startswith("/base"):
            raise error

    class Ending(kind):  # type: ignore[misc,valid-type]
        def ls(self, path: str) -> LsResult:
            end(path)
            listed: LsResult = super().ls(path)
            return listed

        if kind is HostileNatively:

            async def als(self, path: str) -> LsResult:
                await asyncio.sleep(0)
                return self.ls(path)

    talk = Conversation(mode, SkillsMiddleware(backend=Ending(Fate(0, chance=0)), sources=SOURCES))

    talk.call(load("zeta"))

    assert talk.loaded == ["zeta"]
    [problem] = talk.state["skills_problems"]
    assert (problem["path"], problem["code"]) == ("/base", "source-failed")
