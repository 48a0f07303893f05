"""Every frontmatter key that is known: what it does here, what it needs, and who else reads it. Pure.

The one table for `validate`, `info`, `doctor` and the reference page.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deepskills._skillmd.repair import read_yaml
from deepskills._skillmd.yaml import FrontmatterError, as_flag

CLAUDE_CODE = "Claude Code"
VS_CODE = "VS Code"
OPENCLAW = "OpenClaw"
CURSOR = "Cursor"
OPENCODE = "OpenCode"


@dataclass(frozen=True)
class FrontmatterKey:
    """A key of a `SKILL.md`, at the top level unless it starts with `metadata.`."""

    name: str
    does: str = ""
    """What deepskills does with it; empty if it does nothing."""

    needs: str = ""
    """The extension without which it does nothing; empty if it needs none."""

    others: tuple[str, ...] = ()
    """Further clients that read it."""

    is_specified: bool = False
    """Whether the Agent Skills specification has it."""

    works_in_metadata: bool = False
    """Whether it works below `metadata` as well, so that it may be moved there."""

    @property
    def below(self) -> bool:
        """Whether it works below `metadata`, alone or as well."""
        return self.works_in_metadata or self.name.startswith("metadata.")


KEYS: dict[str, FrontmatterKey] = {
    key.name: key
    for key in (
        FrontmatterKey("name", "names the skill", is_specified=True),
        FrontmatterKey("description", "tells the model when to use it", is_specified=True),
        FrontmatterKey("license", "is shown in the catalog", is_specified=True),
        FrontmatterKey("compatibility", "is shown in the catalog", is_specified=True),
        FrontmatterKey("metadata", "holds further properties", is_specified=True),
        FrontmatterKey(
            "allowed-tools", "recommends tools; `ToolPolicy` allows or approves only these", is_specified=True
        ),
        FrontmatterKey("tags", "is searched", works_in_metadata=True),
        FrontmatterKey("keywords", "is searched", works_in_metadata=True),
        FrontmatterKey("triggers", "is searched", works_in_metadata=True),
        FrontmatterKey("when_to_use", "is shown and searched with the description", others=(CLAUDE_CODE,)),
        FrontmatterKey("argument-hint", "is shown where the skill is offered", others=(CLAUDE_CODE, VS_CODE)),
        FrontmatterKey("arguments", "names the arguments", others=(CLAUDE_CODE,)),
        FrontmatterKey(
            "disable-model-invocation",
            "lets only the user start the skill",
            others=(CLAUDE_CODE, VS_CODE, OPENCLAW, CURSOR),
        ),
        FrontmatterKey(
            "user-invocable", "keeps the skill out of slash commands", others=(CLAUDE_CODE, VS_CODE, OPENCLAW)
        ),
        FrontmatterKey("slash", "keeps the skill out of slash commands (`false`)", others=(OPENCODE,)),
        FrontmatterKey(
            "metadata.opencode/autoinvoke", "lets only the user start the skill (`false`)", others=(OPENCODE,)
        ),
        FrontmatterKey("disallowed-tools", "forbids tools while in use", "ToolPolicy", (CLAUDE_CODE,)),
        FrontmatterKey("model", "picks the model while in use", "SkillModels", (CLAUDE_CODE,)),
        FrontmatterKey("context", "runs the skill in a sub-agent (`fork`)", "SkillForks", (CLAUDE_CODE,)),
        FrontmatterKey("agent", "names the sub-agent of a fork", "SkillForks", (CLAUDE_CODE,)),
        FrontmatterKey("hooks", "runs at tool calls while in use", "SkillHooks", (CLAUDE_CODE,)),
        FrontmatterKey("checks", "says when the skill's work is done", "SkillChecks"),
        FrontmatterKey("metadata.include_tools", "brings tools of the application into use"),
        FrontmatterKey("metadata.requires", "names skills that it builds on; `load_requires` brings them along"),
        FrontmatterKey("effort", others=(CLAUDE_CODE,)),
        FrontmatterKey("paths", "lists the skill once a matching file was touched", others=(CLAUDE_CODE,)),
        FrontmatterKey("shell", others=(CLAUDE_CODE,)),
        FrontmatterKey("homepage", others=(OPENCLAW,)),
        FrontmatterKey("command-dispatch", others=(OPENCLAW,)),
        FrontmatterKey("command-tool", others=(OPENCLAW,)),
        FrontmatterKey("command-arg-mode", others=(OPENCLAW,)),
        FrontmatterKey("globs", others=(CURSOR,)),
        FrontmatterKey("alwaysApply", others=(CURSOR,)),
    )
}
"""The keys by name."""

SPECIFIED_FIELDS = frozenset(name for name, key in KEYS.items() if key.is_specified)
"""The frontmatter keys that the Agent Skills specification knows."""

TAG_KEYS = tuple(name for name, key in KEYS.items() if key.works_in_metadata)
"""Frontmatter keys, at the top or in `metadata`, whose words a skill is found by."""

POWER_KEYS = frozenset({"allowed-tools", "hooks", "model", "context", "agent"})
"""Frontmatter keys by which a skill asks for powers; those of a served skill are set aside until they are granted."""


def is_acted_on(name: str) -> bool:
    """Whether deepskills does something with a key."""
    return name in KEYS and bool(KEYS[name].does)


def is_acted_on_below(name: str) -> bool:
    """Whether deepskills does something with a key below `metadata`; each of these may be a list."""
    return f"metadata.{name}" in KEYS or (name in KEYS and KEYS[name].works_in_metadata)


def readers_of(names: list[str]) -> str:
    """Return the clients that read any of these keys."""
    return ", ".join(sorted({client for name in names for client in KEYS[name].others}))


# Who may start a skill, in each client's spelling. The strictest counts: each of them can only take something away.

INVOCATION_FILE = "agents/openai.yaml"
"""The file beside `SKILL.md` in which Codex keeps who may start a skill; in frontmatter, that it lets only the user."""

MAX_INVOCATION_BYTES = 65_536
"""Largest such file that is read."""


def is_user_only(frontmatter: Mapping[str, Any]) -> bool:
    """Whether an author lets only the user start a skill."""
    # Asked of every entry: most have no such key, and nothing is read where there is none.
    key = "disable-model-invocation"
    if INVOCATION_FILE in frontmatter or (key in frontmatter and as_flag(frontmatter[key])):
        return True
    further = frontmatter.get("metadata")
    key = "opencode/autoinvoke"
    return isinstance(further, Mapping) and key in further and not as_flag(further[key], default=True)


def is_user_invocable(frontmatter: Mapping[str, Any]) -> bool:
    """Whether an author lets the user start a skill by a slash command."""
    return all(as_flag(frontmatter.get(key), default=True) for key in ("user-invocable", "slash"))


def lets_models_start(content: bytes) -> bool:
    """Whether Codex' file lets a model start the skill that it lies beside; it does unless it says no.

    Raises:
        ValueError: If it cannot be read; Codex ignores such a file.
    """
    if len(content) > MAX_INVOCATION_BYTES:
        raise ValueError(f"it is larger than {MAX_INVOCATION_BYTES:,} bytes")
    try:
        tree, _ = read_yaml(content.decode("utf-8-sig"))
    except FrontmatterError as error:
        raise ValueError(f"it is not YAML: {error}") from None
    policy = tree.get("policy") if isinstance(tree, dict) else None
    return not isinstance(policy, dict) or as_flag(policy.get("allow_implicit_invocation"), default=True)
