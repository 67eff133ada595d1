"""Find the label of a text, or of each of its words, or the score of two texts, by special tokens.

Labels are a few tokens, which come last in the vocabulary.

How a text is laid out is the family's, and its label is found at one place:

  encoder          `bos text eos`, at `bos`, as BERT's at its [CLS] (Devlin et al. 2019)
  decoder          `bos text eos`, at `eos`, which alone sees all of the text
  encoder_decoder  the encoder reads `text`; the decoder reads `bos`, and finds it there

The softmax is over the labels alone: their rows of the head are a linear classifier. Departure: no layer of its own
stands before it; an encoder's is that of its head. A text that is longer than block_size has room for is cut.

A tagger is an encoder of `bos text eos` too. The tag of a word is found at its first token, as BERT's are (Devlin et
al. 2019, section 5.3); its other tokens have no target.

The score of two texts is found by an encoder of `bos first eos second eos`, at `bos`, which sees both (a cross-encoder:
Devlin et al. 2019, section 4.1; Reimers and Gurevych 2019, section 4.1). It is the logit of one token, `score`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, final

import numpy as np

from sweeplab.data.batches import NO_TAG, NO_TARGET, SCORE_SIZE, Batch, DataKind, Ids, Pairs
from sweeplab.data.generators import Noise
from sweeplab.data.objectives.base import Objective, spread
from sweeplab.data.prompts import BOS, EOS, PAD, SCORE, Prompt, SpecialTokens, label
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import Hyperparameters


def room(values: Hyperparameters) -> int:
    """Return how many tokens of a text block_size has room for."""
    return values.block_size - (0 if values.family == "encoder_decoder" else 2)


class Classification(Objective):
    """The label of a text is to be found from all of it."""

    name = "classification"
    meaning = "The label of a text, from all of it"
    families: ClassVar[tuple[str, ...]] = ("encoder", "decoder", "encoder_decoder")
    learns: ClassVar[DataKind] = "labels"
    unit = "nats/label"
    shortest_block = 3
    writes_none: ClassVar[str] = "the run finds a text's label and writes none: `sweeplab classify RUN TEXT`"

    @classmethod
    def special_names(cls, values: Hyperparameters) -> tuple[str, ...]:
        """Return the tokens around a text, and one for each label."""
        return (PAD, BOS, EOS, *map(label, range(values.n_labels or 0)))

    @classmethod
    def task(cls, values: Hyperparameters) -> str:
        """Return that labels are found, and among how many."""
        return f"{super().task(values)}, one of {values.n_labels}"

    @classmethod
    def lengths(cls, values: Hyperparameters) -> tuple[int, int]:
        """Return upper bounds of a split's rows."""
        return (1, values.block_size) if values.family == "encoder_decoder" else (values.block_size, 0)

    @classmethod
    def check(cls, name: str, split: Pairs, values: Hyperparameters) -> None:
        """Take any: what is too long is cut."""

    @classmethod
    def prompt(
        cls, pieces: Sequence[Sequence[int]], special: SpecialTokens, values: Hyperparameters
    ) -> Prompt:
        """Refuse a prompt: there is nothing to write."""
        raise BadInput(cls.writes_none)

    def example(self) -> Sequence[Sequence[int]]:
        """Return the first text."""
        start, length = self._starts[0], self._lengths[0]
        return [self._tokens[start : start + length].tolist()]

    @property
    def n_candidates(self) -> int:
        """Return how many ids at the vocabulary's end a target is one of."""
        return self._values.n_labels or 0

    def _take(self, split: Any) -> int:
        self._tokens, self._starts = np.asarray(split.tokens), split.starts[:, 0]
        self._lengths = np.minimum(split.lengths[:, 0], room(self._values))
        self._labels = self._tokens[split.starts[:, 1]].astype(np.int64)
        self._width = int(self._lengths.max())
        return int(split.n_pairs)

    def evaluation(self, n_tokens: int | None = None) -> Iterator[Batch]:
        """Yield texts spread over the split, as many as there are to be targets, or all of them."""
        count = self._n_items if n_tokens is None else n_tokens
        for items, noise in self._together(spread(count, self._n_items), self._width + 2):
            yield self._batch(items, noise)

    def _batch(self, items: Ids, noise: Noise) -> Batch:
        lengths, rows = self._lengths[items], np.arange(len(items))
        place = np.arange(self._width)
        text = self._tokens.take(self._starts[items][:, None] + place, mode="clip").astype(np.int64)
        text = np.where(place < lengths[:, None], text, self.special[PAD])
        labels = self.special[label(0)] + self._labels[items]
        begin = np.full((len(items), 1), self.special[BOS])
        if self._values.family == "encoder_decoder":
            return Batch(begin, labels[:, None], text, np.ones_like(lengths), lengths)
        read = np.hstack([begin, text, np.full_like(begin, self.special[PAD])])
        read[rows, lengths + 1] = self.special[EOS]
        targets = np.full_like(read, NO_TARGET)
        targets[rows, 0 if self._values.family == "encoder" else lengths + 1] = labels
        return Batch(read, targets, lengths=lengths + 2)


@final
class Tagging(Classification):
    """The label of each word of a text is to be found from all of it."""

    name = "tagging"
    meaning = "The label of each word of a text, from all of it"
    families = ("encoder",)
    learns = "tags"
    unit = "nats/tag"

    def _take(self, split: Any) -> int:
        n_pairs = super()._take(split)
        self._tag_starts = split.starts[:, 1]
        self._n_tagged = int(np.count_nonzero(self._tags(np.arange(n_pairs)) != NO_TARGET))
        return n_pairs

    def evaluation(self, n_tokens: int | None = None) -> Iterator[Batch]:
        """Yield texts spread over the split that have about `n_tokens` tags, or all texts."""
        n_texts = None if n_tokens is None else max(1, round(n_tokens * self._n_items / self._n_tagged))
        return super().evaluation(n_texts)

    def _tags(self, items: Ids) -> Ids:
        """Return the label of each place of texts [B, width], NO_TARGET where there is none."""
        place = np.arange(self._width)
        tags = self._tokens.take(self._tag_starts[items][:, None] + place, mode="clip").astype(np.int64)
        is_tag = (place < self._lengths[items][:, None]) & (tags != NO_TAG)
        return np.where(is_tag, self.special[label(0)] + tags, NO_TARGET)

    def _batch(self, items: Ids, noise: Noise) -> Batch:
        batch = super()._batch(items, noise)
        targets = np.pad(self._tags(items), ((0, 0), (1, 1)), constant_values=NO_TARGET)
        return batch._replace(targets=targets)


def lengths_of_both(pairs: Pairs, values: Hyperparameters) -> tuple[Ids, Ids]:
    """Return how many tokens of the first and of the second text block_size has room for: the longer one is cut."""
    free = values.block_size - 3
    first, second = pairs.lengths[:, 0], pairs.lengths[:, 1] - SCORE_SIZE
    kept = np.minimum(first, np.maximum(free - second, free // 2))
    return kept, np.minimum(second, free - kept)


@final
class Similarity(Classification):
    """The score of two texts is to be found from both: by least squares, one number."""

    name = "similarity"
    meaning = "The score of two texts, such as how alike they are, from both of them"
    families = ("encoder",)
    learns = "scores"
    unit = "squared error"
    shortest_block = 5
    special_tokens = (PAD, BOS, EOS, SCORE)
    writes_none = "the run finds the score of two texts and writes none: `sweeplab score RUN FIRST SECOND`"

    @classmethod
    def special_names(cls, values: Hyperparameters) -> tuple[str, ...]:
        """Return the tokens around the texts, and the one whose logit is the score."""
        return cls.special_tokens

    @classmethod
    def task(cls, values: Hyperparameters) -> str:
        """Return that a score is found."""
        return cls.meaning.lower()

    @property
    def n_candidates(self) -> int:
        """Return that a target is one token alone."""
        return 1

    def _take(self, split: Any) -> int:
        self._tokens, self._starts = np.asarray(split.tokens), split.starts
        self._both = np.stack(lengths_of_both(split, self._values), axis=1)
        at = split.ends[1::2, None] - SCORE_SIZE + np.arange(SCORE_SIZE)
        self._scores = self._tokens[at].astype("<u2").view("<f8")[:, 0].astype(np.float32)
        self._lengths = self._both[:, 0]
        self._width = int(self._both.sum(axis=1).max()) + 1
        return int(split.n_pairs)

    def _batch(self, items: Ids, noise: Noise) -> Batch:
        first, second = self._both[items].T[:, :, None]
        at_first, at_second = self._starts[items].T[:, :, None]
        place, end = np.arange(self._width + 2), first + second + 2
        from_second = place - first - 2
        source = np.where(place <= first, at_first + place - 1, at_second + from_second)
        read = self._tokens.take(source, mode="clip").astype(np.int64)
        read = np.where((place == first + 1) | (place == end), self.special[EOS], read)
        read = np.where(place > end, self.special[PAD], read)
        read[:, 0] = self.special[BOS]
        targets = np.full_like(read, NO_TARGET)
        targets[:, 0] = self.special[SCORE]
        return Batch(read, targets, lengths=end[:, 0] + 1, reference=self._scores[items])
