"""Bounds what searches on PostgreSQL read beside the index.

PostgreSQL collects new entries of such an index in a list that every search reads from end to end, up to 4 MB by
default. With 100,000 skills a search took half a second until the next VACUUM, and whoever filled the list wrote it
into the index while all other writers waited. A short list costs writers little, and searches next to nothing.
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

INDEX = "ix_deepskills_skills_words"
LIMIT = 256
"""In kilobytes."""


def upgrade() -> None:
    """Shorten the list, and write what is in it into the index."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"ALTER INDEX {INDEX} SET (gin_pending_list_limit = {LIMIT})")
        op.execute(f"SELECT gin_clean_pending_list('{INDEX}')")


def downgrade() -> None:
    """Go back to PostgreSQL's own limit."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"ALTER INDEX {INDEX} RESET (gin_pending_list_limit)")
