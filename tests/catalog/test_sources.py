"""Sources: labels as deepagents derives them, entries that are refused, and what lies under a source."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from deepagents.backends import StateBackend
from deepagents.middleware.skills import SkillsMiddleware as DeepAgentsSkillsMiddleware

from deepskills import SkillsMiddleware, SkillSource
from deepskills._io.plan import lies_under, parent, tidy
from deepskills._providers.sources import Source, distinct, parse_sources
from support import Conversation, Mode, both_modes, disk, load, skill_md, write_files

LABELLED: list[SkillSource] = [
    "/skills/user/",
    "/skills/user",
    "/skills/project//",
    "/skills",
    "/skills/",
    "skills",
    "./skills",
    "../skills",
    "/",
    "//",
    "",
    ".",
    "..",
    "/home/me/.claude/skills",
    "/home/me/.claude/Skills/",
    "~/.agents/skills",
    "/repo/.deep-agents_two/skills",
    "/repo/...odd/skills",
    "/a/./skills",
    "/lib/built_in_skills",
    "/lib/BUILT_IN_SKILLS/",
    "/lib/built_in_skills/skills",
    "C:\\Users\\me\\.claude\\skills",
    "C:\\Users\\me\\tools\\",
    "/skills/MIXED-case_name",
    "/skills/éclair",
    "/技能/周报",
    "/技能/skills",
    "/with space/my skills",
    "/with\nnewline/skills",
    ("/repo/.claude/skills", "Project Claude"),
    ("/anything", ""),
    ("", "Root"),
]


class Layer(StrEnum):
    TEAM = "Team"
    BASE = "/one"


@pytest.mark.parametrize("source", LABELLED, ids=repr)
def test_labels_and_paths_are_those_of_deepagents(source: str | tuple[str, str]) -> None:
    """A source is shown by the label, and kept by the path, that deepagents' own class gives it."""
    ours = SkillsMiddleware(backend=StateBackend(), sources=[source])
    theirs = DeepAgentsSkillsMiddleware[Any, Any](backend=StateBackend(), sources=[source])
    assert ours.source_labels == theirs.source_labels
    assert ours.sources == theirs.sources


def test_labels_may_be_any_text() -> None:
    """A pair whose parts are kinds of text, such as an enumeration's members, is taken as deepagents takes it."""
    middleware = SkillsMiddleware(backend=StateBackend(), sources=[("/skills/team", Layer.TEAM)])
    assert middleware.source_labels == ["Team"]


@pytest.mark.parametrize("sources", [(), [], lambda _runtime: ["/skills"]], ids=["tuple", "list", "callable"])
def test_sources_are_lists_that_can_be_iterated(sources: Sequence[SkillSource] | Callable[[Any], list[str]]) -> None:
    """Paths and labels are always lists, empty where a function gives the sources."""
    middleware = SkillsMiddleware(backend=StateBackend(), sources=sources)
    assert middleware.sources == []
    assert middleware.source_labels == []


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(("/a",), id="pair-too-short"),
        pytest.param(("/a", "A", "B"), id="pair-too-long"),
        pytest.param((), id="pair-empty"),
        pytest.param(("/a", None), id="label-missing"),
        pytest.param((None, "A"), id="path-missing"),
        pytest.param((1, "A"), id="path-a-number"),
        pytest.param(["/a", "A"], id="list-for-a-pair"),
        pytest.param({"/a": "A"}, id="mapping"),
        pytest.param(Path("/a"), id="path-object"),
        pytest.param(b"/a", id="bytes"),
        pytest.param(None, id="none"),
        pytest.param(7, id="number"),
    ],
)
def test_an_entry_that_is_no_source_is_refused(entry: Any) -> None:
    """What is neither a path nor a pair of texts is a `TypeError` that shows it, at once and not in a run."""
    with pytest.raises(TypeError) as caught:
        SkillsMiddleware(backend=StateBackend(), sources=["/skills", entry])
    assert repr(entry) in str(caught.value)


def test_a_path_object_is_answered_with_its_text() -> None:
    """A `Path` among the sources is refused with the text to write, and so is one outside of a list."""
    with pytest.raises(TypeError, match="; write 'library/skills'"):
        SkillsMiddleware(backend=StateBackend(), sources=[PurePosixPath("library/skills")])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="pass a list"):
        SkillsMiddleware(backend=StateBackend(), sources=PurePosixPath("skills"))  # type: ignore[arg-type]


@both_modes
def test_a_source_that_is_a_file_says_what_to_name(mode: Mode, tmp_path: Path) -> None:
    """The path of a `SKILL.md` among the sources is answered with the directory to name instead."""
    write_files(tmp_path, {"skills/alpha/SKILL.md": skill_md("alpha")})
    talk = Conversation(mode, SkillsMiddleware(backend=disk(tmp_path), sources=["/skills/alpha/SKILL.md"]))
    talk.say()
    [found] = talk.state["skills_problems"]
    assert found["code"] == "source-failed"
    assert "name the one that holds the file" in found["message"]


@pytest.mark.parametrize("sources", ["/skills", ""], ids=["path", "empty"])
def test_a_single_path_for_a_sequence_is_refused(sources: str) -> None:
    """A path given in the place of a list is not taken letter by letter."""
    with pytest.raises(TypeError, match="wrap it in a list"):
        SkillsMiddleware(backend=StateBackend(), sources=sources)


@pytest.mark.parametrize("sources", [None, 7], ids=repr)
def test_no_sequence_at_all_is_refused(sources: Any) -> None:
    """Something that is no list of sources is a `TypeError` that shows it."""
    with pytest.raises(TypeError, match=f"sources must be a sequence.* got {sources}; pass a list"):
        SkillsMiddleware(backend=StateBackend(), sources=sources)


@pytest.mark.parametrize(
    ("path", "directory", "inside"),
    [
        pytest.param("/skills/a/SKILL.md", "/skills", True, id="inside"),
        pytest.param("/skills/a/SKILL.md", "/skills/", True, id="slash-at-the-end"),
        pytest.param("/skills/a/SKILL.md", "/skills//", True, id="slashes-at-the-end"),
        pytest.param("/skills/a/SKILL.md", "\\skills", True, id="backslash-in-the-source"),
        pytest.param("/skills/a/b/c/SKILL.md", "/skills", True, id="deep-inside"),
        pytest.param("skills/a/SKILL.md", "skills", True, id="both-relative"),
        pytest.param("/a/SKILL.md", "/", True, id="under-the-root"),
        pytest.param("/skills/..a/b..c/...", "/skills", True, id="names-with-dots"),
        pytest.param("/repo/app/../skills/a/SKILL.md", "/repo/app/../skills", True, id="source-that-climbs"),
        pytest.param("/skills", "/skills", False, id="the-directory-itself"),
        pytest.param("/skills-evil/a/SKILL.md", "/skills", False, id="neighbour-with-the-same-start"),
        pytest.param("/skillsa", "/skills", False, id="longer-name"),
        pytest.param("/etc/passwd", "/skills", False, id="elsewhere"),
        pytest.param("/Skills/a/SKILL.md", "/skills", False, id="other-case"),
        pytest.param("skills/a/SKILL.md", "/skills", False, id="relative-path"),
        pytest.param("/skills/a/SKILL.md", "skills", False, id="relative-source"),
        pytest.param("/skills/../etc/passwd", "/skills", False, id="climbs-out"),
        pytest.param("/skills/a/../../etc/passwd", "/skills", False, id="climbs-out-later"),
        pytest.param("/skills/a/..", "/skills", False, id="ends-climbing"),
        pytest.param("/../etc/passwd", "/", False, id="climbs-above-the-root"),
        pytest.param("/skills/..\\..\\etc\\passwd", "/skills", False, id="climbs-by-backslashes"),
        pytest.param("/repo/app/../skills/../secret", "/repo/app/../skills", False, id="source-and-path-climb"),
        pytest.param("", "/skills", False, id="no-path"),
        pytest.param("", "/", False, id="no-path-under-the-root"),
        pytest.param("\n/skills/a", "/skills", False, id="newline-first"),
    ],
)
def test_only_what_lies_inside_a_source_lies_under_it(path: str, directory: str, *, inside: bool) -> None:
    """A path counts as a source's only if it is inside it and nothing in it climbs."""
    assert lies_under(path, directory) is inside


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/a/b/", "/a/b"),
        ("/a/b//", "/a/b"),
        ("/a", "/a"),
        ("/", "/"),
        ("", "/"),
        ("\\a\\b\\", "/a/b"),
        ("a", "a"),
    ],
)
def test_a_directory_has_one_spelling(path: str, expected: str) -> None:
    """Slashes at the end make no other directory."""
    assert tidy(path) == expected


@pytest.mark.parametrize(("path", "expected"), [("/a/b", "/a"), ("/a", "/"), ("a/b", "a"), ("/a/b/SKILL.md", "/a/b")])
def test_a_path_lies_in_its_parent(path: str, expected: str) -> None:
    """The parent is the path without its last part."""
    assert parent(path) == expected


def test_a_source_named_twice_counts_once_where_it_stands_last() -> None:
    """Equal paths are one source, with the priority and the label of the last."""
    first, other, last = parse_sources([("/a", "First"), "/b", ("/a/", "Last")])
    assert distinct([first, other, last]) == [other, last]
    assert distinct([]) == []
    assert last == Source("/a/", "Last")


class Text(str):
    """A path of a user's own kind."""

    __slots__ = ()


@both_modes
@pytest.mark.parametrize(
    "sources",
    [[Layer.BASE], [Text("/one")], [("/one", Text("Label"))], lambda _runtime: [Layer.BASE]],
    ids=["enum", "subclass", "label", "function"],
)
def test_skills_of_a_source_that_is_a_kind_of_text_can_be_loaded(mode: Mode, tmp_path: Path, sources: Any) -> None:
    """A member of an enumeration of paths, or another kind of text, is a path like any other."""
    write_files(tmp_path, {"one/alpha/SKILL.md": skill_md("alpha")})
    conversation = Conversation(mode, SkillsMiddleware(backend=disk(tmp_path), sources=sources))

    [answer] = conversation.call(load("alpha"))

    assert answer.status == "success"
    assert conversation.loaded == ["alpha"]
    [skill] = conversation.state["skills_metadata"]
    assert type(skill["path"]) is str, "checkpointers take plain text"
