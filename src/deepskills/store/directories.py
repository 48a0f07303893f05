"""Imports skills from disk into the store, and exports them: one directory with a `SKILL.md`, or a tree of them.

An import can be repeated: it updates what changed and leaves the rest alone, so it can run after every commit to a
repository of skills. An export writes only what differs. Neither follows links: a repository may come from a stranger,
and `notes.md -> /etc/passwd` is not part of a skill.
"""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from deepskills._errors import SkillNotFoundError, SkillPathError, SkillsError
from deepskills._files.paths import malformed
from deepskills._skillmd.names import stored_key
from deepskills._types import SKILL_FILE
from deepskills.store.packages import PASSED_OVER, list_files, read_directory
from deepskills.store.rules import StoreLimits, UserId, check_name
from deepskills.store.schemas import SkillCreate
from deepskills.store.service import SkillService, first_of_each_name

ImportOutcome: TypeAlias = Literal["created", "updated", "unchanged", "failed"]
"""What an import or an export did with one skill."""

MAX_DEPTH = 8
"""How many levels deep a tree is searched for skills."""


@dataclass(frozen=True)
class Done:
    """What was done with one skill, or why it failed."""

    name: str
    outcome: ImportOutcome
    reason: str = ""


def skill_directories(root: str | os.PathLike[str]) -> list[Path]:
    """Return the directories below a path that hold a `SKILL.md`; the path itself if it does.

    Raises:
        SkillNotFoundError: If there is none.
    """
    start = Path(root)
    found = []
    for parent, directories, names in os.walk(start):
        # Directories inside a skill hold its files, not other skills.
        is_end = SKILL_FILE in names or len(Path(parent).relative_to(start).parts) >= MAX_DEPTH
        directories[:] = [] if is_end else sorted(name for name in directories if name not in PASSED_OVER)
        found += [Path(parent)] if SKILL_FILE in names else []
    if not found:
        raise SkillNotFoundError(f"{start} holds no directory with a {SKILL_FILE}. Check the path.")
    return sorted(found)


async def import_skills(
    service: SkillService,
    root: str | os.PathLike[str],
    user_id: UserId | None,
    *,
    system: bool = False,
    limits: StoreLimits | None = None,
) -> list[Done]:
    """Import skills from disk into the store: create new ones, and update those whose names the owner has.

    Returns:
        What was done with each skill; one that fails does not stop the others.
    """
    # Only the owner's own: a visible skill with that name may be somebody else's.
    owned = {
        stored_key(skill.name): skill.id
        for skill in await service.list_skills(user_id, include_public=False, system=system)
        if skill.owner_id == (None if system else str(user_id))
    }
    done = []
    for directory in await asyncio.to_thread(skill_directories, root):
        try:
            text, files = await asyncio.to_thread(read_directory, directory, limits)
            data = await asyncio.to_thread(SkillCreate.from_skill_md, text, files)
            known = owned.get(stored_key(data.name))
            if known is None:
                made = await service.create_skill(data, user_id, system=system)
                owned[stored_key(made.name)] = made.id
                done.append(Done(data.name, "created"))
                continue
            before = await service.get_skill(known, user_id, contents=False, system=system)
            after = await service.save_skill(known, text, files, user_id, system=system)
            done.append(Done(data.name, "updated" if after.revision != before.revision else "unchanged"))
        except (SkillsError, OSError) as error:
            done.append(Done(directory.name, "failed", str(error)))
    return done


async def export_skills(
    service: SkillService,
    root: str | os.PathLike[str],
    user_id: UserId | None,
    *,
    include_public: bool = False,
    system: bool = False,
) -> list[Done]:
    """Write the skills that a user may see to disk, each into a directory with its name.

    In a directory that already has the skill, files are replaced, and those that the skill no longer has are removed.
    Directories without a `SKILL.md` are left alone and reported.
    """
    done = []
    for skill in first_of_each_name(await service.list_skills(user_id, include_public, system=system)):
        try:
            check_name(skill.name)
            files = await service.export_skill(skill.id, user_id, system=system)
            done.append(Done(skill.name, await asyncio.to_thread(_write, Path(root, skill.name), files)))
        except (SkillsError, OSError) as error:
            done.append(Done(skill.name, "failed", str(error)))
    return done


def _write(directory: Path, files: Mapping[str, bytes]) -> ImportOutcome:
    if directory.is_symlink() or (directory.exists() and not directory.is_dir()):
        raise SkillsError(f"{directory} is a link or a file; remove it, or export to another place")
    is_new = not directory.exists()
    # Other files in it would be removed as stale, so it must be a skill's directory.
    if not is_new and any(directory.iterdir()) and not (directory / SKILL_FILE).is_file():
        raise SkillsError(f"{directory} holds something that is not a skill; remove it, or export to another place")
    present = {} if is_new else {node.path: directory / node.path for node in list_files(directory)}
    is_changed = False
    for path in present.keys() - files.keys():
        present[path].unlink()
        is_changed = True
    for path, content in files.items():
        reason = None if path == SKILL_FILE else malformed(f"assets/{path}")
        if reason is not None:
            raise SkillPathError(f"The path {path!r} is refused: {reason}.")
        target = directory / path
        if path in present and target.is_file() and not target.is_symlink() and target.read_bytes() == content:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        # All or nothing: somebody who reads in the meantime finds the old file.
        partial = target.with_name(f".{target.name}.new")
        partial.write_bytes(content)
        partial.replace(target)
        is_changed = True
    return "created" if is_new else "updated" if is_changed else "unchanged"
