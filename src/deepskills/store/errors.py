"""The store's own errors, in addition to those of the rest of deepskills; all are `SkillsError`.

    SkillsError
    ├── SkillAuthenticationError
    ├── SkillPermissionError
    ├── SkillConflictError
    │   └── SkillStaleError
    ├── SkillTooLargeError
    │   └── SkillQuotaError
    └── SkillStoreUnavailableError
        └── SkillBusyError

A skill that does not exist, or may not be seen, is a `SkillNotFoundError`; a value that breaks a rule is a
`SkillFormatError` or, for a file's path, a `SkillPathError`. `SkillPolicyError`, a `SkillFormatError`, is the
application's own mistake.
"""

from deepskills._errors import SkillFormatError, SkillsError


class SkillAuthenticationError(SkillsError):
    """Nobody is signed in, and only signed-in users may write."""


class SkillPermissionError(SkillsError):
    """The skill can be seen, but not changed in this way by this user."""


class SkillConflictError(SkillsError):
    """The name or the path is taken, or the skill changed since it was read."""


class SkillStaleError(SkillConflictError):
    """The skill is not at the revision that the writer expected; `revision` is the one it is at."""

    def __init__(self, message: str, revision: int) -> None:
        super().__init__(message)
        self.revision = revision


class SkillTooLargeError(SkillsError):
    """A skill, a file or a request is larger than the store allows."""


class SkillQuotaError(SkillTooLargeError):
    """The owner would have more skills, or more bytes, than the store allows."""


class SkillPolicyError(SkillFormatError):
    """The application set the store up in a way that cannot work, such as a `groups_of` that returns no groups."""


class SkillStoreUnavailableError(SkillsError):
    """The database did not answer."""


class SkillBusyError(SkillStoreUnavailableError):
    """This process is working on as much as it can hold; a moment later there is room again."""
