"""Plans: the strict reading of files, skill directories and whole trees."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deepskills._backend.plan import Entry, Failed, ListDirectory, Listing, Plan, RealPaths, ResolveLinks, read_files
from deepskills._catalog.sources import PASSED_OVER
from deepskills._cli.catalog import UsageError, absolute
from deepskills._cli.files import perform
from deepskills._format.problems import problem
from deepskills._format.reading import validate_skill
from deepskills._types import MAX_DIRECTORIES, SKILL_FILE, SkillProblem


@dataclass
class Validation:
    """What a strict reading found: every problem an error, its path written as the argument was."""

    problems: list[SkillProblem] = field(default_factory=list)
    skills: int = 0
    """How many `SKILL.md` were read."""


@dataclass
class _Tree:
    """The `SKILL.md` files below a directory, and what kept others from being found."""

    files: list[str] = field(default_factory=list)
    problems: list[SkillProblem] = field(default_factory=list)


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
            local.lstat()
            is_directory = local.is_dir()
        except (FileNotFoundError, NotADirectoryError):
            raise UsageError(
                f"There is nothing at {given}. Name a {SKILL_FILE}, a skill's directory or a tree of skills."
            ) from None
        except OSError as error:
            return cls(given, path, is_directory=False, refusal=error.strerror or str(error))
        if not is_directory and local.name != SKILL_FILE:
            raise UsageError(f"{given} is no {SKILL_FILE}. Name one, a skill's directory or a tree of skills.")
        return cls(given, path, is_directory)

    def shown(self, path: str) -> str:
        """Return a path at or below this one as the user would write it."""
        return (Path(self.given) / Path(path).relative_to(self.path)).as_posix()


def validate_paths(paths: Sequence[str]) -> Validation:
    """Read every skill at or below `paths` strictly, each once.

    Raises:
        UsageError: If a path leads nowhere, or to a file that is no `SKILL.md`.
    """
    return perform(_validate([_Target.of(path) for path in paths]))


def _validate(targets: Sequence[_Target]) -> Plan[Validation]:
    done = Validation()
    seen: set[str] = set()
    for target in targets:
        tree = yield from _tree(target)
        wanted = [path for path in tree.files if path not in seen]
        seen.update(wanted)
        files = yield from read_files(wanted)
        problems = list(tree.problems)
        for path in wanted:
            file = files[path]
            if file.content is None:
                problems.append(problem(path, "skill-unreadable", reason=file.error))
            else:
                problems += validate_skill(file.content, path=path)
        done.skills += len(wanted)
        done.problems += [_strict(found, target.shown(found["path"])) for found in problems]
    return done


def _tree(target: _Target) -> Plan[_Tree]:
    if target.is_directory:
        return (yield from _walk(target.path))
    if target.refusal:
        code = "skill-unreadable" if Path(target.path).name == SKILL_FILE else "source-incomplete"
        return _Tree(problems=[problem(target.path, code, reason=target.refusal)])
    return _Tree([target.path])


def _walk(root: str) -> Plan[_Tree]:
    """Find every `SKILL.md` below `root`, at any depth; a skill's own directory is not searched further."""
    tree = _Tree()
    frontier = [root]
    entered: set[str] = set()
    while frontier:
        [resolved] = yield (ResolveLinks(tuple(frontier)),)
        real = resolved.paths if isinstance(resolved, RealPaths) else {}
        # Links may lead in circles: each place is entered once.
        by_place = {real.get(path, path): path for path in reversed(frontier)}
        level = sorted(path for place, path in by_place.items() if place not in entered)
        if len(entered) + len(level) > MAX_DIRECTORIES:
            tree.problems.append(problem(root, "source-cut"))
            level = level[: MAX_DIRECTORIES - len(entered)]
        entered.update(real.get(path, path) for path in level)
        replies = yield tuple(ListDirectory(path) for path in level)
        frontier = []
        for path, reply in zip(level, replies, strict=True):
            reason = reply.error if isinstance(reply, Listing) else _reason(reply)
            if reason:
                tree.problems.append(problem(path, "source-incomplete", reason=reason))
            entries = reply.entries if isinstance(reply, Listing) else ()
            frontier += _take(entries, tree)
    tree.files.sort()
    if not tree.files and not tree.problems:
        tree.problems.append(problem(root, "source-empty"))
    return tree


def _take(entries: Sequence[Entry], tree: _Tree) -> list[str]:
    """Note the directory's own `SKILL.md`; without one, return the directories to search next."""
    own = next((entry for entry in entries if entry.name == SKILL_FILE), None)
    if own is not None:
        # A directory of that name is read like a file, so that its error is reported.
        tree.files.append(own.path)
    if own is not None and not own.is_directory:
        return []
    return [entry.path for entry in entries if entry.is_directory and entry.name not in {*PASSED_OVER, SKILL_FILE}]


def _reason(reply: object) -> str:
    return reply.reason if isinstance(reply, Failed) else "no listing"


def _strict(found: SkillProblem, path: str) -> SkillProblem:
    return SkillProblem(path=path, code=found["code"], severity="error", message=found["message"])
