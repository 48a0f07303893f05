"""Writing SKILL.md: what is written reads back the same, here and elsewhere."""

import datetime as dt
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from skills_ref.parser import parse_frontmatter
from skills_ref.validator import validate, validate_metadata

from deepskills import SkillFormatError, generate_skill_md, read_skill, validate_skill
from support import scaled

repeatable = settings(
    deadline=None,
    derandomize=True,
    max_examples=scaled(100, 1_000),
    suppress_health_check=[HealthCheck.too_slow],
)

BIDIRECTIONAL = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
NONCHARACTERS = frozenset("\ufeff\ufffe\uffff")
YAML_FRAGMENTS = [
    *"-:#&*!|>'\"%@`?,[]{}\\~=\n\t ",
    "---",
    ": ",
    " #",
    "- ",
    "\n---\n",
    "null",
    "<<",
    "{{",
    "é",
    "\u2028",
    "🎉",
]


def is_unwritable(character: str) -> bool:
    """Whether a reader takes `character` away: control, bidirectional, tag, surrogate, byte order mark."""
    return (
        (unicodedata.category(character) == "Cc" and character not in "\t\n")
        or unicodedata.category(character) == "Cs"
        or character in BIDIRECTIONAL | NONCHARACTERS
        or "\U000e0000" <= character <= "\U000e007f"
    )


def breaks_rules(description: str) -> bool:
    return (
        not description
        or len(description) > 1024
        or description != description.strip()
        or any(map(is_unwritable, description))
    )


def is_name_character(character: str) -> bool:
    return (
        character.isalnum() and character == character.lower() and character == unicodedata.normalize("NFKC", character)
    )


name_parts = st.text(
    st.one_of(
        st.sampled_from("abcxyz0123456789éßøжщλ周报あア한ก٣"),
        st.characters(categories=["Ll", "Lo", "Nd"]).filter(is_name_character),
    ),
    min_size=1,
    max_size=12,
)
names = st.lists(name_parts, min_size=1, max_size=4).map("-".join)

any_text = st.one_of(
    st.text(st.characters(exclude_categories=[]), max_size=60),
    st.lists(st.sampled_from([*YAML_FRAGMENTS, "a", "word"]), max_size=12).map("".join),
)
writable_text = any_text.map(lambda text: "".join(c for c in text if not is_unwritable(c)))
descriptions = writable_text.map(str.strip).filter(bool)
bodies = st.one_of(
    st.text(max_size=200),
    st.lists(st.sampled_from([*YAML_FRAGMENTS, "\r\n", "\r", "\0", "a"]), max_size=20).map("".join),
)
scalars = st.one_of(
    writable_text, st.integers(), st.booleans(), st.floats(), st.dates(), st.datetimes(), st.just("null")
)
specified_fields = st.fixed_dictionaries(
    {},
    optional={
        "license": st.one_of(st.none(), scalars),
        "compatibility": writable_text,
        "metadata": st.dictionaries(st.one_of(writable_text, st.integers()), scalars, max_size=4),
        "allowed-tools": st.one_of(writable_text, st.lists(writable_text, max_size=4)),
    },
)
values = st.recursive(
    st.one_of(st.none(), scalars),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(writable_text, inner, max_size=3)),
    max_leaves=12,
)
SPECIFIED = frozenset({"name", "description", "license", "compatibility", "metadata", "allowed-tools"})
further_fields = st.dictionaries(writable_text.filter(lambda key: key not in SPECIFIED), values, max_size=4)


def as_read(value: Any) -> Any:
    """Return `value` as a reader gives it back: scalars as text, nothing and empty ones gone."""
    if isinstance(value, Mapping):
        return {str(key): read for key, item in value.items() if (read := as_read(item)) is not None} or None
    if isinstance(value, list | tuple):
        return [read for item in value if (read := as_read(item)) is not None] or None
    if isinstance(value, bool):
        return str(value).lower()
    return value if value is None else str(value)


def check_reads_back(text: str, name: str, description: str, body: str, fields: Mapping[str, object]) -> None:
    reading = read_skill(text.encode(), path=f"/skills/{name}/SKILL.md")
    assert reading.problems == []
    assert reading.metadata is not None
    assert reading.metadata["name"] == name
    assert reading.metadata["description"] == description
    assert reading.frontmatter == as_read({"name": name, "description": description, **fields})
    assert reading.body == body


@repeatable
@given(names, descriptions, bodies, specified_fields)
@example("on", "yes", "---\n", {"license": "n", "metadata": {"y": "off", "": ""}})
@example("010", "1.10", "\r", {"license": "0x1F", "metadata": {"<<": "*x", "a: b": "- c"}})
@example("a", "--- ---- a---", "", {"compatibility": " x ", "allowed-tools": ["Bash(git add:*)", "- a"]})
@example("a", 'a "b" \\n \\', "", {"metadata": {"x" * 500: "\u2028\u2029"}})
def test_the_specified_fields_read_back_and_pass_both_validators(
    name: str, description: str, body: str, fields: dict[str, object]
) -> None:
    """Valid values give a file that reads back the same, and that both validators pass."""
    text = generate_skill_md(name, description, body, fields)
    check_reads_back(text, name, description, body, fields)
    assert validate_skill(text, path=f"/skills/{name}/SKILL.md") == []
    metadata, _ = parse_frontmatter(text)
    assert validate_metadata(metadata, Path(name)) == []
    assert (metadata["name"], metadata["description"]) == (name, description)


@repeatable
@given(names, descriptions, bodies, further_fields)
@example("a", "b", "", {"x": [["a", ["b"]], {"c": [{"d": "e"}]}]})
@example("a", "b", "", {"x": {"<<": {"y": "z"}}, "tags": ["a: b", "#c"]})
def test_further_fields_read_back(name: str, description: str, body: str, fields: dict[str, object]) -> None:
    """Fields that the specification does not know, nested ones too, read back the same."""
    text = generate_skill_md(name, description, body, fields)
    check_reads_back(text, name, description, body, fields)


@repeatable
@given(st.one_of(any_text, st.text(min_size=1020, max_size=1030)))
@example("")
@example("a" * 1024)
@example("a" * 1025)
@example(" a")
@example("a\xa0")
@example("a\u2028")
@example("a\u2028b")
@example("a\x7fb")
@example("a\x85b")
@example("a\U000e0041")
@example("a\ud800")
@example("a\u200fb")
def test_only_a_description_that_breaks_the_rules_is_refused(description: str) -> None:
    """A description is refused if, and only if, it breaks the rules or could not be read back."""
    try:
        text = generate_skill_md("demo", description)
    except SkillFormatError:
        assert breaks_rules(description)
    else:
        assert not breaks_rules(description)
        check_reads_back(text, "demo", description, "", {})


@pytest.mark.parametrize(
    ("name", "word"),
    [
        pytest.param("", "no name", id="empty"),
        pytest.param("Demo", "lower-case", id="uppercase"),
        pytest.param("my skill", "naming rules", id="space"),
        pytest.param("my_skill", "naming rules", id="underscore"),
        pytest.param("a--b", "single hyphens", id="double-hyphen"),
        pytest.param("-a", "naming rules", id="leading-hyphen"),
        pytest.param("a-", "naming rules", id="trailing-hyphen"),
        pytest.param("a/b", "naming rules", id="slash"),
        pytest.param("../a", "naming rules", id="path"),
        pytest.param(".", "naming rules", id="dot"),
        pytest.param(" a", "name", id="blank-before"),
        pytest.param("a\n", "name", id="newline-after"),
        pytest.param("a\nb", "naming rules", id="two-lines"),
        pytest.param("a\0", "Delete", id="nul"),
        pytest.param("\ud800", "naming rules", id="surrogate"),
        pytest.param("n" * 65, "Shorten", id="too-long"),
        pytest.param("½", "naming rules", id="no-digit"),
    ],
)
def test_a_name_that_breaks_the_rules_is_refused(name: str, word: str) -> None:
    """A name is refused in words that say what to do."""
    with pytest.raises(SkillFormatError, match=word):
        generate_skill_md(name, "Does it.")


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        pytest.param({"name": "demo"}, "Pass name as argument", id="name-given-twice"),
        pytest.param({"name": "a", "description": None}, "name and description", id="both-given-twice"),
        pytest.param({"license": b"MIT"}, "license is a bytes", id="bytes"),
        pytest.param({"metadata": {"key": bytearray(b"x")}}, "key is a bytearray", id="bytes-inside"),
        pytest.param({"x": {1, 2}}, "x is a set", id="set"),
        pytest.param({"x": object()}, "x is a object", id="object"),
        pytest.param({"license": ["MIT"]}, "`license`", id="list-for-text"),
        pytest.param({"license": "a\0"}, "Delete them", id="control-character"),
        pytest.param({"metadata": {"a\u202e": "b"}}, "Delete them", id="bidirectional-override-in-key"),
        pytest.param({"compatibility": "c" * 501}, "Shorten", id="long-compatibility"),
        pytest.param({"compatibility": "c" + " " * 500}, "Shorten", id="long-compatibility-by-blanks"),
        pytest.param({"metadata": "text"}, "not a mapping", id="metadata-text"),
        pytest.param({"metadata": {"a": ["b"]}}, "Metadata values must be text", id="metadata-list"),
        pytest.param({"allowed-tools": {"a": "b"}}, "allowed-tools", id="tools-mapping"),
        pytest.param({"x": "y" * 70_000}, "65536", id="frontmatter-too-large"),
    ],
)
def test_a_field_that_cannot_be_written_is_refused(fields: dict[str, object], word: str) -> None:
    """A field that breaks the rules, or would not read back, is refused in words that name it or say what to do."""
    with pytest.raises(SkillFormatError, match=word):
        generate_skill_md("demo", "Does it.", additional_fields=fields)


def nested(depth: int) -> object:
    return "a" if depth == 0 else [nested(depth - 1)]


def test_a_field_that_nests_too_deep_is_refused() -> None:
    """What would not read back because it nests too deep is not written."""
    with pytest.raises(SkillFormatError, match="too deep"):
        generate_skill_md("demo", "Does it.", additional_fields={"x": nested(30)})


@pytest.mark.parametrize(
    ("body", "word"),
    [pytest.param("a\ud800", "UTF-8", id="surrogate"), pytest.param("x" * 10 * 1024 * 1024, "bytes", id="too-large")],
)
def test_a_body_that_cannot_be_written_is_refused(body: str, word: str) -> None:
    """A body that no file can hold, or that no reader takes, is refused."""
    with pytest.raises(SkillFormatError, match=word):
        generate_skill_md("demo", "Does it.", body)


def test_the_file_is_written_as_a_person_would_write_it() -> None:
    """Plain values are written plainly, others in quotes; lists and mappings one item a line; empty ones not at all."""
    fields = {
        "license": "MIT",
        "compatibility": "Needs: network",
        "metadata": {"version": 1.5, "released": dt.date(2025, 1, 31), "stable": True, "draft": None},
        "allowed-tools": ["Read", "Bash(git add:*)"],
        "tags": [],
        "extra": {},
    }
    assert generate_skill_md("demo", "Does it, and more.", "# Title\n", fields) == (
        "---\n"
        "name: demo\n"
        "description: Does it, and more.\n"
        "license: MIT\n"
        'compatibility: "Needs: network"\n'
        "metadata:\n"
        '  version: "1.5"\n'
        '  released: "2025-01-31"\n'
        '  stable: "true"\n'
        "allowed-tools:\n"
        "  - Read\n"
        '  - "Bash(git add:*)"\n'
        "---\n"
        "# Title\n"
    )


def test_further_fields_are_all_that_validation_minds() -> None:
    """With a field that the specification does not know, that field is the one thing `validate_skill` reports."""
    text = generate_skill_md("demo", "Does it.", additional_fields={"version": "1.0", "license": "MIT"})
    assert [problem["code"] for problem in validate_skill(text, path="/skills/demo/SKILL.md")] == ["unknown-field"]


@pytest.mark.parametrize(
    ("name", "description"),
    [
        pytest.param("demo", "Does it.", id="plain"),
        pytest.param("周报", "---\n# [每周] {报告}: 'a' \"b\"", id="special-characters"),
        pytest.param("on", "null", id="words-of-yaml"),
    ],
)
def test_a_written_skill_passes_the_reference_validator_on_disk(tmp_path: Path, name: str, description: str) -> None:
    """Written into its directory, the file passes the reference validator as a user would run it."""
    directory = tmp_path / name
    directory.mkdir()
    (directory / "SKILL.md").write_text(generate_skill_md(name, description, "Body.\n"), encoding="utf-8")
    assert validate(directory) == []
