"""What a fit leaves over, against N, D, C and the shape of the model: patterns as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sweeplab.analysis.fit.fitting import Fit
from sweeplab.analysis.fit.forms import Array
from sweeplab.analysis.points import Points

SURE = 0.05  # over all columns together
_FEWEST = 3
_NOTHING = 1e-6


@dataclass(frozen=True)
class Pattern:
    """How the residuals go with a column: their rank correlation, and a parabola's swing and bend.

    `swing` is how much more of the loss is left over at the column's high end than at its low one; `bend` how much
    more at both ends than in the middle. `p_value` is how often errors alone leave such a parabola; None where
    the column takes too few values, or the law has such a parabola already.
    """

    column: str
    rank: float
    swing: float
    bend: float | None
    p_value: float | None

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)


def patterns(points: Points, fit: Fit) -> list[Pattern]:
    """Return the pattern against each column that varies: params, tokens, flops, and those of the shape."""
    columns = {name: points.columns[name] for name in ("params", "tokens", "flops") if name in points.columns}
    found = [_pattern(name, column, fit) for name, column in (columns | shapes(points)).items()]
    return [each for each in found if each]


def shapes(points: Points) -> dict[str, Array]:
    """Return the columns of the shape that all rows have, and the aspect ratio where there are both."""
    found = {name: column for name, column in points.shape.items() if np.isfinite(column).all()}
    if {"n_layer", "n_embd"} <= found.keys():
        found["n_embd / n_layer"] = found["n_embd"] / found["n_layer"]
    return found


def surely(found: list[Pattern], among: Mapping[str, Any]) -> list[Pattern]:
    """Return the patterns against some columns that errors alone would hardly leave (Holm 1979)."""
    tested = sorted(
        (each for each in found if each.column in among and each.p_value is not None),
        key=lambda each: each.p_value or 0.0,
    )
    sure = []
    for at, each in enumerate(tested):
        if (each.p_value or 0.0) > SURE / (len(tested) - at):
            break
        sure.append(each)
    return sure


def _pattern(name: str, column: Array, fit: Fit) -> Pattern | None:
    from scipy.stats import f as f_distribution
    from scipy.stats import spearmanr

    logs = np.log(column)
    span = float(np.ptp(logs))
    if span < 1e-9:
        return None
    residual, delta = fit.residuals(), fit.rows.delta
    u = 2 * (logs - logs.min()) / span - 1
    has_bend = len(np.unique(logs.round(9))) >= _FEWEST
    curves = np.stack([u, u**2][: 1 + has_bend], 1)
    root = np.sqrt(fit.rows.weights)[:, None]
    bent = root * np.clip(residual, -delta, delta)[:, None]
    line = np.linalg.lstsq(root * np.column_stack([np.ones_like(u), curves]), bent, rcond=None)[0][:, 0]
    # The law's own slopes are taken out of both, so that what it could follow is no pattern.
    taken = np.linalg.qr(root * fit.law.derivatives(fit.theta[None], fit.rows.logs)[1][0].T)[0]
    left = root * curves - taken @ (taken.T @ (root * curves))
    base, lengths, _ = np.linalg.svd(left, full_matrices=False)
    base = base[:, lengths > _NOTHING * np.linalg.norm(root * curves)]
    rest = (bent - taken @ (taken.T @ bent))[:, 0]
    spare = len(rest) - taken.shape[1] - base.shape[1]
    squares, inside = float(rest @ rest), float(((rest @ base) ** 2).sum())
    p_value = None
    if base.shape[1] and spare > 0 and squares > 1e-24:
        ratio = inside / base.shape[1] / max((squares - inside) / spare, 1e-300)
        p_value = float(f_distribution.sf(ratio, base.shape[1], spare))
    return Pattern(
        column=name,
        rank=float(spearmanr(column, residual).statistic) if np.ptp(residual) else 0.0,
        swing=float(2 * line[1]),
        bend=float(line[2]) if has_bend else None,
        p_value=p_value,
    )
