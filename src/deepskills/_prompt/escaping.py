"""Makes a stranger's text harmless before a model reads it: nothing in it can pass for a part of ours.

A field is one bounded line without markup (`field_text`); a whole text keeps its lines and loses only what only this
library writes (`harmless_body`).
"""

import re
from collections.abc import Iterable

from deepskills._skillmd.names import shown_name
from deepskills._skillmd.text import one_line
from deepskills._types import SkillOrigin

__all__ = ["field_text", "harmless_body", "origin_text", "quoted_names", "shown_name", "shown_path"]

MAX_PATH_LENGTH = 400
"""Longest path that is shown."""

_TAG = re.compile(r"<(?=[/!?a-zA-Z])")

OWN_TAGS = ("skill_content", "skill_hook", "skill_load_warnings")
"""The tags that only this library writes; `skill_content` covers `skill_content_next`, which begins with it."""

OWN_NOTICES = ("Notice about skills", "Note from the skills system")
"""How notices of this library begin, behind their bracket; those that name a skill begin with `Skill '`."""

_HIDDEN = (
    r"[\s\u0000-\u001f\u007f-\u00a0\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    r"\u2028-\u202f\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001d173-\U0001d17a"
    r"\U000e0000-\U000e0fff]*+"
)
"""Any run of invisible characters; they do not turn a tag into something else."""


def _spelled(words: str) -> str:
    """Return the pattern of a text: with invisible characters between its letters a model still reads it."""
    return _HIDDEN.join(words.replace(" ", ""))


# A quote of any kind has to follow `[Skill`: `[skill name]` is a usual blank to fill in.
_QUOTE = "['\"`\u00b4\u2018-\u201f\u2032\u2035\uff07]"
_TAGS = "|".join(map(_spelled, OWN_TAGS))
_NOTICES = "|".join([*map(_spelled, OWN_NOTICES), f"{_spelled('Skill')}{_HIDDEN}{_QUOTE}"])
_OWN_TAG = re.compile(f"<(?={_HIDDEN}(?:/{_HIDDEN})?(?:{_TAGS}))", re.IGNORECASE)
_OWN_NOTICE = re.compile(rf"\[(?={_HIDDEN}(?:{_NOTICES}))", re.IGNORECASE)


def harmless_body(text: str) -> str:
    """Return a stranger's text in which nothing can pass for a block, a notice or a tag of ours, or for its end."""
    return _OWN_NOTICE.sub("&#91;", _OWN_TAG.sub("&lt;", text))


def field_text(text: str, limit: int) -> str:
    """Return a stranger's text as one bounded line that holds no tag and no notice of ours."""
    line = one_line(text)
    if len(line) > limit:
        # Cut before escaping: a cut through `&lt;` would leave half of it.
        line = f"{line[:limit].rstrip()}..."
    return _OWN_NOTICE.sub("&#91;", _TAG.sub("&lt;", line))


def shown_path(path: str) -> str:
    """Return a path as the model sees it."""
    return field_text(path, MAX_PATH_LENGTH).replace("`", "'")


def origin_text(origin: SkillOrigin) -> str:
    """Return where a served skill came from, as the model sees it."""
    return f"{origin['via']} server '{shown_name(origin['label'])}'"


def quoted_names(names: Iterable[str]) -> str:
    """Return names in quotes, with commas between them."""
    return ", ".join(f"'{shown_name(name)}'" for name in names)
