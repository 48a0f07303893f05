"""Who may see and start a skill: each visibility in each place, whatever says so, and the strictest winning."""

import asyncio
import itertools
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from deepskills import SkillExtension, SkillsMiddleware
from deepskills.extensions import SkillScripts, SkillSuggestions
from deepskills.testing import ScriptedChatModel, call_tools
from support import Conversation, Mode, both_modes, disk, load, run, share_of, skill_md, unload, write_files

pytestmark = pytest.mark.filterwarnings("ignore:The feature `forked subagents`")

EXTRA = ["search_skills", "list_skill_assets", "load_skill_asset", "get_skill_script_path"]
SECRET_TEXT = "Text of deploy."
DESCRIPTION = "Ships the zeppelin."


def library(root: Path, **fields: Any) -> None:
    deploy = f"---\nname: deploy\ndescription: {DESCRIPTION}\n"
    deploy += "".join(f"{key.replace('_', '-')}: {value}\n" for key, value in fields.items()) + f"---\n{SECRET_TEXT}\n"
    write_files(
        root,
        {
            "skills/deploy/SKILL.md": deploy,
            "skills/deploy/scripts/run.sh": "echo hi",
            "skills/deploy/references/guide.md": "The guide of deploy.",
            "skills/other/SKILL.md": skill_md("other", "Does another thing."),
        },
    )


class Rules(SkillExtension):
    """Says how visible skills are."""

    def __init__(self, rules: Mapping[str, Any]) -> None:
        self._rules = rules

    def visibility(self, skills: Sequence[Any], run: Any) -> Any:  # noqa: ARG002 - the seam's signature
        """Return the rules."""
        return self._rules


def skills(root: Path, **options: Any) -> SkillsMiddleware:
    return SkillsMiddleware(backend=disk(root), sources=["/skills"], **{"extra_tools": EXTRA, **options})


def by_rule(visibility: str) -> dict[str, dict[str, Any]]:
    """Return the ways to give one skill a visibility, from each origin but frontmatter."""
    return {
        "mapping": {"visibility": {"deploy": visibility}},
        "pattern": {"visibility": {"dep*": visibility, "d*": "on"}},
        "function": {"visibility": lambda skill, _runtime: visibility if skill["name"] == "deploy" else "on"},
        "extension": {"extensions": [Rules({"deploy": visibility})]},
        "strictest": {"visibility": {"deploy": "on"}, "extensions": [Rules({"deploy": visibility})]},
        "strictest, the other way": {"visibility": {"deploy": visibility}, "extensions": [Rules({"deploy": "on"})]},
    }


CALLS = [
    load("deploy"),
    load("DEPLOY"),
    load(" `deploy` "),
    load("deploi"),
    ("search_skills", {"query": "zeppelin"}),
    ("search_skills", {"query": "deploy", "n": 20}),
    ("list_skill_assets", {"skill_name": "deploy"}),
    ("load_skill_asset", {"skill_name": "deploy", "relative_path": "references/guide.md"}),
    ("get_skill_script_path", {"skill_name": "deploy", "script_name": "run.sh"}),
]


def trial(mode: Mode, middleware: SkillsMiddleware) -> tuple[str, list[str], Conversation]:
    """Return the section, the answers to every call, and the conversation."""
    talk = Conversation(mode, middleware)
    answers = [str(answer.text) for answer in talk.call(*CALLS)]
    return talk.model.requests[0].system, answers, talk


@both_modes
def test_hidden_skills_are_nowhere(mode: Mode, tmp_path: Path) -> None:
    """A skill that is off or for users alone is in no section, answer, search, suggestion or file tool of ours."""
    library(tmp_path)
    offenders: list[Any] = []
    for visibility, origin in share_of(mode, itertools.product(("user-only", "off"), by_rule("off"))):
        section, answers, talk = trial(mode, skills(tmp_path, **by_rule(visibility)[origin]))
        shown = [SECRET_TEXT, DESCRIPTION, "The guide of deploy", "scripts/run.sh", "echo hi"]
        offenders += [(visibility, origin, "section")] if "deploy" in section or "zeppelin" in section else []
        for call, answer in zip(CALLS, answers, strict=True):
            told = [text for text in shown if text in answer]
            is_suggested = call[1] == {"skill_name": "deploi"} and "'deploy'" in answer
            offenders += [(visibility, origin, str(call), str(told), answer)] if told or is_suggested else []
        says_so = "Only the user can start" in answers[0] and "Only the user can start" in answers[1]
        offenders += [(visibility, origin, "word")] if says_so != (visibility == "user-only") else []
        offenders += [(visibility, origin, "loaded")] if talk.loaded else []
    assert offenders == []


@both_modes
def test_frontmatter_makes_a_skill_the_users_alone(mode: Mode, tmp_path: Path) -> None:
    """`disable-model-invocation` counts in every spelling of true, and no rule makes it weaker."""
    for value in share_of(mode, ("true", "True", "yes", "on", "'true'")):
        library(tmp_path, disable_model_invocation=value)
        _, answers, talk = trial(mode, skills(tmp_path, visibility={"deploy": "on"}))
        assert "Only the user can start" in answers[0], value
        assert talk.loaded == [], value
    library(tmp_path, disable_model_invocation="false")
    assert SECRET_TEXT in trial(mode, skills(tmp_path))[1][0]


@both_modes
def test_a_mark_that_comes_after_the_listing_counts(mode: Mode, tmp_path: Path) -> None:
    """A file that becomes the user's alone after discovery is refused at the load, by what it says now."""
    library(tmp_path)
    talk = Conversation(mode, skills(tmp_path))
    talk.say()
    library(tmp_path, disable_model_invocation="true")
    [answer] = talk.call(load("deploy"))
    assert "Only the user can start" in str(answer.text)
    assert talk.loaded == []


@both_modes
def test_a_name_alone(mode: Mode, tmp_path: Path) -> None:
    """`name-only` shows the name and no description, and the skill can be loaded."""
    library(tmp_path)
    for origin, options in share_of(mode, by_rule("name-only").items()):
        section, answers, _ = trial(mode, skills(tmp_path, **options))
        assert "**deploy**" in section, origin
        assert "zeppelin" not in section, origin
        assert SECRET_TEXT in answers[0], origin


@both_modes
def test_users_start_what_only_they_may(mode: Mode, tmp_path: Path) -> None:
    """Pins and slash commands load a user-only skill; one that is off does not exist for them either."""
    library(tmp_path)
    for visibility, expected in (("user-only", ["deploy"]), ("off", []), ("name-only", ["deploy"])):
        options: dict[str, Any] = {"visibility": {"deploy": visibility}, "slash_commands": True}
        pinned = Conversation(mode, skills(tmp_path, **options))
        pinned.say(given={"messages": [HumanMessage("go")], "pinned_skills": ["deploy"]})
        commanded = Conversation(mode, skills(tmp_path, **options))
        commanded.say(given="/deploy x")
        assert (pinned.loaded, commanded.loaded) == (expected, expected), visibility
        codes = [found["code"] for found in pinned.state["skills_problems"]]
        assert ("pin-unknown" in codes) == (not expected), visibility


@both_modes
def test_a_loaded_user_only_skill_can_be_used(mode: Mode, tmp_path: Path) -> None:
    """What the user started is the model's to work with: its files are read, and it can be unloaded."""
    library(tmp_path)
    talk = Conversation(mode, skills(tmp_path, visibility={"deploy": "user-only"}))
    given = {"messages": [HumanMessage("go")], "pinned_skills": ["deploy"]}
    answers = talk.say(call_tools(CALLS[7], ("list_skill_assets", {"skill_name": "deploy"})), given=given)
    assert "The guide of deploy." in str(answers[0].text)
    assert "scripts/run.sh" in str(answers[1].text)
    assert "**deploy**" not in talk.model.requests[-1].system
    [again] = talk.call(unload("deploy"))
    assert again.status == "success"
    [refused] = talk.call(load("deploy"))
    assert refused.status == "error"


@dataclass
class User:
    """Who a run is for."""

    name: str


@both_modes
def test_two_users_of_one_agent(mode: Mode, tmp_path: Path) -> None:
    """A function of the runtime gives each user of an agent their own skills."""
    library(tmp_path)

    def rule(skill: Any, runtime: Any) -> Any:
        return "on" if skill["name"] != "deploy" or runtime.context.name == "ada" else "off"

    model = ScriptedChatModel(
        replies=lambda messages: call_tools(load("deploy")) if messages[-1].type == "human" else "ok"
    )
    agent: Any = create_agent(
        model, middleware=[skills(tmp_path, visibility=rule)], context_schema=User, checkpointer=InMemorySaver()
    )
    for name, expected in (("ada", ["deploy"]), ("bob", [])):
        config: RunnableConfig = {"configurable": {"thread_id": name}}
        before = len(model.requests)
        run(mode, agent, "go", config, context=User(name))
        assert agent.get_state(config).values["skills_loaded"] == expected
        assert ("**deploy**" in model.requests[before].system) == bool(expected)


@both_modes
def test_a_visibility_that_changes_between_runs(mode: Mode, tmp_path: Path) -> None:
    """Off unloads and tells; user-only stays until it is unloaded, and then the model cannot load it again."""
    library(tmp_path)
    now = {"deploy": "on"}
    middleware = skills(tmp_path, visibility=lambda skill, _runtime: now.get(skill["name"], "on"))
    for later in ("user-only", "off"):
        now["deploy"] = "on"
        talk = Conversation(mode, middleware)
        talk.call(load("deploy"))
        now["deploy"] = later
        talk.say(given="next")
        text = talk.model.requests[-1].text
        assert talk.loaded == (["deploy"] if later == "user-only" else [])
        assert (SECRET_TEXT in text) == (later == "user-only")
        assert ("No longer available" in text) == (later == "off")
        talk.call(unload("deploy"))
        assert talk.call(load("deploy"))[0].status == "error"
        assert talk.loaded == []


@both_modes
def test_what_is_off_for_this_run_leaves_no_text_to_another_user(mode: Mode, tmp_path: Path) -> None:
    """A thread that another user resumes shows nothing of a skill that is off for them, and its tools are away."""
    library(tmp_path)

    def rule(skill: Any, runtime: Any) -> Any:
        return "on" if skill["name"] != "deploy" or runtime.context.name == "ada" else "off"

    model = ScriptedChatModel(replies=[call_tools(load("deploy"))])
    agent: Any = create_agent(
        model, middleware=[skills(tmp_path, visibility=rule)], context_schema=User, checkpointer=InMemorySaver()
    )
    config: RunnableConfig = {"configurable": {"thread_id": "t"}}
    run(mode, agent, "go", config, context=User("ada"))
    run(mode, agent, "and me", config, context=User("bob"))
    assert SECRET_TEXT not in model.requests[-1].text
    assert agent.get_state(config).values["skills_loaded"] == []


@both_modes
def test_nothing_to_see_is_nothing_shown(mode: Mode, tmp_path: Path) -> None:
    """Skills exist but none is visible: no section, and neither `load_skill` nor `unload_skill` is offered."""
    library(tmp_path)
    for visibility in ("user-only", "off"):
        talk = Conversation(mode, skills(tmp_path, visibility={"*": visibility}))
        talk.say()
        assert talk.model.requests[0].system == ""
        assert "load_skill" not in talk.model.requests[0].tools
        assert "unload_skill" not in talk.model.requests[0].tools


@both_modes
def test_a_rule_that_fails_hides(mode: Mode, tmp_path: Path) -> None:
    """A function that raises, or gives something else, hides the skill and leaves a problem; others stay."""
    library(tmp_path)

    def raises(skill: Any, _runtime: Any) -> Any:
        if skill["name"] == "deploy":
            raise RuntimeError("no idea")
        return "on"

    rules: dict[str, Any] = {
        "raises": raises,
        "None": lambda skill, _: None if skill["name"] == "deploy" else "on",
        "a list": lambda skill, _: ["on"] if skill["name"] == "deploy" else "on",
        "a spelling": lambda skill, _: "On" if skill["name"] == "deploy" else "on",
    }
    for what, rule in share_of(mode, rules.items()):
        section, _, talk = trial(mode, skills(tmp_path, visibility=rule))
        assert "**other**" in section, what
        assert "deploy" not in section, what
        assert "visibility-failed" in [found["code"] for found in talk.state["skills_problems"]], what
    for given in share_of(mode, ({"deploy": "On"}, {"deploy": ["off"]}, None, 5)):
        section, _, talk = trial(mode, skills(tmp_path, extensions=[Rules(given)]))  # type: ignore[arg-type]
        assert "deploy" not in section, str(given)
        assert "extension-failed" in [found["code"] for found in talk.state["skills_problems"]], str(given)


@both_modes
def test_sub_agents_and_forks_keep_to_it(mode: Mode, tmp_path: Path) -> None:
    """A hidden skill is in no catalog of a sub-agent or a fork, and neither can load it; both see a name alone."""
    library(tmp_path)
    cases = [
        ("general-purpose", "user-only"),
        ("general-purpose", "off"),
        ("forked", "user-only"),
        ("forked", "name-only"),
    ]
    for kind, visibility in share_of(mode, cases):
        model = ScriptedChatModel(
            replies=[
                call_tools(("task", {"description": "deploy it", "subagent_type": kind})),
                call_tools(load("deploy")),
                "sub-agent done",
            ]
        )
        forked: Any = {"name": "forked", "description": "Forks.", "mode": "fork", "system_prompt": ""}
        agent = create_deep_agent(
            model,
            middleware=[skills(tmp_path, visibility={"deploy": visibility})],
            subagents=[forked],
            backend=disk(tmp_path),
        )
        run(mode, agent, "go")
        texts = [request.text for request in model.requests]
        assert len(texts) == 4, kind
        assert "**other**" in model.requests[1].system, kind
        assert all(DESCRIPTION not in text for text in texts[:2]), (kind, visibility)
        is_shown = visibility == "name-only"
        assert [("**deploy**" in text) for text in texts[:2]] == [is_shown] * 2, (kind, visibility)
        assert (SECRET_TEXT in texts[2]) == is_shown, (kind, visibility)
        assert ("Only the user can start" in texts[2]) == (visibility == "user-only"), (kind, visibility)


def test_rules_are_checked_at_the_start(tmp_path: Path) -> None:
    """A rule that is not one is an error in the constructor, with what to do."""
    for rule in ({"deploy": "hidden"}, {5: "on"}, {"deploy": None}, {"deploy": ["off"]}):
        with pytest.raises(ValueError, match="visibility must map"):
            skills(tmp_path, visibility=rule)
    with pytest.raises(TypeError, match="visibility must be"):
        skills(tmp_path, visibility=["deploy"])


def test_an_exact_name_comes_before_a_pattern(tmp_path: Path) -> None:
    """An exact name counts before patterns, and of patterns the first that fits; a rule in another case still hides."""
    library(tmp_path)
    for rule, shown in (
        ({"*": "off", "deploy": "on"}, True),
        ({"dep*": "on", "*": "off"}, True),
        ({"*": "off", "dep*": "on"}, False),
        ({"DEPLOY": "off"}, False),
        ({"DEP*": "off"}, False),
        ({"dep*": "on", "Deploy": "off"}, False),
        ({"DEPLOY": "off", "deploy": "on"}, True),
        ({"other": "off"}, True),
    ):
        talk = Conversation("sync", skills(tmp_path, visibility=rule))
        talk.say()
        assert ("**deploy**" in talk.model.requests[0].system) == shown, rule


SPELLINGS = [
    "déploy",
    "DÉPLOY",
    unicodedata.normalize("NFD", "déploy"),
    unicodedata.normalize("NFD", "DÉPLOY"),
    " déploy ",
    "`déploy`",
    "**déploy**",
    '"déploy"',
    "déploy\n",
    "dé\u202eploy",
    "dé\u200bploy",
    "ｄéｐｌｏｙ",
    "d\u00e9pl\u043ey",
    "/skills/déploy",
    "/skills/déploy/SKILL.md",
    "../skills/déploy",
    "skills/déploy",
    "déploy/",
    "depl",
    "*",
    "",
]


@both_modes
def test_a_user_only_skill_reaches_the_model_by_no_way_but_the_user(mode: Mode, tmp_path: Path) -> None:
    """No spelling, tool, search, suggestion or error gives anything of it away, whoever made it the user's alone."""
    name = "déploy"
    text = f"---\nname: {name}\ndescription: {DESCRIPTION}\nwhen_to_use: For airships.\n%s---\n{SECRET_TEXT}\n"
    calls: list[Any] = [load(spelling) for spelling in SPELLINGS]
    calls += [("load_skill", {"skill_name": name, "arguments": "now"}), unload(name)]
    for spelling in SPELLINGS[:6]:
        calls += [
            ("list_skill_assets", {"skill_name": spelling}),
            ("load_skill_asset", {"skill_name": spelling, "relative_path": "references/guide.md"}),
            ("get_skill_script_path", {"skill_name": spelling, "script_name": "run.sh"}),
            ("run_skill_script", {"skill_name": spelling, "script_name": "run.sh", "args": []}),
        ]
    calls += [("search_skills", {"query": query, "n": 50}) for query in ("zeppelin airships", name, "deploy", "ships")]
    told = [DESCRIPTION, "airships.", SECRET_TEXT, "The guide of", "scripts/run.sh", "echo hi", "**déploy**"]
    offenders: list[Any] = []
    origins: dict[str, dict[str, Any]] = {
        "frontmatter": {},
        "mapping": {"visibility": {unicodedata.normalize("NFD", "DÉPLOY"): "user-only"}},
        "function": {"visibility": lambda skill, _: "user-only" if skill["name"] == name else "on"},
        "extension": {"extensions": [Rules({name: "user-only"})]},
    }
    for origin, options in share_of(mode, origins.items()):
        files = {
            f"skills/{name}/SKILL.md": text % ("disable-model-invocation: true\n" if origin == "frontmatter" else ""),
            f"skills/{name}/scripts/run.sh": "echo hi",
            f"skills/{name}/references/guide.md": "The guide of it.",
            "skills/other/SKILL.md": skill_md("other", "Ships other things."),
        }
        write_files(tmp_path, files)
        for catalog in ("full", "none") if origin == "mapping" else ("full",):
            plugged = [
                *options.get("extensions", []),
                SkillSuggestions(catalog=catalog),
                SkillScripts(runner=lambda *_: None),  # type: ignore[arg-type]
            ]
            talk = Conversation(mode, skills(tmp_path, **{**options, "extensions": plugged}))
            answers = talk.say(call_tools(*calls), given="Ship the zeppelin airships with the déploy skill")
            requests = "\n".join(request.text for request in talk.model.requests)
            offenders += [(origin, catalog, shown) for shown in told if shown in requests]
            offenders += [
                (origin, catalog, call, str(answer.text))
                for call, answer in zip(calls, answers, strict=True)
                if answer.status != "error" and call[0] != "search_skills"
            ]
            offenders += [] if talk.loaded == [] else [(origin, catalog, "loaded")]
            offenders += [] if "Only the user can start" in str(answers[0].text) else [(origin, catalog, "word")]
    assert offenders == []


@both_modes
def test_a_hidden_skill_inside_another_skill_is_not_among_its_files(mode: Mode, tmp_path: Path) -> None:
    """Where one skill's directory holds another's, the files of the hidden one are not listed, named or read."""
    hidden = f"---\nname: deploy\ndescription: {DESCRIPTION}\ndisable-model-invocation: true\n---\n{SECRET_TEXT}\n"
    files = {
        "repo/SKILL.md": skill_md("repo", "The whole repository."),
        "repo/readme.txt": "Read me.",
        "repo/scripts/skills/deploy/SKILL.md": hidden,
        "repo/scripts/skills/deploy/run.sh": "echo hi",
        "repo/scripts/skills/seen/SKILL.md": skill_md("seen", "A visible one."),
    }
    write_files(tmp_path, files)
    (tmp_path / "repo/link.md").symlink_to(tmp_path / "repo/scripts/skills/deploy/SKILL.md")
    inside = "scripts/skills/deploy"
    calls = [
        ("list_skill_assets", {"skill_name": "repo"}),
        ("load_skill_asset", {"skill_name": "repo", "relative_path": f"{inside}/SKILL.md"}),
        ("load_skill_asset", {"skill_name": "repo", "relative_path": "./scripts//skills/./deploy/SKILL.md"}),
        ("load_skill_asset", {"skill_name": "repo", "relative_path": "scripts/skills/Deploy/SKILL.md"}),
        ("load_skill_asset", {"skill_name": "repo", "relative_path": "link.md"}),
        ("get_skill_script_path", {"skill_name": "repo", "script_name": "skills/deploy/run.sh"}),
    ]
    sources = ["/repo", "/repo/scripts/skills"]
    talk = Conversation(mode, SkillsMiddleware(backend=disk(tmp_path), sources=sources, extra_tools=EXTRA))
    answers = talk.call(*calls)
    assert str(answers[0].text).splitlines() == ["- readme.txt", "- scripts/skills/seen/SKILL.md"]
    assert [answer.status for answer in answers[1:]] == ["error"] * 5
    assert [text for answer in answers for text in (SECRET_TEXT, "echo hi") if text in str(answer.text)] == []
    hints = [str(answer.text).partition("Did you mean")[2] for answer in answers[1:]]
    assert [hint for hint in hints if "deploy" in hint] == []
    given = {"messages": [HumanMessage("go")], "pinned_skills": ["deploy"]}
    answers = talk.say(call_tools(*calls[:2]), given=given)
    assert f"- {inside}/run.sh" in str(answers[0].text)
    assert SECRET_TEXT in str(answers[1].text)


@both_modes
def test_what_becomes_off_in_the_middle_of_a_run_is_out_of_use(mode: Mode, tmp_path: Path) -> None:
    """A loaded skill that is off by the time of a call runs no script and gives no file."""
    library(tmp_path)
    now = {"deploy": "on"}
    ran: list[Any] = []

    def runner(*given: Any) -> Any:
        ran.append(given)

    def turn_off(_messages: Any) -> Any:
        now["deploy"] = "off"
        return call_tools(("run_skill_script", {"skill_name": "deploy", "script_name": "run.sh", "args": []}), CALLS[7])

    rule = lambda skill, _runtime: now.get(skill["name"], "on")  # noqa: E731 - a rule in a line
    middleware = skills(tmp_path, visibility=rule, extensions=[SkillScripts(runner=runner)])
    talk = Conversation(mode, middleware)
    _, script, asset = talk.say(call_tools(load("deploy")), turn_off)
    assert (script.status, asset.status, ran) == ("error", "error", [])
    assert talk.loaded == []


@both_modes
def test_an_interrupt_in_a_rule_passes_through(mode: Mode, tmp_path: Path) -> None:
    """A function that asks a human is not taken for one that failed."""
    library(tmp_path)
    asked: list[str] = []

    def rule(skill: Any, _runtime: Any) -> Any:
        if skill["name"] == "deploy" and not asked:
            asked.append("asked")
            interrupt("May the model see it?")
        return "on"

    talk = Conversation(mode, skills(tmp_path, visibility=rule))
    talk.say()
    assert [found.value for found in talk.result["__interrupt__"]] == ["May the model see it?"]


def test_an_async_rule_hides_and_says_why(tmp_path: Path) -> None:
    """A function that cannot be asked here hides every skill, and its problem names the mistake."""
    library(tmp_path)

    async def rule(_skill: Any, _runtime: Any) -> Any:
        return "on"

    talk = Conversation("sync", skills(tmp_path, visibility=rule))
    talk.say()
    assert talk.model.requests[0].system == ""
    assert all("it is async" in found["message"] for found in talk.state["skills_problems"])


@both_modes
def test_a_source_that_is_a_hidden_skill_is_not_named(mode: Mode, tmp_path: Path) -> None:
    """A hidden skill that was given as a source of its own is not among the places where skills live."""
    library(tmp_path)
    cases: list[tuple[Any, bool]] = [("user-only", False), ("off", False), ("name-only", True)]
    for visibility, is_named in cases:
        middleware = SkillsMiddleware(
            backend=disk(tmp_path), sources=["/skills/deploy/", "/skills/other"], visibility={"deploy": visibility}
        )
        talk = Conversation(mode, middleware)
        talk.say()
        assert ("deploy" in talk.model.requests[0].system) == is_named, visibility
        assert "**other**" in talk.model.requests[0].system


@both_modes
def test_a_broken_skill_that_is_off_does_not_exist(mode: Mode, tmp_path: Path) -> None:
    """What a rule turns off is unknown also where its file is broken, whoever asks; others tell their problem."""
    library(tmp_path)
    write_files(tmp_path, {f"skills/{name}/SKILL.md": "---\nname: x\n---\nx" for name in ("payroll", "broken")})
    talk = Conversation(mode, skills(tmp_path, visibility={"Pay*": "off"}, slash_commands=True))
    calls = [load("payroll"), ("list_skill_assets", {"skill_name": "payroll"}), load("broken")]
    answers = [str(answer.text) for answer in talk.say(call_tools(*calls), given="/payroll now")]
    assert ["There is no skill named" in answer for answer in answers] == [True, True, False]
    assert "description-missing" in answers[2]


@both_modes
def test_a_load_names_no_file_of_a_hidden_skill_inside(mode: Mode, tmp_path: Path) -> None:
    """What a loaded skill lists of its files leaves out a directory that belongs to a skill the model may not see."""
    inside = {"SKILL.md": skill_md("deploy", disable_model_invocation=True), "plan.md": "The plan."}
    write_files(
        tmp_path,
        {
            "skills/outer/SKILL.md": skill_md("outer"),
            "skills/outer/assets/logo.svg": "<svg/>",
            **{f"skills/outer/assets/deploy/{name}": text for name, text in inside.items()},
        },
    )
    sources = ["/skills", "/skills/outer/assets"]
    for depth in (1, 3):
        middleware = SkillsMiddleware(backend=disk(tmp_path), sources=sources, resource_depth=depth)
        talk = Conversation(mode, middleware)
        [answer] = talk.call(load("outer"))
        assert "deploy" not in answer.text, depth
        resources = talk.state["skill_resources"]["outer"]
        assert [item["path"] for item in resources] == ["/skills/outer/assets/logo.svg"], depth


@both_modes
def test_what_is_still_wrong_stays_among_the_problems(mode: Mode, tmp_path: Path) -> None:
    """A start that finds the same again lists it again, whether the thread has it already or not."""

    def rule(_skill: object, _runtime: object) -> Any:
        raise RuntimeError("the directory service is away")

    write_files(tmp_path, {"skills/alpha/SKILL.md": skill_md("alpha")})
    middleware = SkillsMiddleware(backend=disk(tmp_path), sources=["/skills"], refresh="run", visibility=rule)
    state: Any = {"messages": [], "skills_loaded": 5}
    for _ in range(3):
        given: tuple[Any, Any] = (state, None)
        update = middleware.before_agent(*given) if mode == "sync" else asyncio.run(middleware.abefore_agent(*given))
        state = {**state, **(update or {}), "skills_loaded": 5}
        assert {found["code"] for found in state["skills_problems"]} == {"visibility-failed", "state-malformed"}
