"""What a run's training reads and computes, and the memory it takes, by its hyperparameters (no torch).

A row is a sequence to learn from, with the source of it where there is one. Its lengths are the objective's. Pairs
are counted as if every row, and every source that stands apart, were block_size long: what is computed is as long as
the training split's longest pair needs, which the hyperparameters do not say, so that tokens, FLOPs and memory are
then upper bounds. While a batch warms up the rows that stand in it again are not counted, for only a stack computes
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweeplab.hyperparameters import Hyperparameters
from sweeplab.model.accounting import activation_bytes, forward_flops, n_params
from sweeplab.model.shape import ModelShape
from sweeplab.train.schedule import rows_seen

Values = Mapping[str, Any]

# Copies of its weights that a training run takes: themselves, the best, two moments, two gradients, and what an
# update needs for a moment.
COPIES = 9


def row_lengths(values: Values) -> tuple[int, int]:
    """Return the tokens of a row's sequence and of its source, 0 where there is none."""
    # Here and not above: with it comes numpy, which is slow to import.
    from sweeplab.data.objectives import objective_of

    values = Hyperparameters.of(values)
    return objective_of(values).lengths(values)


def train_tokens(values: Values, iteration: int) -> int:
    """Return the tokens that a run has read by `iteration`: of sequences and sources, with their padding."""
    return rows_seen(values, iteration) * sum(row_lengths(values))


def train_flops(values: Values, iteration: int) -> int:
    """Return the FLOPs of a run's forward and backward passes by `iteration`; evaluations are not counted."""
    return rows_seen(values, iteration) * row_flops(values)


def row_flops(values: Values) -> int:
    """Return the FLOPs of one row, forward and backward, which is twice forward."""
    return 3 * forward_flops(ModelShape.of(values), *row_lengths(values))


def train_memory_bytes(values: Values) -> int:
    """Estimate the bytes that a run takes in a stack: copies of its weights, and the activations of a batch's part.

    To choose K and to warn by.
    """
    shape, n_parts = ModelShape.of(values), values["grad_accum"]
    n_rows: int = values["batch_size"] // n_parts
    copies = (
        COPIES + int(values["ema"] > 0) + int(n_parts > 1)
    )  # the weights' mean, and a part's own gradient
    value_bytes = 2 if values["dtype"] == "bfloat16" else 4
    activations = activation_bytes(shape, *row_lengths(values), value_bytes)
    return 4 * copies * n_params(shape) + n_rows * activations
