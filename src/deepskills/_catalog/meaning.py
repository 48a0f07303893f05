"""Which skills mean what a request means: vectors of a user's embeddings, made once for each content.

Vectors are remembered in memory and, where a store is given, in it; only skills that are new or changed are embedded,
in batches. What fails is returned as a reason, for the caller has another ranking to go by.
"""

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deepskills._catalog.flows import Call, CallFailed, Flow, Pause, Work
from deepskills._catalog.search import Document
from deepskills._catalog.vectors import (
    Vector,
    VectorError,
    VectorMemory,
    checked_vectors,
    likeness,
    model_identity,
    shelf_of,
    shelf_with,
    unpacked,
    vector_key,
)

BATCH = 64
"""How many texts are embedded in one call."""

MAX_EMBEDDED_LENGTH = 2_000
"""How many characters of a text are embedded."""

STORE_NAMESPACE = ("deepskills", "vectors")
"""Where a store keeps vectors, one namespace below it for each model."""

STORE_SECONDS = 10.0
"""How long a store may take to answer."""

MAX_GETS = 16
"""How many items of a store are asked for one by one; for more, it is asked for all."""


@dataclass(frozen=True)
class Order:
    """Names in the order of their meaning, those that stand out; `None` if meaning could not be told."""

    names: list[str] | None
    trouble: str | None = None
    """What went wrong: with the embeddings if there are no names, else with the store."""


class Meaning:
    """Orders skills by the likeness of their meaning to a request's; safe to share by threads."""

    def __init__(self, embeddings: Any, seconds: float) -> None:  # noqa: ANN401 - known by its methods
        self._embeddings = embeddings
        self._seconds = seconds
        self._memory = VectorMemory()

    def order(self, documents: Sequence[Document], request: str, most: int, store: Any) -> Flow[Order]:  # noqa: ANN401
        """Return up to `most` names; where not all skills could be embedded in time, what was is kept for the next."""
        deadline = time.monotonic() + self._seconds
        asked = yield Call(self._embeddings, "embed_query", (request[:MAX_EMBEDDED_LENGTH],), self._seconds)
        if isinstance(asked, CallFailed):
            return Order(None, f"The embeddings failed: {asked.reason}")
        try:
            [target] = checked_vectors([asked], 1)
        except VectorError as error:
            return Order(None, f"The embeddings cannot be used: {error}")
        identity = model_identity(self._embeddings)
        keys: list[str] = yield Work(lambda: [vector_key(identity, _text(document)) for document in documents])
        shelves = _Shelves(store, identity)
        vectors = yield from self._vectors(dict(zip(keys, documents, strict=True)), len(target), shelves, deadline)
        if isinstance(vectors, CallFailed):
            return Order(None, vectors.reason)
        names: list[str] = yield Work(lambda: _nearest(target, [vectors[key] for key in keys], documents, most))
        return Order(names, shelves.trouble)

    def _vectors(
        self, wanted: Mapping[str, Document], length: int, shelves: "_Shelves", deadline: float
    ) -> Flow[dict[str, Vector] | CallFailed]:
        """Return all vectors: remembered, from the store, or embedded now."""
        found: dict[str, Vector] = {}

        def take(given: Mapping[str, Vector]) -> None:
            found.update((key, vector) for key, vector in given.items() if len(vector) == length)

        known = self._memory.find(wanted)
        take(known)
        self._memory.forget(known.keys() - found.keys())  # of a model that was replaced under the same name
        if len(found) < len(wanted):
            kept = yield from shelves.fetch([key for key in wanted if key not in found])
            take(kept)
            self._memory.keep({key: found[key] for key in kept if key in found})
        fresh: dict[str, Vector] = {}
        trouble: CallFailed | None = None
        while len(found) < len(wanted) and trouble is None:
            missing = [key for key in wanted if key not in found]
            claimed = self._memory.claim(missing, BATCH)
            if claimed:
                made = yield from self._embed({key: wanted[key] for key in claimed}, length, deadline)
                if isinstance(made, CallFailed):
                    trouble = made
                else:
                    take(made)
                    fresh.update(made)
            else:  # another ranking is embedding them
                yield Pause()
                take(self._memory.find(missing))
            if len(found) < len(wanted) and found and time.monotonic() > deadline:
                reason = f"{len(found)} of {len(wanted)} skills are embedded so far; further requests embed the others."
                trouble = CallFailed(reason)
        yield from shelves.put(fresh)
        return trouble or found

    def _embed(
        self, documents: Mapping[str, Document], length: int, deadline: float
    ) -> Flow[dict[str, Vector] | CallFailed]:
        left = max(deadline - time.monotonic(), 0.01)
        try:
            texts = [_text(document) for document in documents.values()]
            given = yield Call(self._embeddings, "embed_documents", (texts,), left)
            if isinstance(given, CallFailed):
                return CallFailed(f"The embeddings failed: {given.reason}")
            vectors: list[Vector] = checked_vectors(given, len(texts))
            if len(vectors[0]) != length:
                raise VectorError(f"a request's vector has {length} numbers, a skill's {len(vectors[0])}")  # noqa: TRY301
            made = dict(zip(documents, vectors, strict=True))
            self._memory.keep(made)
        except VectorError as error:
            return CallFailed(f"The embeddings cannot be used: {error}")
        finally:
            self._memory.release(documents)
        return made


class _Shelves:
    """The vectors of one model in a store, if there is one; once it has failed it is left alone."""

    def __init__(self, store: Any, identity: str) -> None:  # noqa: ANN401 - known by its methods
        self._store = store
        self._namespace = (*STORE_NAMESPACE, hashlib.blake2b(identity.encode(), digest_size=16).hexdigest())
        self.trouble: str | None = None

    def fetch(self, keys: Sequence[str]) -> Flow[dict[str, Vector]]:
        """Return the vectors that are there."""
        shelves = sorted({shelf_of(key) for key in keys})
        items: list[Any] = []
        if len(shelves) > MAX_GETS:
            items = (yield from self._ask("search", self._namespace, limit=1_000)) or []
        else:
            for shelf in shelves:
                items.append((yield from self._ask("get", self._namespace, shelf)))
        wanted = set(keys)

        def read() -> dict[str, Vector]:
            held = (unpacked(getattr(item, "value", None), wanted) for item in items)
            return {key: vector for vectors in held for key, vector in vectors.items()}

        found: dict[str, Vector] = yield Work(read)
        return found

    def put(self, vectors: Mapping[str, Vector]) -> Flow[None]:
        """Keep further vectors."""
        by_shelf: dict[str, dict[str, Vector]] = {}
        for key, vector in vectors.items():
            by_shelf.setdefault(shelf_of(key), {})[key] = vector
        for shelf, held in by_shelf.items():
            item = yield from self._ask("get", self._namespace, shelf)
            value = shelf_with(getattr(item, "value", None), held)
            yield from self._ask("put", self._namespace, shelf, value, index=False)

    def _ask(self, method: str, *arguments: Any, **options: Any) -> Flow[Any]:  # noqa: ANN401 - of a user's store
        if self._store is None or self.trouble is not None:
            return None
        reply = yield Call(self._store, method, arguments, STORE_SECONDS, options)
        if isinstance(reply, CallFailed):
            self.trouble = f"The store that keeps vectors failed: {reply.reason}"
            return None
        return reply


def _text(document: Document) -> str:
    return f"{document.name}: {document.description} {document.tags}".strip()[:MAX_EMBEDDED_LENGTH]


def _nearest(target: Vector, vectors: Sequence[Vector], documents: Sequence[Document], most: int) -> list[str]:
    """Return the names whose vectors are nearest; in a large library only those nearer than most others."""
    alike = likeness(target, vectors)
    least = _clearly_above_most(alike) if len(alike) > most else -math.inf
    best = sorted(range(len(alike)), key=lambda place: (-alike[place], place))[:most]
    return [documents[place].name for place in best if alike[place] > least]


def _clearly_above_most(values: Sequence[float]) -> float:
    """Return the mean and one standard deviation."""
    mean = math.fsum(values) / len(values)
    return mean + math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
