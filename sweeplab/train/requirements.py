"""What the hyperparameters of a training have to meet besides their own bounds (no torch: a plan reads it)."""

from __future__ import annotations

# Their steps are, number by number, as large as the learning rate, on which muP's table rests.
FOLLOW_WIDTH = ("adamw", "lion")

# As a study's constraints are written.
REQUIREMENTS = (
    "batch_size % grad_accum == 0",
    " or ".join(["parametrization == 'standard'", *(f"optimizer == '{name}'" for name in FOLLOW_WIDTH)]),
)
