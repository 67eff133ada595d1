"""Choose the next runs: those that narrow the interval of one number most for few FLOPs.

The candidates are points of a log grid, of a file, or cells of a study. A c-optimal design (Elfving 1952; Atkinson,
Donev and Tobias 2007, chapter 10) minimizes the variance of one function of the parameters. For a nonlinear law it
depends on the parameters, so the log of the variance is averaged over vectors that the table allows (Chaloner and
Larntz 1989). Such a design relies on the law's form: it goes to the ends, where a slightly wrong law misleads most. So
a squared bias is added to the variance (Box and Draper 1959): the effect on the number of departures of a given size,
products of the logs of the columns, beyond their effect on a fit of all rows and candidates alike. Departure from these
sources: few departures, all of one size.

Legend: B parameter vectors, p parameters, m candidates, K departures, n_k how often candidate k is run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.formatting import several
from sweeplab.laws.assessment import TOLERANCES
from sweeplab.laws.columns import count_columns, pairs_of, read_columns
from sweeplab.laws.fitting import Fit, solve
from sweeplab.laws.forms import Array, Quantity, loss_at, optimum_of, parameters_of
from sweeplab.laws.intervals import LEVEL
from sweeplab.laws.points import Points
from sweeplab.laws.reading import read_frame
from sweeplab.laws.rules import Rules

_SIZES = ("params", "tokens")
N_SIZES, N_RATIOS = 13, 9
# The candidates' tokens per parameter span at least this factor, whatever the table's span.
LEAST_SPAN = 30.0
MOST = 2000
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Candidates:
    """The runs to choose from: the columns of the law, [m] each, and the FLOPs of one run, [m].

    `cells` are their values in a study's grid; empty for points of a table. `weight` is the number of seeds of a run.
    """

    columns: Mapping[str, Array]
    cost: Array
    cells: tuple[Mapping[str, Any], ...] = ()
    weight: float = 1.0

    @property
    def n(self) -> int:
        """Return the number of candidates."""
        return len(self.cost)

    def like(self, points: Points, budget: float) -> Candidates:
        """Return the candidates within a budget whose tokens per parameter are about those of the table."""
        low, high = _ratios(points)
        ratio = self.columns["tokens"] / self.columns["params"]
        within = (ratio >= low * (1 - _ROUNDING)) & (ratio <= high * (1 + _ROUNDING))
        kept = np.flatnonzero((self.cost <= budget) & within)
        if not len(kept):
            least = f"the least costs {self.cost.min():.3g}"
            raise BadInput(f"{budget:.3g} FLOPs are too few for any candidate: {least}")
        columns = {name: column[kept] for name, column in self.columns.items()}
        cells = tuple(self.cells[k] for k in kept if self.cells)
        return replace(self, columns=columns, cost=self.cost[kept], cells=cells)


def parse_axes(text: str) -> dict[str, Array]:
    """Return {"params": values, …} of "params=1e6:1e8:9,tokens=1e7:1e10:7": from, to and count, evenly in logs."""
    axes: dict[str, Array] = {}
    for axis, name, numbers in pairs_of(text):
        try:
            low, high, count = map(float, numbers.split(":"))
        except ValueError:
            low = high = count = 0.0
        is_axis = 0 < low <= high < math.inf and count.is_integer() and 1 <= count <= MOST
        if not is_axis or not name or name in axes:
            raise BadInput(Problem(f"--candidates {axis!r}", "NAME=FROM:TO:COUNT, each name once"))
        axes[name] = np.geomspace(low, high, int(count))
    return axes


def of_points(points: Points, budget: float) -> Candidates:
    """Return a log grid from the table's smallest size up to the budget, at the table's tokens per parameter."""
    _check_sized(points)
    n, ratios = points.columns["params"], np.geomspace(*_ratios(points), N_RATIOS)
    largest = math.sqrt(budget / points.flops_per_param_token / ratios[0])
    sizes = np.geomspace(n.min(), max(largest, n.max()), N_SIZES)
    return _of_columns(points, sizes[:, None], sizes[:, None] * ratios).like(points, budget)


def of_axes(points: Points, axes: Mapping[str, Array]) -> Candidates:
    """Return every combination of sizes and tokens; `ratio` in place of tokens is tokens per parameter.

    Raises:
        BadInput: other axes than params with tokens or ratio, or too many combinations.
    """
    _check_sized(points)
    known = (*_SIZES, "ratio")
    unknown = [name for name in axes if name not in known]
    if unknown:
        what = f"--candidates has no {unknown[0]!r} for a table"
        raise BadInput(Problem(what, ", ".join(known), nearest(unknown[0], known)))
    if "params" not in axes or len(axes) != 2:
        raise BadInput("--candidates for a table needs params and one of tokens and ratio")
    sizes, other = axes["params"][:, None], next(axes[name] for name in axes if name != "params")
    if sizes.size * other.size > MOST:
        raise BadInput(f"--candidates are {sizes.size * other.size:,}; at most {MOST:,} are allowed")
    return _of_columns(points, sizes, sizes * other if "ratio" in axes else other)


def of_file(points: Points, path: Path) -> Candidates:
    """Return the candidates of a file's table with columns params and tokens, and flops if it has them."""
    _check_sized(points)
    frame = read_frame(path)
    wanted = count_columns(frame)
    for name in _SIZES:
        if name not in wanted:
            raise BadInput(Problem(f"{path}: no column {name!r}", ", ".join(map(str, frame))))
    columns = {role: column.values for role, column in read_columns(frame, wanted, str(path)).items()}
    if not all(np.isfinite(each).all() for each in columns.values()):
        raise BadInput(f"{path}: a candidate lacks a number")
    return _of_columns(points, **columns)


def _ratios(points: Points) -> tuple[float, float]:
    """The range of tokens per parameter of candidates: the table's, widened if it is narrow."""
    ratio = points.columns["tokens"] / points.columns["params"]
    low, high = float(ratio.min()), float(ratio.max())
    widen = math.sqrt(max(1.0, LEAST_SPAN * low / high))
    return low / widen, high * widen


def _of_columns(points: Points, params: Array, tokens: Array, flops: Array | None = None) -> Candidates:
    """The candidates of columns that broadcast to one grid; without C it is the table's mean C/ND."""
    n, d = (each.ravel() for each in np.broadcast_arrays(params, tokens))
    if flops is None:
        flops = points.flops_per_param_token * n * d
    return Candidates({"params": n, "tokens": d, "flops": flops}, flops)


def _check_sized(points: Points) -> None:
    missing = " and ".join(name for name in _SIZES if name not in points.columns)
    if missing:
        raise BadInput(f"the next runs are chosen by params and tokens; the table has no {missing}")


_SWEEPS = 20
_WEIGHTS = (0.2, 1.0, 5.0)  # of a run's price in runs relative to that in FLOPs
_BETTER = 1e-6  # an exchange must gain at least this share


@dataclass(frozen=True)
class Prospect:
    """The information of a table about a number, and that of every candidate; all errors are in units of the noise.

    `information` [B, p, p] is the table's, and `bias` [B, p, K] the effect of each departure on it; `slope` is the
    number's gradient [B, p]; `jacobian` [B, p, m] and `departures` [B, K, m] are the candidates'.
    """

    information: Array
    bias: Array
    slope: Array
    jacobian: Array
    departures: Array

    def error(self, counts: Array) -> Array:
        """Return the number's expected squared error when candidates are run `counts` [m] times: [B]."""
        direction, bias, _ = self._state(counts)
        shift = (direction[:, :, None] * bias).sum(1)
        return np.asarray((direction * self.slope).sum(1) + (shift**2).sum(1))

    def variance(self, counts: Array) -> Array:
        """Return the part of that error due to noise, [B]."""
        return np.asarray((self._state(counts)[0] * self.slope).sum(1))

    def after_each(self, counts: Array) -> Array:
        """Return the expected squared error after one more run of each candidate: [B, m]."""
        direction, bias, inverse = self._state(counts)
        moved = inverse @ self.jacobian
        response = (direction[:, None, :] @ self.jacobian)[:, 0]
        total = 1 + (self.jacobian * moved).sum(1)
        shift = (direction[:, None, :] @ bias)[:, 0, :, None]
        shift = shift + (response / total)[:, None] * (self.departures - bias.transpose(0, 2, 1) @ moved)
        variance = (direction * self.slope).sum(1)[:, None] - response**2 / total
        return np.asarray(variance + (shift**2).sum(1))

    def shares(self, counts: Array) -> Array:
        """Return the share of each candidate's runs in the number's information over all rows: [m]."""
        direction = self._state(counts)[0]
        informed = counts * (direction[:, None, :] @ self.jacobian)[:, 0] ** 2
        return np.asarray((informed / (direction * self.slope).sum(1)[:, None]).mean(0))

    def _state(self, counts: Array) -> tuple[Array, Array, Array]:
        repeated = self.jacobian * counts
        information = self.information + repeated @ self.jacobian.transpose(0, 2, 1)
        inverse = np.asarray(np.linalg.inv(information), np.float64)
        bias = self.bias + repeated @ self.departures.transpose(0, 2, 1)
        return (inverse @ self.slope[:, :, None])[:, :, 0], bias, inverse


@dataclass(frozen=True)
class Limits:
    """The limits of a choice by the rules, among the candidates that are `allowed`, [m].

    `cost` is per candidate, [m]; those at the `corners`, [m], get at most a share of the runs.
    """

    rules: Rules
    cost: Array
    allowed: NDArray[np.bool_]
    corners: NDArray[np.bool_]

    def left(self, counts: Array) -> float:
        """Return the FLOPs that are left."""
        return self.rules.budget - float(counts @ self.cost)

    def open(self, counts: Array) -> NDArray[np.bool_]:
        """Return which candidates may be run once more: [m]."""
        rules = self.rules
        free = self.allowed & (self.cost <= self.left(counts)) & (counts < rules.most_each)
        if counts[self.corners].sum() >= int(rules.most_share * rules.most_runs):
            free &= ~self.corners
        return np.asarray(free & (counts.sum() < rules.most_runs))


def choose(prospect: Prospect, limits: Limits) -> Array:
    """Return how often each candidate is run: greedily by information per price, then by exchanges.

    A run's price is its share of the remaining FLOPs and of the remaining runs; several weights of the two are tried,
    and the best choice is taken.
    """
    choices = []
    for weight in _WEIGHTS:
        counts = _greedy(prospect, limits, weight)
        for _ in range(_SWEEPS):
            if not _exchanged(prospect, limits, counts):
                break
        choices.append(counts)
    return min(choices, key=lambda counts: float(np.log(prospect.error(counts)).mean()))


def _greedy(prospect: Prospect, limits: Limits, weight: float) -> Array:
    counts = np.zeros(len(limits.cost))
    for _ in range(limits.rules.most_runs):
        free = limits.open(counts)
        gain = np.log(prospect.error(counts))[:, None] - np.log(prospect.after_each(counts))
        price = limits.cost / limits.left(counts) + weight / (limits.rules.most_runs - counts.sum())
        worth = np.where(free, gain.mean(0) / price, -np.inf)
        best = int(worth.argmax())
        if worth[best] <= 0:
            break
        counts[best] += 1
    return counts


def _exchanged(prospect: Prospect, limits: Limits, counts: Array) -> bool:
    """Move every run to its most informative place, add one if there is room, and return whether any moved."""
    any_moved = False
    for here in [*np.flatnonzero(counts), None]:
        now = np.log(prospect.error(counts)).mean()
        if here is not None:
            counts[here] -= 1
        then = np.where(limits.open(counts), np.log(prospect.after_each(counts)).mean(0), np.inf)
        best = int(then.argmin())
        if then[best] < now - _BETTER:
            counts[best] += 1
            any_moved = True
        elif here is not None:
            counts[here] += 1
    return any_moved


N_VECTORS = 64
# Prior sd of the log of a scale and of an exponent.
_SCALE_PRIOR, _EXPONENT_PRIOR = 5.0, 1.0
_WORDS = {"exponent": "N_opt exponent", "loss-at": "loss at target"}
_FEW_FREEDOM, _FAR, _MUCH_LEFT = 4, 30.0, 0.1
_CORNER = 0.2  # the outermost fifth, in logs, of the sizes or the tokens per parameter


@dataclass(frozen=True)
class Widths:
    """The half width of the interval, at the fit and as the 10% and 90% quantiles over the vectors."""

    at_fit: float
    low: float
    high: float


@dataclass(frozen=True)
class NextRuns:
    """The chosen runs, and the interval of the quantity now, after them, and after a grid of equal cost.

    `counts` is how often each candidate is run, `shares` its share of the number's information.
    """

    quantity: Quantity
    rules: Rules
    candidates: Candidates
    counts: NDArray[np.int64]
    shares: Array
    now: Widths
    after: Widths
    grid: Widths
    grid_flops: float | None
    warnings: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values; a width is a factor if the quantity is a log, and null if it is so wide
        that the number would not be identified.
        """
        return {
            "quantity": self.quantity.name,
            "meaning": self.quantity.meaning,
            "level": LEVEL,
            "budget_flops": self.rules.budget,
            "spent_flops": float(self.counts @ self.candidates.cost),
            "n_runs": int(self.counts.sum()),
            "runs": [self._run(int(k)) for k in np.flatnonzero(self.counts)],
            "width": {
                "is_factor": self.quantity.is_log,
                "now": self._width(self.now),
                "after": self._width(self.after),
                "grid_of_equal_cost": self._width(self.grid),
            },
            "grid_flops_for_the_same": self.grid_flops if self._is_identified(self.after) else None,
            "warnings": list(self.warnings),
        }

    def _run(self, k: int) -> dict[str, Any]:
        n, d = (float(self.candidates.columns[role][k]) for role in ("params", "tokens"))
        run: dict[str, Any] = {}
        if self.candidates.cells:
            run["cell"] = dict(self.candidates.cells[k])
        flops = float(self.counts[k] * self.candidates.cost[k])
        return run | {
            "params": n,
            "tokens": d,
            "tokens_per_param": d / n,
            "times": int(self.counts[k]),
            "flops": flops,
            "share_of_budget": flops / self.rules.budget,
            "share_of_information": float(self.shares[k]),
        }

    def _is_identified(self, width: Widths) -> bool:
        tolerance = TOLERANCES[self.quantity.kind]
        most = math.log(tolerance.weak) if tolerance.is_factor else tolerance.weak
        return max(width.at_fit, width.high) <= most

    def _width(self, width: Widths) -> dict[str, float | None]:
        if not self._is_identified(width):
            return dict.fromkeys(asdict(width))
        shown = math.exp if self.quantity.is_log else float
        return {name: shown(number) for name, number in asdict(width).items()}


def find_quantity(
    fit: Fit, points: Points, name: str | None, at: Mapping[str, float] | None = None
) -> Quantity:
    """Return the quantity of interest: exponent (of N_opt), loss-at (the point `at`), or any number of the law.

    Without a name it is the exponent of N_opt, or the first one of a law without that. Quantities at a budget are for
    the flops of `at`, or else the table's largest.
    """
    law, at = fit.law, at or {}
    known = parameters_of(law, fit.center)
    budget = at.get("flops") or float(points.columns["flops"].max())
    known += optimum_of(law, fit.center, budget, points.flops_per_param_token)
    missing = [column for column in law.columns if column not in at]
    if not missing:
        known.append(loss_at(law, fit.center, at))
    if name is None:
        names = [each.name for each in known if each.kind == "exponent"]
        name = next((each for each in names if each == _WORDS["exponent"]), names[0])
    wanted = _WORDS.get(name, name)
    if wanted == _WORDS["loss-at"] and missing:
        lacking = " and ".join(missing)
        raise BadInput(f"the loss at a point needs --at with {lacking} too; {law.name} uses it")
    names = [each.name for each in known]
    if wanted not in names:
        words = [short for short, long in _WORDS.items() if long in names or short == "loss-at"]
        allowed = [*words, *(each for each in names if each not in _WORDS.values())]
        what = f"{law.name} has no number {name!r}"
        raise BadInput(Problem(what, ", ".join(allowed), nearest(name, allowed)))
    return known[names.index(wanted)]


def next_runs(fit: Fit, quantity: Quantity, candidates: Candidates, rules: Rules) -> NextRuns:
    """Return the candidates whose runs shrink the quantity's interval most, under the rules.

    Raises:
        BadInput: no candidate costs between the least share of the budget and all of it, or adds information; the law
            uses a column that candidates lack.
    """
    if lacks := [name for name in fit.law.columns if name not in candidates.columns]:
        raise BadInput(
            f"{fit.law.name} uses {' and '.join(lacks)}; the next runs are chosen by params and tokens"
        )
    allowed = (candidates.cost >= rules.least_share * rules.budget) & (candidates.cost <= rules.budget)
    if not allowed.any():
        asked = f"{rules.least_share:.1%} to 100% of {rules.budget:.3g} FLOPs"
        there = f"{candidates.cost.min():.3g} to {candidates.cost.max():.3g}"
        raise BadInput(f"no candidate costs {asked}: they cost {there}")
    vectors = likely_vectors(fit)
    prospect = prospect_of(fit, quantity, vectors, candidates, rules.misfit)
    counts = choose(prospect, Limits(rules, candidates.cost, allowed, corners(candidates)))
    if not counts.any():
        others = "other --candidates may, or a larger --most-share, or a smaller --misfit"
        raise BadInput(f"no candidate that may be run makes {quantity.name} more certain; {others}")
    even = allowed / float(candidates.cost[allowed].sum())  # runs of an even grid per FLOP
    after = _widths(fit, prospect, counts)

    def grid(budget: float) -> Widths:
        return _widths(fit, prospect, even * budget)

    return NextRuns(
        quantity=quantity,
        rules=rules,
        candidates=candidates,
        counts=counts.astype(np.int64),
        shares=prospect.shares(counts),
        now=_widths(fit, prospect, np.zeros(candidates.n)),
        after=after,
        grid=grid(rules.budget),
        grid_flops=_flops_for(lambda budget: grid(budget).at_fit <= after.at_fit, rules.budget),
        warnings=tuple(_warnings(fit, candidates, counts, rules)),
    )


def likely_vectors(fit: Fit) -> Array:
    """Return the fit's vector and refits of the table under random weights, [B, p].

    The weights are exponential (Rubin 1981, The Bayesian bootstrap): no row is left out, so nine rows are enough.
    Refits with a parameter at the end of its range are left out.
    """
    weights = np.random.default_rng(0).exponential(size=(N_VECTORS, fit.n_points)) * fit.rows.weights
    vectors = solve(fit.law, np.tile(fit.theta, (N_VECTORS, 1)), replace(fit.rows, weights=weights)).theta
    low, high = fit.law.bounds(fit.rows.log_loss)
    margin = 1e-3 * (high - low)
    inside = ((vectors > low + margin) & (vectors < high - margin)).all(1)
    return np.concatenate([fit.theta[None], vectors[inside]])


def prospect_of(
    fit: Fit, quantity: Quantity, vectors: Array, candidates: Candidates, misfit: float
) -> Prospect:
    """Return the table's information about a quantity and that of a run of each candidate."""
    law, n = fit.law, fit.n_points
    logs = {
        name: np.concatenate([fit.rows.logs[name], np.log(candidates.columns[name]) - fit.center[name]])
        for name in law.columns
    }  # the rows, then the candidates: the range where the law is used
    jacobian = law.derivatives(vectors, logs)[1]
    changes = _departures(logs)
    # The part of a departure that the law absorbs in a fit to all rows and candidates is not an error of the number.
    absorbed = np.linalg.pinv(jacobian.transpose(0, 2, 1)) @ changes.T
    left = changes - absorbed.transpose(0, 2, 1) @ jacobian
    here, there, left_here, left = jacobian[:, :, :n], jacobian[:, :, n:], left[:, :, :n], left[:, :, n:]
    noise = max(fit.sigma, 1e-6)
    scale, scale_here = math.sqrt(candidates.weight) / noise, np.sqrt(fit.rows.weights) / noise
    here = here * scale_here
    spread = np.array([_SCALE_PRIOR if name in law.scales else _EXPONENT_PRIOR for name in law.parameters])
    return Prospect(
        information=here @ here.transpose(0, 2, 1) + np.diag(spread**-2),
        bias=here @ (left_here * scale_here).transpose(0, 2, 1) * misfit,
        slope=quantity.measure(vectors)[1],
        jacobian=there * scale,
        departures=left * (scale * misfit),
    )


def corners(candidates: Candidates) -> NDArray[np.bool_]:
    """Return which candidates lie in the outermost fifth both by size and by tokens per parameter."""
    size = np.log(candidates.columns["params"])
    outer = np.ones(candidates.n, bool)
    for log in (size, np.log(candidates.columns["tokens"]) - size):
        if not np.ptp(log):
            return np.zeros(candidates.n, bool)
        outer &= np.abs((log - log.min()) / float(np.ptp(log)) - 0.5) > 0.5 - _CORNER
    return outer


def _departures(logs: Mapping[str, Array]) -> Array:
    """The products of the columns' logs, each with a range of about 1: [K, n]."""
    middles = ((column, (column.max() + column.min()) / 2) for column in logs.values())
    z = [(column - middle) / max(float(np.ptp(column)), 1e-9) for column, middle in middles]
    pairs = combinations_with_replacement(range(len(z)), 2)
    return np.array([(4 if i == j else 2) * z[i] * z[j] for i, j in pairs])


def _widths(fit: Fit, prospect: Prospect, counts: Array) -> Widths:
    from scipy.special import fdtri

    freedom = max(fit.n_points + float(counts.sum()) - len(fit.theta), 1.0)
    half = np.sqrt(prospect.variance(counts) * float(fdtri(1, freedom, LEVEL)))
    return Widths(float(half[0]), *map(float, np.quantile(half, [0.1, 0.9])))


def _warnings(fit: Fit, candidates: Candidates, counts: Array, rules: Rules) -> list[str]:
    warnings = []
    if fit.freedom < _FEW_FREEDOM:
        few = f"{several(fit.n_points, 'row')} for {several(len(fit.theta), 'parameter')}"
        warnings.append(
            f"{few}: the choice rests on a rough fit; choose again when some of the runs have ended"
        )
    for name in fit.law.columns:
        largest = float(np.log(candidates.columns[name][counts > 0].max()))
        beyond = largest - fit.center[name] - float(fit.rows.logs[name].max())
        if beyond > math.log(_FAR):
            times = f"{math.exp(beyond):.0f} times the {name} of any row"
            warnings.append(f"the largest run has {times}: no row shows that the law holds there")
    left = 1 - float(counts @ candidates.cost) / rules.budget
    if left > _MUCH_LEFT:
        why = "no other candidate is allowed, or adds information"
        if counts.sum() >= rules.most_runs:
            why = "no more runs are allowed"
        warnings.append(f"{left:.0%} of the budget is left: {why}")
    return warnings


def _flops_for(enough: Callable[[float], bool], start: float) -> float | None:
    """The least sufficient budget, to 1%; None if a thousand times the start is not enough."""
    low, high = start / 1e3, start * 1e3
    if not enough(high):
        return None
    while high > low * 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
