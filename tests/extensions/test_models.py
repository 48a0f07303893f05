"""Models of skills: which model gets which call, in a conversation of loads, unloads and user's turns."""

from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import ModelFallbackMiddleware, ModelRetryMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.checkpoint.memory import InMemorySaver

from deepskills import SkillsMiddleware
from deepskills.extensions import SkillForks, SkillModels
from deepskills.testing import ScriptedChatModel, call_tools
from support import Mode, both_modes, disk, load, run, skill_md, unload, write_files

pytestmark = both_modes

MODELS = {"fast": "fast", "deep": "deep", "same": "inherit", "gone": "opus-9", "blank": "", "none": None}


class Cast:
    """Models that follow one script, and who was called."""

    def __init__(self, root: Path, *replies: Any) -> None:
        self.root = root
        for name, model in MODELS.items():
            fields = {} if model is None else {"model": model}
            write_files(root, {f"/skills/{name}/SKILL.md": skill_md(name, **fields)})
        self.called: list[str] = []
        self.script = list(replies)

    def model(self, name: str, *, failing: int = 0) -> ScriptedChatModel:
        """Return a model that speaks the next line of the script, after failing a number of times."""
        left = [failing]

        def reply(_messages: list[BaseMessage]) -> AIMessage:
            self.called.append(name)
            if left[0]:
                left[0] -= 1
                raise ConnectionError(name)
            line = self.script.pop(0) if self.script else "Done."
            return line if isinstance(line, AIMessage) else AIMessage(line)

        return ScriptedChatModel(replies=[reply] * 50)

    def skills(self, *extensions: Any) -> SkillsMiddleware[Any, Any]:
        return SkillsMiddleware(backend=disk(self.root), sources=["/skills"], extensions=extensions)


def test_the_skill_loaded_last_picks_the_model_for_the_rest_of_the_turn(mode: Mode, tmp_path: Path) -> None:
    """Loads switch, an unload switches back, the user's next message starts with the conversation's model."""
    players = Cast(
        tmp_path,
        call_tools(load("fast")),
        call_tools(load("deep")),
        call_tools(load("same"), load("gone"), load("blank"), load("none")),
        call_tools(unload("deep")),
        call_tools(unload("fast")),
        "Done.",
        "Again.",
        call_tools(load("deep")),
        "Done.",
    )
    models: dict[str, BaseChatModel | str] = {"fast": players.model("fast"), "deep": players.model("deep")}
    agent: Any = create_agent(
        players.model("main"), middleware=[players.skills(SkillModels(models))], checkpointer=InMemorySaver()
    )
    config: Any = {"configurable": {"thread_id": "1"}}
    run(mode, agent, "one", config)
    assert players.called == ["main", "fast", "deep", "deep", "fast", "main"]
    players.called.clear()
    run(mode, agent, "two", config)
    run(mode, agent, "three", config)
    run(mode, agent, "four", config)  # the skill is still loaded, for an earlier message
    assert players.called == ["main", "main", "deep", "main"]
    problems = agent.get_state(config).values["skills_problems"]
    assert [problem["path"] for problem in problems if problem["code"] == "model-unknown"] == ["/skills/gone/SKILL.md"]


def test_a_function_may_know_the_models(mode: Mode, tmp_path: Path) -> None:
    """A function is asked by name; what it does not know changes nothing."""
    players = Cast(tmp_path, call_tools(load("gone")), call_tools(load("deep")))
    deep = players.model("deep")
    asked: list[str] = []

    def find(name: str) -> BaseChatModel | None:
        asked.append(name)
        return deep if name == "deep" else None

    run(mode, create_agent(players.model("main"), middleware=[players.skills(SkillModels(find))]))
    assert players.called == ["main", "main", "deep"]
    assert set(asked) == {"opus-9", "deep"}


def test_a_function_that_fails_does_not_know_the_model(mode: Mode, tmp_path: Path) -> None:
    """The skill is loaded, the conversation keeps its model, and the problem says so."""

    def fails(name: str) -> BaseChatModel | None:
        raise KeyError(name)

    functions: list[Any] = [fails, lambda name: f"provider:{name}"]
    for find in functions:
        players = Cast(tmp_path, call_tools(load("deep")))
        agent: Any = create_agent(
            players.model("main"), middleware=[players.skills(SkillModels(find))], checkpointer=InMemorySaver()
        )
        config: Any = {"configurable": {"thread_id": "1"}}
        run(mode, agent, "go", config)
        state = agent.get_state(config).values
        assert (players.called, state["skills_loaded"]) == (["main", "main"], ["deep"])
        assert [problem["code"] for problem in state["skills_problems"]] == ["model-unknown"]


def test_a_fallback_around_it_has_the_last_word(mode: Mode, tmp_path: Path) -> None:
    """When the skill's model fails, the fallback's is called, in either order of middleware."""
    for ahead in (True, False):
        players = Cast(tmp_path, call_tools(load("deep")))
        skills = players.skills(SkillModels({"deep": players.model("deep", failing=5)}))
        fallback: Any = ModelFallbackMiddleware(players.model("spare"))
        order: list[Any] = [fallback, skills] if ahead else [skills, fallback]
        run(mode, create_agent(players.model("main"), middleware=order))
        assert players.called == ["main", "deep", "spare"], ahead


def test_a_retry_around_it_tries_the_skills_model_again(mode: Mode, tmp_path: Path) -> None:
    """A retry is of the same model."""
    for ahead in (True, False):
        players = Cast(tmp_path, call_tools(load("deep")))
        skills = players.skills(SkillModels({"deep": players.model("deep", failing=2)}))
        retry: Any = ModelRetryMiddleware(max_retries=3, initial_delay=0, jitter=False)
        order: list[Any] = [retry, skills] if ahead else [skills, retry]
        run(mode, create_agent(players.model("main"), middleware=order))
        assert players.called == ["main", "deep", "deep", "deep"], ahead


def test_a_forks_model_serves_its_sub_agent_alone(mode: Mode, tmp_path: Path) -> None:
    """A skill that runs in a sub-agent has its model there, and the conversation keeps its own."""
    players = Cast(tmp_path, call_tools(load("apart")), "Forked.", "Done.")
    write_files(tmp_path, {"/skills/apart/SKILL.md": skill_md("apart", context="fork", model="deep")})
    models = SkillModels({"deep": players.model("deep")})
    helper = create_agent(players.model("helper"), middleware=[players.skills(models)])
    skills = players.skills(models, SkillForks({"general-purpose": helper}))
    run(mode, create_agent(players.model("main"), middleware=[skills]))
    assert players.called == ["main", "deep", "main"]
