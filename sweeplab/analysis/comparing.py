"""Compare cells by their best trials; the null distribution repeats the choice of the best trial.

Studies whose cells do not differ are simulated and analyzed like the real one. The most significant difference of each
simulation sets the threshold (a parametric bootstrap of the maximal studentized difference; White 2000, A reality
check for data snooping).

Legend: C cells, P pairs of them, R means of a cell's trials under one seed, B draws.

Model: loss = cell + trial + seed + rest; the trials of a cell are normal draws. `spread`, the variance of trials, is
estimated from the lower half of a cell's trials only: trials spoiled by a high learning rate say nothing about the
best ones, and trials that were pruned or diverged count as the highest. `rest` is the residual variance between seeds,
after the effect of a seed on all cells; it does not shrink with the number of trials that share these seeds.
A cell's own variance is pooled with that of all cells at a weight of PRIOR degrees of freedom (after Smyth 2004, Linear
models and empirical Bayes methods, with a fixed weight), but never below the cell's own estimate. Degrees of freedom
are Welch's and Satterthwaite's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sweeplab.records.evidence import DIFFERENT, NOT_SEEN, ONE_SEED, ONE_TRIAL, UNKNOWN, Evidence, best_of

if TYPE_CHECKING:
    from pandas import DataFrame

Array = NDArray[np.float64]
FALSE_ALARM = 0.05  # of all pairs together
PRIOR = 4.0  # degrees of freedom
_MOST_READ = 10  # trials of a cell: the lowest
_MOST_DRAWS, _FEWEST_DRAWS, _MOST_NUMBERS = 1999, 199, 2_000_000
_NORMALS = 20_000
_NOT_CHOSEN = "each cell's one trial, without a search"
_CHOSEN = ", which chose it: the null allows for the choice"


@dataclass(frozen=True)
class Tried:
    """The losses of a cell's trials that ended, by seed; `n_trials` counts pruned and diverged trials too."""

    losses: Sequence[Mapping[int, float]]
    n_trials: int

    @classmethod
    def of(cls, runs: DataFrame, loss: str, n_trials: int) -> Tried:
        """Return the trials of a cell's runs that ended; `n_trials` counts pruned and diverged trials too."""
        losses: dict[tuple[str, int], dict[int, float]] = {}
        for cell, trial, seed, each in runs[["cell", "trial", "seed", loss]].itertuples(index=False):
            losses.setdefault((str(cell), int(trial)), {})[int(seed)] = float(each)
        return cls(tuple(losses.values()), max(n_trials, len(losses)))

    @property
    def best(self) -> Mapping[int, float]:
        """Return the trial of the lowest mean."""
        return min(self.losses, key=lambda each: float(np.mean(list(each.values()))))


@dataclass(frozen=True)
class Compared:
    """The cells' best losses, [C], and intervals of the pairs' differences, the second minus the first, each [P].

    `best` is adjusted to all seeds; `owed`, [P], is the part of a difference that is due to one cell having more trials
    (0 if the spread of trials is unknown). Intervals are NaN where nothing can be told. Each covers the difference both
    as it is and without its part that is due to the choice of the best: it excludes 0 only if both do. `level` is that
    of one interval; together they err in one table of twenty.
    """

    best: Array
    owed: Array
    low: Array
    high: Array
    level: float
    evidence: Evidence

    def of(self, at: int) -> Evidence:
        """Return the evidence for one pair's difference."""
        verdict = self.evidence.verdict
        if verdict != UNKNOWN:
            verdict = DIFFERENT if self.told[at] else NOT_SEEN
        return replace(self.evidence, verdict=verdict)

    @property
    def told(self) -> NDArray[np.bool_]:
        """Return whether each pair differs by more than chance, [P]."""
        return np.asarray((self.low > 0) | (self.high < 0))


class _Estimates(NamedTuple):
    """The estimates for a table or for each draw, [C] or [B, C]."""

    best: Array
    spread: Array
    rest: Array


class _Comparison:
    """What the table and every draw have in common: numbers of trials, seeds and pairs."""

    def __init__(self, cells: Sequence[Tried], pairs: Sequence[tuple[int, int]], is_searched: bool) -> None:
        self.n = len(cells)
        self.first, self.second = np.array(pairs, np.intp).reshape(-1, 2).T
        self.is_searched = is_searched or any(each.n_trials > 1 for each in cells)
        self.n_trials = [each.n_trials for each in cells]
        self.read = [min(len(each.losses), each.n_trials // 2 + 1, _MOST_READ) for each in cells]
        lowest = [_lowest(each.n_trials, read) for each, read in zip(cells, self.read, strict=True)]
        columns: Array = np.array(lowest).T if self.is_searched else np.zeros((5, self.n))
        self.luck, self.of_lowest, self.gaps, self.squared, self.freedom = iter(columns)
        self.kept = [
            sorted(each.losses, key=lambda loss: float(np.mean(list(loss.values()))))[:read]
            for each, read in zip(cells, self.read, strict=True)
        ]
        rows = [
            (at, seed, float(np.mean([each[seed] for each in kept if seed in each])))
            for at, kept in enumerate(self.kept)
            for seed in sorted({seed for each in kept for seed in each})
        ]
        self.seeds = sorted({seed for _, seed, _ in rows})
        self.means = np.array([loss for *_, loss in rows])
        self.member = np.array([[float(at == cell) for cell in range(self.n)] for at, *_ in rows])  # [R, C]
        self.seed_of = [seed for _, seed, _ in rows]
        design = self._design(self.seed_of)
        self.solve = np.linalg.pinv(design)  # [columns, R]
        self.residual = np.eye(len(rows)) - design @ self.solve
        # Of a balanced table (n - 1) (C - 1) / C each, n seeds.
        self.seed_freedom = np.clip(np.diag(self.residual), 0.0, None) @ self.member
        self.seed_freedom[self.seed_freedom < 1e-9] = 0.0
        contrasts = self.solve[self.second] - self.solve[self.first]
        self.leans = contrasts**2 @ self.member  # [P, C]

    def _design(self, seeds: Sequence[int]) -> Array:
        """Return the design: a column for each cell, and for each seed but the first if cells stay comparable."""
        of_seeds = [[float(own == seed) for seed in self.seeds[1:]] for own in seeds]
        both = np.hstack([self.member, np.array(of_seeds).reshape(len(seeds), -1)])
        is_paired = len(self.seeds) > 1 and np.linalg.matrix_rank(both) == both.shape[1] < len(seeds)
        return both if is_paired else self.member

    def estimates(self) -> _Estimates:
        """Return the table's estimates; the effect of a seed on all cells is removed from the best trials' means."""
        effects = dict.fromkeys(self.seeds, 0.0)
        effects |= dict(zip(self.seeds[1:], (self.solve @ self.means)[self.n :], strict=False))
        center = float(np.mean([effects[seed] for seed in self.seed_of]))
        effects = {seed: effect - center for seed, effect in effects.items()}
        best, gaps = [], []
        for kept in self.kept:
            means = [float(np.mean([loss - effects[seed] for seed, loss in each.items()])) for each in kept]
            best.append(means[0])
            gaps.append(sum(means) - len(means) * means[0])
        return _Estimates(np.array(best), self._spread(np.array(gaps)), self._rest(self.means))

    def drawn(self, random: np.random.Generator, spread: Array, rest: Array) -> _Estimates:
        """Return the estimates of simulated tables whose cells do not differ; variances are [B, C]."""
        n = len(spread)
        seen = random.standard_normal((n, len(self.means))) * np.sqrt(rest @ self.member.T)
        best, gaps = seen @ self.solve[: self.n].T, np.zeros((n, self.n))
        if self.is_searched:
            for at, (own, read) in enumerate(zip(self.n_trials, self.read, strict=True)):
                lowest = _draw_lowest(own, read, n, random) * np.sqrt(spread[:, at, None])
                best[:, at] += lowest[:, 0]
                gaps[:, at] = (lowest - lowest[:, :1]).sum(1)
        return _Estimates(best, self._spread(gaps), self._rest(seen))

    def _spread(self, gaps: Array) -> Array:
        measured = self.freedom > 0
        sd = np.divide(gaps, self.gaps, out=np.zeros_like(gaps), where=measured)
        return np.asarray(sd**2 / np.where(measured, self.squared, 1.0))

    def _rest(self, means: Array) -> Array:
        squares = (means @ self.residual) ** 2 @ self.member
        known = self.seed_freedom > 0
        return np.asarray(np.divide(squares, self.seed_freedom, out=np.zeros_like(squares), where=known))

    def owed(self, found: _Estimates) -> Array:
        """Return the part of each pair's difference that is due to the numbers of trials, [..., P]."""
        if not self.is_searched or not self.freedom.any():
            return np.zeros((*found.best.shape[:-1], len(self.first)))
        return self._owed(_pooled(found.spread, self.freedom)[0])

    def _owed(self, spread: Array) -> Array:
        luck = self.luck * np.sqrt(spread)
        return np.asarray(luck[..., self.second] - luck[..., self.first])

    def judge(self, found: _Estimates) -> tuple[Array, Array, Array, Array]:
        """Return each pair's difference, its part due to chance, its error and degrees of freedom, each [..., P]."""
        rest, of_rest = _pooled(found.rest, self.seed_freedom)
        error = rest @ self.leans.T
        part = (rest**2 / of_rest) @ self.leans.T**2
        apart = found.best[..., self.second] - found.best[..., self.first]
        owed = np.zeros_like(apart)
        if self.is_searched:
            spread, of_spread = _pooled(found.spread, self.freedom)
            owed, own = self._owed(spread), self.of_lowest * spread
            error = error + own[..., self.first] + own[..., self.second]
            parts = own**2 / of_spread
            part = part + parts[..., self.first] + parts[..., self.second]
        freedom = np.divide(error**2, part, out=np.ones_like(part), where=part > 0)
        return apart, owed, np.sqrt(error), freedom

    def tails(self, found: _Estimates) -> Array:
        """Return the two-sided p-value of each pair by itself, [..., P]."""
        from scipy.special import stdtr

        apart, owed, error, freedom = self.judge(found)
        agree = apart * (apart - owed) > 0
        least = np.where(agree, np.minimum(np.abs(apart), np.abs(apart - owed)), 0.0)
        with np.errstate(divide="ignore"):
            sizes = np.divide(least, error, out=np.where(least > 0, np.inf, 0.0), where=error > 0)
        return np.asarray(2 * stdtr(freedom, -sizes))

    def rate(self, found: _Estimates) -> float:
        """Return the false-alarm rate of each pair such that one table in twenty has any false alarm."""
        random = np.random.default_rng(0)
        n = int(np.clip(_MOST_NUMBERS // len(self.first), _FEWEST_DRAWS, _MOST_DRAWS))

        def plausible(variance: Array, freedom: Array) -> Array:
            pooled, known = _pooled(variance, freedom)
            return pooled * known / (2 * random.standard_gamma(known / 2, (n, self.n)))

        spread = plausible(found.spread, self.freedom) if self.is_searched else np.zeros((n, self.n))
        drawn = self.drawn(random, spread, plausible(found.rest, self.seed_freedom))
        return min(FALSE_ALARM, float(np.quantile(self.tails(drawn).min(1), FALSE_ALARM)))


def compare(cells: Sequence[Tried], pairs: Sequence[tuple[int, int]], is_searched: bool = False) -> Compared:
    """Return which pairs of cells differ; all pairs together have one false-alarm rate.

    `is_searched` says that a cell's one trial was drawn from a search. The result is deterministic.
    """
    from scipy.special import stdtrit

    this = _Comparison(cells, pairs, is_searched)
    found = this.estimates()
    evidence = Evidence(
        n_seeds=min(len(each.best) for each in cells),
        selection=best_of(max(this.n_trials), fewest=min(this.n_trials)) if this.is_searched else _NOT_CHOSEN,
        tested_on="the same seeds' validation losses" + (_CHOSEN if this.is_searched else ""),
        verdict=NOT_SEEN,
    )
    why = ""
    if not this.seed_freedom.any():
        why = ONE_SEED
    elif this.is_searched and not this.freedom.any():
        why = ONE_TRIAL
    if why or not pairs:
        none = np.full(len(pairs), np.nan)
        unknown = replace(evidence, tested_on="", verdict=UNKNOWN, why=why)
        return Compared(found.best, this.owed(found), none, none, np.nan, unknown)
    rate = this.rate(found)
    apart, owed, error, freedom = this.judge(found)
    reach = -stdtrit(freedom, rate / 2) * error
    low, high = np.minimum(apart, apart - owed) - reach, np.maximum(apart, apart - owed) + reach
    compared = Compared(found.best, owed, low, high, 1 - rate, evidence)
    return (
        replace(compared, evidence=replace(evidence, verdict=DIFFERENT)) if compared.told.any() else compared
    )


def _pooled(variance: Array, freedom: Array) -> tuple[Array, Array]:
    """Return each cell's variance, partly pooled over all cells, and its degrees of freedom."""
    whole = float(freedom.sum())
    shared = (variance @ freedom / whole)[..., None]
    pooled = (PRIOR * shared + freedom * variance) / (PRIOR + freedom)
    return np.maximum(pooled, variance), np.minimum(PRIOR + freedom, whole)


def _draw_lowest(n_trials: int, read: int, n: int, random: np.random.Generator) -> Array:
    """Draw the `read` lowest of `n_trials` standard normals in rising order, [n, read] (Renyi 1953)."""
    from scipy.special import ndtri

    gaps = random.standard_exponential((n, read)) / (n_trials - np.arange(read))
    return np.asarray(ndtri(-np.expm1(-np.cumsum(gaps, 1))))


@cache
def _lowest(n_trials: int, read: int) -> tuple[float, ...]:
    """Return mean and variance of the lowest of n standard normals, and moments of the sum of gaps above it.

    The moments are its mean, its mean square over the squared mean, and its degrees of freedom as a spread estimate.
    """
    drawn = _draw_lowest(n_trials, read, _NORMALS, np.random.default_rng(0))
    first = drawn[:, 0]
    if read == 1:
        return float(first.mean()), float(first.var()), 1.0, 1.0, 0.0
    gaps = (drawn - drawn[:, :1]).sum(1)
    varied = float(gaps.var() / gaps.mean() ** 2)
    return float(first.mean()), float(first.var()), float(gaps.mean()), 1 + varied, 1 / (2 * varied)
