"""Skills written in Python, and the read-only backend that serves them.

`InlineSkill` checks its parts when it is made, so that a mistake raises where it was written and not in the middle of
a conversation. `InlineBackend` answers as deepagents' own file system backend does: the rest of the library, and an
agent's file tools, cannot tell such a skill from one in a directory.
"""

import base64
import inspect
import logging
import mimetypes
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TypeAlias

from deepagents.backends.protocol import (
    BackendProtocol,
    DeleteResult,
    EditResult,
    FileData,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    ReadResult,
    WriteResult,
)
from deepagents.backends.utils import (
    InvalidGlobPatternError,
    compile_grep_include_glob,
    grep_matches_from_files,
    slice_read_response,
)
from langgraph.errors import GraphBubbleUp

from deepskills._errors import SkillFormatError, SkillsError
from deepskills._files.paths import malformed
from deepskills._io.plan import is_missing_error
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


def checked_files(files: Mapping[str, InlineContent]) -> dict[str, InlineContent]:
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

_BINARY_TYPES = frozenset({"image", "audio", "video"})
_BINARY_SUFFIXES = (".pdf", ".ppt", ".pptx", ".mkv")
_TEXT_SUFFIXES = (".ts", ".svg")
"""Suffixes of text files that the table of media types takes for videos and images."""


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
        self._files = checked_files(files or {})

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
        content = self._called(given, path) if callable(given) else given
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

    def _called(self, function: Callable[[], object], path: str) -> object:
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


class ReadOnlyBackend(BackendProtocol):
    """A backend that refuses every write, and says why in one sentence."""

    is_read_only = True
    """Tells that no model need be sent here to create skills."""

    holds = "Files here"
    """Whose files they are, as the beginning of that sentence."""

    def _refusal(self, path: str) -> str:
        return f"{self.holds} are read-only: '{path}' cannot be changed. Write to another directory."

    def write(self, file_path: str, content: str) -> WriteResult:  # noqa: ARG002 - the protocol's signature
        """Refuse."""
        return WriteResult(error=self._refusal(file_path))

    def edit(
        self,
        file_path: str,
        old_string: str,  # noqa: ARG002 - the protocol's signature
        new_string: str,  # noqa: ARG002 - the protocol's signature
        replace_all: bool = False,  # noqa: ARG002, FBT001, FBT002 - the protocol's signature
    ) -> EditResult:
        """Refuse."""
        return EditResult(error=self._refusal(file_path))

    def delete(self, file_path: str) -> DeleteResult:
        """Refuse."""
        return DeleteResult(error=self._refusal(file_path))

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Refuse."""
        return [FileUploadResponse(path=path, error="permission_denied") for path, _content in files]


class InlineBackend(ReadOnlyBackend):
    """A read-only backend that holds each skill at `/<name>/`.

    Pass it alone (`backend=InlineBackend([...]), sources=["/"]`) or mount it beside others with `CompositeBackend`.

    Raises:
        SkillFormatError: If two skills have the same name.
    """

    holds = "Skills written in Python"

    def __init__(self, skills: Iterable[InlineSkill]) -> None:
        self._files: dict[str, tuple[InlineSkill, str]] = {}
        self._directories: dict[str, dict[str, FileInfo]] = {"": {}}
        seen: set[str] = set()
        for skill in skills:
            if not isinstance(skill, InlineSkill):
                raise SkillFormatError(f"InlineBackend takes InlineSkill objects, got {type(skill).__name__}.")
            if skill.name in seen:
                raise SkillFormatError(f"Two skills are named {quoted(skill.name)}. Names must be unique.")
            seen.add(skill.name)
            for path in skill.paths:
                self._add(skill, path)

    def _add(self, skill: InlineSkill, path: str) -> None:
        full = f"/{skill.name}/{path}"
        self._files[full] = (skill, path)
        directory = full.rpartition("/")[0]
        size = skill.size(path)
        info = FileInfo(path=full, is_dir=False)
        self._directories.setdefault(directory, {})[full] = info if size is None else FileInfo(**info, size=size)
        # Up to the root, or to a directory that an earlier file has already entered.
        while directory:
            parent = directory.rpartition("/")[0]
            entries = self._directories.setdefault(parent, {})
            if directory in entries:
                break
            entries[directory] = FileInfo(path=f"{directory}/", is_dir=True, size=0)
            directory = parent

    def ls(self, path: str) -> LsResult:
        """List what lies directly in a directory."""
        key = _key(path)
        if key is None:
            return LsResult(error=f"Path '{path}': invalid_path")
        if key in self._files:
            return LsResult(error=f"Path '{path}': not_a_directory")
        if key not in self._directories:
            return LsResult(error=f"Path '{path}': path_not_found")
        entries = self._directories[key]
        return LsResult(entries=[FileInfo(**entries[name]) for name in sorted(entries)])

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Return the content of each file, or the reason why there is none."""
        return [self._download(path) for path in paths]

    def _download(self, path: str) -> FileDownloadResponse:
        key = _key(path)
        if key is None:
            return FileDownloadResponse(path=path, error="invalid_path")
        if key in self._directories:
            return FileDownloadResponse(path=path, error="is_directory")
        if key not in self._files:
            return FileDownloadResponse(path=path, error="file_not_found")
        skill, relative = self._files[key]
        try:
            return FileDownloadResponse(path=path, content=skill.read(relative))
        except SkillsError as error:
            return FileDownloadResponse(path=path, error=str(error))

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Return the lines of a text file, or a whole binary file in base64."""
        key = _key(file_path)
        if key is None or key not in self._files:
            return ReadResult(error=f"File '{file_path}' not found")
        skill, relative = self._files[key]
        try:
            data = _file_data(key, skill.read(relative))
        except SkillsError as error:
            return ReadResult(error=f"Error reading file '{file_path}': {error}")
        return ReadResult(file_data=data) if data["encoding"] == "base64" else slice_read_response(data, offset, limit)

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by a pattern, relative to `path`."""
        try:
            is_match = compile_grep_include_glob(pattern)
        except InvalidGlobPatternError as error:
            return GlobResult(error=str(error))
        key = _key(path or "/")
        if key is None or key not in self._directories:
            return GlobResult(matches=[])
        found = sorted(name for name, relative in self._below(key) if is_match(relative))
        return GlobResult(matches=[FileInfo(**self._directories[name.rpartition("/")[0]][name]) for name in found])

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Search text files for a literal text; a file whose function fails is passed over, and logged."""
        try:
            is_match = compile_grep_include_glob(glob) if glob else None
        except InvalidGlobPatternError as error:
            return GrepResult(error=str(error))
        key = _key(path or "/")
        files: dict[str, FileData] = {}
        for name, relative in self._below(key) if key is not None else ():
            if is_match is None or is_match(relative):
                skill, own_path = self._files[name]
                try:
                    files[name] = _file_data(name, skill.read(own_path))
                except SkillsError:
                    logger.debug("Passed over %s in a search", name)
        return grep_matches_from_files(files, pattern, "/", max_count=max_count)

    def _below(self, key: str) -> Iterator[tuple[str, str]]:
        """Yield the files at or below a path, each as backend path and as path relative to it."""
        if key in self._files:
            yield key, key.rpartition("/")[2]
        elif key in self._directories:
            for name, info in self._directories[key].items():
                if info.get("is_dir"):
                    yield from ((found, found[len(key) + 1 :]) for found, _relative in self._below(name))
                else:
                    yield name, name[len(key) + 1 :]


def _key(path: str) -> str | None:
    """Return a path as the index knows it: composed, without a slash at its end; `None` if it is not a path."""
    if not isinstance(path, str) or "\x00" in path:
        return None
    parts = [part for part in unicodedata.normalize("NFC", path).split("/") if part not in {"", "."}]
    # Refused and not resolved: nothing here lies above the root.
    return None if ".." in parts else "".join(f"/{part}" for part in parts)


def _file_data(path: str, content: bytes) -> FileData:
    """Return a file as deepagents hands it on: text as it is, anything else in base64."""
    media_type = mimetypes.guess_type(path)[0] or ""
    suffixes = path.lower()
    is_binary = suffixes.endswith(_BINARY_SUFFIXES) or (
        media_type.partition("/")[0] in _BINARY_TYPES and not suffixes.endswith(_TEXT_SUFFIXES)
    )
    if not is_binary:
        try:
            return FileData(content=content.decode(), encoding="utf-8")
        except UnicodeDecodeError:
            pass
    return FileData(content=base64.b64encode(content).decode(), encoding="base64")
