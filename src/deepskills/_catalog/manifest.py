"""The full set of a skill's files, each by its SHA-256, and one digest over all of them. Pure.

The digest is what `sha256sum` over the skill's files, sorted by path, and `sha256sum` over that output give. Locks,
approvals and skills that a server describes use the same one, so that what was reviewed in one place is recognised in
another.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

ALGORITHM = "sha256:"
"""How a digest over several files starts; digests of single files are bare hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class FileDigest:
    """One file of a skill."""

    sha256: str
    """SHA-256 of its content, 64 hexadecimal digits."""

    size: int
    """Size in bytes."""


@dataclass(frozen=True)
class SkillManifest:
    """Every file of a skill, and where the skill comes from."""

    origin: str
    """Who gave the skill: the path of its source, or what a backend says, such as a server's label and a URI."""

    files: Mapping[str, FileDigest]
    """Each file by its path relative to the skill, `SKILL.md` included."""

    remembered: bool = True
    """Whether an approval may be kept; not so for content that changes with every read."""

    text: str = field(default="", compare=False, repr=False)
    """The `SKILL.md`, where it was read for its digest."""

    @property
    def digest(self) -> str:
        """The digest over all files."""
        return digest_over({path: file.sha256 for path, file in self.files.items()})


def digest_over(files: Mapping[str, str]) -> str:
    """Return the digest over a set of files, given as paths and the SHA-256 of each.

    It is the SHA-256 of lines as `sha256sum` prints them, sorted by the bytes of the paths. For UTF-8 that is the order
    of the characters, which is how Python sorts text.
    """
    lines = "".join(f"{files[path]}  {path}\n" for path in sorted(files))
    return ALGORITHM + hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest()


def file_digest(content: bytes) -> FileDigest:
    """Return the digest of one file's content."""
    return FileDigest(hashlib.sha256(content).hexdigest(), len(content))
