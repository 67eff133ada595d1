"""The objective interface: an objective makes batches of a split's items, which are windows of text, or pairs.

The items of a batch are a pure function of its arguments, so a run saves no state of its data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from sweeplab.data.batches import NO_TARGET, Batch, DataKind, Ids, RandomStream, generator_key
from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import several
from sweeplab.hyperparameters import Hyperparameters

# The tokens of a prompt, and the same cut at its holes.
Tokens = Sequence[int]
Pieces = Sequence[Tokens]

# ------------------------------------------------------------------ special tokens, and prompts laid out with them
# Special tokens are ids that represent no text. They are the last ids of a vocabulary, after the tokenizer's. An
# objective has only those that it needs, so that a decoder of running text has none. If a study sets a larger
# vocab_size, the special tokens still are its last ids: they depend only on the hyperparameters.

PAD = "pad"  # fills up a row; never read, never a target
# Begins a target; in the single sequence of a decoder or encoder it separates source and target.
BOS = "bos"
EOS = "eos"  # ends a target
MASK = "mask"  # replaces a hidden token


def sentinel(index: int) -> str:
    """Return the name of the token that replaces the span of this number (from 0) in a corrupted text."""
    return f"sentinel_{index}"


def label(index: int) -> str:
    """Return the name of the token of the label with this number (from 0)."""
    return f"label_{index}"


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of a vocabulary, by name; `elsewhere` has the ids of an imported run with its own."""

    vocab_size: int
    names: tuple[str, ...] = ()
    elsewhere: Mapping[str, int] | None = None

    @property
    def n_ordinary(self) -> int:
        """Return the number of ids that represent text: those from 0 on."""
        return self.vocab_size - len(self.names)

    def __getitem__(self, name: str) -> int:
        """Return the id of a special token.

        Raises:
            BadInput: the imported run has no token of this name.
        """
        if self.elsewhere is None:
            return self.n_ordinary + self.names.index(name)
        if name not in self.elsewhere:
            raise BadInput(f"the imported run has no token {name!r}, which its objective needs")
        return self.elsewhere[name]

    @property
    def ids(self) -> dict[str, int]:
        """Return the id of each special token by its name."""
        if self.elsewhere is not None:
            return {**self.elsewhere}
        return {name: self[name] for name in self.names}

    def name_of(self, token: int) -> str | None:
        """Return the name of a special token, None for a token of text; if it has several names, the last."""
        return {number: name for name, number in self.ids.items()}.get(token)


# Marks in a prompt what the model is to predict: a token of an encoder's text, a span of a corrupted text.
HOLE = "[MASK]"


@dataclass(frozen=True)
class Prompt:
    """The input of a model before it predicts anything.

    start: the tokens before the first predicted one; for an encoder, the whole sequence.
    holes: positions of `start` whose tokens are predicted, instead of those after it.
    source: the input of the encoder of an encoder_decoder.
    markers: special tokens that may be predicted: those that begin the spans of the holes, and `end`.
    end: the token that ends the output.
    room: the most tokens of a target, if a longer one cannot have been learned.
    """

    start: Tokens
    holes: Tokens = ()
    source: Tokens | None = None
    markers: Tokens = ()
    end: int | None = None
    room: int | None = None


def filled(pieces: Sequence[Tokens], marks: Tokens) -> list[int]:
    """Join the pieces of a text with the marks between them."""
    ids = list(pieces[0])
    for mark, piece in zip(marks, pieces[1:], strict=True):
        ids += [mark, *piece]
    return ids


def check_room(tokens: Tokens, values: Hyperparameters, more: int = 0) -> None:
    """Refuse a prompt that is empty, or longer than block_size together with `more` tokens around it.

    Raises:
        BadInput: the message says how many tokens are allowed.
    """
    room = values.block_size - more
    if room < 1:
        what = f"the tokens to predict leave no room for the prompt in the block_size of {values.block_size}"
        raise BadInput(Problem(what, f"at least {1 - room} fewer {HOLE}"))
    if not 0 < len(tokens) <= room:
        if len(tokens):
            problem = f"the prompt takes {several(len(tokens), 'token')}"
        else:
            problem = "the prompt is empty"
        raise BadInput(
            Problem(
                problem,
                f"1 to {several(room, 'token')} with the block_size of {values.block_size}",
            )
        )


# ------------------------------------------------------------------ objectives


# A new generator costs as much as thousands of draws, so a chunk of iterations shares one. The size of a chunk is a
# number of draws, not of iterations: so the cache (512 chunks of 32 KB) does not grow with batch_size.
DRAWS_PER_CHUNK = 4096
# An evaluation takes stretches of so many consecutive tokens, and cuts them into windows of block_size. Tokens of a
# stretch are alike: 32,768 targets in stretches of 1,024 differ from the whole split twice as much as in these.
STRETCH = 256
_TOKENS_TOGETHER = 1024

# The ids of special tokens that an imported run has of its own.
OwnIds = Mapping[str, int] | None


def rows_together(length: int) -> int:
    """Return the number of sequences of this length in a batch of an evaluation; the last batch may have fewer."""
    return max(1, _TOKENS_TOGETHER // length)


@lru_cache(512)
def _training_items(
    seed: int, chunk: int, iterations: int, batch_size: int, n_items: int
) -> Ids:
    random = RandomStream(generator_key(seed, "batches"), chunk)
    return random.integers(iterations * batch_size, n_items).reshape(iterations, batch_size)


def spread_items(n_tokens: int | None, per_item: float, among: int) -> Ids:
    """Return evenly spaced items that have about `n_tokens` targets, `per_item` each; all items for None."""
    if n_tokens is None:
        return np.arange(among)
    return spread(max(1, round(n_tokens / per_item)), among)


def spread(count: int, among: int) -> Ids:
    """Return `count` of the numbers below `among`, evenly spaced; all of them if there are no more."""
    count = min(count, among)
    items: Ids = (2 * np.arange(count) + 1) * among // (2 * count)
    return items


class Objective(ABC):
    """An objective: what a model predicts, and from which input.

    `families` can learn it, and `learns` is the kind of data that it needs. `dense`: every position has a target.
    `finds_whole`: a target is a whole sequence, so exact matches are counted. `per_loss` sequences of a batch share one
    loss, and `unit` is the unit of losses. `shortest_block` is the smallest block_size.

    A plug-in's objective may have a loss and measures of its own, and predict in its own way. `hyperparameters` names
    those that its loss takes. `reads_start`: its loss compares a run with the weights that it starts from.
    """

    name: ClassVar[str]
    meaning: ClassVar[str]
    families: ClassVar[tuple[str, ...]]
    learns: ClassVar[DataKind] = "text"
    per_loss: ClassVar[int] = 1
    unit: ClassVar[str] = "nats/token"
    dense: ClassVar[bool] = False
    finds_whole: ClassVar[bool] = False
    shortest_block: ClassVar[int] = 1
    special_tokens: ClassVar[tuple[str, ...]] = ()
    hyperparameters: ClassVar[tuple[str, ...]] = ()
    reads_start: ClassVar[bool] = False

    def __init__(self, split: Any, values: Hyperparameters, own_special: OwnIds = None) -> None:
        self.special = SpecialTokens(values.vocab_size, self.special_names(values), own_special)
        self._values, self._batch_size = values, values.batch_size // self.per_loss
        self._n_items = self._load(split)

    @classmethod
    def special_names(cls, values: Hyperparameters) -> tuple[str, ...]:
        """Return the names of the special tokens that the objective needs."""
        return cls.special_tokens

    @classmethod
    def task(cls, values: Hyperparameters) -> str:
        """Describe the task in a few words; only losses of the same task may be compared."""
        return cls.meaning.lower()

    @classmethod
    def lengths(cls, values: Hyperparameters) -> tuple[int, int]:
        """Return T and S of the batches (S is 0 without a source); for pairs, upper bounds of both."""
        return values.block_size, 0

    @classmethod
    @abstractmethod
    def check(cls, name: str, split: Any, values: Hyperparameters) -> None:
        """Check that the split of this name fits the values.

        Raises:
            BadInput: it does not; the message says what is allowed.
        """

    @classmethod
    @abstractmethod
    def prompt(cls, pieces: Pieces, special: SpecialTokens, values: Hyperparameters) -> Prompt:
        """Lay out a user's prompt like the objective's sequences; between each two pieces of its text is a hole.

        Raises:
            BadInput: the prompt does not suit the objective, or is too long.
        """

    @classmethod
    def share_cut(cls, split: Any, values: Hyperparameters) -> float:
        """Return the share of a split's pairs of which block_size cuts the source."""
        return 0.0

    @classmethod
    def predict(cls, run: Any, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Return what a `Run` predicts of each text: rows with texts and numbers to show, and lists and mappings.

        Raises:
            BadInput: the objective predicts nothing of a text.
        """
        raise BadInput(f"objective {cls.name} predicts nothing of a text")

    def loss(self, logits: Any, batch: Batch, smoothing: Any, *parameters: Any) -> Any:
        """Return the loss of each run [K]; an objective without a `loss` of its own is trained by cross-entropy.

        `logits` [K, N, V] are those of the candidates, from which the batch's targets are numbered. `smoothing` [K] is
        None where labels are not smoothed; `parameters` are the `hyperparameters`, each [K].
        """
        raise NotImplementedError

    def measures(
        self, outputs: Iterator[tuple[Any, Batch]], *parameters: Any
    ) -> dict[str, Any]:
        """Return each run's measures [K] over the batches of an evaluation; `val_loss` is one of them.

        Objectives without `measures` of their own have the loss, and what fits their targets.
        """
        raise NotImplementedError

    def at_start(self, logits: Any, batch: Batch) -> Any:
        """Return a number for each sequence [K, B] from the logits of the start; called if `reads_start`."""
        raise NotImplementedError

    @classmethod
    def has_own(cls, method: str) -> bool:
        """Return whether the objective defines one of these methods itself."""
        return getattr(cls, method) is not getattr(Objective, method)

    def n_losses(self, batch: Batch) -> Any:
        """Return the number of losses that a run's loss averages [K]: of its counted targets, or of sequences."""
        if self.per_loss > 1:
            return batch.targets.shape[-2] // self.per_loss
        return (batch.targets != NO_TARGET).sum((-2, -1))

    @property
    def n_sequences(self) -> int:
        """Return the number of sequences of the split."""
        return self._n_items * self.per_loss

    @property
    def n_candidates(self) -> int:
        """Return the number of ids, the last of the vocabulary, that can be targets; 0 if all can."""
        return 0

    @abstractmethod
    def _load(self, split: Any) -> int:
        """Store the split and return its number of items."""

    @abstractmethod
    def _batch(self, items: Ids, random: RandomStream) -> Batch:
        """Make the batch of these items, with random numbers from `random`."""

    def training(self, seed: int, iteration: int) -> Batch:
        """Return the training batch of a run with this seed at this iteration (from 0)."""
        iterations = max(1, DRAWS_PER_CHUNK // self._batch_size)
        chunk, row = divmod(iteration, iterations)
        items = _training_items(seed, chunk, iterations, self._batch_size, self._n_items)[row]
        return self._batch(items, RandomStream(generator_key(seed, "masks"), iteration))

    @abstractmethod
    def evaluation(self, n_tokens: int | None = None) -> Iterator[Batch]:
        """Yield about `n_tokens` targets, spread over the split, or all; the same for every seed and batch_size."""

    @classmethod
    def likelihood(
        cls, tokens: Ids, values: Hyperparameters, own_special: OwnIds = None
    ) -> Iterator[Batch]:
        """Yield batches in which each token of a text that can be predicted is a target once, in its order.

        Raises:
            BadInput: the objective gives a text no probability.
        """
        raise BadInput(
            f"objective {cls.name} gives a text no probability: `sweeplab generate RUN --prompt TEXT`"
        )

    def _evaluated(self, items: Ids, length: int) -> Iterator[Batch]:
        """Yield the batches of an evaluation of these items; a sequence has `length` tokens."""
        n_rows, key = rows_together(length), generator_key(0, "evaluation masks")
        for index, first in enumerate(range(0, len(items), n_rows)):
            yield self._batch(items[first : first + n_rows], RandomStream(key, index))


class TextObjective(Objective):
    """An objective on running text: its items are all windows of one length.

    An evaluation takes evenly spaced stretches of consecutive tokens, and cuts each into windows of block_size tokens.
    So its targets are the same for every block_size up to STRETCH, but a larger window gives them more context. If
    the windows do not fill a stretch, the last one is moved back to its end, and counts each target only once.
    """

    # The tokens that two windows share although they share no target.
    overlap: ClassVar[int] = 0

    @classmethod
    def window(cls, values: Hyperparameters) -> int:
        """Return the number of tokens of an item."""
        return values.block_size + cls.overlap

    @classmethod
    def check(cls, name: str, split: Any, values: Hyperparameters) -> None:
        """Refuse a window that is longer than the split."""
        block_size, n_tokens = values.block_size, len(split)
        if cls.window(values) <= n_tokens:
            return
        what = f"block_size {block_size} is longer than the data: the {name} split has {several(n_tokens, 'token')}"
        for smaller in reversed(range(cls.shortest_block, block_size)):
            if cls.window(values.replace(block_size=smaller)) <= n_tokens:
                raise BadInput(Problem(what, f"at most {smaller}"))
        raise BadInput(Problem(what, "none, the corpus is too short"))

    def _load(self, split: Any) -> int:
        length = self.window(self._values)
        if len(split) < length:
            raise ValueError(f"{several(len(split), 'token')} have no window of {length}")
        # A plain view of the mapped file: the indexing of np.memmap is several times slower.
        self._split = np.asarray(split)
        self._windows = np.lib.stride_tricks.sliding_window_view(self._split, length)
        return len(self._windows)

    def _batch(self, items: Ids, random: RandomStream) -> Batch:
        return self._batch_of_texts(self._texts(items), random)

    def _texts(self, items: Ids) -> Ids:
        return self._windows[items].astype(np.int64)

    @abstractmethod
    def _batch_of_texts(self, texts: Ids, random: RandomStream) -> Batch:
        """Make the batch of these texts [B, any length], which it may change in place."""

    def evaluation(self, n_tokens: int | None = None) -> Iterator[Batch]:
        """Yield windows that contain each target of evenly spaced stretches of the split once."""
        length = self._values.block_size
        stretch = n_targets = self._n_items + length - 1
        count = 1
        if n_tokens is not None and n_tokens < n_targets:
            stretch = min(max(STRETCH, length), n_targets)
            count = max(1, round(n_tokens / stretch))
        starts = spread(count, n_targets // stretch) * stretch
        positions = starts[:, None] + np.arange(stretch + self.overlap)
        random = RandomStream(generator_key(0, "evaluation masks"))
        batch = self._batch_of_texts(self._split[positions].astype(np.int64), random)
        inputs, targets = batch.inputs.ravel(), batch.targets.ravel()
        due = np.arange(0, stretch, length)
        moved = np.minimum(due, stretch - length)
        windows = (np.arange(len(starts))[:, None] * stretch + moved).ravel()
        n_counted = np.tile(due - moved, len(starts))
        n_rows = rows_together(length)
        for first in range(0, len(windows), n_rows):
            rows = slice(first, first + n_rows)
            at = windows[rows, None] + np.arange(length)
            is_new = np.arange(length) >= n_counted[rows, None]
            yield Batch(inputs[at], np.where(is_new, targets[at], NO_TARGET))
