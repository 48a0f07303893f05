"""A plain `create_agent` without file tools uses every file of a skill by the extra tools alone."""

import subprocess
import sys
from pathlib import Path

from deepagents.backends import FilesystemBackend
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, ToolMessage
from pick_model import pick_model

from deepskills import SkillsMiddleware
from deepskills.testing import call_tools


def main() -> None:
    skill = {"skill_name": "csv-report"}
    model = pick_model(
        call_tools(("search_skills", {"query": "summarise a spreadsheet"})),
        call_tools(("load_skill", skill)),
        call_tools(
            ("list_skill_assets", skill),
            ("load_skill_asset", {**skill, "relative_path": "references/statistics.md"}),
            ("get_skill_script_path", {**skill, "script_name": "profile_csv.py"}),
        ),
        "The script is ready to run.",
    )
    skills = SkillsMiddleware(
        backend=FilesystemBackend(root_dir=Path(__file__).parent),
        sources=["/skills"],
        extra_tools=["search_skills", "list_skill_assets", "load_skill_asset", "get_skill_script_path"],
    )
    agent = create_agent(model, middleware=[skills])
    result = agent.invoke({"messages": [HumanMessage("Which script of which skill profiles a CSV file?")]})
    for message in result["messages"]:
        print(f"{message.type}: {message.text[:200]!r}")
    path = next(m.text for m in result["messages"] if isinstance(m, ToolMessage) and m.name == "get_skill_script_path")
    done = subprocess.run([sys.executable, path, "--help"], capture_output=True, text=True, check=True)  # noqa: S603 - our own script
    print(done.stdout.splitlines()[0])


if __name__ == "__main__":
    main()
