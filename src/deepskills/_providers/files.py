"""The text and files of one provided skill, for the plans that read skills.

The rules about a skill's files (which are resources, which may be read, what a script is) are written once, as plans
over listings and reads. Here such a plan is performed on what a provider gives: its list of files is the only listing,
a path that is not on it does not exist, and each file is compared with the digest that was listed.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from deepskills._errors import SkillsError
from deepskills._io.drivers import Steps, side_by_side
from deepskills._io.plan import (
    Attempt,
    Call,
    Entry,
    Failed,
    File,
    ListDirectory,
    Listing,
    Plan,
    ReadFiles,
    ResolveLinks,
    ResultT,
    ShellPaths,
    parent,
)
from deepskills._providers.ask import MAX_FILES, Asked, check_files, read_files, read_skill
from deepskills._providers.base import ListedSkill, ProvidedFile
from deepskills._types import SKILL_FILE

_NOT_FOUND = "file_not_found"


class ProvidedFiles:
    """Performs plans on one skill of a provider; the files are listed once, when they are first needed."""

    def __init__(self, asked: Asked, skill: ListedSkill, path: str, digest: str | None) -> None:
        self._asked = asked
        self._skill = skill
        self._digest = digest
        """What the text's digest must be; where the provider gave none, the one of the text that was listed."""
        self._path = path
        self._root = parent(path)
        self._files: dict[str, ProvidedFile] | Failed | None = None
        self._own: ProvidedFile | None = None
        """The text, where the provider lists it among the files."""
        self._tree: dict[str, dict[str, Entry]] = {}

    async def perform(self, plan: Plan[ResultT]) -> ResultT:
        """Return the result of a plan whose calls of a backend are answered by the provider."""
        steps: Steps[ResultT] = Steps(plan)
        try:
            calls = steps.start()
            while calls is not None:
                calls = steps.answer(await self._answer(calls))
        finally:
            plan.close()
        return steps.result

    async def files(self) -> dict[str, ProvidedFile] | Failed:
        """Return the skill's other files, by path relative to it."""
        if self._files is not None:
            return self._files
        reply = await Attempt(self._asked.call_list("list_files", self._skill.given, at_most=MAX_FILES))
        return self._take(reply)

    async def digests(self, limit: int) -> dict[str, tuple[str, int]]:
        """Return SHA-256 and size of every file; those that were listed without either are read for it.

        Raises:
            SkillsError: If the files cannot be listed, or one cannot be read.
        """
        files = await self.files()
        if isinstance(files, Failed):
            raise SkillsError(files.reason)
        every = files if self._own is None else {**files, SKILL_FILE: self._own}
        told = {path: file for path, file in every.items() if file.digest is not None and file.size is not None}
        found = {path: (_hexadecimal(file.digest), file.size or 0) for path, file in told.items()}
        unread = {path: file for path, file in files.items() if path not in told}
        texts = []
        # Not read where it was listed like the others: an approval is asked before.
        if SKILL_FILE not in told or self._own is None or self._own.digest != self._digest:
            texts.append(await read_skill(self._asked, self._skill, SKILL_FILE, self._digest))
        total = 0
        for file in (*texts, *(await read_files(self._asked, self._skill, unread)).values()):
            if file.content is None:
                raise SkillsError(f"{file.path!r}: {file.error}")
            total += len(file.content)
            if total > limit:
                raise SkillsError(f"its files are larger than {limit:,} bytes")
            found[file.path] = (sha256(file.content).hexdigest(), len(file.content))
        return found

    async def _answer(self, calls: Sequence[Call[Any]]) -> list[Any]:
        paths = [path for call in calls if isinstance(call, ReadFiles) for path in call.paths]
        others = [path for path in paths if path != self._path]
        found: dict[str, File] = {}

        async def take_text() -> None:
            found[self._path] = await read_skill(self._asked, self._skill, self._path, self._digest)

        # In the same round: the text, and the list that both listings and reads of other files go by.
        plans: list[Plan[object]] = [take_text()] if self._path in paths else []
        if others or any(isinstance(call, ListDirectory) for call in calls):
            plans.append(self.files())
        await side_by_side(*plans)
        wanted = {path: file for path in others if (file := self._file(path)) is not None}
        found |= await read_files(self._asked, self._skill, wanted) if wanted else {}
        return [await self._reply(call, found) for call in calls]

    def _take(self, listed: list[object] | Failed) -> dict[str, ProvidedFile] | Failed:
        self._files = files = check_files(listed)
        sizes: dict[str, int | None] = {SKILL_FILE: None}
        if not isinstance(files, Failed):
            self._own = files.pop(SKILL_FILE, None)
            sizes |= {name: file.size for name, file in files.items()}
        for name, size in sizes.items():
            entry = Entry(f"{self._root}/{name}", is_directory=False, size=size)
            # Each directory above it, up to the skill's own.
            while entry.path != self._root:
                above = self._tree.setdefault(parent(entry.path), {})
                if entry.path in above:
                    break
                above[entry.path] = entry
                entry = Entry(parent(entry.path), is_directory=True)
        return files

    def _file(self, path: str) -> ProvidedFile | None:
        relative = path.removeprefix(f"{self._root}/")
        if self._skill.is_dynamic and path != relative:
            return ProvidedFile(relative)
        return self._files.get(relative) if isinstance(self._files, dict) else None

    async def _reply(self, call: Call[Any], found: dict[str, File]) -> Any:  # noqa: ANN401 - the call's own reply
        if isinstance(call, ListDirectory):
            return self._listing(call.path)
        if isinstance(call, ReadFiles):
            error = self._files.reason if isinstance(self._files, Failed) else _NOT_FOUND
            return tuple(found.get(path) or File(path, error=error) for path in call.paths)
        # A shell may know the directory by another path, if the provider says that there is one.
        is_nowhere = isinstance(call, ShellPaths) and self._path == self._asked.path_of(self._skill.key)
        if isinstance(call, ResolveLinks) or is_nowhere:
            return {}
        return await Attempt(call)

    def _listing(self, path: str) -> Listing | Failed:
        if isinstance(self._files, Failed):
            return self._files
        entries = self._tree.get(path)
        if entries is None:
            return Failed("path_not_found")
        return Listing(tuple(entries[name] for name in sorted(entries)))


def _hexadecimal(digest: str | None) -> str:
    return (digest or "").removeprefix("sha256:")
