"""Makes a stranger's text harmless before a model reads it: one line, bounded, without markup."""

import re
from collections.abc import Iterable

from deepskills._skillmd.names import shown_name
from deepskills._skillmd.text import one_line
from deepskills._types import SkillOrigin

__all__ = ["field_text", "origin_text", "quoted_names", "shown_name", "shown_path"]

MAX_PATH_LENGTH = 400
"""Longest path that is shown."""

_TAG = re.compile(r"<(?=[/!?a-zA-Z])")


def field_text(text: str, limit: int) -> str:
    """Return a stranger's text as one bounded line that holds no tag."""
    line = one_line(text)
    if len(line) > limit:
        # Cut before escaping: a cut through `&lt;` would leave half of it.
        line = f"{line[:limit].rstrip()}..."
    return _TAG.sub("&lt;", line)


def shown_path(path: str) -> str:
    """Return a path as the model sees it."""
    return field_text(path, MAX_PATH_LENGTH).replace("`", "'")


def origin_text(origin: SkillOrigin) -> str:
    """Return where a served skill came from, as the model sees it."""
    return f"{origin['via']} server '{shown_name(origin['label'])}'"


def quoted_names(names: Iterable[str]) -> str:
    """Return names in quotes, with commas between them."""
    return ", ".join(f"'{shown_name(name)}'" for name in names)
