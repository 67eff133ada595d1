"""Lion: Chen et al., "Symbolic discovery of optimization algorithms" (2023), algorithm 2.

Its steps are as large as the learning rate in every number: the authors take a rate 3 to 10 times smaller than
AdamW's, a weight decay as many times larger, and betas (0.9, 0.99).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sweeplab.model.layout import Layout
from sweeplab.train.optimizers.adamw import learning_rate_spans
from sweeplab.train.optimizers.base import Optimizer, Rates, column, decay_


class Lion(Optimizer):
    """The sign of a momentum, with decoupled weight decay; under muP each weight has its own learning rate."""

    meaning = "the sign of a momentum, with decoupled weight decay (Chen et al. 2023)"

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._spans = learning_rate_spans(layout)

    def buffers(self) -> dict[str, int]:
        """Return one row for the momentum."""
        return {"momentum": self.layout.row_size}

    def update_(
        self, weights: Tensor, gradient: Tensor, state: Mapping[str, Tensor], rates: Sequence[Rates]
    ) -> None:
        """Update weights and momentum in place."""
        momentum = state["momentum"]
        beta1 = column((rate.beta1 for rate in rates), weights)
        beta2 = column((rate.beta2 for rate in rates), weights)
        mixed = (momentum * beta1).add_(gradient * (1.0 - beta1))
        signs = torch.where(mixed.isnan(), mixed, mixed.sign())  # torch's sign hides a run that diverged
        momentum.mul_(beta2).add_(gradient.mul_(1.0 - beta2))
        decay_(weights, self.layout.n_decayed, rates)
        rate = column((rate.learning_rate for rate in rates), weights)
        for span, factor in self._spans:
            weights[:, span].sub_(signs[:, span] * (rate * factor))
