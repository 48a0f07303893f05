"""A plan: many files in one batch, so that a file that breaks or hangs its batch costs no other."""

from collections.abc import Iterator, Mapping, Sequence

from deepskills._backend.calls import Failed, File, Files, Plan, ReadFiles, Reply
from deepskills._backend.drivers import MAX_CALLS_AT_ONCE
from deepskills._backend.local import too_large
from deepskills._types import MAX_SKILL_FILE_BYTES

MAX_FAILED_BATCHES = 64
"""How many failing batches `read_files` splits before it gives up on the rest."""

MAX_WAITS = 8
"""How many times `read_files` waits for the whole time limit before it gives up on batches that are late."""

_MIN_PARTS = 4
"""How many parts a late batch is split into at least."""


def read_files(
    paths: Sequence[str], sizes: Mapping[str, int] | None = None, max_bytes: int = MAX_SKILL_FILE_BYTES
) -> Plan[dict[str, File]]:
    """Read `paths` in one batch; a batch that fails is split, so that one bad file does not cost the others.

    A batch that fails is halved. One that is late is split into many parts, which are read at the same time: one file
    that hangs among thousands is alone after a few time limits. When all parts are late, the backend hangs, not a file.

    Args:
        paths: The files.
        sizes: Sizes that a listing gave; what is too large by them is not requested.
        max_bytes: Largest file that is read.
    """
    wanted = tuple(dict.fromkeys(paths))
    known = {path: size for path in wanted if (size := (sizes or {}).get(path)) is not None and size > max_bytes}
    found = {path: too_large(path, size, max_bytes) for path, size in known.items()}
    batches = [tuple(path for path in wanted if path not in known)] if len(known) < len(wanted) else []
    failures = waits = 0
    while batches:
        replies = yield tuple(ReadFiles(batch, max_bytes) for batch in batches)
        late = [_is_late(reply) for reply in replies]
        waits += sum(any(wave) for wave in _waves(late))
        hangs = waits >= MAX_WAITS or (len(batches) > 1 and all(late))
        parts = max(_MIN_PARTS, MAX_CALLS_AT_ONCE // max(1, sum(late)))
        smaller: list[tuple[str, ...]] = []
        for batch, reply, is_late in zip(batches, replies, late, strict=True):
            if isinstance(reply, Files):
                found.update((file.path, file) for file in reply.files)
                continue
            failures += not is_late
            if len(batch) == 1 or (hangs if is_late else failures > MAX_FAILED_BATCHES):
                reason = reply.reason if isinstance(reply, Failed) else "the backend gave no files"
                found.update((path, File(path, error=reason)) for path in batch)
            else:
                smaller += _split(batch, parts if is_late else 2)
        batches = smaller
    return found


def _is_late(reply: Reply) -> bool:
    return isinstance(reply, Failed) and reply.timed_out


def _waves(late: Sequence[bool]) -> Iterator[Sequence[bool]]:
    return (late[start : start + MAX_CALLS_AT_ONCE] for start in range(0, len(late), MAX_CALLS_AT_ONCE))


def _split(batch: tuple[str, ...], parts: int) -> list[tuple[str, ...]]:
    size = -(-len(batch) // parts)
    return [batch[start : start + size] for start in range(0, len(batch), size)]
