"""Print how far the law of the first study may be believed: `python tests/benchmarks/first_study.py [REPEATS]`.

Each repeat runs studies/small.yaml with seeds of its own, and then what README shows: `laws fit`, `laws predict` of a
size twice as large with its forecast sealed, a run of that size, and `laws verify`. Labs are kept in --lab, where a
benchmark that was stopped goes on. Seconds are those of the first study's command; CPU seconds are of its processes.
"""

import argparse
import json
import math
import os
import resource
import sys
import time
from pathlib import Path
from statistics import median

sys.path[0] = str(Path(__file__).parents[1])  # not this folder, which has a laws.py

from benchmarks.setting import STUDIES, print_table, setting, sweeplab

STUDY = STUDIES / "small.yaml"
LARGER = "n_layer=2,n_embd=96"


def train(seed, lab, cost):
    """Run the first study with its seeds moved by ten times `seed`; return its seconds and CPU seconds."""
    if not cost.exists():
        from sweeplab.study.file.reading import read_study

        seeds = []
        for entry in read_study(STUDY).as_written()["seeds"]:
            if isinstance(entry, dict):
                seeds.append({**entry, "seed": entry["seed"] + 10 * seed})
            else:
                seeds.append(entry + 10 * seed)
        began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        sweeplab("run", STUDY, "-o", f"seeds={json.dumps(seeds)}", "--lab", lab)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        cost.write_text(json.dumps({"seconds": time.monotonic() - began, "cpu": cpu}))
    return dict(json.loads(cost.read_text()))


def repeat(seed, folder):
    """Return what one repeat comes to."""
    lab, larger = folder / f"lab{seed}", folder / f"larger{seed}.yaml"
    cost = train(seed, lab, folder / f"cost{seed}.json")
    law = json.loads(sweeplab("laws", "fit", "small", "--json", "--lab", lab))
    if not larger.exists():
        sweeplab(
            "laws",
            "predict",
            "small",
            "--at",
            LARGER,
            "--write",
            larger,
            "--seal",
            "--lab",
            lab,
        )
        sweeplab("run", larger, "--lab", lab)
    (scored,) = json.loads(sweeplab("laws", "verify", "--json", "--lab", lab))["forecasts"]
    return {
        "seed": seed,
        **cost,
        "alpha": law["parameters"]["alpha"],
        **scored,
    }


def main(repeats, folder):
    """Print a row for each repeat, and how many forecasts held."""
    print(setting())
    folder.mkdir(parents=True, exist_ok=True)
    rows, widths, held, halves = [], [], [], []
    for seed in range(1, 1 + repeats):
        found = repeat(seed, folder)
        alpha, ends = found["alpha"], found["forecast"]["predicted"]
        width = math.log(ends["high"] / ends["low"]) / 2
        widths.append(width)
        held.append(found["held"])
        halves.append((alpha["high"] - alpha["low"]) / 2)
        interval = f"{ends['low']:.4f} to {ends['high']:.4f}"
        rows.append(
            [
                str(seed),
                f"{found['seconds']:.0f}",
                f"{found['cpu']:.0f}",
                f"{alpha['low']:.3f} to {alpha['high']:.3f}",
                alpha["verdict"],
                interval,
                f"{width:.2%}",
                f"{found['loss']:.4f}",
                str(found["held"]),
            ]
        )
    headings = [
        "seed",
        "seconds",
        "CPU",
        "alpha",
        "verdict",
        "forecast",
        "half width",
        "loss",
        "held",
    ]
    print_table(headings, rows)
    print(f"{sum(held)} of {repeats} forecasts held")
    print(f"medians of half widths: alpha {median(halves):.3f}, loss {median(widths):.2%}")


if __name__ == "__main__":
    os.environ["SWEEPLAB_LAB"] = ""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repeats", type=int, nargs="?", default=20)
    parser.add_argument("--lab", type=Path, default=Path("first-study-labs"))
    asked = parser.parse_args()
    main(asked.repeats, asked.lab.absolute())
