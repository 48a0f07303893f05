"""Tells what kind of content a file holds by its first bytes, since a name can say anything. Pure."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

MediaKind: TypeAlias = Literal["image", "audio", "file"]
"""Kinds of content that models take beside text, as LangChain's content blocks call them."""

MAX_MEDIA_BYTES = 5 * 1024 * 1024
"""Largest image, audio or PDF file that a model is given; providers refuse larger ones, and the run with them."""

_PDF = b"%PDF-"


@dataclass(frozen=True)
class FileKind:
    """What a file holds."""

    mime_type: str
    media: MediaKind | None = None
    """The kind of content block that shows it; `None` if no model can be shown it."""


# Only what the large providers take as input; a picture of another format would fail the whole request.
_SIGNATURES: tuple[tuple[bytes, FileKind], ...] = (
    (b"\x89PNG\r\n\x1a\n", FileKind("image/png", "image")),
    (b"\xff\xd8\xff", FileKind("image/jpeg", "image")),
    (b"GIF87a", FileKind("image/gif", "image")),
    (b"GIF89a", FileKind("image/gif", "image")),
    (_PDF, FileKind("application/pdf", "file")),
    (b"ID3", FileKind("audio/mpeg", "audio")),
    (b"\xff\xfb", FileKind("audio/mpeg", "audio")),
    (b"\xff\xf3", FileKind("audio/mpeg", "audio")),
    (b"\xff\xf2", FileKind("audio/mpeg", "audio")),
    (b"fLaC", FileKind("audio/flac", "audio")),
    (b"OggS", FileKind("audio/ogg", "audio")),
    (b"PK\x03\x04", FileKind("application/zip")),
    (b"PK\x05\x06", FileKind("application/zip")),
    (b"\x1f\x8b", FileKind("application/gzip")),
    (b"7z\xbc\xaf\x27\x1c", FileKind("application/x-7z-compressed")),
    (b"SQLite format 3\x00", FileKind("application/vnd.sqlite3")),
    (b"\x7fELF", FileKind("application/x-executable")),
    (b"II*\x00", FileKind("image/tiff")),
    (b"MM\x00*", FileKind("image/tiff")),
    (b"BM", FileKind("image/bmp")),
    (b"wOFF", FileKind("font/woff")),
    (b"wOF2", FileKind("font/woff2")),
    (b"\x00\x01\x00\x00", FileKind("font/ttf")),
    (b"OTTO", FileKind("font/otf")),
)
_RIFF = {b"WEBP": FileKind("image/webp", "image"), b"WAVE": FileKind("audio/wav", "audio")}
_UNKNOWN = FileKind("application/octet-stream")


def kind_of(content: bytes) -> FileKind:
    """Return what a file that is not text holds."""
    if content.startswith(b"RIFF"):
        return _RIFF.get(content[8:12], _UNKNOWN)
    # MP4 and its relatives have their mark behind a length.
    if content[4:8] == b"ftyp":
        return FileKind("audio/mp4", "audio") if content[8:11] in {b"M4A", b"M4B"} else FileKind("video/mp4")
    return next((kind for signature, kind in _SIGNATURES if content.startswith(signature)), _UNKNOWN)


def text_of(content: bytes) -> str | None:
    """Return a file's text without its byte order mark; `None` if it is not text, as a PDF never is."""
    if content.startswith(_PDF):
        return None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    # Much binary data happens to be valid UTF-8, and text has no zero bytes.
    return None if "\x00" in text else text
