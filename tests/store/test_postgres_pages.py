"""The pages about PostgreSQL, run on PostgreSQL; the other tests of the documentation run them without a server."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from store_support import create_database, drop_database

ROOT = Path(__file__).parents[2]
HOW_TO = ROOT / "docs" / "how-to"


@pytest.fixture
def database(postgres_server: str) -> Iterator[str]:
    url = create_database(postgres_server)
    yield url
    drop_database(postgres_server, url)


def code_of(page: str) -> list[str]:
    text = (HOW_TO / page).read_text(encoding="utf-8")
    return re.findall(r"^```python(?: [^\n]*)?\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def run_code(*blocks: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile("\n".join(blocks), "page", "exec"), names)
    return names


def test_the_skill_store_of_the_page_runs(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What users may see of a store in PostgreSQL is what the page asserts, not of the SQLite that it falls back to."""
    shutil.copytree(ROOT / "examples" / "skills", tmp_path / "skills")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SKILLS_DATABASE", database)
    assert run_code(*code_of("postgresql.md"))["url"] == database
    assert not (tmp_path / "skills.db").exists()


def test_threads_and_files_of_the_page_are_kept(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads and files are in PostgreSQL: who opens it again continues both."""
    monkeypatch.setenv("DATABASE_URL", database)
    page = code_of("deploy-postgresql.md")
    run_code(*page)
    opened = run_code(page[0])
    assert opened["store"].get(("skills", "user", "ada"), "/ada-letters/SKILL.md") is not None
    opened["process"].close()
    continued = run_code(*page)["model"].requests[0].messages
    assert [message.type for message in continued] == ["system", "human", "ai", "human"]
