"""Finding a skill by name or by what it is for."""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from deepskills._catalog.discovery import SOURCE_ERRORS, TAG_FIELDS
from deepskills._catalog.kept import catalog_digest
from deepskills._catalog.search import Document, SearchIndex
from deepskills._errors import SkillFormatError, SkillNotFoundError, SkillsError
from deepskills._format.problems import PROBLEMS, listed, quoted
from deepskills._loading.decisions import Broken, find_skill, not_found
from deepskills._types import SkillMetadata, SkillProblem

REMEMBERED_INDEXES = 4
"""How many catalogs stay indexed; an instance may serve users with different ones."""


def find_or_raise(
    catalog: Sequence[SkillMetadata], problems: Iterable[SkillProblem], name: str, again: str = "try again"
) -> SkillMetadata:
    """Return the skill of that name, in any case; `again` says when a source that failed is tried anew.

    Raises:
        SkillFormatError: If there is such a directory, but its file is broken.
        SkillsError: If there is none, but a source could not be read: it may be there.
        SkillNotFoundError: If there is none; the message names the closest.
    """
    skill = find_skill(catalog, name)
    if skill is not None:
        return skill
    noted = list(problems)
    missing = not_found(catalog, noted, name)
    if isinstance(missing, Broken):
        found = missing.problem
        raise SkillFormatError(f"The skill {quoted(name)} cannot be used. {found['path']}: {found['message']}")
    hint = f" Did you mean {listed(missing.closest)}?" if missing.closest else ""
    if missing.incomplete:
        raise SkillsError(f"The skill {quoted(name)} was not found, and {_failures(noted)}; {again}.{hint}")
    available = f" Available: {listed(missing.available)}." if missing.available else " There are no skills."
    raise SkillNotFoundError(f"There is no skill named {quoted(name)}.{hint}{available}")


def check_known(catalog: Sequence[SkillMetadata], problems: Iterable[SkillProblem], again: str = "try again") -> None:
    """Check that where nothing was found there is nothing: that no source failed.

    Raises:
        SkillsError: If one did, so that nobody knows which skills there are.
    """
    failures = "" if catalog else _failures(problems)
    if failures:
        raise SkillsError(f"Which skills there are is not known: {failures}; {again}.")


def _failures(problems: Iterable[SkillProblem]) -> str:
    """Return which sources could not be read and why; nothing if all could."""
    failed = [found for found in problems if found["code"] in SOURCE_ERRORS]
    return "; ".join(f"the source {quoted(found['path'])} could not be read: {_reason(found)}" for found in failed[:3])


def _reason(found: SkillProblem) -> str:
    """Return the reason that a problem's message gives, without the words around it."""
    before, after = PROBLEMS[found["code"]][1].split("{reason}")
    return found["message"].removeprefix(before).removesuffix(after)


class SearchCache:
    """Searches catalogs and keeps the index of the latest ones; safe to share by threads."""

    def __init__(self, size: int = REMEMBERED_INDEXES) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._indexes: OrderedDict[str, SearchIndex] = OrderedDict()

    def __deepcopy__(self, memo: dict[int, object]) -> "SearchCache":
        """Return an empty one: what is remembered is not part of what a copy is for."""
        return SearchCache(self._size)

    def search(
        self, skills: Sequence[SkillMetadata], tags: Mapping[str, str], query: str, n: int
    ) -> list[SkillMetadata]:
        """Return the skills that fit `query` best, best first."""
        by_name = {skill["name"]: skill for skill in skills}
        return [by_name[name] for name in self._index(skills, tags).search(query, n)]

    def _index(self, skills: Sequence[SkillMetadata], tags: Mapping[str, str]) -> SearchIndex:
        key = f"{catalog_digest(skills)}:{sorted(tags.items())}"
        with self._lock:
            index = self._indexes.get(key)
            if index is None:
                index = self._indexes[key] = SearchIndex([_document(skill, tags) for skill in skills])
            self._indexes.move_to_end(key)
            while len(self._indexes) > self._size:
                self._indexes.popitem(last=False)
            return index


def _document(skill: SkillMetadata, tags: Mapping[str, str]) -> Document:
    own = " ".join(skill["metadata"].get(field, "") for field in TAG_FIELDS)
    return Document(skill["name"], skill["description"], f"{own} {tags.get(skill['path'], '')}".strip())
