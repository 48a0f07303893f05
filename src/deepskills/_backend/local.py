"""Looks at the disk of a local backend, without opening a file. The one place that does so beside a backend."""

import os
import stat
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeGuard

from deepskills._backend.calls import File, Nature
from deepskills._backend.frameworks import is_instance_of
from deepskills._backend.routes import routed, routed_parts, shell_of

if TYPE_CHECKING:
    from deepagents.backends import FilesystemBackend


class PathsOfThisMachine:
    """Marks a backend whose paths are those of the local file system, as they stand."""


def _is_filesystem(backend: object) -> "TypeGuard[FilesystemBackend]":
    return is_instance_of(backend, "deepagents.backends", "FilesystemBackend")


def is_local(backend: object, paths: Iterable[str]) -> bool:
    """Whether any of `paths` lies on a local file system."""
    return any(_is_filesystem(part) or isinstance(part, PathsOfThisMachine) for part in routed_parts(backend, paths))


def real_paths(backend: object, paths: Iterable[str]) -> dict[str, str]:
    """Return each path with all links resolved; paths of backends that are not local file systems are left out."""
    found: dict[str, str] = {}
    for path in paths:
        local = _local_path(backend, path)
        if local is not None:
            found[path] = os.path.realpath(local)
    return found


def natures(backend: object, paths: Iterable[str]) -> dict[str, Nature]:
    """Return what lies at each path, links followed; other backends' paths, and what cannot be seen, are left out."""
    return {path: Nature(stat.S_ISREG(seen.st_mode), seen.st_size) for path, seen in _seen(backend, paths)}


def _seen(backend: object, paths: Iterable[str]) -> Iterator[tuple[str, os.stat_result]]:
    local_path = partial(_path_below, backend) if _is_filesystem(backend) else partial(_local_path, backend)
    for path in paths:
        local = local_path(path)
        if local is None:
            continue
        try:
            yield path, os.stat(local)  # noqa: PTH116 - a Path for each of 10,000 files costs more than the call
        except (OSError, ValueError):
            # The backend has its own words for what is missing or denied.
            continue


def unfit_files(backend: object, paths: Iterable[str], max_bytes: int) -> dict[str, File]:
    """Return the files that must not be opened: FIFOs, sockets and devices, which may hang, and what is too large."""
    found: dict[str, File] = {}
    for path, seen in _seen(backend, paths):
        if stat.S_ISREG(seen.st_mode):
            if seen.st_size > max_bytes:
                found[path] = too_large(path, seen.st_size, max_bytes)
        elif not stat.S_ISDIR(seen.st_mode):  # for a directory backends have an error of their own
            found[path] = File(path, error="it is not a regular file", unfit="not-a-file")
    return found


def too_large(path: str, size: int, max_bytes: int) -> File:
    """Return the answer for a file whose size alone says that it is not read."""
    error = f"it is too large: {size:,} bytes, and at most {max_bytes:,} are read"
    return File(path, error=error, unfit="too-large", size=size)


def _local_path(backend: object, path: str) -> str | None:
    part, own_path = routed(backend, path)
    if isinstance(part, PathsOfThisMachine):
        return own_path
    if not _is_filesystem(part):
        return None
    return _path_below(part, own_path)


def _path_below(backend: "FilesystemBackend", path: str) -> str:
    return os.path.join(backend.cwd, path.lstrip("/") if backend.virtual_mode else path)  # noqa: PTH118 - as above


def shell_paths(backend: object, paths: Iterable[str]) -> dict[str, str]:
    """Return each path as a local shell knows it, where that is not as file tools do; others are left out."""
    shell = shell_of(backend)
    if not _is_filesystem(shell):
        return {}
    found = {path: _local_path(backend, path) for path in paths if routed(backend, path)[0] is shell}
    return {path: local for path, local in found.items() if local is not None and local != path}
