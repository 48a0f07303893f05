"""The rules of the store: what a skill may be, who may do what with it, and how an application sets this up.

Pure, so that every rule can be read and tested without a database. Three parts:

- what may be stored: names, paths, tags, sizes (`StoreLimits`), user and group ids;
- who is asking and what they may do: `Viewer`, `check_right`. Which rows a viewer *sees* is the same rule, written as
  conditions of queries in `db/listings.py`: a listing of 100,000 skills cannot call a function for each;
- `Policy`, the one object that carries what the application decides (groups, operators, approval, retention, limits)
  to every place that serves its users.

Breaking a rule raises an exception that says what to do. A skill that the user may not see is reported exactly like one
that does not exist, so that an error never reveals more than a listing would.
"""

import inspect
import itertools
import json
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import IntEnum
from pathlib import PurePosixPath
from typing import Any, Literal, Protocol, TypeAlias
from uuid import UUID

from deepskills._errors import SkillFormatError, SkillNotFoundError, SkillPathError
from deepskills._files.paths import malformed
from deepskills._skillmd import names as _naming
from deepskills._skillmd.names import stored_key
from deepskills._skillmd.problems import quoted
from deepskills._skillmd.text import one_line
from deepskills._types import MAX_NAME_LENGTH, MAX_SKILL_FILE_BYTES, SKILL_FILE
from deepskills.store.errors import (
    SkillAuthenticationError,
    SkillConflictError,
    SkillPermissionError,
    SkillPolicyError,
    SkillQuotaError,
    SkillStaleError,
    SkillTooLargeError,
)

MAX_OWNER_LENGTH = 255
"""Longest user or group id."""

MAX_PATH_LENGTH = 512
"""Longest file path; databases index it."""

MAX_TAGS = 50
"""How many tags a skill may have."""

MAX_TAG_LENGTH = 64
"""Longest tag."""

MAX_GROUPS = 100
"""How many groups a skill may be shared with."""

MAX_GROUPS_OF_USER = 1_000
"""How many groups a user may be in."""

MAX_DAYS = 365_000
"""Longest retention in days: a thousand years; far beyond that, dates overflow."""

RETENTION_DAYS = 30
"""How many days a deleted skill can be restored, by default."""

UserId: TypeAlias = str | UUID
"""A user id, as the application knows it."""

GroupsOf: TypeAlias = Callable[[str], Iterable[str] | Awaitable[Iterable[str]]]
"""The application's function that returns a user's groups, sync or async."""

IsOperator: TypeAlias = Callable[[str], bool | Awaitable[bool]]
"""The application's function that says whether a user is an operator, sync or async."""

ApprovalRule: TypeAlias = bool | Literal["by-others"]
"""Whether public skills need an operator's approval, and whether the owner or last author may be that operator."""

Right: TypeAlias = Literal["read", "write"]
"""What the members of a group may do with a skill that is shared with it."""


_DOTS_IN_A_NAME = re.compile(r"\.\.+(?=[^/.])")


@dataclass(frozen=True)
class StoreLimits:
    """Limits on the size of skills, on their files, on how much each owner may keep, and on sharing.

    Args:
        file_bytes: Largest file of a skill, except its `SKILL.md`, which can be up to 10 MiB.
        skill_bytes: Largest total size of a skill's files.
        files: How many files a skill may have.
        extensions: The allowed ends of file names, such as `.md` and `.py`; `None` allows all.
        owner_skills: How many skills a user may own; `None` for any number. System skills do not count.
        owner_bytes: How many bytes a user's skills may take together, files included; `None` for any number.
        history_bytes: How many bytes the former versions of a user's skills may take together; the oldest go first.
            `None` for any number.
        own_groups_only: Whether users can share skills only with groups that they are in. Agents trust what is shared
            with their user's groups: if this is off, anybody who knows a group's name can give a skill to its members.
    """

    file_bytes: int = 10 * 1024 * 1024
    skill_bytes: int = 64 * 1024 * 1024
    files: int = 4_000
    extensions: frozenset[str] | None = None
    owner_skills: int | None = None
    owner_bytes: int | None = None
    history_bytes: int | None = None
    own_groups_only: bool = True

    def __post_init__(self) -> None:
        for name, limit in vars(self).items():
            if isinstance(limit, int) and limit < 0:
                raise ValueError(f"{name} is a number from 0 on, got {limit}")

    def check_files(self, new: Mapping[str, int], kept: Mapping[str, int] | None = None) -> None:
        """Check new files of a skill, given by path and size, also together with those that it has.

        Raises:
            SkillTooLargeError: If there are too many, or one or all of them are too large.
            SkillPathError: If a path is refused, is taken in another spelling, or is both a file and a directory.
            SkillFormatError: If a file's extension is not allowed.
        """
        sizes = {**(kept or {}), **new}
        if len(sizes) > self.files:
            raise SkillTooLargeError(f"The skill would have {len(sizes)} files; at most {self.files} are kept.")
        # Only new files: those stored under former limits are no reason to refuse a change.
        for path, size in new.items():
            self._check_file(path, size)
        total = sum(sizes.values())
        if total > self.skill_bytes:
            raise SkillTooLargeError(
                f"The skill's files would take {total} bytes; at most {self.skill_bytes} are kept. Remove some."
            )
        _check_collisions(new, sizes)

    def check_owner(self, *, skills: int, size: int, tells: bool = True) -> None:
        """Check how many skills, and how many bytes in all of them, an owner would have.

        Args:
            skills: The number of skills.
            size: The number of bytes.
            tells: Whether the error may say how much the owner has.

        Raises:
            SkillQuotaError: If that is over the quota.
        """
        if self.owner_skills is not None and skills > self.owner_skills:
            reason = (
                f"The owner would have {skills} skills; at most {self.owner_skills} are kept for each. Delete some."
            )
        elif self.owner_bytes is not None and size > self.owner_bytes:
            reason = f"The owner's skills would take {size} bytes; at most {self.owner_bytes} are kept for each. "
            reason += "Delete files or skills."
        else:
            return
        raise SkillQuotaError(reason if tells else "The skill's owner cannot keep more. Ask the owner to make room.")

    def _check_file(self, path: str, size: int) -> None:
        check_path(path)
        if size > self.file_bytes:
            raise SkillTooLargeError(
                f"The file {quoted(path)} is {size} bytes; at most {self.file_bytes} are kept. Split or shrink it."
            )
        if self.extensions is None:
            return
        extension = PurePosixPath(path).suffix.casefold()
        # An empty entry allows files without an extension.
        allowed = {f".{name.lstrip('.').casefold()}" if name else "" for name in self.extensions}
        if extension not in allowed:
            raise SkillFormatError(
                f"The file {quoted(path)} has an extension that this store does not allow. "
                f"Allowed are: {', '.join(sorted(allowed))}."
            )


def path_key(path: str) -> str:
    """Return what two spellings of one path have in common on file systems that ignore case or Unicode form."""
    return stored_key(path)


def _check_collisions(new: Iterable[str], paths: Iterable[str]) -> None:
    """Check that no new path is another one in a different spelling, or a file where another path has a directory."""
    given = set(new)
    # With the lowest character instead of the slash, everything below a path sorts right after it.
    ordered = sorted((path_key(path).replace("/", "\x01"), path) for path in [SKILL_FILE, *paths])
    for (key, path), (next_key, other) in itertools.pairwise(ordered):
        if path not in given and other not in given:
            continue
        if key == next_key:
            raise SkillPathError(
                f"The paths {quoted(path)} and {quoted(other)} differ only in case or Unicode form, which many file "
                "systems do not tell apart. Rename one of them."
            )
        if next_key.startswith(f"{key}\x01"):
            raise SkillPathError(f"The path {quoted(path)} is a file and a directory at once. Rename one of them.")


def check_name(name: str) -> None:
    """Check a skill's name by the rules of the specification.

    Raises:
        SkillFormatError: If the name breaks them.
    """
    if _naming.is_too_long(name):
        raise SkillFormatError(f"The name is {len(name)} characters long; at most {MAX_NAME_LENGTH} are allowed.")
    if not _naming.is_valid_name(name):
        raise SkillFormatError(
            f"The name {quoted(name)} breaks the naming rules. "
            "Use lower-case letters, digits and single hyphens between them."
        )


def check_path(path: str) -> None:
    """Check that `path` is relative and names a file inside a skill, other than its `SKILL.md`.

    Raises:
        SkillPathError: If it is refused.
    """
    if len(path) <= MAX_PATH_LENGTH and path_key(path) == path_key(SKILL_FILE):
        raise SkillPathError(f"{SKILL_FILE} is the skill's own text. Set `content` instead of adding a file.")
    if len(path) > MAX_PATH_LENGTH:
        raise SkillPathError(f"The path {quoted(path)} is longer than {MAX_PATH_LENGTH} characters. Shorten it.")
    # Any directory is fine: skills also have files outside the three directories of the specification.
    reason = "it is not relative" if path.startswith(("/", "~")) else malformed(f"assets/{path}")
    if reason is not None:
        raise SkillPathError(
            f"The path {quoted(storable(path))} is refused: {reason}. Give a path relative to the skill, such as "
            "`references/guide.md`, without `..`, backslashes, drive letters, percent-encoded or invisible characters."
        )


def check_kept_path(path: str) -> None:
    """Check a path that is already stored, by all rules but one: `..` inside a name leads nowhere.

    Raises:
        SkillPathError: If it is refused.
    """
    check_path(_DOTS_IN_A_NAME.sub("_", path))


def check_text(field: str, text: str) -> None:
    """Check that every database can keep `text`.

    Raises:
        SkillFormatError: If it holds a NUL or half of a surrogate pair.
    """
    if storable(text) != text:
        raise SkillFormatError(f"The {field} holds NUL or broken Unicode characters. Remove them.")


def storable(text: str) -> str:
    """Return `text` with the characters replaced that databases cannot store."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def check_skill_size(size: int) -> None:
    """Check the size of a `SKILL.md`.

    Raises:
        SkillTooLargeError: If it is over the reader's limit.
    """
    if size > MAX_SKILL_FILE_BYTES:
        raise SkillTooLargeError(
            f"The SKILL.md would be {size} bytes; at most {MAX_SKILL_FILE_BYTES} are kept. "
            "Move long material into files."
        )


def check_tags(tags: Iterable[str]) -> list[str]:
    """Return the tags, each once, ignoring case.

    Raises:
        SkillFormatError: If there are too many, or one is empty, too long, or more than a plain word or phrase.
    """
    distinct: dict[str, str] = {}
    for tag in tags:
        # The first spelling is kept.
        distinct.setdefault(tag.strip().casefold(), tag.strip())
    found = list(distinct.values())
    if len(found) > MAX_TAGS:
        raise SkillFormatError(f"The skill would have {len(found)} tags; at most {MAX_TAGS} are kept. Remove some.")
    for tag in found:
        check_text("tag", tag)
        if not tag or len(tag) > MAX_TAG_LENGTH or one_line(tag) != tag:
            raise SkillFormatError(
                f"The tag {quoted(tag)} cannot be kept. Use 1 to {MAX_TAG_LENGTH} characters on one line, or remove it."
            )
    return found


def owner_key(user_id: object) -> str | None:
    """Return a user id as the store keeps it; `None` means nobody.

    Raises:
        SkillFormatError: If it is not text or a UUID, is empty or too long, or cannot be kept.
    """
    if user_id is None:
        return None
    if not isinstance(user_id, str | UUID):
        # `str()` of any other object may be its memory address, which another object can get later.
        raise SkillFormatError(f"A user id is text or a UUID, got {type(user_id).__name__}. Pass None for nobody.")
    return _key("user id", str(user_id))


def read_groups(shared_with: Mapping[str, Right]) -> dict[str, Right]:
    """Return the groups that a skill is shared with.

    Raises:
        SkillFormatError: If there are too many, an id cannot be kept, or a right is neither `read` nor `write`.
    """
    if len(shared_with) > MAX_GROUPS:
        raise SkillFormatError(f"A skill can be shared with {MAX_GROUPS} groups, got {len(shared_with)}.")
    for right in shared_with.values():
        if right not in ("read", "write"):
            raise SkillFormatError(f"A group may `read` or `write`, not {quoted(storable(str(right)))}.")
    return dict(sorted((_key("group id", group), right) for group, right in shared_with.items()))


def group_keys(groups: object) -> frozenset[str]:
    """Return the groups of a user as the application's function gave them.

    Raises:
        SkillPolicyError: If they are not a collection of group ids, or too many.
    """
    if isinstance(groups, str | bytes) or not isinstance(groups, Iterable):
        raise SkillPolicyError(f"groups_of must return a collection of group ids, got {type(groups).__name__}.")
    try:
        found = frozenset(_key("group id", group) for group in groups)
    except SkillFormatError as error:
        raise SkillPolicyError(f"groups_of returned something that is not a group id: {error}") from None
    if len(found) > MAX_GROUPS_OF_USER:
        raise SkillPolicyError(
            f"groups_of returned {len(found)} groups; a user may be in {MAX_GROUPS_OF_USER}. Return those that share "
            "skills."
        )
    return found


def _key(what: str, given: object) -> str:
    if not isinstance(given, str):
        raise SkillFormatError(f"A {what} is text, got {type(given).__name__}.")
    check_text(what, given)
    if not given or len(given) > MAX_OWNER_LENGTH:
        raise SkillFormatError(f"A {what} has 1 to {MAX_OWNER_LENGTH} characters, got {len(given)}.")
    return given


class Reason(IntEnum):
    """Why somebody sees a skill; among skills with the same name the first reason wins (see `Viewer.rank`)."""

    OWN = 0
    SYSTEM = 1
    GROUP = 2
    PUBLIC = 3


EVERYTHING = frozenset(Reason)
"""Everything that a user may see."""

TRUSTED = frozenset({Reason.OWN, Reason.GROUP, Reason.SYSTEM})
"""Everything except other users' public skills."""


@dataclass(frozen=True)
class Viewer:
    """Who is asking: a user with their groups, nobody, or the operator's code."""

    user: str | None = None
    groups: frozenset[str] = frozenset()
    is_operator: bool = False
    """Whether they may see and remove any skill."""

    is_system: bool = False
    """Whether it is the operator's code, which owns the system skills."""

    needs_approval: bool = False
    """Whether other users' public skills are visible only when approved."""

    prefers_groups: bool = False
    """Whether what groups share comes before the system's."""

    def rank(self, reason: Reason) -> int:
        """Return where skills seen for a reason stand among those with the same name."""
        swapped = {Reason.GROUP: Reason.SYSTEM, Reason.SYSTEM: Reason.GROUP} if self.prefers_groups else {}
        return int(swapped.get(reason, reason))


Need: TypeAlias = Literal["write", "own", "remove", "operate"]
"""What a call needs: to change text and files, to decide who sees the skill, to remove it, or to act as an operator."""


class Guarded(Protocol):
    """The parts of a skill that the rules look at."""

    name: str
    owner_id: str | None
    """Its owner; `None` for a system skill."""

    revision: int
    shared_with: dict[str, Right]
    """The groups it is shared with, and what their members may do."""


def owns(skill: Guarded, writer: Viewer) -> bool:
    """Whether a skill is the writer's own; system skills belong to the operator's code, never to nobody."""
    if writer.is_system:
        return skill.owner_id is None
    return writer.user is not None and skill.owner_id == writer.user


def sees_groups(skill: Guarded, viewer: Viewer) -> bool:
    """Whether a viewer may know which groups a skill is shared with."""
    return owns(skill, viewer) or viewer.is_operator or not viewer.groups.isdisjoint(skill.shared_with)


def was_seen(audience: str, viewer: Viewer) -> bool:
    """Whether a viewer could see somebody else's skill when it was changed, by what the log says of that moment."""
    return audience == "*" or (bool(audience) and not viewer.groups.isdisjoint(json.loads(audience)))


def knows_change(skill: Guarded, audience: str, viewer: Viewer) -> bool:
    """Whether a viewer who may see a skill's history may know of a change to it: others, only if they saw the skill."""
    return viewer.is_operator or owns(skill, viewer) or was_seen(audience, viewer)


def has_right(skill: Guarded, writer: Viewer, need: Need) -> bool:
    """Whether a writer has a right on a skill."""
    is_own = owns(skill, writer)
    # Everybody's agents use system skills, so no group may write them, even if they are shared with it.
    by_group = skill.owner_id is not None and any(
        right == "write" and group in writer.groups for group, right in skill.shared_with.items()
    )
    allowed = {
        "write": is_own or by_group,
        "own": is_own,
        # System skills belong to the operator's code: an operator who signs in may hide one, and nothing else.
        "remove": is_own or (writer.is_operator and skill.owner_id is not None),
        "operate": writer.is_operator,
    }
    return allowed[need]


def check_right(skill: Guarded, writer: Viewer, need: Need) -> None:
    """Check that a writer has a right on a skill.

    Raises:
        SkillPermissionError: If not.
    """
    if not has_right(skill, writer, need):
        raise SkillPermissionError(
            f"The skill {quoted(skill.name)} is not yours to change in this way. Ask its owner, or create your own."
        )


def check_revision(skill: Guarded, expected_revision: int | None) -> None:
    """Check that a skill is at the revision that its writer knows.

    Raises:
        SkillStaleError: If it changed since.
    """
    if expected_revision is not None and skill.revision != expected_revision:
        raise SkillStaleError(
            f"The skill {quoted(skill.name)} has revision {skill.revision}, not {expected_revision}: somebody changed "
            "it in the meantime. Get it again, and apply your change to what it is now.",
            skill.revision,
        )


def check_rename(skill: Guarded, writer: Viewer, name: str) -> None:
    """Check that a writer may give a skill that name: only the owner can rename.

    Called before the name is looked up, so that a member of a group cannot find out which names the owner has.

    Raises:
        SkillPermissionError: If the name differs and the skill is not the writer's own.
    """
    if name != skill.name and not owns(skill, writer):
        raise SkillPermissionError(
            f"Only the owner of the skill {quoted(skill.name)} can rename it. Keep the name, and change the rest."
        )


def may_share_with_any(writer: Viewer, limits: StoreLimits) -> bool:
    """Whether a writer may share skills with groups that they are not in."""
    return writer.is_operator or not limits.own_groups_only


def check_groups(groups: Collection[str], writer: Viewer, limits: StoreLimits) -> None:
    """Check that a writer may share skills with groups.

    Raises:
        SkillPermissionError: If the writer is not in one of them and the limits require it.
    """
    # Agents trust what is shared with their user's groups, so nobody may give skills to a group of strangers.
    strange = sorted(set(groups) - writer.groups)
    if strange and not may_share_with_any(writer, limits):
        raise SkillPermissionError(f"You are not in the group {quoted(strange[0])}. Share only with your own groups.")


def check_still_in_groups(skill: Guarded, groups: Collection[str], writer: Viewer, limits: StoreLimits) -> None:
    """Check that an owner who changes a skill is still in the groups whose agents get it.

    Raises:
        SkillPermissionError: If the owner has left one of them and the limits require it.
    """
    left = sorted(set(groups) - writer.groups)
    if owns(skill, writer) and left and not may_share_with_any(writer, limits):
        raise SkillPermissionError(
            f"You are no longer in the group {quoted(left[0])}, which gets the skill {quoted(skill.name)}. "
            "Stop sharing it with that group first."
        )


def as_id(given: object) -> UUID | None:
    """Return an id, given as a UUID or as text; `None` if it is not an id."""
    if isinstance(given, UUID):
        return given
    try:
        return UUID(given) if isinstance(given, str) else None
    except ValueError:
        return None


def check_id(given: object) -> UUID:
    """Return an id.

    Raises:
        SkillNotFoundError: If it is not an id, so that no skill has it.
    """
    found = as_id(given)
    if found is None:
        raise no_skill(quoted(storable(str(given))))
    return found


def no_skill(shown: str) -> SkillNotFoundError:
    """Return the error for a skill that does not exist or may not be seen."""
    return SkillNotFoundError(f"There is no skill {shown}. List the skills to see which exist.")


def make_taken_error(name: str) -> SkillConflictError:
    """Return the error for a name that the owner already has."""
    return SkillConflictError(f"The name {quoted(storable(name))} is taken, in this or another case. Choose another.")


def require_user(user_id: UserId | None) -> str:
    """Return a user id as the store keeps it.

    Raises:
        SkillAuthenticationError: If it is nobody's.
    """
    # Proxies send an empty id for nobody.
    owner = None if user_id == "" else owner_key(user_id)
    if owner is None:
        raise SkillAuthenticationError("Only signed-in users can write skills. Sign in and try again.")
    return owner


@dataclass(frozen=True)
class Policy:
    """The application's decisions about its store, in one object for every service, router and agent.

    Args:
        limits: How large skills may be, which files they may hold, and how much each owner may keep.
        groups_of: Returns the groups that a user is in; sync or async; without it, nobody is in a group.
        is_operator: Whether a user may list, hide, approve and remove any skill, sync or async.
        approval: Show a public skill to others only once an operator approved its current revision; with `"by-others"`,
            an operator who neither owns it nor made its last change.
        retention: How many days a deleted skill can be restored.
        groups_before_system: Let what is shared with a group replace the system's skill of the same name.
    """

    limits: StoreLimits = field(default_factory=StoreLimits)
    groups_of: GroupsOf | None = None
    is_operator: IsOperator | None = None
    approval: ApprovalRule = False
    retention: float = RETENTION_DAYS

    groups_before_system: bool = False

    def __post_init__(self) -> None:
        days_of(self.retention)

    @classmethod
    def of(cls, policy: "Policy | None", options: Mapping[str, Any]) -> "Policy":
        """Return a policy with some fields given by name; a field that is `None` keeps its default.

        Raises:
            TypeError: If there is no such field.
        """
        given = {name: value for name, value in options.items() if value is not None}
        unknown = sorted(given.keys() - cls.__dataclass_fields__.keys())
        if unknown:
            raise TypeError(
                f"There is no option {', '.join(unknown)}. A Policy has: {', '.join(cls.__dataclass_fields__)}."
            )
        return replace(policy or cls(), **given)

    @property
    def retained(self) -> timedelta:
        """How long a deleted skill can be restored."""
        return days_of(self.retention)

    async def viewer(self, user_id: UserId | None, *, system: bool = False) -> Viewer:
        """Return the user with what the application's functions say about them.

        Called before a transaction begins: those functions may take their time, and may use the database themselves.
        """
        user = owner_key(user_id)
        if system:
            return Viewer(is_operator=True, is_system=True, needs_approval=bool(self.approval))
        viewer = Viewer(user, needs_approval=bool(self.approval), prefers_groups=self.groups_before_system)
        if user is not None and self.groups_of is not None:
            viewer = replace(viewer, groups=group_keys(await _settle(self.groups_of(user))))
        if user is not None and self.is_operator is not None:
            # `is True`: a function that returns a user or a text by mistake must not make an operator.
            viewer = replace(viewer, is_operator=await _settle(self.is_operator(user)) is True)
        return viewer

    async def writer(self, user_id: UserId | None, *, system: bool = False) -> Viewer:
        """Return the user as a writer.

        Raises:
            SkillAuthenticationError: If nobody is signed in, and it is not the operator's code.
        """
        if not system:
            require_user(user_id)
        return await self.viewer(user_id, system=system)


def days_of(days: float) -> timedelta:
    """Return a number of days as a duration.

    Raises:
        SkillPolicyError: If it is not a number from 0 to `MAX_DAYS`.
    """
    if not isinstance(days, int | float) or not 0 <= days <= MAX_DAYS:
        raise SkillPolicyError(f"A retention is a number of days from 0 to {MAX_DAYS:,}, got {days!r}.")
    return timedelta(days=days)


async def _settle(value: object) -> object:
    return await value if inspect.isawaitable(value) else value
