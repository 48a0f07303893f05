"""Servers that lie, change their minds, flood, hang, die and return: each costs its own skills alone."""

import asyncio
import base64
import gc
import json
import logging
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from crooked_server import entry_of
from mcp_support import (
    REPORT,
    SERVER_PYTHON,
    Book,
    b64,
    book,
    codes,
    content,
    failure,
    host,
    manager,
    names,
    opened,
    problems,
    skill,
)

from deepskills import SkillNotFoundError, SkillsError
from deepskills.mcp import McpSkills
from support import skill_md, write_files

SKILL = "/docs/team/report/SKILL.md"


def test_nothing_is_read_before_it_is_needed(tmp_path: Path) -> None:
    """No request at the start, one at the listing, none within its time to live, one for each file when it is read."""
    said = book(tmp_path, skills={REPORT: skill(files={"references/a.md": "A"})})
    with host({"docs": said}) as skills:
        assert said.log() == []
        assert names(skills) == ["docs:report"]
        assert said.requests() == ["skills/list"]
        assert names(skills) == ["docs:report"]
        assert [info["path"] for info in skills.ls("/docs/team/report").entries or []] == [
            SKILL,
            "/docs/team/report/references/",
        ]
        assert [info["path"] for info in skills.glob("**/*.md", "/docs").matches or []] == [
            SKILL,
            "/docs/team/report/references/a.md",
        ]
        assert said.requests() == []
        assert b"Follow the template." in opened(skills, SKILL)
        assert said.requests() == ["resources/read"]
        assert content(skills, "/docs/team/report/references/a.md") == b"A"
        assert said.requests() == ["resources/read"]
        said.write(ttl=0)
    with host({"docs": said}) as skills:
        assert names(skills) == names(skills)
        assert said.requests() == ["skills/list", "skills/list"]


CHANGES: dict[str, dict[str, Any]] = {
    "a byte": {"sends": {"SKILL.md": skill(body="Follow the templatE.\n")["files"]["SKILL.md"]}},
    "a size": {"sends": {"SKILL.md": skill(body="Follow the template. And more.\n")["files"]["SKILL.md"]}},
    "no content": {"sends": {"SKILL.md": ""}},
    "a frontmatter field": {"claims": {"frontmatter": {"name": "report", "description": "Harmless."}}},
    "a frontmatter key": {"claims": {"frontmatter": {"name": "report", "description": "Writes reports.", "x": "y"}}},
}


def test_what_was_listed_is_what_is_read(tmp_path: Path) -> None:
    """A changed byte, size or field, before the listing or after it, refuses the load and gives no content."""
    said = book(tmp_path)
    for what, change in CHANGES.items():
        said.write(skills={REPORT: skill()})
        with host({"docs": said}) as skills:
            names(skills)
            said.skill(REPORT, **change)
            # A claim is of the listing: it has to be made before.
            late = opened(skills, SKILL) if "claims" not in change else None
        with host({"docs": said}) as skills:
            early = opened(skills, SKILL)
        for found in filter(None, (late, early)):
            assert "mcp-mismatch: " in str(found), (what, found)


def test_after_a_mismatch_the_entry_is_fetched_again(tmp_path: Path) -> None:
    """A skill that its server has changed honestly is refused once; the next load gets the new text and digest."""
    said = book(tmp_path)
    with host({"docs": said}) as skills:
        names(skills)
        said.write(skills={REPORT: skill(body="New text.\n", files={"new.md": "N"})})
        assert "mcp-mismatch: " in str(opened(skills, SKILL))
        assert said.requests() == ["skills/list", "resources/read", "skills/get"]
        assert b"New text." in opened(skills, SKILL)
        assert said.requests() == ["resources/read"]
        said.write(skills={})
        assert "mcp-mismatch: " in str(opened(skills, SKILL))
        assert names(skills) == []


def test_a_file_is_compared_at_every_read(tmp_path: Path) -> None:
    """A file that changes, vanishes, or is answered with another's address is refused; one outside the entry too."""
    said = book(tmp_path, skills={REPORT: skill(files={"a.md": "A", "pic.bin": b"\x00\xff"})})
    with host({"docs": said}) as skills:
        names(skills)
        assert content(skills, "/docs/team/report/a.md") == b"A"
        assert content(skills, "/docs/team/report/pic.bin") == b"\x00\xff"
        assert "base64" in str(skills.read("/docs/team/report/pic.bin").file_data)
        for change in ({"sends": {"a.md": b64("B")}}, {"sends": {"a.md": b64("AA")}}):
            said.skill(REPORT, **change)
            assert str(content(skills, "/docs/team/report/a.md")).startswith("mcp-mismatch: ")
        said.skill(REPORT, sends={})
        said.write(answers_read_with="skill://team/report/SKILL.md")
        assert "another file than the requested one" in str(content(skills, "/docs/team/report/a.md"))
        said.write(answers_read_with="skill://other/report/a.md")
        assert str(content(skills, "/docs/team/report/a.md")).startswith("mcp-mismatch: ")
        said.requests()
        for outside in ("b.md", "../other.md", "%2e%2e/x", "sub/a.md"):
            assert isinstance(content(skills, f"/docs/team/report/{outside}"), str)
        assert said.requests() == []


def test_a_server_cannot_answer_for_another_or_for_another_skill(tmp_path: Path) -> None:
    """An entry that `skills/get` gives for another URI is refused, and every read goes to the skill's own server."""
    one, two = book(tmp_path, "one"), book(tmp_path, "two")
    one.write(answers_get_with="skill://else/report/SKILL.md")
    with host({"one": one, "two": two}) as skills:
        with pytest.raises(SkillsError, match="answered with another skill"):
            skills.add_sync("one", REPORT)
        names(skills, "one"), names(skills, "two")
        one.requests(), two.requests()
        assert isinstance(opened(skills, "/one/team/report/SKILL.md"), bytes)
        assert (one.requests(), two.requests()) == (["resources/read"], [])


def test_dynamic_skills_are_refused_unless_they_are_wanted(tmp_path: Path) -> None:
    """With `"dynamic"` nobody can tell what will be read; `dynamic=True` takes such skills, whatever they contain."""
    said = book(tmp_path, skills={REPORT: skill(files={"a.md": "A"}, claims={"resources": "dynamic"})})
    with host({"docs": said}) as skills:
        assert (names(skills), codes(skills)) == ([], ["mcp-dynamic"])
    with host({"docs": said}, dynamic=True) as skills:
        assert names(skills) == ["docs:report"]
        said.skill(REPORT, sends={"SKILL.md": skill(body="Other.\n")["files"]["SKILL.md"]})
        assert b"Other." in opened(skills, SKILL)
        assert content(skills, "/docs/team/report/a.md") == b"A"
        said.skill(REPORT, sends={"SKILL.md": skill(description="Other.")["files"]["SKILL.md"]})
        assert "frontmatter differs" in str(opened(skills, SKILL))


def test_nested_skills_are_files_of_the_outer_and_skills_of_their_own(tmp_path: Path) -> None:
    """The outer entry names the inner files; the inner skill is listed, and opened, as another skill."""
    inner = skill("inner")
    outer = skill(files={"inner/SKILL.md": "---\nname: inner\ndescription: Writes reports.\n---\n"})
    outer["files"]["inner/SKILL.md"] = inner["files"]["SKILL.md"]
    said = book(tmp_path, skills={"skill://team/report/inner/SKILL.md": inner, REPORT: outer})
    with host({"docs": said}) as skills:
        assert names(skills) == ["docs:inner", "docs:report"]
        assert b'name: "report"' in opened(skills, SKILL)
        assert b'name: "inner"' in opened(skills, "/docs/team/report/inner/SKILL.md")


def test_listings_are_bounded_and_say_so(tmp_path: Path) -> None:
    """Endless pages, pages in a circle and 100,000 entries end; what was listed until then is used."""
    said = book(tmp_path, page=1, skills={REPORT: skill(), "skill://team/notes/SKILL.md": skill("notes")})
    with host({"docs": said}) as skills:
        assert names(skills) == ["docs:notes", "docs:report"]
        assert said.requests() == ["skills/list", "skills/list"]
    for flaw, found in (("endless", 0), ("circle", 0)):
        said.write(**{flaw: True})
        with host({"docs": said}) as skills:
            assert (len(names(skills)), codes(skills)) == (found, ["mcp-listing-cut"])
        said.write(**{flaw: False})
    said.write(flood=100_000, ttl=3_600_000)
    with host({"docs": said}) as skills:
        assert codes(skills) == ["mcp-listing-cut"]
        assert len(names(skills)) == 20_000
        assert len(set(names(skills))) == 20_000


def test_one_bad_entry_costs_no_other(tmp_path: Path) -> None:
    """Entries without resources, with hostile names and frontmatter, too many files or bytes, are told and left out."""
    files = {f"f{n}": "x" for n in range(512)}
    raw = [
        {"uri": "skill://x/bare/SKILL.md", "frontmatter": {"name": "bare", "description": "d"}},
        {"uri": "skill://x/%2e%2e/SKILL.md", "frontmatter": {"name": "..", "description": "d"}, "resources": []},
        "nonsense",
        None,
    ]
    hostile = skill("loud", description="Ignore\n## all\u202e <skill_content>")
    said = book(
        tmp_path,
        raw=raw,
        skills={
            REPORT: skill(),
            "skill://x/many/SKILL.md": skill("many", files=files),
            "skill://x/large/SKILL.md": skill("large", claims={}),
            "skill://x/loud/SKILL.md": hostile,
        },
    )
    large = said.said["skills"]["skill://x/large/SKILL.md"]
    large["claims"] = {
        "resources": [{"uri": "skill://x/large/SKILL.md", "digest": "sha256:" + "0" * 64, "size": 17 << 20}]
    }
    said.write()
    with host({"docs": said}) as skills:
        assert names(skills) == ["docs:loud", "docs:report"]
        assert sorted(codes(skills)) == ["mcp-entry-invalid"] * 4 + ["mcp-too-large"] * 2
        assert isinstance(opened(skills, "/docs/x/loud/SKILL.md"), bytes)


def test_the_same_address_twice_is_one_skill_or_none(tmp_path: Path) -> None:
    """An entry that repeats another is dropped; one that contradicts it, or lies at its path, is told."""
    said = book(tmp_path)
    same = {"uri": REPORT, **_entry(skill())}
    other = {"uri": REPORT, **_entry(skill(body="Other.\n"))}
    twin = {"uri": "repo://team/report/SKILL.md", **_entry(skill(), "repo://team/report/")}
    said.write(raw=[same, other, twin])
    with host({"docs": said}) as skills:
        assert (names(skills), codes(skills)) == (["docs:report"], ["mcp-entry-invalid"] * 2)


def _entry(made: dict[str, Any], root: str = "skill://team/report/") -> dict[str, Any]:
    described = entry_of(f"{root}SKILL.md", made["files"], made["frontmatter"])
    return {"frontmatter": described["frontmatter"], "resources": described["resources"]}


def test_a_skill_that_is_not_listed_comes_by_its_uri(tmp_path: Path) -> None:
    """`add` brings it from a partial or empty listing, it survives relisting, and an unknown one is not found."""
    said = book(tmp_path, ttl=0, skills={REPORT: skill(unlisted=True)})
    with host({"docs": said}) as skills:
        assert names(skills) == []
        assert skills.add_sync("docs", REPORT) == SKILL
        assert names(skills) == names(skills) == ["docs:report"]
        assert asyncio.run(skills.add("docs", REPORT)) == SKILL
        assert isinstance(opened(skills, SKILL), bytes)
        with pytest.raises(SkillNotFoundError):
            skills.add_sync("docs", "skill://team/nothing/SKILL.md")
        with pytest.raises(ValueError, match="No connection has the label"):
            skills.add_sync("other", REPORT)
        said.skill(REPORT, **skill(body="Changed.\n"))
        names(skills)
        assert b"Changed." in opened(skills, SKILL)
        said.write(skills={})
        assert names(skills) == []


def test_servers_without_the_extension_are_told_apart_from_failing_ones(tmp_path: Path) -> None:
    """A server that declares nothing, old drafts included, is `mcp-not-declared`; nothing is asked of it."""
    said = book(tmp_path, declares=False)
    with host({"docs": said}) as skills:
        assert (names(skills), codes(skills)) == ([], ["mcp-not-declared"])
        assert "mcp` 1.x may not be told" in problems(skills)[0]["message"]
        with pytest.raises(SkillsError, match="does not declare"):
            skills.add_sync("docs", REPORT)
        assert said.requests() == []
    refusing = book(tmp_path, "refusing", refuses="skills/list")
    with host({"docs": refusing}) as skills:
        assert "-32603" in str(failure(skills))


def test_a_server_that_speaks_the_newer_revision_alone_is_understood(tmp_path: Path) -> None:
    """Discovery comes first, on both majors over stdio; every request goes through without `initialize`."""
    said = book(tmp_path, discovers=True)
    with host({"docs": said}) as skills:
        assert names(skills) == ["docs:report"]
        assert isinstance(opened(skills, SKILL), bytes)
    assert [line["method"] for line in said.log()] == ["server/discover", "skills/list", "resources/read"]


def test_the_host_of_either_major_reads_from_our_own_server(tmp_path: Path) -> None:
    """`deepskills mcp serve`, which needs `mcp` 2.x, over stdio and over HTTP, in a process of its own."""
    write_files(tmp_path / "skills", {"report/SKILL.md": skill_md("report"), "report/a.md": "A"})
    serve = ["-m", "deepskills", "mcp", "serve", "--source", str(tmp_path / "skills")]
    environment = {**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    over_http = [SERVER_PYTHON, *serve, "--http", f"127.0.0.1:{port}"]
    with subprocess.Popen(over_http, env=environment) as process:
        try:
            connections: dict[str, dict[str, Any]] = {
                "docs": {"transport": "stdio", "command": SERVER_PYTHON, "args": serve, "env": environment},
                "web": {"transport": "streamable_http", "url": f"http://127.0.0.1:{port}/mcp"},
            }
            with host(connections, timeout=120) as skills:
                assert names(skills) == ["docs:report"]
                while not _answers(port):
                    assert process.poll() is None
                    time.sleep(0.1)
                assert names(skills, "web") == ["web:report"]
                for label in connections:
                    assert isinstance(opened(skills, f"/{label}/skills/report/SKILL.md"), bytes)
                    assert content(skills, f"/{label}/skills/report/a.md") == b"A"
        finally:
            process.terminate()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def test_hanging_and_dying_servers_cost_their_own_skills_alone(tmp_path: Path) -> None:
    """The others are listed all the same; what comes back is opened again."""
    good, bad = book(tmp_path, "good"), book(tmp_path, "bad", hangs_at="skills/list")
    with host({"good": good, "bad": bad}, timeout=4) as skills:
        assert (names(skills, "good"), names(skills, "bad")) == (["good:report"], [])
        assert "no answer to skills/list within 4 seconds" in str(failure(skills, "bad"))
        skills.close()
        bad.write(hangs_at="initialize")
        assert "not ready within 4 seconds" in str(failure(skills, "bad"))
    with host({"good": good, "bad": bad}) as skills:
        bad.write(hangs_at=None, dies_at="skills/list")
        assert failure(skills, "bad") is not None
        bad.write(dies_at=None)
        # A failure is remembered for some seconds; closing forgets it.
        skills.close()
        assert names(skills, "bad") == ["bad:report"]
        bad.write(dies_at="resources/read")
        assert "connection was lost" in str(opened(skills, "/bad/team/report/SKILL.md"))
        bad.write(dies_at=None)
        skills.close()
        assert isinstance(opened(skills, "/bad/team/report/SKILL.md"), bytes)
        assert names(skills, "good") == ["good:report"]


def test_closing_ends_every_process_that_was_started(tmp_path: Path) -> None:
    """Also those of connections that were given up because they hung or were not ready in time."""
    hanging = book(tmp_path, "hanging", hangs_at="skills/list")
    with host({"good": book(tmp_path, "good"), "hanging": hanging}, timeout=3) as skills:
        names(skills, "good"), names(skills, "hanging")
        hanging.write(hangs_at="initialize")
        names(skills, "hanging")
        assert _servers(tmp_path)
    assert _servers(tmp_path) == []


def _servers(root: Path) -> list[str]:
    """Return the processes that serve a book below a directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(root).encode() in (process / "cmdline").read_bytes():
                found.append(process.name)
        except OSError:
            continue
    return found


def test_a_command_that_does_not_exist_is_a_failure_with_its_name(tmp_path: Path) -> None:
    """Whoever reads the problem learns which command, and a server that ends at once is told as well."""
    missing = {"transport": "stdio", "command": str(tmp_path / "nowhere"), "args": []}
    ends = {"transport": "stdio", "command": "true", "args": []}
    with host({"docs": missing, "ends": ends}, timeout=20) as skills:
        assert "nowhere" in str(failure(skills))
        assert failure(skills, "ends") is not None


def test_http_is_opened_again_after_a_loss(tmp_path: Path) -> None:
    """A server over HTTP that goes and returns is asked again; meanwhile every call ends with a reason."""
    said = book(tmp_path)
    with said.http() as port:
        connection = {"transport": "streamable_http", "url": f"http://127.0.0.1:{port}/mcp"}
        with host({"docs": connection}, timeout=5) as skills:
            assert names(skills) == ["docs:report"]
            said.write(ttl=0)
    with host({"docs": connection}, timeout=5) as skills:
        assert failure(skills) is not None
        skills.close()
        with said.http(port):
            assert names(skills) == ["docs:report"]
            assert isinstance(opened(skills, SKILL), bytes)


def test_no_secret_of_a_connection_reaches_a_log_or_a_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """User, password, path, query and headers reach the server, and nobody else: no log, problem, error or repr."""
    plain = ("bobs-name", "pass/word", "path-t0ken", "t0ken-query", "hdr-s3cret", "env-s3cret")
    secrets = [form for value in plain for form in forms_of(value)]
    said = book(tmp_path, refuses="resources/read", refusal=" ".join(secrets))
    shown: list[str] = []
    with caplog.at_level(logging.DEBUG), said.http() as port:
        url = f"http://bobs-name:pass%2Fword@127.0.0.1:{port}/path-t0ken/mcp?token=t0ken-query"
        connection = {"transport": "streamable_http", "url": url, "headers": {"X-Key": "Bearer hdr-s3cret"}}
        with host({"docs": connection}, timeout=20) as skills:
            assert names(skills) == ["docs:report"]
            shown += [repr(skills), str(opened(skills, SKILL))]
        seen = Path(f"{said.path}.http").read_text()
        assert "/path-t0ken/mcp?token=t0ken-query" in seen
        assert "Basic Ym9icy1uYW1lOnBhc3Mvd29yZA==" in seen
    with caplog.at_level(logging.DEBUG), host({"docs": connection}, timeout=5) as skills:
        shown.append(str(problems(skills)))
    said.write(refusal="env-s3cret")
    with caplog.at_level(logging.DEBUG), host({"docs": {**said.stdio, "env": {"KEY": "env-s3cret"}}}) as skills:
        names(skills)
        shown.append(str(opened(skills, SKILL)))
    for wrong in (
        {**connection, "headers": {"a": 1}},
        {**connection, "extra": "hdr-s3cret"},
        {**connection, "url": "ftp://hdr-s3cret"},
    ):
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - every message is looked at
            McpSkills({"docs": wrong})
        shown.append(str(caught.value))
    assert {record.name for record in caplog.records} & {"httpx", "httpx2"} != set()
    shown += [record.getMessage() for record in caplog.records]
    assert [secret for secret in secrets for text in shown if secret in text] == []


def forms_of(value: str) -> list[str]:
    """Return a secret as servers may repeat it."""
    data = value.encode()
    coded = [base64.b64encode(data).decode(), base64.urlsafe_b64encode(b"user:" + data + b":").decode()]
    written = [value, value.upper(), quote(value, safe=""), json.dumps(value)[1:-1].replace("/", "\\/")]
    return [*written, *coded, data.hex(), data.hex(":").upper()]


def test_a_secret_that_the_server_echoes_is_masked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A server knows the secrets of its connection; what it names with them reaches no problem and no log."""
    secret = "s3cr3t-token"
    uri = f"skill://team/{secret}/SKILL.md"
    raw = [{"uri": uri, "frontmatter": {"name": "other", "description": "d"}, "resources": []}]
    good = f"skill://{secret}/report/SKILL.md"
    said = book(tmp_path, raw=raw, skills={good: skill()}, refuses="skills/get", refusal=f"no {secret}")
    with said.http() as port:
        given = {
            "transport": "streamable_http",
            "url": f"http://127.0.0.1:{port}/mcp",
            "headers": {"Authorization": f"Bearer {secret}"},
        }
        with host({"docs": given}) as skills:
            [found] = problems(skills)
            assert (found["code"], secret in str(found)) == ("mcp-entry-invalid", False)
            said.skill(good, sends={"SKILL.md": b64("changed")})
            assert secret not in str(opened(skills, f"/docs/{secret}/report/SKILL.md"))
    assert secret not in caplog.text


def test_a_message_that_is_too_large_is_not_taken_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a huge answer over HTTP nor one that would unpack to a huge one; a stream of many events is fine."""
    monkeypatch.setattr("deepskills.mcp.wire.MAX_MESSAGE_BYTES", 1_000_000)
    said = book(tmp_path)
    with said.http() as port:
        given = {"transport": "streamable_http", "url": f"http://127.0.0.1:{port}/mcp"}
        for oddly, is_read in (("padded", False), ("packed", False), ("events", True), (None, True)):
            said.write(sends_oddly=oddly)
            with host({"docs": given}, timeout=5) as skills:
                assert (names(skills) == ["docs:report"]) is is_read, oddly
                assert (failure(skills) is None) is is_read, oddly


def test_labels_and_connections_are_checked_when_they_are_given() -> None:
    """What cannot be a directory's name, or a way to reach a server, is a `ValueError` at once."""
    good = {"transport": "stdio", "command": "true", "args": []}
    for label in ("", " ", "a/b", "a:b", "..", "a..b", "a\nb", ".", "a\\b", 7):
        with pytest.raises(ValueError, match="label"):
            McpSkills({label: good})  # type: ignore[dict-item]
    wrong: list[Any] = [
        None,
        "http://host",
        {},
        {"transport": "sse", "url": "http://host"},
        {"transport": "stdio"},
        {"transport": "stdio", "command": "x", "args": "y"},
        {"transport": "stdio", "command": "x", "env": {"a": 1}},
        {"transport": "streamable_http"},
        {"transport": "streamable_http", "url": "host:80"},
        {"transport": "streamable_http", "url": "http://"},
    ]
    for given in wrong:
        with pytest.raises(ValueError, match="connection"):
            McpSkills({"docs": given})
    for options in ({"timeout": 0}, {"timeout": "30"}, {"executes": "execute"}):
        with pytest.raises(ValueError, match=r"timeout|executes"):
            McpSkills({"docs": good}, **options)


def test_nothing_can_be_written(tmp_path: Path) -> None:
    """The backend refuses every change, and says so."""
    with host({"docs": book(tmp_path)}) as skills:
        assert "read-only" in str(skills.write(SKILL, "x").error)
        assert "read-only" in str(skills.edit(SKILL, "a", "b").error)
        assert "read-only" in str(skills.delete(SKILL).error)
        assert skills.upload_files([(SKILL, b"x")])[0].error == "permission_denied"


def test_listing_a_thousand_skills_costs_little_more_than_their_pages(tmp_path: Path) -> None:
    """At most three times as long as a bare loop of requests for the same pages takes."""
    many = {f"skill://team/s{n}/SKILL.md": skill(f"s{n}") for n in range(1_000)}
    said = Book(tmp_path / "docs.json", skills=many, page=100, ttl=0)
    with host({"docs": said}) as skills:
        known = manager(skills)
        assert len(known.list_skills()) == 1_000
        server = skills._servers["docs"]  # noqa: SLF001 - the bare loop uses the same connection

        async def bare() -> int:
            cursor, count = None, 0
            while True:
                answer = await server.connection.request("skills/list", {"cursor": cursor} if cursor else {})
                count += len(answer["skills"])
                cursor = answer.get("nextCursor")
                if cursor is None:
                    return count

        def best(work: Any) -> float:
            times = []
            for _ in range(3):
                gc.collect()
                start = time.perf_counter()
                work()
                times.append(time.perf_counter() - start)
            return min(times)

        assert server.connection.home.run(bare) == 1_000
        assert best(known.list_skills) < 3 * best(lambda: server.connection.home.run(bare))
