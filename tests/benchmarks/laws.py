"""Coverage, verdicts, optima and times of the scaling-law fits, on tables whose law is planted.

Run: python tests/benchmarks/laws.py [coverage near laws optimum refits time] [--tables 200] [--processes 2]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import zlib
from multiprocessing import Pool
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from analysis.planted_laws import BAD, GOOD, HELD_OUT, NEAR, TRUTHS, of_law, plant, plant_law, vector
from analysis.random_tables import random_table, scipys_gain
from benchmarks.setting import print_table, setting

from sweeplab.analysis.fit.fitting import LEAST_SQUARES, LITERATURE, fit
from sweeplab.analysis.fit.forms import LAWS, loss_at, optimum_of, parameters_of
from sweeplab.analysis.fit.intervals import bootstrap, profile, profiles, shared_of
from sweeplab.analysis.fit.verdicts import IDENTIFIED, gate, judge

CHINCHILLA = LAWS["chinchilla"]
NOISES = (0.003, 0.01, 0.02)
WATCHED = ("E", "alpha", "beta", "gamma", "N_opt exponent", "tokens per parameter", "loss at budget")
BEYOND = 10  # the budget of the loss, over the largest of the table
OBJECTIVES = {"auto": None, "1e-3": LITERATURE, "least squares": LEAST_SQUARES}
DESIGNS = GOOD | BAD | NEAR


def one_table(case) -> dict[str, tuple[bool, bool]]:
    """Return for every watched quantity whether its interval holds the truth, and whether it is identified."""
    name, design, truth, noise, shared, seed = case
    law, where = LAWS[name], DESIGNS[design]
    random = np.random.default_rng([seed, zlib.crc32(repr(case[:5]).encode())])
    points = (
        plant(truth, where, noise, random, shared)
        if law is CHINCHILLA
        else plant_law(law, truth, where, noise, random)
    )
    found = fit(points, law)
    errors = shared_of(points, found) if "params" in law.columns else None
    planted = (TRUTHS | HELD_OUT)[truth] if law is CHINCHILLA else of_law(law, truth)
    theta = vector(law, planted, found.center)
    budget = BEYOND * float(points.columns["flops"].max())
    quantities = parameters_of(law, found.center) + optimum_of(law, found.center, budget, 6.0)
    if not {"params", "tokens"} <= set(law.columns):
        beyond = {column: BEYOND * float(points.columns[column].max()) for column in law.columns}
        quantities.append(loss_at(law, found.center, beyond))
    told = {}
    for quantity, interval in zip(quantities, profiles(found, quantities, errors), strict=True):
        label = "loss at budget" if quantity.name == "loss at target" else quantity.name
        if label in WATCHED:
            true = float(quantity.measure(theta[None])[0][0])
            verdict = judge(quantity, interval, found, gate(quantity, points, found)).verdict
            told[label] = (interval.low <= true <= interval.high, verdict == IDENTIFIED)
    return told


def print_shares(pool, cases, n_tables: int) -> None:
    """Print a row a case (law, design, truths, noise, shared): covered / identified, in %."""
    rows, watched = [], [name for name in WATCHED if name != "gamma" or cases[0][0] != "chinchilla"]
    for law, design, truths, noise, shared in cases:
        each = [(law, design, truths[k % len(truths)], noise, shared, k) for k in range(n_tables)]
        told = pool.map(one_table, each, chunksize=5)
        shares = {name: 100 * np.mean([one[name] for one in told], axis=0) for name in told[0]}
        name = design + (f", errors {shared:.0%} shared by size" if shared else "")
        cells = [
            f"{shares[each][0]:.0f} / {shares[each][1]:.0f}" if each in shares else "" for each in watched
        ]
        rows.append([*([law] if law != "chinchilla" else []), name, f"{noise:.1%}", *cells])
    print_table([*(["law"] if cases[0][0] != "chinchilla" else []), "design", "noise", *watched], rows)


def coverage(pool, n_tables: int) -> None:
    print(f"\n{n_tables} tables a row, both truths in turn: covered by the 90% interval / identified, in %")
    print(f"the loss is that of the best use of {BEYOND} times the largest budget of the table\n")
    cases = [("chinchilla", name, (*TRUTHS,), noise, 0.0) for name in (*GOOD, *BAD) for noise in NOISES]
    for name in (*GOOD,)[:3]:
        cases += [("chinchilla", name, (*TRUTHS,), noise, 0.36) for noise in NOISES]
    print_shares(pool, cases, n_tables)


def near(pool, n_tables: int) -> None:
    print(f"\n{n_tables} tables a row, of five truths in turn, three of them never used to set the gate\n")
    truths = (*TRUTHS, *HELD_OUT)
    designs = (*NEAR, *(name for name in GOOD if not name.startswith("9")))
    cases = [("chinchilla", name, truths, noise, 0.0) for name in designs for noise in (0.003, 0.01)]
    print_shares(pool, cases, n_tables)


def laws(pool, n_tables: int) -> None:
    print(f"\n{n_tables} tables a row, both truths in turn: covered by the 90% interval / identified, in %")
    print("where a law has no optimum, the loss is that at 10 times its largest columns\n")
    cases = [
        (law, design, (*TRUTHS,), noise, 0.0)
        for law in LAWS
        if law != "chinchilla"
        for design in ("12 points, 4 x 3", "30 points, 6 x 5", "245 scattered")
        for noise in (0.003, 0.01, 0.02)
    ]
    print_shares(pool, cases, n_tables)


def one_optimum(case) -> tuple[float, int, int]:
    """Return the others' best gain over a fit, and the starts that reached the optimum."""
    law, delta, hops, starts, seed = case
    found = fit(random_table(seed), LAWS[law], delta)
    return scipys_gain(found, hops, starts), found.n_reached, found.n_starts


def optima(pool, n_tables: int) -> None:
    n_tables = min(n_tables, 100)
    print(
        f"\n{n_tables} random tables a row, half of them of bad design, against SciPy: basin hopping, 30 hops from"
    )
    print("the fit's own optimum, and L-BFGS-B from 1,000 random vectors, the best 5 of them to the end\n")
    rows = []
    for law, tables in (("chinchilla", n_tables), ("joint", n_tables // 4), ("kaplan", n_tables // 4)):
        for name, delta in OBJECTIVES.items():
            cases = [(law, delta, 30, 1000 if law == "chinchilla" else 100, seed) for seed in range(tables)]
            gains, reached, starts = np.array(pool.map(one_optimum, cases, chunksize=2)).T
            lower = f"{(gains > 1e-9).sum()} of {tables}"
            share = f"{reached.sum() / starts.sum():.0%}"
            rows.append([law, name, lower, f"{max(gains.max(), 0):.1e}", share])
    print_table(["law", "delta", "SciPy lower by over 1e-9", "largest gain", "starts at the optimum"], rows)


def one_bootstrap(case) -> float:
    """Return the share of 256 refits that missed their optimum; all of them are checked from all over the grid."""
    design, truth, noise, seed = case
    points = plant(truth, DESIGNS[design], noise, np.random.default_rng([seed, 3]))
    return bootstrap(fit(points, CHINCHILLA), 256, n_checked=256).missed


def refits(pool, n_tables: int) -> None:
    n_tables = max(2, n_tables // 20)
    print(
        f"\nof 256 bootstrap refits of each of {n_tables} tables a cell, the share that missed its optimum\n"
    )
    rows = []
    for design in (*GOOD, *BAD):
        cells = []
        for noise in NOISES:
            cases = [(design, list(TRUTHS)[k % 2], noise, k) for k in range(n_tables)]
            cells.append(f"{np.mean(pool.map(one_bootstrap, cases, chunksize=1)):.2%}")
        rows.append([design, *cells])
    print_table(["design", *(f"noise {noise:.1%}" for noise in NOISES)], rows)


def times() -> None:
    rows = []
    for design in ("9 points, 3 x 3", "30 points, 6 x 5", "245 scattered"):
        points = plant("steep", GOOD[design], 0.01, np.random.default_rng(0))
        found = fit(points, CHINCHILLA)
        alpha = parameters_of(CHINCHILLA, found.center)[2]
        spent = [f"{1e3 * _median(work):.0f} ms" for work in _works(points, found, alpha)]
        start = time.perf_counter()
        missed = bootstrap(found, 4000).missed
        rows.append([design, *spent, f"{time.perf_counter() - start:.1f} s", f"{missed:.1%}"])
    print(
        "\nfits and profiles on one thread, refits on all cores; they start from the optimum and three more\n"
    )
    print_table(["design", "fit", "profile of alpha", "4,000 bootstrap refits", "missed"], rows)


def _works(points, found, alpha):
    return (lambda: fit(points, CHINCHILLA)), (lambda: profile(found, alpha))


def _median(work) -> float:
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def main() -> None:
    parts = {"coverage": coverage, "near": near, "laws": laws, "optimum": optima, "refits": refits}
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", default=[*parts, "time"])
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    asked = parser.parse_args()
    print(setting(), flush=True)
    if "time" in asked.parts:
        times()
    with Pool(asked.processes) as pool:
        for name, part in parts.items():
            if name in asked.parts:
                part(pool, asked.tables)


if __name__ == "__main__":
    main()
