"""Runs as trials: the losses of a study, its design, and the selection of trials as points of a law.

Only trials that ended (complete or stopped) have a loss; a trial is the mean of its seeds. A law's points are
the best trial of each model and length of training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeplab.data.task import TASK, task_of
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import TABLE, Hyperparameters
from sweeplab.laws.columns import Array, numbers
from sweeplab.laws.comparing import CellTrials
from sweeplab.model.shape import SETTLED
from sweeplab.records.runs import RunState
from sweeplab.study.rules import follows
from sweeplab.train.run import train_tokens

if TYPE_CHECKING:
    from pandas import DataFrame, Series

    from sweeplab.study.search import SearchSpec
    from sweeplab.study.spec import StudySpec

# The state of a trial is the one among its seeds' states that comes first here.
WORST_FIRST = tuple(
    str(state) for valued in (False, True) for state in reversed(RunState) if state.has_value is valued
)
LOST = (str(RunState.DIVERGED), str(RunState.FAILED))  # without a value, though no pruner ended them
VALUED = [str(state) for state in RunState if state.has_value]
COUNTED = [str(state) for state in RunState if state.counts_towards_budget]
WHY_DROPPED = {"pruned": "pruned before the end", "running": "has not ended", "waiting": "has not ended"}
FEW = 10
TRIAL = ["cell", "trial"]
POINT = ["study", "model", "planned_tokens"]
# Iterations are whole numbers: runs planned on the same number of tokens differ by at most this share.
ROUNDING = 0.01
# Hyperparameters that define a model; cells that differ in others differ in how it is trained.
_MODEL = [name for name, row in TABLE.items() if row.shape and row.category in ("data", "model")]


@dataclass(frozen=True)
class StudyDesign:
    """The design in a study's own file: the hyperparameters of its grid, and the search space of a cell.

    `grid` has the order of the names in a cell; `train_tokens` is the number of tokens of its training text.
    """

    grid: tuple[str, ...]
    search: Mapping[str, SearchSpec]
    train_tokens: int | None = None

    @classmethod
    def of(cls, spec: StudySpec, train_tokens: int | None = None) -> StudyDesign:
        """Return the design of a study."""
        changed = (name for cell in spec.cells for name in cell)
        return cls(tuple(dict.fromkeys((*changed, *spec.grid))), spec.search, train_tokens)


def grid_of(runs: DataFrame, design: StudyDesign | None = None) -> list[str]:
    """Return the hyperparameters of the study's grid.

    For a table without a record of its study these are the columns that are constant in each cell and differ between
    cells, in ascending order of changes between neighboring cells.
    """
    if design:
        return [name for name in design.grid if name in TABLE and name in runs]
    names = [name for name in _settled_in_cells(runs, _known(runs)) if not only_follows(runs, name)]
    cells = runs.drop_duplicates("cell")[names].astype(object).map(str)
    changes = (cells != cells.shift()).sum()
    return sorted(names, key=lambda name: float(changes[name]))


def searched_of(runs: DataFrame, design: StudyDesign | None = None) -> list[str]:
    """Return the searched hyperparameters that vary inside of a cell, whether sampled or derived.

    For a table without a record of its study these are all that vary so, except those that follow from others.
    """
    names = [name for name in _known(runs) if not design or name in design.search]
    by_cell = runs[names].astype(str).where(runs[names].notna()).groupby(runs["cell"])
    varied = [name for name in names if (by_cell[name].nunique() > 1).any()]
    return varied if design else [name for name in varied if not only_follows(runs, name)]


def _known(runs: DataFrame) -> list[str]:
    return [name for name in TABLE if name in runs and name != "seed"]


def _settled_in_cells(runs: DataFrame, names: Sequence[str]) -> list[str]:
    """Return the columns that are constant in every cell and vary between cells."""
    texts = runs[list(names)].astype(object).map(str)
    several = texts.loc[:, texts.nunique() > 1]
    return [str(name) for name, most in several.groupby(runs["cell"]).nunique().max().items() if most <= 1]


def only_follows(runs: DataFrame, name: str) -> bool:
    """Return whether a hyperparameter has in every run the value derived from others, such as head_dim."""
    if name not in SETTLED:
        return False
    columns = [each for each in (name, *SETTLED[name][0]) if each in runs]
    rows: Sequence[dict[Any, Any]] = runs[columns].to_dict("records")
    return bool(rows) and all(follows(name, row) for row in rows)


def plain(table: DataFrame, columns: Sequence[str] = ()) -> DataFrame:
    """Return the table with NumPy's types, whose missing value is NaN or None, and with all of `columns`.

    A pair, such as betas, becomes text, as in a table read from a file.
    """
    from pandas import DataFrame, Series
    from pandas.api.types import is_bool_dtype, is_float_dtype, is_numeric_dtype

    settled: dict[str, Series] = {name: Series(np.nan, index=table.index) for name in columns}
    for name in map(str, table.columns):
        column = table[name]
        if is_bool_dtype(column) or not is_numeric_dtype(column):
            given = column.astype(object).where(column.notna(), None)
            settled[name] = given.map(lambda value: str(value) if isinstance(value, tuple) else value)
        else:
            settled[name] = column.astype(float if column.hasnans or is_float_dtype(column) else int)
    return DataFrame(settled, index=table.index)


def finite(table: DataFrame, column: str) -> Series:
    """Return a column as floats, with NaN for anything but a finite number."""
    from pandas import Series

    if column not in table:
        return Series(np.nan, index=table.index)
    found = [float(each) if isinstance(each, int | float | np.number) else np.nan for each in table[column]]
    return Series(found, index=table.index, dtype=float).replace([np.inf, -np.inf], np.nan)


def valued_losses(runs: DataFrame, loss: str) -> Series:
    """Return each run's loss at the iteration where the mean curve of its trial's seeds is evaluated.

    It is `loss` instead if any run that ended lacks it: minima of seeds have a lower mean and a smaller spread.
    """
    valued, own = finite(runs, "valued_val_loss"), finite(runs, loss)
    needed = runs["state"].isin(VALUED) & own.notna()
    return own if valued[needed].isna().any() else valued.where(needed)


def marks_of(values: Series, most: int | None = FEW) -> tuple[float, ...]:
    """Return the distinct values, smallest first; empty if there are more than `most`."""
    distinct = tuple(sorted(values.dropna().unique().tolist()))
    return distinct if most is None or len(distinct) <= most else ()


def trials_table(runs: DataFrame, metric: str = "best_val_loss") -> DataFrame:
    """Return one row per trial: the mean, lowest and highest loss of its seeds, and other columns of its first run.

    The last column, `best`, marks the best trial of each cell.
    """
    ranks = [WORST_FIRST.index(state if state in WORST_FIRST else "running") for state in runs["state"]]
    grouped = runs.assign(loss=finite(runs, metric), rank=ranks).groupby(TRIAL, sort=False)
    trials = grouped.head(1).drop(columns=["loss", "rank", "state"]).set_index(TRIAL)
    trials["state"] = grouped["rank"].min().map(dict(enumerate(WORST_FIRST)))
    trials["seeds"] = grouped.size()
    for name, how in (("loss", "mean"), ("loss_low", "min"), ("loss_high", "max")):
        trials[name] = grouped["loss"].agg(how)
    trials = trials.reset_index()
    trials["best"] = are_best(trials, ["cell"])
    return trials


def are_best(trials: DataFrame, by: Sequence[str]) -> Series:
    """Mark the best trial of each group of trials: that of the lowest value, by which its study ranks it.

    Trials that have not ended are not marked. In a table without values the lowest loss is the best.
    """
    ended = trials[trials["state"].isin(VALUED) & trials["loss"].notna()]
    values = finite(ended, "value")
    ranked = ended["loss"] if values.isna().any() else values
    return trials.index.to_series().isin(ranked.groupby([ended[name] for name in by]).idxmin())


def tasks_of(runs: DataFrame) -> Series:
    """Return the task of each run in a few words: losses of one task may be compared."""
    from pandas import Series

    rows: list[dict[Any, Any]] = runs[[name for name in TASK if name in runs]].to_dict("records")
    known = ({name: each for name, each in row.items() if each is not None and each == each} for row in rows)
    return Series([task_of(Hyperparameters.of(row)) for row in known], index=runs.index, dtype=object)


def check_one_task(runs: DataFrame) -> None:
    """Raise unless the losses of runs are of one task.

    Raises:
        BadInput: they are of several tasks, which it names.
    """
    if len(tasks := list(dict.fromkeys(tasks_of(runs)))) > 1:
        raise BadInput(f"losses of different tasks cannot be compared: {'; '.join(tasks)}")


@dataclass(frozen=True)
class Selection:
    """The points' table, one row per point, and the runs that went in, one row per run; both name the `point`.

    `dropped` counts the runs left out, by reason. `spread` is the standard deviation of one seed's log loss
    around its point, with `freedom` degrees of freedom; NaN without seeds. `tried` are the trials from which each point
    is the best, by its name.
    """

    table: DataFrame
    runs: DataFrame
    weights: Array
    dropped: Counter[str]
    spread: float
    freedom: int
    tried: Mapping[str, CellTrials]


def select(runs: DataFrame, loss: str) -> Selection:
    """Return the best trial of each model and planned number of tokens, by its value, with its seeds' mean `loss`.

    Cells that differ in what is tuned, such as the learning rate, are one model. A trial counts only if all its
    seeds have ended: the mean of those that did not diverge is not its value.

    Raises:
        BadInput: no trial has ended, or trials are of different tasks.
    """
    runs = with_models(runs)
    states = runs["state"].astype(str)
    ended = states.isin(VALUED)
    reasons = (
        states.replace(WHY_DROPPED).where(~ended, "").mask(ended & finite(runs, loss).isna(), "not finite")
    )
    usable = reasons.eq("")
    own_trial = ["study", *TRIAL]
    whole = usable.groupby([runs[name] for name in own_trial]).transform("all").astype(bool)
    dropped = Counter(reasons[~usable].tolist())
    dropped["another seed of its trial has no end"] += int((usable & ~whole).sum())
    used = runs[usable & whole]
    if used.empty:
        raise BadInput("no run of the study has ended with a loss yet")
    check_one_task(used)
    # A trial's value is the minimum of its seeds' mean curve, as reported to Optuna: the mean of minima is lower.
    by = "value" if "value" in used and finite(used, "value").notna().all() else loss
    means = used.groupby([*POINT, *TRIAL], sort=False)[by].mean().reset_index()
    if means.empty:
        raise BadInput("no run that has ended says what its model and length are")
    best = means.loc[means.groupby(POINT, sort=False)[by].idxmin(), own_trial]
    parts = own_trial if best["study"].nunique() > 1 else TRIAL
    kept = used.merge(best.assign(point=best[parts].astype(str).agg("/".join, axis=1)), on=own_trial)
    dropped["not the best of its model and length"] += len(used) - len(kept)
    grouped = kept.groupby("point", sort=False)
    averaged = [name for name in ("params", "tokens", "flops", loss) if name in kept]
    table = grouped.first().assign(**{name: grouped[name].mean() for name in averaged}).reset_index()
    counts = np.asarray(grouped.size(), np.float64)
    spread, freedom = _pooled(kept, loss, counts)
    drawn = runs[states.isin(COUNTED)].drop_duplicates(own_trial).groupby(POINT).size()
    chosen = used.assign(**{loss: valued_losses(used, loss)})
    of_point = dict(chosen.groupby(POINT, sort=False).__iter__())
    keys = zip(table["point"], table[POINT].itertuples(index=False, name=None), strict=True)
    tried = {str(name): CellTrials.of(of_point[key], loss, int(drawn[key])) for name, key in keys}
    return Selection(table, kept, counts, +dropped, spread, freedom, tried)


def with_models(runs: DataFrame) -> DataFrame:
    """Return the runs with a label of each one's model, and the number of tokens each was planned for.

    Models differ in values that are constant in each cell of their study; a searched size does not define a model. Runs
    of one model whose tokens differ by ROUNDING or less count as planned for the same number: their median.
    """
    trained = runs.assign(train_tokens=numbers(runs, "train_tokens")).fillna({"train_tokens": -1.0})
    planned = [_planned_tokens(run) for run in trained.to_dict("records")]
    study = runs["study"].astype(str) if "study" in runs else ""
    runs = runs.assign(study=study, model="", planned_tokens=planned)
    names = [name for name in (*_MODEL, "n_params") if name in runs]
    for _, own in runs.groupby("study", sort=False):
        settled = own[_settled_in_cells(own, names)].astype(object).map(str)
        marks = map(",".join, settled.itertuples(index=False, name=None))
        runs.loc[own.index, "model"] = list(marks) if len(settled.columns) else "all"
    for _, own in runs.groupby(["study", "model"], sort=False):
        tokens = own["planned_tokens"].sort_values()
        same = (tokens / tokens.shift() > 1.0 + ROUNDING).cumsum()
        runs.loc[tokens.index, "planned_tokens"] = tokens.groupby(same).transform("median")
    return runs


def values_of(run: Mapping[Any, Any]) -> Hyperparameters:
    """Return the hyperparameters of a table's row.

    Raises:
        KeyError: one that the counts of tokens and FLOPs need is missing.
    """
    needed = ["batch_size", "batch_warmup_iters", "block_size"]
    if run.get("objective") == "span":
        needed += ["mask_share", "span_length"]
    if missing := [name for name in needed if name not in run]:
        raise KeyError(*missing)
    return Hyperparameters.of(run)


def _planned_tokens(run: Mapping[Any, Any]) -> float:
    """Return the tokens that a run was planned for, even if it stopped early."""
    try:
        return float(train_tokens(values_of(run), run["max_iters"]))
    except (KeyError, TypeError, ValueError):  # a table from elsewhere may lack the columns needed
        return float(run["train_tokens"])


def _pooled(kept: DataFrame, loss: str, counts: Array) -> tuple[float, int]:
    """Return the spread of one seed, pooled over all points with several, and its degrees of freedom.

    It is pooled because the spread of three seeds is wrong by a factor of two in every fourth point, and weights of
    its inverse square would let the points whose seeds happen to agree dominate the fit.
    """
    freedom = int((counts - 1).sum())
    if freedom == 0:
        return float("nan"), 0
    logs = kept[loss].astype(float).map(np.log)
    around = logs - logs.groupby(kept["point"]).transform("mean")
    return float(np.sqrt((around**2).sum() / freedom)), freedom
