"""The kinds of attention by name. Each kind is in a file of this folder, and a row of ATTENTION."""

from __future__ import annotations

import math

from sweeplab.model.attention.base import AttentionKind
from sweeplab.model.attention.full import FULL
from sweeplab.model.attention.linear import LINEAR
from sweeplab.model.attention.nearby import LOCAL, STRIDED
from sweeplab.model.shape import ModelShape

ATTENTION: dict[str, AttentionKind] = {"full": FULL, "local": LOCAL, "strided": STRIDED, "linear": LINEAR}


def cross_kind(attention: str) -> AttentionKind:
    """Return the kind of cross-attention for a kind of self-attention: full if the kind needs distances."""
    kind = ATTENTION[attention]
    return kind if kind.allows_cross else FULL


def query_factor(shape: ModelShape) -> float:
    """Return the factor of the queries; besides it, scores are divided by sqrt(head_dim).

    With the factor, scores are divided by head_dim under muP, else by the root of what attention_scale names.
    """
    if shape.parametrization == "mup" and ATTENTION[shape.attention].has_scores:
        return 1.0 / math.sqrt(shape.head_dim)
    return math.sqrt(shape.head_dim / shape.n_embd) if shape.attention_scale == "n_embd" else 1.0
