"""Every frontmatter key that is known: what it does here, what it needs, and who else reads it. Pure.

The one table for `validate`, `info`, `doctor` and the reference page.
"""

from dataclasses import dataclass

CLAUDE_CODE = "Claude Code"
VS_CODE = "VS Code"
OPENCLAW = "OpenClaw"
CURSOR = "Cursor"


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
            "disable-model-invocation", "lets only the user start the skill", others=(CLAUDE_CODE, VS_CODE, OPENCLAW)
        ),
        FrontmatterKey(
            "user-invocable", "keeps the skill out of slash commands", others=(CLAUDE_CODE, VS_CODE, OPENCLAW)
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
        FrontmatterKey("paths", others=(CLAUDE_CODE,)),
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
