"""The problem codes that the documentation promises."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"

SEVERITIES = dict(re.findall(r"^\| `([a-z0-9-]+)` \| (\w+) \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE))
"""Each code with its severity: `error`, `warning`, or `strict` for what only `validate_skill` reports."""
