"""The cells of a study in order of their losses, and which of them the seeds tell apart.

Losses of different tasks, such as the next token's and a hidden one's, are ranked apart: they are of unlike things.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame

from sweeplab.analysis.sweep.differences import (
    DIFFERENT,
    FALSE_ALARM,
    MEASURES,
    Difference,
    losses_of,
)
from sweeplab.analysis.sweep.trials import Sweep
from sweeplab.analysis.trials import TRIAL, finite, tasks_of
from sweeplab.data.objectives import known_objective

Array = NDArray[np.float64]
ONE_SEED = "no cell has two seeds"


@dataclass(frozen=True)
class Choice:
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
    choices: tuple[Choice, ...]
    differences: tuple[Difference, ...]
    is_paired: bool

    def between(self, one: str, other: str) -> Difference:
        """Return how far `other` lies above `one`."""
        for each in self.differences:
            if (each.a, each.b) == (one, other):
                return each
            if (each.b, each.a) == (one, other):
                return each.reversed
        raise KeyError((one, other))


def rankings(sweep: Sweep, at: str = "best") -> list[Ranking]:
    """Return a ranking a task of the study, each by the cells' best trials; `at` values a run, best or final."""
    losses = losses_of(sweep, MEASURES[at])
    if losses.empty:
        return []
    means = losses.groupby(TRIAL, sort=False)["loss"].mean().reset_index()
    best = means.loc[means.groupby("cell", sort=False)["loss"].idxmin(), TRIAL]
    kept = losses.merge(best, on=TRIAL)
    return [_ranking(str(task), runs) for task, runs in kept.groupby(tasks_of(kept), sort=False)]


def bits_per_byte(choice: Choice, data: Mapping[str, Any]) -> float:
    """Return a choice's loss in bits a byte of what is to be found; `data` describes the study's.

    NaN where its objective is not known.
    """
    objective = known_objective(choice.values)
    if objective is None:
        return math.nan
    bytes_per_target = data["val_bytes"] / data.get("val_targets", data["val_tokens"])
    return float(choice.loss / math.log(2) / (objective.text_share(choice.values) * bytes_per_target))


def _ranking(task: str, runs: DataFrame) -> Ranking:
    by_cell = {str(cell): own for cell, own in runs.groupby("cell", sort=False)}
    found = sorted((_choice(cell, own) for cell, own in by_cell.items()), key=lambda each: each.loss)
    cells = [each.cell for each in found]
    differences, is_paired = _differences(cells, {cell: _by_seed(by_cell[cell]) for cell in cells})
    groups = list(_groups(cells, differences))
    placed = ((each, tuple(at for at, group in enumerate(groups) if each.cell in group)) for each in found)
    choices = tuple(
        Choice(each.cell, each.loss, each.sd, each.n_seeds, each.n_params, each.values, group)
        for each, group in placed
    )
    return Ranking(task, choices, tuple(differences), is_paired)


def _choice(cell: str, runs: DataFrame) -> Choice:
    losses = runs["loss"].to_numpy(float)
    sd = float(losses.std(ddof=1)) if len(losses) > 1 else math.nan
    size = float(finite(runs, "n_params").iloc[0])
    return Choice(cell, float(losses.mean()), sd, len(losses), size, runs.iloc[0].to_dict())


def _by_seed(runs: DataFrame) -> dict[int, float]:
    return {int(seed): float(loss) for seed, loss in runs[["seed", "loss"]].itertuples(index=False)}


def _differences(
    cells: Sequence[str], losses: Mapping[str, Mapping[int, float]]
) -> tuple[list[Difference], bool]:
    """Return the difference of every two cells with its interval, and whether seeds are paired.

    Loss = cell + seed + rest, by least squares; without the seed where cells have no seeds in common. The rest's
    variance is pooled over all cells, but a difference has no less than its own two cells show: some choices train
    less steadily than others. Intervals are Student's, at the level at which Holm's procedure tries each: it is one
    that leaves 0 out where, and only where, the procedure tells the two apart.
    """
    from scipy.stats import t

    pairs = list(itertools.combinations(range(len(cells)), 2))
    rows = [(at, seed, loss) for at, cell in enumerate(cells) for seed, loss in losses[cell].items()]
    design, is_paired = _design(len(cells), rows)
    values = np.array([loss for *_, loss in rows])
    freedom = len(rows) - design.shape[1]
    mean = [float(np.mean(list(losses[cell].values()))) for cell in cells]
    if freedom <= 0:
        unknown = (math.nan, math.nan, math.nan, 1, ONE_SEED)
        return [Difference(cells[a], cells[b], "", mean[a], mean[b], *unknown) for a, b in pairs], False
    inverse = np.linalg.inv(design.T @ design)
    effects = inverse @ design.T @ values
    n_cells = len(cells)
    level = float(np.mean(values - design[:, :n_cells] @ effects[:n_cells]))  # a seed's part of a loss
    pooled = float(((values - design @ effects) ** 2).sum()) / freedom
    apart = np.array([effects[b] - effects[a] for a, b in pairs])
    spread = np.array([inverse[a, a] + inverse[b, b] - 2 * inverse[a, b] for a, b in pairs])
    own = [_own_variance(losses[cells[a]], losses[cells[b]], is_paired) for a, b in pairs]
    error = np.sqrt(np.maximum(pooled * spread, own))
    tail = 2 * t.sf(
        np.divide(np.abs(apart), error, where=error > 0, out=np.full_like(apart, np.inf)), freedom
    )
    levels = 1 - _holm(tail)
    reach = t.ppf((1 + levels) / 2, freedom) * error
    return [
        Difference(
            cells[a], cells[b], "", level + effects[a], level + effects[b], apart[k] - reach[k], apart[k] + reach[k],
            float(levels[k]), min(len(losses[cells[a]]), len(losses[cells[b]])),
        )
        for k, (a, b) in enumerate(pairs)
    ], is_paired  # fmt: skip


def _design(n_cells: int, rows: Sequence[tuple[int, int, float]]) -> tuple[Array, bool]:
    """Return the design matrix: a column a cell, and one a seed but the first where that leaves cells comparable."""
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
    rates = np.empty(len(tail))
    rate, is_over = FALSE_ALARM, False
    for place, at in enumerate(np.argsort(tail, kind="stable")):
        rate = rate if is_over else FALSE_ALARM / (len(tail) - place)
        is_over = is_over or bool(tail[at] > rate)
        rates[at] = rate
    return rates


def _groups(cells: Sequence[str], differences: Sequence[Difference]) -> Iterator[tuple[str, ...]]:
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
