"""Planted tables of runs over searched values in cells of several sizes, with the optima known."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Array = NDArray[np.float64]

# log best = constant + exponents of N and D, as published for learning rates and batch sizes (arXiv 2503.04715).
RATE, BATCH = (np.log(1.79), -0.713, 0.307), (np.log(0.58), 0.0, 0.571)
BEND = np.array([[0.016, -0.004], [-0.004, 0.008]])
SKEW = np.array(
    [0.5, -0.3]
)  # the loss rises faster above the best learning rate, and below the best batch size


@dataclass(frozen=True)
class World:
    """How a table is made: `kind` is law, none, (mild) kink or bimodal; `edge` ends the grid below the optimum."""

    n_params: int = 4
    n_tokens: int = 3
    kind: str = "law"
    noise: float = 0.002
    scatter: float = 0.1
    searched: int = 2
    step: float = np.log(2) / 2
    around: int = 6  # grid values on each side
    edge: float | None = None
    random: int = 0  # trials per cell of a random search in place of a grid


@dataclass(frozen=True)
class Planted:
    """A table, and of its cells the sizes [C, 2] and the optima in logs [C, J]; a `quartic` has skews and fourths."""

    frame: pd.DataFrame
    sizes: Array
    optima: Array
    bend: Array
    quartic: tuple[Array, Array] | None = None

    def regret(self, c, log_values):
        """Return the excess of log loss of values in a cell."""
        z = np.atleast_2d(log_values) - self.optima[c]
        if self.quartic:
            return float(quartic(z, self.bend, *self.quartic)[0])
        return float(excess(z, self.bend)[0])


def law_at(sizes, kind, middle):
    """Return the log of the best learning rate and batch size on the planted law, [C, 2]; a kink lies at N `middle`."""
    logs = np.log(sizes)
    if kind == "none":
        logs = np.full_like(logs, np.log([2e8, 8e9]))
    values = np.stack([a + n * logs[:, 0] + d * logs[:, 1] for a, n, d in (RATE, BATCH)], 1)
    # Above it the learning rate falls no more, or half as fast.
    turn = {"kink": 0.8, "mild kink": 0.35}.get(kind, 0.0)
    values[:, 0] += turn * np.maximum(logs[:, 0] - np.log(middle), 0)
    return np.asarray(values)


def excess(z, bend):
    """Return the excess of log loss at distances [n, J]: no polynomial, but 1/2 z'Hz and a skew near the optimum."""
    skew, diagonal = SKEW[: z.shape[1]], np.diag(bend)
    squares = np.einsum("ij,jk,ik->i", z, bend, z) / 2
    bent = np.expm1(skew * z) - skew * z - (skew * z) ** 2 / 2
    return np.asarray(squares + (bent * diagonal / skew**2).sum(axis=1))


def planted(world, seed, sizes=None):
    """Return a table of the world; `sizes` [C, 2] replace its grid of N and D."""
    rng = np.random.default_rng(seed)
    if sizes is None:
        n, d = np.geomspace(6e7, 1e9, world.n_params), np.geomspace(2e9, 4e10, world.n_tokens)
        sizes = np.array([(one, other) for one in n for other in d])
    j = world.searched
    bend = BEND[:j, :j] * rng.uniform(0.7, 1.5)
    middle = float(np.sqrt(sizes[:, 0].min() * sizes[:, 0].max()))
    optima = law_at(sizes, world.kind, middle)[:, :j] + world.scatter * rng.normal(
        size=(len(sizes), j)
    )
    rows = []
    for (n, d), optimum in zip(sizes, optima, strict=True):
        loss = 1.69 + 406 / n**0.34 + 411 / d**0.28
        if world.random:
            x = optimum + rng.uniform(-2, 2, (world.random, j)) + rng.uniform(-0.5, 0.5, j)
        else:
            axes = []
            for at in range(j):
                center = (
                    np.round(optimum[at] / world.step + rng.uniform(-1.5, 1.5)) * world.step
                )
                axis = center + world.step * np.arange(-world.around, world.around + 1)
                if world.edge is not None and at == 0:
                    axis = axis[axis < optimum[at] - world.edge]
                axes.append(axis)
            x = np.stack([each.ravel() for each in np.meshgrid(*axes, indexing="ij")], 1)
        y = np.log(loss) + excess(x - optimum, bend)
        if world.kind == "bimodal":  # a second, shallower minimum above the best learning rate
            away = x[:, 0] - optimum[0] - 2.5
            y = np.minimum(
                y, np.log(loss) + 0.006 + 0.02 * away**2 + excess(x - optimum, bend) * 0.1
            )
        # Losses scatter more above the best learning rate.
        y += (
            world.noise
            * rng.normal(size=len(y))
            * np.exp(0.3 * np.clip(x[:, 0] - optimum[0], -1, 2))
        )
        rows += [(n, d, *np.exp(own), np.exp(value)) for own, value in zip(x, y, strict=True)]
    names = ["N", "D", *["lr", "bs"][:j], "loss"]
    return Planted(pd.DataFrame(rows, columns=names), sizes, optima, bend)


def quartic(z, bend, skew, fourth):
    """Return a convex excess of log loss at distances [n, J], a polynomial of the fourth order."""
    higher = np.diag(bend) * (skew * z**3 / 6 + fourth * z**4 / 24)
    return np.asarray(np.einsum("ij,jk,ik->i", z, bend, z) / 2 + higher.sum(axis=1))


# Scatter between cells, and noise of a row, of which one is drawn.
QUARTIC = {
    "dense": ((0.0, 0.03, 0.06), (0.0003, 0.001)),
    "sparse": ((0.05,), (0.003,)),
    "noisy": ((0.05,), (0.015,)),
}


def dense(seed, kind="dense"):
    """Return a table of 17 cells with a convex quartic loss: a grid of rates and batches, or few trials a cell.

    A dense one has about 1,700 rows, a sparse one 8 random trials a cell, a noisy one every other row of a grid.
    """
    rng = np.random.default_rng([seed, 991])
    n = np.array([6.0e7, 1.2e8, 2.15e8, 2.68e8, 4.29e8, 5.37e8, 1.07e9])
    d = np.array([2e9, 4e9, 8e9, 2e10, 5e10, 1e11])
    sizes = np.array([(one, other) for one in n for other in d if 10 <= other / one <= 400])
    sizes = sizes[np.sort(rng.permutation(len(sizes))[:17])]
    scatter, noise = (float(rng.choice(values)) for values in QUARTIC[kind])
    bend = BEND * rng.uniform(0.7, 1.5)
    skew = rng.uniform(-0.6, 0.6, 2)
    fourth = skew**2 * rng.uniform(0.6, 1.5, 2)
    law = law_at(sizes, "law", 1.0)
    optima = law + scatter * rng.normal(size=law.shape)
    rates, batches = np.log(2) * np.arange(-14, -6.4, 0.5), np.log(32768 * 2.0 ** np.arange(8))
    tables = []
    for (params, tokens), middle, optimum in zip(sizes, law, optima, strict=True):
        x = np.array(
            [
                (rate, batch)
                for rate in rates
                for batch in batches
                if abs(rate - middle[0]) < 2.6
            ]
        )
        if kind == "sparse":
            x = middle + rng.uniform(-1.0, 1.0, (8, 2)) * [1.4, 1.6]
        if kind == "noisy":
            x = x[::2]
        above = quartic(x - optimum, bend, skew, fourth) + noise * rng.normal(size=len(x))
        loss = (1.69 + 406 / params**0.34 + 411 / tokens**0.28) * np.exp(above)
        columns = {
            "N": params,
            "D": tokens,
            "lr": np.exp(x[:, 0]),
            "bs": np.exp(x[:, 1]),
            "loss": loss,
        }
        tables.append(pd.DataFrame(columns))
    return Planted(pd.concat(tables, ignore_index=True), sizes, optima, bend, (skew, fourth))


def published_like(seed, scatter=0.1):
    """Return a table like the published ones, and which cells are small: up to a tenth of the largest compute."""
    n = np.array([6.0e7, 1.2e8, 2.15e8, 2.68e8, 4.29e8, 5.37e8, 1.07e9])
    d = np.array([2e9, 4e9, 8e9, 2e10, 5e10, 1e11])
    sizes = np.array([(one, other) for one in n for other in d if 10 <= other / one <= 400])
    world = World(noise=0.0012, scatter=scatter, around=4)
    compute = sizes.prod(axis=1)
    return planted(world, seed, sizes), compute <= compute.max() / 10
