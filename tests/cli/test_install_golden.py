"""What other installers wrote, byte for byte, and what is made of it. `golden/*/README.md` says how it was made."""

import json
import sys
from pathlib import Path

import pytest
from install_support import SKILLS, succeed

from support import write_files
from support.command_line import invoke

GOLDEN = Path(__file__).parent / "golden/npx-skills"

needs_exact_names = pytest.mark.skipif(
    sys.platform in {"win32", "darwin"}, reason="its file systems do not take all of these names"
)


def place(kind: str) -> None:
    """Lay out a project as the tool left it."""
    Path("skills-lock.json").write_bytes((GOLDEN / kind / "skills-lock.json").read_bytes())
    installed = json.loads((GOLDEN / kind / "installed.json").read_text(encoding="utf-8"))
    write_files(SKILLS, {path: content.encode("latin-1") for path, content in installed.items()})


def states() -> dict[str, str]:
    """Return what `doctor` says of each skill that the tool brought."""
    report = json.loads(invoke("doctor", "--json").stdout)
    return {row["skill"]: row["state"] for row in report["installed"] if row["installer"] == "npx skills"}


@needs_exact_names
def test_what_the_tool_installed_is_as_its_own_lock_says() -> None:
    """Its hash is computed again from 66 awkward names; where it left files out there is a warning and no more."""
    place("local")
    assert states() == {
        "awkward": "same",
        "plain": "same",
        "dropped": "differs",
        "linked": "differs",
        "umlaut": "not checkable",
    }
    found = succeed("verify", "--json")
    assert {(row["skill"], row["kind"], row["severity"]) for row in json.loads(found.stdout)} == {
        ("dropped", "differs", "warning"),
        ("linked", "differs", "warning"),
        ("umlaut", "not checkable", "warning"),
    }
    # One byte of one file is enough.
    with (SKILLS / "awkward/names/a{b.md").open("ab") as file:
        file.write(b" ")
    assert states()["awkward"] == "differs"


@pytest.mark.parametrize("kind", ["git", "web", "store"])
def test_each_kind_of_source_of_the_tool_is_read(kind: str) -> None:
    """Rows of repositories and of sites have other fields, and the same hash."""
    place(kind)
    assert set(states().values()) == {"same"}
    assert "By npx skills: plain" in " ".join(succeed("verify").output.split())
