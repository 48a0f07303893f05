"""Skills in a hand-written LangGraph graph: three nodes, no agent framework."""

from pathlib import Path
from typing import Any

from deepagents.backends import FilesystemBackend
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.runtime import Runtime
from pick_model import pick_model

from deepskills import SkillsMiddleware, SkillsState
from deepskills.testing import call_tools


def build_graph(
    model: BaseChatModel, skills: SkillsMiddleware
) -> CompiledStateGraph[SkillsState, None, SkillsState, SkillsState]:
    model_with_tools = model.bind_tools(skills.tools)

    def call_model(state: SkillsState, runtime: Runtime) -> dict[str, Any]:
        messages, update = skills.model_messages(state, runtime)
        return {**update, "messages": [model_with_tools.invoke(messages)]}

    graph = StateGraph(SkillsState)
    graph.add_node("discover", skills.before_agent)
    graph.add_node("model", call_model)
    graph.add_node("tools", ToolNode(skills.tools))
    graph.add_edge(START, "discover")
    graph.add_edge("discover", "model")
    graph.add_conditional_edges("model", tools_condition, {"tools": "tools", END: END})
    graph.add_edge("tools", "model")
    return graph.compile()


def main() -> None:
    model = pick_model(
        call_tools(("load_skill", {"skill_name": "csv-report"})),
        call_tools(("unload_skill", {"skill_name": "csv-report"})),
        "The report is ready.",
    )
    skills = SkillsMiddleware(backend=FilesystemBackend(root_dir=Path(__file__).parent), sources=["/skills"])
    result = build_graph(model, skills).invoke(
        {"messages": [HumanMessage("Summarize sales.csv with the skill for it.")]}
    )
    for message in result["messages"]:
        print(f"{message.type}: {message.text[:100]!r}")
    print(f"loaded at the end: {result['skills_loaded']}")


if __name__ == "__main__":
    main()
