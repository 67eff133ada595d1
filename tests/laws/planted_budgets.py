"""Tables whose compute-optimal size is known: sizes around N_opt at equal FLOPs."""

import numpy as np
from laws.planted_laws import HELD_OUT, TRUTHS, losses

from sweeplab.laws.points import EACH, Points


def exponent(truth):
    """Return the exponent of N_opt in C."""
    planted = (TRUTHS | HELD_OUT)[truth]
    return planted["beta"] / (planted["alpha"] + planted["beta"])


def n_opt(truth, flops):
    """Return N_opt at C = 6 N D (Hoffmann et al. 2022, equation 4)."""
    planted = (TRUTHS | HELD_OUT)[truth]
    both = planted["alpha"] + planted["beta"]
    scale = (planted["alpha"] * planted["A"] / (planted["beta"] * planted["B"])) ** (1 / both)
    return scale * (flops / 6) ** exponent(truth)


def plant_isoflop(truth, noise, random, n_sizes=7, decades=1.5, off=0.0):
    """Return rows at equal FLOPs, `n_sizes` over `decades` around N_opt; `off` moves all of them, in decades."""
    budgets = np.geomspace(1e17, 1e20, 5)
    steps = 10 ** (off + np.linspace(-decades / 2, decades / 2, n_sizes))
    n = (n_opt(truth, budgets)[:, None] * steps).ravel()
    flops = np.repeat(budgets, n_sizes)
    d = flops / (6 * n)
    loss = losses(TRUTHS[truth], n, d) * np.exp(noise * random.standard_normal(len(n)))
    return Points(
        {"params": n, "tokens": d, "flops": flops, "loss": loss}, np.ones(len(n)), tuned=EACH
    )


# Budgets, sizes, the factor of N that they span, and where their middle lies, as a share of that span, from the
# optimum of the least and of the largest budget.
DESIGNS = {
    "9 x 9 over 30, centered": (9, 9, 30, 0.0, 0.0),
    "7 x 7 over 10, centered": (7, 7, 10, 0.0, 0.0),
    "5 x 5 over 4, centered": (5, 5, 4, 0.0, 0.0),
    "5 x 9 over 30, centered": (5, 9, 30, 0.0, 0.0),
    "9 x 5 over 10, centered": (9, 5, 10, 0.0, 0.0),
    "7 x 7 over 10, too large": (7, 7, 10, 0.2, 0.2),
    "7 x 9 over 30, too small": (7, 9, 30, -0.25, -0.25),
    "5 x 7 over 10, from small to large": (5, 7, 10, -0.2, 0.2),
    "9 x 7 over 30, from small to large": (9, 7, 30, -0.25, 0.25),
    "7 x 9 over 30, from large to small": (7, 9, 30, 0.25, -0.25),
    "9 x 9 over 10, from large to small": (9, 9, 10, 0.2, -0.2),
    "6 x 6 over 6, from small to large": (6, 6, 6, -0.15, 0.15),
}


def drifting(truth, design, noise, random):
    """Return rows of a design at equal FLOPs, over 2.5 decades of these."""
    n_budgets, n_sizes, factor, first, last = design
    planted = (TRUTHS | HELD_OUT)[truth]
    budgets = np.geomspace(6e18, 2e21, n_budgets)
    middles = n_opt(truth, budgets) * factor ** np.linspace(first, last, n_budgets)
    n = (middles[:, None] * factor ** np.linspace(-0.5, 0.5, n_sizes)).ravel()
    flops = np.repeat(budgets, n_sizes)
    loss = losses(planted, n, flops / (6 * n)) * np.exp(noise * random.standard_normal(len(n)))
    return Points(
        {"params": n, "tokens": flops / (6 * n), "flops": flops, "loss": loss},
        np.ones(len(n)),
        tuned=EACH,
    )
