"""Where fits start: a grid of exponents, with the scales that are best for each in closed form.

For given exponents and g a form is linear in the scales (variable projection, Golub and Pereyra 1973).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import numpy as np

from sweeplab.analysis.fit.forms import Array, Law
from sweeplab.analysis.fit.solver import Rows

GRID = np.geomspace(0.03, 1.8, 12)
POWERS = (0.5, 1.0, 2.0)
BLOCK = 3  # of 3 x 3 exponents the best is a start, so that starts lie in different valleys
ENOUGH = 1000  # rows to choose starts by
_SEEN = 1e-2  # of the loss: what a steep term is at the smallest row
_ABSENT = 1e-3  # of the mean loss: the start of a term whose best scale is zero


def starts(law: Law, rows: Rows, block: int = BLOCK) -> Array:
    """Return the vectors to start from, best first: [S, p]. The rows' weights are those of one table, [n].

    The best of each block of `block` x `block` exponents is a start.
    """
    rows = _thinned(rows)
    exponents = tuple(dict.fromkeys(term.exponent for term in law.terms if term.exponent))
    free_power = bool(law.power) and law.power not in exponents
    axes = [range(len(GRID))] * len(exponents) + [range(len(POWERS))] * free_power
    where = np.array(list(product(*axes)))
    theta = np.zeros((len(where), len(law.parameters)))
    for at, name in enumerate(exponents):
        theta[:, law.index(name)] = GRID[where[:, at]]
    if free_power:
        theta[:, law.index(law.power)] = np.array(POWERS)[where[:, -1]]
    theta[:, [law.index(name) for name in law.scales]] = _best_scales(law, theta, rows)
    objective = rows.objective(law, theta)
    blocks = where.copy()
    blocks[:, : len(exponents)] //= block
    order = np.argsort(objective, kind="stable")
    _, first = np.unique(blocks[order], axis=0, return_index=True)
    return theta[order[np.sort(first)]]


def turns(law: Law, theta: Array, rows: Rows) -> Array:
    """Return a vector, [p], and what it may have missed, [S, p], for a design that hardly tells terms apart.

    Valleys in which a term fades out are long and bent: one vector for each term has it gone. A term as steep as may
    be, seen by the smallest rows alone, is a valley of its own; and two terms may have taken each other's place.
    """
    low, high = law.bounds(rows.log_loss)
    scale = {term: law.index(term.scale) for term in law.terms}
    powers = {term: law.index(term.exponent) for term in law.terms if term.exponent}
    found = [theta]
    for term, at in scale.items():
        gone = theta.copy()
        gone[at] = low[at]
        if term not in powers:
            found.append(gone)
            continue
        for other in powers.keys() - {term}:  # takes its part
            gone[scale[other]] = np.logaddexp(theta[scale[other]], theta[at])
        steep = gone.copy()
        steep[powers[term]] = high[powers[term]]
        steep[at] = rows.log_loss.mean() + np.log(_SEEN) + steep[powers[term]] * rows.logs[term.column].min()
        found += [gone, steep]
    if len(powers) == 2:
        first, second = ([scale[term], power] for term, power in powers.items())
        turned = theta.copy()
        turned[first + second] = theta[second + first]
        found.append(turned)
    return np.array(found)


def _thinned(rows: Rows) -> Rows:
    """Return the rows, or as many as starts take, drawn at random but the same every time."""
    n = len(rows.log_loss)
    if n <= ENOUGH:
        return rows
    kept = np.random.default_rng(0).choice(n, ENOUGH, replace=False)
    logs = {name: column[kept] for name, column in rows.logs.items()}
    return replace(rows, logs=logs, log_loss=rows.log_loss[kept], weights=rows.weights[kept])


def _best_scales(law: Law, theta: Array, rows: Rows) -> Array:
    """Return the logs of the best non-negative scales of each vector, [S, k], by trying every set of terms."""
    g = law.joined_by(theta)[:, None]
    columns = np.stack(
        [
            np.exp(-theta[:, law.index(term.exponent), None] * rows.logs[term.column] / g)
            if term.exponent
            else np.ones((len(theta), len(rows.log_loss)))
            for term in law.terms
        ],
        axis=1,
    )
    # Divided by L^(1/g), residuals are those of the log of the loss, to first order and up to g.
    columns *= np.exp(-rows.log_loss / g)[:, None, :]
    normal = (columns * rows.weights) @ columns.transpose(0, 2, 1)
    aim = (columns * rows.weights).sum(2)
    n_terms = len(law.terms)
    best, gained = np.zeros((len(theta), n_terms)), np.full(len(theta), -np.inf)
    for count in range(1, n_terms + 1):
        for chosen in combinations(range(n_terms), count):
            part = normal[:, chosen][:, :, chosen]
            part = part + 1e-12 * np.trace(part, axis1=1, axis2=2)[:, None, None] * np.eye(count)
            found = np.linalg.solve(part, aim[:, chosen, None])[:, :, 0]
            gain = np.where((found > 0).all(1), (found * aim[:, chosen]).sum(1), -np.inf)
            better = gain > gained
            gained = np.where(better, gain, gained)
            best[better] = 0.0
            best[np.ix_(better, np.array(chosen))] = found[better]
    mean = float(rows.log_loss.mean())
    absent = np.exp(mean / g) * _ABSENT ** (1 / g)
    return np.asarray(g * np.log(np.maximum(best, absent)))
