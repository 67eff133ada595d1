"""A law, a table, and what may be said: every number with its interval, its verdict and the fit's own state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sweeplab.analysis.fit.bootstrap import Refits, bootstrap
from sweeplab.analysis.fit.fitting import LEAST_SQUARES, LITERATURE, Fit, fit
from sweeplab.analysis.fit.forms import LAWS, Law
from sweeplab.analysis.fit.groups import Shared, shared_errors, sizes_as_groups
from sweeplab.analysis.fit.intervals import LEVEL, Interval, correlations, profiles
from sweeplab.analysis.fit.quantities import Quantity, log_optimum, loss_at, optimum_of, parameters_of
from sweeplab.analysis.fit.verdicts import NOT_IDENTIFIED, Verdict, above_a_loss, design, gate, judge
from sweeplab.analysis.points import Points
from sweeplab.errors import BadInput, Problem, nearest

DELTAS = {"auto": None, "1e-3": LITERATURE, "least-squares": LEAST_SQUARES}
_FEW_GROUPS = 8
_TARGETS = ("params", "tokens", "flops")
_UNSEEN = {"power-n": "tokens", "power-d": "params", "power-c": ""}


@dataclass(frozen=True)
class Estimate:
    """A quantity with its interval and verdict; `refits` is the bootstrap's interval, if one was asked for.

    `others` are the values under the other objectives.
    """

    quantity: Quantity
    interval: Interval
    verdict: Verdict
    others: Mapping[str, float]
    refits: tuple[float, float] | None = None

    @property
    def identified(self) -> bool:
        """Return whether there is a number to show: identified or weak."""
        return self.verdict.verdict != NOT_IDENTIFIED

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values. No value where it is not identified; an open end is null."""
        shown, ends = self.quantity.shown, self.interval
        low = 0.0 if ends.open_low and self.quantity.is_log else None
        said: dict[str, Any] = {
            "value": shown(ends.value) if self.identified else None,
            "low": low if ends.open_low else shown(ends.low),
            "high": None if ends.open_high else shown(ends.high),
            "verdict": self.verdict.verdict,
            "why": self.verdict.reason,
            "meaning": self.quantity.meaning,
        }
        if self.identified and self.refits:
            said |= {"bootstrap": [shown(end) for end in self.refits]}
        if self.identified:
            said |= {"by_delta": {name: shown(value) for name, value in self.others.items()}}
        return said


@dataclass(frozen=True)
class Assessment:
    """All that is said about one law and one table."""

    points: Points
    fit: Fit
    delta: str
    budget: float
    shared: Shared | None
    grouped_by: str
    estimates: tuple[Estimate, ...]
    warnings: tuple[str, ...]
    refits: Refits | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values. `minimizer` is where the objective is lowest: to compute with, no estimate."""
        law = self.fit.law
        entries = {each.quantity.name: each.as_dict() for each in self.estimates}
        derived = {each.quantity.name for each in self.estimates if each.quantity.derived}
        return {
            "law": law.name,
            "formula": law.formula,
            "source": law.source,
            "departures": law.departures,
            "objective": self.fit.objective,
            "delta": self.delta,
            "delta_log_units": self.fit.rows.delta,
            "n_points": self.fit.n_points,
            "sigma": self.fit.sigma,
            "level": LEVEL,
            "fit": {
                "converged": self.fit.converged,
                "starts": self.fit.n_starts,
                "starts_at_the_optimum": self.fit.n_reached,
                "at_bound": list(self.fit.at_bound()),
            },
            "parameters": {name: entry for name, entry in entries.items() if name not in derived},
            "derived": {name: entry for name, entry in entries.items() if name in derived},
            "budget_flops": self.budget,
            "minimizer": self.fit.minimizer(),
            "correlations": {
                "parameters": [f"log {name}" if name in law.scales else name for name in law.parameters],
                "matrix": correlations(self.fit).tolist(),
            },
            "groups": {
                "by": self.grouped_by,
                "count": self.shared.n_groups if self.shared else None,
                "shared_share_of_variance": self.shared.share if self.shared else None,
            },
            "bootstrap": None
            if self.refits is None
            else {"refits": len(self.refits.theta), "missed": self.refits.missed},
            "design": design(self.points, law.columns),
            "dropped": self.points.dropped,
            "conventions": self.points.conventions,
            "warnings": list(self.warnings),
        }


def find_law(name: str) -> Law:
    """Return a law by its name.

    Raises:
        BadInput: there is no such law; offers the nearest name.
    """
    if name not in LAWS:
        raise BadInput(Problem(f"there is no law {name!r}", ", ".join(LAWS), nearest(name, LAWS)))
    return LAWS[name]


def parse_delta(text: str) -> float | None:
    """Return delta as a fit takes it: a number in log units, infinite for least squares, None for auto.

    Raises:
        BadInput: neither a positive number nor one of the words.
    """
    if text in DELTAS:
        return DELTAS[text]
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number > 0:
        raise BadInput(Problem(f"--delta {text!r}", "auto, least-squares or a positive number"))
    return number


def parse_target(text: str) -> dict[str, float]:
    """Return {"params": 1e9, …} of "params=1e9,…".

    Raises:
        BadInput: what is no pair of a column and a positive number.
    """
    found = {}
    for pair in text.split(","):
        name, _, number = (part.strip() for part in pair.partition("="))
        try:
            found[name] = float(number)
        except ValueError:
            found[name] = math.nan
        if name not in _TARGETS or not 0 < found[name] < math.inf:
            raise BadInput(
                Problem(f"--at {pair.strip()!r}", "params=, tokens= or flops= and a positive number")
            )
    return found


def assess(
    points: Points,
    law: Law,
    delta: str = "auto",
    budget: float | None = None,
    target: Mapping[str, float] | None = None,
    n_refits: int = 0,
) -> Assessment:
    """Fit a law to a table and return every number with its interval and verdict.

    `budget` is what the optimum is asked for, in FLOPs (the largest of the table when None); `target` a point
    {"params": …, "tokens": …} to give the loss at; `n_refits` how many bootstrap refits stand beside the profiles.

    Raises:
        BadInput: a table or a setting that allows no fit.
    """
    found = fit(points, law, parse_delta(delta))
    others = {name: found if name == delta else fit(points, law, value) for name, value in DELTAS.items()}
    if budget is not None and not 0 < budget < math.inf:
        raise BadInput(f"--flops {budget:g} is no budget; it takes a positive number")
    budget = budget or float(points.columns["flops"].max() if "flops" in points.columns else math.nan)
    groups, grouped_by = _groups(points)
    shared = shared_errors(found, groups) if groups else None
    refits = bootstrap(found, n_refits, groups) if n_refits else None
    quantities = parameters_of(law, found.center)
    ratio = None
    if {"params", "tokens"} <= set(law.columns):
        k = points.flops_per_param_token
        quantities += optimum_of(law, found.center, budget, k)
        ratio = math.log(budget / k) - 2 * log_optimum(law, found.theta, found.center, budget, k)
    if target:
        if missing := [name for name in law.columns if name not in target]:
            raise BadInput(f"the loss at a target takes {' and '.join(missing)} too; {law.name} reads it")
        quantities.append(loss_at(law, found.center, target))
    estimates = []
    for quantity, interval in zip(quantities, profiles(found, quantities, shared), strict=True):
        near = ratio if quantity.kind == "ratio" else None
        verdict = judge(quantity, interval, found, gate(quantity, points, found, near))
        values = {name: float(quantity.measure(other.theta[None])[0][0]) for name, other in others.items()}
        estimates.append(Estimate(quantity, interval, verdict, values, _ends(refits, quantity)))
    return Assessment(
        points=points,
        fit=found,
        delta=delta,
        budget=budget,
        shared=shared,
        grouped_by=grouped_by,
        estimates=tuple(estimates),
        warnings=tuple(_warnings(points, found, estimates, shared, refits)),
        refits=refits,
    )


def _groups(points: Points) -> tuple[tuple[str, ...] | None, str]:
    if points.groups:
        return points.groups, points.conventions["group"]
    sizes = sizes_as_groups(points.columns["params"]) if "params" in points.columns else None
    return sizes, "params" if sizes else "nothing: each row by itself"


def _ends(refits: Refits | None, quantity: Quantity) -> tuple[float, float] | None:
    if refits is None:
        return None
    low, high = np.quantile(quantity.measure(refits.theta)[0], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _warnings(
    points: Points, found: Fit, estimates: list[Estimate], shared: Shared | None, refits: Refits | None
) -> list[str]:
    law, said = found.law, []
    if not found.converged:
        said.append("the fit did not come to rest: its numbers may move with more steps")
    for name in found.at_bound():
        said.append(f"{name} stands at the end of the range that a fit may reach")
    if above_a_loss(found):
        smallest = float(points.columns["loss"].min())
        said.append(f"the best fit has E above the smallest loss of the table, {smallest:.4g}")
    if unseen := _UNSEEN.get(law.name):
        column = points.columns.get(unseen)
        if column is not None and np.ptp(np.log(column)) > math.log(2):
            said.append(
                f"{law.name} does not see {unseen}, which vary by a factor {column.max() / column.min():.3g}"
            )
    said += _moved_by_delta(estimates)
    if shared and shared.share > 0.1:
        said.append(
            f"{shared.share:.0%} of the errors' variance is shared within a group; intervals allow for it"
        )
    if refits and refits.missed >= 0.01:
        said.append(
            f"{refits.missed:.0%} of the bootstrap refits missed their optimum: take its intervals as narrow"
        )
    if refits and shared and shared.n_groups < _FEW_GROUPS:
        said.append(
            f"{shared.n_groups} groups are too few to draw from: the bootstrap's intervals are only a hint"
        )
    return said


def _moved_by_delta(estimates: list[Estimate]) -> list[str]:
    """Return which numbers another objective puts outside of their intervals: once for each objective."""
    names: dict[str, list[str]] = {}
    for each in estimates:
        ends = each.interval
        for objective, value in each.others.items():
            if each.identified and not ends.low <= value <= ends.high:
                names.setdefault(objective, []).append(each.quantity.name)
    return [
        f"the answer depends on the objective: --delta {objective} puts {', '.join(moved)} outside of the interval"
        for objective, moved in names.items()
    ]
