"""Doubts about a fit of any form: large residuals, or residuals that correlate with a column it does not use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sweeplab.formatting import several
from sweeplab.laws.estimation.fitting import Fit
from sweeplab.laws.estimation.forms import Array
from sweeplab.laws.points import Points

FALSE_ALARM = 0.05  # over all columns together
LARGE = 0.03  # of the loss: tuned runs of one recipe on one text are within 1 or 2% of their law
_FEWEST = 3
_NOTHING = 1e-6  # the share of a direction left after projection below which the law contains it
_MOST_NAMED = 6


@dataclass(frozen=True)
class Pattern:
    """The pattern of residuals over a column: rank correlation, and the swing and bend of a fitted parabola.

    `swing` is the difference of the residual between the column's high and low end, as a share of the loss; `bend` is
    that between both ends and the middle. `p_value` is the chance of such a parabola under noise alone; None if the
    column has too few values, or the law already contains such a parabola.
    """

    column: str
    rank: float
    swing: float
    bend: float | None
    p_value: float | None


def doubts(points: Points, fit: Fit) -> list[str]:
    """Return a warning for residuals above LARGE, and one for each column that they correlate with significantly."""
    found = [each for name, column in unused_columns(points).items() if (each := _pattern(name, column, fit))]
    sure, names = significant(found), [each.column for each in found]
    said = []
    if fit.sigma > LARGE:
        tested = "the table has no other column that could explain it"
        if names:
            listed = ", ".join(names[:_MOST_NAMED]) + (" …" if len(names) > _MOST_NAMED else "")
            tested = f"{len(sure)} of {several(len(names), 'other column')} ({listed}) can be seen to correlate with it"
        said.append(
            f"residuals of {fit.sigma:.1%}: runs of one recipe rarely leave over {LARGE:.0%}, so more than "
            f"{' and '.join(fit.law.columns)} affects the loss or the form is wrong: every number is in doubt; {tested}"
        )
    return said + [
        f"the residuals correlate with {each.column}, which the law does not use: {each.swing:+.1%} of the loss from "
        f"its low end to its high end (p {each.p_value:.2g}, {several(len(names), 'column')} tested)"
        for each in sure
    ]


def unused_columns(points: Points) -> dict[str, Array]:
    """Return the columns that may be causes: the shape, the aspect ratio, other columns of the file."""
    found = {name: column for name, column in points.shape.items() if np.isfinite(column).all()}
    if {"n_layer", "n_embd"} <= found.keys():
        found["n_embd / n_layer"] = found["n_embd"] / found["n_layer"]
    return found | points.extra_columns


def patterns(points: Points, fit: Fit) -> list[Pattern]:
    """Return the pattern over each column that varies: params, tokens, flops, and all that the law does not use."""
    columns = {name: points.columns[name] for name in ("params", "tokens", "flops") if name in points.columns}
    found = [_pattern(name, column, fit) for name, column in (columns | unused_columns(points)).items()]
    return [each for each in found if each]


def significant(found: Sequence[Pattern]) -> list[Pattern]:
    """Return the significant patterns, corrected for the number of columns tested (Holm 1979)."""
    tested = [(each.p_value, each) for each in found if each.p_value is not None]
    tested.sort(key=lambda one: one[0])
    too_large = (at for at, (p, _) in enumerate(tested) if p > FALSE_ALARM / (len(tested) - at))
    return [each for _, each in tested[: next(too_large, len(tested))]]


def _pattern(name: str, column: Array, fit: Fit) -> Pattern | None:
    """Return the pattern over a column, for the rows that have it; over its log if all values are positive."""
    from pandas import Series
    from scipy.special import fdtrc

    there = np.isfinite(column)
    if there.sum() <= len(fit.theta) + _FEWEST:
        return None
    scale = column[there]
    scale = np.log(scale) if (scale > 0).all() else scale
    span = float(np.ptp(scale))
    if span < 1e-9 * max(1.0, float(np.abs(scale).max())):
        return None
    residual, delta, jacobian = fit.residuals()[there], fit.rows.delta, fit.jacobian[:, there]
    u = 2 * (scale - scale.min()) / span - 1
    has_bend = len(np.unique(scale.round(9))) >= _FEWEST
    root = np.sqrt(fit.rows.weights[there])[:, None]
    curves = root * np.stack([u, u**2][: 1 + has_bend], 1)
    clipped = root * np.clip(residual, -delta, delta)[:, None]
    line = np.linalg.lstsq(np.column_stack([root, curves]), clipped, rcond=None)[0][:, 0]
    # The law's own gradient is projected out of both, so that what it could fit is no pattern.
    gradient = np.linalg.qr(root * jacobian.T)[0]
    left = curves - gradient @ (gradient.T @ curves)
    base, lengths, _ = np.linalg.svd(left, full_matrices=False)
    base = base[:, lengths > _NOTHING * np.linalg.norm(curves)]
    rest = (clipped - gradient @ (gradient.T @ clipped))[:, 0]
    freedom = len(rest) - gradient.shape[1] - base.shape[1]
    squares, inside = float(rest @ rest), float(((rest @ base) ** 2).sum())
    p_value = None
    if base.shape[1] and freedom > 0 and squares > 1e-24:
        ratio = inside / base.shape[1] / max((squares - inside) / freedom, 1e-300)
        p_value = float(fdtrc(base.shape[1], freedom, ratio))
    # Spearman's correlation; equal values of a product, such as 6ND, may differ in their last bits.
    ranks = [Series(each).rank() for each in (scale.round(9), residual.round(12))]
    return Pattern(
        column=name,
        rank=ranks[0].corr(ranks[1]) if np.ptp(residual) else 0.0,
        swing=float(2 * line[1]),
        bend=float(line[2]) if has_bend else None,
        p_value=p_value,
    )
