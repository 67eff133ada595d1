"""The assessment of a law on a table: every number with its interval and verdict, and whether the form fits.

The terminal, `--json`, pages, the ledger and the Python API all report this one assessment. Every number is a quantile
of the draws of one posterior, pooled over the draws of the tuning excess. A loss is drawn from the bent form: what the
rows leave open of the form is part of its interval; a forecast adds the noise of a run. A verdict comes from the gate
on the design, the doubts, and the interval's width. What is doubted has other fits: the interval then holds theirs too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.formatting import several
from sweeplab.laws import forms
from sweeplab.laws.check import BETTER, HoldOut, Misfit, hold_outs, misfit
from sweeplab.laws.choosing import along_family, family_words, law_of_counts
from sweeplab.laws.columns import COUNTS, as_number, pairs_of
from sweeplab.laws.core import LEVEL, Array, interval
from sweeplab.laws.doubts import Doubt, Tuning, doubts_of, tuning_of
from sweeplab.laws.fitting import Fit, fit
from sweeplab.laws.forms import LAWS, Law, Quantity
from sweeplab.laws.points import DECADES, SPREAD, STANDS, UNLIKE, Points, design, path_of
from sweeplab.laws.sentences import Reason, sentence

IDENTIFIED, WEAK, NOT_IDENTIFIED = "identified", "weak", "not identified"
NEAR = 3.0  # a row is near the optimum if its tokens per parameter are within this factor


@dataclass(frozen=True)
class Tolerance:
    """The largest distance of a 90% interval's ends from the value for `identified`, and for `weak`.

    A factor where `is_factor`: 3 is a third to three times the value. Otherwise a difference.
    """

    identified: float
    weak: float
    is_factor: bool


# Meant for use: what is identified may be planned with.
TOLERANCES = {
    "exponent": Tolerance(0.06, 0.3, False),
    "scale": Tolerance(10.0, 30.0, True),
    "ratio": Tolerance(3.0, 10.0, True),
    "hyperparameter": Tolerance(1.5, 3.0, True),
    "irreducible": Tolerance(1.05, 1.3, True),
    "loss": Tolerance(1.03, 1.1, True),
}
_LINES = (  # measures of the design, the line that the rows may lie near, and the measure in words
    ("sd of log(tokens/params)", "ray of tokens to params", "the sd of log(tokens/params)"),
    ("sd across the line", "line of log tokens against log params", "their sd across it"),
    (UNLIKE, "line of log n_embd against log n_layer", "their sd across it"),
)
_UNSEEN = {"power-n": "tokens", "power-d": "params"}  # the column that a law does not use
_SHARED = 0.3  # the share of the errors' variance from which a page names it
_ALLOWED = "params=, tokens= or flops= and a positive number"


@dataclass(frozen=True)
class Verdict:
    """A verdict and its reason, which `code` and `facts` say too, for whoever is no reader."""

    verdict: str
    reason: str
    code: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def identified(self) -> bool:
        """Return whether there is a number to show: identified or weak."""
        return self.verdict != NOT_IDENTIFIED

    def entry(self, shown: Sequence[float | None], meaning: str) -> dict[str, Any]:
        """Return a number's value, low and high with this verdict; the value is None if it is not identified."""
        entry = dict(zip(("value", "low", "high"), shown, strict=True))
        if not self.identified:
            entry["value"] = None
        about = {"verdict": self.verdict, "code": self.code, "facts": dict(self.facts)}
        return entry | about | {"why": self.reason, "meaning": meaning}


def judge(
    kind: str,
    value: float,
    low: float,
    high: float,
    lacking: Reason | None = None,
    doubt: Reason | None = None,
) -> Verdict:
    """Return the verdict on a number with its interval, in logs if its kind has a factor.

    `lacking` is what its design lacks, `doubt` what is doubted.
    """
    if lacking:
        return Verdict(NOT_IDENTIFIED, lacking.words, lacking.code, lacking.facts)
    tolerance = TOLERANCES[kind]
    far, width = max(high - value, value - low), high - low
    form = "{:.2g}"
    if tolerance.is_factor:
        far, width, form = math.exp(min(far, 50.0)), math.exp(min(width, 100.0)), "a factor {:.3g}"
    facts = {"far": form.format(far), "needed": form.format(tolerance.identified)}
    verdict, reason = IDENTIFIED, Reason("narrow", facts)
    if far > tolerance.weak:
        # How far an end is from a value that is not shown would give it away.
        facts = {"width": form.format(width), "needed": form.format(tolerance.identified)}
        verdict, reason = NOT_IDENTIFIED, Reason("too wide", facts)
    elif doubt:
        verdict, reason = WEAK, doubt
    elif far > tolerance.identified:
        verdict, reason = WEAK, Reason("wide", facts)
    return Verdict(verdict, reason.words, reason.code, reason.facts)


def gate(quantity: Quantity, points: Points, law: Law, optimum_ratio: float | None = None) -> Reason | None:
    """Return what the design lacks for a quantity; None if it lacks nothing.

    `optimum_ratio` is the log of the best tokens per parameter.
    """
    seen = design(points, law.columns)
    for name in quantity.needs:
        decades, without = seen[f"decades of {name}"], seen[f"decades of {name} but for one row"]
        distinct = int(seen[f"distinct {name}"])
        facts = {"column": name, "decades": decades, "needed": DECADES[name], "count": distinct}
        if decades < DECADES[name]:
            return Reason("decades", facts)
        if without < STANDS * DECADES[name]:
            return Reason("one row", facts | {"decades": without})
        if distinct < law.fewest_values:
            return Reason("few values", facts)
    for name, line, what in _LINES:
        if seen.get(name, math.inf) < SPREAD:
            return Reason("ray", {"line": line, "what": what, "spread": seen[name], "needed": SPREAD})
    if seen.get("sd across the line but for one row", math.inf) < STANDS * SPREAD:
        return Reason("ray but one", {})
    if optimum_ratio is not None:
        ratios = np.log(points.columns["tokens"] / points.columns["params"])
        if float(np.abs(ratios - optimum_ratio).min()) > math.log(NEAR):
            # By what factor would give the number away.
            return Reason("far from optimum", {"factor": NEAR})
    return None


@dataclass(frozen=True)
class Estimate:
    """A quantity with its value and the ends of its 90% interval, in the units of its measure, and its verdict."""

    quantity: Quantity
    value: float
    low: float
    high: float
    verdict: Verdict

    @property
    def identified(self) -> bool:
        """Return whether there is a number to show: identified or weak."""
        return self.verdict.identified

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values; the value is null if it is not identified."""
        shown = [self.quantity.shown(each) for each in (self.value, self.low, self.high)]
        return self.verdict.entry(shown, self.quantity.meaning)


@dataclass(frozen=True, eq=False)
class Assessment:
    """The assessment of one law on one table.

    `tuning` has the points as measured and those that the law is fitted to; `doubts` say what makes every number weak
    at best.
    """

    tuning: Tuning
    fit: Fit
    budget: float
    misfit: Misfit
    doubts: tuple[Doubt, ...]
    target: Mapping[str, float] | None = None

    @property
    def raw(self) -> Points:
        """Return the points as measured."""
        return self.tuning.raw

    @property
    def points(self) -> Points:
        """Return the points that the law is fitted to."""
        return self.tuning.points

    @property
    def law(self) -> Law:
        """Return the law."""
        return self.fit.law

    @cached_property
    def tests(self) -> list[HoldOut]:
        """Return the hold-outs of the law and of others."""
        return hold_outs(self.points, self.law)

    def fits(self, is_bent: bool = False) -> list[Fit]:
        """Return the fits of the points, all equally likely."""
        return [fit(points, self.law, is_bent) for points in self.tuning.tables]

    def doubted(self, is_bent: bool = False) -> list[Fit]:
        """Return the fits to what is doubted."""
        fits = []
        for doubt in self.doubts:
            if doubt.is_bent:
                fits.append(fit(self.points, self.law, is_bent=True))
            for points in doubt.otherwise:
                try:
                    fits.append(fit(points, self.law, is_bent))
                except BadInput:  # too few rows are left
                    continue
        return fits

    def ends(self, quantity: Quantity, added: Array | None = None) -> tuple[float, float, float]:
        """Return the value of a quantity, and the ends of its interval over all that is doubted.

        `added` [S] are draws of errors besides the law's own, as those of a run.
        """
        is_bent = quantity.kind == "loss"
        draws = np.concatenate([quantity.measure(fitted.values) for fitted in self.fits(is_bent)])
        lows, highs = [], []
        for measured in (draws, *(quantity.measure(fitted.values) for fitted in self.doubted(is_bent))):
            if added is not None:
                measured = measured + np.resize(added, len(measured))
            _, low, high = interval(measured)
            lows.append(low)
            highs.append(high)
        return float(np.median(draws)), min(lows), max(highs)

    def judged(self, quantity: Quantity, value: float, low: float, high: float) -> Verdict:
        """Return the verdict on a quantity with this interval."""
        lacking = gate(quantity, self.points, self.law, value if quantity.kind == "ratio" else None)
        return judge(quantity.kind, value, low, high, lacking, next(iter(self.doubts), None))

    def estimate(self, quantity: Quantity) -> Estimate:
        """Return a quantity with its interval and verdict."""
        value, low, high = self.ends(quantity)
        return Estimate(quantity, value, low, high, self.judged(quantity, value, low, high))

    @cached_property
    def estimates(self) -> tuple[Estimate, ...]:
        """Return every number of the law."""
        quantities = forms.parameters_of(self.law)
        quantities += forms.optimum_of(self.law, self.budget, self.points.flops_per_param_token)
        if self.target:
            quantities.append(forms.loss_at(self.law, self.target))
        estimates = {each.name: self.estimate(each) for each in quantities}
        for name, scale in estimates.items():
            exponent = estimates.get(scale.quantity.of)
            if exponent and scale.identified and exponent.verdict.verdict != IDENTIFIED:
                facts = {"exponent": scale.quantity.of, "verdict": exponent.verdict.verdict}
                reason = Reason("scale", facts)
                verdict = Verdict(exponent.verdict.verdict, reason.words, reason.code, facts)
                estimates[name] = replace(scale, verdict=verdict)
        return tuple(estimates.values())

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Return what speaks against the numbers, one sentence each."""
        law, points, warnings = self.law, self.points, [doubt.words for doubt in self.doubts]
        unseen = _UNSEEN.get(law.name, "")
        column, path = points.columns.get(unseen), path_of(points)
        if unseen and path:
            warnings.append(sentence("path", {"law": law.name, "path": path.words}))
        elif column is not None and np.ptp(np.log(column)) > math.log(2):
            factor = float(column.max() / column.min())
            warnings.append(sentence("unused", {"law": law.name, "column": unseen, "factor": factor}))
        share = float(np.quantile(self.fit.draws.shared, 0.05))
        if share > _SHARED:
            typical = float(np.median(self.fit.draws.shared))
            warnings.append(sentence("shared", {"share": typical, "by": self.fit.grouped_by}))
        first, *others = self.tests
        for other in others:
            if other.error < BETTER * first.error:
                facts = {"law": law.name, "error": first.error}
                facts |= {"other": other.law, "other_error": other.error}
                warnings.append(sentence("holdout other", facts))
        return (*self.points.pooled_in_words(), *warnings)

    @property
    def choice(self) -> list[str]:
        """Return along which shapes the law holds."""
        return [words for words in (family_words(self.points, self.law),) if words]

    @property
    def measured(self) -> dict[str, Any]:
        """Return what the residual is made of, each as a share of the loss with its 90% interval.

        `seeds` is one seed's spread, `tuning` the excess of a point, `left` the noise of a run about the law.
        """
        facts = {"left": _with_ends(self.fit.draws.sigma)}
        if self.raw.seed_spread is not None:
            facts["seeds"] = _spread(self.raw.seed_spread, float((self.raw.weights - 1).sum()))
        if self.tuning.record:
            facts["tuning"] = _with_ends(self.tuning.record.draws.mean(1))
        return facts

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values; numbers that are not identified have no value."""
        law = self.law
        entries: dict[bool, dict[str, Any]] = {False: {}, True: {}}
        for estimate in self.estimates:
            entries[estimate.quantity.derived][estimate.quantity.name] = estimate.as_dict()
        return {
            "law": law.name,
            "formula": law.formula,
            "source": law.source,
            "departures": law.departures,
            "choice": self.choice,
            "n_points": self.fit.n_points,
            "sigma": self.fit.sigma,
            "level": LEVEL,
            "effective_draws": self.fit.draws.effective,
            "parameters": entries[False],
            "derived": entries[True],
            "budget_flops": self.budget,
            "measured": self.measured,
            "tuning": self.tuning.as_dict(),
            "misfit": self.misfit.as_dict(),
            "holdout": [each.as_dict() for each in self.tests],
            "design": design(self.points, law.columns),
            "dropped": self.raw.dropped,
            "conventions": self.raw.conventions | {"tuning": self.tuning.says},
            "warnings": list(self.warnings),
        }


def _with_ends(draws: Array) -> dict[str, float]:
    return dict(zip(("value", "low", "high"), interval(draws), strict=True))


def _spread(sd: float, freedom: float) -> dict[str, float]:
    from scipy.special import chdtri

    tails = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
    low, high = (sd * math.sqrt(freedom / float(chdtri(freedom, tail))) for tail in tails)
    return {"value": sd, "low": low, "high": high}


def find_law(name: str) -> Law:
    """Return a law by its name."""
    if name not in LAWS:
        raise BadInput(Problem(f"there is no law {name!r}", ", ".join(LAWS), nearest(name, LAWS)))
    return LAWS[name]


def law_for(points: Points, name: str = "auto") -> Law:
    """Return a law by its name; `auto` is that of the sizes that vary.

    Raises:
        BadInput: there is no such law.
    """
    if name != "auto":
        return find_law(name)
    return law_of_counts(points)


def parse_target(text: str) -> dict[str, float]:
    """Return {"params": 1e9, …} of "params=1e9,…"."""
    target = {}
    for pair, name, number in pairs_of(text):
        target[name] = as_number(number)
        if name not in COUNTS or not 0 < target[name] < math.inf:
            raise BadInput(Problem(f"--at {pair!r}", _ALLOWED))
    return target


def checked_budget(budget: float | None, points: Points) -> float:
    """Return a budget in FLOPs, the largest of the table when None."""
    if budget is None:
        return float(np.max(points.columns.get("flops", np.array([math.nan]))))
    if not 0 < budget < math.inf:
        raise BadInput(f"--flops {budget:g} is not a budget; it must be positive")
    return budget


def assess(
    points: Points,
    law: Law,
    budget: float | None = None,
    target: Mapping[str, float] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Assessment:
    """Fit a law to a table and return every number with its interval and verdict, and the test of the form.

    A law of params is fitted along one depth where the table has enough rows of it.

    `budget` is the compute of the optimum, in FLOPs (the largest of the table when None); `target` is a point
    {"params": …, "tokens": …} at which to give the loss. `say` is called with each step that begins.

    Raises:
        BadInput: a table or a setting that allows no fit.
    """
    raw = along_family(points) if "params" in law.columns else points
    say(f"fitting {law.name} to {several(raw.n, 'row')}")
    tuning = tuning_of(raw)
    points = tuning.points
    fitted = fit(points, law)
    budget = checked_budget(budget, points)
    if target:
        missing = [name for name in law.columns if name not in target]
        if missing:
            raise BadInput(f"the loss at a target needs {' and '.join(missing)} too; {law.name} uses it")
    say("testing the form")
    form = misfit(points, fitted)
    doubts = (*tuning.doubts, *doubts_of(points, fitted, form))
    return Assessment(tuning, fitted, budget, form, doubts, target)
