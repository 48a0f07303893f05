"""The store's page without a browser: whole journeys by forms alone, permissions, forged requests, many skills."""

import io
import zipfile
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import pytest
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import PlainTextResponse
from langchain.agents import create_agent
from page_support import ORIGIN, RULES, Html, Visitor, id_in, page_app, service_for, skill_md
from sqlalchemy import event, insert, text
from store_support import Sessions, draft, draft_with_files, new_engine

from deepskills import generate_skill_md
from deepskills.extensions import SkillChecks
from deepskills.store import (
    DatabaseSkillAdapter,
    SkillCreate,
    SkillPermissionError,
    SkillUpdate,
    create_skills_page,
    create_store_app,
)
from deepskills.store.db.models import INSERT_SEARCH_ROW, Skill, SkillTag, now
from deepskills.store.db.search import index_words, search_row
from deepskills.store.page.site import MAX_FIELDS, POLICY
from deepskills.testing import ScriptedChatModel, call_tools

pytestmark = pytest.mark.anyio

MANY = 10_000


@pytest.fixture
def kind() -> str:
    """What a page shows is made of the service's answers: SQLite will do."""
    return "sqlite"


def zipped(files: dict[str, str]) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        for path, content in files.items():
            opened.writestr(path, content)
    return archive.getvalue()


async def test_writing_by_forms_alone(sessions: Sessions) -> None:
    """Without a script: write, find, read, add files, edit, compare and restore."""
    app = page_app(sessions)
    ann, cleo = (Visitor(app, user) for user in ("ann", "cleo"))
    new = (await ann.open("/new")).form("/new")
    refused = await ann.send(new, 422, text=skill_md("Bad Name"), action="save")
    assert "Not saved" in refused.words
    assert "name: Bad Name" in refused.form("/new").fields["text"]
    preview = await ann.send(new, text=skill_md("tea", "# Brew\n\nPour *hot* water."), action="preview")
    assert ("em", {}) in preview.elements
    made = await ann.send(new, text=skill_md("tea", "# Brew\n\nPour it.\n", "drinks, hot"), action="save")
    assert "Created." in made.words
    skill_id = id_in(ann.last.url)
    at = f"/skills/{skill_id}"
    await ann.send(new, 409, text=skill_md("TEA"), action="save")

    # Found by words and by tag, and not by others.
    for query in ("?q=tea", "?tag=drinks", "?tag=drinks&tag=hot"):
        assert "Does tea well." in (await ann.open(f"/{query}")).words
    for query in ("?q=printer", "?tag=drinks&tag=cold"):
        assert "No skill fits" in (await ann.open(f"/{query}")).words
    assert "Does tea well." not in (await cleo.open("/")).words

    # Files: uploaded, written, refused, shown, removed.
    page = await ann.open(at)
    upload = page.form("/upload-file")
    page = await ann.send(upload, directory="references", files={"file": ("guide.md", b"# Guide\n")})
    assert page.has(f"{at}/files/references/guide.md")
    refusal = await ann.send(page.form("/upload-file"), 422, directory="../up", files={"file": ("x.md", b"x")})
    assert "refused" in refusal.words
    editor = (await ann.open(f"{at}/edit-file")).form("/edit-file")
    shown = await ann.send(editor, path="notes.txt", text="one\r\ntwo")
    assert "one\ntwo" in shown.words
    gone = await ann.send(shown.form("/delete-file"))
    assert not gone.has("/files/notes.txt")

    # Edited; what did not change stays at its revision.
    editor = (await ann.open(f"{at}/edit")).form("/edit")
    assert "Nothing had changed." in (await ann.send(editor, action="save")).words
    await ann.send(editor, text=editor.fields["text"].replace("Pour it.", "Pour slowly."), action="save")
    async with service_for(sessions) as service:
        kept = await service.get_skill(skill_id, "ann")
        assert kept.content == "# Brew\n\nPour slowly.\n"
        assert "\r" not in str(kept.frontmatter)
    versions = await ann.open(f"{at}/versions")
    revisions = [form.action.split("/")[-2] for form in versions.forms if form.action.endswith("/restore")]
    compared = await ann.open(f"{at}/compare?old={revisions[-1]}&new={kept.revision}")
    assert all(word in compared.words for word in ("Pour it.", "Pour slowly.", "references/guide.md (new)"))
    assert "Pour it." in (await ann.open(f"{at}/versions/{revisions[-1]}")).words
    restored = await ann.send(compared.form("/restore"))
    assert "Pour it." in restored.words
    assert not restored.has("/files/references/guide.md")


async def test_governing_by_forms_alone(sessions: Sessions) -> None:
    """Without a script: share with a group, submit, approve what was seen, withdraw, delete, restore, download."""
    app = page_app(sessions)
    ann, olga, cleo = (Visitor(app, user) for user in ("ann", "olga", "cleo"))
    new = (await ann.open("/new")).form("/new")
    made = await ann.send(new, text=skill_md("tea"), action="save")
    skill_id = id_in(ann.last.url)
    at = f"/skills/{skill_id}"
    share = made.form("/share")
    given: dict[str, Any] = {"group:staff": "write", "new-group": "readers", "new-right": "read"}
    page = await ann.send(share, **given)
    assert "Does tea well." in (await cleo.open("/")).words
    given = {"group:readers": ""}
    await ann.send(page.form("/share"), **given)
    page = await ann.send((await ann.open(at)).form("/publish"))
    assert "Waiting for approval" in page.words
    assert not page.has("/approve")
    await cleo.open(at, 404)
    approval = (await olga.open(at)).form("/approve")
    assert "tea" in (await olga.open("/?scope=waiting")).words
    editor = (await ann.open(f"{at}/edit")).form("/edit")
    page = await ann.send(editor, text=editor.fields["text"] + "Obey.", action="save")
    stale = await olga.send(approval, 412)
    assert "changed since you looked" in stale.words
    assert "Obey." in stale.words
    async with service_for(sessions) as service:
        assert not (await service.get_skill(skill_id, "ann")).is_approved
    assert "Approved." in (await olga.send((await olga.open(at)).form("/approve"))).words
    assert "Obey." in (await cleo.open(at)).words
    editor = (await ann.open(f"{at}/edit")).form("/edit")
    page = await ann.send(editor, text=editor.fields["text"] + " Please.", action="save")
    assert "Changed since approval" in page.words
    await cleo.open(at, 404)
    assert "no longer public" in (await ann.send((await ann.open(at)).form("/withdraw"))).words

    # Deleted, required by another, and back again.
    requires = skill_md("cup").replace("description", "metadata:\n  requires: tea\ndescription")
    await ann.send(new, text=requires, action="save")
    confirm = (await ann.open(f"{at}/delete")).form("/delete")
    asked = await ann.send(confirm, 409)
    assert "is required by cup" in asked.words
    listed = await ann.send(asked.form("/delete"), force="yes")
    await ann.open(at, 404)
    assert "Restored." in (await ann.send(listed.form("/restore"))).words
    archive = await ann.client.get(f"{at}/archive")
    assert zipfile.ZipFile(io.BytesIO(archive.content)).namelist() == ["tea/SKILL.md"]


async def test_from_a_zip(sessions: Sessions) -> None:
    """A skill comes from a `.zip` and is replaced by one; archives that are broken or too large are refused."""
    app = page_app(sessions)
    ann = Visitor(app, "ann")
    upload = (await ann.open("/new")).form("/upload")
    good = zipped({"tea/SKILL.md": skill_md("tea"), "tea/scripts/brew.py": "print(1)\n"})
    page = await ann.send(upload, files={"archive": ("tea.zip", good)})
    assert page.has("/files/scripts/brew.py")
    at = f"/skills/{id_in(ann.last.url)}"
    replace = (await ann.open(f"{at}/edit")).form("/replace")
    other = zipped({"SKILL.md": skill_md("tea", "# Other\n")})
    page = await ann.send(replace, files={"archive": ("tea.zip", other)})
    assert "Other" in page.words
    assert not page.has("/files/scripts/brew.py")
    await ann.send(replace, 412, files={"archive": ("tea.zip", good)})
    bomb = zipped({"SKILL.md": skill_md("bomb"), "zeros.txt": "0" * 40_000_000})
    assert len(bomb) < 100_000
    for code, given in (
        (413, bomb),
        (422, b"no archive"),
        (422, zipped({"README.md": "x"})),
        (413, zipped({"SKILL.md": skill_md("many"), **{f"{number}.md": "x" for number in range(30)}})),
        (422, zipped({"SKILL.md": skill_md("up"), "../up.md": "x"})),
        (422, zipped({"SKILL.md": "no frontmatter"})),
    ):
        refused = await ann.send(upload, code, files={"archive": ("x.zip", given)})
        assert "Not saved" in refused.words
    async with service_for(sessions) as service:
        assert [skill.name for skill in await service.list_skills("ann")] == ["tea"]


async def test_two_windows(sessions: Sessions) -> None:
    """A save of a stale revision loses nothing: it shows what they did and what mine would do, and can go on."""
    app = page_app(sessions)
    ann = Visitor(app, "ann")
    new = (await ann.open("/new")).form("/new")
    await ann.send(new, text=skill_md("tea", "One.\nTwo.\n"), action="save")
    at = f"/skills/{id_in(ann.last.url)}"
    first = (await ann.open(f"{at}/edit")).form("/edit")
    second = (await ann.open(f"{at}/edit")).form("/edit")
    await ann.send(first, text=first.fields["text"].replace("One.", "Theirs."), action="save")
    conflict = await ann.send(second, 412, text=second.fields["text"].replace("Two.", "Mine."), action="save")
    assert "Somebody else saved" in conflict.words
    theirs, own = conflict.words.split("What saving yours would change now")
    assert "Theirs." in theirs
    assert "Mine." in own
    again = conflict.form("/edit")
    assert "One.\r\nMine." in again.fields["text"]
    saved = await ann.send(again, action="save")
    assert "Mine." in saved.words
    assert "Theirs." not in saved.words
    # The same for one file.
    file = (await ann.open(f"{at}/edit-file")).form("/edit-file")
    await ann.send(file, path="a.md", text="first")
    stale = await ann.send(file, 412, path="a.md", text="second")
    assert "second" in stale.form("/edit-file").fields["text"]
    assert "second" in (await ann.send(stale.form("/edit-file"))).words


ACTIONS = {
    # what a skill's page offers: who may, beside the owner
    "/edit": {"bob"},
    "/versions": {"bob", "olga"},
    "/upload-file": {"bob"},
    "/publish": set(),
    "/withdraw": set(),
    "/share": set(),
    "/approve": {"olga"},
    "/hide": {"olga"},
    "/hand-over": {"olga"},
    "/delete": {"olga"},
}


async def forged(visitor: Visitor, address: str, revision: int) -> int:
    """Send a form that the page did not offer, with everything that any form has, and return the status."""
    fields = {
        "token": await visitor.token(), "revision": str(revision), "text": skill_md("tea", "stolen"), "owner": "eve",
        "group:readers": "write", "action": "save", "force": "yes", "path": "a.md",
    }  # fmt: skip
    files = {"file": ("stolen.md", b"x")} if address.endswith("/upload-file") else None
    answer = await visitor.client.post(address, data=fields, files=files, headers={"origin": ORIGIN})
    return answer.status_code


async def test_what_one_may_not_do_is_absent_and_refused(sessions: Sessions) -> None:
    """A skill's page offers each user exactly what they may do, and a forged form for anything else changes nothing."""
    app = page_app(sessions)
    async with service_for(sessions) as service:
        data = draft_with_files("tea", {"a.md": "x"}, is_public=True, shared_with={"staff": "write", "readers": "read"})
        made = await service.create_skill(data, "ann")
        approved = await service.approve_skill(made.id, made.revision, "olga")
        touched = await service.update_skill(made.id, SkillUpdate(content="# Now\n"), "bob")
    at = f"/skills/{made.id}"
    wrong: list[object] = []
    for user in ("bob", "cleo", "olga"):
        visitor = Visitor(app, user)
        page = await visitor.open(at)
        for action, allowed in ACTIONS.items():
            if page.has(f"{at}{action}") != (user in allowed):
                wrong.append((user, action, "shown"))
            if user in allowed or action == "/versions":
                continue
            status = await forged(visitor, f"{at}{action}", touched.revision)
            wrong += [] if status == 403 else [(user, action, status)]
        for path, action in (("edit", "edit"), ("edit-file?path=a.md", "edit"), ("delete", "delete")):
            if user not in ACTIONS[f"/{action}"]:
                await visitor.open(f"{at}/{path}", 403)
    assert wrong == []
    cleo = Visitor(app, "cleo")
    for path in ("versions", f"versions/{approved.revision}", f"compare?old={made.revision}&new={touched.revision}"):
        await cleo.open(f"{at}/{path}", 403)
    async with service_for(sessions) as service:
        after = await service.get_skill(made.id, "ann")
        assert (after.revision, after.content, after.owner_id) == (touched.revision, "# Now\n", "ann")
        assert after.shared_with == {"staff": "write", "readers": "read"}
    # Nobody sees what is approved, is offered nothing to write, and is asked to sign in where they would.
    nobody = Visitor(app, None)
    await nobody.open(at, 404)
    assert not (await nobody.open("/")).has("/new")
    for path in ("/new", "/deleted", f"{at}/edit"):
        await nobody.open(path, 401)


async def test_what_one_may_not_see_is_not_found(sessions: Sessions) -> None:
    """Another's private skill is not found, whatever is asked of it; an operator sees it, and changes no text."""
    app = page_app(sessions)
    async with service_for(sessions) as service:
        private = await service.create_skill(draft_with_files("secret", {"x": "hunter2"}), "ann")
    at = f"/skills/{private.id}"
    for user in ("bob", "cleo"):
        visitor = Visitor(app, user)
        for path in ("", "/edit", "/versions", "/archive", "/delete", "/files/x", "/download/x", "/edit-file?path=x"):
            await visitor.open(f"{at}{path}", 404)
        statuses = {path: await forged(visitor, path, private.revision) for path in post_paths(app, private.id)}
        found = {path: status for path, status in statuses.items() if path.startswith(at) and status != 404}
        # Handing over is for operators, whatever the skill.
        assert found == {f"{at}/hand-over": 403}
        assert "secret" not in (await visitor.open("/")).words
        await visitor.open("/?scope=everybody", 403)
    olga = Visitor(app, "olga")
    assert "secret" in (await olga.open("/?scope=everybody")).words
    await olga.open(f"{at}/edit", 403)


async def test_nobody_approves_their_own(sessions: Sessions) -> None:
    """Where others have to approve, neither the owner nor who changed it last is offered to, or may."""
    rules: dict[str, Any] = {"approval": "by-others", "is_operator": lambda user: user in {"ann", "bob", "olga"}}
    app = page_app(sessions, **rules)
    async with service_for(sessions, **rules) as service:
        made = await service.create_skill(
            draft_with_files("tea", {"a.md": "x", "b.md": "y"}, is_public=True, shared_with={"staff": "write"}), "ann"
        )
        seen = {}
        for user, change in (
            ("bob", None),
            ("bob", service.update_skill(made.id, SkillUpdate(content="# Bob's\n"), "bob")),
            ("ann", service.update_skill(made.id, SkillUpdate(content="# Ann's\n"), "ann")),
            ("bob", service.delete_file(made.files[0].id, "bob")),
        ):
            if change is not None:
                await change
            kept = await service.get_skill(made.id, "ann")
            may = {}
            for operator in ("ann", "bob", "olga"):
                shown = (await Visitor(app, operator).open(f"/skills/{made.id}")).has("/approve")
                may[operator] = shown
                assert (await service.approval_of(made.id, operator)).may_approve == shown
                if not shown:
                    with pytest.raises(SkillPermissionError, match="Another operator"):
                        await service.approve_skill(made.id, kept.revision, operator)
            seen[kept.revision, user] = may
        assert list(seen.values()) == [
            {"ann": False, "bob": True, "olga": True},
            {"ann": False, "bob": False, "olga": True},
            {"ann": False, "bob": True, "olga": True},
            {"ann": False, "bob": False, "olga": True},
        ]
        await service.approve_skill(made.id, kept.revision, "olga")
        assert (await service.approval_of(made.id, "ann")).last is not None


def post_paths(app: FastAPI, skill_id: object) -> list[str]:
    """Return every address of the page that takes a form."""
    page: Any = app.routes[-1]
    paths = [path for path, methods in page.app.openapi()["paths"].items() if "post" in methods]
    return [path.format(skill_id=skill_id, revision=1) for path in paths]


async def test_forged_requests(sessions: Sessions) -> None:
    """No form counts without its token, from another site, another user or another browser; each address checks it."""
    app = page_app(sessions)
    async with service_for(sessions) as service:
        made = await service.create_skill(draft("tea"), "ann")
    ann, bob, nobody, other = (Visitor(app, user) for user in ("ann", "bob", None, "ann"))
    token, bobs, others = await ann.token(), await bob.token(), await other.token()
    paths = post_paths(app, made.id)
    assert len(paths) == 17
    own = {"origin": ORIGIN}
    wrong = []
    read: list[bytes] = []

    async def body() -> AsyncIterator[bytes]:
        for _ in range(3):
            read.append(b"x")
            yield b"text=" + b"x" * 1000

    for path in paths:
        fields = {"revision": str(made.revision), "text": skill_md("stolen")}
        form_type = {"content-type": "application/x-www-form-urlencoded"}
        for who, given, headers, code in (
            (ann, "", own, 403),
            (ann, bobs, own, 403),
            (ann, others, own, 403),
            (ann, "é" * 64, own, 403),
            (ann, token, {"origin": "https://evil.example"}, 403),
            (ann, token, {"origin": "null"}, 403),
            (ann, token, {"origin": ORIGIN, "sec-fetch-site": "cross-site"}, 403),
            (ann, token, {"sec-fetch-site": "same-site"}, 403),
            (nobody, token, own, 401),
        ):
            answer = await who.client.post(path, data={**fields, "token": given}, headers=headers)
            if answer.status_code != code:
                wrong.append((path, given[:4], headers, answer.status_code))
        # Who asks, and from where, is known before a body is read.
        for who, headers in ((nobody, own), (ann, {"sec-fetch-site": "cross-site"})):
            await who.client.post(path, content=body(), headers={**form_type, **headers})
    assert wrong == []
    assert read == []
    # The same browser, after somebody else signed in there.
    answer = await ann.client.post(
        "/new", data={"token": token, "text": skill_md("x")}, headers={**own, "x-user": "bob"}
    )
    assert answer.status_code == 403
    fresh = Visitor(app, "ann")
    answer = await fresh.client.post("/new", data={"token": token, "text": skill_md("stolen")}, headers=own)
    assert answer.status_code == 403
    async with service_for(sessions) as service:
        assert [(skill.name, skill.revision) for skill in await service.list_skills("ann")] == [("tea", made.revision)]
    # The check while typing takes its token from a header that no form can set.
    checked = await ann.client.post("/check", content="nothing", headers={**own, "x-csrf-token": token})
    assert "There is no frontmatter" in checked.json()["errors"][0]


async def test_headers_and_cookies(sessions: Sessions) -> None:
    """Every answer has the policy, and the cookie of forms is out of reach of scripts and of other sites."""
    app = page_app(sessions)
    async with service_for(sessions) as service:
        made = await service.create_skill(draft_with_files("tea", {"a.svg": "<svg onload=alert(1)>"}), "ann")
    ann = Visitor(app, "ann")
    strict = {"default-src 'none'", "script-src 'self'", "style-src 'self'", "base-uri 'none'", "form-action 'self'"}
    assert strict <= set(POLICY.split("; "))
    assert "'unsafe" not in POLICY
    for path in ("/", "/new", "/prompt", f"/skills/{made.id}", f"/skills/{made.id}/archive", "/nothing",
                 "/static/page.js",
                 "/static/none", "/?limit=x&scope=none", f"/skills/{uuid4()}", "/skills/x/edit"):  # fmt: skip
        answer = await ann.client.get(path)
        assert answer.headers["content-security-policy"] == POLICY, path
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cache-control"] == (
            "no-store" if path != "/static/page.js" else answer.headers["cache-control"]
        )
    file = await ann.client.get(f"/skills/{made.id}/download/a.svg")
    assert file.headers["content-type"] == "application/octet-stream"
    assert file.headers["content-disposition"].startswith("attachment;")
    assert "sandbox" in file.headers["content-security-policy"]
    for origin, name in ((ORIGIN, "deepskills-forms"), ("https://store.test", "__Host-deepskills-forms")):
        visitor = Visitor(app, "ann", origin)
        cookie = (await visitor.client.get("/")).headers["set-cookie"]
        parts = {part.strip().lower() for part in cookie.split(";")[1:]}
        assert cookie.startswith(f"{name}=")
        assert {"httponly", "samesite=strict", "path=/"} <= parts
        assert ("secure" in parts) is origin.startswith("https")
        assert "set-cookie" not in (await visitor.client.get("/")).headers
        made_there = await visitor.send((await visitor.open("/new")).form("/new"), text=skill_md(f"s{len(name)}"))
        assert "Created." in made_there.words


HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(1)><iframe src=//evil.example></iframe>"
    "<style>body{display:none}</style><form action=//evil.example><base href=//evil.example>\"'><svg onload=alert(1)>"
)


async def test_hostile_content(sessions: Sessions) -> None:
    """Names, descriptions, tags, texts, files and ids that hold markup are shown as the characters they are."""
    app = page_app(sessions)
    async with service_for(sessions) as service:
        body = (
            f"{HOSTILE}\n\n[a](javascript:alert(1)) [b](//evil.example) ![c](http://evil.example/x.png) "
            "![d](data:image/svg+xml,x) [e](http://ok.example) [f](/logout) <http://auto.example> [g](a.html)\n\n"
            f"# {HOSTILE}\n\n```{HOSTILE}\n{HOSTILE}\n```\n\n    {HOSTILE}\n\n| {HOSTILE} |\n|-|\n"
        )
        files = {"a.html": HOSTILE, "a.svg": HOSTILE, "references/<b>bold.md": HOSTILE, "n'o'\"te\".md": body}
        data = draft_with_files("tea", files, tags=["<b>bold</b>", "'\"><script>x"], shared_with={HOSTILE[:50]: "read"})
        made = await service.create_skill(data, "ann")
        await service.update_skill(made.id, SkillUpdate(description=HOSTILE, content=f"{body}\u202egnp.exe"), "ann")
        user = "<b>eve</b>\"'"
        theirs = await service.create_skill(draft("eves", is_public=True), user)
        await service.approve_skill(theirs.id, theirs.revision, "olga")
    at = f"/skills/{made.id}"
    ann, eve = Visitor(app, "ann"), Visitor(app, user)
    offenders: list[Any] = []
    addresses = [
        "/", f"/?q={HOSTILE[:60]}", "/?tag=<b>bold</b>&q='\"><script>", at, f"{at}/edit", f"{at}/versions",
        f"{at}/compare?old={made.revision}&new={made.revision + 1}", f"{at}/versions/{made.revision}", f"{at}/delete",
        *(f"{at}/files/{path}" for path in files), f"{at}/edit-file?path=a.html", "/prompt", f"/skills/{theirs.id}",
    ]  # fmt: skip
    for visitor, paths in ((ann, addresses), (eve, ["/", f"/skills/{theirs.id}", f"/skills/{theirs.id}/versions"])):
        for path in paths:
            offenders += [(path, found) for found in misuses(await visitor.open(path))]
    editor = (await ann.open("/new")).form("/new")
    preview = await ann.send(editor, action="preview", text=skill_md("x", body))
    offenders += [("preview", found) for found in misuses(preview)]
    for path in (f"/{HOSTILE[:40]}", f"/skills/{HOSTILE[:40]}", f"{at}/files/{HOSTILE[:30]}"):
        offenders += [(path, found) for found in misuses(await ann.open(path, 404))]
    assert offenders == []
    shown = await ann.open(at)
    assert "<script>alert(1)</script>" in shown.words
    assert "\u202e" not in ann.last.text


def misuses(page: Html) -> Iterator[object]:
    """Yield each element and attribute of a page that the page's own templates never have."""
    for tag, given in page.elements:
        if tag in {"iframe", "style", "base", "object", "embed", "b" if "onclick" in given else "frame"}:
            yield tag
        if tag in {"script", "link"} and not (given.get("src") or given["href"]).startswith("/static/"):
            yield tag, given
        if tag == "img" and not given["src"].startswith("/static/"):
            yield tag, given
        if any(name.startswith("on") or name in {"style", "srcdoc", "formaction"} for name in given):
            yield tag, given
        if tag == "form" and not given["action"].startswith("/"):
            yield tag, given
        address = given.get("href", "/")
        if address.startswith("//") or not address.startswith(
            ("/", "#", "http://ok.", "http://evil.example/x.png", "http://auto.")
        ):
            yield tag, given
        if address.startswith("http") and "noopener" not in given.get("rel", ""):
            yield tag, given


async def test_uploads_are_bounded(sessions: Sessions) -> None:
    """No more than the limit is read of a form; too many fields and broken forms are refused, and said."""
    app = page_app(sessions, max_request_bytes=200_000)
    ann = Visitor(app, "ann")
    token = await ann.token()
    sent = 0

    async def too_much() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(2_000):
            sent += 10_000
            yield b"x" * 10_000

    headers = {"origin": ORIGIN, "content-type": "application/x-www-form-urlencoded"}
    answer = await ann.client.post("/new", content=too_much(), headers=headers)
    assert answer.status_code == 413
    assert sent <= 250_000
    declared = {**headers, "content-length": "100000000"}
    assert (await ann.client.post("/new", content=b"", headers=declared)).status_code == 413
    many = "&".join(f"f{number}=1" for number in range(MAX_FIELDS))
    for given, media_type, code in (
        (f"token={token}&{many}", headers["content-type"], 422),
        ("{}", "application/json", 422),
        ("--x\r\nbroken", "multipart/form-data; boundary=x", 403),
        ("", "multipart/form-data", 422),
        (f"token={token}&text=%ff%00", headers["content-type"], 422),
        (f"token={token}&revision=-1", headers["content-type"], 422),
    ):
        answer = await ann.client.post("/new", content=given, headers={**headers, "content-type": media_type})
        assert answer.status_code == code, (given[:40], answer.status_code)
    checked = await ann.client.post("/check", content=too_much(), headers={**headers, "x-csrf-token": token})
    assert checked.status_code == 413


async def test_many_skills(sessions: Sessions, url: str) -> None:
    """A list of ten thousand skills asks the database as often as a list of a hundred, and shows one page of them."""
    counts: dict[int, list[int]] = {}
    statements: list[str] = []
    engine = sessions.kw["bind"].sync_engine
    event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    app = page_app(sessions, approval=False)
    ann = Visitor(app, "ann")
    for count in (100, MANY):
        await fill(sessions, range(100 if count > 100 else 0, count))
        counts[count] = []
        for path in ("/", "/?tag=even", "/?q=number", "/?scope=agent"):
            statements.clear()
            page = await ann.open(path)
            counts[count].append(len(statements))
            names = [given for tag, given in page.elements if tag == "a" and given.get("class") == "name"]
            assert len(names) == 50
            [following] = [given["href"] for tag, given in page.elements if given.get("rel") == "next"]
            statements.clear()
            after = await ann.open(following)
            counts[count].append(len(statements))
            others = [given["href"] for tag, given in after.elements if tag == "a" and given.get("class") == "name"]
            assert not {given["href"] for given in names} & set(others)
    assert max(counts[MANY]) <= 20
    # A search of a few skills asks for their words once; of many, it asks how frequent the query's words are.
    assert all(many <= few + 1 for few, many in zip(counts[100], counts[MANY], strict=True)), counts
    assert len(ann.last.content) < 200_000
    assert url


async def fill(sessions: Sessions, numbers: range) -> None:
    """Put public skills into the store, quickly."""
    rows = [
        {
            "id": uuid4(), "owner_id": "ann" if number % 3 else f"user-{number % 97}",
            "name": f"skill-{number:05}", "name_key": f"skill-{number:05}",
            "description": f"Does number {number}.", "body": "x" * 500, "head": None, "encoding": "utf-8",
            "is_public": True, "created_at": now(), "updated_at": now(), "revision": number + 1,
            "number": number + 1, "name_since": number + 1, "text_since": number + 1, "stamp": number + 1,
            "words": index_words(f"skill-{number:05}", f"Does number {number}.", ["even"]),
        }
        for number in numbers
    ]  # fmt: skip
    async with sessions() as session:
        await session.execute(insert(Skill), rows)
        tags = [{"skill_id": row["id"], "position": 0, "tag": "even", "tag_key": "even"} for row in rows]
        await session.execute(insert(SkillTag), tags)
        await session.execute(
            text(INSERT_SEARCH_ROW),
            [search_row(int(str(row["number"])), str(row["words"])) for row in rows],
        )
        await session.commit()


async def test_the_prompt_is_the_agents(sessions: Sessions) -> None:
    """The page shows the very section that a real agent of the user sends to its model, by its groups and approvals."""
    app = page_app(sessions)
    async with service_for(sessions) as service:
        await service.create_skill(draft("mine"), "ann")
        await service.create_skill(draft("ours", shared_with={"staff": "read"}), "bob")
        stranger = await service.create_skill(draft("strange", is_public=True), "cleo")
        await service.create_skill(draft("unseen", is_public=True), "cleo")
        await service.approve_skill(stranger.id, stranger.revision, "olga")
    model = ScriptedChatModel(replies=["Done.", "Done."])
    for is_public, names in ((False, {"mine", "ours"}), (True, {"mine", "ours", "strange"})):
        skills: Any = DatabaseSkillAdapter(
            user_id="ann",
            db_session_factory=sessions,
            include_public=is_public,
            groups_of=RULES["groups_of"],
            approval=True,
        )
        agent: Any = create_agent(model, middleware=[skills])
        await agent.ainvoke({"messages": [("user", "Hello")]})
        sent = str(model.requests[-1].messages[0].text).strip()
        page = await Visitor(app, "ann").open(f"/prompt{'?public=1' if is_public else ''}")
        assert sent in page.words
        assert {name for name in ("mine", "ours", "strange", "unseen") if f"**{name}**" in page.words} == names


async def test_how_often_a_skill_was_followed(sessions: Sessions) -> None:
    """Of three uses by real agents one forgets a check and one is sent back: two were followed."""
    text = generate_skill_md("tea", "Makes tea.", "Boil.\n", {"checks": [{"called": "boil", "before": "pour"}]})
    async with service_for(sessions) as service:
        tea = await service.create_skill(SkillCreate.from_skill_md(text, {}), "ann")

    def boil() -> str:
        """Boil water."""
        return "It boils."

    def pour() -> str:
        """Pour it."""
        return "Poured."

    skills: Any = DatabaseSkillAdapter(
        user_id="ann", db_session_factory=sessions, record_usage=True, extensions=[SkillChecks(retries=1)]
    )
    brew = call_tools(("load_skill", {"skill_name": "tea"}))
    boiled, poured = call_tools(("boil", {})), call_tools(("pour", {}))
    answers: list[Any] = []
    for replies in (
        [brew, boiled, poured, "Done."],
        [brew, poured, "Done.", boiled, poured, "Done."],
        [brew, "Done.", "Done, I say."],
    ):
        agent: Any = create_agent(ScriptedChatModel(replies=replies), tools=[boil, pour], middleware=[skills])
        answers.append((await agent.ainvoke({"messages": [("user", "Make tea.")]}))["messages"])
    await skills.flush_usage()
    assert [sum("was not run" in str(one.text) for one in given) for given in answers] == [0, 1, 0]
    page = await Visitor(page_app(sessions), "ann").open(f"/skills/{tea.id}")
    assert "followed in 2 of 3 uses" in " ".join(page.words.split())


class NotSignedInError(Exception):
    """The application's own."""


async def test_in_an_application(sessions: Sessions, url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Below any path links stay there; failures of the application are pages, or its own answers; the API stays."""
    async with service_for(sessions) as service:
        made = await service.create_skill(draft_with_files("tea", {"a.md": "x"}), "ann")
    ann = Visitor(page_app(sessions, "/team/skills"), "ann")
    for path in ("/team/skills/", f"/team/skills/skills/{made.id}"):
        page = await ann.open(path)
        links = [
            given.get("href") or given.get("action") for tag, given in page.elements if tag in {"a", "form", "link"}
        ]
        assert all(str(link).startswith(("/team/skills/", "#main")) for link in links), links
    saved = await ann.send((await ann.open(f"/team/skills/skills/{made.id}/edit")).form("/edit"), action="save")
    assert "Nothing had changed." in saved.words
    assert str(ann.last.url).startswith(f"{ORIGIN}/team/skills/skills/")

    def current_user(request: Request) -> Any:
        user = request.headers.get("x-user")
        if user is None:
            raise HTTPException(303, headers={"Location": "/login"})
        if user == "unknown":
            raise NotSignedInError
        return 7 if user == "number" else user

    app = FastAPI()
    app.mount("/", create_skills_page(sessions, current_user, groups_of=lambda _user: "staff"))

    @app.exception_handler(NotSignedInError)
    async def sign_in(_request: Request, _error: Exception) -> PlainTextResponse:
        return PlainTextResponse("Please sign in.", 401)

    assert sign_in is not None
    answer = await Visitor(app, None).client.get("/")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert (await Visitor(app, "unknown").client.get("/")).text == "Please sign in."
    for user, said in (("number", "must give a user id as text"), ("ann", "groups_of must return a collection")):
        visitor = Visitor(app, user)
        assert said in (await visitor.open("/", 500)).words
    empty = page_app(lambda: None, "")  # type: ignore[arg-type]
    assert "The server failed" in (await Visitor(empty, "ann").open("/", 500)).words
    assert "A request to the skill store failed" in caplog.text

    whole = create_store_app(url, page_user, account_links={"Sign out": "/logout"}, **RULES)
    async with whole.router.lifespan_context(whole):
        ann = Visitor(whole, "ann")
        page = await ann.open("/")
        assert page.has("/logout")
        assert page.has(f"/skills/{made.id}")
        for method, path, code in (("PATCH", "/api/v1/skills", 405), ("GET", f"/api/v1/skills/{made.id}/none", 404)):
            answer = await ann.client.request(method, path)
            assert (answer.status_code, answer.json()["success"]) == (code, False)
        assert (await ann.client.get("/api/v1/none")).headers["content-type"] == "application/json"
        assert (await ann.client.get("/health")).json() == {"status": "ok"}
        assert "Not found" in (await ann.open("/none", 404)).words


def page_user(request: Request) -> str | None:
    return request.headers.get("x-user")


async def test_a_database_without_tables(tmp_path: Any) -> None:
    """A store that cannot answer is a page that says so."""
    from sqlalchemy.ext.asyncio import async_sessionmaker  # noqa: PLC0415 - here alone

    empty = async_sessionmaker(new_engine(f"sqlite:///{tmp_path / 'none.db'}"))
    assert "missing or out of date" in (await Visitor(page_app(empty), "ann").open("/", 503)).words
