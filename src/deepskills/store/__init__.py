"""Skills in a database, for many users. Needs the extra `store`.

`create_skills_router` and `create_store_app` need `api` too, `create_skills_page` needs `page`.
"""

import importlib
from typing import TYPE_CHECKING

from deepskills._errors import SkillFormatError, SkillNotFoundError, SkillPathError

try:
    from deepskills.store.db.models import Base
except ModuleNotFoundError as error:  # pragma: no cover - without the extra
    if (error.name or "").partition(".")[0] == "deepskills":
        raise
    raise ModuleNotFoundError(
        f"deepskills.store needs {error.name}. Install it with: pip install 'deepskills[store]'", name=error.name
    ) from error

from deepskills.store.agent.adapter import DatabaseSkillAdapter
from deepskills.store.agent.usage import StoreRecorder
from deepskills.store.db.engine import create_store_engine
from deepskills.store.db.models import Skill, SkillChange, SkillFile
from deepskills.store.db.repositories import SkillFileRepository, SkillRepository
from deepskills.store.errors import (
    SkillAuthenticationError,
    SkillBusyError,
    SkillConflictError,
    SkillPermissionError,
    SkillQuotaError,
    SkillStaleError,
    SkillStoreUnavailableError,
    SkillTooLargeError,
)
from deepskills.store.formatter import SkillFormatter
from deepskills.store.rules import Policy, StoreLimits
from deepskills.store.sandbox import SharedSandbox, SkillSandboxLoader
from deepskills.store.schemas import SkillCreate, SkillFileCreate, SkillFileSchema, SkillSchema, SkillUpdate
from deepskills.store.service import SkillPage, SkillService, UsageCount

if TYPE_CHECKING:
    from deepskills.store.http.app import create_store_app as create_store_app
    from deepskills.store.http.routes import create_skills_router as create_skills_router
    from deepskills.store.page import create_skills_page as create_skills_page

__all__ = [
    "Base",
    "DatabaseSkillAdapter",
    "Policy",
    "SharedSandbox",
    "Skill",
    "SkillAuthenticationError",
    "SkillBusyError",
    "SkillChange",
    "SkillConflictError",
    "SkillCreate",
    "SkillFile",
    "SkillFileCreate",
    "SkillFileRepository",
    "SkillFileSchema",
    "SkillFormatError",
    "SkillFormatter",
    "SkillNotFoundError",
    "SkillPage",
    "SkillPathError",
    "SkillPermissionError",
    "SkillQuotaError",
    "SkillRepository",
    "SkillSandboxLoader",
    "SkillSchema",
    "SkillService",
    "SkillStaleError",
    "SkillStoreUnavailableError",
    "SkillTooLargeError",
    "SkillUpdate",
    "StoreLimits",
    "StoreRecorder",
    "UsageCount",
    "create_store_engine",
]


_OVER_HTTP = {
    "create_skills_page": ("deepskills.store.page", "page"),
    "create_skills_router": ("deepskills.store.http.routes", "api"),
    "create_store_app": ("deepskills.store.http.app", "api"),
}
"""Public names that need FastAPI, which is installed only to serve HTTP: their modules, and the extra of each."""


def __getattr__(name: str) -> object:
    if name not in _OVER_HTTP:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place, extra = _OVER_HTTP[name]
    try:
        module = importlib.import_module(place)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "deepskills":
            raise
        raise ModuleNotFoundError(
            f"{name} needs {error.name}. Install it with: pip install 'deepskills[store,{extra}]'", name=error.name
        ) from error
    return getattr(module, name)
