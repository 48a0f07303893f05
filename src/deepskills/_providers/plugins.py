"""Reads what a directory of the Agent Plugins format says of itself: its name, and the MCP servers that it names.

The manifest is a stranger's file: whatever it holds, the answer is a name or one reason. A plugin that breaks the
format is not used at all, because nothing says what its author meant. Its MCP servers are shown to people and never
started; a mistake there costs nothing else.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import urlsplit

from typing_extensions import TypedDict

from deepskills._io.plan import File
from deepskills._skillmd.problems import listed, problem, quoted
from deepskills._types import MAX_NAME_LENGTH, PLUGIN_MANIFESTS, SkillProblem

MAX_MANIFEST_BYTES = 256 * 1024
"""Largest manifest that is read."""

SCHEMA = "https://agent-plugins.org/schemas/1.0.0/plugin.schema.json"
"""The release of the format that is understood; the address is compared, never fetched."""

FORMAT = b"//agent-plugins.org/"
"""What a manifest that claims the format holds, whichever release."""

MCP_SCHEMA = "https://agent-plugins.org/schemas/1.0.0/mcp.schema.json"
"""The same release of `mcp.json`."""

MCP_FILE = "mcp.json"
"""Where a plugin names its MCP servers."""

_NAME = re.compile(r"(?!.*(?:--|\.\.))[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")


class UnfitError(Exception):
    """A file breaks the format; carries the reason."""


@dataclass(frozen=True)
class Plugin:
    """What a plugin's manifest says."""

    namespace: str = ""
    """Its name; empty if it is not used."""

    problems: list[SkillProblem] = field(default_factory=list)
    failure: str | None = None
    """Why nothing can be said now: the manifest could not be read, and may be fine."""


def manifests_of(root: str) -> list[str]:
    """Return where the manifest of a plugin may lie; the first that there is counts."""
    return [f"{root.rstrip('/')}/{name}" for name in PLUGIN_MANIFESTS]


def read_plugin(root: str, files: Mapping[str, File]) -> Plugin:
    """Return what the manifest of a plugin says. Never raises."""
    paths = manifests_of(root)
    found = [files.get(path) or File(path, error="the backend returned no file") for path in paths]
    file = next((each for each in found if not each.is_missing), None)
    if file is None:
        return Plugin(problems=[_invalid(paths[0], f"there is no {quoted(PLUGIN_MANIFESTS[0])}")])
    if file.unfit is not None:
        large = f"it has over {MAX_MANIFEST_BYTES} bytes"
        return Plugin(
            problems=[_invalid(file.path, large if file.unfit == "too-large" else "it is not a regular file")]
        )
    if file.content is None:
        return Plugin(failure=file.error or "the manifest could not be read")
    try:
        name, unknown = read_manifest(file.content, is_own=file.path == paths[0])
    except UnfitError as unfit:
        return Plugin(problems=[_invalid(file.path, str(unfit))])
    return Plugin(name, [problem(file.path, "plugin-key-unknown", names=listed(unknown))] if unknown else [])


def _invalid(path: str, reason: str) -> SkillProblem:
    return problem(path, "plugin-invalid", reason=reason)


def read_manifest(content: bytes, *, is_own: bool) -> tuple[str, list[str]]:
    """Return a plugin's name, and the keys of its manifest that mean nothing.

    Args:
        content: The manifest.
        is_own: Whether it is held to the format; other clients' manifests have other keys.

    Raises:
        UnfitError: If it breaks the format.
    """
    manifest = _parse(content)
    name = manifest.get("name")
    if not isinstance(name, str) or len(name) > MAX_NAME_LENGTH or not _NAME.fullmatch(name):
        shown = quoted(name) if isinstance(name, str) else "no text"
        raise UnfitError(
            f"its name is {shown}; a name is 1 to {MAX_NAME_LENGTH} lower-case letters, digits, and single hyphens or "
            "dots between them"
        )
    if not is_own:
        return name, []
    for key, (fits, what) in _FIELDS.items():
        if key in manifest and not fits(manifest[key]):
            raise UnfitError(f"`{key}` is not {what}")
    if (schema := manifest.get("$schema")) != SCHEMA:
        given = quoted(schema) if isinstance(schema, str) else "missing"
        raise UnfitError(f"its `$schema` is {given}, and only {quoted(SCHEMA)} is understood")
    known = {"name", "extensions"} if isinstance(manifest.get("extensions"), dict) else {"name"}
    return name, sorted(manifest.keys() - _FIELDS.keys() - known)


def _parse(content: bytes) -> dict[str, object]:
    if len(content) > MAX_MANIFEST_BYTES:
        raise UnfitError(f"it has over {MAX_MANIFEST_BYTES} bytes")
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise UnfitError("it is not readable as JSON") from None
    if not isinstance(value, dict):
        raise UnfitError("it is not a JSON object")
    return value


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_table(value: object) -> bool:
    return isinstance(value, dict) and _are_texts(list(value.values()))


def _is_author(value: object) -> bool:
    return isinstance(value, dict) and _is_table(value) and value.keys() <= {"name", "email", "url"}


_Rule = tuple[Callable[[object], bool], str]
_TEXT: _Rule = (_is_text, "text")
_FIELDS: Mapping[str, _Rule] = {
    **dict.fromkeys(("$schema", "version", "description", "homepage", "repository", "license"), _TEXT),
    "author": (_is_author, "an object with texts for `name`, `email` and `url`"),
    "keywords": (_are_texts, "a list of texts"),
}
"""What the format says of each key beside `name`; `extensions` is other clients' business."""


# --------------------------------------------------------------------------------------------------------------------
# The MCP servers that a plugin names.
# --------------------------------------------------------------------------------------------------------------------


class McpServer(TypedDict):
    """An MCP server that a plugin names."""

    name: str
    transport: str
    target: str
    """What would be started, or asked; not with which arguments and headers."""

    fault: str | None
    """Why it breaks the format, so that clients of the format pass it over."""


def read_servers(content: bytes, *, is_own: bool) -> list[McpServer]:
    """Return the servers that a file names.

    Args:
        content: The file.
        is_own: Whether it is held to the format. Claude Code's `.mcp.json` has no types, and may be the servers alone.

    Raises:
        UnfitError: If it breaks the format as a whole.
    """
    config = _parse(content)
    if is_own and (config.get("$schema") != MCP_SCHEMA or config.keys() != {"$schema", "mcpServers"}):
        raise UnfitError(f"it has not exactly the keys `$schema`, which is {quoted(MCP_SCHEMA)}, and `mcpServers`")
    servers = config.get("mcpServers", config)
    if not isinstance(servers, dict):
        raise UnfitError("its `mcpServers` is not an object")
    return [_read_server(name, entry, is_own=is_own) for name, entry in servers.items()]


def _read_server(name: str, entry: object, *, is_own: bool) -> McpServer:
    if not isinstance(entry, dict):
        return McpServer(name=name, transport="", target="", fault="it is not an object")
    key, rules = ("command", _STDIO) if "command" in entry else ("url", _REMOTE)
    kind = entry.get("type", "" if is_own else "stdio" if key == "command" else "http")
    fault = None
    if is_own and kind not in (("stdio",) if key == "command" else ("streamable-http", "sse")):
        fault = "it has no `type` of the format, or not what that type needs"
    for given, value in entry.items() if is_own else ():
        fits, what = rules.get(given, (_never, "a key of the format"))
        if given != "type" and not fits(value):
            fault = f"`{given}` is not {what}"
    target = entry.get(key)
    if not isinstance(target, str) or not isinstance(kind, str):
        target, kind, fault = "", "", fault or "it has no `command` and no `url`"
    # What follows `?` may be a secret, and so may what stands before `@`.
    shown = "" if fault is not None else target.partition("?")[0].rpartition("@")[2]
    return McpServer(name=name, transport=kind, target=shown, fault=fault)


def _never(_value: object) -> bool:
    return False


def _stays_inside(path: str) -> bool:
    depth = 0
    for part in path.split("/"):
        depth += {"": 0, ".": 0, "..": -1}.get(part, 1)
        if depth < 0:
            return False
    return True


def _is_command(value: object) -> bool:
    if not isinstance(value, str) or "\\" in value:
        return False
    is_bare = bool(value) and "/" not in value and not any(character.isspace() for character in value)
    return is_bare or (value.startswith("./") and _stays_inside(value))


def _is_directory(value: object) -> bool:
    if not isinstance(value, str):
        return False
    start, _slash, rest = value.partition("/")
    return (start in {"${PLUGIN_ROOT}", "${PLUGIN_DATA}"} or value.startswith("./")) and _stays_inside(rest)


def _is_environment(value: object) -> bool:
    return isinstance(value, dict) and _is_table(value) and not {"PLUGIN_ROOT", "PLUGIN_DATA"} & value.keys()


def _is_address(value: object) -> bool:
    try:
        parts = urlsplit(value if isinstance(value, str) else "")
        host = parts.hostname or ""
    except ValueError:
        return False
    if not host or "@" in parts.netloc or "#" in str(value):
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))


def is_loopback(host: str) -> bool:
    """Whether a host, as an address names it, is this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _are_headers(value: object) -> bool:
    return isinstance(value, dict) and _is_table(value) and len({name.lower() for name in value}) == len(value)


_STDIO: Mapping[str, _Rule] = {
    "command": (_is_command, "one name, or a path that begins with `./` and stays in the plugin"),
    "args": (_are_texts, "a list of texts"),
    "env": (_is_environment, "an object of texts without `PLUGIN_ROOT` and `PLUGIN_DATA`"),
    "cwd": (_is_directory, "a path in the plugin or its data"),
}
_REMOTE: Mapping[str, _Rule] = {
    "url": (_is_address, "an https address without credentials (http for this machine)"),
    "headers": (_are_headers, "an object of texts, each name once"),
}
