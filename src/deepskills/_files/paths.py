"""Decides which paths may name a file of a skill.

Paths come from models, users and skill files. The check is a list of refusals, each with its reason, and goes by the
text alone: whatever could mean something else to another layer (an encoded dot, a backslash, a look-alike of a slash,
a drive) is refused instead of being decoded, because decoding twice is how such checks are passed. Links are the
other half of the problem and are resolved in `assets.py`.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias
from urllib.parse import unquote

from deepskills._errors import SkillPathError
from deepskills._skillmd.problems import quoted
from deepskills._types import RESOURCE_TYPE_MAP, SKILL_FILE

MAX_PATH_LENGTH = 1024
"""Longest path below a skill's directory."""

MAX_PART_LENGTH = 255
"""Longest name of a file or directory."""

AssetDirectories: TypeAlias = Literal["all"] | Sequence[str]
"""Where a skill's files may be read: the directories named, or `"all"`: everywhere but `SKILL.md` and hidden files."""

STANDARD_DIRECTORIES: tuple[str, ...] = tuple(RESOURCE_TYPE_MAP)
"""The directories of the specification."""

_ENCODED = re.compile(r"%(?:2e|2f|5c|00|25|c0|c1|e0|u|%)", re.IGNORECASE)
_DRIVE = re.compile(r"[A-Za-z]:")
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
_LOOKALIKES = frozenset("\u2024\u2025\u2026\u2044\u2215\u2216\u29f5\u29f8\u29f9\ufe52\ufe68\uff0e\uff0f\uff3c")
_EMPTY_STEPS = re.compile(r"/(?:\.?/)+")


def check_directories(directories: AssetDirectories) -> AssetDirectories:
    """Return `"all"`, or the names as a tuple, each once.

    Raises:
        ValueError: If a name cannot be that of a directory in a skill.
    """
    if directories == "all":
        return "all"
    is_sequence = isinstance(directories, Sequence) and not isinstance(directories, str | bytes)
    if not is_sequence or not all(isinstance(name, str) for name in directories):
        raise ValueError(f'asset_directories must be "all" or a sequence of directory names, got {directories!r}')
    for name in directories:
        if "/" in name or refusal(f"{name}/file", (name,)) is not None:
            raise ValueError(f"asset_directories: {name!r} is not the name of a directory in a skill")
    return tuple(dict.fromkeys(directories))


def check_relative(path: str, directories: AssetDirectories = STANDARD_DIRECTORIES) -> str:
    """Return `path` without `./` and doubled slashes, if it is relative and lies where files may be read.

    Raises:
        SkillPathError: If it is refused; the message says why.
    """
    tidy = normalise_path(path)
    reason = refusal(tidy, directories)
    if reason is not None:
        raise SkillPathError(f"The path {quoted(path)} is refused: {reason}. {_advice(directories)}")
    return tidy


def normalise_path(path: str) -> str:
    """Return `path` without steps that lead nowhere: `./` and doubled slashes; absolute paths and addresses stay."""
    # Those are refused later, with the reason; tidied up they might pass.
    if path.startswith("/") or "://" in path or ("./" not in path and "//" not in path):
        return path
    tidy = _EMPTY_STEPS.sub("/", path)
    while tidy.startswith("./"):
        tidy = tidy[2:]
    return tidy


def path_of_call(path: str) -> str:
    """Return which path a file tool opens for an argument: absolute, with no doubled slash and no step in it.

    Whoever judges a call by its path must mean the file that will be opened, so this reads paths as the file tools do:
    a backslash separates as well, and steps count after it was turned around. A path with `..`, which they refuse, is
    still judged as the file that it would reach.
    """
    parts: list[str] = []
    for part in path.replace("\\", "/").split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in {"", "."}:
            parts.append(part)
    return "/" + "/".join(parts)


def fold_path(path: str) -> str:
    """Return a path as file systems that ignore case and Unicode form compare it."""
    return path.casefold() if path.isascii() else unicodedata.normalize("NFKC", path).casefold()


def is_hidden(name: str) -> bool:
    """Whether a file or directory of this name is never a resource: secrets and tools' own files begin with a dot."""
    return name.startswith(".")


def is_closed(relative: str, closed: Sequence[str]) -> bool:
    """Whether a path lies in a directory that is closed, in any spelling."""
    return bool(closed) and any(fold_path(relative).startswith(f"{fold_path(name)}/") for name in closed)


def refusal(path: str, directories: AssetDirectories = STANDARD_DIRECTORIES) -> str | None:
    """Return why a normalised path is refused; `None` if it is not."""
    return malformed(path) or _explain_misplaced(path.split("/"), directories)


def malformed(path: str) -> str | None:
    """Return why a path cannot name a file below a skill, wherever in it; `None` if it can."""
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
        # Also inside a name: no honest file needs it, and some layers read it as a step.
        (".." in path, "it holds `..`"),
        ("" in parts or "." in parts, "it holds an empty step"),
        # Windows drops dots and spaces at the end, so that two spellings would name one file.
        (any(part != part.strip() or part.endswith(".") for part in parts), "a name in it ends with a space or a dot"),
    )
    return next((reason for refused, reason in checks if refused), None)


def _explain_misplaced(parts: Sequence[str], directories: AssetDirectories) -> str | None:
    """Return why a well-formed path does not lie where files may be read; `None` if it does."""
    if any(is_hidden(part) for part in parts):
        return "it is hidden"
    if directories != "all":
        is_inside = parts[0] in directories and len(parts) > 1
        return None if is_inside else "it is in none of the skill's directories for files to read"
    if len(parts) == 1 and parts[0].casefold() == SKILL_FILE.casefold():
        return f"{SKILL_FILE} is read by loading the skill"
    return None


def _advice(directories: AssetDirectories) -> str:
    if directories == "all":
        return "Give a path like `references/guide.md`, relative to the skill's directory."
    return f"Give a path like `references/guide.md` inside {', '.join(f'`{name}/`' for name in directories)}."


def _bytes(part: str) -> int:
    return len(part.encode("utf-8", "surrogatepass"))


def _holds_lookalikes(path: str) -> bool:
    """Whether normalizing would make a dot or a separator out of something else."""
    if path.isascii():
        return False
    if any(character in _LOOKALIKES for character in path):
        return True
    return any(
        # The table above is not complete: any character that a later layer would normalize to a mark is refused.
        not character.isascii() and any(mark in unicodedata.normalize("NFKC", character) for mark in "./\\%")
        for character in path
    )


def is_allowed(path: str, directories: AssetDirectories = STANDARD_DIRECTORIES) -> bool:
    """Whether a relative path, as a listing gives it, names a file that may be read."""
    return refusal(path, directories) is None


def script_to_relative(script_name: str) -> str:
    """Return a script's path below its skill; a leading `scripts/` is fine, and an absolute path stays one."""
    tidy = normalise_path(script_name)
    return tidy if tidy.startswith(("scripts/", "/")) else f"scripts/{tidy}"


# Paths that a skill's instructions name. Authors put files wherever they like: `templates/letter.md`,
# `reference/forms/tax.md`. What the instructions name is what the model will ask for, so a load lists it with its full
# path. The search is linear in the text.


MAX_SCANNED = 1_000_000
"""How many characters of instructions are searched for paths; the largest seen in public skills is under half of it."""

MAX_NAMED = 2_000
"""How many distinct paths of one text are looked at."""

_OWN_DIRECTORY = re.compile(r"(?:\$\{(?:CLAUDE_)?SKILL_DIR\}|\{baseDir\})/+")
_LINK = re.compile(r"\]\(\s{0,3}<?([^()<>\s]{1,1024})")
_PATH = re.compile(r"(?<![\w./\\~@:$%{}-])(?:\./)?+[\w-][\w.-]*+(?:/[\w.-]+)++")


def find_named_paths(text: str) -> list[str]:
    """Return the relative paths that a text may name, normalised, each once and in order.

    They are candidates: only a listing can tell which are files of the skill.
    """
    # `{baseDir}/x` names the same file as `x`.
    scanned = _OWN_DIRECTORY.sub("", text[:MAX_SCANNED])
    found: dict[str, None] = {}
    for candidate in _candidates(scanned):
        path = normalise_path(candidate)
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
