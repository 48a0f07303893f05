"""Skills as servers describe them: entries of `skills/list` and `skills/get`, checked field by field. Pure.

An entry is a stranger's claim. All of it is checked before any of it is used: its URIs become paths below the server's
label, so an entry is refused if anything in it could make one file look like another or lead out of the skill. A valid
entry becomes a `ServedSkill`; later reads are compared with that, never with what the server says by then.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_to_bytes

from deepskills._skillmd.names import name_key
from deepskills._skillmd.problems import quoted
from deepskills._skillmd.read import read_fields, read_skill
from deepskills._skillmd.text import clean_name
from deepskills._skillmd.yaml import MAX_EVENTS, NULLS, FrontmatterError, Notes, compose
from deepskills._types import (
    MAX_FRONTMATTER_BYTES,
    MAX_SHOWN_NAME_LENGTH,
    MAX_SKILL_FILE_BYTES,
    SKILL_FILE,
)

MAX_FILES = 512
"""How many files a skill may have."""

MAX_BYTES = 16 * 1024 * 1024
"""Largest total size of a skill's files."""

MAX_URI_LENGTH = 1_024
"""Longest URI of a skill or a file."""

MAX_SEGMENTS = 32
"""How many directories deep a file may be."""

MAX_SEGMENT_LENGTH = 255
"""Longest name of a directory or a file."""

DYNAMIC = "dynamic"
"""The value in place of a list of files that may change with every read."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,63}:")
_DIGEST = re.compile(r"sha256:[0-9A-Fa-f]{64}")
_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})|%(?:2[EeFf]|5[Cc]|00)")
"""An invalid escape, or one for a dot, a separator or NUL."""
_HASH_LENGTH = 8


class EntryError(Exception):
    """An entry, or a whole listing, cannot be used; has the code of the problem, and its values."""

    def __init__(self, code: str, uri: str = "", **values: object) -> None:
        super().__init__(code)
        self.code = code
        self.uri = uri
        self.values = values


@dataclass(frozen=True, slots=True)
class ServedFile:
    """A file as its skill's entry describes it."""

    uri: str
    path: str
    """Its path inside the skill."""

    digest: str
    """SHA-256 of its content, in lower-case hexadecimal."""

    size: int


@dataclass(frozen=True)
class ServedSkill:
    """A skill as a server described it; never changes."""

    label: str
    """The host's own name for the server."""

    uri: str
    path: str
    """The path of its directory below the label."""

    frontmatter: Mapping[str, Any] = field(repr=False, compare=False)
    files: Mapping[str, ServedFile] | None = field(repr=False, compare=False)
    """Its files by path inside the skill; `None` if they are dynamic."""

    weight: int = field(repr=False)
    """How many bytes it takes in memory, roughly."""

    digest: str
    """Changes with the origin, the frontmatter and the content of any file."""

    @property
    def name(self) -> str:
        """The name from its frontmatter."""
        return str(self.frontmatter["name"])

    @property
    def is_dynamic(self) -> bool:
        """Whether the server does not say what its files contain."""
        return self.files is None

    def file_uri(self, path: str) -> str | None:
        """Return the URI of a file inside the skill; for a dynamic one only `SKILL.md` is known."""
        if self.files is None:
            return self.uri if path == SKILL_FILE else None
        found = self.files.get(path)
        return found.uri if found is not None else None

    def mismatch(self, path: str, content: bytes) -> str | None:
        """Return how content differs from what the entry says about a file, or `None` if it does not."""
        if self.files is not None:
            described = self.files.get(path)
            if described is None:
                return "the file is not in the skill's entry"
            # The cheaper comparison first, which also says more.
            if len(content) != described.size:
                return f"it has {len(content)} bytes, and the entry says {described.size}"
            if hashlib.sha256(content).hexdigest() != described.digest:
                return "its SHA-256 is not the one in the entry"
        elif len(content) > MAX_BYTES:
            return f"it has more than {MAX_BYTES} bytes"
        if path == SKILL_FILE:
            differing = _differing(self.frontmatter, content, self.path)
            if differing:
                shown = ", ".join(quoted(key) for key in differing[:5])
                return f"its frontmatter differs from the entry in {shown}"
        return None


def parse_entry(label: str, given: object) -> ServedSkill:
    """Return the skill that an entry describes.

    Raises:
        EntryError: If the entry breaks a rule, or the skill is too large.
    """
    if not isinstance(given, Mapping):
        raise EntryError("mcp-entry-invalid", reason="it is not an object")
    uri = given.get("uri")
    if not isinstance(uri, str):
        raise EntryError("mcp-entry-invalid", reason="it has no uri")
    root, segments = _split_uri(uri, uri)
    if len(segments) < 2 or segments[-1] != SKILL_FILE:  # noqa: PLR2004 - a directory and the file
        raise EntryError("mcp-entry-invalid", uri, reason=f"its uri does not end with a directory and {SKILL_FILE}")
    frontmatter, size = _frontmatter(given.get("frontmatter"), uri)
    # As the extension demands, so that one skill cannot take another's address.
    if segments[-2] != frontmatter["name"]:
        raise EntryError("mcp-entry-invalid", uri, reason="the last directory of its uri is not its name")
    if "resources" not in given:
        raise EntryError("mcp-entry-invalid", uri, reason="it does not say which files the skill has")
    files = _files(given["resources"], uri, root, len(segments) - 1)
    path = "/".join(segments[:-1])
    # Sorted: the order of a server's list is not part of the content.
    described = sorted((file.uri, file.digest, file.size) for file in files.values()) if files is not None else DYNAMIC
    known = json.dumps([label, uri, frontmatter, described], sort_keys=True).encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(known, digest_size=16).hexdigest()
    # Texts take up to four bytes a character; a file has its URI, its path, its digest and its place.
    weight = 1_000 + 4 * size + sum(400 + 2 * len(file.uri) for file in (files or {}).values())
    return ServedSkill(label, uri, path, frontmatter, files, weight, digest)


def _split_uri(uri: str, owner: str) -> tuple[str, list[str]]:
    """Return a URI up to its last slash, and its decoded segments, without the scheme."""
    if len(uri) > MAX_URI_LENGTH:
        raise EntryError("mcp-entry-invalid", owner[:80], reason=f"a uri is longer than {MAX_URI_LENGTH} characters")
    scheme = _SCHEME.match(uri)
    if scheme is None:
        raise EntryError("mcp-entry-invalid", owner, reason="a uri has no scheme")
    rest = uri[scheme.end() :]
    if not rest.isprintable() or any(mark in rest for mark in ' \\?#"<>^`{|}'):
        raise EntryError("mcp-entry-invalid", owner, reason="a uri holds characters that are not allowed in a path")
    authority = rest[2:].partition("/")[0] if rest.startswith("//") else ""
    if "@" in authority:
        raise EntryError("mcp-entry-invalid", owner.partition(":")[0], reason="a uri holds a user's name or password")
    if _ESCAPE.search(rest):
        raise EntryError(
            "mcp-entry-invalid", owner, reason="a uri holds an encoded dot or separator, or a broken escape"
        )
    # `skill:///name/SKILL.md` has an empty authority; nothing else may be empty.
    raw = rest.removeprefix("//").removeprefix("/").split("/")
    segments = [_segment(part, owner) for part in raw]
    if len(segments) > MAX_SEGMENTS:
        raise EntryError("mcp-entry-invalid", owner, reason=f"a uri has more than {MAX_SEGMENTS} directories")
    return uri.rpartition("/")[0] + "/", segments


def _segment(raw: str, owner: str) -> str:
    try:
        text = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise EntryError("mcp-entry-invalid", owner, reason="a uri holds escapes that are not UTF-8") from None
    is_good = text not in {"", ".", ".."} and text.isprintable() and "/" not in text and "\\" not in text
    if not is_good or len(text) > MAX_SEGMENT_LENGTH:
        raise EntryError("mcp-entry-invalid", owner, reason="a part of a uri cannot be the name of a file")
    return text


def _frontmatter(given: object, uri: str) -> tuple[Mapping[str, Any], int]:
    """Return frontmatter and its size."""
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise EntryError("mcp-entry-invalid", uri, reason="it has no frontmatter")
    for key in ("name", "description"):
        if not isinstance(given.get(key), str) or not given[key].strip():
            raise EntryError("mcp-entry-invalid", uri, reason=f"its frontmatter has no {key}")
    try:
        size = len(json.dumps(given, ensure_ascii=False, allow_nan=False).encode())
    except (ValueError, RecursionError, TypeError):
        raise EntryError("mcp-entry-invalid", uri, reason="its frontmatter is not text, or nested too deep") from None
    if size > MAX_FRONTMATTER_BYTES:
        raise EntryError("mcp-too-large", uri, reason=f"its frontmatter is larger than {MAX_FRONTMATTER_BYTES} bytes")
    return given, size


def _files(given: object, uri: str, root: str, depth: int) -> dict[str, ServedFile] | None:
    if given == DYNAMIC:
        return None
    if not isinstance(given, list):
        raise EntryError("mcp-entry-invalid", uri, reason='its resources are neither a list nor "dynamic"')
    if len(given) > MAX_FILES:
        raise EntryError("mcp-too-large", uri, reason=f"it has more than {MAX_FILES} files")
    files: dict[str, ServedFile] = {}
    for item in given:
        file = _file(item, uri, root, depth)
        if file.path in files:
            raise EntryError("mcp-entry-invalid", uri, reason="it names a file twice")
        files[file.path] = file
    if SKILL_FILE not in files or files[SKILL_FILE].uri != uri:
        raise EntryError("mcp-entry-invalid", uri, reason=f"its resources do not name its {SKILL_FILE}")
    # A case-insensitive disk cannot hold both, so tools would see one or the other.
    if any(parent in files for path in files for parent in _parents(path)):
        raise EntryError("mcp-entry-invalid", uri, reason="it names a file that is also a directory")
    if sum(file.size for file in files.values()) > MAX_BYTES:
        raise EntryError("mcp-too-large", uri, reason=f"its files are larger than {MAX_BYTES} bytes together")
    if files[SKILL_FILE].size > MAX_SKILL_FILE_BYTES:
        raise EntryError("mcp-too-large", uri, reason=f"its {SKILL_FILE} is larger than {MAX_SKILL_FILE_BYTES} bytes")
    return files


def _file(item: object, uri: str, root: str, depth: int) -> ServedFile:
    if not isinstance(item, Mapping):
        raise EntryError("mcp-entry-invalid", uri, reason="one of its resources is not an object")
    own, digest, size = item.get("uri"), item.get("digest"), item.get("size")
    # As text, before decoding: an entry must not claim files of another skill.
    if not isinstance(own, str) or not own.startswith(root) or own == root:
        raise EntryError("mcp-entry-invalid", uri, reason="one of its resources is outside the skill")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise EntryError("mcp-entry-invalid", uri, reason="the digest of one of its resources is not a SHA-256")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise EntryError("mcp-entry-invalid", uri, reason="the size of one of its resources is not a number of bytes")
    path = "/".join(_split_uri(own, uri)[1][depth:])
    return ServedFile(own, path, digest.removeprefix("sha256:").lower(), size)


def _parents(path: str) -> Iterable[str]:
    while path := path.rpartition("/")[0]:
        yield path


# Frontmatter, compared as values.


def _differing(frontmatter: Mapping[str, Any], content: bytes, path: str) -> list[str]:
    """Return the keys in which a file's frontmatter differs from its entry's."""
    where = f"{path}/{SKILL_FILE}"
    claimed, found = read_fields(frontmatter, path=where).frontmatter, read_skill(content, path=where).frontmatter
    return sorted(key for key in claimed.keys() | found.keys() if not _is_same(claimed.get(key), found.get(key)))


def _is_same(one: object, other: object) -> bool:
    """Whether two values are the same in JSON; the reader keeps scalars as text, and `1.10` means 1.1."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, Sequence) and isinstance(other, Sequence) and not isinstance(one, str):
        return not isinstance(other, str) and len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, str) and isinstance(other, str):
        return one == other or _scalar(one) == _scalar(other)
    return one == other or (one in (None, "") and other in (None, ""))


def _scalar(text: str) -> object:
    """Return the value of a plain scalar, because YAML and JSON can write the same value in several ways."""
    if _BASED.fullmatch(text):
        return float(int(text, 0))
    lowered = text.lower()
    if lowered in {"true", "yes", "on"}:
        return True
    if lowered in {"false", "no", "off"}:
        return False
    try:
        return float(text) if len(text) < MAX_SHOWN_NAME_LENGTH else text
    except ValueError:
        return text


# Names.


def name_served(skills: Iterable[ServedSkill]) -> dict[str, ServedSkill]:
    """Return the skills of one server by the names they get here: `label:name`, or `label:path` if names repeat."""
    # By path, so that names do not depend on the order in which a server lists.
    ordered = sorted(skills, key=lambda skill: skill.path)
    by_name: dict[str, list[ServedSkill]] = {}
    for skill in ordered:
        by_name.setdefault(name_key(f"{skill.label}:{skill.name}"), []).append(skill)
    names: dict[str, ServedSkill] = {}
    taken: set[str] = set()
    for skill in ordered:
        is_only = len(by_name[name_key(f"{skill.label}:{skill.name}")]) == 1
        name = f"{skill.label}:{skill.name if is_only else skill.path}"
        shown = clean_name(name)
        # Two names may be the same after shortening or cleaning; a hash of the URI tells them apart.
        if len(name) > MAX_SHOWN_NAME_LENGTH or name_key(shown) in taken:
            mark = hashlib.sha256(skill.uri.encode()).hexdigest()[:_HASH_LENGTH]
            shown = f"{clean_name(name)[: MAX_SHOWN_NAME_LENGTH - _HASH_LENGTH - 1]}~{mark}"
        taken.add(name_key(shown))
        names[shown] = skill
    return names


# --------------------------------------------------------------------------------------------------------------------
# Converts frontmatter to JSON values, for the entries that a server sends. Pure.
#
# The reader keeps every scalar as its text, which is right for a prompt and wrong here: hosts parse the `SKILL.md`
# again and compare values, so `true` has to be a boolean. Scalars mean what YAML 1.2 says; dates stay text. Only
# frontmatter that the reader accepted as YAML is passed to the YAML library: the reader has bounded its size and its
# nesting. Anchors, aliases and tags mean different things to different readers, so such a file has no value here.
# --------------------------------------------------------------------------------------------------------------------


_INTEGER = re.compile(r"[-+]?[0-9]{1,300}")
_BASED = re.compile(r"0x[0-9a-fA-F]{1,200}|0o[0-7]{1,300}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,3})?")
_BOUNDLESS = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_WORDS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_LINE_END = re.compile("\r\n|\r|\n")

_FOLDED = "\x85\u2028\u2029"
"""Characters that end a line for YAML 1.1, which the library speaks, and do not for YAML 1.2."""


def json_frontmatter(content: bytes) -> dict[str, Any] | None:
    """Return the frontmatter of a `SKILL.md` as a YAML parser gives it; `None` if parsers may differ about it."""
    block = _block(content)
    if block is None:
        return None
    # Unused characters stand in for those meanwhile.
    spare = [chr(code) for code in range(0xE000, 0xE100) if chr(code) not in block][: len(_FOLDED)]
    notes = Notes()
    try:
        there = {ord(one): other for one, other in zip(_FOLDED, spare, strict=True)}
        back = {ord(other): one for one, other in zip(_FOLDED, spare, strict=True)}
        found = compose(block.translate(there), notes, iter(range(MAX_EVENTS)), _plain)
        # What else had to be noted is read differently elsewhere: anchors, aliases, tags, duplicate keys, repairs.
        notes.flow = notes.odd_comments = False
        return _restore(found, back) if isinstance(found, dict) and notes == Notes() else None
    except (FrontmatterError, ValueError):
        return None


def _restore(value: Any, back: Mapping[int, str]) -> Any:  # noqa: ANN401 - any value of JSON
    if isinstance(value, dict):
        return {_restore(key, back): _restore(item, back) for key, item in value.items()}
    if isinstance(value, list):
        return [_restore(item, back) for item in value]
    return value.translate(back) if isinstance(value, str) else value


def _block(content: bytes) -> str | None:
    """Return the text between the fences, with the end of its last line."""
    lines = _LINE_END.split(content.decode("utf-8-sig", "replace"))
    if lines[0].rstrip() != "---":
        return None
    end = next((place for place, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
    return "".join(f"{line}\n" for line in lines[1:end]) if end is not None else None


def _plain(text: str) -> Any:  # noqa: ANN401 - any scalar of JSON
    if text in NULLS:
        return None
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    if _BOUNDLESS.fullmatch(text):
        raise ValueError("JSON has no such number")
    if _FLOAT.fullmatch(text):
        number = float(text)
        if abs(number) == float("inf"):
            raise ValueError("JSON has no such number")
        return number
    return text
