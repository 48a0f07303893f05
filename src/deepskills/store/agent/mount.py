"""Mounts the store's skills beside an agent's own files, so that its file tools read what a load shows.

A load names files by path. In `create_deep_agent` the model opens such a path with `read_file`, `ls`, `grep` or `glob`,
which go to the agent's own backend, and that has no skills of the store. `mounted` adds a read-only backend for the
paths of skills. Each call decides again, from its run, whose skills it shows: a path of another user is not found,
also when another user wrote it into the conversation.

deepagents calls a backend with paths alone, and LangGraph tells it neither the run's state nor its tool call. So the
middleware leaves the runtime, what is loaded and what is hidden in `call_in_progress` while a tool runs.
"""

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from deepagents.backends import BackendProtocol, CompositeBackend
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp
from langgraph.prebuilt import ToolRuntime
from langgraph.runtime import get_runtime

from deepskills._errors import SkillsError
from deepskills._io.backends import call_in_progress
from deepskills._io.bridge import bridge
from deepskills._io.readonly import NOT_FOUND, AsyncReadOnlyFiles, Content, FilesFound, PartialFiles, Purpose
from deepskills._skillmd.text import one_line
from deepskills._types import SKILL_FILE
from deepskills.store.agent.provider import StoredSkill, StoreProvider

logger = logging.getLogger("deepskills")

ResultT = TypeVar("ResultT")

MAX_SEARCHED = 500
"""How many files one `grep` reads, and one `glob` matches; a search in one skill stays far below."""

MAX_SEARCHED_BYTES = 8 * 1024 * 1024
"""How much one `grep` reads; the text of a skill has a few kilobytes, but a file may have megabytes."""

SOURCE_ROOT = "/skills"
"""The directory below which file tools find the skills of the run's user, each by its name."""


def mounted(provider: StoreProvider, backend: BackendProtocol) -> CompositeBackend:
    """Return a backend that shows a store's skills at their paths, and `backend` everywhere else."""
    provider.mount(SOURCE_ROOT)
    return CompositeBackend(default=backend, routes={f"{SOURCE_ROOT}/": MountedSkills(provider)})


class MountedSkills(AsyncReadOnlyFiles):
    """Shows the skills of the user whose run calls it. Paths come without the mount's own prefix, as for any route.

    Nothing here raises: an exception from a backend would end the run. A failure is an answer that the model reads.
    """

    holds = "Skills of the store"

    def __init__(self, provider: StoreProvider) -> None:
        self._provider = provider

    async def afind_files(self, root: str, purpose: Purpose) -> FilesFound:
        """Return the files at and below a path."""
        return await self._aask(lambda view: view.find_files(root, purpose))

    def find_files(self, root: str, purpose: Purpose) -> FilesFound:
        """Return the files at and below a path, on the bridge's loop."""
        return self._ask(lambda view: view.find_files(root, purpose))

    async def aread_contents(self, paths: Sequence[str]) -> list[Content]:
        """Return the content of each file, or why it cannot be read."""
        try:
            return await self._aask(lambda view: view.read_contents(paths))
        except SkillsError as error:
            return [str(error)] * len(paths)

    def read_contents(self, paths: Sequence[str]) -> list[Content]:
        """Return the content of each file, on the bridge's loop."""
        try:
            return self._ask(lambda view: view.read_contents(paths))
        except SkillsError as error:
            return [str(error)] * len(paths)

    async def _aask(self, question: "Callable[[RunView], Coroutine[Any, Any, ResultT]]") -> ResultT:
        try:
            call = call_in_progress.get()
            hidden = await call.ahidden() if call is not None and call.ahidden is not None else frozenset()
            return await question(self._view(hidden))
        except GraphBubbleUp:
            raise
        except Exception as error:
            raise _failure(error) from error

    def _ask(self, question: "Callable[[RunView], Coroutine[Any, Any, ResultT]]") -> ResultT:
        try:
            # Here and not on the bridge's loop: the application's function belongs to the caller's thread.
            call = call_in_progress.get()
            view = self._view(call.hidden() if call is not None else frozenset())
            return bridge.run(lambda: question(view))
        except GraphBubbleUp:
            raise
        except Exception as error:
            raise _failure(error) from error

    def _view(self, hidden: frozenset[str]) -> "RunView":
        """Return the skills of the user whose run is calling."""
        # For every call, from its own run: nothing of one user is kept for the next.
        call = call_in_progress.get()
        # Without one, the caller is a tool of an agent that has no skills.
        if call is None:
            return RunView(self._provider, self._provider.owner(_runtime()))
        return RunView(self._provider, self._provider.owner(call.runtime), call.loaded, hidden)


class RunView:
    """The skills of a run's user that the model may see, by paths on the mount.

    What is hidden from the model, by its author or by the operator, is not found, unless it was loaded: a user may have
    started it. Nor are skills whose name another takes: the model could not load them either.
    """

    def __init__(
        self,
        provider: StoreProvider,
        owner: str | None,
        loaded: Sequence[str] = (),
        hidden: frozenset[str] = frozenset(),
    ) -> None:
        self._provider = provider
        self._owner = owner
        self._loaded = loaded
        self._hidden = hidden - {*loaded}

    async def find_files(self, root: str, purpose: Purpose) -> FilesFound:
        """Return the files at and below a path; above the skills, all files of loaded ones and the texts of others."""
        skills = await self._visible()
        name = root.strip("/").partition("/")[0]
        if not name and purpose == "list":
            return {f"/{each}/": None for each in skills}
        found: dict[str, int | None] = {}
        # All files of all skills would be the whole database.
        for each in [name] if name else self._loaded:
            if each in skills and len(found) < MAX_SEARCHED:
                sizes = await self._provider.paths(skills[each].head, self._owner)
                found |= {f"/{each}/{path}": size for path, size in ({SKILL_FILE: None} | sizes).items()}
        if name:
            found = {path: size for path, size in found.items() if f"{path}/".startswith(f"{root}/")}
        else:
            found |= {f"/{each}/{SKILL_FILE}": None for each in skills}
        if purpose == "list":
            return found
        chosen = dict(list(found.items())[:MAX_SEARCHED])
        if purpose == "search":
            chosen = await self._within_bytes(chosen, skills)
        return chosen if len(chosen) == len(found) else PartialFiles(chosen)

    async def read_contents(self, paths: Sequence[str]) -> list[Content]:
        """Return whole files, the texts of all skills with one query, or why there is none."""
        skills = await self._visible()
        places = {path: path.strip("/").partition("/")[::2] for path in paths}
        heads = {path: skills[name].head for path, (name, _own) in places.items() if name in skills}
        wanted = [head for path, head in heads.items() if places[path][1] == SKILL_FILE]
        texts = await self._provider.texts(wanted, self._owner) if wanted else {}
        found: dict[str, bytes | None] = {}
        for path, head in heads.items():
            own = places[path][1]
            is_text = own == SKILL_FILE
            found[path] = texts.get(head.id) if is_text else await self._provider.content(head, own, self._owner)
        return [NOT_FOUND if (content := found.get(path)) is None else content for path in paths]

    async def _within_bytes(
        self, files: Mapping[str, int | None], skills: Mapping[str, StoredSkill]
    ) -> dict[str, int | None]:
        """Return those files, in order, that a search may read together; one that does not fit is left out."""
        # By their sizes, before any is read: five hundred files may be gigabytes.
        heads = {path: skills[path.split("/")[1]].head for path, size in files.items() if size is None}
        texts = [*heads.values()]
        sizes = await self._provider.ask(self._owner, lambda reader, _: reader.text_sizes(texts)) if texts else {}
        chosen: dict[str, int | None] = {}
        left = MAX_SEARCHED_BYTES
        for path, known in sorted(files.items()):
            size = sizes.get(heads[path].id, 0) if known is None else known
            if size <= left:
                left -= size
                chosen[path] = known
        return chosen

    async def _visible(self) -> Mapping[str, StoredSkill]:
        seen = await self._provider.visible(self._owner)
        return {name: skill for name, skill in seen.by_name.items() if name not in self._hidden}


def _runtime() -> ToolRuntime[Any, Any]:
    """Return the runtime of a tool that no skills middleware knows of; users' functions always get the same type."""
    runtime = get_runtime()
    return ToolRuntime(
        state={},
        context=runtime.context,
        config=get_config(),
        stream_writer=runtime.stream_writer,
        tool_call_id=None,
        store=runtime.store,
    )


def _failure(error: Exception) -> SkillsError:
    """Return what the model reads about a failure; the log has the same."""
    reason = f"The skills of the store cannot be read now: {type(error).__name__}: {one_line(str(error))}"
    logger.error(reason)
    return SkillsError(reason)
