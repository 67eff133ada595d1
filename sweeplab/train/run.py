"""What the hyperparameters of a run determine without training it. Imports no torch, because a plan imports it.

They determine which runs may share a stack, a run's tokens, FLOPs, memory and learning rates, and the metric of an
evaluation.

A row is a training sequence, with its source if there is one. The objective gives its lengths. For pairs, tokens, FLOPs
and memory are upper bounds: every row and every source counts block_size tokens, but training pads only to the longest
pair of the training split, which the hyperparameters do not tell.

The learning rate rises linearly over the warm-up, as in nanoGPT: it is (i + 1) / (warmup_iters + 1) of its peak at
iteration i. Then it follows one of SCHEDULES. Departure: a peak below min_lr is not raised to min_lr.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sweeplab.hyperparameters import SHAPE, TRANSFORMER, Hyperparameters, is_number
from sweeplab.model.accounting import activation_bytes, forward_flops, n_params
from sweeplab.model.shape import ModelShape, settled

ShapeKey = tuple[tuple[str, Any], ...]

# Conditions on a run's hyperparameters besides their own bounds, written like a study's constraints.
REQUIREMENTS = (
    "batch_size % grad_accum == 0",
    "dtype != 'float16'",  # of older versions
    "model == 'transformer' or compile != True",
    # It is told of no padding.
    "model == 'transformer' or family == 'decoder' or objective == 'masked'",
    # The optimizers of muP's table: each element's step is about as large as the learning rate.
    "parametrization == 'standard' or optimizer == 'adamw' or optimizer == 'lion'",
)
# The torch optimizers of plugins, by name.
MADE_FROM_VALUES: set[str] = set()
# The memory of a training run in copies of its weights: the weights, the best weights, two moments, two gradients, and
# the temporary tensors of an update.
COPIES = 9


@dataclass(frozen=True)
class TrainingRun:
    """A trial with one seed: a unique key, and the effective hyperparameters."""

    key: str
    values: Hyperparameters


def shape_key(values: Hyperparameters) -> ShapeKey:
    """Return what determines the tensors and the program of a run: runs of equal key may share a stack.

    A plugin's model or torch optimizer is made from all of a run's values, so that its runs share a stack only with
    other seeds.

    Dropout rates and label smoothing may differ, but not whether they are 0: that decides how attention and the loss
    are computed.
    """
    if values.model != TRANSFORMER or values.optimizer in MADE_FROM_VALUES:
        return tuple(
            (name, value) for name, value in values.as_dict().items() if name != "seed"
        )
    dropped = tuple(kind for kind, rate in dropout_rates(values).items() if rate > 0)
    return (
        *((name, getattr(values, name)) for name in SHAPE),
        ("drops", dropped),
        ("smooths", values.label_smoothing > 0),
    )


def dropout_rates(values: Hyperparameters) -> dict[str, float]:
    """Return a run's dropout probabilities by kind of site, as in `Transformer.sites`."""
    known = settled(vars(values))
    return {kind: known[f"{kind}_dropout"] for kind in ("embedding", "attention", "residual")}


def row_lengths(values: Hyperparameters) -> tuple[int, int]:
    """Return the numbers of tokens in a row's sequence and in its source; 0 without a source."""
    # Imported here because it imports numpy, which is slow.
    from sweeplab.data.objectives import objective_of

    return objective_of(values).lengths(values)


def train_tokens(values: Hyperparameters, iteration: int) -> int:
    """Return the number of tokens that a run has read by `iteration`, in sequences and sources, with padding."""
    return iteration * values.batch_size * sum(row_lengths(values))


def train_flops(values: Hyperparameters, iteration: int) -> int:
    """Return the FLOPs of a run's forward and backward passes by `iteration`; evaluations are not counted."""
    return iteration * values.batch_size * row_flops(values)


def row_flops(values: Hyperparameters) -> int:
    """Return the FLOPs of one row: three times the forward pass, because the backward pass counts twice."""
    return 3 * forward_flops(ModelShape.of(values), *row_lengths(values))


def train_memory_bytes(values: Hyperparameters) -> int:
    """Estimate a run's memory in a stack, in bytes: copies of its weights, and one micro-batch's activations.

    Used to choose K, and to warn.
    """
    value_bytes = 2 if values.device == "cuda" and values.dtype != "float32" else 4
    activations = activation_bytes(ModelShape.of(values), *row_lengths(values), value_bytes)
    return state_bytes(values) + values.batch_size // values.grad_accum * activations


def state_bytes(values: Hyperparameters) -> int:
    """Return the bytes of a run's weights, gradients, optimizer state and other tensors of that size."""
    copies = COPIES
    if values.grad_accum > 1:
        copies += 1  # the gradient of one micro-batch
    return 4 * copies * n_params(ModelShape.of(values))


def with_more_accumulation(values: Hyperparameters) -> Hyperparameters | None:
    """Return the values with more gradient accumulation at the same batch size; None if no micro-batch is smaller."""
    from sweeplab.data.objectives import objective_of

    smallest = objective_of(values).per_loss
    for n_parts in range(values.grad_accum + 1, values.batch_size + 1):
        if values.batch_size % (n_parts * smallest) == 0:
            return values.replace(grad_accum=n_parts)
    return None


# A function of a run's model, the batches of its evaluation and the evaluation's record.
Metric = Callable[[Any, Any, Any], float | Mapping[str, float]]

METRICS: dict[str, Metric] = {"val_loss": lambda model, batches, record: float(record.val_loss)}


# ------------------------------------------------------------------ the learning rate


# A function of a run's values and an iteration after the warm-up. It returns the share of the way from the floor, which
# is min_lr or the peak if this is lower, to the peak.
Schedule = Callable[[Hyperparameters, int], float]


def _progress(values: Hyperparameters, iteration: int) -> float:
    """Return the fraction of the iterations after the warm-up that are done, from 0 to 1."""
    warmup = values.warmup_iters
    return min(1.0, (iteration - warmup) / max(1, values.max_iters - warmup))


def _cosine(values: Hyperparameters, iteration: int) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * _progress(values, iteration)))


def _decay_start(values: Hyperparameters) -> float:
    return max(values.warmup_iters, values.max_iters * (1.0 - values.decay_share))


def _wsd(values: Hyperparameters, iteration: int) -> float:
    length = max(1.0, values.max_iters - _decay_start(values))
    return min(1.0, max(0.0, values.max_iters - iteration) / length)


def _inverse_sqrt(values: Hyperparameters, iteration: int) -> float:
    # Vaswani et al. count steps from 1, and the last step of their warm-up has the peak.
    return math.sqrt((values.warmup_iters + 1) / (iteration + 1))


# cosine: half a cosine down to min_lr (Loshchilov & Hutter 2017). linear: a straight line down to min_lr. plateau:
# plateau_factor times the rate after every patience_lr evaluations without improvement. wsd, warmup-stable-decay: the
# peak, then a straight line to min_lr over the last decay_share of the run (Hu et al. 2024, Hägele et al. 2024).
# inverse_sqrt: the peak times sqrt(warm-up / step), not below min_lr (Vaswani et al. 2017).
SCHEDULES: dict[str, Schedule] = {
    "cosine": _cosine,
    "linear": lambda values, iteration: 1.0 - _progress(values, iteration),
    "constant": lambda values, iteration: 1.0,
    "plateau": lambda values, iteration: 1.0,
    "wsd": _wsd,
    "inverse_sqrt": _inverse_sqrt,
}


def own_schedule(function: Callable[[float], float]) -> Schedule:
    """Return the schedule of a plug-in's function of the share of training after the warm-up, from 0 to 1.

    It returns the share of the way from min_lr (0) to the peak (1).

    Raises:
        ValueError: it returns something else.
    """
    for at in range(101):
        share = function(at / 100)
        if not is_number(share) or not 0.0 <= share <= 1.0:
            raise ValueError(
                f"the schedule is {share!r} at {at / 100:g} of training; allowed: 0 to 1"
            )
    return lambda values, iteration: function(_progress(values, iteration))


def learning_rate(values: Hyperparameters, iteration: int, n_halvings: int = 0) -> float:
    """Return the learning rate of the step from `iteration`; plateau has lowered the rate `n_halvings` times."""
    peak, warmup, kind = values.learning_rate, values.warmup_iters, values.scheduler_type
    if iteration < warmup:
        return peak * (iteration + 1) / (warmup + 1)
    if not values.lr_decay:
        return peak
    floor, share = min(values.min_lr, peak), SCHEDULES[kind](values, iteration)
    if kind == "inverse_sqrt":
        return max(floor, peak * share)
    if kind == "plateau" and n_halvings:
        return max(floor, peak * values.plateau_factor**n_halvings)
    return floor + (peak - floor) * share


def patience_begins(values: Hyperparameters) -> float:
    """Return the iteration after which evaluations count for patience: 0, or the start of the decay for `wsd`."""
    if values.lr_decay and values.scheduler_type == "wsd":
        return _decay_start(values)
    return 0.0
