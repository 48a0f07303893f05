"""A library of 2,000 skills: a budget keeps the prompt short, and `search_skills` finds the right one."""

import tempfile
from pathlib import Path

from deepagents.backends import FilesystemBackend
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from pick_model import pick_model

from deepskills import SkillsMiddleware, generate_skill_md
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
            call_tools(("search_skills", {"query": "payrolls of the vinyard in region 1493", "n": 3})),
            call_tools(("load_skill", {"skill_name": "vineyard-payroll-1493"})),
            "Found and loaded.",
        )
        skills = SkillsMiddleware(
            backend=FilesystemBackend(root_dir=name),
            sources=["/skills"],
            catalog_budget=120_000,
            extra_tools=["search_skills"],
        )
        agent = create_agent(model, middleware=[skills])
        result = agent.invoke({"messages": [HumanMessage("Sort out payroll at the vineyard in region 1493.")]})
        for message in result["messages"]:
            print(f"{message.type}: {message.text[:100]!r}")
        if isinstance(model, ScriptedChatModel):
            print(next(line for line in model.requests[0].system.splitlines() if "shown in full" in line))


if __name__ == "__main__":
    main()
