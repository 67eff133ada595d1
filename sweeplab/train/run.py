"""What the hyperparameters of a run determine without training it. Imports no torch, because a plan imports it.

They determine which runs may share a stack, a run's tokens, FLOPs and memory, and the metric of an evaluation.

A row is a training sequence, with its source if there is one. The objective gives its lengths. For pairs, tokens, FLOPs
and memory are upper bounds: every row and every source counts block_size tokens, but training pads only to the longest
pair of the training split, which the hyperparameters do not tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sweeplab.hyperparameters import SHAPE, TRANSFORMER, Hyperparameters
from sweeplab.model.accounting import activation_bytes, forward_flops, n_params
from sweeplab.model.shape import ModelShape, settled

ShapeKey = tuple[tuple[str, Any], ...]

# The optimizers of muP's table: each element's step is about as large as the learning rate.
MUP_OPTIMIZERS = ("adamw", "lion")
# Conditions on a run's hyperparameters besides their own bounds, written like a study's constraints.
REQUIREMENTS = (
    "batch_size % grad_accum == 0",
    "dtype != 'float16'",  # of older versions
    "model == 'transformer' or compile != True",
    "model == 'transformer' or family == 'decoder' or objective == 'masked'",  # it is told of no padding
    " or ".join(["parametrization == 'standard'", *(f"optimizer == '{name}'" for name in MUP_OPTIMIZERS)]),
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
        return tuple((name, value) for name, value in values.as_dict().items() if name != "seed")
    dropped = tuple(kind for kind, rate in dropout_rates(values).items() if rate > 0)
    program = {"drops": dropped, "smooths": values.label_smoothing > 0}
    return (*((name, getattr(values, name)) for name in SHAPE), *program.items())


def dropout_rates(values: Hyperparameters) -> dict[str, float]:
    """Return a run's dropout probabilities by kind of site, as in `Transformer.sites`."""
    known = settled(vars(values))
    return {
        "embedding": known["embedding_dropout"],
        "attention": known["attention_dropout"],
        "residual": known["residual_dropout"],
    }


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
    copies = COPIES + int(values.grad_accum > 1)  # the gradient of one micro-batch
    return 4 * copies * n_params(ModelShape.of(values))


def with_more_accumulation(values: Hyperparameters) -> Hyperparameters | None:
    """Return the values with more gradient accumulation at the same batch size; None if no micro-batch is smaller."""
    from sweeplab.data.objectives import objective_of

    smallest = objective_of(values).per_loss
    sizes = range(values.grad_accum + 1, values.batch_size + 1)
    n_parts = next((n for n in sizes if values.batch_size % (n * smallest) == 0), None)
    if n_parts is None:
        return None
    return values.replace(grad_accum=n_parts)


# A function of the mean validation loss over a trial's seeds, the iteration and the trial's hyperparameters.
LossMetric = Callable[[float, int, Mapping[str, Any]], float]


@dataclass(frozen=True)
class ModelMetric:
    """A function of a run's model, the batches of its evaluation and the evaluation's record.

    It is measured at every evaluation; with `at_end` once, when the run ends by itself, with its best weights.
    """

    measure: Callable[[Any, Any, Any], float | Mapping[str, float]]
    at_end: bool = False


Metric = LossMetric | ModelMetric

METRICS: dict[str, Metric] = {"val_loss": lambda loss, iteration, values: loss}


def is_at_end(name: str) -> bool:
    """Return whether a metric is measured only when a run ends."""
    metric = METRICS[name]
    return isinstance(metric, ModelMetric) and metric.at_end


def metric_value(metric: str, loss: float, iteration: int, values: Hyperparameters) -> float:
    """Return the value of a metric for an evaluation: the loss, or a plugin's function of it; lower is better.

    Raises:
        ValueError: the value is not finite, although the loss is.
    """
    function = METRICS[metric]
    assert not isinstance(function, ModelMetric)  # it is measured, not computed from a loss
    value = function(loss, iteration, values.as_dict())
    if math.isfinite(loss) and not math.isfinite(value):
        raise ValueError(f"metric {metric} is {value} at iteration {iteration}, but the loss is {loss}")
    return value
