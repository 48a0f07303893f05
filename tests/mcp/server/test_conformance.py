"""The official conformance suite of the extension: our server and our host pass it without failure or warning."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_mcp_server import environment, http

from support import write_files
from support.npm import run_npm

PACKAGES = ("node@22", "@modelcontextprotocol/conformance@0.2.0-alpha.12")
PLACE = Path(__file__).parents[3] / ".cache" / "conformance"
CLIENT = Path(__file__).with_name("conformance_client.py")

SKILLS: dict[str, str | bytes] = {
    # First, since some checks look at the first entry alone.
    "alpha/SKILL.md": """---
name: alpha
description: |
  Many lines & marks *here* !
  and more.
version: 0x1F
ratio: 1.10
flag: true
nothing: ~
tags: [a, 2, {b: c}]
day: 2026-09-01
odd: "x\u2028y"
plain: p\u2028q
---
Body.
""",
    "alpha/scripts/run.py": "print(1)\n",
    "alpha/references/deep/a.md": "A",
    "alpha/pic.bin": b"\x00\xff",
    "beta-2/SKILL.md": "---\nname: beta-2\ndescription: >-\n  Folded\n  text: 'x'\nmetadata: {a: 1}\n---\nB\n",
    "repaired/SKILL.md": "---\nname: repaired\ndescription: Use when: always\n---\nB\n",
    "misnamed/SKILL.md": "---\nname: other\ndescription: Other.\n---\nB\n",
    "Loud/SKILL.md": "---\nname: Loud\ndescription: Loud.\n---\nB\n",
    "alias/SKILL.md": "---\nname: alias\ndescription: &x d\nother: *x\n---\nB\n",
}


@pytest.fixture(scope="module")
def suite() -> list[str]:
    """Install the suite and give the command that runs it; skip where there is no npm, except in CI."""
    program = PLACE / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    if not program.exists():
        run_npm("install", "--no-save", "--no-audit", "--no-fund", "--prefix", ".", *PACKAGES, place=PLACE)
    return [str(PLACE / "node_modules" / ".bin" / "node"), str(program)]


def checks(suite: list[str], out: Path, *args: str, **env: str) -> dict[str, str]:
    """Run one scenario; return the status of each check, which the exit code alone does not tell."""
    command = [*suite, *args, "--output-dir", str(out)]
    done = subprocess.run(command, env={**environment(), **env}, capture_output=True, text=True, check=False)
    [results] = out.rglob("checks.json")
    found: list[dict[str, Any]] = json.loads(results.read_text())
    assert found, done.stdout
    return {check["id"]: check["status"] for check in found if check["status"] != "INFO"}


@pytest.mark.parametrize("scenario", ["directory", "enumeration", "manifest"])
def test_our_server_passes(suite: list[str], scenario: str, tmp_path: Path) -> None:
    """Every check of a directory of diverse skills succeeds; none is skipped, and none only warns."""
    write_files(tmp_path / "skills", SKILLS)
    serve = ("-m", "deepskills", "mcp", "serve", "--source", str(tmp_path / "skills"), "--http", "127.0.0.1:PORT")
    with http(sys.executable, *serve) as url:
        found = checks(suite, tmp_path / "out", "server", "--url", url, "--scenario", f"sep-2640-skills-{scenario}")
    assert {check: status for check, status in found.items() if status != "SUCCESS"} == {}


@pytest.mark.parametrize("scenario", ["no-prefetch", "verify-digest", "verify-size", "verify-frontmatter"])
def test_our_host_passes_and_one_that_trusts_does_not(suite: list[str], scenario: str, tmp_path: Path) -> None:
    """The check succeeds with our host, and is able to fail: it does with one that compares nothing."""
    given = ("client", "--command", f"{sys.executable} {CLIENT}", "--scenario", f"sep-2640-client-{scenario}")
    found = checks(suite, tmp_path / "ours", *given)
    assert set(found.values()) == {"SUCCESS"}, found
    control = checks(suite, tmp_path / "control", *given, HOST_TRUSTS="1")
    assert "FAILURE" in control.values(), control
