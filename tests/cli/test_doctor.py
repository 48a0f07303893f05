"""`deepskills doctor`: what an agent would see, what is wrong and what it costs."""

import importlib.metadata
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from deepagents import create_deep_agent
from deepagents.backends import FilesystemBackend
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.utils.function_calling import convert_to_openai_tool

from deepskills import SkillsMiddleware
from deepskills.testing import ScriptedChatModel
from support import command_line, skill_md, write_files

KEYS = [
    *("versions", "sources", "skills", "user_only", "unusable", "prompt_tokens", "tool_tokens", "loads", "problems"),
    "advice",
]
BROKEN = "no frontmatter here"


def invoke(*args: str) -> Result:
    return command_line.invoke("doctor", *args)


def report(*args: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(invoke(*args, "--json").stdout)
    return found


@pytest.fixture
def library(workplace: Path) -> Path:
    """Skills that work, do not, hide each other, lie too deep or are misnamed."""
    write_files(
        workplace / "skills",
        {
            "good/SKILL.md": skill_md("good"),
            "large/SKILL.md": skill_md("large", body="word " * 5000),
            "mine/SKILL.md": skill_md("mine", disable_model_invocation=True),
            "bad/SKILL.md": BROKEN,
            "group/inner/SKILL.md": skill_md("inner"),
            "other/skill.md": skill_md("other"),
        },
    )
    write_files(workplace / ".agents/skills", {"good/SKILL.md": skill_md("good", "The project's.")})
    return workplace


def test_a_report_holds_what_an_agent_sees_and_what_is_wrong(library: Path) -> None:
    """Every kind of finding is in it, under keys that stay; something broken is exit code 1."""
    found = report()
    assert list(found) == KEYS
    assert found["skills"] == ["good", "large"]
    assert found["user_only"] == ["mine"]
    assert found["unusable"] == [f"{library}/skills/bad/SKILL.md"]
    assert [(source["label"], source["skills"]) for source in found["sources"]] == [
        ("skills", 2),
        (".agents/skills", 1),
    ]
    noted = sorted((problem["path"].removeprefix(f"{library}/"), problem["code"]) for problem in found["problems"])
    assert noted == [
        ("skills/bad/SKILL.md", "no-frontmatter"),
        ("skills/good/SKILL.md", "skill-shadowed"),
        ("skills/group/inner/SKILL.md", "skill-too-deep"),
        ("skills/other/skill.md", "skill-file-misnamed"),
    ]
    assert found["loads"]["most"] > 6_000 > found["loads"]["median"] >= found["loads"]["least"] > 0
    assert found["loads"]["all"] > found["loads"]["most"]
    assert invoke().exit_code == 1


def test_a_link_that_leads_nowhere_is_an_error(workplace: Path) -> None:
    """A skill whose file nobody can read is broken, whatever else works."""
    write_files(workplace, {"s/a/SKILL.md": skill_md("a")})
    (workplace / "s/lost").mkdir()
    (workplace / "s/lost/SKILL.md").symlink_to(workplace / "nowhere")
    found = report("-s", "s")
    [noted] = found["problems"]
    assert (noted["code"], noted["severity"]) == ("skill-unreadable", "error")
    assert (found["skills"], invoke("-s", "s").exit_code) == (["a"], 1)


def test_the_limits_are_the_middlewares_defaults() -> None:
    """What `doctor` says of default settings is what an agent without settings has, and the documented numbers."""
    defaults = {name: given.default for name, given in inspect.signature(SkillsMiddleware).parameters.items()}
    assert defaults["max_loaded_skills"] == 10
    assert defaults["max_loaded_tokens"] == 50_000
    assert (defaults["max_depth"], defaults["resource_depth"]) == (1, 1)


def test_warnings_alone_are_no_failure(workplace: Path) -> None:
    """What works all the same is exit code 0."""
    write_files(workplace, {"s/a/SKILL.md": skill_md("a"), "s/deep/b/SKILL.md": skill_md("b")})
    result = invoke("-s", "s")
    assert result.exit_code == 0
    assert "0 errors, 1 warning" in result.stdout
    assert "Set `max_depth=2`" in result.stdout


def test_the_advised_depth_is_that_of_the_deepest_skill(workplace: Path) -> None:
    """However many lie too deep, one number is advised that finds all of them."""
    write_files(workplace, {f"s/{'in/' * depth}x/SKILL.md": skill_md("x") for depth in (1, 3, 2)})
    [advice] = report("-s", "s")["advice"]
    assert advice == "3 skills lie too deep to be found. Set `max_depth=4`, or name sources nearer to them."


def test_a_source_whose_skills_are_all_passed_over_is_explained(workplace: Path) -> None:
    """Where `list` finds nothing, `doctor` says why."""
    write_files(workplace / "skills", {"a/skill.md": skill_md("a"), "group/b/SKILL.md": skill_md("b")})
    found = report()
    assert found["skills"] == []
    assert sorted(problem["code"] for problem in found["problems"]) == ["skill-file-misnamed", "skill-too-deep"]


def test_a_skill_in_a_nested_source_is_not_too_deep(workplace: Path) -> None:
    """What one source holds too deep, another may name."""
    write_files(workplace, {"s/a/SKILL.md": skill_md("a"), "s/deep/b/SKILL.md": skill_md("b")})
    assert report("-s", "s", "-s", "s/deep")["problems"] == []


def price(text: str) -> int:
    """Return what the command says that a text costs, as the instructions of a skill."""
    write_files(Path("priced"), {"a/SKILL.md": skill_md("a", body=text)})
    shown = json.loads(command_line.invoke("show", "a", "-s", "priced", "--json").stdout)
    return next(int(part["tokens"]) for part in shown["parts"] if part["part"] == "instructions")


def test_the_cost_is_what_an_agents_request_holds(workplace: Path) -> None:
    """The numbers are the size of the section and of the tools that a real deep agent sends; `show` prints the same."""
    write_files(workplace / "s", {f"s-{n}/SKILL.md": skill_md(f"s-{n}", "word " * 20 + "end") for n in range(12)})
    backend = FilesystemBackend(root_dir="/", virtual_mode=False)
    requests = []
    for middleware in ([SkillsMiddleware(backend=backend, sources=[(f"{workplace}/s", "s")])], []):
        model = ScriptedChatModel(replies=["ok"])
        create_deep_agent(model, backend=backend, middleware=middleware).invoke({"messages": [HumanMessage("hi")]})
        requests.append(model.requests[0])
    ours, bare = requests
    found = report("-s", "s")
    assert found["prompt_tokens"] == pytest.approx(price(ours.system) - price(bare.system), rel=0.02)
    shown = command_line.invoke("show", "-s", "s").stdout
    assert shown.strip() in ours.system
    schemas = [convert_to_openai_tool(tool) for tool in SkillsMiddleware(backend=backend, sources=["/s"]).tools]
    sent = sum(price(json.dumps({"function": schema["function"]})) for schema in schemas)
    assert found["tool_tokens"] == pytest.approx(sent, rel=0.02)


def test_a_large_library_stays_on_one_screen(workplace: Path) -> None:
    """Hundreds of skills and problems take no more than forty lines of eighty columns, grouped by their cause."""
    files = {f"skill-number-{n}/SKILL.md": skill_md(f"skill-number-{n}", "word " * 99 + "end") for n in range(300)}
    files |= {f"broken-{n}/SKILL.md": BROKEN for n in range(100)}
    files |= {f"group/deep-{n}/SKILL.md": skill_md(f"deep-{n}") for n in range(50)}
    files |= {"group/more/very/SKILL.md": skill_md("very")}
    write_files(workplace / "s", files)
    shown = invoke("-s", "s").stdout
    assert len(shown.splitlines()) <= 40
    assert max(map(len, shown.splitlines())) <= 80 + len(str(workplace))
    assert shown.startswith("Problems  100 errors, 51 warnings")
    assert "no-frontmatter x 100" in shown
    assert "skill-too-deep x 51" in shown
    assert "and 99 more" in shown
    assert "Set `max_depth=3`" in shown
    assert 'SkillSuggestions(catalog="none")' in shown
    assert "over the defaults of 10 skills and 50,000 tokens" in " ".join(shown.split())


def test_what_keeps_a_source_from_being_read_comes_first(workplace: Path) -> None:
    """However many problems files have, a source that was not read is told before them."""
    write_files(workplace / "s", {f"s-{n:02}/SKILL.md": BROKEN for n in range(60)})
    lines = invoke("-s", "s", "-s", "gone").stdout.splitlines()
    assert lines[1].strip() == "source-missing"
    assert any(line.strip().startswith("no-frontmatter x ") for line in lines[2:])


def test_advice_names_the_extension_that_a_key_needs(workplace: Path) -> None:
    """Keys that do nothing by themselves, and skills that nobody could start, are told with what to write."""
    write_files(workplace / "s", {"a/SKILL.md": skill_md("a", model="fast", disable_model_invocation=True)})
    advice = report("-s", "s")["advice"]
    assert any("`slash_commands=True`" in line for line in advice)
    assert any("`model` of 1 skill" in line and "SkillModels" in line for line in advice)
    checks = [{"called": "pour"}, {"script": "x.sh"}, {"script": "y.sh"}, {"handler": "is_hot"}]
    write_files(workplace, {"checked/tea/SKILL.md": skill_md("tea", checks=checks)})
    advice = report("-s", "checked")["advice"]
    expected = [
        ("checks", "SkillChecks(...)"),
        ("checks: handler", "SkillChecks(handlers=...)"),
        ("checks: script", "SkillScripts(...)"),
    ]
    assert advice == [f"`{key}` of 1 skill does nothing without `extensions=[{made}]`." for key, made in expected]
    model = ScriptedChatModel(replies=["ok"])
    skills = SkillsMiddleware(backend=FilesystemBackend(root_dir=workplace, virtual_mode=True), sources=["/s"])
    create_agent(model, middleware=[skills]).invoke({"messages": [HumanMessage("hi")]})
    shown = json.loads(command_line.invoke("show", "-s", "s", "--json").stdout)["parts"]
    offered = [part["part"].removeprefix("tool ") for part in shown if part["part"].startswith("tool ")]
    assert (offered, model.requests[0].system) == (model.requests[0].tools, "")


def test_nothing_to_examine_says_what_to_do(workplace: Path) -> None:
    """An empty machine is well, and is told how to start; a source that does not exist is wrong usage."""
    empty = invoke()
    assert empty.exit_code == 0
    assert "deepskills create" in empty.stderr
    assert report() | {"versions": {}} == {
        "versions": {},
        "sources": [],
        "skills": [],
        "user_only": [],
        "unusable": [],
        "prompt_tokens": 0,
        "tool_tokens": 0,
        "loads": None,
        "problems": [],
        "advice": [],
    }
    assert invoke("-s", str(workplace / "gone")).exit_code == 2


def test_a_missing_package_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A half-installed environment is named."""
    installed = importlib.metadata.distribution

    def distribution(name: str) -> importlib.metadata.Distribution:
        if name == "langgraph":
            raise importlib.metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    result = invoke()
    assert result.exit_code == 1
    assert "langgraph missing" in result.stdout


def test_hostile_names_reach_no_terminal(workplace: Path) -> None:
    """Whatever strangers put into names, paths and descriptions is escaped."""
    hostile = "ev\x1b[31m\x9b\u202eil\nx"
    file = '---\nname: "a\x1b]0;title\x07b"\ndescription: "x \x1b[2J"\n---\n'
    write_files(workplace / hostile, {"x\x1b[2Jy/SKILL.md": file, "z\x1b/SKILL.md": BROKEN, "deep\x1b/er/skill.md": ""})
    for args in ((), ("--json",)):
        shown = invoke("-s", hostile, *args).output
        assert not {c for c in shown if c != "\n" and not c.isprintable()}


def test_requirements_that_are_not_met(workplace: Path) -> None:
    """`doctor`, `list` and `validate` warn of required skills that do not exist, and of circles."""
    needs = {"one": "two", "two": "ONE", "three": "one nowhere", "four": "three"}
    files = {f"skills/{name}/SKILL.md": skill_md(name, metadata={"requires": wanted}) for name, wanted in needs.items()}
    write_files(workplace, files)
    found = [(problem["code"], problem["severity"], problem["message"]) for problem in report()["problems"]]
    assert [(code, severity) for code, severity, _ in found] == [
        ("requires-circle", "warning"),
        ("requires-missing", "warning"),
    ]
    assert "`one`, `two`" in found[0][2]
    assert "`nowhere`" in found[1][2]
    assert "requires-missing" in command_line.invoke("list", "--json").stdout
    whole = command_line.invoke("validate", "skills", "--json")
    assert [problem["code"] for problem in json.loads(whole.stdout)] == ["requires-missing", "requires-circle"]
    assert whole.exit_code == 0
    # A skill that is validated by itself finds its neighbours.
    single = command_line.invoke("validate", "skills/three", "skills/four/SKILL.md", "--json")
    assert [problem["message"].count("`") for problem in json.loads(single.stdout)] == [4]
    assert json.loads(command_line.invoke("validate", "skills", "--spec", "--json").stdout) == []
