"""Where frontmatter starts and ends: the two lines of dashes, as authors write them. Pure."""

import re

from deepskills._format.frontmatter import is_whole_yaml
from deepskills._types import MAX_FRONTMATTER_BYTES

MAX_GLUED_CHECKED = 16 * 1024
"""How many characters are tried as YAML to tell a fence with a heading glued to it from text in quotes."""

MAX_PLAIN_LENGTH = MAX_FRONTMATTER_BYTES // 4
"""How many characters are frontmatter of an allowed size, whatever they are."""

_STRAY = (
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\xa0"  # control characters and the no-break space
    "\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f"  # what has no width
)
FENCE = re.compile(f"---[ \t{_STRAY}]*+(?:\r\n|[\r\n]|\\Z)")
_GLUED_FENCE = re.compile(r"---[ \t]*+(?=#{1,6}[ \t]+\S)")
STRAY_CHARACTER = re.compile(f"[{_STRAY}]")
_LINE_OF_DASHES = re.compile(r"(?<=[\r\n])---")
_BLANK = re.compile(r"[\s\x00-\x1f\u200b\ufeff]*")


def closing_fence(text: str, start: int, furthest: int) -> tuple[re.Match[str] | None, bool]:
    """Return the fence that ends the frontmatter, and whether a heading is glued to it, as in `---# Title`.

    Such a line can also be part of a value in quotes: then the frontmatter is valid YAML with it, and not without it.
    """
    glued: re.Match[str] | None = None
    whole: re.Match[str] | None = None
    for dashes in _LINE_OF_DASHES.finditer(text, start, furthest + len("---")):
        whole = FENCE.match(text, dashes.start())
        if whole is not None:
            break
        glued = glued or _GLUED_FENCE.match(text, dashes.start())
    if glued is None or whole is None:
        return whole or glued, whole is None
    if max(glued.start(), whole.start()) - start <= MAX_GLUED_CHECKED:
        before, after = (to_lf(text[start : fence.start()]) for fence in (glued, whole))
        if not is_whole_yaml(before) and is_whole_yaml(after):
            return whole, False
    return glued, True


def split_plain(text: str) -> tuple[str, str] | None:
    """Return what is between the fences and what comes after them, for a file without anything odd about either."""
    if not text.startswith("---\n"):
        return None
    end = text.find("\n---", 3, MAX_PLAIN_LENGTH)
    if end < 0 or not text.startswith("\n---\n", end):
        return None
    raw = text[4 : end + 1]
    if "\r" in raw or "\t" in raw or "---" in raw or "\u2028" in raw or "\u2029" in raw:
        return None
    return raw, text[end + 5 :]


def to_lf(text: str) -> str:
    """Return `text` with its line ends made LF."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def end_of_preamble(text: str) -> int:
    """Return where blank lines and HTML comments at the start of `text` end."""
    if text.startswith("---"):
        return 0
    position = _end_of_blank(text, 0)
    # Bounded, as no author writes more, and every comment costs a step.
    while position < MAX_FRONTMATTER_BYTES and text.startswith("<!--", position):
        end = text.find("-->", position)
        if end < 0:
            break
        position = _end_of_blank(text, end + len("-->"))
    return position


def _end_of_blank(text: str, position: int) -> int:
    match = _BLANK.match(text, position)
    return match.end() if match else position
