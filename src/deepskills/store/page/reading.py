"""Shows lists, skills, files, versions, diffs and the agent's prompt on the page. Nothing here writes.

What a user may do is worked out only to offer it (`Visit.may`); the service checks it again when they do it.
"""

import datetime as dt
import hashlib
import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import quote
from uuid import UUID

from fastapi import APIRouter, Query, Response
from langchain.agents.middleware.types import ModelRequest
from langchain_core.messages import HumanMessage, SystemMessage
from langgraph.runtime import Runtime

from deepskills._errors import SkillFileNotFoundError, SkillNotFoundError
from deepskills._io.cache import BoundedCache
from deepskills._loading.budget import count_text_tokens
from deepskills._skillmd.problems import quoted
from deepskills.store.agent.adapter import DatabaseSkillAdapter
from deepskills.store.db.models import Skill, SkillFile, document_of, now
from deepskills.store.http.answers import only, send_archive, send_file
from deepskills.store.http.requests import Settings
from deepskills.store.page import shown
from deepskills.store.page.markdown import Place, render
from deepskills.store.page.site import (
    FILE_POLICY,
    FILES,
    Addresses,
    AnyVisit,
    PageRoute,
    SignedVisit,
    Visit,
    revision_of,
)
from deepskills.store.rules import MAX_TAGS, Viewer, may_share_with_any
from deepskills.store.service import SkillFigures
from deepskills.store.workers import run_in_thread

router = APIRouter(route_class=PageRoute)

PAGE_SIZE = 50
"""How many skills or versions a page lists."""

MAX_SHOWN_BYTES = 512 * 1024
"""Up to this size a file is shown; a larger one can be downloaded."""

MAX_DIFF_LENGTH = 512 * 1024
"""How many characters of a diff are read."""

MAX_REVIEWED_BYTES = 2 * 1024 * 1024
"""How much of a skill's text and files one review shows; what is larger is named, to be looked at by itself."""

WORK_OF_MARKDOWN = 64
"""How much more work a character of Markdown can be than one of plain text."""

SORTED = 500
"""How many skills a list sorts or filters itself, by what the database does not sort by."""

MAX_ANONYMOUS = 50
"""How many skills the prompt of nobody shows: it costs everybody else no more than a list."""

MAX_PROMPTED = 500
"""How many skills the prompt of somebody who is signed in shows."""

MAX_PROMPT_LENGTH = 200_000
"""How much of an agent's prompt is shown."""

_MARKDOWN = (".md", ".markdown")
_ROW = 300
"""About how many characters a row of a list has."""

_Word = Annotated[str, Query(max_length=1_000)]
_Cursor = Annotated[str | None, Query(max_length=2_000)]

Scope = Literal["all", "agent", "waiting", "everybody"]
"""Which skills a list shows: all that the user may see, those that the user's agents get, those that wait for an
approval, or everybody's, for operators."""


@dataclass(frozen=True)
class Row:
    """A skill in a list."""

    skill: Skill
    audience: list[shown.Badge]
    status: list[shown.Badge]
    owner: str
    tokens: int | None
    loads: int | None


def row_of(skill: Skill, viewer: Viewer, figures: SkillFigures | None) -> Row:
    """Return a skill as a list shows it."""
    loads = None if figures is None else figures.loads
    return Row(
        skill,
        shown.audience(skill),
        shown.status(skill, viewer),
        shown.owner_of(skill, viewer),
        None if figures is None else figures.tokens,
        None if loads is None else sum(loads.values()),
    )


Sort = Literal["name", "used", "changed", "tokens"]
"""The order of a list: by name, or with the most used, the last changed or the largest first."""

_ORDERS: dict[Sort, Callable[[Row], float]] = {
    "used": lambda row: row.loads or 0,
    "changed": lambda row: row.skill.revision,
    "tokens": lambda row: row.tokens or 0,
}


def is_shown(row: Row, audience: str, status: str) -> bool:
    """Whether a skill is meant for an audience and has a status; empty ones are all."""
    wanted = {"status": status, "audience": audience}
    texts = {"status": {item.text for item in row.status}, "audience": {item.text for item in row.audience}}
    if audience == "groups":
        del wanted["audience"]
        if not row.skill.shared_with:
            return False
    return all(not word or word in texts[key] for key, word in wanted.items())


async def in_html(text: str, place: Place) -> str | None:
    """Return Markdown as HTML; `None` if it is too long. A text can take far more time than its length suggests."""
    key = hashlib.sha256(text.encode("utf-8", "replace")).digest(), place
    known = _rendered.get(key)
    if known is None:
        known = await run_in_thread(len(text) * WORK_OF_MARKDOWN, lambda: render(text, place))
        if known is not None:
            _rendered.put(key, known)
    return known


_rendered: BoundedCache[tuple[bytes, Place], str] = BoundedCache(8 * 1024 * 1024)
"""Texts as HTML: who reads one that is slow to render again and again costs others nothing."""


def place_of(at: Addresses, skill: Skill | None, directory: str = "") -> Place:
    """Return where a text in a skill is; without a skill, its links lead nowhere."""
    if skill is None:
        return Place("", "")
    paths = frozenset(file.path for file in skill.files)
    return Place(at.skill(skill.id, "/files/"), at.skill(skill.id), directory, paths)


# -- Lists -------------------------------------------------------------------------------------------------------------


@router.get("/")
async def skills(  # noqa: PLR0913, PLR0917 - query parameters
    visit: AnyVisit,
    q: _Word = "",
    tag: Annotated[list[_Word] | None, Query(max_length=MAX_TAGS)] = None,
    scope: Scope = "all",
    sort: Sort = "name",
    audience: Literal["", "private", "groups", "public", "system"] = "",
    status: Literal["", "approved", "needs approval", "hidden"] = "",
    cursor: _Cursor = None,
) -> Response:
    """Show a list of skills."""
    viewer = visit.viewer
    is_sorted_here = bool(sort != "name" or audience or status)
    # What waits for approval is everybody's to an operator, and to anybody else their own.
    page = await visit.service.list_skills(
        visit.user,
        include_public=scope != "agent",
        tags=tag,
        tag_match="all",
        q=q.strip() or None,
        limit=SORTED if is_sorted_here else PAGE_SIZE,
        cursor=cursor,
        everything=scope == "everybody" or (scope == "waiting" and viewer.is_operator),
        unapproved=scope == "waiting",
    )
    today = now().date()
    since = today - dt.timedelta(days=shown.USAGE_DAYS - 1)
    figures = await visit.service.figures([skill.id for skill in page], since, visit.user)
    rows = [row_of(skill, viewer, figures.get(skill.id)) for skill in page]
    rows = [row for row in rows if is_shown(row, audience, status)]
    if sort != "name":
        rows.sort(key=_ORDERS[sort], reverse=True)
    filters = {"q": q, "tag": tag or [], "scope": "" if scope == "all" else scope}
    filters |= {"sort": "" if sort == "name" else sort, "audience": audience, "status": status}
    return await visit.page(
        "list.html",
        size=len(rows) * _ROW,
        rows=rows,
        most=max((row.loads or 0 for row in rows), default=0) or 1,
        next_cursor=page.next_cursor,
        cursor=cursor,
        filters=filters,
        q=q,
        tags=tag or [],
        scope=scope,
        sorted_here=SORTED if is_sorted_here and (page.next_cursor or cursor) else None,
    )


@router.get("/deleted")
async def deleted(visit: SignedVisit, scope: Literal["own", "everybody"] = "own", cursor: _Cursor = None) -> Response:
    """Show deleted skills that can be restored."""
    page = await visit.service.list_skills(
        visit.user, deleted=True, limit=PAGE_SIZE, cursor=cursor, everything=scope == "everybody"
    )
    retention = visit.site.settings.policy.retention
    return await visit.page(
        "deleted.html", skills=list(page), scope=scope, next_cursor=page.next_cursor, retention=retention
    )


@router.get("/prompt")
async def prompt(
    visit: AnyVisit,
    public: bool = False,  # noqa: FBT001, FBT002 - a query parameter
) -> Response:
    """Show what an agent's prompt says of skills."""
    most = MAX_ANONYMOUS if visit.user is None else MAX_PROMPTED
    page = await visit.service.list_skills(visit.user, public, limit=most)
    chosen = [skill.id for skill in page] if page.next_cursor else None
    text = await prompt_of(visit.site.settings, visit.user, include_public=public, skill_ids=chosen)
    return await visit.page(
        "prompt.html",
        size=len(text),
        text=text[:MAX_PROMPT_LENGTH],
        is_cut=len(text) > MAX_PROMPT_LENGTH or chosen is not None,
        tokens=count_text_tokens(text),
        public=public,
    )


@router.get("/static/{name}")
async def static(name: str) -> Response:
    """Return one of the page's own files."""
    file = FILES.get(name)
    if file is None:
        raise SkillNotFoundError("There is nothing at this address.")
    # The address changes with the content, so a browser may cache it forever.
    return Response(file.content, 200, {"cache-control": "public, max-age=31536000, immutable"}, file.media_type)


async def prompt_of(
    settings: Settings, user: str | None, *, include_public: bool, skill_ids: list[UUID] | None = None
) -> str:
    """Return the section of the system prompt that a user's agent gets, rendered by the agent's own middleware."""
    adapter: Any = DatabaseSkillAdapter(
        user_id=user,
        skill_ids=skill_ids,
        db_session_factory=settings.session_factory,
        include_public=include_public,
        policy=settings.policy,
    )
    state: Any = {"messages": []}
    state |= await adapter.abefore_agent(state, Runtime()) or {}
    request: Any = ModelRequest(
        model=_NO_MODEL,
        messages=[HumanMessage("")],
        system_message=SystemMessage(""),
        state=state,
        # The section mentions files only if the agent's tools can read them.
        tools=list(adapter.tools),
    )
    return str(adapter.modify_request(request).system_message.text).strip()


_NO_MODEL: Any = None
"""No model is called; the request is only rendered."""


# -- Skills ------------------------------------------------------------------------------------------------------------


@router.get("/skills/{skill_id}")
async def skill(visit: AnyVisit, skill_id: str) -> Response:
    """Show a skill."""
    return await skill_page(visit, skill_id)


@router.get("/skills/{skill_id}/files/{path:path}")
async def file(visit: AnyVisit, skill_id: str, path: str) -> Response:
    """Show a file of a skill."""
    found = await visit.skill(skill_id)
    listed = list_file(found, path)
    text = html = None
    if listed.is_text and listed.size <= MAX_SHOWN_BYTES:
        text = (await visit.service.read_file(found.id, listed.path, visit.user)).decode("utf-8", "replace")
    if text is not None and listed.path.lower().endswith(_MARKDOWN):
        html = await in_html(text, place_of(visit.at, found, posixpath.dirname(listed.path)))
    size = len(text or "") + len(html or "")
    return await visit.page("file.html", size=size, skill=found, file=listed, text=text, html=html)


@router.get("/skills/{skill_id}/download/{path:path}")
async def download(visit: AnyVisit, skill_id: str, path: str) -> Response:
    """Return a file as a download."""
    listed = list_file(await visit.skill(skill_id), path)
    name = quote(posixpath.basename(path), safe="")
    headers = {
        "content-disposition": f"attachment; filename*=UTF-8''{name}",
        "content-security-policy": FILE_POLICY,
    }
    return await send_file(listed, visit.parts.read_files, headers)


@router.get("/skills/{skill_id}/archive")
async def archive(visit: AnyVisit, skill_id: str) -> Response:
    """Return a skill as a `.zip`."""
    found = await visit.skill(skill_id)
    return await send_archive(only(found), visit.parts.read_files, found.name)


async def skill_page(visit: Visit, skill_id: str, code: int = 200, refusal: str = "") -> Response:
    """Return the page of a skill, with the refusal if a form on it was refused."""
    service, user, viewer = visit.service, visit.user, visit.viewer
    found = await visit.skill(skill_id)
    may = visit.may(found)
    # As in the service: what was removed from a skill, and how it is used, is not for all its readers.
    knows_history = may["write"] or may["operate"]
    today = now().date()
    since = today - dt.timedelta(days=shown.USAGE_DAYS - 1)
    use = shown.use_from(await service.usage(found.id, since, user), today) if knows_history else None
    approval = await service.approval_of(found.id, user) if knows_history else None
    state = shown.approval_state(found, viewer, approval)
    html = await in_html(found.content, place_of(visit.at, found))
    seen = await review(visit, found, state) if state is not None and state.may_approve else None
    return await visit.page(
        "skill.html",
        code=code,
        size=len(found.content) + len(html or "") + (0 if seen is None else seen.size),
        skill=found,
        html=html,
        review=seen,
        cost=await run_in_thread(len(found.content), lambda: shown.cost_of(found)),
        use=use,
        knows_history=knows_history,
        badges=shown.audience(found) + shown.status(found, viewer),
        owner=shown.owner_of(found, viewer),
        approval=state,
        groups=shown.group_choices(found, viewer) if may["own"] else [],
        names_groups=may["own"] and may_share_with_any(viewer, visit.site.settings.policy.limits),
        requires=document_of(found).requires,
        refusal=refusal,
    )


@dataclass(frozen=True)
class Review:
    """What somebody who approves a skill has to see: all that an agent would get."""

    source: str | None
    """The `SKILL.md` as written; `None` if it is too large."""

    files: list[shown.ReviewedFile]
    changes: shown.Diff | None
    """What changed since the last approval; `None` if there was none, or it is no longer kept."""

    @property
    def unseen(self) -> int:
        """How many files are too large to be shown, or are not text."""
        return (self.source is None) + sum(file.text is None for file in self.files)

    @property
    def size(self) -> int:
        """About how much there is to show."""
        texts = [self.source, *(file.text for file in self.files)]
        return sum(len(text or "") for text in texts) + (self.changes.length if self.changes else 0)


async def review(visit: Visit, skill: Skill, state: shown.ApprovalState) -> Review:
    """Return what an agent would get of a skill, and what changed since it was last approved."""
    source: str | None = await run_in_thread(len(skill.content), lambda: shown.write_document(skill))
    left = MAX_REVIEWED_BYTES - len(source or "")
    if left < 0:
        source, left = None, MAX_REVIEWED_BYTES
    fitting = []
    # Whatever it is: one stray byte makes a script binary, and it still runs.
    for file in sorted(skill.files, key=lambda file: (not file.is_text, file.path)):
        if file.size <= left:
            left -= file.size
            fitting.append(file)
    contents = dict(zip([file.path for file in fitting], await visit.parts.read_files(fitting), strict=True))
    files = [shown.ReviewedFile.of(file, contents.get(file.path)) for file in skill.files]
    known = state.last
    changes = None if known is None else await changes_since(visit, skill, known.revision)
    return Review(source, sorted(files, key=lambda file: file.file.path), changes)


async def changes_since(visit: Visit, skill: Skill, known: int) -> shown.Diff | None:
    """Return what changed in a skill since a revision that somebody looked at; `None` if it is no longer kept."""
    if known >= skill.revision:
        return shown.diff_of("")
    try:
        return await difference_of(visit, skill, known, skill.revision)
    except SkillNotFoundError:
        return None


async def difference_of(visit: Visit, skill: Skill, old: int, new: int) -> shown.Diff:
    """Return the changes between two revisions of a skill."""
    text = await visit.service.diff_versions(skill.id, old, new, visit.user, max_length=MAX_DIFF_LENGTH)
    return await run_in_thread(len(text), lambda: shown.diff_of(text))


def list_file(skill: Skill, path: str) -> SkillFile:
    """Return the file of a skill at a path, without its content.

    Raises:
        SkillFileNotFoundError: If there is none at that path.
    """
    for file in skill.files:
        if file.path == path:
            return file
    raise SkillFileNotFoundError(f"The skill has no file {quoted(path)}.")


# -- Versions ----------------------------------------------------------------------------------------------------------


@router.get("/skills/{skill_id}/versions")
async def versions(
    visit: AnyVisit, skill_id: str, before: Annotated[int | None, Query(ge=1, lt=1 << 63)] = None
) -> Response:
    """List the versions of a skill."""
    found = await visit.skill(skill_id)
    # One more than the page shows whether another page follows.
    changes = await visit.service.list_versions(found.id, visit.user, before=before, limit=PAGE_SIZE + 1)
    return await visit.page(
        "versions.html",
        skill=found,
        changes=changes[:PAGE_SIZE],
        before=changes[PAGE_SIZE - 1].revision if len(changes) > PAGE_SIZE else None,
        is_first=before is None,
    )


@router.get("/skills/{skill_id}/versions/{revision}")
async def version(visit: AnyVisit, skill_id: str, revision: str) -> Response:
    """Show a skill as it was."""
    found = await visit.skill(skill_id)
    former = await visit.service.get_version(found.id, revision_of(revision), visit.user, contents=False)
    text = await run_in_thread(len(former.content), lambda: shown.write_document(former))
    return await visit.page("version.html", size=len(text), skill=found, former=former, text=text)


@router.get("/skills/{skill_id}/compare")
async def compare(visit: AnyVisit, skill_id: str, old: str, new: str) -> Response:
    """Show what changed between two versions."""
    found = await visit.skill(skill_id)
    # Two columns of radio buttons: people pick them in either order.
    first, last = sorted((revision_of(old), revision_of(new)))
    changes = await difference_of(visit, found, first, last)
    return await visit.page("compare.html", size=changes.length, skill=found, old=first, new=last, changes=changes)
