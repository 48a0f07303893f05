"""`deepskills show` and `info`: what a model would read, and everything that belongs to a skill."""

import json
from pathlib import Path
from typing import Any

from deepagents import create_deep_agent
from deepagents.backends import FilesystemBackend, LocalShellBackend

from deepskills import SkillsMiddleware
from deepskills.extensions import SkillChecks, SkillScripts, SkillSuggestions
from deepskills.testing import ScriptedChatModel, call_tools
from support import load, skill_md, tool_messages, write_files
from support.command_line import invoke


def as_json(*args: str) -> Any:
    return json.loads(invoke(*args, "--json").stdout)


BODY = "Fix issue $issue in {baseDir}.\n"


def library(place: Path) -> None:
    write_files(
        place / "s",
        {
            "fix/SKILL.md": skill_md("fix", "Fixes bugs in code. Use it for a bug report.", BODY, arguments=["issue"]),
            "fix/scripts/run.py": "",
            "fix/evals/evals.json": "{}",
            "minutes/SKILL.md": skill_md("minutes", "Writes the minutes of a meeting. Use it after meetings."),
            "secret/SKILL.md": skill_md("secret", "Deploys.", disable_model_invocation=True),
        },
    )


def test_a_load_is_shown_as_an_agent_gets_it(workplace: Path) -> None:
    """The block of a load, with arguments filled in, is what `load_skill` answers in a real agent, to the letter."""
    library(workplace)
    backend = FilesystemBackend(root_dir="/", virtual_mode=False)
    skills = SkillsMiddleware(backend=backend, sources=[f"{workplace}/s"], extensions=[SkillSuggestions()])
    name, given = load("fix")
    model = ScriptedChatModel(replies=[call_tools((name, {**given, "arguments": "42 now"})), "Done."])
    request = "There is a bug report about our code."
    agent = create_deep_agent(model, backend=backend, middleware=[skills])
    result = agent.invoke({"messages": [{"role": "user", "content": request}]})
    [answer] = tool_messages(result)
    for arguments in (["42", "now"], ["--arguments", "42 now"]):
        assert invoke("show", "FIX", *arguments, "-s", "s").stdout == f"{answer.text}\n"
    assert f"Fix issue 42 in {workplace}/s/fix." in answer.text
    note = invoke("show", "--request", request, "-s", "s").stdout
    assert model.requests[1].messages[1].text == f"{request}\n\n{note}".removesuffix("\n")
    assert "- **fix**" in note


def test_a_load_is_shown_with_the_list_of_its_checks(workplace: Path) -> None:
    """What the model is asked to do, each kind by its own words, is what an agent with `SkillChecks` is told."""
    checks: list[dict[str, Any]] = [
        {"called": "run_tests", "before": "deploy"},
        {"called": "execute(pytest *)"},
        {"file": "CHANGELOG.md"},
        {"script": "scripts/verify.py"},
        {"handler": "is_green", "say": "Make it green."},
        {"unknown": "kind"},
    ]
    write_files(workplace / "s", {"release/SKILL.md": skill_md("release", checks=checks)})
    backend = LocalShellBackend(root_dir="/", virtual_mode=False, inherit_env=True)
    extensions = [SkillScripts(), SkillChecks(handlers={"is_green": lambda *_: True})]
    skills = SkillsMiddleware(backend=backend, sources=[f"{workplace}/s"], extensions=extensions)
    model = ScriptedChatModel(replies=[call_tools(load("release")), "Done."])
    agent: Any = create_deep_agent(model, backend=backend, middleware=[skills])
    [answer, *_] = tool_messages(agent.invoke({"messages": "go"}))
    shown = invoke("show", "release", "-s", "s").stdout
    assert shown == f"{answer.text}\n"
    for line in (
        "- Call `run_tests`; it has to answer without an error. Until then `deploy` is refused.",
        "- Call `execute` with `pytest *`; it has to end with exit code 0.",
        "- Write the file `CHANGELOG.md`.",
        "- Run the skill's script `scripts/verify.py` with `run_skill_script`; it has to end with exit code 0.",
        "- Make it green.",
    ):
        assert line in shown
    parts = {part["part"]: part["tokens"] for part in as_json("show", "release", "-s", "s")["parts"]}
    assert parts["list of its checks"] > 50


def test_every_part_has_its_price(workplace: Path) -> None:
    """`--tokens` names the parts, which add up to the whole; JSON has text and parts."""
    library(workplace)
    parts = {
        ("show",): ["list of 2 skills", "sources", "how to use them", "tool load_skill", "tool unload_skill"],
        ("show", "fix"): ["frontmatter", "instructions", "list of its files", "around it"],
        ("show", "-r", "the minutes of our meeting"): ["minutes", "heading"],
    }
    for args, names in parts.items():
        shown = as_json(*args, "-s", "s")
        assert [part["part"] for part in shown["parts"]] == names
        assert abs(sum(part["tokens"] for part in shown["parts"]) - shown["tokens"]) <= len(names)
        assert shown["text"] == invoke(*args, "-s", "s").stdout.removesuffix("\n")
        table = invoke(*args, "-s", "s", "--tokens").stdout.splitlines()
        assert table[-1] == f"together\t{shown['tokens']}"
        assert len(table) == len(names) + 1
    assert "secret" not in as_json("show", "-s", "s")["text"]


def test_what_cannot_be_shown_says_so(workplace: Path) -> None:
    """No skill fits, a name is unknown or broken, two things are asked for at once: each says what to do."""
    library(workplace)
    write_files(workplace / "s", {"bad/SKILL.md": "nothing"})
    none = invoke("show", "-r", "xyzzy", "-s", "s")
    assert (none.exit_code, none.stdout) == (0, "")
    assert "No skill fits" in none.stderr
    assert as_json("show", "-r", "xyzzy", "-s", "s") is None
    assert [invoke("show", *args, "-s", "s").exit_code for args in (["fux"], ["bad"])] == [2, 1]
    assert "Did you mean `fix`?" in invoke("show", "fux", "-s", "s").stderr
    for args in (["fix", "-r", "x"], ["--arguments", "x"], ["fix", "1", "--arguments", "x"]):
        assert invoke("show", *args, "-s", "s").exit_code == 2


def test_info_shows_every_file_and_what_the_frontmatter_does(workplace: Path) -> None:
    """Files in whichever directory count, except hidden ones and those of a skill inside; keys say what they do."""
    hooks = {"PreToolUse": [{"matcher": "execute", "hooks": [{"type": "command", "command": "./check.sh"}]}]}
    fields: dict[str, Any] = {"model": "fast", "context": "fork", "agent": "reviewer", "hooks": hooks}
    files = {f"a/python/v{n}/guide.md": "" for n in range(250)}
    files |= {"a/.env": "", "a/inner/SKILL.md": skill_md("inner"), "a/inner/x.md": "", "a/scripts/deep/run.py": ""}
    write_files(workplace / "s", {"a/SKILL.md": skill_md("a", user_invocable=False, **fields), **files})
    found = as_json("info", "a", "-s", "s")
    assert (found["resources"], len(found["files"]), found["listed"]) == (251, 251, [])
    assert found["files"][0] == {"path": f"{workplace}/s/a/scripts/deep/run.py", "type": "script"}
    assert (found["model"], found["context"], found["agent"], found["hooks"]) == ("fast", "fork", "reviewer", hooks)
    assert (found["visibility"], found["user_invocable"]) == ("on", False)
    needs = {key["name"]: key["needs"] for key in found["keys"]}
    assert needs.pop("user-invocable") is None
    assert needs == {"model": "SkillModels", "context": "SkillForks", "agent": "SkillForks", "hooks": "SkillHooks"}
    told = invoke("info", "a", "-s", "s").stdout
    assert "Visibility: on, without a slash command: only the model can start it" in told
    assert "Files: 250 other files, 1 script" in told
    assert "./check.sh" in told
    assert told.count("guide.md") == 250


def test_other_clients_spelling_of_who_may_start_a_skill_counts(workplace: Path) -> None:
    """`info` and `doctor` say that only the user starts it; `validate` names a file that cannot be read."""
    write_files(
        workplace / "s",
        {
            "codex/SKILL.md": skill_md("codex"),
            "codex/agents/openai.yaml": "policy:\n  allow_implicit_invocation: no\n",
            "opencode/SKILL.md": skill_md("opencode", metadata={"opencode/autoinvoke": "false"}),
            "broken/SKILL.md": skill_md("broken"),
            "broken/agents/openai.yaml": b"\xff\xfe\x00policy: [",
        },
    )
    assert [as_json("info", name, "-s", "s")["visibility"] for name in ("codex", "opencode", "broken")] == [
        "user-only",
        "user-only",
        "on",
    ]
    assert as_json("doctor", "-s", "s")["user_only"] == ["codex", "opencode"]
    assert "Codex" in invoke("info", "codex", "-s", "s").stdout
    found = json.loads(invoke("validate", "s", "--json").stdout)
    assert [(Path(each["path"]).parent.name, each["code"]) for each in found] == [("broken", "invocation-unreadable")]
