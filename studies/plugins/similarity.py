"""The score of two texts, such as how alike they are, learned by a cross-encoder.

An encoder reads `bos first eos second eos`, attends to both texts and predicts the score at `bos` (Devlin et al. 2019,
section 4.1; Reimers and Gurevych 2019, section 4.1): the logit of one token, `score`, by least squares. This is more
accurate than comparing two encodings, but slower if many texts are compared with many. The loss is in the unit of the
scores: scale scores that are far from the range 0 to 1. If block_size is too short for both, the longer text is cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from sweeplab.data.batches import NO_TARGET, Batch, Ids, Pairs
from sweeplab.data.corpora import Pair, Targets
from sweeplab.data.generators import RandomStream
from sweeplab.data.objectives import Classification
from sweeplab.data.prompts import BOS, EOS, PAD
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.plugins import objective, pairs

SCORE = "score"  # the token of which the logit is the predicted score
SIZE = 4  # a score is stored after its second text: a 64-bit float as so many 16-bit numbers


def encode(tokenizer: Any, first: str, target: str, numbers: Mapping[str, int]) -> tuple[Ids, Ids]:
    """Return the tokens of the first text, and those of the second followed by the score."""
    score, _, second = target.partition("\t")
    written = np.array([float(score)], "<f8").view("<u2")
    return tokenizer.encode(first), np.append(tokenizer.encode(second), written)


@pairs(
    "scores",
    "Your pairs of texts and a number for each, such as how alike they are",
    ("sentence1", "sentence2", "score"),
    targets=Targets(encode, text=lambda target: target.rpartition("\t")[2]),
    numbers=("score",),
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


def lengths_of_both(pairs: Pairs, values: Hyperparameters) -> tuple[Ids, Ids]:
    """Return how many tokens of the first and the second texts fit into block_size; the longer text is cut."""
    free = values.block_size - 3
    first, second = pairs.lengths[:, 0], pairs.lengths[:, 1] - SIZE
    kept = np.minimum(first, np.maximum(free - second, free // 2))
    return kept, np.minimum(second, free - kept)


@objective
@final
class Similarity(Classification):
    """The target is the score of two texts, a real number, by least squares."""

    name = "similarity"
    meaning = "The score of two texts, such as how alike they are, from both of them"
    families = ("encoder",)
    learns = "scores"
    unit = "squared error"
    shortest_block = 5
    special_tokens = (PAD, BOS, EOS, SCORE)
    has_positions = False
    no_prompt = "the run predicts scores and generates no text: `sweeplab predict RUN TEXT`"

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
        kept = sum(lengths_of_both(split, values))
        return float((kept < split.lengths.sum(axis=1) - SIZE).mean())

    @classmethod
    def predict(cls, run: Any, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Return the score of two texts with a tab between."""
        from sweeplab.runs.run import two_texts

        both = [two_texts(text) for text in texts]
        none = np.zeros(SIZE, np.uint16)
        parts = [
            np.append(run.encoded(text), none) if at else run.encoded(text)
            for two in both
            for at, text in enumerate(two)
        ]
        ends = np.cumsum([len(part) for part in parts])
        split = Pairs(np.concatenate(parts).astype(np.uint16), ends, kind=cls.learns)
        found = [score for output in run.outputs(split) for score in predicted(*output)[0].tolist()]
        return [
            {"sentence1": first, "sentence2": second, "score": score}
            for (first, second), score in zip(both, found, strict=True)
        ]

    @property
    def n_candidates(self) -> int:
        """Return 1: the logit of the last id is the score."""
        return 1

    def loss(self, logits: Tensor, batch: Batch, smoothing: Tensor | None, *own: Tensor) -> Tensor:
        """Return the mean squared error."""
        return (predicted(logits, batch) - batch.reference).square().mean(dim=1)

    def measures(self, outputs: Iterator[tuple[Tensor, Batch]], *own: Tensor) -> dict[str, Tensor]:
        """Return the mean squared error, and Pearson's and Spearman's correlation with the true scores.

        The correlation with a constant is 0.
        """
        both = [(predicted(*output).double().cpu(), output[1].reference.double().cpu()) for output in outputs]
        found, true = (torch.cat(part, dim=1) for part in zip(*both, strict=True))
        by_rank = [torch.stack([*map(ranks, rows)]) for rows in (found, true)]
        return {
            "val_loss": (found - true).square().mean(dim=1),
            "pearson": correlation(found, true),
            "spearman": correlation(*by_rank),
        }

    def _load(self, split: Any) -> int:
        self._tokens, self._starts = np.asarray(split.tokens), split.starts
        self._both = np.stack(lengths_of_both(split, self._values), axis=1)
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
        index = np.where(position <= first, first_start + position - 1, second_start + in_second)
        inputs = self._tokens.take(index, mode="clip").astype(np.int64)
        inputs = np.where((position == first + 1) | (position == end), self.special[EOS], inputs)
        inputs = np.where(position > end, self.special[PAD], inputs)
        inputs[:, 0] = self.special[BOS]
        targets = np.full_like(inputs, NO_TARGET)
        targets[:, 0] = self.special[SCORE]
        return Batch(inputs, targets, lengths=end[:, 0] + 1, reference=self._scores[items])


def predicted(logits: Tensor, batch: Batch) -> Tensor:
    """Return the logit at each sequence's only target [K, B]."""
    found = logits if logits.dtype == torch.float64 else logits.float()
    return torch.where(batch.targets == NO_TARGET, 0.0, found.view(batch.targets.shape)).sum(dim=2)


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
