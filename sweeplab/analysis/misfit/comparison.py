"""Back-testing: a law is fitted to the runs below a compute cut, and has to predict those above it.

A fit to all rows says how well a law follows them; what it is wanted for lies beyond them. So each law predicts every
row from rows of less compute only, for several cuts, and its errors there are what laws are compared by.

Legend: k cuts, h rows above a cut.

Laws compared by how they predict larger runs, and not by how they fit.

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

from sweeplab.analysis.fit.fitting import LEAST_SQUARES, Fit, Rows, fit, solve
from sweeplab.analysis.fit.forms import LAWS, Array, Law
from sweeplab.analysis.fit.intervals import (
    LEVEL,
    Shared,
    inverse_curvature,
    rise,
    shared_errors,
    sizes_as_groups,
)
from sweeplab.analysis.misfit.form import Misfit, misfit
from sweeplab.analysis.points import Points
from sweeplab.errors import BadInput

N_CUTS = 4
SPARE = 2  # more rows below a cut than the largest law has parameters
FEWEST_ABOVE = 2
# Of the rows: a law that saw less says more of its noise than of its form.
SHARE_BELOW, SHARE_ABOVE = 0.35, 0.1
_BY = ("flops", "tokens", "params")


@dataclass(frozen=True)
class Cut:
    """Rows up to `at` of the column and those above it, as places in the table."""

    at: float
    below: NDArray[np.intp]
    above: NDArray[np.intp]


@dataclass(frozen=True)
class Cuts:
    """The cuts of a table by the column that they are made in; none, and `why`, where there can be none."""

    by: str
    cuts: tuple[Cut, ...]
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "by": self.by,
            "cuts": [
                {"at": each.at, "rows_below": len(each.below), "rows_above": len(each.above)}
                for each in self.cuts
            ],
            "why_none": self.why,
        }


@dataclass(frozen=True)
class Errors:
    """A law's errors above one cut, log(predicted / loss) [h], and which losses its intervals hold [h]."""

    cut: Cut
    fit: Fit
    errors: Array
    held: NDArray[np.bool_]


@dataclass(frozen=True)
class Backtest:
    """A law's errors above every cut; none, and `why`, where it cannot be tested."""

    law: Law
    cuts: tuple[Errors, ...]
    why: str = ""

    @property
    def error(self) -> float:
        """Return the mean size of the errors above a cut, the mean over cuts, in log loss."""
        return float(np.mean([np.abs(each.errors).mean() for each in self.cuts]))

    @property
    def bias(self) -> float:
        """Return the mean error, likewise; above zero it predicts too much."""
        return float(np.mean([each.errors.mean() for each in self.cuts]))

    @property
    def coverage(self) -> float:
        """Return the share of losses that the prediction intervals hold, likewise."""
        return float(np.mean([each.held.mean() for each in self.cuts]))

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values; nothing but the reason where there are no errors."""
        if self.why:
            return {"why_none": self.why}
        return {
            "error": self.error,
            "bias": self.bias,
            "coverage": self.coverage,
            "level": LEVEL,
            "by_cut": [
                {
                    "at": each.cut.at,
                    "rows": each.cut.above.tolist(),
                    "errors": each.errors.tolist(),
                    "held": each.held.tolist(),
                }
                for each in self.cuts
            ],
            "why_none": "",
        }


def cuts_of(points: Points, laws: Sequence[Law]) -> Cuts:
    """Return up to N_CUTS cuts, even in the log of compute, that leave every law enough rows below them."""
    by = next(name for name in _BY if name in points.columns)
    logs = np.log(points.columns[by])
    values = np.unique(logs.round(6))
    fewest = max(SPARE + max(len(law.parameters) for law in laws), math.ceil(SHARE_BELOW * points.n))
    above = max(FEWEST_ABOVE, math.ceil(SHARE_ABOVE * points.n))
    below = [np.flatnonzero(logs <= value + 1e-6) for value in values]
    enough = [
        (value, rows)
        for value, rows in zip(values, below, strict=True)
        if len(rows) >= fewest
        and points.n - len(rows) >= above
        and all(_varies(points, rows, law) for law in laws)
    ]
    if not enough:
        why = (
            f"no cut in {by} leaves {fewest} rows of several sizes below it and {above} above, of {points.n}"
        )
        return Cuts(by, (), why)
    first, last = enough[0][0], enough[-1][0]
    aims = np.linspace(first, last, N_CUTS)
    chosen = sorted({int(np.argmin([abs(value - aim) for value, _ in enough])) for aim in aims})
    everything = np.arange(points.n)
    return Cuts(
        by,
        tuple(
            Cut(math.exp(value), rows, np.setdiff1d(everything, rows))
            for value, rows in (enough[at] for at in chosen)
        ),
    )


def backtest(points: Points, law: Law, cuts: Cuts) -> Backtest:
    """Return how far a law that saw the rows below each cut is off above it."""
    if not cuts.cuts:
        return Backtest(law, (), cuts.why)
    try:
        return Backtest(law, tuple(_above(points, law, cut) for cut in cuts.cuts))
    except BadInput as problem:
        return Backtest(law, (), "; ".join(map(str, problem.problems)))


def _varies(points: Points, rows: NDArray[np.intp], law: Law) -> bool:
    """Return whether a law's columns take as many values below a cut as a term has parameters."""
    return all(len(np.unique(np.log(points.columns[name][rows]).round(6))) >= 3 for name in law.columns)


def _above(points: Points, law: Law, cut: Cut) -> Errors:
    below = points.only(cut.below)
    found = fit(below, law)
    columns = {name: points.columns[name][cut.above] for name in law.columns}
    errors = np.log(found.predict(columns) / points.columns["loss"][cut.above])
    half = _half_intervals(below, found, columns, points.weights[cut.above])
    return Errors(cut, found, errors, np.abs(errors) <= half)


def _half_intervals(points: Points, found: Fit, columns: dict[str, Array], weights: Array) -> Array:
    """Return half the width of each prediction interval, in log loss: the law's own, to first order, and a run's."""
    logs = {name: np.log(column) - found.center[name] for name, column in columns.items()}
    slopes = found.law.derivatives(found.theta[None], logs)[1][0].T
    inverse = inverse_curvature(found)
    leans = (
        slopes
        @ inverse
        @ found.law.derivatives(found.theta[None], found.rows.logs)[1][0]
        * found.rows.weights
    )
    spread = ((slopes @ inverse) * slopes).sum(1)
    shared, freedom = _shared(points, found), float(found.spare)
    noise = float(found.rows.weights @ found.residuals() ** 2) / found.spare / weights
    widen = np.ones(len(weights))
    if shared and shared.shared > 0:
        freedom = max(1.0, min(shared.n_groups - 1.0, found.spare))
        widen = np.array([shared.inflation(lean) for lean in leans])
        noise = np.maximum(noise, shared.own / weights + shared.shared)
    allowed = rise(found, freedom)
    quantile = _t(freedom)
    return np.asarray(np.sqrt(2 * allowed * spread * widen + quantile**2 * noise))


def _shared(points: Points, found: Fit) -> Shared | None:
    groups = points.groups
    if not groups and "params" in points.columns:
        groups = sizes_as_groups(points.columns["params"])
    return shared_errors(found, groups) if groups else None


def _t(freedom: float) -> float:
    from scipy.stats import t as t_distribution

    return float(t_distribution.ppf((1 + LEVEL) / 2, freedom))


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
