"""Forms of the store's page at their limits: many groups, groups of strangers, revisions that are no longer kept."""

import threading
from typing import Any

import pytest
from page_support import Visitor, id_in, page_app, service_for, skill_md
from store_support import Sessions, draft

from deepskills.store import SkillUpdate, StoreLimits
from deepskills.store.page import shown
from deepskills.store.rules import MAX_GROUPS, MAX_GROUPS_OF_USER

pytestmark = pytest.mark.anyio


@pytest.fixture
def kind() -> str:
    """What a page shows is made of the service's answers: SQLite will do."""
    return "sqlite"


async def test_sharing_with_the_most_groups(sessions: Sessions) -> None:
    """The form works for a user in as many groups as allowed; too many at once, or more fields than that, are named."""
    groups = [f"group-{number:04}" for number in range(MAX_GROUPS_OF_USER)]
    rules: dict[str, Any] = {"groups_of": lambda _: groups}
    former: dict[str, Any] = {f"former-{number}": "read" for number in range(MAX_GROUPS)}
    async with service_for(sessions) as service:
        made = await service.create_skill(draft("tea", shared_with=former), "ann")
    ann = Visitor(page_app(sessions, **rules), "ann")
    share = (await ann.open(f"/skills/{made.id}")).form("/share")
    assert len([name for name in share.fields if name.startswith("group:")]) == MAX_GROUPS_OF_USER + MAX_GROUPS
    wanted: dict[str, Any] = {f"group:{name}": "" for name in former} | {"group:group-0999": "write"}
    assert "Sharing was changed." in (await ann.send(share, **wanted)).words
    async with service_for(sessions, **rules) as service:
        assert (await service.get_skill(made.id, "ann")).shared_with == {"group-0999": "write"}

    share = (await ann.open(f"/skills/{made.id}")).form("/share")
    everyone: dict[str, Any] = {f"group:{name}": "read" for name in groups}
    refused = await ann.send(share, 422, **everyone)
    assert f"A skill can be shared with {MAX_GROUPS} groups, got {MAX_GROUPS_OF_USER}." in refused.words
    more: dict[str, Any] = {f"group:{number}": "" for number in range(200)}
    assert "The form cannot be read: Max number of fields exceeded" in (await ann.send(share, 422, **more)).words


async def test_naming_another_group(sessions: Sessions) -> None:
    """Where the store allows it, and for operators, the form has a field for a group that the user is not in."""
    ann, olga, stranger = (Visitor(page_app(sessions), user) for user in ("ann", "olga", "dora"))
    strict = page_app(sessions, limits=StoreLimits())
    names = {"new-group", "new-right"}

    def named(group: str, right: str = "read") -> dict[str, Any]:
        return {"new-group": group, "new-right": right}

    made = {}
    for user in (ann, olga, stranger):
        new = (await user.open("/new")).form("/new")
        page = await user.send(new, text=skill_md(f"tea-of-{user.user}"), action="save")
        made[user.user] = f"/skills/{id_in(user.last.url)}"
        # Also for somebody without any group.
        assert names <= page.form("/share").fields.keys()
    page = await ann.open(made["ann"])
    share = page.form("/share")
    page = await ann.send(share, **named(" readers ", "write"))
    async with service_for(sessions) as service:
        assert (await service.get_skill(id_in(made["ann"]), "ann")).shared_with == {"readers": "write"}
    # An empty field names nobody, and changes nothing.
    page = await ann.send(page.form("/share"))
    async with service_for(sessions) as service:
        assert (await service.get_skill(id_in(made["ann"]), "ann")).shared_with == {"readers": "write"}
    await ann.send(page.form("/share"), 422, **named("x" * 300))

    # Where only own groups are allowed the field is not offered, and a form that has it nevertheless is refused.
    ann, olga, stranger = (Visitor(strict, user) for user in ("ann", "olga", "dora"))
    share = (await ann.open(made["ann"])).form("/share")
    assert not names & share.fields.keys()
    await ann.send(share, 403, **named("staff-of-others"))
    assert not (await stranger.open(made["dora"])).has("/share")
    page = await olga.send((await olga.open(made["olga"])).form("/share"), **named("readers"))
    assert page.form("/share").fields["group:readers"] == "read"


LOST = "is no longer kept, so what has changed since cannot be shown."


async def test_a_revision_that_is_no_longer_kept(sessions: Sessions) -> None:
    """A stale save or approval whose revision was purged says so, is not carried out, and loses nothing."""
    app = page_app(sessions)
    ann, olga = Visitor(app, "ann"), Visitor(app, "olga")
    async with service_for(sessions) as service:
        made = await service.create_skill(draft("tea", content="One.\n", is_public=True), "ann")
        at = f"/skills/{made.id}"
        editor = (await ann.open(f"{at}/edit")).form("/edit")
        approval = (await olga.open(at)).form("/approve")
        await service.update_skill(made.id, SkillUpdate(content="Theirs.\n"), "ann")
        await service.purge(versions=0)
    conflict = await ann.send(editor, 412, text=editor.fields["text"].replace("One.", "Mine."), action="save")
    assert f"Revision {made.revision} {LOST}" in conflict.words
    assert "No difference" not in conflict.words
    assert "Mine." in conflict.words.split("What saving yours would change now")[1]
    assert "Mine." in conflict.form("/edit").fields["text"]
    stale = await olga.send(approval, 412)
    assert f"Revision {made.revision} {LOST}" in stale.words
    assert "Nothing was approved." in stale.words
    assert "No difference" not in stale.words
    assert stale.has(at)
    async with service_for(sessions) as service:
        assert not (await service.get_skill(made.id, "ann")).is_approved


async def test_large_differences_leave_the_loop_free(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a conflict and a stale approval show of a large text is prepared in a thread, as for a comparison."""
    app = page_app(sessions)
    ann, olga = Visitor(app, "ann"), Visitor(app, "olga")
    seen: list[tuple[bool, threading.Thread]] = []
    parse = shown.diff_of

    def watched(text: str) -> shown.Diff:
        seen.append((len(text) > 100_000, threading.current_thread()))
        return parse(text)

    async with service_for(sessions) as service:
        made = await service.create_skill(draft("tea", is_public=True), "ann")
        at = f"/skills/{made.id}"
        editor = (await ann.open(f"{at}/edit")).form("/edit")
        approval = (await olga.open(at)).form("/approve")
        await service.update_skill(made.id, SkillUpdate(content=f"{'long ' * 20}\n" * 2_000), "ann")
    monkeypatch.setattr(shown, "diff_of", watched)
    conflict = await ann.send(editor, 412, action="save", text=editor.fields["text"] + "Mine.")
    assert "long long" in conflict.words
    assert "long long" in (await olga.send(approval, 412)).words
    assert [is_large for is_large, _ in seen] == [True] * 3
    assert threading.current_thread() not in {thread for _, thread in seen}
