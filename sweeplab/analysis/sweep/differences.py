"""Whether losses differ by more than chance: between studies, and between the cells of a study.

The best trial of a cell depends on chance in two ways: on the sampled hyperparameters, and on the seed. The null
distribution of `comparing` contains both, and so does the spread of the differences over several shared cells.

Losses of different tasks, such as predicting the next token or a masked one, are ranked separately.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pandas import DataFrame

from sweeplab.analysis.sweep.trials import Sweep, has_ended
from sweeplab.analysis.trials import COUNTED, TRIAL, VALUED, finite, only_follows, tasks_of, valued_losses
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import TABLE
from sweeplab.laws.comparing import FALSE_ALARM, CellComparison, CellTrials, compare
from sweeplab.laws.estimation.intervals import student
from sweeplab.laws.evidence import DIFFERENT, NOT_SEEN, UNKNOWN, Evidence

_UNKNOWN = (math.nan, math.nan)
_NO_CELL = "they have no cell in common with a trial that ended"
ALL_CELLS = "all shared cells"
MEASURES = {"best": "best_val_loss", "final": "final_val_loss"}


@dataclass(frozen=True)
class LossDifference:
    """The loss of study (or cell) `b` minus that of `a`, in its objective's unit, with an interval of `level`.

    `low` and `high` are NaN if the difference cannot be tested: `evidence` says why.
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
    evidence: Evidence

    @property
    def difference(self) -> float:
        """Return the second loss minus the first."""
        return self.loss_b - self.loss_a

    @property
    def verdict(self) -> str:
        """Return whether the difference is significant, in words."""
        return self.evidence.verdict


@dataclass(frozen=True)
class SeedSpread:
    """The standard deviation of one seed's loss around its trial's mean, pooled over a study's trials."""

    sd: float
    freedom: int


def differences(sweeps: Sequence[Sweep], at: str = "best") -> list[LossDifference]:
    """Return the differences of every pair of studies: over all cells they share, then cell by cell.

    `at` is the evaluation of a run that counts, best or final. All pairs share one false-alarm rate (Bonferroni).

    Raises:
        BadInput: there are fewer than two studies.
    """
    if len(sweeps) < 2:
        raise BadInput("a comparison needs two studies or more")
    pairs = list(itertools.combinations(range(len(sweeps)), 2))
    tried = [_tried(each, at) for each in sweeps]
    shared = [(a, b, cell) for a, b in pairs for cell in tried[a] if cell in tried[b]]
    places = {
        key: place
        for place, key in enumerate(dict.fromkeys((each, cell) for a, b, cell in shared for each in (a, b)))
    }
    cells = [tried[study][cell] for study, cell in places]
    between = [(places[a, cell], places[b, cell]) for a, b, cell in shared]
    compared = compare(cells, between, _is_searched(*sweeps)) if shared else None
    level, found = 1 - FALSE_ALARM / len(pairs), []
    for a, b in pairs:
        names = sweeps[a].name, sweeps[b].name
        own, effects = [], []
        for k, (first, second, cell) in enumerate(shared):
            if compared and (first, second) == (a, b):
                own.append(_between(names, cell, cells, compared, between[k], k))
                effects.append(float(compared.selection_effect[k]))
        found += [_over_all(names, own, effects, level), *own] if len(own) != 1 else own
    return found


def seed_spread(sweep: Sweep, at: str = "best") -> SeedSpread:
    """Return the standard deviation of a seed around its trial's mean; NaN if no trial has two seeds."""
    losses = _losses(sweep, at)
    by_trial = losses.groupby(TRIAL)["loss"]
    freedom = int((by_trial.count() - 1).clip(lower=0).sum())
    if not freedom:
        return SeedSpread(math.nan, 0)
    squares = float(((losses["loss"] - by_trial.transform("mean")) ** 2).sum())
    return SeedSpread(math.sqrt(squares / freedom), freedom)


def settings(sweeps: Sequence[Sweep]) -> dict[str, list[str]]:
    """Return the hyperparameters that are constant in each study but differ between studies, with their values."""
    found = {}
    for name in TABLE:
        values = [{str(each) for each in sweep.runs.get(name, ())} for sweep in sweeps]
        if name == "seed" or all(only_follows(sweep.runs, name) for sweep in sweeps):
            continue
        if all(len(each) == 1 for each in values) and len(set().union(*values)) > 1:
            found[name] = [next(iter(each)) for each in values]
    return found


def _between(
    names: tuple[str, str],
    cell: str,
    cells: Sequence[CellTrials],
    compared: CellComparison,
    pair: tuple[int, int],
    k: int,
) -> LossDifference:
    """Return the difference of the k-th pair of cells."""
    loss_a, loss_b = (float(compared.best[each]) for each in pair)
    low, high = float(compared.low[k]), float(compared.high[k])
    n = min(len(cells[each].best) for each in pair)
    return LossDifference(*names, cell, loss_a, loss_b, low, high, compared.level, n, compared.evidence_of(k))


def _over_all(
    names: tuple[str, str], cells: Sequence[LossDifference], effects: Sequence[float], level: float
) -> LossDifference:
    """Return the mean difference over the cells that two studies share, by Student's t over cells.

    As for one cell, the interval covers the difference both with and without the selection `effects`, which are due to
    one study having more trials.
    """
    if not cells:
        evidence = Evidence(0, "nothing in common", "", UNKNOWN, _NO_CELL)
        return LossDifference(*names, ALL_CELLS, *_UNKNOWN, *_UNKNOWN, level, 0, evidence)
    found, n = np.array([each.difference for each in cells]), len(cells)
    ends: list[float] = []
    for each in (found, found - np.array(effects)):
        mean, half = float(each.mean()), student(n - 1, level) * float(each.std(ddof=1)) / math.sqrt(n)
        ends += [mean - half, mean + half]
    loss_a, loss_b = (
        float(np.mean([getattr(each, name) for each in cells])) for name in ("loss_a", "loss_b")
    )
    low, high = min(ends), max(ends)
    evidence = replace(
        cells[0].evidence,
        tested_on=f"the spread over {n} shared cells",
        verdict=NOT_SEEN if low <= 0 <= high else DIFFERENT,
        why="",
    )
    return LossDifference(*names, ALL_CELLS, loss_a, loss_b, low, high, level, n, evidence)


def _is_searched(*sweeps: Sweep) -> bool:
    return any(each.dimensions for each in sweeps)


def _tried(sweep: Sweep, at: str) -> dict[str, CellTrials]:
    """Return the losses of the trials of each cell with one that ended; pruned and diverged trials are counted."""
    drawn = sweep.trials.loc[sweep.trials["state"].isin(COUNTED), "cell"].value_counts()
    by_cell = _losses(sweep, at).groupby("cell", sort=False)
    return {str(cell): CellTrials.of(own, "loss", int(drawn.get(cell, 0))) for cell, own in by_cell}


def _of_best_trials(sweep: Sweep, at: str) -> DataFrame:
    """Return the loss of each run of the best trial of each cell that has one."""
    losses = _losses(sweep, at)
    means = losses.groupby(TRIAL, sort=False)["loss"].mean().reset_index()
    best = means.loc[means.groupby("cell", sort=False)["loss"].idxmin(), TRIAL]
    return losses.merge(best, on=TRIAL)


def _losses(sweep: Sweep, at: str) -> DataFrame:
    """Return the loss of each run of the trials that ended."""
    runs = sweep.runs.assign(loss=valued_losses(sweep.runs, MEASURES[at]))
    ended = sweep.trials.loc[has_ended(sweep.trials), TRIAL]
    return runs[runs["state"].isin(VALUED) & runs["loss"].notna()].merge(ended, on=TRIAL)


@dataclass(frozen=True)
class RankedCell:
    """A cell by its best trial: the mean and the standard deviation of its seeds' losses.

    `group` has the number of each group (from 0) that it is in: cells that share a group do not differ significantly.
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
    """The cells of one task, the best first, and the difference of every pair: the later minus the earlier.

    `evidence` is that of all differences; its verdict says whether any is significant.
    """

    task: str
    cells: tuple[RankedCell, ...]
    differences: tuple[LossDifference, ...]
    evidence: Evidence

    def between(self, one: str, other: str) -> LossDifference:
        """Return the difference of `other` minus `one`."""
        known = {(each.a, each.b): each for each in self.differences}
        if (one, other) in known:
            return known[one, other]
        found = known[other, one]
        turned = replace(found, a=one, b=other, loss_a=found.loss_b, loss_b=found.loss_a)
        return replace(turned, low=-found.high, high=-found.low)


def rankings(sweep: Sweep, at: str = "best") -> list[Ranking]:
    """Return a ranking of the cells' best trials for each task of the study; `at` is best or final."""
    kept = _of_best_trials(sweep, at)
    if kept.empty:
        return []
    tried, is_searched = _tried(sweep, at), _is_searched(sweep)
    by_task = kept.groupby(tasks_of(kept), sort=False)
    return [_ranking(str(task), runs, tried, is_searched) for task, runs in by_task]


def bits_per_byte(ranked: RankedCell) -> float:
    """Return a cell's loss in bits per byte of its evaluation text; NaN if its runs do not record it."""
    bits, nats = (
        float(ranked.values.get(name, math.nan)) for name in ("best_bits_per_byte", MEASURES["best"])
    )
    return ranked.loss * bits / nats


def _ranking(task: str, runs: DataFrame, tried: Mapping[str, CellTrials], is_searched: bool) -> Ranking:
    found = []
    for cell, own in runs.groupby("cell", sort=False):
        losses = own["loss"].to_numpy(float)
        sd = float(losses.std(ddof=1)) if len(losses) > 1 else math.nan
        size = float(finite(own, "n_params").iloc[0])
        mean, values = float(losses.mean()), own.iloc[0].to_dict()
        found.append(RankedCell(str(cell), mean, sd, len(losses), size, values))
    found.sort(key=lambda each: each.loss)
    cells = [each.cell for each in found]
    pairs = list(itertools.combinations(range(len(cells)), 2))
    trials = [tried[cell] for cell in cells]
    compared = compare(trials, pairs, is_searched)
    differences = [
        _between((cells[a], cells[b]), "", trials, compared, (a, b), k) for k, (a, b) in enumerate(pairs)
    ]
    groups = list(_groups(cells, differences))
    placed = (
        replace(each, group=tuple(at for at, group in enumerate(groups) if each.cell in group))
        for each in found
    )
    return Ranking(task, tuple(placed), tuple(differences), compared.evidence)


def _groups(cells: Sequence[str], differences: Sequence[LossDifference]) -> Iterator[tuple[str, ...]]:
    """Yield the longest stretches of the ranking in which no two cells differ significantly."""
    different = {(each.a, each.b) for each in differences if each.verdict == DIFFERENT}
    covered = 0
    for first in range(len(cells)):
        last = first + 1
        while last < len(cells) and not any((each, cells[last]) in different for each in cells[first:last]):
            last += 1
        if last > covered:
            yield tuple(cells[first:last])
            covered = last
