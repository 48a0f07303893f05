"""deepskills: the skills runtime for LangChain agents."""

from deepskills._errors import SkillFormatError, SkillsError
from deepskills._middleware import SkillsMiddleware
from deepskills._prompt import SKILLS_SYSTEM_PROMPT
from deepskills._skillmd import SkillReading, parse_skill_md, read_skill, validate_skill
from deepskills._state import SkillsState, SkillsStateUpdate
from deepskills._types import ResourceMetadata, SkillMetadata, SkillProblem, SkillSource
from deepskills._writing import generate_skill_md

__all__ = [
    "SKILLS_SYSTEM_PROMPT",
    "ResourceMetadata",
    "SkillFormatError",
    "SkillMetadata",
    "SkillProblem",
    "SkillReading",
    "SkillSource",
    "SkillsError",
    "SkillsMiddleware",
    "SkillsState",
    "SkillsStateUpdate",
    "generate_skill_md",
    "parse_skill_md",
    "read_skill",
    "validate_skill",
]
