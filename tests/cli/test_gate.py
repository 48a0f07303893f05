"""`deepskills gate`: what a change does to a library of skills, for pull requests."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from deepskills import SkillsError
from deepskills.fixtures import skills_gate as skills_gate  # noqa: PLC0414 - a fixture is known by its import
from deepskills.testing import gate_findings
from support import command_line, skill_md, write_files

TEA = skill_md("tea", "Makes green and black tea. Use it when somebody wants tea.", "# Tea\n")
COFFEE = skill_md("coffee", "Makes coffee from beans. Use it for coffee.", "# Coffee\n")
TAKES = skill_md("coffee", "Makes a cup of green tea, and coffee. Use it for a cup of green tea.", "# Coffee\n")
TRIGGERS = json.dumps(
    [
        {"query": "a cup of green tea please", "should_trigger": True},
        {"query": "repair my bicycle wheel", "should_trigger": False},
    ]
)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A repository with two skills, committed."""
    write_files(
        tmp_path,
        {"skills/tea/SKILL.md": TEA, "skills/coffee/SKILL.md": COFFEE, "skills/tea/evals/triggers.json": TRIGGERS},
    )
    commit(tmp_path)
    return tmp_path


def commit(place: Path) -> None:
    name = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "init", "-q", str(place)], check=True)
    subprocess.run(["git", "-C", str(place), "add", "-A"], check=True)
    subprocess.run(["git", "-C", str(place), *name, "commit", "-qm", "Add skills"], check=True)


def invoke(*arguments: str) -> Result:
    return command_line.invoke("gate", *arguments)


def gate(place: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = invoke("--source", str(place / "skills"), "--json", *arguments)
    return done.exit_code, json.loads(done.stdout)


def codes(report: dict[str, Any]) -> list[str]:
    return [found["code"] for found in report["findings"]]


def test_nothing_changed_is_nothing_found(library: Path) -> None:
    """A working tree that is the commit passes, and no request is ranked."""
    code, report = gate(library, "--base", "HEAD")
    assert (code, report["findings"], report["tokens"], report["requests"]) == (0, [], {}, 0)


def test_a_git_hook_may_run_it(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables that git sets for hooks lead to no other repository."""
    write_files(library, {"skills/coffee/SKILL.md": TAKES})
    outside = gate(library, "--base", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(library / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(library / "none"))
    assert gate(library, "--base", "HEAD") == outside


def test_a_request_that_another_skill_takes(library: Path) -> None:
    """The skill that lost it is named, with the one that ranks first now."""
    write_files(library, {"skills/coffee/SKILL.md": TAKES})
    code, report = gate(library, "--base", "HEAD")
    assert (code, codes(report)) == (1, ["request-taken"])
    assert report["taken"] == [{"query": "a cup of green tea please", "meant": "tea", "by": "coffee", "wanted": True}]
    assert report["findings"][0]["path"] == (library / "skills/tea/SKILL.md").as_posix()
    assert report["tokens"].keys() == {"coffee"}


def test_a_request_that_should_not_load(library: Path) -> None:
    """A skill that begins to take what it says is not its own is found as well."""
    wide = skill_md("tea", "Makes tea, and repairs a bicycle wheel. Use it for bicycle wheels.", "# Tea\n")
    write_files(library, {"skills/tea/SKILL.md": wide})
    assert "request-unwanted" in codes(gate(library, "--base", "HEAD")[1])


def test_harmless_edits_pass(library: Path) -> None:
    """A better text and a new skill about something else take nothing from anybody; tokens are told."""
    write_files(
        library,
        {
            "skills/coffee/SKILL.md": COFFEE + "\nGrind the beans first.\n",
            "skills/maps/SKILL.md": skill_md("maps", "Draws maps of cities. Use it for maps.", "# Maps\n"),
        },
    )
    code, report = gate(library, "--base", "HEAD")
    assert (code, codes(report)) == (0, [])
    assert report["tokens"].keys() == {"coffee", "maps"}
    assert report["tokens_added"] > 0
    assert report["section_tokens_added"] > 0


def test_only_new_problems_count_beside_a_commit(library: Path) -> None:
    """What was wrong before is not this change's fault; without a commit everything counts."""
    write_files(library, {"skills/broken/SKILL.md": "no frontmatter"})
    commit(library)
    write_files(library, {"skills/tea/SKILL.md": TEA + "\nRead `references/leaves.md`.\n"})
    code, report = gate(library, "--base", "HEAD")
    assert (code, codes(report)) == (1, ["reference-dead"])
    assert "references/leaves.md" in report["findings"][0]["message"]
    assert {"no-frontmatter", "reference-dead"} <= set(codes(gate(library)[1]))
    write_files(library, {"skills/tea/references/leaves.md": "Leaves."})
    assert gate(library, "--base", "HEAD")[0] == 0


def test_a_source_that_is_new(library: Path) -> None:
    """Skills in a directory that the commit does not have are all new."""
    write_files(library, {"more/skills/tea/SKILL.md": TEA, "more/skills/tea/evals/triggers.json": TRIGGERS})
    code, report = gate(library / "more", "--base", "HEAD")
    assert (code, report["requests"]) == (0, 2)


def test_annotations_for_github(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line for each finding, at its file; no text of a skill can begin another command."""
    query = "tea%0A::error::forged\n::error::forged"
    write_files(
        library,
        {
            "skills/tea/SKILL.md": TEA + "\nRead `references/leaves.md`.\n",
            "skills/tea/evals/triggers.json": json.dumps([{"query": query, "should_trigger": True}]),
            "skills/coffee/SKILL.md": TAKES.replace("a cup", "error forged"),
        },
    )
    monkeypatch.chdir(library)
    done = invoke("--source", "skills", "--base", "HEAD", "--github")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("::error file=skills/tea/SKILL.md,line=1,title=reference-dead::")
    assert all(line.startswith("::error file=skills/") for line in lines)


def test_what_cannot_be_compared(library: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No such commit, an option in its place, or no repository: exit 2, and what to do."""
    for base in ("nowhere", "--output=x", "-x"):
        done = invoke("--source", str(library / "skills"), f"--base={base}")
        assert done.exit_code == 2
        assert "There is no commit" in done.stderr
    bare = tmp_path_factory.mktemp("bare")
    write_files(bare, {"skills/tea/SKILL.md": TEA})
    done = invoke("--source", str(bare / "skills"), "--base", "HEAD")
    assert done.exit_code == 2
    assert "is in no git repository" in done.stderr
    assert invoke("--source", str(bare / "skills")).exit_code == 0


def test_hostile_files_of_queries(library: Path) -> None:
    """Whatever stands in one, the others are ranked."""
    for text in ("[" * 100_000, "null", '[1, {"query": 5}, {"query": "tea"}]', "{", "\udc80"):
        path = library / "skills/coffee/evals/triggers.json"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode(errors="surrogateescape"))
        _code, report = gate(library)
        assert report["requests"] >= 2


@pytest.mark.skipif(sys.platform in {"win32", "darwin"}, reason="its file systems take text alone")
def test_a_directory_whose_name_is_not_text_is_a_finding(library: Path) -> None:
    """It costs itself alone: all others are judged."""
    write_files(library, {"skills/\udcff/SKILL.md": skill_md("odd")})
    _code, report = gate(library)
    assert "skill-path-not-text" in codes(report)
    assert report["requests"] >= 2


def test_the_gate_in_a_test(library: Path) -> None:
    """`gate_findings` is what the command finds: nothing where nothing changed, else the command's own findings."""
    skills = library / "skills"
    assert gate_findings(skills) == gate_findings(str(skills), base="HEAD") == []
    write_files(library, {"skills/coffee/SKILL.md": TAKES})
    found = gate_findings(skills, base="HEAD")
    assert [problem["code"] for problem in found] == ["request-taken"]
    assert found == gate(library, "--base", "HEAD")[1]["findings"]


def test_a_gate_in_a_test_that_checks_nothing_fails(library: Path) -> None:
    """A directory or a commit that does not exist, and a directory without skills, do not pass."""
    write_files(library, {"docs/page.md": "No skill.\n"})
    commit(library)
    for source, base in (("gone", None), ("skills", "nothing"), ("docs", "HEAD")):
        with pytest.raises(SkillsError):
            gate_findings(library / source, base=base)
    assert [problem["code"] for problem in gate_findings(library / "docs")] == ["source-empty"]


def test_the_gate_is_a_fixture(library: Path, skills_gate: Any) -> None:
    """A user's test asks it for what the command would find."""
    assert skills_gate(library / "skills") == []
