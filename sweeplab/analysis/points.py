"""The points that laws are fitted to: one validated table, from a file or from the runs of studies."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.analysis.columns import (
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
from sweeplab.analysis.comparing import CellTrials
from sweeplab.analysis.conventions import CHOICES, Conventions, check_of_a_file, counted
from sweeplab.analysis.repeats import one_of_each
from sweeplab.analysis.trials import Selection, select
from sweeplab.errors import BadInput, Problem, nearest

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".tsv", ".parquet")
MOST_COLUMNS = 2_000
_SEPARATORS = (",", ";", "\t", "|")  # or blanks, if none of these occurs
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
    best, and `is_searched` says whether these were drawn from a search; both are unknown for a table.
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
            extra_columns={name: column[at] for name, column in self.extra_columns.items()},
        )


def read_points(
    path: Path,
    columns: Mapping[str, str] | None = None,
    conventions: Conventions | None = None,
    where: str = "",
) -> Points:
    """Return the points of a .csv, .tsv or .parquet file; a role that `columns` does not name is found by its name.

    A file that `study export` wrote is read as the study's runs, unless `columns` name others. `where` is an expression
    over the columns that selects rows.

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
    if not asked:
        from sweeplab.analysis.table import COLUMNS, validate

        if COLUMNS.keys() <= set(known):
            return study_points(validate(frame), {}, conventions)
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
    if chosen.loss:
        said["loss"] = f"{points.conventions['loss']}, {CHOICES['loss'][chosen.loss]} as --count says"
    return replace(points, conventions=points.conventions | said)


def read_frame(path: Path) -> pd.DataFrame:
    """Return the raw table of a .csv, .tsv or .parquet file; rows of a text file are indexed by line.

    Raises:
        BadInput: no such file, or the file is not a table.
    """
    import pandas as pd

    readers: dict[str, Any] = {".csv": _read_text, ".tsv": _read_text, ".parquet": pd.read_parquet}
    read = readers.get(path.suffix)
    if read is None:
        raise BadInput(Problem(f"{path}: no table has the suffix {path.suffix!r}", ", ".join(readers)))
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise BadInput(Problem("is no file", file=path))
    try:
        return read(path)  # type: ignore[no-any-return]
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from error
    except (
        ValueError,
        csv.Error,
    ) as error:  # errors of pandas, Arrow and Unicode decoding
        raise BadInput(f"{path}: is not a table: {str(error).strip().splitlines()[0]}") from error


def _read_text(path: Path) -> pd.DataFrame:
    """Return the table of a text file; its separator is the one that splits the first line into most names."""
    import pandas as pd

    with path.open(encoding="utf-8-sig", newline="") as file:
        first = next((line for line in file if line.strip()), "")
    parts = {each: len(next(csv.reader([first.strip("\r\n")], delimiter=each), [])) for each in _SEPARATORS}
    separator = max(_SEPARATORS, key=parts.__getitem__)
    n_columns = parts[separator]
    if n_columns == 1 and len(first.split()) > 1:
        separator, n_columns = r"\s+", len(first.split())
    if n_columns > MOST_COLUMNS:
        raise ValueError(f"it has {n_columns:,} columns, and at most {MOST_COLUMNS:,} are read")
    frame = pd.read_csv(path, sep=separator, encoding="utf-8-sig", low_memory=False, skipinitialspace=True)
    if not (isinstance(frame.index, pd.RangeIndex) and frame.index.start == 0):
        raise ValueError("its rows have more cells than its first line has names")
    frame.columns = frame.columns.str.strip()
    frame.index = pd.Index(_lines(path, separator, len(frame)), name="line")
    return frame


def _lines(path: Path, separator: str, n_rows: int) -> range | list[int]:
    """Return the line in which each row begins: consecutive but for empty lines and cells with line breaks."""
    with path.open("rb") as file:
        blocks = iter(lambda: file.read(1 << 20), b"")
        counts = [(block.count(b"\n"), block[-1:] != b"\n") for block in blocks]
    if counts and sum(count for count, _ in counts) + counts[-1][1] == n_rows + 1:
        return range(2, n_rows + 2)
    found, line = [], 1
    with path.open(encoding="utf-8-sig", newline="") as text:
        rows = csv.reader(text, delimiter=separator if len(separator) == 1 else " ")
        for row in rows:
            if len(row) > 1 or any(map(str.strip, row)):
                found.append(line)
            line = rows.line_num + 1
    return found[1:] if len(found) == n_rows + 1 else range(2, n_rows + 2)


def study_points(
    runs: pd.DataFrame,
    columns: Mapping[str, str] | None = None,
    conventions: Conventions | None = None,
) -> Points:
    """Return the points of the runs of one study or several: the best trial of each model and token count.

    A point is the mean of its k seeds and has weight k: all points are assumed to have the same variance of one seed,
    so the variance of the mean is a kth of it. Runs that did not end are left out, and counted. `columns` replace
    those of the conventions.

    Raises:
        BadInput: no run has ended, or the errors of `points_of`.
    """
    return points_of_trials(*select_trials(runs, columns, conventions))


def select_trials(
    runs: pd.DataFrame,
    columns: Mapping[str, str] | None = None,
    conventions: Conventions | None = None,
) -> tuple[Selection, dict[str, str], dict[str, str]]:
    """Return the trials that are points, the columns of their roles, and the descriptions of these.

    Raises:
        BadInput: no run has ended, a column is missing, or a convention cannot be followed.
    """
    asked = dict(columns or {})
    table, said = counted(runs, conventions or Conventions())
    mapped = {role: role for role in ("params", "tokens", "flops", "loss") if role in table} | asked
    loss = named_column(mapped["loss"], list(map(str, table)))
    if loss[2]:
        raise BadInput(Problem(f"the study has {loss[2]}", "", nearest(loss[0], map(str, runs))))
    return select(table, loss[0]), mapped, {role: words for role, words in said.items() if role not in asked}


def points_of_trials(chosen: Selection, columns: Mapping[str, str], said: Mapping[str, str]) -> Points:
    """Return the points of the selected trials.

    Raises:
        BadInput: the errors of `points_of`.
    """
    names = chosen.table["point"].tolist()
    points = points_of(chosen.table, columns, "the study", chosen.weights, names, is_counted=True)
    notes = {"rows": "the best trial of each model and token count, the mean of its seeds"}
    if chosen.freedom:
        notes["weights"] = "the number of seeds: a mean of k has 1/k of the variance of one"
        notes["seeds"] = (
            f"the standard deviation of one is {chosen.spread:.2%} of the loss, pooled over "
            f"{int((chosen.weights > 1).sum())} points with several: no law can fit closer"
        )
    return replace(
        points,
        dropped=dict(chosen.dropped + Counter(points.dropped)),
        conventions=points.conventions | dict(said) | notes,
        seed_spread=chosen.spread if chosen.freedom else None,
        tried=tuple(chosen.tried[name] for name in points.names),
    )


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
