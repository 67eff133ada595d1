"""The points that laws are fitted to: one validated table.

Rows of a file at one N and D are the seeds of a run, whose mean counts, or a search, whose best row counts. The other
columns decide: a column that differs within a point, and is neither a seed nor measured, was searched. If no column
decides and most points have several rows, the user is asked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.formatting import counts as counts_in_words
from sweeplab.formatting import several, several_named, short
from sweeplab.laws.columns import (
    CHOICES,
    COUNTS,
    FEWEST_PER_PARAM,
    MOST_PER_PARAM,
    PLAIN,
    SHAPE,
    Array,
    Column,
    Counting,
    check_plausible,
    ended_rows,
    numbers_of,
    read_columns,
    role_columns,
    rows_where,
    setting_columns,
    tells_passes,
)

if TYPE_CHECKING:
    import pandas as pd

Rows = NDArray[np.bool_]
Index = NDArray[np.intp]
Sizes = Mapping[str, Array]

# How the points of a table were tuned: each by a search of its own, all by one setting, or it is not known.
EACH, SHARED, UNKNOWN = TUNED = "each", "shared", "unknown"
SAID = "as --tuned says"
_SEED = re.compile(
    r"(.*[^a-z])?(seed|seeds|replicate|repeat|repetition)([^a-z].*)?", re.IGNORECASE
)
_RUN = re.compile(r"(.*[^a-z])?run([ _-]?(id|name))?", re.IGNORECASE)
_ONCE = 1.02  # passes over a text that count as one
# That a column must span: N grows as n_layer and as the square of n_embd.
DECADES = {"params": 0.8, "tokens": 0.8, "flops": 1.0, "n_embd": 0.4, "n_layer": 0.4}
LINES = (("tokens", "params"), ("n_embd", "n_layer"))  # that rows may lie near
SPREAD = 0.5  # the least sd of log(D/N), or across any other line of log D against log N
ON_PATH = 0.1  # the largest sd of log tokens around a path, and its share of their range
# The largest difference of a fitted slope from 1 on a path of as many tokens a parameter.
STRAIGHT = 0.05
STANDS = 2 / 3  # the share of these that must remain without any one row


@dataclass(frozen=True, eq=False)
class Points:
    """The rows that a law is fitted to, with columns by role; `weights` is 1 or the number of seeds averaged.

    `dropped` counts the rows left out, by reason; `conventions` describes each column. `names` name the row of the file
    or the trial of each point. n_layer and n_embd are NaN where missing, all other columns are finite.
    `seed_spread` is the standard deviation of one seed's log loss, None if no point has a second seed: no law
    can leave residuals smaller than seed_spread / sqrt(weight). `tuned` is one of TUNED,
    for the reason `tuned_why`, and `undeclared` are the roles of which nobody says how they count. `record` returns
    draws, [S, n], of the tuning excess: how far the best value tried of each point lies above the best there is, in log
    loss; None if its trials are too few.
    """

    columns: Sizes
    weights: Array
    dropped: Mapping[str, int] = field(default_factory=dict)
    conventions: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    seed_spread: float | None = None
    tuned: str = UNKNOWN
    tuned_why: str = ""
    undeclared: tuple[str, ...] = ()
    record: Callable[[Points], Array | None] | None = None

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
            return 6.0
        k = self.columns["flops"] / self.columns["params"] / self.columns["tokens"]
        return float(np.exp(np.log(k).mean()))

    def tuned_as(self, how: str) -> Points:
        """Return the points tuned as a person says by one of TUNED; as they are if nothing is said.

        Raises:
            BadInput: another word.
        """
        if not how:
            return self
        if how not in TUNED:
            raise BadInput(Problem(f"--tuned {how!r}", ", ".join(TUNED), nearest(how, TUNED)))
        return replace(self, tuned=how, tuned_why=SAID)

    def with_column(self, role: str, values: Array) -> Points:
        """Return the points with other values of a role, [n]."""
        return replace(self, columns={**self.columns, role: values})

    def left_out(self, why: str, count: int) -> Points:
        """Return the points with a count of rows that were left out before, and why."""
        if count:
            return replace(self, dropped={**self.dropped, why: count})
        return self

    def only(self, keep: Rows | Index, why: str = "") -> Points:
        """Return the points of some rows, given as a mask or as indices; the others are counted if it is said why."""
        at = np.arange(self.n)[keep]
        points = self
        if why:
            points = self.left_out(why, self.n - len(at))
        return replace(
            points,
            columns={name: column[at] for name, column in self.columns.items()},
            weights=self.weights[at],
            names=tuple(self.names[k] for k in at if self.names),
        )


def points_of_frame(frame: pd.DataFrame, source: str, counting: Counting = PLAIN) -> Points:
    """Return the points of the table of a file `source`; a role that nobody names is found by its name.

    Raises:
        BadInput: a column that is missing or has a cell that is not a positive number; implausible numbers, such as N
            and D swapped or rows in two units; no usable row; rows at one point of which no column says why.
    """
    chosen = counting.conventions
    known = [str(name) for name in frame]
    ended = ended_rows(frame)
    if chosen.at:
        raise BadInput(
            f"{source}: --count at={chosen.at} needs a study's runs; --columns loss=COLUMN names a loss"
        )
    kept = rows_where(ended, counting.where, source)
    wanted = role_columns(known, counting.roles, source)
    points, keep, read = _usable(kept, wanted, source)
    check_plausible(read, keep, source)
    used = kept[keep]
    meanings = dict(points.conventions)
    for role in ("params", "loss"):
        if getattr(chosen, role):
            meanings[role] += f", {CHOICES[role][getattr(chosen, role)]} as --count says"
    taken = {column.name for column in read.values()} | {
        wanted.get(role, role) for role in SHAPE
    }
    others = [name for name in known if name not in taken]
    points = replace(points, conventions=meanings)
    points = points.left_out("not ended", len(frame) - len(ended))
    points = points.left_out(f"not where {counting.where}", len(ended) - len(kept))
    passes = next(filter(tells_passes, known), None)
    if passes:  # the laws here hold for new text alone
        again = numbers_of(used[passes])[0] > _ONCE
        if again.all():
            raise BadInput(f"every row read its text more than once (column {passes})")
        why = f"that read their text more than once (column {passes}; Muennighoff et al. 2023)"
        points = points.only(~again, why)
        used = used[~again]
    run = next((name for name in others if _RUN.fullmatch(name)), None)
    if run and chosen.rows != "all":
        last = _last_of_runs(points, used[run])
        why = f"checkpoints of a run that went on (column {run}; --count rows=all counts each)"
        points = points.only(last, why)
        used = used[last]
    points = _combined(points, used, others, chosen.rows, source)
    # What nobody says: what params count, and whether tokens are in thousands.
    undeclared = []
    if "params" in wanted and not chosen.params:
        undeclared.append("params")
    if meanings.get("flops") == "6ND" and not read["tokens"].says_unit:
        ratio = np.median(points.columns["tokens"] / points.columns["params"])
        if not MOST_PER_PARAM / 1e3 < ratio < FEWEST_PER_PARAM * 1e3:
            undeclared.append("tokens")
    return replace(points, undeclared=tuple(undeclared))


def points_of(
    frame: pd.DataFrame,
    columns: Mapping[str, str],
    source: str,
    weights: Array,
    names: Sequence[str],
) -> Points:
    """Return the points of counted runs by the columns' names, with the weight and the name of each row.

    Raises:
        BadInput: every column that is missing or has a cell that is not a positive number; no usable row.
    """
    points, keep, _ = _usable(frame, columns, source)
    return replace(points, weights=weights[keep], names=tuple(np.array(names, object)[keep]))


def _usable(
    frame: pd.DataFrame, columns: Mapping[str, str], source: str
) -> tuple[Points, Rows, dict[str, Column]]:
    """The points of all rows that can be used, which rows these are, [n], and all columns as read."""
    import pandas as pd

    read = read_columns(
        frame, {role: name for role, name in columns.items() if role not in SHAPE}, source
    )
    table = pd.DataFrame({role: column.values for role, column in read.items()})
    finite = np.isfinite(table.to_numpy()).all(1)
    again = finite & table.duplicated().to_numpy()
    keep = finite & ~again
    counts = {"not finite": int((~finite).sum()), "duplicate": int(again.sum())}
    dropped = {reason: count for reason, count in counts.items() if count}
    if not keep.any():
        raise BadInput(
            f"{source}: no row can be used: {counts_in_words(dropped) or 'there is none'}"
        )
    kept = {role: column.values[keep] for role, column in read.items()}
    conventions = {role: column.words for role, column in read.items()}
    for role in SHAPE:
        name = columns.get(role, role)
        if name != role:
            conventions[role] = f"column {name}"
        if name in frame:
            column = numbers_of(frame[name])[0]
            kept[role] = np.where(column > 0, column, np.nan)[keep]
    names = tuple(f"{frame.index.name or 'row'} {at}" for at in frame.index[keep])
    return Points(kept, np.ones(len(names)), dropped, conventions, names), keep, read


def _numbered(keys: Sequence[Any]) -> Index:
    """The number of each row's distinct tuple of keys, [n]."""
    import pandas as pd

    groups = pd.DataFrame(dict(enumerate(keys))).groupby(
        [*range(len(keys))], sort=False, dropna=False
    )
    return np.asarray(groups.ngroup(), np.intp)


def _last_of_runs(points: Points, run: pd.Series[Any]) -> Rows:
    """Whether a row is the last of its run and size, [n]: the others are no runs of their own."""
    import pandas as pd

    tokens = pd.Series(points.columns.get("tokens", np.zeros(points.n)))
    sizes = np.log(points.columns.get("params", np.ones(points.n))).round(6)
    longest = tokens.groupby(_numbered([run.to_numpy(object), sizes])).transform("max")
    return np.asarray(run.isna().to_numpy() | (tokens >= longest), bool)


def _combined(
    points: Points, frame: pd.DataFrame, others: Sequence[str], how: str, source: str
) -> Points:
    """Take the best row of each N, D, C and shape, or the mean of its seeds.

    `frame` has the points' rows, `others` are its columns that may be settings. Rows that differ only in a seed are
    averaged, and k of them have weight k. `how` is best, mean, all, or empty to decide by the table.

    Raises:
        BadInput: most points have several rows, and no column says why.
    """
    import pandas as pd

    counts = [role for role in COUNTS if role in points.columns]
    keys = [np.log(points.columns[role]).round(6) for role in counts]
    keys += [points.columns[role] for role in SHAPE if role in points.columns]
    point = _numbered(keys)
    n_points = point.max() + 1
    if how == "all" or len(counts) < 2 or points.n == n_points:
        return points
    n_values = frame[list(others)].groupby(point).nunique()
    varying = [name for name in others if (n_values[name] > 1).any()]
    seeds = [name for name in varying if _SEED.fullmatch(name)]
    searched = [name for name in setting_columns(varying).values() if name not in seeds]
    where = f"{several(points.n, 'row')} at {several(n_points, 'point')} of {' and '.join(counts[:2])}"
    if not how and not searched and not seeds:
        if points.n < 2 * n_points:  # that some come again may be an accident
            return points
        raise BadInput(
            f"{source}: {where}, and no column says why: --count rows=best takes the best of each (a search), "
            "rows=mean their mean (seeds), rows=all every row"
        )
    is_best = how == "best" or (bool(searched) and how != "mean")
    # Rows of one run, and of one point.
    run, differ = point, seeds
    words, away = "the mean of the rows", "averaged with another row of its point"
    if is_best:
        run, differ = np.arange(points.n), searched
        words, away = "the best", "not the best of its point"
        points = replace(points, tuned=EACH, tuned_why="the best of several rows a point")
        if seeds:
            run = _numbered([point, *(frame[name].to_numpy() for name in searched)])
    rows = pd.DataFrame({"run": run, "point": point, "loss": points.columns["loss"]})
    losses = rows.groupby("run")["loss"]
    rows = rows.assign(mean=losses.transform("mean"), n=losses.transform("size"))
    runs = rows.drop_duplicates("run")
    runs = runs.loc[runs.groupby("point")["mean"].idxmin()].sort_index()
    weights = runs["n"].to_numpy(float)
    kept = points.only(runs.index.to_numpy(), away)
    kept = kept.with_column("loss", runs["mean"].to_numpy(float))
    spread = None
    if weights.max() > 1:
        seen = rows[rows["run"].isin(runs["run"])]
        apart = np.log(seen["loss"] / seen["mean"])
        spread = math.sqrt((apart**2).sum() / (weights - 1).sum())
    words += " at each point"
    if differ:
        words += f", which differ in {several_named(differ)}"
    conventions = {
        **points.conventions,
        "rows": f"{words} ({where}); --count rows=all takes every row",
    }
    return replace(kept, seed_spread=spread, weights=weights, conventions=conventions)


@dataclass(frozen=True)
class TokenPath:
    """Tokens that follow params, as on a compute-optimal ladder: `tokens` (params / `params`)^`slope`.

    `spread` is the sd of log tokens around the line, `squares` the sum of squares of log params around their mean.
    """

    slope: float
    params: float
    tokens: float
    spread: float
    squares: float

    @property
    def words(self) -> str:
        """Describe the path: "tokens = 40 params in all rows, within 6%"."""
        if self.slope == 1:
            line = f"{short(self.tokens / self.params)} params"
        else:
            line = f"{short(self.tokens)} (params / {short(self.params)})^{self.slope:.2f}"
        return f"tokens = {line} in all rows, within {max(self.spread, 0.001):.1%}"

    def misses(self, at: Mapping[str, float]) -> bool:
        """Return whether a point {"params": …, "tokens": …} lies off the path."""
        if not at.keys() >= {"params", "tokens"}:
            return False
        away = math.log(at["params"] / self.params)
        there = math.log(self.tokens) + self.slope * away
        # Of rows, and of the line by its slope.
        sd = self.spread * math.sqrt(1 + away**2 / self.squares)
        return abs(math.log(at["tokens"]) - there) > max(ON_PATH, 3 * sd)


def path_of(points: Points) -> TokenPath | None:
    """Return the path on which all rows lie, as those of a compute-optimal ladder do; None if there is none."""
    if not points.varied >= {"params", "tokens"}:
        return None
    x, y = (np.log(points.columns[name]) for name in ("params", "tokens"))
    slope, _ = np.polyfit(x, y, 1)
    # Continued, a slope that is off by chance would leave a ratio that all rows have.
    if abs(slope - 1) < STRAIGHT:
        slope = 1.0
    spread = np.std(y - y.mean() - slope * (x - x.mean()))
    if spread > min(ON_PATH, ON_PATH * np.ptp(y)):
        return None
    # A line through few rows lies closer to them than to others.
    spread *= math.sqrt(len(x) / max(len(x) - 2, 1))
    return TokenPath(slope, math.exp(x.mean()), math.exp(y.mean()), spread, x.var() * len(x))


def across(columns: Sizes, *names: str) -> tuple[float, float]:
    """Return the spread of rows across the best line of two columns' logs, and that without its farthest row.

    It is sqrt(2) times the sd across the line: on a ray of tokens per parameter, the sd of log(D/N).
    """
    logs = np.stack([np.log(columns[name]) for name in names])
    spreads = []
    for _ in range(2):
        logs = logs - logs.mean(1, keepdims=True)
        away = np.linalg.eigh(logs @ logs.T)[1][:, 0] @ logs
        spreads.append(math.sqrt(2 * (away**2).mean()))
        logs = np.delete(logs, np.abs(away).argmax(), axis=1)
    return spreads[0], spreads[1]
