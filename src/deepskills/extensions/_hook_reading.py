"""Frontmatter `hooks` as values, and what is wrong with them. Pure.

Matchers are regular expressions that strangers wrote, and Python's engine can take forever on one: only those are
taken whose work on a tool's name is bounded.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, get_args

HookEvent: TypeAlias = Literal["PreToolUse", "PostToolUse"]
HookType: TypeAlias = Literal["python", "prompt", "command"]

MAX_HOOKS = 50
"""Most hooks of one skill."""

MAX_MATCHER_CHARACTERS = 300
MAX_NAME_CHARACTERS = 256
"""Longest tool name that is matched; a longer one matches everything."""

MAX_PROMPT_CHARACTERS = 4_000
MAX_COMMAND_CHARACTERS = 4_000
"""Longest command; it has to fit on a command line together with the call."""

DEFAULT_TIMEOUT = 60
MAX_TIMEOUT = 600

MATCHER_INVALID = (
    'The matcher {matcher!r} cannot be used ({reason}), so its hooks do not run. Write tool names separated by "|", '
    'with ".*" for what may vary.'
)
_TRUE = frozenset({"true", "yes", "on", "1"})
_VALUE_KEY: dict[HookType, str] = {"python": "handler", "prompt": "prompt", "command": "command"}
_PIECE = re.compile(
    r"\\(?P<reference>[1-9])|\\.|\[\^?\]?(?:[^\]\\]|\\.)*+\]|(?P<open>\((?:\?:)?)|(?P<close>\))|(?P<bar>\|)|(?P<repeat>[*+?{])|.",
    re.DOTALL,
)
_MAX_REPEATS = 2
_MAX_CHOICES = 6


@dataclass(frozen=True)
class Hook:
    """One hook of a skill."""

    event: HookEvent
    position: int
    """Which of the skill's hooks it is."""

    type: HookType
    value: str
    """The handler's name, the prompt or the command."""

    matcher: re.Pattern[str] | None = None
    """What the tool's whole name has to match; `None` for any tool."""

    once: bool = False
    timeout: int = DEFAULT_TIMEOUT

    def matches(self, names: set[str]) -> bool:
        """Whether the hook is about a tool, by any of its names."""
        if self.matcher is None or any(len(name) > MAX_NAME_CHARACTERS for name in names):
            return True
        return any(self.matcher.fullmatch(name) for name in names)


@dataclass(frozen=True)
class HookProblem:
    """Why a hook of a skill does not run."""

    code: str
    message: str


def read_hooks(tree: Any) -> tuple[list[Hook], list[HookProblem]]:  # noqa: ANN401 - whatever an author wrote
    """Read the hooks of a skill. Never raises; what cannot be used comes back as problems."""
    hooks: list[Hook] = []
    problems: list[HookProblem] = []
    if tree is not None and not isinstance(tree, Mapping):
        problems.append(HookProblem("hooks-invalid", "`hooks` is not a mapping of events, so no hook runs."))
    for event, group in _groups(tree):
        if event not in get_args(HookEvent):
            message = f"Hooks of the event {event[:50]!r} do not run; use PreToolUse or PostToolUse."
            problems.append(HookProblem("hook-event-unknown", message))
            continue
        try:
            matcher = _matcher(group.get("matcher"))
        except ValueError as error:
            shown = str(group.get("matcher"))[:50]
            problems.append(HookProblem("hook-matcher-invalid", MATCHER_INVALID.format(matcher=shown, reason=error)))
            continue
        for item in _items(group.get("hooks")):
            hook = _hook(cast("HookEvent", event), len(hooks), item, matcher)
            if hook is None:
                message = (
                    f"A hook of {event} is not of the type python, prompt or command with its text; it does not run."
                )
                problems.append(HookProblem("hook-invalid", message))
            elif len(hooks) < MAX_HOOKS:
                hooks.append(hook)
            else:
                problems.append(HookProblem("hooks-too-many", f"Only the first {MAX_HOOKS} hooks of the skill run."))
    return hooks, list(dict.fromkeys(problems))


def _groups(tree: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(tree, Mapping):
        for event, groups in tree.items():
            yield from ((str(event), group) for group in _items(groups))


def _items(value: object) -> list[Mapping[str, Any]]:
    found = value if isinstance(value, list | tuple) else [value]
    return [item for item in found if isinstance(item, Mapping)]


def _hook(event: HookEvent, position: int, item: Mapping[str, Any], matcher: re.Pattern[str] | None) -> Hook | None:
    kind = item.get("type")
    if not isinstance(kind, str) or kind not in _VALUE_KEY:
        return None
    value = item.get(_VALUE_KEY[kind])
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        return None
    if kind == "command" and len(value) > MAX_COMMAND_CHARACTERS:
        return None
    value = value[:MAX_PROMPT_CHARACTERS] if kind == "prompt" else value
    once = str(item.get("once", "")).strip().casefold() in _TRUE
    return Hook(event, position, kind, value, matcher, once=once, timeout=_timeout(item.get("timeout")))


def _timeout(value: object) -> int:
    text = str(value).strip()
    seconds = int(float(text)) if re.fullmatch(r"[0-9]{1,6}(?:\.[0-9]{1,6})?", text) else DEFAULT_TIMEOUT
    return min(max(seconds, 1), MAX_TIMEOUT)


def _matcher(value: object) -> re.Pattern[str] | None:
    """Return a matcher, bounded in its work.

    Raises:
        ValueError: If it is not a regular expression, or too complex a one.
    """
    text = "" if value is None else value
    if not isinstance(text, str):
        raise ValueError("it is not text")  # noqa: TRY004 - one kind of failure
    if text in {"", "*"}:
        return None
    if len(text) > MAX_MATCHER_CHARACTERS or not _is_bounded(text):
        raise ValueError("it is too complex")
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"it is not a regular expression: {error}") from None


def _is_bounded(text: str) -> bool:
    """Whether matching a name takes little work: few repetitions and choices per alternative, no repeated groups."""
    depth = repeats = choices = 0
    closed = False
    for piece in _PIECE.finditer(text):
        if piece["reference"] or (piece["repeat"] and (closed or text[piece.start() - 1 : piece.start()] == "(")):
            return False
        depth += bool(piece["open"]) - bool(piece["close"])
        if piece["bar"] and depth == 0:
            repeats = choices = 0
        choices += bool(piece["bar"]) and depth > 0
        repeats += bool(piece["repeat"])
        if repeats > _MAX_REPEATS or choices > _MAX_CHOICES:
            return False
        closed = bool(piece["close"])
    return True
