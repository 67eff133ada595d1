"""The functions a transformer is made of, each beside its derivative.

A function returns its value and `back`: what turns the gradient of the loss by the value into the gradient of the
loss by the argument. The derivations are one line each; y stands for the value, dy for the gradient by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]
Back = Callable[[Array], Array]
Step = tuple[Array, Back]
Function = Callable[[Array], Step]

NORM_EPS = 1e-5


def same(x: Array) -> Step:
    """Return x itself."""
    return x, lambda dy: dy


def scaled(x: Array, factor: float) -> Step:
    """Return x times a constant."""
    return x * factor, lambda dy: dy * factor


def chain(x: Array, *functions: Function) -> Step:
    """Apply functions one after the other; the chain rule goes through them the other way round."""
    backs = []
    for function in functions:
        x, back_one = function(x)
        backs.append(back_one)

    def back(dy: Array) -> Array:
        for back_one in reversed(backs):
            dy = back_one(dy)
        return dy

    return x, back


def add(x: Array, *functions: Function) -> Step:
    """Return the sum of functions of one argument; what reaches x is the sum of their gradients."""
    values, backs = zip(*(function(x) for function in functions), strict=True)
    return np.sum(values, axis=0), lambda dy: np.sum([back(dy) for back in backs], axis=0)


def rmsnorm(x: Array, eps: float = NORM_EPS) -> Step:
    """Divide by the root of the mean square: y = s x with s = (mean x² + eps)^-½, so ds = -s³ mean(x dx)."""
    scale = 1.0 / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    y = x * scale
    return y, lambda dy: scale * (dy - y * (dy * y).mean(-1, keepdims=True))


def layernorm(x: Array, eps: float = NORM_EPS) -> Step:
    """Subtract the mean, then divide as rmsnorm does; subtracting a mean is its own derivative, transposed."""
    y, back_scale = rmsnorm(x - x.mean(-1, keepdims=True), eps)

    def back(dy: Array) -> Array:
        dx = back_scale(dy)
        return np.asarray(dx - dx.mean(-1, keepdims=True))

    return y, back


NORMS: dict[str, Callable[..., Step]] = {"layernorm": layernorm, "rmsnorm": rmsnorm}


def relu(x: Array) -> Step:
    """Keep what is positive."""
    return np.maximum(x, 0.0), lambda dy: dy * (x > 0)


def relu2(x: Array) -> Step:
    """Square what is positive."""
    positive = np.maximum(x, 0.0)
    return positive**2, lambda dy: dy * 2.0 * positive


_erf = np.vectorize(math.erf, otypes=[np.float64])


def gelu(x: Array) -> Step:
    """Return x P(x), P the normal distribution; its derivative is P(x) + x p(x), p the density."""
    below = 0.5 * (1.0 + _erf(x / math.sqrt(2.0)))
    density = np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
    return x * below, lambda dy: dy * (below + x * density)


def gelu_tanh(x: Array) -> Step:
    """Return x (1 + tanh u) / 2 with u = (2/pi)^½ (x + 0.044715 x³); tanh's derivative is 1 - tanh²."""
    slope = math.sqrt(2.0 / math.pi)
    t = np.tanh(slope * (x + 0.044715 * x**3))
    du = slope * (1.0 + 3.0 * 0.044715 * x * x)
    return 0.5 * x * (1.0 + t), lambda dy: dy * 0.5 * (1.0 + t + x * (1.0 - t * t) * du)


def silu(x: Array) -> Step:
    """Return x s(x), s the logistic function, whose own derivative is s (1 - s)."""
    s = 0.5 * (1.0 + np.tanh(0.5 * x))
    return x * s, lambda dy: dy * (s + x * s * (1.0 - s))


ACTIVATIONS: dict[str, Function] = {"relu": relu, "gelu": gelu, "relu2": relu2, "gelu_tanh": gelu_tanh}
GATES: dict[str, Function] = {"swiglu": silu, "geglu": gelu, "geglu_tanh": gelu_tanh}


def normalize(x: Array) -> Step:
    """Divide by the sum over the last axis, none where the sum is nothing: dx = (dy - sum(dy y)) / sum x."""
    total = x.sum(-1, keepdims=True)
    share = np.divide(1.0, total, out=np.zeros_like(total), where=total > 0)
    y = x * share
    return y, lambda dy: share * (dy - (dy * y).sum(-1, keepdims=True))


def softmax(x: Array) -> Step:
    """Normalize exp x, whose derivative is itself; -inf has no share, and a row of nothing else gives zeros."""
    highest = x.max(-1, keepdims=True)
    exponential = np.exp(x - np.where(np.isfinite(highest), highest, 0.0))
    y, back_share = normalize(exponential)
    return y, lambda dy: exponential * back_share(dy)


def log_sum_exp(x: Array) -> Step:
    """Return log sum exp x over the last axis, [..., 1]; its derivative is the softmax."""
    highest = x.max(-1, keepdims=True)
    y = highest + np.log(np.exp(x - highest).sum(-1, keepdims=True))
    return y, lambda dy: dy * np.exp(x - y)


def cross_entropy(logits: Array, targets: Indices, smoothing: float = 0.0) -> tuple[float, Array]:
    """Return the mean cross-entropy in nats over the counted targets (not -1), and its gradient by the logits.

    `smoothing` moves that share of what is wanted from the target to all symbols evenly. By the logits, the
    gradient is what the model gives each symbol less what is wanted of it.
    """
    n_symbols, counted = logits.shape[-1], (targets >= 0)[..., None]
    right = np.arange(n_symbols) == targets[..., None]
    wanted = counted * ((1.0 - smoothing) * right + smoothing / n_symbols)
    log_given = logits - log_sum_exp(logits)[0]
    n = max(int(counted.sum()), 1)
    return float(-(wanted * log_given).sum() / n), (counted * np.exp(log_given) - wanted) / n
