"""The optimizers that torch lacks, or computes in half precision, as their papers write them: in float64, one weight
at a time, nothing stacked.

`step(weight, gradient, state, rates, name, decays)` returns the new weight; `state` is the weight's own, empty at
the start. Weights are [in, out], embeddings and the head [rows, width].
"""

import numpy as np


def adamw(weight, gradient, state, rates, name, decays):
    moved = _adam_direction(gradient, state, rates)
    decay = rates.weight_decay if decays else 0.0
    return weight - rates.learning_rate * (moved + decay * weight)


def _adam_direction(gradient, state, rates):
    m = state["m"] = rates.beta1 * state.get("m", 0.0) + (1 - rates.beta1) * gradient
    v = state["v"] = rates.beta2 * state.get("v", 0.0) + (1 - rates.beta2) * gradient**2
    m_hat, v_hat = m / (1 - rates.beta1**rates.step), v / (1 - rates.beta2**rates.step)
    return m_hat / (np.sqrt(v_hat) + rates.eps)


def lion(weight, gradient, state, rates, name, decays):
    m = state.get("m", np.zeros_like(weight))
    c = rates.beta1 * m + (1 - rates.beta1) * gradient
    state["m"] = rates.beta2 * m + (1 - rates.beta2) * gradient
    decay = rates.weight_decay if decays else 0.0
    return weight - rates.learning_rate * (np.sign(c) + decay * weight)


def muon(weight, gradient, state, rates, name, decays):
    if not (name.startswith("blocks") and weight.ndim == 2):
        return adamw(weight, gradient, state, rates, name, decays)
    state["b"] = rates.momentum * state.get("b", 0.0) + gradient
    direction = gradient + rates.momentum * state["b"]
    parts = np.split(direction, 3, axis=1) if "qkv" in name else [direction]
    moved = [newton_schulz(part) * 0.2 * np.sqrt(max(part.shape)) for part in parts]
    shrunk = weight * (1 - rates.learning_rate * rates.weight_decay)
    return shrunk - rates.learning_rate * np.concatenate(moved, axis=1)


def newton_schulz(matrix):
    """Push singular values through Jordan's quintic five times, by the singular value decomposition itself."""
    u, s, v = np.linalg.svd(matrix / np.linalg.norm(matrix), full_matrices=False)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u @ np.diag(s) @ v


STEPS = {"lion": lion, "muon": muon}
