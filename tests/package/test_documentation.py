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

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
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


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return what links to a heading of a page may end with."""
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link on a page names a file that is there, and a heading of it."""
    text = prose(page)
    links = re.findall(r"\]\(([^):]+)\)", text)
    links += re.findall(r"^\[[\w-]+\]: (\S+)$", text, flags=re.MULTILINE)
    links += re.findall(r'(?:href|src)="([^"]+)"', text)
    wrong = []
    for link in links:
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (heading and heading not in anchors(target)):
            wrong.append(link)
    assert wrong == []


def test_every_problem_of_an_extension_is_explained() -> None:
    """Troubleshooting has a row for each code that extensions report themselves, and none for another."""
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    extensions = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "src/deepskills/extensions").rglob("*.py")
    )
    pattern = r'(?:HookProblem\(\s*|^TROUBLE = |^UNKNOWN_CODE = |^HOOK_FAILED_CODE = |^ENV_FAILED = )"([a-z-]+)"'
    reported = set(re.findall(pattern, extensions, flags=re.MULTILINE))
    told = set(re.findall(r"^\| `([a-z-]+)` \| `[A-Z]", text, flags=re.MULTILINE))
    assert told == reported != set()


def test_the_home_page_answers_questions() -> None:
    """The site's home leads with the picture and the four questions that people come with; it is no second README."""
    home = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert home.index("pictures/demo.svg") < home.index("## ")
    headings = re.findall(r"^## (.+)$", home, flags=re.MULTILINE)
    assert len(headings) == 4
    assert all(heading.endswith("?") for heading in headings)
    readme = {line for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if len(line) > 30}
    assert [line for line in home.splitlines() if line in readme] == []


def test_the_readme_defines_the_links_that_it_uses() -> None:
    """Every reference is defined, once, and used; a translation has no link that the original lacks."""
    for page in sorted(ROOT.glob("README*.md")):
        text = page.read_text(encoding="utf-8")
        defined = re.findall(r"^\[([\w-]+)\]: ", text, flags=re.MULTILINE)
        assert len(defined) == len(set(defined))
        assert set(re.findall(r"\]\[([a-z][\w-]*)\]", text)) == set(defined), page.name


def test_the_readme_says_first_what_it_is() -> None:
    """Picture, promises, the four ways in, the way back and the status stand above the first table."""
    above = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n|")[0]
    ways = ["create_deep_agent(", "**`create_agent`**", "model_messages", "SkillsManager"]
    parts = ["demo.svg", "**Loaded means present.**", *ways, "**Going back**", "**Status:**"]
    places = [above.index(part) for part in parts]
    assert places == sorted(places)
    assert len(above.split()) < 380


TRANSLATED = {
    "README.zh-CN.md": "README.md",
    "docs/zh/quickstart.md": "docs/quickstart.md",
    "docs/zh/concepts.md": "docs/concepts/skills.md",
    "docs/zh/store.md": "docs/store.md",
    "docs/zh/choose-how-agents-get-skills.md": "docs/how-to/choose-how-agents-get-skills.md",
}
"""Chinese pages, and what they translate."""

SHORTER = {"docs/zh/store.md"}
"""Those that leave diagrams out, with a link to the original."""


def arrows(diagram: str) -> list[str]:
    """Return what a diagram draws without its words: ids, shapes and arrows."""
    bare = re.sub(r'"[^"]*"|(?<=[\[({])[^\[\](){}"]+(?=[\])}])|(?<=-- )\S+(?= -->)', "", diagram)
    return [re.sub(r"\[\]|\s+", "", line) for line in bare.splitlines()]


def test_translations_have_the_code_of_their_originals() -> None:
    """Code blocks of a translation are the original's, byte for byte and in the same order; diagrams, but for words."""
    assert {named(page) for page in PAGES if "zh" in named(page)} == TRANSLATED.keys()
    fence = re.compile(r"^```(\w*)([^\n]*\n.*?)^```$", flags=re.DOTALL | re.MULTILINE)
    for translation, original in TRANSLATED.items():
        theirs, ours = (
            [
                (kind, arrows(text) if kind == "mermaid" else text)
                for kind, text in fence.findall((ROOT / page).read_text(encoding="utf-8"))
                if kind != "mermaid" or translation not in SHORTER
            ]
            for page in (translation, original)
        )
        assert theirs == ours != [], translation


def test_readme_names_the_two_commands() -> None:
    """A newcomer finds `make demo` and `make test` in the README, and both are in the Makefile."""
    readme, makefile = (ROOT / "README.md").read_text(encoding="utf-8"), (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in ("demo", "test"):
        assert f"make {command}" in readme
        assert re.search(rf"^{command}:", makefile, flags=re.MULTILINE)


def test_every_page_is_in_the_sidebar_once() -> None:
    """The sidebar is by task; no page is left out, and no entry leads nowhere."""
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r": (\S+\.md)$", nav, flags=re.MULTILINE)
    docs = ROOT / "docs"
    assert sorted(listed) == sorted(page.relative_to(docs).as_posix() for page in docs.rglob("*.md"))
