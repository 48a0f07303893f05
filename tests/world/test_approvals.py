"""Approvals of several users on shared threads, in several processes, while what they approved changes."""

from collections import Counter
from pathlib import Path

import pytest

from support import MODES, Mode, scaled
from support.approvals import other_processes, walk

SEEDS = {"sync": range(1, 61), "async": range(101, 161)}


@pytest.mark.parametrize("mode", MODES)
def test_only_what_a_human_approved_is_seen_runs_or_grants(tmp_path: Path, mode: Mode) -> None:
    """Whoever asks, answers and resumes, wherever: no byte, script or power goes beyond what was approved."""
    counts: Counter[str] = Counter()
    seeds = SEEDS[mode]
    with other_processes() as elsewhere:
        for seed in seeds[: scaled(2, len(seeds))]:
            counts += walk(tmp_path / str(seed), seed, mode, ["disk", "hub"], scaled(22, 80), elsewhere)
    # Enough happened that the walk means something; what a short one meets depends on how its calls take turns.
    rare = ["texts seen", "rejections kept", "steps in another process", "powers offered", "scripts run"]
    for what in ["questions waiting", "changes under a step", *scaled([], rare)]:
        assert counts[what] > 0, (what, counts)
