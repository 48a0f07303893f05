"""`deepskills explain`: why a skill is not used, from files, and what a log of events says."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from deepagents.backends import FilesystemBackend
from langchain.agents import create_agent

from deepskills import SkillsMiddleware
from deepskills.extensions import DEFAULT_ALIASES, JsonLinesRecorder, SkillSuggestions, SkillUsage, UsageEvent
from deepskills.testing import ScriptedChatModel, call_tools
from support import command_line, skill_md, write_files
from support.terminal import drawn

TEA = skill_md("tea", "Makes green and black tea. Use it when somebody wants tea.")
COFFEE = skill_md("coffee", "Makes a cup of coffee from beans. Use it for coffee.")
FILES = {"skills/tea/SKILL.md": TEA, "skills/coffee/SKILL.md": COFFEE}


def invoke(*arguments: str) -> Result:
    return command_line.invoke("explain", *arguments)


def explain(place: Path, *arguments: str, sources: tuple[str, ...] = ("skills",)) -> tuple[int, dict[str, Any]]:
    named = [part for source in sources for part in ("--source", str(place / source))]
    done = invoke(*arguments, *named, "--json")
    return done.exit_code, json.loads(done.stdout)


def test_a_skill_that_nothing_stops(tmp_path: Path) -> None:
    """Its costs stand beside the default budget, and no stage is named."""
    write_files(tmp_path, FILES)
    code, own = explain(tmp_path, "Tea")
    assert (code, own["skill"], own["stopped"], own["code"]) == (0, "tea", None, None)
    assert own["costs"]["load"] > own["costs"]["listed"] > 0
    assert own["costs"]["max_loaded_tokens"] == 50_000


def test_what_other_clients_spell_their_own_way(tmp_path: Path) -> None:
    """A skill with `paths` is listed once a file was touched; Codex' file keeps one from the model as our key does."""
    files = {
        "skills/api/SKILL.md": skill_md("api", paths="src/**/*.py, docs/*.md"),
        "skills/codex/SKILL.md": skill_md("codex"),
        "skills/codex/agents/openai.yaml": "policy:\n  allow_implicit_invocation: false\n",
    }
    write_files(tmp_path, files)
    _, own = explain(tmp_path, "api")
    assert own["stopped"] is None
    assert "once a tool call of the thread has touched a file that its `paths` match: src/**/*.py" in own["message"]
    _, own = explain(tmp_path, "codex")
    assert (own["code"], "another client's word" in own["message"]) == ("user-only", True)


CAUSES: dict[str, tuple[dict[str, str], str, str, str, int]] = {
    "broken": ({"skills/tea/SKILL.md": "# Tea\n"}, "tea", "found", "no-frontmatter", 1),
    "unknown": ({}, "te", "found", "unknown", 1),
    "misnamed": ({"skills/juice/skill.md": TEA}, "juice", "found", "skill-file-misnamed", 1),
    "too deep": ({"skills/a/b/juice/SKILL.md": skill_md("juice")}, "juice", "found", "skill-too-deep", 1),
    "user-only": (
        {"skills/tea/SKILL.md": skill_md("tea", disable_model_invocation="true")},
        "tea",
        "visible",
        "user-only",
        0,
    ),
    "too large": (
        {"skills/tea/SKILL.md": skill_md("tea", body="Word. " * 60_000)},
        "tea",
        "loaded",
        "max_loaded_tokens",
        0,
    ),
}


@pytest.mark.parametrize("planted", CAUSES)
def test_the_cause_that_was_planted_is_named(planted: str, tmp_path: Path) -> None:
    """By the stage and the code that `middleware.explain` gives."""
    files, name, stopped, code, exit_code = CAUSES[planted]
    write_files(tmp_path, {**FILES, **files})
    status, own = explain(tmp_path, name)
    assert (status, own["stopped"], own["code"]) == (exit_code, stopped, code)
    assert own["message"]


def test_a_shadowed_file_is_named_beside_the_one_that_is_used(tmp_path: Path) -> None:
    """The later source wins; the path that lost is told."""
    write_files(tmp_path, {**FILES, "more/tea/SKILL.md": TEA})
    _, own = explain(tmp_path, "tea", sources=("skills", "more"))
    assert own["path"] == (tmp_path / "more/tea/SKILL.md").as_posix()
    [noted] = own["problems"]
    assert (noted["code"], noted["path"]) == ("skill-shadowed", (tmp_path / "skills/tea/SKILL.md").as_posix())


def test_a_request_says_who_is_before_it_and_by_which_words(tmp_path: Path) -> None:
    """Rank, rivals and their words; small talk fits nobody."""
    write_files(tmp_path, FILES)
    _, own = explain(tmp_path, "tea", "--request", "a cup of coffee from beans, or green tea")
    asked = own["request"]
    assert asked["before"][0]["name"] == "coffee"
    assert {"cup", "coffee", "beans"} <= set(asked["before"][0]["words"])
    assert {"green", "tea"} <= set(asked["words"])
    _, own = explain(tmp_path, "tea", "--request", "roast the beans of coffee")
    assert (own["stopped"], own["code"]) == ("suggested", "not-suggested")
    _, own = explain(tmp_path, "tea", "--request", "good morning")
    assert own["code"] == "suggestions-silent"
    _, own = explain(tmp_path, "tea", "--request", "green tea, please")
    assert (own["stopped"], own["request"]["rank"], own["request"]["suggested"]) == (None, 1, True)


def test_tools_that_a_deep_agent_lacks(tmp_path: Path) -> None:
    """What the frontmatter names, by its own and by another client's names."""
    tea = skill_md("tea", allowed_tools="Bash(git:*) Read fetch_url", metadata={"include_tools": "kettle"})
    write_files(tmp_path, {"skills/tea/SKILL.md": tea})
    assert explain(tmp_path, "tea")[1]["missing_tools"] == ["fetch_url", "kettle"]
    checks = [{"called": "boil", "before": "pour"}, {"called": "execute(make *)"}]
    write_files(tmp_path, {"skills/checked/SKILL.md": skill_md("checked", checks=checks)})
    assert explain(tmp_path, "checked")[1]["missing_tools"] == ["boil", "pour"]
    known = skill_md("coffee", allowed_tools=" ".join([*DEFAULT_ALIASES, *DEFAULT_ALIASES.values()]))
    write_files(tmp_path, {"skills/coffee/SKILL.md": known})
    assert explain(tmp_path, "coffee")[1]["missing_tools"] == []


@pytest.mark.parametrize("name", ["tea", "broken", "nobody"])
def test_the_screen_fits_80_columns(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line of text is longer, and nothing in it can steer a terminal."""
    monkeypatch.chdir(tmp_path)
    write_files(
        tmp_path, {**FILES, "skills/broken/SKILL.md": "---\nname: \x1b[31mred\n---\n", "more/tea/SKILL.md": TEA}
    )
    request = ("--request", "a cup of coffee from beans or tea", "-s", "skills", "-s", "more")
    shown = drawn("explain", name, *request, columns=80)
    assert shown
    assert all(len(line) <= 80 or " " not in line.strip() for line in shown.splitlines())
    assert "\x1b" not in shown + invoke(name, *request).stdout


def test_a_log_of_events(tmp_path: Path) -> None:
    """Loads, misses, left-outs, refusals by reason and open checks by skill; what is no event is skipped."""
    log = tmp_path / "events.jsonl"
    record = JsonLinesRecorder(log)
    events: list[tuple[str, str, dict[str, Any]]] = [
        ("skill.loaded", "tea", {"tokens": 3}),
        ("skill.loaded", "tea", {"tokens": 3}),
        ("skill.missed", "coffee", {}),
        ("skill.left_out", "tea", {"tokens": 3}),
        ("skill.refused", "coffee", {"reason": "max_loaded_skills"}),
        ("skill.checked", "tea", {"check": "run_tests", "status": "open"}),
        ("skill.checked", "tea", {"check": "lint", "status": "open"}),
        ("skill.checked", "tea", {"check": "lint", "status": "passed"}),
        ("skill.unchecked", "tea", {"checks": ["CHANGELOG.md"]}),
    ]
    for kind, skill, details in events:
        record(UsageEvent(kind, skill, None, None, None, details, thread_id="one"))
    with log.open("a", encoding="utf-8") as lines:
        lines.write('no json\n[1]\n{"type": 3}\n' + "[" * 100_000 + "\n\n")
    report = json.loads(invoke("--events", str(log), "--json").stdout)
    assert (report["events"], report["skipped"]) == (9, 4)
    coffee, tea = report["skills"]
    assert (coffee["missed"], coffee["refused"]) == (1, {"max_loaded_skills": 1})
    assert (tea["loads"], tea["left_out"], tea["open_checks"]) == (2, 1, ["CHANGELOG.md", "run_tests"])
    assert [row["skill"] for row in json.loads(invoke("tea", "--events", str(log), "--json").stdout)["skills"]] == [
        "tea"
    ]
    shown = invoke("--events", str(log))
    assert "coffee: 0 loads, 1 missed, 0 left out, 1 refusal (max_loaded_skills)" in shown.stdout


def test_wrong_usage() -> None:
    """Nothing to explain, both at once, a log that is not there, and a skill where there are none."""
    assert "No skill is named `tea`: no source holds any. Name its source" in " ".join(invoke("tea").stdout.split())
    assert invoke().exit_code == 2
    assert invoke("--events", "x", "--request", "y").exit_code == 2
    missing = invoke("--events", "none.jsonl")
    assert (missing.exit_code, "none.jsonl" in missing.stderr) == (1, True)


def test_a_shadow_gives_recall_on_ones_own_requests(tmp_path: Path) -> None:
    """What suggestions would have shown is counted against what the model loaded, by real runs in shadow mode."""
    write_files(tmp_path, FILES)
    log = tmp_path / "events.jsonl"
    usage = SkillUsage(JsonLinesRecorder(log))
    model = ScriptedChatModel(replies=[call_tools(("load_skill", {"skill_name": "tea"})), "Done.", "No skill needed."])
    middleware: SkillsMiddleware[Any, Any] = SkillsMiddleware(
        backend=FilesystemBackend(root_dir=tmp_path, virtual_mode=True),
        sources=["/skills"],
        extensions=[SkillSuggestions(shadow=True), usage],
    )
    agent: Any = create_agent(model, middleware=[middleware])
    for request in ("Make me a cup of green tea.", "Make me a cup of coffee from beans."):
        agent.invoke({"messages": [("user", request)]})
    assert usage.flush(60)
    shadows = {
        row["skill"]: row["shadow"] for row in json.loads(invoke("--events", str(log), "--json").stdout)["skills"]
    }
    assert shadows["tea"]["loaded"] == shadows["tea"]["shown"] == 1
    assert shadows["coffee"]["loaded"] == 0
    assert shadows["coffee"]["idle"] >= 1
    assert "A note would show it for 1 of 1 load" in invoke("--events", str(log), "tea").stdout
