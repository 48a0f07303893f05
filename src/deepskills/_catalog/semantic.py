"""Search by meaning: which skills mean what a request means, by the vectors of a user's embeddings.

Vectors are made once for each content, remembered in memory and, where a store is given, in it; only skills that are
new or changed are embedded, in batches. A vector is kept at length one, so that comparing two is a sum of products.
It is known by the model that made it and by the text it stands for, so that a changed description, or another model,
never meets a vector that is not its own.

Models differ in which likeness is high: one gives 0.2 to texts that have nothing in common, another 0.7. So what
counts is never a likeness itself, but by how much it stands out from those of all skills of the library.

What fails is returned as a reason, for the caller has the ranking by words to go by.
"""

import base64
import hashlib
import itertools
import math
import operator
import statistics
import struct
import threading
import time
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from deepskills._catalog.search import SearchDocument, SearchIndex
from deepskills._io.cache import BoundedCache
from deepskills._io.plan import Attempt, Failed, Pause, Work, call_method, unwrap

BATCH = 64
"""How many texts are embedded in one call."""

MAX_EMBEDDED_LENGTH = 2_000
"""How many characters of a text are embedded."""

STORE_NAMESPACE = ("deepskills", "vectors")
"""Where a store keeps vectors, one namespace below it for each model."""

STORE_SECONDS = 10.0
"""How long a store may take to answer."""

MAX_VECTOR_BYTES = 160_000_000
"""How many bytes all remembered vectors take together: 25,000 of a large model."""

_VECTOR_BYTES = 300
"""What a vector takes beside its numbers, with its key."""

MAX_DIMENSIONS = 65_536
"""Longest vector that is taken for one."""

MAX_ITEMS = 1_024
"""How many batches of vectors a store holds for each model."""

TRIED_PLACES = 8
"""In how many places a batch looks for a free one."""

_MODEL_FIELDS = ("model", "model_name", "model_id", "deployment", "azure_deployment", "repo_id", "dimensions")
"""Where embeddings say which model they use."""

Vector: TypeAlias = "array[float]"
"""Numbers of single precision, at length one."""


class VectorError(ValueError):
    """What embeddings gave is not a vector for each text."""


def model_identity(embeddings: object) -> str:
    """Return what tells one model from another: the class, and what it says of its model."""
    kind = type(embeddings)
    parts = [f"{name}={value}" for name in _MODEL_FIELDS if (value := _plain(embeddings, name)) is not None]
    return " ".join([f"{kind.__module__}.{kind.__qualname__}", *parts])


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


def check_vectors(given: Any, count: int) -> list[Vector]:  # noqa: ANN401 - whatever embeddings gave
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
    return [_normalize(row) for row in rows]


def _normalize(row: list[float]) -> Vector:
    size = math.hypot(*row)
    if not math.isfinite(size):
        raise VectorError("a vector holds a number that is not finite")
    return array("f", [number / size for number in row] if size else row)


class VectorMemory:
    """Vectors by key, the latest used; bounded, safe to share by threads."""

    def __init__(self, max_bytes: int = MAX_VECTOR_BYTES) -> None:
        self._vectors: BoundedCache[str, Vector] = BoundedCache(
            max_bytes, lambda vector: _VECTOR_BYTES + 4 * len(vector)
        )
        self._lock = threading.Lock()
        self._claimed: set[str] = set()

    def find(self, keys: Iterable[str]) -> dict[str, Vector]:
        """Return the vectors that are remembered."""
        return {key: vector for key in keys if (vector := self._vectors.get(key)) is not None}

    def keep(self, vectors: Mapping[str, Vector]) -> None:
        """Remember vectors; those that were not used for longest make room."""
        for key, vector in vectors.items():
            self._vectors.put(key, vector)

    def claim(self, keys: Iterable[str]) -> list[str]:
        """Return a batch of keys that no other thread is making vectors for, and take them on."""
        with self._lock:
            free = (key for key in keys if key not in self._claimed and self._vectors.get(key) is None)
            mine = list(itertools.islice(free, BATCH))
            self._claimed.update(mine)
        return mine

    def release(self, keys: Iterable[str]) -> None:
        """Give back what was claimed."""
        with self._lock:
            self._claimed.difference_update(keys)


def pack(vectors: Mapping[str, Vector]) -> dict[str, Any]:
    """Return a batch of vectors as an item of a store, at half precision."""
    texts = {key: base64.b64encode(struct.pack(f"<{len(v)}e", *v)).decode() for key, v in vectors.items()}
    return {"vectors": texts}


def unpack(value: object, length: int, wanted: Collection[str] | None = None) -> dict[str, Vector]:
    """Return the wanted vectors of a store's item, or all.

    Whatever is not one is passed over, for others may write to a store.
    """
    held = value.get("vectors") if isinstance(value, Mapping) else None
    found: dict[str, Vector] = {}
    for key, text in held.items() if isinstance(held, Mapping) else ():
        if wanted is not None and key not in wanted:
            continue
        try:
            [found[key]] = check_vectors([struct.unpack(f"<{length}e", base64.b64decode(text, validate=True))], 1)
        except (TypeError, ValueError, struct.error):
            continue
    return found


def compare_vectors(vector: Vector, others: Sequence[Vector]) -> list[float]:
    """Return how alike a vector is to each of the others, all of its length."""
    return [round(sum(map(operator.mul, vector, other)), 9) for other in others]


MIN_COMPARED = 5
"""How many skills a library must have for their distances to tell anything."""

LEAST_SAMPLED, MOST_SAMPLED, COMPARISONS = 12, 40, 160_000
"""Of how many skills the nearest neighbour is looked for; 160,000 comparisons take some seconds."""


@dataclass(frozen=True)
class Embedded:
    """A library by the vectors of one model."""

    vectors: list[Vector]
    closeness: float
    """How near skills of this library usually are to their nearest neighbours, as a gain; see `measure_closeness`."""


@dataclass(frozen=True)
class Likenesses:
    """How far the meaning of each skill stands out, in the order of the library; see `measure_leads`."""

    leads: list[float] | None
    """By how many standard deviations each skill is nearer than the average one; `None` if that is not known."""

    trouble: str | None = None
    """What went wrong: with the embeddings if there are no leads, else with the store."""

    gain: float = 0.0
    """How much of the way from an average skill's likeness to that of the very same text the nearest one has come."""

    closeness: float = 0.0
    """The gain that is usual between a skill of this library and its nearest neighbour."""


class Meaning:
    """Orders skills by the likeness of their meaning to a request's; safe to share by threads."""

    def __init__(self, embeddings: Any, seconds: float) -> None:  # noqa: ANN401 - known by its methods
        self._embeddings = embeddings
        self._seconds = seconds
        self._memory = VectorMemory()

    async def compare(
        self,
        index: SearchIndex,
        request: str,
        store: Any,  # noqa: ANN401 - known by its methods
        hidden: Collection[str] = (),
    ) -> Likenesses:
        """Compare all skills with a request; where not all could be embedded in time, what was is kept for the next.

        Those with hidden names are no nearer than anything.
        """
        deadline = time.monotonic() + self._seconds
        asked = await Attempt(
            call_method(self._embeddings, "embed_query", request[:MAX_EMBEDDED_LENGTH], seconds=self._seconds)
        )
        if isinstance(asked, Failed):
            return Likenesses(None, f"The embeddings failed: {asked.reason}")
        try:
            [target] = check_vectors([asked], 1)
        except VectorError as error:
            return Likenesses(None, f"The embeddings cannot be used: {error}")
        # With the length: a model that was replaced under the same name is another one.
        model = f"{model_identity(self._embeddings)} {len(target)}"
        kept = _KeptVectors(store, model, len(target))
        embedded: Embedded | None = index.vectors.get(model)
        if embedded is None:
            documents = index.documents
            keys = await unwrap(Work(lambda: [vector_key(model, _text(document)) for document in documents]))
            found = await self._vectors(dict(zip(keys, documents, strict=True)), len(target), kept, deadline)
            if isinstance(found, Failed):
                return Likenesses(None, found.reason)
            vectors = [found[key] for key in keys]
            embedded = Embedded(vectors, await unwrap(Work(lambda: measure_closeness(vectors))))
            # One model at a time: a change of model does not go back and forth.
            index.vectors = {model: embedded}
        known = embedded.vectors
        leads, gain = await unwrap(Work(lambda: _compare_shown(target, index, known, hidden)))
        return Likenesses(leads, kept.trouble, gain, embedded.closeness)

    async def _vectors(
        self, wanted: Mapping[str, SearchDocument], length: int, kept: "_KeptVectors", deadline: float
    ) -> dict[str, Vector] | Failed:
        """Return all vectors: remembered, from the store, or embedded now."""
        found = self._memory.find(wanted)
        # Another process may have embedded a library; a few new skills are embedded sooner than all is read again.
        if len(wanted) - len(found) > len(wanted) // 2:
            stored = await kept.fetch(wanted.keys() - found.keys())
            self._memory.keep(stored)
            found |= stored
        while len(found) < len(wanted):
            missing = [key for key in wanted if key not in found]
            claimed = self._memory.claim(missing)
            if claimed:
                made = await self._embed({key: wanted[key] for key in claimed}, length, deadline)
                if isinstance(made, Failed):
                    return made
                found |= made
                await kept.put(made)
            else:  # another ranking is embedding them
                await Pause()
                found |= self._memory.find(missing)
            if len(found) < len(wanted) and found and time.monotonic() > deadline:
                return Failed(
                    f"{len(found)} of {len(wanted)} skills are embedded so far; further requests embed the others."
                )
        return found

    async def _embed(
        self, documents: Mapping[str, SearchDocument], length: int, deadline: float
    ) -> dict[str, Vector] | Failed:
        left = max(deadline - time.monotonic(), 0.01)
        try:
            texts = [_text(document) for document in documents.values()]
            given = await Attempt(call_method(self._embeddings, "embed_documents", texts, seconds=left))
            if isinstance(given, Failed):
                return Failed(f"The embeddings failed: {given.reason}")
            vectors: list[Vector] = check_vectors(given, len(texts))
            if len(vectors[0]) != length:
                raise VectorError(f"a request's vector has {length} numbers, a skill's {len(vectors[0])}")  # noqa: TRY301
            made = dict(zip(documents, vectors, strict=True))
            self._memory.keep(made)
        except VectorError as error:
            return Failed(f"The embeddings cannot be used: {error}")
        finally:
            self._memory.release(documents)
        return made


class _KeptVectors:
    """The vectors of one model in a store, if there is one; once it has failed it is left alone."""

    def __init__(self, store: Any, model: str, length: int) -> None:  # noqa: ANN401 - known by its methods
        self._store = store
        self._length = length
        self._namespace = (*STORE_NAMESPACE, hashlib.blake2b(model.encode(), digest_size=16).hexdigest())
        self.trouble: str | None = None

    async def fetch(self, wanted: Collection[str]) -> dict[str, Vector]:
        """Return the vectors that are there."""
        reply = await self._ask("search", self._namespace, limit=MAX_ITEMS)
        items = reply if isinstance(reply, Iterable) else ()

        def read() -> dict[str, Vector]:
            batches = (unpack(getattr(item, "value", None), self._length, wanted) for item in items)
            return {key: vector for batch in batches for key, vector in batch.items()}

        return await unwrap(Work(read))

    async def put(self, batch: Mapping[str, Vector]) -> None:
        """Keep a batch, in one of a fixed number of places so that there are never more."""
        first = int(min(batch), 16) % MAX_ITEMS
        places = [f"{(first + step) % MAX_ITEMS:03x}" for step in range(TRIED_PLACES)]
        for place in places:
            item = await self._ask("get", self._namespace, place)
            held = unpack(getattr(item, "value", None), self._length)
            if held.keys() & batch.keys() or not held:
                break
        else:
            # Another batch leaves; its skills are embedded again by the process that needs them next.
            place = places[0]
        await self._ask("put", self._namespace, place, await unwrap(Work(lambda: pack(batch))), index=False)

    async def _ask(self, method: str, *arguments: Any, **options: Any) -> object:  # noqa: ANN401 - of a user's store
        if self._store is None or self.trouble is not None:
            return None
        reply = await Attempt(call_method(self._store, method, *arguments, seconds=STORE_SECONDS, **options))
        if isinstance(reply, Failed):
            self.trouble = f"The store that keeps vectors failed: {reply.reason}"
            return None
        return reply


def _text(document: SearchDocument) -> str:
    return f"{document.name}: {document.description} {document.tags}".strip()[:MAX_EMBEDDED_LENGTH]


def _compare_shown(
    target: Vector, index: SearchIndex, vectors: Sequence[Vector], hidden: Collection[str]
) -> tuple[list[float], float]:
    """Return what `measure_leads` says of the skills that are not hidden, in the places of all."""
    shown = [place for place, document in enumerate(index.documents) if document.name not in hidden]
    measured, gain = measure_leads(compare_vectors(target, [vectors[place] for place in shown]))
    leads = [-math.inf] * len(index)
    for place, lead in zip(shown, measured, strict=True):
        leads[place] = lead
    return leads, gain


def measure_closeness(vectors: list[Vector]) -> float:
    """Return the gain between a skill and its nearest neighbour, the median of a sample of skills.

    It says what "near" means to this model in this library, so that no number of ours has to.
    """
    count = len(vectors)
    if count < MIN_COMPARED:
        return 0.0
    sample = range(0, count, max(1, count // max(LEAST_SAMPLED, min(MOST_SAMPLED, COMPARISONS // count))))
    gains = []
    for place in sample:
        likenesses = compare_vectors(vectors[place], vectors)
        del likenesses[place]
        gains.append(measure_leads(likenesses)[1])
    return statistics.median(gains)


def measure_leads(likenesses: Sequence[float]) -> tuple[list[float], float]:
    """Return by how many standard deviations each likeness is above the mean, and how far the best one has come."""
    if not likenesses:
        return [], 0.0
    mean = math.fsum(likenesses) / len(likenesses)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in likenesses) / len(likenesses))
    gain = (max(likenesses) - mean) / (1 - mean) if mean < 1 else 0.0
    return [(value - mean) / spread if spread else 0.0 for value in likenesses], gain
