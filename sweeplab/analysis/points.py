"""The points that laws are fitted to: one validated table, from a file or from a study's runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.errors import BadInput, Problem, nearest

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]

ROLES = {
    "params": "parameters of the model",
    "tokens": "tokens trained on",
    "flops": "floating-point operations of the training",
    "loss": "the loss reached",
    "group": "what may share an error: a run, a size, a curve",
}
NUMBERS = ("params", "tokens", "flops", "loss")
SUFFIXES = (".csv", ".parquet")
# Where a study's table has what a law reads.
STUDY_COLUMNS = {
    "params": "n_params",
    "tokens": "train_tokens",
    "loss": "best_val_loss",
    "flops": "train_flops",
}
USED_STATES = ("complete", "stopped")
WHY_DROPPED = {
    "failed": "failed",
    "diverged": "diverged",
    "pruned": "pruned before the end",
    "running": "has not ended",
    "waiting": "has not ended",
}
_SWAPPED = 1000  # no table has so many parameters a token
_UNITS = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_SUFFIXED = re.compile(r"\s*([-+]?[\d_.,]*\d\.?(?:[eE][-+]?\d+)?)\s*([kKMBGT]?)\s*")


@dataclass(frozen=True)
class Points:
    """The rows that a law is fitted to, by what they mean; `weights` is 1 or the number of seeds averaged.

    `dropped` counts the rows left out, by the reason; `conventions` says what each column is.
    """

    columns: dict[str, Array]
    weights: Array
    groups: tuple[str, ...] | None = None
    dropped: dict[str, int] = field(default_factory=dict)
    conventions: dict[str, str] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """Return the number of rows."""
        return len(self.weights)

    @property
    def flops_per_param_token(self) -> float:
        """Return C / (N D), the mean over rows: what a budget is divided by. 6 where C is not counted."""
        return float(
            np.exp(
                np.log(self.columns["flops"] / self.columns["params"] / self.columns["tokens"]).mean()
                if self.counts_flops
                else np.log(6.0)
            )
        )

    @property
    def counts_flops(self) -> bool:
        """Return whether FLOPs were counted, and not taken as 6ND."""
        return self.conventions.get("flops", "6ND") != "6ND"


def parse_columns(text: str) -> dict[str, str]:
    """Return {"params": "N", …} of "params=N,tokens=D*1e9,…"; a factor may follow the column's name.

    Raises:
        BadInput: what is no pair, a role that there is not, a role named twice.
    """
    found: dict[str, str] = {}
    problems = []
    for pair in text.split(","):
        role, equals, column = (part.strip() for part in pair.partition("="))
        if not equals or not column:
            problems.append(Problem(f"--columns {pair.strip()!r} is no ROLE=COLUMN", ", ".join(ROLES)))
        elif role not in ROLES:
            problems.append(Problem(f"--columns has no {role!r}", ", ".join(ROLES), nearest(role, ROLES)))
        elif role in found:
            problems.append(Problem(f"--columns names {role!r} twice"))
        found[role] = column
    if problems:
        raise BadInput(*problems)
    return found


def read_points(path: Path, columns: Mapping[str, str] | None = None) -> Points:
    """Return the points of a .csv or .parquet file; a role that `columns` does not name has its own name.

    Raises:
        BadInput: no such file or column, what is no number or not positive, N and D swapped.
    """
    import pandas as pd

    readers: dict[str, Any] = {".csv": pd.read_csv, ".parquet": pd.read_parquet}
    read = readers.get(path.suffix)
    if read is None:
        raise BadInput(Problem(f"{path}: no table has the suffix {path.suffix!r}", " or ".join(readers)))
    try:
        frame = read(path)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # pandas' and Arrow's words for what is no such table, Unicode's too
        raise BadInput(f"{path}: is no table: {str(error).strip().splitlines()[0]}") from error
    asked = dict(columns or {})
    own = {role: role for role in ROLES if role in frame and role not in asked}
    missing = [role for role in ("loss",) if role not in asked | own]
    if missing:
        raise BadInput(
            Problem(
                f"{path}: which column is the loss? --columns loss=COLUMN says it", ", ".join(map(str, frame))
            )
        )
    return points_of(frame, own | asked, str(path))


def study_points(runs: pd.DataFrame, columns: Mapping[str, str] | None = None) -> Points:
    """Return the points of a study's runs: the best trial of each cell and token count, its seeds averaged.

    A point weighs as many runs as it has seeds. Runs that did not reach an end are left out, and counted.

    Raises:
        BadInput: no run has ended, or what `points_of` refuses.
    """
    mapped = STUDY_COLUMNS | dict(columns or {})
    used = runs[runs["state"].isin(USED_STATES)]
    dropped = Counter(WHY_DROPPED[state] for state in runs["state"].astype(str) if state not in USED_STATES)
    if used.empty:
        raise BadInput("no run of the study has ended with a loss yet")
    loss, by = mapped["loss"].partition("*")[0], ["cell", "train_tokens"]
    if loss not in used:
        raise BadInput(Problem(f"the study has no column {loss!r}", "", nearest(loss, map(str, used))))
    trials = used.groupby([*by, "trial"], sort=False, dropna=False)
    means = trials[loss].mean().reset_index()
    best = means.loc[means.groupby(by, sort=False, dropna=False)[loss].idxmin(), [*by, "trial"]]
    kept = used.merge(best, on=[*by, "trial"])
    dropped["not the best of its cell"] += len(used) - len(kept)
    grouped = kept.groupby([*by, "trial"], sort=False, dropna=False)
    frame = grouped.first().reset_index().assign(**{loss: grouped[loss].mean().to_numpy()})
    points = points_of(frame, mapped, "the study", np.asarray(grouped.size(), np.float64))
    averaged = len(kept) - len(frame)
    notes = {"rows": "the best trial of each cell and token count, the mean of its seeds"}
    if averaged:
        notes["weights"] = "the number of seeds"
    counts = {reason: count for reason, count in dropped.items() if count}
    return replace(points, dropped=counts | points.dropped, conventions=points.conventions | notes)


def points_of(
    frame: pd.DataFrame, columns: Mapping[str, str], source: str, weights: Array | None = None
) -> Points:
    """Return the points of a table by the columns' names, checked.

    Raises:
        BadInput: every column that is missing, is no number or has a number that is not positive; N and D
            that seem to be swapped.
    """
    known = [str(name) for name in frame]
    problems: list[Problem] = []
    numbers: dict[str, Array] = {}
    named: dict[str, str] = {}
    for role, asked in columns.items():
        name, factor, wrong = _column(asked, known)
        problems += [Problem(f"{source}: {wrong}", ", ".join(known), nearest(name, known))] if wrong else []
        if not wrong:
            named[role] = asked
            if role in NUMBERS:
                values, bad = _numbers(frame[name])
                numbers[role] = values * factor
                problems += [Problem(f"{source}: column {name!r} ({role}): {each}") for each in bad]
    if problems:
        raise BadInput(*problems)
    group = frame[_column(columns["group"], known)[0]].astype(str).tolist() if "group" in columns else None
    weight = np.ones(len(frame)) if weights is None else weights
    keep, dropped = _kept(numbers, group)
    kept = {role: column[keep] for role, column in numbers.items()}
    conventions = {role: f"column {name}" for role, name in named.items()}
    if "flops" not in kept and {"params", "tokens"} <= kept.keys():
        kept["flops"] = 6 * kept["params"] * kept["tokens"]
        conventions["flops"] = "6ND"
    _check_swapped(kept, source)
    groups = tuple(name for name, here in zip(group, keep, strict=True) if here) if group else None
    return Points(kept, weight[keep], groups, dropped, conventions)


def _column(asked: str, known: Sequence[str]) -> tuple[str, float, str]:
    """Return a column's name, the factor behind it, and what is wrong with it."""
    name, star, factor = asked.rpartition("*")
    if asked in known or not star:
        return asked, 1.0, "" if asked in known else f"no column {asked!r}"
    try:
        number = float(factor)
    except ValueError:
        return asked, 1.0, f"{factor!r} is no factor of column {name!r}"
    wrong = "" if number > 0 and np.isfinite(number) else f"{factor!r} is no factor of column {name!r}"
    return name, number, wrong or ("" if name in known else f"no column {name!r}")


def _numbers(column: pd.Series[Any]) -> tuple[Array, list[str]]:
    """Return a column's numbers, what is missing as NaN, and what is wrong in it: once a kind of fault."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column):
        values = np.asarray(column.astype("Float64").to_numpy(float, na_value=np.nan), np.float64)
        texts = [(at, str(value)) for at, value in zip(column.index, column, strict=True)]
        bad: list[str] = []
    else:
        texts = [
            (at, "" if pd.isna(value) else str(value)) for at, value in zip(column.index, column, strict=True)
        ]
        read = [_number(text) for _, text in texts]
        values = np.array([np.nan if each is None else each for each in read])
        bad = _first([text for text, each in zip(texts, read, strict=True) if each is None], "no number")
    wrong = [text for text, value in zip(texts, values, strict=True) if value <= 0]
    return values, bad + _first(wrong, "not positive")


def _number(text: str) -> float | None:
    """Return the number a cell holds, 1.3B as 1.3e9, NaN for an empty one, None for what is no number."""
    if text.strip().lower() in ("", "nan", "none", "inf", "-inf"):
        return np.nan
    match = _SUFFIXED.fullmatch(text)
    try:
        return float(match[1].replace(",", "")) * _UNITS.get(match[2], 1.0) if match else None
    except ValueError:
        return None


def _first(found: Sequence[tuple[Any, str]], what: str) -> list[str]:
    if not found:
        return []
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return [f"{found[0][1]!r} in row {found[0][0]}{more} is {what}"]


def _kept(
    numbers: Mapping[str, Array], group: Sequence[str] | None
) -> tuple[NDArray[np.bool_], dict[str, int]]:
    """Return which rows are used, and how many are not, by the reason."""
    table = np.column_stack(list(numbers.values()))
    finite: NDArray[np.bool_] = np.asarray(np.isfinite(table).all(1))
    seen: set[tuple[Any, ...]] = set()
    keep = finite.copy()
    for at in np.flatnonzero(finite):
        row = (*table[at], group[int(at)] if group else "")
        keep[at] = row not in seen
        seen.add(row)
    counts = {"not finite": int((~finite).sum()), "duplicate": int((finite & ~keep).sum())}
    return keep, {reason: count for reason, count in counts.items() if count}


def _check_swapped(columns: Mapping[str, Array], source: str) -> None:
    if {"params", "tokens"} <= columns.keys() and len(columns["loss"]):
        ratio = float(np.median(columns["params"] / columns["tokens"]))
        if ratio > _SWAPPED:
            raise BadInput(
                f"{source}: {ratio:,.0f} parameters for each token; are params and tokens swapped in --columns?"
            )
