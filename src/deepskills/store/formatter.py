"""Writes skills as text for people and models. Pure."""

import re
from collections.abc import Iterable

from deepskills._skillmd.text import clean, one_line
from deepskills._types import SKILL_FILE
from deepskills.store.db.models import Skill, SkillFile

_BACKTICKS = re.compile(r"`{3,}")
_Tree = dict[str, "_Tree"]


class SkillFormatter:
    """Writes skills as Markdown: one in full, many as a list, the files of one as a tree.

    The methods work on the class as well as on an instance.
    """

    @classmethod
    def format_skill_content(cls, skill: Skill, include_file_contents: bool = True) -> str:  # noqa: FBT001, FBT002 - callers pass it by name or by place
        """Return a skill's instructions and files.

        For binary files, and those whose content was not read, only the size is shown.
        """
        lines = [f"# {one_line(skill.name)}", "", one_line(skill.description), ""]
        if skill.tags:
            lines += [f"Tags: {', '.join(map(one_line, skill.tags))}", ""]
        body = clean(skill.content).strip("\n") if skill.has_text else ""
        lines += [body, ""] if body else []
        if skill.has_files and skill.files:
            lines += ["## Files", ""]
            for file in _in_order(skill.files):
                lines += cls._file(file, with_content=include_file_contents)
        return "\n".join(lines).rstrip("\n") + "\n"

    @staticmethod
    def format_skill_list(skills: Iterable[Skill]) -> str:
        """Return one line per skill: its name, owner, description and tags."""
        lines = [_list_line(skill) for skill in skills]
        return "\n".join(lines) + "\n" if lines else "No skills.\n"

    @staticmethod
    def format_skill_structure(skill: Skill) -> str:
        """Return the skill's directory as a tree."""
        tree: _Tree = {SKILL_FILE: {}}
        for file in skill.files if skill.has_files else ():
            branch = tree
            for part in file.path.split("/"):
                branch = branch.setdefault(part, {})
        return "\n".join([f"{one_line(skill.name)}/", *_branches(tree, "")]) + "\n"

    @staticmethod
    def _file(file: SkillFile, *, with_content: bool) -> list[str]:
        path = one_line(file.path)
        if not with_content:
            return [f"- `{path}` ({_size(file)})"]
        if not file.has_content or not file.is_text:
            return [f"### `{path}`", "", f"({_size(file)})", ""]
        text = clean(str(file.content)).rstrip("\n")
        # A fence longer than any in the text cannot be closed by it.
        fence = "`" * max([3, *(len(run) + 1 for run in _BACKTICKS.findall(text))])
        return [f"### `{path}`", "", fence, text, fence, ""]


def _list_line(skill: Skill) -> str:
    whose = "system" if skill.owner_id is None else "public" if skill.is_public else "private"
    tags = f" [{', '.join(map(one_line, skill.tags))}]" if skill.tags else ""
    return f"- **{one_line(skill.name)}** ({whose}): {one_line(skill.description)}{tags}"


def _in_order(files: Iterable[SkillFile]) -> list[SkillFile]:
    return sorted(files, key=lambda file: file.path)


def _size(file: SkillFile) -> str:
    kind = "" if file.is_text else "binary, "
    return f"{kind}{file.size:,} bytes"


def _branches(tree: _Tree, indent: str) -> list[str]:
    lines: list[str] = []
    names = sorted(tree)
    for name in names:
        is_last = name == names[-1]
        lines.append(f"{indent}{'└── ' if is_last else '├── '}{one_line(name)}{'/' if tree[name] else ''}")
        lines += _branches(tree[name], indent + ("    " if is_last else "│   "))
    return lines
