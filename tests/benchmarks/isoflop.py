"""Measure how often the 90% interval of IsoFLOP's exponent contains the planted one, by design, noise and law.

Run: python tests/benchmarks/isoflop.py [--tables 200] [--processes 2]

Tables resemble the published ones: 5 to 9 budgets of 5 to 9 sizes over a factor of 4 to 30 in N. Sizes away from the
optimum are off alike in all budgets, or drift from one side of it to the other, as where they were chosen by another
exponent or are the same in all budgets. A share is of the tables that give a number; the others give none.
"""

import argparse
import math
import os
import sys
import zlib
from multiprocessing import Pool
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
sys.path[0] = str(Path(__file__).parents[1])  # not this folder, which has a laws.py

import numpy as np
from benchmarks.setting import print_table, setting
from laws.planted_budgets import DESIGNS, drifting, exponent
from laws.planted_laws import HELD_OUT, TRUTHS

from sweeplab.laws.compute_optimal.isoflop import isoflop

LAWS = {**TRUTHS, **HELD_OUT}
NOISES = (0.003, 0.005, 0.01)


def one_table(case) -> tuple[bool, bool, float, float]:
    """Return whether there is a number, whether its interval holds the truth, half of its width, and its error."""
    design, truth, noise, seed = case
    random = np.random.default_rng([seed, zlib.crc32(repr(case[:3]).encode())])
    found = isoflop(drifting(truth, DESIGNS[design], noise, random)).numbers["N_opt exponent"]
    if not math.isfinite(found.value):
        return False, False, math.nan, math.nan
    true = exponent(truth)
    return True, found.low <= true <= found.high, (found.high - found.low) / 2, found.value - true


def row(name: str, told: np.ndarray) -> list[str]:
    has, held, half, error = told.T
    there = has > 0
    if not there.any():
        return [name, "0%"]
    return [
        name,
        f"{there.mean():.0%}",
        f"{held[there].mean():.1%}",
        f"{np.median(half[there]):.3f}",
        f"{np.sqrt(np.mean(error[there] ** 2)):.3f}",
        f"{error[there].mean():+.3f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--tables", type=int, default=200, help="tables a design, of all laws and noises in turn"
    )
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    asked = parser.parse_args()
    kinds = [(truth, noise) for truth in LAWS for noise in NOISES]
    cases = [(design, *kinds[k % len(kinds)], k) for design in DESIGNS for k in range(asked.tables)]
    print(setting())
    with Pool(asked.processes) as pool:
        told = np.array(pool.map(one_table, cases, chunksize=20), float)
    print(f"\n{asked.tables} tables a design\n")
    head = ["", "with a number", "held by 90%", "half width", "rms error", "mean error"]
    for at in range(3):
        names = list(dict.fromkeys(case[at] for case in cases))
        rows = [row(str(name), told[[case[at] == name for case in cases]]) for name in names]
        print_table(head, [*rows, row("all", told)] if at == 0 else rows)
        print()


if __name__ == "__main__":
    main()
