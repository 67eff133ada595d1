"""AdamW on the rows of a stack, each with its own hyperparameters.

Loshchilov and Hutter, "Decoupled weight decay regularization" (2019), as torch.optim.AdamW computes it.
torch's own optimisers take one learning rate for a tensor, not one a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sweeplab.model.layout import BLOCK


@dataclass(frozen=True)
class Rates:
    """One run's hyperparameters of one step; `step` counts from 1."""

    learning_rate: float
    weight_decay: float
    beta1: float
    beta2: float
    eps: float
    step: int


def gradient_norms(gradient: Tensor) -> Tensor:
    """Return each row's norm [K] of a gradient [K, row_size].

    By blocks: over a whole row float32 loses several digits, and a row's sum would depend on its neighbours'.
    """
    blocks: Tensor = torch.linalg.vector_norm(gradient.view(len(gradient), -1, BLOCK), dim=2)
    norms: Tensor = torch.linalg.vector_norm(blocks, dim=1)
    return norms


def clip_(gradient: Tensor, norms: Tensor, largest: Sequence[float | None]) -> None:
    """Scale down the rows whose norm is above their own `largest`; None leaves a row alone."""
    if all(limit is None for limit in largest):
        return
    limits = torch.tensor(
        [torch.inf if limit is None else limit for limit in largest], device=gradient.device
    )
    gradient.mul_((limits / (norms + 1e-6)).clamp_(max=1.0)[:, None])


def adamw_(
    weights: Tensor, gradient: Tensor, first: Tensor, second: Tensor, n_decayed: int, rates: Sequence[Rates]
) -> None:
    """Update weights and both moments [K, row_size] in place; the first n_decayed columns decay."""
    shrink = [1.0 - row.learning_rate * row.weight_decay for row in rates]
    weights[:, :n_decayed].mul_(torch.tensor(shrink, device=weights.device)[:, None])
    update = _fused_rows if weights.device.type == "cpu" else _together
    update(weights, gradient, first, second, rates)


def _fused_rows(
    weights: Tensor, gradient: Tensor, first: Tensor, second: Tensor, rates: Sequence[Rates]
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
            lr=rate.learning_rate,
            beta1=rate.beta1,
            beta2=rate.beta2,
            weight_decay=0.0,
            eps=rate.eps,
            amsgrad=False,
            maximize=False,
        )


def _together(
    weights: Tensor, gradient: Tensor, first: Tensor, second: Tensor, rates: Sequence[Rates]
) -> None:
    """Update all rows at once: on a GPU a few kernels instead of a few a row."""

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, device=weights.device)[:, None]

    first.lerp_(gradient, column([1.0 - rate.beta1 for rate in rates]))
    beta2 = column([rate.beta2 for rate in rates])
    second.mul_(beta2).add_(gradient.square() * (1.0 - beta2))
    denominator = second.sqrt() / column([(1.0 - rate.beta2**rate.step) ** 0.5 for rate in rates])
    denominator += column([rate.eps for rate in rates])
    size = column([rate.learning_rate / (1.0 - rate.beta1**rate.step) for rate in rates])
    weights.sub_(size * first / denominator)
