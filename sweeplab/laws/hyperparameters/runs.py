"""The runs of a table in cells of equal size and tokens, as logs, and the tuning excess of every cell.

The excess is how far the best tried loss of a cell lies above what its best values would reach. The trials of all cells
are fitted at once by the Gaussian process of `surrogate.py`, over the searched numbers and the sizes. Draws of its
posterior over a grid of searched values of every cell give draws of the excess: the loss at the best tried value minus
the lowest of the grid, never negative. The grid goes beyond the values tried, as the best one may lie there.

Legend: C cells, J searched values, S draws, g values of a cell's grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.formatting import listed, rounded, several, short
from sweeplab.hyperparameters import TABLE
from sweeplab.laws.columns import (
    ROLES,
    guessed_columns,
    named_column,
    own_columns,
    pairs_of,
    parse_columns,
    read_columns,
    rows_where,
)
from sweeplab.laws.points import EACH, Points, TuningRecord, points_of_frame
from sweeplab.laws.surrogate import DEPARTURE, Columns, condition, fit_scales

if TYPE_CHECKING:
    import pandas as pd

    from sweeplab.laws.columns import Conventions

Array = NDArray[np.float64]

# Other names of searched values and of sizes, in small letters; `batch` and `h` are those of published tables.
OTHER_NAMES = {
    "learning_rate": "lr peak_lr max_lr base_lr eta",
    "batch_size": "bs batch global_batch_size gbs batch_tokens batch_size_tokens",
    "weight_decay": "wd lambda decay",
    "n_embd": "d_model width hidden_size model_dim d h",
    "n_layer": "depth num_layers n_layers layers numl l",
    "tokens": "steps iterations iters n_steps num_steps max_iters",
}
SIZES = ("params", "tokens", "n_embd", "n_layer")
SHAPE = ("n_embd", "n_layer")
_SHORT = {"N": "params", "D": "tokens"}
# Tokens of one cell may differ by this share: a batch size need not divide them.
_SAME_SIZE = {"params": 0.01, "tokens": 0.05}
_NOT_SEARCHED = {"seed", "max_iters", "data_limit", *SHAPE}
_MOST_SEARCHED = 3
_FOLLOWS = 0.999  # the correlation within cells of a value that is computed from another


@dataclass(frozen=True)
class SearchedRuns:
    """Runs with logs: searched values [n, J], losses [n], and the sizes of cells [C, k]; `cell` [n] is each run's.

    `said` describes the columns, `dropped` counts rows that are left out, and `notes` says what was not searched.
    `columns` are those of a table that have the searched values. Where rows are means over seeds, `seeds` [n] counts
    these.
    """

    names: tuple[str, ...]
    sizes: tuple[str, ...]
    x: Array
    y: Array
    cell: NDArray[np.intp]
    logs: Array
    said: Mapping[str, str]
    dropped: Mapping[str, int]
    notes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    seeds: Array | None = None

    @property
    def n_cells(self) -> int:
        """Return the number of cells."""
        return len(self.logs)

    def cell_name(self, c: int) -> str:
        """Return a cell's name by its sizes."""
        shown = [name for name in (*SHAPE, "params", "tokens") if name in self.sizes]
        if set(SHAPE) <= set(shown):
            shown = [name for name in shown if name != "params"]
        return ",".join(f"{name}={rounded(math.exp(float(self.log_of(name)[c])))}" for name in shown)

    def over(self, names: Sequence[str]) -> SearchedRuns:
        """Return the runs with some of the searched values; the others count as noise, and `notes` says so."""
        left = [name for name in self.names if name not in names]
        notes = [f"no minimum is seen over {listed(left)}: its values count as noise"] if left else []
        places = [self.names.index(name) for name in names]
        return replace(self, names=tuple(names), x=self.x[:, places], notes=(*self.notes, *notes))

    def log_of(self, size: str) -> Array:
        """Return the log of a size of each cell."""
        return np.asarray(self.logs[:, self.sizes.index(size)])

    def ends(self, j: int) -> tuple[Array, Array]:
        """Return the smallest and the largest value j that each cell tried, in logs."""
        low, high = np.full(self.n_cells, np.inf), np.full(self.n_cells, -np.inf)
        np.minimum.at(low, self.cell, self.x[:, j])
        np.maximum.at(high, self.cell, self.x[:, j])
        return low, high

    @cached_property
    def lowest(self) -> Array:
        """Return the lowest log loss of each cell."""
        lowest = np.full(self.n_cells, np.inf)
        np.minimum.at(lowest, self.cell, self.y)
        return lowest

    def best(self, j: int) -> Array:
        """Return the log of value j with the lowest loss of each cell; runs that differ in their seed are averaged."""
        trials = self.averaged()
        order = np.argsort(trials.y, kind="stable")[::-1]
        lowest = np.full(self.n_cells, np.nan)
        lowest[trials.cell[order]] = trials.x[order, j]
        return lowest

    def averaged(self) -> SearchedRuns:
        """Return a row for each trial, with the mean log loss of its seeds."""
        keys = np.column_stack([self.cell, self.x.round(6)])
        trials, place = np.unique(keys, axis=0, return_inverse=True)
        seeds = np.bincount(place.ravel()).astype(float)
        y = np.bincount(place.ravel(), self.y) / seeds
        return replace(self, cell=trials[:, 0].astype(np.intp), x=trials[:, 1:], y=y, seeds=seeds)

    def best_at_end(self, j: int) -> str:
        """Say where most cells have their best value j if that is at an end of the values tried; else nothing."""
        best = self.best(j)
        for ends, where in zip(self.ends(j), ("lowest", "highest"), strict=True):
            n_there = int((np.abs(best - ends) < 1e-3).sum())
            if 2 * n_there > self.n_cells:
                cells = several(self.n_cells, "cell")
                return f"the {where} {self.names[j]} tried is the best in {n_there} of {cells}"
        return ""

    def steps(self, j: int) -> tuple[NDArray[np.intp], Array]:
        """Return how many values j each cell tried, and the median log step between neighbors (0 with one value)."""
        counts, steps = np.zeros(self.n_cells, np.intp), np.zeros(self.n_cells)
        for c in range(self.n_cells):
            values = np.unique(self.x[self.cell == c, j].round(4))
            counts[c] = len(values)
            if len(values) > 1:
                steps[c] = float(np.median(np.diff(values)))
        return counts, steps


def parse_searched(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """Split "params=N,loss=L,learning_rate=lr" into the columns of roles, and those of searched values and shapes.

    Raises:
        BadInput: a name that is neither a role nor a hyperparameter, or is named twice.
    """
    roles, searched, problems = [], dict[str, str](), []
    for pair, name, column in pairs_of(text):
        if name not in TABLE or name in ROLES:
            if name not in ROLES and column:
                allowed = (*ROLES, *OTHER_NAMES)
                like = nearest(name, {*allowed, *TABLE})
                problems.append(Problem(f"--columns has no {name!r}", ", ".join(allowed), like))
            roles.append(pair)
        elif name in searched:
            problems.append(Problem(f"--columns names {name!r} twice"))
        else:
            searched[name] = column
    if problems:
        raise BadInput(*problems)
    return parse_columns(",".join(roles)) if roles else {}, searched


def parse_at(text: str) -> dict[str, float]:
    """Return {"params": 1e9, "tokens": 2e10} of "N=1e9,D=2e10"; sizes, and searched values whose loss is asked for.

    Raises:
        BadInput: what is no pair of a name and a positive number.
    """
    target = {}
    for pair, name, number in pairs_of(text):
        name = _SHORT.get(name, name)
        try:
            target[name] = float(number)
        except ValueError:
            target[name] = math.nan
        if name not in SIZES and name != "flops" and name not in TABLE:
            allowed = ", ".join((*SIZES, "flops", "N", "D", "a searched hyperparameter"))
            raise BadInput(Problem(f"--at has no {name!r}", allowed, nearest(name, (*SIZES, *TABLE))))
        if not 0 < target[name] < math.inf:
            raise BadInput(Problem(f"--at {pair!r}", "N=, D=, n_embd=, n_layer= and a positive number"))
    return target


def runs_of_frame(
    frame: pd.DataFrame,
    source: str,
    columns: Mapping[str, str] | None = None,
    named: Mapping[str, str] | None = None,
    where: str = "",
    only: Sequence[str] | None = None,
) -> SearchedRuns:
    """Return the runs of a table; columns that `columns` (roles) and `named` do not name are found by their names.

    `only` names the hyperparameters that were searched, where a study says so.

    Raises:
        BadInput: no such column, no loss, no size, nothing searched, or a cell that is not a number.
    """
    if where:
        frame = rows_where(frame, where, source)
    known = [str(name) for name in frame]
    roles, chosen = _columns(known, dict(columns or {}), dict(named or {}), source)
    read = read_columns(frame, roles, source)
    words = {role: column.words for role, column in read.items()}
    values = {role: column.values for role, column in read.items()}
    if "tokens" not in values and {"flops", "params"} <= values.keys():
        values["tokens"] = values["flops"] / (6 * values["params"])
        words["tokens"] = "flops / (6 params)"
    values.pop("flops", None)
    for name, column in chosen.items():
        values[name] = _numbers(frame, column, name, source)
        words[name] = f"column {column}"
    sizes = [name for name in SIZES if name in values]
    if not sizes:
        what = f"{source}: no column is a size; name params, tokens, n_embd or n_layer with --columns"
        raise BadInput(Problem(what, ", ".join(known)))
    first = list(OTHER_NAMES)  # of two values that follow each other, the one that people mean
    ordered = sorted(chosen, key=lambda name: first.index(name) if name in first else len(first))
    searched = [name for name in ordered if name not in SHAPE and (only is None or name in only)]
    is_run = np.isfinite(values["loss"]) & np.all([np.isfinite(values[name]) for name in sizes], axis=0)
    dropped = {"without a loss or a size": int((~is_run).sum())}
    searched, notes = _searched(values, searched, sizes, is_run)
    if not searched:
        what = f"{source}: no numeric hyperparameter has several positive values in a cell"
        what += "; name its column with --columns learning_rate=COLUMN"
        raise BadInput(Problem(what, ", ".join(known), nearest("learning_rate", known)))
    positive = np.all([values[name] > 0 for name in searched], axis=0)
    dropped["with a searched value that is not positive"] = int((is_run & ~positive).sum())
    keep = is_run & positive
    logs, cell = _cells({name: np.log(values[name][keep]) for name in sizes})
    return SearchedRuns(
        names=tuple(searched),
        sizes=tuple(sizes),
        x=np.column_stack([np.log(values[name][keep]) for name in searched]),
        y=np.log(values["loss"][keep]),
        cell=cell,
        logs=logs,
        said={name: words[name] for name in (*sizes, "loss", *searched)},
        dropped={why: count for why, count in dropped.items() if count},
        notes=notes,
        columns=tuple(chosen[name] for name in searched),
    )


def _columns(
    known: list[str], asked: dict[str, str], named: dict[str, str], source: str
) -> tuple[dict[str, str], dict[str, str]]:
    taken = {named_column(column, known)[0] for column in (*asked.values(), *named.values())}
    free = [name for name in known if name not in taken]
    roles = own_columns(free) | asked
    taken |= {named_column(column, known)[0] for column in roles.values()}
    guessed = guessed_columns([name for name in free if name not in taken], taken)
    roles = {role: column for role, column in guessed.items() if role not in roles} | roles
    roles.pop("group", None)
    if "loss" not in roles:
        losses = [name for name in known if "loss" in name.lower() and name not in taken]
        if len(losses) != 1:
            what = f"{source}: which column is the loss? name it with --columns loss=COLUMN"
            raise BadInput(Problem(what, ", ".join(losses or known), nearest("loss", known)))
        roles["loss"] = losses[0]
    taken |= {named_column(column, known)[0] for column in roles.values()}
    chosen: dict[str, str] = {}
    for name in TABLE:
        if name in named:
            if named[name] not in known:
                what = f"{source}: no column {named[name]!r}"
                raise BadInput(Problem(what, ", ".join(known), nearest(named[name], known)))
            chosen[name] = named[name]
        elif name in known and name not in taken:
            chosen[name] = name
    for name, others in OTHER_NAMES.items():
        match = [column for column in known if column.lower() in others.split() and column not in taken]
        match = [column for column in match if column not in chosen.values()]
        if name == "tokens":
            if "tokens" not in roles and "flops" not in roles and match:
                roles["tokens"] = match[0]
        elif match and name not in chosen:
            chosen[name] = match[0]
    return roles, chosen


def _numbers(frame: pd.DataFrame, column: str, name: str, source: str) -> Array:
    """Return a column's numbers; NaN for what is no number, unless some are: then the others are refused."""
    import pandas as pd

    texts = frame[column]
    if pd.api.types.is_bool_dtype(texts):
        return np.full(len(frame), np.nan)
    values = np.asarray(pd.to_numeric(texts, errors="coerce").to_numpy(float, na_value=np.nan), np.float64)
    bad = texts[np.isnan(values) & texts.notna().to_numpy()]
    if len(bad) and np.isfinite(values).any() and (name in SHAPE or len(bad) < len(texts) / 2):
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        cell = f"{str(bad.iloc[0])[:60]!r} in {frame.index.name or 'row'} {bad.index[0]}{more}"
        raise BadInput(f"{source}: column {column!r} ({name}): {cell} is not a number")
    return values


def _searched(
    values: Mapping[str, Array], names: Sequence[str], sizes: Sequence[str], keep: NDArray[np.bool_]
) -> tuple[list[str], tuple[str, ...]]:
    cell = _cells({name: np.log(values[name][keep]) for name in sizes})[1]
    searched, notes, centered = list[str](), list[str](), dict[str, Array]()
    for name in names:
        numbers = values[name][keep]
        is_positive = np.isfinite(numbers) & (numbers > 0)
        if name in _NOT_SEARCHED or is_positive.mean() < 0.5:
            continue
        logs = np.log(np.where(is_positive, numbers, 1.0))
        counts = np.bincount(cell, is_positive)
        means = np.bincount(cell, logs * is_positive) / np.maximum(counts, 1)
        away = (logs - means[cell]) * is_positive
        varied = np.bincount(cell, np.abs(away) > 1e-6) > 0
        if varied.sum() < max(1, 0.3 * len(varied)) or np.abs(away).max() < 0.05:
            continue
        follows = [
            other
            for other in searched
            if abs(float(away @ centered[other]))
            > _FOLLOWS * math.sqrt(float(away @ away) * float(centered[other] @ centered[other]))
        ]
        if follows:
            notes.append(f"{name} follows {follows[0]} in every cell, and is not fitted apart from it")
        elif len(searched) == _MOST_SEARCHED:
            most = f"{_MOST_SEARCHED} are fitted at once"
            notes.append(f"{name} was searched too; {most}, and --columns names which")
        else:
            searched.append(name)
            centered[name] = away
    return searched, tuple(notes)


def _cells(logs: Mapping[str, Array]) -> tuple[Array, NDArray[np.intp]]:
    n = len(next(iter(logs.values())))
    cell = np.zeros(n, np.intp)
    for name in sorted(logs, key=lambda size: size == "tokens"):  # tokens last, within equal models
        for c in range(int(cell.max(initial=-1)) + 1):
            rows = np.flatnonzero(cell == c)
            order = rows[np.argsort(logs[name][rows], kind="stable")]
            start, fresh = logs[name][order[0]], c
            for row in order:
                if logs[name][row] - start > _SAME_SIZE.get(name, 1e-6):
                    start, fresh = logs[name][row], int(cell.max()) + 1
                cell[row] = fresh
    table: Any = np.column_stack(list(logs.values()))
    counts = np.bincount(cell)
    means = np.stack([np.bincount(cell, column) / counts for column in table.T], 1)
    order = np.lexsort(means.T[::-1])
    number = np.empty(len(order), np.intp)
    number[order] = np.arange(len(order))
    return means[order], number[cell]


N_DRAWS = 300
_MARGIN = 0.5  # of half the range tried, beyond either end
_ALONG = 17  # values of a cell's grid, if one is searched; more of several
_DRAWN = 24
_MOST_CELLS, _MOST_ROWS = 60, 600
# Of log loss above a cell's best: trials farther, but for the best of a cell, say little about the best values.
_NEAR, _LEAST_TRIALS = 0.10, 3
_FEWEST = 2  # trials in a cell, on average
_SHOWN = 6  # the best trials of a cell, one of which is the best
# Wider than the sampler's, whose proposals are to look around: in a narrow range departures from a quadratic are below
# 1% of the loss, and over decades of learning rates a tenth of it.
_DEPARTURE = (DEPARTURE[0], 1.5)
_EDGE = 0.25  # how likely a best value lies beyond the values tried, before a wider range is the cure


@dataclass(frozen=True)
class Excess:
    """Draws of the excess of log loss of each cell, [S, C], of trials that searched `names`.

    `level` [C] is the expected log loss of the best value tried, NaN if it is not known, and `n_trials` [C] the number
    of values that compete for it. `beyond` [J, 2] is how likely the best value of any cell lies below or above all
    values tried of its study, and `tried` [J, 2] the lowest and highest of them.
    """

    names: tuple[str, ...]
    draws: Array
    beyond: Array
    tried: Array
    level: Array
    n_trials: Array

    @property
    def edge(self) -> tuple[int, int] | None:
        """Return the searched value whose best likely lies beyond those tried, and 0 (below) or 1 (above), or None."""
        if self.beyond.max(initial=0.0) < _EDGE:
            return None
        j, side = np.unravel_index(int(self.beyond.argmax()), self.beyond.shape)
        return int(j), int(side)


def cells_of(points: Points, runs: SearchedRuns) -> NDArray[np.intp]:
    """Return the cell of each point's trials, by its sizes, [n]."""
    columns = points.columns | points.shape
    names = [name for name in runs.sizes if name in columns]
    theirs = np.stack([runs.log_of(name) for name in names], 1)
    ours = np.stack([np.log(columns[name]) for name in names], 1)
    # A column at a time: a table may have thousands of points and cells.
    far = np.zeros((len(ours), len(theirs)))
    for one, other in zip(ours.T, theirs.T, strict=True):
        far += (one[:, None] - other) ** 2
    return np.asarray(far.argmin(1), np.intp)


def record_of(read: Callable[[], SearchedRuns]) -> Callable[[Points], TuningRecord | None]:
    """Return what the runs that `read` returns say about the tuning of points, when it is asked for."""

    @cache
    def known() -> tuple[SearchedRuns, Excess] | None:
        try:
            runs = read()
        except (BadInput, KeyError):  # nothing was searched, or no number
            return None
        excess = excess_of_many(runs)
        return None if excess is None else (runs, excess)

    def record(points: Points) -> TuningRecord | None:
        both = known()
        if both is None:
            return None
        runs, excess = both
        cells = cells_of(points, runs)
        luck = np.zeros((N_DRAWS, points.n))
        if points.is_lowest:
            luck = _luck(np.log(points.columns["loss"]), excess.level[cells], excess.n_trials[cells])
        return TuningRecord(excess.draws[:, cells], luck, _cure(runs, excess), runs.columns)

    return record


def _luck(losses: Array, levels: Array, n_trials: Array) -> Array:
    """Draws of how far points lie below the expected loss of their best values, as the lowest of several, [S, n].

    It is in proportion to the expected lowest of as many normal draws (Blom 1958), by one factor for all points: so it
    does not follow their noise.
    """
    from scipy.special import ndtri

    lowest = ndtri((n_trials - 0.375) / (n_trials + 0.25))
    below = np.where(np.isfinite(levels), levels - losses, 0.0)
    known = np.isfinite(levels) & (n_trials > 1) & (np.abs(below) < _NEAR)
    if known.sum() < _FEWEST:
        return np.zeros((N_DRAWS, len(losses)))
    m, below = lowest[known], below[known]
    factor = float(m @ below / (m @ m))
    error = math.sqrt(float(((below - factor * m) ** 2).sum()) / (known.sum() - 1) / float(m @ m))
    factors = np.maximum(factor + error * np.random.default_rng(0).standard_normal(N_DRAWS), 0.0)
    return np.asarray(factors[:, None] * lowest)


def searched_points(
    frame: pd.DataFrame,
    source: str,
    columns: Mapping[str, str] | None = None,
    conventions: Conventions | None = None,
    where: str = "",
) -> Points:
    """Return the points of a table like `points_of_frame`, with the record of its trials if it has several a point."""
    points = points_of_frame(frame, source, columns, conventions, where)
    if points.tuned != EACH:
        return points
    return replace(points, record=record_of(lambda: runs_of_frame(frame, source, columns, where=where)))


def _cure(runs: SearchedRuns, excess: Excess) -> str:
    if excess.edge:
        j, side = excess.edge
        where = "above" if side else "below"
        beyond = f"{where} {short(float(excess.tried[j, side]))}"
        return f"search {excess.names[j]} {beyond} too, at every size"
    return "run more trials in every cell"


def excess_of_many(runs: SearchedRuns) -> Excess | None:
    """Return the tuning excess like `excess_of`, of any number of cells.

    Of more than it takes, some are drawn, and each draw of the others is a parabola in the logs of the sizes of these.
    """
    if runs.n_cells <= _MOST_CELLS:
        return excess_of(runs)
    chosen = np.sort(np.random.default_rng(0).choice(runs.n_cells, _MOST_CELLS, replace=False))
    kept = np.isin(runs.cell, chosen)
    place = np.searchsorted(chosen, runs.cell[kept])
    part = replace(runs, x=runs.x[kept], y=runs.y[kept], cell=place, logs=runs.logs[chosen])
    excess = excess_of(part)
    if excess is None:
        return None
    logs = runs.logs[:, np.ptp(runs.logs, axis=0) > 1e-9]
    logs = (logs - logs.mean(0)) / np.maximum(logs.std(0), 1e-12)
    base = np.hstack([np.ones((runs.n_cells, 1)), logs, logs**2])
    between = base @ np.linalg.pinv(base[chosen])
    draws = np.maximum(excess.draws @ between.T, 0.0)
    level = np.full(runs.n_cells, np.nan)
    level[chosen] = excess.level
    trials = runs.averaged()
    n_trials = _competing(trials.cell, trials.y, runs.n_cells)
    return replace(excess, draws=draws, level=level, n_trials=n_trials)


def excess_of(runs: SearchedRuns) -> Excess | None:
    """Return the tuning excess of each cell of a table of runs; None if its trials are too few to tell."""
    trials = runs.averaged()
    cell, x, y = trials.cell, trials.x, trials.y
    lowest = np.full(runs.n_cells, np.inf)
    np.minimum.at(lowest, cell, y)
    if len(y) < _FEWEST * runs.n_cells or runs.n_cells > _MOST_CELLS or not np.isfinite(lowest).all():
        return None
    low, high = x.min(0), x.max(0)
    varied = np.ptp(runs.logs, axis=0) > 1e-9
    sizes = runs.logs[:, varied]
    sizes = (sizes - sizes.mean(0)) / np.maximum(sizes.std(0), 1e-12)
    # Params follow depth and width: one of two descriptions of a size is enough.
    if sizes.shape[1] > 2:
        sizes = sizes[:, np.array(runs.sizes)[varied] != "params"]
    rank = np.empty(len(y), np.intp)
    order = np.lexsort((y, cell))
    rank[order] = np.arange(len(y)) - np.searchsorted(cell[order], cell[order])
    kept = np.flatnonzero((y < lowest[cell] + _NEAR) | (rank < _LEAST_TRIALS))[-_MOST_ROWS:]

    def inputs(values: Array, of_cell: NDArray[np.intp]) -> Array:
        return np.hstack([(values - (low + high) / 2) / ((high - low) / 2), sizes[of_cell]])

    n_searched, n_sizes = x.shape[1], sizes.shape[1]
    columns = Columns(
        np.repeat([True, False], [n_searched, n_sizes]), np.ones(n_searched + n_sizes, np.bool_)
    )
    rows, nothing = inputs(x[kept], cell[kept]), np.zeros(len(kept))
    scales = fit_scales(columns, rows, y[kept], nothing, _DEPARTURE)
    surrogate = condition(columns, scales, rows, y[kept], nothing)
    random = np.random.default_rng(0)
    grid = _grid(low, high)
    # The best of the values tried that a draw has, not the one that was chosen: which of two like ones won is luck.
    by_loss = np.argsort(y, kind="stable")
    shown = [x[by_loss[cell[by_loss] == c][:_SHOWN]] for c in range(runs.n_cells)]
    most = max(map(len, shown))
    shown = [np.vstack([each, np.repeat(each[:1], most - len(each), 0)]) for each in shown]
    values = np.concatenate([np.vstack([each, grid]) for each in shown])
    per_cell = len(grid) + most
    predicted = surrogate.predict(inputs(values, np.repeat(np.arange(runs.n_cells), per_cell)))
    jitter = 1e-9 * np.eye(len(values))
    spread, directions = np.linalg.eigh(predicted.covariance + jitter)
    root = directions * np.sqrt(np.maximum(spread, 0.0))
    drawn = predicted.mean + random.standard_normal((N_DRAWS, len(values))) @ root.T
    losses = drawn.reshape(N_DRAWS, runs.n_cells, per_cell)
    where = losses.argmin(2)  # [S, C]
    at = values.reshape(runs.n_cells, per_cell, n_searched)[np.arange(runs.n_cells), where]
    edges = np.stack([(at < low - 1e-9).mean(0), (at > high + 1e-9).mean(0)], 2).max(0)
    least, lowest_tried = losses.min(2), losses[:, :, :most].min(2)
    return Excess(
        names=runs.names,
        draws=lowest_tried - least,
        beyond=edges,
        tried=np.exp(np.stack([low, high], 1)),
        level=lowest_tried.mean(0),
        n_trials=_competing(cell, y, runs.n_cells),
    )


def _competing(cell: NDArray[np.intp], y: Array, n_cells: int) -> Array:
    """The number of trials of each cell that are near its best."""
    lowest = np.full(n_cells, np.inf)
    np.minimum.at(lowest, cell, y)
    return np.bincount(cell[y < lowest[cell] + _NEAR], minlength=n_cells).astype(float)


def _grid(low: Array, high: Array) -> Array:
    """Values that a cell might take, [g, J], evenly spread a little beyond the range tried (Roberts's R sequence)."""
    n_searched = len(low)
    ends = (high - low) * _MARGIN / 2
    unit = np.linspace(0, 1, _ALONG)[:, None]
    if n_searched > 1:
        root = 2.0
        for _ in range(30):
            root = (1 + root) ** (1 / (n_searched + 1))
        unit = (0.5 + np.arange(1, _DRAWN + 1)[:, None] * root ** -np.arange(1.0, n_searched + 1)) % 1
    return np.asarray(low - ends + unit * (high - low + 2 * ends))
