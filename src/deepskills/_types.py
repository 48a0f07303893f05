"""The values that cross deepskills' borders, and the limits they keep."""

from typing import Literal, NotRequired, TypeAlias

# LangGraph builds JSON schemas through pydantic, which before Python 3.12 takes
# only this TypedDict; langchain-core always brings the package along.
from typing_extensions import TypedDict

MAX_SKILL_FILE_BYTES = 10 * 1024 * 1024
"""Largest `SKILL.md` that is read at all."""

MAX_FRONTMATTER_BYTES = 64 * 1024
"""Largest frontmatter; the largest seen in public skills is a tenth of it."""

MAX_NAME_LENGTH = 64
"""Longest name the Agent Skills specification allows."""

MAX_SHOWN_NAME_LENGTH = 128
"""Longest name the reader hands on, whatever an author wrote."""

MAX_DESCRIPTION_LENGTH = 1024
"""Longest description the Agent Skills specification allows."""

MAX_COMPATIBILITY_LENGTH = 500
"""Longest compatibility note the Agent Skills specification allows."""

SKILL_FILE = "SKILL.md"
"""The file that makes a directory a skill."""

MAX_DIRECTORIES = 20_000
"""How many directories of one source are searched."""

MAX_RESOURCES = 200
"""How many resources a load lists."""

SkillSource: TypeAlias = str | tuple[str, str]
"""Where skills live: a backend path, or a `(path, label)` pair."""

ResourceType: TypeAlias = Literal["script", "reference", "asset", "other"]
"""What a file of a skill is for, told by the directory it lies in."""

Severity: TypeAlias = Literal["error", "warning"]
"""`error`: the skill or source is not usable. `warning`: it is used all the same."""


class SkillMetadata(TypedDict):
    """What the model is told of a skill before it is loaded."""

    path: str
    """Backend path of the `SKILL.md`."""

    name: str
    """The skill's name: one line, unique in a catalog."""

    description: str
    """What the skill does and when to use it."""

    license: str | None
    """The licence's name, or where to read it."""

    compatibility: str | None
    """What the skill needs from its surroundings."""

    metadata: dict[str, str]
    """Further properties, as the author wrote them."""

    allowed_tools: list[str]
    """Tools that the author recommends; nothing is blocked by them."""


class SkillProblem(TypedDict):
    """One thing that is wrong with a skill or a source."""

    path: str
    """The file, the directory or the name it is about."""

    code: str
    """Stable kebab-case identifier, one per cause."""

    severity: Severity
    """Whether the skill or source can still be used."""

    message: str
    """What is wrong, and what to do about it."""


class ResourceMetadata(TypedDict):
    """A file that belongs to a loaded skill."""

    path: str
    """Backend path of the file."""

    type: ResourceType
    """What it is for."""

    skill_name: str
    """The skill it belongs to."""


class LoadRecord(TypedDict):
    """What was loaded, so that a change or a loss can be told."""

    path: str
    """Where the text came from."""

    digest: str
    """Digest of the file as it was loaded."""

    tokens: int
    """What the text costs in a request, approximately."""

    text: NotRequired[str]
    """Fingerprint of what the conversation was given."""

    edited: NotRequired[bool]
    """Whether others have changed that text since; what they hid must not come back from the file."""


class CatalogRecord(TypedDict):
    """Proof that a catalog is our own, and what it was made from."""

    digest: str
    """Digest of the catalog as discovery wrote it."""

    sources: list[list[str]]
    """Path and label of each source that was searched."""

    tags: dict[str, str]
    """By path: words that a skill is found by and that its metadata does not hold."""

    kept: NotRequired[str]
    """The catalog itself, packed, for when its own key was overwritten."""
