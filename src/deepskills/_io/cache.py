"""A bounded cache that threads share."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class BoundedCache(Generic[KeyT, ValueT]):
    """Remembers values up to a total weight; the least recently used go first. Safe to share by threads.

    A value is made once: threads that miss it at the same time wait for the first of them, and for nobody else.
    A copy starts empty: what is remembered is not part of what a copy is for.

    Args:
        max_weight: Total weight of what is remembered.
        weigh: Weight of a value, taken once when it is stored; each weighs 1 by default.
    """

    def __init__(self, max_weight: int, weigh: Callable[[ValueT], int] | None = None) -> None:
        self._max_weight = max_weight
        self._weigh = weigh
        self._lock = threading.Lock()
        self._kept: OrderedDict[KeyT, tuple[ValueT, int]] = OrderedDict()
        self._making: dict[KeyT, threading.Lock] = {}
        self._weight = 0

    def __deepcopy__(self, memo: dict[int, object]) -> "BoundedCache[KeyT, ValueT]":
        return type(self)(self._max_weight, self._weigh)

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
        weight = 1 if self._weigh is None else self._weigh(value)
        with self._lock:
            if key in self._kept:
                self._forget(key)
            if weight > self._max_weight:
                return
            self._kept[key] = (value, weight)
            self._weight += weight
            while self._weight > self._max_weight:
                self._forget(next(iter(self._kept)))

    def get_or_make(self, key: KeyT, make: Callable[[], ValueT]) -> ValueT:
        """Return what is remembered under `key`, else what `make` returns, and remember that."""
        found = self.get(key)
        if found is not None:
            return found
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        try:
            with making:
                found = self.get(key)
                if found is None:
                    found = make()
                    self.put(key, found)
        finally:
            with self._lock:
                self._making.pop(key, None)
        return found

    def _forget(self, key: KeyT) -> None:
        _value, weight = self._kept.pop(key)
        self._weight -= weight
