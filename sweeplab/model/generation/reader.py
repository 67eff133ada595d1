"""Read a prompt and what was found so far, and say what may come next.

Legend: B sequences that are gone on with side by side, T tokens found so far, V vocab_size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from sweeplab.data.batches import Batch
from sweeplab.data.prompts import Prompt
from sweeplab.model.memory import Memory
from sweeplab.model.positions import POSITIONS
from sweeplab.model.transformer import Transformer


class Next(Protocol):
    """What says how good each token would be next."""

    def __call__(self, found: Tensor) -> Tensor:
        """Return scores [B, V] of the token after found ones [B, T], which go on from those of the call before."""

    def choose(self, rows: Tensor) -> None:
        """Go on from these of the B sequences, each as often as it is named."""


class Reader:
    """Scores next tokens by their log-probability under one model; what stands for no text has none.

    With a memory no token is read twice. It ends where positions are bounded: past block_size tokens the model reads
    the last block_size of them, each in another place than before, so that all of them are read again for each token.
    """

    def __init__(
        self,
        transformer: Transformer,
        weights: Mapping[str, Tensor],
        prompt: Prompt,
        n_tokens: int,
        remembers: bool = True,
    ) -> None:
        """Take a lone run's weights; text is what has an id below `n_tokens`."""
        self.transformer, self.weights = transformer, weights
        device = weights["token_embedding"].device
        self._start = torch.tensor([*prompt.start], device=device)
        self._source = None if prompt.source is None else torch.tensor([[[*prompt.source]]], device=device)
        self._barred = barred(transformer.shape.vocab_size, n_tokens, prompt).to(device)
        is_bounded = POSITIONS[transformer.shape.positions].is_bounded
        self._most = transformer.shape.block_size if is_bounded else None
        self._memory = Memory() if remembers else None

    @torch.inference_mode()
    def __call__(self, found: Tensor) -> Tensor:
        """Return log-probabilities [B, V] of the token after found ones [B, T]."""
        n_sequences = len(found)
        text = torch.cat([self._start.expand(n_sequences, -1), found.to(self._start.device)], dim=1)
        if self._most and text.shape[1] > self._most:
            text = text[:, -self._most :]
            self._memory = self._memory and Memory()
        if self._memory:
            text = text[:, self._memory.length :]
        source = None if self._source is None else self._source.expand(1, n_sequences, -1)
        logits = self.transformer.next_logits(
            self.weights, Batch(text[None], text[None], source), self._memory
        )
        return logits[0].log_softmax(dim=-1).masked_fill(self._barred, -torch.inf)

    def choose(self, rows: Tensor) -> None:
        """Go on from these of the B sequences."""
        if self._memory:
            self._memory.choose(rows)


def barred(vocab_size: int, n_tokens: int, prompt: Prompt) -> Tensor:
    """Return which ids [V] stand neither for text nor for what may be found beside it."""
    ids = torch.arange(vocab_size)
    return (ids >= n_tokens) & ~torch.isin(ids, torch.tensor([*prompt.markers], dtype=torch.long))
