"""Plans: the skill files below a directory, at any depth."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from deepskills._backend.calls import Entry, Failed, Listing, Plan, Reply
from deepskills._backend.walk import Visit, Visitor, walk
from deepskills._catalog.sources import PASSED_OVER
from deepskills._format.problems import problem, quoted
from deepskills._types import MAX_DIRECTORIES, SKILL_FILE, SkillProblem


@dataclass
class Tree:
    """The `SKILL.md` files below a directory, and what kept others from being found."""

    files: list[str] = field(default_factory=list)
    problems: list[SkillProblem] = field(default_factory=list)


def find_skill_files(root: str) -> Plan[Tree]:
    """Find every `SKILL.md` below `root`, at any depth; a skill's own directory is not searched further."""
    finder = _Finder()
    walked = yield from walk([(root, root)], finder, levels=None, max_directories=MAX_DIRECTORIES, resolve_links=True)
    tree = finder.tree
    if walked.cut:
        tree.problems.append(problem(root, "source-cut"))
    tree.files.sort()
    if not tree.files and not tree.problems:
        tree.problems.append(problem(root, "source-empty"))
    return tree


def is_misnamed(name: str) -> bool:
    """Whether a file's name is `SKILL.md` in another case, which agents do not read."""
    return name != SKILL_FILE and name.lower() == SKILL_FILE.lower()


class _Finder(Visitor[str]):
    """Collects the `SKILL.md` files of the directories it is shown."""

    def __init__(self) -> None:
        self.tree = Tree()

    def take(self, visit: Visit[str], reply: Reply) -> list[tuple[str, str]]:
        """Note the directory's own `SKILL.md`; without one, return the directories to search next."""
        reason = reply.error if isinstance(reply, Listing) else _reason(reply)
        if reason:
            self.tree.problems.append(problem(visit.path, "source-incomplete", reason=reason))
        entries = reply.entries if isinstance(reply, Listing) else ()
        return [(visit.key, path) for path in self._below(entries)]

    def _below(self, entries: Sequence[Entry]) -> list[str]:
        own = next((entry for entry in entries if entry.name == SKILL_FILE), None)
        if own is not None:
            # A directory of that name is read like a file, so that its error is reported.
            self.tree.files.append(own.path)
            if not own.is_directory:
                return []
        else:
            misnamed = [entry for entry in entries if is_misnamed(entry.name) and not entry.is_directory]
            self.tree.problems += [
                problem(entry.path, "skill-file-misnamed", found=quoted(entry.name)) for entry in misnamed
            ]
        return [entry.path for entry in entries if entry.is_directory and entry.name not in {*PASSED_OVER, SKILL_FILE}]


def _reason(reply: Reply) -> str:
    return reply.reason if isinstance(reply, Failed) else "no listing"
