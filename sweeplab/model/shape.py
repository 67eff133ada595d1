"""The hyperparameters that fix a model's tensors (no torch: a plan reads it too)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from sweeplab.hyperparameters import AUTO, ModelHyperparameters
from sweeplab.model.activations import ACTIVATIONS
from sweeplab.model.families import FAMILIES, Family, Side
from sweeplab.model.norms import NORMS

Values = Mapping[str, Any]


def _d_ff(values: Values) -> int:
    """Return the usual width, or for a gated activation what keeps the parameters the same."""
    n_embd: int = values["n_embd"]
    return round(8 * n_embd / 3) if ACTIVATIONS[values["activation"]].gated else 4 * n_embd


# Each hyperparameter of a model that follows from others where it is `auto`: which ones, and how.
SETTLED: Mapping[str, tuple[frozenset[str], Callable[[Values], Any]]] = {
    "n_encoder_layer": (frozenset({"n_layer"}), lambda values: values["n_layer"]),
    "n_decoder_layer": (frozenset({"n_layer"}), lambda values: values["n_layer"]),
    "head_dim": (frozenset({"n_embd", "n_head"}), lambda values: values["n_embd"] // values["n_head"]),
    "n_kv_head": (frozenset({"n_head"}), lambda values: values["n_head"]),
    "d_ff": (frozenset({"n_embd", "activation"}), _d_ff),
    "embedding_dropout": (frozenset({"dropout"}), lambda values: values["dropout"]),
    "attention_dropout": (frozenset({"dropout"}), lambda values: values["dropout"]),
    "residual_dropout": (frozenset({"dropout"}), lambda values: values["dropout"]),
}


def settled(values: Values) -> dict[str, Any]:
    """Return hyperparameters with every `auto` of a model settled."""
    autos = [name for name in SETTLED if values.get(name) == AUTO]
    return {**values, **{name: SETTLED[name][1](values) for name in autos}}


@dataclass(frozen=True, kw_only=True)
class ModelShape(ModelHyperparameters):
    """Sizes and parts of a transformer, with what is automatic settled; equal shapes can share a stack."""

    def __post_init__(self) -> None:
        for name, value in settled(vars(self)).items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, values: Values) -> ModelShape:
        """Take the shape out of a run's effective hyperparameters; what an older run lacks has its default."""
        return _shape_of(tuple((name, values[name]) for name in FIELDS if name in values))

    @property
    def of_family(self) -> Family:
        """Return the row of the model's family."""
        return FAMILIES[self.family]

    def layers(self, side: Side) -> int:
        """Return the number of blocks of one side."""
        return int(getattr(self, side.layers))

    @property
    def n_residual(self) -> int:
        """Return how many projections lead back into the residual stream of the deepest side."""
        return max(len(side.sub_layers) * self.layers(side) for side in self.of_family.sides)

    @property
    def qkv_width(self) -> int:
        """Return the width of the joined query, key and value."""
        return (self.n_head + 2 * self.n_kv_head) * self.head_dim

    @property
    def is_gated(self) -> bool:
        """Say whether the feed-forward layers multiply two projections."""
        return ACTIVATIONS[self.activation].gated

    @property
    def head_activation(self) -> str:
        """Return the activation of an encoder's head, which has no gate."""
        return "gelu" if self.is_gated else self.activation

    @property
    def has_norm_bias(self) -> bool:
        """Say whether the norms carry biases: a layernorm's follow `bias`, an rmsnorm has none."""
        return self.bias and NORMS[self.norm].has_bias

    @property
    def width_ratio(self) -> float:
        """Return the width in units of muP's base; 1 in the standard parametrization, which knows none."""
        return self.n_embd / self.mup_base_width if self.parametrization == "mup" else 1.0

    @property
    def has_qkv_bias(self) -> bool:
        """Say whether query, key and value carry biases."""
        return self.bias and self.qkv_bias

    @property
    def has_out_bias(self) -> bool:
        """Say whether attention's output projection carries a bias."""
        return self.bias and self.out_bias

    @property
    def has_head_bias(self) -> bool:
        """Say whether the head carries a bias: an encoder's follows `bias`, another tied one cannot."""
        if self.of_family.transforms:
            return self.bias
        return self.head_bias and not self.tie_weights

    @property
    def has_source_embedding(self) -> bool:
        """Say whether the encoder of an encoder_decoder has token embeddings of its own."""
        return self.of_family.reads_source and not self.share_embeddings


FIELDS = tuple(field.name for field in fields(ModelHyperparameters))


@lru_cache(maxsize=4096)
def _shape_of(values: tuple[tuple[str, Any], ...]) -> ModelShape:
    """Keep what was asked for: a plan asks of every rule for thousands of points."""
    return ModelShape(**dict(values))
