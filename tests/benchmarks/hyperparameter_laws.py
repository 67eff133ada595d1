"""Measure how often the intervals of `laws hyperparameters` hold planted optima, exponents and predictions.

Run: python tests/benchmarks/hyperparameter_laws.py [--tables 40] [--processes 2] [--only NAME]

In each world (tests/laws/planted_tuning.py) optima follow a law of N and D with scatter between cells; predictions are
for cells of 3 to 10 times the compute of the largest. The split is of a table like published ones: laws of the cells
with at most a tenth of the largest compute predict the others; copying takes the best run of the largest small cell.
"""

import argparse
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
from laws.planted_tuning import World, law_at, planted, published_like

from sweeplab.errors import BadInput
from sweeplab.laws.hyperparameters.assessment import assess_hyperparameters
from sweeplab.laws.hyperparameters.runs import runs_of_frame

WORLDS = {
    "12 cells": World(),
    "12 cells, no scatter": World(scatter=0.0),
    "12 cells, noise 0.1%": World(noise=0.001),
    "12 cells, noise 1%": World(noise=0.01),
    "12 cells, noise 2%": World(noise=0.02),
    "12 cells, scatter 0.3": World(scatter=0.3),
    "4 cells": World(2, 2),
    "6 cells": World(3, 2),
    "30 cells": World(6, 5),
    "12 cells, learning rate only": World(searched=1),
    "12 cells, 8 random trials each": World(random=8, noise=0.004),
    "30 cells, 4 random trials each": World(6, 5, random=4, noise=0.004),
    "no law": World(kind="none"),
    "mild kink": World(kind="mild kink"),
    "mild kink, noise 1%": World(kind="mild kink", noise=0.01),
    "kink": World(kind="kink"),
    "bimodal": World(kind="bimodal"),
    "learning rates end half a step below the best": World(edge=np.log(2) / 4),
    "learning rates end at half of the best": World(edge=np.log(2)),
}


def one_table(case: tuple[str, int]) -> dict[str, list[float]]:
    """Return what was held, and the regrets, of one table."""
    world = WORLDS[case[0]]
    table = planted(world, zlib.crc32(repr(case).encode()))
    found: dict[str, list[float]] = {}
    try:
        laws = assess_hyperparameters(runs_of_frame(table.frame, "table"))
    except BadInput:
        return {"refused": [1.0]}
    random = np.random.default_rng([case[1], 7])
    beyond = np.array([2.0, 2.0]) * random.uniform(0.87, 1.58, 2)
    size = table.sizes.max(axis=0) * beyond
    place = {"params": float(np.log(size[0])), "tokens": float(np.log(size[1]))}
    middle = np.sqrt(table.sizes[:, 0].min() * table.sizes[:, 0].max())
    truth = law_at(size[None], world.kind, middle)[0] + world.scatter * random.normal(size=2)
    order = np.lexsort(np.log(table.sizes).T[::-1])
    predicted = []
    for name, searched in laws.searched.items():
        j = ("learning_rate", "batch_size").index(name)
        for c, cell in zip(order, searched.cells, strict=True):
            if cell.side == 0:
                optimum = table.optima[c, j]
                found.setdefault("cells", []).append(np.log(cell.low) <= optimum <= np.log(cell.high))
                if cell.alone:
                    found.setdefault("alone", []).append(
                        np.log(cell.alone[1]) <= optimum <= np.log(cell.alone[2])
                    )
        verdicts = [
            entry["verdict"] == "identified" for key, entry in searched.numbers.items() if "exp" in key
        ]
        key = "identified on an edge" if j == 0 and world.edge is not None else "identified"
        found.setdefault(key, []).extend(verdicts or [False])
        if not searched.laws:
            continue
        law = searched.laws[0]
        for at, number in enumerate(law.line.exponents()):
            ends = np.stack([table.sizes.min(axis=0), table.sizes.max(axis=0)])
            ends[:, 1 - at] = ends[0, 1 - at]
            true = np.diff(law_at(ends, world.kind, middle)[:, j])[0] / np.diff(np.log(ends[:, at]))[0]
            low, high = number.interval()
            found.setdefault("exponents", []).append(low <= true <= high)
            found.setdefault("half width", []).append((high - low) / 2)
        mixture = searched.optimum(place)
        low, high = mixture.interval()
        found.setdefault("predicted", []).append(low <= truth[j] <= high)
        predicted.append(mixture.mean)
        found.setdefault("bent", []).append(min(law.bent.values(), default=1.0) < 0.025)
    if len(predicted) == world.searched:
        away = np.array(predicted) - truth[: world.searched]
        found["regret"] = [float(away @ table.bend @ away) / 2]
    return found


def one_split(case: tuple[str, int]) -> dict[str, list[float]]:
    """Return what a law of the small cells of a published-like table holds and costs in the large ones."""
    scatter = float(case[0])
    table, small = published_like(zlib.crc32(repr(case).encode()), scatter)
    is_small = table.frame.set_index(["N", "D"]).index.isin([tuple(size) for size in table.sizes[small]])
    laws = assess_hyperparameters(runs_of_frame(table.frame[is_small], "table"))
    copied = _copied(table, small, is_small)
    found: dict[str, list[float]] = {"lr held": [], "bs held": [], "regret": [], "copying": []}
    for c in np.flatnonzero(~small):
        place = {"params": float(np.log(table.sizes[c, 0])), "tokens": float(np.log(table.sizes[c, 1]))}
        values = []
        for j, (name, of) in enumerate((("lr", "learning_rate"), ("bs", "batch_size"))):
            mixture = laws.searched[of].optimum(place)
            low, high = mixture.interval()
            found[f"{name} held"].append(low <= table.optima[c, j] <= high)
            values.append(mixture.mean)
        found["regret"].append(table.regret(c, np.array(values)))
        found["copying"].append(table.regret(c, copied))
    return found


def _copied(table, small: np.ndarray, is_small: np.ndarray) -> np.ndarray:
    largest = np.flatnonzero(small)[np.argmax(table.sizes[small].prod(axis=1))]
    runs = table.frame[is_small & (table.frame["N"] == table.sizes[largest, 0]).to_numpy()]
    runs = runs[runs["D"] == table.sizes[largest, 1]]
    return np.log(runs.loc[runs["loss"].idxmin(), ["lr", "bs"]].to_numpy(float))


def joined(results: list[dict[str, list[float]]]) -> dict[str, np.ndarray]:
    names = dict.fromkeys(name for result in results for name in result)
    return {name: np.concatenate([result.get(name, []) for result in results]) for name in names}


def share(found: dict[str, np.ndarray], name: str) -> str:
    return f"{np.mean(found[name]):.0%}" if len(found.get(name, ())) else "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=40)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    print(f"{setting()}; {asked.tables} tables of each kind\n")
    columns = (
        "cells",
        "alone",
        "exponents",
        "predicted",
        "identified",
        "identified on an edge",
        "bent",
        "refused",
    )
    rows, splits = [], []
    with Pool(asked.processes) as pool:
        for name in [name for name in WORLDS if asked.only in name]:
            found = joined(pool.map(one_table, [(name, seed) for seed in range(asked.tables)], chunksize=1))
            width = f"{np.median(found['half width']):.3f}" if "half width" in found else "–"
            regret = f"{np.mean(found['regret']):.3%}" if "regret" in found else "–"
            rows.append([name, *(share(found, column) for column in columns), width, regret])
            print(rows[-1], file=sys.stderr, flush=True)
        for scatter in ("0.05", "0.1", "0.15") if asked.only in "split" else ():
            found = joined(
                pool.map(one_split, [(scatter, seed) for seed in range(asked.tables)], chunksize=1)
            )
            ratio = f"{np.mean(found['regret']) / np.mean(found['copying']):.3f}"
            regrets = [f"{how(found['regret']):.3%}" for how in (np.mean, np.max)]
            splits.append(
                [
                    scatter,
                    share(found, "lr held"),
                    share(found, "bs held"),
                    *regrets,
                    f"{np.mean(found['copying']):.2%}",
                    ratio,
                ]
            )
    if rows:
        print_table(["world", *columns, "half width of exponents", "regret"], rows)
    print()
    if splits:
        print_table(
            ["scatter", "lr held", "bs held", "mean regret", "largest", "copying", "regret / copying"], splits
        )


if __name__ == "__main__":
    main()
