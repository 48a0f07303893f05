"""Locks of skills, as `deepskills.lock` holds them."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def digest_over(files: Mapping[str, str]) -> str:
    """Return the digest of a skill, as documented: over the lines that `sha256sum` prints, sorted by path."""
    lines = "".join(f"{files[path]}  {path}\n" for path in sorted(files))
    return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


def lock_row(directory: Path, files: Iterable[Path] | None = None) -> dict[str, Any]:
    """Return the row of the skill in a directory as it is now, with all of its files or these."""
    taken = [path for path in directory.rglob("*") if path.is_file()] if files is None else files
    rows = {
        path.relative_to(directory).as_posix(): {
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "size": path.stat().st_size,
            "executable": False,
        }
        for path in taken
    }
    digest = digest_over({path: str(row["sha256"]) for path, row in rows.items()})
    return {"source": "x", "ref": None, "commit": None, "path": directory.name, "digest": digest, "files": rows}
