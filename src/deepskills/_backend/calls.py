"""Backend work as values: the requests that a plan makes, the replies it is sent, and the type of a plan itself.

A plan is a generator. It yields calls that may run at the same time, is sent one reply for each, and returns its
result. It never awaits and never touches a backend, so the same plan serves sync and async callers, and a test can
drive it by hand. A call that fails is answered with `Failed`; nothing is thrown into a plan.
"""

from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

from deepskills._backend.missing import is_missing_error
from deepskills._types import MAX_SKILL_FILE_BYTES, SkillSummary

# Requests to the backend.


@dataclass(frozen=True)
class ListDirectory:
    """List the files and directories directly inside `path`."""

    path: str


@dataclass(frozen=True)
class ReadFiles:
    """Read all `paths` in one batch; on a local disk, what is not a regular file or is too large is never opened."""

    paths: tuple[str, ...]
    max_bytes: int = MAX_SKILL_FILE_BYTES


@dataclass(frozen=True)
class WriteFiles:
    """Write files, each a path and its content, in one batch."""

    files: tuple[tuple[str, bytes], ...] = field(repr=False)
    for_shell: bool = False
    """Whether only the part of the backend that runs commands may get them, wherever their paths route to."""


@dataclass(frozen=True)
class Execute:
    """Run a shell command; `timeout` (seconds) replaces the time limit of other backend calls."""

    command: str
    timeout: int | None = None


@dataclass(frozen=True)
class ResolveLinks:
    """Find out where paths really lie; a backend that is not a local file system has no answer, and no links."""

    paths: tuple[str, ...]


@dataclass(frozen=True)
class Summarize:
    """Ask a backend that keeps skills in parts for `SKILL.md` files without their bodies; others have no answer."""

    paths: tuple[str, ...]


@dataclass(frozen=True)
class DescribeSkill:
    """Ask a backend that knows the digests of a skill's files for them, by its `SKILL.md`; others have no answer."""

    path: str


@dataclass(frozen=True)
class ShellPaths:
    """Ask for directories as a local shell knows them, where file tools know them by other paths."""

    paths: tuple[str, ...]


@dataclass(frozen=True)
class Inspect:
    """Find out what lies at paths without opening it; only a local file system has an answer."""

    paths: tuple[str, ...]


# Requests to other code.


@dataclass(frozen=True)
class Consult:
    """Call a function that may take its time, such as one that the user passed. Async runs use a thread."""

    ask: Callable[[], object]
    is_limited: bool = True
    """Whether the time limit of backend calls applies."""


@dataclass(frozen=True)
class Work:
    """Do long work of our own that waits for nobody; async runs use one of a few threads."""

    do: Callable[[], object]


@dataclass(frozen=True)
class Ask:
    """Call an extension: `call` in a sync run, `acall` on the event loop in an async run; no time limit.

    The calls of one round are made one after the other, in order, so that interrupts repeat in the same order.
    """

    call: Callable[[], object]
    acall: Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class WaitFor:
    """Wait for a result that another call of the same turn provides; the shared future is never cancelled."""

    future: "Future[Any]" = field(compare=False)
    timeout: float | None = None


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


@dataclass(frozen=True)
class Files:
    """The files of a batch, in the order of the request."""

    files: tuple[File, ...]


@dataclass(frozen=True)
class Written:
    """The outcome of a batch of writes."""

    errors: dict[str, str]
    """Why files were not written, by path; empty if all were."""


@dataclass(frozen=True)
class Summarized:
    """What a backend told of files without their bodies, by path; empty if it does not keep skills in parts."""

    summaries: dict[str, SkillSummary]


@dataclass(frozen=True)
class Executed:
    """What a command printed and how it ended: deepagents' `ExecuteResponse`."""

    response: Any


@dataclass(frozen=True)
class RealPaths:
    """Where each path really lies on this machine; empty if the backend is not a local file system."""

    paths: dict[str, str]


@dataclass(frozen=True)
class Nature:
    """What lies at a path of a local file system."""

    is_regular: bool
    """Whether it is a regular file: not a directory, FIFO, socket or device."""

    size: int


@dataclass(frozen=True)
class Inspected:
    """What lies at each path, links followed; paths of other backends, and paths with nothing there, are left out."""

    natures: dict[str, Nature]


@dataclass(frozen=True)
class Consulted:
    """What a function returned, or the result of a future."""

    value: Any


@dataclass(frozen=True)
class Failed:
    """A call that gave no usable answer."""

    reason: str
    timed_out: bool = False
    needs_loop: bool = False


BackendCall: TypeAlias = (
    ListDirectory | ReadFiles | WriteFiles | Execute | ResolveLinks | ShellPaths | Summarize | DescribeSkill | Inspect
)
Call: TypeAlias = BackendCall | Consult | Work | Ask | WaitFor
Reply: TypeAlias = Listing | Files | Written | Executed | Summarized | RealPaths | Inspected | Consulted | Failed
ResultT = TypeVar("ResultT")
Plan: TypeAlias = Generator[tuple[Call, ...], list[Reply], ResultT]
