"""One training by its hyperparameters alone (no torch: a plan reads it too).

Which runs may share a stack, what a run reads, computes and takes of memory, and what an evaluation of it is worth.

A row is a sequence to learn from, with its source where there is one. Its lengths are the objective's. Pairs are
counted as if every row, and every source, were block_size long: what is computed is as long as the training split's
longest pair needs, which the hyperparameters do not say, so tokens, FLOPs and memory are then upper bounds. While the
batch size warms up, repeated rows are not counted: only a stack computes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sweeplab.hyperparameters import SHAPE, Hyperparameters
from sweeplab.model.accounting import activation_bytes, forward_flops, n_params
from sweeplab.model.shape import ModelShape, settled
from sweeplab.train.schedule import rows_seen

ShapeKey = tuple[tuple[str, Any], ...]

# Their steps are, number by number, as large as the learning rate, on which muP's table rests.
FOLLOW_WIDTH = ("adamw", "lion")
# What a training's hyperparameters have to meet besides their own bounds, as a study's constraints are written.
REQUIREMENTS = (
    "batch_size % grad_accum == 0",
    " or ".join(["parametrization == 'standard'", *(f"optimizer == '{name}'" for name in FOLLOW_WIDTH)]),
)
# Copies of its weights that a training run takes: themselves, the best, two moments, two gradients, and what an
# update needs for a moment.
COPIES = 9


@dataclass(frozen=True)
class Run:
    """A trial with one seed: a key to tell it by and its effective hyperparameters."""

    key: str
    values: Hyperparameters


def shape_key(values: Hyperparameters) -> ShapeKey:
    """Return what fixes the tensors and the program: runs of equal key may share a stack.

    How much a run drops does not matter, but whether it drops at all decides how attention is computed; likewise
    whether it smooths its targets decides the loss, and whether it averages its weights the rows it has.
    """
    dropped = tuple(kind for kind, chance in drop_chances(values).items() if chance > 0)
    program = {"drops": dropped, "smooths": values.label_smoothing > 0, "averages": values.ema > 0}
    return (*((name, getattr(values, name)) for name in SHAPE), *program.items())


def drop_chances(values: Hyperparameters) -> dict[str, float]:
    """Return a run's dropout probabilities, by kind of a model's sites."""
    known = settled(vars(values))
    return {
        "embedding": known["embedding_dropout"],
        "attention": known["attention_dropout"],
        "residual": known["residual_dropout"],
        "depth": known["stochastic_depth"],
    }


def row_lengths(values: Hyperparameters) -> tuple[int, int]:
    """Return the tokens of a row's sequence and of its source, 0 where there is none."""
    # Here and not above: with it comes numpy, which is slow to import.
    from sweeplab.data.objectives import objective_of

    return objective_of(values).lengths(values)


def train_tokens(values: Hyperparameters, iteration: int) -> int:
    """Return the tokens that a run has read by `iteration`: of sequences and sources, with their padding."""
    return rows_seen(values, iteration) * sum(row_lengths(values))


def train_flops(values: Hyperparameters, iteration: int) -> int:
    """Return the FLOPs of a run's forward and backward passes by `iteration`; evaluations are not counted."""
    return rows_seen(values, iteration) * row_flops(values)


def row_flops(values: Hyperparameters) -> int:
    """Return the FLOPs of one row, forward and backward, which is twice forward."""
    return 3 * forward_flops(ModelShape.of(values), *row_lengths(values))


def train_memory_bytes(values: Hyperparameters) -> int:
    """Estimate the bytes that a run takes in a stack, to choose K and to warn by.

    They are copies of its weights, and the activations of one part of a batch.
    """
    value_bytes = 2 if values.device == "cuda" and values.dtype != "float32" else 4
    activations = activation_bytes(ModelShape.of(values), *row_lengths(values), value_bytes)
    return state_bytes(values) + values.batch_size // values.grad_accum * activations


def state_bytes(values: Hyperparameters) -> int:
    """Return the bytes of a run's weights and of the copies of them that it takes."""
    # The weights' mean, and a part's own gradient.
    copies = COPIES + int(values.ema > 0) + int(values.grad_accum > 1)
    return 4 * copies * n_params(ModelShape.of(values))


def in_more_parts(values: Hyperparameters) -> Hyperparameters | None:
    """Return the values with more gradient accumulation at the same batch; None where a part is as small as it gets."""
    from sweeplab.data.objectives import objective_of

    smallest = objective_of(values).per_loss
    sizes = range(values.grad_accum + 1, values.batch_size + 1)
    n_parts = next((n for n in sizes if values.batch_size % (n * smallest) == 0), None)
    return None if n_parts is None else values.replace(grad_accum=n_parts)


# Of the mean validation loss over a trial's seeds, the iteration and the trial's hyperparameters.
Metric = Callable[[float, int, Mapping[str, Any]], float]

METRICS: dict[str, Metric] = {"val_loss": lambda loss, iteration, values: loss}


def worth(metric: str, loss: float, iteration: int, values: Hyperparameters) -> float:
    """Return what an evaluation is worth: its loss, or what a plugin's metric makes of it; lower is better.

    Raises:
        ValueError: it is no finite number where the loss is one.
    """
    found = METRICS[metric](loss, iteration, values.as_dict())
    if math.isfinite(loss) and not math.isfinite(found):
        raise ValueError(f"metric {metric} is {found} at iteration {iteration}, where the loss is {loss}")
    return found
