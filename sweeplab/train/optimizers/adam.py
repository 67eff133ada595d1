"""Adam: Kingma and Ba, "Adam: a method for stochastic optimization" (2015), as torch.optim.Adam computes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from sweeplab.train.optimizers.adamw import adam_
from sweeplab.train.optimizers.base import Optimizer, Rates, add_l2_


class Adam(Optimizer):
    """Adam, its weight decay an L2 term of the gradient (of matrices and embeddings only), and so of the moments."""

    meaning = "Adam with weight decay in the gradient, as an L2 term (Kingma & Ba 2015)"

    def buffers(self) -> dict[str, int]:
        """Return one row each for the first and the second moment."""
        return {"first": self.layout.row_size, "second": self.layout.row_size}

    def update_(
        self, weights: Tensor, gradient: Tensor, state: Mapping[str, Tensor], rates: Sequence[Rates]
    ) -> None:
        """Update weights and moments in place."""
        add_l2_(gradient, weights, self.layout.n_decayed, rates)
        adam_(weights, gradient, state["first"], state["second"], rates)
