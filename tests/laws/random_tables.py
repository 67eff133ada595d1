"""Tables of random design, truth and noise, bad ones among them, and what other optimizers make of a fit."""

from __future__ import annotations

import numpy as np
from scipy.optimize import basinhopping, minimize

from sweeplab.laws.fitting import Fit
from sweeplab.laws.points import Points

KINDS = 6  # a ray, near one, one FLOPs a row whatever its size, a few token counts, and twice N and D freely


def random_table(seed: int) -> Points:
    """Return a table of 7 to 260 rows: seed modulo 6 says how tokens follow params."""
    random, kind = np.random.default_rng([seed, 77]), seed % KINDS
    count = int(random.integers(100, 260) if kind == 5 else random.integers(7, 60))
    smallest, decades = 10 ** random.uniform(5, 8), random.uniform(0.2, 3.5)
    n = smallest * 10 ** random.uniform(0, decades, count)
    if random.random() < 0.5:
        sizes = np.geomspace(smallest, smallest * 10**decades, int(random.integers(3, 8)))
        n = random.choice(sizes, count)
        n[:2] = sizes[:2]
    d = (
        n * 10 ** random.uniform(0.5, 2),
        n * 20 * np.exp(random.normal(0, random.uniform(0.05, 0.5), count)),
        10 ** random.uniform(15, 20, count) / n,
        np.r_[1e7, random.choice(np.geomspace(1e7, 1e10, int(random.integers(2, 6))), count - 2), 1e10],
        n * 10 ** random.uniform(0, 2.5, count),
        n * 10 ** random.uniform(0, 2.5, count),
    )[kind]
    floor, (alpha, beta) = random.uniform(0, 3), random.uniform(0.08, 0.7, 2)
    parts = random.uniform(0.05, 2, 2)
    loss = floor + parts[0] * (n / np.exp(np.log(n).mean())) ** -alpha
    loss = loss + parts[1] * (d / np.exp(np.log(d).mean())) ** -beta
    loss = loss * np.exp(random.choice([0.001, 0.003, 0.01, 0.02, 0.05]) * random.standard_normal(count))
    if random.random() < 0.3:
        loss[random.integers(0, count, 2)] *= random.uniform(1.05, 1.3)
    return Points({"params": n, "tokens": d, "flops": 6 * n * d, "loss": loss}, np.ones(count))


def scipys_gain(found: Fit, n_hops: int, n_starts: int = 0, seed: int = 0) -> float:
    """Return how much lower, as a share, SciPy gets than a fit.

    It hops `n_hops` times from where the fit ended, and L-BFGS-B starts from `n_starts` random vectors, the best
    five of which go on until nothing moves.
    """
    low, high = found.law.bounds(found.rows.log_loss)

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        theta = np.clip(theta, low, high)
        value, jacobian = found.law.derivatives(theta[None], found.rows.logs)
        residual = found.rows.log_loss - value[0]
        bent = np.clip(residual, -found.rows.delta, found.rows.delta)
        # Huber's loss: a square as far as it is bent, and from there on a line.
        total = found.rows.weights @ (bent * (residual - bent / 2)) / found.objective
        return float(total), -(jacobian[0] @ (found.rows.weights * bent)) / found.objective

    local = {"method": "L-BFGS-B", "jac": True, "bounds": list(zip(low, high, strict=True))}
    to_the_end = {"ftol": 1e-15, "gtol": 1e-12, "maxiter": 5000}
    hopped = basinhopping(objective, found.theta, n_hops, stepsize=0.4, minimizer_kwargs=local, rng=seed)
    ends = [hopped]
    for start in _anywhere(found, n_starts, np.random.default_rng(seed)):
        ends.append(minimize(objective, start, **local, options={"maxiter": 300}))
    ends = sorted(ends, key=lambda end: float(end.fun))[:5]
    ends += [minimize(objective, end.x, **local, options=to_the_end) for end in ends]
    return 1 - min(float(end.fun) for end in ends)


def _anywhere(found: Fit, count: int, random: np.random.Generator) -> np.ndarray:
    law, log_loss = found.law, found.rows.log_loss
    theta = 10 ** random.uniform(-2.3, 0.48, (count, len(law.parameters)))
    scales = [law.index(name) for name in law.scales]
    theta[:, scales] = random.uniform(log_loss.mean() - 8, log_loss.max() + 0.5, (count, len(scales)))
    return theta
