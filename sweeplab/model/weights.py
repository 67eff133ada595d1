"""How parts declare the weights of a run: names, sizes and how each starts (no torch)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sweeplab.model.shape import ModelShape

NORMAL_STD = 0.02


@dataclass(frozen=True)
class Weight:
    """One weight of a run: its name, its shape without the run dimension, its component, and how it starts.

    A `std` of None means a constant start at `fill`; `uniform` draws evenly around 0 with that deviation
    instead of normally. Matrices are [in, out] (experts' [E, in, out]), embeddings [rows, n_embd].
    """

    name: str
    shape: tuple[int, ...]
    component: str
    std: float | None = None
    fill: float = 0.0
    uniform: bool = False

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    @property
    def decays(self) -> bool:
        """Say whether weight decay applies: to matrices and embeddings, not to gains and biases."""
        return len(self.shape) > 1


class Declarations:
    """The weights of one model as its parts declare them.

    `normal` starts as GPT-2: deviation 0.02, and projections back into the residual stream smaller by the root
    of their number. `xavier` starts as the original: matrices by Glorot and Bengio (2010), uniform, with the
    joined query, key and value taken for three matrices as wide as the queries, also where n_kv_head is less than
    n_head and keys and values are narrower; embeddings normally with deviation n_embd^-0.5.
    """

    def __init__(self, shape: ModelShape) -> None:
        self.shape = shape
        self.weights: list[Weight] = []
        self._xavier = shape.init == "xavier"

    def table(self, name: str, rows: int, width: int, component: str) -> None:
        """Declare a table [rows, width] that is looked up in."""
        std = self.shape.n_embd**-0.5 if self._xavier else NORMAL_STD
        self.weights.append(Weight(name, (rows, width), component, std))

    def gain(self, name: str, width: int, component: str = "norms") -> None:
        """Declare a gain that starts at one."""
        self.weights.append(Weight(f"{name}.gain", (width,), component, fill=1.0))

    def norm(self, name: str, component: str = "norms") -> None:
        """Declare a norm over the residual stream."""
        self.gain(name, self.shape.n_embd, component)
        if self.shape.has_norm_bias:
            self.bias(name, self.shape.n_embd, component)

    def bias(self, name: str, width: int, component: str) -> None:
        """Declare a bias that starts at zero."""
        self.weights.append(Weight(f"{name}.bias", (width,), component))

    def matrix(
        self,
        name: str,
        size: tuple[int, ...],
        component: str,
        bias: bool = False,
        residual: bool = False,
        fan_out: int | None = None,
    ) -> None:
        """Declare a matrix [..., in, out] and its bias; `residual` ones lead back into the residual stream."""
        n_in, n_out = size[-2:]
        std = NORMAL_STD / math.sqrt(self.shape.n_residual) if residual else NORMAL_STD
        if self._xavier:
            std = math.sqrt(2.0 / (n_in + (fan_out or n_out)))
        self.weights.append(Weight(f"{name}.weight", size, component, std, uniform=self._xavier))
        if bias:
            self.bias(name, n_out, component)
