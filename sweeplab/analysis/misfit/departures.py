"""What a form may be wrong in, to first order: how each departure moves the log loss at the rows and beyond them.

Legend: n rows, p parameters, x and y centered log N and log D, s_N and s_D the shares of the loss that are N's and D's.

- an interaction of N and D: x y, as it stands in log loss; a term between the two, sqrt(s_N s_D); their product,
  s_N s_D L; terms that are joined by a power (the entropy of the shares, which is what `joint` adds).
- a bend in one column, a broken power: x^2, and s_N log(1 + exp(2 (x - b))), an exponent that changes smoothly within
  about a factor 3 of a break b, for breaks all over the column's range (Caballero et al. 2023, Broken neural scaling
  laws, equation 1, to first order in the change of the exponent).
- a bend in N and D together: both exponents change at one share of their ranges.
- a trend with a column that the law does not read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np

from sweeplab.analysis.fit.fitting import Fit
from sweeplab.analysis.fit.forms import Array
from sweeplab.analysis.fit.quantities import log_optimum
from sweeplab.analysis.points import Points

BEYOND = 10.0  # times the largest compute: where a departure has to matter
INTERACTION, TOGETHER = "interaction of params and tokens", "bend in params and tokens together"
# Of a column's range of logs; the first is the one that power is given for.
_BREAKS = (0.5, 0.2, 0.35, 0.65, 0.8)
_SHARPNESS = 2.0
_FOLLOWS = 1e-3
_BOTH = {"params", "tokens"}


@dataclass(frozen=True)
class Departure:
    """A direction of a kind: `rows` [n] and `beyond` are changes of the log loss of one size, at rows and target."""

    kind: str
    words: str
    rows: Array
    beyond: float


@dataclass(frozen=True)
class Target:
    """Where a forecast goes: a point at BEYOND times the table's largest compute, with the law's slopes there [p]."""

    columns: Mapping[str, float]
    slopes: Array


def departures(points: Points, fit: Fit) -> tuple[list[Departure], Target]:
    """Return the directions, of each kind the typical one first, and where they have to matter."""
    where = _target(points, fit)
    logs = {
        name: np.append(np.log(column), math.log(where[name])) - np.log(column).mean()
        for name, column in points.columns.items()
        if name in where and np.ptp(np.log(column)) > 1e-9
    }
    value, jacobian = (each[0] for each in fit.law.derivatives(fit.theta[None], logs))
    shares = {term.column: jacobian[fit.law.index(term.scale)] for term in fit.law.terms}
    # A law of one column is first of all wrong in that it does not read the other.
    parts = [_interactions(fit, logs, shares, value), _bends(fit, logs, shares), _unread(fit, logs)]
    named = chain(*(parts if set(fit.law.columns) >= _BOTH else reversed(parts)))
    found = [Departure(kind, words, change[:-1], float(change[-1])) for kind, words, change in named]
    return found, Target(where, jacobian[:, -1])


Named = Iterator[tuple[str, str, Array]]


def _interactions(fit: Fit, logs: Mapping[str, Array], shares: Mapping[str, Array], value: Array) -> Named:
    if not set(fit.law.columns) >= _BOTH:
        return
    of_n, of_d = shares["params"], shares["tokens"]
    yield INTERACTION, "log params times log tokens", logs["params"] * logs["tokens"]
    yield INTERACTION, "a term between those of params and tokens", np.sqrt(of_n * of_d)
    yield INTERACTION, "the product of both terms", of_n * of_d * np.exp(value - value.mean())
    if not fit.law.power:
        all_shares = np.array(list(shares.values()))
        entropy = -(all_shares * np.log(np.maximum(all_shares, 1e-300))).sum(0)
        yield INTERACTION, "terms that are joined by a power", entropy


def _bends(fit: Fit, logs: Mapping[str, Array], shares: Mapping[str, Array]) -> Named:
    bent: dict[str, list[Array]] = {}
    for name in fit.law.columns:
        x = logs[name]
        bent[name] = [shares[name] * _bend(x, part) for part in _BREAKS]
        for part, change in zip(_BREAKS, bent[name], strict=True):
            yield (
                f"bend in {name}",
                f"an exponent that changes at {part:.0%} of the range of log {name}",
                change,
            )
        yield f"bend in {name}", f"the square of log {name}", x**2
    if bent.keys() >= _BOTH:
        for part, one, other in zip(_BREAKS, bent["params"], bent["tokens"], strict=True):
            yield TOGETHER, f"exponents that change at {part:.0%} of both ranges", one + other


def _bend(x: Array, part: float) -> Array:
    low, high = float(x[:-1].min()), float(x[:-1].max())
    return np.asarray(np.logaddexp(0.0, _SHARPNESS * (x - low - part * (high - low))) / _SHARPNESS)


def _unread(fit: Fit, logs: Mapping[str, Array]) -> Named:
    """Yield the columns that the law does not read, unless they follow from those before, as 6ND does."""
    known = [np.ones_like(next(iter(logs.values()))), *(logs[name] for name in fit.law.columns)]
    for name, x in logs.items():
        if name in fit.law.columns:
            continue
        base = np.stack(known, 1)[:-1]
        rest = x[:-1] - base @ np.linalg.lstsq(base, x[:-1], rcond=None)[0]
        if rest.std() > _FOLLOWS * x[:-1].std():
            known.append(x)
            yield f"trend with {name}", f"log {name}, which the law does not read", x


def _target(points: Points, fit: Fit) -> dict[str, float]:
    """Return the best point at the larger budget, no further from the rows in tokens a parameter than they go."""
    columns = {name: column for name, column in points.columns.items() if name != "loss"}
    most = {name: float(column.max()) for name, column in columns.items()}
    if not columns.keys() >= _BOTH or not set(fit.law.columns) >= _BOTH:
        # Without both, tokens and parameters are taken to grow alike: each as the root of compute.
        return {
            name: value * (BEYOND if name == "flops" else math.sqrt(BEYOND)) for name, value in most.items()
        }
    k = points.flops_per_param_token
    budget = BEYOND * float(columns["flops"].max())
    ratios = np.log(columns["tokens"] / columns["params"])
    best = math.log(budget / k) - 2 * log_optimum(fit.law, fit.theta, fit.center, budget, k)
    ratio = float(np.clip(best, ratios.min(), ratios.max()))
    params = math.exp((math.log(budget / k) - ratio) / 2)
    return {"params": params, "tokens": params * math.exp(ratio), "flops": budget}
