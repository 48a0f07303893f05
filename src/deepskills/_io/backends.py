"""Everything the drivers know of backends: which one serves a path, what it can do, and what its answers mean.

Frameworks are recognized without importing them. A class of a module that nobody has imported has no instances, so it
is enough to look at what is imported. The command line, which needs no framework, then starts without the second that
importing them takes.

Backends are written by many people, and answer accordingly: files in another order, under other spellings, too few or
too many, an error in place of a list. The functions at the end turn every answer into a reply, or into `Failed`.

Looking at the disk of a local backend, without opening a file, is the one thing done here beside a backend.
"""

import os
import stat
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard

from deepskills._io.plan import (
    Entry,
    Failed,
    File,
    Listing,
    ReadFiles,
    Route,
    WriteFiles,
    too_large,
)
from deepskills._types import LoadRecord, SkillProblem

if TYPE_CHECKING:
    from deepagents.backends import CompositeBackend
    from deepagents.backends.protocol import SandboxBackendProtocol


def is_instance_of(value: object, module: str, name: str) -> bool:
    """Whether `value` is an instance of a class of a framework's module, imported or not."""
    known = getattr(sys.modules.get(module), name, None)
    return known is not None and isinstance(value, known)


def accepts_timeout(shell: object) -> bool:
    """Whether a backend's `execute` takes a timeout; older ones do not."""
    protocol = sys.modules.get("deepagents.backends.protocol")
    return protocol is not None and bool(protocol.execute_accepts_timeout(type(shell)))


def passes_through(error: BaseException) -> bool:
    """Whether an exception is LangGraph's own, such as an interrupt: nobody but LangGraph may catch it."""
    return is_instance_of(error, "langgraph.errors", "GraphBubbleUp")


# Which backend serves a path, behind those that only route, and what it can do.


_BACKENDS = "deepagents.backends"
_PROTOCOL = "deepagents.backends.protocol"

_BORROWED = "deepagents."
"""Modules whose async methods only wait for a thread that runs the sync one."""


def is_backend(value: object) -> bool:
    """Whether `value` can be asked for files, sync or async; a class or a function cannot."""
    if is_instance_of(value, _PROTOCOL, "BackendProtocol"):
        return True
    # A class has the methods too; passing one in place of an instance is a usual slip.
    if isinstance(value, type):
        return False
    return has_file_methods(value)


def has_file_methods(value: object) -> bool:
    """Whether an object, or the instances of a class, can be asked for files."""
    # By methods: applications bring backends of their own that subclass nothing.
    return any(all(hasattr(value, name) for name in names) for names in (_SYNC, _ASYNC))


_SYNC = ("ls", "download_files")
_ASYNC = ("als", "adownload_files")


def is_composite(backend: object) -> "TypeGuard[CompositeBackend]":
    """Whether a backend only routes to others."""
    return is_instance_of(backend, _BACKENDS, "CompositeBackend")


def find_route(backend: object, path: str, mount: str = "") -> Route:
    """Return the backend that serves `path`; `mount` is what stands before it already."""
    if not is_composite(backend):
        return Route(backend, path, mount)
    # Longest prefix first, as deepagents sorts them, so that the innermost mount wins.
    for prefix, part in backend.sorted_routes:
        root = prefix.rstrip("/")
        if path == root or path.startswith(f"{root}/"):
            return find_route(part, path[len(root) :] or "/", mount + root)
    return find_route(backend.default, path, mount)


def find_parts(backend: object) -> Iterator[object]:
    """Yield the backends behind however many that only route."""
    if is_composite(backend):
        for part in (backend.default, *backend.routes.values()):
            yield from find_parts(part)
    else:
        yield backend


def find_routed_parts(backend: object, paths: Iterable[str]) -> list[object]:
    """Return the backends that really serve `paths`, behind however many that only route."""
    if not is_composite(backend):
        return [backend]
    return list({id(part): part for part in (find_route(backend, path).backend for path in paths)}.values())


def shell_of(backend: Any) -> "SandboxBackendProtocol | None":  # noqa: ANN401 - whatever was passed
    """Return the backend that runs commands: a composite's is its default; `None` if there is none."""
    # deepagents' composite executes by its default alone.
    while is_composite(backend):
        backend = backend.default
    return backend if is_instance_of(backend, _PROTOCOL, "SandboxBackendProtocol") else None


def can_execute(backend: object) -> bool:
    """Whether a backend runs shell commands."""
    return shell_of(backend) is not None


def has_own(part: object, method: str) -> bool:
    """Whether a backend implements a method itself; the protocol's own methods raise, or call their sync twin."""
    # By the class first: an instance's attribute may be a bound copy, which is never the protocol's own.
    own = getattr(type(part), method, None) or getattr(part, method, None)
    return own is not None and own is not _of_protocol(method)


def refuses_writes(backend: object, path: str) -> bool:
    """Whether the backend that serves `path` is one of our read-only ones, or has no way to write."""
    part = find_route(backend, path).backend
    return _is_read_only(part) or (not has_own(part, "write") and not has_own(part, "awrite"))


def _is_read_only(part: object) -> bool:
    return is_instance_of(part, "deepskills._io.readonly", "ReadOnlyBackend")


def _of_protocol(method: str) -> object:
    """Return the protocol's own method, if the protocol is imported at all."""
    return getattr(getattr(sys.modules.get(_PROTOCOL), "BackendProtocol", None), method, None)


def is_natively_async(part: object, method: str) -> bool:
    """Whether an async method does its own work on the event loop; deepagents' own wait for a thread."""
    return has_own(part, method) and not getattr(getattr(type(part), method, None), "__module__", _BORROWED).startswith(
        _BORROWED
    )


# The disk of a local backend, looked at without opening a file.


if TYPE_CHECKING:
    from deepagents.backends import FilesystemBackend


class PathsOfThisMachine:
    """Marks a backend whose paths are those of the local file system, as they stand."""


def _is_filesystem(backend: object) -> "TypeGuard[FilesystemBackend]":
    return is_instance_of(backend, "deepagents.backends", "FilesystemBackend")


def is_local(backend: object, paths: Iterable[str]) -> bool:
    """Whether any of `paths` lies on a local file system."""
    return any(
        _is_filesystem(part) or isinstance(part, PathsOfThisMachine) for part in find_routed_parts(backend, paths)
    )


def real_paths(backend: object, paths: Iterable[str]) -> dict[str, str]:
    """Return each path with all links resolved; paths of backends that are not local file systems are left out."""
    return {path: os.path.realpath(local) for path, local in _local_paths(backend, paths)}


def existing_paths(backend: object, paths: Iterable[str]) -> dict[str, bool]:
    """Return whether something lies at each path; paths of backends that are not local file systems are left out."""
    # At most of the paths nothing lies, and to ask for access costs half of the exception of another call.
    return {path: "\x00" not in local and os.access(local, os.F_OK) for path, local in _local_paths(backend, paths)}


def _local_paths(backend: object, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    # By text, not by Path objects: one for each of 10,000 files costs more than the call.
    local_path = _paths_below(backend) if _is_filesystem(backend) else partial(_local_path, backend)
    return ((path, local) for path in paths if (local := local_path(path)) is not None)


def unfit_files(backend: object, paths: Iterable[str], max_bytes: int) -> dict[str, File]:
    """Return the files that must not be opened: FIFOs, sockets and devices, which may hang, and what is too large."""
    found: dict[str, File] = {}
    for path, local in _local_paths(backend, paths):
        try:
            seen = os.stat(local)  # noqa: PTH116
        except (OSError, ValueError):
            # The backend has its own words for what is missing or denied.
            continue
        if stat.S_ISREG(seen.st_mode):
            if seen.st_size > max_bytes:
                found[path] = too_large(path, seen.st_size, max_bytes)
        elif not stat.S_ISDIR(seen.st_mode):  # for a directory backends have an error of their own
            found[path] = File(path, error="it is not a regular file", unfit="not-a-file")
    return found


def _local_path(backend: object, path: str) -> str | None:
    part, own_path, _ = find_route(backend, path)
    if isinstance(part, PathsOfThisMachine):
        return own_path
    if not _is_filesystem(part):
        return None
    return _paths_below(part)(own_path)


def _paths_below(backend: "FilesystemBackend") -> Callable[[str], str]:
    """Return what tells where a backend's paths lie on the disk."""
    root = f"{os.fspath(backend.cwd).rstrip('/')}/"
    if backend.virtual_mode:
        return lambda path: root + path.lstrip("/")
    return lambda path: path if path.startswith("/") else root + path


def real_root(backend: object) -> str | None:
    """Return the real directory at which relative paths start; `None` where paths are not those of a disk."""
    part = find_route(backend, "/").backend
    return os.fspath(part.cwd) if _is_filesystem(part) and not part.virtual_mode else None


def shell_paths(backend: object, paths: Iterable[str]) -> dict[str, str]:
    """Return each path as a local shell knows it, where file tools know it by another; the rest is left out."""
    shell = shell_of(backend)
    if not _is_filesystem(shell):
        return {}
    found = {path: _local_path(backend, path) for path in paths if find_route(backend, path).backend is shell}
    return {path: local for path, local in found.items() if local is not None and local != path}


def with_virtual_hint(found: SkillProblem, backend: object) -> SkillProblem:
    """Return a problem; that of a missing source says how a backend takes paths that are not those of the disk."""
    part, own_path, _ = find_route(backend, found["path"])
    if found["code"] != "source-missing" or not _is_filesystem(part) or not part.virtual_mode:
        return found
    root = os.fspath(part.cwd).rstrip("/")
    # The whole path on the disk is the usual slip, and then the right one is known.
    instead = f"`{own_path[len(root) :] or '/'}`" if f"{own_path}/".startswith(f"{root}/") else "the path below it"
    hint = f"The backend has `virtual_mode` on, so its paths start at its `root_dir`: write {instead}, or turn it off."
    return {**found, "message": f"{found['message']} {hint}"}


# Two backends beside each other, such as that of the skills and that of the agent's file tools.


def shows_other_files(backend: object, other: object, path: str) -> bool:
    """Whether two backends surely hold different files at a path; of backends of unknown kinds nothing is sure."""
    (part, own_path, _), (other_part, other_path, _) = find_route(backend, path), find_route(other, path)
    if part is other_part:
        return os.path.normpath(own_path) != os.path.normpath(other_path)
    kind, other_kind = _kind(part), _kind(other_part)
    if kind is None or other_kind is None:
        return False
    if kind == other_kind == "disk":
        # Without resolving links, which would touch the disk in every model call; roots are resolved already.
        return _tidy(_local_path(part, own_path)) != _tidy(_local_path(other_part, other_path))
    return kind != other_kind


def _kind(part: object) -> str | None:
    """Return where a backend keeps its files, if it is of a kind that is known."""
    if _is_filesystem(part) or isinstance(part, PathsOfThisMachine):
        return "disk"
    for name in ("StateBackend", "StoreBackend"):
        if is_instance_of(part, _BACKENDS, name):
            return name
    return "read-only" if _is_read_only(part) else None


def _tidy(path: str | None) -> str:
    return os.path.normpath(path or "")


# Answers of backends as replies: each file with its own content, each listing sorted.


_NO_CONTENT = "file_not_found: the backend gave no content and no error"
_NO_ANSWER = "the backend gave no answer for this file"
_BYTES = (bytes, bytearray, memoryview)

MAX_REASON_LENGTH = 2_000
"""How much is kept of what an exception says: it goes into state, logs and messages."""


def listing(answer: Any) -> Listing | Failed:  # noqa: ANN401 - whatever a backend answered
    """Return a backend's answer to `ls` or `glob`, sorted; what is not an entry is passed over."""
    error = getattr(answer, "error", None)
    name = "entries" if hasattr(answer, "entries") else "matches"
    items = answer if _is_sequence(answer) else getattr(answer, name, None)
    if items is None and (error or not hasattr(answer, name)):
        return Failed(str(error) if error else f"the backend answered with {type(answer).__name__}")
    found: dict[str, Entry] = {}
    for item in items or ():
        path = item.get("path") if isinstance(item, dict) else None
        if isinstance(path, str) and path:
            # Windows paths, and directories with a slash at the end, are spelled as everywhere else.
            tidy = path.replace("\\", "/").rstrip("/") or "/"
            size = item.get("size")
            # By path, so that an entry which a backend lists twice counts once.
            found[tidy] = Entry(
                tidy, bool(item.get("is_dir")) or path.endswith("/"), size if isinstance(size, int) else None
            )
    return Listing(tuple(found[path] for path in sorted(found)), str(error) if error else None)


def to_files(call: ReadFiles, answer: Any) -> tuple[File, ...] | Failed:  # noqa: ANN401 - whatever a backend answered
    """Return a backend's answer to `download_files` in the order of the call, whatever its own order and length.

    A backend may name files differently than the call did; then their position counts, if there are as many.
    """
    if not _is_sequence(answer):
        return Failed(f"the backend answered with {type(answer).__name__}")
    return tuple(_file(path, item) for path, item in _match(call.paths, answer))


def to_written(call: WriteFiles, answer: Any) -> dict[str, str] | Failed:  # noqa: ANN401 - whatever a backend answered
    """Return a backend's answer to `upload_files`: why files were not written, by path."""
    if not _is_sequence(answer):
        return Failed(f"the backend answered with {type(answer).__name__}")
    errors: dict[str, str] = {}
    for path, item in _match([path for path, _content in call.files], answer):
        error = getattr(item, "error", None) if hasattr(item, "error") else _NO_ANSWER
        if error:
            errors[path] = str(error)
    return errors


def _match(paths: Sequence[str], answer: Sequence[Any]) -> Iterable[tuple[str, Any]]:
    # The usual answer: each file in its place.
    if [getattr(item, "path", None) for item in answer] == [*paths]:
        return zip(paths, answer, strict=True)
    by_path = {getattr(item, "path", None): item for item in answer}
    # A position counts only in an answer of the right length, and never for an item that names another file of the
    # call.
    by_place = dict(zip(paths, answer, strict=True)) if len(answer) == len(paths) else {}
    others = {path: item for path, item in by_place.items() if getattr(item, "path", None) not in by_place}
    return ((path, by_path.get(path, others.get(path))) for path in paths)


def _file(path: str, item: object) -> File:
    if not hasattr(item, "content"):
        return File(path, error=_NO_ANSWER)
    content, error = item.content, getattr(item, "error", None)
    if error:
        return File(path, error=str(error))
    if isinstance(content, _BYTES):
        return File(path, bytes(content))
    # Neither content nor an error: deepagents' composite says so of a file that its part did not answer for.
    return File(path, error=_NO_CONTENT if content is None else f"the backend gave {type(content).__name__}, not bytes")


def _is_sequence(answer: object) -> bool:
    return isinstance(answer, Sequence) and not isinstance(answer, str | bytes | bytearray | memoryview)


def only_async(backend: object, paths: Iterable[str], method: str) -> str | None:
    """Return why a sync method cannot be called: the backend, or a part of it, has only the async one."""
    for part in find_routed_parts(backend, paths):
        if not has_own(part, method) and has_own(part, f"a{method}"):
            return (
                f"the backend {type(part).__name__} has no `{method}`, only `a{method}`: "
                "use the async methods, such as `ainvoke`"
            )
    return None


def describe(error: BaseException) -> str:
    """Return what an exception says, as the reason of a failure; bounded, for a stranger may have worded it."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - an exception of a stranger's class; its name says something at least
        said = ""
    text = f"{type(error).__name__}: {said[:MAX_REASON_LENGTH]}" if said else type(error).__name__
    if isinstance(error, KeyError) and error.args == ("files",):
        return (
            f"{text} (StateBackend needs FilesystemMiddleware in the same agent: put "
            "`FilesystemMiddleware(backend=...)` before the skills, or use another backend)"
        )
    return text


# --------------------------------------------------------------------------------------------------------------------
# Calls to backends that serve skills of their own, mounted behind others or not.
#
# `CompositeBackend` passes on only what deepagents' protocol knows, so the part that serves a path is found here, and
# the paths in its answers are put back below the mount.
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CallInProgress:
    """A tool call of an agent with skills, as backends that differ by user need to know it."""

    runtime: Any
    """What functions of users are given."""

    loaded: Sequence[str] = ()
    """The skills that are loaded."""

    served: Sequence[LoadRecord] = ()
    """The loads of skills that came from elsewhere: their files are read only while they stand here."""

    hidden: Callable[[], frozenset[str]] = frozenset
    """Works out which skills the model may not see."""

    ahidden: Callable[[], Awaitable[frozenset[str]]] | None = None
    """The same without blocking."""


call_in_progress: ContextVar[CallInProgress | None] = ContextVar("deepskills_call_in_progress", default=None)
"""The tool call that runs; `None` outside of one.

A context variable because there is no other way: the file tools of deepagents call a backend with paths alone, and a
backend that is mounted for all users has to know whose run it answers, and which skills that run has loaded, which
LangGraph's own context does not tell. It would be unnecessary if backends were given the runtime of the tool.
"""
