"""What calls of the service check and say: rights, revisions, ids. Pure."""

from typing import Literal, TypeAlias
from uuid import UUID

from deepskills._errors import SkillNotFoundError
from deepskills._skillmd.problems import quoted
from deepskills.store._document import Document
from deepskills.store._errors import (
    SkillAuthenticationError,
    SkillConflictError,
    SkillPermissionError,
    SkillStaleError,
)
from deepskills.store._models import FileContent, KeptFile, Skill
from deepskills.store._rules import owner_key, storable
from deepskills.store._visibility import Viewer

UserId: TypeAlias = str | UUID
"""Who a user is, as the application knows them."""

Need: TypeAlias = Literal["write", "own", "remove", "operate"]
"""What a call wants to do: change text and files; decide about the skill; remove it; what only operators may."""


def check_right(skill: Skill, writer: Viewer, need: Need) -> None:
    """Check that a writer may do with a skill what they want.

    Raises:
        SkillPermissionError: If not.
    """
    owns = skill.owner_id is None if writer.is_system else skill.owner_id == writer.user
    allowed = {
        "write": owns or any(row.can_write and row.group_id in writer.groups for row in skill.share_rows),
        "own": owns,
        "remove": owns or writer.is_operator,
        "operate": writer.is_operator,
    }
    if not allowed[need]:
        raise SkillPermissionError(
            f"The skill {quoted(skill.name)} is not yours to change in this way. Ask its owner, or create your own."
        )


def check_revision(skill: Skill, expected_revision: int | None) -> None:
    """Check that a skill is as its writer knows it.

    Raises:
        SkillStaleError: If it changed since.
    """
    if expected_revision is not None and skill.revision != expected_revision:
        raise SkillStaleError(
            f"The skill {quoted(skill.name)} has revision {skill.revision}, not {expected_revision}: somebody changed "
            "it meanwhile. Get it again, and apply your change to what it is now.",
            skill.revision,
        )


def document_of(skill: Skill) -> Document:
    """Return a stored skill's `SKILL.md`."""
    return Document(skill.name, skill.description, skill.content, skill.tags, skill.frontmatter, skill.encoding)


def is_same(file: KeptFile | None, other: FileContent | None) -> bool:
    """Whether two files hold the same bytes."""
    return file is not None and other is not None and (file.size, file.digest) == (other.size, other.digest)


def as_id(given: object) -> UUID | None:
    """Return an id, also where it comes as text; `None` for what is not an id."""
    if isinstance(given, UUID):
        return given
    try:
        return UUID(given) if isinstance(given, str) else None
    except ValueError:
        return None


def known_id(given: object) -> UUID:
    """Return an id.

    Raises:
        SkillNotFoundError: If it is none, and so no skill has it.
    """
    found = as_id(given)
    if found is None:
        raise no_skill(quoted(storable(str(given))))
    return found


def no_skill(shown: str) -> SkillNotFoundError:
    """Return the error for a skill that is not there, or that one may not see."""
    return SkillNotFoundError(f"There is no skill {shown}. List the skills to see which exist.")


def taken(name: str) -> SkillConflictError:
    """Return the error for a name that an owner has already."""
    return SkillConflictError(f"The name {quoted(storable(name))} is taken, in this or another case. Choose another.")


def signed_in(user_id: UserId | None) -> str:
    """Return a user id as the store keeps it.

    Raises:
        SkillAuthenticationError: If it is nobody's.
    """
    owner = owner_key(user_id)
    if owner is None:
        raise SkillAuthenticationError("Only a signed-in user writes skills. Sign in and try again.")
    return owner
