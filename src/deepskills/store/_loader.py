"""Stored skills onto a backend: what is missing is written, what is stale goes, what is there stays untouched."""

import logging
from collections.abc import Iterable
from pathlib import PurePosixPath
from uuid import UUID

from deepagents.backends import BackendProtocol
from langgraph.errors import GraphBubbleUp

from deepskills._backend.missing import is_missing_error
from deepskills._errors import SkillsError
from deepskills.store._checks import UserId
from deepskills.store._reading import exported
from deepskills.store._rules import check_kept_path, check_name
from deepskills.store._service import SkillService

logger = logging.getLogger("deepskills")

SANDBOX_ROOT = "/workspace/skills"
"""Where skills go on a backend, each into a directory of its name."""

MAX_DEPTH = 64
"""How deep a skill's directory is listed; links may form circles."""


class SkillSandboxLoader:
    """Puts stored skills onto a backend, as `/workspace/skills/{name}/...`, and brings them up to date there.

    Args:
        service: Where the skills come from; it decides what a user may see.
        root: The directory on the backend that holds the skills.
    """

    SKILLS_BASE_DIR = SANDBOX_ROOT

    def __init__(self, service: SkillService, *, root: str = SANDBOX_ROOT) -> None:
        self._service = service
        self._root = root.rstrip("/")

    async def load_skill_to_sandbox(
        self, skill_id: UUID, backend: BackendProtocol, user_id: UserId | None = None
    ) -> bool:
        """Make a skill's directory on `backend` hold exactly the skill's files.

        Returns:
            Whether it does now; why not is logged.
        """
        return (await self.load_skills_to_sandbox([skill_id], backend, user_id))[skill_id]

    async def load_skills_to_sandbox(
        self, skill_ids: Iterable[UUID], backend: BackendProtocol, user_id: UserId | None = None
    ) -> dict[UUID, bool]:
        """Do the same for several skills; one that fails stops no other.

        Of two skills of one name the first is loaded, for both would take the same directory.

        Returns:
            For each skill whether its directory is right now.
        """
        loaded: dict[UUID, bool] = {}
        names: dict[str, UUID] = {}
        for skill_id in dict.fromkeys(skill_ids):
            try:
                await self._load(skill_id, backend, user_id, names)
                loaded[skill_id] = True
            except GraphBubbleUp:
                raise
            except Exception as error:  # noqa: BLE001 - one skill's failure, whatever it is, stops no other
                logger.error("Cannot load skill %s to the sandbox: %s: %s", skill_id, type(error).__name__, error)  # noqa: TRY400 - the message says it all
                loaded[skill_id] = False
        return loaded

    async def _load(
        self, skill_id: UUID, backend: BackendProtocol, user_id: UserId | None, names: dict[str, UUID]
    ) -> None:
        skill = await self._service.get_skill(skill_id, user_id)
        if names.setdefault(skill.name, skill.id) != skill.id:
            raise SkillsError(f"another skill named {skill.name!r} was loaded just before; load one of them")
        # Rows may have been written by other hands than the service's.
        check_name(skill.name)
        for file in skill.files:
            check_kept_path(file.path)
        directory = f"{self._root}/{skill.name}"
        wanted = {f"{directory}/{path}": content for path, content in exported(skill).items()}
        present = await _sync_deletions(directory, wanted, backend)
        await _write_changes(wanted, present, backend)
        logger.info("Skill %r is on the sandbox: %d files", skill.name, len(wanted))


async def _sync_deletions(directory: str, wanted: dict[str, bytes], backend: BackendProtocol) -> list[str]:
    """Delete what no wanted file needs, and return the wanted files that are there."""
    needed = {str(parent) for path in wanted for parent in PurePosixPath(path).parents}
    present: list[str] = []
    frontier = [directory]
    for _ in range(MAX_DEPTH):
        if not frontier:
            return present
        below: list[str] = []
        for path in frontier:
            for entry, is_directory in await _entries(path, backend):
                if is_directory and entry in needed:
                    below.append(entry)
                elif not is_directory and entry in wanted:
                    present.append(entry)
                else:
                    await _delete(entry, backend)
        frontier = below
    raise SkillsError(f"{directory} nests deeper than {MAX_DEPTH} levels; remove it and try again")


async def _entries(path: str, backend: BackendProtocol) -> list[tuple[str, bool]]:
    """Return what lies in a directory, each with whether it is one; nothing for one that is missing."""
    listing = await backend.als(path)
    if listing.error and listing.entries is None and is_missing_error(listing.error):
        return []
    if listing.error:
        raise SkillsError(f"{path} cannot be listed: {listing.error}")
    entries = listing.entries or []
    return [(entry["path"].rstrip("/"), entry.get("is_dir", False) or entry["path"].endswith("/")) for entry in entries]


async def _delete(path: str, backend: BackendProtocol) -> None:
    try:
        result = await backend.adelete(path)
    except NotImplementedError:
        raise SkillsError(f"the stale {path} cannot go, for the backend does not delete; remove it by hand") from None
    if result.error and not is_missing_error(result.error):
        raise SkillsError(f"the stale {path} cannot be deleted: {result.error}")


async def _write_changes(wanted: dict[str, bytes], present: list[str], backend: BackendProtocol) -> None:
    """Write the files that are missing or differ, in one batch, and the `SKILL.md` once they are there."""
    there = {}
    if present:
        there = {reply.path: reply.content for reply in await backend.adownload_files(present) if not reply.error}
    changed = [(path, content) for path, content in wanted.items() if there.get(path) != content]
    # Who looks at the directory meanwhile, or after a failure, finds no skill before its files are there. The export
    # has the `SKILL.md` first.
    own = [item for item in changed if item[0] == next(iter(wanted))]
    for batch in ([item for item in changed if item not in own], own):
        replies = await backend.aupload_files(batch) if batch else []
        failed = [f"{reply.path}: {reply.error}" for reply in replies if reply.error]
        if failed:
            raise SkillsError(f"{len(failed)} of {len(batch)} files could not be written: {'; '.join(failed[:5])}")
