"""The points that laws are fitted to: one validated table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.laws.columns import (
    FOLLOWING,
    Array,
    check_plausible,
    guessed_columns,
    is_measured,
    named_column,
    own_columns,
    read_columns,
    rows_where,
)
from sweeplab.laws.comparing import CellTrials
from sweeplab.laws.conventions import CHOICES, Conventions, check_of_a_file
from sweeplab.laws.reading import LEFT_OUT, read_frame
from sweeplab.laws.repeats import one_of_each

if TYPE_CHECKING:
    import pandas as pd

DEPTH_AND_WIDTH = ("n_layer", "n_embd")
_DEPTHS = ("n_encoder_layer", "n_decoder_layer")


@dataclass(frozen=True)
class Points:
    """The rows that a law is fitted to, with columns by role; `weights` is 1 or the number of seeds averaged.

    `dropped` counts the rows left out, by reason; `conventions` describes each column. `names` name the row of the file
    or the trial of each point. `shape` has n_layer and n_embd if the table has them, `extra_columns` the other numeric
    columns of a file, NaN where missing. `known` are the names of all columns of the file.
    `seed_spread` is the standard deviation of one seed's log loss, None if no point has a second seed: no law
    can leave residuals smaller than seed_spread / sqrt(weight). `tried` are the trials from which each point is the
    best, and `is_searched` says whether these were drawn from a search; both are unknown for a table, of which `n_rows`
    is the number of rows that were combined into each point, [n].
    """

    columns: dict[str, Array]
    weights: Array
    groups: tuple[str, ...] | None = None
    dropped: dict[str, int] = field(default_factory=dict)
    conventions: dict[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    shape: dict[str, Array] = field(default_factory=dict)
    extra_columns: dict[str, Array] = field(default_factory=dict)
    seed_spread: float | None = None
    tried: tuple[CellTrials, ...] = ()
    is_searched: bool = False
    known: tuple[str, ...] = ()
    n_rows: Array | None = None

    @property
    def n(self) -> int:
        """Return the number of rows."""
        return len(self.weights)

    @property
    def varied(self) -> set[str]:
        """Return the columns that vary."""
        return {name for name, column in self.columns.items() if np.ptp(np.log(column)) > 1e-9}

    @property
    def flops_per_param_token(self) -> float:
        """Return C / (N D), the mean over rows, by which a budget is divided; 6 if C is taken as 6ND."""
        if self.conventions.get("flops", "6ND") == "6ND":
            return float(np.exp(np.log(6.0)))
        k = self.columns["flops"] / self.columns["params"] / self.columns["tokens"]
        return float(np.exp(np.log(k).mean()))

    def lacks(self, reader: str, role: str) -> Problem:
        """Return the problem that `reader` needs a missing role, and where it could come from."""
        word, other = FOLLOWING.get(role, ("", ""))
        offered = f" (--columns {role}={word} computes them from flops and {other})"
        if not {"flops", other} <= self.columns.keys():
            offered = " (tokens would do)" if role == "flops" else ""
        what = f"{reader} needs {role!r}, which the table lacks{offered}; name its column with --columns"
        return Problem(what, ", ".join(self.known))

    def left_out(self, why: str, count: int) -> Points:
        """Return the points with a count of rows that were left out before, and why."""
        return replace(self, dropped=self.dropped | {why: count}) if count else self

    def only(self, keep: NDArray[np.bool_] | NDArray[np.intp]) -> Points:
        """Return the points of some rows, given as a mask or as indices."""
        at = np.arange(self.n)[keep]
        return replace(
            self,
            columns={name: column[at] for name, column in self.columns.items()},
            weights=self.weights[at],
            groups=tuple(self.groups[each] for each in at) if self.groups else None,
            names=tuple(self.names[each] for each in at) if self.names else (),
            shape={name: column[at] for name, column in self.shape.items()},
            tried=tuple(self.tried[each] for each in at) if self.tried else (),
            n_rows=None if self.n_rows is None else self.n_rows[at],
            extra_columns={name: column[at] for name, column in self.extra_columns.items()},
        )


def read_points(
    path: Path,
    columns: Mapping[str, str] | None = None,
    conventions: Conventions | None = None,
    where: str = "",
) -> Points:
    """Return the points of a table's file; a role that `columns` does not name is found by its name.

    `where` is an expression over the columns that selects rows.

    Raises:
        BadInput: no such file or column, a cell that is not a positive number, and implausible numbers.
    """
    return points_of_frame(read_frame(path), str(path), columns, conventions, where)


def points_of_frame(
    frame: pd.DataFrame,
    source: str,
    columns: Mapping[str, str] | None = None,
    conventions: Conventions | None = None,
    where: str = "",
) -> Points:
    """Return the points of a table like `read_points` of the file `source`.

    Raises:
        BadInput: the errors of `read_points`.
    """
    if where:
        kept = rows_where(frame, where, source)
        points = points_of_frame(kept, source, columns, conventions)
        return points.left_out(f"not where {where}", len(frame) - len(kept))
    asked, known = dict(columns or {}), [str(name) for name in frame]
    wanted = {role: name for role, name in own_columns(known).items() if role not in asked} | asked
    taken = {named_column(name, known)[0] for name in wanted.values()}
    guessed = {role: name for role, name in guessed_columns(known, taken).items() if role not in wanted}
    wanted |= guessed
    if "loss" not in wanted:
        what = f"{source}: which column is the loss? name it with --columns loss=COLUMN"
        raise BadInput(Problem(what, ", ".join(known), nearest("loss", known)))
    chosen = conventions or Conventions()
    check_of_a_file(chosen, source, wanted)
    if chosen.flops == "6nd":
        wanted.pop("flops", None)
    points = points_of(frame, wanted, source, rows=chosen.rows)
    said = {role: f"{words}, by its name" for role, words in points.conventions.items() if role in guessed}
    for reason, count in frame.attrs.get(LEFT_OUT, {}).items():
        points = points.left_out(reason, count)
    if chosen.loss:
        said["loss"] = f"{points.conventions['loss']}, {CHOICES['loss'][chosen.loss]} as --count says"
    return replace(points, conventions=points.conventions | said)


def points_of(
    frame: pd.DataFrame,
    columns: Mapping[str, str],
    source: str,
    weights: Array | None = None,
    names: Sequence[str] | None = None,
    is_counted: bool = False,
    rows: str = "",
) -> Points:
    """Return the checked points of a table by the columns' names; `is_counted` skips the plausibility checks.

    `rows` says how rows at one point are combined, as in `one_of_each`.

    Raises:
        BadInput: every column that is missing or has a cell that is not a positive number; implausible numbers, such
            as N and D swapped or rows in two units; no usable row.
    """
    found = read_columns(frame, columns, source)
    group = None
    if "group" in columns:
        group = frame[named_column(columns["group"], list(map(str, frame)))[0]].astype(str).to_numpy(object)
    keep, dropped = _kept({role: column.values for role, column in found.items()}, group)
    if not keep.any():
        why = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
        raise BadInput(f"{source}: no row can be used: {why or 'there is none'}")
    if not is_counted:
        check_plausible(found, keep, source)
    kept = {role: column.values[keep] for role, column in found.items()}
    conventions = {role: column.said for role, column in found.items()}
    if "group" in columns:
        conventions["group"] = f"column {columns['group']}"
    if "flops" not in kept and {"params", "tokens"} <= kept.keys():
        kept["flops"] = 6 * kept["params"] * kept["tokens"]
        conventions["flops"] = "6ND"
    word = str(frame.index.name or "row")
    points = Points(
        columns=kept,
        weights=(np.ones(len(frame)) if weights is None else weights)[keep],
        groups=None if group is None else tuple(group[keep]),
        dropped=dropped,
        conventions=conventions,
        names=tuple(np.array(names or [f"{word} {at}" for at in frame.index], object)[keep]),
        shape=_shape(frame, keep),
        known=tuple(map(str, frame)),
    )
    if is_counted:
        return points
    taken = [column.name for column in found.values()]
    points = replace(points, extra_columns=_extra_columns(frame[keep], {*taken, *points.shape}))
    reduced = one_of_each(frame[keep], kept, points.groups, taken, rows, source)
    if reduced is None:
        return points
    points = points.only(reduced.places)
    return replace(
        points,
        columns=points.columns | {"loss": reduced.loss},
        weights=reduced.weights,
        n_rows=reduced.n_rows,
        dropped=dropped | {reduced.dropped: int(keep.sum()) - points.n},
        conventions=conventions | {"rows": reduced.said},
    )


def _shape(frame: pd.DataFrame, keep: NDArray[np.bool_]) -> dict[str, Array]:
    """Return the columns of a shape; the depth of an encoder-decoder is the sum of both."""
    import pandas as pd

    if {"family", *_DEPTHS} <= {*frame}:
        both = frame[list(_DEPTHS)].apply(pd.to_numeric, errors="coerce").sum(axis=1)
        frame = frame.assign(n_layer=both.where(frame["family"].eq("encoder_decoder"), frame.get("n_layer")))
    read = {name: pd.to_numeric(frame[name], errors="coerce") for name in DEPTH_AND_WIDTH if name in frame}
    return {name: column.to_numpy(float, na_value=np.nan)[keep] for name, column in read.items()}


def _extra_columns(frame: pd.DataFrame, taken: Set[str]) -> dict[str, Array]:
    """Return the other numeric columns that vary between rows, except measured ones."""
    import pandas as pd

    kept = [name for name in frame if name not in taken and not is_measured(str(name))]
    read = {
        str(name): pd.to_numeric(frame[name], errors="coerce").to_numpy(float, na_value=np.nan)
        for name in kept
    }
    read = {name: np.where(np.isfinite(column), column, np.nan) for name, column in read.items()}
    return {name: column for name, column in read.items() if len(np.unique(column[np.isfinite(column)])) > 1}


def _kept(columns: Mapping[str, Array], group: Any) -> tuple[NDArray[np.bool_], dict[str, int]]:
    """Return which rows are used, and the number of the others by reason."""
    import pandas as pd

    table = pd.DataFrame(dict(columns))
    finite = np.isfinite(table.to_numpy()).all(1)
    again = finite & table.assign(group=group).duplicated().to_numpy()
    counts = {"not finite": int((~finite).sum()), "duplicate": int(again.sum())}
    return finite & ~again, {reason: count for reason, count in counts.items() if count}
