"""deepskills: the skills runtime for LangChain agents.

Each public name is imported when it is first used: reading and checking skill files, and the command line, start
without the seconds that importing LangChain, LangGraph and deepagents takes.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deepskills._catalog.catalog import SkillEntry, Visibility
    from deepskills._errors import (
        SkillFileNotFoundError,
        SkillFormatError,
        SkillNotFoundError,
        SkillPathError,
        SkillsError,
    )
    from deepskills._files.manifest import FileDigest, SkillManifest
    from deepskills._middleware.events import (
        CustomEvent,
        SkillChecked,
        SkillCost,
        SkillEvent,
        SkillForked,
        SkillLeftOut,
        SkillLoaded,
        SkillMissed,
        SkillReattached,
        SkillRefused,
        SkillScriptRun,
        SkillSentBack,
        SkillShadow,
        SkillUnchecked,
        SkillUnloaded,
    )
    from deepskills._middleware.explain import SkillExplanation, SkillStage
    from deepskills._middleware.extension import (
        Answer,
        LoadedSkill,
        ModelCallReport,
        OpenCheck,
        Refuse,
        SendBack,
        SkillExtension,
        SkillFile,
        SkillLoad,
    )
    from deepskills._middleware.extension_calls import SkillRun
    from deepskills._middleware.middleware import SkillsMiddleware
    from deepskills._middleware.state import SkillsState, SkillsStateUpdate
    from deepskills._prompt.section import SKILLS_SYSTEM_PROMPT
    from deepskills._providers.base import ProvidedFile, ProvidedSkill, SkillProvider
    from deepskills._providers.sources import SkillSource
    from deepskills._skillmd.read import SkillReading, parse_skill_md, read_skill, validate_skill
    from deepskills._skillmd.write import generate_skill_md
    from deepskills._types import (
        MAX_SKILL_FILE_SIZE,
        RESOURCE_TYPE_MAP,
        NamespacedSource,
        OptionalSource,
        PluginSource,
        ResourceMetadata,
        SkillMetadata,
        SkillProblem,
    )
    from deepskills.inline import InlineBackend, InlineSkill
    from deepskills.manager import SkillsManager

__version__: str

__all__ = [
    "MAX_SKILL_FILE_SIZE",
    "RESOURCE_TYPE_MAP",
    "SKILLS_SYSTEM_PROMPT",
    "Answer",
    "CustomEvent",
    "FileDigest",
    "InlineBackend",
    "InlineSkill",
    "LoadedSkill",
    "ModelCallReport",
    "NamespacedSource",
    "OpenCheck",
    "OptionalSource",
    "PluginSource",
    "ProvidedFile",
    "ProvidedSkill",
    "Refuse",
    "ResourceMetadata",
    "SendBack",
    "SkillChecked",
    "SkillCost",
    "SkillEntry",
    "SkillEvent",
    "SkillExplanation",
    "SkillExtension",
    "SkillFile",
    "SkillFileNotFoundError",
    "SkillForked",
    "SkillFormatError",
    "SkillLeftOut",
    "SkillLoad",
    "SkillLoaded",
    "SkillManifest",
    "SkillMetadata",
    "SkillMissed",
    "SkillNotFoundError",
    "SkillPathError",
    "SkillProblem",
    "SkillProvider",
    "SkillReading",
    "SkillReattached",
    "SkillRefused",
    "SkillRun",
    "SkillScriptRun",
    "SkillSentBack",
    "SkillShadow",
    "SkillSource",
    "SkillStage",
    "SkillUnchecked",
    "SkillUnloaded",
    "SkillsError",
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

_NAMES = {
    "_catalog.catalog": "SkillEntry Visibility",
    "_errors": "SkillFileNotFoundError SkillFormatError SkillNotFoundError SkillPathError SkillsError",
    "_files.manifest": "FileDigest SkillManifest",
    "_middleware.events": (
        "CustomEvent SkillChecked SkillCost SkillEvent SkillForked SkillLeftOut SkillLoaded SkillMissed "
        "SkillReattached SkillRefused SkillScriptRun SkillSentBack SkillShadow SkillUnchecked SkillUnloaded"
    ),
    "_middleware.explain": "SkillExplanation SkillStage",
    "_middleware.extension": (
        "Answer LoadedSkill ModelCallReport OpenCheck Refuse SendBack SkillExtension SkillFile SkillLoad"
    ),
    "_middleware.extension_calls": "SkillRun",
    "_middleware.middleware": "SkillsMiddleware",
    "_middleware.state": "SkillsState SkillsStateUpdate",
    "_prompt.section": "SKILLS_SYSTEM_PROMPT",
    "_providers.base": "ProvidedFile ProvidedSkill SkillProvider",
    "_providers.sources": "SkillSource",
    "_skillmd.read": "SkillReading parse_skill_md read_skill validate_skill",
    "_skillmd.write": "generate_skill_md",
    "_types": (
        "MAX_SKILL_FILE_SIZE NamespacedSource OptionalSource PluginSource RESOURCE_TYPE_MAP ResourceMetadata "
        "SkillMetadata SkillProblem"
    ),
    "inline": "InlineBackend InlineSkill",
    "manager": "SkillsManager",
}
"""The public names by module; the imports above tell type checkers the same."""

_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

_ELSEWHERE = {
    "deepskills.extensions": (
        "CHECK_KINDS DEFAULT_ALIASES JsonLinesRecorder OpenTelemetryRecorder Preload SkillApproval "
        "SkillChecks SkillForks SkillHooks SkillLock SkillModels SkillScripts SkillSuggestions SkillUsage "
        "ToolPolicy UsageEvent"
    ),
    "deepskills.store": "SharedSandbox SkillSandboxLoader SkillService",
    "deepskills.mcp": "McpSkills SkillsExtension",
    "deepskills.testing": "ScriptedChatModel call_tools skills_state",
}
"""Public names that people look for here, by the package that has them."""


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used."""
        place = next((package for package, names in _ELSEWHERE.items() if name in names.split()), None)
        if place is not None:
            # `from deepskills import X` replaces an AttributeError by words of its own.
            raise ImportError(f"{name} is in {place}. Write `from {place} import {name}`.", name=__name__)
        if name == "__version__":
            return importlib.import_module("importlib.metadata").version("deepskills")
        if name == "DatabaseSkillAdapter":
            # Needs the extra `store`, so it is not among the names of this package, but it is what people look for.
            return importlib.import_module("deepskills.store").DatabaseSkillAdapter
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"deepskills.{_MODULES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    # The names to use, and not what this module is made of.
    return sorted([*__all__, "__version__"])
