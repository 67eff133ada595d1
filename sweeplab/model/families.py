"""The three families: which sides they have, and what their head is (no torch).

A side is a run of blocks. An encoder sees both ways, a decoder only back; the decoder of an encoder_decoder
reads the encoder's output by cross-attention (Vaswani et al., "Attention is all you need", 2017).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Side:
    """A run of blocks: the prefix of its weights, the hyperparameter that counts its layers, what it sees."""

    prefix: str
    layers: str
    causal: bool
    crosses: bool = False

    @property
    def sub_layers(self) -> tuple[str, ...]:
        """Return the names of a block's sub-layers, in the order in which they are computed."""
        return ("attention", "cross", "feed_forward") if self.crosses else ("attention", "feed_forward")


@dataclass(frozen=True)
class Family:
    """A family's sides, in the order in which they are computed; `transforms` is a head like BERT's."""

    sides: tuple[Side, ...]
    transforms: bool = False

    @property
    def reads_source(self) -> bool:
        """Say whether there is an encoder beside the decoder, which reads tokens of its own."""
        return len(self.sides) > 1


FAMILIES: dict[str, Family] = {
    "decoder": Family((Side("", "n_layer", causal=True),)),
    "encoder": Family((Side("", "n_layer", causal=False),), transforms=True),
    "encoder_decoder": Family(
        (
            Side("encoder.", "n_encoder_layer", causal=False),
            Side("", "n_decoder_layer", causal=True, crosses=True),
        )
    ),
}
