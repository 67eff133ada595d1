"""Where the compute and the time of a sweep went: by how the runs ended, and whether they trained or evaluated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pandas import DataFrame, Series

from sweeplab.analysis.sweep.trials import Sweep
from sweeplab.analysis.trials import STATES, finite

PHASES = ("training", "evaluation")
_RUN = ["cell", "trial", "seed"]


@dataclass(frozen=True)
class Spent:
    """What the runs that ended in one state took in one phase; NaN where it is not known."""

    study: str
    state: str
    phase: str
    n_runs: int
    flops: float
    seconds: float


def spent(sweep: Sweep, speeds: DataFrame, val_tokens: int | None = None) -> list[Spent]:
    """Return what each state's runs took in training and in evaluation.

    Seconds are those that a run was in hand: runs of one stack share them. Training's follow from
    `speeds`, the curves of tokens_per_second; the rest of a run's time is evaluation. `val_tokens` are those of the
    validation text, which `eval_full` reads whole.
    """
    runs = sweep.runs
    if runs.empty:
        return []
    seconds = finite(runs, "wall_seconds")
    training = _training_seconds(runs, speeds).clip(upper=seconds)
    amounts = {
        "training": (finite(runs, "train_flops"), training),
        "evaluation": (_evaluation_flops(runs, val_tokens), seconds - training),
    }
    return [
        Spent(
            sweep.name, state, phase, int(of_state.sum()),
            float(amounts[phase][0][of_state].sum()), float(amounts[phase][1][of_state].sum(min_count=1)),
        )
        for state in reversed(STATES)
        if (of_state := runs["state"] == state).any()
        for phase in PHASES
    ]  # fmt: skip


def _training_seconds(runs: DataFrame, speeds: DataFrame) -> Series:
    """Return the seconds of each run's steps, from the speed over each stretch of its curve; NaN without one."""
    speeds = speeds.sort_values([*_RUN, "iteration"])
    tokens = speeds.groupby(_RUN)["train_tokens"].diff().fillna(speeds["train_tokens"])
    stretches = speeds.assign(seconds=tokens.astype(float) / speeds["value"].astype(float))
    sums = stretches.groupby(_RUN)["seconds"].sum()
    keys = list(runs[_RUN].itertuples(index=False, name=None))
    return Series([float(sums.get(key, np.nan)) for key in keys], index=runs.index)


def _evaluation_flops(runs: DataFrame, val_tokens: int | None) -> Series:
    """Return the FLOPs of each run's evaluations: at iteration 0, at every interval, and at its end."""
    iterations, interval = finite(runs, "iterations"), finite(runs, "eval_interval")
    n_evaluations = iterations // interval + 1 + (iterations % interval > 0)
    whole = np.nan if val_tokens is None else val_tokens / finite(runs, "block_size")
    reads_all = runs.get("eval_full", Series(False, index=runs.index)).astype(str) == "True"
    rows = (finite(runs, "eval_iters") * finite(runs, "batch_size")).mask(reads_all, whole)
    return n_evaluations * rows * finite(runs, "row_flops") / 3  # backward is twice forward
