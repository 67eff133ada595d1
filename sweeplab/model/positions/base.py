"""What a position scheme may do: add to the embeddings, turn queries and keys, or shift attention's scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sweeplab.model.requirement import Requirement
from sweeplab.model.weights import Declarations

if TYPE_CHECKING:
    from torch import Tensor

    from sweeplab.model.shape import ModelShape


@dataclass(frozen=True)
class Positions:
    """A scheme: its weights for each side of a model, and which of the three it does.

    component, parameters: where its weights are counted, and how many they are by accounting's legend.
    declare(declarations, prefix): declares a side's weights.
    add(w, shape, prefix, places, like): what is added to embeddings like `like`, [K or 1, 1, T, C] for T places.
    turning(shape, places, like): what turns queries and keys [..., T, D] like `like` for T places.
    is_bounded: places beyond block_size have nothing.
    bias(w, shape, prefix, distances, causal): what is added to scores, [K or 1, H, ...] for distances [...] of
    a query's place over a key's.
    """

    component: str = ""
    parameters: str = "0"
    declare: Callable[[Declarations, str], None] | None = None
    add: Callable[[Mapping[str, Tensor], ModelShape, str, range, Tensor], Tensor] | None = None
    turning: Callable[[ModelShape, range, Tensor], Callable[[Tensor], Tensor]] | None = None
    bias: Callable[[Mapping[str, Tensor], ModelShape, str, Tensor, bool], Tensor] | None = None
    is_bounded: bool = False
    requires: tuple[Requirement, ...] = ()
