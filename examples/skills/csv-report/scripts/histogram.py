#!/usr/bin/env python3
"""Print a text histogram of one column of a CSV file."""

from __future__ import annotations

import argparse
import csv
import math
import re
import sys
from collections import Counter
from pathlib import Path

MISSING = {"", "na", "n/a", "nan", "null", "none", "-"}
NUMBER = re.compile(r"^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$")
CODE = re.compile(r"^[+-]?0\d")
MAX_DECIMALS = 9
LARGEST_PLAIN = 1e15
LABEL_LENGTH = 30


def detect_delimiter(header: str) -> str:
    """Return the candidate delimiter that splits the header line most often."""
    unquoted = re.sub(r'"[^"]*"', "", header)
    return max(",;\t|", key=unquoted.count)


def read_rows(path: str, delimiter: str | None, encoding: str) -> list[list[str]]:
    """Read all rows of the file, with values stripped and blank lines left out."""
    with Path(path).open(encoding=encoding, newline="") as handle:
        if delimiter is None:
            delimiter = detect_delimiter(handle.readline())
            handle.seek(0)
        reader = csv.reader(handle, delimiter=delimiter)
        return [[value.strip() for value in row] for row in reader if row]


def find_column(header: list[str], wanted: str) -> int:
    """Return the index of a column given by name or by number from 1."""
    if not header:
        msg = "the file is empty"
        raise ValueError(msg)
    if wanted in header:
        return header.index(wanted)
    lowered = [name.lower() for name in header]
    if lowered.count(wanted.lower()) == 1:
        return lowered.index(wanted.lower())
    if wanted.isdecimal() and 1 <= int(wanted) <= len(header):
        return int(wanted) - 1
    msg = f"no column {wanted!r}; the file has: {', '.join(header)}"
    raise ValueError(msg)


def is_number(value: str) -> bool:
    """Tell whether the value is a finite number and not a code such as 007."""
    return (
        bool(NUMBER.match(value))
        and not CODE.match(value)
        and math.isfinite(float(value))
    )


def edge(value: float, step: float) -> str:
    """Format the edge of a bin with as many decimals as the bin width needs."""
    decimals = max(0, 3 - math.floor(math.log10(step)))
    if decimals > MAX_DECIMALS or abs(value) >= LARGEST_PLAIN:
        return f"{value:.6g}"
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def bin_numbers(numbers: list[float], bins: int) -> list[tuple[str, int]]:
    """Count numbers in bins of equal width; the last bin includes its end."""
    low, high = min(numbers), max(numbers)
    if low == high:
        return [(edge(low, 1), len(numbers))]
    step = high / bins - low / bins
    counts = [0] * bins
    for number in numbers:
        counts[min(int((number - low) / step), bins - 1)] += 1
    result = []
    for index, count in enumerate(counts):
        end = high if index == bins - 1 else low + (index + 1) * step
        bracket = "]" if index == bins - 1 else ")"
        start = edge(low + index * step, step)
        result.append((f"[{start}, {edge(end, step)}{bracket}", count))
    return result


def count_values(values: list[str], top: int) -> list[tuple[str, int]]:
    """Count the most frequent values; the others are summed in a last line."""
    counts = Counter(values)
    result = counts.most_common(top)
    rest = len(values) - sum(count for _, count in result)
    if rest:
        result.append((f"(other: {len(counts) - len(result)} values)", rest))
    return result


def shorten(label: str) -> str:
    """Put a label on one line and cut it if it is too long."""
    label = " ".join(label.split())
    return label if len(label) <= LABEL_LENGTH else label[: LABEL_LENGTH - 1] + "…"


def draw(entries: list[tuple[str, int]], width: int) -> str:
    """Draw one bar for each entry."""
    total = sum(count for _, count in entries)
    largest = max(count for _, count in entries)
    labels = [shorten(label) for label, _ in entries]
    pad = max(len(label) for label in labels)
    digits = len(str(largest))
    lines = []
    for index, (_, count) in enumerate(entries):
        length = round(width * count / largest)
        if count and not length:
            length = 1
        lines.append(
            f"{labels[index]:<{pad}}  {count:>{digits}} {count / total:>6.1%}  "
            f"{'#' * length}".rstrip()
        )
    return "\n".join(lines)


def at_least_one(text: str) -> int:
    """Parse a whole number of at least 1."""
    number = int(text)
    if number < 1:
        msg = "must be at least 1"
        raise argparse.ArgumentTypeError(msg)
    return number


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", help="CSV file with a header line")
    parser.add_argument("column", help="column name, or its number counted from 1")
    parser.add_argument(
        "--bins", type=at_least_one, default=10, help="bins for numbers (default: 10)"
    )
    parser.add_argument(
        "--top", type=at_least_one, default=10, help="values for text (default: 10)"
    )
    parser.add_argument(
        "--width", type=at_least_one, default=40, help="longest bar (default: 40)"
    )
    parser.add_argument(
        "--delimiter", help="one character, or 'tab' (default: detected)"
    )
    parser.add_argument(
        "--encoding", default="utf-8-sig", help="text encoding (default: UTF-8)"
    )
    parser.add_argument(
        "--as-text", action="store_true", help="count values even if they are numbers"
    )
    args = parser.parse_args()
    delimiter = "\t" if args.delimiter in {"tab", "\\t"} else args.delimiter
    if delimiter is not None and len(delimiter) != 1:
        parser.error("--delimiter must be one character or 'tab'")

    try:
        rows = read_rows(args.file, delimiter, args.encoding)
        index = find_column(rows[0] if rows else [], args.column)
    except OSError as error:
        print(f"error: cannot read {args.file}: {error.strerror}", file=sys.stderr)
        return 1
    except UnicodeDecodeError:
        print(
            f"error: {args.file} is not valid {args.encoding}; "
            "try --encoding cp1252 or --encoding utf-16",
            file=sys.stderr,
        )
        return 1
    except (csv.Error, LookupError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1

    values = [row[index] if index < len(row) else "" for row in rows[1:]]
    present = [value for value in values if value.lower() not in MISSING]
    if not present:
        print(f"error: column {rows[0][index]!r} has no values", file=sys.stderr)
        return 1

    numbers = [float(value) for value in present if is_number(value)]
    # A few stray texts do not turn a numeric column into a text column.
    numeric = not args.as_text and len(numbers) >= 0.9 * len(present)
    note = f"{len(values) - len(present)} missing"
    if numeric:
        entries = bin_numbers(numbers, args.bins)
        if len(numbers) < len(present):
            note += f", {len(present) - len(numbers)} not numeric and left out"
    else:
        entries = count_values(present, args.top)
    head = f"{rows[0][index]}: {len(values)} rows, {note}"
    sys.stdout.buffer.write(f"{head}\n\n{draw(entries, args.width)}\n".encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
