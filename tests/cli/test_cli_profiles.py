"""Whose rules `validate` holds files to, what it looks at, and what the other commands say of keys."""

import json
from pathlib import Path

from support import skill_md, write_files
from support.command_line import invoke


def codes(*args: str) -> list[tuple[str, str, str]]:
    return [(p["path"], p["code"], p["severity"]) for p in json.loads(invoke("validate", *args, "--json").stdout)]


OURS = "---\nname: ours\ndescription: Does.\nmodel: fast\ntags: [a, b]\nargument-hint: '[file]'\n---\n"
THEIRS = "---\nname: theirs\ndescription: Does.\neffort: high\n---\n"
NOBODYS = "---\nname: nobodys\ndescription: Does.\nflavour: sweet\n---\n"


def test_keys_pass_by_profile(workplace: Path) -> None:
    """Keys that the library acts on pass unless `--spec` is given; a warning alone does not fail a check."""
    write_files(workplace / "t", {"ours/SKILL.md": OURS, "theirs/SKILL.md": THEIRS, "nobodys/SKILL.md": NOBODYS})
    assert invoke("validate", "t/ours").exit_code == 0
    assert codes("t/ours", "--spec") == [
        ("t/ours/SKILL.md", "flow-style", "error"),
        ("t/ours/SKILL.md", "unknown-field", "error"),
        ("t/ours/SKILL.md", "client-field", "error"),
    ]
    warned = invoke("validate", "t/theirs")
    assert (warned.exit_code, "Claude Code" in warned.stdout) == (0, True)
    assert codes("t/theirs") == [("t/theirs/SKILL.md", "foreign-field", "warning")]
    assert invoke("validate", "t").exit_code == 1
    passed = invoke("validate", "t", "--ignore", "unknown-field", "--ignore", "foreign-field")
    assert (passed.exit_code, passed.stdout) == (0, "")
    misspelt = invoke("validate", "t", "--ignore", "unknwon-field")
    assert (misspelt.exit_code, "unknwon-field" in misspelt.stderr) == (2, True)


UNWRITTEN = (
    "TODO",
    "[TODO: Complete and informative explanation of what the skill does and when to use it]",
    "A description of what this skill does and when to use it.",
    "Your description here",
    "Replace with description of the skill and when Claude should use it.",
    "<what it does>",
)
WRITTEN = (
    "Does.",
    "Writes TODO comments into code.",
    "[Code Quality] Use when reviewing.",
    "Write a PR description with the reasons of a change.",
    "Describes what a skill does. Use it for skills that say too little.",
    "Replaces placeholders in documents.",
)


def test_what_is_left_of_a_scaffold_is_a_warning(workplace: Path) -> None:
    """A description or instructions that nobody has written pass, with a warning of `validate` and `doctor`."""
    assert invoke("create", "new", "-d", "Does.", "-s", "t").exit_code == 0
    assert codes("t") == [("t/new/SKILL.md", "placeholder-left", "warning")]
    assert "instructions" in invoke("validate", "t").stdout
    assert invoke("validate", "t").exit_code == 0
    file = workplace / "t/new/SKILL.md"
    for description in (*UNWRITTEN, *WRITTEN):
        file.write_text(f"---\nname: new\ndescription: {json.dumps(description)}\n---\n")
        report = json.loads(invoke("doctor", "-s", "t", "--json").stdout)
        found = [(p["code"], p["severity"]) for p in report["problems"]]
        wanted = [("placeholder-left", "warning")] if description in UNWRITTEN else []
        assert (description, found) == (description, wanted)
        assert [(code, how) for _, code, how in codes("t")] == wanted


def test_a_stray_file_hides_nothing(workplace: Path) -> None:
    """`validate` looks below skills as well, except into their scripts, references and assets; so does a source."""
    files = {f"lib/group/s{n}/SKILL.md": skill_md(f"s{n}") for n in range(3)}
    write_files(workplace, {"lib/SKILL.md": skill_md("lib"), "lib/group/SKILL.md": skill_md("group"), **files})
    write_files(workplace, {"lib/group/s0/inner/SKILL.md": "broken", "lib/group/s0/assets/SKILL.md": "example"})
    assert codes("lib") == [("lib/group/s0/inner/SKILL.md", "no-frontmatter", "error")]
    assert "6 skills checked" in invoke("validate", "lib").stderr
    names = [row["name"] for row in json.loads(invoke("list", "-s", "lib", "--json").stdout)]
    assert names == ["group", "lib"]
    names = [row["name"] for row in json.loads(invoke("list", "-s", "lib/group", "--json").stdout)]
    assert names == ["group", "s0", "s1", "s2"]


def test_the_places_of_other_clients_are_searched(workplace: Path) -> None:
    """Without a source, skills in `.claude/skills` of project and home are found; the project's win."""
    home = workplace.parent / "home"
    write_files(home / ".claude/skills", {"a/SKILL.md": skill_md("a", "home"), "b/SKILL.md": skill_md("b", "home")})
    write_files(workplace / ".claude/skills", {"a/SKILL.md": skill_md("a", "project")})
    rows = json.loads(invoke("list", "--json").stdout)
    assert {row["name"]: row["description"] for row in rows} == {"a": "project", "b": "home"}


def test_hidden_files_are_not_counted(workplace: Path) -> None:
    """A list counts a skill's files without those whose names start with a dot."""
    files = {"a/.env": "x", "a/scripts/.x.py": "x", "a/scripts/run.py": "x", "a/.git/config": "x"}
    write_files(workplace / "s", {"a/SKILL.md": skill_md("a"), **files})
    [row] = json.loads(invoke("list", "-s", "s", "--json").stdout)
    assert row["resources"] == 1


def test_people_are_told_what_keys_do(workplace: Path) -> None:
    """`info` says what each key does and needs, `doctor` which extensions the skills need."""
    write_files(workplace / "s", {"ours/SKILL.md": OURS})
    told = invoke("info", "ours", "-s", "s").stdout
    assert "Key model: fast (picks the model while in use; needs the extension SkillModels)" in told
    assert "Key tags: a, b (is searched)" in told
    assert "extensions=[SkillModels(...)]" in " ".join(invoke("doctor", "-s", "s").stdout.split())
