"""Skills written in Python, and the read-only backend that serves them.

`InlineSkill` checks its parts when it is made, so that a mistake raises where it was written and not in the middle of
a conversation. `InlineBackend` answers as deepagents' own file system backend does: the rest of the library, and an
agent's file tools, cannot tell such a skill from one in a directory.
"""

import inspect
import logging
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from langgraph.errors import GraphBubbleUp

from deepskills._errors import SkillFormatError, SkillsError
from deepskills._files.paths import malformed
from deepskills._io.plan import is_missing_error
from deepskills._io.readonly import NOT_FOUND, Content, FilesFound, Purpose, ReadOnlyFiles
from deepskills._skillmd.problems import quoted
from deepskills._skillmd.write import generate_skill_md
from deepskills._types import RESOURCE_TYPE_MAP, SKILL_FILE

logger = logging.getLogger("deepskills")


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
        # `allowed_tools` and `allowed-tools`, the latter by way of a dict.
        if written in fields:
            raise SkillFormatError(f"The frontmatter key {quoted(written)} is given twice.")
        fields[written] = value
    return fields


def check_files(files: Mapping[str, InlineContent]) -> dict[str, InlineContent]:
    """Return the files by composed path.

    Raises:
        SkillFormatError: If a path or a content breaks the rules.
    """
    checked: dict[str, InlineContent] = {}
    for given, content in files.items():
        if not isinstance(given, str):
            raise SkillFormatError(f"The path of a file must be text, got {type(given).__name__}.")
        # File systems write accents in two ways; tools may ask by either.
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
    return malformed(f"{next(iter(RESOURCE_TYPE_MAP))}/{given}")


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


# The skill, and its backend.

_AFTER_SLASH = chr(ord("/") + 1)


class InlineSkill:
    """A skill written in Python; what breaks the format's rules raises when it is made, not when it is used.

    Args:
        name: The skill's name, by the specification's rules.
        description: What it does and when to use it, at most 1,024 characters.
        body: The Markdown instructions, or a function without parameters that returns them. A function is called at
            each read, so a text that changes counts as a changed skill.
        files: Further files by path relative to the skill, such as `scripts/report.py`: text, bytes, or functions
            without parameters.
        **frontmatter: Further frontmatter, with underscores in place of hyphens: `allowed_tools=["read_file"]`.

    Raises:
        SkillFormatError: If a name, a path or a value breaks the rules.
    """

    def __init__(
        self,
        name: str,
        description: str,
        body: InlineText,
        files: Mapping[str, InlineContent] | None = None,
        **frontmatter: object,
    ) -> None:
        if not isinstance(name, str) or not isinstance(description, str):
            raise SkillFormatError("The name and the description of a skill must be text.")
        # Composed, so that the name is the same however a keyboard or a file system writes its accents.
        self.name = unicodedata.normalize("NFC", name)
        self.description = description
        fields = with_hyphens(frontmatter)
        # Written once: only the body may change from read to read, and the check is the expensive part.
        self._head = generate_skill_md(self.name, description, "", fields)
        self._body = body
        if isinstance(body, str):
            # Only to check it: the file is put together at each read.
            generate_skill_md(self.name, description, body, fields)
        else:
            check_function(body, "The body", "text")
        self._files = check_files(files or {})

    def __repr__(self) -> str:
        return f"InlineSkill({self.name!r}, {len(self._files)} further files)"

    @property
    def paths(self) -> list[str]:
        """The paths of its files relative to the skill, `SKILL.md` first."""
        return [SKILL_FILE, *self._files]

    def read(self, path: str) -> bytes:
        """Return the content of one of its files; a function is called again at each read.

        Raises:
            SkillsError: If a function raises, or returns something other than content.
        """
        given = self._body if path == SKILL_FILE else self._files[path]
        content = self._invoke(given, path) if callable(given) else given
        if path == SKILL_FILE:
            if not isinstance(content, str):
                raise SkillsError(f"The function for the body returned {type(content).__name__}. Return text.")
            content = self._head + content
        if isinstance(content, bytes):
            return content
        if not isinstance(content, str):
            raise SkillsError(f"The function for {path} returned {type(content).__name__}. Return text or bytes.")
        try:
            return content.encode()
        except UnicodeEncodeError as error:
            raise SkillsError(f"What the function for {path} returned is not UTF-8 text: {error.reason}.") from None

    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes; `None` if a function makes it."""
        content = self._body if path == SKILL_FILE else self._files[path]
        return None if callable(content) else len(self.read(path))

    def _invoke(self, function: Callable[[], object], path: str) -> object:
        try:
            return function()
        except GraphBubbleUp:
            raise
        # Scripts that were turned into functions call `exit()`.
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it raises is reported as a problem
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            text = f"The function for {path} failed: {reason}"
            if is_missing_error(text):
                # The file is there, whatever its function did not find; nobody may take it for absent.
                logger.warning("The function for %s of skill %r failed: %s", path, self.name, reason)
                text = f"The function for {path} failed: something that it reads is absent; the log has more"
            raise SkillsError(text) from None


class InlineBackend(ReadOnlyFiles):
    """A read-only backend that holds each skill at `/<name>/`.

    Pass it alone (`backend=InlineBackend([...]), sources=["/"]`) or mount it beside others with `CompositeBackend`.

    Raises:
        SkillFormatError: If two skills have the same name.
    """

    holds = "Skills written in Python"

    def __init__(self, skills: Iterable[InlineSkill]) -> None:
        self._files: dict[str, tuple[InlineSkill, str]] = {}
        seen: set[str] = set()
        for skill in skills:
            if not isinstance(skill, InlineSkill):
                raise SkillFormatError(f"InlineBackend takes InlineSkill objects, got {type(skill).__name__}.")
            if skill.name in seen:
                raise SkillFormatError(f"Two skills are named {quoted(skill.name)}. Names must be unique.")
            seen.add(skill.name)
            self._files |= {f"/{skill.name}/{path}": (skill, path) for path in skill.paths}
        self._paths = sorted(self._files)
        self._sizes = {path: skill.size(relative) for path, (skill, relative) in self._files.items()}

    def find_files(self, root: str, purpose: Purpose) -> FilesFound:  # noqa: ARG002 - the same for all
        """Return the files at and below a path."""
        own = [root] if root in self._files else []
        # What lies below a directory stands together.
        below = self._paths[bisect_left(self._paths, f"{root}/") : bisect_left(self._paths, f"{root}{_AFTER_SLASH}")]
        return {path: self._sizes[path] for path in (*own, *below)}

    def read_contents(self, paths: Sequence[str]) -> list[Content]:
        """Return the content of each file, or why it cannot be read."""
        return [self._content(path) for path in paths]

    def _content(self, path: str) -> Content:
        if path not in self._files:
            return "is_directory" if self.find_files(path, "list") or not path else NOT_FOUND
        skill, relative = self._files[path]
        try:
            return skill.read(relative)
        except SkillsError as error:
            return str(error)
