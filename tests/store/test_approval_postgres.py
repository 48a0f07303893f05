"""Approvals in LangGraph's PostgreSQL store."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "extensions"))

from test_approval import remembered_across_processes


def test_postgres_remembers_across_processes(tmp_path: Path, postgres_database: str) -> None:
    """One question for all threads and processes that share the database."""
    remembered_across_processes(tmp_path, postgres_database.replace("postgresql+asyncpg", "postgresql"))
