"""One training to do, and which others can share a stack with it (no torch)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sweeplab.hyperparameters import SHAPE

ShapeKey = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Run:
    """A trial with one seed: a key to tell it by and every effective hyperparameter, `seed` included."""

    key: str
    values: Mapping[str, Any]


def shape_key(values: Mapping[str, Any]) -> ShapeKey:
    """Return what fixes the tensors and the program: runs of equal key may share a stack.

    How much a run drops does not matter, but whether it drops anything decides how attention is computed; and
    whether it averages its weights, which rows it has.
    """
    program = {"drops": values["dropout"] > 0, "averages": values["ema"] > 0}
    return (*((name, values[name]) for name in SHAPE), *program.items())
