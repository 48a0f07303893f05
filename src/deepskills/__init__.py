"""deepskills: the skills runtime for LangChain agents."""

from deepskills._errors import (
    SkillFileNotFoundError,
    SkillFormatError,
    SkillNotFoundError,
    SkillPathError,
    SkillsError,
)
from deepskills._middleware import SkillsMiddleware
from deepskills._prompt import SKILLS_SYSTEM_PROMPT
from deepskills._skillmd import SkillReading, parse_skill_md, read_skill, validate_skill
from deepskills._state import SkillsState, SkillsStateUpdate
from deepskills._types import ResourceMetadata, SkillMetadata, SkillProblem, SkillSource
from deepskills._writing import generate_skill_md
from deepskills.manager import SkillsManager

__all__ = [
    "SKILLS_SYSTEM_PROMPT",
    "ResourceMetadata",
    "SkillFileNotFoundError",
    "SkillFormatError",
    "SkillMetadata",
    "SkillNotFoundError",
    "SkillPathError",
    "SkillProblem",
    "SkillReading",
    "SkillSource",
    "SkillsError",
    "SkillsManager",
    "SkillsMiddleware",
    "SkillsState",
    "SkillsStateUpdate",
    "generate_skill_md",
    "parse_skill_md",
    "read_skill",
    "validate_skill",
]
