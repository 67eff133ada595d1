"""Checks of the learning rate over a run: its warm-up, and whether it has come down at the run's end.

A run that is measured while its rate is high has a higher loss than one that was planned to end there (Hoffmann
et al. 2022, section 3 and figure A1); a warm-up of one length for all is a large part of the shortest.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from sweeplab.analysis.audit.evidence import CLEAR, FOUND, UNKNOWN, Evidence, Finding, ends, share
from sweeplab.train.schedule import SCHEDULES, learning_rate

LONGEST_WARM_UP = 0.1  # of a run
HIGHEST_END = 0.2  # of the peak; Hoffmann et al. end at 0.1
_READ = ("learning_rate", "warmup_iters", "lr_decay", "min_lr", "scheduler_type", "max_iters", "iterations")


def warm_up(evidence: Evidence) -> Finding:
    """Find points whose warm-up is a large part of the run."""
    part = evidence.numbers("warmup_iters") / evidence.numbers("max_iters")
    if np.isnan(part).any():
        return Finding(UNKNOWN, "the runs do not say how long their warm-up is")
    names = evidence.names(part > LONGEST_WARM_UP)
    if not names:
        return Finding(CLEAR, f"the warm-up is {ends(part, share)} of a run")
    return Finding(
        FOUND,
        f"the warm-up is {ends(part, share)} of a run, and over {share(LONGEST_WARM_UP)} of it in "
        f"{len(names)} of {len(part)} points: the shortest are held back most",
        names,
        evidence.without(names),
    )


def decay(evidence: Evidence) -> Finding:
    """Find points of runs that end before their learning rate has come down."""
    runs = evidence.used
    read = [*_READ]
    if "scheduler_type" in runs and runs["scheduler_type"].eq("wsd").any():
        read.append("decay_share")
    if any(name not in runs or runs[name].isna().any() for name in read):
        return Finding(UNKNOWN, "the runs do not say how their learning rate goes down")
    why: dict[str, str] = {}
    unknown: set[str] = set()
    rows: list[dict[str, Any]] = runs[["point", *read]].to_dict("records")  # type: ignore[assignment]
    for row in rows:
        if row["lr_decay"] and row["scheduler_type"] == "plateau":
            unknown.add(row["point"])
        elif learning_rate(row, int(row["iterations"])) > HIGHEST_END * row["learning_rate"]:
            why.setdefault(row["point"], _why(row))
    if not why:
        if unknown:
            return Finding(
                UNKNOWN,
                "plateau halves the rate when the loss asks for it: where it ends is not recorded",
                tuple(unknown),
            )
        return Finding(CLEAR, f"every rate has come down to {share(HIGHEST_END)} of its peak or less")
    reasons = ", ".join(f"{count} {reason}" for reason, count in Counter(why.values()).most_common())
    names = tuple(name for name in evidence.points.names if name in why)
    return Finding(
        FOUND,
        f"{len(names)} of {evidence.points.n} points end with over {share(HIGHEST_END)} of the peak rate: {reasons}",
        names,
        evidence.without(names),
    )


def _why(row: dict[str, Any]) -> str:
    if not row["lr_decay"] or not SCHEDULES[row["scheduler_type"]].ends_low:
        return "with a rate that never comes down"
    if row["iterations"] < row["max_iters"]:
        return f"stopped before the {row['scheduler_type']}'s end"
    return "with a min_lr near the peak"
