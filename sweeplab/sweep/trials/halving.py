"""Optuna's asynchronous successive halving, with the values of each rung kept in order.

At each rung Optuna reads all trials of a study and sorts their values: milliseconds of CPU time at 20,000 trials. Here
a trial's values are inserted in order when it ends. The same trials are pruned.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from optuna.pruners import BasePruner, SuccessiveHalvingPruner
from optuna.pruners._successive_halving import _completed_rung_key, _get_current_rung

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

    from sweeplab.sweep.trials.storage import CellTrials


class Rungs:
    """The values that a cell's trials reported at the rungs of successive halving."""

    def __init__(self, trials: CellTrials) -> None:
        self._trials, self._n_seen = trials, 0
        # The values of ended trials at each rung, the lowest first.
        self._ended: list[list[float]] = []

    def place(self, value: float, rung: int, number: int) -> tuple[int, int]:
        """Return how many other trials have a lower value at a rung, and how many have a value there."""
        self._update()
        key = _completed_rung_key(rung)
        ended = self._ended[rung] if rung < len(self._ended) else []
        running = [
            trial.system_attrs[key]
            for trial in self._trials.unended.values()
            if trial.number != number and key in trial.system_attrs
        ]
        n_better = bisect.bisect_left(ended, value) + sum(other < value for other in running)
        return n_better, len(ended) + len(running)

    def _update(self) -> None:
        new = self._trials.ended[self._n_seen :]
        self._n_seen += len(new)
        for trial in new:
            for rung in range(_get_current_rung(trial)):
                if rung == len(self._ended):
                    self._ended.append([])
                bisect.insort(self._ended[rung], trial.system_attrs[_completed_rung_key(rung)])


class OrderedHalving(SuccessiveHalvingPruner):
    """Successive halving for a study that minimizes, with a given first rung; it looks values up in `rungs`."""

    rungs: Callable[[], Rungs]

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Return whether a trial that has reached a rung is pruned there."""
        step = trial.last_step
        if step is None:
            return False
        assert self._min_resource is not None
        value, rung = trial.intermediate_values[step], _get_current_rung(trial)
        while step >= self._min_resource * self._reduction_factor ** (self._min_early_stopping_rate + rung):
            if math.isnan(value):
                return True
            study._storage.set_trial_system_attr(trial._trial_id, _completed_rung_key(rung), value)
            n_better, n_others = self.rungs().place(value, rung, trial.number)
            if n_others < self._bootstrap_count or n_better >= max(
                1, (n_others + 1) // self._reduction_factor
            ):
                return True
            rung += 1
        return False


def with_rungs(pruner: BasePruner, rungs: Callable[[], Rungs]) -> BasePruner:
    """Return the pruner; in place of successive halving, one that decides alike and looks values up in `rungs`."""
    if type(pruner) is not SuccessiveHalvingPruner:
        return pruner
    own = OrderedHalving.__new__(OrderedHalving)
    own.__dict__.update(pruner.__dict__, rungs=rungs)
    return own
