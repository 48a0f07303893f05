"""Handles the page's forms: each is a call to the service, followed by a redirect to what it changed.

Every form names the revision that its user looked at, and the service refuses it if the skill has changed since: two
people who edit at once must not overwrite each other unseen. After a refusal the user keeps what they typed. The
editors show the refusal beside it; the one-click forms have nothing to keep, and let the page of failures say it.
"""

import posixpath
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse, RedirectResponse

from deepskills._errors import SkillFormatError, SkillsError
from deepskills._skillmd.text import one_line
from deepskills._skillmd.write import generate_skill_md
from deepskills._types import SKILL_FILE
from deepskills.store.db.models import Skill
from deepskills.store.document import Document, difference
from deepskills.store.errors import SkillConflictError, SkillPermissionError, SkillStaleError, SkillTooLargeError
from deepskills.store.http.requests import bound_body
from deepskills.store.page import shown
from deepskills.store.page.reading import (
    MAX_DIFF_LENGTH,
    MAX_SHOWN_BYTES,
    changes_since,
    in_html,
    list_file,
    place_of,
    skill_page,
)
from deepskills.store.page.site import (
    TOKEN_HEADER,
    PageRoute,
    SentForm,
    SignedIn,
    SignedVisit,
    check_same_site,
    check_token,
)
from deepskills.store.rules import Right, check_id, read_groups
from deepskills.store.schemas import SkillCreate, SkillFileCreate, SkillUpdate
from deepskills.store.workers import run_in_thread

router = APIRouter(route_class=PageRoute)

MAX_CHECKED_BYTES = 11 * 1024 * 1024
"""Largest text that is checked while somebody types: a `SKILL.md` can have 10 MiB."""

_SHARE = "group:"
"""The prefix of form fields that say what a group may do."""

_NEW_BODY = """# Title

What to do, step by step. Say which files to read, and when.
"""

NEW_SKILL = generate_skill_md("my-skill", "What it does. Use it when the user asks for ...", _NEW_BODY)
"""The text of a new skill."""


# -- Creation ----------------------------------------------------------------------------------------------------------


@router.post("/check")
async def check(visit: SignedVisit) -> Response:
    """Say what is wrong with a text while somebody types."""
    # It changes nothing, but it costs: the same checks as for a form, so that other sites cannot make browsers ask.
    check_same_site(visit.request)
    check_token(visit.request, visit.request.headers.get(TOKEN_HEADER, ""), visit.user)
    async with bound_body(visit.request, MAX_CHECKED_BYTES, visit.user) as body:
        found = await run_in_thread(len(body) * 4, lambda: shown.check(body))
    return JSONResponse(found.as_json())


@router.get("/new")
async def new(visit: SignedVisit) -> Response:
    """Show the editor of a new skill."""
    return await editor(visit, text=NEW_SKILL)


@router.post("/new")
async def create_from_form(visit: SentForm) -> Response:
    """Create a skill from its text."""
    text = await text_of_form(visit, None)
    if visit.form.text("action") == "preview":
        return await editor(visit, text=text)
    try:
        made = await create(visit, text)
    except _REFUSALS as error:
        return await editor(visit, text=text, refusal=error)
    return visit.see(made.id, done="created")


@router.post("/upload")
async def upload(visit: SentForm) -> Response:
    """Create a skill from a `.zip`."""
    try:
        _, archive = visit.form.file("archive")
        async with visit.parts.unzip(visit.service, archive, visit.user) as (text, files):
            made = await create(visit, text, files)
    except _REFUSALS as error:
        return await editor(visit, text=NEW_SKILL, refusal=error)
    return visit.see(made.id, done="created")


# -- Editing -----------------------------------------------------------------------------------------------------------


@router.get("/skills/{skill_id}/edit")
async def edit(visit: SignedVisit, skill_id: str) -> Response:
    """Show the editor of a skill."""
    skill = await visit.skill(skill_id, "write")
    return await editor(visit, text=shown.write_document(skill), skill=skill, revision=skill.revision)


@router.post("/skills/{skill_id}/edit")
async def save(visit: SentForm, skill_id: str) -> Response:
    """Save a skill's text."""
    skill, known = await visit.skill(skill_id, "write"), visit.revision
    before = shown.write_document(skill)
    text = await text_of_form(visit, before)
    if visit.form.text("action") == "preview":
        return await editor(visit, text=text, skill=skill, revision=known)
    # An unchanged text is left as the bytes that came in, whatever their encoding.
    data = text if text != before else SkillUpdate()
    try:
        saved = await visit.service.save_skill(skill.id, data, None, visit.user, expected_revision=known)
    except SkillStaleError as error:
        return await conflict(visit, skill, text=text, message=str(error))
    except _REFUSALS as error:
        return await editor(visit, text=text, skill=skill, revision=known, refusal=error)
    return visit.see(skill.id, done="saved" if saved.revision != known else "unchanged")


@router.post("/skills/{skill_id}/replace")
async def replace(visit: SentForm, skill_id: str) -> Response:
    """Replace all of a skill with a `.zip`."""
    skill, known = await visit.skill(skill_id, "write"), visit.revision
    try:
        _, archive = visit.form.file("archive")
        async with visit.parts.unzip(visit.service, archive, visit.user, skill.id) as (text, files):
            await visit.service.save_skill(skill.id, text, files, visit.user, expected_revision=known)
    except SkillStaleError:
        # There is no typed text to keep here, so the page of failures will do.
        raise
    except _REFUSALS as error:
        return await editor(visit, text=shown.write_document(skill), skill=skill, revision=known, refusal=error)
    return visit.see(skill.id, done="saved")


async def create(visit: SignedIn, text: bytes | str, files: dict[str, bytes] | None = None) -> Skill:
    """Create a skill from its `SKILL.md` and files."""
    data = await run_in_thread(len(text), lambda: SkillCreate.from_skill_md(text, files or {}))
    return await visit.service.create_skill(data, visit.user)


_REFUSALS = (SkillFormatError, SkillConflictError, SkillTooLargeError, SkillPermissionError, ValueError)
"""Errors that are shown beside a form that keeps what was typed. Values that break a schema are `ValueError`."""


async def editor(
    visit: SignedIn,
    *,
    text: str,
    skill: Skill | None = None,
    revision: int | None = None,
    refusal: Exception | None = None,
) -> Response:
    """Return the editor with a text, what is wrong with it, and a preview."""
    checked = await run_in_thread(len(text) * 4, lambda: shown.check(text))
    name, description, body = await run_in_thread(len(text), lambda: _parts_of(text))
    preview = await in_html(body, place_of(visit.at, skill))
    return await visit.page(
        "edit.html",
        code=200 if refusal is None else _status(refusal),
        size=len(text) + len(preview or ""),
        text=text,
        name=name,
        description=description,
        skill=skill,
        revision=revision,
        checked=checked,
        preview=preview,
        refusal="" if refusal is None else _say(refusal),
        limits=visit.site.settings.policy.limits,
    )


def _parts_of(text: str) -> tuple[str, str, str]:
    try:
        document = Document.read(text)
    except SkillsError:
        return "", "", text
    return document.name, document.description, document.content


async def text_of_form(visit: SignedIn, before: str | None) -> str:
    """Return the `SKILL.md` that an editor sent: its text, with the name and the description that were changed."""
    form = visit.form
    text = shown.as_before(form.text("text"), before)
    given = {name: one_line(form.text(name)) for name in ("name", "description")}
    changed = {name: value for name, value in given.items() if value and value != form.text(f"{name}-before")}
    return await run_in_thread(len(text), lambda: _with(text, changed)) if changed else text


def _with(text: str, values: dict[str, str]) -> str:
    try:
        document = Document.read(text).change(**values)
        return document.render().decode(document.encoding)
    except (SkillsError, UnicodeError):
        # What is wrong with the text is said beside it.
        return text


def _status(refusal: Exception) -> int:
    if isinstance(refusal, SkillPermissionError):
        return 403
    if isinstance(refusal, SkillConflictError):
        return 409
    return 413 if isinstance(refusal, SkillTooLargeError) else 422


def _say(refusal: Exception) -> str:
    errors = getattr(refusal, "errors", None)
    if callable(errors):
        # From a schema: the first part that is wrong.
        found: Any = errors()[0]
        return f"{'.'.join(str(part) for part in found['loc'])}: {found['msg']}"
    return str(refusal)


async def conflict(visit: SignedIn, skill: Skill, *, text: str, message: str) -> Response:
    """Return the page for a save that would overwrite another change: that change, and the user's own text."""
    # Read again: others may have made further changes in the meantime.
    present = await visit.skill(str(skill.id))
    theirs = await changes_since(visit, present, visit.revision)
    now_written, mine = shown.write_document(present).encode(), text.encode()
    own_text = await run_in_thread(
        len(mine), lambda: difference({SKILL_FILE: now_written}, {SKILL_FILE: mine}, MAX_DIFF_LENGTH)
    )
    own = await run_in_thread(len(own_text), lambda: shown.diff_of(own_text))
    return await visit.page(
        "conflict.html",
        code=412,
        size=len(text) + own.length + (theirs.length if theirs else 0),
        skill=present,
        text=text,
        known=visit.revision,
        message=message,
        theirs=theirs,
        own=own,
    )


async def file_editor(
    visit: SignedIn, skill: Skill, path: str, text: str, revision: int, refusal: Exception | None = None
) -> Response:
    """Return the editor of a file, with the refusal if there was one."""
    is_stale = isinstance(refusal, SkillStaleError)
    return await visit.page(
        "edit_file.html",
        code=200 if refusal is None else 412 if is_stale else _status(refusal),
        size=len(text),
        skill=skill,
        path=path,
        text=text,
        revision=revision,
        is_known=any(file.path == path for file in skill.files),
        is_stale=is_stale,
        refusal="" if refusal is None else _say(refusal),
    )


# -- Files -------------------------------------------------------------------------------------------------------------


@router.get("/skills/{skill_id}/edit-file")
async def edit_file(visit: SignedVisit, skill_id: str, path: Annotated[str, Query(max_length=1_000)] = "") -> Response:
    """Show the editor of a file; without a path, of a new one."""
    skill = await visit.skill(skill_id, "write")
    text = ""
    # Without a path it is the editor of a new file.
    if path:
        file = list_file(skill, path)
        if not file.is_text or file.size > MAX_SHOWN_BYTES:
            raise SkillFormatError("This file is not text, or too large to be edited here. Upload a new one.")
        text = (await visit.service.read_file(skill.id, path, visit.user)).decode("utf-8", "replace")
    return await file_editor(visit, skill, path, text, skill.revision)


@router.post("/skills/{skill_id}/edit-file")
async def save_file(visit: SentForm, skill_id: str) -> Response:
    """Save a file."""
    skill = await visit.skill(skill_id, "write")
    path, known = visit.form.text("path").strip(), visit.revision
    before = None
    # Browsers send CRLF; `as_before` needs the old text to keep the line endings that the file has.
    if any(file.path == path and file.is_text for file in skill.files):
        before = (await visit.service.read_file(skill.id, path, visit.user)).decode("utf-8", "replace")
    text = shown.as_before(visit.form.text("text"), before)
    try:
        data = SkillFileCreate(path=path, content=text)
        await visit.service.save_file(skill.id, data, visit.user, expected_revision=known)
    except SkillStaleError as error:
        # The form gets the new revision, so that a second save is a choice to overwrite the other change.
        present = await visit.skill(skill_id, "write")
        return await file_editor(visit, present, path, text, present.revision, error)
    except _REFUSALS as error:
        return await file_editor(visit, skill, path, text, known, error)
    return visit.see(skill.id, f"/files/{path}", done="file-saved")


# -- Uploads -----------------------------------------------------------------------------------------------------------


@router.post("/skills/{skill_id}/upload-file")
async def upload_file(visit: SentForm, skill_id: str) -> Response:
    """Add an uploaded file."""
    skill = await visit.skill(skill_id, "write")
    try:
        name, content = visit.form.file("file")
        # Some browsers send the path on the user's disk.
        name = posixpath.basename(name.replace("\\", "/"))
        directory = visit.form.text("directory").strip().strip("/")
        data = SkillFileCreate(path=posixpath.join(directory, name), content=content)
        await visit.service.save_file(skill.id, data, visit.user, expected_revision=visit.revision)
    except SkillStaleError:
        raise
    except _REFUSALS as error:
        return await skill_page(visit, skill_id, _status(error), _say(error))
    return visit.see(skill.id, done="file-saved")


@router.post("/skills/{skill_id}/delete-file")
async def delete_file(visit: SentForm, skill_id: str) -> Response:
    """Remove a file."""
    skill = await visit.skill(skill_id, "write")
    file = list_file(skill, visit.form.text("path"))
    await visit.service.delete_file(file.id, visit.user, expected_revision=visit.revision)
    return visit.see(skill.id, done="file-deleted")


# -- Sharing -----------------------------------------------------------------------------------------------------------


async def change(visit: SignedIn, skill_id: str, update: SkillUpdate, done: str) -> Response:
    """Change who sees a skill."""
    skill = await visit.skill(skill_id, "own")
    await visit.service.update_skill(skill.id, update, visit.user, expected_revision=visit.revision)
    return visit.see(skill.id, done=done)


@router.post("/skills/{skill_id}/share")
async def share(visit: SentForm, skill_id: str) -> Response:
    """Set the groups that a skill is shared with."""
    # The form has all groups, and `shared_with` replaces them: a group without access is left out, and loses it.
    given: dict[str, Right] = {}
    for name, right in visit.form.texts.items():
        if name.startswith(_SHARE) and right in ("read", "write"):
            given[name.removeprefix(_SHARE)] = right  # type: ignore[assignment]
    # Offered to those who may share with groups that they are not in; the service checks it.
    if group := visit.form.text("new-group").strip():
        given[group] = "write" if visit.form.text("new-right") == "write" else "read"
    # Checked before the schema does it, whose errors are not written for people.
    return await change(visit, skill_id, SkillUpdate(shared_with=read_groups(given)), "shared")


@router.post("/skills/{skill_id}/publish")
async def publish(visit: SentForm, skill_id: str) -> Response:
    """Make a skill public."""
    done = "submitted" if visit.viewer.needs_approval else "published"
    return await change(visit, skill_id, SkillUpdate(is_public=True), done)


@router.post("/skills/{skill_id}/withdraw")
async def withdraw(visit: SentForm, skill_id: str) -> Response:
    """Make a skill private to its owner and groups."""
    return await change(visit, skill_id, SkillUpdate(is_public=False), "withdrawn")


# -- Operators ---------------------------------------------------------------------------------------------------------


@router.post("/skills/{skill_id}/approve")
async def approve(visit: SentForm, skill_id: str) -> Response:
    """Approve the revision that was looked at, or show what changed since."""
    try:
        await visit.service.approve_skill(check_id(skill_id), visit.revision, visit.user)
    except SkillStaleError:
        # Nobody approves what they have not looked at: show what changed since.
        skill = await visit.skill(skill_id)
        changes = await changes_since(visit, skill, visit.revision)
        size = changes.length if changes else 0
        return await visit.page("stale.html", code=412, size=size, skill=skill, known=visit.revision, changes=changes)
    return visit.see(skill_id, done="approved")


@router.post("/skills/{skill_id}/hide")
async def hide(visit: SentForm, skill_id: str) -> Response:
    """Hide a skill, or show it again."""
    hidden = visit.form.text("hidden") != "no"
    await visit.service.hide_skill(check_id(skill_id), visit.user, hidden=hidden, expected_revision=visit.revision)
    return visit.see(skill_id, done="hidden" if hidden else "shown")


@router.post("/skills/{skill_id}/hand-over")
async def hand_over(visit: SentForm, skill_id: str) -> Response:
    """Give a skill to another owner."""
    # As over HTTP, only operators: a mistyped id would give a skill away for good.
    await visit.service.check_operator(visit.user)
    owner = visit.form.text("owner").strip()
    if not owner:
        raise SkillFormatError("No new owner is named. Enter a user id.")
    await visit.service.hand_over(check_id(skill_id), owner, visit.user, expected_revision=visit.revision)
    return visit.see(skill_id, done="handed-over")


# -- Removal -----------------------------------------------------------------------------------------------------------


async def confirm(visit: SignedIn, skill: Skill, code: int = 200, refusal: str = "") -> Response:
    """Return the question whether to delete a skill."""
    retention = visit.site.settings.policy.retention
    return await visit.page("delete.html", code=code, skill=skill, refusal=refusal, retention=retention)


@router.post("/skills/{skill_id}/versions/{revision}/restore")
async def restore_version(visit: SentForm, skill_id: str, revision: int) -> Response:
    """Go back to a version."""
    await visit.service.restore_version(check_id(skill_id), revision, visit.user, expected_revision=visit.revision)
    return visit.see(skill_id, done="restored")


@router.get("/skills/{skill_id}/delete")
async def ask(visit: SignedVisit, skill_id: str) -> Response:
    """Ask whether to delete a skill."""
    return await confirm(visit, await visit.skill(skill_id, "remove"))


@router.post("/skills/{skill_id}/delete")
async def delete(visit: SentForm, skill_id: str) -> Response:
    """Delete a skill."""
    force = visit.form.text("force") == "yes"
    try:
        await visit.service.delete_skill(check_id(skill_id), visit.user, expected_revision=visit.revision, force=force)
    except SkillStaleError:
        raise
    except SkillConflictError as error:
        # Other skills require it: ask again, with those named, and offer to delete it nevertheless.
        return await confirm(visit, await visit.skill(skill_id), 409, str(error))
    return RedirectResponse(visit.at("/deleted", done="deleted"), 303)


@router.post("/skills/{skill_id}/restore")
async def restore(visit: SentForm, skill_id: str) -> Response:
    """Restore a deleted skill."""
    skill = await visit.service.restore_skill(check_id(skill_id), visit.user, expected_revision=visit.revision)
    return visit.see(skill.id, done="restored")
