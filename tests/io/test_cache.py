"""The cache that everything remembered lies in: bounded by weight, shared by threads, empty in copies."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from deepskills._io.cache import BoundedCache


def test_the_least_recently_used_goes_first() -> None:
    """A cache never holds more than its weight, and a look at a value keeps it."""
    cache: BoundedCache[str, int] = BoundedCache(3)
    for key in "abc":
        cache.put(key, ord(key))
    assert cache.get("a") == ord("a")
    cache.put("d", 0)
    assert [cache.get(key) for key in "abcd"] == [97, None, 99, 0]
    assert len(cache) == 3


def test_values_have_weight() -> None:
    """The total weight is bounded; one value that is too heavy is not kept, and costs no other."""
    cache: BoundedCache[str, str] = BoundedCache(10, len)
    cache.put("a", "x" * 4)
    cache.put("b", "x" * 6)
    cache.put("huge", "x" * 11)
    assert (cache.get("a"), cache.get("b"), cache.get("huge")) == ("x" * 4, "x" * 6, None)
    cache.put("c", "x")
    assert (cache.get("a"), len(cache)) == (None, 2)
    for _ in range(100):
        cache.put("c", "xx")
    assert (cache.get("b"), cache.get("c")) == ("x" * 6, "xx")
    cache.put("c", "x" * 11)
    assert cache.get("c") is None


def test_what_is_missing_is_made_once_and_outside_the_lock() -> None:
    """A value is made when it is missing; while that takes its time, the cache serves others."""
    cache: BoundedCache[str, int] = BoundedCache(3)
    assert [cache.get_or_make("a", lambda: 1), cache.get_or_make("a", lambda: 2)] == [1, 1]

    def make() -> int:
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(cache.get, "a").result(timeout=60)
        return (found or 0) + 1

    assert cache.get_or_make("b", make) == 2


def test_threads_that_miss_at_once_make_one() -> None:
    """Eight threads that ask for what is not there wait for the first, which makes it; a failure holds nobody."""
    cache: BoundedCache[str, int] = BoundedCache(3)
    made: list[int] = []
    start, second = threading.Barrier(8), threading.Event()

    def make() -> int:
        made.append(1)
        if len(made) > 1:
            second.set()
        second.wait(0.2)
        return len(made)

    def ask(_: int) -> int:
        start.wait()
        return cache.get_or_make("a", make)

    def fail() -> int:
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - our own
        cache.get_or_make("a", fail)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == [1] * 8
    assert made == [1]


def test_a_copy_is_empty_and_bounded_alike() -> None:
    """A deep copy remembers nothing, shares nothing, and keeps the same bounds."""
    cache: BoundedCache[str, str] = BoundedCache(10, len)
    cache.put("a", "x" * 10)
    twin = copy.deepcopy(cache)
    assert (len(twin), len(cache)) == (0, 1)
    twin.put("b", "x" * 11)
    twin.put("c", "x" * 10)
    assert (twin.get("b"), twin.get("c"), cache.get("c")) == (None, "x" * 10, None)


def test_threads_share_it() -> None:
    """Many threads that look, make and replace at once never see another key's value or overfill it."""
    cache: BoundedCache[int, int] = BoundedCache(50)
    start = threading.Barrier(8)
    wrong: list[int] = []

    def work() -> None:
        start.wait()
        for number in range(2_000):
            key = number % 70
            if cache.get_or_make(key, lambda key=key: key) != key:  # type: ignore[misc]
                wrong.append(key)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(cache) <= 50
