"""One agent, two users, each with skills of their own: `sources` is a function of the runtime."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepagents.backends import FilesystemBackend
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from pick_model import pick_model

from deepskills import SkillsMiddleware, generate_skill_md
from deepskills.testing import call_tools


@dataclass
class Context:
    user: str


def write_skill(root: Path, user: str, name: str) -> None:
    directory = root / user / name
    directory.mkdir(parents=True)
    text = generate_skill_md(name, f"What {user} does every day.", f"Start with {user}'s list.\n")
    (directory / "SKILL.md").write_text(text, encoding="utf-8")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write_skill(root, "ada", "engine-notes")
        write_skill(root, "bob", "garden-plan")
        model = pick_model(
            call_tools(("load_skill", {"skill_name": "engine-notes"})),
            "Done for Ada.",
            call_tools(("load_skill", {"skill_name": "engine-notes"})),
            "Bob has no such skill.",
        )
        skills = SkillsMiddleware(
            backend=FilesystemBackend(root_dir=root),
            sources=lambda runtime: [(f"/{runtime.context.user}", runtime.context.user.title())],
        )
        agent: Any = create_agent(model, middleware=[skills], context_schema=Context)
        for user in ("ada", "bob"):
            result = agent.invoke({"messages": [HumanMessage("Load engine-notes.")]}, context=Context(user))
            print(f"{user}: {result['messages'][-2].text.splitlines()[0][:110]}")


if __name__ == "__main__":
    main()
