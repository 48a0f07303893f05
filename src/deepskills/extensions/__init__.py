"""Optional capabilities, one per file or folder, each built on the public `SkillExtension`.

They use the middleware as any user's extension would. Of private modules they import only pure helpers: the words of
messages (`_prompt`), cleaning of text and problems (`_skillmd`), and, for scripts and suggestions, plans and search
(`_io`, `_files`, `_catalog`).
"""

from deepskills._skillmd.tools import DEFAULT_ALIASES
from deepskills.extensions.approval import SkillApproval
from deepskills.extensions.checks import CHECK_KINDS, SkillChecks
from deepskills.extensions.forks import SkillForks
from deepskills.extensions.hooks import SkillHooks
from deepskills.extensions.lock import SkillLock
from deepskills.extensions.models import SkillModels
from deepskills.extensions.preload import Preload
from deepskills.extensions.scripts.tool import SkillScripts
from deepskills.extensions.suggestions import SkillSuggestions
from deepskills.extensions.tool_policy import ToolPolicy
from deepskills.extensions.usage import JsonLinesRecorder, OpenTelemetryRecorder, SkillUsage, UsageEvent

__all__ = [
    "CHECK_KINDS",
    "DEFAULT_ALIASES",
    "JsonLinesRecorder",
    "OpenTelemetryRecorder",
    "Preload",
    "SkillApproval",
    "SkillChecks",
    "SkillForks",
    "SkillHooks",
    "SkillLock",
    "SkillModels",
    "SkillScripts",
    "SkillSuggestions",
    "SkillUsage",
    "ToolPolicy",
    "UsageEvent",
]
