"""The addresses of the page that forms lead to: each a call of the service, and then on to what it changed."""

import posixpath
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse

from deepskills._errors import SkillFormatError, SkillsError
from deepskills._skillmd.write import generate_skill_md
from deepskills._types import SKILL_FILE
from deepskills.store.archives import unpacked
from deepskills.store.db.models import Skill
from deepskills.store.document import Document, difference
from deepskills.store.errors import SkillConflictError, SkillPermissionError, SkillStaleError, SkillTooLargeError
from deepskills.store.http.requests import bounded_body
from deepskills.store.page import shown
from deepskills.store.page.forms import TOKEN_HEADER, Form, check_same_site, check_token
from deepskills.store.page.markdown import Place, rendered
from deepskills.store.page.reading import MAX_DIFF_LENGTH, MAX_SHOWN_BYTES, listed_file, rights_of, skill_page
from deepskills.store.page.site import Addresses, PageParts, see
from deepskills.store.rules import Right, check_right, known_id
from deepskills.store.schemas import SkillCreate, SkillFileCreate, SkillUpdate
from deepskills.store.service import SkillService
from deepskills.store.workers import compared, computed

MAX_CHECKED_BYTES = 11 * 1024 * 1024
"""Largest text that is checked while somebody writes it: a `SKILL.md` may have 10 MiB."""

_SHARE = "group:"
"""What the fields of a form begin with that say what a group may do."""

_NEW_BODY = """# Title

What to do, step by step. Say which files to read, and when.
"""

NEW_SKILL = generate_skill_md("my-skill", "What it does. Use it when the user asks for ...", _NEW_BODY)
"""What a new skill begins with."""


def add_creation(router: APIRouter, parts: PageParts) -> None:
    """Add what makes new skills, and the check that runs while one types."""
    limits = parts.site.policy.limits
    service_type = Annotated[SkillService, Depends(parts.service)]
    writer_type = Annotated[str, Depends(parts.writer)]
    form_type = Annotated[Form, Depends(parts.form)]

    @router.post("/check")
    async def check(request: Request, user: writer_type) -> Response:
        check_same_site(request)
        check_token(request, request.headers.get(TOKEN_HEADER, ""), user)
        body = await bounded_body(request, MAX_CHECKED_BYTES)
        found = await computed(len(body), lambda: shown.check(body))
        return JSONResponse(found.as_json())

    @router.get("/new")
    async def new(request: Request, user: writer_type) -> Response:
        return await editor(parts, request, user, text=NEW_SKILL)

    @router.post("/new")
    async def create(request: Request, service: service_type, user: writer_type, form: form_type) -> Response:
        text = shown.as_before(form.text("text"), None)
        if form.text("action") == "preview":
            return await editor(parts, request, user, text=text, is_preview=True)
        try:
            data = await computed(len(text), lambda: SkillCreate.from_skill_md(text))
            made = await service.create_skill(data, user)
        except _REFUSALS as error:
            return await editor(parts, request, user, text=text, refusal=error)
        return see(Addresses(request).skill(made.id, done="created"))

    @router.post("/upload")
    async def upload(request: Request, service: service_type, user: writer_type, form: form_type) -> Response:
        try:
            _, archive = form.file("archive")
            size = len(archive) + limits.skill_bytes
            data = await computed(size, lambda: SkillCreate.from_skill_md(*unpacked(archive, limits)))
            made = await service.create_skill(data, user)
        except _REFUSALS as error:
            return await editor(parts, request, user, text=NEW_SKILL, refusal=error)
        return see(Addresses(request).skill(made.id, done="created"))


def add_editing(router: APIRouter, parts: PageParts) -> None:
    """Add the editor of a skill, and the form that replaces it whole."""
    limits = parts.site.policy.limits
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
        text = shown.as_before(form.text("text"), before)
        known = form.revision()
        if form.text("action") == "preview":
            return await editor(parts, request, user, text=text, skill=skill, revision=known, is_preview=True)
        # Unchanged it is saved as the bytes that it came in as, whatever their encoding.
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
            text, files = await computed(len(archive) + limits.skill_bytes, lambda: unpacked(archive, limits))
            await service.save_skill(skill.id, text, files, user, expected_revision=known)
        except SkillStaleError:
            raise
        except _REFUSALS as error:
            before = shown.written(skill)
            return await editor(parts, request, user, text=before, skill=skill, revision=known, refusal=error)
        return see(Addresses(request).skill(skill.id, done="saved"))


_REFUSALS = (SkillFormatError, SkillConflictError, SkillTooLargeError, SkillPermissionError, ValueError)
"""What is said beside a form, with all that was typed still in it. Values that break a schema are `ValueError`."""


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
    """Return a skill that a user may decide about; asked also where nothing would change.

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
    is_preview: bool = False,
    refusal: Exception | None = None,
) -> Response:
    """Return the editor with a text, what is wrong with it and, where it was asked for, how it will look."""
    at = Addresses(request)
    checked = await computed(len(text) * 2, lambda: shown.check(text))
    preview = None
    if is_preview:
        place = Place(
            "" if skill is None else at.skill(skill.id, "/files/"),
            "" if skill is None else at.skill(skill.id),
            paths=frozenset() if skill is None else frozenset(file.path for file in skill.files),
        )
        body = await computed(len(text), lambda: _body_of(text))
        preview = await computed(len(body) * 4, lambda: rendered(body, place))
    return await parts.site.page(
        request,
        "edit.html",
        user,
        code=200 if refusal is None else _status(refusal),
        size=len(text),
        text=text,
        skill=skill,
        revision=revision,
        checked=checked,
        is_preview=is_preview,
        preview=preview,
        refusal="" if refusal is None else _said(refusal),
        limits=parts.site.policy.limits,
    )


def _body_of(text: str) -> str:
    try:
        return Document.read(text).content
    except SkillsError:
        return text


def _status(refusal: Exception) -> int:
    if isinstance(refusal, SkillPermissionError):
        return 403
    if isinstance(refusal, SkillConflictError):
        return 409
    return 413 if isinstance(refusal, SkillTooLargeError) else 422


def _said(refusal: Exception) -> str:
    errors = getattr(refusal, "errors", None)
    if callable(errors):
        # Of a schema: the first part that is wrong.
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
    """Return the page for a save of a skill that somebody else changed: what they did, and one's own text to go on."""
    # As it is now, by now: others may have gone on while this was prepared.
    present = await service.get_skill(skill.id, user, contents=False)
    theirs = ""
    if known < present.revision:
        try:
            theirs = await service.diff_versions(skill.id, known, present.revision, user, max_length=MAX_DIFF_LENGTH)
        except SkillsError:
            # The version that the writer knew has expired: then what differs now has to do.
            theirs = ""
    now_written, mine = shown.written(present).encode(), text.encode()
    own = await compared(lambda: difference({SKILL_FILE: now_written}, {SKILL_FILE: mine}, MAX_DIFF_LENGTH))
    return await parts.site.page(
        request,
        "conflict.html",
        user,
        code=412,
        size=len(text),
        skill=present,
        text=text,
        known=known,
        message=message,
        theirs=shown.diff_of(theirs),
        own=shown.diff_of(own),
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
    """Return the editor of a file, with what was refused."""
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
        refusal="" if refusal is None else _said(refusal),
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
        if path:
            file = listed_file(skill, path)
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
        if any(file.path == path and file.is_text for file in skill.files):
            before = (await service.read_file(skill.id, path, user)).decode("utf-8", "replace")
        text = shown.as_before(form.text("text"), before)
        try:
            data = SkillFileCreate(path=path, content=text)
            await service.save_file(skill.id, data, user, expected_revision=known)
        except _REFUSALS as error:
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
            # Some browsers send the path that it has on the user's disk.
            name = posixpath.basename(name.replace("\\", "/"))
            directory = form.text("directory").strip().strip("/")
            data = SkillFileCreate(path=posixpath.join(directory, name), content=content)
            await service.save_file(skill.id, data, user, expected_revision=form.revision())
        except _REFUSALS as error:
            if isinstance(error, SkillStaleError):
                raise
            return await skill_page(parts, request, service, user, skill_id, _status(error), _said(error))
        return see(Addresses(request).skill(skill.id, done="file-saved"))

    @router.post("/skills/{skill_id}/delete-file")
    async def delete_file(
        request: Request, skill_id: str, service: service_type, user: writer_type, form: form_type
    ) -> Response:
        skill = await writable(parts, service, skill_id, user)
        file = listed_file(skill, form.text("path"))
        await service.delete_file(file.id, user, expected_revision=form.revision())
        return see(Addresses(request).skill(skill.id, done="file-deleted"))


def add_sharing(router: APIRouter, parts: PageParts) -> None:
    """Add the forms by which owners decide who sees a skill."""
    site = parts.site
    service_type = Annotated[SkillService, Depends(parts.service)]
    writer_type = Annotated[str, Depends(parts.writer)]
    form_type = Annotated[Form, Depends(parts.form)]

    @router.post("/skills/{skill_id}/share")
    async def share(
        request: Request, skill_id: str, service: service_type, user: writer_type, form: form_type
    ) -> Response:
        given: dict[str, Right] = {}
        for name, right in form.texts.items():
            if name.startswith(_SHARE) and right in ("read", "write"):
                given[name.removeprefix(_SHARE)] = right  # type: ignore[assignment]
        if group := form.text("new-group").strip():
            given[group] = "write" if form.text("new-right") == "write" else "read"
        skill = await owned(parts, service, skill_id, user)
        update = SkillUpdate(shared_with=given)
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
    """Add the forms of operators."""
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
            # What was looked at is not what would be approved: show what changed since.
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
        # As over HTTP: only operators know who a user id belongs to.
        await service.check_operator(user)
        owner = form.text("owner").strip()
        if not owner:
            raise SkillFormatError("Nobody is named as the new owner. Give a user id.")
        await service.hand_over(known_id(skill_id), owner, user, expected_revision=form.revision())
        return see(Addresses(request).skill(skill_id, done="handed-over"))


def add_removal(router: APIRouter, parts: PageParts) -> None:
    """Add the forms that go back to a version, delete a skill, and bring it back."""
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
    """Return the page for an approval of what is no longer there: what changed since it was looked at."""
    skill = await service.get_skill(known_id(skill_id), user, contents=False)
    known = form.revision()
    text = ""
    if known < skill.revision:
        text = await service.diff_versions(skill.id, known, skill.revision, user, max_length=MAX_DIFF_LENGTH)
    viewer = await parts.site.viewer(user)
    return await parts.site.page(
        request,
        "stale.html",
        user,
        code=412,
        size=len(text),
        viewer=viewer,
        skill=skill,
        known=known,
        changes=shown.diff_of(text),
        may=rights_of(skill, viewer),
    )
