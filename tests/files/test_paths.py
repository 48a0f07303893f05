"""Paths into a skill: every hostile spelling is refused with its reason, and honest names are let through."""

import contextlib
import posixpath
import re
import unicodedata
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepskills import SkillFileNotFoundError, SkillPathError, SkillsError
from deepskills._files.paths import (
    MAX_NAMED,
    MAX_PATH_LENGTH,
    STANDARD_DIRECTORIES,
    AssetDirectories,
    check_directories,
    check_relative,
    find_named_paths,
    normalise_path,
    script_to_relative,
)
from deepskills._types import RESOURCE_TYPE_MAP
from support.tables import HONEST, HOSTILE, NORMALISED, OUTSIDE, spelled

repeatable = settings(deadline=None, derandomize=True, max_examples=200, suppress_health_check=[HealthCheck.too_slow])

ALL_REFUSED = {name: spelled(path) for name, path in (HOSTILE | OUTSIDE).items()}


def refusal_of(path: str, directories: AssetDirectories = STANDARD_DIRECTORIES) -> SkillPathError | None:
    """Return the error by which a path is refused; `None` if it passes."""
    try:
        check_relative(path, directories)
    except SkillPathError as error:
        return error
    return None


@pytest.mark.parametrize("path", ALL_REFUSED.values(), ids=ALL_REFUSED)
def test_a_hostile_path_is_refused(path: str) -> None:
    """A path that could lead elsewhere is refused, with one bounded line that says so and shows how a path looks."""
    error = refusal_of(path)
    assert isinstance(error, SkillsError)
    assert not isinstance(error, SkillFileNotFoundError)
    message = str(error)
    assert "refused" in message
    assert "references/guide.md" in message
    assert 0 < len(message) < 500
    assert not {unicodedata.category(character) for character in message} & {"Cc", "Cs", "Zl", "Zp"}
    assert message.encode()


def test_hostile_script_names_are_refused() -> None:
    """Being taken as relative to `scripts/` makes no hostile path a good one."""
    names = {name: script_to_relative(spelled(path)) for name, path in HOSTILE.items()}
    assert [name for name, path in names.items() if refusal_of(path) is None] == []


def test_honest_paths_pass() -> None:
    """A path inside one of the three directories comes back as it is."""
    assert [check_relative(path) for path in HONEST.values()] == list(HONEST.values())


def test_all_directories_are_open_except_what_is_hidden_or_the_skill_itself() -> None:
    """With `"all"` any file passes but `SKILL.md`, in any case, and hidden ones; hostile paths are refused."""
    is_hidden = re.compile(r"(^|/)\.").search
    honest = [path for path in HONEST.values() if not is_hidden(path)]
    fine = [*honest, "notes.md", "templates/a/b.txt", "private/secret.txt", "examples/SKILL.md", "References/guide.md"]
    assert [path for path in fine if refusal_of(path, "all") is not None] == []
    assert [path for path in fine if check_relative(f"./{path}", "all") != path] == []
    closed = ["SKILL.md", "skill.md", "Skill.MD", "./SKILL.md", ".env", ".git/config", "a/.hidden", "a/.b/c", "./.env"]
    assert [path for path in closed if refusal_of(path, "all") is None] == []
    assert [name for name, path in HOSTILE.items() if refusal_of(spelled(path), "all") is None] == []


def test_directories_may_be_named() -> None:
    """Only files below the directories named pass, and no hidden one."""
    named = ("templates", "references")
    assert [refusal_of(path, named) for path in ("templates/a.txt", "references/x/y.md")] == [None] * 2
    refused = ("scripts/run.py", "notes.md", "templates", "SKILL.md", "templates/.keep", "references/.b/c")
    assert [path for path in refused if not refusal_of(path, named)] == []
    assert "`templates/`, `references/`" in str(refusal_of("scripts/run.py", named))


def test_directories_are_checked() -> None:
    """`"all"` or names of directories are taken, each once."""
    assert check_directories("all") == "all"
    assert check_directories(["a", "b", "a"]) == ("a", "b")


@pytest.mark.parametrize(
    "wrong", ["scripts", ["a/b"], [".."], [""], ["/"], ["a\x00"], [7], ["~"], ["a", "b/"]], ids=repr
)
def test_wrong_directories_are_named(wrong: Any) -> None:
    """What is not a list of directories' names is an error that says which argument to change."""
    with pytest.raises(ValueError, match="asset_directories"):
        check_directories(wrong)


def test_steps_that_lead_nowhere_are_taken_out() -> None:
    """`./` and doubled slashes mean nothing: the path comes back without them, for files and for scripts."""
    assert {name: check_relative(given) for name, (given, _meant) in NORMALISED.items()} == {
        name: meant for name, (_given, meant) in NORMALISED.items()
    }
    scripts = ("./run.py", "scripts//run.py", "./scripts/./run.py", ".//run.py")
    assert {check_relative(script_to_relative(name)) for name in scripts} == {"scripts/run.py"}


def test_table_is_large() -> None:
    """The table of hostile paths has no doubles and stays a table worth the name."""
    assert len(set(HOSTILE.values())) == len(HOSTILE) >= 60


def test_refusals_give_their_reason() -> None:
    """A refusal names what is wrong with the path, so that the model can give a better one."""
    table = [
        ("", "empty"),
        ("references/" + "a" * 300, "too long"),
        ("references/a\x00", "cannot be seen"),
        ("references\\a", "backslash"),
        ("/a", "not relative"),
        ("~/a", "not relative"),
        ("C:/a", "drive"),
        ("references/%2e", "percent-encoded"),
        ("references／a", "look like"),
        ("references/../a", "holds `..`"),
        ("references/v1..v2.md", "holds `..`"),
        ("references/a/", "empty step"),
        ("references/a ", "ends with a space or a dot"),
        ("SKILL.md", "none of the skill's directories"),
    ]
    assert [(path, reason) for path, reason in table if reason not in str(refusal_of(path))] == []


def test_longest_path_passes() -> None:
    """The limit itself is allowed, one character more is not."""
    longest = ("references/" + "a/" * MAX_PATH_LENGTH)[: MAX_PATH_LENGTH - 1] + "x"
    assert check_relative(longest) == longest
    assert "too long" in str(refusal_of(f"{longest}x"))


def test_script_names_are_relative_to_scripts() -> None:
    """A script is named below `scripts/`; saying so is fine, whatever it is called."""
    table = {
        "run.py": "scripts/run.py",
        "scripts/run.py": "scripts/run.py",
        "sub/run.py": "scripts/sub/run.py",
        "scripts/sub/run.py": "scripts/sub/run.py",
        "scripts": "scripts/scripts",
        "references/run.py": "scripts/references/run.py",
    }
    assert {name: script_to_relative(name) for name in table} == table


FRAGMENTS = (
    *(
        "..",
        ".",
        "/",
        "//",
        "\\",
        "%32",
        "%65",
        "%2e",
        "%2f",
        "%25",
        "%",
        "2e",
        "2F",
        "%5c",
        "%00",
        "％",
        "．",
        "／",
        "\u2024",
    ),
    *("\u2025", "\u200b", "\x00", " ", "~", "C:", "references", "scripts", "assets", "a", "周", "é", ".md", "℀"),
)


@repeatable
@given(st.sampled_from(list(RESOURCE_TYPE_MAP)), st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join))
def test_what_passes_stays_inside(directory: str, rest: str) -> None:
    """However a path that passed is decoded or normalized later, it names a file in the same directory."""
    try:
        path = check_relative(f"{directory}/{rest}")
    except SkillPathError:
        return
    for decode in (str, unquote, lambda text: unquote(unquote(text))):
        for form in ("NFC", "NFKC"):
            seen = unicodedata.normalize(form, decode(path)).replace("\\", "/")
            assert posixpath.normpath(seen) == seen
            assert seen.startswith(f"{directory}/")


@repeatable
@given(st.text())
def test_any_text_passes_or_is_refused(text: str) -> None:
    """Whatever the path, the answer is the path without empty steps, which passes again, or a refusal."""
    for directories in (STANDARD_DIRECTORIES, "all"):
        with contextlib.suppress(SkillPathError):
            passed = check_relative(text, directories)
            assert passed == normalise_path(text)
            assert check_relative(passed, directories) == passed


def test_naming_paths_is_bounded() -> None:
    """However long the text, a bounded number of candidates is looked at, none of them outside the skill."""
    many = " ".join(f"d{number}/x.md" for number in range(MAX_NAMED + 10))
    assert len(find_named_paths(many)) == MAX_NAMED
    assert find_named_paths("a/" * 400_000) == []
    assert find_named_paths("../x/y ~/x/y /x/y C:/x/y http://x/y a/../b x/.y/z %2e/x $HOME/x/y") == []
