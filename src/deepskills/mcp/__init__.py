"""Skills over MCP: `McpSkills` brings the skills of MCP servers into an agent, `SkillsExtension` serves your own.

What may live here: both sides of the extension `io.modelcontextprotocol/skills` of the Model Context Protocol. The host
works with both majors of the `mcp` package, the server with 2.x; nothing else in deepskills imports `mcp`.
"""

from typing import TYPE_CHECKING

try:
    from deepskills.mcp.host import McpSkills
except ModuleNotFoundError as error:  # pragma: no cover - without the extra
    if (error.name or "").partition(".")[0] == "deepskills":
        raise
    raise ModuleNotFoundError(
        f"deepskills.mcp needs {error.name}. Install it with: pip install 'deepskills[mcp]'", name=error.name
    ) from error

if TYPE_CHECKING:
    from deepskills.mcp.server import SkillsExtension

__all__ = ["McpSkills", "SkillsExtension"]


def __getattr__(name: str) -> object:
    # The server needs `mcp` 2.x; a host with `mcp` 1.x must not fail because of that.
    if name == "SkillsExtension":
        from deepskills.mcp.server import SkillsExtension  # noqa: PLC0415 - only if it is asked for

        return SkillsExtension
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
