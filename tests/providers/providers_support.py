"""The real chat model classes, each beside its stub, and one way to talk to an agent of theirs."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage
from langchain_google_genai import ChatGoogleGenerativeAI
from langchain_groq import ChatGroq
from langchain_mistralai import ChatMistralAI
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import SecretStr
from stubs import Anthropic, ChatCompletions, Gemini, Groq, Mistral, Ollama, Refuse, Reply, Responses, Say, Stub, Wire

from deepskills import SkillsMiddleware
from support import disk, skill_md, write_files

KEY = SecretStr("k")
IN_STREAM = 200
"""The status of an error that comes in a stream."""


@dataclass(frozen=True)
class Provider:
    """How a provider's class is made, and how it refuses what is too long."""

    wire: Callable[[], Wire]
    model: Callable[[str, bool], BaseChatModel]
    overflows: tuple[tuple[int, str, str], ...]
    caches: bool
    """Whether it caches prompts, so that the section stays the same when a skill is loaded."""

    shows_results: bool = False
    """Whether it takes an image in a tool's result."""

    def overflow(self, wire: Wire, which: int = 0) -> Refuse:
        status, message, code = self.overflows[which]
        return Refuse(status, wire.error(message, status, code))


PROVIDERS = {
    "anthropic": Provider(
        Anthropic,
        lambda url, streaming: ChatAnthropic(
            model_name="claude-stub",
            api_key=KEY,
            base_url=url,
            max_retries=0,
            streaming=streaming,
            timeout=None,
            stop=None,
        ),
        (
            (400, "prompt is too long: 210000 tokens > 200000 maximum", "invalid_request_error"),
            (
                400,
                "input length and `max_tokens` exceed context limit: 199211 + 20000 > 200000, decrease input length or "
                "`max_tokens` and try again",
                "invalid_request_error",
            ),
            (IN_STREAM, "prompt is too long: 210000 tokens > 200000 maximum", "invalid_request_error"),
        ),
        caches=True,
    ),
    "openai": Provider(
        ChatCompletions,
        lambda url, streaming: ChatOpenAI(
            model="stub", api_key="k", base_url=f"{url}/v1", max_retries=0, streaming=streaming
        ),
        (
            (400, "Input tokens exceed the configured limit of 272000 tokens.", "context_length_exceeded"),
            (400, "Please shorten this.", "context_length_exceeded"),
            (500, "the request exceeds the available context size. try increasing the context size", "server_error"),
            (IN_STREAM, "This endpoint's maximum context length is 8192 tokens.", "400"),
        ),
        caches=True,
    ),
    "responses": Provider(
        Responses,
        lambda url, streaming: ChatOpenAI(
            model="stub", api_key="k", base_url=f"{url}/v1", max_retries=0, use_responses_api=True, streaming=streaming
        ),
        (
            (400, "Your input exceeds the context window of this model.", "context_length_exceeded"),
            (IN_STREAM, "Your input exceeds the context window of this model.", "context_length_exceeded"),
        ),
        caches=True,
        shows_results=True,
    ),
    "google": Provider(
        Gemini,
        lambda url, streaming: ChatGoogleGenerativeAI(
            model="gemini-3-stub", api_key="k", base_url=url, max_retries=1, streaming=streaming
        ),
        (
            (
                400,
                "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
                "INVALID_ARGUMENT",
            ),
        ),
        caches=True,
    ),
    "mistral": Provider(
        Mistral,
        lambda url, streaming: ChatMistralAI(
            model_name="stub", api_key="k", base_url=f"{url}/v1", max_retries=1, streaming=streaming
        ),
        ((400, "Prompt contains 40000 tokens, too large for model with 32768 maximum context length", "3051"),),
        caches=True,
    ),
    "groq": Provider(
        Groq,
        lambda url, streaming: ChatGroq(model="stub", api_key="k", base_url=url, max_retries=0, streaming=streaming),
        (
            (400, "Please reduce the length of the messages or completion.", "context_length_exceeded"),
            (
                413,
                "Request too large for model `stub` on tokens per minute (TPM): Limit 6000, Requested 9000, please "
                "reduce your message size and try again.",
                "rate_limit_exceeded",
            ),
            (IN_STREAM, "Please reduce the length of the messages or completion.", "context_length_exceeded"),
        ),
        caches=True,
    ),
    "ollama": Provider(
        Ollama,
        lambda url, streaming: ChatOllama(model="stub", base_url=url),  # noqa: ARG005 - it always streams
        (
            (400, "prompt too long; exceeded max context length by 4 tokens", ""),
            (500, "the request exceeds the available context size", ""),
            (IN_STREAM, "prompt too long; exceeded max context length by 4 tokens", ""),
        ),
        caches=False,
        shows_results=True,
    ),
}

BODY = "\n".join(f"rule {number:03d}: do this and nothing else." for number in range(60))


def write_skills(root: Path) -> None:
    """Write three skills: one with arguments, one with an image, and a small one."""
    write_files(
        root,
        {
            "skills/alpha/SKILL.md": skill_md(
                "alpha", "Writes weekly reports.", f"# alpha\n\nFor $ARGUMENTS.\n{BODY}\n"
            ),
            "skills/beta/SKILL.md": skill_md("beta", "Draws charts.", f"# beta\n\nbeta goes on.\n{BODY}\n"),
            "skills/gamma/SKILL.md": skill_md("gamma", "Answers mail.", "# gamma\n\ngamma is short.\n"),
        },
    )


class Talk:
    """An agent with a provider's own class, and the thread that a test talks to it on."""

    def __init__(
        self,
        name: str,
        how: str,
        kind: str,
        root: Path,
        *,
        before: Sequence[Any] = (),
        after: Sequence[Any] = (),
        tools: Sequence[Any] = (),
        system_prompt: Any = None,
        **options: Any,
    ) -> None:
        self.provider = PROVIDERS[name]
        self.stub = Stub(self.provider.wire())
        self.how, self.kind = how, kind
        self.model = self.provider.model(self.stub.url, how == "streamed")
        write_skills(root)
        self.skills = SkillsMiddleware(backend=disk(root), sources=["/skills"], **options)
        self.config = {"configurable": {"thread_id": "t"}}
        self.saver = InMemorySaver()
        make = [each(self.model) if callable(each) else each for each in before]
        stack = [*make, self.skills, *after]
        given: Any = {"tools": list(tools), "middleware": stack, "checkpointer": self.saver}
        given["system_prompt"] = system_prompt
        if kind == "deep":
            self.agent: Any = create_deep_agent(self.model, backend=disk(root), **given)
        else:
            self.agent = create_agent(self.model, **given)
        # One loop for all turns: the providers' clients keep their connections, which belong to a loop.
        self._runner = asyncio.Runner()
        self.events: list[dict[str, Any]] = []

    def say(self, *replies: Reply, given: Any = "go") -> dict[str, Any]:
        """Run the agent with these replies of the model to the end."""
        self.stub.script[:] = list(replies)
        value = {"messages": [HumanMessage(given)]} if isinstance(given, str) else given
        if self.how == "async":
            self._runner.run(self._follow(value))
        else:
            # "messages" makes LangGraph ask models for streams, whatever they were told.
            modes = ["custom", "messages" if self.how == "streamed" else "updates"]
            for _, chunk in self.agent.stream(value, self.config, stream_mode=modes):
                self._hear(chunk)
        state: dict[str, Any] = self.agent.get_state(self.config).values
        return state

    def close(self) -> None:
        self._runner.close()
        self.stub.close()

    async def _follow(self, value: Any) -> None:
        async for _, chunk in self.agent.astream(value, self.config, stream_mode=["custom", "updates"]):
            self._hear(chunk)

    def _hear(self, chunk: Any) -> None:
        if isinstance(chunk, dict) and str(chunk.get("type", "")).startswith("skill."):
            self.events.append(chunk)

    @property
    def text(self) -> str:
        """What the latest request said."""
        return self.stub.seen[-1].text

    def heard(self, kind: str) -> list[str]:
        """Return the skills of the events of one kind."""
        return [event["skill"] for event in self.events if event["type"] == f"skill.{kind}"]


def load(*names: str, **arguments: str) -> Say:
    """Return an answer that loads these skills in one turn."""
    return Say("", tuple(("load_skill", {"skill_name": name, **arguments}) for name in names))


def unload(name: str) -> Say:
    return Say("", (("unload_skill", {"skill_name": name}),))
