"""Compare runs that `laws next` chooses with a grid, on planted laws that are right or 2% wrong.

`laws next` chooses runs from the grid's own range to follow a pilot of nine small runs; pilot and chosen runs together
cost a share of the grid's FLOPs. Both tables are simulated, fitted and profiled alike. The truth of a wrong law is what
a fit of the grid without noise gives.

Run: python tests/benchmarks/next_runs.py [--tables 100] [--noises 0.003 0.01] [--quantities exponent]
"""

import argparse
import os
import sys
from functools import cache
from multiprocessing import Pool
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
sys.path[0] = str(Path(__file__).parents[1])  # not this folder, which has a laws.py

import numpy as np
from benchmarks.setting import print_table, setting
from laws.planted_laws import GOOD, TRUTHS, losses

from sweeplab.laws.fitting import LEAST_SQUARES, fit
from sweeplab.laws.forms import LAWS
from sweeplab.laws.intervals import profiles
from sweeplab.laws.next_runs import find_quantity, next_runs, of_axes
from sweeplab.laws.points import Points
from sweeplab.laws.rules import Rules

CHINCHILLA = LAWS["chinchilla"]
GRID = GOOD["30 points, 6 x 5"]
SIZES, RATIOS = (1e6, 1e8), (2, 200)
LENGTHS = (SIZES[0] * RATIOS[0], SIZES[1] * RATIOS[1])
PILOT_SIZES = np.repeat(np.geomspace(1e6, 1e7, 3), 3)
PILOT = (PILOT_SIZES, PILOT_SIZES * np.tile([2, 20, 200], 3))
AXES = {"params": np.geomspace(*SIZES, 13), "ratio": np.geomspace(*RATIOS, 13)}
# By how much of `WRONG_BY` a law is off, over x and y, the logs of N and D, which go from -1 to 1.
WRONG = {
    "right": lambda x, y: 0 * x,
    "interaction": lambda x, y: x * y / 2,
    "bend in N": lambda x, y: x**2,
    "bend in D": lambda x, y: y**2,
}
WRONG_BY = 0.02
RULES = {
    "as it is": {},
    "no caps": {"misfit": 1e-9, "most_share": 1.0, "most_each": 40, "least_share": 0.0},
}
QUANTITIES = ("exponent", "alpha", "beta")
SHARE, SMALL_SHARE = 0.2, 0.05  # of the grid's FLOPs


def measure(truth: str, wrong: str, where, noise: float, random) -> Points:
    """Return the table of runs at some points, of a law that is wrong in one way."""
    n, d = where
    x, y = (
        2 * np.log(each / np.sqrt(low * high)) / np.log(high / low)
        for each, (low, high) in ((n, SIZES), (d, LENGTHS))
    )
    off = WRONG_BY * WRONG[wrong](x, y) + noise * random.standard_normal(len(n))
    loss = losses(TRUTHS[truth], n, d) * np.exp(off)
    return Points({"params": n, "tokens": d, "flops": 6 * n * d, "loss": loss}, np.ones(len(n)))


@cache
def aim(truth: str, wrong: str, quantity: str) -> float:
    """Return what a fit of the grid says without noise."""
    points = measure(truth, wrong, GRID, 0.0, np.random.default_rng(0))
    found = fit(points, CHINCHILLA, LEAST_SQUARES)
    return float(find_quantity(found, points, quantity).measure(found.theta[None])[0][0])


def told(points: Points, quantity: str, true: float) -> list[float]:
    """Return half of the interval's width, whether it holds the truth, and how far off the value is."""
    found = fit(points, CHINCHILLA)
    (ends,) = profiles(found, [find_quantity(found, points, quantity)])
    return [(ends.high - ends.low) / 2, ends.low <= true <= ends.high, ends.value - true]


def one(case) -> list[float]:
    """Return the number of runs, their FLOPs over the grid's, what was foretold, and what both tables told."""
    quantity, wrong, noise, share, rules, seed = case
    truth, random = list(TRUTHS)[seed % 2], np.random.default_rng([seed, 3])
    grid = measure(truth, wrong, GRID, noise, random)
    pilot = measure(truth, wrong, PILOT, noise, random)
    whole = float(grid.columns["flops"].sum())
    budget = share * whole - float(pilot.columns["flops"].sum())
    found = fit(pilot, CHINCHILLA)
    asked = find_quantity(found, pilot, quantity)
    chosen = next_runs(found, asked, of_axes(pilot, AXES), Rules(budget, **RULES[rules]))
    at = np.repeat(np.arange(chosen.candidates.n), chosen.counts)
    where = [
        np.concatenate([first, chosen.candidates.columns[name][at]])
        for name, first in zip(("params", "tokens"), PILOT, strict=True)
    ]
    both = measure(truth, wrong, where, noise, random)
    both.columns["loss"][: pilot.n] = pilot.columns["loss"]
    true = aim(truth, wrong, quantity)
    cost = float(both.columns["flops"].sum()) / whole
    return [len(at), cost, chosen.after.at_fit, *told(grid, quantity, true), *told(both, quantity, true)]


def row(pool, n_tables: int, quantity: str, wrong: str, noise: float, share: float, rules: str) -> list[str]:
    cases = [(quantity, wrong, noise, share, rules, k) for k in range(n_tables)]
    n, cost, foretold, wide, held, off, narrow, kept, bias = np.array(pool.map(one, cases, 2), float).T
    middle = np.median
    return [
        quantity,
        wrong,
        f"{noise:.1%}",
        rules,
        f"{middle(n):.0f}",
        f"{middle(cost):.0%}",
        f"±{middle(wide):.4f}",
        f"±{middle(narrow):.4f}",
        f"{middle(narrow / wide):.2f}",
        f"{middle(foretold / narrow):.2f}",
        f"{held.mean():.0%} / {kept.mean():.0%}",
        f"{middle(off):+.4f} / {middle(bias):+.4f}",
    ]


HEADINGS = [
    "number", "law", "noise", "choice", "runs", "of the grid's FLOPs", "grid", "pilot and next", "ratio",
    "foretold", "held: grid / next", "off by: grid / next",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", type=int, default=100)
    parser.add_argument("--noises", type=float, nargs="+", default=[0.003, 0.01])
    parser.add_argument("--quantities", nargs="+", default=list(QUANTITIES))
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    asked = parser.parse_args()
    print(setting())
    print(f"\n{asked.tables} tables a row, both truths in turn; medians; 90% intervals\n", flush=True)
    print_table(HEADINGS, [])
    kinds = [(wrong, SHARE, "as it is") for wrong in WRONG]
    kinds += [
        ("right", SMALL_SHARE, "as it is"),
        ("right", SHARE, "no caps"),
        ("bend in N", SHARE, "no caps"),
    ]
    with Pool(asked.processes) as pool:
        for noise in asked.noises:
            for quantity in asked.quantities:
                for wrong, share, rules in kinds:
                    told = row(pool, asked.tables, quantity, wrong, noise, share, rules)
                    print(f"| {' | '.join(told)} |", flush=True)


if __name__ == "__main__":
    main()
