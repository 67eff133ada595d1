"""Kinds of attention: one file each, and a row of the table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sweeplab.model.attention.base import Kept as Kept
from sweeplab.model.attention.base import Kind as Kind
from sweeplab.model.attention.base import Sight as Sight
from sweeplab.model.attention.base import for_queries as for_queries
from sweeplab.model.attention.full import FULL
from sweeplab.model.attention.linear import LINEAR
from sweeplab.model.attention.local import LOCAL
from sweeplab.model.attention.strided import STRIDED

if TYPE_CHECKING:
    from sweeplab.model.shape import ModelShape

ATTENTION: dict[str, Kind] = {"full": FULL, "local": LOCAL, "strided": STRIDED, "linear": LINEAR}


def across(attention: str) -> Kind:
    """Return the kind of cross-attention beside a kind of self-attention: places of two texts have no distance."""
    kind = ATTENTION[attention]
    return kind if kind.crosses else FULL


def query_factor(shape: ModelShape) -> float:
    """Return what queries are multiplied by: under muP scores, if any, are divided by head_dim, not by its root."""
    scales = shape.parametrization == "mup" and ATTENTION[shape.attention].has_scores
    return 1.0 / math.sqrt(shape.head_dim) if scales else 1.0
