"""Former versions of skills, what changed, and who hears of it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from uuid import UUID

from deepskills._types import SKILL_FILE
from deepskills.store.changes import Text, Values
from deepskills.store.db.engine import Notices
from deepskills.store.db.models import FileContent, Skill, SkillChange, SkillFile, document_of
from deepskills.store.db.transactions import reads
from deepskills.store.document import difference
from deepskills.store.errors import SkillBusyError
from deepskills.store.rules import UserId, Viewer, check_id, knows_change, was_seen
from deepskills.store.service.base import sizes_of
from deepskills.store.service.writing import Writing
from deepskills.store.workers import INLINE_BYTES, Turns, run_in_thread

WATCH_SECONDS = 1.0
"""How often a watcher polls if the database sends no notifications."""

MAX_COMPARED_BYTES = 8 * 1024 * 1024
"""How much of two versions is read for a diff; beyond that, files are only reported as different."""


COMPARISON_SECONDS = 60.0
"""How long somebody waits for the comparisons of others."""

_comparisons = Turns()


class History(Writing):
    """Reads and restores former versions, and yields changes."""

    async def list_versions(
        self,
        skill_id: UUID,
        user_id: UserId | None = None,
        *,
        before: int | None = None,
        limit: int = 100,
        system: bool = False,
    ) -> list[SkillChange]:
        """Return a skill's revisions, newest first, each with who did what and when.

        Who is neither its owner nor an operator is told only of those at which they could see the skill.

        Args:
            skill_id: Which skill.
            user_id: Who is asking.
            before: Only revisions before this one, to continue from the last of an earlier call.
            limit: How many at most.
            system: The operator's code asks.

        Raises:
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillPermissionError: If the user may read it but not write it.
        """
        viewer = await self._policy.viewer(user_id, system=system)
        async with self._transactions.snapshot():
            skill = await self._with_history(check_id(skill_id), viewer)
            found: list[SkillChange] = []
            while len(found) < limit:
                rows = await self._history.changes(skill_id=skill.id, before=before, limit=limit, newest_first=True)
                found += [change for change in rows if knows_change(skill, change.audience, viewer)]
                if len(rows) < limit:
                    break
                before = rows[-1].revision
            return found[:limit]

    async def get_version(
        self,
        skill_id: UUID,
        revision: int,
        user_id: UserId | None = None,
        *,
        contents: bool = True,
        system: bool = False,
    ) -> Skill:
        """Return a skill as it was at one of its revisions, with its files, with or without their contents.

        Raises:
            SkillNotFoundError: If there is no such skill that this user may see, or it had no such revision.
            SkillPermissionError: If the user may read it but not write it.
        """
        viewer = await self._policy.viewer(user_id, system=system)
        async with self._transactions.snapshot():
            skill = await self._with_history(check_id(skill_id), viewer)
            found = await self._version_of(skill, revision, viewer, contents=contents)
        await self._note_read(found.id, viewer)
        return found

    async def diff_versions(
        self,
        skill_id: UUID,
        old: int,
        new: int,
        user_id: UserId | None = None,
        *,
        max_length: int | None = None,
        system: bool = False,
    ) -> str:
        """Return the changes between two revisions of a skill, as a unified diff of all its files.

        Args:
            skill_id: Which skill.
            old: The earlier revision.
            new: The later one.
            user_id: Who is asking.
            max_length: Stop after about this many characters; `None` for no limit.
            system: The operator's code asks.

        Raises:
            SkillNotFoundError: If there is no such skill that this user may see, or it had no such revision.
            SkillPermissionError: If the user may read it but not write it.
        """
        viewer = await self._policy.viewer(user_id, system=system)
        async with AsyncExitStack() as held:
            try:
                await held.enter_async_context(_comparisons.turn(COMPARISON_SECONDS))
            except TimeoutError:
                raise SkillBusyError("Too many comparisons are asked for at once. Try again in a moment.") from None
            # Read in its turn: those who wait hold no contents in memory.
            before, after = await self._compare(check_id(skill_id), viewer, old, new)
            await self._note_read(check_id(skill_id), viewer)
            # In a thread, however short: how long it takes depends on more than the length.
            return await run_in_thread(INLINE_BYTES + 1, lambda: difference(before, after, max_length))

    @reads
    async def _compare(self, skill_id: UUID, viewer: Viewer, old: int, new: int) -> list[dict[str, bytes]]:
        """Return the files that differ between two versions; beyond `MAX_COMPARED_BYTES`, with a placeholder."""
        skill = await self._with_history(skill_id, viewer)
        texts = [(await self._text_of_version(skill, revision, viewer))[1] for revision in (old, new)]
        listed = [
            {file.path: file for file in await self._history.list_at(skill.id, revision)} for revision in (old, new)
        ]
        found: list[dict[str, bytes]] = [{SKILL_FILE: document.render()} for document in texts]
        left = MAX_COMPARED_BYTES
        read: list[tuple[dict[str, bytes], SkillFile]] = []
        for path in sorted({*listed[0], *listed[1]}):
            pair = [files.get(path) for files in listed]
            # Equal by digest, so neither content is read.
            if len({None if file is None else file.digest for file in pair}) == 1:
                continue
            left -= sum(file.size for file in pair if file is not None)
            for file, files in zip(pair, found, strict=True):
                if file is not None and left >= 0:
                    read.append((files, file))
                elif file is not None:
                    # In place of content that is not read: not UTF-8, so that it counts as binary and as different.
                    files[path] = b"\xff" + file.digest.encode()
            left = max(left, -1)
        contents = await self._history.contents(file for _, file in read)
        for files, file in read:
            files[file.path] = contents.get((file.id, file.since), b"")
        return found

    async def restore_version(
        self,
        skill_id: UUID,
        revision: int,
        user_id: UserId | None,
        *,
        expected_revision: int | None = None,
        system: bool = False,
    ) -> Skill:
        """Give a skill the text and files of one of its revisions, as a new revision; who sees it stays the same.

        Returns:
            The skill, without the contents of its files.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
            SkillNotFoundError: If there is no such skill that this user may see, or it had no such revision.
            SkillPermissionError: If it is not this user's to change.
            SkillStaleError: If its revision is not the expected one.
            SkillConflictError: If the owner has another skill of the name that it had.
        """
        writer = await self._policy.writer(user_id, system=system)

        def prepare(version: Skill) -> Values:
            files = [FileContent.of(file.path, file.data) for file in version.files]
            # What was allowed then may not be now.
            self._policy.limits.check_files(sizes_of(files))
            return Values("reverted", Text.of(document_of(version)), files)

        async with self._transactions.snapshot():
            skill = await self._lock(check_id(skill_id), writer, "write", expected_revision)
            version = await self._version_of(skill, revision, writer)
        values = await run_in_thread(version.size, lambda: prepare(version))
        # The same whatever the skill is by then.
        return await self._rewrite(skill.id, writer, lambda _skill: values, expected_revision, size=0)

    async def list_changes(
        self,
        user_id: UserId | None = None,
        *,
        skill_id: UUID | None = None,
        since: int = 0,
        limit: int = 100,
        system: bool = False,
    ) -> list[SkillChange]:
        """Return who did what to which skill, oldest first: to the user's own skills, or to all for an operator.

        The log is append-only, and a lower revision never appears after a higher one.

        Args:
            user_id: Who is asking.
            skill_id: Only changes to this skill.
            since: Only changes after this revision.
            limit: How many at most.
            system: The operator's code asks.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
        """
        viewer = await self._policy.writer(user_id, system=system)
        owner = None if viewer.is_operator else viewer.user
        chosen = None if skill_id is None else check_id(skill_id)
        async with self._transactions.snapshot():
            return await self._history.changes(skill_id=chosen, owner_id=owner, since=since, limit=limit, reads=True)

    async def watch(
        self,
        user_id: UserId | None = None,
        *,
        since: int | None = None,
        interval: float = WATCH_SECONDS,
        system: bool = False,
    ) -> AsyncIterator[SkillChange]:
        """Yield changes as they happen, to the user's own skills and those they may see; for operators, to all.

        On PostgreSQL they arrive at once, on SQLite after at most `interval`. The service does nothing else while it
        watches, so give it its own session.

        Args:
            user_id: The user; `None` for nobody, who gets changes to public and system skills.
            since: Start after this revision; `None` starts now.
            interval: How often to poll, in seconds, if the database sends no notifications.
            system: The operator's code watches.
        """
        viewer = await self._policy.viewer(user_id, system=system)
        async with Notices(self._session, interval) as notices:
            last = await self.last_revision() if since is None else since
            while True:
                changes = await self._changes_since(last, viewer)
                for change, is_seen in changes:
                    last = change.revision
                    if is_seen:
                        yield change
                if not changes:
                    await notices.wait()
                    # Groups may have changed in the meantime.
                    viewer = await self._policy.viewer(user_id, system=system)

    @reads
    async def last_revision(self) -> int:
        """Return the revision of the store's last change."""
        return await self._history.last_revision()

    @reads
    async def _changes_since(self, last: int, viewer: Viewer) -> list[tuple[SkillChange, bool]]:
        """Return the next changes, each with whether the viewer may know of it."""
        changes = await self._history.changes(since=last)
        if viewer.is_operator:
            return [(change, True) for change in changes]
        own = {change.revision for change in changes if viewer.user is not None and change.owner_id == viewer.user}
        # Of a skill that became visible later, nothing is told that happened before: not even its former names.
        heard = {c.skill_id for c in changes if c.revision not in own and was_seen(c.audience, viewer)}
        seen = await self._listings.visible_ids(heard, viewer) if heard else set()
        return [(c, c.revision in own or (c.skill_id in seen and was_seen(c.audience, viewer))) for c in changes]
