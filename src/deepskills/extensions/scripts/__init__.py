"""Runs scripts of loaded skills: the tool, the command line that a shell gets, and what is shown of the output."""

from deepskills.extensions.scripts.tool import SkillScripts

__all__ = ["SkillScripts"]
