"""What follows from the model of a request: where loads are shown, when texts leave, how much may be loaded."""

import logging
from pathlib import Path
from typing import Any

import pytest
from langchain.agents.middleware import ToolCallRequest
from langchain_core.messages import HumanMessage, ToolMessage

from deepskills import SkillExtension, SkillRun
from deepskills.extensions import SkillModels
from deepskills.testing import ScriptedChatModel, call_tools
from support import Conversation, Mode, both_modes, load, loaded_in, skill_md, skills, unload, write_files


class ModelOf(ScriptedChatModel):
    """A scripted model of some provider."""

    provider: str = ""

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:  # noqa: ARG002 - LangChain's signature
        return {"ls_provider": self.provider}


def library(root: Path, *names: str, size: int = 0, **fields: Any) -> None:
    """Write skills of about so many tokens each."""
    for name in names:
        body = f"Text of {name}.\n" + "word " * size
        write_files(root, {f"skills/{name}/SKILL.md": skill_md(name, body=body, **fields)})


def talk(mode: Mode, root: Path, model: ScriptedChatModel, **options: Any) -> Conversation:
    """Return a conversation with a model of one's own."""
    return Conversation(mode, skills(root, **options), model=model)


def seen(conversation: Conversation) -> tuple[bool, bool]:
    """Return whether the section marks a loaded skill, and whether the text of an unloaded one stays."""
    conversation.say(call_tools(load("alpha")))
    marks = bool(loaded_in(conversation.model.requests[-1].system))
    conversation.say(call_tools(unload("alpha")))
    return marks, "Text of alpha." in conversation.model.requests[-1].text


@both_modes
def test_the_provider_decides_by_default(mode: Mode, tmp_path: Path) -> None:
    """A provider that caches by prefix gets a prefix that stays; any other, or an unknown one, the clearest request."""
    library(tmp_path, "alpha")
    caching = ("anthropic", "openai", "azure", "google_genai", "amazon_bedrock", "mistral", "groq", "openrouter")
    for provider in (*caching, "ollama", ""):
        found = seen(talk(mode, tmp_path, ModelOf(replies=[], provider=provider)))
        assert (provider, found) == (provider, (False, True) if provider in caching else (True, False))


@both_modes
def test_a_setting_of_ones_own_counts(mode: Mode, tmp_path: Path) -> None:
    """Each of the two holds whatever the provider is."""
    library(tmp_path, "alpha")
    fixed = talk(
        mode, tmp_path, ModelOf(replies=[], provider="openai"), loaded_status="system_prompt", unload_when="now"
    )
    assert seen(fixed) == (True, False)
    fixed = talk(mode, tmp_path, ModelOf(replies=[]), loaded_status="conversation", unload_when="cheap")
    assert seen(fixed) == (False, True)


@both_modes
def test_a_thread_that_changes_its_provider_is_decided_again(mode: Mode, tmp_path: Path) -> None:
    """Tools and requests follow the new one from its first request on."""
    library(tmp_path, "alpha", "beta")
    model = ModelOf(replies=[], provider="openai")
    conversation = talk(mode, tmp_path, model)
    conversation.say(call_tools(load("alpha"), load("beta")))
    assert conversation.state["skills_context"]["model"] == {"provider": "openai"}
    model.provider = "ollama"
    conversation.say(call_tools(unload("beta")))
    assert loaded_in(model.requests[-1].system) == ["alpha"]
    assert "Text of beta." not in model.requests[-1].text


@both_modes
def test_the_model_that_goes_out_decides(mode: Mode, tmp_path: Path) -> None:
    """Where a skill chose the model, its provider counts, and the conversation's own again in the next turn."""
    library(tmp_path, "alpha", model="big")
    big = ModelOf(replies=lambda _messages: "Big.", provider="anthropic")
    small = ModelOf(replies=[], provider="ollama")
    conversation = talk(mode, tmp_path, small, extensions=[SkillModels({"big": big})])
    conversation.say(call_tools(load("alpha")))
    assert big.requests
    assert loaded_in(big.requests[-1].system) == []
    assert conversation.state["skills_context"]["model"]["provider"] == "anthropic"
    conversation.say("Small.")
    assert loaded_in(small.requests[-1].system) == ["alpha"]


def test_a_graph_of_ones_own_gives_its_model(tmp_path: Path) -> None:
    """`model_messages` takes the model; without one, that of the thread's latest request counts."""
    library(tmp_path, "alpha")
    middleware = skills(tmp_path)
    state: dict[str, Any] = {"messages": [HumanMessage("go", id="1")]}
    state |= dict(middleware.before_agent(state, None) or {})  # type: ignore[arg-type]
    _, update = middleware.model_messages(state, None, model=ModelOf(replies=[], provider="groq").bind_tools([]))
    assert update["skills_context"]["model"]["provider"] == "groq"
    _, update = middleware.model_messages(state, None)
    assert "model" not in update.get("skills_context", {})


class LoadsBehindCalls(SkillExtension):
    """Loads a skill once another one was loaded."""

    def after_tool(self, request: ToolCallRequest, result: Any, run: SkillRun) -> Any:  # noqa: ARG002 - the seam's
        run.load("beta")
        return result


@both_modes
def test_a_provider_that_speaks_after_results_gets_a_word_in_between(mode: Mode, tmp_path: Path) -> None:
    """Mistral refuses a user's message right behind a result; the history and other providers see nothing of it."""
    library(tmp_path, "alpha", "beta")
    orders = {}
    for provider in ("mistral", "mistralai", "openai"):
        model = ModelOf(replies=[], provider=provider)
        conversation = talk(mode, tmp_path, model, extensions=[LoadsBehindCalls()])
        conversation.say(call_tools(load("alpha")))
        assert [message.type for message in conversation.state["messages"]] == ["human", "ai", "tool", "human", "ai"]
        orders[provider] = [message.type for message in model.requests[-1].messages]
    between = ["system", "human", "ai", "tool", "ai", "human"]
    assert orders == {"mistral": between, "mistralai": between, "openai": ["system", "human", "ai", "tool", "human"]}


def test_a_word_in_between_reaches_a_graph_of_ones_own(tmp_path: Path) -> None:
    """`model_messages` orders messages for the model that it is given."""
    library(tmp_path, "alpha")
    middleware = skills(tmp_path)
    call: Any = call_tools(("clock", {}))
    result = ToolMessage("noon", tool_call_id=call.tool_calls[0]["id"])
    state: dict[str, Any] = {"messages": [HumanMessage("go"), call, result, HumanMessage("stop")]}
    messages, _ = middleware.model_messages(state, None, model=ModelOf(replies=[], provider="mistral"))
    assert [message.type for message in messages] == ["system", "human", "ai", "tool", "ai", "human"]


def test_settings_that_work_against_each_other_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Texts that linger for the sake of a prefix which changes anyway."""
    with caplog.at_level(logging.WARNING, "deepskills"):
        skills(tmp_path, unload_when="cheap")
        assert caplog.records == []
        skills(tmp_path, unload_when="cheap", loaded_status="system_prompt")
    assert len(caplog.records) == 1


@both_modes
def test_a_small_window_lowers_the_default_budget(mode: Mode, tmp_path: Path) -> None:
    """Loaded skills take at most a quarter of it, unless the application says how much."""
    library(tmp_path, "alpha", "beta", size=700)
    model = ModelOf(replies=[], profile={"max_input_tokens": 4_000})
    conversation = talk(mode, tmp_path, model)
    [first] = conversation.call(load("alpha"))
    [second] = conversation.call(load("beta"))
    assert (first.status, second.status) == ("success", "error")
    assert "1,000" in second.text
    chosen = talk(mode, tmp_path, ModelOf(replies=[], profile={"max_input_tokens": 4_000}), max_loaded_tokens=40_000)
    assert [answer.status for answer in chosen.call(load("alpha"), load("beta"))] == ["success", "success"]
