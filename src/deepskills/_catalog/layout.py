"""What counts as a skill among directories: one rule for discovery, the command line and locks. Pure."""

from collections.abc import Iterable

from deepskills._io.plan import PASSED_OVER
from deepskills._types import RESOURCE_DIRECTORIES


def select_searched(directories: Iterable[str], *, is_skill: bool, is_source: bool) -> list[str]:
    """Return the names of a directory's subdirectories that are searched for skills.

    A directory with a file named exactly `SKILL.md` is a skill. What lies below it is its own business and holds no
    further skills; only below a source of its own does one stray file not hide the skills that the source holds, apart
    from the skill's own resources, which may have a `SKILL.md` as an example.
    """
    if is_skill and not is_source:
        return []
    passed_over = PASSED_OVER | RESOURCE_DIRECTORIES.keys() if is_skill else PASSED_OVER
    return [name for name in directories if name not in passed_over]
