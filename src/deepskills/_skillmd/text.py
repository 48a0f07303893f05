"""Cleans text that strangers wrote, before a model, a terminal or a log shows it.

It removes whatever makes text look like something else: control sequences, direction overrides, tags that only models
see. Everything else stays as written, in any script.
"""

import re

_UNSAFE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, except tab and newline
    "\u202a-\u202e\u2066-\u2069"  # bidirectional embeddings, overrides and isolates
    "\ufeff\ufffe\uffff"  # byte order mark and noncharacters
    "\ud800-\udfff"  # surrogates, which no encoder takes
    "\U000e0000-\U000e007f"  # tags: invisible to people, plain text to models
    "]"
)

_TERMINAL = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours and cursor movements
    r"|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # titles and links
    r"|\x1b[@-_]"
)
_LINE_BREAKS = re.compile("[\x0b\x0c\x1c-\x1f\x85]")
_DIRECTION_MARKS = re.compile("[\u061c\u200e\u200f]")


def clean(text: str) -> str:
    """Return `text` without characters that hide, reorder or break what is shown; tabs and newlines stay."""
    # Whatever Python calls printable is safe, and telling so is much cheaper than the search.
    if text.replace("\n", "").isprintable() or not _UNSAFE.search(text):
        return text
    # Whole sequences first: without its escape character the rest of one would stay as text.
    return _UNSAFE.sub("", _TERMINAL.sub("", text))


def one_line(text: str) -> str:
    """Return `text` cleaned and on one line, every run of white space a single space."""
    if text.isascii() and text.isprintable() and "  " not in text:
        return text.strip()
    return " ".join(_DIRECTION_MARKS.sub("", clean(_LINE_BREAKS.sub(" ", text))).split())


def is_text(text: str) -> bool:
    """Whether `text` can be encoded: a file's name that is not UTF-8 comes as surrogates, which cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_readable(text: str) -> str:
    """Return `text` with escapes for what cannot be encoded."""
    return text.encode(errors="backslashreplace").decode()
