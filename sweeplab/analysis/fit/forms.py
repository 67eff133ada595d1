"""The published forms of a scaling law, as one table: a form that is added is a row of it.

Legend: N parameters, D tokens, C FLOPs, L loss; S parameter vectors at once, p parameters, n rows.

Every form here is a sum of powers, joined with a power of its own:

    L^(1/g) = sum over k of t_k^(1/g),   t_k = scale_k / X_k^exponent_k,   X one of N, D, C (E has no X)

with g = 1 in most. In logs this is g * logsumexp(log t_k / g), and log t_k is linear in the log of the scale and
in the exponent: so one formula gives the values, one the derivatives and one the starts of all forms.
A vector holds the logs of the scales at the center of the table, where they do not depend on the exponents,
and the exponents and g as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

EXPONENT_BOUNDS = (0.005, 3.0)
POWER_BOUNDS = (0.2, 5.0)
SCALE_REACH = 25.0  # a term that is exp(-25) of the loss is no term


@dataclass(frozen=True)
class Term:
    """One term scale / column^exponent; without a column it is the scale alone."""

    scale: str
    exponent: str = ""
    column: str = ""


E, N, D, C = (
    Term("E"),
    Term("A", "alpha", "params"),
    Term("B", "beta", "tokens"),
    Term("A", "alpha", "flops"),
)


@dataclass(frozen=True)
class Law:
    """A form: what it says, where it comes from, and its terms; `power` names the parameter g, if it is not 1."""

    name: str
    formula: str
    source: str
    departures: str
    terms: tuple[Term, ...]
    power: str = ""

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Return the names of the parameters, in the order of a vector."""
        names = [name for term in self.terms for name in (term.scale, term.exponent)]
        return tuple(dict.fromkeys(name for name in (*names, self.power) if name))

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Return the columns of a table that the form reads, besides the loss."""
        return tuple(dict.fromkeys(term.column for term in self.terms if term.column))

    @cached_property
    def scales(self) -> tuple[str, ...]:
        """Return the parameters that a vector holds as logs."""
        return tuple(term.scale for term in self.terms)

    def index(self, name: str) -> int:
        """Return where a parameter stands in a vector."""
        return self.parameters.index(name)

    def bounds(self, log_loss: Array) -> tuple[Array, Array]:
        """Return the lowest and the highest vector that a fit may reach."""
        reach = (float(log_loss.mean()) - SCALE_REACH, float(log_loss.max()) + SCALE_REACH)
        own = dict.fromkeys(self.scales, reach)
        if self.power and self.power not in {term.exponent for term in self.terms}:
            own[self.power] = POWER_BOUNDS
        low, high = zip(*(own.get(name, EXPONENT_BOUNDS) for name in self.parameters), strict=True)
        return np.array(low), np.array(high)

    def joined_by(self, theta: Array) -> Array:
        """Return g of each vector: [S]."""
        return theta[:, self.index(self.power)] if self.power else np.ones(len(theta))

    def log_loss(self, theta: Array, logs: Mapping[str, Array]) -> Array:
        """Return the log of the loss: [S, n]; `logs` are the centered logs of the columns: [n] or [S, n]."""
        return self._joined(theta, logs)[0]

    def derivatives(self, theta: Array, logs: Mapping[str, Array]) -> tuple[Array, Array]:
        """Return the log of the loss, [S, n], and its derivatives by the parameters, [S, p, n]."""
        value, shares = self._joined(theta, logs)
        jacobian = np.zeros((len(theta), len(self.parameters), value.shape[1]))
        for k, term in enumerate(self.terms):
            jacobian[:, self.index(term.scale)] += shares[:, k]
            if term.exponent:
                jacobian[:, self.index(term.exponent)] -= shares[:, k] * logs[term.column]
        if self.power:  # the derivative by g is the entropy of the shares
            entropy = -(shares * np.log(np.maximum(shares, 1e-300))).sum(1)
            jacobian[:, self.index(self.power)] += entropy
        return value, jacobian

    def _joined(self, theta: Array, logs: Mapping[str, Array]) -> tuple[Array, Array]:
        g = self.joined_by(theta)[:, None, None] if self.power else 1.0
        n = np.broadcast_shapes(*(logs[name].shape for name in self.columns))[-1]
        terms = np.empty((len(theta), len(self.terms), n))
        for k, term in enumerate(self.terms):
            terms[:, k] = theta[:, self.index(term.scale), None]
            if term.exponent:
                terms[:, k] -= theta[:, self.index(term.exponent), None] * logs[term.column]
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
            (E, N, Term("B", "alpha", "tokens")),
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
            "the challenger: at gamma 1 it is chinchilla, else N and D act on each other",
            (E, N, D),
            "gamma",
        ),
        Law("power-n", "L = E + A/N^alpha", f"{_KAPLAN}, with E", "E is fitted, theirs is 0", (E, N)),
        Law("power-d", "L = E + B/D^beta", f"{_KAPLAN}, with E", "E is fitted, theirs is 0", (E, D)),
        Law("power-c", "L = E + A/C^alpha", f"{_KAPLAN}, with E", "E is fitted, theirs is 0", (E, C)),
    )
}
