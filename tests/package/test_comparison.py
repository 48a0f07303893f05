"""Each row of the README's table beside deepagents' own class, shown on both classes."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deepagents import RubricMiddleware, create_deep_agent
from deepagents.middleware.skills import SkillsMiddleware as DeepAgentsSkillsMiddleware
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.messages import HumanMessage

from deepskills import SkillsMiddleware
from deepskills.extensions import SkillChecks
from deepskills.testing import ScriptedChatModel, call_tools
from support import (
    Conversation,
    FakeBackend,
    Mode,
    both_modes,
    disk,
    fails,
    load,
    run,
    skill_md,
    tool_messages,
    unload,
    write_files,
)

README = Path(__file__).parents[2] / "README.md"
Row = Callable[[Mode, Path], None]
ROWS: dict[str, Row] = {}


def row(label: str) -> Callable[[Row], Row]:
    """Say which row of the table a check is about."""

    def add(check: Row) -> Row:
        ROWS[label] = check
        return check

    return add


def theirs(root: Path, **options: Any) -> Any:
    return DeepAgentsSkillsMiddleware(backend=disk(root), sources=["/skills"], **options)


def ours(root: Path, **options: Any) -> SkillsMiddleware:
    return SkillsMiddleware(backend=disk(root), sources=["/skills"], **options)


def write_skill(root: Path, name: str = "alpha", **parts: Any) -> None:
    write_files(root, {f"skills/{name}/SKILL.md": skill_md(name, **parts)})


def lines(count: int, width: int = 10) -> str:
    return "".join(f"Step {number:04}: {'x' * width}\n" for number in range(count))


def deep(mode: Mode, root: Path, middleware: Any, *calls: tuple[str, dict[str, Any]]) -> str:
    """Return what a deep agent's tools answer to these calls."""
    model = ScriptedChatModel(replies=[call_tools(*calls)])
    result = run(mode, create_deep_agent(model, backend=disk(root), middleware=[middleware]))
    return "\n".join(message.text for message in tool_messages(result))


def reading(**options: int) -> tuple[str, dict[str, Any]]:
    return "read_file", {"file_path": "/skills/alpha/SKILL.md", **options}


@row("How a skill is read")
def _(mode: Mode, root: Path) -> None:
    write_skill(root, body=lines(1200))
    write_files(root, {"skills/alpha/scripts/run.py": ""})
    assert "Step 0050" in deep(mode, root, theirs(root), reading())
    assert "Step 0150" not in deep(mode, root, theirs(root), reading())
    assert "Step 0950" in deep(mode, root, theirs(root), reading(limit=1000))
    assert "Step 1050" not in deep(mode, root, theirs(root), reading(limit=1000))
    loaded = deep(mode, root, ours(root), load("alpha"))
    assert "Step 1199" in loaded
    assert "- [script] `/skills/alpha/scripts/run.py`" in loaded


@row("Giving the room back")
def _(mode: Mode, root: Path) -> None:
    write_skill(root, body="The instructions.")
    talk = Conversation(mode, theirs(root))
    talk.say()
    assert talk.model.requests[-1].tools == []
    talk = Conversation(mode, ours(root))
    talk.call(load("alpha"))
    assert "The instructions." in talk.model.requests[-1].text
    talk.call(unload("alpha"))
    assert "The instructions." not in talk.model.requests[-1].text


@row("After a summary")
def _(mode: Mode, root: Path) -> None:
    write_skill(root, body="The instructions.")
    for middleware, present in ((theirs(root), 0), (ours(root), 1)):
        summarizer = ScriptedChatModel(replies=[], fallback="So far, so good.")
        summary: Any = SummarizationMiddleware(summarizer, trigger=("messages", 6), keep=("messages", 2))
        talk = Conversation(mode, summary, middleware)
        talk.say(given={"messages": [HumanMessage("go")], "pinned_skills": ["alpha"]})
        for _turn in range(4):
            talk.say()
        assert "So far, so good." in talk.model.requests[-1].text
        assert talk.model.requests[-1].text.count("The instructions.") == present


@row("Whether a skill was followed")
def _(mode: Mode, root: Path) -> None:
    write_skill(root, body="Check the sources.", checks=[{"called": "search_skills"}])
    verdict = {"result": "satisfied", "explanation": "So it says.", "criteria": [{"name": "sources", "passed": True}]}
    for middleware in (theirs(root), ours(root)):
        grader = ScriptedChatModel(replies=[call_tools(("GraderResponse", verdict))])
        talk = Conversation(mode, middleware, RubricMiddleware(model=grader))
        talk.say(given={"messages": [HumanMessage("go")], "rubric": "The sources are checked."})
        assert len(grader.requests) == 1
    talk = Conversation(mode, ours(root, extra_tools=["search_skills"], extensions=[SkillChecks(retries=1)]))
    talk.call(load("alpha"))
    assert "Call `search_skills`" in talk.state["messages"][-2].text
    assert len(talk.model.requests) == 3, "load, premature answer, answer"


@row("What is loaded")
def _(mode: Mode, root: Path) -> None:
    for name in ("alpha", "beta"):
        write_skill(root, name)
    talk = Conversation(mode, theirs(root))
    talk.say()
    assert "skills_loaded" not in talk.state
    talk = Conversation(mode, ours(root, max_loaded_skills=1))
    talk.call(load("alpha"), load("beta"))
    assert talk.loaded == ["alpha"]


@row("A skill over 80,000 characters")
def _(mode: Mode, root: Path) -> None:
    write_skill(root, body=lines(1000, width=100))
    assert "Step 0999" not in deep(mode, root, theirs(root), reading())
    model = ScriptedChatModel(replies=[call_tools(load("alpha"))])
    run(mode, create_deep_agent(model, backend=disk(root), middleware=[ours(root)]))
    assert all(f"Step {number:04}" in model.requests[-1].text for number in range(1000))


@row("A broken frontmatter value")
def _(mode: Mode, root: Path) -> None:
    write_files(root, {"skills/alpha/SKILL.md": "---\nname: alpha\ndescription: Use it when: asked\n---\nBody.\n"})
    talk = Conversation(mode, theirs(root))
    talk.say()
    assert talk.state["skills_metadata"] == []
    talk = Conversation(mode, ours(root))
    talk.say()
    assert [skill["description"] for skill in talk.state["skills_metadata"]] == ["Use it when: asked"]
    assert [problem["code"] for problem in talk.state["skills_problems"]] == ["yaml-repaired"]


@row("A hostile file")
def _(mode: Mode, root: Path) -> None:
    write_skill(root)
    hostile = f"---\nname: bomb\ndescription: Boom.\nextra: {'[' * 500}\n---\n"
    write_files(root, {"skills/bomb/SKILL.md": hostile})
    with pytest.raises(RecursionError):
        Conversation(mode, theirs(root)).say()
    talk = Conversation(mode, ours(root))
    talk.say()
    assert "alpha" in [skill["name"] for skill in talk.state["skills_metadata"]]


@row("A source that raises")
def _(mode: Mode, root: Path) -> None:
    write_skill(root)
    backend = FakeBackend(root, rules={"ls": fails("no such device", "/broken")})
    with pytest.raises(OSError, match="no such device"):
        Conversation(mode, DeepAgentsSkillsMiddleware(backend=backend, sources=["/broken", "/skills"])).say()
    talk = Conversation(mode, SkillsMiddleware(backend=backend, sources=["/broken", "/skills"]))
    talk.say()
    assert [skill["name"] for skill in talk.state["skills_metadata"]] == ["alpha"]
    assert [problem["path"] for problem in talk.state["skills_problems"]] == ["/broken"]


@row("Sources per user")
def _(mode: Mode, root: Path) -> None:
    for user in ("ada", "bob"):
        write_files(root, {f"{user}/skills/of-{user}/SKILL.md": skill_md(f"of-{user}")})
    given: Any = lambda runtime: [f"/{runtime.context}/skills"]  # noqa: E731 - as users write it
    with pytest.raises(TypeError):
        DeepAgentsSkillsMiddleware(backend=disk(root), sources=given)
    for options in (
        {"backend": disk(root), "sources": given},
        {"backend": lambda runtime: disk(root / runtime.context), "sources": ["/skills"]},
    ):
        model = ScriptedChatModel(replies=[])
        agent = create_agent(model, middleware=[SkillsMiddleware(**options)], context_schema=str)
        for user in ("ada", "bob"):
            run(mode, agent, context=user)
        assert [re.findall(r"\*\*(of-\w+)\*\*", request.system) for request in model.requests] == [
            ["of-ada"],
            ["of-bob"],
        ]


@row("Prompt cache")
def _(mode: Mode, root: Path) -> None:
    write_skill(root)
    talk = Conversation(mode, ours(root, loaded_status="conversation", unload_when="cheap"))
    talk.call(load("alpha"))
    talk.call(unload("alpha"))
    for before, after in itertools.pairwise(talk.model.requests):
        assert before.system == after.system
        assert after.text.startswith(before.text)


@row("Large libraries")
def _(mode: Mode, root: Path) -> None:
    for number in range(100):
        write_skill(root, f"skill-{number}", description=f"Describes {number}." * 20)
    talk = Conversation(mode, theirs(root))
    talk.say()
    assert len(talk.model.requests[-1].system) > 30_000
    talk = Conversation(mode, ours(root, catalog_budget=6_000, extra_tools=["search_skills"]))
    talk.say()
    assert len(talk.model.requests[-1].system) < 10_000
    (found,) = talk.call(("search_skills", {"query": "describes 42"}))
    assert found.text.startswith("- **skill-42**")


@row("Agents without file tools")
def _(mode: Mode, root: Path) -> None:
    write_skill(root)
    write_files(root, {"skills/alpha/references/guide.md": "The guide.", "skills/alpha/scripts/run.py": ""})
    talk = Conversation(mode, theirs(root))
    talk.say()
    assert talk.model.requests[-1].tools == []
    names = ["load_skill_asset", "list_skill_assets", "get_skill_script_path"]
    talk = Conversation(mode, ours(root, extra_tools=names))
    answers = talk.call(
        (names[0], {"skill_name": "alpha", "relative_path": "references/guide.md"}),
        (names[1], {"skill_name": "alpha"}),
        (names[2], {"skill_name": "alpha", "script_name": "run.py"}),
    )
    assert [answer.status for answer in answers] == ["success"] * 3
    assert answers[0].text == "The guide."


@pytest.mark.filterwarnings("ignore:The middleware `RubricMiddleware` is in beta")
@both_modes
@pytest.mark.parametrize("label", ROWS)
def test_the_row_is_true(mode: Mode, label: str, tmp_path: Path) -> None:
    """What the row says of deepagents' class holds for it, and what it says of ours for ours."""
    ROWS[label](mode, tmp_path)


def test_every_row_is_tested() -> None:
    """The table in the README has these rows and no others."""
    table = README.read_text(encoding="utf-8").partition("## Beside deepagents")[2].partition("`make bench`")[0]
    labels = re.findall(r"^\| ([^|]+?) \|", table, flags=re.MULTILINE)
    assert set(labels) == ROWS.keys()
