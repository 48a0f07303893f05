"""The exceptions that deepskills raises.

    SkillsError
    ├── SkillFormatError (a ValueError)
    ├── SkillNotFoundError (a LookupError)
    ├── SkillPathError (a ValueError)
    │   └── SkillFileNotFoundError
    └── in parts that are installed as extras
        ├── deepskills.evals: EvalError
        └── deepskills.store: see `store/errors.py`

What a user's own function raises is reported as a problem, and never passed on to the caller of the agent.
"""


class SkillsError(Exception):
    """Something about skills went wrong; the message says what to do."""


class SkillFormatError(SkillsError, ValueError):
    """A `SKILL.md`, or a value meant for one, does not follow the format."""


class SkillNotFoundError(SkillsError, LookupError):
    """No skill has that name."""


class SkillPathError(SkillsError, ValueError):
    """A path is refused: it does not lead to a file of the skill."""


class SkillFileNotFoundError(SkillPathError):
    """A path is fine, but no file is there."""
