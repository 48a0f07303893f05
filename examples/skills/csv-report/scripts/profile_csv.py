#!/usr/bin/env python3
"""Profile a CSV file: column types, missing counts, range, quartiles, mean, sum."""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import statistics
import sys
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

MISSING = {"", "na", "n/a", "nan", "null", "none", "-"}
BOOLEANS = {"true", "false", "yes", "no"}
NUMBER = re.compile(r"^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$")
INTEGER = re.compile(r"^[+-]?\d+$")
CODE = re.compile(r"^[+-]?0\d")
DATE = re.compile(
    r"^\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?$"
)
# A column is "mixed" when at least this share of its values has one type.
MIXED_SHARE = 0.9
FIGURES = ("min", "q1", "median", "q3", "max", "mean", "sum")
# Numbers outside this range are shown with an exponent.
SMALLEST_PLAIN, LARGEST_PLAIN = 0.01, 1e15


def kind_of(value: str) -> str:
    """Return the type name of one value that is not missing."""
    if NUMBER.match(value) and not CODE.match(value) and math.isfinite(float(value)):
        return "integer" if INTEGER.match(value) else "number"
    if value.lower() in BOOLEANS:
        return "boolean"
    if DATE.match(value):
        try:
            date.fromisoformat(value[:10])
        except ValueError:
            return "text"
        return "date"
    return "text"


def pick_type(kinds: Counter[str]) -> tuple[str, str]:
    """Return the column type and, for a mixed column, its main type."""
    total = sum(kinds.values())
    if not total:
        return "empty", ""
    merged = Counter(kinds)
    if merged["number"]:
        merged["number"] += merged.pop("integer", 0)
    main, count = merged.most_common(1)[0]
    if count == total:
        return main, ""
    if main != "text" and count / total >= MIXED_SHARE:
        return "mixed", main
    return "text", ""


def profile_column(name: str, values: list[str], missing: set[str]) -> dict[str, Any]:
    """Return the figures for one column."""
    present = [value for value in values if value.lower() not in missing]
    kinds = [kind_of(value) for value in present]
    column_type, main = pick_type(Counter(kinds))
    wanted = main or column_type
    numeric = wanted in {"integer", "number"}
    accepted = {"integer", "number"} if wanted == "number" else {wanted}
    result: dict[str, Any] = {
        "column": name,
        "type": f"mixed ({main})" if main else column_type,
        "missing": len(values) - len(present),
        "distinct": len(set(present)),
    }
    result.update(dict.fromkeys(FIGURES))
    fitting = [value for index, value in enumerate(present) if kinds[index] in accepted]
    if main:
        odd = [
            value for index, value in enumerate(present) if kinds[index] not in accepted
        ]
        result["odd_count"] = len(odd)
        result["odd_example"] = odd[0]
    if numeric and fitting:
        numbers = [float(value) for value in fitting]
        result["min"] = min(numbers)
        result["max"] = max(numbers)
        result["mean"] = statistics.fmean(numbers)
        result["sum"] = math.fsum(numbers)
        result["median"] = statistics.median(numbers)
        if len(numbers) > 1:
            quartiles = statistics.quantiles(numbers, n=4, method="inclusive")
            result["q1"], result["q3"] = quartiles[0], quartiles[2]
    elif wanted == "date" and fitting:
        # ISO dates sort as text as long as they share one form and time zone.
        result["min"] = min(fitting)
        result["max"] = max(fitting)
    return result


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


def profile(rows: list[list[str]], missing: set[str]) -> dict[str, Any]:
    """Profile all columns; the first row is the header."""
    header, body = rows[0], rows[1:]
    width = len(header)
    warnings = []
    ragged = [number for number, row in enumerate(body, 1) if len(row) != width]
    if ragged:
        warnings.append(
            f"{len(ragged)} row(s) do not have {width} fields; "
            f"the first is data row {ragged[0]}"
        )
    repeated = [name for name, count in Counter(header).items() if count > 1]
    warnings += [f"column name {name!r} is used more than once" for name in repeated]
    duplicates = len(body) - len({tuple(row) for row in body})
    if duplicates:
        warnings.append(f"{duplicates} row(s) are exact copies of an earlier row")
    columns = []
    for index, name in enumerate(header):
        values = [row[index] if index < len(row) else "" for row in body]
        column = profile_column(name or f"(column {index + 1})", values, missing)
        columns.append(column)
        if "odd_count" in column:
            warnings.append(
                f"column {column['column']!r}: {column['odd_count']} value(s) do not "
                f"fit, for example {column['odd_example']!r}"
            )
    return {"rows": len(body), "columns": columns, "warnings": warnings}


def show(value: str | float | None) -> str:
    """Format one table cell."""
    if value is None:
        return ""
    if isinstance(value, float):
        if value and not SMALLEST_PLAIN <= abs(value) < LARGEST_PLAIN:
            return f"{value:.6g}"
        return f"{value:.4f}".rstrip("0").rstrip(".")
    return str(value).replace("|", "\\|")


def render(result: dict[str, Any]) -> str:
    """Render the profile as Markdown."""
    keys = ["column", "type", "missing", "distinct", *FIGURES]
    lines = [
        f"Rows: {result['rows']}, columns: {len(result['columns'])}",
        "",
        "| " + " | ".join(keys) + " |",
        "|" + " --- |" * len(keys),
    ]
    lines += [
        "| " + " | ".join(show(column[key]) for key in keys) + " |"
        for column in result["columns"]
    ]
    if result["warnings"]:
        lines += ["", "Warnings:", ""]
        lines += [f"- {warning}" for warning in result["warnings"]]
    return "\n".join(lines)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", help="CSV file with a header line")
    parser.add_argument(
        "--delimiter", help="one character, or 'tab' (default: detected)"
    )
    parser.add_argument(
        "--encoding", default="utf-8-sig", help="text encoding (default: UTF-8)"
    )
    parser.add_argument(
        "--missing",
        action="append",
        default=[],
        metavar="TEXT",
        help="one more marker for missing values; may be repeated",
    )
    parser.add_argument(
        "--format", choices=("markdown", "json"), default="markdown", help="output form"
    )
    args = parser.parse_args()
    delimiter = "\t" if args.delimiter in {"tab", "\\t"} else args.delimiter
    if delimiter is not None and len(delimiter) != 1:
        parser.error("--delimiter must be one character or 'tab'")

    try:
        rows = read_rows(args.file, delimiter, args.encoding)
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
    except (csv.Error, LookupError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if not rows:
        print(f"error: {args.file} is empty", file=sys.stderr)
        return 1

    result = profile(rows, MISSING | {text.lower() for text in args.missing})
    if args.format == "json":
        output = json.dumps(result, indent=2, ensure_ascii=False)
    else:
        output = render(result)
    sys.stdout.buffer.write(f"{output}\n".encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
