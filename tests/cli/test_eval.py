"""`deepskills eval`: what it prints, how it exits, where it stops, and that it goes on after an interrupt."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from evals_support import YES, grader, loader, tea_library, tea_triggers
from langchain import chat_models
from langchain_core.messages import AIMessage, BaseMessage

from deepskills.testing import ScriptedChatModel
from support import command_line, skill_md, write_files

TESTS = Path(__file__).parents[1]


def invoke(*args: str) -> Result:
    return command_line.invoke("eval", *args)


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> dict[str, ScriptedChatModel]:
    """Let the command find scripted models by name, as it finds a provider's."""
    known: dict[str, ScriptedChatModel] = {}
    monkeypatch.setattr(chat_models, "init_chat_model", known.__getitem__)
    return known


def test_without_a_model(workplace: Path) -> None:
    """It ranks, says what is wrong, writes the page, and `--min-pass` decides how it exits."""
    tea_library(workplace / "skills")
    done = invoke("skills/tea", "--html", "report.html")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0] == "tea: 4 requests among 3 skills, ranked without a model"
    assert "should load   ████████████████████  2 of 2  100%" in done.stdout
    assert "<h2>tea</h2>" in (workplace / "report.html").read_text(encoding="utf-8")
    assert invoke("skills/tea", "--min-pass", "1").exit_code == 0
    wrong = [*tea_triggers(), {"query": "Mend the printer", "should_trigger": True}]
    tea_library(workplace / "skills", wrong)
    assert invoke("skills/tea", "--min-pass", "0.8").exit_code == 0
    failed = invoke("skills/tea", "--min-pass", "0.81")
    assert (failed.exit_code, failed.stderr.strip()) == (1, "tea: 80% pass, fewer than the 81% asked for.")
    data = json.loads(invoke("skills/tea", "--json").stdout)
    assert (data["skill"], data["pass_rate"], data["model"]) == ("tea", 0.8, None)
    assert data["triggers"][-1]["instead"] == ["printer"]
    # Another library: nothing else is there to be suggested.
    alone = invoke("skills/tea", "--source", "skills/tea")
    assert "among 1 skill," in alone.stdout


def test_what_is_wrong_is_told_with_its_place(workplace: Path) -> None:
    """Missing and broken files, a directory without a skill, arguments that do not fit."""
    skill = tea_library(workplace / "skills")
    (skill / "evals" / "triggers.json").write_text("[{]")
    done = invoke("skills/tea")
    assert done.exit_code == 1
    assert f"{skill}/evals/triggers.json:1:3: eval-file-broken: is not JSON" in done.stderr
    assert "Nothing was measured: tea has no usable queries. Its tasks need --model." in done.stderr
    tea_library(workplace / "skills", [*tea_triggers(), {"query": 7}])
    done = invoke("skills/tea")
    assert done.exit_code == 1
    assert f"{skill}/evals/triggers.json[4].query: eval-entry-invalid: must be text, not a number" in done.stderr
    assert "2 of 2" in done.stdout
    write_files(workplace, {"skills/bare/SKILL.md": skill_md("bare")})
    done = invoke("skills/bare")
    assert done.exit_code == 1
    assert f"{workplace}/skills/bare/evals/evals.json: eval-file-missing: is missing" in done.stderr
    assert 'is missing, so no request is measured. Write it: [{"query"' in done.stderr
    for args, code, told in (
        (["nowhere"], 1, f"Error: {workplace}/nowhere/SKILL.md: cannot be read"),
        ([], 2, "Error: Name the directory of a skill, or pass --all"),
        (["skills/tea", "--grader", "x:y"], 2, "Error: --grader judges what a model did. Pass --model too."),
        (["skills/tea", "--min-pass", "80"], 2, "is not in the range"),
        (["skills/tea", "--source", "nowhere"], 2, "Error: There is no such source: nowhere."),
        (["skills/tea", "--model", "nobody:x"], 1, "Error: The model 'nobody:x' cannot be used."),
    ):
        done = invoke(*args)
        assert (done.exit_code, told in done.stderr) == (code, True), (args, done.stderr)


def test_with_a_model(workplace: Path, models: dict[str, ScriptedChatModel]) -> None:
    """It says what is to come, shows progress, and a table of loads, tasks, tokens, steps and seconds."""
    tea_library(workplace / "skills")
    models |= {"test:right": loader(lambda query: query in YES or "Brew" in query), "test:judge": grader()}
    args = ["skills/tea", "--model", "test:right", "--grader", "test:judge", "--runs", "2", "--html", "r.html"]
    done = invoke(*args, "--min-pass", "1")
    assert done.exit_code == 0, done.output
    told = done.stderr.splitlines()
    assert told[0].startswith("tea: 12 agent runs and 4 gradings: about ")
    assert told[1] == "[1/16] Brew a pot of green tea., loaded tea (110 tokens so far)"
    assert told[16].startswith("[16/16] task cup without the skill: grading (")
    assert "  2/2     ████████████████████       220  yes     Brew a pot of green tea." in done.stdout
    assert "  0/2     ····················       220  no      Sing a song." in done.stdout
    assert "tasks with    ████████████████████  3 of 3  100%" in done.stdout
    assert "tasks without █████████████·······  2 of 3   67%" in done.stdout
    assert "220, 2, " in done.stdout
    page = (workplace / "r.html").read_text(encoding="utf-8")
    assert page.count('<details class="run">') == 12
    assert "test:right" in page
    models["test:never"] = loader(lambda _: False)
    done = invoke("skills/tea", "--model", "test:never", "--grader", "test:judge", "--runs", "1", "--min-pass", "0.6")
    assert (done.exit_code, "tea: 50% pass, fewer than the 60% asked for." in done.stderr) == (1, True)
    done = invoke("skills/tea", "--model", "test:never", "--runs", "1", "--json")
    data = json.loads(done.stdout)
    assert data["tasks"][0]["expectations"][0]["passed"] is None  # a tea master is no grader
    assert done.exit_code == 0


def test_a_budget_and_what_is_kept(workplace: Path, models: dict[str, ScriptedChatModel]) -> None:
    """It stops at `--max-tokens` and exits 1; the same command goes on, `--fresh` begins again."""
    tea_library(workplace / "skills", tasks={"evals": []})
    model = models["test:right"] = loader(YES.__contains__)
    args = ["skills/tea", "--model", "test:right", "--runs", "2"]
    done = invoke(*args, "--max-tokens", "550")
    assert done.exit_code == 1
    assert "Stopped: the budget is used up (550 tokens, 5 of 8 steps done)." in done.stdout
    assert len(model.requests) == 5
    done = invoke(*args)
    assert done.exit_code == 0
    assert "Going on from where it was interrupted; --fresh begins again." in done.stderr
    assert "[6/8]" in done.stderr
    assert len(model.requests) == 8
    assert "tea: 8 queries" not in done.stdout
    assert "should load   ████████████████████  4 of 4" in done.stdout
    invoke(*args, "--max-tokens", "1")
    done = invoke(*args, "--fresh")
    assert done.exit_code == 0
    assert "[1/8]" in done.stderr


def test_a_library(workplace: Path, models: dict[str, ScriptedChatModel]) -> None:
    """`--all` shows who takes whose requests, overlapping pairs first, and measures every skill with a model."""
    tea_library(workplace / "skills", tasks={"evals": []})
    twin = "Brews tea: how long green tea, oolong and white tea steep, in a pot or a glass."
    queries = [
        {"query": "Green tea in a cup", "should_trigger": True},
        {"query": "Sing of an infusion in a glass", "should_trigger": False},
    ]
    triggers = json.dumps(queries)
    write_files(
        workplace,
        {"skills/infusion/SKILL.md": skill_md("infusion", twin), "skills/infusion/evals/triggers.json": triggers},
    )
    done = invoke("--all", "skills", "--html", "all.html")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "4 skills, 3 requests ranked without a model"
    assert lines[2] == "Pairs that compete for requests:"
    assert "infusion and tea: " in lines[3]
    assert "% of rare words shared" in lines[3]
    assert "Green tea in a cup: meant infusion, first tea" in done.stdout
    assert "Sing of an infusion in a glass: wrong, suggests infusion" in done.stdout
    assert lines[-3:] == ["Skills without requests:", "  printer", "  songs"]
    page = (workplace / "all.html").read_text(encoding="utf-8")
    assert page.index("Pairs that compete") < page.index("<h2>infusion</h2>") < page.index("<h2>tea</h2>")
    data = json.loads(invoke("--all", "--source", "skills", "--json").stdout)
    assert data["overlaps"][0]["skills"] == ["infusion", "tea"]
    assert data["wrong"] == [{"query": "Sing of an infusion in a glass", "skill": "infusion"}]
    assert invoke("--all", "skills", "--min-pass", "0.9").exit_code == 1
    models["test:right"] = loader(lambda _: True)
    done = invoke("--all", "skills", "--model", "test:right", "--runs", "1", "--json")
    reports = {report["skill"]: report["pass_rate"] for report in json.loads(done.stdout)["reports"]}
    assert reports == {"infusion": 0.5, "tea": 0.5}
    assert invoke("--all", "nowhere").exit_code == 2


def test_a_large_library_shows_the_worst_of_each_list(workplace: Path) -> None:
    """At most twenty lines of each list, and how many more there are; the same sentence in all makes no pair."""
    boilerplate = "Always read the shared guidelines of this collection before anything else is written or changed."
    for number in range(60):
        name, word = f"skill-{number:02}", chr(97 + number // 26) + chr(97 + number % 26) + "x" * 5
        queries = [{"query": f"{word} guidelines", "should_trigger": False}]
        # Half of the skills are meant by requests that name the words of another.
        if number % 2:
            other = chr(97 + (number - 1) // 26) + chr(97 + (number - 1) % 26) + "x" * 5
            queries.append({"query": f"work on {other}", "should_trigger": True})
        files = {
            "SKILL.md": skill_md(name, f"Works on {word}. {boilerplate}"),
            "evals/triggers.json": json.dumps(queries),
        }
        write_files(workplace / "skills" / name, files)
    lines = invoke("--all", "skills").stdout.splitlines()
    found = json.loads(invoke("--all", "skills", "--json").stdout)
    assert len(found["taken"]) == 30
    assert len(found["wrong"]) == 60
    assert all(sum(pair["taken"]) > 0 and pair["similarity"] == 0 for pair in found["overlaps"])
    for key in ("overlaps", "taken", "wrong"):
        assert f"  and {len(found[key]) - 20:,} more; --json has them all" in lines, key
    assert len([line for line in lines if line.startswith("  ")]) == 3 * 21


def test_text_of_strangers_is_harmless_to_a_terminal(workplace: Path, models: dict[str, ScriptedChatModel]) -> None:
    """Control characters in queries, names of files and answers are shown, not obeyed."""
    evil = "Brew tea \x1b[2J\x07\u202e"
    tea_library(workplace / "skills", [{"query": evil, "should_trigger": False}], tasks={"evals": []})

    def raises(_: list[BaseMessage]) -> AIMessage:
        raise RuntimeError(evil)

    models["test:bad"] = ScriptedChatModel(replies=raises)
    for args in (["skills/tea"], ["--all", "skills"], ["skills/tea", "--model", "test:bad", "--runs", "1"]):
        done = invoke(*args)
        assert not {"\x1b", "\x07", "\u202e"} & set(done.output), args


COMMAND = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from langchain import chat_models
from evals_support import YES, loader
import runpy

def slowly(query):
    if {pause}:
        time.sleep(0.2)
    return query in YES

chat_models.init_chat_model = lambda name: loader(slowly)
sys.argv = ["deepskills", "eval", "skills/tea", "--model", "test:slow", "--runs", "9"]
runpy.run_module("deepskills", run_name="__main__")
"""


def test_an_interrupt_keeps_what_is_done(workplace: Path) -> None:
    """Ctrl-C in the middle exits 130 and says how to go on; the same command makes only what is missing."""
    tea_library(workplace / "skills", tasks={"evals": []})
    path = os.pathsep.join([str(TESTS), str(TESTS / "evals"), *filter(None, sys.path)])
    env = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND.format(pause=True)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        told: list[str] = []
        for line in process.stderr:
            told.append(line)
            if line.startswith("[3/") and line not in told[:-1]:
                process.send_signal(signal.SIGINT)
        process.wait()
    done = len({line for line in told if line.startswith("[")})
    assert process.returncode == 130
    # The run that was under way may still say something from its thread.
    assert "Interrupted. What is done is kept: run the same command again to go on.\n" in told
    again = subprocess.run(
        [sys.executable, "-c", COMMAND.format(pause=False)], env=env, capture_output=True, text=True, check=False
    )
    assert again.returncode == 0, again.stderr
    steps: list[Any] = [line for line in again.stderr.splitlines() if line.startswith("[")]
    # The signal may have come between keeping a run and telling of it.
    assert len(steps) in {36 - done, 36 - done - 1}
    assert "should load   ████████████████████  18 of 18" in again.stdout
