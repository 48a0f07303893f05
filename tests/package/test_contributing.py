"""The contributor's pages and configurations agree with each other and with the package."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "deepskills"
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def read_yaml(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_every_command_of_the_guide_exists() -> None:
    """Each `make` target that the guide names is in the Makefile, and each file and folder is there."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {
        name
        for line in re.findall(r"\bmake ((?:[a-z]+(?:-[a-z]+)* ?)+)(?=[`\n#]|PYTHON)", CONTRIBUTING)
        for name in line.split()
    }
    assert {"check", "test", "test-oldest", "test-server", "soak", "bench"} <= targets
    assert [name for name in sorted(targets) if not re.search(rf"^{name}:", makefile, flags=re.MULTILINE)] == []
    paths = re.findall(r"`((?:src|tests|docs|\.ci)/[\w./-]+)`", CONTRIBUTING)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_folder_of_tests_is_run() -> None:
    """`make test` runs each folder but those that need more than it installs, which have commands of their own."""
    folders = {
        f"tests/{path.name}" for path in (ROOT / "tests").iterdir() if path.is_dir() and any(path.glob("test_*"))
    }
    assert set(PROJECT["tool"]["pytest"]["ini_options"]["pythonpath"]) >= {"tests"}, "tests import `support`"
    apart = {"tests/browser", "tests/providers", "tests/server"}
    assert set(PROJECT["tool"]["pytest"]["ini_options"]["testpaths"]) == folders - apart
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "pytest tests/server" in makefile
    assert "pytest tests/browser" in makefile
    assert "tests/providers" in makefile


def test_the_guide_names_every_folder_of_the_package() -> None:
    """A newcomer finds the subject of each folder."""
    folders = {path.parent.name for path in (ROOT / "src" / "deepskills").glob("*/__init__.py")}
    assert [name for name in sorted(folders) if f"`{name}`" not in CONTRIBUTING] == []


def test_every_file_of_the_map_exists() -> None:
    """Each file, folder and name in code that `ARCHITECTURE.md` leads to is there."""
    named = set(re.findall(r"`((?:[\w-]+/)*[\w-]+(?:\.py|/))`", ARCHITECTURE))
    assert len(named) > 50
    assert [path for path in sorted(named) if not (PACKAGE / path).exists() and not (ROOT / path).exists()] == []
    inside = re.findall(r"`(\w+)` in `([\w/]+\.py)`", ARCHITECTURE)
    assert len(inside) >= 3
    assert [pair for pair in inside if not re.search(rf"\b{pair[0]}\b", (PACKAGE / pair[1]).read_text("utf-8"))] == []


def test_every_row_of_the_map_names_a_file() -> None:
    """The tables lead somewhere, and there are enough rows to find one's way."""
    rows = re.findall(r"^\| (?!to change |place |---)(.+?) \| (.+?) \|$", ARCHITECTURE, flags=re.MULTILINE)
    assert len(rows) >= 40
    assert [row for row in rows if not re.search(r"`[\w/]+(?:\.py|/)`", row[1])] == []


def test_ci_runs_on_every_supported_python() -> None:
    """The versions of the workflow are those of the package's classifiers, and each runs what a clone runs."""
    job = read_yaml(".github/workflows/ci.yml")["jobs"]["test"]
    prefix = "Programming Language :: Python :: 3."
    supported = [name.rpartition(" ")[2] for name in PROJECT["project"]["classifiers"] if name.startswith(prefix)]
    assert job["strategy"]["matrix"]["python"] == supported == ["3.11", "3.12", "3.13", "3.14"]
    assert ".ci/run" in [step.get("run") for step in job["steps"]]
    whole = read_yaml(".github/workflows/ci.yml")["jobs"]["all"]["steps"]
    [run] = [step for step in whole if step.get("run") == ".ci/run"]
    assert "env" not in run, "without a Python that is named, it runs everything"
    subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")], check=True)


@pytest.mark.parametrize("failing", ["", "test-newest"], ids=["all-pass", "one-fails"])
def test_ci_says_how_long_each_part_took(failing: str, tmp_path: Path) -> None:
    """`.ci/run` runs its parts in order, ends at one that fails, and lists the minutes of each that ran."""
    make = tmp_path / "make"
    make.write_text(f'#!/bin/sh\n[ "$1" != "{failing}" ] || exit 2\n')
    make.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run([str(ROOT / ".ci" / "run")], env=env, capture_output=True, text=True, check=False)
    parts = re.findall(r"^ +0 min \d\d s  make ([\w-]+)", done.stdout, flags=re.MULTILINE)
    first = ["test", "test-oldest", "test-newest"]
    if failing:
        assert (done.returncode, parts) == (2, first)
    else:
        assert done.returncode == 0
        assert parts[:7] == [*first, "test-browser", "test-mcp", "test-providers", "test-wheel"]


def test_the_floor_of_coverage_holds_in_ci() -> None:
    """A job measures coverage by the target that compares it with the floor in `pyproject.toml`."""
    steps = read_yaml(".github/workflows/ci.yml")["jobs"]["coverage"]["steps"]
    assert "make coverage" in [step.get("run") for step in steps]
    assert PROJECT["tool"]["coverage"]["report"]["fail_under"] >= 90


def test_a_release_knows_its_address(tmp_path: Path) -> None:
    """The package that is published names the repository it comes from, and no link of its README is relative."""
    for name in ("README.md", "pyproject.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    script, address = ROOT / ".github" / "absolute_links.py", "https://host.example/owner/name"
    subprocess.run([sys.executable, str(script), address, "v1"], cwd=tmp_path, check=True)
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]+)\)", text)
    links += re.findall(r"^\[[\w-]+\]: (\S+)$", text, flags=re.MULTILINE)
    links += re.findall(r'(?:href|src)="([^"]+)"', text)
    assert len(links) > 30
    assert [link for link in links if not link.startswith("https://")] == []
    assert f'src="{address}/raw/v1/docs/pictures/demo.svg"' in text
    assert f"[checks]: {address}/blob/v1/docs/how-to/checked-skills.md" in text
    published = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))
    assert published["project"]["urls"]["Repository"] == address
    runs = [step.get("run", "") for step in read_yaml(".github/workflows/release.yml")["jobs"]["build"]["steps"]]
    [found] = [number for number, run in enumerate(runs) if "absolute_links.py" in run]
    assert any("python -m build" in run for run in runs[found:])


def test_workflows_pin_their_actions() -> None:
    """Every action is named by a full hash, with the version behind it; only a tag publishes, without a token."""
    for workflow in [*sorted((ROOT / ".github" / "workflows").glob("*.yml")), ROOT / "docs" / "gate-action.yml"]:
        used = re.findall(r"uses: (?!\./)(.+)$", workflow.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert [action for action in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", action)] == []
        # Names of branches and the like are never pasted into a shell's text, and no token stays in the clone.
        steps = [step for job in read_yaml(str(workflow))["jobs"].values() for step in job.get("steps", [])]
        assert [step["run"] for step in steps if "${{" in step.get("run", "")] == []
        clones = [step for step in steps if step.get("uses", "").startswith("actions/checkout@")]
        assert all(step["with"]["persist-credentials"] is False for step in clones)
    release = read_yaml(".github/workflows/release.yml")
    assert release["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert release["jobs"]["publish"]["needs"] == "build"
    assert release["jobs"]["build"]["needs"] == "test"
    assert "secrets" not in (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")


def test_the_changelog_has_the_version() -> None:
    """The newest heading is the package's version, and each entry is one line."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.findall(r"^## \[(.+?)\] - (?:unreleased|\d{4}-\d\d-\d\d)$", text, flags=re.MULTILINE)
    assert newest[0] == PROJECT["project"]["version"]
    entries = text.partition("\n### ")[2].splitlines()[1:]
    assert [line for line in entries if line and not line.startswith(("- ", "#"))] == []


def test_no_address_is_made_up() -> None:
    """Nothing names a repository of this project: its address is not known here."""
    pages = [*ROOT.glob("*.md"), ROOT / "pyproject.toml", ROOT / "mkdocs.yml", *(ROOT / "docs").rglob("*.md")]
    assert [page.name for page in pages if "github.com/deepskills" in page.read_text(encoding="utf-8")] == []


def test_hooks_run_tools_of_the_development_group() -> None:
    """Each pre-commit hook calls a tool that `make test` installs."""
    hooks = [hook for repo in read_yaml(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    tools = {Path(hook["entry"].split()[0]).name for hook in hooks}
    installed = {re.split(r"[>=\[;]", entry)[0] for entry in PROJECT["dependency-groups"]["dev"]}
    assert tools == {"ruff", "mypy"} <= installed


def test_another_python_gets_its_own_environment(tmp_path: Path) -> None:
    """`make test PYTHON=...` sets up beside `.venv`, named by the version, and never in it."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 3.99\n")
    python.chmod(0o755)
    plan = ["make", "--dry-run", "--no-print-directory", "--always-make", "test"]
    # The tests may themselves be run by make, on a Python that was named.
    env = {name: value for name, value in os.environ.items() if name != "PYTHON" and not name.startswith("MAKE")}

    def planned(*args: str) -> str:
        return subprocess.run([*plan, *args], cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout

    usual, other = planned(), planned(f"PYTHON={python}")
    assert f"{python} -m venv .venv-3.99\n" in other
    assert ".venv/" not in other
    assert ".venv/bin/pytest" in usual
