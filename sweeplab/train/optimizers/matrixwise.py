"""The optimizers that update whole matrices: Muon and Adafactor.

Muon: Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024).
A hidden matrix moves in the direction of the semi-orthogonal matrix nearest to its Nesterov momentum, computed by five
Newton-Schulz steps. AdamW updates embeddings, an untied head, routers, gains and biases. An encoder's head.transform is
a hidden matrix. As in Jordan, query, key and value are separate matrices, although one weight holds them; so is every
expert.
Departures: both optimizers share one learning rate, because the update is scaled by 0.2 sqrt(max(in, out)), which gives
its elements the usual size of AdamW's (Liu et al., "Muon is scalable for LLM training", 2025; match_rms_adamw in
torch.optim.Muon). Jordan has two learning rates and sqrt(max(1, out / in)). Weight decay is decoupled, as in Liu et al.
Newton-Schulz runs in float32, not bfloat16. The default momentum is 0.9, not 0.95.

Adafactor: Shazeer and Stern, "Adafactor: adaptive learning rates with sublinear memory cost" (2018), algorithm 4.
A matrix stores the row means and column means of its squared gradients; their product divided by the overall mean
estimates the second moment. There is no first moment. The decay rises as 1 - t^-0.8, and an update with a root mean
square above 1 is scaled down to 1.
Departures: the learning rate is the schedule's, neither relative to the weights' size nor limited by 1 / sqrt(t)
(scale_parameter and relative_step are off). Weight decay is decoupled; the paper has none. Each weight is factored as
it is stored: query, key and value as one matrix; experts separately, but clipped together.
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
from sweeplab.train.optimizers.base import EachRates, Optimizer, Rows, State, column, decay_, packed, spans
from sweeplab.train.optimizers.elementwise import adam_

if TYPE_CHECKING:
    from jaxtyping import Float

# Jordan's quintic a x + b x^3 + c x^5, steepest at zero. It brings singular values to between about 0.7 and 1.2.
QUINTIC = (3.4445, -4.7750, 2.0315)
STEPS = 5
SMALLEST_NORM = 1e-7
ADAMW_SIZE = 0.2
DECAY_POWER = -0.8
SMALLEST = 1e-30  # the paper's epsilon_1: added to a squared gradient
LARGEST_UPDATE = 1.0


class Muon(Optimizer):
    """Muon for hidden matrices, AdamW for all other weights."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        by_optimizer = spans(layout, lambda weight: weight.role == "hidden")
        self._hidden = [span for span, is_hidden in by_optimizer if is_hidden]
        self._rest = [span for span, is_hidden in by_optimizer if not is_hidden]
        self._second, self._n_second = packed([span.stop - span.start for span in self._rest])
        # Matrices of one shape are orthogonalized together; each is given by its weight's name and columns.
        self._by_shape: dict[tuple[int, int], list[tuple[str, slice]]] = defaultdict(list)
        for weight in layout.weights:
            for columns in _matrices(weight, layout) if weight.role == "hidden" else ():
                self._by_shape[weight.shape[-2], columns.stop - columns.start].append((weight.name, columns))

    def buffers(self) -> dict[str, int]:
        """Return the buffers: "first" has Muon's momentum and AdamW's first moment, "second" its second moment."""
        return {"first": self.layout.row_size, "second": self._n_second}

    def update_(self, weights: Rows, gradient: Rows, state: State, rates: EachRates) -> None:
        """Update weights and state in place."""
        decay_(weights, self.layout.n_decayed, rates)
        first, second = state["first"], state["second"]
        for span, columns in zip(self._rest, self._second, strict=True):
            adam_(weights[:, span], gradient[:, span], first[:, span], second[:, columns], rates)
        momentum = column(lambda rate: rate.momentum, rates, weights)
        for span in self._hidden:
            first[:, span].mul_(momentum).add_(gradient[:, span])
            gradient[:, span].add_(first[:, span] * momentum)
        own, directions = self.layout.views(weights), self.layout.views(gradient)
        for (n_in, n_out), pieces in self._by_shape.items():
            stacks = [
                directions[name][..., columns].reshape(weights.shape[0], -1, n_in, n_out)
                for name, columns in pieces
            ]
            together = torch.cat(stacks, dim=1)  # [K, matrices, in, out]
            steps = orthogonalize(together.flatten(0, 1)).view_as(together)
            scale = ADAMW_SIZE * math.sqrt(max(n_in, n_out))
            size = column(lambda rate, by=scale: rate.learning_rate * by, rates, together)  # type: ignore[misc]
            steps = steps * size[:, :, None, None]
            by_piece = torch.split(steps, [stack.shape[1] for stack in stacks], dim=1)
            for (name, columns), step in zip(pieces, by_piece, strict=True):
                weight = own[name][..., columns]
                weight.sub_(step.reshape(weight.shape))


def orthogonalize(matrices: Float[Tensor, "n in out"]) -> Float[Tensor, "n in out"]:
    """Return the matrices with singular values near 1, by Newton-Schulz iteration."""
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if is_tall else matrices
    norms = torch.linalg.vector_norm(matrices.flatten(1), dim=1).clamp_(min=SMALLEST_NORM)
    x = x / norms[:, None, None]
    a, b, c = QUINTIC
    for _ in range(STEPS):
        gram = torch.bmm(x, x.transpose(1, 2))
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.transpose(1, 2) if is_tall else x


def _matrices(weight: Weight, layout: Layout) -> Iterator[slice]:
    """Yield the columns of each matrix in a weight; queries, keys and values are separate matrices."""
    n_columns = weight.shape[-1]
    queries = layout.shape.n_head * layout.shape.head_dim if weight.name.endswith(".qkv.weight") else 0
    bounds = [0, n_columns]
    if weight.name.endswith((".qkv.weight", ".kv.weight")):
        bounds = sorted({0, queries, (queries + n_columns) // 2, n_columns})
    for begin, end in pairwise(bounds):
        yield slice(begin, end)


class Adafactor(Optimizer):
    """Adafactor: second moments factored into rows and columns, and clipped updates."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._matrices = [weight for weight in layout.weights if len(weight.shape) > 1]
        self._vectors = [weight for weight in layout.weights if len(weight.shape) == 1]
        rows = [weight.size // weight.shape[-1] for weight in self._matrices]
        columns = [weight.size // weight.shape[-2] for weight in self._matrices]
        self._rows, self._n_rows = packed(rows)
        self._columns, self._n_columns = packed(columns)
        self._second, self._n_second = packed([weight.size for weight in self._vectors])

    def buffers(self) -> dict[str, int]:
        """Return the buffers: the row means and column means of matrices, and the second moments of vectors."""
        return {"row_means": self._n_rows, "column_means": self._n_columns, "second": self._n_second}

    def update_(self, weights: Rows, gradient: Rows, state: State, rates: EachRates) -> None:
        """Update weights and state in place."""
        decay_(weights, self.layout.n_decayed, rates)
        share = column(lambda rate: rate.step**DECAY_POWER, rates, weights)[:, 0]
        rate = column(lambda rate: rate.learning_rate, rates, weights)[:, 0]
        own, gradients = self.layout.views(weights), self.layout.views(gradient)
        for weight, rows, columns in zip(self._matrices, self._rows, self._columns, strict=True):
            grad = gradients[weight.name]
            squares = grad.square().add_(SMALLEST)
            row_means = state["row_means"][:, rows].view(grad.shape[:-1])
            column_means = state["column_means"][:, columns].view(*grad.shape[:-2], -1)
            _average_(row_means, squares.mean(-1), share)
            _average_(column_means, squares.mean(-2), share)
            # Divide first, because the product of two small means would be 0 in float32.
            row_factors = row_means / row_means.mean(-1, keepdim=True)
            _update_(own[weight.name], grad, row_factors.unsqueeze(-1) * column_means.unsqueeze(-2), rate)
        for weight, columns in zip(self._vectors, self._second, strict=True):
            grad, second = gradients[weight.name], state["second"][:, columns]
            _average_(second, grad.square().add_(SMALLEST), share)
            _update_(own[weight.name], grad, second, rate)


def _per_run(values: Tensor, like: Tensor) -> Tensor:
    """Return one number per run [K] in a shape that broadcasts to a tensor [K, …]."""
    return values.view(-1, *[1] * (like.dim() - 1))


def _average_(mean: Tensor, value: Tensor, share: Tensor) -> None:
    """Update a moving average [K, …], with each run's share [K] of the new value."""
    mean.mul_(1.0 - _per_run(share, mean)).add_(value * _per_run(share, value))


def _update_(weight: Tensor, grad: Tensor, second: Tensor, rate: Tensor) -> None:
    """Subtract the gradient over the root of its second moment from a weight [K, …], clipped for each run."""
    step = grad / second.clamp(min=SMALLEST).sqrt_()
    sizes = torch.linalg.vector_norm(step.flatten(1), dim=1) / math.sqrt(step[0].numel())
    step = step * _per_run(rate / (sizes / LARGEST_UPDATE).clamp_(min=1.0), step)
    weight.sub_(step)
