"""What the parts of a skill written in Python must be. Pure."""

import inspect
import unicodedata
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from deepskills._errors import SkillFormatError
from deepskills._files.inventory import RESOURCE_DIRECTORIES
from deepskills._files.paths import refusal
from deepskills._format.problems import quoted
from deepskills._types import SKILL_FILE

InlineText: TypeAlias = str | Callable[[], str]
"""A text, or a function that returns it at each read."""

InlineContent: TypeAlias = str | bytes | Callable[[], str | bytes]
"""A file's content, or a function that returns it at each read."""

UNDERSCORED_KEYS = frozenset({"when_to_use"})
"""Frontmatter keys that are written with underscores; in all others an underscore stands for a hyphen."""


def with_hyphens(frontmatter: Mapping[str, object]) -> dict[str, object]:
    """Return frontmatter that was given as keyword arguments by the keys that files use.

    Raises:
        SkillFormatError: If two spellings of one key are given.
    """
    fields: dict[str, object] = {}
    for key, value in frontmatter.items():
        written = key if key in UNDERSCORED_KEYS else key.replace("_", "-")
        if written in fields:
            raise SkillFormatError(f"The frontmatter key {quoted(written)} is given twice.")
        fields[written] = value
    return fields


def checked_files(files: Mapping[str, InlineContent]) -> dict[str, InlineContent]:
    """Return the files by composed path.

    Raises:
        SkillFormatError: If a path or a content breaks the rules.
    """
    checked: dict[str, InlineContent] = {}
    for given, content in files.items():
        if not isinstance(given, str):
            raise SkillFormatError(f"The path of a file must be text, got {type(given).__name__}.")
        path = unicodedata.normalize("NFC", given)
        reason = "it is given twice" if path in checked else _path_refusal(given, path)
        if reason is not None:
            raise SkillFormatError(f"The path {quoted(given)} is refused: {reason}. Use one like `scripts/report.py`.")
        if isinstance(content, str):
            _check_encodable(content, path)
        elif not isinstance(content, bytes):
            check_function(content, f"The file {quoted(path)}", "text, bytes")
        checked[path] = content
    _check_directories(checked)
    return checked


def _path_refusal(given: str, path: str) -> str | None:
    if path.casefold() == SKILL_FILE.casefold():
        return "the body is the content of that file"
    if given.startswith(("/", "~")):
        return "it is not relative"
    # The rules for paths into a skill, whatever directory of it they lead to.
    return refusal(f"{next(iter(RESOURCE_DIRECTORIES))}/{given}")


def _check_directories(paths: Collection[str]) -> None:
    """Raise if a path is a file and, by another path, a directory."""
    for path in paths:
        parent = path.rpartition("/")[0]
        while parent:
            if parent in paths or parent.casefold() == SKILL_FILE.casefold():
                raise SkillFormatError(f"The path {quoted(parent)} is a file and a directory. Rename one of them.")
            parent = parent.rpartition("/")[0]


def _check_encodable(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SkillFormatError(f"The file {quoted(path)} cannot be written as UTF-8: {error.reason}.") from None


def check_function(value: object, what: str, kinds: str) -> None:
    """Raise unless a value is a function that can be called at any read, sync or async."""
    if not callable(value):
        raise SkillFormatError(f"{what} must be {kinds} or a function that returns it, got {type(value).__name__}.")
    if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(getattr(value, "__call__", None)):  # noqa: B004
        raise SkillFormatError(f"{what} is an async function. Give a plain one; async agents call it in a thread.")
    try:
        inspect.signature(value).bind()
    except TypeError:
        raise SkillFormatError(f"{what} is a function with parameters. Give one that takes none.") from None
    except ValueError:
        # Some built-in functions have no signature to look at.
        return
