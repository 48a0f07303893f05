"""The exceptions that deepskills raises; all are `SkillsError`."""


class SkillsError(Exception):
    """Something about skills went wrong; the message says what to do."""


class SkillFormatError(SkillsError, ValueError):
    """A `SKILL.md`, or a value meant for one, does not follow the format."""
