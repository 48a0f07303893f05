"""`deepskills.evals`: what is measured, what it costs, where it stops, and what is told when something is wrong."""

import asyncio
import json
import threading
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from evals_support import NO, YES, asked, counted, grader, loader, tea_library, tea_tasks, tea_triggers
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from deepskills import SkillsMiddleware, evals
from deepskills.testing import ScriptedChatModel, call_tools
from support import MODES, Mode, disk, hand_written_graph, load, skill_md, write_files

both_modes = pytest.mark.parametrize("mode", MODES)
EXAMPLES = Path(__file__).parents[2] / "examples" / "skills"


def evaluated(mode: Mode, skill: Path, model: Any, **options: Any) -> evals.EvalReport:
    if mode == "sync":
        return evals.evaluate(skill, model, **options)
    return asyncio.run(evals.aevaluate(skill, model, **options))


def test_the_example_skills_are_found_without_a_model() -> None:
    """Each has queries and tasks of its own, and ranks first for most of what it is for."""
    found = {}
    for place in sorted(EXAMPLES.iterdir()):
        report = evals.rank_triggers(place)
        assert report.evals.problems == ()
        assert len(report.evals.triggers) >= 12
        assert len(report.evals.tasks) >= 3
        assert {True, False} == {item.should_trigger for item in report.evals.triggers}
        found[report.skill] = report.pass_rate or 0
    assert len(found) == 5
    assert [name for name, rate in found.items() if rate < 0.8] == []
    assert evals.find_overlaps(EXAMPLES).overlaps[2:] == ()


def test_without_a_model_it_says_what_would_be_suggested_instead(tmp_path: Path) -> None:
    """A query that leads elsewhere is wrong, and so is one that leads here and should not; both are told."""
    queries = [("Steep green tea", True), ("Repair the printer", True), ("A pot of oolong tea", False), ("xyzzy", True)]
    skill = tea_library(tmp_path, [{"query": query, "should_trigger": should} for query, should in queries])
    report = evals.rank_triggers(skill)
    assert [item.rank for item in report.triggers] == [1, None, 1, None]
    assert [item.is_ranked_right for item in report.triggers] == [True, False, False, False]
    assert report.triggers[1].instead == ("printer",)
    assert (report.recall, report.restraint, report.pass_rate) == (evals.Rate(1, 3), evals.Rate(0, 1), 0.25)
    shown = str(report)
    assert "tea: 4 requests among 3 skills, ranked without a model" in shown
    assert "Repair the printer: is not suggested; suggested instead: printer" in shown
    assert "A pot of oolong tea: ranks first, but should not load" in shown
    assert "xyzzy: is not suggested; nothing is suggested" in shown
    assert "should load   ███████·············  1 of 3   33%  (95 % sure: 6% to 79%)" in shown


@both_modes
def test_every_column_with_a_model_that_loads_always_never_and_sometimes(mode: Mode, tmp_path: Path) -> None:
    """Loads are counted by query, with a confidence; what should not load and does is wrong."""
    skill = tea_library(tmp_path, triggers=tea_triggers()[1:3], tasks={"evals": []})
    turns: list[str] = []

    def sometimes(query: str) -> bool:
        turns.append(query)
        return turns.count(query) == 2

    expected: dict[str, tuple[list[int], float]] = {
        "always": ([3, 3], 0.5),
        "never": ([0, 0], 0.5),
        "right": ([3, 0], 1.0),
        "sometimes": ([1, 1], 0.5),
    }
    rules = {"always": lambda _: True, "never": lambda _: False, "right": YES.__contains__, "sometimes": sometimes}
    shown: dict[str, str] = {}
    for kind, (loads, rate) in expected.items():
        report = evaluated(mode, skill, loader(rules[kind]))
        shown[kind] = str(report)
        assert [(item.loads.part, item.loads.whole) for item in report.triggers] == [(part, 3) for part in loads], kind
        assert report.pass_rate == rate, kind
        # A run ends with the load that it waits for: one call. Others answer, in one call too.
        assert {outcome.steps for outcome in report.outcomes} == {1}
        assert report.tokens == 6 * 110
    assert "  3/3     ████████████████████       330  yes     How long does oolong steep?\n" in shown["right"]
    assert "  0/3     ····················       330  no      Fix the printer." in shown["right"]
    assert "should load   ████████████████████  3 of 3  100%  (95 % sure: 44% to 100%)" in shown["right"]
    line = "  1/3     ███████·············       330  yes     How long does oolong steep?  <- sometimes"
    assert line in shown["sometimes"]
    assert "no      Fix the printer.  <- wrong" in shown["always"]
    assert "yes     How long does oolong steep?  <- wrong" in shown["never"]


@both_modes
def test_tasks_are_compared_with_and_without_the_skill(mode: Mode, tmp_path: Path) -> None:
    """The skill's text helps where it is there; what holds without it as well is marked as proving nothing."""
    skill = tea_library(tmp_path, triggers=[])
    started: list[evals.Estimate] = []
    steps: list[evals.Progress] = []
    model = loader(lambda _: True)
    report = evaluated(
        mode, skill, model, grader=grader(), on_start=started.append, on_progress=steps.append, timeout=600
    )
    assert report.stopped is None
    assert (report.passed, report.passed_without) == (evals.Rate(3, 3), evals.Rate(2, 3))
    first = report.tasks[0]
    assert (first.task.id, report.tasks[1].task.expectations) == ("1", ("A cup is named.",))
    assert [first.proves_nothing(place) for place in (0, 1)] == [False, True]
    assert first.verdicts[0].evidence == "looked at 1. The time is given."
    assert (first.with_skill.loaded, first.without and first.without.loaded) == (("tea",), ())
    assert (first.with_skill.tokens, first.with_skill.steps) == (220, 2)
    assert [told["role"] for told in first.with_skill.transcript] == ["human", "ai", "tool load_skill", "ai"]
    assert "load_skill({'skill_name': 'tea'})" in first.with_skill.transcript[1]["text"]
    assert (started[0].runs, started[0].gradings) == (4, 4)
    assert started[0].calls >= 8
    assert "4 agent runs and 4 gradings: about" in str(started[0])
    assert [(step.done, step.total) for step in steps] == [(number, 8) for number in range(1, 9)]
    shown = str(report)
    assert "  1       ████████████████████ 2/2  ██████████·········· 1/2" in shown
    assert "prove nothing, because they also hold without the skill:\n    1: It is polite." in shown
    data = report.as_dict()
    json.dumps(data)
    assert data["tasks"][0]["expectations"][1]["proves_nothing"] is True
    assert data["grader"] == "ScriptedChatModel"


def test_an_agent_sees_the_library_and_nothing_else(tmp_path: Path) -> None:
    """It has the task's files; not its evals, no file of the machine, no skill that is left out. It changes nothing."""
    skill = tea_library(tmp_path, triggers=[])
    (tmp_path / "songs" / "link.txt").symlink_to("/etc/hostname")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    seen: list[str] = []
    calls = [
        ("glob", {"pattern": "**/*", "path": "/"}),
        ("read_file", {"file_path": "/leaves.txt"}),
        ("read_file", {"file_path": "/etc/hostname"}),
        ("write_file", {"file_path": "/skills/00000/printer/x.txt", "content": "x"}),
        ("edit_file", {"file_path": "/skills/00000/printer/SKILL.md", "old_string": "Repairs", "new_string": "X"}),
        load("tea"),
    ]

    def reply(messages: list[BaseMessage]) -> AIMessage:
        answers = [str(message.text) for message in messages if isinstance(message, ToolMessage)]
        if not answers:
            return call_tools(*calls)
        seen.append("\n".join(answers))
        return AIMessage("Done.")

    evals.measure_tasks(skill, ScriptedChatModel(replies=reply), grader=grader(), timeout=600)
    with_skill, without = seen[:2]
    assert "/tea/SKILL.md" in with_skill
    assert "SECRET-MINUTES" in with_skill
    assert "SECRET-MINUTES" not in without
    assert "/tea/" not in without
    for text in (with_skill, without):
        assert "green leaves" in text
        assert "triggers.json" not in text
        assert "link.txt" not in text
        assert "/printer/SKILL.md" in text
        assert text.count("The skills here are read-only: ") == 2
        assert "'/etc/hostname' not found" in text
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@both_modes
def test_what_goes_wrong_in_a_run_is_told(mode: Mode, tmp_path: Path) -> None:
    """A grader's nonsense, a model that raises or never ends: each is part of the report, none ends it badly."""
    skill = tea_library(tmp_path, triggers=tea_triggers()[:1])
    nonsense = ScriptedChatModel(replies=lambda _: AIMessage("All passed! Well done."))
    report = evaluated(mode, skill, loader(lambda _: True), grader=nonsense, runs=1)
    assert report.passed == evals.Rate(0, 3)
    assert "not graded: The time is given." in str(report)
    assert "did not answer with verdicts: 'All passed! Well done.'" in report.tasks[0].verdicts[0].evidence
    half = ScriptedChatModel(replies=lambda _: AIMessage('[{"number": 2, "passed": true}, 7, {"number": 1}]'))
    report = evaluated(mode, skill, loader(lambda _: True), grader=half, runs=1)
    assert [verdict.passed for verdict in report.tasks[0].verdicts] == [None, True]

    def raises(_: list[BaseMessage]) -> AIMessage:
        raise RuntimeError("no credit")

    report = evaluated(mode, skill, ScriptedChatModel(replies=raises), grader=grader(), runs=9)
    assert report.stopped == "5 runs in a row failed, the last with: RuntimeError: no credit"
    assert [outcome.status for outcome in report.outcomes] == ["failed"] * 4
    assert report.pass_rate == 0
    assert "4 runs ended early: RuntimeError: no credit" in str(report)

    endless = ScriptedChatModel(replies=lambda _: counted(call_tools(("ls", {"path": "/"}))))
    report = evaluated(mode, skill, endless, grader=grader(), runs=1, max_steps=3)
    assert {(outcome.status, outcome.steps) for outcome in report.outcomes} == {("over-steps", 3)}
    assert "with the skill: not finished after 3 model calls" in str(report)
    assert report.recall == evals.Rate(0, 1)


@both_modes
def test_a_model_that_stalls_is_given_up(mode: Mode, tmp_path: Path) -> None:
    """A call that never returns costs its time limit, and the next run is made."""
    skill = tea_library(tmp_path, triggers=tea_triggers()[:2], tasks={"evals": []})
    released = threading.Event()

    def stalls(messages: list[BaseMessage]) -> AIMessage:
        if asked(messages) == YES[0]:
            released.wait()
        return counted(call_tools(load("tea")))

    model = ScriptedChatModel(replies=stalls)
    # The threads of an event loop cannot be given up: the call returns once it has counted as late.
    report = evaluated(mode, skill, model, runs=1, timeout=1, on_progress=lambda _: released.set())
    first = report.triggers[0].outcomes[0]
    assert first.status == "timed-out"
    assert first.error is not None
    assert first.error.startswith("timed out after ")
    assert report.triggers[0].right == evals.Rate(0, 1)


@both_modes
def test_a_budget_stops_it_and_a_journal_goes_on(mode: Mode, tmp_path: Path) -> None:
    """It stops at the limit, keeps what it has, and makes each run once over all attempts."""
    skill, journal = tea_library(tmp_path / "library"), tmp_path / "journal.jsonl"
    model, judge = loader(YES.__contains__), grader()
    whole = evaluated(mode, skill, loader(YES.__contains__), grader=grader(), runs=2)
    assert whole.stopped is None
    attempts: list[evals.EvalReport] = []
    while not attempts or attempts[-1].stopped:
        assert len(attempts) < 20
        attempts.append(evaluated(mode, skill, model, grader=judge, runs=2, max_tokens=500, journal=journal))
        with journal.open("a") as file:
            file.write('{"key": "trigger 0 0", "outcome": {"sta')  # as a process that was killed leaves it
        if attempts[-1].stopped is None:
            assert journal.read_text().count("\n") == 0  # removed at the end, but for what this test wrote
    assert len(attempts) > 2
    assert attempts[0].stopped is not None
    assert "the budget is used up" in attempts[0].stopped
    assert "it continues from there" in attempts[0].stopped
    last = attempts[-1]
    assert (last.recall, last.restraint, last.passed) == (whole.recall, whole.restraint, whole.passed)
    finished = sum(outcome.status != "over-budget" for outcome in whole.outcomes)
    assert finished == 8 + 4
    # A run that the limit cut off is made again; all others are made once.
    assert sum(report.tokens for report in attempts) < whole.tokens + len(attempts) * 220


def test_an_interrupted_evaluation_goes_on(tmp_path: Path) -> None:
    """What was done before an interrupt is not done again; failures are."""
    skill, journal = tea_library(tmp_path / "library"), tmp_path / "state" / "journal.jsonl"
    model = loader(YES.__contains__)

    def interrupts(step: evals.Progress) -> None:
        if step.done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evals.evaluate(skill, model, grader=grader(), runs=1, journal=journal, on_progress=interrupts)
    before = len(model.requests)
    left: list[evals.Estimate] = []
    report = evals.evaluate(skill, model, grader=grader(), runs=1, journal=journal, on_start=left.append)
    assert (left[0].runs, left[0].gradings) == (3, 4)
    assert len(report.triggers) == 4
    assert len(report.tasks) == 2
    assert before == 4 + 1
    assert len(model.requests) == before + 3
    assert not journal.exists()


def broken_files() -> dict[str, tuple[Any, Any, str]]:
    """Return what an author may get wrong: the two files' contents, and what is told, with its place."""
    fine = tea_triggers()
    none: dict[str, Any] = {"evals": []}
    task = {"id": 1, "prompt": "Brew.", "expectations": ["Good."]}
    return {
        "not JSON": ("[\n  {,}\n]", none, "triggers.json:2:4: eval-file-broken: is not JSON: Expecting property name"),
        "not a list": ({"a": 1}, none, "triggers.json: eval-entry-invalid: must be a list of queries, not an object"),
        "not an object": ([*fine, 7], none, "triggers.json[4]: eval-entry-invalid: must be an object"),
        "no query": ([{"should_trigger": True}], none, "[0].query: eval-entry-invalid: must be text, not nothing"),
        "no verdict": (
            [{"query": "x", "should_trigger": "yes"}],
            none,
            "[0].should_trigger: eval-entry-invalid: must be",
        ),
        "long": ([{"query": "x" * 30_000, "should_trigger": True}], none, "[0].query: eval-entry-invalid: has 30,000"),
        "nested": ("[" * 100_000, none, "triggers.json: eval-file-broken: is not usable JSON"),
        "no evals": (fine, [], "evals.json.evals: eval-entry-invalid: must be a list of tasks"),
        "other skill": (fine, {"skill_name": "coffee", **none}, "evals.json.skill_name: eval-entry-odd: is 'coffee'"),
        "no id": (fine, {"evals": [{**task, "id": None}]}, "evals.json.evals[0].id: eval-entry-invalid: must be"),
        "twice": (fine, {"evals": [task, task]}, "evals.json.evals[1].id: eval-entry-invalid: is '1', as another"),
        "no aim": (
            fine,
            {"evals": [{"id": 1, "prompt": "x"}]},
            "evals[0]: eval-entry-invalid: has neither expectations",
        ),
        "climbs": (
            fine,
            {"evals": [{**task, "files": ["../x"]}]},
            "evals[0].files[0]: eval-entry-invalid: must be a path",
        ),
        "absolute": (fine, {"evals": [{**task, "files": ["/etc/passwd"]}]}, "files[0]: eval-entry-invalid: must be a"),
        "linked": (
            fine,
            {"evals": [{**task, "files": ["evals/out"]}]},
            "files[0]: eval-entry-invalid: evals/out cannot",
        ),
        "absent": (fine, {"evals": [{**task, "files": ["evals/no"]}]}, "files[0]: eval-entry-invalid: evals/no cannot"),
        "wrong list": (fine, {"evals": [{**task, "expectations": "x"}]}, "evals[0].expectations: eval-entry-invalid"),
    }


def test_what_is_wrong_with_the_files_is_told_with_its_place(tmp_path: Path) -> None:
    """Each mistake becomes a problem that says where it is; the entries that are right are used."""
    missing = []
    for number, (name, (triggers, tasks, told)) in enumerate(broken_files().items()):
        skill = tea_library(tmp_path / str(number), triggers, tasks)
        (skill / "evals" / "out").symlink_to("/etc/hostname")
        if isinstance(triggers, str):
            (skill / "evals" / "triggers.json").write_text(triggers)
        found = evals.read_evals(skill)
        lines = [f"{problem['path']}: {problem['code']}: {problem['message']}" for problem in found.problems]
        if not any(told in line for line in lines):
            missing.append((name, lines))
        evals.rank_triggers(skill)
    assert missing == []
    bare = tmp_path / "bare" / "tea"
    write_files(bare, {"SKILL.md": skill_md("tea")})
    problems = evals.read_evals(bare).problems
    assert [(problem["code"], problem["severity"]) for problem in problems] == [("eval-file-missing", "warning")] * 2
    assert problems[0]["path"] == str(bare / "evals" / "triggers.json")
    assert evals.rank_triggers(bare).pass_rate is None
    write_files(bare, {"evals/triggers.json": b"\xff\xfe"})
    assert "is not UTF-8 at byte 0" in evals.read_evals(bare).problems[0]["message"]
    with pytest.raises(evals.EvalError, match="cannot be read"):
        evals.read_evals(tmp_path)
    write_files(bare, {"SKILL.md": "no frontmatter"})
    with pytest.raises(evals.EvalError, match=r"SKILL\.md: "):
        evals.evaluate(bare)


def test_mistakes_of_a_caller_are_told(tmp_path: Path) -> None:
    """A model that does not exist, an agent that is none, tasks without a judge, a library that is not there."""
    skill = tea_library(tmp_path)
    with pytest.raises(evals.EvalError, match=r"'nobody:nothing' cannot be used\. ValueError: .* Write provider:name"):
        evals.evaluate(skill, "nobody:nothing")
    with pytest.raises(TypeError, match="expected a chat model, its name, or a compiled graph, got int"):
        evals.measure_triggers(skill, 7)
    agent = create_agent(loader(lambda _: True))
    with pytest.raises(evals.EvalError, match="pass grader="):
        evals.measure_tasks(skill, agent)
    with pytest.raises(evals.EvalError, match="There is no directory"):
        evals.rank_triggers(skill, sources=[tmp_path / "nowhere"])
    with pytest.raises(ValueError, match="runs must be"):
        evals.measure_triggers(skill, agent, runs=0)


def test_three_lines_in_a_test_of_your_own(tmp_path: Path) -> None:
    """Any agent will do: a deep agent, a plain one, a graph written by hand; loads are known from their events."""
    skill = tea_library(tmp_path)
    middleware: Any = SkillsMiddleware(backend=disk(tmp_path), sources=["/"])
    agents = [
        create_deep_agent(loader(YES.__contains__), middleware=[middleware]),
        create_agent(loader(YES.__contains__), middleware=[middleware]),
        hand_written_graph(loader(YES.__contains__), middleware),
    ]
    for agent in agents:
        report = evals.measure_triggers(skill, agent, runs=1)
        assert report.pass_rate == 1.0, report
    eager = create_agent(loader(lambda _: True), middleware=[middleware])
    bare = create_agent(loader(lambda _: False))
    report = evals.measure_tasks(skill, eager, without=bare, grader=grader())
    assert (report.passed.part, report.passed_without.part) == (3, 2)
    alone = asyncio.run(evals.ameasure_tasks(skill, eager, grader=grader()))
    assert alone.passed_without.whole == 0
    assert alone.proves_nothing == []
    again = asyncio.run(evals.ameasure_triggers(skill, agents[0], runs=2))
    assert again.recall == evals.Rate(4, 4)


def test_overlapping_skills_are_found_the_worst_pair_first(tmp_path: Path) -> None:
    """Two that take each other's requests come first, then one that takes, then descriptions that only look alike."""
    described = {
        "invoice-pdf": "Creates invoices as PDF files for customers from orders and prices.",
        "bill-maker": "Creates bills and invoices as PDF files for customers, with prices from orders.",
        "spreadsheet": "Summarises spreadsheets with formulas and pivot tables.",
        "budget-tables": "Plans budgets with formulas in tables of costs.",
        "greek": "Translates menus, signs and letters from ancient Greek into English prose.",
        "greek-poems": "Translates menus, signs and letters from ancient Greek into English verse.",
        "kites": "Builds kites of paper and string.",
    }
    queries = {
        "invoice-pdf": ["bills as PDF with prices for customers", "create invoices as PDF from orders"],
        "bill-maker": ["create invoices as PDF files", "make bills for customers"],
        "budget-tables": ["formulas with pivot tables", "plan the budget of costs"],
        "kites": ["build a kite of paper"],
    }
    for name, description in described.items():
        triggers = [{"query": query, "should_trigger": True} for query in queries.get(name, ())]
        write_files(tmp_path / name, {"SKILL.md": skill_md(name, description)})
        if triggers:
            write_files(tmp_path / name, {"evals/triggers.json": json.dumps(triggers)})
    report = evals.find_overlaps(tmp_path)
    pairs = [(pair.first, pair.second) for pair in report.overlaps]
    assert pairs[0] == ("bill-maker", "invoice-pdf")
    assert report.overlaps[0].is_mutual
    assert ("budget-tables", "spreadsheet") in pairs
    assert pairs[-1] == ("greek", "greek-poems")
    assert report.overlaps[-1].taken == 0
    assert report.overlaps[-1].similarity > 0.7
    assert not any("kites" in pair for pair in pairs)
    taken = {item.query: item for item in report.taken}
    assert taken["formulas with pivot tables"].meant == "budget-tables"
    assert taken["formulas with pivot tables"].before[0] == "spreadsheet"
    assert "build a kite of paper" not in taken
    assert set(report.unmeasured) == {"greek", "greek-poems", "spreadsheet"}
    assert report.queries == 7


class Page(HTMLParser):
    """Collects what a page refers to and what it is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [name for name, _ in attrs if name in {"src", "href", "srcset", "action", "onclick"}]


def test_the_page_refers_to_nothing_and_escapes_everything(tmp_path: Path) -> None:
    """Whatever queries, models and graders say, the page has no script, no link, no image and no further tag."""
    evil = '<script src="https://evil.example/x.js"></script><img src=x onerror=alert(1)>'
    skill = tea_library(
        tmp_path,
        [{"query": f"Brew tea {evil}", "should_trigger": True}],
        tea_tasks({"id": evil, "prompt": evil, "expectations": [evil]}),
    )
    model = ScriptedChatModel(replies=lambda _: counted(AIMessage(evil)))
    judge = ScriptedChatModel(
        replies=lambda _: AIMessage(json.dumps([{"number": 1, "passed": True, "evidence": evil}]))
    )
    report = evals.evaluate(skill, model, grader=judge, runs=1)
    page = Page(evals.to_html([report], evals.find_overlaps(tmp_path)))
    assert page.references == []
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert page.tags.count("details") == 3
    assert "proves nothing" in evals.to_html([report])
    assert NO[0] not in evals.to_html([report])
