"""The public class with which skills come from anywhere: an object store, a registry, a hub, a database.

A provider says which skills it has, and reads a skill's text and files when they are wanted. It knows neither agents
nor prompts. What it gives is checked like any stranger's: a provider that raises, hangs or lies costs its own skills.
"""

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias, TypeVar

from deepskills._io.backends import find_parts
from deepskills._skillmd.text import is_text
from deepskills._types import SkillProblem

SCHEME = "skill://"
"""How the address of a source begins that is a provider; its label follows."""

MAX_LABEL_LENGTH = 128
"""Longest label of a provider."""


@dataclass(frozen=True)
class ProvidedSkill:
    """A skill as its provider lists it."""

    key: str
    """The provider's own key of the skill, which identifies it for as long as it exists."""

    name: str
    """What the skill is called."""

    description: str
    """What it does and when to use it."""

    digest: str | None = None
    """`sha256:` and 64 hexadecimal digits, over the bytes of its `SKILL.md`.

    With it the file is read only when the skill is loaded, and other bytes refuse the load; without it the file is read
    each time that skills are listed.
    """

    frontmatter: Mapping[str, Any] = field(default_factory=dict)
    """The keys of its frontmatter beside name and description; without a digest the file's own count."""

    @property
    def version(self) -> str | None:
        """What changes whenever anything of the skill does; the digest, unless a provider knows more."""
        return self.digest

    @property
    def is_dynamic(self) -> bool:
        """Whether it is unknown what is in its files, so that any of them may be asked for."""
        return False

    @property
    def directory(self) -> str | None:
        """Its directory for file tools, where the skill itself says; otherwise `location` is asked."""
        return None


@dataclass(frozen=True, slots=True)
class ListedSkill:
    """What a provider said of a skill when it listed it, looked at once: the provider's own object may change."""

    key: str
    name: str
    description: str
    digest: str | None
    version: str | None
    directory: str | None
    is_dynamic: bool
    frontmatter: Mapping[str, Any]
    given: ProvidedSkill = field(compare=False, repr=False)
    """The provider's own object, which its methods get back."""


@dataclass(frozen=True)
class ProvidedFile:
    """A further file of a skill."""

    path: str
    """Its path relative to the skill, such as `scripts/report.py`."""

    size: int | None = None
    """Its size in bytes, where it is known."""

    digest: str | None = None
    """`sha256:` and 64 hexadecimal digits, over its bytes; other bytes are refused."""


@dataclass(frozen=True)
class ListingProblems:
    """What is wrong with a listing; providers of this library give it before the skills."""

    problems: Sequence[SkillProblem]


ValueT = TypeVar("ValueT")
MaybeAsync: TypeAlias = ValueT | Awaitable[ValueT]
"""What a method gives that may be written `def` or `async def`."""


class SkillProvider:
    """A source of skills; pass it in `sources`, alone or among paths.

    Override `list_skills` and `read_skill`, and the others where there is more to a skill than its text. Each method is
    written `def` or `async def`. `runtime` is that of the run: `.context`, `.config`, `.store`, `.state`; outside an
    agent it has no state and no configuration.
    """

    label: str = ""
    """What the model, problems and logs call it; unique among an agent's sources."""

    trusted: bool = True
    """Whether its skills may grant themselves anything: tools, hooks, scripts, a model. If not, a human has to."""

    executes: frozenset[str] = frozenset()
    """Names of tools that execute code; while a skill of it is in use and it is not trusted, they ask a human first."""

    is_personal: bool = False
    """Whether it gives each user other skills; if so, nothing that a thread knows stands in where it fails."""

    via: ClassVar[str] = "provider"
    """How its skills come, for people, where they are not trusted."""

    compares_itself: ClassVar[bool] = False
    """Whether it compares each file with what it listed itself, so that nobody else has to."""

    def list_skills(self, runtime: Any) -> MaybeAsync[Iterable[ProvidedSkill]]:  # noqa: ANN401 - LangGraph's runtime
        """Return the skills that there are for this run."""
        raise NotImplementedError

    def read_skill(self, skill: ProvidedSkill, runtime: Any) -> MaybeAsync[bytes]:  # noqa: ANN401 - LangGraph's runtime
        """Return the bytes of a skill's `SKILL.md`."""
        raise NotImplementedError

    def list_files(self, skill: ProvidedSkill, runtime: Any) -> MaybeAsync[Iterable[ProvidedFile]]:  # noqa: ANN401, ARG002
        """Return the other files of a skill; what is not among them does not exist."""
        return ()

    def read_file(self, skill: ProvidedSkill, path: str, runtime: Any) -> MaybeAsync[bytes]:  # noqa: ANN401
        """Return the bytes of one of the files that `list_files` gave."""
        raise NotImplementedError

    def location(self, skill: ProvidedSkill, runtime: Any) -> MaybeAsync[str | None]:  # noqa: ANN401, ARG002
        """Return the directory by which the agent's file tools find the skill; `None` if they do not."""
        return None


class ServesSkills:
    """Marks a backend whose directories are those of providers, which list and read the skills in them."""

    def providers_at(self, path: str, mount: str | None) -> Sequence[SkillProvider]:
        """Return the providers of the skills below a path of this backend.

        `mount` is what stands before this backend's own paths for file tools; `None` if those do not lead here.
        """
        raise NotImplementedError


def serves_skills(backend: object) -> bool:
    """Whether a backend, or one that is mounted behind it, serves skills of providers."""
    return any(isinstance(part, ServesSkills) for part in find_parts(backend))


def serving_providers(backend: object) -> list[SkillProvider]:
    """Return the providers whose skills a backend serves, or one that is mounted behind it."""
    parts = [part for part in find_parts(backend) if isinstance(part, ServesSkills)]
    return [provider for part in parts for provider in part.providers_at("/", None)]


def check_label(provider: SkillProvider) -> str:
    """Return a provider's label.

    Raises:
        ValueError: If it cannot be part of an address.
    """
    label = provider.label
    is_good = (
        isinstance(label, str)
        and label.strip() == label != ""
        and len(label) <= MAX_LABEL_LENGTH
        and label.isprintable()
        and is_text(label)
        and not any(part in label for part in ("/", ":", ".."))
    )
    if not is_good:
        raise ValueError(
            f"the label of {type(provider).__name__} must be a text without '/', ':', '..' and control characters, "
            f"got {label!r}; set `label` on the class or on the instance"
        )
    return label
