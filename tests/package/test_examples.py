"""Every example runs without a key and prints what it is there to show."""

import logging
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
HELPERS = {"pick_model", "skills_over_mcp", "skills_page"}
"""No examples of their own, or run by `make test-mcp` with the package or by `make test-browser` with the browser that
they need."""

SHOWN = {
    "demo": [
        "skills found: api-design-review, csv-report, incident-review, release-notes, 周报",
        "calls load_skill(skill_name='release-notes')",
        "# Style guide for release notes",
        "1 of 1 skills are loaded",
        "Unloaded the skill 'release-notes'. Free now: 1 of 1 skills",
        "loaded now: incident-review",
        '<skill_content name="incident-review"',
        'The skill "incident-review" is not done yet.',
    ],
    "plain_agent": ["**csv-report**", "- references/statistics.md", "usage: profile_csv.py"],
    "state_graph": ['<skill_content name="csv-report"', "loaded at the end: []"],
    "per_user": ['ada: <skill_content name="engine-notes"', "bob: Error: There is no skill named 'engine-notes'"],
    "sub_agents": ["Drafted with release-notes.", "the parent has loaded: ['incident-review']"],
    "large_library": [
        '<skill_content name="vineyard-payroll-1493"',
        "with these suggestions:",
        "- **vineyard-payroll-1493**",
    ],
    "streaming": ["skill.loaded", "skill.refused    csv-raport", "skill.unloaded"],
    "tool_policy": [
        "offered while it is in use: execute, load_skill, ls, read_file, unload_skill",
        "execute [error]: Error: Tool `execute` was not run",
        "stolen: False",
    ],
    "forks": ["tool load_skill: 1600 words.", "parent 22, sub-agent [165, 8186], parent 33"],
    "scripts": [
        "The skill `csv-report` is not loaded",
        "event: scripts/fetch.py ended with exit code 0",
        "fetched with the key [secret]",
        "Rows: 2, columns: 2",
        "cannot read $(cat /etc/passwd)",
    ],
    "inline_skills": [
        '<skill_content name="price-questions"',
        "| team | 29 EUR |",
        "Schools and charities pay half.",
        "read again: | team | 35 EUR |",
        "refused:",
    ],
    "checked_skill": [
        "tool: Error: Tool `deploy` was not run",
        "event: skill.sent_back",
        'human: The skill "release" is not done yet.',
        "event: skill.checked handler: is_announced passed",
    ],
    "own_provider": ["staging: Pay at once.", "production: Ask for the order, then wait."],
    "own_extension": [
        "7 o'clock: {'skill.refused: release-notes': 1}",
        "9 o'clock: {'skill.loaded: release-notes': 1}",
    ],
    "unit_tests_of_skills": [
        "test_files_of_a_skill_are_found_by_directory: passed",
        "test_a_load_gives_the_text_and_the_files: passed",
        "test_a_skill_is_loaded_unloaded_and_loaded_again: passed",
        "test_a_sub_agent_loads_for_itself: passed",
    ],
    "store_app": ["alice posted release-notes with 5 files", "bob sees: no skills"],
}
"""What each example prints."""


def printed_by(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Run an example in this process and return what it prints."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(sys, "argv", [f"{name}.py"])
    logger = logging.getLogger("deepskills")
    level = logger.level
    try:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    finally:
        logger.setLevel(level)
    return capsys.readouterr().out


@pytest.mark.parametrize("name", SHOWN)
def test_example_shows_what_it_promises(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An example runs from any directory without a key and prints what it is about."""
    monkeypatch.chdir(tmp_path)
    printed = printed_by(name, monkeypatch, capsys)
    assert [text for text in SHOWN[name] if text not in printed] == []


def test_an_example_runs_as_a_program(tmp_path: Path) -> None:
    """What a user types works: Python, the file, from another directory."""
    command = [sys.executable, str(EXAMPLES / "plain_agent.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_example_is_run() -> None:
    """No example stands in the directory without being run."""
    assert {file.stem for file in EXAMPLES.glob("*.py")} - HELPERS == set(SHOWN)
