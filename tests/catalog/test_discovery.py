"""Discovery as a plan, driven by hand: which directories and files are asked for, and what becomes of the answers."""

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from deepskills import SkillMetadata, SkillProblem
from deepskills._backend.plan import Call, Entry, Failed, File, Files, ListDirectory, Listing, ReadFiles, Reply
from deepskills._catalog.discovery import (
    Catalog,
    Known,
    SkillCache,
    discover,
    source_errors,
)
from deepskills._catalog.kept import catalog_digest
from deepskills._catalog.origins import readable_from
from deepskills._catalog.sources import parse_sources
from deepskills._types import MAX_DIRECTORIES, MAX_SKILL_FILE_BYTES, SkillSource
from support import skill_md

FILE_NOT_FOUND = "file_not_found"


@dataclass
class Tree:
    """A backend by hand: files by path, and replies that stand in for a directory's or a file's own."""

    files: Mapping[str, str | bytes]
    replies: Mapping[str, Reply] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    rounds: list[tuple[Call, ...]] = field(default_factory=list)

    def answer(self, call: Call) -> Reply:
        if isinstance(call, ListDirectory):
            return self.replies.get(call.path) or self._listing(call.path)
        assert isinstance(call, ReadFiles)
        return Files(tuple(self._file(path) for path in call.paths))

    def _listing(self, path: str) -> Reply:
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

    def discover(
        self, *sources: SkillSource, max_depth: int = 1, known: Known | None = None, cache: SkillCache | None = None
    ) -> Catalog:
        """Drive a discovery to its end."""
        read = (cache or SkillCache()).read
        plan = discover(parse_sources(sources), max_depth=max_depth, read=read, known=known or Known())
        try:
            calls = next(plan)
            while True:
                self.rounds.append(calls)
                calls = plan.send([self.answer(call) for call in calls])
        except StopIteration as stop:
            catalog: Catalog = stop.value
            return catalog

    @property
    def listed(self) -> list[str]:
        return [call.path for calls in self.rounds for call in calls if isinstance(call, ListDirectory)]

    @property
    def read(self) -> list[str]:
        return [path for calls in self.rounds for call in calls if isinstance(call, ReadFiles) for path in call.paths]


def skills(*paths: str) -> dict[str, str]:
    """Return a valid skill at each path, named after its directory."""
    return {f"{path}/SKILL.md": skill_md(path.rpartition("/")[2], f"From {path}.") for path in paths}


def paths(catalog: Catalog) -> dict[str, str]:
    return {skill["name"]: skill["path"] for skill in catalog.skills}


def codes(found: Catalog | Sequence[SkillProblem]) -> list[tuple[str, str, str]]:
    problems = found.problems if isinstance(found, Catalog) else found
    return [(problem["path"], problem["code"], problem["severity"]) for problem in problems]


def known_from(catalog: Catalog) -> Known:
    return Known(catalog.skills, catalog.origins)


# What is asked for.


@pytest.mark.parametrize("count", [1, 2, 5, 40])
def test_all_sources_are_listed_at_once_then_all_files_read_in_one_batch(count: int) -> None:
    """A discovery is two rounds, however many sources and skills there are."""
    sources = [f"/source{number:02}" for number in range(count)]
    tree = Tree(skills(*(f"{source}/{name}" for source in sources for name in ("one", "two"))))
    catalog = tree.discover(*sources)
    listings, files = tree.rounds
    assert listings == tuple(ListDirectory(source) for source in sources)
    assert [type(call) for call in files] == [ReadFiles]
    assert len(tree.read) == 2 * count
    assert paths(catalog) == {"one": f"{sources[-1]}/one/SKILL.md", "two": f"{sources[-1]}/two/SKILL.md"}


def test_no_source_asks_nothing() -> None:
    """Without sources there is nothing to ask and nothing to complain of."""
    tree = Tree({})
    assert tree.discover() == Catalog([], [], [], {}, [])
    assert tree.rounds == []


def test_a_source_named_twice_is_asked_once() -> None:
    """A repeated source costs no second listing, and shadows nothing."""
    tree = Tree(skills("/a/one"))
    catalog = tree.discover("/a", "/a/")
    assert len(tree.listed) == 1
    assert catalog.problems == []


NESTED = {
    **skills("/s/top", "/s/group/mid", "/s/group/deeper/low", "/s/a/b/c/abyss"),
    **skills("/s/top/inner", "/s/group/mid/scripts/hidden"),
    "/s/group/README.md": "no skill",
    "/s/SKILL.txt": "no skill either",
}


@pytest.mark.parametrize(
    ("max_depth", "names", "rounds"),
    [
        (1, ["top"], 2),
        (2, ["mid", "top"], 3),
        (3, ["low", "mid", "top"], 4),
        (4, ["abyss", "low", "mid", "top"], 5),
        (9, ["abyss", "low", "mid", "top"], 6),
    ],
)
def test_skills_lie_as_deep_as_allowed_and_none_below_another(max_depth: int, names: list[str], rounds: int) -> None:
    """The search goes `max_depth` levels down, one round a level, and stops below a skill."""
    tree = Tree(NESTED)
    catalog = tree.discover("/s", max_depth=max_depth)
    assert sorted(paths(catalog)) == names
    assert len(tree.rounds) == rounds
    assert not [path for path in tree.listed if path.startswith(("/s/top/", "/s/group/mid/"))]


@pytest.mark.parametrize("max_depth", [1, 3])
@pytest.mark.parametrize("source", ["/s/group/mid", "/s/group/mid/"])
def test_a_source_that_is_a_skill_directory_is_that_skill(source: str, max_depth: int) -> None:
    """A skill's own directory given as a source is that one skill, and nothing below it is searched."""
    tree = Tree(NESTED)
    catalog = tree.discover(source, max_depth=max_depth)
    assert paths(catalog) == {"mid": "/s/group/mid/SKILL.md"}
    assert tree.listed == [source]
    assert catalog.problems == []


@pytest.mark.parametrize("name", [".git", "node_modules", ".venv", "__pycache__"])
@pytest.mark.parametrize("max_depth", [1, 2, 3])
def test_some_directories_are_passed_over(name: str, max_depth: int) -> None:
    """Directories of tools are neither listed nor read, at any level."""
    places = (name, f"{name}/one", f"group/{name}", "good", "group/fine")
    tree = Tree({f"/s/{place}/SKILL.md": skill_md("x") for place in places})
    tree.discover("/s", max_depth=max_depth)
    assert not [path for path in [*tree.listed, *tree.read] if name in path.split("/")]
    assert "/s/good/SKILL.md" in tree.read


def test_only_a_file_of_the_exact_name_makes_a_skill() -> None:
    """Other spellings, and a directory of that name, make no skill."""
    text = skill_md("x")
    tree = Tree({"/s/a/skill.md": text, "/s/b/SKILL.MD": text, "/s/c/SKILL.md/deep": text, "/s/d/SKILL.md.bak": text})
    assert tree.discover("/s", max_depth=3).skills == []


# Which skill wins.


def test_the_later_source_wins_and_the_loser_is_named() -> None:
    """Of skills with one name the later source's is used; a warning names the path that lost."""
    tree = Tree(skills("/base/shared", "/base/own", "/user/shared", "/team/shared"))
    catalog = tree.discover("/base", "/user", "/team")
    assert paths(catalog) == {"own": "/base/own/SKILL.md", "shared": "/team/shared/SKILL.md"}
    assert codes(catalog) == [
        ("/base/shared/SKILL.md", "skill-shadowed", "warning"),
        ("/user/shared/SKILL.md", "skill-shadowed", "warning"),
    ]
    assert "/team/shared/SKILL.md" in catalog.problems[-1]["message"]


def test_a_skill_does_not_hide_itself() -> None:
    """A skill found through two sources, as its own directory and in the one above, is one skill and no conflict."""
    catalog = Tree(skills("/s/one", "/s/two")).discover("/s", "/s/one")
    assert paths(catalog) == {"one": "/s/one/SKILL.md", "two": "/s/two/SKILL.md"}
    assert catalog.problems == []


def test_the_first_path_wins_inside_a_source() -> None:
    """Two skills of one name in one source: the first path in order is used, a warning names the other."""
    tree = Tree({"/s/b/SKILL.md": skill_md("same"), "/s/a/SKILL.md": skill_md("same")})
    catalog = tree.discover("/s")
    assert paths(catalog) == {"same": "/s/a/SKILL.md"}
    assert ("/s/b/SKILL.md", "skill-duplicate", "warning") in codes(catalog)
    assert ("/s/a/SKILL.md", "skill-duplicate", "warning") not in codes(catalog)


# What goes wrong.


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        pytest.param(Failed("Path '/bad': path_not_found"), ("source-missing", "warning"), id="missing"),
        pytest.param(Failed("FileNotFoundError: [Errno 2] No such file"), ("source-missing", "warning"), id="enoent"),
        pytest.param(Listing(()), ("source-empty", "warning"), id="empty"),
        pytest.param(Listing((Entry("/bad/x", is_directory=True),)), ("source-empty", "warning"), id="no-skill-in-it"),
        pytest.param(Listing((Entry("/bad/x", is_directory=False),)), ("source-empty", "warning"), id="files-only"),
        pytest.param(Failed("permission denied"), ("source-failed", "error"), id="failing"),
        pytest.param(Failed("not_a_directory"), ("source-failed", "error"), id="a-file"),
        pytest.param(Failed("no answer within 2 seconds", timed_out=True), ("source-failed", "error"), id="late"),
        pytest.param(Files(()), ("source-failed", "error"), id="no-listing"),
        pytest.param(Listing((), "part is missing"), ("source-incomplete", "error"), id="partial"),
    ],
)
@pytest.mark.parametrize("max_depth", [1, 2])
def test_a_source_that_gives_nothing_costs_no_other(reply: Reply, expected: tuple[str, str], max_depth: int) -> None:
    """Each way in which a source gives nothing is one problem of its own, and all other sources load."""
    tree = Tree(skills("/good/one", "/last/two"), replies={"/bad": reply, "/bad/x": Listing(())})
    catalog = tree.discover("/good", "/bad", "/last", max_depth=max_depth)
    assert sorted(paths(catalog)) == ["one", "two"]
    assert codes(catalog) == [("/bad", *expected)]
    message = catalog.problems[0]["message"]
    if isinstance(reply, Failed) and expected[1] == "error":
        assert reply.reason in message
    errors = source_errors(catalog.problems)
    assert errors == ([f"Cannot load skills from '/bad': {message}"] if expected[1] == "error" else [])


def test_a_partial_listing_is_used_and_reported() -> None:
    """Entries that come with an error are read; the error says that there may be more."""
    listing = Listing((Entry("/s/one", is_directory=True),), "child error: cannot stat '/s/two'")
    tree = Tree(skills("/s/one", "/s/two"), replies={"/s": listing})
    catalog = tree.discover("/s")
    assert list(paths(catalog)) == ["one"]
    assert codes(catalog) == [("/s", "source-incomplete", "error")]
    assert "cannot stat '/s/two'" in catalog.problems[0]["message"]


def test_a_directory_below_a_source_that_fails_is_reported_and_costs_no_other() -> None:
    """A failing directory further down makes the source incomplete; the rest of it is used."""
    tree = Tree(skills("/s/a/one", "/s/b/two"), replies={"/s/a": Failed("denied")})
    catalog = tree.discover("/s", max_depth=2)
    assert list(paths(catalog)) == ["two"]
    assert codes(catalog) == [("/s", "source-incomplete", "error")]
    assert "/s/a: denied" in catalog.problems[0]["message"]


BROKEN: dict[str, tuple[str | bytes, str]] = {
    "no-frontmatter": ("# Just text", "no-frontmatter"),
    "unclosed": ("---\nname: x\n", "frontmatter-unclosed"),
    "binary": (b"\x89PNG\r\n\x00\xff\xfe\xfd" * 50, "not-text"),
    "too-large": (b"x" * (MAX_SKILL_FILE_BYTES + 1), "file-too-large"),
    "no-description": ("---\nname: bad\n---\n", "description-missing"),
    "a-list": ("---\n- a\n- b\n---\n", "frontmatter-not-mapping"),
    "empty": (b"", "no-frontmatter"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_one_broken_skill_costs_no_other(kind: str) -> None:
    """A file that cannot be used is an error of its own; the skills beside it load."""
    content, code = BROKEN[kind]
    tree = Tree({**skills("/s/a", "/s/z"), "/s/bad/SKILL.md": content})
    catalog = tree.discover("/s")
    assert list(paths(catalog)) == ["a", "z"]
    assert codes(catalog) == [("/s/bad/SKILL.md", code, "error")]


def test_a_directory_without_a_skill_is_no_problem() -> None:
    """Not every directory is a skill: one that has no `SKILL.md` is passed over without a word."""
    assert Tree({**skills("/s/a"), "/s/docs/README.md": "text"}).discover("/s").problems == []


def test_a_skill_file_that_cannot_be_read_is_an_error() -> None:
    """A file that is there and cannot be had is reported, as is one that a listing showed and that is gone."""
    tree = Tree(skills("/s/a", "/s/secret", "/leaf"), errors={"/s/secret/SKILL.md": "permission_denied"})
    catalog = tree.discover("/s")
    assert codes(catalog) == [("/s/secret/SKILL.md", "skill-unreadable", "error")]
    assert "permission_denied" in catalog.problems[0]["message"]
    tree = Tree(skills("/leaf"), errors={"/leaf/SKILL.md": FILE_NOT_FOUND})
    assert codes(tree.discover("/leaf")) == [("/leaf/SKILL.md", "skill-unreadable", "error")]


@pytest.mark.parametrize(
    "reason",
    ["boom\nERROR: forged\r\nsecond", "x" * 1_000_000, "\x1b[31mred\x1b[0m \u202eright to left"],
    ids=["lines", "huge", "escapes"],
)
@pytest.mark.parametrize("where", ["listing", "file", "partial", "below"])
def test_a_backends_error_text_is_data_in_a_problem(reason: str, where: str) -> None:
    """Whatever a backend says went wrong, a problem's message stays one clean line of bounded length."""
    entry = Listing((Entry("/s/a", is_directory=True),), reason if where == "partial" else None)
    replies: dict[str, Reply] = {"/s": Failed(reason) if where == "listing" else entry}
    if where == "below":
        replies["/s/a"] = Failed(reason)
    errors = {"/s/a/SKILL.md": reason} if where == "file" else {}
    catalog = Tree(skills("/s/a"), replies, errors).discover("/s", max_depth=2 if where == "below" else 1)
    (problem,) = catalog.problems
    assert problem["severity"] == "error"
    assert problem["message"].splitlines() == [problem["message"]]
    assert len(problem["message"]) < 2000
    assert not {"\x1b", "\u202e"} & set(problem["message"])


@pytest.mark.parametrize("extra", [0, 1, 5])
def test_a_listing_is_bounded_and_says_when_it_was_cut(extra: int) -> None:
    """At most so many directories of a source are searched; a warning says when there were more."""
    entries = tuple(Entry(f"/s/d{number:06}", is_directory=True) for number in range(MAX_DIRECTORIES + extra))
    tree = Tree(skills("/s/d000000", f"/s/d{MAX_DIRECTORIES:06}", "/other/one"), replies={"/s": Listing(entries)})
    catalog = tree.discover("/s", "/other")
    assert len(tree.read) == MAX_DIRECTORIES + 1
    assert list(paths(catalog)) == ["d000000", "one"]
    assert codes(catalog) == ([("/s", "source-cut", "warning")] if extra else [])


def test_the_bound_holds_over_all_levels_of_a_source() -> None:
    """Directories of every level count towards the bound."""
    half = MAX_DIRECTORIES // 2 + 1
    below = {f"/s/{top}": [f"/s/{top}/d{number:06}" for number in range(half)] for top in ("a", "b")}
    replies: dict[str, Reply] = {
        path: Listing(tuple(Entry(name, is_directory=True) for name in names)) for path, names in below.items()
    }
    replies["/s"] = Listing((Entry("/s/a", is_directory=True), Entry("/s/b", is_directory=True)))
    tree = Tree({}, replies)
    catalog = tree.discover("/s", max_depth=2)
    assert len(tree.read) == MAX_DIRECTORIES - 2
    assert ("/s", "source-cut", "warning") in codes(catalog)


# What an earlier discovery knew.


def test_a_source_that_fails_keeps_what_it_gave_before() -> None:
    """While a source is down its entries stay; those of sources that answer follow what they answer."""
    before = Tree(skills("/a/one", "/a/two", "/b/three", "/b/four")).discover("/a", "/b")
    tree = Tree(skills("/b/three", "/b/five"), replies={"/a": Failed("down")})
    catalog = tree.discover("/a", "/b", known=known_from(before))
    assert sorted(paths(catalog)) == ["five", "one", "three", "two"]
    assert [source.path for source in catalog.unsure] == ["/a"]
    assert codes(catalog) == [("/a", "source-failed", "error")]


@pytest.mark.parametrize(
    "reply", [Failed("Path '/a': path_not_found"), Listing(())], ids=["the-directory-is-gone", "the-directory-is-empty"]
)
def test_what_a_source_no_longer_has_is_gone(reply: Reply) -> None:
    """A source that answers, and has nothing more, keeps nothing."""
    before = Tree(skills("/a/one")).discover("/a")
    catalog = Tree({}, replies={"/a": reply}).discover("/a", known=known_from(before))
    assert catalog.skills == []
    assert catalog.unsure == []


def test_a_partial_listing_keeps_what_it_does_not_show() -> None:
    """What an incomplete listing leaves out may still be there; what it shows is read anew."""
    before = Tree(skills("/a/one", "/a/two")).discover("/a")
    listing = Listing((Entry("/a/one", is_directory=True),), "incomplete")
    edited = {"/a/one/SKILL.md": skill_md("one", "Edited.")}
    catalog = Tree(edited, replies={"/a": listing}).discover("/a", known=known_from(before))
    assert {skill["name"]: skill["description"] for skill in catalog.skills} == {
        "one": "Edited.",
        "two": "From /a/two.",
    }


def test_a_partial_listing_that_shows_a_directory_without_its_skill_drops_it() -> None:
    """A skill whose file is plainly gone does not stay because something else could not be listed."""
    before = Tree(skills("/a/one", "/a/two")).discover("/a")
    listing = Listing((Entry("/a/one", is_directory=True),), "incomplete")
    catalog = Tree({}, replies={"/a": listing}).discover("/a", known=known_from(before))
    assert list(paths(catalog)) == ["two"]


def test_a_file_that_cannot_be_read_keeps_its_entry() -> None:
    """An entry stays while its file cannot be read, and an error says so."""
    before = Tree(skills("/a/one", "/a/two")).discover("/a")
    tree = Tree(skills("/a/one", "/a/two"), errors={"/a/one/SKILL.md": "permission_denied"})
    catalog = tree.discover("/a", known=known_from(before))
    assert sorted(paths(catalog)) == ["one", "two"]
    assert codes(catalog) == [("/a/one/SKILL.md", "skill-unreadable", "error")]
    assert [source.path for source in catalog.unsure] == ["/a"]


def test_a_source_inside_one_that_fails_follows_its_own_listing() -> None:
    """Entries belong to the source that gave them, also where one source lies inside another."""
    before = Tree(skills("/lib/one", "/lib/team/two")).discover("/lib", "/lib/team")
    tree = Tree(skills("/lib/team/three"), replies={"/lib": Failed("down")})
    catalog = tree.discover("/lib", "/lib/team", known=known_from(before))
    assert sorted(paths(catalog)) == ["one", "three"]


def test_a_source_that_failed_before_it_gave_anything_gives_nothing() -> None:
    """Entries of other sources are not taken for those of one that failed."""
    before = Tree(skills("/ab/one")).discover("/ab")
    catalog = Tree({}, replies={"/a": Failed("down")}).discover("/a", known=known_from(before))
    assert catalog.skills == []


# Names that are not text.


@pytest.mark.parametrize("max_depth", [1, 2])
def test_a_directory_whose_name_is_not_text_is_a_problem_and_no_entry(max_depth: int) -> None:
    """A skill in such a directory could not be stored or asked for; one that is none costs no word."""
    found = {f"/s/{name}/SKILL.md": skill_md("a") for name in ("caf\udce9", "good")}
    catalog = Tree({**found, "/s/\udcff/README.md": "No skill."}).discover("/s", max_depth=max_depth)
    assert paths(catalog) == {"a": "/s/good/SKILL.md"}
    assert [code for code in codes(catalog) if code[1] != "name-directory-mismatch"] == [
        ("/s/caf\\udce9/SKILL.md", "skill-path-not-text", "error")
    ]
    [message] = [p["message"] for p in catalog.problems if p["code"] == "skill-path-not-text"]
    assert "not text" in message


# Listings that lead elsewhere.


def test_what_a_listing_leads_to_may_be_read_and_nothing_else() -> None:
    """A source may list skills that lie elsewhere, as links do; that makes no other place readable."""
    listing = Listing((Entry("/elsewhere/pool/linked", is_directory=True),))
    catalog = Tree(skills("/elsewhere/pool/linked"), replies={"/s": listing}).discover("/s")
    assert paths(catalog) == {"linked": "/elsewhere/pool/linked/SKILL.md"}
    assert readable_from("/elsewhere/pool/linked/SKILL.md", catalog.sources, catalog.origins)
    assert not readable_from("/elsewhere/secret", catalog.sources, catalog.origins)
    assert not readable_from("/etc/passwd", catalog.sources, catalog.origins)


def test_a_link_to_the_top_makes_not_everything_readable() -> None:
    """A skill directory right below the root, reached by a link, opens itself and not the whole backend."""
    listing = Listing((Entry("/linked", is_directory=True),))
    catalog = Tree(skills("/linked"), replies={"/s": listing}).discover("/s")
    assert readable_from("/linked/SKILL.md", catalog.sources, catalog.origins)
    assert not readable_from("/etc/passwd", catalog.sources, catalog.origins)


def test_a_source_that_fails_keeps_what_its_links_gave() -> None:
    """Entries that a listing led to count as that source's."""
    listing = Listing((Entry("/pool/linked", is_directory=True),))
    before = Tree(skills("/pool/linked"), replies={"/s": listing}).discover("/s")
    catalog = Tree({}, replies={"/s": Failed("down")}).discover("/s", known=known_from(before))
    assert list(paths(catalog)) == ["linked"]
    assert readable_from("/pool/linked/SKILL.md", catalog.sources, catalog.origins)


RELATIVE = pytest.mark.parametrize(
    ("source", "real"),
    [
        ("skills", "/home/me/skills"),
        ("./skills/", "/home/me/skills"),
        ("../skills", "/home/skills"),
        (".agents/skills", "/home/me/.agents/skills"),
        ("./.agents/skills/", "/home/me/.agents/skills"),
        ("app/.agents/skills", "/home/me/app/.agents/skills"),
    ],
)


@RELATIVE
def test_a_relative_source_that_fails_keeps_its_entries_also_in_another_process(source: str, real: str) -> None:
    """Whose an entry was is told by its path; that makes nothing readable that no listing showed."""
    before = Known(Tree(skills(f"{real}/one", "/elsewhere/two")).discover(real, "/elsewhere").skills)
    catalog = Tree({}, replies={source: Failed("down")}).discover(source, known=before)
    assert paths(catalog) == {"one": f"{real}/one/SKILL.md"}
    assert not readable_from(f"{real}/one/SKILL.md", catalog.sources, catalog.origins)


@pytest.mark.parametrize("order", [("skills", "/x/skills"), ("/x/skills", "skills")])
def test_an_absolute_source_keeps_what_a_relative_one_might_claim(order: tuple[str, str]) -> None:
    """An entry that lies under one source is not taken for another's that only sounds like it."""
    before = Known(Tree(skills("/x/skills/one")).discover("/x/skills").skills)
    replies: dict[str, Reply] = {"skills": Failed("down"), "/x/skills": Listing(())}
    assert Tree({}, replies=replies).discover(*order, known=before).skills == []


def test_words_to_find_skills_by_come_with_the_discovery_that_read_them() -> None:
    """Of two catalogs with the same path, each has the words of its own file; a skill without any has none."""
    cache = SkillCache()
    files = [{"/s/a/SKILL.md": f"---\nname: a\ndescription: d\ntags: {tag}\n---\n"} for tag in ("mine", "yours", "")]
    found = [Tree(one).discover("/s", cache=cache).tags for one in (*files, files[0])]
    assert [tags["/s/a/SKILL.md"] for tags in found] == ["mine", "yours", "", "mine"]


def test_a_file_that_no_skill_can_be_made_of_is_named_apart_from_one_that_is_gone() -> None:
    """Where a file is and cannot be used, the catalog says so."""
    files = {"/s/a/SKILL.md": "---\nname: a\n---\n", "/s/b/SKILL.md": skill_md("b"), "/s/c/notes.md": "x"}
    assert set(Tree(files).discover("/s").unusable) == {"/s/a/SKILL.md"}


@RELATIVE
def test_a_relative_source_is_kept_as_one_place(source: str, real: str) -> None:
    """What state keeps of a source whose paths a backend spells out does not grow with its skills."""
    files = skills(*(f"{real}/skill-{number}" for number in range(20)))
    listing = Listing(tuple(Entry(f"{real}/skill-{number}", is_directory=True) for number in range(20)))
    catalog = Tree(files, replies={source: listing}).discover(source)
    assert len(catalog.skills) == 20
    assert catalog.origins == {source: [real]}


def test_many_links_cost_no_more_than_many_directories() -> None:
    """Looking again at thousands of linked skills, each from a place of its own, takes linear time."""
    assert min(map(seconds_to_look_again, [4000] * 3)) < 8 * min(map(seconds_to_look_again, [1000] * 3))


def seconds_to_look_again(count: int) -> float:
    """Return the CPU time of a second discovery of `count` links."""
    text = "---\nname: skill-{0}\ndescription: d\n---\n"
    files = {f"/pool-{number}/skill-{number}/SKILL.md": text.format(number) for number in range(count)}
    entries = tuple(Entry(path.removesuffix("/SKILL.md"), is_directory=True) for path in files)
    cache = SkillCache()
    before = Tree(files, replies={"/s": Listing(entries)}).discover("/s", cache=cache)
    started = time.process_time()
    again = Tree(files, replies={"/s": Listing(entries)}).discover("/s", cache=cache, known=known_from(before))
    seconds = time.process_time() - started
    assert again.skills == before.skills
    return seconds


def test_a_file_outside_the_sources_may_not_be_read() -> None:
    """Only paths under a source are readable, whatever a catalog says."""
    catalog = Tree(skills("/s/a")).discover("/s")
    assert readable_from("/s/a/SKILL.md", catalog.sources, catalog.origins)
    for path in ("/etc/passwd", "/s/../etc/passwd", "/sx/a/SKILL.md", "s/a/SKILL.md", ""):
        assert not readable_from(path, catalog.sources, catalog.origins)


# The record in state.


def test_the_record_of_a_catalog_is_plain_data() -> None:
    """What state keeps passes through JSON unchanged, and tells this catalog from any other."""
    catalog = Tree(skills("/s/a", "/s/b")).discover("/s", ("/t", "Label"))
    record = catalog.record({})
    assert json.loads(json.dumps(record)) == record
    assert record["sources"] == [["/s", "S"], ["/t", "Label"]]
    assert record["digest"] == catalog_digest(json.loads(json.dumps(catalog.skills)))
    changed = [{**catalog.skills[0], "path": "/etc/passwd"}, *catalog.skills[1:]]
    assert record["digest"] != catalog_digest(changed)  # type: ignore[arg-type]
    assert record["digest"] != catalog_digest(reversed(catalog.skills))


def test_a_catalog_is_known_again_whatever_the_order_of_its_keys() -> None:
    """A checkpointer that sorts the keys of mappings does not make a catalog another one."""
    catalog = Tree({"/s/a/SKILL.md": skill_md("a", metadata={"z": "1", "b": "2"})}).discover("/s")
    turned = [dict(reversed(skill.items())) for skill in catalog.skills]
    assert catalog_digest(turned) == catalog_digest(catalog.skills)  # type: ignore[arg-type]


# The memory of parsed files.


def test_a_file_is_parsed_once_for_all_threads() -> None:
    """A second discovery with the same cache finds the same, and the very texts that were parsed for the first."""
    cache = SkillCache()
    tree = Tree({**skills("/s/a", "/s/b"), "/s/bad/SKILL.md": "no skill"})
    first = tree.discover("/s", cache=cache)
    second = tree.discover("/s", cache=cache)
    assert (first.skills, first.problems) == (second.skills, second.problems)
    for one, other in zip(first.skills, second.skills, strict=True):
        assert one["description"] is other["description"]
    assert first.problems[0]["message"] is second.problems[0]["message"]
    anew = tree.discover("/s")
    assert anew.skills == first.skills
    assert anew.skills[0]["description"] is not first.skills[0]["description"]


def test_a_changed_file_is_parsed_anew() -> None:
    """Content, not only the path, tells whether a file is known."""
    cache = SkillCache()
    first, *_ = cache.read("/s/a/SKILL.md", skill_md("a", "Old.").encode())
    second, *_ = cache.read("/s/a/SKILL.md", skill_md("a", "New.").encode())
    assert first is not None
    assert second is not None
    assert (first["description"], second["description"]) == ("Old.", "New.")


def test_equal_files_at_two_paths_are_two_skills() -> None:
    """A copy elsewhere has its own path and its own problems."""
    cache = SkillCache()
    content = skill_md("a").encode()
    first, first_problems, _ = cache.read("/s/a/SKILL.md", content)
    second, second_problems, _ = cache.read("/s/b/SKILL.md", content)
    assert first is not None
    assert second is not None
    assert (first["path"], second["path"]) == ("/s/a/SKILL.md", "/s/b/SKILL.md")
    assert first_problems == []
    assert [problem["path"] for problem in second_problems] == ["/s/b/SKILL.md"]


def test_a_caller_owns_what_it_gets() -> None:
    """Changing what the cache gave changes nothing for the next caller."""
    cache = SkillCache()
    content = skill_md("a", allowed_tools="Read Write", metadata={"k": "v"}).encode()
    first, problems, _ = cache.read("/s/other/SKILL.md", content)
    assert first is not None
    first["name"] = "changed"
    first["allowed_tools"].append("Bash")
    first["metadata"]["k"] = "changed"
    problems.clear()
    second, problems, _ = cache.read("/s/other/SKILL.md", content)
    assert second is not None
    assert (second["name"], second["allowed_tools"], second["metadata"]) == ("a", ["Read", "Write"], {"k": "v"})
    assert len(problems) == 1


def described(cache: SkillCache, name: str) -> str:
    """Return a skill's description as the cache reads it."""
    skill, *_ = cache.read(f"/s/{name}/SKILL.md", skill_md(name, f"What {name} does.").encode())
    assert skill is not None
    return skill["description"]


def test_the_memory_is_bounded_and_drops_the_longest_unused() -> None:
    """Only so many files are remembered; one in use stays."""
    cache = SkillCache(size=3)
    kept, dropped = described(cache, "kept"), described(cache, "dropped")
    for number in range(50):
        described(cache, f"s{number}")
        assert described(cache, "kept") is kept
    assert described(cache, "dropped") == dropped
    assert described(cache, "dropped") is not dropped


def test_many_threads_share_one_memory() -> None:
    """Threads that read the same and different files at once each get the right reading."""
    cache = SkillCache(size=20)
    contents = {f"/s/s{number}/SKILL.md": skill_md(f"s{number}").encode() for number in range(40)}

    def read_all(start: int) -> list[SkillMetadata | None]:
        order = [*list(contents)[start:], *list(contents)[:start]]
        found = {path: cache.read(path, contents[path])[0] for path in order}
        return [found[path] for path in contents]

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(read_all, range(40)))
    names = [[skill and skill["name"] for skill in result] for result in results]
    assert names == [[f"s{number}" for number in range(40)]] * 40
