"""Asks providers, as plans, and checks whatever they give.

A provider is a user's object that may raise, hang, flood or lie. Each call has a time limit, each answer a bound, and
each value is looked at before anybody uses it. What is wrong becomes a problem or a failure that names the provider.
"""

import inspect
import re
from collections.abc import AsyncIterable, Awaitable, Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from typing import Any
from urllib.parse import quote

from deepskills._io.plan import Attempt, CallFunction, Failed, File, ReplyT, together, too_large
from deepskills._providers.base import (
    SCHEME,
    ListedSkill,
    ListingProblems,
    ProvidedFile,
    ProvidedSkill,
    SkillProvider,
)
from deepskills._providers.sources import MAX_NAMED, Listed, Source
from deepskills._skillmd.problems import problem, quoted
from deepskills._skillmd.text import is_text
from deepskills._types import MAX_DIRECTORIES, MAX_SKILL_FILE_BYTES, SKILL_FILE

USUAL_SECONDS = 30.0
"""How long a call of a provider may take where the middleware has no `backend_timeout`."""

MAX_FILES = 5_000
"""How many files a skill may have."""

MAX_KEY_LENGTH = 1_024
"""Longest key of a skill, and longest path of a file."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Asked:
    """A provider and the run on whose behalf it is asked."""

    provider: SkillProvider
    runtime: Any = None
    seconds: float = USUAL_SECONDS

    @property
    def source(self) -> str:
        """The address of the provider among sources."""
        return f"{SCHEME}{self.provider.label}"

    def path_of(self, key: str, location: str | None = None) -> str:
        """Return the path of a skill's `SKILL.md`, by which state and file tools know it."""
        directory = location or f"{self.source}/{quote(key, safe='')}"
        return f"{directory.rstrip('/')}/{SKILL_FILE}"

    def call(self, method: str, *given: object) -> CallFunction[object]:
        """Return the call of a method that gives one value."""
        return self._call(method, given, lambda value: value)

    def call_list(self, method: str, *given: object, at_most: int) -> CallFunction[list[object]]:
        """Return the call of a method that lists; one more than `at_most` is taken to tell that there are more."""
        return self._call(method, given, lambda value: _take(value, at_most))

    def _call(
        self, method: str, given: tuple[object, ...], finish: Callable[[object], ReplyT | Awaitable[ReplyT]]
    ) -> CallFunction[ReplyT]:
        # Looked up when it is called: an object without the method is a failed call, not an error in the plan.
        def run() -> ReplyT | Awaitable[ReplyT]:
            value = getattr(self.provider, method)(*given, self.runtime)
            return _finish_later(value, finish) if inspect.isawaitable(value) else finish(value)

        async def arun() -> ReplyT:
            value = run()
            return await value if inspect.isawaitable(value) else value

        # By the class: an attribute of the instance may be a property that raises.
        own = inspect.getattr_static(self.provider, method, None)
        is_async = inspect.iscoroutinefunction(own) or inspect.isasyncgenfunction(own)
        return CallFunction(arun if is_async else run, seconds=self.seconds)


async def _finish_later(value: Awaitable[object], finish: Callable[[object], ReplyT | Awaitable[ReplyT]]) -> ReplyT:
    finished = finish(await value)
    return await finished if inspect.isawaitable(finished) else finished


def _take(value: object, at_most: int) -> list[object] | Awaitable[list[object]]:
    if isinstance(value, AsyncIterable):
        return _collect(value, at_most)
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        raise TypeError(f"it returned {type(value).__name__}, not a list")
    # An iterator may never end.
    return list(islice(value, at_most + 1))


async def _collect(value: AsyncIterable[object], at_most: int) -> list[object]:
    found = []
    async for item in value:
        found.append(item)
        if len(found) > at_most:
            break
    return found


@dataclass(frozen=True)
class Caller:
    """The run on whose behalf providers are asked."""

    runtime: Callable[[], object] = lambda: None
    """Gives what the provider's methods get; called when a provider is asked at all."""

    seconds: float = USUAL_SECONDS

    def ask(self, provider: SkillProvider) -> Asked:
        """Return a provider, to be asked for this run."""
        return Asked(provider, self.runtime(), self.seconds)


NO_CALLER = Caller()
"""For looks outside any run, without providers that need one."""


async def list_skills(sources: Sequence[tuple[Source, Asked]]) -> list[Listed]:
    """Return what providers list; they are asked at the same time, and a failure costs the provider's own skills."""
    if not sources:
        return []
    asked = [each for _, each in sources]
    replies = await together(*(Attempt(each.call_list("list_skills", at_most=MAX_DIRECTORIES + 1)) for each in asked))
    found = [_check_listing(source, each, reply) for (source, each), reply in zip(sources, replies, strict=True)]
    for each, listed in zip(asked, found, strict=True):
        await _locate(each, listed)
    # Of skills without a digest nobody could tell later whether they changed, so their files are read now.
    unread = [
        (each, listed, skill, path)
        for each, listed in zip(asked, found, strict=True)
        for path, skill in listed.skills.items()
        if skill.version is None
    ]
    files = await together(*(Attempt(each.call("read_skill", skill.given)) for each, _, skill, _ in unread))
    for (_, listed, _, path), reply in zip(unread, files, strict=True):
        listed.files[path] = check_file(path, reply, None)
    return found


def _check_listing(source: Source, asked: Asked, reply: list[object] | Failed) -> Listed:
    if isinstance(reply, Failed):
        return Listed(source, failure=reply.reason)
    listed = Listed(source)
    if reply and isinstance(reply[0], ListingProblems):
        listed.problems += reply[0].problems
        del reply[0]
    listed.is_cut = len(reply) > MAX_DIRECTORIES
    seen: set[str] = set()
    reasons: list[tuple[str, str]] = []
    for item in reply[:MAX_DIRECTORIES]:
        key, skill = _check_skill(item, seen)
        if isinstance(skill, str):
            reasons.append((asked.path_of(key) if key else asked.source, skill))
        else:
            seen.add(key)
            listed.skills[asked.path_of(key, skill.directory)] = skill
    if len(reasons) > MAX_NAMED:
        reasons[MAX_NAMED:] = [(asked.source, f"{len(reasons) - MAX_NAMED} more of its skills are invalid")]
    listed.problems += [problem(path, "provided-invalid", reason=reason) for path, reason in reasons]
    return listed


def _check_skill(item: object, seen: Container[str]) -> tuple[str, ListedSkill | str]:
    """Return the key of a listed skill, empty if it has none, and the skill or what is wrong with it."""
    if not isinstance(item, ProvidedSkill):
        return "", f"it lists {type(item).__name__}, not ProvidedSkill"
    try:
        texts = (item.key, item.name, item.description, item.digest, item.version, item.directory)
        key, name, description, digest, version, directory = map(_plain, texts)
        frontmatter, is_dynamic = item.frontmatter, bool(item.is_dynamic)
    except Exception as error:  # noqa: BLE001 - attributes may be properties of the provider's own
        return "", f"its attributes cannot be read: {type(error).__name__}"
    if not _is_key(key):
        return "", f"its key must be a text of 1 to {MAX_KEY_LENGTH} characters without control characters"
    if key in seen:
        reason = f"the key {quoted(key)} is listed twice"
    elif not isinstance(name, str) or not isinstance(description, str):
        reason = "its name and description must be text"
    elif not _is_digest(digest):
        reason = "its digest must be 'sha256:' and 64 hexadecimal digits, or None"
    elif not all(isinstance(each, str | None) for each in (version, directory)):
        reason = "its version and directory must be text, or None"
    else:
        return key, ListedSkill(key, name, description, digest, version, directory, is_dynamic, frontmatter, given=item)
    return key, reason


def _is_digest(value: object) -> bool:
    return value is None or (isinstance(value, str) and _DIGEST.fullmatch(value) is not None)


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever a provider gave
    """Return a text as one that is no more than text: of a subclass, methods may do anything."""
    return str.__str__(value) if isinstance(value, str) else value


def _is_key(key: object) -> bool:
    return isinstance(key, str) and 0 < len(key) <= MAX_KEY_LENGTH and key.isprintable() and is_text(key)


async def _locate(asked: Asked, listed: Listed) -> None:
    """Give listed skills the paths by which file tools find them, where the provider says so."""
    provider = asked.provider
    # Thousands of calls are saved where skills say it themselves.
    asking = {path: skill for path, skill in listed.skills.items() if skill.directory is None}
    if type(provider).location is SkillProvider.location or not asking:
        return
    calls = [Attempt(asked.call("location", skill.given)) for skill in asking.values()]
    placed = {path: skill for path, skill in listed.skills.items() if path not in asking}
    for (address, skill), location in zip(asking.items(), map(_plain, await together(*calls)), strict=True):
        path = asked.path_of(skill.key, location) if isinstance(location, str) and _is_location(location) else address
        if path == address and location is not None:
            shown = quoted(location) if isinstance(location, str) else type(location).__name__
            reason = location.reason if isinstance(location, Failed) else f"{shown} is no clean absolute path"
            listed.problems.append(problem(address, "provided-location", reason=reason))
        # Two skills cannot lie in one directory; the second keeps its address.
        placed[address if path in placed else path] = skill
    listed.skills = placed


def _is_location(path: str) -> bool:
    parts = path.rstrip("/").split("/")[1:]
    is_clean = path.isprintable() and is_text(path) and "\\" not in path
    return is_clean and path.startswith("/") and bool(parts) and not {"", ".", ".."} & set(parts)


# One skill's text and files.


async def read_skill(asked: Asked, skill: ListedSkill, path: str, digest: str | None) -> File:
    """Return a skill's `SKILL.md`, if its bytes are those that were listed."""
    return check_file(path, await Attempt(asked.call("read_skill", skill.given)), digest)


async def read_files(asked: Asked, skill: ListedSkill, wanted: Mapping[str, ProvidedFile]) -> dict[str, File]:
    """Return files of a skill at the same time; by path as the caller names them."""
    # By the size that was listed: what is larger is not asked for.
    found = {
        path: too_large(path, file.size, MAX_SKILL_FILE_BYTES)
        for path, file in wanted.items()
        if file.size is not None and file.size > MAX_SKILL_FILE_BYTES
    }
    asking = {path: file for path, file in wanted.items() if path not in found}
    replies = await together(*(Attempt(asked.call("read_file", skill.given, file.path)) for file in asking.values()))
    for (path, file), reply in zip(asking.items(), replies, strict=True):
        found[path] = check_file(path, reply, file.digest, file.size)
    return found


def check_files(reply: list[object] | Failed) -> dict[str, ProvidedFile] | Failed:
    """Return the files that a provider lists; one that is no file of a skill makes the list a failure."""
    if isinstance(reply, Failed):
        return reply
    if len(reply) > MAX_FILES:
        return Failed(f"the skill has more than {MAX_FILES:,} files")
    files: dict[str, ProvidedFile] = {}
    for item in reply:
        file = _check_listed_file(item)
        if isinstance(file, str):
            return Failed(file)
        files[file.path] = file
    return files


def _check_listed_file(item: object) -> ProvidedFile | str:
    """Return a listed file with plain values, or what is wrong with it."""
    if not isinstance(item, ProvidedFile):
        return f"it lists {type(item).__name__}, not ProvidedFile"
    try:
        path, size, digest = _plain(item.path), item.size, _plain(item.digest)
    except Exception as error:  # noqa: BLE001 - attributes may be properties of the provider's own
        return f"the attributes of a file cannot be read: {type(error).__name__}"
    if not _is_key(path) or not _is_relative(path):
        return f"{path!r} is not a file with a path relative to the skill"
    if not _is_digest(digest):
        return f"the digest of {path!r} is not 'sha256:' and 64 hexadecimal digits"
    if size is not None and (type(size) is not int or size < 0):
        return f"the size of {path!r} is not a number of bytes"
    return ProvidedFile(path, size, digest)


def _is_relative(path: str) -> bool:
    return "\\" not in path and not {"", ".", ".."} & set(path.split("/"))


def check_file(path: str, reply: object, digest: str | None, size: int | None = None) -> File:
    """Return what a provider gave for a file, if it is what was listed."""
    if isinstance(reply, Failed):
        return File(path, error=reply.reason)
    if not isinstance(reply, bytes | bytearray | memoryview):
        return File(path, error=f"the provider gave {type(reply).__name__}, not bytes")
    # By its memory: methods of a subclass may do anything.
    content = reply if type(reply) is bytes else bytes(memoryview(reply))
    if len(content) > MAX_SKILL_FILE_BYTES:
        return too_large(path, len(content), MAX_SKILL_FILE_BYTES)
    is_other = size is not None and len(content) != size
    if is_other or (digest is not None and f"sha256:{sha256(content).hexdigest()}" != digest):
        return File(path, error="its bytes are not those that were listed; it was changed, or the provider is broken")
    return File(path, content)
