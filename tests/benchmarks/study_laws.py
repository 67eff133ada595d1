"""Measure how often the law of a study like the first one is right: `python tests/benchmarks/study_laws.py [STUDIES]`.

Each study has the ten sizes, trials and seeds of studies/small.yaml, with losses of a planted law of N
(`like_the_first` in tests/analysis/planted_study.py). Columns: how often the exponent's 90% interval holds the planted
one, how often the form is flagged, which is right, how often the exponent is identified, and the median half width.
"""

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a process a core
sys.path[0] = str(Path(__file__).parents[1])  # not this folder

import numpy as np
from analysis.planted_study import FIRST_LAW, like_the_first
from benchmarks.setting import print_table, setting

from sweeplab.analysis.studies import study_points
from sweeplab.laws.assessment import assess, law_for
from sweeplab.laws.columns import Conventions

NOISES = (0.002, 0.005, 0.01)


def one_study(noise: float, seed: int) -> tuple[bool, bool, bool, float]:
    """Return whether the exponent is held, the form flagged, the exponent identified, and its half width."""
    points = study_points(like_the_first(noise, seed), None, Conventions(params="non-embedding"))
    assessed = assess(points, law_for(points))
    (alpha,) = (each for each in assessed.estimates if each.quantity.name == "alpha")
    low, high = alpha.interval.low, alpha.interval.high
    held = low <= FIRST_LAW["alpha"] <= high
    is_flagged = assessed.misfit.status == "flagged"
    return held, is_flagged, alpha.verdict.verdict == "identified", (high - low) / 2


def main(n_studies: int) -> None:
    """Print a row for each noise."""
    print(f"{setting()}; {n_studies} studies a row\n")
    rows = []
    with ProcessPoolExecutor() as pool:
        for noise in NOISES:
            results = [*pool.map(partial(one_study, noise), range(n_studies))]
            held, flagged, identified, halves = map(np.array, zip(*results, strict=True))
            shares = (f"{each.mean():.0%}" for each in (held, flagged, identified))
            rows.append([f"{noise:.1%}", *shares, f"{np.median(halves):.3f}"])
    names = ["noise of a run", "held", "flagged", "identified", "half width"]
    print_table(names, rows)


if __name__ == "__main__":
    main(int((sys.argv[1:] or ["100"])[0]))
