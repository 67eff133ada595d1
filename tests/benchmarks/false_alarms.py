"""Measure how often identical cells are called different, and how often a planted difference is found.

A study has a false alarm where any two of its cells, all of one mean, are called different. Trials differ by `--spread`
times what a seed does. Noise is equal, or its standard deviation differs between cells: it is 4 times as large in one
cell, in half of them, or grows from cell to cell up to that. Power is the share of a cell's differences that are found
where that cell alone lies lower by `--shift` standard deviations of a best trial's mean loss under equal noise. With
one seed no difference is ever called; its rows stand here to show that.

Run: python tests/benchmarks/false_alarms.py [--studies 500] [--cells 6 14] [--trials 1 2 4 8] [--spread 2] [--shift 6]
[--seed 1] [--processes 1]
"""

import argparse
import math
import os
import sys
from itertools import combinations
from multiprocessing import Pool
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
sys.path[0] = str(Path(__file__).parents[1])  # not this folder, which has a laws.py

import numpy as np
from benchmarks.setting import print_table, setting
from laws.planted_cells import NOISES, SEED_SD, plant_cells

from sweeplab.laws.comparing import compare

TRIALS, SEEDS = (1, 2, 4, 8), (1, 3)


def row(job):
    """Return the rates for a number of cells, trials and seeds: a false alarm by the noise, and the power."""
    n_cells, n_trials, n_seeds, n_studies, spread, shift, seed = job
    pairs = list(combinations(range(n_cells), 2))
    spread = spread * SEED_SD if n_trials > 1 else 0.0
    how = {"n_cells": n_cells, "n_trials": n_trials, "n_seeds": n_seeds, "spread": spread}
    found = [str(n_cells), str(n_trials), str(n_seeds)]
    for noise in NOISES:
        random = np.random.default_rng(seed)
        studies = (plant_cells(random, noise=noise, **how) for _ in range(n_studies))
        rate = float(np.mean([compare(cells, pairs).significant.any() for cells in studies]))
        found.append(f"{rate:.1%} ({math.sqrt(rate * (1 - rate) / n_studies):.1%})")
    random = np.random.default_rng(2)
    draws = math.hypot(spread, SEED_SD / math.sqrt(n_seeds)) * random.standard_normal(
        (20_000, n_trials)
    )
    lower = {0: -shift * float(draws.min(1).std())}
    studies = (plant_cells(random, shifts=lower, **how) for _ in range(n_studies // 2))
    power = np.mean(
        [compare(cells, pairs).significant[: n_cells - 1].mean() for cells in studies]
    )
    return [*found, f"{power:.0%}"]


def main(
    studies,
    cells,
    trials,
    spread,
    shift,
    seed,
    processes,
):
    """Print the table."""
    jobs = [
        (n, m, seeds, studies, spread, shift, seed)
        for n in cells
        for m in trials
        for seeds in SEEDS
    ]
    with Pool(processes) as pool:
        rows = pool.map(row, jobs, chunksize=1)
    power = f"power, {shift:g} sd lower"
    print_table(
        ("cells", "trials", "seeds", *(f"noise: {each}" for each in NOISES), power), rows
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--studies", type=int, default=500)
    parser.add_argument("--cells", type=int, nargs="+", default=[6, 14])
    parser.add_argument("--trials", type=int, nargs="+", default=[*TRIALS])
    parser.add_argument("--spread", type=float, default=2.0)
    parser.add_argument("--shift", type=float, default=6.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    print(setting())
    main(**vars(parser.parse_args()))
