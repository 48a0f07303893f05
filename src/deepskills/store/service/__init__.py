"""`SkillService`: everything that people, agents and operators do with the store goes through here.

A call has up to three steps, always in this order:

1. Who is asking? `Policy.viewer` or `Policy.writer` asks the application's functions.
2. What will be written? Documents are parsed, files hashed and limits checked, in the store's own threads.
3. One transaction (`@reads`, `@writes`, `@counts`) looks the skill up as that viewer sees it, checks their rights and
   the expected revision, and reads or writes.

Steps 1 and 2 may take long and happen outside the transaction; step 3 blocks every other writer and only talks to the
database (see `db/transactions.py`). A write that depends on the skill as it was, such as an update of its frontmatter,
is made only if the skill is still at that revision; otherwise it is prepared again.

Operations stand in one class per subject; what they share is in `base.py`. Rules are in `rules.py`, writing and its
bookkeeping in `changes.py`, statements in `db/`.
"""

from deepskills.store.service.base import (
    ApprovalRecord,
    SkillFigures,
    SkillPage,
    UsageCount,
    export_files,
    first_of_each_name,
)
from deepskills.store.service.governance import Governance
from deepskills.store.service.history import History
from deepskills.store.service.reading import Reading
from deepskills.store.service.usage import Usage

__all__ = [
    "ApprovalRecord",
    "SkillFigures",
    "SkillPage",
    "SkillService",
    "UsageCount",
    "export_files",
    "first_of_each_name",
]


class SkillService(Reading, History, Governance, Usage):
    """Reads and writes skills for users: each sees their own, their groups', the system's and public ones.

    Every call sees the store at one moment, and commits all or nothing. A skill that a user may not see does not exist
    for them: reading or writing it raises `SkillNotFoundError`. Skills are returned detached from the session and do
    not change afterwards; listings leave out texts and files. Every change raises the skill's `revision`; a writer who
    passes `expected_revision` never overwrites a change that they have not seen.

    Args:
        session: A session only for this service, not in a transaction; every call begins and ends its own.
        policy: The application's decisions: limits, groups, operators, approval and so on.
        db: Another name for `session`.
        options: The fields of `Policy` by name, instead of `policy` or in place of what it says.
    """
