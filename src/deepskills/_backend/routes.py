"""Which backend serves a path behind those that only route, and what a backend can do. Calls nothing."""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeGuard

from deepskills._backend.frameworks import is_instance_of

if TYPE_CHECKING:
    from deepagents.backends import CompositeBackend
    from deepagents.backends.protocol import SandboxBackendProtocol

_BACKENDS = "deepagents.backends"
_PROTOCOL = "deepagents.backends.protocol"

_BORROWED = "deepagents."
"""Modules whose async methods only wait for a thread that runs the sync one."""


def is_backend(value: object) -> bool:
    """Whether `value` can be asked for files, sync or async; a class or a function cannot."""
    if is_instance_of(value, _PROTOCOL, "BackendProtocol"):
        return True
    if isinstance(value, type):
        return False
    return any(all(hasattr(value, name) for name in names) for names in (_SYNC, _ASYNC))


_SYNC = ("ls", "download_files")
_ASYNC = ("als", "adownload_files")


def is_composite(backend: object) -> "TypeGuard[CompositeBackend]":
    """Whether a backend only routes to others."""
    return is_instance_of(backend, _BACKENDS, "CompositeBackend")


def routed(backend: object, path: str) -> tuple[object, str]:
    """Return the backend that serves `path`, and the path as that backend knows it."""
    if not is_composite(backend):
        return backend, path
    for prefix, part in backend.sorted_routes:
        root = prefix.rstrip("/")
        if path == root or path.startswith(f"{root}/"):
            return routed(part, path[len(root) :] or "/")
    return routed(backend.default, path)


def routed_parts(backend: object, paths: Iterable[str]) -> list[object]:
    """Return the backends that really serve `paths`, behind however many that only route."""
    if not is_composite(backend):
        return [backend]
    return list({id(part): part for part, _path in (routed(backend, path) for path in paths)}.values())


def shell_of(backend: Any) -> "SandboxBackendProtocol | None":  # noqa: ANN401 - whatever was passed
    """Return the backend that runs commands: a composite's is its default; `None` if there is none."""
    while is_composite(backend):
        backend = backend.default
    return backend if is_instance_of(backend, _PROTOCOL, "SandboxBackendProtocol") else None


def can_execute(backend: object) -> bool:
    """Whether a backend runs shell commands."""
    return shell_of(backend) is not None


def has_own(part: object, method: str) -> bool:
    """Whether a backend implements a method itself; the protocol's own methods raise, or call their sync twin."""
    own = getattr(type(part), method, None) or getattr(part, method, None)
    return own is not None and own is not _of_protocol(method)


def _of_protocol(method: str) -> object:
    """Return the protocol's own method, if the protocol is imported at all."""
    return getattr(getattr(sys.modules.get(_PROTOCOL), "BackendProtocol", None), method, None)


def is_natively_async(part: object, method: str) -> bool:
    """Whether an async method does its own work on the event loop; deepagents' own wait for a thread."""
    return has_own(part, method) and not getattr(getattr(type(part), method, None), "__module__", _BORROWED).startswith(
        _BORROWED
    )
