"""What clients of other makers find below `/.well-known/agent-skills/`: an index of skills, and each as one file.

It holds exactly what somebody who is not signed in may see, whatever the caller, so that the answer is one for all. An
application whose `current_user` refuses such people refuses them here as well.
"""

import hashlib
from collections.abc import Iterable
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Response
from fastapi.responses import JSONResponse

from deepskills._errors import SkillNotFoundError
from deepskills._io.cache import BoundedCache
from deepskills._types import MAX_DESCRIPTION_LENGTH
from deepskills.store.db.engine import SessionFactory
from deepskills.store.db.models import Skill, document_of
from deepskills.store.errors import SkillBusyError
from deepskills.store.http.answers import NOTHING_HERE, Spool, new_spool, only, route_class, send_spool, zip_skills
from deepskills.store.http.requests import CurrentUser, Parts, Settings
from deepskills.store.rules import Policy
from deepskills.store.service import SkillService, first_of_each_name
from deepskills.store.workers import Turns, in_flight, run_in_thread

ADDRESS = "/.well-known/agent-skills"
"""Where clients look."""

SCHEMA = "https://schemas.agentskills.io/discovery/0.2.0/schema.json"
"""The release of the format."""

MAX_INDEXED = 500
"""How many skills the index names."""

MAX_INDEXED_BYTES = 200 * 1024 * 1024
"""How many bytes they have together; an index without digests cannot be written, so each is read once."""

MAX_ARTIFACT_BYTES = 50 * 1024 * 1024
"""Largest skill that is in the index; clients refuse larger ones."""

_DIGEST_BYTES = 2_000_000
_WAIT_SECONDS = 30.0

_Kind = Literal["md", "zip"]
_MEDIA_TYPES: dict[_Kind, str] = {"md": "text/markdown; charset=utf-8", "zip": "application/zip"}


def create_discovery_router(session_factory: SessionFactory, current_user: CurrentUser, policy: Policy) -> APIRouter:
    """Return the routes of the index and of what it names, to be included under `ADDRESS`."""
    settings = Settings(session_factory, current_user, policy)
    parts = Parts(settings)
    router = APIRouter(route_class=route_class(settings.challenge), dependencies=[Depends(parts.user)])
    service_type = Annotated[SkillService, Depends(parts.service)]
    listing = _Index(parts)

    @router.api_route("/index.json", methods=["GET", "HEAD"], include_in_schema=False)
    async def index(service: service_type) -> Response:
        """List the skills that everybody may see, each with its digest."""
        return JSONResponse({"$schema": SCHEMA, "skills": await listing.entries(service)})

    @router.api_route("/{skill_id}/{revision}.{kind}", methods=["GET", "HEAD"], include_in_schema=False)
    async def artifact(skill_id: UUID, revision: int, kind: _Kind, service: service_type) -> Response:
        """Return a skill as the index names it; a skill that has changed since has another address.

        Raises:
            SkillNotFoundError: If there is no such skill, or no longer this revision of it.
        """
        found = await _artifact(service, parts, skill_id, revision)
        if found[0] != kind:
            found[1].close()
            raise SkillNotFoundError(NOTHING_HERE)
        return send_spool(found[1], _MEDIA_TYPES[kind])

    return router


class _Index:
    """The index, whose digests are made once for each revision of a skill."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._digests: BoundedCache[tuple[UUID, int], tuple[_Kind, str]] = BoundedCache(_DIGEST_BYTES)
        self._turns = Turns()

    async def entries(self, service: SkillService) -> list[dict[str, Any]]:
        """Return an entry for each skill that everybody may see.

        Raises:
            SkillBusyError: If the index is being made for others for too long.
        """
        listed = _choose(await service.list_skills(None, limit=MAX_INDEXED))
        try:
            # One at a time: the others find the digests made.
            async with self._turns.turn(_WAIT_SECONDS):
                found = [await self._entry(skill) for skill in listed]
        except TimeoutError:
            raise SkillBusyError("The index is being made. Try again in a moment.") from None
        return [entry for entry in found if entry is not None]

    async def _entry(self, listed: Skill) -> dict[str, Any] | None:
        known = self._digests.get((listed.id, listed.revision))
        if known is None:
            # A session for each: none is held for the whole index.
            async with self._parts.open_service() as service:
                try:
                    kind, spool = await _artifact(service, self._parts, listed.id, listed.revision)
                except SkillNotFoundError:
                    # Changed or withdrawn since it was listed.
                    return None
            with spool:
                size = spool.tell()
                spool.seek(0)
                digest = await run_in_thread(size, lambda: hashlib.file_digest(spool, "sha256").hexdigest())
            known = kind, digest
            self._digests.put((listed.id, listed.revision), known)
        kind, digest = known
        return {
            "name": listed.name,
            "type": "skill-md" if kind == "md" else "archive",
            "description": listed.description[:MAX_DESCRIPTION_LENGTH],
            "url": f"{listed.id}/{listed.revision}.{kind}",
            "digest": f"sha256:{digest}",
        }


def _choose(skills: Iterable[Skill]) -> list[Skill]:
    """Return the skills that the index has room for, one of each name."""
    chosen: list[Skill] = []
    size = 0
    for skill in first_of_each_name(skills):
        # Nor does another skill of that name stand in for one that is too large.
        if skill.size > MAX_ARTIFACT_BYTES:
            continue
        size += skill.size
        if size > MAX_INDEXED_BYTES:
            break
        chosen.append(skill)
    return chosen


async def _artifact(service: SkillService, parts: Parts, skill_id: UUID, revision: int) -> tuple[_Kind, Spool]:
    """Return a skill as one file, the same bytes each time: its `SKILL.md`, or an archive if it has other files."""
    skill = await service.get_skill(skill_id, None, contents=False)
    if skill.size > MAX_ARTIFACT_BYTES or skill.revision != revision:
        raise SkillNotFoundError(NOTHING_HERE)
    if skill.files:
        return "zip", await zip_skills(only(skill), parts.read_files, alone=True)
    with in_flight.hold(skill.size):
        spool, hold_more = new_spool()
        hold_more(skill.size)
        spool.write(document_of(skill).render())
    return "md", spool
