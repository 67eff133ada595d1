"""Muon: Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024).

A hidden matrix moves along the nearest half-orthogonal matrix of its momentum (Nesterov's), found by five
Newton-Schulz steps; embeddings, the head's own table, routers, gains and biases are AdamW's; what an encoder has
before its head, head.transform, is a hidden matrix. As there, query, key and value are matrices of their own, though
they lie in one weight; so is every expert.

Departures: one learning rate serves both, for an update is scaled by 0.2 sqrt(max(in, out)), which gives its
numbers AdamW's usual size (Liu et al., "Muon is scalable for LLM training", 2025; torch.optim.Muon's
match_rms_adamw), where Jordan has two rates and sqrt(max(1, out / in)); decoupled weight decay, as Liu et al.;
Newton-Schulz in float32, not bfloat16; the momentum is 0.9 by default, not 0.95.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from sweeplab.model.layout import Layout
from sweeplab.model.weights import Weight, role_of
from sweeplab.train.optimizers.base import Optimizer, Rates, Rows, column, decay_, places, spans
from sweeplab.train.optimizers.elementwise import adam_

# Jordan's quintic a x + b x^3 + c x^5, steepest at zero: singular values end between about 0.7 and 1.2.
QUINTIC = (3.4445, -4.7750, 2.0315)
STEPS = 5
SHORTEST = 1e-7
ADAMW_SIZE = 0.2


class Muon(Optimizer):
    """Orthogonal steps for hidden matrices, AdamW for the rest."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        stretches = spans(layout, _is_hidden)
        self._hidden = [span for span, hidden in stretches if hidden]
        self._rest = [span for span, hidden in stretches if not hidden]
        self._second, self._n_second = places([span.stop - span.start for span in self._rest])
        # Matrices of one shape are made orthogonal together: where each is, by its weight's name and columns.
        self._alike: dict[tuple[int, int], list[tuple[str, slice]]] = defaultdict(list)
        for weight in layout.weights:
            for columns in _matrices(weight, layout) if _is_hidden(weight) else ():
                self._alike[weight.shape[-2], columns.stop - columns.start].append((weight.name, columns))

    def buffers(self) -> dict[str, int]:
        """Return a row for momentum and AdamW's first moment, and one for its second, where it has one."""
        return {"first": self.layout.row_size, "second": self._n_second}

    def update_(
        self, weights: Rows, gradient: Rows, state: Mapping[str, Tensor], rates: Sequence[Rates]
    ) -> None:
        """Update weights and state in place."""
        decay_(weights, self.layout.n_decayed, rates)
        first, second = state["first"], state["second"]
        for span, own in zip(self._rest, self._second, strict=True):
            adam_(weights[:, span], gradient[:, span], first[:, span], second[:, own], rates)
        momentum = column((rate.momentum for rate in rates), weights)
        for span in self._hidden:
            first[:, span].mul_(momentum).add_(gradient[:, span])
            gradient[:, span].add_(first[:, span] * momentum)
        self._step_(self.layout.views(weights), self.layout.views(gradient), rates)

    def _step_(
        self, weights: Mapping[str, Tensor], directions: Mapping[str, Tensor], rates: Sequence[Rates]
    ) -> None:
        """Move hidden matrices along the orthogonal parts of their directions."""
        for (n_in, n_out), pieces in self._alike.items():
            stacks = [
                directions[name][..., columns].reshape(len(rates), -1, n_in, n_out)
                for name, columns in pieces
            ]
            together = torch.cat(stacks, dim=1)  # [K, matrices, in, out]
            steps = orthogonal(together.flatten(0, 1)).view_as(together)
            scale = ADAMW_SIZE * math.sqrt(max(n_in, n_out))
            size = column((rate.learning_rate * scale for rate in rates), together)
            steps = steps * size[:, :, None, None]
            own = torch.split(steps, [stack.shape[1] for stack in stacks], dim=1)
            for (name, columns), step in zip(pieces, own, strict=True):
                weight = weights[name][..., columns]
                weight.sub_(step.reshape(weight.shape))


def orthogonal(matrices: Tensor) -> Tensor:
    """Return matrices [n, in, out] with their singular values brought near one."""
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if is_tall else matrices
    lengths = torch.linalg.vector_norm(matrices.flatten(1), dim=1).clamp_(min=SHORTEST)
    x = x / lengths[:, None, None]
    a, b, c = QUINTIC
    for _ in range(STEPS):
        gram = torch.bmm(x, x.transpose(1, 2))
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.transpose(1, 2) if is_tall else x


def _is_hidden(weight: Weight) -> bool:
    return role_of(weight.name, len(weight.shape)) == "hidden"


def _matrices(weight: Weight, layout: Layout) -> Iterator[slice]:
    """Yield the columns of each matrix in a weight: queries, keys and values are apart."""
    n_columns = weight.shape[-1]
    queries = layout.shape.n_head * layout.shape.head_dim if weight.name.endswith(".qkv.weight") else 0
    bounds = [0, n_columns]
    if weight.name.endswith((".qkv.weight", ".kv.weight")):
        bounds = sorted({0, queries, (queries + n_columns) // 2, n_columns})
    for begin, end in pairwise(bounds):
        yield slice(begin, end)
