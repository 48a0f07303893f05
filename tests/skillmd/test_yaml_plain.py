"""The fast way for plain frontmatter: whatever it reads, YAML reads the same, and notes nothing."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepskills import read_skill, validate_skill
from deepskills._skillmd import read as reading
from deepskills._skillmd.read import split_plain
from deepskills._skillmd.repair import FrontmatterError, read_full_yaml, read_yaml
from deepskills._skillmd.text import clean
from deepskills._skillmd.yaml import Notes, read_plain
from support import scaled

repeatable = settings(
    deadline=None, derandomize=True, max_examples=scaled(150, 1_500), suppress_health_check=list(HealthCheck)
)


def differs(text: str) -> bool:
    """Whether the fast way reads `text`, but not as YAML does."""
    cleaned = clean(text)
    plain = read_plain(cleaned)
    if plain is None:
        return False
    try:
        return (plain, Notes()) != read_full_yaml(cleaned) or list(plain) != list(read_full_yaml(cleaned)[0] or {})
    except FrontmatterError:
        return True


PLAIN = {
    "one key": "name: demo\n",
    "without a newline at the end": "name: demo\ndescription: Does a thing",
    "spaces around values": "name:   demo  \ndescription:  'a b'   \n",
    "quotes": 'a: "b: c # d"\nb: \'e "f" g\'\nc: "it\'s"\nd: \'\'\ne: ""\n',
    "colons and hashes inside": "a: http://x.y:80/z#part\nb: 10:30\nc: a:b#c\n",
    "nulls": "a:\nb: null\nc: 'null'\nd: nULL\ne: \"~\"\n",
    "numbers, dates, booleans": "a: 1.10\nb: 010\nc: 2025-02-30\nd: true\ne: 1e3\n",
    "blank lines": "a: b\n\n\nc: d\n\n",
    "lines of spaces": "a: b\n   \nc: d\n",
    "nested mapping": "a:\n  b: c\n  d: 'e'\n  f:\ng: h\n",
    "nested list": "a:\n  - b\n  - 'c: d'\ne:\n- f\n- g\nh: i\n",
    "any script": "name: 周报\ndescription: 把零散的记录整理成周报。\na: Größe, naïve, Ünïcode\n",
    "commas, brackets and stars inside": "a: b, [c], {d}, *e*, &f, !g, | h > i @ j `k` % l\n",
    "keys of many kinds": "null: a\ntrue: b\n_x: c\nallowed-tools: Read Write\nA1: d\n",
}
"""Frontmatter that must take the fast way."""

LEFT_TO_YAML = {
    "nothing": "",
    "blank lines alone": "\n\n",
    "comment": "# a\na: b\n",
    "comment behind a value": "a: b # c\n",
    "continued line": "a: b\n  c\n",
    "block scalar": "a: |\n  b\n",
    "flow list": "a: [b, c]\n",
    "flow mapping": "a: {b: c}\n",
    "escape": 'a: "b\\n"\n',
    "doubled quote": "a: 'it''s'\n",
    "text behind quotes": 'a: "b" c\n',
    "unclosed quote": 'a: "b\n',
    "colon and space": "a: b: c\n",
    "colon last": "a: b:\n",
    "anchor": "a: &x b\n",
    "alias": "a: *x\n",
    "tag": "a: !x b\n",
    "merge key": "<<: a\n",
    "second document": "a: b\n--- \nc: d\n",
    "document end": "a: b\n...\n",
    "directive": "%YAML 1.1\n",
    "duplicate key": "a: b\na: c\n",
    "duplicate nested key": "a:\n  b: c\n  b: d\n",
    "two levels": "a:\n  b:\n    c: d\n",
    "uneven indentation": "a:\n    b: c\n  d: e\n",
    "indented below a value": "a: b\n  c: d\n",
    "first key indented": " a: b\n",
    "tab": "a:\tb\n",
    "tab inside": "a: b\tc\n",
    "mapping in a list": "a:\n  - b: c\n",
    "list in a mapping": "a:\n  b:\n  - c\n",
    "list then mapping": "a:\n  - b\n  c: d\n",
    "empty item": "a:\n  -\n",
    "line separator": "a: b\u2028c\n",
    "key without a colon": "a\n",
    "no space after the colon": "a:b\n",
    "dash value": "a: - b\n",
    "question mark": "? a\n: b\n",
    "long key": f"{'a' * 2000}: b\n",
}
"""Frontmatter that only YAML may judge."""


def test_plain_frontmatter_takes_the_fast_way() -> None:
    """What most files hold is read without YAML, and says the same; what is not plain is left to YAML."""
    assert [name for name, text in PLAIN.items() if read_plain(text) is None] == []
    assert [name for name, text in LEFT_TO_YAML.items() if read_plain(text) is not None] == []
    assert [name for name, text in (PLAIN | LEFT_TO_YAML).items() if differs(text)] == []


FRAGMENTS = (
    *("a", "b", "key", "name", "null", "~", "true", "1.0", "0x1F", "<<", "周", "é", "\u00a0", "🎉", "\ufeff", "\u3000"),
    *(":", ": ", " :", "#", " #", "# ", "-", "- ", "--", "---", "...", "\n", "\n\n", " ", "  ", "    ", "\t", "\r"),
    *(
        "'",
        '"',
        "''",
        "\\",
        "\\n",
        "[",
        "]",
        "{",
        "}",
        ",",
        "&",
        "*",
        "!",
        "|",
        ">",
        "%",
        "@",
        "`",
        "?",
        "? ",
        "=",
        "<",
    ),
    *(
        "\u2028",
        "\x85",
        "\x00",
        "\x1b[0m",
        "\ud800",
        "\ufffe",
        "\U000e0041",
        "\U0001fffe",
        "(",
        "/",
        "$",
        "+",
        "_",
        "~x",
    ),
)

LINES = (
    *("a: b", "a:", "b: c", "  b: c", "  - x", "- x", "    c: d", "", "  ", "c: 'x'", 'd: "y"', "e: 'it''s'", "f: [x]"),
    *("g: x # y", "h: x: y", "i: |", "  text", "# c", "j: null", "k: ~", "l: 'null'", "---", "...", "m: &a b", "n: *a"),
    *("o:  p  ", "q: http://r", "s:t", "  u:", "  - 'v'", "  - w: x", " y: z", "-", "- ", "? x", "null: x", "a: again"),
)


def test_generated_files_are_read_alike() -> None:
    """Ten thousand files made of YAML's own marks and of whole lines are read as YAML reads them."""
    chance = random.Random(20)
    texts = ["".join(chance.choices(FRAGMENTS, k=chance.randint(1, 12))) for _ in range(4_000)]
    texts += [f"a: {''.join(chance.choices(FRAGMENTS, k=chance.randint(1, 5)))}\nb: c\n" for _ in range(3_000)]
    texts += ["\n".join(chance.choices(LINES, k=chance.randint(1, 6))) for _ in range(3_000)]
    assert [text for text in texts if differs(text)] == []
    assert sum(read_plain(clean(text)) is not None for text in texts) > 500, "the fast way is hardly tried"


@repeatable
@given(st.dictionaries(st.from_regex(r"[a-z][a-z-]{0,9}", fullmatch=True), st.text(max_size=30), max_size=4))
def test_any_value_is_read_alike(fields: dict[str, str]) -> None:
    """Whatever text stands behind a key, bare or in quotes, both ways agree on it."""
    for shape in ("{}: {}\n", "{}: '{}'\n", '{}: "{}"\n', "{}:\n  - {}\n"):
        text = "".join(shape.format(key, value) for key, value in fields.items())
        assert not differs(text)


def test_the_fast_way_is_the_one_that_is_taken() -> None:
    """`read_yaml` gives what the fast way gives, and says if characters were removed."""
    assert read_yaml("a: b\n") == ({"a": "b"}, Notes())
    assert read_yaml("a: b\x00\n") == ({"a": "b"}, Notes(cleaned=True))


def test_plain_fences_are_found_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are split into frontmatter and body alike, the fast way and by looking for every odd fence."""
    chance = random.Random(21)
    ends = (
        "---\n",
        "---",
        "--- \n",
        "---\r\n",
        "----\n",
        "---# T\n",
        "\n---\n",
        "---\t\n",
        "---\u200b\n",
        "a---\n",
        "",
    )
    inside = [
        *("\n".join(chance.choices(LINES, k=chance.randint(0, 4))) for _ in range(600)),
        "",
        "a: b---c",
        "a: b\rc",
    ]
    texts = [
        f"{chance.choice(ends)}{text}{chance.choice(('', chr(10)))}{chance.choice(ends)}{chance.choice(ends)}Body.\n"
        for text in inside
    ]
    texts += [f"---\n{text}\n---\nBody.\n" for text in (*inside, "a: " + "é" * 40_000, "a: " + "x" * 70_000)]
    fast = [(read_skill(text, path="/s/a/SKILL.md"), validate_skill(text, path="/s/a/SKILL.md")) for text in texts]
    assert sum(split_plain(text) is not None for text in texts) > 100, "the fast way is hardly tried"
    monkeypatch.setattr(reading, "split_plain", lambda _text: None)
    slow = [(read_skill(text, path="/s/a/SKILL.md"), validate_skill(text, path="/s/a/SKILL.md")) for text in texts]
    assert [text for text, one, other in zip(texts, fast, slow, strict=True) if one != other] == []
