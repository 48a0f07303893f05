"""Approvals in LangGraph's PostgreSQL store."""

import sys
from pathlib import Path

from langgraph.store.postgres import PostgresStore

sys.path.append(str(Path(__file__).parents[1] / "extensions"))

from test_approval import remembered_in


def test_postgres_remembers(tmp_path: Path, postgres_database: str) -> None:
    """One question for all threads that share the database."""
    with PostgresStore.from_conn_string(postgres_database.replace("postgresql+asyncpg", "postgresql")) as store:
        store.setup()
        remembered_in(store, tmp_path)
