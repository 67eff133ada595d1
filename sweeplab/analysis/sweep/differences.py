"""Whether one study's losses differ from another's: by the cells they share, and by the seeds of their best trials.

The best trial of a cell is luck in two ways: which hyperparameters were drawn, and what the seed did. Cells that two
studies share differ by both, so the differences over several cells have them in their spread; seeds alone have only
the second, and say no more than that these two trials differ.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from pandas import DataFrame

from sweeplab.analysis.sweep.trials import Sweep, has_ended
from sweeplab.analysis.trials import ENDED, TRIAL, finite, only_follows
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import TABLE

DIFFERENT, NOT_SEEN, UNKNOWN = "different", "no difference seen", "cannot be told"
FALSE_ALARM = 0.05  # over all pairs of studies
ALL_CELLS = "all shared cells"
MEASURES = {"best": "best_val_loss", "final": "final_val_loss"}


@dataclass(frozen=True)
class Difference:
    """How far study `b` lies above study `a`, in nats a token, with an interval of `level`.

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
    def reversed(self) -> Difference:
        """Return how far `a` lies above `b`."""
        return replace(
            self, a=self.b, b=self.a, loss_a=self.loss_b, loss_b=self.loss_a, low=-self.high, high=-self.low
        )

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


@dataclass(frozen=True)
class _Best:
    """The best trial of a cell: the mean of its seeds' losses, and how many they are."""

    loss: float
    seeds: int


def differences(sweeps: Sequence[Sweep], at: str = "best") -> list[Difference]:
    """Return the differences of every pair of studies: over all cells they share, then cell by cell.

    `at` is the evaluation that values a run. Several pairs share one rate of false alarms (Bonferroni).

    Raises:
        BadInput: there are fewer than two studies.
    """
    if len(sweeps) < 2:
        raise BadInput("a comparison needs two studies or more")
    pairs = list(itertools.combinations(sweeps, 2))
    level = 1 - FALSE_ALARM / len(pairs)
    return [each for a, b in pairs for each in _of_pair(a, b, MEASURES[at], level)]


def seed_spread(sweep: Sweep, at: str = "best") -> SeedSpread:
    """Return how far the seeds of a study's trials lie apart; NaN where no trial has two."""
    losses = losses_of(sweep, MEASURES[at])
    by_trial = losses.groupby(TRIAL)["loss"]
    freedom = int((by_trial.count() - 1).clip(lower=0).sum())
    if not freedom:
        return SeedSpread(math.nan, 0)
    return SeedSpread(
        math.sqrt(float(((losses["loss"] - by_trial.transform("mean")) ** 2).sum()) / freedom), freedom
    )


def settings(sweeps: Sequence[Sweep]) -> dict[str, list[str]]:
    """Return the hyperparameters that are one in each study and not the same in all, with each study's value."""
    found = {}
    for name in (name for name in TABLE if name != "seed"):
        values = [sorted({str(each) for each in sweep.runs.get(name, ())}) for sweep in sweeps]
        if all(only_follows(sweep.runs, name) for sweep in sweeps):
            continue
        if all(len(each) == 1 for each in values) and len({each[0] for each in values}) > 1:
            found[name] = [each[0] for each in values]
    return found


def _of_pair(a: Sweep, b: Sweep, measure: str, level: float) -> list[Difference]:
    best_a, best_b = _bests(a, measure), _bests(b, measure)
    shared = [cell for cell in best_a if cell in best_b]
    spreads = [seed_spread(each, "final" if measure == MEASURES["final"] else "best") for each in (a, b)]
    cells = [_of_cell(a.name, b.name, cell, best_a[cell], best_b[cell], spreads, level) for cell in shared]
    return [_of_all(a.name, b.name, cells, level), *(cells if len(cells) > 1 else ())]


def _of_all(a: str, b: str, cells: Sequence[Difference], level: float) -> Difference:
    """Return the mean difference over the cells, by Student's t over cells; of one cell, by its seeds."""
    from scipy.stats import t

    if not cells:
        why = "they have no cell in common with a trial that ended"
        return Difference(a, b, ALL_CELLS, math.nan, math.nan, math.nan, math.nan, level, 0, why)
    if len(cells) == 1:
        return cells[0]
    apart = np.array([each.difference for each in cells])
    n = len(apart)
    reach = float(t.ppf((1 + level) / 2, n - 1) * apart.std(ddof=1) / math.sqrt(n))
    mean_a, mean_b = (
        float(np.mean([getattr(each, name) for each in cells])) for name in ("loss_a", "loss_b")
    )
    return Difference(a, b, ALL_CELLS, mean_a, mean_b, apart.mean() - reach, apart.mean() + reach, level, n)


def _of_cell(
    a: str, b: str, cell: str, best_a: _Best, best_b: _Best, spreads: Sequence[SeedSpread], level: float
) -> Difference:
    """Return the difference of two trials by their seeds: Welch's interval, with each study's pooled spread."""
    from scipy.stats import t

    seeds = min(best_a.seeds, best_b.seeds)
    without = [name for name, spread in zip((a, b), spreads, strict=True) if not spread.freedom]
    if without:
        why = f"no trial of {' and '.join(without)} has two seeds"
        return Difference(a, b, cell, best_a.loss, best_b.loss, math.nan, math.nan, level, seeds, why)
    variances = [spread.sd**2 / best.seeds for spread, best in zip(spreads, (best_a, best_b), strict=True)]
    whole = sum(variances)
    parts = sum(each**2 / spread.freedom for each, spread in zip(variances, spreads, strict=True))
    freedom = whole**2 / parts if parts else math.inf
    reach = float(t.ppf((1 + level) / 2, freedom)) * math.sqrt(whole)
    apart = best_b.loss - best_a.loss
    return Difference(a, b, cell, best_a.loss, best_b.loss, apart - reach, apart + reach, level, seeds)


def _bests(sweep: Sweep, measure: str) -> dict[str, _Best]:
    """Return the best trial of each cell by the mean over its seeds."""
    losses = losses_of(sweep, measure)
    trials = losses.groupby(TRIAL, sort=False)["loss"].agg(["mean", "count"]).reset_index()
    best = trials.loc[trials.groupby("cell", sort=False)["mean"].idxmin()]
    return {
        str(cell): _Best(float(loss), int(seeds))
        for cell, loss, seeds in best[["cell", "mean", "count"]].itertuples(index=False)
    }


def losses_of(sweep: Sweep, measure: str) -> DataFrame:
    """Return the loss of each run of the trials that ended."""
    runs = sweep.runs.assign(loss=finite(sweep.runs, measure))
    ended = sweep.trials.loc[has_ended(sweep.trials), TRIAL]
    return runs[runs["state"].isin(ENDED) & runs["loss"].notna()].merge(ended, on=TRIAL)
