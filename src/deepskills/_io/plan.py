"""The one dialect: requests as values, and the coroutines (plans) that make them.

What a plan is
    A plan is a coroutine that holds logic and does no I/O. It awaits what it needs (a small frozen value such as
    `ListDirectory("/skills")`), gets the answer, and returns its result. It never touches a backend, an event loop or a
    user's function itself. That is why nothing in this library is written twice: `drive` performs a plan on sync
    methods, `adrive` on async ones, and a test can perform one by hand. Plans await other plans.

What a plan may await
    A call, whose class knows its reply::

        listing = await ListDirectory(path)

    several calls, a *round*, answered with a tuple of replies in the same order::

        files, listing = await together(ReadFiles(("/a",)), ListDirectory("/b"))

    and other plans. Nothing else: a plan is stepped without an event loop, so whatever needs one (`asyncio.sleep`,
    locks, tasks) does not work in it. What users' hooks get from a run are ordinary awaitables.

    The calls of a round are made at the same time, a bounded number at once. So a slow backend costs a plan one wait
    per round, not one per call, and a plan that knows of several calls asks for them together. `Ask` is the
    exception: calls to extensions are made one after the other, in order, because an interrupt of LangGraph's is
    matched by its position when the run is resumed.

What can fail
    Everything. A backend may raise, hang, or answer with nonsense; a user's function may call `exit()`. There is one
    rule: a call that fails raises `CallFailed` inside the plan, at the `await`. In a round, all calls are made first;
    then the first failure in their order is raised. A plan that can go on without the answer says so where it asks,
    by wrapping the call in `Attempt`; the answer is then the reply or a `Failed`. The rule is this way round because
    a forgotten check must not let a failure pass for an answer: what nobody handles ends the plan with an error.

What a plan never sees
    Interrupts and the like (LangGraph's `GraphBubbleUp`) belong to LangGraph. They leave the driver as they are and
    close the plan: its `finally` blocks run, but it can make no calls, so no broad `except` in a plan swallows one.

Cancellation
    An async run may be cancelled while a call is under way. The driver then throws `asyncio.CancelledError` into the
    plan at the `await`. A plan that started something outside the process (a shell command, a directory of files)
    catches it, makes the calls that end or remove it, and raises it again; the driver goes on with the cancellation
    whatever the plan does. A call whose late arrival would undo the clean-up, such as a write, sets `settles`: it is
    waited for briefly before the plan is told.

Time limits
    Each call of a backend has the limit that the driver was given (the middleware's `backend_timeout`). `Execute` has
    its own. `CallFunction` names a number of seconds, `None` for no limit, or leaves the usual one. A plan
    with a deadline over several calls computes what is left and passes that. A late call is a failure with
    `timed_out` set.

Threads that cannot be cancelled
    Python cannot stop a thread. A sync call that is late is left alone in a daemon thread of its own: nobody waits
    for it, not even the end of the process, and whatever it returns in the end is dropped. So a plan must not hand a
    call anything that it changes later. `Work` is our own computing, which always ends; it shares a small pool.
"""

import itertools
import re
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar, overload

from deepskills._errors import SkillsError
from deepskills._types import MAX_SKILL_FILE_BYTES

if TYPE_CHECKING:
    from deepagents.backends.protocol import ExecuteResponse

Executed: TypeAlias = "ExecuteResponse"
"""What a backend answers to a shell command."""


# Replies.


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or directory; the path has no slash at the end."""

    path: str
    is_directory: bool
    size: int | None = field(default=None, compare=False)
    """Size in bytes, where the backend says."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class Listing:
    """The contents of a directory, sorted by path; `error` says why it may be incomplete."""

    entries: tuple[Entry, ...]
    error: str | None = None


Unfit: TypeAlias = Literal["not-a-file", "too-large"]
"""Why a file was not opened: it is a FIFO, socket, device or directory, or it is larger than the limit."""


@dataclass(frozen=True, slots=True)
class File:
    """A file's content, or why it could not be read."""

    path: str
    content: bytes | None = None
    error: str | None = None
    unfit: Unfit | None = None
    size: int | None = field(default=None, compare=False)
    """Size in bytes of a file that is too large to be read."""

    @property
    def is_missing(self) -> bool:
        """Whether the backend says that there is no such file."""
        return self.content is None and is_missing_error(self.error)


class Route(NamedTuple):
    """What serves a path, behind however many backends that only route."""

    backend: object
    path: str
    """The path as that backend knows it."""

    mount: str = ""
    """What stands before the backend's own paths."""


# Failures.


@dataclass(frozen=True)
class Failed:
    """A call that gave no usable answer, as a value: what `Attempt` is answered with."""

    reason: str
    timed_out: bool = False
    error: BaseException | None = field(default=None, compare=False, repr=False)
    """What was raised, if something was."""


class CallFailed(SkillsError):  # noqa: N818 - it says what happened, as `Failed` does
    """A call gave no usable answer; raised inside the plan at the `yield` that asked for it.

    A late call has a `TimeoutError` as its cause, any other what was raised.
    """

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.reason)
        self.failed = failed
        self.__cause__ = TimeoutError(failed.reason) if failed.timed_out else failed.error

    @property
    def reason(self) -> str:
        """What went wrong, in one line."""
        return self.failed.reason

    @property
    def timed_out(self) -> bool:
        """Whether the call was given up because it took too long; it may still be under way."""
        return self.failed.timed_out

    @property
    def error(self) -> BaseException | None:
        """What was raised, if something was."""
        return self.failed.error


# Calls.

ReplyT = TypeVar("ReplyT")
ResultT = TypeVar("ResultT")
FirstT = TypeVar("FirstT")
SecondT = TypeVar("SecondT")

Plan: TypeAlias = Coroutine[Any, Any, ResultT]
"""Awaits calls, rounds of them and other plans; the module's docstring says what it gets."""


class Call(Generic[ReplyT]):
    """One request, answered with a reply of its type."""

    __slots__ = ()

    def __await__(self) -> Generator["Call[Any]", Any, ReplyT]:
        """Hand the call to the driver, and return what it was answered with."""
        reply: ReplyT = yield self
        return reply


@dataclass(frozen=True)
class Round(Generic[ReplyT]):
    """Calls that are made at the same time; made by `together`."""

    calls: tuple[Call[Any], ...]

    def __await__(self) -> Generator["Round[Any]", Any, ReplyT]:
        """Hand the calls to the driver, and return their replies in the same order."""
        replies: ReplyT = yield self
        return replies


@overload
def together(first: Call[FirstT], second: Call[SecondT], /) -> Round[tuple[FirstT, SecondT]]: ...
@overload
def together(*calls: Call[ReplyT]) -> Round[tuple[ReplyT, ...]]: ...
def together(*calls: Call[Any]) -> Round[Any]:
    """Return the round of these calls: a plan that awaits it gets all replies, in order."""
    return Round(calls)


@dataclass(frozen=True)
class Attempt(Call["ReplyT | Failed"]):
    """Make a call whose failure the plan wants as a value: answered with the reply, or with `Failed`."""

    call: Call[ReplyT]


# Requests to the backend.


@dataclass(frozen=True)
class ListDirectory(Call[Listing]):
    """List the files and directories directly inside `path`; answered with a `Listing`."""

    path: str


@dataclass(frozen=True)
class FindFiles(Call[Listing]):
    """Find the files below `path` that fit a glob pattern; answered with a `Listing`."""

    path: str
    pattern: str


@dataclass(frozen=True)
class ReadFiles(Call[tuple[File, ...]]):
    """Read all `paths` in one batch; answered with the files in the same order.

    On a local disk, what is not a regular file or is too large is never opened.
    """

    paths: tuple[str, ...]
    max_bytes: int = MAX_SKILL_FILE_BYTES


@dataclass(frozen=True)
class WriteFiles(Call[dict[str, str]]):
    """Write files, each a path and its content, in one batch; answered with why files were not written, by path."""

    files: tuple[tuple[str, bytes], ...] = field(repr=False)  # may hold secrets
    for_shell: bool = False
    """Whether only the part of the backend that runs commands may get them, wherever their paths route to."""

    settles: bool = False
    """Whether a cancelled run waits briefly for it, so that no file arrives after the clean-up."""


@dataclass(frozen=True)
class Execute(Call[Executed]):
    """Run a shell command; answered with deepagents' `ExecuteResponse`."""

    command: str
    timeout: int | None = None
    """Seconds; replaces the time limit of other backend calls, and is passed to the backend."""

    settles: bool = False
    """Whether a cancelled run waits briefly for it; for commands that end soon by themselves."""


@dataclass(frozen=True)
class ResolveLinks(Call[dict[str, str]]):
    """Find out where paths really lie on this machine; paths of other backends, which have no links, are left out."""

    paths: tuple[str, ...]


@dataclass(frozen=True)
class FindRoutes(Call[dict[str, Route]]):
    """Find out which backend serves each path, behind those that only route; decided without I/O."""

    paths: tuple[str, ...]


@dataclass(frozen=True)
class ShellPaths(Call[dict[str, str]]):
    """Ask for directories as a local shell knows them, where file tools know them by other paths."""

    paths: tuple[str, ...]


@dataclass(frozen=True)
class FindExisting(Call[dict[str, bool]]):
    """Find out whether something lies at paths, links followed; those of other than local file systems are left out."""

    paths: tuple[str, ...]


# Requests to other code. The answer is what the function returned.


Limit: TypeAlias = float | Literal["usual"] | None
"""Seconds, `None` for no limit, or the limit that the driver was given for calls of the backend."""


@dataclass(frozen=True)
class CallFunction(Call[ReplyT]):
    """Call a function of the user's, sync or async; answered with what it returns, awaited if need be.

    An async run calls an async function on the event loop and any other in a thread of its own. A sync run calls it
    here if there is no limit, else in a thread; an async function gets an event loop of its own.
    """

    function: Callable[..., ReplyT | Awaitable[ReplyT]]
    arguments: tuple[Any, ...] = field(default=(), repr=False)  # may hold secrets
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    seconds: Limit = "usual"
    twin: Callable[..., Awaitable[ReplyT]] | None = None
    """The async form of the function, if it has one; async runs call it in place of the function."""


def call_method(
    target: object, method: str, *arguments: object, seconds: Limit = "usual", **options: object
) -> CallFunction[object]:
    """Return the call of a method of a user's object, and of its async twin `a<method>` where that is its own.

    LangChain's default twins only run the sync method in the event loop's thread pool. They are not used: the end of
    the process would wait for a call that hangs there.
    """
    twin = getattr(target, f"a{method}", None)
    module = str(getattr(getattr(twin, "__func__", twin), "__module__", None) or "")
    # Judged by the function's module: LangChain's base classes define a twin for every method.
    is_own = twin is not None and not module.startswith("langchain_core.")

    def call(*given: object, **named: object) -> object:
        # Looked up when it is called: an object without the method is a failed call, not an error in the plan.
        found: object = getattr(target, method)(*given, **named)
        return found

    call.__name__ = method
    return CallFunction(call, arguments, options, seconds, twin if is_own else None)


@dataclass(frozen=True)
class Work(Call[ReplyT]):
    """Do long work of our own that waits for nobody; async runs use one of a few threads."""

    do: Callable[[], ReplyT]


@dataclass(frozen=True)
class Ask(Call[ReplyT]):
    """Call an extension, sync or async; answered with what it returns, awaited if need be. No time limit.

    An async run calls it on the event loop. A sync run calls it here, and awaits what it returns on the bridge's loop.
    The calls of one round are made one after the other, in order, so that interrupts repeat in the same order.
    """

    call: Callable[[], ReplyT | Awaitable[ReplyT]]


@dataclass(frozen=True)
class WaitFor(Call[ReplyT]):
    """Wait for a result that another call of the same turn provides; the shared future is never cancelled."""

    future: "Future[ReplyT]" = field(compare=False)
    timeout: float | None = None


@dataclass(frozen=True)
class Pause(Call[None]):
    """Let some time pass, in which another thread may finish what it is making; answered with `None`."""

    seconds: float = 0.02


# Work that takes long.


async def unwrap(call: Call[ReplyT]) -> ReplyT:
    """Make a call of our own code; what it raises is raised here as it is, not as `CallFailed`."""
    reply: ReplyT | Failed = await Attempt(call)
    return unwrap_reply(reply)


def unwrap_reply(reply: ReplyT | Failed) -> ReplyT:
    """Return a reply; what a failed call raised is raised as it is, with its own cause."""
    if isinstance(reply, Failed):
        # A failure without an exception, such as a late call, has nothing else to raise.
        raise reply.error or CallFailed(reply)
    return reply


LARGE = 250
"""The number of items from which work is done in a thread; for fewer, starting one costs more than the work."""


async def in_worker(work: Callable[[], ReplyT], size: int) -> ReplyT:
    """Return what `work` on `size` items gives; async runs do much of it in a thread. What it raises is raised."""
    return work() if size < LARGE else await unwrap(Work(work))


# Errors about a path: nothing is there, or nobody could look.
#
# The two must be told apart. A file that is gone makes its skill disappear; a file behind a connection that fails is
# kept as it was known. Backends answer with free text, so the text is read: a sign that something is missing counts
# only if no other cause (a credential, a host, a bucket) is named beside it. Paths are left out: they hold any word.

_MAX_READ = 2_000
_MISSING_SIGNS = (
    *("path_not_found", "file_not_found", "no such file or directory", "filenotfounderror"),
    *("file not found", "path not found", "directory not found", "nosuchkey", "no such key"),
)
_OTHER_CAUSES = (
    *("denied", "forbidden", "unauthorized", "not authorized", "timed out", "timeout"),
    *("connection", "socket", "credential", "bucket", "daemon"),
)
"""Words of errors that are about the way to a file, whatever else they say."""

_NOT_FOUND = re.compile(
    r"\W*(?:error\W+)?(?:404\W+)?"
    r"(?:(?:file|path|directory|object|blob)(?:[ :]+(?:'[^']{1,1024}'|\"[^\"]{1,1024}\"|\S{1,1024}))?\s+)?not found\W*"
)
"""The whole of a text that says no more; a "not found" among other words may be about a host or a credential."""

_PATHS = re.compile(r"'[^']*/[^']*'|\"[^\"]*/[^\"]*\"|\S*/\S*")
"""What an error says of paths, which may hold any word."""

_STATUS_404 = re.compile(r"(?:^|\bhttp(?:/[\d.]+)?|\bstatus(?: code)?|\berror|\bcode)\W{0,3}404(?![\w/])")


def is_missing_error(error: str | None) -> bool:
    """Whether a backend's error text means that nothing lies at the path."""
    if not error:
        return False
    # Some errors quote a whole page of HTML.
    text = error[:_MAX_READ].lower()
    words = _PATHS.sub("", text)
    if any(cause in words for cause in _OTHER_CAUSES):
        return False
    is_sign = any(sign in text for sign in _MISSING_SIGNS) or _NOT_FOUND.fullmatch(text) is not None
    return is_sign or _STATUS_404.search(text) is not None


# --------------------------------------------------------------------------------------------------------------------
# Paths as text, and two plans for many files: a walk of directories, one round per level, and reading in batches.
#
# Every walk in the library is `walk`, and every reading of many files is `read_files`. Both assume that some directory
# or file may fail, hang or lead in circles, and see to it that none costs another.
# --------------------------------------------------------------------------------------------------------------------

MAX_CALLS_AT_ONCE = 16
"""How many calls to one backend run at the same time."""

PASSED_OVER = frozenset({".git", "node_modules", ".venv", "__pycache__", ".deepskills"})
"""Directories that never hold skills or resources."""


def tidy(path: str) -> str:
    """Return a directory's path without a slash at the end."""
    return path.replace("\\", "/").rstrip("/") or "/"


def lies_under(path: str, directory: str) -> bool:
    """Whether `path` is inside `directory`, going by the text of both."""
    root = tidy(directory).rstrip("/") + "/"
    path = path.replace("\\", "/")
    if not path.startswith(root) or path == root:
        return False
    # By text alone: a step to the parent could lead out again, so a path that holds one is not inside.
    return ".." not in path or ".." not in path[len(root) :].split("/")


def parent(path: str) -> str:
    """Return the directory that `path` lies in."""
    return path.rpartition("/")[0] or "/"


KeyT = TypeVar("KeyT", bound=Hashable)


@dataclass(frozen=True)
class Visit(Generic[KeyT]):
    """A directory on a walk."""

    key: KeyT
    """What it is listed for: a source, a skill, a kind of resource."""

    path: str
    depth: int = 0
    """How many levels it lies below its start."""

    real: str | None = None
    """Where it really lies, if the walk resolves links and the backend is local."""


Below: TypeAlias = Iterable[tuple[KeyT, str]]
"""Directories to list at the next level, each with its key."""


class Visitor(Generic[KeyT]):
    """What a walk does with directories; override `take`, and the others where needed."""

    def admit(self, visit: Visit[KeyT]) -> Visit[KeyT] | None:
        """Return the directory to list, perhaps by another path; `None` to pass it over."""
        return visit

    def take(self, visit: Visit[KeyT], reply: Listing | Failed) -> Below[KeyT]:
        """Record what a directory holds, or why it could not be listed, and return the directories below it to list."""
        raise NotImplementedError


@dataclass
class Walked(Generic[KeyT]):
    """What a walk left out."""

    too_deep: list[Visit[KeyT]] = field(default_factory=list)
    """Directories below the last level."""

    cut: list[KeyT] = field(default_factory=list)
    """Keys with too many directories, some of which were not listed."""


async def walk(
    starts: Below[KeyT],
    visitor: Visitor[KeyT],
    *,
    levels: int | None,
    max_directories: int | None = None,
    resolve_links: bool = False,
) -> Walked[KeyT]:
    """List directories level by level; each level is one round, in which the keys take turns.

    Because they take turns, a source whose calls hang does not hold up the calls of another.

    Args:
        starts: Where to start, each path with its key.
        visitor: What to do with each directory.
        levels: How many levels are listed, the starts included; `None` for all.
        max_directories: How many directories are listed for each key.
        resolve_links: Resolve links before each level, and enter each place once per key: links may form circles.
    """
    walked: Walked[KeyT] = Walked()
    entered: set[tuple[KeyT, str]] = set()
    counts: dict[KeyT, int] = {}
    pending = [Visit(key, path) for key, path in starts]
    for depth in itertools.count():
        if resolve_links:
            pending = await _with_real_paths(pending)
        admitted = [visit for pending_visit in pending if (visit := visitor.admit(pending_visit)) is not None]
        level = []
        for visit in admitted:
            # By the real place: a link back to a parent would otherwise be entered until the levels end.
            place = (visit.key, visit.real or visit.path)
            if place in entered:
                continue
            # Recorded and not listed: the caller reports that there is more.
            if depth == levels:
                walked.too_deep.append(visit)
            # Per key, so that one huge source does not use up what another may have.
            elif max_directories is not None and counts.get(visit.key, 0) >= max_directories:
                if visit.key not in walked.cut:
                    walked.cut.append(visit.key)
                continue
            else:
                counts[visit.key] = counts.get(visit.key, 0) + 1
                level.append(visit)
            entered.add(place)
        if not level:
            return walked
        level = _in_turns(level)
        # A directory that cannot be listed is the visitor's to report; it must not cost the others.
        replies = await together(*(Attempt(ListDirectory(visit.path)) for visit in level))
        pending = [
            Visit(key, path, depth + 1)
            for visit, reply in zip(level, replies, strict=True)
            for key, path in visitor.take(visit, reply)
        ]
    raise AssertionError  # pragma: no cover - the count has no end


def too_large(path: str, size: int, max_bytes: int) -> File:
    """Return the answer for a file whose size alone says that it is not read."""
    error = f"it is too large: {size:,} bytes, and at most {max_bytes:,} are read"
    return File(path, error=error, unfit="too-large", size=size)


async def _with_real_paths(visits: Sequence[Visit[KeyT]]) -> list[Visit[KeyT]]:
    if not visits:
        return []
    reply = await Attempt(ResolveLinks(tuple(dict.fromkeys(visit.path for visit in visits))))
    # Without real paths a circle of links is ended by the number of levels alone.
    real = {} if isinstance(reply, Failed) else reply
    return [replace(visit, real=real.get(visit.path)) for visit in visits]


def _in_turns(visits: Sequence[Visit[KeyT]]) -> list[Visit[KeyT]]:
    by_key: dict[KeyT, list[Visit[KeyT]]] = {}
    for visit in visits:
        by_key.setdefault(visit.key, []).append(visit)
    if len(by_key) == 1:
        return list(visits)
    columns = itertools.zip_longest(*by_key.values())
    return [visit for column in columns for visit in column if visit is not None]


# Reading many files.


MAX_FAILED_BATCHES = 64
"""How many failing batches `read_files` splits before it gives up on the rest."""

MAX_WAITS = 8
"""How many times `read_files` waits for the whole time limit before it gives up on batches that are late."""

_MIN_PARTS = 4
"""How many parts a late batch is split into at least."""


async def read_files(
    paths: Sequence[str], sizes: Mapping[str, int] | None = None, max_bytes: int = MAX_SKILL_FILE_BYTES
) -> dict[str, File]:
    """Read `paths` in one batch; a batch that fails is split, so that one bad file does not cost the others.

    A batch that fails is halved. One that is late is split into many parts, which are read at the same time: one file
    that hangs among thousands is alone after a few time limits. When all parts are late, the backend hangs, not a file.

    Args:
        paths: The files.
        sizes: Sizes that a listing gave; what is too large by them is not requested.
        max_bytes: Largest file that is read.
    """
    wanted = tuple(dict.fromkeys(paths))
    # A size from the listing saves the request; without one the backend or the driver refuses it.
    known = {path: size for path in wanted if (size := (sizes or {}).get(path)) is not None and size > max_bytes}
    found = {path: too_large(path, size, max_bytes) for path, size in known.items()}
    batches = [tuple(path for path in wanted if path not in known)] if len(known) < len(wanted) else []
    failures = waits = 0
    while batches:
        replies = await together(*(Attempt(ReadFiles(batch, max_bytes)) for batch in batches))
        late = [_is_late(reply) for reply in replies]
        # A round is made in waves, and each wave with a late call has cost one whole time limit.
        waits += sum(any(wave) for wave in _waves(late))
        # Several batches at once and not one arrived: it is not a file that hangs.
        hangs = waits >= MAX_WAITS or (len(batches) > 1 and all(late))
        # As many parts as can run at once, shared by the batches that were late.
        parts = max(_MIN_PARTS, MAX_CALLS_AT_ONCE // max(1, sum(late)))
        smaller: list[tuple[str, ...]] = []
        for batch, reply, is_late in zip(batches, replies, late, strict=True):
            if not isinstance(reply, Failed):
                found.update((file.path, file) for file in reply)
                continue
            failures += not is_late
            # Alone in its batch, a file is the culprit. Otherwise split again, unless that was done too often.
            if len(batch) == 1 or (hangs if is_late else failures > MAX_FAILED_BATCHES):
                found.update((path, File(path, error=reply.reason)) for path in batch)
            else:
                smaller += _split(batch, parts if is_late else 2)
        batches = smaller
    return found


def _is_late(reply: tuple[File, ...] | Failed) -> bool:
    return isinstance(reply, Failed) and reply.timed_out


def _waves(late: Sequence[bool]) -> Iterator[Sequence[bool]]:
    return (late[start : start + MAX_CALLS_AT_ONCE] for start in range(0, len(late), MAX_CALLS_AT_ONCE))


def _split(batch: tuple[str, ...], parts: int) -> list[tuple[str, ...]]:
    size = -(-len(batch) // parts)
    return [batch[start : start + size] for start in range(0, len(batch), size)]
