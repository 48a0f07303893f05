"""Which skills fit a request best: by their words, and where embeddings are given, by their meaning as well.

`Ranker` serves suggestions, search and the manager alike. The ranking by words is always there. With embeddings the
two are joined by scores: a skill's score by words counts relative to the best one's, and by meaning as far as it
stands out from the whole library, so that no model's scale is built in. (Places in two rankings, which are often
joined instead, let the weaker ranking vote as much as the stronger one.) Whatever goes wrong with embeddings or a
store is reported, and the ranking by words stands alone.

A search gives the best skills, whatever they are. A suggestion must also fit: by its words (`search.Match.fits`) or, if
it is nearer than skills of this library are to each other, by its meaning. Where one fits, those that nearly do and are
near the best are suggested as well: a skill that is missed costs a task, one too many costs a line.
"""

import heapq
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from deepskills._catalog.search import Match, Ranked, SearchIndex
from deepskills._catalog.semantic import Likenesses, Meaning
from deepskills._io.plan import Work, unwrap

CONSIDERED = 50
"""How many skills of each ranking are joined: the fiftieth is never shown, but joined it may become the third."""

SECONDS = 10.0
"""How long one ranking waits for embeddings; what was embedded by then is kept for the next."""

MEANING = 0.3
"""What the meaning of a skill counts that stands out as far as the best of a library would by chance; the best by
words counts 1. With more, small models lead astray in languages that they do not know."""

ABOVE_AVERAGE = 0.9
"""By how many standard deviations a skill is nearer than the average one, to be found by meaning alone."""

NEARER_THAN_NEIGHBOURS = 1.4
"""How many times nearer than a skill's nearest neighbour usually is, a skill must be to fit by its meaning alone.

Learned from the library and the model at hand. With less, small talk gets as many notes as requests get right ones.
"""

STANDS_ALONE = 3.5
"""By how many standard deviations a skill is nearer than any other, to fit if it is as near as neighbours usually are.

A few words are never as near to a description as another description is, but they can be near to one skill only.
"""

GAIN_BOUNDS = (0.2, 0.9)
"""How near that is at least and at most, as a gain: for libraries whose skills are all different, or all the same."""

ALMOST = 0.9
"""How much of what is possible in a small library a skill must stand out to fit by its meaning alone."""

NEAR_THE_NEAREST = 0.85
"""How far another skill must stand out, as a share of what the nearest does, to fit beside it by its meaning alone."""

NEAR_THE_BEST = 0.3
"""How much of the best skill's score another must have to be suggested beside it."""

MOST = 0.5
"""How much of what a request says a skill has that is clearly meant; else there may be several intents in it."""

CLEARLY_AHEAD = 1.4
"""How many times any other skill's score the first one has, to be clearly ahead."""


Skills: TypeAlias = SearchIndex | Callable[[], SearchIndex]
"""Skills to be ranked: their index, or what finds or makes it."""


@dataclass(frozen=True)
class Ranking:
    """The skills for a request."""

    names: list[str]
    """What a search gives, best first."""

    fitting: list[str]
    """What is worth suggesting, best first: nothing unless a skill fits."""

    is_clear: bool = False
    """Whether the first that fits is clearly ahead of all others."""

    trouble: str | None = None
    """What went wrong with embeddings or their store."""


class Ranker:
    """Ranks skills against requests and queries, by plans, and remembers vectors; safe to share by threads.

    Args:
        embeddings: Any object with `embed_documents` and `embed_query`, such as LangChain's `Embeddings`.
        seconds: How long one ranking waits for embeddings.

    Raises:
        TypeError: If `embeddings` has not both methods.
    """

    def __init__(
        self,
        embeddings: Any = None,  # noqa: ANN401 - known by its methods
        *,
        seconds: float = SECONDS,
    ) -> None:
        for method in ("embed_documents", "embed_query") if embeddings is not None else ():
            if isinstance(embeddings, type) or not callable(getattr(embeddings, method, None)):
                raise TypeError(f"embeddings must be an object with the method {method}, got {embeddings!r}")
        self._embeddings = embeddings
        self._seconds = seconds
        self._meaning = None if embeddings is None else Meaning(embeddings, seconds)

    def __deepcopy__(self, memo: dict[int, object]) -> "Ranker":
        """Return one that remembers no vectors; embeddings are the user's, and shared."""
        return Ranker(self._embeddings, seconds=self._seconds)

    async def rank(
        self,
        skills: Skills,
        request: str,
        k: int = 5,
        *,
        store: Any = None,  # noqa: ANN401 - known by its methods
        hidden: Collection[str] = (),
    ) -> Ranking:
        """Return the best `k` skills for a request, and those worth suggesting.

        Args:
            skills: The index of the skills, or what gives it.
            request: What is asked for.
            k: How many skills are returned at most.
            store: A LangGraph store, which keeps vectors for other processes.
            hidden: Names of skills that are left out: one index serves users who see different skills.
        """
        index = await _find(skills)
        if k < 1 or not index.documents or not request.strip():
            return Ranking([], [])
        judged = 2 * k if self._meaning is None else max(CONSIDERED, k)
        ranked = await unwrap(Work(lambda: index.rank(request, judged, hidden)))
        meaning = Likenesses(None)
        if self._meaning is not None and ranked.says_something:
            meaning = await self._meaning.compare(index, request, store, hidden)
        return _join(index, ranked, meaning, k)

    async def search(
        self,
        skills: Skills,
        query: str,
        n: int = 5,
        *,
        store: Any = None,  # noqa: ANN401 - known by its methods
        hidden: Collection[str] = (),
    ) -> Ranking:
        """Return the best `n` skills for a query, whether or not they fit; see `rank`."""
        index = await _find(skills)
        if n < 1 or not index.documents or not query.strip():
            return Ranking([], [])
        many = n if self._meaning is None else max(n, CONSIDERED)
        found = await unwrap(Work(lambda: index.score(query, many, hidden)))
        trouble = None
        if self._meaning is not None:
            meaning = await self._meaning.compare(index, query, store, hidden)
            trouble = meaning.trouble
            if meaning.leads is not None:
                found = _join_scores(found, meaning.leads)
        return Ranking([index.documents[place].name for place, _score in found[:n]], [], trouble=trouble)


async def _find(skills: Skills) -> SearchIndex:
    # To make an index takes long, so not on the event loop.
    return skills if isinstance(skills, SearchIndex) else await unwrap(Work(skills))


def _join(index: SearchIndex, ranked: Ranked, meaning: Likenesses, k: int) -> Ranking:
    """Join the ranking by words and the ranking by meaning, if there is one."""
    fits = {match.place for match in _choose_suggestions(ranked.matches)}
    is_clear = _is_clear(ranked.matches)
    if meaning.leads is None:
        names = [match.name for match in ranked.matches]
        fitting = [match.name for match in ranked.matches if match.place in fits]
        return Ranking(names[:k], fitting[:k], is_clear, meaning.trouble)
    by_words = [(match.place, match.score) for match in ranked.matches]
    joined = [place for place, _ in _join_scores(by_words, meaning.leads)]
    if _is_near(meaning, meaning.leads):
        least = _find_least_lead(meaning.leads)
        fits |= {place for place in joined if meaning.leads[place] >= least}
    fitting = [index.documents[place].name for place in joined if place in fits]
    is_first = bool(fitting) and bool(ranked.matches) and fitting[0] == ranked.matches[0].name
    return Ranking(
        [index.documents[place].name for place in joined[:k]], fitting[:k], is_clear and is_first, meaning.trouble
    )


def _find_least_lead(leads: Sequence[float]) -> float:
    """Return by how many standard deviations a skill must stand out to fit by its meaning beside the nearest one."""
    nearest = NEAR_THE_NEAREST * max(leads)
    alike = sum(lead >= nearest for lead in leads)
    # Of a few skills, those that are alike cannot stand out further than this.
    possible = math.sqrt((len(leads) - alike) / alike)
    return max(nearest, min(_expect_lead(len(leads)), ALMOST * possible))


def _is_near(meaning: Likenesses, leads: Sequence[float]) -> bool:
    """Whether the nearest skill is so near that it fits by its meaning alone."""
    first, second = [*heapq.nlargest(2, leads), 0.0, 0.0][:2]
    times = 1.0 if first - second >= STANDS_ALONE else NEARER_THAN_NEIGHBOURS
    lowest, highest = GAIN_BOUNDS
    return meaning.gain >= min(max(times * meaning.closeness, lowest), highest)


def _choose_suggestions(matches: Sequence[Match]) -> list[Match]:
    """Return what to suggest: nothing if no match fits, else all that may be shown beside it."""
    if not any(match.fits for match in matches):
        return []
    least = NEAR_THE_BEST * max(match.score for match in matches)
    return [match for match in matches if match.fits_beside and match.score >= least]


def _join_scores(words: Sequence[tuple[int, float]], leads: Sequence[float]) -> list[tuple[int, float]]:
    """Return places by both scores together, best first: those nearest by words, and those nearest by meaning."""
    best = max((score for _, score in words), default=0.0)
    chance = _expect_lead(len(leads))
    nearest = sorted(range(len(leads)), key=lambda place: (-leads[place], place))[:CONSIDERED]
    # In a small library two that are alike cannot stand out far from the average that they are part of.
    least = min(ABOVE_AVERAGE, NEAR_THE_NEAREST * max(leads))
    scores = {place: MEANING * max(leads[place], 0.0) / chance for place in nearest if leads[place] > least}
    for place, score in words:
        scores[place] = score / best + MEANING * max(leads[place], 0.0) / chance
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


def _expect_lead(count: int) -> float:
    """Return how many standard deviations the best of so many skills stands out if there is nothing about it."""
    return math.sqrt(2 * math.log(max(count, 2)))


def _is_clear(matches: Sequence[Match]) -> bool:
    """Whether the first match fits, covers most of the request, and has a much higher score than any other."""
    if not matches or not matches[0].fits or matches[0].evidence.coverage < MOST:
        return False
    return matches[0].score >= CLEARLY_AHEAD * max((match.score for match in matches[1:]), default=0.0)
