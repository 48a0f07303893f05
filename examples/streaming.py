"""Skill events on LangGraph's custom stream, as an application shows them beside the conversation."""

from pathlib import Path

from deepagents.backends import FilesystemBackend
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from pick_model import pick_model

from deepskills import SkillsMiddleware
from deepskills.testing import call_tools


def main() -> None:
    model = pick_model(
        call_tools(("load_skill", {"skill_name": "csv-report"}), ("load_skill", {"skill_name": "csv-raport"})),
        call_tools(("unload_skill", {"skill_name": "csv-report"})),
        "Done.",
    )
    skills = SkillsMiddleware(backend=FilesystemBackend(root_dir=Path(__file__).parent), sources=["/skills"])
    agent = create_agent(model, middleware=[skills])
    for event in agent.stream({"messages": [HumanMessage("Go.")]}, stream_mode="custom"):
        details = {key: value for key, value in event.items() if key not in {"type", "skill"}}
        print(f"{event['type']:16} {event['skill']:12} {details or ''}")


if __name__ == "__main__":
    main()
