"""Print how often a law along a path or of a shape holds: `python tests/benchmarks/paths.py [shapes] [TABLES]`.

Two minutes for 40 tables along a path, and for 10 of shapes.

Tokens follow params (20 a parameter, exactly or within 6%), four seeds a size, 0.4% noise; the law is the one that
`laws fit` chooses. Forecasts are of one run on the path, at 3 and 10 times the compute of the largest.

With `shapes` a law of n_embd and n_layer, or of N alone, is planted on 9 cells (3 x 3) and 16 (4 x 4), at 0.3 and 1%
noise; `laws fit` chooses. Exponents are those of the planted form, forecasts of one run of twice the largest N.
"""

import math
import sys
from collections import Counter
from pathlib import Path
from statistics import median

import numpy as np

sys.path[0] = str(Path(__file__).parents[1])  # this folder's laws.py would hide tests/laws

from laws.planted_paths import NOISE, RATIO, loss, plant_path
from laws.planted_shapes import GRIDS, TOKENS, TRUTHS, loss_of, params_of, plant_shapes, varied

from sweeplab.laws.assessment import IDENTIFIED, assess, law_for
from sweeplab.laws.choosing import choice_of
from sweeplab.laws.fitting import fit
from sweeplab.laws.forecasts import predict
from sweeplab.laws.forms import LAWS, parameters_of
from sweeplab.laws.intervals import noise_of, profiles
from sweeplab.laws.misfit import FLAGGED

LARGEST = 1.6e5


def table(
    n_sizes: int, jitter: float, number: int, counts: Counter[str], widths: dict[float, list[float]]
) -> None:
    """Fit the law to one planted table, and count what holds."""
    random = np.random.default_rng((n_sizes, int(100 * jitter), number))
    truth = (1.2 * math.exp(0.1 * random.standard_normal()), 60.0, random.uniform(0.35, 0.55))
    points = plant_path(n_sizes, jitter, truth, random)
    assessed = assess(points, law_for(points), others=())
    (alpha,) = (estimate for estimate in assessed.estimates if estimate.quantity.name == "alpha")
    counts["alpha held"] += alpha.interval.low <= truth[2] <= alpha.interval.high
    counts["alpha identified"] += alpha.verdict.verdict == IDENTIFIED
    counts["form flagged"] += assessed.misfit.status == FLAGGED
    for times, halves in widths.items():
        params = LARGEST * math.sqrt(times)
        ends = predict(assessed, {"params": params, "tokens": RATIO * params})
        run = loss(params, truth) * math.exp(NOISE * random.standard_normal())
        counts[f"{times:g} times held"] += ends.low <= run <= ends.high
        halves.append((ends.high - ends.low) / 2 / run)


def shape_table(law: str, n_cells: int, noise: float, number: int, counts: Counter[str]) -> None:
    """Choose a law for one planted table of shapes, and count what holds of `counts` and of how many."""
    random = np.random.default_rng((n_cells, int(1e4 * noise), number))
    truth = varied(law, random)
    layers, widths = GRIDS[n_cells]
    points = plant_shapes(law, noise, random, layers, widths, truth)
    choice = choice_of(points)
    is_sure = f"{law} is distinguished from it" in choice.says
    wrong = choice.law.name != law and (law == "power-n" or is_sure)
    counts["right or not distinguished"] += not wrong
    counts["right"] += choice.law.name == law
    counts["called shape-dependent"] += choice.law.reads_shape or bool(choice.doubt)
    planted = fit(points, LAWS[law])
    quantities = [each for each in parameters_of(LAWS[law], planted.center) if "exponent" in each.kind]
    for quantity, ends in zip(
        quantities, profiles(planted, quantities, None, noise_of(planted)), strict=True
    ):
        counts[f"{quantity.name} held"] += ends.low <= truth[quantity.name] <= ends.high
    embd = widths[-1] * math.sqrt(2)
    at = {"params": params_of(layers[-1], embd), "tokens": TOKENS, "n_layer": layers[-1], "n_embd": embd}
    ends = predict(assess(points, choice.law, others=()), at)
    run = loss_of(law, truth, layers[-1], embd) * math.exp(noise * random.standard_normal())
    counts["forecast held"] += ends.low <= run <= ends.high


def main() -> None:
    """Print a row for each number of sizes and each jitter of the tokens, or for each planted law of shapes."""
    *of_shapes, n_tables = [*sys.argv[1:], 40][: 2 if "shapes" in sys.argv else 1]
    n_tables = int(n_tables)
    for n_cells in GRIDS if of_shapes else ():
        for noise in (0.003, 0.01):
            for law in TRUTHS:
                counts = Counter[str]()
                for number in range(n_tables):
                    shape_table(law, n_cells, noise, number, counts)
                shares = ", ".join(f"{name} {count / n_tables:.0%}" for name, count in counts.items())
                print(f"{n_cells} cells, noise {noise:.1%}, {law}: {shares}", flush=True)
    if of_shapes:
        return
    for n_sizes in (5, 6, 8):
        for jitter in (0.0, 0.06):
            counts, widths = Counter[str](), {3.0: list[float](), 10.0: list[float]()}
            for number in range(n_tables):
                table(n_sizes, jitter, number, counts, widths)
            shares = ", ".join(f"{name} {count / n_tables:.0%}" for name, count in counts.items())
            halves = ", ".join(
                f"half-width at {times:g} times {median(each):.1%}" for times, each in widths.items()
            )
            print(f"{n_sizes} sizes, tokens within {jitter:.0%}: {shares}; {halves}", flush=True)


if __name__ == "__main__":
    main()
