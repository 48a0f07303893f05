"""`deepskills doctor --agent`: a real agent is imported and looked at, and no model is called."""

import importlib
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from support import command_line, skill_md, write_files

HEAD = """
from deepagents import create_deep_agent
from deepagents.backends import FilesystemBackend, StateBackend
from deepagents.middleware.summarization import SummarizationMiddleware
from langchain.agents import create_agent
from langchain_core.tools import tool
from deepskills import SkillsMiddleware
from deepskills.testing import ScriptedChatModel

class Cached(ScriptedChatModel):
    def _get_ls_params(self, *args, **kwargs):
        return {"ls_provider": "anthropic"}

def never(messages):
    raise AssertionError("the model was called")

disk = FilesystemBackend(root_dir=".", virtual_mode=True)
model = Cached(replies=never, profile={"max_input_tokens": 100_000})

def skills(**options):
    return SkillsMiddleware(**{"backend": disk, "sources": ["/skills"], **options})
"""
KEYS = ["agent", "middleware", "order", "tools", "provider", "window", "sources", "skills", "user_only", "problems"]

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _path() -> Iterator[None]:
    before = list(sys.path)
    yield
    sys.path[:] = before


def module(workplace: Path, code: str, head: str = HEAD) -> str:
    """Write a module of its own name with `code`, and return that name."""
    name = f"agent_under_test_{next(_numbers)}"
    write_files(workplace, {f"{name}.py": f"{head}\n{code}\n"})
    importlib.invalidate_caches()
    return name


def invoke(*args: str) -> Result:
    return command_line.invoke("doctor", *args)


def report(workplace: Path, code: str) -> dict[str, Any]:
    done = invoke("--agent", f"{module(workplace, code)}:agent", "--json")
    assert done.exit_code in {0, 1}, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def codes(found: dict[str, Any]) -> list[str]:
    return [problem["code"] for problem in found["problems"]]


@pytest.fixture
def library(workplace: Path) -> Path:
    """One skill that works."""
    write_files(workplace, {"skills/tea/SKILL.md": skill_md("tea")})
    return workplace


@pytest.mark.parametrize(
    "code",
    [
        "agent = create_agent(model, middleware=[skills()])",
        "agent = create_deep_agent(model, middleware=[skills()])",
        "def agent():\n    return create_deep_agent(model, middleware=[skills()])",
        "async def agent():\n    return create_agent(model, middleware=[skills()])",
        "agent = create_agent(model, middleware=[skills()]).with_config(tags=['x'])",
    ],
)
def test_an_agent_that_is_well(library: Path, code: str) -> None:
    """Its middleware, tools, model and skills are found in the graph, and nothing is wrong."""
    found = report(library, code)
    assert list(found) == [*KEYS, "unseen"]
    assert found["problems"] == []
    assert [place.split()[0] for place in found["middleware"]] == ["in"]
    assert {"load_skill", "unload_skill"} <= set(found["tools"])
    assert (found["provider"], found["window"]) == ("anthropic", 100_000)
    assert (found["skills"], found["sources"]) == (["tea"], ["/skills"])


def test_a_middleware_alone_says_what_it_cannot_see(library: Path) -> None:
    """It has neither tools nor a model of an agent, and the report says so."""
    found = report(library, "agent = skills()")
    assert (found["tools"], found["skills"], found["problems"]) == (None, ["tea"], [])
    assert ["tools" in line or "model" in line for line in found["unseen"]] == [True, True]


def test_a_graph_of_ones_own(library: Path) -> None:
    """Its middleware is known by its hooks; a graph that is not compiled says what to do."""
    graph = (
        "from langgraph.graph import START, MessagesState, StateGraph\n"
        "own = StateGraph(MessagesState).add_node('find', skills().before_agent).add_edge(START, 'find')\n"
    )
    found = report(library, f"{graph}agent = own.compile()")
    assert (found["skills"], found["tools"], found["problems"]) == (["tea"], None, [])
    done = invoke("--agent", f"{module(library, graph)}:own")
    assert done.exit_code == 2
    assert "call its `compile()`" in " ".join(done.stderr.split())


def test_sources_that_are_missing_or_empty(library: Path) -> None:
    """Each is a warning, and the others are read."""
    (library / "empty").mkdir()
    found = report(library, "agent = create_agent(model, middleware=[skills(sources=['/skills', '/gone', '/empty'])])")
    assert sorted(codes(found)) == ["source-empty", "source-missing"]
    assert found["skills"] == ["tea"]


def test_tools_that_skills_name_and_the_agent_lacks(library: Path) -> None:
    """Other clients' names count as those of this agent; what nothing offers is named."""
    write_files(
        library,
        {
            "skills/a/SKILL.md": skill_md("a", allowed_tools="Read Bash(git:*) weather"),
            "skills/b/SKILL.md": skill_md("b", metadata={"include_tools": "lookup gone"}),
        },
    )
    tools = "@tool\ndef lookup(word: str) -> str:\n    'Look a word up.'\n    return word\n"
    found = report(library, f"{tools}agent = create_deep_agent(model, middleware=[skills(tools=[lookup])])")
    assert codes(found) == ["agent-lacks-tools", "agent-lacks-tools"]
    first, second = (problem["message"] for problem in found["problems"])
    # Without a shell deepagents withholds `execute`, which is what `Bash` means.
    assert "does not have: `Bash`, `weather`. " in first
    assert "does not have: `gone`. " in second
    policy = "from deepskills.extensions import ToolPolicy\n"
    policy += "mine = ToolPolicy('enforce', aliases={'Bash': 'ls', 'weather': 'glob'})\n"
    found = report(library, f"{tools}{policy}agent = create_deep_agent(model, middleware=[skills(extensions=[mine])])")
    assert "does not have: `Read`. " in found["problems"][0]["message"]
    checks = [{"called": "lookup", "before": "release"}, {"called": "execute(make *)"}, {"script": "x.sh"}]
    write_files(
        library,
        {
            "skills/a/SKILL.md": skill_md("a", checks=checks),
            "skills/b/SKILL.md": skill_md("b", checks=[{"called": "replaced"}]),
        },
    )
    checked = "from deepskills.extensions import SkillChecks\nmine = SkillChecks({'b': [{'called': 'brew'}]})\n"
    found = report(
        library, f"{tools}{checked}agent = create_agent(model, [lookup], middleware=[skills(extensions=[mine])])"
    )
    assert ["`release`, `execute`. " in problem["message"] for problem in found["problems"]] == [True, False]
    assert "does not have: `brew`. " in found["problems"][1]["message"]
    found = report(library, f"{tools}agent = create_agent(model, [lookup], middleware=[skills()])")
    assert found["problems"] == []
    write_files(library, {"skills/a/SKILL.md": skill_md("a", allowed_tools="Read Bash(git:*) weather")})
    bare = report(library, "agent = create_agent(model, middleware=[skills(tools=lambda name, runtime: None)])")
    assert ["`Read`, `Bash`, `weather`" in problem["message"] for problem in bare["problems"]] == [True]


def test_settings_that_break_caches_or_windows(library: Path) -> None:
    """What is set against the model's caches and window is named; what follows the model by itself is not."""
    found = report(
        library,
        "agent = create_agent(model, middleware=[skills(loaded_status='system_prompt', unload_when='cheap', "
        "max_loaded_tokens=25_001)])",
    )
    assert codes(found) == ["cache-broken", "unload-cheap-in-vain", "budget-over-window"]
    assert "`max_loaded_tokens=25001`" in found["problems"][2]["message"]
    assert codes(report(library, "agent = create_agent(model, middleware=[skills(max_loaded_tokens=25_000)])")) == []
    plain = "ScriptedChatModel(replies=never)"
    status = "skills(loaded_status='system_prompt', max_loaded_tokens=90_000)"
    assert codes(report(library, f"agent = create_agent({plain}, middleware=[{status}])")) == []


def test_skills_that_no_one_can_start(library: Path) -> None:
    """Skills that only a user may start are a problem while slash commands are off."""
    write_files(library, {"skills/mine/SKILL.md": skill_md("mine", disable_model_invocation=True)})
    found = report(library, "agent = create_agent(model, middleware=[skills()])")
    assert (codes(found), found["user_only"]) == (["skills-user-only"], ["mine"])
    assert codes(report(library, "agent = create_agent(model, middleware=[skills(slash_commands=True)])")) == []


@pytest.mark.parametrize(
    ("order", "expected"), [("[summary, skills()]", []), ("[skills(), summary]", ["middleware-order"])]
)
def test_the_order_of_middleware(library: Path, order: str, expected: list[str]) -> None:
    """Summarization of requests behind the skills is a problem."""
    summary = "summary = SummarizationMiddleware(model=model, backend=disk)\n"
    found = report(library, f"{summary}agent = create_agent(model, middleware={order})")
    assert codes(found) == expected
    assert set(found["order"]) == {"SkillsMiddleware", "SummarizationMiddleware"}


def test_two_middlewares_of_a_deep_agent(library: Path) -> None:
    """What its first run would raise is an error here."""
    made = module(library, "agent = create_deep_agent(model, middleware=[skills(), skills()])")
    done = invoke("--agent", f"{made}:agent")
    assert done.exit_code == 1
    assert "agent-conflict: Skills would vanish: create_deep_agent was given 2 SkillsMiddleware" in " ".join(
        done.stdout.split()
    )


def test_an_agent_without_skills(library: Path) -> None:
    """It is an error, unless a middleware stands beside it, which is then looked at and said to be."""
    assert codes(report(library, "agent = create_agent(model)")) == ["agent-without-skills"]
    found = report(library, "own = skills()\nagent = create_agent(model)")
    assert found["problems"] == []
    assert [place.split(":")[1] for place in found["middleware"]] == ["own"]
    assert "its graph shows none" in found["unseen"][0]


def test_what_only_a_run_can_read_is_not_a_problem(library: Path) -> None:
    """Files in a thread's state and sources of a user are not seen, and that is said."""
    found = report(library, "agent = create_agent(model, middleware=[skills(backend=StateBackend())])")
    assert (found["problems"], found["skills"]) == ([], [])
    assert "/skills, which only a run can read" in found["unseen"][0]
    found = report(library, "agent = create_agent(model, middleware=[skills(sources=lambda run: [run.context.home])])")
    assert found["problems"] == []
    assert len(found["unseen"]) == 2


@pytest.mark.parametrize(
    ("code", "attribute", "message"),
    [
        ("raise ValueError('no key\\nset')", "agent", "cannot be imported: ValueError: no key set"),
        ("raise SystemExit(0)", "agent", "cannot be imported: SystemExit: 0"),
        ("class Odd(BaseException): pass\nraise Odd", "agent", "cannot be imported: Odd"),
        ("import nothing_of_this_name", "agent", "No module named 'nothing_of_this_name'"),
        ("agent = 1", "agent", "is of type int, neither a compiled agent nor a SkillsMiddleware"),
        (
            "class Odd:\n    @property\n    def bound(self): raise OSError('x')\nagent = Odd()",
            "agent",
            "cannot be looked at",
        ),
        ("agent = 1", "other", "has no other"),
        ("def agent(config): pass", "agent", "takes parameters"),
        ("def agent(): exit(3)", "agent", "failed: SystemExit: 3"),
        ("async def agent(): raise OSError('gone')", "agent", "failed: OSError: gone"),
    ],
)
def test_what_cannot_be_looked_at_is_one_line(workplace: Path, code: str, attribute: str, message: str) -> None:
    """A module or a function that raises or exits ends in a sentence and exit code 2, with JSON as well."""
    name = module(workplace, code, head="")
    done = invoke("--agent", f"{name}:{attribute}")
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    done = invoke("--agent", f"{name}:{attribute}", "--json")
    assert done.exit_code == 2
    assert codes(json.loads(done.stdout)) == ["agent-unusable"]


@pytest.mark.parametrize("given", ["agent", "agent:", ":agent", "agent.py:agent", ".agent:agent", "a b:c", "os:path.x"])
def test_what_names_no_agent(workplace: Path, given: str) -> None:
    """It is wrong usage."""
    assert invoke("--agent", given).exit_code == 2
    assert invoke("--agent", "x:y", "--source", str(workplace)).exit_code == 2


def test_what_a_module_prints_stays_out_of_the_report(library: Path) -> None:
    """Standard output holds the report alone."""
    found = report(library, "print('hello')\ndef agent():\n    print('made')\n    return skills()")
    assert found["skills"] == ["tea"]
    done = invoke("--agent", f"{module(library, 'agent = create_agent(model, middleware=[skills()])')}:agent")
    assert done.exit_code == 0
    assert "the model sees: tea" in done.stdout
