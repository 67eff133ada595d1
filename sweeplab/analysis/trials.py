"""Runs as trials: what of a study stands for a loss, and what its sizes are.

Only trials that ended (complete or stopped) stand for a loss; a trial is the mean of its seeds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from pandas import DataFrame, Series
from pandas.api.types import is_bool_dtype, is_float_dtype, is_numeric_dtype

from sweeplab.data.objectives import task_of
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import TABLE
from sweeplab.lab.listing import TASK
from sweeplab.study.rules import SETTLED, follows

# The state of a trial is that of its seed which stands first here.
STATES = ("failed", "diverged", "pruned", "running", "waiting", "stopped", "complete")
ENDED = ("complete", "stopped")
FEW = 10
TRIAL = ["cell", "trial"]


def plain(table: DataFrame, columns: Sequence[str] = ()) -> DataFrame:
    """Return the table with NumPy's types, whose missing value is NaN or None, and with all of `columns`.

    A pair, such as betas, becomes text, as it is in a table that was read.
    """
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
    trials["state"] = grouped["rank"].min().map(dict(enumerate(STATES)))
    trials["seeds"] = grouped.size()
    trials["loss"], trials["loss_low"], trials["loss_high"] = (
        grouped["loss"].agg(how) for how in ("mean", "min", "max")
    )
    trials = trials.reset_index()
    ended = trials[trials["state"].isin(ENDED) & trials["loss"].notna()]
    trials["best"] = trials.index.isin(ended.groupby("cell")["loss"].idxmin())
    return trials


def tasks_of(runs: DataFrame) -> Series:
    """Return in a few words what each run's loss is of: those of one task may be compared."""
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
    if column not in table:
        return Series(np.nan, index=table.index)
    numbers = [float(each) if isinstance(each, int | float | np.number) else np.nan for each in table[column]]
    return Series(numbers, index=table.index, dtype=float).replace([np.inf, -np.inf], np.nan)


def _rank(state: str) -> int:
    return STATES.index(state) if state in STATES else STATES.index("running")


def marks_of(values: Series, most: int | None = FEW) -> tuple[float, ...]:
    """Return the distinct values, smallest first; nothing where there are more than `most`."""
    distinct = tuple(sorted(values.dropna().unique().tolist()))
    return distinct if most is None or len(distinct) <= most else ()
