"""deepskills: the skills runtime for LangChain agents."""

from deepskills._agent.extension import (
    Answer,
    LoadedSkill,
    Refuse,
    SkillExtension,
    SkillLoad,
    SkillRun,
    SkillsHost,
)
from deepskills._agent.middleware import SkillsMiddleware
from deepskills._agent.state import SkillsState, SkillsStateUpdate
from deepskills._catalog.entries import SkillEntry, Visibility
from deepskills._errors import (
    SkillFileNotFoundError,
    SkillFormatError,
    SkillNotFoundError,
    SkillPathError,
    SkillsError,
)
from deepskills._format.reading import SkillReading, parse_skill_md, read_skill, validate_skill
from deepskills._format.writing import generate_skill_md
from deepskills._prompt.wording import SKILLS_SYSTEM_PROMPT
from deepskills._types import ResourceMetadata, SkillMetadata, SkillProblem, SkillSource
from deepskills.inline import InlineBackend, InlineSkill
from deepskills.manager import SkillsManager

__all__ = [
    "SKILLS_SYSTEM_PROMPT",
    "Answer",
    "InlineBackend",
    "InlineSkill",
    "LoadedSkill",
    "Refuse",
    "ResourceMetadata",
    "SkillEntry",
    "SkillExtension",
    "SkillFileNotFoundError",
    "SkillFormatError",
    "SkillLoad",
    "SkillMetadata",
    "SkillNotFoundError",
    "SkillPathError",
    "SkillProblem",
    "SkillReading",
    "SkillRun",
    "SkillSource",
    "SkillsError",
    "SkillsHost",
    "SkillsManager",
    "SkillsMiddleware",
    "SkillsState",
    "SkillsStateUpdate",
    "Visibility",
    "generate_skill_md",
    "parse_skill_md",
    "read_skill",
    "validate_skill",
]
