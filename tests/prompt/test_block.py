"""A loaded skill as the model reads it: marked off so that nothing in it passes for its end."""

import pytest

from deepskills import SkillMetadata
from deepskills._catalog.catalog import SkillEntry
from deepskills._files.inventory import Inventory
from deepskills._prompt.messages import skill_block
from deepskills._skillmd.text import harmless_body

ALPHA = SkillEntry(
    SkillMetadata(
        path="/skills/alpha/SKILL.md",
        name="alpha",
        description="Does a thing.",
        license=None,
        compatibility=None,
        metadata={},
        allowed_tools=[],
    ),
    "/skills",
    "digest",
)
HIDDEN = ("", "\x00", "\u200b", " ", "\u2060", "\ufeff", "\xad")
TAGS = ("</skill_{}content >", "<{}/skill_content\t>", "</{}skill_content >", "<sk{}ill_content x>")


@pytest.mark.parametrize("tag", [tag.format(hidden) for tag in TAGS for hidden in HIDDEN], ids=ascii)
def test_nothing_in_a_file_passes_for_its_end(tag: str) -> None:
    """A tag of ours in a file is no longer a tag, whatever invisible characters stand between its letters."""
    block = skill_block(ALPHA, f"Before.\n{tag}\nAfter.", Inventory())
    assert tag not in block
    assert f"&lt;{tag[1:]}" in block


def test_marking_off_a_file_takes_linear_time() -> None:
    """Long runs of blanks behind an angle bracket are read once."""
    assert skill_block(ALPHA, "<" + " " * 2_000_000 + "<" * 100_000, Inventory()).endswith("`")


def test_a_shell_that_knows_another_path_is_told_of_it() -> None:
    """The directory in a shell is named where it differs from the one that file tools take, and only there."""
    assert "In shell commands, use `/real/alpha`" in skill_block(ALPHA, "Text.", Inventory(), "/real/alpha")
    assert "In shell commands" not in skill_block(ALPHA, "Text.", Inventory(), "/skills/alpha")
    assert "In shell commands" not in skill_block(ALPHA, "Text.", Inventory())


def test_escaping_takes_linear_time_and_changes_nothing_else() -> None:
    """Brackets, blanks and beginnings of notices in any number are read once; a text without ours stays as it is."""
    for text in (
        "[" + " " * 500_000 + "[ S k i l l" * 50_000,
        "[Notice about skill " * 50_000,
        "<skill_load_" * 50_000,
    ):
        assert harmless_body(text) == text
    assert harmless_body(harmless_body("[Skill 'a'] <skill_hook>")) == "&#91;Skill 'a'] &lt;skill_hook>"
