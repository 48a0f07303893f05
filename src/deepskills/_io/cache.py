"""The one bounded cache, and how much memory its entries take.

Everything that this library remembers between calls lies in a `BoundedCache`: parsed files, catalogs, texts, rendered
sections, readings that the calls of a turn share, rules, indexes. Two rules keep a long-lived process small:

- The bound is a number of bytes, not of entries. Skills, conversations and state come from strangers: whatever is
  counted by pieces can be filled with large pieces. So a weigher counts what an entry really keeps alive: all of its
  texts, its containers, and the key where the key is large.
- An entry keeps alive only what it weighs. A cache of something worked out from a catalog is keyed by the catalog's
  `serial`, a number, and not by the catalog: otherwise the smallest entry would hold the largest object in the process,
  once for each edit of a file.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from sys import getsizeof
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")

_PLAIN = frozenset({str, bytes, int, float, bool, type(None)})
_CONTAINERS = frozenset({list, tuple, set, frozenset})

ENTRY_BYTES = 200
"""What an entry takes beside its key and its value."""


def size_of(value: object) -> int:
    """Return how many bytes texts, numbers and their containers take; other objects count without their contents.

    An object that is referred to several times is counted each time: better to forget too soon than too late.
    """
    total = getsizeof(value)
    # A loop and not a recursion: values may be nested as deep as a stranger likes.
    pending = [value]
    while pending:
        item = pending.pop()
        kind = type(item)
        parts: Iterable[object]
        if kind in _CONTAINERS:
            parts = item  # type: ignore[assignment]
        # The abstract class last: it is slow to ask.
        elif kind is dict or isinstance(item, Mapping):
            parts = (*item, *item.values())  # type: ignore[misc,attr-defined]
        else:
            continue
        # A container at a time: every file that is read is weighed, and most of what it holds is plain.
        total += sum(map(getsizeof, parts))
        pending += [part for part in parts if type(part) not in _PLAIN]
    return total


class BoundedCache(Generic[KeyT, ValueT]):
    """Remembers values up to a total weight; the least recently used go first. Safe to share by threads.

    A value is made once: threads that miss it at the same time wait for the first of them, and for nobody else.
    A copy starts empty: what is remembered is not part of what a copy is for.

    Args:
        max_weight: Total weight of what is remembered, in bytes.
        weigh: Weight of a value, taken when it is stored; by default what `size_of` says of value and key.
        weigh_key: Weight of a key, for keys that are large; with a custom `weigh`, keys count nothing by default.
    """

    def __init__(
        self,
        max_weight: int,
        weigh: Callable[[ValueT], int] | None = None,
        weigh_key: Callable[[KeyT], int] | None = None,
    ) -> None:
        self._max_weight = max_weight
        self._weigh = weigh
        self._weigh_key = weigh_key
        self._lock = threading.Lock()
        self._kept: OrderedDict[KeyT, tuple[ValueT, int]] = OrderedDict()
        self._making: dict[KeyT, threading.Lock] = {}
        self._weight = 0

    def __deepcopy__(self, memo: dict[int, object]) -> "BoundedCache[KeyT, ValueT]":
        return type(self)(self._max_weight, self._weigh, self._weigh_key)

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: KeyT) -> ValueT | None:
        """Return what is remembered under `key`, which counts as used now; `None` if nothing is."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def put(self, key: KeyT, value: ValueT) -> None:
        """Remember `value`; one that weighs more than the whole cache may hold is not kept."""
        weight = self._weight_of(key, value)
        with self._lock:
            self._store(key, value, weight)

    def get_or_make(self, key: KeyT, make: Callable[[], ValueT]) -> ValueT:
        """Return what is remembered under `key`, else what `make` returns, and remember that."""
        found = self.get(key)
        if found is not None:
            return found
        with self._lock:
            own = self._making.setdefault(key, threading.Lock())
        try:
            # One lock per key: a thread that makes a large value holds up those that want the same one alone.
            with own:
                # Another thread may have made it meanwhile, unless it failed, or what it made is too heavy to keep.
                value = self.get(key)
                if value is None:
                    value = make()
                    self.put(key, value)
        finally:
            with self._lock:
                self._making.pop(key, None)
        return value

    def _weight_of(self, key: KeyT, value: ValueT) -> int:
        """Return what an entry weighs; outside the lock, because weighing much takes time."""
        if self._weigh is None:
            return ENTRY_BYTES + size_of(key) + size_of(value)
        return self._weigh(value) + (self._weigh_key(key) if self._weigh_key is not None else 0)

    def _store(self, key: KeyT, value: ValueT, weight: int) -> None:
        if key in self._kept:
            self._forget(key)
        # Not kept, rather than everything else thrown out for it.
        if weight > self._max_weight:
            return
        self._kept[key] = (value, weight)
        self._weight += weight
        while self._weight > self._max_weight:
            self._forget(next(iter(self._kept)))

    def _forget(self, key: KeyT) -> None:
        _value, weight = self._kept.pop(key)
        self._weight -= weight
