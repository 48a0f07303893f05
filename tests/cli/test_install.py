"""Skills of others: `add`, `install`, `update`, `remove`, `verify` on real repositories, archives and directories."""

import hashlib
import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from install_support import (
    LIBRARY,
    LOCK,
    SKILLS,
    commit,
    git,
    lock_rows,
    make_repository,
    make_tar,
    make_zip,
    refuse,
    snapshot,
    succeed,
)

from support import skill_md, write_files
from support.command_line import invoke


def shell_digest(directory: Path) -> str:
    """Return the digest of a skill by the recipe of the documentation."""
    page = Path(__file__).parents[2] / "docs/how-to/install-skills.md"
    recipe = page.read_text(encoding="utf-8").partition("cd .agents/skills/NAME\n")[2].partition("```")[0]
    done = subprocess.run(["sh", "-c", recipe], cwd=directory, check=True, capture_output=True, text=True)
    return f"sha256:{done.stdout.split()[0]}"


def test_every_kind_of_source_gives_the_same_skills(tmp_path: Path) -> None:
    """A repository, a directory, a `.zip` and a `.tar.gz` give the same bytes, and the digest is `sha256sum`'s."""
    url = make_repository(tmp_path / "repository")
    write_files(tmp_path / "directory", LIBRARY)
    sources = [
        url,
        str(tmp_path / "directory"),
        str(make_zip(tmp_path / "a.zip")),
        str(make_tar(tmp_path / "a.tar.gz")),
    ]
    seen = []
    for source in sources:
        result = succeed("add", source, "--yes")
        assert "pdf" in result.output
        assert "scripts/run.py" in result.output
        assert "tokens" in result.output
        succeed("verify")
        seen.append(snapshot(SKILLS))
        rows = lock_rows()
        assert sorted(rows) == ["csv", "pdf"]
        assert rows["pdf"]["path"] == "skills/pdf"
        assert rows["csv"]["path"] == "deep/er/still/csv"
        assert (rows["pdf"]["commit"] is not None) == (source == url)
        for name, row in rows.items():
            assert row["digest"] == shell_digest(SKILLS / name)
            for path, file in row["files"].items():
                content = (SKILLS / name / path).read_bytes()
                assert file == {
                    "sha256": hashlib.sha256(content).hexdigest(),
                    "size": len(content),
                    "executable": False,
                }
        shutil.rmtree(SKILLS)
        LOCK.unlink()
    assert all(found == seen[0] for found in seen)
    assert (tmp_path / "directory/skills/pdf/references/crlf.md").read_bytes() == b"one\r\ntwo\r\n"
    assert seen[0][str(SKILLS / "pdf/references/crlf.md")] == (b"one\r\ntwo\r\n", False)


def test_nothing_is_changed_without_somebody_who_agrees(tmp_path: Path) -> None:
    """Without a terminal and `--yes` nothing changes and the exit code is 2; in a terminal a person is asked."""
    write_files(tmp_path / "library", LIBRARY)
    before = snapshot(Path.cwd())
    said = refuse(2, "add", str(tmp_path / "library"))
    assert "--yes" in said
    assert "pdf" in said
    assert json.loads(invoke("add", str(tmp_path / "library"), "--json").stdout)["done"] is False
    assert snapshot(Path.cwd()) == before
    for answer, code in ((b"n\n", 1), (b"y\n", 0)):
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "deepskills", "add", str(tmp_path / "library")],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        os.write(ours, answer)
        shown = b""
        try:
            while chunk := os.read(ours, 4096):
                shown += chunk
        except OSError:  # the terminal's other end was closed
            pass
        assert process.wait() == code
        assert b"Add 2 skills?" in shown
        assert LOCK.exists() == (code == 0)


def test_the_lock_is_the_same_on_every_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another directory, another order of files and another time give the same lock, byte for byte; again, no churn."""
    texts = []
    for machine, order in (("a", 1), ("b", -1)):
        project = tmp_path / machine / "project"
        project.mkdir(parents=True)
        write_files(tmp_path / machine / "library", dict(list(LIBRARY.items())[::order]))
        monkeypatch.chdir(project)
        succeed("add", str(tmp_path / machine / "library"), "--yes", "--skill", ("pdf", "csv")[order])
        succeed("add", "../library", "--yes")
        texts.append(LOCK.read_bytes())
        before = LOCK.stat().st_mtime_ns
        assert "Nothing to change" in succeed("add", "../library", "--yes").output
        assert "Nothing to change" in succeed("update", "--yes").output
        assert (LOCK.read_bytes(), LOCK.stat().st_mtime_ns) == (texts[-1], before)
    assert texts[0] == texts[1]
    assert b'"../library"' in texts[0]


def test_skills_are_chosen_by_name_and_by_path(tmp_path: Path) -> None:
    """`--skill` takes names and paths, twice if need be; unknown names and names that stand for two are refused."""
    files = {
        f"{where}/SKILL.md": skill_md(where.rpartition("/")[2]) for where in ("a/one", "a/two", "b/three", "c/one")
    }
    write_files(
        tmp_path / "library", {**files, "SKILL.md": skill_md("root"), "a/two/nested/SKILL.md": skill_md("nested")}
    )
    library = str(tmp_path / "library")
    assert "root, three, two" in refuse(2, "add", library, "--yes", "--skill", "four")
    assert "a/one, c/one" in refuse(1, "add", library, "--yes", "--skill", "one")
    assert not LOCK.exists()
    assert not SKILLS.exists()
    succeed("add", library, "--yes", "--skill", "TWO", "--skill", "c/one")
    assert {name: row["path"] for name, row in lock_rows().items()} == {"one": "c/one", "two": "a/two"}
    assert "nested/SKILL.md" in lock_rows()["two"]["files"]
    said = refuse(1, "add", library, "--yes")
    assert "several skills of this name" in said
    assert "nested" not in lock_rows()
    assert sorted(lock_rows()) == ["one", "root", "three", "two"]


def test_what_would_be_replaced_is_shown(tmp_path: Path) -> None:
    """A name taken by another source, by edits or by files that no lock lists is told before it gives way."""
    write_files(SKILLS, {"pdf/SKILL.md": skill_md("pdf"), "pdf/mine.md": "by hand"})
    first, second = tmp_path / "first", tmp_path / "second"
    write_files(first, {"pdf/SKILL.md": skill_md("pdf", "First.")})
    write_files(second, {"pdf/SKILL.md": skill_md("pdf", "Second.")})
    assert "no lock lists" in succeed("add", str(first), "--yes").output
    assert not (SKILLS / "pdf/mine.md").exists()
    (SKILLS / "pdf/SKILL.md").write_text("edited", encoding="utf-8")
    row = json.loads(succeed("add", str(second), "--yes", "--json").stdout)["skills"][0]
    assert row["status"] == "replaced"
    assert row["replaces"]["source"].endswith("first")
    assert row["replaces"]["drift"][0]["path"] == "SKILL.md"
    assert row["differences"] == {"added": [], "changed": ["SKILL.md"], "removed": []}
    assert "Second." in (SKILLS / "pdf/SKILL.md").read_text(encoding="utf-8")
    # A linked directory is replaced as a link; what it leads to stays.
    shutil.rmtree(SKILLS / "pdf")
    (SKILLS / "pdf").symlink_to(first / "pdf", target_is_directory=True)
    succeed("add", str(second), "--yes")
    assert not (SKILLS / "pdf").is_symlink()
    assert "First." in (first / "pdf/SKILL.md").read_text(encoding="utf-8")


def test_a_name_in_another_case_is_refused(tmp_path: Path) -> None:
    """Two names that are one directory on some systems would make a lock that no command reads any more."""
    named = skill_md("foo")
    write_files(tmp_path, {"one/a/SKILL.md": named, "two/b/SKILL.md": named.replace("foo", "Foo")})
    succeed("add", str(tmp_path / "one"), "--yes")
    before = snapshot(SKILLS, LOCK)
    said = refuse(1, "add", str(tmp_path / "two"), "--yes")
    assert "Foo (b): the lock has a skill 'foo', which is the same directory on systems that ignore case" in said
    assert snapshot(SKILLS, LOCK) == before
    succeed("verify")


def test_a_lock_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    """The new lock is written before anything is placed, so that skills never come without it."""
    write_files(tmp_path, {"library/a/SKILL.md": skill_md("a")})
    said = refuse(1, "add", str(tmp_path / "library"), "--yes", "--lock", f"{'x' * 250}.lk")
    assert "too long" in said
    assert not SKILLS.exists()


def test_a_skill_with_problems(tmp_path: Path) -> None:
    """Warnings are shown and the skill comes; a skill that no agent could use stays out and says why, others come."""
    write_files(
        tmp_path / "library",
        {
            "Odd/SKILL.md": skill_md("fine").replace("name: fine", "name: odd"),
            "broken/SKILL.md": "no frontmatter",
            "good/SKILL.md": skill_md("good"),
        },
    )
    said = refuse(1, "add", str(tmp_path / "library"), "--yes")
    assert "name-directory-mismatch" in said
    assert "Not taken: broken" in said
    assert sorted(lock_rows()) == ["good", "odd"]
    before = snapshot(Path.cwd())
    assert "broken" in refuse(1, "add", str(tmp_path / "library"), "--yes", "--skill", "broken", "--skill", "good")
    assert snapshot(Path.cwd()) == before


def test_refs_and_updates(tmp_path: Path) -> None:
    """Branches, tags and commits, long and short; an update follows a branch, also when forced, and never a commit."""
    repository = tmp_path / "repository"
    url = make_repository(repository)
    first = git(repository, "rev-parse", "HEAD")
    git(repository, "tag", "--annotate", "v1", "--message", "v1")
    git(repository, "checkout", "--quiet", "-b", "next")
    second = commit(repository, {"skills/pdf/SKILL.md": skill_md("pdf", "Second."), "skills/pdf/new.md": "new"})
    git(repository, "checkout", "--quiet", "main")
    for ref, expected in (("v1", first), ("next", second), ("main", first), (first, first), (second[:10], second)):
        succeed("add", url, "--yes", "--skill", "pdf", "--ref", ref)
        assert (lock_rows()["pdf"]["ref"], lock_rows()["pdf"]["commit"]) == (ref, expected)
    assert "no commit" in refuse(1, "add", url, "--yes", "--ref", "0" * 40)
    refuse(1, "add", url, "--yes", "--ref", "no-such-branch")
    # Pinned to a commit: whatever happens, an update brings nothing.
    succeed("add", url, "--yes", "--ref", first)
    commit(repository, {"skills/pdf/SKILL.md": skill_md("pdf", "Third.")})
    assert "Pinned to a commit" in succeed("update", "--yes").output
    succeed("add", url, "--yes", "--ref", "next")
    git(repository, "checkout", "--quiet", "next")
    git(repository, "reset", "--quiet", "--hard", first)
    (repository / "skills/pdf/assets/logo.bin").unlink()
    forced = commit(repository, {"skills/pdf/SKILL.md": skill_md("pdf", "Forced.")})
    row = next(r for r in json.loads(succeed("update", "--yes", "--json").stdout)["skills"] if r["name"] == "pdf")
    assert row["commit"] == forced
    assert row["status"] == "updated"
    assert row["differences"] == {"added": [], "changed": ["SKILL.md"], "removed": ["assets/logo.bin", "new.md"]}
    assert not (SKILLS / "pdf/new.md").exists()
    # A commit elsewhere in the repository is no reason to write the lock again.
    commit(repository, {"README.md": "other"})
    before = LOCK.read_bytes()
    assert "Nothing to change" in succeed("update", "--yes").output
    assert LOCK.read_bytes() == before
    # A skill that the source gave up stays, and is told.
    git(repository, "rm", "-r", "--quiet", "skills")
    commit(repository)
    assert "no longer has it" in refuse(1, "update", "--yes")
    assert (SKILLS / "pdf/SKILL.md").exists()
    assert "pdf" in refuse(2, "update", "unknown")


def test_what_names_a_repository_and_what_has_refs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`owner/name` is one on GitHub, a bare one has refs; a plain directory and an archive have none."""
    repository = tmp_path / "owner/name.git"
    make_repository(repository)
    monkeypatch.setattr("deepskills._install.origin.GITHUB", f"{tmp_path.as_uri()}/{{}}.git")
    succeed("add", "owner/name", "--yes", "--skill", "csv")
    assert lock_rows()["csv"]["source"].endswith("owner/name.git")
    git(tmp_path, "clone", "--quiet", "--bare", str(repository), str(tmp_path / "bare"))
    succeed("add", str(tmp_path / "bare"), "--ref", "main", "--yes", "--skill", "pdf")
    assert lock_rows()["pdf"]["ref"] == "main"
    write_files(tmp_path / "plain", LIBRARY)
    assert "not a git repository" in refuse(1, "add", str(tmp_path / "plain"), "--ref", "main", "--yes")
    archive = make_zip(tmp_path / "library.zip")
    assert "Leave out --ref" in refuse(1, "add", str(archive), "--ref", "main", "--yes")
    # Another name in the same place is another skill.
    commit(repository, {"deep/er/still/csv/SKILL.md": skill_md("tables")})
    assert "now calls it 'tables'; remove csv and add that" in refuse(1, "update", "csv", "--yes")
    # What the repository lost is one sentence.
    lost = git(repository, "rev-parse", "HEAD:README.md")
    shutil.rmtree(repository / ".git/objects" / lost[:2])
    assert "git could not fetch" in refuse(1, "update", "csv", "--yes")


def test_install_brings_exactly_what_the_lock_says(tmp_path: Path) -> None:
    """On a fresh machine the same bytes arrive, from the commit of the lock; or nothing changes, and it says why."""
    url = make_repository(tmp_path / "repository")
    write_files(tmp_path / "library", {"own/SKILL.md": skill_md("own"), "own/run.sh": "echo 1"})
    (tmp_path / "library/own/run.sh").chmod(0o755)
    succeed("add", url, "--yes", "--ref", "main")
    succeed("add", str(tmp_path / "library"), "--yes")
    wanted, lock = snapshot(SKILLS), LOCK.read_bytes()
    assert lock_rows()["own"]["files"]["run.sh"]["executable"] is True
    commit(tmp_path / "repository", {"skills/pdf/SKILL.md": skill_md("pdf", "Newer.")})
    shutil.rmtree(SKILLS.parent)
    succeed("install", "--frozen")
    assert snapshot(SKILLS) == wanted
    assert "Nothing to change" in succeed("install", "--frozen").output
    # The directory no longer gives what was locked: not even the others come.
    write_files(tmp_path / "library", {"own/run.sh": "echo 2"})
    shutil.rmtree(SKILLS.parent)
    assert "own" in (said := refuse(1, "install", "--frozen"))
    assert "run.sh" in said
    assert "Nothing was changed" in said
    assert not SKILLS.parent.exists()
    assert LOCK.read_bytes() == lock
    # Edited files are a reason to stop, and are put back only on request.
    write_files(tmp_path / "library", {"own/run.sh": "echo 1"})
    succeed("install", "--frozen")
    (SKILLS / "pdf/SKILL.md").write_text("edited", encoding="utf-8")
    assert "SKILL.md (changed)" in refuse(1, "install", "--frozen")
    assert (SKILLS / "pdf/SKILL.md").read_text(encoding="utf-8") == "edited"
    # The commit is gone for good.
    shutil.rmtree(tmp_path / "repository")
    make_repository(tmp_path / "repository", {"skills/pdf/SKILL.md": skill_md("pdf", "Another history.")})
    shutil.rmtree(SKILLS.parent)
    assert "no commit" in refuse(1, "install", "--frozen")
    assert not SKILLS.exists()


def test_verify_names_every_kind_of_drift(tmp_path: Path) -> None:
    """Changed, added, removed, hidden, linked and executable files, missing and unlisted skills; `--fix` puts back."""
    succeed("add", make_repository(tmp_path / "repository"), "--yes")
    wanted = snapshot(SKILLS)
    pdf = SKILLS / "pdf"
    (pdf / "SKILL.md").write_bytes((pdf / "SKILL.md").read_bytes().replace(b"\n", b"\r\n"))
    (pdf / "references/crlf.md").write_bytes(b"one\r\ntwO\r\n")
    (pdf / "scripts/run.py").chmod(0o755)
    (pdf / ".hidden").write_text("x", encoding="utf-8")
    write_files(pdf, {"scripts/__pycache__/run.cpython-311.pyc": b"\x00"})
    target = tmp_path / "target"
    target.write_bytes((pdf / "assets/logo.bin").read_bytes())
    (pdf / "assets/logo.bin").unlink()
    (pdf / "assets/logo.bin").symlink_to(target)
    shutil.rmtree(SKILLS / "csv")
    result = invoke("verify", "--json")
    assert result.exit_code == 1
    assert {(row["skill"], row["path"], row["kind"]) for row in json.loads(result.stdout)} == {
        ("csv", "", "missing"),
        ("pdf", ".hidden", "added"),
        ("pdf", "SKILL.md", "changed"),
        ("pdf", "assets/logo.bin", "changed"),
        ("pdf", "references/crlf.md", "changed"),
        ("pdf", "scripts/__pycache__/run.cpython-311.pyc", "added"),
        ("pdf", "scripts/run.py", "executable"),
    }
    (pdf / "scripts/run.py").unlink()
    assert "pdf/scripts/run.py: removed" in refuse(1, "verify")
    succeed("verify", "--fix")
    assert snapshot(SKILLS) == wanted
    # An empty directory in a file's place is not that file.
    (pdf / "scripts/run.py").unlink()
    (pdf / "scripts/run.py").mkdir()
    assert "pdf/scripts/run.py: removed" in refuse(1, "verify")
    succeed("verify", "--fix")
    assert snapshot(SKILLS) == wanted
    assert target.exists()
    write_files(SKILLS, {"stranger/SKILL.md": skill_md("stranger")})
    assert "stranger: unlisted" in refuse(1, "verify")
    refuse(1, "verify", "--fix")
    assert (SKILLS / "stranger/SKILL.md").exists()


def test_remove_takes_a_skill_out_of_disk_and_lock(tmp_path: Path) -> None:
    """What the lock does not list is not removed; the rest stays as it was."""
    write_files(tmp_path / "library", LIBRARY)
    succeed("add", str(tmp_path / "library"), "--yes")
    write_files(SKILLS, {"own/SKILL.md": skill_md("own")})
    assert "csv, pdf. A skill that was not added is yours to delete" in refuse(2, "remove", "own")
    succeed("remove", "csv", "--yes")
    assert sorted(lock_rows()) == ["pdf"]
    assert sorted(path.name for path in SKILLS.iterdir()) == ["own", "pdf"]
    shutil.rmtree(SKILLS / "pdf")
    assert json.loads(succeed("remove", "pdf", "--yes", "--json").stdout)["skills"][0]["status"] == "removed"
    assert lock_rows() == {}
    LOCK.unlink()
    assert "It has: none. A skill that was not added" in refuse(2, "remove", "own")
    assert (SKILLS / "own").is_dir()


def test_a_broken_lock_is_refused_by_name(tmp_path: Path) -> None:
    """Every way to break a lock is told apart, and no command goes on with one."""
    write_files(tmp_path / "library", LIBRARY)
    succeed("add", str(tmp_path / "library"), "--yes")
    good = LOCK.read_text(encoding="utf-8")
    row = json.loads(good)["skills"]["csv"]

    def with_row(**changes: object) -> str:
        return json.dumps({"version": 1, "skills": {"csv": {**row, **changes}}})

    file = row["files"]["SKILL.md"]
    broken = {
        "merge conflict": good.replace('  "version"', '<<<<<<< HEAD\n  "version"'),
        "not a lock": "{",
        "twice": good.replace('"csv": {', '"pdf": {'),
        "no object": "[]",
        "the version 2": '{"version": 2, "skills": {}}',
        "cannot be a directory": json.dumps({"version": 1, "skills": {"../up": row}}),
        "one directory": json.dumps({"version": 1, "skills": {"csv": row, "CSV": row}}),
        "does not fit": with_row(digest="sha256:" + "0" * 64),
        "inside the skill": with_row(files={"../x": file, "SKILL.md": file}),
        "64 hexadecimal": with_row(files={"SKILL.md": {**file, "sha256": "zz"}}),
        "inside the source": with_row(path="../up"),
        "`commit`": with_row(commit="--upload-pack=x"),
        "no SKILL.md": with_row(files={"a.md": file}),
        "neither true nor false": with_row(files={"SKILL.md": {**file, "executable": 1}}),
        "`source`": with_row(source="a\nb"),
    }
    for words, text in broken.items():
        LOCK.write_text(text, encoding="utf-8")
        before = snapshot(Path.cwd())
        for command in (
            ["verify"],
            ["install", "--frozen"],
            ["update", "--yes"],
            ["add", str(tmp_path / "library"), "--yes"],
        ):
            assert words in refuse(1, *command), command
        assert snapshot(Path.cwd()) == before
    LOCK.write_bytes(b"\xff\xfe")
    assert "UTF-8" in refuse(1, "verify")
    LOCK.unlink()
    assert "no lock" in refuse(1, "verify")
    LOCK.write_text("[" * 100_000, encoding="utf-8")
    refuse(1, "verify")


def test_a_lock_survives_a_merge(tmp_path: Path) -> None:
    """Two branches that each add a skill merge by git, without a hand, into a lock that is right."""
    files = {f"{name}/SKILL.md": skill_md(name) for name in ("alpha", "kilo", "november", "zulu")}
    write_files(tmp_path / "library", files)
    project = Path.cwd()
    git(project, "init", "--quiet", "--initial-branch=main")
    succeed("add", str(tmp_path / "library"), "--yes", "--skill", "kilo", "--skill", "november")
    commit(project)
    for branch, name in (("one", "alpha"), ("two", "zulu")):
        git(project, "checkout", "--quiet", "-b", branch, "main")
        succeed("add", str(tmp_path / "library"), "--yes", "--skill", name)
        commit(project)
    git(project, "merge", "--quiet", "--no-edit", "one")
    assert sorted(lock_rows()) == ["alpha", "kilo", "november", "zulu"]
    merged = LOCK.read_bytes()
    succeed("verify")
    LOCK.unlink()
    shutil.rmtree(SKILLS)
    succeed("add", str(tmp_path / "library"), "--yes")
    assert LOCK.read_bytes() == merged


def test_sources_that_cannot_be_fetched_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No git, no repository, a clone that breaks half way, no skill in it: one sentence, and nothing has changed."""
    url = make_repository(tmp_path / "repository")
    write_files(tmp_path / "empty", {"README.md": "nothing"})
    before = snapshot(Path.cwd())
    assert "could not fetch" in refuse(1, "add", "file:///nowhere/at/all", "--yes")
    assert "no SKILL.md" in refuse(1, "add", str(tmp_path / "empty"), "--yes")
    assert "nothing at" in refuse(1, "add", "./missing", "--yes")
    assert "spelling" in refuse(1, "add", "missing", "--yes")
    assert "secret" not in refuse(1, "add", "https://user:secret@127.0.0.1:9/a/b", "--yes")
    for broken in sorted((tmp_path / "repository/.git/objects").rglob("*"))[-3:]:
        if broken.is_file():
            broken.chmod(0o644)
            broken.write_bytes(b"broken")
    refuse(1, "add", url, "--yes")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert "no git on this machine" in refuse(1, "add", url, "--yes")
    assert snapshot(Path.cwd()) == before


def test_required_skills_are_added_along(tmp_path: Path) -> None:
    """`add --skill` also adds what the skill requires of the same source, and warns of what is nowhere."""
    needs = {"top": "Base gone PDF", "base": "ground", "ground": "", "else": ""}
    fields: dict[str, dict[str, Any]] = {
        name: {"metadata": {"requires": wanted}} if wanted else {} for name, wanted in needs.items()
    }
    files = {f"lib/{name}/SKILL.md": skill_md(name, **extra) for name, extra in fields.items()}
    # Two of the name: the neighbour is meant.
    write_files(tmp_path / "source", {**files, "old/base/SKILL.md": skill_md("base", "The old one.")})
    write_files(SKILLS, {"pdf/SKILL.md": skill_md("pdf")})
    told = json.loads(succeed("add", str(tmp_path / "source"), "--skill", "top", "--yes", "--json").stdout)
    assert sorted(lock_rows()) == ["base", "ground", "top"]
    assert "old one" not in (SKILLS / "base/SKILL.md").read_text()
    [row] = [row for row in told["skills"] if row["name"] == "top"]
    assert [(found["code"], "`gone`" in found["message"], "PDF" in found["message"]) for found in row["problems"]] == [
        ("requires-missing", True, False)
    ]


@pytest.mark.parametrize("manifest", ["plugin.json", ".claude-plugin/plugin.json"])
def test_a_plugin_gives_the_skills_of_its_format(manifest: str, tmp_path: Path) -> None:
    """Those directly below `skills/` that follow the specification are added; the others are named with the reason."""
    plugin = {
        manifest: '{"name": "tools"}',
        "skills/pdf/SKILL.md": skill_md("pdf"),
        "skills/wrong/SKILL.md": skill_md("other"),
        "skills/group/deep/SKILL.md": skill_md("deep"),
        "examples/demo/SKILL.md": skill_md("demo"),
    }
    write_files(tmp_path / "plugin", plugin)
    result = invoke("add", str(tmp_path / "plugin"), "--yes", "--json")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert sorted(lock_rows()) == ["pdf"]
    [refused] = told["refused"]
    assert (refused["path"], "must follow the specification" in refused["message"]) == ("skills/wrong", True)
    succeed("verify")


def test_what_calls_itself_a_plugin_and_has_no_skills_directory(tmp_path: Path) -> None:
    """It is read like any other source."""
    write_files(tmp_path / "source", {"plugin.json": "{}", "examples/demo/SKILL.md": skill_md("demo")})
    succeed("add", str(tmp_path / "source"), "--yes")
    assert sorted(lock_rows()) == ["demo"]


def test_a_plugin_that_breaks_its_format_is_refused(tmp_path: Path) -> None:
    """Only one that claims the format is held to it: `plugin.json` is a name that others use, too."""
    schema = "https://agent-plugins.org/schemas/{}/plugin.schema.json"
    for manifest, said in (
        ({"$schema": schema.format("1.0.0"), "name": "Tools"}, "its name is `Tools`"),
        ({"$schema": schema.format("2.0.0"), "name": "tools"}, "is understood"),
        ({"$schema": schema.format("1.0.0"), "name": "tools", "keywords": "a"}, "`keywords` is not a list of texts"),
    ):
        write_files(
            tmp_path, {"plugin/plugin.json": json.dumps(manifest), "plugin/skills/pdf/SKILL.md": skill_md("pdf")}
        )
        assert said in refuse(1, "add", str(tmp_path / "plugin"), "--yes")
    write_files(tmp_path, {"plugin/plugin.json": json.dumps({"$schema": schema.format("1.0.0"), "name": "tools"})})
    succeed("add", str(tmp_path / "plugin"), "--yes")
