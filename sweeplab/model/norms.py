"""Norms, without their gain and bias: those move into the product that follows. Torch comes when one is computed.

layernorm: Ba et al. (2016). rmsnorm: Zhang and Sennrich (2019), which has no bias.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Norm:
    """A norm over the last dimension, with an eps in its root, and whether a bias may follow its gain."""

    apply: Callable[[Tensor, float], Tensor]
    has_bias: bool


def _layernorm(x: Tensor, eps: float) -> Tensor:
    import torch

    # Gains of one: torch's kernel for none at all gives the same bits in 1.7 times the time.
    return torch.layer_norm(x, x.shape[-1:], x.new_ones(x.shape[-1]), eps=eps)


def _rmsnorm(x: Tensor, eps: float) -> Tensor:
    import torch

    return torch.rms_norm(x, x.shape[-1:], eps=eps)


NORMS: dict[str, Norm] = {
    "layernorm": Norm(_layernorm, has_bias=True),
    "rmsnorm": Norm(_rmsnorm, has_bias=False),
}
