"""Stored skills onto a backend: what is missing is written, what is stale goes, what is there stays untouched."""

import asyncio
import logging
import random
from collections.abc import Iterable
from uuid import UUID

from deepagents.backends import BackendProtocol
from langgraph.errors import GraphBubbleUp

from deepskills._errors import SkillNotFoundError, SkillsError
from deepskills.store._checks import UserId, as_id, no_skill
from deepskills.store._models import Skill
from deepskills.store._reading import exported
from deepskills.store._rules import check_kept_path, check_name, name_key, path_key
from deepskills.store._sandbox import MARKER, Doubt, Mark, SkillDirectory, check_links, listed, marks
from deepskills.store._service import SkillService

logger = logging.getLogger("deepskills")

SANDBOX_ROOT = "/workspace/skills"
"""Where skills go on a backend, each into a directory of its name."""

MAX_ATTEMPTS = 8
"""How often a directory is written while others write it too."""

_PAUSE = 0.05


class SkillSandboxLoader:
    """Puts stored skills onto a backend, as `/workspace/skills/{name}/...`, and brings them up to date there.

    Only directories that the loader made are ever changed: each has a marker file with the revision that it holds.

    Args:
        service: Where the skills come from; it decides what a user may see.
        root: The directory on the backend that holds the skills; `SKILLS_BASE_DIR` by default.
        verify: Compare every file each time, instead of trusting the markers. For sandboxes whose agents may write to
            their skills.
    """

    SKILLS_BASE_DIR = SANDBOX_ROOT

    def __init__(self, service: SkillService, *, root: str | None = None, verify: bool = False) -> None:
        self._service = service
        self._root = (self.SKILLS_BASE_DIR if root is None else root).rstrip("/")
        self._verify = verify

    async def load_skill_to_sandbox(
        self, skill_id: UUID, backend: BackendProtocol, user_id: UserId | None = None
    ) -> bool:
        """Make a skill's directory on `backend` hold exactly the skill's files, or no skill at all.

        Returns:
            Whether it does now; why not is logged.
        """
        return (await self.load_skills_to_sandbox([skill_id], backend, user_id))[skill_id]

    async def load_skills_to_sandbox(
        self, skill_ids: Iterable[UUID], backend: BackendProtocol, user_id: UserId | None = None
    ) -> dict[UUID, bool]:
        """Do the same for several skills; one that fails stops no other.

        Skills that are there already cost one call to the backend together. Of two skills of one name the first is
        loaded, for both would take the same directory.

        Returns:
            For each skill whether its directory is right now.
        """
        given = list(dict.fromkeys(skill_ids))
        ids = {key for skill_id in given if (key := as_id(skill_id)) is not None}
        found = {skill.id: skill for skill in await self._service.list_skills(user_id, skill_ids=ids)} if ids else {}
        names: dict[str, UUID] = {}
        chosen: dict[UUID, Skill] = {}
        problems: dict[UUID, Exception] = {}
        for skill_id in given:
            skill = found.get(as_id(skill_id) or UUID(int=0))
            if skill is None:
                problems[skill_id] = no_skill(str(skill_id))
            elif names.setdefault(name_key(skill.name), skill.id) != skill.id:
                problems[skill_id] = SkillsError(
                    f"another skill named {skill.name!r} was loaded just before; load one of them"
                )
            else:
                chosen[skill.id] = skill
        done = await self._load(list(chosen.values()), backend, user_id)
        for skill_id, problem in problems.items():
            _log(skill_id, problem)
        return {
            skill_id: skill_id not in problems and done.get(as_id(skill_id) or UUID(int=0), False) for skill_id in given
        }

    async def sync(
        self, user_id: UserId | None, backend: BackendProtocol, *, include_public: bool = True
    ) -> dict[str, bool]:
        """Make the sandbox hold exactly what a user may see.

        What the loader put there and the user may not see any more goes: revoked, renamed and deleted skills. What
        others put there stays. Of several skills of one name the user gets the one that `get_skill_by_name` gives.

        Args:
            user_id: Whose sandbox it is; `None` for nobody, who sees public and system skills.
            backend: The sandbox.
            include_public: Whether public and system skills are brought too.

        Returns:
            For each skill that should be there, and each that should not, by name whether that is so now; why not is
            logged.
        """
        visible: dict[str, Skill] = {}
        for skill in await self._service.list_skills(user_id, include_public):
            visible.setdefault(name_key(skill.name), skill)
        wanted = {skill.name: skill for skill in visible.values()}
        directories = [path for path, is_directory in await listed(self._root, backend) if is_directory]
        present = {path.rpartition("/")[2] for path in directories if path.rpartition("/")[0] == self._root}
        stale = [SkillDirectory(backend, self._root, name) for name in sorted(present - wanted.keys())]
        made = await marks(backend, stale)
        result: dict[str, bool] = {}
        for directory in stale:
            mark = made.get(directory.path)
            name = directory.path.rpartition("/")[2]
            # A copy of a directory that the loader made is not the loader's.
            if isinstance(mark, Mark) and mark.directory == directory.path:
                result[name] = await _removed(directory)
            elif isinstance(mark, Doubt) and not mark.is_foreign:
                logger.error("Cannot tell whether %s is the loader's: its marker %s", directory.path, mark.reason)
                result[name] = False
        done = await self._load(list(wanted.values()), backend, user_id)
        return result | {skill.name: done[skill.id] for skill in wanted.values()}

    async def _load(self, skills: list[Skill], backend: BackendProtocol, user_id: UserId | None) -> dict[UUID, bool]:
        """Return for each skill, given light, whether its directory is right now."""
        directories = {skill.id: SkillDirectory(backend, self._root, skill.name) for skill in skills}
        try:
            made = await marks(backend, directories.values())
        except GraphBubbleUp:
            raise
        except Exception as error:  # noqa: BLE001 - each directory is looked at again by itself
            logger.warning("The markers of %s cannot be read: %s: %s", self._root, type(error).__name__, error)
            made = {}
        done: dict[UUID, bool] = {}
        for skill in skills:
            try:
                await self._bring(skill, directories[skill.id], made.get(directories[skill.id].path), backend, user_id)
                done[skill.id] = True
            except GraphBubbleUp:
                raise
            except Exception as error:  # noqa: BLE001 - one skill's failure, whatever it is, stops no other
                _log(skill.id, error)
                done[skill.id] = False
        return done

    async def _bring(
        self,
        skill: Skill,
        directory: SkillDirectory,
        mark: Mark | Doubt | None,
        backend: BackendProtocol,
        user_id: UserId | None,
    ) -> None:
        """Bring one directory up to date, also while others do the same: who writes last looks again."""
        # Rows may have been written outside the service.
        check_name(skill.name)
        await check_links(backend, self._root, [directory.path])
        is_there = isinstance(mark, Mark) and mark.directory == directory.path and mark.holds(skill)
        if is_there and not self._verify:
            return
        for path, is_directory in await listed(self._root, backend):
            if path == directory.path and not is_directory:
                raise SkillsError(f"{path} is a file or a link; remove it")
        for attempt in range(MAX_ATTEMPTS):
            whole = await self._service.get_skill(skill.id, user_id)
            if whole.name != skill.name:
                raise SkillsError(f"it was renamed to {whole.name!r} meanwhile; load it again")
            if await directory.replace(whole, _files_of(whole)) and await self._is_current(whole, directory, user_id):
                logger.info("Skill %r is on the sandbox: %d files", whole.name, len(whole.files) + 1)
                return
            await asyncio.sleep(_PAUSE * random.uniform(1, 2 + attempt))  # noqa: S311 - not a secret
            now = await directory.read_mark()
            if isinstance(now, Mark) and now.holds(whole) and await self._is_current(whole, directory, user_id):
                # Whoever wrote that mark looks after it.
                return
        raise SkillsError(
            f"others keep writing to {directory.path}; load it again when they are done, or remove it if nobody does"
        )

    async def _is_current(self, skill: Skill, directory: SkillDirectory, user_id: UserId | None) -> bool:
        """Whether a skill is still what was written; what the user may not see any more is removed."""
        current = await self._service.list_skills(user_id, skill_ids=[skill.id])
        if not current:
            await directory.remove()
            raise no_skill(str(skill.id))
        return (current[0].revision, current[0].stamp) == (skill.revision, skill.stamp)


def _files_of(skill: Skill) -> dict[str, bytes]:
    for file in skill.files:
        check_kept_path(file.path)
        if path_key(file.path).partition("/")[0] == MARKER:
            raise SkillsError(f"its file {file.path!r} has the name of the loader's own marker; rename it")
    return exported(skill)


async def _removed(directory: SkillDirectory) -> bool:
    try:
        await directory.remove()
    except GraphBubbleUp:
        raise
    except Exception as error:  # noqa: BLE001 - one skill's failure, whatever it is, stops no other
        logger.error("Cannot remove %s from the sandbox: %s: %s", directory.path, type(error).__name__, error)  # noqa: TRY400 - the message says it all
        return False
    return True


def _log(skill_id: UUID, error: Exception) -> None:
    level = logging.WARNING if isinstance(error, SkillNotFoundError) else logging.ERROR
    logger.log(level, "Cannot load skill %s to the sandbox: %s: %s", skill_id, type(error).__name__, error)
