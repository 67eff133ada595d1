"""Measure `laws audit` on planted worlds: whether it names the largest cause, and whether its cures do what they say.

A world has a law, nine shapes of models at one length or three, six or four learning rates and three seeds; and none,
one or two causes, each of 0.5 to 3% of the loss in the law's residual. A cure is run in its world N_AGAIN times, in
which only the new runs' noise differs, and the median half width is compared with the forecast.

Run: python tests/benchmarks/audit.py [--worlds 40]
"""

import argparse
import os
import sys
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
sys.path[0] = str(Path(__file__).parents[1])  # not this folder, which has a laws.py

import numpy as np
import pandas as pd
from benchmarks.setting import print_table, setting
from laws.planted_causes import CAUSES, DESIGNS, LOSS, cured, free_of, look, make

from sweeplab.laws.assessment import assess
from sweeplab.laws.causes import LEAST_SIZE, SEEDS, TUNING
from sweeplab.laws.choosing import law_of_counts
from sweeplab.laws.points import points_of_frame

SIZES = (0.005, 0.01, 0.02, 0.03)
N_AGAIN = 5
CLOSE = 1.5  # the factor that a forecast may be off


def half_width(runs: pd.DataFrame, name: str) -> float:
    """Return half the width of a number's interval."""
    points = points_of_frame(runs.drop(columns="excess"), "a table", LOSS)
    assessed = assess(points, law_of_counts(points), others=(), of_all_depths=True)
    numbers = {each.quantity.name: each for each in assessed.estimates}
    return (numbers[name].interval.high - numbers[name].interval.low) / 2


def measure(design: str, n_causes: int, n_worlds: int, random: np.random.Generator) -> tuple[list[int], dict]:
    """Return the counts of worlds, largest named first, absent causes and these named; and the cures' ratios."""
    n_done, first, absent, false, ratios = 0, 0, 0, 0, {}
    while n_done < n_worlds:
        chosen = list(map(str, random.choice(CAUSES[design], n_causes, replace=False)))
        drawn = np.sort(random.choice(SIZES, n_causes, replace=False))[::-1]
        world = make(design, dict(zip(chosen, map(float, drawn), strict=True)), random)
        if world is None:
            continue
        n_done, key = n_done + 1, int(random.integers(1 << 30))
        diagnosis, excess = look(world.runs(key))
        names = [cause.name for cause in diagnosis.causes.named]
        tuned = float(np.sqrt(((free_of(world).T @ excess) ** 2).mean()))
        # Without another cause there are the seeds; and few grids of learning rates are without any excess.
        there = {*chosen, *([] if chosen else [SEEDS]), *([TUNING] if tuned > LEAST_SIZE else [])}
        absent += len(set(CAUSES[design]) - there)
        false += len(set(names) - there)
        if not chosen or names[:1] != chosen[:1]:
            continue
        first += 1
        cure, number = diagnosis.cures.get(names[0]), diagnosis.estimate
        if cure and number and np.isfinite(cure.half_width):
            then = [half_width(cured(world, cure, key, k + 1), number.quantity.name) for k in range(N_AGAIN)]
            ratios.setdefault((design, names[0]), []).append(cure.half_width / float(np.median(then)))
    return [n_done, first, absent, false], ratios


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=40, help="of each design and number of causes")
    options = parser.parse_args()
    random = np.random.default_rng(0)
    rows, ratios = [], {}
    for design in DESIGNS:
        for n_causes in (0, 1, 2):
            (n_done, first, absent, false), measured = measure(design, n_causes, options.worlds, random)
            for key, values in measured.items():
                ratios.setdefault(key, []).extend(values)
            share = f"{first / n_done:.0%}" if n_causes else "–"
            rows.append([design, str(n_causes), str(n_done), share, f"{false / absent:.1%} of {absent}"])
    print_table(["design", "causes", "worlds", "largest named first", "absent causes named"], rows)
    print()
    rows = []
    for (design, name), values in ratios.items():
        within = f"{np.mean([1 / CLOSE <= value <= CLOSE for value in values]):.0%}"
        low, middle, high = np.quantile(values, [0.1, 0.5, 0.9])
        rows.append([design, name, str(len(values)), within, f"{middle:.2f} ({low:.2f} to {high:.2f})"])
    headings = ["design", "cure of", "worlds", f"within a factor {CLOSE}", "forecast / measured (10 to 90%)"]
    print_table(headings, rows)
    print(f"\n{setting()}")


if __name__ == "__main__":
    main()
