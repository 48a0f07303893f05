#!/usr/bin/env python3
"""Sort incident events by time and print them as a Markdown table in UTC.

Each line of the file, or of standard input, is `time | event` or
`time | event | source`. Times are ISO 8601, such as 2024-05-01T14:02:00Z or
2024-05-01 16:02 +02:00. With --date, times of day such as 14:02 are accepted as
well. Blank lines and lines that start with # are ignored.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from datetime import date, datetime, timedelta, timezone
from pathlib import Path

TIME = re.compile(
    r"^(?:(?P<day>\d{4}-\d{2}-\d{2})[T ])?(?P<clock>\d{1,2}:\d{2}(?::\d{2})?)"
    r"(?:\.\d+)?\s*(?P<zone>Z|UTC|[+-]\d{2}:?\d{2})?$",
    re.IGNORECASE,
)
OFFSET = re.compile(r"^(?P<sign>[+-])(?P<hours>\d{2}):?(?P<minutes>\d{2})$")


def parse_zone(text: str) -> timezone:
    """Parse Z, UTC or an offset such as +02:00."""
    if text.upper() in {"Z", "UTC"}:
        return timezone.utc
    found = OFFSET.match(text)
    if not found:
        msg = f"not a UTC offset such as +02:00: {text!r}"
        raise ValueError(msg)
    delta = timedelta(hours=int(found["hours"]), minutes=int(found["minutes"]))
    return timezone(-delta if found["sign"] == "-" else delta)


def parse_time(text: str, day: date | None, zone: timezone | None) -> datetime:
    """Parse one time and convert it to UTC."""
    found = TIME.match(text)
    if not found:
        msg = f"not a time such as 2024-05-01T14:02Z: {text!r}"
        raise ValueError(msg)
    if not found["day"] and day is None:
        msg = f"{text!r} has no date; give one with --date"
        raise ValueError(msg)
    if not found["zone"] and zone is None:
        msg = f"{text!r} has no time zone; add Z or an offset, or use --assume-tz"
        raise ValueError(msg)
    clock = found["clock"].zfill(len("00:00"))
    if clock.count(":") > 1:
        clock = clock.zfill(len("00:00:00"))
    moment = datetime.fromisoformat(f"{found['day'] or day}T{clock}")
    actual = parse_zone(found["zone"]) if found["zone"] else zone
    return moment.replace(tzinfo=actual).astimezone(timezone.utc)


def parse_line(
    line: str, day: date | None, zone: timezone | None
) -> tuple[datetime, str, str]:
    """Split one line into time, event and source."""
    parts = [part.strip() for part in line.split("|", 2)]
    if len(parts) == 1 or not parts[1]:
        msg = "expected 'time | event' or 'time | event | source'"
        raise ValueError(msg)
    moment, event, source = [*parts, ""][:3]
    return parse_time(moment, day, zone), event, source.replace("|", "\\|")


def render(events: list[tuple[datetime, str, str]], gap: int | None) -> str:
    """Render sorted events as a table, with a row for each long gap."""
    seconds = any(moment.second for moment, _, _ in events)
    form = "%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M"
    lines = ["| Time (UTC) | Event | Source |", "| --- | --- | --- |"]
    previous: datetime | None = None
    for moment, event, source in events:
        if gap is not None and previous is not None:
            minutes = (moment - previous).total_seconds() / 60
            if minutes > gap:
                lines.append(f"| | *gap of {minutes:.0f} minutes* | |")
        lines.append(f"| {moment.strftime(form)} | {event} | {source} |")
        previous = moment
    return "\n".join(lines)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "file", nargs="?", default="-", help="file of events (default: standard input)"
    )
    parser.add_argument("--date", help="date of times of day, as YYYY-MM-DD")
    parser.add_argument(
        "--assume-tz",
        metavar="OFFSET",
        help="zone of times that have none: Z or an offset such as +02:00 "
        "(write --assume-tz=-05:00 for a negative one)",
    )
    parser.add_argument(
        "--gap", type=int, metavar="MINUTES", help="mark longer gaps between events"
    )
    args = parser.parse_args()
    try:
        day = date.fromisoformat(args.date) if args.date else None
        zone = parse_zone(args.assume_tz) if args.assume_tz else None
    except ValueError as error:
        parser.error(str(error))

    if args.file == "-" and sys.stdin.isatty():
        parser.error("no input: name a file or pipe events in, one per line")
    try:
        raw = sys.stdin.buffer.read() if args.file == "-" else Path(args.file).read_bytes()
    except OSError as error:
        print(f"error: cannot read {args.file}: {error.strerror}", file=sys.stderr)
        return 2
    stream = io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8-sig", errors="replace")
    events = []
    problems = []
    for number, line in enumerate(stream, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        try:
            events.append(parse_line(text, day, zone))
        except ValueError as error:
            problems.append(f"line {number}: {error}")
    if not events and not problems:
        problems.append("no events in the input")
    if problems:
        print("\n".join(f"error: {problem}" for problem in problems), file=sys.stderr)
        return 1
    events.sort(key=lambda event: event[0])
    sys.stdout.buffer.write(f"{render(events, args.gap)}\n".encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
