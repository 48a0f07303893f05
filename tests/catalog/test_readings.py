"""What is remembered of files: one parse per content, and no more frontmatter than is acted on."""

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


def test_only_frontmatter_that_is_acted_on_is_kept() -> None:
    """Keys of the library and of extensions are kept; others are not."""
    text = "---\nname: a\ndescription: Does.\nargument-hint: '[env]'\nmodel: small\nother: text\n---\n"
    assert dict(Readings().read(PATH, text.encode()).frontmatter) == {"argument-hint": "[env]"}
    assert dict(Readings(["model"]).read(PATH, text.encode()).frontmatter) == {
        "argument-hint": "[env]",
        "model": "small",
    }


def test_a_key_that_is_too_large_is_left_out_with_a_problem() -> None:
    """Ten thousand hostile files cannot fill the catalog: the largest keys go first, and each is named."""
    huge = "x" * (MAX_KEPT_CHARACTERS + 1)
    text = f"---\nname: a\ndescription: Does.\nargument-hint: {huge}\nwhen_to_use: Always.\n---\n"
    reading = Readings().read(PATH, text.encode())
    assert dict(reading.frontmatter) == {"when_to_use": "Always."}
    assert [(p["code"], "argument-hint" in p["message"]) for p in reading.problems] == [
        ("frontmatter-key-too-large", True)
    ]
