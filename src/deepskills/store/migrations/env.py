"""Run by Alembic with the connection that `deepskills.store.migrations` hands over."""

from alembic import context
from sqlalchemy import Connection

from deepskills._errors import SkillsError
from deepskills.store import Base
from deepskills.store.migrations import VERSION_TABLE


def run() -> None:
    """Run the revisions on the connection.

    Raises:
        SkillsError: If Alembic was started by other means.
    """
    connection = context.config.attributes.get("connection")
    if not isinstance(connection, Connection):
        raise SkillsError("Migrate with deepskills.store.migrations.upgrade(engine), which opens the connection.")
    context.configure(connection=connection, target_metadata=Base.metadata, version_table=VERSION_TABLE)
    with context.begin_transaction():
        context.run_migrations()


run()
