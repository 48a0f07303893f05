"""Finding a skill by name or by what it is for."""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from deepskills._discovery import TAG_FIELDS
from deepskills._errors import SkillFormatError, SkillNotFoundError
from deepskills._kept import catalog_digest
from deepskills._lifecycle import find_skill, unknown
from deepskills._problems import listed, quoted
from deepskills._search import Document, SearchIndex
from deepskills._sources import parent
from deepskills._types import SKILL_FILE, SkillMetadata, SkillProblem

REMEMBERED_INDEXES = 4
"""How many catalogs stay indexed; an instance may serve users with different ones."""


def find_or_raise(catalog: Sequence[SkillMetadata], problems: Iterable[SkillProblem], name: str) -> SkillMetadata:
    """Return the skill of that name, in any case.

    Raises:
        SkillFormatError: If there is such a directory, but its file is broken.
        SkillNotFoundError: If there is none; the message names the closest.
    """
    skill = find_skill(catalog, name)
    if skill is not None:
        return skill
    for found in problems:
        directory = parent(found["path"]).rpartition("/")[2]
        is_skill = found["path"].endswith(f"/{SKILL_FILE}") and found["severity"] == "error"
        if is_skill and directory.casefold() == name.casefold():
            raise SkillFormatError(f"The skill {quoted(name)} cannot be used. {found['path']}: {found['message']}")
    missing = unknown(catalog, name)
    hint = f" Did you mean {listed(missing.closest)}?" if missing.closest else ""
    available = f" Available: {listed(missing.available)}." if missing.available else " There are no skills."
    raise SkillNotFoundError(f"There is no skill named {quoted(name)}.{hint}{available}")


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
