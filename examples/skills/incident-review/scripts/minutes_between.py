#!/usr/bin/env python3
"""Print the minutes between points in time, as a Markdown table.

Each argument is LABEL=TIME, in the order in which the points follow each other.
Times are ISO 8601: 2024-05-01T14:02Z, 2024-05-01T16:02+02:00.
"""

from __future__ import annotations

import argparse
import re
import sys
from datetime import datetime, timezone

TIME = re.compile(
    r"^(\d{4}-\d{2}-\d{2})[T ](\d{2}:\d{2}(?::\d{2})?)\s*(Z|[+-]\d{2}:\d{2})?$"
)


def parse_point(text: str) -> tuple[str, datetime]:
    """Parse LABEL=TIME; the time keeps its zone, if it has one."""
    label, equals, value = text.partition("=")
    if not equals or not label.strip():
        msg = f"expected LABEL=TIME, got {text!r}"
        raise ValueError(msg)
    found = TIME.match(value.strip())
    if not found:
        msg = f"{label}: not a time such as 2024-05-01T14:02Z: {value!r}"
        raise ValueError(msg)
    zone = (found[3] or "").replace("Z", "+00:00")
    try:
        return label.strip(), datetime.fromisoformat(f"{found[1]}T{found[2]}{zone}")
    except ValueError as error:
        msg = f"{label}: {error}"
        raise ValueError(msg) from error


def check(points: list[tuple[str, datetime]]) -> None:
    """Raise ValueError if zones are mixed or the points are not in order."""
    naive = [label for label, moment in points if moment.tzinfo is None]
    if naive and len(naive) < len(points):
        msg = f"no time zone for {', '.join(naive)}, but for others; give it for all"
        raise ValueError(msg)
    for index in range(1, len(points)):
        if points[index][1] < points[index - 1][1]:
            msg = (
                f"{points[index][0]} is before {points[index - 1][0]}; "
                "check the order and the time zones"
            )
            raise ValueError(msg)


def show_minutes(start: datetime, end: datetime) -> str:
    """Format a duration in minutes; seconds are kept as a decimal."""
    minutes = round((end - start).total_seconds() / 60, 1)
    return f"{minutes:g}" if minutes % 1 else f"{minutes:.0f}"


def show_hours(start: datetime, end: datetime) -> str:
    """Format a duration in hours and minutes."""
    hours, minutes = divmod(round((end - start).total_seconds() / 60), 60)
    return f"{hours} h {minutes:02d} min"


def render(points: list[tuple[str, datetime]]) -> str:
    """Render the table; times with a zone are shown in UTC."""
    aware = points[0][1].tzinfo is not None
    first = points[0]
    lines = [
        f"| Point | Time{' (UTC)' if aware else ''} | Minutes since previous "
        f"| Minutes since {first[0]} | Total |",
        "| --- | --- | --- | --- | --- |",
    ]
    for index, (label, moment) in enumerate(points):
        shown = moment.astimezone(timezone.utc) if aware else moment
        text = shown.strftime("%Y-%m-%d %H:%M:%S" if shown.second else "%Y-%m-%d %H:%M")
        if index:
            since = show_minutes(points[index - 1][1], moment)
            total = show_minutes(first[1], moment)
            hours = show_hours(first[1], moment)
            lines.append(f"| {label} | {text} | {since} | {total} | {hours} |")
        else:
            lines.append(f"| {label} | {text} | | | |")
    return "\n".join(lines)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("points", nargs="+", metavar="LABEL=TIME")
    args = parser.parse_args()
    if len(args.points) == 1:
        parser.error("at least two points are needed")
    try:
        points = [parse_point(text) for text in args.points]
        check(points)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    sys.stdout.buffer.write(f"{render(points)}\n".encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
