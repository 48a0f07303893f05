"""`SkillService`: rules, transactions and permissions; every call is one transaction, and asks first who may."""

from deepskills.store._governance import GovernanceService


class SkillService(GovernanceService):
    """Reads and writes skills for users: each sees what is theirs, their groups', the system's or public.

    Every call sees one moment of the store, and commits all or nothing. What one may not see does not exist for them:
    reading or writing it raises `SkillNotFoundError`. Skills come back detached from the session and stay as they were;
    listings are light. Every change raises the skill's `revision`; a writer who passes `expected_revision` never
    overwrites what it does not know.

    Args:
        session: A session for this service alone, not in a transaction; every call begins and ends its own.
        limits: How large skills may be, which files they may hold, and how much each owner may keep.
        groups_of: From a user to the groups that the user is in, sync or async; without, nobody is in any.
        is_operator: Whether a user may list, hide, approve and remove any skill, sync or async.
        approval: Show a public skill to others only once an operator approved its present revision.
        retention: For how many days a deleted skill can be restored.
    """
