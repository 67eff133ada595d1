"""One training to do, and which others can share a stack with it (no torch)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sweeplab.hyperparameters import SHAPE
from sweeplab.model.shape import settled

ShapeKey = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Run:
    """A trial with one seed: a key to tell it by and every effective hyperparameter, `seed` included."""

    key: str
    values: Mapping[str, Any]


def shape_key(values: Mapping[str, Any]) -> ShapeKey:
    """Return what fixes the tensors and the program: runs of equal key may share a stack.

    How much a run drops does not matter, but what it drops at all decides how attention is computed; the loss
    likewise whether it smooths its targets; and whether it averages its weights, which rows it has.
    """
    dropped = tuple(kind for kind, chance in drop_chances(values).items() if chance > 0)
    program = {"drops": dropped, "smooths": values["label_smoothing"] > 0, "averages": values["ema"] > 0}
    return (*((name, values[name]) for name in SHAPE), *program.items())


def drop_chances(values: Mapping[str, Any]) -> dict[str, float]:
    """Return a run's chances of dropping, by kind of a model's sites."""
    known = settled(values)
    return {
        "embedding": known["embedding_dropout"],
        "attention": known["attention_dropout"],
        "residual": known["residual_dropout"],
        "depth": known["stochastic_depth"],
    }
