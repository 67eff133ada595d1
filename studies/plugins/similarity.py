"""The score of two texts, such as how alike they are, learned by a cross-encoder, or as the cosine of their embeddings.

similarity: an encoder reads `bos first eos second eos`, attends to both texts and predicts the score at `bos` (Devlin
et al. 2019, section 4.1; Reimers and Gurevych 2019, section 4.1): the logit of one token, `score`, by least squares.
This is more accurate than comparing two encodings, but slower if many texts are compared with many. The loss is in the
unit of the scores: scale scores that are far from the range 0 to 1. If block_size is too short, the longer text is cut.

embedding, a bi-encoder: the encoder reads each text alone, `bos text eos`. Its embedding is the mean over all tokens of
the logits of 32 tokens, scaled to length 1, and the cosine of two embeddings is fitted to the score by least squares
(Reimers and Gurevych 2019, the regression objective of section 3). Scores are from -1 to 1, the range of a cosine.
Departure: embeddings are as wide as these tokens are many, and not n_embd. A text that is too long is cut at its end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sweeplab.data.batches import NO_TARGET, Batch, Ids, Pairs, RandomStream
from sweeplab.data.corpora import Pair, Targets
from sweeplab.data.objectives import Classification
from sweeplab.data.objectives.base import BOS, EOS, PAD
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.plugins import objective, pairs

SCORE = "score"  # the token of which the logit is the predicted score
PARTS = tuple(
    f"embedding_{number}" for number in range(32)
)  # the tokens of which the logits are an embedding
SIZE = 4  # a score is stored after its second text: a 64-bit float as so many 16-bit numbers


def encode(
    tokenizer: Any, first: str, target: str, numbers: Mapping[str, int]
) -> tuple[Ids, Ids]:
    """Return the tokens of the first text, and those of the second followed by the score."""
    score, _, second = target.partition("\t")
    written = np.array([float(score)], "<f8").view("<u2")
    return tokenizer.encode(first), np.append(tokenizer.encode(second), written)


@pairs(
    "scores",
    "Your pairs of texts and a number for each, such as how alike they are",
    ("sentence1", "sentence2", "score"),
    targets=Targets(encode, text=lambda target: target.rpartition("\t")[2]),
)
def scores(first: str, second: str, score: str) -> list[Pair]:
    """Return the first text as source; the target is the score, a tab and the second text."""
    try:
        value = float(score)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"has {score!r} as its score; allowed: a number")
    if "\t" in second:
        raise ValueError("has a tab in its sentence2; allowed: spaces")
    return [Pair(first, f"{value!r}\t{second}", group=first)]


@objective
class Similarity(Classification):
    """The target is the score of two texts, a real number, by least squares."""

    name = "similarity"
    meaning = "The score of two texts, such as how alike they are, from both of them"
    families = ("encoder",)
    learns = "scores"
    unit = "squared error"
    shortest_block = 5
    special_tokens = (PAD, BOS, EOS, SCORE)
    no_prompt = "the run predicts scores and generates no text: `sweeplab predict RUN TEXT`"

    @classmethod
    def lengths_kept(cls, pairs: Pairs, values: Hyperparameters) -> Ids:
        """Return how many tokens of both texts fit into block_size [n, 2]; the longer text is cut."""
        free = values.block_size - 3
        first, second = pairs.lengths[:, 0], pairs.lengths[:, 1] - SIZE
        kept = np.minimum(first, np.maximum(free - second, free // 2))
        return np.stack([kept, np.minimum(second, free - kept)], axis=1)

    @classmethod
    def special_names(cls, values: Hyperparameters) -> tuple[str, ...]:
        """Return the tokens around the texts, and the token whose logit is the score."""
        return cls.special_tokens

    @classmethod
    def task(cls, values: Hyperparameters) -> str:
        """Describe the task."""
        return cls.meaning.lower()

    @classmethod
    def share_cut(cls, split: Pairs, values: Hyperparameters) -> float:
        """Return the share of pairs of which one text is cut."""
        kept = cls.lengths_kept(split, values).sum(axis=1)
        return float((kept < split.lengths.sum(axis=1) - SIZE).mean())

    @classmethod
    def predict(cls, run: Any, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Return the score of two texts with a tab between."""
        from sweeplab.runs.run import two_texts

        both = [two_texts(text) for text in texts]
        outputs = run.outputs(unscored(run, both))
        found = [score for output in outputs for score in cls.predicted(*output)[0].tolist()]
        return [
            {"sentence1": first, "sentence2": second, "score": score}
            for (first, second), score in zip(both, found, strict=True)
        ]

    @property
    def n_candidates(self) -> int:
        """Return 1: the logit of the last id is the score."""
        return 1

    @classmethod
    def predicted(cls, logits: Tensor, batch: Batch) -> Tensor:
        """Return the score of each two texts [K, B], the logit at their sequence's only target."""
        found = logits if logits.dtype == torch.float64 else logits.float()
        return torch.where(
            batch.targets == NO_TARGET, 0.0, found.view(batch.targets.shape)
        ).sum(dim=2)

    def loss(
        self, logits: Tensor, batch: Batch, smoothing: Tensor | None, *own: Tensor
    ) -> Tensor:
        """Return the mean squared error."""
        true = batch.reference[:, :: self.per_loss]
        return (self.predicted(logits, batch) - true).square().mean(dim=1)

    def measures(
        self, outputs: Iterator[tuple[Tensor, Batch]], *own: Tensor
    ) -> dict[str, Tensor]:
        """Return the mean squared error, and Pearson's and Spearman's correlation with the true scores.

        The correlation with a constant is 0.
        """
        both = [
            (
                self.predicted(*output).double().cpu(),
                output[1].reference[:, :: self.per_loss].double().cpu(),
            )
            for output in outputs
        ]
        found, true = (torch.cat(part, dim=1) for part in zip(*both, strict=True))
        by_rank = [torch.stack([*map(ranks, rows)]) for rows in (found, true)]
        return {
            "val_loss": (found - true).square().mean(dim=1),
            "pearson": correlation(found, true),
            "spearman": correlation(*by_rank),
        }

    def _load(self, split: Any) -> int:
        self._tokens, self._starts = np.asarray(split.tokens), split.starts
        self._both = self.lengths_kept(split, self._values)
        at = split.ends[1::2, None] - SIZE + np.arange(SIZE)
        self._scores = self._tokens[at].astype("<u2").view("<f8")[:, 0].astype(np.float32)
        self._lengths = self._both[:, 0]
        self._width = int(self._both.sum(axis=1).max()) + 1
        return int(split.n_pairs)

    def _batch(self, items: Ids, random: RandomStream) -> Batch:
        first, second = self._both[items].T[:, :, None]
        first_start, second_start = self._starts[items].T[:, :, None]
        position, end = np.arange(self._width + 2), first + second + 2
        in_second = position - first - 2
        index = np.where(
            position <= first, first_start + position - 1, second_start + in_second
        )
        inputs = self._tokens.take(index, mode="clip").astype(np.int64)
        inputs = np.where(
            (position == first + 1) | (position == end), self.special[EOS], inputs
        )
        inputs = np.where(position > end, self.special[PAD], inputs)
        inputs[:, 0] = self.special[BOS]
        targets = np.full_like(inputs, NO_TARGET)
        targets[:, 0] = self.special[SCORE]
        return Batch(inputs, targets, lengths=end[:, 0] + 1, reference=self._scores[items])


@objective
@final
class Embedding(Similarity):
    """The target is the score of two texts, as the cosine of their embeddings; each text is a sequence of its own."""

    name = "embedding"
    meaning = "An embedding of each text, such that the cosine of two is their score"
    shortest_block = 3
    special_tokens = (PAD, BOS, EOS, *PARTS)
    per_loss = 2
    no_prompt = "the run embeds texts and generates none: `sweeplab predict RUN TEXT`"

    @classmethod
    def lengths_kept(cls, pairs: Pairs, values: Hyperparameters) -> Ids:
        """Return how many tokens of each text are read [n, 2]."""
        return np.minimum(pairs.lengths - [0, SIZE], values.block_size - 2)

    @classmethod
    def predict(cls, run: Any, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Return the `embedding` of each text; the score of two texts with a tab between."""
        if any("\t" in text for text in texts):
            return super().predict(run, texts)
        outputs = run.outputs(unscored(run, [(text, text) for text in texts]))
        found = [
            vector for output in outputs for vector in embeddings(*output)[0, ::2].tolist()
        ]
        return [
            {"text": text, "embedding": vector}
            for text, vector in zip(texts, found, strict=True)
        ]

    @property
    def n_candidates(self) -> int:
        """Return the width of an embedding: the logits of the last ids are its elements."""
        return len(PARTS)

    @classmethod
    def predicted(cls, logits: Tensor, batch: Batch) -> Tensor:
        """Return the cosine of each two texts' embeddings [K, B/2]."""
        found = embeddings(logits, batch)
        return (found[:, 0::2] * found[:, 1::2]).sum(dim=2)

    def _batch(self, items: Ids, random: RandomStream) -> Batch:
        lengths, starts = (part[items].reshape(-1, 1) for part in (self._both, self._starts))
        position = np.arange(int(self._both.max()) + 2)
        inputs = self._tokens.take(starts + position - 1, mode="clip").astype(np.int64)
        inputs = np.where(position == lengths + 1, self.special[EOS], inputs)
        inputs = np.where(position > lengths + 1, self.special[PAD], inputs)
        inputs[:, 0] = self.special[BOS]
        targets = np.where(position <= lengths + 1, self.special[PARTS[0]], NO_TARGET)
        return Batch(
            inputs, targets, lengths=lengths[:, 0] + 2, reference=self._scores[items].repeat(2)
        )


def unscored(run: Any, both: Sequence[tuple[str, str]]) -> Pairs:
    """Return pairs of texts, with a score of 0."""
    none = np.zeros(SIZE, np.uint16)
    parts = [
        part
        for two in both
        for part in (run.encoded(two[0]), np.append(run.encoded(two[1]), none))
    ]
    ends = np.cumsum([len(part) for part in parts])
    return Pairs(np.concatenate(parts).astype(np.uint16), ends, kind=Similarity.learns)


def embeddings(logits: Tensor, batch: Batch) -> Tensor:
    """Return the embedding of each sequence [K, B, 32], of length 1."""
    found = logits if logits.dtype == torch.float64 else logits.float()
    is_text = (batch.targets != NO_TARGET)[..., None]
    return F.normalize((found.view(*batch.targets.shape, -1) * is_text).sum(dim=2), dim=-1)


def ranks(values: Tensor) -> Tensor:
    """Return the rank of each value, starting at 1; equal values get the mean of their ranks."""
    _, place, counts = torch.unique(values, return_inverse=True, return_counts=True)
    found: Tensor = (counts.cumsum(0) - (counts - 1) / 2).double()[place]
    return found


def correlation(one: Tensor, other: Tensor) -> Tensor:
    """Return Pearson's correlation of each row."""
    one, other = (each - each.mean(dim=1, keepdim=True) for each in (one, other))
    sizes = (one.square().sum(dim=1) * other.square().sum(dim=1)).sqrt()
    return (one * other).sum(dim=1) / torch.where(sizes > 0, sizes, 1.0)
