"""Finds the skills that a source holds, and decides which of them may be placed. Only the given tree is read."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from deepskills._catalog.lookup import requires_of
from deepskills._errors import SkillNotFoundError
from deepskills._install.lock import LockedFile
from deepskills._install.trees import (
    GIT_DIRECTORY,
    MAX_FILE_BYTES,
    MAX_SKILL_BYTES,
    MAX_SKILL_FILES,
    MAX_SKILLS,
    STAGING,
    Node,
    SourceError,
    Tree,
    folded,
    name_is_safe,
    path_fault,
    shown,
)
from deepskills._loading.budget import count_tokens
from deepskills._skillmd.problems import listed, problem
from deepskills._skillmd.read import decode_skill, read_skill
from deepskills._types import MAX_SKILL_FILE_BYTES, SKILL_FILE, SkillProblem

ROOT = "."
"""The path of a skill that is the source itself."""

SCRIPT_SUFFIXES = (
    ".py",
    ".sh",
    ".bash",
    ".js",
    ".mjs",
    ".ts",
    ".rb",
    ".pl",
    ".ps1",
    ".bat",
    ".cmd",
    ".exe",
    ".so",
    ".jar",
)
"""Files that are shown as code, beside what is executable or lies in `scripts/`."""

_NOT_PLACED: Mapping[str, str] = {
    "link": "it holds a link, {path}; links are not placed",
    "special": "it holds {path}, which is not a regular file",
    "submodule": "it holds a submodule, {path}, whose files are not part of the repository",
}


@dataclass(frozen=True)
class Candidate:
    """A skill of a source."""

    name: str
    path: str
    """Its directory in the source."""

    files: Mapping[str, Node] = field(default_factory=dict)
    """Its files by path relative to it."""

    description: str = ""
    tokens: int = 0
    problems: Sequence[SkillProblem] = ()
    refusal: str | None = None
    """Why it cannot be placed."""

    requires: Sequence[str] = ()
    """Names of the skills that it requires."""

    @property
    def size(self) -> int:
        """How many bytes its files have together."""
        return sum(node.size for node in self.files.values())

    @property
    def scripts(self) -> list[str]:
        """The files that are code, which whoever adds it should look at first."""
        return [path for path, node in sorted(self.files.items()) if is_script(path, executable=node.executable)]


def is_script(path: str, *, executable: bool) -> bool:
    """Whether a file is shown as code."""
    return executable or path.startswith("scripts/") or path.lower().endswith(SCRIPT_SUFFIXES)


def find_candidates(tree: Tree, label: str) -> list[Candidate]:
    """Return the skills of a source by path, at any depth.

    Raises:
        SourceError: If there are none, or too many.
    """
    directories = sorted(path.rpartition("/")[0] for path in tree.nodes if path.rpartition("/")[2] == SKILL_FILE)
    if not directories:
        raise SourceError(f"There is no {SKILL_FILE} in {label}. A skill is a directory with a file of that name.")
    if len(directories) > MAX_SKILLS:
        raise SourceError(f"{label} holds {len(directories):,} skills; at most {MAX_SKILLS:,} are looked at.")
    files = _files_of(directories, tree)
    readable = [
        _below(directory, SKILL_FILE)
        for directory in directories
        if (node := files[directory][SKILL_FILE]).kind == "file" and node.size <= MAX_SKILL_FILE_BYTES
    ]
    texts = dict(tree.contents(readable))
    return [_candidate(d, files[d], texts.get(_below(d, SKILL_FILE))) for d in directories]


def _files_of(directories: Sequence[str], tree: Tree) -> dict[str, dict[str, Node]]:
    """Return the files below each directory, in one pass, because sources have thousands of both."""
    found: dict[str, dict[str, Node]] = {directory: {} for directory in directories}
    for path, node in tree.nodes.items():
        above = path
        while above:
            above = above.rpartition("/")[0]
            if above in found:
                found[above][path[len(above) + 1 if above else 0 :]] = node
    return found


def _below(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name


def _candidate(directory: str, files: Mapping[str, Node], content: bytes | None) -> Candidate:
    path = directory or ROOT
    fallback = directory.rpartition("/")[2] or "skill"
    refusal = _refusal(directory, files)
    if content is None:
        return Candidate(fallback, path, files, refusal=refusal or f"its {SKILL_FILE} is too large")
    # Without a directory the name comes from the frontmatter alone; problems of the file do not hang on it.
    reading = read_skill(content, path=_below(directory or fallback, SKILL_FILE))
    if reading.metadata is None:
        why = "; ".join(found["message"] for found in reading.problems if found["severity"] == "error")
        return Candidate(fallback, path, files, problems=reading.problems, refusal=refusal or why)
    name = reading.metadata["name"]
    problems = [
        found for found in reading.problems if not (directory == "" and found["code"] == "name-directory-mismatch")
    ]
    text = decode_skill(content, path=path)[0]
    if refusal is None and not name_is_safe(name):
        refusal = f"its name {shown(name)} cannot be the name of a directory"
    return Candidate(
        name,
        path,
        files,
        reading.metadata["description"],
        count_tokens(text),
        problems,
        refusal,
        requires_of(reading.frontmatter),
    )


def _refusal(directory: str, files: Mapping[str, Node]) -> str | None:  # noqa: PLR0911 - a list of reasons
    """Return why a skill is not placed, whatever its text says."""
    if directory and (fault := path_fault(directory)) is not None:
        return f"its directory {shown(directory)} is refused: {fault}"
    skill_file = files[SKILL_FILE]
    if skill_file.kind == "link":
        return f"its {SKILL_FILE} is a link; links are not followed"
    if len(files) > MAX_SKILL_FILES or sum(node.size for node in files.values()) > MAX_SKILL_BYTES:
        return f"it has over {MAX_SKILL_FILES:,} files or {MAX_SKILL_BYTES:,} bytes"
    spellings: dict[str, str] = {}
    for path, node in files.items():
        if node.kind != "file":
            return _NOT_PLACED[node.kind].format(path=shown(path))
        if (fault := path_fault(path)) is not None:
            return f"its file {shown(path)} is refused: {fault}"
        if node.size > MAX_FILE_BYTES:
            return f"its file {shown(path)} is larger than {MAX_FILE_BYTES:,} bytes"
        # In any case: file systems that ignore it would make `.GIT` a repository.
        if any(part.lower() in {GIT_DIRECTORY, STAGING} for part in path.split("/")):
            return f"it holds {shown(path)}, and what lies in {GIT_DIRECTORY} can make git run commands"
        if (other := _collision(path, spellings)) is not None:
            return f"{shown(other)} and {shown(path)} are one file on systems that ignore case"
    return None


def _collision(path: str, spellings: dict[str, str]) -> str | None:
    """Return what a path, or a directory of it, collides with where case is ignored."""
    parts = path.split("/")
    for length in range(1, len(parts) + 1):
        prefix = "/".join(parts[:length])
        other = spellings.setdefault(folded(prefix), prefix)
        if other != prefix:
            return other
    return None


def choose(candidates: Sequence[Candidate], names: Sequence[str], label: str) -> list[Candidate]:
    """Return the skills that were asked for by name or by path; without names, all but those inside another skill.

    Raises:
        SkillNotFoundError: If the source has no such skill.
        SourceError: If a name stands for several.
    """
    if not names:
        directories = {candidate.path for candidate in candidates} - {ROOT}
        # A skill inside another's directory is part of it, unless it is asked for.
        return [c for c in candidates if not any(above in directories for above in _above(c.path))]
    chosen: dict[str, Candidate] = {}
    for name in names:
        wanted = name.strip().rstrip("/").removeprefix("./") or ROOT
        found = [c for c in candidates if c.path == wanted] or [c for c in candidates if c.name == wanted]
        found = found or [c for c in candidates if folded(c.name) == folded(wanted)]
        if not found:
            known = ", ".join(sorted({c.name for c in candidates})[:50])
            raise SkillNotFoundError(f"There is no skill {shown(name)} in {label}. It has: {known}.")
        if len(found) > 1:
            paths = ", ".join(c.path for c in found)
            raise SourceError(f"{label} has several skills named {shown(name)}. Name one by its path: {paths}.")
        chosen[found[0].path] = found[0]
    return list(chosen.values())


def with_required(
    candidates: Sequence[Candidate], chosen: Sequence[Candidate], installed: Iterable[str]
) -> list[Candidate]:
    """Return skills with those of the same source that they require, directly and by way of others.

    What the source does not have and the project does not either becomes a problem of the skill that requires it. Of
    several skills of one name, a neighbour is meant.
    """
    by_name: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        by_name.setdefault(folded(candidate.name), []).append(candidate)
    result: dict[str, Candidate] = {}
    waiting = list(reversed(chosen))
    taken = {folded(candidate.name) for candidate in chosen}
    present = {folded(name) for name in installed}
    while waiting:
        candidate = waiting.pop()
        if candidate.path in result:
            continue
        missing = []
        for name in candidate.requires:
            if folded(name) in taken:
                continue
            found = by_name.get(folded(name), [])
            near = [other for other in found if _directory_of(other) == _directory_of(candidate)]
            if len(near or found) == 1:
                taken.add(folded(name))
                waiting += near or found
            elif folded(name) not in present:
                missing.append(name)
        if missing:
            noted = problem(_below(candidate.path, SKILL_FILE), "requires-missing", names=listed(missing))
            candidate = replace(candidate, problems=[*candidate.problems, noted])
        result[candidate.path] = candidate
    return list(result.values())


def _directory_of(candidate: Candidate) -> str:
    return candidate.path.rpartition("/")[0]


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts))]


def twice_named(candidates: Sequence[Candidate]) -> dict[str, str]:
    """Return why skills that share a directory's name cannot be placed together, by path."""
    by_name: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        by_name.setdefault(folded(candidate.name), []).append(candidate)
    return {
        candidate.path: f"the source has several skills of this name: {', '.join(c.path for c in same)}; "
        "choose one with --skill PATH"
        for same in by_name.values()
        if len(same) > 1
        for candidate in same
    }


def stage(tree: Tree, candidates: Sequence[Candidate], into: Path) -> dict[str, dict[str, LockedFile]]:
    """Write skills into directories of their own below `into`, and return the files of each by path.

    Raises:
        SourceError: If a file is not as the tree said.
    """
    targets: dict[str, list[tuple[Candidate, str]]] = {}
    locked: dict[str, dict[str, LockedFile]] = {}
    for candidate in candidates:
        locked[candidate.name] = {}
        for relative, node in candidate.files.items():
            targets.setdefault(node.path, []).append((candidate, relative))
    for path, content in tree.contents(targets):
        for candidate, relative in targets[path]:
            file = into / candidate.name / relative
            executable = candidate.files[relative].executable
            write_new(file, content, executable=executable)
            sha256 = hashlib.sha256(content).hexdigest()
            locked[candidate.name][relative] = LockedFile(sha256, len(content), executable)
    for candidate in candidates:
        # A tree that yields less than it listed must not become a lock with a gap.
        if locked[candidate.name].keys() != candidate.files.keys():
            raise SourceError(f"Not all files of {candidate.name} could be read. Try again.")
    return locked


def write_new(path: Path, content: bytes, *, executable: bool = False) -> None:
    """Write a file that must not be there yet, byte for byte."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Exclusive: a second file of the same spelling on this disk is an error, not an overwrite.
    with path.open("xb") as file:
        file.write(content)
    path.chmod(0o755 if executable else 0o644)
