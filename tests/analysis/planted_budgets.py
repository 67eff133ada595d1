"""Tables whose compute-optimal size is known: sizes around N_opt at equal FLOPs, and curves of many sizes."""

from __future__ import annotations

import numpy as np
from analysis.planted_laws import TRUTHS, losses

from sweeplab.analysis.compute_optimal.envelope import Curve, Curves
from sweeplab.analysis.points import Points


def exponent(truth: str) -> float:
    """Return the exponent of N_opt in C."""
    planted = TRUTHS[truth]
    return planted["beta"] / (planted["alpha"] + planted["beta"])


def n_opt(truth: str, flops):
    """Return N_opt at C = 6 N D (Hoffmann et al. 2022, equation 4)."""
    planted = TRUTHS[truth]
    both = planted["alpha"] + planted["beta"]
    scale = (planted["alpha"] * planted["A"] / (planted["beta"] * planted["B"])) ** (1 / both)
    return scale * (flops / 6) ** exponent(truth)


def plant_isoflop(truth: str, noise: float, random, budgets=None, n_sizes=7, decades=1.5, off=0.0) -> Points:
    """Return rows at equal FLOPs, `n_sizes` over `decades` around N_opt; `off` moves all of them, in decades."""
    budgets = np.geomspace(1e17, 1e20, 5) if budgets is None else np.asarray(budgets, float)
    steps = 10 ** (off + np.linspace(-decades / 2, decades / 2, n_sizes))
    n = (n_opt(truth, budgets)[:, None] * steps).ravel()
    flops = np.repeat(budgets, n_sizes)
    d = flops / (6 * n)
    loss = losses(TRUTHS[truth], n, d) * np.exp(noise * random.standard_normal(len(n)))
    return Points({"params": n, "tokens": d, "flops": flops, "loss": loss}, np.ones(len(n)))


def plant_curves(truth: str, noise: float, random, n_sizes=8, schedule="constant", n_points=40) -> Curves:
    """Return a curve a size that follows the law at every token: what a constant learning rate would give."""
    runs = []
    for n in np.geomspace(1e6, 1e8, n_sizes):
        d = n * np.geomspace(0.5, 300, n_points)
        error = noise * random.standard_normal(n_points)
        loss = losses(TRUTHS[truth], np.full(n_points, n), d) * np.exp(error)
        runs.append(Curve(f"{n:.3g}", float(n), np.log(6 * n * d), np.log(loss)))
    return Curves(tuple(runs), schedule)
