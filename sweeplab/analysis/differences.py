"""Whether losses differ by more than chance: between studies, and between the cells of a study.

The best trial of a cell depends on chance in two ways: on the sampled hyperparameters, and on the seed. The null
distribution of `comparing` contains both, and so does the spread of the differences over several shared cells.

The losses of fresh seeds and of the test split (`CellConfirmed`) did not choose the winner of a cell, so means,
intervals and differences are those of a sample, with Student's t, and valid after the selection. Differences are paired
by seed, from the cell that was best in the search.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from pandas import DataFrame

from sweeplab.analysis.sweep import Sweep, has_ended
from sweeplab.analysis.trials import COUNTED, TRIAL, VALUED, valued_losses
from sweeplab.errors import BadInput
from sweeplab.formatting import several
from sweeplab.laws.comparing import (
    DIFFERENT,
    FALSE_ALARM,
    NOT_SEEN,
    UNKNOWN,
    Array,
    CellComparison,
    CellTrials,
    Evidence,
    compare,
)
from sweeplab.laws.core import LEVEL
from sweeplab.records.kept import Confirmed
from sweeplab.study.space import BASE

ALL_CELLS = "all shared cells"


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


def differences(sweeps: Sequence[Sweep], at: str = "best") -> list[LossDifference]:
    """Return the differences of every pair of studies: over all cells they share, then cell by cell.

    `at` is the evaluation of a run that counts, best or final. All pairs share one false-alarm rate (Bonferroni).
    """
    if len(sweeps) < 2:
        raise BadInput("a comparison needs two studies or more")
    tried = {
        (study, cell): trials
        for study, sweep in enumerate(sweeps)
        for cell, trials in _tried(sweep, at).items()
    }
    pairs = list(itertools.combinations(range(len(sweeps)), 2))
    shared = [
        (a, b, cell)
        for a, b in pairs
        for study, cell in tried
        if study == a and (b, cell) in tried
    ]
    keys = list(dict.fromkeys((study, cell) for a, b, cell in shared for study in (a, b)))
    between = [(keys.index((a, cell)), keys.index((b, cell))) for a, b, cell in shared]
    level, rows = 1 - FALSE_ALARM / len(pairs), []
    compared = None
    if shared:
        cells = [tried[key] for key in keys]
        compared = compare(cells, between, any(each.space for each in sweeps))
    for a, b in pairs:
        names, by_cell, effects = (sweeps[a].name, sweeps[b].name), [], []
        for k, (first, second, cell) in enumerate(shared):
            if compared and (first, second) == (a, b):
                by_cell.append(_between(names, cell, cells, compared, between[k], k))
                effects.append(float(compared.selection_effect[k]))
        if len(by_cell) != 1:
            rows.append(_over_all(names, by_cell, effects, level))
        rows += by_cell
    return rows


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
    return LossDifference(
        *names, cell, loss_a, loss_b, low, high, compared.level, n, compared.evidence_of(k)
    )


def _over_all(
    names: tuple[str, str],
    cells: Sequence[LossDifference],
    effects: Sequence[float],
    level: float,
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
    measured = np.array([each.difference for each in cells])
    mean, corrected = (
        SeedMean.of(each, level) for each in (measured, measured - np.array(effects))
    )
    low, high = min(mean.low, corrected.low), max(mean.high, corrected.high)
    verdict = NOT_SEEN if low <= 0 <= high else DIFFERENT
    spread = f"the spread over {several(len(cells), 'shared cell')}"
    evidence = replace(cells[0].evidence, tested_on=spread, verdict=verdict, why="")
    loss = float(np.mean([each.loss_a for each in cells]))
    return LossDifference(
        *names, ALL_CELLS, loss, loss + mean.value, low, high, level, len(cells), evidence
    )


def _tried(sweep: Sweep, at: str) -> dict[str, CellTrials]:
    """The losses of the trials of each cell with one that ended; pruned and diverged trials are counted."""
    drawn = sweep.trials.loc[sweep.trials["state"].isin(COUNTED), "cell"].value_counts()
    by_cell = _losses(sweep, at).groupby("cell", sort=False)
    return {str(cell): CellTrials.of(own, int(drawn.get(cell, 0))) for cell, own in by_cell}


def _losses(sweep: Sweep, at: str) -> DataFrame:
    runs = sweep.runs.assign(loss=valued_losses(sweep.runs, f"{at}_val_loss"))
    ended = sweep.trials.loc[has_ended(sweep.trials), TRIAL]
    return runs[runs["state"].isin(VALUED) & runs["loss"].notna()].merge(ended, on=TRIAL)


class RankedCell(NamedTuple):
    """A cell by its best trial: the mean and the standard deviation of its seeds' losses, and its first run."""

    cell: str
    loss: float
    sd: float
    n_seeds: int
    values: Mapping[Any, Any]

    @property
    def bits_per_byte(self) -> float:
        """Return the loss in bits per byte of the evaluation text; NaN if its runs do not record it."""
        bits = self.values.get("best_bits_per_byte", math.nan)
        return float(self.loss * bits / self.values["best_val_loss"])


class CellRanking(NamedTuple):
    """The cells of a study, the best first, and the difference of each from the `reference`, by its name.

    The reference is the base, or else the best cell. `evidence` is that of all differences of pairs, which share one
    false-alarm rate; its verdict says whether any is significant.
    """

    cells: tuple[RankedCell, ...]
    reference: str
    differences: Mapping[str, LossDifference]
    evidence: Evidence


def rank_cells(sweep: Sweep, at: str = "best") -> CellRanking | None:
    """Return the ranking of the cells' best trials; `at` is best or final."""
    losses, tried = _losses(sweep, at), _tried(sweep, at)
    if losses.empty:
        return None
    means = losses.groupby(TRIAL, sort=False)["loss"].mean().reset_index()
    best = means.loc[means.groupby("cell", sort=False)["loss"].idxmin(), TRIAL]
    ranked = []
    for cell, rows in losses.merge(best, on=TRIAL).groupby("cell", sort=False):
        loss, first = rows["loss"], rows.iloc[0].to_dict()
        ranked.append(
            RankedCell(str(cell), float(loss.mean()), float(loss.std()), len(loss), first)
        )
    ranked.sort(key=lambda row: row.loss)
    names = [row.cell for row in ranked]
    base = names.index(BASE) if BASE in names else 0
    others = [place for place in range(len(names)) if place != base]
    # All pairs share one rate, because which cell is the best depends on the losses too.
    pairs = [(base, other) for other in others] + list(itertools.combinations(others, 2))
    trials = [tried[name] for name in names]
    compared = compare(trials, pairs, bool(sweep.space))
    from_reference = {
        names[other]: _between((names[base], names[other]), "", trials, compared, pairs[k], k)
        for k, other in enumerate(others)
    }
    return CellRanking(tuple(ranked), names[base], from_reference, compared.evidence)


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
        reach = (
            float(stdtrit(n - 1, (1 + level) / 2)) * float(values.std(ddof=1)) / math.sqrt(n)
        )
        return cls(mean, mean - reach, mean + reach)


@dataclass(frozen=True)
class CellConfirmed:
    """One cell: its winner's test loss, and the optimism of the search.

    `optimism` is the test loss minus the loss that the search found; `selection_bias` is the part of it that appears
    with fresh seeds on the same split; both are None without a test loss, which a cell lacks if a seed diverged.
    `apart` is the difference from the reference's test loss, with its `evidence`; both are None for the reference.
    """

    cell: str
    trial: int
    n_raced: int
    searched: float
    validation: float
    test: SeedMean | None
    optimism: float | None = None
    selection_bias: float | None = None
    apart: SeedMean | None = None
    evidence: Evidence | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)


def confirmed_cells(confirmed: Sequence[Confirmed]) -> list[CellConfirmed]:
    """Return each cell's winner, the lowest test loss first, cells without one last."""
    raced = Counter(each.cell for each in confirmed)
    winners = sorted(
        (each for each in confirmed if each.won), key=lambda winner: winner.searched
    )
    scored = [winner for winner in winners if winner.test]
    compared = None
    if len(scored) > 1:
        tried = [CellTrials([winner.test], 1) for winner in scored]
        compared = compare(tried, [(0, place) for place in range(1, len(tried))])
    rows = []
    for winner in winners:
        searched, n_raced, validation = winner.searched, raced[winner.cell], math.nan
        if winner.validation:
            validation = float(np.mean([*winner.validation.values()]))
        row = CellConfirmed(winner.cell, winner.trial, n_raced, searched, validation, None)
        if winner.test:
            test = SeedMean.of(np.array([*winner.test.values()]))
            optimism = test.value - searched
            row = replace(
                row, test=test, optimism=optimism, selection_bias=validation - searched
            )
        if compared and winner in scored[1:]:
            chosen = (
                f"the winner of a race of {n_raced}"
                if n_raced > 1
                else "each cell's best trial"
            )
            evidence = replace(
                compared.evidence_of(scored.index(winner) - 1),
                selection=chosen,
                tested_on="fresh seeds and the test split",
            )
            other = scored[0].test
            shared = np.array(
                [loss - other[seed] for seed, loss in winner.test.items() if seed in other]
            )
            row = replace(row, apart=SeedMean.of(shared), evidence=evidence)
        rows.append(row)
    return sorted(rows, key=lambda row: row.test.value if row.test else math.inf)
