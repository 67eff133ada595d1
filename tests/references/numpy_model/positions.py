"""How a model is told where a token stands: added to the embedding, turned into q and k, or added to the scores."""

from __future__ import annotations

import math

import numpy as np
from references.numpy_model.functions import Array, Indices, Step


def sinusoids(n_positions: int, width: int) -> Array:
    """Return Vaswani et al.'s table [n_positions, width]: sines in even columns, cosines in odd ones."""
    column = np.arange(width)
    angle = np.arange(n_positions)[:, None] / 10000.0 ** ((column - column % 2) / width)
    return np.where(column % 2 == 0, np.sin(angle), np.cos(angle))


def rotate(x: Array, base: float, share: float) -> Step:
    """Turn each pair (column i, column i + R/2) of x [..., T, D] by position * base^(-2i/R) (Su et al., as Llama).

    R is this share of D; the columns after R stay as they are.

    A turned q times a turned k depends on the difference of their positions only. The derivative of a turn is the
    turn back.
    """
    half = int(x.shape[-1] * share) // 2
    angle = np.arange(x.shape[-2])[:, None] * base ** (-np.arange(half) / half)
    cos, sin = np.cos(angle), np.sin(angle)

    def turn(x: Array, sin: Array) -> Array:
        first, second, rest = np.split(x, [half, 2 * half], axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)

    return turn(x, sin), lambda dy: turn(dy, -sin)


def alibi_slopes(n_head: int) -> Array:
    """Return a slope a head (Press et al.): 2^(-8/n), its square, its cube …, n being a power of two.

    Otherwise those of the next lower power of two, then every second one of the next higher.
    """
    lower = 2 ** int(math.log2(n_head))
    slopes = 2.0 ** (-8.0 / lower * np.arange(1, lower + 1))
    between = 2.0 ** (-4.0 / lower * np.arange(1, 2 * lower + 1, 2))
    return np.concatenate([slopes, between])[:n_head]


def relative_buckets(distance: Indices, causal: bool, n_buckets: int, max_distance: int) -> Indices:
    """Return the bucket of each key's distance behind its query (Raffel et al., T5).

    Half of the buckets hold one distance each, the others ranges that grow logarithmically up to max_distance.
    Where a query sees what follows it, the keys after it have the upper half of all buckets to themselves.
    """
    after = np.zeros_like(distance)
    if causal:
        distance = np.maximum(distance, 0)
    else:
        n_buckets //= 2
        after, distance = n_buckets * (distance < 0), np.abs(distance)
    exact = n_buckets // 2
    share = np.log(np.maximum(distance, exact) / exact) / math.log(max_distance / exact)
    far = exact + (share * (n_buckets - exact)).astype(np.int64)
    return np.asarray(after + np.where(distance < exact, distance, np.minimum(far, n_buckets - 1)))
