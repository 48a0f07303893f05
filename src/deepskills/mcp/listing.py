"""Knows the skills of one MCP server: as they were listed, as they were added by URI, and as loads got them.

Everything here runs on the home loop of the server's connection, and one listing is shared by all who ask. There are
three memories. *Listed* is what `skills/list` showed last; within its time to live it is not requested again. *Added*
is what somebody added by URI; it stays even if a listing does not have it. *Held* is what a load got: while that skill
is in use, only the held entry says which files exist and what they contain, whatever the server lists by then.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from deepskills._errors import SkillNotFoundError, SkillsError
from deepskills._io.cache import BoundedCache
from deepskills._skillmd.problems import problem, quoted
from deepskills._skillmd.text import one_line
from deepskills._types import MAX_DIRECTORIES, SkillProblem
from deepskills.mcp.connections import Connection, SharedAttempt
from deepskills.mcp.entries import MAX_URI_LENGTH, EntryError, ServedSkill, name_served, parse_entry
from deepskills.mcp.wire import INVALID_PARAMS, ConnectionLostError, ServerError, content_of, cursors

logger = logging.getLogger("deepskills")

MAX_ENTRIES = MAX_DIRECTORIES
"""How many entries of a listing are used."""

MAX_PAGES = 2_000
"""How many pages of a listing are asked for."""

MAX_HELD_BYTES = 64 * 1024 * 1024
"""How much memory the entries of a server may take: those of a listing, those added by URI and those of loads, each."""

LISTING_TIMEOUTS = 4
"""How long a whole listing may take, as a multiple of one request's time limit."""

MAX_ADDED = 1_000
"""How many skills of one server may be added by URI."""

ENTRIES_A_TURN = 20
"""How many entries are checked before other work of the loop gets its turn."""

MAX_TTL_SECONDS = 24 * 3600.0
"""How long a listing is believed at most, whatever the server says."""

MAX_PROBLEMS = 100
"""How many entries of one listing get a problem each."""


class MismatchError(SkillsError):
    """A server sent something other than what it had listed."""


@dataclass(frozen=True)
class Listed:
    """The result of a listing."""

    skills: Mapping[str, ServedSkill] = field(default_factory=dict)
    """The skills by path below the label."""

    problems: tuple[SkillProblem, ...] = ()
    failure: str | None = None
    """Why the request failed."""

    expires: float = 0.0
    """When it expires, on the monotonic clock."""

    names: Mapping[str, ServedSkill] = field(default_factory=dict)
    """The skills by the names they get here."""


class Server:
    """One server and what is known about its skills."""

    def __init__(self, label: str, connection: Connection, *, dynamic: bool, timeout: float) -> None:
        self.label = label
        self.connection = connection
        self._dynamic = dynamic
        self._timeout = timeout
        self._relisting = SharedAttempt(self._relist)
        self._listed: Listed | None = None
        self._added: dict[str, ServedSkill] = {}
        self._held: BoundedCache[str, ServedSkill] = BoundedCache(MAX_HELD_BYTES, lambda skill: skill.weight)

    @property
    def known(self) -> Mapping[str, ServedSkill]:
        """The skills that are known without asking, by path below the label."""
        return self._listed.skills if self._listed is not None else {}

    async def listing(self) -> Listed:
        """Return the skills of the server, from memory for as long as the server allows."""
        listed = self._listed
        if listed is not None and time.monotonic() < listed.expires:
            return listed
        try:
            return await self._relisting.result()
        except SkillsError as error:
            # What was known is used until the server can be asked.
            return Listed(self.known, failure=f"{self.label}: {error}")

    async def _relist(self) -> Listed:
        self._listed = await self._ask()
        return self._listed

    async def close(self) -> None:
        """Close the connection that was opened here, and give up a listing that waits for it."""
        self._relisting.give_up()
        await self.connection.close()

    def forget_failure(self) -> None:
        """Ask the server again at the next use, although it failed a moment ago."""
        self._relisting.forget_failure()

    async def _ask(self) -> Listed:
        peer = await self.connection.peer()
        if not peer.serves_skills:
            return self._merge(_Gathered(self), [self.problem_of(EntryError("mcp-not-declared"))])
        gathered = _Gathered(self)
        try:
            async with asyncio.timeout(self._timeout * LISTING_TIMEOUTS):
                await self._gather(gathered)
        except TimeoutError:
            gathered.cut(f"the server had not sent the last page after {self._timeout * LISTING_TIMEOUTS:g} seconds")
        return self._merge(gathered, await self._refresh(gathered))

    async def _gather(self, gathered: "_Gathered") -> None:
        cursor, seen = None, set[str]()
        for _page in range(MAX_PAGES):
            answer = await self.connection.request("skills/list", {"cursor": cursor} if cursor is not None else {})
            await gathered.take(answer)
            if gathered.cut_reason is not None:
                return None
            try:
                cursor = cursors(answer, seen)
            except ServerError as error:
                return gathered.cut(str(error))
            if cursor is None:
                return None
            seen.add(cursor)
        return gathered.cut(f"it has more than {MAX_PAGES} pages")

    async def _refresh(self, gathered: "_Gathered") -> list[SkillProblem]:
        """Request again the skills that were added by URI and are not listed; return what is wrong with them."""
        problems = []
        listed = {skill.uri for skill in gathered.skills.values()}
        for uri in [uri for uri in self._added if uri not in listed]:
            try:
                self._added[uri], ttl = await self._fetch_tree(uri)
                gathered.keep_for(ttl)
            except EntryError as error:
                del self._added[uri]
                problems.append(self.problem_of(error))
            except ServerError as error:
                if error.code == INVALID_PARAMS:
                    del self._added[uri]
                logger.warning("Cannot refresh a skill of the MCP server %r: %s", self.label, one_line(str(error)))
        return problems

    def _merge(self, gathered: "_Gathered", problems: Iterable[SkillProblem]) -> Listed:
        skills = dict(gathered.skills)
        listed = {skill.uri for skill in skills.values()}
        for uri, skill in self._added.items():
            if uri not in listed:
                skills.setdefault(skill.path, skill)
        found = (*gathered.problems(), *problems)
        return Listed(skills, found, expires=gathered.expires, names=name_served(skills.values()))

    async def add(self, uri: str) -> ServedSkill:
        """Add a skill by its URI, whether it is listed or not.

        Raises:
            SkillNotFoundError: If the server does not know it.
            SkillsError: If the server cannot be asked, or the skill cannot be used.
        """
        await self.listing()
        weight = sum(skill.weight for skill in self._added.values())
        if uri not in self._added and (len(self._added) >= MAX_ADDED or weight > MAX_HELD_BYTES):
            raise SkillsError(f"At most {MAX_ADDED} skills of one server can be added.")
        peer = await self.connection.peer()
        if not peer.serves_skills:
            raise SkillsError(self.problem_of(EntryError("mcp-not-declared"))["message"])
        try:
            skill, _ttl = await self._fetch_tree(uri)
        except EntryError as error:
            raise SkillsError(self.problem_of(error)["message"]) from None
        except ServerError as error:
            if error.code == INVALID_PARAMS:
                raise SkillNotFoundError(f"The MCP server {self.label!r} has no skill {quoted(uri)}.") from None
            raise
        # Two URIs may decode to the same path, and a path must name one file.
        taken = self.known.get(skill.path)
        if taken is not None and taken.uri != uri:
            raise SkillsError(
                f"{quoted(uri)} would be at the path of {quoted(taken.uri)}; only one of them can be used."
            )
        self._added[uri] = skill
        self._replace(skill)
        return skill

    def _replace(self, skill: ServedSkill) -> None:
        before = self._listed or Listed()
        skills = {**before.skills, skill.path: skill}
        self._listed = replace(before, skills=skills, names=name_served(skills.values()))

    async def _fetch_tree(self, uri: str) -> tuple[ServedSkill, float]:
        answer = await self.connection.request("skills/get", {"uri": uri})
        skill = parse_entry(self.label, answer.get("skill"))
        # Otherwise a server could answer with another skill than the one that was approved.
        if skill.uri != uri:
            raise EntryError("mcp-entry-invalid", uri, reason="the server answered with another skill")
        self.check(skill)
        return skill, ttl_of(answer)

    def check(self, skill: ServedSkill) -> None:
        """Refuse a dynamic skill unless dynamic skills are allowed.

        Raises:
            EntryError: If it is refused.
        """
        if skill.is_dynamic and not self._dynamic:
            raise EntryError("mcp-dynamic", skill.uri)

    # Loads and reads.

    def hold(self, skill: ServedSkill) -> None:
        """Remember a skill as a load got it."""
        self._held.put(skill.digest, skill)

    async def find_held(self, digest: str, uri: str | None) -> ServedSkill | None:
        """Return the skill that a load got; in another process, if the server still has exactly that."""
        found = self._held.get(digest)
        if found is not None:
            return found
        known = next((skill for skill in self.known.values() if skill.digest == digest), None)
        if known is None and uri is not None:
            try:
                known, _ttl = await self._fetch_tree(uri)
            except EntryError:
                return None
            except ServerError as error:
                # "Unknown" is an answer; an outage must not be mistaken for it.
                if error.code != INVALID_PARAMS:
                    raise
                return None
        if known is None or known.digest != digest:
            return None
        self.hold(known)
        return known

    async def read(self, skill: ServedSkill, path: str) -> bytes:
        """Return the content of a file, compared with the skill's entry.

        Raises:
            MismatchError: If it is not what the entry says; the entry is fetched again for the next load.
            SkillsError: If the server cannot be asked.
        """
        uri = skill.file_uri(path)
        if uri is None and skill.is_dynamic:
            uri = f"{skill.uri.rpartition('/')[0]}/{quote(path)}"
        if uri is None:
            raise MismatchError(self._mismatch(skill, path, "the file is not in the skill's entry"))
        try:
            content = content_of(await self.connection.request("resources/read", {"uri": uri}), uri)
            reason = skill.mismatch(path, content)
        except ServerError as error:
            # If the read itself was refused, such as "not now", that says nothing about the file.
            if error.code not in (None, INVALID_PARAMS):
                raise
            content, reason = b"", str(error)
        if reason is None:
            return content
        # Before the error is raised, so that the next load finds the current entry and asks for approval again.
        await self._recover(skill)
        raise MismatchError(self._mismatch(skill, path, reason))

    async def _recover(self, skill: ServedSkill) -> None:
        """Fetch an entry again after it turned out to be wrong, so that a later load can use the current one."""
        try:
            fresh, _ttl = await self._fetch_tree(skill.uri)
        except (EntryError, ServerError, ConnectionLostError) as error:
            uri = self.connection.mask(skill.uri)
            logger.warning("Cannot fetch %s again from the MCP server %r: %s", uri, self.label, one_line(str(error)))
            # The known entry is wrong, so the next listing asks again, whatever its time to live.
            if self._listed is not None:
                self._listed = replace(self._listed, expires=0.0)
            return
        if skill.uri in self._added:
            self._added[skill.uri] = fresh
        self._replace(fresh)

    def _mismatch(self, skill: ServedSkill, path: str, reason: str) -> str:
        found = self.problem_of(EntryError("mcp-mismatch", skill.uri, file=quoted(path), reason=reason))
        return f"mcp-mismatch: {found['message']}"

    def problem_of(self, error: EntryError) -> SkillProblem:
        """Return the problem that says why something of the server is not used, without what the server echoes."""
        where = f"/{self.label}: {error.uri}"[:MAX_URI_LENGTH] if error.uri else f"/{self.label}"
        found = problem(where, error.code, label=quoted(self.label), **error.values)
        mask = self.connection.mask
        return {**found, "path": mask(found["path"]), "message": mask(found["message"])}


class _Gathered:
    """The entries of a listing, as its pages arrive."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.skills: dict[str, ServedSkill] = {}
        self.cut_reason: str | None = None
        """Why no more pages are taken."""

        self._problems: list[SkillProblem] = []
        self._more = 0
        self._ttl = MAX_TTL_SECONDS
        self._asked = time.monotonic()
        self._seen = 0
        self._weight = 0

    @property
    def expires(self) -> float:
        """When the listing expires: with its shortest-lived page, counted from the first request."""
        return self._asked + self._ttl

    def keep_for(self, seconds: float) -> None:
        """Believe the listing no longer than this."""
        self._ttl = min(self._ttl, seconds)

    async def take(self, answer: Mapping[str, Any]) -> None:
        """Take the entries of a page."""
        self.keep_for(ttl_of(answer))
        entries = answer.get("skills")
        if not isinstance(entries, list):
            self.cut("a page has no list of skills")
            return
        for entry in entries:
            self._seen += 1
            # Checked on a loop that is not ours alone: other work gets its turn.
            if self._seen % ENTRIES_A_TURN == 0:
                await asyncio.sleep(0)
            if self._seen > MAX_ENTRIES or self._weight > MAX_HELD_BYTES:
                self.cut(f"only the first {self._seen - 1} of its entries were taken")
                return
            try:
                self._add(parse_entry(self._server.label, entry))
            except EntryError as error:
                self._note(error)

    def _add(self, skill: ServedSkill) -> None:
        self._server.check(skill)
        self._weight += skill.weight
        taken = self.skills.setdefault(skill.path, skill)
        # A listing that changes while it is read can have the same entry on two pages.
        if taken is skill or taken.digest == skill.digest:
            return
        how = "twice, in different words" if taken.uri == skill.uri else f"at the path of {quoted(taken.uri)}"
        raise EntryError("mcp-entry-invalid", skill.uri, reason=f"it is listed {how}")

    def _note(self, error: EntryError) -> None:
        if len(self._problems) < MAX_PROBLEMS:
            self._problems.append(self._server.problem_of(error))
        else:
            self._more += 1

    def cut(self, reason: str) -> None:
        """Take no more pages."""
        self.cut_reason = reason

    def problems(self) -> list[SkillProblem]:
        """Return what is wrong with the listing and its entries."""
        errors = []
        if self._more:
            errors.append(EntryError("mcp-entry-invalid", reason=f"{self._more} more are wrong too"))
        if self.cut_reason is not None:
            errors.append(EntryError("mcp-listing-cut", reason=self.cut_reason))
        return [*self._problems, *map(self._server.problem_of, errors)]


def ttl_of(answer: Mapping[str, Any]) -> float:
    """Return for how many seconds an answer may be cached; 0 if it does not say."""
    ttl = answer.get("ttlMs")
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not ttl > 0:
        return 0.0
    return min(float(ttl) / 1000, MAX_TTL_SECONDS)
