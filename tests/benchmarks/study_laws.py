"""Measure how often the law of a study like the first one is right: `python tests/benchmarks/study_laws.py [STUDIES]`.

Each study has the ten sizes, trials and seeds of studies/small.yaml, with losses of a planted law of N
(`like_the_first` in tests/analysis/planted_study.py). Columns: how often the exponent's 90% interval holds the planted
one, its median half width, how often it is identified, how often the form is flagged, which is right, and of a run of
2.1 times the largest size how often its forecast holds, the median half width and the mean error.
"""

import math
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
from sweeplab.laws.assessment import assess, law_for, predict
from sweeplab.laws.columns import Conventions, Counting

NOISES = (0.002, 0.005, 0.01)
VALLEYS = {
    "one rate for all": (0.0, 0.0),
    "a rate that falls": (-0.8, 0.0),
    "and a skew valley": (-0.8, 0.015),
}


def one_study(noise, valley, seed):
    """Return for the exponent whether it is held, its half width, whether it is identified and the form flagged.

    Then for the forecast of a run whether it holds, its half width and its error.
    """
    points = study_points(
        like_the_first(noise, seed, *valley), Counting(Conventions(params="non-embedding"))
    )
    assessed = assess(points, law_for(points))
    (alpha,) = (each for each in assessed.estimates if each.quantity.name == "alpha")
    held = alpha.low <= FIRST_LAW["alpha"] <= alpha.high
    identified, flagged = (
        alpha.verdict.verdict == "identified",
        assessed.misfit.status == "flagged",
    )
    n = 2.1 * float(points.columns["params"].max())
    said = predict(assessed, {"params": n})
    truth = FIRST_LAW["E"] + FIRST_LAW["A"] / n ** FIRST_LAW["alpha"]
    outcome = truth * math.exp(noise * np.random.default_rng([seed, 9]).standard_normal())
    half, error = math.log(said.high / said.low) / 2, math.log(said.loss / truth)
    return (
        held,
        (alpha.high - alpha.low) / 2,
        identified,
        flagged,
        said.low <= outcome <= said.high,
        half,
        error,
    )


def main(n_studies):
    """Print a row for each valley and noise."""
    print(f"{setting()}; {n_studies} studies a row\n", flush=True)
    rows = []
    with ProcessPoolExecutor(int(os.environ.get("PROCESSES", 2))) as pool:
        for name, valley in VALLEYS.items():
            for noise in NOISES:
                results = pool.map(partial(one_study, noise, valley), range(n_studies))
                told = np.array([*results], float)
                held, identified, flagged, forecast = (
                    f"{told[:, at].mean():.0%}" for at in (0, 2, 3, 4)
                )
                half, reach = np.median(told[:, 1]), np.median(told[:, 5])
                row = [name, f"{noise:.1%}", held, f"{half:.3f}", identified, flagged, forecast]
                rows.append([*row, f"{reach:.2%}", f"{told[:, 6].mean():+.2%}"])
    names = ["valley", "noise of a run", "alpha held", "half width", "identified", "flagged"]
    print_table([*names, "2.1x held", "half width", "error"], rows)


if __name__ == "__main__":
    main(int((sys.argv[1:] or ["100"])[0]))
