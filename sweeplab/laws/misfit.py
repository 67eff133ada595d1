"""Test whether the form of a law fits: which departures the residuals follow, and the power to see them.

Residuals are tested in directions in which a form may be wrong, to first order: the change of the log loss at the rows
and beyond them by each departure. The power is for a departure that matters: one that makes the law's forecast at ten
times the compute 5% wrong. A direction with a power under SEEN only raises the threshold for the others, and so do more
directions than half of the residual degrees of freedom: these are tested for gross misfits only.

- an interaction of N and D: x y, as it stands in log loss; a term between the two, sqrt(s_N s_D); their product,
  s_N s_D L; terms that are joined by a power (the entropy of the shares, which is what `joint` adds).
- a bend in one column, a broken power: x^2, and s_N log(1 + exp(2 (x - b))), an exponent that changes smoothly within
  about a factor 3 of a break b, for breaks all over the column's range (Caballero et al. 2023, Broken neural scaling
  laws, equation 1, to first order in the change of the exponent).
- a bend in N and D together: both exponents change at one share of their ranges.
- a trend with a column that the law does not use.

A law of the right form leaves noise in all directions alike; a wrong form leaves the departure's direction z after
projecting out the law's gradient. The score of a direction is the share of the squared residuals that lies in it,
cos^2 = (z'r)^2 / (z'z r'r), a transform of F(1, n - p - 1) (Rao's score test). The test takes the largest score over
all directions, because the place of a bend is unknown beforehand (Davies 1987), and compares it with simulated errors
of the same unequal size, through the same projection, clipping and maximum. So the false-alarm rate holds for the whole
test, however many directions there are. The power is the share of such simulations that are flagged with a departure.

Departures from the textbook: residuals are clipped at Huber's delta as in the fit; errors that rows of a group share
are simulated as shared, and so are those that few sizes, or few values of D/N, may share; a parameter at its bound
takes no direction away. The effect of a departure is what a fit to the losses without it differs by.

Legend: n rows, p parameters free to move, k directions, S draws; x and y centered log N and log D, s_N and s_D the
shares of the loss that are N's and D's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.formatting import several
from sweeplab.laws.doubts import Pattern, doubts, patterns, robust_line
from sweeplab.laws.fitting import Fit, fit
from sweeplab.laws.forms import Array, log_optimum
from sweeplab.laws.intervals import noise_of, shared_of
from sweeplab.laws.points import SPREAD, STANDS, Points, design, path_of

N_DRAWS, _BATCH = 2000, 250
_SEVERAL = 5  # sizes, to tell the errors that they share
_ASSUMED = 0.42  # of the errors' variance, that few groups may share
_NOTHING = 1e-6  # the share of a direction left after projection below which the law contains it
EXACT = 1e-9  # residuals of this size are rounding errors


@dataclass(frozen=True)
class Projection:
    """Residuals and directions after projecting out the law, in rows of equal weight.

    `gradient` [n, p] is an orthonormal basis of the law's gradient; `directions` [n, k] have length 1, or 0 if nothing
    is left, and `sizes` [k] are the lengths that they had; `gains` [k] are the changes of the forecast per unit length;
    `noise` is the errors' size. `residual` is clipped at Huber's delta, `unclipped` is not, and `clip` is delta over
    the residuals' scale. Each of `factors` [n, n] turns independent errors into errors that the rows may have; None if
    these are independent. `root` are the roots of the weights.
    """

    gradient: Array
    residual: Array
    unclipped: Array
    directions: Array
    sizes: Array
    gains: Array
    noise: float
    clip: float
    root: Array
    factors: tuple[Array | None, ...]

    @property
    def freedom(self) -> int:
        """Return the residual degrees of freedom."""
        return len(self.residual) - int(self.gradient.shape[1])

    def lengths(self) -> Array:
        """Return the signed length of the residuals in each direction, [k]."""
        return np.asarray(self.residual @ self.directions)

    def shares(self) -> Array:
        """Return the share of the squared residuals in each direction, [k]."""
        return np.asarray(self.lengths() ** 2 / max(float(self.residual @ self.residual), 1e-300))

    def left(self, rows: Array) -> Array:
        """Project the law out of rows, [..., n]."""
        return np.asarray(rows - (rows @ self.gradient) @ self.gradient.T)


def space_of(
    points: Points, fit: Fit, rows: Array, beyond: Array, slopes: Array, bend: Array | None = None
) -> Projection:
    """Return the space of changes `rows` [n, k], which are `beyond` [k] at a target where the law has `slopes` [p].

    `bend` [n] is the one among them that errors shared by a size resemble.
    """
    bound = fit.at_bound()
    free = [at for at, name in enumerate(fit.law.parameters) if name not in bound]
    root = np.sqrt(fit.rows.weights)  # a row of weight w has 1/w of the variance
    jacobian = fit.jacobian.T[:, free] * root[:, None]
    changes = rows * root[:, None]
    gradient, triangle = np.linalg.qr(jacobian)
    absorbed = np.linalg.lstsq(triangle, gradient.T @ changes, rcond=1e-12)[0]
    left = changes - gradient @ (gradient.T @ changes)
    lengths = np.linalg.norm(left, axis=0)
    lengths[lengths <= _NOTHING * np.linalg.norm(changes, axis=0)] = math.inf
    raw = fit.residuals()
    both = root * np.stack([np.clip(raw, -fit.rows.delta, fit.rows.delta), raw])
    residual, unclipped = both - (both @ gradient) @ gradient.T
    inside = max(float((np.abs(raw) < fit.rows.delta).mean()), 1 / fit.n_points)
    return Projection(
        gradient=gradient,
        residual=residual,
        unclipped=unclipped,
        directions=left / lengths,
        sizes=lengths,
        gains=(beyond - slopes[free] @ absorbed) / lengths,
        noise=float(np.linalg.norm(residual)) / math.sqrt(max(fit.n_points - len(free), 1)) / inside,
        clip=fit.rows.delta / max(fit.sigma, 1e-300),
        root=root,
        factors=_error_factors(points, fit, bend),
    )


@dataclass(frozen=True)
class NoiseDraws:
    """Residuals simulated under the right form: their lengths in each direction [V, S, k], and squared norms [V, S].

    There are V kinds of errors that the rows may have. What is called strong is so for all of them.
    """

    lengths: Array
    squares: Array

    def threshold(self, chosen: Sequence[int], alarm: float) -> float:
        """Return the share of the residuals that the strongest of some directions exceeds with chance `alarm`."""
        return float(np.quantile(self._largest(chosen), 1 - alarm, axis=1).max())

    def p_value(self, chosen: Sequence[int], share: float) -> float:
        """Return how often noise alone has a share this large in the strongest of some directions."""
        larger = (self._largest(chosen) >= share).sum(1).max()
        return float((1 + larger) / (1 + self.squares.shape[1]))

    def _largest(self, chosen: Sequence[int]) -> Array:
        return np.asarray((self.lengths[:, :, list(chosen)] ** 2).max(2) / self.squares)


def draw(space: Projection) -> NoiseDraws:
    """Simulate residuals under noise alone: normal, projected and clipped like the real ones."""
    lengths, squares = [], []
    for factor in space.factors:
        both = _drawn(space, factor)
        unit = math.sqrt(space.freedom / max(float(both[1].mean()), 1e-300))
        lengths.append(both[0] * unit)
        squares.append(both[1] * unit**2)
    return NoiseDraws(np.array(lengths), np.array(squares))


def _drawn(space: Projection, factor: Array | None) -> tuple[Array, Array]:
    random = np.random.default_rng(0)
    n, n_params = space.gradient.shape
    lengths, squares = [], []
    for _ in range(0, N_DRAWS, _BATCH):
        errors = random.standard_normal((_BATCH, n))
        if factor is not None:
            errors = errors @ factor.T
        left = space.left(errors)
        if math.isfinite(space.clip):
            raw = left / space.root
            scale = 1.4826 * np.median(np.sort(np.abs(raw), axis=1)[:, n_params:], axis=1)
            limit = space.clip * scale[:, None]
            left = space.left(space.root * np.clip(raw, -limit, limit))
        lengths.append(left @ space.directions)
        squares.append((left**2).sum(1))
    return np.concatenate(lengths), np.concatenate(squares)


def power(
    space: Projection, draws: NoiseDraws, at: int, effect: float, chosen: Sequence[int], limit: float
) -> float:
    """Return how often a chosen direction exceeds the limit if direction `at` changes the forecast by `effect`."""
    if not space.directions[:, at].any():
        return 0.0
    size = abs(effect) / max(abs(float(space.gains[at])), 1e-12) / max(space.noise, EXACT)
    alike = space.directions.T @ space.directions[:, at]
    lengths = draws.lengths[:, :, list(chosen)] + size * alike[list(chosen)]
    squares = draws.squares + 2 * size * draws.lengths[:, :, at] + size**2
    return float(((lengths**2).max(2) > limit * squares).mean(1).min())


def _error_factors(points: Points, fit: Fit, bend: Array | None) -> tuple[Array | None, ...]:
    """The matrices that turn independent errors into the rows' errors [n, n], up to a factor; None if not needed.

    Without groups in the table, rows of one size, or of one D/N, may share an error. A bend in the size resembles that,
    so an error that several sizes share is estimated without the bend. Few groups do not tell how large a part is
    shared: with each of these, errors of which _ASSUMED is shared are another kind that there may be.
    """
    if points.groups:
        bend = None
    shared, relative = shared_of(points, fit, bend), noise_of(fit).relative
    root, known = np.sqrt(fit.rows.weights), np.diag(relative) if np.ptp(relative) else None

    def together(place: NDArray[np.intp], share: float) -> Array:
        alike = (place[:, None] == place) * np.outer(root, root)
        covariance = (1 - share) * np.eye(fit.n_points) + share * alike
        return np.asarray(relative[:, None] * np.linalg.cholesky(covariance + 1e-12 * np.eye(fit.n_points)))

    if shared and shared.shared and (points.groups or shared.n_groups >= _SEVERAL):
        known = together(shared.place, shared.share)
    factors = [known]
    if not points.groups and points.columns.keys() >= _BOTH:
        for column in (points.columns["params"], points.columns["tokens"] / points.columns["params"]):
            place = np.unique(np.log(column).round(2), return_inverse=True)[1].astype(np.intp)
            if 1 < place.max() + 1 < min(_SEVERAL, points.n):
                factors.append(together(place, _ASSUMED))
    return tuple(factors)


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
    """A direction of a kind: its changes of the log loss at the rows and, last, at the target, [n + 1]."""

    kind: str
    words: str
    change: Array


Departures = Iterator[Departure]


def departures(points: Points, fit: Fit) -> tuple[list[Departure], dict[str, float], Array]:
    """Return the directions, the typical one of each kind first, the target, and the law's gradient there [p].

    The target is a point at BEYOND times the table's largest compute.
    """
    where = _target(points, fit)
    logs = {
        name: np.append(np.log(column), math.log(where[name])) - np.log(column).mean()
        for name, column in points.sizes.items()
        if name in where and np.ptp(np.log(column)) > 1e-9
    }
    value, jacobian = (each[0] for each in fit.law.derivatives(fit.theta[None], logs))
    shares = {column: jacobian[fit.law.index(scale)] for column, scale in fit.law.scale_of.items()}
    parts = [_interactions(fit, logs, shares, value), _bends(fit, logs, shares)]
    # The first suspect for such a law is the column that it does not use; on a path no trend with it can be told.
    if not set(fit.law.columns) >= _BOTH:
        parts = [parts[1]] if path_of(points) else [_unused_columns(fit, logs), parts[1]]
    return [departure for part in parts for departure in part], where, jacobian[:, -1]


def _interactions(
    fit: Fit, logs: Mapping[str, Array], shares: Mapping[str, Array], value: Array
) -> Departures:
    of_n, of_d = shares["params"], shares["tokens"]
    named = partial(Departure, INTERACTION)
    yield named("log params times log tokens", logs["params"] * logs["tokens"])
    yield named("a term between those of params and tokens", np.sqrt(of_n * of_d))
    yield named("the product of both terms", of_n * of_d * np.exp(value - value.mean()))
    if not fit.law.power:
        all_shares = np.array(list(shares.values()))
        entropy = -(all_shares * np.log(np.maximum(all_shares, 1e-300))).sum(0)
        yield named("terms that are joined by a power", entropy)


def _bends(fit: Fit, logs: Mapping[str, Array], shares: Mapping[str, Array]) -> Departures:
    bends: dict[str, list[Array]] = {}
    for name in fit.law.columns:
        x = logs[name]
        bends[name] = [shares[name] * _bend(x, part) for part in _BREAKS]
        for part, change in zip(_BREAKS, bends[name], strict=True):
            words = f"an exponent that changes at {part:.0%} of the range of log {name}"
            yield Departure(BEND.format(name), words, change)
        yield Departure(BEND.format(name), f"the square of log {name}", x**2)
    if bends.keys() >= _BOTH:
        for part, one, other in zip(_BREAKS, bends["params"], bends["tokens"], strict=True):
            yield Departure(TOGETHER, f"exponents that change at {part:.0%} of both ranges", one + other)


def _bend(x: Array, part: float) -> Array:
    low, high = float(x[:-1].min()), float(x[:-1].max())
    return np.asarray(np.logaddexp(0.0, _SHARPNESS * (x - low - part * (high - low))) / _SHARPNESS)


def _unused_columns(fit: Fit, logs: Mapping[str, Array]) -> Departures:
    """Yield the columns that the law does not use, unless they follow from earlier ones, as 6ND does."""
    known = [np.ones_like(next(iter(logs.values()))), *(logs[name] for name in fit.law.columns)]
    for name, x in logs.items():
        if name in fit.law.columns:
            continue
        base = np.stack(known, 1)[:-1]
        rest = x[:-1] - base @ np.linalg.lstsq(base, x[:-1], rcond=None)[0]
        if rest.std() > _FOLLOWS * x[:-1].std():
            known.append(x)
            yield Departure(f"trend with {name}", f"log {name}, which the law does not use", x)


def _target(points: Points, fit: Fit) -> dict[str, float]:
    columns = {name: column for name, column in points.sizes.items() if name != "loss"}
    most = {name: float(column.max()) for name, column in columns.items()}
    if not columns.keys() >= _BOTH or not set(fit.law.columns) >= _BOTH:
        # Without both, tokens and parameters are assumed to grow alike: each as the square root of compute.
        further = {name: value * math.sqrt(BEYOND) for name, value in most.items()}
        return further | {name: most[name] * BEYOND for name in most if name == "flops"}
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

    `doubts` concern fits of any form, and are among the `sentences` too; `doubt` is why numbers are weak for them.
    """

    law: str
    status: str
    p_value: float | None
    target: dict[str, float]
    kinds: tuple[DepartureKind, ...]
    patterns: tuple[Pattern, ...]
    sentences: tuple[str, ...]
    doubts: tuple[str, ...]
    doubt: str

    @property
    def flag(self) -> tuple[str, ...]:
        """Return how the form does not fit, and the effect on a forecast; empty if it is not flagged."""
        return _flag(self.law, self.kinds)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        lists = {name: list(rows) for name, rows in asdict(self).items() if isinstance(rows, tuple)}
        return asdict(self) | lists | {"false_alarm": FALSE_ALARM + GROSS, "matters": MATTERS}


def projected(points: Points, fit: Fit) -> tuple[list[Departure], dict[str, float], Projection]:
    """Return the directions, the target and the space of a fit's residuals."""
    directions, target, slopes = departures(points, fit)
    changes = np.stack([each.change for each in directions], 1)
    bend = next((each.change[:-1] for each in directions if each.kind == BEND.format("params")), None)
    return directions, target, space_of(points, fit, changes[:-1], changes[-1], slopes, bend)


def misfit(points: Points, fitted: Fit) -> Misfit:
    """Return whether the form of a fitted law is flagged, and the power of the test on its table."""
    if fitted.rows.delta < fitted.sigma:  # clipped at so small a delta, residuals are hardly more than signs
        fitted = fit(points, fitted.law)
    beside = doubts(points, fitted)
    if points.n > MOST_ROWS:  # drawn at random, but the same every time; enough to show what matters
        points = points.only(np.random.default_rng(0).choice(points.n, MOST_ROWS, replace=False))
        fitted = fit(points, fitted.law, fitted.rows.delta)
    directions, target, space = projected(points, fitted)
    lacking, draws = _lacking(points, fitted, space), draw(space)
    tested = [] if lacking else _tested(directions, space, draws)
    everything = range(len(directions))
    thresholds = np.full(len(directions), draws.threshold(everything, GROSS))
    if tested:
        thresholds[tested] = np.minimum(thresholds[tested], draws.threshold(tested, FALSE_ALARM))
    effect_of = partial(_effect, points, fitted, target)
    kinds = _kinds(directions, space, draws, tested, thresholds, effect_of)
    there = {each.status for each in kinds}
    # The status of the whole form: `not seen` needs a kind that could have been seen.
    status = next((each for each in (FLAGGED, NOT_SEEN) if each in there), UNSEEABLE)
    judged = ([tested] if tested else []) + [list(everything)] * (status == FLAGGED)
    p_values = [draws.p_value(each, float(space.shares()[each].max())) for each in judged]
    sentences = (*_sentences(fitted.law.name, kinds, lacking), *beside.sentences)
    return Misfit(
        law=fitted.law.name,
        status=status,
        p_value=min(p_values, default=None),
        target=target,
        kinds=kinds,
        patterns=tuple(patterns(points, fitted)),
        sentences=sentences,
        doubts=beside.sentences,
        doubt=beside.why,
    )


def _lacking(points: Points, fit: Fit, space: Projection) -> str:
    """Why no misfit can be seen at all; empty if some can."""
    seen = design(points, fit.law.columns)
    spread = seen.get("sd across the line", math.inf)
    if spread < SPREAD:
        line = "one ray of tokens to params, or one line of their logs"
        needed = f"(the sd across it is {spread:.2f}, {SPREAD} is needed)"
        return f"all rows lie near {line} {needed}, where a wrong form bends its own terms until it fits"
    if seen.get("sd across the line but for one row", math.inf) < STANDS * SPREAD:
        return "but for one row all lie near one line of log tokens against log params, and that row decides"
    if space.freedom < 2:
        return (
            f"{several(fit.n_points, 'row')} leave {fit.law.name} hardly anything that could differ from it"
        )
    return ""


def _tested(directions: Sequence[Departure], space: Projection, draws: NoiseDraws) -> list[int]:
    """The directions to try, the typical ones of each kind first: no more than half of what the law leaves.

    The first is always tested: by a misfit in its own direction the noise seems larger, and its power smaller.
    """
    kinds = [each.kind for each in directions]
    order = sorted(range(len(kinds)), key=lambda at: kinds[:at].count(kinds[at]))
    there = [at for at in order if space.directions[:, at].any()]
    seen = [at for at in there[1:] if _power(space, draws, at, [at]) >= SEEN]
    return [*there[:1], *seen][: max(1, space.freedom // 2)]


def _power(space: Projection, draws: NoiseDraws, at: int, tested: Sequence[int]) -> float:
    share = min(float(space.shares()[at]), 1.0)
    noise = space.noise * math.sqrt(max(1 - share, 0.0) * space.freedom / max(space.freedom - 1, 1))
    threshold = draws.threshold(tested, FALSE_ALARM)
    return power(replace(space, noise=noise), draws, at, _EFFECT, tested, threshold)


def _kinds(
    directions: Sequence[Departure],
    space: Projection,
    draws: NoiseDraws,
    tested: Sequence[int],
    thresholds: Array,
    effect_of: Callable[[Departure, float], float],
) -> tuple[DepartureKind, ...]:
    shares, kinds = space.shares(), list[DepartureKind]()
    for kind in dict.fromkeys(each.kind for each in directions):
        places = [at for at, each in enumerate(directions) if each.kind == kind]
        strongest = max(places, key=lambda at: shares[at] - thresholds[at])
        flagged = bool(shares[strongest] > thresholds[strongest]) and space.noise >= EXACT
        likely = _power(space, draws, places[0], tested) if tested else 0.0
        status, effect = NOT_SEEN if likely >= SEEN else UNSEEABLE, None
        if flagged:
            length = float(robust_line(space.directions[:, [strongest]], space.unclipped)[0])
            status = FLAGGED
            if abs(length * space.gains[strongest]) < _MOST:
                effect = effect_of(directions[strongest], length / float(space.sizes[strongest]))
        words, share = directions[strongest].words, float(shares[strongest])
        kinds.append(DepartureKind(kind, status, likely, words, share, effect))
    return tuple(kinds)


def _effect(points: Points, fitted: Fit, target: Mapping[str, float], cause: Departure, size: float) -> float:
    """By what share the true loss at the target would be above the law's if a departure of this size were the cause."""
    losses = points.columns["loss"] * np.exp(-size * cause.change[:-1])
    without = fit(points.with_loss(losses), fitted.law, fitted.rows.delta)
    there = {name: np.array([target[name]]) for name in fitted.law.columns}
    true = float(without.predict(there)[0]) * math.exp(size * cause.change[-1])
    return true / float(fitted.predict(there)[0]) - 1


def _flag(law: str, kinds: Sequence[DepartureKind]) -> tuple[str, ...]:
    flagged = sorted((each for each in kinds if each.status == FLAGGED), key=lambda kind: -kind.share)
    if not flagged:
        return ()
    first, *others = flagged
    squares = f"{first.share:.0%} of its residuals' squares"
    sentence = f"{law} does not fit: {squares} follow {_listed([first])} ({first.strongest})"
    if others:
        sentence += f"; {_listed(others)} would look alike, or is present too"
    if first.effect is None:
        return (sentence,)
    off = f"{abs(first.effect):.1%} too {'low' if first.effect > 0 else 'high'}"
    return sentence, f"if that is the cause, its {_FORECAST} is about {off}"


def _sentences(law: str, kinds: Sequence[DepartureKind], lacking: str) -> list[str]:
    sentences = [*_flag(law, kinds)]
    if lacking and sentences:
        return [*sentences, f"this design cannot show smaller misfits: {lacking}"]
    if lacking:
        return [f"this design cannot show a misfit: {lacking}; this is no evidence that {law} is right"]
    power = f"one that makes the {_FORECAST} {MATTERS:.0%} wrong would be flagged in "
    for status, words in ((NOT_SEEN, "is not seen"), (UNSEEABLE, "cannot be seen on this design")):
        there = [each for each in kinds if each.status == status]
        shares = ", ".join(f"{each.power:.0%}" for each in there) + " of such tables"
        if there[1:]:
            shares += ", in this order"
        if there:
            sentences.append(f"{_listed(there)} {words}: {power}{shares}")
    return sentences


def _listed(kinds: Sequence[DepartureKind]) -> str:
    named = [f"a{'n' if each.kind[0] in 'aeiou' else ''} {each.kind}" for each in kinds]
    return " or ".join([*filter(None, [", ".join(named[:-1])]), named[-1]])
