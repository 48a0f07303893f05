"""The tables of the page "Who may start a skill": every row is tried on an agent, and says what happened."""

import re
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage

from deepskills import SkillsMiddleware
from deepskills.testing import call_tools
from support import Conversation, Mode, both_modes, disk, load, skill_md, write_files

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "who-may-start.md"


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table whose first header is `heading`."""
    table = PAGE.read_text(encoding="utf-8").partition(f"| {heading} |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def what_happens(mode: Mode, root: Path, visibility: Any) -> list[str]:
    """Return the cells that a skill of this visibility earns."""
    options = {"visibility": {"deploy": visibility}, "slash_commands": True, "extra_tools": ["search_skills"]}
    middleware: SkillsMiddleware[Any, Any] = SkillsMiddleware(backend=disk(root), sources=["/skills"], **options)  # type: ignore[arg-type]
    talk = Conversation(mode, middleware)
    calls = (("search_skills", {"query": "zeppelin"}), ("search_skills", {"query": "deploy"}), load("deploy"))
    by_text, by_name, loaded = (str(answer.text) for answer in talk.call(*calls))
    section = talk.model.requests[0].system
    in_list = {(True, True): "name and description", (True, False): "name", (False, False): "not there"}
    found = {(True, True): "found", (True, False): "found by name alone"}
    started: list[bool] = []
    for given in (
        {"messages": [HumanMessage("/deploy")]},
        {"messages": [HumanMessage("x")], "pinned_skills": ["deploy"]},
    ):
        talk.config = {"configurable": {"thread_id": str(len(started))}}
        talk.say(given=given)
        started.append(talk.loaded == ["deploy"])
    return [
        in_list["**deploy**" in section, "zeppelin" in section],
        found.get(("**deploy**" in by_name, "**deploy**: Ships the" in by_text), "not found"),
        "loads"
        if "Text of deploy" in loaded
        else "refused: only the user can start it"
        if "Only the user can start" in loaded
        else "unknown",
        {(True, True): "start it", (False, False): "unknown"}[started[0], started[1]],
    ]


@both_modes
def test_the_table_of_visibilities(mode: Mode, tmp_path: Path) -> None:
    """Each visibility does in each place what its row says."""
    write_files(
        tmp_path,
        {
            "skills/deploy/SKILL.md": skill_md("deploy", "Ships the zeppelin.", "Text of deploy.\n"),
            "skills/other/SKILL.md": skill_md("other"),
        },
    )
    table = {row[0].strip('`"'): row[1:] for row in rows("visibility")}
    assert list(table) == ["on", "name-only", "user-only", "off"]
    assert {visibility: what_happens(mode, tmp_path, visibility) for visibility in table} == table


# Of each row: instructions, arguments, and what they become.
ROWS: dict[str, list[tuple[str, str, str]]] = {
    "`$ARGUMENTS`": [("<$ARGUMENTS>", "a 'b c'", "<a 'b c'>")],
    "`$0`, `$1`, `$ARGUMENTS[1]`": [
        ("<$0> <$1> <$ARGUMENTS[1]> <$2>", "a 'b c'", "<a> <b c> <b c> <$2>"),
    ],
    "`$issue` with `arguments: [issue]` in the frontmatter": [("<$issue>", "7 8", "<7>"), ("<$issue>", "", "<>")],
    r"`\$ARGUMENTS`, `\$1`": [(r"<\$ARGUMENTS> <\$1> <$0>", "a b", "<$ARGUMENTS> <$1> <a>")],
    "no placeholder at all": [("Do it.", "a b", "Do it.\n\nARGUMENTS: a b\n</skill_content>")],
    "any of these, without arguments": [
        (r"<$ARGUMENTS> <$0> <$ARGUMENTS[1]> <\$1> <$issue>", "", r"<$ARGUMENTS> <$0> <$ARGUMENTS[1]> <\$1> <>")
    ],
    "`${CLAUDE_SKILL_DIR}`, `${SKILL_DIR}`, `{baseDir}`": [
        ("<${CLAUDE_SKILL_DIR}> <${SKILL_DIR}> <{baseDir}>", "", "<{dir}> <{dir}> <{dir}>")
    ],
    "`${CLAUDE_SESSION_ID}`": [("<${CLAUDE_SESSION_ID}>", "", "<conversation>")],
}


@both_modes
def test_the_table_of_placeholders(mode: Mode, tmp_path: Path) -> None:
    """Each placeholder becomes in a load what its row says."""
    assert [re.sub(r"\s+", " ", row[0]) for row in rows("in the instructions")] == list(ROWS)
    cases = {f"s{place}": case for place, case in enumerate(case for found in ROWS.values() for case in found)}
    for name, (body, _, _) in cases.items():
        write_files(tmp_path, {f"skills/{name}/SKILL.md": skill_md(name, body=body, arguments=["issue"])})
    talk = Conversation(mode, SkillsMiddleware(backend=disk(tmp_path), sources=["/skills"], max_loaded_skills=20))
    calls = [("load_skill", {"skill_name": name, "arguments": given}) for name, (_, given, _) in cases.items()]
    answers = talk.say(call_tools(*calls))
    wrong = [
        (body, str(answer.text))
        for (name, (body, _, expected)), answer in zip(cases.items(), answers, strict=True)
        if expected.replace("{dir}", f"/skills/{name}") not in str(answer.text)
    ]
    assert wrong == []
