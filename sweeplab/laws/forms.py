"""The published forms of a scaling law, as one table, and the quantities derived from them.

Legend: N parameters, D tokens, C FLOPs, L loss; S parameter vectors at once, p parameters, n rows. N_opt and D_opt
are the parameters and tokens of lowest loss for a budget C = k N D, with k = 6 unless FLOPs were counted.

Every form here is a sum of powers, joined with a power of its own:

    L^(1/g) = sum over k of t_k^(1/g),   t_k = scale_k / X_k^exponent_k,   X one of N, D, C (E has no X)

Here g = 1 in most. In logs this is g * logsumexp(log t_k / g), and log t_k is linear in the log of the scale and
in the exponents: so one formula gives the values, one the derivatives and one the starts of all forms.
A vector holds the logs of the scales at the center of the table, where they do not depend on the exponents,
and the exponents and g as they are.

At the optimum both terms fall alike, alpha (A/N^alpha)^(1/g) = beta (B/D^beta)^(1/g), so that for every form here
log N_opt = (log A - log B + beta log(C/k) + g log(alpha/beta)) / (alpha + beta): N_opt goes as
C^(beta/(alpha+beta)) (Hoffmann et al. 2022, equation 4, where g is 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Measure = Callable[[Array], tuple[Array, Array]]  # vectors [S, p] to values [S] and gradients [S, p]

EXPONENT_BOUNDS = (0.005, 3.0)
POWER_BOUNDS = (0.2, 5.0)
SCALE_REACH = 25.0  # a term of exp(-25) of the loss is negligible
N_OPT, D_OPT, RATIO = "N_opt exponent", "D_opt exponent", "tokens per parameter"
MEANINGS = {N_OPT: "N_opt grows as C to this power", D_OPT: "D_opt grows as C to this power"}


@dataclass(frozen=True)
class PowerTerm:
    """One term: the scale over the product of powers of columns; `powers` pairs each exponent with its column."""

    scale: str
    powers: tuple[tuple[str, str], ...] = ()


def _power(scale: str, exponent: str, column: str) -> PowerTerm:
    return PowerTerm(scale, ((exponent, column),))


E, N = PowerTerm("E"), _power("A", "alpha", "params")
D, C = _power("B", "beta", "tokens"), _power("A", "alpha", "flops")


@dataclass(frozen=True)
class Law:
    """A form: its formula, source and terms; `power` names the parameter g, if it is not 1."""

    name: str
    formula: str
    source: str
    departures: str
    terms: tuple[PowerTerm, ...]
    power: str = ""

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Return the names of the parameters, in the order of a vector."""
        names = [name for term in self.terms for name in (term.scale, *dict(term.powers))]
        return tuple(dict.fromkeys(name for name in (*names, self.power) if name))

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Return the columns of a table that the form uses, besides the loss."""
        return tuple(dict.fromkeys(column for _, column in self.powers))

    @cached_property
    def powers(self) -> tuple[tuple[str, str], ...]:
        """Return each exponent with its column, over all terms."""
        return tuple(power for term in self.terms for power in term.powers)

    @cached_property
    def scale_of(self) -> dict[str, str]:
        """Return the scale of the term with each column; that of E has none, and the name ''."""
        return {column: term.scale for term in self.terms for _, column in term.powers or (("", ""),)}

    @cached_property
    def scales(self) -> tuple[str, ...]:
        """Return the parameters that a vector holds as logs."""
        return tuple(term.scale for term in self.terms)

    def fewest_values(self, column: str) -> int:
        """Return how many distinct values of a column the form needs: three for a scale, an exponent and E."""
        if any([name for _, name in term.powers] == [column] for term in self.terms):
            return 3
        return 2

    def index(self, name: str) -> int:
        """Return where a parameter stands in a vector."""
        return self.parameters.index(name)

    def bounds(self, log_loss: Array) -> tuple[Array, Array]:
        """Return the lowest and the highest vector that a fit may reach."""
        reach = (float(log_loss.mean()) - SCALE_REACH, float(log_loss.max()) + SCALE_REACH)
        reaches = dict.fromkeys(self.scales, reach)
        if self.power and self.power not in dict(self.powers):
            reaches[self.power] = POWER_BOUNDS
        low, high = zip(*(reaches.get(name, EXPONENT_BOUNDS) for name in self.parameters), strict=True)
        return np.array(low), np.array(high)

    def joined_by(self, theta: Array) -> Array:
        """Return g of each vector: [S]."""
        if self.power:
            return theta[:, self.index(self.power)]
        return np.ones(len(theta))

    def log_loss(self, theta: Array, logs: Mapping[str, Array]) -> Array:
        """Return the log of the loss: [S, n]; `logs` are the centered logs of the columns: [n] or [S, n]."""
        return self._joined(theta, logs)[0]

    def derivatives(self, theta: Array, logs: Mapping[str, Array]) -> tuple[Array, Array]:
        """Return the log of the loss, [S, n], and its derivatives by the parameters, [S, p, n]."""
        value, shares = self._joined(theta, logs)
        jacobian = np.zeros((len(theta), len(self.parameters), value.shape[1]))
        for k, term in enumerate(self.terms):
            jacobian[:, self.index(term.scale)] += shares[:, k]
            for exponent, column in term.powers:
                jacobian[:, self.index(exponent)] -= shares[:, k] * logs[column]
        if self.power:  # the derivative by g is the entropy of the shares
            entropy = -(shares * np.log(np.maximum(shares, 1e-300))).sum(1)
            jacobian[:, self.index(self.power)] += entropy
        return value, jacobian

    def _joined(self, theta: Array, logs: Mapping[str, Array]) -> tuple[Array, Array]:
        g = self.joined_by(theta)[:, None, None]
        n = np.broadcast_shapes(*(logs[name].shape for name in self.columns))[-1]
        terms = np.empty((len(theta), len(self.terms), n))
        for k, term in enumerate(self.terms):
            terms[:, k] = theta[:, self.index(term.scale), None]
            for exponent, column in term.powers:
                terms[:, k] -= theta[:, self.index(exponent), None] * logs[column]
        terms /= g
        highest = terms.max(1, keepdims=True)
        np.exp(terms - highest, out=terms)
        total = terms.sum(1, keepdims=True)
        terms /= total
        return np.asarray((g * (highest + np.log(total)))[:, 0]), terms


_CHINCHILLA = "Hoffmann et al. 2022, Training compute-optimal large language models, equation 2"
_KAPLAN = "Kaplan et al. 2020, Scaling laws for neural language models"
LAWS: dict[str, Law] = {
    law.name: law
    for law in (
        Law("chinchilla", "L = E + A/N^alpha + B/D^beta", _CHINCHILLA, "none", (E, N, D)),
        Law(
            "tied",
            "L = E + A/N^alpha + B/D^alpha",
            "chinchilla with one exponent",
            "N_opt and D_opt then grow alike by assumption",
            (E, N, _power("B", "alpha", "tokens")),
        ),
        Law(
            "kaplan",
            "L = ((A/N^alpha)^(1/beta) + B^(1/beta)/D)^beta",
            f"{_KAPLAN}, equation 1.5",
            "written with A = N_c^alpha and B = D_c^beta; fitted to logs",
            (N, D),
            "beta",
        ),
        Law(
            "joint",
            "L = (E^(1/gamma) + (A/N^alpha)^(1/gamma) + (B/D^beta)^(1/gamma))^gamma",
            "Droppo and Elibol 2021, Scaling laws for acoustic models",
            "equals chinchilla at gamma 1; otherwise N and D interact",
            (E, N, D),
            "gamma",
        ),
        Law("power-n", "L = E + A/N^alpha", f"{_KAPLAN}, with E", "E is fitted, theirs is 0", (E, N)),
        Law("power-d", "L = E + B/D^beta", f"{_KAPLAN}, with E", "E is fitted, theirs is 0", (E, D)),
        Law("power-c", "L = E + A/C^alpha", f"{_KAPLAN}, with E", "E is fitted, theirs is 0", (E, C)),
    )
}


def log_compute(logs: Mapping[str, Array]) -> Array:
    """Return the log of compute, up to a constant, of the logs of the columns that a law uses."""
    return np.asarray(sum(logs.values()))


@dataclass(frozen=True)
class Quantity:
    """A number of the law; `measure` gives its value, or its log where `is_log`, and the gradient.

    `kind` names its tolerances. `needs` are the columns whose spread it depends on. For a loss, `size` is that of the
    run: the log of compute that the centered logs of the columns give. A value outside of `within`, in the units of
    `measure`, was not tried.
    """

    name: str
    kind: str
    meaning: str
    measure: Measure
    needs: tuple[str, ...]
    is_log: bool = False
    derived: bool = True
    size: float | None = None
    within: tuple[float, float] | None = None

    def at(self, theta: Array) -> float:
        """Return the value of one vector, [p], in the units of `measure`."""
        return float(self.measure(theta[None])[0][0])

    def shown(self, measured: float) -> float:
        """Return the number itself for a value of `measure`."""
        if self.is_log:
            return math.exp(min(measured, 700.0))
        return measured


def parameters_of(law: Law, center: Mapping[str, float]) -> list[Quantity]:
    """Return the law's own parameters, as in its formula."""
    quantities = []
    for name in law.parameters:
        terms = [term for term in law.terms if name in (term.scale, *dict(term.powers))]
        powers = [power for term in terms for power in term.powers if name in (term.scale, power[0])]
        needs = tuple(column for _, column in powers) or law.columns
        slope = np.zeros(len(law.parameters))
        slope[law.index(name)] = 1.0
        if name in law.scales:
            for exponent, column in powers:
                slope[law.index(exponent)] += center[column]
        is_log, columns = name in law.scales, " and ".join(needs)
        if name == "E":
            words = ("irreducible", "the irreducible loss, at infinite size and data")
        elif is_log:
            words = ("scale", f"the scale of the {columns} term")
        elif terms:
            words = ("exponent", f"the exponent of {columns}")
        else:
            words = ("power", "the power that joins the terms; 1 is a plain sum")
        quantities.append(Quantity(name, *words, _linear(slope), needs, is_log, derived=False))
    return quantities


def _linear(slope: Array) -> Measure:
    return lambda theta: (theta @ slope, np.broadcast_to(slope, theta.shape))


def optimum_of(
    law: Law, center: Mapping[str, float], budget: float, per_param_token: float
) -> list[Quantity]:
    """Return the quantities of the compute-optimal point; empty for a law without both N and D."""
    if not {"params", "tokens"} <= set(law.columns):
        return []
    both = ("params", "tokens")
    total = math.log(budget / per_param_token) - center["params"] - center["tokens"]
    shift = center["tokens"] - center["params"]
    n_at, d_at = _exponents(law)

    def ratio(theta: Array) -> tuple[Array, Array]:
        n, slope = _log_n_opt(law, theta, total)
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
        n = _log_n_opt(law, theta, total)[0][:, None]
        value, jacobian = law.derivatives(theta, {"params": n, "tokens": total - n})
        return value[:, 0], jacobian[:, :, 0]  # at the optimum its gradient does not depend on the location

    # In a tied law both are one half, whatever the data.
    shares = {N_OPT: share, D_OPT: other_share} if n_at != d_at else {}
    at = f"{budget:.3g} FLOPs"
    return [
        *(Quantity(name, "exponent", MEANINGS[name], measure, both) for name, measure in shares.items()),
        Quantity(RATIO, "ratio", f"D_opt / N_opt at {at}", ratio, both, is_log=True),
        Quantity("loss at budget", "loss", f"the lowest loss for {at}", loss, both, is_log=True, size=total),
    ]


def loss_at(law: Law, center: Mapping[str, float], target: Mapping[str, float]) -> Quantity:
    """Return the loss at one point of the columns that the law uses."""
    logs = {name: np.array([math.log(target[name]) - center[name]]) for name in law.columns}

    def measure(theta: Array) -> tuple[Array, Array]:
        value, jacobian = law.derivatives(theta, logs)
        return value[:, 0], jacobian[:, :, 0]

    where = ", ".join(f"{name} {target[name]:.3g}" for name in law.columns)
    size = float(log_compute(logs)[0])
    return Quantity(
        "loss at target", "loss", f"the loss at {where}", measure, law.columns, is_log=True, size=size
    )


def log_optimum(law: Law, theta: Array, center: Mapping[str, float], budget: float, k: float) -> float:
    """Return the log of N_opt at a budget for one vector, [p]."""
    total = math.log(budget / k) - center["params"] - center["tokens"]
    return float(_log_n_opt(law, theta[None], total)[0][0] + center["params"])


def _log_n_opt(law: Law, theta: Array, total: float) -> tuple[Array, Array]:
    """The centered log of N_opt for centered log N + log D = `total`, [S], and its gradient, [S, p]."""
    n_at, d_at = _exponents(law)
    alpha, beta, g = theta[:, n_at], theta[:, d_at], law.joined_by(theta)
    scale = {column: law.index(name) for column, name in law.scale_of.items()}
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
    where = {column: law.index(exponent) for exponent, column in law.powers}
    return where["params"], where["tokens"]
