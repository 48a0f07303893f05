"""`create`: writes a new skill that is valid from the start, and never overwrites anything."""

from collections.abc import Mapping
from pathlib import Path

from deepskills._cli.files import UsageError
from deepskills._errors import SkillFormatError, SkillsError
from deepskills._skillmd.read import SCAFFOLD
from deepskills._skillmd.write import generate_skill_md
from deepskills._types import MAX_DESCRIPTION_LENGTH, RESOURCE_TYPE_MAP, SKILL_FILE

BODY = """# {title}

{scaffold}

## Steps

1. Write the steps in order, each as an instruction.
2. Name the files to use: scripts to run lie in `scripts/`, further reading in `references/`, templates in `assets/`.
3. Say how to check the result.

## Example

Show one request and what a good answer to it looks like.
"""
"""What the author of a skill starts from."""


def free_place(source: str, name: str) -> Path:
    """Return the directory that a new skill would get.

    Raises:
        UsageError: If the name breaks the naming rules.
        SkillsError: If something is there already.
    """
    _text(name, "A description.")
    place = Path(source) / name
    if place.exists() or place.is_symlink():
        raise SkillsError(f"{place} is already there; nothing was written. Choose another name, or edit it.")
    return place


CHECKS = [{"called": "write_file", "say": "Write the result to a file, and read it once more."}]
"""What the author of a checked skill starts from."""


def write_skill(place: Path, description: str, *, has_checks: bool = False) -> Path:
    """Write a skill that passes validation, with its standard directories, and return its `SKILL.md`.

    Raises:
        UsageError: If the description breaks the rules; nothing was written then.
        SkillsError: If something is there already; nothing was written then.
    """
    text = _text(place.name, description, {"checks": CHECKS} if has_checks else {})
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        place.mkdir()
    except FileExistsError:
        raise SkillsError(f"{place} is already there; nothing was written. Choose another name, or edit it.") from None
    for directory in RESOURCE_TYPE_MAP:
        (place / directory).mkdir()
    file = place / SKILL_FILE
    with file.open("x", encoding="utf-8", newline="\n") as new:
        new.write(text)
    return file


def _text(name: str, description: str, frontmatter: Mapping[str, object] | None = None) -> str:
    description = description.strip()
    if not name:
        raise UsageError("The name is empty. Use lower-case letters, digits and single hyphens between them.")
    if not description:
        raise UsageError("The description is empty. Say what the skill does and when to use it.")
    if len(description) > MAX_DESCRIPTION_LENGTH:
        raise UsageError(
            f"The description is {len(description)} characters long; at most {MAX_DESCRIPTION_LENGTH} are allowed. "
            "Shorten it."
        )
    title = name.replace("-", " ").capitalize()
    try:
        return generate_skill_md(
            name, description, BODY.format(title=title, scaffold=SCAFFOLD), dict(frontmatter or {})
        )
    except SkillFormatError as error:
        raise UsageError(str(error)) from None
