"""What speaks against the numbers of a fit, and what they would be if it were so.

A doubt makes every number weak at best, and weak means wide: the interval holds the fits with and without what is
doubted. Residuals that are large have no other fit, but doubt all.

A point's loss lies above the one that its best tuning would reach, by the tuning excess. If that grows with size, as
where one learning rate serves all sizes, every exponent is wrong, and nothing in a table of N, D and loss shows it.
Where the trials of the cells are known, draws of the excess of all points follow from them (`Points.record`): the law
is fitted to the losses without its expected part, and to some of its draws: their drift with log N and log D alone, as
their scatter is in the residuals. Where nobody says how a table came about, each of OTHERWISE is doubted.

Legend: n rows, S draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from sweeplab.formatting import listed, several, several_named
from sweeplab.laws.check import FLAGGED, Misfit
from sweeplab.laws.columns import COUNTS
from sweeplab.laws.core import LEVEL, Array
from sweeplab.laws.fitting import Fit
from sweeplab.laws.points import DECADES, EACH, SAID, SHARED, UNKNOWN, Points
from sweeplab.laws.sentences import Reason, sentence

# Of the parameters of the smallest size; embeddings grow as N^(1/3) at one ratio of width to depth.
EMBEDDINGS = 0.5
FAR = 6.0  # robust sigmas of a row
# Of the loss: tuned runs of one recipe on one text are within 1 or 2% of their law.
LARGE = 0.03
_DRIFT = 0.005  # of the loss between two points: a larger one is to be ruled out by the trials


@dataclass(frozen=True, eq=False)
class Doubt(Reason):
    """What is doubted, and the points as they would be otherwise, or the bent form; or neither."""

    otherwise: tuple[Points, ...] = ()
    is_bent: bool = False


@dataclass(frozen=True)
class Tuning:
    """What is known of the tuning of points: `points` less their expected excess, and draws of it, `record` [S, n]."""

    raw: Points
    points: Points
    record: Array | None

    @property
    def doubts(self) -> list[Doubt]:
        """Return why every number of these points is weak at best; empty if they were tuned well each by itself."""
        points = self.points
        how = points.tuned
        doubts = []
        if self.record is not None and how == EACH:
            drift = float(np.quantile(np.ptp(self._drifts(self.record), axis=1), LEVEL))
            if drift > _DRIFT:
                doubts.append(Doubt("drift", {"drift": drift}))
        for code, (share, needs, otherwise) in OTHERWISE[how].items():
            if points.varied >= needs and points.varied:
                doubts.append(
                    Doubt(code, {"how": how, "share": share}, (otherwise(points, share),))
                )
        return doubts

    @property
    def says(self) -> str:
        """Say how the points were tuned, and how large their excess is."""
        why = f", {self.raw.tuned_why}" if self.raw.tuned_why else ""
        low, mean, high = map(math.expm1, self.ends)
        code = "excess" if self.record is not None else self.points.tuned
        return sentence(f"tuned: {code}", {"why": why, "low": low, "mean": mean, "high": high})

    @property
    def ends(self) -> tuple[float, float, float]:
        """Return the lowest, the mean and the largest expected excess of a point, in log loss."""
        mean = np.zeros(self.raw.n)
        if self.record is not None:
            mean = self.record.mean(0)
        return mean.min(), mean.mean(), mean.max()

    def _drifts(self, record: Array) -> Array:
        """The smooth part in the log sizes of each draw of the excess, less their mean: [S, n]."""
        logs = [
            np.log(self.raw.columns[name]) for name in COUNTS[:2] if name in self.raw.varied
        ]
        columns = [np.ones(self.raw.n), *logs]
        if logs:
            columns.append((logs[0] - logs[0].mean()) ** 2)
        base = np.linalg.svd(np.stack(columns, 1), full_matrices=False)[0]
        lines = (record @ base) @ base.T
        return np.asarray(lines - lines.mean(0))

    @property
    def tables(self) -> tuple[Points, ...]:
        """Return the points, and those without draws of the drift of their excess, all equally likely."""
        if self.record is None:
            return (self.points,)
        drifts = self._drifts(self.record)
        chosen = np.argsort(np.ptp(drifts, axis=1))
        four = chosen[(np.array([1, 3, 5, 7]) / 8 * len(chosen)).astype(int)]
        drawn = [_less(self.points, drifts[draw]) for draw in four]
        return (self.points, *drawn)


def tuning_of(points: Points) -> Tuning:
    """Return what is known of the tuning of points."""
    record = points.record(points) if points.record else None
    if record is None:
        if points.record and points.tuned == EACH and points.tuned_why != SAID:
            points = replace(
                points,
                tuned=UNKNOWN,
                tuned_why=f"{several(points.n, 'point')} with too few trials to tell their tuning excess",
            )
        return Tuning(points, points, None)
    return Tuning(points, _less(points, record.mean(0)), record)


def _less(points: Points, excess: Array) -> Points:
    """The points without an excess of their log losses, [n]."""
    return points.with_column("loss", points.columns["loss"] * np.exp(-excess))


def _share(points: Points, name: str) -> Array:
    """From 0 at the smallest to 1 at the largest of a column, in logs."""
    logs = np.log(points.columns[name])
    return np.asarray((logs - logs.min()) / np.ptp(logs))


def _mistuned(points: Points, most: float) -> Points:
    """Grow with the square of the distance in log size, as the loss about a best value that follows a power of it."""
    size = next(name for name in COUNTS if name in points.varied)
    return _less(points, most * _share(points, size) ** 2)


def _not_annealed(points: Points, most: float) -> Points:
    """Take all rows of a size but the longest for checkpoints of it."""
    size = np.unique(points.columns["params"], return_inverse=True)[1]
    longest = np.zeros(size.max() + 1)
    np.maximum.at(longest, size, points.columns["tokens"])
    return _less(points, most * (1 - points.columns["tokens"] / longest[size]))


def _stopped(points: Points, read: float) -> Points:
    shares = 1 - (1 - read) * _share(points, "tokens")
    return points.with_column("tokens", points.columns["tokens"] * shares)


def _large_batch(points: Points, lost: float) -> Points:
    """Lose tokens as one batch for all does, whose critical size grows as the root of the tokens."""
    tokens = points.columns["tokens"]
    shares = 1 - lost * np.sqrt(tokens.min() / tokens)
    return points.with_column("tokens", tokens * shares)


_ANY, _BOTH = frozenset[str](), frozenset({"params", "tokens"})
# What may be so where nobody says how points were tuned: how far, what must vary, and the points without it.
OTHERWISE: Mapping[
    str, Mapping[str, tuple[float, frozenset[str], Callable[[Points, float], Points]]]
] = {
    UNKNOWN: {
        "mistuned": (0.02, _ANY, _mistuned),
        # What annealing is worth (Haegele et al. 2024, arXiv 2405.18392).
        "not annealed": (0.025, _BOTH, _not_annealed),
        "stopped": (0.75, _BOTH, _stopped),
        "large batch": (0.3, _BOTH, _large_batch),
    },
    EACH: {},
    # A best learning rate that falls as N^-0.7 (arXiv 2503.04715) costs about 3% over two decades of N if it is kept.
    SHARED: {"mistuned": (0.03, _ANY, _mistuned)},
}


def doubts_of(points: Points, fitted: Fit, form: Misfit) -> list[Doubt]:
    """Return what the rows say against a fit, and what nobody says of their columns."""
    doubts = []
    if "params" in points.undeclared and "params" in points.varied:
        # Count the embeddings where they may be missing, and leave them out where they may be counted.
        params = points.columns["params"]
        others = EMBEDDINGS * (params / params.min()) ** (-2 / 3)
        counted = tuple(
            points.with_column("params", params * (1 + sign * others)) for sign in (1, -1)
        )
        doubts.append(Doubt("params", {"share": EMBEDDINGS}, counted))
    if "tokens" in points.undeclared:
        column = points.conventions["tokens"].removeprefix("column ")
        doubts.append(Doubt("tokens", {"column": column}))
    doubts += _outliers(points, fitted)
    if form.status == FLAGGED:
        facts = {"chance": form.chance, "direction": form.direction}
        doubts.append(Doubt("form", facts, is_bent=True))
    if fitted.sigma > LARGE:
        columns = listed([*fitted.law.columns])
        facts = {"sigma": fitted.sigma, "usual": LARGE, "columns": columns}
        doubts.append(Doubt("large", facts))
    return doubts


def _outliers(points: Points, fitted: Fit) -> list[Doubt]:
    errors = fitted.residuals
    scaled = np.abs(errors) * np.sqrt(fitted.weights)
    sigma = 1.4826 * np.median(np.sort(scaled)[len(fitted.law.parameters) :])
    sigmas = scaled / max(sigma, 1e-300)
    far = np.flatnonzero((sigmas > FAR) & (np.abs(errors) > 1e-5))  # exact losses have none
    if not far.size:
        return []
    names = points.names or [f"row {row + 1}" for row in range(points.n)]
    far = far[np.argsort(-sigmas[far])]
    words = [
        f"{names[row]} ({math.expm1(errors[row]):+.1%}, {sigmas[row]:.0f} sigma)" for row in far
    ]
    facts = {"sigmas": FAR, "rows": several_named(words), "names": [names[row] for row in far]}
    return [Doubt("outliers", facts, (points.only(np.setdiff1d(np.arange(points.n), far)),))]


def along_family(points: Points) -> Points:
    """Return the rows of one depth, where most of a table's sizes have it, with a few others beside; else all rows.

    The loss at equal parameters depends on depth and width: the others would count as noise, or as a bend. Where depth
    grows with the size, the sizes are a family themselves.
    """
    depth = points.columns.get("n_layer")
    if depth is None or not np.isfinite(depth).all() or np.ptp(depth) == 0:
        return points
    depths, counts = np.unique(depth, return_counts=True)
    kept = depth == depths[np.argmax(counts)]
    every = np.log10(points.columns["params"])
    params = every[kept]
    # Six sizes of one depth, and most of all rows and of their range.
    is_enough = len(np.unique(params.round(3))) >= 6 and np.ptp(params) >= DECADES["params"]
    is_most = len(params) >= 0.6 * points.n and np.ptp(params) >= 0.7 * np.ptp(every)
    if not (is_enough and is_most):
        return points
    return points.only(kept, "of another depth (n_layer): at equal parameters the loss differs")
