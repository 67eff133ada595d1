"""AdamW: Loshchilov and Hutter, "Decoupled weight decay regularization" (2019), as torch.optim.AdamW computes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sweeplab.model.layout import Layout
from sweeplab.model.parametrization import learning_rate_factor
from sweeplab.train.optimizers.base import Optimizer, Rates, column, decay_, spans


class AdamW(Optimizer):
    """Adam with weight decay outside of the gradient; under muP each weight has its own learning rate."""

    meaning = "Adam with decoupled weight decay (Loshchilov & Hutter 2019)"

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._spans = learning_rate_spans(layout)

    def buffers(self) -> dict[str, int]:
        """Return one row each for the first and the second moment."""
        return {"first": self.layout.row_size, "second": self.layout.row_size}

    def update_(
        self, weights: Tensor, gradient: Tensor, state: Mapping[str, Tensor], rates: Sequence[Rates]
    ) -> None:
        """Update weights and moments in place."""
        decay_(weights, self.layout.n_decayed, rates)
        first, second = state["first"], state["second"]
        for span, factor in self._spans:
            adam_(weights[:, span], gradient[:, span], first[:, span], second[:, span], rates, factor)


def learning_rate_spans(layout: Layout) -> list[tuple[slice, float]]:
    """Return the stretches of a row that share a learning rate, and what multiplies it: one, unless muP splits it."""
    ratio = layout.shape.width_ratio
    return spans(layout, lambda weight: learning_rate_factor(weight.name, len(weight.shape), ratio))


def adam_(
    weights: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    rates: Sequence[Rates],
    factor: float = 1.0,
) -> None:
    """Take Adam's step [K, n] without any decay, with `factor` times the learning rate of each run."""
    update = _fused_rows if weights.device.type == "cpu" else _together
    update(weights, gradient, first, second, rates, factor)


def _fused_rows(
    weights: Tensor, gradient: Tensor, first: Tensor, second: Tensor, rates: Sequence[Rates], factor: float
) -> None:
    """Update row by row with torch's fused kernel: on a CPU one pass over memory instead of eight."""
    for row, rate in enumerate(rates):
        torch._fused_adamw_(
            [weights[row]],
            [gradient[row]],
            [first[row]],
            [second[row]],
            [],
            [torch.tensor(float(rate.step))],
            lr=rate.learning_rate * factor,
            beta1=rate.beta1,
            beta2=rate.beta2,
            weight_decay=0.0,
            eps=rate.eps,
            amsgrad=False,
            maximize=False,
        )


def _together(
    weights: Tensor, gradient: Tensor, first: Tensor, second: Tensor, rates: Sequence[Rates], factor: float
) -> None:
    """Update all rows at once: on a GPU a few kernels instead of a few a row."""
    first.lerp_(gradient, column((1.0 - rate.beta1 for rate in rates), weights))
    beta2 = column((rate.beta2 for rate in rates), weights)
    second.mul_(beta2).add_(gradient.square() * (1.0 - beta2))
    denominator = second.sqrt() / column(((1.0 - rate.beta2**rate.step) ** 0.5 for rate in rates), weights)
    denominator += column((rate.eps for rate in rates), weights)
    size = column((factor * rate.learning_rate / (1.0 - rate.beta1**rate.step) for rate in rates), weights)
    weights.sub_(size * first / denominator)
