"""The page about PostgreSQL runs on PostgreSQL, not only on the SQLite that it falls back to."""

import re
import shutil
from pathlib import Path

import pytest
from store_support import create_database, drop_database

ROOT = Path(__file__).parents[2]


def test_the_page_runs_on_postgresql(postgres_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block of the page runs against a real server, in a directory with the example skills."""
    shutil.copytree(ROOT / "examples" / "skills", tmp_path / "skills")
    monkeypatch.chdir(tmp_path)
    url = create_database(postgres_server)
    monkeypatch.setenv("SKILLS_DATABASE", url)
    page = (ROOT / "docs" / "how-to" / "postgresql.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE):
        exec(compile(block, "postgresql.md", "exec"), names)
    assert names["url"] == url
    drop_database(postgres_server, url)
