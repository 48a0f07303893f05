"""Prepares a script's output for the model: text, without secrets, its head and tail within a limit. Pure."""

import signal

from deepskills._skillmd.masking import Masker
from deepskills._skillmd.text import clean

MIN_OUTPUT = 200
"""Smallest limit: the note that something was left out must fit."""

_REPLACEMENT = "\ufffd"
_BINARY_SHARE = 5
"""Output is binary if more than one character in this many is not text."""

_BYTES_PER_CHARACTER = 4
"""The longest character in UTF-8."""

_NOTE = "\n[... about {cut:,} of {total:,} bytes of output are left out here ...]\n"


def shorten_output(head: bytes, tail: bytes, total: int, secrets: Masker, limit: int) -> str:
    """Return what a script wrote, in at most `limit` characters.

    Args:
        head: The first bytes of the output.
        tail: The last bytes that are not in the head; if bytes between both are missing, each must be longer than what
            is shown, by the longest form of a secret, because a cut may go through one.
        total: How many bytes the script wrote.
        secrets: What must not be shown.
        limit: How many characters are shown.
    """
    is_cut = len(head) + len(tail) < total
    if is_binary(head + tail):
        return f"[The output is not text: {total:,} bytes. Have the script write a file instead.]"
    if not is_cut:
        start = end = secrets.mask(_readable(head + tail))
        if len(start) <= limit:
            return start
    else:
        start, end = secrets.mask(_readable(head)), secrets.mask(_readable(tail))
        start, end = start[: max(0, len(start) - secrets.longest)], end[secrets.longest :]
        start, end = start.rstrip(_REPLACEMENT), end.lstrip(_REPLACEMENT)
    half = (limit - len(_NOTE.format(cut=total, total=total))) // 2
    start, end = start[:half], end[-half:]
    cut = max(0, total - len(start.encode()) - len(end.encode()))
    return f"{start}{_NOTE.format(cut=cut, total=total)}{end}"


def mask_text(text: str, secrets: Masker, limit: int) -> str:
    """Return a text from a user's code or a backend, cleaned, masked and bounded like output."""
    data = text.encode(errors="replace")
    keep = _BYTES_PER_CHARACTER * (limit + secrets.longest)
    head, tail = (data[:keep], data[-keep:]) if len(data) > 2 * keep else (data, b"")
    return shorten_output(head, tail, len(data), secrets, limit)


def is_binary(data: bytes) -> bool:
    """Whether too much of it is not UTF-8 text."""
    text = data.decode(errors="replace")
    strange = sum(
        1 for character in text if character == _REPLACEMENT or (character < " " and character not in "\t\r\n")
    )
    return strange * _BINARY_SHARE > len(text)


def _readable(data: bytes) -> str:
    # Removing them could join separate parts.
    text = data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "\n")
    return clean(text)


def describe_exit_code(code: int | None) -> str:
    """Return an exit code in words, with the signal that it usually stands for."""
    if code is None:
        return "an unknown exit code"
    number = code - 128 if code > 128 else -code  # noqa: PLR2004 - how shells tell a signal
    try:
        name = signal.Signals(number).name if number > 0 else ""
    except ValueError:
        name = ""
    return f"exit code {code}" + (f" (ended by {name})" if name else "")
