"""Interpolated Kneser-Ney n-grams, with three discounts per level.

Kneser and Ney, "Improved backing-off for m-gram language modeling", 1995; the discounts are Chen and Goodman's ("An
empirical study of smoothing techniques for language modeling", 1999, equation 26).

A context is a list of columns, the most important one first. The model of order n uses the first n - 1 columns. They
need not be the preceding tokens: a column may have other tokens, or positions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
