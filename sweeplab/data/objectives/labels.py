"""Predict the label of a text, or of each of its words, or the score of two texts.

Each label is a special token; label tokens are the last ids of the vocabulary. The sequence, and the position at which
the label is predicted, depend on the family:

  encoder          `bos text eos`, at `bos`, like BERT at its [CLS] (Devlin et al. 2019)
  decoder          `bos text eos`, at `eos`, the only token that attends to all of the text
  encoder_decoder  the encoder reads `text`; the decoder reads `bos` and predicts the label there

The softmax is over the labels only: their rows of the output head are a linear classifier. Departure: there is no
pooling layer before the classifier; an encoder has only the layer of its head. A text that is too long for block_size
is cut at its end.

A tagger is an encoder of `bos text eos` too. It predicts the tag of a word at the word's first token, like BERT (Devlin
et al. 2019, section 5.3); the other tokens have no target.

The score of two texts is predicted by a cross-encoder of `bos first eos second eos`, at `bos`, which attends to both
(Devlin et al. 2019, section 4.1; Reimers and Gurevych 2019, section 4.1). It is the logit of one token, `score`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, final

import numpy as np

from sweeplab.data.batches import NO_TAG, NO_TARGET, SCORE_SIZE, Batch, DataKind, Ids, Pairs
from sweeplab.data.generators import RandomStream
from sweeplab.data.objectives.base import Objective, spread
from sweeplab.data.prompts import BOS, EOS, PAD, SCORE, Prompt, SpecialTokens, label
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import Hyperparameters


def room(values: Hyperparameters) -> int:
    """Return the most tokens of a text that fit into block_size."""
    return values.block_size - (0 if values.family == "encoder_decoder" else 2)


class Classification(Objective):
    """The target is the label of a text."""

    name = "classification"
    meaning = "The label of a text, from all of it"
    families: ClassVar[tuple[str, ...]] = ("encoder", "decoder", "encoder_decoder")
    learns: ClassVar[DataKind] = "labels"
    unit = "nats/label"
    shortest_block = 3
    no_prompt: ClassVar[str] = "the run predicts labels and generates no text: `sweeplab classify RUN TEXT`"

    @classmethod
    def special_names(cls, values: Hyperparameters) -> tuple[str, ...]:
        """Return the tokens around a text, and a token for each label."""
        return (PAD, BOS, EOS, *map(label, range(values.n_labels or 0)))

    @classmethod
    def task(cls, values: Hyperparameters) -> str:
        """Describe the task, with the number of labels."""
        return f"{super().task(values)}, one of {values.n_labels}"

    @classmethod
    def lengths(cls, values: Hyperparameters) -> tuple[int, int]:
        """Return upper bounds of T and S."""
        return (1, values.block_size) if values.family == "encoder_decoder" else (values.block_size, 0)

    @classmethod
    def check(cls, name: str, split: Pairs, values: Hyperparameters) -> None:
        """Accept every split: a text that is too long is cut."""

    @classmethod
    def prompt(
        cls, pieces: Sequence[Sequence[int]], special: SpecialTokens, values: Hyperparameters
    ) -> Prompt:
        """Refuse every prompt: these models generate no text."""
        raise BadInput(cls.no_prompt)

    def example(self) -> Sequence[Sequence[int]]:
        """Return the first text."""
        start, length = self._starts[0], self._lengths[0]
        return [self._tokens[start : start + length].tolist()]

    @property
    def n_candidates(self) -> int:
        """Return the number of labels, the last ids of the vocabulary."""
        return self._values.n_labels or 0

    def _load(self, split: Any) -> int:
        self._tokens, self._starts = np.asarray(split.tokens), split.starts[:, 0]
        self._lengths = np.minimum(split.lengths[:, 0], room(self._values))
        self._labels = self._tokens[split.starts[:, 1]].astype(np.int64)
        self._width = int(self._lengths.max())
        return int(split.n_pairs)

    def evaluation(self, n_tokens: int | None = None) -> Iterator[Batch]:
        """Yield about `n_tokens` texts, each with one target, evenly spread over the split; or all texts."""
        count = self._n_items if n_tokens is None else n_tokens
        for items, random in self._evaluation_items(spread(count, self._n_items), self._width + 2):
            yield self._batch(items, random)

    def _batch(self, items: Ids, random: RandomStream) -> Batch:
        lengths, rows = self._lengths[items], np.arange(len(items))
        position = np.arange(self._width)
        text = self._tokens.take(self._starts[items][:, None] + position, mode="clip").astype(np.int64)
        text = np.where(position < lengths[:, None], text, self.special[PAD])
        labels = self.special[label(0)] + self._labels[items]
        bos = np.full((len(items), 1), self.special[BOS])
        if self._values.family == "encoder_decoder":
            return Batch(bos, labels[:, None], text, np.ones_like(lengths), lengths)
        inputs = np.hstack([bos, text, np.full_like(bos, self.special[PAD])])
        inputs[rows, lengths + 1] = self.special[EOS]
        targets = np.full_like(inputs, NO_TARGET)
        targets[rows, 0 if self._values.family == "encoder" else lengths + 1] = labels
        return Batch(inputs, targets, lengths=lengths + 2)


@final
class Tagging(Classification):
    """The targets are the labels of a text's words."""

    name = "tagging"
    meaning = "The label of each word of a text, from all of it"
    families = ("encoder",)
    learns = "tags"
    unit = "nats/tag"

    def _load(self, split: Any) -> int:
        n_pairs = super()._load(split)
        self._tag_starts = split.starts[:, 1]
        self._n_tagged = int(np.count_nonzero(self._tags(np.arange(n_pairs)) != NO_TARGET))
        return n_pairs

    def evaluation(self, n_tokens: int | None = None) -> Iterator[Batch]:
        """Yield texts with about `n_tokens` tags, evenly spread over the split; or all texts."""
        n_texts = None if n_tokens is None else max(1, round(n_tokens * self._n_items / self._n_tagged))
        return super().evaluation(n_texts)

    def _tags(self, items: Ids) -> Ids:
        """Return the token id of each position's label [B, width], NO_TARGET where there is none."""
        position = np.arange(self._width)
        tags = self._tokens.take(self._tag_starts[items][:, None] + position, mode="clip").astype(np.int64)
        is_tag = (position < self._lengths[items][:, None]) & (tags != NO_TAG)
        return np.where(is_tag, self.special[label(0)] + tags, NO_TARGET)

    def _batch(self, items: Ids, random: RandomStream) -> Batch:
        batch = super()._batch(items, random)
        targets = np.pad(self._tags(items), ((0, 0), (1, 1)), constant_values=NO_TARGET)
        return batch._replace(targets=targets)


def lengths_of_both(pairs: Pairs, values: Hyperparameters) -> tuple[Ids, Ids]:
    """Return how many tokens of the first and the second texts fit into block_size; the longer text is cut."""
    free = values.block_size - 3
    first, second = pairs.lengths[:, 0], pairs.lengths[:, 1] - SCORE_SIZE
    kept = np.minimum(first, np.maximum(free - second, free // 2))
    return kept, np.minimum(second, free - kept)


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
    no_prompt = "the run predicts scores and generates no text: `sweeplab score RUN FIRST SECOND`"

    @classmethod
    def special_names(cls, values: Hyperparameters) -> tuple[str, ...]:
        """Return the tokens around the texts, and the token whose logit is the score."""
        return cls.special_tokens

    @classmethod
    def task(cls, values: Hyperparameters) -> str:
        """Describe the task."""
        return cls.meaning.lower()

    @property
    def n_candidates(self) -> int:
        """Return 1: the logit of the last id is the score."""
        return 1

    def _load(self, split: Any) -> int:
        self._tokens, self._starts = np.asarray(split.tokens), split.starts
        self._both = np.stack(lengths_of_both(split, self._values), axis=1)
        at = split.ends[1::2, None] - SCORE_SIZE + np.arange(SCORE_SIZE)
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
