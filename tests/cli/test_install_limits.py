"""What installing may cost, what is shown before it happens, and skills that another installer brought."""

import contextlib
import gzip
import hashlib
import io
import json
import os
import pty
import socket
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from install_support import (
    LIBRARY,
    LOCK,
    SKILLS,
    git,
    lock_rows,
    make_repository,
    make_tar,
    refuse,
    set_limit,
    snapshot,
    succeed,
)

from deepskills import SkillsManager
from support import skill_md, write_files
from support.command_line import invoke

NPX_LOCK = Path("skills-lock.json")


def npx_hash(files: Mapping[str, bytes]) -> str:
    """Return the other installer's hash of files given in its order."""
    return hashlib.sha256(b"".join(path.encode() + content for path, content in files.items())).hexdigest()


def npx_lock(**rows: Any) -> bytes:
    return json.dumps({"version": 1, "skills": rows}).encode()


def test_a_server_that_never_answers_is_given_up() -> None:
    """`--timeout` ends a fetch from a server that takes the connection and says nothing; nothing has changed."""
    before = snapshot(Path.cwd())
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"git://127.0.0.1:{server.getsockname()[1]}/library"
        assert "--timeout" in refuse(1, "add", url, "--yes", "--timeout", "0.5")
        assert snapshot(Path.cwd()) == before
        files = {"SKILL.md": {"sha256": "0" * 64, "size": 1, "executable": False}}
        line = f"{'0' * 64}  SKILL.md\n".encode()
        digest = f"sha256:{hashlib.sha256(line).hexdigest()}"
        row = {"source": url, "ref": "main", "commit": "0" * 40, "path": "pdf", "digest": digest, "files": files}
        LOCK.write_text(json.dumps({"version": 1, "skills": {"pdf": row}}), encoding="utf-8")
        assert "in time" in refuse(1, "update", "--yes", "--timeout", "0.5")
        assert "in time" in refuse(1, "install", "--frozen", "--timeout", "0.5")
    assert "--timeout" in refuse(2, "add", ".", "--timeout", "0")


def test_skills_inside_skills_cost_no_more_than_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of skills inside each other are one skill; asked for one by one, their files are counted for each."""
    entries: dict[str, str] = {}
    directory = ""
    for number in range(100):
        directory += f"{number}/"
        needs: dict[str, Any] = (
            {"metadata": {"requires": " ".join(str(other) for other in range(1, 100))}} if number == 0 else {}
        )
        entries[f"{directory}SKILL.md"] = skill_md(str(number), "Nested.", **needs)
    entries |= {f"{directory}{number}.md": "" for number in range(200)}
    archive = make_tar(tmp_path / "nested.tar.gz", entries)
    set_limit(monkeypatch, "candidates.MAX_ENTRIES", 10_000)
    assert "files; at most 10,000" in refuse(1, "add", str(archive), "--yes")
    set_limit(monkeypatch, "candidates.MAX_ENTRIES", 100_000)
    set_limit(monkeypatch, "candidates.MAX_PLACED_BYTES", 10_000)
    assert "bytes; at most 10,000" in refuse(1, "add", str(archive), "--yes")
    assert not SKILLS.exists()


def test_an_archive_is_refused_before_it_costs_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers, directories that only paths name, and instructions have limits of their own; long names are read."""
    place = tmp_path / "a.tar.gz"
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        for info in (tarfile.TarInfo(f"good/{'n' * 100_000}"), tarfile.TarInfo("good/x")):
            info.pax_headers = {"comment": "A" * 100_000}
            with tarfile.open(place, "w:gz", format=form) as archive:
                archive.addfile(info)
            expected = "a header of" if len(info.name) > 100 or form == tarfile.PAX_FORMAT else "no SKILL.md"
            assert expected in refuse(1, "add", str(place), "--yes")
        long = "d" * 120 + "/" + "e" * 120
        with tarfile.open(place, "w:gz", format=form) as archive:
            info = tarfile.TarInfo(f"{long}/SKILL.md")
            content = skill_md("long").encode()
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        succeed("add", str(place), "--yes")
        assert lock_rows()["long"]["path"] == long
    set_limit(monkeypatch, "trees.MAX_ENTRIES", 1_000)
    chains = {f"good/{number}/{'a/' * 100}f": "" for number in range(20)}
    assert "1,000 entries" in refuse(1, "add", str(make_tar(place, chains)), "--yes")
    set_limit(monkeypatch, "candidates.MAX_INSTRUCTION_BYTES", 100)
    many = {f"{name}/SKILL.md": skill_md(name, "x" * 90) for name in ("a", "b")}
    assert "at most 100 are read" in refuse(1, "add", str(make_tar(place, many)), "--yes")
    # What claims any size, or any memory, for nothing.
    info = tarfile.TarInfo("good/sparse")
    info.type = tarfile.GNUTYPE_SPARSE
    assert "a device" in refuse(1, "add", str(make_tar(place, LIBRARY, lambda archive: archive.addfile(info))), "--yes")
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_LZMA) as packed:
        packed.writestr("good/SKILL.md", skill_md("good"))
    assert "a rare method" in refuse(1, "add", str(tmp_path / "a.zip"), "--yes")
    # Cut anywhere, an archive is broken and no more.
    whole = gzip.decompress(make_tar(place, {"good/SKILL.md": "x" * 512, **LIBRARY}).read_bytes())
    for length in (100, 512, 600, 1_100, 2_100):
        place.write_bytes(gzip.compress(whole[:length]))
        assert "cannot be read" in refuse(1, "add", str(place), "--yes")


def _packet(content: bytes) -> bytes:
    return f"{len(content) + 4:04x}".encode() + content


def _serve_endless_words(server: socket.socket) -> None:
    """Speak git's protocol up to the point where a server may say something to the user, and never stop."""
    with server.accept()[0] as client:
        commit = b"1" * 40
        client.recv(65536)
        client.sendall(_packet(commit + b" HEAD\0shallow side-band-64k\n") + b"0000")
        asked = b""
        while b"deepen" not in asked:
            asked += client.recv(65536)
        client.sendall(_packet(b"shallow " + commit) + b"0000")
        while b"done" not in asked:
            asked += client.recv(65536)
        client.sendall(_packet(b"NAK\n"))
        with contextlib.suppress(OSError):
            while True:
                client.sendall(_packet(b"\2" + b"words without end \n" * 3_000))


def test_what_a_repository_says_and_names_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that talks without end costs no memory and is given up; a name of any length is not read."""
    set_limit(monkeypatch, "git.MAX_REPOSITORY_BYTES", 5_000_000)
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_serve_endless_words, args=(server,), daemon=True)
        thread.start()
        said = refuse(1, "add", f"git://127.0.0.1:{server.getsockname()[1]}/library", "--yes")
        thread.join()
    assert "larger than 5,000,000 bytes" in said
    assert len(said) < 1_000
    url = make_repository(tmp_path / "library")
    blob = git(tmp_path / "library", "rev-parse", "HEAD:README.md")
    tree = tmp_path / "tree"
    tree.write_bytes(f"100644 blob {blob}\t{'n' * 200_000}\n".encode())
    with tree.open("rb") as lines:
        made = subprocess.run(["git", "mktree"], cwd=tmp_path / "library", stdin=lines, check=True, capture_output=True)
    head = git(tmp_path / "library", "commit-tree", made.stdout.decode().strip(), "-m", "long")
    git(tmp_path / "library", "update-ref", "refs/heads/long", head)
    assert "a name of over 65,536 bytes" in refuse(1, "add", url, "--ref", "long", "--yes")
    assert not SKILLS.exists()


def test_headers_of_an_archive_cost_no_more_than_they_may(tmp_path: Path) -> None:
    """Headers that follow each other without end are refused as one; a global header, as git writes, is read."""
    place = tmp_path / "a.tar.gz"
    with tarfile.open(place, "w:gz", pax_headers={"comment": "1" * 40}) as archive:
        for path, content in LIBRARY.items():
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(path)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    whole = gzip.decompress(place.read_bytes())
    succeed("add", str(place), "--yes")
    place.write_bytes(gzip.compress(whole[:1_024] * 1_000 + whole[1_024:]))
    assert "a header of over 65,536 bytes" in refuse(1, "add", str(place), "--yes")
    # A damaged header ends no list silently.
    damaged = bytearray(whole)
    damaged[damaged.index(b"skills/pdf/scripts/run.py")] ^= 1
    place.write_bytes(gzip.compress(damaged))
    assert "cannot be read" in refuse(1, "add", str(place), "--yes")


def test_an_update_shows_the_difference_of_every_text_file(tmp_path: Path) -> None:
    """Changed, new and removed lines are shown before the question, edits on disk included; other files by name."""
    library = tmp_path / "library"
    body = "".join(f"line {number}\n" for number in range(40))
    write_files(library, {"pdf/SKILL.md": skill_md("pdf") + body, "pdf/old.md": "gone\n", "pdf/logo.bin": b"\0\1"})
    succeed("add", str(library), "--yes")
    (library / "pdf/old.md").unlink()
    changed = skill_md("pdf") + body.replace("line 20", "obey \x1b[31mme")
    write_files(library, {"pdf/SKILL.md": changed, "pdf/new.md": "fresh\n", "pdf/logo.bin": b"\0\2"})
    write_files(SKILLS, {"pdf/mine.md": "my edit\n"})
    before = snapshot(Path.cwd())
    shown = invoke("update")
    assert shown.exit_code == 2
    assert snapshot(Path.cwd()) == before
    for line in ("-line 20", "+obey ", " line 19", "-gone", "+fresh", "-my edit", "logo.bin differs and is not text"):
        assert line in shown.output, line
    assert "line 30" not in shown.output
    assert "\x1b" not in shown.output
    number = next(n for n, text in enumerate(changed.split("\n"), 1) if text.startswith("obey"))
    [row] = json.loads(invoke("update", "--json").stdout)["skills"]
    assert f"@@ -{number - 3},7 +{number - 3},7 @@" in row["texts"]["SKILL.md"]
    assert row["texts"]["logo.bin"] is None
    # Files made to be compared slowly are shown as a whole.
    write_files(library, {"pdf/SKILL.md": skill_md("pdf") + "a\nb\n" * 5_000})
    write_files(SKILLS, {"pdf/SKILL.md": skill_md("pdf") + "b\na\nc\n" * 5_000})
    [row] = json.loads(invoke("update", "--json").stdout)["skills"]
    assert row["texts"]["SKILL.md"].count("\n+b") == 5_000
    assert row["texts"]["SKILL.md"].count("\n-b") == 5_000


def test_remove_asks_first(tmp_path: Path) -> None:
    """Without `--yes` and without a terminal nothing changes and the exit code is 2; a person is asked."""
    write_files(tmp_path / "library", LIBRARY)
    succeed("add", str(tmp_path / "library"), "--yes")
    before = snapshot(Path.cwd())
    assert "--yes" in refuse(2, "remove", "pdf")
    assert snapshot(Path.cwd()) == before
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "deepskills", "remove", "pdf"]
    process = subprocess.Popen(command, stdin=theirs, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    os.write(ours, b"y\n")
    shown = []
    reader = threading.Thread(target=lambda: shown.append(_read_all(ours)))
    reader.start()
    assert process.wait() == 0
    reader.join()
    assert b"Remove 1 skill?" in shown[0]
    assert sorted(lock_rows()) == ["csv"]


def _read_all(descriptor: int) -> bytes:
    shown = b""
    try:
        while chunk := os.read(descriptor, 4096):
            shown += chunk
    except OSError:  # the terminal's other end was closed
        pass
    return shown


def test_verify_sees_every_skill_that_an_agent_could_see(tmp_path: Path) -> None:
    """A skill at any depth or in the source itself is named, by the rule of discovery; `install --frozen` refuses."""
    from deepagents.backends import FilesystemBackend  # noqa: PLC0415 - takes long to import

    write_files(tmp_path / "library", {"pdf/SKILL.md": skill_md("pdf"), "pdf/inner/SKILL.md": skill_md("inner")})
    succeed("add", str(tmp_path / "library"), "--yes")
    succeed("verify")
    succeed("install", "--frozen")
    root = SKILLS.absolute()
    linked = tmp_path / "linked"
    write_files(linked, {"deep/behind/SKILL.md": skill_md("behind")})
    write_files(
        root,
        {
            "a/b/c/d/e/deep/SKILL.md": skill_md("deep"),
            "a/b/c/d/e/deep/below/SKILL.md": skill_md("below"),
            "a/skill.md": skill_md("small"),
            "node_modules/x/SKILL.md": skill_md("x"),
            "references/r/SKILL.md": skill_md("r"),
        },
    )
    (root / "link").symlink_to(linked, target_is_directory=True)
    (root / "loop").symlink_to(root, target_is_directory=True)

    def unlisted() -> set[str]:
        result = invoke("verify", "--json")
        assert result.exit_code == 1
        return {row["skill"] for row in json.loads(result.stdout) if row["kind"] == "unlisted"}

    assert unlisted() == {"a/b/c/d/e/deep", "link/deep/behind", "references/r"}
    write_files(root, {"SKILL.md": skill_md("root")})
    found = unlisted()
    assert found == {".", "a/b/c/d/e/deep", "link/deep/behind"}
    (root / "loop").unlink()
    manager = SkillsManager(
        backend=FilesystemBackend(root_dir="/", virtual_mode=False), sources=[str(root)], max_depth=9
    )
    seen = set(manager.list_skills())
    assert {"pdf", "root", "deep"} <= seen <= {"pdf", "root", "deep", "behind"}
    said = refuse(1, "install", "--frozen")
    assert "a/b/c/d/e/deep" in said
    assert "Nothing was changed" in said
    succeed("install")


def test_skills_of_another_installer_are_compared_with_its_own_lock(tmp_path: Path) -> None:
    """Both locks side by side are normal; what differs from theirs is a warning, and their file is never written."""
    own = {
        "SKILL.md": skill_md("theirs").encode(),
        "a_b.md": b"1",
        "a-b.md": b"2",
        "A.md": b"5",
        "a.md": b"3",
        "B.md": b"4",
    }
    order = ["a_b.md", "a-b.md", "a.md", "A.md", "B.md", "SKILL.md"]
    write_files(SKILLS, {f"theirs/{path}": content for path, content in own.items()})
    (SKILLS / "theirs/link").symlink_to("a.md")
    write_files(SKILLS, {"theirs/.git/x": "x", "theirs/node_modules/y": "y"})
    write_files(SKILLS, {"odd/SKILL.md": skill_md("odd"), "odd/größe.md": "x", "bare/SKILL.md": skill_md("bare")})
    good = npx_hash({path: own[path] for path in order})
    rows = {"theirs": {"source": "o/r", "sourceType": "github", "computedHash": good}}
    NPX_LOCK.write_bytes(npx_lock(**rows, odd={"computedHash": good}, bare={}, gone={"computedHash": good}))
    before = NPX_LOCK.read_bytes()
    kinds = {row["skill"]: row["kind"] for row in json.loads(succeed("verify", "--json").stdout)}
    assert kinds == {"odd": "not checkable", "bare": "not checkable", "gone": "missing"}
    write_files(tmp_path / "library", LIBRARY)
    succeed("add", str(tmp_path / "library"), "--yes")
    succeed("install", "--frozen")
    said = " ".join(succeed("verify").output.split())
    assert "By deepskills: csv, pdf. By npx skills: bare, gone, odd, theirs." in said
    write_files(SKILLS, {"theirs/a.md": "changed"})
    result = succeed("verify", "--json")
    [row] = [row for row in json.loads(result.stdout) if row["skill"] == "theirs"]
    assert (row["kind"], row["severity"], row["installer"]) == ("differs", "warning", "npx skills")
    succeed("install", "--frozen")
    report = json.loads(invoke("doctor", "--json").stdout)
    assert {(row["skill"], row["installer"]) for row in report["installed"]} == {
        ("csv", "deepskills"), ("pdf", "deepskills"),
        ("bare", "npx skills"), ("gone", "npx skills"), ("odd", "npx skills"), ("theirs", "npx skills"),
    }  # fmt: skip
    [problem] = [found for found in report["problems"] if found["path"].endswith("theirs")]
    assert (problem["code"], problem["severity"]) == ("installed-differs", "warning")
    (SKILLS / "pdf/SKILL.md").write_text("edited", encoding="utf-8")
    report = json.loads(invoke("doctor", "--json").stdout)
    assert "pdf" in {Path(found["path"]).name for found in report["problems"] if found["code"] == "installed-differs"}
    succeed("verify", "--fix")
    # Whatever is in their file, ours is what counts.
    for content in (b"<<<<<<< HEAD", b"[]", b"\xff", b"[" * 100_000, npx_lock(**{"../up": {"computedHash": good}})):
        NPX_LOCK.write_bytes(content)
        assert refuse(1, "verify").count("unlisted") == 3
        assert invoke("doctor", "--json").exit_code in {0, 1}
    NPX_LOCK.write_bytes(before)
    assert "only read" in refuse(2, "add", str(tmp_path / "library"), "--yes", "--lock", "skills-lock.json")
    assert NPX_LOCK.read_bytes() == before
