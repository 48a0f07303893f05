"""A project's installed skills: what a command would change, and the change itself.

Every change takes one way: fetch into a workspace, stage the new skills there, compare, then commit all or nothing. A
`Changes` value says what would happen; nothing has happened until its `apply` is called.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from deepskills._errors import SkillNotFoundError
from deepskills._install.candidates import (
    Candidate,
    choose,
    collect_files,
    find_candidates,
    is_script,
    stage,
    with_required,
)
from deepskills._install.differences import TextDifferences
from deepskills._install.drift import Drift, find_drift, find_unlisted, skill_drift
from deepskills._install.git import open_repository
from deepskills._install.lock import Lock, LockedSkill, load_lock
from deepskills._install.origin import Origin, parse_origin
from deepskills._install.paths import SourceError, fold_case, quote_path
from deepskills._install.place import Workspace, workspace
from deepskills._install.site import open_site
from deepskills._install.trees import Tree, open_archive, open_directory
from deepskills._skillmd.text import counted
from deepskills._types import SKILL_FILE

Status: TypeAlias = Literal["new", "updated", "replaced", "restored", "removed", "unchanged"]
"""What happens to a skill. `replaced`: it displaces something of another source, or files that no lock lists."""

Progress: TypeAlias = Callable[[str], None]
"""Receives what is being done, in one short sentence."""


@dataclass(frozen=True)
class Change:
    """What happens to one skill."""

    name: str
    status: Status
    new: LockedSkill | None
    old: LockedSkill | None = None
    candidate: Candidate | None = None
    drift: Sequence[Drift] = ()
    """How what is on disk differs from the old lock: these edits are lost."""

    @property
    def scripts(self) -> list[str]:
        """Its files that are code."""
        files = self.new.files if self.new is not None else {}
        return [path for path, file in sorted(files.items()) if is_script(path, executable=file.executable)]

    def files(self) -> dict[str, list[str]]:
        """Return which files come, change and go, beside the old lock."""
        old = self.old.files if self.old is not None else {}
        new = self.new.files if self.new is not None else {}
        return {
            "added": sorted(new.keys() - old.keys()),
            "changed": sorted(path for path in new.keys() & old.keys() if new[path] != old[path]),
            "removed": sorted(old.keys() - new.keys()),
        }

    def row(self) -> dict[str, Any]:
        """Return it as JSON shows it."""
        shown_skill = self.new or self.old
        row: dict[str, Any] = {"name": self.name, "status": self.status}
        if shown_skill is not None:
            row |= {key: value for key, value in shown_skill.row().items() if key != "files"}
            row |= {"files": sorted(shown_skill.files), "bytes": shown_skill.size}
        row["scripts"] = self.scripts
        row["tokens"] = self.candidate.tokens if self.candidate is not None else None
        row["problems"] = list(self.candidate.problems) if self.candidate is not None else []
        row["differences"] = self.files()
        row["replaces"] = None
        if self.status in {"replaced", "updated"}:
            old = {"source": self.old.source, "commit": self.old.commit} if self.old is not None else {}
            row["replaces"] = {**old, "drift": [drift.row() for drift in self.drift]}
        return row


@dataclass(frozen=True)
class Changes:
    """What a command would change; `apply` does it."""

    project: "Project"
    lock: Lock
    items: Sequence[Change]
    refused: Sequence[Candidate]
    """The skills that cannot be placed."""

    _workspace: Workspace = field(repr=False)

    @property
    def to_do(self) -> list[Change]:
        """The changes that change anything."""
        return [change for change in self.items if change.status != "unchanged"]

    def compare_texts(self, change: Change) -> dict[str, list[str] | None]:
        """Return by path how each file of a change differs from what lies there now; `None` if it is not text."""
        texts = TextDifferences(self.project.directory / change.name, self._workspace.new / change.name)
        # What is on disk counts, edits included, so every file is looked at.
        paths = {path for skill in (change.new, change.old) if skill is not None for path in skill.files}
        paths |= {drift.path for drift in change.drift if drift.path}
        found = {path: texts.compare(path) for path in sorted(paths)}
        named = {path for kind in change.files().values() for path in kind}
        return {path: lines for path, lines in found.items() if lines or (lines is None and path in named)}

    def apply(self) -> None:
        """Make all changes, or none."""
        changed = {change.name: change.new for change in self.to_do}
        if changed:
            placed = {name: new is not None for name, new in changed.items()}
            self._workspace.commit(self.lock.with_skills(changed), placed)


class IncompleteError(SourceError):
    """What a lock says cannot be brought; nothing was changed."""

    def __init__(self, reasons: Sequence[str]) -> None:
        self.reasons = list(reasons)
        super().__init__("Nothing was changed. " + " ".join(reasons))


@dataclass(frozen=True)
class Project:
    """The directory of a project's installed skills, and its lock."""

    directory: Path
    lock_path: Path
    progress: Progress = field(default=lambda _text: None, compare=False)
    deadline: float = math.inf
    """When fetching is given up, by `time.monotonic`."""

    @contextmanager
    def adding(self, source: str, names: Sequence[str], ref: str | None) -> Iterator[Changes]:
        """Yield what adding the skills of a source, with what they require of it, would change.

        Raises:
            SourceError: If the source cannot be used, or a skill that was named cannot be placed.
            SkillNotFoundError: If the source has no skill of a name.
        """
        origin = parse_origin(source, ref, Path.cwd(), self.lock_path.parent)
        with workspace(self.directory, self.lock_path) as space:
            lock = load_lock(self.lock_path, missing_ok=True)
            tree = self._tree(origin, space, 0, names)
            candidates = find_candidates(tree, origin.recorded)
            installed = {*lock.skills, *(path.parent.name for path in self.directory.glob(f"*/{SKILL_FILE}"))}
            chosen = with_required(candidates, choose(candidates, names, origin.recorded), installed)
            chosen = collect_files(tree, chosen, origin.recorded)
            spellings = {fold_case(name): name for name in lock.skills}
            for place, candidate in enumerate(chosen):
                # The lock could not be read again: on some systems both would be one directory.
                if (known := spellings.get(fold_case(candidate.name), candidate.name)) != candidate.name:
                    other = quote_path(known)
                    reason = f"the lock has a skill {other}, which is the same directory on systems that ignore case"
                    chosen[place] = replace(candidate, refusal=candidate.refusal or reason)
            refused = [candidate for candidate in chosen if candidate.refusal is not None]
            # Named skills come all or none. Without names, those that can be placed are.
            if names and refused:
                raise IncompleteError([f"{candidate.name}: {candidate.refusal}." for candidate in refused])
            usable = [candidate for candidate in chosen if candidate.refusal is None]
            files = sum(len(candidate.files) for candidate in usable)
            self.progress(f"Reading {counted(files, 'file')}")
            staged = stage(tree, usable, space.new)
            items = []
            for candidate in usable:
                new = LockedSkill(origin.recorded, origin.ref, tree.commit, candidate.path, staged[candidate.name])
                items.append(self._change(candidate, new, lock))
            yield Changes(self, lock, items, refused, space)

    @contextmanager
    def updating(self, names: Sequence[str]) -> Iterator[Changes]:
        """Yield what bringing skills to the newest state of their sources would change.

        Raises:
            SkillNotFoundError: If the lock has no skill of a name.
        """
        with workspace(self.directory, self.lock_path) as space:
            lock = load_lock(self.lock_path)
            wanted = self._find_locked(lock, names)
            items: list[Change] = []
            refused: list[Candidate] = []
            for name, candidate, new in self._fetch(lock, {name: lock.skills[name].ref for name in wanted}, space):
                refusal = candidate.refusal
                # Found by its path in the source: a name can be taken by another skill there.
                if refusal is None and candidate.name != name:
                    refusal = f"{new.source} now calls it {quote_path(candidate.name)}; remove {name} and add that"
                if refusal is not None:
                    refused.append(replace(candidate, name=name, refusal=refusal))
                else:
                    items.append(self._change(candidate, new, lock))
            yield Changes(self, lock, sorted(items, key=lambda item: item.name), refused, space)

    @contextmanager
    def restoring(self, *, replace_drifted: bool = False, frozen: bool = False) -> Iterator[Changes]:
        """Yield what it takes to have exactly what the lock says.

        Args:
            replace_drifted: Put back skills whose files were changed; without it they are a reason to change nothing.
            frozen: Skills that no lock lists are a reason, too.

        Raises:
            IncompleteError: If a source no longer gives what the lock says, or files were changed and are to be kept.
        """
        with workspace(self.directory, self.lock_path) as space:
            lock = load_lock(self.lock_path)
            drifted: dict[str, list[Drift]] = {}
            for drift in find_drift(self.directory, lock):
                drifted.setdefault(drift.skill, []).append(drift)
            edited = {name: found for name, found in drifted.items() if found[0].kind != "missing"}
            # Edits by hand must not vanish by an `install`.
            if edited and not replace_drifted:
                raise IncompleteError(
                    [f"{name} differs from the lock: {_list_drift(found)}." for name, found in edited.items()]
                    + ["Run `deepskills verify --fix` to put it back."]
                )
            unlisted = find_unlisted(self.directory, lock, self.lock_path) if frozen else []
            if unlisted:
                raise IncompleteError(
                    [f"{path} in {self.directory} is in no lock." for path in unlisted] + ["Remove it, or add it."]
                )
            items = self._restore(drifted, lock, space)
            yield Changes(self, lock, items, (), space)

    @contextmanager
    def removing(self, names: Sequence[str]) -> Iterator[Changes]:
        """Yield what removing skills would change.

        Raises:
            SkillNotFoundError: If the lock has no skill of a name.
        """
        with workspace(self.directory, self.lock_path) as space:
            lock = load_lock(self.lock_path, missing_ok=True)
            items = [Change(name, "removed", None, lock.skills[name]) for name in self._find_locked(lock, names)]
            yield Changes(self, lock, items, (), space)

    def _tree(self, origin: Origin, space: Workspace, number: int, names: Collection[str]) -> Tree:
        doing = {"directory": "Reading", "git": "Fetching", "site": "Fetching"}.get(origin.kind, "Unpacking")
        self.progress(f"{doing} {origin.recorded}" + (f" at {origin.ref}" if origin.ref else ""))
        if origin.kind == "directory":
            return open_directory(origin.location)
        if origin.kind in {"zip", "tar"}:
            return open_archive(origin)
        scratch = space.scratch / str(number)
        scratch.mkdir()
        if origin.kind == "git":
            return open_repository(origin, scratch, self.deadline)
        return open_site(origin, scratch, self.deadline, names)

    def _change(self, candidate: Candidate, new: LockedSkill, lock: Lock) -> Change:
        """Return what placing a staged skill changes."""
        name = candidate.name
        old = lock.skills.get(name)
        place = self.directory / name
        is_there = place.is_symlink() or place.exists()
        if old is None:
            return Change(name, "replaced" if is_there else "new", new, None, candidate)
        drift = skill_drift(place, name, old)
        has_moved = (old.source, old.ref, old.path) != (new.source, new.ref, new.path)
        if dict(new.files) == dict(old.files) and not drift and not has_moved:
            # A new commit that changes nothing here changes nothing in the lock either: no churn.
            return Change(name, "unchanged", old, old, candidate)
        same_source = (old.source, old.path) == (new.source, new.path)
        edits = [found for found in drift if found.kind != "missing"]
        return Change(name, "updated" if same_source else "replaced", new, old, candidate, edits)

    def _restore(self, drifted: Mapping[str, Sequence[Drift]], lock: Lock, space: Workspace) -> list[Change]:
        items: list[Change] = []
        wrong: list[str] = []
        # By commit, not by ref: a branch has moved on since the review.
        commits = {name: lock.skills[name].commit for name in drifted}
        for name, candidate, found in self._fetch(lock, commits, space):
            locked = lock.skills[name]
            if candidate.refusal is not None:
                wrong.append(f"{name}: {candidate.refusal}.")
            elif found.files != locked.files:
                differing = _list_differing(found, locked)
                wrong.append(f"{name}: {locked.source} now gives other files than the lock says ({differing}).")
            else:
                status: Status = "new" if drifted[name][0].kind == "missing" else "restored"
                items.append(Change(name, status, locked, locked, candidate, drifted[name]))
        if wrong:
            raise IncompleteError(wrong)
        return sorted(items, key=lambda item: item.name)

    def _fetch(
        self, lock: Lock, refs: Mapping[str, str | None], space: Workspace
    ) -> Iterator[tuple[str, Candidate, LockedSkill]]:
        """Yield what the sources of locked skills have at these refs, staged unless it cannot be placed."""
        groups: dict[tuple[str, str | None], list[str]] = {}
        for name, ref in refs.items():
            # One fetch for each source and ref, however many skills come from it.
            groups.setdefault((lock.skills[name].source, ref), []).append(name)
        for number, ((source, ref), names) in enumerate(sorted(groups.items(), key=str)):
            paths = {lock.skills[name].path for name in names}
            failure: str | None = None
            found: dict[str, Candidate] = {}
            try:
                origin = parse_origin(source, ref, self.lock_path.parent, self.lock_path.parent)
                tree = self._tree(origin, space, number, paths)
                wanted = [candidate for candidate in find_candidates(tree, source) if candidate.path in paths]
                found = {candidate.path: candidate for candidate in collect_files(tree, wanted, source)}
            except SourceError as error:
                failure = str(error).rstrip(".")
            for name in names:
                locked = lock.skills[name]
                gone = f"{source} no longer has it. It stays as it is; remove it with `deepskills remove {name}`"
                candidate = found.get(locked.path) or Candidate(name, locked.path, refusal=failure or gone)
                if candidate.refusal is None:
                    # Under the locked name: the directory is the lock's business.
                    files = stage(tree, [replace(candidate, name=name)], space.new)[name]
                    locked = replace(locked, commit=tree.commit, files=files)
                yield name, candidate, locked

    def _find_locked(self, lock: Lock, names: Sequence[str]) -> list[str]:
        unknown = [name for name in names if name not in lock.skills]
        if unknown:
            known = ", ".join(sorted(lock.skills)[:50]) or "none"
            missing = ", ".join(quote_path(name) for name in unknown)
            raise SkillNotFoundError(
                f"The lock has no skill {missing}. It has: {known}. A skill that was not added is yours to delete."
            )
        return sorted(dict.fromkeys(names)) if names else sorted(lock.skills)


def _list_drift(drift: Sequence[Drift]) -> str:
    words = [f"{item.path or 'the skill'} ({item.kind})" for item in drift[:10]]
    return ", ".join(words) + (f" and {len(drift) - 10} more" if len(drift) > 10 else "")  # noqa: PLR2004 - shown


def _list_differing(found: LockedSkill, locked: LockedSkill) -> str:
    paths = found.files.keys() | locked.files.keys()
    return ", ".join(sorted(path for path in paths if found.files.get(path) != locked.files.get(path))[:10])
