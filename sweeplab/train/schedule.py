"""What changes from step to step: the learning rate, and how much of a batch is used (no torch: a plan reads it).

The learning rate rises linearly over the warm-up, as nanoGPT's: (i + 1) / (warmup_iters + 1) of its peak at
iteration i. What it does then is one of SCHEDULES. Departure: a peak below min_lr stays as it is instead of
rising to it.

A batch's warm-up leaves its shape alone, for a stack has one: while n rows are used, row r of the batch is row
r mod n of the run's. Only an n that divides batch_size makes every row count alike, so n rises linearly through
the divisors. Departure from what larger trainers do: a warm-up saves tokens and not time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from sweeplab.hyperparameters import Hyperparameters


class At(NamedTuple):
    """A run's place in its schedule, after the warm-up, whose end has the peak; no schedule goes below the floor.

    `n_halvings` counts what plateau has cut.
    """

    values: Hyperparameters
    iteration: int
    n_halvings: int
    peak: float
    floor: float

    @property
    def progress(self) -> float:
        """Return how much of the run after its warm-up is over, from 0 to 1."""
        warmup = self.values.warmup_iters
        return min(1.0, (self.iteration - warmup) / max(1, self.values.max_iters - warmup))

    def between(self, share: float) -> float:
        """Return the rate that has come this share of the way from min_lr up to the peak."""
        return self.floor + (self.peak - self.floor) * share


@dataclass(frozen=True)
class Schedule:
    """One way for the learning rate to go on; `ends_low` says that it comes down to min_lr by max_iters."""

    meaning: str
    rate: Callable[[At], float]
    ends_low: bool = True


def _plateau(at: At) -> float:
    rate = at.peak * at.values.plateau_factor**at.n_halvings
    return max(at.floor, rate) if at.n_halvings else at.between(1.0)


def _decay_begins(values: Hyperparameters) -> float:
    return max(values.warmup_iters, values.max_iters * (1.0 - values.decay_share))


def _wsd(at: At) -> float:
    max_iters = at.values.max_iters
    length = max(1.0, max_iters - _decay_begins(at.values))
    return at.between(min(1.0, max(0.0, max_iters - at.iteration) / length))


def _inverse_sqrt(at: At) -> float:
    # Vaswani et al. count steps from 1, and their warm-up ends with the step that has the peak.
    return max(at.floor, at.peak * math.sqrt((at.values.warmup_iters + 1) / (at.iteration + 1)))


SCHEDULES: dict[str, Schedule] = {
    "cosine": Schedule(
        "half a cosine down to min_lr (Loshchilov & Hutter 2017)",
        lambda at: at.between(0.5 * (1.0 + math.cos(math.pi * at.progress))),
    ),
    "linear": Schedule("a straight line down to min_lr", lambda at: at.between(1.0 - at.progress)),
    "constant": Schedule("the peak to the end", lambda at: at.between(1.0), ends_low=False),
    "plateau": Schedule(
        "plateau_factor times the rate whenever patience_lr evaluations bring nothing",
        _plateau,
        ends_low=False,
    ),
    "wsd": Schedule(
        "warm-up, stable, decay: the peak, then a straight line to min_lr over the last decay_share of the run "
        "(Hu et al. 2024, Hägele et al. 2024)",
        _wsd,
    ),
    "inverse_sqrt": Schedule(
        "the peak times the root of warm-up over step, not below min_lr (Vaswani et al. 2017)",
        _inverse_sqrt,
        ends_low=False,
    ),
}


def learning_rate(values: Hyperparameters, iteration: int, n_halvings: int = 0) -> float:
    """Return the learning rate of the step from `iteration` to the next."""
    peak, warmup = values.learning_rate, values.warmup_iters
    if iteration < warmup:
        return peak * (iteration + 1) / (warmup + 1)
    if not values.lr_decay:
        return peak
    at = At(values, iteration, n_halvings, peak, min(values.min_lr, peak))
    return SCHEDULES[values.scheduler_type].rate(at)


def patience_begins(values: Hyperparameters) -> float:
    """Return the iteration after which evaluations that bring nothing count: of `wsd` the begin of its decay."""
    return _decay_begins(values) if values.lr_decay and values.scheduler_type == "wsd" else 0.0


def rows_used(values: Hyperparameters, iteration: int) -> int:
    """Return how many rows of its batch the step from `iteration` to the next learns from."""
    return rows_seen(values, iteration + 1) - rows_seen(values, iteration)


def rows_seen(values: Hyperparameters, iteration: int) -> int:
    """Return how many rows a run has learned from when it has come to `iteration`."""
    size, warmup = values.batch_size, values.batch_warmup_iters
    if not warmup:
        return iteration * size
    return sum(more * (iteration - begin) for begin, more in _rises(size, warmup) if begin < iteration)


@lru_cache(64)
def _rises(size: int, warmup: int) -> tuple[tuple[int, int], ...]:
    """Return from which iteration on how many more rows are used.

    A divisor n is reached where the line (i + 1) / (warmup + 1) of `size` is; the first step uses a row.
    """
    divisors = [n for n in range(1, size + 1) if size % n == 0]
    before = [0, *divisors]
    begins = [max(0, -(-n * (warmup + 1) // size) - 1) if n > 1 else 0 for n in divisors]
    return tuple((begin, n - less) for begin, n, less in zip(begins, divisors, before, strict=False))
