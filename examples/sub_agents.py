"""A parent and its sub-agent load skills apart from each other; one middleware instance serves both."""

from pathlib import Path
from typing import Any

from deepagents import create_deep_agent
from deepagents.backends import FilesystemBackend
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from pick_model import pick_model

from deepskills import SkillsMiddleware
from deepskills.testing import call_tools


def main() -> None:
    model = pick_model(
        call_tools(("load_skill", {"skill_name": "incident-review"}), text="parent"),
        call_tools(("task", {"description": "Draft the release notes.", "subagent_type": "writer"}), text="parent"),
        call_tools(("load_skill", {"skill_name": "release-notes"}), text="writer"),
        "Drafted with release-notes.",
        "All done.",
    )
    backend = FilesystemBackend(root_dir=Path(__file__).parent)
    skills = SkillsMiddleware(backend=backend, sources=["/skills"])
    writer: Any = {
        "name": "writer",
        "description": "Writes texts.",
        "system_prompt": "You write.",
        "middleware": [skills],
    }
    agent = create_deep_agent(
        model=model, backend=backend, middleware=[skills], subagents=[writer], checkpointer=InMemorySaver()
    )
    config: Any = {"configurable": {"thread_id": "example"}}
    result = agent.invoke({"messages": [HumanMessage("Review the incident and draft release notes.")]}, config)
    for message in result["messages"]:
        print(f"{message.type}: {message.text[:80]!r}")
    print(f"the parent has loaded: {agent.get_state(config).values['skills_loaded']}")


if __name__ == "__main__":
    main()
