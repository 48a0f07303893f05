"""The layers of the store stay apart, and the store stays apart from the rest."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import deepskills
import deepskills.store
from deepskills.store.http.routes import create_skills_router

PACKAGE = Path(deepskills.__file__).parent

LAYERS = [
    "errors", "rules", "workers", "packages", "document", "db.models", "db.engine", "db.transactions", "db.search",
    "db.listings", "db.repositories", "schemas", "formatter", "changes", "service.base",
    "service.reading", "service.writing", "service.history", "service.usage", "service.governance", "service",
    "directories", "sandbox", "agent.reader", "agent.provider", "agent.mount", "agent.usage", "agent.adapter",
    "http.answers", "http.requests", "http.routes", "http.discovery",
    "page.markdown", "page.shown", "page.site", "page.reading", "page.writing", "page.app", "http.settings",
    "http.app", "api",
]  # fmt: skip
"""From the bottom up: a module imports only what stands before it."""

STATEMENTS = {"db.listings", "db.search", "db.repositories"}
"""The modules that write statements."""

PURE = {"errors", "rules", "workers", "packages", "document"}
"""The modules that know no database."""


def path_of(layer: str) -> Path:
    place = PACKAGE / "store" / layer.replace(".", "/")
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def imports_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return found | {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}


def test_every_module_has_its_layer() -> None:
    """No module of the store stands outside the order, except the migrations, which Alembic runs."""
    found = {path.relative_to(PACKAGE / "store").with_suffix("") for path in (PACKAGE / "store").rglob("*.py")}
    modules = {".".join(path.parts) for path in found if path.parts[0] != "migrations" and path.name != "__init__"}
    assert modules | {"service"} == set(LAYERS)


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_go_down(layer: str) -> None:
    """No layer knows one above it."""
    prefix = "deepskills.store."
    own = {module.removeprefix(prefix) for module in imports_of(path_of(layer)) if module.startswith(prefix)}
    # Whoever serves both may leave the page out, and it is built on all the others.
    own -= {"page"}
    assert own <= set(LAYERS[: LAYERS.index(layer)])


@pytest.mark.parametrize("layer", LAYERS)
def test_statements_stand_in_the_database_room_alone(layer: str) -> None:
    """Statements are written in the database's room alone, and pure modules know no database."""
    tree = ast.parse(path_of(layer).read_text(encoding="utf-8"))
    calls = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    # A column of the models is written by an expression that holds a query.
    assert not calls & {"select", "update", "delete", "insert"} or layer in {*STATEMENTS, "db.models"}
    assert layer not in PURE or not any(module.startswith("sqlalchemy") for module in imports_of(path_of(layer)))


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
for name in ("create_skills_router", "create_skills_page"):
    try:
        getattr(deepskills.store, name)
    except ModuleNotFoundError as error:
        print(error.name, error)
"""


def test_extras() -> None:
    """Deepskills needs no extra, the store its own alone, only the routes FastAPI; and what is missing is named."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_PACKAGES], capture_output=True, text=True, check=False)
    assert (done.stderr, done.returncode) == ("", 0)
    imported, without_sqlalchemy, without_fastapi, without_page = done.stdout.splitlines()
    assert imported == "[]"
    assert "pip install 'deepskills[store]'" in without_sqlalchemy
    assert without_fastapi.startswith("fastapi ")
    assert "pip install 'deepskills[store,api]'" in without_fastapi
    assert "pip install 'deepskills[store,page]'" in without_page
    assert deepskills.store.create_skills_router is create_skills_router
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = deepskills.store.no_such_name


def test_public_names() -> None:
    """Every public name is there, sorted."""
    assert all(hasattr(deepskills.store, name) for name in deepskills.store.__all__)
    assert deepskills.store.__all__ == sorted(deepskills.store.__all__)
