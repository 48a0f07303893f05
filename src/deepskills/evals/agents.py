"""Creates the agents that skills are measured with: a model, and a library that it can only read."""

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from deepagents import create_deep_agent
from deepagents.backends import CompositeBackend, FilesystemBackend, StateBackend
from deepagents.backends.protocol import DeleteResult, EditResult, FileUploadResponse, WriteResult
from langchain import chat_models
from langchain_core.language_models import BaseChatModel

from deepskills import SkillMetadata, SkillsMiddleware
from deepskills.evals.files import EvalError

MAX_COPIED_BYTES = 200_000_000
"""How much of a library is copied for agents to work with."""

SKILLS = "/skills"
"""Where these agents find their skills."""

READ_ONLY = "The skills are read-only here."


def resolved_model(model: BaseChatModel | str) -> BaseChatModel:
    """Return a chat model, given as one or as `provider:name`.

    Raises:
        EvalError: If the model cannot be created.
    """
    if isinstance(model, BaseChatModel):
        return model
    try:
        found: BaseChatModel = chat_models.init_chat_model(model)
    except Exception as error:
        reason = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}".rstrip(". ")
        raise EvalError(
            f"The model {model!r} cannot be used. {reason}. Write provider:name, install the provider's package and "
            "set its key."
        ) from error
    return found


def is_model(given: object) -> bool:
    """Whether something is a model, or names one; otherwise it is an agent."""
    return isinstance(given, str | BaseChatModel)


class _ReadOnlyFiles(FilesystemBackend):
    """Read-only files: one run must not change what the next one sees."""

    is_read_only = True

    def write(self, file_path: str, content: str) -> WriteResult:  # noqa: ARG002 - refused whatever it is
        """Refuse."""
        return WriteResult(error=READ_ONLY)

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:  # noqa: ARG002, FBT001, FBT002
        """Refuse."""
        return EditResult(error=READ_ONLY)

    def delete(self, file_path: str) -> DeleteResult:  # noqa: ARG002 - refused whatever it is
        """Refuse."""
        return DeleteResult(error=READ_ONLY)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Refuse."""
        return [FileUploadResponse(path=path, error="permission_denied") for path, _ in files]


class LibraryCopy:
    """A copy of a library for agents to read; nothing else on the machine is within their reach."""

    def __init__(self, skills: Sequence[SkillMetadata]) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="deepskills-eval-")
        root = Path(self._place.name)
        budget = _CopyBudget()
        for number, skill in enumerate(skills):
            source = Path(skill["path"]).parent
            # Numbered, because two skills may have directories with the same name.
            shutil.copytree(source, root / f"{number:05}" / source.name, ignore=budget.left_out)
        self._root = root

    def agent(self, model: BaseChatModel) -> Any:  # noqa: ANN401 - a compiled graph
        """Return an agent with the library."""
        # Workspaces live in graph state, so that each run starts with an empty one.
        backend = CompositeBackend(
            default=StateBackend(), routes={f"{SKILLS}/": _ReadOnlyFiles(root_dir=self._root, virtual_mode=True)}
        )
        middleware: Any = SkillsMiddleware(backend=backend, sources=[SKILLS], max_depth=2)
        return create_deep_agent(model=model, backend=backend, middleware=[middleware])

    def close(self) -> None:
        """Remove the copy."""
        self._place.cleanup()


class _CopyBudget:
    """Leaves out links, hidden files, large files and evals: an agent must not read how it is judged."""

    def __init__(self) -> None:
        self._left = MAX_COPIED_BYTES

    def left_out(self, directory: str, names: list[str]) -> list[str]:
        """Return the entries of a directory that are not copied."""
        found = []
        is_skill = "SKILL.md" in names
        for name in names:
            path = os.path.join(directory, name)  # noqa: PTH118 - shutil's own terms
            if name.startswith(".") or os.path.islink(path) or (is_skill and name == "evals"):  # noqa: PTH114
                found.append(name)
            elif os.path.isfile(path):  # noqa: PTH113 - shutil's own terms
                size = os.path.getsize(path)  # noqa: PTH202 - shutil's own terms
                if size > self._left:
                    found.append(name)
                else:
                    self._left -= size
            elif not os.path.isdir(path):  # noqa: PTH112 - pipes and devices
                found.append(name)
        return found


def check_agent(agent: object) -> None:
    """Check that something can be run as an agent.

    Raises:
        TypeError: If it cannot.
    """
    for method in ("stream", "astream"):
        found: Callable[..., Any] | None = getattr(agent, method, None)
        if not callable(found):
            raise TypeError(f"expected a chat model, its name, or a compiled graph, got {type(agent).__name__}")
