"""Every request that we compose is one that the providers take: their own classes, against servers that are strict."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from deepagents.middleware.filesystem import FilesystemMiddleware
from deepagents.middleware.summarization import SummarizationMiddleware as DeepAgentsSummarization
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    HumanInTheLoopMiddleware,
    SummarizationMiddleware,
)
from langchain_anthropic.middleware import AnthropicPromptCachingMiddleware
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langgraph.types import Command
from providers_support import PROVIDERS, Talk, load, unload
from stubs import CACHE_MARKS, Say

from deepskills import SkillExtension
from deepskills._prompt.messages import RESULTS_READ
from deepskills.extensions import SkillChecks, SkillForks, SkillHooks, SkillSuggestions, SkillUsage
from support import disk, skill_md, write_files

Start = Callable[..., Talk]
Case = tuple[str, str, str]
RULE = "rule 059: do this"
PNG = (
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x02\x00\x00\x00\x90wS\xde" + b"\x00" * 20
)


@tool
def clock() -> str:
    """Tell the time."""
    return "It is noon. " * 40


CLOCK = Say("", (("clock", {}),))


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


def test_the_provider_decides_by_default(talk: Start) -> None:
    """Where prompts are cached, each request begins with the whole of the one before, through an unload as well."""
    it = talk()
    it.say(load("alpha"), load("beta"), unload("alpha"), Say("Read."))
    texts = [seen.text for seen in it.stub.seen]
    assert ("**beta** [Loaded]" in it.text) is not it.provider.caches
    assert ("For ." in it.text or "For $ARGUMENTS." in it.text) is it.provider.caches
    begin = [later.startswith(earlier) for earlier, later in pairwise(texts)]
    assert begin == [it.provider.caches] * 3


def test_pins_slash_commands_and_notes(talk: Start) -> None:
    """A pin, a command, and a suggestion beside each message of the user."""
    it = talk(slash_commands=True, extensions=[SkillSuggestions()])
    it.say(Say("Hello."), given={"messages": [HumanMessage("Hello")], "pinned_skills": ["gamma"]})
    it.say(Say("On it."), given="/alpha team three")
    assert "For team three." in it.text
    assert "gamma is short." in it.text
    it.say(load("beta"), Say("Drawn."), given="Please draw charts of the weekly numbers")
    assert "Draws charts." in it.text.partition("Please draw charts")[2]
    it.say(Say("Done."), given="Draw charts again")
    assert "beta goes on." in it.text


class LoadsAfterClock(SkillExtension):
    """Loads a skill once the model has looked at the clock."""

    def after_tool(self, request: Any, result: Any, run: Any) -> Any:
        if request.tool_call["name"] == "clock":
            run.load("gamma")
        return result


def test_what_is_said_behind_results(talk: Start, case: Case, tmp_path: Path) -> None:
    """A skill that an extension loads, a hook's prompt, and a user who goes on where a run was broken off."""
    hooks = {"PostToolUse": [{"matcher": "clock", "hooks": [{"type": "prompt", "prompt": "Mind the time zone."}]}]}
    it = talk(tools=[clock], extensions=[LoadsAfterClock(), SkillHooks()])
    write_files(tmp_path, {"skills/alpha/SKILL.md": skill_md("alpha", "Writes.", "# alpha\n\nalpha.\n", hooks=hooks)})
    it.say(load("alpha"), CLOCK, Say("Late."))
    assert "gamma is short." in it.text
    assert "Mind the time zone." in it.text
    it.agent.interrupt_after_nodes = ["tools"]
    it.say(CLOCK)
    it.agent.interrupt_after_nodes = []
    it.say(Say("Well."), given="Never mind.")
    assert "Never mind." in it.text
    assert (RESULTS_READ in it.text) is (case[0] == "mistral")


def test_skills_that_change(talk: Start, tmp_path: Path) -> None:
    """A loaded file is edited and another one is removed: the new text, and a note before the user's message."""
    it = talk(refresh="run")
    it.say(load("alpha", "gamma"), Say("Read."))
    write_files(tmp_path, {"skills/alpha/SKILL.md": skill_md("alpha", "Writes.", "# alpha\n\nalpha is new.\n")})
    (tmp_path / "skills" / "gamma" / "SKILL.md").unlink()
    state = it.say(Say("Well."), given="Go on.")
    assert "alpha is new." in it.text
    assert RULE not in it.text
    assert "gamma is short." not in it.text
    assert "No longer available and therefore unloaded: 'gamma'" in it.text.partition("Go on.")[0]
    assert state["skills_loaded"] == ["alpha"]


def test_an_answer_that_is_sent_back(talk: Start) -> None:
    """The premature answer stays, and the model reads what is missing."""
    it = talk(tools=[clock], extensions=[SkillChecks(checks={"gamma": [{"called": "clock"}]})])
    it.say(load("gamma"), Say("All done."), CLOCK, Say("Now it is."))
    assert "is not done yet" in it.text
    assert len(it.stub.seen) == 4


def test_context_editing(talk: Start) -> None:
    """Old results are cleared, the texts of skills are not."""
    editing = ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=200, keep=1)])
    it = talk(tools=[clock], after=[editing])
    it.say(load("alpha"), *[CLOCK] * 3, Say("Late."))
    assert RULE in it.text
    assert "[cleared]" in it.text
    it.say(Say("Well."))


def test_context_editing_further_out(talk: Start) -> None:
    """What was cleared before our hook is put back in its own message."""
    editing = ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=200, keep=1)])
    it = talk(tools=[clock], before=[editing])
    it.say(load("alpha"), *[CLOCK] * 3, Say("Late."))
    assert RULE in it.text
    assert it.heard("reattached") == ["alpha"]


def go_on_after_summary(it: Talk) -> None:
    """Talk until there is a summary, and load and unload behind it."""
    it.say(load("alpha"), Say("Read."))
    for text in ("one", "two", "three"):
        it.say(Say(f"Answer {text}."), given=text)
    assert RULE in it.text
    assert "A summary." in it.text
    assert it.heard("reattached") == ["alpha"]
    it.say(unload("alpha"), Say("Gone."))
    it.say(load("beta"), Say("Drawn."))
    assert "beta goes on." in it.text


def test_langchains_summary(talk: Start) -> None:
    """State loses the messages; the text comes back behind the summary."""
    make = lambda model: SummarizationMiddleware(model=model, trigger=("messages", 6), keep=("messages", 2))  # noqa: E731
    go_on_after_summary(talk(before=[make]))


def test_deepagents_summary(talk: Start, tmp_path: Path) -> None:
    """The request alone loses the messages; the text comes back behind the summary."""
    settings: Any = {"backend": disk(tmp_path), "trigger": ("messages", 6), "keep": ("messages", 2)}
    go_on_after_summary(talk(before=[lambda model: DeepAgentsSummarization(model=model, **settings)]))


def test_an_evicted_text(talk: Start, case: Case, tmp_path: Path) -> None:
    """A text that the filesystem middleware took out stands in its own message again."""
    files = [] if case[2] == "deep" else [FilesystemMiddleware(backend=disk(tmp_path))]
    it = talk(before=files, max_loaded_tokens=None)
    long = "\n".join(f"rule {number:05d}: do this and nothing else at all." for number in range(2_500))
    write_files(tmp_path, {"skills/long/SKILL.md": f"---\nname: long\ndescription: Long.\n---\n{long}\n"})
    it.say(load("long"), Say("Read."))
    assert "rule 02499" in it.text
    it.say(Say("Well."))
    assert "rule 02499" in it.text


def test_forks(talk: Start, case: Case, tmp_path: Path) -> None:
    """A skill with `context: fork` runs in a sub-agent; its answer is the result."""
    fork = "---\nname: forked\ndescription: Runs apart.\ncontext: fork\n---\nDo it apart.\n"
    write_files(tmp_path, {"skills/forked/SKILL.md": fork})
    forks = SkillForks()
    it = talk(extensions=[forks], tools=[clock])
    if case[2] == "plain":
        forks._agents["general-purpose"] = create_agent(it.model, tools=[clock])  # noqa: SLF001 - made of the talk's model
    it.say(load("alpha"), load("forked"), CLOCK, Say("From apart."), Say("All done."))
    assert "Do it apart." in it.stub.seen[-2].text
    assert RULE not in it.stub.seen[-2].text
    assert "From apart." in it.text
    assert it.say(Say("Well."))["skills_loaded"] == ["alpha"]


def test_approval_and_resume(talk: Start) -> None:
    """A human approves one load and rejects another; the thread goes on."""
    it = talk(after=[HumanInTheLoopMiddleware(interrupt_on={"load_skill": True})])
    it.say(load("alpha", "beta"))
    decisions = [{"type": "approve"}, {"type": "reject", "message": "Not that one."}]
    state = it.say(Say("Read."), given=Command(resume={"decisions": decisions}))
    assert state["skills_loaded"] == ["alpha"]
    it.say(Say("Well."))
    assert RULE in it.text


def test_another_provider(talk: Start, case: Case) -> None:
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


def test_cache_marks(talk: Start, case: Case) -> None:
    """Marks of the host and of its caching middleware stay within what is taken, and none is lost or added."""
    prompt = SystemMessage([{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}])
    caching = [AnthropicPromptCachingMiddleware(unsupported_model_behavior="ignore")] if case[2] == "plain" else []
    it = talk(after=caching, system_prompt=prompt if case[0] == "anthropic" else None)
    it.say(load("alpha"), load("beta"), unload("alpha"), Say("Read."))
    it.say(load("gamma"), Say("Well."))
    marks = [json.dumps(seen.body).count('"cache_control"') for seen in it.stub.seen]
    if case[0] == "anthropic":
        assert "Be brief." in it.text
        assert 2 <= min(marks) <= max(marks) <= CACHE_MARKS
    else:
        assert marks == [0] * len(marks)


def test_usage(talk: Start) -> None:
    """What providers count is what `skill.cost` says."""
    it = talk(extensions=[SkillUsage(lambda _event: None)])
    it.say(load("alpha"), Say("Read."), Say("Well."))
    [cost] = [event for event in it.events if event["type"] == "skill.cost"]
    assert not cost["estimated"]
    # What the stub counts, of the one request that held the text.
    assert cost["tokens_in"] == it.stub.counted[-1]
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


def test_overflow(talk: Start, which: int) -> None:
    """A put-back that the model has no room for is left out, said once, and not tried again."""
    trimming = TrimsRequests()
    it = talk(before=[trimming])
    it.say(load("alpha"), load("gamma"), Say("Read."))
    it.say(Say("One."))
    size = len(it.text)
    trimming.active = True
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


ASSET = Say("", (("load_skill_asset", {"skill_name": "alpha", "relative_path": "assets/logo.png"}),))


def test_images(talk: Start, tmp_path: Path) -> None:
    """An image of a skill is shown where the provider takes it; elsewhere one refusal costs neither turn nor thread."""
    write_files(tmp_path, {"skills/alpha/assets/logo.png": PNG})
    it = talk(extra_tools=["load_skill_asset"])
    it.stub.refuses_media = not it.provider.shows_results
    it.say(load("alpha"), ASSET, Say("Seen."))
    shown = it.provider.shows_results
    assert len(it.stub.seen) == (3 if shown else 4)
    assert it.stub.seen[-1].media == shown
    assert ("is left out" in it.text) is not shown
    it.say(Say("Well."))
    assert it.stub.seen[-1].media == shown
    assert len(it.stub.seen) == (4 if shown else 5)


def test_images_that_a_model_does_not_take(talk: Start, tmp_path: Path) -> None:
    """A provider may take images and one of its models none."""
    write_files(tmp_path, {"skills/alpha/assets/logo.png": PNG})
    it = talk(extra_tools=["load_skill_asset"])
    it.stub.refuses_media = True
    it.say(load("alpha"), ASSET, Say("Seen."))
    it.say(Say("Well."))
    assert it.stub.seen[-1].media == 0
    assert len(it.stub.seen) == 5
