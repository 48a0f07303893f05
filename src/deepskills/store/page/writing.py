"""Handles the page's forms: each is a call to the service, followed by a redirect to what it changed.

Every form names the revision that its user looked at, and the service refuses it if the skill has changed since: two
people who edit at once must not overwrite each other unseen. After a refusal the user keeps what they typed. The
editors show the refusal beside it; the one-click forms have nothing to keep, and let the page of failures say it.

Each `add_...` function adds the addresses of one subject. Their dependencies are aliases inside the function, because
FastAPI reads them from annotations and they belong to one page and its settings.
"""

import posixpath
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse

from deepskills._errors import SkillFormatError, SkillsError
from deepskills._skillmd.write import generate_skill_md
from deepskills._types import SKILL_FILE
from deepskills.store.db.models import Skill
from deepskills.store.document import Document, difference
from deepskills.store.errors import SkillConflictError, SkillPermissionError, SkillStaleError, SkillTooLargeError
from deepskills.store.http.requests import bound_body
from deepskills.store.page import shown
from deepskills.store.page.markdown import Place
from deepskills.store.page.reading import (
    MAX_DIFF_LENGTH,
    MAX_SHOWN_BYTES,
    changes_since,
    in_html,
    list_file,
    rights_of,
    skill_page,
)
from deepskills.store.page.site import TOKEN_HEADER, Addresses, Form, PageParts, check_same_site, check_token, see
from deepskills.store.rules import Right, check_right, checked_groups, known_id
from deepskills.store.schemas import SkillCreate, SkillFileCreate, SkillUpdate
from deepskills.store.service import SkillService
from deepskills.store.workers import run_in_thread

MAX_CHECKED_BYTES = 11 * 1024 * 1024
"""Largest text that is checked while somebody types: a `SKILL.md` can have 10 MiB."""

_SHARE = "group:"
"""The prefix of form fields that say what a group may do."""

_NEW_BODY = """# Title

What to do, step by step. Say which files to read, and when.
"""

NEW_SKILL = generate_skill_md("my-skill", "What it does. Use it when the user asks for ...", _NEW_BODY)
"""The text of a new skill."""


def add_creation(router: APIRouter, parts: PageParts) -> None:
    """Add the forms that create skills, and the check that runs while somebody types."""
    service_type = Annotated[SkillService, Depends(parts.service)]
    writer_type = Annotated[str, Depends(parts.writer)]
    form_type = Annotated[Form, Depends(parts.form)]

    @router.post("/check")
    async def check(request: Request, user: writer_type) -> Response:
        # It changes nothing, but it costs: the same checks as for a form, so that other sites cannot make browsers ask.
        check_same_site(request)
        check_token(request, request.headers.get(TOKEN_HEADER, ""), user)
        async with bound_body(request, MAX_CHECKED_BYTES, user) as body:
            found = await run_in_thread(len(body) * 4, lambda: shown.check(body))
        return JSONResponse(found.as_json())

    @router.get("/new")
    async def new(request: Request, user: writer_type) -> Response:
        return await editor(parts, request, user, text=NEW_SKILL)

    @router.post("/new")
    async def create_from_form(request: Request, service: service_type, user: writer_type, form: form_type) -> Response:
        text = await text_of_form(form, None)
        if form.text("action") == "preview":
            return await editor(parts, request, user, text=text)
        try:
            data = await run_in_thread(len(text), lambda: SkillCreate.from_skill_md(text))
            made = await service.create_skill(data, user)
        except _REFUSALS as error:
            return await editor(parts, request, user, text=text, refusal=error)
        return see(Addresses(request).skill(made.id, done="created"))

    @router.post("/upload")
    async def upload(request: Request, service: service_type, user: writer_type, form: form_type) -> Response:
        try:
            _, archive = form.file("archive")

            async def create(text: bytes, files: dict[str, bytes]) -> Skill:
                given = await run_in_thread(len(text), lambda: SkillCreate.from_skill_md(text, files))
                return await service.create_skill(given, user)

            made = await parts.unzip(service, archive, user, None, create)
        except _REFUSALS as error:
            return await editor(parts, request, user, text=NEW_SKILL, refusal=error)
        return see(Addresses(request).skill(made.id, done="created"))


def add_editing(router: APIRouter, parts: PageParts) -> None:
    """Add the editor of a skill, and the form that replaces all of it with an archive."""
    service_type = Annotated[SkillService, Depends(parts.service)]
    writer_type = Annotated[str, Depends(parts.writer)]
    form_type = Annotated[Form, Depends(parts.form)]

    @router.get("/skills/{skill_id}/edit")
    async def edit(request: Request, skill_id: str, service: service_type, user: writer_type) -> Response:
        skill = await writable(parts, service, skill_id, user)
        return await editor(parts, request, user, text=shown.written(skill), skill=skill, revision=skill.revision)

    @router.post("/skills/{skill_id}/edit")
    async def save(
        request: Request, skill_id: str, service: service_type, user: writer_type, form: form_type
    ) -> Response:
        skill = await writable(parts, service, skill_id, user)
        before = shown.written(skill)
        text = await text_of_form(form, before)
        known = form.revision()
        if form.text("action") == "preview":
            return await editor(parts, request, user, text=text, skill=skill, revision=known)
        # An unchanged text is left as the bytes that came in, whatever their encoding.
        data = text if text != before else SkillUpdate()
        try:
            saved = await service.save_skill(skill.id, data, None, user, expected_revision=known)
        except SkillStaleError as error:
            return await conflict(parts, request, service, user, skill, text=text, known=known, message=str(error))
        except _REFUSALS as error:
            return await editor(parts, request, user, text=text, skill=skill, revision=known, refusal=error)
        done = "saved" if saved.revision != known else "unchanged"
        return see(Addresses(request).skill(skill.id, done=done))

    @router.post("/skills/{skill_id}/replace")
    async def replace(
        request: Request, skill_id: str, service: service_type, user: writer_type, form: form_type
    ) -> Response:
        skill = await writable(parts, service, skill_id, user)
        known = form.revision()
        try:
            _, archive = form.file("archive")

            async def save_all(text: bytes, files: dict[str, bytes]) -> Skill:
                return await service.save_skill(skill.id, text, files, user, expected_revision=known)

            await parts.unzip(service, archive, user, skill.id, save_all)
        except SkillStaleError:
            # There is no typed text to keep here, so the page of failures will do.
            raise
        except _REFUSALS as error:
            before = shown.written(skill)
            return await editor(parts, request, user, text=before, skill=skill, revision=known, refusal=error)
        return see(Addresses(request).skill(skill.id, done="saved"))


_REFUSALS = (SkillFormatError, SkillConflictError, SkillTooLargeError, SkillPermissionError, ValueError)
"""Errors that are shown beside a form that keeps what was typed. Values that break a schema are `ValueError`."""


async def writable(parts: PageParts, service: SkillService, skill_id: str, user: str) -> Skill:
    """Return a skill that a user may write, with its text and without the contents of its files.

    Raises:
        SkillNotFoundError: If this user can see no such skill.
        SkillPermissionError: If it is not this user's to change.
    """
    skill = await service.get_skill(known_id(skill_id), user, contents=False)
    check_right(skill, await parts.site.viewer(user), "write")
    return skill


async def owned(parts: PageParts, service: SkillService, skill_id: str, user: str) -> Skill:
    """Return a skill that a user owns; checked even if nothing would change, which the service lets pass.

    Raises:
        SkillNotFoundError: If this user can see no such skill.
        SkillPermissionError: If it is not this user's own.
    """
    skill = await service.get_skill(known_id(skill_id), user, contents=False)
    check_right(skill, await parts.site.viewer(user), "own")
    return skill


async def editor(  # noqa: PLR0913 - what an editor is about
    parts: PageParts,
    request: Request,
    user: str,
    *,
    text: str,
    skill: Skill | None = None,
    revision: int | None = None,
    refusal: Exception | None = None,
) -> Response:
    """Return the editor with a text, what is wrong with it, and a preview."""
    at = Addresses(request)
    checked = await run_in_thread(len(text) * 4, lambda: shown.check(text))
    place = Place(
        "" if skill is None else at.skill(skill.id, "/files/"),
        "" if skill is None else at.skill(skill.id),
        paths=frozenset() if skill is None else frozenset(file.path for file in skill.files),
    )
    name, description, body = await run_in_thread(len(text), lambda: _parts_of(text))
    preview = await in_html(body, place)
    return await parts.site.page(
        request,
        "edit.html",
        user,
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
        limits=parts.site.policy.limits,
    )


def _parts_of(text: str) -> tuple[str, str, str]:
    try:
        document = Document.read(text)
    except SkillsError:
        return "", "", text
    return document.name, document.description, document.content


async def text_of_form(form: Form, before: str | None) -> str:
    """Return the `SKILL.md` that an editor sent: its text, with the name and the description that were changed."""
    text = shown.as_before(form.text("text"), before)
    given = {name: shown.line(form.text(name)) for name in ("name", "description")}
    changed = {name: value for name, value in given.items() if value and value != form.text(f"{name}-before")}
    return await run_in_thread(len(text), lambda: _with(text, changed)) if changed else text


def _with(text: str, values: dict[str, str]) -> str:
    try:
        document = Document.read(text).changed(**values)
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


async def conflict(  # noqa: PLR0913 - what two people did
    parts: PageParts,
    request: Request,
    service: SkillService,
    user: str,
    skill: Skill,
    *,
    text: str,
    known: int,
    message: str,
) -> Response:
    """Return the page for a save that would overwrite another change: that change, and the user's own text."""
    # Read again: others may have made further changes in the meantime.
    present = await service.get_skill(skill.id, user, contents=False)
    theirs = await changes_since(service, present, known, user)
    now_written, mine = shown.written(present).encode(), text.encode()
    own_text = await run_in_thread(
        len(mine), lambda: difference({SKILL_FILE: now_written}, {SKILL_FILE: mine}, MAX_DIFF_LENGTH)
    )
    own = await run_in_thread(len(own_text), lambda: shown.diff_of(own_text))
    return await parts.site.page(
        request,
        "conflict.html",
        user,
        code=412,
        size=len(text) + own.length + (theirs.length if theirs else 0),
        skill=present,
        text=text,
        known=known,
        message=message,
        theirs=theirs,
        own=own,
    )


async def file_editor(  # noqa: PLR0913, PLR0917 - what an editor is about
    parts: PageParts,
    request: Request,
    user: str,
    skill: Skill,
    path: str,
    text: str,
    revision: int,
    refusal: Exception | None = None,
) -> Response:
    """Return the editor of a file, with the refusal if there was one."""
    return await parts.site.page(
        request,
        "edit_file.html",
        user,
        code=200 if refusal is None else 412 if isinstance(refusal, SkillStaleError) else _status(refusal),
        size=len(text),
        skill=skill,
        path=path,
        text=text,
        revision=revision,
        is_known=any(file.path == path for file in skill.files),
        is_stale=isinstance(refusal, SkillStaleError),
        refusal="" if refusal is None else _say(refusal),
    )


def add_files(router: APIRouter, parts: PageParts) -> None:
    """Add the editor of a skill's files."""
    service_type = Annotated[SkillService, Depends(parts.service)]
    writer_type = Annotated[str, Depends(parts.writer)]
    form_type = Annotated[Form, Depends(parts.form)]

    @router.get("/skills/{skill_id}/edit-file")
    async def edit_file(
        request: Request,
        skill_id: str,
        service: service_type,
        user: writer_type,
        path: Annotated[str, Query(max_length=1_000)] = "",
    ) -> Response:
        skill = await writable(parts, service, skill_id, user)
        text = ""
        # Without a path it is the editor of a new file.
        if path:
            file = list_file(skill, path)
            if not file.is_text or file.size > MAX_SHOWN_BYTES:
                raise SkillFormatError("This file is not text, or too large to be edited here. Upload a new one.")
            text = (await service.read_file(skill.id, path, user)).decode("utf-8", "replace")
        return await file_editor(parts, request, user, skill, path, text, skill.revision)

    @router.post("/skills/{skill_id}/edit-file")
    async def save_file(
        request: Request, skill_id: str, service: service_type, user: writer_type, form: form_type
    ) -> Response:
        skill = await writable(parts, service, skill_id, user)
        path, known = form.text("path").strip(), form.revision()
        before = None
        # Browsers send CRLF; `as_before` needs the old text to keep the line endings that the file has.
        if any(file.path == path and file.is_text for file in skill.files):
            before = (await service.read_file(skill.id, path, user)).decode("utf-8", "replace")
        text = shown.as_before(form.text("text"), before)
        try:
            data = SkillFileCreate(path=path, content=text)
            await service.save_file(skill.id, data, user, expected_revision=known)
        except _REFUSALS as error:
            # After another change the form gets the new revision, so that a second save is a choice to overwrite it.
            is_stale = isinstance(error, SkillStaleError)
            present = await writable(parts, service, skill_id, user) if is_stale else skill
            shown_revision = present.revision if is_stale else known
            return await file_editor(parts, request, user, present, path, text, shown_revision, error)
        return see(Addresses(request).skill(skill.id, f"/files/{path}", done="file-saved"))


def add_uploads(router: APIRouter, parts: PageParts) -> None:
    """Add the forms that upload and remove files."""
    service_type = Annotated[SkillService, Depends(parts.service)]
    writer_type = Annotated[str, Depends(parts.writer)]
    form_type = Annotated[Form, Depends(parts.form)]

    @router.post("/skills/{skill_id}/upload-file")
    async def upload_file(
        request: Request, skill_id: str, service: service_type, user: writer_type, form: form_type
    ) -> Response:
        skill = await writable(parts, service, skill_id, user)
        try:
            name, content = form.file("file")
            # Some browsers send the path on the user's disk.
            name = posixpath.basename(name.replace("\\", "/"))
            directory = form.text("directory").strip().strip("/")
            data = SkillFileCreate(path=posixpath.join(directory, name), content=content)
            await service.save_file(skill.id, data, user, expected_revision=form.revision())
        except _REFUSALS as error:
            if isinstance(error, SkillStaleError):
                raise
            return await skill_page(parts, request, service, user, skill_id, _status(error), _say(error))
        return see(Addresses(request).skill(skill.id, done="file-saved"))

    @router.post("/skills/{skill_id}/delete-file")
    async def delete_file(
        request: Request, skill_id: str, service: service_type, user: writer_type, form: form_type
    ) -> Response:
        skill = await writable(parts, service, skill_id, user)
        file = list_file(skill, form.text("path"))
        await service.delete_file(file.id, user, expected_revision=form.revision())
        return see(Addresses(request).skill(skill.id, done="file-deleted"))


def add_sharing(router: APIRouter, parts: PageParts) -> None:
    """Add the forms with which owners decide who sees a skill."""
    site = parts.site
    service_type = Annotated[SkillService, Depends(parts.service)]
    writer_type = Annotated[str, Depends(parts.writer)]
    form_type = Annotated[Form, Depends(parts.form)]

    @router.post("/skills/{skill_id}/share")
    async def share(
        request: Request, skill_id: str, service: service_type, user: writer_type, form: form_type
    ) -> Response:
        # The form has all groups, and `shared_with` replaces them: a group without access is left out, and loses it.
        given: dict[str, Right] = {}
        for name, right in form.texts.items():
            if name.startswith(_SHARE) and right in ("read", "write"):
                given[name.removeprefix(_SHARE)] = right  # type: ignore[assignment]
        # Offered to those who may share with groups that they are not in; the service checks it.
        if group := form.text("new-group").strip():
            given[group] = "write" if form.text("new-right") == "write" else "read"
        skill = await owned(parts, service, skill_id, user)
        # Checked before the schema does it, whose errors are not written for people.
        update = SkillUpdate(shared_with=checked_groups(given))
        await service.update_skill(skill.id, update, user, expected_revision=form.revision())
        return see(Addresses(request).skill(skill_id, done="shared"))

    @router.post("/skills/{skill_id}/publish")
    async def publish(
        request: Request, skill_id: str, service: service_type, user: writer_type, form: form_type
    ) -> Response:
        skill = await owned(parts, service, skill_id, user)
        update = SkillUpdate(is_public=True)
        await service.update_skill(skill.id, update, user, expected_revision=form.revision())
        return see(Addresses(request).skill(skill_id, done="submitted" if site.policy.approval else "published"))

    @router.post("/skills/{skill_id}/withdraw")
    async def withdraw(
        request: Request, skill_id: str, service: service_type, user: writer_type, form: form_type
    ) -> Response:
        skill = await owned(parts, service, skill_id, user)
        update = SkillUpdate(is_public=False)
        await service.update_skill(skill.id, update, user, expected_revision=form.revision())
        return see(Addresses(request).skill(skill_id, done="withdrawn"))


def add_operations(router: APIRouter, parts: PageParts) -> None:
    """Add the forms for operators."""
    service_type = Annotated[SkillService, Depends(parts.service)]
    writer_type = Annotated[str, Depends(parts.writer)]
    form_type = Annotated[Form, Depends(parts.form)]

    @router.post("/skills/{skill_id}/approve")
    async def approve(
        request: Request, skill_id: str, service: service_type, user: writer_type, form: form_type
    ) -> Response:
        try:
            await service.approve_skill(known_id(skill_id), form.revision(), user)
        except SkillStaleError:
            # Nobody approves what they have not looked at: show what changed since.
            return await stale(parts, request, service, user, skill_id, form)
        return see(Addresses(request).skill(skill_id, done="approved"))

    @router.post("/skills/{skill_id}/hide")
    async def hide(
        request: Request, skill_id: str, service: service_type, user: writer_type, form: form_type
    ) -> Response:
        hidden = form.text("hidden") != "no"
        await service.hide_skill(known_id(skill_id), user, hidden=hidden, expected_revision=form.revision())
        return see(Addresses(request).skill(skill_id, done="hidden" if hidden else "shown"))

    @router.post("/skills/{skill_id}/hand-over")
    async def hand_over(
        request: Request, skill_id: str, service: service_type, user: writer_type, form: form_type
    ) -> Response:
        # As over HTTP, only operators: a mistyped id would give a skill away for good.
        await service.check_operator(user)
        owner = form.text("owner").strip()
        if not owner:
            raise SkillFormatError("No new owner is named. Enter a user id.")
        await service.hand_over(known_id(skill_id), owner, user, expected_revision=form.revision())
        return see(Addresses(request).skill(skill_id, done="handed-over"))


def add_removal(router: APIRouter, parts: PageParts) -> None:
    """Add the forms that restore a version, and delete or restore a skill."""
    site = parts.site
    service_type = Annotated[SkillService, Depends(parts.service)]
    writer_type = Annotated[str, Depends(parts.writer)]
    form_type = Annotated[Form, Depends(parts.form)]

    @router.post("/skills/{skill_id}/versions/{revision}/restore")
    async def restore_version(
        request: Request, skill_id: str, revision: int, service: service_type, user: writer_type, form: form_type
    ) -> Response:
        await service.restore_version(known_id(skill_id), revision, user, expected_revision=form.revision())
        return see(Addresses(request).skill(skill_id, done="restored"))

    @router.get("/skills/{skill_id}/delete")
    async def confirm(request: Request, skill_id: str, service: service_type, user: writer_type) -> Response:
        skill = await service.get_skill(known_id(skill_id), user, contents=False)
        check_right(skill, await site.viewer(user), "remove")
        return await site.page(request, "delete.html", user, skill=skill, refusal="", retention=site.policy.retention)

    @router.post("/skills/{skill_id}/delete")
    async def delete(
        request: Request, skill_id: str, service: service_type, user: writer_type, form: form_type
    ) -> Response:
        known: UUID = known_id(skill_id)
        force = form.text("force") == "yes"
        try:
            await service.delete_skill(known, user, expected_revision=form.revision(), force=force)
        except SkillStaleError:
            raise
        except SkillConflictError as error:
            # Other skills require it: ask again, with those named, and offer to delete it nevertheless.
            skill = await service.get_skill(known, user, contents=False)
            return await site.page(
                request,
                "delete.html",
                user,
                code=409,
                skill=skill,
                refusal=str(error),
                retention=site.policy.retention,
            )
        return see(Addresses(request)("/deleted", done="deleted"))

    @router.post("/skills/{skill_id}/restore")
    async def restore(
        request: Request, skill_id: str, service: service_type, user: writer_type, form: form_type
    ) -> Response:
        skill = await service.restore_skill(known_id(skill_id), user, expected_revision=form.revision())
        return see(Addresses(request).skill(skill.id, done="restored"))


async def stale(
    parts: PageParts, request: Request, service: SkillService, user: str, skill_id: str, form: Form
) -> Response:
    """Return the page for an approval of a revision that is no longer the current one: the changes since."""
    skill = await service.get_skill(known_id(skill_id), user, contents=False)
    known = form.revision()
    changes = await changes_since(service, skill, known, user)
    viewer = await parts.site.viewer(user)
    return await parts.site.page(
        request,
        "stale.html",
        user,
        code=412,
        size=changes.length if changes else 0,
        viewer=viewer,
        skill=skill,
        known=known,
        changes=changes,
        may=rights_of(skill, viewer),
    )
