"""Beam search: the likeliest whole text, as far as a few beginnings kept side by side show it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sweeplab.data.prompts import Prompt
from sweeplab.model.generation.reader import Next

LENGTH_PENALTY = 0.6


class Beam(NamedTuple):
    """A text that was found, with its log-probability and the score by which it ranks."""

    tokens: list[int]
    log_probability: float
    score: float


def penalty(length: int, alpha: float = LENGTH_PENALTY) -> float:
    """Return what a log-probability is divided by (Wu et al., "Google's neural machine translation system", 2016)."""
    return float(((5 + length) / 6) ** alpha)


def beam_search(
    next_: Next, prompt: Prompt, n_beams: int, max_new_tokens: int, alpha: float = LENGTH_PENALTY
) -> list[Beam]:
    """Return the best `n_beams` texts that were found, best first, by log-probability over `penalty`.

    A text ends with the prompt's end, or where there is no more room. As many beginnings as there are beams go on
    beside what has ended. The search is over once none of them can come to a better score: log-probabilities only fall,
    and none is divided by more than the longest.
    """
    most = min(max_new_tokens, prompt.room or max_new_tokens)
    done: list[Beam] = []
    found, totals = torch.empty(1, 0, dtype=torch.long), torch.zeros(1, dtype=torch.float64)
    for length in range(1, most + 1):
        # Of twice as many no more than half can end here, one for each beginning.
        rows, tokens, totals = _best(totals[:, None] + next_(found).double().cpu(), 2 * n_beams)
        found = torch.cat([found[rows], tokens[:, None]], dim=1)
        closed = (tokens == (-1 if prompt.end is None else prompt.end)) | (length == most)
        done += [
            Beam(text.tolist(), float(total), float(total) / penalty(length, alpha))
            for text, total in zip(found[closed], totals[closed], strict=True)
        ]
        done = sorted(done, key=lambda beam: -beam.score)[:n_beams]
        rows, found, totals = (each[~closed][:n_beams] for each in (rows, found, totals))
        is_settled = len(done) == n_beams and float(totals[:1].sum()) / penalty(most, alpha) <= done[-1].score
        if not len(rows) or is_settled:
            break
        next_.choose(rows)
    return done


def _best(scores: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return row, token and score of the best of scores [B, V], at most `count`, and none that is barred."""
    ranked, order = scores.flatten().sort(descending=True, stable=True)
    count = min(count, int(ranked.isfinite().sum()))
    return order[:count] // scores.shape[1], order[:count] % scores.shape[1], ranked[:count]
