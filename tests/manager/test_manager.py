"""`SkillsManager`: every method and its async twin, on directories and backends as people have them."""

import asyncio
import inspect
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from deepagents.backends import BackendProtocol, CompositeBackend, FilesystemBackend, StateBackend, StoreBackend
from langchain_core.embeddings import Embeddings
from langgraph.store.memory import InMemoryStore

from deepskills import (
    MAX_SKILL_FILE_SIZE,
    SkillFileNotFoundError,
    SkillFormatError,
    SkillNotFoundError,
    SkillPathError,
    SkillsError,
    SkillsManager,
)
from support import FakeBackend, Mode, both_modes, breaks_off, disk, fails, hangs, skill_md, write_files
from support.tables import LIBRARY, REPORT, ask

NAMES = ["csv-report", "release-notes", "周报"]

CALLS: dict[str, tuple[str, ...]] = {
    "get_skill_content": (),
    "list_skill_assets": (),
    "get_skill_asset": ("references/guide.md",),
    "get_skill_script_path": ("run.py",),
}
"""The methods that take a skill's name, and what they take beside it."""


def refusal(mode: Mode, manager: SkillsManager, kind: type[SkillsError], method: str, *arguments: Any) -> str:
    """Return what the error of a call says, which must be of this kind and no other."""
    with pytest.raises(SkillsError) as caught:
        ask(mode, manager, method, *arguments)
    assert type(caught.value) is kind, (method, arguments)
    return str(caught.value)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Return the library in a directory of the test's own."""
    write_files(tmp_path / "skills", LIBRARY)
    return tmp_path / "skills"


@pytest.fixture(scope="module")
def shared_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the library in a directory that no test changes."""
    root = tmp_path_factory.mktemp("shared") / "skills"
    write_files(root, LIBRARY)
    return root


def store_backend(root: str = "") -> StoreBackend:
    """Return the library in a store, below `root`."""
    backend = StoreBackend(store=InMemoryStore(), namespace=lambda _runtime: ("skills",))
    texts = [(f"{root}/{path}", text.encode()) for path, text in LIBRARY.items() if isinstance(text, str)]
    backend.upload_files(texts)
    return backend


# Every method on every kind of backend.


@pytest.fixture(params=["directory", "virtual", "composite", "store"])
def manager(request: pytest.FixtureRequest, shared_library: Path) -> SkillsManager:
    """Return a manager of the library on one kind of backend."""
    if request.param == "directory":
        return SkillsManager.from_directory(shared_library)
    if request.param == "virtual":
        return SkillsManager(backend=disk(shared_library.parent), sources=["/skills"])
    if request.param == "composite":
        backend = CompositeBackend(default=StateBackend(), routes={"/library/": disk(shared_library.parent)})
        return SkillsManager(backend=backend, sources=["/library/skills"])
    return SkillsManager(backend=store_backend("/skills"), sources=["/skills"])


@both_modes
def test_skills_are_listed(mode: Mode, manager: SkillsManager) -> None:
    """Names, metadata and problems are those of the skills that are there."""
    assert ask(mode, manager, "list_skills") == NAMES
    metadata = ask(mode, manager, "list_metadata")
    assert [skill["name"] for skill in metadata] == NAMES
    assert metadata[0]["description"] == "Summarises a CSV file."
    (problem,) = ask(mode, manager, "list_problems")
    assert (problem["code"], problem["severity"]) == ("description-missing", "error")
    assert problem["path"].endswith("/broken/SKILL.md")


@both_modes
def test_files_of_a_skill_are_given(mode: Mode, manager: SkillsManager) -> None:
    """Content, assets and scripts are found by the skill's name in any case."""
    for name in ("csv-report", "CSV-Report", "Csv-REPORT"):
        assert ask(mode, manager, "get_skill_content", name) == REPORT, name
        assert ask(mode, manager, "get_skill_asset", name, "references/guide.md") == "How to report.", name
        assert ask(mode, manager, "get_skill_asset", name, "references/a/b/c.md") == "Far below.", name
        script = ask(mode, manager, "get_skill_script_path", name, "run.py")
        assert script.endswith("/csv-report/scripts/run.py"), name
        assets = ask(mode, manager, "list_skill_assets", name)
        assert [path for path in assets if not path.endswith(".png")] == [
            "references/a/b/c.md",
            "references/guide.md",
            "scripts/run.py",
        ], name


@both_modes
def test_search_gives_name_and_description(mode: Mode, manager: SkillsManager) -> None:
    """A search gives what fits with its description, and nothing where nothing fits."""
    found = ask(mode, manager, "search_skills", "notes for releases")
    assert found == [{"name": "release-notes", "description": "Writes notes for a release."}]
    assert ask(mode, manager, "search_skills", "整理周报", n=1) == [
        {"name": "周报", "description": "把零散的记录整理成周报。"}
    ]
    assert ask(mode, manager, "search_skills", "xyzzy") == []


@both_modes
def test_unknown_skills_are_told_with_the_nearest(mode: Mode, manager: SkillsManager) -> None:
    """A name that no skill has is a lookup error that gives the closest name and the others."""
    assert issubclass(SkillNotFoundError, LookupError)
    for method, further in CALLS.items():
        said = refusal(mode, manager, SkillNotFoundError, method, "csv-reprot", *further)
        assert "Did you mean `csv-report`?" in said, method
        assert "`release-notes`" in said, method
        assert "`周报`" in said, method


@both_modes
def test_broken_skills_are_told_by_their_problem(mode: Mode, manager: SkillsManager) -> None:
    """A skill whose file is broken is not "not found": the error says what is wrong with which file."""
    for method, further in CALLS.items():
        for name in ("broken", "Broken"):
            said = refusal(mode, manager, SkillFormatError, method, name, *further)
            assert "broken/SKILL.md" in said, (method, name)
            assert "There is no description" in said, (method, name)


@both_modes
def test_missing_files_are_told_with_the_nearest(mode: Mode, manager: SkillsManager) -> None:
    """A good path without a file is a path error of its own kind that gives the nearest file."""
    assert issubclass(SkillFileNotFoundError, SkillPathError)
    for method, path, nearest in (
        ("get_skill_asset", "references/guid.md", "references/guide.md"),
        ("get_skill_script_path", "scripts/runn.py", "scripts/run.py"),
    ):
        said = refusal(mode, manager, SkillFileNotFoundError, method, "csv-report", path)
        assert f"`{path}`" in said
        assert f"`{nearest}`" in said


@both_modes
def test_the_nearest_of_many_files_is_told(mode: Mode, library: Path) -> None:
    """However many files a skill has, the error names the one that was probably meant."""
    write_files(library / "csv-report", {f"assets/{number:03}.txt": "" for number in range(100)})
    with pytest.raises(SkillFileNotFoundError, match=r"Did you mean `references/guide\.md`"):
        ask(mode, SkillsManager.from_directory(library), "get_skill_asset", "csv-report", "references/giude.md")


@both_modes
def test_skills_without_files_say_so(mode: Mode, manager: SkillsManager) -> None:
    """Where a skill has no files at all, that is what the error says."""
    for method, path in (("get_skill_asset", "assets/x.md"), ("get_skill_script_path", "x.py")):
        assert "has no files" in refusal(mode, manager, SkillFileNotFoundError, method, "release-notes", path)
    assert ask(mode, manager, "list_skill_assets", "release-notes") == []


@pytest.mark.parametrize(
    "method", ["list_skills", "list_metadata", "list_problems", "search_skills", "refresh", *CALLS]
)
def test_twins_take_the_same(method: str) -> None:
    """An async twin takes the parameters of its sync method by the same names, with the same defaults."""
    sync, twin = getattr(SkillsManager, method), getattr(SkillsManager, f"a{method}")
    assert inspect.iscoroutinefunction(twin)
    assert inspect.signature(sync) == inspect.signature(twin)


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("list_skills", []),
        ("get_skill_content", ["name"]),
        ("search_skills", ["query", "n"]),
        ("list_skill_assets", ["skill_name"]),
        ("get_skill_asset", ["skill_name", "relative_path"]),
        ("get_skill_script_path", ["skill_name", "script_name"]),
    ],
)
def test_parameters_have_their_names(method: str, parameters: list[str]) -> None:
    """Parameters can be given by the names that are documented."""
    assert list(inspect.signature(getattr(SkillsManager, method)).parameters)[1:] == parameters


def test_every_method_has_a_twin() -> None:
    """Nothing public is for sync callers alone, except what makes a manager."""
    public = {name for name, _ in inspect.getmembers(SkillsManager, inspect.isfunction) if not name.startswith("_")}
    twins = {name for name in public if f"a{name}" in public}
    assert public == twins | {f"a{name}" for name in twins}


# What is not there, or not text.


@both_modes
def test_missing_directories_give_nothing(mode: Mode, tmp_path: Path) -> None:
    """A directory that is not there has no skills; that is not an error."""
    manager = SkillsManager.from_directory(tmp_path / "none")
    assert ask(mode, manager, "list_skills") == []
    assert ask(mode, manager, "list_metadata") == []
    assert ask(mode, manager, "search_skills", "anything") == []
    assert [problem["code"] for problem in ask(mode, manager, "list_problems")] == ["source-missing"]


@both_modes
def test_missing_directories_have_no_skill_of_any_name(mode: Mode, tmp_path: Path) -> None:
    """Asking a missing directory for a skill says that there are none."""
    manager = SkillsManager.from_directory(tmp_path / "none")
    for method, further in CALLS.items():
        assert "There are no skills" in refusal(mode, manager, SkillNotFoundError, method, "demo", *further), method


@both_modes
def test_odd_names_are_not_found(mode: Mode, shared_library: Path) -> None:
    """A name is never taken for a path, and one that no skill can have is simply not found."""
    for name in ("", " ", "\x00", "../csv-report", "csv-report/", "/", "x" * 10_000, "\ud800"):
        for method, further in CALLS.items():
            manager = SkillsManager.from_directory(shared_library)
            said = refusal(mode, manager, SkillNotFoundError, method, name, *further)
            assert len(said) < 1000, (method, name)


BINARY = {
    "image": b"\x89PNG\r\n\x1a\n\x00\x00",
    "nul in text": b"text\x00text",
    "not utf-8": "é".encode("latin-1"),
    "utf-16": "text".encode("utf-16"),
    "cut character": "周".encode()[:2],
}


@both_modes
def test_binary_files_are_told(mode: Mode, library: Path) -> None:
    """A file that is not text is a format error, and its path is still given."""
    manager = SkillsManager.from_directory(library)
    for case, content in BINARY.items():
        write_files(library, {"csv-report/scripts/data.bin": content})
        said = refusal(mode, manager, SkillFormatError, "get_skill_asset", "csv-report", "scripts/data.bin")
        assert "`scripts/data.bin` is not text" in said, case
        path = ask(mode, manager, "get_skill_script_path", "csv-report", "data.bin")
        assert Path(path).read_bytes() == content, case


@both_modes
def test_texts_come_as_they_are(mode: Mode, library: Path) -> None:
    """A text is given whole: any script, any line ends, without a byte order mark, empty too."""
    texts = {"a.md": "é 周 🎉\r\nend", "b.md": "\ufefftext", "c.md": "", "d.md": "x" * 200_000}
    write_files(library, {f"csv-report/assets/{name}": text for name, text in texts.items()})
    manager = SkillsManager.from_directory(library)
    for name, text in texts.items():
        assert ask(mode, manager, "get_skill_asset", "csv-report", f"assets/{name}") == text.removeprefix("\ufeff")


@both_modes
def test_too_large_files_are_told(mode: Mode, library: Path) -> None:
    """The largest file that is read is read, one byte more is a format error."""
    manager = SkillsManager.from_directory(library)
    write_files(library, {"csv-report/assets/big.txt": b"x" * MAX_SKILL_FILE_SIZE})
    assert len(ask(mode, manager, "get_skill_asset", "csv-report", "assets/big.txt")) == MAX_SKILL_FILE_SIZE
    write_files(library, {"csv-report/assets/big.txt": b"x" * (MAX_SKILL_FILE_SIZE + 1)})
    with pytest.raises(SkillFormatError, match="too large"):
        ask(mode, manager, "get_skill_asset", "csv-report", "assets/big.txt")


BROKEN = {
    "no frontmatter": (b"# Only text\n", "no frontmatter"),
    "unclosed": (b"---\nname: bad\ndescription: x\n", "not closed"),
    "no description": (b"---\nname: bad\n---\n", "no description"),
    "not a mapping": (b"---\n- one\n- two\n---\n", "not a mapping"),
    "not text": (b"\x00\xff\xfe\x81", "not text"),
    "empty": (b"", "no frontmatter"),
    "too large": (b"---\ndescription: x\n---\n" + b"x" * MAX_SKILL_FILE_SIZE, "at most"),
}


@both_modes
def test_every_broken_file_says_why(mode: Mode, library: Path) -> None:
    """Whatever is wrong with a skill's file, asking for the skill tells it."""
    for case, (content, reason) in BROKEN.items():
        write_files(library, {"bad/SKILL.md": content})
        manager = SkillsManager.from_directory(library)
        assert reason in refusal(mode, manager, SkillFormatError, "get_skill_content", "bad"), case


@both_modes
def test_a_backend_that_is_down_is_no_empty_one(mode: Mode, tmp_path: Path) -> None:
    """Where no source could be listed, nothing is claimed about which skills there are; problems are still given."""
    manager = SkillsManager(
        backend=FakeBackend(tmp_path, rules={"ls": fails("cannot reach {path}")}), sources=["/team/skills", "/own"]
    )
    for method, arguments in (("list_skills", ()), ("list_metadata", ()), ("search_skills", ("report",))):
        with pytest.raises(
            SkillsError, match=r"`/team/skills` could not be read: .*cannot reach /team/skills; .*again"
        ):
            ask(mode, manager, method, *arguments)
    assert [problem["code"] for problem in ask(mode, manager, "list_problems")] == ["source-failed"] * 2


@both_modes
def test_a_skill_of_a_failed_source_is_not_missing(mode: Mode, library: Path) -> None:
    """A name that was not found while a source failed may be there; one that was found is served."""
    for method, further in CALLS.items():
        manager = SkillsManager(
            backend=FakeBackend(library.parent, rules={"ls": fails("cannot reach {path}", "/team")}),
            sources=["/skills", "/team/skills"],
        )
        assert ask(mode, manager, "list_skills") == NAMES
        for name in ("rare", "team"):
            said = refusal(mode, manager, SkillsError, method, name, *further)
            assert re.search(r"`/team/skills` could not be read: .*; try again", said), (method, name)
        assert ask(mode, manager, method, "csv-report", *further), method


@both_modes
def test_a_search_without_a_hit_claims_nothing_of_a_failed_source(mode: Mode, library: Path) -> None:
    """What was not found while a source failed may be there; what was found is given."""
    manager = SkillsManager(
        backend=FakeBackend(library.parent, rules={"ls": fails("cannot reach {path}", "/team")}),
        sources=["/skills", "/team/skills"],
    )
    with pytest.raises(SkillsError, match=r"Cannot tell .*`/team/skills` could not be read: .*; try again"):
        ask(mode, manager, "search_skills", "xyzzy")
    assert ask(mode, manager, "search_skills", "csv report")[0]["name"] == "csv-report"
    whole = SkillsManager(
        backend=FakeBackend(library.parent, rules={"ls": fails("cannot reach {path}", "/team")}), sources=["/skills"]
    )
    assert ask(mode, whole, "search_skills", "xyzzy") == []


@both_modes
def test_a_failed_source_hides_no_hint(mode: Mode, library: Path) -> None:
    """While a source is down, a slip is still told with the nearest name of the others."""
    manager = SkillsManager(
        backend=FakeBackend(library.parent, rules={"ls": fails("cannot reach {path}", "/team")}),
        sources=["/skills", "/team"],
    )
    with pytest.raises(SkillsError, match="Did you mean `csv-report`"):
        ask(mode, manager, "get_skill_content", "csv-reprot")


@both_modes
def test_many_assets_hide_no_scripts(mode: Mode, library: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of more files than are listed, scripts and references come first, also far below; the log tells of the cut."""
    write_files(library / "csv-report", {f"assets/{i:03}.txt": "" for i in range(600)})
    listed = ask(mode, SkillsManager.from_directory(library), "list_skill_assets", "csv-report")
    assert len(listed) == 500
    assert listed == sorted(listed)
    assert {"scripts/run.py", "references/guide.md", "references/a/b/c.md"} <= set(listed)
    assert [(r.levelname, "500" in r.getMessage()) for r in caplog.records if r.name == "deepskills"] == [
        ("WARNING", True)
    ]


BOUNDS = {
    "as many as are listed": (500, {}, []),
    "one more": (501, {}, ["Only 500 files are listed; there are more."]),
    "an empty directory beside them": (500, {"assets/empty/.git/x": ""}, []),
    "as deep as is listed": (0, {"assets/" + "n/" * 63 + "deep.md": ""}, []),
    "too deep": (0, {"assets/" + "n/" * 64 + "deep.md": ""}, ["Directories deeper than 64 levels are not listed"]),
}


@both_modes
def test_the_log_claims_no_more_than_is_known(mode: Mode, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What was not listed is told; that it has files is claimed only where they were seen."""
    for number, (case, (scripts, others, told)) in enumerate(BOUNDS.items()):
        root = tmp_path / str(number)
        write_files(root / "own", {"SKILL.md": skill_md("own"), **{f"scripts/{i:03}.py": "" for i in range(scripts)}})
        write_files(root / "own", others)
        caplog.clear()
        ask(mode, SkillsManager.from_directory(root), "list_skill_assets", "own")
        messages = [record.getMessage() for record in caplog.records if record.name == "deepskills"]
        assert len(messages) == len(told), (case, messages)
        assert all(words in message for words, message in zip(told, messages, strict=True)), (case, messages)


@both_modes
def test_partial_listings_are_told(mode: Mode, library: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where the backend gave only part of a directory, that part is given and the log says so."""
    manager = SkillsManager(
        backend=FakeBackend(library.parent, changes={"ls": breaks_off("/references")}), sources=["/skills"]
    )
    assert "references/guide.md" in ask(mode, manager, "list_skill_assets", "csv-report")
    assert [(r.levelname, "Listing aborted" in r.getMessage()) for r in caplog.records if r.name == "deepskills"] == [
        ("WARNING", True)
    ]


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"max_depth": 0}, ValueError, "max_depth"),
    ({"max_depth": "a"}, ValueError, "max_depth"),
    ({"max_depth": True}, ValueError, "max_depth"),
    ({"backend_timeout": -1}, ValueError, "backend_timeout"),
    ({"backend_timeout": 0}, ValueError, "backend_timeout"),
    ({"backend": 5}, TypeError, "backend"),
    ({"backend": FilesystemBackend}, TypeError, "backend"),
    ({"backend": lambda _runtime: None}, TypeError, "backend"),
    ({"sources": "/skills"}, TypeError, "sources"),
    ({"max_age": -1}, ValueError, "max_age"),
    ({"max_age": float("nan")}, ValueError, "max_age"),
    ({"max_age": "60"}, ValueError, "max_age"),
    ({"embeddings": "model"}, TypeError, "embeddings"),
    ({"asset_directories": "scripts"}, ValueError, "asset_directories"),
]


@pytest.mark.parametrize(("options", "kind", "says"), WRONG)
def test_wrong_arguments_fail_at_once(
    tmp_path: Path, options: dict[str, Any], kind: type[Exception], says: str
) -> None:
    """A value that cannot work fails when the manager is made, as it does in the middleware."""
    with pytest.raises(kind, match=says):
        SkillsManager(**{"backend": disk(tmp_path), "sources": ["/skills"], **options})


@both_modes
def test_unreadable_files_are_errors_of_their_own(mode: Mode, shared_library: Path) -> None:
    """A backend that cannot give a file makes neither a missing file nor an exception of its own out of it."""
    manager = SkillsManager(
        backend=FakeBackend(shared_library, rules={"download_files": fails("disk on fire", "references")}),
        sources=["/"],
    )
    with pytest.raises(SkillsError, match="disk on fire") as caught:
        ask(mode, manager, "get_skill_asset", "csv-report", "references/guide.md")
    assert not isinstance(caught.value, SkillPathError)


# Directories as people give them.


@pytest.mark.parametrize("kind", [str, Path], ids=["text", "path"])
def test_create_makes_a_missing_directory(tmp_path: Path, kind: Callable[[Path], str | Path]) -> None:
    """With `create`, a missing directory is made, parents too, with a README that says what goes there."""
    target = tmp_path / "new" / "skills"
    manager = SkillsManager.from_directory(kind(target), create=True)
    readme = (target / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in target.iterdir()] == ["README.md"]
    for word in ("SKILL.md", "name:", "description:", "scripts/", "references/", "assets/"):
        assert word in readme
    assert manager.list_skills() == []
    write_files(target, {"demo/SKILL.md": skill_md("demo")})
    assert manager.list_skills() == ["demo"]


@pytest.mark.parametrize("readme", [None, "Mine."], ids=["without README", "with README"])
def test_create_leaves_a_directory_alone(library: Path, readme: str | None) -> None:
    """With `create`, a directory that is there stays as it is."""
    if readme is not None:
        (library / "README.md").write_text(readme)
    before = {path: path.read_bytes() for path in library.rglob("*") if path.is_file()}
    assert SkillsManager.from_directory(library, create=True).list_skills() == NAMES
    assert {path: path.read_bytes() for path in library.rglob("*") if path.is_file()} == before


def test_create_twice_keeps_the_readme(tmp_path: Path) -> None:
    """A README that was changed since is not written over."""
    SkillsManager.from_directory(tmp_path / "skills", create=True)
    (tmp_path / "skills" / "README.md").write_text("Changed.")
    SkillsManager.from_directory(tmp_path / "skills", create=True)
    assert (tmp_path / "skills" / "README.md").read_text() == "Changed."


@pytest.mark.parametrize("options", [{}, {"create": False}], ids=["default", "create=False"])
def test_without_create_nothing_is_made(tmp_path: Path, options: dict[str, bool]) -> None:
    """Without `create`, looking into a missing directory leaves it missing."""
    manager = SkillsManager.from_directory(tmp_path / "none", **options)
    assert manager.list_skills() == []
    assert list(tmp_path.iterdir()) == []


def test_create_leaves_a_file_alone(tmp_path: Path) -> None:
    """A file where the directory should be is not touched, and its skills cannot be listed."""
    (tmp_path / "skills").write_text("a file")
    with pytest.raises(SkillsError, match=r"could not be read: .*not_a_directory"):
        SkillsManager.from_directory(tmp_path / "skills", create=True).list_skills()
    assert (tmp_path / "skills").read_text() == "a file"


SPELLINGS = {
    "relative": "skills",
    "relative with a dot": "./skills",
    "relative with a slash": "skills/",
    "relative through a parent": "../{base}/skills",
    "below a parent": "skills/csv-report/..",
    "home": "~/skills",
    "absolute": "{root}/skills",
    "absolute with a slash": "{root}/skills/",
    "absolute through a parent": "{root}/skills/../skills",
    "linked": "linked",
}


@both_modes
def test_directories_may_be_spelled_in_any_way(mode: Mode, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory given relative, below the home directory, with parents or by a link serves every method."""
    root = library.parent
    (root / "linked").symlink_to(library)
    monkeypatch.setenv("HOME", str(root))
    for case, spelling in SPELLINGS.items():
        monkeypatch.chdir(root)
        manager = SkillsManager.from_directory(spelling.format(base=root.name, root=root))
        monkeypatch.chdir("/")
        assert ask(mode, manager, "list_skills") == NAMES, case
        assert ask(mode, manager, "get_skill_content", "csv-report") == REPORT, case
        assert ask(mode, manager, "get_skill_asset", "csv-report", "references/a/b/c.md") == "Far below.", case
        script = ask(mode, manager, "get_skill_script_path", "csv-report", "run.py")
        assert Path(script) == (library / "csv-report/scripts/run.py").resolve(), case
        assert ask(mode, manager, "list_skill_assets", "csv-report") == [
            "assets/logo.png",
            "references/a/b/c.md",
            "references/guide.md",
            "scripts/run.py",
        ], case


@both_modes
@pytest.mark.parametrize("virtual", [True, False], ids=["virtual", "real"])
def test_sources_may_be_relative(mode: Mode, shared_library: Path, *, virtual: bool) -> None:
    """A source relative to the backend's root serves every method."""
    backend = FilesystemBackend(root_dir=shared_library.parent, virtual_mode=virtual)
    manager = SkillsManager(backend=backend, sources=["skills"])
    assert ask(mode, manager, "list_skills") == NAMES
    assert ask(mode, manager, "get_skill_asset", "csv-report", "references/guide.md") == "How to report."
    assert "references/a/b/c.md" in ask(mode, manager, "list_skill_assets", "csv-report")


@both_modes
def test_installed_by_link(mode: Mode, tmp_path: Path) -> None:
    """A skill whose directory is a link to where it was installed works like any other."""
    write_files(tmp_path / "installed", LIBRARY)
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills" / "csv-report").symlink_to(tmp_path / "installed" / "csv-report")
    manager = SkillsManager.from_directory(tmp_path / "skills")
    assert ask(mode, manager, "list_skills") == ["csv-report"]
    assert ask(mode, manager, "get_skill_content", "csv-report") == REPORT
    assert ask(mode, manager, "get_skill_asset", "csv-report", "references/guide.md") == "How to report."
    assert len(ask(mode, manager, "list_skill_assets", "csv-report")) == 4
    script = ask(mode, manager, "get_skill_script_path", "csv-report", "run.py")
    assert Path(script).read_text() == "print('ran')\n"


@both_modes
def test_installed_by_link_below_a_virtual_root(mode: Mode, tmp_path: Path) -> None:
    """A linked skill directory works in virtual mode as long as the link stays below the root."""
    write_files(tmp_path / "installed", LIBRARY)
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills" / "csv-report").symlink_to("../installed/csv-report")
    manager = SkillsManager(backend=disk(tmp_path), sources=["/skills"])
    assert ask(mode, manager, "list_skills") == ["csv-report"]
    assert ask(mode, manager, "get_skill_asset", "csv-report", "references/guide.md") == "How to report."
    assert len(ask(mode, manager, "list_skill_assets", "csv-report")) == 4
    assert Path(ask(mode, manager, "get_skill_script_path", "csv-report", "run.py")).is_file()


# Sources in layers, at any depth.


@both_modes
def test_later_sources_win(mode: Mode, tmp_path: Path) -> None:
    """Of two skills with one name every method serves that of the later source, files included."""
    for layer in ("base", "user"):
        files = {"SKILL.md": skill_md("shared", f"The {layer}'s."), "references/guide.md": f"By {layer}."}
        write_files(tmp_path / layer / "shared", files)
    write_files(tmp_path, {"base/only/SKILL.md": skill_md("only", "Base alone.")})
    write_files(tmp_path, {"base/shared/assets/base.txt": "", "user/shared/assets/user.txt": ""})
    manager = SkillsManager(backend=disk(tmp_path), sources=["/base", ("/user", "Mine"), "/optional"])
    assert sorted(ask(mode, manager, "list_skills")) == ["only", "shared"]
    assert "The user's." in ask(mode, manager, "get_skill_content", "shared")
    assert ask(mode, manager, "get_skill_asset", "shared", "references/guide.md") == "By user."
    assert ask(mode, manager, "list_skill_assets", "shared") == ["assets/user.txt", "references/guide.md"]
    codes = [problem["code"] for problem in ask(mode, manager, "list_problems")]
    assert codes == ["source-missing"]


@both_modes
def test_a_broken_skill_hides_no_good_one(mode: Mode, tmp_path: Path) -> None:
    """Where a later source's file is broken, the earlier skill of that name is served."""
    write_files(tmp_path, {"base/demo/SKILL.md": skill_md("demo", "Good."), "user/demo/SKILL.md": "broken"})
    manager = SkillsManager(backend=disk(tmp_path), sources=["/base", "/user"])
    assert "Good." in ask(mode, manager, "get_skill_content", "demo")
    assert [problem["code"] for problem in ask(mode, manager, "list_problems")] == ["no-frontmatter"]


@both_modes
@pytest.mark.parametrize(("depth", "names"), [(1, ["top"]), (2, ["top", "mid"]), (3, ["top", "mid", "low"])])
def test_max_depth_bounds_the_search(mode: Mode, tmp_path: Path, depth: int, names: list[str]) -> None:
    """Skills are found as deep as asked for, and their files with them."""
    for name, place in (("top", "top"), ("mid", "team/mid"), ("low", "team/sub/low")):
        write_files(tmp_path / place, {"SKILL.md": skill_md(name), "assets/a.txt": name})
    manager = SkillsManager(backend=disk(tmp_path), sources=["/"], max_depth=depth)
    assert sorted(ask(mode, manager, "list_skills")) == sorted(names)
    assert ask(mode, manager, "get_skill_asset", names[-1], "assets/a.txt") == names[-1]


@both_modes
def test_a_source_may_be_one_skill(mode: Mode, shared_library: Path) -> None:
    """A source that is itself a skill's directory is that skill."""
    manager = SkillsManager.from_directory(shared_library / "csv-report")
    assert ask(mode, manager, "list_skills") == ["csv-report"]
    assert ask(mode, manager, "get_skill_asset", "csv-report", "references/guide.md") == "How to report."


@both_modes
def test_names_need_not_be_those_of_directories(mode: Mode, tmp_path: Path) -> None:
    """A skill is found by the name in its file, wherever it lies."""
    write_files(tmp_path, {"dir/SKILL.md": skill_md("other-name"), "dir/assets/a.txt": "here"})
    manager = SkillsManager.from_directory(tmp_path)
    assert ask(mode, manager, "get_skill_asset", "Other-Name", "assets/a.txt") == "here"
    with pytest.raises(SkillNotFoundError):
        ask(mode, manager, "get_skill_content", "dir")


@both_modes
def test_every_call_looks_anew(mode: Mode, library: Path) -> None:
    """What is added, changed or removed between two calls is seen by the next."""
    manager = SkillsManager.from_directory(library)
    assert ask(mode, manager, "list_skills") == NAMES
    write_files(library, {"added/SKILL.md": skill_md("added", "Brand-new.")})
    assert "added" in ask(mode, manager, "list_skills")
    write_files(library, {"added/SKILL.md": skill_md("added", "Changed since.")})
    assert "Changed since." in ask(mode, manager, "get_skill_content", "added")
    assert ask(mode, manager, "search_skills", "changed") == [{"name": "added", "description": "Changed since."}]
    (library / "added" / "SKILL.md").unlink()
    with pytest.raises(SkillNotFoundError):
        ask(mode, manager, "get_skill_content", "added")


@pytest.mark.parametrize("sources", ["/skills", [1], [("/a", "b", "c")]], ids=["one text", "a number", "three parts"])
def test_wrong_sources_are_refused(tmp_path: Path, sources: Any) -> None:
    """Sources that are not a sequence of paths fail when the manager is made."""
    with pytest.raises(TypeError):
        SkillsManager(backend=disk(tmp_path), sources=sources)


# Many skills: what is read, and what is true.


@pytest.fixture
def large(tmp_path: Path) -> Path:
    files = {f"skills/s{n}/SKILL.md": skill_md(f"s{n}", f"About topic{n}.") for n in range(200)}
    write_files(tmp_path, {**files, "skills/s7/references/guide.md": "Seven.", "skills/s7/scripts/run.py": "print(7)"})
    (tmp_path / "team").mkdir()
    return tmp_path


@both_modes
def test_one_skill_costs_its_own_directory(mode: Mode, large: Path) -> None:
    """Once the library was seen, a method about one skill reads that skill and not the library."""
    backend = FakeBackend(large)
    manager = SkillsManager(backend=backend, sources=["/skills", "/team"])
    ask(mode, manager, "refresh")
    calls = [("get_skill_content", "S7"), ("list_skill_assets", "s7"), ("get_skill_asset", "s7", "references/guide.md")]
    for method, *arguments in [*calls, ("get_skill_script_path", "s7", "run.py")]:
        backend.calls.clear()
        ask(mode, manager, method, *arguments)
        assert set(backend.listed) <= {f"/skills/s7/{name}" for name in ("scripts", "references", "assets")}, method
        allowed = {"/skills/s7/SKILL.md", "/team/s7/SKILL.md", "/skills/s7/references/guide.md"}
        assert set(backend.read_paths) <= allowed, method


def skill_of(description: str) -> str:
    text: str = skill_md("s7", description)
    return text


CHANGES: dict[str, tuple[Callable[[Path], Any], str | None]] = {
    "edited": (lambda root: write_files(root, {"skills/s7/SKILL.md": skill_of("Edited.")}), "Edited."),
    "removed": (lambda root: (root / "skills/s7/SKILL.md").unlink(), None),
    "moved": (lambda root: (root / "skills/s7").rename(root / "skills/other"), "About topic7."),
    "renamed inside": (lambda root: write_files(root, {"skills/s7/SKILL.md": skill_md("s7b")}), None),
    "broken": (lambda root: write_files(root, {"skills/s7/SKILL.md": "nothing"}), "broken"),
    "shadowed": (lambda root: write_files(root, {"team/s7/SKILL.md": skill_of("Of the team.")}), "Of the team."),
    "shadowed under another name": (
        lambda root: write_files(root, {"team/x/SKILL.md": skill_of("Found by a look.")}),
        "Found by a look.",
    ),
    "a broken rival": (lambda root: write_files(root, {"team/s7/SKILL.md": "nothing"}), "About topic7."),
    "a rival of another name": (lambda root: write_files(root, {"team/s7/SKILL.md": skill_md("x")}), "About topic7."),
}


@both_modes
def test_changes_between_two_calls_are_seen(mode: Mode, tmp_path: Path) -> None:
    """A file that was edited, removed, moved, renamed, broken or shadowed since the last call gives the truth."""
    for number, (case, (change, expected)) in enumerate(CHANGES.items()):
        root = tmp_path / str(number)
        write_files(root, {"skills/s7/SKILL.md": skill_of("About topic7."), "skills/s8/SKILL.md": skill_md("s8")})
        (root / "team").mkdir()
        manager = SkillsManager(backend=disk(root), sources=["/skills", "/team"], max_age=0)
        assert "About topic7." in ask(mode, manager, "get_skill_content", "s7"), case
        change(root)
        if case == "shadowed under another name":
            ask(mode, manager, "list_skills")
        if expected is None:
            with pytest.raises(SkillNotFoundError):
                ask(mode, manager, "get_skill_content", "s7")
        elif expected == "broken":
            with pytest.raises(SkillFormatError):
                ask(mode, manager, "get_skill_content", "s7")
        else:
            assert expected in ask(mode, manager, "get_skill_content", "s7"), case


@both_modes
def test_new_skills_are_found_by_a_miss(mode: Mode, large: Path) -> None:
    """A name that was not there before is looked for again."""
    manager = SkillsManager(backend=disk(large), sources=["/skills"], max_age=3600)
    ask(mode, manager, "list_skills")
    write_files(large, {"skills/late/SKILL.md": skill_md("late", "Came late.")})
    assert "Came late." in ask(mode, manager, "get_skill_content", "late")


@both_modes
def test_max_age_uses_what_was_seen(mode: Mode, large: Path) -> None:
    """Within `max_age` lists and searches make no backend call; `refresh` looks, and so does every call at 0."""
    backend = FakeBackend(large)
    manager = SkillsManager(backend=backend, sources=["/skills"], max_age=3600)
    assert len(ask(mode, manager, "list_skills")) == 200
    backend.calls.clear()
    ask(mode, manager, "list_metadata")[0]["name"] = "changed by the caller"
    assert ask(mode, manager, "list_skills")[0] == "s0"
    assert ask(mode, manager, "search_skills", "topic55")[0]["name"] == "s55"
    ask(mode, manager, "list_problems")
    assert (backend.listed, backend.read_paths) == ([], [])
    write_files(large, {"skills/new/SKILL.md": skill_md("new", "About zebras.")})
    assert ask(mode, manager, "search_skills", "zebras") == []
    ask(mode, manager, "refresh")
    assert ask(mode, manager, "search_skills", "zebras") == [{"name": "new", "description": "About zebras."}]
    fresh = SkillsManager(backend=backend, sources=["/skills"])
    for _ in range(2):
        backend.calls.clear()
        ask(mode, fresh, "list_skills")
        assert backend.listed == ["/skills"]


def test_a_name_cannot_lead_out_of_a_source(tmp_path: Path) -> None:
    """A skill whose name looks like a path makes the manager read nothing outside its sources."""
    odd = "---\nname: ../../secret\ndescription: d\n---\nBody.\n"
    write_files(tmp_path, {"a/skills/x/SKILL.md": odd, "secret/SKILL.md": skill_md("secret")})
    backend = FakeBackend(tmp_path)
    manager = SkillsManager(backend=backend, sources=["/a/skills"])
    name = manager.list_skills()[0]
    backend.calls.clear()
    manager.get_skill_content(name)
    assert set(backend.read_paths) == {"/a/skills/x/SKILL.md"}


class Topics(Embeddings):
    """Embeddings that know that a blackout is an outage, until they fail."""

    fails = False

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        if self.fails:
            raise ConnectionError("no quota")
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return [float("outage" in text or "blackout" in text), 0.1]


@both_modes
def test_a_manager_searches_by_meaning(mode: Mode, large: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With embeddings a query that names no word finds its skill; while they fail, words serve and a problem tells."""
    write_files(large, {"skills/review/SKILL.md": skill_md("review", "After an outage.")})
    topics = Topics()
    topics.fails = True
    manager = SkillsManager(backend=disk(large), sources=["/skills"], embeddings=topics, max_age=60)
    assert ask(mode, manager, "search_skills", "blackout") == []
    for _ in range(2):
        assert ask(mode, manager, "search_skills", "outage", n=1)[0]["name"] == "review"
    assert len([record for record in caplog.records if "no quota" in record.message]) == 1
    problems = ask(mode, manager, "list_problems")
    assert [(problem["code"], problem["severity"]) for problem in problems] == [("embeddings-failed", "warning")]
    topics.fails = False
    assert ask(mode, manager, "search_skills", "blackout", n=1)[0]["name"] == "review"
    assert ask(mode, manager, "list_problems") == []


@both_modes
def test_asset_directories_are_the_three_unless_told(mode: Mode, library: Path) -> None:
    """A manager lists and reads the files of the three directories, or of those it is told."""
    write_files(library, {"csv-report/templates/a.txt": "A template.", "csv-report/notes.txt": "Notes."})
    three, every, one = (
        SkillsManager.from_directory(library, **options)
        for options in ({}, {"asset_directories": "all"}, {"asset_directories": ["templates"]})
    )
    assert "templates/a.txt" not in ask(mode, three, "list_skill_assets", "csv-report")
    assert {"templates/a.txt", "notes.txt"} <= set(ask(mode, every, "list_skill_assets", "csv-report"))
    assert ask(mode, one, "list_skill_assets", "csv-report") == ["templates/a.txt"]
    assert ask(mode, every, "get_skill_asset", "csv-report", "notes.txt") == "Notes."
    with pytest.raises(SkillPathError):
        ask(mode, three, "get_skill_asset", "csv-report", "templates/a.txt")


# Slow backends, event loops, threads.


@pytest.fixture
def stuck(shared_library: Path) -> Iterator[BackendProtocol]:
    """Return a backend that gives no file before the test has ended."""
    ended = threading.Event()

    yield FakeBackend(shared_library, rules={"download_files": hangs(ended, "references")})
    ended.set()


@both_modes
def test_backend_timeout_ends_the_wait(mode: Mode, stuck: BackendProtocol) -> None:
    """A backend that does not answer in time costs an error that says so."""
    manager = SkillsManager(backend=stuck, sources=["/"], backend_timeout=0.2)
    assert ask(mode, SkillsManager(backend=stuck, sources=["/"]), "list_skills") == NAMES
    with pytest.raises(SkillsError, match=r"no answer within 0\.2 seconds"):
        ask(mode, manager, "get_skill_asset", "csv-report", "references/guide.md")


@pytest.mark.parametrize(
    ("method", "arguments"),
    [("list_skills", ()), ("search_skills", ("report",)), *((m, ("csv-report", *a)) for m, a in CALLS.items())],
    ids=["list_skills", "search_skills", *CALLS],
)
def test_twins_do_not_block_the_event_loop(shared_library: Path, method: str, arguments: tuple[str, ...]) -> None:
    """An async twin makes no blocking call on the event loop: no file access, no database."""
    manager = SkillsManager.from_directory(shared_library)

    async def call() -> Any:
        with blockbuster_ctx():
            return await getattr(manager, f"a{method}")(*arguments)

    assert asyncio.run(call()) == ask("sync", manager, method, *arguments)


def test_one_manager_serves_many_callers(shared_library: Path) -> None:
    """Calls from many tasks at once give what they give alone."""
    manager = SkillsManager.from_directory(shared_library)

    async def all_at_once() -> list[Any]:
        searches = [manager.asearch_skills("release notes") for _ in range(10)]
        reads = [manager.aget_skill_asset("csv-report", "references/guide.md") for _ in range(10)]
        lists = [manager.alist_skills() for _ in range(10)]
        return list(await asyncio.gather(*searches, *reads, *lists))

    found = asyncio.run(all_at_once())
    assert [result[0]["name"] for result in found[:10]] == ["release-notes"] * 10
    assert found[10:20] == ["How to report."] * 10
    assert found[20:] == [NAMES] * 10
