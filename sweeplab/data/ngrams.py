"""Interpolated Kneser-Ney n-grams, with three discounts per level.

Kneser and Ney, "Improved backing-off for m-gram language modeling", 1995; the discounts are Chen and Goodman's ("An
empirical study of smoothing techniques for language modeling", 1999, equation 26). Contexts need not be the tokens
before: they are columns, the one that counts most first, and a level of the model has one column more than the last.
A column may hold positions as well as tokens."""

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
LEAST = 0.1  # is always taken off, so that no token is impossible


class Examples(NamedTuple):
    """Tokens [N] with what stands around each: columns [N] of tokens or places, NONE where there is nothing more.

    `copied` [N] is another guess at each token's probability, by where it might have been copied from.
    """

    contexts: list[Ids]
    tokens: Ids
    copied: Array | None = None

    def part(self, chosen: slice) -> Examples:
        """Return some of the examples."""
        copied = None if self.copied is None else self.copied[chosen]
        return Examples([each[chosen] for each in self.contexts], self.tokens[chosen], copied)


class _Counts:
    """Counts of one level, raw or of continuations: by gram and by the context that it begins with."""

    def __init__(self, counts: Ids, nodes: Ids, n_nodes: int) -> None:
        self.discounts = _discounts(counts)
        self.reduced = counts - self.discounts[np.minimum(counts, N_DISCOUNTS)]
        self.totals = np.bincount(nodes, counts, n_nodes)
        freed = np.bincount(nodes, counts - self.reduced, n_nodes)
        self.lower = freed / np.maximum(self.totals, 1)

    def interpolated(self, nodes: Ids, grams: Ids, below: Array) -> Array:
        """Return the level's probabilities, given those of the level below; where it has no context, these."""
        has_context = nodes != NONE
        at = np.where(has_context, nodes, 0)
        own = np.where(grams == NONE, 0.0, self.reduced[grams] / np.maximum(self.totals[at], 1))
        return np.where(has_context, own + self.lower[at] * below, below)


class _Level(NamedTuple):
    """What was seen with so many columns: contexts as (the one below, column), grams as (context, token)."""

    contexts: Ids
    grams: Ids
    raw: _Counts
    continued: _Counts


class NGrams:
    """What follows which context in some examples, for every order up to the number of their columns and one."""

    def __init__(self, examples: Examples, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._n_symbols = max([vocab_size, *(1 + each.max(initial=NONE) for each in examples.contexts)])
        nodes = np.zeros_like(examples.tokens)
        contexts, found = np.zeros(1, np.int64), []
        for column in [None, *examples.contexts]:
            if column is not None:
                keys = self._keys(nodes, column)
                if not (keys != NONE).any():  # no row is that long
                    break
                contexts, inverse = np.unique(keys[keys != NONE], return_inverse=True)
                nodes = np.full_like(nodes, NONE)
                nodes[keys != NONE] = inverse
            keys = self._keys(nodes, examples.tokens)
            grams, counts = np.unique(keys[keys != NONE], return_counts=True)
            found.append((contexts, grams, counts))
        self._levels: list[_Level] = []
        for (contexts, grams, counts), longer in zip_longest(found, found[1:]):
            continued = counts if longer is None else self._continued(grams, *longer[:2])
            both = (_Counts(each, grams // self._n_symbols, len(contexts)) for each in (counts, continued))
            self._levels.append(_Level(contexts, grams, *both))

    def _keys(self, nodes: Ids, tokens: Ids) -> Ids:
        is_known = (nodes != NONE) & (tokens != NONE) & (tokens < self._n_symbols)
        return np.where(is_known, nodes * self._n_symbols + tokens, NONE)

    def _continued(self, grams: Ids, contexts: Ids, longer: Ids) -> Ids:
        """Return of each gram in how many different longer ones it stands; what begins a row stands in one."""
        nodes, tokens = np.divmod(longer, self._n_symbols)
        shorter = contexts[nodes] // self._n_symbols * self._n_symbols + tokens
        return np.maximum(np.bincount(np.searchsorted(grams, shorter), minlength=len(grams)), 1)

    def probabilities(self, examples: Examples) -> Iterator[Array]:
        """Yield the probability [N] of each example's token by every order, from 1 on."""
        nodes = np.zeros_like(examples.tokens)
        below = np.full(len(nodes), 1 / self._vocab_size)
        for level, column in zip(self._levels, [None, *examples.contexts], strict=False):
            if column is not None:
                nodes = _places(level.contexts, self._keys(nodes, column))
            grams = _places(level.grams, self._keys(nodes, examples.tokens))
            yield level.raw.interpolated(nodes, grams, below)
            below = level.continued.interpolated(nodes, grams, below)


def _places(known: Ids, keys: Ids) -> Ids:
    """Return where each key stands among sorted ones, NONE where it does not."""
    if not len(known):
        return np.full_like(keys, NONE)
    found = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.where(known[found] == keys, found, NONE)


def _discounts(counts: Ids) -> Array:
    """Return what is taken off counts of 0, 1, 2, and 3 or more."""
    seen = np.bincount(np.minimum(counts, N_DISCOUNTS + 2), minlength=N_DISCOUNTS + 2).astype(float)
    share = seen[1] / max(seen[1] + 2 * seen[2], 1)
    discounts = [n - (n + 1) * share * seen[n + 1] / max(seen[n], 1) for n in range(1, N_DISCOUNTS + 1)]
    return np.array([0.0, *(np.clip(each, LEAST, n + 1) for n, each in enumerate(discounts))])
