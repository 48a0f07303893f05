"""The MCP servers that plugins name: shown by `info` and `doctor`, and never started."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from typing_extensions import TypedDict

from deepskills._install.paths import SourceError
from deepskills._install.trees import read_regular
from deepskills._providers.plugins import MAX_MANIFEST_BYTES, MCP_FILE, McpServer, UnfitError, read_servers
from deepskills._providers.sources import Source
from deepskills._skillmd.problems import problem, quoted
from deepskills._types import PLUGIN_MANIFESTS, SkillProblem

MAX_NAMED = 10
MAX_SHOWN = 200
"""How many servers are named for people, and how much of what is said of each; the JSON has them all."""


class PluginReport(TypedDict):
    """A plugin in the JSON of `doctor`."""

    path: str
    mcp_servers: list[McpServer]


def is_plugin(directory: str) -> bool:
    """Whether a directory has the manifest of a plugin."""
    return any(os.path.isfile(os.path.join(directory, name)) for name in PLUGIN_MANIFESTS)  # noqa: PTH113, PTH118 - never raises


def plugin_of(source: Source) -> str | None:
    """Return the plugin whose skills a source holds."""
    root, _slash, name = source.path.rpartition("/")
    return root if name == "skills" and is_plugin(root) else None


def servers_of(plugin: str) -> tuple[list[McpServer], list[SkillProblem]]:
    """Return the MCP servers that a plugin names, and what is wrong with them."""
    place = next((p for name in (MCP_FILE, f".{MCP_FILE}") if os.path.lexists(p := Path(plugin, name))), None)
    if place is None:
        return [], []
    try:
        content = read_regular(place, place.name, MAX_MANIFEST_BYTES)
        servers = read_servers(content, is_own=place.name == MCP_FILE)
    except (UnfitError, SourceError) as error:
        return [], [problem(place.as_posix(), "plugin-mcp-invalid", reason=str(error).rstrip("."))]
    faults = [f"{quoted(server['name'])}: {fault}" for server in servers if (fault := server["fault"])]
    reason = _shorten(faults, "; ")
    problems = [problem(place.as_posix(), "plugin-mcp-invalid", reason=reason)] if faults else []
    return servers, problems


def describe_servers(servers: Iterable[McpServer]) -> str:
    """Return servers in one line."""
    about = ((server, server["fault"] or f"{server['transport']}: {server['target']}") for server in servers)
    return _shorten([f"{quoted(server['name'])} ({text})" for server, text in about], ", ")


def _shorten(items: Sequence[str], between: str) -> str:
    more = f" and {len(items) - MAX_NAMED} more" if len(items) > MAX_NAMED else ""
    return between.join(item[:MAX_SHOWN] for item in items[:MAX_NAMED]) + more
