"""The numbers of a law of width and depth: shapes at equal parameters, the best one, and N's exponents.

In such a law N has no exponent of its own: it depends on how the shape changes as N grows. With N ~ n_layer^p n_embd^q,
fitted to the table's shapes, the exponent of N is

    along one n_layer                  a/q, that of the term of width
    along one n_embd / n_layer         (a + b)/(p + q) in a product of powers; in a sum of them between a/(p + q) and
                                       b/(p + q), by the shares of both terms at the largest N of the table
    along the best shape at each N     ab/(qb + pa) in a sum: both terms then fall alike, as at a compute-optimal size

A product of powers has no best shape: at equal N it is lowest at an end of the shapes tried.

Legend: S parameter vectors at once; l, d and n are the logs of n_layer, n_embd and N from the table's means.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sweeplab.errors import BadInput
from sweeplab.formatting import short
from sweeplab.laws.columns import SHAPE, Array
from sweeplab.laws.comparing import compare
from sweeplab.laws.evidence import DIFFERENT, NOT_SEEN, UNKNOWN, Evidence
from sweeplab.laws.forms import Law, Measure, Quantity
from sweeplab.laws.points import Points

OVERLAP = 1.5  # shapes whose parameters agree within this factor count as equal in size
NONE_DIFFERS = "no two shapes of about equal parameters differ by more than chance"
DEPTH, WIDTH = "depth at equal parameters", "width at equal parameters"
DEPTH_ALONE, WIDTH_ALONE = "depth at equal n_embd", "width at equal n_layer"
BEST_LAYER, BEST_EMBD, BEST_ASPECT = "best n_layer", "best n_embd", "best n_embd / n_layer"
HALF, TWICE, WORST = "half the best n_layer", "twice the best n_layer", "worst shape tried"
ALONG_LAYER = "exponent of params, one n_layer"
ALONG_ASPECT = "exponent of params, one n_embd / n_layer"
ALONG_BEST = "exponent of params, best shapes"
AT_EQUAL_PARAMS = (DEPTH, WIDTH, BEST_LAYER, BEST_EMBD, BEST_ASPECT, HALF, TWICE, WORST, ALONG_BEST)
_STEP = 1e-5  # of a central difference
_N_TRIED = 25

Values = Callable[[Array], Array]  # vectors [S, p] to values [S]


@dataclass(frozen=True)
class Plane:
    """The shapes of a table: p and q of N ~ n_layer^p n_embd^q, their mean logs, and the ends of l, d and n."""

    p: float
    q: float
    means: dict[str, float]
    ends: dict[str, tuple[float, float]]

    def embd(self, n: float, layer: Array) -> Array:
        """Return d of shapes of size n and depth l."""
        return np.asarray((n - self.p * layer) / self.q)

    def tried(self, n: float) -> Array:
        """Return l of shapes of size n within the ends of those tried; empty if there is none."""
        (low, high), (narrow, wide) = (self.ends[name] for name in SHAPE)
        low, high = max(low, (n - self.q * wide) / self.p), min(high, (n - self.q * narrow) / self.p)
        if high > low + 1e-9:
            return np.linspace(low, high, _N_TRIED)
        return np.array([])


def plane_of(points: Points) -> Plane:
    """Return the shapes of a table.

    Raises:
        BadInput: it lacks n_layer, n_embd or params, or its parameters do not grow with both.
    """
    names = (*SHAPE, "params")
    if missing := [name for name in names if name not in points.sizes]:
        raise BadInput(f"the shape needs {' and '.join(missing)}, which the table lacks")
    logs = {name: np.log(points.sizes[name]) for name in names}
    means = {name: float(column.mean()) for name, column in logs.items()}
    centered = [column - means[name] for name, column in logs.items()]
    design = np.stack(centered[:2], axis=1)
    p, q = map(float, np.linalg.lstsq(design, centered[2], rcond=None)[0])
    if np.linalg.matrix_rank(design, tol=1e-6) < 2 or min(p, q) <= 0:
        raise BadInput("the shapes lie on one line: the effects of n_layer and n_embd cannot be separated")
    ends = {
        name: (float(column.min()), float(column.max())) for name, column in zip(names, centered, strict=True)
    }
    return Plane(p, q, means, ends)


def quantities_of(points: Points, law: Law, params: float | None = None) -> list[Quantity]:
    """Return the numbers of a law of shapes; those of the best shape are at `params`, by default the mean log size."""
    plane = plane_of(points)
    numbers = _Numbers(law, plane, 0.0 if params is None else math.log(params) - plane.means["params"])
    rows = numbers.at_equal_parameters() + numbers.along_families()
    return [
        Quantity(
            name, kind, meaning, _differentiated(values), SHAPE, is_log=kind != "exponent", within=within
        )
        for name, kind, meaning, values, within in rows
    ]


_Row = tuple[str, str, str, Values, tuple[float, float] | None]


@dataclass(frozen=True)
class _Numbers:
    """The numbers at a size n, as functions of vectors: name, kind, meaning, values, and the ends of what was tried."""

    law: Law
    plane: Plane
    n: float

    def log_loss(self, theta: Array, layer: Array, embd: Array) -> Array:
        """The log loss of shapes [k] or [S, k], at the mean log of the tokens: [S, k]."""
        return self.law.log_loss(theta, dict(zip(SHAPE, (layer, embd), strict=True)) | {"tokens": 0 * layer})

    def doubled(self, layer: float, embd: float) -> Values:
        """The effect of a step about the middle of the shapes."""
        ends = np.array([-0.5, 0.5]) * math.log(2)
        return lambda theta: np.diff(self.log_loss(theta, layer * ends, embd * ends))[:, 0]

    @property
    def is_sum(self) -> bool:
        """Whether width and depth have terms of their own: only these have a best shape between the ends."""
        return "B" in self.law.parameters

    def of(self, theta: Array, *names: str) -> list[Array]:
        return [theta[:, self.law.index(name)] for name in names]

    def best(self, theta: Array) -> Array:
        """l of lowest loss at size n: where a term's fall with N is that of the other."""
        p, q = self.plane.p, self.plane.q
        log_a, a, log_b, b = self.of(theta, "A", "a", "B", "b")
        return np.asarray((log_b - log_a + np.log(b * q / (a * p)) + a / q * self.n) / (a * p / q + b))

    def beside_best(self, layer: float) -> Values:
        """The cost of another depth than the best one, at equal parameters."""

        def values(theta: Array) -> Array:
            layers = self.best(theta)[:, None] + np.array([0.0, layer])
            return np.diff(self.log_loss(theta, layers, self.plane.embd(self.n, layers)))[:, 0]

        return values

    def worst(self, theta: Array) -> Array:
        layers = self.plane.tried(self.n)
        return np.asarray(np.ptp(self.log_loss(theta, layers, self.plane.embd(self.n, layers)), axis=1))

    def at_equal_parameters(self) -> list[_Row]:
        p, q, means, ends = self.plane.p, self.plane.q, self.plane.means, self.plane.ends
        at = f"at N = {short(math.exp(means['params'] + self.n))}"
        factor = "the factor on the loss if {} doubles and {}".format
        shrinks = "{} shrinks to compensate".format
        grows = "the parameters grow with it"
        rows: list[_Row] = [
            (DEPTH, "loss", factor("n_layer", shrinks("n_embd")), self.doubled(1.0, -p / q), None),
            (WIDTH, "loss", factor("n_embd", shrinks("n_layer")), self.doubled(-q / p, 1.0), None),
            (DEPTH_ALONE, "loss", factor("n_layer", grows), self.doubled(1.0, 0.0), None),
            (WIDTH_ALONE, "loss", factor("n_embd", grows), self.doubled(0.0, 1.0), None),
        ]
        if self.plane.tried(self.n).size:
            tried = np.exp(self.plane.tried(self.n)[[0, -1]] + means["n_layer"])
            where = " to ".join(short(float(end)) for end in tried)
            words = f"the factor on the loss from the best to the worst shape, n_layer {where}, {at}"
            rows.append((WORST, "loss", words, self.worst, None))
        if not self.is_sum:
            return rows
        layers, widths = ((means[name] + ends[name][0], means[name] + ends[name][1]) for name in SHAPE)
        aspects = (widths[0] - layers[1], widths[1] - layers[0])
        middle_layer, middle_embd = (means[name] for name in SHAPE)

        def layer(theta: Array) -> Array:
            return self.best(theta) + middle_layer

        def embd(theta: Array) -> Array:
            return self.plane.embd(self.n, self.best(theta)) + middle_embd

        lowest, beside = f"of lowest loss {at}", f"the factor on the loss for {{}} that depth, {at}"
        return [
            *rows,
            (BEST_LAYER, "ratio", f"the depth {lowest}", layer, layers),
            (BEST_EMBD, "ratio", f"the width {lowest}", embd, widths),
            (BEST_ASPECT, "ratio", f"the ratio {lowest}", lambda theta: embd(theta) - layer(theta), aspects),
            (HALF, "loss", beside.format("half"), self.beside_best(-math.log(2)), None),
            (TWICE, "loss", beside.format("twice"), self.beside_best(math.log(2)), None),
        ]

    def along_families(self) -> list[_Row]:
        p, q, largest = self.plane.p, self.plane.q, self.plane.ends["params"][1]

        def one_layer(theta: Array) -> Array:
            return self.of(theta, "a")[0] / q

        def one_aspect(theta: Array) -> Array:
            a, b = self.of(theta, "a", "b")
            if not self.is_sum:
                return np.asarray((a + b) / (p + q))
            log_a, log_b = self.of(theta, "A", "B")
            grown = largest / (p + q)
            width = 1 / (1 + np.exp((log_b - b * grown) - (log_a - a * grown)))  # its share of both terms
            return np.asarray((width * a + (1 - width) * b) / (p + q))

        def best(theta: Array) -> Array:
            a, b = self.of(theta, "a", "b")
            return np.asarray(a * b / (q * b + p * a))

        words = "the exponent of params as {}".format
        rows: list[_Row] = [
            (ALONG_LAYER, "exponent", words("n_embd grows alone"), one_layer, None),
            (ALONG_ASPECT, "exponent", words("n_embd and n_layer grow alike"), one_aspect, None),
        ]
        if self.is_sum:
            rows.append((ALONG_BEST, "exponent", words("the shape of lowest loss grows"), best, None))
        return rows


def _differentiated(values: Values) -> Measure:
    """Values with their gradient, by central differences."""

    def measure(theta: Array) -> tuple[Array, Array]:
        n_vectors, n_params = theta.shape
        steps = _STEP * np.eye(n_params)
        moved = np.concatenate([theta[:, None] + steps, theta[:, None] - steps], axis=1)
        up, down = np.split(values(moved.reshape(-1, n_params)).reshape(n_vectors, -1), 2, axis=1)
        return values(theta), (up - down) / (2 * _STEP)

    return measure


def evidence_of(points: Points) -> Evidence | None:
    """Return the evidence of a study's trials for differences at equal parameters; None for a table."""
    if not points.tried:
        return None
    order = np.argsort(points.columns["loss"], kind="stable")
    pairs = list(itertools.combinations(range(points.n), 2))
    compared = compare([points.tried[at] for at in order], pairs, points.is_searched)
    if compared.evidence.verdict != DIFFERENT:
        return compared.evidence
    tokens = points.columns.get("tokens", np.ones(points.n))
    columns = [points.columns["params"], points.shape["n_embd"] / points.shape["n_layer"], tokens]
    first, second = order[np.array(pairs).T]
    params, aspect, tokens = (np.abs(np.log(column[first] / column[second])) for column in columns)
    near = (params <= math.log(OVERLAP)) & (aspect > 1e-6) & (tokens < 0.01)
    verdict = DIFFERENT if compared.significant[near].any() else NOT_SEEN
    return replace(compared.evidence, verdict=verdict)


def doubt_of(evidence: Evidence | None) -> str:
    """Return why numbers at equal parameters are weak at best; empty if they may be identified."""
    if evidence is None:
        return ""
    return {UNKNOWN: evidence.why, NOT_SEEN: NONE_DIFFERS}.get(evidence.verdict, "")
