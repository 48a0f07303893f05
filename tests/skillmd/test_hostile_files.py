"""Hostile files: whatever comes in, reading never raises, stays fast and small, and hands on clean text."""

import functools
import gc
import itertools
import json
import re
import time
import tracemalloc
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from deepskills import SkillFormatError, SkillReading, parse_skill_md, read_skill, validate_skill
from support import scaled
from support.problems import SEVERITIES

repeatable = settings(
    deadline=None,
    derandomize=True,
    max_examples=scaled(200, 2_000),
    suppress_health_check=[HealthCheck.too_slow],
)

PATH = "/skills/demo/SKILL.md"
REQUIRED = "name: demo\ndescription: Does it.\n"

MAX_RATIO = 8.0
"""How much dearer than plain frontmatter of full size a file may be: 0.3 s where that takes 0.04 s."""
MAX_GROWTH = 3.5
"""How much dearer twice the input may be: two, and room for noise."""
MEASURABLE_SECONDS = 0.005
"""What a reading must take for its growth to be told from noise."""
SECONDS_PER_FRESH_BYTE = 5e-9
"""What the system may take for memory that it hands out again, as it does for the largest files alone."""

WHOLE_FILE = 10 * 1024 * 1024
FRONTMATTER = 60_000
"""Characters of frontmatter that leave room for the required fields."""

FORBIDDEN = re.compile("[\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")


def is_clean(text: str) -> bool:
    """Whether `text` holds no control (save tab and newline), bidirectional, tag or surrogate character."""
    return not FORBIDDEN.search(text) and not any(
        unicodedata.category(character) in ("Cc", "Cs") and character not in "\t\n" for character in set(text)
    )


def texts_of(reading: SkillReading) -> Iterator[str]:
    """Yield every text that a skill's author has put into the metadata."""
    if reading.metadata is not None:
        metadata = reading.metadata
        yield from (metadata["name"], metadata["description"], metadata["license"] or "")
        yield metadata["compatibility"] or ""
        yield from metadata["allowed_tools"]
        for key, value in metadata["metadata"].items():
            yield from (key, value)


def check_reading(content: bytes | str, path: str = PATH) -> SkillReading:
    """Read `content` and check all that holds for any reading."""
    reading = read_skill(content, path=path)
    check_what_was_read(reading, content, path)
    return reading


def check_what_was_read(reading: SkillReading, content: bytes | str, path: str = PATH) -> None:
    """Check all that holds for the reading of any file."""
    for problem in reading.problems:
        assert problem["path"] == path
        assert problem["severity"] == SEVERITIES[problem["code"]]
        assert problem["message"].splitlines() == [problem["message"]]
        assert is_clean(problem["message"])
        assert len(problem["message"]) < 1500
    codes = [problem["code"] for problem in reading.problems]
    assert len(codes) == len(set(codes))
    assert (reading.metadata is None) == any(problem["severity"] == "error" for problem in reading.problems)
    assert all(map(is_clean, texts_of(reading)))
    if reading.metadata is not None:
        assert reading.metadata["path"] == path
        name = reading.metadata["name"]
        assert name.splitlines() == [name]
        assert 1 <= len(name) <= 128
        assert 1 <= len(reading.metadata["description"]) <= 1024
        assert len(reading.metadata["compatibility"] or "") <= 500
        assert all(reading.metadata["allowed_tools"])
    if isinstance(content, str):
        assert content.endswith(reading.body)
    strict = validate_skill(content, path=path)
    assert {problem["severity"] for problem in strict} <= {"error"}
    assert [problem["code"] for problem in strict][: len(codes)] == codes


any_text = st.text(st.characters(exclude_categories=[]))
fragments = st.sampled_from(
    [
        *"-?:,[]{}#&*!|>'\"%@`<=~.\\\n\n\n\t \r\0a1éÉ周",
        *(
            "---\n",
            "---",
            "...\n",
            "\n  ",
            "\n- ",
            ": ",
            " #",
            "<<: ",
            "&a ",
            "*a",
            "!!str ",
            "!%ed%a0%80 ",
            "!<%ff>",
            "%TAG ! a\n",
        ),
        *(
            "name: ",
            "name: demo\n",
            "description: ",
            "description: d\n",
            "license: ",
            "compatibility: ",
            "allowed-tools: ",
        ),
        *(
            "metadata:\n",
            "  a: b\n",
            "k: a: b\n",
            "? ",
            "null\n",
            "|\n",
            ">-\n",
            "\\x1b",
            '"\\ud800"',
            '"\\U000E0041"',
            "\\N",
        ),
        *("\ud800", "\udc00", "\u202e", "\u2066", "\U000e0041", "\ufeff", "\u2028", "\x85", "\x7f", "\u0301", "\u200b"),
        *("[" * 40, "- " * 40, "x" * 200, "<!--", "-->"),
    ]
)
yaml_like = st.lists(fragments, max_size=25).map("".join)
framed_text = st.one_of(yaml_like, any_text).map(lambda text: f"---\n{text}\n---\nBody.")
framed_fields = yaml_like.map(lambda text: f"---\n{REQUIRED}license: {text}\n---\n")
framed_name = any_text.map(lambda text: f"---\nname: {json.dumps(text)}\ndescription: d\n---\n")

encoded_text = st.builds(
    lambda text, encoding: text.encode(encoding, "replace"),
    framed_text,
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32", "latin-1"]),
)


@repeatable
@given(st.one_of(st.binary(), st.binary().map(lambda raw: b"---\n" + raw + b"\n---\n"), encoded_text))
def test_any_bytes_are_read(content: bytes) -> None:
    """Any bytes give a reading, never an exception."""
    check_reading(content)


@repeatable
@given(st.one_of(any_text, yaml_like, framed_text, framed_fields, framed_name))
@example("---\nname: !%ed%a0%80 demo\ndescription: d\n---\n")
@example("---\nname: demo\ndescription: !<%c0%80> d\n---\n")
@example('---\nname: "a\\u2028\\u0085b"\ndescription: "\\ud83d\\ude00"\n---\n')
def test_any_text_is_read(content: str) -> None:
    """Any text gives a reading, never an exception, and what is handed on is clean."""
    check_reading(content)


@repeatable
@given(st.one_of(framed_text, framed_fields))
def test_any_text_is_parsed_or_refused(content: str) -> None:
    """Parsing gives what reading gives, or raises `SkillFormatError` and nothing else."""
    reading = read_skill(content, path=PATH)
    refused = {problem["code"] for problem in reading.problems if problem["severity"] == "error"}
    if refused <= {"description-missing"}:
        assert parse_skill_md(content) == (reading.frontmatter, reading.body)
    else:
        with pytest.raises(SkillFormatError):
            parse_skill_md(content)


@repeatable
@given(any_text, st.sampled_from(["", "name: demo\n"]))
@example("", "")
@example("..", "")
@example("/skills/a\nb\u202e\ud800/SKILL.md", "")
def test_any_path_is_taken(path: str, name: str) -> None:
    """Any path will do: a name taken from it is clean, one line and bounded."""
    check_reading(f"---\n{name}description: d\n---\n", path)


@repeatable
@given(st.one_of(any_text, yaml_like))
def test_body_is_any_text(body: str) -> None:
    """Whatever stands below the frontmatter is the body, to the letter, and no problem."""
    reading = read_skill(f"---\n{REQUIRED}---\n{body}", path=PATH)
    assert reading.body == body
    assert reading.problems == []


@dataclass(frozen=True)
class Attack:
    """A file that grows with `size`, and the codes its reading must name."""

    build: Callable[[int], bytes | str]
    size: int = FRONTMATTER
    codes: tuple[str, ...] = ()


def fill(pattern: str, size: int) -> str:
    return pattern * (size // len(pattern))


def fields(text: str) -> str:
    return f"---\n{REQUIRED}{text}\n---\nBody.\n"


def named(name: str) -> str:
    return f"---\nname: {name}\ndescription: d\n---\n"


def fits(line: Callable[[int], str], size: int) -> str:
    """Return as many numbered lines as `size` characters hold."""
    lengths = itertools.accumulate(len(line(i)) for i in itertools.count())
    return "".join(line(i) for i, _ in enumerate(itertools.takewhile(lambda length: length <= size, lengths)))


def laughs(size: int) -> str:
    """Return lists that each repeat the one before, nine times."""
    return "x0: &x0 [ha, ha]\n" + fits(lambda i: f"x{i + 1}: &x{i + 1} [{', '.join([f'*x{i}'] * 9)}]\n", size)


def nested_keys(size: int, levels: int, pattern: str) -> str:
    """Return mappings in mappings with a value that breaks behind much that does not."""
    opening = "".join(f"{' ' * i}k:\n" for i in range(levels))
    indent = " " * levels
    return f"{opening}{indent}z: [{fill(pattern, size - 500)}]\n{indent}y: a: b"


ATTACKS = {
    # Around the frontmatter.
    "newlines-after-fence": Attack(lambda n: "---\n" + "\n" * (n - 4), WHOLE_FILE, ("frontmatter-too-large",)),
    "16000-newlines-after-fence": Attack(lambda n: "---\n" + "\n" * n, 16_000, ("frontmatter-unclosed",)),
    "newlines-before-fence": Attack(lambda n: "\n" * (n - 100) + fields(""), WHOLE_FILE, ("text-before-frontmatter",)),
    "wide-blanks-before-fence": Attack(lambda n: ("\u2003" * (n // 3)).encode(), WHOLE_FILE, ("no-frontmatter",)),
    "control-characters-before-fence": Attack(lambda n: b"\0" * n, WHOLE_FILE, ("no-frontmatter",)),
    "control-characters-behind-fence": Attack(lambda n: b"---" + b"\0" * n, WHOLE_FILE - 3, ("frontmatter-unclosed",)),
    "control-characters-behind-many-fences": Attack(
        lambda n: "---\n" + fill(f"---{chr(0) * 200}x\n", n), WHOLE_FILE - 4, ("frontmatter-too-large",)
    ),
    "keys-behind-tabs": Attack(lambda n: fields(fits(lambda i: f"\tk{i}: v\n", n)), FRONTMATTER, ("yaml-repaired",)),
    "keys-behind-tabs-below-a-long-value": Attack(
        lambda n: fields('k: "' + "x" * (n // 2) + "\n" + fill("\ta: b\n", n // 2)), FRONTMATTER, ("yaml-repaired",)
    ),
    "comments-before-fence": Attack(lambda n: fill("<!---->", n), WHOLE_FILE, ("no-frontmatter",)),
    "open-comments-before-fence": Attack(lambda n: fill("<!--", n), WHOLE_FILE, ("no-frontmatter",)),
    "one-comment-before-fence": Attack(
        lambda n: f"<!--{'-' * (n - 100)}-->" + fields(""), WHOLE_FILE, ("text-before-frontmatter",)
    ),
    "blanks-behind-opening-fence": Attack(lambda n: f"---{' ' * (n - 4)}x", WHOLE_FILE, ("no-frontmatter",)),
    "blanks-behind-closing-fence": Attack(
        lambda n: f"---\n{REQUIRED}---{' ' * (n - 100)}x", WHOLE_FILE, ("frontmatter-too-large",)
    ),
    "no-fences": Attack(lambda n: "---\n" + fill("\n---x", n - 4), WHOLE_FILE, ("frontmatter-too-large",)),
    "indented-fences": Attack(lambda n: "---\n" + fill("\n ---", n - 4), WHOLE_FILE, ("frontmatter-too-large",)),
    "blank-fences": Attack(lambda n: "---\n" + fill("\n---     x", n - 4), WHOLE_FILE, ("frontmatter-too-large",)),
    "fences": Attack(lambda n: fill("---\n", n), WHOLE_FILE, ("description-missing",)),
    "dashes": Attack(lambda n: "-" * n, WHOLE_FILE, ("no-frontmatter",)),
    "one-line": Attack(lambda n: "---\nname: " + "a" * (n - 10), WHOLE_FILE, ("frontmatter-too-large",)),
    "one-line-of-body": Attack(lambda n: fields("") + "a" * (n - 100), WHOLE_FILE),
    "carriage-returns": Attack(lambda n: "---\r" + "\r" * (n - 4), WHOLE_FILE, ("frontmatter-too-large",)),
    "utf-16": Attack(lambda n: (fields("") + "周" * (n // 2 - 100)).encode("utf-16"), WHOLE_FILE, ("encoding-utf16",)),
    "one-wide-character": Attack(lambda n: (fields("") + "a" * (n - 100) + "周").encode(), WHOLE_FILE),
    "surrogates-in-text": Attack(lambda n: fields("") + "\ud800" * (n // 3 - 100), WHOLE_FILE),
    "bytes-that-are-no-text": Attack(lambda n: b"\xff" * n, WHOLE_FILE, ("not-text",)),
    # Aliases, tags and merge keys.
    "laughs-in-name": Attack(
        lambda n: f"---\n{laughs(n)}name: *x9\ndescription: d\n---\n", codes=("yaml-alias", "name-invalid")
    ),
    "laughs-in-description": Attack(
        lambda n: f"---\n{laughs(n)}name: demo\ndescription: *x9\n---\n", codes=("yaml-alias",)
    ),
    "laughs-in-metadata": Attack(
        lambda n: fields("metadata:\n  " + laughs(n * 9 // 10).replace("\n", "\n  ")),
        codes=("yaml-alias", "metadata-value-not-text"),
    ),
    "aliases": Attack(lambda n: fields("x: &a [b]\ny: [" + fill("*a,", n) + "]"), codes=("yaml-alias",)),
    "anchors": Attack(lambda n: fields(fits(lambda i: f"k{i}: &a{i} b\n", n)), codes=("yaml-alias",)),
    "merge-keys": Attack(lambda n: fields("x: &a\n  b: c\n" + fill("<<: *a\n", n)), codes=("yaml-alias",)),
    "tags": Attack(lambda n: fields("x: [" + fill("!!python/name:os.system ,", n) + "]"), codes=("yaml-tag",)),
    # Nesting.
    "100000-flow-lists": Attack(lambda n: fields("x: " + "[" * n), 100_000, ("frontmatter-too-large",)),
    "100000-block-lists": Attack(lambda n: fields("x:\n" + "- " * n), 100_000, ("frontmatter-too-large",)),
    "flow-lists": Attack(lambda n: fields("x: " + "[" * n), codes=("yaml-too-deep",)),
    "flow-lists-closed": Attack(lambda n: fields(f"x: {'[' * (n // 2)}{']' * (n // 2)}"), codes=("yaml-too-deep",)),
    "flow-mappings": Attack(lambda n: fields("x: " + fill("{a: ", n)), codes=("yaml-too-deep",)),
    "flow-keys": Attack(lambda n: fields("x: " + fill("[? ", n)), codes=("yaml-too-deep",)),
    "block-lists": Attack(lambda n: fields("x:\n" + fill("- ", n)), codes=("yaml-too-deep",)),
    "block-keys": Attack(lambda n: fields("x:\n " + fill("? ", n)), codes=("yaml-too-deep",)),
    "block-mappings": Attack(
        lambda n: fields("".join(f"{' ' * i}k:\n" for i in range(int((2 * n) ** 0.5) - 3))), codes=("yaml-too-deep",)
    ),
    "flow-lists-alone": Attack(lambda n: f"---\n{'[' * n}\n---\n", codes=("yaml-unreadable",)),
    "deep-and-broken": Attack(lambda n: fields(nested_keys(n, 10, "[],")), codes=("yaml-repaired",)),
    "deep-and-broken-texts": Attack(lambda n: fields(nested_keys(n, 13, "a,")), codes=("yaml-repaired",)),
    "deep-and-broken-mappings": Attack(lambda n: fields(nested_keys(n, 5, "{},")), codes=("yaml-repaired",)),
    # Many keys, many broken values.
    "keys": Attack(lambda n: fields(fits(lambda i: f"k{i}:\n", n))),
    "keys-and-one-broken-value": Attack(lambda n: fields(fill("a:\n", n) + "b: c: d"), codes=("yaml-duplicate-key",)),
    "distinct-keys-and-one-broken-value": Attack(
        lambda n: fields(fits(lambda i: f"k{i}: v\n", n) + "b: c: d"), codes=("yaml-repaired",)
    ),
    "broken-values": Attack(lambda n: fields(fits(lambda i: f"k{i}: a: b\n", n)), codes=("yaml-repaired",)),
    "broken-values-and-brackets": Attack(
        lambda n: fields(fits(lambda i: f"k{i}: {'[' * 14}{'],[' * 200}\n", n)), codes=("yaml-repaired",)
    ),
    "broken-values-and-lists": Attack(
        lambda n: fields(fits(lambda i: f"k{i}: [{'a,' * 1000}\n", n)), codes=("yaml-repaired",)
    ),
    "lines-of-no-key": Attack(lambda n: f"---\n{fill('@ @' + chr(10), n)}{REQUIRED}---\n", codes=("yaml-line-lost",)),
    "unclosed-quotes": Attack(lambda n: fields(fits(lambda i: f"k{i}: '\n", n))),
    "explicit-keys": Attack(lambda n: fields(fill("?\n", n))),
    "documents": Attack(lambda n: fields(fill("--- a\n", n)), codes=("yaml-repaired",)),
    # Long values.
    "huge-integer": Attack(lambda n: fields("license: " + "9" * n)),
    "huge-integer-in-name": Attack(lambda n: named("9" * n), codes=("name-too-long",)),
    "marks-in-name": Attack(lambda n: named("a" + "\u0301\u0316" * (n // 4)), codes=("name-too-long",)),
    "marks-in-description": Attack(lambda n: named("demo").replace("d\n", "a" + "\u0301\u0316" * (n // 4) + "\n")),
    "ligatures-in-name": Attack(lambda n: named("\ufdfa" * (n // 3)), codes=("name-too-long",)),
    "parentheses-in-tools": Attack(lambda n: fields("allowed-tools: " + "(" * n)),
    "pairs-of-parentheses-in-tools": Attack(lambda n: fields("allowed-tools: " + fill("() ", n))),
    "commas-in-tools": Attack(lambda n: fields("allowed-tools: a" + "," * n)),
    "nul": Attack(lambda n: fields("license: " + "\0" * n), codes=("control-characters",)),
    "surrogates": Attack(lambda n: fields("license: " + "\ud800" * (n // 3)), codes=("control-characters",)),
    "escapes": Attack(lambda n: fields(f'license: "{fill(chr(92) + "0", n)}"'), codes=("control-characters",)),
    "comments": Attack(lambda n: fields(fill("#\n", n))),
    "blank-lines-in-block": Attack(lambda n: fields("license: |\n  a" + "\n" * n + "  b")),
}


def seconds_to_read(content: bytes | str, rounds: int = 3) -> float:
    """Return the CPU time of the fastest of `rounds` readings; what else the process holds is not collected in them."""
    times = []
    gc.disable()
    try:
        for _ in range(rounds):
            started = time.process_time()
            read_skill(content, path=PATH)
            times.append(time.process_time() - started)
    finally:
        gc.enable()
    return min(times)


def is_slow(content: bytes | str, size: int = FRONTMATTER) -> bool:
    """Whether a reading takes longer than it may, beside plain frontmatter of this size read in the same moment."""
    if seconds_to_read(content, 1) <= MAX_RATIO * plain_seconds(size):
        return False
    plain_seconds.cache_clear()
    return seconds_to_read(content, 5) > MAX_RATIO * plain_seconds(size)


@functools.cache
def plain_seconds(size: int) -> float:
    return seconds_to_read(fields(fill("a: b\n", size)))


def read_with_peak(content: bytes | str) -> tuple[SkillReading, int]:
    """Return a reading, and the most memory that it took."""
    tracemalloc.start()
    try:
        reading = read_skill(content, path=PATH)
        return reading, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_are_read_like_any_file_and_cost_little(name: str) -> None:
    """An attack gives a reading that says what was wrong, and costs little.

    What is handed on is not much larger than the file, and memory is in proportion to it. No file takes much longer
    than plain frontmatter does, and twice the file takes about twice the time.
    """
    attack = ATTACKS[name]
    content = attack.build(attack.size)

    reading, peak = read_with_peak(content)
    check_what_was_read(reading, content)
    assert {problem["code"] for problem in reading.problems} >= set(attack.codes)
    handed_on = json.dumps([reading.metadata, reading.frontmatter], ensure_ascii=False)
    assert len(handed_on) < 6 * len(content) + 1000, "what is handed on is too large"
    size = len(content) if isinstance(content, bytes) else len(content.encode("utf-8", "surrogatepass"))
    assert peak < 8 * size + 5_000_000, "too much memory"

    seconds = seconds_to_read(content, 1)
    assert seconds <= MAX_RATIO * plain_seconds(FRONTMATTER) or not is_slow(content), "too slow"
    if seconds > MEASURABLE_SECONDS:
        half = attack.build(attack.size // 2)
        fresh_memory = attack.size * SECONDS_PER_FRESH_BYTE
        if seconds > MAX_GROWTH * seconds_to_read(half, 1) + fresh_memory:
            assert seconds_to_read(content, 9) < MAX_GROWTH * seconds_to_read(half, 9) + fresh_memory, "not linear"


def test_no_repeated_pattern_is_slow() -> None:
    """No pattern of one or two of YAML's special characters, filling the frontmatter, takes long to read."""
    special = "-?:,[]{}#&*!|>'\"%@`<=~.\\ \t\na"
    slow = []
    size = FRONTMATTER // scaled(4, 1)
    for length, (opening, closing) in itertools.product((1, 2), (("", ""), ("k: ", "\nz: a: b"))):
        for characters in itertools.product(special, repeat=length):
            content = fields(opening + fill("".join(characters), size) + closing)
            if is_slow(content, size):
                slow.append(opening + "".join(characters))
    assert slow == []


@pytest.mark.parametrize(
    "tagged",
    [
        pytest.param("!!python/object/apply:os.system ['touch {file}']", id="call"),
        pytest.param("!!python/object/apply:pathlib.Path.touch [{file}]", id="call-by-path"),
        pytest.param("!!python/object/new:subprocess.Popen [['touch', '{file}']]", id="new"),
        pytest.param("!!python/object/apply:builtins.open ['{file}', 'w']", id="open"),
    ],
)
def test_tags_never_construct(tmp_path: Path, tagged: str) -> None:
    """A tag that asks for an object is ignored, wherever it stands: nothing is called."""
    file = tmp_path / "made"
    value = tagged.format(file=file)
    for text in (
        f"license: {value}",
        f"metadata:\n  a: {value}",
        f"? {value}\n: b",
        f"name: {value}",
        f"x: {value}\ny: @",
    ):
        reading = check_reading(fields(text))
        assert "yaml-tag" in [problem["code"] for problem in reading.problems]
        assert not file.exists()


def test_aliases_are_never_expanded() -> None:
    """An alias stays the text that was written, in whatever field it stands."""
    reading = check_reading(
        f"---\n{laughs(2000)}name: *x9\ndescription: *x9\ncompatibility: *x9\nallowed-tools: *x9\n"
        "metadata:\n  a: *x9\n  <<: *x9\n---\n"
    )
    assert reading.metadata == {
        "path": PATH,
        "name": "*x9",
        "description": "*x9",
        "license": None,
        "compatibility": "*x9",
        "metadata": {"a": "*x9", "<<": "*x9"},
        "allowed_tools": ["*x9"],
    }
