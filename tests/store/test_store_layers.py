"""The layers of the store stay apart, and the store stays apart from the rest."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import deepskills
import deepskills.store
from deepskills.store.api import create_skills_router

PACKAGE = Path(deepskills.__file__).parent

LAYERS = [
    "_errors", "_unavailable", "_rules", "_words", "_differences", "_document", "_base", "_models", "_history",
    "_engine", "_transactions", "_visibility", "_repositories", "_listings", "_records", "_schemas", "_formatter",
    "_checks", "_core", "_reading", "_writing", "_versions", "_governance", "_service", "_sandbox", "_loader",
    "_overview", "_bridge", "_snapshot", "_view", "_usage", "_adapter", "_http_answers", "_http_archives",
    "_http_bodies", "_http_shown", "_http_parts", "_http_routes", "_http_versions", "api",
]  # fmt: skip
"""From the bottom up: a module imports only what stands before it."""

QUERIES = {"_visibility", "_repositories", "_listings", "_records"}
"""The modules that write statements."""


def imports_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return found | {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}


def test_imports_go_down() -> None:
    """No layer knows one above it."""
    modules = {path.stem for path in (PACKAGE / "store").glob("*.py")} - {"__init__"}
    assert modules == set(LAYERS)
    for position, name in enumerate(LAYERS):
        own = {
            module.rpartition(".")[2]
            for module in imports_of(PACKAGE / "store" / f"{name}.py")
            if module.startswith("deepskills.store")
        }
        assert own <= set(LAYERS[:position]), name


def test_queries_are_the_repositories_own() -> None:
    """Statements are written in the repositories alone; rules and pure modules know no database."""
    statements = {"select", "update", "delete", "insert"}
    for name in LAYERS:
        tree = ast.parse((PACKAGE / "store" / f"{name}.py").read_text(encoding="utf-8"))
        calls = {
            node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert not calls & statements or name in QUERIES, name
    for name in ("_errors", "_rules", "_words", "_document"):
        assert not any(module.startswith("sqlalchemy") for module in imports_of(PACKAGE / "store" / f"{name}.py"))


def test_the_rest_does_not_import_the_store() -> None:
    """Deepskills without the store is whole."""
    for path in PACKAGE.glob("*.py"):
        assert not any(module.startswith("deepskills.store") for module in imports_of(path)), path.name


WITHOUT_PACKAGES = """
import sys
import deepskills
print([name for name in sys.modules if name.startswith(("sqlalchemy", "alembic"))])

sys.modules["sqlalchemy"] = None
try:
    import deepskills.store
except ModuleNotFoundError as error:
    print(error)

del sys.modules["sqlalchemy"]
for name in [name for name in sys.modules if name.startswith("deepskills.store")]:
    del sys.modules[name]
sys.modules.update(dict.fromkeys(["fastapi", "uvicorn", "asyncpg"]))
import deepskills.store, deepskills.store.migrations
try:
    deepskills.store.create_skills_router
except ModuleNotFoundError as error:
    print(error.name, error)
"""


def test_extras() -> None:
    """Deepskills needs no extra, the store its own alone, only the routes FastAPI; and what is missing is named."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_PACKAGES], capture_output=True, text=True, check=False)
    assert (done.stderr, done.returncode) == ("", 0)
    imported, without_sqlalchemy, without_fastapi = done.stdout.splitlines()
    assert imported == "[]"
    assert "pip install 'deepskills[store]'" in without_sqlalchemy
    assert without_fastapi.startswith("fastapi ")
    assert "pip install 'deepskills[store,api]'" in without_fastapi
    assert deepskills.store.create_skills_router is create_skills_router
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = deepskills.store.no_such_name


def test_public_names() -> None:
    """Every public name is there, sorted."""
    assert all(hasattr(deepskills.store, name) for name in deepskills.store.__all__)
    assert deepskills.store.__all__ == sorted(deepskills.store.__all__)
