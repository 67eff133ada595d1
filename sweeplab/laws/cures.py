"""The cheapest cure of each cause in a law's residual: the runs to make, their FLOPs, and the interval afterwards.

The half width of a number's interval afterwards is forecast by simulation: tables as the cure would leave them, of the
law without the causes that follow from columns, with the causes that remain and with noise, are fitted and profiled
like the real one; the median counts. Among numbers of seeds the one to simulate is chosen by the error of weighted
least squares, g' A J W V W J' A g with A the inverse of J W J'.

Legend: n rows, p parameters; J [p, n] the derivatives of the log losses, W the weights, V the rows' variances, g the
number's gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.errors import BadInput
from sweeplab.formatting import rounded, several, written
from sweeplab.laws.assessment import IDENTIFIED, Estimate, assess
from sweeplab.laws.causes import BEND, EPOCHS, REST, SEEDS, SHAPE, TUNING, Beside, Split, split
from sweeplab.laws.choosing import law_of_counts
from sweeplab.laws.columns import SHAPE as DEPTH_WIDTH
from sweeplab.laws.fitting import Fit, fit
from sweeplab.laws.forms import Array
from sweeplab.laws.hyperparameters.runs import Excess, SearchedRuns, cells_of, excess_of
from sweeplab.laws.intervals import noise_of, profiles, shared_of
from sweeplab.laws.next_runs import next_runs, of_axes
from sweeplab.laws.points import Points
from sweeplab.laws.rules import Rules

_SEEDS, _PARTS = (1, 2, 3, 5), (2 / 3, 1.0)  # more seeds of a cell, and shares of the cells
_NO_HELP = 0.99  # of the half width: a cure that leaves more is none
_ENOUGH = 0.6  # of what the most seeds in all cells would gain
_FEWEST_SIZES, _FEWEST_FREE, _N_SIMULATED = 5, 3, 5
_STEPS = (1.0, 2.0, 3.0, 5.0, 7.0, 10.0)
_NEXT_SIZES, _NEXT_SHARE = 9, 0.5  # candidates of `laws next`, and its budget as a share of the table's FLOPs


@dataclass(frozen=True)
class Cure:
    """Runs to make: in `words`, their FLOPs, and the half width of the number's interval afterwards (NaN if unknown).

    `change` has the runs as plain values: seeds and rows (of points), n_layer and n_embd, a range, tokens.
    """

    words: str
    flops: float
    half_width: float = math.nan
    change: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Clinic:
    """What cures are made of: a split, the number to narrow, and the runs of a point (its trials times its seeds)."""

    points: Points
    fit: Fit
    estimate: Estimate
    causes: Split
    excess: Excess | None
    passes: Array | None
    runs_each: float

    def cures(self) -> dict[str, Cure]:
        """Return the cure of every cause that is named, and of what is left if the number is not identified."""
        made = {SEEDS: self._seeds, SHAPE: self._shape, TUNING: self._tuning}
        made |= {EPOCHS: self._epochs, BEND: self._bend, REST: self._rest}
        wanted = [cause.name for cause in self.causes.named]
        if self.estimate.verdict.verdict != IDENTIFIED:
            wanted.append(REST)
        cures = {name: made[name]() for name in wanted}
        return {name: cure for name, cure in cures.items() if cure}

    @cached_property
    def _clean(self) -> Fit:
        """The law without the causes that follow from columns."""
        log_loss = np.log(self.points.columns["loss"])
        effects = [effect for name, effect in self.causes.effects.items() if name != BEND]
        log_loss = log_loss - np.sum(effects, axis=0) if effects else log_loss
        return fit(self.points.with_loss(np.exp(log_loss)), self.fit.law)

    def _simulated(self, points: Points, effects: Sequence[Array], variance: Array) -> float:
        """The number's median half width in tables of these points, with effects [n] or [S, n] and noise.

        It is infinite where most intervals are open.
        """
        random, clean, halves = np.random.default_rng(0), self._clean, []
        law = np.log(clean.predict(points.columns))
        for draw in range(_N_SIMULATED):
            shifts = [effect[draw] if effect.ndim > 1 else effect for effect in effects]
            noise = np.sqrt(variance) * random.standard_normal(points.n)
            drawn = points.with_loss(np.exp(law + np.sum(shifts, axis=0) + noise))
            fitted = fit(drawn, self.fit.law)
            (ends,) = profiles(fitted, [self.estimate.quantity], shared_of(drawn, fitted), noise_of(fitted))
            halves.append(ends.half)
        return float(np.median(halves))

    def _without(self, name: str, again: Array | None = None) -> float:
        """The half width without a cause; `again` are draws of what is left of it, [S, n]."""
        effects = [effect for other, effect in self.causes.effects.items() if other != name]
        if again is not None:
            effects.append(again)
        return self._simulated(self.points, effects, self._variance)

    @property
    def _variance(self) -> Array:
        return np.asarray(sum(self.causes.noise.values()))

    @property
    def _flops(self) -> Array:
        flops = self.points.columns.get("flops")
        if flops is None:
            return np.ones(self.points.n)
        return flops

    def _seeds(self) -> Cure | None:
        points, of_seeds = self.points, self.causes.noise[SEEDS]
        slope, jacobian = self.estimate.quantity.measure(self.fit.theta[None])[1][0], self.fit.jacobian
        others = self.causes.noise[REST] + sum(float(effect.var()) for effect in self.causes.effects.values())

        def variance(weights: Array) -> tuple[float, Array]:
            inverse = np.linalg.pinv((jacobian * weights) @ jacobian.T, rcond=1e-13, hermitian=True)
            influence = (slope @ inverse) @ jacobian * weights
            return float(influence**2 @ (others + of_seeds * points.weights / weights)), influence

        now, influence = variance(points.weights)
        order = np.argsort(-(influence**2 * of_seeds / self._flops), kind="stable")
        tried = []
        for seeds, part in product(_SEEDS, _PARTS):
            rows = np.sort(order[: math.ceil(part * points.n)])
            weights = points.weights.copy()
            weights[rows] += seeds
            flops = seeds * float(self._flops[rows].sum())
            tried.append((flops, seeds, rows, variance(weights)[0], weights))
        enough = now - _ENOUGH * (now - min(each[3] for each in tried))
        enough_of = [choice for choice in tried if choice[3] <= enough]
        flops, seeds, rows, then, weights = min(enough_of, key=lambda choice: choice[0])
        effects, rest = list(self.causes.effects.values()), self.causes.noise[REST]
        # The scatter that the rows happen to have stays: only its change is simulated.
        before = self._simulated(points, effects, rest + of_seeds)
        half = self._simulated(
            replace(points, weights=weights), effects, rest + of_seeds * points.weights / weights
        )
        # An open interval has no half width that another could be compared with.
        shrinks = half / before if math.isfinite(before) else math.sqrt(then / now)
        if shrinks > _NO_HELP:
            return None
        half = self.estimate.interval.half * shrinks
        cells = "every cell" if len(rows) == points.n else several(len(rows), "cell")
        words = f"{several(seeds, 'more seed')} in {cells}"
        return Cure(words, flops, half, {"seeds": seeds, "rows": rows.tolist()})

    def _shape(self) -> Cure | None:
        """One depth, with so many widths that there are as many sizes as now, over the same range."""
        points = self.points
        layers, widths = (points.shape[name] for name in DEPTH_WIDTH)
        log_n = np.log(points.columns["params"])
        n_sizes = max(_FEWEST_SIZES, len(np.unique(log_n.round(6))))
        design = np.stack([np.ones_like(log_n), np.log(layers), np.log(widths)], 1)
        constant, by_layer, by_width = np.linalg.lstsq(design, log_n, rcond=None)[0]
        if "tokens" not in points.columns:
            n_lengths = 1
        else:
            n_lengths = len(np.unique(np.log(points.columns["tokens"]).round(2)))
        unit = math.gcd(*widths.astype(int).tolist())
        cures = []
        for layer in np.unique(layers):
            kept = layers == layer
            at = (
                np.linspace(log_n.min(), log_n.max(), n_sizes) - constant - by_layer * math.log(layer)
            ) / by_width
            wanted = {max(unit, round(math.exp(each) / unit) * unit) for each in at}
            between = range(min(wanted), max(wanted) + 1, unit)
            if len(between) <= n_sizes:
                wanted = set(between)
            there = set(widths[kept].astype(int).tolist())
            # A width near one that is there is that one.
            new = [
                width
                for width in sorted(wanted - there)
                if all(abs(math.log(width / old)) > 0.1 for old in there)
            ]
            n_then = (len(there) + len(new)) * n_lengths
            if not new or n_then < len(self.fit.theta) + _FEWEST_FREE:
                continue
            params = np.exp(constant + by_layer * math.log(layer) + by_width * np.log(np.array(new, float)))
            then, flops = self._joined(kept, params)
            widths_then = np.concatenate([widths[kept], np.repeat(new, (then.n - kept.sum()) // len(new))])
            effect = self.causes.effect_of_shape(np.full(then.n, float(layer)), widths_then)
            variance = np.full(then.n, float(self._variance.mean()))
            half = self._simulated(then, [effect], variance)
            words = f"one depth: n_layer {layer:g}, with n_embd {', '.join(map(str, new))} too"
            change = {"n_layer": int(layer), "n_embd": sorted(there | set(new)), "new": new}
            cures.append(Cure(words, flops * self.runs_each, half, change))
        if not cures:
            return None
        best = min(cure.half_width for cure in cures)
        return min((cure for cure in cures if cure.half_width <= 1.15 * best), key=lambda cure: cure.flops)

    def _joined(self, kept: NDArray[np.bool_], params: Array) -> tuple[Points, float]:
        """Some of the points, and new ones of some sizes at every length; and the FLOPs of one run of each new one."""
        columns = {name: column[kept] for name, column in self.points.columns.items()}
        new = {"params": params}
        if "tokens" in columns:
            lengths = np.exp(np.unique(np.log(self.points.columns["tokens"]).round(2)))
            new = {"params": np.repeat(params, len(lengths)), "tokens": np.tile(lengths, len(params))}
            new["flops"] = self.points.flops_per_param_token * new["params"] * new["tokens"]
        joined = {name: np.concatenate([columns[name], column]) for name, column in new.items()}
        n_new = len(new["params"])
        weights = np.concatenate(
            [self.points.weights[kept], np.full(n_new, float(np.median(self.points.weights)))]
        )
        joined["loss"] = np.ones(len(weights))
        return Points(joined, weights), float(new.get("flops", np.array([math.nan])).sum())

    def _tuning(self) -> Cure:
        flops, excess = float(self._flops.sum()) * self.runs_each, self.excess
        half = self._without(TUNING, None if excess is None else excess.again)
        if excess is None or excess.edge is None:
            return Cure("twice the trials in every cell", flops, half, {"trials": 2})
        j, side = excess.edge
        name, end = excess.names[j], float(excess.tried[j, side])
        factor = (excess.tried[j, 1] / excess.tried[j, 0]) ** 0.25
        to = _round_number(end * factor, up=True) if side else _round_number(end / factor, up=False)
        words = f"{name} {'up' if side else 'down'} to {written(to)}"
        return Cure(words, flops, half, {"name": name, ("max" if side else "min"): to})

    def _epochs(self) -> Cure:
        tokens = float(self.points.columns["tokens"].max())
        passes = np.zeros(self.points.n) if self.passes is None else self.passes
        flops = float(self._flops[passes > 1].sum()) * self.runs_each
        return Cure(f"a corpus of {rounded(tokens)} tokens", flops, self._without(EPOCHS), {"tokens": tokens})

    def _bend(self) -> Cure:
        tokens = self.points.columns.get("tokens")
        if tokens is None or np.ptp(np.log(tokens)) > 0.05:
            return Cure("a law of another form", 0.0, math.nan, {"compare": True})
        params = self.points.columns["params"]
        ratio = float(np.median(tokens / params))
        flops = float((self._flops * params * ratio / tokens).sum()) * self.runs_each
        words = f"tokens that grow with N: {rounded(ratio)} a parameter"
        # How the loss falls with tokens is not known from a table in which they do not vary.
        return Cure(words, flops, math.nan, {"tokens_per_param": ratio})

    def _rest(self) -> Cure | None:
        """The runs that `laws next` chooses for half of the table's FLOPs, of the table's own lengths."""
        columns = self.points.columns
        if not {"params", "tokens"} <= columns.keys():
            return None
        budget = _NEXT_SHARE * float(self._flops.sum())
        lengths = np.exp(np.unique(np.log(columns["tokens"]).round(2)))
        sizes = np.geomspace(columns["params"].min(), columns["params"].max(), _NEXT_SIZES)
        try:
            candidates = of_axes(self.points, {"params": sizes, "tokens": lengths})
            chosen = next_runs(self.fit, self.estimate.quantity, candidates, Rules(budget))
        except BadInput:
            return None
        half = self.estimate.interval.half * chosen.after.at_fit / max(chosen.now.at_fit, 1e-300)
        n_runs = int(chosen.counts.sum())
        words = f"{several(n_runs, 'more run')} that laws next chooses"
        flops = float(chosen.counts @ candidates.cost)
        return Cure(words, flops * self.runs_each, half, {"flops": budget})


def _round_number(value: float, up: bool) -> float:
    """The next round number at or above a value, or at or below it."""
    power = 10.0 ** math.floor(math.log10(value))
    if up:
        return power * min(step for step in _STEPS if step >= value / power * (1 - 1e-9))
    return power * max(step for step in _STEPS if step <= value / power * (1 + 1e-9))


def widest(estimates: Sequence[Estimate]) -> Estimate | None:
    """Return the exponent of a law whose interval is widest; None if none has both ends."""
    exponents = [each for each in estimates if each.quantity.kind == "exponent" and not each.quantity.derived]
    bounded = [each for each in exponents if math.isfinite(each.interval.half)]
    return max(bounded, key=lambda each: each.interval.half, default=None)


@dataclass(frozen=True)
class Diagnosis:
    """A law's residual by its causes, with the cure of each, and the number that the cures narrow.

    `estimate` is None if no exponent has an interval.
    """

    law: str
    n_points: int
    estimate: Estimate | None
    causes: Split
    cures: Mapping[str, Cure]

    def as_dict(self, seconds_per_flop: float | None = None) -> dict[str, Any]:
        """Return it as plain values: every cause with its share (null where it cannot be split) and its cure.

        A cure has a time if it is known how long a FLOP takes.
        """
        number = None
        if self.estimate:
            half, verdict = self.estimate.interval.half, self.estimate.verdict.verdict
            number = {"name": self.estimate.quantity.name, "half_width": half, "verdict": verdict}
        causes = []
        for cause in self.causes.causes:
            plain = {
                name: None if isinstance(value, float) and math.isnan(value) else value
                for name, value in vars(cause).items()
            }
            cure = self.cures.get(cause.name)
            causes.append(plain | {"cure": cure and _plain_cure(cure, seconds_per_flop)})
        return {
            "law": self.law,
            "n_points": self.n_points,
            "number": number,
            "residual": self.causes.sigma,
            "causes": causes,
        }


def _plain_cure(cure: Cure, seconds_per_flop: float | None) -> dict[str, Any]:
    seconds = None if seconds_per_flop is None else cure.flops * seconds_per_flop
    half = cure.half_width if math.isfinite(cure.half_width) else None
    return {
        "words": cure.words,
        "flops": cure.flops,
        "seconds": seconds,
        "half_width": half,
        "change": dict(cure.change),
    }


def diagnose(
    points: Points,
    trials: SearchedRuns | None = None,
    passes: Array | None = None,
    runs_each: float = 1.0,
) -> Diagnosis:
    """Split the residual of the law of N and D that suits a table, and find the cures.

    `trials` are all its runs, of which the points are the best, `passes` [n] is how often a row's run read its text,
    and `runs_each` is the number of runs of a point.

    Raises:
        BadInput: no law can be fitted.
    """
    law = law_of_counts(points)
    assessed, fitted = assess(points, law, others=(), of_all_depths=True), fit(points, law)
    excess = excess_of(trials) if trials else None
    if excess and trials:
        place = cells_of(points, trials)
        excess = replace(excess, draws=excess.draws[:, place], again=excess.again[:, place])
    beside = Beside(None if excess is None else excess.draws, passes)
    causes = split(points, fitted, beside)  # of the losses as they are, with their excess
    estimate, cures = widest(assessed.estimates), dict[str, Cure]()
    if estimate:
        cures = Clinic(points, fitted, estimate, causes, excess, passes, runs_each).cures()
    return Diagnosis(law.name, points.n, estimate, causes, cures)
