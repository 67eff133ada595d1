"""Whether one study's losses differ from another's: by the cells they share, and by the seeds of their best trials.

The best trial of a cell is luck in two ways: which hyperparameters were drawn, and what the seed did. Cells that two
studies share differ by both, so the differences over several cells have them in their spread; seeds alone have only
the second, and say no more than that these two trials differ.

The cells of a study in order of their losses, and which of them the seeds tell apart.

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

from sweeplab.analysis.sweep.trials import Sweep, has_ended
from sweeplab.analysis.trials import TRIAL, VALUED, finite, only_follows, tasks_of
from sweeplab.data.objectives import known_objective
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
    return runs[runs["state"].isin(VALUED) & runs["loss"].notna()].merge(ended, on=TRIAL)


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
