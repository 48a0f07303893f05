"""Agreement with the specification's reference validator: what passes here, passes there."""

import random
from pathlib import Path

import pytest
from skills_ref import validate
from skills_ref.parser import parse_frontmatter
from skills_ref.validator import validate_metadata

from deepskills import read_skill, validate_skill
from support import scaled

DIRECTORY = Path("/skills/demo")
PATH = str(DIRECTORY / "SKILL.md")
REQUIRED = "name: demo\ndescription: Does it.\n"

SEED = 20_250_101
FILES = scaled(3_000, 30_000)
LEAST_PASSED = FILES // 10

OPTIONAL = [
    "license: MIT\n",
    "license: ~\n",
    "license: <<\n",
    "license: 'it''s\n\n  free'\n",
    'license: "a\\\n  b"\n',
    "compatibility: Needs network.\n",
    "compatibility:\n",
    f"compatibility: {'c' * 500}\n",
    "metadata:\n  a: b\n",
    'metadata:\n    a: b\n    c: "d"\n',
    "metadata:\n\n  # note\n  'x y': z # note\n",
    "metadata:\n  1: 2025-02-30\n  true: no\n  e: =\n",
    "metadata:\n  <<: x\n",
    "metadata:\n  a:\n    - b\n",
    "metadata:\n  - a\n",
    "metadata:\n",
    "allowed-tools: Read Bash(git:*)\n",
    "allowed-tools:\n  - Read\n  - Write\n",
    "allowed-tools:\n- Read\n",
    "license: &a MIT\n",
    "license: *a\n",
    "license: !!str MIT\n",
    "license: [MIT]\n",
    "metadata: {a: b}\n",
    "license: a --- b\n",
    "license: a: b\n",
    "version: 1.0\n",
    "? license\n: MIT\n",
    "license: # why\n  MIT\n\n",
    "license: # why\n\n  'MIT'\n\n",
    "license: | # why\n  MIT\n",
    "license: |# why\n  MIT\n",
    "metadata: # why\n  a: b # so\n\n",
    "# a comment\n",
    "\n",
    "  \n",
]
NAMES = ["name: demo\n", '"name": demo\n', "name: 'demo'\n", 'name: " demo "\n', "name: Demo\n", "name: other\n", ""]
DESCRIPTIONS = [
    "description: Does it.\n",
    "description: |\n  Does\n  it.\n",
    "description: >-\n  Does\n\n  it.\n\n",
    "description:\n  Does\n  it.\n",
    "description: 周报 🎉 – “quoted”\n",
    f"description: {'d' * 1024}\n",
    f"description: {'d' * 1025}\n",
    "description:\n",
    "",
]
INSERTED = [*"ab1:#-?,[]{}&*!|>'\"%@`=~<\\. \t\n\ré中\u2028\x85\xa0\ufeff\u200b\0", ": ", " #", "- "]
FENCES = ["---\n"] * 12 + ["--- \n", "---\t\n", "----\n", "\n---\n", "\ufeff---\n"]
ENDINGS = ["---\n", "---", "--- \nBody.", "---\nBody.\n", "---\n\n---\n"]


def generated(rng: random.Random) -> str:
    """Return a file put together from right and wrong pieces, with a few characters put in or taken out."""
    pieces = [rng.choice(NAMES[: rng.choice([1, 4, 7])]), rng.choice(DESCRIPTIONS[: rng.choice([1, 6, 9])])]
    pieces += rng.sample(OPTIONAL, rng.randint(0, 4))
    if rng.random() < 0.3:
        rng.shuffle(pieces)
    characters = list("".join(pieces))
    for _ in range(rng.choice([0, 0, 0, 1, 1, 2, 3])):
        place = rng.randint(0, len(characters))
        if rng.random() < 0.7:
            characters.insert(place, rng.choice(INSERTED))
        else:
            del characters[place : place + 1]
    text = rng.choice(FENCES) + "".join(characters) + rng.choice(ENDINGS)
    return text.replace("\n", "\r\n") if rng.random() < 0.05 else text


def reference_refusals(text: str, directory: Path = DIRECTORY) -> list[str]:
    """Return what the reference validator says of a file that holds `text`."""
    as_read_from_disk = text.replace("\r\n", "\n").replace("\r", "\n")
    try:
        metadata, _ = parse_frontmatter(as_read_from_disk)
    except Exception as error:  # noqa: BLE001 - its YAML library crashes on some files, which is not a pass either
        return [f"{type(error).__name__}: {error}"]
    return list(validate_metadata(metadata, directory))


def test_what_passes_here_passes_there() -> None:
    """No file out of thousands passes `validate_skill` and fails the reference validator."""
    rng = random.Random(SEED)
    passed = [text for text in (generated(rng) for _ in range(FILES)) if not validate_skill(text, path=PATH)]
    assert len(passed) >= LEAST_PASSED
    assert {text: refusals for text in passed if (refusals := reference_refusals(text))} == {}


@pytest.mark.parametrize(
    ("code", "content"),
    [
        pytest.param("byte-order-mark", f"\ufeff---\n{REQUIRED}---\n", id="byte-order-mark"),
        pytest.param("tab-in-frontmatter", f"---\t\n{REQUIRED}---\n", id="tab-behind-fence"),
        pytest.param("tab-in-frontmatter", f"---\n{REQUIRED}license:\tMIT\n---\n", id="tab-behind-colon"),
        pytest.param("flow-style", f"---\n{REQUIRED}allowed-tools: [Read]\n---\n", id="flow-list"),
        pytest.param("flow-style", f"---\n{REQUIRED}metadata: {{a: b}}\n---\n", id="flow-mapping"),
        pytest.param("flow-style", f"---\n{REQUIRED}metadata: {{}}\n---\n", id="empty-flow-mapping"),
        pytest.param("dashes-in-frontmatter", f"---\n{REQUIRED}license: 'a --- b: c'\n---\n", id="dashes-in-value"),
        pytest.param("dashes-in-frontmatter", f"---\n# ---\n{REQUIRED}---\n", id="dashes-in-comment"),
        pytest.param("unknown-field", f"---\n{REQUIRED}version: 1.0\n---\n", id="unknown-field"),
        pytest.param("line-separator", f"---\n{REQUIRED}license: |\n  a\u2028 \n  b\n---\n", id="line-separator"),
        pytest.param("line-separator", f"---\n{REQUIRED}license: |\n \u2029 a\n  b\n---\n", id="paragraph-separator"),
    ],
)
def test_what_is_strict_here_is_refused_there(code: str, content: str) -> None:
    """Each finding of the strict reading alone stands for a file that the reference validator refuses."""
    assert read_skill(content, path=PATH).problems == []
    assert [problem["code"] for problem in validate_skill(content, path=PATH)] == [code]
    assert reference_refusals(content)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param("license: |# why\n  MIT\n", id="comment-touches-block-indicator"),
        pytest.param("license: >-# why\n  MIT\n", id="comment-touches-chomping-indicator"),
        pytest.param("allowed-tools:\n  - |# why\n    Read\n", id="comment-touches-indicator-of-an-item"),
        pytest.param("license: # why\n  MIT\n\n", id="comment-and-blank-line-around-text"),
        pytest.param("license: # why\n  |\n  MIT\n\n", id="comment-and-blank-line-around-block"),
        pytest.param("metadata:\n  a: # why\n    b\n\n", id="comment-and-blank-line-around-metadata-value"),
    ],
)
def test_comments_that_the_reference_validator_stumbles_on_are_refused(fields: str) -> None:
    """A comment that YAML allows and the reference validator cannot read is an error here too."""
    content = f"---\n{REQUIRED}{fields}---\n"
    assert reference_refusals(content)
    assert validate_skill(content, path=PATH)
    assert read_skill(content, path=PATH).problems == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("demo", f"---\n{REQUIRED}---\n", id="required-fields"),
        pytest.param("demo", f"---\n{REQUIRED}---\n".replace("\n", "\r\n"), id="crlf"),
        pytest.param("demo", f"---  \n{REQUIRED}--- ", id="spaces-after-fences"),
        pytest.param("周报-١", "---\nname: 周报-١\ndescription: 每周 🎉\n---\n", id="any-script"),
        pytest.param("n" * 64, f"---\nname: {'n' * 64}\ndescription: {'d' * 1024}\n---\n", id="longest"),
        pytest.param(
            "demo",
            f"---\n{REQUIRED}license: MIT\ncompatibility: {'c' * 500}\nmetadata:\n  version: 1.10\n  author: 'A: B'\n"
            "allowed-tools: Bash(git add:*) Read\n---\n# Title\n\n---\n[a]\n",
            id="every-field",
        ),
    ],
)
def test_both_pass_a_skill_on_disk(tmp_path: Path, name: str, content: str) -> None:
    """A skill directory that keeps the specification passes both validators."""
    path = tmp_path / name / "SKILL.md"
    path.parent.mkdir()
    path.write_bytes(content.encode())
    assert validate_skill(path.read_bytes(), path=path.as_posix()) == []
    assert validate(path.parent) == []
