"""What the documentation says is true: its code and commands run, its links lead somewhere, its tables are complete."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from deepskills import validate_skill
from deepskills._skillmd.problems import PROBLEMS
from deepskills.testing import ScriptedChatModel

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODEL = '"anthropic:claude-sonnet-4-5"'
"""How the documentation names a model; here a scripted one takes its place."""
WIDEST = 96
"""How many columns of code the site shows without wrapping, in a window of 1280 pixels."""
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    """Return what stands between fences of that language on a page."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


OVER_MCP = {"skills-from-mcp.md", "serve-skills-over-mcp.md"}
"""Pages whose code needs the `mcp` package; `make test-mcp` runs them."""
WITH_CODE = [page for page in PAGES if blocks(page, "python") and page.name not in OVER_MCP]


@pytest.mark.parametrize("page", WITH_CODE, ids=named)
def test_code_on_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python on a page runs from top to bottom, in a directory that holds the example skills."""
    shutil.copytree(ROOT / "examples" / "skills", tmp_path / "skills")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"scripted_model": ScriptedChatModel(replies=[]), "__file__": str(tmp_path / "agent.py")}
    for block in blocks(page, "python"):
        exec(compile(block.replace(MODEL, "scripted_model"), named(page), "exec"), names)


def commands(page: Path) -> list[tuple[str, str]]:
    """Return each command behind a `$` on a page, with what it is said to print."""
    found = []
    for block in blocks(page, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            found.append((command, printed))
    return found


COMMANDS = [(named(page), *command) for page in PAGES for command in commands(page)]


@pytest.mark.parametrize(("page", "command", "printed"), COMMANDS, ids=[command for _, command, _ in COMMANDS])
def test_commands_print_what_the_page_says(page: str, command: str, printed: str, tmp_path: Path) -> None:
    """A command with its output on a page prints that; numbers of tokens may differ, as paths do."""
    shutil.copytree(ROOT / "examples" / "skills", tmp_path / "examples" / "skills")
    done = in_shell(command, tmp_path)
    assert done.returncode == 0, (page, done.stderr)
    expected = printed.replace("/home/me/project", str(tmp_path))
    assert re.sub(r"\d+ tokens", "N tokens", done.stdout) == re.sub(r"\d+ tokens", "N tokens", expected)


def in_shell(command: str, place: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as a reader does, with the tools of this environment."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=place,
        env={"PATH": path, "HOME": str(place), "LANG": "C.UTF-8"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def typed(page: Path) -> list[str]:
    """Return each command that a page tells its reader to type, or puts into a configuration, without its output."""
    lines = [
        line
        for language in ("console", "sh")
        for block in blocks(page, language)
        if not block.startswith("$ ")
        for line in block.splitlines()
    ]
    lines += re.findall(r"^RUN (.+)", "".join(blocks(page, "dockerfile")), flags=re.MULTILINE)
    lines += re.findall(r"(?:- run|entry): (.+)", "".join(blocks(page, "yaml")))
    return [part.strip() for line in lines for part in re.sub(r"\s+#.*", "", line).split("&&")]


ALL_TYPED = sorted({(named(page), command) for page in PAGES for command in typed(page)})


def test_commands_to_type_work(tmp_path: Path) -> None:
    """Ours end well in a project with skills; what is installed or made exists; a server has a test of its own."""
    shutil.copytree(ROOT / "examples" / "skills", tmp_path / "skills")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    extras = {*PROJECT["project"]["optional-dependencies"], "inmem", ""}
    wrong = []
    for page, command in ALL_TYPED:
        tool, _, rest = command.partition(" ")
        if tool == "deepskills":
            runs = command if shutil.which("jq") else command.partition(" | jq")[0]
            is_right = in_shell(runs, tmp_path).returncode == 0
        elif tool == "make":
            is_right = re.search(rf"^{rest}:", makefile, flags=re.MULTILINE) is not None
        elif command.startswith("pip install "):
            named_extras = re.findall(r"\[([\w,]+)\]", rest)
            is_right = {extra for part in named_extras for extra in part.split(",")} <= extras
        else:
            is_right = command in {"langgraph dev --no-browser", "useradd --create-home app"}
        if not is_right:
            wrong.append((page, command))
    assert wrong == []
    assert {command.partition(" ")[0] for _, command in ALL_TYPED} >= {"deepskills", "make", "pip", "langgraph"}


READERS: dict[str, Callable[[str], bool]] = {
    "yaml": lambda block: isinstance(yaml.safe_load(block), dict),
    "json": lambda block: isinstance(json.loads(block), dict),
    "markdown": lambda block: validate_skill(block, path=f"/{block.split()[2]}/SKILL.md") == [],
    **dict.fromkeys(("python", "console", "sh", "dockerfile", "text"), lambda _: True),
}
"""What holds for a block of each kind; code and commands have tests of their own, and trees of files are only text."""


def test_every_block_is_what_it_says() -> None:
    """Configuration can be read, a whole `SKILL.md` is valid, code fits its column, no block is of another kind."""
    fence = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
    wrong = []
    for page in PAGES:
        for kind, block in fence.findall(page.read_text(encoding="utf-8")):
            is_right = kind in READERS and READERS[kind](block)
            if not is_right or max(map(len, block.splitlines())) > WIDEST:
                wrong.append((named(page), kind, block))
    assert wrong == []


def test_the_agent_of_the_readme_has_skills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent in the README, in under twenty lines, shows its model the skills."""
    shutil.copytree(ROOT / "examples" / "skills", tmp_path / "skills")
    monkeypatch.chdir(tmp_path)
    [block] = blocks(ROOT / "README.md", "python")
    assert len(block.splitlines()) < 20
    model = ScriptedChatModel(replies=[])
    exec(compile(block.replace(MODEL, "model"), "README.md", "exec"), {"model": model})
    assert "- **release-notes**" in model.requests[0].system


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link on a page names a file that is there."""
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_problem_code_is_explained() -> None:
    """Troubleshooting has a row for each code, with the right severity, and none for a code that does not exist."""
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([a-z0-9-]+)` \| (\w+) \|", text, flags=re.MULTILINE))
    assert rows.keys() == PROBLEMS.keys()
    assert {code: severity for code, severity in rows.items() if severity != "strict"} == {
        code: PROBLEMS[code][0] for code, severity in rows.items() if severity != "strict"
    }
    extensions = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "src/deepskills/extensions").rglob("*.py")
    )
    pattern = r'(?:HookProblem\(\s*|^TROUBLE = |^UNKNOWN_CODE = |^HOOK_FAILED_CODE = |^ENV_FAILED = )"([a-z-]+)"'
    reported = set(re.findall(pattern, extensions, flags=re.MULTILINE))
    told = set(re.findall(r"^\| `([a-z-]+)` \| `[A-Z]", text, flags=re.MULTILINE))
    assert told == reported != set()


def test_the_home_page_says_what_the_readme_says() -> None:
    """What both pages tell, from the first line to the comparison, is the same, so that neither falls behind."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    home = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert home.partition("\n[![")[0] == readme.partition("\n![")[0]
    for heading in ("## What a skill looks like", "## Beside deepagents", "## What else it can do"):
        told = [page.partition(heading)[2].partition("\n## ")[0].strip() for page in (home, readme)]
        assert told[0] == told[1] != ""


def test_readme_names_the_two_commands() -> None:
    """A newcomer finds `make demo` and `make test` in the README, and both are in the Makefile."""
    readme, makefile = (ROOT / "README.md").read_text(encoding="utf-8"), (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in ("demo", "test"):
        assert f"make {command}" in readme
        assert re.search(rf"^{command}:", makefile, flags=re.MULTILINE)
