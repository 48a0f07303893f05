"""A catalog as text: to know it again by digest, and to keep it small beside itself. Pure.

State keeps the latest catalog a second time, packed, because its own key may be overwritten to ask for discovery just
when a source is down.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable
from typing import Any

from deepskills._types import SkillMetadata

MAX_KEPT_BYTES = 32 * 1024 * 1024
"""How large a catalog may be, as text, to be kept packed; and how far one is ever unpacked."""

_FAST = 1


def catalog_text(skills: Iterable[SkillMetadata]) -> bytes:
    """Return a catalog as text that is the same whatever the order of keys: a checkpointer may have its own."""
    return json.dumps(list(skills), sort_keys=True, separators=(",", ":")).encode()


def text_digest(text: bytes) -> str:
    """Return the digest of a catalog's text."""
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def catalog_digest(skills: Iterable[SkillMetadata]) -> str:
    """Return a digest of a catalog's content."""
    return text_digest(catalog_text(skills))


def pack(text: bytes) -> str | None:
    """Return a catalog's text packed, or `None` if it is too large."""
    if len(text) > MAX_KEPT_BYTES:
        return None
    return base64.b64encode(zlib.compress(text, _FAST)).decode()


def unpack(packed: object, digest: str) -> Any:  # noqa: ANN401 - the caller checks what it is
    """Return what was packed, or `None` if that is not the text of this digest; state may come from a caller."""
    if not isinstance(packed, str) or len(packed) > MAX_KEPT_BYTES:
        return None
    try:
        text = zlib.decompressobj().decompress(base64.b64decode(packed, validate=True), MAX_KEPT_BYTES)
        return json.loads(text) if text_digest(text) == digest else None
    except (ValueError, zlib.error, RecursionError):
        return None
