"""What a model is told where a skill's text was, or when a skill left without its asking. Pure."""

from collections.abc import Sequence

from deepskills._loading.placement import Reason
from deepskills._prompt.fields import quoted_names, shown_name

UPDATED_LEAD = "The skill changed since it was loaded; this is its new text.\n"
"""Stands before the text of a skill that was loaded before in an older version."""

CHANGED_LEAD = "(The file has changed since it was loaded; this is its present text.)\n"
"""Stands before a text that could be put back only in a newer version."""

_REMOVED = "[Skill '{name}': text removed here; the skill was unloaded, or loaded again further on.]"
_NO_ROOM = (
    "[Skill '{name}' is loaded, but there is no room for its text. Unload what is no longer needed: "
    "the text is restored automatically when there is room.]"
)
_UNDONE = (
    "[Skill '{name}' was not loaded after all: it needed the room of a skill whose unload was refused. "
    "Unload a skill, then load it again.]"
)
# One wording for both: a message that was emptied stays the same when its skill is loaded again, and caches hold.
_NOTICES: dict[Reason, str] = {
    "unloaded": _REMOVED,
    "superseded": _REMOVED,
    "no_room": _NO_ROOM,
    "undone": _UNDONE,
}
_PREFIX = "[Notice about skills, not from the user]"


def context_notice(name: str, reason: Reason) -> str:
    """Return the line that stands where a skill's text was."""
    return _NOTICES[reason].format(name=shown_name(name))


def lost_notice(name: str) -> str:
    """Say that a skill's text could not be recovered."""
    return (
        f"{_PREFIX} The text of the skill '{shown_name(name)}' was lost and its file can no longer be read, so it was "
        "unloaded. Load it again if it is needed."
    )


def gone_notice(names: Sequence[str]) -> str:
    """Say that loaded skills are no longer there."""
    return (
        f"{_PREFIX} No longer available and therefore unloaded: {quoted_names(names)}. "
        "Do not rely on their instructions any more."
    )
