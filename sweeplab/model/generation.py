"""Generate text with a trained model: sampling, beam search, contrastive decoding with two models, or filling holes.

Except for filling holes, a `Reader` of one model or a `Contrast` of two scores the next token.

Legend: B sequences that are continued at once, T tokens generated so far, V vocab_size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from sweeplab.data.batches import Batch
from sweeplab.data.objectives.base import Prompt
from sweeplab.model.blocks import KVCache, Weights
from sweeplab.model.transformer import Transformer

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

LENGTH_PENALTY = 0.6
CONTRAST_ALPHA = 0.1  # as published


class Reader:
    """Scores next tokens by their log-probability under one model; ids that represent no text get -inf.

    With a KV cache no token is read twice. A model with bounded positions cannot use the cache past block_size tokens:
    it then reads the last block_size tokens again for each new token, because their positions change.
    """

    def __init__(
        self, transformer: Transformer, weights: Weights, prompt: Prompt, n_tokens: int
    ) -> None:
        """Take the weights of a single run; ids below `n_tokens` represent text."""
        self.transformer, self.weights = transformer, weights
        device = next(iter(weights.values())).device
        self._start = torch.tensor([*prompt.start], device=device)
        self._source = (
            None if prompt.source is None else torch.tensor([[[*prompt.source]]], device=device)
        )
        self._suppressed = suppressed(transformer.shape.vocab_size, n_tokens, prompt).to(device)
        self._max_length = transformer.max_length
        self._cache = KVCache() if transformer.caches else None

    @torch.inference_mode()
    def __call__(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B V"]:
        """Return log-probabilities of the token after `tokens`, which must continue those of the last call."""
        n_sequences = len(tokens)
        text = torch.cat(
            [self._start.expand(n_sequences, -1), tokens.to(self._start.device)], dim=1
        )
        if self._max_length and text.shape[1] > self._max_length:
            text = text[:, -self._max_length :]
            self._cache = self._cache and KVCache()
        if self._cache:
            text = text[:, self._cache.length :]
        source = None if self._source is None else self._source.expand(1, n_sequences, -1)
        batch = Batch(text[None], text[None], source)
        logits = self.transformer.next_logits(self.weights, batch, self._cache)
        return logits[0].log_softmax(dim=-1).masked_fill(self._suppressed, -torch.inf)

    def reorder(self, rows: Int[Tensor, "b"]) -> None:
        """Keep these of the B sequences, each as often as `rows` lists it."""
        if self._cache:
            self._cache.reorder(rows)


def suppressed(vocab_size: int, n_tokens: int, prompt: Prompt) -> Bool[Tensor, "V"]:
    """Return a mask of the ids that are never generated: all except text and the prompt's markers."""
    ids = torch.arange(vocab_size)
    return (ids >= n_tokens) & ~torch.isin(
        ids, torch.tensor([*prompt.markers], dtype=torch.long)
    )


@dataclass(frozen=True)
class Contrast:
    """Scores tokens by contrastive decoding (Li et al., 2022, "Contrastive decoding: open-ended text generation …").

    The score is log p_expert - log p_amateur for plausible tokens, and -inf for others. A token is plausible if the
    expert gives it at least alpha times the probability of its best token. The amateur's temperature is 1, as
    published for OPT (0.5 for GPT-2).
    """

    expert: Reader
    amateur: Reader

    def __call__(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B V"]:
        """Return the scores of the token after `tokens`."""
        expert = self.expert(tokens)
        lowest = expert.max(dim=-1, keepdim=True).values + math.log(CONTRAST_ALPHA)
        # Suppressed tokens are -inf in both models. They are never plausible, so their difference is not used.
        return torch.where(expert >= lowest, expert - self.amateur(tokens), -torch.inf)

    def reorder(self, rows: Int[Tensor, "b"]) -> None:
        """Keep these of the B sequences."""
        self.expert.reorder(rows)
        self.amateur.reorder(rows)


Next = Reader | Contrast


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn: temperature, then top-k, then top-p (Holtzman et al., "The curious case", 2020).

    A temperature of 0 takes the best token; of equally good ones, it takes the one with the lowest id. `top_k` keeps
    the k best tokens. Of these, `top_p` keeps the fewest best ones whose probabilities sum to at least p.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def probabilities(self, scores: Float[Tensor, "... V"]) -> Float[Tensor, "... V"]:
        """Return the probability of drawing each token, given their scores; at a temperature of 0 of 1 or 0."""
        # A stable sort orders equal scores by id on any device.
        ranked, order = scores.double().sort(dim=-1, descending=True, stable=True)
        if self.temperature == 0:
            kept = torch.zeros_like(ranked)
            kept[..., 0] = 1.0
        else:
            if self.top_k is not None:
                ranked[..., self.top_k :] = -torch.inf
            # The best score is shifted to 0, so that dividing by a tiny temperature does not overflow.
            kept = ((ranked - ranked[..., :1]) / self.temperature).softmax(dim=-1)
            if self.top_p is not None:
                before = kept.cumsum(dim=-1) - kept
                kept = kept.where(before < self.top_p, 0.0)
                kept = kept / kept.sum(dim=-1, keepdim=True)
        return torch.zeros_like(kept).scatter(-1, order, kept)


class TokenSampler:
    """Draws tokens on the CPU with its own generator, so that a seed gives the same draws on any device."""

    def __init__(self, how: Sampling, seed: int = 0) -> None:
        self.how, self._generator = how, torch.Generator().manual_seed(seed)

    def __call__(self, scores: Float[Tensor, "V"]) -> int:
        """Draw a token by its scores."""
        probabilities = self.how.probabilities(scores.cpu())
        return int(torch.multinomial(probabilities, 1, generator=self._generator))


def sample(
    next_: Next, sampler: TokenSampler, prompt: Prompt, max_new_tokens: int
) -> Iterator[int]:
    """Yield tokens as they are drawn, until the prompt's end token, its room or max_new_tokens is reached."""
    tokens: list[int] = []
    while len(tokens) < min(max_new_tokens, prompt.room or max_new_tokens):
        token = sampler(next_(torch.tensor([tokens], dtype=torch.long))[0])
        tokens.append(token)
        yield token
        if token == prompt.end:
            return


class Beam(NamedTuple):
    """A generated text with its log-probability and the score by which it is ranked."""

    tokens: list[int]
    log_probability: float
    score: float


def penalty(length: int) -> float:
    """Return the length penalty that divides a log-probability (Wu et al., "Google's neural machine …", 2016)."""
    return float(((5 + length) / 6) ** LENGTH_PENALTY)


def beam_search(next_: Next, prompt: Prompt, n_beams: int, max_new_tokens: int) -> list[Beam]:
    """Return the best `n_beams` texts, best first, by log-probability divided by `penalty`.

    A text ends with the prompt's end token or at the largest length. Besides the finished texts, the search continues
    `n_beams` unfinished ones. It stops when none of these can reach a better score: log-probabilities only fall, and
    the longest text has the largest divisor.
    """
    max_length = min(max_new_tokens, prompt.room or max_new_tokens)
    done: list[Beam] = []
    texts, totals = torch.empty(1, 0, dtype=torch.long), torch.zeros(1, dtype=torch.float64)
    end = -1 if prompt.end is None else prompt.end
    for length in range(1, max_length + 1):
        # Of 2 * n_beams candidates at most n_beams can end here, one for each unfinished text.
        scores = totals[:, None] + next_(texts).double().cpu()
        ranked, order = scores.flatten().sort(descending=True, stable=True)
        count = min(2 * n_beams, int(ranked.isfinite().sum()))
        totals = ranked[:count]
        rows, tokens = order[:count] // scores.shape[1], order[:count] % scores.shape[1]
        texts = torch.cat([texts[rows], tokens[:, None]], dim=1)
        is_end = (tokens == end) | (length == max_length)
        done += [
            Beam(text.tolist(), float(total), float(total) / penalty(length))
            for text, total in zip(texts[is_end], totals[is_end], strict=True)
        ]
        done = sorted(done, key=lambda beam: -beam.score)[:n_beams]
        rows, texts, totals = (part[~is_end][:n_beams] for part in (rows, texts, totals))
        is_final = (
            len(done) == n_beams
            and float(totals[:1].sum()) / penalty(max_length) <= done[-1].score
        )
        if not len(rows) or is_final:
            break
        next_.reorder(rows)
    return done


@torch.inference_mode()
def hole_scores(
    transformer: Transformer, weights: Weights, prompt: Prompt, n_tokens: int
) -> Float[Tensor, "n_holes V"]:
    """Return the log-probabilities of the token in each hole, given all tokens outside the holes."""
    device = next(iter(weights.values())).device
    tokens = torch.tensor([[[*prompt.start]]], device=device)
    logits = transformer.logits(weights, Batch(tokens, tokens))[0, [*prompt.holes]]
    mask = suppressed(transformer.shape.vocab_size, n_tokens, prompt).to(device)
    return logits.log_softmax(dim=-1).masked_fill(mask, -torch.inf)


def fill(
    transformer: Transformer,
    weights: Weights,
    prompt: Prompt,
    n_tokens: int,
    sampler: TokenSampler,
) -> Sequence[int]:
    """Return the prompt's tokens after an encoder has filled every hole, the most certain one first.

    Each hole takes one pass. Later passes read the filled holes, so nothing can be cached.
    """
    while prompt.holes:
        scores = hole_scores(transformer, weights, prompt, n_tokens)
        certain = int(scores.max(dim=-1).values.argmax())
        place, token = prompt.holes[certain], sampler(scores[certain])
        start = [*prompt.start[:place], token, *prompt.start[place + 1 :]]
        holes = [hole for hole in prompt.holes if hole != place]
        prompt = Prompt(start, holes, markers=prompt.markers, end=prompt.end)
    return prompt.start
