"""Values that cross the library's borders (state, problems, records, sources), and the limits they keep."""

from dataclasses import dataclass
from typing import Annotated, Literal, NotRequired, TypeAlias

# LangGraph builds JSON schemas through pydantic, which before Python 3.12 takes
# only this TypedDict; langchain-core always brings the package along.
from annotated_types import Ge
from typing_extensions import TypedDict

MAX_SKILL_FILE_BYTES = 10 * 1024 * 1024
"""Largest `SKILL.md` that is read at all."""

MAX_FRONTMATTER_BYTES = 64 * 1024
"""Largest frontmatter; the largest seen in public skills is a tenth of it."""

MAX_NAME_LENGTH = 64
"""Longest name the Agent Skills specification allows."""

MAX_SHOWN_NAME_LENGTH = 128
"""Longest name the reader hands on."""

MAX_DESCRIPTION_LENGTH = 1024
"""Longest description the Agent Skills specification allows."""

MAX_COMPATIBILITY_LENGTH = 500
"""Longest compatibility note the Agent Skills specification allows."""

MAX_SKILL_FILE_SIZE = MAX_SKILL_FILE_BYTES
"""The same by the name that deepagents gives it."""

SKILL_FILE = "SKILL.md"
"""The file that makes a directory a skill."""

PLUGIN_MANIFESTS = ("plugin.json", ".claude-plugin/plugin.json")
"""The files that make a directory a plugin; the first that there is counts."""

MAX_DIRECTORIES = 20_000
"""How many directories of one source are searched."""

MAX_RESOURCES = 200
"""How many resources a load lists."""

# What an agent without settings has; the middleware's signature and the command line both read these.

DEFAULT_LOADED_SKILLS = 10
"""How many skills may be loaded at a time, unless `max_loaded_skills` says otherwise."""

DEFAULT_LOADED_TOKENS = 50_000
"""How many tokens they may take together, unless `max_loaded_tokens` says otherwise."""

DEFAULT_DEPTH = 1
"""How many levels below a source skills may lie, unless `max_depth` says otherwise."""

DEFAULT_RESOURCE_DEPTH = 1
"""How many levels of a skill's directories a load lists, unless `resource_depth` says otherwise."""

DEFAULT_SUGGESTIONS = 5
"""How many skills `SkillSuggestions` suggests, unless `k` says otherwise."""


@dataclass(frozen=True)
class OptionalSource:
    """A source that may be missing or empty without a problem or a log line, such as a user's own directory."""

    path: str
    label: str | None = None


@dataclass(frozen=True)
class NamespacedSource:
    """A source whose skills are called `namespace:name`, such as a plugin's: they collide with no others."""

    path: str
    namespace: str
    label: str | None = None


@dataclass(frozen=True)
class PluginSource:
    """A directory of the Agent Plugins format (`plugin.json`, `skills/`): its skills are called `plugin:name`.

    The plugin's name is what its `plugin.json` (or Claude Code's `.claude-plugin/plugin.json`) says. Only skills that
    follow the specification to the letter are used, as the format asks.
    """

    path: str
    label: str | None = None


ResourceType: TypeAlias = Literal["script", "reference", "asset", "other"]
"""What a file of a skill is for, judged by the directory it lies in."""

RESOURCE_TYPE_MAP: dict[str, ResourceType] = {"scripts": "script", "references": "reference", "assets": "asset"}
"""The directories of the specification, and what their files are for."""

RESOURCE_DIRECTORIES: dict[str, ResourceType] = {
    **RESOURCE_TYPE_MAP,
    **{name.removesuffix("s"): kind for name, kind in RESOURCE_TYPE_MAP.items()},
}
"""The same, with the singular that many authors write: `reference/` is listed like `references/`."""

Severity: TypeAlias = Literal["error", "warning"]
"""`error`: the skill or source is not usable. `warning`: it is used all the same."""


class SkillMetadata(TypedDict):
    """What the model reads of a skill before it is loaded."""

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


Trigger: TypeAlias = Literal["model", "user", "pin", "system"]
"""Who started a load: the model by `load_skill`, the user by a slash command, a pin, or the middleware itself."""


class SkillOrigin(TypedDict):
    """Where a skill that was served from elsewhere came from."""

    label: str
    """The host's own name for the server."""

    uri: str
    """Its address on that server."""

    via: str
    """How it came, for people: `MCP`."""

    dynamic: bool
    """Whether it is unknown what is in it, so that no approval of it is remembered."""


class LoadRecord(TypedDict):
    """What state keeps of a load, so that a change or a loss can be noticed."""

    path: str
    """Where the text came from."""

    digest: str
    """Digest of the file as it was loaded."""

    tokens: Annotated[int, Ge(0)]
    """What the text costs in a request, approximately."""

    text: NotRequired[str]
    """Fingerprint of the text that the conversation was given."""

    edited: NotRequired[bool]
    """Whether others have changed that text since; what they hid must not come back from the file."""

    message: NotRequired[str]
    """Id of the message that holds the text."""

    source: NotRequired[str]
    """Path of the source that gave the skill."""

    key: NotRequired[str]
    """The key by which the skill's provider knows it; at one path another user may have another skill."""

    origin: NotRequired[SkillOrigin]
    """Where a skill that was served from elsewhere came from."""

    listed: NotRequired[str]
    """Digest of the catalog's entry at the load: another one at a later run means that the file has changed."""

    arguments: NotRequired[str]
    """What the skill was started with."""

    trigger: NotRequired[Trigger]
    """Who started it."""

    turn: NotRequired[str]
    """Id of the user's newest message when it was loaded."""

    step: NotRequired[Annotated[int, Ge(0)]]
    """LangGraph's step in which it was loaded."""

    lost: NotRequired[bool]
    """Whether its text could not be recovered: it is no longer loaded then; its limits hold until it is unloaded."""

    relies_on: NotRequired[list[str]]
    """Skills whose unload earlier in the same turn made room for this load."""


class CatalogRecord(TypedDict):
    """What state keeps of the catalog: enough to recognize it. The skills themselves stand in `skills_metadata`."""

    fingerprint: str
    """Digest over every entry's path, source and file digest: a process that has made this catalog recognizes it."""
