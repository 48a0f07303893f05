"""Skills written in Python: what breaks the rules raises when it is made, and what is made reads back as given."""

import functools
import unicodedata
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import pytest

from deepskills import InlineBackend, InlineSkill, SkillFormatError, read_skill

HOSTILE_PATHS = (
    *("../x", "scripts/../../x", "/etc/passwd", "~/x", "scripts//x", "./x", "scripts/.", "", " ", "C:/x", "a\\b"),
    *("scripts/%2e%2e/x", "scripts/\x00", "a\nb", "scripts/x\u202e", "scripts/\uff0e\uff0e/x", "x/", "scripts/x "),
    *("SKILL.md", "skill.md", "SKILL.md/x", "x" * 256, "\ud800"),
)

HOSTILE_NAMES = ("", "UPPER", "a b", "a--b", "-a", "a-", "a/b", "../a", "a\x00", "a\n", "x" * 65, "\u202ea", ".", "..")

Form: TypeAlias = Literal["NFC", "NFD"]
FORMS: tuple[Form, Form] = ("NFC", "NFD")


class Callback:
    """A callable object that takes nothing."""

    def __call__(self) -> str:
        return "from an object"


def make(**given: Any) -> InlineSkill:
    return InlineSkill(**{"name": "a-skill", "description": "Does a thing.", "body": "Do it.\n", **given})


def is_refused(make_it: Callable[[], object]) -> bool:
    try:
        make_it()
    except SkillFormatError as error:
        return bool(str(error))
    return False


def test_paths_that_lead_elsewhere_are_refused_when_the_skill_is_made() -> None:
    """A file's path keeps the rules of paths into a skill, and never takes the place of `SKILL.md`."""
    taken = [path for path in HOSTILE_PATHS if not is_refused(functools.partial(make, files={path: "x"}))]
    assert taken == []


def test_names_and_values_that_break_the_format_are_refused_when_the_skill_is_made() -> None:
    """Nothing that discovery would complain about can be made, and no value of the wrong kind."""
    hostile: dict[str, Callable[[], object]] = {
        **{f"name {name!r}": functools.partial(make, name=name) for name in HOSTILE_NAMES},
        "name is bytes": lambda: make(name=b"a"),
        "no description": lambda: make(description=""),
        "description too long": lambda: make(description="x" * 1025),
        "body is bytes": lambda: make(body=b"x"),
        "body is nothing": lambda: make(body=None),
        "body holds a surrogate": lambda: make(body="\ud800"),
        "body takes a parameter": lambda: make(body=lambda x: x),
        "body too large": lambda: make(body="x" * (10 * 1024 * 1024)),
        "file is a number": lambda: make(files={"scripts/x": 1}),
        "file is async": lambda: make(files={"scripts/x": _async_text}),
        "file takes a parameter": lambda: make(files={"scripts/x": len}),
        "file holds a surrogate": lambda: make(files={"scripts/x": "\ud800"}),
        "path is a number": lambda: make(files={1: "x"}),
        "file and directory": lambda: make(files={"scripts": "x", "scripts/a.py": "x"}),
        "file and directory, deep": lambda: make(files={"a/b/c/d": "x", "a/b": "x"}),
        "same path composed twice": lambda: make(files={"caf\u00e9.md": "x", "cafe\u0301.md": "x"}),
        "frontmatter value is an object": lambda: make(license=object()),
        "frontmatter holds itself": lambda: make(hooks=_circle()),
        "frontmatter key twice": lambda: make(**{"allowed_tools": "a", "allowed-tools": "b"}),
        "two skills of one name": lambda: InlineBackend([make(), make()]),
        "one name in two spellings": lambda: InlineBackend([make(name="caf\u00e9"), make(name="cafe\u0301")]),
        "not a skill": lambda: InlineBackend(["a-skill"]),  # type: ignore[list-item]
    }
    assert [what for what, make_it in hostile.items() if not is_refused(make_it)] == []


def _circle() -> list[object]:
    circle: list[object] = []
    circle.append(circle)
    return circle


async def _async_text() -> str:
    return "x"


def test_the_whole_frontmatter_reads_back() -> None:
    """Keyword arguments become frontmatter: hyphens for underscores, lists and nested values as they are."""
    skill = make(
        license="MIT",
        compatibility="Needs network.",
        metadata={"include_tools": "search", "version": 1.1},
        allowed_tools=["Bash(git add:*)", "read_file"],
        disallowed_tools=["write_file"],
        disable_model_invocation=True,
        user_invocable=False,
        argument_hint="[file] [format]",
        arguments=["file", "format"],
        when_to_use="When: a file is there.",
        model="small",
        context="fork",
        agent="reviewer",
        hooks={"PreToolUse": [{"matcher": "execute|write.*", "hooks": [{"type": "prompt", "prompt": "Take care."}]}]},
    )
    reading = read_skill(skill.read("SKILL.md"), path="/a-skill/SKILL.md")
    assert reading.problems == []
    assert reading.body == "Do it.\n"
    assert reading.frontmatter == {
        "name": "a-skill",
        "description": "Does a thing.",
        "license": "MIT",
        "compatibility": "Needs network.",
        "metadata": {"include_tools": "search", "version": "1.1"},
        "allowed-tools": ["Bash(git add:*)", "read_file"],
        "disallowed-tools": ["write_file"],
        "disable-model-invocation": "true",
        "user-invocable": "false",
        "argument-hint": "[file] [format]",
        "arguments": ["file", "format"],
        "when_to_use": "When: a file is there.",
        "model": "small",
        "context": "fork",
        "agent": "reviewer",
        "hooks": {
            "PreToolUse": [{"matcher": "execute|write.*", "hooks": [{"type": "prompt", "prompt": "Take care."}]}]
        },
    }


def test_functions_are_called_at_each_read_and_not_before() -> None:
    """Bodies and files made by functions are made when they are read; listing calls nothing."""
    calls: list[str] = []

    def body() -> str:
        calls.append("body")
        return f"Version {len(calls)}.\n"

    def content() -> bytes:
        calls.append("file")
        return bytes([0, 255])

    backend = InlineBackend([make(body=body, files={"assets/x.bin": content, "assets/y.txt": Callback()})])
    backend.ls("/a-skill")
    backend.ls("/a-skill/assets")
    backend.glob("*")
    assert calls == []
    texts = [backend.download_files(["/a-skill/SKILL.md"])[0].content or b"" for _ in range(2)]
    assert [text.rpartition(b"---\n")[2] for text in texts] == [b"Version 1.\n", b"Version 2.\n"]
    assert backend.download_files(["/a-skill/assets/x.bin"])[0].content == b"\x00\xff"
    assert backend.download_files(["/a-skill/assets/y.txt"])[0].content == b"from an object"
    assert calls == ["body", "body", "file"]


def test_a_body_cannot_end_its_frontmatter_early_or_start_another() -> None:
    """Fences in a body that a function returns stay in the body, whatever it returns."""
    for body in ("---\nname: other\n---\n", "", "\ufeff---", "\r\n---\r\n", "x" * 100_000):
        skill = make(body=lambda body=body: body)
        reading = read_skill(skill.read("SKILL.md"), path="/a-skill/SKILL.md")
        assert reading.metadata is not None
        assert (reading.metadata["name"], reading.body) == ("a-skill", body)


@pytest.mark.parametrize("form", FORMS)
def test_names_are_found_in_either_spelling_of_their_accents(form: Form) -> None:
    """A skill and its files have one name each, however accents were composed where it was made or asked for."""
    skill = make(name=unicodedata.normalize(form, "résumé"), files={unicodedata.normalize(form, "assets/été.md"): "x"})
    backend = InlineBackend([skill])
    for asked in FORMS:
        path = unicodedata.normalize(asked, "/résumé/assets/été.md")
        answer = backend.download_files([path])[0]
        assert (answer.path, answer.content) == (path, b"x")
        assert backend.ls(path.rpartition("/")[0]).entries == [
            {"path": "/résumé/assets/été.md", "is_dir": False, "size": 1}
        ]
