"""The base class of a stack's optimizers, and functions that several of them use.

Legend: K runs, P the row size. Weights, gradient and state are buffers with one row per run. Hyperparameters are one
number per run; torch's own optimizers have one learning rate per tensor, not one per row.

On the CPU the bits of a run must be the same in any row of any stack. On whole rows, which are whole blocks, every
operation ensures this. On a part of a row only operations that round once do (a product, a sum, a root): torch computes
the last elements of a loop with other instructions, and K decides which elements are last. So do not use lerp_ or
addcmul_ there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from sweeplab.model.layout import BLOCK, Layout, Weight

if TYPE_CHECKING:
    from jaxtyping import Float

    Rows = Float[Tensor, "K P"]
else:
    Rows = Tensor

State = Mapping[str, Tensor]
_Key = TypeVar("_Key")


class Rates(NamedTuple):
    """One run's hyperparameters of one step; `step` counts from 1.

    Adam divides its first moment by `correction1`, and multiplies the root of its second moment by `correction2`. They
    are computed before a compiled step, which would compute the powers again for every few weights. In a compiled step
    all fields are float64 tensors [K], with the values of all runs.
    """

    learning_rate: Any
    weight_decay: Any
    beta1: Any
    beta2: Any
    eps: Any
    momentum: Any
    step: Any
    correction1: Any
    correction2: Any

    @classmethod
    def at(
        cls,
        learning_rate: float,
        weight_decay: float,
        beta1: float,
        beta2: float,
        eps: float,
        momentum: float,
        step: int,
    ) -> Rates:
        """Return the hyperparameters with Adam's bias corrections."""
        corrections = (1.0 - beta1**step, (1.0 - beta2**step) ** -0.5)
        return cls(learning_rate, weight_decay, beta1, beta2, eps, momentum, step, *corrections)


EachRates = Sequence[Rates] | Rates


class Optimizer(ABC):
    """Updates the weights of a stack's runs. The stack holds the state, in buffers that `buffers` describes.

    `rows` has the names of the buffers with one number per weight.
    """

    rows: ClassVar[tuple[str, ...]] = ()

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def buffers(self) -> dict[str, int]:
        """Return the length of a run's row in each buffer, by name, in whole blocks; buffers start at zero."""
        return dict.fromkeys(self.rows, self.layout.row_size)

    @cached_property
    def learning_rate_spans(self) -> list[tuple[slice, float]]:
        """Return the spans of columns that share a learning rate, and its factor; without muP there is one span."""
        ratio = self.layout.shape.width_ratio
        return spans(self.layout, lambda weight: weight.width_factors(ratio)[1])

    @abstractmethod
    def update_(self, weights: Rows, gradient: Rows, state: State, rates: EachRates) -> None:
        """Update weights and state in place; the gradient may be overwritten."""


def column(find: Callable[[Rates], Any], rates: EachRates, like: Tensor) -> Float[Tensor, "K 1"]:
    """Return `find` of each run's rates as a column, which can be multiplied with rows."""
    if isinstance(rates, Rates):
        found: Tensor = find(rates).to(like.dtype)
        return found[:, None]
    return torch.tensor([find(rate) for rate in rates], device=like.device)[:, None]


def decay_(weights: Rows, n_decayed: int, rates: EachRates) -> None:
    """Apply Loshchilov and Hutter's decoupled weight decay to the first n_decayed columns."""
    shrink = column(lambda rate: 1.0 - rate.learning_rate * rate.weight_decay, rates, weights)
    weights[:, :n_decayed].mul_(shrink)


def add_l2_(gradient: Rows, weights: Rows, n_decayed: int, rates: EachRates) -> None:
    """Add the gradient of an L2 penalty, weight_decay / 2 times the squares of the first n_decayed columns."""
    decays = column(lambda rate: rate.weight_decay, rates, weights)
    gradient[:, :n_decayed].add_(weights[:, :n_decayed] * decays)


def spans(layout: Layout, key: Callable[[Weight], _Key]) -> list[tuple[slice, _Key]]:
    """Return the spans of adjacent columns whose weights have the same key; the last span includes the padding."""
    keys, sizes = [], []
    for own, weights in groupby(layout.weights, key):
        keys.append(own)
        sizes.append(sum(weight.size for weight in weights))
    sizes[-1] += layout.row_size - layout.n_params
    return list(zip(packed(sizes)[0], keys, strict=True))


def packed(sizes: Sequence[int]) -> tuple[list[slice], int]:
    """Return the slices of adjacent pieces of these sizes in a row, and the row's length in whole blocks."""
    ends = [0, *accumulate(sizes)]
    pieces = [slice(begin, end) for begin, end in pairwise(ends)]
    return pieces, -(-ends[-1] // BLOCK) * BLOCK
