"""Counted words in a graph's store: another process does not count again, and never believes what is wrong."""

import asyncio
import base64
import json
import logging
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from deepskills._catalog import counts, search
from deepskills._catalog.ranking import Indexes, Ranker
from deepskills._catalog.search import Document, Library, SearchIndex
from support import Mode, both_modes

SUBJECTS = ("invoices", "gardens", "migrations", "itineraries", "quotas", "発注書", "发票核对")
DOCUMENTS = [
    Document(
        f"skill-{number}",
        f"Handles {SUBJECTS[number % len(SUBJECTS)]} of kind{number}.",
        f"tag{number % 13}",
        f"# Step {number % 5}\nRead the ledger{number % 41}, then write reports.".encode(),
    )
    for number in range(1_200)
]
LIBRARY = Library(DOCUMENTS)
QUERIES = ("invoices of kind70", "ledger7 reports", "発注書", "tag12 gardns", "核对发票", "write the quotas of step 3")


class Watched(InMemoryStore):
    """A store that counts what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0

    def put(self, *arguments: Any, **options: Any) -> None:
        self.written += 1
        super().put(*arguments, **options)

    async def aput(self, *arguments: Any, **options: Any) -> None:
        self.written += 1
        await super().aput(*arguments, **options)


def searched(mode: Mode, indexes: Indexes, library: Library, store: object) -> list[list[str]]:
    """Search in what another process would have: indexes of its own."""
    ranker = Ranker(indexes=indexes)
    if mode == "sync":
        return [ranker.search(library, query, 9, store=store).names for query in QUERIES]
    return [asyncio.run(ranker.asearch(library, query, 9, store=store)).names for query in QUERIES]


def kept(store: InMemoryStore) -> tuple[str, dict[str, Any]]:
    [item] = store.search(counts.NAMESPACE)
    return item.key, item.value


@both_modes
def test_another_process_does_not_count_again(mode: Mode) -> None:
    """With a store the second process counts nothing, after an edit only what is new, and ranks as the first does."""
    store, first, second, third = Watched(), Indexes(), Indexes(), Indexes()
    expected = searched(mode, first, LIBRARY, store)
    assert all(expected)
    assert store.written == 1, "written once, not with every search"
    assert searched(mode, second, LIBRARY, store) == expected
    assert not second.take_uncopied(LIBRARY), "nothing was counted"
    edited = Library([*DOCUMENTS[:70], Document("skill-70", "Prunes cherry trees."), *DOCUMENTS[72:]])
    fresh = SearchIndex(edited)
    assert searched(mode, third, edited, store) == [fresh.search(query, 9) for query in QUERIES]
    index = third.of(edited)
    assert [segment.stop for segment in index.segments] == [1_200, 1_201], "one skill was counted"
    assert index.search("cherry") == ["skill-70"]
    assert index.search("kind71") == fresh.search("kind71")
    assert [index.rank(query) for query in QUERIES] == [fresh.rank(query) for query in QUERIES]
    # Edited again in the same process: that is known without asking the store.
    again = Library([*edited[:-1], Document("kites", "Builds kites.")])
    searched(mode, third, again, store)
    assert third.of(again).search("kites") == ["kites"]
    assert store.written == 1


def test_what_is_kept_serves_without_numpy_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of a process with NumPy serve one without it, and the other way round."""
    numpy = search.installed_numpy()
    expected = [SearchIndex(LIBRARY).search(query, 9) for query in QUERIES]
    for writer, reader in ((numpy, None), (None, numpy)):
        store, indexes = InMemoryStore(), Indexes()
        monkeypatch.setattr(search, "installed_numpy", lambda given=writer: given)
        searched("sync", Indexes(), LIBRARY, store)
        monkeypatch.setattr(search, "installed_numpy", lambda given=reader: given)
        assert searched("sync", indexes, LIBRARY, store) == expected
        assert not indexes.take_uncopied(LIBRARY)


def changed(value: dict[str, Any], change: Callable[[list[bytes]], list[bytes]], **head: object) -> dict[str, Any]:
    """Return an item with other parts: digests, postings, starts, stems, words of descriptions."""
    lengths = json.loads(value["head"])["lengths"]
    content, parts = zlib.decompress(base64.b64decode(value["content"])), []
    for length in lengths:
        parts.append(content[:length])
        content = content[length:]
    parts = change(parts)
    new = {**json.loads(value["head"]), "lengths": [len(part) for part in parts], **head}
    return {"head": json.dumps(new), "content": base64.b64encode(zlib.compress(b"".join(parts))).decode()}


def test_what_is_wrong_in_a_store_is_not_believed() -> None:
    """Whatever others wrote, search neither fails nor finds anything else than it would without a store."""
    store = InMemoryStore()
    expected = searched("sync", Indexes(), LIBRARY, store)
    key, good = kept(store)

    def same(parts: list[bytes]) -> list[bytes]:
        return parts

    wrong: dict[str, Any] = {
        "no head": {"content": good["content"]},
        "no content": {"head": good["head"]},
        "numbers for texts": {"head": 1, "content": 2},
        "head is not JSON": {**good, "head": "{"},
        "head is a list": {**good, "head": "[]"},
        "another format": changed(good, same, format=counts.FORMAT + 1),
        "other weights": changed(good, same, counted_by="others"),
        "lengths are missing": changed(good, same, lengths=None),
        "lengths are texts": changed(good, same, lengths=["1"] * 5),
        "lengths are negative": changed(good, same, lengths=[-1, 2, 3, 4, 5]),
        "lengths are huge": changed(good, same, lengths=[1 << 40] * 5),
        "content is no base64": {**good, "content": "?" + good["content"]},
        "content is cut off": {**good, "content": good["content"][: len(good["content"]) // 8 * 4]},
        "content is a bomb": {**good, "content": base64.b64encode(zlib.compress(b"a" * 100_000_000)).decode()},
        "words are not text": changed(good, lambda p: [*p[:3], b"\xff" * len(p[3]), p[4]]),
        "a word is missing": changed(good, lambda p: [*p[:3], p[3].partition(b"\n")[2], p[4]]),
        "postings of skills that do not exist": changed(good, lambda p: [p[0], b"\xff" * len(p[1]), *p[2:]]),
        "postings are cut off": changed(good, lambda p: [p[0], p[1][:-3], *p[2:]]),
        "starts go back": changed(good, lambda p: [*p[:2], p[2][:4] + b"\xff\xff" + p[2][6:], *p[3:]]),
        "words are exchanged": changed(good, lambda p: [*p[:3], b"\n".join(p[3].split(b"\n")[::-1]), p[4]]),
        "skills are exchanged": changed(good, lambda p: [p[0][8:] + p[0][:8], *p[1:]]),
        "a digest is cut off": changed(good, lambda p: [p[0][:-1], *p[1:]]),
    }
    offenders = []
    for what, value in wrong.items():
        store.put(counts.NAMESPACE, key, value)
        if searched("sync", Indexes(), LIBRARY, store) != expected or kept(store)[1] != good:
            offenders.append(what)
    assert offenders == [], "found something else, or did not replace what was wrong"


class DownStore(InMemoryStore):
    """A store that does not answer."""

    def batch(self, ops: Any) -> Any:
        raise ConnectionError(f"{len(list(ops))} operations refused")

    async def abatch(self, ops: Any) -> Any:
        return self.batch(ops)


@both_modes
def test_a_store_that_fails_costs_no_search(mode: Mode, caplog: pytest.LogCaptureFixture) -> None:
    """Without its store everything is counted here, and the log says why."""
    with caplog.at_level(logging.WARNING, "deepskills"):
        assert all(searched(mode, Indexes(), LIBRARY, DownStore()))
    assert "The store that keeps the counted words of skills failed: ConnectionError" in caplog.text


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small libraries are not kept, large ones replace each other, and none may be too large."""
    store = InMemoryStore()
    searched("sync", Indexes(), Library(DOCUMENTS[: counts.LARGE - 1]), store)
    assert store.search(counts.NAMESPACE) == []
    for start in range(0, 12_000, 1_000):
        library = Library(Document(f"skill-{number}", "One of many.") for number in range(start, start + 1_000))
        searched("sync", Indexes(), library, store)
    assert 1 <= len(store.search(counts.NAMESPACE, limit=100)) <= counts.MAX_KEPT
    other = InMemoryStore()
    monkeypatch.setattr(counts, "MAX_BYTES", 1_000)
    searched("sync", Indexes(), LIBRARY, other)
    assert other.search(counts.NAMESPACE) == []
