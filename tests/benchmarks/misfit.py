"""Measure how often a wrong form is flagged, how often a right one is, and how often any test could flag it.

A wrong truth departs from the law just so far that a fit of its losses without noise is 5% off at ten times the largest
compute, at the best use of it. The bound is the power of the likelihood ratio that knows the departure, its size and
the noise (Neyman and Pearson 1933): no test with as many false alarms under the law that fits the wrong truth best
flags it more often. On designs that show nothing the departure has the size that it has on the 30 points.

Run: python tests/benchmarks/misfit.py [--tables 200] [--noises 0.003 0.01] [--designs 9 30] [--processes 2]
"""

import argparse
import math
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from multiprocessing import Pool
from pathlib import Path
from statistics import NormalDist

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
sys.path[0] = str(Path(__file__).parents[1])  # not this folder, which has a laws.py

import numpy as np
from benchmarks.setting import print_table, setting
from laws.planted_laws import BAD, GOOD, RATIO, SIZE, TRUTHS, plant
from laws.planted_misfit import WRONG, wrong_losses, wrong_table

from sweeplab.laws.fitting import LEAST_SQUARES, fit
from sweeplab.laws.forms import LAWS, log_optimum
from sweeplab.laws.misfit import (
    BEYOND,
    FALSE_ALARM,
    FLAGGED,
    GROSS,
    MATTERS,
    NOT_SEEN,
    UNSEEABLE,
    misfit,
)  # fmt: skip

CHINCHILLA = LAWS["chinchilla"]
DESIGNS = GOOD | BAD
_SHARED = (
    (SIZE, False, ", errors 36% shared by size"),
    (RATIO, False, ", errors 36% shared by D/N"),
    (SIZE, True, ", shared by size, with a group column"),
)
REFERENCE = "30 points, 6 x 5"
SIZES = np.geomspace(1e-3, 2.0, 24)
STATUSES = (FLAGGED, NOT_SEEN, UNSEEABLE)


def forecast_error(truth: str, kind: str, size: float, design: str) -> tuple[float, np.ndarray]:
    """Return how far a fit without noise is off beyond the table, in log loss, and what it leaves over."""
    where = DESIGNS[design]
    points = wrong_table(truth, kind, size, where, 0.0, np.random.default_rng(0))
    found = fit(points, CHINCHILLA, LEAST_SQUARES)
    budget = BEYOND * float(points.columns["flops"].max())
    n = np.array([math.exp(log_optimum(CHINCHILLA, found.theta, found.center, budget, 6.0))])
    d = budget / 6 / n
    true = wrong_losses(truth, kind, size, where)(n, d)
    return float(np.log(found.predict({"params": n, "tokens": d}) / true)[0]), found.residuals()


@cache
def size_of(truth: str, kind: str, design: str, wrong_by: float = MATTERS) -> float | None:
    """Return the size that makes the forecast wrong by a share; None where no size does."""
    if design in BAD:
        return size_of(truth, kind, REFERENCE, wrong_by)
    aim, before = math.log1p(wrong_by), (0.0, 0.0)
    for size in SIZES:
        error = abs(forecast_error(truth, kind, size, design)[0])
        if error >= aim:
            return float(before[0] + (aim - before[1]) / (error - before[1]) * (size - before[0]))
        before = (size, error)
    return None


def bound(truth: str, kind: str, design: str, noise: float, wrong_by: float = MATTERS) -> float:
    """Return the power of the best test of the law that is nearest to a departure, with normal errors of known size."""
    left = forecast_error(truth, kind, size_of(truth, kind, design, wrong_by) or 0.0, design)[1]
    normal = NormalDist()
    return normal.cdf(float(np.linalg.norm(left)) / noise - normal.inv_cdf(1 - FALSE_ALARM - GROSS))


def one(case: tuple[str, str, float | None, str, float, float, str, bool, int]) -> list[bool]:
    """Return which of the statuses one table gets."""
    truth, kind, size, design, noise, shared, by, is_known, seed = case
    random = np.random.default_rng([seed, 4])
    if kind:
        points = wrong_table(truth, kind, size or 0.0, DESIGNS[design], noise, random)
    else:
        points = plant(truth, DESIGNS[design], noise, random, shared, by=by)
        if is_known:
            points = replace(points, groups=tuple(f"{n:.6g}" for n in points.columns["params"]))
    said = misfit(points, fit(points, CHINCHILLA)).status
    return [said == status for status in STATUSES]


def shares(pool, cases: list) -> list[str]:
    return [f"{share:.0%}" for share in np.mean(pool.map(one, cases, chunksize=5), axis=0)]


def right(pool, designs: list[str], n_tables: int, noises: list[float]) -> None:
    print(f"\nThe form is right: {n_tables} tables a row, both truths in turn\n")
    rows = []
    grids = [design for design in designs if design in ("12 points, 4 x 3", REFERENCE)]
    for design, shared, by, is_known, words in (
        *((design, 0.0, SIZE, False, "") for design in designs),
        *((design, 0.36, by, known, words) for design in grids for by, known, words in _SHARED),
    ):
        for noise in noises:
            cases = [
                (list(TRUTHS)[k % 2], "", None, design, noise, shared, by, is_known, k)
                for k in range(n_tables)
            ]
            rows.append([design + words, f"{noise:.1%}", *shares(pool, cases)])
    print_table(["design", "noise", *STATUSES], rows)


def wrong(pool, designs: list[str], n_tables: int, noises: list[float]) -> None:
    print(
        f"\nThe form is wrong: {n_tables} tables a row, both truths in turn; the bound is the mean of theirs\n"
    )
    rows = []
    for design in designs:
        for kind in WRONG:
            sizes = {truth: size for truth in TRUTHS if (size := size_of(truth, kind, design)) is not None}
            if not sizes:
                rows.append([design, kind, "", "no size makes it 5%", "", "", ""])
                continue
            for noise in noises:
                chosen = [list(sizes)[k % len(sizes)] for k in range(n_tables)]
                cases = [
                    (t, kind, sizes[t], design, noise, 0.0, SIZE, False, k) for k, t in enumerate(chosen)
                ]
                most = (
                    "" if design in BAD else f"{np.mean([bound(t, kind, design, noise) for t in sizes]):.0%}"
                )
                rows.append([design, kind, f"{noise:.1%}", *shares(pool, cases), most])
    print_table(["design", "truth", "noise", *STATUSES, "bound"], rows)


PARTS: dict[str, Callable] = {"right": right, "wrong": wrong}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--designs", nargs="+", default=list(DESIGNS), metavar="BEGINNING")
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--noises", type=float, nargs="+", default=[0.003, 0.01])
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    asked = parser.parse_args()
    designs = [name for name in DESIGNS if name.startswith(tuple(asked.designs))]
    print(setting(), flush=True)
    with Pool(asked.processes) as pool:
        for part in asked.parts:
            PARTS[part](pool, designs, asked.tables, asked.noises)


if __name__ == "__main__":
    main()
