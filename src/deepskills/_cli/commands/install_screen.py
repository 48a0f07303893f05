"""Shows changes of installed skills: what would come, what would go, and what differs from a lock."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from deepskills._cli.output import STYLES, Output, prose, visible
from deepskills._install.drift import DEEPSKILLS, SENTENCES, Drift, Installed
from deepskills._install.npx import NPX
from deepskills._install.origin import is_commit
from deepskills._skillmd.text import counted

if TYPE_CHECKING:
    from deepskills._install.project import Change, Changes

MAX_NAMED = 12
"""How many files are named in one line; the rest is counted. The JSON has them all."""

_WORDS = {
    "new": ("new", "green"),
    "updated": ("update", "yellow"),
    "replaced": ("REPLACES what is there", "red"),
    "restored": ("put back", "yellow"),
    "removed": ("remove", "red"),
    "unchanged": ("unchanged", "dim"),
}


def changes_row(changes: "Changes", *, show_texts: bool) -> dict[str, Any]:
    """Return changes as JSON shows them."""
    rows = [change.row() for change in changes.items]
    if show_texts:
        for row, change in zip(rows, changes.items, strict=True):
            texts = changes.compare_texts(change) if change.status != "unchanged" else {}
            row["texts"] = {path: None if lines is None else "\n".join(lines) for path, lines in texts.items()}
    refused = [{"path": item.path, "name": item.name, "message": item.refusal} for item in changes.refused]
    return {"skills": rows, "refused": refused}


def show_changes(output: Output, changes: "Changes", *, show_texts: bool) -> None:
    """Show what would change, a paragraph for each skill, if wanted with the difference of its texts."""
    for change in changes.items:
        word, style = _WORDS[change.status]
        output.line((visible(change.name), "bold"), "  ", (word, style))
        if change.status == "unchanged":
            continue
        if change.candidate is not None and change.candidate.description and change.status != "restored":
            output.lines(output.paragraph(change.candidate.description, 2, 2))
        for line in _facts(change):
            output.entry("  ", *line)
        for problem in change.candidate.problems if change.candidate is not None else ():
            style = STYLES[problem["severity"]]
            output.entry("  ", (problem["code"], style), f": {prose(problem['message'])}")
        if show_texts:
            for path, lines in changes.compare_texts(change).items():
                shown = lines if lines is not None else [f"{path} differs and is not text"]
                output.lines([Text(visible(line), _LINE_STYLES.get(line[:1], "")) for line in shown])


_LINE_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def _facts(change: "Change") -> list[list[str | tuple[str, str]]]:
    lines: list[list[str | tuple[str, str]]] = []
    skill = change.new or change.old
    if skill is None:
        return lines
    at = f" at {skill.commit[:12]}" if skill.commit else ""
    asked = f" ({visible(skill.ref)})" if skill.ref and skill.ref != skill.commit else ""
    lines.append([f"from {visible(skill.source)}{at}{asked}, {visible(skill.path)}"])
    if change.new is not None:
        tokens = f", about {change.candidate.tokens:,} tokens" if change.candidate is not None else ""
        lines.append([f"{counted(len(change.new.files), 'file')}, {change.new.size:,} bytes{tokens}"])
    if change.scripts and change.new is not None:
        lines.append([("code: ", "yellow"), _name(change.scripts)])
    if change.old is not None and change.status in {"updated", "replaced"}:
        if change.status == "replaced":
            lines.append([("instead of ", "red"), visible(f"{change.old.source}, {change.old.path}")])
        lines += [[f"{kind}: {_name(paths)}"] for kind, paths in change.files().items() if paths]
    elif change.status == "replaced":
        lines.append([("instead of files that no lock lists", "red")])
    if change.drift and change.status != "new":
        lines.append([("edits that are lost: ", "red"), _name([drift.path or "all" for drift in change.drift])])
    return lines


def _name(paths: Sequence[str]) -> str:
    shown = ", ".join(visible(path) for path in paths[:MAX_NAMED])
    return shown + (f" and {len(paths) - MAX_NAMED:,} more" if len(paths) > MAX_NAMED else "")


def show_done(output: Output, changes: "Changes", *, is_done: bool) -> None:
    """Say what was done."""
    if is_done:
        names = ", ".join(change.name for change in changes.to_do)
        output.remark(f"Done: {names}. The lock is {changes.project.lock_path.name}; commit it.", "green")
    elif not changes.to_do and not changes.refused:
        pinned = [name for name, skill in changes.lock.skills.items() if is_commit(skill.ref)]
        held = f" Pinned to a commit: {', '.join(pinned)}." if pinned else ""
        output.remark(f"Nothing to change.{held}", "green")


def show_drift(output: Output, installed: Installed, drift: Sequence[Drift]) -> None:
    """Show what differs from the locks, one `skill/path: kind: sentence` per line, and which installer brought what."""
    for item in drift:
        style = STYLES["error" if item.is_error else "warning"]
        output.line(visible(item.place), ": ", (item.kind, style), f": {SENTENCES[item.kind]}")
    own, others = installed.names(DEEPSKILLS), installed.names(NPX)
    if others:
        brought = {DEEPSKILLS: own, NPX: others}
        output.remark(" ".join(f"By {by}: {', '.join(names) or 'none'}." for by, names in brought.items()), "dim")
    wrong = sum(item.is_error for item in drift)
    skills = f"{counted(len(own), 'skill')} in the lock"
    if wrong:
        output.remark(f"{skills}, {counted(wrong, 'difference')}. See `verify --fix`.", "red")
    elif own or not others:
        output.remark(f"{skills}, all as reviewed.", "green")
