"""The model runs a skill's own scripts: arguments arrive as they are, and a secret reaches the process alone."""

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from deepagents.backends import LocalShellBackend
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from pick_model import pick_model

from deepskills import SkillEntry, SkillsMiddleware
from deepskills.extensions import SkillScripts
from deepskills.testing import call_tools

FETCH = """
import os
key = os.environ["SALES_API_KEY"]
open("sales of may.csv", "w").write("region,amount\\nnorth,10\\nsouth,30\\n")
print("fetched with the key", key)
"""


def secrets(runtime: Any, skill: SkillEntry) -> dict[str, str]:  # noqa: ARG001 - each user could have their own key
    return {"SALES_API_KEY": "key-of-the-sales-department"}


def run_script(script: str, *args: str) -> tuple[str, dict[str, Any]]:
    return "run_skill_script", {"skill_name": "csv-report", "script_name": script, "args": list(args)}


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        workspace = Path(directory)
        shutil.copytree(Path(__file__).parent / "skills", workspace / "skills")
        (workspace / "skills/csv-report/scripts/fetch.py").write_text(FETCH)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        skills = SkillsMiddleware(
            backend=LocalShellBackend(root_dir=workspace, env={"PATH": path}),
            sources=["/skills"],
            extensions=[SkillScripts(env=secrets, timeout=30)],
        )
        model = pick_model(
            call_tools(run_script("fetch.py")),
            call_tools(("load_skill", {"skill_name": "csv-report"})),
            call_tools(run_script("fetch.py")),
            call_tools(run_script("profile_csv.py", "sales of may.csv")),
            call_tools(run_script("profile_csv.py", "$(cat /etc/passwd)")),
            "North sold for 10, south for 30.",
        )
        agent: Any = create_agent(model, middleware=[skills])
        given = {"messages": [HumanMessage("Fetch the sales of May and profile them.")]}
        for kind, event in agent.stream(given, stream_mode=["custom", "updates"]):
            if kind == "custom" and event["type"] == "skill.script":
                print(f"event: {event['script']} ended with exit code {event['exit_code']}")
            for update in event.values() if kind == "updates" else ():
                for message in (update or {}).get("messages", []):
                    print(f"{message.type}: {message.text[:300]}")


if __name__ == "__main__":
    main()
