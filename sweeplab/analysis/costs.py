"""The cost of a sweep: where compute and time went, what pruning saved, and where in the space trials failed.

Many ranges are tested, so the smallest of their p-values is small by chance: each is multiplied by the number of
ranges (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame, Series

from sweeplab.analysis.sweep import Dimension, Sweep
from sweeplab.analysis.trials import COUNTED, LOST, TRIAL, WORST_FIRST, finite
from sweeplab.laws.intervals import share_interval

if TYPE_CHECKING:
    from sweeplab.sweep.pruned import Audited


PHASES = ("training", "evaluation")
_RUN = [*TRIAL, "seed"]


@dataclass(frozen=True)
class Spent:
    """The cost of the runs that ended in one state, in one phase; NaN if unknown."""

    study: str
    state: str
    phase: str
    n_runs: int
    flops: float
    seconds: float


def spent(sweep: Sweep, speeds: DataFrame, val_tokens: int | None = None) -> list[Spent]:
    """Return the cost of each state's runs in training and in evaluation.

    Seconds are the worker time of a run; runs of one stack share them. Training seconds follow from `speeds`, curves of
    tokens_per_second; the rest of a run's time is evaluation. `val_tokens` is the size of the validation text, which
    `eval_full` reads whole.
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
    costs = []
    for state in reversed(WORST_FIRST):
        ended = runs["state"] == state
        if not ended.any():
            continue
        for phase, (flops, took) in amounts.items():
            totals = (float(flops[ended].sum()), float(took[ended].sum(min_count=1)))
            costs.append(Spent(sweep.name, state, phase, int(ended.sum()), *totals))
    return costs


def occupancy(sweep: Sweep) -> float | None:
    """Return the share of stack slots occupied by a study's runs, the mean over all steps; None if unknown."""
    runs = sweep.runs
    if "slot_steps" not in runs:
        return None
    slots = finite(runs, "slot_steps")
    n_steps = float(finite(runs, "iterations")[slots > 0].sum())
    if n_steps:
        return n_steps / float(slots.sum())
    return None


def _training_seconds(runs: DataFrame, speeds: DataFrame) -> Series:
    """The seconds of each run's steps, from the speed over each stretch of its curve; NaN without one."""
    speeds = speeds.sort_values([*_RUN, "iteration"])
    tokens = speeds.groupby(_RUN)["train_tokens"].diff().fillna(speeds["train_tokens"])
    stretches = speeds.assign(seconds=tokens.astype(float) / speeds["value"].astype(float))
    sums = stretches.groupby(_RUN)["seconds"].sum()
    keys = list(runs[_RUN].itertuples(index=False, name=None))
    return Series([float(sums.get(key, np.nan)) for key in keys], index=runs.index)


def _evaluation_flops(runs: DataFrame, val_tokens: int | None) -> Series:
    """The FLOPs of each run's evaluations: at iteration 0, at every interval, and at its end."""
    iterations, interval = finite(runs, "iterations"), finite(runs, "eval_interval")
    n_evaluations = iterations // interval + 1 + (iterations % interval > 0)
    reads_all = runs.get("eval_full", Series(False, index=runs.index)).astype(str) == "True"
    tokens = finite(runs, "eval_tokens").mask(reads_all, np.nan if val_tokens is None else val_tokens)
    rows = tokens / finite(runs, "block_size")
    return n_evaluations * rows * finite(runs, "row_flops") / 3  # backward is twice forward


@dataclass(frozen=True)
class Saved:
    """The cost of a cell's trials, and what its pruned trials would still have cost at their own speed.

    `share` is the saved share of the FLOPs that the cell would have cost without pruning.
    """

    study: str
    cell: str
    n_trials: int
    n_pruned: int
    flops_spent: float
    flops_saved: float
    seconds_spent: float
    seconds_saved: float
    share: float


def saved(sweep: Sweep) -> list[Saved]:
    """Return what pruning saved in each cell where trials were counted, in the order of the cells."""
    trials = sweep.trials[sweep.trials["state"].isin(COUNTED)]
    pace = trials["wall_seconds"].sum() / max(float(trials["train_flops"].sum()), 1.0)
    cells = []
    for cell in sweep.cells:
        cell_trials = trials[trials["cell"] == cell]
        pruned = cell_trials[cell_trials["state"] == "pruned"]
        flops = (pruned["planned_flops"] - pruned["train_flops"].fillna(0)).clip(lower=0)
        # A trial that was pruned before its first step has no speed of its own.
        paces = (pruned["wall_seconds"] / pruned["train_flops"].replace(0, np.nan)).fillna(pace)
        took, rest = float(cell_trials["train_flops"].sum()), float(flops.sum())
        seconds = (float(cell_trials["wall_seconds"].sum()), float((flops * paces).sum()))
        share = rest / max(took + rest, 1e-300)
        cells.append(Saved(sweep.name, cell, len(cell_trials), len(pruned), took, rest, *seconds, share))
    return [cost for cost in cells if cost.n_trials]


@dataclass(frozen=True)
class Cost:
    """The result of the audit of a study's pruning.

    `audited` has one row per audited trial: cell, trial, iteration (where it was pruned), value_then, value (at its
    end; missing where it diverged), best (the cell's best value) and `is_better`; `n_better` counts these. `low` and
    `high` are an interval of the share of all pruned trials that would have become the best of their cell (Clopper
    and Pearson 1934).
    """

    study: str
    audited: DataFrame
    n_pruned: int
    n_better: int
    low: float
    high: float


def cost(sweep: Sweep, audited: Sequence[Audited]) -> Cost:
    """Return the cost of the study's pruning by its audited trials."""
    best = sweep.ended.groupby("cell")["loss"].min()
    names = ["cell", "trial", "iteration", "value_then", "value"]
    frame = DataFrame([[getattr(each, name) for name in names] for each in audited], columns=names)
    frame["best"] = [float(best.get(cell, np.nan)) for cell in frame["cell"]]
    value, lowest = frame["value"].astype(float), frame["best"].astype(float)
    frame["is_better"] = (value < lowest) | (value.notna() & lowest.isna())
    n_pruned, n_better = int((sweep.trials["state"] == "pruned").sum()), int(frame["is_better"].sum())
    return Cost(sweep.name, frame, n_pruned, n_better, *share_interval(n_better, len(frame)))


FOUND, NOT_FOUND = "crowds here", "spread evenly"
# Ranges with a smaller p-value are significant.
ALPHA = 0.05
CUTS = np.linspace(0, 1, 11)[1:-1]


@dataclass(frozen=True)
class Region:
    """The range of one hyperparameter where trials of a state are most overrepresented.

    `inside` of the `n_inside` trials in it ended in this state, `outside` of the `n_outside` others. `p` is the p-value
    of the one-sided Fisher's exact test times the number of ranges; `verdict` says whether it is significant.
    """

    study: str
    state: str
    hyperparameter: str
    range: str
    inside: int
    n_inside: int
    outside: int
    n_outside: int
    p: float
    verdict: str


def regions(sweep: Sweep) -> list[Region]:
    """Return the range of each hyperparameter in which trials diverged or failed most; smallest p first."""
    ended = sweep.trials[sweep.trials["state"].isin({*WORST_FIRST} - {"running", "waiting"})]
    both = {each.name: each for each in (*sweep.dimensions, *sweep.grid)}
    worst = []
    for state in LOST:
        hit = ended["state"] == state
        if not hit.any() or hit.all():
            continue
        ranges = [(name, *part) for name, dimension in both.items() for part in _parts(dimension, ended)]
        chances = _p_values(hit, [inside for *_, inside in ranges]) * len(ranges)
        tested = [(float(p), *part) for p, part in zip(chances, ranges, strict=True)]
        for name in dict.fromkeys(name for name, *_ in ranges):
            p, _, words, inside = min((part for part in tested if part[1] == name), key=lambda part: part[0])
            within = (int((hit & inside).sum()), int(inside.sum()))
            outside = (int((hit & ~inside).sum()), int((~inside).sum()))
            verdict = FOUND if p < ALPHA else NOT_FOUND
            worst.append(Region(sweep.name, state, name, words, *within, *outside, min(1.0, p), verdict))
    return sorted(worst, key=lambda region: (LOST.index(region.state), region.p))


def _parts(dimension: Dimension, trials: DataFrame) -> Iterator[tuple[str, Series]]:
    """Yield the ranges to test, in words, and the trials in each: each choice, or either side of a cut."""
    column = trials[dimension.name]
    if dimension.choices:
        for choice in dimension.choices:
            yield choice, column.astype(str) == choice
        return
    places = dimension.coordinates(column)
    # Cuts at deciles of the trials: an adaptive sampler leaves much of a range nearly empty.
    for cut in np.unique(np.quantile(places.dropna(), CUTS)) if places.notna().any() else ():
        value = f"{dimension.value_at(float(cut)):.3g}"
        yield f"above {value}", places > cut
        yield f"up to {value}", places <= cut


def _p_values(hit: Series, insides: Sequence[Series]) -> NDArray[np.float64]:
    from scipy.stats import hypergeom

    n, is_hit = len(hit), hit.to_numpy(bool)
    among = np.array([inside.to_numpy(bool) for inside in insides]).reshape(-1, n)
    n_inside = among.sum(1)
    chances = hypergeom.sf((among & is_hit).sum(1) - 1, n, int(is_hit.sum()), n_inside)
    return np.where((n_inside == 0) | (n_inside == n), 1.0, chances)
