"""Vectors of texts: remembered by content, bounded, checked, and compared. Pure.

A vector is kept at length one, so that comparing two is a sum of products. It is known by the model that made it and by
the text it stands for, so that a changed description, or another model, never meets a vector that is not its own.
"""

import base64
import functools
import hashlib
import importlib
import math
import operator
import struct
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

MAX_VECTORS = 65_536
"""How many vectors are remembered."""

MAX_NUMBERS = 40_000_000
"""How many numbers all remembered vectors have together."""

MAX_DIMENSIONS = 65_536
"""Longest vector that is taken for one."""

SHELVES = 256
"""Over how many items of a store vectors are spread."""

MAX_ON_SHELF = 256
"""How many vectors one item of a store holds; the oldest leave."""

_MODEL_FIELDS = ("model", "model_name", "model_id", "deployment", "azure_deployment", "repo_id", "dimensions")
"""Where embeddings say which model they use."""

Vector: TypeAlias = "array[float]"
"""Numbers of single precision, at length one."""


class VectorError(ValueError):
    """What embeddings gave is not a vector for each text."""


def model_identity(embeddings: object) -> str:
    """Return what tells one model from another: the class, and what it says of its model."""
    kind = type(embeddings)
    told = [f"{name}={value}" for name in _MODEL_FIELDS if (value := _plain(embeddings, name)) is not None]
    return " ".join([f"{kind.__module__}.{kind.__qualname__}", *told])


def _plain(embeddings: object, name: str) -> str | int | None:
    try:
        value = getattr(embeddings, name, None)
    except Exception:  # noqa: BLE001 - a property of a user's class may raise anything; it then says nothing
        return None
    return value if isinstance(value, str | int) else None


def vector_key(identity: str, text: str) -> str:
    """Return what a text's vector is known by."""
    content = f"{identity}\x00{text}".encode("utf-8", "replace")
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def checked_vectors(given: Any, count: int) -> list[Vector]:  # noqa: ANN401 - whatever embeddings gave
    """Return vectors at length one.

    Raises:
        VectorError: If there is not one for each text, all of the same length, with finite numbers.
    """
    try:
        rows = [[float(number) for number in row] for row in given]
    except (TypeError, ValueError) as error:
        raise VectorError(f"they gave a {type(given).__name__} that does not hold lists of numbers") from error
    if len(rows) != count:
        raise VectorError(f"they gave {len(rows)} vectors for {count} texts")
    lengths = {len(row) for row in rows}
    if len(lengths) > 1:
        raise VectorError(f"their vectors have different lengths: {', '.join(map(str, sorted(lengths)))}")
    if not all(0 < length <= MAX_DIMENSIONS for length in lengths):
        raise VectorError(f"their vectors have {lengths.pop()} numbers")
    return [_unit(row) for row in rows]


def _unit(row: list[float]) -> Vector:
    size = math.hypot(*row)
    if not math.isfinite(size):
        raise VectorError("a vector holds a number that is not finite")
    return array("f", [number / size for number in row] if size else row)


class VectorMemory:
    """Vectors by key, the latest used; bounded, safe to share by threads."""

    def __init__(self, most: int = MAX_VECTORS, numbers: int = MAX_NUMBERS) -> None:
        self._most = most
        self._numbers = numbers
        self._held = 0
        self._lock = threading.Lock()
        self._vectors: OrderedDict[str, Vector] = OrderedDict()
        self._claimed: set[str] = set()

    def __len__(self) -> int:
        return len(self._vectors)

    def find(self, keys: Iterable[str]) -> dict[str, Vector]:
        """Return the vectors that are remembered."""
        with self._lock:
            found = {key: self._vectors[key] for key in keys if key in self._vectors}
            for key in found:
                self._vectors.move_to_end(key)
        return found

    def keep(self, vectors: Mapping[str, Vector]) -> None:
        """Remember vectors; those that were not used for longest make room."""
        with self._lock:
            for key, vector in vectors.items():
                self._drop(key)
                self._vectors[key] = vector
                self._held += len(vector)
            while self._vectors and (len(self._vectors) > self._most or self._held > self._numbers):
                self._drop(next(iter(self._vectors)))

    def forget(self, keys: Iterable[str]) -> None:
        """Forget vectors, such as those of a model that has changed."""
        with self._lock:
            for key in keys:
                self._drop(key)

    def claim(self, keys: Iterable[str], most: int) -> list[str]:
        """Return up to `most` keys that nobody else is making vectors for, and take them on."""
        with self._lock:
            mine: list[str] = []
            for key in keys:
                if len(mine) == most:
                    break
                if key not in self._claimed and key not in self._vectors:
                    mine.append(key)
            self._claimed.update(mine)
        return mine

    def release(self, keys: Iterable[str]) -> None:
        """Give back what was claimed."""
        with self._lock:
            self._claimed.difference_update(keys)

    def _drop(self, key: str) -> None:
        vector = self._vectors.pop(key, None)
        if vector is not None:
            self._held -= len(vector)


def shelf_of(key: str) -> str:
    """Return the key of the store's item that holds a vector."""
    return f"{int(key[:4], 16) % SHELVES:02x}"


def packed(vector: Vector) -> str:
    """Return a vector as text for a store, at half precision."""
    return base64.b64encode(struct.pack(f"<{len(vector)}e", *vector)).decode()


def unpacked(value: object, wanted: set[str]) -> dict[str, Vector]:
    """Return vectors of a store's item; whatever is not one is passed over, for others may write to a store."""
    held = value.get("vectors") if isinstance(value, Mapping) else None
    found: dict[str, Vector] = {}
    for key, text in held.items() if isinstance(held, Mapping) else ():
        if key not in wanted or not isinstance(text, str) or len(text) > 3 * MAX_DIMENSIONS:
            continue
        try:
            raw = base64.b64decode(text, validate=True)
            numbers = list(struct.unpack(f"<{len(raw) // 2}e", raw))
            [found[key]] = checked_vectors([numbers], 1)
        except (ValueError, struct.error):
            continue
    return found


def shelf_with(value: object, vectors: Mapping[str, Vector]) -> dict[str, Any]:
    """Return a store's item with further vectors on it, the latest last."""
    held = value.get("vectors") if isinstance(value, Mapping) else None
    texts = {k: v for k, v in held.items() if k not in vectors} if isinstance(held, Mapping) else {}
    texts.update((key, packed(vector)) for key, vector in vectors.items())
    return {"vectors": dict(list(texts.items())[-MAX_ON_SHELF:])}


def likeness(vector: Vector, others: Sequence[Vector]) -> list[float]:
    """Return how alike a vector is to each of the others, all of its length; by NumPy where it is installed."""
    numpy = _numpy()
    if numpy is not None and others:
        matrix = numpy.frombuffer(b"".join(map(bytes, others)), dtype="f4").reshape(len(others), len(vector))
        found: list[float] = (matrix @ numpy.frombuffer(bytes(vector), dtype="f4")).tolist()
        return found
    return [sum(map(operator.mul, vector, other)) for other in others]


@functools.cache
def _numpy() -> Any:  # noqa: ANN401 - a module that may be missing
    try:
        return importlib.import_module("numpy")
    except ImportError:
        return None
