"""Plans: the skill files below a directory, at any depth."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from deepskills._backend.plan import Entry, Failed, ListDirectory, Listing, Plan, RealPaths, ResolveLinks
from deepskills._catalog.sources import PASSED_OVER
from deepskills._format.problems import problem, quoted
from deepskills._types import MAX_DIRECTORIES, SKILL_FILE, SkillProblem


@dataclass
class Tree:
    """The `SKILL.md` files below a directory, and what kept others from being found."""

    files: list[str] = field(default_factory=list)
    problems: list[SkillProblem] = field(default_factory=list)


def walk(root: str) -> Plan[Tree]:
    """Find every `SKILL.md` below `root`, at any depth; a skill's own directory is not searched further."""
    tree = Tree()
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


def _take(entries: Sequence[Entry], tree: Tree) -> list[str]:
    """Note the directory's own `SKILL.md`; without one, return the directories to search next."""
    own = next((entry for entry in entries if entry.name == SKILL_FILE), None)
    if own is not None:
        # A directory of that name is read like a file, so that its error is reported.
        tree.files.append(own.path)
    if own is not None and not own.is_directory:
        return []
    if own is None:
        tree.problems += [
            problem(entry.path, "skill-file-misnamed", found=quoted(entry.name))
            for entry in entries
            if is_misnamed(entry.name) and not entry.is_directory
        ]
    return [entry.path for entry in entries if entry.is_directory and entry.name not in {*PASSED_OVER, SKILL_FILE}]


def is_misnamed(name: str) -> bool:
    """Whether a file's name is `SKILL.md` in another case, which agents do not read."""
    return name != SKILL_FILE and name.lower() == SKILL_FILE.lower()


def _reason(reply: object) -> str:
    return reply.reason if isinstance(reply, Failed) else "no listing"
