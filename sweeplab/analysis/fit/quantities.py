"""What people want of a law: its parameters, and what follows from them for a budget.

Legend: S parameter vectors at once, p parameters. N_opt and D_opt are the parameters and tokens of lowest loss
for a budget C = k N D, with k = 6 unless FLOPs were counted.

At the optimum both terms fall alike, alpha (A/N^alpha)^(1/g) = beta (B/D^beta)^(1/g), so that for every form here
log N_opt = (log A - log B + beta log(C/k) + g log(alpha/beta)) / (alpha + beta): N_opt goes as
C^(beta/(alpha+beta)) (Hoffmann et al. 2022, equation 4, where g is 1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sweeplab.analysis.fit.forms import Array, Law
from sweeplab.analysis.fit.solver import Measure


@dataclass(frozen=True)
class Quantity:
    """A number of the law; `measure` gives its value, or its log where `is_log`, and the gradient.

    `kind` names its tolerances. `needs` are the columns whose spread it stands on.
    """

    name: str
    kind: str
    meaning: str
    measure: Measure
    needs: tuple[str, ...]
    is_log: bool = False
    derived: bool = True

    def shown(self, measured: float) -> float:
        """Return the number itself of what `measure` gives."""
        return math.exp(min(measured, 700.0)) if self.is_log else measured


def parameters_of(law: Law, center: Mapping[str, float]) -> list[Quantity]:
    """Return the law's own parameters, as its formula has them."""
    own = {term.scale: term for term in law.terms} | {
        term.exponent: term for term in law.terms if term.exponent
    }
    found = []
    for name in law.parameters:
        term = own.get(name)
        slope = np.zeros(len(law.parameters))
        slope[law.index(name)] = 1.0
        if term and name == term.scale and term.exponent:
            slope[law.index(term.exponent)] += center[term.column]
        needs = tuple(
            each.column for each in law.terms if each.column and name in (each.scale, each.exponent)
        )
        kind, meaning = _WORDS_OF.get(name, ("exponent", "the exponent of {columns}"))
        if name == law.power and not term:
            kind, meaning, needs = "power", "how the terms are joined; 1 is a plain sum", law.columns
        found.append(
            Quantity(
                name=name,
                kind=kind,
                meaning=meaning.format(columns=" and ".join(needs)),
                measure=_linear(slope),
                needs=needs or law.columns,
                is_log=name in law.scales,
                derived=False,
            )
        )
    return found


_WORDS_OF = {
    "E": ("irreducible", "the loss that no size and no data take away"),
    "A": ("scale", "the scale of the term of {columns}"),
    "B": ("scale", "the scale of the term of {columns}"),
}


def optimum_of(
    law: Law, center: Mapping[str, float], budget: float, per_param_token: float
) -> list[Quantity]:
    """Return what follows for the best use of compute; nothing for a law without both N and D."""
    if not {"params", "tokens"} <= set(law.columns):
        return []
    both = ("params", "tokens")
    total = math.log(budget / per_param_token) - center["params"] - center["tokens"]
    shift = center["tokens"] - center["params"]
    n_at, d_at = _exponents(law)

    def sizes(theta: Array) -> tuple[Array, Array]:
        return _log_n_opt(law, theta, total)

    def ratio(theta: Array) -> tuple[Array, Array]:
        n, slope = sizes(theta)
        return total - 2 * n + shift, -2 * slope

    def share(theta: Array) -> tuple[Array, Array]:
        alpha, beta = theta[:, n_at], theta[:, d_at]
        slope = np.zeros_like(theta)
        slope[:, n_at] -= beta / (alpha + beta) ** 2
        slope[:, d_at] += alpha / (alpha + beta) ** 2
        return beta / (alpha + beta), slope

    def other_share(theta: Array) -> tuple[Array, Array]:
        value, slope = share(theta)
        return 1 - value, -slope

    def loss(theta: Array) -> tuple[Array, Array]:
        n = sizes(theta)[0][:, None]
        value, jacobian = law.derivatives(theta, {"params": n, "tokens": total - n})
        return value[:, 0], jacobian[:, :, 0]  # at the optimum it does not depend on where that is

    exponents = [
        Quantity("N_opt exponent", "exponent", "N_opt goes as C to this", share, both),
        Quantity("D_opt exponent", "exponent", "D_opt goes as C to this", other_share, both),
    ]
    at = f"{budget:.3g} FLOPs"
    return [
        *(exponents if n_at != d_at else []),  # tied: one half, whatever the data say
        Quantity("tokens per parameter", "ratio", f"D_opt / N_opt at {at}", ratio, both, is_log=True),
        Quantity("loss at budget", "loss", f"the lowest loss for {at}", loss, both, is_log=True),
    ]


def loss_at(law: Law, center: Mapping[str, float], target: Mapping[str, float]) -> Quantity:
    """Return the loss at one point of the columns that the law reads."""
    logs = {name: np.array([math.log(target[name]) - center[name]]) for name in law.columns}

    def measure(theta: Array) -> tuple[Array, Array]:
        value, jacobian = law.derivatives(theta, logs)
        return value[:, 0], jacobian[:, :, 0]

    where = ", ".join(f"{name} {target[name]:.3g}" for name in law.columns)
    return Quantity("loss at target", "loss", f"the loss at {where}", measure, law.columns, is_log=True)


def log_optimum(law: Law, theta: Array, center: Mapping[str, float], budget: float, k: float) -> float:
    """Return the log of N_opt at a budget for one vector, [p]."""
    total = math.log(budget / k) - center["params"] - center["tokens"]
    return float(_log_n_opt(law, theta[None], total)[0][0] + center["params"])


def _log_n_opt(law: Law, theta: Array, total: float) -> tuple[Array, Array]:
    """Return the centered log of N_opt for centered log N + log D = `total`, [S], and its gradient, [S, p]."""
    n_at, d_at = _exponents(law)
    alpha, beta, g = theta[:, n_at], theta[:, d_at], law.joined_by(theta)
    scale = {term.column: law.index(term.scale) for term in law.terms}
    both = alpha + beta
    value = theta[:, scale["params"]] - theta[:, scale["tokens"]] + beta * total + g * np.log(alpha / beta)
    value = value / both
    slope = np.zeros_like(theta)
    slope[:, scale["params"]] += 1 / both
    slope[:, scale["tokens"]] -= 1 / both
    slope[:, n_at] += (g / alpha - value) / both
    slope[:, d_at] += (total - g / beta - value) / both
    if law.power:
        slope[:, law.index(law.power)] += np.log(alpha / beta) / both
    return value, slope


def _exponents(law: Law) -> tuple[int, int]:
    where = {term.column: law.index(term.exponent) for term in law.terms if term.column}
    return where["params"], where["tokens"]


def _linear(slope: Sequence[float] | Array) -> Measure:
    vector = np.asarray(slope, float)
    return lambda theta: (theta @ vector, np.broadcast_to(vector, theta.shape))
