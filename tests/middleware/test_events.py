"""Events: each says of which source and file a skill is and who asked for it, so that use can be counted."""

from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage, RemoveMessage
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from deepskills import Refuse, SkillExtension, SkillLoad, SkillsMiddleware
from deepskills.extensions import Preload
from deepskills.testing import call_tools
from support import Conversation, Mode, both_modes, disk, load, skill_md, unload, write_files

NAMES = ("alpha", "beta", "gamma", "guarded", "started")


class Listens(SkillExtension):
    """Hears events, refuses one skill, and notes who wants each text."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self.wanted: list[tuple[str, str]] = []

    def before_load(self, load: SkillLoad, run: Any) -> Any:  # noqa: ARG002 - the seam's signature
        """Refuse the guarded skill."""
        return Refuse("not today") if load.entry.name == "guarded" else None

    def change_text(self, load: SkillLoad, run: Any) -> str:  # noqa: ARG002 - the seam's signature
        """Note who wants the text."""
        self.wanted.append((load.entry.name, load.trigger))
        return load.text

    def on_event(self, event: Any, runtime: Any) -> None:  # noqa: ARG002 - the seam's signature
        """Hear an event."""
        self.heard.append(event.as_dict())


def library(root: Path) -> None:
    """Write skills, one of them the user's alone, one broken."""
    files = {f"skills/{name}/SKILL.md": skill_md(name) for name in NAMES}
    files["skills/pay/SKILL.md"] = skill_md("pay", disable_model_invocation=True)
    files["skills/broken/SKILL.md"] = "---\nname: broken\n---\nNo description.\n"
    write_files(root, files)


def said(text: str, **more: Any) -> dict[str, Any]:
    """Return the input of a run."""
    return {"messages": [HumanMessage(text)], **more}


@both_modes
def test_every_event_tells_source_digest_and_trigger(mode: Mode, tmp_path: Path) -> None:
    """Loads, refusals, unloads and put-backs of a skill that exists name its source and file, and who asked."""
    library(tmp_path)
    ears = Listens()
    rules: dict[str, Any] = {}
    middleware = SkillsMiddleware(
        backend=disk(tmp_path),
        sources=["/skills"],
        max_loaded_skills=4,
        slash_commands=True,
        visibility=lambda skill, _runtime: rules.get(skill["name"], "on"),
        extensions=[ears, Preload(["started"])],
    )
    talk = Conversation(mode, middleware)
    events = talk.stream(
        call_tools(load("beta"), load("pay"), load("nope"), unload("gamma"), load("guarded"), load("gamma")),
        given=said("/alpha", pinned_skills=["pay", "guarded"]),
    )
    (tmp_path / "skills/gamma/SKILL.md").unlink()
    events += talk.stream(call_tools(load("gamma"), unload("beta")), given="/gamma")
    rules["alpha"] = "off"
    events += talk.stream(given={"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), HumanMessage("go")]})
    told = [(event["type"].removeprefix("skill."), event["skill"], event["trigger"]) for event in events]
    assert told[:4] == [
        ("loaded", "pay", "pin"),
        ("refused", "guarded", "pin"),
        ("loaded", "started", "system"),
        ("loaded", "alpha", "user"),
    ]
    assert sorted(told[4:10]) == [
        ("loaded", "beta", "model"),
        ("refused", "gamma", "model"),
        ("refused", "gamma", "model"),
        ("refused", "guarded", "model"),
        ("refused", "nope", "model"),
        ("refused", "pay", "model"),
    ]
    assert told[10] == ("refused", "gamma", "user")
    assert sorted(told[11:13]) == [("refused", "gamma", "model"), ("unloaded", "beta", "model")]
    assert told[13] == ("unloaded", "alpha", "system")
    assert sorted(told[14:]) == [("reattached", "pay", "system"), ("reattached", "started", "system")]
    unknown = [event for event in events if event["source"] != "/skills" or len(event["digest"] or "") != 71]
    assert [(event["skill"], event["source"], event["digest"]) for event in unknown] == [("nope", None, None)]
    assert sorted(map(str, ears.heard)) == sorted(map(str, events))
    assert {("alpha", "user"), ("pay", "pin"), ("started", "system"), ("beta", "model")} <= set(ears.wanted)


def test_the_digest_is_that_of_the_file(tmp_path: Path) -> None:
    """The same file has the same digest, another text another."""
    library(tmp_path)
    digests = []
    for body in ("One.\n", "One.\n", "Two.\n"):
        write_files(tmp_path, {"skills/alpha/SKILL.md": skill_md("alpha", body=body)})
        talk = Conversation("sync", SkillsMiddleware(backend=disk(tmp_path), sources=["/skills"]))
        [event] = talk.stream(call_tools(load("alpha")))
        digests.append(event["digest"])
    assert digests[0] == digests[1] != digests[2]
