"""`McpProvider`: the skills of one MCP server, as a source of skills.

Each listed skill carries the entry that its server gave for it: the frontmatter, and every file by digest and size. The
`version` covers all of that, so a change of any file is a changed skill, and the very entry that was listed, judged and
approved decides what is read: other bytes are refused, whatever the server lists by then.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from langgraph.config import get_config

from deepskills._errors import SkillsError
from deepskills._io.backends import call_in_progress
from deepskills._providers.base import SCHEME, ListingProblems, ProvidedFile, ProvidedSkill, SkillProvider
from deepskills._types import SKILL_FILE, LoadRecord, SkillProblem
from deepskills.mcp.entries import ServedSkill
from deepskills.mcp.listing import Listed, Server

NOT_LOADED = "Files of the skill '{name}' can be read only while it is loaded. Load it with load_skill first."


def loads_of_run() -> Sequence[LoadRecord] | None:
    """Return the served skills that are loaded in the calling run; `None` outside of runs.

    Inside a run, but outside a tool call of an agent with skills, nothing counts as loaded: when in doubt, nothing is
    read.
    """
    call = call_in_progress.get()
    if call is not None:
        return call.served
    try:
        get_config()
    except RuntimeError:
        return None
    return ()


@dataclass(frozen=True)
class McpSkill(ProvidedSkill):
    """A skill of a server, with the entry that the server gave for it; its key is its URI."""

    directory: str | None = None
    """Its directory for file tools, if those lead to it."""

    entry: ServedSkill = field(kw_only=True, repr=False)

    @property
    def version(self) -> str:
        """What changes with the origin, the frontmatter and the content of any file."""
        return self.entry.digest

    @property
    def is_dynamic(self) -> bool:
        """Whether the server does not say what its files contain."""
        return self.entry.is_dynamic


class McpProvider(SkillProvider):
    """The skills of one MCP server; made by `McpSkills.provider`.

    Args:
        server: The server.
        executes: Names of further tools that execute code.
        mount: What stands before `/<label>/...` for file tools; `None` if those do not lead to the skills.
        below: The directory of the server whose skills these are; all of them if it is empty.
    """

    trusted = False
    via: ClassVar[str] = "MCP"
    compares_itself: ClassVar[bool] = True

    def __init__(
        self, server: Server, executes: frozenset[str] = frozenset(), mount: str | None = None, below: str = ""
    ) -> None:
        self.label = server.label
        self.executes = executes
        self._server = server
        self._mount = mount
        self._below = below
        self._made: tuple[Listed, list[McpSkill]] | None = None

    def __repr__(self) -> str:
        return f"McpProvider({self.label!r})"

    async def list_skills(self, runtime: Any) -> Iterable[Any]:  # noqa: ANN401, ARG002 - LangGraph's runtime
        """Return the skills that the server lists, and those that were added; reads none of their files.

        Raises:
            SkillsError: If the server cannot be asked.
        """
        server = self._server
        listed = await server.connection.home.arun(server.listing)
        if listed.failure is not None:
            raise SkillsError(listed.failure)
        # The same objects while the listing is the same: there may be thousands.
        if self._made is None or self._made[0] is not listed:
            self._made = listed, [self._skill(name, entry) for name, entry in listed.names.items() if self._has(entry)]
        return [ListingProblems([self._place(found) for found in listed.problems]), *self._made[1]]

    def _has(self, entry: ServedSkill) -> bool:
        return not self._below or entry.path == self._below or entry.path.startswith(f"{self._below}/")

    def _skill(self, name: str, entry: ServedSkill) -> McpSkill:
        own = entry.files[SKILL_FILE].digest if entry.files is not None else None
        fields = {key: value for key, value in entry.frontmatter.items() if key not in {"name", "description"}}
        return McpSkill(
            entry.uri,
            name,
            str(entry.frontmatter["description"]),
            f"sha256:{own}" if own is not None else None,
            fields,
            directory=None if self._mount is None else f"{self._mount}/{self.label}/{entry.path}",
            entry=entry,
        )

    def _place(self, found: SkillProblem) -> SkillProblem:
        """Return a problem with the path by which users know the server."""
        address = f"{SCHEME}{self.label}" if self._mount is None else f"{self._mount}/{self.label}"
        placed: SkillProblem = {**found, "path": address + found["path"].removeprefix(f"/{self.label}")}
        return placed

    async def read_skill(self, skill: ProvidedSkill, runtime: Any) -> bytes:  # noqa: ANN401, ARG002 - as above
        """Return the bytes of a skill's `SKILL.md`, which its entry describes; the entry is held from now on."""
        server, entry = self._server, self._entry(skill)

        async def work() -> bytes:
            content = await server.read(entry, SKILL_FILE)
            # Only after the text was read and compared: from now on file tools go by this entry.
            server.hold(entry)
            return content

        return await server.connection.home.arun(work)

    def list_files(self, skill: ProvidedSkill, runtime: Any) -> Iterable[ProvidedFile]:  # noqa: ANN401, ARG002 - as above
        """Return every file of a skill as its entry describes it, `SKILL.md` included: nothing is read for it."""
        files = self._entry(skill).files
        return [ProvidedFile(file.path, file.size, f"sha256:{file.digest}") for file in (files or {}).values()]

    async def read_file(self, skill: ProvidedSkill, path: str, runtime: Any) -> bytes:  # noqa: ANN401, ARG002 - as above
        """Return the bytes of another file, which the entry describes.

        Raises:
            SkillsError: If the skill is not loaded in the run that asks, or the file is another one.
        """
        server, entry = self._server, self._entry(skill)
        loads = loads_of_run()
        if loads is not None and not any(is_load_of(load, entry) for load in loads):
            raise SkillsError(NOT_LOADED.format(name=skill.name))
        return await server.connection.home.arun(lambda: server.read(entry, path))

    def _entry(self, skill: ProvidedSkill) -> ServedSkill:
        if not isinstance(skill, McpSkill) or skill.entry.label != self.label:
            raise SkillsError(f"{skill.key} is no skill of the MCP server {self.label!r}")
        return skill.entry


def is_load_of(load: LoadRecord, entry: ServedSkill) -> bool:
    """Whether a load is of a skill with exactly this content."""
    origin = load["origin"]
    return (origin["label"], origin["uri"], load["digest"]) == (entry.label, entry.uri, entry.digest)
