"""What each head of a layer attends to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pandas import DataFrame

from sweeplab.report.panels.base import Panel
from sweeplab.runs.attending import AttentionMap


@dataclass(frozen=True, kw_only=True)
class AttentionPanel(Panel):
    """A field a head: a row a token that attends, a column a token that is attended to.

    `data` has a row a weight that is not zero, as what follows a token is to a decoder.
    """

    heads: Sequence[int]
    queries: Sequence[str]
    keys: Sequence[str]


def attention_panel(found: AttentionMap) -> AttentionPanel:
    """Return the panel of one layer."""
    head, query, key = np.nonzero(found.weights)
    data = DataFrame(
        {
            "head": np.array(found.heads)[head],
            "query": query,
            "query token": np.array(found.queries)[query],
            "key": key,
            "key token": np.array(found.keys)[key],
            "weight": found.weights[head, query, key],
        }
    )
    return AttentionPanel(
        title=found.title, data=data, heads=found.heads, queries=found.queries, keys=found.keys
    )
