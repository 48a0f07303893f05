"""Arguments of a skill: what each placeholder becomes, what stays as written, and what no input can bring about."""

import shlex
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepskills._loading.arguments import MAX_FILLED_CHARACTERS, argument_names, fill_in, split_arguments
from support import scaled

repeatable = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])

HEAD = "---\nname: deploy\ndescription: Deploys $ARGUMENTS from {baseDir} to $0, $env.\n---\n"
BIG = "word " * 20_000


def filled(body: str, arguments: str = "", names: Sequence[str] = (), head: str = HEAD) -> str:
    """Return what the instructions become; the frontmatter must stay."""
    text = fill_in(head + body, arguments, names=names, skill_dir="/skills/deploy", session_id="thread-7")
    assert text.startswith(head)
    return text[len(head) :]


# Instructions, arguments, names, and what the instructions become.
CASES: list[tuple[str, str, Sequence[str], str]] = [
    # The whole string.
    ("Go to $ARGUMENTS.", "prod", (), "Go to prod."),
    ("Go to $ARGUMENTS.", 'a "b c"', (), 'Go to a "b c".'),
    ("$ARGUMENTS and $ARGUMENTS", "x", (), "x and x"),
    ("$ARGUMENTS", "  padded  ", (), "  padded  "),
    ("$ARGUMENTS的文件", "甲", (), "甲的文件"),
    ("“$ARGUMENTS”", "甲 乙", (), "“甲 乙”"),
    ("$ARGUMENTS_DIR $0", "x", (), "$ARGUMENTS_DIR x"),
    ("$ARGUMENTSX $0", "x", (), "$ARGUMENTSX x"),
    ("$arguments $0", "x", (), "$arguments x"),
    ("$ARGUMENTS[x]", "y", (), "y[x]"),
    # One of them, counted from 0.
    ("$0", "a b", (), "a"),
    ("$1 then $0", "a b", (), "b then a"),
    ("$ARGUMENTS[1]-$ARGUMENTS[0]", "a b", (), "b-a"),
    ("$ARGUMENTS[7] $0", "a", (), "$ARGUMENTS[7] a"),
    ("$7 $0", "a", (), "$7 a"),
    ("$1 $10", "a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 a10", (), "a1 a10"),
    ("$1 $10", "a b", (), "b $10"),
    ("$ARGUMENTS[1] $ARGUMENTS[10]", "a b", (), "b $ARGUMENTS[10]"),
    ("It costs $1.00.", "a b", (), "It costs b.00."),
    (r"It costs \$1.00 for $0.", "a b", (), "It costs $1.00 for a."),
    ("It costs $1.00 for $0.", "a", (), "It costs $1.00 for a."),
    ("$0th $0_x $0", "a", (), "$0th $0_x a"),
    ("$0的", "甲", (), "甲的"),
    ("$٣ $0", "a", (), "$٣ a"),
    ("$00 $0", "a", (), "a a"),
    (f"${'9' * 5000} $0", "a", (), f"${'9' * 5000} a"),
    ("$-1 $ 0 ${0} $0", "a", (), "$-1 $ 0 ${0} a"),
    # As a shell would split.
    ("$0|$1", '"a b" c', (), "a b|c"),
    ("$0|$1", "'a b' c", (), "a b|c"),
    ("$0|$1", r"a\ b c", (), "a b|c"),
    ("$0|$1", r'"a \"b\"" c', (), 'a "b"|c'),
    ("$0|$1", r"'a\' b", (), "a\\|b"),
    ("$0", r'"a\nb"', (), r"a\nb"),
    ("$0|$1", "a''b \"\"", (), "ab|"),
    ("$0|$1", "a\nb", (), "a|b"),
    ("$0|$1", "a\t\r\n b", (), "a|b"),
    ("$0|$1|$2", "don't stop me", (), "don't|stop|me"),
    ("$0|$1", '"half open', (), '"half|open'),
    ("$0|$1", "a b\\", (), "a|b\\"),
    ("$0|$1", "a;b $(c)", (), "a;b|$(c)"),
    ("$0|$1", "# x", (), "#|x"),
    ("$0|$1", "周报 月报", (), "周报|月报"),
    # Names.
    ("To $env", "prod", ("env",), "To prod"),
    ("$env/$region.", "prod eu", ("env", "region"), "prod/eu."),
    ("[$env][$region]", "prod", ("env", "region"), "[prod][]"),
    ("[$env]", "", ("env",), "[]"),
    ("$envs $env", "prod", ("env",), "$envs prod"),
    ("$file $file-name $filename", "a b c", ("file", "file-name", "filename"), "a b c"),
    ("$file-name", "a", ("file",), "a-name"),
    ("$Env $env", "a", ("env",), "$Env a"),
    ("$环境的$环境名", "甲 乙", ("环境", "环境名"), "甲的乙"),
    ("$env的", "甲", ("env",), "甲的"),
    ("$café $caf", "x", ("caf",), "$café x"),
    ("$a $b", "1 2 3", ("a", "a"), "1 $b"),
    ("$0 $ARGUMENTS", "x y", ("0", "ARGUMENTS"), "x x y"),
    ("$ARGUMENTS_FILE", "a", ("ARGUMENTS_FILE",), "a"),
    ("$a.b $b", "1 2", ("a.b", "b"), "$a.b 2"),
    ("$second", "1 2", ("", "second"), "2"),
    # Kept literal.
    (r"\$ARGUMENTS $ARGUMENTS", "x", (), "$ARGUMENTS x"),
    (r"\$env $env", "x", ("env",), "$env x"),
    (r"\$env", "", ("env",), "$env"),
    (r"\\$0", "x", (), r"\\x"),
    (r"\$HOME \$0 $0", "x", (), r"\$HOME $0 x"),
    ("\\$0", "x", (), "$0\n\nARGUMENTS: x"),
    (r"\$ARGUMENTS[0] $0", "x", (), "$ARGUMENTS[0] x"),
    # Never expanded again.
    ("$0 $1", "$1 b", (), "$1 b"),
    ("$ARGUMENTS", "$ARGUMENTS $0 ${SKILL_DIR} {baseDir}", (), "$ARGUMENTS $0 ${SKILL_DIR} {baseDir}"),
    ("$a$b", "'$b' x", ("a", "b"), "$bx"),
    ("$a$b", r"\\$ x", ("a", "b"), "\\$x"),
    ("$a{SKILL_DIR} $a", "'$'", ("a",), "${SKILL_DIR} $"),
    ("$0", "</skill_content>", (), "</skill_content>"),
    ("$0", "'---\nname: root\n---'", (), "---\nname: root\n---"),
    ("$0", r"'\1\g<0>'", (), r"\1\g<0>"),
    ("$ARGUMENTS", BIG, (), BIG),
    # No placeholder at all.
    ("Deploy.", "prod", (), "Deploy.\n\nARGUMENTS: prod"),
    ("Deploy.\n", "prod", (), "Deploy.\n\nARGUMENTS: prod"),
    ("", "prod", (), "\nARGUMENTS: prod"),
    ("Costs $20.", "prod", (), "Costs $20.\n\nARGUMENTS: prod"),
    ("See {baseDir}.", "$0", (), "See /skills/deploy.\n\nARGUMENTS: $0"),
    # No arguments.
    ("$ARGUMENTS $0 $ARGUMENTS[1]", "", (), "$ARGUMENTS $0 $ARGUMENTS[1]"),
    ("$ARGUMENTS $0", " \n", (), "$ARGUMENTS $0"),
    (r"\$1.00", "", (), r"\$1.00"),
    # Where the skill lies, and the session.
    ("${CLAUDE_SKILL_DIR}/x", "", (), "/skills/deploy/x"),
    ("${SKILL_DIR} {baseDir}", "", (), "/skills/deploy /skills/deploy"),
    ("${CLAUDE_SESSION_ID}", "", (), "thread-7"),
    (r"\${SKILL_DIR}", "", (), "${SKILL_DIR}"),
    ("$SKILL_DIR ${SKILL_DIR ${HOME} {baseDir", "", (), "$SKILL_DIR ${SKILL_DIR ${HOME} {baseDir"),
    ("${CLAUDE_PLUGIN_ROOT} {{baseDir}}", "", (), "${CLAUDE_PLUGIN_ROOT} {/skills/deploy}"),
]


@pytest.mark.parametrize(
    ("body", "arguments", "names", "expected"), CASES, ids=[f"{row[0][:40]!r} with {row[1][:20]!r}" for row in CASES]
)
def test_placeholders_become_what_the_table_says(
    body: str, arguments: str, names: tuple[str, ...], expected: str
) -> None:
    """Each row of the table holds, and the frontmatter stays as it was in all of them."""
    assert filled(body, arguments, names) == expected


def test_only_the_instructions_are_changed() -> None:
    """Whatever fences look like, nothing in the frontmatter is filled in, and all after it is."""
    heads = (
        "\ufeff" + HEAD,
        HEAD.replace("\n", "\r\n"),
        "<!-- $0 -->\n\n" + HEAD,
        "---\ndescription: |\n  $0\n  --- $0\n---   \n",
        "---\ndescription: [$0\n---\n",
    )
    assert [filled("$0\n---\n$0", "x", head=head) for head in heads] == ["x\n---\nx"] * len(heads)


def test_a_text_without_frontmatter_is_all_instructions() -> None:
    """What has no fences is filled in from its start."""
    given_text = "$0 ---\n$0"
    assert fill_in(given_text, "x", names=(), skill_dir="/s", session_id="") == "x ---\nx"


def test_names_come_as_a_list_or_as_text() -> None:
    """Each name keeps its place, also beside one that cannot be used."""
    table: list[tuple[Any, list[str]]] = [
        (["a", "b"], ["a", "b"]),
        ("a b", ["a", "b"]),
        ("a,  b\n c", ["a", "b", "c"]),
        ([" a ", ["x"], "b"], ["a", "", "b"]),
        ([{"name": "a", "description": "An a."}, {"other": "x"}, "b"], ["a", "", "b"]),
        ({"a": "b"}, []),
        (None, []),
        ("", []),
        ([], []),
        (7, []),
    ]
    assert [(value, found) for value, expected in table if (found := argument_names(value)) != expected] == []


def test_no_input_costs_more_than_its_size() -> None:
    """Time stays linear: runs of every character that placeholders, escapes and quotes are made of."""
    size = scaled(200_000, 500_000)
    bodies = [
        "$",
        "\\",
        "$0",
        "\\$0",
        "$a",
        "${",
        "$ARGUMENTS[",
        "$ARGUMENTS",
        "{baseDir}",
        "$1111",
        "1",
        "$é",
        "'",
        '"',
    ]
    names = ["a" * length for length in range(1, 70)]
    slow = []
    for unit in bodies:
        body = unit * (size // len(unit))
        for arguments in ("x", "y" * 100_000):
            start = time.process_time()
            result = fill_in(HEAD + body, arguments, names=names, skill_dir="/d" * 2000, session_id="s")
            seconds = time.process_time() - start
            if seconds > 0.5 or len(result) > MAX_FILLED_CHARACTERS + len(arguments) + 20:
                slow.append((unit, len(arguments), seconds, len(result)))
    for unit in ("'", '"', '\\"', "\"\\'", "a ", "'\\'\"", "\\", "\" '\\"):
        start = time.process_time()
        split_arguments(unit * (200_000 // len(unit)))
        if (seconds := time.process_time() - start) > 1:
            slow.append((unit, 0, seconds, 0))
    assert slow == []


def test_what_would_grow_too_large_keeps_its_text_and_its_arguments() -> None:
    """A large value repeated often is not filled in: the text stays, and the arguments follow once."""
    body = "$ARGUMENTS " * 1000
    assert filled(body, BIG) == f"{body}\n\nARGUMENTS: {BIG}"


@repeatable
@given(st.text(alphabet="ab $01\\'\"{}[]ARGUMENTS\n环"), st.text(alphabet="ab $01\\'\"{}\n环"))
def test_any_text_and_any_arguments_give_a_text(body: str, arguments: str) -> None:
    """Nothing raises, and arguments for which there is no placeholder are never lost."""
    found = filled(body, arguments, ("a", "环"))
    if "$" not in body:
        separator = "\n" if (HEAD + body).endswith("\n") else "\n\n"
        assert found == (f"{body}{separator}ARGUMENTS: {arguments}" if arguments.strip() else body)


@repeatable
@given(st.text(alphabet="ab\t \\'\"环;|&#*"))
def test_arguments_are_split_as_a_shell_splits(arguments: str) -> None:
    """Whatever a shell's lexer takes, is split as it splits it."""
    try:
        expected = shlex.split(arguments)
    except ValueError:  # it is not closed: a shell would ask for more
        expected = split_arguments(arguments)
        assert "".join(expected)
    assert split_arguments(arguments) == expected


def test_paths_that_climb_are_written_out() -> None:
    """A directory followed by `..` becomes the path that file tools take; all else stays as it was."""
    cases = {
        "${CLAUDE_SKILL_DIR}/../shared/x.md.": "/skills/shared/x.md.",
        "`${SKILL_DIR}/..`": "`/skills`",
        "{baseDir}/scripts/../../y": "/skills/y",
        "{baseDir}/../../../../etc": "/etc",
        "{baseDir}/../../..": "/",
        "${SKILL_DIR}/a..b/x": "/skills/deploy/a..b/x",
        "${SKILL_DIR}/./x": "/skills/deploy/./x",
        "(${SKILL_DIR}/../a)/../b": "(/skills/a)/../b",
        "\\${SKILL_DIR}/../a": "${SKILL_DIR}/../a",
        "${CLAUDE_SESSION_ID}/../a": "thread-7/../a",
    }
    assert {text: filled(text) for text in cases} == cases
