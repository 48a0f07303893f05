"""`deepskills.lock`: which skills were reviewed, where they came from, and every byte of them.

The text is a function of its values: sorted keys, no times, no paths of a machine. Two people who add the same skills
write the same bytes, and a merge of two branches that add different skills gives a right file. Each skill stands for
itself: its `digest` is over its own `files`, and nothing is over the whole file.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from deepskills._errors import SkillsError
from deepskills._files.manifest import digest_over
from deepskills._install.paths import MAX_SKILL_FILES, fold_case, name_is_safe, path_fault, quote_path
from deepskills._types import SKILL_FILE

LOCK_FILE = "deepskills.lock"
"""The name of the lock beside a project."""

VERSION = 1
"""The version of the format that is read and written."""

MAX_LOCK_BYTES = 64 * 1024 * 1024
"""How large a lock may be."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_CONFLICT = re.compile(r"^(<{7}|={7}|>{7})", re.MULTILINE)


class LockError(SkillsError):
    """A lock cannot be used; the message says what is wrong with it and what to do."""


@dataclass(frozen=True, slots=True)
class LockedFile:
    """One file of a skill."""

    sha256: str
    size: int
    executable: bool = False


@dataclass(frozen=True)
class LockedSkill:
    """A skill as it was reviewed."""

    source: str
    """Where it came from: a URL, or a path relative to the lock's directory."""

    ref: str | None
    """The branch, tag or commit that was asked for; `None` for the repository's default, and for files."""

    commit: str | None
    """The commit it was read from; `None` if the source is not a repository."""

    path: str
    """Its directory in the source; `.` for the source itself."""

    files: Mapping[str, LockedFile]
    """Each of its files by relative path."""

    @property
    def digest(self) -> str:
        """The digest over its files."""
        return digest_over({path: file.sha256 for path, file in self.files.items()})

    @property
    def size(self) -> int:
        """How many bytes its files have together."""
        return sum(file.size for file in self.files.values())

    def row(self) -> dict[str, Any]:
        """Return the skill as the lock holds it."""
        return {
            "source": self.source,
            "ref": self.ref,
            "commit": self.commit,
            "path": self.path,
            "digest": self.digest,
            "files": {
                path: {"sha256": file.sha256, "size": file.size, "executable": file.executable}
                for path, file in self.files.items()
            },
        }


@dataclass(frozen=True)
class Lock:
    """The reviewed skills by name."""

    skills: Mapping[str, LockedSkill] = field(default_factory=dict)

    def with_skills(self, changed: Mapping[str, LockedSkill | None]) -> "Lock":
        """Return the lock with skills added or replaced; `None` removes one."""
        merged = {**self.skills, **changed}
        return replace(self, skills={name: skill for name, skill in merged.items() if skill is not None})

    def text(self) -> str:
        """Return the lock's file: the same text for the same skills, wherever and whenever it is written."""
        rows = {name: skill.row() for name, skill in self.skills.items()}
        value = {"version": VERSION, "skills": rows}
        return json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True) + "\n"


def parse_lock(text: str | bytes, name: str = LOCK_FILE) -> Lock:
    """Return what a lock says.

    Raises:
        LockError: If it is not a lock, or says something that cannot be so.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise LockError(f"{name} is not UTF-8 text. Restore it from your version control.") from None
    # The most common damage gets its own advice.
    if _CONFLICT.search(text):
        raise LockError(
            f"{name} holds the marks of a merge conflict. Keep the entries of both sides, delete the marks, "
            "then run `deepskills verify`."
        )
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise LockError(f"{name} is not a lock: {error}. Restore it from your version control.") from None
    return lock_from(value, name)


def lock_from(value: object, name: str = LOCK_FILE) -> Lock:
    """Return the lock that a parsed file, or its `skills` alone, stands for.

    Raises:
        LockError: If it says something that cannot be so.
    """
    if not isinstance(value, Mapping):
        raise LockError(f"{name} is not a lock: it holds no object. Restore it from your version control.")
    rows: object = value
    if "version" in value or "skills" in value:
        version, rows = value.get("version"), value.get("skills")
        if version != VERSION or isinstance(version, bool):
            raise LockError(
                f"{name} has the version {version!r}, and this deepskills reads version {VERSION}. "
                "Update deepskills, or write the lock again with `deepskills add`."
            )
    if not isinstance(rows, Mapping):
        raise LockError(f"{name} is not a lock: its `skills` is not an object. Restore it from your version control.")
    skills: dict[str, LockedSkill] = {}
    spellings: dict[str, str] = {}
    for key, row in rows.items():
        if not isinstance(key, str) or not name_is_safe(key):
            raise LockError(
                f"{name} names a skill {quote_path(str(key))}, which cannot be a directory. Remove that entry."
            )
        # One directory on file systems that ignore case.
        other = spellings.setdefault(fold_case(key), key)
        if other != key:
            raise LockError(
                f"{name} has {quote_path(other)} and {quote_path(key)}, which are one directory. Remove one of them."
            )
        skills[key] = _skill(row, f"{name}: {key}")
    return Lock(skills)


def load_lock(path: str | Path, *, missing_ok: bool = False) -> Lock:
    """Return the lock in a file; an empty one if the file may be missing and is.

    Raises:
        LockError: If it cannot be read or used.
    """
    place = Path(path)
    try:
        with place.open("rb") as file:
            content = file.read(MAX_LOCK_BYTES + 1)
    except FileNotFoundError:
        if missing_ok:
            return Lock()
        raise LockError(
            f"There is no lock at {path}. Write one with `deepskills add`, or name the right file."
        ) from None
    except OSError as error:
        raise LockError(f"The lock {path} cannot be read: {error.strerror or error}.") from None
    if len(content) > MAX_LOCK_BYTES:
        raise LockError(f"The lock {path} is larger than {MAX_LOCK_BYTES:,} bytes. Restore it from version control.")
    return parse_lock(content, place.name)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; one that has a key twice is the work of a merge, and either value may be the wrong one."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is there twice")
        found[key] = value
    return found


def _skill(row: object, where: str) -> LockedSkill:
    if not isinstance(row, Mapping):
        raise _make_error(where, "it is not an object")
    if "computedHash" in row:
        raise LockError(f"{where} is an entry of `npx skills`, whose lock is another file. Name {LOCK_FILE} instead.")
    source, ref, commit, path = (row.get(key) for key in ("source", "ref", "commit", "path"))
    if not isinstance(source, str) or not source or not source.isprintable():
        raise _make_error(where, "`source` is not a text")
    if not (ref is None or (isinstance(ref, str) and ref.isprintable())):
        raise _make_error(where, "`ref` is neither a text nor null")
    if not (commit is None or (isinstance(commit, str) and _COMMIT.fullmatch(commit))):
        raise _make_error(where, "`commit` is neither a commit's full id nor null")
    if not isinstance(path, str) or (path != "." and path_fault(path) is not None):
        raise _make_error(where, "`path` does not lie inside the source")
    skill = LockedSkill(source, ref, commit, path, _files(row.get("files"), where))
    # Not against an attacker, who can write both; against edits and merges by hand.
    if row.get("digest") != skill.digest:
        raise _make_error(where, "`digest` does not fit `files`, so one of them was edited or merged by hand")
    return skill


def _files(rows: object, where: str) -> dict[str, LockedFile]:
    if not isinstance(rows, Mapping) or len(rows) > MAX_SKILL_FILES:
        raise _make_error(where, "`files` is not an object, or has too many entries")
    files: dict[str, LockedFile] = {}
    for path, row in rows.items():
        if not isinstance(path, str) or path_fault(path) is not None or not isinstance(row, Mapping):
            raise _make_error(where, f"the file {quote_path(str(path))} does not lie inside the skill")
        sha256, size, executable = row.get("sha256"), row.get("size"), row.get("executable", False)
        is_size = isinstance(size, int) and not isinstance(size, bool) and size >= 0
        if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256) or not is_size:
            raise _make_error(
                where, f"the file {quote_path(path)} has no `sha256` of 64 hexadecimal digits or no `size`"
            )
        if not isinstance(executable, bool):
            raise _make_error(where, f"`executable` of {quote_path(path)} is neither true nor false")
        files[path] = LockedFile(sha256, size, executable)  # type: ignore[arg-type]  # checked above
    if SKILL_FILE not in files:
        raise _make_error(where, f"`files` has no {SKILL_FILE}")
    return files


def _make_error(where: str, what: str) -> LockError:
    return LockError(f"{where}: {what}. Restore the entry from version control, or add the skill again.")
