"""Plans and their drivers: one logic for sync and async, whatever a backend answers, raises or never says."""

import asyncio
import contextvars
import subprocess
import sys
import threading
import time
from collections import UserList
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar

import pytest
from deepagents.backends import BackendProtocol, CompositeBackend, FilesystemBackend, StoreBackend
from deepagents.backends.protocol import FileDownloadResponse, LsResult
from langgraph.errors import GraphInterrupt
from langgraph.store.memory import InMemoryStore

from deepskills._io.drivers import adrive, drive
from deepskills._io.plan import (
    MAX_CALLS_AT_ONCE,
    MAX_FAILED_BATCHES,
    MAX_WAITS,
    Attempt,
    Call,
    CallFunction,
    Entry,
    Failed,
    File,
    ListDirectory,
    Listing,
    Plan,
    ReadFiles,
    Visit,
    Visitor,
    Walked,
    is_missing_error,
    read_files,
    together,
    walk,
)
from support import FakeBackend, Mode, both_modes, by_hand, fails, write_files
from support.waiting import at_once, within_some_limit

ResultT = TypeVar("ResultT")

HANGS = 60.0
"""How long a backend hangs that never answers: longer than any test waits."""

SOON = HANGS / 2
"""Within what time a run ends that does not wait for a backend that hangs, also on a busy machine."""


def perform(mode: Mode, plan: Plan[ResultT], backend: Any, seconds: float | None = None) -> ResultT:
    """Perform a plan to its end, sync or async; the async one includes the end of its event loop."""
    if mode == "sync":
        return drive(plan, lambda: backend, seconds)
    return asyncio.run(adrive(plan, lambda: backend, seconds))


async def ask(*calls: Call[Any]) -> list[Any]:
    """Make all calls in one round and return the replies, failures among them."""
    return list(await together(*(Attempt(call) for call in calls)))


def lists(count: int) -> list[ListDirectory]:
    return [ListDirectory(f"/{number}") for number in range(count)]


class Clock:
    """Measures a block's time."""

    def __enter__(self) -> Self:
        self._start = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self._start


class Answering(BackendProtocol):
    """Answers every call with what a function gives for its argument."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self._answer = answer

    def ls(self, path: str) -> Any:
        return self._answer(path)

    def download_files(self, paths: list[str]) -> Any:
        return self._answer(paths)


class NativelyAsync(Answering):
    """Answers in the event loop, and waits there first."""

    def __init__(self, answer: Callable[[Any], Any], wait: float = 0.0) -> None:
        super().__init__(answer)
        self._wait = wait

    async def als(self, path: str) -> Any:
        await asyncio.sleep(self._wait)
        return self._answer(path)

    async def adownload_files(self, paths: list[str]) -> Any:
        await asyncio.sleep(self._wait)
        return self._answer(paths)


def one_file(path: str) -> LsResult:
    return LsResult(entries=[{"path": f"{path}/file", "is_dir": False}])


def raising(error: BaseException) -> Callable[[Any], NoReturn]:
    def answer(_argument: object) -> NoReturn:
        raise error

    return answer


@pytest.fixture
def hanging() -> Iterator[Callable[[str], LsResult]]:
    """An answer that comes only when the test is over, for paths that end with `hangs`."""
    over = threading.Event()

    def answer(path: str) -> LsResult:
        if path.rstrip("/").endswith("hangs"):
            over.wait(HANGS)
        return one_file(path)

    yield answer
    over.set()


# Real backends.


def store_backend(files: dict[str, bytes]) -> StoreBackend:
    backend = StoreBackend(store=InMemoryStore(), namespace=lambda _runtime: ("skills",))
    backend.upload_files(list(files.items()))
    return backend


BACKENDS: dict[str, Callable[[Path], tuple[BackendProtocol, str]]] = {
    "virtual": lambda root: (FilesystemBackend(root), ""),
    "real-paths": lambda root: (FilesystemBackend(root, virtual_mode=False), str(root)),
    "store": lambda _root: (store_backend({"/top/a.txt": b"A", "/top/sub/b.txt": b"B"}), ""),
    "composite": lambda root: (
        CompositeBackend(default=store_backend({}), routes={"/disk/": FilesystemBackend(root)}),
        "/disk",
    ),
}


@both_modes
@pytest.mark.parametrize("kind", BACKENDS)
def test_every_backend_is_asked_the_same_way(mode: Mode, kind: str, tmp_path: Path) -> None:
    """Listings come in order without slashes at the end, files in the order asked, and a missing one says so."""
    write_files(tmp_path, {"top/a.txt": "A", "top/sub/b.txt": "B"})
    backend, prefix = BACKENDS[kind](tmp_path)
    paths = tuple(f"{prefix}/top/{name}" for name in ("sub/b.txt", "missing.txt", "a.txt"))
    listing, files = perform(mode, ask(ListDirectory(f"{prefix}/top"), ReadFiles(paths)), backend)
    assert listing == Listing((Entry(f"{prefix}/top/a.txt", False), Entry(f"{prefix}/top/sub", True)))  # noqa: FBT003
    assert isinstance(files, tuple)
    assert [file.path for file in files] == list(paths)
    assert [file.content for file in files] == [b"B", None, b"A"]
    assert [file.is_missing for file in files] == [False, True, False]


@both_modes
def test_a_plan_without_calls_needs_no_backend(mode: Mode) -> None:
    """A plan that asks for nothing returns its result, and no backend is made for it."""

    async def plan() -> str:
        await read_files([])
        return "done"

    def no_backend() -> NoReturn:
        raise AssertionError

    if mode == "sync":
        assert drive(plan(), no_backend) == "done"
    else:
        assert asyncio.run(adrive(plan(), no_backend)) == "done"


# What is asked of a user's function.


@both_modes
def test_a_plan_may_consult_a_function_without_a_backend(mode: Mode) -> None:
    """What a user's function returns is the reply, and what it raises is a failure; no backend is made for it."""

    async def plan() -> list[Any]:
        good = await CallFunction(lambda: 5)
        bad = await Attempt(CallFunction(lambda: dict[str, str]()["missing"]))
        return [good, bad]

    def no_backend() -> NoReturn:
        raise AssertionError

    good, bad = drive(plan(), no_backend) if mode == "sync" else asyncio.run(adrive(plan(), no_backend))
    assert good == 5
    assert bad == Failed("KeyError: 'missing'")


@pytest.mark.parametrize("seconds", [None, HANGS], ids=["no-limit", "limit"])
def test_functions_are_called_here_when_sync_and_in_a_thread_when_async(seconds: float | None) -> None:
    """A sync run without a limit calls functions where it is; others do so, and make their backend, in threads."""
    here = threading.current_thread()
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    variable.set("set")
    seen: list[tuple[bool, str]] = []

    def note() -> Any:
        seen.append((threading.current_thread() is here, variable.get()))
        return FilesystemBackend()

    async def plan() -> None:
        await CallFunction(note)
        await ListDirectory("/")

    drive(plan(), note, seconds)
    asyncio.run(adrive(plan(), note, seconds))
    assert seen == [(seconds is None, "set")] * 2 + [(False, "set")] * 2


def test_a_backend_that_is_made_too_late_fails_every_call() -> None:
    """An async run does not wait longer for the making of a backend than for an answer of it."""
    released = threading.Event()

    async def plan() -> list[Any]:
        first = await ask(ListDirectory("/a"), ListDirectory("/b"))
        second = await ask(ReadFiles(("/a",)))
        return [*first, *second]

    def late() -> Any:
        released.wait(HANGS)

    started = time.monotonic()
    replies = asyncio.run(adrive(plan(), late, 0.1))
    released.set()
    assert time.monotonic() - started < SOON
    assert replies == [Failed("no answer within 0.1 seconds", timed_out=True)] * 3


# Several calls at once.


@both_modes
@pytest.mark.parametrize("seconds", [None, HANGS], ids=["no-limit", "limit"])
def test_the_calls_of_a_round_run_together(mode: Mode, seconds: float | None) -> None:
    """No call of a round waits for another to end: each is answered only once all have been made.

    So a slow backend costs a round about one call.
    """
    all_made = threading.Barrier(5, timeout=SOON)

    def answer(path: str) -> LsResult:
        all_made.wait()
        return one_file(path)

    replies = perform(mode, ask(*lists(5)), Answering(answer), seconds)
    assert replies == [Listing((Entry(f"/{number}/file", is_directory=False),)) for number in range(5)]


@pytest.mark.parametrize("seconds", [None, HANGS], ids=["no-limit", "limit"])
def test_native_calls_of_a_round_run_together(seconds: float | None) -> None:
    """Async methods of a backend's own are awaited together, in the loop that the caller runs in."""

    class Native(Answering):
        def __init__(self) -> None:
            super().__init__(one_file)
            self._all_made = asyncio.Barrier(10)

        async def als(self, path: str) -> LsResult:
            async with asyncio.timeout(SOON):
                await self._all_made.wait()
            return one_file(path)

    replies = perform("async", ask(*lists(10)), Native(), seconds)
    assert replies == [Listing((Entry(f"/{number}/file", is_directory=False),)) for number in range(10)]


@both_modes
@pytest.mark.parametrize("seconds", [None, HANGS], ids=["no-limit", "limit"])
def test_replies_keep_the_order_of_the_calls_and_only_so_many_run_at_once(mode: Mode, seconds: float | None) -> None:
    """However many calls a round has, the replies match them, and a backend sees a bounded number at a time."""
    lock = threading.Lock()
    running: list[str] = []
    most = 0

    def answer(path: str) -> LsResult:
        nonlocal most
        with lock:
            running.append(path)
            most = max(most, len(running))
        time.sleep(0.001 * (int(path[1:]) % 3))
        with lock:
            running.remove(path)
        return one_file(path)

    count = 100
    replies = perform(mode, ask(*lists(count)), Answering(answer), seconds)
    assert replies == [Listing((Entry(f"/{number}/file", is_directory=False),)) for number in range(count)]
    assert most <= 32


@both_modes
@pytest.mark.parametrize("seconds", [None, HANGS], ids=["no-limit", "limit"])
def test_backends_see_the_context_of_their_caller(mode: Mode, seconds: float | None) -> None:
    """A backend that reads the run's context, as those on graph state do, finds it in every thread."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    variable.set("the caller's")
    backend = Answering(lambda _path: LsResult(entries=[{"path": f"/{variable.get()}"}]))
    replies = perform(mode, ask(*lists(3)), backend, seconds)
    assert replies == [Listing((Entry("/the caller's", is_directory=False),))] * 3


# Backends that do not answer in time.


def natively_hanging(_answer: Callable[[str], LsResult]) -> BackendProtocol:
    class Hanging(NativelyAsync):
        async def als(self, path: str) -> LsResult:
            await asyncio.sleep(HANGS if path.rstrip("/").endswith("hangs") else 0)
            return one_file(path)

    return Hanging(_answer)


SLOW_BACKENDS: dict[str, tuple[Callable[[Callable[[str], LsResult]], BackendProtocol], str]] = {
    "threads": (Answering, ""),
    "native": (natively_hanging, ""),
    "composite": (lambda answer: CompositeBackend(default=store_backend({}), routes={"/r/": Answering(answer)}), "/r"),
    "composite-default": (lambda answer: CompositeBackend(default=Answering(answer), routes={}), ""),
    "composite-native": (
        lambda answer: CompositeBackend(default=store_backend({}), routes={"/r/": natively_hanging(answer)}),
        "/r",
    ),
    "composite-mixed": (
        lambda answer: CompositeBackend(
            default=NativelyAsync(one_file), routes={"/r/": Answering(answer), "/n/": NativelyAsync(one_file)}
        ),
        "/r",
    ),
}


@both_modes
def test_a_call_without_an_answer_in_time_counts_as_failed(mode: Mode, hanging: Callable[[str], LsResult]) -> None:
    """A hanging call is given up after its time, holds up neither the run nor the loop, and costs no other call."""

    def check(kind: str, seconds: float) -> None:
        make, prefix = SLOW_BACKENDS[kind]
        calls = [ListDirectory(f"{prefix}/{name}") for name in ("one", "hangs", "two")]
        with Clock() as clock:
            first, late, last = perform(mode, ask(*calls), make(hanging), seconds)
        assert clock.seconds < SOON + seconds, kind
        assert late == Failed(f"no answer within {seconds:.3g} seconds", timed_out=True), kind
        assert isinstance(first, Listing), kind
        assert isinstance(last, Listing), kind

    within_some_limit(lambda seconds: at_once(lambda kind: check(kind, seconds), SLOW_BACKENDS))


@both_modes
def test_one_call_alone_is_given_up_too(mode: Mode, hanging: Callable[[str], LsResult]) -> None:
    """The limit holds for a round of one call, and for files."""
    with Clock() as clock:
        (late,) = perform(mode, ask(ListDirectory("/hangs")), Answering(hanging), 0.1)
        slow = Answering(lambda paths: hanging(paths[0]))
        found = perform(mode, read_files(["/hangs", "/also/hangs"]), slow, 0.1)
    assert clock.seconds < SOON
    assert isinstance(late, Failed)
    assert late.timed_out
    assert {file.error for file in found.values()} == {"no answer within 0.1 seconds"}


def test_a_late_call_of_the_backends_own_is_cancelled() -> None:
    """An async method that is late does not go on in the background."""
    ended = []

    class Late(Answering):
        async def als(self, path: str) -> Any:
            try:
                await asyncio.sleep(HANGS)
            finally:
                ended.append(path)

    async def late() -> None:
        await adrive(ask(ListDirectory("/a"), ListDirectory("/b")), lambda: Late(one_file), 0.1)
        await asyncio.sleep(0.05)
        assert ended == ["/a", "/b"]

    asyncio.run(late())


@both_modes
def test_a_batch_over_several_backends_is_given_up_too(mode: Mode, hanging: Callable[[str], LsResult]) -> None:
    """Files on a composite, one part of which hangs in a thread, hold up neither the run nor the end of the loop."""

    def slow(paths: list[str]) -> list[FileDownloadResponse]:
        hanging(paths[0])
        return []

    parts: dict[str, BackendProtocol] = {"/r/": Answering(slow), "/n/": NativelyAsync(lambda _paths: [])}
    backend = CompositeBackend(default=NativelyAsync(one_file), routes=parts)
    with Clock() as clock:
        found = perform(mode, read_files(["/n/one", "/r/hangs"]), backend, 0.1)
    assert clock.seconds < SOON
    assert found["/r/hangs"].error == "no answer within 0.1 seconds"


SLEEPER = """
import asyncio, sys, time
from deepagents.backends import BackendProtocol, CompositeBackend, FilesystemBackend
from langchain.agents import create_agent
from deepskills import SkillsMiddleware
from deepskills.testing import ScriptedChatModel

class Sleeper(BackendProtocol):
    def ls(self, path):
        time.sleep(600)
    def download_files(self, paths):
        time.sleep(600)

class Native(BackendProtocol):
    async def als(self, path):
        await asyncio.sleep(600)
    async def adownload_files(self, paths):
        await asyncio.sleep(600)
    def ls(self, path):
        time.sleep(600)

backends = {
    "threads": Sleeper(),
    "native": Native(),
    "composite": CompositeBackend(default=FilesystemBackend("/nowhere"), routes={"/r/": Sleeper()}),
    "composite-mixed": CompositeBackend(default=Native(), routes={"/r/": Sleeper()}),
}
for mode, kind in (case.split(" ") for case in sys.argv[1:]):
    middleware = SkillsMiddleware(backend=backends[kind], sources=["/r/one", "/r/two"], backend_timeout=0.2)
    agent = create_agent(ScriptedChatModel(replies=["Hello."]), middleware=[middleware])
    given = {"messages": [("user", "go")]}
    result = agent.invoke(given) if mode == "sync" else asyncio.run(agent.ainvoke(given))
    print(mode, kind, result["messages"][-1].text, flush=True)
"""


def test_a_hanging_backend_holds_up_no_process() -> None:
    """A process whose backends sleep for minutes ends as soon as its own work is done, sync and async."""
    cases = [f"sync {kind}" for kind in ("threads", "composite")]
    cases += [f"async {kind}" for kind in ("threads", "native", "composite", "composite-mixed")]
    ended = subprocess.run(
        [sys.executable, "-c", SLEEPER, *cases], capture_output=True, text=True, check=True, timeout=300
    )
    assert ended.stdout.splitlines() == [f"{case} Hello." for case in cases]


@both_modes
@pytest.mark.parametrize("kind", ["threads", "native"])
def test_the_times_of_calls_that_hang_do_not_add_up(mode: Mode, kind: str, hanging: Callable[[str], LsResult]) -> None:
    """Once as many calls as run at a time were all too late, the rest of that step is given up without a call."""
    made: list[str] = []

    def answer(path: str) -> LsResult:
        made.append(path)
        return hanging(path)

    class Native(Answering):
        async def als(self, path: str) -> Any:
            made.append(path)
            await asyncio.sleep(HANGS)

    backend = Native(answer) if kind == "native" else Answering(answer)
    calls = [ListDirectory(f"/{number}/hangs") for number in range(160)]
    replies = perform(mode, ask(*calls), backend, 0.1)
    assert len(made) <= MAX_CALLS_AT_ONCE
    assert replies == [Failed("no answer within 0.1 seconds", timed_out=True)] * 160


@both_modes
def test_calls_go_on_while_some_are_answered(mode: Mode, hanging: Callable[[str], LsResult]) -> None:
    """A backend that answers some calls of a wave is asked the rest, too."""

    def check(seconds: float) -> None:
        calls = [ListDirectory(f"/{number}/{'hangs' if number % 2 else 'fine'}") for number in range(40)]
        replies = perform(mode, ask(*calls), Answering(hanging), seconds)
        assert [isinstance(reply, Listing) for reply in replies] == [True, False] * 20

    within_some_limit(check)


# Backends that lie.


def response(path: str, content: Any = b"text", error: str | None = None) -> FileDownloadResponse:
    return FileDownloadResponse(path=path, content=content, error=error)


A, B = "/a/SKILL.md", "/b/SKILL.md"


@both_modes
@pytest.mark.parametrize(
    ("answer", "contents"),
    [
        pytest.param([response(A, b"a"), response(B, b"b")], {A: b"a", B: b"b"}, id="honest"),
        pytest.param([response(B, b"b"), response(A, b"a")], {A: b"a", B: b"b"}, id="wrong-order"),
        pytest.param([response(A, b"a")], {A: b"a", B: None}, id="short"),
        pytest.param([], {A: None, B: None}, id="empty"),
        pytest.param([response(A, b"a"), response("/c", b"c"), response(B, b"b")], {A: b"a", B: b"b"}, id="long"),
        pytest.param([response(A, b"a"), None], {A: b"a", B: None}, id="nothing-for-one"),
        pytest.param([response(A, b"a"), object(), "x", 7], {A: b"a", B: None}, id="garbage-for-one"),
        pytest.param([response(A, "text"), response(B, b"b")], {A: None, B: b"b"}, id="text-for-bytes"),
        pytest.param([response(A, None), response(B, b"b")], {A: None, B: b"b"}, id="no-content"),
        pytest.param([response(A, b"a", "denied"), response(B, b"b")], {A: None, B: b"b"}, id="content-and-error"),
        pytest.param([response(A, b""), response(B, b"b")], {A: b"", B: b"b"}, id="an-empty-file"),
        pytest.param(None, {A: None, B: None}, id="none"),
        pytest.param("text", {A: None, B: None}, id="text"),
        pytest.param({A: b"a"}, {A: None, B: None}, id="mapping"),
        pytest.param((response(A, b"a"), response(B, b"b")), {A: b"a", B: b"b"}, id="tuple"),
        pytest.param(UserList([response(A, b"a"), response(B, b"b")]), {A: b"a", B: b"b"}, id="sequence"),
        pytest.param([response("a/SKILL.md", b"a"), response("b/SKILL.md", b"b")], {A: b"a", B: b"b"}, id="stripped"),
        pytest.param([response("", b"a"), response("", b"b")], {A: b"a", B: b"b"}, id="nameless"),
        pytest.param([response(B, b"b"), response("x", b"x")], {A: None, B: b"b"}, id="one-nameless-in-anothers-place"),
        pytest.param([response("x", b"a"), response(B, b"b")], {A: b"a", B: b"b"}, id="one-nameless"),
        pytest.param([response(A, b"a"), response(A, b"b")], {A: b"b", B: None}, id="one-twice"),
        pytest.param([response("x", b"x")], {A: None, B: None}, id="short-and-nameless"),
        pytest.param(
            [response(A, bytearray(b"a")), response(B, memoryview(b"b"))], {A: b"a", B: b"b"}, id="bytes-like"
        ),
    ],
)
def test_files_are_those_asked_for_whatever_a_backend_answers(
    mode: Mode, answer: object, contents: dict[str, bytes | None]
) -> None:
    """Each file asked for has its own content or a reason, never another's, and nothing raises."""
    found = perform(mode, read_files([A, B]), Answering(lambda _paths: answer))
    assert {path: file.content for path, file in found.items()} == contents
    assert all((file.content is None) == bool(file.error) for file in found.values())


@both_modes
def test_an_answer_without_content_and_error_is_a_missing_file(mode: Mode) -> None:
    """A backend that has nothing to say about a file has no such file; content of another kind is an error."""
    found = perform(mode, read_files([A, B]), Answering(lambda _paths: [response(A, None), response(B, 7)]))
    assert [file.is_missing for file in found.values()] == [True, False]
    assert found[B].error == "the backend gave int, not bytes"


@pytest.mark.parametrize(
    "error",
    [
        "file_not_found",
        "path_not_found",
        "File not found",
        "not found",
        "Not Found.",
        "Error: File '/skills/denied/SKILL.md' not found",
        "Directory '/skills' not found",
        "Error: file_not_found '/skills/socket-connection/SKILL.md'",
        "NoSuchKey",
        "An error occurred (NoSuchKey) when calling the GetObject operation: The specified key does not exist.",
        "404",
        "404 Not Found",
        "NoSuchKey: 404 Not Found",
        "HTTP 404",
        "HTTPStatusError: Client error, status code 404",
        "FileNotFoundError: [Errno 2] No such file or directory: '/x'",
    ],
)
def test_an_error_that_says_so_means_a_missing_file(error: str) -> None:
    """Backends have many words for a file that is not there."""
    assert is_missing_error(error)


@pytest.mark.parametrize(
    "error",
    [
        None,
        "",
        "permission denied",
        "permission_denied",
        "403 Forbidden: /skills/404",
        "Access denied: user not found",
        "PermissionError: [Errno 13] Permission denied: '/skills/404/SKILL.md'",
        "credentials not found, run `aws configure`",
        "ConnectError: host not found",
        "ModuleNotFoundError: No module named 'boto3'",
        "/skills/404/SKILL.md: connection reset",
        "error 4040",
        "timed out after 404 seconds",
        "is_directory",
        "down",
        "Object access denied: bucket not found",
        "HTTP 404: bucket not found",
        "credential file not found",
        "permission denied: file not found",
        "Error while fetching: ('Connection aborted.', FileNotFoundError(2, 'No such file or directory'))",
        "file " * 100_000,
        " " * 100_000 + "not found" + " " * 100_000 + "x",
    ],
    ids=lambda error: str(error)[:40],
)
def test_any_other_error_does_not_mean_a_missing_file(error: str | None) -> None:
    """What cannot be reached may still be there: it must not pass for missing."""
    assert not is_missing_error(error)


class Broken:
    @property
    def entries(self) -> NoReturn:
        raise OSError("gone while listing")


@both_modes
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(LsResult(entries=[]), Listing(()), id="empty"),
        pytest.param(LsResult(error="denied"), Failed("denied"), id="error"),
        pytest.param(
            LsResult(error="part", entries=[{"path": "/a/"}]),
            Listing((Entry("/a", is_directory=True),), "part"),
            id="entries-and-error",
        ),
        pytest.param([{"path": "/a", "is_dir": True}], Listing((Entry("/a", is_directory=True),)), id="plain-list"),
        pytest.param(
            LsResult(entries=[{"path": "/b"}, {"path": "/a/"}, {"path": "/b"}]),
            Listing((Entry("/a", is_directory=True), Entry("/b", is_directory=False))),
            id="out-of-order-and-twice",
        ),
        pytest.param(
            [None, 7, "x", {}, {"path": None}, {"path": 3}, {"path": ""}, {"path": "/a"}],
            Listing((Entry("/a", is_directory=False),)),
            id="garbage-entries",
        ),
        pytest.param(
            [{"path": "\\a\\b\\", "is_dir": True}], Listing((Entry("/a/b", is_directory=True),)), id="backslashes"
        ),
        pytest.param(({"path": "/a", "is_dir": True},), Listing((Entry("/a", is_directory=True),)), id="tuple"),
        pytest.param(UserList([{"path": "/a/"}]), Listing((Entry("/a", is_directory=True),)), id="sequence"),
        pytest.param(LsResult(), Listing(()), id="neither"),
        pytest.param(None, Failed("the backend answered with NoneType"), id="none"),
        pytest.param("text", Failed("the backend answered with str"), id="text"),
        pytest.param(Broken(), Failed("OSError: gone while listing"), id="raises-while-read"),
    ],
)
def test_listings_are_in_order_whatever_a_backend_answers(mode: Mode, answer: object, expected: Any) -> None:
    """A listing holds entries only, each once and in order; what is not a listing is a failure with a reason."""
    assert perform(mode, ask(ListDirectory("/")), Answering(lambda _path: answer)) == [expected]


@both_modes
@pytest.mark.parametrize("answer", [LsResult(entries=7), LsResult(entries="text")], ids=["number", "text"])  # type: ignore[arg-type]
def test_entries_that_are_no_list_raise_nothing(mode: Mode, answer: LsResult) -> None:
    """A listing whose entries are nonsense has none, or is a failure."""
    (reply,) = perform(mode, ask(ListDirectory("/")), Answering(lambda _path: answer))
    assert isinstance(reply, Failed) or reply == Listing(())


@both_modes
@pytest.mark.parametrize("seconds", [None, HANGS], ids=["no-limit", "limit"])
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        pytest.param(OSError("disk on fire"), "OSError: disk on fire", id="message"),
        pytest.param(ValueError(), "ValueError", id="no-message"),
        pytest.param(NotImplementedError(), "NotImplementedError", id="not-implemented"),
        pytest.param(TimeoutError("slow"), "TimeoutError: slow", id="its-own-timeout"),
        pytest.param(KeyError("files"), "needs FilesystemMiddleware in the same agent", id="state-without-files"),
    ],
)
def test_a_backend_that_raises_is_a_failure_with_its_reason(
    mode: Mode, seconds: float | None, error: Exception, reason: str
) -> None:
    """An exception becomes an answer that says what it was; the other calls of the round are answered."""

    def answer(path: str) -> LsResult:
        if path == "/1":
            raise error
        return one_file(path)

    first, failed, last = perform(mode, ask(*lists(3)), Answering(answer), seconds)
    assert isinstance(failed, Failed)
    assert reason in failed.reason
    assert not failed.timed_out
    assert isinstance(first, Listing)
    assert isinstance(last, Listing)


# What must pass through, and what becomes of the plan.


class Watched:
    """A plan that notes how it ended."""

    def __init__(self, *calls: Call[Any]) -> None:
        self._calls = calls
        self.closed = False

    async def plan(self) -> list[Any]:
        try:
            return list(await together(*self._calls))
        finally:
            self.closed = True


@both_modes
@pytest.mark.parametrize("seconds", [None, HANGS], ids=["no-limit", "limit"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("backend_type", [Answering, NativelyAsync])
def test_an_interrupt_passes_through(
    mode: Mode, seconds: float | None, count: int, backend_type: type[Answering]
) -> None:
    """LangGraph's interrupt leaves the driver as it was raised, and the plan is closed."""
    watched = Watched(*lists(count))
    interrupt = GraphInterrupt()
    with pytest.raises(GraphInterrupt) as caught:
        perform(mode, watched.plan(), backend_type(raising(interrupt)), seconds)
    assert caught.value is interrupt
    assert watched.closed


@both_modes
def test_an_error_of_the_plan_itself_reaches_its_caller(mode: Mode) -> None:
    """What a plan raises is not swallowed."""

    async def plan() -> None:
        await ListDirectory("/")
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        perform(mode, plan(), Answering(one_file))


@pytest.mark.parametrize("seconds", [None, HANGS], ids=["no-limit", "limit"])
@pytest.mark.parametrize("kind", ["threads", "native"])
def test_cancellation_closes_the_plan(seconds: float | None, kind: str) -> None:
    """A cancelled run ends at once with `CancelledError`, its plan closed and its calls cancelled."""
    over, meeting = threading.Event(), threading.Barrier(3, timeout=SOON)
    made, ended, both_made = [], [], asyncio.Event()

    def hang(path: str) -> LsResult:
        meeting.wait()
        over.wait(HANGS)
        return one_file(path)

    class Native(Answering):
        async def als(self, path: str) -> Any:
            made.append(path)
            if len(made) > 1:
                both_made.set()
            try:
                await asyncio.sleep(HANGS)
            finally:
                ended.append(path)

    watched = Watched(ListDirectory("/a"), ListDirectory("/b"))
    backend = Native(one_file) if kind == "native" else Answering(hang)

    async def cancelled() -> None:
        task = asyncio.create_task(adrive(watched.plan(), lambda: backend, seconds))
        await (both_made.wait() if kind == "native" else asyncio.to_thread(meeting.wait))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert watched.closed
        await asyncio.sleep(0.05)
        assert ended == made
        # Without a limit the loop's own pool is waited for at its end, so its threads are let go first.
        over.set()

    with Clock() as clock:
        asyncio.run(cancelled())
    assert clock.seconds < SOON


# Files in one batch, and what becomes of a batch that fails.


def numbered(count: int) -> list[str]:
    return [f"/skills/s{number:06}/SKILL.md" for number in range(count)]


def batch(call: Call[Any]) -> tuple[str, ...]:
    assert isinstance(call, ReadFiles)
    return call.paths


def honest(call: Call[Any]) -> Any:
    return tuple(File(path, path.encode()) for path in batch(call))


def test_files_come_in_one_batch() -> None:
    """Any number of files is one call, each path once."""
    paths = numbered(1000)
    found, rounds = by_hand(read_files([*paths, paths[0], paths[7]]), honest)
    assert rounds == [(ReadFiles(tuple(paths)),)]
    assert {path: file.content for path, file in found.items()} == {path: path.encode() for path in paths}


def test_no_files_are_no_call() -> None:
    """Nothing to read asks nothing."""
    assert by_hand(read_files([]), honest) == ({}, [])


@pytest.mark.parametrize("count", [1, 2, 3, 8, 100, 1000])
@pytest.mark.parametrize("bad", [[0], [-1], [0, -1]], ids=["first", "last", "both-ends"])
def test_a_file_that_breaks_its_batch_costs_only_itself(count: int, bad: Sequence[int]) -> None:
    """A batch that fails is halved until the bad files are alone; all others are read, in few rounds."""
    paths = numbered(count)
    broken = {paths[index] for index in bad}

    def answer(call: Call[Any]) -> Any:
        return Failed("boom") if broken & set(batch(call)) else honest(call)

    found, rounds = by_hand(read_files(paths), answer)
    assert list(found) == list(dict.fromkeys(found))
    assert {path for path, file in found.items() if file.content is None} == broken
    assert {found[path].error for path in broken} == {"boom"}
    assert set(found) == set(paths)
    assert len(rounds) <= count.bit_length() + 1


@both_modes
def test_a_real_batch_that_raises_is_halved(mode: Mode, tmp_path: Path) -> None:
    """A backend that raises for a whole batch because of one file still gives the others."""
    write_files(tmp_path, {f"{name}.txt": name for name in ("a", "b", "bad", "c", "d")})
    found = perform(
        mode,
        read_files([f"/{name}.txt" for name in ("a", "b", "bad", "c", "d")]),
        FakeBackend(tmp_path, rules={"download_files": fails("bad file", "bad")}),
    )
    assert {path: file.content for path, file in found.items()} == {
        "/a.txt": b"a",
        "/b.txt": b"b",
        "/bad.txt": None,
        "/c.txt": b"c",
        "/d.txt": b"d",
    }


def test_a_dead_backend_is_given_up() -> None:
    """When every batch fails, a bounded number of calls is made and every file has a reason."""
    paths = numbered(20_000)
    found, rounds = by_hand(read_files(paths), lambda _call: Failed("dead"))
    assert sum(len(calls) for calls in rounds) <= 2 * MAX_FAILED_BATCHES + 1
    assert set(found) == set(paths)
    assert {file.error for file in found.values()} == {"dead"}


def late(call: Call[Any]) -> Any:
    batch(call)
    return Failed("late", timed_out=True)


def test_a_backend_that_hangs_costs_two_waits() -> None:
    """When the parts of a late batch are all late, too, it is the backend that hangs, and every file is given up."""
    for count, most in ((1, 1), (2, 2), (100, 2), (20_000, 2)):
        paths = numbered(count)
        found, rounds = by_hand(read_files(paths), late)
        assert len(rounds) == most
        assert len(rounds[-1]) <= MAX_CALLS_AT_ONCE
        assert set(found) == set(paths)
        assert {file.error for file in found.values()} == {"late"}


def hangs_for(paths: set[str]) -> Callable[[Call[Any]], Any]:
    return lambda call: late(call) if paths & set(batch(call)) else honest(call)


def waits_of(rounds: list[tuple[Call[Any], ...]], hanging: set[str]) -> int:
    """Return how many time limits a driver would have waited: one for each wave with a call that hangs."""
    waves = [calls[at : at + MAX_CALLS_AT_ONCE] for calls in rounds for at in range(0, len(calls), MAX_CALLS_AT_ONCE)]
    return sum(any(hanging & set(batch(call)) for call in wave) for wave in waves)


def test_files_that_hang_cost_no_neighbour() -> None:
    """However large the batch, files that hang are alone after a few waits; all others are read."""
    offenders = []
    for count in (2, 3, 16, 17, 100, 1_000, 20_000):
        for bad in ([0], [-1], [count // 2], [0, -1]):
            paths = numbered(count)
            hanging = {paths[index] for index in bad}
            if len(hanging) == count:
                continue
            found, rounds = by_hand(read_files(paths), hangs_for(hanging))
            lost = {path for path, file in found.items() if file.content is None}
            if lost != hanging or set(found) != set(paths) or waits_of(rounds, hanging) > 7:
                offenders.append((count, bad, len(lost), waits_of(rounds, hanging)))
    assert offenders == []


def test_the_waits_for_many_files_that_hang_are_bounded() -> None:
    """With many files that hang, waiting ends after a bounded number of time limits, and every file has an answer."""
    offenders = []
    for count, step in ((1_000, 125), (1_000, 71), (20_000, 3_000), (20_000, 1_500), (1_000, 2), (1_000, 1)):
        paths = numbered(count)
        hanging = set(paths[::step])
        found, rounds = by_hand(read_files(paths), hangs_for(hanging))
        if waits_of(rounds, hanging) > MAX_WAITS + 4 or set(found) != set(paths):
            offenders.append((count, step, waits_of(rounds, hanging)))
    assert offenders == []
    assert {
        path for path, file in by_hand(read_files(numbered(1_000)), honest)[0].items() if file.content is None
    } == set()


@both_modes
def test_an_answer_of_the_wrong_kind_is_a_failure(mode: Mode) -> None:
    """A listing in the place of files costs nothing but those files."""
    found = perform(mode, read_files(numbered(2)), Answering(lambda _paths: one_file("/a")))
    assert all(file.content is None and file.error for file in found.values())
    assert len(found) == 2


# The one walk through directories: level by level, in rounds, bounded, and never in circles.


class Everything(Visitor[str]):
    """Notes every listing, and goes into every directory."""

    def __init__(self, refused: Iterable[str] = ()) -> None:
        self.seen: list[tuple[str, str, int]] = []
        self.failed: list[str] = []
        self.files: list[str] = []
        self._refused = set(refused)

    def admit(self, visit: Visit[str]) -> Visit[str] | None:
        return None if visit.path in self._refused else visit

    def take(self, visit: Visit[str], reply: Listing | Failed) -> Iterable[tuple[str, str]]:
        self.seen.append((visit.key, visit.path, visit.depth))
        if not isinstance(reply, Listing):
            self.failed.append(visit.path)
            return []
        self.files += [entry.path for entry in reply.entries if not entry.is_directory]
        return [(visit.key, entry.path) for entry in reply.entries if entry.is_directory]


def play(plan: Plan[Walked[str]], tree: dict[str, list[str]]) -> tuple[Walked[str], list[list[str]]]:
    """Drive a walk by hand over directories that hold directories alone; return the paths of each round."""

    def answer(call: Call[Any]) -> Listing | Failed:
        assert isinstance(call, ListDirectory)
        if call.path not in tree:
            return Failed("gone")
        return Listing(tuple(Entry(f"{call.path}/{name}", is_directory=True) for name in tree[call.path]))

    walked, rounds = by_hand(plan, answer)
    return walked, [[call.path for call in calls if isinstance(call, ListDirectory)] for calls in rounds]


TREE = {"/a": ["x", "y"], "/a/x": ["deep"], "/a/y": [], "/a/x/deep": ["end"], "/b": ["z"], "/b/z": []}


def test_each_level_is_one_round_in_which_keys_take_turns() -> None:
    """All directories of a level are listed at once, those of different keys in turns."""
    visitor = Everything()
    walked, rounds = play(walk([("A", "/a"), ("B", "/b")], visitor, levels=None), TREE)
    assert rounds == [["/a", "/b"], ["/a/x", "/b/z", "/a/y"], ["/a/x/deep"], ["/a/x/deep/end"]]
    assert visitor.failed == ["/a/x/deep/end"]
    assert ("A", "/a/x/deep", 2) in visitor.seen
    assert walked == Walked()


def test_depth_is_bounded_and_what_lies_deeper_is_told() -> None:
    """After the last level nothing is listed; the directories below it are handed back."""
    walked, rounds = play(walk([("A", "/a")], Everything(), levels=2), TREE)
    assert rounds == [["/a"], ["/a/x", "/a/y"]]
    assert [(visit.path, visit.depth) for visit in walked.too_deep] == [("/a/x/deep", 2)]


def test_the_number_of_directories_is_bounded_for_each_key() -> None:
    """One key with a huge tree is cut, and says so; the other is listed in full."""
    tree = {"/a": [str(number) for number in range(5_000)], "/b": ["z"], "/b/z": []}
    tree |= {f"/a/{number}": ["more"] for number in range(5_000)}
    visitor = Everything()
    walked, rounds = play(walk([("A", "/a"), ("B", "/b")], visitor, levels=None, max_directories=100), tree)
    assert walked.cut == ["A"]
    assert sum(key == "A" for key, _path, _depth in visitor.seen) == 100
    assert sum(key == "B" for key, _path, _depth in visitor.seen) == 2
    assert len(rounds) <= 3


def test_a_directory_may_be_refused() -> None:
    """What the visitor does not admit is not listed, and neither is what lies below it."""
    visitor = Everything(refused=["/a/x"])
    play(walk([("A", "/a")], visitor, levels=None), TREE)
    assert [path for _key, path, _depth in visitor.seen] == ["/a", "/a/y"]


def test_nothing_to_list_is_no_call() -> None:
    """A walk without starts makes no call."""
    assert play(walk([], Everything(), levels=None), TREE) == (Walked(), [])


@both_modes
def test_circles_of_links_end(mode: Mode, tmp_path: Path) -> None:
    """With links resolved each real directory is entered once for each key, whatever circles there are."""
    write_files(tmp_path, {"a/file.md": "", "a/b/file.md": "", "c/file.md": ""})
    for place, target in {"a/loop": ".", "a/b/up": "..", "c/other": "../a", "a/b/back": "../../c"}.items():
        (tmp_path / place).symlink_to(target)
    backend, visitor = FakeBackend(tmp_path), Everything()
    plan = walk([("one", "/"), ("two", "/")], visitor, levels=None, resolve_links=True)
    if mode == "sync":
        drive(plan, lambda: backend)
    else:
        asyncio.run(adrive(plan, lambda: backend))
    assert len(backend.listed) == 2 * 4
    assert sum(path.endswith("file.md") for path in visitor.files) == 2 * 3
