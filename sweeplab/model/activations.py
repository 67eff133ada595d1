"""Activations and norms. This module imports torch only inside functions.

Gated activations (Shazeer, "GLU variants improve transformer", 2020) multiply one projection by the activation of
another. relu2: So et al. ("Primer", 2021). gelu_tanh: the approximation of Hendrycks and Gimpel (2016), which GPT-2
and the later T5 use. layernorm: Ba et al. (2016). rmsnorm: Zhang and Sennrich (2019); it has no bias. The functions
here do not apply a norm's gain and bias: the next matrix product does (see `blocks.product`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    Numbers = Float[Tensor, "*n"]
    Rows = Float[Tensor, "Kn *rest"]


# A multiple of the elements in one vector register of any CPU.
LANES = 64


def by_run(function: Callable[[Tensor], Tensor], x: Rows, n_runs: int) -> Rows:
    """Apply an elementwise function to x [K * n, ...] so that the bits of a run do not depend on its row.

    A kernel computes the elements after the last whole vector with other instructions: exp and erf then differ in the
    last bit. So each run is padded to whole vectors.
    """
    if not (missing := -(x.numel() // n_runs) % LANES):
        return function(x)
    import torch

    flat = torch.nn.functional.pad(x.reshape(n_runs, -1), (0, missing))
    return function(flat)[:, :-missing].reshape(x.shape)


@dataclass(frozen=True)
class Activation:
    """An elementwise function; a gated one is applied to the gate projection, which multiplies the up projection."""

    apply: Callable[[Tensor], Tensor]
    gated: bool = False


def _of_torch(name: str, **options: str) -> Callable[[Tensor], Tensor]:
    """Return an activation of torch.nn.functional; calling it imports torch."""

    def apply(x: Numbers) -> Numbers:
        import torch

        found: Tensor = getattr(torch.nn.functional, name)(x, **options)
        return found

    return apply


_GELU, _GELU_TANH = _of_torch("gelu"), _of_torch("gelu", approximate="tanh")
ACTIVATIONS: dict[str, Activation] = {
    "gelu": Activation(_GELU),
    "relu": Activation(_of_torch("relu")),
    "relu2": Activation(lambda x: x.relu().square()),
    "swiglu": Activation(_of_torch("silu"), gated=True),
    "geglu": Activation(_GELU, gated=True),
    "gelu_tanh": Activation(_GELU_TANH),
    "geglu_tanh": Activation(_GELU_TANH, gated=True),
}


@dataclass(frozen=True)
class Norm:
    """A norm over the last dimension, with eps inside the root, and whether the norm has a bias."""

    apply: Callable[[Tensor, float], Tensor]
    has_bias: bool


def _layernorm(x: Numbers, eps: float) -> Numbers:
    import torch

    # Gains of one, because torch's kernel without gains takes 1.7 times as long for the same bits.
    return torch.layer_norm(x, x.shape[-1:], x.new_ones(x.shape[-1]), eps=eps)


def _rmsnorm(x: Numbers, eps: float) -> Numbers:
    import torch

    return torch.rms_norm(x, x.shape[-1:], eps=eps)


NORMS: dict[str, Norm] = {
    "layernorm": Norm(_layernorm, has_bias=True),
    "rmsnorm": Norm(_rmsnorm, has_bias=False),
}
