"""Optional capabilities, one per file, each built on the public `SkillExtension` and nothing private of the agent."""

from deepskills.extensions.approval import SkillApproval
from deepskills.extensions.forks import SkillForks
from deepskills.extensions.hooks import SkillHooks
from deepskills.extensions.lock import SkillLock
from deepskills.extensions.models import SkillModels
from deepskills.extensions.preload import Preload
from deepskills.extensions.scripts import SkillScripts
from deepskills.extensions.suggestions import SkillSuggestions
from deepskills.extensions.tool_policy import DEFAULT_ALIASES, ToolPolicy

__all__ = [
    "DEFAULT_ALIASES",
    "Preload",
    "SkillApproval",
    "SkillForks",
    "SkillHooks",
    "SkillLock",
    "SkillModels",
    "SkillScripts",
    "SkillSuggestions",
    "ToolPolicy",
]
