"""A skill's `SKILL.md`: taken apart for the store, put together again byte for byte, and compared. Pure.

The store keeps values (name, description, tags, body) so that databases can filter and search, and beside them the
frontmatter as its author wrote it, because an export must give the same bytes. Whoever changes a value gets frontmatter
written again from the values, with the keys that the store does not know kept; whoever changes nothing gets the bytes
that came in.
"""

import codecs
import difflib
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from deepskills._catalog.requires import requires_of
from deepskills._errors import SkillFormatError
from deepskills._skillmd.problems import quoted
from deepskills._skillmd.read import SkillReading, fenced_part, read_skill
from deepskills._skillmd.repair import Tree, as_text
from deepskills._skillmd.write import generate_skill_md
from deepskills._types import MAX_DESCRIPTION_LENGTH, SKILL_FILE
from deepskills.store.rules import MAX_TAGS, check_name, check_skill_size, check_text, checked_tags

_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


@dataclass(frozen=True)
class Document:
    """What a `SKILL.md` holds: its values, and the frontmatter as written if there is one."""

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
        # Where a Markdown fence is around the whole file, its last line follows the body.
        fenced = fenced_part(text)
        end = len(text) if fenced is None else fenced[1]
        return cls(
            name=reading.metadata["name"],
            description=reading.metadata["description"],
            content=reading.body,
            tags=_tags_of(reading.frontmatter),
            # Everything around the body, fences and odd bytes included: an export must give them back.
            frontmatter=text[: end - len(reading.body)] + text[end:],
            encoding=encoding,
        )

    @property
    def requires(self) -> tuple[str, ...]:
        """The names of the skills that it builds on, from its frontmatter."""
        # Few skills have any, and reading YAML takes far longer than looking for a word.
        if "requires" not in (self.frontmatter or ""):
            return ()
        return requires_of(read_skill(self.render(), path=SKILL_FILE).frontmatter)

    def render(self) -> bytes:
        """Return the file.

        Raises:
            SkillFormatError: If it has no frontmatter and none can be generated from the values.
        """
        if self.frontmatter is not None:
            return joined(self.frontmatter, self.content).encode(self.encoding)
        extra = {"metadata": {"tags": ", ".join(self.tags)}} if self.tags else None
        return (generate_skill_md(self.name, self.description, "", extra) + self.content).encode()

    def checked(self) -> "Document":
        """Return the document, its tags tidied, if it can be kept.

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
        document = replace(self, tags=checked_tags(self.tags), encoding=encoding)
        rendered = document.render()
        check_skill_size(len(rendered))
        if document.frontmatter is not None:
            # Columns and frontmatter say the same or nothing is saved: agents read the one, searches the other.
            _check_agreement(document, read_skill(rendered, path=SKILL_FILE))
        return document

    def changed(self, **values: object) -> "Document":
        """Return the document with other values; frontmatter as written follows them, its further keys kept.

        Raises:
            SkillFormatError: If the frontmatter cannot be written again.
        """
        document = replace(self, **values)  # type: ignore[arg-type]
        if document.content != self.content and document.frontmatter == self.frontmatter:
            document = replace(document, frontmatter=_without_fence(document.frontmatter))
        told = [key for key in ("name", "description", "tags") if getattr(document, key) != getattr(self, key)]
        # Whoever gives new frontmatter has said all of it; only values that changed beside the old one have to be
        # written in.
        if document.frontmatter is None or values.get("frontmatter", self.frontmatter) != self.frontmatter or not told:
            return document
        return document.with_new_frontmatter()

    def with_new_frontmatter(self) -> "Document":
        """Return the document with frontmatter written from its values and the further keys of the present one.

        Raises:
            SkillFormatError: If a key cannot be written again.
        """
        reading = read_skill(self.render(), path=SKILL_FILE)
        further = {key: tree for key, tree in reading.frontmatter.items() if key not in {"name", "description", "tags"}}
        properties = further.pop("metadata", None)
        kept: dict[str, Tree] = {**properties} if isinstance(properties, Mapping) else {}
        kept["tags"] = ", ".join(self.tags) or None
        text = generate_skill_md(self.name, self.description, "", {**further, "metadata": kept})
        return replace(self, frontmatter=text, encoding="utf-8")


def joined(frontmatter: str, content: str) -> str:
    """Return the text of a `SKILL.md` of frontmatter as written and the body.

    Frontmatter is all that is around the body. A Markdown fence around the whole file makes that two parts, and the
    body goes before the fence's last line.
    """
    fenced = fenced_part(frontmatter)
    end = len(frontmatter) if fenced is None else fenced[1]
    return frontmatter[:end] + content + frontmatter[end:]


def _without_fence(frontmatter: str | None) -> str | None:
    """Return frontmatter as written without a Markdown fence around the file, which another body might not fit into."""
    fenced = None if frontmatter is None else fenced_part(frontmatter)
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
    """Return the tags that a file names, at the top level or below `metadata`; those that cannot be kept are left.

    Raises:
        SkillFormatError: If one of a list has a comma, which the store cannot keep.
    """
    properties = frontmatter.get("metadata")
    tree = frontmatter.get("tags") or (properties.get("tags") if isinstance(properties, dict) else None)
    items: Sequence[Tree]
    if isinstance(tree, list):
        items = tree
        # Not dropped without a word: the author meant one tag, and the rest of the file is fine.
        checked_tags(tag for item in items if "," in (tag := as_text(item).strip()))
    else:
        text = as_text(tree)
        # With a comma anywhere, spaces are part of the tags.
        items = text.split(",") if "," in text else text.split()
    found = []
    for item in items:
        try:
            found += checked_tags([tag] if (tag := as_text(item).strip()) else [])
        except SkillFormatError:
            continue
    return found[:MAX_TAGS]


MAX_COMPARED_LINES = 2_000
"""How many lines that differ are matched with each other, in all files together; more would take too long.

Matching takes time with the square of the lines, or worse if many are the same. Beyond this, a file's changed part is
shown as removed and added.
"""

MAX_LINES = 200_000
"""Up to how many lines a file is compared by lines at all; each takes memory of its own."""


def difference(before: Mapping[str, bytes], after: Mapping[str, bytes], max_length: int | None = None) -> str:
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
    left = MAX_COMPARED_LINES
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
            left -= yield from _unified(texts[0], texts[1], *names, left)


def _lines(content: bytes) -> list[str] | None:
    """Return the lines of a text; `None` if it is not one."""
    try:
        return [line for line in re.split(r"(?<=\n)", content.decode()) if line]
    except UnicodeDecodeError:
        return None


def _unified(
    old: Sequence[str], new: Sequence[str], old_name: str, new_name: str, limit: int
) -> Generator[str, None, int]:
    """Yield a unified diff and return how many lines were matched; if they are too many, one hunk replaces them all."""
    # Equal lines at both ends cost nothing to find, and are most of any file; only the middle is matched.
    start = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    longest = min(len(old), len(new)) - start
    pairs = zip(reversed(old), reversed(new), strict=False)
    end = min(longest, next((i for i, (a, b) in enumerate(pairs) if a != b), longest))
    count = len(old) + len(new) - 2 * (start + end)
    if count <= limit:
        first, last = max(0, start - 3), max(0, end - 3)
        matched = difflib.unified_diff(old[first : len(old) - last], new[first : len(new) - last], old_name, new_name)
        yield from (_shifted(line, first) if line.startswith("@@") else line for line in matched)
        return count
    yield from (f"--- {old_name}\n", f"+++ {new_name}\n")
    yield f"@@ -{start + 1},{len(old) - start - end} +{start + 1},{len(new) - start - end} @@\n"
    yield from (f"-{line}" for line in old[start : len(old) - end])
    yield from (f"+{line}" for line in new[start : len(new) - end])
    return 0


def _shifted(hunk: str, by: int) -> str:
    """Return a hunk's heading for lines that were compared without the first `by`."""

    def moved(part: str) -> str:
        place, comma, count = part[1:].partition(",")
        return f"{part[0]}{int(place) + by}{comma}{count}"

    _, old, new, _ = hunk.split(" ", 3)
    return f"@@ {moved(old)} {moved(new)} @@\n"
