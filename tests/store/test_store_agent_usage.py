"""`StoreRecorder`: the use of skills, counted in the store for any agent."""

from pathlib import Path
from typing import Any

from store_support import Sessions, draft, seed, with_service

from deepskills import SkillsMiddleware
from deepskills.extensions import SkillUsage
from deepskills.store import StoreRecorder
from support import Conversation, Mode, disk, load, skill_md, write_files


def test_an_agent_on_files_counts_in_the_store(mode: Mode, any_sessions: Sessions, tmp_path: Path) -> None:
    """Events count for the skill that the run's user means by the name; skills that the store lacks do not."""
    (mine,) = seed(any_sessions, "alice", draft("mine"))
    (theirs,) = seed(any_sessions, "bob", draft("mine"))
    write_files(tmp_path, {f"skills/{name}/SKILL.md": skill_md(name) for name in ("mine", "local")})
    usage = SkillUsage(StoreRecorder(any_sessions, lambda runtime: "alice" if runtime is not None else None))
    middleware: Any = SkillsMiddleware(backend=disk(tmp_path), sources=["/skills"], extensions=[usage])
    Conversation(mode, middleware).call(load("mine"), load("local"))
    assert usage.flush(120)

    async def counts(service: Any) -> list[Any]:
        return [await service.usage(skill.id, None, owner) for skill, owner in ((mine, "alice"), (theirs, "bob"))]

    found, none = with_service(any_sessions, counts)
    assert sorted((count.type, count.trigger, count.count) for count in found) == [
        ("skill.cost", "model", 1),
        ("skill.loaded", "model", 1),
    ]
    assert none == []
