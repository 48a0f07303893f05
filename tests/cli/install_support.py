"""What the tests of installed skills share: repositories, archives and projects, and one way to run a command."""

import io
import json
import os
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from support import skill_md, write_files
from support.command_line import invoke

SKILLS = Path(".agents/skills")
LOCK = Path("deepskills.lock")

LIBRARY: Mapping[str, str | bytes] = {
    "skills/pdf/SKILL.md": skill_md("pdf", "Works with PDF files."),
    "skills/pdf/scripts/run.py": "print('pdf')\n",
    "skills/pdf/assets/logo.bin": bytes(range(256)),
    "skills/pdf/references/crlf.md": b"one\r\ntwo\r\n",
    "deep/er/still/csv/SKILL.md": skill_md("csv", "Works with CSV files."),
    "README.md": "A library of skills.\n",
}
"""Two skills at different depths, and a file that belongs to neither."""


def succeed(*args: str) -> Result:
    """Run a command that must succeed."""
    result = invoke(*args)
    assert result.exit_code == 0, result.output
    return result


def refuse(code: int, *args: str) -> str:
    """Run a command that must fail with a code, and return all it said, on one line."""
    result = invoke(*args)
    assert result.exit_code == code, (result.exit_code, result.output)
    assert "Traceback" not in result.output
    return " ".join(result.output.split())


def git(repository: Path, *args: str) -> str:
    """Run git in a repository of the test's own."""
    environment = {
        **os.environ,
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b.c",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b.c",
    }
    done = subprocess.run(["git", *args], cwd=repository, env=environment, check=True, capture_output=True)
    return done.stdout.decode().strip()


def commit(repository: Path, files: Mapping[str, str | bytes] | None = None, message: str = "change") -> str:
    """Write files into a repository, commit everything, and return the commit."""
    write_files(repository, files or {})
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", message)
    return git(repository, "rev-parse", "HEAD")


def make_repository(place: Path, files: Mapping[str, str | bytes] = LIBRARY) -> str:
    """Make a repository with one commit on `main`, and return its URL."""
    place.mkdir(parents=True)
    git(place, "init", "--quiet", "--initial-branch=main")
    git(place, "config", "core.autocrlf", "false")
    commit(place, files)
    return place.as_uri()


def make_zip(place: Path, entries: Mapping[str, str | bytes] = LIBRARY) -> Path:
    """Make a `.zip` of files."""
    with zipfile.ZipFile(place, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return place


def make_tar(
    place: Path, entries: Mapping[str, str | bytes] = LIBRARY, change: Callable[[tarfile.TarFile], None] | None = None
) -> Path:
    """Make a `.tar.gz` of files; `change` adds what an honest packer would not."""
    with tarfile.open(place, "w:gz") as archive:
        for name, content in entries.items():
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        if change is not None:
            change(archive)
    return place


def snapshot(*roots: Path) -> dict[str, Any]:
    """Return everything below directories: contents, links and executable bits, by path."""
    found: dict[str, Any] = {}
    for root in roots:
        for path in sorted([root, *root.rglob("*")]) if root.exists() else []:
            if path.is_symlink():
                found[str(path)] = ("link", str(path.readlink()))
            elif path.is_file():
                found[str(path)] = (path.read_bytes(), bool(path.stat().st_mode & 0o100))
            elif path.is_dir():
                found[str(path)] = "directory"
    return found


def set_limit(patch: pytest.MonkeyPatch, name: str, value: int) -> None:
    """Make a limit of the installer small enough for a test."""
    patch.setattr(f"deepskills._install.{name}", value)


def lock_rows() -> dict[str, Any]:
    """Return the skills of the project's lock."""
    rows: dict[str, Any] = json.loads(LOCK.read_text(encoding="utf-8"))["skills"]
    return rows
