"""The n-gram baseline of an objective: a trained model should have a lower loss.

A baseline has the same information as a model. It counts n-grams in as many tokens of the training split as a study's
longest run reads, and is evaluated on the same batches as the study's runs, with the same visible tokens. Its order is
the one with the lowest loss on the last tenth of what it counts.

The n-grams are interpolated Kneser-Ney's, with three discounts per level: Kneser and Ney, "Improved backing-off for
m-gram language modeling", 1995; the discounts are Chen and Goodman's ("An empirical study of smoothing techniques for
language modeling", 1999, equation 26). A context is a list of columns, the most important one first. The model of order
n uses the first n - 1 columns. They need not be the preceding tokens: a column may have other tokens, or positions.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from sweeplab.data.batches import NO_TARGET, Batch
from sweeplab.data.dataset import Dataset, Scored
from sweeplab.data.generators import RandomStream, generator_key
from sweeplab.data.objectives import evaluated_on, make_objective, special_tokens
from sweeplab.data.objectives.base import Objective
from sweeplab.data.objectives.pairs import FORMS, Classification, PairsObjective
from sweeplab.data.objectives.tokens import HIDDEN, REPLACED, Masked, NextToken
from sweeplab.data.prompts import BOS, MASK, label
from sweeplab.files import cache_folder, make_folder, read_bytes, write_whole
from sweeplab.hyperparameters import Hyperparameters

Ids = NDArray[np.int64]
Array = NDArray[np.float64]
NONE = -1
N_DISCOUNTS = 3
MIN_DISCOUNT = 0.1  # positive, so that every token has a positive probability


class Examples(NamedTuple):
    """Tokens [N] with their contexts: columns [N] of tokens or positions, NONE where the context is shorter.

    `copied` [N] is the probability of each token if it is copied from its source.
    """

    contexts: list[Ids]
    tokens: Ids
    copied: Array | None = None

    def part(self, chosen: slice) -> Examples:
        """Return some of the examples."""
        copied = None if self.copied is None else self.copied[chosen]
        return Examples([each[chosen] for each in self.contexts], self.tokens[chosen], copied)


class _Counts:
    """Discounted counts of one order, by n-gram and by context; of occurrences, or of distinct continuations."""

    def __init__(self, counts: Ids, contexts: Ids, n_contexts: int) -> None:
        self.discounts = _discounts(counts)
        self.discounted = counts - self.discounts[np.minimum(counts, N_DISCOUNTS)]
        self.totals = np.bincount(contexts, counts, n_contexts)
        freed = np.bincount(contexts, counts - self.discounted, n_contexts)
        self.backoff = freed / np.maximum(self.totals, 1)

    def interpolate(self, contexts: Ids, grams: Ids, lower: Array) -> Array:
        """Return this order's probabilities, given those of the lower order, which hold for unknown contexts."""
        is_known = contexts != NONE
        at = np.where(is_known, contexts, 0)
        discounted = np.where(grams == NONE, 0.0, self.discounted[grams] / np.maximum(self.totals[at], 1))
        return np.where(is_known, discounted + self.backoff[at] * lower, lower)


class _Order(NamedTuple):
    """Sorted keys of one order: contexts as (shorter context, column), n-grams as (context, token)."""

    contexts: Ids
    grams: Ids
    raw: _Counts
    continuations: _Counts


class NGrams:
    """A Kneser-Ney model of examples, for every order from 1 to the number of their columns plus one."""

    def __init__(self, examples: Examples, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._n_symbols = max([vocab_size, *(1 + each.max(initial=NONE) for each in examples.contexts)])
        numbers = np.zeros_like(examples.tokens)  # of the examples' contexts
        contexts, orders = np.zeros(1, np.int64), []
        for column in [None, *examples.contexts]:
            if column is not None:
                keys = self._keys(numbers, column)
                if not (keys != NONE).any():  # no context is that long
                    break
                contexts, inverse = np.unique(keys[keys != NONE], return_inverse=True)
                numbers = np.full_like(numbers, NONE)
                numbers[keys != NONE] = inverse
            keys = self._keys(numbers, examples.tokens)
            grams, counts = np.unique(keys[keys != NONE], return_counts=True)
            orders.append((contexts, grams, counts))
        self._orders: list[_Order] = []
        for (contexts, grams, counts), longer in zip_longest(orders, orders[1:]):
            distinct = counts if longer is None else self._continuations(grams, *longer[:2])
            both = (_Counts(each, grams // self._n_symbols, len(contexts)) for each in (counts, distinct))
            self._orders.append(_Order(contexts, grams, *both))

    def _keys(self, contexts: Ids, tokens: Ids) -> Ids:
        is_known = (contexts != NONE) & (tokens != NONE) & (tokens < self._n_symbols)
        return np.where(is_known, contexts * self._n_symbols + tokens, NONE)

    def _continuations(self, grams: Ids, contexts: Ids, longer: Ids) -> Ids:
        """Count the distinct longer n-grams that contain each n-gram; at the start of a row there is one."""
        numbers, tokens = np.divmod(longer, self._n_symbols)
        shorter = contexts[numbers] // self._n_symbols * self._n_symbols + tokens
        return np.maximum(np.bincount(np.searchsorted(grams, shorter), minlength=len(grams)), 1)

    def probabilities(self, examples: Examples) -> Iterator[Array]:
        """Yield the probability [N] of each example's token by every order, from 1 on."""
        contexts = np.zeros_like(examples.tokens)
        lower = np.full(len(contexts), 1 / self._vocab_size)
        for order, column in zip(self._orders, [None, *examples.contexts], strict=False):
            if column is not None:
                contexts = _indices(order.contexts, self._keys(contexts, column))
            grams = _indices(order.grams, self._keys(contexts, examples.tokens))
            yield order.raw.interpolate(contexts, grams, lower)
            lower = order.continuations.interpolate(contexts, grams, lower)


def _indices(known: Ids, keys: Ids) -> Ids:
    if not len(known):
        return np.full_like(keys, NONE)
    indices = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.where(known[indices] == keys, indices, NONE)


def _discounts(counts: Ids) -> Array:
    seen = np.bincount(np.minimum(counts, N_DISCOUNTS + 2), minlength=N_DISCOUNTS + 2).astype(float)
    share = seen[1] / max(seen[1] + 2 * seen[2], 1)
    discounts = [n - (n + 1) * share * seen[n + 1] / max(seen[n], 1) for n in range(1, N_DISCOUNTS + 1)]
    return np.array([0.0, *(np.clip(each, MIN_DISCOUNT, n + 1) for n, each in enumerate(discounts))])


# ------------------------------------------------------------------ the baseline of each objective


MAX_ORDER = 10
# At least and at most so many tokens of a text are counted, its last ones.
MIN_TOKENS, MAX_TOKENS = 1_000, 2**22
MAX_BATCHES = 2_000  # of pairs or tagged texts

# Returns the probability [N] of each example's token.
Predict = Callable[[Examples], Array]


class Task(ABC):
    """The n-gram form of an objective: what is counted, and how to predict a target; `method` describes it."""

    method: ClassVar[str]

    def __init__(self, train: Any, values: Hyperparameters, n_tokens: int = MAX_TOKENS) -> None:
        self.train, self.values, self.n_tokens = train, values, n_tokens
        self.special = special_tokens(values)
        self.vocab_size: int = values.vocab_size

    def examples(self) -> Examples:
        """Return the examples to count in the training split: each token of the text, after its preceding tokens."""
        text = self._text()
        return _select(slice(None), _preceding(text), text)

    @abstractmethod
    def probabilities(self, batch: Batch, predict: Predict) -> Array:
        """Return the probability of each target of a batch, in order; `predict` is the fitted n-gram model."""

    def _text(self) -> Ids:
        return np.asarray(self.train[-self.n_tokens :]).astype(np.int64)[None]


def shifted(rows: Ids, by: int) -> Ids:
    """Shift each row to the right by so many positions (a negative number: to the left), and fill with NONE."""
    width = rows.shape[1]
    padded = np.pad(rows, ((0, 0), (max(by, 0), max(-by, 0))), constant_values=NONE)
    if by > 0:
        return padded[:, :width]
    return padded[:, -width:]


def _preceding(rows: Ids) -> list[Ids]:
    return [shifted(rows, by) for by in range(1, MAX_ORDER)]


def _neighbors(rows: Ids) -> list[Ids]:
    return [shifted(rows, side * by) for by in range(1, MAX_ORDER // 2 + 1) for side in (1, -1)]


def _select(positions: Any, columns: list[Ids], tokens: Ids) -> Examples:
    return Examples([each[positions].ravel() for each in columns], tokens[positions].ravel())


@final
class NextTokenTask(Task):
    """Predicts a token from the tokens before it in its row."""

    method = "n-grams"

    def probabilities(self, batch: Batch, predict: Predict) -> Array:
        """Return the probability of each next token."""
        rows = np.concatenate([batch.inputs, batch.targets[:, -1:]], axis=1)
        return predict(_select((slice(None), slice(1, None)), _preceding(rows), rows))


@final
class MaskedTask(Task):
    """Predicts a token from the visible neighbors on both sides, and from its own input if that is not a mask."""

    method = "n-grams of the neighbors on both sides"

    def examples(self) -> Examples:
        """Return each token of the text with its neighbors, as many of them masked as in a model's input."""
        text, share = self._text(), self.values.mask_share
        random = RandomStream(generator_key(0, "baseline"))
        draw = random.integers(text.size, 2**31).reshape(text.shape) / 2**31 / share * 10
        others = random.integers(text.size, self.special.n_ordinary).reshape(text.shape)
        inputs = np.where(draw < HIDDEN, self.special[MASK], np.where(draw < HIDDEN + REPLACED, others, text))
        return _select(slice(None), _neighbors(inputs), text)

    def probabilities(self, batch: Batch, predict: Predict) -> Array:
        """Return the probability of each target; by Bayes' rule if its input may be the kept token or another."""
        chosen = batch.targets != NO_TARGET
        examples = _select(chosen, _neighbors(batch.inputs), batch.targets)
        prior, shown = predict(examples), batch.inputs[chosen]
        is_shown = shown != self.special[MASK]
        prior_shown = predict(examples._replace(tokens=np.where(is_shown, shown, examples.tokens)))
        kept, replaced = 10 - HIDDEN - REPLACED, REPLACED / self.special.n_ordinary
        posterior = prior * (kept * (shown == examples.tokens) + replaced) / (kept * prior_shown + replaced)
        return np.where(is_shown, posterior, prior)


@final
class PairsTask(Task):
    """Predicts a target's token from the tokens before it, mixed with a copy of a random token of the source.

    An encoder predicts all of a target at once. Its context is the distance of a token from the target's start and
    from its end, which the masks show.
    """

    method = "n-grams of targets, mixed with copies of source tokens"

    def examples(self) -> Examples:
        """Return the tokens of the targets with their contexts and their shares of the source."""
        batches = islice(make_objective(self.train, self.values).evaluation(), MAX_BATCHES)
        contexts, tokens, copied = zip(*map(self._examples_of, batches), strict=True)
        columns = [*map(np.concatenate, zip(*contexts, strict=True))]
        return Examples(columns, np.concatenate(tokens), np.concatenate(copied))

    def probabilities(self, batch: Batch, predict: Predict) -> Array:
        """Return the probability of each token of the targets."""
        return predict(self._examples_of(batch))

    def _examples_of(self, batch: Batch) -> Examples:
        chosen = batch.targets != NO_TARGET
        copied = self._copied(batch, chosen)
        if FORMS[self.values.family].is_causal:
            with_bos = np.pad(np.where(chosen, batch.targets, NONE), ((0, 0), (1, 0)), constant_values=NONE)
            np.put_along_axis(with_bos, chosen.argmax(axis=1)[:, None], self.special[BOS], axis=1)
            columns = [each[:, 1:] for each in _preceding(with_bos)]
        else:
            from_start = np.cumsum(chosen, axis=1)
            columns = [from_start, from_start[:, -1:] - from_start]
            # The last mask always stands for `eos`: there the copy component predicts it with certainty.
            copied = np.where(columns[1][chosen] == 0, 1.0, copied)
        return _select(chosen, columns, batch.targets)._replace(copied=copied)

    def _copied(self, batch: Batch, chosen: Any) -> Array:
        """Return, for each target token, its share of the tokens of its source: the probability of copying it."""
        if batch.source is not None:
            source, lengths = batch.source, batch.source_lengths
        else:  # a single sequence has its source before `bos`
            source, lengths = batch.inputs, (batch.inputs == self.special[BOS]).argmax(axis=1)
        n_source = np.asarray(lengths)
        source = np.where(np.arange(source.shape[1]) < n_source[:, None], source, NONE)
        row, _ = np.nonzero(chosen)
        matches = (source[row] == batch.targets[chosen][:, None]).sum(axis=1)
        return np.asarray(matches / np.maximum(n_source[row], 1))


@final
class LabelsTask(Task):
    """Predicts a label from its frequency, independent of the text."""

    method = "label frequencies"

    def __init__(self, train: Any, values: Hyperparameters, n_tokens: int = MAX_TOKENS) -> None:
        super().__init__(train, values, n_tokens)
        self.vocab_size = values.n_labels or train.n_labels

    def examples(self) -> Examples:
        """Return the labels of the training split, without contexts."""
        return Examples([], self.train.tokens[self.train.starts[:, 1]].astype(np.int64))

    def probabilities(self, batch: Batch, predict: Predict) -> Array:
        """Return the probability of each text's label."""
        return predict(Examples([], batch.targets[batch.targets != NO_TARGET] - self.special[label(0)]))


TASKS: dict[str, type[Task]] = {
    NextToken.name: NextTokenTask,
    Masked.name: MaskedTask,
    PairsObjective.name: PairsTask,
    Classification.name: LabelsTask,
}


FORMAT = 8  # part of every digest: raise it when the same data would give another loss
N_PARTS = 10  # the last of so many parts of the examples is held out, to choose the order
EM_STEPS = 20


@dataclass(frozen=True)
class Baseline:
    """The loss of an n-gram model, in its `unit` and in bits per byte (None for labels).

    `method` and `order` describe the model. `copied` is the weight of copied source tokens in the mixture, `n_counted`
    the number of counted tokens.
    """

    loss: float
    bits_per_byte: float | None
    method: str
    order: int
    copied: float
    n_counted: int
    unit: str = Objective.unit


def find_baseline(
    dataset: Dataset,
    values: Hyperparameters,
    cache: Path | None = None,
    split: Scored = "val",
    n_read: int = MAX_TOKENS,
) -> Baseline | None:
    """Return the baseline of a run's objective, from the cache if it is there; None if the objective has none.

    `n_read` are the tokens of a text that runs read; of pairs and labelled texts all are counted.
    """
    if values.objective not in TASKS:
        return None
    n_tokens = min(max(n_read, MIN_TOKENS), MAX_TOKENS)
    inputs = [FORMAT, split, dataset.token_digest, *evaluated_on(values), n_tokens]
    if values.data_limit is not None:
        inputs.append(values.data_limit)
    digest = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:32]
    file = (cache or cache_folder()) / f"{digest}.baseline"
    try:
        return Baseline(**json.loads(read_bytes(file)))
    except (OSError, ValueError, TypeError):  # missing or incomplete
        computed = _computed(dataset, values, split, n_tokens)
        make_folder(file.parent)
        write_whole(file, json.dumps(asdict(computed)).encode())
        return computed


def _computed(dataset: Dataset, values: Hyperparameters, split: Scored, n_tokens: int) -> Baseline:
    task = TASKS[values.objective](dataset.training(values), values, n_tokens)
    examples = task.examples()
    n_fitted = len(examples.tokens) - max(1, len(examples.tokens) // N_PARTS)
    order, weight = _selected(examples.part(slice(n_fitted)), examples.part(slice(n_fitted, None)), task)
    ngrams = NGrams(examples._replace(contexts=examples.contexts[: order - 1]), task.vocab_size)

    def predict(examples: Examples) -> Array:
        *_, counted = ngrams.probabilities(examples)
        return _mixed(counted, weight, examples.copied)

    objective = make_objective(dataset.scored(split), values)
    total, n_targets = 0.0, 0
    for batch in objective.evaluation(values.evaluated_tokens):
        total -= float(np.log(task.probabilities(batch, predict)).sum())
        n_targets += batch.n_targets
    loss = total / n_targets
    per_byte = dataset.bits_per_byte(loss, values, split)
    return Baseline(loss, per_byte, task.method, order, weight, len(examples.tokens), objective.unit)


def _selected(fitted: Examples, held_out: Examples, task: Task) -> tuple[int, float]:
    by_order = list(NGrams(fitted, task.vocab_size).probabilities(held_out))
    weights = [_weight(each, held_out.copied) for each in by_order]
    mixed = (_mixed(each, weight, held_out.copied) for each, weight in zip(by_order, weights, strict=True))
    best = int(np.argmax([np.log(each).mean() for each in mixed]))
    return best + 1, weights[best]


def _mixed(counted: Array, weight: float, copied: Array | None) -> Array:
    if copied is None:
        return counted
    return (1 - weight) * counted + weight * copied


def _weight(counted: Array, copied: Array | None) -> float:
    if copied is None:
        return 0.0
    weight = 0.5
    for _ in range(EM_STEPS):
        weight = float(np.mean(weight * copied / _mixed(counted, weight, copied)))
    return weight
