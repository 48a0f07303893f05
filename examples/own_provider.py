"""Skills from a hub with versions by environment: a provider of one's own, in place of directories."""

from hashlib import sha256

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from pick_model import pick_model

from deepskills import ProvidedSkill, SkillProvider, SkillsMiddleware
from deepskills.testing import call_tools

ABOUT = "Handles refunds. Use it when money goes back."
TEXT = f"---\nname: refunds\ndescription: {ABOUT}\n---\n\n# Refunds\n\n"
HUB = {"staging": f"{TEXT}Pay at once.\n", "production": f"{TEXT}Ask for the order, then wait.\n"}


class Hub(SkillProvider):
    def __init__(self, environment: str) -> None:
        self.label = f"Hub ({environment})"
        self.text = HUB[environment].encode()

    def list_skills(self, runtime: object) -> list[ProvidedSkill]:  # noqa: ARG002
        return [ProvidedSkill("refunds", "refunds", ABOUT, f"sha256:{sha256(self.text).hexdigest()}")]

    async def read_skill(self, skill: ProvidedSkill, runtime: object) -> bytes:  # noqa: ARG002
        return self.text


for environment in HUB:
    model = pick_model(call_tools(("load_skill", {"skill_name": "refunds"})), "Done.")
    agent = create_agent(model, middleware=[SkillsMiddleware(sources=[Hub(environment)])])
    result = agent.invoke({"messages": [HumanMessage("I want my money back.")]})
    print(f"{environment}:", result["messages"][-2].text.partition("# Refunds")[2].split("<")[0].strip())
