"""Frontmatter as YAML: what is read, what is said of it, what is left alone."""

import re

import pytest

from deepskills import read_skill, validate_skill

PATH = "/skills/demo/SKILL.md"
NAMING_KEYS = frozenset({"yaml-repaired", "yaml-too-deep", "yaml-line-lost", "yaml-duplicate-key"})
OF_YAML = NAMING_KEYS | {"yaml-alias", "yaml-tag", "control-characters", "flow-style"}


def framed(text: str) -> str:
    return f"---\n{text}---\nBody.\n"


def noted(text: str) -> dict[str, list[str]]:
    """Return what is said of the YAML: by code, the keys and lines that it names."""
    found = {}
    for problem in validate_skill(framed(text), path=PATH):
        if problem["code"] in OF_YAML:
            named = problem["message"].partition(": ")[2].partition(". ")[0]
            found[problem["code"]] = re.findall("`([^`]*)`", named) if problem["code"] in NAMING_KEYS else []
    return found


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        pytest.param("", {}, id="nothing"),
        pytest.param("# a comment\n\n", {}, id="comment"),
        pytest.param("~\n", {}, id="null"),
        pytest.param("a:\n- b\n-\n- 'c'\n", {"a": ["b", None, "c"]}, id="list"),
        pytest.param(
            "a: 1\nb: 1.10\nc: 0o17\nd: 1e3\n", {"a": "1", "b": "1.10", "c": "0o17", "d": "1e3"}, id="numbers"
        ),
        pytest.param("a: yes\nb: False\nc: on\n", {"a": "yes", "b": "False", "c": "on"}, id="booleans"),
        pytest.param("a: null\nb: Null\nc: ~\nd:\ne: nULL\n", dict.fromkeys("abcd") | {"e": "nULL"}, id="nulls"),
        pytest.param(
            "a: 'null'\nb: \"~\"\nc: ''\nd: |\n  null\n", {"a": "null", "b": "~", "c": "", "d": "null\n"}, id="texts"
        ),
        pytest.param("null: a\n~: b\n1: c\ntrue: d\n", {"null": "a", "~": "b", "1": "c", "true": "d"}, id="keys"),
        pytest.param("a:\n  - b: c\n    d:\n      - e\n", {"a": [{"b": "c", "d": ["e"]}]}, id="nested"),
        pytest.param("a: |\n  b\n   c\nd: >-\n  e\n  f\n", {"a": "b\n c\n", "d": "e f"}, id="block-scalars"),
        pytest.param('a: "b\\tc\\u00e9\\n"\n', {"a": "b\tcé\n"}, id="escapes"),
        pytest.param("a: b # c\nd: e#f\n", {"a": "b", "d": "e#f"}, id="comments"),
        pytest.param("a: b\n...\n", {"a": "b"}, id="document-end"),
        pytest.param(f"a: {'1' * 10_000}\n", {"a": "1" * 10_000}, id="huge-integer"),
        pytest.param("a: 周报 🎉\n", {"a": "周报 🎉"}, id="any-script"),
    ],
)
def test_valid_yaml_is_read_as_written(text: str, tree: object) -> None:
    """Every scalar stays its text, a plain null is nothing, and there is nothing to say."""
    assert read_skill(framed(text), path=PATH).frontmatter == tree
    assert noted(text) == {}


@pytest.mark.parametrize(
    ("text", "tree", "found"),
    [
        pytest.param("a: [b, {c: d}]\n", {"a": ["b", {"c": "d"}]}, {"flow-style": []}, id="flow"),
        pytest.param("a: &x b\nc: *x\n", {"a": "b", "c": "*x"}, {"yaml-alias": []}, id="alias"),
        pytest.param("a: *nowhere\n", {"a": "*nowhere"}, {"yaml-alias": []}, id="alias-of-nothing"),
        pytest.param("a: &x\n  b: *x\n", {"a": {"b": "*x"}}, {"yaml-alias": []}, id="alias-of-itself"),
        pytest.param("*x : a\n", {"*x": "a"}, {"yaml-alias": []}, id="alias-as-key"),
        pytest.param("<<: a\n", {"<<": "a"}, {"yaml-alias": []}, id="merge-key"),
        pytest.param("a: !!set {b}\n", {"a": {"b": None}}, {"yaml-tag": [], "flow-style": []}, id="tag"),
        pytest.param("a: ! b\n", {"a": "b"}, {"yaml-tag": []}, id="empty-tag"),
        pytest.param("a: !!binary aGk=\n", {"a": "aGk="}, {"yaml-tag": []}, id="tag-of-a-type"),
        pytest.param(
            "a: !%ed%a0%80 b\nc: d\n", {"a": "!%ed%a0%80 b", "c": "d"}, {"yaml-repaired": ["a"]}, id="tag-no-text"
        ),
        pytest.param(
            "a: 1\na: 2\nb:\n  c: 3\n  c: 4\n",
            {"a": "2", "b": {"c": "4"}},
            {"yaml-duplicate-key": ["a", "c"]},
            id="twice",
        ),
        pytest.param("a: b\0\u202ec\n", {"a": "bc"}, {"control-characters": []}, id="control-characters"),
        pytest.param(
            '"a\\0": "\\x1b\\U000E0041b"\n', {"a": "b"}, {"control-characters": []}, id="escaped-control-characters"
        ),
        pytest.param("? [a, b]\n: c\n", {"a, b": "c"}, {"yaml-repaired": ["a, b"], "flow-style": []}, id="list-as-key"),
        pytest.param(
            "? {a: b}\n: c\n", {"a: b": "c"}, {"yaml-repaired": ["a: b"], "flow-style": []}, id="mapping-as-key"
        ),
        pytest.param("a: b: c\nd: e\n", {"a": "b: c", "d": "e"}, {"yaml-repaired": ["a"]}, id="broken-value"),
        pytest.param("x\na: @b\n", {"a": "@b"}, {"yaml-repaired": ["a"], "yaml-line-lost": ["x"]}, id="line-of-no-key"),
        pytest.param(
            "a: [b]\nc: [d\n", {"a": ["b"], "c": "[d"}, {"flow-style": [], "yaml-repaired": ["c"]}, id="broken-flow"
        ),
        pytest.param(
            "a: !x b\nc: @d\n", {"a": "b", "c": "@d"}, {"yaml-tag": [], "yaml-repaired": ["c"]}, id="tag-and-broken"
        ),
        pytest.param(
            "a:\n  b: 1\n  c: @d\n", {"a": {"b": "1", "c": "@d"}}, {"yaml-repaired": ["c"]}, id="broken-inside"
        ),
        pytest.param("a: b\n  c: d\n", {"a": "b c: d"}, {"yaml-repaired": ["a"]}, id="indented-key-below-text"),
        pytest.param(
            "a:\n    b: 1\n  c: 2\n", {"a": {"b": "1", "c": "2"}}, {"yaml-repaired": ["a"]}, id="uneven-indentation"
        ),
        pytest.param(" a: 1\nb: 2\n", {"a": "1", "b": "2"}, {"yaml-repaired": ["a", "b"]}, id="first-key-indented"),
        pytest.param("a: >\n\tb\n\tc\n", {"a": "b c"}, {"yaml-repaired": ["a"]}, id="tab-indented-block"),
        pytest.param("# x\na: @b\n# y\nc: d\n", {"a": "@b", "c": "d"}, {"yaml-repaired": ["a"]}, id="comments-between"),
        pytest.param("a: 1\n--- x\nb: 2\n", {"a": "1 --- x", "b": "2"}, {"yaml-repaired": ["a"]}, id="second-document"),
    ],
)
def test_the_unusual_is_read_and_reported(text: str, tree: object, found: dict[str, list[str]]) -> None:
    """Aliases and tags are left alone, broken values become text, and each is reported."""
    assert read_skill(framed(text), path=PATH).frontmatter == tree
    assert noted(text) == found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("@\n", "cannot start any token, line 2", id="no-token"),
        pytest.param("\n\n`\n", "line 4", id="line-of-the-file"),
        pytest.param("[a\n", "line", id="unclosed-list"),
        pytest.param("'a\n", "line", id="unclosed-quote"),
        pytest.param("- a\n--- b\n- c\n", "more than one YAML document", id="two-documents"),
        pytest.param("[" * 100 + "\n", "deeper than", id="too-deep"),
    ],
)
def test_what_stays_unreadable_is_refused(text: str, reason: str) -> None:
    """Where not even one key can be made out, the error says why and on which line of the file."""
    [found] = read_skill(framed(text), path=PATH).problems
    assert found["code"] == "yaml-unreadable"
    assert reason in found["message"]


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        pytest.param("[", "]", id="flow-lists"),
        pytest.param("{a: ", "}", id="flow-mappings"),
        pytest.param("- ", "", id="lists"),
    ],
)
def test_nesting_is_bounded(opening: str, closing: str) -> None:
    """Values nest up to the limit; one that goes deeper is plain text, and the rest is read."""
    most = 15  # and the mapping of all keys around them
    assert "yaml-too-deep" not in noted(f"k:\n {opening * most}x{closing * most}\n")
    deeper = f"k:\n {opening * (most + 1)}x{closing * (most + 1)}\nz: 1\n"
    assert noted(deeper)["yaml-too-deep"] == ["k"]
    tree = read_skill(framed(deeper), path=PATH).frontmatter
    assert tree["z"] == "1"
    assert isinstance(tree["k"], str | list)


def test_a_quoted_merge_key_is_a_plain_key() -> None:
    """Quotes make `<<` a key like any other, as the message on merge keys advises."""
    text = '"<<": a\n'
    assert read_skill(framed(text), path=PATH).frontmatter == {"<<": "a"}
    assert noted(text) == {}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param("a b", "a b", id="text"),
        pytest.param("[a, b]", "a, b", id="list"),
        pytest.param("{a: b, c: d}", "a: b, c: d", id="mapping"),
        pytest.param("{a: [b, c], d: e}", "a: b, c, d: e", id="list-in-mapping"),
        pytest.param("{a: {b: c, d: e}, f: g}", "a: (b: c, d: e), f: g", id="mapping-in-mapping"),
        pytest.param("[{a: b}, c]", "(a: b), c", id="mapping-in-list"),
        pytest.param("[]", "", id="empty-list"),
        pytest.param("{}", "", id="empty-mapping"),
    ],
)
def test_what_should_be_text_reads_like_a_sentence(value: str, text: str) -> None:
    """Lists and mappings become text that a person would write, never a Python repr."""
    reading = read_skill(framed(f"name: demo\ndescription: D.\nmetadata:\n  k: {value}\n"), path=PATH)
    assert reading.metadata is not None
    assert reading.metadata["metadata"] == {"k": text}
