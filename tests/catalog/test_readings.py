"""What is remembered of files: one parse per content, and the frontmatter within a bound."""

from deepskills import read_skill
from deepskills._catalog.catalog import MAX_KEPT_CHARACTERS, Readings, digest_of
from support import skill_md

PATH = "/skills/a/SKILL.md"


def test_a_file_is_parsed_once_per_content() -> None:
    """The same bytes at the same path give the same object; other bytes another."""
    readings = Readings()
    content = skill_md("a").encode()
    first = readings.read(PATH, content)
    assert readings.read(PATH, bytes(content)) is first
    assert readings.recall(PATH, digest_of(content)) is first
    assert readings.read(PATH, skill_md("a", "Other.").encode()) is not first
    assert readings.recall(PATH, "unknown") is None


def test_all_frontmatter_is_kept_as_read_and_held_once() -> None:
    """Every key is there, whoever acts on it; a text that the metadata has as well takes no room again."""
    text = "---\nname: a\ndescription: Does.\nlicense: MIT\nmodel: small\nother: [1, 2]\nempty:\n---\n"
    reading = Readings().read(PATH, text.encode())
    assert dict(reading.frontmatter) == read_skill(text, path=PATH).frontmatter
    assert reading.metadata is not None
    assert reading.frontmatter["description"] is reading.metadata["description"]


def test_a_key_that_is_too_large_is_left_out_with_a_problem() -> None:
    """Ten thousand hostile files cannot fill the catalog: the largest keys go first, and each is named."""
    huge = "x" * (MAX_KEPT_CHARACTERS + 1)
    text = f"---\nname: a\ndescription: Does.\nargument-hint: {huge}\nwhen_to_use: Always.\n---\n"
    reading = Readings().read(PATH, text.encode())
    assert dict(reading.frontmatter) == {"name": "a", "description": "Does.", "when_to_use": "Always."}
    assert [(p["code"], "argument-hint" in p["message"]) for p in reading.problems] == [
        ("frontmatter-key-too-large", True)
    ]
