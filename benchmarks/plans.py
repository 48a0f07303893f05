"""What it costs to write logic as a plan: a driven coroutine beside the same calls made directly."""

import statistics
import time

from deepskills._io.drivers import drive
from deepskills._io.plan import Work

CALLS = 20_000
DEPTH = 8
"""How many plans stand between the driver and the call, as on a load."""


async def _ask() -> int:
    total = 0
    for _ in range(CALLS):
        total += await Work(int)
    return total


async def _nest(depth: int) -> int:
    return await (_nest(depth - 1) if depth else _ask())


def seconds_per_call() -> float:
    """Return what one call of a driven plan costs, `DEPTH` plans deep; the median of five."""
    times = []
    for _ in range(5):
        started = time.process_time()
        drive(_nest(DEPTH))
        times.append(time.process_time() - started)
    return statistics.median(times) / CALLS


if __name__ == "__main__":
    print(f"a call of a driven plan: {seconds_per_call() * 1e6:.1f} microseconds")
