"""The norm of a run's gradient, and how it is kept short."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sweeplab.model.layout import BLOCK


def gradient_norms(gradient: Tensor) -> Tensor:
    """Return each row's norm [K] of a gradient [K, row_size].

    By blocks: over a whole row float32 loses several digits, and a row's sum would depend on its neighbors'.
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
