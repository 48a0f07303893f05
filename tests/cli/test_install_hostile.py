"""Sources that mean harm: nothing outside the target is written or read, nothing runs, and each refusal says why."""

import io
import os
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from install_support import (
    LIBRARY,
    LOCK,
    SKILLS,
    commit,
    git,
    lock_rows,
    make_repository,
    make_tar,
    make_zip,
    refuse,
    set_limit,
    snapshot,
    succeed,
)

from support import scaled, skill_md, write_files

GOOD = {"good/SKILL.md": skill_md("good")}


def member(archive: tarfile.TarFile, name: str, content: bytes = b"", **fields: object) -> None:
    """Add an entry to a `.tar` with header fields as given."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    archive.addfile(info, io.BytesIO(content) if content else None)


def zip_entry(archive: zipfile.ZipFile, name: str, mode: int = stat.S_IFREG | 0o644, content: bytes = b"x") -> None:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    archive.writestr(info, content)


def test_archives_that_no_honest_packer_makes(tmp_path: Path) -> None:
    """Paths that leave, absolute ones, devices, entries twice or below a link: the whole archive is refused."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "SKILL.md").write_text("secret", encoding="utf-8")

    def link_then_below(archive: tarfile.TarFile) -> None:
        member(archive, "good/data", type=tarfile.SYMTYPE, linkname=str(outside))
        member(archive, "good/data/evil", b"evil")

    tars: dict[str, Callable[[tarfile.TarFile], None]] = {
        "leads out": lambda a: member(a, "good/../../evil", b"evil"),
        "absolute": lambda a: member(a, f"{outside}/evil", b"evil"),
        "device": lambda a: member(a, "good/dev", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
        "a device or a pipe": lambda a: member(a, "good/pipe", type=tarfile.FIFOTYPE),
        "twice": lambda a: member(a, "good/SKILL.md", b"another"),
        "not a directory": link_then_below,
        "backslash": lambda a: member(a, "good/..\\evil", b"evil"),
        "empty part": lambda a: member(a, "good//evil", b"evil"),
        "too long": lambda a: member(a, "good/" + "n" * 300, b"evil"),
    }
    before = snapshot(tmp_path)
    for words, change in tars.items():
        archive = make_tar(tmp_path / "a.tar.gz", GOOD, change)
        assert words in refuse(1, "add", str(archive), "--yes"), words
        archive.unlink()
    zips: dict[str, Callable[[zipfile.ZipFile], None]] = {
        "leads out": lambda a: zip_entry(a, "good/../../evil"),
        "absolute": lambda a: zip_entry(a, "/evil"),
        "it is absolute": lambda a: zip_entry(a, "C:/evil"),
        "backslash": lambda a: zip_entry(a, "good\\..\\evil"),
        "device": lambda a: zip_entry(a, "good/dev", stat.S_IFBLK | 0o600),
        "twice": lambda a: zip_entry(a, "./good/SKILL.md"),
    }
    for words, make in zips.items():
        place = make_zip(tmp_path / "a.zip", GOOD)
        with zipfile.ZipFile(place, "a") as packed:
            make(packed)
        assert words in refuse(1, "add", str(place), "--yes"), words
        place.unlink()
    for name, content in (("a.zip", b"PK\x05\x06 no"), ("b.tar.gz", b"\x1f\x8b no"), ("c.tar.gz", b""), ("d.zip", b"")):
        (tmp_path / name).write_bytes(content)
        refuse(1, "add", str(tmp_path / name), "--yes")
        (tmp_path / name).unlink()
    assert snapshot(tmp_path) == before


def test_links_names_and_case_spoil_only_their_skill(tmp_path: Path) -> None:
    """A skill with a link, a name that is not UTF-8 or names that differ by case alone stays out; others come."""
    outside = tmp_path / "secret.md"
    outside.write_text(skill_md("linked", "SECRET"), encoding="utf-8")

    def hostile(archive: tarfile.TarFile) -> None:
        for name in ("a", "b", "c", "d", "e"):
            content = skill_md(name).encode()
            member(archive, f"{name}/SKILL.md", content)
        member(archive, "linked/SKILL.md", type=tarfile.SYMTYPE, linkname=str(outside))
        member(archive, "a/later", type=tarfile.SYMTYPE, linkname="e/SKILL.md")
        member(archive, "b/hard", type=tarfile.LNKTYPE, linkname="z/SKILL.md")
        member(archive, "c/x.md", b"1")
        member(archive, "c/X.md", b"2")
        member(archive, os.fsdecode(b"d/\xff\xfe.md"), b"1")
        member(archive, "e/.git/hooks/post-checkout", b"#!/bin/sh\ntouch /tmp/evil\n", mode=0o755)
        # A directory that git takes for a repository without being named `.git`.
        for name in ("SKILL.md", "x/HEAD", "x/config", "x/objects/a", "x/refs/b"):
            member(archive, f"f/{name}", skill_md("f").encode())
        for name in ("SKILL.md", "head", "commondir"):
            member(archive, f"g/{name}", skill_md("g").encode())
        for name in ("SKILL.md", "x/HEAD", "x/objects/a", "refs/b"):
            member(archive, f"fine/{name}", skill_md("fine").encode())
        member(archive, "CLAUDE.md", type=tarfile.SYMTYPE, linkname="AGENTS.md")

    archive = make_tar(tmp_path / "a.tar.gz", GOOD, hostile)
    said = refuse(1, "add", str(archive), "--yes")
    for words in (
        "SKILL.md is a link",
        "a link, 'later'",
        "a link, 'hard'",
        "ignore case",
        "not UTF-8",
        "holds '.git/hooks/post-checkout'",
        "f (f): its directory 'x' is laid out as a git repository, whose settings can make git run commands",
        "g (g): its directory '.' is laid out as a git repository",
    ):
        assert words in said, (words, said)
    assert sorted(lock_rows()) == ["fine", "good"]
    succeed("remove", "fine", "--yes")
    assert "SECRET" not in str(snapshot(SKILLS))
    # The same in a directory, and in a `.zip`; there, names must say that they are UTF-8.
    library = tmp_path / "library"
    write_files(library, {**GOOD, "a/SKILL.md": skill_md("a"), "p/SKILL.md": skill_md("p")})
    (library / "a/later").symlink_to("/etc/passwd")
    os.mkfifo(library / "p/pipe")
    (library / "linked").mkdir()
    (library / "linked/SKILL.md").symlink_to(outside)
    (library / "whole").symlink_to("/etc", target_is_directory=True)
    said = refuse(1, "add", str(library), "--yes")
    assert "a link, 'later'" in said
    assert "not a regular file" in said
    assert "SKILL.md is a link" in said
    assert sorted(lock_rows()) == ["good"]
    assert "root:" not in str(snapshot(SKILLS))
    place = make_zip(tmp_path / "a.zip", GOOD)
    with zipfile.ZipFile(place, "a") as packed:
        zip_entry(packed, "a/SKILL.md", content=skill_md("a").encode())
        zip_entry(packed, "a/later", stat.S_IFLNK | 0o777, b"/etc/passwd")
    assert "a link, 'later'" in refuse(1, "add", str(place), "--yes", "--skill", "a")
    data = make_zip(tmp_path / "b.zip", {"good/n\u00e9.md": "1", **GOOD}).read_bytes()
    data = data.replace("n\u00e9".encode(), b"n\xe9\xe9")
    (tmp_path / "b.zip").write_bytes(data)
    assert "not UTF-8" in refuse(1, "add", str(tmp_path / "b.zip"), "--yes")
    (tmp_path / "b.zip").write_bytes(data.replace(struct.pack("<H", 0x800), struct.pack("<H", 0)))
    assert "not UTF-8" in refuse(1, "add", str(tmp_path / "b.zip"), "--yes")


def directory_of_a_zip(count: int) -> bytes:
    """Return a `.zip` that has nothing but the list of its entries, as those have that are made to crowd a reader."""
    fixed = struct.pack("<4s4B4HL2L5H2L", b"PK\x01\x02", 20, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0)
    listed = b"".join(fixed + b"%06d" % number for number in range(count))
    size = len(listed)
    zip64 = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, 0)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, size, 1)
    return listed + zip64 + locator + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, size, 0, 0)


def test_bombs_cost_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """10 GB that fit in 10 KB, claimed or real, and 200,000 entries are refused before they are unpacked."""

    def sparse(archive: tarfile.TarFile) -> None:
        info = tarfile.TarInfo("good/zeros")
        info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(10**10)}
        archive.addfile(info)

    archive = make_tar(tmp_path / "a.tar.gz", GOOD, sparse)
    refuse(1, "add", str(archive), "--yes")
    # Real zeros: 10 GB of them packed twice over; only as much is unpacked as shows that it is too much.
    once = zlib.compressobj(9, wbits=31)
    block = b"".join(once.compress(bytes(1 << 20)) for _ in range(64)) + once.flush()
    header = tarfile.TarInfo("good/zeros")
    header.size = 10**10
    start = zlib.compressobj(9, wbits=31)
    (tmp_path / "b.tar.gz").write_bytes(start.compress(header.tobuf()) + start.flush() + block * 160)
    assert "larger than" in refuse(1, "add", str(tmp_path / "b.tar.gz"), "--yes")
    place = make_zip(tmp_path / "c.zip", GOOD)
    with zipfile.ZipFile(place, "a", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("good/zeros", bytes(1 << 20))
    claimed = place.read_bytes().replace(struct.pack("<I", 1 << 20), struct.pack("<I", 0xFFFFFFF0))
    place.write_bytes(claimed)
    assert "larger than" in refuse(1, "add", str(place), "--yes")
    # A size that is a lie in the other direction.
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("good/SKILL.md", skill_md("good"))
        packed.writestr("good/zeros", bytes(1 << 20))
    place.write_bytes(place.read_bytes().replace(struct.pack("<I", 1 << 20), struct.pack("<I", 10)))
    refuse(1, "add", str(place), "--yes")
    limit = scaled(1_000, 100_000)
    set_limit(monkeypatch, "trees.MAX_ENTRIES", limit)
    place.write_bytes(directory_of_a_zip(2 * limit))
    with monkeypatch.context() as patch:
        # Its list is not even taken into memory.
        patch.setattr("zipfile.ZipFile", None)
        assert f"{limit:,} entries" in refuse(1, "add", str(place), "--yes")
    set_limit(monkeypatch, "trees.MAX_ENTRIES", 1_000)
    crowd = make_tar(tmp_path / "d.tar.gz", {f"good/{number}": "" for number in range(1_001)})
    assert "1,000 entries" in refuse(1, "add", str(crowd), "--yes")

    def again(archive: tarfile.TarFile) -> None:
        for _ in range(1_001):
            info = tarfile.TarInfo("good/same")
            info.type = tarfile.DIRTYPE
            archive.addfile(info)

    assert "1,000 entries" in refuse(1, "add", str(make_tar(tmp_path / "e.tar.gz", GOOD, again)), "--yes")
    library = tmp_path / "library"
    write_files(library, {**GOOD, "large/SKILL.md": skill_md("large")})
    with (library / "large/zeros").open("wb") as file:
        file.truncate(33 * 1024 * 1024)
    assert "larger than" in refuse(1, "add", str(library), "--yes")
    assert sorted(lock_rows()) == ["good"]
    assert not list(SKILLS.glob(".deepskills*"))


def test_a_repository_cannot_make_git_act(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks, filters, submodules, attributes, settings of the repository: nothing runs, and nothing is rewritten."""
    evil = tmp_path / "evil"
    repository = tmp_path / "repository"
    url = make_repository(
        repository, {**LIBRARY, ".gitattributes": "* text eol=crlf filter=evil diff=evil merge=evil\n"}
    )
    inner = make_repository(tmp_path / "inner", {"SKILL.md": skill_md("inner")})
    git(repository, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", inner, "skills/with/sub")
    commit(repository, {"skills/with/SKILL.md": skill_md("with")})
    os.symlink("/etc/passwd", repository / "link")  # noqa: PTH211 - a link that leads nowhere near
    os.mkdir(repository / "skills/link")  # noqa: PTH102 - as above
    os.symlink("../pdf/SKILL.md", repository / "skills/link/SKILL.md")  # noqa: PTH211 - as above
    commit(repository)
    for hook in ("post-checkout", "pre-commit", "post-merge", "reference-transaction", "post-index-change"):
        script = repository / ".git/hooks" / hook
        script.parent.mkdir(exist_ok=True)
        script.write_text(f"#!/bin/sh\ntouch {evil}\n", encoding="utf-8")
        script.chmod(0o755)
    # The user's own settings name the filter, and a template that brings hooks.
    template = tmp_path / "template/hooks"
    template.mkdir(parents=True)
    for hook in ("post-checkout", "reference-transaction"):
        (template / hook).write_text(f"#!/bin/sh\ntouch {evil}\n", encoding="utf-8")
        (template / hook).chmod(0o755)
    settings = tmp_path / "home/.gitconfig"
    settings.write_text(
        f'[filter "evil"]\n smudge = touch {evil}\n clean = touch {evil}\n required = true\n'
        f"[init]\n templateDir = {template.parent}\n"
        f"[core]\n hooksPath = {template}\n autocrlf = true\n fsmonitor = touch {evil}\n"
        "[protocol]\n allow = always\n[submodule]\n recurse = true\n[fetch]\n recurseSubmodules = true\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))
    said = refuse(1, "add", url, "--yes")
    assert "a submodule, 'sub'" in said
    assert "SKILL.md is a link" in said
    assert sorted(lock_rows()) == ["csv", "pdf"]
    assert (SKILLS / "pdf/scripts/run.py").read_bytes() == b"print('pdf')\n"
    monkeypatch.delenv("GIT_DIR")
    assert not evil.exists()
    shutil.rmtree(repository / ".git/hooks")
    # Trees that no git would check out: a name with dots, and one that is not UTF-8.
    blob = git(repository, "hash-object", "-w", "skills/pdf/SKILL.md")
    raw = b"100644 SKILL.md\0" + bytes.fromhex(blob) + b"100644 \xff.md\0" + bytes.fromhex(blob)
    tree = _raw_object(repository, raw)
    up = _raw_object(repository, b"40000 ..\0" + bytes.fromhex(tree))
    both = _raw_object(repository, b"40000 bad\0" + bytes.fromhex(tree) + b"40000 up\0" + bytes.fromhex(up))
    made = git(repository, "commit-tree", both, "-m", "evil")
    git(repository, "update-ref", "refs/heads/evil", made)
    said = refuse(1, "add", url, "--yes", "--ref", "evil")
    assert "not UTF-8" in said
    assert "leads out" in said
    assert not evil.exists()
    assert not (tmp_path / "project/SKILL.md").exists()


def _raw_object(repository: Path, content: bytes) -> str:
    place = repository / "raw"
    place.write_bytes(content)
    return git(repository, "hash-object", "-w", "-t", "tree", "--literally", "raw")


def test_sources_and_refs_that_look_like_something_else(tmp_path: Path) -> None:
    """Options, commands and control characters are no sources and no refs; also not when they come from a lock."""
    url = make_repository(tmp_path / "repository")
    evil = tmp_path / "evil"
    for source in (
        f"ext::sh -c 'touch {evil}'", "fd::17", f"--upload-pack=touch {evil}", "ssh://-oProxyCommand=x/y", "javascript://x/y",
        "file+ext::x://y", "a\nb", "", "  ", "ftp://host/x", "https://host/a.zip",
    ):  # fmt: skip
        refuse(1, "add", "--yes", "--", source)
    for ref in (
        "--upload-pack=x",
        "-x",
        "+main",
        "main:refs/heads/x",
        "a..b",
        "main~1",
        "a b",
        "@{-1}",
        "x.lock",
        "a\x00b",
    ):
        assert "not the name" in refuse(1, "add", url, "--yes", f"--ref={ref}"), ref
    assert not evil.exists()
    assert not LOCK.exists()
    succeed("add", url, "--yes")
    LOCK.write_text(LOCK.read_text(encoding="utf-8").replace(url, f"ext::touch {evil}"), encoding="utf-8")
    (SKILLS / "pdf/SKILL.md").unlink()
    assert "runs commands" in refuse(1, "verify", "--fix")
    assert "runs commands" in refuse(1, "update", "--yes")
    assert not evil.exists()
