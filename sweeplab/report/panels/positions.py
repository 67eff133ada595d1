"""A run's loss by the position of what it finds, on sequences of one length and of longer ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pandas import DataFrame

from sweeplab.report.panels.base import Axis, Panel


@dataclass(frozen=True, kw_only=True)
class PositionsPanel(Panel):
    """A line a length. `data`: times (of `block_size`), position from 0, loss; none without a target."""

    x: Axis
    y: Axis
    block_size: int


def positions_panel(found: Mapping[str, Any]) -> Panel:
    """Return the figure of an evaluation's losses by position."""
    data = DataFrame(
        [
            {"times": length["times"], "position": position, "loss": loss}
            for length in found["length_extrapolation"]
            for position, loss in enumerate(length["by_position"])
            if math.isfinite(loss)
        ],
        columns=["times", "position", "loss"],
    )
    return PositionsPanel(
        title="Loss by position",
        data=data,
        notes=tuple(
            f"Nothing at {each['times']} times block_size: {each['why']}." for each in found["left_out"]
        ),
        missing="" if len(data) else "no length could be evaluated",
        x=Axis("position", "position in the sequence (tokens)"),
        y=Axis("loss", "mean loss there (nats/token)"),
        block_size=found["block_size"],
    )
