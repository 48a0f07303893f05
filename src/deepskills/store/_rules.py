"""What a stored skill may be: names, paths, sizes, tags. Pure; breaking a rule raises."""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from deepskills._errors import SkillFormatError, SkillPathError
from deepskills._files.paths import refusal
from deepskills._format import names as _naming
from deepskills._format.problems import quoted
from deepskills._format.text import one_line
from deepskills._types import MAX_NAME_LENGTH, MAX_SKILL_FILE_BYTES, SKILL_FILE
from deepskills.store._errors import SkillTooLargeError

MAX_OWNER_LENGTH = 255
"""Longest user id."""

MAX_PATH_LENGTH = 512
"""Longest file path; databases index it."""

MAX_TAGS = 50
"""How many tags a skill may have."""

MAX_TAG_LENGTH = 64
"""Longest tag."""

_DOTS_IN_A_NAME = re.compile(r"\.\.+(?=[^/.])")


@dataclass(frozen=True)
class StoreLimits:
    """How large skills may be, and which files they may hold.

    Args:
        file_bytes: Largest file of a skill, its `SKILL.md` aside, which may have 10 MiB.
        skill_bytes: Largest sum of a skill's files.
        files: How many files a skill may have.
        extensions: The allowed ends of file names, such as `.md` and `.py`; `None` allows all.
    """

    file_bytes: int = 10 * 1024 * 1024
    skill_bytes: int = 64 * 1024 * 1024
    files: int = 4_000
    extensions: frozenset[str] | None = None

    def check_files(self, new: Mapping[str, int], kept: Mapping[str, int] | None = None) -> None:
        """Check files that a skill gets, given by path and size, and all of them together with those it has.

        Raises:
            SkillTooLargeError: If they are too many, or one or all are too large.
            SkillPathError: If a path is refused, or one is both a file and a directory.
            SkillFormatError: If the allow-list does not have a file's extension.
        """
        sizes = {**(kept or {}), **new}
        if len(sizes) > self.files:
            raise SkillTooLargeError(f"The skill would have {len(sizes)} files; at most {self.files} are kept.")
        # What was kept by other rules is no reason to refuse what keeps these.
        for path, size in new.items():
            self._check_file(path, size)
        total = sum(sizes.values())
        if total > self.skill_bytes:
            raise SkillTooLargeError(
                f"The skill's files would take {total} bytes; at most {self.skill_bytes} are kept. Remove some."
            )
        directories = {str(parent) for path in sizes for parent in PurePosixPath(path).parents}
        both = sorted(directories & sizes.keys())
        if both:
            raise SkillPathError(f"The path {quoted(both[0])} is a file and a directory at once. Rename one of them.")

    def _check_file(self, path: str, size: int) -> None:
        check_path(path)
        if size > self.file_bytes:
            raise SkillTooLargeError(
                f"The file {quoted(path)} is {size} bytes; at most {self.file_bytes} are kept. Split or shrink it."
            )
        if self.extensions is None:
            return
        extension = PurePosixPath(path).suffix.casefold()
        allowed = {f".{name.lstrip('.').casefold()}" if name else "" for name in self.extensions}
        if extension not in allowed:
            raise SkillFormatError(
                f"The file {quoted(path)} is of a kind that this store does not keep. "
                f"Allowed are: {', '.join(sorted(allowed))}."
            )


def name_key(name: str) -> str:
    """Return what two spellings of one name have in common, whatever their case."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def check_name(name: str) -> None:
    """Check a skill's name by the rules of the specification.

    Raises:
        SkillFormatError: If the name breaks them.
    """
    if _naming.is_too_long(name):
        raise SkillFormatError(f"The name is {len(name)} characters long; at most {MAX_NAME_LENGTH} are allowed.")
    if not _naming.is_valid_name(name):
        raise SkillFormatError(
            f"The name {quoted(name)} breaks the naming rules. "
            "Use lower-case letters, digits and single hyphens between them."
        )


def check_path(path: str) -> None:
    """Check that `path` is relative and names a file inside a skill, other than its `SKILL.md`.

    Raises:
        SkillPathError: If it is refused.
    """
    if path.casefold() == SKILL_FILE.casefold():
        raise SkillPathError(f"{SKILL_FILE} is the skill's own text. Set `content` instead of adding a file.")
    if len(path) > MAX_PATH_LENGTH:
        raise SkillPathError(f"The path {quoted(path)} is longer than {MAX_PATH_LENGTH} characters. Shorten it.")
    # Any directory will do here: skills bring files beside the three that the specification names.
    reason = "it is not relative" if path.startswith(("/", "~")) else refusal(f"assets/{path}")
    if reason is not None:
        raise SkillPathError(
            f"The path {quoted(storable(path))} is refused: {reason}. Give a path relative to the skill, such as "
            "`references/guide.md`, without `..`, backslashes, drive letters, percent-encoded or invisible characters."
        )


def check_kept_path(path: str) -> None:
    """Check a path that the tables have, by all rules but one: a name that merely holds `..` leads nowhere else.

    Raises:
        SkillPathError: If it is refused.
    """
    check_path(_DOTS_IN_A_NAME.sub("_", path))


def check_text(field: str, text: str) -> None:
    """Check that every database can keep `text`.

    Raises:
        SkillFormatError: If it holds a NUL or half of a surrogate pair.
    """
    if storable(text) != text:
        raise SkillFormatError(f"The {field} holds NUL or broken Unicode characters. Remove them.")


def storable(text: str) -> str:
    """Return `text` with what no database keeps replaced."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def check_skill_size(size: int) -> None:
    """Check the size of a `SKILL.md`.

    Raises:
        SkillTooLargeError: If it is over the limit of the reader.
    """
    if size > MAX_SKILL_FILE_BYTES:
        raise SkillTooLargeError(
            f"The SKILL.md would be {size} bytes; at most {MAX_SKILL_FILE_BYTES} are kept. "
            "Move long material into files."
        )


def checked_tags(tags: Iterable[str]) -> list[str]:
    """Return the tags, each once in any case.

    Raises:
        SkillFormatError: If there are too many, or one is empty, too long, or more than a plain word or phrase.
    """
    distinct: dict[str, str] = {}
    for tag in tags:
        distinct.setdefault(tag.strip().casefold(), tag.strip())
    found = list(distinct.values())
    if len(found) > MAX_TAGS:
        raise SkillFormatError(f"The skill would have {len(found)} tags; at most {MAX_TAGS} are kept. Remove some.")
    for tag in found:
        check_text("tag", tag)
        if not tag or len(tag) > MAX_TAG_LENGTH or "," in tag or one_line(tag) != tag:
            raise SkillFormatError(
                f"The tag {quoted(tag)} cannot be kept. "
                f"Use 1 to {MAX_TAG_LENGTH} characters on one line, without commas."
            )
    return found


def owner_key(user_id: object) -> str | None:
    """Return a user id as the store keeps it; `None` is nobody.

    Raises:
        SkillFormatError: If it is empty, too long, or cannot be kept.
    """
    if user_id is None:
        return None
    owner = str(user_id)
    check_text("user id", owner)
    if not owner or len(owner) > MAX_OWNER_LENGTH:
        raise SkillFormatError(
            f"A user id has 1 to {MAX_OWNER_LENGTH} characters, got {len(owner)}. Pass None for nobody."
        )
    return owner
