"""Skills written in Python stand beside a directory of skills; a text of theirs is made at each read."""

import datetime as dt
from pathlib import Path

from deepagents.backends import CompositeBackend, FilesystemBackend
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from pick_model import pick_model

from deepskills import InlineBackend, InlineSkill, SkillFormatError, SkillsManager, SkillsMiddleware
from deepskills.testing import call_tools

PRICES = {"starter": 9, "team": 29}


def price_list() -> str:
    rows = "\n".join(f"| {plan} | {price} EUR |" for plan, price in PRICES.items())
    return f"# Prices\n\nValid on {dt.date(2026, 5, 4)}.\n\n| plan | price |\n| --- | --- |\n{rows}\n"


def main() -> None:
    skill = InlineSkill(
        "price-questions",
        "Answers questions about what our plans cost. Use it whenever someone asks for a price.",
        price_list,
        files={"references/discounts.md": "Schools and charities pay half.\n"},
        allowed_tools=["load_skill_asset"],
        metadata={"owner": "sales"},
    )
    backend = CompositeBackend(
        default=FilesystemBackend(root_dir=Path(__file__).parent), routes={"/inline/": InlineBackend([skill])}
    )
    skills = SkillsMiddleware(backend=backend, sources=["/skills", "/inline"], extra_tools=["load_skill_asset"])
    asset = {"skill_name": "price-questions", "relative_path": "references/discounts.md"}
    model = pick_model(
        call_tools(("load_skill", {"skill_name": "price-questions"})),
        call_tools(("load_skill_asset", asset)),
        "The team plan costs 29 EUR; a school pays half.",
    )
    agent = create_agent(model, middleware=[skills])
    result = agent.invoke({"messages": [HumanMessage("What does the team plan cost a school?")]})
    for message in result["messages"]:
        print(f"{message.type}: {message.text}")

    PRICES["team"] = 35
    text = SkillsManager(backend=backend, sources=["/inline"]).get_skill_content("price-questions")
    print("read again:", text.splitlines()[-1])

    try:
        InlineSkill("Price Questions", "Answers questions.", "Body.")
    except SkillFormatError as error:
        print("refused:", error)


if __name__ == "__main__":
    main()
