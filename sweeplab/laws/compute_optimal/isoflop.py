"""The compute-optimal size by IsoFLOP parabolas: at each compute budget a parabola of the loss in log N.

Hoffmann et al. 2022, Training compute-optimal large language models, approach 2. Departures: a minimum counts only
if the parabola is convex, and falls and rises again between the smallest and the largest size of its budget, by more
than the noise; the noise is one share of the loss, pooled over all budgets; the line is fitted to the rows of all
budgets at once, which allows for skewed minima. A minimum's interval is Fieller's (1954), for the ratio of two
coefficients: for a parabola it equals the profile interval, and is unbounded exactly where the rows give no bound.

Rows share a budget if their FLOPs agree, or by bins that the user asks for. Rows of one budget are shifted to the same
FLOPs before a parabola is fitted to them: along their own tokens per parameter, and along the line of the lowest
losses. The shift matters in wide bins and hardly elsewhere.

A line through separately fitted minima is biased if the sizes drift from one side of the optimum to the other: a
minimum near the edge counts only if noise moved it inward, and has the largest weight if noise made its parabola
steep; both turn the line towards the middle of the sizes. Nor is the loss a parabola in log N: it is skewed, more so
further from the minimum. So the line (`valley`) is fitted to the rows themselves (nonlinear least squares):

    loss_i / level_b = a_b + k_b (u^2 / 2 + skew u^3 / 6),  u = log N_i - at - slope x_b,  log k_b = bend + growth x_b

with x_b = log C_b - center. All budgets share one skew, as in Hoffmann et al. 2022, equation 2, where it is
beta - alpha at every C; each budget has its own level a_b.

Legend: n rows of the table, m rows that are used, B budgets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import several
from sweeplab.laws.compute_optimal import lines
from sweeplab.laws.compute_optimal.lines import N_AT, ComputeLine, Number, RowNoise, n_sizes
from sweeplab.laws.forms import D_OPT, N_OPT, Array
from sweeplab.laws.intervals import Shared, student
from sweeplab.laws.points import Points

Rows = NDArray[np.intp]
SIZES = 3  # that a parabola needs


@dataclass(frozen=True)
class IsoflopBudget:
    """Rows of one budget: its FLOPs, the rows' indices, and their log N and log loss shifted to the budget."""

    flops: float
    rows: Rows
    log_n: Array
    log_loss: Array


@dataclass(frozen=True)
class Parabola:
    """loss = level * (c_0 + c_1 z + c_2 z^2), z = log N - center, through the used rows of one budget.

    `inverse` [3, 3] is the inverse of the normal matrix; `residuals` [m] are those of the losses divided by the level,
    times the root of the row's weight.
    """

    budget: IsoflopBudget
    used: NDArray[np.bool_]
    center: float
    level: float
    coefficients: Array
    inverse: Array
    residuals: Array

    @property
    def freedom(self) -> int:
        """Return the residual degrees of freedom."""
        return len(self.residuals) - 3

    @property
    def squares(self) -> float:
        """Return the sum of the squares of the residuals."""
        return float(self.residuals @ self.residuals)

    def loss(self, log_n: Array) -> Array:
        """Return the parabola's loss, [m]."""
        return np.asarray(self.level * np.polyval(self.coefficients[::-1], log_n - self.center))

    def vertex(self, sigma: float, quantile: float) -> tuple[float, float, float] | None:
        """Return log N of the minimum and its interval; None if the curvature is not above the noise."""
        _, slope, bend = map(float, self.coefficients)
        ends = lines.turning_point(slope, bend, sigma**2 * self.inverse[1:, 1:], quantile)
        return ends and (self.center - slope / (2 * bend), self.center + ends[0], self.center + ends[1])


def parabola(points: Points, budget: IsoflopBudget, factor: float) -> Parabola:
    """Return the parabola of a budget's rows within a factor of the best size, or of its five nearest sizes."""
    away = np.abs(budget.log_n - budget.log_n[budget.log_loss.argmin()])
    used = away <= math.log(factor)
    if n_sizes(budget.log_n[used]) <= SIZES:  # the five sizes that are nearest, or all
        used = away <= np.sort(away)[min(SIZES + 1, len(away) - 1)]
    log_n, loss = budget.log_n[used], np.exp(budget.log_loss[used])
    weights = points.weights[budget.rows[used]]
    center, level = float(log_n.mean()), float(loss.mean())
    powers = np.vander(log_n - center, 3, increasing=True)
    inverse = np.linalg.inv((powers.T * weights) @ powers)
    coefficients = inverse @ (powers.T * weights) @ (loss / level)
    residuals = np.sqrt(weights) * (loss / level - powers @ coefficients)
    return Parabola(budget, used, center, level, coefficients, inverse, residuals)


def tokens_of(points: Points, curve: Parabola) -> tuple[float, float]:
    """Return d log D / d log N among the rows of a budget, and log D at the parabola's center."""
    budget = curve.budget
    away = np.log(points.columns["flops"][budget.rows]) - math.log(budget.flops)
    log_d = (np.log(points.columns["tokens"][budget.rows]) - away / 2)[curve.used]
    slope, at = np.polyfit(budget.log_n[curve.used] - curve.center, log_d, 1)
    return float(slope), float(at)


_AT, _SLOPE, _BEND, _GROWTH, _SKEW = range(5)
_MOST_SKEW = 1.0  # exponents are smaller
_LACK_OF_FIT = 0.95  # the quantile of F above which a line does not fit
_STEPS = 200
_TOLERANCE = 1e-10  # the share of the squares that a step has to gain


@dataclass(frozen=True)
class _Rows:
    """Rows of all budgets, [m]; `x` is the centered log budget of each row and `place` its budget."""

    log_n: Array
    loss: Array
    x: Array
    place: NDArray[np.intp]
    where: NDArray[np.intp]
    weights: Array

    def centered(self, values: Array) -> Array:
        """Return columns minus their weighted means in each budget, times the roots of the weights: [m] or [m, p]."""
        total = np.bincount(self.place, self.weights)
        columns = values.reshape(len(self.place), -1).T
        means = np.stack([np.bincount(self.place, self.weights * one) / total for one in columns])
        centered = (columns - means[:, self.place]) * np.sqrt(self.weights)
        return np.asarray(centered.T.reshape(values.shape))

    def model(self, theta: Array) -> tuple[Array, Array]:
        """Return the valley's loss, [m], and its derivatives, [m, 5]."""
        at, slope, bend, growth, skew = theta
        u = self.log_n - at - slope * self.x
        k = np.exp(np.clip(bend + growth * self.x, -30, 10))
        loss = k * (u**2 / 2 + skew * u**3 / 6)
        moved = -k * (u + skew * u**2 / 2)
        return loss, np.stack([moved, moved * self.x, loss, loss * self.x, k * u**3 / 6], 1)


def valley(
    parabolas: Sequence[Parabola], weights: Array, begin: Array, shared: Shared | None
) -> ComputeLine | None:
    """Return the line through the minima of some budgets; None if too few rows are left to estimate the noise.

    `begin` [B] are log N of the starting minima; `weights` [n] those of the table's rows. The line's `variance_ratio`
    is from a score test in which each minimum may leave the line.
    """
    log_c = np.array([math.log(each.budget.flops) for each in parabolas])
    center = float(log_c.mean())
    where = [each.budget.rows[each.used] for each in parabolas]
    place = np.repeat(np.arange(len(where)), [len(each) for each in where])
    loss = np.concatenate([np.exp(each.budget.log_loss[each.used]) / each.level for each in parabolas])
    log_n = np.concatenate([each.budget.log_n[each.used] for each in parabolas])
    of_table = np.concatenate(where)
    rows = _Rows(log_n, loss, (log_c - center)[place], place, of_table, weights[of_table])
    freedom = len(rows.log_n) - len(parabolas) - 5
    if freedom < 1:
        return None
    slope, at = np.polyfit(log_c - center, begin, 1)
    bends = [max(2 * float(each.coefficients[2]), 1e-9) for each in parabolas]
    theta, residual, jacobian = _solve(rows, np.array([at, slope, math.log(np.median(bends)), 0.0, 0.0]))
    squares = float(residual @ residual)
    influences = np.zeros((2, len(weights)))
    influences[:, rows.where] = np.linalg.pinv(jacobian)[[_AT, _SLOPE]] * np.sqrt(rows.weights) * rows.loss
    noise = RowNoise(squares / freedom / weights, freedom, shared)
    ratio = _variance_ratio(rows, theta, residual, jacobian, freedom)
    quantile = noise.quantile(len(parabolas) - 2 if ratio > 1 else None)
    return ComputeLine(center, float(theta[_AT]), float(theta[_SLOPE]), influences, noise, ratio, quantile)


def _solve(rows: _Rows, theta: Array) -> tuple[Array, Array, Array]:
    """The least-squares vector by Levenberg-Marquardt, its residuals [m] and their derivatives [m, 5]."""

    def evaluate(at: Array) -> tuple[Array, Array]:
        value, slopes = rows.model(at)
        return rows.centered(rows.loss - value), rows.centered(slopes)

    # scipy.optimize.least_squares, which has the bound too, takes two to three times as long.
    (residual, jacobian), damping = evaluate(theta), 1e-3
    for _ in range(_STEPS):
        curvature, squares = jacobian.T @ jacobian, float(residual @ residual)
        damped = curvature + np.diag(damping * np.diag(curvature) + 1e-14)
        new = theta + np.linalg.solve(damped, jacobian.T @ residual)
        new[_SKEW] = np.clip(new[_SKEW], -_MOST_SKEW, _MOST_SKEW)
        there, slopes = evaluate(new)
        gained = squares - float(there @ there)
        if gained < 0 or not math.isfinite(gained):
            damping *= 5
            if damping > 1e12:
                break
            continue
        theta, residual, jacobian, damping = new, there, slopes, max(damping / 5, 1e-12)
        if gained <= _TOLERANCE * squares:
            break
    return theta, residual, jacobian


def _variance_ratio(rows: _Rows, theta: Array, residual: Array, jacobian: Array, freedom: int) -> float:
    """The variance of the minima about the line over that of noise; 1 if the test does not reject."""
    from scipy.special import fdtri

    n_budgets = int(rows.place.max()) + 1
    of_line, of_rest = n_budgets - 2, freedom - (n_budgets - 2)  # degrees of freedom
    if of_line < 1 or of_rest < 1:
        return 1.0
    moved = rows.model(theta)[1][:, _AT]
    by_budget = rows.centered(moved[:, None] * (rows.place[:, None] == np.arange(n_budgets)))
    base = np.linalg.qr(jacobian)[0]
    free, sizes, _ = np.linalg.svd(by_budget - base @ (base.T @ by_budget), full_matrices=False)
    free = free[:, sizes > 1e-9 * max(float(sizes.max()), 1e-300)]
    gained = float(((residual @ free) ** 2).sum())
    ratio = gained / of_line / max((float(residual @ residual) - gained) / of_rest, 1e-300)
    if ratio > fdtri(of_line, of_rest, _LACK_OF_FIT):
        return ratio
    return 1.0


SAME = 1.10  # rows whose FLOPs follow each other within this factor have one budget
WIDEST = 1.25  # the largest factor between the FLOPs of one budget
_FAR = 1.5  # a row further than this factor from every budget that the user names belongs to none
_MOST_BINS = 100
_ROUNDS = 6


def parse_budgets(text: str) -> int | tuple[float, ...]:
    """Return a number of bins, or budgets in FLOPs: 8, or 1e17,3e17,1e18."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) == 1 and parts[0].isdecimal() and 1 <= int(parts[0]) <= _MOST_BINS:
        return int(parts[0])
    try:
        budgets = tuple(sorted({float(part) for part in parts}))
    except ValueError:
        budgets = (math.nan,)
    if not all(_MOST_BINS < budget < math.inf for budget in budgets):
        allowed = "a number of bins, such as 8, or FLOPs: 1e17,3e17,1e18"
        raise BadInput(Problem(f"--budgets {text!r}", allowed))
    return budgets


def budgets_of(
    points: Points, asked: int | tuple[float, ...] | None = None
) -> tuple[list[IsoflopBudget], str]:
    """Return the budgets with three or more sizes, smallest first, and how rows were assigned, or why none were."""
    log_c, log_n = np.log(points.columns["flops"]), np.log(points.columns["params"])
    if asked is None:
        groups, how = _shared(log_c, log_n)
    elif isinstance(asked, int):
        bins = np.array_split(np.argsort(log_c), asked)
        groups = [(float(log_c[rows].mean()), rows) for rows in bins if rows.size]
        how = f"the rows are binned by their FLOPs into {several(asked, 'budget')}, as --budgets asks"
    else:
        at = np.log(np.array(asked))
        nearest = np.abs(log_c[:, None] - at).argmin(1)
        near = np.abs(log_c - at[nearest]) <= math.log(_FAR)
        groups = [(float(each), np.flatnonzero((nearest == k) & near)) for k, each in enumerate(at)]
        how = "each row belongs to the nearest budget that --budgets names"
    groups = [(at, rows) for at, rows in groups if n_sizes(log_n[rows]) >= SIZES]
    budgets = _shifted_to_budgets(groups, points)
    if not budgets and not how.startswith("no "):
        how = f"no budget has rows of {SIZES} sizes"
    return budgets, how


def _shared(log_c: Array, log_n: Array) -> tuple[list[tuple[float, Rows]], str]:
    order = np.argsort(log_c)
    breaks = np.flatnonzero(np.diff(log_c[order]) > math.log(SAME)) + 1
    groups = [rows for rows in np.split(order, breaks) if np.ptp(log_c[rows]) <= math.log(WIDEST)]
    groups = [rows for rows in groups if n_sizes(log_n[rows]) >= SIZES]
    held = sum(map(len, groups))
    if 2 * held < len(log_c):
        return [], (
            f"no budgets: only {held} of {several(len(log_c), 'row')} share their FLOPs "
            f"with rows of {SIZES - 1} other sizes (within {SAME - 1:.0%} from one to the "
            "next); --budgets 8 would bin them"
        )
    how = f"rows within {SAME - 1:.0%} of each other in FLOPs are one budget"
    if held < len(log_c):
        how += f"; {several(len(log_c) - held, 'row')} in no budget of {SIZES} sizes"
    return [(float(log_c[rows].mean()), rows) for rows in groups], how


def _shifted_to_budgets(groups: Sequence[tuple[float, Rows]], points: Points) -> list[IsoflopBudget]:
    """Shift the rows of each group to its FLOPs; rows with equal tokens per parameter then have one size."""
    if not groups:
        return []
    log_c, log_n, log_loss = (np.log(points.columns[name]) for name in ("flops", "params", "loss"))
    at = np.array([log_budget for log_budget, _ in groups])
    lowest = np.array([log_loss[rows].min() for _, rows in groups])
    falls = np.zeros(len(groups))
    if len(groups) > 1:
        fall = np.polyfit(at - at.mean(), lowest, 2 if len(groups) > 4 else 1)
        falls = np.polyval(np.polyder(fall), at - at.mean())
    budgets = []
    for (budget, rows), slope in zip(groups, falls, strict=True):
        away = log_c[rows] - budget
        shifted = IsoflopBudget(math.exp(budget), rows, log_n[rows] - away / 2, log_loss[rows] - slope * away)
        budgets.append(shifted)
    return [budget for budget in budgets if n_sizes(budget.log_n) >= SIZES]


# Rows whose N differs by more than this factor from that of the lowest loss are left out, because the loss is
# parabolic only near the minimum: the first of these factors within which a cubic fits no better.
FACTORS = (10.0, 5.0, 3.0)
_BETWEEN = 25  # points of a parabola that is drawn
_SKEWED = 0.95


@dataclass(frozen=True)
class Minimum:
    """The result of one budget: its parabola, and log N_opt with its interval, or why it has none.

    `log_d` (value, low, high) is None if the table has no tokens.
    """

    parabola: Parabola
    log_n: tuple[float, float, float] | None = None
    log_d: tuple[float, float, float] | None = None
    why_none: str = ""

    def as_dict(self, points: Points) -> dict[str, Any]:
        """Return it as plain values, with the rows and the parabola to draw."""
        curve, budget = self.parabola, self.parabola.budget
        inside = budget.log_n[curve.used]
        n = np.linspace(inside.min(), inside.max(), _BETWEEN)
        shown: dict[str, Any] = {
            "flops": budget.flops,
            "n_rows": len(budget.rows),
            "n_used": int(curve.used.sum()),
        }
        for name, ends in (("n_opt", self.log_n), ("d_opt", self.log_d)):
            names = (name, f"{name}_low", f"{name}_high")
            shown |= dict(zip(names, map(math.exp, ends), strict=True) if ends else dict.fromkeys(names))
        drawn = {role: points.columns[role][budget.rows].tolist() for role in ("params", "loss")}
        return shown | {
            "loss": float(curve.loss(np.array([self.log_n[0]]))[0]) if self.log_n else None,
            "why_none": self.why_none,
            "rows": drawn | {"used": curve.used.tolist()},
            "parabola": {"params": np.exp(n).tolist(), "loss": curve.loss(n).tolist()},
        }


@dataclass(frozen=True)
class IsoFlop:
    """The minima of all budgets; `numbers` are the exponents, and N_opt at the budget asked for.

    `how` says how rows were assigned to budgets, or why there is none; `sigma` is the noise as a share of the loss.
    """

    points: Points
    how: str
    minima: tuple[Minimum, ...]
    sigma: float
    numbers: dict[str, Number]
    line: ComputeLine | None
    warnings: tuple[str, ...]
    noise: RowNoise | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values; `line` is N over FLOPs with its band, to draw."""
        return {
            "how": self.how,
            "sigma": self.sigma if self.minima else None,
            "numbers": {name: each.as_dict() for name, each in self.numbers.items()},
            "budgets": [each.as_dict(self.points) for each in self.minima],
            "line": self.line and self.line.as_dict(self.points.columns["flops"], _BETWEEN),
            "warnings": list(self.warnings),
        }


def isoflop(
    points: Points,
    asked: int | tuple[float, ...] | None = None,
    budget: float | None = None,
    shared: Shared | None = None,
    doubt: str = "",
) -> IsoFlop:
    """Return the compute-optimal size by parabolas at equal FLOPs.

    `asked` is the result of `parse_budgets`; when None, rows with equal FLOPs form budgets. `budget` is the compute at
    which to give N_opt (the largest of the table when None); `shared` are the errors shared within groups of rows;
    `doubt` is why every number is weak at best.
    """
    check(points)
    groups, how = budgets_of(points, asked)
    at = math.log(budget or float(points.columns["flops"].max()))
    parabolas: list[Parabola] = []
    skewed = False
    for factor in FACTORS:  # until the rows near the minimum follow a parabola
        parabolas = [parabola(points, each, factor) for each in groups]
        skewed = _is_skewed(points, parabolas)
        if not skewed:
            break
    freedom = sum(each.freedom for each in parabolas)
    if not parabolas or freedom < 1:
        why = how
        if parabolas:
            why = f"no budget has more than {SIZES} rows: the noise cannot be estimated"
        minima = tuple(Minimum(each, why_none=why) for each in parabolas)
        return IsoFlop(points, how, minima, math.nan, lines.no_optimum(why, at), None, ())
    sigma = math.sqrt(sum(each.squares for each in parabolas) / freedom)
    minima = tuple(_minimum(points, each, sigma, student(freedom)) for each in parabolas)
    wide = [parabola(points, each, FACTORS[0]) for each in groups]
    line, numbers, warnings = _numbers(points, minima, wide, shared, at, doubt)
    noise = line.noise if line else RowNoise(sigma**2 / points.weights, freedom, shared)
    if skewed:
        skew = "a cubic fits better, so minima may be off to one side; sizes nearer to them would help"
        warnings.append(f"the losses of a budget do not follow a parabola: {skew}")
    return IsoFlop(points, how, minima, sigma, numbers, line, tuple(warnings), noise)


def check(points: Points) -> None:
    """Refuse a table without N and C, or with too few sizes."""
    missing = [name for name in ("params", "flops", "loss") if name not in points.columns]
    if missing:
        raise BadInput(*(points.lacks("the compute-optimal size", name) for name in missing))
    count = n_sizes(np.log(points.columns["params"]))
    if count < SIZES:
        raise BadInput(f"the table has {several(count, 'size')}; the best size needs {SIZES}")


def _is_skewed(points: Points, parabolas: Sequence[Parabola]) -> bool:
    """Whether a cubic in each budget fits better by more than noise: minima are then skewed."""
    from scipy.special import fdtri

    long = [curve for curve in parabolas if curve.freedom >= 2]
    left = sum(curve.squares for curve in parabolas)
    gained = 0.0
    for curve in long:
        z = curve.budget.log_n[curve.used] - curve.center
        powers = np.vander(z, 4) * np.sqrt(points.weights[curve.budget.rows[curve.used]])[:, None]
        rest = curve.residuals - powers @ np.linalg.lstsq(powers, curve.residuals, rcond=None)[0]
        gained += curve.squares - float(rest @ rest)
    freedom = sum(curve.freedom for curve in parabolas) - len(long)
    if not long or freedom < 1 or left <= gained:
        return False
    ratio = gained / len(long) / ((left - gained) / freedom)
    return bool(ratio > fdtri(len(long), freedom, _SKEWED))


def _minimum(points: Points, curve: Parabola, sigma: float, quantile: float) -> Minimum:
    budget, sizes = curve.budget, curve.budget.log_n[curve.used]
    log_n = curve.vertex(sigma, quantile)
    if log_n is None:
        return Minimum(curve, why_none="no minimum: the losses do not bend upward by more than the noise")
    lowest, smallest, largest = budget.log_n[budget.log_loss.argmin()], sizes.min(), sizes.max()
    sides = (("smallest", smallest, log_n[1] - smallest), ("largest", largest, largest - log_n[2]))
    for side, edge, inside in sides:
        why = ""
        if abs(lowest - edge) < 1e-9:
            why = f"the {side} size has the lowest loss, so the minimum may lie beyond it"
        elif inside <= 0:
            why = f"the rise of the loss towards the {side} size is within the noise"
        if why:
            return Minimum(curve, why_none=f"no minimum: {why}")
    if "tokens" not in points.columns:
        return Minimum(curve, log_n)
    slope, d_center = tokens_of(points, curve)
    d = [d_center + slope * (each - curve.center) for each in log_n]
    return Minimum(curve, log_n, (d[0], min(d[1:]), max(d[1:])))


def _numbers(
    points: Points,
    minima: Sequence[Minimum],
    wide: Sequence[Parabola],
    shared: Shared | None,
    at: float,
    doubt: str,
) -> tuple[ComputeLine | None, dict[str, Number], list[str]]:
    """The line through the minima, its numbers, and warnings.

    `wide` are the parabolas of all budgets within the first of FACTORS; the line allows for their skew.
    """
    has_minimum, warnings = [minimum.log_n is not None for minimum in minima], list[str]()
    n = sum(has_minimum)
    if n < len(minima):
        warnings.append(f"{len(minima) - n} of {several(len(minima), 'budget')} have no minimum")
    if n < lines.FEWEST:
        why = f"{n} of {several(len(minima), 'budget')} have a minimum; a line needs {lines.FEWEST}"
        return None, lines.no_optimum(why, at), warnings
    line, used = _line(points, minima, wide, shared)
    if line is None:
        why = f"the {several(n, 'budget')} with a minimum do not determine a line"
        return None, lines.no_optimum(why, at), warnings
    log_c = np.array([math.log(wide[minimum].budget.flops) for minimum in used])
    lacking = lines.short_span("minima", log_c)
    blank = lines.optimum_at(at)

    def number(name: str, value: float, half: float, influence: Array) -> Number:
        return replace(blank[name].of(value, value - half, value + half, lacking, doubt), influence=influence)

    if line.variance_ratio > 1:
        warnings.append("the minima do not lie on a line: they deviate from it by more than noise")
    numbers = {N_OPT: number(N_OPT, line.slope, line.half(line.influences[1]), line.influences[1])}
    if "tokens" in points.columns:
        x, slopes = log_c - line.center, [tokens_of(points, wide[minimum]) for minimum in used]
        log_d = [
            d + slope * (line.value(c)[0] - wide[k].center)
            for c, k, (slope, d) in zip(log_c, used, slopes, strict=True)
        ]
        line_weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum() * [slope for slope, _ in slopes]
        influence = line_weights.sum() * line.influences[0] + (line_weights @ x) * line.influences[1]
        numbers[D_OPT] = number(D_OPT, float(np.polyfit(x, log_d, 1)[0]), line.half(influence), influence)
    numbers[N_AT] = number(N_AT, *line.value(at))
    return line, numbers, warnings


def _line(
    points: Points, minima: Sequence[Minimum], wide: Sequence[Parabola], shared: Shared | None
) -> tuple[ComputeLine | None, list[int]]:
    """The line and the budgets it is fitted to: those within whose sizes it passes.

    The common line decides which budgets are in, not the noisy minimum of each.
    """
    sizes = [each.budget.log_n[each.used] for each in wide]
    log_c = np.array([math.log(each.budget.flops) for each in wide])
    minima_at = {k: each.log_n[0] for k, each in enumerate(minima) if each.log_n}
    used, line = list(minima_at), None
    for _ in range(_ROUNDS):
        begin = [
            minima_at.get(k, float(np.median(sizes[k]))) if line is None else line.value(log_c[k])[0]
            for k in used
        ]
        fitted = valley([wide[k] for k in used], points.weights, np.array(begin), shared)
        if fitted is None:
            break
        line, before = fitted, used
        through = [line.value(each)[0] for each in log_c]
        used = [k for k, at in enumerate(through) if sizes[k].min() < at < sizes[k].max()]
        if len(used) < lines.FEWEST:
            return None, before
        if used == before:
            break
    return line, before if line else used
