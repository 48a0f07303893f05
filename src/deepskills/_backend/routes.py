"""Which backend serves a path behind those that only route, and what a backend can do. Calls nothing."""

from collections.abc import Iterable

from deepagents.backends import BackendProtocol, CompositeBackend
from deepagents.backends.protocol import SandboxBackendProtocol

_BORROWED = "deepagents."
"""Modules whose async methods only wait for a thread that runs the sync one."""


def is_backend(value: object) -> bool:
    """Whether `value` can be asked for files, sync or async; a class or a function cannot."""
    if isinstance(value, BackendProtocol):
        return True
    if isinstance(value, type):
        return False
    return any(all(hasattr(value, name) for name in names) for names in (_SYNC, _ASYNC))


_SYNC = ("ls", "download_files")
_ASYNC = ("als", "adownload_files")


def routed(backend: object, path: str) -> tuple[object, str]:
    """Return the backend that serves `path`, and the path as that backend knows it."""
    if not isinstance(backend, CompositeBackend):
        return backend, path
    for prefix, part in backend.sorted_routes:
        root = prefix.rstrip("/")
        if path == root or path.startswith(f"{root}/"):
            return routed(part, path[len(root) :] or "/")
    return routed(backend.default, path)


def routed_parts(backend: object, paths: Iterable[str]) -> list[object]:
    """Return the backends that really serve `paths`, behind however many that only route."""
    if not isinstance(backend, CompositeBackend):
        return [backend]
    return list({id(part): part for part, _path in (routed(backend, path) for path in paths)}.values())


def shell_of(backend: object) -> SandboxBackendProtocol | None:
    """Return the backend that runs commands: a composite's is its default; `None` if there is none."""
    while isinstance(backend, CompositeBackend):
        backend = backend.default
    return backend if isinstance(backend, SandboxBackendProtocol) else None


def can_execute(backend: object) -> bool:
    """Whether a backend runs shell commands."""
    return shell_of(backend) is not None


def has_own(part: object, method: str) -> bool:
    """Whether a backend implements a method itself; the protocol's own methods raise, or call their sync twin."""
    own = getattr(type(part), method, None) or getattr(part, method, None)
    return own is not None and own is not getattr(BackendProtocol, method, None)


def is_natively_async(part: object, method: str) -> bool:
    """Whether an async method does its own work on the event loop; deepagents' own wait for a thread."""
    return has_own(part, method) and not getattr(getattr(type(part), method, None), "__module__", _BORROWED).startswith(
        _BORROWED
    )
