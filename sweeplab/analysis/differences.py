"""Whether losses differ by more than chance: between studies, and between the cells of a study.

The best trial of a cell depends on chance in two ways: on the sampled hyperparameters, and on the seed. The null
distribution of `comparing` contains both, and so does the spread of the differences over several shared cells.

Losses of different tasks, such as predicting the next token or a masked one, are ranked separately.

The losses of fresh seeds and of the test split (`CellConfirmed`) did not choose the winner of a cell, so means,
intervals and differences are those of a sample, with Student's t, and valid after the selection. Differences are paired
by seed, from the cell that was best in the search.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from pandas import DataFrame

from sweeplab.analysis.sweep import Sweep, has_ended
from sweeplab.analysis.trials import COUNTED, TRIAL, VALUED, finite, only_follows, tasks_of, valued_losses
from sweeplab.errors import BadInput
from sweeplab.formatting import several
from sweeplab.hyperparameters import TABLE
from sweeplab.laws.comparing import FALSE_ALARM, Array, CellComparison, CellTrials, compare
from sweeplab.laws.core import LEVEL
from sweeplab.laws.evidence import DIFFERENT, NOT_SEEN, UNKNOWN, Evidence
from sweeplab.records.confirmed import Confirmed

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
    """
    if len(sweeps) < 2:
        raise BadInput("a comparison needs two studies or more")
    pairs = list(itertools.combinations(range(len(sweeps)), 2))
    tried = [_tried(study, at) for study in sweeps]
    shared = [(a, b, cell) for a, b in pairs for cell in tried[a] if cell in tried[b]]
    keys = list(dict.fromkeys((study, cell) for a, b, cell in shared for study in (a, b)))
    cells = [tried[study][cell] for study, cell in keys]
    places = {key: place for place, key in enumerate(keys)}
    between = [(places[a, cell], places[b, cell]) for a, b, cell in shared]
    by_pair: dict[tuple[int, int], list[LossDifference]] = {pair: [] for pair in pairs}
    effects: dict[tuple[int, int], list[float]] = {pair: [] for pair in pairs}
    if shared:
        compared = compare(cells, between, _is_searched(*sweeps))
        for k, (a, b, cell) in enumerate(shared):
            names = sweeps[a].name, sweeps[b].name
            by_pair[a, b].append(_between(names, cell, cells, compared, between[k], k))
            effects[a, b].append(float(compared.selection_effect[k]))
    level, rows = 1 - FALSE_ALARM / len(pairs), []
    for (a, b), by_cell in by_pair.items():
        if len(by_cell) != 1:
            rows.append(_over_all((sweeps[a].name, sweeps[b].name), by_cell, effects[a, b], level))
        rows += by_cell
    return rows


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
    differing = {}
    for name in TABLE:
        values = [{str(value) for value in sweep.runs.get(name, ())} for sweep in sweeps]
        if name == "seed" or all(only_follows(sweep.runs, name) for sweep in sweeps):
            continue
        if all(len(value) == 1 for value in values) and len(set().union(*values)) > 1:
            differing[name] = [next(iter(value)) for value in values]
    return differing


def _between(
    names: tuple[str, str],
    cell: str,
    cells: Sequence[CellTrials],
    compared: CellComparison,
    pair: tuple[int, int],
    k: int,
) -> LossDifference:
    loss_a, loss_b = (float(compared.best[each]) for each in pair)
    low, high = float(compared.low[k]), float(compared.high[k])
    n = min(len(cells[each].best) for each in pair)
    return LossDifference(*names, cell, loss_a, loss_b, low, high, compared.level, n, compared.evidence_of(k))


def _over_all(
    names: tuple[str, str], cells: Sequence[LossDifference], effects: Sequence[float], level: float
) -> LossDifference:
    """The mean difference over the cells that two studies share, by Student's t over cells.

    As for one cell, the interval covers the difference both with and without the selection `effects`, which are due to
    one study having more trials.
    """
    if not cells:
        why = "they have no cell in common with a trial that ended"
        evidence = Evidence(0, "nothing in common", "", UNKNOWN, why)
        nan = math.nan
        return LossDifference(*names, ALL_CELLS, nan, nan, nan, nan, level, 0, evidence)
    measured, n = np.array([each.difference for each in cells]), len(cells)
    means = [SeedMean.of(values, level) for values in (measured, measured - np.array(effects))]
    low, high = min(mean.low for mean in means), max(mean.high for mean in means)
    loss_a, loss_b = (
        float(np.mean([getattr(each, name) for each in cells])) for name in ("loss_a", "loss_b")
    )
    verdict = NOT_SEEN if low <= 0 <= high else DIFFERENT
    spread = f"the spread over {several(n, 'shared cell')}"
    evidence = replace(cells[0].evidence, tested_on=spread, verdict=verdict, why="")
    return LossDifference(*names, ALL_CELLS, loss_a, loss_b, low, high, level, n, evidence)


def _is_searched(*sweeps: Sweep) -> bool:
    return any(each.dimensions for each in sweeps)


def _tried(sweep: Sweep, at: str) -> dict[str, CellTrials]:
    """The losses of the trials of each cell with one that ended; pruned and diverged trials are counted."""
    drawn = sweep.trials.loc[sweep.trials["state"].isin(COUNTED), "cell"].value_counts()
    by_cell = _losses(sweep, at).groupby("cell", sort=False)
    return {str(cell): CellTrials.of(own, "loss", int(drawn.get(cell, 0))) for cell, own in by_cell}


def _losses(sweep: Sweep, at: str) -> DataFrame:
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
class CellRanking:
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
        was = known[other, one]
        return replace(
            was, a=one, b=other, loss_a=was.loss_b, loss_b=was.loss_a, low=-was.high, high=-was.low
        )


def rankings(sweep: Sweep, at: str = "best") -> list[CellRanking]:
    """Return a ranking of the cells' best trials for each task of the study; `at` is best or final."""
    losses = _losses(sweep, at)
    means = losses.groupby(TRIAL, sort=False)["loss"].mean().reset_index()
    best = means.loc[means.groupby("cell", sort=False)["loss"].idxmin(), TRIAL]
    kept = losses.merge(best, on=TRIAL)
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


def _ranking(task: str, runs: DataFrame, tried: Mapping[str, CellTrials], is_searched: bool) -> CellRanking:
    ranked = []
    for cell, cell_runs in runs.groupby("cell", sort=False):
        losses = cell_runs["loss"].to_numpy(float)
        sd = float(losses.std(ddof=1)) if len(losses) > 1 else math.nan
        size = float(finite(cell_runs, "n_params").iloc[0])
        mean, values = float(losses.mean()), cell_runs.iloc[0].to_dict()
        ranked.append(RankedCell(str(cell), mean, sd, len(losses), size, values))
    ranked.sort(key=lambda row: row.loss)
    cells = [row.cell for row in ranked]
    pairs = list(itertools.combinations(range(len(cells)), 2))
    trials = [tried[cell] for cell in cells]
    compared = compare(trials, pairs, is_searched)
    differences = [
        _between((cells[a], cells[b]), "", trials, compared, (a, b), k) for k, (a, b) in enumerate(pairs)
    ]
    groups = list(_groups(cells, differences))
    inside = [tuple(at for at, group in enumerate(groups) if cell in group) for cell in cells]
    placed = (replace(row, group=places) for row, places in zip(ranked, inside, strict=True))
    return CellRanking(task, tuple(placed), tuple(differences), compared.evidence)


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


@dataclass(frozen=True)
class SeedMean:
    """A mean over seeds, in its objective's unit, and its interval; NaN if there is only one seed."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Array, level: float = LEVEL) -> SeedMean:
        """Return the mean of some values with its interval by Student's t."""
        from scipy.special import stdtrit

        n, mean = len(values), float(np.mean(values))
        if n < 2:
            return cls(mean, np.nan, np.nan)
        reach = float(stdtrit(n - 1, (1 + level) / 2)) * float(values.std(ddof=1)) / math.sqrt(n)
        return cls(mean, mean - reach, mean + reach)


@dataclass(frozen=True)
class CellConfirmed:
    """One cell: its winner's test loss, and the optimism of the search.

    `optimism` is the test loss minus the loss that the search found; `selection_bias` is the part of it that appears
    with fresh seeds on the same split. `apart` is the difference from the reference's test loss, with its `evidence`;
    both are None for the reference. There is no test loss if a seed diverged. `look` is the number of the look at the
    text's test split.
    """

    cell: str
    trial: int
    n_raced: int
    searched: float
    validation: float
    test: SeedMean | None
    apart: SeedMean | None = None
    evidence: Evidence | None = None
    look: int = 1

    @property
    def optimism(self) -> float | None:
        """Return how much lower the search's loss was than the test loss."""
        if self.test:
            return self.test.value - self.searched
        return None

    @property
    def selection_bias(self) -> float | None:
        """Return how much lower the search's loss was than that of fresh seeds."""
        if self.test:
            return self.validation - self.searched
        return None

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**asdict(self), "optimism": self.optimism, "selection_bias": self.selection_bias}


def confirmed_cells(confirmed: Sequence[Confirmed]) -> list[CellConfirmed]:
    """Return each cell's winner, the lowest test loss first, cells without one last.

    Intervals and verdicts allow for the number of looks at the test split (Bonferroni).
    """
    look = max((winner.look for winner in confirmed), default=1)
    level = 1 - (1 - LEVEL) / look
    winners = [winner for winner in confirmed if winner.won]
    raced = [sum(other.cell == winner.cell for other in confirmed) for winner in winners]
    rows = []
    for winner, n_raced in zip(winners, raced, strict=True):
        validation, test = np.nan, None
        if winner.validation:
            validation = float(np.mean(list(winner.validation.values())))
        if winner.test:
            test = SeedMean.of(np.array(list(winner.test.values())), level)
        rows.append(
            CellConfirmed(winner.cell, winner.trial, n_raced, winner.searched, validation, test, look=look)
        )
    scored = [at for at, winner in enumerate(winners) if winner.test]
    if len(scored) > 1:
        reference = min(scored, key=lambda at: winners[at].searched)
        others = [at for at in scored if at != reference]
        tried = [CellTrials([winners[at].test], 1) for at in (reference, *others)]
        compared = compare(tried, [(0, place) for place in range(1, len(tried))], looks=look)
        for place, at in enumerate(others):
            chosen = "each cell's best trial"
            if raced[at] > 1:
                chosen = f"the winner of a race of {raced[at]}"
            tested_on = "fresh seeds and the test split"
            evidence = replace(compared.evidence_of(place), selection=chosen, tested_on=tested_on)
            one, other = winners[at].test, winners[reference].test
            shared = np.array([one[seed] - other[seed] for seed in one.keys() & other.keys()])
            apart = SeedMean.of(shared, level)
            rows[at] = replace(rows[at], apart=apart, evidence=evidence)
    return sorted(rows, key=lambda row: row.test.value if row.test else np.inf)
