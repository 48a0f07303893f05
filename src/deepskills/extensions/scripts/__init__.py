"""Runs scripts of loaded skills: the tool, the shell's command line, and how output is shown."""

from deepskills.extensions.scripts.tool import SkillScripts

__all__ = ["SkillScripts"]
