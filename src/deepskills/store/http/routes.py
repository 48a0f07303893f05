"""The routes of the store over HTTP, each a thin call to `SkillService`. Needs the extra `api`.

Routes decide nothing: permissions, limits and revisions are checked by the service, for the page and for agents too.
What is special to HTTP is elsewhere: `requests.py` reads who asks and what they sent, `answers.py` writes the envelope.
"""

import datetime as dt
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from typing import Annotated, Any, Literal, cast
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query, Request, Response, Security
from fastapi.security.base import SecurityBase
from pydantic import BaseModel, ConfigDict, Field

from deepskills._errors import SkillNotFoundError
from deepskills._skillmd.names import stored_key
from deepskills.store.db.engine import SessionFactory
from deepskills.store.db.models import Skill
from deepskills.store.http.answers import (
    NO_METHOD,
    NOTHING_HERE,
    Answer,
    Page,
    answer_file,
    answer_skill,
    as_json,
    document_errors,
    etag,
    is_known,
    only,
    route_class,
    send_archive,
    wrap,
)
from deepskills.store.http.requests import (
    BEARER,
    MAX_REQUEST_BYTES,
    ZIP_TYPES,
    Caller,
    CurrentUser,
    Parts,
    Settings,
    content_type,
    file_content,
)
from deepskills.store.rules import MAX_DAYS, MAX_GROUPS, MAX_OWNER_LENGTH, MAX_TAGS, Policy, Right
from deepskills.store.schemas import (
    SkillCreate,
    SkillDocument,
    SkillFileContent,
    SkillFileCreate,
    SkillFileSchema,
    SkillSchema,
    SkillUpdate,
)
from deepskills.store.service import SkillService, UsageCount
from deepskills.store.workers import run_in_thread

__all__ = ["create_skills_router"]

logger = logging.getLogger("deepskills")

MARKDOWN_TYPE = "text/markdown"

MAX_QUERY_LENGTH = 1_000
"""Longest name, tag or search query in a URL."""

_Word = Annotated[str, Query(max_length=MAX_QUERY_LENGTH)]
_Tags = Annotated[list[_Word] | None, Query(max_length=MAX_TAGS)]


class Deleted(BaseModel):
    """What was deleted."""

    id: UUID


class VersionSchema(BaseModel):
    """One revision of a skill: who did what and when."""

    model_config = ConfigDict(from_attributes=True)

    revision: int
    name: str
    action: str
    user_id: str | None
    at: dt.datetime


class ChangeSchema(VersionSchema):
    """One change: who did what to which skill and when."""

    skill_id: UUID
    owner_id: str | None


class _Body(BaseModel):
    """A body with these fields and no others."""

    model_config = ConfigDict(extra="forbid")


class Approval(_Body):
    """The revision that an operator looked at."""

    revision: int = Field(ge=1, lt=1 << 63)


class Hiding(_Body):
    """Whether a skill is hidden."""

    hidden: bool = True


class Handover(_Body):
    """The new owner of a skill."""

    owner_id: str = Field(min_length=1, max_length=MAX_OWNER_LENGTH)


class Sharing(_Body):
    """The groups to share a skill with, and what their members may do."""

    shared_with: dict[str, Right] = Field(max_length=MAX_GROUPS)


class Purging(_Body):
    """What to remove permanently, by age in days."""

    retention: float | None = Field(default=None, ge=0, le=MAX_DAYS)
    versions: float | None = Field(default=None, ge=0, le=MAX_DAYS)


class Purged(BaseModel):
    """How many skills were permanently removed."""

    purged: int


class DiffSchema(BaseModel):
    """The changes between two revisions, as a unified diff; `is_cut` if it was too long to send all of it."""

    old: int
    new: int
    diff: str
    is_cut: bool


def create_skills_router(
    session_factory: SessionFactory,
    current_user: CurrentUser,
    *,
    policy: Policy | None = None,
    max_request_bytes: int = MAX_REQUEST_BYTES,
    security: SecurityBase | None = BEARER,
    **options: Any,  # noqa: ANN401 - the fields of Policy
) -> APIRouter:
    """Return the routes of the store, to be included under a prefix such as `/api/v1`.

    Every answer is `{"success": true, "data": ...}` or `{"success": false, "error": {...}}`, including errors of
    validation, of `current_user` and of the database. Unless somebody is signed in, a write is refused before its body
    is read.

    Args:
        session_factory: Opens a session, such as an `async_sessionmaker`.
        current_user: A FastAPI dependency that returns the user id of a request as text; `None` or `""` for nobody.
        policy: The application's decisions: limits, groups, operators, approval and so on.
        max_request_bytes: Largest request body.
        security: How clients sign in, for the documentation; `None` if `current_user` itself declares it.
        options: The fields of `Policy` by name, instead of `policy` or in place of what it says.
    """
    settings = Settings(session_factory, current_user, Policy.of(policy, options), max_request_bytes, security)
    router = APIRouter(
        tags=["skills"],
        route_class=route_class(settings.challenge),
        # Each scheme is callable, although their base class is not.
        dependencies=[] if security is None else [Security(cast("Any", security))],
    )
    parts = Parts(settings)
    _add_skills(router, parts)
    _add_saving(router, parts)
    add_versions(router, parts)
    add_governance(router, parts)
    add_archives(router, parts)

    # Last, so that every real route is tried first. Without it, an unknown address below a skill would be answered by
    # the application, outside the envelope.
    @router.api_route("/skills/{skill_id}/{rest:path}", methods=[NO_METHOD], include_in_schema=False)
    async def nothing() -> None:
        """Answer every unknown address below a skill, whatever the method.

        Raises:
            SkillNotFoundError: Always.
        """
        raise SkillNotFoundError(NOTHING_HERE)

    return router


def _add_skills(router: APIRouter, parts: Parts) -> None:
    """Add the operations on skills as values."""
    # Aliases inside the function, here and below: FastAPI reads dependencies from annotations, and these belong to one
    # router and its settings.
    service_type = Annotated[SkillService, Depends(parts.service)]
    user_type = Annotated[str | None, Depends(parts.user)]
    caller_type = Annotated[Caller, Depends(parts.caller)]
    writer_type = Annotated[str, Depends(parts.writer)]
    bodiless_caller = Annotated[Caller, Depends(parts.bodiless_caller)]
    raw_body = Annotated[bytes, Depends(parts.raw_body)]
    changes = Annotated[SkillUpdate, Depends(parts.body(SkillUpdate))]

    @router.get("/skills", response_model=Page[SkillSchema], responses=document_errors(403))
    async def list_skills(  # noqa: PLR0913, PLR0917 - query parameters
        service: service_type,
        user: user_type,
        include_public: bool = True,  # noqa: FBT001, FBT002 - a query parameter
        tags: _Tags = None,
        tag_match: Literal["any", "all"] = "any",
        name: _Word | None = None,
        q: _Word | None = None,
        limit: Limit = DEFAULT_PAGE,
        cursor: Cursor = None,
        deleted: bool = False,  # noqa: FBT001, FBT002 - a query parameter
        everything: bool = False,  # noqa: FBT001, FBT002 - a query parameter
    ) -> Response:
        """List the skills that the user may see, without their texts, sorted by name; with `q` the matches, best first.

        `deleted` lists the user's deleted skills that can still be restored; `everything` is for operators.
        """
        page = await service.list_skills(
            user,
            include_public,
            tags,
            tag_match=tag_match,
            name=name,
            q=q,
            limit=limit,
            cursor=cursor,
            deleted=deleted,
            everything=everything,
        )
        return page_of(_show(page), page.next_cursor)

    @router.post(
        "/skills",
        status_code=201,
        response_model=Answer[SkillSchema],
        responses=document_errors(403, 409, 413),
        openapi_extra=_json_body(SkillCreate, "text/markdown", "application/zip"),
    )
    async def create_skill(request: Request, raw: raw_body, service: service_type, user: writer_type) -> Response:
        """Create a skill with its files, all or nothing, from values as JSON, a `SKILL.md`, or a `.zip`.

        The answer leaves out the contents of files.
        """
        media_type = content_type(request)
        if media_type in ZIP_TYPES:
            async with parts.unzip(service, raw, user) as (text, files):
                data = await run_in_thread(len(text), lambda: SkillCreate.from_skill_md(text, files))
                return await answer_skill(await service.create_skill(data, user), code=201)
        if media_type == MARKDOWN_TYPE:
            data = await run_in_thread(len(raw), lambda: SkillCreate.from_skill_md(raw))
        else:
            data = await parts.parse(SkillCreate, request, raw)
        return await answer_skill(await service.create_skill(data, user), code=201)

    @router.get("/skills/{skill_id}", response_model=Answer[SkillSchema], responses=document_errors(404))
    async def get_skill(
        skill_id: UUID,
        request: Request,
        service: service_type,
        user: user_type,
        contents: bool = True,  # noqa: FBT001, FBT002 - a query parameter
    ) -> Response:
        """Get a skill with its files, with or without their contents. The `ETag` names its revision."""
        skill = await service.get_skill(skill_id, user, contents=False)
        # What the client has is not put together again.
        has_it = is_known(request, etag(skill.revision)["ETag"])
        return await answer_skill(skill, read=parts.read_files if contents and not has_it else None)

    @router.put(
        "/skills/{skill_id}",
        response_model=Answer[SkillSchema],
        responses=document_errors(403, 404, 409, 412, 413),
        openapi_extra=_json_body(SkillUpdate),
    )
    async def update_skill(skill_id: UUID, data: changes, caller: caller_type) -> Response:
        """Change a skill; fields that are left out stay as they are. The answer leaves out the contents of files."""
        return await answer_skill(await caller.change(caller.service.update_skill, skill_id, data))

    @router.delete("/skills/{skill_id}", responses=document_errors(403, 404, 409, 412))
    async def delete_skill(
        skill_id: UUID,
        caller: caller_type,
        force: bool = False,  # noqa: FBT001, FBT002 - a query parameter
    ) -> Answer[Deleted]:
        """Delete a skill with its files; it can be restored for a while. If others require it, pass `force`."""
        await caller.change(caller.service.delete_skill, skill_id, force=force)
        return Answer(data=Deleted(id=skill_id))

    @router.post(
        "/skills/{skill_id}/restore",
        response_model=Answer[SkillSchema],
        responses=document_errors(403, 404, 409, 412, 413),
    )
    async def restore_skill(skill_id: UUID, caller: bodiless_caller) -> Response:
        """Restore a deleted skill."""
        return await answer_skill(await caller.change(caller.service.restore_skill, skill_id))


def _add_saving(router: APIRouter, parts: Parts) -> None:
    """Add the operations on files and on whole skills."""
    caller_type = Annotated[Caller, Depends(parts.caller)]
    raw_body = Annotated[bytes, Depends(parts.raw_body)]
    new_file = Annotated[SkillFileCreate, Depends(parts.body(SkillFileCreate))]
    file_path = Annotated[str, Path(max_length=MAX_QUERY_LENGTH, examples=["references/guide.md"])]

    @router.put(
        "/skills/{skill_id}/document",
        response_model=Answer[SkillSchema],
        responses=document_errors(403, 404, 409, 412, 413),
        openapi_extra=_json_body(SkillDocument, "application/zip"),
    )
    async def save_skill(skill_id: UUID, request: Request, raw: raw_body, caller: caller_type) -> Response:
        """Replace a skill's text and files in one step, with a `SKILL.md` and files as JSON, or with a `.zip`."""
        async with AsyncExitStack() as held:
            if content_type(request) in ZIP_TYPES:
                zipped = parts.unzip(caller.service, raw, caller.user, skill_id)
                given: tuple[Any, Any] = await held.enter_async_context(zipped)
            else:
                document = await parts.parse(SkillDocument, request, raw)
                given = document.skill_md, document.files
            return await answer_skill(await caller.change(caller.service.save_skill, skill_id, *given))

    @router.post(
        "/skills/{skill_id}/files",
        status_code=201,
        response_model=Answer[SkillFileSchema],
        responses=document_errors(403, 404, 409, 412, 413),
        openapi_extra=_json_body(SkillFileCreate),
    )
    async def add_file(skill_id: UUID, data: new_file, caller: caller_type) -> Response:
        """Add a file to a skill. The `ETag` names the skill's new revision."""
        return answer_file(await caller.change(caller.service.add_file, skill_id, data), 201)

    @router.put(
        "/skills/{skill_id}/files/{path:path}",
        response_model=Answer[SkillFileSchema],
        responses=document_errors(403, 404, 412, 413),
        openapi_extra=_json_body(SkillFileContent, "application/octet-stream"),
    )
    async def save_file(
        skill_id: UUID, path: file_path, request: Request, raw: raw_body, caller: caller_type
    ) -> Response:
        """Add a file, or replace it in one step: send its bytes, or its content and encoding as JSON.

        A `.json` file is stored as sent. To send one as base64, use the content type
        `application/vnd.deepskills.file+json`.
        """
        content = await run_in_thread(len(raw), lambda: file_content(path, content_type(request), raw))
        # Without validation: the content may be bytes of any kind, and the service checks path and size.
        data = SkillFileCreate.model_construct(path=path, content=content)
        return answer_file(await caller.change(caller.service.save_file, skill_id, data))

    @router.delete("/skills/files/{file_id}", responses=document_errors(403, 404, 412))
    async def delete_file(file_id: UUID, caller: caller_type) -> Answer[Deleted]:
        """Delete a file of a skill. `If-Match` names the skill's revision."""
        await caller.change(caller.service.delete_file, file_id)
        return Answer(data=Deleted(id=file_id))


def _show(skills: Iterable[Skill]) -> list[SkillSchema]:
    """Return skills as they are shown; a row corrupted outside the service is left out, and logged."""
    shown = []
    for skill in skills:
        try:
            shown.append(SkillSchema.of(skill))
        except Exception as error:  # noqa: BLE001 - one skill's failure, whatever it is, costs no other
            logger.error("Skill %s cannot be listed: %s: %s", skill.id, type(error).__name__, error)  # noqa: TRY400 - the message says it all
    return shown


def _json_body(model: type[BaseModel], *other_types: str) -> dict[str, Any]:
    """Return the documentation of a body, which FastAPI does not see because we read it once the writer is known."""
    # Inlined: OpenAPI keeps definitions in another place than pydantic's references name.
    schema = model.model_json_schema()
    content: dict[str, Any] = {"application/json": {"schema": _inline(schema, schema.pop("$defs", {}))}}
    content |= {name: {"schema": {"type": "string", "format": "binary"}} for name in other_types}
    return {"requestBody": {"required": True, "content": content}}


def _inline(schema: Any, definitions: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    """Return a schema with each reference replaced by its definition."""
    if isinstance(schema, list):
        return [_inline(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inline(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {key: _inline(value, definitions) for key, value in schema.items()}


MAX_PAGE = 500
"""How many entries a page has at most."""

DEFAULT_PAGE = 100
"""How many it has by default."""

MAX_DIFF_LENGTH = 1024 * 1024
"""How many characters of a diff are sent."""

MAX_USAGE = 10_000
"""How many counts of usage are sent: the latest."""

MAX_CURSOR_LENGTH = 2_000
"""Longest cursor; it holds a name, which may be in any script."""

_CURSOR = "Where to continue: `next_cursor` of the previous page."

Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="How many at most.")]
Cursor = Annotated[
    str | None,
    Query(max_length=MAX_CURSOR_LENGTH, description=_CURSOR),
]
VersionCursor = Annotated[int | None, Query(ge=1, lt=1 << 63, description=_CURSOR)]
Revision = Annotated[int, Path(ge=1, lt=1 << 63)]


def add_versions(router: APIRouter, parts: Parts) -> None:
    """Add the operations on versions, for those who may write the skill."""
    service_type = Annotated[SkillService, Depends(parts.service)]
    writer_type = Annotated[str, Depends(parts.writer)]
    bodiless_caller = Annotated[Caller, Depends(parts.bodiless_caller)]

    @router.get("/skills/{skill_id}/versions", response_model=Page[VersionSchema], responses=document_errors(403, 404))
    async def list_versions(
        skill_id: UUID,
        service: service_type,
        user: writer_type,
        limit: Limit = DEFAULT_PAGE,
        cursor: VersionCursor = None,
    ) -> Response:
        """List the revisions of a skill, newest first."""
        # One more than the page shows whether another page follows.
        found = await service.list_versions(skill_id, user, before=cursor, limit=limit + 1)
        versions = [VersionSchema.model_validate(change) for change in found[:limit]]
        return page_of(versions, str(versions[-1].revision) if len(found) > limit else None)

    @router.get(
        "/skills/{skill_id}/versions/{revision}",
        response_model=Answer[SkillSchema],
        responses=document_errors(403, 404),
    )
    async def get_version(skill_id: UUID, revision: Revision, service: service_type, user: writer_type) -> Response:
        """Get a skill with its files as it was at a revision."""
        version = await service.get_version(skill_id, revision, user, contents=False)
        return await answer_skill(version, read=parts.read_files, tagged=False)

    @router.post(
        "/skills/{skill_id}/versions/{revision}/restore",
        response_model=Answer[SkillSchema],
        responses=document_errors(403, 404, 409, 412, 413),
    )
    async def restore_version(skill_id: UUID, revision: Revision, caller: bodiless_caller) -> Response:
        """Give a skill the text and files of one of its revisions, as a new revision."""
        return await answer_skill(await caller.change(caller.service.restore_version, skill_id, revision))

    @router.get(
        "/skills/{skill_id}/versions/{old}/diff/{new}",
        response_model=Answer[DiffSchema],
        responses=document_errors(403, 404),
    )
    async def diff_versions(
        skill_id: UUID, old: Revision, new: Revision, service: service_type, user: writer_type
    ) -> Response:
        """Get the changes between two revisions of a skill, as a unified diff."""
        diff = await service.diff_versions(skill_id, old, new, user, max_length=MAX_DIFF_LENGTH)
        shown = DiffSchema(old=old, new=new, diff=diff[:MAX_DIFF_LENGTH], is_cut=len(diff) > MAX_DIFF_LENGTH)
        return as_json(await run_in_thread(len(shown.diff), lambda: wrap(shown)))


def page_of(data: list[Any], next_cursor: str | None) -> Response:
    """Return the answer with a page of a listing."""
    page = Page[Any](data=data, next_cursor=next_cursor)
    return as_json(page.model_dump_json(exclude={"next_cursor"} if next_cursor is None else None).encode())


def add_governance(router: APIRouter, parts: Parts) -> None:
    """Add the operations on who owns, sees and uses skills, for owners and for operators."""
    service_type = Annotated[SkillService, Depends(parts.service)]
    caller_type = Annotated[Caller, Depends(parts.caller)]
    writer_type = Annotated[str, Depends(parts.writer)]
    approval = Annotated[Approval, Depends(parts.body(Approval))]
    hiding = Annotated[Hiding, Depends(parts.body(Hiding))]
    handover = Annotated[Handover, Depends(parts.body(Handover))]
    sharing = Annotated[Sharing, Depends(parts.body(Sharing))]
    purging = Annotated[Purging, Depends(parts.body(Purging))]
    codes = document_errors(403, 404, 412)

    @router.post(
        "/skills/{skill_id}/approve",
        response_model=Answer[SkillSchema],
        responses=codes,
        openapi_extra=_json_body(Approval),
    )
    async def approve_skill(skill_id: UUID, data: approval, service: service_type, user: writer_type) -> Response:
        """Approve a skill as it is at a revision. For operators."""
        # The revision is in the body, because `If-Match` is optional: an approval must name what was looked at.
        return await answer_skill(await service.approve_skill(skill_id, data.revision, user))

    @router.post(
        "/skills/{skill_id}/hide", response_model=Answer[SkillSchema], responses=codes, openapi_extra=_json_body(Hiding)
    )
    async def hide_skill(skill_id: UUID, data: hiding, caller: caller_type) -> Response:
        """Hide a skill from everybody but its owner, or show it again. For operators."""
        return await answer_skill(await caller.change(caller.service.hide_skill, skill_id, hidden=data.hidden))

    @router.post(
        "/skills/{skill_id}/hand-over",
        response_model=Answer[SkillSchema],
        responses=document_errors(403, 404, 409, 412, 413),
        openapi_extra=_json_body(Handover),
    )
    async def hand_over(skill_id: UUID, data: handover, caller: caller_type) -> Response:
        """Make another user the owner of a skill. For operators: only they know who a user id belongs to."""
        # Stricter than the service, which also lets owners hand over: a mistyped id would give a skill away for good.
        await caller.service.check_operator(caller.user)
        return await answer_skill(await caller.change(caller.service.hand_over, skill_id, data.owner_id))

    @router.put(
        "/skills/{skill_id}/share",
        response_model=Answer[SkillSchema],
        responses=codes,
        openapi_extra=_json_body(Sharing),
    )
    async def share_skill(skill_id: UUID, data: sharing, caller: caller_type) -> Response:
        """Set the groups that a skill is shared with, and what their members may do."""
        update = SkillUpdate(shared_with=data.shared_with)
        return await answer_skill(await caller.change(caller.service.update_skill, skill_id, update))

    @router.get("/changes", response_model=Page[ChangeSchema], responses=document_errors())
    async def list_changes(
        service: service_type,
        user: writer_type,
        skill_id: UUID | None = None,
        since: Annotated[int, Query(ge=0, lt=1 << 63)] = 0,
        limit: Limit = DEFAULT_PAGE,
    ) -> Response:
        """List who did what to the user's own skills, oldest first; operators see changes to all skills.

        Continue with `since` set to the last revision of the previous page.
        """
        # No cursor: the log grows at its end, so the last revision of a page is where the next one starts.
        found = await service.list_changes(user, skill_id=skill_id, since=since, limit=limit)
        return page_of([ChangeSchema.model_validate(change) for change in found], None)

    @router.get("/skills/{skill_id}/usage", response_model=Page[UsageCount], responses=document_errors(403, 404))
    async def usage(skill_id: UUID, service: service_type, user: writer_type, since: dt.date | None = None) -> Response:
        """List how often a skill was used, by day, type of event and trigger."""
        found = await service.usage(skill_id, since, user)
        return page_of(found[-MAX_USAGE:], None)

    @router.post(
        "/purge", response_model=Answer[Purged], responses=document_errors(403), openapi_extra=_json_body(Purging)
    )
    async def purge(data: purging, service: service_type, user: writer_type) -> Response:
        """Permanently remove what was deleted before the retention period. For operators."""
        purged = await service.purge(retention=data.retention, versions=data.versions, user_id=user)
        return as_json(wrap(Purged(purged=purged)))


def add_archives(router: APIRouter, parts: Parts) -> None:
    """Add the operations that return skills as `.zip` files."""
    service_type = Annotated[SkillService, Depends(parts.service)]
    user_type = Annotated[str | None, Depends(parts.user)]
    answers: dict[int | str, dict[str, Any]] = {
        **document_errors(404),
        200: {"content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}}},
    }

    @router.get("/skills/{skill_id}/archive", response_class=Response, responses=answers)
    async def get_archive(skill_id: UUID, service: service_type, user: user_type) -> Response:
        """Get a skill as a `.zip`, in one directory with its name."""
        skill = await service.get_skill(skill_id, user, contents=False)
        return await send_archive(only(skill), parts.read_files, skill.name)

    @router.get("/export", response_class=Response, responses=answers)
    async def export(
        service: service_type,
        user: user_type,
        include_public: bool = True,  # noqa: FBT001, FBT002 - a query parameter
    ) -> Response:
        """Get all skills that the user may see as a `.zip`, each in a directory with its name.

        If several skills have the same name, the first is included, as in a listing.
        """
        first = await service.list_skills(user, include_public, limit=MAX_PAGE)

        async def each() -> AsyncIterator[Skill]:
            page, last = first, None
            while True:
                for listed in page:
                    # Skills with the same name follow each other, the one that counts first.
                    if stored_key(listed.name) == last:
                        continue
                    last = stored_key(listed.name)
                    # A session for each skill: a slow client must not hold a connection, or a snapshot, for the whole
                    # export.
                    async with parts.open_service() as own:
                        try:
                            skill = await own.get_skill(listed.id, user, contents=False)
                        except SkillNotFoundError:
                            # Deleted or revoked since it was listed.
                            continue
                    yield skill
                if page.next_cursor is None:
                    return
                # By pages: to read the rows of 100,000 skills at once keeps the event loop for seconds.
                async with parts.open_service() as own:
                    page = await own.list_skills(user, include_public, limit=MAX_PAGE, cursor=page.next_cursor)

        return await send_archive(each(), parts.read_files, "skills")
