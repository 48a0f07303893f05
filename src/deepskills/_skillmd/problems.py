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

_ERRORS = {
    # The file cannot be used.
    "file-too-large": (
        f"The file is {{size}} bytes; at most {MAX_SKILL_FILE_BYTES} are read. "
        "Move long material into files under references/."
    ),
    "not-text": "The file is not text ({reason}). Save it as UTF-8.",
    "no-frontmatter": (
        "There is no frontmatter. Start the file with a line `---`, then `name:` and `description:`, "
        "then a second line `---`."
    ),
    "frontmatter-unclosed": "The frontmatter is not closed. End it with a line that holds only `---`.",
    "frontmatter-too-large": (
        f"The frontmatter does not end within {MAX_FRONTMATTER_BYTES} bytes. "
        "Close it with a line `---`, and move long text below it."
    ),
    "yaml-unreadable": (
        "The frontmatter is not readable as YAML: {reason}. Write one `key: value` per line and quote values "
        "that hold special characters."
    ),
    "frontmatter-not-mapping": "The frontmatter is {found}, not a mapping. Write one `key: value` per line.",
    "description-missing": (
        "There is no description, so the model cannot tell when to use the skill. "
        "Add `description:` to the frontmatter."
    ),
    # A source, or what discovery found in it.
    "sources-failed": "The sources could not be resolved: {reason}. Check the function passed as `sources`.",
    "source-failed": (
        "The source could not be listed: {reason}. It is tried again at the next run; skills found earlier stay."
    ),
    "source-incomplete": "Part of the source could not be listed: {reason}. It is tried again at the next run.",
    # An agent that `deepskills doctor --agent` looks at.
    "agent-unusable": "The agent could not be looked at: {reason}. Correct that, and try again.",
    "agent-without-skills": (
        "No SkillsMiddleware was found in it. Pass one in its `middleware`, or name the middleware itself."
    ),
    "agent-conflict": "Skills would vanish: {reason}. Change the call as it says.",
    "plugin-invalid": (
        "The plugin is not used: {reason}. Correct its `plugin.json`, or name its directory `skills` as a source."
    ),
    "plugin-leads-out": (
        "The file lies outside the plugin {plugin}, so it is not used. Replace the link in the plugin with the files."
    ),
    # A server of skills, or what it listed.
    "mcp-not-declared": (
        "The MCP server {label} does not declare the skills extension. Ask its operator to serve "
        "`io.modelcontextprotocol/skills` (drafts before it are not read). A client of `mcp` 1.x may not be told: if "
        "the server does declare it, install `mcp` 2.x here."
    ),
    "mcp-entry-invalid": "An entry of the MCP server {label} is not used: {reason}. Its operator has to correct it.",
    "mcp-dynamic": (
        'The MCP server {label} does not say what is in this skill ("dynamic"), so what would be read is unknown. '
        "Pass `dynamic=True` to McpSkills to use such skills anyway."
    ),
    "mcp-too-large": "A skill of the MCP server {label} is too large: {reason}. Its operator has to divide it.",
    "mcp-mismatch": (
        "What the MCP server sent for {file} is not what it listed: {reason}. Nothing of it was used. Load the skill "
        "again to use what the server has now."
    ),
    "provided-invalid": (
        "The provider lists a skill that cannot be used: {reason}. The others are used; correct the provider."
    ),
    # What `deepskills gate` finds.
    "reference-dead": "The instructions name {reference}, and there is no such file. Add it, or correct the path.",
    "request-taken": (
        "The request {query} is this skill's, and {by} ranks first for it now. Tell their descriptions apart."
    ),
    "request-unwanted": (
        "The request {query} should not load this skill, and it ranks first for it now. Narrow its description."
    ),
    # A skill, what is asked of it, or a function of the application.
    "skill-unreadable": "The file could not be read: {reason}. Check that it exists and may be read.",
    "skill-not-a-file": "The SKILL.md here is not a regular file, so it was not opened. Replace it with a text file.",
    "skill-not-in-store": (
        "{which} is not in the store, or this user may not see it, so the agent goes without it. Correct `{option}`, "
        "or ask the skill's owner to share it."
    ),
    "skill-path-not-text": (
        "The path is not text (UTF-8), so the skill can be neither shown nor asked for. Rename the directory."
    ),
    "skill-refused": "The skill was not loaded: {reason}. Ask the operator of the agent.",
    "pin-unknown": (
        "No usable skill is named {name}, so nothing was pinned. Use a name from the catalog, "
        "or see the other problems."
    ),
    "pins-not-a-list": (
        "`pinned_skills` is {kind}, not a list, so nothing was pinned. Write a list of names: `pinned_skills=[{name}]`."
    ),
    "visibility-failed": (
        "The visibility function raised for {name}: {reason}. The skill is hidden; check the function."
    ),
    "extension-failed": "The extension {name} failed in `{method}`: {reason}. Check the extension.",
    "sent-back-too-often": (
        "The extension {name} sent the model back {limit} times in one turn; the answer stands as it is now. Let "
        "`before_end` give up sooner."
    ),
    # Read without a warning, refused by the strict reading.
    "byte-order-mark": "The file starts with a byte order mark. Save it as UTF-8 without BOM.",
    "tab-in-frontmatter": "There is a tab in the frontmatter or after a `---`, which other readers refuse. Use spaces.",
    "flow-style": (
        "The frontmatter uses YAML flow style (`[...]` or `{{...}}`). Write one item per line, or quote the value."
    ),
    "dashes-in-frontmatter": (
        "The frontmatter holds `---` between its fences, which other readers take for its end. Remove it."
    ),
    "comment-misplaced": (
        "A comment is between a key and its text, or touches `|` or `>`; other readers fail on it. "
        "Put it on a line of its own above the key."
    ),
    "unknown-field": "Not in the specification: {keys}. Move further properties below `metadata:`.",
    "client-field": (
        "Not in the specification, and read only at the top level: {keys}. Keep them there for the clients that read "
        "them; remove them where only the specification's keys are accepted."
    ),
    "line-separator": (
        "The frontmatter holds a Unicode line or paragraph separator, which readers treat differently. Remove it."
    ),
}
"""Messages by code: what keeps a file, a source or a request from being used."""

_WARNINGS = {
    # The file is used; its author slipped.
    "encoding-utf16": "The file is UTF-16. Save it as UTF-8.",
    "line-ends-cr": "Lines end with a bare carriage return. Save the file with LF line ends.",
    "text-before-frontmatter": (
        "There are blank lines or comments before the first `---`. Make it the first line of the file."
    ),
    "file-in-fence": (
        "The whole file is inside a Markdown fence. Delete its first and last line; the file starts with `---`."
    ),
    "fence-glued": "Text follows the closing `---` on the same line. Put the `---` on a line of its own.",
    "control-characters": (
        "Control, bidirectional or other invisible characters were removed from the frontmatter. Delete them."
    ),
    "yaml-repaired": (
        "Not valid YAML, so read as plain text: {keys}. Put the value in quotes, or indent it below its key."
    ),
    "yaml-too-deep": "Nested too deep, so read as plain text: {keys}. Keep frontmatter flat.",
    "yaml-line-lost": "Lines that belong to no key were ignored: {keys}. Remove them, or write `key: value`.",
    "yaml-duplicate-key": "Given more than once; the last one is used: {keys}. Remove the others.",
    "yaml-alias": (
        "YAML anchors, aliases and merge keys (`&`, `*`, `<<`) are not expanded. Write the value out, or quote it."
    ),
    "yaml-tag": "YAML tags (`!`) are ignored. Write the plain value, or quote it.",
    "name-missing": "There is no name, so {name} is used. Add `name:` to the frontmatter.",
    "name-invalid": (
        "The name {name} breaks the naming rules. Use lower-case letters, digits and single hyphens between them."
    ),
    "name-too-long": f"The name is {{length}} characters long; the specification allows {MAX_NAME_LENGTH}. Shorten it.",
    "name-directory-mismatch": "The name {name} is not the directory's name {directory}. Rename one of them.",
    "description-too-long": (
        f"The description is {{length}} characters long and was cut at {MAX_DESCRIPTION_LENGTH}. Shorten it."
    ),
    "compatibility-too-long": (
        f"The compatibility note is {{length}} characters long and was cut at {MAX_COMPATIBILITY_LENGTH}. Shorten it."
    ),
    "field-not-text": "Expected text, got a list or a mapping, which was read as text: {keys}. Write it as one text.",
    "metadata-not-mapping": "`metadata` is not a mapping and was ignored. Write one `key: value` per line below it.",
    "metadata-value-not-text": (
        "Metadata values must be text; a list or mapping was read as text: {keys}. Write each as one text."
    ),
    "allowed-tools-invalid": (
        "`allowed-tools` is neither text nor a list and was ignored. Write tool names with spaces between them."
    ),
    # A source, or what discovery found in it.
    "source-missing": (
        "There is no such directory. Create it, remove it from the sources, or pass `OptionalSource(path)` if it "
        "may be missing."
    ),
    "source-empty": "No skill was found here. Put each skill into a directory of its own with a `SKILL.md`.",
    "source-cut": f"Only the first {MAX_DIRECTORIES} directories were searched. Name a directory nearer to the skills.",
    # An agent that `deepskills doctor --agent` looks at.
    "agent-lacks-tools": (
        "The skill names tools that the agent does not have: {names}. Give them to the agent, or correct `{key}`."
    ),
    "cache-broken": (
        '`loaded_status="system_prompt"` changes the prompt at each load and unload, and {provider} caches prompts by '
        'their beginning. Leave it at "auto".'
    ),
    "unload-cheap-in-vain": (
        '`unload_when="cheap"` keeps texts for the sake of prompt caches, which `loaded_status="system_prompt"` breaks '
        'at each load and unload. Leave one of them at "auto".'
    ),
    "budget-over-window": (
        "`max_loaded_tokens={budget}` lets skills take more than a quarter of the model's window of {window} tokens. "
        "Set at most {fitting}, or leave it out."
    ),
    "plugin-key-unknown": (
        "The plugin's manifest has the keys {names}, which mean nothing in its format as they stand. Remove them, or "
        "move them into the object `extensions`."
    ),
    "plugin-mcp-invalid": (
        "The plugin's MCP servers are not as its format says: {reason}. Correct its `mcp.json`; its skills are used."
    ),
    # A server of skills, or what it listed.
    "mcp-listing-cut": (
        "The list of skills of the MCP server {label} was cut: {reason}. Bring a skill that is missing by its URI."
    ),
    "provided-location": (
        "The provider names no usable directory for this skill: {reason}. Its files are known by address alone."
    ),
    "mcp-renamed": (
        "Another skill has the name of this served one ({other}), so it is called {name} here. Rename the label or the "
        "other skill."
    ),
    # A skill, what is asked of it, or a function of the application.
    "skill-file-misnamed": (
        "The file is named {found}; agents read only `SKILL.md`, so the skill does not exist for them. Rename it."
    ),
    "skill-too-deep": (
        "The skill lies {depth} directories below its source, deeper than agents look by default. "
        "Set `max_depth={depth}`, or name {parent} as a source."
    ),
    "installed-differs": "The skill was brought by {installer}, and {what}. Look at the files, then run `{command}`.",
    "lock-unreadable": "The lock cannot be used: {reason}. Restore it from your version control.",
    "skill-shadowed": (
        "Another skill named {name} in a later source is used instead: {winner}. Rename one if both are wanted."
    ),
    "skill-duplicate": "Another skill named {name} in the same source is used instead: {winner}. Rename or remove one.",
    "requires-missing": (
        "Requires skills that do not exist here or are hidden: {names}. Add them to the sources, or correct "
        "`metadata.requires`."
    ),
    "requires-circle": (
        "Skills require each other in a circle: {names}. They still load; remove one of the requirements."
    ),
    "skill-gone": "The loaded skill {name} no longer exists and was unloaded. Load another, or restore its file.",
    "frontmatter-key-too-large": (
        "The frontmatter is too large to be kept with the catalog, so its largest keys are ignored: {keys}. Shorten it."
    ),
    "invocation-unreadable": (
        "`agents/openai.yaml` cannot be read ({reason}), so it does not say who may start the skill. Repair the file, "
        "or write `disable-model-invocation: true` in `SKILL.md`."
    ),
    "load-unknown": (
        "The state called the skill {name} loaded, but nothing had loaded it, and {reason}. It is not loaded now. "
        "Use `load_skill`, a pin or `Preload`."
    ),
    "skills-user-only": (
        "Only a user may start {count} of the skills, as their authors say (`disable-model-invocation`), and no slash "
        'command can: {names}. Set `slash_commands=True`, or show them with `visibility={{name: "always"}}`.'
    ),
    "catalog-replaced": (
        "A subclass of `SkillsMiddleware` returned a catalog of its own from `before_agent`; nothing reads it. "
        "Pass `NamespacedSource(path, namespace)` in `sources` to rename skills, or `visibility` to hide some."
    ),
    "script-runner-missing": (
        "Scripts of skills cannot run: the backend has no shell, so `run_skill_script` is not offered. Use a backend "
        "with `execute`, or pass `SkillScripts(runner=...)`."
    ),
    "checks-not-a-list": (
        "`checks` is {kind}, not a list, so nothing is checked. Write a list of checks, each with its kind."
    ),
    "checks-too-many": "Only the first {limit} checks of the skill count. Write fewer.",
    "check-too-long": "Check {number} has more than {limit} characters and checks nothing. Shorten it.",
    "check-unknown-kind": "Check {number} has the unknown kind {kind} and checks nothing. Known kinds: {known}.",
    "check-malformed": "Check {number} {reason}, so it checks nothing. Correct it.",
    "check-holds-own-tool": (
        "Check {number} would hold `{tool}`, which skills themselves are used with, so it checks nothing. Remove it "
        "from `before`."
    ),
    "check-circle": (
        "The check {check} holds a tool that it needs itself, alone or through other checks, so it holds nothing. "
        "Change its `before`."
    ),
    "check-handler-unknown": (
        "The check {check} names a handler that does not exist here, so it checks nothing. Pass it in "
        "`SkillChecks(handlers=...)`."
    ),
    "check-needs-scripts": (
        "The check {check} needs the tool `run_skill_script`, so it checks and holds nothing. Add `SkillScripts`."
    ),
    "checks-in-fork": (
        "The skill {name} ran in a sub-agent without `SkillChecks`, so its checks were not judged. Give that agent the "
        "extension."
    ),
    "checks-open": (
        "A turn ended while these checks of the skill {name} were open: {checks}. Look at what the agent did."
    ),
    "middleware-order": (
        "A summarization middleware comes after the skills, so loaded skills that it summarizes cannot be put back. "
        "Put `SkillsMiddleware` after it."
    ),
    "token-counter-failed": (
        "The token counter did not return a number: {reason}. The default is used instead; check `token_counter`."
    ),
    "state-malformed": "The private state {key} had the wrong shape and was set aside. Do not write private keys.",
    # Read without a warning, refused by the strict reading.
    "placeholder-left": (
        "Still a placeholder: the {parts}. Say in the description what the skill does and when to use it, and in the "
        "instructions how."
    ),
    "foreign-field": "Only {clients} reads {keys}; deepskills ignores it. Keep it for that client, or remove it.",
}
"""Messages by code: what is used all the same."""

PROBLEMS: dict[str, tuple[Severity, str]] = {
    **{code: ("error", message) for code, message in _ERRORS.items()},
    **{code: ("warning", message) for code, message in _WARNINGS.items()},
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
