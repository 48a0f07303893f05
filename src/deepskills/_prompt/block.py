"""A loaded skill as the model reads it: the whole file, marked off, and the list of its files. Pure."""

import html
import re

from deepskills._catalog.entries import SkillEntry
from deepskills._files.inventory import Inventory
from deepskills._prompt.fields import field_text, shown_name, shown_path

MAX_OTHER_DIRECTORIES = 20
"""How many further directories of a skill the result of a load names."""

_BLOCK_START = "<skill_content "
_BLOCK_END = "</skill_content>"
_HIDDEN = (
    r"[\s\u0000-\u001f\u007f-\u00a0\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    r"\u2028-\u202f\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001d173-\U0001d17a"
    r"\U000e0000-\U000e0fff]*+"
)
"""Any run of characters that nobody sees; they do not make another tag of a tag."""
_BLOCK_TAG = re.compile(f"<(?={_HIDDEN}(?:/{_HIDDEN})?{_HIDDEN.join('skill_content')})", re.IGNORECASE)


def skill_block(entry: SkillEntry, text: str, inventory: Inventory, shell_directory: str | None = None) -> str:
    """Return a skill's whole file, marked off so that nothing in it can pass for its end, and its files.

    `shell_directory` is where a shell finds the skill, if that is not the path that file tools take.
    """
    name = html.escape(shown_name(entry.name), quote=True)
    path = html.escape(shown_path(entry.path), quote=True)
    directory = entry.path.rpartition("/")[0] or "/"
    lines = [
        f'{_BLOCK_START}name="{name}" path="{path}">',
        harmless_body(text).rstrip("\n"),
        _BLOCK_END,
        "",
        f"Skill directory: `{shown_path(directory)}`",
    ]
    if shell_directory is not None and shell_directory != directory:
        lines.append(f"In shell commands, use `{shown_path(shell_directory)}` for that directory.")
    return "\n".join([*lines, *_inventory_lines(inventory)])


def harmless_body(text: str) -> str:
    """Return instructions in which nothing can pass for the end of the block."""
    return _BLOCK_TAG.sub("&lt;", text)


def _inventory_lines(inventory: Inventory) -> list[str]:
    lines = []
    if inventory.resources:
        lines.append("Resources:")
        lines += [f"- [{resource['type']}] `{shown_path(resource['path'])}`" for resource in inventory.resources]
    if inventory.more:
        lines.append(f"({inventory.more} more resources are not listed; list the directories above to see them.)")
    if inventory.other_directories:
        shown = [f"`{shown_path(name)}`" for name in inventory.other_directories[:MAX_OTHER_DIRECTORIES]]
        rest = len(inventory.other_directories) - len(shown)
        lines.append(f"Other directories: {', '.join(shown)}{f' and {rest} more' if rest else ''}")
    if inventory.failure:
        lines.append(f"(The skill's files could not all be listed: {field_text(inventory.failure, 200)})")
    return lines
