"""Where the files of a local backend really lie. The one place that looks at the file system beside a backend."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from deepskills._backend.frameworks import is_instance_of

if TYPE_CHECKING:
    from deepagents.backends import CompositeBackend, FilesystemBackend


class PathsOfThisMachine:
    """Marks a backend whose paths are those of the local file system, as they stand."""


def _is_filesystem(backend: object) -> "TypeGuard[FilesystemBackend]":
    return is_instance_of(backend, "deepagents.backends", "FilesystemBackend")


def _is_composite(backend: object) -> "TypeGuard[CompositeBackend]":
    return is_instance_of(backend, "deepagents.backends", "CompositeBackend")


def real_paths(backend: object, paths: Iterable[str]) -> dict[str, str]:
    """Return each path with all links resolved; paths of backends that are no local file system are left out."""
    found: dict[str, str] = {}
    for path in paths:
        local = _local_path(backend, path)
        if local is not None:
            found[path] = os.path.realpath(local)
    return found


def routed_parts(backend: object, paths: Iterable[str]) -> list[object]:
    """Return the backends that really serve `paths`, behind however many that only route."""
    return list({id(part): part for part, _path in (_routed(backend, path) for path in paths)}.values())


def _local_path(backend: object, path: str) -> Path | None:
    part, own_path = _routed(backend, path)
    if isinstance(part, PathsOfThisMachine):
        return Path(own_path)
    if not _is_filesystem(part):
        return None
    return part.cwd / (own_path.lstrip("/") if part.virtual_mode else own_path)


def _routed(backend: object, path: str) -> tuple[object, str]:
    """Return the backend that serves `path`, and the path as that backend knows it."""
    if not _is_composite(backend):
        return backend, path
    for prefix, part in backend.sorted_routes:
        root = prefix.rstrip("/")
        if path == root or path.startswith(f"{root}/"):
            return _routed(part, path[len(root) :] or "/")
    return _routed(backend.default, path)
