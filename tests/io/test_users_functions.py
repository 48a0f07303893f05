"""Functions and backends that users give: whose files they lead to, when they are late, and what they may need."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from deepagents.backends.protocol import FileDownloadResponse, LsResult
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver

from deepskills import SkillsMiddleware
from deepskills.testing import ScriptedChatModel, call_tools
from support import (
    Conversation,
    FakeBackend,
    Mode,
    both_modes,
    disk,
    fails,
    hangs,
    load,
    run,
    skill_md,
    tool_messages,
    write_files,
)
from support.waiting import within_some_limit


@both_modes
@pytest.mark.parametrize("source", ["skills", "./skills"])
def test_a_path_of_one_users_backend_opens_no_file_to_another(mode: Mode, source: str, tmp_path: Path) -> None:
    """Where another user resumes a thread and their listing fails, what the first one listed is not read for them."""
    write_files(tmp_path, {"alice/skills/secret/SKILL.md": skill_md("secret", body="Alice's own words.")})
    write_files(tmp_path, {"bob/skills/other/SKILL.md": skill_md("other")})

    def backend(runtime: Any) -> FakeBackend:
        rules = {"ls": fails("hiccup", error=ConnectionError)} if runtime.context == "bob" else {}
        return FakeBackend(tmp_path / runtime.context, virtual_mode=False, rules=rules)

    model = ScriptedChatModel(replies=["Hello.", call_tools(load("secret"))])
    middleware = SkillsMiddleware(backend=backend, sources=[source])
    agent: Any = create_agent(model, middleware=[middleware], context_schema=str, checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "shared"}}
    run(mode, agent, "go", config, context="alice")
    result = run(mode, agent, "go", config, context="bob")
    [answer] = tool_messages(result)
    assert answer.status == "error"
    assert "Alice's own words." not in model.requests[-1].text


@both_modes
@pytest.mark.parametrize("which", ["backend", "sources"])
def test_functions_that_never_answer_hold_up_no_run(mode: Mode, which: str, tmp_path: Path) -> None:
    """A function that hangs counts as failed after `backend_timeout`, sync and async, and the run goes on."""
    write_files(tmp_path, {"skills/alpha/SKILL.md": skill_md("alpha")})
    released = threading.Event()

    def hang(_runtime: Any) -> Any:
        released.wait(60)

    given: dict[str, Any] = {"backend": disk(tmp_path), "sources": ["/skills"], which: hang}
    talk = Conversation(mode, SkillsMiddleware(**given, backend_timeout=0.05))
    started = time.monotonic()
    talk.say()
    assert time.monotonic() - started < 30
    released.set()
    assert any("no answer within" in problem["message"] for problem in talk.state["skills_problems"])


@pytest.mark.parametrize("which", ["backend", "sources"])
def test_functions_may_need_the_event_loop(which: str, tmp_path: Path) -> None:
    """A function that asks for the running event loop gets it under `ainvoke`."""
    write_files(tmp_path, {"skills/alpha/SKILL.md": skill_md("alpha")})
    plain: dict[str, Any] = {"backend": disk(tmp_path), "sources": ["/skills"]}

    def ask(_runtime: Any) -> Any:
        asyncio.get_running_loop()
        return plain[which]

    talk = Conversation("async", SkillsMiddleware(**{**plain, which: ask}))
    [answer] = talk.call(load("alpha"))
    assert answer.status == "success"


@both_modes
def test_a_source_that_hangs_costs_no_other(mode: Mode, tmp_path: Path) -> None:
    """However many calls of one source are too late, those of the next are made."""
    write_files(tmp_path, {f"remote/group-{n}/skill/SKILL.md": skill_md("skill") for n in range(40)})
    write_files(tmp_path, {"local/group/alpha/SKILL.md": skill_md("alpha")})
    released = threading.Event()
    backend = FakeBackend(tmp_path, rules={"ls": hangs(released, "/remote/")})

    def check(limit: float) -> None:
        options: Any = {"sources": ["/remote", "/local"], "max_depth": 2, "backend_timeout": limit}
        talk = Conversation(mode, SkillsMiddleware(backend=backend, **options))
        talk.say()
        assert [skill["name"] for skill in talk.state["skills_metadata"]] == ["alpha"]

    try:
        within_some_limit(check)
    finally:
        released.set()


class Plain:
    """A backend of somebody's own that has sync methods alone, and a lock."""

    def __init__(self, root: Path) -> None:
        self._lock = threading.Lock()
        self._files = disk(root)

    def ls(self, path: str) -> LsResult:
        with self._lock:
            return self._files.ls(path)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        with self._lock:
            return self._files.download_files(paths)


@both_modes
def test_a_backend_with_sync_methods_alone_serves(mode: Mode, tmp_path: Path) -> None:
    """Such a backend is called in threads by async runs."""
    write_files(tmp_path, {"skills/alpha/SKILL.md": skill_md("alpha")})
    backend: Any = Plain(tmp_path)
    middleware = SkillsMiddleware(backend=backend, sources=["/skills"])
    talk = Conversation(mode, middleware)
    [answer] = talk.call(load("alpha"))
    assert answer.status == "success"


@both_modes
def test_async_functions_for_backend_or_sources_say_what_to_pass(mode: Mode, tmp_path: Path) -> None:
    """The run goes on without skills, and the problem says that a plain function is expected."""

    async def given(_runtime: Any) -> Any:
        return ["/skills"]

    for options in ({"backend": disk(tmp_path), "sources": given}, {"backend": given, "sources": ["/skills"]}):
        talk = Conversation(mode, SkillsMiddleware(**options))  # type: ignore[arg-type]
        talk.say("done")
        [found] = talk.state["skills_problems"]
        assert "the function is async; pass a plain one (`def`) that returns a " in found["message"]
