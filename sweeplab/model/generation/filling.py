"""Fill in an encoder's holes, the surest first: each that is filled is read by those that are left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sweeplab.data.batches import Batch
from sweeplab.data.prompts import Prompt
from sweeplab.model.generation.reader import barred
from sweeplab.model.generation.sampling import Sampler
from sweeplab.model.transformer import Transformer


@torch.inference_mode()
def hole_scores(
    transformer: Transformer, weights: Mapping[str, Tensor], prompt: Prompt, n_tokens: int
) -> Tensor:
    """Return the log-probabilities [n_holes, V] of what stands in each hole, given all that does not."""
    device = weights["token_embedding"].device
    tokens = torch.tensor([[[*prompt.start]]], device=device)
    logits = transformer.logits(weights, Batch(tokens, tokens))[0, [*prompt.holes]]
    missing = barred(transformer.shape.vocab_size, n_tokens, prompt).to(device)
    return logits.log_softmax(dim=-1).masked_fill(missing, -torch.inf)


def fill(
    transformer: Transformer,
    weights: Mapping[str, Tensor],
    prompt: Prompt,
    n_tokens: int,
    sampler: Sampler,
) -> Sequence[int]:
    """Return the prompt's tokens with every hole filled: one pass for each, for nothing of it can be kept."""
    while prompt.holes:
        scores = hole_scores(transformer, weights, prompt, n_tokens)
        surest = int(scores.max(dim=-1).values.argmax())
        place, token = prompt.holes[surest], sampler(scores[surest])
        start = [*prompt.start[:place], token, *prompt.start[place + 1 :]]
        holes = [hole for hole in prompt.holes if hole != place]
        prompt = Prompt(start, holes, markers=prompt.markers, end=prompt.end)
    return prompt.start
