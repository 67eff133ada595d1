"""The runs of a table in cells of equal size and tokens, with searched values, losses and sizes as logs.

Legend: n runs, C cells, J searched values, k sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.formatting import listed, rounded, several
from sweeplab.laws.columns import (
    PLAIN,
    ROLES,
    SEARCHED_NAMES,
    SHAPE,
    Counting,
    ended_rows,
    fault,
    number_in,
    numbers_of,
    pairs_of,
    read_columns,
    role_columns,
    rows_where,
    setting_columns,
)
from sweeplab.laws.core import Array
from sweeplab.laws.points import Index

if TYPE_CHECKING:
    import pandas as pd

SHORT_NAMES = {"N": "params", "D": "tokens"}
SIZES = ("params", "tokens", "n_embd", "n_layer")
# Of log sizes in one cell: a batch size need not divide the tokens.
_SAME_SIZE = {"params": 0.01, "tokens": 0.05}
_NOT_SEARCHED = {"seed", "max_iters", "data_limit", *SHAPE}
_MOST_SEARCHED = 3
_FOLLOWS = 0.999  # the correlation within cells of a value that is computed from another


@dataclass(frozen=True)
class SearchedRuns:
    """Runs with logs: searched values `x` [n, J], losses `y` [n], and the sizes of cells `logs` [C, k].

    `cell` [n] is each run's. `notes` says what was not searched. `seeds` [n] counts the runs whose mean a row is.
    """

    names: tuple[str, ...]
    sizes: tuple[str, ...]
    x: Array
    y: Array
    cell: Index
    logs: Array
    seeds: Array
    notes: tuple[str, ...] = ()

    @property
    def n_cells(self) -> int:
        """Return the number of cells."""
        return len(self.logs)

    def cell_name(self, c: int) -> str:
        """Return a cell's name by its sizes."""
        logs = zip(self.sizes, self.logs[c], strict=True)
        return ",".join(f"{name}={rounded(math.exp(log))}" for name, log in logs)

    def over(self, names: Sequence[str]) -> SearchedRuns:
        """Return the runs with some of the searched values; the others count as noise, and `notes` says so."""
        left = [name for name in self.names if name not in names]
        notes = self.notes
        if left:
            why = f"no minimum is seen over {listed(left)}: its values count as noise"
            notes = (*notes, why)
        places = [self.names.index(name) for name in names]
        return replace(self, names=tuple(names), x=self.x[:, places], notes=notes)

    def log_of(self, size: str) -> Array:
        """Return the log of a size of each cell."""
        return self.logs[:, self.sizes.index(size)]

    def of_cells(self, values: Array, how: str) -> Array:
        """Return the "min", "max", "idxmin" or "nunique" of the values of each cell's runs, [C]."""
        import pandas as pd

        return np.asarray(pd.Series(values).groupby(self.cell).agg(how))

    def averaged(self) -> SearchedRuns:
        """Return a row for each trial, with the mean log loss of its seeds."""
        keys = np.column_stack([self.cell, self.x.round(6)])
        trials, place = np.unique(keys, axis=0, return_inverse=True)
        seeds = np.bincount(place.ravel(), self.seeds).astype(float)
        y = np.bincount(place.ravel(), self.y * self.seeds) / seeds
        return replace(
            self, cell=trials[:, 0].astype(np.intp), x=trials[:, 1:], y=y, seeds=seeds
        )

    def best_at_end(self, j: int) -> str:
        """Say where most cells have their best value j if that is at an end of the values tried; else nothing."""
        best = self.x[self.of_cells(self.y, "idxmin").astype(int), j]
        for end, where in (("min", "lowest"), ("max", "highest")):
            n_there = (np.abs(best - self.of_cells(self.x[:, j], end)) < 1e-3).sum()
            if 2 * n_there > self.n_cells:
                cells = several(self.n_cells, "cell")
                return f"the {where} {self.names[j]} tried is the best in {n_there} of {cells}"
        return ""


def parse_at(text: str) -> dict[str, float]:
    """Return {"params": 1e9, "tokens": 2e10} of "N=1e9,D=2e10".

    Raises:
        BadInput: what is no pair of a size and a positive number.
    """
    target = {}
    for name, number in pairs_of("--at", text, (*SIZES, "flops", *SHORT_NAMES)).items():
        role = SHORT_NAMES.get(name, name)
        target[role] = number_in(number) or 0.0
        if not 0 < target[role] < math.inf:
            raise BadInput(
                Problem(
                    f"--at '{name}={number}'", "N=, D=, n_embd=, n_layer= and a positive number"
                )
            )
    return target


def runs_of_frame(
    frame: pd.DataFrame,
    source: str,
    counting: Counting = PLAIN,
    only: Sequence[str] | None = None,
) -> SearchedRuns:
    """Return the runs of a table; columns that `counting` does not name are found by their names.

    `only` names the hyperparameters that were searched, where a study says so.

    Raises:
        BadInput: no such column, no loss, no size, nothing searched, or a cell that is not a number.
    """
    import pandas as pd

    frame = rows_where(ended_rows(frame), counting.where, source)
    known = [str(name) for name in frame]
    named = {name: column for name, column in counting.columns.items() if name not in ROLES}
    for column in named.values():
        if column not in known:
            like = nearest(column, known)
            raise BadInput(Problem(f"{source}: no column {column!r}", ", ".join(known), like))
    roles = role_columns(known, counting.roles, source, taken=named.values())
    read = read_columns(frame, roles, source)
    values = pd.DataFrame({role: column.values for role, column in read.items()})
    taken = {*(column.name for column in read.values()), *named.values()}
    settings = setting_columns(known, taken) | named
    if only is not None:
        settings = {name: settings[name] for name in settings if name in (*only, *SIZES)}
    for name in sorted(settings, key=lambda name: [*SEARCHED_NAMES, name].index(name)):
        cells = frame[settings[name]]
        values[name], bad = numbers_of(cells)
        if 0 < bad.mean() < 0.5:  # else a column of words
            raise BadInput(f"{source}: column {settings[name]!r} ({name}): {fault(cells, bad)}")
    sizes = [name for name in SIZES if name in values]
    if not sizes:
        what = f"{source}: no column is a size; name params, tokens, n_embd or n_layer with --columns"
        raise BadInput(Problem(what, ", ".join(known)))
    logs = values.where(values > 0).transform(np.log)
    logs = logs[logs[["loss", *sizes]].notna().all(axis=1)]
    if logs.empty:
        raise BadInput(f"{source}: no row has a loss and a size")
    names = [name for name in logs if name not in (*ROLES, *_NOT_SEARCHED)]
    searched, notes = _searched(logs[names], _cells(logs[sizes])[1])
    if not searched:
        what = f"{source}: no numeric hyperparameter has several positive values in a cell"
        what += "; name its column with --columns learning_rate=COLUMN"
        raise BadInput(Problem(what, ", ".join(known), nearest("learning_rate", known)))
    logs = logs[logs[searched].notna().all(axis=1)]
    means, cell = _cells(logs[sizes])
    return SearchedRuns(
        names=tuple(searched),
        sizes=tuple(sizes),
        x=np.ascontiguousarray(logs[searched].to_numpy()),
        y=logs["loss"].to_numpy(),
        cell=cell,
        logs=means,
        seeds=np.ones(len(logs)),
        notes=notes,
    )


def _searched(logs: pd.DataFrame, cell: Index) -> tuple[list[str], tuple[str, ...]]:
    """The names of the values that vary within cells, each by itself, and what is said of others."""
    searched = list[str]()
    notes = list[str]()
    away = dict[str, Array]()
    for name in map(str, logs):
        column = logs[name]
        if column.notna().mean() < 0.5:
            continue
        centered = (column - column.groupby(cell).transform("mean")).fillna(0.0).to_numpy()
        n_varied = len(np.unique(cell[np.abs(centered) > 1e-6]))
        # In some cells at least, and by 5% at least.
        if n_varied < max(1, 0.3 * (cell.max() + 1)) or np.abs(centered).max() < 0.05:
            continue
        centered = centered / np.linalg.norm(centered)
        follows = [other for other in searched if abs(centered @ away[other]) > _FOLLOWS]
        if follows:
            notes.append(
                f"{name} follows {follows[0]} in every cell, and is not fitted apart from it"
            )
        elif len(searched) == _MOST_SEARCHED:
            notes.append(
                f"{name} was searched too; --columns names which {_MOST_SEARCHED} are fitted"
            )
        else:
            searched.append(name)
            away[name] = centered
    return searched, tuple(notes)


def _cells(logs: pd.DataFrame) -> tuple[Array, Index]:
    """The mean log sizes of each cell, [C, k], and the cell of each run, [n]; tokens differ within a model."""
    cell = np.zeros(len(logs), np.intp)
    for name in sorted(map(str, logs), key=lambda name: name == "tokens"):
        column = logs[name].to_numpy()
        order = np.lexsort((column, cell))
        is_other = np.diff(column[order]) > _SAME_SIZE.get(name, 1e-6)
        begins = np.append(False, (np.diff(cell[order]) > 0) | is_other)
        cell[order] = np.cumsum(begins)
    counts = np.bincount(cell)
    means = np.stack([np.bincount(cell, logs[name]) / counts for name in logs], 1)
    order = np.lexsort(means.T[::-1])
    return means[order], np.argsort(order)[cell]
