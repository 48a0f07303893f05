"""Skills of an MCP server beside local ones: nothing is shadowed, and code asks a human while a served one is in use.

Needs `pip install "deepskills[cli,mcp]" "mcp>=2"`; the server is `deepskills mcp serve`, started as a process.
"""

import sys
from pathlib import Path

from deepagents import create_deep_agent
from deepagents.backends import CompositeBackend, LocalShellBackend
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from deepskills import SkillsMiddleware
from deepskills.mcp import McpSkills
from deepskills.testing import ScriptedChatModel, call_tools

HERE = Path(__file__).parent
SERVER = {
    "transport": "stdio",
    "command": sys.executable,
    "args": ["-m", "deepskills", "mcp", "serve", "--source", str(HERE / "skills")],
}


def main() -> None:
    model = ScriptedChatModel(
        replies=[
            call_tools(("load_skill", {"skill_name": "team:release-notes"})),
            call_tools(("execute", {"command": "echo built"})),
            "The notes are written.",
        ]
    )
    with McpSkills({"team": SERVER}, timeout=120) as served:
        backend = CompositeBackend(default=LocalShellBackend(root_dir=HERE), routes={"/mcp/": served})
        agent = create_deep_agent(
            model,
            backend=backend,
            middleware=[SkillsMiddleware(backend=backend, sources=["/skills", "/mcp/team"])],
            checkpointer=InMemorySaver(),
        )
        config: RunnableConfig = {"configurable": {"thread_id": "example"}}
        result = agent.invoke({"messages": [HumanMessage("Write the notes.")]}, config)
        for line in model.requests[0].system.splitlines():
            if line.startswith("- **") and "release-notes" in line:
                print(line.partition(":** ")[0][:70])
        question = result["__interrupt__"][0].value
        print(f"{question['skill']} wants {question['tool']}({question['arguments']['command']!r}): a human is asked")
        result = agent.invoke(Command(resume={"type": "reject", "message": "Not on this machine."}), config)
        print(result["messages"][-2].text)
        print(result["messages"][-1].text)


if __name__ == "__main__":
    main()
