"""What becomes of the messages that carry skills, decided without a graph; what is remembered; what is an overflow."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.exceptions import ContextOverflowError

from deepskills._agent.request import TextMemory, is_overflow
from deepskills._agent.session import fingerprint
from deepskills._loading.decisions import Standing
from deepskills._loading.placement import Carrier, Decisions, decide
from deepskills._types import LoadRecord

repeatable = settings(deadline=None, derandomize=True, max_examples=300)


# --- decisions -------------------------------------------------------------------------------------------------------


def whole(position: int, skill: str, digest: str = "new") -> Carrier:
    """Return a message whose text is all there."""
    return Carrier(position, skill, digest, intact=True)


def emptied(position: int, skill: str, digest: str = "new") -> Carrier:
    """Return a message whose text was cleared or shortened."""
    return Carrier(position, skill, digest, intact=False)


def standing(**tokens: int) -> Standing:
    """Return what is loaded: each skill with what it costs, in load order, as its file was when it was `new`."""
    records = {name: LoadRecord(path=f"/{name}", digest="new", tokens=cost) for name, cost in tokens.items()}
    return Standing(tuple(tokens), records)


@dataclass(frozen=True)
class Case:
    carriers: Sequence[Carrier]
    loaded: Standing
    expected: Decisions
    limit: int | None = 100


CASES = {
    "nothing": Case([], standing(), Decisions()),
    "present": Case([whole(2, "a")], standing(a=10), Decisions()),
    "present-over-the-limit": Case([whole(2, "a")], standing(a=101), Decisions()),
    "unloaded": Case([whole(2, "a")], standing(), Decisions(notices={2: ("a", "unloaded")})),
    "unloaded-and-emptied": Case([emptied(2, "a")], standing(), Decisions(notices={2: ("a", "unloaded")})),
    "one-of-two-unloaded": Case(
        [whole(2, "a"), whole(4, "b")], standing(b=10), Decisions(notices={2: ("a", "unloaded")})
    ),
    "loaded-again": Case([whole(2, "a"), whole(6, "a")], standing(a=10), Decisions(notices={2: ("a", "superseded")})),
    "loaded-thrice": Case(
        [whole(2, "a"), whole(6, "a"), whole(9, "a")],
        standing(a=10),
        Decisions(notices={2: ("a", "superseded"), 6: ("a", "superseded")}),
    ),
    "loaded-anew": Case(
        [whole(2, "a", "old"), whole(6, "a")], standing(a=10), Decisions(notices={2: ("a", "superseded")})
    ),
    "loaded-anew-and-back": Case(
        [whole(2, "a"), whole(6, "a", "old"), whole(9, "a")],
        standing(a=10),
        Decisions(notices={2: ("a", "superseded"), 6: ("a", "superseded")}),
    ),
    "emptied": Case([emptied(2, "a")], standing(a=10), Decisions(restored={2: "a"})),
    "newer-emptied": Case(
        [whole(2, "a"), emptied(6, "a")],
        standing(a=10),
        Decisions(restored={6: "a"}, notices={2: ("a", "superseded")}),
    ),
    "gone": Case([], standing(a=10), Decisions(inserted=["a"])),
    "gone-but-for-an-older-text": Case(
        [whole(2, "a", "old")], standing(a=10), Decisions(inserted=["a"], notices={2: ("a", "superseded")})
    ),
    "all-gone-in-load-order": Case([], standing(b=10, a=10, c=10), Decisions(inserted=["b", "a", "c"])),
    "gone-emptied-present": Case(
        [emptied(2, "b"), whole(4, "c")],
        standing(a=10, b=10, c=10),
        Decisions(inserted=["a"], restored={2: "b"}),
    ),
    "room-to-the-last-token": Case([], standing(a=50, b=50), Decisions(inserted=["a", "b"])),
    "newest-first": Case([], standing(a=50, b=50, c=1), Decisions(inserted=["b", "c"], omitted=["a"])),
    "newest-first-in-place": Case(
        [emptied(2, "a"), emptied(4, "b")],
        standing(a=60, b=60),
        Decisions(restored={4: "b"}, notices={2: ("a", "no_room")}),
    ),
    "newest-too-large": Case([], standing(a=60, b=101), Decisions(inserted=["a"], omitted=["b"])),
    "present-texts-have-their-room-first": Case([whole(2, "a")], standing(a=60, b=60), Decisions(omitted=["b"])),
    "present-texts-take-more-than-all": Case([whole(2, "a")], standing(a=300, b=0), Decisions(omitted=["b"])),
    "emptied-texts-take-no-room": Case(
        [emptied(2, "a")], standing(a=60, b=60), Decisions(inserted=["b"], notices={2: ("a", "no_room")})
    ),
    "no-room-at-all": Case([], standing(a=1), Decisions(omitted=["a"]), limit=0),
    "no-limit": Case([], standing(a=10**9, b=10**9), Decisions(inserted=["a", "b"]), limit=None),
    "no-record": Case([whole(2, "a")], Standing(("a",)), Decisions()),
    "no-record-and-gone": Case([], Standing(("a",)), Decisions(inserted=["a"])),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_carrier_has_its_fate(case: Case) -> None:
    """Each text stays, gives way to a notice or is put back, as what is loaded and the room for it say."""
    assert decide(case.carriers, case.loaded, case.limit) == case.expected


@dataclass(frozen=True)
class Scene:
    carriers: list[Carrier] = field(default_factory=list)
    loaded: Standing = field(default_factory=Standing)
    limit: int | None = None


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    names = st.sampled_from("abcd")
    loaded = draw(st.lists(names, unique=True))
    fates = draw(st.lists(st.tuples(names, st.sampled_from(["old", "new"]), st.booleans()), max_size=8))
    carriers = [Carrier(2 * n, name, digest, intact) for n, (name, digest, intact) in enumerate(fates)]
    costs = {name: draw(st.integers(0, 60)) for name in loaded}
    return Scene(carriers, standing(**costs), draw(st.none() | st.integers(0, 150)))


@given(scenes())
@repeatable
def test_each_loaded_text_is_once_in_the_request_or_has_a_notice(scene: Scene) -> None:
    """Whatever was loaded, lost and unloaded: a loaded text is there once or has no room, no other text is there."""
    decisions = decide(scene.carriers, scene.loaded, scene.limit)

    left = [c for c in scene.carriers if c.position not in {*decisions.notices, *decisions.restored}]
    shown = [*(c.skill for c in left), *decisions.restored.values(), *decisions.inserted]
    without_room = [*decisions.omitted, *(name for name, why in decisions.notices.values() if why == "no_room")]
    assert sorted([*shown, *without_room]) == sorted(scene.loaded.loaded)
    assert all(carrier.intact and carrier.digest == "new" for carrier in left)
    assert all(name not in scene.loaded.loaded for name, why in decisions.notices.values() if why == "unloaded")
    assert all(name in scene.loaded.loaded for name, why in decisions.notices.values() if why != "unloaded")


@given(scenes())
@repeatable
def test_what_is_put_back_has_room(scene: Scene) -> None:
    """Present texts and those put back stay within the limit together, and none is left out that would have fitted."""
    decisions = decide(scene.carriers, scene.loaded, scene.limit)

    without_room = {*decisions.omitted, *(name for name, why in decisions.notices.values() if why == "no_room")}
    used = sum(scene.loaded.size(name) for name in scene.loaded.loaded if name not in without_room)
    if scene.limit is None:
        assert not without_room
    elif decisions.put_back:
        assert used <= scene.limit
    assert all(scene.limit is not None and used + scene.loaded.size(name) > scene.limit for name in without_room)


# --- memory ----------------------------------------------------------------------------------------------------------


def remembered(memory: TextMemory, *texts: str) -> list[str]:
    return [text for text in texts if memory.get(fingerprint(text)) == text]


def test_a_text_is_remembered_by_its_fingerprint() -> None:
    """What was put in is given back for its own fingerprint, and for no other."""
    memory = TextMemory()
    memory.put("one")

    assert memory.get(fingerprint("one")) == "one"
    assert memory.get(fingerprint("two")) is None
    assert memory.get("") is None


def test_a_text_put_in_again_takes_no_more_room() -> None:
    """The same text counts once, however often it is put in."""
    memory = TextMemory(size=10)
    for text in ("1234567", "1234567", "1234567", "abc"):
        memory.put(text)

    assert remembered(memory, "1234567", "abc") == ["1234567", "abc"]


def test_the_longest_unused_text_is_forgotten_first() -> None:
    """Memory is bounded; what was asked for lately outlives what was not."""
    memory = TextMemory(size=9)
    for text in ("aaa", "bbb", "ccc"):
        memory.put(text)
    memory.get(fingerprint("aaa"))
    memory.put("ddd")

    assert remembered(memory, "aaa", "bbb", "ccc", "ddd") == ["aaa", "ccc", "ddd"]


def test_a_text_larger_than_the_memory_is_remembered_alone() -> None:
    """The latest text is always there, whatever its length, and goes when the next one comes."""
    memory = TextMemory(size=3)
    memory.put("12")
    memory.put("1234567890")
    assert remembered(memory, "12", "1234567890") == ["1234567890"]

    memory.put("ab")
    assert remembered(memory, "1234567890", "ab") == ["ab"]


def test_threads_share_a_memory() -> None:
    """Many threads at once leave a memory that holds what it may, and no text under another's fingerprint."""
    memory = TextMemory(size=1_000)
    texts = [[f"{thread}-{number}".ljust(20, ".") for number in range(20)] for thread in range(8)]

    def work(own: list[str]) -> None:
        for text in own * 25:
            memory.put(text)
            assert memory.get(fingerprint(text)) in (None, text)

    threads = [threading.Thread(target=work, args=(own,)) for own in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(remembered(memory, *(text for own in texts for text in own))) == 50


# --- overflow --------------------------------------------------------------------------------------------------------


class ApiError(Exception):
    """What a provider's client raises."""

    def __init__(self, message: str, status_code: object = 400) -> None:
        super().__init__(message)
        self.status_code = status_code


OVERFLOWS = {
    "langchain": ContextOverflowError("whatever"),
    "openai": ApiError("This model's maximum context length is 8192 tokens. However, you requested 9000 tokens."),
    "openai-code": ApiError("Error code: 400 - {'error': {'code': 'context_length_exceeded'}}"),
    "openai-responses": ApiError("Your input exceeds the context window of this model."),
    "openai-limit": ApiError("Input tokens exceed the configured limit of 272000 tokens."),
    "anthropic": ApiError("prompt is too long: 210000 tokens > 200000 maximum"),
    "litellm": ApiError("litellm.ContextWindowExceededError: too long"),
    "llama.cpp": ApiError("the request exceeds the available context size"),
    "context-limit": ApiError("Context limit exceeded"),
    "http-413": ApiError("Context window exceeded", 413),
    "http-422": ApiError("Maximum context length is 4096", 422),
}


@pytest.mark.parametrize("error", OVERFLOWS.values(), ids=OVERFLOWS)
def test_a_refusal_for_length_is_recognized(error: Exception) -> None:
    """What providers say when a request is too long, and what deepagents takes for it, counts as an overflow."""
    assert is_overflow(error)


OTHER_ERRORS = {
    "no-status": ValueError("maximum context length"),
    "bad-request": ApiError("Invalid schema for function 'clock'."),
    "rate-limit": ApiError("Rate limit reached: context length 8192", 429),
    "server": ApiError("context length service unavailable", 503),
    "status-as-text": ApiError("maximum context length", "400"),
    "timeout": TimeoutError("context window"),
}


@pytest.mark.parametrize("error", OTHER_ERRORS.values(), ids=OTHER_ERRORS)
def test_other_errors_are_no_overflow(error: Exception) -> None:
    """An error that only speaks of context, or a bad request for another reason, does not count as one."""
    assert not is_overflow(error)
