"""Finding a skill by name, and what is near to a name that no skill has."""

from deepskills._catalog.catalog import Catalog
from deepskills._catalog.lookup import Unknown, explain_missing
from support.loads import entry_of as skill

FOUND = {
    "alpha": "alpha",
    "ALPHA": "alpha",
    "  alpha\n": "alpha",
    "**alpha**": "alpha",
    "`alpha`": "alpha",
    "beta-two": "beta-two",
    "Beta-Two": "Beta-Two",
    "BETA-TWO": "Beta-Two",
    "周报": "周报",
    "STRASSE": "straße",
    "alph": None,
    "alpha/SKILL.md": None,
    "/skills/alpha/SKILL.md": None,
    "": None,
}


def test_a_name_is_found_exactly_or_in_another_case() -> None:
    """The exact name wins, then the same name in another case or as it is shown; never a path or a part."""
    catalog = Catalog(skill(name) for name in ("alpha", "Beta-Two", "beta-two", "周报", "straße"))

    found = {asked: entry and entry.name for asked in FOUND for entry in [catalog.find(asked)]}

    assert found == FOUND


def test_an_unknown_name_is_answered_with_close_ones() -> None:
    """Names that are close come first; all others are still named as available."""
    names = ["web-research", "release-notes", "incident-review"]
    closest: dict[str, list[str]] = {
        "web-reserch": ["web-research"],
        "WEB-RESEARCH-TOOL": ["web-research"],
        "relese-note": ["release-notes"],
        "zzzzzz": [],
        "": [],
        "x" * 1_000_000: [],
    }
    for asked, expected in closest.items():
        assert explain_missing(names, [], asked) == Unknown(asked, expected, names)
