"""Which skills fit a request best: by their words, and where embeddings are given, by their meaning as well.

`Ranker` serves suggestions, search and the manager alike. The ranking by words is always there. With embeddings the two
are joined by reciprocal rank: a skill scores by its place in each, so that no scale of one is compared with a scale of
the other. Whatever goes wrong with embeddings or a store is told, and the ranking by words stands alone.
"""

import functools
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from deepskills._catalog.flows import Flow, Work, adrive, drive
from deepskills._catalog.meaning import Meaning, Order
from deepskills._catalog.search import Document, Match, Ranked, SearchIndex

FUSION = 10
"""How little a first place counts above the next ones: small, so that it weighs."""

CONSIDERED = 50
"""How many places of each ranking are joined, and how many matches are judged."""

SECONDS = 10.0
"""How long one ranking waits for embeddings; what was embedded by then is kept for the next."""

MAX_INDEXED = 60_000
"""How many skills all remembered indexes hold together."""

STRONG = 0.5
"""How much of what the best match shares with a request another must share to take part in joining the rankings."""

ENOUGH_SAID = 6.0
"""How many words beyond small talk a request has for its meaning alone to find a skill."""

CLEARLY_AHEAD = 1.4
"""How many times what any other skill shares with a request the first shares, to be clearly ahead."""


@dataclass(frozen=True)
class Ranking:
    """The skills for a request."""

    names: list[str]
    """What a search gives, best first."""

    fitting: list[str]
    """What is worth suggesting: the best of those that fit at all."""

    is_clear: bool = False
    """Whether the first that fits is clearly ahead of all others."""

    trouble: str | None = None
    """What went wrong with embeddings or their store."""


class Library(tuple[Document, ...]):  # noqa: SLOT001 - it remembers
    """A catalog to rank, which remembers what it is known by; for callers that rank the same one again."""

    @functools.cached_property
    def digest(self) -> bytes:
        """What tells this catalog from another."""
        text = "\x01".join(f"{d.name}\x00{d.description}\x00{d.tags}" for d in self)
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class Indexes:
    """Indexes of the catalogs used last, bounded by how many skills they hold; safe to share by threads."""

    def __init__(self, most: int = MAX_INDEXED) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._made: OrderedDict[bytes, tuple[int, Future[SearchIndex]]] = OrderedDict()

    def of(self, documents: Sequence[Document]) -> SearchIndex:
        """Return the index of a catalog; threads that need the same one at the same time share its making."""
        library = documents if isinstance(documents, Library) else Library(documents)
        key = library.digest
        with self._lock:
            _, known = self._made.get(key, (0, None))
            if known is None:
                made: Future[SearchIndex] = Future()
                self._made[key] = (len(documents), made)
            self._made.move_to_end(key)
            while len(self._made) > 1 and sum(size for size, _ in self._made.values()) > self._most:
                self._made.popitem(last=False)
        if known is not None:
            return known.result()
        try:
            made.set_result(SearchIndex(library))
        except BaseException as error:
            with self._lock:
                self._made.pop(key, None)
            made.set_exception(error)
            raise
        return made.result()


class Ranker:
    """Ranks catalogs against requests and queries, and remembers indexes and vectors; safe to share by threads.

    Args:
        embeddings: Any object with `embed_documents` and `embed_query`, such as LangChain's `Embeddings`.
        seconds: How long one ranking waits for embeddings.
        max_indexed: How many skills all remembered indexes hold together; the latest index is always kept.

    Raises:
        TypeError: If `embeddings` has not both methods.
    """

    def __init__(
        self,
        embeddings: Any = None,  # noqa: ANN401 - known by its methods
        *,
        seconds: float = SECONDS,
        max_indexed: int = MAX_INDEXED,
    ) -> None:
        for method in ("embed_documents", "embed_query") if embeddings is not None else ():
            if isinstance(embeddings, type) or not callable(getattr(embeddings, method, None)):
                raise TypeError(f"embeddings must be an object with the method {method}, got {embeddings!r}")
        self._arguments = {"embeddings": embeddings, "seconds": seconds, "max_indexed": max_indexed}
        self._indexes = Indexes(max_indexed)
        self._meaning = None if embeddings is None else Meaning(embeddings, seconds)

    def __deepcopy__(self, memo: dict[int, object]) -> "Ranker":
        """Return one that remembers nothing; embeddings are the user's, and shared."""
        return Ranker(**self._arguments)

    def rank(self, documents: Sequence[Document], request: str, k: int = 5, *, store: Any = None) -> Ranking:  # noqa: ANN401
        """Return the best `k` skills for a request; a LangGraph `store` keeps vectors for other processes."""
        return drive(self._ranking(documents, request, k, store))

    async def arank(
        self,
        documents: Sequence[Document],
        request: str,
        k: int = 5,
        *,
        store: Any = None,  # noqa: ANN401 - known by its methods
    ) -> Ranking:
        """Return the best `k` skills for a request, without blocking."""
        return await adrive(self._ranking(documents, request, k, store))

    def _ranking(self, documents: Sequence[Document], request: str, k: int, store: Any) -> Flow[Ranking]:  # noqa: ANN401
        if k < 1 or not documents or not request.strip():
            return Ranking([], [])
        judged = 2 * k if self._meaning is None else max(CONSIDERED, k)
        ranked: Ranked = yield Work(lambda: self._indexes.of(documents).rank(request, judged))
        meaning = Order(None)
        if self._meaning is not None and ranked.substance:
            meaning = yield from self._meaning.order(documents, request, CONSIDERED, store)
        return _joined(ranked, meaning, k)

    def search(self, documents: Sequence[Document], query: str, n: int = 5, *, store: Any = None) -> Ranking:  # noqa: ANN401
        """Return the best `n` skills for the words of a query, whether or not they say enough to fit."""
        return drive(self._found(documents, query, n, store))

    async def asearch(
        self,
        documents: Sequence[Document],
        query: str,
        n: int = 5,
        *,
        store: Any = None,  # noqa: ANN401 - known by its methods
    ) -> Ranking:
        """Return the best `n` skills for the words of a query, without blocking."""
        return await adrive(self._found(documents, query, n, store))

    def _found(self, documents: Sequence[Document], query: str, n: int, store: Any) -> Flow[Ranking]:  # noqa: ANN401
        if n < 1 or not documents or not query.strip():
            return Ranking([], [])
        names: list[str] = yield Work(lambda: self._indexes.of(documents).search(query, n))
        if self._meaning is None:
            return Ranking(names, [])
        ranked: Ranked = yield Work(lambda: self._indexes.of(documents).rank(query, CONSIDERED))
        meaning = yield from self._meaning.order(documents, query, CONSIDERED, store)
        if meaning.names is None:
            return Ranking(names, [], trouble=meaning.trouble)
        joined = _by_reciprocal_rank(_strong(ranked.matches) or names[:CONSIDERED], meaning.names)
        return Ranking(list(dict.fromkeys([*joined, *names]))[:n], [], trouble=meaning.trouble)


def _joined(ranked: Ranked, meaning: Order, k: int) -> Ranking:
    """Join the ranking by words and the ranking by meaning, if there is one."""
    names = [match.name for match in ranked.matches]
    fitting = [match.name for match in ranked.matches if match.fits]
    is_clear = _is_clear(ranked.matches)
    if meaning.names is None:
        return Ranking(names[:k], fitting[:k], is_clear, meaning.trouble)
    joined = _by_reciprocal_rank(_strong(ranked.matches), meaning.names)
    suggested = joined if fitting or ranked.substance >= ENOUGH_SAID else []
    return Ranking(joined[:k], suggested[:k], is_clear and joined[0] == fitting[0], meaning.trouble)


def _strong(matches: Sequence[Match]) -> list[str]:
    """Return the names of matches that share nearly as much with a request as the best one.

    A large library has many that share a word or two; with a place in both rankings they would pass the right one.
    """
    most = max((match.strength for match in matches), default=0.0)
    return [match.name for match in matches if match.strength >= STRONG * most]


def _by_reciprocal_rank(*rankings: Sequence[str]) -> list[str]:
    """Return all names, best first, each scored by its place in each ranking."""
    scores: dict[str, float] = {}
    for ranking in rankings:
        for place, name in enumerate(ranking, 1):
            scores[name] = scores.get(name, 0.0) + 1 / (FUSION + place)
    return sorted(scores, key=lambda name: -scores[name])


def _is_clear(matches: Sequence[Match]) -> bool:
    """Whether the first match fits, and shares much more with the request than any other."""
    if not matches or not matches[0].fits:
        return False
    return matches[0].strength >= CLEARLY_AHEAD * max((match.strength for match in matches[1:]), default=0.0)
