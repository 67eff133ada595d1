"""Measure what 90% intervals of laws hold, and how often forms are flagged, on planted tables.

Run: python tests/benchmarks/coverage.py [coverage path forms isoflop next] [--tables 100] [--seed 5000]
[--designs 12 30]
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
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from benchmarks.setting import print_table, setting
from laws.planted_budgets import DESIGNS, drifting, exponent
from laws.planted_laws import EQUAL, FALLS, GOOD, HEAVY, HELD_OUT, TRUTHS, losses, plant, values_of
from laws.planted_misfit import WRONG, wrong_table
from laws.planted_paths import plant_path

from sweeplab.laws.assessment import assess
from sweeplab.laws.check import FLAGGED, misfit
from sweeplab.laws.core import interval
from sweeplab.laws.fitting import fit
from sweeplab.laws.forecasts import predict
from sweeplab.laws.forms import LAWS, log_n_opt, optimum_of, parameters_of
from sweeplab.laws.isoflop import isoflop
from sweeplab.laws.next_runs import find_quantity, next_runs, of_points, spent
from sweeplab.laws.points import EACH, Points

CHINCHILLA = LAWS["chinchilla"]
WORLDS = {
    "equal": (EQUAL, 0.0),
    "falls with D": (FALLS, 0.0),
    "t3": (HEAVY, 0.0),
    "36% shared": (EQUAL, 0.36),
}
NUMBERS = ("E", "alpha", "beta", "tokens per parameter")
TIMES = (3, 10)


def one_table(case) -> list[int]:
    """Return for each number and forecast: 0 if its interval holds the truth, -1 if the truth is below, 1 above."""
    design, truth, noise, kind, shared, seed = case
    random = np.random.default_rng([seed, zlib.crc32(repr(case[:5]).encode())])
    points = plant(truth, GOOD[design], noise, random, shared, kind)
    planted = (TRUTHS | HELD_OUT)[truth]
    found, true = fit(points, CHINCHILLA), values_of(planted)
    budget = 10 * float(points.columns["flops"].max())
    quantities = parameters_of(CHINCHILLA) + optimum_of(CHINCHILLA, budget, 6.0)
    sides = []
    for quantity in quantities:
        if quantity.name in NUMBERS:
            _, low, high = interval(quantity.measure(found.values))
            value = float(quantity.measure(true)[0])
            sides.append((value > high) - (value < low))
    for times in TIMES:
        n, d = best_run(true, times * budget / 10)
        _, low, high = interval(np.log(found.loss({"params": np.array([n]), "tokens": np.array([d])}))[:, 0])
        value = math.log(losses(planted, np.array([n]), np.array([d]))[0])
        sides.append((value > high) - (value < low))
    return sides


def best_run(true, budget: float) -> tuple[float, float]:
    """Return N_opt and D_opt of a truth at a budget."""
    log_nd = math.log(budget / 6)
    n = math.exp(float(log_n_opt(CHINCHILLA, true, log_nd)[0]))
    return n, math.exp(log_nd) / n


def coverage(pool, n_tables: int, seed: int, designs) -> None:
    """Print a row a design and world: held, and the truth below and above, in %."""
    truths, rows = (*TRUTHS, *[*HELD_OUT][1:]), []
    for design in [name for name in GOOD if name.startswith(tuple(designs))]:
        for world, (kind, shared) in WORLDS.items():
            if shared and design.startswith("245"):
                continue  # no two of its rows have one size
            sides, cells = [], []
            for truth in truths:
                for noise in (0.003, 0.01):
                    cases = [(design, truth, noise, kind, shared, seed + at) for at in range(n_tables)]
                    of_cell = np.array(pool.map(one_table, cases, chunksize=5))
                    sides.append(of_cell)
                    cells.append((of_cell == 0).mean(0))
            every = np.concatenate(sides)
            texts = [
                f"{100 * (every[:, at] == 0).mean():.0f} ({100 * (every[:, at] < 0).mean():.0f}, "
                f"{100 * (every[:, at] > 0).mean():.0f})"
                for at in range(every.shape[1])
            ]
            rows.append([design, world, *texts, f"{100 * np.min(cells):.0f}"])
    print_table(["design", "noise", *NUMBERS, *(f"loss at {times}x" for times in TIMES), "lowest cell"], rows)


def one_path(case) -> list[float]:
    """Return whether alpha is held and identified, and whether forecasts at 3 and 10 times the compute hold."""
    n_sizes, jitter, seed = case
    random, truth = np.random.default_rng([seed, n_sizes]), (1.2, 60.0, 0.45)
    assessed = assess(plant_path(n_sizes, jitter, truth, random), LAWS["power-n"])
    alpha = next(each for each in assessed.estimates if each.quantity.name == "alpha")
    told = [alpha.low < truth[2] < alpha.high, alpha.verdict.verdict == "identified"]
    for times in TIMES:
        n = 1.6e5 * math.sqrt(times)
        said = predict(assessed, {"params": n})
        told.append(said.low < truth[0] + truth[1] * n ** -truth[2] < said.high)
    return told


def path(pool, n_tables: int, seed: int, designs) -> None:
    """Print the shares for tables along a path, tokens 20 a parameter."""
    rows = []
    for n_sizes in (5, 6, 8):
        for jitter in (0.0, 0.06):
            cases = [(n_sizes, jitter, seed + at) for at in range(n_tables)]
            shares = 100 * np.mean(pool.map(one_path, cases, chunksize=2), axis=0)
            rows.append([str(n_sizes), f"{jitter:.0%}", *(f"{share:.0f}" for share in shares)])
    print_table(["sizes", "off the path", "alpha held", "identified", "3x held", "10x held"], rows)


def one_form(case) -> bool:
    """Return whether a table's form is flagged."""
    kind, size, design, noise, shared, seed = case
    random, truth = np.random.default_rng([seed, 21]), [*TRUTHS][seed % 2]
    if kind:
        points = wrong_table(truth, kind, size, GOOD[design], noise, random)
    else:
        points = plant(truth, GOOD[design], noise, random, shared)
    return misfit(points, fit(points, CHINCHILLA)).status == FLAGGED


def forms(pool, n_tables: int, seed: int, designs) -> None:
    """Print how often right forms and wrong ones are flagged."""
    rows = []
    for design in [name for name in GOOD if name.startswith(tuple(designs))]:
        worlds = [("", 0.0, 0.0), ("", 0.0, 0.36), *((kind, 0.3, 0.0) for kind in WRONG)]
        worlds = [(kind, 0.03 if "interaction" in kind else size, shared) for kind, size, shared in worlds]
        for kind, size, shared in worlds:
            cases = [(kind, size, design, 0.004, shared, seed + at) for at in range(n_tables)]
            name = kind or f"right, {shared:.0%} shared by size"
            rows.append([design, name, f"{100 * np.mean(pool.map(one_form, cases, chunksize=5)):.0f}"])
    print_table(["design", "truth", "flagged"], rows)


def one_isoflop(case) -> bool | None:
    """Return whether the interval of N_opt's exponent holds; None without a number."""
    design, seed = case
    truth = [*TRUTHS][seed % 2]
    number = isoflop(drifting(truth, DESIGNS[design], 0.003, np.random.default_rng(seed))).numbers
    ends = number["N_opt exponent"]
    return None if ends["low"] is None else ends["low"] <= exponent(truth) <= ends["high"]


def isoflops(pool, n_tables: int, seed: int, designs) -> None:
    """Print how often the interval of N_opt's exponent from curves at equal FLOPs holds."""
    rows = []
    for design in DESIGNS:
        told = pool.map(one_isoflop, [(design, seed + at) for at in range(n_tables)], chunksize=5)
        seen = [held for held in told if held is not None]
        share = f"{100 * np.mean(seen):.0f}" if seen else "none"
        rows.append([design, share, f"{len(seen)} of {n_tables}"])
    print_table(["design", "held", "with a number"], rows)


def one_promise(seed: int) -> float:
    """Return the half width of a number after the chosen runs are made, over the promised one."""
    truth = [*TRUTHS][seed % 2]
    design = ("12 points, 4 x 3", "30 points, 6 x 5")[seed // 2 % 2]
    points = plant(truth, GOOD[design], 0.005, np.random.default_rng([seed, 4]))
    assessed, budget = assess(points, CHINCHILLA), spent(points) / 2
    quantity = find_quantity(assessed, None)
    chosen = next_runs(assessed, quantity, of_points(points, budget), budget)
    rows = np.repeat(np.arange(len(chosen.counts)), chosen.counts.astype(int))
    new = {name: column[rows] for name, column in chosen.candidates.columns.items()}
    noise = np.exp(0.005 * np.random.default_rng([seed, 5]).standard_normal(len(rows)))
    new["loss"] = losses(TRUTHS[truth], new["params"], new["tokens"]) * noise
    columns = {name: np.append(column, new[name]) for name, column in points.columns.items()}
    refitted = fit(Points(columns, np.ones(points.n + len(rows)), tuned=EACH), CHINCHILLA)
    _, low, high = interval(quantity.measure(refitted.values))
    return (high - low) / 2 / chosen.then


def promises(pool, n_tables: int, seed: int, designs) -> None:
    """Print how often the promise of the next runs is kept within a factor 1.25."""
    ratios = np.array(pool.map(one_promise, range(seed, seed + n_tables), chunksize=2))
    print_table(
        ["tables", "realized at most 1.25 times", "median"],
        [[str(n_tables), f"{100 * (ratios <= 1.25).mean():.0f}%", f"{np.median(ratios):.2f}"]],
    )


def main() -> None:
    parts = {"coverage": coverage, "path": path, "forms": forms, "isoflop": isoflops, "next": promises}
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", default=[*parts])
    parser.add_argument("--tables", type=int, default=100)
    parser.add_argument("--seed", type=int, default=5000)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--designs", nargs="+", default=["12", "30", "245"], metavar="BEGINNING")
    asked = parser.parse_args()
    print(setting(), flush=True)
    with Pool(asked.processes) as pool:
        for name in asked.parts:
            print(f"\n{name}, {asked.tables} tables a cell, in %", flush=True)
            parts[name](pool, asked.tables, asked.seed, asked.designs)


if __name__ == "__main__":
    main()
