"""The sampler of a joint search: Optuna asks it for a trial's parameters, which the search over all cells proposes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from optuna.samplers import RandomSampler

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import FrozenTrial


class JointSampler(RandomSampler):
    """An Optuna sampler that takes a trial's parameters from a point; `propose` returns it when the first is asked for.

    What the point lacks, and everything without `propose`, is drawn at random. `n_startup_trials` is the number of
    points of each cell that are spread evenly before the first proposal.
    """

    def __init__(
        self,
        n_startup_trials: int = 1,
        seed: int | None = None,
        propose: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
    ) -> None:
        super().__init__(seed)
        self.n_startup_trials = n_startup_trials
        self._propose = propose
        self._point: Mapping[str, Any] | None = None

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return the point's value of a parameter."""
        if self._point is None:
            self._point = self._propose(trial.system_attrs.get("fixed_params", {}))
        if param_name in self._point:
            return self._point[param_name]
        return super().sample_independent(study, trial, param_name, param_distribution)
