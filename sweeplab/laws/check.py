"""Whether a law's form is right: one test of added columns, and one hold-out of the larger runs.

The test adds the departures of a bent form to the law: a bend in each column, and the product of the logs of both. If
the form is right, the residuals follow them no more than noise does: the F test of nested linear models, after the
law's own gradient, and the noise that grows, falls or is shared, are taken out. What rows of a size share is taken out
only as far as the rows show it, since a bend in N looks the same. The power is that of the noncentral F for a departure
that makes the forecast at ten times the compute 5% wrong.

In the hold-out the law is fitted to the rows below a cut, and forecasts those above.

Legend: n rows, p parameters, k added columns, h rows above a cut, S draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sweeplab.errors import BadInput
from sweeplab.laws.comparing import FALSE_ALARM
from sweeplab.laws.core import Array
from sweeplab.laws.fitting import Fit, fit
from sweeplab.laws.forms import FEWEST_VALUES, Law, has_optimum, log_n_opt
from sweeplab.laws.points import Points
from sweeplab.laws.sentences import sentence

FLAGGED, NOT_SEEN, UNSEEN = "flagged", "not seen", "cannot be seen"
# The compute of the forecast, and its error, that a departure's power is for.
BEYOND, _WRONG = 10.0, 0.05
SHARE_ABOVE, SHARE_BELOW = 0.2, 0.5  # of the rows


def _whitened(fitted: Fit, columns: Array) -> Array:
    """Columns [n, m] in rows of equal and independent noise, by the fit's tilt and sharing."""
    z = np.log(fitted.rows[fitted.tilted_by])
    groups = fitted.groups
    tilt = np.exp(-np.median(fitted.draws.tilt) * (z - z.mean()))
    scaled: Array = columns * (np.sqrt(fitted.weights) * tilt)[:, None]
    if groups is None:
        return scaled
    r = np.quantile(fitted.draws.shared, 0.05)  # as far as the rows show it
    sizes = np.bincount(groups)
    sums = np.zeros((len(sizes), columns.shape[1]))
    np.add.at(sums, groups, scaled)
    kept = (1 - np.sqrt((1 - r) / (1 - r + r * sizes))) / sizes
    return np.asarray((scaled - (kept[:, None] * sums)[groups]) / math.sqrt(1 - r))


@dataclass(frozen=True)
class Misfit:
    """The test of a law's form: `chance` of such residuals if it is right, and the power to see departures by name."""

    law: str
    status: str
    chance: float | None
    direction: str
    powers: dict[str, float]

    @property
    def words(self) -> str:
        """Return the result in words."""
        powers = (
            ", ".join(f"{name} {power:.0%}" for name, power in self.powers.items())
            or "too few rows"
        )
        return sentence(f"form {self.status}", vars(self) | {"powers": powers})


def misfit(points: Points, fitted: Fit) -> Misfit:
    """Test the form of a law."""
    from scipy.special import fdtrc, fdtri, ncfdtr

    law = fitted.law
    slopes, added = fitted.gradient(fitted.rows)
    whole = _whitened(fitted, np.column_stack([fitted.residuals, slopes, added]))
    p = slopes.shape[1]
    residual, gradient, columns = whole[:, 0], whole[:, 1 : p + 1], whole[:, p + 1 :]
    basis = np.linalg.qr(gradient)[0]
    left = columns - basis @ (basis.T @ columns)
    residual = residual - basis @ (basis.T @ residual)
    lengths = np.linalg.norm(left, axis=0)
    k = len(lengths)
    freedom = points.n - p - k
    total = residual @ residual
    # Else the law contains the departure.
    is_seen = lengths > 1e-6 * np.linalg.norm(columns, axis=0)
    if not is_seen.all() or freedom < 1 or total <= 0:
        return Misfit(law.name, UNSEEN, None, "", {})
    inside = ((residual @ np.linalg.qr(left)[0]) ** 2).sum()
    variance = max((total - inside) / freedom, 1e-300)
    chance = float(fdtrc(k, freedom, inside / k / variance))
    names = list(law.departures_of)
    strongest = names[np.abs(residual @ left / lengths).argmax()]
    # What a departure of unit size does to the forecast, beside what the refitted law takes up of it.
    target = {name: np.array([size]) for name, size in _target(points, fitted).items()}
    by_law, by_departure = fitted.gradient(target)
    change = np.abs(
        (by_departure - by_law @ np.linalg.lstsq(gradient, columns, rcond=None)[0])[0]
    )
    noncentral = np.minimum((_WRONG / np.maximum(change, 1e-9) * lengths) ** 2 / variance, 1e4)
    powers = 1 - ncfdtr(k, freedom, noncentral, fdtri(k, freedom, 1 - FALSE_ALARM))
    status = NOT_SEEN
    if chance < FALSE_ALARM:
        status = FLAGGED
    elif powers.max() < 0.5:  # more likely than not it is missed
        status = UNSEEN
    by_name = dict(zip(names, map(float, powers), strict=True))
    return Misfit(law.name, status, chance, strongest, by_name)


def _target(points: Points, fitted: Fit) -> dict[str, float]:
    """The run of BEYOND times the largest compute: of N and D at the best tokens per parameter within the rows'."""
    law = fitted.law
    if not has_optimum(law):
        grown = BEYOND if law.columns == ("flops",) else math.sqrt(BEYOND)
        return {name: grown * points.columns[name].max() for name in law.columns}
    params, tokens = points.columns["params"], points.columns["tokens"]
    log_nd = math.log(BEYOND * (params * tokens).max())
    ratios = np.log(tokens / params)
    best = log_nd - 2 * log_n_opt(law, fitted.best, log_nd)[0]
    ratio = np.clip(best, ratios.min(), ratios.max())
    return {"params": math.exp((log_nd - ratio) / 2), "tokens": math.exp((log_nd + ratio) / 2)}


@dataclass(frozen=True)
class HoldOut:
    """A law's forecasts of the `rows` rows above a `cut` in `by`, by a fit to those up to it.

    `error` is the mean absolute error in log loss. Without a cut there is none.
    """

    law: str
    by: str
    rows: int = 0
    cut: float | None = None
    error: float | None = None

    @property
    def words(self) -> str:
        """Return the result in words."""
        return sentence("holdout none" if self.cut is None else "holdout", vars(self))


def hold_out(points: Points, law: Law) -> HoldOut:
    """Return a law's forecasts of the larger rows of a table."""
    by = next(name for name in ("flops", "tokens", "params") if name in points.columns)
    logs = np.log(points.columns[by]).round(6)
    fewest = max(len(law.parameters) + 2, math.ceil(SHARE_BELOW * points.n))
    most = points.n - max(2, math.ceil(SHARE_ABOVE * points.n))
    for value in np.unique(logs)[::-1]:
        few = points.only(logs <= value)
        larger = points.only(logs > value)
        columns = [np.log(few.columns[name]).round(6) for name in law.columns]
        if (
            not fewest <= few.n <= most
            or min(len(np.unique(each)) for each in columns) < FEWEST_VALUES
        ):
            continue
        try:
            fitted = fit(few, law)
        except BadInput:
            continue
        predicted = np.median(np.log(fitted.loss(larger.columns)), axis=0)
        error = float(np.abs(predicted - np.log(larger.columns["loss"])).mean())
        return HoldOut(law.name, by, larger.n, math.exp(value), error)
    return HoldOut(law.name, by)
