"""Contrastive decoding (Li et al., "Contrastive decoding: open-ended text generation as optimization", 2022)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sweeplab.model.generation.reader import Next

ALPHA = 0.1  # as published


@dataclass(frozen=True)
class Contrast:
    """Scores log p_expert - log p_amateur, of tokens that the expert finds plausible, and no others.

    Plausible is what has at least alpha times the probability of the expert's best token. The amateur's temperature
    is 1, as published for OPT (GPT-2's was 0.5).
    """

    expert: Next
    amateur: Next
    alpha: float = ALPHA

    def __call__(self, found: Tensor) -> Tensor:
        """Return scores [B, V] of the token after found ones [B, T]."""
        expert = self.expert(found)
        worst = expert.max(dim=-1, keepdim=True).values + math.log(self.alpha)
        # Barred tokens have no probability for either: they are not compared.
        return torch.where(expert >= worst, expert - self.amateur(found), -torch.inf)

    def choose(self, rows: Tensor) -> None:
        """Go on from these of the B sequences."""
        self.expert.choose(rows)
        self.amateur.choose(rows)
