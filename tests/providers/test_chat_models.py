"""Every request that we compose is one that the providers take: their own classes, against servers that are strict."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deepagents.backends import FilesystemBackend
from deepagents.middleware.summarization import SummarizationMiddleware as DeepAgentsSummarization
from langchain.agents.middleware import (
    AgentMiddleware,
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    HumanInTheLoopMiddleware,
    SummarizationMiddleware,
)
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.types import Command
from providers_support import PROVIDERS, Talk, load, unload
from stubs import Say, Stub

from deepskills.extensions import SkillForks, SkillSuggestions, SkillUsage
from support import write_files

Start = Callable[..., Talk]
RULE = "rule 059: do this"
PNG = base64.b64encode(
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x02\x00\x00\x00\x90wS\xde" + b"\x00" * 20
).decode()


@tool
def clock() -> str:
    """Tell the time."""
    return "It is noon. " * 40


class TrimsRequests(AgentMiddleware[Any, Any]):
    """Takes what came before the user's last message out of requests."""

    active = False

    def _trimmed(self, request: Any) -> Any:
        if not self.active:
            return request
        last = max(place for place, message in enumerate(request.messages) if message.type == "human")
        return request.override(messages=request.messages[last:])

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(self._trimmed(request))

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(self._trimmed(request))


def test_loads_and_unloads(talk: Start) -> None:
    """One load, two with an error beside them, a reload with arguments, an unload, and further turns after each."""
    it = talk()
    it.say(load("alpha", arguments="team one"), Say("Read it."))
    assert "For team one." in it.text
    it.say(load("beta", "missing", "gamma"), Say("", (("list_nothing", {}),)), Say("Read two."))
    assert "beta goes on." in it.text
    assert "gamma is short." in it.text
    it.say(load("alpha", arguments="team two"), Say("Again."))
    assert "For team two." in it.text
    assert "For team one." not in it.text
    it.say(unload("beta"), Say("Gone."), given="Leave the charts.")
    state = it.say(Say("Well."), given="And now?")
    assert state["skills_loaded"] == ["alpha", "gamma"]


def test_unload_now_and_marks_in_the_section(talk: Start) -> None:
    """The other values of both settings."""
    it = talk(loaded_status="system_prompt", unload_when="now")
    it.say(load("alpha", "beta"), Say("Read."))
    it.say(unload("beta"), load("gamma"), Say("Well."))
    assert "beta goes on." not in it.text
    assert "**alpha** [Loaded]" in it.text


def test_pins_slash_commands_and_notes(talk: Start) -> None:
    """A pin, a command, and a suggestion beside each message of the user."""
    it = talk(slash_commands=True, extensions=[SkillSuggestions()])
    it.say(Say("Hello."), given={"messages": [HumanMessage("Hello")], "pinned_skills": ["gamma"]})
    it.say(Say("On it."), given="/alpha team three")
    assert "For team three." in it.text
    assert "gamma is short." in it.text
    it.say(load("beta"), Say("Drawn."), given="Please draw charts of the weekly numbers")
    it.say(Say("Done."), given="Draw charts again")
    assert "beta goes on." in it.text


def test_context_editing(talk: Start) -> None:
    """Old results are cleared, the texts of skills are not."""
    editing = ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=200, keep=1)])
    it = talk(tools=[clock], after=[editing])
    it.say(load("alpha"), *[Say("", (("clock", {}),))] * 3, Say("Late."))
    assert RULE in it.text
    assert "[cleared]" in it.text
    it.say(Say("Well."))


def test_context_editing_further_out(talk: Start) -> None:
    """What was cleared before our hook is put back in its own message."""
    editing = ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=200, keep=1)])
    it = talk(tools=[clock], before=[editing])
    it.say(load("alpha"), *[Say("", (("clock", {}),))] * 3, Say("Late."))
    assert RULE in it.text


@pytest.mark.kinds("plain")
def test_langchains_summary(talk: Start) -> None:
    """State loses the messages; the text comes back behind the summary."""
    it = talk(
        before=[lambda model: SummarizationMiddleware(model=model, trigger=("messages", 6), keep=("messages", 2))],
    )
    it.say(load("alpha"), Say("Read."))
    for text in ("one", "two", "three"):
        it.say(Say(f"Answer {text}."), given=text)
    assert RULE in it.text
    assert "A summary." in it.text
    assert it.heard("reattached") == ["alpha"]
    it.say(unload("alpha"), Say("Gone."))
    it.say(load("beta"), Say("Drawn."))


@pytest.mark.kinds("plain")
def test_deepagents_summary(talk: Start, tmp_path: Path) -> None:
    """The request alone loses the messages; the text comes back behind the summary."""
    backend = FilesystemBackend(root_dir=tmp_path, virtual_mode=True)
    settings: Any = {"backend": backend, "trigger": ("messages", 6), "keep": ("messages", 2)}
    it = talk(before=[lambda model: DeepAgentsSummarization(model=model, **settings)])
    it.say(load("alpha"), Say("Read."))
    for text in ("one", "two", "three"):
        it.say(Say(f"Answer {text}."), given=text)
    assert RULE in it.text
    assert "A summary." in it.text
    assert it.heard("reattached") == ["alpha"]
    it.say(unload("alpha"), Say("Gone."))


@pytest.mark.kinds("deep")
def test_an_evicted_text(talk: Start, tmp_path: Path) -> None:
    """A text that the filesystem middleware took out stands in its own message again."""
    it = talk(max_loaded_tokens=None)
    long = "\n".join(f"rule {number:05d}: do this and nothing else at all." for number in range(2_500))
    write_files(tmp_path, {"skills/long/SKILL.md": f"---\nname: long\ndescription: Long.\n---\n{long}\n"})
    it.say(load("long"), Say("Read."))
    assert "rule 02499" in it.text
    it.say(Say("Well."))
    assert "rule 02499" in it.text


@pytest.mark.kinds("deep")
def test_forks(talk: Start, tmp_path: Path) -> None:
    """A skill with `context: fork` runs in a sub-agent; its answer is the result."""
    fork = "---\nname: forked\ndescription: Runs apart.\ncontext: fork\n---\nDo it apart.\n"
    write_files(tmp_path, {"skills/forked/SKILL.md": fork})
    it = talk(extensions=[SkillForks()])
    it.say(load("alpha"), load("forked"), load("gamma"), Say("From apart."), Say("All done."))
    state = it.say(Say("Well."))
    assert "alpha" in state["skills_loaded"]


def test_approval_and_resume(talk: Start) -> None:
    """A human approves one load and rejects another; the thread goes on."""
    it = talk(after=[HumanInTheLoopMiddleware(interrupt_on={"load_skill": True})])
    it.say(load("alpha", "beta"))
    decisions = [{"type": "approve"}, {"type": "reject", "message": "Not that one."}]
    state = it.say(Say("Read."), given=Command(resume={"decisions": decisions}))
    assert state["skills_loaded"] == ["alpha"]
    it.say(Say("Well."))
    assert RULE in it.text


def test_another_provider(talk: Start, case: tuple[str, str, str]) -> None:
    """A thread that was begun with one provider goes on with the next, and back."""
    names = list(PROVIDERS)
    following = names[(names.index(case[0]) + 1) % len(names)]
    first = talk()
    second = talk(provider=following)
    first.say(load("alpha"), load("beta", "gamma"), unload("beta"), Say("Read."))
    values = first.agent.get_state(first.config).values
    second.agent.checkpointer = first.saver
    second.say(load("beta"), Say("Drawn."))
    assert RULE in second.text
    assert "beta goes on." in second.text
    assert second.agent.get_state(second.config).values["skills_loaded"] == [*values["skills_loaded"], "beta"]
    assert first.say(unload("gamma"), Say("Well."))["skills_loaded"] == ["alpha", "beta"]


def test_usage(talk: Start) -> None:
    """What providers count is what `skill.cost` says."""
    it = talk(extensions=[SkillUsage(lambda _event: None)])
    it.say(load("alpha"), Say("Read."), Say("Well."))
    [cost] = [event for event in it.events if event["type"] == "skill.cost"]
    assert not cost["estimated"]
    assert cost["tokens_in"] > 500
    assert cost["tokens_out"] == 7


def test_usage_that_is_not_counted(talk: Start) -> None:
    """Where the provider counts nothing, all that was sent is estimated, tool schemas and calls included."""
    it = talk(extensions=[SkillUsage(lambda _event: None)])
    it.stub.counts = False
    it.say(load("alpha"), Say("Read."), Say("Well."))
    [cost] = [event for event in it.events if event["type"] == "skill.cost"]
    assert cost["estimated"]
    # By a counter of its own: all but what the format adds.
    sent = it.stub.seen[-1]
    schemas = json.dumps(sent.body.get("tools"))
    assert cost["tokens_in"] == pytest.approx((len(sent.text) + len(schemas)) / 4, rel=0.25)


def cases_of_overflow() -> list[tuple[str, int, str]]:
    return [
        (name, which, how)
        for name, provider in PROVIDERS.items()
        for which in range(len(provider.overflows))
        for how in ("sync", "async", "streamed")
    ]


@pytest.mark.parametrize(("name", "which", "how"), cases_of_overflow())
def test_overflow(name: str, which: int, how: str, tmp_path: Path) -> None:
    """A put-back that the model has no room for is left out, said once, and not tried again."""
    editing = TrimsRequests()
    it = Talk(name, how, "plain", tmp_path, before=[editing])
    try:
        it.say(load("alpha"), load("gamma"), Say("Read."))
        it.say(Say("One."))
        size = len(it.text)
        editing.active = True
        it.stub.overflow = it.provider.overflow(it.stub.wire, which)
        it.stub.limit = size - 1_000
        before = len(it.stub.seen)
        it.say(Say("Two."), given="short")
        assert RULE not in it.text
        assert len(it.stub.seen) - before == 2
        after = len(it.stub.seen)
        for text in ("three", "four"):
            it.say(Say("Well."), given=text)
        assert len(it.stub.seen) - after == 2
        assert "gamma is short." in it.text
        assert sorted(it.heard("left_out")) == ["alpha", "gamma"]
        assert it.heard("reattached") == ["gamma"]
        it.stub.limit = None
        assert it.stub.refusals == []
    finally:
        it.close()


def test_images(talk: Start, tmp_path: Path) -> None:
    """An image of a skill is shown where the model takes it, and costs no thread where it does not."""
    write_files(tmp_path, {"skills/alpha/assets/logo.png": base64.b64decode(PNG)})
    it = talk(extra_tools=["load_skill_asset"])
    it.stub.takes_media = False
    asset = Say("", (("load_skill_asset", {"skill_name": "alpha", "path": "assets/logo.png"}),))
    before = len(it.stub.seen)
    it.say(load("alpha"), asset, Say("Seen."))
    assert len(it.stub.seen) - before <= 4
    it.say(Say("Well."))
    assert it.stub.seen[-1].media == 0
    assert len(it.stub.seen) - before <= 5


def test_stubs_refuse_what_providers_refuse() -> None:
    """Each stub answers 400 to a request with a call without its result."""
    wires = {name: provider.wire() for name, provider in PROVIDERS.items()}
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "x", "arguments": "{}"}}
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    bodies: dict[str, dict[str, Any]] = {
        "anthropic": {
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "x", "input": {}}]},
                {"role": "user", "content": "b"},
            ]
        },
        **{name: {"messages": [*chat, {"role": "user", "content": "b"}]} for name in ("openai", "mistral", "groq")},
        "responses": {"input": [{"type": "function_call", "call_id": "x", "name": "x", "arguments": "{}"}]},
        "google": {
            "contents": [
                {"role": "user", "parts": [{"text": "a"}]},
                {"role": "model", "parts": [{"functionCall": {"name": "x", "args": {}}}]},
                {"role": "user", "parts": [{"text": "b"}]},
            ]
        },
    }
    assert {name: bool(wires[name].read(body).problems) for name, body in bodies.items()} == dict.fromkeys(bodies, True)
    marked = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    crooked: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": [marked] * 5}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": " "}]}]},
        {"messages": [{"role": "user", "content": "a"}] * 2},
        {"messages": [{"role": "user", "content": "a", "id": "1"}]},
        {
            "messages": [{"role": "user", "content": "a"}],
            "tools": [{"name": "a b", "input_schema": {"type": "object"}}],
        },
        {"messages": [{"role": "user", "content": "a"}], "tools": [{"name": "a", "input_schema": {}}]},
    ]
    assert [bool(wires["anthropic"].read(body).problems) for body in crooked] == [True] * len(crooked)
    assert not wires["anthropic"].read({"messages": [{"role": "user", "content": [marked] * 4}]}).problems
    stub = Stub(wires["openai"])
    assert stub.reply(bodies["openai"])[0] == 400
    stub.close()
