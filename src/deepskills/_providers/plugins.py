"""Reads what a directory of the Agent Plugins format says of itself, as far as its skills are concerned.

The manifest is a stranger's file: whatever it holds, the answer is a name or one problem. A plugin that breaks the
format is not used at all, because nobody can tell what its author meant.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from deepskills._io.plan import File
from deepskills._providers.sources import NAMESPACE
from deepskills._skillmd.problems import problem, quoted
from deepskills._types import MAX_NAME_LENGTH, PLUGIN_MANIFESTS, SkillProblem

MAX_MANIFEST_BYTES = 256 * 1024
"""Largest manifest that is read."""

SCHEMA = "https://agent-plugins.org/schemas/1.0.0/plugin.schema.json"
"""The release of the format that is understood; the address is compared, never fetched."""

_NAME = re.compile(rf"[a-z0-9](?:[a-z0-9.-]{{0,{MAX_NAME_LENGTH - 2}}}[a-z0-9])?")
_TEXTS = ("$schema", "version", "description", "homepage", "repository", "license")
_AUTHOR = frozenset({"name", "email", "url"})


@dataclass(frozen=True)
class Plugin:
    """What a plugin's manifest says."""

    namespace: str = ""
    problem: SkillProblem | None = None
    """Why the plugin is not used."""

    failure: str | None = None
    """Why nobody can tell now: the manifest could not be read, and may be fine."""


class _Unfit(Exception):  # noqa: N818 - a turn in the flow, never seen outside
    """The manifest breaks the format; carries the reason."""


def manifests_of(root: str) -> list[str]:
    """Return where the manifest of a plugin may lie; the first that there is counts."""
    return [f"{root.rstrip('/')}/{name}" for name in PLUGIN_MANIFESTS]


def read_plugin(root: str, files: Mapping[str, File]) -> Plugin:
    """Return what the manifest of a plugin says. Never raises."""
    paths = manifests_of(root)
    found = [files.get(path) or File(path, error="the backend returned no file") for path in paths]
    file = next((each for each in found if not each.is_missing), None)
    try:
        return _read(file, root, is_own=file is found[0])
    except _Unfit as unfit:
        return Plugin(problem=problem((file or found[0]).path, "plugin-invalid", reason=str(unfit)))


def _read(file: File | None, root: str, *, is_own: bool) -> Plugin:
    if file is None:
        raise _Unfit(f"there is no {quoted(PLUGIN_MANIFESTS[0])}")
    if file.unfit is not None:
        limit = f"it has over {MAX_MANIFEST_BYTES} bytes"
        raise _Unfit(limit if file.unfit == "too-large" else "it is not a regular file")
    if file.content is None:
        return Plugin(failure=file.error or "the manifest could not be read")
    return Plugin(_name_in(_parse(file.content), root, is_own=is_own))


def _parse(content: bytes) -> dict[str, object]:
    try:
        manifest = json.loads(content)
    except (ValueError, RecursionError):
        raise _Unfit("it is not readable as JSON") from None
    if not isinstance(manifest, dict):
        raise _Unfit("it is not a JSON object")
    return manifest


def _name_in(manifest: dict[str, object], root: str, *, is_own: bool) -> str:
    if is_own:
        _check_form(manifest)
    if "name" not in manifest:
        name = PurePosixPath(root).name
        if not NAMESPACE.fullmatch(name):
            raise _Unfit(f"it has no `name`, and the directory's name {quoted(name)} cannot stand for it")
        return name
    given = manifest["name"]
    if not isinstance(given, str) or not _is_name(given):
        shown = quoted(given) if isinstance(given, str) else "no text"
        raise _Unfit(
            f"its name is {shown}; a name is 1 to {MAX_NAME_LENGTH} lower-case letters, digits, and single hyphens or "
            "dots between them"
        )
    return given


def _is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and "--" not in name and ".." not in name


def _check_form(manifest: dict[str, object]) -> None:
    """Hold a manifest of the format to the format; other clients' manifests have other keys."""
    for key in _TEXTS:
        if not isinstance(manifest.get(key, ""), str):
            raise _Unfit(f"`{key}` is not text")
    # Many authors leave it out; what names another release may mean something else by the rest.
    schema = manifest.get("$schema", SCHEMA)
    if schema != SCHEMA:
        raise _Unfit(f"its `$schema` is {quoted(str(schema))}, and only {quoted(SCHEMA)} is understood")
    author = manifest.get("author", {})
    if not isinstance(author, dict) or author.keys() - _AUTHOR or not _are_texts(list(author.values())):
        raise _Unfit("`author` is not an object with texts for `name`, `email` and `url`")
    if not _are_texts(manifest.get("keywords", [])):
        raise _Unfit("`keywords` is not a list of texts")


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
