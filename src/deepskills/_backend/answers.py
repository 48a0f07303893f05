"""What backends answer, whatever it is, as replies: each file its own content, each listing sorted. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any

from deepskills._backend.calls import Entry, Failed, File, Files, Listing, ReadFiles, Reply, WriteFiles, Written
from deepskills._backend.routes import has_own, routed_parts

_NO_CONTENT = "file_not_found: the backend gave no content and no error"
_NO_ANSWER = "the backend gave no answer for this file"
_BYTES = (bytes, bytearray, memoryview)


def listing(answer: Any) -> Reply:  # noqa: ANN401 - whatever a backend answered
    """Return a backend's answer to `ls`, sorted; what is not an entry is passed over."""
    error = getattr(answer, "error", None)
    items = answer if _is_sequence(answer) else getattr(answer, "entries", None)
    if items is None and (error or not hasattr(answer, "entries")):
        return Failed(str(error) if error else f"the backend answered with {type(answer).__name__}")
    found: dict[str, Entry] = {}
    for item in items or ():
        path = item.get("path") if isinstance(item, dict) else None
        if isinstance(path, str) and path:
            tidy = path.replace("\\", "/").rstrip("/") or "/"
            size = item.get("size")
            found[tidy] = Entry(
                tidy, bool(item.get("is_dir")) or path.endswith("/"), size if isinstance(size, int) else None
            )
    return Listing(tuple(found[path] for path in sorted(found)), str(error) if error else None)


def to_files(call: ReadFiles, answer: Any) -> Reply:  # noqa: ANN401 - whatever a backend answered
    """Return a backend's answer to `download_files` in the order of the call, whatever its own order and length.

    A backend may name files differently than the call did; then their position counts, if there are as many.
    """
    if not _is_sequence(answer):
        return Failed(f"the backend answered with {type(answer).__name__}")
    return Files(tuple(_file(path, item) for path, item in _matched(call.paths, answer)))


def to_written(call: WriteFiles, answer: Any) -> Reply:  # noqa: ANN401 - whatever a backend answered
    """Return a backend's answer to `upload_files`: why files were not written, by path."""
    if not _is_sequence(answer):
        return Failed(f"the backend answered with {type(answer).__name__}")
    errors: dict[str, str] = {}
    for path, item in _matched([path for path, _content in call.files], answer):
        error = getattr(item, "error", None) if hasattr(item, "error") else _NO_ANSWER
        if error:
            errors[path] = str(error)
    return Written(errors)


def _matched(paths: Sequence[str], answer: Sequence[Any]) -> Iterable[tuple[str, Any]]:
    by_path = {getattr(item, "path", None): item for item in answer}
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
    return File(path, error=_NO_CONTENT if content is None else f"the backend gave {type(content).__name__}, not bytes")


def _is_sequence(answer: object) -> bool:
    return isinstance(answer, Sequence) and not isinstance(answer, str | bytes | bytearray | memoryview)


def only_async(backend: object, paths: Iterable[str], method: str) -> str | None:
    """Return why a sync method cannot be called: the backend, or a part of it, has the async one alone."""
    for part in routed_parts(backend, paths):
        if not has_own(part, method) and has_own(part, f"a{method}"):
            return (
                f"the backend {type(part).__name__} has no `{method}`, only `a{method}`: "
                "use the async methods, such as `ainvoke`"
            )
    return None


def describe(error: BaseException) -> str:
    """Return what an exception says, as the reason of a failure."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, KeyError) and error.args == ("files",):
        return f"{text} (StateBackend needs FilesystemMiddleware in the same agent)"
    return text
