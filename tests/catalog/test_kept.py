"""A catalog that is kept packed: small, the same again, and nothing else than what was packed."""

import base64
import json
import random
import zlib
from typing import Any

import pytest

from deepskills import SkillMetadata
from deepskills._catalog.kept import MAX_KEPT_BYTES, catalog_digest, catalog_text, pack, text_digest, unpack


def catalog(count: int) -> list[SkillMetadata]:
    """Return skills whose descriptions have as much to say as real ones."""
    chance = random.Random(7)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 10))) for _ in range(3000)]
    return [
        SkillMetadata(
            path=f"/skills/skill-{number}/SKILL.md",
            name=f"skill-{number}",
            description=" ".join(chance.choices(words, k=30)),
            license=None,
            compatibility=None,
            metadata={"author": "周"},
            allowed_tools=["Read"],
        )
        for number in range(count)
    ]


def test_what_was_packed_comes_back() -> None:
    """A catalog passes through unchanged, surrogates and other scripts included."""
    skills = catalog(3)
    skills[0]["description"] = "\ud800 and 报"
    packed = pack(catalog_text(skills))
    assert packed is not None
    assert packed.isascii()
    assert unpack(packed, catalog_digest(skills)) == skills


def test_a_packed_catalog_is_far_smaller() -> None:
    """A thousand skills cost a checkpoint about half as much again, not twice as much."""
    text = catalog_text(catalog(1000))
    assert len(pack(text) or "") < 0.6 * len(text)


def test_a_catalog_that_is_too_large_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a bound on what is packed, and on what is unpacked."""
    text = catalog_text(catalog(10))
    packed = pack(text)
    monkeypatch.setattr("deepskills._catalog.kept.MAX_KEPT_BYTES", len(text) - 1)
    assert pack(text) is None
    assert unpack(packed, text_digest(text)) is None


def packed(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content)).decode()


@pytest.mark.parametrize(
    "given",
    [
        None,
        5,
        b"bytes",
        ["list"],
        "",
        "no base64 \ud800",
        "QUJD",
        packed(b"[]")[:-6],
        packed(b"no json"),
        packed(b"[" * 200_000),
        packed(b"\xff\xfe"),
        packed(b" " * (MAX_KEPT_BYTES + 1)),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_anything_odd_is_nothing(given: Any) -> None:
    """Whatever state holds in the place of a packed catalog, nothing is raised and nothing comes of it."""
    contents = [b"no json", b"[" * 200_000, b"\xff\xfe", b" " * MAX_KEPT_BYTES, b"[]"]
    assert [unpack(given, text_digest(content)) for content in contents] == [None] * 5


def test_only_the_text_of_the_digest_is_unpacked() -> None:
    """A packed catalog of another digest is not taken."""
    assert unpack(packed(b"[]"), text_digest(b"[]")) == []
    assert unpack(packed(b"[1]"), text_digest(b"[]")) is None
    assert json.loads(catalog_text(catalog(2))) == catalog(2)
