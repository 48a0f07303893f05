"""Approvals while an MCP server, too, swaps and forges what it listed."""

from collections import Counter
from pathlib import Path

import pytest

from support import MODES, Mode, scaled
from support.approvals import other_processes, walk

SEEDS = {"sync": range(1, 31), "async": range(101, 131)}


@pytest.mark.parametrize("mode", MODES)
def test_only_what_a_human_approved_is_seen_runs_or_grants(tmp_path: Path, mode: Mode) -> None:
    """The same promise as with directories and providers, for skills of a server that lies."""
    counts: Counter[str] = Counter()
    seeds = SEEDS[mode]
    with other_processes() as elsewhere:
        for seed in seeds[: scaled(2, len(seeds))]:
            counts += walk(tmp_path / str(seed), seed, mode, ["docs", "disk"], scaled(20, 80), elsewhere)
    # Enough happened that the walk means something; what a short one meets depends on how its calls take turns.
    rare = ["texts seen", "rejections kept", "steps in another process", "powers offered", "scripts run"]
    for what in ["questions waiting", "changes under a step", *scaled([], rare)]:
        assert counts[what] > 0, (what, counts)
