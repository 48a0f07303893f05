"""A skill that runs in a sub-agent: the conversation gets its answer and none of its work."""

import tempfile
from pathlib import Path
from typing import Any

from deepagents import create_deep_agent
from deepagents.backends import FilesystemBackend
from langchain_core.messages import HumanMessage, ToolMessage
from pick_model import pick_model

from deepskills import SkillsMiddleware, generate_skill_md
from deepskills.extensions import SkillForks
from deepskills.testing import ScriptedChatModel, call_tools

BODY = "Count the words of $ARGUMENTS, one file after the other, and answer with the total alone.\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        directory = root / "skills" / "count-words"
        directory.mkdir(parents=True)
        text = generate_skill_md("count-words", "Counts words of files.", BODY, {"context": "fork"})
        (directory / "SKILL.md").write_text(text, encoding="utf-8")
        (root / "poem.txt").write_text("so much depends upon a red wheel barrow " * 200, encoding="utf-8")

        backend = FilesystemBackend(root_dir=root, virtual_mode=True)
        skills = SkillsMiddleware(backend=backend, sources=["/skills"], extensions=[SkillForks()])
        model = pick_model(
            call_tools(("load_skill", {"skill_name": "count-words", "arguments": "/poem.txt"})),
            call_tools(("read_file", {"file_path": "/poem.txt"})),  # the sub-agent
            "1600 words.",  # the sub-agent
            "The poem has 1600 words.",
        )
        agent: Any = create_deep_agent(model, backend=backend, middleware=[skills])
        result = agent.invoke({"messages": [HumanMessage("How long is /poem.txt?")]})
        for message in result["messages"]:
            kind = f"tool {message.name}" if isinstance(message, ToolMessage) else message.type
            print(f"{kind}: {message.text[:120]}")
        if isinstance(model, ScriptedChatModel):
            sizes = [sum(len(str(message.text)) for message in request.messages[1:]) for request in model.requests]
            print(f"characters of each request: parent {sizes[0]}, sub-agent {sizes[1:3]}, parent {sizes[3]}")


if __name__ == "__main__":
    main()
