"""The guide's agent with LangChain's MCP adapters: one server's tools by them, its skills by us."""

import asyncio
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from mcp_support import SERVER_PYTHON

from deepskills import SkillsMiddleware
from deepskills.mcp import McpSkills
from deepskills.testing import ScriptedChatModel, call_tools
from support import load, skill_md, tool_messages, write_files

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "skills-from-mcp.md"
SERVING = ROOT / "tests" / "mcp" / "server" / "serving.py"


def test_the_agent_of_the_guide_has_tools_and_skills(tmp_path: Path) -> None:
    """Pasted with the connections of a real server, it loads a skill of that server and calls a tool of it."""
    write_files(tmp_path, {"report/SKILL.md": skill_md("report", body="Ask for the day.")})
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    [block] = [block for block in blocks if "langchain_mcp_adapters" in block]
    names: dict[str, Any] = {
        "McpSkills": partial(McpSkills, timeout=600),  # on a busy machine a server takes its time to start
        "SkillsMiddleware": SkillsMiddleware,
        "create_agent": create_agent,
    }
    exec(compile(block, PAGE.name, "exec"), names)
    names["connections"] = {
        "docs": {
            "transport": "stdio",
            "command": SERVER_PYTHON,
            "args": [str(SERVING), "own", str(tmp_path), "stdio"],
            "env": dict(os.environ),
        }
    }
    model = ScriptedChatModel(replies=[call_tools(load("docs:report")), call_tools(("today", {})), "Done."])

    async def talk() -> dict[str, Any]:
        agent = await names["make_agent"](model)
        result: dict[str, Any] = await agent.ainvoke({"messages": [{"role": "user", "content": "Report it."}]})
        return result

    loaded, called = tool_messages(asyncio.run(talk()))
    assert "Ask for the day." in loaded.text
    assert "Monday" in called.text
    assert set(model.requests[0].tools) == {"load_skill", "unload_skill", "today"}
