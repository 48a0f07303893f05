"""Paths into a skill: every hostile spelling is refused with its reason, and honest names are let through."""

import contextlib
import posixpath
import unicodedata
from urllib.parse import unquote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepskills import SkillFileNotFoundError, SkillPathError, SkillsError
from deepskills._files.inventory import RESOURCE_DIRECTORIES
from deepskills._files.paths import MAX_PATH_LENGTH, check_relative, script_to_relative
from support_tables import HONEST, HOSTILE, NORMALISED, OUTSIDE, spelled

repeatable = settings(deadline=None, derandomize=True, max_examples=200, suppress_health_check=[HealthCheck.too_slow])

hostile_paths = pytest.mark.parametrize("path", [spelled(path) for path in HOSTILE.values()], ids=HOSTILE)


@pytest.mark.parametrize("path", [spelled(path) for path in (HOSTILE | OUTSIDE).values()], ids=HOSTILE | OUTSIDE)
def test_hostile_paths_are_refused(path: str) -> None:
    """A path that could lead elsewhere is refused, and the message says so and shows how a path looks."""
    with pytest.raises(SkillPathError) as caught:
        check_relative(path)
    assert not isinstance(caught.value, SkillFileNotFoundError)
    assert isinstance(caught.value, SkillsError)
    assert "refused" in str(caught.value)
    assert "references/guide.md" in str(caught.value)


@hostile_paths
def test_refusals_can_be_shown(path: str) -> None:
    """The message of a refusal is one bounded line without control characters, and can be encoded."""
    with pytest.raises(SkillPathError) as caught:
        check_relative(path)
    message = str(caught.value)
    assert len(message) < 500
    assert not any(unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"} for character in message)
    assert message.encode()


@hostile_paths
def test_hostile_script_names_are_refused(path: str) -> None:
    """Being taken as relative to `scripts/` makes no hostile path a good one."""
    with pytest.raises(SkillPathError):
        check_relative(script_to_relative(path))


@pytest.mark.parametrize("path", HONEST.values(), ids=HONEST)
def test_honest_paths_pass(path: str) -> None:
    """A path inside one of the three directories comes back as it is."""
    assert check_relative(path) == path


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


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        pytest.param("", "empty", id="empty"),
        pytest.param("references/" + "a" * 300, "too long", id="long"),
        pytest.param("references/a\x00", "cannot be seen", id="nul"),
        pytest.param("references\\a", "backslash", id="backslash"),
        pytest.param("/a", "not relative", id="absolute"),
        pytest.param("~/a", "not relative", id="home"),
        pytest.param("C:/a", "drive", id="drive"),
        pytest.param("references/%2e", "percent-encoded", id="encoded"),
        pytest.param("references／a", "look like", id="lookalike"),
        pytest.param("references/../a", r"holds `\.\.`", id="parent"),
        pytest.param("references/v1..v2.md", r"holds `\.\.`", id="dots inside"),
        pytest.param("references/a/", "empty step", id="slash last"),
        pytest.param("references/a ", "ends with a space or a dot", id="space"),
        pytest.param("SKILL.md", "none of the skill's directories", id="outside"),
    ],
)
def test_refusals_give_their_reason(path: str, reason: str) -> None:
    """A refusal names what is wrong with the path, so that the model can give a better one."""
    with pytest.raises(SkillPathError, match=reason):
        check_relative(path)


def test_longest_path_passes() -> None:
    """The limit itself is allowed, one character more is not."""
    longest = ("references/" + "a/" * MAX_PATH_LENGTH)[: MAX_PATH_LENGTH - 1] + "x"
    assert check_relative(longest) == longest
    with pytest.raises(SkillPathError, match="too long"):
        check_relative(f"{longest}x")


@pytest.mark.parametrize(
    ("name", "relative"),
    [
        pytest.param("run.py", "scripts/run.py", id="bare"),
        pytest.param("scripts/run.py", "scripts/run.py", id="with directory"),
        pytest.param("sub/run.py", "scripts/sub/run.py", id="nested"),
        pytest.param("scripts/sub/run.py", "scripts/sub/run.py", id="nested with directory"),
        pytest.param("scripts", "scripts/scripts", id="a script of that name"),
        pytest.param("references/run.py", "scripts/references/run.py", id="another directory's name"),
    ],
)
def test_script_names_are_relative_to_scripts(name: str, relative: str) -> None:
    """A script is named below `scripts/`; saying so is fine."""
    assert script_to_relative(name) == relative


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
@given(st.sampled_from(list(RESOURCE_DIRECTORIES)), st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join))
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
    """Whatever the path, the answer is the path itself or a refusal."""
    with contextlib.suppress(SkillPathError):
        assert check_relative(text) == text
