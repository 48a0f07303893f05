"""Discovery as a plan, driven by hand: which directories and files are asked for, and what becomes of the answers."""

import gc
import itertools
import json
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from deepskills import InlineBackend, OptionalSource, SkillProblem, SkillSource
from deepskills._catalog import catalog as catalog_module
from deepskills._catalog.catalog import Catalog, Catalogs, Readings, SkillEntry, digest_of
from deepskills._catalog.discovery import (
    Discovery,
    ScanSettings,
    SourceScan,
    discover,
    format_source_errors,
)
from deepskills._io.plan import (
    Call,
    Entry,
    Failed,
    File,
    FindExisting,
    FindRoutes,
    ListDirectory,
    Listing,
    Plan,
    ReadFiles,
    Work,
)
from deepskills._providers.directory import DirectoryProvider
from deepskills._providers.sources import Source, parse_sources
from deepskills._types import MAX_DIRECTORIES, MAX_SKILL_FILE_BYTES
from support import by_hand, skill_md

ResultT = TypeVar("ResultT")

FILE_NOT_FOUND = "file_not_found"


@dataclass
class Tree:
    """A backend by hand: files by path, and replies that stand in for a directory's or a file's own."""

    files: Mapping[str, str | bytes]
    replies: Mapping[str, Any] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    rounds: list[tuple[Call[Any], ...]] = field(default_factory=list)

    def answer(self, call: Call[Any]) -> Any:
        if isinstance(call, FindExisting):
            return dict.fromkeys(call.paths, False)
        if isinstance(call, ListDirectory):
            return self.replies.get(call.path) or self._listing(call.path)
        if isinstance(call, FindRoutes):
            return {}
        if isinstance(call, Work):
            return call.do()
        assert isinstance(call, ReadFiles)
        return tuple(self._file(path) for path in call.paths)

    def _listing(self, path: str) -> Any:
        start = path.rstrip("/") + "/"
        below = [file.removeprefix(start) for file in self.files if file.startswith(start)]
        if not below:
            return Failed(f"Path '{path}': path_not_found")
        names = {name.partition("/")[0]: "/" in name for name in below}
        return Listing(tuple(Entry(start + name, names[name]) for name in sorted(names)))

    def _file(self, path: str) -> File:
        if path in self.errors:
            return File(path, error=self.errors[path])
        content = self.files.get(path)
        if content is None:
            return File(path, error=FILE_NOT_FOUND)
        return File(path, content.encode() if isinstance(content, str) else content)

    def drive(self, plan: Plan[ResultT]) -> ResultT:
        """Drive a plan to its end."""
        result, rounds = by_hand(plan, self.answer)
        # No call of the backend: work of our own, or a question to backends that serve skills.
        self.rounds += [calls for calls in rounds if not isinstance(calls[0], FindRoutes | FindExisting | Work)]
        return result

    def discover(
        self,
        *sources: SkillSource,
        max_depth: int = 1,
        known: Catalog | None = None,
        readings: Readings | None = None,
    ) -> Discovery:
        """Drive a discovery to its end."""
        memory = readings or Readings()
        return self.drive(
            discover(
                parse_sources(sources),
                directories=DirectoryProvider(max_depth),
                readings=memory,
                catalogs=Catalogs(),
                known=known,
            )
        )

    @property
    def listed(self) -> list[str]:
        return [call.path for calls in self.rounds for call in calls if isinstance(call, ListDirectory)]

    @property
    def read(self) -> list[str]:
        return [path for calls in self.rounds for call in calls if isinstance(call, ReadFiles) for path in call.paths]


def skills(*paths: str) -> dict[str, str]:
    """Return a valid skill at each path, named after its directory."""
    return {f"{path}/SKILL.md": skill_md(path.rpartition("/")[2], f"From {path}.") for path in paths}


def paths(found: Discovery) -> dict[str, str]:
    return {entry.name: entry.path for entry in found.catalog.entries}


def codes(found: Discovery | Sequence[SkillProblem]) -> list[tuple[str, str, str]]:
    problems = found.problems if isinstance(found, Discovery) else found
    return [(problem["path"], problem["code"], problem["severity"]) for problem in problems]


# What is asked for.


def test_all_sources_are_listed_at_once_then_all_files_read_in_one_batch() -> None:
    """A discovery is two rounds, however many sources and skills there are."""
    for count in (1, 2, 5, 40):
        sources = [f"/source{number:02}" for number in range(count)]
        tree = Tree(skills(*(f"{source}/{name}" for source in sources for name in ("one", "two"))))
        found = tree.discover(*sources)
        listings, files = tree.rounds
        assert listings == tuple(ListDirectory(source) for source in sources)
        assert [type(call) for call in files] == [ReadFiles]
        assert len(tree.read) == 2 * count
        assert paths(found) == {"one": f"{sources[-1]}/one/SKILL.md", "two": f"{sources[-1]}/two/SKILL.md"}


def test_no_source_asks_nothing() -> None:
    """Without sources there is nothing to ask and nothing to complain about."""
    tree = Tree({})
    found = tree.discover()
    assert (found.catalog.entries, found.problems, found.unsure, tree.rounds) == ((), [], frozenset(), [])


def test_a_source_named_twice_is_asked_once() -> None:
    """A repeated source costs no second listing, and shadows nothing."""
    tree = Tree(skills("/a/one"))
    found = tree.discover("/a", "/a/")
    assert len(tree.listed) == 1
    assert found.problems == []


NESTED = {
    **skills("/s/top", "/s/group/mid", "/s/group/deeper/low", "/s/a/b/c/abyss"),
    **skills("/s/top/inner", "/s/group/mid/scripts/hidden"),
    "/s/group/README.md": "no skill",
    "/s/SKILL.txt": "no skill either",
}


def test_skills_lie_as_deep_as_allowed_and_none_below_another() -> None:
    """The search goes `max_depth` levels down, one round per level, and stops below a skill."""
    all_names = ["abyss", "low", "mid", "top"]
    table = [
        (1, ["top"], 2),
        (2, ["mid", "top"], 3),
        (3, ["low", "mid", "top"], 4),
        (4, all_names, 5),
        (9, all_names, 6),
    ]
    for max_depth, names, rounds in table:
        tree = Tree(NESTED)
        found = tree.discover("/s", max_depth=max_depth)
        assert sorted(paths(found)) == names
        assert len(tree.rounds) == rounds
        assert not [path for path in tree.listed if path.startswith(("/s/top/", "/s/group/mid/"))]


def test_a_source_that_is_a_skill_directory_is_that_skill() -> None:
    """A skill's own directory given as a source is that one skill, and nothing below it is searched."""
    for source, max_depth in itertools.product(("/s/group/mid", "/s/group/mid/"), (1, 3)):
        tree = Tree(NESTED)
        found = tree.discover(source, max_depth=max_depth)
        assert paths(found) == {"mid": "/s/group/mid/SKILL.md"}
        assert tree.listed == [source]
        assert found.problems == []


def test_some_directories_are_passed_over() -> None:
    """Directories of tools are neither listed nor read, at any level."""
    for name, max_depth in itertools.product((".git", "node_modules", ".venv", "__pycache__"), (1, 2, 3)):
        places = (name, f"{name}/one", f"group/{name}", "good", "group/fine")
        tree = Tree({f"/s/{place}/SKILL.md": skill_md("x") for place in places})
        tree.discover("/s", max_depth=max_depth)
        assert not [path for path in [*tree.listed, *tree.read] if name in path.split("/")]
        assert "/s/good/SKILL.md" in tree.read


def test_only_a_file_of_the_exact_name_makes_a_skill() -> None:
    """Other spellings, and a directory of that name, make no skill."""
    text = skill_md("x")
    tree = Tree({"/s/a/skill.md": text, "/s/b/SKILL.MD": text, "/s/c/SKILL.md/deep": text, "/s/d/SKILL.md.bak": text})
    assert tree.discover("/s", max_depth=3).catalog.entries == ()


# Which skill wins.


def test_the_later_source_wins_and_the_loser_is_named() -> None:
    """Of skills with one name the later source's is used; the paths that lost are named, and are no problem."""
    tree = Tree(skills("/base/shared", "/base/own", "/user/shared", "/team/shared"))
    found = tree.discover("/base", "/user", "/team")
    assert paths(found) == {"own": "/base/own/SKILL.md", "shared": "/team/shared/SKILL.md"}
    assert codes(found) == []
    assert [(lost["path"], lost["code"]) for lost in found.shadowed] == [
        ("/base/shared/SKILL.md", "skill-shadowed"),
        ("/user/shared/SKILL.md", "skill-shadowed"),
    ]
    assert "/team/shared/SKILL.md" in found.shadowed[-1]["message"]


def test_a_skill_does_not_hide_itself() -> None:
    """A skill found through two sources, as its own directory and in the one above, is one skill and no conflict."""
    found = Tree(skills("/s/one", "/s/two")).discover("/s", "/s/one")
    assert paths(found) == {"one": "/s/one/SKILL.md", "two": "/s/two/SKILL.md"}
    assert found.problems == []


def test_the_first_path_wins_inside_a_source() -> None:
    """Two skills of one name in one source: the first path in order is used, a warning names the other."""
    tree = Tree({"/s/b/SKILL.md": skill_md("same"), "/s/a/SKILL.md": skill_md("same")})
    found = tree.discover("/s")
    assert paths(found) == {"same": "/s/a/SKILL.md"}
    assert ("/s/b/SKILL.md", "skill-duplicate", "warning") in codes(found)
    assert ("/s/a/SKILL.md", "skill-duplicate", "warning") not in codes(found)


# What goes wrong.


UNUSABLE: dict[str, tuple[Any, tuple[str, str]]] = {
    "missing": (Failed("Path '/bad': path_not_found"), ("source-missing", "warning")),
    "enoent": (Failed("FileNotFoundError: [Errno 2] No such file"), ("source-missing", "warning")),
    "empty": (Listing(()), ("source-empty", "warning")),
    "no skill in it": (Listing((Entry("/bad/x", is_directory=True),)), ("source-empty", "warning")),
    "files only": (Listing((Entry("/bad/x", is_directory=False),)), ("source-empty", "warning")),
    "failing": (Failed("permission denied"), ("source-failed", "error")),
    "a file": (Failed("not_a_directory"), ("source-failed", "error")),
    "late": (Failed("no answer within 2 seconds", timed_out=True), ("source-failed", "error")),
    "partial": (Listing((), "part is missing"), ("source-incomplete", "error")),
}


def test_a_source_that_gives_nothing_costs_no_other() -> None:
    """Each way in which a source gives nothing is one problem of its own, and all other sources load."""
    for (name, (reply, expected)), max_depth in itertools.product(UNUSABLE.items(), (1, 2)):
        tree = Tree(skills("/good/one", "/last/two"), replies={"/bad": reply, "/bad/x": Listing(())})
        found = tree.discover("/good", "/bad", "/last", max_depth=max_depth)
        assert sorted(paths(found)) == ["one", "two"], name
        assert codes(found) == [("/bad", *expected)], name
        message = found.problems[0]["message"]
        if isinstance(reply, Failed) and expected[1] == "error":
            assert reply.reason in message
        errors = [f"Cannot load skills from '/bad': {message}"] if expected[1] == "error" else []
        assert format_source_errors(found.problems) == errors, name


def test_an_optional_source_may_be_missing_or_empty() -> None:
    """What a plain source warns about is not a problem of an optional one; that it fails is."""
    for name, (reply, (code, severity)) in UNUSABLE.items():
        tree = Tree(skills("/good/one"), replies={"/bad": reply})
        found = tree.discover("/good", OptionalSource("/bad"))
        assert codes(found) == ([("/bad", code, severity)] if severity == "error" else []), name


def test_a_partial_listing_is_used_and_reported() -> None:
    """Entries that come with an error are read; the error says that there may be more."""
    listing = Listing((Entry("/s/one", is_directory=True),), "child error: cannot stat '/s/two'")
    tree = Tree(skills("/s/one", "/s/two"), replies={"/s": listing})
    found = tree.discover("/s")
    assert list(paths(found)) == ["one"]
    assert codes(found) == [("/s", "source-incomplete", "error")]
    assert "cannot stat '/s/two'" in found.problems[0]["message"]


def test_a_directory_below_a_source_that_fails_is_reported_and_costs_no_other() -> None:
    """A failing directory further down makes the source incomplete; the rest of it is used."""
    tree = Tree(skills("/s/a/one", "/s/b/two"), replies={"/s/a": Failed("denied")})
    found = tree.discover("/s", max_depth=2)
    assert list(paths(found)) == ["two"]
    assert codes(found) == [("/s", "source-incomplete", "error")]
    assert "/s/a: denied" in found.problems[0]["message"]


BROKEN: dict[str, tuple[str | bytes, str]] = {
    "no-frontmatter": ("# Just text", "no-frontmatter"),
    "unclosed": ("---\nname: x\n", "frontmatter-unclosed"),
    "binary": (b"\x89PNG\r\n\x00\xff\xfe\xfd" * 50, "not-text"),
    "too-large": (b"x" * (MAX_SKILL_FILE_BYTES + 1), "file-too-large"),
    "no-description": ("---\nname: bad\n---\n", "description-missing"),
    "a-list": ("---\n- a\n- b\n---\n", "frontmatter-not-mapping"),
    "empty": (b"", "no-frontmatter"),
}


def test_one_broken_skill_costs_no_other() -> None:
    """A file that cannot be used is an error of its own; the skills beside it load."""
    for kind, (content, code) in BROKEN.items():
        found = Tree({**skills("/s/a", "/s/z"), "/s/bad/SKILL.md": content}).discover("/s")
        assert list(paths(found)) == ["a", "z"], kind
        assert codes(found) == [("/s/bad/SKILL.md", code, "error")], kind


def test_a_directory_without_a_skill_is_not_a_problem() -> None:
    """Not every directory is a skill: one that has no `SKILL.md` is passed over without a word."""
    assert Tree({**skills("/s/a"), "/s/docs/README.md": "text"}).discover("/s").problems == []


def test_a_skill_file_that_cannot_be_read_is_an_error() -> None:
    """A file that exists and cannot be read is reported, as is one that a listing showed and that is gone."""
    tree = Tree(skills("/s/a", "/s/secret", "/leaf"), errors={"/s/secret/SKILL.md": "permission_denied"})
    found = tree.discover("/s")
    assert codes(found) == [("/s/secret/SKILL.md", "skill-unreadable", "error")]
    assert "permission_denied" in found.problems[0]["message"]
    tree = Tree(skills("/leaf"), errors={"/leaf/SKILL.md": FILE_NOT_FOUND})
    assert codes(tree.discover("/leaf")) == [("/leaf/SKILL.md", "skill-unreadable", "error")]


REASONS = ("boom\nERROR: forged\r\nsecond", "x" * 1_000_000, "\x1b[31mred\x1b[0m \u202eright to left")


def test_a_backends_error_text_is_data_in_a_problem() -> None:
    """Whatever a backend says went wrong, a problem's message stays one clean line of bounded length."""
    for reason, where in itertools.product(REASONS, ("listing", "file", "partial", "below")):
        entry = Listing((Entry("/s/a", is_directory=True),), reason if where == "partial" else None)
        replies: dict[str, Any] = {"/s": Failed(reason) if where == "listing" else entry}
        if where == "below":
            replies["/s/a"] = Failed(reason)
        errors = {"/s/a/SKILL.md": reason} if where == "file" else {}
        found = Tree(skills("/s/a"), replies, errors).discover("/s", max_depth=2 if where == "below" else 1)
        (problem,) = found.problems
        assert problem["severity"] == "error"
        assert problem["message"].splitlines() == [problem["message"]]
        assert len(problem["message"]) < 2000
        assert not {"\x1b", "\u202e"} & set(problem["message"])


def test_a_listing_is_bounded_and_says_when_it_was_cut() -> None:
    """At most so many directories of a source are searched; a warning says when there were more."""
    for extra in (0, 1):
        entries = tuple(Entry(f"/s/d{number:06}", is_directory=True) for number in range(MAX_DIRECTORIES + extra))
        tree = Tree(skills("/s/d000000", f"/s/d{MAX_DIRECTORIES:06}", "/other/one"), replies={"/s": Listing(entries)})
        found = tree.discover("/s", "/other")
        assert len(tree.read) == MAX_DIRECTORIES + 1
        assert list(paths(found)) == ["d000000", "one"]
        assert codes(found) == ([("/s", "source-cut", "warning")] if extra else [])


def test_the_bound_holds_over_all_levels_of_a_source() -> None:
    """Directories of every level count towards the bound."""
    half = MAX_DIRECTORIES // 2 + 1
    below = {f"/s/{top}": [f"/s/{top}/d{number:06}" for number in range(half)] for top in ("a", "b")}
    replies: dict[str, Any] = {
        path: Listing(tuple(Entry(name, is_directory=True) for name in names)) for path, names in below.items()
    }
    replies["/s"] = Listing((Entry("/s/a", is_directory=True), Entry("/s/b", is_directory=True)))
    tree = Tree({}, replies)
    found = tree.discover("/s", max_depth=2)
    assert len(tree.read) == MAX_DIRECTORIES - 2
    assert ("/s", "source-cut", "warning") in codes(found)


# What an earlier discovery knew.


def test_a_source_that_fails_keeps_what_it_gave_before() -> None:
    """While a source is down its entries stay; those of sources that answer follow what they answer."""
    before = Tree(skills("/a/one", "/a/two", "/b/three", "/b/four")).discover("/a", "/b")
    tree = Tree(skills("/b/three", "/b/five"), replies={"/a": Failed("down")})
    found = tree.discover("/a", "/b", known=before.catalog)
    assert sorted(paths(found)) == ["five", "one", "three", "two"]
    assert found.unsure == {"/a"}
    assert codes(found) == [("/a", "source-failed", "error")]


def test_what_a_source_no_longer_has_is_gone() -> None:
    """A source that answers, and has nothing more, keeps nothing."""
    before = Tree(skills("/a/one")).discover("/a")
    for reply in (Failed("Path '/a': path_not_found"), Listing(())):
        found = Tree({}, replies={"/a": reply}).discover("/a", known=before.catalog)
        assert found.catalog.entries == ()
        assert found.unsure == frozenset()


def test_a_partial_listing_keeps_what_it_does_not_show() -> None:
    """What an incomplete listing leaves out may still be there; what it shows is read again."""
    before = Tree(skills("/a/one", "/a/two")).discover("/a")
    listing = Listing((Entry("/a/one", is_directory=True),), "incomplete")
    edited = {"/a/one/SKILL.md": skill_md("one", "Edited.")}
    found = Tree(edited, replies={"/a": listing}).discover("/a", known=before.catalog)
    assert {entry.name: entry.description for entry in found.catalog.entries} == {
        "one": "Edited.",
        "two": "From /a/two.",
    }


def test_a_partial_listing_that_shows_a_directory_without_its_skill_drops_it() -> None:
    """A skill whose file is plainly gone does not stay because something else could not be listed."""
    before = Tree(skills("/a/one", "/a/two")).discover("/a")
    listing = Listing((Entry("/a/one", is_directory=True),), "incomplete")
    found = Tree({}, replies={"/a": listing}).discover("/a", known=before.catalog)
    assert list(paths(found)) == ["two"]


def test_a_file_that_cannot_be_read_keeps_its_entry() -> None:
    """An entry stays while its file cannot be read, and an error says so."""
    before = Tree(skills("/a/one", "/a/two")).discover("/a")
    tree = Tree(skills("/a/one", "/a/two"), errors={"/a/one/SKILL.md": "permission_denied"})
    found = tree.discover("/a", known=before.catalog)
    assert sorted(paths(found)) == ["one", "two"]
    assert codes(found) == [("/a/one/SKILL.md", "skill-unreadable", "error")]
    assert found.unsure == {"/a"}


def test_a_source_inside_one_that_fails_follows_its_own_listing() -> None:
    """Entries belong to the source that gave them, also where one source lies inside another."""
    before = Tree(skills("/lib/one", "/lib/team/two")).discover("/lib", "/lib/team")
    tree = Tree(skills("/lib/team/three"), replies={"/lib": Failed("down")})
    found = tree.discover("/lib", "/lib/team", known=before.catalog)
    assert sorted(paths(found)) == ["one", "three"]


def test_a_source_that_failed_before_it_gave_anything_gives_nothing() -> None:
    """Entries of other sources are not taken for those of one that failed."""
    before = Tree(skills("/ab/one")).discover("/ab")
    found = Tree({}, replies={"/a": Failed("down")}).discover("/a", known=before.catalog)
    assert found.catalog.entries == ()


def test_an_entry_stays_with_the_source_that_gave_it() -> None:
    """Whose an entry is was noted when it was found; no other source that fails lays claim to it."""
    before = Tree(skills("/x/skills/one")).discover("/x/skills")
    replies: dict[str, Any] = {"skills": Failed("down"), "/x/skills": Listing(())}
    for order in (("skills", "/x/skills"), ("/x/skills", "skills")):
        assert Tree({}, replies=replies).discover(*order, known=before.catalog).catalog.entries == ()


# Names that are not text.


def test_a_directory_whose_name_is_not_text_is_a_problem_and_not_an_entry() -> None:
    """A skill in such a directory could not be stored or asked for; a directory without a skill costs no word."""
    files = {f"/s/{name}/SKILL.md": skill_md("a") for name in ("caf\udce9", "good")}
    for max_depth in (1, 2):
        found = Tree({**files, "/s/\udcff/README.md": "No skill."}).discover("/s", max_depth=max_depth)
        assert paths(found) == {"a": "/s/good/SKILL.md"}
        assert [code for code in codes(found) if code[1] != "name-directory-mismatch"] == [
            ("/s/caf\\udce9/SKILL.md", "skill-path-not-text", "error")
        ]
        [message] = [p["message"] for p in found.problems if p["code"] == "skill-path-not-text"]
        assert "not text" in message


# What may be read.


def entry_at(path: str, source: str = "/s", name: str = "evil") -> SkillEntry:
    """Return an entry as a caller may have made it up."""
    reading = Readings().read(path, skill_md(name).encode())
    assert reading.metadata is not None
    return SkillEntry(reading.metadata, source, reading.digest)


def look(*sources: SkillSource, readings: Readings | None = None) -> SourceScan:
    """Return a look at sources, by a process that has listed nothing yet."""

    async def of_run() -> Any:
        return parse_sources(sources), None

    memory, directories = readings or Readings(), DirectoryProvider(1)
    return SourceScan(ScanSettings(lambda: directories, memory, Catalogs()), of_run)


def test_only_skill_files_of_the_sources_may_be_read() -> None:
    """Only a `SKILL.md` under the source that an entry names, by its text, is readable, whatever a catalog says."""
    tree = Tree(skills("/s/a"))
    foreign = {
        "/etc/passwd": "/s",
        "/s/../etc/SKILL.md": "/s",
        "/sx/a/SKILL.md": "/s",
        "s/a/SKILL.md": "/s",
        "/s/a/notes.md": "/s",
        "/etc/SKILL.md": "/",
        "/s/b/SKILL.md": "/t",
    }
    assert tree.drive(look("/s").refusals([entry_at("/s/a/SKILL.md")])) == {}
    assert tree.rounds == [], "a path below its source needs no look"
    allowed = [
        path for path, source in foreign.items() if not tree.drive(look("/s").refusals([entry_at(path, source)]))
    ]
    assert allowed == []
    assert set(tree.listed) == {"/s"}
    assert not set(tree.read) & set(foreign)


def test_what_a_listing_leads_to_may_be_read_and_nothing_else() -> None:
    """A source may list skills that lie elsewhere, as links do; that makes no other place readable."""
    for linked in ("/elsewhere/pool/linked", "/linked"):
        listing = Listing((Entry(linked, is_directory=True),))
        tree = Tree({**skills(linked), **skills("/elsewhere/pool/evil")}, replies={"/s": listing})
        seen = look("/s")
        found = tree.drive(seen.discover())
        assert paths(found) == {"linked": f"{linked}/SKILL.md"}
        [entry] = found.catalog.entries
        assert tree.drive(seen.refusals([entry])) == {}
        for path in ("/elsewhere/pool/evil/SKILL.md", "/elsewhere/SKILL.md", "/etc/SKILL.md"):
            assert list(tree.drive(seen.refusals([entry_at(path)]))) == ["evil"]


def test_a_link_is_looked_up_again_by_another_process() -> None:
    """A process that has listed nothing lists the sources once before it refuses what lies outside of them."""
    listing = Listing((Entry("/pool/linked", is_directory=True),))
    tree = Tree(skills("/pool/linked"), replies={"/s": listing})
    [entry] = tree.discover("/s").catalog.entries
    tree.rounds.clear()
    assert tree.drive(look("/s").refusals([entry, entry_at("/pool/evil/SKILL.md")])) == {
        "evil": "its path lies under no current source"
    }
    assert tree.listed == ["/s"]


def test_a_source_that_fails_keeps_what_its_links_gave_and_reads_nothing_by_that() -> None:
    """Entries that a listing led to stay the source's while it is down; only a listing of this process opens them."""
    sources = ("skills", "./skills/", "../skills", ".agents/skills", "/s")
    for source in sources:
        listing = Listing((Entry("/home/me/pool/one", is_directory=True),))
        before = Tree(skills("/home/me/pool/one"), replies={source: listing}).discover(source)
        tree = Tree({}, replies={source: Failed("down")})
        found = tree.discover(source, known=before.catalog)
        assert paths(found) == {"one": "/home/me/pool/one/SKILL.md"}
        assert list(tree.drive(look(source).refusals(found.catalog.entries))) == ["one"]


def test_sources_that_cannot_be_resolved_are_the_reason() -> None:
    """Where nobody can tell the sources, nothing is read, and the reason says why."""

    async def failing() -> Any:
        return [], "directory service is away"

    memory, directories = Readings(), DirectoryProvider(1)
    seen = SourceScan(ScanSettings(lambda: directories, memory, Catalogs()), failing)
    refusals = Tree({}).drive(seen.refusals([entry_at("/s/a/SKILL.md")]))
    assert "directory service is away" in refusals["evil"]


def test_a_file_that_no_skill_can_be_made_of_is_named_apart_from_one_that_is_gone() -> None:
    """Where a file exists and cannot be used, discovery says so."""
    files = {"/s/a/SKILL.md": "---\nname: a\n---\n", "/s/b/SKILL.md": skill_md("b"), "/s/c/notes.md": "x"}
    assert Tree(files).discover("/s").unusable == {"/s/a/SKILL.md"}


def test_many_links_cost_no_more_than_many_directories() -> None:
    """Looking again at thousands of linked skills, each from a place of its own, takes linear time."""
    # Sixteen times as many: the square would take 256 times as long.
    assert min(map(seconds_to_look_again, [4000] * 2)) < 64 * min(map(seconds_to_look_again, [250] * 5))


def seconds_to_look_again(count: int) -> float:
    """Return the CPU time of a second discovery of `count` links."""
    text = "---\nname: skill-{0}\ndescription: d\n---\n"
    files = {f"/pool-{number}/skill-{number}/SKILL.md": text.format(number) for number in range(count)}
    entries = tuple(Entry(path.removesuffix("/SKILL.md"), is_directory=True) for path in files)
    readings = Readings()
    before = Tree(files, replies={"/s": Listing(entries)}).discover("/s", readings=readings)
    gc.disable()  # what else the process holds is no matter here
    started = time.process_time()
    again = Tree(files, replies={"/s": Listing(entries)}).discover("/s", readings=readings, known=before.catalog)
    seconds = time.process_time() - started
    gc.enable()
    assert again.catalog.entries == before.catalog.entries
    return seconds


# The catalog in state.


def test_the_record_of_a_catalog_is_small_plain_data_that_names_it() -> None:
    """What state keeps passes through JSON unchanged, and names the very catalog to the process that made it."""
    readings = Readings()
    owner = InlineBackend([])
    catalogs = Catalogs(owner)
    entries = [readings.entry(readings.read("/s/a/SKILL.md", skill_md("a").encode()), "/s")]
    made = catalogs.remember(entries, [Source("/s", "S"), Source("/t", "Label")])
    record = json.loads(json.dumps(made.record))
    assert record == made.record
    assert len(json.dumps(record)) < 100
    assert catalogs.recognize(record) is made
    assert Catalogs(owner).recognize(record) is made, "another middleware on the same backend knows it too"


def test_a_process_that_has_not_made_a_catalog_takes_nothing_from_state() -> None:
    """A record names a catalog and holds none: another process has to look for itself."""
    catalog = Tree({"/s/a/SKILL.md": skill_md("a")}).discover("/s").catalog
    assert Catalogs().recognize(catalog.record) is None
    assert "a" not in json.dumps(list(catalog.record.values())).replace(catalog.fingerprint, "")


def test_a_forged_record_gives_nothing() -> None:
    """Whatever state holds in the place of a catalog, nothing is raised; only catalogs of this process are trusted."""
    readings = Readings()
    catalogs = Catalogs()
    entries = [readings.entry(readings.read("/s/a/SKILL.md", skill_md("a").encode()), "/s")]
    made = catalogs.remember(entries, [Source("/s", "S")])
    good: Any = made.record
    records: list[Any] = [None, 5, "text", [], {}, {"sources": []}, {**good, "more": 1}, {**good, "sources": "/"}]
    records += [{**good, key: value} for key in good for value in (None, 5, "", "[" * 100_000, [1], {"a": 1})]
    for record in records:
        names_it = isinstance(record, dict) and record.get("fingerprint") == made.fingerprint
        assert catalogs.recognize(record) is (made if names_it else None), record


def test_what_threads_read_at_once_is_one_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that find the same files at the same time parse each once and have one catalog."""
    parse = catalog_module.read_skill  # type: ignore[attr-defined]
    parsed: list[str] = []

    def slow(content: bytes, *, path: str) -> Any:
        parsed.append(path)
        time.sleep(0.01)  # Long enough for the other threads to look for the file too.
        return parse(content, path=path)

    monkeypatch.setattr(catalog_module, "read_skill", slow)
    shared = Readings()
    catalogs = Catalogs()
    files = {f"/skills/{name}/SKILL.md": skill_md(name).encode() for name in ("a", "b", "c")}
    gate = threading.Barrier(4)

    def find(_number: int) -> Catalog:
        gate.wait()
        entries = [shared.entry(shared.read(path, content), "/skills") for path, content in files.items()]
        return catalogs.remember(entries, [Source("/skills", "Skills")])

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(find, range(4)))

    assert sorted(parsed) == sorted(files)
    assert len(set(map(id, found))) == 1
    assert catalogs.recognize(found[0].record) is found[0]


# The memory of parsed files.


def test_a_file_is_parsed_once_for_all_threads() -> None:
    """A second discovery with the same memory finds the same, and the very entries that were made for the first."""
    readings = Readings()
    tree = Tree({**skills("/s/a", "/s/b"), "/s/bad/SKILL.md": "no skill"})
    first = tree.discover("/s", readings=readings)
    second = tree.discover("/s", readings=readings)
    assert first.problems == second.problems
    assert [id(entry) for entry in first.catalog.entries] == [id(entry) for entry in second.catalog.entries]
    assert first.problems[0]["message"] is second.problems[0]["message"]
    again = tree.discover("/s")
    assert again.catalog.entries == first.catalog.entries
    assert again.catalog.entries[0] is not first.catalog.entries[0]


def test_bytes_and_path_tell_whether_a_file_is_known() -> None:
    """A changed file is parsed again, and a copy elsewhere has its own path and problems."""
    readings = Readings()
    text = skill_md("a", "Old.")
    old = readings.read("/s/a/SKILL.md", text.encode())
    new = readings.read("/s/a/SKILL.md", skill_md("a", "New.").encode())
    copy = readings.read("/s/b/SKILL.md", text.encode())
    assert [r.metadata and r.metadata["description"] for r in (old, new, copy)] == ["Old.", "New.", "Old."]
    assert [r.metadata and r.metadata["path"] for r in (old, copy)] == ["/s/a/SKILL.md", "/s/b/SKILL.md"]
    assert old.problems == ()
    assert [problem["path"] for problem in copy.problems] == ["/s/b/SKILL.md"]
    encodings = (text.encode(), text.encode("utf-8-sig"), text.encode("utf-16"), text.encode() + b" ")
    assert len({digest_of(content) for content in encodings}) == 4


def test_a_caller_owns_the_copies_it_gets() -> None:
    """Changing the metadata that a catalog hands out changes nothing for the next caller."""
    found = Tree({"/s/a/SKILL.md": skill_md("a", allowed_tools="Read Write", metadata={"k": "v"})}).discover("/s")
    [first] = found.catalog.copy_skills()
    first["name"] = "changed"
    first["allowed_tools"].append("Bash")
    first["metadata"]["k"] = "changed"
    [second] = found.catalog.copy_skills()
    assert (second["name"], second["allowed_tools"], second["metadata"]) == ("a", ["Read", "Write"], {"k": "v"})
    assert found.catalog.is_copied_in([second])
    assert not found.catalog.is_copied_in([first])


def test_frontmatter_is_kept_and_bounded() -> None:
    """An entry keeps all keys of its file, and no megabyte of them."""
    text = f"---\nname: a\ndescription: d\ntags: mine\nother: no\nargument-hint: {'x' * 9_000}\n---\n"
    reading = Readings().read("/s/a/SKILL.md", text.encode())
    assert dict(reading.frontmatter) == {"name": "a", "description": "d", "tags": "mine", "other": "no"}
    assert [problem["code"] for problem in reading.problems] == ["frontmatter-key-too-large"]


def test_many_threads_share_one_memory() -> None:
    """Threads that read the same and different files at once each get the right reading."""
    readings = Readings()
    contents = {f"/s/s{number}/SKILL.md": skill_md(f"s{number}").encode() for number in range(20)}

    def read_all(start: int) -> list[str]:
        order = [*list(contents)[start:], *list(contents)[:start]]
        found = {path: readings.read(path, contents[path]).metadata for path in order}
        return [skill["name"] for path in contents if (skill := found[path]) is not None]

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(read_all, range(20)))
    assert results == [[f"s{number}" for number in range(20)]] * 20
