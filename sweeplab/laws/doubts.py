"""What speaks against the numbers of a fit, and what they would be if it were so.

A doubt makes every number weak at best, and weak means wide: the interval holds the fits with and without what is
doubted. Residuals that are large, or follow a column that the law does not use, have no other fit, but doubt all.

A point's loss lies above the one that its best tuning would reach, by the tuning excess. If that grows with size, as
where one learning rate serves all sizes, every exponent is wrong, and nothing in a table of N, D and loss shows it.

- Where the trials of the cells are known, draws of the excess of all points follow from them (`Points.record`). The law
  is fitted to the losses without its expected part, and to some of its draws: their drift with log N and log D alone,
  as their scatter is in the residuals.
- Where it is not known how points were tuned, or one setting served all, the other fit is that of the losses without an
  excess of MISTUNED of the loss at the largest size that falls to nothing at the smallest, with the square of the
  distance in log size, as the loss about a best value that follows a power of the size.

Legend: n rows, S draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from sweeplab.errors import BadInput
from sweeplab.formatting import listed, several, short
from sweeplab.laws.check import FLAGGED, Misfit, added_columns
from sweeplab.laws.choosing import family_words
from sweeplab.laws.columns import SHAPE, first_of
from sweeplab.laws.core import Array
from sweeplab.laws.fitting import Fit, fit
from sweeplab.laws.forms import Law
from sweeplab.laws.intervals import LEVEL
from sweeplab.laws.points import EACH, SAID, SHARED, UNKNOWN, Points, TuningRecord
from sweeplab.laws.sentences import sentence

# Of the loss at the largest size. A best learning rate that falls as N^-0.7 (arXiv 2503.04715) costs about 3% over two
# decades of N if it is kept.
MISTUNED = {UNKNOWN: 0.02, SHARED: 0.03}
FAR = 6.0  # robust sigmas of a row
LARGE = 0.03  # of the loss: tuned runs of one recipe on one text are within 1 or 2% of their law
_DRIFT = 0.005  # of the loss between two points: a larger one is to be ruled out by the trials
_ALARM = 0.05  # over all columns that residuals may follow together
_TRIFLE = 0.001  # of the loss: patterns that move no number
_EXACT = 1e-5  # log residuals of this size are nobody's error
_MOST_NAMED = 4
_N_EXCESSES = 4  # draws of the tuning excess to which a law is fitted
_SIZES = ("params", "tokens", "flops")
_LARGER = 1 / 3  # the share of rows that a fit of the larger ones leaves out


@dataclass(frozen=True)
class Doubt:
    """What is doubted, as a code with facts, and the fits of the other way to see it; none if there is no such fit."""

    code: str
    facts: Mapping[str, Any]
    fits: tuple[Fit, ...] = ()

    @property
    def words(self) -> str:
        """Return it in words."""
        return sentence(self.code, self.facts)


@dataclass(frozen=True)
class Tuning:
    """What is known of the tuning of a law's points: `points` less their expected excess, and the `record` of it."""

    raw: Points
    points: Points
    record: TuningRecord | None

    @property
    def how(self) -> str:
        """Return how the points were tuned, one of TUNED."""
        return self.points.tuned

    @property
    def doubt(self) -> str:
        """Return why every number of these points is weak at best; empty if they were tuned well each by itself."""
        known = {SHARED: "one setting served all sizes", UNKNOWN: "how the points were tuned is not known"}
        if self.how == EACH and self.record and self.largest_drift > _DRIFT:
            facts = {"drift": self.largest_drift, "tells": self.would_tell}
            return sentence("drift", facts)
        return known.get(self.how, "")

    @property
    def would_tell(self) -> str:
        """Return what would tell how well the points were tuned."""
        cures = {SHARED: "a search at each size would tell", UNKNOWN: "--tuned says how they were tuned"}
        return cures.get(self.how, self.record.cure if self.record else "")

    @property
    def says(self) -> str:
        """Say how the points were tuned, and how large their excess is."""
        words = {EACH: "each point by itself", SHARED: "one setting for all sizes", UNKNOWN: "not known"}
        known = ", ".join(filter(None, [words[self.how], self.raw.tuned_why]))
        if self.record is None:
            return known + ("; their tuning excess is not known" if self.how == EACH else "")
        low, mean, high = (math.expm1(each) for each in self.ends)
        excess = f"the tuning excess of a point is {mean:.2%} of the loss ({low:.2%} to {high:.2%})"
        return f"{known}; {excess}: the fit leaves it out, and the intervals contain its drift"

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        known = dict.fromkeys(("lowest", "mean", "largest"))
        if self.record:
            known = dict(zip(known, self.ends, strict=True))
        return {"how": self.how, "why": self.raw.tuned_why, "excess": known}

    @property
    def ends(self) -> tuple[float, float, float]:
        """Return the lowest, the mean and the largest expected excess of a point, in log loss."""
        mean = self.record.draws.mean(0) if self.record else np.zeros(self.raw.n)
        return float(mean.min()), float(mean.mean()), float(mean.max())

    @property
    def drifts(self) -> Array:
        """Return the smooth part in the log sizes of each draw of the excess, less their mean: [S, n]."""
        draws = self.record.above if self.record else np.zeros((1, self.raw.n))
        logs = [np.log(self.raw.columns[name]) for name in _SIZES[:2] if name in self.raw.varied]
        columns = [np.ones(self.raw.n), *logs]
        if logs:
            columns.append((logs[0] - logs[0].mean()) ** 2)
        base = np.linalg.svd(np.stack(columns, 1), full_matrices=False)[0]
        lines = (draws @ base) @ base.T
        return np.asarray(lines - lines.mean(0))

    @property
    def largest_drift(self) -> float:
        """Return how far the excess may drift between two points beyond what is expected, in log loss."""
        return float(np.quantile(np.ptp(self.drifts, axis=1), LEVEL))

    def fits(self, law: Law) -> list[Fit]:
        """Return the fits of the points, and to draws of the drift of their excess, all equally likely."""
        fits = [fit(self.points, law)]
        if self.record is None:
            return fits
        drifts = self.drifts
        chosen = np.argsort(np.ptp(drifts, axis=1))
        shares = (np.arange(_N_EXCESSES) + 0.5) / _N_EXCESSES
        for draw in chosen[(shares * len(chosen)).astype(int)]:
            lower = self.points.columns["loss"] * np.exp(-drifts[draw])
            fits.append(fit(self.points.with_loss(lower), law))
        return fits

    def doubts(self, law: Law) -> list[Doubt]:
        """Return the doubt that the points were tuned less well at larger sizes."""
        if self.how == EACH:
            if not self.doubt:
                return []
            return [Doubt("drift", {"drift": self.largest_drift, "tells": self.would_tell})]
        size = next((name for name in _SIZES if name in self.raw.varied), "")
        if not size:
            return []
        excess = MISTUNED[self.how]
        logs = np.log(self.points.columns[size])
        grown = excess * ((logs - logs.min()) / np.ptp(logs)) ** 2
        other = fit(self.points.with_loss(self.points.columns["loss"] * np.exp(-grown)), law)
        facts = {"how": self.doubt, "excess": excess, "size": size, "tells": self.would_tell}
        return [Doubt("tuning", facts, (other,))]


@lru_cache(maxsize=16)
def tuning_of(points: Points) -> Tuning:
    """Return what is known of the tuning of points."""
    record = points.record(points) if points.record else None
    if record is None:
        if points.record and points.tuned == EACH and points.tuned_why != SAID:
            why = f"{several(points.n, 'point')} with too few trials to tell their tuning excess"
            points = replace(points, tuned=UNKNOWN, tuned_why=why)
        return Tuning(points, points, None)
    tuned = points.with_loss(points.columns["loss"] * np.exp(-record.above.mean(0)))
    others = {name: points.extra_columns[name] for name in points.extra_columns if name not in record.columns}
    return Tuning(points, replace(tuned, extra_columns=others), record)


def doubts_of(points: Points, fitted: Fit, form: Misfit) -> list[Doubt]:
    """Return what the rows say against a fit: far rows, a form that does not fit, large residuals, other columns."""
    doubts = [*_outliers(points, fitted), *_unlike_shapes(points, fitted.law)]
    if form.status == FLAGGED:
        facts = {"chance": form.chance, "direction": form.direction}
        doubts.append(Doubt("form", facts, _of_the_larger(points, fitted.law)))
    again = int(points.is_repeated.sum())
    if again:
        doubts.append(Doubt("repeats", {"count": again, "rows": points.n, "column": points.passes_by}))
    if fitted.sigma > LARGE:
        columns = listed([*fitted.law.columns])
        doubts.append(Doubt("large", {"sigma": fitted.sigma, "usual": LARGE, "columns": columns}))
    if fitted.medians["E"] > float(points.columns["loss"].min()):
        doubts.append(Doubt("above", {}))
    return [*doubts, *_followed(points, fitted)]


def _unlike_shapes(points: Points, law: Law) -> list[Doubt]:
    """Doubt an exponent of N where the shapes are of no family, and so differ at equal parameters."""
    if "params" not in law.columns or not set(SHAPE) <= points.sizes.keys() or family_words(points, law):
        return []
    layer, embd = (points.sizes[name] for name in SHAPE)
    aspect = embd / layer
    return [Doubt("shapes", {"low": short(float(aspect.min())), "high": short(float(aspect.max()))})]


def _outliers(points: Points, fitted: Fit) -> list[Doubt]:
    scaled = np.abs(fitted.residuals) * np.sqrt(fitted.weights)
    n_params = len(fitted.law.parameters)
    sigma = 1.4826 * float(np.median(np.sort(scaled)[n_params:]))
    sigmas = scaled / max(sigma, 1e-300)
    far = np.flatnonzero((sigmas > FAR) & (np.abs(fitted.residuals) > _EXACT))
    if not far.size:
        return []
    far = far[np.argsort(-sigmas[far])]
    names = [points.names[row] if points.names else f"row {row + 1}" for row in far]
    words = [
        f"{name} ({math.expm1(fitted.residuals[row]):+.1%}, {sigmas[row]:.0f} sigma)"
        for name, row in zip(names, far, strict=True)
    ]
    facts = {"sigmas": FAR, "rows": first_of(words, _MOST_NAMED), "names": names}
    kept = points.only(np.setdiff1d(np.arange(points.n), far))
    return [Doubt("outliers", facts, _fits(kept, fitted.law))]


def _of_the_larger(points: Points, law: Law) -> tuple[Fit, ...]:
    size = next(name for name in ("flops", *law.columns) if name in points.columns)
    order = np.argsort(points.columns[size], kind="stable")
    return _fits(points.only(np.sort(order[int(_LARGER * points.n) :])), law)


def _fits(points: Points, law: Law) -> tuple[Fit, ...]:
    try:
        return (fit(points, law),)
    except BadInput:  # too few rows are left
        return ()


def unused_columns(points: Points, law: Law) -> dict[str, Array]:
    """Return the columns that may be causes, and vary in all rows: the shape, other columns of the file."""
    columns = {name: column for name, column in points.shape.items() if np.isfinite(column).all()}
    columns |= {name: column for name, column in points.extra_columns.items() if np.isfinite(column).all()}
    varied = {}
    for name, column in columns.items():
        scale = np.log(column) if (column > 0).all() else column
        if name not in law.columns and np.ptp(scale) > 1e-9 * max(1.0, float(np.abs(scale).max())):
            varied[name] = scale - scale.mean()
    return varied


def _followed(points: Points, fitted: Fit) -> Sequence[Doubt]:
    tested = []
    for name, column in unused_columns(points, fitted.law).items():
        seen = added_columns(points, fitted, column[:, None])
        if seen:
            tested.append((seen.chance, name, seen.effect))
    doubts, many = [], several(len(tested), "column")
    for chance, name, effect in tested:
        if chance * len(tested) < _ALARM and abs(effect) > _TRIFLE:
            facts = {"column": name, "swing": effect, "chance": chance, "tested": many}
            doubts.append(Doubt("column", facts))
    return doubts
