"""What skills were, over HTTP: versions, their differences, and going back to one."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query, Response

from deepskills.store._http_answers import Answer, DiffSchema, Page, VersionSchema, documented_errors
from deepskills.store._http_bodies import beside_the_loop
from deepskills.store._http_parts import IfMatch, Parts, cursor_of, matching, number_of
from deepskills.store._http_shown import as_json, shown_skill, written
from deepskills.store._schemas import SkillSchema
from deepskills.store._service import SkillService

MAX_PAGE = 500
"""How many entries a page has at most."""

DEFAULT_PAGE = 100
"""How many it has where the request does not say."""

MAX_DIFF_LENGTH = 1024 * 1024
"""How many characters of a difference are sent."""

MAX_CURSOR_LENGTH = 2_000
"""Longest cursor; a name in it may be as long as names are, in any script."""

Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="How many at most.")]
Cursor = Annotated[
    str | None, Query(max_length=MAX_CURSOR_LENGTH, description="Where to go on: `next_cursor` of the page before.")
]
Revision = Annotated[int, Path(ge=1, lt=1 << 63)]


def add_versions(router: APIRouter, parts: Parts) -> None:
    """Add the operations on versions. They are for those who may write the skill."""
    service_type = Annotated[SkillService, Depends(parts.service)]
    writer_type = Annotated[str, Depends(parts.writer)]

    @router.get(
        "/skills/{skill_id}/versions", response_model=Page[VersionSchema], responses=documented_errors(403, 404)
    )
    async def list_versions(
        skill_id: UUID,
        service: service_type,
        user: writer_type,
        limit: Limit = DEFAULT_PAGE,
        cursor: Cursor = None,
    ) -> Response:
        """List the revisions of a skill, newest first."""
        before = None if cursor is None else number_of(cursor)
        found = await service.list_versions(skill_id, user, before=before, limit=limit + 1)
        versions = [VersionSchema.model_validate(change) for change in found[:limit]]
        return page_of(versions, cursor_of(versions[-1].revision) if len(found) > limit else None)

    @router.get(
        "/skills/{skill_id}/versions/{revision}",
        response_model=Answer[SkillSchema],
        responses=documented_errors(403, 404),
    )
    async def get_version(skill_id: UUID, revision: Revision, service: service_type, user: writer_type) -> Response:
        """Get a skill as it was at a revision, with its files."""
        return await shown_skill(await service.get_version(skill_id, revision, user), contents=True, tagged=False)

    @router.post(
        "/skills/{skill_id}/versions/{revision}/restore",
        response_model=Answer[SkillSchema],
        responses=documented_errors(403, 404, 409, 412, 413),
    )
    async def restore_version(
        skill_id: UUID,
        revision: Revision,
        service: service_type,
        user: writer_type,
        if_match: IfMatch = None,
    ) -> Response:
        """Give a skill the text and files of one of its revisions, as a new revision."""
        return await shown_skill(
            await matching(
                if_match, lambda known: service.restore_version(skill_id, revision, user, expected_revision=known)
            )
        )

    @router.get(
        "/skills/{skill_id}/versions/{old}/diff/{new}",
        response_model=Answer[DiffSchema],
        responses=documented_errors(403, 404),
    )
    async def diff_versions(
        skill_id: UUID, old: Revision, new: Revision, service: service_type, user: writer_type
    ) -> Response:
        """Get what changed between two revisions of a skill, as a unified diff."""
        diff = await service.diff_versions(skill_id, old, new, user, max_length=MAX_DIFF_LENGTH)
        shown = DiffSchema(old=old, new=new, diff=diff[:MAX_DIFF_LENGTH], is_cut=len(diff) > MAX_DIFF_LENGTH)
        return as_json(await beside_the_loop(len(shown.diff), lambda: written(shown)))


def page_of(data: list[Any], next_cursor: str | None) -> Response:
    """Return the answer with a page of a listing."""
    page = Page[Any](data=data, next_cursor=next_cursor)
    return as_json(page.model_dump_json(exclude={"next_cursor"} if next_cursor is None else None).encode())
