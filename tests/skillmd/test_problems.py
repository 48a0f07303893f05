"""The registry of problems: codes that stay, messages that help, strangers' text that stays data."""

import re
import string

import pytest

from deepskills._skillmd.problems import MAX_LISTED, MAX_QUOTED_LENGTH, PROBLEMS, listed, problem, quoted


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
