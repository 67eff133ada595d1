"""Print how far the law of the first study may be believed: `python tests/benchmarks/first_study.py [REPEATS]`.

Each repeat runs studies/small.yaml with seeds of its own, and then what README shows: `laws fit`, `laws predict` of a
size twice as large with its forecast sealed, a run of that size, and `laws verify`. Labs are kept in --lab, where a
benchmark that was stopped goes on.
"""

import argparse
import json
import math
import os
import sys
from pathlib import Path
from statistics import median

sys.path[0] = str(Path(__file__).parents[1])  # not this folder, which has a laws.py

from benchmarks.setting import STUDIES, setting, sweeplab

from sweeplab.study.file.reading import read_study

STUDY = STUDIES / "small.yaml"
LARGER = "n_layer=2,n_embd=96"


def repeat(seed, folder):
    """Return the exponent, and the forecast with its outcome, of a study with its seeds moved by ten times `seed`."""
    larger, at = folder / f"larger{seed}.yaml", ("--lab", folder / f"lab{seed}")
    seeds = []
    for entry in read_study(STUDY).as_written()["seeds"]:
        if isinstance(entry, dict):
            seeds.append({**entry, "seed": entry["seed"] + 10 * seed})
        else:
            seeds.append(entry + 10 * seed)
    sweeplab("run", STUDY, "-o", f"seeds={json.dumps(seeds)}", *at)
    law = json.loads(sweeplab("laws", "fit", "small", "--json", *at))
    if not larger.exists():
        words = ("laws", "predict", "small", "--at", LARGER, "--write", larger, "--seal")
        sweeplab(*words, *at)
    sweeplab("run", larger, *at)
    (scored,) = json.loads(sweeplab("laws", "verify", "--json", *at))["forecasts"]
    return law["parameters"]["alpha"], scored


def main(repeats, folder):
    """Print a row for each repeat as it ends, and how many forecasts held."""
    print(setting())
    folder.mkdir(parents=True, exist_ok=True)
    print("| seed | exponent | verdict | forecast | half width | loss | held | above |")
    print(f"|{' --- |' * 8}")
    widths, held, halves = [], [], []
    for seed in range(1, 1 + repeats):
        alpha, scored = repeat(seed, folder)
        ends = scored["forecast"]["predicted"]
        widths.append(math.log(ends["high"] / ends["low"]) / 2)
        held.append(scored["held"])
        halves.append((alpha["high"] - alpha["low"]) / 2)
        cells = [
            str(seed),
            f"{alpha['low']:.3f} to {alpha['high']:.3f}",
            alpha["verdict"],
            f"{ends['low']:.4f} to {ends['high']:.4f}",
            f"{widths[-1]:.2%}",
            f"{scored['loss']:.4f}",
            str(held[-1]),
            f"{scored['loss'] / ends['loss'] - 1:+.2%}",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)
    print(f"{sum(held)} of {repeats} forecasts held")
    print(f"medians of half widths: alpha {median(halves):.3f}, loss {median(widths):.2%}")


if __name__ == "__main__":
    os.environ["SWEEPLAB_LAB"] = ""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repeats", type=int, nargs="?", default=20)
    parser.add_argument("--lab", type=Path, default=Path("first-study-labs"))
    asked = parser.parse_args()
    main(asked.repeats, asked.lab.absolute())
