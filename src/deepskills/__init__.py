"""deepskills: the skills runtime for LangChain agents."""

from deepskills._errors import SkillFormatError, SkillsError
from deepskills._skillmd import SkillReading, parse_skill_md, read_skill, validate_skill
from deepskills._types import SkillMetadata, SkillProblem, SkillSource
from deepskills._writing import generate_skill_md

__all__ = [
    "SkillFormatError",
    "SkillMetadata",
    "SkillProblem",
    "SkillReading",
    "SkillSource",
    "SkillsError",
    "generate_skill_md",
    "parse_skill_md",
    "read_skill",
    "validate_skill",
]
