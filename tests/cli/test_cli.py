"""The `deepskills` command: what it prints for people, pipes and programs, how it exits, what it writes."""

import importlib.metadata
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from rich.cells import cell_len
from skills_ref import validate as reference_validate

from deepskills import __main__ as entry
from deepskills import validate_skill
from support import skill_md, write_files
from support.command_line import invoke
from support.terminal import drawn, read_to_the_end

ROW_KEYS = ["name", "description", "path", "source", "tokens", "resources", "problems"]
DETAIL_KEYS = [
    *(*ROW_KEYS, "license", "compatibility", "metadata", "allowed_tools", "visibility", "user_invocable", "model"),
    *("context", "agent", "hooks", "keys", "listed", "files"),
]
ESCAPE = "\x1b"
STYLED = re.compile(r"\x1b\[[0-9;]*m")
BROKEN = "no frontmatter here"
EXAMPLES = Path(__file__).parents[2] / "examples" / "skills"


def command(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the real command, its output in pipes and its input empty."""
    return subprocess.run(
        [sys.executable, "-m", "deepskills", *args],
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def in_terminal(args: Sequence[str], typed: str = "") -> tuple[int, str]:
    """Run the real command in a terminal; return its exit code and all that the terminal showed."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "deepskills", *args],
        env={**os.environ, "COLUMNS": "120"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    os.write(ours, typed.encode())
    shown = read_to_the_end(ours)
    return process.wait(), shown


def as_json(result: Result) -> Any:
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return json.loads(result.stdout)


def named(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(row for row in rows if row["name"] == name)


def codes(problems: list[dict[str, Any]]) -> list[str]:
    return [problem["code"] for problem in problems]


# --- list ---


def test_list_json_is_a_list_of_rows_with_the_documented_keys(workplace: Path) -> None:
    """Every row has the same keys and types, paths are absolute, and the cost grows with the text."""
    write_files(
        workplace / "skills",
        {
            "short/SKILL.md": skill_md("short", "Brief."),
            "long/SKILL.md": skill_md("long", "Wordy.", body="word " * 2000),
            "long/scripts/run.py": "",
            "long/references/guide.md": "",
            "long/notes.txt": "",
        },
    )
    rows = as_json(invoke("list", "--source", "skills", "--json"))
    assert [list(row) for row in rows] == [ROW_KEYS, ROW_KEYS]
    long, short = rows
    assert (long["name"], long["description"]) == ("long", "Wordy.")
    assert long["path"] == f"{workplace}/skills/long/SKILL.md"
    assert long["source"] == f"{workplace}/skills"
    assert (long["resources"], short["resources"]) == (3, 0)
    assert long["tokens"] > 10 * short["tokens"] > 0
    assert long["problems"] == short["problems"] == []


def test_list_counts_files_beyond_those_that_a_load_lists(workplace: Path) -> None:
    """Three hundred files are three hundred; hidden ones, and those of a skill inside, are not its own."""
    files = {f"many/scripts/{number}.py": "" for number in range(300)}
    files |= {"many/inner/SKILL.md": skill_md("inner"), "many/inner/deep/a.md": "", "many/.git/x": "", "many/.env": ""}
    write_files(workplace / "skills", {"many/SKILL.md": skill_md("many"), **files})
    [row] = as_json(invoke("list", "-s", "skills", "--json"))
    assert row["resources"] == 300
    assert "\t300 scripts\t" in invoke("list", "-s", "skills").stdout


def test_list_shows_broken_skills_with_their_problem(workplace: Path) -> None:
    """A file that cannot be used is a row of its directory's name with an error and no cost; the exit code is 0."""
    write_files(workplace / "skills", {"good/SKILL.md": skill_md("good"), "bad/SKILL.md": BROKEN})
    result = invoke("list", "-s", "skills", "--json")
    bad = named(as_json(result), "bad")
    assert result.exit_code == 0
    assert list(bad) == ROW_KEYS
    assert (bad["description"], bad["tokens"], bad["resources"]) == ("", 0, 0)
    assert bad["source"] == f"{workplace}/skills"
    assert [(p["code"], p["severity"]) for p in bad["problems"]] == [("no-frontmatter", "error")]
    plain = invoke("list", "-s", "skills")
    assert "bad\tskills\t0 tokens\t-\tnot usable: no-frontmatter\t\n" in plain.stdout
    assert f"{workplace}/skills/bad/SKILL.md: no-frontmatter: There is no frontmatter." in plain.stderr


def test_list_does_not_let_a_broken_override_hide_the_working_skill(workplace: Path) -> None:
    """Both files are shown: the one that is used, and the one that is not."""
    write_files(workplace, {"user/x/SKILL.md": skill_md("x", "Works."), "project/x/SKILL.md": BROKEN})
    rows = as_json(invoke("list", "-s", "user", "-s", "project", "--json"))
    assert [(row["name"], row["description"], codes(row["problems"])) for row in rows] == [
        ("x", "", ["no-frontmatter"]),
        ("x", "Works.", []),
    ]


@pytest.mark.parametrize(("order", "winner"), [(("one", "two"), "two"), (("two", "one"), "one")])
def test_the_later_source_wins_and_the_row_says_what_it_hides(
    workplace: Path, order: tuple[str, str], winner: str
) -> None:
    """Of equal names in two sources one row is left, with its source, and the hidden file is named as a problem."""
    for source in order:
        write_files(workplace / source, {"same/SKILL.md": skill_md("same", f"From {source}.")})
    [row] = as_json(invoke("list", "-s", order[0], "-s", order[1], "--json"))
    assert (row["description"], row["source"]) == (f"From {winner}.", f"{workplace}/{winner}")
    [hidden] = row["problems"]
    assert (hidden["code"], hidden["path"]) == ("skill-shadowed", f"{workplace}/{order[0]}/same/SKILL.md")


def test_a_duplicate_in_one_source_is_named_in_the_row_that_stays(workplace: Path) -> None:
    """Two directories with one name: one row, the other's file among the problems."""
    write_files(workplace / "skills", {"a/SKILL.md": skill_md("a"), "b/SKILL.md": skill_md("a")})
    [row] = as_json(invoke("list", "-s", "skills", "--json"))
    assert row["path"].endswith("/a/SKILL.md")
    assert "skill-duplicate" in codes(row["problems"])


def test_the_default_sources_are_the_users_and_the_projects(workplace: Path) -> None:
    """Without --source the usual places are read, each that has skills is said, and the project wins."""
    for place, text in ((workplace.parent / "home", "user"), (workplace, "project")):
        write_files(place / ".agents/skills", {"same/SKILL.md": skill_md("same", f"From {text}.")})
    write_files(workplace.parent / "home/.agents/skills", {"mine/SKILL.md": skill_md("mine")})
    write_files(
        workplace, {"skills/plain/SKILL.md": skill_md("plain"), "skills/same/SKILL.md": skill_md("same", "No.")}
    )
    write_files(workplace / ".claude/skills", {"theirs/SKILL.md": skill_md("theirs")})
    rows = as_json(invoke("list", "--json"))
    assert [row["name"] for row in rows] == ["mine", "plain", "same", "theirs"]
    assert named(rows, "same")["description"] == "From project."
    listed = invoke("list")
    assert [line.split("\t")[1] for line in listed.stdout.splitlines()] == [
        "~/.agents/skills",
        "skills",
        ".agents/skills",
        ".claude/skills",
    ]
    assert "Reading ~/.agents/skills, .claude/skills, skills and .agents/skills.\n" in listed.stderr


def test_a_directory_that_is_only_called_skills_is_no_source(workplace: Path) -> None:
    """A package named `skills`, or an empty `.agents/skills`, is neither read nor complained about by default."""
    write_files(
        workplace, {"skills/__init__.py": "", "skills/core/api.py": "", ".claude/skills/a/SKILL.md": skill_md("a")}
    )
    (workplace / ".agents/skills").mkdir(parents=True)
    listed = invoke("list")
    assert [line.split("\t")[0] for line in listed.stdout.splitlines()] == ["a"]
    assert "source-empty" not in listed.stderr
    assert listed.stderr.startswith("Reading .claude/skills.\n1 skill from 1 source: ")
    assert "source-empty" in invoke("list", "-s", "skills").stderr, "named, it is complained about"


def test_a_place_that_is_linked_to_another_counts_once(workplace: Path) -> None:
    """Installers link `.claude/skills`, or each skill in it, to `.agents/skills`: no skill hides itself."""
    write_files(workplace / ".agents/skills", {"a/SKILL.md": skill_md("a"), "b/SKILL.md": skill_md("b")})
    (workplace / ".claude").mkdir()
    (workplace / ".claude/skills").symlink_to(workplace / ".agents/skills")
    assert [row["problems"] for row in as_json(invoke("list", "--json"))] == [[], []]
    (workplace / ".claude/skills").unlink()
    (workplace / ".claude/skills").mkdir()
    for name in ("a", "b"):
        (workplace / ".claude/skills" / name).symlink_to(workplace / ".agents/skills" / name)
    rows = as_json(invoke("list", "--json"))
    assert [row["problems"] for row in rows] == [[], []]
    assert {row["source"] for row in rows} == {f"{workplace}/.agents/skills"}
    assert "2 skills checked, no problems." in invoke("validate").stderr


def test_missing_default_sources_are_no_failure() -> None:
    """A fresh machine has no skills: an empty list, and a hint what to do."""
    result = invoke("list", "--json")
    assert (result.exit_code, result.stdout) == (0, "[]\n")
    assert "deepskills create" in result.stderr


def test_one_missing_source_of_several_is_a_remark(workplace: Path) -> None:
    """What is there is listed, what is not is said on standard error."""
    write_files(workplace / "skills", {"a/SKILL.md": skill_md("a")})
    result = invoke("list", "-s", "gone", "-s", "skills", "--json")
    assert result.exit_code == 0
    assert [row["name"] for row in as_json(result)] == ["a"]
    assert f"{workplace}/gone: source-missing: " in result.stderr


@pytest.mark.parametrize("args", [["list"], ["search", "x"], ["info", "x"]])
def test_sources_of_which_none_exists_are_wrong_usage(args: list[str]) -> None:
    """A typing slip does not look like an empty library."""
    result = invoke(*args, "-s", "gone", "-s", "lost", "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "There is no such source: gone, lost." in result.stderr


@pytest.mark.parametrize(("source", "says"), [("file.txt", "is a file"), ("", "empty"), ("  ", "empty")])
def test_a_source_that_is_no_directory_is_wrong_usage(workplace: Path, source: str, says: str) -> None:
    """A file or nothing is not taken for an empty source."""
    (workplace / "file.txt").write_text("x")
    result = invoke("list", f"--source={source}")
    assert result.exit_code == 2
    assert says in result.stderr


@pytest.mark.parametrize("args", [["list"], ["validate", "~nosuchuser/x"], ["create", "a", "-d", "Does."]])
def test_a_home_of_nobody_is_wrong_usage(args: list[str]) -> None:
    """`~name` of a user who does not exist is exit code 2 and one plain line."""
    result = invoke(*args, "-s", "~nosuchuser/x")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert "~nosuchuser/x" in result.stderr
    assert "report" not in result.stderr


@pytest.mark.parametrize("args", [["list"], ["info", "good"], ["search", "thing"]])
@pytest.mark.parametrize("default", [False, True])
def test_a_source_that_cannot_be_looked_at_costs_no_other(
    workplace: Path, args: list[str], monkeypatch: pytest.MonkeyPatch, *, default: bool
) -> None:
    """What the other sources have is shown; the one that the system refuses is a problem and exit code 1."""
    write_files(workplace, {".agents/skills/good/SKILL.md": skill_md("good")})
    refused = "/" + "x" * 300
    sources = [] if default else ["-s", refused, "-s", ".agents/skills"]
    if default:
        monkeypatch.setenv("HOME", refused)
    result = invoke(*args, *sources)
    assert "good" in result.stdout
    assert ": source-failed: " in result.stderr
    assert result.exit_code == 1


def test_sources_may_be_written_with_tilde_and_dots(workplace: Path) -> None:
    """`~` and `..` lead where the shell would lead, and paths come out without them."""
    write_files(workplace.parent / "home/s", {"a/SKILL.md": skill_md("a")})
    for given in ("~/s", "../home/s", "../home/./s/"):
        [row] = as_json(invoke("list", f"--source={given}", "--json"))
        assert row["path"] == f"{workplace.parent}/home/s/a/SKILL.md"
        assert row["source"] == f"{workplace.parent}/home/s"


def test_a_linked_source_keeps_its_own_name(workplace: Path) -> None:
    """A source that is a link is shown by the path that was given."""
    write_files(workplace / "real", {"a/SKILL.md": skill_md("a")})
    (workplace / "link").symlink_to(workplace / "real")
    [row] = as_json(invoke("list", "-s", "link", "--json"))
    assert row["source"] == f"{workplace}/link"


def test_a_skill_belongs_to_the_innermost_source(workplace: Path) -> None:
    """Where one source lies in another, each skill names the one that it was found in, whatever their order."""
    write_files(workplace / "outer", {"a/SKILL.md": skill_md("a"), "inner/b/SKILL.md": skill_md("b")})
    for order in (["outer", "outer/inner"], ["outer/inner", "outer"]):
        rows = as_json(invoke("list", "-s", order[0], "-s", order[1], "--json"))
        assert [row["source"] for row in rows] == [f"{workplace}/outer", f"{workplace}/outer/inner"]


# --- terminal and pipe ---


def test_a_pipe_gets_plain_lines_with_nothing_cut(workplace: Path) -> None:
    """One line a skill, tabs between cells, no styling, however long the names are."""
    name = "a" * 64
    deep = "/".join(["directory"] * 12)
    write_files(workplace / deep, {f"{name}/SKILL.md": skill_md(name), f"{name}/scripts/x.py": ""})
    result = command("list", "-s", deep)
    assert result.returncode == 0
    assert ESCAPE not in result.stdout + result.stderr
    [line] = result.stdout.splitlines()
    assert re.fullmatch(rf"{name}\t{deep}\t\d+ tokens\t1 script\tok\t.+", line)


@pytest.mark.parametrize("args", [["list", "-s", "s"], ["validate", "s"]])
def test_a_pipe_is_plain_also_where_color_is_forced(workplace: Path, args: list[str]) -> None:
    """Build servers set FORCE_COLOR for all; what a program reads stays the same."""
    write_files(workplace / "s", {"a/SKILL.md": skill_md("a"), "b/SKILL.md": BROKEN})
    plain, forced = invoke(*args), command(*args, FORCE_COLOR="1", TTY_COMPATIBLE="1")
    assert ESCAPE not in forced.stdout + forced.stderr
    assert (forced.stdout, forced.stderr, forced.returncode) == (plain.stdout, plain.stderr, plain.exit_code)


def test_a_terminal_gets_skills_by_source_with_bars(workplace: Path) -> None:
    """Each source is a heading; the cost of each skill is a number and a bar to scale; what is broken says so."""
    write_files(workplace / "big", {"large/SKILL.md": skill_md("large", "Much of it.", body="word " * 3000)})
    write_files(workplace / "big", {"tiny/SKILL.md": skill_md("tiny")})
    write_files(workplace / "small", {"broken/SKILL.md": BROKEN})
    code, shown = in_terminal(["list", "-s", "big", "-s", "small"])
    assert code == 0
    assert ESCAPE in shown
    lines = [line.rstrip() for line in STYLED.sub("", shown).splitlines()]
    assert lines[0] == "big  2 skills"
    assert "small  1 skill" in lines
    bars = {line.split()[0]: line.count("█") for line in lines if "tokens" in line}
    assert (bars["large"], bars["tiny"], bars["broken"]) == (16, 1, 0)
    assert lines[lines.index("small  1 skill") + 2] == "    not usable: no-frontmatter"
    assert "    Much of it." in lines


def test_a_list_says_what_every_request_and_each_load_costs(workplace: Path) -> None:
    """The loaded cost is that of the prompt's section, not of loading everything; one of a thing is singular."""
    write_files(workplace / "s", {"a/SKILL.md": skill_md("a", body="word " * 3000)})
    one = invoke("list", "-s", "s").stderr
    [cost] = re.findall(r"^1 skill from 1 source: (\d+) tokens in every request, [\d,]+ per load\.$", one, re.MULTILINE)
    assert 100 < int(cost) < 600
    write_files(workplace / "s", {f"s-{n}/SKILL.md": skill_md(f"s-{n}", "word " * 99 + "end") for n in range(20)})
    many = invoke("list", "-s", "s").stderr
    [cost, least, most] = re.findall(r"([\d,]+) tokens in every request, ([\d,]+) to ([\d,]+) per load", many)[0]
    assert 2_500 < int(cost.replace(",", "")) < 4_000
    assert int(most.replace(",", "")) > 10 * int(least.replace(",", ""))


NAMES = ("a", "data-cleaning-for-quarterly-reports", "n" * 56, "周报" * 14)


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_names_stay_whole_and_lines_fit(workplace: Path, columns: int) -> None:
    """In sixty columns and more every name stands on one line, and no line but a path is longer than the terminal."""
    files = {f"{name}/SKILL.md": skill_md(name, f"Does {name[:5]}. " * 30 + "End.") for name in NAMES}
    write_files(workplace / "s", files)
    for args in (["list", "-s", "s"], ["search", "does", "-s", "s"]):
        lines = STYLED.sub("", drawn(*args, columns=columns)).splitlines()
        assert [name for name in NAMES if not any(name in line.split() for line in lines)] == []
        data = [line for line in lines if not line.startswith("/") and "in every request" not in line]
        assert [line for line in data if cell_len(line.rstrip()) > columns] == []


def test_a_shell_is_told_what_a_shell_can_do(workplace: Path) -> None:
    """What is meant for somebody who runs an agent is said in other words."""
    (workplace / "there").mkdir()
    for args in (["list", "-s", "there", "-s", "gone"], ["doctor", "-s", "there", "-s", "gone"]):
        shown = " ".join(invoke(*args).output.split())
        assert "There is no such directory. Create it, or name another." in shown
        assert "OptionalSource" not in shown


def test_no_word_is_broken_at_eighty_columns(workplace: Path) -> None:
    """In a terminal every line ends between words; a path longer than the line stays in one piece, to be copied."""
    text = "Sentences of several ordinary words, one after the other. " * 12
    long = "d" * 100
    write_files(workplace, {f"s/{long}/SKILL.md": f"---\nname: x\ndescription: {text}\n---\n", "s/b/SKILL.md": BROKEN})
    words = {*text.split(), f"{workplace}/s/{long}/SKILL.md"}
    for args in (
        ["info", "x", "-s", "s"],
        ["validate", "s"],
        ["doctor", "-s", "s"],
        ["list"],
        ["info", "nope", "-s", "s"],
    ):
        shown = re.sub(r"\x1b\[[0-9;]*m", "", drawn(*args, columns=80))
        lines = shown.splitlines()
        assert all(cell_len(line) <= 80 or any(len(word) > 70 for word in line.split()) for line in lines), args
        if args[0] == "info" and args[1] == "x":
            assert words <= set(shown.split())


def test_a_description_is_cut_at_two_lines_and_info_shows_it_all(workplace: Path) -> None:
    """A list of many skills stays a list; the cut is shown."""
    write_files(workplace / "s", {"a/SKILL.md": skill_md("a", "word " * 150 + "end")})
    listed = STYLED.sub("", drawn("list", "-s", "s", columns=60))
    assert "…" in listed
    assert "end" not in listed
    assert sum(line.startswith("    word") for line in listed.splitlines()) == 2
    assert "word end" in invoke("info", "a", "-s", "s").stdout


def test_a_narrow_terminal_cuts_no_name(workplace: Path) -> None:
    """In forty columns every letter of a name is still there."""
    name = "abcdefghijklmnopqrstuvwxyz0123456789"
    write_files(workplace / "s", {f"{name}/SKILL.md": skill_md(name)})
    assert name in STYLED.sub("", drawn("list", "-s", "s", columns=40))


def test_a_terminal_that_only_has_ascii_is_served(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No output fails for want of a character: bars are drawn with `#`, names shown as escapes, JSON stays JSON."""
    write_files(workplace / "s", {"周报/SKILL.md": skill_md("周报", "写周报 😀")})
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    code, drawn = in_terminal(["list", "-s", "s"])
    assert code == 0
    assert "#" * 16 in drawn
    assert r"\u5468\u62a5" in drawn
    [row] = json.loads(command("list", "-s", "s", "--json", PYTHONIOENCODING="ascii").stdout)
    assert (row["name"], row["description"]) == ("周报", "写周报 😀")


def test_every_script_is_shown_as_written() -> None:
    """Chinese names stay readable in text and in JSON."""
    assert "\n周报\t" in invoke("list", "-s", str(EXAMPLES)).stdout
    assert '"name": "周报"' in invoke("list", "-s", str(EXAMPLES), "--json").stdout
    assert "周报" in drawn("list", "-s", str(EXAMPLES))


HOSTILE = "ev\x1b[31m\x9b\u202eil\nx [red]y"


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize(
    "args",
    [["list", "-s", "s"], ["list", "-s", "s", "--json"], ["validate", "s"], ["validate", "s", "--json"]],
)
def test_hostile_names_and_paths_reach_no_terminal(workplace: Path, args: list[str], *, terminal: bool) -> None:
    """Whatever strangers put into names and directories, only our own styling leaves."""
    file = '---\nname: "a\x1b]0;title\x07[bold]b"\ndescription: "[red]x[/red] \x1b[2J"\nk: 1\n---\n'
    write_files(workplace / "s", {f"{HOSTILE}/SKILL.md": file, f"{HOSTILE}2/SKILL.md": BROKEN})
    shown = STYLED.sub("", drawn(*args, columns=300)).replace("\r\n", "\n") if terminal else invoke(*args).output
    assert not {c for c in shown if c not in "\n\t" and not c.isprintable()}
    escaped = r"ev\u001b[31m\u009b\u202eil\nx [red]y" if "--json" in args else r"ev\x1b[31m\x9b\u202eil\nx [red]y"
    assert escaped in shown


def test_json_keeps_hostile_paths_to_the_letter(workplace: Path) -> None:
    """A program gets the path as it is on disk, though not a single raw control character."""
    write_files(workplace / "s", {f"{HOSTILE}/SKILL.md": skill_md("a")})
    [row] = as_json(invoke("list", "-s", "s", "--json"))
    assert Path(row["path"]).is_file()


def test_names_that_are_no_text_are_served(workplace: Path) -> None:
    """A directory whose name is not UTF-8 breaks no output."""
    directory = os.fsencode(workplace) + b"/s/caf\xe9"
    os.makedirs(directory)  # noqa: PTH103 - bytes
    Path(os.fsdecode(directory), "SKILL.md").write_text(BROKEN)
    listed, checked = command("list", "-s", "s", "--json"), command("validate", "s")
    assert (listed.returncode, checked.returncode) == (0, 1)
    [row] = json.loads(listed.stdout)
    assert row["path"] == rf"{workplace}/s/caf\udce9/SKILL.md"
    assert [problem["code"] for problem in row["problems"]] == ["skill-path-not-text"]
    assert checked.stdout.startswith(r"s/caf\udce9/SKILL.md: no-frontmatter: ")


def test_only_what_cannot_be_seen_is_escaped(workplace: Path) -> None:
    """Words and emoji of any script stay whole, also where they hold characters without a width."""
    text = "周报 👩\u200d🚀 می\u200cخواهم"
    write_files(workplace / "s", {"a/SKILL.md": skill_md("a", text)})
    assert text in invoke("list", "-s", "s").stdout


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_json_reads_back_in_every_encoding(workplace: Path, encoding: str) -> None:
    """What is printed is what was meant, and can be printed."""
    name = "周报 é 😀 \x1b \x9b \u2028 \U000e0041"
    write_files(workplace / "s", {f"{name}/SKILL.md": skill_md("a")})
    shown = command("list", "-s", "s", "--json", PYTHONIOENCODING=encoding).stdout
    [row] = json.loads(shown)
    assert row["path"] == f"{workplace}/s/{name}/SKILL.md"
    assert shown.replace("\n", "").isprintable()


# --- info ---


def test_info_shows_everything(workplace: Path) -> None:
    """Metadata, cost, files and problems of one skill, for people and for programs."""
    fields: dict[str, Any] = {
        "license": "MIT",
        "compatibility": "Needs git",
        "allowed_tools": "Bash(git:*) Read",
        "metadata": {"author": "me"},
    }
    write_files(
        workplace / "s", {"a/SKILL.md": skill_md("a", "Does.", **fields), "a/scripts/x.py": "", "a/assets/t.md": ""}
    )
    details = as_json(invoke("info", "a", "-s", "s", "--json"))
    assert list(details) == DETAIL_KEYS
    assert details["license"] == "MIT"
    assert details["compatibility"] == "Needs git"
    assert details["metadata"] == {"author": "me"}
    assert details["allowed_tools"] == ["Bash(git:*)", "Read"]
    assert details["files"] == [
        {"path": f"{workplace}/s/a/scripts/x.py", "type": "script"},
        {"path": f"{workplace}/s/a/assets/t.md", "type": "asset"},
    ]
    [row] = as_json(invoke("list", "-s", "s", "--json"))
    assert {key: details[key] for key in ROW_KEYS} == row
    assert invoke("info", "A", "-s", "s").stdout.splitlines() == [
        "Name: a",
        "Description: Does.",
        f"Path: {workplace}/s/a/SKILL.md",
        f"Source: {workplace}/s",
        "License: MIT",
        "Compatibility: Needs git",
        "Allowed tools: Bash(git:*), Read",
        "Visibility: on: the model and the user can start it",
        "Metadata author: me",
        f"Tokens: {row['tokens']}",
        "Files: 1 asset, 1 script",
        "  scripts/x.py",
        "  assets/t.md",
    ]


def test_info_of_an_unknown_name_names_the_closest(workplace: Path) -> None:
    """A slip in a name is answered with the name that was meant, and exit code 2."""
    write_files(workplace / "s", {"web-research/SKILL.md": skill_md("web-research")})
    result = invoke("info", "web-reserch", "-s", "s", "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Did you mean `web-research`?" in result.stderr


def test_info_of_a_broken_skill_says_what_is_wrong(workplace: Path) -> None:
    """The problem is the answer, and the exit code is 1."""
    write_files(workplace / "s", {"bad/SKILL.md": BROKEN})
    result = invoke("info", "bad", "-s", "s")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "There is no frontmatter" in result.stderr


# --- search ---


def test_search_finds_the_right_skill_first() -> None:
    """Rows come best first, in the shape of `list`."""
    rows = as_json(invoke("search", "summarize a csv file", "-s", str(EXAMPLES), "--json"))
    assert rows[0]["name"] == "csv-report"
    assert all(list(row) == ROW_KEYS for row in rows)
    plain = invoke("search", "summarize a csv file", "-s", str(EXAMPLES)).stdout.splitlines()
    assert [line.split("\t")[0] for line in plain] == [row["name"] for row in rows]
    assert plain[0] == f"csv-report\t{rows[0]['description']}"
    assert "csv-report" in drawn("search", "csv", "-s", str(EXAMPLES))


def test_search_obeys_its_limit(workplace: Path) -> None:
    """`--limit` is the most that is shown; less than one is wrong usage."""
    write_files(workplace / "s", {f"pdf-{n}/SKILL.md": skill_md(f"pdf-{n}", "Reads pdf.") for n in range(9)})
    assert len(as_json(invoke("search", "pdf", "-s", "s", "--json"))) == 5
    assert len(as_json(invoke("search", "pdf", "-s", "s", "--json", "--limit", "7"))) == 7
    assert invoke("search", "pdf", "-s", "s", "--limit", "0").exit_code == 2


def test_search_without_a_hit_is_an_empty_answer(workplace: Path) -> None:
    """Nothing fits: exit code 0, no rows, a remark."""
    write_files(workplace / "s", {"a/SKILL.md": skill_md("a"), "bad/SKILL.md": BROKEN})
    assert invoke("search", "quantum", "-s", "s", "--json").stdout == "[]\n"
    result = invoke("search", "quantum", "-s", "s")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "No skill fits 'quantum'" in result.stderr


# --- validate ---


@pytest.fixture
def tree(workplace: Path) -> Path:
    """Three good skills and two bad ones, at several depths, beside what is no skill."""
    write_files(
        workplace / "tree",
        {
            "one/SKILL.md": skill_md("one"),
            "group/two/SKILL.md": skill_md("two"),
            "group/deeper/still/three/SKILL.md": skill_md("three"),
            "group/no-text/SKILL.md": BROKEN,
            "Upper/SKILL.md": "---\nname: Upper\ndescription: Shouts.\nversion: 1\n---\n",
            "README.md": "no skill",
            "one/references/SKILL.md": BROKEN,
            "node_modules/x/SKILL.md": BROKEN,
            ".git/x/SKILL.md": BROKEN,
        },
    )
    return workplace / "tree"


def test_validate_reads_a_whole_tree(tree: Path) -> None:
    """Each problem of each bad skill is a line `path: code: message`, and the exit code is 1."""
    result = invoke("validate", "tree")
    assert result.exit_code == 1
    assert [line.split(": ")[:2] for line in result.stdout.splitlines()] == [
        ["tree/Upper/SKILL.md", "name-invalid"],
        ["tree/Upper/SKILL.md", "unknown-field"],
        ["tree/group/no-text/SKILL.md", "no-frontmatter"],
    ]
    assert all(line.split(": ", 2)[2].endswith(".") for line in result.stdout.splitlines())
    assert result.stderr == "5 skills checked, 3 problems.\n"
    assert tree.is_dir()


@pytest.mark.usefixtures("tree")
def test_validate_json_is_a_list_of_problems() -> None:
    """The same problems, as the library has them; all are errors."""
    result = invoke("validate", "tree", "--json")
    found = as_json(result)
    assert result.exit_code == 1
    assert [list(problem) for problem in found] == [["path", "code", "severity", "message"]] * 3
    assert {problem["severity"] for problem in found} == {"error"}
    assert codes(found) == ["name-invalid", "unknown-field", "no-frontmatter"]


@pytest.mark.usefixtures("tree")
def test_validate_passes_good_skills() -> None:
    """Nothing on standard output and exit code 0; in JSON the empty list."""
    good = ["tree/one", "tree/group/two/SKILL.md", "tree/group/deeper"]
    result = invoke("validate", *good)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "3 skills checked, no problems." in result.stderr
    assert invoke("validate", *good, "--json").stdout == "[]\n"


@pytest.mark.usefixtures("tree")
def test_validate_takes_what_a_pre_commit_hook_passes() -> None:
    """Several files at once: only those named are read, and each bad one is reported under its given path."""
    files = ["tree/one/SKILL.md", "tree/group/no-text/SKILL.md", "./tree/group/two/SKILL.md"]
    result = invoke("validate", *files)
    assert result.exit_code == 1
    [line] = result.stdout.splitlines()
    assert line.startswith("tree/group/no-text/SKILL.md: no-frontmatter: ")
    assert "3 skills checked, 1 problem." in result.stderr


def test_validate_compares_the_name_with_the_directory_wherever_it_is_run(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bare `SKILL.md` and `.` know the directory that they lie in."""
    monkeypatch.chdir(tree / "one")
    assert invoke("validate", "SKILL.md").exit_code == 0
    assert invoke("validate", ".").exit_code == 0
    (tree / "one").rename(tree / "other")
    monkeypatch.chdir(tree / "other")
    for given in ("SKILL.md", "."):
        result = invoke("validate", given)
        assert result.exit_code == 1
        assert result.stdout.startswith("SKILL.md: name-directory-mismatch: ")


@pytest.mark.usefixtures("tree")
def test_validate_reads_each_file_once() -> None:
    """A file that several arguments lead to is reported once; sources are trees like any other."""
    result = invoke("validate", "tree/group/no-text/SKILL.md", "tree", "--source", "tree/group")
    assert result.stdout.count("no-frontmatter") == 1
    assert "5 skills checked" in result.stderr
    assert invoke("validate", "--source", "tree/one").exit_code == 0


def test_validate_does_not_pass_a_tree_without_skills(workplace: Path) -> None:
    """A job that looks in the wrong place does not turn green."""
    (workplace / "empty").mkdir()
    result = invoke("validate", "empty")
    assert result.exit_code == 1
    assert result.stdout.startswith("empty: source-empty: ")


@pytest.mark.usefixtures("tree")
@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "Nothing to validate"),
        (["gone"], "nothing at gone"),
        (["tree/one", "gone/SKILL.md"], "nothing at gone/SKILL.md"),
        (["tree/README.md"], "is not a SKILL.md"),
        (["tree/one", ""], "empty"),
    ],
)
def test_validate_refuses_arguments_that_lead_nowhere(args: list[str], says: str) -> None:
    """Exit code 2 and one line that says which argument is wrong; nothing half-checked."""
    result = invoke("validate", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr


def test_validate_without_a_path_checks_the_usual_sources(workplace: Path) -> None:
    """Run where README says to put skills, it finds them; it says where it looked; nothing there is no pass."""
    write_files(workplace, {"skills/good/SKILL.md": skill_md("good"), "skills/deep/er/bad/SKILL.md": BROKEN})
    (workplace / ".agents/skills").mkdir(parents=True)
    result = invoke("validate")
    assert result.exit_code == 1
    assert result.stdout.startswith("skills/deep/er/bad/SKILL.md: no-frontmatter: ")
    assert result.stderr == "Checking skills.\n2 skills checked, 1 problem.\n"
    (workplace / "skills").rename(workplace / "elsewhere")
    assert (invoke("validate").exit_code, invoke("validate", "--json").stdout) == (2, "")


@pytest.mark.parametrize("name", ["skill.md", "Skill.md", "SKILL.MD"])
def test_validate_names_a_skill_file_in_another_case(workplace: Path, name: str) -> None:
    """Agents read `SKILL.md` alone: such a skill does not exist for them, and its author hears of it."""
    write_files(workplace / "s", {f"a/{name}": skill_md("a"), "b/SKILL.md": skill_md("b"), f"b/{name}.txt": ""})
    for given in ("s", "s/a", f"s/a/{name}"):
        result = invoke("validate", given)
        assert result.exit_code == 1
        [line] = result.stdout.splitlines()
        assert line.startswith(f"s/a/{name}: skill-file-misnamed: The file is named `{name}`;")


def test_validate_follows_links_without_going_in_circles(tree: Path) -> None:
    """A link to a parent ends; a linked skill is found."""
    (tree / "group" / "loop").symlink_to(tree)
    write_files(tree.parent / "elsewhere", {"linked/SKILL.md": BROKEN})
    (tree / "out").symlink_to(tree.parent / "elsewhere")
    result = invoke("validate", "tree")
    assert "tree/out/linked/SKILL.md: no-frontmatter" in result.stdout
    assert "6 skills checked, 4 problems." in result.stderr


def test_validate_reports_a_file_that_cannot_be_read(workplace: Path) -> None:
    """A `SKILL.md` that is a link is refused by the backend: an error, not a pass."""
    write_files(workplace, {"real.md": skill_md("a"), "s/a/x": ""})
    (workplace / "s/a/SKILL.md").symlink_to(workplace / "real.md")
    result = invoke("validate", "s")
    assert result.exit_code == 1
    assert result.stdout.startswith("s/a/SKILL.md: skill-unreadable: ")


REFUSED = "/" + "x" * 300
"""A path of which the system does not say whether anything is there, to nobody."""


@pytest.mark.parametrize("source", [False, True])
@pytest.mark.parametrize(
    ("path", "code"), [(REFUSED, "source-incomplete"), (f"{REFUSED}/SKILL.md", "skill-unreadable")]
)
def test_validate_goes_on_after_a_path_that_cannot_be_looked_at(
    workplace: Path, path: str, code: str, *, source: bool
) -> None:
    """What the system refuses to look at is a problem of its own; the other trees are checked."""
    write_files(workplace / "s", {"good/SKILL.md": skill_md("good"), "bad/SKILL.md": "---\nname: bad\n---\n"})
    result = invoke("validate", *(["-s", path, "-s", "s"] if source else [path, "s"]))
    assert result.exit_code == 1
    assert [line.split(": ")[:2] for line in result.stdout.splitlines()] == [
        [path, code],
        ["s/bad/SKILL.md", "description-missing"],
    ]
    assert "2 skills checked, 2 problems." in result.stderr


def _spoil(file: Path, kind: str) -> None:
    """Put something other than a file where a `SKILL.md` is expected."""
    file.parent.mkdir(parents=True)
    if kind == "dangling link":
        file.symlink_to("nowhere")
    elif kind == "directory":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")


@pytest.fixture
def no_wait() -> Iterator[None]:
    """End a test that waits for ever, as on a pipe that nobody writes to."""

    def give_up(_signal: int, _frame: object) -> None:
        raise TimeoutError("the command waits for something")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(100)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("no_wait")
@pytest.mark.parametrize("kind", ["dangling link", "directory", "pipe", "device"])
@pytest.mark.parametrize("where", ["s", "s/odd", "."])
def test_validate_passes_nothing_that_is_no_file(workplace: Path, kind: str, where: str) -> None:
    """What is named SKILL.md and is not a file is an error, and never opened; skills beside it are checked."""
    _spoil(workplace / "s/odd/SKILL.md", kind)
    write_files(workplace / "s", {"good/SKILL.md": skill_md("good")})
    result = invoke("validate", where)
    assert result.exit_code == 1
    [line] = result.stdout.splitlines()
    assert line.startswith("s/odd/SKILL.md: skill-unreadable: ")


@pytest.mark.usefixtures("no_wait")
@pytest.mark.parametrize("kind", ["dangling link", "pipe", "device"])
def test_validate_takes_what_is_no_file_by_name(workplace: Path, kind: str) -> None:
    """Named itself, what is not a file is an error too."""
    _spoil(workplace / "odd/SKILL.md", kind)
    result = invoke("validate", "odd/SKILL.md")
    assert result.exit_code == 1
    assert result.stdout.startswith("odd/SKILL.md: skill-unreadable: ")


@pytest.mark.usefixtures("no_wait")
@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
def test_list_never_opens_what_is_no_file(workplace: Path, kind: str) -> None:
    """A pipe or device named SKILL.md keeps nobody waiting: it is a skill that cannot be used."""
    _spoil(workplace / "s/odd/SKILL.md", kind)
    write_files(workplace / "s", {"good/SKILL.md": skill_md("good")})
    rows = as_json(invoke("list", "-s", "s", "--json"))
    assert [row["name"] for row in rows] == ["good", "odd"]
    assert codes(rows[1]["problems"]) == ["skill-unreadable" if kind == "directory" else "skill-not-a-file"]


# --- create ---


def test_create_writes_what_validate_passes(workplace: Path) -> None:
    """The new skill has the standard directories, is listed, and both validators accept it."""
    result = invoke("create", "pdf-forms", "--description", "Fill PDF forms. Use when: a form is due, #1!")
    place = workplace / ".agents/skills/pdf-forms"
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"Created {place}/SKILL.md\n"
    assert sorted(entry.name for entry in place.iterdir()) == ["SKILL.md", "assets", "references", "scripts"]
    assert invoke("validate", str(place)).exit_code == 0
    assert reference_validate(place) == []
    [row] = as_json(invoke("list", "--json"))
    assert (row["name"], row["description"]) == ("pdf-forms", "Fill PDF forms. Use when: a form is due, #1!")
    assert row["problems"] == []


def test_create_starts_a_checked_skill(workplace: Path) -> None:
    """With `--checks` it is valid too, `info` says when its check passes, and `doctor` what it needs."""
    assert invoke("create", "forms", "-d", "Fills forms.", "--checks").exit_code == 0
    assert invoke("validate", str(workplace / ".agents/skills/forms")).exit_code == 0
    shown = invoke("info", "forms").stdout
    assert "called: write_file" in shown
    assert "a call of this tool answered without error since the load" in shown
    assert "extensions=[SkillChecks(...)]" in invoke("doctor").stdout


@pytest.mark.parametrize("description", ["写周报。", 'Says "x": {y} --- [z]', "two\nlines", " around ", "x" * 1024])
def test_create_keeps_any_description(workplace: Path, description: str) -> None:
    """Whatever the description holds, the file is valid and says it."""
    row = as_json(invoke("create", "周报", "-d", description, "-s", "s", "--json"))
    assert row["description"] == description.strip()
    path = workplace / "s/周报/SKILL.md"
    assert validate_skill(path.read_bytes(), path=str(path)) == []


def test_create_goes_into_the_last_source_and_prints_its_row(workplace: Path) -> None:
    """Of several sources the last gets the skill, and is made if it is missing; JSON is a row of `list`."""
    row = as_json(invoke("create", "a", "-d", "Does.", "-s", "one", "-s", "new/two", "--json"))
    assert list(row) == ROW_KEYS
    assert (row["path"], row["source"]) == (f"{workplace}/new/two/a/SKILL.md", f"{workplace}/new/two")
    assert not (workplace / "one").exists()
    assert as_json(invoke("list", "-s", "new/two", "--json")) == [row]


def _occupy(place: Path, kind: str) -> None:
    place.parent.mkdir(parents=True)
    if kind == "file":
        place.write_text("mine")
    elif kind == "link to nothing":
        place.symlink_to(place.parent / "nothing")
    else:
        place.mkdir()
        if kind == "skill":
            (place / "SKILL.md").write_text("mine")


@pytest.mark.parametrize("kind", ["skill", "empty directory", "file", "link to nothing"])
def test_create_never_overwrites(workplace: Path, kind: str) -> None:
    """Whatever is at the place stays as it was; exit code 1."""
    place = workplace / "s/a"
    _occupy(place, kind)
    before = {path: path.read_bytes() if path.is_file() else None for path in (workplace / "s").rglob("*")}
    result = invoke("create", "a", "-d", "Does.", "-s", "s")
    assert result.exit_code == 1
    assert "already there; nothing was written" in result.stderr
    assert invoke("create", "a", "-s", "s").exit_code == 1, "said before anything is asked"
    assert {path: path.read_bytes() if path.is_file() else None for path in (workplace / "s").rglob("*")} == before


@pytest.mark.parametrize("name", ["Upper", "a b", "../up", "a/b", "-a", "a--b", "a" * 65, "", ".", "/abs"])
def test_create_refuses_names_that_break_the_rules(workplace: Path, name: str) -> None:
    """Exit code 2, and nothing is written anywhere."""
    result = invoke("create", "-d", "Does.", "-s", "s", "--", name)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert set(workplace.parent.rglob("*")) == {workplace.parent / "home", workplace}


@pytest.mark.parametrize("description", ["", "   ", "x" * 1025])
def test_create_refuses_descriptions_that_break_the_rules(workplace: Path, description: str) -> None:
    """Exit code 2, and nothing is written."""
    assert invoke("create", "a", "-d", description, "-s", "s").exit_code == 2
    assert not (workplace / "s").exists()


@pytest.mark.parametrize(
    ("name", "description", "says"),
    [
        ("", "Does.", "The name is empty."),
        ("a", " ", "The description is empty."),
        ("a", "x" * 1025, "The description is 1025 characters long; at most 1024 are allowed."),
        ("a" * 65, "Does.", "65 characters long"),
    ],
)
def test_create_says_what_is_wrong(name: str, description: str, says: str) -> None:
    """The message is about what was typed, not about what a reader would do with it."""
    said = invoke("create", "-d", description, "-s", "s", "--", name).stderr
    assert said.startswith(f"Error: {says}") or says in said
    assert not any(words in said for words in ("was cut", "is used", "frontmatter"))


def test_create_asks_in_a_terminal_and_only_there(workplace: Path) -> None:
    """A missing description is asked for; without anyone to ask, it is wrong usage."""
    result = command("create", "a", "-s", "s")
    assert result.returncode == 2
    assert "--description" in result.stderr
    assert not (workplace / "s").exists()
    code, shown = in_terminal(["create", "a", "-s", "s"], typed="Answers the question.\n")
    assert code == 0
    assert "when should it be used?" in shown
    assert "description: Answers the question." in (workplace / "s/a/SKILL.md").read_text()


def test_create_asks_nothing_when_given_all(workplace: Path) -> None:
    """In a terminal, too, a full command runs through."""
    code, shown = in_terminal(["create", "a", "-d", "Does.", "-s", "s"])
    assert code == 0
    assert "?" not in shown
    assert (workplace / "s/a/SKILL.md").is_file()


def test_create_below_a_file_fails_without_a_traceback(workplace: Path) -> None:
    """What the system refuses is one line and exit code 1."""
    (workplace / "file").write_text("mine")
    result = command("create", "a", "-d", "Does.", "-s", "file/s")
    assert result.returncode == 1
    assert result.stderr.startswith("Error: ")
    assert "Traceback" not in result.stderr
    assert len(result.stderr.splitlines()) == 1


# --- the command as a whole ---


def test_the_version_is_the_packages() -> None:
    """`--version` prints name and version."""
    assert command("--version").stdout == f"deepskills {importlib.metadata.version('deepskills')}\n"


@pytest.mark.parametrize("args", [["bogus"], ["list", "--bogus"], ["info"], ["search"], ["create"]])
def test_wrong_usage_is_exit_code_2(args: list[str]) -> None:
    """The message names the mistake; nothing goes to standard output."""
    result = invoke(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Error" in result.stderr


@pytest.mark.parametrize("name", ["list", "info", "validate", "create", "search", "doctor"])
def test_every_command_takes_sources_and_json_and_explains_itself(name: str) -> None:
    """Help is plain text that shows both options."""
    result = invoke(name, "--help")
    assert result.exit_code == 0
    assert "--source" in result.stdout
    assert "--json" in result.stdout
    assert ESCAPE not in result.stdout


def test_the_installed_script_is_the_same_command() -> None:
    """The entry point leads to what `python -m deepskills` runs."""
    [script] = importlib.metadata.entry_points(group="console_scripts", name="deepskills")
    assert script.load() is entry.main


@pytest.mark.parametrize(
    ("module", "start"),
    [("click", "runpy.run_module('deepskills', run_name='__main__')"), ("rich", "deepskills.__main__.main()")],
)
def test_without_the_extra_the_command_says_what_to_install(module: str, start: str) -> None:
    """No traceback: the one line to type."""
    imports = "import runpy, sys, deepskills" + (".__main__" if "runpy" not in start else "")
    program = f"{imports}; sys.argv = ['deepskills', 'list']; sys.modules['{module}'] = None; {start}"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr == (
        'The deepskills command needs the extra "cli". Install it: pip install "deepskills[cli]"\n'
    )


def test_an_import_that_fails_for_another_reason_is_not_blamed_on_the_extra() -> None:
    """A broken installation shows its own error."""
    program = (
        "import sys, deepskills.__main__ as entry; sys.argv = ['deepskills', 'list']; "
        "sys.modules['yaml'] = None; entry.main()"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "deepskills[cli]" not in result.stderr
    assert "yaml" in result.stderr


def test_what_nobody_foresaw_shows_no_traceback() -> None:
    """Even a bug ends in one line and exit code 1."""
    program = (
        "import json, runpy, sys; json.dumps = lambda *_, **__: 1 / 0; "
        f"sys.argv = ['deepskills', 'list', '--json', '-s', {str(EXAMPLES)!r}]; "
        "runpy.run_module('deepskills', run_name='__main__')"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith("Error: deepskills failed (ZeroDivisionError")
    assert "Traceback" not in result.stderr


INTERRUPTED = {
    "start": "sys.meta_path.insert(0, Stop())",
    "work": "json.dumps = stop",
}


@pytest.mark.parametrize("moment", INTERRUPTED.values(), ids=INTERRUPTED)
def test_an_interrupt_shows_no_traceback(moment: str) -> None:
    """Ctrl-C ends the command with exit code 130 and nothing else, once the package itself is imported."""
    program = f"""
import json, runpy, sys

def stop(*_, **__):
    raise KeyboardInterrupt

class Stop:
    def find_spec(self, name, *_):
        if name == "click":
            raise KeyboardInterrupt

sys.argv = ["deepskills", "list", "--json", "-s", {str(EXAMPLES)!r}]
{moment}
runpy.run_module("deepskills", run_name="__main__")
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


def test_the_backends_log_does_not_mix_into_the_output(workplace: Path) -> None:
    """A directory that leads in a circle is reported once, by us, and the exit code says that something is missing."""
    write_files(workplace / "s", {"a/SKILL.md": skill_md("a")})
    (workplace / "s/loop").symlink_to("loop")
    result = command("list", "-s", "s", "--json")
    assert [row["name"] for row in json.loads(result.stdout)] == ["a"]
    assert result.returncode == 1
    assert [line.split(": ")[1] for line in result.stderr.splitlines()] == ["source-incomplete"]


def test_a_reader_that_goes_away_is_no_crash(workplace: Path) -> None:
    """`deepskills list | head` ends quietly."""
    write_files(workplace / "s", {f"s-{n}/SKILL.md": skill_md(f"s-{n}", "x" * 900) for n in range(200)})
    process = subprocess.Popen(
        [sys.executable, "-m", "deepskills", "search", "s", "-n", "200", "-s", "s"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    process.wait()
    assert said == b""


WITHOUT_A_STREAM = {
    "no input": (0, ["create", "fresh", "-s", "t"], 2, ""),
    "no output": (1, ["list", "-s", "s"], 0, ""),
    "no errors": (2, ["list", "-s", "s", "--json"], 0, '"s-1"'),
    "no errors, problems": (2, ["validate", "s"], 1, "description-missing"),
    "no errors, wrong usage": (2, ["info", "nothing", "-s", "s"], 2, ""),
}


@pytest.mark.parametrize(("closed", "args", "code", "shown"), WITHOUT_A_STREAM.values(), ids=WITHOUT_A_STREAM)
def test_a_closed_stream_is_no_error(workplace: Path, closed: int, args: list[str], code: int, shown: str) -> None:
    """`deepskills list 2>&-` does its work: what has nowhere to go is dropped, and the exit code is the same."""
    write_files(workplace / "s", {"s-1/SKILL.md": skill_md("s-1"), "s-2/SKILL.md": "---\nname: s-2\n---\n"})
    close = f'exec "$@" {closed}{"<" if closed == 0 else ">"}&-'
    result = subprocess.run(
        ["sh", "-c", close, "sh", sys.executable, "-m", "deepskills", *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == code
    assert shown in result.stdout
    assert "Traceback" not in result.stderr
    assert "report it" not in result.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_generated(shell: str) -> None:
    """Each shell gets a script that calls this command."""
    result = invoke("--show-completion", shell)
    assert result.exit_code == 0
    assert "_DEEPSKILLS_COMPLETE" in result.stdout


def test_completion_offers_skill_names(workplace: Path) -> None:
    """A shell is told the names of the skills in the sources given so far; no source, no names, no noise."""
    write_files(workplace / "s", {"web-a/SKILL.md": skill_md("web-a"), "other/SKILL.md": skill_md("other")})

    def offered(words: str, run: Callable[..., Any] = invoke) -> list[str]:
        position = str(len(words.split(" ")) - 1)
        result = run(_DEEPSKILLS_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=position)
        assert result.stderr == ""
        return [line.partition(",")[2] for line in result.stdout.splitlines() if line]

    assert offered("deepskills info --source s web", run=command) == ["web-a"]
    assert offered("deepskills info --source s web") == ["web-a"]
    assert offered("deepskills info --source gone web") == []
    assert "doctor" in offered("deepskills d")


@pytest.mark.parametrize("name", ["list", "info", "validate", "create", "search", "doctor"])
def test_help_names_arguments_and_no_python_types(name: str) -> None:
    """Usage shows `NAME`, options show `DIR`; nothing of the program's inside shows through."""
    shown = invoke(name, "-h").stdout
    assert not re.search(r"\{|<|list\[|None", shown)
    assert "--source DIR" in shown
    if name in {"info", "create"}:
        assert shown.startswith(f"Usage: deepskills {name} [OPTIONS] NAME\n")
