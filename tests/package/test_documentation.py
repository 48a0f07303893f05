"""What the documentation says is true: blocks are what they say, links lead somewhere, tables are complete.

`test_pages.py` runs the code and the commands.
"""

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from deepskills import validate_skill
from deepskills._skillmd.problems import PROBLEMS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WIDEST = 96
"""How many columns of code the site shows without wrapping, in a window of 1280 pixels."""


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


READERS: dict[str, Callable[[str], bool]] = {
    "yaml": lambda block: isinstance(yaml.safe_load(block), dict),
    "toml": lambda block: isinstance(tomllib.loads(block), dict),
    "json": lambda block: isinstance(json.loads(block), dict),
    "markdown": lambda block: validate_skill(block, path=f"/{block.split()[2]}/SKILL.md") == [],
    **dict.fromkeys(("python", "console", "sh", "dockerfile", "text", "mermaid"), lambda _: True),
}
"""What holds for a block of each kind; code and commands have tests of their own, and trees of files are only text."""


def test_every_block_is_what_it_says() -> None:
    """Configuration can be read, a whole `SKILL.md` is valid, code fits its column, no block is of another kind."""
    fence = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
    wrong = []
    for page in PAGES:
        for kind, block in fence.findall(page.read_text(encoding="utf-8")):
            is_right = kind in READERS and READERS[kind](block)
            if not is_right or max(map(len, block.splitlines())) > WIDEST:
                wrong.append((named(page), kind, block))
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link on a page names a file that is there."""
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    links += re.findall(r"^\[[\w-]+\]: ([^#\n]+)", text, flags=re.MULTILINE)
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


def test_the_home_page_includes_the_readme() -> None:
    """What both pages tell is written once, in the README; only the targets of links are each page's own."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    home = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert '--8<-- "README.md:intro"' in home
    body, _, rest = readme.partition("[start:intro] -->")[2].partition("<!-- --8<-- [end:intro]")
    definition = r"^\[([\w-]+)\]: (?:docs/)?(\S+)$"
    defined = [dict(re.findall(definition, page, flags=re.MULTILINE)) for page in (readme, home)]
    assert defined[0] == defined[1]
    used = set(re.findall(r"\]\[([a-z][\w-]*)\]", body))
    assert used == defined[0].keys()
    assert "](docs/" not in body, "such a link would lead nowhere on the home page"
    told = {line for line in (body + rest).splitlines() if len(line) > 30}
    assert [line for line in home.splitlines() if line in told] == []


def test_readme_names_the_two_commands() -> None:
    """A newcomer finds `make demo` and `make test` in the README, and both are in the Makefile."""
    readme, makefile = (ROOT / "README.md").read_text(encoding="utf-8"), (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in ("demo", "test"):
        assert f"make {command}" in readme
        assert re.search(rf"^{command}:", makefile, flags=re.MULTILINE)
