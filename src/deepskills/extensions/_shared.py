"""Parts that several extensions use: calls that a human edited, trusted sources, private copies of a skill's files."""

import asyncio
import logging
import posixpath
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from langchain.agents.middleware.types import ToolCallRequest

from deepskills import SkillEntry, SkillRun, SkillsError
from deepskills._io.bridge import awaiting
from deepskills._io.drivers import in_thread
from deepskills._io.plan import Attempt, Execute, Failed, WriteFiles
from deepskills._skillmd.problems import quoted

_EDITED_CALLS = "hitl_edited_tool_calls"
"""The state key where LangChain's human review, in batched mode, keeps edited calls until they run."""


ValueT = TypeVar("ValueT")
MaybeAwaitable: TypeAlias = ValueT | Awaitable[ValueT]
"""What a hook gives that does I/O only sometimes: what needs none costs a sync run nothing."""


async def call_either(
    run: SkillRun, plain: Callable[..., ValueT], twin: Callable[..., Awaitable[ValueT]], *given: object
) -> ValueT:
    """Call the method of a store or checkpointer that fits the run: the sync one in a thread, or its async twin."""
    if run.is_async:
        return await twin(*given)
    with awaiting():
        done = in_thread(plain, *given)
    return await asyncio.wrap_future(done)


def as_edited(request: ToolCallRequest) -> ToolCallRequest:
    """Return a call as it will run, even if the middleware that edits it comes after ours."""
    # A policy must judge what will run, not what the model asked for.
    edits = request.state.get(_EDITED_CALLS) if isinstance(request.state, Mapping) else None
    edited = edits.get(request.tool_call["id"]) if isinstance(edits, Mapping) else None
    if edited is None:
        return request
    return request.override(tool_call={**request.tool_call, "name": edited["name"], "args": edited["args"]})


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return a mapping as it is, and an empty one for anything else that state may hold."""
    return value if isinstance(value, Mapping) else {}


# Paths of sources that an operator trusts.


def tidy_source(path: str) -> str:
    """Return a source's path without doubled or trailing slashes; a relative one stays relative."""
    root = "/" if path.startswith("/") else ""
    return root + "/".join(part for part in path.split("/") if part not in {"", "."})


def tidy_sources(parameter: str, paths: Iterable[str]) -> frozenset[str]:
    """Return tidied paths for comparison.

    Raises:
        ValueError: If a single text was given instead of a list: it would count as a list of letters.
    """
    if isinstance(paths, str):
        raise ValueError(f"`{parameter}` takes a list of source paths, not the text {paths!r}.")  # noqa: TRY004
    return frozenset(tidy_source(path) for path in paths)


def is_trusted(entry: SkillEntry, run: SkillRun, trusted: Collection[str]) -> bool:
    """Whether every source that holds a skill's file is trusted: a user who can write to one of them can change it."""
    return all(tidy_source(path) in trusted for path in run.holders(entry))


# --------------------------------------------------------------------------------------------------------------------
# Copies a skill's files in order to run them, in the backend's shell or by a function on this machine.
#
# What was judged must be what runs, and a path cannot guarantee that: anybody who can write to the skill's directory
# may change a file between the check and the start. So the bytes that were judged are written to a directory whose name
# nobody can guess and that only its owner can enter, and run from there. On this machine that closes the gap. In a
# sandbox it is as tight as the sandbox: a process of the same user that runs there at that moment can read and change
# the copy too.
# --------------------------------------------------------------------------------------------------------------------


logger = logging.getLogger("deepskills")

COPY = "copy"
"""Name of the directory, below that of a job, that holds a copy of a skill."""

GRACE_SECONDS = 15
"""How long the commands that make and remove copies may take."""

HAS_TIMEOUT = "timeout -k 1 9 true 2>/dev/null"
"""The shell condition that there is a `timeout` that also ends what does not react to a first signal."""

KILL_AFTER_SECONDS = 5
"""How long after its limit a command that does not end by itself is killed."""


def copies_of(files: Mapping[str, bytes]) -> list[tuple[str, bytes]]:
    """Return files with their paths below a job's directory.

    Raises:
        SkillsError: If a path, which a backend may have made up, leads elsewhere.
    """
    return [(f"{COPY}/{_check(path)}", content) for path, content in files.items()]


def job_directories(token: str) -> tuple[str, ...]:
    """Return the backend paths where the files of a job may be written.

    If a backend shows its working directory as `/`, the first is the only place that its shell also knows.
    """
    return f"/.deepskills-{token}", f"/tmp/.deepskills-{token}"  # noqa: S108 - nobody can guess the name


def job_places(token: str) -> str:
    """Return the directories, for use in a shell, where it may find the files of a job."""
    return f"./.deepskills-{token} ./tmp/.deepskills-{token} /.deepskills-{token} /tmp/.deepskills-{token}"


def make_places_command(token: str) -> str:
    """Return the command that creates directories only their owner can read, before files are written there."""
    return f"for _ds_job in {job_places(token)}; do mkdir -m 700 $_ds_job; done 2>/dev/null; :"


async def place_files(token: str, files: Sequence[tuple[str, bytes]]) -> None:
    """Write the files of a job where the shell finds them, in a directory that only its owner can enter.

    The caller removes them.

    Raises:
        SkillsError: If they could not be written; then nothing of them is left.
    """
    try:
        await Execute(make_places_command(token), GRACE_SECONDS, settles=True)
        await _write(token, files)
    except (SkillsError, asyncio.CancelledError):
        await remove_files(token)
        raise


async def _write(token: str, files: Sequence[tuple[str, bytes]]) -> None:
    failure = ""
    for directory in job_directories(token):
        placed = tuple((f"{directory}/{path}", content) for path, content in files)
        # Only for the shell: they may contain secrets.
        written = await Attempt(WriteFiles(placed, for_shell=True, settles=True))
        trouble = written.reason if isinstance(written, Failed) else _errors_of(written)
        if not trouble:
            return
        failure = failure or trouble
    raise SkillsError(f"The files that are needed could not be written: {failure}")


async def remove_files(token: str) -> None:
    """Remove the files of a job; a failure is logged."""
    reply = await Attempt(Execute(f"rm -rf {job_places(token)} 2>/dev/null; :", GRACE_SECONDS))
    if isinstance(reply, Failed):
        logger.warning("Files of a job could not be removed from the sandbox: %s", type(reply.error).__name__)


def _errors_of(written: dict[str, str]) -> str:
    return "; ".join(f"{path}: {error}" for path, error in written.items())


def _check(path: str) -> str:
    if "\x00" in path or any(part in {"", ".", ".."} for part in path.split("/")):
        raise SkillsError(f"The file {quoted(path)} cannot be copied: its path is not inside the skill.")
    return path


class LocalCopy:
    """A private copy of a skill on this machine, for a function that runs its scripts."""

    def __init__(self, entry: SkillEntry, files: Mapping[str, bytes]) -> None:
        self.top = Path(tempfile.mkdtemp(prefix="deepskills-"))
        name = posixpath.basename(posixpath.dirname(entry.path))
        self.directory = self.top / (name if name not in {"", ".", ".."} else "skill")
        try:
            for path, content in files.items():
                self._write(_check(path), content)
        except (OSError, ValueError) as error:
            self.remove()
            raise SkillsError(f"The skill could not be copied to run its script: {error}") from error
        except SkillsError:
            self.remove()
            raise

    def path(self, relative: str) -> str:
        """Return the path of a file of the copy."""
        return str(self.directory / relative)

    def remove(self) -> None:
        """Remove the copy; a file that a script made unreadable is not worth an error."""
        shutil.rmtree(self.top, ignore_errors=True)

    def _write(self, relative: str, content: bytes) -> None:
        target = self.directory / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        # Never overwrite: two names that this file system treats as one must not replace each other.
        with target.open("xb") as file:
            file.write(content)
        # Backends do not say which files are executable, and scripts call each other.
        target.chmod(0o700)
