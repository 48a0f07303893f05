"""Owners and operators: handing over, hiding, approving, restoring and purging."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from deepskills._skillmd.problems import quoted
from deepskills.store.db.models import Skill, now
from deepskills.store.db.repositories import APPROVED, Replaced
from deepskills.store.db.transactions import reads, writes
from deepskills.store.errors import SkillConflictError, SkillPermissionError
from deepskills.store.rules import (
    UserId,
    Viewer,
    check_id,
    check_revision,
    check_right,
    days_of,
    may_share_with_any,
    no_skill,
    owns,
    require_user,
)
from deepskills.store.service.base import ApprovalRecord, Operations

PURGE_BATCH = 20
"""How many skills, or former texts and files, one transaction of a purge removes: writers wait for all of them."""

PURGE_LOOK = 1_000
"""How many former texts and files a purge looks up at a time, before it takes the lock for each batch of them."""


class Governance(Operations):
    """Decides who owns and sees skills."""

    async def hand_over(
        self,
        skill_id: UUID,
        new_owner_id: UserId,
        user_id: UserId | None,
        *,
        expected_revision: int | None = None,
        system: bool = False,
    ) -> Skill:
        """Make another user the owner of a skill, as its owner or as an operator.

        Raises:
            SkillAuthenticationError: If nobody is signed in, or there is no new owner.
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillPermissionError: If this user may not hand it over.
            SkillStaleError: If its revision is not the expected one.
            SkillConflictError: If the new owner has a skill with that name.
            SkillQuotaError: If the new owner would be over the quota.
        """
        writer = await self._policy.writer(user_id, system=system)
        return await self._give(check_id(skill_id), require_user(new_owner_id), writer, expected_revision)

    @writes
    async def _give(self, skill_id: UUID, owner: str, writer: Viewer, expected_revision: int | None) -> Skill:
        skill = await self._lock(skill_id, writer, "remove", expected_revision)
        if skill.owner_id != owner:
            try:
                await self._changes.check_name_free(skill.name, owner)
            except SkillConflictError:
                if writer.is_operator:
                    raise
                # The name of a private skill is nothing to tell.
                raise SkillConflictError("The skill cannot be handed over to this user. Ask an operator.") from None
            await self._changes.check_quota(owner, skill.size, tells=writer.is_operator)
            # Two entries, because each owner's log shows what happened to their skills.
            await self._changes.advance(skill, writer, "handed-over")
            skill.owner_id = owner
            await self._changes.advance(skill, writer, "received")
        return await self._fresh(skill)

    async def hide_skill(
        self,
        skill_id: UUID,
        user_id: UserId | None = None,
        *,
        hidden: bool = True,
        expected_revision: int | None = None,
        system: bool = False,
    ) -> Skill:
        """Hide a skill from everybody but its owner, or show it again. For operators.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillPermissionError: If the user is not an operator.
            SkillStaleError: If its revision is not the expected one.
        """
        writer = await self._policy.writer(user_id, system=system)
        return await self._hide(check_id(skill_id), writer, expected_revision, hidden=hidden)

    @writes
    async def _hide(self, skill_id: UUID, writer: Viewer, expected_revision: int | None, *, hidden: bool) -> Skill:
        skill = await self._lock(skill_id, writer, "operate", expected_revision)
        if skill.is_hidden != hidden:
            skill.is_hidden = hidden
            await self._changes.advance(skill, writer, "hidden" if hidden else "shown")
            await self._changes.reveal(skill)
        return await self._fresh(skill)

    async def approve_skill(
        self, skill_id: UUID, revision: int, user_id: UserId | None = None, *, system: bool = False
    ) -> Skill:
        """Approve a skill's text and files at `revision`. For operators; a later change needs a new approval.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillPermissionError: If the user is not an operator; or, with `"by-others"`, owns the skill or made its
                last change.
            SkillStaleError: If the skill is no longer at that revision.
        """
        writer = await self._policy.writer(user_id, system=system)
        return await self._approve(check_id(skill_id), writer, revision)

    @writes
    async def _approve(self, skill_id: UUID, writer: Viewer, revision: int) -> Skill:
        skill = await self._lock(skill_id, writer, "operate", revision)
        # An operator who signs in may hide a system skill, and nothing else.
        check_right(skill, writer, "remove")
        if await self._must_leave_approval(skill, writer):
            raise SkillPermissionError(
                f"The skill {quoted(skill.name)}, or its last change, is your own. Another operator has to approve it."
            )
        if not skill.is_approved:
            skill.is_approved = True
            await self._changes.advance(skill, writer, APPROVED)
            await self._changes.reveal(skill)
        return await self._fresh(skill)

    async def approval_of(self, skill_id: UUID, user_id: UserId | None = None) -> ApprovalRecord:
        """Return when a skill was last approved, whether or not it changed since, and whether the user may approve it.

        Raises:
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillPermissionError: If the user may read it but not write it.
        """
        viewer = await self._policy.viewer(user_id)
        async with self._transactions.snapshot():
            skill = await self._with_history(check_id(skill_id), viewer)
            may_approve = viewer.is_operator and not await self._must_leave_approval(skill, viewer)
            return ApprovalRecord(await self._history.last_approval(skill.id), may_approve)

    async def restore_skill(
        self, skill_id: UUID, user_id: UserId | None, *, expected_revision: int | None = None, system: bool = False
    ) -> Skill:
        """Restore a deleted skill, within the retention period. Its name counts as newly taken.

        It is no longer shared with groups that its owner has left.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
            SkillNotFoundError: If this user has no such deleted skill, or it was deleted too long ago.
            SkillPermissionError: If an operator removed it, and this user is not one.
            SkillConflictError: If the owner has another skill with that name by now.
        """
        writer = await self._policy.writer(user_id, system=system)
        return await self._restore(check_id(skill_id), writer, expected_revision)

    @writes
    async def _restore(self, skill_id: UUID, writer: Viewer, expected_revision: int | None) -> Skill:
        skill = await self._skills.get(skill_id, writer, files=False, deleted=True)
        is_theirs = skill is not None and (owns(skill, writer) or writer.is_operator)
        oldest = now() - self._policy.retained
        if skill is None or not is_theirs or skill.deleted_at is None or skill.deleted_at < oldest:
            raise no_skill(str(skill_id))
        check_right(skill, writer, "remove")
        check_revision(skill, expected_revision)
        deleted = await self._history.change(skill.revision)
        # An owner must not be able to restore what an operator took down.
        if not writer.is_operator and deleted is not None and deleted.user_id != skill.owner_id:
            raise SkillPermissionError(f"An operator removed the skill {quoted(skill.name)}. Ask them to restore it.")
        if owns(skill, writer) and not may_share_with_any(writer, self._policy.limits):
            # Groups that the owner has left in the meantime do not get it again.
            skill.shared_with = {group: skill.shared_with[group] for group in skill.shared_with.keys() & writer.groups}
        await self._changes.check_name_free(skill.name, skill.owner_id)
        await self._changes.advance(skill, writer, "restored")
        skill.deleted_at = None
        # Others may have taken the name in the meantime; with its old age, the skill would take it from them.
        await self._changes.reveal(skill, again=True)
        return await self._fresh(skill)

    async def check_operator(self, user_id: UserId | None) -> None:
        """Check that a user is an operator.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
            SkillPermissionError: If the user is not one.
        """
        writer = await self._policy.writer(user_id)
        if not writer.is_operator:
            raise SkillPermissionError("Only operators may do this. Ask one of them.")

    async def purge(
        self, *, retention: float | None = None, versions: float | None = None, user_id: UserId | None = None
    ) -> int:
        """Permanently remove what was deleted before the retention period. For the operator's code, and for operators.

        It works in small batches, each in its own transaction, so that other writers get their turn in between.

        Args:
            retention: Days, instead of the service's own.
            versions: Also remove texts and files that were replaced more than this many days ago.
            user_id: The operator who asks, for the log; `None` for the operator's code.

        Returns:
            How many skills were removed.

        Raises:
            SkillPermissionError: If the user is not an operator.
        """
        if user_id is not None:
            await self.check_operator(user_id)
        writer = await self._policy.viewer(user_id, system=user_id is None)
        moment = now() - (self._policy.retained if retention is None else days_of(retention))
        forgotten = None if versions is None else now() - days_of(versions)
        purged = 0
        while found := await self._purge(writer, moment):
            purged += found
        while forgotten is not None and (rows := await self._forgettable(forgotten)):
            for start in range(0, len(rows), PURGE_BATCH):
                await self._forget(rows[start : start + PURGE_BATCH])
        return purged

    @writes
    async def _purge(self, writer: Viewer, moment: datetime) -> int:
        skills = await self._skills.find_deleted(moment, PURGE_BATCH)
        if skills:
            await self._changes.log_purge(skills, writer)
            await self._skills.purge(skills)
        return len(skills)

    @reads
    async def _forgettable(self, moment: datetime) -> list[Replaced]:
        return await self._history.forgettable(moment, PURGE_LOOK)

    @writes
    async def _forget(self, rows: Sequence[Replaced]) -> None:
        # Another purge may have been faster; what it deleted is not there to be deleted again.
        await self._history.forget(rows)
