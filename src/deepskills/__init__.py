"""deepskills: the skills runtime for LangChain agents.

Each public name is imported when it is first used: reading and checking skill files, and the command line, start
without the seconds that importing LangChain, LangGraph and deepagents takes.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deepskills._agent.extension import (
        Answer,
        LoadedSkill,
        Refuse,
        SkillExtension,
        SkillFile,
        SkillLoad,
        SkillRun,
        SkillsHost,
    )
    from deepskills._agent.middleware import SkillsMiddleware
    from deepskills._agent.state import SkillsState, SkillsStateUpdate
    from deepskills._catalog.entries import SkillEntry, Visibility
    from deepskills._catalog.manifest import FileDigest, SkillManifest
    from deepskills._errors import (
        SkillFileNotFoundError,
        SkillFormatError,
        SkillNotFoundError,
        SkillPathError,
        SkillsError,
    )
    from deepskills._format.reading import SkillReading, parse_skill_md, read_skill, validate_skill
    from deepskills._format.writing import generate_skill_md
    from deepskills._prompt.template import SKILLS_SYSTEM_PROMPT
    from deepskills._types import (
        OptionalSource,
        ResourceMetadata,
        SkillMetadata,
        SkillProblem,
        SkillSource,
        SkillSummary,
    )
    from deepskills.inline import InlineBackend, InlineSkill
    from deepskills.manager import SkillsManager

__all__ = [
    "SKILLS_SYSTEM_PROMPT",
    "Answer",
    "FileDigest",
    "InlineBackend",
    "InlineSkill",
    "LoadedSkill",
    "OptionalSource",
    "Refuse",
    "ResourceMetadata",
    "SkillEntry",
    "SkillExtension",
    "SkillFile",
    "SkillFileNotFoundError",
    "SkillFormatError",
    "SkillLoad",
    "SkillManifest",
    "SkillMetadata",
    "SkillNotFoundError",
    "SkillPathError",
    "SkillProblem",
    "SkillReading",
    "SkillRun",
    "SkillSource",
    "SkillSummary",
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

_MODULES = {
    "SKILLS_SYSTEM_PROMPT": "deepskills._prompt.template",
    "Answer": "deepskills._agent.extension",
    "FileDigest": "deepskills._catalog.manifest",
    "InlineBackend": "deepskills.inline",
    "InlineSkill": "deepskills.inline",
    "LoadedSkill": "deepskills._agent.extension",
    "OptionalSource": "deepskills._types",
    "Refuse": "deepskills._agent.extension",
    "ResourceMetadata": "deepskills._types",
    "SkillEntry": "deepskills._catalog.entries",
    "SkillExtension": "deepskills._agent.extension",
    "SkillFile": "deepskills._agent.extension",
    "SkillFileNotFoundError": "deepskills._errors",
    "SkillFormatError": "deepskills._errors",
    "SkillLoad": "deepskills._agent.extension",
    "SkillManifest": "deepskills._catalog.manifest",
    "SkillMetadata": "deepskills._types",
    "SkillNotFoundError": "deepskills._errors",
    "SkillPathError": "deepskills._errors",
    "SkillProblem": "deepskills._types",
    "SkillReading": "deepskills._format.reading",
    "SkillRun": "deepskills._agent.extension",
    "SkillSource": "deepskills._types",
    "SkillSummary": "deepskills._types",
    "SkillsError": "deepskills._errors",
    "SkillsHost": "deepskills._agent.extension",
    "SkillsManager": "deepskills.manager",
    "SkillsMiddleware": "deepskills._agent.middleware",
    "SkillsState": "deepskills._agent.state",
    "SkillsStateUpdate": "deepskills._agent.state",
    "Visibility": "deepskills._catalog.entries",
    "generate_skill_md": "deepskills._format.writing",
    "parse_skill_md": "deepskills._format.reading",
    "read_skill": "deepskills._format.reading",
    "validate_skill": "deepskills._format.reading",
}
"""Where each public name comes from; the imports above tell type checkers the same."""


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(_MODULES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
