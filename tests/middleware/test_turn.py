"""Loads and unloads as decisions: what is granted, and how calls of one turn see each other."""

import pytest

from deepskills._loading.budget import (
    ASSUMED,
    AlreadyLoaded,
    Budgets,
    Loaded,
    LoadedSkills,
    LoadOutcome,
    NotLoaded,
    OverBudget,
    Prepared,
    Unloaded,
    Unreadable,
    decide_load,
    decide_unload,
    record_of,
)
from deepskills._middleware.turn import PreparedLoad, after_calls, decide_in_turn, loads_to_undo
from support.loads import entry_of as skill
from support.loads import loaded_skills
from support.loads import record_of_load as record


def ready(
    name: str, digest: str = "new", tokens: int = 100, failure: str | None = None, arguments: str = ""
) -> Prepared:
    """Return a skill that is ready to be loaded."""
    block = f"<block of {name}>"
    return Prepared(skill(name), arguments, block=block, digest=digest, tokens=tokens, failure=failure)


def test_a_standing_adds_up() -> None:
    """Sizes are those of loaded skills alone; loading again replaces the size and keeps the place."""
    before = loaded_skills(alpha=100, beta=50)

    grown = before.with_load("alpha", record("alpha", "new", 300))
    without = grown.without(["beta"])

    assert before.tokens == 150
    assert (grown.names, grown.tokens, grown.size("alpha")) == (("alpha", "beta"), 350, 300)
    assert (without.names, without.tokens, without.size("beta")) == (("alpha",), 300, 0)
    assert before.with_load("gamma", record("gamma")).names == ("alpha", "beta", "gamma")
    assert before.without(["zzz"]) == before
    assert LoadedSkills(("alpha",), {"alpha": record("alpha"), "stray": record("stray")}).tokens == 100
    assert [before.is_over(Budgets(*limits)) for limits in ((2, 150), (2, None), (1, None), (2, 149))] == [
        False,
        False,
        True,
        True,
    ]


ROOMY = Budgets(skills=10, tokens=50_000)
WITH_ARGUMENTS = LoadedSkills(("alpha",), {"alpha": record("alpha", arguments="one")})

LOADS: dict[str, tuple[Prepared, LoadedSkills, Budgets, type[LoadOutcome]]] = {
    "room": (ready("alpha"), loaded_skills(), ROOMY, Loaded),
    "just fits": (ready("alpha"), loaded_skills(beta=10), Budgets(2, 110), Loaded),
    "one token too many": (ready("alpha"), loaded_skills(beta=11), Budgets(2, 110), OverBudget),
    "no slot": (ready("alpha"), loaded_skills(beta=10), Budgets(1, None), OverBudget),
    "no token limit": (ready("alpha", tokens=10**9), loaded_skills(), Budgets(1, None), Loaded),
    "no slots at all": (ready("alpha"), loaded_skills(), Budgets(0, None), OverBudget),
    "no tokens at all": (ready("alpha", tokens=1), loaded_skills(), Budgets(1, 0), OverBudget),
    "unchanged": (ready("alpha", digest="old"), loaded_skills(alpha=100), ROOMY, AlreadyLoaded),
    "unchanged without room": (ready("alpha", digest="old"), loaded_skills(alpha=100), Budgets(0, 0), AlreadyLoaded),
    "changed takes its own slot": (ready("alpha"), loaded_skills(alpha=100), Budgets(1, 100), Loaded),
    "changed and too large": (ready("alpha", tokens=101), loaded_skills(alpha=100), Budgets(1, 100), OverBudget),
    "other arguments": (ready("alpha", digest="old", arguments="two"), WITH_ARGUMENTS, Budgets(1, 100), Loaded),
    "the same arguments": (ready("alpha", digest="old", arguments="one"), WITH_ARGUMENTS, ROOMY, AlreadyLoaded),
    "no arguments mean the same again": (ready("alpha", digest="old"), WITH_ARGUMENTS, ROOMY, AlreadyLoaded),
    "unreadable": (ready("alpha", failure="gone"), loaded_skills(), ROOMY, Unreadable),
    "unreadable goes before budgets": (ready("alpha", failure="gone"), loaded_skills(), Budgets(0, 0), Unreadable),
    "unreadable but loaded": (ready("alpha", failure="gone"), loaded_skills(alpha=100), ROOMY, AlreadyLoaded),
    "unreadable with other arguments": (
        ready("alpha", failure="gone", arguments="two"),
        WITH_ARGUMENTS,
        ROOMY,
        Unreadable,
    ),
}


@pytest.mark.parametrize(("prepared", "before", "budgets", "kind"), LOADS.values(), ids=LOADS)
def test_a_load_is_decided(prepared: Prepared, before: LoadedSkills, budgets: Budgets, kind: type[LoadOutcome]) -> None:
    """A load is granted, refused or unneeded, by what is loaded when its turn comes."""
    outcome = decide_load(prepared, before, budgets)
    assert type(outcome) is kind
    if isinstance(outcome, Loaded):
        is_changed = "alpha" in before.names and before.records["alpha"]["digest"] != prepared.digest
        assert outcome.updated == is_changed
        assert outcome.loaded.records["alpha"] == record_of(prepared)
        assert outcome.loaded.tokens <= (budgets.tokens or 10**10)
        assert len(outcome.loaded.names) <= budgets.skills


def test_what_is_crowded_is_told() -> None:
    """It is told when texts that linger have no room beside what is loaded, and when a loaded text may be left out."""
    full = LoadedSkills(("beta",), {"beta": record("beta")}, lingering=60)

    already = [decide_load(ready("beta", digest="old"), full, Budgets(9, tokens)) for tokens in (100, 99)]

    assert [full.is_crowded(Budgets(9, tokens)) for tokens in (160, 159, None)] == [False, True, False]
    assert already == [AlreadyLoaded("beta"), AlreadyLoaded("beta", crowded=True)]


def test_an_unload_is_decided() -> None:
    """What is loaded can be unloaded by its name in any case; nothing else can."""
    table = {"alpha": ("beta",), "BETA": ("alpha",), "`alpha`": ("beta",), "gamma": None, "": None}
    for asked, left in table.items():
        outcome = decide_unload(asked, loaded_skills(alpha=100, beta=100))

        assert type(outcome) is (NotLoaded if left is None else Unloaded), asked
        if isinstance(outcome, Unloaded):
            assert outcome.loaded.names == left, asked
            assert outcome.loaded.tokens == 100, asked


def calls(text: str, failure: str | None = None) -> list[str | PreparedLoad]:
    """Return calls from their short form: `+alpha -beta`."""
    return [(ready(word[1:], failure=failure), ()) if word[0] == "+" else word[1:] for word in text.split()]


TURNS: list[tuple[str, LoadedSkills, Budgets, str]] = [
    ("", loaded_skills(alpha=100), ROOMY, "alpha"),
    ("+alpha +beta", loaded_skills(), ROOMY, "alpha beta"),
    ("+beta +alpha +beta", loaded_skills(), ROOMY, "beta alpha"),
    ("+alpha -alpha", loaded_skills(), ROOMY, ""),
    ("-alpha +alpha", loaded_skills(alpha=100, beta=100), ROOMY, "beta alpha"),
    ("+alpha -Alpha +alpha", loaded_skills(), ROOMY, "alpha"),
    ("-alpha -alpha", loaded_skills(alpha=100), ROOMY, ""),
    ("-gamma", loaded_skills(alpha=100), ROOMY, "alpha"),
    ("+alpha +beta +gamma", loaded_skills(), Budgets(2, None), "alpha beta"),
    ("+alpha +beta -alpha +gamma", loaded_skills(), Budgets(1, None), "gamma"),
    ("+alpha +beta +gamma", loaded_skills(), Budgets(9, 250), "alpha beta"),
    ("-alpha +beta", loaded_skills(alpha=200), Budgets(9, 250), "beta"),
    ("-", loaded_skills(alpha=100), ROOMY, "alpha"),
]


@pytest.mark.parametrize(("turn", "before", "budgets", "after"), TURNS, ids=[turn for turn, *_ in TURNS])
def test_earlier_calls_of_a_turn_are_taken_into_account(
    turn: str, before: LoadedSkills, budgets: Budgets, after: str
) -> None:
    """A call starts from what the calls before it leave, with the same budgets and the same names."""
    left = after_calls(calls(turn), before, budgets).loaded
    assert " ".join(left.names) == after
    assert sorted(left.records) == sorted(left.names)


def test_an_earlier_load_that_cannot_be_read_here_takes_all_the_room() -> None:
    """A call that cannot look at what an earlier one was granted assumes the most, so no budget is overshot."""
    so_far = after_calls(calls("+alpha", failure="no answer"), loaded_skills(beta=100), Budgets(9, 250))

    assert so_far.loaded.records["alpha"]["digest"] == ASSUMED
    assert so_far.loaded.is_assumed
    assert so_far.loaded.tokens == 250
    assert isinstance(decide_load(ready("gamma", tokens=1), so_far.loaded, Budgets(9, 250)), OverBudget)


def test_a_load_remembers_the_unloads_that_it_needs() -> None:
    """A load notes which unloads of its turn made room for it; one that fits anyway notes none."""
    before = loaded_skills(alpha=100)
    relied = []
    for budgets in (Budgets(1, None), Budgets(9, 199), Budgets(2, 200)):
        so_far = after_calls(calls("-alpha"), before, budgets)
        outcome, along = decide_in_turn(ready("beta"), so_far, before, budgets)
        assert along == []
        assert isinstance(outcome, Loaded)
        relied.append(outcome.relies_on)

    assert relied == [("alpha",), ("alpha",), ()]


def test_a_load_whose_unload_was_refused_is_undone_as_far_as_there_is_no_room() -> None:
    """Of loads that relied on an unload which did not happen, the newest go until the rest fits."""
    relying = {name: record(name, relies_on=["alpha"]) for name in ("beta", "gamma")}
    loaded = LoadedSkills(("alpha", "beta", "gamma"), {"alpha": record("alpha"), **relying})

    undone = [loads_to_undo(loaded, Budgets(skills, None)) for skills in (3, 2, 1)]

    assert undone == [[], ["gamma"], ["gamma", "beta"]]
    assert loads_to_undo(loaded.without(["alpha"]), Budgets(1, None)) == []
