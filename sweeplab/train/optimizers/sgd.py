"""Stochastic gradient descent with Polyak's momentum, as torch.optim.SGD computes it without dampening."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from sweeplab.train.optimizers.base import Optimizer, Rates, add_l2_, column


class SGD(Optimizer):
    """Gradient descent with momentum, not Nesterov's; its weight decay is an L2 term of the gradient."""

    meaning = "gradient descent with momentum and an L2 term (Polyak 1964)"

    def buffers(self) -> dict[str, int]:
        """Return one row for the momentum."""
        return {"momentum": self.layout.row_size}

    def update_(
        self, weights: Tensor, gradient: Tensor, state: Mapping[str, Tensor], rates: Sequence[Rates]
    ) -> None:
        """Update weights and momentum in place."""
        add_l2_(gradient, weights, self.layout.n_decayed, rates)
        momentum = state["momentum"]
        momentum.mul_(column((rate.momentum for rate in rates), weights)).add_(gradient)
        weights.sub_(momentum * column((rate.learning_rate for rate in rates), weights))
