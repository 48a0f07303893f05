"""The reference is complete: every public name, tool, argument, state key and event has its place there."""

import re
from pathlib import Path
from typing import Any, get_args

from deepagents.backends import LocalShellBackend, StateBackend
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage

import deepskills
from deepskills import CustomEvent, SkillEvent, SkillExtension, SkillsMiddleware, SkillsState, evals, extensions, store
from deepskills.extensions import SkillScripts
from deepskills.store import create_skills_router
from deepskills.testing import ScriptedChatModel, call_tools
from support import load, skill_md, unload, write_files

ROOT = Path(__file__).parents[2]
REFERENCE = "\n".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "reference").glob("*.md")))
NAMES = (ROOT / "docs" / "reference" / "events.md").read_text(encoding="utf-8")
EXTRA_TOOLS = ["search_skills", "list_skill_assets", "load_skill_asset", "get_skill_script_path"]
EVERY_EVENT = {"type", "skill", "source", "digest", "trigger"}
IN_WORDS = {
    "MAX_SKILL_FILE_SIZE",
    "RESOURCE_TYPE_MAP",
    "SKILLS_SYSTEM_PROMPT",
    "SkillChecked",
    "SkillCost",
    "SkillEvent",
    "SkillForked",
    "SkillLeftOut",
    "SkillLoaded",
    "SkillMissed",
    "SkillReattached",
    "SkillRefused",
    "SkillScriptRun",
    "SkillSentBack",
    "SkillShadow",
    "SkillSource",
    "SkillUnchecked",
    "SkillUnloaded",
    "SkillsState",
    "SkillsStateUpdate",
    "Visibility",
    "CHECK_KINDS",
    "DEFAULT_ALIASES",
    "Base",
}
"""Public names that pages explain in words: types of arguments, constants, and state, which has a table."""
ELSEWHERE = {
    "deepskills.store.SkillFormatError",
    "deepskills.store.SkillNotFoundError",
    "deepskills.store.SkillPathError",
}
"""Names that a module passes on from `deepskills`."""


def test_the_table_of_checks_is_the_one_in_the_code() -> None:
    """Each kind with when it passes and what it needs."""
    page = (ROOT / "docs" / "skill-files.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| `(\w+: [^`]+)` \| (.+) \| (.*) \|$", page, flags=re.MULTILINE)
    assert shown == [
        (kind.shape, kind.passes, f"`{kind.needs}`" if kind.needs else "") for kind in extensions.CHECK_KINDS
    ]


def test_every_public_name_is_in_the_reference() -> None:
    """Each public class and function is rendered from its docstring."""
    shown = set(re.findall(r"^::: (\S+)", REFERENCE, flags=re.MULTILINE))
    public = {
        f"{module.__name__}.{name}"
        for module in (deepskills, evals, extensions, store)
        for name in module.__all__
        if name not in IN_WORDS
    }
    assert public - shown - ELSEWHERE == set()


def test_every_tool_has_a_row_with_its_arguments() -> None:
    """The table of tools has each tool and, in the same row, each of its arguments."""
    skills = SkillsMiddleware(
        backend=StateBackend(), sources=["/skills"], extra_tools=EXTRA_TOOLS, extensions=[SkillScripts()]
    )
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", NAMES, flags=re.MULTILINE))
    documented = {tool.name: set(re.findall(r"`(\w+)", rows.get(tool.name, ""))) for tool in skills.tools}
    assert documented == {tool.name: set(tool.args) for tool in skills.tools}


def test_every_state_key_has_a_row() -> None:
    """The tables of state have each key that skills add to an agent's state, except one of deepagents' own."""
    keys = {key for key in SkillsState.__annotations__ if key.startswith(("skill", "pinned"))}
    assert {key for key in keys if f"| `{key}` |" not in NAMES} == set()


def test_every_event_has_a_row() -> None:
    """The table of events has each type of event, and no other."""
    emitted = {known.type for known in get_args(SkillEvent) if known is not CustomEvent}
    assert set(re.findall(r"^\| `(skill\.\w+)` \|", NAMES, flags=re.MULTILINE)) == emitted


def test_events_have_the_fields_of_their_rows(tmp_path: Path) -> None:
    """What a run streams has the fields that every event has, and those of its own row, and no other."""
    write_files(tmp_path, {"skills/alpha/SKILL.md": skill_md("alpha"), "skills/alpha/scripts/run.sh": "exit 3\n"})
    script = ("run_skill_script", {"skill_name": "alpha", "script_name": "run.sh"})
    turns = [call_tools(call) for call in (load("alpha"), script, unload("alpha"), unload("alpha"))]
    skills = SkillsMiddleware(
        backend=LocalShellBackend(root_dir=tmp_path, virtual_mode=True),
        sources=["/skills"],
        extensions=[SkillScripts()],
    )
    agent = create_agent(ScriptedChatModel(replies=turns), middleware=[skills])
    events: list[Any] = list(agent.stream({"messages": [HumanMessage("go")]}, stream_mode="custom"))
    assert [event["type"] for event in events] == ["skill.loaded", "skill.script", "skill.unloaded", "skill.refused"]
    common = set(re.findall(r"^\| `([a-z]+)` \| (?!.*\|.*\|)", NAMES.partition("## Events")[2], flags=re.MULTILINE))
    rows = dict(re.findall(r"^\| `(skill\.\w+)` \| [^|]* \| ([^|]*) \|", NAMES, flags=re.MULTILINE))
    for event in events:
        further = set(re.findall(r"`(\w+)`", rows[event["type"]]))
        optional = {"reason"} if event["type"] == "skill.unloaded" else set()
        assert event.keys() - EVERY_EVENT == further - optional
    assert common >= EVERY_EVENT


def test_every_route_of_the_store_has_a_row() -> None:
    """The table of HTTP routes has each method and address that the router answers, and no other."""
    page = (ROOT / "docs" / "reference" / "http.md").read_text(encoding="utf-8")
    served: list[Any] = create_skills_router(lambda: None, lambda: None).routes  # type: ignore[arg-type, return-value]
    known = {f"{method} {route.path.replace(':path', '')}" for route in served for method in route.methods - {"-"}}
    assert set(re.findall(r"`((?:GET|POST|PUT|DELETE) /\S*)`", page)) == known


def test_every_method_of_an_extension_has_a_row() -> None:
    """The how-to says of each method of `SkillExtension` when it is called and what it can do."""
    page = (ROOT / "docs" / "how-to" / "extensions.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`\w+\(.*?) \|", page, flags=re.MULTILINE)
    methods = {name for name, value in vars(SkillExtension).items() if callable(value) and not name.startswith("_")}
    assert {name for row in rows for name in re.findall(r"`(\w+)\(", row)} == methods


def test_every_reason_is_explained() -> None:
    """The tables of reasons have each that a refused load or an unload gives."""
    answers = (ROOT / "src/deepskills/_prompt/messages.py").read_text(encoding="utf-8")
    given = set(re.findall(r'return "(\w+)",', answers)) | {"max_loaded_skills", "max_loaded_tokens"}
    explained = set(re.findall(r"`(\w+)`(?=[^|\n]* \|)", NAMES.partition("`reason` of `skill.refused`")[2]))
    assert given <= explained
    agent = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/deepskills/_middleware").glob("*.py"))
    assert set(re.findall(r'skill_event\([^)]*reason="(\w+)"', agent)) <= explained
