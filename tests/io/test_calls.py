"""Calls beyond listing and reading: extensions, commands, writes, shared results, and what lies on a local disk."""

import asyncio
import contextvars
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deepagents.backends import BackendProtocol, CompositeBackend, FilesystemBackend, LocalShellBackend, StoreBackend
from deepagents.backends.protocol import (
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
    LsResult,
    SandboxBackendProtocol,
)
from langchain_core.embeddings import Embeddings
from langgraph.errors import GraphInterrupt
from langgraph.store.memory import InMemoryStore

from deepskills import SkillsError
from deepskills._io.backends import can_execute, is_backend
from deepskills._io.drivers import NO_SHELL, adrive, drive
from deepskills._io.plan import (
    Ask,
    Attempt,
    Call,
    CallFailed,
    CallFunction,
    Entry,
    Execute,
    Failed,
    FindExisting,
    ListDirectory,
    Listing,
    Pause,
    Plan,
    ReadFiles,
    ResultT,
    WaitFor,
    Work,
    WriteFiles,
    call_method,
    read_files,
    together,
    unwrap,
)
from support import MODES, FakeBackend, Mode, both_modes, by_hand, disk, hangs, write_files
from support.waiting import at_once, within_some_limit

LARGE = 3 * 1024**3
"""The apparent size of a sparse file."""


def perform(mode: Mode, plan: Plan[ResultT], backend: Any = None, seconds: float | None = None) -> ResultT:
    if mode == "sync":
        return drive(plan, backend=backend, seconds=seconds)
    return asyncio.run(adrive(plan, backend=backend, seconds=seconds))


async def ask(*calls: Call[Any]) -> list[Any]:
    return list(await together(*(Attempt(call) for call in calls)))


def store_backend() -> StoreBackend:
    return StoreBackend(store=InMemoryStore(), namespace=lambda _runtime: ("skills",))


# Extensions.


@both_modes
def test_an_extension_is_called_in_the_callers_own_thread_and_context(mode: Mode) -> None:
    """One written `def` in any run, one written `async def` in an async one, on its loop; no backend is needed."""
    here, variable = threading.current_thread(), contextvars.ContextVar("variable", default="unset")
    variable.set("the caller's")

    def plain() -> tuple[bool, str]:
        return threading.current_thread() is here, variable.get()

    async def awaited() -> tuple[bool, str]:
        await asyncio.sleep(0)
        return plain()

    answers = perform(mode, ask(Ask(plain), Ask(awaited)), None)
    assert answers == [(True, "the caller's"), (mode == "async", "the caller's")]


@both_modes
def test_extensions_of_a_round_are_called_in_order(mode: Mode) -> None:
    """The calls of a round are made one after the other: what interrupts repeats in the same order."""
    running: list[int] = []
    seen: list[list[int]] = []

    async def asked(number: int) -> None:
        running.append(number)
        await asyncio.sleep(0.01 * (3 - number))
        seen.append(running.copy())
        running.remove(number)

    calls: list[Ask[None]] = [Ask(partial(asked, number)) for number in range(3)]
    perform(mode, ask(*calls), None)
    assert seen == [[0], [1], [2]]


@both_modes
def test_an_extension_that_raises_is_a_failure_and_an_interrupt_passes(mode: Mode) -> None:
    """What an extension raises is an answer; what LangGraph needs to see leaves the driver. No time limit applies."""

    def interrupt() -> None:
        raise GraphInterrupt

    async def slow() -> str:
        await asyncio.sleep(0.05)
        return "done"

    assert perform(mode, ask(Ask(fail), Ask(slow)), None, 0.01) == [Failed("ValueError: mine"), "done"]
    with pytest.raises(GraphInterrupt):
        perform(mode, ask(Ask(interrupt)), None)


# Commands.


class Old(SandboxBackendProtocol):
    """A sandbox of an older release: no timeout, and async only through a thread."""

    def __init__(self, seconds: float = 0) -> None:
        self._seconds = seconds

    @property
    def id(self) -> str:
        return "old"

    def execute(self, command: str) -> ExecuteResponse:  # type: ignore[override]
        time.sleep(self._seconds)
        return ExecuteResponse(output=f"old: {command}", exit_code=0)


class Native(Old):
    """A sandbox that runs commands on the event loop."""

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:  # noqa: ASYNC109
        await asyncio.sleep(self._seconds)
        return ExecuteResponse(output=f"native: {command}, {timeout}", exit_code=0)


@both_modes
def test_commands_run_where_there_is_a_shell(mode: Mode, tmp_path: Path) -> None:
    """A command runs on a sandbox, also behind composites; its own timeout counts, not the one of other calls."""
    shell = LocalShellBackend(root_dir=tmp_path)
    nested = CompositeBackend(default=CompositeBackend(default=shell, routes={}), routes={"/s/": store_backend()})
    offenders = []
    for backend in (shell, nested):
        assert can_execute(backend)
        for call in (Execute("sleep 0.1; echo ran"), Execute("sleep 0.1; echo ran", timeout=20)):
            [reply] = perform(mode, ask(call), backend, 0.01)
            if not isinstance(reply, ExecuteResponse) or (reply.output, reply.exit_code) != ("ran\n", 0):
                offenders.append((backend, call, reply))
    assert offenders == []


@both_modes
def test_a_backend_without_a_shell_runs_nothing(mode: Mode, tmp_path: Path) -> None:
    """A backend that is not a sandbox, alone or behind a composite, fails with a reason of its own."""
    for backend in (disk(tmp_path), CompositeBackend(default=store_backend(), routes={})):
        assert not can_execute(backend)
        assert perform(mode, ask(Execute("true", 5)), backend) == [Failed(NO_SHELL)]


def test_commands_keep_their_timeout(tmp_path: Path) -> None:
    """A sandbox that takes a timeout ends the command itself; one that does not is given up by us."""
    sleeping, shell = (Execute("sleep 60", timeout=1), LocalShellBackend(root_dir=tmp_path))
    late = (Execute("x", timeout=1), Old(seconds=60))
    cases: list[tuple[Mode, Execute, Any]] = [
        (mode, call, backend) for mode in MODES for call, backend in ((sleeping, shell), late)
    ]
    replies = at_once(lambda case: perform(case[0], ask(case[1]), case[2])[0], cases)
    for (mode, _call, backend), reply in zip(cases, replies, strict=True):
        if backend is shell:
            assert isinstance(reply, ExecuteResponse), mode
            assert reply.exit_code != 0, mode
        else:
            assert reply == Failed("no answer within 1 seconds", timed_out=True), mode


@both_modes
def test_a_command_that_ends_in_time_is_answered(mode: Mode) -> None:
    """A timeout costs nothing where the sandbox does not take one and answers before."""
    assert perform(mode, ask(Execute("x", timeout=60)), Old()) == [ExecuteResponse(output="old: x", exit_code=0)]


def test_a_native_sandbox_is_awaited() -> None:
    """An async method of the sandbox's own is used; its timeout is passed only if the sandbox takes one."""
    replies = perform("async", ask(Execute("x"), Execute("y", 5)), Native())
    assert [reply.output for reply in replies if isinstance(reply, ExecuteResponse)] == [
        "native: x, None",
        "native: y, None",
    ]


# Writes.


@both_modes
def test_files_are_written_and_errors_told_by_path(mode: Mode, tmp_path: Path) -> None:
    """A batch of files is written; those that could not be are named with the reason."""
    (tmp_path / "taken").mkdir()
    written = perform(mode, ask(WriteFiles((("/a/b.txt", b"B"), ("/taken", b"no")))), disk(tmp_path), 20)
    assert (tmp_path / "a/b.txt").read_bytes() == b"B"
    [reply] = written
    assert isinstance(reply, dict)
    assert list(reply) == ["/taken"]


class Uploading(BackendProtocol):
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def upload_files(self, files: list[tuple[str, bytes]]) -> Any:  # noqa: ARG002 - the protocol's signature
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@both_modes
def test_writes_never_pass_for_done_when_the_backend_does_not_say_so(mode: Mode) -> None:
    """Whatever a backend answers, a file counts as written only if there is an answer for it without an error."""
    fine, bad = FileUploadResponse(path="/a"), FileUploadResponse(path="/a", error="permission_denied")
    table: list[tuple[Any, Any]] = [
        ([fine], {}),
        ([bad], {"/a": "permission_denied"}),
        ([], {"/a": "the backend gave no answer for this file"}),
        ([None], {"/a": "the backend gave no answer for this file"}),
        (None, Failed("the backend answered with NoneType")),
        (OSError("full"), Failed("OSError: full")),
    ]
    found = [perform(mode, ask(WriteFiles((("/a", b""),))), Uploading(answer)) for answer, _expected in table]
    assert found == [[expected] for _answer, expected in table]


# Results of other calls.


@both_modes
def test_a_result_of_another_call_is_waited_for(mode: Mode) -> None:
    """The result that another thread provides is the reply; its exception is a failure, an interrupt passes."""
    for outcome, expected in ((7, 7), (ValueError("theirs"), Failed("ValueError: theirs"))):
        future: Future[Any] = Future()
        settle = future.set_exception if isinstance(outcome, Exception) else future.set_result
        timer = threading.Timer(0.05, settle, [outcome])
        timer.start()
        assert perform(mode, ask(WaitFor(future)), None, 0.001) == [expected]
        timer.join()
    interrupted: Future[Any] = Future()
    interrupted.set_exception(GraphInterrupt())
    with pytest.raises(GraphInterrupt):
        perform(mode, ask(WaitFor(interrupted)), None)


@both_modes
def test_waiting_ends_and_cancels_nothing(mode: Mode) -> None:
    """A wait that is late, or whose run is cancelled, leaves the shared future to the others."""
    future: Future[Any] = Future()
    assert perform(mode, ask(WaitFor(future, timeout=0.05)), None) == [
        Failed("no answer within 0.05 seconds", timed_out=True)
    ]
    future.set_result("still there")
    assert perform(mode, ask(WaitFor(future)), None) == ["still there"]
    cancelled: Future[Any] = Future()
    cancelled.cancel()
    assert perform(mode, ask(WaitFor(cancelled)), None) == [Failed("the call that was waited for was cancelled")]


def test_a_cancelled_run_leaves_the_shared_future_alone() -> None:
    """Cancelling one run that waits does not cancel the result for the others, not even after its loop ended."""
    future: Future[Any] = Future()

    async def cancelled() -> None:
        task = asyncio.create_task(adrive(ask(WaitFor(future)), lambda: None))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert not future.cancelled()
    future.set_result(1)
    assert drive(ask(WaitFor(future)), lambda: None) == [1]


# What lies on a local disk, and is never opened.


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Return a directory with a good file, a FIFO, a socket, a device's link, a directory, and a sparse huge file."""
    write_files(tmp_path, {"good.md": "good", "small.md": "x" * 10, "dir/x.md": "x"})
    os.mkfifo(tmp_path / "fifo.md")
    with socket.socket(socket.AF_UNIX) as listener:
        cwd = Path.cwd()
        os.chdir(tmp_path)
        listener.bind("socket.md")
        os.chdir(cwd)
    (tmp_path / "device.md").symlink_to("/dev/zero")
    (tmp_path / "link.md").symlink_to("fifo.md")
    with (tmp_path / "huge.md").open("wb") as huge:
        huge.truncate(LARGE)
    return tmp_path


UNFIT = {"fifo.md", "socket.md", "device.md", "link.md"}


class Awaited(FilesystemBackend):
    """A file system whose async method is its own."""

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return self.download_files(paths)


@both_modes
@pytest.mark.parametrize("seconds", [None, 60.0], ids=["no-limit", "limit"])
def test_what_could_hang_or_drown_a_run_is_never_opened(mode: Mode, seconds: float | None, hostile: Path) -> None:
    """FIFOs, sockets, devices and files that are too large cost nothing, and no neighbour, on any local backend."""
    virtual = disk(hostile)
    backends: list[tuple[Any, str]] = [
        (virtual, ""),
        (FilesystemBackend(hostile, virtual_mode=False), str(hostile)),
        (CompositeBackend(default=store_backend(), routes={"/disk/": virtual}), "/disk"),
        (Awaited(hostile), ""),
    ]
    names = ["good.md", *sorted(UNFIT), "huge.md", "small.md", "dir", "missing.md"]
    started = time.monotonic()
    for backend, prefix in backends:
        found = perform(mode, read_files([f"{prefix}/{name}" for name in names]), backend, seconds)
        files = {path.rpartition("/")[2]: file for path, file in found.items()}
        assert list(files) == names
        assert {name for name, file in files.items() if file.unfit == "not-a-file"} == UNFIT
        assert (files["huge.md"].unfit, files["huge.md"].size) == ("too-large", LARGE)
        assert (files["good.md"].content, files["small.md"].content) == (b"good", b"x" * 10)
        assert files["missing.md"].is_missing
        assert (files["dir"].error, files["dir"].unfit) == ("is_directory", None)
    assert time.monotonic() - started < 30


@both_modes
def test_the_size_limit_is_the_callers(mode: Mode, hostile: Path) -> None:
    """A file over the limit given is not opened, and neither is one whose listing says that it is too large."""
    found = perform(mode, read_files(["/good.md", "/small.md"], max_bytes=5), disk(hostile))
    assert [file.unfit for file in found.values()] == [None, "too-large"]
    found = perform(mode, read_files(["/good.md", "/small.md"], sizes={"/good.md": LARGE}), store_backend())
    assert (found["/good.md"].unfit, found["/good.md"].size) == ("too-large", LARGE)
    assert found["/small.md"].is_missing


@both_modes
def test_a_look_at_a_disk_opens_nothing(mode: Mode, hostile: Path) -> None:
    """Where something lies is known for local backends; paths of others are left out."""
    paths = ("/good.md", "/fifo.md", "/huge.md", "/missing.md", "/nul\x00")
    seen = {path: path in paths[:3] for path in paths}
    assert perform(mode, ask(FindExisting(paths)), disk(hostile)) == [seen]
    assert perform(mode, ask(FindExisting(paths)), store_backend()) == [{}]


@both_modes
def test_listings_keep_sizes(mode: Mode, hostile: Path) -> None:
    """An entry knows its size where the backend says, and only if it is a number."""
    [reply] = perform(mode, ask(ListDirectory("/")), disk(hostile))
    assert isinstance(reply, Listing)
    assert {entry.name: entry.size for entry in reply.entries if entry.name in {"good.md", "huge.md"}} == {
        "good.md": 4,
        "huge.md": LARGE,
    }

    class Odd(BackendProtocol):
        def ls(self, path: str) -> Any:
            return [{"path": f"{path}a", "size": "many"}, {"path": f"{path}b", "size": None}]

    [reply] = perform(mode, ask(ListDirectory("/")), Odd())
    assert reply == Listing((Entry("/a", is_directory=False), Entry("/b", is_directory=False)))
    assert isinstance(reply, Listing)
    assert [entry.size for entry in reply.entries] == [None, None]


@both_modes
def test_one_file_that_hangs_costs_no_neighbour(mode: Mode, tmp_path: Path) -> None:
    """Of hundreds of files in a batch, all but the one that hangs are read, within a few time limits."""
    names = [f"s{number:03}" for number in range(150)]
    names.insert(70, "hangs")
    write_files(tmp_path, {f"{name}/SKILL.md": name for name in names})
    released = threading.Event()
    backend = FakeBackend(tmp_path, rules={"download_files": hangs(released, "/hangs/")})

    def check(limit: float) -> None:
        backend.calls.clear()
        found = perform(mode, read_files([f"/{name}/SKILL.md" for name in names]), backend, limit)
        assert [path for path, file in found.items() if file.content is None] == ["/hangs/SKILL.md"]
        assert found["/hangs/SKILL.md"].error == f"no answer within {limit:g} seconds"
        waited_for = [paths for _, paths in backend.calls if "/hangs/SKILL.md" in paths]
        assert len(waited_for) <= 5, "one time limit for each batch"

    try:
        within_some_limit(check)
    finally:
        released.set()


# Backends with async methods alone.


class AsyncAlone:
    """A backend of somebody's own that has async methods and no others."""

    async def als(self, path: str) -> LsResult:
        return LsResult(entries=[{"path": f"{path}/file"}])

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [FileDownloadResponse(path=path, content=path.encode()) for path in paths]


class AsyncProtocol(AsyncAlone, BackendProtocol):
    """The same, as a subclass of the protocol, whose sync methods raise."""


@pytest.mark.parametrize("seconds", [None, 20.0], ids=["no-limit", "limit"])
def test_backends_with_async_methods_alone_serve_async_runs(seconds: float | None) -> None:
    """Such a backend is awaited, with and without a limit, alone or behind a composite beside a local disk."""
    calls = (ListDirectory("/a"), ReadFiles(("/a/file",)))
    for backend in (AsyncAlone(), AsyncProtocol()):
        assert is_backend(backend)
        listing, files = perform("async", ask(*calls), backend, seconds)
        assert listing == Listing((Entry("/a/file", is_directory=False),))
        assert isinstance(files, tuple)
        assert files[0].content == b"/a/file"
    routed = CompositeBackend(default=store_backend(), routes={"/r/": AsyncProtocol()})
    found = perform("async", read_files(["/r/a", "/b"]), routed, seconds)
    assert (found["/r/a"].content, found["/b"].is_missing) == (b"/a", True)


@pytest.mark.parametrize("seconds", [None, 20.0], ids=["no-limit", "limit"])
def test_backends_with_async_methods_alone_tell_sync_runs_what_to_do(seconds: float | None) -> None:
    """A sync run on such a backend gets a reason that says which methods there are, not a bare exception."""
    routed = CompositeBackend(default=AsyncProtocol(), routes={})
    for backend in (AsyncAlone(), AsyncProtocol(), routed):
        listing, files = perform("sync", ask(ListDirectory("/"), ReadFiles(("/a",))), backend, seconds)
        assert isinstance(listing, Failed)
        assert isinstance(files, Failed)
        assert "no `ls`, only `als`: use the async methods, such as `ainvoke`" in listing.reason
        assert "no `download_files`, only `adownload_files`" in files.reason


def test_what_is_not_a_backend_is_told_apart() -> None:
    """A class, a function and a half of a backend cannot be asked for files."""

    class Half:
        async def als(self, path: str) -> None: ...

        def download_files(self, paths: list[str]) -> None: ...

    assert [is_backend(value) for value in (AsyncAlone, FilesystemBackend, Half(), len, None)] == [False] * 5


# The one dialect: how calls are asked for, what a failure does, and what becomes of a plan that is cancelled.

both_modes = pytest.mark.parametrize("mode", MODES)

HANGS = 60.0
"""How long a call hangs that never answers: longer than any test waits."""


def fail() -> object:
    raise ValueError("mine")


async def afail() -> object:
    raise ValueError("mine")


def cancel() -> object:
    raise asyncio.CancelledError


async def acancel() -> object:
    raise asyncio.CancelledError


FAILING: dict[str, Callable[[], Call[Any]]] = {
    "function": lambda: CallFunction(fail),
    "async function": lambda: CallFunction(afail),
    "exit": lambda: CallFunction(exit, (3,)),
    "cancellation": lambda: CallFunction(cancel),
    "async cancellation": lambda: CallFunction(acancel, seconds=5),
    "work": lambda: Work(fail),
    "extension": lambda: Ask(fail),
    "async extension": lambda: Ask(afail),
    "backend": lambda: ListDirectory("/nowhere/at/all"),
    "shell": lambda: Execute("true"),
    "late": lambda: CallFunction(threading.Event().wait, (HANGS,), seconds=0.01),
    "no method": lambda: call_method(object(), "missing", seconds=None),
}


@both_modes
@pytest.mark.parametrize("kind", FAILING)
def test_a_failure_is_raised_where_it_was_asked_for(mode: Mode, kind: str) -> None:
    """Every kind of call: alone and in a round it raises inside the plan; as an attempt it is a value."""
    seen: list[CallFailed] = []

    async def plan() -> Failed:
        try:
            await FAILING[kind]()
        except CallFailed as failure:
            seen.append(failure)
        try:
            await together(Work(lambda: "fine"), FAILING[kind]())
        except CallFailed as failure:
            seen.append(failure)
        failed: Failed = await Attempt(FAILING[kind]())
        fine, again = await together(Work(lambda: "fine"), Attempt(FAILING[kind]()))
        assert (fine, again) == ("fine", failed)
        return failed

    failed = perform(mode, plan(), FilesystemBackend())
    assert [failure.failed for failure in seen] == [failed] * 2
    assert isinstance(seen[0], SkillsError)
    assert str(seen[0]) == failed.reason
    assert (seen[0].timed_out, isinstance(seen[0].__cause__, TimeoutError)) == (kind == "late",) * 2
    if kind in {"function", "async function", "work", "extension"}:
        assert failed.reason == "ValueError: mine"
        assert isinstance(seen[0].error, ValueError)
    if kind == "exit":
        assert failed.reason == "RuntimeError: it called exit(3)"
    if "cancellation" in kind:
        assert failed.reason == "RuntimeError: it was cancelled"


@both_modes
def test_a_failure_that_nobody_handles_ends_the_plan(mode: Mode) -> None:
    """Of a round all calls are made, the first failure in order is raised, and no failure passes for an answer."""
    made: list[int] = []

    def note(number: int) -> None:
        made.append(number)
        raise LookupError(str(number))

    async def plan() -> None:
        await together(*(CallFunction(note, (number,), seconds=None) for number in range(3)))
        raise AssertionError

    with pytest.raises(CallFailed, match="LookupError: 0"):
        perform(mode, plan())
    assert sorted(made) == [0, 1, 2]


@both_modes
def test_what_our_own_code_raises_can_be_had_as_it_is(mode: Mode) -> None:
    """A sub-plan gives back the exception itself, for code that has its own kinds of errors."""
    with pytest.raises(ValueError, match="mine"):
        perform(mode, unwrap(Work(fail)))


@both_modes
def test_no_broad_except_in_a_plan_catches_an_interrupt(mode: Mode) -> None:
    """LangGraph's exceptions close the plan: it sees no exception, and makes no further call."""
    seen: list[str] = []

    def interrupt() -> object:
        raise GraphInterrupt

    async def ainterrupt() -> object:
        raise GraphInterrupt

    calls: list[Call[Any]] = [Ask(interrupt), Ask(ainterrupt), CallFunction(interrupt), Work(interrupt)]
    for call in calls:

        async def plan(call: Call[Any] = call) -> None:
            try:
                await Attempt(call)
            except Exception:  # noqa: BLE001 - what the test is about
                seen.append("caught")
            finally:
                seen.append("closed")
            seen.append("went on")

        with pytest.raises(GraphInterrupt):
            perform(mode, plan())
    assert seen == ["closed"] * 4


# A user's functions and objects.


@both_modes
def test_functions_may_be_sync_or_async(mode: Mode) -> None:
    """Functions, async ones, those that return a coroutine, and objects that are called, from sync and async runs."""

    async def answer(value: int) -> int:
        await asyncio.sleep(0)
        return value

    def returns_a_coroutine(value: int) -> Any:
        return answer(value)

    class Asked:
        async def __call__(self, value: int) -> int:
            return await answer(value)

    async def plan() -> list[int]:
        functions: list[Any] = [lambda value: value, answer, returns_a_coroutine, Asked()]
        replies: tuple[int, ...] = await together(
            *(
                CallFunction(function, (place,), seconds=seconds)
                for place, function in enumerate(functions)
                for seconds in (None, HANGS)
            )
        )
        return list(replies)

    assert perform(mode, plan()) == [0, 0, 1, 1, 2, 2, 3, 3]

    async def sync_in_a_loop() -> list[int]:
        return drive(plan())

    assert asyncio.run(sync_in_a_loop()) == [0, 0, 1, 1, 2, 2, 3, 3]


class Twins:
    """An object with a method and its async twin."""

    def look(self, *given: object, **named: object) -> object:
        return ("sync", given, named)

    async def alook(self, *given: object, **named: object) -> object:
        return ("async", given, named)


class Plain(Embeddings):
    """Embeddings whose async methods are LangChain's own, which wait for a pool's thread."""

    def __init__(self) -> None:
        self.threads: list[str] = []

    def embed_query(self, text: str) -> list[float]:
        self.threads.append(threading.current_thread().name)
        return [float(len(text))]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


@both_modes
def test_methods_are_called_by_the_twin_that_fits(mode: Mode) -> None:
    """An async run uses an object's own async twin; LangChain's default one would leave threads behind."""
    plain = Plain()

    async def plan() -> list[Any]:
        found = await call_method(Twins(), "look", 1, seconds=HANGS, limit=2)
        vectors = await together(
            call_method(plain, "embed_query", "abc", seconds=HANGS),
            call_method(plain, "embed_documents", ["a", "bc"], seconds=HANGS),
        )
        return [found, *vectors]

    assert perform(mode, plan()) == [(mode, (1,), {"limit": 2}), [3.0], [[1.0], [2.0]]]
    assert set(plain.threads) == {"deepskills-work"}


@both_modes
def test_a_pause_lets_another_thread_finish(mode: Mode) -> None:
    """A plan may wait for what another thread makes, a little at a time."""
    made: list[str] = []
    threading.Timer(0.05, lambda: made.append("made")).start()

    async def plan() -> int:
        pauses = 0
        while not made:
            await Pause(0.01)
            pauses += 1
        return pauses

    assert perform(mode, plan()) > 0


@both_modes
def test_a_plan_without_a_backend_says_so(mode: Mode) -> None:
    """A call that needs a backend fails where the driver was given none."""

    async def plan() -> Any:
        return await Attempt(ListDirectory("/"))

    assert perform(mode, plan()) == Failed("RuntimeError: this plan was given no backend")


# Cancellation.


class Sandbox:
    """A backend whose calls take until they are released, and that remembers what happened in which order."""

    def __init__(self) -> None:
        self.released, self.started = asyncio.Event(), asyncio.Event()
        self.events: list[str] = []

    async def als(self, path: str) -> Any:
        if path == "/clean-up":
            self.events.append("cleaned up")
            return []
        self.started.set()
        return await asyncio.sleep(HANGS)

    async def aupload_files(self, files: Any) -> Any:
        self.started.set()
        await self.released.wait()
        self.events.append("written")
        return [type("Answer", (), {"path": path, "error": None}) for path, _content in files]

    async def adownload_files(self, _paths: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("settles", [False, True])
@pytest.mark.parametrize("swallows", [False, True])
def test_a_cancelled_plan_cleans_up(*, settles: bool, swallows: bool) -> None:
    """The plan is told, its clean-up is made, and the cancellation goes on even if the plan keeps it."""

    async def cancelled() -> list[str]:
        backend = Sandbox()

        async def plan() -> str:
            try:
                await (WriteFiles((("/a", b""),), settles=settles) if settles else ListDirectory("/hangs"))
            except asyncio.CancelledError:
                backend.events.append("told")
                await Attempt(ListDirectory("/clean-up"))
                if not swallows:
                    raise
            return "went on"

        task = asyncio.create_task(adrive(plan(), lambda: backend))
        await backend.started.wait()
        task.cancel()
        asyncio.get_running_loop().call_later(0.02, backend.released.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        return backend.events

    written = ["written"] if settles else []
    assert asyncio.run(cancelled()) == [*written, "told", "cleaned up"]


def test_a_cancellation_while_an_extension_is_asked_ends_the_run() -> None:
    """It is the run's, and no failure of the extension, even for a plan that takes failures as values."""

    async def cancelled() -> None:
        asked = asyncio.Event()

        async def wait() -> None:
            asked.set()
            await asyncio.Event().wait()

        async def plan() -> object:
            return await Attempt(Ask(wait))

        task = asyncio.create_task(adrive(plan()))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())


def test_a_clean_up_that_fails_does_not_hold_the_cancellation_up(caplog: pytest.LogCaptureFixture) -> None:
    """What goes wrong while a plan cleans up is logged, and the run is cancelled."""

    async def cancelled() -> None:
        backend = Sandbox()

        async def plan() -> None:
            try:
                await ListDirectory("/hangs")
            finally:
                await Execute("rm -rf /tmp/x")

        task = asyncio.create_task(adrive(plan(), lambda: backend))
        await backend.started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert "clean-up of a cancelled run failed: CallFailed" in caplog.text


def test_a_plan_can_be_performed_by_hand() -> None:
    """A test answers calls by a function; failures follow the same rule."""

    async def plan() -> list[object]:
        first = await ListDirectory("/a")
        try:
            await ListDirectory("/b")
        except CallFailed as failure:
            return [first, failure.reason, await together()]
        raise AssertionError

    def answer(call: Call[Any]) -> object:
        assert isinstance(call, ListDirectory)
        return "listing" if call.path == "/a" else Failed("gone")

    result, rounds = by_hand(plan(), answer)
    assert result == ["listing", "gone", ()]
    assert rounds == [(ListDirectory("/a"),), (ListDirectory("/b"),), ()]
