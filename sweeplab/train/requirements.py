"""What the hyperparameters of a training have to meet besides their own bounds (no torch: a plan reads it)."""

from __future__ import annotations

# As a study's constraints are written.
REQUIREMENTS = (
    "batch_size % grad_accum == 0",
    # muP's table is for optimisers whose steps are, number by number, as large as the learning rate.
    "parametrization == 'standard' or optimiser == 'adamw' or optimiser == 'lion'",
)
