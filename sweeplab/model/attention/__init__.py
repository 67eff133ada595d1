"""The kinds of attention, by name: a kind is a file here and a row of ATTENTION."""

from __future__ import annotations

import math

from sweeplab.model.attention.base import AttentionKind
from sweeplab.model.attention.full import FULL
from sweeplab.model.attention.linear import LINEAR
from sweeplab.model.attention.nearby import LOCAL, STRIDED
from sweeplab.model.shape import ModelShape

ATTENTION: dict[str, AttentionKind] = {"full": FULL, "local": LOCAL, "strided": STRIDED, "linear": LINEAR}


def cross_kind(attention: str) -> AttentionKind:
    """Return the kind of cross-attention beside a kind of self-attention: positions in two texts have no distance."""
    kind = ATTENTION[attention]
    return kind if kind.crosses else FULL


def query_factor(shape: ModelShape) -> float:
    """Return what queries are multiplied by, beside the root of head_dim that scores are divided by.

    Under muP scores, if any, are divided by head_dim; elsewhere by the root of what attention_scale names.
    """
    if shape.parametrization == "mup" and ATTENTION[shape.attention].has_scores:
        return 1.0 / math.sqrt(shape.head_dim)
    return math.sqrt(shape.head_dim / shape.n_embd) if shape.attention_scale == "n_embd" else 1.0
