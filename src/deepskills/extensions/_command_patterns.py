"""Which shell commands a pattern such as `git add:*` covers. Pure.

A pattern is the start of a command, in whole words. It covers a command only if a POSIX shell would run that program
and nothing else: a command that holds an operator, an expansion that can run code, or anything that a shell, a terminal
or a code page could take for one is covered by no pattern, whether it is quoted or not.
"""

import re
import unicodedata
from dataclasses import dataclass
from fnmatch import fnmatchcase

_OPERATORS = frozenset(";&|<>`")
_UNJUDGED = re.compile(
    r"[;&|<>`\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]"  # operators, control characters, what is not text
    r"|\$[({\[]"  # command substitution, parameter expansion with operators, arithmetic
)
_TOKEN = re.compile(
    r"\\."  # an escaped character
    r"|'[^']*+'"
    r'|"(?:[^"\\]|\\.)*+"'
    r"|[^\\'\"()$#]++"
    r"|\$(?![\"'])"  # neither $'...' nor $"..."
    r"|#"
)
_MAX_EXPANDED = 256
"""Longest word with a wildcard that is compared; a longer one could be anything."""

_QUOTES_OF_SOME_SHELL = frozenset("‘’‚‛“”„")


@dataclass(frozen=True)
class CommandPattern:
    """A pattern as it stands between the parentheses of a rule; one of an unknown shape covers nothing."""

    start: str
    is_open: bool
    """Whether more words may follow."""

    is_known: bool = True

    @classmethod
    def parse(cls, text: str) -> "CommandPattern":
        """Read `git add:*` or `git add *` (a start), or `git status` (that command alone)."""
        text = text.strip(" ")
        start = text
        for ending in (":*", " *"):
            start = start.removesuffix(ending) if start == text else start
        if text == "*":
            start = ""
        return cls(start.rstrip(" "), is_open=start != text, is_known="*" not in start and bool(text))

    def covers(self, command: object) -> bool:
        """Whether a command starts as the pattern says, and could not run anything else."""
        if not self.is_known or not isinstance(command, str) or not is_plain(command):
            return False
        command = command.strip(" ")
        if not self.start:
            return bool(command)
        return command == self.start or (self.is_open and command.startswith(f"{self.start} "))

    def could_match(self, command: object) -> bool:
        """Whether a command could run what the pattern names: its words occur, in their order; in doubt it could."""
        if not self.is_known or not isinstance(command, str) or not is_plain(command) or not self.start:
            return True
        if set("'\"\\$") & set(command):
            return True
        words = iter(command.replace("=", " ").split(" "))
        return all(any(_could_be(word, wanted) for word in words) for wanted in self.start.split(" ") if wanted)


def is_plain(command: str) -> bool:
    """Whether a command is words alone: one program and its arguments, quoted or not."""
    if _UNJUDGED.search(command) or not (command.isascii() or _is_harmless(command)):
        return False
    position = 0
    while position < len(command):
        token = _TOKEN.match(command, position)
        if token is None:  # a quote without its partner, a parenthesis outside of quotes, a backslash at the end
            return False
        position = token.end()
    return True


def _is_harmless(command: str) -> bool:
    """Whether no character is invisible, or stands for an operator, a space or a quote in some shell or code page."""
    characters = {character for character in command if not character.isascii()}
    if characters & _QUOTES_OF_SOME_SHELL or any(
        unicodedata.category(c) in {"Cf", "Zs", "Co", "Cn"} for c in characters
    ):
        return False
    return not any(set(unicodedata.normalize("NFKC", c)) & (_OPERATORS | set("$'\"\\")) for c in characters)


def _could_be(word: str, wanted: str) -> bool:
    """Whether a shell could make a wanted word of this one, by its path or by what it expands to."""
    expands = set("*?[{") & set(word)
    if expands & set("[{") or (expands and len(word) > _MAX_EXPANDED):
        return True
    is_same = fnmatchcase if expands else str.__eq__
    return is_same(_base_name(wanted), _base_name(word))


def _base_name(word: str) -> str:
    return word.rstrip("/").rpartition("/")[2]
