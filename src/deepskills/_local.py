"""Where the files of a local backend really lie. The one place that looks at the file system beside a backend."""

import os
from collections.abc import Iterable
from pathlib import Path

from deepagents.backends import CompositeBackend, FilesystemBackend


def real_paths(backend: object, paths: Iterable[str]) -> dict[str, str]:
    """Return each path with all links resolved; paths of backends that are no local file system are left out."""
    found: dict[str, str] = {}
    for path in paths:
        local = _local_path(backend, path)
        if local is not None:
            found[path] = os.path.realpath(local)
    return found


def _local_path(backend: object, path: str) -> Path | None:
    if isinstance(backend, CompositeBackend):
        for prefix, routed in backend.sorted_routes:
            root = prefix.rstrip("/")
            if path == root or path.startswith(f"{root}/"):
                return _local_path(routed, path[len(root) :] or "/")
        return _local_path(backend.default, path)
    if not isinstance(backend, FilesystemBackend):
        return None
    if backend.virtual_mode:
        return backend.cwd / path.lstrip("/")
    return backend.cwd / path
