#!/usr/bin/env python3
"""Check the action items of an incident review.

Reads a Markdown file with a table that has the columns Action, Type, Owner, Due
and Done when; other columns are ignored. Exit status: 0 if no problem was found,
1 if there are problems, 2 if the file cannot be used.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from datetime import date
from pathlib import Path

COLUMNS = ("action", "type", "owner", "due", "done when")
TYPES = ("prevent", "detect", "mitigate", "process")
PLACEHOLDER = re.compile(
    r"^(|-|\?|tbd|tba|todo|n/?a|none|unknown|<.*>)$", re.IGNORECASE
)
GROUP = re.compile(
    r"\b(everyone|everybody|all|we|us|(team|department|group)(?! (lead|manager)))\b",
    re.IGNORECASE,
)
SEVERAL = re.compile(r"[,;/&+]|\band\b|\bor\b", re.IGNORECASE)
VAGUE = re.compile(
    r"^(improve|consider|look into|investigate|review|discuss|think about|try to|"
    r"be (more )?careful|ensure|make sure|explore|enhance|optimi[sz]e)\b",
    re.IGNORECASE,
)
REMINDER = re.compile(
    r"\b(remind|more careful|pay attention|double[- ]check|raise awareness)\b",
    re.IGNORECASE,
)
SEPARATOR = re.compile(r"^:?-+:?$")
CELL = re.compile(r"(?<!\\)\|")
SHORTEST_ACTION = 4
MOST_ITEMS = 7


def cells_of(line: str) -> list[str]:
    """Split one table line into its cells."""
    text = line.strip().removeprefix("|")
    text = text[:-1] if text.endswith("|") and not text.endswith("\\|") else text
    return [cell.strip() for cell in CELL.split(text)]


def read_items(text: str) -> list[tuple[int, dict[str, str]]]:
    """Return (line number, cells by column) of the first table with all columns."""
    header: list[str] = []
    items: list[tuple[int, dict[str, str]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if "|" not in line:
            if header:
                break
            continue
        cells = cells_of(line)
        if not header:
            names = [cell.lower() for cell in cells]
            if "action" in names and "owner" in names:
                missing = [column for column in COLUMNS if column not in names]
                if missing:
                    msg = f"line {number}: missing columns: {', '.join(missing)}"
                    raise ValueError(msg)
                header = names
        elif not all(SEPARATOR.match(cell) for cell in cells):
            padded = cells + [""] * (len(header) - len(cells))
            items.append((number, {name: padded[i] for i, name in enumerate(header)}))
    if not header:
        msg = f"no table with the columns {', '.join(COLUMNS)}"
        raise ValueError(msg)
    if not items:
        msg = "the table has no action items"
        raise ValueError(msg)
    return items


def check_action(action: str) -> list[str]:
    """Return the problems of the action text."""
    if PLACEHOLDER.match(action):
        return ["action is empty or a placeholder"]
    problems = []
    vague = VAGUE.match(action)
    if vague:
        problems.append(f"starts with {vague[0]!r}: say what will be different")
    if REMINDER.search(action):
        problems.append("relies on people being careful: change the system instead")
    if len(action.split()) < SHORTEST_ACTION:
        problems.append("action is too short to be checked")
    return problems


def check_owner(owner: str) -> list[str]:
    """Return the problems of the owner."""
    if PLACEHOLDER.match(owner):
        return ["no owner"]
    if GROUP.search(owner) or SEVERAL.search(owner):
        return [f"owner {owner!r} is not one person or role"]
    return []


def check_due(due: str, today: date | None) -> list[str]:
    """Return the problems of the due date."""
    if PLACEHOLDER.match(due):
        return ["no due date"]
    try:
        day = date.fromisoformat(due)
    except ValueError:
        return [f"due date {due!r} is not a date such as 2024-06-14"]
    if today is not None and day < today:
        return [f"due date {due} has passed"]
    return []


def check_item(item: dict[str, str], today: date | None) -> list[str]:
    """Return all problems of one item."""
    problems = check_action(item["action"])
    if item["type"].lower() not in TYPES:
        problems.append(f"type {item['type']!r} is not one of {', '.join(TYPES)}")
    problems += check_owner(item["owner"])
    problems += check_due(item["due"], today)
    if PLACEHOLDER.match(item["done when"]):
        problems.append("'done when' is missing: name the evidence")
    return problems


def check_all(items: list[tuple[int, dict[str, str]]], today: date | None) -> list[str]:
    """Return the problems of all items and of the list as a whole."""
    problems = []
    seen: dict[str, int] = {}
    for number, item in items:
        problems += [f"line {number}: {text}" for text in check_item(item, today)]
        key = item["action"].lower()
        if key in seen:
            problems.append(f"line {number}: same action as line {seen[key]}")
        seen.setdefault(key, number)
    if not any(item["type"].lower() in {"prevent", "detect"} for _, item in items):
        problems.append("list: no item of type prevent or detect")
    if len(items) > MOST_ITEMS:
        problems.append(f"list: {len(items)} items; keep the best {MOST_ITEMS}")
    return problems


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "file", nargs="?", default="-", help="Markdown file (default: standard input)"
    )
    parser.add_argument(
        "--today", help="report due dates before this date, as YYYY-MM-DD"
    )
    args = parser.parse_args()
    try:
        today = date.fromisoformat(args.today) if args.today else None
    except ValueError as error:
        parser.error(f"--today: {error}")
    try:
        if args.file == "-":
            raw = io.BytesIO(sys.stdin.buffer.read())
            text = io.TextIOWrapper(raw, encoding="utf-8-sig").read()
        else:
            text = Path(args.file).read_text(encoding="utf-8-sig")
        items = read_items(text)
    except OSError as error:
        print(f"error: cannot read {args.file}: {error.strerror}", file=sys.stderr)
        return 2
    except UnicodeDecodeError:
        print(f"error: {args.file} is not UTF-8 text", file=sys.stderr)
        return 2
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    problems = check_all(items, today)
    for problem in problems:
        sys.stdout.buffer.write(f"{problem}\n".encode())
    summary = f"{len(items)} action item(s), {len(problems)} problem(s)\n"
    sys.stdout.buffer.write(summary.encode())
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
