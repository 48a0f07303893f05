"""Stored skills as a read-only backend: directories made of one reading of the store."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from deepagents.backends import BackendProtocol
from deepagents.backends.protocol import FileDownloadResponse, FileInfo, LsResult

from deepskills._errors import SkillFileNotFoundError, SkillNotFoundError
from deepskills._types import SKILL_FILE
from deepskills.store._bridge import private_loop
from deepskills.store._models import Skill
from deepskills.store._service import document_of

logger = logging.getLogger("deepskills")


@dataclass(frozen=True)
class StoredTree:
    """Skills laid out as directories and files."""

    directories: dict[str, set[str]] = field(default_factory=dict)
    """Each directory, and the paths directly inside it."""

    skill_files: dict[str, bytes] = field(default_factory=dict)
    """Each `SKILL.md`."""

    other_files: dict[str, tuple[UUID, str]] = field(default_factory=dict)
    """Each further file: the skill it belongs to, and its path there."""

    def add(self, root: str, path: str) -> None:
        """Note `path` in its directory, and that one in its own, up to `root`."""
        while path != root:
            parent = path.rpartition("/")[0]
            self.directories.setdefault(parent, set()).add(path)
            path = parent


def tree_of(skills: Sequence[Skill], root: str) -> StoredTree:
    """Lay skills out below `root`, given in order of rank.

    Of several with one name the first takes the directory of that name. The others lie in one that sorts behind it:
    discovery passes them over and says so. A row that other hands than the service's spoiled is left out, and logged.
    """
    tree = StoredTree(directories={root: set()})
    for skill in skills:
        try:
            content = document_of(skill).render()
        except Exception as error:  # noqa: BLE001 - one skill's failure, whatever it is, costs no other
            logger.error("Skill %s cannot be served: %s: %s", skill.id, type(error).__name__, error)  # noqa: TRY400 - the message says it all
            continue
        directory = f"{root}/{skill.name}"
        if directory in tree.directories:
            directory = f"{directory}~{skill.id}"
        tree.skill_files[f"{directory}/{SKILL_FILE}"] = content
        tree.add(root, f"{directory}/{SKILL_FILE}")
        for file in skill.files:
            path = f"{directory}/{file.path}"
            tree.other_files[path] = (skill.id, file.path)
            tree.add(root, path)
    return tree


class SnapshotBackend(BackendProtocol):
    """Shows the store as it was when first asked; made anew for every piece of work."""

    def __init__(
        self,
        read_tree: Callable[[], Awaitable[StoredTree]],
        read_file: Callable[[UUID, str], Awaitable[bytes]],
    ) -> None:
        self._read_tree = read_tree
        self._read_file = read_file
        self._reading = asyncio.Lock()
        self._tree: StoredTree | None = None

    async def als(self, path: str) -> LsResult:
        """List a directory."""
        tree = await self._snapshot()
        inside = tree.directories.get(path.rstrip("/") or "/")
        if inside is None:
            return LsResult(error=f"'{path}' not found", entries=None)
        return LsResult(entries=[FileInfo(path=item, is_dir=item in tree.directories) for item in sorted(inside)])

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files."""
        tree = await self._snapshot()
        return [await self._download(path, tree) for path in paths]

    def ls(self, path: str) -> LsResult:
        """List a directory, on the private event loop."""
        return private_loop.run(lambda: self.als(path))

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files, on the private event loop."""
        return private_loop.run(lambda: self.adownload_files(paths))

    async def _snapshot(self) -> StoredTree:
        async with self._reading:
            if self._tree is None:
                self._tree = await self._read_tree()
            return self._tree

    async def _download(self, path: str, tree: StoredTree) -> FileDownloadResponse:
        content = tree.skill_files.get(path)
        if path in tree.other_files:
            try:
                content = await self._read_file(*tree.other_files[path])
            except (SkillNotFoundError, SkillFileNotFoundError):
                content = None
        if content is None:
            return FileDownloadResponse(
                path=path, error="is_directory" if path in tree.directories else "file_not_found"
            )
        return FileDownloadResponse(path=path, content=content)
