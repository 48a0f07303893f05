"""An extension of your own: skills may be loaded only in working hours, and every load is counted."""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deepagents.backends import FilesystemBackend
from langchain.agents import create_agent

from deepskills import Refuse, SkillEvent, SkillExtension, SkillLoad, SkillRun, SkillsMiddleware
from deepskills.testing import ScriptedChatModel, call_tools


class WorkingHours(SkillExtension):
    """Refuses loads outside working hours."""

    def __init__(self, hour: Callable[[], int] = lambda: datetime.now(UTC).hour) -> None:
        self.hour = hour
        self.loads: Counter[str] = Counter()

    def before_load(self, load: SkillLoad, run: SkillRun) -> Refuse | None:  # noqa: ARG002 - the seam's signature
        return None if self.hour() in range(8, 18) else Refuse("skills rest until 8 o'clock; try again then")

    def on_event(self, event: SkillEvent, runtime: Any) -> None:  # noqa: ARG002 - the seam's signature
        self.loads[f"{event.type}: {event.skill}"] += 1


if __name__ == "__main__":
    for hour in (7, 9):
        extension = WorkingHours(lambda hour=hour: hour)  # type: ignore[misc]
        backend = FilesystemBackend(root_dir=Path(__file__).parent)
        skills = SkillsMiddleware(backend=backend, sources=["/skills"], extensions=[extension])
        model = ScriptedChatModel(replies=[call_tools(("load_skill", {"skill_name": "release-notes"}))])
        create_agent(model, middleware=[skills]).invoke({"messages": [{"role": "user", "content": "Release notes!"}]})
        print(f"{hour} o'clock:", dict(extension.loads))
