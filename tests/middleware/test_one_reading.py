"""One answer to two questions: whether two names mean the same skill, and whether a flag of frontmatter is set."""

import json
from pathlib import Path
from typing import Any

import pytest
from deepagents.backends import LocalShellBackend
from langgraph.runtime import Runtime

from deepskills import SkillsManager, SkillsMiddleware
from deepskills.extensions import Preload, SkillScripts
from deepskills.testing import call_tools
from support import MODES, Conversation, Mode, disk, load, skill_md, unload, write_files
from support.command_line import invoke

both_modes = pytest.mark.parametrize("mode", MODES)

NAME = "caf\u00e9"
"""As the author wrote it: composed."""

SPELLINGS = (NAME, "cafe\u0301", "CAFE\u0301", "Caf\u00c9", "  cafe\u0301\n", "**cafe\u0301**", "`caf\u00e9`")
"""As others write it: decomposed, in another case, with marks around it."""


@both_modes
def test_every_way_in_finds_the_same_skill(mode: Mode, tmp_path: Path) -> None:
    """Tool, slash command, preload, manager, script, unload and a rule that hides take a name in any spelling."""
    write_files(tmp_path, {f"skills/{NAME}/SKILL.md": skill_md(NAME), f"skills/{NAME}/scripts/x.sh": "echo ran"})
    shell = LocalShellBackend(root_dir=tmp_path, virtual_mode=True)
    manager = SkillsManager(backend=disk(tmp_path), sources=["/skills"])
    for spelling in SPELLINGS:
        preloaded = SkillsMiddleware(
            backend=shell, sources=["/skills"], extensions=[Preload([spelling]), SkillScripts()]
        )
        talk = Conversation(mode, preloaded)
        script = ("run_skill_script", {"skill_name": spelling, "script_name": "x.sh"})
        [answer, gone] = talk.say(call_tools(script), call_tools(unload(spelling)))
        assert "ran" in answer.text, spelling
        assert (gone.status, talk.loaded) == ("success", []), spelling
        [answer] = talk.call(load(spelling))
        assert (answer.status, talk.loaded) == ("success", [NAME]), spelling
        assert manager.get_skill_content(spelling) == skill_md(NAME), spelling
    for spelling in SPELLINGS[:4]:  # in a rule and after a slash, marks are not part of how people write
        talk = Conversation(mode, SkillsMiddleware(backend=shell, sources=["/skills"], visibility={spelling: "off"}))
        [answer] = talk.call(load(NAME))
        assert (answer.status, talk.loaded) == ("error", []), spelling
        talk = Conversation(mode, SkillsMiddleware(backend=shell, sources=["/skills"], slash_commands=True))
        talk.say(given=f"/{spelling} please")
        assert talk.loaded == [NAME], spelling


FLAGS: dict[str, bool | None] = {
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "on", "y", "1", "' yes '"), True),
    **dict.fromkeys(("false", "False", "no", "off", "n", "0"), False),
    **dict.fromkeys(("maybe", "''", "2", "null"), None),
}
"""As written in frontmatter: set, not set, or neither."""


def test_flags_are_read_in_one_way(tmp_path: Path) -> None:
    """What hides a skill from the model hides it in the command line's report, too, however the author wrote it."""
    names = {f"s{place}": written for place, written in enumerate(FLAGS)}
    for key in ("disable-model-invocation", "user-invocable"):
        front = {
            name: f"---\nname: {name}\ndescription: D.\n{key}: {text}\n---\nBody.\n" for name, text in names.items()
        }
        root = tmp_path / key
        write_files(root, {f"skills/{name}/SKILL.md": text for name, text in front.items()})
        middleware = SkillsMiddleware(backend=disk(root), sources=["/skills"])
        state: Any = {"messages": []}
        state |= middleware.before_agent(state, Runtime()) or {}
        section = middleware.skills_section(state)
        shown = {name for name in names if f"**{name}**" in section}
        report = json.loads(invoke("doctor", "--json", "--source", str(root / "skills")).stdout)
        hides = key == "disable-model-invocation"
        assert shown == {name for name, text in names.items() if not (hides and FLAGS[text])}, key
        assert set(report["skills"]) == shown, key
        assert set(report["user_only"]) == names.keys() - shown, key
        menu = {entry["name"] for entry in middleware.slash_commands_for(state)}
        assert menu == {name for name, text in names.items() if hides or FLAGS[text] is not False}, key
