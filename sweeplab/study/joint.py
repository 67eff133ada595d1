"""Joint search: the next trial of a cell, chosen by one surrogate of all cells of a study.

The surrogate is that of `laws/surrogate.py`, over the searched values and the values of the grid. A cell's next point
is the one whose result is expected to lower the cell's lowest expected loss most (the knowledge gradient), among those
of most expected improvement; the cell's last trial is the point of lowest expected loss. First trials are spread evenly
over all cells together.

Pruned trials enter with the loss that they would have reached if they had improved like the trials that ended, diverged
ones as worse than all others, running ones with their expected losses.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from sweeplab.data.batches import generator_key
from sweeplab.laws.surrogate import (
    MOST_FITTED,
    MOST_ROWS,
    Floats,
    Posterior,
    Scales,
    Surrogate,
    condition,
    fit_scales,
)
from sweeplab.study.choice import Axes, SearchAxis, axes_of_rows, axes_of_values
from sweeplab.study.space import Space, spread
from sweeplab.study.values import Range, Scalar

# New points are chosen among this many spread over the space, and this many near the best of these.
N_SPREAD, N_NEAR = 256, 128
# Trials of a cell that run together differ by this share of the range in one searched value at least.
LEAST_APART = 0.1
# Standard deviations of the points near the best ones, as shares of the range.
NEAR = (0.15, 0.03)
N_BEST = 4
# The gain of a run is computed for the candidates of most expected improvement and of lowest expected loss, this many.
N_COMPARED = 48
N_RESULTS = 21
# Its hyperparameters are fitted again when the number of trials has grown by this factor, beyond the first ones.
GROWTH, ALWAYS_FITTED = 1.2, 40
# The standard deviation of a diverged trial's log loss, which counts as this much worse than the worst other one.
DIVERGED = 0.2
# A pruned trial's extrapolation is at least this uncertain, in log loss.
EXTRAPOLATED = 0.02
# Strides of the sequence that are compared, from the number of cells on.
N_STRIDES = 8
_BELOW_1 = 1 - 1e-9


def _stride(n_cells: int, n_axes: int) -> int:
    """Return how many points lie between a cell's points in the sequence that all cells share.

    A multiple of the sequence's step may be nearly whole, as that of 8, 13 or 21 is on one axis: with such a stride a
    cell's points would hardly differ in it. The one is taken, of `n_cells` and more, whose first points are farthest
    apart in the mean over the values.
    """

    def nearest(stride: int) -> float:
        # The k-th point lies between k others: it can be no farther than 1 / (k + 1) from all of them.
        apart = [
            np.abs(spread(number * stride, n_axes) - spread(0, n_axes))
            for number in range(1, 6)
        ]
        return min(
            k * float(np.minimum(each, 1 - each).sum()) for k, each in enumerate(apart, 2)
        )

    return max(range(n_cells, n_cells + N_STRIDES), key=nearest)


class EndedTrials(Protocol):
    """The trials of a cell."""

    def ended(self) -> Sequence[FrozenTrial]:
        """Return the trials that have ended, in any state."""

    def running(self) -> Sequence[FrozenTrial]:
        """Return the trials that have started and not ended."""

    def twin(self, parameters: Mapping[str, Any], number: int) -> int | None:
        """Return the number of an earlier trial with these parameters."""


def _searched_axes(spaces: Sequence[Space]) -> Iterator[SearchAxis]:
    # A cell may lack a parameter; all that have it have the same range or choices.
    parameters = {name: entry for space in spaces for name, entry in space.parameters.items()}
    for name, entry in parameters.items():
        if isinstance(entry, Range):
            yield SearchAxis.of_range(name, entry.min, entry.max, entry.log)
        else:
            yield from axes_of_values(name, entry.choices, True)


class _Row(NamedTuple):
    """A trial that the surrogate learns from: its cell, its point, its log loss and the variance of that."""

    cell: int
    point: Mapping[str, Any]
    loss: float
    variance: float


class _Candidate(NamedTuple):
    """A point that may be proposed: its place in the unit cube, and what Optuna stores."""

    shares: Floats
    point: dict[str, Scalar]


@dataclass
class JointModel:
    """The surrogate of a study's trials, fitted again as trials end.

    What it proposes depends on the trials alone, not on when or by whom it is asked.
    """

    spaces: Sequence[Space]
    trials: Callable[[int], EndedTrials]  # of the cell of an index
    seed: int
    _fitted: tuple[list[tuple[int, int]], Scales] | None = field(default=None, init=False)

    @cached_property
    def _axes(self) -> Axes:
        """What varies within and between the cells."""
        sizes = axes_of_rows([space.cell.values for space in self.spaces], False)
        return Axes([*_searched_axes(self.spaces), *sizes])

    def rows(self, cell: int, points: Sequence[Mapping[str, Any]]) -> Floats:
        """Return points of a cell, given by what Optuna stores, as rows [n, d] of the surrogate."""
        known = self.spaces[cell].parameters
        searched = [
            {name: known[name].decoded(value) for name, value in point.items() if name in known}
            for point in points
        ]
        return self._axes.rows([self.spaces[cell].cell.values] * len(points), searched)

    def surrogate(self, cell: int) -> Surrogate | None:
        """Return the surrogate for a cell, None before two trials have ended.

        It expects of running trials their expected losses.
        """
        trials = self._trials()
        fitted = trials[: _last_fit(len(trials))][-MOST_FITTED:]
        key = [(place, trial.number) for place, trial in fitted]
        if len(trials) > MOST_ROWS:  # those of the cell count first, then the newest
            trials.sort(key=lambda place: (place[0] != cell, -place[1].number))
        rows, near = _rows(fitted), _rows(trials[:MOST_ROWS])
        if min(len(rows), len(near)) < 2:
            return None
        columns = self._axes.columns
        if self._fitted is None or self._fitted[0] != key:
            self._fitted = key, fit_scales(columns, *self._table(rows))
        surrogate = condition(self._fitted[1], *self._table(near))
        pending = [
            self.rows(index, [trial.params])
            for index in range(len(self.spaces))
            for trial in self.trials(index).running()
            if trial.params
        ]
        if not pending:
            return surrogate
        return surrogate.expecting(np.vstack(pending))

    def first(self, cell: int, number: int, fixed: Mapping[str, Any] = {}) -> dict[str, Scalar]:
        """Return the point of a trial before there is a surrogate: the points of all cells fill the space evenly."""
        n_axes = len(self.spaces[cell].parameters)
        offset = np.random.default_rng(generator_key(self.seed, "joint")).random(n_axes)
        place = (
            spread(number * _stride(len(self.spaces), n_axes) + cell, n_axes) + offset
        ) % 1.0
        return self.spaces[cell].point(place.tolist(), fixed)

    def propose(
        self, cell: int, number: int, fixed: Mapping[str, Any], exploits: bool = False
    ) -> dict[str, Scalar]:
        """Return the point of a cell's trial: the one that tells most, or of lowest expected loss if it `exploits`.

        The trial does not run yet. `fixed` has the parameters that are decided already. Without a new point that meets
        the rules, the best of all is returned.
        """
        candidates = self._promising(cell, number, fixed, exploits)
        space, trials = self.spaces[cell], self.trials(cell)

        for candidate in (*self._apart(cell, candidates), *candidates):
            point = candidate.point
            if (
                trials.twin(point, number) is None
                and space.broken(space.values_of(point)) is None
            ):
                return point
        return candidates[0].point

    def _apart(self, cell: int, candidates: Sequence[_Candidate]) -> list[_Candidate]:
        """Return the candidates that are at least LEAST_APART from the cell's running trials in a searched value.

        The least distance is half of an even spacing where more trials run than would fit.
        """
        running = [trial.params for trial in self.trials(cell).running() if trial.params]
        if not running:
            return list(candidates)
        searched = self._axes.columns.is_searched
        pending = self.rows(cell, running)[:, searched]
        places = self.rows(cell, [candidate.point for candidate in candidates])[:, searched]
        # Searched values lie between -1 and 1.
        distances = np.abs(places[:, None] - pending).max(axis=2).min(axis=1) / 2
        least = min(LEAST_APART, 0.5 / (len(running) + 1))
        return list(itertools.compress(candidates, distances >= least))

    def _promising(
        self, cell: int, number: int, fixed: Mapping[str, Any], exploits: bool
    ) -> list[_Candidate]:
        """Return points of a cell, the most promising first; in any order without a surrogate."""
        space = self.spaces[cell]
        draws = np.random.default_rng(
            generator_key(self.seed, f"joint/{space.cell.key}/{number}")
        )

        def added(to: Sequence[_Candidate], places: Floats) -> list[_Candidate]:
            new = [_Candidate(place, space.point(place.tolist(), fixed)) for place in places]
            return list({frozenset(each.point.items()): each for each in (*to, *new)}.values())

        candidates = added([], draws.random((N_SPREAD, len(space.parameters))))
        surrogate = self.surrogate(cell)
        if surrogate is None:
            return candidates
        for width in NEAR:
            best = self._ranked(surrogate, cell, candidates, exploits)[:N_BEST]
            centers = np.resize([each.shares for each in best], (N_NEAR, len(space.parameters)))
            places = centers + width * draws.standard_normal(centers.shape)
            candidates = added(candidates, np.clip(places, 0, _BELOW_1))
        return self._ranked(surrogate, cell, candidates, exploits)

    def _ranked(
        self,
        surrogate: Surrogate,
        cell: int,
        candidates: Sequence[_Candidate],
        exploits: bool,
    ) -> list[_Candidate]:
        x = self.rows(cell, [candidate.point for candidate in candidates])
        mean, sd = surrogate.marginal(x)
        by_mean = np.argsort(mean, kind="stable")
        if exploits:
            return [candidates[index] for index in by_mean]
        improvement = expected_improvement(mean, sd, float(mean.min()))
        by_improvement = np.argsort(-improvement, kind="stable")
        few = np.union1d(by_improvement[:N_COMPARED], by_mean[:N_COMPARED])
        gain = knowledge_gradient(surrogate.predict(x[few]), surrogate.scales.noise_sd(x[few]))
        first = few[np.argsort(-gain, kind="stable")]
        rest = by_improvement[~np.isin(by_improvement, first)]
        return [candidates[index] for index in (*first, *rest)]

    def _trials(self) -> list[tuple[int, FrozenTrial]]:
        trials = [
            (cell, trial)
            for cell in range(len(self.spaces))
            for trial in self.trials(cell).ended()
            if trial.state in (TrialState.COMPLETE, TrialState.PRUNED) and trial.params
        ]
        return sorted(trials, key=lambda place: (place[1].number, place[0]))

    def _table(self, rows: Sequence[_Row]) -> tuple[Floats, Floats, Floats]:
        x = np.vstack([self.rows(row.cell, [row.point]) for row in rows])
        return x, np.array([row.loss for row in rows]), np.array([row.variance for row in rows])


def _rows(trials: Sequence[tuple[int, FrozenTrial]]) -> list[_Row]:
    rows, diverged, gains = [], [], _gains(trials)
    for cell, trial in trials:
        if any(broken > 0 for broken in trial.constraints.values()):
            diverged.append((cell, trial))
        elif trial.state == TrialState.COMPLETE:
            if trial.value is not None and trial.value > 0:
                rows.append(_Row(cell, trial.params, math.log(trial.value), 0.0))
        elif trial.intermediate_values:
            step, value = max(trial.intermediate_values.items())
            known = [gain for other, gain in gains[step] if other == cell]
            if len(known) < 2:
                known = [gain for _, gain in gains[step]]
            if len(known) >= 2 and 0 < value < math.inf:
                loss = math.log(value) + float(np.median(known))
                rows.append(
                    _Row(cell, trial.params, loss, EXTRAPOLATED**2 + float(np.var(known)))
                )
    for cell, trial in diverged if rows else ():
        same = [row.loss for row in rows if row.cell == cell] or [row.loss for row in rows]
        rows.append(_Row(cell, trial.params, max(same) + DIVERGED, DIVERGED**2))
    return rows


def _gains(trials: Sequence[tuple[int, FrozenTrial]]) -> Mapping[int, list[tuple[int, float]]]:
    """Return how much complete trials improved from each iteration to their end, in log loss, with their cells."""
    gains = defaultdict[int, list[tuple[int, float]]](list)
    for cell, trial in trials:
        if trial.state != TrialState.COMPLETE or trial.value is None or trial.value <= 0:
            continue
        for step, value in trial.intermediate_values.items():
            if value > 0:
                gains[step].append((cell, math.log(trial.value / value)))
    return gains


def _last_fit(n_rows: int) -> int:
    if n_rows <= ALWAYS_FITTED:
        return n_rows
    steps = math.floor(math.log(n_rows / ALWAYS_FITTED) / math.log(GROWTH) + 1e-9)
    return math.floor(ALWAYS_FITTED * GROWTH**steps)


def expected_improvement(mean: Floats, sd: Floats, best: float) -> Floats:
    """Return how much lower than `best` points are expected to be, counting higher ones as zero."""
    from scipy.special import ndtr

    z = (best - mean) / sd
    return np.asarray(
        (best - mean) * ndtr(z) + sd * np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    )


def knowledge_gradient(points: Posterior, noise_sd: Floats) -> Floats:
    """Return how much a run at each point is expected to lower the lowest expected loss of all points [m].

    Frazier, Powell and Dayanik 2009 (The knowledge-gradient policy for correlated normal beliefs), with the expectation
    over a run's result by a sum over N_RESULTS values. It counts a point's noise, as expected improvement does not.
    """
    results = np.linspace(-2.5, 2.5, N_RESULTS)
    shares = np.exp(-0.5 * results**2)
    shares /= shares.sum()
    spread = np.sqrt(np.diag(points.covariance) + noise_sd**2)
    # Column k: how all means move with a run at k.
    moved = points.covariance / np.maximum(spread, 1e-12)
    gains = [
        points.mean.min()
        - shares @ (points.mean[:, None] + column[:, None] * results).min(axis=0)
        for column in moved.T
    ]
    return np.array(gains)
