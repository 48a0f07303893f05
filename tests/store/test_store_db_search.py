"""A search costs other users nothing, finds what agents would find, and tells nothing of what one may not see."""

import tracemalloc

import pytest
from sqlalchemy import update
from store_support import Sessions, draft, service_on
from test_store_db_listings import fill, statements

from deepskills.store import Skill, SkillUpdate

pytestmark = pytest.mark.anyio


async def test_a_search_reads_a_bounded_number_of_texts(sessions: Sessions) -> None:
    """Each user with skills of their own costs a few statements with a limit, and no index of all that they see."""
    async with service_on(sessions) as service:
        for number in range(6):
            await service.create_skill(draft(f"page-{number}", description="A common word.", is_public=True), "bob")
        for user in ("alice", "carol"):
            await service.create_skill(draft("own", description="A common word."), user)
            with statements(sessions) as seen:
                assert len(await service.list_skills(user, q="common")) == 7
            texts = [statement for statement in seen if "beginning" in statement]
            assert len(texts) == 1
            assert "LIMIT" in texts[0]


async def test_private_words_move_no_result(sessions: Sessions) -> None:
    """Whether others use a word in private skills changes neither what is found nor in which order."""
    async with service_on(sessions) as service:
        for name, described in {"first": "Handles merger plans.", "second": "Handles invoice plans."}.items():
            await service.create_skill(draft(name, description=described, is_public=True), "alice")
        queries = ("merger", "merging", "invoice merger", "plans for a merger")
        before = [[skill.name for skill in await service.list_skills("alice", q=query)] for query in queries]
        for number in range(30):
            await service.create_skill(draft(f"secret-{number}", description="The merging of a merger."), "bob")
        after = [[skill.name for skill in await service.list_skills("alice", q=query)] for query in queries]
    assert after == before
    assert before[0] == before[1] == ["first"]


async def test_private_words_move_no_later_result(sessions: Sessions) -> None:
    """Nor among what comes behind the first hundred, which is in the database's own order."""
    # Where a word is in most skills, a weight by how rare it is would be the same for all.
    await fill(sessions, 300, words="other")
    async with service_on(sessions) as service:
        for number in range(103):
            await service.create_skill(draft(f"zebra-{number}", description="Acme acme bcme bcme."), "alice")
        for name, described in {"first": "About acme and no more.", "second": "About bcme and no more."}.items():
            await service.create_skill(draft(name, description=described), "alice")
        before = [skill.name for skill in await service.list_skills("alice", include_public=False, q="acme bcme")]
        await service.create_skill(draft("secret", description="We buy acme."), "bob")
        after = [skill.name for skill in await service.list_skills("alice", include_public=False, q="acme bcme")]
    assert after == before
    assert before[-2:] == ["first", "second"]


async def test_a_slip_is_corrected(sessions: Sessions) -> None:
    """A word that no skill has finds the skill with the word that was meant."""
    async with service_on(sessions) as service:
        for name in ("invoices", "letters", "tables"):
            await service.create_skill(draft(name), "alice")
        assert [skill.name for skill in await service.list_skills("alice", q="lettrs")] == ["letters"]
        assert await service.list_skills("alice", q="qqqqqq") == []


async def test_nothing_is_told_of_the_time_before(sessions: Sessions) -> None:
    """Who watches from the beginning hears what happened since a skill could be seen, not its former names."""
    async with service_on(sessions) as service:
        made = await service.create_skill(draft("merger-with-acme"), "alice")
        await service.update_skill(made.id, SkillUpdate(name="deals"), "alice")
        await service.update_skill(made.id, SkillUpdate(is_public=True), "alice")
        await service.update_skill(made.id, SkillUpdate(is_public=False), "alice")
        await service.update_skill(made.id, SkillUpdate(content="secret"), "alice")
        await service.update_skill(made.id, SkillUpdate(is_public=True), "alice")
    async with service_on(sessions) as service:
        watching = service.watch("bob", since=0, interval=0.01)
        heard = [await anext(watching), await anext(watching)]
        await watching.aclose()  # type: ignore[attr-defined]
    assert [change.name for change in heard] == ["deals", "deals"]
    assert all(change.revision > made.revision + 1 for change in heard)


async def test_a_search_holds_a_bounded_number_of_texts(sessions: Sessions) -> None:
    """However many skills have the words, a search holds the beginnings of a hundred, and nothing when it is done."""
    await fill(sessions, 1_500, words="common")
    async with sessions() as session:
        await session.execute(update(Skill).values(beginning="common " * 700))
        await session.commit()
    async with service_on(sessions) as service:
        found = await service.list_skills("alice", q="common", limit=5)
        tracemalloc.start()
        try:
            again = await service.list_skills("alice", q="common", limit=5)
            held, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert [skill.id for skill in again] == [skill.id for skill in found]
    assert len(found) == 5
    # All texts together are 7 MB, and what the ranker makes of a text takes several times as much.
    assert held < 1_000_000
    assert peak < 7_000_000
