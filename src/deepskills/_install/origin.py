"""Decides what a user or a lock means by a source, and checks it before anything is fetched.

A source is data, even when it comes from a lock of another author. So it is never given to a shell, never read
as an option, and only transports that fetch data are allowed: git's `ext::` and its relatives run commands.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import SplitResult, urlsplit, urlunsplit

from deepskills._install.paths import SourceError, quote_path
from deepskills._providers.plugins import is_loopback

OriginKind: TypeAlias = Literal["directory", "git", "zip", "tar", "site"]

TRANSPORTS = ("https", "ssh", "file", "http", "git")
"""How repositories are fetched."""

GITHUB = "https://github.com/{}.git"
"""What `owner/name` stands for."""

ARCHIVES: dict[str, OriginKind] = {".zip": "zip", ".tar.gz": "tar", ".tgz": "tar"}
"""Archives by the end of their names."""

INDEX = "/.well-known/agent-skills/index.json"
"""Where a site names the skills that it publishes."""

_OWNER_AND_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*")
_REMOTE_SHELL = re.compile(r"(?P<user>[A-Za-z0-9_.-]+@)?(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*):(?P<path>[^:\s][^\s]*)")
_REF = re.compile(r"[^\x00-\x20\x7f~^:?*\[\\]+")
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


@dataclass(frozen=True)
class Origin:
    """A source that can be fetched."""

    kind: OriginKind
    location: str
    """What is fetched: a URL, or an absolute path of this machine."""

    recorded: str
    """How a lock names it: without credentials, and relative to the lock where it lies on this machine."""

    ref: str | None = None


def parse_origin(given: str, ref: str | None, start: Path, lock_directory: Path) -> Origin:
    """Return what a user or a lock means by a source.

    Args:
        given: A directory, an archive, a repository's URL, or `owner/name`.
        ref: A branch, a tag or a commit; repositories only.
        start: The directory that relative paths start from: the user's, or the lock's for what stands in a lock.
        lock_directory: The lock's directory, which recorded paths start from.

    Raises:
        SourceError: If it names nothing that skills can be fetched from.
    """
    if not given.strip() or not given.isprintable() or given.startswith("-"):
        raise SourceError(
            f"The source {quote_path(given)} is not a path or a URL. Name a directory, an archive or a repository."
        )
    check_ref(ref)
    # What exists on this machine comes first: `owner/name` may be a directory here.
    local = _find_local(given, start)
    if local is not None:
        return _parse_path(local, given, ref, lock_directory)
    # `ext::sh -c ...` would run a command.
    if "::" in given.partition("//")[0]:
        raise SourceError(
            f"The source {quote_path(given)} names a git helper that runs commands. Use an https or ssh URL."
        )
    if "://" in given:
        return _parse_url(given, ref)
    if _OWNER_AND_NAME.fullmatch(given):
        name = given.removesuffix(".git")
        return Origin("git", GITHUB.format(name), GITHUB.format(name), ref)
    if _REMOTE_SHELL.fullmatch(given):
        return Origin("git", given, given, ref)
    raise SourceError(
        f"There is no {quote_path(given)} on this machine, and it is not a URL or `owner/name`. Check the spelling."
    )


def check_ref(ref: str | None) -> None:
    """Check the name of a branch, a tag or a commit.

    Raises:
        SourceError: If git would read it as something else, such as an option.
    """
    if ref is None:
        return
    # git's own rules for names, so that none is read as an option, a range or an expression.
    is_name = _REF.fullmatch(ref) and not ref.startswith(("-", "/", "+")) and not ref.endswith(("/", ".", ".lock"))
    if not is_name or ".." in ref or "@{" in ref or "//" in ref or ref == "@":
        raise SourceError(f"{quote_path(ref)} is not the name of a branch, a tag or a commit.")


def is_commit(ref: str | None) -> bool:
    """Whether a ref is a commit's full id, which never moves."""
    return ref is not None and _COMMIT.fullmatch(ref) is not None


def strip_credentials(url: str) -> str:
    """Return a URL without user and password; the user of a remote shell, which is not a secret, stays."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    user = parts.netloc.rpartition("@")[0].partition(":")[0]
    keeps_user = parts.scheme == "ssh" and user
    return urlunsplit((parts.scheme, f"{user}@{host}" if keeps_user else host, parts.path, parts.query, parts.fragment))


def _find_local(given: str, base: Path) -> Path | None:
    if "://" in given:
        return None
    try:
        path = Path(given).expanduser()
    except RuntimeError:
        return None
    # Not resolved: a directory that is a link is still the directory that was named.
    path = Path(os.path.abspath(base / path))  # noqa: PTH100 - pathlib keeps `..`
    looks_local = given.startswith((".", "/", "~"))
    return path if looks_local or os.path.lexists(path) else None


def _parse_path(path: Path, given: str, ref: str | None, base: Path) -> Origin:
    # Relative to the lock, so that the lock is the same on every machine that has the project.
    recorded = Path(os.path.relpath(path, base)).as_posix()
    recorded = recorded if recorded.startswith(".") else f"./{recorded}"
    if path.is_dir():
        if ref is not None:
            # The latter is a bare repository.
            if not (path / ".git").exists() and not (path / "HEAD").is_file():
                raise SourceError(
                    f"The directory {quote_path(given)} is not a git repository, so it has no ref {quote_path(ref)}."
                )
            return Origin("git", path.as_uri(), recorded, ref)
        return Origin("directory", str(path), recorded)
    kind = next((kind for suffix, kind in ARCHIVES.items() if path.name.lower().endswith(suffix)), None)
    if not path.exists():
        raise SourceError(f"There is nothing at {quote_path(given)}. Check the path.")
    if kind is None or not path.is_file():
        raise SourceError(f"{quote_path(given)} is neither a directory nor a .zip or .tar.gz file.")
    if ref is not None:
        raise SourceError(f"{quote_path(given)} is an archive, which has no refs. Leave out --ref.")
    return Origin(kind, str(path), recorded)


def _parse_url(given: str, ref: str | None) -> Origin:
    try:
        parts = urlsplit(given)
        host = parts.hostname or ""
    except ValueError:
        raise SourceError(f"{quote_path(given)} is not a URL.") from None
    if parts.scheme.lower() not in TRANSPORTS:
        raise SourceError(f"Sources with {quote_path(parts.scheme)} are not fetched. Use {', '.join(TRANSPORTS[:3])}.")
    if host.startswith("-") or parts.path.startswith("-") or (parts.scheme != "file" and not host):
        raise SourceError(f"{quote_path(strip_credentials(given))} has no host that could be asked.")
    if (base := _find_base(parts.path)) is not None and parts.scheme in {"https", "http"}:
        return _make_site(parts, base, ref)
    if any(parts.path.lower().endswith(suffix) for suffix in ARCHIVES):
        raise SourceError("Archives are read from this machine. Download it, look at it, and name the file.")
    return Origin("git", given, strip_credentials(given), ref)


def _find_base(path: str) -> str | None:
    """Return what stands before the index in the path of a site's address; `None` if it is a repository's."""
    path = path.rstrip("/")
    base = path.removesuffix(INDEX).removesuffix(INDEX.rpartition("/")[0])
    return base if not base or base != path else None


def _make_site(parts: SplitResult, base: str, ref: str | None) -> Origin:
    host = f"{parts.scheme}://{parts.netloc.lower()}"
    if parts.username is not None or parts.query or parts.fragment:
        raise SourceError(f"Name the site without credentials, `?` and `#`: {strip_credentials(host)}.")
    if ref is not None:
        raise SourceError(f"{host} is a site, which has no refs. Leave out --ref.")
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise SourceError(f"{host} could be changed on the way. Use https.")
    return Origin("site", f"{host}{base}{INDEX}", f"{host}{base}{INDEX}" if base else host)
