"""The base of `SkillLock` and `SkillApproval`: judges every way in which a skill's files reach the model or run.

A guard knows which files of a skill it vouches for. The skills' own tools give it the very bytes they read
(`before_file`). Other tools do not: a call to `read_file`, `grep` or `execute` that touches a skill is judged by the
files that are there before it runs, and what it read is judged again afterwards. A shell can reach files in ways that
no command line shows, so only a sandbox limits what a command can do.
"""

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import ToolMessage
from langgraph.types import Command

from deepskills import Refuse, SkillEntry, SkillExtension, SkillFile, SkillRun, SkillsError
from deepskills._files.manifest import file_digest
from deepskills._files.paths import path_of_call
from deepskills._io.plan import ResolveLinks
from deepskills._prompt.messages import STRAY_FILE, word_refusal
from deepskills.extensions._shared import MaybeAwaitable, as_edited

MAX_NAMED = 5
"""How many files a refusal names."""


READ_TOOL = "read_file"
SEARCH_TOOL = "grep"
SHELL_TOOL = "execute"

_COUNT = re.compile(r":(?: \d+)?$")
_HEADING = re.compile(r"^(/.{0,4096}?):\n  \d+[:-] ", re.DOTALL | re.MULTILINE)
"""What stands in the result of a search: a count behind a path, and a path above the lines that were found in it."""


class FileGuard(SkillExtension):
    """Lets only known files pass; a subclass says which those are."""

    protective: ClassVar[bool] = True

    @abstractmethod
    def guards(self, entry: SkillEntry) -> bool:
        """Whether a skill's files are judged at all."""

    @abstractmethod
    def guards_source(self, source: str) -> bool:
        """Whether files of a source are judged, even in a directory whose `SKILL.md` is gone."""

    @abstractmethod
    async def expected(self, entry: SkillEntry, run: SkillRun) -> Mapping[str, str] | Refuse:
        """Return the SHA-256 of each file that may pass, or the reason why none may."""

    def complaint(self, entry: SkillEntry, differences: Sequence[str], run: SkillRun) -> Refuse | None:
        """Return what to answer when files differ; `None` to let them pass anyway."""
        raise NotImplementedError

    def before_tool(self, request: ToolCallRequest, run: SkillRun) -> MaybeAwaitable[Refuse | None]:
        """Judge the files that a tool of others is about to read or run."""
        edited = as_edited(request)
        # Most calls are to other tools, and cost nothing.
        is_judged = edited.tool_call["name"] in {READ_TOOL, SHELL_TOOL}
        return self._judge_call(edited, "", run) if is_judged else None

    def after_tool(
        self, request: ToolCallRequest, result: ToolMessage | Command[Any], run: SkillRun
    ) -> MaybeAwaitable[ToolMessage | Command[Any]]:
        """Judge again what a tool of others has read: files may change while it reads."""
        return self._judge_result(request, result, run) if _shows_files(request) else result

    async def _judge_result(
        self, request: ToolCallRequest, result: ToolMessage | Command[Any], run: SkillRun
    ) -> ToolMessage | Command[Any]:
        return _keep(request, result, await self._judge_call(as_edited(request), _text_of(result), run))

    async def before_file(self, file: SkillFile, run: SkillRun) -> Refuse | None:
        """Judge the bytes that one of the skills' tools is about to show or run."""
        if not self.guards(file.entry):
            return None
        expected = await self.expected(file.entry, run)
        if isinstance(expected, Refuse):
            return expected
        # It is unknown what is in a dynamic skill; its approval covers that.
        if not file.entry.is_dynamic and expected.get(file.path) != file_digest(file.content).sha256:
            return self.complaint(file.entry, [_difference(file.path, expected)], run)
        if file.purpose != "run" or file.entry.is_dynamic:
            return None
        # A script may read and import whatever is beside it. If it runs in a copy, only the bytes of that copy are
        # judged: changes to the original files no longer matter.
        if file.files:
            present = {path: file_digest(content).sha256 for path, content in file.files.items()}
            return self._compare(file.entry, present, expected, run)
        return await self._judge_all(file.entry, run)

    async def _judge_all(self, entry: SkillEntry, run: SkillRun, only: str | None = None) -> Refuse | None:
        """Judge all files of a skill as they are now, or one of them."""
        expected = await self.expected(entry, run)
        if isinstance(expected, Refuse):
            return expected
        try:
            manifest = await run.manifest(entry)
        except SkillsError as error:
            return Refuse(str(error))
        present = {path: file.sha256 for path, file in manifest.files.items()}
        return self._compare(entry, present, expected, run, only)

    def _compare(
        self,
        entry: SkillEntry,
        present: Mapping[str, str],
        expected: Mapping[str, str],
        run: SkillRun,
        only: str | None = None,
    ) -> Refuse | None:
        """Judge all files of a skill, or one of them, by their SHA-256."""
        # In both directions: an added file is a difference, just like a missing one.
        paths = sorted(present.keys() | expected.keys()) if only is None else [only]
        differences = [_difference(path, expected) for path in paths if present.get(path) != expected.get(path)]
        return self.complaint(entry, differences, run) if differences else None

    async def _judge_call(self, request: ToolCallRequest, shown: str, run: SkillRun) -> Refuse | None:
        name, arguments = request.tool_call["name"], request.tool_call["args"]
        if name == READ_TOOL:
            # Among all skills of the sources, including hidden ones: file tools do not know about visibility.
            [path] = await _real_paths([path_of_call(str(arguments.get("file_path", "")))], run)
            found = _owner(path, run.found)
            if found is None:
                return self._judge_stray([path], run)
            if self.guards(found[0]):
                return await self._judge_all(found[0], run, only=found[1])
        elif name == SEARCH_TOOL and shown:
            return await self._judge_shown(shown, run)
        elif name == SHELL_TOOL:
            return await self._judge_command(str(arguments.get("command", "")), run)
        return None

    async def _judge_shown(self, shown: str, run: SkillRun) -> Refuse | None:
        """Judge the skills whose files a search shows."""
        # By their directories and not by taking paths out of the text: a directory's name may hold whatever ends a path
        # in a result, such as a colon or a newline.
        sources = {source for source in run.sources if f"{source.rstrip('/')}/" in shown}
        named = {
            entry.path: entry for entry in run.found if entry.source in sources and f"{_directory(entry)}/" in shown
        }
        paths = await _real_paths(_paths_in(shown), run)
        owners = {path: _owner(path, run.found) for path in paths}
        named |= {owner[0].path: owner[0] for owner in owners.values() if owner is not None}
        for entry in named.values():
            if self.guards(entry):
                refused = await self._judge_all(entry, run)
                if refused is not None:
                    return refused
        return self._judge_stray([path for path, owner in owners.items() if owner is None], run)

    def _judge_stray(self, paths: Sequence[str], run: SkillRun) -> Refuse | None:
        """Judge files that are in a source but in no skill, such as the rest of one whose `SKILL.md` is gone."""
        for source in filter(self.guards_source, run.sources):
            root = f"{source.rstrip('/')}/"
            # A file directly in a source, such as a README, belongs to no skill.
            stray = next((path for path in paths if path.startswith(root) and "/" in path[len(root) :]), None)
            if stray is not None:
                return Refuse(STRAY_FILE.format(path=stray, source=source))
        return None

    async def _judge_command(self, command: str, run: SkillRun) -> Refuse | None:
        """Judge the skills whose directories a command names, by the path of file tools or of the shell."""
        for entry in run.found:
            directory = _directory(entry)
            # By the last part of the path first: resolving the shell's path of thousands of skills would take too long.
            if directory.rpartition("/")[2] not in command or not self.guards(entry):
                continue
            in_shell = await _shell_directory(entry, run)
            if any(_names(command, place) for place in (directory, in_shell)):
                refused = await self._judge_all(entry, run)
                if refused is not None:
                    return refused
        return None


async def _shell_directory(entry: SkillEntry, run: SkillRun) -> str:
    """Return a skill's directory as a local shell knows it; nothing runs there, so hidden skills do not matter."""
    path = _directory(entry)
    return (await run.perform(lambda: _resolve((path,)))).get(path, path)


async def _resolve(paths: tuple[str, ...]) -> dict[str, str]:
    """Return where paths of a local disk really lie, with slashes."""
    return {path: real.replace("\\", "/") for path, real in (await ResolveLinks(paths)).items()}


def _shows_files(request: ToolCallRequest) -> bool:
    return request.tool_call["name"] in {READ_TOOL, SEARCH_TOOL}


def _keep(
    request: ToolCallRequest, result: ToolMessage | Command[Any], refused: Refuse | None
) -> ToolMessage | Command[Any]:
    if refused is None:
        return result
    call = request.tool_call
    return ToolMessage(word_refusal(refused.reason), name=call["name"], tool_call_id=call["id"] or "", status="error")


def _text_of(result: ToolMessage | Command[Any]) -> str:
    if isinstance(result, ToolMessage):
        return str(result.text)
    messages = result.update.get("messages", ()) if isinstance(result.update, Mapping) else ()
    return "\n".join(str(message.text) for message in messages if isinstance(message, ToolMessage))


def _directory(entry: SkillEntry) -> str:
    return entry.path.rpartition("/")[0]


def _owner(path: str, entries: Sequence[SkillEntry]) -> tuple[SkillEntry, str] | None:
    """Return the innermost skill that a path is in, and the path relative to it."""
    inside = [entry for entry in entries if path.startswith(f"{_directory(entry).rstrip('/')}/")]
    if not inside:
        return None
    # A skill may be inside another; its files are its own.
    entry = max(inside, key=lambda found: len(found.path))
    return entry, path[len(_directory(entry).rstrip("/")) + 1 :]


def _paths_in(shown: str) -> list[str]:
    """Return the paths in the result of a search: lines of their own, perhaps with a count, and headings."""
    lines = [_COUNT.sub("", line) for line in dict.fromkeys(shown.split("\n")) if line.startswith("/")]
    return list(dict.fromkeys(map(path_of_call, [*_HEADING.findall(shown), *lines])))


async def _real_paths(paths: Sequence[str], run: SkillRun) -> list[str]:
    """Return paths as those below a source or a skill; a link beside a source may lead into it."""
    places = [*(_directory(entry) for entry in run.found), *run.sources]
    # Usual paths need no look at links: what lies below a source by its text is judged as that.
    strange = [path for path in paths if not any(path.startswith(f"{root.rstrip('/')}/") for root in run.sources)]
    if not strange or not places:
        return list(paths)
    real = await run.perform(lambda: _resolve((*strange, *places)))
    below: dict[str, str] = {}
    for place in places:
        below.setdefault(real.get(place, place), place.rstrip("/"))
    return [_move(path, real.get(path, path), below) for path in paths]


def _move(path: str, real: str, below: Mapping[str, str]) -> str:
    """Return the path by which a skill is known for a file that really lies in it."""
    head, rest = real, ""
    while head and head not in below:
        head, _, last = head.rpartition("/")
        rest = f"/{last}{rest}"
    return f"{below[head]}{rest}" if head else path


def _names(command: str, directory: str) -> bool:
    return re.search(rf"{re.escape(directory.rstrip('/'))}(?![\w.-])", command) is not None


def _difference(path: str, expected: Mapping[str, str]) -> str:
    return f"`{path}` (changed or gone)" if path in expected else f"`{path}` (added)"


def name_files(differences: Sequence[str]) -> str:
    """Return the names of files that differ, for use in a sentence."""
    more = f" and {len(differences) - MAX_NAMED} more" if len(differences) > MAX_NAMED else ""
    return ", ".join(differences[:MAX_NAMED]) + more
