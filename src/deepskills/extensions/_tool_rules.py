"""Items of `allowed-tools` and `disallowed-tools`: which calls each is about. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deepskills._format.text import one_line
from deepskills.extensions._command_patterns import CommandPattern

MAX_RULE_CHARACTERS = 80
"""How much of a rule or a name is shown."""

_SHELL_ARGUMENTS = frozenset({"command", "timeout"})
_RULE = re.compile(r"([^()\s]+)\((.*)\)", re.DOTALL)


@dataclass(frozen=True)
class Rule:
    """One item of `allowed-tools` or `disallowed-tools`."""

    text: str
    tools: frozenset[str]
    pattern: CommandPattern | None
    """What has to be true of the command, if anything."""

    shell: str

    def covers(self, tool: str, arguments: Mapping[str, Any]) -> bool:
        """Whether the rule allows a call; what it says of other tools than the shell cannot be judged."""
        if tool not in self.tools or self.pattern is None:
            return tool in self.tools
        is_judged = tool == self.shell and arguments.keys() <= _SHELL_ARGUMENTS
        return is_judged and self.pattern.covers(arguments.get("command"))

    def forbids(self, tool: str, arguments: Mapping[str, Any]) -> bool:
        """Whether the rule, as one that forbids, could be about a call."""
        if tool not in self.tools or self.pattern is None or tool != self.shell:
            return tool in self.tools
        return not arguments.keys() <= _SHELL_ARGUMENTS or self.pattern.could_match(arguments.get("command"))

    def offers(self, tool: str) -> bool:
        """Whether some call of a tool is allowed."""
        return tool in self.tools and (self.pattern is None or (tool == self.shell and self.pattern.is_known))

    def withholds(self, tool: str) -> bool:
        """Whether, as a rule that forbids, it forbids every call of a tool."""
        return tool in self.tools and (self.pattern is None or tool != self.shell)

    def shown(self) -> str:
        """The rule in the agent's words."""
        name = next(iter(self.tools - {self.text}), self.text) if self.pattern is None else self.text
        return one_line(name)[:MAX_RULE_CHARACTERS]


def parse_rules(texts: tuple[str, ...], aliases: Mapping[str, str], shell: str) -> tuple[Rule, ...]:
    """Return the rules that texts such as `Read` or `Bash(git add:*)` stand for."""
    rules = []
    for text in dict.fromkeys(texts):
        matched = _RULE.fullmatch(text)
        name = matched[1] if matched else text.partition("(")[0]
        pattern = CommandPattern.parse(matched[2]) if matched else None
        if matched is None and name != text:  # parentheses that are not closed
            pattern = CommandPattern.parse("")
        rules.append(Rule(text, frozenset({name, aliases.get(name, name)}), pattern, shell))
    return tuple(rules)
