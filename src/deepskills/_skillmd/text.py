"""Makes a stranger's text harmless before a model, a terminal or a log shows it.

Cleaning removes whatever makes text look like something else: control sequences, direction overrides, tags that only
models see. Everything else stays as written, in any script. Escaping is for models alone: nothing in a stranger's text
can then pass for a part of ours. A field is one bounded line without markup (`field_text`); a whole text keeps its
lines and loses only what only this library writes (`harmless_body`).
"""

import re
from collections.abc import Iterable

from deepskills._types import MAX_SHOWN_NAME_LENGTH, SkillOrigin

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


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where it needs to be."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


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


_MARKUP_IN_NAME = str.maketrans({**dict(zip("[]<>{}", "()()()", strict=True)), "*": "_", "`": "'", '"': "'", "\\": "_"})
"""What stands for each character that marks up text: taken away, it would make one name look like another."""


def clean_name(name: str) -> str:
    """Return a name as the model sees it: one line without characters that mark up text."""
    return one_line(name).translate(_MARKUP_IN_NAME).strip()[:MAX_SHOWN_NAME_LENGTH] or "unnamed-skill"


MAX_PATH_LENGTH = 400
"""Longest path that is shown."""

_TAG = re.compile(r"<(?=[/!?a-zA-Z])")

OWN_TAGS = ("skill_content", "skill_hook", "skill_load_warnings")
"""The tags that only this library writes, and any that begin so."""

OWN_NOTICES = ("Notice about skills", "Note from the skills system")
"""How notices of this library begin, behind their bracket; those that name a skill begin with `Skill '`."""

_HIDDEN = (
    r"[\s\u0000-\u001f\u007f-\u00a0\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    r"\u2028-\u202f\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001d173-\U0001d17a"
    r"\U000e0000-\U000e0fff]*+"
)
"""Any run of invisible characters; they do not turn a tag into something else."""


def _spell(words: str) -> str:
    """Return the pattern of a text: with invisible characters between its letters a model still reads it."""
    return _HIDDEN.join(words.replace(" ", ""))


# A quote of any kind has to follow `[Skill`: `[skill name]` is a usual blank to fill in.
_QUOTE = "['\"`\u00b4\u2018-\u201f\u2032\u2035\uff07]"
_TAGS = "|".join(map(_spell, OWN_TAGS))
_NOTICES = "|".join([*map(_spell, OWN_NOTICES), f"{_spell('Skill')}{_HIDDEN}{_QUOTE}"])
_OWN_TAG = re.compile(f"<(?={_HIDDEN}(?:/{_HIDDEN})?(?:{_TAGS}))", re.IGNORECASE)
_OWN_NOTICE = re.compile(rf"\[(?={_HIDDEN}(?:{_NOTICES}))", re.IGNORECASE)


def harmless_body(text: str) -> str:
    """Return a stranger's text in which nothing can pass for a block, a notice or a tag of ours, or for its end."""
    return _OWN_NOTICE.sub("&#91;", _OWN_TAG.sub("&lt;", text))


def field_text(text: str, limit: int) -> str:
    """Return a stranger's text as one bounded line that holds no tag and no notice of ours."""
    line = one_line(text)
    if len(line) > limit:
        # Cut before escaping: a cut through `&lt;` would leave half of it.
        line = f"{line[:limit].rstrip()}..."
    return _OWN_NOTICE.sub("&#91;", _TAG.sub("&lt;", line))


def show_path(path: str) -> str:
    """Return a path as the model sees it."""
    return field_text(path, MAX_PATH_LENGTH).replace("`", "'")


def origin_text(origin: SkillOrigin) -> str:
    """Return where a served skill came from, as the model sees it."""
    return f"{origin['via']} server '{clean_name(origin['label'])}'"


def quote_names(names: Iterable[str]) -> str:
    """Return names in quotes, with commas between them."""
    return ", ".join(f"'{clean_name(name)}'" for name in names)
