"""What a middleware remembers between calls: nothing that belongs to a run, all of it bounded and shared by threads."""

from collections.abc import Sequence
from typing import Any

from deepskills._agent.turn_readings import TurnReadings
from deepskills._agent.updates import fingerprint
from deepskills._backend.cache import BoundedCache
from deepskills._catalog.access import remembered_files
from deepskills._catalog.catalog import Catalog, Catalogs
from deepskills._catalog.entries import Visibility
from deepskills._catalog.lookup import SearchCache
from deepskills._catalog.readings import Readings

MAX_TEXT_CHARACTERS = 32_000_000
"""How much text of loaded skills a middleware remembers."""

MAX_RULED_CATALOGS = 256
"""For how many catalogs the fixed rules of visibility stay worked out."""


class Memory:
    """What was read, found, rendered and loaded in this process."""

    def __init__(
        self, frontmatter_keys: Sequence[str] = (), backend: object = None, *, for_search: bool = True
    ) -> None:
        self._keys = tuple(frontmatter_keys)
        self._backend = backend
        self._for_search = for_search
        self.readings = Readings(self._keys, for_search=for_search)
        self.catalogs = Catalogs(self.readings, backend)
        self.led = remembered_files()
        self.search = SearchCache()
        self.turn_readings = TurnReadings()
        self.rules: BoundedCache[Catalog, dict[str, Visibility]] = BoundedCache(MAX_RULED_CATALOGS)
        self._texts: BoundedCache[str, str] = BoundedCache(MAX_TEXT_CHARACTERS, len)

    def emptied(self) -> "Memory":
        """Return a memory of the same kind that holds nothing."""
        return Memory(self._keys, self._backend, for_search=self._for_search)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Memory":
        return self.emptied()

    def keep_text(self, text: str) -> str:
        """Remember a text of a loaded skill, and return its fingerprint."""
        key = fingerprint(text)
        self._texts.put(key, text)
        return key

    def text(self, key: str) -> str | None:
        """Return the text that has this fingerprint."""
        return self._texts.get(key)
