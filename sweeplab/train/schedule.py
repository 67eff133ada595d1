"""The schedules of the learning rate. Imports no torch, because a plan imports it.

The learning rate rises linearly over the warm-up, as in nanoGPT: it is (i + 1) / (warmup_iters + 1) of its peak at
iteration i. Then it follows one of SCHEDULES. Departure: a peak below min_lr is not raised to min_lr.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from sweeplab.hyperparameters import Hyperparameters, is_number


class ScheduleInput(NamedTuple):
    """The inputs of a schedule after the warm-up: iteration, peak, and the floor that the rate never goes below.

    `n_halvings` is the number of times that plateau has lowered the rate.
    """

    values: Hyperparameters
    iteration: int
    n_halvings: int
    peak: float
    floor: float

    @property
    def progress(self) -> float:
        """Return the fraction of the iterations after the warm-up that are done, from 0 to 1."""
        warmup = self.values.warmup_iters
        return min(1.0, (self.iteration - warmup) / max(1, self.values.max_iters - warmup))

    def interpolate(self, share: float) -> float:
        """Return the rate at this share of the way from the floor (0) to the peak (1)."""
        return self.floor + (self.peak - self.floor) * share


@dataclass(frozen=True)
class Schedule:
    """A learning rate schedule after the warm-up; with `ends_low` the rate reaches min_lr at max_iters."""

    meaning: str
    rate: Callable[[ScheduleInput], float]
    ends_low: bool = True


def _plateau(at: ScheduleInput) -> float:
    rate = at.peak * at.values.plateau_factor**at.n_halvings
    if at.n_halvings:
        return max(at.floor, rate)
    return at.interpolate(1.0)


def _decay_start(values: Hyperparameters) -> float:
    return max(values.warmup_iters, values.max_iters * (1.0 - values.decay_share))


def _wsd(at: ScheduleInput) -> float:
    max_iters = at.values.max_iters
    length = max(1.0, max_iters - _decay_start(at.values))
    return at.interpolate(min(1.0, max(0.0, max_iters - at.iteration) / length))


def _inverse_sqrt(at: ScheduleInput) -> float:
    # Vaswani et al. count steps from 1, and the last step of their warm-up has the peak.
    return max(at.floor, at.peak * math.sqrt((at.values.warmup_iters + 1) / (at.iteration + 1)))


SCHEDULES: dict[str, Schedule] = {
    "cosine": Schedule(
        "half a cosine down to min_lr (Loshchilov & Hutter 2017)",
        lambda at: at.interpolate(0.5 * (1.0 + math.cos(math.pi * at.progress))),
    ),
    "linear": Schedule("a straight line down to min_lr", lambda at: at.interpolate(1.0 - at.progress)),
    "constant": Schedule("the peak to the end", lambda at: at.interpolate(1.0), ends_low=False),
    "plateau": Schedule(
        "plateau_factor times the rate after every patience_lr evaluations without improvement",
        _plateau,
        ends_low=False,
    ),
    "wsd": Schedule(
        "warmup-stable-decay: the peak, then a straight line to min_lr over the last decay_share of the run "
        "(Hu et al. 2024, Hägele et al. 2024)",
        _wsd,
    ),
    "inverse_sqrt": Schedule(
        "the peak times sqrt(warm-up / step), not below min_lr (Vaswani et al. 2017)",
        _inverse_sqrt,
        ends_low=False,
    ),
}


def own_schedule(function: Callable[[float], float]) -> Schedule:
    """Return the schedule of a plug-in's function of the share of training after the warm-up, from 0 to 1.

    It returns the share of the way from min_lr (0) to the peak (1).

    Raises:
        ValueError: it returns something else.
    """

    def checked(progress: float) -> float:
        share = function(progress)
        if not is_number(share) or not 0.0 <= share <= 1.0:
            raise ValueError(f"the schedule is {share!r} at {progress:g} of training; allowed: 0 to 1")
        return share

    shares = [checked(at / 100) for at in range(101)]
    return Schedule("a plug-in's", lambda at: at.interpolate(checked(at.progress)), shares[-1] == 0.0)


def learning_rate(values: Hyperparameters, iteration: int, n_halvings: int = 0) -> float:
    """Return the learning rate of the step from `iteration` to the next."""
    peak, warmup = values.learning_rate, values.warmup_iters
    if iteration < warmup:
        return peak * (iteration + 1) / (warmup + 1)
    if not values.lr_decay:
        return peak
    at = ScheduleInput(values, iteration, n_halvings, peak, min(values.min_lr, peak))
    return SCHEDULES[values.scheduler_type].rate(at)


def patience_begins(values: Hyperparameters) -> float:
    """Return the iteration after which evaluations count for patience: 0, or the start of the decay for `wsd`."""
    if values.lr_decay and values.scheduler_type == "wsd":
        return _decay_start(values)
    return 0.0
