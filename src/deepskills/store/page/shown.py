"""Turns skills into the values that the page's templates print. Pure."""

import datetime as dt
import itertools
import mimetypes
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from markupsafe import Markup, escape

from deepskills._errors import SkillsError
from deepskills._loading.budget import count_text_tokens, count_tokens
from deepskills._skillmd.read import read_skill, validate_skill
from deepskills._skillmd.text import one_line
from deepskills._types import SKILL_FILE
from deepskills.store.db.models import Skill, SkillChange, SkillFile, document_of
from deepskills.store.document import Document
from deepskills.store.rules import Right, Viewer, owns
from deepskills.store.service import ApprovalRecord, UsageCount

USAGE_DAYS = 30
"""How many days of usage are shown."""

MAX_DIFF_LINES = 5_000
"""How many lines of a diff are shown."""

_LOADED, _REFUSED = "skill.loaded", "skill.refused"
_CHECKED, _UNCHECKED = "skill.checked", "skill.unchecked"
_KILO = 1024

ACTIONS = {
    "created": "Created",
    "updated": "Changed",
    "saved": "Saved",
    "file-added": "Added a file",
    "file-saved": "Replaced a file",
    "file-deleted": "Removed a file",
    "reverted": "Went back to an earlier version",
    "approved": "Approved",
    "hidden": "Hid it",
    "shown": "Showed it again",
    "handed-over": "Handed over",
    "received": "Received",
    "deleted": "Deleted",
    "restored": "Restored",
}
"""The log's words in plain English; others are shown as they are."""


# -- Times and sizes ---------------------------------------------------------------------------------------------------


def date(moment: dt.datetime | dt.date) -> str:
    """Return a day, as in `18 Nov 2026`."""
    return f"{moment.day} {moment:%b %Y}"


def time(moment: dt.datetime) -> str:
    """Return a time to the minute, in UTC."""
    return f"{date(moment)}, {moment:%H:%M} UTC"


def size(count: int) -> str:
    """Return a number of bytes, as in `1.2 KB`."""
    if count < _KILO:
        return count_of(count, "byte")
    amount = count / _KILO
    for unit in ("KB", "MB"):
        if amount < _KILO:
            return f"{amount:.1f} {unit}"
        amount /= _KILO
    return f"{amount:.1f} GB"


def number(count: int) -> str:
    """Return a number with thousands separators."""
    return f"{count:,}"


def format_message(message: str) -> Markup:
    """Return a message of the store on one line, with text in backticks as code."""
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part)
        for place, part in enumerate(one_line(message).split("`"))
    )


_UNSEEN = re.compile(
    "(?:(?!\r\n)["
    "\x00-\x08\x0b-\x1f\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f"
    "\u205f-\u206f\u2800\u3000\u3164\ud800-\uf8ff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    "\U000110bd\U000110cd\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a\U000e0000-\U0010ffff])+"
)
"""Characters that nobody sees but a model reads: controls, formats, odd spaces, fillers, variation selectors, tags,
private use and surrogates."""

_TAGS = range(0xE0020, 0xE007F)
"""Tag characters: each is an invisible copy of one of ASCII."""

_MARK = Markup('<span class="mark">{}</span>')


def mark_invisible(text: str) -> Markup:
    """Return a stranger's text as written, with `U+XXXX` in place of every character that cannot be seen."""
    pieces: list[str | Markup] = []
    end = 0
    for found in _UNSEEN.finditer(text):
        pieces += [escape(text[end : found.start()]), _MARK.format(_name(found[0]))]
        end = found.end()
    return Markup("").join([*pieces, escape(text[end:])])


def _name(unseen: str) -> str:
    """Return invisible characters by number, the same ones in a row once, and what tags among them say."""
    runs = [(sign, len(list(same))) for sign, same in itertools.groupby(unseen)]
    names = [f"U+{ord(sign):04X}" + (f"×{count}" if count > 1 else "") for sign, count in runs]
    tags = "".join(chr(ord(sign) - 0xE0000) for sign in unseen if ord(sign) in _TAGS)
    return " ".join(names) + (f" “{tags}”" if tags else "")


# -- Use ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bar:
    """One bar of a chart: its label, its number, and its length from 0 to 100."""

    label: str
    count: int
    length: float


@dataclass(frozen=True)
class Use:
    """How often a skill was loaded: in total, by day and by trigger, and what came of it."""

    total: int
    days: Sequence[Bar]
    triggers: Sequence[Bar] = ()
    refusals: Sequence[Bar] = ()
    """How often it was refused, by reason."""

    unfollowed: int | None = None
    """After how many uses its own checks had not all passed; `None` if nothing was checked."""

    @property
    def checked(self) -> str:
        """How often the skill was followed, in words; empty if nothing was checked."""
        if self.unfollowed is None or not self.total:
            return ""
        return f"followed in {number(max(0, self.total - self.unfollowed))} of {count_of(self.total, 'use')}"

    @property
    def label(self) -> str:
        """The line, described in words."""
        if not self.total:
            return f"Not loaded in {len(self.days)} days"
        best = max(self.days, key=lambda bar: bar.count)
        return f"Loaded {count_of(self.total, 'time')} in {len(self.days)} days, most on {best.label} ({best.count})"


def count_of(count: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"


def use_of(loads: Mapping[dt.date, int], today: dt.date, triggers: Mapping[str, int] | None = None) -> Use:
    """Return how often a skill was loaded in the last days."""
    days = [today - dt.timedelta(days=back) for back in reversed(range(USAGE_DAYS))]
    counts = [loads.get(day, 0) for day in days]
    return Use(
        sum(counts),
        _bars([(date(day), count) for day, count in zip(days, counts, strict=True)], max(counts)),
        _rank(triggers or {}),
    )


def use_from(rows: Iterable[UsageCount], today: dt.date) -> Use:
    """Return how often a skill was loaded, from the counts of the store."""
    by_day: Counter[dt.date] = Counter()
    by_type: dict[str, Counter[str]] = {}
    for row in rows:
        by_type.setdefault(row.type, Counter())[row.trigger] += row.count
        if row.type == _LOADED:
            by_day[row.day] += row.count
    use = use_of(by_day, today, by_type.get(_LOADED))
    is_checked = not by_type.keys().isdisjoint({_CHECKED, _UNCHECKED})
    return replace(
        use,
        refusals=_rank(by_type.get(_REFUSED, {})),
        unfollowed=sum(by_type.get(_UNCHECKED, {}).values()) if is_checked else None,
    )


def _rank(counts: Mapping[str, int]) -> list[Bar]:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return _bars([(one_line(word), count) for word, count in ordered], sum(counts.values()))


def _bars(items: Sequence[tuple[str, int]], whole: int) -> list[Bar]:
    return [Bar(label, count, 100 * count / (whole or 1)) for label, count in items]


# -- Who sees a skill --------------------------------------------------------------------------------------------------

Tone: TypeAlias = Literal["plain", "good", "wait", "bad"]
"""How a badge looks."""


@dataclass(frozen=True)
class Badge:
    """A short label on a skill, with its full meaning."""

    text: str
    tone: Tone = "plain"
    title: str = ""


def audience(skill: Skill) -> list[Badge]:
    """Return for whom a skill is meant."""
    if skill.owner_id is None:
        return [Badge("system", title="For all users")]
    found = [Badge("public", title="For all users")] if skill.is_public else []
    if skill.shared_with:
        groups = ", ".join(one_line(group) for group in skill.shared_with)
        found.append(Badge(groups if len(skill.shared_with) == 1 else f"{len(skill.shared_with)} groups", title=groups))
    return found or [Badge("private", title="Only for its owner")]


def status(skill: Skill, viewer: Viewer) -> list[Badge]:
    """Return what stands between a skill and those it is meant for, or that nothing does any more."""
    found = []
    if skill.owner_id is not None and skill.is_public and viewer.needs_approval:
        found.append(
            Badge("approved", "good", "An operator approved it as it is")
            if skill.is_approved
            else Badge("needs approval", "wait", "For all users once an operator has approved it as it is")
        )
    if skill.is_hidden:
        found.append(Badge("hidden", "bad", "An operator hides it from everybody but its owner"))
    return found


def owner_of(skill: Skill, viewer: Viewer) -> str:
    """Return the owner of a skill, in words."""
    if skill.owner_id is None:
        return "the system"
    return "you" if owns(skill, viewer) else one_line(skill.owner_id)


@dataclass(frozen=True)
class ApprovalState:
    """The state of a public skill's approval."""

    kind: Literal["approved", "changed", "waiting"]
    last: SkillChange | None
    may_approve: bool


def approval_state(skill: Skill, viewer: Viewer, known: ApprovalRecord | None) -> ApprovalState | None:
    """Return the state of a skill's approval; `None` if it needs none, or the viewer may not know."""
    if not viewer.needs_approval or known is None or not skill.is_public or skill.owner_id is None:
        return None
    if skill.is_approved:
        return ApprovalState("approved", known.last, may_approve=False)
    return ApprovalState("waiting" if known.last is None else "changed", known.last, known.may_approve)


def group_choices(skill: Skill, viewer: Viewer) -> dict[str, Right | None]:
    """Return the groups that the viewer may share a skill with, or that it is shared with, and what each may do."""
    return {group: skill.shared_with.get(group) for group in sorted(viewer.groups | {*skill.shared_with})}


# -- Cost and problems -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """What a skill costs an agent in tokens: in each prompt, and when it is loaded."""

    listed: int
    loaded: int


def cost_of(skill: Skill) -> Cost:
    """Return what a skill costs an agent that shows its descriptions."""
    return Cost(count_text_tokens(f"- **{skill.name}**: {skill.description}"), count_tokens(skill.content))


@dataclass(frozen=True)
class Checked:
    """The check of a `SKILL.md` that somebody is writing: what keeps it from being saved, advice, and its cost."""

    errors: Sequence[str]
    advice: Sequence[str]
    tokens: int
    description_length: int

    def as_json(self) -> dict[str, object]:
        """Return it for the script of the page."""
        return {
            "errors": list(self.errors),
            "advice": list(self.advice),
            "tokens": number(self.tokens),
            "description_length": number(self.description_length),
        }


def check(text: bytes | str) -> Checked:
    """Return what is wrong with a `SKILL.md`, and what it would cost."""
    reading = read_skill(text, path=SKILL_FILE)
    if reading.metadata is None:
        fatal = [found for found in reading.problems if found["severity"] == "error"]
        codes = {found["code"] for found in fatal}
        errors = [found["message"] for found in fatal]
    else:
        codes = set()
        errors = _refusals(text)
        if errors:
            codes = {code for code in _NAMING if "name" in errors[0]}
    found_problems = validate_skill(text, path=SKILL_FILE, profile="deepskills")
    advice = [found["message"] for found in found_problems if found["code"] not in codes]
    description = reading.metadata["description"] if reading.metadata is not None else ""
    return Checked(errors, list(dict.fromkeys(advice)), count_tokens(reading.body), len(description))


_NAMING = frozenset({"name-invalid", "name-too-long"})
"""Problems that the store refuses anyway, so that the reader's warning about the same thing is left out."""


def _refusals(text: bytes | str) -> list[str]:
    try:
        Document.read(text).check()
    except SkillsError as error:
        return [str(error)]
    return []


def write_document(skill: Skill) -> str:
    """Return a skill's `SKILL.md` as text."""
    document = document_of(skill)
    return document.render().decode(document.encoding if document.frontmatter is not None else "utf-8")


def as_before(text: str, before: str | None) -> str:
    """Return a text that came from a form with the line endings that the skill had; browsers send every one as CRLF."""
    plain = text.replace("\r\n", "\n")
    if before is not None and plain == before.replace("\r\n", "\n"):
        return before
    return plain.replace("\n", "\r\n") if before is not None and "\r\n" in before else plain


# -- Files -------------------------------------------------------------------------------------------------------------


def folders(files: Iterable[SkillFile]) -> list[tuple[str, list[SkillFile]]]:
    """Return files by directory, those at the top first."""
    ordered = sorted(files, key=lambda file: (posixpath.dirname(file.path), file.path))
    grouped = itertools.groupby(ordered, key=lambda file: posixpath.dirname(file.path))
    return [(path, list(inside)) for path, inside in grouped]


@dataclass(frozen=True)
class ReviewedFile:
    """A file in a review: its text, also if some bytes of it are not; `None` if it is not text, or too large."""

    file: SkillFile
    text: str | None
    media_type: str

    @classmethod
    def of(cls, file: SkillFile, content: bytes | None) -> "ReviewedFile":
        """Return a file with its content, or without."""
        text = None if content is None else _as_text(content)
        guess = mimetypes.guess_type(file.path)[0] or ("text/plain" if file.is_text else "application/octet-stream")
        return cls(file, text, guess)


_NOT_TEXT = re.compile("[\x00-\x08\x0e-\x1f\udc80-\udcff]")
_MOST_NOT_TEXT = 0.1


def _as_text(content: bytes) -> str | None:
    """Return a text, with stray bytes as characters that `mark_invisible` shows; `None` if much of it is not text."""
    text = content.decode("utf-8", "surrogateescape")
    return text if len(_NOT_TEXT.findall(text)) <= len(text) * _MOST_NOT_TEXT else None


# -- Differences -------------------------------------------------------------------------------------------------------

LineKind: TypeAlias = Literal["file", "hunk", "added", "removed", "same", "note"]
"""The kind of a line in a diff."""


@dataclass(frozen=True)
class DiffLine:
    """One line of a diff, with its numbers in the old and the new file."""

    kind: LineKind
    text: str
    old: int | None = None
    new: int | None = None


@dataclass(frozen=True)
class Diff:
    """A diff to show: its lines, how many were added and removed, and whether it is complete."""

    lines: Sequence[DiffLine]
    added: int
    removed: int
    is_cut: bool

    @property
    def length(self) -> int:
        """How many characters there are to show."""
        return sum(len(shown.text) for shown in self.lines)


_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def diff_of(text: str) -> Diff:
    """Return a unified diff as lines to show.

    Lines are told apart by the counts of their hunk, never by how they begin: a removed line may begin with `--`.
    """
    found: list[DiffLine] = []
    is_cut = False
    for shown in _diff_lines(text):
        if len(found) >= MAX_DIFF_LINES:
            is_cut = True
            break
        found.append(shown)
    kinds = Counter(shown.kind for shown in found)
    return Diff(found, kinds["added"], kinds["removed"], is_cut)


def _diff_lines(text: str) -> Iterator[DiffLine]:
    old = new = old_left = new_left = 0
    before = ""
    for raw in text.split("\n"):
        shown = raw.removesuffix("\r")
        if raw.startswith("\\"):
            yield DiffLine("note", shown.removeprefix("\\ "))
        elif old_left > 0 or new_left > 0:
            kind = _kind(raw)
            yield DiffLine(kind, shown[1:], old if kind != "added" else None, new if kind != "removed" else None)
            old, old_left = (old, old_left) if kind == "added" else (old + 1, old_left - 1)
            new, new_left = (new, new_left) if kind == "removed" else (new + 1, new_left - 1)
        elif hunk := _HUNK.match(raw):
            old, new = int(hunk[1]), int(hunk[3])
            old_left, new_left = int(hunk[2] or 1), int(hunk[4] or 1)
            yield DiffLine("hunk", shown)
        elif raw.startswith("--- "):
            before = shown[4:]
        elif raw.startswith("+++ "):
            yield DiffLine("file", _path(before, shown[4:]))
        elif raw:
            yield DiffLine("note", shown)


def _kind(raw: str) -> LineKind:
    return "added" if raw.startswith("+") else "removed" if raw.startswith("-") else "same"


def _path(before: str, after: str) -> str:
    if before == "/dev/null":
        return f"{after.removeprefix('b/')} (new)"
    if after == "/dev/null":
        return f"{before.removeprefix('a/')} (removed)"
    return after.removeprefix("b/")
