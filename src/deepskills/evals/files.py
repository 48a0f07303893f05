"""Reads the files with which an author measures a skill: `evals/triggers.json` and `evals/evals.json`.

Nothing is trusted: sizes are bounded, files for tasks must be inside the skill, and every mistake becomes a problem
that names its place. Valid entries are still used.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from deepskills import SkillProblem, SkillsError, read_skill

TRIGGERS = "evals/triggers.json"
TASKS = "evals/evals.json"

_EXAMPLES = {
    TRIGGERS: ("no request is measured", '[{"query": "a request of a user", "should_trigger": true}]'),
    TASKS: ("no task is measured", '{"evals": [{"id": 1, "prompt": "a task", "expectations": ["what must be true"]}]}'),
}
"""What is not measured without each file, and what to write into it."""

MAX_FILE_BYTES = 2_000_000
"""How large each of the two files, and each file of a task, may be."""

MAX_ENTRIES = 1_000
"""How many queries, or tasks, are read."""

MAX_TEXT_CHARACTERS = 20_000
"""How long a query, a prompt or an expectation may be."""


class EvalError(SkillsError):
    """A skill cannot be measured; the message says why and what to do."""


@dataclass(frozen=True)
class TriggerQuery:
    """A request, and whether the skill is the right one for it."""

    query: str
    should_trigger: bool


@dataclass(frozen=True)
class EvalTask:
    """A task that the skill should help with."""

    id: str
    prompt: str
    expected_output: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """The files that the agent starts with, by path relative to its workspace."""

    expectations: tuple[str, ...] = ()
    """What must be true of the result, each judged on its own."""


@dataclass(frozen=True)
class SkillEvals:
    """A skill and how to measure it."""

    name: str
    description: str
    directory: Path
    text: str
    """The whole `SKILL.md`."""

    triggers: tuple[TriggerQuery, ...] = ()
    tasks: tuple[EvalTask, ...] = ()
    problems: tuple[SkillProblem, ...] = ()
    """Problems of the two files, each with its place."""

    @property
    def is_broken(self) -> bool:
        """Whether a part of the files could not be used."""
        return any(problem["severity"] == "error" for problem in self.problems)


def read_evals(skill: str | os.PathLike[str]) -> SkillEvals:
    """Return a skill's queries and tasks, and what is wrong with them.

    Raises:
        EvalError: If there is no usable skill in that directory.
    """
    directory = Path(skill).expanduser().absolute()
    if directory.name == "SKILL.md" and directory.is_file():
        directory = directory.parent
    file = directory / "SKILL.md"
    try:
        content = file.read_bytes()
    except OSError as error:
        raise EvalError(f"{file}: cannot be read ({error.strerror}). Name the directory of a skill.") from error
    reading = read_skill(content, path=file.as_posix())
    if reading.metadata is None:
        reasons = "; ".join(problem["message"] for problem in reading.problems)
        raise EvalError(f"{file}: {reasons}")
    reader = _Reader(directory, reading.metadata["name"])
    triggers, tasks = tuple(reader.triggers()), tuple(reader.tasks())
    return SkillEvals(
        name=reading.metadata["name"],
        description=reading.metadata["description"],
        directory=directory,
        text=content.decode(errors="replace"),
        triggers=triggers,
        tasks=tasks,
        problems=tuple(reader.problems),
    )


class _Reader:
    """Reads the two files of one skill and collects problems."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name
        self.problems: list[SkillProblem] = []

    def triggers(self) -> Iterator[TriggerQuery]:
        """Read the queries."""
        entries = self._json(TRIGGERS)
        if entries is None:
            return
        if not isinstance(entries, list):
            self._wrong(TRIGGERS, "", f"must be a list of queries, not {_kind(entries)}")
            return
        for place, entry in self._enumerate(TRIGGERS, "", entries):
            if not isinstance(entry, dict):
                self._wrong(TRIGGERS, place, f'must be an object like {{"query": "...", ...}}, not {_kind(entry)}')
                continue
            query = self._text(TRIGGERS, f"{place}.query", entry.get("query"))
            wanted = entry.get("should_trigger")
            if not isinstance(wanted, bool):
                self._wrong(TRIGGERS, f"{place}.should_trigger", f"must be true or false, not {_kind(wanted)}")
            elif query is not None:
                yield TriggerQuery(query, wanted)

    def tasks(self) -> Iterator[EvalTask]:
        """Read the tasks."""
        content = self._json(TASKS)
        if content is None:
            return
        entries = content.get("evals") if isinstance(content, dict) else None
        if not isinstance(entries, list):
            self._wrong(TASKS, ".evals", 'must be a list of tasks: {"skill_name": "...", "evals": [...]}')
            return
        named = content.get("skill_name")
        if named is not None and named != self._name:
            self._note(TASKS, ".skill_name", f"is {named!r}, but the skill is {self._name!r}; write that name")
        seen: set[str] = set()
        for place, entry in self._enumerate(TASKS, ".evals", entries):
            task = self._task(place, entry)
            if task is not None and task.id in seen:
                self._wrong(TASKS, f"{place}.id", f"is {task.id!r}, as another task's; give each its own")
            elif task is not None:
                seen.add(task.id)
                yield task

    def _task(self, place: str, entry: object) -> EvalTask | None:
        if not isinstance(entry, dict):
            self._wrong(TASKS, place, f"must be an object with a prompt, not {_kind(entry)}")
            return None
        prompt = self._text(TASKS, f"{place}.prompt", entry.get("prompt"))
        number = entry.get("id")
        # `True` is an `int` to Python.
        if isinstance(number, bool) or not isinstance(number, int | str) or not str(number).strip():
            self._wrong(TASKS, f"{place}.id", f"must be a number or a text, not {_kind(number)}")
            return None
        expected = entry.get("expected_output", "")
        if not isinstance(expected, str):
            self._wrong(TASKS, f"{place}.expected_output", f"must be text, not {_kind(expected)}")
            expected = ""
        expectations = self._expectations(place, entry)
        if prompt is None or expectations is None:
            return None
        if not expectations and expected.strip():
            expectations = (f"The result is as expected: {expected.strip()}",)
        if not expectations:
            self._wrong(TASKS, place, "has neither expectations nor an expected_output; say what must be true")
            return None
        files = self._files(place, entry.get("files") or [])
        return EvalTask(str(number), prompt, expected[:MAX_TEXT_CHARACTERS], files, expectations)

    def _expectations(self, place: str, entry: Mapping[str, Any]) -> tuple[str, ...] | None:
        """Return what must be true of a result; other tools write `assertions`, as texts or as objects with a text."""
        key = "expectations" if "expectations" in entry else "assertions"
        given = entry.get(key) or []
        if not isinstance(given, list):
            self._wrong(TASKS, f"{place}.{key}", f"must be a list of texts, not {_kind(given)}")
            return None
        found = []
        for inner, item in self._enumerate(TASKS, f"{place}.{key}", given):
            text = item.get("text", item.get("description")) if isinstance(item, dict) else item
            checked = self._text(TASKS, inner, text)
            if checked is not None:
                found.append(checked)
        return tuple(found)

    def _files(self, place: str, given: object) -> dict[str, bytes]:
        if not isinstance(given, list):
            self._wrong(TASKS, f"{place}.files", f"must be a list of paths, not {_kind(given)}")
            return {}
        found = {}
        for inner, item in self._enumerate(TASKS, f"{place}.files", given):
            if not isinstance(item, str) or not _is_inside(item):
                self._wrong(TASKS, inner, f"must be a path inside the skill, such as evals/files/a.csv, not {item!r}")
                continue
            file = self._directory / item
            try:
                # A link may lead to anything on the author's machine, or on yours.
                if not file.resolve().is_relative_to(self._directory.resolve()):
                    raise OSError(0, "it leads out of the skill")  # noqa: TRY301 - reported like the rest
                if file.stat().st_size > MAX_FILE_BYTES:
                    raise OSError(0, f"it is larger than {MAX_FILE_BYTES:,} bytes")  # noqa: TRY301 - reported like the rest
                found[PurePosixPath(item).name] = file.read_bytes()
            except (OSError, ValueError, RuntimeError) as error:
                self._wrong(TASKS, inner, f"{item} cannot be read: {getattr(error, 'strerror', None) or error}")
        return found

    def _json(self, name: str) -> Any:  # noqa: ANN401 - whatever an author wrote
        """Return the content of a file; `None`, with a problem, if it is missing or broken."""
        file = self._directory / name
        try:
            if file.stat().st_size > MAX_FILE_BYTES:
                self._wrong(name, "", f"is larger than {MAX_FILE_BYTES:,} bytes")
                return None
            # Editors on Windows begin files with a byte order mark, which `json` refuses.
            text = file.read_bytes().decode("utf-8-sig")
        except FileNotFoundError:
            part, example = _EXAMPLES[name]
            self._note(name, "", f"is missing, so {part}. Write it: {example}", code="eval-file-missing")
            return None
        except UnicodeDecodeError as error:
            self._wrong(name, "", f"is not UTF-8 at byte {error.start}; save it as UTF-8")
            return None
        except OSError as error:
            self._wrong(name, "", f"cannot be read: {error.strerror}")
            return None
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            place = f":{error.lineno}:{error.colno}"
            self._wrong(name, place, f"is not JSON: {error.msg}", code="eval-file-broken")
        except (RecursionError, ValueError) as error:
            self._wrong(name, "", f"is not usable JSON: {error}", code="eval-file-broken")
        return None

    def _enumerate(self, name: str, place: str, entries: list[Any]) -> Iterator[tuple[str, Any]]:
        for number, entry in enumerate(entries[:MAX_ENTRIES]):
            yield f"{place}[{number}]", entry
        if len(entries) > MAX_ENTRIES:
            self._note(name, place, f"has {len(entries):,} entries; only the first {MAX_ENTRIES:,} are used")

    def _text(self, name: str, place: str, value: object) -> str | None:
        if not isinstance(value, str) or not value.strip():
            self._wrong(name, place, f"must be text, not {_kind(value)}")
            return None
        if len(value) > MAX_TEXT_CHARACTERS:
            self._wrong(name, place, f"has {len(value):,} characters; at most {MAX_TEXT_CHARACTERS:,} are read")
            return None
        return value.encode(errors="replace").decode()

    def _wrong(self, name: str, place: str, message: str, code: str = "eval-entry-invalid") -> None:
        path = f"{(self._directory / name).as_posix()}{place}"
        self.problems.append(SkillProblem(path=path, code=code, severity="error", message=message))

    def _note(self, name: str, place: str, message: str, code: str = "eval-entry-odd") -> None:
        path = f"{(self._directory / name).as_posix()}{place}"
        self.problems.append(SkillProblem(path=path, code=code, severity="warning", message=message))


def _is_inside(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\\" not in path and "\0" not in path


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "an empty text", bool: "true or false", type(None): "nothing"}
    return names.get(type(value), "a number")
