"""Runs as trials: what of a study stands for a loss, and what its sizes are.

Only trials that ended (complete or stopped) stand for a loss; a trial is the mean of its seeds.

Which runs of a study are points: the best trial of each model and length of training, its seeds averaged.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeplab.analysis.columns import Array
from sweeplab.data.task import TASK, task_of
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import TABLE
from sweeplab.records.runs import RunState
from sweeplab.study.rules import SETTLED, follows
from sweeplab.train.counting import train_tokens

if TYPE_CHECKING:
    import pandas as pd
    from pandas import DataFrame, Series


# The state of a trial is that of its seed which stands first here.
WORST_FIRST = tuple(
    map(RunState, ("failed", "diverged", "pruned", "running", "waiting", "stopped", "complete"))
)
VALUED = [str(state) for state in RunState if state.has_value]
COUNTED = [str(state) for state in RunState if state.counts_towards_budget]
FEW = 10
TRIAL = ["cell", "trial"]


def plain(table: DataFrame, columns: Sequence[str] = ()) -> DataFrame:
    """Return the table with NumPy's types, whose missing value is NaN or None, and with all of `columns`.

    A pair, such as betas, becomes text, as it is in a table that was read.
    """
    from pandas import DataFrame, Series
    from pandas.api.types import is_bool_dtype, is_float_dtype, is_numeric_dtype

    settled: dict[str, Series] = {name: Series(np.nan, index=table.index) for name in columns}
    for name in map(str, table.columns):
        column = table[name]
        if is_bool_dtype(column) or not is_numeric_dtype(column):
            settled[name] = column.astype(object).where(column.notna(), None).map(_as_read)
        else:
            settled[name] = column.astype(float if column.hasnans or is_float_dtype(column) else int)
    return DataFrame(settled, index=table.index)


def _as_read(value: Any) -> Any:
    return str(value) if isinstance(value, tuple) else value


def trials_table(runs: DataFrame, metric: str = "best_val_loss") -> DataFrame:
    """Return a row a trial: the mean, lowest and highest loss of its seeds, and all else of its first run.

    The last column, `best`, marks the trial of the lowest loss among those of a cell that ended.
    """
    table = runs.assign(loss=finite(runs, metric), rank=[_rank(state) for state in runs["state"]])
    grouped = table.groupby(TRIAL, sort=False)
    trials = grouped.head(1).drop(columns=["loss", "rank", "state"]).set_index(TRIAL)
    trials["state"] = grouped["rank"].min().map(dict(enumerate(map(str, WORST_FIRST))))
    trials["seeds"] = grouped.size()
    trials["loss"], trials["loss_low"], trials["loss_high"] = (
        grouped["loss"].agg(how) for how in ("mean", "min", "max")
    )
    trials = trials.reset_index()
    ended = trials[trials["state"].isin(VALUED) & trials["loss"].notna()]
    trials["best"] = trials.index.isin(ended.groupby("cell")["loss"].idxmin())
    return trials


def tasks_of(runs: DataFrame) -> Series:
    """Return in a few words what each run's loss is of: those of one task may be compared."""
    from pandas import Series

    rows: list[dict[Any, Any]] = runs[[name for name in TASK if name in runs]].to_dict("records")
    return Series([task_of(row) for row in rows], index=runs.index, dtype=object)


def check_one_task(runs: DataFrame) -> None:
    """Make sure that the losses of runs are of one thing.

    Raises:
        BadInput: they are not; says of what they are.
    """
    if len(tasks := list(dict.fromkeys(tasks_of(runs)))) > 1:
        raise BadInput(f"the losses are of unlike tasks, and not to be compared: {'; '.join(tasks)}")


def grid_of(runs: DataFrame) -> list[str]:
    """Return the hyperparameters of the study's grid, as the names of its cells tell them."""
    names = dict.fromkeys(name for cell in runs["cell"].unique() for name in re.findall(r"(\w+)=", str(cell)))
    return [name for name in names if name in TABLE and name in runs]


def searched_of(runs: DataFrame) -> list[str]:
    """Return the hyperparameters that vary inside of a cell, whether sampled or derived; not what only follows."""
    names = [name for name in TABLE if name in runs and name != "seed"]
    by_cell = runs[names].astype(str).where(runs[names].notna()).groupby(runs["cell"])
    return [name for name in names if (by_cell[name].nunique() > 1).any() and not only_follows(runs, name)]


def only_follows(runs: DataFrame, name: str) -> bool:
    """Say whether a hyperparameter has in every run the value that follows from others, such as head_dim's."""
    if name not in SETTLED:
        return False
    columns = [each for each in (name, *SETTLED[name][0]) if each in runs]
    rows: Sequence[dict[Any, Any]] = runs[columns].to_dict("records")
    return bool(rows) and all(follows(name, row) for row in rows)


def finite(table: DataFrame, column: str) -> Series:
    """Return a column as floats, with NaN for what is no finite number."""
    from pandas import Series

    if column not in table:
        return Series(np.nan, index=table.index)
    numbers = [float(each) if isinstance(each, int | float | np.number) else np.nan for each in table[column]]
    return Series(numbers, index=table.index, dtype=float).replace([np.inf, -np.inf], np.nan)


def _rank(state: str) -> int:
    return WORST_FIRST.index(RunState(state) if state in [*RunState] else RunState.RUNNING)


def marks_of(values: Series, most: int | None = FEW) -> tuple[float, ...]:
    """Return the distinct values, smallest first; nothing where there are more than `most`."""
    distinct = tuple(sorted(values.dropna().unique().tolist()))
    return distinct if most is None or len(distinct) <= most else ()


WHY_DROPPED = {
    "failed": "failed",
    "diverged": "diverged",
    "pruned": "pruned before the end",
    "running": "has not ended",
    "waiting": "has not ended",
}
_OWN_TRIAL = ["study", "cell", "trial"]
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

    runs = with_models(runs)
    ended = runs["state"].astype(str).isin(VALUED)
    finite = np.isfinite(to_numeric(runs[loss], errors="coerce").to_numpy(float, na_value=np.nan))
    reasons = runs["state"].astype(str).map(WHY_DROPPED).where(~ended, "").mask(ended & ~finite, "not finite")
    usable = reasons.eq("")
    whole = usable.groupby([runs[name] for name in _OWN_TRIAL]).transform("all").astype(bool)
    dropped = Counter(reasons[~usable].tolist())
    dropped["another seed of its trial has no end"] += int((usable & ~whole).sum())
    used = runs[usable & whole]
    if used.empty:
        raise BadInput("no run of the study has ended with a loss yet")
    check_one_task(used)
    means = used.groupby([*_POINT, *_OWN_TRIAL[1:]], sort=False)[loss].mean().reset_index()
    best = means.loc[means.groupby(_POINT, sort=False)[loss].idxmin(), _OWN_TRIAL]
    kept = used.merge(best.assign(point=_names(best)), on=_OWN_TRIAL)
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
    rows: Sequence[Any] = list(trials[_OWN_TRIAL].itertuples(index=False))
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
