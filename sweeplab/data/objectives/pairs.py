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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sweeplab.data.batches import NO_TARGET, Batch, DataKind, Ids, Pairs
from sweeplab.data.generators import RandomStream
from sweeplab.data.objectives.base import Objective, spread_items
from sweeplab.data.prompts import BOS, EOS, HOLE, MASK, PAD, Prompt, SpecialTokens, check_room, label
from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import several
from sweeplab.hyperparameters import Hyperparameters


@dataclass(frozen=True)
class Form:
    """The layout of a pair: whether source and target are one sequence, and whether tokens are predicted one ahead."""

    is_one_sequence: bool
    is_causal: bool

    @property
    def n_special(self) -> int:
        """Return the number of special tokens of an input: `bos`, and a mask for `eos` if it is not causal."""
        return 1 if self.is_causal else 2


FORMS: Mapping[str, Form] = {
    "decoder": Form(is_one_sequence=True, is_causal=True),
    "encoder": Form(is_one_sequence=True, is_causal=False),
    "encoder_decoder": Form(is_one_sequence=False, is_causal=True),
}


def source_lengths(pairs: Pairs, values: Hyperparameters) -> Ids:
    """Return the number of tokens of each source [n_pairs] that fit into block_size; longer sources are cut."""
    form, (sources, targets) = FORMS[values.family], pairs.lengths.T
    # A source is cut in the same way for all its targets: it leaves room for the longest.
    targets = targets.reshape(-1, pairs.per_source).max(axis=1).repeat(pairs.per_source)
    taken = form.n_special + targets if form.is_one_sequence else 0
    return np.asarray(np.minimum(sources, values.block_size - taken))


class PairsObjective(Objective):
    """The targets are the tokens of a pair's target."""

    name = "pairs"
    meaning = "The target of a pair, from its source"
    families = tuple(FORMS)
    learns: ClassVar[DataKind] = "pairs"
    finds_whole = True
    special_tokens = (PAD, BOS, EOS, MASK)  # the same for every family, so that all have one vocabulary

    @classmethod
    def task(cls, values: Hyperparameters) -> str:
        """Describe the task: a target is predicted token by token, or all at once with a known length."""
        return super().task(values) + (", all of it at once" if not FORMS[values.family].is_causal else "")

    @classmethod
    def lengths(cls, values: Hyperparameters) -> tuple[int, int]:
        """Return upper bounds of T and S: block_size for both, or S = 0 if source and target are one sequence."""
        block_size = values.block_size
        return block_size, 0 if FORMS[values.family].is_one_sequence else block_size

    @classmethod
    def n_targets(cls, split: Pairs) -> int:
        """Return the number of tokens of all targets, each with its end."""
        return int(split.lengths[:, 1].sum()) + split.n_pairs

    @classmethod
    def share_cut(cls, split: Pairs, values: Hyperparameters) -> float:
        """Return the share of pairs of which the source is cut."""
        return float((source_lengths(split, values) < split.lengths[:, 0]).mean())

    @classmethod
    def check(cls, name: str, split: Pairs, values: Hyperparameters) -> None:
        """Refuse a block_size with no room for the longest target and one token of its source."""
        form, block_size = FORMS[values.family], values.block_size
        longest = int(split.lengths[:, 1].max())
        needed = longest + form.n_special + form.is_one_sequence
        if block_size < needed:
            target = f"the {name} split's longest target: {several(longest, 'token')}"
            what = f"block_size {block_size} is too short for {target}"
            raise BadInput(Problem(what, allowed=f"at least {needed}"))

    @classmethod
    def prompt(
        cls, pieces: Sequence[Sequence[int]], special: SpecialTokens, values: Hyperparameters
    ) -> Prompt:
        """Use the text as source; for an encoder, the holes after it give the length of the target."""
        form = FORMS[values.family]
        source, *after = pieces
        if form.is_causal and after:
            raise BadInput(f"{HOLE} is for an encoder: this model predicts what follows the prompt")
        if not form.is_causal and (not after or any(map(len, after))):
            needed = f"end the prompt with one {HOLE} for each of its tokens"
            raise BadInput(f"an encoder of pairs needs the length of the target: {needed}")
        before, room = [special[BOS]], None
        if form.is_one_sequence:
            before = [*source, *before]
        target: list[int] = []
        if form.is_causal:
            room = values.block_size + 1 - len(before)
        else:
            target = [special[MASK]] * (len(after) + 1)
        check_room(source, values, more=len(target) + form.is_one_sequence)
        return Prompt(
            start=[*before, *target],
            holes=range(len(before), len(before) + len(target)),
            source=None if form.is_one_sequence else source,
            markers=[special[EOS]],
            end=special[EOS],
            room=room,
        )

    def example(self) -> Sequence[Sequence[int]]:
        """Return the first pair's source, and for an encoder a hole for each token of its target."""
        start, length = self._starts[0, 0], self._source_lengths[0]
        holes: list[list[int]] = [] if self._form.is_causal else [[]] * int(self._target_lengths[0])
        return [self._tokens[start : start + length].tolist(), *holes]

    def _load(self, pairs: Pairs) -> int:
        self._form = FORMS[self._values.family]
        self._tokens, self._starts = np.asarray(pairs.tokens), pairs.starts
        self._source_lengths, self._target_lengths = source_lengths(pairs, self._values), pairs.lengths[:, 1]
        self._source_width = int(self._source_lengths.max())
        # In the sequence `source bos target eos`: the tokens before `bos`, and the longest sequence.
        lengths = self._source_lengths
        self._before_bos = lengths if self._form.is_one_sequence else np.zeros_like(lengths)
        self._width = int((self._before_bos + self._target_lengths).max()) + 2
        return pairs.n_pairs // self.per_loss

    def evaluation(self, n_tokens: int | None = None) -> Iterator[Batch]:
        """Yield pairs with about `n_tokens` targets, evenly spread over the split; or all pairs."""
        mean = (float(self._target_lengths.mean()) + 1) * self.per_loss  # with eos
        chosen = spread_items(n_tokens, mean, self._n_items)
        for items, random in self._evaluation_items(chosen, self._width * self.per_loss):
            yield self._batch(items, random)

    def _batch(self, items: Ids, random: RandomStream) -> Batch:
        before_bos, n_target = self._before_bos[items], self._target_lengths[items]
        rows = self._rows(items, before_bos, n_target)
        position, end = np.arange(self._width), before_bos + n_target + 1
        is_target = (position > before_bos[:, None]) & (position <= end[:, None])
        targets = np.where(is_target, rows, NO_TARGET)
        if not self._form.is_causal:
            return Batch(np.where(is_target, self.special[MASK], rows), targets, lengths=end + 1)
        inputs = np.where(position < end[:, None], rows, self.special[PAD])
        if self._form.is_one_sequence:
            return Batch(inputs[:, :-1], targets[:, 1:], lengths=end)
        source = self._slices(self._starts[items, 0], self._source_lengths[items], self._source_width)
        return Batch(inputs[:, :-1], targets[:, 1:], source, end, self._source_lengths[items])

    def _rows(self, items: Ids, before_bos: Ids, n_target: Ids) -> Ids:
        source_start, target_start = self._starts[items].T
        row, end = np.arange(len(items)), before_bos + n_target + 1
        target = self._slices(target_start - before_bos - 1, end, self._width)
        source = self._slices(source_start, before_bos, self._width)
        tokens = np.where(np.arange(self._width) < before_bos[:, None], source, target)
        tokens[row, before_bos] = self.special[BOS]
        tokens[row, end] = self.special[EOS]
        return tokens

    def _slices(self, starts: Ids, lengths: Ids, width: int) -> Ids:
        position = np.arange(width)
        tokens = self._tokens.take(starts[:, None] + position, mode="clip").astype(np.int64)
        return np.where(position < lengths[:, None], tokens, self.special[PAD])


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
        return float((split.lengths[:, 0] > _room(values)).mean())

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
        self._lengths = np.minimum(split.lengths[:, 0], _room(self._values))
        self._labels = self._tokens[split.starts[:, 1]].astype(np.int64)
        self._width = int(self._lengths.max())
        return int(split.n_pairs)

    def evaluation(self, n_tokens: int | None = None) -> Iterator[Batch]:
        """Yield about `n_tokens` texts, each with one target, evenly spread over the split; or all texts."""
        chosen = spread_items(n_tokens, 1, self._n_items)
        for items, random in self._evaluation_items(chosen, self._width + 2):
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
