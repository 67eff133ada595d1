"""Learned positions: an embedding for each place of the context, as GPT-2 and BERT have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sweeplab.model.positions.base import Positions
from sweeplab.model.weights import Declarations

if TYPE_CHECKING:
    from torch import Tensor

    from sweeplab.model.shape import ModelShape


def _declare(declarations: Declarations, prefix: str) -> None:
    shape = declarations.shape
    name = f"{prefix}position_embedding"
    declarations.table(name, shape.block_size, shape.n_embd, LEARNED.component)


def _add(w: Mapping[str, Tensor], shape: ModelShape, prefix: str, places: range, like: Tensor) -> Tensor:
    return w[f"{prefix}position_embedding"][:, None, places.start : places.stop]


LEARNED = Positions("position_embedding", "T*C", declare=_declare, add=_add, is_bounded=True)
