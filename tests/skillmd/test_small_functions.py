"""The small functions of SKILL.md: words of problems, one key for a name, one reading of a flag, globs, safe text."""

import re
import string

import pytest

from deepskills._skillmd.globs import matches, patterns_of
from deepskills._skillmd.names import meant_name, name_key
from deepskills._skillmd.problems import MAX_LISTED, MAX_QUOTED_LENGTH, PROBLEMS, listed, problem, quoted
from deepskills._skillmd.text import harmless_body
from deepskills._skillmd.yaml import as_flag
from support.problems import SEVERITIES


def test_every_code_is_documented() -> None:
    """Troubleshooting has a row for each code, with the right severity, and none for a code that does not exist."""
    assert SEVERITIES.keys() == PROBLEMS.keys()
    wrong = {code for code, severity in SEVERITIES.items() if severity not in {"strict", PROBLEMS[code][0]}}
    assert wrong == set()


@pytest.mark.parametrize("code", PROBLEMS)
def test_every_code_is_kebab_case_with_a_whole_message(code: str) -> None:
    """A code is lower-case words with hyphens; its message says what is wrong and what to do, every value in it."""
    severity, message = PROBLEMS[code]
    slots = {slot for _, slot, _, _ in string.Formatter().parse(message) if slot is not None}
    found = problem("/p", code, **dict.fromkeys(slots, "VALUE"))
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", code)
    assert severity in ("error", "warning")
    assert (found["path"], found["code"], found["severity"]) == ("/p", code, severity)
    # What is wrong, then what to do.
    assert found["message"].endswith(".")
    assert ". " in found["message"]
    assert found["message"].count("VALUE") >= len(slots)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("a b", "`a b`", id="plain"),
        pytest.param(" a\n\t b\u2028c ", "`a b c`", id="one-line"),
        pytest.param("`a` {b}", "`'a' {b}`", id="backticks-and-braces"),
        pytest.param("x" * MAX_QUOTED_LENGTH, f"`{'x' * MAX_QUOTED_LENGTH}`", id="longest"),
        pytest.param("x" * (MAX_QUOTED_LENGTH + 1), f"`{'x' * MAX_QUOTED_LENGTH}...`", id="bounded"),
        pytest.param("", "``", id="empty"),
    ],
)
def test_quoted_text_is_one_bounded_line(text: str, shown: str) -> None:
    """A stranger's text cannot end its quotes, its line, or the message."""
    assert quoted(text) == shown


def test_quoted_text_is_data_in_a_message() -> None:
    """Braces in a stranger's text are not filled in."""
    assert "`{keys} {0}`" in problem("/p", "unknown-field", keys=listed(["{keys} {0}"]))["message"]


def test_a_reason_that_is_a_sentence_ends_once() -> None:
    """Messages of other libraries have a full stop of their own."""
    message = problem("/s", "source-failed", reason="OSError: The disk is gone.")["message"]
    assert message.startswith("The source could not be listed: OSError: The disk is gone. It is tried")


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        pytest.param(["a"], "`a`", id="one"),
        pytest.param(["b", "a", "b"], "`b`, `a`", id="each-once-in-order"),
        pytest.param(list("abcde"), "`a`, `b`, `c`, `d`, `e`", id="as-many-as-are-shown"),
        pytest.param(list("abcdefg"), "`a`, `b`, `c`, `d`, `e` and 2 more", id="more"),
    ],
)
def test_lists_name_a_few_and_count_the_rest(names: list[str], shown: str) -> None:
    """A list in a message names the first few, each once, and says how many more there are."""
    assert listed(names) == shown
    assert shown.count("`") <= 2 * MAX_LISTED


NAME = "caf\u00e9"
SPELLINGS = (NAME, "cafe\u0301", "CAFE\u0301", "Caf\u00c9", "  cafe\u0301\n", "**cafe\u0301**", "`caf\u00e9`")


def test_names_have_one_key() -> None:
    """However a name is spelled, it has one key; another name has another."""
    assert {meant_name(["other", NAME], spelling) for spelling in SPELLINGS} == {NAME}
    assert {name_key(spelling) for spelling in SPELLINGS[:4]} == {NAME}
    assert name_key("cafe") != name_key(NAME)
    # Folding case takes this one apart again.
    assert name_key("\u01f0") == name_key("j\u030c") == name_key("J\u030c")
    assert meant_name(["Beta", "beta"], "beta") == "beta"
    assert meant_name(["Beta", "beta"], "BETA") == "Beta"
    assert meant_name(["beta"], "gamma") is None


def test_a_flag_is_set_in_every_way_of_yaml() -> None:
    """What means neither yes nor no is the default."""
    given: list[object] = [True, 1, ["yes"], False, None, {}, "x"]
    assert [as_flag(value) for value in given] == [True] * 3 + [False] * 4
    assert [as_flag(value, default=True) for value in (None, "x", "no", 0, False)] == [True, True, False, False, False]


def test_globs_match_as_authors_expect() -> None:
    """`**` is any directories, `*` one name; relative globs fit the end of a path, and no pattern is slow."""
    table = [
        ("*.py", "/a/b/c.py", True),
        ("*.py", "/a/b.py/c", False),
        ("src/*.py", "/home/me/src/a.py", True),
        ("src/*.py", "/src/x/a.py", False),
        ("src/**/*.py", "/src/a.py", True),
        ("/src/*.py", "/home/src/a.py", False),
        ("src/", "/src/a/b", True),
        ("**", "/a", True),
        ("**/" * 60 + "*a*a*a*a*a*b", "/" + "a" * 3000, False),
        ("*a" * 1500 + "b", "/" + "a" * 4000, False),
        ("[", "/a", False),
    ]
    assert [matches([pattern], path) for pattern, path, _ in table] == [expected for *_, expected in table]
    assert patterns_of("a/*.py, b") == ("a/*.py", "b")
    assert (patterns_of({"a": "b"}), patterns_of(""), patterns_of([["x"], ""])) == ((), (), ())


def test_escaping_takes_linear_time_and_changes_nothing_else() -> None:
    """Brackets, blanks and beginnings of notices in any number are read once; a text without ours stays as it is."""
    for text in (
        "[" + " " * 500_000 + "[ S k i l l" * 50_000,
        "[Notice about skill " * 50_000,
        "<skill_load_" * 50_000,
    ):
        assert harmless_body(text) == text
    assert harmless_body(harmless_body("[Skill 'a'] <skill_hook>")) == "&#91;Skill 'a'] &lt;skill_hook>"
