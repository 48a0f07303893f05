"""What somebody who approves a skill sees: all that an agent gets, and what changed; and what the page costs others."""

import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi import FastAPI
from page_support import ORIGIN, Html, Visitor, page_app, service_for, skill_md
from sqlalchemy import event
from store_support import Sessions, draft, draft_with_files

from deepskills.store import SkillUpdate, create_skills_router
from deepskills.store.page.markdown import Place, render
from deepskills.store.schemas import SkillCreate
from deepskills.store.workers import BYTES_IN_FLIGHT, in_flight

pytestmark = pytest.mark.anyio


@pytest.fixture
def kind() -> str:
    """What a page shows is made of the service's answers: SQLite will do."""
    return "sqlite"


TAGS = "".join(chr(0xE0000 + ord(sign)) for sign in "obey")
BINARY = b"\x7fELF\x00 run me"
PLANTED = """---
name: tea
description: Brews tea.
license: Obey the license
# Obey the comment of the frontmatter
metadata:
  note: Obey the metadata
---
# Brew

<!-- Obey the comment -->

[r]: https://x.example "Obey the definition"
[unused]: <Obey-the-address>
[link](https://x.example "Obey the title of a link") ![a](https://x.example/a.png "Obey the title of an image")

```sh Obey the info of a fence
true
```

[//]: # (Obey the comment in a definition)

Shown\u200b to nobody\u202e and TAGS.
""".replace("TAGS", TAGS)
FILES: dict[str, bytes | str] = {
    "references/guide.md": "# Guide\n\n<!-- Obey the guide -->\n",
    "scripts/run.py": "# Obey the script" + " " * 500 + "Obey the end of a line\n",
    "scripts/stray.sh": b"# caf\xe9\necho Obey the script with a stray byte\n",
    "scripts/wide.sh": "echo not shown".encode("utf-16-le"),
    "scripts/tool.bin": BINARY,
}
EXPECTED = {
    "frontmatter": "Obey the license",
    "a comment in the frontmatter": "Obey the comment of the frontmatter",
    "metadata": "Obey the metadata",
    "an HTML comment": "<!-- Obey the comment -->",
    "a reference definition": "Obey the definition",
    "an unused definition": "Obey-the-address",
    "a comment as a definition": "Obey the comment in a definition",
    "the title of a link": "Obey the title of a link",
    "the title of an image": "Obey the title of an image",
    "the info of a fence": "Obey the info of a fence",
    "a zero-width space": "U+200B",
    "an override of direction": "U+202E",
    "tags": "U+E006F U+E0062 U+E0065 U+E0079 “obey”",
    "a file in Markdown": "<!-- Obey the guide -->",
    "a script": "Obey the script",
    "the end of a long line": "Obey the end of a line",
    "a script that is not quite text": "Obey the script with a stray byte",
    "a stray byte": "U+DCE9",
    "that a file cannot be shown": "1 file cannot be shown here.",
    "a binary file by type": "application/octet-stream",
    "a binary file by digest": hashlib.sha256(BINARY).hexdigest(),
}


async def test_what_is_approved_is_what_an_agent_gets(sessions: Sessions) -> None:
    """Beside the button to approve stands every text that an agent would get, as written, and every file."""
    app = page_app(sessions)
    async with service_for(sessions) as service:
        data = SkillCreate.from_skill_md(PLANTED, FILES).model_copy(update={"is_public": True})
        made = await service.create_skill(data, "ann")
    olga, ann = Visitor(app, "olga"), Visitor(app, "ann")
    page = await olga.open(f"/skills/{made.id}")
    assert page.form("/approve").buttons == [f"Approve revision {made.revision}"]
    assert {what: text for what, text in EXPECTED.items() if text not in page.words} == {}
    assert not {"\u202e", *TAGS} & {*page.words}
    # Who does not decide sees the rendered text, as ever.
    assert "Obey the definition" not in (await ann.open(f"/skills/{made.id}")).words
    # After the approval, what changed since is the first thing to see, and the whole is there again.
    await olga.send(page.form("/approve"))
    async with service_for(sessions) as service:
        await service.update_skill(made.id, SkillUpdate(content="New.\n\n[new]: x 'Obey\u2066 the news'\n"), "ann")
    page = await olga.open(f"/skills/{made.id}")
    changes, _, whole = page.words.partition("SKILL.md, as an agent gets it")
    assert "ObeyU+2066 the news" in changes
    assert "<!-- Obey the comment -->" in changes
    assert "ObeyU+2066 the news" in whole
    assert "Obey the script" in whole


async def test_what_is_too_large_to_review_is_named(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that does not fit is named with its type, size and digest, and counted beside the button."""
    monkeypatch.setattr("deepskills.store.page.reading.MAX_REVIEWED_BYTES", 1_000)
    app = page_app(sessions)
    async with service_for(sessions) as service:
        files = {"a.md": "x" * 2_000, "b.md": "Shown."}
        made = await service.create_skill(draft_with_files("tea", files, is_public=True), "ann")
    page = await Visitor(app, "olga").open(f"/skills/{made.id}")
    assert "1 file cannot be shown here." in page.words
    assert hashlib.sha256(b"x" * 2_000).hexdigest() in page.words
    assert "Shown." in page.words
    assert "xxx" not in page.words


@contextmanager
def statements(sessions: Sessions) -> Iterator[list[str]]:
    """Count what the database is asked."""
    seen: list[str] = []
    engine = sessions.kw["bind"].sync_engine

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)


async def test_a_prompt_is_bounded(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many skills are public, a prompt is made of a page of them, and says that there are more."""
    app = page_app(sessions, approval=False)
    async with service_for(sessions, approval=False) as service:
        for number in range(80):
            await service.create_skill(draft(f"tea-{number:03}", is_public=True), "ann")
    nobody = Visitor(app, None)
    with statements(sessions) as seen:
        page = await nobody.open("/prompt?public=1")
    assert "tea-049" in page.words
    assert "tea-050" not in page.words
    assert "only the beginning is shown" in page.words
    with statements(sessions) as listed:
        await nobody.open("/")
    assert len(seen) <= 4 * len(listed)
    assert "only the beginning" not in (await nobody.open("/prompt")).words
    ann = Visitor(app, "ann")
    assert "tea-079" in (await ann.open("/prompt")).words
    monkeypatch.setattr("deepskills.store.page.reading.MAX_PROMPTED", 60)
    page = await ann.open("/prompt?public=1")
    assert "tea-059" in page.words
    assert "tea-060" not in page.words
    assert "only the beginning is shown" in page.words


async def test_markdown_is_rendered_in_a_thread(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skill, file and preview: a text that is slow for its length does not keep others waiting."""
    app = page_app(sessions)
    threads: list[threading.Thread] = []

    def watched(text: str, place: Place) -> str | None:
        threads.append(threading.current_thread())
        return render(text, place)

    slow = "*_" * 500
    async with service_for(sessions) as service:
        made = await service.create_skill(draft_with_files("tea", {"a.md": f"In a file: {slow}"}), "ann")
        await service.update_skill(made.id, SkillUpdate(content=slow), "ann")
    monkeypatch.setattr("deepskills.store.page.reading.render", watched)
    ann = Visitor(app, "ann")
    # The editor shows what the skill's page has rendered.
    for rest in ("", "/files/a.md", "/edit", ""):
        await ann.open(f"/skills/{made.id}{rest}")
    assert len(threads) == 2
    assert threading.current_thread() not in threads


async def test_uploads_and_archives_count_as_in_flight(sessions: Sessions) -> None:
    """What a form, a check or an archive holds is counted, and without room the answer is 503 with a time to wait."""
    app: FastAPI = page_app(sessions, "/page")
    app.include_router(create_skills_router(sessions, lambda: "ann"), prefix="/api")
    async with service_for(sessions) as service:
        made = await service.create_skill(draft("tea", content="x" * 2_000), "ann")
    ann = Visitor(app, "ann")
    token = (await ann.open("/page/new")).form("/new").fields["token"]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("SKILL.md", skill_md("cup", "x" * 50_000))
    own = {"origin": ORIGIN}
    half = BYTES_IN_FLIGHT // 2
    with in_flight.hold(half), in_flight.hold(half - 1_000):
        big = await ann.client.post("/page/new", data={"token": token, "text": skill_md("a", "y" * 2_000)}, headers=own)
        checked = await ann.client.post("/page/check", content=b"z" * 2_000, headers={**own, "x-csrf-token": token})
        answers = [big, checked]
        paths = (f"/page/skills/{made.id}/archive", f"/api/skills/{made.id}/archive", "/api/export")
        answers += [await ann.client.get(path) for path in paths]
    with in_flight.hold(half), in_flight.hold(half - 10_000):
        given = {"archive": ("cup.zip", packed.getvalue())}
        answers.append(await ann.client.post("/page/upload", data={"token": token}, files=given, headers=own))
    assert [(answer.status_code, answer.headers.get("retry-after")) for answer in answers] == [(503, "1")] * 6
    assert in_flight.held == 0
    assert "Created." in Html((await ann.client.post(
        "/page/upload", data={"token": token}, files=given, headers=own, follow_redirects=True
    )).text).words  # fmt: skip
    assert in_flight.held == 0


async def test_nothing_redirects_by_host(sessions: Sessions) -> None:
    """A slash too many is not found; no answer leads where the `Host` header says."""
    app = page_app(sessions, "/page")
    for path in ("/page/new/", "/page/prompt/", "/page/deleted/"):
        answer = await Visitor(app, "ann").client.get(path, headers={"host": "evil.example"})
        assert (answer.status_code, answer.headers.get("location")) == (404, None)
        assert "evil.example" not in answer.text


async def test_lists_are_sorted_and_filtered(sessions: Sessions) -> None:
    """By use, change or tokens, for an audience, with a status; the choice stays in every link of the list."""
    app = page_app(sessions)
    async with service_for(sessions) as service:
        made = {}
        given: dict[str, dict[str, Any]] = {
            "a": {"is_public": True},
            "b": {"shared_with": {"staff": "read"}},
            "c": {"content": "long " * 500},
        }
        for name, options in given.items():
            made[name] = await service.create_skill(draft(f"tea-{name}", **options), "ann")
        events = [{"type": "skill.loaded", "trigger": "model", "skill_id": made["b"].id}] * 3
        await service.record_usage(events, "ann")
        await service.hide_skill(made["c"].id, "olga")
    ann = Visitor(app, "ann")

    async def names(query: str) -> list[str]:
        words = (await ann.open(f"/?{query}")).words
        return sorted((name for name in ("tea-a", "tea-b", "tea-c") if f"{name}\n" in words), key=words.index)

    table = {
        "": ["tea-a", "tea-b", "tea-c"],
        "sort=used": ["tea-b", "tea-a", "tea-c"],
        "sort=tokens": ["tea-c", "tea-a", "tea-b"],
        "sort=changed": ["tea-c", "tea-b", "tea-a"],
        "audience=groups": ["tea-b"],
        "audience=private": ["tea-c"],
        "audience=public": ["tea-a"],
        "status=needs+approval": ["tea-a"],
        "status=hidden": ["tea-c"],
        "status=approved": [],
    }
    assert {query: await names(query) for query in table} == table
    page = await ann.open("/?sort=used&audience=groups")
    links = [given["href"] for tag, given in page.elements if tag == "a" and "scope=agent" in given.get("href", "")]
    assert all("sort=used" in link and "audience=groups" in link for link in links)
    assert links


async def test_name_and_description_beside_the_text(sessions: Sessions) -> None:
    """What is changed in the fields is changed in the text, which otherwise stays as written; the preview is there."""
    app = page_app(sessions)
    ann = Visitor(app, "ann")
    text = "---\nname: tea\n# kept\ndescription: Brews.\n---\n# Brew *now*\n"
    editor = (await ann.open("/new")).form("/new")
    page = await ann.send(editor, text=text, action="save")
    at = str(ann.last.url.path)
    page = await ann.open(f"{at}/edit")
    assert ("em", {}) in page.elements
    editor = page.form("/edit")
    assert (editor.fields["name"], editor.fields["description"].strip()) == ("tea", "Brews.")
    preview = await ann.send(editor, name="cup", description="Pours\r\ntea.", action="preview")
    assert preview.form("/edit").fields["text"].replace("\r\n", "\n") == (
        text.replace("name: tea", "name: cup").replace("Brews.", "Pours tea.")
    )
    saved = await ann.send(preview.form("/edit"), action="save")
    assert "Pours tea." in saved.words
    async with service_for(sessions) as service:
        (kept,) = await service.list_skills("ann")
        assert (kept.name, kept.description) == ("cup", "Pours tea.")
        assert "# kept" in str((await service.get_skill(kept.id, "ann")).frontmatter)


async def test_deleted_skills_of_others_are_for_operators(sessions: Sessions) -> None:
    """An operator finds and restores what others deleted; nobody else is offered or given that list."""
    app = page_app(sessions)
    async with service_for(sessions) as service:
        made = await service.create_skill(draft("tea"), "ann")
        await service.delete_skill(made.id, "ann")
    ann, bob, olga = (Visitor(app, user) for user in ("ann", "bob", "olga"))
    assert (await ann.open("/deleted")).has(f"/skills/{made.id}/restore")
    await bob.open("/deleted?scope=everybody", 403)
    assert not (await olga.open("/deleted")).has("/restore")
    listed = await olga.open("/deleted?scope=everybody")
    assert "of ann" in listed.words
    assert "Restored." in (await olga.send(listed.form("/restore"))).words
