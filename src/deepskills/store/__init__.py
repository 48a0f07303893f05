"""Skills in a database, for many users. Needs the extra `store`; `create_skills_router` needs `api` too."""

from typing import TYPE_CHECKING

from deepskills._errors import SkillFormatError, SkillNotFoundError, SkillPathError

try:
    from deepskills.store._base import Base
except ModuleNotFoundError as error:  # pragma: no cover - without the extra
    if (error.name or "").partition(".")[0] == "deepskills":
        raise
    raise ModuleNotFoundError(
        f"deepskills.store needs {error.name}. Install it with: pip install 'deepskills[store]'", name=error.name
    ) from error

from deepskills.store._adapter import DatabaseSkillAdapter
from deepskills.store._engine import create_store_engine
from deepskills.store._errors import (
    SkillAuthenticationError,
    SkillConflictError,
    SkillPermissionError,
    SkillQuotaError,
    SkillStaleError,
    SkillStoreUnavailableError,
    SkillTooLargeError,
)
from deepskills.store._formatter import SkillFormatter
from deepskills.store._history import SkillChange
from deepskills.store._loader import SkillSandboxLoader
from deepskills.store._models import Skill, SkillFile
from deepskills.store._reading import SkillPage
from deepskills.store._recorder import StoreRecorder
from deepskills.store._repositories import SkillFileRepository, SkillRepository
from deepskills.store._rules import StoreLimits
from deepskills.store._schemas import SkillCreate, SkillFileCreate, SkillFileSchema, SkillSchema, SkillUpdate
from deepskills.store._service import SkillService
from deepskills.store._versions import UsageCount

if TYPE_CHECKING:
    from deepskills.store.api import create_skills_router as create_skills_router

__all__ = [
    "Base",
    "DatabaseSkillAdapter",
    "Skill",
    "SkillAuthenticationError",
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


def __getattr__(name: str) -> object:
    # FastAPI is needed only by those who serve HTTP.
    if name == "create_skills_router":
        try:
            from deepskills.store.api import create_skills_router  # noqa: PLC0415 - see above
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] == "deepskills":
                raise
            raise ModuleNotFoundError(
                f"create_skills_router needs {error.name}. Install it with: pip install 'deepskills[store,api]'",
                name=error.name,
            ) from error
        return create_skills_router
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
