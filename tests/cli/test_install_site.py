"""Skills that a web site publishes below `/.well-known/agent-skills/`."""

import io
import json
import shutil
import socket
import subprocess
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpx
import pytest
import uvicorn
from install_support import LOCK, SKILLS, lock_rows, refuse, set_limit, snapshot, succeed
from site_support import INDEX, SCHEMA, Site, entry, serve, tunnel

from deepskills.store import create_store_app
from support import skill_md
from support.command_line import invoke


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own proxies are none of these tests'."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def site() -> Iterator[Site]:
    with serve() as running:
        yield running


def packed_zip(files: Mapping[str, str]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return packed.getvalue()


def packed_tar(files: Mapping[str, str], change: Callable[[tarfile.TarFile], None] | None = None) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path, text in files.items():
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(text.encode()), 0o755 if path.startswith("scripts/") else 0o644
            archive.addfile(info, io.BytesIO(text.encode()))
        if change is not None:
            change(archive)
    return packed.getvalue()


PLAIN = skill_md("plain").encode()
PUBLISHED: Mapping[str, bytes] = {
    "plain.md": PLAIN,
    "zipped.zip": packed_zip({"SKILL.md": skill_md("zipped"), "references/a.md": "a"}),
    "packed.tar.gz": packed_tar({"SKILL.md": skill_md("packed"), "scripts/run.sh": "echo\n"}),
}


def test_a_site_gives_each_kind_of_skill(site: Site) -> None:
    """They are placed and locked under the site's name, and every other command works on them as on any source's."""
    site.publish(PUBLISHED, later="ignored")
    before = json.loads(succeed("add", site.url, "--yes", "--json").stdout)
    assert {row["name"]: (row["status"], row["path"], row["source"]) for row in before["skills"]} == {
        name: ("new", name, site.url) for name in ("plain", "zipped", "packed")
    }
    assert (SKILLS / "plain/SKILL.md").read_bytes() == PLAIN
    assert (SKILLS / "zipped/references/a.md").read_text() == "a"
    assert (SKILLS / "packed/scripts/run.sh").stat().st_mode & 0o100
    assert {(row["source"], row["ref"], row["commit"]) for row in lock_rows().values()} == {(site.url, None, None)}
    succeed("verify")
    (SKILLS / "plain/SKILL.md").write_text("edited")
    assert "plain/SKILL.md: changed" in refuse(1, "verify")
    succeed("verify", "--fix")
    assert (SKILLS / "plain/SKILL.md").read_bytes() == PLAIN
    # The same site by other addresses of its index.
    for address in (f"{site.url}/", f"{site.url}{INDEX}", f"{site.url}/.well-known/agent-skills/"):
        assert "Nothing to change" in succeed("add", address, "--yes").output


def test_an_update_and_a_fresh_machine(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`update` brings what the site publishes now; `install --frozen` only what was reviewed, or nothing."""
    site.publish(PUBLISHED)
    succeed("add", site.url, "--yes")
    locked = LOCK.read_bytes()
    changed = skill_md("plain", "Changed.").encode()
    site.publish({**PUBLISHED, "plain.md": changed})
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    monkeypatch.chdir(fresh)
    LOCK.write_bytes(locked)
    before = snapshot(fresh)
    assert "plain: " in (said := refuse(1, "install", "--frozen"))
    assert "other files than the lock says (SKILL.md)" in said
    assert snapshot(fresh) == before
    site.publish(PUBLISHED)
    succeed("install", "--frozen")
    site.publish({**PUBLISHED, "plain.md": changed})
    assert "+description: Changed." in succeed("update", "--yes").output
    assert (SKILLS / "plain/SKILL.md").read_bytes() == changed
    site.publish({"zipped.zip": PUBLISHED["zipped.zip"]})
    assert "no longer has it" in refuse(1, "update", "plain", "--yes")
    assert (SKILLS / "plain/SKILL.md").read_bytes() == changed


def test_only_what_was_named_is_fetched(site: Site) -> None:
    """Of many skills only those named are fetched, with what they require; an unknown name shows what there is."""
    needs = skill_md("needs", metadata={"requires": "plain"}).encode()
    site.publish({**PUBLISHED, "needs.md": needs})
    succeed("add", site.url, "--skill", "needs", "--yes")
    assert set(lock_rows()) == {"needs", "plain"}
    assert [path.rpartition("/")[2] for path in site.asked] == ["index.json", "needs.md", "plain.md"]
    said = refuse(2, "add", site.url, "--skill", "absent", "--yes")
    assert "It has: needs, packed, plain, zipped." in said


def test_addresses_are_taken_against_the_index(site: Site) -> None:
    """Redirects of each kind are followed, also of the index, and an address may be relative, rooted or whole."""
    site.index(
        [
            entry("../../up.md", skill_md("up").encode()),
            entry("/root.md", skill_md("root").encode()),
            entry(f"{site.url}/whole.md", skill_md("whole").encode()),
        ]
    )
    site.pages |= {
        "/elsewhere/a/b/index.json": site.pages.pop(INDEX),
        INDEX: (301, {"Location": "/elsewhere/a/b/index.json"}, b""),
        "/elsewhere/up.md": (308, {"Location": "/moved.md"}, b""),
        "/moved.md": skill_md("up").encode(),
        "/root.md": (200, {"Transfer-Encoding": "identity"}, skill_md("root").encode()),
        "/whole.md": skill_md("whole").encode(),
    }
    succeed("add", site.url, "--yes")
    assert set(lock_rows()) == {"up", "root", "whole"}


def test_what_is_wrong_with_one_skill_costs_that_skill(site: Site) -> None:
    """A wrong digest, what no honest archive holds, and wrong entries of the index are refused, each with a reason."""

    def link(archive: tarfile.TarFile) -> None:
        info = tarfile.TarInfo("link")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(info)

    # Stored, so that the text can be found and changed; its checksum is then wrong.
    torn = packed_zip({"SKILL.md": skill_md("torn"), "references/a.md": "as it was"}).replace(
        b"as it was", b"as it is!"
    )
    bad: Mapping[str, tuple[bytes, str]] = {
        "up.zip": (packed_zip({"SKILL.md": skill_md("up"), "../../up.txt": "x"}), "leads out of the source"),
        "rooted.tar.gz": (packed_tar({"SKILL.md": skill_md("rooted"), "/tmp/rooted": "x"}), "it is absolute"),
        "linked.tar.gz": (packed_tar({"SKILL.md": skill_md("linked")}, link), "links are not placed"),
        "deep.zip": (packed_zip({"deep/SKILL.md": skill_md("deep")}), "no file SKILL.md at its root"),
        "page.zip": (b"<html>", "neither a .zip nor a .tar.gz"),
        "broken.zip": (b"PK\x03\x04", "cannot be read"),
        "torn.zip": (torn, "cannot be read"),
        "nameless.md": (b"no frontmatter", "no frontmatter"),
    }
    site.publish({"plain.md": PLAIN, **{path: content for path, (content, _) in bad.items()}})
    rows = json.loads(site.pages[INDEX])["skills"]  # type: ignore[arg-type]
    rows += [
        entry("lied.md", b"another"),
        entry("gone.md", b""),
        entry("bare.md", b"", digest="sha256:abc"),
        entry("loose.md", b"", url=3),
        entry("later.md", b"", type="bundle"),
        entry("../plain.md", PLAIN, name="../plain"),
        entry("plain.md", PLAIN, name="Plain"),
        entry("plain.md", PLAIN, name="twice"),
        entry("plain.md", PLAIN, name="twice"),
        entry("file:///etc/passwd", b"", name="local"),
        "text",
        None,
    ]
    site.pages["/.well-known/agent-skills/lied.md"] = b"one thing"
    site.index(rows)
    done = invoke("add", site.url, "--yes", "--json")
    assert done.exit_code == 1, done.output
    report = json.loads(done.stdout)
    assert [row["name"] for row in report["skills"]] == ["plain"]
    assert set(lock_rows()) == {"plain"}
    reasons = {row["name"]: row["message"] for row in report["refused"]}
    for path, (_, why) in bad.items():
        assert why in reasons[path.partition(".")[0]], path
    assert "what was sent has the digest sha256:" in reasons["lied"]
    assert "answered 404" in reasons["gone"]
    assert "gives no `url`" in reasons["bare"]
    assert "gives no `url`" in reasons["loose"]
    assert "names it twice" in reasons["twice"]
    assert "not an https address" in reasons["local"]
    assert "later" not in reasons
    assert sum("not one that the index may have" in reason for reason in reasons.values()) == 2
    assert refuse(1, "add", site.url, "--skill", "plain", "--skill", "lied", "--yes").startswith("Fetching")


@pytest.mark.parametrize(
    ("index", "said"),
    [
        (b"<html>", "not readable as JSON"),
        (b"[" * 100_000, "not readable as JSON"),
        (b"[]", "only https://schemas.agentskills.io/discovery/0.2.0/schema.json is understood"),
        (b'{"skills": []}', "is understood"),
        (b'{"$schema": "https://x/0.3.0", "skills": []}', "`$schema` 'https://x/0.3.0'"),
        (json.dumps({"$schema": SCHEMA}).encode(), "not a list"),
        (json.dumps({"$schema": SCHEMA, "skills": [{}] * 2_001}).encode(), "not a list of at most 2,000"),
        (json.dumps({"$schema": SCHEMA, "skills": [{"name": "a", "type": "new"}]}).encode(), "no skill that could"),
        ((404, {}, b""), "answered 404"),
        ((503, {"Retry-After": "1"}, b""), "answered 503"),
        ((301, {"Location": INDEX}, b""), "one redirect too many"),
        ((302, {"Location": "file:///etc/passwd"}, b""), "'file:///etc/passwd' is not an https address"),
        ((302, {"Location": "http://example.com/"}, b""), "'http://example.com/' is not an https address"),
        ((302, {"Location": "https://user:secret@localhost:1/"}, b""), "credentials that are not sent"),
        ((302, {"Location": "http://[::1"}, b""), "is not a URL"),
        ((302, {"Location": "http://localhost:99999/"}, b""), "is not a URL"),
        ((200, {"Content-Length": "10"}, b"{}"), "not readable as JSON"),
    ],
)
def test_an_index_that_cannot_be_used(site: Site, index: bytes | tuple[int, dict[str, str], bytes], said: str) -> None:
    """It is one sentence that says why, and nothing is changed."""
    if isinstance(index, tuple) and index[2] == b"{}":
        # Less than was promised.
        index = (200, {"Content-Length": "10", "Connection": "close"}, b'{"a')
    site.pages[INDEX] = index
    before = snapshot(Path.cwd())
    output = refuse(1, "add", site.url, "--yes")
    assert said in output
    assert "secret" not in output
    assert snapshot(Path.cwd()) == before


def test_slow_and_endless_answers_end(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that says nothing, that sends headers or a body without end, or too much, is given up."""
    leave = threading.Event()

    def silent(_request: BaseHTTPRequestHandler) -> None:
        leave.wait(60)

    def dripping(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while not leave.wait(0.02):
            request.wfile.write(b"a")

    def endless(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not leave.is_set():
            request.wfile.write(b" " * 65_536)

    try:
        for page in (silent, dripping):
            site.pages[INDEX] = page
            assert "did not answer in time" in refuse(1, "add", site.url, "--yes", "--timeout", "0.5")
        set_limit(monkeypatch, "site.MAX_INDEX_BYTES", 1_000_000)
        site.pages[INDEX] = endless
        assert "sends more than 1,000,000 bytes" in refuse(1, "add", site.url, "--yes")
    finally:
        leave.set()
    assert not SKILLS.exists()


def test_all_skills_together_are_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many skills that are each small enough do not add up to more than a command takes."""
    site.publish({f"s{number}.zip": packed_zip({"SKILL.md": skill_md(f"s{number}")}) for number in range(5)})
    with monkeypatch.context() as patch:
        set_limit(patch, "site.MAX_PLACED_BYTES", 1_000)
        assert "too large together" in refuse(1, "add", site.url, "--yes")
    assert len(site.asked) < 6

    # A few bytes of each name thousands of directories, which every reading walks through again.
    def directories(archive: tarfile.TarFile) -> None:
        for number in range(100):
            info = tarfile.TarInfo(f"d{number}")
            info.type = tarfile.DIRTYPE
            archive.addfile(info)

    many = {f"s{number}.tar.gz": packed_tar({"SKILL.md": skill_md(f"s{number}")}, directories) for number in range(5)}
    site.publish(many)
    set_limit(monkeypatch, "site.MAX_ENTRIES", 250)
    del site.asked[:]
    assert "too large together" in refuse(1, "add", site.url, "--yes")
    assert len(site.asked) == 4


def test_what_a_host_words_is_cut(site: Site) -> None:
    """An answer that is none is shown briefly, and without what a terminal would obey."""

    def junk(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"\x1b[31mHACK" * 5_000 + b"\r\n\r\n")

    site.pages[INDEX] = junk
    said = refuse(1, "add", site.url, "--yes")
    assert "cannot be fetched" in said
    assert len(said) < 2_000
    assert "\x1b" not in said


@pytest.fixture
def own_address() -> str:
    """An address of this machine in its network, which is not the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Nothing is sent: this only asks for the route.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine is in no network")
        address: str = probe.getsockname()[0]
        return address


def certificate(place: Path, name: str) -> Path:
    """Make a certificate for a name, and its key, in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl")
    file = place / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"]
    made += ["-addext", f"subjectAltName={name}", "-keyout", f"{place}/key.pem", "-out", f"{place}/own.pem"]
    subprocess.run(made, check=True, capture_output=True)
    file.write_text((place / "key.pem").read_text() + (place / "own.pem").read_text())
    return file


def test_a_site_leads_no_further_in_than_it_lies(
    own_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site of a network cannot make this machine ask its own services, and its certificate has to be right."""
    pem = certificate(tmp_path, f"IP:{own_address}")
    with serve() as inner, serve(address=own_address, certificate=pem) as outer:
        inner.publish({"plain.md": PLAIN})
        outer.publish({"near.md": skill_md("near").encode()})
        assert "CERTIFICATE_VERIFY_FAILED" in refuse(1, "add", outer.url, "--yes")
        monkeypatch.setenv("SSL_CERT_FILE", str(pem))
        succeed("add", outer.url, "--yes")
        assert lock_rows()["near"]["source"] == outer.url
        outer.pages[INDEX] = (302, {"Location": f"{inner.url}{INDEX}"}, b"")
        assert "'127.0.0.1' lies in a network where the site does not" in refuse(1, "add", outer.url, "--yes")
        outer.index([entry(f"{inner.url}/.well-known/agent-skills/plain.md", PLAIN)])
        assert "lies in a network where the site does not" in refuse(1, "add", outer.url, "--yes")
        assert inner.asked == []
        # What lies further out may be named.
        inner.index([entry(f"{outer.url}/.well-known/agent-skills/near.md", skill_md("near").encode())])
        succeed("add", inner.url, "--yes")


def test_a_proxy_is_used_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's proxy is asked for names that only it may know, and never for this machine."""
    pem = certificate(tmp_path, "DNS:skills.example")
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    with serve(certificate=pem) as hidden, serve() as near, tunnel(hidden) as proxy:
        hidden.publish({"plain.md": PLAIN})
        near.publish({"near.md": skill_md("near").encode()})
        monkeypatch.setenv("https_proxy", proxy.url.replace("//", "//ann:p%20w@"))
        monkeypatch.setenv("http_proxy", proxy.url)
        succeed("add", "https://skills.example", "--yes")
        assert lock_rows()["plain"]["source"] == "https://skills.example"
        assert set(proxy.asked) == {"skills.example:443 Basic YW5uOnAgdw=="}
        succeed("add", near.url, "--yes")
        assert len(set(proxy.asked)) == 1
        # The last two are 127.0.0.1 and 10.0.0.1 for a gateway between the two kinds of addresses.
        for inner in ("169.254.169.254", "[::ffff:10.0.0.1]", "[64:ff9b::7f00:1]", "[2002:a00:1::]"):
            hidden.pages[INDEX] = (302, {"Location": f"https://{inner}/"}, b"")
            said = refuse(1, "add", "https://skills.example", "--yes")
            assert "lies in a network where the site does not" in said, inner


def test_addresses_that_name_no_site() -> None:
    """A site is named by https, without credentials; what has another path is a repository as before."""
    for source, code, said in (
        ("http://example.com", 1, "Use https"),
        ("https://user:secret@example.com", 1, "without credentials"),
        ("https://example.com?a=b", 1, "without credentials"),
        ("http://127.0.0.1:1/.well-known/agent-skills/index.json#a", 1, "without credentials"),
        ("http://localhost:1", 1, "cannot be fetched"),
    ):
        output = refuse(code, "add", source, "--yes")
        assert said in output, source
        assert "secret" not in output
    assert "has no refs" in refuse(1, "add", "https://example.com", "--ref", "main", "--yes")
    assert "git could not fetch" in refuse(1, "add", "http://localhost:1/repository", "--yes")


def test_a_store_of_ones_own_is_such_a_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `create_store_app` serves is added, updated and installed; what is not public is not there."""
    monkeypatch.setenv("DEEPSKILLS_USER_HEADER", "X-User")
    app = create_store_app(f"sqlite:///{tmp_path}/store.db")
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        alice = httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"X-User": "alice"}, timeout=60)
        with alice as http:
            made = [
                {"name": "plain", "is_public": True},
                {"name": "filed", "is_public": True, "files": [{"path": "references/a.md", "content": "text"}]},
                {"name": "secret", "is_public": False},
            ]
            ids = {}
            for skill in made:
                answer = http.post("/api/v1/skills", json={"description": "Does it.", "content": "# It\n", **skill})
                ids[skill["name"]] = answer.json()["data"]["id"]
            url = f"http://127.0.0.1:{port}"
            succeed("add", url, "--yes")
            assert set(lock_rows()) == {"plain", "filed"}
            assert (SKILLS / "filed/references/a.md").read_text() == "text"
            reviewed = LOCK.read_bytes()
            http.put(f"/api/v1/skills/{ids['plain']}", json={"content": "# Changed\n"}).raise_for_status()
            shutil.rmtree(SKILLS / "plain")
            assert "other files than the lock says" in refuse(1, "install", "--frozen")
            succeed("update", "plain", "--yes")
            assert "# Changed" in (SKILLS / "plain/SKILL.md").read_text()
            assert LOCK.read_bytes() != reviewed
            shutil.rmtree(SKILLS)
            succeed("install", "--frozen")
            succeed("verify")
    finally:
        server.should_exit = True
        thread.join()
