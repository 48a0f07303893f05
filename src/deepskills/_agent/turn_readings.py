"""Calls of one turn share what they read, so that each file is read once however many calls need it.

A call that needs a skill which no other call of the turn is reading claims it, and must deliver it; others wait. What
was delivered is used for a few seconds only: a call that is executed again later, after an interrupt, reads again.
"""

import threading
import time
from collections.abc import Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field

from deepskills._backend.cache import BoundedCache
from deepskills._loading.outcomes import Prepared

MAX_TURNS = 64
"""How many turns are remembered."""

FRESH_SECONDS = 5.0
"""How long what was read serves the other calls of its turn."""


@dataclass
class _Turn:
    claims: dict[Hashable, tuple[Future[Prepared], float]] = field(default_factory=dict)


class TurnReadings:
    """Claims of the calls of each turn; safe to share by threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: BoundedCache[Hashable, _Turn] = BoundedCache(MAX_TURNS)

    def claim(self, turn: Hashable, key: Hashable) -> tuple[Future[Prepared], bool]:
        """Return the future of a reading, and whether the caller has to make it."""
        now = time.monotonic()
        with self._lock:
            claims = self._turns.get_or_make(turn, _Turn).claims
            known = claims.get(key)
            if known is not None and not (known[0].done() and now - known[1] > FRESH_SECONDS):
                return known[0], False
            future: Future[Prepared] = Future()
            claims[key] = (future, now)
            return future, True
