"""What tests of several folders share.

`agents` talks to an agent and follows its stream, `backends` has the one fake backend, `modes` says what runs sync and
what async. These three are here; `tables`, `waiting` and `world` are imported by their names.
"""

from support.agents import (
    Conversation,
    by_hand,
    disk,
    hand_written_graph,
    load,
    loaded_in,
    pin_skills,
    run,
    skill_md,
    skills,
    state_files,
    stream,
    tool_messages,
    unload,
    without_origin,
    write_files,
)
from support.backends import FakeBackend, OnlyAsync, Rule, answers, breaks_off, fails, hangs, unlisted, unreadable
from support.modes import CASE, MODES, SOAK, Mode, both_modes, picked, scaled, share_of

__all__ = [
    "CASE",
    "MODES",
    "SOAK",
    "Conversation",
    "FakeBackend",
    "Mode",
    "OnlyAsync",
    "Rule",
    "answers",
    "both_modes",
    "breaks_off",
    "by_hand",
    "disk",
    "fails",
    "hand_written_graph",
    "hangs",
    "load",
    "loaded_in",
    "picked",
    "pin_skills",
    "run",
    "scaled",
    "share_of",
    "skill_md",
    "skills",
    "state_files",
    "stream",
    "tool_messages",
    "unlisted",
    "unload",
    "unreadable",
    "without_origin",
    "write_files",
]
