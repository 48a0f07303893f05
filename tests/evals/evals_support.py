"""A small library to measure skills in, and models that load always, never or sometimes."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from deepskills.testing import ScriptedChatModel, call_tools
from support import load, skill_md, write_files

YES = ("Brew a pot of green tea.", "How long does oolong steep?")
NO = ("Fix the printer.", "Sing a song.")
DESCRIPTION = "Brews tea: how long green tea, oolong and black tea steep, in a pot or a cup."


def tea_triggers() -> list[dict[str, Any]]:
    return [{"query": query, "should_trigger": query in YES} for query in (*YES, *NO)]


def tea_tasks(*tasks: Mapping[str, Any]) -> dict[str, Any]:
    given = tasks or (
        {
            "id": 1,
            "prompt": "Brew tea.",
            "expected_output": "Tea.",
            "files": ["evals/files/leaves.txt"],
            "expectations": ["The time is given.", "It is polite."],
        },
        {"id": "cup", "prompt": "Brew one cup.", "assertions": ["A cup is named."]},
    )
    return {"skill_name": "tea", "evals": list(given)}


def tea_library(root: Path, triggers: Any = None, tasks: Any = None) -> Path:
    """Write a library of three skills, one of them measured, and return that one's directory."""
    write_files(
        root,
        {
            "tea/SKILL.md": skill_md("tea", DESCRIPTION, "# Tea\n\nSteep for SECRET-MINUTES minutes.\n"),
            "tea/evals/triggers.json": json.dumps(tea_triggers() if triggers is None else triggers),
            "tea/evals/evals.json": json.dumps(tea_tasks() if tasks is None else tasks),
            "tea/evals/files/leaves.txt": "green leaves",
            "printer/SKILL.md": skill_md("printer", "Repairs printers and paper jams."),
            "songs/SKILL.md": skill_md("songs", "Writes songs and lyrics."),
        },
    )
    return root / "tea"


def asked(messages: Sequence[BaseMessage]) -> str:
    """Return what the user asked for."""
    return str(next(message for message in messages if isinstance(message, HumanMessage)).text)


def counted(message: AIMessage, given: int = 100, made: int = 10) -> AIMessage:
    usage: Any = {"input_tokens": given, "output_tokens": made, "total_tokens": given + made}
    return message.model_copy(update={"usage_metadata": usage})


def loader(loads: Callable[[str], bool], skill: str = "tea") -> ScriptedChatModel:
    """Return a model that loads the skill where `loads` says so, answers from its text, and takes 110 tokens a call."""

    def reply(messages: list[BaseMessage]) -> AIMessage:
        answers = [message for message in messages if isinstance(message, ToolMessage)]
        if not answers and loads(asked(messages)):
            return counted(call_tools(load(skill)))
        minutes = "SECRET-MINUTES minutes" if any("SECRET-MINUTES" in item.text for item in answers) else "a while"
        return counted(AIMessage(f"With pleasure: steep it for {minutes}."))

    return ScriptedChatModel(replies=reply)


def grader(judge: Callable[[str, str], bool] | None = None) -> ScriptedChatModel:
    """Return a grader that looks for the time, or judges as it is told: by expectation and result."""

    def says(expectation: str, result: str) -> bool:
        return "SECRET-MINUTES minutes" in result if "time" in expectation else "pleasure" in result

    def reply(messages: list[BaseMessage]) -> AIMessage:
        text = str(messages[-1].text)
        listed, _, result = text.partition("Expectations:\n")[2].partition("\n\n===")
        verdicts = [
            {"number": number, "passed": (judge or says)(line, result), "evidence": f"looked at {line}"}
            for number, line in enumerate(listed.splitlines(), 1)
        ]
        return counted(AIMessage(f"Here you are:\n```json\n{json.dumps({'verdicts': verdicts})}\n```"), 50, 5)

    return ScriptedChatModel(replies=reply)
