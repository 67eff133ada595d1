"""The optimizers that take a matrix as one: Muon and Adafactor.

Muon: Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024).
A hidden matrix moves along the nearest half-orthogonal matrix of its momentum (Nesterov's), found by five
Newton-Schulz steps; embeddings, the head's own table, routers, gains and biases are AdamW's; what an encoder has
before its head, head.transform, is a hidden matrix. As there, query, key and value are matrices of their own, though
they lie in one weight; so is every expert.
Departures: one learning rate serves both, for an update is scaled by 0.2 sqrt(max(in, out)), which gives its
numbers AdamW's usual size (Liu et al., "Muon is scalable for LLM training", 2025; torch.optim.Muon's
match_rms_adamw), where Jordan has two rates and sqrt(max(1, out / in)); decoupled weight decay, as Liu et al.;
Newton-Schulz in float32, not bfloat16; the momentum is 0.9 by default, not 0.95.

Adafactor: Shazeer and Stern, "Adafactor: adaptive learning rates with sublinear memory cost" (2018), algorithm 4.
A matrix keeps of its squared gradients the means of rows and of columns; their product over the mean of all stands
for the second moment. There is no first moment. Its decay rises as 1 - t^-0.8, and an update whose root mean
square is above 1 is scaled down to 1.
Departures: the step is the schedule's learning rate, neither relative to the weights' size nor capped by 1 / sqrt(t)
(what the field calls scale_parameter and relative_step, both off); decoupled weight decay, which the paper has not;
a weight is factored as it lies, so query, key and value as one matrix, and experts each apart but clipped together.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sweeplab.model.layout import Layout, Weight
from sweeplab.train.optimizers.base import EachRates, Optimizer, Rows, State, column, decay_, places, spans
from sweeplab.train.optimizers.elementwise import adam_

if TYPE_CHECKING:
    from jaxtyping import Float

# Jordan's quintic a x + b x^3 + c x^5, steepest at zero: singular values end between about 0.7 and 1.2.
QUINTIC = (3.4445, -4.7750, 2.0315)
STEPS = 5
SHORTEST = 1e-7
ADAMW_SIZE = 0.2
DECAY_POWER = -0.8
SMALLEST = 1e-30  # the paper's epsilon_1: added to a squared gradient
LARGEST_UPDATE = 1.0


class Muon(Optimizer):
    """Orthogonal steps for hidden matrices, AdamW for the rest."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        stretches = spans(layout, lambda weight: weight.role == "hidden")
        self._hidden = [span for span, is_hidden in stretches if is_hidden]
        self._rest = [span for span, is_hidden in stretches if not is_hidden]
        self._second, self._n_second = places([span.stop - span.start for span in self._rest])
        # Matrices of one shape are made orthogonal together: where each is, by its weight's name and columns.
        self._alike: dict[tuple[int, int], list[tuple[str, slice]]] = defaultdict(list)
        for weight in layout.weights:
            for columns in _matrices(weight, layout) if weight.role == "hidden" else ():
                self._alike[weight.shape[-2], columns.stop - columns.start].append((weight.name, columns))

    def buffers(self) -> dict[str, int]:
        """Return a row for momentum and AdamW's first moment, and one for its second, where it has one."""
        return {"first": self.layout.row_size, "second": self._n_second}

    def update_(self, weights: Rows, gradient: Rows, state: State, rates: EachRates) -> None:
        """Update weights and state in place."""
        decay_(weights, self.layout.n_decayed, rates)
        first, second = state["first"], state["second"]
        for span, place in zip(self._rest, self._second, strict=True):
            adam_(weights[:, span], gradient[:, span], first[:, span], second[:, place], rates)
        momentum = column(lambda rate: rate.momentum, rates, weights)
        for span in self._hidden:
            first[:, span].mul_(momentum).add_(gradient[:, span])
            gradient[:, span].add_(first[:, span] * momentum)
        # Hidden matrices move along the orthogonal parts of their directions.
        own, directions = self.layout.views(weights), self.layout.views(gradient)
        for (n_in, n_out), pieces in self._alike.items():
            stacks = [
                directions[name][..., columns].reshape(weights.shape[0], -1, n_in, n_out)
                for name, columns in pieces
            ]
            together = torch.cat(stacks, dim=1)  # [K, matrices, in, out]
            steps = orthogonal(together.flatten(0, 1)).view_as(together)
            scale = ADAMW_SIZE * math.sqrt(max(n_in, n_out))
            size = column(lambda rate, by=scale: rate.learning_rate * by, rates, together)  # type: ignore[misc]
            steps = steps * size[:, :, None, None]
            by_piece = torch.split(steps, [stack.shape[1] for stack in stacks], dim=1)
            for (name, columns), step in zip(pieces, by_piece, strict=True):
                weight = own[name][..., columns]
                weight.sub_(step.reshape(weight.shape))


def orthogonal(matrices: Float[Tensor, "n in out"]) -> Float[Tensor, "n in out"]:
    """Return matrices with their singular values brought near one."""
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if is_tall else matrices
    lengths = torch.linalg.vector_norm(matrices.flatten(1), dim=1).clamp_(min=SHORTEST)
    x = x / lengths[:, None, None]
    a, b, c = QUINTIC
    for _ in range(STEPS):
        gram = torch.bmm(x, x.transpose(1, 2))
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.transpose(1, 2) if is_tall else x


def _matrices(weight: Weight, layout: Layout) -> Iterator[slice]:
    """Yield the columns of each matrix in a weight: queries, keys and values are apart."""
    n_columns = weight.shape[-1]
    queries = layout.shape.n_head * layout.shape.head_dim if weight.name.endswith(".qkv.weight") else 0
    bounds = [0, n_columns]
    if weight.name.endswith((".qkv.weight", ".kv.weight")):
        bounds = sorted({0, queries, (queries + n_columns) // 2, n_columns})
    for begin, end in pairwise(bounds):
        yield slice(begin, end)


class Adafactor(Optimizer):
    """Second moments by rows and columns, and clipped updates."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._matrices = [weight for weight in layout.weights if len(weight.shape) > 1]
        self._vectors = [weight for weight in layout.weights if len(weight.shape) == 1]
        self._rows, self._n_rows = places([weight.size // weight.shape[-1] for weight in self._matrices])
        columns = [weight.size // weight.shape[-2] for weight in self._matrices]
        self._columns, self._n_columns = places(columns)
        self._second, self._n_second = places([weight.size for weight in self._vectors])

    def buffers(self) -> dict[str, int]:
        """Return a row each for matrices' row means and column means, and for vectors' second moments."""
        return {"row_means": self._n_rows, "column_means": self._n_columns, "second": self._n_second}

    def update_(self, weights: Rows, gradient: Rows, state: State, rates: EachRates) -> None:
        """Update weights and state in place."""
        decay_(weights, self.layout.n_decayed, rates)
        new = column(lambda rate: rate.step**DECAY_POWER, rates, weights)[:, 0]
        size = column(lambda rate: rate.learning_rate, rates, weights)[:, 0]
        own, slopes = self.layout.views(weights), self.layout.views(gradient)
        for weight, rows, columns in zip(self._matrices, self._rows, self._columns, strict=True):
            slope = slopes[weight.name]
            squares = slope.square().add_(SMALLEST)
            row_means = state["row_means"][:, rows].view(slope.shape[:-1])
            column_means = state["column_means"][:, columns].view(*slope.shape[:-2], -1)
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
