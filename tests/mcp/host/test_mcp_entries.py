"""Entries of servers: what is refused, what each skill is called, and what counts as the same content."""

import copy
import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from deepskills.mcp.entries import MAX_BYTES, MAX_FILES, EntryError, ServedSkill, name_served, parse_entry

URI = "skill://team/report/SKILL.md"


def file(path: str, content: bytes = b"x", root: str = "skill://team/report/") -> dict[str, Any]:
    return {"uri": root + path, "digest": "sha256:" + hashlib.sha256(content).hexdigest(), "size": len(content)}


def entry(name: str = "report", uri: str = URI, **fields: Any) -> dict[str, Any]:
    root = uri.removesuffix("SKILL.md")
    return {
        "uri": uri,
        "frontmatter": {"name": name, "description": "Writes reports.", **fields},
        "resources": [file("SKILL.md", root=root)],
    }


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    made = copy.deepcopy(entry())
    change(made)
    return made


INVALID: dict[str, object] = {
    "not an object": "skill",
    "no uri": changed(lambda e: e.pop("uri")),
    "uri not text": changed(lambda e: e.update(uri=7)),
    "no scheme": entry(uri="team/report/SKILL.md"),
    "other file": entry(uri="skill://team/report/README.md"),
    "no directory": entry(uri="skill://SKILL.md"),
    "name differs": changed(lambda e: e["frontmatter"].update(name="other")),
    "query": entry(uri="skill://team/report/SKILL.md?x"),
    "user": entry(uri="skill://bob:pw@team/report/SKILL.md"),
    "parent": entry(uri="skill://team/../report/SKILL.md"),
    "encoded parent": entry(uri="skill://team/%2e%2E/report/SKILL.md"),
    "encoded slash": entry(name="re/port", uri="skill://team/re%2fport/SKILL.md"),
    "encoded backslash": entry(uri="skill://te%5Cam/report/SKILL.md"),
    "encoded nul": entry(uri="skill://te%00am/report/SKILL.md"),
    "broken escape": entry(uri="skill://te%zzam/report/SKILL.md"),
    "not utf-8": entry(uri="skill://te%ffam/report/SKILL.md"),
    "backslash": entry(uri="skill://te\\am/report/SKILL.md"),
    "line break": entry(uri="skill://te\nam/report/SKILL.md"),
    "empty part": entry(uri="skill://team//report/SKILL.md"),
    "long": entry(uri=f"skill://{'a/' * 1500}report/SKILL.md"),
    "deep": entry(uri=f"skill://{'a/' * 40}report/SKILL.md"),
    "no frontmatter": changed(lambda e: e.pop("frontmatter")),
    "frontmatter a list": changed(lambda e: e.update(frontmatter=[])),
    "no name": changed(lambda e: e["frontmatter"].pop("name")),
    "no description": changed(lambda e: e["frontmatter"].pop("description")),
    "empty description": changed(lambda e: e["frontmatter"].update(description=" ")),
    "surrogate": changed(lambda e: e["frontmatter"].update(x="\ud800")),
    "not a number": changed(lambda e: e["frontmatter"].update(x=float("nan"))),
    "no resources": changed(lambda e: e.pop("resources")),
    "resources null": changed(lambda e: e.update(resources=None)),
    "resources text": changed(lambda e: e.update(resources="static")),
    "resource not an object": changed(lambda e: e["resources"].append("a.py")),
    "without itself": changed(lambda e: e.update(resources=[file("a.py")])),
    "twice": changed(lambda e: e["resources"].append(file("SKILL.md"))),
    "twice by escape": changed(lambda e: e["resources"].extend([file("a.py"), file("%61.py")])),
    "outside": changed(lambda e: e["resources"].append({**file("a"), "uri": "skill://team/other/a"})),
    "outside by dots": changed(lambda e: e["resources"].append(file("../other/a"))),
    "the directory": changed(lambda e: e["resources"].append(file(""))),
    "file and directory": changed(lambda e: e["resources"].extend([file("a"), file("a/b")])),
    "no digest": changed(lambda e: e["resources"][0].pop("digest")),
    "other digest": changed(lambda e: e["resources"][0].update(digest="md5:" + "0" * 32)),
    "short digest": changed(lambda e: e["resources"][0].update(digest="sha256:00")),
    "no size": changed(lambda e: e["resources"][0].pop("size")),
    "size a bool": changed(lambda e: e["resources"][0].update(size=True)),
    "size negative": changed(lambda e: e["resources"][0].update(size=-1)),
}


def test_an_entry_that_breaks_a_rule_is_refused() -> None:
    """Whatever could make one file look like another, or leaves something unsaid, refuses the entry."""
    taken = []
    for what, given in INVALID.items():
        try:
            parse_entry("docs", given)
        except EntryError as error:
            if error.code != "mcp-entry-invalid":
                taken.append((what, error.code))
        else:
            taken.append((what, "taken"))
    assert taken == []


def test_sizes_up_to_the_limit_are_taken_and_no_more() -> None:
    """512 files and 16 MiB are a skill; one file or one byte more is not."""
    full = entry()
    full["resources"] += [file(f"f{n}") for n in range(MAX_FILES - 1)]
    full["resources"][1]["size"] = MAX_BYTES - MAX_FILES + 1
    assert len(parse_entry("docs", full).files or {}) == MAX_FILES
    changes: list[Callable[[dict[str, Any]], object]] = [
        lambda e: e["resources"].append(file("one-more")),
        lambda e: e["resources"][1].update(size=MAX_BYTES),
        lambda e: e["resources"][0].update(size=11 * 1024 * 1024),
        lambda e: e["frontmatter"].update(x="y" * 70_000),
    ]
    for change in changes:
        large = copy.deepcopy(full)
        change(large)
        with pytest.raises(EntryError) as caught:
            parse_entry("docs", large)
        assert caught.value.code == "mcp-too-large"


def test_any_scheme_and_script_may_be_used() -> None:
    """A scheme is not a part of the path; escapes are decoded; digests are compared in one case."""
    found = parse_entry("docs", entry(name="周报", uri="repo://acme/%E5%91%A8%E6%8A%A5/SKILL.md"))
    assert (found.path, found.name) == ("acme/周报", "周报")
    assert parse_entry("docs", entry(uri="skill:///team/report/SKILL.md")).path == "team/report"
    upper = entry()
    upper["resources"][0]["digest"] = "sha256:" + upper["resources"][0]["digest"][7:].upper()
    assert parse_entry("docs", upper).mismatch("SKILL.md", b"y") == "its SHA-256 is not the one in the entry"


def described(content: str, **fields: Any) -> ServedSkill:
    given = entry(**fields)
    given["resources"] = [file("SKILL.md", content.encode())]
    return parse_entry("docs", given)


def test_frontmatter_is_compared_as_values() -> None:
    """A file and its entry say the same if their values are the same in JSON, however YAML writes them."""
    head = "---\nname: report\ndescription: Writes reports.\n"
    same: list[tuple[str, dict[str, Any]]] = [
        ("", {}),
        ("version: 1.10\n", {"version": 1.1}),
        ("version: 1.10\n", {"version": "1.10"}),
        ("on: true\nx: ~\n", {"on": True, "x": None}),
        ("list: [a, 2]\nmap:\n  k: v\n", {"list": ["a", 2], "map": {"k": "v"}}),
        ('text: "line\\u2028 end"\n', {"text": "line\u2028 end"}),
        ("day: 2026-09-01\n", {"day": "2026-09-01"}),
    ]
    for more, fields in same:
        text = f"{head}{more}---\nBody\n"
        assert described(text, **fields).mismatch("SKILL.md", text.encode()) is None, more
    different: list[tuple[str, dict[str, Any]]] = [
        ("allowed-tools: execute\n", {}),
        ("", {"hooks": {}}),
        ("version: 1.10\n", {"version": 1.2}),
        ("list: [a]\n", {"list": ["a", "b"]}),
        ("map:\n  k: v\n", {"map": {"k": "w"}}),
        ("on: true\n", {"on": False}),
    ]
    for more, fields in different:
        text = f"{head}{more}---\nBody\n"
        reason = described(text, **fields).mismatch("SKILL.md", text.encode())
        assert "frontmatter differs" in str(reason), more


def test_names_carry_the_label_and_are_unique() -> None:
    """A skill is `label:name`; of several with one name each is `label:path`; none looks like another."""

    def named(*uris: str) -> dict[str, str]:
        skills = [parse_entry("docs", entry(name=uri.split("/")[-2], uri=uri)) for uri in uris]
        return {made.uri: name for name, made in name_served(skills).items()}

    assert named(URI) == {URI: "docs:report"}
    twins = ("skill://a/report/SKILL.md", "skill://b/report/SKILL.md", "skill://b/Report/SKILL.md")
    assert list(named(*twins).values()) == ["docs:a/report", "docs:b/Report", "docs:b/report~" + _mark(twins[1])]
    long = [f"skill://{side}{'x' * 200}/report/SKILL.md" for side in "ab"]
    assert len(set(named(*long).values())) == 2
    assert all(len(name) <= 128 for name in named(*long).values())


def _mark(uri: str) -> str:
    return hashlib.sha256(uri.encode()).hexdigest()[:8]


def test_the_digest_of_a_skill_changes_with_everything_in_it() -> None:
    """Label, URI, frontmatter and any file's content or size make another skill of it."""
    base = parse_entry("docs", entry()).digest
    others = [
        parse_entry("other", entry()),
        parse_entry("docs", entry(uri="skill://other/report/SKILL.md")),
        parse_entry("docs", entry(license="MIT")),
        parse_entry("docs", changed(lambda e: e["resources"][0].update(size=2))),
        parse_entry("docs", changed(lambda e: e["resources"].append(file("a")))),
        parse_entry("docs", changed(lambda e: e.update(resources="dynamic"))),
    ]
    assert len({base, *(made.digest for made in others)}) == 1 + len(others)
