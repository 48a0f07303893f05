"""Keeps the counted words of large libraries in a graph's store, so that another process need not count them again.

Counting the words of 10,000 skills takes about 3 s of CPU, reading the counts of another process a tenth of that. One
item of the store holds all counts of a library, with a digest of each skill that was counted. The item is known by the
smallest of these digests: a library that was edited since most likely still has that skill, finds the item, and counts
only what is new. There are a few items at most, and the latest library replaces another one of the same key.

**Others may write to a store**, or another version of this package may have. What is read is therefore checked: it has
this format and these weights, all numbers are in bounds, and a few skills, chosen by chance, are counted again and must
have the same counts. Whatever is wrong about many skills is noticed by that, and everything is counted here. What
is wrong about a single skill may pass, and does no more than give that skill a wrong place.
"""

import base64
import hashlib
import json
import logging
import random
import sys
import zlib
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from deepskills._catalog.search import (
    COUNTED_BY,
    Counted,
    Document,
    Library,
    SearchIndex,
    Segment,
    shared_places,
)
from deepskills._io.plan import Attempt, Failed, Work, call_method, unwrap

logger = logging.getLogger("deepskills")

NAMESPACE = ("deepskills", "counts")
"""Where a store keeps counts."""

FORMAT = 1
"""The format of an item; another one is not read."""

LARGE = 1_000
"""How many skills a library must have for its counts to be kept: fewer are counted in less than 0.3 s."""

MAX_KEPT = 8
"""How many libraries one store keeps."""

MAX_BYTES = 64_000_000
"""How many bytes the counts of a library may take, unpacked: about five times those of 10,000 usual skills."""

SECONDS = 10.0
"""How long a store may take to answer."""

CHECKED = 16
"""How many skills are counted again to check what was read; that takes a few milliseconds.

Counts that are wrong for one skill in four are noticed in 99 of 100 cases.
"""

_DIGEST = 8


class CountsError(ValueError):
    """An item of a store is not what this version would have written."""


async def fetch(store: Any, library: Library) -> object:  # noqa: ANN401 - known by its methods
    """Return the item of a store that may hold the counts of a library, for `read_index`; `None` if there is none."""
    key = await unwrap(Work(lambda: _key(_digests(library))))
    reply = await Attempt(call_method(store, "get", NAMESPACE, key, seconds=SECONDS))
    if isinstance(reply, Failed):
        logger.warning("The store that keeps the counted words of skills failed: %s", reply.reason)
        return None
    return getattr(reply, "value", None)


async def put(store: Any, index: SearchIndex) -> None:  # noqa: ANN401 - known by its methods
    """Keep the counts of an index whose skills were all counted in this process."""
    found = await unwrap(Work(lambda: _item(index)))
    if found is None:
        return
    key, value = found
    reply = await Attempt(call_method(store, "put", NAMESPACE, key, value, seconds=SECONDS, index=False))
    if isinstance(reply, Failed):
        logger.warning("The store that keeps the counted words of skills failed: %s", reply.reason)


def read_index(library: Library, value: object) -> SearchIndex | None:
    """Return the index of a library by what a store kept; `None` if that is of no use for it."""
    try:
        digests, segment = _read(value)
    except CountsError as error:
        logger.info("Kept counts of words are not used: %s.", error)
        return None
    found = shared_places({digest: number for number, digest in enumerate(digests)}, len(digests), _digests(library))
    if found is None:
        return None
    places, new = found
    index = SearchIndex.of_kept(library, segment, places, new)
    if not _is_right(library, segment, places):
        logger.warning("Kept counts of words are not used: they are not those of these skills.")
        return None
    return index


def _is_right(library: Library, segment: Segment, places: Sequence[int]) -> bool:
    """Whether some skills, chosen by chance, have the counts that they should have."""
    shared = [number for number, place in enumerate(places) if place >= 0]
    # By chance, so that nobody can know which ones to leave right.
    numbers = random.sample(shared, min(CHECKED, len(shared)))
    return all(segment.has_all(number, Segment([library[places[number]]]).counts()) for number in numbers)


def _item(index: SearchIndex) -> tuple[str, dict[str, Any]] | None:
    """Return the key and the value that keep an index; `None` if it is too large."""
    digests = _digests(index.base)
    counted = index.segments[0].counts()
    stems, core = ("\n".join(words).encode() for words in (counted.stems, counted.core))
    parts = [b"".join(digests), _little(counted.postings), _little(counted.starts), stems, core]
    content = b"".join(parts)
    if len(content) > MAX_BYTES:
        return None
    head = {"format": FORMAT, "counted_by": COUNTED_BY, "lengths": [len(part) for part in parts]}
    # The fastest level: it saves a third, and more effort saves little more.
    text = base64.b64encode(zlib.compress(content, 1)).decode()
    return _key(digests), {"head": json.dumps(head), "content": text}


def _read(value: object) -> tuple[list[bytes], Segment]:
    """Return the digests of the skills that were counted, and their segment.

    Raises:
        CountsError: If the value is not one that this version would have written.
    """
    if not isinstance(value, Mapping):
        raise CountsError("there is no item")
    lengths = _lengths(value.get("head"))
    parts, start = [], 0
    content = _content(value.get("content"), sum(lengths))
    for length in lengths:
        parts.append(content[start : start + length])
        start += length
    joined, postings_, starts_, stems_, core_ = parts
    digests = [joined[at : at + _DIGEST] for at in range(0, len(joined), _DIGEST)]
    postings, starts = _numbers(postings_), _numbers(starts_)
    try:
        stems, core = (words.decode().split("\n") for words in (stems_, core_))
    except UnicodeDecodeError as error:
        raise CountsError("its words are not text") from error
    bounds = [0, *starts, len(postings)]
    if len(starts) != len(stems) + 1 or starts[0] != 0 or starts[-1] != len(postings) or bounds != sorted(bounds):
        raise CountsError("its words and numbers do not match")
    if len(joined) % _DIGEST or max(postings, default=0) >> 8 >= len(digests):
        raise CountsError("it counts more skills than it names")
    return digests, Segment.of_counts(Counted(len(digests), stems, core, postings, starts))


def _lengths(head: object) -> list[int]:
    """Return how long the parts of an item are."""
    try:
        read = json.loads(head) if isinstance(head, str) else None
    except ValueError as error:
        raise CountsError("its head is not JSON") from error
    if not isinstance(read, dict) or (read.get("format"), read.get("counted_by")) != (FORMAT, COUNTED_BY):
        raise CountsError("another version wrote it")
    lengths = read.get("lengths")
    if (
        not isinstance(lengths, list)
        or len(lengths) != 5  # noqa: PLR2004 - the parts that `_item` joins
        or not all(isinstance(length, int) and 0 < length <= MAX_BYTES for length in lengths)
        or sum(lengths) > MAX_BYTES
    ):
        raise CountsError("its parts have no lengths")
    return lengths


def _content(text: object, length: int) -> bytes:
    """Return the content of an item, which has a length."""
    if not isinstance(text, str) or len(text) > 2 * MAX_BYTES:
        raise CountsError("it has no content")
    try:
        unpacking = zlib.decompressobj()
        # Bounded: a few bytes can be unpacked to gigabytes.
        content = unpacking.decompress(base64.b64decode(text, validate=True), length + 1)
    except (ValueError, zlib.error) as error:
        raise CountsError("its content cannot be unpacked") from error
    if len(content) != length:
        raise CountsError("its content is too short or too long")
    return content


def _little(numbers: "array[int]") -> bytes:
    """Return numbers as bytes, the lowest first on every machine."""
    if sys.byteorder == "little":
        return numbers.tobytes()
    swapped = numbers[:]
    swapped.byteswap()
    return swapped.tobytes()


def _numbers(content: bytes) -> "array[int]":
    found = array("I")
    if len(content) % found.itemsize:
        raise CountsError("its numbers are cut off")
    found.frombytes(content)
    if sys.byteorder != "little":
        found.byteswap()
    return found


def _digests(documents: Sequence[Document]) -> list[bytes]:
    return [_digest(document) for document in documents]


def _digest(document: Document) -> bytes:
    """Return what tells a skill from others by all that is counted of it."""
    # As JSON, so that no text can pass for the end of another.
    texts = json.dumps([document.name, document.description, document.tags]).encode()
    return hashlib.blake2b(texts + document.beginning, digest_size=_DIGEST).digest()


def _key(digests: Sequence[bytes]) -> str:
    """Return the key of a library: two that share most of their skills most likely have the same one."""
    return str(int.from_bytes(min(digests)) % MAX_KEPT)
