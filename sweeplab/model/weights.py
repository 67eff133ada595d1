"""The weights of a model as its parts declare them: names, sizes, how each starts, and how it follows the width.

How a weight's start and its learning rate follow the width is `standard`, or muP (no torch):
Yang, Hu et al., "Tensor programs V: tuning large neural networks via zero-shot hyperparameter transfer" (2022),
table 8, the form in which input and output embeddings can be tied. With r = n_embd / mup_base_width:

| weight | initial standard deviation | Adam's learning rate | multiplier |
|---|---|---|---|
| input: embeddings, relative biases | 1 | 1 | 1 |
| vector: gains and biases | 1 | 1 | 1 |
| hidden: between widths that grow | r^-1/2 | 1/r | 1 |
| output: the head, tied or not | 1 | 1 | 1/r on the logits |
| router: from the width to the experts | 1/r | 1/r | 1 |

and attention's scores are divided by head_dim instead of its root. Where r is 1 all but that is `standard`.

Departures: the constants beside the powers of r are GPT-2's (0.02, and less for projections back into the residual
stream), not tuned ones; a router, which the paper has not, takes the equal form of table 3, for it has no multiplier;
queries and the head start as the rest does, not at zero; decoupled weight decay goes by the unscaled learning rate,
so that a step shrinks every matrix alike at any width, as the authors' mup package does it; eps is not scaled;
every hidden width (d_ff, heads) is taken to grow as n_embd does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Literal

from sweeplab.model.shape import ModelShape

Role = Literal["input", "hidden", "output", "router", "vector"]

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


# The first pattern that matches a matrix's name says its role; hidden where none does.
_ROLES: tuple[tuple[str, Role], ...] = (
    ("*_embedding", "input"),
    ("*relative_bias", "input"),
    ("*router.weight", "router"),
    ("head.weight", "output"),
)
# Powers of the width ratio: of the initial standard deviation and of the learning rate.
_POWERS: dict[Role, tuple[float, float]] = {
    "input": (0.0, 0.0),
    "hidden": (-0.5, -1.0),
    "output": (0.0, 0.0),
    "router": (-1.0, -1.0),
    "vector": (0.0, 0.0),
}


def role_of(name: str, n_dims: int) -> Role:
    """Return a weight's role by its name and number of dimensions: what it leads from and to."""
    if n_dims == 1:
        return "vector"
    return next((found for pattern, found in _ROLES if fnmatch(name, pattern)), "hidden")


def std_factor(name: str, n_dims: int, width_ratio: float) -> float:
    """Return what a weight's initial standard deviation is multiplied by; 1 where the width ratio is."""
    return float(width_ratio ** _POWERS[role_of(name, n_dims)][0])


def learning_rate_factor(name: str, n_dims: int, width_ratio: float) -> float:
    """Return what a weight's learning rate is multiplied by; 1 where the width ratio is."""
    return float(width_ratio ** _POWERS[role_of(name, n_dims)][1])
