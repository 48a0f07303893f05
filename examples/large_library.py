"""A library of 2,000 skills for the price of five: suggestions beside each message, `search_skills` for the rest."""

import tempfile
from pathlib import Path
from typing import Any

from deepagents.backends import FilesystemBackend
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from pick_model import pick_model

from deepskills import SkillsMiddleware, generate_skill_md
from deepskills.extensions import SkillSuggestions
from deepskills.testing import ScriptedChatModel, call_tools

TRADES = ("bakery", "garage", "harbour", "clinic", "library", "vineyard", "school", "theatre")
TASKS = ("inventory", "payroll", "scheduling", "complaints", "insurance")


def write_library(root: Path, count: int) -> None:
    for number in range(count):
        trade, task = TRADES[number % len(TRADES)], TASKS[number // len(TRADES) % len(TASKS)]
        name = f"{trade}-{task}-{number}"
        directory = root / name
        directory.mkdir(parents=True)
        text = generate_skill_md(
            name, f"Handles {task} in a {trade}, region {number}. Use it for {task} questions there."
        )
        (directory / "SKILL.md").write_text(text, encoding="utf-8")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        write_library(Path(name) / "skills", 2000)
        model = pick_model(
            call_tools(("load_skill", {"skill_name": "vineyard-payroll-1493"})),
            "Found and loaded.",
            call_tools(("search_skills", {"query": "complaints at the theatre in region 1999", "n": 3})),
            "Found by searching.",
        )
        skills = SkillsMiddleware(
            backend=FilesystemBackend(root_dir=name),
            sources=["/skills"],
            extensions=[SkillSuggestions(catalog="none")],
        )
        agent: Any = create_agent(model, middleware=[skills])
        messages = [HumanMessage("Sort out payroll at the vineyard in region 1493.")]
        result = agent.invoke({"messages": messages})
        messages = [*result["messages"], HumanMessage("Thanks! And who handles the theatre?")]
        result = agent.invoke({"messages": messages})
        for message in result["messages"]:
            print(f"{message.type}: {message.text[:100]!r}")
        if isinstance(model, ScriptedChatModel):
            first = model.requests[0]
            print(f"The model saw {len(first.text):,} characters, with these suggestions:")
            print("\n".join(line for line in first.text.splitlines() if line.startswith("- **")))


if __name__ == "__main__":
    main()
