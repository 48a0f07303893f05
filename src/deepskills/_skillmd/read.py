"""Reads SKILL.md: finds the frontmatter, reads its YAML, and returns metadata, body and problems.

Authors slip in the same few ways, and an agent is better off with a skill than without it, so the ordinary reading is
tolerant: it reads what can be read and adds a warning for each slip. Errors are kept for files that cannot be used at
all. `validate_skill` is the strict reading of the same file: every warning counts as an error, and so does whatever
other readers would refuse. Both are one pass over the file, in `_Reader`, so that they can never disagree about what
it says.

Nothing here raises for what a file holds, and each step has a bound, because the file may be an attack.
"""

import codecs
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Literal, TypeAlias, get_args

from deepskills._errors import SkillFormatError
from deepskills._skillmd import names as _naming
from deepskills._skillmd.checks import read_checks
from deepskills._skillmd.keys import KEYS, SPECIFIED_FIELDS, is_acted_on, is_acted_on_below, readers_of
from deepskills._skillmd.problems import listed, problem, quoted
from deepskills._skillmd.repair import NOTHING_UNUSUAL, FrontmatterError, Notes, Tree, as_text, is_whole_yaml, read_yaml
from deepskills._skillmd.text import clean, one_line
from deepskills._types import (
    MAX_COMPATIBILITY_LENGTH,
    MAX_DESCRIPTION_LENGTH,
    MAX_FRONTMATTER_BYTES,
    MAX_NAME_LENGTH,
    MAX_SHOWN_NAME_LENGTH,
    MAX_SKILL_FILE_BYTES,
    SkillMetadata,
    SkillProblem,
)

MAX_GLUED_CHECKED = 16 * 1024
"""How many characters are tried as YAML to tell a fence with a heading glued to it from text in quotes."""

MAX_PLAIN_LENGTH = MAX_FRONTMATTER_BYTES // 4
"""Up to this many characters, frontmatter is within its limit of bytes, whatever the characters are."""

# Fences: the two lines of dashes around the frontmatter, as authors write them.

_STRAY = (
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\xa0"  # control characters and the no-break space
    "\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f"  # what has no width
)
FENCE = re.compile(f"---[ \t{_STRAY}]*+(?:\r\n|[\r\n]|\\Z)")
_GLUED_FENCE = re.compile(r"---[ \t]*+(?=#{1,6}[ \t]+\S)")
STRAY_CHARACTER = re.compile(f"[{_STRAY}]")
_LINE_OF_DASHES = re.compile(r"(?<=[\r\n])---")
_MARKDOWN_FENCE = re.compile(r"(`{3,16}|~{3,16})[^`\r\n]{0,100}(?:\r\n|[\r\n])")
_BLANK = re.compile(r"[\s\x00-\x1f\u200b\ufeff]*")


def closing_fence(text: str, start: int, furthest: int) -> tuple[re.Match[str] | None, bool]:
    """Return the fence that ends the frontmatter, and whether a heading is glued to it, as in `---# Title`.

    Such a line can also be part of a value in quotes: then the frontmatter is valid YAML with it, and not without it.
    """
    glued: re.Match[str] | None = None
    whole: re.Match[str] | None = None
    # The first whole line of dashes ends the search. A glued one before it is only a candidate.
    for dashes in _LINE_OF_DASHES.finditer(text, start, furthest + len("---")):
        whole = FENCE.match(text, dashes.start())
        if whole is not None:
            break
        glued = glued or _GLUED_FENCE.match(text, dashes.start())
    if glued is None or whole is None:
        return whole or glued, whole is None
    # Both were found, so one of them is text. Only YAML can tell which, and trying it twice has to stay cheap.
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
    # Each of these is either a slip to report or a fence to look for: the full search handles them.
    if "\r" in raw or "\t" in raw or "---" in raw or "\u2028" in raw or "\u2029" in raw:
        return None
    return raw, text[end + 5 :]


def to_lf(text: str) -> str:
    """Return `text` with its line ends made LF."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def end_of_preamble(text: str) -> int:
    """Return where blank lines and HTML comments at the start of `text` end."""
    # The usual file has no preamble.
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


def find_fenced_part(text: str) -> tuple[int, int] | None:
    """Return where the part inside a Markdown fence around the whole text begins and ends.

    `None` if there is no such fence, or more than one block.
    """
    start = end_of_preamble(text)
    # Seen in public skills: the whole file stands inside a code block.
    opening = _MARKDOWN_FENCE.match(text, start)
    if opening is None:
        return None
    end = len(text.rstrip())
    last = max(text.rfind("\n", 0, end), text.rfind("\r", 0, end)) + 1
    mark = opening[1]
    # The last line must be the same fence: anything behind it would be lost.
    closes = last >= opening.end() and text[last:end].startswith(mark) and not text[last:end].strip(mark[0])
    return (opening.end(), last) if closes else None


def _end_of_blank(text: str, position: int) -> int:
    match = _BLANK.match(text, position)
    return match.end() if match else position


# Reading a file.

Profile: TypeAlias = Literal["spec", "deepskills"]
"""Whose rules a strict reading holds a file to: the specification's, or this library's."""

_JUDGED_HERE = frozenset({"flow-style", "unknown-field", "client-field", "metadata-value-not-text"})
"""What the library's own profile lets pass, or judges by its own table of keys."""

_TEXT_FIELDS = ("name", "description", "license", "compatibility")
_NESTED = (list, dict)
_PLAIN = frozenset({str, NoneType})
_BYTES = (bytes, bytearray, memoryview)

SCAFFOLD = "Say in one or two sentences what good work looks like here."
"""How the instructions of a new skill begin until its author writes them."""

_PLACEHOLDER = re.compile(
    r"""\s*(?:
        [\[<{*_]*(?:todo|tbd|fixme|placeholder)\b(?:\W*$|\s*[:.\]])  # "TODO: ...", "[TODO]"
        | \[[^\]]*\]\W*$ | <[^>]*>\W*$  # nothing but "[what it does]"
        | .{0,60}\bwhat\s(?:this|the|your)\sskill\s(?:does|is\sfor)\s(?:and|or)\s(?:when|why)
        | (?:[\w, -]{0,40}\s)?description\s(?:here|goes|of\s(?:this|the|your|my)\s(?:new\s)?skill\b)
        | replace\swith\b | your\s(?:\w+\s)?description | lorem\sipsum
    )""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
"""How descriptions begin that nobody has written yet; of 10,000 public ones it fits six, all of them such."""

FALLBACK_NAME = "unnamed-skill"
"""The name of a skill that has none and is in no directory."""


@dataclass(frozen=True, slots=True)
class SkillReading:
    """What a `SKILL.md` says, and what is wrong with it."""

    metadata: SkillMetadata | None
    """What the model is told of the skill; `None` if a problem is an error."""

    frontmatter: dict[str, Tree] = field(default_factory=dict)
    """Every key as read: each scalar is its text, nothing is `None`."""

    body: str = ""
    """All after the closing fence's line, unchanged."""

    problems: list[SkillProblem] = field(default_factory=list)
    """What is wrong, each cause once."""


def read_skill(content: bytes | str, *, path: str) -> SkillReading:
    """Read a `SKILL.md`, tolerant where authors slip and strict where it protects. Never raises.

    Args:
        content: The file, as bytes or as text.
        path: Where it lies; its directory's name is what `name` is compared with.
    """
    return _Reader(path).read(content)


def validate_skill(content: bytes | str, *, path: str, profile: Profile = "spec") -> list[SkillProblem]:
    """Return every way in which a `SKILL.md` falls short of what is asked of authors.

    Args:
        content: The file, as bytes or as text.
        path: Where it lies.
        profile: `"spec"`: each problem is an error, and what passes, the specification's reference validator passes
            too. `"deepskills"`: the keys that this library acts on and YAML flow style pass as well; a key that only
            another client reads is a warning, and so is what is left of a scaffold.

    Raises:
        ValueError: If there is no such profile.
    """
    if profile not in get_args(Profile):
        raise ValueError(f"profile must be 'spec' or 'deepskills', got {profile!r}")
    reader = _Reader(path)
    reading = reader.read(content)
    found = [*reading.problems, *reader.strict_problems]
    warnings: list[SkillProblem] = []
    if profile == "deepskills":
        found = [p for p in found if p["code"] not in _JUDGED_HERE]
        unknown = [key for key in reading.frontmatter if not is_acted_on(key)]
        theirs = [key for key in unknown if key in KEYS]
        nobodys = [key for key in unknown if key not in KEYS]
        found += [problem(path, "unknown-field", keys=listed(nobodys))] if nobodys else []
        unread = _unread_properties(reading.frontmatter.get("metadata"))
        found += [problem(path, "metadata-value-not-text", keys=listed(unread))] if unread else []
        # A warning each, beside the errors: the file is fine here, and the key does its work elsewhere.
        found += read_checks(reading.frontmatter.get("checks"), path).problems
        warnings = [problem(path, "foreign-field", keys=listed([key]), clients=readers_of([key])) for key in theirs]
        warnings += find_placeholders(reading, path)
    strict = [SkillProblem(path=p["path"], code=p["code"], severity="error", message=p["message"]) for p in found]
    return strict + warnings


def find_placeholders(reading: SkillReading, path: str) -> list[SkillProblem]:
    """Return the problem of a skill that still has the texts of the scaffold that it was made from."""
    description = reading.metadata["description"] if reading.metadata is not None else ""
    parts = ["description"] if _PLACEHOLDER.match(description) else []
    parts += ["instructions"] if SCAFFOLD in reading.body else []
    return [problem(path, "placeholder-left", parts=" and ".join(parts))] if parts else []


def _unread_properties(tree: Tree) -> list[str]:
    """Return the keys below `metadata` whose lists or mappings nobody takes apart; a list of words works for ours."""
    nested = {key: value for key, value in tree.items() if isinstance(value, _NESTED)} if isinstance(tree, dict) else {}
    return [key for key, value in nested.items() if not (is_acted_on_below(key) and _is_list_of_words(value))]


def _is_list_of_words(tree: Tree) -> bool:
    return isinstance(tree, list) and not any(isinstance(item, _NESTED) for item in tree)


def parse_skill_md(content: str) -> tuple[dict[str, Tree], str]:
    """Return the frontmatter and the body of a `SKILL.md`.

    Raises:
        SkillFormatError: If there is no readable frontmatter.
    """
    reading = read_skill(content, path="SKILL.md")
    errors = [p["message"] for p in reading.problems if p["severity"] == "error" and p["code"] != "description-missing"]
    if errors:
        raise SkillFormatError(" ".join(errors))
    return reading.frontmatter, reading.body


def decode_skill(content: bytes, *, path: str) -> tuple[str, SkillProblem | None]:
    """Return the text of a `SKILL.md`, or the problem that keeps it from being read."""
    try:
        return _Reader(path).decode(content), None
    except _Refusal as refusal:
        return "", problem(path, refusal.code, **refusal.values)


def start_of_instructions(text: str) -> int:
    """Return where the instructions of a `SKILL.md` begin, which is after its frontmatter; 0 if it has none."""
    try:
        _, body = _Reader("SKILL.md").split(text)
    except _Refusal:
        return 0
    # From behind: a file inside a Markdown fence goes on after its body.
    return text.rfind(body)


class _Refusal(Exception):  # noqa: N818 - a turn in the flow, never seen outside
    """The file cannot be used; carries the one problem that says why."""

    def __init__(self, code: str, **values: object) -> None:
        super().__init__(code)
        self.code = code
        self.values = values


class _Listed:
    """Names for a message that may never be shown."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def __str__(self) -> str:
        return listed(self._names)


class _Reader:
    """One reading of one file: collects problems on the way."""

    __slots__ = ("_has_odd_fence", "_path", "_problems", "_strict")

    def __init__(self, path: str) -> None:
        self._path = str(path)
        self._problems: list[SkillProblem] = []
        self._strict: list[tuple[str, dict[str, object]]] = []
        self._has_odd_fence = False

    def read(self, content: bytes | str) -> SkillReading:
        frontmatter: dict[str, Tree] = {}
        body = ""
        try:
            text = self.decode(content)
            yaml_text, body = self.split(text)
            frontmatter = self._frontmatter(yaml_text)
            metadata = self._metadata(frontmatter)
        except _Refusal as refusal:
            # Keep what was read so far: `frontmatter` and `body` of a broken file help to repair it.
            self._report(refusal.code, **refusal.values)
            return SkillReading(None, frontmatter, body, self._problems)
        return SkillReading(metadata, frontmatter, body, self._problems)

    def _report(self, code: str, **values: object) -> None:
        self._problems.append(problem(self._path, code, **values))

    def _report_strict(self, code: str, **values: object) -> None:
        self._strict.append((code, values))

    @property
    def strict_problems(self) -> list[SkillProblem]:
        """What only the strict reading refuses; worded when it is asked for, as most files have some."""
        return [problem(self._path, code, **values) for code, values in self._strict]

    def decode(self, content: bytes | str) -> str:
        """Return the text without its byte order mark."""
        if isinstance(content, str):
            _check_size(_utf8_length(content))
            text = content
        elif isinstance(content, _BYTES):
            raw = bytes(content)
            _check_size(len(raw))
            text = self._decode_bytes(raw)
        else:
            raise _Refusal("not-text", reason=f"it is a {type(content).__name__}")
        if text.startswith("\ufeff"):
            self._report_strict("byte-order-mark")
            return text[1:]
        return text

    def _decode_bytes(self, raw: bytes) -> str:
        encoding = "utf-8"
        # The mark of UTF-32 begins with that of UTF-16; UTF-32 is refused below, as not being text.
        if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and not raw.startswith(codecs.BOM_UTF32_LE):
            encoding = "utf-16"
        try:
            text = raw.decode(encoding)
        except UnicodeDecodeError as error:
            raise _Refusal("not-text", reason=f"byte {error.start} is not {encoding.upper()}") from None
        if encoding == "utf-16":
            self._report("encoding-utf16")
        return text

    def split(self, text: str) -> tuple[str, str]:
        """Return what is between the fences, its line ends made LF, and what comes after them."""
        # Most files, at a fraction of the cost of the full search.
        plain = split_plain(text)
        if plain is not None:
            return plain
        start = end_of_preamble(text)
        opening = FENCE.match(text, start)
        if opening is None and (inner := find_fenced_part(text)) is not None:
            self._report("file-in-fence")
            text = text[slice(*inner)]
            start = end_of_preamble(text)
            opening = FENCE.match(text, start)
        if opening is None:
            raise _Refusal("no-frontmatter")
        if start:
            self._report("text-before-frontmatter")
        # Counted in characters here, which is the cheaper bound; the exact one in bytes follows below.
        furthest = opening.end() + MAX_FRONTMATTER_BYTES
        closing, is_glued = closing_fence(text, opening.end(), furthest)
        if closing is None:
            # Beyond the limit nobody has looked, so it may be closed further down.
            raise _Refusal("frontmatter-unclosed" if len(text) <= furthest else "frontmatter-too-large")
        if is_glued:
            self._report("fence-glued")
        raw = text[opening.end() : closing.start()]
        if _utf8_length(raw) > MAX_FRONTMATTER_BYTES:
            raise _Refusal("frontmatter-too-large")
        self._check_framing(opening[0], raw, closing[0])
        return to_lf(raw), text[closing.end() :]

    def _check_framing(self, opening: str, raw: str, closing: str) -> None:
        framed = opening + raw + closing
        self._has_odd_fence = bool(STRAY_CHARACTER.search(opening + closing))
        if "\r" in framed and "\r" in framed.replace("\r\n", ""):
            self._report("line-ends-cr")
        if "\t" in framed:
            self._report_strict("tab-in-frontmatter")
        if "\u2028" in raw or "\u2029" in raw:
            self._report_strict("line-separator")
        if "---" in raw:
            self._report_strict("dashes-in-frontmatter")

    def _frontmatter(self, yaml_text: str) -> dict[str, Tree]:
        try:
            tree, notes = read_yaml(yaml_text)
        except FrontmatterError as error:
            raise _Refusal("yaml-unreadable", reason=error) from None
        self._report_notes(notes)
        if tree is None:
            return {}
        if not isinstance(tree, dict):
            raise _Refusal("frontmatter-not-mapping", found="a list" if isinstance(tree, list) else "plain text")
        if not tree.keys() <= SPECIFIED_FIELDS:
            unknown = [key for key in tree if key not in SPECIFIED_FIELDS]
            # Advice to move a key to `metadata` would stop these from working.
            fixed = [key for key in unknown if key in KEYS and not KEYS[key].works_in_metadata]
            movable = [key for key in unknown if key not in fixed]
            if movable:
                self._report_strict("unknown-field", keys=_Listed(movable))
            if fixed:
                self._report_strict("client-field", keys=_Listed(fixed))
        return tree

    def _report_notes(self, notes: Notes) -> None:
        # The usual file has nothing to report, and thousands are read, so that is decided first.
        if not self._has_odd_fence and (notes is NOTHING_UNUSUAL or not any(vars(notes).values())):
            return
        for code, names in (
            ("yaml-repaired", notes.repaired),
            ("yaml-too-deep", notes.too_deep),
            ("yaml-line-lost", notes.lost),
            ("yaml-duplicate-key", notes.duplicates),
        ):
            if names:
                self._report(code, keys=listed(names))
        for code, noted in (
            ("yaml-alias", notes.aliases),
            ("yaml-tag", notes.tags),
            ("control-characters", notes.cleaned or self._has_odd_fence),
        ):
            if noted:
                self._report(code)
        if notes.flow:
            self._report_strict("flow-style")
        if notes.odd_comments:
            self._report_strict("comment-misplaced")

    def _metadata(self, frontmatter: dict[str, Tree]) -> SkillMetadata:
        fields = [*map(frontmatter.get, _TEXT_FIELDS)]
        if not _PLAIN.issuperset(map(type, fields)):
            not_text = [key for key in _TEXT_FIELDS if isinstance(frontmatter.get(key), _NESTED)]
            self._report("field-not-text", keys=listed(not_text))
        given, description, license_text, compatibility = map(as_text, fields)
        name = self._name(given.strip())
        if not description.strip():
            raise _Refusal("description-missing")
        return SkillMetadata(
            path=self._path,
            name=name,
            description=self._bound("description", description, MAX_DESCRIPTION_LENGTH),
            license=license_text.strip() or None,
            compatibility=self._bound("compatibility", compatibility, MAX_COMPATIBILITY_LENGTH) or None,
            metadata=self._properties(frontmatter.get("metadata")),
            allowed_tools=self._read_allowed_tools(frontmatter.get("allowed-tools")),
        )

    def _name(self, given: str) -> str:
        directory = self._path.rstrip("/").rpartition("/")[0].rpartition("/")[2]
        # Most names: short, plain, and that of the directory.
        if given == directory and len(given) <= MAX_NAME_LENGTH and _naming.PLAIN_NAME.fullmatch(given):
            return given
        name = one_line(given)
        if not name:
            # The directory is what a user sees and types, so it is a better name than none.
            name = one_line(directory)[:MAX_SHOWN_NAME_LENGTH] or FALLBACK_NAME
            self._report("name-missing", name=quoted(name))
            return name
        # A name that breaks the rules is used all the same: refusing it would hide the skill for a cosmetic fault.
        if _naming.is_too_long(name):
            self._report("name-too-long", length=len(name))
        name = name[:MAX_SHOWN_NAME_LENGTH]
        if not _naming.is_valid_name(name):
            self._report("name-invalid", name=quoted(name))
        if directory and not _naming.same_name(name, directory[:MAX_SHOWN_NAME_LENGTH]):
            self._report("name-directory-mismatch", name=quoted(name), directory=quoted(one_line(directory)))
        return name

    def _bound(self, key: str, given: str, limit: int) -> str:
        text = given.strip()
        if len(text) > limit:
            self._report(f"{key}-too-long", length=len(text))
        elif len(given) > limit:
            # Only white space is beyond the limit; other readers count it.
            self._report_strict(f"{key}-too-long", length=len(given))
        return text[:limit]

    def _properties(self, tree: Tree) -> dict[str, str]:
        if tree is None:
            return {}
        if not isinstance(tree, dict):
            self._report("metadata-not-mapping")
            return {}
        if not _PLAIN.issuperset(map(type, tree.values())):
            not_text = [key for key, value in tree.items() if isinstance(value, _NESTED)]
            self._report("metadata-value-not-text", keys=listed(not_text))
        return {key: as_text(value) for key, value in tree.items() if value is not None}

    def _read_allowed_tools(self, tree: Tree) -> list[str]:
        if isinstance(tree, str):
            return split_tools(tree)
        if isinstance(tree, dict):
            self._report("allowed-tools-invalid")
            return []
        items = tree or []
        if any(isinstance(item, list | dict) for item in items):
            self._report("field-not-text", keys=listed(["allowed-tools"]))
        return [text for item in items if (text := as_text(item).strip())]


MAX_INTEGER_BITS = 4_096
"""Longest number that becomes text; Python refuses to write much longer ones."""

MAX_VALUE_DEPTH = 32
"""How deep frontmatter that comes as values may be nested."""


def read_fields(fields: Mapping[str, object], *, path: str) -> SkillReading:
    """Return what frontmatter says that comes as values, not as a file; never raises.

    There is no directory whose name the skill's should have.
    """
    reader = _Reader(path)
    try:
        room = [MAX_FRONTMATTER_BYTES]
        tree = {clean(key): _to_tree(value, room, MAX_VALUE_DEPTH) for key, value in fields.items()}
        metadata = reader._metadata(tree)  # noqa: SLF001 - of this module
    except _Refusal as refusal:
        reader._report(refusal.code, **refusal.values)  # noqa: SLF001 - of this module
        return SkillReading(None, {}, "", reader._problems)  # noqa: SLF001 - of this module
    found = [each for each in reader._problems if each["code"] != "name-directory-mismatch"]  # noqa: SLF001 - as above
    return SkillReading(metadata, tree, "", found)


def _to_tree(value: object, room: list[int], depth: int) -> Tree:
    """Return a value as YAML would be read; `room` holds how many characters may still come."""
    room[0] -= 1
    if room[0] < 0:
        raise _Refusal("frontmatter-too-large")
    if value is None:
        return None
    if depth and isinstance(value, Mapping):
        return {
            _to_text(key, room): _to_tree(item, room, depth - 1)
            for key, item in value.items()
            if isinstance(key, str | int | float)
        }
    if depth and isinstance(value, list | tuple):
        return [_to_tree(item, room, depth - 1) for item in value]
    return _to_text(value, room)


def _to_text(value: object, room: list[int]) -> str:
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, str | float) or (isinstance(value, int) and value.bit_length() <= MAX_INTEGER_BITS):
        text = clean(str(value))
    else:
        # Of an unknown type only the name is known to be short and harmless.
        text = type(value).__name__
    room[0] -= len(text) + 1
    if room[0] < 0:
        raise _Refusal("frontmatter-too-large")
    return text


def split_tools(text: str) -> list[str]:
    """Split tool names at spaces and commas, except inside parentheses: `Bash(git add:*), Read` is two."""
    if "(" not in text:
        return text.replace(",", " ").split()
    tools: list[str] = []
    start = depth = 0
    for position, character in enumerate(text):
        if character == "(":
            depth += 1
        elif character == ")":
            # A stray `)` must not keep what follows from being split.
            depth = max(0, depth - 1)
        elif depth == 0 and (character == "," or character.isspace()):
            tools.append(text[start:position])
            start = position + 1
    tools.append(text[start:])
    return [stripped for tool in tools if (stripped := tool.strip())]


def _check_size(size: int) -> None:
    if size > MAX_SKILL_FILE_BYTES:
        raise _Refusal("file-too-large", size=size)


def _utf8_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
