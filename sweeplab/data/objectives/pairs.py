"""Find the target of a pair from its source.

How a pair is laid out is the family's:

  decoder          one sequence `source bos target`, in which `target eos` is found a token ahead
  encoder          one sequence `source bos mask mask …`, in which a mask stands for each token of `target eos`
  encoder_decoder  the encoder reads `source`; the decoder reads `bos target` and finds `target eos` a token ahead

An encoder finds all of a target at once, each token apart from the others, and is told how long it is. That suits
what follows from the source alone (copy, reverse, sort, addition), and not free text: of several good sentences it
finds a mixture.

Rows are as long as the split's longest pair needs, but at most block_size: a source that is longer is cut at its
end. A target is never cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from sweeplab.data.batches import NO_TARGET, SCORE_SIZE, Batch, DataKind, Ids, Pairs
from sweeplab.data.generators import Noise
from sweeplab.data.objectives.base import Objective, spread
from sweeplab.data.objectives.labels import lengths_of_both
from sweeplab.data.objectives.labels import room as label_room
from sweeplab.data.prompts import BOS, EOS, HOLE, MASK, PAD, Prompt, SpecialTokens, check_room
from sweeplab.errors import BadInput, Problem
from sweeplab.hyperparameters import Hyperparameters


@dataclass(frozen=True)
class Form:
    """How a family reads a pair: whether the source stands in its one sequence, and whether it finds a token ahead."""

    has_source: bool
    is_ahead: bool

    @property
    def n_special(self) -> int:
        """Return the special tokens of a sequence: `bos`, and `eos` where it is not ahead of the last input."""
        return 1 if self.is_ahead else 2


FORMS: Mapping[str, Form] = {
    "decoder": Form(has_source=True, is_ahead=True),
    "encoder": Form(has_source=True, is_ahead=False),
    "encoder_decoder": Form(has_source=False, is_ahead=True),
}


def source_lengths(pairs: Pairs, values: Hyperparameters) -> Ids:
    """Return how many tokens of each source [n_pairs] block_size has room for; what is longer is cut."""
    form, (sources, targets) = FORMS[values.family], pairs.lengths.T
    if pairs.n_labels:
        return np.asarray(np.minimum(sources, label_room(values)))
    # One source of all its targets: it is the longest that it has to leave room for.
    targets = targets.reshape(-1, pairs.per_source).max(axis=1).repeat(pairs.per_source)
    taken = form.n_special + targets if form.has_source else 0
    return np.asarray(np.minimum(sources, values.block_size - taken))


def share_cut(pairs: Pairs, values: Hyperparameters) -> float:
    """Return the share of pairs whose source is cut, or one of whose two texts."""
    if pairs.kind == "scores":
        kept = sum(lengths_of_both(pairs, values))
        return float((kept < pairs.lengths.sum(axis=1) - SCORE_SIZE).mean())
    return float((source_lengths(pairs, values) < pairs.lengths[:, 0]).mean())


class PairsObjective(Objective):
    """The target of a pair is to be found from its source."""

    name = "pairs"
    meaning = "The target of a pair, from its source"
    families = tuple(FORMS)
    learns: ClassVar[DataKind] = "pairs"
    finds_whole = True
    special_tokens = (PAD, BOS, EOS, MASK)  # for every family the same, so that all have one vocabulary

    @classmethod
    def task(cls, values: Hyperparameters) -> str:
        """Return whether a target is found token by token, or all at once and with its length told."""
        form = FORMS[values.family]
        return super().task(values) + ("" if form.is_ahead else ", all of it at once")

    @classmethod
    def lengths(cls, values: Hyperparameters) -> tuple[int, int]:
        """Return block_size, and again where a source stands apart: upper bounds of a split's rows."""
        block_size = values.block_size
        return block_size, 0 if FORMS[values.family].has_source else block_size

    @classmethod
    def check(cls, name: str, split: Pairs, values: Hyperparameters) -> None:
        """Refuse a block_size without room for the longest target and a token of its source."""
        form, block_size = FORMS[values.family], values.block_size
        longest = int(split.lengths[:, 1].max())
        needed = longest + form.n_special + form.has_source
        if block_size < needed:
            what = f"block_size {block_size} is too short for the {name} split's longest target: {longest} tokens"
            raise BadInput(Problem(what, allowed=f"at least {needed}"))

    @classmethod
    def prompt(
        cls, pieces: Sequence[Sequence[int]], special: SpecialTokens, values: Hyperparameters
    ) -> Prompt:
        """Take the text for a source; an encoder is told by holes after it how many tokens the target has."""
        form = FORMS[values.family]
        source, *after = pieces
        if form.is_ahead and after:
            raise BadInput(f"{HOLE} is for an encoder: this model finds all that follows from the prompt")
        if not form.is_ahead and (not after or any(map(len, after))):
            needed = f"at its end a {HOLE} for each token of the target"
            raise BadInput(f"an encoder of pairs is told how long the target is: the prompt needs {needed}")
        target = [] if form.is_ahead else [special[MASK]] * (len(after) + 1)
        before = [*(source if form.has_source else ()), special[BOS]]
        check_room(source, values, more=len(target) + form.has_source)
        return Prompt(
            start=[*before, *target],
            holes=range(len(before), len(before) + len(target)),
            source=None if form.has_source else source,
            markers=[special[EOS]],
            end=special[EOS],
            room=values.block_size + 1 - len(before) if form.is_ahead else None,
        )

    def example(self) -> Sequence[Sequence[int]]:
        """Return the first pair's source, and for an encoder a hole for each token of its target."""
        start, length = self._starts[0, 0], self._sources[0]
        holes: list[list[int]] = [] if self._form.is_ahead else [[]] * int(self._targets[0])
        return [self._tokens[start : start + length].tolist(), *holes]

    def _take(self, pairs: Pairs) -> int:
        self._form = FORMS[self._values.family]
        self._tokens, self._starts = np.asarray(pairs.tokens), pairs.starts
        self._sources, self._targets = source_lengths(pairs, self._values), pairs.lengths[:, 1]
        self._n_source = int(self._sources.max())
        # What of `source bos target eos` comes before `bos` in the one sequence, and the most of all of it.
        self._before = self._sources if self._form.has_source else np.zeros_like(self._sources)
        self._n_places = int((self._before + self._targets).max()) + 2
        return pairs.n_pairs // self.per_loss

    def evaluation(self, n_tokens: int | None = None) -> Iterator[Batch]:
        """Yield pairs spread over the split that have about `n_tokens` targets, or all pairs."""
        mean = (float(self._targets.mean()) + 1) * self.per_loss  # with eos
        count = self._n_items if n_tokens is None else max(1, round(n_tokens / mean))
        for items, noise in self._together(spread(count, self._n_items), self._n_places * self.per_loss):
            yield self._batch(items, noise)

    def _batch(self, items: Ids, noise: Noise) -> Batch:
        before, targets = self._before[items], self._targets[items]
        row = self._rows(items, before, targets)
        place, end = np.arange(self._n_places), before + targets + 1
        is_found = (place > before[:, None]) & (place <= end[:, None])
        found = np.where(is_found, row, NO_TARGET)
        if not self._form.is_ahead:
            return Batch(np.where(is_found, self.special[MASK], row), found, lengths=end + 1)
        read = np.where(place < end[:, None], row, self.special[PAD])
        if self._form.has_source:
            return Batch(read[:, :-1], found[:, 1:], lengths=end)
        source = self._taken(self._starts[items, 0], self._sources[items], self._n_source)
        return Batch(read[:, :-1], found[:, 1:], source, end, self._sources[items])

    def _rows(self, items: Ids, before: Ids, targets: Ids) -> Ids:
        """Return `source bos target eos` of each item, with `before` tokens of its source, padded on the right."""
        source_start, target_start = self._starts[items].T
        row, end = np.arange(len(items)), before + targets + 1
        target = self._taken(target_start - before - 1, end, self._n_places)
        source = self._taken(source_start, before, self._n_places)
        tokens = np.where(np.arange(self._n_places) < before[:, None], source, target)
        tokens[row, before] = self.special[BOS]
        tokens[row, end] = self.special[EOS]
        return tokens

    def _taken(self, starts: Ids, lengths: Ids, width: int) -> Ids:
        """Return `lengths` tokens from `starts` on, a row each [B, width], padded on the right."""
        place = np.arange(width)
        tokens = self._tokens.take(starts[:, None] + place, mode="clip").astype(np.int64)
        return np.where(place < lengths[:, None], tokens, self.special[PAD])


@final
class Preference(PairsObjective):
    """Of two answers to a prompt the chosen one is to become likelier than the rejected one, from a trained run on.

    Sequences are laid out as those of pairs are, and a batch has the chosen and the rejected answer of each prompt in
    turn. The loss is that of direct preference optimization: `preference_losses` of the model.
    """

    name = "preference"
    meaning = "Which of two answers to a prompt is chosen, by direct preference optimization (DPO)"
    families = ("decoder", "encoder_decoder")
    learns = "preferences"
    unit = "nats/pair"
    per_loss = 2
    finds_whole = False

    @classmethod
    def task(cls, values: Hyperparameters) -> str:
        """Return that answers are ranked."""
        return "which of two answers to a prompt is chosen"

    def _batch(self, items: Ids, noise: Noise) -> Batch:
        rows = (items[:, None] * self.per_loss + np.arange(self.per_loss)).ravel()
        return super()._batch(rows, noise)._replace(reference=rows)
