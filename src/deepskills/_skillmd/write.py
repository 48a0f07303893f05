"""Writes SKILL.md text that reads back with the same values.

Every text is read again before it is returned, by the strict reading and by value: the writer has no second idea of
what is valid, and a value that YAML would change raises here instead of surprising a reader.
"""

import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence

from deepskills._errors import SkillFormatError
from deepskills._skillmd.read import read_skill, validate_skill
from deepskills._skillmd.repair import Tree

_PLAIN = re.compile(r"[^\W\d_][\w ,.;()/'-]*")
_NOT_PLAIN = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
_ESCAPED = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}
_INDENT = "  "


def generate_skill_md(
    name: str, description: str, body: str = "", additional_fields: Mapping[str, object] | None = None
) -> str:
    """Write a `SKILL.md` that reads back with the same values.

    Args:
        name: The skill's name, by the specification's rules.
        description: What it does and when to use it, at most 1,024 characters.
        body: The Markdown instructions, kept to the letter.
        additional_fields: Further frontmatter: text, numbers, dates and booleans, lists and mappings of them.
            With the specification's keys alone the file passes `validate_skill`. `None` and empty lists or
            mappings are left out.

    Raises:
        SkillFormatError: If a value breaks the rules, or could not be read back as it was given.
    """
    extra = additional_fields or {}
    given = [key for key in ("name", "description") if key in extra]
    if given:
        raise SkillFormatError(f"Pass {' and '.join(given)} as arguments, not in additional_fields.")
    try:
        frontmatter = _as_tree({"name": name, "description": description, **extra}, "frontmatter")
        if not isinstance(frontmatter, dict):
            raise SkillFormatError("There is no name and no description.")
        text = "---\n" + "".join(f"{line}\n" for line in _mapping_lines(frontmatter, "")) + "---\n" + body
    except RecursionError:
        raise SkillFormatError("The frontmatter is nested too deep, or holds itself. Keep it flat.") from None
    _check(text, frontmatter, body)
    return text


def _check(text: str, frontmatter: dict[str, Tree], body: str) -> None:
    """Read `text` again and raise unless it is valid and says what was meant."""
    name = frontmatter.get("name")
    # In a directory of its name, where the reader expects it.
    path = f"{name}/SKILL.md" if isinstance(name, str) and "/" not in name else "SKILL.md"
    problems = [p for p in validate_skill(text, path=path) if p["code"] not in {"unknown-field", "client-field"}]
    if problems:
        raise SkillFormatError(" ".join(p["message"] for p in problems))
    # Valid is not enough: the values must be those that were given.
    reading = read_skill(text, path=path)
    changed = [key for key, value in frontmatter.items() if reading.frontmatter.get(key) != value]
    metadata = reading.metadata
    changed += [key for key in ("name", "description") if metadata is None or metadata[key] != frontmatter.get(key)]
    if changed:
        raise SkillFormatError(
            f"The value of {changed[0]} would not read back as given. "
            "Remove white space around it and characters that cannot be shown."
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SkillFormatError(f"The body cannot be written as UTF-8: {error.reason}.") from None
    if reading.body != body:
        raise SkillFormatError("The body would not read back as given.")


def _as_tree(value: object, key: str) -> Tree:
    """Return `value` as a reader would see it: every scalar as text, nothing and empty ones as `None`."""
    if value is None or isinstance(value, str):
        return value
    # Before numbers: `True` is an `int` to Python.
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | dt.date):
        return str(value)
    if isinstance(value, Mapping):
        mapping: dict[str, Tree] = {str(k): tree for k, v in value.items() if (tree := _as_tree(v, str(k))) is not None}
        return mapping or None
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [tree for v in value if (tree := _as_tree(v, key)) is not None] or None
    raise SkillFormatError(
        f"{key} is a {type(value).__name__}. Use text, numbers, dates, booleans, lists and mappings."
    )


def key_lines(key: str, value: object, indent: str = "") -> list[str]:
    """Return the lines of YAML that give a key its value, without line ends; none for an empty value.

    Raises:
        SkillFormatError: If the value is of a kind that YAML does not have here.
    """
    tree = _as_tree(value, key)
    return [] if tree is None else list(_lines(f"{indent}{_quote(key)}:", tree, indent))


def _mapping_lines(mapping: dict[str, Tree], indent: str) -> Iterator[str]:
    for key, value in mapping.items():
        yield from _lines(f"{indent}{_quote(key)}:", value, indent)


def _lines(head: str, value: Tree, indent: str) -> Iterator[str]:
    """Yield `head` with `value` behind it, or below it where it is a list or a mapping."""
    if isinstance(value, dict):
        yield head
        yield from _mapping_lines(value, indent + _INDENT)
    elif isinstance(value, list):
        yield head
        for item in value:
            yield from _lines(f"{indent}{_INDENT}-", item, indent + _INDENT)
    else:
        yield f"{head} {_quote(value or '')}"


def _quote(text: str) -> str:
    """Return `text` as a plain scalar where every YAML reader takes it for this text, else in double quotes."""
    if _PLAIN.fullmatch(text) and text[-1] != " " and "--" not in text and text.lower() not in _NOT_PLAIN:
        return text
    escaped = "".join(_ESCAPED.get(character) or _escape(character) for character in text)
    # A fence inside the frontmatter ends it for some readers.
    return '"' + escaped.replace("---", r"--\x2D") + '"'


def _escape(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"  # noqa: PLR2004 - the end of the basic plane
