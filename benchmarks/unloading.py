"""How much of what a load added to the request an unload gives back."""

import tempfile
from pathlib import Path

from deepagents.backends import FilesystemBackend
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.messages.utils import count_tokens_approximately

from deepskills import SkillsMiddleware, generate_skill_md
from deepskills.testing import ScriptedChatModel, call_tools


def tokens_given_back() -> float:
    """Return the share of the tokens a load adds that the request is smaller by after the unload."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "skills" / "long-skill"
        directory.mkdir(parents=True)
        body = "\n".join(f"{number}. Do this step with care and check it." for number in range(300))
        (directory / "SKILL.md").write_text(generate_skill_md("long-skill", "Does it.", body), encoding="utf-8")
        model = ScriptedChatModel(
            replies=[
                call_tools(("load_skill", {"skill_name": "long-skill"})),
                call_tools(("unload_skill", {"skill_name": "long-skill"})),
                "Done.",
            ]
        )
        skills = SkillsMiddleware(backend=FilesystemBackend(root_dir=name), sources=["/skills"])
        create_agent(model, middleware=[skills]).invoke({"messages": [HumanMessage("Go.")]})
    before, loaded, unloaded = (count_tokens_approximately(request.messages) for request in model.requests)
    return (loaded - unloaded) / (loaded - before)
