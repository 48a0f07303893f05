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
        SkillsHost,
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
    "MAX_SKILL_FILE_SIZE": "deepskills._types",
    "RESOURCE_TYPE_MAP": "deepskills._types",
    "SKILLS_SYSTEM_PROMPT": "deepskills._prompt.section",
    "Answer": "deepskills._middleware.extension",
    "CustomEvent": "deepskills._middleware.events",
    "FileDigest": "deepskills._files.manifest",
    "InlineBackend": "deepskills.inline",
    "InlineSkill": "deepskills.inline",
    "LoadedSkill": "deepskills._middleware.extension",
    "ModelCallReport": "deepskills._middleware.extension",
    "NamespacedSource": "deepskills._types",
    "OpenCheck": "deepskills._middleware.extension",
    "OptionalSource": "deepskills._types",
    "PluginSource": "deepskills._types",
    "ProvidedFile": "deepskills._providers.base",
    "ProvidedSkill": "deepskills._providers.base",
    "Refuse": "deepskills._middleware.extension",
    "ResourceMetadata": "deepskills._types",
    "SendBack": "deepskills._middleware.extension",
    "SkillChecked": "deepskills._middleware.events",
    "SkillCost": "deepskills._middleware.events",
    "SkillEntry": "deepskills._catalog.catalog",
    "SkillEvent": "deepskills._middleware.events",
    "SkillExplanation": "deepskills._middleware.explain",
    "SkillExtension": "deepskills._middleware.extension",
    "SkillFile": "deepskills._middleware.extension",
    "SkillFileNotFoundError": "deepskills._errors",
    "SkillForked": "deepskills._middleware.events",
    "SkillFormatError": "deepskills._errors",
    "SkillLoad": "deepskills._middleware.extension",
    "SkillLeftOut": "deepskills._middleware.events",
    "SkillLoaded": "deepskills._middleware.events",
    "SkillManifest": "deepskills._files.manifest",
    "SkillMetadata": "deepskills._types",
    "SkillMissed": "deepskills._middleware.events",
    "SkillNotFoundError": "deepskills._errors",
    "SkillPathError": "deepskills._errors",
    "SkillProblem": "deepskills._types",
    "SkillProvider": "deepskills._providers.base",
    "SkillReading": "deepskills._skillmd.read",
    "SkillReattached": "deepskills._middleware.events",
    "SkillRefused": "deepskills._middleware.events",
    "SkillRun": "deepskills._middleware.extension_calls",
    "SkillScriptRun": "deepskills._middleware.events",
    "SkillSentBack": "deepskills._middleware.events",
    "SkillShadow": "deepskills._middleware.events",
    "SkillSource": "deepskills._providers.sources",
    "SkillStage": "deepskills._middleware.explain",
    "SkillUnchecked": "deepskills._middleware.events",
    "SkillUnloaded": "deepskills._middleware.events",
    "SkillsError": "deepskills._errors",
    "SkillsHost": "deepskills._middleware.extension",
    "SkillsManager": "deepskills.manager",
    "SkillsMiddleware": "deepskills._middleware.middleware",
    "SkillsState": "deepskills._middleware.state",
    "SkillsStateUpdate": "deepskills._middleware.state",
    "Visibility": "deepskills._catalog.catalog",
    "generate_skill_md": "deepskills._skillmd.write",
    "parse_skill_md": "deepskills._skillmd.read",
    "read_skill": "deepskills._skillmd.read",
    "validate_skill": "deepskills._skillmd.read",
}
"""Where each public name comes from; the imports above tell type checkers the same."""

_ELSEWHERE = {
    **dict.fromkeys(
        (
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
        ),
        "deepskills.extensions",
    ),
    **dict.fromkeys(("SharedSandbox", "SkillSandboxLoader", "SkillService"), "deepskills.store"),
    **dict.fromkeys(("McpSkills", "SkillsExtension"), "deepskills.mcp"),
    **dict.fromkeys(("ScriptedChatModel", "call_tools", "skills_state"), "deepskills.testing"),
}
"""Public names that people look for here, and where they are."""


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used."""
        if name in _ELSEWHERE:
            # `from deepskills import X` replaces an AttributeError by words of its own.
            place = _ELSEWHERE[name]
            raise ImportError(f"{name} is in {place}. Write `from {place} import {name}`.", name=__name__)
        if name == "__version__":
            return importlib.import_module("importlib.metadata").version("deepskills")
        if name == "DatabaseSkillAdapter":
            # Needs the extra `store`, so it is not among the names of this package, but it is what people look for.
            return importlib.import_module("deepskills.store").DatabaseSkillAdapter
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(_MODULES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    # The names to use, and not what this module is made of.
    return sorted([*__all__, "__version__"])
