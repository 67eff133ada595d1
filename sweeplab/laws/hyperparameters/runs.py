"""The runs of a table as log searched values, log sizes and log losses, in cells of equal size and tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.formatting import listed, rounded
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

if TYPE_CHECKING:
    import pandas as pd

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
_MOST_SEARCHED = 4
_FOLLOWS = 0.999  # the correlation within cells of a value that is computed from another


@dataclass(frozen=True)
class Runs:
    """Runs with logs: searched values [n, J], losses [n], and the sizes of cells [C, k]; `cell` [n] is each run's.

    `said` describes the columns, `dropped` counts rows that are left out, and `notes` says what was not searched.
    `columns` are those of a table that have the searched values.
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

    def over(self, names: Sequence[str]) -> Runs:
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

    def best(self, j: int) -> Array:
        """Return the log of value j with the lowest loss of each cell; runs that differ in their seed are averaged."""
        keys = np.column_stack([self.cell, self.x.round(4)])
        unique, place = np.unique(keys, axis=0, return_inverse=True)
        losses = np.bincount(place.ravel(), self.y) / np.bincount(place.ravel())
        order = np.argsort(losses, kind="stable")[::-1]
        lowest = np.full(self.n_cells, np.nan)
        lowest[unique[order, 0].astype(np.intp)] = unique[order, 1 + j]
        return lowest

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
        if name not in SIZES and name not in TABLE:
            allowed = ", ".join((*SIZES, "N", "D", "a searched hyperparameter"))
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
) -> Runs:
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
    return Runs(
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
        more = f" and {len(bad) - 1} more" * (len(bad) > 1)
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
