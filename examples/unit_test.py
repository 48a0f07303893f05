"""Unit tests of an agent with skills: a scripted model, skills in memory, no key, nothing on disk.

Run it with `pytest examples/unit_test.py`, or as a program.
"""

from typing import Any

from deepagents import create_deep_agent
from deepagents.backends import BackendProtocol, StateBackend
from langchain_core.language_models import BaseChatModel
from langgraph.graph.state import CompiledStateGraph

from deepskills import SkillsMiddleware, generate_skill_md
from deepskills.testing import ScriptedChatModel, call_tools


def make_agent(model: BaseChatModel, backend: BackendProtocol) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The application's own function: a test hands it another model and another backend."""
    skills = SkillsMiddleware(backend=backend, sources=["/skills"])
    return create_deep_agent(model, backend=backend, middleware=[skills])


def ask(model: BaseChatModel, text: str) -> dict[str, Any]:
    body = "List decisions first, then actions with owners."
    skill = generate_skill_md("minutes", "Writes minutes. Use it after a meeting.", body)
    files = {"/skills/minutes/SKILL.md": {"content": skill, "encoding": "utf-8"}}
    result: dict[str, Any] = make_agent(model, StateBackend()).invoke(
        {"messages": [{"role": "user", "content": text}], "files": files}
    )
    return result


def test_the_model_is_offered_the_skill() -> None:
    model = ScriptedChatModel(replies=["Hello."])
    ask(model, "Hello.")
    assert "- **minutes**: Writes minutes." in model.requests[0].system  # noqa: S101 - a test


def test_a_loaded_skill_is_in_the_next_request() -> None:
    load = call_tools(("load_skill", {"skill_name": "minutes"}))
    model = ScriptedChatModel(replies=[load, "Here they are."])
    result = ask(model, "Minutes, please.")
    assert "List decisions first" in model.requests[1].text  # noqa: S101 - a test
    assert result["messages"][-1].text == "Here they are."  # noqa: S101 - a test


def main() -> None:
    for test in (test_the_model_is_offered_the_skill, test_a_loaded_skill_is_in_the_next_request):
        test()
        print(f"{test.__name__}: passed")


if __name__ == "__main__":
    main()
