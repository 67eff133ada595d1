"""Draw tokens from scores: temperature, then top-k, then top-p (Holtzman et al., "The curious case", 2020)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sweeplab.data.prompts import Prompt
from sweeplab.model.generation.reader import Next


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn; greedy takes the best one, and the first of equally good ones.

    top_k keeps the k best tokens, top_p the fewest best ones whose probabilities reach p: of what top_k has kept,
    and at least one.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    greedy: bool = False

    def probabilities(self, scores: Tensor) -> Tensor:
        """Return the probabilities [..., V] with which tokens of these scores are drawn; of greedy, a one."""
        # Sorted in the order of ids where scores are equal, on any device.
        ranked, order = scores.double().sort(dim=-1, descending=True, stable=True)
        if self.greedy:
            kept = torch.zeros_like(ranked)
            kept[..., 0] = 1.0
        else:
            if self.top_k is not None:
                ranked[..., self.top_k :] = -torch.inf
            # The best score first made 0: by a temperature close to 0 it would be divided to infinity.
            kept = ((ranked - ranked[..., :1]) / self.temperature).softmax(dim=-1)
            if self.top_p is not None:
                before = kept.cumsum(dim=-1) - kept
                kept = kept * (before < self.top_p)
                kept = kept / kept.sum(dim=-1, keepdim=True)
        return torch.zeros_like(kept).scatter(-1, order, kept)


class Sampler:
    """Draws tokens, on the CPU and by a generator of its own: a seed says what it draws on any device."""

    def __init__(self, how: Sampling, seed: int = 0) -> None:
        self.how = how
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, scores: Tensor) -> int:
        """Draw a token by scores [V]."""
        chances = self.how.probabilities(scores.cpu())
        if self.how.greedy:
            return int(chances.argmax())
        return int(torch.multinomial(chances, 1, generator=self._generator))


def sample(next_: Next, sampler: Sampler, prompt: Prompt, max_new_tokens: int) -> Iterator[int]:
    """Yield tokens as they are drawn, up to the prompt's end, its room, or so many."""
    found: list[int] = []
    while len(found) < min(max_new_tokens, prompt.room or max_new_tokens):
        token = sampler(next_(torch.tensor([found], dtype=torch.long))[0])
        found.append(token)
        yield token
        if token == prompt.end:
            return
