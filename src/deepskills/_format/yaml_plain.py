"""The fast way for plain frontmatter: `key: value` lines, one level of nesting, one-line values. Pure.

Most files are like this, and reading them by regular expressions costs a fraction of what libyaml costs. Whatever is
not plainly of this shape is left to libyaml, and a test holds both ways equal over generated and hostile files.
"""

import re

from deepskills._format.yaml_tree import NULLS, Tree

_NOT_TEXT = r"\n\t\u2028\u2029"
_LINE = re.compile(
    r"(?P<indent> *+)"
    r"(?:(?P<key>[A-Za-z_][A-Za-z0-9_-]{0,63}):|(?P<item>-)|)"
    r"(?: +(?:"
    rf'"(?P<double>[^"\\{_NOT_TEXT}]*+)"'
    rf"|'(?P<single>[^'{_NOT_TEXT}]*+)'"
    # A plain scalar starts with a character that means nothing to YAML, and holds neither `: ` nor ` #`.
    r"|(?P<bare>[A-Za-z0-9_(/$+\u00a1-\u2027\u202f-\ud7ff]"
    rf"[^:#{_NOT_TEXT}]*+(?:(?::(?![ \n]|\Z)|(?<! )#)[^:#{_NOT_TEXT}]*+)*+)"
    r") *+| *+)(?:\n|\Z)"
)


def read_plain(text: str) -> dict[str, Tree] | None:  # noqa: C901, PLR0911, PLR0912 - one small automaton
    """Return the mapping that cleaned text holds if it is plain throughout; `None` if only YAML can tell."""
    found: dict[str, Tree] = {}
    open_key = ""
    below: list[Tree] | dict[str, Tree] | None = None
    indent = position = 0
    end = len(text)
    while position < end:
        line = _LINE.match(text, position)
        if line is None:
            return None
        position = line.end()
        spaces, key, item, double, single, bare = line.groups()
        value: str | None = double if double is not None else single
        if bare is not None:
            bare = bare.rstrip(" ")
            value = None if bare in NULLS else bare
        is_empty = double is None and single is None and bare is None
        depth = len(spaces)
        if key is None and item is None:
            if not is_empty:
                return None
        elif key is not None and depth == 0:
            if key in found:
                return None
            found[key] = value
            open_key, below = (key if is_empty else ""), None
        elif not open_key or (item is not None and is_empty) or (below is not None and depth != indent):
            return None
        elif below is None:
            indent, below = depth, ({key: value} if key is not None else [value])
            found[open_key] = below
        elif isinstance(below, dict):
            if key is None or key in below:
                return None
            below[key] = value
        else:
            if item is None:
                return None
            below.append(value)
    return found or None
