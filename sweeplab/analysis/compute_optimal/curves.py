"""Training curves as the envelope reads them: loss over FLOPs, one curve a run, of a study or of a table's groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from sweeplab.analysis.compute_optimal.budgets import n_sizes
from sweeplab.analysis.conventions import Conventions
from sweeplab.analysis.fit.forms import Array
from sweeplab.analysis.points import Points, select_trials

if TYPE_CHECKING:
    import pandas as pd

FEWEST_POINTS = 3  # of a curve
# What the rows before a run's end say, by what the learning rate did.
SCHEDULES = {
    "constant": "",
    "decays": "the learning rate still decays where the curves are read: a run that had ended there would have a "
    "lower loss, and the runs nearest to their end are favored",
    "unknown": "whether the learning rate had decayed where the curves are read cannot be seen from a table; where "
    "it had not, the runs nearest to their end are favored",
}


@dataclass(frozen=True)
class Curve:
    """One run: its parameters, and log loss over log FLOPs, increasing, [m]."""

    name: str
    params: float
    log_flops: Array
    log_loss: Array


@dataclass(frozen=True)
class Curves:
    """The runs' curves, `schedule` one of SCHEDULES; `why_none` says why there are none."""

    runs: tuple[Curve, ...]
    schedule: str
    why_none: str = ""


def curves_of_points(points: Points) -> Curves:
    """Return a curve for each group of a table that has one size, and a row at each of several FLOPs."""
    if not points.groups:
        return Curves(
            (), "unknown", "no curves: a table has them where --columns group=RUN says which rows are one run"
        )
    names = np.asarray(points.groups, object)
    log_n, log_c = np.log(points.columns["params"]), np.log(points.columns["flops"])
    found = []
    for name in dict.fromkeys(points.groups):
        rows = np.flatnonzero(names == name)
        rows = rows[np.argsort(log_c[rows], kind="stable")]
        rows = rows[np.diff(log_c[rows], prepend=-np.inf) > 0]
        if len(rows) >= FEWEST_POINTS and n_sizes(log_n[rows]) == 1:
            size = float(points.columns["params"][rows].mean())
            found.append(Curve(name, size, log_c[rows], np.log(points.columns["loss"][rows])))
    none = f"no curves: no group has {FEWEST_POINTS} rows of one size at different FLOPs"
    return Curves(tuple(found), "unknown", "" if found else none)


def curves_of_study(
    runs: pd.DataFrame, curves: pd.DataFrame, conventions: Conventions | None = None
) -> Curves:
    """Return the validation curve of each trial that is a point of a study, the mean of its seeds, in nats.

    FLOPs grow with the iterations; the evaluation before the first one has none.

    Raises:
        BadInput: no run has ended.
    """
    if runs["study"].nunique() > 1:
        return Curves((), "unknown", "no curves: several studies have none in common; name one")
    chosen = replace(conventions or Conventions(), loss="nats")
    kept = select_trials(runs, None, chosen)[0].runs
    total = kept["flops"] if "flops" in kept else 6 * kept["params"] * kept["tokens"]
    kept = kept.assign(flops_an_iteration=total / kept["iterations"], cell=kept["cell"].astype(str))
    key = ["cell", "trial", "seed"]
    rows = curves[(curves["metric"] == "val_loss") & (curves["iteration"] > 0) & (curves["value"] > 0)]
    rows = rows.assign(cell=rows["cell"].astype(str))
    points = rows.merge(kept[[*key, "point", "params", "flops_an_iteration"]], on=key)
    points["flops"] = points["flops_an_iteration"] * points["iteration"]
    means = points.groupby(["point", "iteration"], sort=True)[["params", "flops", "value"]].mean()
    found = []
    for name, one in means.groupby(level="point", sort=False):
        n, flops, loss = (one[column].to_numpy(float) for column in ("params", "flops", "value"))
        if len(one) >= FEWEST_POINTS:
            found.append(Curve(str(name), float(n[0]), np.log(flops), np.log(loss)))
    decays = bool(kept["lr_decay"].astype("boolean").fillna(True).any())
    none = "" if found else f"no curves: no run was evaluated {FEWEST_POINTS} times"
    return Curves(tuple(found), "decays" if decays else "constant", none)


def sizes_of(curves: Sequence[Curve]) -> tuple[Array, Array]:
    """Return log N of the sizes, increasing, [sizes], and which curve is of which, [sizes, curves] of 0 and 1."""
    log_n = np.log([curve.params for curve in curves])
    order = np.argsort(log_n, kind="stable")
    place = np.empty(len(log_n), int)
    place[order] = np.cumsum(np.diff(log_n[order], prepend=-np.inf) > 0.01) - 1
    belongs = np.eye(place.max() + 1)[place].T
    return np.asarray(belongs @ log_n / belongs.sum(1)), belongs
