"""The service's calls about whose a skill is and whether it is there: owners, operators, deleted skills."""

from datetime import timedelta
from uuid import UUID

from deepskills._skillmd.problems import quoted
from deepskills.store._base import now
from deepskills.store._checks import UserId, check_revision, check_right, known_id, no_skill, signed_in
from deepskills.store._errors import SkillPermissionError
from deepskills.store._models import Skill
from deepskills.store._records import APPROVED
from deepskills.store._versions import VersionsService


class GovernanceService(VersionsService):
    """Hands skills over, hides, approves, restores and purges them."""

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
            SkillAuthenticationError: If nobody is signed in, or nobody is to own it.
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillPermissionError: If it is not this user's to give.
            SkillStaleError: If its revision is not the expected one.
            SkillConflictError: If the new owner has a skill of that name.
            SkillQuotaError: If the new owner would keep too much.
        """
        writer = await self._writer(user_id, system=system)
        owner = signed_in(new_owner_id)

        async def work() -> Skill:
            skill = await self._locked(known_id(skill_id), writer, "remove", expected_revision)
            if skill.owner_id != owner:
                await self._check_name_free(skill.name, owner)
                await self._check_quota(owner, skill.size)
                skill.owner_id = owner
                await self._advance(skill, writer, "handed-over")
            return await self._fresh(skill)

        return await self._write(work)

    async def hide_skill(
        self,
        skill_id: UUID,
        user_id: UserId | None = None,
        *,
        hidden: bool = True,
        expected_revision: int | None = None,
        system: bool = False,
    ) -> Skill:
        """Hide a skill from all but its owner, or show it again. For operators.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillPermissionError: If the user is not an operator.
            SkillStaleError: If its revision is not the expected one.
        """
        writer = await self._writer(user_id, system=system)

        async def work() -> Skill:
            skill = await self._locked(known_id(skill_id), writer, "operate", expected_revision)
            if skill.is_hidden != hidden:
                skill.is_hidden = hidden
                await self._advance(skill, writer, "hidden" if hidden else "shown")
            return await self._fresh(skill)

        return await self._write(work)

    async def approve_skill(
        self, skill_id: UUID, revision: int, user_id: UserId | None = None, *, system: bool = False
    ) -> Skill:
        """Approve a skill's text and files as they are at `revision`. For operators; a later change needs a new one.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
            SkillNotFoundError: If there is no such skill that this user may see.
            SkillPermissionError: If the user is not an operator.
            SkillStaleError: If the skill has another revision than the one that was looked at.
        """
        writer = await self._writer(user_id, system=system)

        async def work() -> Skill:
            skill = await self._locked(known_id(skill_id), writer, "operate", revision)
            if not skill.is_approved:
                skill.is_approved = True
                await self._advance(skill, writer, APPROVED)
            return await self._fresh(skill)

        return await self._write(work)

    async def restore_skill(
        self, skill_id: UUID, user_id: UserId | None, *, expected_revision: int | None = None, system: bool = False
    ) -> Skill:
        """Bring a deleted skill back, within the retention. Its name counts as newly taken: others may have had it.

        Raises:
            SkillAuthenticationError: If nobody is signed in.
            SkillNotFoundError: If this user deleted no such skill, or too long ago.
            SkillPermissionError: If an operator removed it, and this user is none.
            SkillConflictError: If the owner has another skill of that name by now.
            SkillQuotaError: If the owner would keep too much.
        """
        writer = await self._writer(user_id, system=system)

        async def work() -> Skill:
            known = known_id(skill_id)
            skill = await self._skills.get(known, writer, files=False, deleted=True)
            owns = skill is not None and (skill.owner_id == writer.user or writer.is_operator)
            if skill is None or not owns or skill.deleted_at is None or skill.deleted_at < now() - self._retention:
                raise no_skill(str(known))
            check_right(skill, writer, "remove")
            check_revision(skill, expected_revision)
            deleted = await self._history.change(skill.id, skill.revision)
            if not writer.is_operator and deleted is not None and deleted.user_id != skill.owner_id:
                raise SkillPermissionError(
                    f"An operator removed the skill {quoted(skill.name)}. Ask them to restore it."
                )
            await self._check_name_free(skill.name, skill.owner_id)
            await self._check_quota(skill.owner_id, skill.size)
            revision = await self._advance(skill, writer, "restored")
            skill.deleted_at = None
            skill.name_since = revision
            for share in skill.share_rows:
                share.since = revision
            return await self._fresh(skill)

        return await self._write(work)

    async def purge(self, *, retention: float | None = None, versions: float | None = None) -> int:
        """Remove for good what was deleted longer ago than the retention. For the operator's code.

        Args:
            retention: In days, in place of the service's own.
            versions: Also forget texts and files that were replaced more than this many days ago.

        Returns:
            How many skills were removed.
        """
        kept = self._retention if retention is None else timedelta(days=retention)

        async def work() -> int:
            skills = await self._skills.deleted_before(now() - kept)
            system = await self._viewer(None, system=True)
            for skill in skills:
                await self._advance(skill, system, "purged")
            await self._session.flush()
            if skills:
                await self._skills.purge(skills)
            if versions is not None:
                await self._history.forget(now() - timedelta(days=versions))
            return len(skills)

        return await self._write(work)
