"""`InlineBackend` reads as deepagents' own file system backend does, and refuses every write."""

import asyncio
import dataclasses
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deepagents.backends import BackendProtocol, CompositeBackend

from deepskills import InlineBackend, InlineSkill
from support import Mode, both_modes, disk, write_files

FILES: dict[str, str | bytes] = {
    "scripts/run.py": "import sys\nprint(sys.argv)\n",
    "scripts/deep/er/tool.sh": "echo TODO\n",
    "references/guide.md": "".join(f"line {n}\n" for n in range(50)),
    "references/no-newline.md": "first\nTODO last",
    "assets/empty.txt": "",
    "assets/data.bin": b"\x00\x01\xff\xfe",
    "assets/picture.png": b"\x89PNG\r\n\x1a\n\x00",
    "assets/report.pdf": b"%PDF-1.4 only text inside",
    "assets/chart.svg": "<svg/>",
    "assets/code.ts": "const TODO = 1\n",
    "CHECKLIST.md": "- [ ] TODO\n",
    ".hidden": "TODO\n",
    "周报/模板.md": "标题 TODO\n",
}

PATHS = (
    *("/", "", "/one", "/one/", "one", "//one//", "/one/.", "/one/scripts", "/one/scripts/", "/one/scripts/run.py"),
    *("/one/SKILL.md", "/one/missing", "/missing", "/missing/x", "/one/scripts/run.py/x", "/one/scripts/deep/er"),
    *("/one/assets/data.bin", "/one/assets/picture.png", "/one/assets/report.pdf", "/one/assets/chart.svg"),
    *("/one/assets/code.ts", "/one/assets/empty.txt", "/one/周报/模板.md", "/one/.hidden", "/two", "/two/SKILL.md"),
)

PATTERNS = ("*", "*.md", "**/*.md", "*.py", "/*.md", "/one/*.md", "one/**", "**", "[ab]*", "*.{py,sh}", ".*", "模*")


@pytest.fixture
def pair(tmp_path: Path) -> tuple[InlineBackend, BackendProtocol]:
    """The same skills in Python and on disk."""
    skills = [
        InlineSkill("one", "First.", "# One\n\nTODO\n", files=FILES),
        InlineSkill("two", "Second.", lambda: "# Two\n", files={"assets/a.txt": lambda: "made TODO"}),
    ]
    for skill in skills:
        write_files(tmp_path / skill.name, {path: skill.read(path) for path in skill.paths})
    return InlineBackend(skills), disk(tmp_path)


@pytest.fixture(scope="module")
def ask() -> Iterator[Callable[..., Any]]:
    """Ask a backend by the sync or the async form of a method; times and sizes of the disk are left out.

    All async questions are asked on one event loop.
    """

    def asked(mode: Mode, backend: BackendProtocol, method: str, *args: Any, **kwargs: Any) -> Any:
        if mode == "sync":
            answer = getattr(backend, method)(*args, **kwargs)
        else:
            answer = runner.run(getattr(backend, f"a{method}")(*args, **kwargs))
        many = isinstance(answer, list)
        return _without_times([dataclasses.asdict(item) for item in answer] if many else dataclasses.asdict(answer))

    with asyncio.Runner() as runner:
        yield asked


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(v) for key, v in value.items() if key not in {"modified_at", "created_at", "size"}}
    return sorted(map(_without_times, value), key=repr) if isinstance(value, list) else value


@both_modes
def test_listing_and_downloading_answer_as_the_disk_does(
    mode: Mode, ask: Callable[..., Any], pair: tuple[InlineBackend, BackendProtocol]
) -> None:
    """Directories, files, missing paths and files taken for directories give the same entries and error values."""
    inline, files = pair
    for method, argument in (("ls", lambda path: path), ("download_files", lambda path: [path])):
        differing = {
            path: (ours, theirs)
            for path in PATHS
            if (ours := ask(mode, inline, method, argument(path)))
            != (theirs := ask(mode, files, method, argument(path)))
            # The disk says of a path below a file that it is invalid.
            and not (method == "download_files" and path.endswith("run.py/x"))
        }
        assert differing == {}


def test_a_batch_keeps_its_order_and_its_good_files(pair: tuple[InlineBackend, BackendProtocol]) -> None:
    """Answers come in the order of the call; bad paths cost no good ones."""
    inline, _files = pair
    paths = ["/one/CHECKLIST.md", "/nope", "/one", "/one/../two/SKILL.md", "/one/\x00", "/one/CHECKLIST.md"]
    answers = inline.download_files(paths)
    assert [answer.path for answer in answers] == paths
    errors = [answer.error for answer in answers]
    assert errors == [None, "file_not_found", "is_directory", "invalid_path", "invalid_path", None]


@both_modes
def test_reading_answers_as_the_disk_does(
    mode: Mode, ask: Callable[..., Any], pair: tuple[InlineBackend, BackendProtocol]
) -> None:
    """Windows of lines, ends of files, binary files and missing ones read the same."""
    inline, files = pair
    windows = [(0, 2000), (0, 5), (48, 10), (50, 1), (500, 5), (-3, 2), (0, 0), (3, -1)]
    skipped = {"/one/assets/empty.txt", "/one/assets/data.bin"}
    differing = {
        (path, window): (ours, theirs)
        for path in (*PATHS, "/one/references/guide.md", "/one/references/no-newline.md")
        for window in windows
        if path not in skipped
        and (ours := ask(mode, inline, "read", path, *window)) != (theirs := ask(mode, files, "read", path, *window))
    }
    assert differing == {}
    assert ask(mode, inline, "read", "/one/assets/empty.txt")["file_data"] == {"content": "", "encoding": "utf-8"}
    assert ask(mode, inline, "read", "/one/assets/data.bin")["file_data"] == {
        "content": "AAH//g==",
        "encoding": "base64",
    }


@both_modes
def test_searching_answers_as_the_disk_does(
    mode: Mode, ask: Callable[..., Any], pair: tuple[InlineBackend, BackendProtocol]
) -> None:
    """`glob` and `grep` find the same files and lines, below the same paths, and refuse the same patterns."""
    inline, files = pair
    places = [None, "/", "/one", "/one/", "/one/assets", "/missing"]
    globbed = {
        (pattern, place): (ours, theirs)
        for pattern in (*PATTERNS, "../*")
        for place in (*places, "/one/SKILL.md")
        if (ours := ask(mode, inline, "glob", pattern, place)) != (theirs := ask(mode, files, "glob", pattern, place))
    }
    assert globbed == {}
    grepped = {
        (pattern, place, only): (ours, theirs)
        for pattern in ("TODO", "line 4", "nowhere", ".*", "标题")
        for place in places
        for only in (None, "*.md", "assets/*", "../*")
        if (ours := ask(mode, inline, "grep", pattern, place, only)["matches"] or [])
        != (theirs := [m for m in ask(mode, files, "grep", pattern, place, only)["matches"] or [] if _is_searched(m)])
        and [m for m in ours if _is_searched(m)] != theirs
    }
    assert grepped == {}
    assert [match["line"] for match in inline.grep("TODO", "/one/SKILL.md", "*.md").matches or ()] == [7]
    cut = inline.grep("TODO", max_count=2)
    assert (len(cut.matches or []), cut.truncated) == (2, True)
    assert inline.grep("TODO", glob="../*").error


def _is_searched(match: dict[str, Any]) -> bool:
    """Whether both backends search a file: the disk's search may pass over hidden ones."""
    return "/." not in match["path"]


@both_modes
def test_every_write_is_refused_with_a_reason(
    mode: Mode, ask: Callable[..., Any], pair: tuple[InlineBackend, BackendProtocol]
) -> None:
    """Nothing can be created, changed or removed, and the answer says why."""
    inline, _files = pair
    path = "/one/CHECKLIST.md"
    answers = [
        ask(mode, inline, "write", path, "x"),
        ask(mode, inline, "write", "/new/SKILL.md", "x"),
        ask(mode, inline, "edit", path, "TODO", "DONE"),
        ask(mode, inline, "delete", path),
    ]
    assert [answer["error"] for answer in answers if "read-only" not in answer["error"]] == []
    assert ask(mode, inline, "upload_files", [(path, b"x")]) == [{"path": path, "error": "permission_denied"}]
    assert inline.download_files([path])[0].content == b"- [ ] TODO\n"
    assert ask(mode, inline, "ls", "/new")["error"] == "Path '/new': path_not_found"


def test_what_a_caller_does_to_an_answer_changes_nothing(pair: tuple[InlineBackend, BackendProtocol]) -> None:
    """Entries are the caller's own."""
    inline, _files = pair
    for entries in (inline.ls("/").entries, inline.glob("*").matches):
        assert entries
        entries[0]["path"] = "/elsewhere"
        entries.clear()
    assert [entry["path"] for entry in inline.ls("/").entries or ()] == ["/one/", "/two/"]
    assert len(inline.glob("*.sh").matches or ()) == 1


def test_a_function_that_fails_is_an_error_of_its_file_alone(caplog: pytest.LogCaptureFixture) -> None:
    """A failing function is told as such, never as a missing file, and the other files are read."""

    def absent() -> str:
        raise FileNotFoundError(2, "No such file or directory", "/data/notes.md")

    def broken() -> str:
        raise ValueError("the notes are closed")

    def exits() -> str:
        sys.exit(1)

    wrong: Any = lambda: 42  # noqa: E731 - one of a row of functions
    skill = InlineSkill(
        "notes",
        "Takes notes.",
        absent,
        files={"a.md": broken, "b.md": wrong, "c.md": lambda: "\ud800", "d.md": lambda: "fine", "e.md": exits},
    )
    backend = CompositeBackend(default=InlineBackend([skill]), routes={})
    with caplog.at_level(logging.WARNING, "deepskills"):
        answers = backend.download_files(
            [f"/notes/{name}" for name in ("SKILL.md", "a.md", "b.md", "c.md", "d.md", "e.md")]
        )
    errors = [answer.error or "" for answer in answers]
    assert "SKILL.md failed" in errors[0]
    assert "not_found" not in errors[0]
    assert "ValueError: the notes are closed" in errors[1]
    assert "returned int" in errors[2]
    assert "UTF-8" in errors[3]
    assert answers[4].content == b"fine"
    assert "SystemExit: 1" in errors[5]
    assert "No such file or directory" in caplog.text
    assert "closed" in (backend.read("/notes/a.md").error or "")
    assert [match["path"] for match in backend.grep("fine").matches or ()] == ["/notes/d.md"]
