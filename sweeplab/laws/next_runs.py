"""Choose the next runs: those that narrow the interval of one number most for few FLOPs.

The candidates are sizes like those of the table, or cells of a study. One more run is chosen at a time, by what it is
expected to take off the number's variance a FLOP: over the draws of the posterior the number and the log losses of all
candidates are taken for jointly normal, so that observing one of them changes the covariance of the others in closed
form (Chaloner and Verdinelli 1995, Bayesian experimental design: a review, section 4.1). What the runs promise is
measured, not derived: losses of the chosen runs are drawn from the posterior, the law is fitted to the table with them,
and the median of the new half widths counts.

Legend: S draws, m candidates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.laws.assessment import Assessment
from sweeplab.laws.core import Array, interval
from sweeplab.laws.fitting import Fit, fit
from sweeplab.laws.forms import N_OPT, TOLERANCES, Quantity, shown
from sweeplab.laws.points import Points, path_of
from sweeplab.laws.sentences import Plain

MOST_RUNS, MOST_EACH = 12, 4  # runs, and runs of one candidate
# Of a run besides its FLOPs, as a share of the budget over the most runs: tiny runs are not free.
_RUN_PRICE = 0.3
# The factor of tokens per parameter within which candidates follow a table's path.
_NEAR_PATH = 1.5


@dataclass(frozen=True)
class Candidates:
    """The runs to choose from: their params, tokens and flops, [m] each, and the FLOPs of one run, [m].

    `cells` are their values in a study's grid; empty for points of a table. `weight` is the number of seeds of a run.
    """

    columns: Mapping[str, Array]
    cost: Array
    cells: tuple[Mapping[str, Any], ...] = ()
    weight: float = 1.0

    def like(self, points: Points, budget: float) -> Candidates:
        """Return the candidates within a budget whose tokens per parameter are those of the table.

        Raises:
            BadInput: no candidate is within the budget.
        """
        ratios = np.log(points.columns["tokens"] / points.columns["params"])
        reach = math.log(_NEAR_PATH)
        ratio = np.log(self.columns["tokens"] / self.columns["params"])
        within = (ratio >= ratios.min() - reach) & (ratio <= ratios.max() + reach)
        kept = np.flatnonzero((self.cost <= budget) & within)
        if not len(kept):
            raise BadInput(
                f"{budget:.3g} FLOPs are too few for any candidate: the least costs {self.cost.min():.3g}"
            )
        columns = {name: column[kept] for name, column in self.columns.items()}
        cells = tuple(self.cells[place] for place in kept if self.cells)
        return replace(self, columns=columns, cost=self.cost[kept], cells=cells)


def of_points(points: Points, budget: float) -> Candidates:
    """Return a log grid from the table's smallest size up to the budget, at the table's tokens per parameter.

    Raises:
        BadInput: the table has no params or no tokens.
    """
    missing = " and ".join(name for name in ("params", "tokens") if name not in points.columns)
    if missing:
        raise BadInput(
            f"the next runs are chosen by params and tokens; the table has no {missing}"
        )
    n = points.columns["params"]
    path = path_of(points)
    ratio = points.columns["tokens"] / n
    ratios = np.geomspace(ratio.min(), ratio.max(), 9)
    if path:
        ratios = np.array([path.tokens / path.params])
    largest = math.sqrt(budget / points.flops_per_param_token / ratios[0])
    sizes, ratios = np.meshgrid(np.geomspace(n.min(), max(largest, n.max()), 13), ratios)
    params, tokens = sizes.ravel(), (sizes * ratios).ravel()
    flops = points.flops_per_param_token * params * tokens
    return Candidates({"params": params, "tokens": tokens, "flops": flops}, flops)


@dataclass(frozen=True)
class NextRuns:
    """The chosen runs: how often each candidate is run, `counts` [m], and the number's half width now and then.

    Half widths are of the log where the quantity is one. `value` is the number's, `then` the median of imagined refits.
    """

    quantity: Quantity
    budget: float
    candidates: Candidates
    counts: Array
    now: float
    then: float

    def as_dict(self) -> Plain:
        """Return it as plain values; a half width is a factor if the quantity is a log."""
        now, then = shown(self.quantity.kind, (self.now, self.then))
        candidates, counts = self.candidates, self.counts
        runs = []
        for place in np.flatnonzero(counts):
            run: Plain = {
                "params": candidates.columns["params"][place],
                "tokens": candidates.columns["tokens"][place],
                "times": int(counts[place]),
                "flops": counts[place] * candidates.cost[place],
            }
            if candidates.cells:
                run["cell"] = dict(candidates.cells[place])
            runs.append(run)
        return {
            "quantity": self.quantity.name,
            "budget_flops": self.budget,
            "spent_flops": counts @ candidates.cost,
            "n_runs": int(counts.sum()),
            "runs": runs,
            "half_width": {
                "is_factor": TOLERANCES[self.quantity.kind].is_factor,
                "now": now,
                "then": then,
            },
        }


def find_quantity(assessment: Assessment, name: str | None) -> Quantity:
    """Return a number of the law by its name: without one, the exponent of N_opt, or the first exponent.

    Raises:
        BadInput: the law has no such number.
    """
    known = {each.quantity.name: each.quantity for each in assessment.estimates}
    if name is None:
        names = [each.name for each in known.values() if each.kind == "exponent"]
        name = N_OPT if N_OPT in names else names[0]
    if name not in known:
        what = f"{assessment.law.name} has no number {name!r}"
        raise BadInput(Problem(what, ", ".join(known), nearest(name, known)))
    return known[name]


def next_runs(
    assessment: Assessment,
    candidates: Candidates | None = None,
    name: str | None = None,
    flops: float | None = None,
) -> NextRuns:
    """Return the candidates whose runs shrink a number's interval most within a budget in FLOPs.

    Without candidates these are points like the table's; without `flops` the budget is half of what its rows took.

    Raises:
        BadInput: the law has no such number, or no candidate tells more.
    """
    fitted, points = assessment.fit, assessment.points
    quantity = find_quantity(assessment, name)
    if flops is None:
        flops = (points.columns["flops"] * points.weights).sum() / 2
    candidates = (candidates or of_points(points, flops)).like(points, flops)
    counts = _chosen(fitted, quantity, candidates, flops)
    if not counts.any():
        raise BadInput(
            f"no candidate within {flops:.3g} FLOPs makes {quantity.name} more certain"
        )
    now = _half_width(fitted, quantity)
    then = _imagined(points, fitted, quantity, candidates, counts)
    return NextRuns(quantity, flops, candidates, counts, now, then)


def _chosen(fitted: Fit, quantity: Quantity, candidates: Candidates, budget: float) -> Array:
    """How often each candidate is run: one more at a time, by what it takes off the variance a price."""
    number = quantity.measure(fitted.values)
    losses = np.log(fitted.loss(candidates.columns))
    away = losses - losses.mean(0)
    count = len(number)
    covariance = away.T @ away / count
    shared = (number - number.mean()) @ away / count
    variance = number.var()
    noise = fitted.sigma**2 / candidates.weight
    counts = np.zeros(len(candidates.cost))
    left = budget
    for _ in range(MOST_RUNS):
        total = np.diag(covariance) + noise
        gain = -np.log1p(-np.minimum(shared**2 / total / variance, 1 - 1e-9))
        price = candidates.cost / budget + _RUN_PRICE / MOST_RUNS
        worth = np.where((candidates.cost <= left) & (counts < MOST_EACH), gain / price, 0.0)
        best = worth.argmax()
        if worth[best] <= 0:
            break
        counts[best] += 1
        left -= candidates.cost[best]
        step = covariance[:, best] / total[best]
        variance -= shared[best] ** 2 / total[best]
        shared = shared - step * shared[best]
        covariance = covariance - np.outer(step, covariance[best])
    return counts


def _imagined(
    points: Points, fitted: Fit, quantity: Quantity, candidates: Candidates, counts: Array
) -> float:
    """The median half width of the number if the losses of the chosen runs are as some of the draws have them."""
    random = np.random.default_rng(0)
    rows = np.repeat(np.flatnonzero(counts), counts[counts > 0].astype(int))
    columns = {name: column[rows] for name, column in candidates.columns.items()}
    losses = fitted.loss(columns)
    halves = []
    for draw in random.choice(len(losses), 5, replace=False):
        noise = fitted.draws.sigma[draw] / math.sqrt(candidates.weight)
        loss = losses[draw] * np.exp(noise * random.standard_normal(len(rows)))
        new = columns | {"loss": loss}
        whole = {
            name: np.append(points.columns[name], new[name])
            for name in new.keys() & points.columns.keys()
        }
        weights = np.append(points.weights, np.full(len(rows), candidates.weight))
        halves.append(_half_width(fit(Points(whole, weights), fitted.law), quantity))
    return float(np.median(halves))


def _half_width(fitted: Fit, quantity: Quantity) -> float:
    _, low, high = interval(quantity.measure(fitted.values))
    return (high - low) / 2
