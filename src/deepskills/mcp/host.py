"""`McpSkills`: the skills of MCP servers as a read-only backend.

A server's skills are below its label: `/<label>/<path of the skill>/...`. The server's list says which skills there are
and which files each has; no file is read for that. During an agent's run a file is read for only two reasons: a load
opens a `SKILL.md`, and any tool may read the files of a skill while that skill is loaded. The middleware says around
each tool call what is loaded; in a run without it, nothing is read. Outside of runs, when a program reads for itself,
every read is compared with the list as well.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from deepskills._errors import SkillsError
from deepskills._io.bridge import bridge
from deepskills._io.readonly import NOT_FOUND, AsyncReadOnlyFiles, Content, FilesFound, Purpose, key_of
from deepskills._providers.base import ServesSkills
from deepskills._types import SKILL_FILE, LoadRecord
from deepskills.mcp.connections import check_label, connection_of
from deepskills.mcp.entries import ServedSkill
from deepskills.mcp.listing import Server
from deepskills.mcp.provider import NOT_LOADED, McpProvider, loads_of_run

MAX_PROVIDERS = 1_000
"""How many providers are kept: one for each place where a server's skills are looked for."""

_NOT_LISTED = "'{path}' is not a file of the skill as it was loaded."


class McpSkills(AsyncReadOnlyFiles, ServesSkills):
    """The skills of MCP servers, to pass as a backend or to mount in `CompositeBackend`.

    Name a server's label as a source: `SkillsMiddleware(backend=McpSkills({"docs": ...}), sources=["/docs"])`. Each
    skill is called `label:name`. Its files are read when they are needed, compared with what the server listed, and
    only while the skill is loaded. It grants itself nothing; tools that execute code ask a human while it is in use.

    Args:
        connections: By label, an open and initialized `mcp.ClientSession`, which is used on the current event loop and
            left open by `close()`; or a mapping in the form of LangChain's MCP adapters: `{"transport": "stdio",
            "command", "args", "env"}` or `{"transport": "streamable_http", "url", "headers"}`, opened at first use.
        dynamic: Whether to use skills whose server does not say what is in them.
        executes: Names of other tools that execute code, in addition to `execute` and `run_skill_script`.
        timeout: Seconds to wait for a server to be ready, and for each answer.

    Raises:
        ValueError: If a label or a connection cannot be used.
    """

    holds = "Skills of MCP servers"
    passes_over = False

    def __init__(
        self,
        connections: Mapping[str, Any],
        *,
        dynamic: bool = False,
        executes: Iterable[str] = (),
        timeout: float = 30,
    ) -> None:
        if not isinstance(connections, Mapping):
            raise ValueError(f"connections must map labels to connections, got {type(connections).__name__}")  # noqa: TRY004 - one kind of error for all of it
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
            raise ValueError(f"timeout must be a number of seconds above 0, got {timeout!r}")
        if isinstance(executes, str):
            raise ValueError("executes must be names of tools, got a single text; wrap it in a list")  # noqa: TRY004 - as above
        self.executes = frozenset(executes)
        """Names of other tools that execute code."""
        self._servers = {
            check_label(label): Server(label, connection_of(label, given, timeout), dynamic=dynamic, timeout=timeout)
            for label, given in connections.items()
        }
        self._providers: dict[tuple[str, str | None, str], McpProvider] = {}

    def __repr__(self) -> str:
        return f"McpSkills({', '.join(map(repr, self._servers))})"

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Return itself, because connections are shared."""
        return self

    # Life.

    def close(self) -> None:
        """Close the connections that were opened here; a later use opens them again."""
        bridge.run(self._close_servers)

    async def aclose(self) -> None:
        """Close the connections that were opened here, without blocking."""
        await bridge.arun(self._close_servers)

    async def _close_servers(self) -> None:
        for server in self._servers.values():
            server.forget_failure()
        own = [server for server in self._servers.values() if server.connection.home is bridge]
        await asyncio.gather(*(server.close() for server in own))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # Skills by URI.

    async def add(self, label: str, uri: str) -> str:
        """Add a skill that its server does not list, for good, and return the path of its `SKILL.md`.

        Raises:
            SkillNotFoundError: If the server does not know it.
            SkillsError: If the server cannot be asked, or the skill cannot be used.
            ValueError: If no connection has that label.
        """
        server = self._server(label)
        skill = await server.connection.home.arun(lambda: server.add(uri))
        return f"/{label}/{skill.path}/{SKILL_FILE}"

    def add_sync(self, label: str, uri: str) -> str:
        """Add a skill that its server does not list: `add`, for sync programs."""
        return bridge.run_anywhere(lambda: self.add(label, uri))

    def _server(self, label: str) -> Server:
        if label not in self._servers:
            raise ValueError(f"No connection has the label {label!r}; there are {', '.join(map(repr, self._servers))}.")
        return self._servers[label]

    # Where its skills come from.

    def provider(self, label: str) -> McpProvider:
        """Return the skills of one server, to pass in `sources`.

        Raises:
            ValueError: If no connection has that label.
        """
        return self._provider(self._server(label), None)

    def providers_at(self, path: str, mount: str | None) -> Sequence[McpProvider]:
        """Return the providers of the skills below a path: of one server by its label, of all by the root."""
        root = key_of(path)
        if not root:
            return [self._provider(server, mount) for server in self._servers.values()] if root == "" else []
        label, _, below = root[1:].partition("/")
        server = self._servers.get(label)
        return [self._provider(server, mount, below)] if server is not None else []

    def _provider(self, server: Server, mount: str | None, below: str = "") -> McpProvider:
        # Kept, because it remembers what it made of a listing; sources are few.
        known = self._providers.get((server.label, mount, below))
        if known is None:
            known = McpProvider(server, self.executes, mount, below)
            if len(self._providers) < MAX_PROVIDERS:
                self._providers[server.label, mount, below] = known
        return known

    # Files, for deepagents' tools.

    async def afind_files(self, root: str, purpose: Purpose) -> FilesFound:
        """Return the known files at and below a path; a search gets those of loaded skills alone.

        Raises:
            SkillsError: If a server cannot be asked.
        """
        label, _, below = root[1:].partition("/")
        if not label and purpose == "list":
            return {f"/{own}/": None for own in self._servers}
        found: dict[str, int | None] = {}
        for server in [server for own, server in self._servers.items() if label in {"", own}]:
            # A server's own directory is listed again; below it, what is known counts.
            is_asked = purpose == "list" and (not below or not server.known)
            found |= await self._files(server, is_asked=is_asked, only_loaded=purpose == "search")
            if label and not below:
                found[f"/{label}/"] = None
        return {path: size for path, size in found.items() if path == root or path.startswith(f"{root}/")}

    async def _files(self, server: Server, *, is_asked: bool, only_loaded: bool) -> dict[str, int | None]:
        """Return a server's files with their sizes; for loaded skills, as they were loaded."""
        loads = [load for load in loads_of_run() or () if load["origin"]["label"] == server.label]
        if not loads and not is_asked and only_loaded:
            return {}

        async def work() -> dict[str, ServedSkill]:
            if is_asked and (failure := (await server.listing()).failure) is not None:
                raise SkillsError(failure)
            skills = {} if only_loaded else dict(server.known)
            return skills | {skill.path: skill async for skill in _find_held(server, loads)}

        skills = await server.connection.home.arun(work)
        return {
            f"/{server.label}/{skill.path}/{path}": size
            for skill in skills.values()
            for path, size in _sizes(skill).items()
        }

    async def aread_contents(self, paths: Sequence[str]) -> list[Content]:
        """Return the content of each file, compared with the entry of its skill, or why it cannot be read."""
        return [await self._content(path) for path in paths]

    async def _content(self, path: str) -> Content:
        label, _, inside = path[1:].partition("/")
        server = self._servers.get(label)
        if server is None:
            return NOT_FOUND
        loads = loads_of_run()

        async def work() -> Content:
            if loads is None:
                skill = await _holder(server, inside)
                return await server.read(skill, inside[len(skill.path) + 1 :]) if skill is not None else NOT_FOUND
            async for held in _find_held(server, loads):
                if inside.startswith(f"{held.path}/"):
                    below = inside[len(held.path) + 1 :]
                    # Only files in the entry held since the load, whatever the server lists by now.
                    if held.is_dynamic or held.file_uri(below) is not None:
                        return await server.read(held, below)
                    return _NOT_LISTED.format(path=path)
            skill = await _holder(server, inside)
            return NOT_LOADED.format(name=f"{server.label}:{skill.name}") if skill is not None else NOT_FOUND

        try:
            return await server.connection.home.arun(work)
        except SkillsError as error:
            return str(error)


async def _find_held(server: Server, loads: Sequence[LoadRecord]) -> AsyncIterator[ServedSkill]:
    """Yield the skills of a server as they were loaded."""
    for load in loads:
        if load["origin"]["label"] == server.label:
            held = await server.find_held(load["digest"], load["origin"]["uri"])
            if held is not None:
                yield held


async def _holder(server: Server, inside: str) -> ServedSkill | None:
    """Return the skill that a path below a label is in, as it is known now; the innermost one with the file."""
    if not server.known:
        await server.listing()
    parts = inside.split("/")
    # The longest path first: a skill may be inside another's directory.
    for length in range(len(parts) - 1, 0, -1):
        skill = server.known.get("/".join(parts[:length]))
        if skill is not None and (skill.is_dynamic or skill.file_uri("/".join(parts[length:])) is not None):
            return skill
    return None


def _sizes(skill: ServedSkill) -> dict[str, int | None]:
    if skill.files is None:
        return {SKILL_FILE: None}
    return {path: file.size for path, file in skill.files.items()}
