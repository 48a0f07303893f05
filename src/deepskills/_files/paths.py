"""Which paths may name a file of a skill. Pure."""

import re
import unicodedata

from deepskills._errors import SkillPathError
from deepskills._files.inventory import RESOURCE_DIRECTORIES
from deepskills._format.problems import quoted

MAX_PATH_LENGTH = 1024
"""Longest path below a skill's directory."""

MAX_PART_LENGTH = 255
"""Longest name of a file or directory."""

_ENCODED = re.compile(r"%(?:2e|2f|5c|00|25|c0|c1|e0|u|%)", re.IGNORECASE)
_DRIVE = re.compile(r"[A-Za-z]:")
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
_LOOKALIKES = frozenset("\u2024\u2025\u2026\u2044\u2215\u2216\u29f5\u29f8\u29f9\ufe52\ufe68\uff0e\uff0f\uff3c")


def check_relative(path: str) -> str:
    """Return `path` if it is relative and lies inside one of a skill's three directories.

    Raises:
        SkillPathError: If it is refused; the message says why.
    """
    reason = refusal(path)
    if reason is not None:
        raise SkillPathError(
            f"The path {quoted(path)} is refused: {reason}. "
            f"Give a path like `references/guide.md` inside {', '.join(f'`{name}/`' for name in RESOURCE_DIRECTORIES)}."
        )
    return path


def refusal(path: str) -> str | None:
    """Return why `path` is refused; `None` if it is not."""
    parts = path.split("/")
    checks = (
        (not path.strip(), "it is empty"),
        (len(path) > MAX_PATH_LENGTH or any(_bytes(part) > MAX_PART_LENGTH for part in parts), "it is too long"),
        (_UNSEEN.search(path), "it holds characters that cannot be seen"),
        ("\\" in path, "it holds a backslash"),
        (path.startswith(("/", "~")), "it is not relative"),
        (any(_DRIVE.match(part) for part in parts), "it names a drive"),
        (_ENCODED.search(path), "it holds percent-encoded characters"),
        (_holds_lookalikes(path), "it holds characters that look like dots or slashes"),
        (".." in path, "it holds `..`"),
        ("" in parts or "." in parts, "it holds an empty step"),
        (any(part != part.strip() or part.endswith(".") for part in parts), "a name in it ends with a space or a dot"),
        (parts[0] not in RESOURCE_DIRECTORIES or len(parts) == 1, "it lies in none of the skill's directories"),
    )
    return next((reason for refused, reason in checks if refused), None)


def _bytes(part: str) -> int:
    return len(part.encode("utf-8", "surrogatepass"))


def _holds_lookalikes(path: str) -> bool:
    """Whether normalizing would make a dot or a separator out of something else."""
    if path.isascii():
        return False
    if any(character in _LOOKALIKES for character in path):
        return True
    return any(
        not character.isascii() and any(mark in unicodedata.normalize("NFKC", character) for mark in "./\\%")
        for character in path
    )


def is_allowed(path: str) -> bool:
    """Whether a relative path would be taken."""
    return refusal(path) is None


def script_to_relative(script_name: str) -> str:
    """Return a script's path below its skill; a leading `scripts/` is fine."""
    return script_name if script_name.startswith("scripts/") else f"scripts/{script_name}"
