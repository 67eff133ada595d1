"""Measure how often the intervals of hyperparameter laws hold planted optima, exponents and predictions.

Run: python tests/benchmarks/hyperparameter_laws.py [--tables 40] [--first 0] [--processes 2] [--only NAME]

Worlds are those of tests/laws/planted_tuning.py. The quartic ones have 17 cells, with predictions for the four of most
compute by the laws of the others; the others are grids of N and D, with predictions for 3 to 10 times the compute. The
split is of a table like published ones: laws of the cells with at most a tenth of the largest compute predict the
others; copying takes the best run of the largest small cell. `--first` takes other tables.
"""

import argparse
import os
import sys
import zlib
from collections import defaultdict
from multiprocessing import Pool
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
sys.path[0] = str(Path(__file__).parents[1])  # not this folder, which has a laws.py

import numpy as np
from benchmarks.setting import print_table, setting
from laws.planted_tuning import (
    BATCH,
    QUARTIC,
    RATE,
    World,
    dense,
    law_at,
    planted,
    published_like,
)

from sweeplab.errors import BadInput
from sweeplab.laws.core import interval
from sweeplab.laws.hyperparameters.assessment import assess_hyperparameters
from sweeplab.laws.hyperparameters.runs import runs_of_frame

WORLDS = {
    "12 cells": World(),
    "12 cells, no scatter": World(scatter=0.0),
    "12 cells, noise 1%": World(noise=0.01),
    "12 cells, noise 2%": World(noise=0.02),
    "12 cells, scatter 0.3": World(scatter=0.3),
    "6 cells": World(3, 2),
    "30 cells": World(6, 5),
    "12 cells, learning rate only": World(searched=1),
    "12 cells, 8 random trials each": World(random=8, noise=0.004),
    "30 cells, 4 random trials each": World(6, 5, random=4, noise=0.004),
    "no law": World(kind="none"),
    "mild kink": World(kind="mild kink"),
    "kink": World(kind="kink"),
    "bimodal": World(kind="bimodal"),
    "learning rates end half a step below the best": World(edge=np.log(2) / 4),
    "learning rates end at half of the best": World(edge=np.log(2)),
}
HELD_OUT = 4
NAMES = ("learning_rate", "batch_size")


def held(draws, truth):
    _, low, high = interval(draws)
    return low <= truth <= high


def place(size):
    return dict(zip(("params", "tokens"), map(float, np.log(size)), strict=True))


def shared(found, laws, table, exponents):
    """Note the optima of cells and the exponents that intervals hold; `exponents` are of N and D by value."""
    surface = laws.surface
    for name, searched in laws.searched.items():
        j = NAMES.index(name)
        for c, size in enumerate(table.sizes):
            there = np.argmin(np.abs(surface.runs.logs - np.log(size)).sum(axis=1))
            if not searched.edges[there]:
                found["cells"].append(
                    held(surface.optima[:, there, searched.j], table.optima[c, j])
                )
        for k in range(len(surface.sizes)):
            draws = surface.exponents[:, k, searched.j]
            found["exponents"].append(held(draws, exponents[j][k]))
            found["half width"].append(float(np.subtract(*interval(draws)[:0:-1])) / 2)
        verdicts = [
            entry["verdict"] for key, entry in searched.numbers.items() if "exponent" in key
        ]
        found["identified"] += [verdict == "identified" for verdict in verdicts]


def one_table(case):
    """Return what was held, and the regrets, of one table."""
    world, found = WORLDS[case[0]], defaultdict(list)
    table = planted(world, zlib.crc32(repr(case).encode()))
    try:
        laws = assess_hyperparameters(runs_of_frame(table.frame, "table"))
    except BadInput:
        return {"refused": [1.0]}
    found["refused"].append(0.0)
    middle = np.sqrt(table.sizes[:, 0].min() * table.sizes[:, 0].max())
    exponents = np.zeros((2, 2))
    for k in range(2):
        ends = np.stack([table.sizes.min(axis=0), table.sizes.max(axis=0)])
        ends[:, 1 - k] = ends[0, 1 - k]
        exponents[:, k] = np.diff(law_at(ends, world.kind, middle), axis=0)[0] / np.diff(
            np.log(ends[:, k])
        )
    shared(found, laws, table, exponents)
    random = np.random.default_rng([case[1], 7])
    size = table.sizes.max(axis=0) * 2.0 * random.uniform(0.87, 1.58, 2)
    truth = law_at(size[None], world.kind, middle)[0] + world.scatter * random.normal(size=2)
    best = laws.surface.optimum(place(size))
    at = [NAMES.index(name) for name in laws.searched]
    found["predicted"] = [held(best[:, k], truth[j]) for k, j in enumerate(at)]
    if len(at) == world.searched:
        away = np.median(best, axis=0) - truth[at]
        found["regret"] = [float(away @ table.bend @ away) / 2]
    return dict(found)


def one_quartic(case):
    """Return what was held, and the regrets in the cells that were fitted and in those that were held out."""
    table, found = dense(case[1], case[0]), defaultdict(list)
    largest = np.argsort(table.sizes.prod(axis=1))[-HELD_OUT:]
    out = table.frame.set_index(["N", "D"]).index.isin([tuple(table.sizes[c]) for c in largest])
    laws, fewer = (
        assess_hyperparameters(runs_of_frame(frame, "table"))
        for frame in (table.frame, table.frame[~out])
    )
    shared(found, laws, table, (RATE[1:], BATCH[1:]))
    for c, size in enumerate(table.sizes):
        values = np.median(laws.surface.optimum(place(size), scatters=False), axis=0)
        found["regret"].append(table.regret(c, values))
    for c in largest:
        best = fewer.surface.optimum(place(table.sizes[c]))
        found["regret held out"].append(table.regret(c, np.median(best, axis=0)))
        found["predicted"] += [held(best[:, j], table.optima[c, j]) for j in range(2)]
    return dict(found)


def one_split(case):
    """Return what a law of the small cells of a published-like table holds and costs in the large ones."""
    table, small = published_like(zlib.crc32(repr(case).encode()), float(case[0]))
    index = table.frame.set_index(["N", "D"]).index
    is_small = index.isin([tuple(size) for size in table.sizes[small]])
    surface = assess_hyperparameters(runs_of_frame(table.frame[is_small], "table")).surface
    largest = np.flatnonzero(small)[np.argmax(table.sizes[small].prod(axis=1))]
    runs = table.frame[index.isin([tuple(table.sizes[largest])])]
    copied = np.log(runs.loc[runs["loss"].idxmin(), ["lr", "bs"]].to_numpy(float))
    found = {"predicted": [], "regret": [], "copying": []}
    for c in np.flatnonzero(~small):
        best = surface.optimum(place(table.sizes[c]))
        found["predicted"] += [held(best[:, j], table.optima[c, j]) for j in range(2)]
        found["regret"].append(table.regret(c, np.median(best, axis=0)))
        found["copying"].append(table.regret(c, copied))
    return found


COLUMNS = ("refused", "cells", "exponents", "predicted", "identified")
REGRETS = ("regret", "regret held out", "copying")


def row(name, results):
    """Return a row of the table."""
    found = {
        key: np.concatenate([each.get(key, []) for each in results])
        for each in results
        for key in each
    }
    shares = [f"{found[key].mean():.0%}" if len(found.get(key, ())) else "–" for key in COLUMNS]
    width = f"{np.median(found['half width']):.3f}" if "half width" in found else "–"
    regrets = [
        f"{found[key].mean():.4%}" if len(found.get(key, ())) else "–" for key in REGRETS
    ]
    return [name, *shares, width, *regrets]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=40)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    print(f"{setting()}; {asked.tables} tables of each kind\n")
    cases = [(name, f"quartic, {name}", one_quartic) for name in QUARTIC]
    cases += [(name, name, one_table) for name in WORLDS]
    cases += [
        (scatter, f"split, scatter {scatter}", one_split) for scatter in ("0.05", "0.1", "0.15")
    ]
    rows = []
    with Pool(asked.processes) as pool:
        for key, name, measure in cases:
            if asked.only in name:
                seeds = range(asked.first, asked.first + asked.tables)
                rows.append(
                    row(name, pool.map(measure, [(key, seed) for seed in seeds], chunksize=1))
                )
                print(rows[-1], file=sys.stderr, flush=True)
    print_table(["world", *COLUMNS, "half width of exponents", *REGRETS], rows)


if __name__ == "__main__":
    main()
