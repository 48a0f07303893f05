#!/usr/bin/env python3
"""Group commit subject lines by conventional-commit kind, as Markdown.

Reads one subject per line on standard input. Lines may start with a commit
hash, as `git log --oneline` prints them, if all lines do.
"""

from __future__ import annotations

import argparse
import io
import re
import sys

BREAKING = "Breaking changes"
OTHER = "Other"

# Kind -> section title. The order here is the order of the output.
SECTIONS: dict[str, str] = {
    "feat": "Features",
    "fix": "Fixes",
    "perf": "Performance",
    "revert": "Reverts",
    "docs": "Documentation",
    "refactor": "Refactoring",
    "style": "Code style",
    "test": "Tests",
    "build": "Build",
    "ci": "CI",
    "chore": "Chores",
}
ALIASES: dict[str, str] = {
    "feature": "feat",
    "bugfix": "fix",
    "hotfix": "fix",
    "doc": "docs",
    "tests": "test",
}
INTERNAL = ("refactor", "style", "test", "build", "ci", "chore")

HASH = re.compile(r"^(?P<hash>[0-9a-f]{7,40})\s+(?P<rest>\S.*)$")
SUBJECT = re.compile(
    r"^(?P<kind>[A-Za-z]+)(?:\((?P<scope>[^()]+)\))?(?P<bang>!)?:\s+(?P<text>\S.*)$"
)
GIT_REVERT = re.compile(r'^Revert "(?P<text>.+)"(?P<tail>.*)$')
MERGE = re.compile(r"^Merge (branch|pull request|remote-tracking branch|tag) ")


def split_hashes(lines: list[str]) -> list[tuple[str, str]]:
    """Return (hash, subject) pairs; the hash is empty unless all lines have one."""
    matches = [HASH.match(line) for line in lines]
    pairs = [(found["hash"], found["rest"]) for found in matches if found]
    if len(pairs) == len(lines):
        return pairs
    return [("", line) for line in lines]


def classify(subject: str) -> tuple[str, str]:
    """Return the section title and the entry text for one subject line."""
    reverted = GIT_REVERT.match(subject)
    if reverted:
        return SECTIONS["revert"], f"{reverted['text']}{reverted['tail']}"
    found = SUBJECT.match(subject)
    if not found:
        return OTHER, subject
    kind = found["kind"].lower()
    kind = ALIASES.get(kind, kind)
    scope = found["scope"]
    entry = f"**{scope.strip()}:** {found['text']}" if scope else found["text"]
    if found["bang"]:
        return BREAKING, entry
    if kind not in SECTIONS:
        return OTHER, subject
    return SECTIONS[kind], entry


def group(lines: list[str]) -> dict[str, list[str]]:
    """Group subject lines by section, in output order, without duplicates."""
    groups: dict[str, list[str]] = {BREAKING: []}
    groups.update({title: [] for title in SECTIONS.values()})
    groups[OTHER] = []
    seen: set[str] = set()
    for commit, subject in split_hashes(lines):
        if MERGE.match(subject) or subject in seen:
            continue
        seen.add(subject)
        title, entry = classify(subject)
        groups[title].append(f"{entry} `{commit}`" if commit else entry)
    return groups


def render(groups: dict[str, list[str]], level: int) -> str:
    """Render the groups that have entries as Markdown sections."""
    parts = []
    for title, entries in groups.items():
        if entries:
            bullets = "\n".join(f"- {entry}" for entry in entries)
            parts.append(f"{'#' * level} {title}\n\n{bullets}\n")
    return "\n".join(parts)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description="Group commit subject lines from standard input as Markdown.",
        epilog="example: git log --no-merges --format=%%s v1.0..HEAD | %(prog)s",
    )
    parser.add_argument(
        "--user-facing",
        action="store_true",
        help="leave out refactoring, style, tests, build, CI and chores",
    )
    parser.add_argument(
        "--level",
        type=int,
        default=2,
        choices=range(1, 7),
        help="heading level of the sections (default: 2)",
    )
    args = parser.parse_args()

    if sys.stdin.isatty():
        parser.error("no input: pipe subject lines in, one per line")
    stream = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig", errors="replace")
    lines = [line.strip() for line in stream if line.strip()]
    if not lines:
        print("error: no subject lines on standard input", file=sys.stderr)
        return 1

    groups = group(lines)
    if args.user_facing:
        for kind in INTERNAL:
            groups.pop(SECTIONS[kind])
    output = render(groups, args.level)
    if not output:
        print("error: nothing left to list after filtering", file=sys.stderr)
        return 1
    sys.stdout.buffer.write(output.encode("utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
