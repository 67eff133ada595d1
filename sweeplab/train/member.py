"""One run in a stack: where it stands, what its evaluations say, and what it hands out.

A run's iterations, schedule and stopping are its own, never the stack's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from sweeplab.data.generators import generator_key
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.train.optimizers.base import Rates
from sweeplab.train.run import Run, drop_chances, train_tokens
from sweeplab.train.schedule import learning_rate, patience_begins

if TYPE_CHECKING:
    from torch import Tensor

State = Literal["running", "complete", "stopped", "diverged"]

# A run whose loss rises this far above that of a guess learns nothing any more.
DIVERGED_ABOVE_GUESS = 3.0


class Point(TypedDict):
    """A point of the training curve: means over the steps since the last one, with the rate of the last step.

    `layers`, where gradients are tracked, has the norms of each layer's gradient, update and weights in the last step.
    """

    iteration: int
    wall_seconds: float
    train_loss: float
    grad_norm: float
    learning_rate: float
    tokens_per_second: float
    layers: NotRequired[dict[str, tuple[float, float, float]]]


@dataclass
class Record:
    """What one run's evaluation found.

    `best` has the lowest loss so far and its iteration, `points` the training curve since the record before;
    `eval_seconds`, a part of `wall_seconds`, is what this evaluation took; `slot_steps` is the run's part of the steps
    of its stacks' slots. `measures` are what it found besides the
    loss: `eval_train_loss`, that of the training split; of pairs `exact_match`, the share of targets found whole; of
    labels `accuracy` and `f1`; of scores `pearson` and `spearman`; of preferences `reward_accuracy`, the share ranked
    right, and `reward_margin`, the mean by which the chosen answer's reward is above the rejected one's; of hidden
    tokens `pseudo_perplexity`; of experts how they are used.
    """

    key: str
    iteration: int
    val_loss: float
    state: State
    best: tuple[float, int]
    wall_seconds: float
    eval_seconds: float
    slot_steps: float
    points: list[Point]
    measures: dict[str, float]


@dataclass
class Snapshot:
    """All that a run needs to go on elsewhere to the same bits: its rows and the numbers beside them."""

    rows: dict[str, Tensor]
    numbers: dict[str, Any]


@dataclass
class Progress:
    """A run's evaluations in brief: its best, when to lower the rate, when to stop; part of every snapshot.

    `reference` is the last loss that was an improvement by min_delta; `n_bad` counts evaluations since, but none before
    the decay of a schedule that keeps its peak until then: most of what such a run gains comes in it. `plateau_best` is
    that of torch's ReduceLROnPlateau, where the schedule counts as that does. A run diverges
    when its loss is not finite, or DIVERGED_ABOVE_GUESS times that of guessing tokens evenly, or of its own start where
    that was worse: trained weights start near 0, and rise from there without being lost.
    """

    first: float = math.nan
    best: float = math.inf
    best_iteration: int = 0
    reference: float = math.inf
    n_bad: int = 0
    n_bad_at_rate: int = 0
    n_halvings: int = 0
    plateau_best: float = math.inf

    def evaluated(self, val_loss: float, iteration: int, values: Hyperparameters) -> State:
        """Take in an evaluation and return the run's state after it."""
        if iteration == 0:
            self.first = val_loss
        guess = max(math.log(values.vocab_size), self.first)
        if not math.isfinite(val_loss) or val_loss > DIVERGED_ABOVE_GUESS * guess:
            return "diverged"
        if val_loss < self.best:
            self.best, self.best_iteration = val_loss, iteration
        if improved := val_loss < self.reference - values.min_delta:
            self.reference = val_loss
            self.n_bad = 0
        else:
            self.n_bad += iteration > patience_begins(values)
        threshold, most_bad = values.plateau_threshold, values.patience_lr
        if threshold is not None:  # as torch counts
            improved, most_bad = val_loss < self.plateau_best * (1.0 - threshold), most_bad + 1
            self.plateau_best = val_loss if improved else self.plateau_best
        self.n_bad_at_rate = 0 if improved else self.n_bad_at_rate + 1
        if iteration >= values.max_iters:
            return "complete"
        if values.patience is not None and self.n_bad >= values.patience:
            return "stopped"
        plateau = values.lr_decay and values.scheduler_type == "plateau"
        if plateau and self.n_bad_at_rate >= most_bad:
            self.n_halvings += 1
            self.n_bad_at_rate = 0
        return "running"


@dataclass
class Member:
    """A live run; the `counted` steps since its last point took from `point_seconds` to `wall_seconds`.

    `references` are, of preferences, what its start has for each sequence of the training and the validation split.
    """

    run: Run
    dropout_key: int
    drop_chances: Mapping[str, float]
    iteration: int = 0
    evaluated: int = -1
    counted: int = 0
    slot_steps: float = 0.0
    wall_seconds: float = 0.0
    point_seconds: float = 0.0
    points: list[Point] = field(default_factory=list)
    progress: Progress = field(default_factory=Progress)
    references: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, run: Run, numbers: Mapping[str, Any]) -> Member:
        """Return a run where the numbers of a snapshot left it; at its start where there are none."""
        known = {name: value for name, value in numbers.items() if name != "grad_accum"}  # the caller's
        progress = Progress(**known.pop("progress", {}))
        dropout_key = generator_key(run.values.seed, "dropout")
        return cls(run, dropout_key, drop_chances(run.values), **known, progress=progress)

    def numbers(self) -> dict[str, Any]:
        """Return what a snapshot keeps of a run beside its rows."""
        named = ("iteration", "evaluated", "counted", "slot_steps", "wall_seconds", "point_seconds")
        copied = {"points": [*self.points], "progress": asdict(self.progress)}
        return {name: getattr(self, name) for name in named} | copied

    def is_due(self, ahead: int = 0) -> bool:
        """Return whether an evaluation comes before the next step, or before the one after so many steps ahead."""
        values, iteration = self.run.values, self.iteration + ahead
        at_mark = iteration % values.eval_interval == 0 or iteration == values.max_iters
        return at_mark and self.evaluated < iteration

    def has_point(self, ahead: int = 0) -> bool:
        """Return whether the step just done, or so many steps ahead, ends a stretch of the training curve."""
        return (self.iteration + ahead) % self.run.values.log_interval == 0 or self.is_due(ahead)

    def add_point(self, loss: float, norm: float) -> None:
        """Add a point to the curve from sums over the steps since the last one."""
        values = self.run.values
        now, then = (train_tokens(values, self.iteration - back) for back in (0, self.counted))
        self.points.append(
            {
                "iteration": self.iteration,
                "wall_seconds": self.wall_seconds,
                "train_loss": loss / self.counted,
                "grad_norm": norm / self.counted,
                "learning_rate": learning_rate(values, self.iteration - 1, self.progress.n_halvings),
                "tokens_per_second": (now - then) / (self.wall_seconds - self.point_seconds),
            }
        )
        self.counted, self.point_seconds = 0, self.wall_seconds

    def rates(self) -> Rates:
        """Return the hyperparameters of the next step."""
        values = self.run.values
        rate, step = learning_rate(values, self.iteration, self.progress.n_halvings), self.iteration + 1
        return Rates.at(rate, values.weight_decay, *values.betas, values.eps, values.momentum, step)

    def record(self, measures: dict[str, float], seconds: float) -> Record:
        """Take in an evaluation that took so many seconds and return its record."""
        val_loss = measures.pop("val_loss")
        self.wall_seconds += seconds
        self.point_seconds += seconds  # the curve's tokens per second leave evaluation out
        self.evaluated = self.iteration
        state = self.progress.evaluated(val_loss, self.iteration, self.run.values)
        points, self.points = self.points, []
        best, key = (self.progress.best, self.progress.best_iteration), self.run.key
        took = (self.wall_seconds, seconds, self.slot_steps)
        return Record(key, self.iteration, val_loss, state, best, *took, points, measures)
