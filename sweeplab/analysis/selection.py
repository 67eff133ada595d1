"""Which runs of a study are points: the best trial of each model and length of training, its seeds averaged."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeplab.analysis.columns import Array
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import TABLE
from sweeplab.train.counting import train_tokens

if TYPE_CHECKING:
    import pandas as pd

USED_STATES = ("complete", "stopped")
WHY_DROPPED = {
    "failed": "failed",
    "diverged": "diverged",
    "pruned": "pruned before the end",
    "running": "has not ended",
    "waiting": "has not ended",
}
TRIAL = ["study", "cell", "trial"]
_POINT = ["study", "model", "planned_tokens"]
# What makes another model; cells that differ in anything else differ in how it is trained.
_MODEL = {name for name, row in TABLE.items() if row.shape and row.category in ("data", "model")}
_TUNED = TABLE.keys() - _MODEL
_SHORTENED = re.compile(r"-[0-9a-f]{12}$")  # a name that does not say all of a cell


@dataclass(frozen=True)
class Selection:
    """The points' table, a row a point, and the runs that went in, a row a run; both name the `point`.

    `dropped` counts the runs left out, by the reason. `spread` is the standard deviation of one seed's log loss
    around its point, from `freedom` degrees of freedom; NaN without seeds.
    """

    table: pd.DataFrame
    runs: pd.DataFrame
    weights: Array
    dropped: Counter[str]
    spread: float
    freedom: int


def select(runs: pd.DataFrame, loss: str) -> Selection:
    """Return the best trial of each model and planned number of tokens, by the mean of `loss` over its seeds.

    Cells that differ in what is tuned, such as the learning rate, are one model. A trial counts if all its
    seeds have ended: the mean of those that did not diverge is no value of it.

    Raises:
        BadInput: no trial has ended, or trials are of unlike tasks.
    """
    from pandas import to_numeric

    from sweeplab.analysis.trials import check_one_task

    runs = with_models(runs)
    ended = runs["state"].astype(str).isin(USED_STATES)
    finite = np.isfinite(to_numeric(runs[loss], errors="coerce").to_numpy(float, na_value=np.nan))
    reasons = runs["state"].astype(str).map(WHY_DROPPED).where(~ended, "").mask(ended & ~finite, "not finite")
    usable = reasons.eq("")
    whole = usable.groupby([runs[name] for name in TRIAL]).transform("all").astype(bool)
    dropped = Counter(reasons[~usable].tolist())
    dropped["another seed of its trial has no end"] += int((usable & ~whole).sum())
    used = runs[usable & whole]
    if used.empty:
        raise BadInput("no run of the study has ended with a loss yet")
    check_one_task(used)
    means = used.groupby([*_POINT, *TRIAL[1:]], sort=False)[loss].mean().reset_index()
    best = means.loc[means.groupby(_POINT, sort=False)[loss].idxmin(), TRIAL]
    kept = used.merge(best.assign(point=_names(best)), on=TRIAL)
    dropped["not the best of its model and length"] += len(used) - len(kept)
    grouped = kept.groupby("point", sort=False)
    numbers = [name for name in ("params", "tokens", "flops", loss) if name in kept]
    table = grouped.first().assign(**{name: grouped[name].mean() for name in numbers}).reset_index()
    counts = np.asarray(grouped.size(), np.float64)
    spread, freedom = _pooled(kept, loss, counts)
    return Selection(table, kept, counts, +dropped, spread, freedom)


def with_models(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with the model of each cell, and the tokens that each was to be trained on."""
    trained = runs["train_tokens"].astype("Float64").to_numpy(float, na_value=-1.0)
    planned = [
        _planned_tokens(run, float(each)) for run, each in zip(runs.to_dict("records"), trained, strict=True)
    ]
    return runs.assign(
        study=runs["study"].astype(str) if "study" in runs else "",
        model=runs["cell"].astype(str).map(_model),
        planned_tokens=planned,
    )


def _planned_tokens(run: Mapping[Any, Any], trained: float) -> float:
    """Return what a run was to be trained on: one that stopped early is of its cell all the same."""
    try:
        return float(train_tokens(run, run["max_iters"]))
    except (KeyError, TypeError, ValueError):  # a table from elsewhere may lack what it follows from
        return trained


def _model(cell: str) -> str:
    """Return what of a cell's name makes another model: n_layer=2,learning_rate=0.001 is n_layer=2."""
    if _SHORTENED.search(cell):
        return cell
    return ",".join(part for part in cell.split(",") if part.partition("=")[0] not in _TUNED) or "all"


def _names(trials: pd.DataFrame) -> list[str]:
    """Return a name a trial: its cell and number, and its study where there are several."""
    several = trials["study"].nunique() > 1
    rows: Sequence[Any] = list(trials[TRIAL].itertuples(index=False))
    return [f"{study}/{cell}/{number}" if several else f"{cell}/{number}" for study, cell, number in rows]


def _pooled(kept: pd.DataFrame, loss: str, counts: Array) -> tuple[float, int]:
    """Return the spread of one seed, pooled over all points with several, and its degrees of freedom.

    Pooled and not a point's own: the spread of three seeds is wrong by a factor of two in every fourth point, and
    weights of its inverse square would give the fit to the points whose seeds happen to agree.
    """
    freedom = int((counts - 1).sum())
    if freedom == 0:
        return float("nan"), 0
    logs = kept[loss].astype(float).map(np.log)
    around = logs - logs.groupby(kept["point"]).transform("mean")
    return float(np.sqrt((around**2).sum() / freedom)), freedom
