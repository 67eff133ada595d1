"""Adafactor: Shazeer and Stern, "Adafactor: adaptive learning rates with sublinear memory cost" (2018), algorithm 4.

A matrix keeps of its squared gradients the means of rows and of columns; their product over the mean of all stands
for the second moment. There is no first moment. Its decay rises as 1 - t^-0.8, and an update whose root mean
square is above 1 is scaled down to 1.

Departures: the step is the schedule's learning rate, neither relative to the weights' size nor capped by 1 / sqrt(t)
(what the field calls scale_parameter and relative_step, both off); decoupled weight decay, which the paper has not;
a weight is factored as it lies, so query, key and value as one matrix, and experts each apart but clipped together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sweeplab.model.layout import Layout
from sweeplab.train.optimizers.base import Optimizer, Rates, Rows, decay_, places

DECAY_POWER = -0.8
SMALLEST = 1e-30  # the paper's epsilon_1: added to a squared gradient
LARGEST_UPDATE = 1.0


class Adafactor(Optimizer):
    """Second moments by rows and columns, and clipped updates."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._matrices = [weight for weight in layout.weights if len(weight.shape) > 1]
        self._vectors = [weight for weight in layout.weights if len(weight.shape) == 1]
        self._rows, self._n_rows = places([weight.size // weight.shape[-1] for weight in self._matrices])
        self._columns, self._n_columns = places(
            [weight.size // weight.shape[-2] for weight in self._matrices]
        )
        self._second, self._n_second = places([weight.size for weight in self._vectors])

    def buffers(self) -> dict[str, int]:
        """Return a row each for matrices' row means and column means, and for vectors' second moments."""
        return {"row_means": self._n_rows, "column_means": self._n_columns, "second": self._n_second}

    def update_(
        self, weights: Rows, gradient: Rows, state: Mapping[str, Tensor], rates: Sequence[Rates]
    ) -> None:
        """Update weights and state in place."""
        decay_(weights, self.layout.n_decayed, rates)
        device, n_runs = weights.device, len(rates)
        new = torch.tensor([rate.step**DECAY_POWER for rate in rates], device=device)
        size = torch.tensor([rate.learning_rate for rate in rates], device=device)
        own, slopes = self.layout.views(weights), self.layout.views(gradient)
        for weight, rows, columns in zip(self._matrices, self._rows, self._columns, strict=True):
            slope = slopes[weight.name]
            squares = slope.square().add_(SMALLEST)
            row_means = state["row_means"][:, rows].view(n_runs, *weight.shape[:-1])
            column_means = state["column_means"][:, columns].view(
                n_runs, *weight.shape[:-2], weight.shape[-1]
            )
            _move_(row_means, squares.mean(-1), new)
            _move_(column_means, squares.mean(-2), new)
            # The quotient first: the product of two small means is no float32.
            share = row_means / row_means.mean(-1, keepdim=True)
            _step_(own[weight.name], slope, share.unsqueeze(-1) * column_means.unsqueeze(-2), size)
        for weight, place in zip(self._vectors, self._second, strict=True):
            slope, second = slopes[weight.name], state["second"][:, place]
            _move_(second, slope.square().add_(SMALLEST), new)
            _step_(own[weight.name], slope, second, size)


def _along(values: Tensor, like: Tensor) -> Tensor:
    """Return one number per run [K] in the shape that multiplies a tensor [K, …]."""
    return values.view(-1, *[1] * (like.dim() - 1))


def _move_(mean: Tensor, value: Tensor, new: Tensor) -> None:
    mean.mul_(1.0 - _along(new, mean)).add_(value * _along(new, value))


def _step_(weight: Tensor, slope: Tensor, second: Tensor, size: Tensor) -> None:
    """Move a weight [K, …] against its slope over the root of its second moment, clipped run by run."""
    step = slope / second.clamp(min=SMALLEST).sqrt_()
    lengths = torch.linalg.vector_norm(step.flatten(1), dim=1) / math.sqrt(step[0].numel())
    step = step * _along(size / (lengths / LARGEST_UPDATE).clamp_(min=1.0), step)
    weight.sub_(step)
