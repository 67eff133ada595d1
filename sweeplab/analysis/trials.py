"""Runs as trials: the losses of a study, its design, and the selection of trials as points of a law.

Only trials that ended (complete or stopped) have a loss; a trial is the mean of its seeds. A law's points are
the best trial of each model and length of training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sweeplab.data import TASK, task_of
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import TABLE, Hyperparameters
from sweeplab.laws.columns import Array
from sweeplab.records.runs import RunState
from sweeplab.study.choice import Ranking, Tried, first_of_same, is_tuned, rank
from sweeplab.study.problems import LENGTHS
from sweeplab.study.values import Derived
from sweeplab.train.run import train_tokens

if TYPE_CHECKING:
    from pandas import DataFrame, Series

    from sweeplab.study.spec import StudySpec
    from sweeplab.study.values import SearchSpec

# The state of a trial is the one among its seeds' states that comes first here.
WORST_FIRST = tuple(
    str(state)
    for valued in (False, True)
    for state in reversed(RunState)
    if state.has_value is valued
)
# Without a value, though no pruner ended them.
LOST = (str(RunState.DIVERGED), str(RunState.FAILED))
VALUED = [str(state) for state in RunState if state.has_value]
COUNTED = [str(state) for state in RunState if state.counts_towards_budget]
WHY_DROPPED = {
    "pruned": "pruned before the end",
    "running": "has not ended",
    "waiting": "has not ended",
}
FEW = 10
NEAR = 0.01  # of log loss: what values cost is known less the more it is
MOST_LUCK = 0.03  # of log loss: what is further from its expectation is not only luck
TRIAL = ["cell", "trial"]
POINT = ["study", "model", "planned_tokens"]
# Iterations are whole numbers: runs planned on the same number of tokens differ by at most this share.
ROUNDING = 0.01
# Hyperparameters that define a model; cells that differ in others differ in how it is trained.
_MODEL = [name for name in TABLE if not is_tuned(name) and name not in LENGTHS]


class StudyDesign(NamedTuple):
    """The design in a study's own file: the hyperparameters of its grid, and the search space of a cell.

    `grid` has the order of the names in a cell.
    """

    grid: tuple[str, ...]
    search: Mapping[str, SearchSpec]

    @classmethod
    def of(cls, spec: StudySpec) -> StudyDesign:
        """Return the design of a study."""
        changed = (name for cell in spec.cells for name in cell)
        return cls(tuple(dict.fromkeys((*changed, *spec.grid))), spec.search)


def grid_of(runs: DataFrame, design: StudyDesign | None = None) -> list[str]:
    """Return the hyperparameters of the study's grid.

    For a table without a record of its study these are the columns that are constant in each cell and differ between
    cells.
    """
    if design:
        return [name for name in design.grid if name in TABLE and name in runs]
    return _settled_in_cells(runs, _known(runs))


def searched_of(runs: DataFrame, design: StudyDesign | None = None) -> list[str]:
    """Return the searched hyperparameters that vary inside of a cell, whether sampled or derived.

    For a table without a record of its study these are all that vary so.
    """
    names = [name for name in _known(runs) if not design or name in design.search]
    texts = runs[names].astype(str).where(runs[names].notna())
    most = texts.groupby(runs["cell"]).nunique().max()
    return [name for name in names if most[name] > 1]


def _known(runs: DataFrame) -> list[str]:
    return [name for name in TABLE if name in runs and name != "seed"]


def _settled_in_cells(runs: DataFrame, names: Sequence[str]) -> list[str]:
    texts = runs[list(names)].astype(object).map(str)
    several = texts.loc[:, texts.nunique() > 1]
    most = several.groupby(runs["cell"]).nunique().max()
    return [str(name) for name in most[most <= 1].index]


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
            values = column.astype(object).where(column.notna(), None)
            settled[name] = values.map(
                lambda value: str(value) if isinstance(value, tuple) else value
            )
        elif column.hasnans or is_float_dtype(column):
            settled[name] = column.astype(float)
        else:
            settled[name] = column.astype(int)
    return DataFrame(settled, index=table.index)


def finite(table: DataFrame, column: str) -> Series:
    """Return a column as floats, with NaN for anything but a finite number."""
    from pandas import Series

    if column not in table:
        return Series(np.nan, index=table.index)
    cells = [
        float(cell) if isinstance(cell, int | float | np.number) else np.nan
        for cell in table[column]
    ]
    return Series(cells, index=table.index, dtype=float).replace([np.inf, -np.inf], np.nan)


def valued_losses(runs: DataFrame, loss: str) -> Series:
    """Return each run's loss at the iteration where the mean curve of its trial's seeds is evaluated.

    It is `loss` instead if any run that ended lacks it: minima of seeds have a lower mean and a smaller spread.
    """
    valued, losses = finite(runs, "valued_val_loss"), finite(runs, loss)
    needed = runs["state"].isin(VALUED) & losses.notna()
    if valued[needed].isna().any():
        return losses
    return valued.where(needed)


def marks_of(values: Series) -> tuple[float, ...]:
    """Return the distinct values, smallest first; empty if there are more than `FEW`."""
    distinct = sorted(values.dropna().unique().tolist())
    if len(distinct) > FEW:
        return ()
    return tuple(distinct)


def rankings(
    runs: DataFrame, designs: Mapping[str, StudyDesign] | None = None
) -> dict[str, Ranking]:
    """Return the order of the trials that have a value, by study; `designs` are the studies' own."""
    own_trial = [runs[name] for name in ("study", *TRIAL)]
    ended = runs[runs["state"].isin(VALUED).groupby(own_trial).transform("all").astype(bool)]
    ranked = {}
    for study, of_study in ended.groupby("study", sort=False):
        design = (designs or {}).get(str(study))
        searched = searched_of(of_study, design)
        if design:
            searched = [
                name for name in searched if not isinstance(design.search[name], Derived)
            ]
        grid = [name for name in grid_of(of_study, design) if name not in searched]
        by_trial = of_study.groupby(TRIAL, sort=False)
        tried = [trial for _, seeds in by_trial if (trial := _tried(seeds, grid, searched))]
        if tried:
            ranked[str(study)] = rank(tried)
    return ranked


def _tried(seeds: DataFrame, grid: Sequence[str], searched: Sequence[str]) -> Tried | None:
    values = finite(seeds, "value").dropna()
    if values.empty:
        values = finite(seeds, "best_val_loss").dropna()
    if values.empty:
        return None
    row = seeds.iloc[0].dropna().to_dict()
    sizes, sampled = (
        {name: row[name] for name in names if name in row} for names in (grid, searched)
    )
    losses = dict(
        zip(seeds["seed"].map(int), finite(seeds, "valued_val_loss").tolist(), strict=True)
    )
    return Tried.of(
        (str(row["cell"]), int(row["trial"])), float(values.mean()), sizes, sampled, losses
    )


def with_expected(runs: DataFrame, ranked: Mapping[str, Ranking] | None = None) -> DataFrame:
    """Return the runs with the value by which their trials are ranked, and the first trial with the same values.

    These are the columns `expected` and `first_trial`; the first is the trial itself unless it repeats another.
    """
    if "expected" in runs:
        return runs
    if ranked is None:
        ranked = rankings(runs)
    by_trial = {}
    for study, ranking in ranked.items():
        first = first_of_same(ranking.order)
        for trial in ranking.order:
            known = ranking.expected.get(trial.place)
            by_trial[study, *trial.place] = (
                known.value if known else trial.value,
                first[trial.place],
            )
    places = zip(
        runs["study"].astype(str), runs["cell"].astype(str), runs["trial"], strict=True
    )
    rows = [by_trial.get(place, (np.nan, int(place[2]))) for place in places]
    return runs.assign(expected=[row[0] for row in rows], first_trial=[row[1] for row in rows])


def trials_table(runs: DataFrame, metric: str = "best_val_loss") -> DataFrame:
    """Return one row per trial: the mean, lowest and highest loss of its seeds, and other columns of its first run.

    The last column, `best`, marks the best trial of each cell.
    """
    places = {state: place for place, state in enumerate(WORST_FIRST)}
    ranks = [places.get(state, places["running"]) for state in runs["state"]]
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
    """Mark the best trial of each group of trials: that of the lowest expected value, then of the lowest value.

    Trials that have not ended are not marked. In a table without values the lowest loss is the best.
    """
    ended = trials[trials["state"].isin(VALUED) & trials["loss"].notna()]
    values = finite(ended, "value")
    if values.isna().any():
        values = ended["loss"]
    expected = finite(ended, "expected").fillna(values)
    order = ended.assign(expected=expected, value=values).sort_values(
        ["expected", "value"], kind="stable"
    )
    return trials.index.to_series().isin(order.drop_duplicates(list(by)).index)


def tasks_of(runs: DataFrame) -> Series:
    """Return the task of each run in a few words: losses of one task may be compared."""
    from pandas import Series

    rows: list[dict[Any, Any]] = runs[[name for name in TASK if name in runs]].to_dict(
        "records"
    )
    known = (
        {name: each for name, each in row.items() if each is not None and each == each}
        for row in rows
    )
    return Series(
        [task_of(Hyperparameters.of(row)) for row in known], index=runs.index, dtype=object
    )


def check_one_task(runs: DataFrame) -> None:
    """Raise unless the losses of runs are of one task."""
    tasks = list(dict.fromkeys(tasks_of(runs)))
    if len(tasks) > 1:
        raise BadInput(f"losses of different tasks cannot be compared: {'; '.join(tasks)}")


class Selection(NamedTuple):
    """The points' table, one row per point, and the runs that went in, one row per run; both name the `point`.

    `weights` are the numbers of runs whose mean a point's loss is. `dropped` counts the runs left out, by reason.
    `spread` is the standard deviation of one seed's log loss around its point; None without seeds.
    """

    table: DataFrame
    runs: DataFrame
    weights: Array
    dropped: Counter[str]
    spread: float | None


def select(runs: DataFrame, loss: str) -> Selection:
    """Return the best trial of each model and planned number of tokens, with the `loss` that all its trials give it.

    That is the mean loss of its seeds where there is no surrogate. The trial is the one of lowest expected value
    (`study/choice.py`); its repetitions on other seeds count as its seeds. Cells that differ in what is tuned, such as
    the learning rate, are one model. A trial counts only if all its seeds have ended: the mean of those that did not
    diverge is not its value.

    Raises:
        BadInput: no trial has ended, or trials are of different tasks.
    """
    runs = with_expected(with_models(runs))
    states = runs["state"].astype(str)
    ended = states.isin(VALUED)
    reasons = states.replace(WHY_DROPPED).mask(ended, "")
    reasons[ended & finite(runs, loss).isna()] = "not finite"
    usable = reasons.eq("")
    whole = (
        usable.groupby([runs[name] for name in ("study", *TRIAL)]).transform("all").astype(bool)
    )
    reasons[usable & ~whole] = "another seed of its trial has no end"
    dropped, used = Counter(reasons[reasons.ne("")]), runs[whole]
    if used.empty:
        raise BadInput("no run of the study has ended with a loss")
    check_one_task(used)
    # A trial's value is the minimum of its seeds' mean curve, as reported to Optuna: the mean of minima is lower.
    by = "value" if finite(used, "value").notna().all() else loss
    means = (
        used.groupby([*POINT, *TRIAL, "first_trial"], sort=False)[["expected", by]]
        .mean()
        .reset_index()
    )
    if means.empty:
        raise BadInput("no run that has ended says what its model and length are")
    best = means.fillna({"expected": means[by]}).sort_values(["expected", by], kind="stable")
    best = best.drop_duplicates(POINT).sort_index()
    parts = ["study", *TRIAL]
    if best["study"].nunique() == 1:  # one study's points need no study in their names
        parts = TRIAL
    best["point"] = best[parts].astype(str).agg("/".join, axis=1)
    # All trials of each point; those of the best, and those that repeat it, are its own.
    chosen = best[[*POINT, "point", "cell", "first_trial"]]
    of_points = used.merge(chosen, on=POINT, suffixes=("", "_of_best"))
    in_cell = of_points["cell"] == of_points["cell_of_best"]
    of_points["is_own"] = in_cell & (
        of_points["first_trial"] == of_points["first_trial_of_best"]
    )
    kept = of_points[of_points["is_own"]]
    if len(kept) < len(used):
        dropped["not the best of its model and length"] = len(used) - len(kept)
    levels = _levels(of_points, by)
    shifts = kept["point"].map({name: level for name, (level, _) in levels.items()})
    kept = kept.assign(**{loss: finite(kept, loss) * np.exp(shifts)})
    grouped = kept.groupby("point", sort=False)
    averaged = [name for name in ("params", "tokens", "flops", loss) if name in kept]
    table = grouped.first().assign(**grouped[averaged].mean()).reset_index()
    # The spread of three seeds is wrong by a factor of two in every fourth point, and weights of its inverse square
    # would let the points whose seeds happen to agree dominate the fit: so it is pooled over all points.
    freedom, spread = len(kept) - len(table), None
    if freedom:
        logs = kept[loss].astype(float).map(np.log)
        around = logs - logs.groupby(kept["point"]).transform("mean")
        spread = float(np.sqrt((around**2).sum() / freedom))
    weights = np.array([levels[name][1] for name in table["point"]])
    return Selection(table, kept, weights, dropped, spread)


def _levels(used: DataFrame, by: str) -> dict[str, tuple[float, float]]:
    """Return for each point the log of its expected loss over its own seeds' mean, and of how many runs that is.

    `used` has the runs of all trials of each `point`; `is_own` marks the seeds of the chosen one. These are few, and
    their mean is partly luck. All trials of the point, less what their values cost by the surrogate, are more. The
    surrogate's own level is not taken: it is smooth over the sizes, and would hide the noise from a law. A trial
    counts less the more its values cost, and not if its loss is further than MOST_LUCK from what is expected.
    """
    levels = {}
    used = used.assign(**{by: used.groupby(["study", *TRIAL])[by].transform("mean")})
    for point, runs in used.groupby("point", sort=False):
        is_own = runs["is_own"].to_numpy(bool)
        levels[str(point)] = 0.0, float(is_own.sum())
        losses, expected = (
            np.log(finite(runs, name).where(lambda column: column > 0).to_numpy())
            for name in (by, "expected")
        )
        luck = losses - expected
        known = np.isfinite(luck) & (np.abs(luck) <= MOST_LUCK)
        # There is a surrogate.
        if np.any(np.abs(luck[known]) > 1e-9) and np.isfinite(luck[is_own]).all():
            middle = expected[is_own].mean()
            weights = 1 / (1 + ((expected[known] - middle) / NEAR) ** 2)
            level = (
                middle + float(weights @ luck[known] / weights.sum()) - losses[is_own].mean()
            )
            levels[str(point)] = level, float(weights.sum() ** 2 / (weights @ weights))
    return levels


def with_models(runs: DataFrame) -> DataFrame:
    """Return the runs with a label of each one's model, and the number of tokens each was planned for.

    Models differ in values that are constant in each cell of their study; a searched size does not define a model. Runs
    of one model whose tokens differ by ROUNDING or less count as planned for the same number: their median.
    """

    rows: Sequence[dict[Any, Any]] = runs.to_dict("records")
    planned = [float(train_tokens(Hyperparameters.of(row), row["max_iters"])) for row in rows]
    runs = runs.assign(study=runs["study"].astype(str), model="all", planned_tokens=planned)
    names = [name for name in (*_MODEL, "n_params") if name in runs]
    for _, of_study in runs.groupby("study", sort=False):
        settled = of_study[_settled_in_cells(of_study, names)].astype(object).map(str)
        if len(settled.columns):
            marks = map(",".join, settled.itertuples(index=False, name=None))
            runs.loc[of_study.index, "model"] = list(marks)
    for _, alike in runs.groupby(["study", "model"], sort=False):
        tokens = alike["planned_tokens"].sort_values()
        same = (tokens / tokens.shift() > 1.0 + ROUNDING).cumsum()
        runs.loc[tokens.index, "planned_tokens"] = tokens.groupby(same).transform("median")
    return runs
