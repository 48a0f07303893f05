"""Ranking: by words and by meaning, silence where nothing fits, and embeddings that may fail, change or be slow."""

import asyncio
import copy
import gc
import importlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.embeddings import Embeddings
from langgraph.store.memory import InMemoryStore

from deepskills import SkillMetadata
from deepskills._catalog import lookup, semantic
from deepskills._catalog.catalog import SkillEntry
from deepskills._catalog.lookup import MAX_TAGS, find_index
from deepskills._catalog.ranking import Ranker, Ranking
from deepskills._catalog.search import SearchDocument, SearchIndex
from deepskills._catalog.semantic import VectorMemory, check_vectors, model_identity
from deepskills._io.cache import BoundedCache
from deepskills._io.drivers import adrive, drive
from support import Mode, both_modes, scaled

benchmark: Any = importlib.import_module("suggesting")


MEANINGS = (
    ("rename", "column", "schema", "migration", "database"),
    ("outage", "postmortem", "incident", "crashed"),
    ("trip", "holiday", "itinerary", "travel"),
    ("invoice", "billing", "receipt"),
)
"""Words that mean the same thing to the embeddings of these tests."""


class Topics(Embeddings):
    """Embeddings that know a few meanings, count what they embed, and are told how to misbehave."""

    def __init__(self, dimensions: int = len(MEANINGS) + 1, model: str = "topics") -> None:
        self.model = model
        self.size = dimensions
        self.embedded: list[str] = []
        self.calls = 0
        self.fault: Callable[[list[list[float]]], Any] = lambda vectors: vectors

    def vector(self, text: str) -> list[float]:
        words = text.lower().replace("-", " ").replace(":", " ").replace(".", " ").split()
        found = [float(sum(word in meaning for word in words)) for meaning in MEANINGS]
        return [*found, 0.01, *([0.0] * self.size)][: self.size]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.calls += 1
        self.embedded += texts
        given: list[list[float]] = self.fault([self.vector(text) for text in texts])
        return given

    def embed_query(self, text: str) -> list[float]:
        return self.vector(text)


LIBRARY = [
    SearchDocument("schema-changes", "Database migration for tables, with a way back."),
    SearchDocument("incident-review", "Writes a postmortem."),
    SearchDocument("itineraries", "Travel plans by day."),
    SearchDocument("billing", "Checks every invoice."),
]

UNNAMED = "Customers click around in production while I must rename one column there, safely, before Thursday's launch"
"""A request that shares no word with the skill it is for."""


Skills = Sequence[SearchDocument] | SearchIndex | Callable[[], SearchIndex]


def given(skills: Skills) -> SearchIndex | Callable[[], SearchIndex]:
    """Return skills as a ranker takes them."""
    return SearchIndex(skills) if isinstance(skills, Sequence) else skills


def ranked(ranker: Ranker, skills: Skills, request: str, k: int = 5, **more: Any) -> Ranking:
    """Return what a ranker suggests, and how it ranks."""
    return drive(ranker.rank(given(skills), request, k, **more))


async def aranked(ranker: Ranker, skills: Skills, request: str) -> Ranking:
    """Return the same, on an event loop."""
    return await adrive(ranker.rank(given(skills), request))


def rank(mode: Mode, ranker: Ranker, skills: Skills, request: str, k: int = 5, **more: Any) -> Ranking:
    """Return the same, in a mode."""
    if mode == "sync":
        return ranked(ranker, skills, request, k, **more)
    return asyncio.run(adrive(ranker.rank(given(skills), request, k, **more)))


# Quality, on the labelled requests.


@pytest.mark.parametrize("half", benchmark.HALVES)
def test_the_right_skill_is_suggested_and_small_talk_left_alone(half: str) -> None:
    """Words alone suggest the right skill for 94 of 100 requests written for it, and little for small talk."""
    ranker = Ranker()
    for size in benchmark.SIZES if half == "frozen" else benchmark.SIZES[:-1]:
        found = benchmark.quality(half, size, ranker)
        assert found.in_five >= 0.94, size
        assert found.wrong_notes < 0.1, size


def test_the_labelled_requests_are_many_and_honest() -> None:
    """The set has over 200 requests in three languages, most of them long, and no request is in both halves."""
    halves = [benchmark.requests(half) for half in benchmark.HALVES]
    cases = [case for half in halves for case in half]
    names = {document.name for document in benchmark.libraries(100)[0]}
    assert len([case for case in cases if case["expect"]]) >= 200
    assert len([case for case in cases if not case["expect"]]) >= 50
    assert {case["expect"] for case in cases} - {None} <= names
    assert {case["language"] for case in cases} == {"en", "zh", "ja"}
    assert len({case["request"] for case in cases}) == len(cases)
    assert {len(library) for size in benchmark.SIZES for library in benchmark.libraries(size)} == set(benchmark.SIZES)
    assert len({document.name for document in benchmark.libraries(10_000)[0]}) == 10_000


# What fits.


FITS = {
    "one word": "postmortem",
    "one word among talk": "hi, could you please do the postmortem for me tomorrow? thanks a lot!",
    "another form": "I need two postmortems",
    "slip": "please write a postmortme",
}

TALK = (
    "",
    " ",
    "hello",
    "thanks, that was great!",
    "ok",
    "yes please go on",
    "?!",
    "1234",
    "好的，谢谢",
    "ありがとう",
    "x",
)


def test_a_request_that_names_a_skill_fits_it() -> None:
    """A word that only one skill has is enough if it is most of what is said."""
    ranker = Ranker()
    assert [
        case for case, text in FITS.items() if ranked(ranker, LIBRARY, text).fitting[:1] != ["incident-review"]
    ] == []


@both_modes
def test_talk_fits_nothing(mode: Mode) -> None:
    """Small talk suggests nothing, with embeddings as without."""
    for ranker in (Ranker(), Ranker(Topics())):
        assert [text for text in TALK if rank(mode, ranker, LIBRARY, text).fitting] == []


def test_a_long_paste_is_ranked_by_its_ends() -> None:
    """A message of a megabyte is ranked at once, by how it begins and by how it ends."""
    ranker = Ranker()
    noise = "lorem ipsum dolor " * 60_000
    start = time.thread_time()
    assert ranked(ranker, LIBRARY, f"Write the postmortem of this outage:\n{noise}").fitting == ["incident-review"]
    assert ranked(ranker, LIBRARY, f"{noise}\nWrite the postmortem of this outage.").fitting == ["incident-review"]
    assert time.thread_time() - start < 2


ASKED = {
    "three words": ("check my invoice", ["billing"]),
    "two things": (
        "Write a postmortem for the director about the outage of last night, with what each team did. "
        "Also, check the invoice.",
        ["incident-review", "billing"],
    ),
    "three things": (
        "Check the invoice, then write a postmortem, then plan the travel by day.",
        ["billing", "incident-review", "itineraries"],
    ),
    "two languages": ("请帮我 check every invoice，谢谢", ["billing"]),
    "two languages, one without spaces": ("来月の出張の travel plans を作ってください", ["itineraries"]),
    "a skill in another script": ("发票核对：这张发票对吗 please", ["发票核对"]),
    "two things in two scripts": ("Write a postmortem. 另外，核对这张发票。", ["incident-review", "发票核对"]),
    "a pasted plan": (
        "Write the postmortem of the outage from this log.\n" + "step 4: restart node and wait\n" * 400,
        ["incident-review"],
    ),
}


def test_requests_of_all_kinds_find_their_skills() -> None:
    """Three words, several wishes in one message, two languages in one and pasted pages: all that is asked for fits."""
    review = SearchDocument("incident-review", "Writes a postmortem after an outage, with a log of what each team did.")
    library = [review, *LIBRARY[2:], SearchDocument("发票核对", "核对发票上的金额和税号。"), *catalog("filler", 40)]
    ranker = Ranker()
    offenders = {
        what: found
        for what, (request, expected) in ASKED.items()
        if sorted(found := ranked(ranker, library, request).fitting) != sorted(expected)
    }
    assert offenders == {}


def test_a_second_wish_fits_although_less_is_said_about_it() -> None:
    """What is asked for in half a sentence is suggested beside a long wish; what only resembles the long one is not."""
    library = [
        SearchDocument("quarterly-forecast", "Builds quarterly revenue forecast models from bookings and churn."),
        SearchDocument("revenue-notes", "Takes notes about revenue."),
        SearchDocument("parking", "Books parking spaces."),
        *catalog("filler", 60),
    ]
    request = "Build a quarterly revenue forecast model from our bookings and churn, and book a parking space."
    assert ranked(Ranker(), library, request).fitting == ["quarterly-forecast", "parking"]


def test_a_lead_is_told() -> None:
    """The first is clearly ahead only if no other shares nearly as much with the request."""
    twins = [SearchDocument("a", "Writes a postmortem."), SearchDocument("b", "Writes a postmortem.")]
    ranker = Ranker()
    assert ranked(ranker, LIBRARY, "a postmortem").is_clear
    assert not ranked(ranker, twins, "a postmortem").is_clear
    assert not ranked(ranker, LIBRARY, "hello").is_clear


# Indexes.


def catalog(word: str, count: int = 1) -> list[SearchDocument]:
    return [SearchDocument(f"{word}-{number}", f"About {word}.") for number in range(count)]


def entries(*documents: SearchDocument) -> list[SkillEntry]:
    """Return skills as a catalog has them."""
    found = []
    for document in documents:
        skill = SkillMetadata(
            path=f"/skills/{document.name}/SKILL.md",
            name=document.name,
            description=document.description,
            license=None,
            compatibility=None,
            metadata={"tags": document.tags},
            allowed_tools=[],
        )
        found.append(SkillEntry(skill, "/skills", "", beginning=document.beginning))
    return found


def use_cache(monkeypatch: pytest.MonkeyPatch, max_bytes: int) -> BoundedCache[Any, Any]:
    """Have this test remember so many bytes of indexes."""
    cache: BoundedCache[Any, Any] = lookup.make_index_cache(max_bytes)
    monkeypatch.setattr(lookup, "INDEXES", cache)
    return cache


def test_an_index_is_made_once_and_kept_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred users with small catalogs all keep their index; large ones make room, and the latest always stays."""
    use_cache(monkeypatch, 500_000)
    users = [entries(*catalog(f"w{number}")) for number in range(90)]
    small = [find_index(skills) for skills in users]
    assert [find_index([*skills]) for skills in users] == small
    many = entries(*catalog("large", 3_000))
    large = find_index(many)
    assert large.weight > 500_000
    assert find_index(many) is large
    assert find_index(users[0]) is not small[0]


def test_users_who_see_different_skills_share_an_index() -> None:
    """Hidden skills are neither found nor suggested, by words or by meaning."""
    library = SearchIndex([*LIBRARY, *catalog("postmortem", 3)])
    hidden = {"incident-review", "postmortem-0"}
    for ranker in (Ranker(), Ranker(Topics())):
        for request in ("a postmortem", "it crashed", "postmortem-0"):
            searched = drive(ranker.search(library, request, hidden=hidden))
            for found in (ranked(ranker, library, request, hidden=hidden), searched):
                assert hidden.isdisjoint([*found.names, *found.fitting]), request
        assert ranked(ranker, library, "a postmortem", hidden=hidden).fitting[0] == "postmortem-1"
        everything = {document.name for document in library.documents}
        assert ranked(ranker, library, "a postmortem", hidden=everything).names == []


class Held(dict[str, str]):
    """The further metadata of a skill that cannot be read before it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.started, self.go = threading.Event(), threading.Event()

    def get(self, *_: object) -> str:
        self.started.set()
        assert self.go.wait(60)
        return "slow"


def test_an_index_in_the_making_holds_up_nobody_else() -> None:
    """While one catalog is indexed others are searched, and whoever needs the same one waits for it."""
    [skill] = entries(SearchDocument("slow-0", "About slow."))
    slow = skill.skill["metadata"] = Held()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(find_index, [skill])
        assert slow.started.wait(60)
        assert find_index(entries(*catalog("quick"))).search("quick") == ["quick-0"]
        second = pool.submit(find_index, [skill])
        slow.go.set()
        assert first.result(60) is second.result(60)


class Broken(dict[str, str]):
    """The further metadata of a skill that cannot be indexed the first time."""

    reads = 0

    def get(self, *_: object) -> str:
        self.reads += 1
        if self.reads == 1:
            raise MemoryError("no room")
        return ""


def test_an_index_that_could_not_be_made_is_made_the_next_time() -> None:
    """A failure is not remembered."""
    [skill] = entries(SearchDocument("word-0", "About a word."))
    skill.skill["metadata"] = Broken()
    with pytest.raises(MemoryError, match="no room"):
        find_index([skill])
    assert find_index([skill]).search("word") == ["word-0"]


def test_the_event_loop_is_not_held() -> None:
    """Indexing and ranking ten thousand skills is the work of other threads, not of the event loop's."""
    library = benchmark.libraries(10_000)[0]

    async def watch() -> float:
        started = time.process_time()
        ranking = asyncio.create_task(
            aranked(Ranker(Topics()), lambda: SearchIndex(library), "Plan a trip for me, with hotels and trains")
        )
        longest, before = 0.0, time.thread_time()
        while not ranking.done():
            await asyncio.sleep(0.001)
            longest, before = max(longest, time.thread_time() - before), time.thread_time()
        assert (await ranking).fitting
        return longest / (time.process_time() - started)

    # By shares of the CPU time that the work took, to which a busy machine adds nothing; nor do collections of garbage,
    # which may fall to any thread.
    gc.disable()
    try:
        assert asyncio.run(watch()) < 0.2
    finally:
        gc.enable()


# Meaning.


class Pairs(Topics):
    """Skills in pairs that share more than half of what they mean; a request means one skill, to a degree it names."""

    def vector(self, text: str) -> list[float]:
        number = int(text.partition(":")[0].rpartition("-")[2])
        found = [0.0] * 61
        found[number // 2], found[20 + number] = math.sqrt(0.6), math.sqrt(0.4)
        return found

    def embed_query(self, text: str) -> list[float]:
        degree = float(text.rpartition(" ")[2])
        return [*(degree * value for value in self.vector("skill-7")[:-1]), math.sqrt(1 - degree**2)]


@both_modes
def test_near_is_nearer_than_skills_are_to_each_other(mode: Mode) -> None:
    """What fits by meaning alone is learned from the library: as near as its skills are to each other is not enough."""
    library = SearchIndex([SearchDocument(f"skill-{number}", "Does what its neighbour does.") for number in range(40)])
    ranker = Ranker(Pairs())
    shown = {
        degree: rank(mode, ranker, library, f"Prune the cherry trees {degree}").fitting
        for degree in (0.3, 0.6, 0.7, 0.9)
    }
    assert shown == {0.3: [], 0.6: [], 0.7: [], 0.9: ["skill-7"]}


class Lone(Pairs):
    """The same, with one skill that has no pair; a request names the skill as well as the degree."""

    def vector(self, text: str) -> list[float]:
        return [0.0] * 61 + [1.0] if text.startswith("skill-40") else [*super().vector(text), 0.0]

    def embed_query(self, text: str) -> list[float]:
        *_, name, degree = text.split()
        asked = [float(degree) * value for value in self.vector(name)]
        asked[60] = math.sqrt(1 - float(degree) ** 2)
        return asked


@both_modes
def test_what_is_near_to_one_skill_only_may_be_less_near(mode: Mode) -> None:
    """A few words are never as near as another description is, but fit if they are near to one skill and no other."""
    library = SearchIndex([SearchDocument(f"skill-{number}", "Does what its neighbour does.") for number in range(41)])
    ranker = Ranker(Lone())
    shown = {
        (skill, degree): rank(mode, ranker, library, f"prune cherries {skill} {degree}").fitting
        for skill, degree in (("skill-7", 0.7), ("skill-40", 0.7), ("skill-40", 0.4), ("skill-7", 0.9))
    }
    assert list(shown.values()) == [[], ["skill-40"], [], ["skill-7"]]


@both_modes
def test_meaning_finds_what_words_do_not(mode: Mode) -> None:
    """A request that names no word of a skill finds it by its meaning, and words still count."""
    assert rank(mode, Ranker(), LIBRARY, UNNAMED).fitting == []
    ranker = Ranker(Topics())
    found = rank(mode, ranker, LIBRARY, UNNAMED)
    assert (found.fitting[0], found.names[0], found.trouble) == ("schema-changes", "schema-changes", None)
    assert rank(mode, ranker, LIBRARY, "postmortem").fitting[0] == "incident-review"
    assert rank(mode, ranker, LIBRARY, "postmortem", 1).names == ["incident-review"]
    assert rank(mode, ranker, LIBRARY, UNNAMED, 0) == Ranking([], [])


@both_modes
def test_meaning_is_asked_for_short_requests(mode: Mode) -> None:
    """However short a request is, a skill that shares no word with it is found by its meaning, in any model's scale."""

    class Flat(Topics):
        """Embeddings whose likenesses all lie near to each other, as those of some models do."""

        def vector(self, text: str) -> list[float]:
            return [*super().vector(text), 1.0]

    for embeddings in (Topics(), Flat()):
        ranker = Ranker(embeddings)
        for request, name in (("holiday", "itineraries"), ("it crashed", "incident-review"), ("my receipt", "billing")):
            assert rank(mode, Ranker(), LIBRARY, request).fitting == [], request
            assert rank(mode, ranker, LIBRARY, request).fitting == [name], (type(embeddings), request)
        for count in (2, 3):
            assert rank(mode, ranker, LIBRARY[:count], "it crashed").fitting == ["incident-review"], count
    assert rank(mode, Ranker(Topics()), LIBRARY, "poetry").fitting == [], "nothing is near to it"


@both_modes
def test_skills_of_a_small_library_that_are_equally_near_all_fit(mode: Mode) -> None:
    """Of three to eleven skills two that mean the same fit together, and nothing else does."""
    twins = [
        SearchDocument("rollbacks", "Undoes a migration."),
        SearchDocument("schema-changes", "Prepares a migration."),
    ]
    others = [*LIBRARY[1:], *(SearchDocument(f"w{number}", f"Waters plants in room {number}.") for number in range(6))]
    for size in range(1, len(others) + 1):
        found = rank(mode, Ranker(Topics()), [*twins, *others[:size]], UNNAMED).fitting
        assert sorted(found) == ["rollbacks", "schema-changes"], size


CAREER = (
    SearchDocument("resume-tailor", "Rewrites a CV or resume so that it matches a job description."),
    SearchDocument("cv-writer", "Tailors a CV to a job posting."),
    SearchDocument("job-applications", "Use when the user wants to adapt their CV or cover letter to a vacancy."),
)


def test_a_word_that_is_mostly_talk_does_not_hide_a_skill() -> None:
    """Of a short request a single telling word is enough in a small library."""
    for skill in CAREER:
        for size in (0, 3, 10):
            library = [*LIBRARY[:size], skill, *catalog("filler", size - len(LIBRARY))]
            assert ranked(Ranker(), library, "make my cv fit this job posting").fitting[:1] == [skill.name], (
                skill,
                size,
            )


def slowly(seconds: float) -> Callable[[Any], Any]:
    """Return a fault that only takes its time."""

    def late(vectors: Any) -> Any:
        time.sleep(seconds)
        return vectors

    return late


def raising(_vectors: object) -> object:
    raise ConnectionError("quota exceeded")


FAULTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "raises": (raising, "ConnectionError: quota exceeded"),
    "too few": (lambda vectors: vectors[1:], "3 vectors for 4 texts"),
    "too many": (lambda vectors: [*vectors, vectors[0]], "5 vectors for 4 texts"),
    "different lengths": (lambda vectors: [vectors[0][:-1], *vectors[1:]], "different lengths: 4, 5"),
    "another length": (lambda vectors: [[*vector, 1.0] for vector in vectors], "has 5 numbers, a skill's 6"),
    "empty": (lambda vectors: [[] for _ in vectors], "have 0 numbers"),
    "not a number": (lambda vectors: [[float("nan")] * 5 for _ in vectors], "not finite"),
    "infinite": (lambda vectors: [[float("inf")] * 5 for _ in vectors], "not finite"),
    "words": (lambda _vectors: ["abcde"] * 4, "does not hold lists of numbers"),
    "nothing": (lambda _vectors: None, "NoneType that does not hold"),
}


@both_modes
def test_embeddings_that_fail_leave_the_words(mode: Mode) -> None:
    """Whatever embeddings do wrong, the ranking by words serves and a reason is told; once well, meaning is back."""
    for case, (fault, reason) in FAULTS.items():
        topics = Topics()
        topics.fault = fault
        ranker = Ranker(topics, seconds=60)
        found = rank(mode, ranker, LIBRARY, "a postmortem please")
        assert found.fitting == ["incident-review"], case
        assert reason in (found.trouble or ""), case
        topics.fault = lambda vectors: vectors
        assert rank(mode, ranker, LIBRARY, UNNAMED).fitting[:1] == ["schema-changes"], case


@both_modes
def test_embeddings_that_are_late_leave_the_words(mode: Mode) -> None:
    """No ranking waits longer than it may for embeddings; once they answer in time, meaning is back."""
    topics = Topics()
    answering = threading.Event()
    topics.fault = lambda vectors: vectors if answering.wait(60) else None
    ranker = Ranker(topics, seconds=0.2)
    found = rank(mode, ranker, LIBRARY, "a postmortem please")
    assert found.fitting == ["incident-review"]
    assert "no answer within" in (found.trouble or "")
    answering.set()
    assert any(rank(mode, ranker, LIBRARY, UNNAMED).fitting[:1] == ["schema-changes"] for _ in range(100))


class BadQueries(Topics):
    """Embeddings that fail for requests."""

    def embed_query(self, text: str) -> Any:
        if "today" in text:
            raise ConnectionError
        return None


@both_modes
def test_requests_that_cannot_be_embedded_leave_the_words(mode: Mode) -> None:
    """A request's own vector may fail as well."""
    for text, reason in (("a postmortem, today", "ConnectionError"), ("a postmortem", "cannot be used")):
        topics = BadQueries()
        found = rank(mode, Ranker(topics), LIBRARY, text)
        assert found.fitting == ["incident-review"]
        assert reason in (found.trouble or "")
        assert topics.embedded == []


class Native(Topics):
    """Embeddings with async methods of their own."""

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        await asyncio.sleep(0)
        return self.embed_documents(texts)

    async def aembed_query(self, text: str) -> list[float]:
        assert asyncio.get_running_loop()
        return self.embed_query(text)


class Duck:
    """Embeddings without async twins, of no framework."""

    def __init__(self) -> None:
        self._topics = Topics()

    def embed_documents(self, texts: list[str]) -> Any:
        return tuple(map(tuple, self._topics.embed_documents(texts)))

    def embed_query(self, text: str) -> Any:
        return tuple(self._topics.embed_query(text))


@both_modes
def test_any_embeddings_will_do(mode: Mode) -> None:
    """Async methods of their own, or none at all: both work under both drivers."""
    for embeddings in (Native(), Duck()):
        assert rank(mode, Ranker(embeddings), LIBRARY, UNNAMED).fitting[:1] == ["schema-changes"]


@pytest.mark.parametrize("wrong", [object(), "text-embedding", Topics, lambda _text: [0.0]])
def test_what_are_no_embeddings_is_refused(wrong: Any) -> None:
    """A wrong argument is told at once."""
    with pytest.raises(TypeError, match="embed_documents"):
        Ranker(wrong)


@both_modes
def test_only_what_changed_is_embedded(mode: Mode) -> None:
    """Thousands of skills are embedded once, in batches; afterwards only new and changed ones."""
    topics = Topics()
    ranker = Ranker(topics, seconds=60)
    count = scaled(2_000, 10_000) if mode == "async" else 1_000
    [library] = benchmark.libraries(count)
    assert rank(mode, ranker, library, UNNAMED).trouble is None
    assert len(topics.embedded) == len(set(topics.embedded)) == count
    assert topics.calls < 200
    topics.embedded.clear()
    rank(mode, ranker, library, "another request about a trip to Lisbon")
    assert topics.embedded == []
    changed = [
        *library[:5],
        SearchDocument(library[5].name, "Now about something else."),
        *library[6:],
        SearchDocument("new", "New."),
    ]
    rank(mode, ranker, changed, UNNAMED)
    rank(mode, ranker, library, UNNAMED)
    assert len(topics.embedded) == 2


class Clock:
    """A clock that only a test moves."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@both_modes
def test_a_large_library_is_embedded_over_several_requests(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Embeddings too slow for one request go on with the next ones, which use what was embedded."""
    clock = Clock()
    monkeypatch.setattr(semantic, "time", clock)

    def minute(vectors: Any) -> Any:
        clock.now += 60
        return vectors

    topics = Topics()
    topics.fault = minute
    ranker = Ranker(topics, seconds=200)
    library = [*LIBRARY, *catalog("filler", 400)]
    first, second = (rank(mode, ranker, library, UNNAMED) for _ in range(2))
    in_time = 4 * semantic.BATCH
    assert f"{in_time} of 404 skills are embedded so far" in (first.trouble or "")
    assert (second.fitting[0], second.trouble) == ("schema-changes", None)
    assert len(topics.embedded) == len(set(topics.embedded)) == 404


@both_modes
def test_a_model_that_changes_is_noticed(mode: Mode) -> None:
    """Vectors of another length than the request's are made again, whatever the model is called."""
    topics = Topics()
    ranker = Ranker(topics)
    for size, model, embedded in ((5, "topics", 4), (9, "topics", 4), (9, "other", 4), (5, "topics", 0)):
        topics.size, topics.model = size, model
        topics.embedded.clear()
        found = rank(mode, ranker, LIBRARY, UNNAMED)
        assert (found.fitting[0], found.trouble, len(topics.embedded)) == ("schema-changes", None, embedded)


def test_threads_share_the_embedding() -> None:
    """Thirty users who ask at the same moment cost one embedding of each skill."""
    topics = Topics()
    topics.fault = slowly(0.02)
    ranker = Ranker(topics, seconds=60)
    library = [*LIBRARY, *catalog("filler", 300)]
    with ThreadPoolExecutor(30) as pool:
        found = list(pool.map(lambda _: ranked(ranker, library, UNNAMED), range(30)))
    assert {ranking.fitting[0] for ranking in found} == {"schema-changes"}
    assert len(topics.embedded) == 304


def test_tasks_share_the_embedding() -> None:
    """Runs on one event loop cost one embedding of each skill, and one that is cancelled leaves its part to others."""
    topics = Native()
    library = [*LIBRARY, *catalog("filler", 300)]
    second_batch = asyncio.Event()

    class Slow(Native):
        async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
            if topics.calls and not second_batch.is_set():
                second_batch.set()
                await asyncio.Event().wait()
            await asyncio.sleep(0.01)
            return topics.embed_documents(texts)

    async def main() -> list[Ranking]:
        ranker = Ranker(Slow(), seconds=60)
        leaving = asyncio.create_task(aranked(ranker, library, UNNAMED))
        await second_batch.wait()
        leaving.cancel()
        found = await asyncio.gather(*(aranked(ranker, library, UNNAMED) for _ in range(10)))
        assert leaving.cancelled()
        return found

    assert {ranking.fitting[0] for ranking in asyncio.run(main())} == {"schema-changes"}
    assert len(topics.embedded) == 304


# The store.


@both_modes
def test_a_store_serves_other_processes(mode: Mode) -> None:
    """With a store a second process embeds nothing, and later only what changed."""
    store = InMemoryStore()
    library = [*LIBRARY, *catalog("filler", 300)]
    first, second = Topics(), Topics()
    assert rank(mode, Ranker(first), library, UNNAMED, store=store).trouble is None
    again = Ranker(second)
    assert rank(mode, again, library, UNNAMED, store=store).fitting[0] == "schema-changes"
    assert (len(first.embedded), second.embedded) == (304, [])
    rank(mode, again, [*library, SearchDocument("new", "New.")], UNNAMED, store=store)
    assert len(second.embedded) == 1
    third = Topics()
    rank(mode, Ranker(third), [*library, SearchDocument("new", "New.")], UNNAMED, store=store)
    assert third.embedded == []


@both_modes
def test_a_store_keeps_models_apart(mode: Mode) -> None:
    """Vectors of another model in the store are never used, whether its name differs or only their length."""
    store = InMemoryStore()
    for embeddings in (Topics(model="other"), Topics(), Topics(dimensions=9), Topics(dimensions=9)):
        found = rank(mode, Ranker(embeddings), LIBRARY, UNNAMED, store=store)
        assert found.fitting[0] == "schema-changes"
    assert len(embeddings.embedded) == 0


@both_modes
def test_what_others_wrote_to_a_store_is_passed_over(mode: Mode) -> None:
    """Values of any shape in the store neither raise nor count."""
    store = InMemoryStore()
    rank(mode, Ranker(Topics()), LIBRARY, UNNAMED, store=store)
    [namespace] = store.list_namespaces(prefix=semantic.STORE_NAMESPACE)
    items = store.search(namespace)
    hostile: list[Any] = [None, "x", [], {"k": 1}, {"k": "!!"}, {"k": "AAA="}, {"k": "A" * 10_000_000}, {1: {}}, 7]
    for value in hostile:
        for item in items:
            known = dict.fromkeys(item.value["vectors"], next(iter(value.values()))) if value == {"k": 1} else value
            store.put(namespace, item.key, {"vectors": known})
        topics = Topics()
        found = rank(mode, Ranker(topics), LIBRARY, UNNAMED, store=store)
        assert (found.fitting[0], found.trouble, len(topics.embedded)) == ("schema-changes", None, 4)


class DownStore(InMemoryStore):
    """A store that does not answer."""

    def batch(self, ops: Any) -> Any:
        raise ConnectionError(f"{len(list(ops))} operations refused")

    async def abatch(self, ops: Any) -> Any:
        return self.batch(ops)


@both_modes
def test_a_store_that_fails_costs_no_ranking(mode: Mode) -> None:
    """Without its store meaning is still ranked, and the reason is told."""
    found = rank(mode, Ranker(Topics()), LIBRARY, UNNAMED, store=DownStore())
    assert found.fitting[0] == "schema-changes"
    assert "The store that keeps vectors failed: ConnectionError: 1 operations refused" in (found.trouble or "")


# Vectors.


def test_vectors_are_bounded() -> None:
    """What was not used for longest leaves, by size."""
    memory = VectorMemory(3 * 308)
    for key in "abc":
        memory.keep({key: check_vectors([[1.0, 0.0]], 1)[0]})
    memory.find(["a"])
    memory.keep({"d": check_vectors([[1.0, 0.0]], 1)[0]})
    assert set(memory.find("abcd")) == {"a", "c", "d"}
    memory.keep({"e": check_vectors([[1.0] * 6], 1)[0]})
    assert set(memory.find("abcde")) == {"d", "e"}


def test_models_are_told_apart() -> None:
    """The class and the model that it names make a model; a property that raises says nothing."""

    class Shy(Topics):
        @property
        def deployment(self) -> str:
            raise RuntimeError("not connected")

    assert len({model_identity(embeddings) for embeddings in (Topics(), Topics(model="b"), Shy(), Duck())}) == 4
    assert model_identity(Topics()) == model_identity(Topics())


def test_copies_remember_nothing() -> None:
    """A copy of a ranker shares the user's embeddings and nothing else."""
    topics = Topics()
    ranker = Ranker(topics)
    ranked(ranker, LIBRARY, UNNAMED)
    ranked(copy.deepcopy(ranker), LIBRARY, UNNAMED)
    assert len(topics.embedded) == 8


def test_any_text_is_ranked() -> None:
    """Surrogates, NUL and control characters in skills and requests are text like any other."""
    odd = [SearchDocument("\ud800", "\x00 \udfff postmortem"), SearchDocument("b\x01", "\u202e")]
    for ranker in (Ranker(), Ranker(Topics())):
        assert ranked(ranker, odd, "a postmortem \ud800 \x00").names[0] == "\ud800"


def test_what_is_remembered_of_libraries_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Edits of a library whose files hold all that they may do not add up."""
    big = entries(*(SearchDocument(f"skill-{number}", "d" * 1_500, "t" * 5_000, b"b" * 4_000) for number in range(40)))
    index = find_index(big)
    assert {len(document.tags) for document in index.documents} == {MAX_TAGS}
    assert index.weight > 40 * 7_500, "a skill counts with all of its texts"
    indexes = use_cache(monkeypatch, 3 * index.weight)
    for edit in range(20):
        find_index([*big[:-1], *entries(SearchDocument("edited", f"Edit {edit}."))])
    assert len(indexes) <= 3
