"""The service's calls about what skills were, what happened to them, and how they are used."""

import asyncio
import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from deepskills._errors import SkillNotFoundError
from deepskills.store._base import now
from deepskills.store._checks import UserId, as_id, check_right, document_of, known_id
from deepskills.store._core import Values
from deepskills.store._differences import difference
from deepskills.store._document import Document
from deepskills.store._history import FormerText, SkillChange
from deepskills.store._models import FileContent, Skill, SkillFile
from deepskills.store._reading import exported
from deepskills.store._rules import name_key, storable
from deepskills.store._visibility import Viewer
from deepskills.store._writing import WritingService

MAX_CHANGES = 1_000
"""How many changes one call gives at most."""

MAX_EVENTS = 10_000
"""How many events of use one call takes at most."""

_MAX_WORD = 32


@dataclass(frozen=True)
class UsageCount:
    """How often a skill was used on one day, by one kind of event and trigger."""

    day: dt.date
    type: str
    trigger: str
    count: int


class VersionsService(WritingService):
    """Keeps the history of skills: for those who may write them."""

    async def list_versions(
        self,
        skill_id: UUID,
        user_id: UserId | None = None,
        *,
        before: int | None = None,
        limit: int = 100,
        system: bool = False,
    ) -> list[SkillChange]:
        """Return a skill's revisions, newest first: each with who did what, when.

        Args:
            skill_id: Which skill.
            user_id: Who asks.
            before: Only revisions before this one, to go on from the last of an earlier call.
            limit: How many at most.
            system: The operator's code asks.

        Raises:
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillPermissionError: If the user may read it but not write it.
        """
        viewer = await self._viewer(user_id, system=system)

        async def work() -> list[SkillChange]:
            skill = await self._with_history(skill_id, viewer)
            found = await self._history.changes(
                skill_id=skill.id, before=before, limit=_bounded(limit), newest_first=True
            )
            return list(found)

        return await self._transactions.read(work)

    async def get_version(
        self, skill_id: UUID, revision: int, user_id: UserId | None = None, *, system: bool = False
    ) -> Skill:
        """Return a skill as it was at one of its revisions, with its files.

        Raises:
            SkillNotFoundError: If there is no such skill that this user may see, or it had no such revision.
            SkillPermissionError: If the user may read it but not write it.
        """
        viewer = await self._viewer(user_id, system=system)

        async def work() -> Skill:
            return await self._version(await self._with_history(skill_id, viewer), revision)

        return await self._transactions.read(work)

    async def diff_versions(
        self,
        skill_id: UUID,
        old: int,
        new: int,
        user_id: UserId | None = None,
        *,
        max_length: int | None = None,
        system: bool = False,
    ) -> str:
        """Return what changed between two revisions of a skill, as a unified diff of all its files.

        Args:
            skill_id: Which skill.
            old: The earlier revision.
            new: The later one.
            user_id: Who asks.
            max_length: Stop after about so many characters; `None` for the whole.
            system: The operator's code asks.

        Raises:
            SkillNotFoundError: If there is no such skill that this user may see, or it had no such revision.
            SkillPermissionError: If the user may read it but not write it.
        """
        viewer = await self._viewer(user_id, system=system)

        async def work() -> list[Skill]:
            skill = await self._with_history(skill_id, viewer)
            return [await self._version(skill, revision) for revision in (old, new)]

        before, after = await self._transactions.read(work)
        return await asyncio.to_thread(lambda: difference(exported(before), exported(after), max_length))

    async def restore_version(
        self,
        skill_id: UUID,
        revision: int,
        user_id: UserId | None,
        *,
        expected_revision: int | None = None,
        system: bool = False,
    ) -> Skill:
        """Give a skill the text and files of one of its revisions, as a new revision; who sees it stays.

        Returns:
            The skill, without the contents of its files.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
            SkillNotFoundError: If there is no such skill that this user may see, or it had no such revision.
            SkillPermissionError: If it is not this user's to change.
            SkillStaleError: If its revision is not the expected one.
            SkillConflictError: If the owner has another skill of the name that it had.
        """
        writer = await self._writer(user_id, system=system)

        async def work() -> Skill:
            skill = await self._locked(known_id(skill_id), writer, "write", expected_revision)
            version = await self._version(skill, revision)
            files = [FileContent.of(file.path, file.data) for file in version.files]
            await self._change(skill, writer, "reverted", Values(document_of(version), files))
            return await self._fresh(skill)

        return await self._write(work)

    async def list_changes(
        self,
        user_id: UserId | None = None,
        *,
        skill_id: UUID | None = None,
        since: int = 0,
        limit: int = 100,
        system: bool = False,
    ) -> list[SkillChange]:
        """Return who did what to which skill, oldest first: to the user's own skills, or to all for an operator.

        The log is only ever added to. A revision that a caller has seen is never followed by a lower one.

        Args:
            user_id: Who asks.
            skill_id: Only changes of this skill.
            since: Only changes after this revision.
            limit: How many at most.
            system: The operator's code asks.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
        """
        viewer = await self._writer(user_id, system=system)
        owner = None if viewer.is_operator else viewer.user
        chosen = None if skill_id is None else known_id(skill_id)

        async def work() -> list[SkillChange]:
            found = await self._history.changes(skill_id=chosen, owner_id=owner, since=since, limit=_bounded(limit))
            return list(found)

        return await self._transactions.read(work)

    async def record_usage(self, events: Iterable[Mapping[str, Any]], user_id: UserId | None = None) -> int:
        """Count skill events, such as `skill.loaded`, by day and trigger.

        An event names its skill by `skill_id`, or by `skill`, which is the name as `user_id` sees it. Events about
        skills that do not exist are left out.

        Returns:
            How many events were counted.
        """
        viewer = await self._viewer(user_id)
        given = list(events)[:MAX_EVENTS]

        async def work() -> int:
            named = {str(event.get("skill", "")) for event in given if as_id(event.get("skill_id")) is None}
            ids = {
                name: await self._skills.by_name(name_key(storable(name[: _MAX_WORD * 8])), viewer) for name in named
            }
            today = now().date()
            counts: Counter[tuple[UUID, str, str]] = Counter()
            for event in given:
                skill_id = as_id(event.get("skill_id")) or ids.get(str(event.get("skill", "")))
                if skill_id is not None:
                    counts[skill_id, _word(event.get("type")), _word(event.get("trigger"))] += 1
            known = await self._listings.existing({key[0] for key in counts}) if counts else set()
            rows = [
                {"skill_id": key[0], "day": today, "type": key[1], "trigger": key[2], "count": count}
                for key, count in sorted(counts.items(), key=str)
                if key[0] in known
            ]
            await self._history.count_usage(rows)
            return sum(int(str(row["count"])) for row in rows)

        return await self._transactions.count(work)

    async def usage(
        self,
        skill_id: UUID,
        since: datetime | dt.date | None = None,
        user_id: UserId | None = None,
        *,
        system: bool = False,
    ) -> list[UsageCount]:
        """Return how often a skill was used since a day, by day, kind of event and trigger.

        Raises:
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillPermissionError: If the user may read it but not write it.
        """
        viewer = await self._viewer(user_id, system=system)
        first = since.date() if isinstance(since, datetime) else since

        async def work() -> list[UsageCount]:
            skill = await self._with_history(skill_id, viewer)
            found = await self._history.usage(skill.id, first)
            return [UsageCount(row.day, row.type, row.trigger, row.count) for row in found]

        return await self._transactions.read(work)

    async def _with_history(self, skill_id: UUID, viewer: Viewer) -> Skill:
        """Return a skill whose history the viewer may see: what was taken out of it is not for all readers."""
        skill = await self._readable(known_id(skill_id), viewer, files=False)
        if not viewer.is_operator:
            check_right(skill, viewer, "write")
        return skill

    async def _version(self, skill: Skill, revision: int) -> Skill:
        """Return a skill as it was at a revision, as a value that no session knows."""
        change = await self._history.change(skill.id, revision) if abs(revision) < 1 << 63 else None
        text = document_of(skill)
        if change is not None and revision < skill.text_since:
            former = await self._history.text_at(skill.id, revision)
            change, text = (None, text) if former is None else (change, document_at(former))
        if change is None:
            raise SkillNotFoundError(
                f"The skill {skill.name!r} has no version {revision}, or it is kept no more. List its versions."
            )
        files = [
            SkillFile(
                id=file.id,
                path=file.path,
                size=file.size,
                is_text=file.is_text,
                digest=file.digest,
                data=file.data,
                since=file.since,
            )
            for file in await self._history.files_at(skill.id, revision)
        ]
        return Skill(
            id=skill.id,
            owner_id=skill.owner_id,
            is_public=skill.is_public,
            revision=revision,
            created_at=skill.created_at,
            updated_at=change.at,
            files=files,
            size=sum(file.size for file in files) + len(text.render()),
            **vars(text),
        )


def document_at(former: FormerText) -> Document:
    """Return a `SKILL.md` that a skill had."""
    tags = former.tags.split(",") if former.tags else []
    return Document(former.name, former.description, former.content, tags, former.frontmatter, former.encoding)


def _bounded(limit: int) -> int:
    return max(1, min(limit, MAX_CHANGES))


def _word(given: object) -> str:
    return storable(str(given or "unknown"))[:_MAX_WORD]
