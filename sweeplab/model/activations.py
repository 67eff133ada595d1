"""Activations and norms: functions of a token's numbers; torch comes only where one is computed.

Gated activations (Shazeer, "GLU variants improve transformer", 2020) multiply a second projection by the first one's
activation; relu2 is So et al.'s ("Primer", 2021). gelu_tanh is the approximation of Hendrycks and Gimpel (2016), with
which GPT-2 and the later T5 were published. layernorm: Ba et al. (2016). rmsnorm: Zhang and Sennrich (2019), which
has no bias. Norms are without their gain and bias: those move into the product that follows.
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


# A multiple of the numbers that a CPU's kernel takes at once.
LANES = 64


def by_run(function: Callable[[Tensor], Tensor], x: Rows, n_runs: int) -> Rows:
    """Apply a function of each element to x [K * n, ...] so that no run's bits depend on where its numbers lie.

    What is left over after the last whole vector a kernel computes otherwise: exp and erf then differ in the last
    bit. So each run is filled up to whole vectors, where it is not already.
    """
    if not (missing := -(x.numel() // n_runs) % LANES):
        return function(x)
    import torch

    flat = torch.nn.functional.pad(x.reshape(n_runs, -1), (0, missing))
    return function(flat)[:, :-missing].reshape(x.shape)


@dataclass(frozen=True)
class Activation:
    """A function of each element; a gated one is applied to the gate, which the other projection multiplies."""

    apply: Callable[[Tensor], Tensor]
    gated: bool = False


def _of_torch(name: str, **options: str) -> Callable[[Tensor], Tensor]:
    """Return one of torch.nn.functional's activations, imported when it is computed."""

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
    """A norm over the last dimension, with an eps in its root, and whether a bias may follow its gain."""

    apply: Callable[[Tensor, float], Tensor]
    has_bias: bool


def _layernorm(x: Numbers, eps: float) -> Numbers:
    import torch

    # Gains of one: torch's kernel for none at all gives the same bits in 1.7 times the time.
    return torch.layer_norm(x, x.shape[-1:], x.new_ones(x.shape[-1]), eps=eps)


def _rmsnorm(x: Numbers, eps: float) -> Numbers:
    import torch

    return torch.rms_norm(x, x.shape[-1:], eps=eps)


NORMS: dict[str, Norm] = {
    "layernorm": Norm(_layernorm, has_bias=True),
    "rmsnorm": Norm(_rmsnorm, has_bias=False),
}
