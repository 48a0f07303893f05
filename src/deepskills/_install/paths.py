"""Limits on what is taken from a stranger's source: sizes, counts, and names of files."""

import os
import unicodedata

from deepskills._errors import SkillsError
from deepskills._types import MAX_SHOWN_NAME_LENGTH

MAX_ENTRIES = 100_000
"""How many entries a source may have."""

MAX_ARCHIVE_BYTES = 256 * 1024 * 1024
"""How large an archive may be when unpacked, headers included."""

MAX_REPOSITORY_BYTES = 1024 * 1024 * 1024
"""How much a clone may take on disk before it is stopped."""

MAX_FILE_BYTES = 32 * 1024 * 1024
"""How large one file of a skill may be."""

MAX_SKILL_FILES = 5_000
"""How many files a skill may have."""

MAX_SKILL_BYTES = 128 * 1024 * 1024
"""How large all files of a skill may be together."""

MAX_SKILLS = 2_000
"""How many skills one source may offer."""

MAX_PLACED_BYTES = 512 * 1024 * 1024
"""How large all skills that one command places may be together; a skill inside another counts again."""

MAX_INSTRUCTION_BYTES = 64 * 1024 * 1024
"""How large all `SKILL.md` of a source may be together, because each is read before a choice is made."""

MAX_HEADER_BYTES = 64 * 1024
"""How large a header of an archive, or a name in a repository, may be."""

MAX_NAME_BYTES = 255
"""How long one part of a path may be; file systems take no more."""

MAX_PATH_BYTES = 1_024
"""How long a path may be."""

GIT_DIRECTORY = ".git"
"""What git keeps for itself: no part of any skill."""

STAGING = ".deepskills"
"""Where skills wait to be placed: no part of any skill either."""

READ_ONLY = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""How a stranger's file is opened: not through a link, not waiting for a pipe, its bytes as they are."""


class SourceError(SkillsError):
    """A source cannot be used, as a whole; the message says why and what to do."""


def path_fault(path: str) -> str | None:
    """Return why a path of an archive or repository is not written anywhere, or `None` if it stays where it should."""
    if not path or path.startswith("/") or (len(path) > 1 and path[1] == ":"):
        return "it is absolute"
    parts = path.split("/")
    if ".." in parts:
        return "it leads out of the source"
    if "" in parts or "." in parts:
        return "it has an empty part"
    if "\\" in path:
        return "it holds a backslash, which some systems take for a slash"
    return name_fault(path) or size_fault(path)


def name_fault(path: str) -> str | None:
    """Return why no file is written under a path because of its characters."""
    if path.isascii() and path.isprintable():
        return None
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    if any(unicodedata.category(character) in {"Cc", "Cs"} for character in path):
        return "its name holds control characters"
    return None


def size_fault(path: str) -> str | None:
    """Return why a path is too long."""
    # A character takes four bytes at most, so this short a path always fits.
    if len(path) < MAX_NAME_BYTES // 4:
        return None
    is_long = len(path.encode("utf-8", "replace")) > MAX_PATH_BYTES
    if is_long or any(len(part.encode("utf-8", "replace")) > MAX_NAME_BYTES for part in path.split("/")):
        return "its name is too long"
    return None


def name_is_safe(name: str) -> bool:
    """Whether a skill's name can be the name of its directory, on any system."""
    return (
        0 < len(name) <= MAX_SHOWN_NAME_LENGTH
        and path_fault(name) is None
        and not name.startswith((".", "-", " "))
        and not name.endswith((".", " "))
        and not set(name) & set('/<>:"|?*')
    )


def fold_case(path: str) -> str:
    """Return a path as file systems that ignore case and compose accents see it."""
    return unicodedata.normalize("NFC", path).casefold()


def quote_path(path: str) -> str:
    """Return a path for a message, in quotes and with escapes for what cannot be shown."""
    return f"'{path[:200]}'" if path.isprintable() else ascii(path[:200])
