"""Laws compared by how they predict larger runs, and not by how they fit.

A challenger predicts better only if its lead over the first law is more than noise brings about: the lead is the mean
over all held-out rows of how much smaller its errors are, and is held against the leads on tables that are drawn from
the first law's own fit, with its noise (that of the law which follows the rows best), and back-tested by both in the
same way. Errors above one cut all come from one fit, and rows stand above several cuts: a test that took them for
independent would name a challenger too often.

Legend: S drawn tables, n rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.analysis.fit.fitting import LEAST_SQUARES, Fit, fit
from sweeplab.analysis.fit.forms import LAWS, Array, Law
from sweeplab.analysis.fit.groups import shared_errors
from sweeplab.analysis.fit.solver import Rows, solve
from sweeplab.analysis.misfit.backtest import Backtest, Cut, Cuts, backtest, cuts_of
from sweeplab.analysis.misfit.form import Misfit, misfit
from sweeplab.analysis.points import Points
from sweeplab.errors import BadInput

N_TABLES = 200
BY_CHANCE = 0.05  # over all challengers together
_STILL = 1e-6


@dataclass(frozen=True)
class Lead:
    """How much smaller a challenger's errors are than the first law's, in log loss, and what noise brings about.

    `chance` is how often a table of the first law gives a lead as large, `spread` the sd of such leads; None where
    there is no lead.
    """

    challenger: str
    value: float
    spread: float | None = None
    chance: float | None = None


@dataclass(frozen=True)
class Row:
    """A law, its fit to all rows, whether its form is flagged, its back-test and its lead over the first law."""

    law: Law
    fit: Fit
    misfit: Misfit
    backtest: Backtest
    lead: Lead | None

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        lead = self.lead
        return {
            "law": self.law.name,
            "formula": self.law.formula,
            "in_sample": self.fit.sigma,
            "backtest": self.backtest.as_dict(),
            "misfit": self.misfit.as_dict(),
            "lead": None
            if lead is None
            else {"value": lead.value, "spread_by_noise": lead.spread, "chance": lead.chance},
        }


@dataclass(frozen=True)
class Comparison:
    """Laws side by side; `better` is the challenger that predicts better than the first by more than noise."""

    n_points: int
    rows: tuple[Row, ...]
    left_out: dict[str, str]
    cuts: Cuts
    better: str | None
    sentences: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "n_points": self.n_points,
            "laws": [each.as_dict() for each in self.rows],
            "left_out": self.left_out,
            "cuts": self.cuts.as_dict(),
            "better": self.better,
            "sentences": list(self.sentences),
        }


def compare(points: Points, laws: Sequence[Law] | None = None) -> Comparison:
    """Return laws side by side, the first as what the others are held against; without `laws`, what the table suits.

    Raises:
        BadInput: the table allows none of them.
    """
    fits, left_out = _fits(points, laws or _suited(points))
    cuts = cuts_of(points, [each.law for each in fits])
    tests = [backtest(points, each.law, cuts) for each in fits]
    leads = _leads(points, fits, tests) if not tests[0].why else {}
    rows = tuple(
        Row(found.law, found, misfit(points, found), test, leads.get(found.law.name))
        for found, test in zip(fits, tests, strict=True)
    )
    sure = [
        each for each in leads.values() if each.chance is not None and each.chance * len(leads) <= BY_CHANCE
    ]
    better = max(sure, key=lambda each: each.value).challenger if sure else None
    return Comparison(points.n, rows, left_out, cuts, better, tuple(_sentences(rows, cuts, better)))


def _suited(points: Points) -> list[Law]:
    """Return the laws that read all that the table has: not N alone where there is D too."""
    there = {name for name in ("params", "tokens", "flops") if name in points.columns}
    both = {"params", "tokens"} <= there
    return [
        law
        for law in LAWS.values()
        if set(law.columns) <= there and (not both or law.columns[0] == "flops" or law.columns[1:])
    ]


def _fits(points: Points, laws: Sequence[Law]) -> tuple[list[Fit], dict[str, str]]:
    fits: list[Fit] = []
    left_out: dict[str, str] = {}
    for law in laws:
        try:
            fits.append(fit(points, law))
        except BadInput as problem:
            left_out[law.name] = "; ".join(map(str, problem.problems))
    if not fits:
        raise BadInput(*dict.fromkeys(left_out.values()))
    return fits, left_out


def _leads(points: Points, fits: Sequence[Fit], tests: Sequence[Backtest]) -> dict[str, Lead]:
    """Return each challenger's lead over the first law; only one that is above zero is held against noise."""
    first, *others = zip(fits, tests, strict=True)
    leads: dict[str, Lead] = {}
    drawn = by_first = None
    for found, test in others:
        if test.why:
            continue
        value = first[1].error - test.error
        leads[found.law.name] = Lead(found.law.name, value)
        if value > 0:
            if drawn is None or by_first is None:
                drawn = _drawn(points, first[0], min(map(_noise, fits)))
                by_first = _simulated(points, *first, drawn, first[0])
            by_noise = by_first - _simulated(points, found, test, drawn, first[0])
            chance = (1 + int((by_noise >= value).sum())) / (1 + len(by_noise))
            leads[found.law.name] = Lead(found.law.name, value, float(by_noise.std()), chance)
    return leads


class _Tables(Rows):
    """Rows whose losses differ from vector to vector: `log_loss` and `weights` are [S, n]."""

    def of(self, chosen: NDArray[np.bool_]) -> Rows:
        """Return the tables of the chosen vectors."""
        return replace(self, log_loss=self.log_loss[chosen], weights=self.weights[chosen])


def _drawn(points: Points, first: Fit, noise: float, seed: int = 0) -> Array:
    """Return log losses of tables for which the first law is right, [S, n], with noise that groups share."""
    random = np.random.default_rng(seed)
    shared = shared_errors(first, points.groups) if points.groups else None
    own, common = (math.sqrt(1 - shared.share), math.sqrt(shared.share)) if shared else (1.0, 0.0)
    errors = own * random.standard_normal((N_TABLES, points.n)) / np.sqrt(points.weights)
    if shared:
        errors += common * random.standard_normal((N_TABLES, shared.n_groups))[:, shared.place]
    return np.asarray(np.log(first.predict(points.columns)) + noise * errors)


def _noise(found: Fit) -> float:
    """Return the sd of a law's residuals; outliers count, so that they name no challenger."""
    return math.sqrt(float(found.rows.weights @ found.residuals() ** 2) / found.spare)


def _simulated(points: Points, tested: Fit, test: Backtest, drawn: Array, truth: Fit) -> Array:
    """Return the size of a law's back-test errors on each of the drawn tables, as `Backtest.error` has it, [S].

    Each refit starts where the law is when it follows the truth without noise.
    """
    means = np.log(truth.predict(points.columns))
    sizes = [
        np.abs(_errors(points, tested.law, each.cut, each.fit, drawn, means)).mean(1) for each in test.cuts
    ]
    return np.asarray(np.mean(sizes, axis=0))


def _errors(points: Points, law: Law, cut: Cut, there: Fit, drawn: Array, means: Array) -> Array:
    """Return log(predicted / loss) above a cut for each drawn table, [S, h]."""
    below = points.only(cut.below)
    clean = replace(below, columns=below.columns | {"loss": np.exp(means[cut.below])})
    start = fit(clean, law, LEAST_SQUARES).theta
    tables = _Tables(
        there.rows.logs,
        drawn[:, cut.below],
        np.broadcast_to(there.rows.weights, (len(drawn), len(cut.below))),
        there.rows.delta,
    )
    found = solve(law, np.tile(start, (len(drawn), 1)), tables, still=_STILL)
    logs = {name: np.log(points.columns[name][cut.above]) - there.center[name] for name in law.columns}
    return np.asarray(law.log_loss(found.theta, logs) - drawn[:, cut.above])


def _sentences(rows: Sequence[Row], cuts: Cuts, better: str | None) -> list[str]:
    first, *others = rows
    name, why = first.law.name, cuts.why or first.backtest.why
    said = [each.misfit.sentences[0] for each in rows]
    if why:
        return [f"laws cannot be compared by what they predict: {why}", *said]
    off = f"{name} is off by {first.backtest.error:.2%} of the loss on larger runs"
    for each in others:
        if each.law.name == better and each.lead and each.lead.chance is not None:
            off = (
                f"{better} predicts larger runs better than {name}: it is off by {each.backtest.error:.2%} of the "
                f"loss where {name} is off by {first.backtest.error:.2%}; were {name} right, noise would give such a "
                f"lead in {each.lead.chance:.1%} of tables"
            )
    if others and not better:
        off += "; no other law predicts them better by more than noise"
    return [off, *said]
