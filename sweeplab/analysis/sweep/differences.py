"""Whether losses differ by more than luck: one study's from another's, and a study's cells from each other.

The best trial of a cell is luck in two ways: which hyperparameters were drawn, and what the seed did. Cells that two
studies share differ by both, so the differences over several cells have them in their spread; seeds alone have only
the second, and say no more than that these two trials differ.

Losses of different tasks, such as the next token's and a hidden one's, are ranked apart: they are of unlike things.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame

from sweeplab.analysis.fit.intervals import student
from sweeplab.analysis.sweep.trials import Sweep, has_ended
from sweeplab.analysis.trials import TRIAL, VALUED, finite, only_follows, tasks_of
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import TABLE

DIFFERENT, NOT_SEEN, UNKNOWN = "different", "no difference seen", "cannot be told"
_UNKNOWN = (math.nan, math.nan)
FALSE_ALARM = 0.05  # over all pairs of studies
ALL_CELLS = "all shared cells"
MEASURES = {"best": "best_val_loss", "final": "final_val_loss"}


@dataclass(frozen=True)
class LossDifference:
    """How far study `b` lies above study `a`, in nats per token, with an interval of `level`.

    `low` and `high` are NaN, and `why` says the reason, where it cannot be told.
    """

    a: str
    b: str
    cell: str
    loss_a: float
    loss_b: float
    low: float
    high: float
    level: float
    n: int
    why: str = ""

    @property
    def difference(self) -> float:
        """Return by how much the second study's loss is higher."""
        return self.loss_b - self.loss_a

    @property
    def verdict(self) -> str:
        """Say whether the difference is one."""
        if self.why:
            return UNKNOWN
        return NOT_SEEN if self.low <= 0 <= self.high else DIFFERENT


@dataclass(frozen=True)
class SeedSpread:
    """The standard deviation of one seed's loss around its trial's mean, pooled over a study's trials."""

    sd: float
    freedom: int


def differences(sweeps: Sequence[Sweep], at: str = "best") -> list[LossDifference]:
    """Return the differences of every pair of studies: over all cells they share, then cell by cell.

    `at` is the evaluation that values a run. Several pairs share one rate of false alarms (Bonferroni).

    Raises:
        BadInput: there are fewer than two studies.
    """
    if len(sweeps) < 2:
        raise BadInput("a comparison needs two studies or more")
    pairs = list(itertools.combinations(sweeps, 2))
    level = 1 - FALSE_ALARM / len(pairs)
    return [each for a, b in pairs for each in _of_pair(a, b, at, level)]


def seed_spread(sweep: Sweep, at: str = "best") -> SeedSpread:
    """Return how far the seeds of a study's trials lie apart; NaN where no trial has two."""
    losses = _losses(sweep, at)
    by_trial = losses.groupby(TRIAL)["loss"]
    freedom = int((by_trial.count() - 1).clip(lower=0).sum())
    if not freedom:
        return SeedSpread(math.nan, 0)
    squares = float(((losses["loss"] - by_trial.transform("mean")) ** 2).sum())
    return SeedSpread(math.sqrt(squares / freedom), freedom)


def settings(sweeps: Sequence[Sweep]) -> dict[str, list[str]]:
    """Return the hyperparameters that are one in each study and not the same in all, with each study's value."""
    found = {}
    for name in TABLE:
        values = [{str(each) for each in sweep.runs.get(name, ())} for sweep in sweeps]
        if name == "seed" or all(only_follows(sweep.runs, name) for sweep in sweeps):
            continue
        if all(len(each) == 1 for each in values) and len(set().union(*values)) > 1:
            found[name] = [next(iter(each)) for each in values]
    return found


def _of_pair(a: Sweep, b: Sweep, at: str, level: float) -> list[LossDifference]:
    """Return the difference over all cells that two studies share, and of several the difference in each."""
    bests, spreads = [_bests(each, at) for each in (a, b)], [seed_spread(each, at) for each in (a, b)]
    without = [each.name for each, spread in zip((a, b), spreads, strict=True) if not spread.freedom]
    why = f"no trial of {' and '.join(without)} has two seeds" if without else ""
    cells = []
    for cell in (each for each in bests[0] if each in bests[1]):
        (loss_a, n_a), (loss_b, n_b) = bests[0][cell], bests[1][cell]
        ends = _UNKNOWN if without else _welch(loss_b - loss_a, (n_a, n_b), spreads, level)
        cells.append(LossDifference(a.name, b.name, cell, loss_a, loss_b, *ends, level, min(n_a, n_b), why))
    if len(cells) == 1:
        return cells
    if not cells:
        why = "they have no cell in common with a trial that ended"
        return [LossDifference(a.name, b.name, ALL_CELLS, *_UNKNOWN, *_UNKNOWN, level, 0, why)]
    # Over all cells: the mean difference, by Student's t over cells.
    apart, n = np.array([each.difference for each in cells]), len(cells)
    reach = student(n - 1, level) * apart.std(ddof=1) / math.sqrt(n)
    loss_a, loss_b = (
        float(np.mean([getattr(each, name) for each in cells])) for name in ("loss_a", "loss_b")
    )
    ends = (apart.mean() - reach, apart.mean() + reach)
    return [LossDifference(a.name, b.name, ALL_CELLS, loss_a, loss_b, *ends, level, n), *cells]


def _welch(
    apart: float, counts: Sequence[int], spreads: Sequence[SeedSpread], level: float
) -> tuple[float, float]:
    """Return the interval of two trials' difference by their seeds: Welch's, with each study's pooled spread."""
    variances = [spread.sd**2 / count for spread, count in zip(spreads, counts, strict=True)]
    whole = sum(variances)
    parts = variances[0] ** 2 / spreads[0].freedom + variances[1] ** 2 / spreads[1].freedom
    reach = student(whole**2 / parts if parts else math.inf, level) * math.sqrt(whole)
    return apart - reach, apart + reach


def _bests(sweep: Sweep, at: str) -> dict[str, tuple[float, int]]:
    """Return the loss of each cell's best trial, the mean over its seeds, and how many these are."""
    by_cell = _of_best_trials(sweep, at).groupby("cell", sort=False)["loss"].agg(["mean", "count"])
    return {str(cell): (float(loss), int(n_seeds)) for cell, loss, n_seeds in by_cell.itertuples()}


def _of_best_trials(sweep: Sweep, at: str) -> DataFrame:
    """Return the loss of each run of the best trial of each cell that has one."""
    losses = _losses(sweep, at)
    means = losses.groupby(TRIAL, sort=False)["loss"].mean().reset_index()
    best = means.loc[means.groupby("cell", sort=False)["loss"].idxmin(), TRIAL]
    return losses.merge(best, on=TRIAL)


def _losses(sweep: Sweep, at: str) -> DataFrame:
    """Return the loss of each run of the trials that ended."""
    runs = sweep.runs.assign(loss=finite(sweep.runs, MEASURES[at]))
    ended = sweep.trials.loc[has_ended(sweep.trials), TRIAL]
    return runs[runs["state"].isin(VALUED) & runs["loss"].notna()].merge(ended, on=TRIAL)


Array = NDArray[np.float64]
ONE_SEED = "no cell has two seeds"


@dataclass(frozen=True)
class RankedCell:
    """A cell by its best trial: the mean of its seeds' losses, and how far they lie apart.

    `group` has the number of each group (from 0) that it is in: cells that share one are not told apart.
    """

    cell: str
    loss: float
    sd: float
    n_seeds: int
    n_params: float
    values: Mapping[Any, Any]
    group: tuple[int, ...] = ()


@dataclass(frozen=True)
class Ranking:
    """The cells of one task, the best first, and the difference of every two: the later above the earlier."""

    task: str
    cells: tuple[RankedCell, ...]
    differences: tuple[LossDifference, ...]

    def between(self, one: str, other: str) -> LossDifference:
        """Return how far `other` lies above `one`."""
        known = {(each.a, each.b): each for each in self.differences}
        if (one, other) in known:
            return known[one, other]
        found = known[other, one]
        turned = replace(found, a=one, b=other, loss_a=found.loss_b, loss_b=found.loss_a)
        return replace(turned, low=-found.high, high=-found.low)


def rankings(sweep: Sweep, at: str = "best") -> list[Ranking]:
    """Return a ranking for each task of the study, each by the cells' best trials; `at` values a run, best or final."""
    kept = _of_best_trials(sweep, at)
    if kept.empty:
        return []
    return [_ranking(str(task), runs) for task, runs in kept.groupby(tasks_of(kept), sort=False)]


def bits_per_byte(ranked: RankedCell) -> float:
    """Return a cell's loss in bits per byte of what its runs were evaluated on; NaN where they do not say it."""
    bits, nats = (
        float(ranked.values.get(name, math.nan)) for name in ("best_bits_per_byte", MEASURES["best"])
    )
    return ranked.loss * bits / nats


def _ranking(task: str, runs: DataFrame) -> Ranking:
    found, by_seed = [], {}
    for cell, own in runs.groupby("cell", sort=False):
        losses = own["loss"].to_numpy(float)
        sd = float(losses.std(ddof=1)) if len(losses) > 1 else math.nan
        size = float(finite(own, "n_params").iloc[0])
        mean, values = float(losses.mean()), own.iloc[0].to_dict()
        found.append(RankedCell(str(cell), mean, sd, len(losses), size, values))
        by_seed[str(cell)] = dict(zip(own["seed"].astype(int), losses.tolist(), strict=True))
    found.sort(key=lambda each: each.loss)
    cells = [each.cell for each in found]
    differences = _differences(cells, by_seed)
    groups = list(_groups(cells, differences))
    placed = (
        replace(each, group=tuple(at for at, group in enumerate(groups) if each.cell in group))
        for each in found
    )
    return Ranking(task, tuple(placed), tuple(differences))


def _differences(cells: Sequence[str], losses: Mapping[str, Mapping[int, float]]) -> list[LossDifference]:
    """Return the difference of every two cells with its interval; seeds are paired where that can be.

    Loss = cell + seed + rest, by least squares; without the seed where cells have no seeds in common. The rest's
    variance is pooled over all cells, but a difference has no less than its own two cells show: some cells train
    less steadily than others. Intervals are Student's, at the level at which Holm's procedure tries each: it is one
    that leaves 0 out where, and only where, the procedure tells the two apart.
    """
    from scipy.stats import t

    pairs = list(itertools.combinations(range(len(cells)), 2))
    rows = [(at, seed, loss) for at, cell in enumerate(cells) for seed, loss in losses[cell].items()]
    design, is_paired = _design(len(cells), rows)
    values = np.array([loss for *_, loss in rows])
    freedom = len(rows) - design.shape[1]
    if freedom <= 0:
        mean = [float(np.mean(list(losses[cell].values()))) for cell in cells]
        unknown = (*_UNKNOWN, math.nan, 1, ONE_SEED)
        return [LossDifference(cells[a], cells[b], "", mean[a], mean[b], *unknown) for a, b in pairs]
    inverse = np.linalg.inv(design.T @ design)
    effects = inverse @ design.T @ values
    n_cells = len(cells)
    level = float(np.mean(values - design[:, :n_cells] @ effects[:n_cells]))  # a seed's part of a loss
    pooled = float(((values - design @ effects) ** 2).sum()) / freedom
    apart = np.array([effects[b] - effects[a] for a, b in pairs])
    spread = np.array([inverse[a, a] + inverse[b, b] - 2 * inverse[a, b] for a, b in pairs])
    own = [_own_variance(losses[cells[a]], losses[cells[b]], is_paired) for a, b in pairs]
    error = np.sqrt(np.maximum(pooled * spread, own))
    sizes = np.divide(np.abs(apart), error, where=error > 0, out=np.full_like(apart, np.inf))
    levels = 1 - _holm(2 * t.sf(sizes, freedom))
    reach = t.ppf((1 + levels) / 2, freedom) * error
    found = []
    for k, (a, b) in enumerate(pairs):
        ends, n = (apart[k] - reach[k], apart[k] + reach[k]), min(len(losses[cells[each]]) for each in (a, b))
        means = (level + effects[a], level + effects[b])
        found.append(LossDifference(cells[a], cells[b], "", *means, *ends, float(levels[k]), n))
    return found


def _design(n_cells: int, rows: Sequence[tuple[int, int, float]]) -> tuple[Array, bool]:
    """Return the design: a column for each cell, and each seed but the first where cells stay comparable."""
    seeds = sorted({seed for _, seed, _ in rows})
    of_cells = np.array([[float(at == cell) for cell in range(n_cells)] for at, *_ in rows])
    of_seeds = np.array([[float(own == seed) for seed in seeds[1:]] for _, own, _ in rows])
    both = np.hstack([of_cells, of_seeds.reshape(len(rows), -1)])
    is_paired = len(seeds) > 1 and np.linalg.matrix_rank(both) == both.shape[1] < len(rows)
    return (both, True) if is_paired else (of_cells, False)


def _own_variance(a: Mapping[int, float], b: Mapping[int, float], is_paired: bool) -> float:
    """Return the variance of a difference of means by its own two cells; 0 where one seed shows none."""
    if is_paired:
        apart = [b[seed] - a[seed] for seed in a if seed in b]
        return float(np.var(apart, ddof=1)) / len(apart) if len(apart) > 1 else 0.0
    return sum(float(np.var(list(each.values()), ddof=1)) / len(each) for each in (a, b) if len(each) > 1)


def _holm(tail: Array) -> Array:
    """Return at which rate of false alarms each difference is tried, so that one in twenty studies has any.

    Holm, "A simple sequentially rejective multiple test procedure", 1979: the likeliest difference shares the rate
    with all others, each next one with those that are left, until one is not told: the rest are tried at its rate.
    """
    order, rates = np.argsort(tail, kind="stable"), np.empty(len(tail))
    in_turn = FALSE_ALARM / np.arange(len(tail), 0, -1)
    for first in np.flatnonzero(tail[order] > in_turn)[:1]:
        in_turn[first:] = in_turn[first]
    rates[order] = in_turn
    return rates


def _groups(cells: Sequence[str], differences: Sequence[LossDifference]) -> Iterator[tuple[str, ...]]:
    """Yield the longest stretches of the ranking in which no two cells are told apart."""
    told = {(each.a, each.b) for each in differences if each.verdict == DIFFERENT}
    reached = 0
    for first in range(len(cells)):
        last = first + 1
        while last < len(cells) and not any((each, cells[last]) in told for each in cells[first:last]):
            last += 1
        if last > reached:
            yield tuple(cells[first:last])
            reached = last
