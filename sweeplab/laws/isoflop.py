"""The compute-optimal size by IsoFLOP curves: at each compute budget the loss falls and rises again in log N.

Hoffmann et al. 2022, Training compute-optimal large language models, approach 2. Departure: one regression over the
rows of all budgets, that of `hyperparameters/surface.py` with N as the searched value and C as the size, in place of a
line through separately fitted minima, which is biased where sizes drift from one side of the optimum to the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sweeplab.errors import BadInput
from sweeplab.formatting import several
from sweeplab.laws.forms import FEWEST_VALUES, N_OPT
from sweeplab.laws.hyperparameters.assessment import Searched, searched_value
from sweeplab.laws.hyperparameters.runs import SearchedRuns
from sweeplab.laws.hyperparameters.surface import fit_surface
from sweeplab.laws.points import Index, Points
from sweeplab.laws.sentences import Plain, Reason

SIZES = 4  # of a budget: a parabola and one more
_SCATTER = 0.1  # the largest sd of log N of minima about their line, which is one by the law


@dataclass(frozen=True)
class IsoFlop:
    """The numbers of the line through the minima as plain entries, and each budget with its rows, curve and minimum."""

    numbers: dict[str, Plain]
    budgets: list[Plain]


def isoflop(
    points: Points, budget: float | None = None, doubt: Reason | None = None
) -> IsoFlop:
    """Return the compute-optimal size by curves at equal FLOPs.

    `budget` is the compute at which to give N_opt (the largest of the table when None); `doubt` is why every number is
    weak at best.

    Raises:
        BadInput: the table has no N or no C, too few budgets with several sizes, or losses without a minimum.
    """
    for name in ("params", "flops"):
        if name not in points.columns:
            raise BadInput(
                f"the compute-optimal size needs {name!r}; name its column with --columns"
            )
    groups = _budgets(points)
    if len(groups) < FEWEST_VALUES:
        raise BadInput(
            f"{several(len(groups), 'budget')} with {SIZES} sizes or more at equal FLOPs; "
            f"{FEWEST_VALUES} are needed"
        )
    rows = np.concatenate(groups)
    log_n, log_c, log_loss = (
        np.log(points.columns[name]) for name in ("params", "flops", "loss")
    )
    runs = SearchedRuns(
        names=("params",),
        sizes=("flops",),
        x=log_n[rows, None],
        y=log_loss[rows],
        cell=np.repeat(np.arange(len(groups)), [len(each) for each in groups]),
        logs=np.array([[log_c[each].mean()] for each in groups]),
        seeds=points.weights[rows],
    )
    surface = fit_surface(runs, _SCATTER)
    searched = searched_value(surface, 0, FEWEST_VALUES)
    if doubt:
        searched = searched._replace(doubt=doubt)
    at = budget or points.columns["flops"].max()
    size = surface.optimum({"flops": math.log(at)}, scatters=False)[:, 0]
    numbers = {
        N_OPT: searched.entry(
            "exponent", surface.exponents[:, 0, 0], "N_opt grows as C to this power"
        ),
        "N_opt": searched.entry(
            "hyperparameter", size, f"the parameters of lowest loss for {at:.3g} FLOPs"
        ),
    }
    return IsoFlop(
        numbers, [_minimum(points, each, searched, c) for c, each in enumerate(groups)]
    )


def _budgets(points: Points) -> list[Index]:
    """The rows of each budget with enough sizes, in the order of the budgets."""
    log_c = np.log(points.columns["flops"])
    log_n = np.log(points.columns["params"])
    order = np.argsort(log_c, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(log_c[order]) > 0.01) + 1)
    return [rows for rows in groups if len(np.unique(log_n[rows].round(4))) >= SIZES]


def _minimum(points: Points, rows: Index, searched: Searched, c: int) -> Plain:
    """A budget with its minimum, None where that is not seen, and its curve over the rows that count."""
    surface = searched.surface
    best = searched.cell(c)
    counts = surface.used & (surface.runs.cell == c)
    # Where no row is near enough to the budget's best, its curve is of all rows, and no minimum is seen.
    is_seen = counts.any() and not best["edge"]
    if not counts.any():
        counts = surface.runs.cell == c
    x = surface.runs.x[counts, 0]
    middle = math.log(best["value"])
    bend = np.median(surface.bend)
    level = (surface.runs.y[counts] - bend * (x - middle) ** 2 / 2).mean()
    sizes = np.linspace(x.min(), x.max(), 40)
    loss = np.exp(level + bend * (sizes - middle) ** 2 / 2)
    ends = {
        "n_opt": best["value"],
        "n_opt_low": best["low"],
        "n_opt_high": best["high"],
        "loss": math.exp(level),
    }
    if not is_seen:
        ends = dict.fromkeys(ends)
    return {
        "flops": math.exp(surface.runs.logs[c, 0]),
        "n_rows": len(rows),
        "rows": {name: points.columns[name][rows].tolist() for name in ("params", "loss")},
        "curve": {"params": np.exp(sizes).tolist(), "loss": loss.tolist()},
        **ends,
        "edge": best["edge"],
    }
