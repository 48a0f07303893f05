"""Sources: where skills are looked for, their labels, and what one shows when it is looked at.

Which of two sources wins is decided in `discovery.py`. Labels are derived as deepagents derives them, so that a prompt
reads the same with either class.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath, PurePosixPath
from typing import Any, TypeAlias

from deepskills._io.plan import File, tidy
from deepskills._providers.base import SCHEME, ListedSkill, ServesSkills, SkillProvider, check_label
from deepskills._skillmd.problems import problem, quoted
from deepskills._skillmd.text import as_readable
from deepskills._types import NamespacedSource, OptionalSource, PluginSource, SkillProblem

SkillSource: TypeAlias = (
    str | tuple[str, str] | OptionalSource | NamespacedSource | PluginSource | SkillProvider | ServesSkills
)
"""Where skills come from: a path, a `(path, label)` pair, an `OptionalSource` or the like, or what has providers."""

MAX_NAMESPACE_LENGTH = 48
"""Longest namespace; with a name of the longest kind it still fits where names are shown."""

MAX_NAMED = 100
"""How many things of one kind that are wrong with a source are named, each in a problem of its own."""

NAMESPACE = re.compile(rf"[\w.-]{{1,{MAX_NAMESPACE_LENGTH}}}")
"""What a namespace is made of."""


@dataclass(frozen=True)
class Source:
    """A backend path that holds skill directories, and the name it is shown by."""

    path: str
    label: str
    is_optional: bool = False
    """Whether it may be missing or empty without a problem."""

    provider: SkillProvider | None = field(default=None, compare=False)
    """What gives the skills; `None` for a directory."""

    namespace: str = ""
    """What the names of its skills begin with, if they have a namespace."""

    plugin: str | None = None
    """The directory of the plugin whose skills these are; its namespace is known once its manifest is read."""

    def name_of(self, name: str) -> str:
        """Return what a skill of this source is called."""
        prefix = f"{self.namespace}:"
        return name if not self.namespace or name.startswith(prefix) else f"{prefix}{name}"


@dataclass
class Listed:
    """What a source shows of its skills, whatever it is: each skill by the path of its `SKILL.md`."""

    source: Source
    files: dict[str, File] = field(default_factory=dict)
    """The files that were read, or why one could not be."""

    skills: dict[str, ListedSkill] = field(default_factory=dict)
    """What a provider says of its skills; with a digest that is all, and their files are not read yet."""

    beside: dict[str, bytes] = field(default_factory=dict)
    """The files in which Codex keeps who may start a skill."""

    absent: set[str] = field(default_factory=set)
    """Where a skill might have been, and none is."""

    unusable: list[str] = field(default_factory=list)
    """Files that no skill is made of, for reasons among the problems."""

    problems: list[SkillProblem] = field(default_factory=list)
    failure: str | None = None
    """Why it could not be looked at; the skills that it gave before stay."""

    incomplete: list[str] = field(default_factory=list)
    """For each directory that could not be listed in full, which and why."""

    misnamed: list[str] = field(default_factory=list)
    """Files named like `SKILL.md` in another case, where there is none."""

    is_missing: bool = False
    is_cut: bool = False
    """Whether there are more skills than are taken."""

    @property
    def paths(self) -> Collection[str]:
        """Where its skills lie, in the order in which the first of a name wins."""
        return self.skills or self.files

    @property
    def is_unsure(self) -> bool:
        """Whether what it does not show may still be there."""
        # What a thread knows of a personal source may be another user's: it neither fills in nor stays.
        is_personal = self.source.provider is not None and self.source.provider.is_personal
        return (self.failure is not None or bool(self.incomplete)) and not is_personal

    def source_problems(self, *, found_any: bool) -> list[SkillProblem]:
        """Return what is wrong with the source itself."""
        path = self.source.path
        found: list[SkillProblem] = []
        if self.failure is not None:
            is_file = path.endswith("/SKILL.md")
            hint = " (a source is a directory: name the one that holds the file)" if is_file else ""
            found.append(problem(path, "source-failed", reason=self.failure + hint))
        reasons = self.incomplete[:MAX_NAMED]
        if len(self.incomplete) > MAX_NAMED:
            reasons.append(f"{len(self.incomplete) - MAX_NAMED} more directories")
        found += [problem(path, "source-incomplete", reason=reason) for reason in reasons]
        if self.is_missing:
            found += [] if self.source.is_optional else [problem(path, "source-missing")]
        # Empty is worth a word only if nothing else explains why there is no skill.
        elif not found_any and not found and not self.source.is_optional:
            found.append(problem(path, "source-empty"))
        if self.is_cut:
            found.append(problem(path, "source-cut"))
        return found + [
            problem(as_readable(file), "skill-file-misnamed", found=quoted(file.rpartition("/")[2]))
            for file in self.misnamed[:MAX_NAMED]
        ]


def parse_sources(sources: Iterable[SkillSource]) -> list[Source]:
    """Return each source with its label.

    Raises:
        TypeError: If an entry is neither a path nor a pair of path and label.
        ValueError: If a namespace cannot be part of a name.
    """
    if isinstance(sources, str | SkillProvider | ServesSkills):
        kind = "path" if isinstance(sources, str) else "provider"
        raise TypeError(f"sources must be a sequence, got the single {kind} {sources!r}; wrap it in a list")
    if not isinstance(sources, Iterable):
        raise TypeError(f"sources must be a sequence of paths or providers, got {sources!r}; pass a list")
    parsed = [_parse_source(each) for source in sources for each in _take_apart(source)]
    labels = [source.label for source in parsed if source.provider is not None]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise ValueError(f"two providers have the label {twice!r}; give each its own")
    return parsed


def _take_apart(source: SkillSource) -> Sequence[SkillSource]:
    """Return the providers of an object that has several, such as one for each server."""
    # `None`: nobody said that it is mounted anywhere.
    return source.providers_at("/", None) if isinstance(source, ServesSkills) else [source]


def _parse_source(source: SkillSource) -> Source:
    if isinstance(source, SkillProvider):
        label = check_label(source)
        # Optional: a provider without skills for this user is not a mistake that every run should report.
        return Source(f"{SCHEME}{label}", label, is_optional=True, provider=source)
    given: Any = source
    if isinstance(given, type) and issubclass(given, SkillProvider):
        raise TypeError(f"a source must be a provider, got the class {given.__name__}; write {given.__name__}(...)")
    if isinstance(source, OptionalSource | NamespacedSource | PluginSource):
        given = source.path if source.label is None else (source.path, source.label)
    pair = given if isinstance(given, tuple) and len(given) == 2 else (given,)  # noqa: PLR2004
    if not all(isinstance(part, str) for part in pair):
        raise TypeError(
            "a source is a path, a (path, label) pair of strings, an OptionalSource, a NamespacedSource, a "
            f"PluginSource or a SkillProvider, got {source!r}"
            + (f"; write {given.as_posix()!r}" if isinstance(given, PurePath) else "")
        )
    # A plain `str` even of a subclass: sources are compared and serialized, and a subclass may do either its own way.
    root, *labels = map(str.__str__, pair)
    is_plugin = isinstance(source, PluginSource)
    path = f"{root.rstrip('/')}/skills" if is_plugin else root
    return Source(
        path,
        labels[0] if labels else derive_label(path),
        # A plugin may have no skills.
        is_optional=isinstance(source, OptionalSource | PluginSource),
        namespace=_check_namespace(source.namespace) if isinstance(source, NamespacedSource) else "",
        plugin=root if is_plugin else None,
    )


def _check_namespace(namespace: object) -> str:
    if not isinstance(namespace, str) or not NAMESPACE.fullmatch(namespace):
        raise ValueError(
            f"a namespace is 1 to {MAX_NAMESPACE_LENGTH} letters, digits, hyphens, dots or underscores, "
            f"got {namespace!r}"
        )
    return namespace


def derive_label(path: str) -> str:
    """Return the label of a path: its last part, or for `.../<owner>/skills` the owner."""
    parts = PurePosixPath(path.replace("\\", "/").rstrip("/")).parts
    if not parts:
        return "Unnamed"
    leaf = parts[-1]
    if leaf.lower() == "built_in_skills":
        return "Built-in"
    if leaf.lower() == "skills" and len(parts) > 1:
        owner = parts[-2].lstrip(".")
        if owner not in {"", "/"}:
            return owner.replace("_", " ").replace("-", " ").title()
    return leaf.capitalize()


def has_derived_label(source: Source) -> bool:
    """Whether a source's label says no more than its path."""
    return not source.path.startswith(SCHEME) and source.label == derive_label(source.path)


def is_nameless(source: Source) -> bool:
    """Whether a source has no label of its own, and a path that none can be made of."""
    return source.label.strip() in {"", derive_label("")}


def distinct(sources: Sequence[Source]) -> list[Source]:
    """Return the sources without repeats; the last of equal paths stays, as it has the higher priority."""
    # With its namespace: the same path by two namespaces gives two sets of names.
    last = {(tidy(source.path), source.namespace): source for source in sources}
    return [source for source in sources if last[tidy(source.path), source.namespace] is source]
