"""Creates the tables of the store."""

from alembic import op

from deepskills.store.db.models import SEARCH_TABLE, Base

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables, their indexes and the counter's row."""
    # As the models say, while no later revision exists. Before one does, this is written out: the models will change
    # with that revision, and this one must not.
    Base.metadata.create_all(op.get_bind())


def downgrade() -> None:
    """Drop the tables."""
    if op.get_bind().dialect.name == "sqlite":
        op.execute(f"DROP TABLE {SEARCH_TABLE}")
    Base.metadata.drop_all(op.get_bind())
