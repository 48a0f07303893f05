"""What can go wrong in the store, beyond what the rest of deepskills raises; all are `SkillsError`.

    SkillsError
    ├── SkillAuthenticationError
    ├── SkillPermissionError
    ├── SkillConflictError
    │   └── SkillStaleError
    ├── SkillTooLargeError
    │   └── SkillQuotaError
    └── SkillStoreUnavailableError

What is not there, or may not be seen, is `SkillNotFoundError`; what breaks a rule is `SkillFormatError` or, for a
file's path, `SkillPathError`. `SkillPolicyError`, a `SkillFormatError`, is the application's own mistake.
"""

from deepskills._errors import SkillFormatError, SkillsError


class SkillAuthenticationError(SkillsError):
    """Nobody is signed in, and only signed-in users write."""


class SkillPermissionError(SkillsError):
    """The skill can be seen, but not changed in this way by this user."""


class SkillConflictError(SkillsError):
    """The name or the path is taken, or the skill changed since it was read."""


class SkillStaleError(SkillConflictError):
    """The skill has another revision than the writer expected; `revision` is the one it has."""

    def __init__(self, message: str, revision: int) -> None:
        super().__init__(message)
        self.revision = revision


class SkillTooLargeError(SkillsError):
    """A skill, a file or a request is larger than the store allows."""


class SkillQuotaError(SkillTooLargeError):
    """The owner would keep more skills, or more bytes, than the store allows each owner."""


class SkillPolicyError(SkillFormatError):
    """The application set the store up in a way that cannot work, such as a `groups_of` that returns no groups."""


class SkillStoreUnavailableError(SkillsError):
    """The database did not answer."""
