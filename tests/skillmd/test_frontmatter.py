"""YAML to text, lists and mappings: what is read, what is noted, what is left alone."""

from dataclasses import asdict

import pytest

from deepskills._skillmd.repair import MAX_DEPTH, FrontmatterError, Notes, Tree, as_text, read_yaml


def noted(notes: Notes) -> dict[str, object]:
    """Return what is unusual in `notes`, leaving out all that is not."""
    return {name: value for name, value in asdict(notes).items() if value}


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        pytest.param("", None, id="nothing"),
        pytest.param("# a comment\n\n", None, id="comment"),
        pytest.param("~", None, id="null"),
        pytest.param("just text", "just text", id="text"),
        pytest.param("- a\n-\n- 'b'\n", ["a", None, "b"], id="list"),
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
def test_valid_yaml_is_read_as_written(text: str, tree: Tree) -> None:
    """Every scalar stays its text, a plain null is nothing, and there is nothing to note."""
    read, notes = read_yaml(text)
    assert read == tree
    assert noted(notes) == {}


@pytest.mark.parametrize(
    ("text", "tree", "found"),
    [
        pytest.param("a: [b, {c: d}]\n", {"a": ["b", {"c": "d"}]}, {"flow": True}, id="flow"),
        pytest.param("a: &x b\nc: *x\n", {"a": "b", "c": "*x"}, {"aliases": True}, id="alias"),
        pytest.param("a: *nowhere\n", {"a": "*nowhere"}, {"aliases": True}, id="alias-of-nothing"),
        pytest.param("a: &x\n  b: *x\n", {"a": {"b": "*x"}}, {"aliases": True}, id="alias-of-itself"),
        pytest.param("*x : a\n", {"*x": "a"}, {"aliases": True}, id="alias-as-key"),
        pytest.param("<<: a\n", {"<<": "a"}, {"aliases": True}, id="merge-key"),
        pytest.param("a: !!set {b}\n", {"a": {"b": None}}, {"tags": True, "flow": True}, id="tag"),
        pytest.param("a: ! b\n", {"a": "b"}, {"tags": True}, id="empty-tag"),
        pytest.param("a: !!binary aGk=\n", {"a": "aGk="}, {"tags": True}, id="tag-of-a-type"),
        pytest.param("a: !%ed%a0%80 b\nc: d\n", {"a": "!%ed%a0%80 b", "c": "d"}, {"repaired": ["a"]}, id="tag-no-text"),
        pytest.param(
            "a: 1\na: 2\nb:\n  c: 3\n  c: 4\n", {"a": "2", "b": {"c": "4"}}, {"duplicates": ["a", "c"]}, id="twice"
        ),
        pytest.param("a: b\0\u202ec\n", {"a": "bc"}, {"cleaned": True}, id="control-characters"),
        pytest.param('"a\\0": "\\x1b\\U000E0041b"\n', {"a": "b"}, {"cleaned": True}, id="escaped-control-characters"),
        pytest.param("? [a, b]\n: c\n", {"a, b": "c"}, {"repaired": ["a, b"], "flow": True}, id="list-as-key"),
        pytest.param("? {a: b}\n: c\n", {"a: b": "c"}, {"repaired": ["a: b"], "flow": True}, id="mapping-as-key"),
        pytest.param("a: b: c\nd: e\n", {"a": "b: c", "d": "e"}, {"repaired": ["a"]}, id="broken-value"),
        pytest.param("x\na: @b\n", {"a": "@b"}, {"repaired": ["a"], "lost": ["x"]}, id="line-of-no-key"),
        pytest.param("a: [b]\nc: [d\n", {"a": ["b"], "c": "[d"}, {"flow": True, "repaired": ["c"]}, id="broken-flow"),
        pytest.param("a: !x b\nc: @d\n", {"a": "b", "c": "@d"}, {"tags": True, "repaired": ["c"]}, id="tag-and-broken"),
        pytest.param("a:\n  b: 1\n  c: @d\n", {"a": {"b": "1", "c": "@d"}}, {"repaired": ["c"]}, id="broken-inside"),
        pytest.param("a: b\n  c: d\n", {"a": "b c: d"}, {"repaired": ["a"]}, id="indented-key-below-text"),
        pytest.param(
            "a:\n    b: 1\n  c: 2\n", {"a": {"b": "1", "c": "2"}}, {"repaired": ["a"]}, id="uneven-indentation"
        ),
        pytest.param(" a: 1\nb: 2\n", {"a": "1", "b": "2"}, {"repaired": ["a", "b"]}, id="first-key-indented"),
        pytest.param("a: >\n\tb\n\tc\n", {"a": "b c"}, {"repaired": ["a"]}, id="tab-indented-block"),
        pytest.param("# x\na: @b\n# y\nc: d\n", {"a": "@b", "c": "d"}, {"repaired": ["a"]}, id="comments-between"),
        pytest.param("a: 1\n--- \nb: 2\n", {"a": "1 ---", "b": "2"}, {"repaired": ["a"]}, id="second-document"),
    ],
)
def test_the_unusual_is_read_and_noted(text: str, tree: Tree, found: dict[str, object]) -> None:
    """Aliases and tags are left alone, broken values become text, and each is noted."""
    read, notes = read_yaml(text)
    assert read == tree
    assert noted(notes) == found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("@", "cannot start any token, line 2", id="no-token"),
        pytest.param("\n\n`", "line 4", id="line-of-the-file"),
        pytest.param("[a", "line", id="unclosed-list"),
        pytest.param("'a", "line", id="unclosed-quote"),
        pytest.param("- a\n--- \n- b\n", "more than one YAML document", id="two-documents"),
        pytest.param("[" * 100, "deeper than", id="too-deep"),
    ],
)
def test_what_stays_unreadable_is_refused(text: str, reason: str) -> None:
    """Where not even one key can be made out, the error says why and on which line of the file."""
    with pytest.raises(FrontmatterError, match=reason):
        read_yaml(text)


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
    inner = MAX_DEPTH - 1
    _, notes = read_yaml(f"k:\n {opening * inner}x{closing * inner}\n")
    assert notes.too_deep == []
    value = f"{opening * MAX_DEPTH}x{closing * MAX_DEPTH}"
    tree, notes = read_yaml(f"k:\n {value}\nz: 1\n")
    assert notes.too_deep == ["k"]
    assert isinstance(tree, dict)
    assert tree["z"] == "1"
    assert isinstance(tree["k"], str | list)


def test_a_quoted_merge_key_is_a_plain_key() -> None:
    """Quotes make `<<` a key like any other, as the message on merge keys advises."""
    tree, notes = read_yaml('"<<": a\n')
    assert tree == {"<<": "a"}
    assert noted(notes) == {}


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        pytest.param(None, "", id="nothing"),
        pytest.param("a b", "a b", id="text"),
        pytest.param(["a", "b"], "a, b", id="list"),
        pytest.param({"a": "b", "c": "d"}, "a: b, c: d", id="mapping"),
        pytest.param({"a": ["b", "c"], "d": "e"}, "a: b, c, d: e", id="list-in-mapping"),
        pytest.param({"a": {"b": "c", "d": "e"}, "f": "g"}, "a: (b: c, d: e), f: g", id="mapping-in-mapping"),
        pytest.param([{"a": "b"}, "c"], "(a: b), c", id="mapping-in-list"),
        pytest.param([], "", id="empty-list"),
        pytest.param({}, "", id="empty-mapping"),
    ],
)
def test_as_text_reads_like_a_sentence(tree: Tree, text: str) -> None:
    """Lists and mappings become text that a person would write, never a Python repr."""
    assert as_text(tree) == text
