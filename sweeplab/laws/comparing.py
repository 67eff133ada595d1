"""Compare cells by their best trials; the null distribution repeats the choice of the best trial.

Studies whose cells do not differ are simulated and analyzed like the real one. The most significant difference of each
simulation sets the threshold (a parametric bootstrap of the maximal studentized difference; White 2000, A reality
check for data snooping).

Legend: C cells, P pairs of them, R means of a cell's trials under one seed, B draws.

Model: loss = cell + trial + seed + residual; the trials of a cell are normal draws. `trial_variance`, the variance of
trials, is estimated from the lower half of a cell's trials only: trials spoiled by a high learning rate say nothing
about the best ones, and trials that were pruned or diverged count as the highest. `residual_variance` is the variance
between seeds, after the effect of a seed on all cells; it does not shrink with the number of trials that share these
seeds. A cell's own variance is pooled with that of all cells at a weight of PRIOR degrees of freedom (after Smyth 2004,
Linear models and empirical Bayes methods, with a fixed weight), but never below the cell's own estimate. Degrees of
freedom are Welch's and Satterthwaite's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sweeplab.formatting import several

if TYPE_CHECKING:
    from pandas import DataFrame

Array = NDArray[np.float64]
Pairs = Sequence[tuple[int, int]]
FALSE_ALARM = 0.05  # of all that is tested together
PRIOR = 4.0  # degrees of freedom
DIFFERENT = "different"
NOT_SEEN = "no difference seen"
UNKNOWN = "undecided"
# Why a difference cannot be told from chance, and how to find out.
ONE_SEED = "no cell has two seeds; to find out, use `seeds: [0, 1, 2]` or `confirm`"
ONE_TRIAL = (
    "each cell has one trial of its search; to find out, use `trials_per_cell` or `confirm`"
)


@dataclass(frozen=True)
class Evidence:
    """The evidence for a statement about a difference or a winner.

    `n_seeds` is the smallest number of seeds of the compared configurations (0 if unknown). `selection` says how these
    were chosen. `tested_on` names the seeds and the split of the losses that decide; if no losses decide, it is empty
    and `why` gives the reason.
    """

    n_seeds: int
    selection: str
    tested_on: str
    verdict: str
    why: str = ""

    @property
    def basis(self) -> str:
        """Return the evidence in words, without the verdict."""
        parts = [self.selection]
        if self.n_seeds:
            parts.append(several(self.n_seeds, "seed"))
        if self.tested_on:
            parts.append(f"tested on {self.tested_on}")
        return ", ".join(parts)

    def in_words(self) -> str:
        """Return a clause with the evidence and the verdict, and with the reason if nothing was tested."""
        if self.tested_on:
            return f"{self.basis}: {self.verdict}"
        return f"{self.verdict}: {self.basis}; {self.why}"


def _mean_of(trial: Mapping[int, float]) -> float:
    return float(np.mean(list(trial.values())))


@dataclass(frozen=True)
class CellTrials:
    """The losses of a cell's trials that ended, by seed; `n_trials` counts pruned and diverged trials too."""

    losses: Sequence[Mapping[int, float]]
    n_trials: int

    @classmethod
    def of(cls, runs: DataFrame, n_trials: int) -> CellTrials:
        """Return the trials of a cell's runs that ended; `n_trials` counts pruned and diverged trials too."""
        losses: dict[tuple[str, int], dict[int, float]] = {}
        for cell, trial, seed, value in runs[["cell", "trial", "seed", "loss"]].itertuples(
            index=False
        ):
            losses.setdefault((str(cell), trial), {})[seed] = float(value)
        return cls(tuple(losses.values()), max(n_trials, len(losses)))

    @property
    def best(self) -> Mapping[int, float]:
        """Return the trial with the lowest mean."""
        return min(self.losses, key=_mean_of)


@dataclass(frozen=True)
class CellComparison:
    """The cells' best losses, [C], and intervals of the pairs' differences, the second minus the first, each [P].

    `best` is adjusted to all seeds. `selection_effect`, [P], is the part of a difference that is due to one cell having
    more trials (0 if the variance of trials is unknown). An interval is NaN if the difference cannot be tested. It
    covers the difference both with and without its selection effect: it excludes 0 only if both do. `level` is that of
    one interval; in one table of twenty, any interval errs.
    """

    best: Array
    selection_effect: Array
    low: Array
    high: Array
    level: float
    evidence: Evidence

    def evidence_of(self, at: int) -> Evidence:
        """Return the evidence for one pair's difference."""
        if self.evidence.verdict == UNKNOWN:
            return self.evidence
        return replace(self.evidence, verdict=DIFFERENT if self.significant[at] else NOT_SEEN)

    @property
    def significant(self) -> NDArray[np.bool_]:
        """Return whether each pair differs by more than chance, [P]."""
        return (self.low > 0) | (self.high < 0)


class _Estimates(NamedTuple):
    """The estimates for a table or for each draw, [C] or [B, C]."""

    best: Array
    trial_variance: Array
    residual_variance: Array


class _Model:
    """The linear model of the table, and of every draw: the numbers of trials, the seeds and the pairs."""

    def __init__(self, cells: Sequence[CellTrials], pairs: Pairs, is_searched: bool) -> None:
        self.n = len(cells)
        self.first, self.second = np.array(pairs, np.intp).reshape(-1, 2).T
        self.n_trials = [cell.n_trials for cell in cells]
        self.is_searched = is_searched or max(self.n_trials) > 1
        # Of the lower half of a cell's trials ten are enough.
        self.n_lowest = [min(len(cell.losses), cell.n_trials // 2 + 1, 10) for cell in cells]
        moments = np.zeros((self.n, 5))
        if self.is_searched:
            moments = np.array([*map(_moments, self.n_trials, self.n_lowest)])
        self.mean_lowest, self.variance_lowest, self.gap, self.gap_square, self.freedom = (
            moments.T
        )
        self.kept = []
        rows = []  # the cell, the seed and the mean
        for at, (cell, count) in enumerate(zip(cells, self.n_lowest, strict=True)):
            lowest = sorted(cell.losses, key=_mean_of)[:count]
            self.kept.append(lowest)
            for seed in sorted({seed for trial in lowest for seed in trial}):
                rows.append(
                    (
                        at,
                        seed,
                        np.mean([trial[seed] for trial in lowest if seed in trial]),
                    )
                )
        self.row_seeds = [seed for _, seed, _ in rows]
        self.seeds = sorted({*self.row_seeds})
        self.means = np.array([loss for *_, loss in rows])
        self.member = np.eye(self.n)[[at for at, *_ in rows]]  # [R, C]
        # A column for each cell, and for each seed but the first if cells stay comparable.
        design = self.member
        of_seeds = (
            np.equal.outer(self.row_seeds, self.seeds[1:]).astype(float).reshape(len(rows), -1)
        )
        both = np.hstack([self.member, of_seeds])
        if len(self.seeds) > 1 and np.linalg.matrix_rank(both) == both.shape[1] < len(rows):
            design = both
        self.solve = np.linalg.pinv(design)  # [columns, R]
        self.residual = np.eye(len(rows)) - design @ self.solve
        # In a balanced table with n seeds these are (n - 1) (C - 1) / C each.
        self.seed_freedom = np.clip(np.diag(self.residual), 0.0, None) @ self.member
        self.seed_freedom[self.seed_freedom < 1e-9] = 0.0
        self.variance_weights = (
            self.solve[self.second] - self.solve[self.first]
        ) ** 2 @ self.member  # [P, C]

    def estimates(self) -> _Estimates:
        """Return the table's estimates; the effect of a seed on all cells is removed from the best trials' means."""
        effects = dict.fromkeys(self.seeds, 0.0)
        effects |= dict(zip(self.seeds[1:], (self.solve @ self.means)[self.n :], strict=False))
        center = np.mean([effects[seed] for seed in self.row_seeds])
        best = np.zeros(self.n)
        gaps = np.zeros(self.n)
        for at, kept in enumerate(self.kept):
            means = [
                np.mean([loss - effects[seed] + center for seed, loss in each.items()])
                for each in kept
            ]
            best[at], gaps[at] = means[0], sum(means) - len(means) * means[0]
        return self._estimated(best, gaps, self.means)

    def simulate(
        self, random: np.random.Generator, trial: Array, residual: Array
    ) -> _Estimates:
        """Return the estimates of simulated tables whose cells do not differ, from both variances, [B, C]."""
        n = len(trial)
        means = random.standard_normal((n, len(self.means))) * np.sqrt(residual @ self.member.T)
        best = means @ self.solve[: self.n].T
        gaps = np.zeros((n, self.n))
        if self.is_searched:
            for at, (n_trials, count) in enumerate(
                zip(self.n_trials, self.n_lowest, strict=True)
            ):
                lowest = _draw_lowest(n_trials, count, n, random) * np.sqrt(trial[:, at, None])
                best[:, at] += lowest[:, 0]
                gaps[:, at] = (lowest - lowest[:, :1]).sum(1)
        return self._estimated(best, gaps, means)

    def _estimated(self, best: Array, gaps: Array, means: Array) -> _Estimates:
        measured = self.freedom > 0
        known = self.seed_freedom > 0
        sd = np.divide(gaps, self.gap, out=np.zeros_like(gaps), where=measured)
        squares = (means @ self.residual) ** 2 @ self.member
        residual = np.divide(
            squares, self.seed_freedom, out=np.zeros_like(squares), where=known
        )
        return _Estimates(best, sd**2 / np.where(measured, self.gap_square, 1.0), residual)

    def selection_effect(self, trial_variance: Array) -> Array:
        """Return the part of each pair's difference that is due to the numbers of trials, [..., P]."""
        expected = self.mean_lowest * np.sqrt(trial_variance)
        return expected[..., self.second] - expected[..., self.first]

    def differences(self, estimates: _Estimates) -> tuple[Array, Array, Array, Array]:
        """Return each pair's difference, selection effect, standard error and degrees of freedom, each [..., P]."""
        residual, residual_freedom = _pooled(estimates.residual_variance, self.seed_freedom)
        variance = residual @ self.variance_weights.T
        part = (residual**2 / residual_freedom) @ self.variance_weights.T**2
        difference = estimates.best[..., self.second] - estimates.best[..., self.first]
        effect = np.zeros_like(difference)
        if self.is_searched:
            trial, trial_freedom = _pooled(estimates.trial_variance, self.freedom)
            effect = self.selection_effect(trial)
            of_trials = self.variance_lowest * trial
            variance = variance + of_trials[..., self.first] + of_trials[..., self.second]
            parts = of_trials**2 / trial_freedom
            part = part + parts[..., self.first] + parts[..., self.second]
        freedom = np.divide(variance**2, part, out=np.ones_like(part), where=part > 0)
        return difference, effect, np.sqrt(variance), freedom

    def pair_rate(self, estimates: _Estimates) -> float:
        """Return the false-alarm rate of each pair such that FALSE_ALARM of tables have any."""
        from scipy.special import stdtr

        random = np.random.default_rng(0)
        # Fewer draws of many pairs, for the memory.
        n = int(np.clip(2_000_000 // len(self.first), 199, 1999))

        def plausible(variance: Array, freedom: Array) -> Array:
            pooled, known = _pooled(variance, freedom)
            return pooled * known / (2 * random.standard_gamma(known / 2, (n, self.n)))

        trial = np.zeros((n, self.n))
        if self.is_searched:
            trial = plausible(estimates.trial_variance, self.freedom)
        simulated = self.simulate(
            random, trial, plausible(estimates.residual_variance, self.seed_freedom)
        )
        difference, effect, error, freedom = self.differences(simulated)
        agree = difference * (difference - effect) > 0
        least = np.where(
            agree, np.minimum(np.abs(difference), np.abs(difference - effect)), 0.0
        )
        sizes = np.divide(least, error, out=np.where(least > 0, np.inf, 0.0), where=error > 0)
        lowest = 2 * stdtr(freedom, -sizes).min(1)
        return min(FALSE_ALARM, float(np.quantile(lowest, FALSE_ALARM)))


def compare(
    cells: Sequence[CellTrials], pairs: Pairs, is_searched: bool = False
) -> CellComparison:
    """Return which pairs of cells differ; all pairs together have one false-alarm rate.

    `is_searched` says that a cell's one trial was drawn from a search. The result is deterministic.
    """
    from scipy.special import stdtrit

    model = _Model(cells, pairs, is_searched)
    estimates = model.estimates()
    selection = "each cell's one trial, without a search"
    tested_on = "the same seeds' validation losses"
    if model.is_searched:
        fewest, most = min(model.n_trials), max(model.n_trials)
        many = f"{fewest} to {most}" if fewest < most else str(most)
        selection = f"the best of {many} trials of each cell"
        if most == 1:
            selection = "the only trial of each cell"
        tested_on += ", which also selected it: the null distribution repeats the selection"
    evidence = Evidence(min(len(cell.best) for cell in cells), selection, tested_on, NOT_SEEN)
    why = ""
    if not model.seed_freedom.any():
        why = ONE_SEED
    elif model.is_searched and not model.freedom.any():
        why = ONE_TRIAL
    if why or not pairs:
        effect = np.zeros(len(pairs))
        none = np.full(len(pairs), np.nan)
        if model.freedom.any():
            effect = model.selection_effect(_pooled(estimates.trial_variance, model.freedom)[0])
        unknown = replace(evidence, tested_on="", verdict=UNKNOWN, why=why)
        return CellComparison(estimates.best, effect, none, none, np.nan, unknown)
    rate = model.pair_rate(estimates)
    difference, effect, error, freedom = model.differences(estimates)
    half = -stdtrit(freedom, rate / 2) * error
    without = difference - effect
    low, high = np.minimum(difference, without) - half, np.maximum(difference, without) + half
    compared = CellComparison(estimates.best, effect, low, high, 1 - rate, evidence)
    if compared.significant.any():
        return replace(compared, evidence=replace(evidence, verdict=DIFFERENT))
    return compared


def _pooled(variance: Array, freedom: Array) -> tuple[Array, Array]:
    whole = freedom.sum()
    shared = (variance @ freedom / whole)[..., None]
    pooled = (PRIOR * shared + freedom * variance) / (PRIOR + freedom)
    return np.maximum(pooled, variance), np.minimum(PRIOR + freedom, whole)


def _draw_lowest(n_trials: int, count: int, n: int, random: np.random.Generator) -> Array:
    """Draw the `count` lowest of `n_trials` standard normals in rising order, [n, count] (Renyi 1953)."""
    from scipy.special import ndtri

    gaps = random.standard_exponential((n, count)) / (n_trials - np.arange(count))
    return ndtri(-np.expm1(-np.cumsum(gaps, 1)))


@cache
def _moments(n_trials: int, count: int) -> tuple[float, ...]:
    """Mean and variance of the lowest of n standard normals, and moments of the sum of gaps above it.

    The moments are its mean, its mean square over the squared mean, and its degrees of freedom as a variance estimate.
    """
    drawn = _draw_lowest(n_trials, count, 20_000, np.random.default_rng(0))
    first = drawn[:, 0]
    if count == 1:
        return first.mean(), first.var(), 1.0, 1.0, 0.0
    gaps = (drawn - drawn[:, :1]).sum(1)
    varied = gaps.var() / gaps.mean() ** 2
    return first.mean(), first.var(), gaps.mean(), 1 + varied, 1 / (2 * varied)
