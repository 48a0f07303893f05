"""How skills are used, what they cost, and where they were delivered."""

import datetime as dt
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from deepskills._loading.budget import CHARACTERS_PER_TOKEN, MESSAGE_TOKENS
from deepskills._skillmd.names import stored_key
from deepskills.store.db.listings import Filter
from deepskills.store.db.models import now
from deepskills.store.db.transactions import counts
from deepskills.store.rules import UserId, Viewer, as_id, check_id, has_right, storable
from deepskills.store.service.base import Operations, SkillFigures, UsageCount

MAX_EVENTS = 10_000
"""How many usage events one call accepts."""

MAX_DELIVERED = 100
"""How many files of a delivered skill are remembered, by their digests."""

_MAX_WORD = 32


class Usage(Operations):
    """Counts how skills are used."""

    async def record_usage(
        self, events: Iterable[Mapping[str, Any]], user_id: UserId | None = None, *, system: bool = False
    ) -> int:
        """Count skill events, such as `skill.loaded`, by day and trigger.

        An event names its skill by `skill_id`, or by `skill`, the name as `user_id` sees it. Events about skills that
        do not exist, or that `user_id` may not see, are left out; nobody (`None`) sees public and system skills. The
        operator's code (`system=True`) can count for any skill by id.

        Returns:
            How many events were counted.
        """
        viewer = await self._policy.viewer(user_id, system=system)
        given = [event for event in itertools.islice(events, MAX_EVENTS) if isinstance(event, Mapping)]
        return await self._count(given, viewer)

    @counts
    async def _count(self, events: list[Mapping[str, Any]], viewer: Viewer) -> int:
        named = {str(event.get("skill", "")) for event in events if as_id(event.get("skill_id")) is None}
        keys = {name: stored_key(storable(name[: _MAX_WORD * 8])) for name in named}
        ids = {name: await self._listings.by_name(key, viewer) for name, key in keys.items()}
        today = now().date()
        totals: Counter[tuple[UUID, str, str]] = Counter()
        for event in events:
            skill_id = as_id(event.get("skill_id")) or ids.get(str(event.get("skill", "")))
            if skill_id is not None:
                # Who asked for what was refused matters less than why it was.
                word = event.get("reason") if event.get("type") == "skill.refused" else None
                totals[skill_id, _word(event.get("type")), _word(word or event.get("trigger"))] += 1
        seen_by = None if viewer.is_system else viewer
        known = await self._listings.existing({key[0] for key in totals}, seen_by) if totals else set()
        rows = [
            {"skill_id": key[0], "day": today, "type": key[1], "trigger": key[2], "count": count}
            # In the same order everywhere: two calls that add to the same rows in different orders would deadlock.
            for key, count in sorted(totals.items(), key=str)
            if key[0] in known
        ]
        await self._history.count_usage(rows)
        return sum(int(str(row["count"])) for row in rows)

    async def usage(
        self,
        skill_id: UUID,
        since: datetime | dt.date | None = None,
        user_id: UserId | None = None,
        *,
        system: bool = False,
    ) -> list[UsageCount]:
        """Return how often a skill was used since a day, by day, type of event and trigger.

        Raises:
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillPermissionError: If the user may read it but not write it.
        """
        viewer = await self._policy.viewer(user_id, system=system)
        first = since.date() if isinstance(since, datetime) else since
        async with self._transactions.snapshot():
            skill = await self._with_history(check_id(skill_id), viewer)
            found = await self._history.usage(skill.id, first)
        return [UsageCount(row.day, row.type, row.trigger, row.count) for row in found]

    async def figures(
        self, skill_ids: Collection[UUID], since: dt.date, user_id: UserId | None = None
    ) -> dict[UUID, SkillFigures]:
        """Return what the skills of a listing cost and how often they were loaded since a day, with a few queries.

        Skills that the user may not see are left out.
        """
        viewer = await self._policy.viewer(user_id)
        async with self._transactions.snapshot():
            skills = await self._listings.light(list(skill_ids), viewer, Filter(is_everything=viewer.is_operator))
            counted = [skill.id for skill in skills if viewer.is_operator or has_right(skill, viewer, "write")]
            lengths = await self._listings.lengths([skill.id for skill in skills])
            rows = await self._history.loads(counted, since)
        loads: dict[UUID, Counter[dt.date]] = {skill_id: Counter() for skill_id in counted}
        for row in rows:
            loads[row.skill_id][row.day] += row.count
        return {
            skill.id: SkillFigures(about_tokens(*lengths[skill.id]), loads.get(skill.id))
            for skill in skills
            if skill.id in lengths
        }

    async def note_delivery(
        self, directory: str, skill_id: UUID, digests: Sequence[str], user_id: UserId | None = None
    ) -> None:
        """Remember that the loader wrote a skill to a directory of a user's sandbox."""
        viewer = await self._policy.viewer(user_id)
        kept = digests[:MAX_DELIVERED]
        await self._transactions.perform(
            lambda: self._history.note_delivery(viewer.user or "", directory, skill_id, kept), "count"
        )

    async def deliveries(
        self, directories: Collection[str], user_id: UserId | None = None
    ) -> dict[str, frozenset[str]]:
        """Return the directories of a user's sandbox that the loader wrote, with the digests of their files."""
        viewer = await self._policy.viewer(user_id)
        async with self._transactions.snapshot():
            return await self._history.deliveries(viewer.user or "", directories)

    async def forget_delivery(self, directory: str, user_id: UserId | None = None) -> None:
        """Forget that the loader wrote to a directory that is gone."""
        viewer = await self._policy.viewer(user_id)
        await self._transactions.perform(lambda: self._history.forget_delivery(viewer.user or "", directory), "count")


def about_tokens(characters: int, size: int) -> int:
    """Return about how many tokens a text costs when loaded, from its characters and its bytes in UTF-8.

    Chinese, Japanese and Korean characters take three bytes and one token each.
    """
    wide = (size - characters) // 2
    return wide + -(-(characters - wide) // CHARACTERS_PER_TOKEN) + MESSAGE_TOKENS


def _word(given: object) -> str:
    return storable(str(given or "unknown"))[:_MAX_WORD]
