"""Predict the label of a text.

Each label is a special token; label tokens are the last ids of the vocabulary. The sequence, and the position at which
the label is predicted, depend on the family:

  encoder          `bos text eos`, at `bos`, like BERT at its [CLS] (Devlin et al. 2019)
  decoder          `bos text eos`, at `eos`, the only token that attends to all of the text
  encoder_decoder  the encoder reads `text`; the decoder reads `bos` and predicts the label there

The softmax is over the labels only: their rows of the output head are a linear classifier. Departure: there is no
pooling layer before the classifier; an encoder has only the layer of its head. A text that is too long for block_size
is cut at its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from sweeplab.data.batches import NO_TARGET, Batch, DataKind, Ids, Pairs
from sweeplab.data.generators import RandomStream
from sweeplab.data.objectives.base import Objective, spread
from sweeplab.data.prompts import BOS, EOS, PAD, Prompt, SpecialTokens, label
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
    no_prompt: ClassVar[str] = "the run predicts labels and generates no text: `sweeplab predict RUN TEXT`"

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
        if values.family == "encoder_decoder":
            return (1, values.block_size)
        return (values.block_size, 0)

    @classmethod
    def n_targets(cls, split: Pairs) -> int:
        """Return the number of texts, each of which has one label."""
        return split.n_pairs

    @classmethod
    def share_cut(cls, split: Pairs, values: Hyperparameters) -> float:
        """Return the share of texts that are cut."""
        return float((split.lengths[:, 0] > room(values)).mean())

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
