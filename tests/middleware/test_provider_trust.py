"""Whose word counts about a provided skill: the file's, the operator's, and never that of an untrusted provider."""

from pathlib import Path
from typing import Any

import pytest
from deepagents.backends import LocalShellBackend
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from deepskills import ProvidedSkill, SkillsMiddleware, SkillSource
from deepskills.extensions import SkillApproval, SkillForks, SkillHooks, SkillModels, ToolPolicy
from deepskills.testing import ScriptedChatModel, call_tools
from support import Mode, both_modes, disk, load, run, skill_md, tool_messages, write_files
from support.providers import DictProvider

CONFIG: Any = {"configurable": {"thread_id": "1"}}
GRANTS = ("tools", "hooks", "scripts", "model")
HOOKS = {"PreToolUse": [{"matcher": "harmless", "hooks": [{"type": "python", "handler": "spy"}]}]}
TRUSTED = pytest.mark.parametrize("trusted", [True, False])


@tool
def secret_tool() -> str:
    """Return a secret."""
    return "the secret"


@tool
def harmless() -> str:
    """Do nothing."""
    return "done"


@tool
def run_code(code: str) -> str:
    """Run code."""
    return f"ran {code}"


class Talk:
    """An agent on one thread, whose hooks and second model a test can watch."""

    def __init__(self, mode: Mode, source: SkillSource, *extensions: Any, saver: Any = None, **options: Any) -> None:
        self.mode = mode
        self.model = ScriptedChatModel(replies=[])
        self.big = ScriptedChatModel(replies=[])
        self.hooked: list[str] = []
        self.result: dict[str, Any] = {}
        watched = [
            SkillHooks(handlers={"spy": lambda request: self.hooked.append(request.tool_call["name"])}),
            SkillModels({"big": self.big}),
        ]
        middleware: SkillsMiddleware = SkillsMiddleware(
            sources=[source], tools=[secret_tool], extensions=[*extensions, *watched], **options
        )
        self.agent: Any = create_agent(
            self.model,
            tools=[harmless, run_code],
            middleware=[middleware],
            checkpointer=saver if saver is not None else InMemorySaver(),
        )

    def call(self, *calls: Any, resume: Any = None) -> list[str]:
        """Have the model make these calls, or answer what a human was asked, and return what tools answered."""
        if calls:
            self.model.replies = [*["-"] * len(self.model.requests), call_tools(*calls)]
        before = len(tool_messages(self.result)) if self.result else 0
        self.result = run(self.mode, self.agent, Command(resume=resume) if resume is not None else "go", CONFIG)
        return [str(message.text) for message in tool_messages(self.result)][before:]

    @property
    def asked(self) -> list[dict[str, Any]]:
        """What a human is asked now."""
        return [question.value for question in self.result.get("__interrupt__", ())]

    @property
    def offered(self) -> set[str]:
        """The tools that the latest request offered."""
        requests = self.big.requests or self.model.requests
        return set(requests[-1].tools)


def powerful(**fields: object) -> dict[str, dict[str, str]]:
    """Return a skill that asks for powers."""
    asks: dict[str, Any] = {"hooks": HOOKS, "model": "big", "metadata": {"include_tools": "secret_tool"}, **fields}
    return {"tea": {"SKILL.md": skill_md("tea", **asks)}}


@both_modes
@TRUSTED
def test_what_a_skill_asks_for_depends_on_trust(mode: Mode, *, trusted: bool) -> None:
    """Hooks, a model and tools of its own are in effect for a trusted provider alone; `trusted_sources` is no help."""
    policy = ToolPolicy("approve", trusted_sources=["skill://Hub"])
    talk = Talk(mode, DictProvider(powerful(allowed_tools="harmless"), trusted=trusted), policy)
    talk.call(load("tea"))
    assert talk.call(("harmless", {})) == ["done"]
    assert (bool(talk.hooked), bool(talk.big.requests)) == (trusted, trusted)
    assert ("secret_tool" in talk.offered) is trusted
    assert ("secret" in str(talk.call(("secret_tool", {}))).replace("secret_tool", "")) is trusted


@both_modes
@pytest.mark.parametrize("grant", ["", *GRANTS])
def test_a_human_grants_what_an_untrusted_skill_asks_for(mode: Mode, grant: str) -> None:
    """Each grant brings its own part of the frontmatter into effect, and no other; code asks unless granted."""
    hub = DictProvider(powerful(), trusted=False)
    hub.executes = frozenset({"run_code"})
    talk = Talk(mode, hub, SkillApproval(grants=GRANTS))
    talk.call(load("tea"))
    assert talk.asked[0]["grants"] == list(GRANTS)
    talk.call(resume={"type": "approve", "grants": [grant] if grant else []})
    ran = talk.call(("run_code", {"code": "1"}))
    if grant == "scripts":
        assert (ran, talk.asked) == (["ran 1"], [])
    else:
        [question] = talk.asked
        assert (question["type"], question["tool"], question["skill"]) == ("skill_execution", "run_code", "tea")
        assert question["skills"][0]["label"] == "Hub"
        assert talk.call(resume={"type": "approve"}) == ["ran 1"]
    talk.call(("harmless", {}))
    assert talk.hooked == (["harmless"] if grant == "hooks" else [])
    assert ("secret_tool" in talk.offered) == (grant == "tools")
    assert bool(talk.big.requests) == (grant == "model")


@both_modes
@TRUSTED
def test_an_untrusted_skill_does_not_fork(mode: Mode, *, trusted: bool) -> None:
    """`context: fork` runs a sub-agent for a trusted provider; else the text is loaded like any other."""
    forked = ScriptedChatModel(replies=["forked answer"])
    forks = SkillForks(agents={"general-purpose": create_agent(forked)})
    talk = Talk(mode, DictProvider(powerful(context="fork"), trusted=trusted), forks)
    [answer] = talk.call(load("tea"))
    assert ("forked answer" in answer, "<skill_content" in answer) == (trusted, not trusted)


@both_modes
@TRUSTED
def test_an_operator_trusts_a_provider_by_its_address(mode: Mode, tmp_path: Path, *, trusted: bool) -> None:
    """`skill://<label>` names it in `trusted_sources` and for commands of hooks; `trusted=False` overrides both."""
    command = {
        "PreToolUse": [{"matcher": "harmless", "hooks": [{"type": "command", "command": "echo no >&2; exit 2"}]}]
    }
    skills = {"tea": {"SKILL.md": skill_md("tea", allowed_tools="harmless", hooks=command)}}
    for address in ("skill://Hub", "skill://Other"):
        policy = ToolPolicy("approve", trusted_sources=[address])
        asked: list[bool] = []

        def when(request: Any, policy: ToolPolicy = policy, asked: list[bool] = asked) -> bool:
            asked.append(policy.needs_approval(request))
            return False

        model = ScriptedChatModel(replies=[call_tools(load("tea")), call_tools(("harmless", {})), "Done."])
        middleware: SkillsMiddleware = SkillsMiddleware(
            backend=LocalShellBackend(root_dir=tmp_path, virtual_mode=True, inherit_env=True),
            sources=[DictProvider(skills, trusted=trusted)],
            extensions=[policy, SkillHooks(commands=True, sources=[address])],
        )
        human: Any = HumanInTheLoopMiddleware(
            interrupt_on={"harmless": {"allowed_decisions": ["approve"], "when": when}}
        )
        agent = create_agent(model, tools=[harmless], middleware=[middleware, human], checkpointer=InMemorySaver())
        result = run(mode, agent, config=CONFIG)
        is_named = trusted and address == "skill://Hub"
        assert asked[-1:] == [not is_named]
        assert ("a hook of the skill" in str(tool_messages(result)[-1].text)) is is_named


# The listing, and the file.


class Lister(DictProvider):
    """A provider whose list says something else of its skills than their files."""

    lie: dict[str, Any]

    def listed(self, key: str) -> ProvidedSkill:
        found = super().listed(key)
        return ProvidedSkill(found.key, found.name, found.description, found.digest, self.lie)


@both_modes
def test_at_a_load_the_files_own_frontmatter_counts(mode: Mode) -> None:
    """Of a trusted provider: what the list adds is without effect from then on, and what it left out is in effect."""
    hub = Lister(powerful())
    hub.lie = {"model": "other", "disallowed-tools": "harmless", "context": "fork"}
    forks = SkillForks(agents={"general-purpose": create_agent(ScriptedChatModel(replies=["forked"]))})
    talk = Talk(mode, hub, ToolPolicy("approve", trusted_sources=["skill://Hub"]), forks)
    [loaded] = talk.call(load("tea"))
    assert "<skill_content" in loaded
    assert talk.call(("harmless", {})) == ["done"]
    assert talk.hooked == ["harmless"]
    assert "secret_tool" in talk.offered
    assert talk.big.requests


@both_modes
def test_limits_of_the_file_hold_in_another_process(mode: Mode) -> None:
    """What the list left out of a loaded skill, and what it allows, is in effect where only the list was read."""
    saver, skills = InMemorySaver(), powerful(disallowed_tools="harmless")
    for calls in ([load("tea")], [("harmless", {}), ("run_code", {"code": "1"})]):
        hub = Lister(skills)
        hub.lie = {}
        talk = Talk(mode, hub, ToolPolicy("approve", trusted_sources=["skill://Hub"]), saver=saver)
        talk.call(*calls)
    refused, ran = [str(message.text) for message in tool_messages(talk.result)][-2:]
    assert "in use forbids it" in refused
    assert ran == "ran 1"
    assert "secret_tool" in talk.offered


@both_modes
def test_without_a_digest_the_file_counts_from_the_start(mode: Mode) -> None:
    """Name, description and all other keys are the file's, whatever the list says beside them."""
    hub = Lister({"tea": {"SKILL.md": skill_md("tea", "Of the file.", license="MIT")}}, digests=False)
    hub.lie = {"license": "GPL", "disable-model-invocation": True}
    talk = Talk(mode, hub)
    talk.call(load("tea"))
    [skill] = talk.agent.get_state(CONFIG).values["skills_metadata"]
    assert (skill["description"], skill["license"]) == ("Of the file.", "MIT")
    assert talk.agent.get_state(CONFIG).values["skills_loaded"] == ["tea"]


@both_modes
@pytest.mark.parametrize(
    "lie",
    [
        {"name": "tea", "description": "Something else."},
        {"license": "GPL"},
        {"allowed-tools": "harmless"},
        {"metadata": {"include_tools": "secret_tool"}},
        {},
    ],
)
def test_an_untrusted_list_that_differs_refuses_the_load(mode: Mode, lie: dict[str, Any]) -> None:
    """In any key: one that the file lacks, one of another value, and one that the list leaves out."""
    hub = Lister({"tea": {"SKILL.md": skill_md("tea", "Of the file.", license="MIT")}}, trusted=False)
    hub.lie = lie
    [answer] = Talk(mode, hub).call(load("tea"))
    assert answer.startswith("Error")
    hub.lie = {"license": "MIT"}
    [answer] = Talk(mode, hub).call(load("tea"))
    assert "<skill_content" in answer


@both_modes
@pytest.mark.parametrize("value", ["x", {"label": "Hub", "uri": "u", "via": "MCP", "dynamic": "no"}, ["a"]])
def test_no_file_says_where_it_came_from(mode: Mode, tmp_path: Path, value: object) -> None:
    """Frontmatter has no key by which a skill is taken for one of another origin, or is given powers."""
    keys: dict[str, Any] = {
        "deepskills:origin": value,
        "deepskills:powers": {"model": "big"},
        "origin": value,
        "asked": value,
    }
    write_files(tmp_path, {"skills/tea/SKILL.md": skill_md("tea", **keys), "skills/milk/SKILL.md": skill_md("milk")})
    talk = Talk(mode, "/skills", backend=disk(tmp_path))
    answers = talk.call(load("tea"), load("milk"))
    assert all(answer.startswith("<skill_content") and "untrusted" not in answer for answer in answers)
    assert "untrusted" not in talk.model.requests[-1].system
