"""A provider over a plain dictionary, and providers that misbehave."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from deepskills import ProvidedFile, ProvidedSkill, SkillProvider, read_skill


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class DictProvider(SkillProvider):
    """Skills in a dictionary: by key, the files of a skill by their paths, `SKILL.md` among them."""

    def __init__(
        self,
        skills: Mapping[str, Mapping[str, str]],
        label: str = "Hub",
        *,
        trusted: bool = True,
        digests: bool = True,
        directory: str | None = None,
    ) -> None:
        self.label = label
        self.trusted = trusted
        self.skills = {key: {path: text.encode() for path, text in files.items()} for key, files in skills.items()}
        self.digests = digests
        self.directory = directory
        self.calls: list[tuple[str, ...]] = []
        self.runtimes: list[Any] = []

    def listed(self, key: str) -> ProvidedSkill:
        content = self.skills[key]["SKILL.md"]
        frontmatter = dict(read_skill(content, path=f"/{key}/SKILL.md").frontmatter)
        name, description = frontmatter.pop("name"), frontmatter.pop("description")
        return ProvidedSkill(key, str(name), str(description), digest(content) if self.digests else None, frontmatter)

    def list_skills(self, runtime: Any) -> Iterable[ProvidedSkill]:
        self.calls.append(("list_skills",))
        self.runtimes.append(runtime)
        return [self.listed(key) for key in self.skills]

    def read_skill(self, skill: ProvidedSkill, runtime: Any) -> bytes:
        self.calls.append(("read_skill", skill.key))
        self.runtimes.append(runtime)
        return self.skills[skill.key]["SKILL.md"]

    def list_files(self, skill: ProvidedSkill, runtime: Any) -> Iterable[ProvidedFile]:
        self.calls.append(("list_files", skill.key))
        self.runtimes.append(runtime)
        files = self.skills[skill.key]
        return (
            ProvidedFile(path, len(content), digest(content) if self.digests else None)
            for path, content in files.items()
            if path != "SKILL.md"
        )

    def read_file(self, skill: ProvidedSkill, path: str, runtime: Any) -> bytes:
        self.calls.append(("read_file", skill.key, path))
        self.runtimes.append(runtime)
        return self.skills[skill.key][path]

    def location(self, skill: ProvidedSkill, runtime: Any) -> str | None:  # noqa: ARG002 - the same for every run
        return None if self.directory is None else f"{self.directory}/{skill.key}"


class AsyncDictProvider(DictProvider):
    """The same, every method `async def`."""

    async def list_skills(self, runtime: Any) -> Iterable[ProvidedSkill]:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().list_skills(runtime)

    async def read_skill(self, skill: ProvidedSkill, runtime: Any) -> bytes:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().read_skill(skill, runtime)

    async def list_files(self, skill: ProvidedSkill, runtime: Any) -> Iterable[ProvidedFile]:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().list_files(skill, runtime)

    async def read_file(self, skill: ProvidedSkill, path: str, runtime: Any) -> bytes:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().read_file(skill, path, runtime)

    async def location(self, skill: ProvidedSkill, runtime: Any) -> str | None:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().location(skill, runtime)


class BrokenProvider(DictProvider):
    """One whose method does something else."""

    def __init__(self, skills: Mapping[str, Mapping[str, str]], method: str, behave: Callable[..., Any]) -> None:
        super().__init__(skills, "Broken")
        setattr(self, method, behave)
