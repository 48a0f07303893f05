"""Which files a skill's instructions name by a relative path. Pure, and linear in the text.

Authors put files wherever they like: `templates/letter.md`, `reference/forms/tax.md`. What the instructions name is
what the model will ask for, so a load lists it with its full path.
"""

import re
from collections.abc import Iterable
from urllib.parse import unquote

from deepskills._files.paths import is_allowed, normalised

MAX_SCANNED = 1_000_000
"""How many characters of instructions are searched for paths; the largest seen in public skills is under half of it."""

MAX_NAMED = 2_000
"""How many distinct paths of one text are looked at."""

_OWN_DIRECTORY = re.compile(r"(?:\$\{(?:CLAUDE_)?SKILL_DIR\}|\{baseDir\})/+")
_LINK = re.compile(r"\]\(\s{0,3}<?([^()<>\s]{1,1024})")
_PATH = re.compile(r"(?<![\w./\\~@:$%{}-])(?:\./)?+[\w-][\w.-]*+(?:/[\w.-]+)++")


def named_paths(text: str) -> list[str]:
    """Return the relative paths that a text may name, normalised, each once and in order.

    They are candidates: only a listing can tell which are files of the skill.
    """
    scanned = _OWN_DIRECTORY.sub("", text[:MAX_SCANNED])
    found: dict[str, None] = {}
    for candidate in _candidates(scanned):
        path = normalised(candidate)
        if "/" in path and path not in found and is_allowed(path, "all"):
            found[path] = None
            if len(found) == MAX_NAMED:
                break
    return list(found)


def _candidates(text: str) -> Iterable[str]:
    for link in _LINK.finditer(text):
        yield unquote(link[1].partition("#")[0].partition("?")[0])
    for path in _PATH.finditer(text):
        # A full stop or dash that ends the sentence is not part of the name.
        yield path[0].rstrip(".-")
