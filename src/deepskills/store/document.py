"""A skill's `SKILL.md`: taken apart for the store, put together again byte for byte, and compared. Pure.

The store keeps values (name, description, tags, body) so that databases can filter and search, and also the frontmatter
as its author wrote it, because an export must have the same bytes. If a value changes, the lines of that key change and
no others; if nothing changes, the bytes stay as they came in.
"""

import codecs
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from deepskills._catalog.lookup import requires_of
from deepskills._errors import SkillFormatError
from deepskills._install.differences import unify
from deepskills._skillmd.problems import quoted
from deepskills._skillmd.read import SkillReading, find_fenced_part, read_skill
from deepskills._skillmd.repair import Tree, as_text
from deepskills._skillmd.write import generate_skill_md, key_lines
from deepskills._types import MAX_DESCRIPTION_LENGTH, SKILL_FILE
from deepskills.store.rules import check_name, check_skill_size, check_tags, check_text

_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


@dataclass(frozen=True)
class Document:
    """The content of a `SKILL.md`: its values, and the frontmatter as written, if there is any."""

    name: str
    description: str
    content: str
    tags: list[str] = field(default_factory=list)
    frontmatter: str | None = None
    encoding: str = "utf-8"

    @classmethod
    def read(cls, content: bytes | str) -> "Document":
        """Take a `SKILL.md` apart.

        Raises:
            SkillFormatError: If it cannot be read; the message says why.
            SkillTooLargeError: If it is over 10 MiB.
        """
        raw = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
        check_skill_size(len(raw))
        reading = read_skill(content, path=SKILL_FILE)
        if reading.metadata is None:
            raise SkillFormatError(" ".join(p["message"] for p in reading.problems if p["severity"] == "error"))
        encoding = _MARKS.get(raw[:2], "utf-8") if isinstance(content, bytes) else "utf-8"
        text = content if isinstance(content, str) else raw.decode(encoding)
        # If a Markdown fence surrounds the whole file, its last line follows the body.
        fenced = find_fenced_part(text)
        end = len(text) if fenced is None else fenced[1]
        return cls(
            name=reading.metadata["name"],
            description=reading.metadata["description"],
            content=reading.body,
            tags=_tags_of(reading.frontmatter),
            # Everything around the body, including fences and odd bytes: an export must return them.
            frontmatter=text[: end - len(reading.body)] + text[end:],
            encoding=encoding,
        )

    @property
    def may_require(self) -> bool:
        """Whether it can name skills that it builds on, told without reading YAML, which takes far longer."""
        # A double-quoted key may spell any letter by an escape.
        return any(part in (self.frontmatter or "") for part in ("requires", "\\"))

    @property
    def requires(self) -> tuple[str, ...]:
        """The names of the skills that it builds on, from its frontmatter."""
        if not self.may_require:
            return ()
        return requires_of(read_skill(self.render(), path=SKILL_FILE).frontmatter)

    def render(self) -> bytes:
        """Return the file.

        Raises:
            SkillFormatError: If it has no frontmatter and none can be generated from the values.
        """
        if self.frontmatter is not None:
            return join_document(self.frontmatter, self.content).encode(self.encoding)
        text = generate_skill_md(self.name, self.description, "", tag_fields(self.tags))
        return (text + self.content).encode()

    def check(self) -> "Document":
        """Return the document with tidied tags, if it can be stored.

        Raises:
            SkillFormatError: If a value breaks the rules, or the frontmatter says something else.
            SkillTooLargeError: If the file is over 10 MiB.
        """
        check_name(self.name)
        for key, text in (("description", self.description), ("content", self.content)):
            check_text(key, text)
        check_text("frontmatter", self.frontmatter or "")
        if not self.description.strip() or len(self.description) > MAX_DESCRIPTION_LENGTH:
            raise SkillFormatError(
                f"The description has {len(self.description)} characters; write 1 to {MAX_DESCRIPTION_LENGTH}, "
                "saying what the skill does and when to use it."
            )
        encoding = "utf-8" if self.frontmatter is None else self.encoding
        document = replace(self, tags=check_tags(self.tags), encoding=encoding)
        rendered = document.render()
        check_skill_size(len(rendered))
        if document.frontmatter is not None:
            # Columns and frontmatter must agree, or nothing is saved: agents read one, searches the other.
            _check_agreement(document, read_skill(rendered, path=SKILL_FILE))
        return document

    def change(self, **values: object) -> "Document":
        """Return the document with other values; its frontmatter is updated and keeps its other keys.

        Raises:
            SkillFormatError: If the frontmatter cannot be written again.
        """
        document = replace(self, **values)  # type: ignore[arg-type]
        if document.content != self.content and document.frontmatter == self.frontmatter:
            document = replace(document, frontmatter=_without_fence(document.frontmatter))
        told = [key for key in ("name", "description", "tags") if getattr(document, key) != getattr(self, key)]
        # New frontmatter is complete as given; only values that changed beside the old frontmatter have to be written
        # into it.
        if document.frontmatter is None or values.get("frontmatter", self.frontmatter) != self.frontmatter or not told:
            return document
        return document.with_new_frontmatter(self)

    def with_new_frontmatter(self, before: "Document") -> "Document":
        """Return the document with its name, description and tags in the frontmatter, where `before` has others.

        Only the lines of those keys are written again: comments, order, quotes and `true` without quotes belong to the
        author. Where lines cannot be told apart, as in a mapping in braces, all of the frontmatter is written.

        Raises:
            SkillFormatError: If a key cannot be written again.
        """
        tree = read_skill(self.render(), path=SKILL_FILE).frontmatter
        tags = check_tags(self.tags)
        values: dict[str, object] = {
            key: getattr(self, key) for key in ("name", "description") if getattr(self, key) != getattr(before, key)
        }
        if self.tags != before.tags:
            values["tags"] = tags
        written = _without_fence(self.frontmatter) or ""
        edited = replace(self, tags=tags, frontmatter=edit_frontmatter(written, tree, values))
        if edited.frontmatter is not None and _says(edited, tree, values):
            return edited
        further = {key: value for key, value in tree.items() if key not in {"name", "description", "tags"}}
        properties = further.pop("metadata", None)
        kept: dict[str, object] = {**properties} if isinstance(properties, Mapping) else {}
        kept.pop("tags", None)
        fields = tag_fields(tags)
        kept |= fields.pop("metadata", {})
        text = generate_skill_md(self.name, self.description, "", {**further, **fields, "metadata": kept})
        return replace(self, frontmatter=text, encoding="utf-8")


def tag_fields(tags: Sequence[str]) -> dict[str, Any]:
    """Return the fields of frontmatter that hold tags: below `metadata`, as the specification has it, as one text.

    A text is split on its commas, so tags that hold commas themselves become a list, which the specification allows
    at the top alone.
    """
    if not tags:
        return {}
    if any("," in tag for tag in tags):
        return {"tags": list(tags)}
    return {"metadata": {"tags": _tags_as_text(tags)}}


def _tags_as_text(tags: Sequence[str]) -> str:
    # A text without a comma would be split on its spaces.
    return f"{tags[0]}," if len(tags) == 1 and len(tags[0].split()) > 1 else ", ".join(tags)


def _says(document: Document, before: Mapping[str, Tree], values: Mapping[str, object]) -> bool:
    """Whether the frontmatter of a document reads as before but for some values, and the body as it is."""
    reading = read_skill(document.render(), path=SKILL_FILE)
    expected: Mapping[str, Tree] = {**before, **{key: str(given) for key, given in values.items() if key != "tags"}}
    found: Mapping[str, Tree] = reading.frontmatter
    if "tags" in values:
        if _tags_of(found) != document.tags:
            return False
        expected, found = _without_tags(expected), _without_tags(found)
    return reading.metadata is not None and reading.body == document.content and found == expected


def _without_tags(tree: Mapping[str, Tree]) -> dict[str, Tree]:
    properties = tree.get("metadata")
    found = {key: value for key, value in tree.items() if key != "tags"}
    if isinstance(properties, Mapping):
        # An empty mapping says what none says.
        found["metadata"] = {key: value for key, value in properties.items() if key != "tags"} or None
    return {key: value for key, value in found.items() if value is not None}


_TOP_KEY = re.compile(r"[^\W\d][\w-]*(?=[ \t]*:(?:[ \t\r\n]|$))")
_CHILD_KEY = re.compile(r"([ \t]+)(\w[\w.-]*)(?=[ \t]*:(?:[ \t\r\n]|$))")


def edit_frontmatter(frontmatter: str, tree: Mapping[str, Tree], values: Mapping[str, object]) -> str | None:
    """Return frontmatter with other values of some keys, all other lines as they are; `None` if it has no such lines.

    Tags stay where they are, at the top or below `metadata`, as a list or as text. The result is a proposal: what it
    says has to be read again, because only a YAML reader knows whether a line was what it seemed to be.
    """
    lines = frontmatter.splitlines(keepends=True)
    fences = [number for number, line in enumerate(lines) if line.lstrip("\ufeff").rstrip() == "---"]
    if len(fences) < 2:  # noqa: PLR2004 - one opens and one closes
        return None
    start, end = fences[0] + 1, fences[1]
    yaml = lines[start:end]
    line_end = "\r\n" if lines[fences[0]].endswith("\r\n") else "\n"
    for key, value in values.items():
        if key == "tags":
            _put_tags(yaml, tree, cast("list[str]", value), line_end)
        else:
            _put(yaml, _block(yaml, key), key_lines(key, value), line_end)
    return "".join([*lines[:start], *yaml, *lines[end:]])


def _put_tags(yaml: list[str], tree: Mapping[str, Tree], tags: Sequence[str], line_end: str) -> None:
    """Write tags in the place and the form that they have, or else as a generated file has them."""
    properties = tree.get("metadata")
    holder = tree if tree.get("tags") else properties if isinstance(properties, Mapping) else {}
    must_be_list = any("," in tag for tag in tags)
    is_list = isinstance(holder.get("tags"), list) or must_be_list
    value = (list(tags) if is_list else _tags_as_text(tags)) if tags else None
    if tree.get("tags") or (must_be_list and not holder.get("tags")):
        _put(yaml, _block(yaml, "tags"), key_lines("tags", value), line_end)
        return
    whole = _block(yaml, "metadata")
    if whole is None:
        _put(yaml, None, key_lines("metadata", {"tags": value} if tags else None), line_end)
        return
    children = [found for line in yaml[whole.start + 1 : whole.stop] if (found := _CHILD_KEY.match(line))]
    indent = children[0][1] if children else "  "
    own = _child_block(yaml, whole, indent, "tags")
    if not tags and own is not None and all(found[2] == "tags" for found in children if found[1] == indent):
        # A mapping that nothing is left in goes as a whole.
        _put(yaml, whole, [], line_end)
        return
    _put(yaml, own or slice(whole.stop, whole.stop), key_lines("tags", value, indent), line_end)


def _block(yaml: Sequence[str], key: str) -> slice | None:
    """Return the lines of a key at the top: its own, and those below that belong to it."""
    for number, line in enumerate(yaml):
        found = _TOP_KEY.match(line)
        if found is not None and found[0] == key:
            return slice(number, _end(yaml, number, (" ", "\t", "-")))
    return None


def _child_block(yaml: Sequence[str], whole: slice, indent: str, key: str) -> slice | None:
    """Return the lines of a key one level below the top."""
    for number in range(whole.start + 1, whole.stop):
        found = _CHILD_KEY.match(yaml[number])
        if found is not None and (found[1], found[2]) == (indent, key):
            return slice(number, min(whole.stop, _end(yaml, number, (f"{indent} ", f"{indent}\t", f"{indent}-"))))
    return None


def _end(yaml: Sequence[str], start: int, beginnings: tuple[str, ...]) -> int:
    """Return where a key's lines end: all begin in one of these ways. Blank lines and comments behind them stay."""
    end = start + 1
    for number in range(start + 1, len(yaml)):
        line = yaml[number]
        # An indented comment belongs to the key; in a text of several lines it is not even a comment.
        if line.strip() and line.startswith(beginnings):
            end = number + 1
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return end


def _put(yaml: list[str], block: slice | None, new: Sequence[str], line_end: str) -> None:
    """Put lines in the place of others; without a place, at the end."""
    yaml[block if block is not None else slice(len(yaml), len(yaml))] = [line + line_end for line in new]


def join_document(frontmatter: str, content: str) -> str:
    """Return the text of a `SKILL.md` from its frontmatter as written and its body.

    Frontmatter is everything around the body. With a Markdown fence around the whole file it has two parts, and the
    body goes before the fence's last line.
    """
    fenced = find_fenced_part(frontmatter)
    end = len(frontmatter) if fenced is None else fenced[1]
    return frontmatter[:end] + content + frontmatter[end:]


def _without_fence(frontmatter: str | None) -> str | None:
    """Return frontmatter without a Markdown fence around the file, because a new body could break out of the fence."""
    fenced = None if frontmatter is None else find_fenced_part(frontmatter)
    return frontmatter if frontmatter is None or fenced is None else frontmatter[slice(*fenced)]


def _check_agreement(document: Document, reading: SkillReading) -> None:
    if reading.metadata is None:
        raise SkillFormatError(" ".join(p["message"] for p in reading.problems if p["severity"] == "error"))
    for key, given in (("name", document.name), ("description", document.description)):
        read = str(reading.metadata[key])  # type: ignore[literal-required]
        if read != given:
            raise SkillFormatError(
                f"The frontmatter gives {quoted(read)} as {key}, and the request {quoted(given)}. Make them agree."
            )
    if reading.body != document.content:
        raise SkillFormatError(
            "The frontmatter does not end where the content starts. Close it with a line that holds only `---`."
        )


def _tags_of(frontmatter: Mapping[str, Tree]) -> list[str]:
    """Return the tags of a file, at the top level or under `metadata`; empty ones are ignored.

    Raises:
        SkillFormatError: If one cannot be kept, or there are too many: none is left out without a word.
    """
    properties = frontmatter.get("metadata")
    tree = frontmatter.get("tags") or (properties.get("tags") if isinstance(properties, dict) else None)
    items: Sequence[Tree]
    if isinstance(tree, list):
        items = tree
    else:
        text = as_text(tree)
        # With a comma anywhere, spaces are part of the tags.
        items = text.split(",") if "," in text else text.split()
    return check_tags(tag for item in items if (tag := as_text(item).strip()))


MAX_COMPARED = 1_000_000
"""How many pairs of lines are compared, in all files together; beyond, what differs is shown as removed and added."""

MAX_LINES = 200_000
"""Up to this many lines, a file is compared line by line; each line is an object in memory."""


def difference(
    before: Mapping[str, bytes],
    after: Mapping[str, bytes],
    max_length: int | None = None,
) -> str:
    """Return the differences of two sets of files as one unified diff, or about so many characters of it."""
    parts: list[str] = []
    length = 0
    for line in _differences(before, after):
        parts.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
        length += len(line)
        if max_length is not None and length > max_length:
            break
    return "".join(parts)


def _differences(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Iterator[str]:
    left = MAX_COMPARED
    for path in sorted({*before, *after}):
        old, new = before.get(path), after.get(path)
        if old == new:
            continue
        names = ("/dev/null" if old is None else f"a/{path}", "/dev/null" if new is None else f"b/{path}")
        # Counted before it is split: each line is an object of its own.
        if any(content.count(b"\n") > MAX_LINES for content in (old or b"", new or b"")):
            yield f"Files {names[0]} and {names[1]} differ, and have too many lines to be shown\n"
            continue
        texts = _lines(old or b""), _lines(new or b"")
        if texts[0] is None or texts[1] is None:
            yield f"Binary files {names[0]} and {names[1]} differ\n"
        else:
            left -= yield from unify(texts[0], texts[1], *names, left, "\n")


def _lines(content: bytes) -> list[str] | None:
    """Return the lines of a text; `None` if it is not text."""
    try:
        return [line for line in re.split(r"(?<=\n)", content.decode()) if line]
    except UnicodeDecodeError:
        return None
