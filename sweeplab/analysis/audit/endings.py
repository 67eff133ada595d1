"""Checks of the ends: runs that stopped early or were pruned, and seeds that show the noise."""

from __future__ import annotations

import numpy as np

from sweeplab.analysis.audit.evidence import CLEAR, FOUND, Evidence, Finding, share
from sweeplab.analysis.conventions import STUDY_COLUMNS

# A standard deviation from 4 degrees of freedom is known to a third.
LEAST_FREEDOM = 4


def cut_short(evidence: Evidence) -> Finding:
    """Find points of runs that stopped early, and points that a pruned trial was already better than."""
    stopped = set(evidence.used.loc[evidence.used["state"].astype(str) == "stopped", "point"])
    better = _beaten_by_pruned(evidence)
    names = tuple(name for name in evidence.points.names if name in stopped | better)
    pruned = evidence.points.dropped.get("pruned before the end", 0)
    if not names:
        return Finding(CLEAR, f"every point ran to its end; {pruned} pruned runs are left out")
    said = []
    if stopped:
        said.append(
            f"{len(stopped)} of {evidence.points.n} points come of runs that stopped early: "
            "they were not trained on the tokens that their schedule was made for"
        )
    if better:
        said.append(
            f"{len(better)} have a loss that a pruned trial of theirs was already below: the pruner was too hasty"
        )
    return Finding(FOUND, "; ".join(said), names, evidence.without(names))


def seeds(evidence: Evidence) -> Finding:
    """Find too few seeds to tell noise from a law that is wrong."""
    points, chosen = evidence.points, evidence.chosen
    alone = evidence.names(points.weights < 2)
    several = points.n - len(alone)
    if chosen.freedom == 0:
        return Finding(
            FOUND,
            "no point has a second seed: what a law leaves may be noise or its own fault, and nobody can tell",
            alone,
        )
    sizes = len(np.unique(points.columns["params"][points.weights > 1]))
    said = f"one seed differs by {share(chosen.spread)} of the loss from the next, seen at {several} points"
    if chosen.freedom < LEAST_FREEDOM:
        return Finding(
            FOUND,
            f"{said}: {chosen.freedom} degrees of freedom are too few, {LEAST_FREEDOM} are needed",
            alone,
        )
    if sizes < 2 <= points.n:
        return Finding(FOUND, f"{said} of one size: whether others are as noisy cannot be seen", alone)
    return Finding(CLEAR, f"{said} of {sizes} sizes")


def _beaten_by_pruned(evidence: Evidence) -> set[str]:
    """Return the points that have a higher loss than a trial of the same model and length when it was pruned."""
    loss, by = STUDY_COLUMNS["loss"], ["study", "model", "planned_tokens"]
    pruned = evidence.runs[evidence.runs["state"].astype(str) == "pruned"]
    trials = pruned.groupby([*by, "cell", "trial"], sort=False)[loss].mean().reset_index()
    lowest = {key: float(value) for key, value in trials.groupby(by, sort=False)[loss].min().items()}
    own = evidence.used.groupby("point")[loss].mean()
    keys = evidence.table[by].itertuples(index=False)
    return {
        name
        for name, key in zip(evidence.points.names, keys, strict=True)
        if lowest.get(tuple(key), np.inf) < own[name]
    }
