"""What a skill allows is what the model can do while it is in use: `ToolPolicy("enforce")`."""

import tempfile
from pathlib import Path
from typing import Any

from deepagents import create_deep_agent
from deepagents.backends import LocalShellBackend
from langchain_core.messages import HumanMessage, ToolMessage
from pick_model import pick_model

from deepskills import SkillsMiddleware, generate_skill_md
from deepskills.extensions import ToolPolicy
from deepskills.testing import ScriptedChatModel, call_tools

FIELDS = {"allowed-tools": "Read Bash(git status) Bash(git log:*)"}


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "skills" / "repo-report"
        directory.mkdir(parents=True)
        text = generate_skill_md("repo-report", "Reports on a repository.", "Report what changed.\n", FIELDS)
        (directory / "SKILL.md").write_text(text, encoding="utf-8")

        backend = LocalShellBackend(root_dir=name, inherit_env=True)
        skills = SkillsMiddleware(backend=backend, sources=["/skills"], extensions=[ToolPolicy("enforce")])
        model = pick_model(
            call_tools(("load_skill", {"skill_name": "repo-report"})),
            call_tools(
                ("execute", {"command": "git log --oneline"}),
                ("execute", {"command": "git log; touch stolen"}),
                ("write_file", {"file_path": "/report.md", "content": "x"}),
            ),
            "Done.",
        )
        agent: Any = create_deep_agent(model, backend=backend, middleware=[skills])
        result = agent.invoke({"messages": [HumanMessage("What changed in this repository?")]})
        if isinstance(model, ScriptedChatModel):
            print("offered before:", ", ".join(sorted(model.requests[0].tools)))
            print("offered while it is in use:", ", ".join(sorted(model.requests[1].tools)))
        for message in result["messages"]:
            if isinstance(message, ToolMessage):
                print(f"{message.name} [{message.status}]: {message.text.splitlines()[0][:150]}")
        print("stolen:", (Path(name) / "stolen").exists())


if __name__ == "__main__":
    main()
