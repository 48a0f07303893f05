"""What can go wrong in the store, beyond what the rest of deepskills raises; all are `SkillsError`.

What is not there, or may not be seen, is `SkillNotFoundError`; what breaks a rule is `SkillFormatError` or, for a
file's path, `SkillPathError`.
"""

from deepskills._errors import SkillsError


class SkillAuthenticationError(SkillsError):
    """Nobody is signed in, and only owners write."""


class SkillPermissionError(SkillsError):
    """The skill can be seen, but it is another's to write."""


class SkillConflictError(SkillsError):
    """The name or the path is taken."""


class SkillTooLargeError(SkillsError):
    """A skill, a file or a request is larger than the store allows."""


class SkillStoreUnavailableError(SkillsError):
    """The database did not answer."""
