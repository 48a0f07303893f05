"""`skills-lock.json`, the lock of another installer (`npx skills`): read to say what it brought, never written.

What differs from it is worth a warning and no more. It hashes the source of a skill, and its own installation leaves
files out and replaces links, so that an honest copy may differ.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deepskills._install.paths import MAX_FILE_BYTES, MAX_SKILL_BYTES, SourceError, name_is_safe
from deepskills._install.trees import open_directory

NPX_LOCK = "skills-lock.json"
"""The name of the other installer's lock beside a project."""

NPX = "npx skills"
"""The other installer."""

MAX_BYTES = 16 * 1024 * 1024
"""How large its lock may be."""

_ORDER = " _-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$0123456789"
"""How JavaScript's `localeCompare` orders ASCII; letters follow, whatever their case, lower case first in a tie."""

_WEIGHTS = {character: place for place, character in enumerate(_ORDER)}
_WEIGHTS |= {
    letter: len(_ORDER) + place // 2
    for place, letter in enumerate("aAbBcCdDeEfFgGhHiIjJkKlLmMnNoOpPqQrRsStTuUvVwWxXyYzZ")
}
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class NpxRow:
    """What the other installer's lock says of a skill."""

    source: str
    computed_hash: str | None
    """Its hash over the files; `None` if it has none that could be one."""


def read_npx_lock(lock_path: Path) -> tuple[dict[str, NpxRow], str | None]:
    """Return the rows of the other installer's lock beside ours by name, and why it could not be read."""
    try:
        with lock_path.with_name(NPX_LOCK).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        value = json.loads(content.decode("utf-8-sig")) if len(content) <= MAX_BYTES else None
    except FileNotFoundError:
        return {}, None
    except (OSError, ValueError, RecursionError) as error:
        return {}, f"{NPX_LOCK} cannot be read ({error})"
    rows = value.get("skills") if isinstance(value, Mapping) else None
    if not isinstance(rows, Mapping):
        return {}, f"{NPX_LOCK} is not a lock of {NPX}"
    return {name: _read_row(row) for name, row in rows.items() if name_is_safe(name) and isinstance(row, Mapping)}, None


def _read_row(row: Mapping[str, object]) -> NpxRow:
    source, computed = row.get("source"), row.get("computedHash")
    return NpxRow(
        source if isinstance(source, str) and source.isprintable() else "",
        computed if isinstance(computed, str) and _SHA256.fullmatch(computed) else None,
    )


def hash_directory(directory: Path) -> str | None:
    """Return the other installer's hash of a directory; `None` where it cannot be computed."""
    try:
        tree = open_directory(directory, {".git", "node_modules"})
        # Links are passed over, as that installer does.
        files = [path for path, node in tree.nodes.items() if node.kind == "file"]
        nodes = [tree.nodes[path] for path in files]
        if sum(node.size for node in nodes) > MAX_SKILL_BYTES or any(node.size > MAX_FILE_BYTES for node in nodes):
            return None
        # The order of other characters depends on tables that are not ours.
        if any(character not in _WEIGHTS for path in files for character in path):
            return None
        digest = hashlib.sha256()
        for path, content in tree.contents(sort_as_javascript(files)):
            digest.update(_as_hashed(path).encode() + content)
        return digest.hexdigest()
    except SourceError:
        return None


def sort_as_javascript(paths: Sequence[str]) -> list[str]:
    """Return ASCII paths in the order of `localeCompare`."""

    def key(path: str) -> tuple[list[int], list[bool]]:
        characters = _as_hashed(path)
        return [_WEIGHTS[character] for character in characters], [character.isupper() for character in characters]

    return sorted(paths, key=key)


def _as_hashed(path: str) -> str:
    # That installer takes a backslash in a name for Windows' separator.
    return path.replace("\\", "/")
