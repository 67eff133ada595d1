"""What an optimizer of a stack is, and what several of them need.

Legend: K runs, P the row size. Weights, gradient and state are buffers with one row per run; hyperparameters are
one number per run. torch's own optimizers take one learning rate for a tensor, not one per row.

On the CPU a run's bits are the same in any row of any stack. On whole rows, which are whole blocks, any operation
keeps to that; on a part of a row only those that round once (a product, a sum, a root), for torch computes a loop's
last elements by other instructions, and which ones are last depends on K. So no lerp_ and no addcmul_ there.
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

    Adam divides its first moment by `correction1`, and multiplies the root of its second by `correction2`.

    In a compiled step those of all runs: tensors [K] of float64, of which the same is computed. What takes long is
    computed before it, once a run: a compiler would repeat a power for every few weights.
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
        """Return them with Adam's corrections for moments that start at 0."""
        corrections = (1.0 - beta1**step, (1.0 - beta2**step) ** -0.5)
        return cls(learning_rate, weight_decay, beta1, beta2, eps, momentum, step, *corrections)


EachRates = Sequence[Rates] | Rates


class Optimizer(ABC):
    """Updates the weights of a stack's runs; its state lies in buffers of the stack's, named and sized here.

    `rows` are the buffers in which a run has a number per weight.
    """

    rows: ClassVar[tuple[str, ...]] = ()

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def buffers(self) -> dict[str, int]:
        """Return the length of a run's row in each buffer of state, by name; whole blocks, zero at the start."""
        return dict.fromkeys(self.rows, self.layout.row_size)

    @cached_property
    def learning_rate_spans(self) -> list[tuple[slice, float]]:
        """Return the stretches of a row that share a learning rate, and its factor: one stretch, but under muP."""
        ratio = self.layout.shape.width_ratio
        return spans(self.layout, lambda weight: weight.width_factors(ratio)[1])

    @abstractmethod
    def update_(self, weights: Rows, gradient: Rows, state: State, rates: EachRates) -> None:
        """Update weights and state in place; the gradient is used up."""


def column(find: Callable[[Rates], Any], rates: EachRates, like: Tensor) -> Float[Tensor, "K 1"]:
    """Return one number per run, found from its rates, as a column that multiplies rows."""
    if isinstance(rates, Rates):
        found: Tensor = find(rates).to(like.dtype)
        return found[:, None]
    return torch.tensor([find(rate) for rate in rates], device=like.device)[:, None]


def decay_(weights: Rows, n_decayed: int, rates: EachRates) -> None:
    """Shrink the first n_decayed columns: Loshchilov and Hutter's decoupled weight decay."""
    shrink = column(lambda rate: 1.0 - rate.learning_rate * rate.weight_decay, rates, weights)
    weights[:, :n_decayed].mul_(shrink)


def add_l2_(gradient: Rows, weights: Rows, n_decayed: int, rates: EachRates) -> None:
    """Add the gradient of half weight_decay times the squares of the first n_decayed columns."""
    decays = column(lambda rate: rate.weight_decay, rates, weights)
    gradient[:, :n_decayed].add_(weights[:, :n_decayed] * decays)


def spans(layout: Layout, key: Callable[[Weight], _Key]) -> list[tuple[slice, _Key]]:
    """Return the stretches of a row whose weights have one key; the last has the padding too."""
    keys, sizes = [], []
    for own, weights in groupby(layout.weights, key):
        keys.append(own)
        sizes.append(sum(weight.size for weight in weights))
    sizes[-1] += layout.row_size - layout.n_params
    return list(zip(places(sizes)[0], keys, strict=True))


def places(sizes: Sequence[int]) -> tuple[list[slice], int]:
    """Return where pieces of these sizes lie one after the other in a row, and its length in whole blocks."""
    ends = [0, *accumulate(sizes)]
    pieces = [slice(begin, end) for begin, end in pairwise(ends)]
    return pieces, -(-ends[-1] // BLOCK) * BLOCK
