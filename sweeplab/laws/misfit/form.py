"""Test whether the form of a law fits: which departures the residuals follow, and the power to see them.

Residuals are tested (see `residuals`) in directions in which a form may be wrong, to first order: the change of the log
loss at the rows and beyond them by each departure. A direction with a power under SEEN only raises the threshold for
the others, and so do more directions than half of the residual degrees of freedom: these are tested for gross misfits
only. The power is for a departure that matters: one that makes the law's forecast at ten times the compute 5% wrong.

Legend: n rows, p parameters, x and y centered log N and log D, s_N and s_D the shares of the loss that are N's and D's.

- an interaction of N and D: x y, as it stands in log loss; a term between the two, sqrt(s_N s_D); their product,
  s_N s_D L; terms that are joined by a power (the entropy of the shares, which is what `joint` adds).
- a bend in one column, a broken power: x^2, and s_N log(1 + exp(2 (x - b))), an exponent that changes smoothly within
  about a factor 3 of a break b, for breaks all over the column's range (Caballero et al. 2023, Broken neural scaling
  laws, equation 1, to first order in the change of the exponent).
- a bend in N and D together: both exponents change at one share of their ranges.
- a trend with a column that the law does not use.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from sweeplab.laws.estimation.doubts import Pattern, doubts, patterns
from sweeplab.laws.estimation.fitting import Fit, fit
from sweeplab.laws.estimation.forms import Array, log_optimum
from sweeplab.laws.estimation.verdicts import SPREAD, STANDS, design
from sweeplab.laws.misfit import residuals
from sweeplab.laws.misfit.residuals import Draws, Space
from sweeplab.laws.points import Points

BEYOND = 10.0  # times the largest compute: where the size of a departure is measured
INTERACTION, TOGETHER = "interaction of params and tokens", "bend in params and tokens together"
BEND = "bend in {}"
# Shares of a column's log range; power is given for the first one.
_BREAKS = (0.5, 0.2, 0.35, 0.65, 0.8)
_SHARPNESS = 2.0
_FOLLOWS = 1e-3
_BOTH = {"params", "tokens"}

FLAGGED, NOT_SEEN, UNSEEABLE = "flagged", "not seen", "cannot be seen"
MATTERS = 0.05  # of the loss at BEYOND times the compute
FALSE_ALARM = 0.07  # over all directions that are tested
GROSS = 0.01  # over all directions, for gross misfits
MOST_ROWS = 3000  # errors are drawn for each row thousands of times
SEEN = 0.5  # the power above which a departure can be seen
_EFFECT = math.log1p(MATTERS)
_FORECAST = f"forecast at {BEYOND:g} times the compute"
_MOST = 0.5  # of the loss: larger first-order effects are not reported


@dataclass(frozen=True)
class Departure:
    """A direction of a kind: `rows` [n] and `beyond` are its changes of the log loss at the rows and the target."""

    kind: str
    words: str
    rows: Array
    beyond: float


def departures(points: Points, fit: Fit) -> tuple[list[Departure], dict[str, float], Array]:
    """Return the directions, the typical one of each kind first, the target, and the law's gradient there [p].

    The target is a point at BEYOND times the table's largest compute.
    """
    where = _target(points, fit)
    logs = {
        name: np.append(np.log(column), math.log(where[name])) - np.log(column).mean()
        for name, column in points.columns.items()
        if name in where and np.ptp(np.log(column)) > 1e-9
    }
    value, jacobian = (each[0] for each in fit.law.derivatives(fit.theta[None], logs))
    shares = {term.column: jacobian[fit.law.index(term.scale)] for term in fit.law.terms}
    parts = [_interactions(fit, logs, shares, value), _bends(fit, logs, shares), _unused_columns(fit, logs)]
    # The first suspect for such a law is the column that it does not use.
    if not set(fit.law.columns) >= _BOTH:
        parts = [parts[2], parts[1]]
    found = [
        Departure(kind, words, change[:-1], float(change[-1]))
        for part in parts
        for kind, words, change in part
    ]
    return found, where, jacobian[:, -1]


Named = Iterator[tuple[str, str, Array]]


def _interactions(fit: Fit, logs: Mapping[str, Array], shares: Mapping[str, Array], value: Array) -> Named:
    of_n, of_d = shares["params"], shares["tokens"]
    yield INTERACTION, "log params times log tokens", logs["params"] * logs["tokens"]
    yield INTERACTION, "a term between those of params and tokens", np.sqrt(of_n * of_d)
    yield INTERACTION, "the product of both terms", of_n * of_d * np.exp(value - value.mean())
    if not fit.law.power:
        all_shares = np.array(list(shares.values()))
        entropy = -(all_shares * np.log(np.maximum(all_shares, 1e-300))).sum(0)
        yield INTERACTION, "terms that are joined by a power", entropy


def _bends(fit: Fit, logs: Mapping[str, Array], shares: Mapping[str, Array]) -> Named:
    bends: dict[str, list[Array]] = {}
    for name in fit.law.columns:
        x = logs[name]
        bends[name] = [shares[name] * _bend(x, part) for part in _BREAKS]
        for part, change in zip(_BREAKS, bends[name], strict=True):
            words = f"an exponent that changes at {part:.0%} of the range of log {name}"
            yield BEND.format(name), words, change
        yield BEND.format(name), f"the square of log {name}", x**2
    if bends.keys() >= _BOTH:
        for part, one, other in zip(_BREAKS, bends["params"], bends["tokens"], strict=True):
            yield TOGETHER, f"exponents that change at {part:.0%} of both ranges", one + other


def _bend(x: Array, part: float) -> Array:
    low, high = float(x[:-1].min()), float(x[:-1].max())
    return np.asarray(np.logaddexp(0.0, _SHARPNESS * (x - low - part * (high - low))) / _SHARPNESS)


def _unused_columns(fit: Fit, logs: Mapping[str, Array]) -> Named:
    """Yield the columns that the law does not use, unless they follow from earlier ones, as 6ND does."""
    known = [np.ones_like(next(iter(logs.values()))), *(logs[name] for name in fit.law.columns)]
    for name, x in logs.items():
        if name in fit.law.columns:
            continue
        base = np.stack(known, 1)[:-1]
        rest = x[:-1] - base @ np.linalg.lstsq(base, x[:-1], rcond=None)[0]
        if rest.std() > _FOLLOWS * x[:-1].std():
            known.append(x)
            yield f"trend with {name}", f"log {name}, which the law does not use", x


def _target(points: Points, fit: Fit) -> dict[str, float]:
    """Return the best point at the larger budget, within the rows' range of tokens per parameter."""
    columns = {name: column for name, column in points.columns.items() if name != "loss"}
    most = {name: float(column.max()) for name, column in columns.items()}
    if not columns.keys() >= _BOTH or not set(fit.law.columns) >= _BOTH:
        # Without both, tokens and parameters are assumed to grow alike: each as the square root of compute.
        further = {name: BEYOND if name == "flops" else math.sqrt(BEYOND) for name in most}
        return {name: value * further[name] for name, value in most.items()}
    k = points.flops_per_param_token
    budget = BEYOND * float(columns["flops"].max())
    ratios = np.log(columns["tokens"] / columns["params"])
    best = math.log(budget / k) - 2 * log_optimum(fit.law, fit.theta, fit.center, budget, k)
    ratio = float(np.clip(best, ratios.min(), ratios.max()))
    params = math.exp((math.log(budget / k) - ratio) / 2)
    return {"params": params, "tokens": params * math.exp(ratio), "flops": budget}


@dataclass(frozen=True)
class DepartureKind:
    """The result for one kind of departure.

    `power` is how often one that matters would be flagged, for the kind's typical direction. `share` of the squared
    residuals lies in the `strongest` direction; if that were the cause, the true loss at the target would be above the
    law's by the share `effect`: None if the kind is not flagged.
    """

    kind: str
    status: str
    power: float
    strongest: str
    share: float
    effect: float | None


@dataclass(frozen=True)
class Misfit:
    """Whether a law's form is flagged on its table; `p_value` is over all directions that were tested.

    `doubts` concern fits of any form; they are among the `sentences` too.
    """

    law: str
    status: str
    p_value: float | None
    target: dict[str, float]
    kinds: tuple[DepartureKind, ...]
    patterns: tuple[Pattern, ...]
    sentences: tuple[str, ...]
    doubts: tuple[str, ...]

    @property
    def flag(self) -> tuple[str, ...]:
        """Return how the form does not fit, and the effect on a forecast; empty if it is not flagged."""
        return _flag(self.law, self.kinds)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        said = asdict(self) | {"false_alarm": FALSE_ALARM + GROSS, "matters": MATTERS}
        return {name: list(each) if isinstance(each, tuple) else each for name, each in said.items()}


def misfit(points: Points, found: Fit) -> Misfit:
    """Return whether the form of a fitted law is flagged, and the power of the test on its table.

    Raises:
        BadInput: the errors of `fit`.
    """
    if found.rows.delta < found.sigma:
        found = fit(points, found.law)  # with so small a delta, clipped residuals are hardly more than signs
    beside = doubts(points, found)
    if points.n > MOST_ROWS:  # drawn at random, but the same every time; enough to show what matters
        points = points.only(np.random.default_rng(0).choice(points.n, MOST_ROWS, replace=False))
        found = fit(points, found.law, found.rows.delta)
    directions, target, slopes = departures(points, found)
    rows = np.stack([each.rows for each in directions], 1)
    beyond = np.array([each.beyond for each in directions])
    bend = next((each.rows for each in directions if each.kind == BEND.format("params")), None)
    space = residuals.space_of(points, found, rows, beyond, slopes, bend)
    lacking = _lacking(points, found, space)
    draws = residuals.draw(space)
    tested = [] if lacking else _tested(directions, space, draws)
    everything = range(len(directions))
    thresholds = np.full(len(directions), draws.threshold(everything, GROSS))
    if tested:
        thresholds[tested] = np.minimum(thresholds[tested], draws.threshold(tested, FALSE_ALARM))
    kinds = _kinds(directions, space, draws, tested, thresholds)
    there = {each.status for each in kinds}
    # The status of the whole form: `not seen` needs a kind that could have been seen.
    status = next((each for each in (FLAGGED, NOT_SEEN) if each in there), UNSEEABLE)
    judged = [tested] * bool(tested) + [list(everything)] * (status == FLAGGED)
    p_values = [draws.p_value(each, float(space.shares()[each].max())) for each in judged]
    law = found.law.name
    return Misfit(
        law=law,
        status=status,
        p_value=min(p_values, default=None),
        target=target,
        kinds=kinds,
        patterns=tuple(patterns(points, found)),
        sentences=(*_sentences(law, kinds, lacking), *beside),
        doubts=tuple(beside),
    )


def _lacking(points: Points, found: Fit, space: Space) -> str:
    """Return why no misfit can be seen at all; empty if some can."""
    seen = design(points, found.law.columns)
    spread = seen.get("sd across the line", math.inf)
    if spread < SPREAD:
        line = "one ray of tokens to params, or one line of their logs"
        needed = f"(the sd across it is {spread:.2f}, {SPREAD} is needed)"
        return f"all rows lie near {line} {needed}, where a wrong form bends its own terms until it fits"
    if seen.get("sd across the line but for one row", math.inf) < STANDS * SPREAD:
        return "but for one row all lie near one line of log tokens against log params, and that row decides"
    if space.freedom < 2:
        return f"{found.n_points} rows leave {found.law.name} hardly anything that could differ from it"
    return ""


def _tested(directions: Sequence[Departure], space: Space, draws: Draws) -> list[int]:
    """Return the directions to try, the typical ones of each kind first: no more than half of what the law leaves.

    The first is always tested: by a misfit in its own direction the noise seems larger, and its power smaller.
    """
    kinds = [each.kind for each in directions]
    order = sorted(range(len(kinds)), key=lambda at: kinds[:at].count(kinds[at]))
    there = [at for at in order if space.directions[:, at].any()]
    seen = [at for at in there[1:] if _power(space, draws, at, [at]) >= SEEN]
    return [*there[:1], *seen][: max(1, space.freedom // 2)]


def _power(space: Space, draws: Draws, at: int, tested: Sequence[int]) -> float:
    """Return how often a direction that matters is flagged, with the noise that is left without it."""
    share = min(float(space.shares()[at]), 1.0)
    noise = space.noise * math.sqrt(max(1 - share, 0.0) * space.freedom / max(space.freedom - 1, 1))
    threshold = draws.threshold(tested, FALSE_ALARM)
    return residuals.power(replace(space, noise=noise), draws, at, _EFFECT, tested, threshold)


def _kinds(
    directions: Sequence[Departure], space: Space, draws: Draws, tested: Sequence[int], thresholds: Array
) -> tuple[DepartureKind, ...]:
    shares, lengths, found = space.shares(), space.lengths(), []
    for kind in dict.fromkeys(each.kind for each in directions):
        own = [at for at, each in enumerate(directions) if each.kind == kind]
        strongest = max(own, key=lambda at: shares[at] - thresholds[at])
        flagged = bool(shares[strongest] > thresholds[strongest]) and space.noise >= residuals.EXACT
        likely = _power(space, draws, own[0], tested) if tested else 0.0
        status = FLAGGED if flagged else NOT_SEEN if likely >= SEEN else UNSEEABLE
        size = float(lengths[strongest] * space.gains[strongest])
        effect = math.expm1(size) if flagged and abs(size) < _MOST else None
        words, share = directions[strongest].words, float(shares[strongest])
        found.append(DepartureKind(kind, status, likely, words, share, effect))
    return tuple(found)


def _flag(law: str, kinds: Sequence[DepartureKind]) -> tuple[str, ...]:
    flagged = sorted((each for each in kinds if each.status == FLAGGED), key=lambda each: -each.share)
    if not flagged:
        return ()
    first, *others = flagged
    squares = f"{first.share:.0%} of its residuals' squares"
    alike = f"; {_listed(others)} would look alike, or is present too" if others else ""
    said = f"{law} does not fit: {squares} follow {_listed([first])} ({first.strongest}){alike}"
    if first.effect is None:
        return (said,)
    off = f"{abs(first.effect):.1%} too {'low' if first.effect > 0 else 'high'}"
    return said, f"if that is the cause, its {_FORECAST} is about {off}"


def _sentences(law: str, kinds: Sequence[DepartureKind], lacking: str) -> list[str]:
    said = [*_flag(law, kinds)]
    if lacking:
        why = f"this design cannot show {'smaller misfits' if said else 'a misfit'}: {lacking}"
        return [*said, why if said else f"{why}; this is no evidence that {law} is right"]
    power = f"one that makes the {_FORECAST} {MATTERS:.0%} wrong would be flagged in "
    for status, words in ((NOT_SEEN, "is not seen"), (UNSEEABLE, "cannot be seen on this design")):
        if there := [each for each in kinds if each.status == status]:
            shares = ", ".join(f"{each.power:.0%}" for each in there)
            respectively = " of such tables" if len(there) == 1 else " of such tables, in this order"
            said.append(f"{_listed(there)} {words}: {power}{shares}{respectively}")
    return said


def _listed(kinds: Sequence[DepartureKind]) -> str:
    named = [f"a{'n' if each.kind[0] in 'aeiou' else ''} {each.kind}" for each in kinds]
    return " or ".join([*filter(None, [", ".join(named[:-1])]), named[-1]])
