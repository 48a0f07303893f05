"""`SkillLock`: only what a lock lists, byte for byte, reaches the model or runs.

A lock is checked twice: at the listing, so that a skill that differs is not even shown, and on the very bytes that
enter the request, because a file can change between the listing and the load.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from deepskills import Refuse, SkillEntry, SkillLoad, SkillRun, Visibility
from deepskills._install.lock import LOCK_FILE, LockedSkill, load_lock, lock_from
from deepskills._io.cache import BoundedCache
from deepskills._prompt.messages import LOCK_MISMATCH, LOCK_UNLISTED
from deepskills._types import SKILL_FILE
from deepskills.extensions._guard import FileGuard, name_files

LockMode: TypeAlias = Literal["refuse", "warn"]
"""What happens to a skill that is not as the lock says: it is not used, or it is used with a warning."""

UNLISTED = "lock-unlisted"
MISMATCH = "lock-mismatch"

_SENTENCES = {UNLISTED: LOCK_UNLISTED, MISMATCH: LOCK_MISMATCH}

MAX_REMEMBERED_BYTES = 64 * 1024 * 1024
"""How much memory the SHA-256 digests of files that were seen may take."""


class SkillLock(FileGuard):
    """Hides every skill that a lock does not list, or whose `SKILL.md` differs, and checks every other file.

    `SKILL.md` is compared when skills are listed and again, on the very bytes that enter the request, at each load. Any
    other file is compared when it is read; before a script runs, all files of its skill are.

    Args:
        lock: The path of a `deepskills.lock`, read once, or its content.
        mode: `"refuse"`, or `"warn"` to use a skill anyway and leave a warning.

    Raises:
        LockError: If the lock cannot be read or used; a `SkillsError`.
        ValueError: If the mode is unknown.
    """

    def __init__(self, lock: "str | os.PathLike[str] | Mapping[str, Any]", mode: LockMode = "refuse") -> None:
        if mode not in get_args(LockMode):
            raise ValueError(f'SkillLock takes the mode "refuse" or "warn", not {mode!r}.')
        is_value = isinstance(lock, Mapping)
        self._lock = lock_from(lock) if is_value else load_lock(os.fspath(lock))  # type: ignore[arg-type]
        self._name = LOCK_FILE if is_value else os.path.basename(os.fspath(lock))  # type: ignore[arg-type]  # noqa: PTH119
        self._mode = mode
        self._seen: BoundedCache[tuple[str, str], str] = BoundedCache(MAX_REMEMBERED_BYTES)

    def visibility(self, skills: Sequence[SkillEntry], run: SkillRun) -> Mapping[str, Visibility]:
        """Turn off every skill that is not as the lock says, and report it."""
        hidden: dict[str, Visibility] = {}
        for entry in skills:
            code = self._fault(entry)
            if code is not None:
                self._report(entry, code, run)
                if self._mode == "refuse":
                    hidden[entry.name] = "off"
        return hidden

    def change_text(self, load: SkillLoad, run: SkillRun) -> str | Refuse:
        """Keep out a text whose file is not the one in the lock, whenever it was read."""
        code = self._fault(load.entry)
        if code is None:
            return load.text
        self._report(load.entry, code, run)
        return Refuse(self._sentence(load.entry, code, f"`{SKILL_FILE}`")) if self._mode == "refuse" else load.text

    def guards(self, entry: SkillEntry) -> bool:  # noqa: ARG002 - a lock stands for every skill
        """Whether a skill's files are judged: all are."""
        return True

    def guards_source(self, source: str) -> bool:  # noqa: ARG002 - as above
        """Whether a source is judged: all are, unless differences are only warnings."""
        return self._mode == "refuse"

    async def expected(self, entry: SkillEntry, run: SkillRun) -> Mapping[str, str] | Refuse:
        """Return the files of the lock."""
        locked = self._find_locked(entry)
        if locked is not None:
            return {path: file.sha256 for path, file in locked.files.items()}
        self._report(entry, UNLISTED, run)
        return Refuse(self._sentence(entry, UNLISTED)) if self._mode == "refuse" else {}

    def complaint(self, entry: SkillEntry, differences: Sequence[str], run: SkillRun) -> Refuse | None:
        """Refuse files that differ, or warn of them."""
        code = UNLISTED if self._find_locked(entry) is None else MISMATCH
        self._report(entry, code, run, name_files(differences))
        return Refuse(self._sentence(entry, code, name_files(differences))) if self._mode == "refuse" else None

    def _find_locked(self, entry: SkillEntry) -> LockedSkill | None:
        """Return what the lock says about a skill; the namespace of an operator's source is not in the lock."""
        return self._lock.skills.get(entry.name) or self._lock.skills.get(entry.name.rpartition(":")[2])

    def _fault(self, entry: SkillEntry) -> str | None:
        locked = self._find_locked(entry)
        if locked is None:
            return UNLISTED
        return None if self._sha256(entry) == locked.files[SKILL_FILE].sha256 else MISMATCH

    def _sha256(self, entry: SkillEntry) -> str:
        """Return the SHA-256 of a skill's file; for one that was read long ago, from memory."""
        key = (entry.path, entry.digest)
        if entry.sha256:
            # An entry from a summary or from state has no SHA-256; its digest leads to the one that was seen.
            self._seen.put(key, entry.sha256)
            return entry.sha256
        return self._seen.get(key) or ""

    def _report(self, entry: SkillEntry, code: str, run: SkillRun, files: str = f"`{SKILL_FILE}`") -> None:
        severity: Literal["error", "warning"] = "error" if self._mode == "refuse" else "warning"
        run.report(entry.path, code, self._sentence(entry, code, files), severity)

    def _sentence(self, entry: SkillEntry, code: str, files: str = "") -> str:
        fate = "it is not used" if self._mode == "refuse" else "what it says was reviewed by nobody"
        return _SENTENCES[code].format(lock=self._name, fate=fate, files=files, name=f'"{entry.name}"')
