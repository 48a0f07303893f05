"""The service's reading calls: listings, searches, skills, files, and what an agent's run needs."""

import asyncio
import base64
import json
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Sequence
from uuid import UUID

from deepskills._catalog.search import Document as SearchDocument
from deepskills._catalog.search import SearchIndex
from deepskills._errors import SkillFileNotFoundError, SkillFormatError, SkillNotFoundError
from deepskills._skillmd.problems import quoted
from deepskills._types import SKILL_FILE
from deepskills.store._base import now
from deepskills.store._checks import UserId, as_id, document_of, known_id
from deepskills.store._core import ServiceCore
from deepskills.store._errors import SkillPermissionError
from deepskills.store._formatter import SkillFormatter
from deepskills.store._listings import MAX_FOUND, Filter, Position, Searchable, TagMatch
from deepskills.store._models import Skill
from deepskills.store._rules import name_key, storable
from deepskills.store._visibility import EVERYTHING, PERSONAL, Reason, Viewer

MAX_RANKED = 3_000
"""Up to how many skills the ranker that agents use looks at; beyond, the database searches."""

MAX_TAGS_ASKED = 200
"""How many tags a listing filters by at most."""

MAX_PAGE = 1_000_000
"""From how many skills on a page is all there are."""

MAX_SEARCH_LENGTH = 1_000
"""Longest query; what follows is left out."""


class SkillPage(list[Skill]):
    """Skills of a listing, light: without `content`, `frontmatter` and `files`.

    `next_cursor` is what to pass as `cursor` for the skills that follow, `None` at the end.
    """

    def __init__(self, skills: Iterable[Skill] = (), next_cursor: str | None = None) -> None:
        super().__init__(skills)
        self.next_cursor = next_cursor


class ReadingService(ServiceCore):
    """Reads skills for users."""

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
        system: bool = False,
    ) -> SkillPage:
        """Return the skills that a user may see, in order of name, or best match first for a search.

        Args:
            user_id: Who asks; `None` for nobody.
            include_public: Whether public and system skills are among them; without, only the user's own and those
                shared with the user's groups.
            tags: Only skills that have these tags, in any case; `None` or empty for all.
            tag_match: Whether one of the tags is enough or all are needed.
            name: Only skills of this name, in any case.
            q: Only skills that fit these words, best first.
            skill_ids: Only these.
            limit: How many at most; `None` for all.
            cursor: Where to go on: `next_cursor` of the page before, with the same filters.
            deleted: The user's deleted skills that can still be restored, in place of the others.
            everything: All skills of all owners. For operators.
            system: The operator's code asks.

        Raises:
            SkillPermissionError: If `everything` is asked for by somebody who is not an operator.
            SkillFormatError: If the cursor or the limit is not valid.
        """
        viewer = await self._viewer(user_id, system=system)
        if everything and not viewer.is_operator:
            raise SkillPermissionError("Only operators list the skills of everybody. List your own instead.")
        if limit is not None and limit < 1:
            raise SkillFormatError(f"A page has 1 skill or more, not {limit}.")
        tag_keys = tuple(sorted({storable(tag).strip().casefold() for tag in tags or ()}))
        if len(tag_keys) > MAX_TAGS_ASKED:
            raise SkillFormatError(f"A listing filters by {MAX_TAGS_ASKED} tags at most, got {len(tag_keys)}.")
        reasons = frozenset({Reason.OWN}) if deleted else EVERYTHING if include_public else PERSONAL
        chosen = Filter(
            reasons,
            tag_keys,
            tag_match,
            None if name is None else name_key(storable(name[:MAX_SEARCH_LENGTH])),
            None if skill_ids is None else tuple(key for given in skill_ids if (key := as_id(given)) is not None),
            is_everything=everything,
            deleted_since=now() - self._retention if deleted else None,
        )
        if q is not None:
            return await self._search(viewer, chosen, storable(q[:MAX_SEARCH_LENGTH]), limit, cursor)
        after = None if cursor is None else Position.of(cursor)

        async def work() -> SkillPage:
            size = None if limit is None or limit >= MAX_PAGE else limit
            skills, last = await self._listings.page(viewer, chosen, size, after)
            return SkillPage(skills, None if last is None else last.cursor())

        return await self._transactions.read(work)

    async def get_skill(
        self, skill_id: UUID, user_id: UserId | None = None, *, contents: bool = True, system: bool = False
    ) -> Skill:
        """Return a skill with its files, their contents included or not.

        Raises:
            SkillNotFoundError: If there is none that this user may see.
        """
        viewer = await self._viewer(user_id, system=system)
        return await self._transactions.read(lambda: self._readable(known_id(skill_id), viewer, contents=contents))

    async def get_skill_by_name(self, name: str, user_id: UserId | None = None, *, contents: bool = True) -> Skill:
        """Return the skill of that name, in any case.

        The user's own comes first, then one shared with the user's groups, then the system's, then public ones. Of
        several the one that has had the name longest, as far as others could see it, is returned.

        Raises:
            SkillNotFoundError: If there is none that this user may see.
        """
        viewer = await self._viewer(user_id)
        key = name_key(storable(name[:MAX_SEARCH_LENGTH]))

        async def work() -> Skill:
            found = await self._skills.by_name(key, viewer)
            if found is None:
                raise SkillNotFoundError(f"There is no skill named {quoted(name)}. List the skills to see which exist.")
            return await self._readable(found, viewer, contents=contents)

        return await self._transactions.read(work)

    async def read_file(self, skill_id: UUID, path: str, user_id: UserId | None = None) -> bytes:
        """Return the content of one file of a skill.

        Raises:
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillFileNotFoundError: If the skill has no file at that path.
        """
        viewer = await self._viewer(user_id)

        async def work() -> bytes:
            skill = await self._readable(known_id(skill_id), viewer, files=False)
            content = await self._files.read(skill.id, storable(path))
            if content is None:
                raise SkillFileNotFoundError(f"The skill has no file {quoted(storable(path))}.")
            return content

        return await self._transactions.read(work)

    async def export_skill(self, skill_id: UUID, user_id: UserId | None = None) -> dict[str, bytes]:
        """Return a skill as files by relative path, its `SKILL.md` first, byte for byte as it came in.

        Raises:
            SkillNotFoundError: If there is none that this user may see.
        """
        return exported(await self.get_skill(skill_id, user_id))

    async def format_skill_content(
        self,
        skill: Skill | UUID,
        user_id: UserId | None = None,
        include_file_contents: bool = True,  # noqa: FBT001, FBT002 - as the formatter takes it
    ) -> str:
        """Return a skill, given itself or by its id, as Markdown, as `SkillFormatter` writes it.

        One of a listing, which came without its text, is read first.

        Raises:
            SkillNotFoundError: If there is none that this user may see.
        """
        known = skill if isinstance(skill, Skill) and skill.has_text else None
        if known is None:
            skill_id = skill.id if isinstance(skill, Skill) else skill
            known = await self.get_skill(skill_id, user_id, contents=include_file_contents)
        return SkillFormatter.format_skill_content(known, include_file_contents)

    async def _search(
        self, viewer: Viewer, chosen: Filter, query: str, limit: int | None, cursor: str | None
    ) -> SkillPage:
        offset = 0 if cursor is None else _offset_of(cursor)
        size = min(limit or MAX_FOUND, MAX_FOUND)

        async def candidates() -> list[Searchable] | None:
            if await self._listings.count(viewer, chosen, MAX_RANKED + 1) > MAX_RANKED:
                return None
            return await self._listings.searchable(viewer, chosen)

        few = await self._transactions.read(candidates)
        ranked = None if few is None else await asyncio.to_thread(_ranked, few, query)

        async def work() -> SkillPage:
            if ranked is not None:
                ids = ranked[offset : offset + size + 1]
            else:
                ids = await self._listings.search(viewer, chosen, query, size + 1, offset)
            skills = await self._listings.light(ids[:size], viewer, chosen)
            more = len(ids) > size and offset + size < MAX_FOUND
            return SkillPage(skills, _cursor_at(offset + size) if more else None)

        return await self._transactions.read(work)


def _ranked(skills: Sequence[Searchable], query: str) -> list[UUID]:
    """Return the ids of skills that fit a query, best first, as the agents' search ranks them."""
    ids: dict[str, deque[UUID]] = defaultdict(deque)
    for skill in skills:
        ids[skill.name].append(skill.id)
    documents = [SearchDocument(skill.name, skill.description, " ".join(skill.tags)) for skill in skills]
    return [ids[name].popleft() for name in SearchIndex(documents).search(query, len(documents))]


def _cursor_at(offset: int) -> str:
    return base64.urlsafe_b64encode(json.dumps({"offset": offset}).encode()).decode().rstrip("=")


def _offset_of(cursor: str) -> int:
    try:
        found = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))["offset"]
    except (ValueError, TypeError, KeyError, RecursionError):
        found = -1
    if not isinstance(found, int) or not 0 <= found <= MAX_FOUND:
        raise SkillFormatError("The cursor is not one that a search gave. Start again without it.")
    return found


def exported(skill: Skill) -> dict[str, bytes]:
    """Return a skill as files by relative path, its `SKILL.md` first."""
    files = {file.path: _bytes(file.content) for file in sorted(skill.files, key=lambda file: file.path)}
    return {SKILL_FILE: document_of(skill).render(), **files}


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content
