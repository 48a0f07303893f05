"""Reads for the runs of agents: names and descriptions of all visible skills, and texts and files on load.

A run must be cheap whatever the size of the library. It reads no bodies, and if nothing changed since the user's last
run, it reads one row: the store keeps a stamp of its last change, and the visible skills have a mark.
"""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from deepskills._errors import SkillNotFoundError
from deepskills._skillmd.names import stored_key
from deepskills._types import MAX_DIRECTORIES
from deepskills.store.db.listings import Filter, SkillSummary
from deepskills.store.db.models import Skill, SkillFile, document_of
from deepskills.store.db.transactions import reads
from deepskills.store.document import Document
from deepskills.store.rules import TRUSTED, Viewer
from deepskills.store.service import SkillService

logger = logging.getLogger("deepskills")

MAX_HEADS = MAX_DIRECTORIES
"""How many skills a run sees at most: the user's own first, then the system's, their groups', and public ones."""


@dataclass(frozen=True)
class Overview:
    """The visible skills at one moment, in order: the first with a name counts."""

    stamp: int
    mark: str
    heads: tuple[SkillSummary, ...]
    unpinned: tuple[tuple[str, int], ...] = ()
    """Names with the revisions to which they are pinned, if that version does not exist for this user."""


class AgentReader(SkillService):
    """Reads for the runs of agents, which see what their user sees, chosen by a filter."""

    @reads
    async def overview(
        self, viewer: Viewer, chosen: Filter, pins: Mapping[str, int], known: Overview | None
    ) -> Overview:
        """Return the visible skills; if nothing changed, the known ones, after one query."""
        # A pinned version may be visible when the skill itself is not.
        reader = _reader_of(viewer, is_pinned=bool(pins))
        stamp, mark = await self._listings.state(reader, chosen, known.stamp if known is not None else None)
        # Nothing changed in the store, or nothing that this user sees.
        if known is not None and mark in (None, known.mark):
            return known if stamp == known.stamp else replace(known, stamp=stamp)
        # One more, by which discovery learns that the listing is cut.
        heads = await self._listings.heads(viewer, chosen, MAX_HEADS + 1)
        unpinned: list[tuple[str, int]] = []
        if pins:
            pinned, unpinned = await self._read_pinned(viewer, chosen, pins)
            names = {stored_key(name) for name in pins}
            ids = {head.id for head in pinned}
            heads = pinned + [h for h in heads if h.id not in ids and stored_key(h.name) not in names]
        return Overview(stamp, mark or "", tuple(heads), tuple(unpinned))

    @reads
    async def documents(self, heads: Collection[SkillSummary], viewer: Viewer, chosen: Filter) -> dict[UUID, bytes]:
        """Return the `SKILL.md` files of skills that can still be seen, by primary key."""
        found: dict[UUID, bytes] = {}
        by_id = {head.id: head for head in heads}
        skills: list[Skill] = []
        # Two queries at most: a pinned version is judged by its own approval.
        for is_pinned in {head.is_pinned for head in heads}:
            ids = [head.id for head in heads if head.is_pinned is is_pinned]
            skills += await self._listings.documents(ids, _reader_of(viewer, is_pinned=is_pinned), chosen)
        for skill in skills:
            try:
                found[skill.id] = (await self._document(skill, by_id[skill.id])).render()
            except Exception as error:  # noqa: BLE001 - one skill's failure, whatever it is, costs no other
                logger.error("Skill %s cannot be served: %s: %s", skill.id, type(error).__name__, error)  # noqa: TRY400 - the message says it all
        return found

    @reads
    async def paths(self, head: SkillSummary, viewer: Viewer, chosen: Filter) -> dict[str, int]:
        """Return the paths of a skill's files, each with its size; none if it can no longer be seen."""
        if not await self._is_there(head, viewer, chosen):
            return {}
        return {file.path: file.size for file in await self._files_of(head)}

    @reads
    async def text_sizes(self, heads: Collection[SkillSummary]) -> dict[UUID, int]:
        """Return how many bytes the instructions of skills have, as they are now."""
        return {skill_id: size for skill_id, (_, size) in (await self._listings.lengths([h.id for h in heads])).items()}

    @reads
    async def content(self, head: SkillSummary, path: str, viewer: Viewer, chosen: Filter) -> bytes | None:
        """Return one file of a skill, if it can still be seen."""
        if not await self._is_there(head, viewer, chosen):
            return None
        files = [file for file in await self._files_of(head) if file.path == path]
        return next(iter((await self._history.contents(files)).values()), None)

    async def _files_of(self, head: SkillSummary) -> list[SkillFile]:
        return await self._history.list_at(head.id, *[head.revision] * head.is_pinned)

    async def _is_there(self, head: SkillSummary, viewer: Viewer, chosen: Filter) -> bool:
        """Whether a skill can still be seen and, if it is pinned, that version of it is kept."""
        skills = await self._listings.light([head.id], _reader_of(viewer, is_pinned=head.is_pinned), chosen)
        return bool(skills) and (not head.is_pinned or skills[0].kept_since <= head.revision)

    async def _document(self, skill: Skill, head: SkillSummary) -> Document:
        text = await self._text_at(skill, head.revision) if head.is_pinned else document_of(skill)
        if text is None:
            raise SkillNotFoundError(f"revision {head.revision}, to which it is pinned, has expired")
        return text

    async def _read_pinned(
        self, viewer: Viewer, chosen: Filter, pins: Mapping[str, int]
    ) -> tuple[list[SkillSummary], list[tuple[str, int]]]:
        """Return the pinned versions of skills that can still be seen, and those that cannot."""
        found: list[SkillSummary] = []
        absent: list[tuple[str, int]] = []
        for name, revision in pins.items():
            change = await self._history.change(revision)
            reader = _reader_of(viewer, is_pinned=True)
            skills = [] if change is None else await self._listings.documents([change.skill_id], reader, chosen)
            is_shown = bool(skills) and await self._is_approved(skills[0], revision, viewer, chosen)
            head = await self._version_head(skills[0], revision) if is_shown else None
            if head is None or stored_key(head.name) != stored_key(name):
                absent.append((name, revision))
            else:
                found.append(head)
        return found, absent

    async def _is_approved(self, skill: Skill, revision: int, viewer: Viewer, chosen: Filter) -> bool:
        """Whether a version needs no approval for the viewer, or has one, whatever happened to the skill since."""
        if not viewer.needs_approval:
            return True
        familiar = replace(chosen, reasons=chosen.reasons & TRUSTED)
        return bool(await self._listings.light([skill.id], viewer, familiar)) or await self._history.was_approved(
            skill, revision
        )

    async def _version_head(self, skill: Skill, revision: int) -> SkillSummary | None:
        text = await self._text_at(skill, revision)
        if text is None:
            return None
        return SkillSummary(
            id=skill.id,
            name=text.name,
            revision=revision,
            stamp=revision,
            encoding=text.encoding,
            frontmatter=text.frontmatter,
            description=text.description,
            tags=tuple(text.tags),
            is_pinned=True,
        )


def _reader_of(viewer: Viewer, *, is_pinned: bool) -> Viewer:
    """Return the viewer of a skill: a pinned version has its own approval, whatever the skill is now."""
    return replace(viewer, needs_approval=False) if is_pinned else viewer
