"""One run in a stack: its progress, its evaluations, its training curve and its snapshot.

Each run has its own iteration, schedule and stopping rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from sweeplab.data.batches import generator_key
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.train.optimizers import Rates
from sweeplab.train.run import (
    TrainingRun,
    dropout_rates,
    learning_rate,
    patience_begins,
    train_tokens,
)

if TYPE_CHECKING:
    from torch import Tensor

State = Literal["running", "complete", "stopped", "diverged"]

# A run diverges when its loss is above this factor times the loss of a guess.
DIVERGED_ABOVE_GUESS = 3.0


class Point(TypedDict):
    """A point of the training curve: means over the steps since the last point, and the last step's learning rate.

    `layers` has the norms of each layer's gradient, update and weights in the last step, if gradients are tracked.
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
    """The result of one evaluation of a run.

    `best` has the lowest loss so far and its iteration. `points` is the training curve since the last record.
    `eval_seconds` is the duration of this evaluation, a part of `wall_seconds`. `slot_steps` is the run's share of its
    stacks' slots, summed over its steps. `measures` has the results besides the validation loss: `eval_train_loss`, the
    loss on the training split; for pairs `exact_match`, the share of targets predicted without a mistake; for labels
    `accuracy` and `f1`.
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
    """All that a run needs to continue in any stack with the same bits: its rows and its numbers."""

    rows: dict[str, Tensor]
    numbers: dict[str, Any]


@dataclass
class StoppingState:
    """The state of early stopping and of the plateau schedule; part of every snapshot.

    `first` is the loss at iteration 0. `reference` is the last loss that improved by min_delta, and `n_bad` counts the
    evaluations since then. Under `wsd` it counts only during the decay, which brings most of the improvement.
    `plateau_best` is the best loss of torch's ReduceLROnPlateau, if the schedule counts as torch does.

    A run diverges if its loss is not finite, or above DIVERGED_ABOVE_GUESS times the larger of its first loss and the
    loss of a uniform guess. With trained weights the first loss may be near 0, and a rise from there is harmless.
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
        """Update from an evaluation, and return the run's state after it."""
        if iteration == 0:
            self.first = val_loss
        guess = max(math.log(values.vocab_size), self.first)
        if not math.isfinite(val_loss) or val_loss > DIVERGED_ABOVE_GUESS * guess:
            return "diverged"
        if val_loss < self.best:
            self.best, self.best_iteration = val_loss, iteration
        improved = val_loss < self.reference - values.min_delta
        if improved:
            self.reference, self.n_bad = val_loss, 0
        elif iteration > patience_begins(values):
            self.n_bad += 1
        threshold, most_bad = values.plateau_threshold, values.patience_lr
        if threshold is not None:  # count as torch's ReduceLROnPlateau does
            improved, most_bad = val_loss < self.plateau_best * (1.0 - threshold), most_bad + 1
            if improved:
                self.plateau_best = val_loss
        self.n_bad_at_rate += 1
        if improved:
            self.n_bad_at_rate = 0
        if iteration >= values.max_iters:
            return "complete"
        if values.patience is not None and self.n_bad >= values.patience:
            return "stopped"
        if (
            values.lr_decay
            and values.scheduler_type == "plateau"
            and self.n_bad_at_rate >= most_bad
        ):
            self.n_halvings += 1
            self.n_bad_at_rate = 0
        return "running"


@dataclass
class Member:
    """A live run; `evaluated` is the iteration of its last evaluation.

    `counted` is the number of steps since the last point, which was added at `point_seconds`. `at_start`, for
    objectives that read the start, are their values of both splits' sequences under the run's initial weights.
    """

    run: TrainingRun
    dropout_key: int
    dropout_rates: Mapping[str, float]
    iteration: int = 0
    evaluated: int = -1
    counted: int = 0
    slot_steps: float = 0.0
    wall_seconds: float = 0.0
    point_seconds: float = 0.0
    points: list[Point] = field(default_factory=list)
    progress: StoppingState = field(default_factory=StoppingState)
    at_start: Sequence[Tensor] = ()

    @classmethod
    def of(
        cls, run: TrainingRun, numbers: Mapping[str, Any], at_start: Sequence[Tensor] = ()
    ) -> Member:
        """Return a run that continues from a snapshot's numbers; without numbers it starts at iteration 0."""
        # The caller's entry.
        known = {name: value for name, value in numbers.items() if name != "grad_accum"}
        progress = StoppingState(**known.pop("progress", {}))
        dropout_key = generator_key(run.values.seed, "dropout")
        return cls(
            run,
            dropout_key,
            dropout_rates(run.values),
            **known,
            progress=progress,
            at_start=at_start,
        )

    def numbers(self) -> dict[str, Any]:
        """Return the numbers of a snapshot: all state besides the rows."""
        named = (
            "iteration",
            "evaluated",
            "counted",
            "slot_steps",
            "wall_seconds",
            "point_seconds",
        )
        copied = {"points": [*self.points], "progress": asdict(self.progress)}
        return {name: getattr(self, name) for name in named} | copied

    def is_due(self, ahead: int = 0) -> bool:
        """Return whether the run must be evaluated now, or after `ahead` more steps, before it trains on."""
        values, iteration = self.run.values, self.iteration + ahead
        at_interval = iteration % values.eval_interval == 0 or iteration == values.max_iters
        return at_interval and self.evaluated < iteration

    def has_point_ahead(self) -> bool:
        """Return whether the curve gets a point after the next step."""
        return (self.iteration + 1) % self.run.values.log_interval == 0 or self.is_due(ahead=1)

    def add_point(self, loss: float, norm: float) -> Point:
        """Add a point to the curve from sums of loss and gradient norm since the last one, and return it."""
        values = self.run.values
        now, before = (
            train_tokens(values, self.iteration - back) for back in (0, self.counted)
        )
        point: Point = {
            "iteration": self.iteration,
            "wall_seconds": self.wall_seconds,
            "train_loss": loss / self.counted,
            "grad_norm": norm / self.counted,
            "learning_rate": learning_rate(
                values, self.iteration - 1, self.progress.n_halvings
            ),
            "tokens_per_second": (now - before) / (self.wall_seconds - self.point_seconds),
        }
        self.points.append(point)
        self.counted, self.point_seconds = 0, self.wall_seconds
        return point

    def step_numbers(self, names: Iterable[str]) -> dict[str, float]:
        """Return the optimizer's hyperparameters for the next step; and as `loss.NAME` those that the loss takes.

        `limit` is the largest norm of a gradient, infinite without clipping.
        """
        values = self.run.values
        rates = Rates.at(
            learning_rate=learning_rate(values, self.iteration, self.progress.n_halvings),
            weight_decay=values.weight_decay,
            beta1=values.betas[0],
            beta2=values.betas[1],
            eps=values.eps,
            momentum=values.momentum,
            step=self.iteration + 1,
        )
        limit = math.inf if values.grad_clip is None else values.grad_clip
        numbers = rates._asdict() | {"limit": limit}
        return numbers | {f"loss.{name}": getattr(values, name) for name in names}

    def record(self, measures: dict[str, float], seconds: float) -> Record:
        """Update the run from an evaluation that took `seconds`, and return its record."""
        val_loss = measures.pop("val_loss")
        self.wall_seconds += seconds
        self.point_seconds += seconds  # evaluation does not count in tokens per second
        self.evaluated = self.iteration
        state = self.progress.evaluated(val_loss, self.iteration, self.run.values)
        points, self.points = self.points, []
        best, key = (self.progress.best, self.progress.best_iteration), self.run.key
        costs = (self.wall_seconds, seconds, self.slot_steps)
        return Record(key, self.iteration, val_loss, state, best, *costs, points, measures)
