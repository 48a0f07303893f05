"""Every problem that the core reports: its code, its severity and its message.

One row per cause; the core words its problems nowhere else, and an extension words its own beside its code. Codes are
public and never change. A message says what is wrong, with which value, and then what to do about it, because its
reader (an author, an operator, sometimes a model) has only this one line.
"""

from collections.abc import Iterable

from deepskills._skillmd.text import one_line
from deepskills._types import (
    MAX_COMPATIBILITY_LENGTH,
    MAX_DESCRIPTION_LENGTH,
    MAX_DIRECTORIES,
    MAX_FRONTMATTER_BYTES,
    MAX_NAME_LENGTH,
    MAX_SKILL_FILE_BYTES,
    Severity,
    SkillProblem,
)

MAX_QUOTED_LENGTH = 120
"""How much of a stranger's text a message quotes."""

MAX_VALUE_LENGTH = 800
"""How much of any text a message holds."""

MAX_LISTED = 5
"""How many names a message lists."""

PROBLEMS: dict[str, tuple[Severity, str]] = {
    # The file cannot be used.
    "file-too-large": (
        "error",
        f"The file is {{size}} bytes; at most {MAX_SKILL_FILE_BYTES} are read. "
        "Move long material into files under references/.",
    ),
    "not-text": ("error", "The file is not text ({reason}). Save it as UTF-8."),
    "no-frontmatter": (
        "error",
        "There is no frontmatter. Start the file with a line `---`, then `name:` and `description:`, "
        "then a second line `---`.",
    ),
    "frontmatter-unclosed": (
        "error",
        "The frontmatter is not closed. End it with a line that holds only `---`.",
    ),
    "frontmatter-too-large": (
        "error",
        f"The frontmatter does not end within {MAX_FRONTMATTER_BYTES} bytes. "
        "Close it with a line `---`, and move long text below it.",
    ),
    "yaml-unreadable": (
        "error",
        "The frontmatter is not readable as YAML: {reason}. Write one `key: value` per line and quote values "
        "that hold special characters.",
    ),
    "frontmatter-not-mapping": (
        "error",
        "The frontmatter is {found}, not a mapping. Write one `key: value` per line.",
    ),
    "description-missing": (
        "error",
        "There is no description, so the model cannot tell when to use the skill. "
        "Add `description:` to the frontmatter.",
    ),
    # The file is used; its author slipped.
    "encoding-utf16": ("warning", "The file is UTF-16. Save it as UTF-8."),
    "line-ends-cr": ("warning", "Lines end with a bare carriage return. Save the file with LF line ends."),
    "text-before-frontmatter": (
        "warning",
        "There are blank lines or comments before the first `---`. Make it the first line of the file.",
    ),
    "file-in-fence": (
        "warning",
        "The whole file is inside a Markdown fence. Delete its first and last line; the file starts with `---`.",
    ),
    "fence-glued": (
        "warning",
        "Text follows the closing `---` on the same line. Put the `---` on a line of its own.",
    ),
    "control-characters": (
        "warning",
        "Control, bidirectional or other invisible characters were removed from the frontmatter. Delete them.",
    ),
    "yaml-repaired": (
        "warning",
        "Not valid YAML, so read as plain text: {keys}. Put the value in quotes, or indent it below its key.",
    ),
    "yaml-too-deep": (
        "warning",
        "Nested too deep, so read as plain text: {keys}. Keep frontmatter flat.",
    ),
    "yaml-line-lost": (
        "warning",
        "Lines that belong to no key were ignored: {keys}. Remove them, or write `key: value`.",
    ),
    "yaml-duplicate-key": (
        "warning",
        "Given more than once; the last one is used: {keys}. Remove the others.",
    ),
    "yaml-alias": (
        "warning",
        "YAML anchors, aliases and merge keys (`&`, `*`, `<<`) are not expanded. Write the value out, or quote it.",
    ),
    "yaml-tag": ("warning", "YAML tags (`!`) are ignored. Write the plain value, or quote it."),
    "name-missing": ("warning", "There is no name, so {name} is used. Add `name:` to the frontmatter."),
    "name-invalid": (
        "warning",
        "The name {name} breaks the naming rules. Use lower-case letters, digits and single hyphens between them.",
    ),
    "name-too-long": (
        "warning",
        f"The name is {{length}} characters long; the specification allows {MAX_NAME_LENGTH}. Shorten it.",
    ),
    "name-directory-mismatch": (
        "warning",
        "The name {name} is not the directory's name {directory}. Rename one of them.",
    ),
    "description-too-long": (
        "warning",
        f"The description is {{length}} characters long and was cut at {MAX_DESCRIPTION_LENGTH}. Shorten it.",
    ),
    "compatibility-too-long": (
        "warning",
        f"The compatibility note is {{length}} characters long and was cut at {MAX_COMPATIBILITY_LENGTH}. Shorten it.",
    ),
    "field-not-text": (
        "warning",
        "Expected text, got a list or a mapping, which was read as text: {keys}. Write it as one text.",
    ),
    "metadata-not-mapping": (
        "warning",
        "`metadata` is not a mapping and was ignored. Write one `key: value` per line below it.",
    ),
    "metadata-value-not-text": (
        "warning",
        "Metadata values must be text; a list or mapping was read as text: {keys}. Write each as one text.",
    ),
    "allowed-tools-invalid": (
        "warning",
        "`allowed-tools` is neither text nor a list and was ignored. Write tool names with spaces between them.",
    ),
    # A source, or what discovery found in it.
    "sources-failed": ("error", "The sources could not be resolved: {reason}. Check the function passed as `sources`."),
    "source-failed": (
        "error",
        "The source could not be listed: {reason}. It is tried again at the next run; skills found earlier stay.",
    ),
    "source-incomplete": (
        "error",
        "Part of the source could not be listed: {reason}. It is tried again at the next run.",
    ),
    "source-missing": (
        "warning",
        "There is no such directory. Create it, remove it from the sources, or pass `OptionalSource(path)` if it "
        "may be missing.",
    ),
    "source-empty": (
        "warning",
        "No skill was found here. Put each skill into a directory of its own with a `SKILL.md`.",
    ),
    "source-cut": (
        "warning",
        f"Only the first {MAX_DIRECTORIES} directories were searched. Name a directory nearer to the skills.",
    ),
    # An agent that `deepskills doctor --agent` looks at.
    "agent-unusable": ("error", "The agent could not be looked at: {reason}. Correct that, and try again."),
    "agent-without-skills": (
        "error",
        "No SkillsMiddleware was found in it. Pass one in its `middleware`, or name the middleware itself.",
    ),
    "agent-conflict": ("error", "Skills would vanish: {reason}. Change the call as it says."),
    "agent-lacks-tools": (
        "warning",
        "The skill names tools that the agent does not have: {names}. Give them to the agent, or correct `{key}`.",
    ),
    "cache-broken": (
        "warning",
        '`loaded_status="system_prompt"` changes the prompt at each load and unload, and {provider} caches prompts by '
        'their beginning. Leave it at "auto".',
    ),
    "unload-cheap-in-vain": (
        "warning",
        '`unload_when="cheap"` keeps texts for the sake of prompt caches, which `loaded_status="system_prompt"` breaks '
        'at each load and unload. Leave one of them at "auto".',
    ),
    "budget-over-window": (
        "warning",
        "`max_loaded_tokens={budget}` lets skills take more than a quarter of the model's window of {window} tokens. "
        "Set at most {fitting}, or leave it out.",
    ),
    "plugin-invalid": (
        "error",
        "The plugin is not used: {reason}. Correct its `plugin.json`, or name its directory `skills` as a source.",
    ),
    "plugin-key-unknown": (
        "warning",
        "The plugin's manifest has the keys {names}, which mean nothing in its format as they stand. Remove them, or "
        "move them into the object `extensions`.",
    ),
    "plugin-mcp-invalid": (
        "warning",
        "The plugin's MCP servers are not as its format says: {reason}. Correct its `mcp.json`; its skills are used.",
    ),
    "plugin-leads-out": (
        "error",
        "The file lies outside the plugin {plugin}, so it is not used. Replace the link in the plugin with the files.",
    ),
    # A server of skills, or what it listed.
    "mcp-not-declared": (
        "error",
        "The MCP server {label} does not declare the skills extension. Ask its operator to serve "
        "`io.modelcontextprotocol/skills` (drafts before it are not read). A client of `mcp` 1.x may not be told: if "
        "the server does declare it, install `mcp` 2.x here.",
    ),
    "mcp-entry-invalid": (
        "error",
        "An entry of the MCP server {label} is not used: {reason}. Its operator has to correct it.",
    ),
    "mcp-dynamic": (
        "error",
        'The MCP server {label} does not say what is in this skill ("dynamic"), so nobody can tell what would be read. '
        "Pass `dynamic=True` to McpSkills to use such skills anyway.",
    ),
    "mcp-too-large": (
        "error",
        "A skill of the MCP server {label} is too large: {reason}. Its operator has to divide it.",
    ),
    "mcp-listing-cut": (
        "warning",
        "The list of skills of the MCP server {label} was cut: {reason}. Bring a skill that is missing by its URI.",
    ),
    "mcp-mismatch": (
        "error",
        "What the MCP server sent for {file} is not what it listed: {reason}. Nothing of it was used. Load the skill "
        "again to use what the server has now.",
    ),
    "provided-invalid": (
        "error",
        "The provider lists a skill that cannot be used: {reason}. The others are used; correct the provider.",
    ),
    "provided-location": (
        "warning",
        "The provider names no usable directory for this skill: {reason}. Its files are known by address alone.",
    ),
    "mcp-renamed": (
        "warning",
        "Another skill has the name of this served one ({other}), so it is called {name} here. Rename the label or the "
        "other skill.",
    ),
    # What `deepskills gate` finds.
    "reference-dead": (
        "error",
        "The instructions name {reference}, and there is no such file. Add it, or correct the path.",
    ),
    "request-taken": (
        "error",
        "The request {query} is this skill's, and {by} ranks first for it now. Tell their descriptions apart.",
    ),
    "request-unwanted": (
        "error",
        "The request {query} should not load this skill, and it ranks first for it now. Narrow its description.",
    ),
    "skill-file-misnamed": (
        "warning",
        "The file is named {found}; agents read only `SKILL.md`, so the skill does not exist for them. Rename it.",
    ),
    "skill-too-deep": (
        "warning",
        "The skill lies {depth} directories below its source, deeper than agents look by default. "
        "Set `max_depth={depth}`, or name {parent} as a source.",
    ),
    "installed-differs": (
        "warning",
        "The skill was brought by {installer}, and {what}. Look at the files, then run `{command}`.",
    ),
    "lock-unreadable": ("warning", "The lock cannot be used: {reason}. Restore it from your version control."),
    "skill-unreadable": ("error", "The file could not be read: {reason}. Check that it exists and may be read."),
    "skill-not-a-file": (
        "error",
        "The SKILL.md here is not a regular file, so it was not opened. Replace it with a text file.",
    ),
    "skill-not-in-store": (
        "error",
        "{which} is not in the store, or this user may not see it, so the agent goes without it. Correct `{option}`, "
        "or ask the skill's owner to share it.",
    ),
    "skill-path-not-text": (
        "error",
        "The path is not text (UTF-8), so the skill can be neither shown nor asked for. Rename the directory.",
    ),
    "skill-shadowed": (
        "warning",
        "Another skill named {name} in a later source is used instead: {winner}. Rename one if both are wanted.",
    ),
    "skill-duplicate": (
        "warning",
        "Another skill named {name} in the same source is used instead: {winner}. Rename or remove one.",
    ),
    "requires-missing": (
        "warning",
        "Requires skills that do not exist here or are hidden: {names}. Add them to the sources, or correct "
        "`metadata.requires`.",
    ),
    "requires-circle": (
        "warning",
        "Skills require each other in a circle: {names}. They still load; remove one of the requirements.",
    ),
    "skill-gone": (
        "warning",
        "The loaded skill {name} no longer exists and was unloaded. Load another, or restore its file.",
    ),
    "frontmatter-key-too-large": (
        "warning",
        "The frontmatter key `{key}` is too large to be kept with the catalog and is ignored. Shorten it.",
    ),
    "invocation-unreadable": (
        "warning",
        "`agents/openai.yaml` cannot be read ({reason}), so it does not say who may start the skill. Repair the file, "
        "or write `disable-model-invocation: true` in `SKILL.md`.",
    ),
    "skill-refused": ("error", "The skill was not loaded: {reason}. Ask whoever runs the agent."),
    "load-unknown": (
        "warning",
        "The state called the skill {name} loaded, but nothing had loaded it, and {reason}. It is not loaded now. "
        "Use `load_skill`, a pin or `Preload`.",
    ),
    "pin-unknown": (
        "error",
        "No usable skill is named {name}, so nothing was pinned. Use a name from the catalog, "
        "or see the other problems.",
    ),
    "pins-not-a-list": (
        "error",
        "`pinned_skills` is {kind}, not a list, so nothing was pinned. Write a list of names: "
        "`pinned_skills=[{name}]`.",
    ),
    "skills-user-only": (
        "warning",
        "Only a user may start {count} of the skills, as their authors say (`disable-model-invocation`), and no slash "
        'command can: {names}. Set `slash_commands=True`, or show them with `visibility={{name: "always"}}`.',
    ),
    "catalog-replaced": (
        "warning",
        "A subclass of `SkillsMiddleware` returned a catalog of its own from `before_agent`; nothing reads it. "
        "Pass `NamespacedSource(path, namespace)` in `sources` to rename skills, or `visibility` to hide some.",
    ),
    "visibility-failed": (
        "error",
        "The visibility function raised for {name}: {reason}. The skill is hidden; check the function.",
    ),
    "extension-failed": (
        "error",
        "The extension {name} failed in `{method}`: {reason}. Check the extension.",
    ),
    "script-runner-missing": (
        "warning",
        "Scripts of skills cannot run: the backend has no shell, so `run_skill_script` is not offered. Use a backend "
        "with `execute`, or pass `SkillScripts(runner=...)`.",
    ),
    "checks-not-a-list": (
        "warning",
        "`checks` is {kind}, not a list, so nothing is checked. Write a list of checks, each with its kind.",
    ),
    "checks-too-many": ("warning", "Only the first {limit} checks of the skill count. Write fewer."),
    "check-too-long": (
        "warning",
        "Check {number} has more than {limit} characters and checks nothing. Shorten it.",
    ),
    "check-unknown-kind": (
        "warning",
        "Check {number} has the unknown kind {kind} and checks nothing. Known kinds: {known}.",
    ),
    "check-malformed": ("warning", "Check {number} {reason}, so it checks nothing. Correct it."),
    "check-holds-own-tool": (
        "warning",
        "Check {number} would hold `{tool}`, which skills themselves are used with, so it checks nothing. Remove it "
        "from `before`.",
    ),
    "check-circle": (
        "warning",
        "The check {check} holds a tool that it needs itself, alone or through other checks, so it holds nothing. "
        "Change its `before`.",
    ),
    "check-handler-unknown": (
        "warning",
        "The check {check} names a handler that does not exist here, so it checks nothing. Pass it in "
        "`SkillChecks(handlers=...)`.",
    ),
    "check-needs-scripts": (
        "warning",
        "The check {check} needs the tool `run_skill_script`, so it checks and holds nothing. Add `SkillScripts`.",
    ),
    "checks-in-fork": (
        "warning",
        "The skill {name} ran in a sub-agent without `SkillChecks`, so its checks were not judged. Give that agent the "
        "extension.",
    ),
    "checks-open": (
        "warning",
        "A turn ended while these checks of the skill {name} were open: {checks}. Look at what the agent did.",
    ),
    "sent-back-too-often": (
        "error",
        "The extension {name} sent the model back {limit} times in one turn; the answer stands as it is now. Let "
        "`before_end` give up sooner.",
    ),
    "middleware-order": (
        "warning",
        "A summarization middleware comes after the skills, so loaded skills that it summarizes cannot be put back. "
        "Put `SkillsMiddleware` after it.",
    ),
    "token-counter-failed": (
        "warning",
        "The token counter did not return a number: {reason}. The default is used instead; check `token_counter`.",
    ),
    "state-malformed": (
        "warning",
        "The private state {key} had the wrong shape and was set aside. Do not write private keys.",
    ),
    # Read without a warning, refused by the strict reading.
    "byte-order-mark": ("error", "The file starts with a byte order mark. Save it as UTF-8 without BOM."),
    "tab-in-frontmatter": (
        "error",
        "There is a tab in the frontmatter or after a `---`, which other readers refuse. Use spaces.",
    ),
    "flow-style": (
        "error",
        "The frontmatter uses YAML flow style (`[...]` or `{{...}}`). Write one item per line, or quote the value.",
    ),
    "dashes-in-frontmatter": (
        "error",
        "The frontmatter holds `---` between its fences, which other readers take for its end. Remove it.",
    ),
    "comment-misplaced": (
        "error",
        "A comment is between a key and its text, or touches `|` or `>`; other readers fail on it. "
        "Put it on a line of its own above the key.",
    ),
    "unknown-field": (
        "error",
        "Not in the specification: {keys}. Move further properties below `metadata:`.",
    ),
    "client-field": (
        "error",
        "Not in the specification, and read only at the top level: {keys}. Keep them there for the clients that read "
        "them; remove them where only the specification's keys are accepted.",
    ),
    "placeholder-left": (
        "warning",
        "Still a placeholder: the {parts}. Say in the description what the skill does and when to use it, and in the "
        "instructions how.",
    ),
    "foreign-field": (
        "warning",
        "Only {clients} reads {keys}; deepskills ignores it. Keep it for that client, or remove it.",
    ),
    "line-separator": (
        "error",
        "The frontmatter holds a Unicode line or paragraph separator, which readers treat differently. Remove it.",
    ),
}
"""Code to severity and message. Messages take the keyword arguments of `problem`."""


SOURCE_ERRORS = frozenset({"sources-failed", "source-failed", "source-incomplete"})
"""Codes of problems that are about a whole source; it is tried again at the next run."""


OF_ONE_RUN = frozenset({"pin-unknown", "pins-not-a-list"})
"""Codes of problems about what one run was asked to do; the next run begins without them."""


def problem(path: str, code: str, **values: object) -> SkillProblem:
    """Return the problem `code` at `path`; text in `values` becomes one clean line of bounded length."""
    severity, message = PROBLEMS[code]
    # A reason is often a whole sentence, and the message ends it as well.
    shown = {
        key: one_line(value)[:MAX_VALUE_LENGTH].removesuffix(".") if isinstance(value, str) else value
        for key, value in values.items()
    }
    return SkillProblem(path=path, code=code, severity=severity, message=message.format(**shown))


def quoted(text: str) -> str:
    """Return `text` in backticks, on one line and bounded."""
    line = one_line(text).replace("`", "'")
    if len(line) > MAX_QUOTED_LENGTH:
        line = f"{line[:MAX_QUOTED_LENGTH]}..."
    return f"`{line}`"


def listed(names: Iterable[str]) -> str:
    """Return the first few of `names`, quoted, and how many more there are."""
    distinct = list(dict.fromkeys(names))
    shown = ", ".join(quoted(name) for name in distinct[:MAX_LISTED])
    more = len(distinct) - MAX_LISTED
    return f"{shown} and {more} more" if more > 0 else shown
