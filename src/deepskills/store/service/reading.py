"""Lists, finds and reads skills."""

import logging
from collections.abc import Collection, Sequence
from uuid import UUID

from deepskills._errors import SkillFileNotFoundError, SkillFormatError, SkillNotFoundError
from deepskills._skillmd.names import stored_key
from deepskills._skillmd.problems import quoted
from deepskills.store.db.listings import MAX_FOUND, Filter, Position, TagMatch, cursor_at, offset_of
from deepskills.store.db.models import Skill, SkillFile, now
from deepskills.store.db.transactions import reads
from deepskills.store.errors import SkillPermissionError
from deepskills.store.formatter import SkillFormatter
from deepskills.store.rules import EVERYTHING, TRUSTED, Reason, UserId, Viewer, as_id, check_id, storable
from deepskills.store.service.base import MAX_SEARCH_LENGTH, Operations, SkillPage, export_files
from deepskills.store.workers import run_in_thread

MAX_TAGS_ASKED = 200
"""How many tags a listing filters by at most."""

MAX_PAGE = 1_000_000
"""From this size on, a page holds all skills."""

MAX_REQUIRED_SKILLS = 200
"""How many required skills are loaded along with others."""

logger = logging.getLogger("deepskills")


class Reading(Operations):
    """Lists, finds and reads skills."""

    async def list_skills(  # noqa: PLR0913 - filters, each by name
        self,
        user_id: UserId | None = None,
        include_public: bool = True,  # noqa: FBT001, FBT002 - callers pass it by name or by place
        tags: Collection[str] | None = None,
        *,
        tag_match: TagMatch = "any",
        name: str | None = None,
        q: str | None = None,
        skill_ids: Collection[UUID] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        deleted: bool = False,
        everything: bool = False,
        unapproved: bool = False,
        system: bool = False,
    ) -> SkillPage:
        """Return the skills that a user may see, sorted by name, or best match first for a search.

        Args:
            user_id: Who is asking; `None` for nobody.
            include_public: Whether to include other users' public skills. The user's own, those shared with the user's
                groups, and system skills are always included.
            tags: Only skills that have these tags, ignoring case; `None` or empty for all.
            tag_match: Whether one of the tags is enough or all are needed.
            name: Only skills with this name, ignoring case.
            q: Only skills that match these words, best first.
            skill_ids: Only these.
            limit: How many at most; `None` for all.
            cursor: Where to continue: `next_cursor` of the previous page, with the same filters.
            deleted: Instead, the user's deleted skills that can still be restored.
            everything: All owners' skills. For operators.
            unapproved: Only public skills whose current text and files no operator approved.
            system: The operator's code asks.

        Raises:
            SkillPermissionError: If `everything` is set and the user is not an operator.
            SkillFormatError: If the cursor or the limit is not valid.
        """
        viewer = await self._policy.viewer(user_id, system=system)
        if everything and not viewer.is_operator:
            raise SkillPermissionError("Only operators can list everybody's skills. List your own instead.")
        if limit is not None and limit < 1:
            raise SkillFormatError(f"A page needs a limit of at least 1, not {limit}.")
        tag_keys = tuple(sorted({storable(tag).strip().casefold() for tag in tags or ()}))
        if len(tag_keys) > MAX_TAGS_ASKED:
            raise SkillFormatError(f"A listing can filter by at most {MAX_TAGS_ASKED} tags, got {len(tag_keys)}.")
        # Deleted skills are shown only to those who can restore them.
        if deleted:
            reasons = frozenset({Reason.SYSTEM if viewer.is_system else Reason.OWN})
        else:
            reasons = EVERYTHING if include_public else TRUSTED
        chosen = Filter(
            reasons,
            tag_keys,
            tag_match,
            None if name is None else stored_key(storable(name[:MAX_SEARCH_LENGTH])),
            None if skill_ids is None else tuple(key for given in skill_ids if (key := as_id(given)) is not None),
            is_everything=everything,
            is_unapproved=unapproved,
            deleted_since=now() - self._policy.retained if deleted else None,
        )
        if q is not None:
            return await self._search(viewer, chosen, storable(q[:MAX_SEARCH_LENGTH]), limit, cursor)
        after = None if cursor is None else Position.of(cursor)
        size = None if limit is None or limit >= MAX_PAGE else limit
        async with self._transactions.snapshot():
            skills, last = await self._listings.page(viewer, chosen, size, after)
        return SkillPage(skills, None if last is None else last.cursor())

    async def _search(
        self, viewer: Viewer, chosen: Filter, query: str, limit: int | None, cursor: str | None
    ) -> SkillPage:
        offset = 0 if cursor is None else offset_of(cursor)
        size = min(limit or MAX_FOUND, MAX_FOUND)
        async with self._transactions.snapshot():
            matches = await self._listings.search(viewer, chosen, query, size + 1, offset)
        # Outside, because it takes time. What is visible is therefore asked again.
        ids = await run_in_thread(len(matches.best) * 4_096, lambda: matches.ids(query, offset))
        async with self._transactions.snapshot():
            skills = await self._listings.light(ids[:size], viewer, chosen)
        more = len(ids) > size and offset + size < MAX_FOUND
        return SkillPage(skills, cursor_at(offset + size) if more else None)

    async def get_skill(
        self,
        skill_id: UUID,
        user_id: UserId | None = None,
        *,
        contents: bool = True,
        system: bool = False,
    ) -> Skill:
        """Return a skill with its files, with or without their contents.

        Args:
            skill_id: Which skill.
            user_id: Who is asking.
            contents: Whether to read the contents of its files.
            system: The operator's code asks.

        Raises:
            SkillNotFoundError: If this user can see no such skill.
        """
        viewer = await self._policy.viewer(user_id, system=system)
        found = await self._show(check_id(skill_id), viewer, contents=contents)
        await self._note_read(found.id, viewer)
        return found

    async def get_skill_by_name(
        self, name: str, user_id: UserId | None = None, *, contents: bool = True, system: bool = False
    ) -> Skill | None:
        """Return the skill with that name, ignoring case; `None` if this user can see no such skill.

        The user's own comes first, then the system's, then one shared with the user's groups, then public ones. Of
        several, the one that has had the name longest is returned, counting from when others could see it.
        """
        viewer = await self._policy.viewer(user_id, system=system)
        async with self._transactions.snapshot():
            found = await self._listings.by_name(stored_key(storable(name[:MAX_SEARCH_LENGTH])), viewer)
            return None if found is None else await self._show(found, viewer, contents=contents)

    async def read_file(
        self, skill_id: UUID, path: str, user_id: UserId | None = None, *, system: bool = False
    ) -> bytes:
        """Return the content of one file of a skill.

        Raises:
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillFileNotFoundError: If the skill has no file at that path.
        """
        viewer = await self._policy.viewer(user_id, system=system)
        async with self._transactions.snapshot():
            skill = await self._readable(check_id(skill_id), viewer, files=False)
            content = await self._files.read(skill.id, storable(path))
        if content is None:
            raise SkillFileNotFoundError(f"The skill has no file {quoted(storable(path))}.")
        await self._note_read(skill.id, viewer)
        return content

    @reads
    async def read_files(self, files: Sequence[SkillFile]) -> list[bytes]:
        """Return the contents of files that another call has just listed, all at once.

        All of them belong to the skill as it was listed, whatever was written since.

        Raises:
            SkillNotFoundError: If one of them has expired since.
        """
        found = await self._history.contents(files)
        for file in files:
            if (file.id, file.since) not in found:
                raise SkillNotFoundError(f"The file {quoted(file.path)} has expired. Get the skill again.")
        return [found[file.id, file.since] for file in files]

    async def required_skills(
        self, skill_ids: Collection[UUID], user_id: UserId | None = None, *, include_public: bool = False
    ) -> list[Skill]:
        """Return the skills that skills require, directly or indirectly, without their texts, as a user sees them.

        A required skill that does not exist for this user is logged.

        Args:
            skill_ids: The skills that require others.
            user_id: Who is asking.
            include_public: Whether anybody's public skill may be what is required. Otherwise it is the user's own, a
                group's, the system's, or a public skill of the owner of the skill that requires it.
        """
        viewer = await self._policy.viewer(user_id)
        return await self._find_required(skill_ids, viewer, EVERYTHING if include_public else TRUSTED)

    @reads
    async def _find_required(
        self, skill_ids: Collection[UUID], viewer: Viewer, reasons: Collection[Reason]
    ) -> list[Skill]:
        found: dict[UUID, None] = {}
        frontier = list(skill_ids)
        # Level by level, each skill once: requirements may form circles.
        while frontier and len(found) < MAX_REQUIRED_SKILLS:
            requiring = await self._listings.light(frontier, viewer, Filter())
            wanted = await self._skills.requires(frontier)
            frontier = []
            for owner, name in dict.fromkeys(
                (skill.owner_id, name) for skill in requiring for name in wanted.get(skill.id, ())
            ):
                # A stranger who publishes a skill under a name that is missing must not reach those who require it.
                skill_id = await self._listings.by_name(stored_key(name), viewer, reasons, trusted_owner=owner)
                if skill_id is None:
                    logger.warning("Skill %s is required, but does not exist for this user", quoted(name))
                elif skill_id not in found and skill_id not in skill_ids:
                    found[skill_id] = None
                    frontier.append(skill_id)
        return await self._listings.light(list(found), viewer, Filter())

    async def export_skill(
        self, skill_id: UUID, user_id: UserId | None = None, *, system: bool = False
    ) -> dict[str, bytes]:
        """Return a skill as files by relative path, its `SKILL.md` first, byte for byte as it came in.

        Raises:
            SkillNotFoundError: If this user can see no such skill.
        """
        return export_files(await self.get_skill(skill_id, user_id, system=system))

    async def format_skill_content(
        self,
        skill: Skill | UUID,
        user_id: UserId | None = None,
        include_file_contents: bool = True,  # noqa: FBT001, FBT002 - as the formatter takes it
    ) -> str:
        """Return a skill, given as such or by its id, as Markdown, as `SkillFormatter` writes it.

        If it comes from a listing, without its text, it is read first.

        Raises:
            SkillNotFoundError: If this user can see no such skill.
        """
        known = skill if isinstance(skill, Skill) and skill.has_text else None
        if known is None:
            skill_id = skill.id if isinstance(skill, Skill) else skill
            known = await self.get_skill(skill_id, user_id, contents=include_file_contents)
        return SkillFormatter.format_skill_content(known, include_file_contents)
