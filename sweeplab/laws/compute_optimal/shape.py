"""Depth against width: the effect of a model's shape beside that of its size.

The log losses of the shapes are regressed on a curve in log N and on the log of the aspect ratio n_embd / n_layer:
the second term is the effect of shape at equal parameters. A shape trained for several lengths is one row, its mean
with the effect of the tokens removed: runs of one shape share the effect of that shape, so the degrees of freedom
come from the number of shapes, not of runs.

Legend: G shapes, N parameters, D tokens, a = log(n_embd / n_layer).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.errors import BadInput
from sweeplab.laws.columns import Array
from sweeplab.laws.comparing import compare
from sweeplab.laws.compute_optimal.lines import Number, n_sizes, turning_point
from sweeplab.laws.estimation.intervals import LEVEL, student
from sweeplab.laws.evidence import DIFFERENT, NOT_SEEN, UNKNOWN, Evidence
from sweeplab.laws.points import DEPTH_AND_WIDTH, Points

if TYPE_CHECKING:
    from pandas import DataFrame

OVERLAP = 1.5  # shapes whose parameters agree within this factor count as equal in size
FEWEST_ASPECTS = 3  # at overlapping sizes
_CURVED_ASPECTS = 4  # a parabola of them takes one more
_STEPS = 25
NONE_DIFFERS = "no two shapes of about equal parameters differ by more than chance"

MEANINGS = {
    "depth at equal parameters": "the factor on the loss if n_layer doubles and n_embd shrinks to compensate",
    "width at equal parameters": "the factor on the loss if n_embd doubles and n_layer shrinks to compensate",
    "depth at equal n_embd": "the factor on the loss if n_layer doubles and the parameters grow with it",
    "width at equal n_layer": "the factor on the loss if n_embd doubles and the parameters grow with it",
    "best aspect ratio": "n_embd / n_layer of lowest loss at equal parameters",
}
DEPTH, WIDTH, DEPTH_ALONE, WIDTH_ALONE, BEST = MEANINGS
_KINDS = dict.fromkeys(MEANINGS, "loss") | {BEST: "ratio"}
_BLANK = {name: Number(name, words, _KINDS[name], is_log=True) for name, words in MEANINGS.items()}


@dataclass(frozen=True)
class Rows:
    """One row per shape: logs of n_layer, n_embd, their ratio a and N, the log loss without the tokens' effect, [G].

    `place` [n] is the shape of each point, `correction` [n] the effect of its tokens on its log loss.
    """

    layer: Array
    embd: Array
    aspect: Array
    n: Array
    y: Array
    d: Array
    weights: Array
    place: NDArray[np.intp]
    correction: Array


@dataclass(frozen=True)
class Regression:
    """Weighted least squares: coefficients by the name of their column, their covariance, and the t quantile."""

    names: tuple[str, ...]
    at: Array
    covariance: Array
    sigma: float
    quantile: float

    def along(self, **parts: float) -> tuple[float, float, float]:
        """Return a linear combination of the coefficients, with its interval."""
        weights = np.array([parts.get(name, 0.0) for name in self.names])
        half = self.quantile * math.sqrt(float(weights @ self.covariance @ weights))
        value = float(weights @ self.at)
        return value, value - half, value + half


def rows_of(points: Points) -> Rows:
    """Return one row per shape; the effect of tokens, estimated within shapes of several lengths, is removed."""
    shapes = np.stack([points.shape[name] for name in DEPTH_AND_WIDTH], axis=1)
    unique, place = np.unique(shapes, axis=0, return_inverse=True)
    place = place.ravel()
    weights = np.asarray(np.bincount(place, points.weights), np.float64)

    def mean(column: Array) -> Array:
        return np.asarray(np.bincount(place, points.weights * column) / weights)

    y = np.log(points.columns["loss"])
    log_d = np.log(points.columns["tokens"]) if "tokens" in points.columns else np.zeros(points.n)
    correction = np.zeros(points.n)
    inside = log_d - mean(log_d)[place]
    if np.ptp(inside) > 1e-9:  # a shape with several lengths shows the effect of tokens
        z = log_d - log_d.mean()
        powers = np.stack([z, z**2], axis=1)[:, : 2 if len(np.unique(log_d.round(6))) > 2 else 1]
        within = powers - np.stack([mean(each) for each in powers.T], axis=1)[place]
        root = np.sqrt(points.weights)[:, None]
        slope = np.linalg.lstsq(within * root, (y - mean(y)[place]) * root[:, 0], rcond=None)[0]
        correction = powers @ slope
        log_d = np.full(points.n, log_d.mean())
    log_n = mean(np.log(points.columns["params"]))
    layer, embd = np.log(unique).T
    about = (mean(y - correction), mean(log_d), weights, place, correction)
    return Rows(layer, embd, embd - layer, log_n, *about)


def regress(rows: Rows, columns: dict[str, Array]) -> Regression | None:
    """Return the regression of the log losses; None if shapes are too few or columns are collinear."""
    if np.ptp(rows.d) > 1e-9:
        columns = columns | {"d": rows.d - rows.d.mean()}
    design = np.stack([np.ones_like(rows.y), *columns.values()], axis=1)
    freedom = len(rows.y) - design.shape[1]
    if freedom < 1 or np.linalg.cond(design / np.maximum(np.abs(design).max(0), 1e-12)) > 1e6:
        return None
    inverse = np.linalg.inv((design.T * rows.weights) @ design)
    at = inverse @ (design.T * rows.weights) @ rows.y
    variance = float(rows.weights @ (rows.y - design @ at) ** 2) / freedom
    return Regression(("one", *columns), at, inverse * variance, math.sqrt(variance), student(freedom))


def growth(rows: Rows) -> tuple[float, float] | None:
    """Return p and q of N ~ n_layer^p n_embd^q; None if the shapes do not determine them."""
    design = np.stack([np.ones_like(rows.n), rows.layer, rows.embd], axis=1)
    if np.linalg.matrix_rank(design, tol=1e-6) < 3:
        return None
    _, p, q = map(float, np.linalg.lstsq(design, rows.n, rcond=None)[0])
    return (p, q) if p > 0 and q > 0 else None


@dataclass(frozen=True)
class Shape:
    """The effects of depth and width.

    `cells` has a row for every point: name, n_layer, n_embd, aspect_ratio, params, tokens (None if the table has none),
    loss, weight; `loss_at_equal_params`, the loss adjusted to the middle size and number of tokens; and `on_frontier`:
    no other cell with as many tokens and at most as many parameters has a loss as low. `numbers` are those of MEANINGS.
    `size_law` is (N, loss) of the curve in N at the middle aspect ratio; losses are adjusted to `middle_params`.
    `growth` are p and q of N ~ n_layer^p n_embd^q near these shapes. `evidence` is that for differences at equal
    parameters: a number that it does not support is weak at best.
    """

    cells: DataFrame
    numbers: dict[str, Number]
    size_law: tuple[Array, Array] | None
    middle_params: float
    growth: tuple[float, float] | None
    sigma: float
    n_shapes: int
    says: str
    evidence: Evidence
    conventions: dict[str, str]
    dropped: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values.

        `cells` is a list of cells, `frontier` of those on the frontier, by tokens and parameters; `fixed` has the lines
        of loss over n_layer and over n_embd: {"over": "n_layer", "fixed": {"n_embd": 64, "tokens": …},
        "x": […], "loss": […]}.
        """
        law, best = self.size_law, self.cells[self.cells["on_frontier"]].sort_values(["tokens", "params"])
        return {
            "n_shapes": self.n_shapes,
            "n_points": len(self.cells),
            "level": LEVEL,
            "sigma": self.sigma if math.isfinite(self.sigma) else None,
            "numbers": {name: each.as_dict() for name, each in self.numbers.items()},
            "says": self.says,
            "evidence": asdict(self.evidence),
            "cells": self.cells.to_dict("records"),
            "frontier": best.to_dict("records"),
            "fixed": [*self._lines("n_layer", "n_embd"), *self._lines("n_embd", "n_layer")],
            "size_law": None if law is None else {"params": law[0].tolist(), "loss": law[1].tolist()},
            "middle_params": self.middle_params,
            "params_grow_as": None
            if self.growth is None
            else dict(zip(DEPTH_AND_WIDTH, self.growth, strict=True)),
            "conventions": self.conventions,
            "dropped": self.dropped,
        }

    def _lines(self, over: str, other: str) -> list[dict[str, Any]]:
        """Return the losses over n_layer or n_embd, one line for each value of the other and of the tokens."""
        drawn = []
        rows = self.cells.sort_values([over, "loss"])
        for _, cells in rows.groupby([other, "tokens"], dropna=False):
            if cells[over].nunique() > 1:
                held = {name: cells[name].tolist()[0] for name in (other, "tokens")}
                line = {"over": over, "fixed": held, "x": cells[over].tolist()}
                drawn.append(line | {"loss": cells["loss"].tolist()})
        return drawn


def shape_of(points: Points) -> Shape:
    """Return the effects of depth and width in a table, at equal parameters and with the other one fixed.

    Raises:
        BadInput: a table without n_layer, n_embd or parameters.
    """
    there = {*points.shape, *points.columns}
    if missing := [name for name in (*DEPTH_AND_WIDTH, "params") if name not in there]:
        raise BadInput(f"the shape needs {' and '.join(missing)}, which the table lacks")
    known = np.asarray(
        np.isfinite(np.stack([points.shape[name] for name in DEPTH_AND_WIDTH])).all(0), np.bool_
    )
    points = points.only(known)
    if not points.n:
        raise BadInput("no row has both n_layer and n_embd")
    rows = rows_of(points)
    lacking = _lacking(rows)
    numbers, law = _at_equal_parameters(rows, lacking)
    numbers |= _with_the_other_fixed(rows)
    evidence = _evidence(points, numbers[DEPTH])
    doubt = {UNKNOWN: evidence.why, NOT_SEEN: NONE_DIFFERS}.get(evidence.verdict, "")
    if points.tried and doubt:
        equal = (DEPTH, WIDTH, BEST) if evidence.verdict == NOT_SEEN else tuple(MEANINGS)
        numbers |= {name: numbers[name].at_most_weak(doubt) for name in equal}
    middle = rows.n.mean()
    # By how much each shape's size moves its log loss from the middle one's.
    away = _curve(law, rows.n - middle) if law else np.zeros_like(rows.n)
    size_law = None
    if law:
        sizes = np.linspace(rows.n.min(), rows.n.max(), _STEPS)
        size_law = np.exp(sizes), np.exp(law.at[0] + _curve(law, sizes - middle))
    return Shape(
        cells=_cells(points, away[rows.place] + rows.correction),
        numbers={name: numbers[name] for name in MEANINGS},
        size_law=size_law,
        middle_params=math.exp(float(middle)),
        growth=growth(rows),
        sigma=law.sigma if law else math.nan,
        n_shapes=len(rows.y),
        says=_says(numbers, lacking) + (f"; {evidence.in_words()}" if numbers[DEPTH].identified else ""),
        evidence=evidence,
        conventions=points.conventions,
        dropped=points.dropped | ({"without a shape": int((~known).sum())} if not known.all() else {}),
    )


def _evidence(points: Points, depth: Number) -> Evidence:
    """Return the evidence for differences at equal parameters: a study's comparison of cells, or a table's fit."""
    if not points.tried:
        if not depth.identified:
            return Evidence(0, "rows of a table", "", UNKNOWN, depth.verdict.reason)
        seen = Evidence(0, "rows of a table", "the rows' distances from the curve", NOT_SEEN)
        return replace(seen, verdict=DIFFERENT) if depth.low > 0 or depth.high < 0 else seen
    order = np.argsort(points.columns["loss"], kind="stable")
    pairs = list(itertools.combinations(range(points.n), 2))
    compared = compare([points.tried[at] for at in order], pairs, points.is_searched)
    if compared.evidence.verdict != DIFFERENT:
        return compared.evidence
    columns = [points.columns["params"], points.shape["n_embd"] / points.shape["n_layer"]]
    columns += [points.columns["tokens"]] if "tokens" in points.columns else []
    first, second = order[np.array(pairs).T]
    params, aspect, *tokens = (np.abs(np.log(each[first] / each[second])) for each in columns)
    near = (params <= math.log(OVERLAP)) & (aspect > 1e-6) & np.all([each < 0.01 for each in tokens], axis=0)
    verdict = DIFFERENT if compared.significant[near].any() else NOT_SEEN
    return replace(compared.evidence, verdict=verdict)


def _lacking(rows: Rows) -> str:
    """Return what the design lacks to compare shapes at equal parameters."""
    near = np.abs(rows.n[:, None] - rows.n) <= math.log(OVERLAP)
    other = np.abs(rows.aspect[:, None] - rows.aspect) > 1e-6
    compared = (near & other).any(1)
    found = len(np.unique(rows.aspect[compared].round(6)))
    if found >= FEWEST_ASPECTS:
        return ""
    return (
        f"{found} aspect ratios have another one at about equal parameters (within a factor {OVERLAP}), and "
        f"{FEWEST_ASPECTS} are needed: the effect of shape cannot be separated from that of size"
    )


def _at_equal_parameters(rows: Rows, lacking: str) -> tuple[dict[str, Number], Regression | None]:
    """Return the numbers at equal N, and the regression by which losses are adjusted to one N."""
    x, a = rows.n - rows.n.mean(), rows.aspect - rows.aspect.mean()
    curve = {"n": x, "n2": x**2} if n_sizes(rows.n) >= 4 else {"n": x}
    is_curved = len(np.unique(a.round(6))) >= _CURVED_ASPECTS and not lacking
    tried = [curve | {"a": a, "a2": a**2}] if is_curved else []
    tried += [curve | {"a": a}, {"n": x, "a": a}]
    found = next((each for each in (regress(rows, columns) for columns in tried) if each), None)
    if found is None or lacking:
        why = lacking or f"{len(rows.y)} shapes are too few to separate shape from size"
        none = {name: _BLANK[name].none(why) for name in (DEPTH, WIDTH, BEST)}
        return none, found or regress(rows, {"n": x})
    p, q = growth(rows) or (1.0, 2.0)
    steps = {DEPTH: -(1 + p / q) * math.log(2), WIDTH: (1 + q / p) * math.log(2)}
    numbers = {name: _BLANK[name].of(*found.along(a=step)) for name, step in steps.items()}
    return numbers | {BEST: _best(found, rows)}, found


def _best(found: Regression, rows: Rows) -> Number:
    middle, best = float(rows.aspect.mean()), _BLANK[BEST]
    if "a2" not in found.names:
        return best.none("the shapes are too few for a parabola of the aspect ratio")
    where = [found.names.index("a"), found.names.index("a2")]
    slope, bend = map(float, found.at[where])
    ends = turning_point(slope, bend, found.covariance[np.ix_(where, where)], found.quantile)
    if ends is None:
        return best.none("the loss does not bend upward over the aspect ratio by more than the noise")
    low, high = rows.aspect.min() - middle, rows.aspect.max() - middle
    if ends[0] <= low or ends[1] >= high:
        side = "smallest" if ends[0] <= low else "largest"
        return best.none(f"the rise of the loss towards the {side} aspect ratio is within the noise")
    return best.of(middle - slope / (2 * bend), middle + ends[0], middle + ends[1])


def _with_the_other_fixed(rows: Rows) -> dict[str, Number]:
    columns = {"layer": rows.layer - rows.layer.mean(), "embd": rows.embd - rows.embd.mean()}
    varied = {name: column for name, column in columns.items() if np.ptp(column) > 1e-9}
    found = regress(rows, varied) if varied else None
    numbers = {}
    for name, column in ((DEPTH_ALONE, "layer"), (WIDTH_ALONE, "embd")):
        if column not in varied:
            only = math.exp(float(getattr(rows, column)[0]))
            numbers[name] = _BLANK[name].none(f"all shapes have n_{column} {only:.0f}")
        elif found is None:
            numbers[name] = _BLANK[name].none(f"{len(rows.y)} shapes do not separate n_layer from n_embd")
        else:
            numbers[name] = _BLANK[name].of(*found.along(**{column: math.log(2)}))
    return numbers


def _curve(found: Regression, x: Array) -> Array:
    parts = dict(zip(found.names, found.at, strict=True))
    return np.asarray(parts["n"] * x + parts.get("n2", 0.0) * x**2)


def _cells(points: Points, away: Array) -> DataFrame:
    from pandas import DataFrame

    params, loss = points.columns["params"], points.columns["loss"]
    tokens = points.columns.get("tokens")
    alike = np.ones((points.n, points.n), bool)
    if tokens is not None:
        alike = np.abs(np.log(tokens[:, None] / tokens)) < 0.01
    no_larger, no_worse = params <= params[:, None] * (1 + 1e-9), loss <= loss[:, None]
    better = (params < params[:, None] * (1 - 1e-9)) | (loss < loss[:, None])
    layer, embd = (points.shape[name].astype(int) for name in DEPTH_AND_WIDTH)
    return DataFrame(
        {
            "name": points.names or [f"row {at}" for at in range(points.n)],
            "n_layer": layer,
            "n_embd": embd,
            "params": params,
            "tokens": tokens,
            "loss": loss,
            "weight": points.weights,
            "loss_at_equal_params": loss * [math.exp(-each) for each in away],
            "on_frontier": ~(alike & no_larger & no_worse & better).any(1),
            "aspect_ratio": embd / layer,
        }
    )


def _says(numbers: dict[str, Number], lacking: str) -> str:
    """Describe the effect of shape at equal parameters in a sentence."""
    depth, best = numbers[DEPTH], numbers[BEST]
    if not depth.identified:
        why = lacking or depth.verdict.reason
        return f"the effect of depth or width at equal parameters is not identified: {why}"
    share, low, high = (100 * math.expm1(each) for each in (depth.value, depth.low, depth.high))
    said = f"at equal parameters doubling the depth changes the loss by {share:+.2f}%"
    said += f" (90% interval {low:+.2f}% to {high:+.2f}%)"
    if low <= 0 <= high:
        said += ", an interval that includes zero"
    if best.identified:
        said += f"; the best aspect ratio is about {math.exp(best.value):.3g}"
    return said
