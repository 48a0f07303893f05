"""Converts frontmatter to JSON values, for the entries that a server sends. Pure.

The reader keeps every scalar as its text, which is right for a prompt and wrong here: hosts parse the `SKILL.md` again
and compare values, so `true` has to be a boolean. Scalars mean what YAML 1.2 says; dates stay text. Only frontmatter
that the reader accepted as YAML is passed to the YAML library: the reader has bounded its size and its nesting.
"""

import re
from typing import Any

import yaml

from deepskills._skillmd.read import SkillReading

_INTEGER = re.compile(r"[-+]?[0-9]{1,15}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,2})?")
_WORDS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NOTHING = frozenset({"", "~", "null", "Null", "NULL"})
_ODD = frozenset(
    {"encoding-utf16", "line-ends-cr", "text-before-frontmatter", "fence-glued", "control-characters", "not-text"}
)
"""Problems of files that other readers may read differently, or not at all."""

_MARKS = re.compile(r"[&*!]|<<")
"""Anchors, aliases, tags and merge keys, which other readers treat differently; a field with one is sent as text."""


def json_frontmatter(content: bytes, reading: SkillReading) -> dict[str, Any]:
    """Return the frontmatter of a `SKILL.md` as JSON values, every field as it is written."""
    if not any(found["code"].startswith("yaml-") or found["code"] in _ODD for found in reading.problems):
        block = _block(content)
        if block is not None and not _MARKS.search(block):
            try:
                found = _value(yaml.compose(block, Loader=_Loader))
            except (yaml.YAMLError, RecursionError, ValueError):
                found = None
            if isinstance(found, dict) and all(isinstance(key, str) for key in found):
                return found
    # When in doubt, as text: a host that reads another value would refuse the skill.
    return dict(reading.frontmatter)


_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _block(content: bytes) -> str | None:
    """Return the text between the fences."""
    lines = content.decode("utf-8-sig", "replace").splitlines()
    if not lines or lines[0].rstrip() != "---":
        return None
    end = next((place for place, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
    return "\n".join(lines[1:end]) if end is not None else None


def _value(node: Any) -> Any:  # noqa: ANN401 - any value of JSON
    if isinstance(node, yaml.MappingNode):
        return {str(key.value): _value(value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_value(item) for item in node.value]
    if node is None:
        return None
    text: str = node.value
    # A quoted or a block scalar is text, whatever it looks like.
    return text if node.style else _plain(text)


def _plain(text: str) -> Any:  # noqa: ANN401 - any scalar of JSON
    if text in _NOTHING:
        return None
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text
