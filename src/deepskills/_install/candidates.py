"""Finds the skills that a source holds, and decides which of them may be placed. Only the given tree is read."""

import hashlib
import posixpath
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from deepskills._catalog.lookup import requires_of
from deepskills._errors import SkillNotFoundError
from deepskills._install.lock import LockedFile
from deepskills._install.paths import (
    GIT_DIRECTORY,
    MAX_ENTRIES,
    MAX_FILE_BYTES,
    MAX_INSTRUCTION_BYTES,
    MAX_PLACED_BYTES,
    MAX_SKILL_BYTES,
    MAX_SKILL_FILES,
    MAX_SKILLS,
    STAGING,
    SourceError,
    fold_case,
    name_is_safe,
    path_fault,
    quote_path,
)
from deepskills._install.trees import Node, Tree
from deepskills._loading.budget import count_tokens
from deepskills._providers.plugins import FORMAT, MAX_MANIFEST_BYTES, UnfitError, read_manifest
from deepskills._skillmd.problems import listed, problem
from deepskills._skillmd.read import decode_skill, read_skill, validate_skill
from deepskills._types import MAX_SKILL_FILE_BYTES, PLUGIN_MANIFESTS, SKILL_FILE, SkillProblem

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
    """Its files by path relative to it, once it is chosen."""

    description: str = ""
    tokens: int = 0
    problems: Sequence[SkillProblem] = ()
    refusal: str | None = None
    """Why it cannot be placed."""

    requires: Sequence[str] = ()
    """Names of the skills that it requires."""


def is_script(path: str, *, executable: bool) -> bool:
    """Whether a file is shown as code."""
    return executable or path.startswith("scripts/") or path.lower().endswith(SCRIPT_SUFFIXES)


def find_candidates(tree: Tree, label: str) -> list[Candidate]:
    """Return the skills of a source by path, at any depth, without their files: see `collect_files`.

    Of a plugin they are those directly below `skills/`, and one that the strict reading refuses cannot be placed.

    Raises:
        SourceError: If there are none, or too many.
    """
    directories = sorted(path.rpartition("/")[0] for path in tree.nodes if path.rpartition("/")[2] == SKILL_FILE)
    below_skills = [path for path in directories if path.startswith("skills/") and path.count("/") == 1]
    # A repository may call itself a plugin and keep its skills elsewhere; then it is read like any other.
    is_plugin = bool(below_skills) and any(name in tree.nodes for name in PLUGIN_MANIFESTS)
    if is_plugin:
        directories = below_skills
        _check_manifest(tree, label)
    if not directories and not tree.faults:
        raise SourceError(f"There is no {SKILL_FILE} in {label}. A skill is a directory with a file of that name.")
    if len(directories) > MAX_SKILLS:
        raise SourceError(f"{label} holds {len(directories):,} skills; at most {MAX_SKILLS:,} are looked at.")
    found: dict[str, Candidate] = {}
    readable: dict[str, str] = {}
    for directory in directories:
        node = tree.nodes[posixpath.join(directory, SKILL_FILE)]
        fault = path_fault(directory) if directory else None
        if fault is not None:
            refusal = f"its directory {quote_path(directory)} is refused: {fault}"
        elif node.kind != "file":
            refusal = f"its {SKILL_FILE} is a link; links are not followed"
        elif node.size > MAX_SKILL_FILE_BYTES:
            refusal = f"its {SKILL_FILE} is too large"
        else:
            readable[node.path] = directory
            continue
        found[directory] = Candidate(directory.rpartition("/")[2] or "skill", directory or ROOT, refusal=refusal)
    size = sum(tree.nodes[path].size for path in readable)
    if size > MAX_INSTRUCTION_BYTES:
        raise SourceError(
            f"The {SKILL_FILE} files of {label} have {size:,} bytes; at most {MAX_INSTRUCTION_BYTES:,} are read."
        )
    # One at a time: none is kept.
    for path, content in tree.contents(readable):
        candidate = _candidate(readable[path], content)
        found[readable[path]] = _require_format(candidate, path, content) if is_plugin else candidate
    faults = [Candidate(path, path, refusal=reason) for path, reason in tree.faults.items()]
    return [*(found[directory] for directory in directories), *faults]


def _check_manifest(tree: Tree, label: str) -> None:
    """Check the manifest of a plugin that claims the format; others have a `plugin.json` of their own.

    Raises:
        SourceError: If it breaks the format, which then refuses the plugin as a whole.
    """
    path = PLUGIN_MANIFESTS[0]
    node = tree.nodes.get(path)
    if node is None or node.kind != "file" or node.size > MAX_MANIFEST_BYTES:
        return
    [(_, content)] = tree.contents([path])
    if FORMAT not in content:
        return
    try:
        read_manifest(content, is_own=True)
    except UnfitError as unfit:
        raise SourceError(f"The plugin {label} is not used: {unfit}.") from None


def _require_format(candidate: Candidate, path: str, content: bytes) -> Candidate:
    """Return a plugin's skill, with a refusal if it does not follow the specification to the letter."""
    why = " ".join(fault["message"] for fault in validate_skill(content, path=path)).rstrip(".")
    refusal = f"a plugin's skill must follow the specification: {why}" if why else None
    return replace(candidate, refusal=candidate.refusal or refusal)


def collect_files(tree: Tree, chosen: Sequence[Candidate], label: str) -> list[Candidate]:
    """Return chosen skills with their files, and with a refusal where one cannot be placed.

    Raises:
        SourceError: If all together are too many or too large: skills can lie inside each other hundreds of times, and
            each of them has all files of those inside it.
    """
    paths = sorted(tree.nodes)
    spans = {}
    for candidate in chosen:
        prefix = "" if candidate.path == ROOT else f"{candidate.path}/"
        # "0" is what follows "/".
        start, end = (bisect_left(paths, prefix), bisect_left(paths, f"{prefix[:-1]}0")) if prefix else (0, len(paths))
        spans[candidate.path] = (len(prefix), start, end)
    count = sum(end - start for _, start, end in spans.values())
    if count > MAX_ENTRIES:
        raise SourceError(f"The skills of {label} have {count:,} files; at most {MAX_ENTRIES:,} are placed at once.")
    twice = _find_duplicates(chosen)
    result = []
    for candidate in chosen:
        cut, start, end = spans[candidate.path]
        files = {path[cut:]: tree.nodes[path] for path in paths[start:end]}
        refusal = candidate.refusal or _refusal(files) or twice.get(candidate.path)
        result.append(replace(candidate, files=files, refusal=refusal))
    size = sum(node.size for candidate in result if candidate.refusal is None for node in candidate.files.values())
    if size > MAX_PLACED_BYTES:
        raise SourceError(
            f"The skills of {label} have {size:,} bytes; at most {MAX_PLACED_BYTES:,} are placed at once."
        )
    return result


def _candidate(directory: str, content: bytes) -> Candidate:
    path = directory or ROOT
    fallback = directory.rpartition("/")[2] or "skill"
    # Without a directory the name comes from the frontmatter alone; problems of the file do not hang on it.
    reading = read_skill(content, path=posixpath.join(directory or fallback, SKILL_FILE))
    if reading.metadata is None:
        why = "; ".join(found["message"] for found in reading.problems if found["severity"] == "error")
        return Candidate(fallback, path, problems=reading.problems, refusal=why)
    name = reading.metadata["name"]
    problems = [
        found for found in reading.problems if not (directory == "" and found["code"] == "name-directory-mismatch")
    ]
    return Candidate(
        name,
        path,
        {},
        reading.metadata["description"],
        count_tokens(decode_skill(content, path=path)[0]),
        problems,
        None if name_is_safe(name) else f"its name {quote_path(name)} cannot be the name of a directory",
        requires_of(reading.frontmatter),
    )


def _refusal(files: Mapping[str, Node]) -> str | None:  # noqa: PLR0911 - a list of reasons
    """Return why the files of a skill are not placed."""
    if len(files) > MAX_SKILL_FILES or sum(node.size for node in files.values()) > MAX_SKILL_BYTES:
        return f"it has over {MAX_SKILL_FILES:,} files or {MAX_SKILL_BYTES:,} bytes"
    spellings: dict[str, str] = {"": ""}
    known: set[str] = {""}
    for path, node in files.items():
        if node.kind != "file":
            return _NOT_PLACED[node.kind].format(path=quote_path(path))
        if (fault := path_fault(path)) is not None:
            return f"its file {quote_path(path)} is refused: {fault}"
        if node.size > MAX_FILE_BYTES:
            return f"its file {quote_path(path)} is larger than {MAX_FILE_BYTES:,} bytes"
        # In any case: file systems that ignore it would make `.GIT` a repository.
        if any(part.lower() in {GIT_DIRECTORY, STAGING} for part in path.split("/")):
            return f"it holds {quote_path(path)}, and what lies in {GIT_DIRECTORY} can make git run commands"
        # The path, and each directory above it that no other path led to.
        while path not in known:
            known.add(path)
            if (other := spellings.setdefault(fold_case(path), path)) != path:
                return f"{quote_path(other)} and {quote_path(path)} are one file on systems that ignore case"
            path = path.rpartition("/")[0]  # noqa: PLW2901 - on the way up
    return _find_repository(spellings)


_OF_A_REPOSITORY = ("objects", "refs", "commondir")
"""What stands beside `HEAD` in a directory that git takes for a repository: the first two, or the last."""


def _find_repository(spellings: Mapping[str, str]) -> str | None:
    """Return why files are not placed among which git would see a repository that is not named `.git`."""
    for spelling, path in spellings.items():
        place, slash, name = spelling.rpartition("/")
        if name != "head":
            continue
        beside = {own for own in _OF_A_REPOSITORY if f"{place}{slash}{own}" in spellings}
        if "commondir" in beside or len(beside) > 1:
            directory = quote_path(path.rpartition("/")[0] or ROOT)
            return (
                f"its directory {directory} is laid out as a git repository, whose settings can make git run commands"
            )
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
        return [c for c in candidates if directories.isdisjoint(map(str, PurePosixPath(c.path).parents))]
    chosen: dict[str, Candidate] = {}
    for name in names:
        wanted = name.strip().rstrip("/").removeprefix("./") or ROOT
        found = [c for c in candidates if c.path == wanted] or [c for c in candidates if c.name == wanted]
        found = found or [c for c in candidates if fold_case(c.name) == fold_case(wanted)]
        if not found:
            known = ", ".join(sorted({c.name for c in candidates})[:50])
            raise SkillNotFoundError(f"There is no skill {quote_path(name)} in {label}. It has: {known}.")
        if len(found) > 1:
            paths = ", ".join(c.path for c in found)
            raise SourceError(f"{label} has several skills named {quote_path(name)}. Name one by its path: {paths}.")
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
        by_name.setdefault(fold_case(candidate.name), []).append(candidate)
    result: dict[str, Candidate] = {}
    waiting = list(reversed(chosen))
    taken = {fold_case(candidate.name) for candidate in chosen}
    present = {fold_case(name) for name in installed}
    while waiting:
        candidate = waiting.pop()
        missing = []
        for name in candidate.requires:
            if fold_case(name) in taken:
                continue
            found = by_name.get(fold_case(name), [])
            near = [other for other in found if posixpath.dirname(other.path) == posixpath.dirname(candidate.path)]
            if len(near or found) == 1:
                taken.add(fold_case(name))
                waiting += near or found
            elif fold_case(name) not in present:
                missing.append(name)
        if missing:
            noted = problem(posixpath.join(candidate.path, SKILL_FILE), "requires-missing", names=listed(missing))
            candidate = replace(candidate, problems=[*candidate.problems, noted])
        result[candidate.path] = candidate
    return list(result.values())


def _find_duplicates(candidates: Sequence[Candidate]) -> dict[str, str]:
    """Return why skills that share a directory's name cannot be placed together, by path."""
    by_name: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        by_name.setdefault(fold_case(candidate.name), []).append(candidate)
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
    return locked


def write_new(path: Path, content: bytes, *, executable: bool = False) -> None:
    """Write a file that must not be there yet, byte for byte."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Exclusive: a second file of the same spelling on this disk is an error, not an overwrite.
    with path.open("xb") as file:
        file.write(content)
    path.chmod(0o755 if executable else 0o644)
