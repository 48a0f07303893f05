"""The text and files of one provided skill, for the plans that read skills.

The rules about a skill's files (which are resources, which may be read, what a script is) are written once, as plans
over listings and reads. Here such a plan is performed on what a provider gives: its list of files is the only listing,
a path that is not on it does not exist, and each file is compared with the digest that was listed.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from deepskills._errors import SkillsError
from deepskills._io.drivers import Steps
from deepskills._io.plan import (
    Attempt,
    Call,
    Entry,
    Failed,
    File,
    Files,
    Inspect,
    Inspected,
    ListDirectory,
    Listing,
    Plan,
    ReadFiles,
    RealPaths,
    ResolveLinks,
    ResultT,
    ShellPaths,
    parent,
    together,
)
from deepskills._providers.ask import MAX_FILES, Asked, check_files, checked_file, read_files, read_skill
from deepskills._providers.base import ProvidedFile, ProvidedSkill
from deepskills._types import SKILL_FILE

_NOT_FOUND = "file_not_found"


class ProvidedFiles:
    """Performs plans on one skill of a provider; the files are listed once, when they are first needed."""

    def __init__(self, asked: Asked, skill: ProvidedSkill, path: str, digest: str | None) -> None:
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
        if self._files is None:
            await self._read(reads_text=False)
        return self._files if self._files is not None else Failed("the files were not listed")

    async def read_all(self, limit: int) -> dict[str, bytes]:
        """Return the content of every file.

        Raises:
            SkillsError: If one cannot be read, or all are larger than `limit`.
        """
        files = await self.files()
        if isinstance(files, Failed):
            raise SkillsError(files.reason)
        text = await read_skill(self._asked, self._skill, SKILL_FILE, self._digest)
        contents: dict[str, bytes] = {}
        for file in (text, *(await read_files(self._asked, self._skill, files)).values()):
            if file.content is None:
                raise SkillsError(f"{file.path!r}: {file.error}")
            contents[file.path] = file.content
            if sum(map(len, contents.values())) > limit:
                raise SkillsError(f"its files are larger than {limit:,} bytes")
        return contents

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
        # In the same round: the text, and the list that both listings and reads of other files go by.
        paths = [path for call in calls if isinstance(call, ReadFiles) for path in call.paths]
        needs_list = any(isinstance(call, ListDirectory) for call in calls) or any(path != self._path for path in paths)
        text = None
        if self._path in paths or (needs_list and self._files is None):
            text = await self._read(reads_text=self._path in paths, lists=needs_list and self._files is None)
        wanted = {path: file for path in paths if path != self._path and (file := self._file(path)) is not None}
        found = await read_files(self._asked, self._skill, wanted) if wanted else {}
        if text is not None:
            found[self._path] = text
        return [await self._reply(call, found) for call in calls]

    async def _read(self, *, reads_text: bool, lists: bool = True) -> File | None:
        """Read the text and list the files, as far as either is wanted."""
        listing = Attempt(self._asked.call("list_files", self._skill, at_most=MAX_FILES))
        text = None
        if reads_text and lists:
            reply, listed = await together(Attempt(self._asked.call("read_skill", self._skill)), listing)
            text = checked_file(self._path, reply, self._digest)
            self._take(listed)
        elif reads_text:
            text = await read_skill(self._asked, self._skill, self._path, self._digest)
        else:
            self._take(await listing)
        return text

    def _take(self, listed: object) -> None:
        self._files = check_files(listed)
        if not isinstance(self._files, Failed):
            self._own = self._files.pop(SKILL_FILE, None)
        names = [SKILL_FILE, *(self._files if not isinstance(self._files, Failed) else ())]
        for name in names:
            path = f"{self._root}/{name}"
            size = self._files[name].size if not isinstance(self._files, Failed) and name in self._files else None
            entry = Entry(path, is_directory=False, size=size)
            # Each directory above it, up to the skill's own.
            while entry.path != self._root:
                above = self._tree.setdefault(parent(entry.path), {})
                if entry.path in above:
                    break
                above[entry.path] = entry
                entry = Entry(parent(entry.path), is_directory=True)

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
            return Files(tuple(found.get(path) or File(path, error=error) for path in call.paths))
        if isinstance(call, ResolveLinks):
            return RealPaths({})
        if isinstance(call, Inspect):
            return Inspected({})
        # A shell may know the directory by another path, if the provider says that there is one.
        if isinstance(call, ShellPaths) and self._path == self._asked.path_of(self._skill):
            return RealPaths({})
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
