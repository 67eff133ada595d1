"""How many targets a model finds whole."""

from __future__ import annotations

from torch import Tensor

from sweeplab.data.batches import NO_TARGET


def exact_matches(logits: Tensor, targets: Tensor) -> Tensor:
    """Return of each run [K] how many sequences have the likeliest token at every counted target.

    `logits` are [K, B*T, V], `targets` [K, B, T]. A decoder reads the true tokens before each position; up to its
    first mistake greedy decoding reads the same ones, so that it finds a target whole exactly where this does, if the
    likeliest token may be any, special ones too. An encoder finds all tokens at once, told how many there are.
    """
    is_right = logits.argmax(dim=-1).view(targets.shape) == targets
    return (is_right | (targets == NO_TARGET)).all(dim=2).sum(dim=1)
