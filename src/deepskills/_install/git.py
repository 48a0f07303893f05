"""Repositories as trees, by the `git` on this machine, without a checkout.

Only objects are fetched, into a bare repository without templates, and read by their ids. Without a checkout nothing of
a repository is ever acted on: no hook runs, no attribute starts a filter, no line end is rewritten, no link is made, no
submodule is entered. Its settings stay on the server; the user's own are used, for proxies and credentials.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO

from deepskills._install.origin import TRANSPORTS, Origin, is_commit, strip_credentials
from deepskills._install.paths import MAX_FILE_BYTES, MAX_HEADER_BYTES, MAX_REPOSITORY_BYTES, SourceError, quote_path
from deepskills._install.trees import Entries, Kind, Node, Tree

MAX_SAID = 2_000
"""How much of what git says about a failure is shown."""

_SAID = "said"
"""The file that takes what git says about a failure."""

POLL_SECONDS = 0.2
"""How often the size of a clone is looked at."""

_OVERRIDES = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.symlinks=false",
    "protocol.ext.allow=never",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "fetch.fsckObjects=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "fetch.writeCommitGraph=false",
)
"""Settings that count whatever the user's own say."""

_MODES: dict[str, tuple[Kind, bool]] = {
    "100644": ("file", False),
    "100664": ("file", False),
    "100755": ("file", True),
    "120000": ("link", False),
    "160000": ("submodule", False),
}


def open_repository(origin: Origin, workspace: Path, deadline: float) -> Tree:
    """Fetch a commit and return its tree.

    Args:
        origin: The repository, and the ref that is wanted of it.
        workspace: Where its objects are kept.
        deadline: When the fetch is given up, by `time.monotonic`.

    Raises:
        SourceError: If git is missing, or the commit cannot be fetched or is too large.
    """
    if shutil.which("git") is None:
        raise SourceError("There is no git on this machine. Install it, or download an archive and add that.")
    repository = workspace / "repository"
    # Without a template: the user's may bring hooks.
    _git(["init", "--quiet", "--bare", "--template=", str(repository)], workspace, deadline)
    commit = _fetch(origin, repository, deadline)
    found = Entries("The repository")
    objects: dict[str, str] = {}
    # `-z`: names may hold anything but zero bytes, newlines included.
    with _run(["ls-tree", "-r", "-l", "-z", "--full-tree", commit], repository) as process:
        for line in _records(process.stdout):
            about, _tab, name = line.partition(b"\t")
            mode, _type, objects[path := name.decode("utf-8", "surrogateescape")], size = about.decode("ascii").split()
            kind, executable = _MODES.get(mode, ("special", False))
            # A repository that pretends to have millions of files is cut off while they are listed.
            found.add(Node(path, kind, int(size) if size.isdigit() else 0, executable))
        if process.wait() != 0:
            raise SourceError("git could not list the commit. The repository may be broken.")
    return Tree(found.nodes, partial(_read_objects, repository, objects), commit)


def _read_objects(repository: Path, objects: dict[str, str], paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the content of each file, as the repository holds it."""
    with _run(["cat-file", "--batch"], repository) as process:
        given, output = process.stdin, process.stdout
        for path in paths:
            try:
                given.write(f"{objects[path]}\n".encode())
                given.flush()
            except BrokenPipeError:
                raise SourceError("git ended before all files were read. Try again.") from None
            header = output.readline().split()
            if len(header) != 3 or header[1] != b"blob" or int(header[2]) > MAX_FILE_BYTES:  # noqa: PLR2004 - its parts
                raise SourceError(f"The repository does not hold the content of {quote_path(path)}.")
            content = output.read(int(header[2]))
            output.read(1)
            yield path, content


def _fetch(origin: Origin, repository: Path, deadline: float) -> str:
    """Fetch what was asked for and return the commit it stands for."""
    url, ref = origin.location, origin.ref
    fetch = ["fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head"]
    target = "refs/deepskills/target"
    try:
        # `--`: neither URL nor ref can be read as an option.
        _git([*fetch, "--depth=1", "--", url, f"+{ref or 'HEAD'}:{target}"], repository, deadline, origin)
    except SourceError:
        if ref is None or not _may_be_commit(ref):
            raise
        # Not every server gives single commits, and none finds a short id: look in everything it has.
        everything = ["+refs/heads/*:refs/all/heads/*", "+refs/tags/*:refs/all/tags/*"]
        _git([*fetch, "--", url, *everything], repository, deadline, origin)
        target = ref
    try:
        parse = ["rev-parse", "--verify", "--quiet", "--end-of-options", f"{target}^{{commit}}"]
        commit = _git(parse, repository, deadline)
    except SourceError:
        raise SourceError(f"{strip_credentials(url)} has no commit {quote_path(ref or 'HEAD')}.") from None
    return commit.strip()


def _may_be_commit(ref: str) -> bool:
    return is_commit(ref) or (len(ref) >= 7 and set(ref) <= set("0123456789abcdef"))  # noqa: PLR2004 - git's short ids


def make_environment() -> dict[str, str]:
    """Return the user's environment without what would make git act on another repository, or ask."""
    # `GIT_DIR` and its like would point git at the repository that this command may be run in.
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name.startswith(_KEPT)},
        "GIT_ALLOW_PROTOCOL": ":".join(TRANSPORTS),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "LC_ALL": "C",
    }


_KEPT = ("GIT_SSH", "GIT_ASKPASS", "GIT_SSL_CAINFO", "GIT_SSL_NO_VERIFY", "GIT_PROXY_COMMAND", "GIT_CONFIG_")
"""How variables begin that the user set to reach servers."""


class _Process(subprocess.Popen[bytes]):
    """A git that talks by pipes."""

    stdin: IO[bytes]
    stdout: IO[bytes]


@contextmanager
def _run(arguments: Sequence[str], directory: Path) -> Iterator[_Process]:
    """Start git, and end it with all it started, such as a remote shell."""
    # In a file, which counts as part of what was fetched: a server can have git say more than memory holds.
    with (directory / _SAID).open("wb") as said:
        process = _Process(
            ["git", *(word for setting in _OVERRIDES for word in ("-c", setting)), *arguments],
            cwd=directory,
            env=make_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            try:
                # The whole group: git starts ssh and helpers of its own.
                os.killpg(process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            with suppress(BrokenPipeError):
                stream.close()


def _git(arguments: Sequence[str], directory: Path, deadline: float, origin: Origin | None = None) -> str:
    """Run git to its end and return what it printed; one that is too slow or fetches too much is stopped."""
    where = strip_credentials(origin.location) if origin is not None else "git"
    with _run(arguments, directory) as process:
        while True:
            try:
                out = process.communicate(timeout=POLL_SECONDS)[0]
                break
            except subprocess.TimeoutExpired:
                # The size of a fetch is not known before, so its directory is watched while it grows.
                if _size(directory) > MAX_REPOSITORY_BYTES:
                    raise SourceError(
                        f"The repository is larger than {MAX_REPOSITORY_BYTES:,} bytes. It was not fetched."
                    ) from None
                if time.monotonic() > deadline:
                    raise SourceError(
                        f"{where} did not answer in time. Try again, or wait longer with --timeout SECONDS."
                    ) from None
    if process.returncode != 0:
        with (directory / _SAID).open("rb") as file:
            said = file.read(MAX_HEADER_BYTES).decode("utf-8", "replace")
        # It repeats the URL, with its credentials.
        words = said.replace(origin.location, where) if origin is not None else said
        raise SourceError(f"git could not fetch {where}: {' '.join(words.split())[:MAX_SAID] or 'it gave no reason'}")
    return out.decode("utf-8", "replace")


def _size(directory: Path) -> int:
    total = 0
    for root, _directories, files in os.walk(directory):
        for name in files:
            # Git removes files while we look.
            with suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_size  # noqa: PTH118 - walked often
    return total


def _records(output: IO[bytes]) -> Iterator[bytes]:
    """Yield what stands between zero bytes."""
    rest = b""
    while chunk := output.read(65_536):
        *whole, rest = (rest + chunk).split(b"\0")
        yield from whole
        # One name as long as a clone may be would be copied again with each chunk.
        if len(rest) > MAX_HEADER_BYTES:
            raise SourceError(f"The repository has a name of over {MAX_HEADER_BYTES:,} bytes. It was not fetched.")
    if rest:
        yield rest
