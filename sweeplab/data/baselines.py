"""The n-gram baseline of next tokens: a trained model should have a lower loss.

A baseline has the same information as a model. It counts n-grams in as many tokens of the training split as a study's
longest run reads, and is evaluated on the same batches as the study's runs, with the same visible tokens. Its order is
the one with the lowest loss on the last tenth of what it counts.

The n-grams are interpolated Kneser-Ney's, with three discounts per level: Kneser and Ney, "Improved backing-off for
m-gram language modeling", 1995; the discounts are Chen and Goodman's ("An empirical study of smoothing techniques for
language modeling", 1999, equation 26). A context is a list of columns, the most important one first. The model of order
n uses the first n - 1 columns.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sweeplab.data.batches import NO_TARGET, Ids
from sweeplab.data.dataset import Dataset
from sweeplab.data.objectives import evaluated_on, make_objective
from sweeplab.data.objectives.tokens import NextToken
from sweeplab.files import cache_folder, make_folder, read_bytes, write_whole
from sweeplab.hyperparameters import Hyperparameters

Array = NDArray[np.float64]
NONE = -1  # in a column: the context is shorter
N_DISCOUNTS = 3
MIN_DISCOUNT = 0.1  # positive, so that every token has a positive probability


class _Counts:
    """Discounted counts of one order, by n-gram and by context; of occurrences, or of distinct continuations."""

    def __init__(self, counts: Ids, contexts: Ids, n_contexts: int) -> None:
        seen = np.bincount(
            np.minimum(counts, N_DISCOUNTS + 2), minlength=N_DISCOUNTS + 2
        ).astype(float)
        share = seen[1] / max(seen[1] + 2 * seen[2], 1)
        discounts = np.zeros(N_DISCOUNTS + 1)
        for n in range(1, N_DISCOUNTS + 1):
            discount = n - (n + 1) * share * seen[n + 1] / max(seen[n], 1)
            discounts[n] = np.clip(discount, MIN_DISCOUNT, n)
        discounted = counts - discounts[np.minimum(counts, N_DISCOUNTS)]
        totals = np.maximum(np.bincount(contexts, counts, n_contexts), 1)
        self.shares = discounted / totals[contexts]
        self.backoff = np.bincount(contexts, counts - discounted, n_contexts) / totals

    def interpolate(self, contexts: Ids, grams: Ids, lower: Array) -> Array:
        """Return this order's probabilities, given those of the lower order, which hold for unknown contexts."""
        shares = np.where(grams == NONE, 0.0, self.shares[grams])
        return np.where(contexts == NONE, lower, shares + self.backoff[contexts] * lower)


class _Order(NamedTuple):
    """Sorted keys of one order: contexts as (shorter context, column), n-grams as (context, token)."""

    contexts: Ids
    grams: Ids
    raw: _Counts
    continuations: _Counts


class NGrams:
    """A Kneser-Ney model of tokens [N] after columns [N], for every order from 1 to one more than there are columns."""

    def __init__(self, columns: Sequence[Ids], tokens: Ids, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._n_symbols = max(
            [vocab_size, *(1 + column.max(initial=NONE) for column in columns)]
        )
        numbers = np.zeros_like(tokens)  # of the contexts
        contexts, orders = np.zeros(1, np.int64), []
        for column in [None, *columns]:
            if column is not None:
                keys = self._keys(numbers, column)
                is_known = keys != NONE
                if not is_known.any():  # no context is that long
                    break
                contexts, inverse = np.unique(keys[is_known], return_inverse=True)
                numbers = np.full_like(numbers, NONE)
                numbers[is_known] = inverse
            keys = self._keys(numbers, tokens)
            grams, counts = np.unique(keys[keys != NONE], return_counts=True)
            orders.append((contexts, grams, counts))
        self._orders: list[_Order] = []
        for order, (contexts, grams, counts) in enumerate(orders, start=1):
            distinct = counts
            if order < len(orders):
                distinct = self._continuations(grams, *orders[order][:2])
            of_gram = grams // self._n_symbols
            raw, continuations = (
                _Counts(each, of_gram, len(contexts)) for each in (counts, distinct)
            )
            self._orders.append(_Order(contexts, grams, raw, continuations))

    def _keys(self, contexts: Ids, tokens: Ids) -> Ids:
        is_known = (contexts != NONE) & (tokens != NONE) & (tokens < self._n_symbols)
        return np.where(is_known, contexts * self._n_symbols + tokens, NONE)

    def _continuations(self, grams: Ids, contexts: Ids, longer: Ids) -> Ids:
        """Count the distinct longer n-grams that contain each n-gram; at the start of a row there is one."""
        numbers, tokens = np.divmod(longer, self._n_symbols)
        shorter = contexts[numbers] // self._n_symbols * self._n_symbols + tokens
        return np.maximum(np.bincount(np.searchsorted(grams, shorter), minlength=len(grams)), 1)

    def probabilities(self, columns: Sequence[Ids], tokens: Ids) -> Iterator[Array]:
        """Yield the probability [N] of each token after its columns by every order, from 1 on."""
        contexts = np.zeros_like(tokens)
        lower = np.full(len(tokens), 1 / self._vocab_size)
        for order, column in zip(self._orders, [None, *columns], strict=False):
            if column is not None:
                contexts = _indices(order.contexts, self._keys(contexts, column))
            grams = _indices(order.grams, self._keys(contexts, tokens))
            yield order.raw.interpolate(contexts, grams, lower)
            lower = order.continuations.interpolate(contexts, grams, lower)


def _indices(known: Ids, keys: Ids) -> Ids:
    indices = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.where(known[indices] == keys, indices, NONE)


# ------------------------------------------------------------------ the baseline of a run


FORMAT = 11  # part of every digest: raise it when the same data would give another loss
MAX_ORDER = 10
# At least and at most so many tokens of a text are counted, its last ones.
MIN_TOKENS, MAX_TOKENS = 1_000, 2**22
N_PARTS = 10  # the last of so many parts of what is counted is held out, to choose the order


@dataclass(frozen=True)
class Baseline:
    """The loss of an n-gram model, its order, and the number of counted tokens."""

    loss: float
    order: int
    n_counted: int


def find_baseline(
    dataset: Dataset,
    values: Hyperparameters,
    cache: Path | None = None,
    n_read: int = MAX_TOKENS,
) -> Baseline | None:
    """Return the baseline of a run that predicts the next token; None for another objective.

    `n_read` are the tokens that runs read. It is read from the cache if it is there.
    """
    if values.objective != NextToken.name:
        return None
    n_tokens = min(max(n_read, MIN_TOKENS), MAX_TOKENS)
    inputs = [FORMAT, dataset.token_digest, *evaluated_on(values), n_tokens, values.data_limit]
    digest = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:32]
    file = (cache or cache_folder()) / f"{digest}.baseline"
    try:
        return Baseline(**json.loads(read_bytes(file)))
    except (OSError, ValueError, TypeError):  # missing or incomplete
        computed = _computed(dataset, values, n_tokens)
        make_folder(file.parent)
        write_whole(file, json.dumps(asdict(computed)).encode())
        return computed


def _computed(dataset: Dataset, values: Hyperparameters, n_tokens: int) -> Baseline:
    train: Any = dataset.training(values)  # a text, as the objective needs
    tokens = np.asarray(train[-n_tokens:]).astype(np.int64)
    columns = [column[0] for column in _preceding(tokens[None])]
    held_out = len(tokens) - max(1, len(tokens) // N_PARTS)
    fitted = NGrams(
        [column[:held_out] for column in columns], tokens[:held_out], values.vocab_size
    )
    by_order = fitted.probabilities(
        [column[held_out:] for column in columns], tokens[held_out:]
    )
    order = int(np.argmax([np.log(probabilities).mean() for probabilities in by_order])) + 1
    ngrams = NGrams(columns[: order - 1], tokens, values.vocab_size)

    total, n_targets = 0.0, 0
    for batch in make_objective(dataset.val, values).evaluation(values.evaluated_tokens):
        # The last window of a stretch repeats some of the one before.
        is_target = batch.targets != NO_TARGET
        rows = np.concatenate([batch.inputs, batch.targets[:, -1:]], axis=1)
        asked = [column[:, 1:][is_target] for column in _preceding(rows)]
        *_, probabilities = ngrams.probabilities(asked, batch.targets[is_target])
        total -= float(np.log(probabilities).sum())
        n_targets += len(probabilities)
    return Baseline(total / n_targets, order, len(tokens))


def _preceding(rows: Ids) -> list[Ids]:
    """Return the tokens that come 1, 2, … before each one of its row, NONE before its start."""
    columns = []
    for by in range(1, MAX_ORDER):
        column = np.full_like(rows, NONE)
        column[:, by:] = rows[:, :-by]
        columns.append(column)
    return columns
