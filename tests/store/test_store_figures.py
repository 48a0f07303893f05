"""What the page asks of the service beside what HTTP does, on every database."""

import datetime as dt

import pytest
from page_support import service_for
from store_support import Sessions, draft

from deepskills.store import SkillUpdate
from deepskills.store.db.models import now

pytestmark = pytest.mark.anyio


async def test_figures_and_approvals(sessions: Sessions) -> None:
    """Cost is near what a load costs in any script; loads are for writers and operators; unapproved ones are listed."""
    async with service_for(sessions) as service:
        latin = await service.create_skill(draft("tea", content="word " * 500, is_public=True), "ann")
        wide = await service.create_skill(draft("cha", content="茶" * 500, shared_with={"staff": "read"}), "ann")
        private = await service.create_skill(draft("secret"), "cleo")
        await service.record_usage([{"type": "skill.loaded", "trigger": "model", "skill_id": latin.id}] * 3, "ann")
        await service.record_usage([{"type": "skill.unloaded", "trigger": "model", "skill_id": latin.id}], "ann")
        refused = {"type": "skill.refused", "trigger": "model", "reason": "budget", "skill_id": latin.id}
        await service.record_usage([refused], "ann")
        assert ("skill.refused", "budget") in {
            (row.type, row.trigger) for row in await service.usage(latin.id, None, "ann")
        }
        today = now().date()
        ids = [latin.id, wide.id, private.id]
        figures = await service.figures(ids, today - dt.timedelta(days=29), "ann")
        assert figures.keys() == {latin.id, wide.id}
        assert figures[latin.id].tokens == pytest.approx(639, rel=0.3)
        assert figures[wide.id].tokens == pytest.approx(514, rel=0.3)
        assert sum((figures[latin.id].loads or {}).values()) == 3
        assert (await service.figures(ids, today, "bob"))[wide.id].loads is None
        assert (await service.figures(ids, today, "olga")).keys() == set(ids)
        waiting = await service.list_skills("olga", everything=True, unapproved=True)
        assert [skill.name for skill in waiting] == ["tea"]
        await service.approve_skill(latin.id, latin.revision, "olga")
        assert await service.list_skills("olga", everything=True, unapproved=True) == []
        await service.update_skill(latin.id, SkillUpdate(content="new"), "ann")
        approval = await service.approval_of(latin.id, "olga")
        assert approval.last is not None
        assert (approval.last.user_id, approval.may_approve) == ("olga", True)
    async with service_for(sessions, approval="by-others") as service:
        assert (await service.approval_of(latin.id, "olga")).may_approve
