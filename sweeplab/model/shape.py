"""The hyperparameters that fix a model's tensors (no torch: a plan reads it too)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class ModelShape:
    """Sizes and switches of a decoder; equal shapes can share a stack."""

    vocab_size: int
    block_size: int
    n_layer: int
    n_head: int
    n_embd: int
    activation: str = "gelu"
    norm: str = "layernorm"
    bias: bool = True
    qkv_bias: bool = True
    head_bias: bool = False
    tie_weights: bool = True
    parametrization: str = "standard"
    mup_base_width: int = 64

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ModelShape:
        """Take the shape out of a run's effective hyperparameters."""
        return cls(**{field.name: values[field.name] for field in fields(cls)})

    @property
    def head_dim(self) -> int:
        """Return the width of one attention head."""
        return self.n_embd // self.n_head

    @property
    def width_ratio(self) -> float:
        """Return the width in units of muP's base; 1 in the standard parametrization, which knows none."""
        return self.n_embd / self.mup_base_width if self.parametrization == "mup" else 1.0

    @property
    def query_factor(self) -> float:
        """Return what queries are multiplied by: under muP scores are divided by head_dim, not by its root."""
        return 1.0 / math.sqrt(self.head_dim) if self.parametrization == "mup" else 1.0

    @property
    def has_qkv_bias(self) -> bool:
        """Say whether query, key and value carry biases."""
        return self.bias and self.qkv_bias

    @property
    def has_head_bias(self) -> bool:
        """Say whether the head carries a bias: a tied one cannot."""
        return self.head_bias and not self.tie_weights
