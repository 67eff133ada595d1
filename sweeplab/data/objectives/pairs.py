"""Predict the target of a pair from its source; or the label of a text: see `Classification`.

The sequence of a pair depends on the family:

  decoder          one sequence `source bos target`, which predicts `target eos` one token ahead
  encoder          one sequence `source bos mask mask …`, with a mask for each token of `target eos`
  encoder_decoder  the encoder reads `source`; the decoder reads `bos target` and predicts `target eos` one token ahead

An encoder predicts all tokens of a target at once, independently of each other, and the masks show the length of the
target. This suits targets that the source determines (copy, reverse, sort, addition), but not free text: if several
sentences are possible, it predicts a mixture of them.

Rows are as long as the longest pair of the split, but at most block_size: a longer source is cut at its end. A target
is never cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sweeplab.data.batches import NO_TARGET, Batch, DataKind, Ids, Pairs, RandomStream
from sweeplab.data.objectives.base import (
    BOS,
    EOS,
    HOLE,
    MASK,
    PAD,
    Objective,
    Pieces,
    Prompt,
    SpecialTokens,
    check_room,
    label,
    spread_items,
)
from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import several
from sweeplab.hyperparameters import Hyperparameters

FAMILIES = ("decoder", "encoder", "encoder_decoder")


def source_lengths(pairs: Pairs, values: Hyperparameters) -> Ids:
    """Return the number of tokens of each source [n_pairs] that fit into block_size; longer sources are cut."""
    sources, targets = pairs.lengths.T
    if values.family == "encoder_decoder":
        return np.asarray(np.minimum(sources, values.block_size))
    # A source is cut in the same way for all its targets: it leaves room for the longest.
    longest = targets.reshape(-1, pairs.per_source).max(axis=1).repeat(pairs.per_source)
    return np.asarray(np.minimum(sources, values.block_size - longest - _n_special(values)))


def _n_special(values: Hyperparameters) -> int:
    """Return the number of special tokens of an input: `bos`, and an encoder's mask for `eos`."""
    return 2 if values.family == "encoder" else 1


class PairsObjective(Objective):
    """The targets are the tokens of a pair's target."""

    name = "pairs"
    meaning = "The target of a pair, from its source"
    families = FAMILIES
    learns: ClassVar[DataKind] = "pairs"
    finds_whole = True
    # The same for every family, so that all have one vocabulary.
    special_tokens = (PAD, BOS, EOS, MASK)

    @classmethod
    def task(cls, values: Hyperparameters) -> str:
        """Describe the task: a target is predicted token by token, or all at once with a known length."""
        if values.family == "encoder":
            return f"{super().task(values)}, all of it at once"
        return super().task(values)

    @classmethod
    def lengths(cls, values: Hyperparameters) -> tuple[int, int]:
        """Return upper bounds of T and S: block_size for both, or S = 0 if source and target are one sequence."""
        if values.family == "encoder_decoder":
            return values.block_size, values.block_size
        return values.block_size, 0

    @classmethod
    def share_cut(cls, split: Pairs, values: Hyperparameters) -> float:
        """Return the share of pairs of which the source is cut."""
        return float((source_lengths(split, values) < split.lengths[:, 0]).mean())

    @classmethod
    def check(cls, name: str, split: Pairs, values: Hyperparameters) -> None:
        """Refuse a block_size with no room for the longest target and one token of its source."""
        longest = int(split.lengths[:, 1].max())
        needed = longest + _n_special(values)
        if values.family != "encoder_decoder":
            needed += 1
        if values.block_size < needed:
            target = f"the {name} split's longest target: {several(longest, 'token')}"
            what = f"block_size {values.block_size} is too short for {target}"
            raise BadInput(Problem(what, allowed=f"at least {needed}"))

    @classmethod
    def prompt(cls, pieces: Pieces, special: SpecialTokens, values: Hyperparameters) -> Prompt:
        """Use the text as source; for an encoder, the holes after it give the length of the target."""
        source, *after = pieces
        bos, eos = special[BOS], special[EOS]
        if values.family != "encoder" and after:
            raise BadInput(
                f"{HOLE} is for an encoder: this model predicts what follows the prompt"
            )
        if values.family == "encoder_decoder":
            check_room(source, values)
            return Prompt([bos], source=source, markers=[eos], end=eos, room=values.block_size)
        start = [*source, bos]
        if values.family == "decoder":
            check_room(source, values, more=1)
            return Prompt(
                start, markers=[eos], end=eos, room=values.block_size + 1 - len(start)
            )
        if not after or any(map(len, after)):
            needed = f"end the prompt with one {HOLE} for each of its tokens"
            raise BadInput(f"an encoder of pairs needs the length of the target: {needed}")
        target = [special[MASK]] * (len(after) + 1)
        check_room(source, values, more=1 + len(target))
        holes = range(len(start), len(start) + len(target))
        return Prompt([*start, *target], holes, markers=[eos], end=eos)

    def _load(self, pairs: Pairs) -> int:
        self._tokens, self._starts = np.asarray(pairs.tokens), pairs.starts
        self._source_lengths, self._target_lengths = (
            source_lengths(pairs, self._values),
            pairs.lengths[:, 1],
        )
        # In the sequence `source bos target eos`: the tokens before `bos`, and the longest sequence.
        self._before_bos = self._source_lengths
        if self._values.family == "encoder_decoder":
            self._before_bos = np.zeros_like(self._source_lengths)
        self._width = int((self._before_bos + self._target_lengths).max()) + 2
        return pairs.n_pairs // self.per_loss

    def evaluation(self, n_tokens: int | None = None) -> Iterator[Batch]:
        """Return pairs with about `n_tokens` targets, evenly spread over the split; or all pairs."""
        mean = (float(self._target_lengths.mean()) + 1) * self.per_loss  # with eos
        chosen = spread_items(n_tokens, mean, self._n_items)
        return self._evaluated(chosen, self._width * self.per_loss)

    def _batch(self, items: Ids, random: RandomStream) -> Batch:
        (source_start, target_start), before_bos = (
            self._starts[items].T,
            self._before_bos[items],
        )
        bos, end = before_bos[:, None], before_bos + self._target_lengths[items] + 1
        position = np.arange(self._width)
        source = self._slices(source_start, before_bos, self._width)
        target = self._slices(target_start - before_bos - 1, end, self._width)
        rows = np.where(position < bos, source, target)
        np.put_along_axis(rows, bos, self.special[BOS], axis=1)
        np.put_along_axis(rows, end[:, None], self.special[EOS], axis=1)
        is_target = (position > bos) & (position <= end[:, None])
        targets = np.where(is_target, rows, NO_TARGET)
        if self._values.family == "encoder":
            return Batch(
                np.where(is_target, self.special[MASK], rows), targets, lengths=end + 1
            )
        inputs = np.where(position < end[:, None], rows, self.special[PAD])
        batch = Batch(inputs[:, :-1], targets[:, 1:], lengths=end)
        if self._values.family == "decoder":
            return batch
        lengths = self._source_lengths[items]
        source = self._slices(source_start, lengths, int(self._source_lengths.max()))
        return batch._replace(source=source, source_lengths=lengths)

    def _slices(self, starts: Ids, lengths: Ids, width: int) -> Ids:
        return slices(self._tokens, starts, lengths, width, self.special[PAD])


def slices(tokens: NDArray[np.uint16], starts: Ids, lengths: Ids, width: int, pad: int) -> Ids:
    """Return stretches of tokens as rows [B, width], padded on the right."""
    position = np.arange(width)
    rows = tokens.take(starts[:, None] + position, mode="clip").astype(np.int64)
    return np.where(position < lengths[:, None], rows, pad)


# ------------------------------------------------------------------ labels


def _room(values: Hyperparameters) -> int:
    """Return the most tokens of a text that fit into block_size."""
    n_added = 0 if values.family == "encoder_decoder" else 2  # special tokens around the text
    return values.block_size - n_added


class Classification(Objective):
    """The target is the label of a text.

    Each label is a special token; label tokens are the last ids of the vocabulary. The sequence, and the position at
    which the label is predicted, depend on the family:

      encoder          `bos text eos`, at `bos`, like BERT at its [CLS] (Devlin et al. 2019)
      decoder          `bos text eos`, at `eos`, the only token that attends to all of the text
      encoder_decoder  the encoder reads `text`; the decoder reads `bos` and predicts the label there

    The softmax is over the labels only: their rows of the output head are a linear classifier. Departure: there is
    no pooling layer before the classifier; an encoder has only the layer of its head. A text that is too long for
    block_size is cut at its end.
    """

    name = "classification"
    meaning = "The label of a text, from all of it"
    families: ClassVar[tuple[str, ...]] = FAMILIES
    learns: ClassVar[DataKind] = "labels"
    unit = "nats/label"
    shortest_block = 3
    no_prompt: ClassVar[str] = (
        "the run predicts labels and generates no text: `sweeplab predict RUN TEXT`"
    )

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
    def share_cut(cls, split: Pairs, values: Hyperparameters) -> float:
        """Return the share of texts that are cut."""
        return float((split.lengths[:, 0] > _room(values)).mean())

    @classmethod
    def check(cls, name: str, split: Pairs, values: Hyperparameters) -> None:
        """Accept every split: a text that is too long is cut."""

    @classmethod
    def prompt(cls, pieces: Pieces, special: SpecialTokens, values: Hyperparameters) -> Prompt:
        """Refuse every prompt: these models generate no text."""
        raise BadInput(cls.no_prompt)

    @property
    def n_candidates(self) -> int:
        """Return the number of labels, the last ids of the vocabulary."""
        return self._values.n_labels or 0

    def _load(self, split: Any) -> int:
        self._tokens, self._starts = np.asarray(split.tokens), split.starts[:, 0]
        self._lengths = np.minimum(split.lengths[:, 0], _room(self._values))
        self._labels = self._tokens[split.starts[:, 1]].astype(np.int64)
        self._width = int(self._lengths.max())
        return int(split.n_pairs)

    def evaluation(self, n_tokens: int | None = None) -> Iterator[Batch]:
        """Return about `n_tokens` texts, each with one target, evenly spread over the split; or all texts."""
        return self._evaluated(spread_items(n_tokens, 1, self._n_items), self._width + 2)

    def _batch(self, items: Ids, random: RandomStream) -> Batch:
        lengths, rows = self._lengths[items], np.arange(len(items))
        text = slices(
            self._tokens, self._starts[items], lengths, self._width, self.special[PAD]
        )
        labels = self.special[label(0)] + self._labels[items]
        bos = np.full((len(items), 1), self.special[BOS])
        if self._values.family == "encoder_decoder":
            return Batch(bos, labels[:, None], text, np.ones_like(lengths), lengths)
        inputs = np.pad(text, ((0, 0), (1, 1)), constant_values=self.special[PAD])
        inputs[:, 0] = self.special[BOS]
        inputs[rows, lengths + 1] = self.special[EOS]
        targets = np.full_like(inputs, NO_TARGET)
        if self._values.family == "encoder":
            targets[:, 0] = labels
        else:
            targets[rows, lengths + 1] = labels
        return Batch(inputs, targets, lengths=lengths + 2)
