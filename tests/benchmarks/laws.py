"""Coverage, verdicts, optima and times of the scaling-law fits, on tables whose law is planted.

Run: python tests/benchmarks/laws.py [coverage optimum time] [--tables 200] [--noises 0.003 0.01 0.02] [--processes 2]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from multiprocessing import Pool
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from analysis.planted_laws import BAD, GOOD, TRUTHS, plant
from analysis.test_laws_fit import scipys_gain
from benchmarks.setting import print_table, setting

from sweeplab.analysis.laws.bootstrap import bootstrap
from sweeplab.analysis.laws.fitting import LEAST_SQUARES, LITERATURE, fit
from sweeplab.analysis.laws.forms import LAWS
from sweeplab.analysis.laws.groups import shared_errors, sizes_as_groups
from sweeplab.analysis.laws.intervals import profile
from sweeplab.analysis.laws.quantities import optimum_of, parameters_of
from sweeplab.analysis.laws.verdicts import IDENTIFIED, gate, judge

CHINCHILLA = LAWS["chinchilla"]
WATCHED = ("E", "alpha", "beta", "N_opt exponent", "loss at budget")
BEYOND = 10  # the budget of the loss, over the largest of the table


def one_table(case) -> list[tuple[bool, bool]]:
    """Return for every watched quantity whether its interval holds the truth, and whether it is identified."""
    design, truth, noise, shared, seed = case
    points = plant(truth, (GOOD | BAD)[design], noise, np.random.default_rng([seed, 1]), shared)
    found = fit(points, CHINCHILLA)
    groups = sizes_as_groups(points.columns["params"])
    errors = shared_errors(found, groups) if groups else None
    planted = [TRUTHS[truth][name] for name in CHINCHILLA.parameters]
    for at, term in ((1, "params"), (3, "tokens")):
        planted[at] *= np.exp(-planted[at + 1] * found.centre[term])
    theta = np.array([np.log(planted[0]), np.log(planted[1]), planted[2], np.log(planted[3]), planted[4]])
    budget = BEYOND * float(points.columns["flops"].max())
    told = []
    for quantity in parameters_of(CHINCHILLA, found.centre) + optimum_of(
        CHINCHILLA, found.centre, budget, 6.0
    ):
        if quantity.name in WATCHED:
            interval = profile(found, quantity, errors)
            true = float(quantity.measure(theta[None])[0][0])
            verdict = judge(quantity, interval, found, gate(quantity, points, found)).verdict
            told.append((interval.low <= true <= interval.high, verdict == IDENTIFIED))
    return told


def coverage(pool, n_tables: int, noises: list[float]) -> None:
    designs = [(name, 0.0) for name in (*GOOD, *BAD)] + [
        ("30 points, 6 x 5", 0.36),
        ("12 points, 4 x 3", 0.36),
    ]
    print(f"\n{n_tables} tables a row, both truths in turn: covered by the 90% interval / identified, in %")
    print(f"the loss is that of the best use of {BEYOND} times the largest budget of the table\n")
    rows = []
    for design, shared in designs:
        for noise in noises:
            cases = [(design, list(TRUTHS)[k % 2], noise, shared, k) for k in range(n_tables)]
            shares = 100 * np.mean(pool.map(one_table, cases, chunksize=5), axis=0)
            name = design + (", errors 36% shared by size" if shared else "")
            rows.append([name, f"{noise:.1%}", *(f"{held:.0f} / {told:.0f}" for held, told in shares)])
    print_table(["design", "noise", *WATCHED], rows)


def one_optimum(case) -> tuple[float, int, int]:
    """Return SciPy's gain over a fit, and the starts that reached the optimum."""
    design, truth, law, delta, seed = case
    random = np.random.default_rng([seed, 2])
    points = plant(truth, (GOOD | BAD)[design], float(random.uniform(0.003, 0.02)), random)
    found = fit(points, LAWS[law], delta)
    return scipys_gain(found, 60), found.n_reached, found.n_starts


def optima(pool, n_tables: int) -> None:
    print(f"\n{n_tables} tables a row, every design in turn, against 60 hops of scipy's basin-hopping\n")
    rows, designs = [], [*GOOD, *BAD]
    for law in ("chinchilla", "joint", "kaplan"):
        for name, delta in (("auto", None), ("1e-3", LITERATURE), ("least squares", LEAST_SQUARES)):
            cases = [(designs[k % 7], list(TRUTHS)[k % 2], law, delta, k) for k in range(n_tables)]
            gains, reached, starts = np.array(pool.map(one_optimum, cases, chunksize=2)).T
            lower = f"{(gains > 1e-9).sum()} of {n_tables}"
            rows.append(
                [law, name, lower, f"{max(gains.max(), 0):.1e}", f"{reached.sum() / starts.sum():.0%}"]
            )
    print_table(["law", "delta", "SciPy lower by over 1e-9", "largest gain", "starts at the optimum"], rows)


def times() -> None:
    rows = []
    for design in ("9 points, 3 x 3", "30 points, 6 x 5", "245 scattered"):
        points = plant("steep", GOOD[design], 0.01, np.random.default_rng(0))
        spent = []
        for work in (
            lambda: fit(points, CHINCHILLA),  # noqa: B023
            lambda: profile(found, parameters_of(CHINCHILLA, found.centre)[2]),  # noqa: B023
        ):
            found = fit(points, CHINCHILLA)
            seconds = []
            for _ in range(5):
                start = time.perf_counter()
                work()
                seconds.append(time.perf_counter() - start)
            spent.append(f"{1e3 * np.median(seconds):.0f} ms")
        start = time.perf_counter()
        refits = bootstrap(found, 4000)
        rows.append([design, *spent, f"{time.perf_counter() - start:.1f} s", f"{refits.missed:.1%}"])
    print("\none thread; the refits start from the optimum and three more; missed: on the first 64\n")
    print_table(["design", "fit", "profile of alpha", "4,000 bootstrap refits", "missed"], rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", default=["coverage", "optimum", "time"])
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--noises", type=float, nargs="+", default=[0.003, 0.01, 0.02])
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    asked = parser.parse_args()
    print(setting(), flush=True)
    if "time" in asked.parts:
        times()
    with Pool(asked.processes) as pool:
        if "coverage" in asked.parts:
            coverage(pool, asked.tables, asked.noises)
        if "optimum" in asked.parts:
            optima(pool, asked.tables)


if __name__ == "__main__":
    main()
