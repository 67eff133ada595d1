"""Tables of shapes whose law is known because it was planted: of the product of powers, of their sum, or of N alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sweeplab.laws.forms import LAWS
from sweeplab.laws.points import EACH, Points

# Near the fits to measured studies of one to four layers.
TRUTHS = {
    "shape": {"E": 1.35, "A": 8.6, "a": 0.95, "b": 0.22},
    "width-depth": {"E": 1.33, "A": 11.0, "a": 1.12, "B": 0.2, "b": 1.0},
    "power-n": {"E": 1.35, "A": 36.0, "alpha": 0.476},
}
GRIDS = {9: ((1, 2, 4), (16, 32, 64)), 16: ((1, 2, 4, 8), (16, 32, 64, 128))}
TOKENS = 768_000.0


def params_of(layer, embd):
    """Return N of shapes, with embeddings of 129 rows."""
    return 12 * layer * embd**2 + 129 * embd


def loss_of(law: str, truth: dict[str, float], layer, embd):
    """Return the loss of shapes by a law's formula."""
    names = truth | {"N": params_of(layer, embd), "n_layer": layer, "n_embd": embd, "D": TOKENS}
    return eval(LAWS[law].formula.split(" = ")[1].replace("^", "**"), {}, names)


def varied(law: str, random: np.random.Generator) -> dict[str, float]:
    """Return a truth a little off the usual one."""
    spread = {"E": 0.05}
    return {
        name: value * math.exp(spread.get(name, 0.1) * random.standard_normal())
        for name, value in TRUTHS[law].items()
    }


def plant_shapes(
    law: str = "shape",
    noise: float = 0.001,
    random: np.random.Generator | None = None,
    layers: Sequence[float] = GRIDS[9][0],
    widths: Sequence[float] = GRIDS[9][1],
    truth: dict[str, float] | None = None,
) -> Points:
    """Return a grid of shapes with the loss of a law; `noise` is the sd of a cell's log loss."""
    random = random or np.random.default_rng(0)
    layer, embd = (each.ravel().astype(float) for each in np.meshgrid(layers, widths, indexing="ij"))
    n = params_of(layer, embd)
    loss = loss_of(law, truth or TRUTHS[law], layer, embd) * np.exp(noise * random.standard_normal(len(n)))
    columns = {"params": n, "tokens": np.full(len(n), TOKENS), "flops": 6 * n * TOKENS, "loss": loss}
    return Points(columns, np.ones(len(n)), shape={"n_layer": layer, "n_embd": embd}, tuned=EACH)
