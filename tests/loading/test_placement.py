"""What becomes of the messages that carry skills' texts, decided without a graph."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepskills._loading.budget import LoadedSkills
from deepskills._loading.placement import Carrier, Decisions, decide
from deepskills._types import LoadRecord
from support import scaled

repeatable = settings(
    deadline=None,
    derandomize=True,
    max_examples=scaled(100, 1_000),
    suppress_health_check=[HealthCheck.too_slow],
)


def whole(position: int, skill: str, load: str = "new") -> Carrier:
    """Return a message whose text is all there; of several loads of a skill the one called `new` is in force."""
    return Carrier(position, skill, f"{skill}-{load}")


def emptied(position: int, skill: str, load: str = "new") -> Carrier:
    """Return a message whose text was evicted or cleared."""
    return Carrier(position, skill, f"{skill}-{load}", is_lost=True)


def lingering(position: int, skill: str) -> Carrier:
    """Return a message of an unloaded skill whose text stays until the prefix changes anyway."""
    return Carrier(position, skill, f"{skill}-old", is_lingering=True)


def undone(position: int, skill: str) -> Carrier:
    """Return a message of a load that was taken back."""
    return Carrier(position, skill, f"{skill}-old", is_undone=True)


def loaded_skills(**tokens: int) -> LoadedSkills:
    """Return what is loaded: each skill with what it costs, in load order, by the message called `new`."""
    records = {
        name: LoadRecord(path=f"/{name}", digest="d", tokens=cost, message=f"{name}-new")
        for name, cost in tokens.items()
    }
    return LoadedSkills(tuple(tokens), records)


@dataclass(frozen=True)
class Case:
    carriers: Sequence[Carrier]
    loaded: LoadedSkills
    expected: Decisions
    limit: int | None = 100


CASES = {
    "nothing": Case([], loaded_skills(), Decisions()),
    "present": Case([whole(2, "a")], loaded_skills(a=10), Decisions(kept=[2])),
    "present over the limit": Case([whole(2, "a")], loaded_skills(a=101), Decisions(kept=[2])),
    "unloaded": Case([whole(2, "a")], loaded_skills(), Decisions(notices={2: ("a", "unloaded")})),
    "unloaded and emptied": Case([emptied(2, "a")], loaded_skills(), Decisions(notices={2: ("a", "unloaded")})),
    "one of two unloaded": Case(
        [whole(2, "a"), whole(4, "b")], loaded_skills(b=10), Decisions(notices={2: ("a", "unloaded")}, kept=[4])
    ),
    "unloaded and lingering": Case([lingering(2, "a")], loaded_skills(), Decisions()),
    "lingering and loaded again": Case([lingering(2, "a"), whole(6, "a")], loaded_skills(a=10), Decisions(kept=[6])),
    "undone": Case([undone(2, "a")], loaded_skills(), Decisions(notices={2: ("a", "undone")})),
    "undone and loaded again": Case(
        [undone(2, "a"), whole(6, "a")], loaded_skills(a=10), Decisions(notices={2: ("a", "undone")}, kept=[6])
    ),
    "loaded again": Case(
        [whole(2, "a", "old"), whole(6, "a")],
        loaded_skills(a=10),
        Decisions(notices={2: ("a", "superseded")}, kept=[6]),
    ),
    "loaded three times": Case(
        [whole(2, "a", "first"), whole(6, "a", "second"), whole(9, "a")],
        loaded_skills(a=10),
        Decisions(notices={2: ("a", "superseded"), 6: ("a", "superseded")}, kept=[9]),
    ),
    "emptied": Case([emptied(2, "a")], loaded_skills(a=10), Decisions(restored={2: "a"})),
    "newer one emptied": Case(
        [whole(2, "a", "old"), emptied(6, "a")],
        loaded_skills(a=10),
        Decisions(restored={6: "a"}, notices={2: ("a", "superseded")}),
    ),
    "gone": Case([], loaded_skills(a=10), Decisions(inserted=["a"])),
    "gone except for an older text": Case(
        [whole(2, "a", "old")], loaded_skills(a=10), Decisions(inserted=["a"], notices={2: ("a", "superseded")})
    ),
    "all gone, in load order": Case([], loaded_skills(b=10, a=10, c=10), Decisions(inserted=["b", "a", "c"])),
    "gone, emptied, present": Case(
        [emptied(2, "b"), whole(4, "c")],
        loaded_skills(a=10, b=10, c=10),
        Decisions(inserted=["a"], restored={2: "b"}, kept=[4]),
    ),
    "room to the last token": Case([], loaded_skills(a=50, b=50), Decisions(inserted=["a", "b"])),
    "newest first": Case([], loaded_skills(a=50, b=50, c=1), Decisions(inserted=["b", "c"], omitted=["a"])),
    "newest first in place": Case(
        [emptied(2, "a"), emptied(4, "b")],
        loaded_skills(a=60, b=60),
        Decisions(restored={4: "b"}, notices={2: ("a", "no_room")}),
    ),
    "newest too large": Case([], loaded_skills(a=60, b=101), Decisions(inserted=["a"], omitted=["b"])),
    "present texts have their room first": Case(
        [whole(2, "a")], loaded_skills(a=60, b=60), Decisions(omitted=["b"], kept=[2])
    ),
    "present texts take more than all": Case(
        [whole(2, "a")], loaded_skills(a=300, b=0), Decisions(omitted=["b"], kept=[2])
    ),
    "emptied texts take no room": Case(
        [emptied(2, "a")], loaded_skills(a=60, b=60), Decisions(inserted=["b"], notices={2: ("a", "no_room")})
    ),
    "no room at all": Case([], loaded_skills(a=1), Decisions(omitted=["a"]), limit=0),
    "no limit": Case([], loaded_skills(a=10**9, b=10**9), Decisions(inserted=["a", "b"]), limit=None),
    "no record": Case([], LoadedSkills(("a",)), Decisions(inserted=["a"])),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_message_is_kept_replaced_or_restored(case: Case) -> None:
    """Each text stays, gives way to a notice or is put back, as what is loaded and the room for it say."""
    assert decide(case.carriers, case.loaded, case.limit) == case.expected


@dataclass(frozen=True)
class Scene:
    carriers: list[Carrier] = field(default_factory=list)
    loaded: LoadedSkills = field(default_factory=LoadedSkills)
    limit: int | None = None


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    names = st.sampled_from("abcd")
    loaded = draw(st.lists(names, unique=True))
    fates = draw(st.lists(st.tuples(names, st.booleans()), max_size=8))
    newest = {name: place for place, (name, _) in enumerate(fates) if draw(st.booleans())}
    carriers = [
        Carrier(2 * place, name, f"{name}-{'new' if newest.get(name) == place else place}", is_lost=is_lost)
        for place, (name, is_lost) in enumerate(fates)
    ]
    costs = {name: draw(st.integers(0, 60)) for name in loaded}
    return Scene(carriers, loaded_skills(**costs), draw(st.none() | st.integers(0, 150)))


@given(scenes())
@repeatable
def test_each_loaded_text_is_in_the_request_once_or_has_a_notice(scene: Scene) -> None:
    """Whatever was loaded, lost and unloaded: a loaded text is there once or has no room, no other text is there."""
    decisions = decide(scene.carriers, scene.loaded, scene.limit)

    left = [c for c in scene.carriers if c.position not in {*decisions.notices, *decisions.restored}]
    shown = [*(c.skill for c in left), *decisions.restored.values(), *decisions.inserted]
    without_room = [*decisions.omitted, *(name for name, why in decisions.notices.values() if why == "no_room")]
    assert sorted([*shown, *without_room]) == sorted(scene.loaded.names)
    assert sorted(decisions.kept) == [carrier.position for carrier in left]
    assert all(not carrier.is_lost and carrier.message.endswith("-new") for carrier in left)
    assert all(name not in scene.loaded.names for name, why in decisions.notices.values() if why == "unloaded")
    assert all(name in scene.loaded.names for name, why in decisions.notices.values() if why != "unloaded")


@given(scenes())
@repeatable
def test_what_is_put_back_has_room(scene: Scene) -> None:
    """Present texts and those put back stay within the limit together, and none is left out that would have fitted."""
    decisions = decide(scene.carriers, scene.loaded, scene.limit)

    without_room = {*decisions.omitted, *(name for name, why in decisions.notices.values() if why == "no_room")}
    used = sum(scene.loaded.size(name) for name in scene.loaded.names if name not in without_room)
    if scene.limit is None:
        assert not without_room
    elif decisions.put_back:
        assert used <= scene.limit
    assert all(scene.limit is not None and used + scene.loaded.size(name) > scene.limit for name in without_room)
