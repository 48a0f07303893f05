"""`validate`: the strict reading of files, skill directories and whole trees."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deepskills._catalog.lookup import circles_of, requires_of
from deepskills._cli.files import Tree, UsageError, absolute, find_skill_files, find_usual_sources, is_misnamed, perform
from deepskills._io.plan import parent, read_files
from deepskills._providers.directory import invocation_file
from deepskills._skillmd.keys import lets_models_start
from deepskills._skillmd.names import name_key
from deepskills._skillmd.problems import listed, problem, quoted
from deepskills._skillmd.read import Profile, read_skill, validate_skill
from deepskills._types import SKILL_FILE, Severity, SkillProblem

_WARNINGS = frozenset({"foreign-field", "placeholder-left"})
"""Codes of problems that do not keep a file from passing."""


@dataclass
class Validation:
    """What a strict reading found: its problems, each path written as the argument was."""

    problems: list[SkillProblem] = field(default_factory=list)
    skills: int = 0
    """How many `SKILL.md` were read."""


@dataclass(frozen=True)
class _Target:
    """A path as it was given, and in full; whether it is a directory, or why the system does not say."""

    given: str
    path: str
    is_directory: bool
    refusal: str = ""

    @classmethod
    def of(cls, given: str) -> "_Target":
        path = absolute(given)
        local = Path(path)
        try:
            # Does not follow links: one that leads nowhere is a finding, not a wrong argument.
            local.lstat()
            is_directory = local.is_dir()
        except (FileNotFoundError, NotADirectoryError):
            raise UsageError(
                f"There is nothing at {given}. Name a {SKILL_FILE}, a skill's directory or a tree of skills."
            ) from None
        except OSError as error:
            return cls(given, path, is_directory=False, refusal=error.strerror or str(error))
        if not is_directory and local.name.lower() != SKILL_FILE.lower():
            raise UsageError(f"{given} is not a {SKILL_FILE}. Name one, a skill's directory or a tree of skills.")
        return cls(given, path, is_directory)

    def show(self, path: str) -> str:
        """Return a path at or below this one as the user would write it."""
        return (Path(self.given) / Path(path).relative_to(self.path)).as_posix()


def validate_paths(paths: Sequence[str], profile: Profile = "deepskills") -> Validation:
    """Read every skill at or below `paths` strictly, each once.

    Raises:
        UsageError: If a path leads nowhere, or to a file that is not a `SKILL.md`.
    """
    return perform(_validate([_Target.of(path) for path in paths], profile))


def validate_usual_sources(profile: Profile = "deepskills") -> tuple[Validation, list[str]]:
    """Read every skill of the usual sources strictly; return what was found, and the sources that hold any.

    Raises:
        UsageError: If there is nothing to read: a check that looks in the wrong place must not pass.
    """
    sources = find_usual_sources()
    done = perform(_validate([_Target(source.label, source.path, is_directory=True) for source in sources], profile))
    empty = {found["path"] for found in done.problems if found["code"] == "source-empty"}
    used = [source.label for source in sources if source.label not in empty]
    if not used:
        raise UsageError("Nothing to validate. Name a SKILL.md, a skill's directory or a tree of skills.")
    return Validation([found for found in done.problems if found["code"] != "source-empty"], done.skills), used


@dataclass(frozen=True)
class _Requirements:
    """What a skill requires, and how its path is shown."""

    path: str
    shown: str
    names: tuple[str, ...]


async def _validate(targets: Sequence[_Target], profile: Profile) -> Validation:
    done = Validation()
    seen: set[str] = set()
    required: dict[str, _Requirements] = {}
    for target in targets:
        tree = await _tree(target)
        # Links lead to one file by many paths.
        places = {path: os.path.realpath(path) for path in tree.files}  # noqa: ASYNC240 - a plan of the command line, which has no loop
        wanted = [path for path, place in places.items() if place not in seen]
        seen.update(places.values())
        files = await read_files([*wanted, *map(invocation_file, wanted)])
        problems = list(tree.problems)
        for path in wanted:
            file = files[path]
            if file.content is None:
                problems.append(problem(path, "skill-unreadable", reason=file.error))
            else:
                problems += validate_skill(file.content, path=path, profile=profile)
                problems += _invocation_problems(path, files[invocation_file(path)].content)
                if (reading := read_skill(file.content, path=path)).metadata is not None:
                    own = _Requirements(path, target.show(path), requires_of(reading.frontmatter))
                    required[name_key(reading.metadata["name"])] = own
        done.skills += len(wanted)
        done.problems += [_strict(found, target.show(found["path"])) for found in problems]
    if profile == "deepskills":
        done.problems += await _unmet(required)
    return done


def _invocation_problems(path: str, content: bytes | None) -> list[SkillProblem]:
    """Return what is wrong with the file in which Codex keeps who may start a skill; most skills have none."""
    try:
        if content is not None:
            lets_models_start(content)
    except ValueError as error:
        return [problem(path, "invocation-unreadable", reason=error)]
    return []


async def _unmet(required: Mapping[str, _Requirements]) -> list[SkillProblem]:
    """Find requirements that no skill meets, of those that were read or lie beside them, and circles."""
    guesses = {
        f"{parent(parent(own.path))}/{name}/{SKILL_FILE}": name
        for own in required.values()
        for name in own.names
        if name_key(name) not in required and "/" not in name and name not in {".", ".."}
    }
    files = await read_files(list(guesses))
    problems = []
    for own in required.values():
        beside = f"{parent(parent(own.path))}/{{}}/{SKILL_FILE}"
        missing = [
            name
            for name in own.names
            if name_key(name) not in required
            and ((guess := beside.format(name)) not in guesses or files[guess].content is None)
        ]
        if missing:
            problems.append(problem(own.shown, "requires-missing", names=listed(missing)))
    resolved = {key: [(name, name_key(name)) for name in own.names] for key, own in required.items()}
    return problems + [
        problem(required[circle[0]].shown, "requires-circle", names=listed(circle))
        for circle in circles_of(resolved, lambda key: resolved.get(key, ()))
    ]


async def _tree(target: _Target) -> Tree:
    if target.is_directory:
        return await find_skill_files(target.path, everything=True)
    if target.refusal:
        code = "skill-unreadable" if Path(target.path).name == SKILL_FILE else "source-incomplete"
        return Tree(problems=[problem(target.path, code, reason=target.refusal)])
    name = Path(target.path).name
    if is_misnamed(name):
        return Tree(problems=[problem(target.path, "skill-file-misnamed", found=quoted(name))])
    return Tree([target.path])


def _strict(found: SkillProblem, path: str) -> SkillProblem:
    """Return a problem as it counts here: an error, except for what only an author can judge."""
    severity: Severity = found["severity"] if found["code"] in _WARNINGS else "error"
    return {**found, "path": path, "severity": severity}
