"""The published forms of a scaling law, as one table, and the numbers that follow from a law's parameters.

Legend: N parameters, D tokens, C FLOPs, L loss; N_opt and D_opt are the parameters and tokens of lowest loss for a
budget C = k N D, with k = 6 unless FLOPs were counted; S draws of the parameters.

Every form is a sum, L = E + sum over k of scale_k / X_k^exponent_k, with X one of N, D, C. A bent form is one that is
wrong by a little, as every form may be: each exponent changes with x, the centered log of its column, from
a (1 - g/2) to a (1 + g/2) as tanh(x) does, and with two columns the loss has the factor exp(k x y). At the optimum of
N and D both terms fall alike, alpha A/N^alpha = beta B/D^beta, so that
log N_opt = (log A - log B + beta log(C/k) + log(alpha/beta)) / (alpha + beta): N_opt goes as C^(beta/(alpha+beta))
(Hoffmann et al. 2022, equation 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from sweeplab.laws.core import Array, Design, Prior, logistic, uniform

Values = Mapping[str, Array]  # draws of each parameter as in the formula, [S]

EXPONENTS = (0.01, 2.0)  # the ends of their prior: published ones are 0.05 to 0.8
N_OPT, D_OPT, RATIO = "N_opt exponent", "D_opt exponent", "tokens per parameter"
FEWEST_VALUES = 3  # of a column, for E, a scale and an exponent
# The sd of g and of k in their priors: either moves the forecast at ten times the compute by about 5% of the loss.
BEND, TOGETHER = 0.2, 0.005
# The sd of g where rows cannot show it: studies on a path bent so that they ended 2% off at 2.1 times the largest size.
UNSEEN_BEND = 0.7


class PowerTerm(NamedTuple):
    """One term of a sum: `scale` over the column to the power `exponent`."""

    scale: str
    exponent: str
    column: str


@dataclass(frozen=True)
class Law:
    """A form: its formula, its source with departures from it, and terms besides E."""

    name: str
    formula: str
    source: str
    terms: tuple[PowerTerm, ...]
    bend: float = BEND

    @property
    def parameters(self) -> tuple[str, ...]:
        """Return the names of the parameters, in the order of the formula."""
        names = [name for term in self.terms for name in (term.scale, term.exponent)]
        return tuple(dict.fromkeys(["E", *names]))

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns of a table that the form uses, besides the loss."""
        return tuple(term.column for term in self.terms)

    @property
    def exponents(self) -> tuple[str, ...]:
        """Return the names of the exponents."""
        return tuple(dict.fromkeys(term.exponent for term in self.terms))

    @property
    def departures_of(self) -> dict[str, float]:
        """Return the names of a bent form's g and k, with their sd."""
        departures = {f"a bend in {column}": self.bend for column in self.columns}
        if len(self.columns) > 1:
            departures[" times ".join(f"log {column}" for column in self.columns)] = TOGETHER
        return departures

    def priors(self, is_bent: bool) -> list[Prior]:
        """Return the priors of what enters nonlinearly: exponents, and departures."""
        priors = [uniform(*EXPONENTS) for _ in self.exponents]
        if is_bent:
            priors += map(logistic, self.departures_of.values())
        return priors

    def design(self, logs: Mapping[str, Array], is_bent: bool = False) -> Design:
        """Return the columns of the sum, 1 and X_k^-a_k, of rows with these centered logs, each [n] or [S, n]."""

        def columns(shapes: Array) -> Array:
            bends = shapes[:, len(self.exponents) :]
            parts = [
                np.ones(np.broadcast_shapes(logs[self.columns[0]].shape, (len(shapes), 1)))
            ]
            for place, term in enumerate(self.terms):
                x = logs[term.column]
                power = shapes[:, [self.exponents.index(term.exponent)]]
                fall = power * x
                if is_bent:
                    # The integral of tanh(x) / 2, without overflow.
                    turned = (np.logaddexp(x, -x) - math.log(2)) / 2
                    fall = fall + power * bends[:, [place]] * turned
                parts.append(np.exp(-fall))
            whole = np.stack(parts, 2)
            if is_bent and len(self.columns) > 1:
                together = bends[:, [-1]] * math.prod(logs[name] for name in self.columns)
                whole *= np.exp(together)[:, :, None]
            return whole

        return columns

    def loss(self, values: Values, sizes: Mapping[str, Array]) -> Array:
        """Return the loss, [S, n], of rows of these columns, each [n] or [S, n]; `values` may be a bent form's."""
        names = [name for name in self.departures_of if name in values]
        shapes = np.stack([values[name] for name in (*self.exponents, *names)], 1)
        logs = {}
        scales = [values["E"]]
        for term in self.terms:
            center = values.get(f"center of {term.column}", np.zeros(1))
            logs[term.column] = np.log(sizes[term.column]) - center[:, None]
            scales.append(values[term.scale] * np.exp(-values[term.exponent] * center))
        return (self.design(logs, bool(names))(shapes) @ np.stack(scales, 1)[:, :, None])[
            :, :, 0
        ]


_N = PowerTerm("A", "alpha", "params")
_D = PowerTerm("B", "beta", "tokens")
_C = PowerTerm("A", "alpha", "flops")
_KAPLAN = (
    "Kaplan et al. 2020, Scaling laws for neural language models; E is fitted, theirs is 0"
)
LAWS: dict[str, Law] = {
    law.name: law
    for law in (
        Law(
            "chinchilla",
            "L = E + A/N^alpha + B/D^beta",
            "Hoffmann et al. 2022, Training compute-optimal large language models, equation 2",
            (_N, _D),
        ),
        Law(
            "tied",
            "L = E + A/N^alpha + B/D^alpha",
            "chinchilla with one exponent; N_opt and D_opt then grow alike by assumption",
            (_N, PowerTerm("B", "alpha", "tokens")),
        ),
        Law("power-n", "L = E + A/N^alpha", _KAPLAN, (_N,)),
        Law("power-d", "L = E + B/D^beta", _KAPLAN, (_D,)),
        Law("power-c", "L = E + A/C^alpha", _KAPLAN, (_C,)),
    )
}


class Tolerance(NamedTuple):
    """The largest distance of a 90% interval's ends from the value for `identified`, and for `weak`.

    A factor where `is_factor`: 3 is a third to three times the value. Otherwise a difference.
    """

    identified: float
    weak: float
    is_factor: bool


# Meant for use: what is identified may be planned with.
TOLERANCES = {
    "exponent": Tolerance(0.06, 0.3, False),
    "scale": Tolerance(10.0, 30.0, True),
    "ratio": Tolerance(3.0, 10.0, True),
    "hyperparameter": Tolerance(1.5, 3.0, True),
    "irreducible": Tolerance(1.05, 1.3, True),
    "loss": Tolerance(1.03, 1.1, True),
}


def shown(kind: str, measured: Sequence[float]) -> list[float]:
    """Return numbers of a kind as they are shown: those with a factor are measured in logs."""
    if TOLERANCES[kind].is_factor:
        return [math.exp(min(each, 700.0)) for each in measured]
    return [*measured]


class Quantity(NamedTuple):
    """A number of the law: `measure` gives its draws, of its log where its tolerance is a factor.

    `kind` names its tolerance, `needs` the columns whose spread it depends on. A scale is no better than the exponent
    `of`.
    """

    name: str
    kind: str
    meaning: str
    measure: Callable[[Values], Array]
    needs: tuple[str, ...]
    of: str = ""


def parameters_of(law: Law) -> list[Quantity]:
    """Return the law's own parameters, as in its formula."""
    about_e = "the irreducible loss, at infinite size and data"
    quantities = {"E": Quantity("E", "irreducible", about_e, _log_of("E"), law.columns)}
    for term in law.terms:
        both = tuple(each.column for each in law.terms if each.exponent == term.exponent)
        about = f"the scale of the {term.column} term"
        quantities[term.scale] = Quantity(
            term.scale, "scale", about, _log_of(term.scale), (term.column,), term.exponent
        )
        about = f"the exponent of {' and '.join(both)}"
        exponent = itemgetter(term.exponent)
        quantities[term.exponent] = Quantity(term.exponent, "exponent", about, exponent, both)
    return [*quantities.values()]


def _log_of(name: str) -> Callable[[Values], Array]:
    return lambda values: np.log(values[name])


def log_n_opt(law: Law, values: Values, log_nd: float) -> Array:
    """Return draws of log N_opt where log N + log D is `log_nd`, [S]."""
    of_n, of_d = law.terms
    alpha, beta = values[of_n.exponent], values[of_d.exponent]
    scales = np.log(values[of_n.scale] / values[of_d.scale]) + np.log(alpha / beta)
    return (scales + beta * log_nd) / (alpha + beta)


def has_optimum(law: Law) -> bool:
    """Return whether a law has both N and D."""
    return law.columns == ("params", "tokens")


def optimum_of(law: Law, budget: float, per_param_token: float) -> list[Quantity]:
    """Return the numbers of the compute-optimal point; empty for a law without both N and D."""
    if not has_optimum(law):
        return []
    of_n, of_d = law.terms
    log_nd = math.log(budget / per_param_token)

    def share(values: Values) -> Array:
        return values[of_d.exponent] / (values[of_n.exponent] + values[of_d.exponent])

    def loss(values: Values) -> Array:
        n = np.exp(log_n_opt(law, values, log_nd))[:, None]
        return np.log(law.loss(values, {"params": n, "tokens": math.exp(log_nd) / n}))[:, 0]

    both = ("params", "tokens")
    at = f"{budget:.3g} FLOPs"
    quantities = [
        Quantity(
            RATIO,
            "ratio",
            f"D_opt / N_opt at {at}",
            lambda values: log_nd - 2 * log_n_opt(law, values, log_nd),
            both,
        ),
        Quantity("loss at budget", "loss", f"the lowest loss for {at}", loss, both),
    ]
    if of_n.exponent == of_d.exponent:  # in a tied law both grow as the root, whatever the data
        return quantities
    return [
        Quantity(N_OPT, "exponent", "N_opt grows as C to this power", share, both),
        Quantity(
            D_OPT,
            "exponent",
            "D_opt grows as C to this power",
            lambda values: 1 - share(values),
            both,
        ),
        *quantities,
    ]


def loss_at(law: Law, target: Mapping[str, float]) -> Quantity:
    """Return the loss at one point of the columns that the law uses."""
    sizes = {name: np.array([target[name]]) for name in law.columns}
    where = ", ".join(f"{name} {target[name]:.3g}" for name in law.columns)
    return Quantity(
        "loss at target",
        "loss",
        f"the loss at {where}",
        lambda values: np.log(law.loss(values, sizes))[:, 0],
        law.columns,
    )
